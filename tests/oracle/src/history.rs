//! What came before a write: the object as it was, and our own earlier write.

use crate::audit::Event;
use crate::{Site, patch};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

/// A request of the operator's that asks for a change, with what is known about it.
pub struct Write<'a> {
    /// The request.
    pub event: &'a Event,
    /// Where the pod lies in its object; none if it is no workload.
    pub pod: Option<&'a str>,
    /// The object as it was, if the log tells, and if it was still waiting then.
    pub before: Option<Value>,
    /// The request by which we had written it already, with nobody else's write in between.
    pub earlier: Option<String>,
    /// Why a policy is not in force any more by this write of its status, though nobody has changed it, or anything that is registered,
    /// since it was.
    pub gave_up: Option<String>,
}

impl Write<'_> {
    /// True if and only if it changes a workload.
    pub fn completes(&self) -> bool {
        self.pod.is_some() && self.event.is_stored() && self.event.object_ref.subresource.is_empty()
    }
}

/// What is remembered of each object, as little as rules need.
#[derive(Default)]
pub(crate) struct History {
    /// Objects that wait, by place, as last seen.
    waiting: HashMap<String, Value>,
    /// Our last write of an object that nobody else has written since: by place.
    ours: HashMap<String, Ours>,
    /// How often we have written each workload.
    writes: BTreeMap<String, Writes>,
    /// Policies that are in force as their status says, by name, and that nobody has touched since.
    in_force: BTreeSet<String>,
}

/// How often a workload was written.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Writes {
    /// For sure.
    pub(crate) sure: u64,
    /// Perhaps besides.
    #[serde(default)]
    pub(crate) doubtful: u64,
}

impl Writes {
    /// From how often to how often it may have been written.
    pub(crate) fn range(self) -> RangeInclusive<u64> {
        self.sure..=self.sure + self.doubtful
    }
}

struct Ours {
    audit_id: String,
    uid: String,
    /// As the answer said.
    version: Option<String>,
}

impl History {
    /// Takes note of an event, and gives it back if it is a write of the operator's.
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

    /// Takes note of what concerns whether policies are in force. Gives the reason if one is not any more, by `event`.
    fn see_policy(&mut self, event: &Event, is_ours: bool) -> Option<String> {
        // What was not stored for sure may have been.
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
            // Registrations and rights concern all of them.
            ("admissionregistration.k8s.io" | "rbac.authorization.k8s.io", ..) if !is_ours => {
                self.in_force.clear();
                None
            }
            _ => None,
        }
    }

    /// How often the operator has written each workload.
    pub(crate) fn writes(&self) -> &BTreeMap<String, Writes> {
        &self.writes
    }

    fn before(&self, event: &Event) -> Option<Value> {
        let known = self.waiting.get(&event.object())?;
        let tested = patch::tested(&event.request_object, "/metadata/resourceVersion");
        // Another version: what the log says about that one comes later, or not at all.
        (known["metadata"]["resourceVersion"].as_str() == tested).then(|| known.clone())
    }

    fn earlier(&self, event: &Event) -> Option<String> {
        let ours = self.ours.get(&event.object())?;
        let tested = |path| patch::tested(&event.request_object, path);
        let is_another = tested("/metadata/uid").is_some_and(|uid| uid != ours.uid);
        // The log is in the order of answers, not of writes: versions tell better.
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
            // A create that waited for us is answered after our write; another object of that name has another UID.
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
