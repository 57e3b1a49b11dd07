//! Hostile objects ([`generator`]) against all that judges new and stored workloads, stored revisions and policies, without a server.
//! `HOSTILE_OBJECTS` sets their number.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::generator::{self, Victim};
use crate::kept::is_kept;
use jiff::{SignedDuration, Timestamp};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use sidecar_policy::api::POLICY_LABEL;
use sidecar_policy::cluster::object::Object;
use sidecar_policy::content::{Content, Revision};
use sidecar_policy::decision::{self, Decision};
use sidecar_policy::inject::{self, marker};
use sidecar_policy::policy::extent::{Extent, Place};
use sidecar_policy::policy::{Policies, Policy, PolicyRef, Site};
use sidecar_policy::refit::{self, Asked, Goal};
use sidecar_policy::review::{Call, Caller, Review};
use sidecar_policy::rollout::member::{Member, takes_part};
use sidecar_policy::rollout::{
    Aim, Answer, Done, Facts, Leading, Look, Makers, Members, Memory, Owners, Pace, Published, Queries, Record,
    StoredRevision, Why, stored as revisions,
};
use sidecar_policy::workload::{Kind, ObjectRef, Workload};
use sidecar_policy::workloads::behind::Around;
use sidecar_policy::workloads::census::{self, Census, Counts, Tally};
use sidecar_policy::workloads::fleet::{Basis, Fleet};
use sidecar_policy::workloads::starts;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::thread::available_parallelism;

/// The objects of an ordinary run: some seconds.
/// Of no kind all workloads have been compared, and none is asked for.
const BASIS: Basis = Basis { policy: 0, namespaces: None };
const COUNT: u64 = 400;
/// The most members of a rollout that are kept from one object to the next.
const KEPT: usize = 20;

const POLICIES: [&str; 4] = ["envoy", "fail", "judge", "calm"];

/// What all threads share.
struct Scene {
    sites: [Site; 2],
    policies: Policies,
    envoy: Arc<Policy>,
    /// An earlier revision of it.
    earlier: Revision,
    namespace: Arc<Value>,
    /// A workload of somebody else.
    neighbour: Object,
}

impl Scene {
    fn new() -> Self {
        let site = Site::new("scpol-system", [], []);
        let parse = |name: &str, spec: Value| {
            Arc::new(Policy::parse(&json!({ "metadata": { "name": name, "uid": name }, "spec": spec }), &site).unwrap())
        };
        let envoy = parse("envoy", spec("envoy:1"));
        let earlier = Content::of(&parse("envoy", spec("envoy:0")).spec).unwrap();
        let split = Policy::clone(&envoy)
            .split(Arc::new(envoy.with_content(&earlier)), Extent::of_namespaces(["canary".to_owned()]));
        let targets = &spec("")["targets"];
        let fail = parse(
            "fail",
            json!({
                "targets": targets, "namespaces": ["hostile"], "failurePolicy": "Fail", "optOut": "Denied",
                "template": { "containers": [{ "name": "fail", "image": "fail:1" }] },
            }),
        );
        let judge = parse(
            "judge",
            json!({
                "targets": targets, "namespaces": ["hostile"],
                "matchConditions": [{ "name": "named", "expression": "object.metadata.name.startsWith('h')" }],
                "validations": [{ "expression": "!has(object.spec.hostNetwork) || !object.spec.hostNetwork" }],
            }),
        );
        let calm = json!({
            "namespaces": ["calm"], "updateStrategy": { "type": "RollingUpdate" },
            "template": { "containers": [{ "name": "calm", "image": "calm:1" }] },
        });
        let calm = parse("calm", calm);
        let policies = Policies::new([Arc::new(split), fail, judge, calm]);
        let bare = json!({
            "metadata": { "name": "web", "namespace": "calm", "uid": "c", "resourceVersion": "7", "generation": 1 },
            "spec": { "replicas": 1, "template": { "spec": { "containers": [{ "name": "app", "image": "app:1" }] } } },
            "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1 },
        });
        let bare = Workload::new(deployments(), bare);
        let neighbour = bare.patched(&Decision::of(&policies, &bare, &site).plan(&bare));
        Self {
            sites: [site.clone(), Site { native_sidecars: true, ..site }],
            envoy: policies.get(&PolicyRef::of_cluster("envoy")).unwrap().clone(),
            policies,
            earlier: Revision::new("envoy", 1, earlier),
            namespace: Arc::new(json!({ "metadata": { "name": "hostile", "labels": { "team": "hostile" } } })),
            neighbour: serde_json::from_value(neighbour).unwrap(),
        }
    }

