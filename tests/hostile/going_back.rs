//! Policies with a field that the operator does not know: a newer release wrote it, or somebody misspelled one where the server keeps
//! unknown fields. Under `failurePolicy: Fail` nothing gets past such a policy, and nobody else notices it.

use crate::support::{LIMIT, Operator, in_force, policies, wait_condition, within};
use crate::world::{DEPLOYMENTS, World, containers, deployment};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, Version, free_port};
use serde_json::{Value, json};

crate::tests![
    by_initializer_what_is_not_understood_refuses_and_harms_no_other_on_1_13,
    by_webhook_what_is_not_understood_refuses_and_harms_no_other_on_1_30,
    by_admission_policy_what_is_not_understood_refuses_and_harms_no_other_on_1_37,
    the_definition_of_an_older_release_hides_its_unknown_fields_on_1_37,
];

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sidecarpolicies.scpol.dev";
/// Where that definition can say that the server keeps unknown fields, as that of a newer release keeps its own.
const KEEPS: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-preserve-unknown-fields";

/// A server that keeps the fields of newer releases, and the operator's flags.
struct Scene {
    world: World,
    flags: Vec<String>,
    engine: &'static str,
}

impl Scene {
    async fn new(version: Version, engine: &'static str) -> Result<Self> {
        let world = World::with(ControlPlane::builder(version)).await?;
        if !version.has_initializers() {
            world.patch(DEFINITION, &json!([{ "op": "add", "path": KEEPS, "value": true }])).await?;
        }
        let listen = format!("127.0.0.1:{}", free_port());
        let url = format!("https://{listen}");
        let flags = ["--webhook-listen", &listen, "--webhook-url", &url].map(str::to_owned).to_vec();
        Ok(Self { world, flags, engine })
    }

    async fn operator(&self) -> Result<Operator> {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        Operator::ready(&self.world.cluster, &flags).await
    }

    /// A policy for the Deployments with the label `app: NAME`.
    fn spec(&self, name: &str, failure: &str, image: &str) -> Value {
        json!({
            "engine": self.engine, "failurePolicy": failure, "labelSelector": { "matchLabels": { "app": name } },
            "template": { "containers": [{ "name": name, "image": image }] },
        })
    }

    async fn policy(&self, name: &str, failure: &str) -> Result<()> {
        self.world.policy(name, self.spec(name, failure, "x:1")).await?;
        in_force(&self.world.cluster, name).await
    }

    /// Writes a field of a newer release into the spec of a policy.
    async fn write_newer(&self, name: &str) -> Result<()> {
        // The server needs a moment to follow the change of the definition.
        within(LIMIT, "the server keeps the field", || async {
            self.world.edit_policy(name, json!({ "selectedByMoon": "full" })).await?;
            Ok(policies(&self.world.cluster).get(name).await?.data["spec"]["selectedByMoon"] == "full")
        })
        .await
    }

    /// Creates a Deployment with the label `app: APP`. Returns its sidecars.
    async fn create(&self, app: &str) -> Result<Vec<String>> {
        let mut object = deployment(&format!("{app}-{}", free_port()));
        object["metadata"]["labels"]["app"] = json!(app);
        Ok(containers(&self.world.create_promptly(DEPLOYMENTS, &object).await?).split_off(1))
    }

    async fn is_injected(&self, app: &str) -> Result<bool> {
        Ok(self.create(app).await.is_ok_and(|sidecars| sidecars == [app]))
    }

    /// Waits until the policy refuses, as its conditions say.
    async fn refuses(&self, name: &str) -> Result<()> {
        let cluster = &self.world.cluster;
        for (type_, status) in [("Ready", "False"), ("Accepted", "False"), ("Programmed", "True"), ("Stalled", "True")]
        {
            wait_condition(cluster, name, type_, status, "NotUnderstood").await?;
        }
        let accepted = wait_condition(cluster, name, "Accepted", "False", "NotUnderstood").await?;
        ensure!(accepted["message"].to_string().contains("spec.selectedByMoon"), "no field is named: {accepted}");
        let refused = self.create(name).await.err().context("a Deployment got past a policy that refuses")?;
        ensure!(format!("{refused:#}").contains(name), "the message names no policy: {refused:#}");
        ensure!(self.create("other").await?.is_empty(), "what the policy does not select is concerned");
        Ok(())
    }

    /// Waits until there is no registration for the policy `name`, and its Deployments pass.
    async fn passes(&self, name: &str) -> Result<()> {
        let passes = || async { Ok(self.create(name).await.is_ok_and(|sidecars| sidecars.is_empty())) };
        within(LIMIT, &format!("Deployments of `{name}` pass"), passes).await
    }

    /// The object that injects.
    fn registered(&self) -> (String, &'static str, Value) {
        let at = |path: &str| format!("/apis/admissionregistration.k8s.io/{path}");
        match self.engine {
            "Initializer" => (
                at("v1alpha1/initializerconfigurations/scpol-strict"),
                "/initializers/0/rules/0/resources",
                json!(["daemonsets"]),
            ),
            "Webhook" => (
                at("v1/mutatingwebhookconfigurations/scpol-deployments.apps"),
                "/webhooks/0/clientConfig/caBundle",
                json!("LS0tLS1CRUdJTg=="),
            ),
            _ => (
                at("v1/mutatingadmissionpolicies/scpol-deployments.apps"),
                "/spec/matchConstraints/resourceRules/0/resources",
                json!(["daemonsets"]),
            ),
        }
    }

