//! The shipped rights are exactly the used ones, by the audit log of real servers.

use crate::engines::{break_glass, by};
use crate::prelude::*;
use crate::upgrade::list_servers;
use std::collections::BTreeSet;

crate::tests![
    every_right_of_the_file_for_old_servers_is_used_and_none_is_missing,
    every_right_of_the_file_for_current_servers_is_used_and_none_is_missing,
    a_right_that_is_back_is_no_longer_reported_as_missing,
];

/// A verb on a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    /// Only in the operator's own namespace.
    is_own: bool,
    /// `group/resource`, and the subresource after another slash.
    resource: String,
    verb: String,
    /// Only on objects with these names; on all if the list is empty.
    names: Vec<String>,
}

impl Right {
    /// Whether the request of the audit event needs this right, or a similar one.
    fn allows(&self, event: &Value) -> bool {
        let object = &event["objectRef"];
        let name = object["name"].as_str().unwrap_or_default();
        event["verb"] == self.verb.as_str()
            && resource(object) == self.resource
            && (!self.is_own || object["namespace"] == "scpol-system")
            && (self.names.is_empty() || self.names.iter().any(|own| own == name))
    }
}

/// The resource of an audit event, as in [`Right`].
fn resource(object: &Value) -> String {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let subresource = Some(text("subresource")).filter(|name| !name.is_empty()).map(|name| format!("/{name}"));
    format!("{}/{}{}", text("apiGroup"), text("resource"), subresource.unwrap_or_default())
}

/// The operator's rights from the install file for `version`.
fn granted(version: Version) -> Result<BTreeSet<Right>> {
    let text = std::fs::read_to_string(file(bundle(version)))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let mut rights = BTreeSet::new();
    for binding in documents
        .iter()
        .filter(|document| ["ClusterRoleBinding", "RoleBinding"].iter().any(|kind| document["kind"] == *kind))
    {
        let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
        let role = documents.iter().find(|role| role["kind"] == *kind && role["metadata"]["name"] == *name);
        for rule in role.context("a bound role")?["rules"].as_array().into_iter().flatten() {
            rights.extend(of_rule(rule, binding["kind"] == "RoleBinding"));
        }
    }
    Ok(rights)
}

