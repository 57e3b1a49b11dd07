//! Rollouts: which writes bring a stored workload up to date, for which policies, and whether these let them.

use crate::audit::Event;
use crate::patch::{Operation, operations, tested};
use crate::{State, pod};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::HashMap;

/// What a rollout does to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A patch of the pod template, or of a running pod.
    Patch,
    /// The same, but it only has all pods made anew.
    Restart,
    /// CPU and memory of a running pod.
    Resize,
    /// An eviction.
    Evict,
}

/// The annotation with which pods are made anew.
pub(crate) const RESTARTED: &str = "/metadata/annotations/kubectl.kubernetes.io~1restartedAt";
/// The annotation with which a workload or a namespace opts out.
const OPT_OUT: &str = "scpol.dev/rollout";
/// The time within which the operator hears of a change of a policy or a namespace.
const HEARD: SignedDuration = SignedDuration::from_secs(10);

impl Step {
    /// What `event`, a write of the operator, does; none if it is no part of a rollout. `waits`: the object has pending initializers.
    pub(crate) fn of(event: &Event, pod: Option<&str>, waits: bool) -> Option<Self> {
        let pod = pod.filter(|_| !event.is_dry_run())?;
        match (event.verb.as_str(), event.object_ref.subresource.as_str()) {
            ("create", "eviction") => return Some(Self::Evict),
            ("patch", "resize") => return Some(Self::Resize),
            ("patch", "") => {}
            _ => return None,
        }
        let operations = operations(&event.request_object);
        if waits || operations.is_empty() || operations.iter().any(|all| all.path.starts_with("/metadata/initializers"))
        {
            return None;
        }
        let mut changes = operations.iter().filter(|operation| !operation.is_test());
        let is_restart = |operation: &Operation| {
            let below = operation.path.strip_prefix(pod).unwrap_or_default();
            below == RESTARTED || below == "/metadata/annotations" && markers_of(pod, operation).is_empty()
        };
        Some(if changes.all(is_restart) { Self::Restart } else { Self::Patch })
    }
}

/// The value that a write is guarded by: `uid` or `resourceVersion` of the object as it was read.
pub(crate) fn guard<'a>(event: &'a Event, field: &str) -> Option<&'a str> {
    let body = &event.request_object;
    let guard = match event.object_ref.subresource.as_str() {
        "eviction" => body["deleteOptions"]["preconditions"][field].as_str(),
        "resize" => body["metadata"][field].as_str(),
        _ => tested(body, &format!("/metadata/{field}")),
    };
    guard.filter(|value| !value.is_empty())
}

/// The markers that an operation sets or removes: the policies, with the hash of what they add.
pub(crate) fn markers_of(pod: &str, operation: &Operation) -> Vec<(String, String)> {
    let Some(below) = operation.path.strip_prefix(pod).filter(|_| !operation.is_test()) else { return Vec::new() };
    let all = |annotations: &Value| pod::marked(annotations).collect();
    match below {
        "/metadata" => all(&operation.value["annotations"]),
        "/metadata/annotations" => all(operation.value),
        _ => {
            let key = below.strip_prefix("/metadata/annotations/").unwrap_or_default().replace("~1", "/");
            pod::marked(&Value::Object([(key, operation.value.clone())].into_iter().collect())).collect()
        }
    }
}

/// The policies and namespaces, as they were at each time.
#[derive(Default)]
pub(crate) struct Known {
    policies: HashMap<String, Versions>,
    namespaces: HashMap<String, Versions>,
    /// How often somebody has written each policy.
    edits: HashMap<String, u64>,
    /// What each policy matches, by its status.
    matched: HashMap<String, u64>,
}

/// An object since each time; null for one that is not there.
type Versions = Vec<(Option<Timestamp>, Value)>;

impl Known {
    /// What is stored before the log begins.
    pub(crate) fn begin(&mut self, state: &State) {
        for (name, policy) in state.policies() {
            self.policies.insert(name.to_owned(), vec![(None, policy.clone())]);
            self.count(name, policy);
        }
        for namespace in state.of_kind("Namespace") {
            let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
            self.namespaces.insert(name.to_owned(), vec![(None, namespace.clone())]);
        }
    }

