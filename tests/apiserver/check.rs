//! `scpol check`: each check fails under a matching fault, and passes otherwise.

use crate::prelude::*;
use crate::status::report;
use k8s_openapi::ByteString;
use tokio::process::Command;

crate::tests![
    before_the_installation_it_tells_what_the_server_must_be_started_with,
    on_a_current_server_it_tells_which_engines_there_are,
    of_an_installation_each_part_is_told_when_it_is_broken,
    what_is_registered_and_what_waits_is_compared_with_the_policies,
    who_may_not_look_learns_that_it_cannot_be_told,
    a_webhook_needs_a_certificate_that_the_server_trusts_and_somebody_behind_its_service,
    what_policies_share_is_compared_with_what_the_operator_would_register,
];

/// The operator's Deployment.
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/scpol-system/deployments/scpol";

/// The findings of the checks, and the exit code.
pub(crate) struct Found {
    pub(crate) code: i32,
    items: Vec<Value>,
    pub(crate) printed: String,
}

impl Found {
    /// The results and codes of a check.
    pub(crate) fn of(&self, check: &str) -> Vec<(&str, &str)> {
        let items = self.items.iter().filter(|item| item["check"] == check);
        items.map(|item| (item["result"].as_str().unwrap_or("-"), item["code"].as_str().unwrap_or("-"))).collect()
    }

    /// Checks that a check has these results.
    #[track_caller]
    pub(crate) fn has(&self, check: &str, results: &[(&str, &str)]) {
        assert_eq!(self.of(check), results, "{check}: {}", self.printed);
    }

