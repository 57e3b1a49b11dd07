//! Each rule finds one change in a recorded log, and nothing in the unchanged log.

#![allow(clippy::unwrap_used, reason = "what was recorded is known")]

use anyhow::Result;
use oracle::{Digest, Finding, Oracle, Rest, Site, State};
use serde_json::{Value, json};
use std::process::Command;

/// From a 1.13.5 server: an operator puts a policy in effect. An administrator creates a Deployment and edits it before
/// the operator's first patch, which therefore fails. The second patch succeeds.
const AUDIT: &str = include_str!("../recorded/initializer.jsonl");
/// The Deployment, the policy and its registration afterwards.
const STATE: &str = include_str!("../recorded/state.json");

/// From a 1.37.2 server: the policy gets another image while it may have three Deployments unavailable. Two of them get it, and the third
/// has opted out of rollouts.
const ROLLOUT: &str = include_str!("../recorded/rollout.jsonl");
/// From the same server: a policy for pods, with two unavailable at most, gets a variable. Two pods are evicted.
const EVICTIONS: &str = include_str!("../recorded/evictions.jsonl");

/// A recorded run with changes.
struct Run {
    audit: Vec<Value>,
    state: Value,
    site: Site,
}

impl Run {
    fn recorded() -> Self {
        Self { state: serde_json::from_str(STATE).unwrap(), ..Self::of(AUDIT) }
    }

    fn rollout() -> Self {
        Self::of(ROLLOUT)
    }

    fn evictions() -> Self {
        Self::of(EVICTIONS)
    }

    /// A run without final objects.
    fn of(audit: &str) -> Self {
        let audit = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Self { audit, state: json!([]), site: Site::default() }
    }

    /// The events about a resource by others than the operator.
    fn others(&mut self, resource: &str) -> impl Iterator<Item = &mut Value> {
        let is_it = move |event: &&mut Value| {
            event["objectRef"]["resource"] == resource && event["user"]["username"] != Site::default().user
        };
        self.audit.iter_mut().filter(is_it)
    }

    /// Changes the policy in all events.
    fn policy(&mut self, change: impl Fn(&mut Value)) {
        self.others("sidecarpolicies").for_each(|event| change(&mut event["responseObject"]["spec"]));
    }

    /// The object that the operator's last write of the resource leaves.
    fn written(&mut self, resource: &str) -> &mut Value {
        &mut self.write(resource)["responseObject"]
    }

    /// The operator's last write of the resource.
    fn write(&mut self, resource: &str) -> &mut Value {
        let ours = |event: &&mut Value| {
            event["objectRef"]["resource"] == resource && event["user"]["username"] == Site::default().user
        };
        self.audit.iter_mut().rev().find(ours).unwrap()
    }

    /// The patch that completes the Deployment.
    fn patch(&mut self) -> &mut Vec<Value> {
        self.write("deployments")["requestObject"].as_array_mut().unwrap()
    }

    fn without(&mut self, is_it: impl Fn(&str, &str) -> bool) {
        self.patch().retain(|operation| !is_it(operation["op"].as_str().unwrap(), operation["path"].as_str().unwrap()));
    }

    /// An object of the state: 0 is the Deployment, 1 the policy, 2 the registration.
    fn object(&mut self, number: usize) -> &mut Value {
        &mut self.state["items"][number]
    }

    fn oracle(&self) -> Oracle {
        let mut oracle = Oracle::new(self.site.clone());
        let log: Vec<String> = self.audit.iter().map(Value::to_string).collect();
        oracle.read(log.join("\n").as_bytes()).unwrap();
        oracle
    }

    fn state(&self) -> State {
        State::new(self.state.clone()).unwrap().with_listed(LISTED.map(str::to_owned))
    }

    fn findings(&self) -> Vec<Finding> {
        self.oracle().findings(Some(&self.state()))
    }

    fn digest(&self) -> Digest {
        self.oracle().digest(&self.state())
    }
}

