//! The state before a write: the earlier object, and our own earlier write.

use crate::audit::Event;
use crate::{Site, patch};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// A write request of the operator, with its context.
pub struct Write<'a> {
    /// The request.
    pub event: &'a Event,
    /// The pod's path in its object; none for other objects.
    pub pod: Option<&'a str>,
    /// The earlier object, if it is in the log and was waiting.
    pub before: Option<Value>,
    /// The request of our earlier write, without another client's write in between.
    pub earlier: Option<String>,
    /// The reason why this status write puts a policy out of effect although no other client has changed the policy or
    /// a registration since.
    pub gave_up: Option<String>,
}

impl Write<'_> {
    /// Whether the write changes a workload.
    pub fn completes(&self) -> bool {
        self.pod.is_some() && self.event.is_stored() && self.event.object_ref.subresource.is_empty()
    }
}

/// The known state of each object, as far as rules need it.
#[derive(Default)]
pub(crate) struct History {
    /// Waiting objects by place, as last seen.
    waiting: HashMap<String, Value>,
    /// Our last write of each object without later writes by others, by place.
    ours: HashMap<String, Ours>,
    /// The number of our writes of each workload.
    writes: BTreeMap<String, Writes>,
    /// The policies that are in effect according to their status and have not been touched since.
    in_force: BTreeSet<String>,
}

/// The number of writes of a workload.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Writes {
    /// Certain writes.
    pub(crate) sure: u64,
    /// Possible further writes.
    #[serde(default)]
    pub(crate) doubtful: u64,
}

impl Writes {
    /// The smallest and largest possible number.
    pub(crate) fn range(self) -> RangeInclusive<u64> {
        self.sure..=self.sure + self.doubtful
    }
}

struct Ours {
    audit_id: String,
    uid: String,
    /// The version in the answer.
    version: Option<String>,
}

impl History {
    /// Records an event, and returns it if it is a write of the operator.
    pub(crate) fn see<'a>(&mut self, site: &'a Site, event: &'a Event) -> Option<Write<'a>> {
        if !event.is_write() || !matches!(event.stage.as_str(), "" | "ResponseComplete" | "Panic") {
            return None;
        }
        let pod = site.pod_of(&event.object_ref.api_group, &event.object_ref.resource);
        let is_ours = event.user.username == site.user;
        let gave_up = self.see_policy(event, is_ours);
        let write =
            is_ours.then(|| Write { event, pod, before: self.before(event), earlier: self.earlier(event), gave_up });
        if is_ours && pod.is_some() && event.is_doubtful() {
            self.writes.entry(event.object()).or_default().doubtful += 1;
        }
        if pod.is_some() && event.is_stored() && event.object_ref.subresource.is_empty() {
            self.note(event, is_ours);
        }
        write
    }

    /// Records the effect of an event on the state of policies. Returns the reason if `event` puts one out of effect.
    fn see_policy(&mut self, event: &Event, is_ours: bool) -> Option<String> {
        // A doubtful write may have been stored.
        if !event.is_stored() && !event.is_doubtful() {
            return None;
        }
        let about = &event.object_ref;
        match (about.api_group.as_str(), about.resource.as_str(), about.subresource.as_str()) {
            ("scpol.dev", "sidecarpolicies", "status") if is_ours => {
                let conditions = event.request_object["status"]["conditions"].as_array().into_iter().flatten();
                let programmed = conditions.into_iter().find(|condition| condition["type"] == "Programmed")?;
                if programmed["status"] == "True" {
                    self.in_force.insert(event.name().to_owned());
                    return None;
                }
                self.in_force.remove(event.name()).then(|| programmed["reason"].as_str().unwrap_or_default().to_owned())
            }
            ("scpol.dev", "sidecarpolicies", "") if !is_ours => {
                self.in_force.remove(event.name());
                None
            }
            // Registrations and rights affect all policies.
            ("admissionregistration.k8s.io" | "rbac.authorization.k8s.io", ..) if !is_ours => {
                self.in_force.clear();
                None
            }
            _ => None,
        }
    }

    /// The number of the operator's writes of each workload.
    pub(crate) fn writes(&self) -> &BTreeMap<String, Writes> {
        &self.writes
    }

    fn before(&self, event: &Event) -> Option<Value> {
        let known = self.waiting.get(&event.object())?;
        let tested = patch::tested(&event.request_object, "/metadata/resourceVersion");
        // The log has that other version later, or never.
        (known["metadata"]["resourceVersion"].as_str() == tested).then(|| known.clone())
    }

    fn earlier(&self, event: &Event) -> Option<String> {
        let ours = self.ours.get(&event.object())?;
        let tested = |path| patch::tested(&event.request_object, path);
        let is_another = tested("/metadata/uid").is_some_and(|uid| uid != ours.uid);
        // The log has the order of answers, not of writes, so versions are more reliable.
        let is_changed = tested("/metadata/resourceVersion")
            .zip(ours.version.as_deref())
            .is_some_and(|(tested, written)| tested != written);
        (!is_another && !is_changed).then(|| ours.audit_id.clone())
    }

    fn note(&mut self, event: &Event, is_ours: bool) {
        let place = event.object();
        let stored = &event.response_object;
        let waits = stored["metadata"]["initializers"]["pending"].as_array().is_some_and(|pending| !pending.is_empty());
        if waits && event.verb != "delete" {
            self.waiting.insert(place.clone(), stored.clone());
        } else {
            self.waiting.remove(&place);
        }
        if !is_ours {
            // A create that waited for us is answered after our write. A new object with the same name has another UID.
            if event.verb != "create" {
                self.ours.remove(&place);
            }
            return;
        }
        self.writes.entry(place.clone()).or_default().sure += 1;
        let uid = patch::tested(&event.request_object, "/metadata/uid").or_else(|| stored["metadata"]["uid"].as_str());
        let version = stored["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let ours = Ours { audit_id: event.audit_id.clone(), uid: uid.unwrap_or_default().to_owned(), version };
        self.ours.insert(place, ours);
    }
}