fn of_rule(rule: &Value, is_own: bool) -> Vec<Right> {
    let texts = |field: &str| -> Vec<String> {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let names = texts("resourceNames");
    let right = |group: &str, resource: &str, verb: String| Right {
        is_own,
        resource: format!("{group}/{resource}"),
        verb,
        names: names.clone(),
    };
    let mut rights = Vec::new();
    for group in texts("apiGroups") {
        for resource in texts("resources") {
            rights.extend(texts("verbs").into_iter().map(|verb| right(&group, &resource, verb)));
        }
    }
    rights
}

/// The operator's requests so far.
fn asked(world: &World) -> Vec<Value> {
    let ours = |event: &Value| event["user"]["username"] == User::Operator.name() && event["objectRef"].is_object();
    world.cluster.audit().into_iter().filter(ours).collect()
}

/// The rights that no request so far has used.
fn unused(world: &World, granted: &BTreeSet<Right>) -> Vec<Right> {
    let events = asked(world);
    let is_used = |right: &Right| {
        // The admission plugin also checks it at every patch of a waiting object.
        let right =
            if right.verb == "initialize" { Right { verb: "patch".into(), ..right.clone() } } else { right.clone() };
        events
            .iter()
            .any(|event| right.allows(event) && event["responseStatus"]["code"].as_i64().is_some_and(|code| code < 300))
    };
    granted.iter().filter(|right| !is_used(right)).cloned().collect()
}

/// Whether the request was rejected for a missing right. A trial may also be rejected for its content: by the tested
/// registration, or by the Pod Security of the operator's namespace.
fn is_missing_right(event: &Value) -> bool {
    let is_trial =
        event["verb"] == "create" && event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All"));
    let is_authorized = event["annotations"]["authorization.k8s.io/decision"] == "allow";
    event["responseStatus"]["code"] == 403 && !(is_trial && is_authorized)
}

/// The number of Namespaces that are created at once, each directly followed by a workload.
const HURRIED: usize = 32;

/// The resources of workloads: group, resource, kind, and its API versions on servers of 1.13 and 1.36.
pub(crate) const WORKLOADS: [(&str, &str, &str, [&str; 2]); 6] = [
    ("apps", "deployments", "Deployment", ["apps/v1", "apps/v1"]),
    ("apps", "statefulsets", "StatefulSet", ["apps/v1", "apps/v1"]),
    ("apps", "daemonsets", "DaemonSet", ["apps/v1", "apps/v1"]),
    ("batch", "cronjobs", "CronJob", ["batch/v1beta1", "batch/v1"]),
    ("batch", "jobs", "Job", ["batch/v1", "batch/v1"]),
    ("", "pods", "Pod", ["v1", "v1"]),
];

/// A server, and a scenario that makes the operator do everything it can.
struct Scenario {
    world: World,
    created: usize,
}

impl Scenario {
    async fn new(version: Version) -> Result<Self> {
        let world = World::with(ControlPlane::builder(version).audit_log()).await?;
        list_servers(&world.cluster, &[world.cluster.url()]).await?;
        Ok(Self { world, created: 0 })
    }

    fn targets(except: &[&str]) -> Value {
        WORKLOADS
            .iter()
            .filter(|(_, resource, ..)| !except.contains(resource))
            .map(|(group, resource, ..)| json!({ "group": group, "resource": resource }))
            .collect()
    }

    /// Creates one object of each of `kinds` in `namespace`.
    async fn create(&mut self, namespace: &str, except: &[&str], annotations: &Value) -> Result<()> {
        let column = usize::from(self.world.cluster.version().has(Feature::CronJobV1));
        for (_, resource, kind, versions) in WORKLOADS.iter().filter(|(_, resource, ..)| !except.contains(resource)) {
            self.created += 1;
            let version = versions[column];
            let body = workload(kind, version, &format!("w{}", self.created), annotations);
            let root = if version.contains('/') { "apis" } else { "api" };
            let path = format!("/{root}/{version}/namespaces/{namespace}/{resource}");
            self.world.create(&path, &body).await.with_context(|| format!("{kind} in {namespace}"))?;
        }
        Ok(())
    }

    /// A policy is created, takes effect, fails, is edited, and is deleted.
    async fn lifecycle(&mut self, engine: &str, except: &[&str]) -> Result<()> {
        let labels = json!({ "matchExpressions": [{ "key": "team", "operator": "DoesNotExist" }] });
        let spec = json!({
            "targets": Self::targets(except), "namespaceSelector": labels, "jobs": "Inject",
            "template": sidecar("envoy")["template"],
            "validations": if engine == "Initializer" { json!([]) } else { json!([{ "expression": "true" }]) },
        });
        let name = engine.to_lowercase();
        self.world.policy(&name, by(engine, spec)).await?;
        in_force(&self.world.cluster, &name).await.context(name.clone())?;
        self.create("default", except, &json!({})).await?;
        // With our marker it exceeds the server's limit, so it is rejected and released.
        if engine == "Initializer" {
            self.create("default", except, &json!({ "example.com/large": "x".repeat(262_144 - 100) })).await?;
        }
        self.fails_again(engine).await?;
        self.hurries(&name).await?;
        let edited = json!({ "labelSelector": { "matchExpressions": [{ "key": "no", "operator": "DoesNotExist" }] } });
        self.world.edit_policy(&name, edited).await?;
        in_force(&self.world.cluster, &name).await?;
        self.create("default", except, &json!({})).await?;
        self.world.delete_policy(&name).await?;
        within(LIMIT, "nothing is registered", || async { Ok(self.world.registered().await?.is_empty()) }).await
    }

    /// A workload that conflicts repeatedly, so that its event is counted up.
    async fn fails_again(&mut self, engine: &str) -> Result<()> {
        if engine == "MutatingAdmissionPolicy" {
            return Ok(());
        }
        let mut body = workload("Deployment", "apps/v1", "conflicting", &json!({}));
        body["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
        let path = "/apis/apps/v1/namespaces/default/deployments";
        let since = std::time::Instant::now();
        let has_patched = |world: &World| {
            asked(world).iter().any(|event| event["verb"] == "patch" && event["objectRef"]["resource"] == "events")
        };
        while !has_patched(&self.world) {
            ensure!(since.elapsed() < LIMIT, "no event is patched");
            self.world.create(path, &body).await?;
            self.world.delete(&format!("{path}/conflicting")).await?;
        }
        Ok(())
    }

    /// Workloads that arrive before their Namespace is in the operator's cache.
    async fn hurries(&self, policy: &str) -> Result<()> {
        // With Initializers, workloads arrive through the operator's watches, and MutatingAdmissionPolicies do not call
        // it.
        if policy != "webhook" {
            return Ok(());
        }
        let since = std::time::Instant::now();
        let has_asked = |world: &World| {
            asked(world).iter().any(|event| event["verb"] == "get" && event["objectRef"]["resource"] == "namespaces")
        };
        // Many at once, because a single one is nearly always slower than the event of its Namespace.
        for round in 0.. {
            if has_asked(&self.world) {
                break;
            }
            ensure!(since.elapsed() < LIMIT, "the operator always knows of a Namespace before of what is in it");
            let world = &self.world;
            let hurried = (0..HURRIED).map(|number| async move {
                let name = format!("{policy}-{round}-{number}");
                world.namespace(&name, &json!({})).await?;
                let path = format!("/apis/apps/v1/namespaces/{name}/deployments");
                world.create(&path, &workload("Deployment", "apps/v1", "web", &json!({}))).await
            });
            futures::future::try_join_all(hurried).await?;
        }
        Ok(())
    }

    /// The registration is deleted by hand, and returns after the hold.
    async fn emergency(&mut self, engine: &str) -> Result<()> {
        let mut spec = by(engine, sidecar("envoy"));
        if engine == "Webhook" {
            // The server itself cannot evaluate it, because it reserves `variables`.
            let expression = "size(object) > 0 && [1].all(variables, variables == 1)";
            spec["validations"] = json!([{ "expression": expression }]);
        }
        self.world.policy("brake", spec).await?;
        in_force(&self.world.cluster, "brake").await?;
        let selector = json!({ "matchExpressions": [{ "key": "no", "operator": "DoesNotExist" }] });
        self.world.edit_policy("brake", json!({ "labelSelector": selector })).await?;
        in_force(&self.world.cluster, "brake").await?;
        // The command deletes kind after kind, and the registration may return before its end.
        let gone = within(LIMIT, "it is gone", || async { Ok(self.world.registered().await?.is_empty()) });
        tokio::try_join!(break_glass(&self.world), gone)?;
        // The status says that it is in effect until the removal is noticed.
        within(LIMIT, "it is back", || async { Ok(!self.world.registered().await?.is_empty()) }).await?;
        in_force(&self.world.cluster, "brake").await?;
        self.world.delete_policy("brake").await?;
        within(LIMIT, "nothing is registered", || async { Ok(self.world.registered().await?.is_empty()) }).await
    }

    /// Damages the certificate while no operator runs.
    async fn spoil_certificate(&self) -> Result<()> {
        let path = "/api/v1/namespaces/scpol-system/secrets/scpol-webhook";
        let spoil = json!([{ "op": "replace", "path": "/data", "value": { "tls.crt": "AAAA" } }]);
        self.world.patch(path, &spoil).await.map(drop)
    }

    /// The operator stops properly and finds a damaged certificate after its restart. Then it has done everything.
    async fn restarted(&self, operator: Operator, flags: &[&str]) -> Result<()> {
        assert_eq!(operator.stop().await?, Some(0));
        self.spoil_certificate().await?;
        let _operator = Operator::ready(&self.world.cluster, flags).await?;
        self.world.policy("again", by("Webhook", sidecar("envoy"))).await?;
        in_force(&self.world.cluster, "again").await?;
        self.judged().await
    }

    /// Checks that the granted rights are the used ones.
    async fn judged(&self) -> Result<()> {
        let granted = granted(self.world.cluster.version())?;
        // The log is written after the answer.
        let all = within(LIMIT, "every right is used", || async { Ok(unused(&self.world, &granted).is_empty()) }).await;
        assert_eq!(unused(&self.world, &granted), [], "rights that nothing needs: {all:?}");
        self.refused()
    }

    /// Checks that no right was missing.
    fn refused(&self) -> Result<()> {
        let refused: Vec<_> = asked(&self.world).into_iter().filter(is_missing_right).collect();
        ensure!(refused.is_empty(), "a right is missing: {refused:?}");
        Ok(())
    }
}

/// The smallest workload of a kind, with annotations for its pods.
pub(crate) fn workload(kind: &str, version: &str, name: &str, annotations: &Value) -> Value {
    let mut template = pod_template(name);
    template["metadata"]["annotations"] = annotations.clone();
    let mut body = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name } });
    let selector = json!({ "matchLabels": { "app": name } });
    let mut ending = template.clone();
    ending["spec"]["restartPolicy"] = json!("Never");
    match kind {
        "Pod" => {
            body["metadata"]["annotations"] = annotations.clone();
            body["spec"] = template["spec"].clone();
        }
        "Job" => body["spec"] = json!({ "template": ending }),
        "CronJob" => {
            body["spec"] = json!({ "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": ending } } })
        }
        "StatefulSet" => body["spec"] = json!({ "serviceName": name, "selector": selector, "template": template }),
        _ => body["spec"] = json!({ "selector": selector, "template": template }),
    }
    body
}