    /// The findings that are not fine, each with a fix.
    fn bad(&self) -> Vec<(&str, &str, &str)> {
        let bad = self.items.iter().filter(|item| !matches!(item["result"].as_str(), Some("Ok" | "Info")));
        bad.map(|item| {
            assert!(item["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "nothing to do: {item}");
            let text = |field: &str| item[field].as_str().unwrap_or("-");
            (text("check"), text("result"), text("code"))
        })
        .collect()
    }

    pub(crate) fn says(&self, text: &str) -> Result<()> {
        ensure!(self.printed.contains(text), "{text:?} is not in {}", self.printed);
        Ok(())
    }
}

async fn check_as(cluster: &ControlPlane, user: User, arguments: &[&str]) -> Result<Found> {
    let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
        .args([&["check", "-o", "json"], arguments].concat())
        .env("KUBECONFIG", cluster.kubeconfig(user))
        .output()
        .await?;
    let [printed, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let report: Value = serde_json::from_str(&printed).unwrap_or_default();
    let items = report["items"].as_array().cloned().unwrap_or_default();
    Ok(Found { code: output.status.code().unwrap_or(-1), items, printed: printed + &errors })
}

pub(crate) async fn check(cluster: &ControlPlane, arguments: &[&str]) -> Result<Found> {
    check_as(cluster, User::Admin, arguments).await
}

impl World {
    /// Runs `scpol check`, in which a check must have these results.
    pub(crate) async fn checks(&self, name: &str, results: &[(&str, &str)]) -> Result<Found> {
        let found = check(&self.cluster, &[]).await?;
        found.has(name, results);
        Ok(found)
    }

    /// Writes the status of the operator's Deployment as the controllers of a real cluster would.
    pub(crate) async fn replicas_ready(&self, ready: i64) -> Result<()> {
        let status = [("replicas", 2), ("readyReplicas", ready)];
        let status =
            status.map(|(field, value)| json!({ "op": "add", "path": format!("/status/{field}"), "value": value }));
        let status = json!(status);
        self.patch(&format!("{DEPLOYMENT}/status"), &status).await.map(drop)
    }
}

async fn before_the_installation_it_tells_what_the_server_must_be_started_with() -> Result<()> {
    let whole = ControlPlane::builder(Version::V1_13).start().await?;
    let found = check(&whole, &["--pre"]).await?;
    assert_eq!((found.code, found.bad()), (0, vec![]), "{}", found.printed);
    found.has("engine Initializer", &[("Ok", "-")]);
    found.says("a trial create kept its list of initializers")?;
    found.has("engine MutatingAdmissionPolicy", &[("Info", "-")]);
    let stored = whole.kubectl_output(User::Admin, &["get", "configmaps", "-n", "default", "-o", "name"]).await?;
    assert_eq!(stored, "", "nothing was stored");
    let found = check_as(&whole, User::Bystander, &["--pre"]).await?;
    found.has("your rights", &[("Problem", "SCP0304")]);
    found.has("your rights to grant", &[("Problem", "SCP0304")]);
    assert_eq!((found.code, found.of("CRD")), (1, vec![("Unknown", "SCP0326")]));
    found.says("create/get/initialize/patch deployments.apps")?;
    let found = check(&whole, &["--engine", "Sidecar"]).await?;
    assert_eq!(found.code, 2);
    found.says("`Sidecar` is no engine; write `Initializer`, ")?;
    drop(whole);

    let no_plugin = ControlPlane::builder(Version::V1_13).disable_initializers_plugin().start().await?;
    let found = check(&no_plugin, &["--pre", "--engine", "initializer"]).await?;
    assert_eq!((found.code, found.bad()), (1, vec![("engine Initializer", "Problem", "SCP0303")]), "{}", found.printed);
    found
        .says("--enable-admission-plugins=Initializers --runtime-config=admissionregistration.k8s.io/v1alpha1=true")?;
    drop(no_plugin);

    let no_api = ControlPlane::builder(Version::V1_13).disable_initializers_api().start().await?;
    let found = check(&no_api, &["--pre", "--engine", "Initializer"]).await?;
    assert_eq!((found.code, found.bad()), (1, vec![("engine Initializer", "Problem", "SCP0302")]), "{}", found.printed);
    Ok(())
}

async fn on_a_current_server_it_tells_which_engines_there_are() -> Result<()> {
    let cluster = ControlPlane::builder(Version::NEWEST).start().await?;
    let found = check(&cluster, &["--pre"]).await?;
    assert_eq!((found.code, found.bad()), (0, vec![]), "{}", found.printed);
    found.has("engine Initializer", &[("Info", "-")]);
    found.has("engine MutatingAdmissionPolicy", &[("Ok", "-")]);
    found.has("engine Webhook", &[("Ok", "-")]);
    let found = check(&cluster, &["--pre", "--engine", "Initializer"]).await?;
    assert_eq!((found.code, found.bad()), (1, vec![("engine Initializer", "Problem", "SCP0301")]), "{}", found.printed);
    let found = check(&cluster, &[]).await?;
    let expected = [
        ("CRD", "Problem", "SCP0327"),
        ("operator", "Problem", "SCP0327"),
        ("leader", "Problem", "SCP0329"),
        ("rights", "Problem", "SCP0304"),
        ("rights for MutatingAdmissionPolicy", "Problem", "SCP0304"),
    ];
    assert_eq!((found.code, found.bad()), (1, expected.to_vec()), "{}", found.printed);
    Ok(())
}

async fn of_an_installation_each_part_is_told_when_it_is_broken() -> Result<()> {
    let world = World::new().await?;
    world.install_all().await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    world.replicas_ready(2).await?;
    let found = check(&world.cluster, &["--strict"]).await?;
    assert_eq!((found.code, found.bad()), (0, vec![]), "{}", found.printed);
    for check in [
        "server",
        "CRD",
        "operator",
        "leader",
        "release",
        "rights",
        "rights for Initializer",
        "registrations",
        "policies",
        "waiting objects",
    ] {
        found.has(check, &[("Ok", "-")]);
    }

    the_deployment_is_broken_bit_by_bit(&world).await?;

    operator.signal("STOP")?;
    let found = world.checks("leader", &[("Problem", "SCP0329")]).await?;
    found.says(&format!("has not renewed it for {}", lease_duration().replace('s', " s")))?;
    operator.signal("CONT")?;
    world.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/scpol-initializer").await?;
    world.operator_may("initialize", "deployments.apps", false).await?;
    let found = world.checks("rights for Initializer", &[("Problem", "SCP0304")]).await?;
    found.has("rights", &[("Ok", "-")]);
    found.says("the ServiceAccount `scpol` may not: ")?;
    world.cluster.apply_file(&file("config/install-legacy.yaml")).await?;
    world.operator_may("initialize", "deployments.apps", true).await?;

    world.policy("elsewhere", json!({ "targets": [{ "group": "example.io", "resource": "things" }], "template": sidecar("x")["template"] })).await?;
    wait_condition(&world.cluster, "elsewhere", "Ready", "False", "TargetNotServed").await?;
    world.checks("policy elsewhere", &[("Problem", "SCP0027")]).await?;
    world.delete_policy("elsewhere").await?;

    let definition = "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions/sidecarpolicies.scpol.dev";
    let older =
        json!([{ "op": "remove", "path": "/spec/validation/openAPIV3Schema/properties/spec/properties/validations" }]);
    world.patch(definition, &older).await?;
    let found = world.checks("CRD", &[("Problem", "SCP0328")]).await?;
    found.says("it lacks `spec.validations`")?;
    Ok(())
}

/// One replica is missing, then both are and the image is of another release, then the Deployment is deleted.
async fn the_deployment_is_broken_bit_by_bit(world: &World) -> Result<()> {
    world.replicas_ready(1).await?;
    let found = check(&world.cluster, &[]).await?;
    assert_eq!((found.code, found.bad()), (0, vec![("operator", "Warning", "SCP0329")]), "{}", found.printed);
    assert_eq!(check(&world.cluster, &["--strict"]).await?.code, 1);
    world.replicas_ready(0).await?;
    let image = json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "sidecar-policy:99.0.0" }]);
    world.patch(DEPLOYMENT, &image).await?;
    let found = check(&world.cluster, &[]).await?;
    let expected = [("operator", "Problem", "SCP0329"), ("release", "Warning", "SCP0328")];
    assert_eq!((found.code, found.bad()), (1, expected.to_vec()), "{}", found.printed);
    world.delete(DEPLOYMENT).await?;
    let found = check(&world.cluster, &[]).await?;
    assert_eq!(found.bad(), [("operator", "Warning", "SCP0327")], "a replica works from elsewhere: {}", found.printed);
    Ok(())
}