    fn victim(&self) -> Victim<'_> {
        // Objects of that namespace have the earlier content.
        let hash = self.envoy.at_place("hostile", &Place::default()).template_hash();
        Victim { name: "envoy", hash, container: "envoy", volume: "v" }
    }
}

fn deployments() -> &'static Arc<Kind> {
    Kind::find("apps", "deployments").unwrap()
}

fn spec(image: &str) -> Value {
    let targets: Vec<Value> =
        generator::resources().map(|(group, resource)| json!({ "group": group, "resource": resource })).collect();
    json!({
        "targets": targets, "namespaces": ["hostile"], "updateStrategy": { "type": "RollingUpdate" },
        "template": {
            "metadata": { "labels": { "mesh": "on" }, "annotations": { "a/b": "1" } },
            "containers": [{
                "name": "envoy", "image": image, "ports": [{ "containerPort": 80 }],
                "resources": { "requests": { "cpu": "100m", "memory": "1Gi" } },
                "lifecycle": { "preStop": { "exec": { "command": ["x"] } } },
            }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "env": [{ "name": "A", "value": "1" }],
            "volumeMounts": [{ "name": "v", "mountPath": "/m" }],
        },
    })
}

fn calm() -> PolicyRef {
    PolicyRef::of_cluster("calm")
}

/// What a leader knows. It outlives an object.
struct Leader<'a> {
    scene: &'a Scene,
    census: Census,
    fleet: Fleet,
    rolling: Memory,
    kept: Vec<ObjectRef>,
}

impl<'a> Leader<'a> {
    fn new(scene: &'a Scene) -> Self {
        let (census, fleet) = (Census::default(), Fleet::default());
        let mut leader = Self { scene, census, fleet, rolling: Memory::default(), kept: Vec::new() };
        let neighbour = Workload::new(deployments(), scene.neighbour.value());
        leader.see(&neighbour, &scene.neighbour, &scene.sites[0]);
        leader.check_neighbour();
        leader
    }

    /// Whatever came meanwhile, the workload of somebody else and its policy are as before.
    fn check_neighbour(&self) {
        let expected = Counts { matched: 1, injected: 1, ..Counts::default() };
        assert_eq!(self.census.counts(&calm()), expected);
        let members = self.fleet.members(&calm(), BASIS, std::iter::empty()).unwrap();
        assert_eq!(members.len(), 1);
        let look = look(&mut Memory::default(), "calm", members, &self.scene.policies);
        assert!(look.is_complete && look.numbers.ready == 1, "{look:?}");
    }

