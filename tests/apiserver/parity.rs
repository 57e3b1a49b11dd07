//! Files and engines agree: for each case of `tests/golden`, a server with an engine stores the same bytes of the original
//! workload as a server without one stores of the output of `scpol inject`. `exceptions.yaml` names the other cases.

use crate::admission_policy::{by_kind_knowing, registrations_knowing, settle};
use crate::corpus::{self, Case, PARALLEL, Stored, collection, dry_run};
use crate::engine::EngineName::{self, Initializer, MutatingAdmissionPolicy, Webhook};
use crate::exceptions::{Exceptions, Setup, Verdict};
use crate::prelude::*;
use crate::webhook_scene::{OPERATOR, Scene, policy, site};
use controlplane::Builder;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use sidecar_policy::api::code::Code;
use sidecar_policy::compile::admission_policy::left_out;
use sidecar_policy::compile::webhook;
use sidecar_policy::policy::{Policies, Site};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

crate::tests![
    initializers_store_the_corpus_as_scpol_inject_says =
        stores_the_corpus(Setup { engine: Initializer, version: Version::V1_13 }),
];

/// The time limit for the operator to register hundreds of policies.
const SETTLED: Duration = Duration::from_secs(600);

pub(crate) async fn stores_the_corpus(setup: Setup) -> Result<()> {
    let (cases, exceptions) = (corpus::cases(setup.version)?, Exceptions::of(setup)?);
    let world = match setup.engine {
        Initializer => World::with(ControlPlane::builder(setup.version)).await?,
        // No operator runs.
        MutatingAdmissionPolicy => bare(ControlPlane::builder(setup.version).admission_policies()).await?,
        Webhook => bare(ControlPlane::builder(setup.version)).await?,
    };
    corpus::define(&world).await?;
    corpus::create_namespaces(&world, &cases).await?;
    let admin = world.admin.clone();
    let without = each(&cases, async |case| Without::of(&admin, case).await).await?;
    let engine = match setup.engine {
        Initializer => operator(world, &cases, &exceptions).await?,
        Webhook => webhook(world, &cases).await?,
        MutatingAdmissionPolicy => admission_policies(world, &cases, &without).await?,
    };
    let served: Vec<&Case> = cases.iter().filter(|case| !engine.unserved.contains_key(&case.name)).collect();
    let ask = async |case: &&Case| Ok(dry_run(&admin, &case.workload).await?.0);
    let found = match setup.engine {
        Initializer => store(&admin, &served).await?,
        MutatingAdmissionPolicy | Webhook => each(&served, ask).await?,
    };
    let found: BTreeMap<&str, Stored> = served.iter().map(|case| case.name.as_str()).zip(found).collect();
    let (mut faults, mut injected) = (Vec::new(), 0);
    for (case, without) in cases.iter().zip(&without) {
        let expected = without.expected(setup.engine);
        let (verdict, detail) = match found.get(case.name.as_str()) {
            None => (Verdict::NotServed(engine.unserved[&case.name]), "the engine does not serve a policy".to_owned()),
            Some(_) if without.is_refused() => (Verdict::Refused, without.refusal.clone()),
            Some(found) if found == expected => (Verdict::Agrees, String::new()),
            Some(found) => (Verdict::Differs, format!("\n  files  {expected:?}\n  server {found:?}")),
        };
        let is_injected = matches!(expected, Stored::As(body) if body.to_string().contains("injected.scpol.dev/c"));
        injected += usize::from(is_injected && verdict == Verdict::Agrees);
        faults.extend(exceptions.fault(&case.name, verdict, &detail));
    }
    ensure!(faults.is_empty(), "{} of {} cases\n{}", faults.len(), cases.len(), faults.join("\n"));
    // Guards against an engine and files that both do nothing.
    ensure!(injected >= 100, "only {injected} cases agree and are injected");
    Ok(())
}

