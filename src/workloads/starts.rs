//! Sidecars that do not start: an image that cannot be pulled, a missing ConfigMap, a crash loop. Pure: time is passed in.
//!
//! A watch of all pods would cost more than everything else. The watches of workloads show which ones lack ready pods, and
//! only the pods of those are listed, a few workloads at a time.

use crate::api::is_dns_label;
use crate::inject::marker;
use crate::policy::{Policies, Policy, PolicyRef};
use crate::rollout::by_hand::{self, Keeper};
use crate::workload::{Kind, ObjectRef, Workload};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most workloads that are remembered. When all pods of a cluster fail, the first ones are enough.
const MOST: usize = 1000;
/// The most workloads whose pods are listed at a time.
const AT_ONCE: usize = 20;
/// The most pods that a message names.
const EXAMPLES: usize = 3;
/// The longest hash that is kept. Ours have 16 characters.
const HASH: usize = 64;
/// The fields of a status with the number of pods, and with the number of ready ones.
const READINESS: [(&str, &str); 3] =
    [("replicas", "readyReplicas"), ("desiredNumberScheduled", "numberReady"), ("active", "ready")];

/// A container of a policy that does not start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stuck {
    pub policy: PolicyRef,
    pub container: String,
    /// The kubelet's word, for example `ImagePullBackOff`.
    pub reason: String,
    /// The hash of the template that the pod has. After an edit, pods with the template before may go on to fail for a while.
    pub hash: String,
}

/// The containers of `pod` that do not start and that one of `policies` has added.
pub fn stuck(policies: &Policies, pod: &Workload) -> BTreeSet<Stuck> {
    let waiting: Vec<(&str, &str)> = by_hand::waiting(pod).collect();
    if waiting.is_empty() {
        return BTreeSet::new();
    }
    let of_policy = |policy: &Arc<Policy>| {
        let marker = marker::read(pod, &policy.name);
        // Users write markers.
        let hash = marker.as_ref().map(|marker| &marker.hash).filter(|hash| hash.len() <= HASH).cloned();
        let hash = hash.unwrap_or_default();
        let added = marker.map(|marker| marker.added).unwrap_or_default();
        let is_ours =
            |name: &str| added.iter().any(|pointer| marker::container(pointer).is_some_and(|own| own == name));
        let own = waiting.iter().filter(|(name, _)| is_ours(name));
        let stuck = own.map(|(name, reason)| Stuck {
            policy: policy.reference(),
            container: shown(policy, name).to_owned(),
            // The kubelet alternates between the two.
            reason: if *reason == "ErrImagePull" { "ImagePullBackOff" } else { reason }.to_owned(),
            hash: hash.clone(),
        });
        stuck.collect::<Vec<_>>()
    };
    policies.iter().flat_map(of_policy).collect()
}

/// `name`, if the template has such a container. The marker is not proof, and names are labels of a metric.
fn shown<'a>(policy: &Policy, name: &'a str) -> &'a str {
    let has =
        |(_, container): (_, &serde_json::Map<String, Value>)| container.get("name").is_some_and(|own| own == name);
    if policy.as_written().spec.all_containers().any(has) { name } else { "(of another template)" }
}

/// The label that the controller of Jobs gives to their pods, on every version.
const JOB_NAME: &str = "job-name";
/// The most Jobs of one CronJob whose pods are listed.
const JOBS: usize = 20;

/// The label selector of the pods of `workload`, if not all of them are ready, or if that is unknown.
pub fn unready_pods(workload: &Workload) -> Option<String> {
    if workload.kind.resource == "cronjobs" && workload.kind.is_in("batch") {
        return pods_of_jobs(workload);
    }
    let number = |field: &str| workload.body["status"][field].as_i64().unwrap_or_default();
    if !READINESS.iter().any(|(all, ready)| number(all) > number(ready)) {
        return None;
    }
    let selector: LabelSelector = serde_json::from_value(workload.body["spec"]["selector"].clone()).ok()?;
    let selector = Selector::try_from(selector).ok()?.to_string();
    (!selector.is_empty()).then_some(selector)
}

