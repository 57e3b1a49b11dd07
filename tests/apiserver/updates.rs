//! Policies that act on updates, on real servers: what kubectl and other clients do to stored Deployments.

use crate::admission_policy::{
    Targeted, around, by_kind, decided, register_all, register_everything, registrations, scenes,
};
use crate::corpus::{self, Stored, collection};
use crate::prelude::*;
use crate::scenes::{Content, Scenes};
use crate::webhook_scene::{Scene, policy, site};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sidecar_policy::compile::admission_policy::validating;
use sidecar_policy::policy::Policies;
use sidecar_policy::review::{Call, Caller, Review};
use std::slice::from_ref;
use std::sync::Arc;

crate::tests![
    webhooks_give_back_what_an_update_takes_and_refuse_what_it_breaks,
    admission_policies_give_back_what_an_update_takes_and_refuse_what_it_breaks,
    validating_admission_policies_of_1_30_refuse_what_an_update_breaks,
    a_webhook_of_1_13_gives_back_what_an_update_takes,
    whatever_an_update_takes_it_is_decided_as_elsewhere,
    an_operator_registers_updates_and_tells_what_they_lose,
];

/// The policies of the scenario, each for the Deployments whose label `case` is its name.
fn policies() -> Vec<Value> {
    let both = json!(["CREATE", "UPDATE"]);
    let named = |name: &str, operations: Value, more: Value| {
        let targets = json!([{ "group": "apps", "resource": "deployments", "operations": operations }]);
        let mut spec = json!({ "targets": targets, "labelSelector": { "matchLabels": { "case": name } } });
        more.as_object().into_iter().flatten().for_each(|(field, value)| spec[field] = value.clone());
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    let template = json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] });
    let validations = json!([{ "expression": "object.spec.replicas <= 2", "message": "too many" }]);
    vec![
        named("sidecar", both.clone(), json!({ "template": template })),
        named("judge", both.clone(), json!({ "validations": validations })),
        named("strict", both, json!({ "template": template, "failurePolicy": "Fail" })),
        named(
            "quiet",
            json!(["CREATE"]),
            json!({ "template": template, "validations": validations, "failurePolicy": "Ignore" }),
        ),
    ]
}

/// A Deployment for the policy `case`, as its owner writes it.
fn of(case: &str, name: &str, replicas: u32) -> Value {
    let mut body = deployment(name);
    body["metadata"]["labels"]["case"] = json!(case);
    body["spec"]["replicas"] = json!(replicas);
    body
}

fn with_finalizer(mut body: Value) -> Value {
    body["metadata"]["finalizers"] = json!(["example.org/hold"]);
    body
}

impl World {
    /// `kubectl replace` of the manifest `body`. Returns what kubectl prints to the user, warnings included.
    async fn replace(&self, body: &Value) -> Result<String> {
        let file = self.cluster.dir().join("replaced.json");
        std::fs::write(&file, body.to_string())?;
        let mut kubectl = self.cluster.kubectl(User::Admin);
        let output = kubectl.args(["replace", "-f"]).arg(&file).output().await?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{told}");
        Ok(told)
    }

    async fn kubectl(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        self.cluster.kubectl_output(User::Admin, &words).await
    }

    async fn containers_of(&self, name: &str) -> Result<Vec<String>> {
        Ok(containers(&self.get(&path(name)).await?.context("it is stored")?))
    }
}

/// Deployments from before the policies.
async fn before(world: &World) -> Result<()> {
    let broken = with_finalizer(of("judge", "broken", 5));
    for body in [of("sidecar", "before", 1), broken, of("quiet", "quiet-before", 5)] {
        world.create(DEPLOYMENTS, &body).await?;
    }
    Ok(())
}

