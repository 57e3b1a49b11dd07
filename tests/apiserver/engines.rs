//! The engines inside the API server from a user's view: a policy is applied, and workloads get its sidecar.

use crate::migrate::Beside;
use crate::prelude::*;
use crate::status::report;
use controlplane::Builder;

crate::tests![
    the_one_command_of_the_break_glass_page_lets_creates_go_with_the_operator_frozen_and_alive,
    a_suspended_policy_does_not_end_the_hold_for_others_of_its_resource_and_a_resumed_one_does,
    what_is_registered_is_repaired_when_edited_and_held_back_when_deleted_while_the_operator_is_down,
    going_from_engine_to_engine_leaves_no_gap_and_injects_nothing_twice,
    without_an_operator_an_admission_policy_goes_on_injecting,
    a_policy_that_must_refuses_what_lacks_the_sidecar_on_every_engine,
    what_is_told_to_be_in_force_judges_at_once_whatever_its_failure_policy,
    a_policy_that_must_can_end_in_every_way_and_no_create_is_refused = ends(ControlPlane::builder(Version::NEWEST)),
    where_owners_are_collected_a_policy_that_must_can_end_in_every_way_and_no_create_is_refused =
        ends(ControlPlane::builder(Version::NEWEST).nodes(1)),
];

/// The engines of a server version, as policies name them.
pub(crate) const ENGINES: [(Version, &[&str]); 2] =
    [(Version::V1_13, &["Webhook"]), (Version::NEWEST, &["Webhook", "MutatingAdmissionPolicy"])];

async fn world(version: Version) -> Result<World> {
    World::with(ControlPlane::builder(version)).await
}

pub(crate) fn by(engine: &str, mut spec: Value) -> Value {
    spec["engine"] = json!(engine);
    spec
}

/// The value of `status.engine`.
pub(crate) async fn engine_of(world: &World, policy: &str) -> Result<Value> {
    Ok(policies(&world.cluster).get(policy).await?.data["status"]["engine"].clone())
}

/// Waits until dry-run creates of Deployments have these containers.
pub(crate) async fn shows(world: &World, expected: &[&str]) -> Result<()> {
    within(LIMIT, &format!("new Deployments have {expected:?}"), || async {
        let path = format!("{DEPLOYMENTS}?dryRun=All");
        Ok(containers(&request(&world.creator, "POST", &path, &deployment("probe")).await?) == expected)
    })
    .await
}

/// The command of the break-glass page, run for each kind of its loop, including kinds that the server lacks.
pub(crate) async fn break_glass(world: &World) -> Result<()> {
    let page = std::fs::read_to_string(crate::support::file("docs/break-glass.md"))?;
    let mut loops = page.lines().filter_map(|line| line.strip_prefix("for kind in ")?.strip_suffix("; done"));
    let command = loops.next().and_then(|command| command.split_once("; do kubectl "));
    let (kinds, words) = command.context("the page has its loop")?;
    let mut deleted = Vec::new();
    for kind in kinds.split_whitespace() {
        let words: Vec<&str> = words.split_whitespace().map(|word| if word == "$kind" { kind } else { word }).collect();
        match world.cluster.kubectl_output(User::Admin, &words).await {
            Ok(told) if told.contains(" deleted") => deleted.push(kind),
            Ok(_) => {}
            // Harmless, as the page says.
            Err(error) if error.to_string().contains("error: the server doesn't have a resource type") => {}
            Err(error) => return Err(error),
        }
    }
    anyhow::ensure!(!deleted.is_empty(), "the command deletes nothing of ours");
    Ok(())
}

async fn the_one_command_of_the_break_glass_page_lets_creates_go_with_the_operator_frozen_and_alive() -> Result<()> {
    for (version, engines) in ENGINES {
        for engine in engines {
            let (world, operator) = world(version).await?.operated(&[]).await?;
            let policy = json!({
                "engine": engine, "template": sidecar("envoy")["template"],
                "failurePolicy": if version.has(Feature::NamespaceNames) { "Fail" } else { "Ignore" },
            });
            world.enforce("envoy", policy).await?;
            assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("before")).await?), ["app", "envoy"]);
            operator.signal("STOP")?;
            break_glass(&world).await?;
            let start = Instant::now();
            let name = |at: usize| format!("frozen-{at}");
            let mut tries = 0;
            loop {
                tries += 1;
                let manifest = deployment(&name(tries)).to_string();
                if world.cluster.apply_manifests(&manifest).await.is_ok() {
                    break;
                }
                anyhow::ensure!(start.elapsed() < Duration::from_secs(5), "{version:?} {engine}: creates are refused");
            }
            assert!(start.elapsed() < Duration::from_secs(5), "{version:?} {engine}: {:?}", start.elapsed());
            operator.signal("CONT")?;
            wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
            // It stays away, and no rejecting registration is left.
            within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
            shows(&world, &["app"]).await?;
            drop(operator);
            // Its successor also respects the hold.
            let _operator = Operator::ready(&world.cluster, &[]).await?;
            wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
            assert!(world.registered().await?.is_empty());
            // After suspend and resume it is in effect again.
            world.edit_policy("envoy", json!({ "suspend": true })).await?;
            wait_condition(&world.cluster, "envoy", "Ready", "True", "Suspended").await?;
            world.edit_policy("envoy", json!({ "suspend": false })).await?;
            in_force(&world.cluster, "envoy").await?;
            assert_eq!(containers(&world.create_promptly(DEPLOYMENTS, &deployment("again")).await?), ["app", "envoy"]);
        }
    }
    Ok(())
}

