//! More concurrent creates than the slots for writes of the server of 1.13.5 (200). Each create that waits for us holds
//! one.
//!
//! Clients behave as client-go does: on 429 they wait for the given time and retry.

use crate::prelude::*;
use futures::StreamExt;
use oracle::{Oracle, Site};
use std::fs::File;
use std::io::BufReader;

crate::tests![
    with_the_priority_lane_no_number_of_creates_in_flight_loses_one,
    without_the_lane_nothing_is_lost_and_all_is_completed_soon_after_the_crowd_has_gone,
    where_the_server_refuses_the_lane_it_goes_without_and_says_so,
    large_workloads_that_wait_together_or_stand_in_one_page_of_a_list_are_not_in_memory_together,
];

/// The server's `Retry-After`, which is constant.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The time after which a client gives up on repeated 429, once those that hold the slots have given up.
const PATIENCE: Duration = Duration::from_secs(15);
/// The timeout of such a client's create. The default is the server's limit. A shorter one makes the same crowd, which
/// ends sooner.
const WAITS: &str = "10s";
/// The patience of a client that never gives up, even on a slow machine.
const STUBBORN: Duration = Duration::from_secs(300);
/// The server's limit for a waiting create.
const SERVER_LIMIT: Duration = Duration::from_secs(30);
/// The time limit from the last client's end until no object waits, with other tests beside it.
const AFTERMATH: Duration = Duration::from_secs(30);