async fn what_is_registered_and_what_waits_is_compared_with_the_policies() -> Result<()> {
    let world = World::new().await?;
    world.create(DEPLOYMENTS, &deployment("before")).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    world.policy("log", sidecar("log")).await?;
    in_force(&world.cluster, "envoy").await?;
    in_force(&world.cluster, "log").await?;
    world.status("envoy", "missed", 1).await?;
    // From here on no operator repairs anything.
    operator.kill().await?;
    world.create_async(DEPLOYMENTS, &waiting("ours", &["envoy.scpol.dev"])).await?;
    world.create_async(DEPLOYMENTS, &waiting("foreign", &["x.other.io", "envoy.scpol.dev"])).await?;
    let found = world.checks("registrations", &[("Ok", "-")]).await?;
    found.has("workloads", &[("Warning", "SCP0114")]);
    assert_eq!(found.of("waiting objects"), [("Ok", "-")], "they are young: {}", found.printed);

    let rename = json!([{ "op": "replace", "path": "/initializers/0/rules/0/resources/0", "value": "daemonsets" }]);
    world.patch(&format!("{CONFIGURATIONS}/scpol-envoy"), &rename).await?;
    world.checks("registrations", &[("Problem", "SCP0324")]).await?;
    world.delete(&format!("{CONFIGURATIONS}/scpol-envoy")).await?;
    world.checks("registrations", &[("Problem", "SCP0306")]).await?;
    world
        .patch(&format!("{CONFIGURATIONS}/scpol-log"), &json!([{ "op": "remove", "path": "/metadata/labels" }]))
        .await?;
    let found = check(&world.cluster, &[]).await?;
    let codes = found.of("registrations");
    assert_eq!(codes, [("Problem", "SCP0306"), ("Problem", "SCP0307"), ("Warning", "SCP0308")], "{}", found.printed);
    let labels = json!({ "app.kubernetes.io/managed-by": "scpol" });
    let orphan = json!({ "apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration", "metadata": { "name": "scpol-gone", "labels": labels } });
    request(&world.admin, "POST", CONFIGURATIONS, &orphan).await?;
    let found = check(&world.cluster, &[]).await?;
    assert!(found.of("registrations").contains(&("Problem", "SCP0330")), "{}", found.printed);
    found.says("no policy wants InitializerConfiguration scpol-gone")?;

    // The server gives up a create after 30 s. Before that, waiting is no fault.
    within(LIMIT * 2, "what waits has waited too long", || async {
        Ok(check(&world.cluster, &[]).await?.of("waiting objects") == [("Problem", "SCP0310"), ("Warning", "SCP0310")])
    })
    .await
}