    /// Edits by hand what is registered, and waits until it is repaired.
    async fn is_repaired(&self) -> Result<()> {
        let (path, pointer, odd) = self.registered();
        let part = || async {
            let object = self.world.get(&path).await?.context("it is registered")?;
            Ok::<_, anyhow::Error>(object.pointer(pointer).cloned().unwrap_or_default())
        };
        let before = part().await?;
        self.world.patch(&path, &json!([{ "op": "replace", "path": pointer, "value": odd }])).await?;
        within(LIMIT, "it is repaired", || async { Ok(part().await? == before) }).await
    }
}

async fn what_is_not_understood_refuses_and_harms_no_other(version: Version, engine: &'static str) -> Result<()> {
    let scene = Scene::new(version, engine).await?;
    let (world, cluster) = (&scene.world, &scene.world.cluster);
    let operator = scene.operator().await?;
    for (name, failure) in
        [("strict", "Fail"), ("lenient", "Ignore"), ("beside", "Fail"), ("paused", "Fail"), ("gone", "Fail")]
    {
        scene.policy(name, failure).await?;
    }
    ensure!(scene.is_injected("strict").await?, "it does not inject");
    for name in ["strict", "lenient"] {
        scene.write_newer(name).await?;
    }
    scene.refuses("strict").await?;
    // Under `Ignore` a failure lets the workload through.
    wait_condition(cluster, "lenient", "Accepted", "False", "UnknownField").await?;
    scene.passes("lenient").await?;
    // A misspelled field of a policy that was never in effect is an error and nothing else.
    let mut typo = scene.spec("typo", "Fail", "x:1");
    typo["namespacs"] = json!(["shop"]);
    world.policy("typo", typo).await?;
    wait_condition(cluster, "typo", "Accepted", "False", "UnknownField").await?;
    scene.passes("typo").await?;

    // A process that has never seen the earlier form knows the same.
    operator.kill().await?;
    let operator = scene.operator().await?;
    scene.refuses("strict").await?;
    scene.passes("lenient").await?;
    scene.passes("typo").await?;

    // The neighbours are as free as ever, and what is registered is repaired.
    world
        .edit_policy("beside", json!({ "template": { "containers": [{ "name": "beside", "image": "x:2" }] } }))
        .await?;
    in_force(cluster, "beside").await?;
    ensure!(scene.is_injected("beside").await?, "a policy beside it does not inject");
    world.edit_policy("paused", json!({ "suspend": true })).await?;
    scene.passes("paused").await?;
    world.delete_policy("gone").await?;
    scene.passes("gone").await?;
    scene.is_repaired().await?;
    // Servers follow registrations with a delay.
    within(LIMIT, "it refuses again", || async { Ok(scene.create("strict").await.is_err()) }).await?;
    scene.refuses("strict").await?;

    // The ways out: suspend it, or remove the field.
    world.edit_policy("strict", json!({ "suspend": true })).await?;
    scene.passes("strict").await?;
    world.edit_policy("strict", json!({ "suspend": null, "selectedByMoon": null })).await?;
    in_force(cluster, "strict").await?;
    within(LIMIT, "it injects again", || scene.is_injected("strict")).await?;
    ensure!(operator.metric("scpol_panics_total").await? == 0.0, "{}", operator.log());
    operator.kill().await
}

async fn by_initializer_what_is_not_understood_refuses_and_harms_no_other_on_1_13() -> Result<()> {
    what_is_not_understood_refuses_and_harms_no_other(Version::V1_13, "Initializer").await
}

async fn by_webhook_what_is_not_understood_refuses_and_harms_no_other_on_1_30() -> Result<()> {
    what_is_not_understood_refuses_and_harms_no_other(Version::V1_30, "Webhook").await
}

async fn by_admission_policy_what_is_not_understood_refuses_and_harms_no_other_on_1_37() -> Result<()> {
    what_is_not_understood_refuses_and_harms_no_other(Version::NEWEST, "MutatingAdmissionPolicy").await
}

/// So the policy is another one without a word: the page about upgrades says to keep the newer definition.
async fn the_definition_of_an_older_release_hides_its_unknown_fields_on_1_37() -> Result<()> {
    let scene = Scene::new(Version::NEWEST, "MutatingAdmissionPolicy").await?;
    let operator = scene.operator().await?;
    scene.policy("strict", "Fail").await?;
    scene.write_newer("strict").await?;
    scene.refuses("strict").await?;
    scene.world.patch(DEFINITION, &json!([{ "op": "remove", "path": KEEPS }])).await?;
    within(LIMIT, "the server hides the field", || async {
        Ok(policies(&scene.world.cluster).get("strict").await?.data["spec"]["selectedByMoon"].is_null())
    })
    .await?;
    operator.kill().await?;
    let operator = scene.operator().await?;
    in_force(&scene.world.cluster, "strict").await?;
    within(LIMIT, "it injects", || scene.is_injected("strict")).await?;
    operator.kill().await
}