async fn a_suspended_policy_does_not_end_the_hold_for_others_of_its_resource_and_a_resumed_one_does() -> Result<()> {
    for engine in ["Webhook", "MutatingAdmissionPolicy"] {
        let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
        for name in ["envoy", "shipper", "off"] {
            let mut policy = by(engine, sidecar(name));
            policy["suspend"] = json!(name == "off");
            world.policy(name, policy).await?;
        }
        in_force(&world.cluster, "shipper").await?;
        in_force(&world.cluster, "envoy").await?;
        break_glass(&world).await?;
        for name in ["envoy", "shipper"] {
            wait_condition(&world.cluster, name, "Ready", "False", "RemovedByHand").await?;
        }
        // The way to stay out longer, as the page says. Each edit causes several full passes.
        world.edit_policy("envoy", json!({ "suspend": true })).await?;
        wait_condition(&world.cluster, "envoy", "Ready", "True", "Suspended").await?;
        world.edit_policy("off", json!({ "priority": 1 })).await?;
        let before = operator.metric("scpol_reconcile_total").await?;
        within(LIMIT, "everything is looked at again", || async {
            Ok(operator.metric("scpol_reconcile_total").await? >= before + 3.0)
        })
        .await?;
        assert!(world.registered().await?.is_empty(), "{engine}: it is registered again");
        wait_condition(&world.cluster, "shipper", "Ready", "False", "RemovedByHand").await?;
        world.edit_policy("envoy", json!({ "suspend": false })).await?;
        for name in ["envoy", "shipper"] {
            in_force(&world.cluster, name).await?;
        }
    }
    Ok(())
}

async fn what_is_registered_is_repaired_when_edited_and_held_back_when_deleted_while_the_operator_is_down() -> Result<()>
{
    for (version, engines) in ENGINES {
        for engine in engines {
            let (world, operator) = world(version).await?.operated(&[]).await?;
            world.enforce("envoy", by(engine, sidecar("envoy"))).await?;
            let (path, edits) = edits(version, engine);
            let before = world.get(&path).await?.context("it is registered")?;
            for spoil in edits {
                world.patch(&path, &spoil).await?;
                within(LIMIT, "it is repaired", || async {
                    let now = world.get(&path).await?.context("it is registered")?;
                    let is_same = |at: &str| now.pointer(at) == before.pointer(at);
                    Ok(["/webhooks", "/spec", "/metadata/annotations"].into_iter().all(is_same))
                })
                .await?;
            }
            shows(&world, &["app", "envoy"]).await?;
            let degraded = wait_condition(&world.cluster, "envoy", "Degraded", "True", "RegistrationEdited").await?;
            assert!(degraded["message"].as_str().unwrap_or_default().contains("scpol-deployments.apps"), "{degraded}");
            operator.kill().await?;
            break_glass(&world).await?;
            let _operator = Operator::ready(&world.cluster, &["--repair-hold=3s"]).await?;
            wait_condition(&world.cluster, "envoy", "Ready", "False", "RemovedByHand").await?;
            shows(&world, &["app"]).await?;
            in_force(&world.cluster, "envoy").await?;
            shows(&world, &["app", "envoy"]).await?;
        }
    }
    Ok(())
}

/// A registered object, and edits that each break its effect.
fn edits(version: Version, engine: &str) -> (String, Vec<Value>) {
    let root = "/apis/admissionregistration.k8s.io";
    let api = version.registration();
    match engine {
        "Webhook" => (
            format!("{root}/{api}/mutatingwebhookconfigurations/scpol-deployments.apps"),
            vec![
                json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": "" }]),
                // Replicas read from it which policies are in effect. An edit of metadata alone does not change
                // `generation`.
                json!([{ "op": "remove", "path": "/metadata/annotations/scpol.dev~1policies" }]),
            ],
        ),
        _ => (
            format!("{root}/{api}/mutatingadmissionpolicies/scpol-deployments.apps"),
            vec![
                json!([{ "op": "add", "path": "/spec/matchConditions", "value": [{ "name": "never", "expression": "false" }] }]),
            ],
        ),
    }
}