/// What is changed, the rule that must find it, a part of the message, and the change.
type Row = (&'static str, &'static str, &'static str, fn(&mut Run));

const fn row(what: &'static str, rule: &'static str, message: &'static str, change: fn(&mut Run)) -> Row {
    (what, rule, message, change)
}

const ROWS: &[Row] = &[
    row("patched twice", "O1", "nobody else has written it since", patch_twice),
    row("patched twice, on a server that does not log answers", "O1", "nobody else has written it since", |run| {
        patch_twice(run);
        run.audit.iter_mut().for_each(|event| event["responseObject"] = Value::Null);
    }),
    row("no test of the version", "O2", "`/metadata/resourceVersion`", |run| {
        run.without(|op, path| op == "test" && path == "/metadata/resourceVersion")
    }),
    row("no test of the UID", "O2", "`/metadata/uid`", |run| {
        run.without(|op, path| op == "test" && path == "/metadata/uid")
    }),
    row("no test of the entry", "O2", "`/metadata/initializers/pending/0/name`", |run| {
        run.without(|op, path| op == "test" && path == "/metadata/initializers/pending/0/name")
    }),
    row("injected while it is being deleted", "O2", "is added to what is being deleted", |run| {
        for event in &mut run.audit {
            if event["objectRef"]["resource"] == "deployments" && event["responseObject"]["metadata"].is_object() {
                event["responseObject"]["metadata"]["deletionTimestamp"] = json!("2026-11-22T03:06:26Z");
            }
        }
    }),
    row("out of force by itself", "O11", "not in force any more (NotExpressible)", give_up),
    row("tests behind changes", "O2", "does not begin with a test", |run| run.patch().rotate_left(3)),
    row("no marker", "O2", "added without a marker", |run| run.without(|_, path| path.ends_with("annotations"))),
    row("the entry stays", "O2", "our entry stays", |run| run.without(|op, _| op == "remove")),
    row("a merge patch", "O2", "not by a JSON Patch", |run| {
        run.write("deployments")["requestObject"] = json!({ "metadata": { "initializers": null } })
    }),
    row("the replicas are changed", "O3", "`replace` of `/spec/replicas`", |run| {
        run.patch().push(json!({ "op": "replace", "path": "/spec/replicas", "value": 2 }))
    }),
    row("a label that somebody else has set is gone", "O3", "`/metadata/labels/edits`", |run| {
        drop(run.write("deployments")["responseObject"]["metadata"]["labels"].as_object_mut().unwrap().remove("edits"))
    }),
    row("the user's container is replaced", "O3", "/containers/0`", |run| {
        run.write("deployments")["responseObject"]["spec"]["template"]["spec"]["containers"][0]["image"] =
            json!("other")
    }),
    row("a foreign entry is gone", "O3", "foreign entries [\"last.example.com\"]", |run| {
        let foreign = json!({ "name": "last.example.com" });
        for event in &mut run.audit {
            if let Some(pending) = event["responseObject"]["metadata"]["initializers"]["pending"].as_array_mut() {
                pending.push(foreign.clone());
            }
        }
    }),
    row("a foreign entry was first", "O3", "foreign initializer is at the head", |run| {
        run.patch()[2]["value"] = json!("first.example.com")
    }),
    row("a ConfigMap is written", "O4", "configmaps", |run| {
        let mut write = run.write("events").clone();
        write["objectRef"]["resource"] = json!("configmaps");
        run.audit.push(write);
    }),
    row("a probe is stored", "O4", "`create` is not ours to do", |run| {
        let probe =
            run.audit.iter_mut().find(|event| event["requestURI"].as_str().unwrap().contains("dryRun=All")).unwrap();
        probe["requestURI"] = json!("/apis/apps/v1/namespaces/scpol-system/deployments");
    }),
    row("a foreign registration is written", "O4", "initializerconfigurations others", |run| {
        let write = run.write("initializerconfigurations");
        write["objectRef"]["name"] = json!("others");
        write["requestObject"]["metadata"]["name"] = json!("others");
        write["responseObject"]["metadata"]["name"] = json!("others");
    }),
    row("a registration without our label", "O4", "without our label", |run| {
        run.write("initializerconfigurations")["requestObject"]["metadata"]["labels"] = Value::Null
    }),
    row("a policy's spec is written", "O4", "`patch` is not ours", |run| {
        drop(run.write("sidecarpolicies")["objectRef"].as_object_mut().unwrap().remove("subresource"))
    }),
    row("something waits in the end", "O5", "still waits for `envoy.scpol.dev`", |run| {
        run.object(0)["metadata"]["initializers"] = json!({ "pending": [{ "name": "envoy.scpol.dev" }] })
    }),
    row("a volume is not there", "O6", "volumes/envoy`, which is not there", |run| {
        run.object(0)["spec"]["template"]["spec"]["volumes"] = json!([{}])
    }),
    row("a variable is there twice", "O6", "env/PROXY`, of `envoy`, is there 2 times", |run| {
        let env = &mut run.object(0)["spec"]["template"]["spec"]["containers"][0]["env"];
        let again = env[0].clone();
        env.as_array_mut().unwrap().push(again);
    }),
    row("the marker is not there", "O6", "and not its marker", |run| {
        run.object(0)["spec"]["template"]["metadata"]["annotations"] = json!({})
    }),
    row(
        "a container is neither there nor in the marker",
        "O6",
        "has the marker of `envoy`, and lacks its container `envoy`",
        |run| drop(take(run, "containers", "envoy")),
    ),
    row("an init container is neither there nor in the marker", "O6", "lacks its init container `envoy-init`", |run| {
        drop(take(run, "initContainers", "envoy-init"))
    }),
    row("a volume is neither there nor in the marker", "O6", "lacks its volume `envoy`", |run| {
        drop(take(run, "volumes", "envoy"))
    }),
    row(
        "what is in a protected namespace is injected",
        "O10",
        "deployments kube-system/web-3: is in a protected namespace",
        |run| run.object(0)["metadata"]["namespace"] = json!("kube-system"),
    ),
    row("what is in the operator's namespace is injected", "O10", "is in a protected namespace", |run| {
        run.object(0)["metadata"]["namespace"] = json!("scpol-system")
    }),
    row("the status is about an earlier policy", "O8", "generation 1 of 2", |run| {
        run.object(1)["metadata"]["generation"] = json!(2)
    }),
    row("the status counts wrong", "O8", "counts 2 injected workloads, and there are 1", |run| {
        run.object(1)["status"]["injected"] = json!(2)
    }),
    row("the counts do not add up", "O8", "counts 1 matched workloads, and 1 injected, 0 outdated, 3 missed", |run| {
        run.object(1)["status"]["missed"] = json!(3)
    }),
    row("Accepted, and nobody knows by which hash", "O8", "has no `templateHash`", |run| {
        drop(run.object(1)["status"].as_object_mut().unwrap().remove("templateHash"))
    }),
    row("Ready, and not Programmed", "O8", "without being Programmed", |run| {
        run.object(1)["status"]["conditions"][2]["status"] = json!("False")
    }),
    row("Ready, and not Accepted", "O8", "without being Accepted", |run| {
        run.object(1)["status"]["conditions"][1]["status"] = json!("False")
    }),
    row("Accepted and Programmed, and not Ready", "O8", "without being Ready", |run| {
        run.object(1)["status"]["conditions"][0]["status"] = json!("False")
    }),
    row("no condition Ready", "O8", "has no condition `Ready`", |run| {
        drop(run.object(1)["status"]["conditions"].as_array_mut().unwrap().remove(0))
    }),
    row("Programmed, and not registered", "O8", "no InitializerConfiguration `scpol-envoy`", |run| {
        run.object(2)["metadata"]["name"] = json!("scpol-other")
    }),
    row("Programmed, and nothing is registered at all", "O8", "no InitializerConfiguration `scpol-envoy`", |run| {
        drop(run.state["items"].as_array_mut().unwrap().pop())
    }),
    row(
        "Programmed by the webhook, and not registered",
        "O8",
        "no MutatingWebhookConfiguration `scpol-deployments.apps`",
        |run| run.object(1)["status"]["engine"] = json!("Webhook"),
    ),
    row(
        "Programmed by the webhook for pods, and registered for Deployments",
        "O8",
        "no MutatingWebhookConfiguration `scpol-pods`",
        |run| {
            run.object(1)["status"]["engine"] = json!("Webhook");
            run.object(1)["spec"]["targets"] = json!([{ "group": "", "resource": "pods" }]);
            register(run, "MutatingWebhookConfiguration", "scpol-deployments.apps");
        },
    ),
    row(
        "Programmed by a MutatingAdmissionPolicy that nothing binds",
        "O8",
        "no MutatingAdmissionPolicyBinding `scpol-deployments.apps`",
        |run| {
            run.object(1)["status"]["engine"] = json!("MutatingAdmissionPolicy");
            register(run, "MutatingAdmissionPolicy", "scpol-deployments.apps");
        },
    ),
    row("an event at rest", "O7", "at rest", |run| {
        run.site.rest = Some("2020-01-01T00:00:00Z..2030-01-01T00:00:00Z".parse::<Rest>().unwrap())
    }),
];

const ROLLOUT_ROWS: &[Row] = &[
    row("rolled out twice", "O1", "nobody else has written it since", patch_twice),
    row("no test of the version", "O2", "not guarded by the `resourceVersion`", |run| {
        run.without(|op, path| op == "test" && path == "/metadata/resourceVersion")
    }),
    row("no test of the UID", "O2", "not guarded by the `uid`", |run| {
        run.without(|op, path| op == "test" && path == "/metadata/uid")
    }),
    row("no marker", "O2", "without its marker", |run| run.without(|_, path| path.contains("injected.scpol.dev"))),
    row("what the marker lists is not there", "O2", "containers/envoy`, which is not there once", |run| {
        drop(run.written("deployments")["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().pop())
    }),
    row("a merge patch", "O2", "not by a JSON Patch", |run| {
        run.write("deployments")["requestObject"] = json!({ "spec": { "template": null } })
    }),
    row("it is being deleted", "O3", "`/metadata/deletionTimestamp`", |run| {
        run.written("deployments")["metadata"]["deletionTimestamp"] = json!("2026-11-22T03:06:26Z")
    }),
    row("the replicas are changed", "O3", "`replace` of `/spec/replicas`", |run| {
        run.patch().push(json!({ "op": "replace", "path": "/spec/replicas", "value": 2 }))
    }),
    row("the user's container is replaced", "O3", "/containers/0`", |run| {
        run.written("deployments")["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other")
    }),
    row("a label of the user's is gone", "O3", "`/metadata/labels", |run| {
        run.written("deployments")["metadata"]["labels"] = json!({})
    }),
    row("an annotation is added that no marker lists", "O3", "no marker lists it", |run| {
        run.written("deployments")["spec"]["template"]["metadata"]["annotations"]["more"] = json!("x")
    }),
    row("it has opted out", "O4", "has opted out of rollouts", |run| opt_out(run, &[])),
    row("its pod template has opted out", "O4", "has opted out of rollouts", |run| opt_out(run, &["spec", "template"])),
    row("the Namespace has opted out", "O4", "the Namespace has opted out", |run| {
        let annotations = json!({ "scpol.dev/rollout": "false" });
        let namespace = json!({ "metadata": { "name": "default", "annotations": annotations } });
        run.audit.insert(0, others("", "namespaces", "default", &namespace));
    }),
    row("in a protected namespace", "O4", "in a protected namespace", |run| {
        run.write("deployments")["objectRef"]["namespace"] = json!("kube-system")
    }),
    row("the policy is paused", "O4", "policy `envoy` is paused", |run| {
        run.policy(|spec| spec["updateStrategy"]["paused"] = json!(true))
    }),
    row("the policy rolls nothing out", "O4", "policy `envoy` does not roll out", |run| {
        run.policy(|spec| spec["updateStrategy"] = json!({ "type": "OnDelete" }))
    }),
    row("the policy is suspended", "O4", "policy `envoy` is suspended", |run| {
        run.policy(|spec| spec["suspend"] = json!(true))
    }),
    row("the policy is for pods", "O4", "does not target this kind", |run| {
        run.policy(|spec| spec["targets"] = json!([{ "group": "", "resource": "pods" }]))
    }),
    row("the policy is for other namespaces", "O4", "does not cover the namespace", |run| {
        run.policy(|spec| spec["namespaces"] = json!(["shop", "def*x"]))
    }),
    row("the policy is for others", "O4", "does not select its labels", |run| {
        run.policy(|spec| spec["labelSelector"] = json!({ "matchLabels": { "app": "nobody" } }))
    }),
    row("all pods are made anew, and nobody has asked for it", "O4", "policy `envoy` asks for no restart", |run| {
        let path = "/spec/template/metadata/annotations/kubectl.kubernetes.io~1restartedAt";
        *run.patch() =
            [run.patch()[..2].to_vec(), vec![json!({ "op": "add", "path": path, "value": "2026-11-27T17:17:13Z" })]]
                .concat();
    }),
    row("a Job is written", "O4", "`patch` is not ours to do", |run| {
        let about = &mut run.write("deployments")["objectRef"];
        (about["resource"], about["apiGroup"]) = (json!("jobs"), json!("batch"));
    }),
    row("a revision elsewhere", "O4", "`patch` is not ours to do", |run| {
        run.write("controllerrevisions")["objectRef"]["namespace"] = json!("shop")
    }),
    row("a revision without our label", "O4", "without our label", |run| {
        let is_it =
            |event: &&mut Value| event["objectRef"]["resource"] == "controllerrevisions" && event["verb"] == "create";
        run.audit.iter_mut().find(is_it).unwrap()["requestObject"]["metadata"]["labels"] = Value::Null;
    }),
    row("too many at once", "O12", "2 are updated and not available yet, and 1 may be", |run| limit(run, &json!(1))),
    row("too many at once, in percent", "O12", "and 1 may be", |run| limit(run, &json!("10%"))),
];

const EVICTION_ROWS: &[Row] = &[
    row("evicted twice", "O1", "written again", |run| {
        let mut again = run.write("pods").clone();
        again["auditID"] = json!("again");
        run.audit.push(again);
    }),
    row("any version is evicted", "O2", "not guarded by the `resourceVersion`", |run| {
        run.write("pods")["requestObject"]["deleteOptions"]["preconditions"]["resourceVersion"] = Value::Null
    }),
    row("any pod of that name is evicted", "O2", "not guarded by the `uid`", |run| {
        run.write("pods")["requestObject"]["deleteOptions"] = Value::Null
    }),
    row("nobody makes the pod again", "O4", "no controller makes the pod again", |run| owned_by(run, &json!([]))),
    row("a Node makes the pod", "O4", "no controller makes the pod again", |run| {
        owned_by(run, &json!([{ "kind": "Node", "uid": "u", "controller": true }]))
    }),
    row("a Job makes the pod", "O4", "no controller makes the pod again", |run| {
        owned_by(run, &json!([{ "kind": "Job", "uid": "u", "controller": true }]))
    }),
    row("a controller that nobody knows makes the pod", "O4", "a `Workflow` may not make the pod again", |run| {
        owned_by(run, &json!([{ "kind": "Workflow", "uid": "u", "controller": true }]))
    }),
    row("the pod ends by itself", "O4", "the pod ends by itself", |run| {
        run.others("pods").for_each(|event| event["responseObject"]["spec"]["restartPolicy"] = json!("Never"))
    }),
    row("the pod has opted out", "O4", "has opted out of rollouts", |run| {
        for event in run.others("pods") {
            event["responseObject"]["metadata"]["annotations"]["scpol.dev/rollout"] = json!("false");
        }
    }),
    row("the policy is paused", "O4", "policy `envoy` is paused", |run| {
        run.policy(|spec| spec["updateStrategy"]["paused"] = json!(true))
    }),
    row("pods of a protected namespace", "O4", "in a protected namespace", |run| {
        run.write("pods")["objectRef"]["namespace"] = json!("kube-system")
    }),
    row("too many at once", "O12", "2 are updated and not available yet, and 1 may be", |run| {
        limit(run, &json!(1));
        run.audit.retain(|event| event["objectRef"]["subresource"] != "status");
    }),
];

/// Sets `maxUnavailable` of the policy.
fn limit(run: &mut Run, limit: &Value) {
    run.policy(|spec| spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = limit.clone());
}

/// Has the Deployments opted out, by the annotation of the object at `path`.
fn opt_out(run: &mut Run, path: &[&str]) {
    for event in run.others("deployments") {
        let at = path.iter().fold(&mut event["responseObject"], |at, step| &mut at[*step]);
        at["metadata"]["annotations"]["scpol.dev/rollout"] = json!("false");
    }
}

/// Replaces the owners of all pods.
fn owned_by(run: &mut Run, owners: &Value) {
    for event in run.others("pods") {
        event["responseObject"]["metadata"]["ownerReferences"] = owners.clone();
    }
}

/// Somebody else's write, which leaves `object`.
fn others(group: &str, resource: &str, name: &str, object: &Value) -> Value {
    json!({
        "auditID": "admin", "stage": "ResponseComplete", "verb": "patch", "user": { "username": "admin" },
        "objectRef": { "apiGroup": group, "resource": resource, "name": name }, "responseStatus": { "code": 200 },
        "responseObject": object,
    })
}

/// Replaces the registration by another object.
fn register(run: &mut Run, kind: &str, name: &str) {
    let registration = run.object(2);
    (registration["kind"], registration["metadata"]["name"]) = (json!(kind), json!(name));
}

/// The listed kinds of the recorded state.
const LISTED: [&str; 4] = [
    "InitializerConfiguration",
    "MutatingWebhookConfiguration",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Removes an item from the Deployment's pod, and its entry in the marker.
fn take(run: &mut Run, list: &str, name: &str) -> Value {
    let template = &mut run.object(0)["spec"]["template"];
    let marker = &mut template["metadata"]["annotations"]["injected.scpol.dev/envoy"];
    *marker = json!(marker.as_str().unwrap().replace(&format!(r#","/spec/template/spec/{list}/{name}""#), ""));
    let items = template["spec"][list].as_array_mut().unwrap();
    let at = items.iter().position(|item| item["name"] == name).unwrap();
    items.remove(at)
}

/// Adds a container to the policy's template.
fn edit_template(run: &mut Run) {
    let second = json!({ "name": "second", "image": "second:1" });
    run.object(1)["spec"]["template"]["containers"].as_array_mut().unwrap().push(second);
}

/// Repeats the patch for the version that the first one has created.
fn patch_twice(run: &mut Run) {
    let mut again = run.write("deployments").clone();
    again["auditID"] = json!("again");
    again["requestObject"][1]["value"] = again["responseObject"]["metadata"]["resourceVersion"].clone();
    run.audit.push(again);
}

/// Writes a status that puts the policy out of effect.
fn give_up(run: &mut Run) {
    let mut later = run.write("sidecarpolicies").clone();
    later["auditID"] = json!("later");
    for condition in later["requestObject"]["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] != "Accepted" {
            (condition["status"], condition["reason"]) = (json!("False"), json!("NotExpressible"));
        }
    }
    run.audit.push(later);
}

#[test]
fn a_policy_that_somebody_has_changed_or_whose_registration_or_that_stops_may_go_out_of_force() {
    let is_found = |change: fn(&mut Run)| {
        let mut run = Run::recorded();
        change(&mut run);
        run.findings().iter().any(|finding| is_named(finding.rule, "O11"))
    };
    assert!(is_found(give_up));
    assert!(!is_found(|run| {
        give_up(run);
        let last = run.audit.last_mut().unwrap();
        last["requestObject"]["status"]["conditions"][2]["reason"] = json!("Stopped");
    }));
    for (group, resource) in [
        ("scpol.dev", "sidecarpolicies"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("", "configmaps"),
    ] {
        let mut run = Run::recorded();
        run.audit.push(others(group, resource, "envoy", &Value::Null));
        give_up(&mut run);
        let is_found = run.findings().iter().any(|finding| is_named(finding.rule, "O11"));
        assert_eq!(is_found, resource == "configmaps", "{resource}");
    }
}

#[test]
fn nothing_is_found_in_what_was_recorded() {
    let run = Run::recorded();
    assert_eq!(run.findings(), []);
    assert_eq!(run.digest().compare(&[run.digest()]), []);
    assert_eq!(run.oracle().writes(), 9);
    assert_eq!((Run::rollout().findings(), Run::rollout().oracle().writes()), (vec![], 8));
    assert_eq!((Run::evictions().findings(), Run::evictions().oracle().writes()), (vec![], 2));
}

#[test]
fn each_violation_is_found_by_its_rule() {
    find_each(Run::recorded, ROWS);
    find_each(Run::rollout, ROLLOUT_ROWS);
    find_each(Run::evictions, EVICTION_ROWS);
}

fn find_each(recorded: fn() -> Run, rows: &[Row]) {
    for (what, rule, message, change) in rows {
        let mut run = recorded();
        change(&mut run);
        let findings = run.findings();
        let is_it = |finding: &Finding| is_named(finding.rule, rule) && finding.to_string().contains(message);
        assert!(findings.iter().any(is_it), "{what}: {findings:#?}");
    }
}

#[test]
fn each_rule_has_a_violation() {
    let rules =
        oracle::rules::WRITES.iter().map(|rule| rule.name).chain(oracle::rules::STATES.iter().map(|rule| rule.name));
    for name in rules.chain([oracle::rules::IN_TURN.0]) {
        let rows = ROWS.iter().chain(ROLLOUT_ROWS).chain(EVICTION_ROWS);
        assert!(rows.into_iter().any(|(_, rule, ..)| is_named(name, rule)), "{name}");
    }
}

/// Whether `name` begins with the rule, as in `O1 once` and `O1`.
fn is_named(name: &str, rule: &str) -> bool {
    name.split(' ').next() == Some(rule)
}

#[test]
fn a_second_write_after_somebody_elses_is_fine() {
    let mut run = Run::recorded();
    let mut again = run.write("deployments").clone();
    let mut foreign = again.clone();
    (again["auditID"], foreign["user"]["username"]) = (json!("again"), json!("someone"));
    foreign["responseObject"]["metadata"]["resourceVersion"] = json!("999");
    again["requestObject"][1]["value"] = json!("999");
    run.audit.extend([foreign, again]);
    assert_eq!(run.findings(), []);
}

#[test]
fn a_rollout_may_write_again_after_somebody_else_or_for_another_edit_of_the_policy() {
    let findings = |between: fn(&mut Run) -> Option<Value>| {
        let mut run = Run::rollout();
        let between = between(&mut run);
        run.audit.extend(between);
        patch_twice(&mut run);
        run.findings()
    };
    assert_eq!(findings(|_| None).len(), 1);
    // The status is written by the controller, each time.
    let written = |run: &mut Run, subresource: &str| {
        let mut event = run.write("deployments").clone();
        event["user"]["username"] = json!("someone");
        event["objectRef"]["subresource"] = json!(subresource);
        event
    };
    let foreign: fn(&mut Run) -> Option<Value> = |run| {
        let mut event = run.write("deployments").clone();
        event["user"]["username"] = json!("someone");
        Some(event)
    };
    assert_eq!(findings(foreign), []);
    assert_eq!(findings(|run| run.others("sidecarpolicies").last().cloned()), []);
    let mut run = Run::rollout();
    let status = written(&mut run, "status");
    run.audit.push(status);
    patch_twice(&mut run);
    assert!(run.findings().iter().any(|finding| is_named(finding.rule, "O1")));
}

#[test]
fn an_edit_of_the_policy_a_moment_ago_may_be_unknown_to_the_operator() {
    let findings = |time: &str| {
        let mut run = Run::rollout();
        let mut paused = run.others("sidecarpolicies").last().unwrap().clone();
        paused["responseObject"]["spec"]["updateStrategy"]["paused"] = json!(true);
        paused["requestReceivedTimestamp"] = json!(time);
        let at = run.audit.iter().position(|event| event["objectRef"]["resource"] == "deployments").unwrap();
        // It is the last one that is known.
        run.others("sidecarpolicies")
            .for_each(|event| event["requestReceivedTimestamp"] = json!("2026-01-01T00:00:00Z"));
        run.audit.retain(|event| event["objectRef"]["resource"] != "sidecarpolicies" || event["verb"] == "create");
        run.audit.insert(at, paused);
        run.findings()
    };
    assert_eq!(findings("2026-11-27T17:17:10Z"), []);
    assert!(findings("2026-11-27T17:16:00Z").iter().all(|finding| is_named(finding.rule, "O4")));
    assert!(!findings("2026-11-27T17:16:00Z").is_empty());
}

#[test]
fn who_was_available_at_a_write_is_told_by_the_times_and_not_by_the_order_of_the_log() {
    let mut run = Run::rollout();
    limit(&mut run, &json!(1));
    // The one was available again before the other was written, and the log says so in the end only.
    let is_status = |event: &Value| {
        event["objectRef"]["resource"] == "deployments" && event["objectRef"]["subresource"] == "status"
    };
    let last = run.audit.iter().rposition(is_status).unwrap();
    let mut status = run.audit.remove(last);
    assert_eq!(status["objectRef"]["name"], "web-1");
    for event in &mut run.audit {
        if event["objectRef"]["name"] == "web-0" && event["verb"] == "patch" && !is_status(event) {
            event["requestReceivedTimestamp"] = json!("2026-11-27T17:17:15Z");
        }
    }
    status["requestReceivedTimestamp"] = json!("2026-11-27T17:17:14Z");
    run.audit.push(status);
    assert_eq!(run.findings(), []);
}

#[test]
fn what_was_stored_before_the_log_begins_counts() {
    let mut run = Run::rollout();
    let created = run.others("sidecarpolicies").next().unwrap()["responseObject"].clone();
    let mut policy = created;
    policy["kind"] = json!("SidecarPolicy");
    policy["spec"]["updateStrategy"]["paused"] = json!(true);
    run.audit.retain(|event| {
        event["objectRef"]["resource"] == "deployments" && event["user"]["username"] == Site::default().user
    });
    assert_eq!(run.findings(), []);
    let mut oracle = run.oracle();
    assert_eq!(oracle.findings(None), []);
    oracle = Oracle::new(Site::default());
    oracle.begin(&State::new(json!([policy])).unwrap());
    let log: Vec<String> = run.audit.iter().map(Value::to_string).collect();
    oracle.read(log.join("\n").as_bytes()).unwrap();
    assert!(oracle.findings(None).iter().all(|finding| finding.to_string().contains("policy `envoy` is paused")));
    assert_eq!(oracle.findings(None).len(), 2);
}

#[test]
fn a_native_sidecar_is_a_container_of_the_template() {
    let mut run = Run::recorded();
    let sidecar = take(&mut run, "containers", "envoy");
    run.object(0)["spec"]["template"]["spec"]["initContainers"].as_array_mut().unwrap().push(sidecar);
    assert_eq!(run.findings(), []);
}

#[test]
fn what_an_earlier_template_has_added_lacks_nothing_of_the_one_that_is_there_now() {
    let mut run = Run::recorded();
    edit_template(&mut run);
    let status = &mut run.object(1)["status"];
    (status["templateHash"], status["injected"], status["outdated"]) = (json!("0123456789abcdef"), json!(0), json!(1));
    assert_eq!(run.findings(), []);
    // Nor while the status is about the earlier template.
    let mut run = Run::recorded();
    edit_template(&mut run);
    run.object(1)["metadata"]["generation"] = json!(2);
    let findings = run.findings();
    assert!(findings.iter().all(|finding| is_named(finding.rule, "O8")), "{findings:#?}");
}

#[test]
fn what_has_no_template_and_what_is_not_valid_needs_no_hash_of_it() {
    let without_hash = |change: fn(&mut Value)| {
        let mut run = Run::recorded();
        run.object(1)["status"].as_object_mut().unwrap().remove("templateHash");
        change(run.object(1));
        run.findings()
    };
    assert_eq!(without_hash(|policy| policy["spec"]["template"] = Value::Null), []);
    let rejected = without_hash(|policy| {
        let conditions = policy["status"]["conditions"].as_array_mut().unwrap();
        conditions.iter_mut().for_each(|condition| condition["status"] = json!("False"));
    });
    assert_eq!(rejected, []);
}

#[test]
fn writes_are_counted_by_workload() {
    let written = |change: fn(&mut Run)| {
        let mut run = Run::recorded();
        change(&mut run);
        run.oracle().written("deployments default/web-3")
    };
    // The first of the two attempts has failed.
    assert_eq!(written(|_| {}), 1..=1);
    assert_eq!(written(patch_twice), 2..=2);
    assert_eq!(written(|run| run.write("deployments")["responseStatus"]["code"] = json!(504)), 0..=1);
    assert_eq!(written(|run| run.write("deployments")["responseStatus"]["code"] = json!(429)), 0..=0);
}

#[test]
fn a_run_is_held_against_those_without_faults() {
    let calm = Run::recorded().digest();
    let differs = |change: fn(&mut Run)| {
        let mut run = Run::recorded();
        change(&mut run);
        let findings = run.digest().compare(std::slice::from_ref(&calm));
        findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert!(differs(patch_twice).contains("deployments default/web-3: written 2 times, and 1 times without faults"));
    assert!(
        differs(|run| run.object(0)["spec"]["replicas"] = json!(5))
            .contains("`/spec/replicas` is 5, and 1 without faults")
    );
    assert!(
        differs(|run| drop(run.state["items"].as_array_mut().unwrap().pop()))
            .contains("is not there, and is without faults")
    );
    let more = differs(|run| {
        let mut another = run.object(0).clone();
        another["metadata"]["name"] = json!("web-4");
        run.state["items"].as_array_mut().unwrap().push(another);
    });
    assert!(more.contains("deployments default/web-4: is there, and is not without faults"), "{more}");
    assert_eq!(differs(|run| run.object(0)["metadata"]["uid"] = json!("other")), "");
    // A client that has disconnected gets no answer, and the log does not show the result either.
    assert_eq!(differs(|run| run.write("deployments")["responseStatus"]["code"] = json!(500)), "");
    assert!(
        differs(|run| run.write("deployments")["responseStatus"]["code"] = json!(422))
            .contains("written 0 times, and 1")
    );
    // One equal run is enough.
    let mut other = Run::recorded();
    patch_twice(&mut other);
    assert_eq!(other.digest().compare(&[calm.clone(), other.digest()]), []);
}

#[test]
fn a_line_that_is_still_in_writing_is_waited_for_and_any_other_is_an_error() {
    let mut oracle = Oracle::new(Site::default());
    assert!(oracle.read(format!("{AUDIT}{{\"kind\":\"Ev").as_bytes()).is_ok());
    assert!(oracle.read(format!("garbage\n{AUDIT}").as_bytes()).unwrap_err().to_string().contains("line 1"));
}

#[test]
fn the_program_says_by_its_exit_code_what_it_found() -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/recorded");
    let run = |arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let output = Command::new(env!("CARGO_BIN_EXE_oracle")).args(arguments).output()?;
        Ok((output.status.code(), String::from_utf8([output.stdout, output.stderr].concat())?))
    };
    let (audit, state) = (format!("{folder}/initializer.jsonl"), format!("{folder}/state.json"));
    let digest = std::env::temp_dir().join(format!("oracle-{}.json", std::process::id()));
    let digest = digest.to_str().unwrap();
    let (code, told) = run(&["--audit", &audit, "--state", &state, "--write-digest", digest])?;
    assert_eq!((code, told.contains("9 writes")), (Some(0), true), "{told}");
    let (code, told) = run(&["--audit", &audit, "--state", &state, "--against", digest])?;
    assert_eq!(code, Some(0), "{told}");
    std::fs::remove_file(digest)?;
    let (code, told) = run(&["--audit", &audit, "--rest", "2020-01-01T00:00:00Z..2030-01-01T00:00:00Z"])?;
    assert_eq!((code, told.contains("O7 silence")), (Some(1), true), "{told}");
    let (code, told) = run(&["--audit", &audit, "--user", "nobody"])?;
    assert_eq!((code, told.contains("--user")), (Some(2), true), "{told}");
    let (code, told) = run(&["--audit", "/nowhere"])?;
    assert_eq!((code, told.contains("/nowhere")), (Some(2), true), "{told}");
    Ok(())
}
