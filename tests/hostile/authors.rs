//! Users who may write policies for one namespace.

use crate::author::{By, Office};
use crate::check::{Found, check};
use crate::commands::scpol;
use crate::prelude::*;
use http::Request;
use kube::Client;
use std::collections::BTreeMap;

crate::tests![
    who_may_write_which_policy_by_the_webhook_on_1_13 = who_may_write_which_policy(By::Webhook, Version::V1_13),
    who_may_write_which_policy_by_the_webhook_on_1_30 = who_may_write_which_policy(By::Webhook, Version::V1_30),
    who_may_write_which_policy_on_1_30 = who_may_write_which_policy(By::Policy, Version::V1_30),
    who_may_write_which_policy_on_the_newest = who_may_write_which_policy(By::Policy, Version::NEWEST),
    what_the_garbage_collector_and_the_operator_write_passes,
    many_annotations_lock_nobody_out,
    who_writes_a_policy_writes_no_status,
    the_server_records_who_wrote_a_policy_last,
    a_record_of_somebody_else_is_refused,
];

const POLICIES: &str = "/apis/scpol.dev/v1alpha1/sidecarpolicies";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// The users, and what each may do in which namespace, beside writing policies.
///
/// | user | create pods | for rollouts |
/// |---|---|---|
/// | platform | everywhere | everywhere: patch workloads and pods, create pods/eviction |
/// | tenant | shop | shop: patch deployments, create pods/eviction |
/// | packer | shop | shop: patch pods |
const USERS: [&str; 3] = ["platform", "tenant", "packer"];

/// The rows of the table: the policy, the write, and the answer to each of [`USERS`]: `ok`, or the code of the refusal.
const TABLE: &[(&str, &str, [&str; 3])] = &[
    // A policy for all namespaces belongs to whoever may create pods everywhere.
    ("all", "narrow to shop", ["ok", "SCP0046", "SCP0046"]),
    ("all", "exclude pay", ["ok", "SCP0046", "SCP0046"]),
    ("all", "suspend", ["ok", "SCP0046", "SCP0046"]),
    ("all", "audit", ["ok", "SCP0046", "SCP0046"]),
    ("all", "image", ["ok", "SCP0046", "SCP0046"]),
    ("all", "priority -1", ["ok", "SCP0046", "SCP0046"]),
    ("all", "restart", ["ok", "SCP0046", "SCP0046"]),
    ("all", "resume", ["ok", "SCP0046", "SCP0046"]),
    ("all", "annotation of ours", ["ok", "SCP0046", "SCP0046"]),
    ("all", "label of ours", ["ok", "SCP0046", "SCP0046"]),
    ("all", "annotation", ["ok", "ok", "ok"]),
    ("all", "label", ["ok", "ok", "ok"]),
    ("all", "owner", ["ok", "SCP0046", "SCP0046"]),
    ("all", "finalizer", ["ok", "SCP0046", "SCP0046"]),
    ("all", "replace", ["ok", "SCP0046", "SCP0046"]),
    ("all", "apply", ["ok", "SCP0046", "SCP0046"]),
    ("all", "apply a label", ["ok", "ok", "ok"]),
    ("all", "delete", ["ok", "SCP0046", "SCP0046"]),
    ("all", "delete in the foreground", ["ok", "SCP0046", "SCP0046"]),
    ("all", "delete collection", ["ok", "SCP0046", "SCP0046"]),
    ("all", "status", ["RBAC", "RBAC", "RBAC"]),
    // So does a policy for a namespace of others.
    ("pay", "narrow to shop", ["ok", "SCP0046", "SCP0046"]),
    ("pay", "widen to pay", ["ok", "SCP0046", "SCP0046"]),
    ("pay", "suspend", ["ok", "SCP0046", "SCP0046"]),
    ("pay", "restart", ["ok", "SCP0046", "SCP0046"]),
    ("pay", "owner", ["ok", "SCP0046", "SCP0046"]),
    ("pay", "label", ["ok", "ok", "ok"]),
    ("pay", "delete", ["ok", "SCP0046", "SCP0046"]),
    // A policy for the own namespace may be written, as long as it stays there.
    ("shop", "suspend", ["ok", "ok", "ok"]),
    ("shop", "image", ["ok", "ok", "ok"]),
    ("shop", "restart", ["ok", "ok", "ok"]),
    ("shop", "owner", ["ok", "ok", "ok"]),
    ("shop", "finalizer", ["ok", "ok", "ok"]),
    ("shop", "replace", ["ok", "ok", "ok"]),
    ("shop", "apply", ["ok", "ok", "ok"]),
    ("shop", "priority -1", ["ok", "ok", "ok"]),
    ("shop", "priority 1", ["ok", "SCP0048", "SCP0048"]),
    ("shop", "replace all", ["ok", "SCP0048", "SCP0048"]),
    ("shop", "widen to pay", ["ok", "SCP0046", "SCP0046"]),
    ("shop", "widen to all", ["ok", "SCP0046", "SCP0046"]),
    ("shop", "widen by a glob", ["ok", "SCP0046", "SCP0046"]),
    ("shop", "target pods", ["ok", "ok", "ok"]),
    ("shop", "roll", ["ok", "ok", "SCP0047"]),
    ("shop", "roll pods", ["ok", "SCP0047", "SCP0047"]),
    ("shop", "roll pods by eviction", ["ok", "ok", "SCP0047"]),
    ("shop", "roll deployments and pods", ["ok", "SCP0047", "SCP0047"]),
    ("shop", "delete", ["ok", "ok", "ok"]),
    ("shop", "delete collection", ["ok", "ok", "ok"]),
    // A policy that goes before those of others.
    ("ranked", "suspend", ["ok", "SCP0048", "SCP0048"]),
    ("ranked", "priority -1", ["ok", "SCP0048", "SCP0048"]),
    ("ranked", "label", ["ok", "ok", "ok"]),
    ("ranked", "delete", ["ok", "SCP0048", "SCP0048"]),
    // A policy that rolls.
    ("rolling", "image", ["ok", "ok", "SCP0047"]),
    ("rolling", "restart", ["ok", "ok", "SCP0047"]),
    ("rolling", "roll no more", ["ok", "ok", "SCP0047"]),
    ("rolling", "label", ["ok", "ok", "ok"]),
    ("rolling", "delete", ["ok", "ok", "SCP0047"]),
    // A policy that rolls pods.
    ("rolling pods", "image", ["ok", "SCP0047", "SCP0047"]),
    ("rolling pods", "roll no more", ["ok", "SCP0047", "SCP0047"]),
    ("rolling pods", "roll pods by eviction", ["ok", "SCP0047", "SCP0047"]),
    ("rolling pods", "label", ["ok", "ok", "ok"]),
    ("rolling pods", "delete", ["ok", "SCP0047", "SCP0047"]),
    ("evicting", "image", ["ok", "ok", "SCP0047"]),
    ("evicting", "roll pods", ["ok", "SCP0047", "SCP0047"]),
    ("evicting", "delete", ["ok", "ok", "SCP0047"]),
    // New policies.
    ("new for all", "create", ["ok", "SCP0046", "SCP0046"]),
    ("new for pay", "create", ["ok", "SCP0046", "SCP0046"]),
    ("new for shop", "create", ["ok", "ok", "ok"]),
    ("new ranked", "create", ["ok", "SCP0048", "SCP0048"]),
    ("new rolling", "create", ["ok", "ok", "SCP0047"]),
    ("new rolling pods", "create", ["ok", "SCP0047", "SCP0047"]),
    ("new evicting", "create", ["ok", "ok", "SCP0047"]),
    ("new rolling in 15", "create", ["ok", "SCP0046", "SCP0046"]),
];