    fn see(&mut self, workload: &Workload, object: &Object, site: &Site) {
        let policies = &self.scene.policies;
        let fate = census::fate(workload, policies, site, |_, _| false);
        assert_counted_as_decided(policies, &fate, workload, site);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("x", "v1", "X"));
        let around = Around { policies, site, resource: &resource };
        let object_ref = ObjectRef::new(&workload.kind, object.place());
        for policy in policies.iter() {
            let own = policy.at(workload);
            around.behind(own, true, &fate, workload);
            decision::rehearsal(own, workload, site);
            let member = Member::of(workload, object.age(), policy, site);
            let is_matched = fate.iter().any(|(of, _)| *of == policy.reference()) && takes_part(workload);
            self.fleet.see(&policy.reference(), &object_ref, is_matched.then_some(member));
        }
        starts::stuck(policies, workload);
        starts::unready_pods(workload);
        self.census.count(&workload.kind, object, fate);
    }

    /// Judges the object of this seed in every way.
    fn judge(&mut self, seed: u64) {
        let scene = self.scene;
        let make = if seed.is_multiple_of(2) { generator::written } else { generator::any };
        let mut hostile = make(seed, &scene.victim());
        let kind = Kind::find(hostile.group, hostile.resource).unwrap();
        if hostile.body["metadata"].is_object() {
            let version = (seed + 8).to_string();
            for (field, value) in [("namespace", "hostile"), ("uid", "u"), ("resourceVersion", version.as_str())] {
                hostile.body["metadata"][field] = value.into();
            }
        }
        review(scene, kind, &hostile.body);
        let site = &scene.sites[usize::try_from(seed / 2 % 2).unwrap()];
        // As a watch shows it.
        let Ok(object) = serde_json::from_str::<Object>(&hostile.body.to_string()) else { return };
        let workload = Workload::new(kind, object.value()).within(Some(scene.namespace.clone()));
        decide(scene, &workload, site);
        update(scene, &workload, site);
        self.see(&workload, &object, site);
        self.roll(ObjectRef::new(kind, object.place()));
        self.check_neighbour();
        stored(scene, seed, site);
    }

    fn roll(&mut self, object: ObjectRef) {
        self.kept.push(object);
        if self.kept.len() > KEPT {
            self.fleet.gone(&self.kept.remove(0));
        }
        let Some(members) = self.fleet.members(&PolicyRef::of_cluster("envoy"), BASIS, std::iter::empty()) else {
            return;
        };
        let seen = look(&mut self.rolling, "envoy", members, &self.scene.policies);
        for (number, next) in seen.next.iter().enumerate() {
            let member = &members[&next.object];
            let answer = match number % 3 {
                0 => Answer::Done(Done::Patched(member.version)),
                1 => Answer::Done(Done::Evicted),
                _ => {
                    let left = Why { code: sidecar_policy::api::code::Code::ContentEdited, message: String::new() };
                    Answer::Left(member.version, left)
                }
            };
            self.rolling.answered(&next.object, member, answer, Timestamp::now());
        }
    }
}

fn look(rolling: &mut Memory, policy: &str, members: &Members, policies: &Policies) -> Look {
    let policy = policies.get(&PolicyRef::of_cluster(policy)).unwrap();
    let earlier = policy.earlier().and_then(|earlier| earlier.revision()).zip(policy.extent());
    let now = Timestamp::now();
    let facts = Facts {
        aim: Aim {
            policy: &policy.name,
            kinds: &policy.kinds,
            update: policy.revision().unwrap(),
            published: Published { is_in_force: true, earlier },
        },
        leader: Leading { name: "leader", evictions: 60, again: SignedDuration::from_secs(10) },
        now,
        members,
        makers: Makers { owners: &Owners::new(), beside: &HashMap::new(), busy: &BTreeMap::new() },
        record: &Record::default(),
        restarted: None,
        pace: Pace {
            max_unavailable: 5,
            per_namespace: None,
            min_ready: SignedDuration::from_secs(5),
            deadline: SignedDuration::from_secs(60),
        },
        can_fail: true,
        held: BTreeSet::new(),
        is_in_scope: &|_, _| true,
        queries: Queries { stuck: &|_| None, by_hand: &|_| None, way: &|_, _| refit::Way::Evict, rejection: &|_| None },
    };
    rolling.look(&facts)
}

/// What every engine does to a new workload.
fn decide(scene: &Scene, workload: &Workload, site: &Site) {
    let mut decision = Decision::of(&scene.policies, workload, site);
    assert!(decision.inject.iter().all(|policy| policy.name != "calm"), "a policy of another namespace");
    assert!(decision.excused().count() <= POLICIES.len() && decision.satisfied().count() <= POLICIES.len());
    let patch = decision.plan(workload);
    let after = workload.patched(&patch);
    let markers = POLICIES.map(marker::key).to_vec();
    assert!(is_kept(&workload.body, &after, &markers), "something of the user's has changed: {patch}");
    let after = workload.with_body(after);
    decision.judge_stored(workload, &after, &scene.policies, site);
    inject::undo_anywhere(&after, &POLICIES.map(str::to_owned));
    for policy in scene.policies.iter() {
        policy.loss(&after, workload);
        policy.marker(&after);
    }
}