async fn every_right_of_the_file_for_old_servers_is_used_and_none_is_missing() -> Result<()> {
    let mut scenario = Scenario::new(Version::V1_13).await?;
    let flags = ["--repair-hold=4s"];
    let operator = Operator::ready(&scenario.world.cluster, &flags).await?;
    // The template of a stored Job cannot be changed.
    scenario.lifecycle("Initializer", &["jobs"]).await?;
    scenario.emergency("Initializer").await?;
    let old = ["deployments", "daemonsets"]
        .map(|resource| json!({ "group": "extensions", "version": "v1beta1", "resource": resource }));
    let old = by("Initializer", json!({ "targets": old, "template": sidecar("envoy")["template"] }));
    scenario.world.policy("old", old).await?;
    in_force(&scenario.world.cluster, "old").await?;
    scenario.world.delete_policy("old").await?;
    scenario.lifecycle("Webhook", &[]).await?;
    scenario.restarted(operator, &flags).await
}

async fn every_right_of_the_file_for_current_servers_is_used_and_none_is_missing() -> Result<()> {
    let mut scenario = Scenario::new(Version::NEWEST).await?;
    let flags = ["--repair-hold=4s"];
    let operator = Operator::ready(&scenario.world.cluster, &flags).await?;
    for engine in ["MutatingAdmissionPolicy", "Webhook"] {
        scenario.lifecycle(engine, &[]).await?;
        scenario.emergency(engine).await?;
    }
    scenario.restarted(operator, &flags).await
}

