//! Workloads that the server would reject because of an injection: the cases `refused-..` of `tests/golden`. Under
//! `Ignore` they are created without the template, with a report. Under `Fail` our own engine rejects them. `parity.rs`
//! compares the stored objects.

use crate::commands::scpol;
use crate::corpus::{self, Case, Stored, collection, dry_run};
use crate::engine::EngineName::{self, Initializer, MutatingAdmissionPolicy, Webhook};
use crate::exceptions::{Exceptions, Setup};
use crate::parity::{bare, grant};
use crate::prelude::*;
use sidecar_policy::api::code::Code;
use sidecar_policy::api::pod_schema::{Fault, in_pod};

crate::tests![
    servers_of_1_30_refuse_what_an_injection_without_a_look_would_make = refuse(Version::V1_30),
    servers_of_1_34_refuse_what_an_injection_without_a_look_would_make = refuse(Version::V1_34),
    servers_of_1_36_refuse_what_an_injection_without_a_look_would_make = refuse(Version::NEWEST),
    an_initializer_lets_them_through_and_tells_why =
        let_through(Setup { engine: Initializer, version: Version::V1_13 }),
    a_webhook_lets_them_through_and_tells_why = let_through(Setup { engine: Webhook, version: Version::NEWEST }),
    a_webhook_of_1_30_lets_them_through_and_tells_why = let_through(Setup { engine: Webhook, version: Version::V1_30 }),
    a_webhook_of_1_34_lets_them_through_and_tells_why = let_through(Setup { engine: Webhook, version: Version::V1_34 }),
    a_mutating_admission_policy_lets_them_through_and_tells_why =
        let_through(Setup { engine: MutatingAdmissionPolicy, version: Version::NEWEST }),
];

/// The prefix of the cases' names.
const PREFIX: &str = "refused-";
/// The number of cases whose policies are in effect at once.
const AT_ONCE: usize = 5;

fn cases(version: Version) -> Result<Vec<Case>> {
    let cases: Vec<Case> = corpus::cases(version)?.into_iter().filter(|case| case.name.starts_with(PREFIX)).collect();
    ensure!(cases.len() >= 40, "{} cases", cases.len());
    Ok(cases)
}

// The cases match their description

/// Cases that no server rejects. Servers do not check the selectors of custom resources, and ignore fields whose
/// feature gates are off in every version.
const TAKEN: [&str; 3] = ["refused-selector-custom", "refused-stop-signal", "refused-stop-signal-windows"];
/// Cases with a field that this version drops, because its feature gate is off by default. Then the injection has no
/// fault.
const DROPPED: [(Version, &str); 7] = [
    (Version::V1_30, "refused-claim"),
    (Version::V1_30, "refused-claim-fail"),
    (Version::V1_30, "refused-claim-init-container"),
    (Version::V1_30, "refused-claim-pod"),
    (Version::V1_30, "refused-device-in-user-namespace"),
    (Version::V1_30, "refused-proc-mount"),
    (Version::V1_30, "refused-resize-policy"),
];
/// Cases that the Pod Security Standards of this version do not forbid yet: `parity.rs` shows that they are injected.
const LATER: [(Version, &str); 1] = [(Version::V1_30, "refused-pod-security-host-probe")];

/// Without an operator, everything is merged by hand. The server must reject that, but accept the workload alone.
async fn refuse(version: Version) -> Result<()> {
    let (world, mut cases) = (bare(ControlPlane::builder(version)).await?, cases(version)?);
    cases.retain(|case| knows(version, case));
    corpus::define(&world).await?;
    corpus::create_namespaces(&world, &cases).await?;
    let mut faults = Vec::new();
    for case in &cases {
        let mut made = Vec::new();
        for body in [case.workload.clone(), merged(case)?] {
            let mut refusal = None;
            for object in products(&body) {
                let (stored, told) = dry_run(&world.admin, &object).await.context(case.name.clone())?;
                refusal = refusal.or((stored == Stored::Refused).then_some(told));
            }
            made.push(refusal);
        }
        let named = (version, case.name.as_str());
        let is_taken = TAKEN.contains(&named.1) || DROPPED.contains(&named) || LATER.contains(&named);
        let is_expected = made[0].is_none() && made[1].is_some() != is_taken;
        faults.extend((!is_expected).then(|| format!("{}: without {:?}, with {:?}", case.name, made[0], made[1])));
    }
    ensure!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
    ensure!(cases.len() >= least(version), "{} cases", cases.len());
    Ok(())
}

/// The least number of cases that a server of that version knows.
fn least(version: Version) -> usize {
    let least = [(Version::V1_13, 20), (Version::V1_30, 40)];
    least.iter().find_map(|(other, least)| (*other == version).then_some(*least)).unwrap_or(50)
}

