//! The running pods that have the content of a policy, and the controllers that make them: which are evicted, and which stay.

use crate::api::code::Code;
use crate::cli::live::{self, Inventory};
use crate::cluster::api::Api;
use crate::cluster::client::CallError;
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::inject::marker;
use crate::refit::{self, Carries, MAKERS};
use crate::roller::owners;
use crate::rollout::{Member, Members, Owner, Owners};
use crate::workload::{Kind, ObjectRef, Workload};
use anyhow::{Context, Result};
use kube::Resource;
use kube::api::ListParams;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// The most namespaces that are read one by one. Of more, one list of the whole cluster takes fewer requests.
const NAMESPACES: usize = 8;

/// What happens to a pod that has the content.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PodStand {
    Evict,
    /// Nothing, because a workload whose pod template is looked at makes it anew by itself.
    Follow,
    /// It stays, because of that.
    Left(Code, String),
}

/// A controller that makes pods.
struct Maker {
    owner: Owner,
    /// The UID of the controller that it belongs to, such as a Deployment, or else its own.
    root: Arc<str>,
    /// Whether the pod template of a workload decides what its pods have.
    is_led: bool,
    /// Whether it makes its pods anew once its own pod template has changed.
    replaces: bool,
    /// The first number of a StatefulSet's pod that is made anew: those below it keep the earlier pod template.
    first: u64,
    /// Whether the controller that it belongs to is paused.
    is_paused: bool,
}