    pub(crate) fn see(&mut self, event: &Event, is_ours: bool) {
        let about = &event.object_ref;
        if !event.is_stored() {
            return;
        }
        let known = match (about.api_group.as_str(), about.resource.as_str(), about.subresource.as_str()) {
            ("scpol.dev", "sidecarpolicies", "status") => return self.count(event.name(), &event.request_object),
            ("scpol.dev", "sidecarpolicies", "") if !is_ours => {
                *self.edits.entry(event.name().to_owned()).or_default() += 1;
                &mut self.policies
            }
            ("", "namespaces", "") => &mut self.namespaces,
            _ => return,
        };
        let object = match event.verb.as_str() {
            "delete" | "deletecollection" => Value::Null,
            _ => event.response_object.clone(),
        };
        known.entry(event.name().to_owned()).or_default().push((event.request_received_timestamp, object));
    }

    fn count(&mut self, policy: &str, object: &Value) {
        if let Some(matched) = object["status"]["matched"].as_u64() {
            self.matched.insert(policy.to_owned(), matched);
        }
    }

    /// How often somebody has written the policy, or any if it is empty.
    pub(crate) fn edits(&self, policy: &str) -> u64 {
        if policy.is_empty() { self.edits.values().sum() } else { self.edits.get(policy).copied().unwrap_or_default() }
    }

    /// The policies for which a rollout writes: those whose markers change, and any of them otherwise.
    fn candidates<'a>(&'a self, marked: &'a [(String, String)]) -> Vec<&'a str> {
        match marked {
            [] => self.policies.keys().map(String::as_str).collect(),
            marked => marked.iter().map(|(policy, _)| policy.as_str()).collect(),
        }
    }

    /// Why no policy lets a `step` of a rollout write the workload, of which `object` is what was there. None if one does, or nobody can tell.
    pub(crate) fn objection(
        &self,
        event: &Event,
        step: Step,
        marked: &[(String, String)],
        object: &Value,
    ) -> Option<String> {
        let (at, about) = (event.request_received_timestamp, &event.object_ref);
        let namespace = lately(self.namespaces.get(&about.namespace), at);
        if !namespace.is_empty() && namespace.iter().all(|namespace| opts_out(namespace)) {
            return Some("the Namespace has opted out of rollouts".into());
        }
        let mut objection = None;
        for policy in self.candidates(marked) {
            let versions = lately(self.policies.get(policy), at);
            let objections: Option<Vec<&str>> =
                versions.iter().map(|version| objection_of(version, event, step, object)).collect();
            let last = objections?.pop()?;
            objection = Some(format!("policy `{policy}` {last}"));
        }
        objection
    }

    /// The most workloads that may be unavailable, by the policies of `marked` together. None if nobody can tell.
    pub(crate) fn limit(&self, event: &Event, marked: &[(String, String)]) -> Option<u64> {
        let limit = |policy: &str| {
            let versions = lately(self.policies.get(policy), event.request_received_timestamp);
            let limits: Option<Vec<u64>> = versions.iter().map(|version| self.limit_of(policy, version)).collect();
            limits?.into_iter().max()
        };
        let at = event.request_received_timestamp;
        let rolls = |policy: &&str| {
            let versions = lately(self.policies.get(*policy), at);
            versions.iter().any(|version| objection_of(version, event, Step::Patch, &Value::Null).is_none())
        };
        let policies = self.candidates(marked).into_iter().filter(|policy| !marked.is_empty() || rolls(policy));
        if self.policies.is_empty() { None } else { policies.map(limit).sum() }
    }

    fn limit_of(&self, policy: &str, version: &Value) -> Option<u64> {
        let limit = &version["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"];
        match limit.as_str() {
            None => Some(limit.as_u64().unwrap_or(1)),
            Some(percent) => {
                let percent: u64 = percent.strip_suffix('%')?.parse().ok()?;
                Some((self.matched.get(policy)? * percent / 100).max(1))
            }
        }
    }
}