/// The specs of the policies in the table.
fn spec(policy: &str) -> Value {
    let rolling = json!({ "type": "RollingUpdate" });
    let more = match policy {
        "all" | "new-for-all" => json!({}),
        "pay" | "new-for-pay" => json!({ "namespaces": ["pay"] }),
        "shop" | "new-for-shop" => json!({ "namespaces": ["shop"] }),
        "ranked" | "new-ranked" => json!({ "namespaces": ["shop"], "priority": 5 }),
        "rolling-pods" | "new-rolling-pods" => {
            json!({ "namespaces": ["shop"], "targets": [pods()], "updateStrategy": rolling })
        }
        "evicting" | "new-evicting" => {
            json!({ "namespaces": ["shop"], "targets": [pods()], "updateStrategy": by_eviction() })
        }
        "rolling" | "new-rolling" => json!({ "namespaces": ["shop"], "updateStrategy": rolling }),
        "new-rolling-in-15" => json!({ "namespaces": vec!["shop"; 15], "updateStrategy": rolling }),
        other => unreachable!("{other}"),
    };
    let mut spec = sidecar("envoy");
    spec.as_object_mut().into_iter().for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
    spec
}

fn pods() -> Value {
    json!({ "group": "", "resource": "pods" })
}

fn by_eviction() -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "podUpdate": "Recreate" } })
}

fn policy(name: &str) -> Value {
    policy_object(name, &spec(name))
}

/// A request.
#[derive(Clone)]
struct Write {
    method: &'static str,
    path: String,
    content: &'static str,
    body: Value,
}

