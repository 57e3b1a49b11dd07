//! Files and servers agree: what `scpol inject` makes of a workload, posted where no operator runs, is stored as what was
//! posted as it is where one does. For the whole corpus of `tests/golden`.

use crate::corpus::{self, Case, Stored, collection};
use crate::support::{LIMIT, Operator, TRUSTING, condition, policies, within};
use crate::world::{CONFIGURATIONS, World, request};
use anyhow::{Context, Result, ensure};
use controlplane::{User, Version};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

crate::tests![the_corpus_is_stored_as_scpol_inject_says,];

/// Cases that one server of 1.13 cannot show, and why.
pub(crate) const NOT_HERE: [(&str, &str); 17] = [
    ("row-2-other-operator-namespace", "the operator of the test runs elsewhere"),
    ("row-7-condition-sees-no-status", "the server takes no `resourceVersion` in what is created"),
    ("row-3-terminating", "the server takes `deletionTimestamp` off what is created"),
    ("odd-other-namespace-by-flag", "the namespace comes with the request"),
    ("into-sixty-containers", "the fields of its containers are newer than the server"),
    ("conflict-native-sidecar-host-port", "the server drops `restartPolicy` of the user's init container"),
    ("pod-without-metadata", "the server wants a name"),
    ("row-0-foreign", WAITS),
    ("row-0-empty", WAITS),
    ("row-0-ours", WAITS),
    ("row-0-one-of-two", WAITS),
    ("row-0-before-row-2", WAITS),
    ("row-0-denied", WAITS),
    ("row-0-validations", WAITS),
    ("row-0-initializer-name", WAITS),
    ("row-0-stored", WAITS),
    ("env-null-list", "the server stores no null, which the marker would tell"),
];
/// What comes with a list of its own.
const WAITS: &str = "without an operator it waits for ever";
/// Cases with a policy that a server of 1.13 cannot serve, whatever the engine: it lacks the resource, or native sidecars.
pub(crate) const NOT_SERVED: [&str; 9] = [
    "custom-definition-wins",
    "custom-not-targeted",
    "native-after-own-before",
    "native-always",
    "native-always-old",
    "native-and-own-after",
    "native-before-the-users",
    "native-by-hand",
    "native-conflict",
];
/// Beside them, cases with a policy that its initializers cannot serve.
pub(crate) const NOT_BY_INITIALIZERS: [&str; 1] = ["unknown-fields"];
/// How many cases share one set of policies: each new workload waits for all of them.
const BATCH: usize = 40;

async fn the_corpus_is_stored_as_scpol_inject_says() -> Result<()> {
    let world = World::new().await?;
    let folder = tempfile::tempdir()?;
    let cases = corpus::cases(Version::V1_13, &NOT_HERE, folder.path())?;
    corpus::define(&world).await?;
    grant(&world).await?;
    corpus::create_namespaces(&world, &cases).await?;
    let (mut by_hand, mut plain) = (BTreeMap::new(), BTreeMap::new());
    for case in &cases {
        plain.insert(&case.name, store(&world, &case.workload).await?);
        if let Some(injected) = &case.injected {
            by_hand.insert(&case.name, store(&world, injected).await?);
        }
    }
    let flags = [&["--protected-namespaces=vault"], &TRUSTING[..]].concat();
    let _operator = Operator::ready(&world.cluster, &flags).await?;
    let (mut differences, mut injected, mut not_served) = (Vec::new(), 0, Vec::new());
    for batch in cases.chunks(BATCH) {
        let served = serve(&world, batch).await?;
        for case in batch {
            if !served.contains(&case.name) {
                not_served.push(case.name.as_str());
                continue;
            }
            let found = store(&world, &case.workload).await?;
            let expected = match by_hand.get(&case.name) {
                None => &Stored::Refused,
                // The server judges before it asks us.
                Some(_) if plain[&case.name] == Stored::Refused => &Stored::Refused,
                // The server does not take it with the sidecar: it comes in as it is.
                Some(Stored::Refused) => &plain[&case.name],
                Some(stored) => stored,
            };
            injected +=
                usize::from(matches!(&found, Stored::As(body) if body.to_string().contains("injected.scpol.dev/c")));
            if found != *expected {
                differences.push(format!("{}:\n  files  {expected:?}\n  server {found:?}", case.name));
            }
        }
        withdraw(&world, batch).await?;
    }
    assert!(differences.is_empty(), "{} of {} differ\n{}", differences.len(), cases.len(), differences.join("\n"));
    assert!(injected >= 100, "only {injected} were injected");
    assert_eq!(not_served, [&NOT_SERVED[..], &NOT_BY_INITIALIZERS].concat());
    Ok(())
}