/// The sidecar, with policies in effect.
async fn gives_back(world: &World) -> Result<()> {
    let manifest = of("sidecar", "web", 1);
    let created = world.create(DEPLOYMENTS, &manifest).await?;
    assert_eq!(containers(&created), ["app", "envoy"]);
    let pod = |object: &Value| object["spec"]["template"].clone();
    world.replace(&manifest).await?;
    let replaced = world.get(&path("web")).await?.context("it is stored")?;
    assert_eq!(pod(&replaced), pod(&created), "kubectl replace");
    // A client that writes the containers anew, and leaves the marker.
    let own = created["spec"]["template"]["spec"]["containers"][0].clone();
    let containers_alone = json!([{ "op": "replace", "path": "/spec/template/spec/containers", "value": [own] }]);
    assert_eq!(pod(&world.patch(&path("web"), &containers_alone).await?), pod(&created), "a patch");
    world.kubectl("scale deployment web --replicas=3").await?;
    world.kubectl("annotate deployment web why=because").await?;
    world.kubectl("set image deployment/web app=nginx:2").await?;
    let edited = world.get(&path("web")).await?.context("it is stored")?;
    assert_eq!((containers(&edited), &edited["spec"]["replicas"]), (vec!["app".into(), "envoy".into()], &json!(3)));
    // The next revision of the template, and back.
    world.replace(&of("sidecar", "web", 2)).await?;
    assert_eq!(world.containers_of("web").await?, ["app", "envoy"]);

    // Without a marker before, nothing comes.
    world.replace(&of("sidecar", "before", 2)).await?;
    world.kubectl("label deployment before more=x").await?;
    assert_eq!(world.containers_of("before").await?, ["app"], "never injected");
    let mut opted_out = manifest.clone();
    opted_out["metadata"]["annotations"] = json!({ "scpol.dev/inject": "false" });
    world.replace(&opted_out).await?;
    assert_eq!(world.containers_of("web").await?, ["app"], "opted out");
    world.replace(&manifest).await?;
    assert_eq!(world.containers_of("web").await?, ["app"], "opted out before");

    // An object that is being deleted.
    let ending = with_finalizer(of("sidecar", "ending", 1));
    world.create(DEPLOYMENTS, &ending).await?;
    world.delete(&path("ending")).await?;
    world.replace(&ending).await?;
    assert_eq!(world.containers_of("ending").await?, ["app"], "being deleted");
    world.patch(&path("ending"), &json!([{ "op": "remove", "path": "/metadata/finalizers" }])).await?;
    within(LIMIT, "it is gone", || async { Ok(world.get(&path("ending")).await?.is_none()) }).await?;

    // Who does not ask for updates has none.
    let quiet = of("quiet", "quiet", 1);
    world.create(DEPLOYMENTS, &quiet).await?;
    assert_eq!(world.containers_of("quiet").await?, ["app", "envoy"]);
    world.replace(&of("quiet", "quiet", 5)).await?;
    assert_eq!(world.containers_of("quiet").await?, ["app"]);
    world.replace(&of("quiet", "quiet-before", 6)).await?;
    Ok(())
}

/// The message of a refused `kubectl replace`.
async fn refused(world: &World, body: &Value) -> Result<String> {
    match world.replace(body).await {
        Ok(_) => bail!("it was let in: {body}"),
        Err(error) => Ok(error.to_string()),
    }
}

/// Validations, with policies in effect. Returns what kubectl prints for an update that is broken as before.
async fn judges(world: &World) -> Result<String> {
    world.create(DEPLOYMENTS, &of("judge", "good", 1)).await?;
    world.replace(&of("judge", "good", 2)).await?;
    let told = refused(world, &of("judge", "good", 3)).await?;
    ensure!(told.contains("SidecarPolicy `judge` refuses this Deployment: SCP0210: too many"), "{told}");
    // What was broken before can be scaled, changed, and deleted.
    let warned = world.replace(&with_finalizer(of("judge", "broken", 6))).await?;
    world.kubectl("scale deployment broken --replicas=7").await?;
    world.kubectl("label deployment broken more=x").await?;
    world.patch(&path("broken"), &json!([{ "op": "remove", "path": "/metadata/finalizers" }])).await?;
    let mut held = json!([{ "op": "add", "path": "/metadata/finalizers", "value": ["example.org/hold"] }]);
    world.patch(&path("broken"), &held).await?;
    world.delete(&path("broken")).await?;
    held[0]["op"] = json!("remove");
    world.patch(&path("broken"), &held).await?;
    within(LIMIT, "it is gone", || async { Ok(world.get(&path("broken")).await?.is_none()) }).await?;
    Ok(warned)
}