/// A server without the install files: only the namespace of the operator exists.
pub(crate) async fn bare(builder: Builder) -> Result<World> {
    let cluster = builder.start().await?;
    let (admin, creator) = (cluster.admin(), cluster.client(User::Creator));
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": OPERATOR } });
    request(&admin, "POST", "/api/v1/namespaces", &namespace).await?;
    Ok(World { cluster, admin, creator })
}

/// The results of `ask` for each of `items`, in their order. Several requests are under way at once.
async fn each<T, R>(items: &[T], ask: impl AsyncFn(&T) -> Result<R>) -> Result<Vec<R>> {
    stream::iter(items.iter().map(|item| ask(item))).buffered(PARALLEL).try_collect().await
}

/// The results of a case on a server without an engine.
struct Without {
    /// The result for the workload as a user posts it.
    plain: Stored,
    /// The message of its rejection.
    refusal: String,
    /// The result for the output of `scpol inject`; none if `scpol inject` says that the create would be rejected.
    by_hand: Option<Stored>,
}

impl Without {
    async fn of(admin: &Client, case: &Case) -> Result<Self> {
        let (plain, refusal) = dry_run(admin, &case.workload).await?;
        let by_hand = match &case.injected {
            Some(injected) => Some(dry_run(admin, injected).await?.0),
            None => None,
        };
        Ok(Self { plain, refusal, by_hand })
    }

    /// Whether the server rejects the workload with the sidecar and without it.
    fn is_refused(&self) -> bool {
        self.plain == Stored::Refused && self.by_hand.as_ref().is_none_or(|stored| *stored == Stored::Refused)
    }

    /// The expected result with the engine in effect.
    fn expected(&self, engine: EngineName) -> &Stored {
        match &self.by_hand {
            None => &Stored::Refused,
            // The server validates the workload before the operator sees it.
            Some(_) if engine == Initializer && self.plain == Stored::Refused => &Stored::Refused,
            // The server rejects the operator's patch, and the operator completes the workload without the sidecar.
            Some(Stored::Refused) if engine == Initializer => &self.plain,
            Some(stored) => stored,
        }
    }
}

/// The results for the workloads, once the operator has completed them.
async fn store(admin: &Client, cases: &[&Case]) -> Result<Vec<Stored>> {
    // Because these may wait for a foreign initializer for ever, the create does not wait. They are created first and read
    // last: by then the operator has seen them.
    let (foreign, ours): (Vec<&Case>, Vec<&Case>) =
        cases.iter().partition(|case| case.workload["metadata"].get("initializers").is_some());
    let mut refused = BTreeSet::new();
    for (cases, query) in [(foreign, "?includeUninitialized=1"), (ours, "")] {
        let create = async |case: &&Case| {
            let path = collection(&case.workload)? + query;
            Ok(corpus::create(admin, &path, &case.workload).await?.0 == Stored::Refused)
        };
        let answers = each(&cases, create).await?;
        refused.extend(cases.iter().zip(answers).filter(|(_, refused)| *refused).map(|(case, _)| &case.name));
    }
    let read = async |case: &&Case| {
        if refused.contains(&case.name) {
            return Ok(Stored::Refused);
        }
        let name = case.workload["metadata"]["name"].as_str().context("a name")?;
        let path = format!("{}/{name}", collection(&case.workload)?);
        Stored::of(request(admin, "GET", &path, &Value::Null).await?)
    };
    each(cases, read).await
}

/// An engine with the policies of the corpus in effect.
struct Engine {
    /// The cases with a policy that the engine does not serve, with the reason.
    unserved: BTreeMap<String, Code>,
    /// The engine and its server, until this is dropped.
    _running: Box<dyn Any>,
}