/// Creates a Deployment, with retries on 429 within `patience`.
async fn create(world: &World, name: &str, patience: Duration) -> Result<Value> {
    let start = Instant::now();
    let path_of_all = match patience {
        STUBBORN => DEPLOYMENTS.to_owned(),
        _ => format!("{DEPLOYMENTS}?timeout={WAITS}"),
    };
    loop {
        let asked = Instant::now();
        match request(&world.creator, "POST", &path_of_all, &deployment(name)).await {
            Err(kube::Error::Api(status)) if status.code == 429 && start.elapsed() < patience => {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            // The create waits by a watch of all Deployments, and the server ends watches that are too slow. A create
            // that has waited for the server's limit is lost.
            Err(kube::Error::Api(status))
                if status.code == 504 && patience == STUBBORN && asked.elapsed() < SERVER_LIMIT =>
            {
                return world.initialized(&path(name)).await;
            }
            answer => return Ok(answer?),
        }
    }
}

/// `count` concurrent creates.
async fn burst(world: &World, prefix: &str, count: usize, patience: Duration) -> Vec<Result<Value>> {
    let creates = (0..count).map(|number| async move { create(world, &format!("{prefix}-{number}"), patience).await });
    futures::stream::iter(creates).buffer_unordered(count).collect().await
}

async fn world() -> Result<World> {
    // One file, for any number of retries.
    let builder = ControlPlane::builder(Version::V1_13).audit_log().extra_arg("--audit-log-maxsize=10000");
    World::with(builder).await
}

/// The oracle after the current audit log.
fn judged(world: &World) -> Result<Oracle> {
    let mut oracle = Oracle::new(Site::default());
    oracle.read(BufReader::new(File::open(world.cluster.dir().join("audit.log"))?))?;
    Ok(oracle)
}

/// Checks that each stored Deployment was completed by one PATCH, and that the operator made no forbidden write.
/// Returns the number of stored Deployments.
async fn each_is_patched_once(world: &World) -> Result<usize> {
    let list = world.get(&format!("{DEPLOYMENTS}?includeUninitialized=1")).await?.context("a list")?;
    let names = list["items"].as_array().context("items")?.iter().filter_map(|item| item["metadata"]["name"].as_str());
    let places: Vec<String> = names.map(|name| format!("deployments default/{name}")).collect();
    // The log is written after the answer, so the answer to the creator may be faster.
    within(LIMIT, "the audit log has a PATCH of each", || async {
        let oracle = judged(world)?;
        Ok(places.iter().all(|place| *oracle.written(place).end() > 0))
    })
    .await?;
    let oracle = judged(world)?;
    let others: Vec<_> = places.iter().filter(|place| !oracle.written(place).contains(&1)).collect();
    ensure!(others.is_empty(), "{} were not patched once: {others:?}", others.len());
    let findings: Vec<String> = oracle.findings(None).iter().map(ToString::to_string).collect();
    ensure!(findings.is_empty(), "the oracle finds:\n{}", findings.join("\n"));
    Ok(places.len())
}

async fn with_the_priority_lane_no_number_of_creates_in_flight_loses_one() -> Result<()> {
    let world = world().await?;
    for document in std::fs::read_to_string(file("config/rbac/priority-lane/role.yaml"))?.split("\n---\n") {
        world.cluster.apply_manifests(document).await?;
    }
    let operator = Operator::ready(&world.cluster, &["--priority-lane", "--log-level=info"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    for count in [300, 1000] {
        for answer in burst(&world, &format!("burst-{count}"), count, STUBBORN).await {
            let created = answer.with_context(|| format!("of {count} at once"))?;
            assert_eq!(containers(&created), ["app", "envoy"], "of {count} at once");
        }
    }
    assert_eq!(operator.metric(r#"scpol_api_requests_total{code="403",verb="patch"}"#).await?, 0.0);
    assert_eq!(operator.metric(r#"scpol_panics_total"#).await?, 0.0);
    let on_lane = || -> (Vec<_>, Vec<_>) {
        let events = world.cluster.audit().into_iter();
        let lane = events.filter(|event| {
            event["impersonatedUser"]["groups"]
                .as_array()
                .is_some_and(|groups| groups.contains(&json!("system:masters")))
        });
        lane.partition(|event| event["verb"] == "patch" && event["objectRef"]["resource"] == "deployments")
    };
    // The log is written after the answer, so the answer to the creator may be faster.
    within(LIMIT, "all 1300 PATCHes were on the lane", || async { Ok(on_lane().0.len() >= 1300) }).await?;
    assert!(on_lane().1.is_empty(), "nothing else is on the lane");
    assert_eq!(each_is_patched_once(&world).await?, 1300);
    Ok(())
}

/// `count` concurrent creates, and then [`AFTERMATH`] at most.
async fn until_all_is_completed(world: &World, prefix: &str, count: usize) -> Result<()> {
    let answers = burst(world, prefix, count, PATIENCE).await;
    let over = Instant::now();
    let given_up = answers.iter().filter(|answer| answer.is_err()).count();
    for created in answers.into_iter().flatten() {
        assert_eq!(containers(&created), ["app", "envoy"]);
    }
    within(AFTERMATH, "nothing waits, and all that is stored has its sidecar", || async {
        let list = world.get(&format!("{DEPLOYMENTS}?includeUninitialized=1")).await?.context("a list")?;
        let items = list["items"].as_array().context("items")?;
        ensure!(items.len() + given_up >= count, "{} are stored, {given_up} have given up", items.len());
        Ok(items.iter().all(|item| pending(item).is_empty() && containers(item) == ["app", "envoy"]))
    })
    .await
    .with_context(|| format!("{given_up} creates of {count} have given up"))?;
    eprintln!("{given_up} of {count} have given up; all is completed after {:?}", over.elapsed());
    Ok(())
}

async fn without_the_lane_nothing_is_lost_and_all_is_completed_soon_after_the_crowd_has_gone() -> Result<()> {
    let (world, operator) = world().await?.operated(&["--log-level=info"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    until_all_is_completed(&world, "burst-300", 300).await?;
    until_all_is_completed(&world, "burst-1000", 1000).await?;
    // A status is also a write, and may have to wait for a slot.
    let told = wait_condition(&world.cluster, "envoy", "Degraded", "True", "TooManyRequests").await?;
    assert!(told["message"].as_str().is_some_and(|message| message.contains("--priority-lane")), "{told}");
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    // Rejected PATCHes were not repeated in a loop: while the server has no slot, there is one try per second.
    let refused = operator.metric(r#"scpol_api_requests_total{code="429",verb="patch"}"#).await?;
    assert!(refused < 1000.0, "{refused} PATCHes were answered 429");
    each_is_patched_once(&world).await?;
    Ok(())
}

async fn where_the_server_refuses_the_lane_it_goes_without_and_says_so() -> Result<()> {
    let (world, _operator) = World::new().await?.operated(&["--priority-lane"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    for name in ["one", "two"] {
        assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment(name)).await?), ["app", "envoy"]);
        assert!(world.get(&path(name)).await?.is_some());
    }
    let told = wait_condition(&world.cluster, "envoy", "Degraded", "True", "MissingRight").await?;
    assert!(told["message"].as_str().is_some_and(|message| message.contains("config/rbac/priority-lane")), "{told}");
    Ok(())
}

/// A Deployment of about 900 KB.
fn large(name: &str) -> Value {
    let variable = |number| json!({ "name": format!("VARIABLE_{number:04}"), "value": "x".repeat(1000) });
    let mut large = deployment(name);
    large["spec"]["template"]["spec"]["containers"][0]["env"] = (0..900).map(variable).collect();
    large
}

/// The peak memory of the operator in megabytes.
fn most_held(operator: &Operator) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", operator.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

async fn large_workloads_that_wait_together_or_stand_in_one_page_of_a_list_are_not_in_memory_together() -> Result<()> {
    const COUNT: i64 = 40;
    let (world, operator) = World::new().await?.operated(&["--log-level=info"]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let before = most_held(&operator)?;
    let creates = (0..COUNT).map(|number| {
        let (world, large) = (&world, large(&format!("large-{number}")));
        async move { world.create_async(DEPLOYMENTS, &large).await }
    });
    for created in futures::stream::iter(creates).buffer_unordered(COUNT as usize).collect::<Vec<_>>().await {
        created?;
    }
    for number in 0..COUNT {
        assert_eq!(containers(&world.initialized(&path(&format!("large-{number}"))).await?), ["app", "envoy"]);
    }
    // An edit makes the operator count all workloads again, from a list.
    world.edit_policy("envoy", sidecar_of("envoy", "envoy:2")).await?;
    world.status("envoy", "outdated", COUNT).await?;
    let grown = most_held(&operator)? - before;
    assert!(grown < 32, "{COUNT} objects of 900 KB took {grown} MB");
    // The first list of a watch is also read in pages.
    operator.stop().await?;
    let operator = Operator::ready(&world.cluster, &["--log-level=info"]).await?;
    world.policy("second", sidecar("second")).await?;
    world.status("second", "missed", COUNT).await?;
    let grown = most_held(&operator)?.saturating_sub(before);
    assert!(grown < 32, "to find {COUNT} objects of 900 KB took {grown} MB");
    Ok(())
}