/// The versions that the operator may know at a time.
fn lately(versions: Option<&Versions>, at: Option<Timestamp>) -> Vec<&Value> {
    let versions = versions.map(Vec::as_slice).unwrap_or_default();
    let is_heard = |since: &Option<Timestamp>| since.zip(at).is_none_or(|(since, at)| at.duration_since(since) > HEARD);
    let from = versions.iter().rposition(|(since, _)| at.is_some() && is_heard(since)).unwrap_or_default();
    versions[from..].iter().map(|(_, version)| version).collect()
}

/// Whether the object, or its pod template, has opted out.
pub(crate) fn opts_out(object: &Value) -> bool {
    object["metadata"]["annotations"][OPT_OUT] == "false"
}

/// Why this version of a policy rolls out nothing to the workload; none if it does.
fn objection_of(policy: &Value, event: &Event, step: Step, object: &Value) -> Option<&'static str> {
    let (spec, about) = (&policy["spec"], &event.object_ref);
    let strategy = &spec["updateStrategy"];
    let targets = spec["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let group = |name: &str| if name == "extensions" { "apps".to_owned() } else { name.to_owned() };
    let is_target = |target: &Value| {
        let text = |field: &str| target[field].as_str().unwrap_or_default();
        text("resource") == about.resource && group(text("group")) == group(&about.api_group)
    };
    let covers = |list: &Value| {
        let globs = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        globs.into_iter().any(|glob| matches(glob, &about.namespace))
    };
    let labels = spec["labelSelector"]["matchLabels"].as_object().into_iter().flatten();
    let objections = [
        (policy.is_null(), "is deleted"),
        (strategy["type"] != "RollingUpdate", "does not roll out"),
        (strategy["paused"] == true, "is paused"),
        (spec["suspend"] == true, "is suspended"),
        (step == Step::Restart && !asks_for_restart(policy), "asks for no restart"),
        (spec["mode"] == "Audit", "is in audit mode"),
        (targets.is_empty() && about.resource != "deployments", "does not target this kind"),
        (!targets.is_empty() && !targets.iter().any(is_target), "does not target this kind"),
        (spec["namespaces"].is_array() && !covers(&spec["namespaces"]), "does not cover the namespace"),
        (covers(&spec["excludeNamespaces"]), "excludes the namespace"),
        (
            object.is_object() && labels.into_iter().any(|(key, value)| object["metadata"]["labels"][key] != *value),
            "does not select its labels",
        ),
    ];
    objections.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
}

fn asks_for_restart(policy: &Value) -> bool {
    policy["metadata"]["annotations"]["scpol.dev/restartedAt"].is_string()
}

/// Whether a name matches a glob, in which `*` stands for any characters.
fn matches(glob: &str, name: &str) -> bool {
    match glob.split_once('*') {
        None => glob == name,
        Some((head, rest)) => {
            let Some(name) = name.strip_prefix(head) else { return false };
            (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }
    }
}

/// The controller of a pod, as it is in `ownerReferences`.
pub(crate) fn controller(pod: &Value) -> Option<&Value> {
    pod["metadata"]["ownerReferences"].as_array()?.iter().find(|owner| owner["controller"] == true)
}

/// Whether all of a workload serves its users. None for kinds of which nobody can tell.
fn is_available(resource: &str, object: &Value) -> Option<bool> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    let has_observed = number("observedGeneration") >= object["metadata"]["generation"].as_i64().unwrap_or_default();
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let is_rolled = match resource {
        "deployments" => number("updatedReplicas") >= wanted && number("availableReplicas") >= wanted,
        "statefulsets" => number("readyReplicas") >= wanted,
        "daemonsets" => number("numberAvailable") >= number("desiredNumberScheduled"),
        _ => return None,
    };
    Some(has_observed && is_rolled)
}

/// Who may be unavailable for a rollout.
#[derive(Clone, Debug)]
enum Turn {
    /// A workload is written for these policies, or a pod with this owner is evicted.
    Begin { policies: String, who: String, limit: u64, object: String, audit_id: String },
    /// It is available again, or gone.
    End { who: String },
    /// The log shows a pod ready for the first time: it may replace one that was evicted.
    Replaced { who: String },
}

