//! Replicas that are killed, replaced and properly stopped, and the tutorial's own troubleshooting.

use crate::prelude::*;

crate::tests![
    what_waited_while_every_replica_was_dead_is_completed_after_a_restart,
    a_stop_in_good_order_hands_over_or_leaves_no_create_waiting,
    a_leader_that_dies_or_freezes_is_followed_and_two_at_once_are_harmless,
];

async fn what_waited_while_every_replica_was_dead_is_completed_after_a_restart() -> Result<()> {
    let world = World::new().await?;
    // The container restarts in the same pod, so the lease is still its own.
    let same_pod = ["--pod-name=scpol-0"];
    let operator = Operator::ready(&world.cluster, &same_pod).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    operator.kill().await?;
    for number in 0..300 {
        let created = world.create_async(DEPLOYMENTS, &deployment(&format!("web-{number}"))).await?;
        assert_eq!(pending(&created), ["envoy.scpol.dev"]);
    }
    let start = Instant::now();
    let _operator = Operator::ready(&world.cluster, &same_pod).await?;
    for number in 0..300 {
        assert_eq!(containers(&world.initialized(&path(&format!("web-{number}"))).await?), ["app", "envoy"]);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    Ok(())
}

async fn a_stop_in_good_order_hands_over_or_leaves_no_create_waiting() -> Result<()> {
    let (world, first) = World::new().await?.operated(&[]).await?;
    world.policy("open", sidecar("open")).await?;
    world.policy("closed", json!({ "failurePolicy": "Fail", "targets": [{ "group": "apps", "resource": "statefulsets" }], "template": sidecar("closed")["template"] })).await?;
    for policy in ["open", "closed"] {
        in_force(&world.cluster, policy).await?;
    }
    // With a second replica there is no interruption.
    let second = Operator::ready(&world.cluster, &[]).await?;
    assert_eq!(second.metric("scpol_leader").await?, 0.0);
    let start = Instant::now();
    first.signal("TERM")?;
    within(LIMIT, "the second leads", || async { Ok(second.metric("scpol_leader").await? == 1.0) }).await?;
    // 2 s are promised. The margin is for this machine, where other tests run.
    assert!(start.elapsed() < Duration::from_secs(3), "handing over took {:?}", start.elapsed());
    let created = world.create_promptly(DEPLOYMENTS, &deployment("handed-over")).await?;
    assert_eq!(containers(&created), ["app", "open"]);
    let mut first = first;
    assert_eq!(first.ended().await?, Some(0));
    assert_eq!(
        world.configurations().await?,
        ["scpol-closed", "scpol-open"],
        "still registered: another replica serves"
    );

    // The last replica unregisters `Ignore` policies first. `Fail` policies stay.
    let start = Instant::now();
    assert_eq!(second.stop().await?, Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "stopping took {:?}", start.elapsed());
    assert_eq!(world.configurations().await?, ["scpol-closed"]);
    wait_condition(&world.cluster, "open", "Programmed", "False", "Stopped").await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("alone")).await?), ["app"]);
    // No object bypasses the `Fail` policy while no operator runs.
    let mut stateful = deployment("waits");
    (stateful["kind"], stateful["spec"]["serviceName"]) = (json!("StatefulSet"), json!("waits"));
    let statefulsets = "/apis/apps/v1/namespaces/default/statefulsets";
    let refused = request(&world.creator, "POST", &format!("{statefulsets}?timeout=2s"), &stateful).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("did not complete within")));

    // A restart: our own removal is no emergency brake.
    let _third = Operator::ready(&world.cluster, &[]).await?;
    in_force(&world.cluster, "open").await?;
    assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("back")).await?), ["app", "open"]);
    assert_eq!(containers(&world.initialized(&format!("{statefulsets}/waits")).await?), ["app", "closed"]);
    Ok(())
}

async fn a_leader_that_dies_or_freezes_is_followed_and_two_at_once_are_harmless() -> Result<()> {
    let (world, first) = World::with(ControlPlane::builder(Version::V1_13).audit_log()).await?.operated(&[]).await?;
    world.enforce("envoy", sidecar("envoy")).await?;
    let second = Operator::ready(&world.cluster, &[]).await?;
    first.signal("STOP")?;
    // The create waits for the takeover, and succeeds.
    let start = Instant::now();
    let created = world.create(DEPLOYMENTS, &deployment("frozen")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    assert!(start.elapsed() < Duration::from_secs(20), "takeover took {:?}", start.elapsed());
    // The old leader wakes up and still believes for a moment that it leads.
    first.signal("CONT")?;
    for number in 0..20 {
        let created = world.create_promptly(DEPLOYMENTS, &deployment(&format!("both-{number}"))).await?;
        assert_eq!(containers(&created), ["app", "envoy"]);
        world.patched(&format!("both-{number}"), 1).await?;
    }
    world.patched("frozen", 1).await?;
    within(LIMIT, "the old leader has seen it", || async { Ok(first.metric("scpol_leader").await? == 0.0) }).await?;
    second.kill().await?;
    within(LIMIT, "the first leads again", || async { Ok(first.metric("scpol_leader").await? == 1.0) }).await
}