/// What `Fail` refuses, with policies in effect.
async fn refuses_what_is_lost_for_good(world: &World) -> Result<()> {
    let strict = of("strict", "strict", 1);
    world.create(DEPLOYMENTS, &strict).await?;
    world.replace(&strict).await?;
    assert_eq!(world.containers_of("strict").await?, ["app", "envoy"]);
    let mut conflict = strict.clone();
    conflict["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
    let told = refused(world, &conflict).await?;
    ensure!(told.contains("SidecarPolicy `strict` refuses this Deployment: SCP02"), "{told}");
    world.kubectl("scale deployment strict --replicas=0").await?;
    world.delete(&path("strict")).await
}

async fn webhooks_give_back_what_an_update_takes_and_refuse_what_it_breaks() -> Result<()> {
    let scene = Scene::new(Version::NEWEST, site()).await?;
    before(&scene.world).await?;
    scene.register(policies().iter().map(policy).collect::<Result<_>>()?).await?;
    gives_back(&scene.world).await?;
    let metrics = || scene.webhook.operator.metrics.render();
    // Two creates, and three updates that took the sidecar away.
    let series = [
        r#"policy="sidecar",reason="Programmed",result="injected"} 5"#,
        r#"policy="sidecar",reason="OptedOut",result="skipped"} 1"#,
        r#"policy="quiet",reason="Programmed",result="injected"} 1"#,
    ];
    for series in series {
        within(LIMIT, series, || async { Ok(metrics().contains(series)) }).await.with_context(metrics)?;
    }
    let warned = judges(&scene.world).await?;
    ensure!(
        warned.contains("SidecarPolicy `judge` does not allow this Deployment, as before: SCP0210: too many"),
        "{warned}"
    );
    let told = r#"policy="judge",reason="ValidationFailed",result="rejected"} 1"#;
    within(LIMIT, told, || async { Ok(metrics().contains(told)) }).await.with_context(metrics)?;
    refuses_what_is_lost_for_good(&scene.world).await?;
    // Nobody answers any more: updates go on, also where `Fail` refuses creates.
    let strict = of("strict", "late", 1);
    scene.world.create(DEPLOYMENTS, &strict).await?;
    let world = scene.stop().await?;
    world.replace(&strict).await?;
    assert_eq!(world.containers_of("late").await?, ["app"]);
    ensure!(world.create(DEPLOYMENTS, &of("strict", "later", 1)).await.is_err(), "creates are refused");
    Ok(())
}

async fn admission_policies_give_back_what_an_update_takes_and_refuse_what_it_breaks() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    before(&world).await?;
    register_everything(&world, &policies()).await?;
    gives_back(&world).await?;
    judges(&world).await?;
    refuses_what_is_lost_for_good(&world).await
}

/// The oldest CEL that judges.
async fn validating_admission_policies_of_1_30_refuse_what_an_update_breaks() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::V1_30)).await?;
    before(&world).await?;
    let judge = policies().into_iter().find(|object| object["metadata"]["name"] == "judge").context("it is there")?;
    let judge = Arc::new(policy(&judge)?);
    let capabilities = world.capabilities().await?;
    for object in validating(&judge.kinds[0], from_ref(&judge), &capabilities, &site())? {
        world.register(&object).await?;
    }
    let broken = of("judge", "probe", 3);
    let dry = format!("{DEPLOYMENTS}?dryRun=All");
    within(LIMIT, "it judges", || async { Ok(world.create(&dry, &broken).await.is_err()) }).await?;
    judges(&world).await.map(drop)
}

async fn a_webhook_of_1_13_gives_back_what_an_update_takes() -> Result<()> {
    let scene = Scene::new(Version::V1_13, site()).await?;
    before(&scene.world).await?;
    // `Fail` cannot be served there.
    let served = policies().into_iter().filter(|policy| policy["spec"]["failurePolicy"] != "Fail");
    scene.register(served.map(|object| policy(&object)).collect::<Result<_>>()?).await?;
    gives_back(&scene.world).await
}