/// A workload is counted as missing the content of a policy if and only if a decision would add it, or fail to.
fn assert_counted_as_decided(policies: &Policies, fate: &census::Fate, workload: &Workload, site: &Site) {
    let decision = Decision::of(policies, workload, site);
    for policy in policies.at(workload).filter(|policy| policy.injects() && policy.is_enforced()) {
        let name = policy.name.as_str();
        let tally = fate.iter().find(|(of, _)| &*of.name == name).map(|(_, tally)| *tally);
        let is_missing = matches!(tally, Some(Tally::Missed | Tally::Outdated | Tally::Collided));
        let left = decision.rest.iter().find(|left| left.policy.name == name);
        let is_due =
            decision.inject.iter().any(|own| own.name == name) || left.is_some_and(|left| left.reason.row == 8);
        assert_eq!(is_missing, is_due, "{name} is {tally:?}: {:?}", left.map(|left| &left.reason));
    }
}

/// What a rollout does to a stored workload.
fn update(scene: &Scene, workload: &Workload, site: &Site) {
    let to = &scene.envoy;
    refit::carries(workload, to, site);
    refit::untouchable(workload);
    // What is stored has both, and patches test them.
    let is_stored = ["uid", "resourceVersion"].iter().all(|field| workload.body["metadata"][field].is_string());
    let apply = |patch: &json_patch::Patch| is_stored.then(|| workload.patched(patch));
    let change = if workload.kind.is_pod() {
        match refit::next_action(
            workload,
            [&scene.earlier],
            Goal { to, policies: &scene.policies, site },
            &Asked { can_resize: true, ..Asked::default() },
        ) {
            refit::NextAction::InPlace { patch, .. } => Some(patch),
            _ => None,
        }
    } else {
        if let Ok(removal) = refit::removal(workload, &scene.earlier, &scene.policies) {
            apply(&removal.patch);
        }
        refit::template_update(workload, [&scene.earlier], Goal { to, policies: &scene.policies, site })
            .ok()
            .map(|change| change.patch)
    };
    if let Some(patch) = change {
        apply(&patch);
    }
}

/// The answer of the webhook.
fn review(scene: &Scene, kind: &Arc<Kind>, body: &Value) {
    let resource = json!({ "group": kind.group, "version": "v1", "resource": kind.resource });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "kind": { "group": kind.group, "version": "v1", "kind": kind.kind }, "resource": resource,
            "namespace": "hostile", "operation": "CREATE", "object": body, "userInfo": {},
        },
    });
    let bytes = review.to_string();
    for call in [Call::Mutate, Call::Validate] {
        let Ok(review) = Review::parse(bytes.as_bytes()) else { return };
        let namespace = Some(scene.namespace.clone());
        let caller = Caller { call, revision: Some("0123456789abcdef"), policies: &scene.policies, listed: None };
        let answer = review.answer(&caller, &scene.sites[0], namespace);
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        assert!(call == Call::Validate || answer["response"]["allowed"] == true, "{answer}");
    }
}

/// Stored revisions and policies that are spoilt.
fn stored(scene: &Scene, seed: u64, site: &Site) {
    let content = &scene.earlier.content;
    let revision = json!({
        "metadata": {
            "name": format!("envoy-{}", scene.earlier.hash), "labels": { POLICY_LABEL: "envoy" },
            "annotations": {
                "scpol.dev/complete": "2026-01-01T00:00:00Z", "scpol.dev/ahead": "{}",
                "scpol.dev/rollout": "{\"from\":\"x\",\"step\":18446744073709551615,\"since\":\"2026-01-01T00:00:00Z\",\"updated\":[]}",
            },
            "ownerReferences": [{ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "uid": "envoy" }],
        },
        "data": content, "revision": 7,
    });
    if let Some(Ok(stored)) = StoredRevision::parse(&generator::spoiled(seed, revision)) {
        assert_eq!(stored.revision.content, *content, "only what has its own hash counts");
        revisions::rejection(&scene.envoy, &stored.revision, site);
        revisions::split(&scene.envoy, &[&stored], None, |_| true);
    }
    let policy = json!({ "metadata": { "name": "p", "uid": "p" }, "spec": spec("x") });
    if let Ok(policy) = Policy::parse(&generator::spoiled(seed, policy), site) {
        Content::of(&policy.spec);
    }
}

