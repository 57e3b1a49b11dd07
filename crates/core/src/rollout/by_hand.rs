//! Pods that their controller does not replace, so that a person must delete them.
//!
//! A StatefulSet with `podManagementPolicy: OrderedReady` waits for a pod that is not ready, also where its template has changed since.
//! With `updateStrategy: OnDelete` a StatefulSet or DaemonSet replaces no pod at all.

use super::health;
use crate::api::code::Code;
use crate::workload::Workload;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// The label of a pod with the revision of the StatefulSet that made it.
const REVISION: &str = "controller-revision-hash";
/// The label of a pod with the generation of the template of the DaemonSet that made it, and the annotation with that of now.
const GENERATION: &str = "pod-template-generation";
const GENERATION_NOW: &str = "deprecated.daemonset.template.generation";

/// How long a pod whose containers all run may be not ready before it counts as broken.
const READY_SOON: SignedDuration = SignedDuration::from_secs(60);
/// The most pods that a command names, and the most characters of their names, if these are several.
const NAMED: usize = 3;
const LENGTH: usize = 100;
/// The reasons of a container that waits for its turn, or for its image for the first time.
const BENIGN: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// A controller that does not replace some of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// What it is called in a message.
    name: String,
    namespace: String,
    uid: String,
    /// The label of its pods that has the value `now` if they are of its template of now.
    label: &'static str,
    now: String,
    why: &'static str,
    /// The ordinals below it keep an earlier template on purpose.
    partition: i64,
}

impl Keeper {
    /// That of `workload`; none if it replaces its pods by itself, or if its status does not say which template counts.
    pub fn of(workload: &Workload) -> Option<Self> {
        let (spec, status) = (&workload.body["spec"], &workload.body["status"]);
        let is_on_delete = spec["updateStrategy"]["type"] == "OnDelete";
        let (label, now) = match workload.kind.resource.as_str() {
            _ if !workload.kind.is_in("apps") => return None,
            "statefulsets" => (REVISION, status["updateRevision"].as_str()?),
            "daemonsets" if is_on_delete => (GENERATION, workload.annotation(GENERATION_NOW)?),
            _ => return None,
        };
        let [generation, observed] = [&workload.body["metadata"]["generation"], &status["observedGeneration"]];
        if observed.as_i64()? < generation.as_i64()? {
            return None;
        }
        let why = match is_on_delete {
            true => "OnDelete",
            false if spec["podManagementPolicy"] != "Parallel" => "OrderedReady",
            false => return None,
        };
        Some(Self {
            name: format!("{} {}", workload.kind_name(), workload.name()),
            namespace: workload.namespace().to_owned(),
            uid: workload.uid().to_owned(),
            label,
            now: now.to_owned(),
            why,
            partition: spec["updateStrategy"]["rollingUpdate"]["partition"].as_i64().unwrap_or_default(),
        })
    }

    /// The label selector of pods that are of another template than that of now.
    pub fn earlier(&self) -> String {
        format!("{0},{0}!={1}", self.label, self.now)
    }

    /// What a person must do about the broken ones of its `pods`; none if it waits for none of them.
    pub fn demand<'a>(&self, pods: impl IntoIterator<Item = &'a Workload>, now: Timestamp) -> Option<String> {
        let pods = pods.into_iter().filter(|pod| self.is_earlier(pod) && is_broken(pod, now));
        let mut names: Vec<&str> = pods.map(Workload::name).filter(|name| is_name(name)).collect();
        names.sort_unstable();
        names.truncate(NAMED);
        while names.len() > 1 && names.iter().map(|name| name.len()).sum::<usize>() > LENGTH {
            names.pop();
        }
        if names.is_empty() {
            return None;
        }
        let (code, command) = (Code::PodKept, format!("kubectl delete pod -n {} {}", self.namespace, names.join(" ")));
        // The command comes first: a condition has room for 320 characters.
        Some(format!(
            "{code}: `{command}`: {} waits for that broken pod of an earlier template ({})",
            self.name, self.why
        ))
    }

    fn is_earlier(&self, pod: &Workload) -> bool {
        let is_its = pod.controller().is_some_and(|owner| owner["uid"] == self.uid.as_str());
        let ordinal = pod.name().rsplit('-').next().and_then(|ordinal| ordinal.parse::<i64>().ok());
        let is_kept_back = self.partition > 0 && ordinal.is_some_and(|ordinal| ordinal < self.partition);
        is_its && !is_kept_back && pod.label(self.label).is_some_and(|label| label != self.now)
    }
}

/// Whether `name` is that of a pod, as a server accepts it: a command that has it is copied.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !name.is_empty() && name.bytes().all(is_plain) && !name.starts_with('-')
}

/// Whether `pod` does not become ready by itself, as far as its status tells.
fn is_broken(pod: &Workload, now: Timestamp) -> bool {
    let status = &pod.body["status"];
    if pod.is_terminating() || health::condition(status, &["Ready"]).is_some_and(|(is_ready, _)| is_ready) {
        return false;
    }
    let since = |kind: &str| health::condition(status, &[kind]).and_then(|(_, since)| since);
    let created = || pod.body["metadata"]["creationTimestamp"].as_str()?.parse().ok();
    let is_old = since("Ready").or_else(created).is_some_and(|since| now.duration_since(since) >= READY_SOON);
    is_old || is_unscheduled(status) || waiting(pod).next().is_some()
}

fn is_unscheduled(status: &Value) -> bool {
    health::condition(status, &["PodScheduled"]).is_some_and(|(is_scheduled, _)| !is_scheduled)
}