/// Creates Deployments one after the other until `stop`. Returns their names and containers.
async fn create_until(
    client: kube::Client,
    prefix: &'static str,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Vec<(String, Result<Vec<String>, String>)> {
    let mut created = Vec::new();
    while !*stop.borrow() {
        let name = format!("{prefix}-{}", created.len());
        let answer = request(&client, "POST", DEPLOYMENTS, &deployment(&name)).await;
        created.push((name, answer.map(|object| containers(&object)).map_err(|error| error.to_string())));
    }
    created
}

async fn going_from_engine_to_engine_leaves_no_gap_and_injects_nothing_twice() -> Result<()> {
    let ways: [(Version, &[&str]); 2] = [
        (Version::V1_13, &["Initializer", "Webhook", "Initializer"]),
        (Version::NEWEST, &["Webhook", "MutatingAdmissionPolicy", "Webhook", "MutatingAdmissionPolicy"]),
    ];
    for (version, engines) in ways {
        let (world, operator) = world(version).await?.operated(&[]).await?;
        world.enforce("envoy", by(engines[0], sidecar("envoy"))).await?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let creators =
            ["a", "b"].map(|prefix| tokio::spawn(create_until(world.creator.clone(), prefix, stopped.clone())));
        for engine in &engines[1..] {
            world.edit_policy("envoy", json!({ "engine": engine })).await?;
            within(2 * LIMIT, &format!("{engine} delivers alone"), || async {
                let others: &[&str] = match *engine {
                    "Webhook" => &["initializer", "admissionpolic"],
                    "Initializer" => &["webhook"],
                    _ => &["webhook"],
                };
                let registered = world.registered().await?;
                Ok(!registered.is_empty()
                    && registered.iter().all(|name| others.iter().all(|other| !name.contains(other))))
            })
            .await?;
            within(2 * LIMIT, "status says so", || async { Ok(engine_of(&world, "envoy").await? == *engine) }).await?;
        }
        stop.send_replace(true);
        let mut total = 0;
        for creator in creators {
            for (name, containers) in creator.await? {
                assert_eq!(containers, Ok(vec!["app".to_owned(), "envoy".to_owned()]), "{version:?} {name}");
                total += 1;
            }
        }
        assert!(total > 20, "only {total} were created meanwhile");
        assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    }
    Ok(())
}

async fn without_an_operator_an_admission_policy_goes_on_injecting() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    world.enforce("envoy", by("MutatingAdmissionPolicy", sidecar("envoy"))).await?;
    operator.kill().await?;
    for at in 0..10 {
        let created = world.create_promptly(DEPLOYMENTS, &deployment(&format!("web-{at}"))).await?;
        assert_eq!(containers(&created), ["app", "envoy"]);
    }
    let operator = Operator::ready(&world.cluster, &[]).await?;
    world.status("envoy", "injected", 10).await?;
    world.status("envoy", "missed", 0).await?;
    let (code, told) = report(&world, &["envoy"]).await?;
    assert_eq!((code, &told["workloads"]), (0, &json!([])), "{told}");
    // A proper stop keeps a registration that needs no process.
    assert_eq!(operator.stop().await?, Some(0));
    assert!(!world.registered().await?.is_empty());
    let created = world.create_promptly(DEPLOYMENTS, &deployment("stopped")).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    in_force(&world.cluster, "envoy").await
}