impl Maker {
    /// The controller `object`; none if it keeps no pods and has none.
    fn of(kind: &'static str, object: &Object, policy: &str) -> Option<Self> {
        let body = object.value();
        let desired = owners::desired(&body, kind)?;
        let mut leaders = body["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let leader = leaders.find(|owner| owner["controller"] == true).and_then(|owner| owner["uid"].as_str());
        let is_workload = matches!(kind, "StatefulSet" | "DaemonSet");
        let carries = !body["spec"]["template"]["metadata"]["annotations"][marker::key(policy).as_str()].is_null();
        let policies = BTreeSet::from([Arc::from(policy)]);
        let spec = &body["spec"];
        let count = |number: &Value| number.as_u64().unwrap_or_default();
        let partition = count(&spec["updateStrategy"]["rollingUpdate"]["partition"]);
        Some(Self {
            root: Arc::from(leader.or(object.meta().uid.as_deref()).unwrap_or_default()),
            is_led: is_workload || leader.is_some(),
            replaces: is_workload && spec["updateStrategy"]["type"] != "OnDelete",
            first: if partition == 0 { 0 } else { partition.saturating_add(count(&spec["ordinals"]["start"])) },
            is_paused: false,
            owner: Owner {
                kind,
                namespace: object.namespace().to_owned(),
                name: object.name().to_owned(),
                desired,
                created: object.created(),
                astray: owners::astray(&body),
                fails_since: owners::fails_since(&body),
                carried: if carries { policies.clone() } else { BTreeSet::new() },
                policies,
            },
        })
    }

    /// Why `pod`, which it has made, keeps the earlier pod template.
    fn keeps(&self, pod: &Workload) -> Option<String> {
        let owner = &self.owner;
        if self.is_paused && !owner.carried.is_empty() {
            return Some(format!("the workload of {owner} is paused: `kubectl rollout resume` lets it go on"));
        }
        let number = pod.name().rsplit_once('-').and_then(|(_, number)| number.parse::<u64>().ok());
        let is_below = owner.kind == "StatefulSet" && number.is_some_and(|number| number < self.first);
        is_below.then(|| format!("`partition` of {owner} keeps it at the earlier pod template"))
    }
}

/// What happens to `pod`, which has the content of `policy` and is made by `maker`, as far as that is known.
fn stand(pod: &Workload, policy: &str, maker: Option<&Maker>) -> PodStand {
    let is_of_template = || marker::read(pod, policy).is_some_and(|marker| marker::is_of_template(pod, &marker));
    let carries = maker.is_some_and(|maker| !maker.owner.carried.is_empty());
    let follows = match maker {
        Some(maker) if carries => maker.is_led,
        Some(maker) => maker.replaces && is_of_template(),
        // The pod template of a custom resource, whose controller makes pods itself.
        None => match pod.controller().map(|owner| owner["kind"].as_str().unwrap_or_default()) {
            None | Some("Job" | "Node") => false,
            Some(kind) => MAKERS.iter().all(|maker| maker.1 != kind) && is_of_template(),
        },
    };
    if let Some(why) = maker.filter(|_| is_of_template()).and_then(|maker| maker.keeps(pod)) {
        return PodStand::Left(Code::RolloutOptedOut, why);
    }
    if follows {
        return PodStand::Follow;
    }
    match (refit::untouchable(pod), maker) {
        (Some(left), _) => PodStand::Left(left.cause.code(), left.message),
        (None, Some(maker)) if maker.owner.desired == 0 => {
            PodStand::Left(Code::NotRecreated, format!("{} keeps no pods, or is being deleted", maker.owner))
        }
        (None, Some(maker)) if carries => {
            PodStand::Left(Code::ContentOfOwner, format!("{} has it in its own pod template", maker.owner))
        }
        (None, _) => PodStand::Evict,
    }
}

/// What has been read at one moment.
#[derive(Clone, Default)]
pub(super) struct PodReading {
    /// The pods that are to be evicted, and the other pods of their owners.
    pub(super) members: Members,
    pub(super) owners: Owners,
    /// How many more pods each owner has.
    pub(super) beside: HashMap<Arc<str>, usize>,
    /// The pods that have the content and stay.
    pub(super) left: Vec<(ObjectRef, Code, String)>,
    /// Those that a workload makes anew by itself.
    pub(super) follow: BTreeSet<ObjectRef>,
}

impl PodReading {
    /// The pods that are to be evicted.
    pub(super) fn carrying(&self) -> impl Iterator<Item = (&ObjectRef, &Member)> {
        self.members.iter().filter(|(_, member)| member.carries != Carries::This)
    }
}

/// Reads pods, page by page.
pub(super) struct PodReader<'a> {
    pub(super) inventory: &'a Inventory<'a>,
    pub(super) policy: &'a str,
    /// The UIDs of the paused workloads whose pod templates lack the content.
    paused: &'a HashSet<String>,
    /// The revision that members without the content carry.
    pub(super) revision: Arc<str>,
    /// The namespaces to read; none for all.
    scope: Option<BTreeSet<String>>,
    /// The UIDs of the controllers, such as Deployments, of which a pod was to be evicted. All their pods are members from then on.
    roots: HashSet<Arc<str>>,
}

impl<'a> PodReader<'a> {
    pub(super) fn new(
        inventory: &'a Inventory<'a>,
        policy: &'a str,
        paused: &'a HashSet<String>,
        revision: Arc<str>,
    ) -> Self {
        Self { inventory, policy, paused, revision, scope: None, roots: HashSet::new() }
    }

    /// The API of pods.
    pub(super) fn pods(&self, namespace: Option<&str>) -> Api<Object> {
        self.api(("", "Pod", "pods"), namespace)
    }

    fn api(&self, (group, kind, plural): (&str, &str, &str), namespace: Option<&str>) -> Api<Object> {
        live::api(self.inventory.client, &live::resource(group, "v1", kind, plural), namespace)
    }

    /// The stored pod `object`.
    pub(super) fn pod(&self, object: &Object) -> Workload {
        let pods = Kind::find("", "pods").expect("it is built in");
        self.inventory.workload(pods, object)
    }

