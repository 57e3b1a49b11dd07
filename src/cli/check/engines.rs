//! Which engines the server can run, what must be switched on for each, and whether it is.

use super::Subject;
use super::report::Item;
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cli::output::counted;
use crate::cluster::client::call;
use crate::engine::{EngineName, Unavailable};
use anyhow::{Context, Result};
use kube::Client;
use serde_json::{Value, json};

/// What is known of an engine.
pub(super) struct Engine {
    pub(super) choice: EngineChoice,
    /// As in `spec.engine`.
    pub(super) name: &'static str,
    /// The rights that it needs beyond those of every operator: the shipped files.
    pub(super) rights: &'static [&'static str],
    engine: EngineName,
    flags: fn(u32) -> Flags,
    /// The admission plugins that it takes, and what to say where one is off.
    plugins: &'static [&'static str],
    off: Code,
}

/// Every engine, in the order in which `Auto` prefers them.
pub(super) const ENGINES: [Engine; 3] = [
    Engine {
        choice: EngineChoice::Initializer,
        name: "Initializer",
        rights: &[
            include_str!("../../../config/rbac/initializer/cluster_role.yaml"),
            include_str!("../../../config/rbac/initializer/role.yaml"),
        ],
        engine: EngineName::Initializer,
        flags: initializer_flags,
        plugins: &["Initializers"],
        off: Code::InitializersPluginOff,
    },
    Engine {
        choice: EngineChoice::MutatingAdmissionPolicy,
        name: "MutatingAdmissionPolicy",
        rights: &[include_str!("../../../config/rbac/admission-policy/cluster_role.yaml")],
        engine: EngineName::MutatingAdmissionPolicy,
        flags: admission_policy_flags,
        plugins: &["MutatingAdmissionPolicy"],
        off: Code::AdmissionPolicyPluginOff,
    },
    Engine {
        choice: EngineChoice::Webhook,
        name: "Webhook",
        rights: &[
            include_str!("../../../config/rbac/webhook/cluster_role.yaml"),
            include_str!("../../../config/rbac/webhook/role.yaml"),
        ],
        engine: EngineName::Webhook,
        flags: webhook_flags,
        plugins: &["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"],
        off: Code::WebhookOff,
    },
];