/// The label selector of the pods of the active Jobs of a CronJob; none if no Job is active. A CronJob has no selector, and does
/// not count pods.
fn pods_of_jobs(cron_job: &Workload) -> Option<String> {
    let active = cron_job.body["status"]["active"].as_array().into_iter().flatten();
    // Users can write a status, and other names would not be a selector.
    let names = active.filter_map(|job| job["name"].as_str()).filter(|name| is_dns_label(name));
    // The newest ones are the last.
    let names: BTreeSet<&str> = names.rev().take(JOBS).collect();
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| format!("{JOB_NAME} in ({})", names.join(",")))
}

/// How the pods of a workload that lacks ready ones are listed, and judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    pub selector: String,
    /// The controller, if it does not replace some pods.
    pub keeper: Option<Keeper>,
}

impl Unready {
    /// That of `workload`; none if all its pods are ready.
    pub fn of(workload: &Workload) -> Option<Self> {
        let selector = unready_pods(workload)?;
        Some(Self { selector, keeper: Keeper::of(workload) })
    }
}

/// What a list of the pods of a workload has shown.
#[derive(Clone, Debug, Default)]
pub struct PodsSeen {
    /// The stuck containers of each pod, by its name.
    pub stuck: Vec<(String, BTreeSet<Stuck>)>,
    /// What a person must do before the controller goes on.
    pub by_hand: Option<String>,
}

/// A workload that lacks ready pods.
struct Suspect {
    pods: Unready,
    /// When its pods are listed next.
    due: Instant,
    pause: Duration,
    by_hand: Option<String>,
}

/// The pods of one workload with one stuck container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StuckPods {
    stuck: Stuck,
    pods: usize,
    example: String,
}

/// The pods of all workloads in which one container of a policy does not start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub pods: usize,
    pub workloads: usize,
    pub reasons: BTreeSet<String>,
    /// Some of the pods, as `namespace/name`.
    pub examples: Vec<String>,
}

/// All sidecars that do not start.
#[derive(Default)]
pub struct Starts {
    suspects: BTreeMap<ObjectRef, Suspect>,
    groups: BTreeMap<ObjectRef, Vec<StuckPods>>,
    /// By policy and container. None if the groups have changed since.
    sums: Option<Arc<StuckSums>>,
}

/// The sums by policy, and by container.
pub type StuckSums = BTreeMap<PolicyRef, BTreeMap<String, Sum>>;

impl Starts {
    pub fn is_empty(&self) -> bool {
        self.suspects.is_empty() && self.groups.is_empty()
    }

    /// Records a workload that lacks ready pods, or none if all of them are ready.
    pub fn seen(&mut self, object: ObjectRef, pods: Option<Unready>, now: Instant, pause: Duration) {
        let Some(pods) = pods else { return self.gone(&object) };
        let is_full = self.suspects.len() >= MOST;
        match self.suspects.get_mut(&object) {
            // Its controller means other pods now, or a person may have done what is asked for.
            Some(suspect) if suspect.pods.keeper != pods.keeper || suspect.by_hand.is_some() => {
                suspect.pods = pods;
                (suspect.due, suspect.pause) = (suspect.due.min(now + pause), pause);
            }
            Some(suspect) => suspect.pods = pods,
            None if !is_full => {
                self.suspects.insert(object, Suspect { pods, due: now + pause, pause, by_hand: None });
            }
            None => {}
        }
    }

    /// The workloads whose pods are to be listed now. The pause of each doubles, up to `longest`.
    pub fn due(&mut self, now: Instant, longest: Duration) -> Vec<(ObjectRef, Unready)> {
        let mut due: Vec<_> = self.suspects.iter_mut().filter(|(_, suspect)| suspect.due <= now).collect();
        due.sort_by_key(|(_, suspect)| suspect.due);
        let next = due.into_iter().take(AT_ONCE).map(|(object, suspect)| {
            suspect.pause = (suspect.pause * 2).min(longest);
            suspect.due = now + suspect.pause;
            (object.clone(), suspect.pods.clone())
        });
        next.collect()
    }