    /// Reads the pods, and what makes them.
    ///
    /// # Errors
    /// If a list cannot be read. The cause is a [`CallError`].
    pub(super) async fn read(&mut self) -> Result<PodReading> {
        let mut makers = HashMap::new();
        for (group, kind, plural) in MAKERS {
            let see = |object: Object| {
                let maker = Maker::of(kind, &object, self.policy);
                let maker = maker.map(|maker| Maker { is_paused: self.paused.contains(&*maker.root), ..maker });
                let uid = Arc::<str>::from(object.meta().uid.as_deref().unwrap_or_default());
                makers.extend(maker.map(|maker| (uid, maker)));
            };
            self.each((group, kind, plural), see).await.with_context(|| format!("cannot list {plural}"))?;
        }
        let mut pods = Vec::new();
        let see = |object: Object| pods.extend(self.seen(&object, &makers));
        self.each(("", "Pod", "pods"), see).await.context("cannot list pods")?;
        Ok(self.sorted(makers, pods))
    }

    /// Reads no more than the namespaces of `reading` from now on.
    pub(super) fn narrow(&mut self, reading: &PodReading) {
        let namespaces = reading.members.keys().map(|object| object.namespace.clone()).collect::<BTreeSet<_>>();
        self.scope = (namespaces.len() <= NAMESPACES).then_some(namespaces);
    }

    /// Calls `see` with each object of a resource in the namespaces to read.
    async fn each(&self, resource: (&str, &str, &str), mut see: impl FnMut(Object)) -> Result<(), CallError> {
        let places = match &self.scope {
            None => vec![None],
            Some(scope) => scope.iter().map(|namespace| Some(namespace.as_str())).collect(),
        };
        for place in places {
            Pages::new(self.api(resource, place), ListParams::default()).large().each(&mut see).await?;
        }
        Ok(())
    }