/// What the API server must be started with.
enum Flags {
    /// This version has no such engine, whatever it is started with.
    Never(&'static str),
    /// Nothing: it is on, unless it was switched off.
    Default(&'static str),
    /// These.
    Needed(&'static str),
}

/// The engine that people call `word`.
///
/// # Errors
/// What to write instead.
pub(super) fn parse(word: &str) -> Result<EngineChoice, String> {
    let named = ENGINES.iter().find(|engine| engine.name.eq_ignore_ascii_case(word));
    named.map(|engine| engine.choice).ok_or_else(|| {
        let names: Vec<_> = ENGINES.iter().map(|engine| format!("`{}`", engine.name)).collect();
        format!("`{word}` is no engine; write {}, or leave `--engine` out", names.join(", "))
    })
}

/// From `docs/initializers.md`; the plugin makes the server switch its feature gate on itself.
fn initializer_flags(minor: u32) -> Flags {
    match minor {
        0..=6 => Flags::Never("Initializers came with 1.7"),
        7..=11 => Flags::Never("it needs 1.12 or 1.13"),
        12 => Flags::Needed(
            "`--enable-admission-plugins=Initializers --runtime-config=admissionregistration.k8s.io/v1alpha1=true --feature-gates=DryRun=true`",
        ),
        13 => Flags::Needed(
            "`--enable-admission-plugins=Initializers --runtime-config=admissionregistration.k8s.io/v1alpha1=true`",
        ),
        _ => Flags::Never("Initializers were removed in 1.14"),
    }
}

/// KEP-3962: alpha in 1.32, beta and off in 1.34, stable and on in 1.36.
fn admission_policy_flags(minor: u32) -> Flags {
    match minor {
        0..=31 => Flags::Never("MutatingAdmissionPolicies came with 1.32, and are stable from 1.36"),
        32..=33 => Flags::Needed(
            "`--feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1alpha1=true`; the operator uses them in version v1 only, from 1.36",
        ),
        34..=35 => Flags::Needed(
            "`--feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1beta1=true`; the operator uses them in version v1 only, from 1.36",
        ),
        _ => Flags::Default(
            "`MutatingAdmissionPolicy` must not be false in `--feature-gates`, nor be in `--disable-admission-plugins`",
        ),
    }
}

fn webhook_flags(minor: u32) -> Flags {
    match minor {
        0..=8 => Flags::Never("webhooks came with 1.9"),
        _ => Flags::Default(
            "`MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` must not be in `--disable-admission-plugins`",
        ),
    }
}

/// What is found out about the engines.
pub(super) struct Found {
    pub(super) items: Vec<Item>,
    /// Those that are used, or would be.
    pub(super) wanted: Vec<&'static Engine>,
}

pub(super) async fn check(subject: &Subject<'_>, asked: Option<EngineChoice>) -> Found {
    static ALL: [Engine; 3] = ENGINES;
    let server = subject.server();
    let in_force = subject.engines_in_force();
    let is_asked = |engine: &Engine| match asked {
        Some(choice) => engine.choice == choice,
        None => in_force.contains(&engine.engine) || is_chosen(subject, engine),
    };
    let mut items = Vec::new();
    let mut able: Vec<&'static Engine> = Vec::new();
    for engine in ALL.iter().filter(|engine| asked.is_none_or(|asked| asked == engine.choice)) {
        let item = look(engine, subject, is_asked(engine)).await;
        if item.is_usable {
            able.push(engine);
        }
        items.extend(item.items);
    }
    if able.is_empty() && asked.is_none() {
        items.push(Item::problem(
            "engines",
            Code::EngineUnavailable,
            format!("{} can run none of them as it is", server.version),
        ));
    }
    let mut wanted: Vec<_> = ALL.iter().filter(|engine| is_asked(engine)).collect();
    if wanted.is_empty() {
        wanted.extend(able.first());
    }
    Found { items, wanted }
}

/// True if and only if a policy asks for `engine` and no other.
fn is_chosen(subject: &Subject<'_>, engine: &Engine) -> bool {
    subject.policies.iter().any(|policy| policy.is_enforced() && policy.spec.engine == engine.choice)
}

struct Looked {
    items: Vec<Item>,
    is_usable: bool,
}

async fn look(engine: &Engine, subject: &Subject<'_>, is_asked: bool) -> Looked {
    let check = format!("engine {}", engine.name);
    let server = subject.server();
    let flags = (engine.flags)(server.minor.1);
    let hint = match flags {
        Flags::Never(why) => format!("not on this server: {why}"),
        Flags::Default(flags) => format!("needs no flag of the API server; {flags}"),
        Flags::Needed(flags) => format!("the API server must be started with {flags}"),
    };
    let not_able = |unavailable: Unavailable| {
        let message = format!("{}; {hint}", unavailable.message);
        let item = if is_asked {
            Item::problem(&*check, unavailable.code, message)
        } else {
            Item::info(&*check, format!("cannot be used: {hint}"))
        };
        Looked { items: vec![item], is_usable: false }
    };
    if let Err(unavailable) = engine.engine.check(server) {
        return not_able(unavailable);
    }
    match is_switched_on(engine, subject).await {
        Ok(On::Yes(how)) => Looked { items: vec![Item::ok(&*check, format!("works: {how}"))], is_usable: true },
        Ok(On::No(unavailable)) => not_able(unavailable),
        Ok(On::Unproven) => {
            Looked { items: vec![Item::ok(&*check, format!("its API is served; {hint}"))], is_usable: true }
        }
        Err(error) => Looked { items: vec![Item::unknown(&*check, &error)], is_usable: true },
    }
}

/// Whether what is served has effect.
enum On {
    /// And by what it is seen.
    Yes(String),
    No(Unavailable),
    /// Nothing shows it to this user before a policy uses the engine.
    Unproven,
}

/// Each engine has its own proof; one that has none is seen by the policies that it has brought in force.
async fn is_switched_on(engine: &Engine, subject: &Subject<'_>) -> Result<On> {
    let used = subject.stored.iter().filter(|policy| {
        let engines = crate::cli::status::status(policy).engine.unwrap_or_default();
        EngineName::listed(&engines).any(|listed| listed == engine.engine)
    });
    let used = used.count();
    match engine.choice {
        EngineChoice::Initializer if initializers_have_effect(subject.client()).await? => {
            Ok(On::Yes("a trial create kept its list of initializers".to_owned()))
        }
        EngineChoice::Initializer => {
            let message = "a trial create lost its list of initializers: the admission plugin is off";
            Ok(On::No(Unavailable::new(engine.off, message)))
        }
        _ if used > 0 => Ok(On::Yes(format!("{} in force by it", counted(used, "policy is", "policies are")))),
        // Not everybody may read them.
        _ => Ok(counters(subject.client()).await.map_or(On::Unproven, |counters| shown(engine, &counters))),
    }
}

/// What the API server counts, in the format of Prometheus, once it has called all its admission plugins at least once.
async fn counters(client: &Client) -> Option<String> {
    call(client.request::<Value>(trial(&json!({ "name": "scpol-check" })))).await.ok()?;
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a constant request");
    call(client.request_text(request)).await.ok()
}

/// What `counters` of an API server show of the plugins of `engine`: it counts the calls of each that is on (apiserver
/// `admission/metrics`), and says which feature gates are (component-base `featuregate`), from 1.26.
fn shown(engine: &Engine, counters: &str) -> On {
    let has = |metric: &str, name: &str, value: &str| {
        let label = format!("name=\"{name}\"");
        counters.lines().any(|line| line.starts_with(metric) && line.contains(&label) && line.ends_with(value))
    };
    let is_called = |plugin: &str| has("apiserver_admission_controller_admission_", plugin, "");
    if !is_called("NamespaceLifecycle") {
        return On::Unproven;
    }
    let why_off = |plugin: &&str| {
        if has("kubernetes_feature_enabled{", plugin, " 0") {
            return Some(format!("say that the feature gate `{plugin}` is off"));
        }
        (!is_called(plugin)).then(|| format!("count no call of the admission plugin `{plugin}`"))
    };
    match engine.plugins.iter().find_map(why_off) {
        Some(why) => On::No(Unavailable::new(engine.off, format!("the API server's own metrics {why}"))),
        None => On::Yes("the API server calls its admission plugin".to_owned()),
    }
}

/// A create of a ConfigMap. Nothing is stored.
fn trial(metadata: &Value) -> http::Request<Vec<u8>> {
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
    http::Request::post("/api/v1/namespaces/default/configmaps?dryRun=All")
        .header("Content-Type", "application/json")
        .body(object.to_string().into_bytes())
        .expect("a constant request")
}

/// Whether the plugin is on. With it goes the feature gate, without which the server drops `metadata.initializers` from whatever is
/// created. Nothing is stored.
async fn initializers_have_effect(client: &Client) -> Result<bool> {
    let waiting = json!({ "name": "scpol-check", "initializers": { "pending": [{ "name": "check.scpol.dev" }] } });
    match call(client.request::<Value>(trial(&waiting))).await {
        Ok(tried) => Ok(!tried["metadata"]["initializers"].is_null()),
        // The plugin itself refuses those who lack `initialize`.
        Err(error) if error.code() == 403 && error.to_string().contains("create with initializers denied") => Ok(true),
        Err(error) => {
            Err(error).context("cannot try a create of a ConfigMap in namespace `default` without storing it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_those_of_the_version() {
        let told = |engine: &Engine, minor: u32| match (engine.flags)(minor) {
            Flags::Never(_) => "never",
            Flags::Default(_) => "on",
            Flags::Needed(flags) if flags.contains("v1alpha1") => "v1alpha1",
            Flags::Needed(_) => "v1beta1",
        };
        let by_version =
            [6, 9, 12, 13, 14, 32, 34, 36].map(|minor| ENGINES.each_ref().map(|engine| told(engine, minor)));
        assert_eq!(
            by_version,
            [
                ["never", "never", "never"],
                ["never", "never", "on"],
                ["v1alpha1", "never", "on"],
                ["v1alpha1", "never", "on"],
                ["never", "never", "on"],
                ["never", "v1alpha1", "on"],
                ["never", "v1beta1", "on"],
                ["never", "on", "on"],
            ]
        );
    }

    #[test]
    fn what_the_server_counts_shows_what_is_on() {
        let calls = |plugin: &str| {
            format!(
                "apiserver_admission_controller_admission_duration_seconds_count{{name=\"{plugin}\",operation=\"CREATE\"}} 7\n"
            )
        };
        let gate = |on: u8| format!("kubernetes_feature_enabled{{name=\"MutatingAdmissionPolicy\",stage=\"\"}} {on}\n");
        let lifecycle = calls("NamespaceLifecycle");
        let policies = lifecycle.clone() + &calls("MutatingAdmissionPolicy");
        let old = lifecycle.replace("duration", "latencies")
            + &calls("MutatingAdmissionWebhook").replace("duration", "latencies");
        let [_, by_policies, by_webhook] = &ENGINES;
        for (engine, counters, expected) in [
            (by_policies, String::new(), "unproven"),
            (by_policies, policies.clone(), "on"),
            (by_policies, policies.clone() + &gate(1), "on"),
            (
                by_policies,
                policies + &gate(0),
                "SCP0318: the API server's own metrics say that the feature gate `MutatingAdmissionPolicy` is off",
            ),
            (
                by_policies,
                lifecycle,
                "SCP0318: the API server's own metrics count no call of the admission plugin `MutatingAdmissionPolicy`",
            ),
            (
                by_webhook,
                old.clone(),
                "SCP0321: the API server's own metrics count no call of the admission plugin `ValidatingAdmissionWebhook`",
            ),
            (by_webhook, old + &calls("ValidatingAdmissionWebhook"), "on"),
        ] {
            let told = match shown(engine, &counters) {
                On::Yes(_) => "on".to_owned(),
                On::No(Unavailable { code, message }) => format!("{code}: {message}"),
                On::Unproven => "unproven".to_owned(),
            };
            assert_eq!(told, expected, "{counters}");
        }
    }

    #[test]
    fn an_engine_is_called_by_its_name_in_any_case() {
        assert_eq!(parse("webhook"), Ok(EngineChoice::Webhook));
        let error = parse("Auto").expect_err("no engine");
        assert_eq!(
            error,
            "`Auto` is no engine; write `Initializer`, `MutatingAdmissionPolicy`, `Webhook`, or leave `--engine` out"
        );
    }
}