    /// Records what a list of the pods of a workload has shown. Ignores a workload that has become ready.
    pub fn listed(&mut self, object: &ObjectRef, seen: PodsSeen) {
        if let Some(suspect) = self.suspects.get_mut(object) {
            suspect.by_hand = seen.by_hand;
            self.set(object, seen.stuck);
        }
    }

    /// What a person must do before the controller of `object` goes on, as far as is known.
    pub fn by_hand(&self, object: &ObjectRef) -> Option<String> {
        self.suspects.get(object)?.by_hand.clone()
    }

    /// Records a pod that policies target themselves.
    pub fn seen_pod(&mut self, object: &ObjectRef, stuck: BTreeSet<Stuck>) {
        if !stuck.is_empty() || self.groups.contains_key(object) {
            self.set(object, [(object.name.clone(), stuck)]);
        }
    }

    fn set(&mut self, object: &ObjectRef, pods: impl IntoIterator<Item = (String, BTreeSet<Stuck>)>) {
        let mut groups: Vec<StuckPods> = Vec::new();
        for (pod, stuck) in pods.into_iter().flat_map(|(pod, all)| all.into_iter().map(move |one| (pod.clone(), one))) {
            match groups.iter_mut().find(|group| group.stuck == stuck) {
                Some(group) => group.pods += 1,
                None => groups.push(StuckPods { stuck, pods: 1, example: format!("{}/{pod}", object.namespace) }),
            }
        }
        let is_known = self.groups.contains_key(object);
        if groups.is_empty() {
            self.groups.remove(object);
        } else if is_known || self.groups.len() < MOST {
            self.groups.insert(object.clone(), groups);
        }
        self.sums = None;
    }

    /// Forgets a workload that is deleted, or whose pods are ready.
    pub fn gone(&mut self, object: &ObjectRef) {
        self.suspects.remove(object);
        if self.groups.remove(object).is_some() {
            self.sums = None;
        }
    }

    /// Forgets the workloads of `kind` that do not `exist`.
    pub fn retain(&mut self, kind: &Kind, exists: impl Fn(&ObjectRef) -> bool) {
        let keeps = |object: &ObjectRef| *object.kind != *kind || exists(object);
        self.suspects.retain(|object, _| keeps(object));
        self.groups.retain(|object, _| keeps(object));
        self.sums = None;
    }

    /// Why a container of `policy` does not start in those pods of `object` that have the template with this `hash`; none if all start, as
    /// far as is known.
    pub fn stuck_in(&self, object: &ObjectRef, policy: &PolicyRef, hash: &str) -> Option<String> {
        let is_of = |stuck: &Stuck| stuck.policy == *policy && stuck.hash == hash;
        let group = self.groups.get(object)?.iter().find(|group| is_of(&group.stuck))?;
        Some(format!("container {} of pod {}: {}", group.stuck.container, group.example, group.stuck.reason))
    }

    /// What does not start.
    pub fn sums(&mut self) -> Arc<StuckSums> {
        if let Some(sums) = &self.sums {
            return sums.clone();
        }
        let mut sums = StuckSums::new();
        for groups in self.groups.values() {
            // A workload counts once, whatever the reasons in its pods are.
            let mut counted = BTreeSet::new();
            for group in groups {
                let Stuck { policy, container, reason, .. } = &group.stuck;
                let sum = sums.entry(policy.clone()).or_default().entry(container.clone()).or_default();
                sum.pods += group.pods;
                sum.workloads += usize::from(counted.insert((policy, container)));
                sum.reasons.insert(reason.clone());
                if sum.examples.len() < EXAMPLES {
                    sum.examples.push(group.example.clone());
                }
            }
        }
        let sums = Arc::new(sums);
        self.sums = Some(sums.clone());
        sums
    }
}