/// The containers of `pod` that do not start, each with the reason.
pub fn waiting(pod: &Workload) -> impl Iterator<Item = (&str, &str)> {
    let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
    let statuses = lists.filter_map(|list| pod.body["status"][list].as_array()).flatten();
    let waiting =
        statuses.filter_map(|status| Some((status["name"].as_str()?, status["state"]["waiting"]["reason"].as_str()?)));
    waiting.filter(|(_, reason)| !BENIGN.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    fn set(resource: &str, spec: &Value) -> Workload {
        let annotations = json!({ GENERATION_NOW: "good" });
        let metadata =
            json!({ "namespace": "shop", "name": "db", "uid": "u", "generation": 3, "annotations": annotations });
        let status = json!({ "observedGeneration": 3, "updateRevision": "good" });
        let kind = Kind::find("apps", resource).unwrap();
        Workload::new(kind, json!({ "kind": "X", "metadata": metadata, "spec": spec, "status": status }))
    }

    /// A pod of a revision that has not been ready for so many seconds.
    fn pod(name: &str, revision: &str, seconds: i64) -> Workload {
        let since = now().checked_sub(SignedDuration::from_secs(seconds)).unwrap();
        let labels = json!({ REVISION: revision, GENERATION: revision });
        let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": since.to_string() });
        let owner = json!({ "kind": "StatefulSet", "uid": "u", "controller": true });
        let metadata = json!({ "namespace": "shop", "name": name, "labels": labels, "ownerReferences": [owner] });
        let body = json!({ "metadata": metadata, "status": { "conditions": [ready] } });
        Workload::new(Kind::find("", "pods").unwrap(), body)
    }

    #[test]
    fn only_a_controller_that_waits_for_its_broken_pods_keeps_them() {
        let on_delete = json!({ "updateStrategy": { "type": "OnDelete" } });
        for (resource, spec, why) in [
            ("statefulsets", json!({}), Some("OrderedReady")),
            ("statefulsets", json!({ "podManagementPolicy": "OrderedReady" }), Some("OrderedReady")),
            ("statefulsets", json!({ "podManagementPolicy": "Parallel" }), None),
            (
                "statefulsets",
                json!({ "podManagementPolicy": "Parallel", "updateStrategy": { "type": "OnDelete" } }),
                Some("OnDelete"),
            ),
            ("statefulsets", on_delete.clone(), Some("OnDelete")),
            ("daemonsets", json!({}), None),
            ("daemonsets", on_delete.clone(), Some("OnDelete")),
            ("deployments", on_delete, None),
        ] {
            let workload = set(resource, &spec);
            let demand = Keeper::of(&workload).and_then(|keeper| keeper.demand([&pod("db-2", "bad", 90)], now()));
            assert_eq!(demand.is_some(), why.is_some(), "{resource} {spec}");
            if let Some((demand, why)) = demand.zip(why) {
                assert!(demand.contains(why) && demand.contains("`kubectl delete pod -n shop db-2`"), "{demand}");
            }
        }
        let mut behind = set("statefulsets", &json!({}));
        behind.body["metadata"]["generation"] = json!(4);
        assert_eq!(Keeper::of(&behind), None, "which revision counts is not known yet");
    }

    #[test]
    fn only_broken_pods_of_an_earlier_template_are_to_be_deleted() {
        let keeper = Keeper::of(&set("statefulsets", &json!({}))).unwrap();
        let demands = |pod: &Workload| keeper.demand([pod], now()).is_some();
        assert!(demands(&pod("db-2", "bad", 60)));
        assert!(!demands(&pod("db-2", "bad", 59)), "it may become ready");
        assert!(!demands(&pod("db-2", "good", 900)));
        assert!(!demands(&pod("db-2; reboot", "bad", 900)));
        let with = |change: &dyn Fn(&mut Value)| {
            let mut pod = pod("db-2", "bad", 1);
            change(&mut pod.body);
            pod
        };
        assert!(!demands(&with(&|pod| {
            (pod["status"], pod["metadata"]["ownerReferences"][0]["uid"]) = (json!({}), json!("another"));
        })));
        let waits = json!([{ "name": "agent", "state": { "waiting": { "reason": "ImagePullBackOff" } } }]);
        assert!(demands(&with(&|pod| pod["status"]["containerStatuses"] = waits.clone())));
        let unscheduled = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
        assert!(demands(&with(&|pod| pod["status"]["conditions"] = unscheduled.clone())));
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        assert!(!demands(&with(&|pod| {
            pod["status"] = json!({ "conditions": ready.clone(), "containerStatuses": waits.clone() });
        })));
        assert!(!demands(&with(&|pod| {
            pod["status"]["containerStatuses"] = waits.clone();
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        })));
        // What `partition` keeps back has the template that it is to have.
        let partition = json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } });
        let keeper = Keeper::of(&set("statefulsets", &partition)).unwrap();
        assert!(keeper.demand([&pod("db-1", "bad", 900)], now()).is_none());
        let many: Vec<_> = ["db-9", "db-7", "db-2", "db-8"].map(|name| pod(name, "bad", 900)).into();
        let demand = keeper.demand(&many, now()).unwrap();
        assert!(demand.starts_with("SCP0421: `kubectl delete pod -n shop db-2 db-7 db-8`: "), "{demand}");
        // A message ends after 320 characters.
        let many: Vec<_> = ["a", "b", "c"].map(|name| pod(&name.repeat(63), "bad", 900)).into();
        let mut set = set("statefulsets", &json!({}));
        (set.body["metadata"]["namespace"], set.body["metadata"]["name"]) =
            ("n".repeat(63).into(), "s".repeat(52).into());
        let demand = Keeper::of(&set).unwrap().demand(&many, now()).unwrap();
        assert!(demand.len() < 320 && demand.contains(&format!("{} {}`", "n".repeat(63), "a".repeat(63))), "{demand}");
    }
}
