//! The definitions on their servers: they are accepted, listed, explained and enforced. Our own rules reject everything
//! that a server rejects.

use crate::policies;
use crate::prelude::*;
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use sidecar_policy::api::rules::{self, Rules, Violation};
use sidecar_policy::api::v1alpha1::SidecarPolicySpec;

crate::tests![the_definition_for_old_servers_works_on_one, the_definition_for_current_servers_works_on_one,];

const POLICIES: &str = "/apis/scpol.dev/v1alpha1/sidecarpolicies";
/// The number of concurrent requests.
const PARALLEL: usize = 8;

/// A server with only the definition, applied as users do.
async fn server(version: Version) -> Result<ControlPlane> {
    let cluster = ControlPlane::builder(version).start().await?;
    let name =
        if version.has(Feature::RegistrationV1) { "sidecarpolicies.yaml" } else { "sidecarpolicies.v1beta1.yaml" };
    let path = file("crds").join(name).display().to_string();
    let apply = ["apply", "--validate=false", "-f", &path];
    let applied = cluster.kubectl_output(User::Admin, &apply).await?;
    assert!(applied.contains("created"), "{applied}");
    let admin = cluster.admin();
    let group = version.registration();
    let address = format!("/apis/apiextensions.k8s.io/{group}/customresourcedefinitions/sidecarpolicies.scpol.dev");
    within(LIMIT, "the definition is established, and nothing is wrong with it", || async {
        let definition = request(&admin, "GET", &address, &Value::Null).await?;
        let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut holding: Vec<_> = conditions
            .iter()
            .filter(|condition| condition["status"] == "True")
            .filter_map(|condition| condition["type"].as_str())
            .collect();
        holding.sort_unstable();
        Ok(holding == ["Established", "NamesAccepted"])
    })
    .await?;
    within(LIMIT, "policies are served", || async { Ok(request(&admin, "GET", POLICIES, &Value::Null).await.is_ok()) })
        .await?;
    let again = cluster.kubectl_output(User::Admin, &apply).await?;
    assert!(again.contains("unchanged"), "{again}");
    Ok(cluster)
}

fn judged(object: &Value) -> Result<SidecarPolicySpec, Vec<Violation>> {
    let spec = rules::decode(&object["spec"])?;
    let violations = rules::check(object["metadata"]["name"].as_str().unwrap_or_default(), &spec, &Rules::default());
    if violations.is_empty() { Ok(spec) } else { Err(violations) }
}

/// The rejections of `objects` in dry runs. Unknown fields are rejected, as kubectl requests.
async fn refusals(client: &Client, objects: &[&Value]) -> Result<Vec<Option<String>>> {
    let requests = objects.iter().map(|object| async move {
        match request(client, "POST", &format!("{POLICIES}?dryRun=All&fieldValidation=Strict"), object).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => Ok(Some(status.message.clone())),
            Err(error) => Err(error.into()),
        }
    });
    futures::stream::iter(requests).buffered(PARALLEL).try_collect().await
}

async fn valid_policies_are_stored_and_mean_the_same(cluster: &ControlPlane) -> Result<()> {
    for case in policies::valid() {
        let stored =
            request(&cluster.admin(), "POST", POLICIES, &case.object).await.with_context(|| case.name.clone())?;
        assert_eq!(judged(&stored), judged(&case.object), "{}", case.name);
        assert_eq!(
            stored["spec"]["template"], case.object["spec"]["template"],
            "{}: nothing of the template is lost",
            case.name
        );
    }
    Ok(())
}

