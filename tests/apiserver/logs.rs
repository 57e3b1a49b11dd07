//! The log of the operator, through a life with failures: every line is ours, for people, and said once.

use crate::prelude::*;
use std::collections::BTreeMap;

crate::tests![no_line_is_that_of_a_library_or_shows_a_value_as_programmers_see_it_or_repeats,];

/// What Rust shows to programmers: `Option`, `Result`, structs, lists of text.
const DEBUG: [&str; 8] = ["Some(", "None", "Ok(", "Err(", " { ", "[\"", "Error(", "kind: "];

async fn no_line_is_that_of_a_library_or_shows_a_value_as_programmers_see_it_or_repeats() -> Result<()> {
    for version in [Version::V1_13, Version::V1_36] {
        let world = World::with(ControlPlane::builder(version)).await?;
        world.install_all().await?;
        let mut operator = Operator::ready(&world.cluster, &["--log-level=debug", "--author-check"]).await?;
        world.policy("envoy", sidecar("envoy")).await?;
        let mut hooked = sidecar("hooked");
        hooked["engine"] = json!("Webhook");
        hooked["targets"] = json!([{ "group": "apps", "resource": "statefulsets" }]);
        hooked["namespaceSelector"] = json!({ "matchLabels": { "team": "shop" } });
        world.policy("hooked", hooked).await?;
        in_force(&world.cluster, "envoy").await?;
        in_force(&world.cluster, "hooked").await?;
        world.create(DEPLOYMENTS, &deployment("web")).await?;
        let mut taken = deployment("taken");
        taken["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
        world.create(DEPLOYMENTS, &taken).await?;
        // The connection is lost, and a right.
        world.cluster.restart_apiserver().await?;
        in_force(&world.cluster, "envoy").await?;
        world.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/scpol-webhook").await?;
        world.edit_policy("hooked", sidecar("other")).await?;
        wait_condition(&world.cluster, "hooked", "Ready", "False", "MissingRight").await?;
        let (code, told) = world.uninstalls(&["--yes"]).await?;
        assert_eq!(code, 0, "{version:?}: {told}");
        within(LIMIT, "the operator has no rights left", || async {
            Ok(operator.log().contains("Cannot look at the lease"))
        })
        .await?;
        operator.signal("TERM")?;
        operator.ended().await?;
        is_for_people(&operator.log()).with_context(|| format!("{version:?}"))?;
    }
    Ok(())
}

/// Checks every line of `log`.
fn is_for_people(log: &str) -> Result<()> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for line in log.lines() {
        let mut fields: BTreeMap<String, Value> = serde_json::from_str(line).with_context(|| line.to_owned())?;
        fields.remove("timestamp");
        let target = fields.get("target").and_then(Value::as_str).unwrap_or_default();
        ensure!(target.starts_with("sidecar_policy"), "a library logs: {line}");
        ensure!(!DEBUG.iter().any(|shape| line.contains(shape)), "a value for programmers: {line}");
        // A failure that lasts is logged once a minute. What works may be said each time, and a decision at each call.
        let (level, message) = (fields["level"].clone(), fields["message"].clone());
        let is_failure = (level == "WARN" || level == "ERROR") && message != "Decided";
        let count = seen.entry(json!(fields).to_string()).or_default();
        *count += 1;
        ensure!(!is_failure || *count == 1, "{count} times: {line}");
    }
    ensure!(seen.len() > 10, "only {} lines", seen.len());
    Ok(())
}