/// The write `name` to `policy`.
fn write(policy_name: &str, name: &str) -> Write {
    const PATCH: &str = "application/json-patch+json";
    let path = format!("{POLICIES}/{policy_name}");
    let add = |pointer: &str, value: Value| {
        let body = json!([{ "op": "add", "path": pointer, "value": value }]);
        Write { method: "PATCH", path: path.clone(), content: PATCH, body }
    };
    let json_of = |method, path: String, body| Write { method, path, content: "application/json", body };
    let applied = |more: Value| {
        let mut body = json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy" });
        body.as_object_mut().into_iter().for_each(|body| body.extend(more.as_object().cloned().unwrap_or_default()));
        let path = format!("{path}?fieldManager=tester&force=true");
        Write { method: "PATCH", path, content: "application/apply-patch+yaml", body }
    };
    let annotation = |key: &str| add("/metadata/annotations", json!({ key: "2026-01-02T03:04:05Z" }));
    let roll = |targets: Value, strategy: Value| {
        let body = json!([
            { "op": "add", "path": "/spec/targets", "value": targets },
            { "op": "add", "path": "/spec/updateStrategy", "value": strategy },
        ]);
        Write { body, ..add("/spec", json!({})) }
    };
    match name {
        "create" => json_of("POST", POLICIES.to_owned(), policy(policy_name)),
        "narrow to shop" => add("/spec/namespaces", json!(["shop"])),
        "exclude pay" => add("/spec/excludeNamespaces", json!(["pay"])),
        "widen to pay" => add("/spec/namespaces", json!(["shop", "pay"])),
        "widen by a glob" => add("/spec/namespaces", json!(["sho?"])),
        "widen to all" => {
            Write { body: json!([{ "op": "remove", "path": "/spec/namespaces" }]), ..add("/spec", json!({})) }
        }
        "suspend" => add("/spec/suspend", json!(true)),
        "audit" => add("/spec/mode", json!("Audit")),
        "image" => add("/spec/template/containers/0/image", json!("evil:1")),
        "priority 1" => add("/spec/priority", json!(1)),
        "replace all" => add("/spec/replaces", json!(["all"])),
        "priority -1" => add("/spec/priority", json!(-1)),
        "target pods" => add("/spec/targets", json!([pods()])),
        "roll" => add("/spec/updateStrategy", json!({ "type": "RollingUpdate" })),
        "roll no more" => add("/spec/updateStrategy", json!({ "type": "OnDelete" })),
        "roll pods" => roll(json!([pods()]), json!({ "type": "RollingUpdate" })),
        "roll pods by eviction" => roll(json!([pods()]), by_eviction()),
        "roll deployments and pods" => {
            let deployments = json!({ "group": "apps", "resource": "deployments" });
            roll(json!([deployments, pods()]), json!({ "type": "RollingUpdate" }))
        }
        "restart" => annotation("scpol.dev/restartedAt"),
        "resume" => annotation("scpol.dev/resumedAt"),
        "annotation of ours" => annotation("any.scpol.dev/thing"),
        "annotation" => annotation("note"),
        "label" => add("/metadata/labels", json!({ "team": "mesh" })),
        "label of ours" => add("/metadata/labels", json!({ "scpol.dev/thing": "mesh" })),
        "owner" => {
            let owner = json!({ "apiVersion": "v1", "kind": "Namespace", "name": "shop", "uid": "none" });
            add("/metadata/ownerReferences", json!([owner]))
        }
        "finalizer" => add("/metadata/finalizers", json!(["tester.example/hold"])),
        "replace" => {
            let mut body = policy(policy_name);
            body["spec"]["suspend"] = json!(true);
            json_of("PUT", path.clone(), body)
        }
        "apply" => applied(json!({ "spec": { "suspend": true } })),
        "apply a label" => applied(json!({ "metadata": { "labels": { "team": "mesh" } } })),
        "delete" => json_of("DELETE", path.clone(), Value::Null),
        "delete in the foreground" => json_of("DELETE", format!("{path}?propagationPolicy=Foreground"), Value::Null),
        "delete collection" => {
            json_of("DELETE", format!("{POLICIES}?fieldSelector=metadata.name%3D{policy_name}"), Value::Null)
        }
        "status" => Write { path: format!("{path}/status"), ..add("/status", json!({ "matched": 1 })) },
        other => unreachable!("{other}"),
    }
}

impl Write {
    /// Sends the request, and returns `ok`, `RBAC` or the code of the refusal, with the message.
    async fn send(&self, client: &Client, is_dry: bool) -> Result<(String, String)> {
        let joint = if self.path.contains('?') { '&' } else { '?' };
        let path = if is_dry { format!("{}{joint}dryRun=All", self.path) } else { self.path.clone() };
        let message = Request::builder().method(self.method).uri(&path).header("Content-Type", self.content);
        // Options of a deletion in a body, even an empty one, would count in place of those in the path.
        let body = if self.body.is_null() { Vec::new() } else { self.body.to_string().into_bytes() };
        match client.request_text(message.body(body)?).await {
            Ok(_) => Ok(("ok".to_owned(), String::new())),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let code = status.message.find("SCP").map(|at| &status.message[at..at + "SCP0000".len()]);
                Ok((code.unwrap_or("RBAC").to_owned(), status.message.clone()))
            }
            Err(error) => Err(error).with_context(|| format!("{} {path}", self.method)),
        }
    }
}

/// A server with the check, the users and the policies.
struct Scene {
    office: Office,
    clients: BTreeMap<&'static str, Client>,
}