async fn a_right_that_is_back_is_no_longer_reported_as_missing() -> Result<()> {
    const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/scpol";
    let (world, _operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let rules = world.get(ROLE).await?.context("the role")?["rules"].take();
    let others = rules.as_array().into_iter().flatten().filter(|rule| rule["apiGroups"] != json!(["apps"]));
    let others: Value = others.cloned().collect();
    world.patch(ROLE, &json!([{ "op": "replace", "path": "/rules", "value": others }])).await?;
    // A server that has started anew refuses the watches that were open.
    world.cluster.restart_apiserver().await?;
    wait_condition(&world.cluster, "envoy", "Degraded", "True", "MissingRight").await?;
    world.patch(ROLE, &json!([{ "op": "replace", "path": "/rules", "value": rules }])).await?;
    within(timing().workloads.trouble / 2, "nothing is missing", || async {
        let degraded = condition(&world.cluster, "envoy", "Degraded").await?;
        Ok(degraded.is_none_or(|degraded| degraded["status"] == "False"))
    })
    .await
}

/// Does everything with each of `engines`, and sees that no request is refused for a missing right.
pub(crate) async fn nothing_is_refused(version: Version, engines: &[&str]) -> Result<()> {
    let mut scenario = Scenario::new(version).await?;
    let operator = Operator::ready(&scenario.world.cluster, &["--repair-hold=4s"]).await?;
    for engine in engines {
        scenario.lifecycle(engine, &[]).await?;
    }
    assert_eq!(operator.stop().await?, Some(0));
    scenario.refused()
}