    /// The pod `object`, and what happens to it if it has the content. None if it does not run, or is nobody's and lacks the content.
    fn seen(
        &self,
        object: &Object,
        makers: &HashMap<Arc<str>, Maker>,
    ) -> Option<(ObjectRef, Member, Option<PodStand>)> {
        let pod = self.pod(object);
        let is_over = matches!(pod.body["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if is_over || pod.is_terminating() {
            return None;
        }
        let is_marked = super::is_marked(&pod, self.policy);
        let carries = match marker::read(&pod, self.policy) {
            Some(marker) => Carries::Other(marker.hash),
            None if is_marked => Carries::Unreadable,
            None => Carries::This,
        };
        let member = Member::compared(&pod, object.age(), self.policy, self.revision.clone(), carries);
        let maker = member.owner.as_ref().and_then(|owner| makers.get(owner));
        let stand = is_marked.then(|| stand(&pod, self.policy, maker));
        let is_needed = is_marked || member.owner.is_some();
        is_needed.then(|| (ObjectRef::new(&pod.kind, object.place()), member, stand))
    }

    fn sorted(
        &mut self,
        makers: HashMap<Arc<str>, Maker>,
        pods: Vec<(ObjectRef, Member, Option<PodStand>)>,
    ) -> PodReading {
        let maker = |member: &Member| member.owner.as_ref().and_then(|owner| makers.get(owner));
        let evicted = pods.iter().filter(|(.., stand)| *stand == Some(PodStand::Evict));
        self.roots.extend(evicted.filter_map(|(_, member, _)| Some(maker(member)?.root.clone())));
        let mut reading = PodReading::default();
        for (object, member, stand) in pods {
            let is_tracked = maker(&member).is_some_and(|maker| self.roots.contains(&maker.root));
            match stand {
                Some(PodStand::Evict) => drop(reading.members.insert(object, member)),
                None if is_tracked => drop(reading.members.insert(object, member)),
                None => {}
                Some(stand) => {
                    if let Some(owner) = member.owner.filter(|_| is_tracked) {
                        *reading.beside.entry(owner).or_default() += 1;
                    }
                    match stand {
                        PodStand::Left(code, why) => reading.left.push((object, code, why)),
                        PodStand::Follow | PodStand::Evict => drop(reading.follow.insert(object)),
                    }
                }
            }
        }
        let tracked = makers.into_iter().filter(|(_, maker)| self.roots.contains(&maker.root));
        reading.owners = tracked.map(|(uid, maker)| (uid, maker.owner)).collect();
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A pod with the content, whose controller is of that kind; none if it has none.
    fn pod(kind: Option<&str>, is_of_template: bool) -> Workload {
        let at = if is_of_template { "/spec/template" } else { "" };
        let marker = format!(r#"{{"v":1,"hash":"0123456789abcdef","added":["{at}/spec/containers/envoy"]}}"#);
        let owner = |kind: &str| {
            let version = match kind {
                "Job" => "batch/v1",
                "Rollout" => "argoproj.io/v1alpha1",
                "ReplicationController" | "Node" => "v1",
                _ => "apps/v1",
            };
            json!([{ "apiVersion": version, "kind": kind, "uid": "u", "controller": true }])
        };
        let annotations = json!({ "injected.scpol.dev/envoy": marker });
        let metadata = json!({
            "namespace": "shop", "name": "web", "uid": "p", "annotations": annotations, "ownerReferences": kind.map(owner),
        });
        Workload::new(Kind::find("", "pods").unwrap(), json!({ "metadata": metadata, "spec": {} }))
    }

    /// A maker that belongs to a Deployment, if it is `led`, and whose template has the content, if it `carries`.
    fn maker(kind: &'static str, led: bool, carries: bool, strategy: &str) -> Option<Maker> {
        let leader = json!([{ "kind": "Deployment", "uid": "d", "controller": true }]);
        let annotations = json!({ "injected.scpol.dev/envoy": if carries { json!("x") } else { Value::Null } });
        let object = json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u", "ownerReferences": if led { leader } else { Value::Null } },
            "spec": {
                "updateStrategy": { "type": strategy }, "template": { "metadata": { "annotations": annotations } },
            },
            "status": { "desiredNumberScheduled": 3 },
        });
        Maker::of(kind, &serde_json::from_value(object).unwrap(), "envoy")
    }

    #[test]
    fn a_pod_that_nobody_makes_again_stays() {
        let object = |spec: Value, status: Value, deleted: Value| {
            let metadata = json!({ "namespace": "shop", "name": "web", "uid": "u", "deletionTimestamp": deleted });
            let object = json!({ "metadata": metadata, "spec": spec, "status": status });
            Maker::of("ReplicaSet", &serde_json::from_value(object).unwrap(), "envoy")
        };
        let (one, none) = (json!({ "replicas": 1 }), json!({ "replicas": 0 }));
        let deleted = json!("2026-01-01T00:00:00Z");
        for maker in [object(one.clone(), one.clone(), deleted), object(none.clone(), one.clone(), Value::Null)] {
            let stand = stand(&pod(Some("ReplicaSet"), false), "envoy", maker.as_ref());
            assert!(matches!(stand, PodStand::Left(Code::NotRecreated, _)), "{stand:?}");
        }
        assert!(object(none.clone(), none, Value::Null).is_none());
        let made = object(one, Value::Null, Value::Null);
        assert_eq!(stand(&pod(Some("ReplicaSet"), false), "envoy", made.as_ref()), PodStand::Evict);
    }

    #[test]
    fn a_pod_stays_that_a_partition_or_a_pause_keeps_at_the_earlier_template() {
        let set = |partition: Value, start: Value, strategy: &str| {
            let update = json!({ "type": strategy, "rollingUpdate": { "partition": partition } });
            let spec = json!({ "replicas": 5, "updateStrategy": update, "ordinals": { "start": start } });
            let metadata = json!({ "namespace": "shop", "name": "db", "uid": "u" });
            let object = json!({ "metadata": metadata, "spec": spec });
            Maker::of("StatefulSet", &serde_json::from_value(object).unwrap(), "envoy")
        };
        let numbered = |number: &str, is_of_template: bool| {
            let mut pod = pod(Some("StatefulSet"), is_of_template);
            pod.body["metadata"]["name"] = json!(format!("db-{number}"));
            pod
        };
        for (partition, start, number, is_of_template, stays) in [
            (json!(2), Value::Null, "1", true, true),
            (json!(2), Value::Null, "2", true, false),
            (json!(2), json!(10), "11", true, true),
            (json!(2), json!(10), "12", true, false),
            (json!(0), json!(10), "3", true, false),
            (Value::Null, Value::Null, "0", true, false),
            (json!(2), Value::Null, "x", true, false),
            // The earlier template lacks it.
            (json!(2), Value::Null, "1", false, false),
        ] {
            let maker = set(partition.clone(), start, "RollingUpdate");
            let stand = stand(&numbered(number, is_of_template), "envoy", maker.as_ref());
            let is_left = matches!(&stand, PodStand::Left(Code::RolloutOptedOut, why) if why.contains("`partition` of StatefulSet"));
            assert_eq!(is_left, stays, "{partition} {number} {stand:?}");
        }
        // A Deployment that was paused after its template had changed.
        let maker = |carries: bool| Maker { is_paused: true, ..maker("ReplicaSet", true, carries, "").unwrap() };
        let stands =
            |maker: Maker, is_of_template| stand(&pod(Some("ReplicaSet"), is_of_template), "envoy", Some(&maker));
        assert!(matches!(stands(maker(true), true), PodStand::Left(Code::RolloutOptedOut, _)));
        assert_eq!(stands(maker(false), false), PodStand::Evict, "the ReplicaSet makes it anew without it");
    }

    #[test]
    fn a_pod_is_evicted_if_a_controller_makes_it_anew_without_the_content() {
        let rolling = "RollingUpdate";
        for (kind, made, of_template, expected) in [
            // The template of what makes it lacks the content.
            (Some("ReplicaSet"), maker("ReplicaSet", true, false, ""), false, "evict"),
            (Some("ReplicaSet"), maker("ReplicaSet", false, false, ""), true, "evict"),
            (Some("ReplicationController"), maker("ReplicationController", false, false, ""), false, "evict"),
            (Some("StatefulSet"), maker("StatefulSet", false, false, rolling), false, "evict"),
            (Some("DaemonSet"), maker("DaemonSet", false, false, rolling), false, "evict"),
            // It had it before, and these roll by themselves.
            (Some("StatefulSet"), maker("StatefulSet", false, false, rolling), true, "follow"),
            (Some("DaemonSet"), maker("DaemonSet", false, false, rolling), true, "follow"),
            (Some("DaemonSet"), maker("DaemonSet", false, false, "OnDelete"), true, "evict"),
            // It has it still: an eviction would go in a circle.
            (Some("ReplicaSet"), maker("ReplicaSet", true, true, ""), true, "follow"),
            (Some("StatefulSet"), maker("StatefulSet", false, true, "OnDelete"), true, "follow"),
            (Some("ReplicaSet"), maker("ReplicaSet", false, true, ""), true, "SCP0418"),
            (Some("ReplicationController"), maker("ReplicationController", false, true, ""), false, "SCP0418"),
            // Nothing is known of it yet.
            (Some("ReplicaSet"), None, false, "evict"),
            (None, None, false, "SCP0412"),
            (Some("Node"), None, false, "SCP0412"),
            (Some("Job"), None, true, "SCP0413"),
            (Some("Rollout"), None, false, "SCP0412"),
            (Some("Rollout"), None, true, "follow"),
        ] {
            let told = |stand: PodStand| match stand {
                PodStand::Evict => "evict".to_owned(),
                PodStand::Follow => "follow".to_owned(),
                PodStand::Left(code, _) => code.to_string(),
            };
            assert_eq!(
                told(stand(&pod(kind, of_template), "envoy", made.as_ref())),
                expected,
                "{kind:?} {of_template}"
            );
        }
        let mut out = pod(Some("ReplicaSet"), false);
        out.body["metadata"]["annotations"]["scpol.dev/rollout"] = json!("false");
        let made = maker("ReplicaSet", true, false, "");
        assert!(matches!(stand(&out, "envoy", made.as_ref()), PodStand::Left(Code::RolloutOptedOut, _)));
    }
}
