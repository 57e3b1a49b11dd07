//! Every known malformed policy on a server with the operator: rejected by the server, or reported by a condition with
//! its code.

use crate::policies;
use crate::prelude::*;
use crate::support;
use futures::{StreamExt, TryStreamExt};
use sidecar_policy::api::code::Code;
use std::collections::BTreeMap;

crate::tests![
    every_malformed_policy_is_refused_by_the_server_or_not_accepted_for_its_own_reason,
    without_a_schema_the_operator_finds_every_fault_by_itself,
];

const POLICIES: &str = "/apis/scpol.dev/v1alpha1/sidecarpolicies";
/// The number of concurrent requests.
const PARALLEL: usize = 16;

/// A malformed policy, and its first fault.
struct Case {
    what: String,
    expected: String,
    object: Value,
}

fn cases() -> Vec<Case> {
    let by_hand = policies::invalid().into_iter();
    let by_hand = by_hand.map(|case| Case { what: case.name, expected: case.expected[0].clone(), object: case.object });
    let by_schema = policies::damaged().into_iter();
    by_hand
        .chain(by_schema.map(|case| Case { what: case.what, expected: case.expected, object: case.object }))
        .collect()
}

/// The name of the stored `case`; none if the server rejects it.
async fn post(world: &World, case: &Case) -> Result<Option<String>> {
    match request(&world.admin, "POST", POLICIES, &case.object).await {
        Ok(stored) => Ok(stored["metadata"]["name"].as_str().map(str::to_owned)),
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 409 => Ok(None),
        Err(error) => Err(anyhow::Error::from(error).context(case.what.clone())),
    }
}

/// The reason and message of each policy that is not accepted, by name.
async fn not_accepted(world: &World) -> Result<BTreeMap<String, (String, String)>> {
    let list = support::policies(&world.cluster).list(&Default::default()).await?;
    let told = list.items.into_iter().filter_map(|policy| {
        let conditions = policy.data["status"]["conditions"].as_array()?;
        let accepted = conditions.iter().find(|condition| condition["type"] == "Accepted")?;
        let text = |field: &str| accepted[field].as_str().unwrap_or_default().to_owned();
        (accepted["status"] == "False")
            .then(|| (policy.metadata.name.unwrap_or_default(), (text("reason"), text("message"))))
    });
    Ok(told.collect())
}

/// Creates every case. The operator must report each stored one, with the expected fault first. Returns the number of
/// stored ones.
async fn refused_or_told(world: &World) -> Result<usize> {
    let operator = Operator::ready(&world.cluster, &["--max-policies=65535"]).await?;
    let cases = cases();
    let posts = cases.iter().map(|case| post(world, case));
    let names: Vec<_> = futures::stream::iter(posts).buffered(PARALLEL).try_collect().await?;
    let stored: Vec<_> = cases.iter().zip(names).filter_map(|(case, name)| Some((case, name?))).collect();
    let refused = cases.len() - stored.len();
    eprintln!("{} malformed policies: {refused} refused by the server, {} stored", cases.len(), stored.len());
    assert!(cases.len() >= 300, "{} malformed policies", cases.len());

    // Hundreds of statuses are written and read here.
    within(4 * LIMIT, "none of them is accepted", || async {
        // A list of hundreds takes the server time that the operator needs too.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(not_accepted(world).await?.len() == stored.len())
    })
    .await?;
    let told = not_accepted(world).await?;
    for (case, name) in &stored {
        let (reason, message) = &told[name];
        let (code, field) = case.expected.split_once(' ').unwrap_or_default();
        let code = Code::ALL.iter().find(|known| known.to_string() == code).context("no such code")?;
        ensure!(
            reason == code.name() && message.starts_with(&format!("{code}: {field}: ")),
            "{}: expected {}, told is {reason}: {message}",
            case.what,
            case.expected
        );
    }
    let created = world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    assert_eq!(containers(&created), ["app"], "no malformed policy is in effect");
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(stored.len())
}

async fn every_malformed_policy_is_refused_by_the_server_or_not_accepted_for_its_own_reason() -> Result<()> {
    let world = World::new().await?;
    assert!(refused_or_told(&world).await? >= 100, "hardly one comes as far as the operator");
    Ok(())
}

async fn without_a_schema_the_operator_finds_every_fault_by_itself() -> Result<()> {
    let world = World::new().await?;
    let definition = "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions/sidecarpolicies.scpol.dev";
    world.patch(definition, &json!([{ "op": "remove", "path": "/spec/validation" }])).await?;
    let anything = policy_object("probe", &json!(7));
    let probe = format!("{POLICIES}?dryRun=All");
    within(LIMIT, "the server takes anything", || async {
        Ok(request(&world.admin, "POST", &probe, &anything).await.is_ok())
    })
    .await?;
    assert!(refused_or_told(&world).await? >= 700, "the server still refuses many");
    Ok(())
}