/// Who was unavailable for a rollout at which time. The log has the order of answers, so it is put in order in the end.
#[derive(Default)]
pub(crate) struct Turns {
    turns: Vec<(Timestamp, Turn)>,
    /// The pods that were ready once.
    ready: std::collections::HashSet<String>,
}

/// Too many at once.
pub(crate) struct Crowd {
    pub(crate) object: String,
    pub(crate) audit_id: String,
    pub(crate) message: String,
}

impl Turns {
    /// The pods that are ready before the log begins.
    pub(crate) fn begin(&mut self, state: &State) {
        self.ready.extend(state.of_kind("Pod").filter_map(|pod| pod["metadata"]["uid"].as_str().map(str::to_owned)));
    }

    fn push(&mut self, event: &Event, turn: Turn) {
        let last = self.turns.last().map(|(at, _)| *at).unwrap_or_default();
        self.turns.push((event.request_received_timestamp.unwrap_or(last), turn));
    }

    /// A write of a rollout has been stored. `before` is the object as it was.
    pub(crate) fn write(
        &mut self,
        event: &Event,
        step: Step,
        marked: &[(String, String)],
        before: Option<&Value>,
        known: &Known,
    ) {
        let Some(limit) = known.limit(event, marked) else { return };
        let who = match step {
            // The status of a patched pod does not tell when it is the new one.
            Step::Resize => return,
            Step::Patch | Step::Restart => {
                let available = is_available(&event.object_ref.resource, &event.response_object);
                if available != Some(false) {
                    return;
                }
                place(event)
            }
            Step::Evict => match before.and_then(controller) {
                Some(owner) => format!("pods of {}", owner["uid"]),
                None => return,
            },
        };
        let policies = marked.iter().map(|(policy, _)| policy.as_str()).collect::<Vec<_>>().join(", ");
        let (object, audit_id) = (event.object(), event.audit_id.clone());
        self.push(event, Turn::Begin { policies, who, limit, object, audit_id });
    }

    /// Anybody has written a workload.
    pub(crate) fn see(&mut self, event: &Event) {
        let object = &event.response_object;
        let is_gone = event.verb == "delete";
        if is_gone || is_available(&event.object_ref.resource, object) == Some(true) {
            return self.push(event, Turn::End { who: place(event) });
        }
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready =
            conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let is_new = event.object_ref.resource == "pods" && is_ready && self.ready.insert(uid.to_owned());
        if let Some(owner) = controller(object).filter(|_| is_new) {
            self.push(event, Turn::Replaced { who: format!("pods of {}", owner["uid"]) });
        }
    }

    /// The writes that made more unavailable than allowed.
    pub(crate) fn crowds(&self) -> Vec<Crowd> {
        let mut turns = self.turns.clone();
        turns.sort_by_key(|(at, _)| *at);
        let mut away: HashMap<String, Vec<String>> = HashMap::new();
        let mut crowds = Vec::new();
        for (_, turn) in turns {
            match turn {
                Turn::End { who } => away.values_mut().for_each(|away| away.retain(|other| *other != who)),
                Turn::Replaced { who } => {
                    for away in away.values_mut() {
                        away.iter().position(|other| *other == who).map(|at| away.remove(at));
                    }
                }
                Turn::Begin { policies, who, limit, object, audit_id } => {
                    let away = away.entry(policies).or_default();
                    if who.starts_with("pods of ") || !away.contains(&who) {
                        away.push(who);
                    }
                    let count = away.len() as u64;
                    if count > limit {
                        let message = format!("{count} are updated and not available yet, and {limit} may be");
                        crowds.push(Crowd { object, audit_id, message });
                    }
                }
            }
        }
        crowds
    }
}

/// The object of a request, whatever the subresource.
pub(crate) fn place(event: &Event) -> String {
    let about = &event.object_ref;
    format!("{} {}/{}", about.resource, about.namespace, event.name())
}