/// Whether a server of that version knows every field of the case, apart from feature gates. It drops unknown fields
/// before admission. For 1.13, `exceptions.yaml` names such cases.
fn knows(version: Version, case: &Case) -> bool {
    let pod = case.workload.pointer(pod_path(&case.workload["kind"]));
    let faults = pod.map(|pod| in_pod(pod, "", Some(version.minor()))).unwrap_or_default();
    let is_unknown = |fault: &Fault| fault.kind.code() == Code::UnknownTemplateField;
    version == Version::V1_13
        || !faults.iter().any(is_unknown) && !case.policies.iter().any(|policy| corpus::is_beyond(version, policy))
}

/// The pointer of the pod in a workload.
fn pod_path(kind: &Value) -> &'static str {
    match kind.as_str() {
        Some("Pod") => "",
        Some("CronJob") => "/spec/jobTemplate/spec/template",
        _ => "/spec/template",
    }
}

/// The workload merged with all templates, without checks.
fn merged(case: &Case) -> Result<Value> {
    let mut body = case.workload.clone();
    let pod = body.pointer_mut(pod_path(&case.workload["kind"])).context("a pod")?;
    let ends = !matches!(pod["spec"]["restartPolicy"].as_str(), None | Some("Always"));
    for policy in &case.policies {
        let mut template = policy["spec"]["template"].clone();
        if ends && policy["spec"]["nativeSidecars"] != "Never" {
            let mut containers = template["containers"].take();
            for container in containers.as_array_mut().into_iter().flatten() {
                container["restartPolicy"] = json!("Always");
                // The position of sidecars.
                let inits = pod["spec"].as_object_mut().context("a spec")?.entry("initContainers").or_insert(json!([]));
                inits.as_array_mut().context("a list")?.insert(0, container.clone());
            }
        }
        let own = pod["spec"]["containers"].as_array_mut().context("containers")?;
        for container in own {
            for list in ["env", "volumeMounts"] {
                for item in template[list].as_array().into_iter().flatten() {
                    push(container, list, item);
                }
            }
        }
        for list in ["volumes", "initContainers", "containers"] {
            for item in template[list].as_array().into_iter().flatten() {
                push(&mut pod["spec"], list, item);
            }
        }
        for map in ["labels", "annotations"] {
            for (key, value) in template["metadata"][map].as_object().into_iter().flatten() {
                pod["metadata"][map][key] = value.clone();
            }
        }
    }
    Ok(body)
}

fn push(object: &mut Value, list: &str, item: &Value) {
    if object[list].is_null() {
        object[list] = json!([]);
    }
    object[list].as_array_mut().into_iter().for_each(|items| items.push(item.clone()));
}

/// A workload, and the objects that its controllers make of it, the last one a pod.
fn products(body: &Value) -> Vec<Value> {
    let of = |api: &str, kind: &str, template: &Value| {
        let mut object = template.clone();
        object["apiVersion"] = json!(api);
        object["kind"] = json!(kind);
        if object["metadata"].is_null() {
            object["metadata"] = json!({});
        }
        object["metadata"]["name"] = body["metadata"]["name"].clone();
        object["metadata"]["namespace"] = body["metadata"]["namespace"].clone();
        object
    };
    let mut products = vec![body.clone()];
    if body["kind"] == "CronJob" {
        products.push(of("batch/v1", "Job", &body["spec"]["jobTemplate"]));
    }
    if body["kind"] != "Pod" {
        products.extend(body.pointer(pod_path(&body["kind"])).map(|pod| of("v1", "Pod", pod)));
    }
    products
}

// The engines

