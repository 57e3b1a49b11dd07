//! The state before a write: the earlier object, and our own earlier write.

use crate::audit::Event;
use crate::rollout::{self, Crowd, Known, Step, Turns, guard, place};
use crate::{Site, State, patch};
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
    /// The earlier object, in the version that the write is guarded by, if it is in the log.
    pub before: Option<Value>,
    /// The request of our earlier write, without another client's write in between.
    pub earlier: Option<String>,
    /// The reason why this status write puts a policy out of effect although no other client has changed the policy or
    /// a registration since.
    pub gave_up: Option<String>,
    /// What it does to a stored workload for a rollout; none for other writes.
    pub rollout: Option<Step>,
    /// Why no policy rolls out to the workload.
    pub objection: Option<String>,
}

impl Write<'_> {
    /// Whether the write changes a workload.
    pub fn completes(&self) -> bool {
        self.pod.is_some()
            && self.rollout.is_none()
            && self.event.is_stored()
            && self.event.object_ref.subresource.is_empty()
    }

    /// What the write does for a rollout, if it is stored.
    pub fn rolled(&self) -> Option<Step> {
        self.rollout.filter(|_| self.event.is_stored())
    }
}

/// The known state of each object, as far as rules need it.
#[derive(Default)]
pub(crate) struct History {
    /// Workloads by place, as last seen.
    seen: HashMap<String, Value>,
    /// Our last write of each object without later writes by others, by place.
    ours: HashMap<String, Ours>,
    /// The number of our writes of each workload.
    writes: BTreeMap<String, Writes>,
    /// The policies that are in effect according to their status and have not been touched since.
    in_force: BTreeSet<String>,
    known: Known,
    /// The rollout writes of each workload since its last write by somebody else, by place and UID.
    rolled: HashMap<String, HashMap<Work, (String, u64)>>,
    turns: Turns,
}

/// What a rollout does: the policy and the hash of its content, or a word for what has none.
type Work = (String, String);

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
    /// What is stored before the log begins.
    pub(crate) fn begin(&mut self, site: &Site, state: &State) {
        self.known.begin(state);
        self.turns.begin(state);
        let seen = state.workloads(site).map(|(place, object, _)| (place, object.clone()));
        self.seen.extend(seen);
    }

    /// The writes that made more unavailable than a policy allows.
    pub(crate) fn crowds(&self) -> Vec<Crowd> {
        self.turns.crowds()
    }

    /// Records an event, and returns it if it is a write of the operator.
    pub(crate) fn see<'a>(&mut self, site: &'a Site, event: &'a Event) -> Option<Write<'a>> {
        if !event.is_write() || !matches!(event.stage.as_str(), "" | "ResponseComplete" | "Panic") {
            return None;
        }
        let pod = site.pod_of(&event.object_ref.api_group, &event.object_ref.resource);
        let is_ours = event.user.username == site.user;
        let gave_up = self.see_policy(event, is_ours);
        self.known.see(event, is_ours);
        let write = is_ours.then(|| self.write(event, pod, gave_up));
        if is_ours && pod.is_some() && event.is_doubtful() {
            self.writes.entry(event.object()).or_default().doubtful += 1;
        }
        if pod.is_some() && event.is_stored() {
            if event.object_ref.subresource.is_empty() {
                self.note(event, is_ours);
            }
            self.look(event, write.as_ref());
        }
        write
    }

    fn write<'a>(&self, event: &'a Event, pod: Option<&'a str>, gave_up: Option<String>) -> Write<'a> {
        let last = self.seen.get(&place(event));
        let waits = last.is_some_and(|last| crate::pod::pending(last).next().is_some());
        let rollout = Step::of(event, pod, waits);
        let before = self.before(event);
        let mut write = Write { event, pod, before, earlier: None, gave_up, rollout, objection: None };
        match rollout {
            None => write.earlier = self.earlier(event),
            Some(step) => {
                let about = write.before.as_ref().unwrap_or(&event.response_object);
                write.objection = self.known.objection(event, step, &marked(&write), about);
                let done = self.rolled.get(&same(event));
                let again = works(&write, step).into_iter().find_map(|work| {
                    let (audit_id, edits) = done?.get(&work)?;
                    (*edits == self.known.edits(&work.0)).then(|| audit_id.clone())
                });
                write.earlier = again;
            }
        }
        write
    }

    /// Records what has become of a workload.
    fn look(&mut self, event: &Event, write: Option<&Write<'_>>) {
        if let Some((write, step)) = write.and_then(|write| Some((write, write.rollout?))) {
            let (marked, before) = (marked(write), write.before.as_ref().or_else(|| self.seen.get(&place(event))));
            self.turns.write(event, step, &marked, before, &self.known);
        }
        let done = write.map(|write| write.rollout.map_or_else(|| marked(write), |step| works(write, step)));
        match done {
            Some(works) => {
                let edits = works.iter().map(|work| self.known.edits(&work.0)).collect::<Vec<_>>();
                let since = works.into_iter().zip(edits.into_iter().map(|edits| (event.audit_id.clone(), edits)));
                self.rolled.entry(same(event)).or_default().extend(since);
            }
            // What is deleted does not come again with that UID.
            None if event.verb == "delete" || !event.object_ref.subresource.is_empty() => {}
            None => drop(self.rolled.remove(&same(event))),
        }
        self.turns.see(event);
        if event.verb == "delete" {
            self.seen.remove(&place(event));
        } else if event.response_object["metadata"]["name"].is_string() {
            self.seen.insert(place(event), event.response_object.clone());
        }
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
        let known = self.seen.get(&place(event))?;
        // The log has that other version later, or never.
        (known["metadata"]["resourceVersion"].as_str() == guard(event, "resourceVersion")).then(|| known.clone())
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

/// The markers that a patch of a workload sets or removes.
fn marked(write: &Write<'_>) -> Vec<Work> {
    let operations = patch::operations(&write.event.request_object);
    let pod = write.pod.unwrap_or_default();
    operations.iter().flat_map(|operation| rollout::markers_of(pod, operation)).collect()
}

/// What a write of a rollout does, which is due once.
fn works(write: &Write<'_>, step: Step) -> Vec<Work> {
    match step {
        Step::Patch => marked(write),
        Step::Restart => vec![(String::new(), "restart".into())],
        Step::Resize => vec![(String::new(), "resize".into())],
        Step::Evict => vec![(String::new(), "evict".into())],
    }
}

/// The same object, whatever its name.
fn same(event: &Event) -> String {
    let uid = guard(event, "uid").or_else(|| event.response_object["metadata"]["uid"].as_str());
    format!("{} {}", place(event), uid.unwrap_or_default())
}