async fn who_may_not_look_learns_that_it_cannot_be_told() -> Result<()> {
    let world = World::new().await?;
    world.install_all().await?;
    world.replicas_ready(2).await?;
    let found = check_as(&world.cluster, User::Creator, &["--engine", "Initializer"]).await?;
    assert_eq!(
        found.of("engine Initializer"),
        [("Ok", "-")],
        "the refusal itself shows that the plugin is on: {}",
        found.printed
    );
    for check in ["CRD", "leader", "rights", "policies", "waiting objects"] {
        found.has(check, &[("Unknown", "SCP0326")]);
    }
    assert_eq!(found.code, 2, "{}", found.printed);
    found.says("checks could not be made: see above")
}

/// `text` as Secrets and `caBundle` hold it.
fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

/// The webhook that the operator would register for a policy on pods, with `ca` as its authority.
fn configuration(ca: &str) -> Value {
    let webhook = json!({
        "name": "inject.scpol.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
        "clientConfig": { "service": { "name": "scpol", "namespace": "scpol-system" }, "caBundle": base64(ca) },
        "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
        "namespaceSelector": { "matchLabels": { "nowhere": "true" } },
    });
    let labels = json!({ "app.kubernetes.io/managed-by": "scpol" });
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": "scpol-pods", "labels": labels }, "webhooks": [webhook] })
}

async fn a_webhook_needs_a_certificate_that_the_server_trusts_and_somebody_behind_its_service() -> Result<()> {
    const WEBHOOK: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    let [ca, ca_key, crt, key] = certificate(&NAMES, 2090)?;
    let [other, ..] = certificate(&NAMES, 2090)?;
    world
        .policy(
            "pods",
            json!({ "targets": [{ "group": "", "resource": "pods" }], "template": sidecar("x")["template"] }),
        )
        .await?;
    assert_eq!(check(&world.cluster, &[]).await?.of("certificate"), [], "no webhook, no certificate");
    request(&world.admin, "POST", WEBHOOK, &configuration(&ca)).await?;
    let found = world.checks("certificate", &[("Warning", "SCP0322")]).await?;
    found.has("registrations", &[("Problem", "SCP0320")]);

    let secret = secret([&ca, &ca_key, &crt, &key].map(String::as_str));
    request(&world.admin, "POST", SECRETS, &secret).await?;
    let subset = json!({ "addresses": [{ "ip": "10.0.0.1" }], "ports": [{ "port": 8443 }] });
    let endpoints =
        json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "scpol" }, "subsets": [subset] });
    request(&world.admin, "POST", "/api/v1/namespaces/scpol-system/endpoints", &endpoints).await?;
    let found = world.checks("certificate", &[("Ok", "-")]).await?;
    found.has("registrations", &[("Ok", "-")]);

    let bundle = |bundle: &str| json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": base64(bundle) }]);
    world.patch(&format!("{WEBHOOK}/scpol-pods"), &bundle(&other)).await?;
    world.checks("certificate", &[("Ok", "-"), ("Problem", "SCP0322")]).await?;
    world.patch(&format!("{WEBHOOK}/scpol-pods"), &bundle(&(other + &ca))).await?;
    assert_eq!(check(&world.cluster, &[]).await?.of("certificate"), [("Ok", "-")], "both, while it is renewed");
    world.patch(&format!("{SECRETS}/scpol-webhook"), &json!([{ "op": "remove", "path": "/data/tls.key" }])).await?;
    let found = check(&world.cluster, &[]).await?;
    assert_eq!(found.of("certificate").first(), Some(&("Problem", "SCP0322")), "{}", found.printed);
    found.says("the Secret `scpol-webhook` has no `tls.key`")?;

    // An earlier Secret has no information about files.
    let container = json!({ "name": "scpol", "image": "scpol:0.1.0", "args": ["run", "--webhook-cert-dir=/certs"] });
    let pods = json!({ "metadata": { "labels": { "app": "scpol" } }, "spec": { "containers": [container] } });
    let spec = json!({ "selector": { "matchLabels": { "app": "scpol" } }, "template": pods });
    let deployment =
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "scpol" }, "spec": spec });
    request(&world.admin, "POST", "/apis/apps/v1/namespaces/scpol-system/deployments", &deployment).await?;
    let found = world.checks("certificate", &[("Info", "-")]).await?;
    found.says("`--webhook-cert-dir`")
}