/// The random updates of a scene.
const UPDATES: usize = 6;

/// The next form of a workload that was posted as `posted`, and injected as `injected`: a client takes something away.
fn edited(made: &mut Scenes, posted: &Value, injected: &Value, at: &str, form: usize) -> Value {
    let list = |field: &str| format!("{at}/spec/{field}");
    let mut next = injected.clone();
    match form {
        // The whole manifest anew.
        0 => next.clone_from(posted),
        // The marker is left.
        1 => {
            let containers = posted.pointer(&list("containers")).cloned().unwrap_or_default();
            next.pointer_mut(&list("containers")).into_iter().for_each(|at| *at = containers.clone());
        }
        2 => {
            for field in ["volumes", "initContainers", "imagePullSecrets"] {
                let own = posted.pointer(&list(field)).cloned();
                if let Some(Value::Object(spec)) = next.pointer_mut(&format!("{at}/spec")) {
                    spec.remove(field);
                    spec.extend(own.map(|own| (field.to_owned(), own)));
                }
            }
        }
        3 => {
            let containers = next.pointer_mut(&list("containers")).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                container.retain(|field, _| !["env", "envFrom", "volumeMounts"].contains(&field.as_str()));
            }
        }
        // Only the markers and other annotations go.
        4 => {
            let own = posted.pointer(&format!("{at}/metadata")).cloned().unwrap_or_default();
            next.pointer_mut(&format!("{at}/metadata")).into_iter().for_each(|at| *at = own.clone());
        }
        _ => {
            if let Some(pod) = next.pointer_mut(at) {
                *pod = made.pod();
                if let Some(Value::Object(labels)) = pod.pointer_mut("/metadata/labels") {
                    labels.insert("app".into(), json!("web"));
                }
            }
        }
    }
    next
}

/// The object as the webhook would have it stored after an update; none if it refuses the update.
fn decided_update((kind, policies): &Targeted, old: &Value, new: &Value) -> Result<Option<Value>> {
    let policies = Policies::new(policies.iter().cloned());
    let namespace =
        json!({ "metadata": { "name": "default", "labels": { "kubernetes.io/metadata.name": "default" } } });
    let ask = |call: Call, object: &Value| -> Result<Value> {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u", "operation": "UPDATE", "namespace": "default", "object": object, "oldObject": old,
                "resource": { "group": kind.group, "version": "v1", "resource": kind.resource },
            },
        });
        let review = Review::parse(review.to_string().as_bytes())?;
        let namespace = Some(Arc::new(namespace.clone()));
        let caller = Caller { call, revision: None, policies: &policies, listed: None };
        let answer = review.answer(&caller, &crate::admission_policy::site(), namespace);
        Ok(serde_json::from_slice::<Value>(&answer.body)?["response"].clone())
    };
    let mut stored = new.clone();
    if let Some(patch) = ask(Call::Mutate, new)?["patch"].as_str() {
        let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch)?)?;
        json_patch::patch(&mut stored, &patch)?;
    }
    let is_allowed = ask(Call::Validate, &stored)?["allowed"] == true;
    Ok(is_allowed.then_some(stored))
}

/// The result of a dry-run update.
async fn dry_run_update(world: &World, body: &Value) -> Result<Stored> {
    let name = body["metadata"]["name"].as_str().context("a name")?;
    let path = format!("{}/{name}?dryRun=All", collection(body)?);
    match request(&world.admin, "PUT", &path, body).await {
        Ok(stored) => Stored::of(stored),
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 422) => Ok(Stored::Refused),
        Err(error) => Err(error).context(body.to_string()),
    }
}