/// Initializers, as the operator registers them.
async fn operator(world: World, cases: &[Case], exceptions: &Exceptions) -> Result<Engine> {
    grant(&world).await?;
    // At level `debug` the log has a line for each policy and each workload.
    let flags = [&["--protected-namespaces=vault", "--log-level=info", "--max-policies=2000"], &TRUSTING[..]].concat();
    let operator = Operator::ready(&world.cluster, &flags).await?;
    let objects: Vec<&Value> = cases.iter().flat_map(|case| &case.policies).collect();
    let path = "/apis/scpol.dev/v1alpha1/sidecarpolicies";
    each(&objects, async |policy| Ok(request(&world.admin, "POST", path, policy).await?)).await?;
    let unserved = unserved(&world, &exceptions.codes()).await?;
    let code = |case: &Case| {
        let names = case.policies.iter().filter_map(|policy| policy["metadata"]["name"].as_str());
        names.filter_map(|name| unserved.get(name)).next().map(|code| (case.name.clone(), *code))
    };
    Ok(Engine { unserved: cases.iter().filter_map(code).collect(), _running: Box::new((operator, world)) })
}

/// Grants the operator its rights on the custom resources of the corpus, and on the other kinds that its policies
/// judge.
pub(crate) async fn grant(world: &World) -> Result<()> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "corpus" },
        "rules": [
            { "apiGroups": ["example.org", "example.com"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["*"] },
            // Under the names of these resources.
            { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["update", "delete"] },
        ],
    });
    request(&world.admin, "POST", &format!("{rbac}/clusterroles"), &role).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "corpus" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "corpus" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": User::Operator.name() }],
    });
    request(&world.admin, "POST", &format!("{rbac}/clusterrolebindings"), &binding).await?;
    Ok(())
}

/// The policies that are not ready, each with its reason, once all policies are ready or have one of the `expected`
/// reasons. A policy with another reason has [`SETTLED`] to become ready.
async fn unserved(world: &World, expected: &[Code]) -> Result<BTreeMap<String, Code>> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let is_late = Instant::now() >= deadline;
        let (mut unserved, mut is_settled) = (BTreeMap::new(), true);
        for policy in policies(&world.cluster).list(&Default::default()).await? {
            let name = policy.metadata.name.context("a name")?;
            let mut conditions = policy.data["status"]["conditions"].as_array().into_iter().flatten();
            let ready = conditions.find(|condition| condition["type"] == "Ready");
            let ready = ready.cloned().unwrap_or_default();
            if ready["status"] == "True" {
                continue;
            }
            let code = Code::ALL.iter().copied().find(|code| ready["reason"] == code.name());
            is_settled &= code.is_some_and(|code| expected.contains(&code));
            let is_decided = code.is_some_and(|code| code != Code::Reconciling);
            ensure!(is_decided || !is_late, "{name} is {ready}");
            unserved.extend(code.map(|code| (name, code)));
        }
        if is_settled || is_late {
            return Ok(unserved);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// The webhook of the library, in this process.
async fn webhook(world: World, cases: &[Case]) -> Result<Engine> {
    let version = world.cluster.version();
    let native_sidecars = version.has(Feature::NativeSidecars);
    let site = Site { native_sidecars, minor: Some(version.minor()), ..site() };
    let scene = Scene::with(world, site, |group| group.starts_with("example.")).await?;
    let native = scene.webhook.operator.site().native_sidecars;
    let (mut served, mut unserved) = (Vec::new(), BTreeMap::new());
    for case in cases {
        let policies = case
            .policies
            .iter()
            .map(|object| corpus::knowing(policy(object)?, &case.earlier))
            .collect::<Result<Vec<_>>>();
        let policies = policies.with_context(|| case.name.clone())?;
        let code = policies.iter().find_map(|policy| match webhook::check(policy, &scene.capabilities) {
            Err(unavailable) => Some(unavailable.code),
            Ok(()) => (!native && policy.needs_native_sidecars()).then_some(Code::NativeSidecarsUnavailable),
        });
        let is_beyond = case.policies.iter().any(|policy| corpus::is_beyond(scene.world.cluster.version(), policy));
        let code = code.or(is_beyond.then_some(Code::UnknownTemplateField));
        match code {
            None => served.extend(policies),
            Some(code) => drop(unserved.insert(case.name.clone(), code)),
        }
    }
    scene.register(served).await?;
    Ok(Engine { unserved, _running: Box::new(scene) })
}

/// Whether values differ between workloads in `case`, so that a webhook stands by.
fn has_values(case: &Case) -> bool {
    case.policies.iter().any(|policy| policy["spec"]["parameters"].is_array())
}

/// MutatingAdmissionPolicies of each case, as the operator would register them if the cluster had no other case. Where values differ
/// between workloads, a webhook stands by.
async fn admission_policies(world: World, cases: &[Case], without: &[Without]) -> Result<Engine> {
    let capabilities = world.capabilities().await?;
    sidecar_policy::compile::admission_policy::check(&capabilities)?;
    let (mut objects, mut unserved) = (Vec::new(), BTreeMap::new());
    for case in cases {
        match registrations_knowing(&case.id, (&case.policies, &case.earlier), &capabilities)
            .with_context(|| case.name.clone())?
        {
            Ok(rendered) => objects.extend(rendered),
            Err(unavailable) => drop(unserved.insert(case.name.clone(), unavailable.code)),
        }
    }
    let (bindings, policies): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|object| object["spec"]["policyName"].is_string());
    for objects in [policies, bindings] {
        each(&objects, async |object| world.register(object).await).await?;
    }
    settle(&world, &capabilities).await?;
    let both = cases.iter().zip(without);
    let both: Vec<_> = both.filter(|(case, _)| has_values(case) && !unserved.contains_key(&case.name)).collect();
    injects_alone(&world.admin, &both).await?;
    let with_values: Vec<&Case> = both.into_iter().map(|(case, _)| case).collect();
    let scene = Scene::with(world, crate::admission_policy::site(), |group| group.starts_with("example.")).await?;
    stand_by(&scene, &with_values).await?;
    Ok(Engine { unserved, _running: Box::new(scene) })
}