async fn invalid_policies_are_refused_or_told_by_us(cluster: &ControlPlane) -> Result<()> {
    let version = cluster.version().short();
    let cases = policies::invalid();
    let objects: Vec<_> = cases.iter().map(|case| &case.object).collect();
    let refusals = refusals(&cluster.admin(), &objects).await?;
    let mut wrong = Vec::new();
    for (case, refusal) in cases.iter().zip(refusals) {
        let is_to_be_stored = case.stored_by.contains(&version);
        match refusal {
            Some(refusal) if is_to_be_stored => {
                wrong.push(format!("{} ({:?}) is refused: {refusal}", case.name, case.expected))
            }
            None if !is_to_be_stored => wrong.push(format!("{} ({:?}) is stored", case.name, case.expected)),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "on {version}\n{}", wrong.join("\n"));
    Ok(())
}

async fn damaged_policies_are_refused(cluster: &ControlPlane) -> Result<()> {
    let damaged = policies::damaged();
    let objects: Vec<_> = damaged.iter().map(|case| &case.object).collect();
    let refusals = refusals(&cluster.admin(), &objects).await?;
    let stored: Vec<_> =
        damaged.iter().zip(refusals).filter(|(_, refusal)| refusal.is_none()).map(|(case, _)| &case.what).collect();
    eprintln!(
        "{} of {} damaged policies are refused by {}",
        damaged.len() - stored.len(),
        damaged.len(),
        cluster.version().short()
    );
    assert!(stored.is_empty(), "{stored:#?}");
    Ok(())
}

/// Replaces every part of every valid policy by values of every kind. Our rules reject all that the server rejects.
async fn whatever_the_server_refuses_we_refuse(cluster: &ControlPlane) -> Result<()> {
    // Null is absent for us, as on servers that prune it.
    let has_null = |object: &Value| without_nulls(object) != *object;
    let mutants: Vec<_> = policies::valid().iter().flat_map(|case| policies::mutants(&case.object)).collect();
    let valid_to_us: Vec<_> = mutants.iter().filter(|mutant| judged(mutant).is_ok() && !has_null(mutant)).collect();
    assert!(valid_to_us.len() > 100, "{} of {} mutants are valid", valid_to_us.len(), mutants.len());
    for (mutant, refusal) in valid_to_us.iter().zip(refusals(&cluster.admin(), &valid_to_us).await?) {
        assert_eq!(refusal, None, "valid to us: {}", mutant["spec"]);
    }
    Ok(())
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

async fn status_is_written_apart_and_shown_in_columns(cluster: &ControlPlane) -> Result<()> {
    let status = json!({
        "conditions": [{ "type": "Ready", "status": "True", "reason": "Programmed", "message": "SCP0002: in effect",
            "lastTransitionTime": "2020-02-02T02:02:02Z", "observedGeneration": 1 },
            { "type": "Programmed", "status": "False", "reason": "Suspended", "message": "SCP0003: suspended",
            "lastTransitionTime": "2020-02-02T02:02:02Z", "observedGeneration": 1 }],
        "observedGeneration": 1, "engine": "Initializer", "initializerName": "minimal.scpol.dev",
        "matched": 3, "injected": 2, "edited": 0, "outdated": 1, "missed": 0, "failed": 0, "pending": 0,
        "updated": 1, "ready": 3, "currentRevision": "0123456789abcdef", "updateRevision": "fedcba9876543210", "halted": true,
    });
    let admin = cluster.admin();
    let before = request(&admin, "GET", &format!("{POLICIES}/minimal"), &Value::Null).await?;
    let patch = json!([{ "op": "add", "path": "/status", "value": status }, { "op": "add", "path": "/spec/suspend", "value": true }]);
    request(&admin, "PATCH", &format!("{POLICIES}/minimal/status"), &patch).await?;
    let after = request(&admin, "GET", &format!("{POLICIES}/minimal"), &Value::Null).await?;
    assert_eq!(after["status"], status);
    assert_eq!(
        (&after["spec"], &after["metadata"]["generation"]),
        (&before["spec"], &before["metadata"]["generation"]),
        "only status is written"
    );

    let table = |arguments: &'static [&'static str]| async {
        cluster.kubectl_output(User::Admin, arguments).await.map(|text| rows(&text))
    };
    let header = ["NAME", "READY", "PROGRAMMED", "REASON", "ENGINE", "MATCHED", "INJECTED", "AGE"];
    for name in ["sidecarpolicies", "sidecarpolicy", "scpol", "sidecars"] {
        let text = cluster.kubectl_output(User::Admin, &["get", name]).await?;
        assert_eq!(rows(&text)[0], header, "kubectl get {name}");
    }
    assert_eq!(
        table(&["get", "scpol", "minimal"]).await?[1][..7],
        ["minimal", "True", "False", "Programmed", "Initializer", "3", "2"]
    );
    let wide = table(&["get", "scpol", "minimal", "-o", "wide"]).await?;
    assert_eq!(wide[0][7..], ["EDITED", "UPDATED", "AGE", "MESSAGE", "INITIALIZER"]);
    assert_eq!(wide[1][7..9], ["0", "1"]);
    assert_eq!(wide[1][10..].join(" "), "SCP0002: in effect minimal.scpol.dev");
    Ok(())
}

fn rows(table: &str) -> Vec<Vec<String>> {
    table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Checks the source of `kubectl explain`.
async fn every_field_is_explained(cluster: &ControlPlane) -> Result<()> {
    let admin = cluster.admin();
    let address = "/openapi/v3/apis/scpol.dev/v1alpha1";
    within(LIMIT, "the documentation is published", || async {
        Ok(request(&admin, "GET", address, &Value::Null).await.is_ok())
    })
    .await?;
    let published = request(&admin, "GET", address, &Value::Null).await?;
    let policy = &published["components"]["schemas"]["dev.scpol.v1alpha1.SidecarPolicy"]["properties"];
    let mut fields = Vec::new();
    collect(&policy["spec"], &mut fields);
    assert!(fields.len() > 60, "{} fields", fields.len());
    let explained = cluster.kubectl_output(User::Admin, &["explain", "sidecarpolicies.spec", "--recursive"]).await?;
    for (name, description) in fields {
        assert!(!description.is_empty(), "{name} has no description");
        assert!(explained.contains(&name), "{name} is not explained");
    }
    let one = cluster.kubectl_output(User::Admin, &["explain", "scpol.spec.template.containers.name"]).await?;
    assert!(one.contains("unique among all containers"), "{one}");
    Ok(())
}

fn collect(schema: &Value, fields: &mut Vec<(String, String)>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        fields.push((name.clone(), property["description"].as_str().unwrap_or_default().to_owned()));
        collect(property, fields);
    }
    if schema["items"].is_object() {
        collect(&schema["items"], fields);
    }
}

async fn the_definition_for_old_servers_works_on_one() -> Result<()> {
    let cluster = server(Version::V1_13).await?;
    valid_policies_are_stored_and_mean_the_same(&cluster).await?;
    invalid_policies_are_refused_or_told_by_us(&cluster).await?;
    whatever_the_server_refuses_we_refuse(&cluster).await?;
    status_is_written_apart_and_shown_in_columns(&cluster).await
}

async fn the_definition_for_current_servers_works_on_one() -> Result<()> {
    let cluster = server(Version::NEWEST).await?;
    valid_policies_are_stored_and_mean_the_same(&cluster).await?;
    invalid_policies_are_refused_or_told_by_us(&cluster).await?;
    damaged_policies_are_refused(&cluster).await?;
    whatever_the_server_refuses_we_refuse(&cluster).await?;
    status_is_written_apart_and_shown_in_columns(&cluster).await?;
    every_field_is_explained(&cluster).await
}