async fn whatever_an_update_takes_it_is_decided_as_elsewhere() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST).extra_arg("--request-timeout=5m")).await?;
    corpus::define(&world).await?;
    let cluster = world.capabilities().await?;
    let kinds = [
        (("apps", "deployments"), "apps/v1", "Deployment", Content::Valid),
        (("example.org", "rollouts"), "example.org/v1", "Rollout", Content::Strange),
    ];
    let at = "/spec/template";
    let (mut objects, mut posts) = (Vec::new(), Vec::new());
    for ((group, resource), api, kind, content) in kinds {
        let targets = json!([{ "group": group, "resource": resource, "operations": ["CREATE", "UPDATE"] }]);
        for scene in scenes(0..6) {
            let id = format!("{}-{scene}", kind.to_lowercase());
            let mut made = Scenes::new(scene, content);
            let policies = made.policies(&targets).into_iter().map(|(name, mut spec)| {
                // Of two policies, one refuses.
                spec["failurePolicy"] = json!(if name == "p0" { "Fail" } else { "Ignore" });
                json!({ "metadata": { "name": name }, "spec": spec })
            });
            let policies: Vec<Value> = policies.collect();
            let parsed = by_kind(&policies)?;
            objects.extend(registrations(&id, &policies, &cluster)??);
            for form in 0..UPDATES {
                let mut posted = around(made.pod(), api, kind, at, &id);
                posted["metadata"]["name"] = json!(format!("w-{id}-{form}"));
                let injected = decided(&parsed, &posted);
                let created = request(&world.admin, "POST", &collection(&injected)?, &injected).await;
                let old = match created {
                    Ok(old) => old,
                    Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => continue,
                    Err(error) => return Err(error.into()),
                };
                let mut new = edited(&mut made, &posted, &injected, at, form);
                new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
                let decided = decided_update(&parsed[0], &old, &new)?;
                let expected = match &decided {
                    Some(decided) => dry_run_update(&world, decided).await?,
                    None => Stored::Refused,
                };
                let is_given_back = decided.is_some_and(|decided| decided != new);
                posts.push((id.clone(), policies.clone(), old, new, expected, is_given_back));
            }
        }
    }
    register_all(&world, objects, &cluster).await?;
    let (mut differences, mut given_back, mut stored) = (Vec::new(), 0, 0);
    for (id, policies, old, new, expected, is_given_back) in &posts {
        let found = dry_run_update(&world, new).await?;
        stored += usize::from(found != Stored::Refused);
        given_back += usize::from(*is_given_back && found != Stored::Refused);
        if found != *expected {
            let policies = json!(policies);
            differences.push(format!(
                "{id}:\n  policies {policies}\n  old {old}\n  new {new}\n  decided {expected:?}\n  server  {found:?}"
            ));
        }
    }
    let told = differences.iter().take(3).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {} differ, {stored} stored\n{told}", differences.len(), posts.len());
    assert!(given_back > posts.len() / 6, "only {given_back} of {} got something back", posts.len());
    Ok(())
}

/// The whole operator, which delivers by itself and by the API server.
async fn an_operator_registers_updates_and_tells_what_they_lose() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::NEWEST)).await?.operated(&[]).await?;
    for engine in ["Webhook", "MutatingAdmissionPolicy"] {
        let mut spec = policies()[0]["spec"].clone();
        spec["engine"] = json!(engine);
        world.enforce("sidecar", spec).await?;
        let name = engine.to_lowercase();
        let manifest = of("sidecar", &name, 1);
        world.create_promptly(DEPLOYMENTS, &manifest).await?;
        world.replace(&manifest).await?;
        assert_eq!(world.containers_of(&name).await?, ["app", "envoy"], "{engine}");
        // What cannot come back is told once, however it was delivered.
        let mut conflict = manifest.clone();
        conflict["spec"]["template"]["spec"]["containers"][0]["name"] = json!("envoy");
        world.replace(&conflict).await?;
        let event = world.event(&name, "SidecarInjectionFailed").await?;
        ensure!(event.contains("SidecarPolicy `sidecar`: container `envoy` exists"), "{event}");
        let series = format!(
            r#"scpol_injections_total{{engine="{engine}",policy="sidecar",reason="NameConflict",result="failed"}}"#
        );
        within(LIMIT, &series, || async { Ok(operator.metric(&series).await? == 1.0) }).await?;
        world.delete(&path(&name)).await?;
        world.delete_policy("sidecar").await?;
        within(LIMIT, "nothing is registered", || async { Ok(world.registered().await?.is_empty()) }).await?;
    }
    assert_eq!(operator.metric("scpol_panics_total").await?, 0.0);
    Ok(())
}