/// The sums of one policy as a message.
pub fn message(sums: &BTreeMap<String, Sum>) -> String {
    let one = |(container, sum): (&String, &Sum)| {
        let Sum { pods, workloads, reasons, examples } = sum;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let reasons = reasons.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "container `{container}` does not start in {pods} pod{} of {workloads} workload{} ({reasons}), such as {}",
            plural(*pods),
            plural(*workloads),
            examples.join(", ")
        )
    };
    sums.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Site;
    use serde_json::json;

    const HASH_OF_PODS: &str = "0123456789abcdef";

    fn envoy() -> PolicyRef {
        PolicyRef::of_cluster("envoy")
    }

    fn policies() -> Policies {
        let site = Site::new("scpol-system", [], []);
        let template = json!({ "containers": [{ "name": "proxy", "image": "envoy:1" }] });
        let policy = json!({ "metadata": { "name": "envoy" }, "spec": { "template": template } });
        Policies::new([Arc::new(Policy::parse(&policy, &site).expect("valid"))])
    }

    fn pod(added: &[&str], statuses: &Value) -> Workload {
        // Its keys are in this order.
        let marker = format!(r#"{{"v":1,"hash":"{HASH_OF_PODS}","added":{}}}"#, json!(added));
        let metadata = json!({ "name": "web-1", "annotations": { "injected.scpol.dev/envoy": marker } });
        let body =
            json!({ "metadata": metadata, "spec": { "containers": [] }, "status": { "containerStatuses": statuses } });
        Workload::new(Kind::find("", "pods").expect("built in"), body)
    }

    fn waiting(name: &str, reason: &str) -> Value {
        json!({ "name": name, "state": { "waiting": { "reason": reason } } })
    }

    fn object(name: &str) -> ObjectRef {
        let kind = Kind::find("apps", "deployments").expect("built in").clone();
        ObjectRef { kind, namespace: "shop".to_owned(), name: name.to_owned() }
    }

    fn unready(selector: &str) -> Unready {
        Unready { selector: selector.to_owned(), keeper: None }
    }

    fn seen(pods: impl IntoIterator<Item = (String, BTreeSet<Stuck>)>) -> PodsSeen {
        PodsSeen { stuck: pods.into_iter().collect(), by_hand: None }
    }

    fn one(reason: &str) -> Stuck {
        let (policy, container) = (envoy(), "proxy".to_owned());
        Stuck { policy, container, reason: reason.to_owned(), hash: HASH_OF_PODS.to_owned() }
    }

    #[test]
    fn only_what_a_marker_names_and_waits_for_no_turn_is_stuck() {
        let own = ["/spec/template/spec/containers/proxy"];
        let found = |added: &[&str], statuses: Value| {
            let stuck = stuck(&policies(), &pod(added, &statuses)).into_iter();
            stuck.map(|stuck| format!("{} {}", stuck.container, stuck.reason)).collect::<Vec<_>>()
        };
        assert_eq!(found(&own, json!([waiting("proxy", "ErrImagePull")])), ["proxy ImagePullBackOff"]);
        assert_eq!(found(&own, json!([waiting("proxy", "CrashLoopBackOff")])), ["proxy CrashLoopBackOff"]);
        for fine in [
            waiting("proxy", "ContainerCreating"),
            waiting("app", "CrashLoopBackOff"),
            json!({ "name": "proxy", "state": { "running": {} } }),
        ] {
            assert_eq!(found(&own, json!([fine])), [""; 0], "{fine}");
        }
        let env = ["/spec/containers/proxy/env/A"];
        assert_eq!(found(&env, json!([waiting("proxy", "CrashLoopBackOff")])), [""; 0], "it added a variable only");
        let earlier = ["/spec/initContainers/old"];
        let told = found(&earlier, json!([waiting("old", "CrashLoopBackOff")]));
        assert_eq!(told, ["(of another template) CrashLoopBackOff"], "users can write markers, and names are labels");
    }

    #[test]
    fn a_rollout_counts_only_pods_with_the_latest_content() {
        let own = ["/spec/template/spec/containers/proxy"];
        let latest = policies().get(&envoy()).unwrap().template_hash().to_owned();
        let mut starts = Starts::default();
        let before = pod(&own, &json!([waiting("proxy", "ErrImagePull")]));
        let see = |starts: &mut Starts, pod: &Workload| starts.seen_pod(&object("web"), stuck(&policies(), pod));
        see(&mut starts, &before);
        assert_eq!(starts.stuck_in(&object("web"), &envoy(), &latest), None, "it has the content of before");
        assert_eq!(starts.sums()[&envoy()]["proxy"].pods, 1, "users are told all the same");
        let mut now = before;
        let marker = format!(r#"{{"v":1,"hash":"{latest}","added":{}}}"#, json!(own));
        now.body["metadata"]["annotations"]["injected.scpol.dev/envoy"] = json!(marker);
        see(&mut starts, &now);
        assert!(starts.stuck_in(&object("web"), &envoy(), &latest).unwrap().contains("ImagePullBackOff"));
    }

    #[test]
    fn pods_are_listed_by_their_selector_if_not_all_are_ready() {
        let selector = |status: Value| {
            let spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
            let kind = Kind::find("apps", "deployments").expect("built in");
            unready_pods(&Workload::new(kind, json!({ "spec": spec, "status": status })))
        };
        assert_eq!(selector(json!({ "replicas": 2, "readyReplicas": 1 })).as_deref(), Some("app=web"));
        assert_eq!(selector(json!({ "desiredNumberScheduled": 1 })).as_deref(), Some("app=web"));
        assert_eq!(selector(json!({ "active": 1, "ready": 0 })).as_deref(), Some("app=web"));
        for ready in [json!({}), json!({ "replicas": 2, "readyReplicas": 2 }), json!({ "active": [{}] })] {
            assert_eq!(selector(ready.clone()), None, "{ready}");
        }
    }

    #[test]
    fn the_pods_of_a_cron_job_are_those_of_its_active_jobs() {
        let selector = |active: Value| {
            let kind = Kind::find("batch", "cronjobs").expect("built in");
            let body =
                json!({ "spec": { "selector": { "matchLabels": { "a": "b" } } }, "status": { "active": active } });
            unready_pods(&Workload::new(kind, body))
        };
        let job = |name: &str| json!({ "kind": "Job", "name": name });
        let many: Vec<Value> = (0..2 * JOBS).map(|number| job(&format!("j{number}"))).collect();
        for (active, expected) in [
            (json!(null), None),
            (json!([]), None),
            (json!(1), None),
            (json!([{}, { "name": 7 }, job(""), job("a,b"), job("x) or (y"), job(&"a".repeat(64))]), None),
            (json!([job("report-2"), job("report-1")]), Some("job-name in (report-1,report-2)")),
        ] {
            assert_eq!(selector(active.clone()).as_deref(), expected, "{active}");
        }
        let listed = selector(json!(many)).expect("some are active");
        assert_eq!(listed.matches('j').count(), 1 + JOBS, "{listed}");
        assert!(listed.contains(&format!("j{}", 2 * JOBS - 1)), "the last ones: {listed}");
        let added = ["/spec/jobTemplate/spec/template/spec/containers/proxy"];
        let found = stuck(&policies(), &pod(&added, &json!([waiting("proxy", "ImagePullBackOff")])));
        assert_eq!(found.len(), 1, "their marker is that of the CronJob");
    }

    #[test]
    fn a_suspect_is_looked_at_less_and_less_often_until_its_pods_are_ready() {
        let (mut starts, now, second) = (Starts::default(), Instant::now(), Duration::from_secs(1));
        let see = |starts: &mut Starts, selector: Option<&str>| {
            starts.seen(object("web"), selector.map(unready), now, second);
        };
        see(&mut starts, Some("app=web"));
        see(&mut starts, Some("app=web"));
        let mut looks = |from: u32, to: u32| -> Vec<u32> {
            (from..to).filter(|at| !starts.due(now + second * *at, 4 * second).is_empty()).collect()
        };
        assert_eq!(looks(0, 14), [1, 3, 7, 11]);
        see(&mut starts, None);
        assert!(starts.is_empty());
    }

    #[test]
    fn what_a_person_must_do_is_looked_at_again_with_each_change_of_the_workload() {
        let (mut starts, now, second) = (Starts::default(), Instant::now(), Duration::from_secs(1));
        let see = |starts: &mut Starts, now: Instant| starts.seen(object("db"), Some(unready("app=db")), now, second);
        see(&mut starts, now);
        assert_eq!(starts.due(now + second, 60 * second).len(), 1);
        starts.listed(&object("db"), PodsSeen { by_hand: Some("delete it".to_owned()), ..PodsSeen::default() });
        assert_eq!(starts.by_hand(&object("db")).as_deref(), Some("delete it"));
        see(&mut starts, now + 2 * second);
        assert!(starts.by_hand(&object("db")).is_some(), "until it is known to be done");
        assert_eq!(starts.due(now + 3 * second, 60 * second).len(), 1);
        starts.listed(&object("db"), PodsSeen::default());
        assert_eq!(starts.by_hand(&object("db")), None);
    }

    #[test]
    fn sums_name_the_first_pods_and_vanish_with_the_trouble() {
        let (mut starts, now) = (Starts::default(), Instant::now());
        for name in ["a", "b", "c", "d"] {
            starts.seen(object(name), Some(unready("app=web")), now, Duration::ZERO);
            let pods = [format!("{name}-1"), format!("{name}-2")];
            starts.listed(&object(name), seen(pods.map(|pod| (pod, BTreeSet::from([one("ImagePullBackOff")])))));
        }
        starts.listed(&object("unknown"), seen([("x".to_owned(), BTreeSet::from([one("ImagePullBackOff")]))]));
        let told = message(&starts.sums()[&envoy()]);
        let expected = "container `proxy` does not start in 8 pods of 4 workloads (ImagePullBackOff), such as shop/a-1, shop/b-1, shop/c-1";
        assert_eq!(told, expected);
        let reasons = [("a-1", "ImagePullBackOff"), ("a-2", "CrashLoopBackOff")];
        let pods = reasons.map(|(pod, reason)| (pod.to_owned(), BTreeSet::from([one(reason)])));
        starts.listed(&object("a"), seen(pods));
        assert_eq!((starts.sums()[&envoy()]["proxy"].pods, starts.sums()[&envoy()]["proxy"].workloads), (8, 4));
        starts.listed(&object("a"), seen([("a-1".to_owned(), BTreeSet::new())]));
        starts.seen(object("b"), None, now, Duration::ZERO);
        starts.gone(&object("c"));
        assert_eq!(starts.sums()[&envoy()]["proxy"].pods, 2);
        starts.retain(&object("d").kind, |_| false);
        assert!(starts.sums().is_empty() && starts.is_empty());
    }

    #[test]
    fn the_memory_is_bounded() {
        let (mut starts, now) = (Starts::default(), Instant::now());
        for index in 0..2 * MOST {
            let object = object(&format!("web-{index}"));
            starts.seen(object.clone(), Some(unready("app=web")), now, Duration::ZERO);
            starts.listed(&object, seen([("pod".to_owned(), BTreeSet::from([one("CrashLoopBackOff")]))]));
            starts.seen_pod(&object, BTreeSet::from([one("CrashLoopBackOff")]));
        }
        assert_eq!((starts.suspects.len(), starts.groups.len()), (MOST, MOST));
        assert_eq!(starts.due(now, Duration::ZERO).len(), AT_ONCE);
    }
}
