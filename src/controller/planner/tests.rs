//! Tests of plans without a server: known facts go in; a plan and requests come out.

use super::*;
use crate::capabilities::Capabilities;
use crate::compile::webhook::{Address, Endpoint};
use crate::engine;
use crate::engine::reach::Reach;
use crate::policy::{Policies, PolicyRef, Site};
use crate::timing::{self, Timing};
use serde_json::json;

const GROUP: &str = "admissionregistration.k8s.io";
const TIMING: &timing::Controller = &Timing::documented().controller;

/// A server of that minor version with webhooks and the resources in `more`.
fn cluster(minor: u32, more: &[(&str, &str, &str, &str)]) -> Arc<Capabilities> {
    let served = [
        ("", "v1", "pods", "Pod"),
        ("apps", "v1", "deployments", "Deployment"),
        (GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        (GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ];
    Arc::new(Capabilities::of(minor, &[served.as_slice(), more].concat()))
}

fn policy(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec["template"].is_null() {
        spec["template"] = json!({ "containers": [{ "name": name, "image": "i:1" }] });
    }
    json!({ "metadata": { "name": name, "uid": name }, "spec": spec })
}

fn snapshot(objects: &[Value]) -> Snapshot {
    let site = Site::new("scpol-system", [], []);
    let stored = objects.iter().map(|object| {
        let parsed = Policy::parse(object, &site).map(Arc::new).map_err(Arc::new);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let status = Arc::new(object["status"].clone());
        (
            PolicyRef::of_cluster(&name),
            StoredPolicy {
                uid: name,
                generation: 1,
                edition: 0,
                status,
                resumed: None,
                restarted: None,
                odd_times: Vec::new(),
                parsed,
            },
        )
    });
    let stored: BTreeMap<PolicyRef, StoredPolicy> = stored.collect();
    let valid = stored.values().filter_map(|stored| stored.parsed.clone().ok());
    Snapshot {
        policies: Arc::new(Policies::new(valid)),
        stored: Arc::new(stored),
        revisions: Arc::default(),
        synced: true,
    }
}

/// A planner and its inputs.
struct Office {
    planner: Planner,
    snapshot: Snapshot,
    surroundings: Surroundings,
    registrations: Registrations,
    now: Instant,
}

impl Office {
    fn new(cluster: Arc<Capabilities>, objects: &[Value]) -> Self {
        let endpoint = Endpoint::Url("https://192.0.2.1:8443".to_owned());
        let reach = Reach { address: Address { endpoint, ca_bundle: Some(b"ca".to_vec()) }, trouble: None };
        let site = Arc::new(Site::new("scpol-system", [], []));
        Self {
            planner: Planner::default(),
            snapshot: snapshot(objects),
            surroundings: Surroundings { cluster, site, reach: Ok(Arc::new(reach)), unreadable: BTreeSet::new() },
            registrations: Registrations::default(),
            now: Instant::now(),
        }
    }

    fn draw(&mut self) -> Requests {
        self.planner.policies_changed(&self.snapshot);
        let inputs = Inputs {
            snapshot: &self.snapshot,
            surroundings: self.surroundings.clone(),
            registrations: &self.registrations,
            sample: &|name, _| Some(format!("sample of {name}")),
            now: self.now,
        };
        self.planner.draw(&inputs)
    }

    /// Draws plans until there are no more requests. The server accepts everything.
    fn settle(&mut self) {
        self.settle_with(|_| Ok(()));
    }

    /// Draws plans until there are no more requests. `answer` is the server's answer about registrations.
    fn settle_with(&mut self, answer: impl Fn(&[Value]) -> Result<(), Unavailable>) {
        for _ in 0..10 {
            let requests = self.draw();
            if requests.templates.is_empty() && requests.rehearsals.is_empty() {
                return;
            }
            for (key, _) in requests.templates {
                self.planner.tried(key, Acceptance::Taken);
            }
            for (print, (_, objects)) in requests.rehearsals {
                self.planner.rehearsed(print, Acceptance::of(answer(&objects), self.now, TIMING));
            }
        }
        panic!("there is always one more question");
    }

    fn plan(&self) -> &Plan {
        self.planner.plan().expect("a plan")
    }

    /// Why a policy is not delivered: the code and the message.
    fn why(&self, name: &str) -> (Code, String) {
        match &self.plan().policies[name] {
            Err(
                Readiness::Rejected { code, message }
                | Readiness::Impossible { code, message }
                | Readiness::Waiting { code, message },
            ) => (*code, message.clone()),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("{name} is delivered"),
        }
    }
}

fn deployments() -> &'static Arc<Kind> {
    Kind::find("apps", "deployments").unwrap()
}

fn asked() -> EngineName {
    engine::all().find(|engine| engine.needs_operator()).unwrap().name()
}

#[test]
fn the_server_is_asked_first_and_nothing_is_decided_until_it_has_answered() {
    let mut office = Office::new(cluster(30, &[]), &[policy("a", json!({}))]);
    let requests = office.draw();
    assert!(requests.needs_operator, "the webhook has to start");
    assert_eq!((requests.templates.len(), requests.rehearsals.len()), (0, 1), "the engine is not chosen yet");
    assert!(office.plan().joints.is_empty() && office.plan().undecided.contains(deployments()));
    assert!(office.draw().rehearsals.is_empty(), "it is being asked");
    let (print, _) = requests.rehearsals.into_iter().next().unwrap();
    office.planner.rehearsed(print, Acceptance::of(Ok(()), office.now, TIMING));
    assert!(office.planner.plan().is_none(), "an answer outdates the plan");
    let requests = office.draw();
    assert_eq!(requests.templates.len(), 1, "the template is tried on the engine that was chosen");
    assert!(office.plan().undecided.contains(deployments()));
    office.planner.tried(requests.templates[0].0.clone(), Acceptance::Taken);
    office.settle();
    let wanted = &office.plan().joints[deployments()];
    assert_eq!((wanted.engine, wanted.policies.len()), (asked(), 1));
    assert!(office.plan().undecided.is_empty() && !wanted.objects.is_empty());
}

#[test]
fn each_policy_that_is_not_delivered_has_its_reason() {
    let objects = [
        policy("off", json!({ "suspend": true })),
        policy("audit", json!({ "mode": "Audit" })),
        policy("unserved", json!({ "targets": [{ "group": "example.org", "resource": "things" }] })),
        policy("broken", json!({ "priority": "high" })),
        policy("first", json!({ "initializerName": "x.scpol.dev" })),
        policy("second", json!({ "initializerName": "x.scpol.dev" })),
        policy("initializer", json!({ "engine": "Initializer" })),
    ];
    let mut office = Office::new(cluster(30, &[]), &objects);
    office.settle();
    let plan = office.plan();
    assert!(matches!(plan.policies["off"], Err(Readiness::Suspended)));
    let sample = Some("sample of audit".to_owned());
    assert!(matches!(&plan.policies["audit"], Err(Readiness::Audit { sample: told }) if *told == sample));
    assert!(plan.policies["first"].is_ok());
    for (name, code) in [
        ("unserved", Code::TargetNotServed),
        ("broken", Code::InvalidField),
        ("second", Code::DuplicateInitializerName),
        ("initializer", Code::EngineUnavailable),
    ] {
        assert_eq!(office.why(name).0, code, "{name}: {}", office.why(name).1);
    }
}

#[test]
fn a_field_that_the_server_does_not_have_keeps_a_policy_out_of_force() {
    let probe = json!({ "exec": { "command": ["ok"] } });
    let container = json!({ "name": "a", "image": "a:1", "startupProbe": probe, "imagePullPolcy": "Always" });
    let mut office =
        Office::new(cluster(15, &[]), &[policy("a", json!({ "template": { "containers": [container] } }))]);
    office.draw();
    let unknown = "spec.template.containers[0].imagePullPolcy, spec.template.containers[0].startupProbe";
    let message = format!("this server (v1.15.0) does not know {unknown}; it would be dropped");
    assert_eq!(office.why("a"), (Code::UnknownTemplateField, message));
}

#[test]
fn a_field_that_only_a_parameter_sets_counts_as_one_of_the_template() {
    let path = "containers[a].livenessProbe.terminationGracePeriodSeconds";
    let probe = json!({ "exec": { "command": ["ok"] } });
    let container = json!({ "name": "a", "image": "a:1", "livenessProbe": probe });
    let parameter = json!({ "name": "grace", "type": "Integer", "paths": [path] });
    let spec = json!({ "template": { "containers": [container] }, "parameters": [parameter] });
    let mut office = Office::new(cluster(20, &[]), &[policy("a", spec)]);
    office.draw();
    let unknown = "spec.template.containers[0].livenessProbe.terminationGracePeriodSeconds";
    let message = format!("this server (v1.20.0) does not know {unknown}; it would be dropped");
    assert_eq!(office.why("a"), (Code::UnknownTemplateField, message));
}

#[test]
fn a_policy_that_the_server_does_not_take_stands_in_nobodys_way_and_is_tried_again() {
    let objects = [policy("a", json!({})), policy("b", json!({}))];
    let mut office = Office::new(cluster(30, &[]), &objects);
    let refuses = |objects: &[Value]| {
        let is_named = format!("{objects:?}").contains("\"b\"");
        if is_named { Err(Unavailable::new(Code::RegistrationRefused, "not b")) } else { Ok(()) }
    };
    office.settle_with(refuses);
    assert_eq!(office.why("b"), (Code::RegistrationRefused, "not b".to_owned()));
    assert_eq!(office.plan().joints[deployments()].policies.len(), 1);
    office.planner.tick(office.now + TIMING.retry - std::time::Duration::from_millis(1));
    assert!(office.planner.plan().is_some());
    office.now += TIMING.retry;
    office.planner.tick(office.now);
    assert!(office.planner.plan().is_none(), "the server is to be asked again");
    office.settle();
    assert_eq!(office.plan().joints[deployments()].policies.len(), 2);
}

#[test]
fn a_template_that_fails_its_trial_is_told_and_tried_again_later() {
    let mut office = Office::new(cluster(30, &[]), &[policy("a", json!({}))]);
    let key = loop {
        let requests = office.draw();
        for (print, _) in requests.rehearsals {
            office.planner.rehearsed(print, Acceptance::of(Ok(()), office.now, TIMING));
        }
        if let Some((key, _)) = requests.templates.into_iter().next() {
            break key;
        }
    };
    let invalid = Unavailable::new(Code::TemplateInvalid, "no such field");
    office.planner.tried(key, Acceptance::of(Err(invalid), office.now, TIMING));
    office.draw();
    assert_eq!(office.why("a"), (Code::TemplateInvalid, "no such field".to_owned()));
    office.now += TIMING.verify_again;
    office.planner.tick(office.now);
    let requests = office.draw();
    assert_eq!(requests.templates.len(), 1);
    assert_eq!(office.why("a").0, Code::TemplateInvalid, "it stays so until it is known better");
}

#[test]
fn an_engine_that_turned_out_to_be_off_is_passed_over_until_it_may_have_been_switched_on() {
    let more = [
        (GROUP, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
        (GROUP, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
    ];
    let mut office = Office::new(cluster(36, &more), &[policy("a", json!({}))]);
    office.settle();
    let first = office.plan().joints[deployments()].engine;
    assert_ne!(first, asked(), "the server itself comes first");
    let off = Unavailable::new(Code::AdmissionPolicyPluginOff, "the plugin is off");
    office.planner.block(first, deployments(), &off, office.now);
    office.settle();
    assert_eq!(office.plan().joints[deployments()].engine, asked());
    let later = office.now + TIMING.engine_off;
    office.planner.unblock_awaited(|_| false, later, TIMING);
    assert!(office.planner.plan().is_some(), "nobody waits for it");
    office.planner.unblock_awaited(|reason| reason.code == off.code, later, TIMING);
    office.settle();
    assert_eq!(office.plan().joints[deployments()].engine, first);
}

#[test]
fn a_missing_right_blocks_an_engine_on_one_kind_until_it_is_granted() {
    let targets = json!([{ "group": "apps", "resource": "deployments" }, { "group": "", "resource": "pods" }]);
    let objects = [policy("a", json!({ "targets": [targets[0]] })), policy("b", json!({ "targets": [targets[1]] }))];
    let mut office = Office::new(cluster(30, &[]), &objects);
    office.settle();
    let missing = Unavailable::new(Code::MissingRight, "no");
    office.planner.block(asked(), deployments(), &missing, office.now);
    office.settle();
    assert_eq!(office.why("a").0, Code::MissingRight);
    assert!(office.plan().policies["b"].is_ok(), "it has its right");
    assert!(office.planner.due_rights(office.now, TIMING).is_empty());
    let later = office.now + TIMING.rights_period + std::time::Duration::from_millis(1);
    assert_eq!(office.planner.due_rights(later, TIMING), [(asked(), deployments().clone())]);
    let blocked = (asked(), Some(deployments().clone()));
    office.planner.asked(&blocked, false);
    assert!(office.planner.plan().is_some());
    office.planner.asked(&blocked, true);
    office.settle();
    assert!(office.plan().policies["a"].is_ok());
}

#[test]
fn a_resource_that_cannot_be_read_is_a_reason() {
    let mut office = Office::new(cluster(30, &[]), &[policy("a", json!({}))]);
    let reason = Unavailable::new(Code::MissingRight, "cannot list");
    office.registrations.unreadable.insert("mutatingwebhookconfigurations", reason);
    office.settle();
    assert_eq!(office.why("a"), (Code::MissingRight, "cannot list".to_owned()));
}

#[test]
fn where_each_policy_is_registered_alone_nothing_is_shared_and_no_template_tried() {
    let Some(engine) = engine::all().find(|engine| engine.is_per_policy()) else { return };
    let mut cluster = Capabilities::of(
        13,
        &[
            ("apps", "v1", "deployments", "Deployment"),
            (GROUP, "v1alpha1", "initializerconfigurations", "InitializerConfiguration"),
        ],
    );
    cluster.initializers = true;
    let mut office = Office::new(Arc::new(cluster), &[policy("a", json!({}))]);
    let requests = office.draw();
    assert!(requests.templates.is_empty() && requests.rehearsals.is_empty() && !requests.needs_operator);
    let placed = office.plan().policies["a"].as_ref().expect("delivered");
    let own = placed.own.as_ref().expect("a registration of its own");
    assert_eq!((own.engine, own.objects.len()), (engine.name(), 1));
    assert!(placed.shared.is_empty() && office.plan().joints.is_empty());
}

#[test]
fn a_webhook_stands_by_unless_a_policy_of_the_highest_priority_names_its_engine() {
    let more = [
        (GROUP, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
        (GROUP, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
    ];
    for (priority, stands_by) in [(1, true), (0, false)] {
        let objects =
            [policy("a", json!({ "priority": priority })), policy("b", json!({ "engine": "MutatingAdmissionPolicy" }))];
        let mut office = Office::new(cluster(36, &more), &objects);
        office.settle();
        let joint = &office.plan().joints[deployments()];
        assert_eq!((joint.engine.as_str(), joint.policies.len()), ("MutatingAdmissionPolicy", 2));
        let has = joint.objects.iter().any(|object| object["kind"] == "MutatingWebhookConfiguration");
        assert_eq!(has, stands_by, "priority {priority}");
    }
}