async fn a_policy_that_must_refuses_what_lacks_the_sidecar_on_every_engine() -> Result<()> {
    let (world, operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let mut conflicting = deployment("conflicting");
    conflicting["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
    let mut opted_out = deployment("opted-out");
    opted_out["metadata"]["annotations"] = json!({ "scpol.dev/inject": "false" });
    for engine in ["Webhook", "MutatingAdmissionPolicy"] {
        let validations = json!([{ "expression": "object.metadata.name != 'bad'", "message": "call it better" }]);
        let spec = json!({ "engine": engine, "failurePolicy": "Fail", "template": sidecar("envoy")["template"], "validations": validations });
        world.enforce("envoy", spec).await?;
        let dry = format!("{DEPLOYMENTS}?dryRun=All");
        let created = world.create(&dry, &deployment("good")).await?;
        assert_eq!(containers(&created), ["app", "envoy"], "{engine}");
        assert_eq!(containers(&world.create(&dry, &opted_out).await?), ["app"], "{engine}");
        for (object, told) in [(&conflicting, "SidecarPolicy `envoy` refuses"), (&deployment("bad"), "call it better")]
        {
            let error = world.create(&dry, object).await.expect_err("refused").to_string();
            assert!(error.contains(told), "{engine}: {error}");
        }
        // A create during an edit of the template is never rejected for the old template, nor under the old policy for
        // the new one.
        let mut template = sidecar("envoy");
        template["template"]["containers"][0]["image"] = json!("envoy:2");
        world.edit_policy("envoy", template).await?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let created = world.create(&dry, &deployment("good")).await.context("while the policy changes")?;
            if created.to_string().contains("envoy:2") {
                break;
            }
            anyhow::ensure!(Instant::now() < deadline, "the new template does not come");
        }
        in_force(&world.cluster, "envoy").await?;
        world.delete_policy("envoy").await?;
        within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
    }
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}

/// A server has one registration for validations under `Fail`, and another one for those under `Ignore`. Each takes effect by
/// itself.
async fn what_is_told_to_be_in_force_judges_at_once_whatever_its_failure_policy() -> Result<()> {
    let (world, _operator) = world(Version::NEWEST).await?.operated(&[]).await?;
    let judging = |name: &str, failure_policy: &str| {
        let expression = format!("object.metadata.name != '{name}'");
        let validations = json!([{ "expression": expression, "message": format!("not {name}") }]);
        json!({ "failurePolicy": failure_policy, "validations": validations })
    };
    world.policy("fail", judging("fail", "Fail")).await?;
    world.policy("ignore", judging("ignore", "Ignore")).await?;
    for name in ["fail", "ignore"] {
        in_force(&world.cluster, name).await?;
    }
    // The registration that is not edited is in effect, and proves nothing about the other one.
    for (policy, failure_policy) in [("ignore", "Ignore"), ("fail", "Fail")].repeat(5) {
        let name = format!("{policy}-{}", fastrand::u32(..));
        world.edit_policy(policy, judging(&name, failure_policy)).await?;
        in_force(&world.cluster, policy).await?;
        let answer = world.create(&format!("{DEPLOYMENTS}?dryRun=All"), &deployment(&name)).await;
        let told = answer.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.contains(&format!("not {name}")), "`{name}`: {told}");
    }
    Ok(())
}

/// A policy with `failurePolicy: Fail` that is deleted, switched off or delivered otherwise. The server goes on rejecting what lacks
/// the sidecar for about a second after what rejects is deleted, so until then it must be injected.
async fn ends(builder: Builder) -> Result<()> {
    let endings = [
        ("deleted", None),
        ("suspended", Some(json!({ "suspend": true }))),
        ("audited", Some(json!({ "mode": "Audit" }))),
        ("no longer for this kind", Some(json!({ "targets": [{ "group": "apps", "resource": "statefulsets" }] }))),
        ("no longer so strict", Some(json!({ "failurePolicy": "Ignore" }))),
        ("delivered by the other engine", Some(json!({ "engine": "MutatingAdmissionPolicy" }))),
    ];
    let (world, _operator) = World::with(builder).await?.operated(&[]).await?;
    let all = [("Webhook", &endings[..]), ("MutatingAdmissionPolicy", &endings[..2])];
    let alone = all.iter().map(|(engine, endings)| (*engine, *endings, false));
    // The registration stays for another policy.
    let beside = all.iter().map(|(engine, endings)| (*engine, &endings[..2], true));
    for (engine, endings, is_beside) in alone.chain(beside) {
        if is_beside {
            world.enforce("log", by(engine, sidecar("log"))).await?;
        }
        for (ending, edit) in endings {
            let mut spec = by(engine, sidecar("envoy"));
            spec["failurePolicy"] = json!("Fail");
            world.enforce("envoy", spec).await?;
            let client = world.admin.clone();
            let creating = Beside::run(|stop| async move {
                let path = format!("{DEPLOYMENTS}?dryRun=All");
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    request(&client, "POST", &path, &deployment("web")).await?;
                }
                Ok(())
            });
            match edit {
                None => world.delete_policy("envoy").await?,
                Some(edit) => world.edit_policy("envoy", edit.clone()).await?,
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
            creating.stop().await.with_context(|| format!("{engine}, {ending}, beside another: {is_beside}"))?;
            if edit.is_some() {
                world.delete_policy("envoy").await?;
            }
            if is_beside {
                shows(&world, &["app", "log"]).await?;
            } else {
                within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
            }
        }
        if is_beside {
            world.delete_policy("log").await?;
            within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
        }
    }
    Ok(())
}