impl Scene {
    async fn open(by: By, version: Version) -> Result<Self> {
        let office = Office::open(by, version, &["shop".to_owned()]).await?;
        let cluster = &office.world.cluster;
        let kubectl = async |arguments: &str| {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            cluster.kubectl_output(User::Admin, &arguments).await.map(drop)
        };
        kubectl("create namespace pay").await?;
        kubectl("create clusterrole roll-deployments --verb=patch --resource=deployments.apps").await?;
        kubectl(
            "create clusterrole roll-others --verb=patch --resource=statefulsets.apps,daemonsets.apps,cronjobs.batch",
        )
        .await?;
        kubectl("create clusterrole patch-pods --verb=patch --resource=pods").await?;
        kubectl("create clusterrole evict --verb=create --resource=pods/eviction").await?;
        for user in USERS {
            kubectl(&format!("create clusterrolebinding {user}-edits --clusterrole=scpol-edit --user={user}")).await?;
        }
        kubectl("create clusterrolebinding viewer --clusterrole=scpol-view --user=viewer").await?;
        for role in ["pods", "roll-deployments", "roll-others", "patch-pods", "evict"] {
            kubectl(&format!("create clusterrolebinding platform-{role} --clusterrole={role} --user=platform")).await?;
        }
        let bound = [
            ("tenant", "pods"),
            ("tenant", "roll-deployments"),
            ("tenant", "evict"),
            ("packer", "pods"),
            ("packer", "patch-pods"),
        ];
        for (user, role) in bound {
            kubectl(&format!("create rolebinding {user}-{role} -n shop --clusterrole={role} --user={user}")).await?;
        }
        let mut clients = BTreeMap::new();
        for user in USERS.into_iter().chain(["viewer", COLLECTOR, User::Operator.name()]) {
            let mut config = cluster.client_config(User::Admin);
            config.auth_info.impersonate = Some(user.to_owned());
            clients.insert(user, Client::try_from(config)?);
        }
        let scene = Self { office, clients };
        for name in ["all", "pay", "shop", "ranked", "rolling", "rolling-pods", "evicting"] {
            scene.restore(name).await?;
        }
        within(LIMIT, "the check and the rights are in effect", || async {
            let answers = [
                scene.dry("platform", "all", "delete").await?,
                scene.dry("platform", "rolling", "roll pods").await?,
                scene.dry("tenant", "rolling", "restart").await?,
                scene.dry("tenant", "evicting", "image").await?,
                scene.dry("packer", "shop", "suspend").await?,
                scene.dry("packer", "new-for-all", "create").await?,
            ];
            let is_refused = scene.dry("tenant", "all", "delete").await? != "ok";
            Ok(answers == ["ok", "ok", "ok", "ok", "ok", "SCP0046"] && is_refused)
        })
        .await?;
        Ok(scene)
    }

    async fn dry(&self, user: &str, policy: &str, name: &str) -> Result<String> {
        Ok(write(policy, name).send(&self.clients[user], true).await?.0)
    }