#[test]
fn no_hostile_object_panics_or_concerns_another() {
    let count = std::env::var("HOSTILE_OBJECTS").map_or(COUNT, |count| count.parse().unwrap());
    let threads = available_parallelism().map_or(1, |threads| threads.get() as u64);
    let scene = Scene::new();
    std::thread::scope(|scope| {
        for first in 0..threads {
            let scene = &scene;
            scope.spawn(move || {
                let mut leader = Leader::new(scene);
                for seed in (first..count).step_by(usize::try_from(threads).unwrap()) {
                    let judged = catch_unwind(AssertUnwindSafe(|| leader.judge(seed)));
                    assert!(judged.is_ok(), "the object of the seed {seed}: see above");
                }
            });
        }
    });
}

#[test]
fn no_hostile_manifest_ends_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let policy = json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": "envoy" }, "spec": spec("envoy:0") });
    let policies = folder.path().join("policy.json");
    std::fs::write(&policies, policy.to_string()).unwrap();
    let scene = Scene::new();
    for seed in 0..25 {
        let mut hostile = generator::written(seed, &scene.victim());
        hostile.body["metadata"]["namespace"] = "hostile".into();
        let file = folder.path().join(format!("{seed}.json"));
        std::fs::write(&file, hostile.body.to_string()).unwrap();
        for command in ["explain", "inject", "uninject"] {
            let mut command_line = Command::new(env!("CARGO_BIN_EXE_scpol"));
            command_line.arg(command).arg("-f").arg(&file).env_clear();
            if command != "uninject" {
                command_line.arg("--policy").arg(&policies);
            }
            let output = command_line.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            assert!(matches!(code, Some(0..=2)) && !said.contains("panicked"), "{command} {seed}: {code:?}: {said}");
        }
    }
}

/// A revision counts only if this version computes the hash that is in its name. If this test fails, every stored revision of
/// every installation is ignored after the upgrade: keep the form of what is hashed.
#[test]
fn the_revisions_that_earlier_versions_have_stored_count() {
    let plain = json!({
        "template": { "containers": [{ "name": "envoy", "image": "envoy:1" }] }, "nativeSidecars": "ForJobs", "jobs": "Skip",
    });
    let full = json!({
        "template": {
            "metadata": { "labels": { "mesh": "on" }, "annotations": { "a/b": "1" } },
            "containers": [{ "name": "x", "image": "x", "resources": { "limits": { "memory": 1e9 } } }],
            "initContainers": [{ "name": "i", "image": "i", "restartPolicy": "Always" }],
            "volumes": [{ "name": "v", "emptyDir": {} }], "imagePullSecrets": [{ "name": "pull" }],
            "env": [{ "name": "A", "value": "1" }], "envFrom": [{ "configMapRef": { "name": "c" } }],
            "volumeMounts": [{ "name": "v", "mountPath": "/m" }], "appContainers": ["app*"], "includeInitContainers": true,
        },
        "position": { "containers": "Before" }, "nativeSidecars": "Never", "jobs": "Inject",
    });
    for (name, data) in [("p-c29d4718f830471a", plain), ("p-77a832a7c5e8991b", full)] {
        let metadata = json!({ "name": name, "labels": { POLICY_LABEL: "p" } });
        let object = json!({ "metadata": metadata, "data": data, "revision": 1 });
        let stored = StoredRevision::parse(&serde_json::from_value(object).unwrap()).unwrap();
        assert!(stored.is_ok(), "{name}: {stored:?}");
    }
}