async fn let_through(setup: Setup) -> Result<()> {
    let exceptions = Exceptions::of(setup)?;
    // Initializers cannot change Jobs, so a policy for both is rejected. Without native sidecars, pods that end are
    // skipped before all other checks.
    let is_served = |case: &Case| {
        let is_left_out = case.workload["kind"] == "Job"
            || case.name == "refused-pod-resources-native"
            || case.workload["kind"] == "CronJob" && code(case).is_ok_and(|code| code == Code::NamespaceForbids);
        let is_job = setup.version == Version::V1_13 && is_left_out;
        !is_job
            && !exceptions.has(&case.name)
            && knows(setup.version, case)
            && !DROPPED.contains(&(setup.version, &case.name))
            && !LATER.contains(&(setup.version, &case.name))
    };
    let cases: Vec<Case> = cases(setup.version)?.into_iter().filter(is_served).collect();
    let world = World::with(ControlPlane::builder(setup.version)).await?;
    corpus::define(&world).await?;
    corpus::create_namespaces(&world, &cases).await?;
    grant(&world).await?;
    let flags = [&["--protected-namespaces=vault"], &TRUSTING[..]].concat();
    let operator = Operator::ready(&world.cluster, &flags).await?;
    let mut failing = 0;
    for cases in cases.chunks(AT_ONCE) {
        for policy in cases.iter().flat_map(|case| &case.policies) {
            let mut spec = policy["spec"].clone();
            spec["engine"] = json!(setup.engine.name());
            world.policy(policy["metadata"]["name"].as_str().context("a name")?, spec).await?;
        }
        let names: Vec<&str> = cases
            .iter()
            .flat_map(|case| &case.policies)
            .filter_map(|policy| policy["metadata"]["name"].as_str())
            .collect();
        for name in &names {
            in_force(&world.cluster, name).await?;
        }
        for case in cases {
            let checked = if case.injected.is_none() {
                failing += 1;
                is_refused(&world, case, setup.engine).await
            } else {
                is_let_through(&world, &operator, case, setup.engine).await
            };
            checked.with_context(|| case.name.clone())?;
        }
        for name in &names {
            world.delete_policy(name).await?;
        }
    }
    let tested = cases.len();
    ensure!(failing >= 1 && tested >= least(setup.version), "{failing} of {tested} cases are refused");
    Ok(())
}

/// The expected code of the case in `scpol test`.
fn code(case: &Case) -> Result<Code> {
    let expected = std::fs::read_to_string(file("tests/golden").join(&case.name).join("expected.txt"))?;
    let named = Code::ALL.iter().copied().find(|code| expected.split_whitespace().any(|word| word == code.to_string()));
    named.with_context(|| format!("no code in `{expected}`"))
}

async fn is_let_through(world: &World, operator: &Operator, case: &Case, engine: EngineName) -> Result<()> {
    let (code, path) = (code(case)?, collection(&case.workload)?);
    let created = request(&world.admin, "POST", &path, &case.workload).await?;
    let (name, namespace) = (&created["metadata"]["name"], &created["metadata"]["namespace"]);
    let (name, namespace) = (name.as_str().context("a name")?, namespace.as_str().context("a namespace")?);
    ensure!(!created.to_string().contains("injected.scpol.dev/"), "it is injected: {created}");
    let about = format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}");
    within(LIMIT, "an event tells of it", || async {
        let events = request(&world.admin, "GET", &about, &Value::Null).await?;
        let tells = |event: &Value| {
            let told = event["message"].as_str().is_some_and(|message| message.starts_with(&format!("{code}: ")));
            event["reason"] == "SidecarInjectionFailed" && told
        };
        Ok(events["items"].as_array().is_some_and(|events| events.iter().any(tells)))
    })
    .await?;
    let policy = case.policies[0]["metadata"]["name"].as_str().context("a name")?;
    let labels = [("policy", policy), ("engine", engine.name()), ("result", "failed"), ("reason", code.name())];
    let labels = labels.map(|(label, value)| format!("{label}=\"{value}\""));
    within(LIMIT, "it is counted", || async {
        let (_, metrics) = operator.get("/metrics").await?;
        let is_it =
            |line: &str| line.starts_with("scpol_injections_total{") && labels.iter().all(|label| line.contains(label));
        Ok(metrics.lines().any(is_it))
    })
    .await?;
    let kind = case.workload["kind"].as_str().context("a kind")?;
    let group = case.workload["apiVersion"].as_str().and_then(|api| Some(api.split_once('/')?.0)).unwrap_or_default();
    let resource = match path.rsplit('/').next().context("a resource")? {
        plural if group.contains('.') => format!("{plural}.{group}"),
        _ => kind.to_lowercase(),
    };
    let (_, told) = scpol(&world.cluster, &["explain", "-n", namespace, &format!("{resource}/{name}")]).await?;
    ensure!(told.contains(&code.to_string()), "`scpol explain` says: {told}");
    Ok(())
}

async fn is_refused(world: &World, case: &Case, engine: EngineName) -> Result<()> {
    let told = match request(&world.admin, "POST", &collection(&case.workload)?, &case.workload).await {
        Ok(created) => bail!("it is created: {created}"),
        Err(error) => format!("{error:#}"),
    };
    // On current servers a ValidatingAdmissionPolicy rejects first. It has no words for some reasons.
    let code = code(case)?;
    let is_told = told.contains(&code.to_string());
    let is_unsaid = engine != Initializer && told.contains(&Code::SidecarMissing.to_string());
    let policy = case.policies[0]["metadata"]["name"].as_str().context("a name")?;
    ensure!((is_told || is_unsaid) && told.contains(policy), "{code}, but the server says: {told}");
    Ok(())
}