    /// Gives a policy its first form again.
    async fn restore(&self, name: &str) -> Result<()> {
        let (admin, path) = (&self.office.world.admin, format!("{POLICIES}/{name}"));
        if let Some(stored) = self.office.world.get(&path).await? {
            if stored["metadata"]["finalizers"].is_array() {
                request(admin, "PATCH", &path, &json!([{ "op": "remove", "path": "/metadata/finalizers" }])).await?;
            }
            match request(admin, "DELETE", &path, &json!({})).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        within(LIMIT, "it is gone", || async { Ok(self.office.world.get(&path).await?.is_none()) }).await?;
        if !name.starts_with("new") {
            request(admin, "POST", POLICIES, &policy(name)).await?;
        }
        Ok(())
    }

    /// What `user` gets. On old servers a patch is tried with a cached object first, which may be some milliseconds
    /// old, so what must pass is sent again.
    async fn outcome(&self, user: &str, write: &Write, expected: &str, is_dry: bool) -> Result<(String, String)> {
        let begin = Instant::now();
        loop {
            let mut write = write.clone();
            if write.method == "PUT" {
                let stored = self.office.world.get(&write.path).await?.unwrap_or_default();
                write.body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
            }
            let answer = write.send(&self.clients[user], is_dry).await;
            let is_as_expected = answer.as_ref().is_ok_and(|(code, _)| code == expected || code == "ok");
            if is_as_expected || begin.elapsed() > Duration::from_secs(3) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Sends every write of the table as every user, first as a dry run. All rows that are wrong are reported together.
async fn who_may_write_which_policy(by: By, version: Version) -> Result<()> {
    let scene = Scene::open(by, version).await?;
    let is_old = version == Version::V1_13;
    let mut wrong = Vec::new();
    for (policy, name, expected) in TABLE {
        // Server-side apply came with 1.16.
        if is_old && name.starts_with("apply") {
            continue;
        }
        let policy = policy.replace(' ', "-");
        let write = write(&policy, name);
        for (user, expected) in USERS.into_iter().zip(*expected).chain([("viewer", "RBAC")]) {
            // Before 1.15 the server does not say which policies a collection has.
            let expected = match (is_old && *name == "delete collection", user) {
                (true, "tenant" | "packer") => "SCP0046",
                _ => expected,
            };
            for is_dry in [true, false] {
                let (code, message) = scene.outcome(user, &write, expected, is_dry).await?;
                if code != expected {
                    wrong.push(format!(
                        "{user}: {name} of `{policy}` (dry: {is_dry}): {code}, not {expected}: {message}"
                    ));
                }
                if code == "ok" && !is_dry {
                    scene.restore(&policy).await?;
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{} writes got another answer:\n{}", wrong.len(), wrong.join("\n"));
    are_in_the_same_words(&scene).await
}

/// The messages of both forms of the check.
async fn are_in_the_same_words(scene: &Scene) -> Result<()> {
    for (user, policy, name, text) in [
        (
            "tenant",
            "new-for-all",
            "create",
            "SCP0046: tenant may not create pods in all namespaces, so may have a policy only for namespaces where that is allowed: name them in `spec.namespaces`, at most 28 and without globs",
        ),
        (
            "tenant",
            "all",
            "delete",
            "SCP0046: tenant may not create pods in all namespaces, so may change and delete only policies for namespaces where that is allowed: those with at most 28 in `spec.namespaces`, without globs",
        ),
        (
            "tenant",
            "new-for-pay",
            "create",
            "SCP0046: tenant may not create pods in namespace `pay`, so may not have a policy inject there",
        ),
        (
            "tenant",
            "pay",
            "narrow to shop",
            "SCP0046: tenant may not create pods in namespace `pay`, so may not change or delete a policy that injects there",
        ),
        (
            "packer",
            "new-rolling",
            "create",
            "SCP0047: packer may not patch deployments.apps in namespace `shop`, so may not have a policy with `updateStrategy.type: RollingUpdate` there",
        ),
        (
            "packer",
            "rolling",
            "delete",
            "SCP0047: packer may not patch deployments.apps in namespace `shop`, so may not change or delete a policy with `updateStrategy.type: RollingUpdate` there",
        ),
        (
            "tenant",
            "shop",
            "roll pods",
            "SCP0047: tenant may not patch pods in namespace `shop`, so may not have a policy with `updateStrategy.type: RollingUpdate` there",
        ),
        (
            "packer",
            "shop",
            "roll pods",
            "SCP0047: packer may not create pods/eviction in namespace `shop`, so may not have a policy with `updateStrategy.type: RollingUpdate` there",
        ),
        (
            "tenant",
            "shop",
            "priority 1",
            "SCP0048: tenant may not create pods in all namespaces, so may not have a policy with `spec.replaces`, or with a `spec.priority` above 0",
        ),
        (
            "tenant",
            "ranked",
            "delete",
            "SCP0048: tenant may not create pods in all namespaces, so may not change or delete a policy with `spec.replaces`, or with a `spec.priority` above 0",
        ),
    ] {
        let (_, message) = write(policy, name).send(&scene.clients[user], true).await?;
        ensure!(message.ends_with(text), "{user}: {name} of {policy}: {message}");
    }
    Ok(())
}

async fn what_the_garbage_collector_and_the_operator_write_passes() -> Result<()> {
    for (by, version) in [(By::Webhook, Version::V1_13), (By::Policy, Version::NEWEST)] {
        let scene = Scene::open(by, version).await?;
        let sent = async |user: &str, policy: &str, write: &Write| -> Result<()> {
            let (code, message) = scene.outcome(user, write, "ok", false).await?;
            ensure!(code == "ok", "{user}: {} {policy}: {code} {message}", write.method);
            Ok(())
        };
        sent(User::Operator.name(), "all", &write("all", "status")).await?;
        // The server sets a finalizer, which the garbage collector removes.
        for policy in ["all", "rolling"] {
            sent("platform", policy, &write(policy, "delete in the foreground")).await?;
            let path = format!("{POLICIES}/{policy}");
            let finalizers = scene.office.world.get(&path).await?.context("it waits for its dependents")?;
            ensure!(finalizers["metadata"]["finalizers"] == json!(["foregroundDeletion"]), "{finalizers}");
            let body = json!([{ "op": "remove", "path": "/metadata/finalizers" }]);
            sent(COLLECTOR, policy, &Write { body, ..write(policy, "suspend") }).await?;
            within(LIMIT, "it is gone", || async { Ok(scene.office.world.get(&path).await?.is_none()) }).await?;
        }
        sent("platform", "pay", &write("pay", "owner")).await?;
        sent(COLLECTOR, "pay", &write("pay", "delete")).await?;
    }
    Ok(())
}

/// Annotations that are not ours are free. Whoever adds many must not make the comparison too expensive for everybody.
async fn many_annotations_lock_nobody_out() -> Result<()> {
    let scene = Scene::open(By::Policy, Version::NEWEST).await?;
    let many: serde_json::Map<_, _> = (0..20_000).map(|number| (format!("a{number}"), json!(""))).collect();
    let body = json!([{ "op": "add", "path": "/metadata/annotations", "value": many }]);
    let annotate = Write { body, ..write("all", "annotation") };
    let (code, _) = annotate.send(&scene.clients["tenant"], false).await?;
    ensure!(code == "SCP0046", "so many count as an edit: {code}");
    let (code, message) = annotate.send(&scene.clients["platform"], false).await?;
    ensure!(code == "ok", "{message}");
    for name in ["label", "suspend", "delete"] {
        ensure!(scene.dry("tenant", "all", name).await? == "SCP0046", "{name}");
        ensure!(scene.dry("platform", "all", name).await? == "ok", "{name}");
    }
    Ok(())
}

/// The operator reads a halt, a hold and an engine back from the status of a policy. Only the operator has a role for
/// `sidecarpolicies/status`, and the server drops the status of a write to the policy itself.
async fn who_writes_a_policy_writes_no_status() -> Result<()> {
    for (by, version) in [(By::Webhook, Version::V1_13), (By::Policy, Version::V1_30), (By::Policy, Version::NEWEST)] {
        let scene = Scene::open(by, version).await?;
        let (platform, admin) = (&scene.clients["platform"], &scene.office.world.admin);
        let forged = json!({ "halted": true, "initializerName": "compliance.example.com", "engine": "Webhook" });
        let path = format!("{POLICIES}/new-for-all");
        let mut body = policy("new-for-all");
        body["status"] = forged.clone();
        let is_clean = async || -> Result<bool> {
            let stored = scene.office.world.get(&path).await?.context("it is stored")?;
            // The operator on 1.13 writes a status of its own.
            Ok(forged.as_object().into_iter().flatten().all(|(key, value)| stored["status"][key] != *value))
        };
        request(platform, "POST", POLICIES, &body).await?;
        ensure!(is_clean().await?, "{version}: create");
        let patch = json!([{ "op": "add", "path": "/status", "value": forged }]);
        let write = Write { body: patch.clone(), ..write("new-for-all", "label") };
        let (code, message) = scene.outcome("platform", &write, "ok", false).await?;
        ensure!(code == "ok" && is_clean().await?, "{version}: patch: {code} {message}");
        // The same fields in the subresource are stored, so the comparison above can fail.
        request(admin, "PATCH", &format!("{path}/status"), &patch).await?;
        ensure!(by == By::Webhook || !is_clean().await?, "{version}: the subresource");
        for user in USERS.into_iter().chain(["viewer"]) {
            let status = Write { path: format!("{path}/status"), ..write.clone() };
            let (code, _) = status.send(&scene.clients[user], true).await?;
            ensure!(code == "RBAC", "{version}: {user}: {code}");
        }
    }
    Ok(())
}

const RECORD: &str = "scpol.dev/author";

/// The user in the record of a policy; none without a record.
async fn recorded(scene: &Scene, policy: &str) -> Result<Option<String>> {
    let stored = scene.office.world.get(&format!("{POLICIES}/{policy}")).await?.context("it is stored")?;
    let Some(record) = stored["metadata"]["annotations"][RECORD].as_str() else { return Ok(None) };
    let record: Value = serde_json::from_str(record).with_context(|| format!("{record} is JSON"))?;
    Ok(record["user"].as_str().map(str::to_owned))
}

/// The record of one of the users.
fn record_of(user: &str) -> String {
    json!({ "groups": ["system:authenticated"], "user": user }).to_string()
}

/// A write of a record by hand.
fn forge(policy: &str, record: &str) -> Write {
    Write {
        body: json!([{ "op": "add", "path": "/metadata/annotations", "value": { RECORD: record } }]),
        ..write(policy, "label")
    }
}

async fn the_server_records_who_wrote_a_policy_last() -> Result<()> {
    let scene = Scene::open(By::Policy, Version::NEWEST).await?;
    let (cluster, clients) = (&scene.office.world.cluster, &scene.clients);
    cluster.apply_file(&file("config/author-record/policy.yaml")).await?;
    within(LIMIT, "authors are recorded", || async {
        let path = format!("{POLICIES}?dryRun=All");
        let made = request(&clients["tenant"], "POST", &path, &policy("new-for-shop")).await?;
        Ok(made["metadata"]["annotations"][RECORD].is_string())
    })
    .await?;
    let sent = async |user: &str, write: &Write| -> Result<()> {
        let (code, message) = scene.outcome(user, write, "ok", false).await?;
        ensure!(code == "ok", "{user}: {}: {code} {message}", write.body);
        Ok(())
    };
    sent("tenant", &write("new-for-shop", "create")).await?;
    let name = "new-for-shop";
    let generation = async || -> Result<Value> {
        let stored = scene.office.world.get(&format!("{POLICIES}/{name}")).await?.context("it is stored")?;
        Ok(stored["metadata"]["generation"].clone())
    };
    let begin = generation().await?;
    let mut record = policy(name);
    record["metadata"]["annotations"] = json!({ RECORD: record_of("platform") });
    let replaced = Write { method: "PUT", content: "application/json", body: record, ..write(name, "label") };
    let unrecorded =
        Write { body: json!([{ "op": "remove", "path": "/metadata/annotations" }]), ..write(name, "label") };
    let kept = [
        ("packer", write(name, "label")),
        ("packer", write(name, "annotation")),
        ("packer", forge(name, &record_of("platform"))),
        ("packer", forge(name, "")),
        ("packer", unrecorded),
        ("packer", replaced),
        ("packer", write(name, "apply a label")),
        (COLLECTOR, write(name, "finalizer")),
    ];
    for (user, write) in kept {
        sent(user, &write).await?;
        let told = recorded(&scene, name).await?;
        ensure!(told.as_deref() == Some("tenant"), "{user}: {} {}: {told:?}", write.method, write.body);
    }
    ensure!(generation().await? == begin, "a record is no change of the spec");
    for (user, edit) in [("packer", "finalizer"), ("tenant", "owner"), ("packer", "restart"), ("tenant", "suspend")] {
        let edit = if edit == "finalizer" {
            Write { body: json!([{ "op": "remove", "path": "/metadata/finalizers" }]), ..write(name, edit) }
        } else {
            write(name, edit)
        };
        sent(user, &edit).await?;
        ensure!(recorded(&scene, name).await?.as_deref() == Some(user), "{user}: {}", edit.body);
    }
    let mut forged = policy("new-for-all");
    forged["metadata"]["annotations"] = json!({ RECORD: record_of("tenant"), "note": "kept" });
    request(&clients["platform"], "POST", POLICIES, &forged).await?;
    ensure!(recorded(&scene, "new-for-all").await?.as_deref() == Some("platform"), "a forged record is overwritten");
    who_has_an_odd_name_is_recorded_or_unknown(&scene).await?;
    tools_that_apply_leave_the_record_alone(&scene).await?;
    who_has_lost_a_right_is_found(&scene).await
}

async fn who_has_an_odd_name_is_recorded_or_unknown(scene: &Scene) -> Result<()> {
    let many: Vec<String> = (0..40).map(|number| format!("group-{number}")).collect();
    for (user, groups, expected) in [
        (r#"CORP\jo "the" boss, {1}"#, &[][..], Some(r#"CORP\jo "the" boss, {1}"#)),
        ("jo", &many[..], None),
        (&"j".repeat(257), &[], None),
    ] {
        let mut config = scene.office.world.cluster.client_config(User::Admin);
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some([&["system:masters".to_owned()], groups].concat());
        let path = format!("{POLICIES}?dryRun=All");
        let made = request(&Client::try_from(config)?, "POST", &path, &policy("new-rolling")).await?;
        let record = made["metadata"]["annotations"][RECORD].as_str().context("there is a record")?.to_owned();
        let record: Value = serde_json::from_str(&record).with_context(|| record.clone())?;
        ensure!(record["user"].as_str() == expected, "{user}: {record}");
        ensure!(
            expected.is_none() || record["groups"] == json!(["system:masters", "system:authenticated"]),
            "{record}"
        );
    }
    Ok(())
}

async fn tools_that_apply_leave_the_record_alone(scene: &Scene) -> Result<()> {
    let cluster = &scene.office.world.cluster;
    let folder = tempfile::tempdir()?;
    for (name, flags) in [("new-for-pay", &[][..]), ("new-ranked", &["--server-side"])] {
        let manifest = folder.path().join(format!("{name}.json"));
        std::fs::write(&manifest, policy(name).to_string())?;
        let path = manifest.to_str().context("the path is text")?;
        let arguments = [&["apply", "-f", path][..], flags].concat();
        cluster.kubectl_output(User::Admin, &arguments).await?;
        let first = scene.office.world.get(&format!("{POLICIES}/{name}")).await?.context("it is stored")?;
        ensure!(first["metadata"]["annotations"][RECORD].is_string(), "{first}");
        let said = cluster.kubectl_output(User::Admin, &arguments).await?;
        let second = scene.office.world.get(&format!("{POLICIES}/{name}")).await?.context("it is stored")?;
        ensure!(second["metadata"] == first["metadata"], "{said}: {first} {second}");
        cluster
            .kubectl_output(User::Admin, &["diff", "-f", path].iter().chain(flags).copied().collect::<Vec<_>>())
            .await?;
        scene.restore(name).await?;
    }
    Ok(())
}

async fn who_has_lost_a_right_is_found(scene: &Scene) -> Result<()> {
    let cluster = &scene.office.world.cluster;
    let found = check(cluster, &["--authors"]).await?;
    let of = |found: &Found, policy: &str| {
        let told = found.of(&format!("author of {policy}"));
        told.into_iter().map(|(result, code)| (result.to_owned(), code.to_owned())).collect::<Vec<_>>()
    };
    let told = |result: &str, code: &str| vec![(result.to_owned(), code.to_owned())];
    assert_eq!(of(&found, "new-for-shop"), told("Ok", "-"), "{}", found.printed);
    assert_eq!(of(&found, "new-for-all"), told("Ok", "-"), "{}", found.printed);
    // It is older than what records.
    assert_eq!(of(&found, "pay"), told("Unknown", "SCP0326"), "{}", found.printed);
    cluster.kubectl_output(User::Admin, &["delete", "rolebinding", "tenant-pods", "-n", "shop"]).await?;
    cluster.kubectl_output(User::Admin, &["delete", "clusterrolebinding", "platform-pods"]).await?;
    within(LIMIT, "the rights are gone", || async {
        let refused = scene.dry("tenant", "new-for-shop", "image").await? == "SCP0046";
        Ok(refused && scene.dry("platform", "new-for-all", "image").await? == "SCP0046")
    })
    .await?;
    let found = check(cluster, &["--authors", "--strict"]).await?;
    ensure!(found.code == 1, "{}", found.printed);
    assert_eq!(of(&found, "new-for-shop"), told("Warning", "SCP0336"), "{}", found.printed);
    assert_eq!(of(&found, "new-for-all"), told("Warning", "SCP0336"), "{}", found.printed);
    found.says("tenant wrote it last, and may no longer create pods in namespace `shop`")?;
    found.says("platform wrote it last, and may no longer create pods in all namespaces")?;
    let plain = check(cluster, &[]).await?;
    ensure!(!plain.printed.contains("author of"), "{}", plain.printed);
    let (code, said) = scpol(cluster, &["uninstall", "--yes", "--timeout=0"]).await?;
    for plural in ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/author.scpol.dev");
        ensure!(scene.office.world.get(&path).await?.is_none(), "it is left: {code} {said}");
    }
    Ok(())
}

/// Where the server records nobody, nobody has a record of somebody else ready, and an old one locks nobody out.
async fn a_record_of_somebody_else_is_refused() -> Result<()> {
    for (by, version) in [(By::Webhook, Version::V1_13), (By::Policy, Version::V1_30), (By::Policy, Version::NEWEST)] {
        let scene = Scene::open(by, version).await?;
        within(LIMIT, "the check of records is in effect", || async {
            let write = forge("shop", &record_of("platform"));
            Ok(scene.outcome("tenant", &write, "SCP0049", true).await?.0 == "SCP0049")
        })
        .await?;
        // The server writes a record in this order.
        let own = |user: &str| format!(r#"{{"user":"{user}","groups":["system:authenticated"]}}"#);
        let created = |record: &str| {
            let mut write = write("new-for-shop", "create");
            write.body["metadata"]["annotations"] = json!({ RECORD: record });
            write
        };
        let edited = |record: Option<&str>| {
            let record = record
                .map(|record| json!({ "op": "add", "path": "/metadata/annotations", "value": { RECORD: record } }));
            let edit = json!({ "op": "add", "path": "/spec/suspend", "value": true });
            let body: Vec<_> = [edit].into_iter().chain(record).collect();
            Write { body: json!(body), ..write("new-for-shop", "suspend") }
        };
        let unrecorded = Write { body: json!([{ "op": "remove", "path": "/metadata/annotations" }]), ..edited(None) };
        for (user, write, expected, is_dry) in [
            ("tenant", created(&own("platform")), "SCP0049", false),
            ("tenant", created("tenant"), "SCP0049", false),
            ("tenant", created(&own("tenant")), "ok", false),
            ("packer", write("new-for-shop", "label"), "ok", false),
            ("packer", forge("new-for-shop", &own("packer")), "SCP0049", false),
            ("packer", edited(None), "ok", true),
            ("packer", edited(Some(&own("tenant"))), "ok", true),
            ("packer", edited(Some(&own("platform"))), "SCP0049", false),
            ("packer", edited(Some(&own("packer"))), "ok", true),
            ("tenant", edited(None), "ok", true),
            ("packer", unrecorded, "ok", true),
        ] {
            let (code, message) = scene.outcome(user, &write, expected, is_dry).await?;
            ensure!(code == expected, "{version}: {user}: {}: {code}, not {expected}: {message}", write.body);
            if code == "SCP0049" {
                let text = format!(
                    "SCP0049: the annotation `{RECORD}` does not say that {user} writes this policy: leave the annotation out"
                );
                ensure!(message.ends_with(&text), "{version}: {message}");
            }
        }
        let found = check(&scene.office.world.cluster, &["--authors"]).await?;
        assert_eq!(found.of("authors"), [("Unknown", "SCP0326")], "{version}: {}", found.printed);
    }
    Ok(())
}