/// Gives the operator its rights on the custom resources of the corpus, and on what else its policies judge.
async fn grant(world: &World) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "corpus" },
        "rules": [
            { "apiGroups": ["example.org", "example.com"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["*"] },
        ],
    });
    request(&world.admin, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await?;
    let user = format!("--user={}", User::Operator.name());
    world
        .cluster
        .kubectl_output(User::Admin, &["create", "clusterrolebinding", "corpus", "--clusterrole=corpus", &user])
        .await?;
    Ok(())
}

/// Posts `body`, reads what is stored, and deletes it.
async fn store(world: &World, body: &Value) -> Result<Stored> {
    let collection = collection(body)?;
    let path = format!("{collection}/{}", body["metadata"]["name"].as_str().context("a name")?);
    match request(&world.admin, "POST", &collection, body).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => return Ok(Stored::Refused),
        Err(error) => return Err(error).context(body.to_string()),
    }
    let stored = world.get(&path).await?.context("it was created")?;
    let options = json!({ "propagationPolicy": "Background", "gracePeriodSeconds": 0 });
    request(&world.admin, "DELETE", &path, &options).await?;
    Stored::of(stored)
}

/// Creates the policies of `batch` and waits for them. Gives the cases whose policies this server can serve.
async fn serve(world: &World, batch: &[Case]) -> Result<BTreeSet<String>> {
    for policy in batch.iter().flat_map(|case| &case.policies) {
        policies(&world.cluster).create(&Default::default(), &serde_json::from_value(policy.clone())?).await?;
    }
    let mut served = BTreeSet::new();
    for case in batch {
        let mut is_served = true;
        for policy in &case.policies {
            let name = policy["metadata"]["name"].as_str().context("a name")?;
            is_served &= settled(world, name).await?;
        }
        if is_served {
            served.insert(case.name.clone());
        }
    }
    Ok(served)
}

/// Waits until the operator has made up its mind about `policy`: true if it is in force, or meant not to be.
async fn settled(world: &World, policy: &str) -> Result<bool> {
    const NEVER: [&str; 3] = ["UnknownTemplateField", "NativeSidecarsUnavailable", "TargetNotServed"];
    let deadline = Instant::now() + 2 * LIMIT;
    loop {
        let ready = condition(&world.cluster, policy, "Ready").await?.unwrap_or_default();
        if ready["status"] == "True" {
            return Ok(true);
        }
        if NEVER.iter().any(|reason| ready["reason"] == *reason) {
            return Ok(false);
        }
        ensure!(Instant::now() < deadline, "{policy} is {ready}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn withdraw(world: &World, batch: &[Case]) -> Result<()> {
    for policy in batch.iter().flat_map(|case| &case.policies) {
        world.delete_policy(policy["metadata"]["name"].as_str().context("a name")?).await?;
    }
    within(LIMIT, "nothing is registered", || async {
        let list = request(&world.admin, "GET", CONFIGURATIONS, &Value::Null).await?;
        Ok(list["items"].as_array().is_some_and(Vec::is_empty))
    })
    .await
}