/// Edits of what policies share: the resource, the name of the object, the JSON Patch, and the message of the check.
fn edits_by_hand() -> [(&'static str, &'static str, Value, &'static str); 4] {
    [
        (
            "mutatingwebhookconfigurations",
            "scpol-deployments.apps",
            json!([{ "op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail" }]),
            "MutatingWebhookConfiguration scpol-deployments.apps is not as its policies want it",
        ),
        (
            "mutatingadmissionpolicies",
            "scpol-pods",
            json!([{ "op": "add", "path": "/spec/matchConditions", "value": [{ "name": "never", "expression": "false" }] }]),
            "MutatingAdmissionPolicy scpol-pods is not as its policies want it",
        ),
        (
            "mutatingadmissionpolicybindings",
            "scpol-pods",
            json!([{ "op": "replace", "path": "/spec/policyName", "value": "another" }]),
            "MutatingAdmissionPolicyBinding scpol-pods is not as its policies want it",
        ),
        (
            "validatingadmissionpolicies",
            "scpol-deployments.apps",
            json!([{ "op": "replace", "path": "/spec/failurePolicy", "value": "Ignore" }]),
            "ValidatingAdmissionPolicy scpol-deployments.apps is not as its policies want it",
        ),
    ]
}

async fn what_policies_share_is_compared_with_what_the_operator_would_register() -> Result<()> {
    const ROOT: &str = "/apis/admissionregistration.k8s.io/v1";
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    let spec = |engine: &str, group: &str, resource: &str| {
        let targets = json!([{ "group": group, "resource": resource }]);
        json!({ "engine": engine, "targets": targets, "failurePolicy": "Fail", "template": sidecar("x")["template"] })
    };
    world.policy("hooked", spec("Webhook", "apps", "deployments")).await?;
    world.policy("native", spec("MutatingAdmissionPolicy", "", "pods")).await?;
    let judging = json!([{ "expression": "has(object.spec)" }]);
    let judging = json!({ "targets": [{ "group": "apps", "resource": "statefulsets" }], "validations": judging });
    world.policy("judging", judging).await?;
    for name in ["hooked", "native", "judging"] {
        in_force(&world.cluster, name).await?;
        let (code, told) = report(&world, &[name]).await?;
        assert_eq!(code, 0, "{told}");
    }
    // From here on nobody repairs anything.
    let found = world.checks("registrations", &[("Ok", "-")]).await?;
    found.has("certificate", &[("Ok", "-")]);
    operator.signal("STOP")?;
    // Its endpoint is there, and its port is open.
    let found = world.checks("registrations", &[("Problem", "SCP0320")]).await?;
    found
        .says("MutatingWebhookConfiguration scpol-deployments.apps: the API server gets no answer from the webhook")?;
    for (resource, name, edit, told) in edits_by_hand() {
        let path = format!("{ROOT}/{resource}/{name}");
        let before = world.get(&path).await?.unwrap_or_default();
        world.patch(&path, &edit).await?;
        let found = world.checks("registrations", &[("Problem", "SCP0324"), ("Problem", "SCP0320")]).await?;
        found.says(told)?;
        let part = if before["webhooks"].is_null() { "spec" } else { "webhooks" };
        world.patch(&path, &json!([{ "op": "replace", "path": format!("/{part}"), "value": before[part] }])).await?;
    }
    let webhook = format!("{ROOT}/mutatingwebhookconfigurations/scpol-deployments.apps");
    let bundle = json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }]);
    world.patch(&webhook, &bundle).await?;
    world.checks("certificate", &[("Ok", "-"), ("Problem", "SCP0322")]).await?;
    world.delete(&webhook).await?;
    let found = world.checks("registrations", &[("Problem", "SCP0306")]).await?;
    found.says("policy `hooked` is said to be in effect, and there is no mutatingwebhookconfigurations")?;
    operator.signal("CONT")?;
    wait_condition(&world.cluster, "hooked", "Ready", "False", "RemovedByHand").await?;
    world.checks("policy hooked", &[("Problem", "SCP0306")]).await?;
    Ok(())
}