/// The least number of cases with values that the server completes by itself. The others are odd on purpose.
const ALONE: usize = 50;

/// Checks that the server by itself completes most of `cases`, and leaves all others as they are.
async fn injects_alone(admin: &Client, cases: &[(&Case, &Without)]) -> Result<()> {
    let mut alone = 0;
    for (case, without) in cases {
        let found = dry_run(admin, &case.workload).await?.0;
        let is_complete = without.by_hand.as_ref() == Some(&found) && found != without.plain;
        ensure!(is_complete || found == without.plain, "{}: the server changes it in part: {found:?}", case.name);
        alone += usize::from(is_complete);
    }
    ensure!(alone >= ALONE, "the server completes {alone} of {} cases with values", cases.len());
    Ok(())
}

/// Puts the webhooks that stand by for `cases` in effect.
async fn stand_by(scene: &Scene, cases: &[&Case]) -> Result<()> {
    let mut policies = Vec::new();
    for case in cases {
        for (kind, policies) in by_kind_knowing(&case.policies, &case.earlier)? {
            let conditions = left_out(&kind, &policies).context("it has match conditions")?;
            let site = crate::admission_policy::site();
            let address = scene.address();
            let standby = webhook::standby(&kind, &policies, &conditions, &scene.capabilities, &site, &address)?;
            let mut standby = standby.context("a webhook stands by")?;
            let name = standby["metadata"]["name"].as_str().context("a name")?;
            standby["metadata"]["name"] = json!(format!("{}-{name}", case.id));
            for webhook in standby["webhooks"].as_array_mut().context("webhooks")? {
                webhook["objectSelector"] = json!({ "matchLabels": { "case": case.id } });
            }
            scene.world.register(&standby).await?;
        }
        for object in &case.policies {
            policies.push(Arc::new(corpus::knowing(policy(object)?, &case.earlier)?));
        }
    }
    scene.webhook.policies.store(Arc::new(Policies::new(policies)));
    // Servers read registrations within a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(())
}
