//! Checks which engines the server can run, which flags each needs, and whether it is on.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cli::output::counted;
use crate::cli::policies;
use crate::cluster::client::call;
use crate::engine::requirements::{Flags, Witness};
use crate::engine::{self, Engine, EngineName, Unavailable};
use anyhow::{Context, Result};
use kube::Client;
use serde_json::{Value, json};

/// The engine named `word`.
///
/// # Errors
/// The valid names.
pub(super) fn parse(word: &str) -> Result<EngineChoice, String> {
    let named = engine::all().find(|engine| engine.name().as_str().eq_ignore_ascii_case(word));
    named.map(Engine::choice).ok_or_else(|| {
        let names: Vec<_> = engine::all().map(|engine| format!("`{}`", engine.name())).collect();
        format!("`{word}` is no engine; write {}, or leave `--engine` out", names.join(", "))
    })
}

/// The results about the engines.
pub(super) struct EngineChecks {
    pub(super) items: Vec<CheckItem>,
    /// The engines that are used, or would be.
    pub(super) wanted: Vec<&'static dyn Engine>,
}

pub(super) async fn check(subject: &CheckSubject<'_>, asked: Option<EngineChoice>) -> EngineChecks {
    let server = subject.server();
    let in_force = subject.engines_in_force();
    let is_asked = |engine: &dyn Engine| match asked {
        Some(choice) => engine.choice() == choice,
        None => in_force.contains(&engine.name()) || is_chosen(subject, engine),
    };
    let mut items = Vec::new();
    let mut able: Vec<&'static dyn Engine> = Vec::new();
    for engine in engine::all().filter(|engine| asked.is_none_or(|asked| asked == engine.choice())) {
        let item = look(engine, subject, is_asked(engine)).await;
        if item.is_usable {
            able.push(engine);
        }
        items.extend(item.items);
    }
    if able.is_empty() && asked.is_none() {
        items.push(CheckItem::problem(
            "engines",
            Code::EngineUnavailable,
            format!("{} can run none of them as it is", server.version),
        ));
    }
    let mut wanted: Vec<_> = engine::all().filter(|engine| is_asked(*engine)).collect();
    if wanted.is_empty() {
        wanted.extend(able.first());
    }
    EngineChecks { items, wanted }
}

/// Whether a policy asks for `engine` and no other.
fn is_chosen(subject: &CheckSubject<'_>, engine: &dyn Engine) -> bool {
    subject.policies.iter().any(|policy| policy.is_enforced() && policy.spec.engine == engine.choice())
}

struct EngineLook {
    items: Vec<CheckItem>,
    is_usable: bool,
}

async fn look(engine: &dyn Engine, subject: &CheckSubject<'_>, is_asked: bool) -> EngineLook {
    let check = format!("engine {}", engine.name());
    let server = subject.server();
    let flags = (engine.requirements().flags)(server.minor.1);
    let hint = match flags {
        Flags::Never(why) => format!("not on this server: {why}"),
        Flags::Default(flags) => format!("needs no flag of the API server; {flags}"),
        Flags::Needed(flags) => format!("the API server must be started with {flags}"),
    };
    let not_able = |unavailable: Unavailable| {
        let message = format!("{}; {hint}", unavailable.message);
        let item = if is_asked {
            CheckItem::problem(&*check, unavailable.code, message)
        } else {
            CheckItem::info(&*check, format!("cannot be used: {hint}"))
        };
        EngineLook { items: vec![item], is_usable: false }
    };
    if let Err(unavailable) = engine.check(server) {
        return not_able(unavailable);
    }
    match is_switched_on(engine, subject).await {
        Ok(On::Yes(how)) => {
            EngineLook { items: vec![CheckItem::ok(&*check, format!("works: {how}"))], is_usable: true }
        }
        Ok(On::No(unavailable)) => not_able(unavailable),
        Ok(On::Unproven) => {
            EngineLook { items: vec![CheckItem::ok(&*check, format!("its API is served; {hint}"))], is_usable: true }
        }
        Err(error) => EngineLook { items: vec![CheckItem::unknown(&*check, &error)], is_usable: true },
    }
}

/// Whether a served engine is on.
enum On {
    /// Yes, with the observation that shows it.
    Yes(String),
    No(Unavailable),
    /// Nothing shows it to this user before a policy uses the engine.
    Unproven,
}

/// Whether the engine is on. A dry-run create shows this for an engine with a [`Witness`]. For other engines the policies in
/// effect, or the metrics of the API server, show it.
async fn is_switched_on(engine: &dyn Engine, subject: &CheckSubject<'_>) -> Result<On> {
    if let Some(witness) = engine.requirements().witness {
        return look_at_witness(engine, &witness, subject.client()).await;
    }
    let used = subject.stored.iter().filter(|policy| {
        let engines = policies::status(policy).engine.unwrap_or_default();
        EngineName::listed(&engines).any(|listed| listed == engine.name())
    });
    match used.count() {
        // Some users may not read the metrics.
        0 => Ok(counters(subject.client()).await.map_or(On::Unproven, |counters| shown(engine, &counters))),
        used => Ok(On::Yes(format!("{} in effect by it", counted(used, "policy is", "policies are")))),
    }
}

async fn look_at_witness(engine: &dyn Engine, witness: &Witness, client: &Client) -> Result<On> {
    let answer = call(client.request::<Value>(trial(&(witness.metadata)()))).await;
    match (witness.is_on)(&answer) {
        Some(true) => Ok(On::Yes(witness.on.to_owned())),
        Some(false) => Ok(On::No(Unavailable::new(engine.requirements().off, witness.off))),
        None => {
            answer.context("cannot try a create of a ConfigMap in namespace `default` without storing it")?;
            Ok(On::Unproven)
        }
    }
}

/// The counters of the API server in the format of Prometheus, after it has called each admission plugin at least once.
async fn counters(client: &Client) -> Option<String> {
    call(client.request::<Value>(trial(&json!({ "name": "scpol-check" })))).await.ok()?;
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a constant request");
    call(client.request_text(request)).await.ok()
}

/// The state of the plugins of `engine` according to `counters`. The API server counts the calls of each plugin that is on
/// (apiserver `admission/metrics`). From 1.26 on it also shows its feature gates (component-base `featuregate`).
fn shown(engine: &dyn Engine, counters: &str) -> On {
    let requirements = engine.requirements();
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
    match requirements.plugins.iter().find_map(why_off) {
        Some(why) => On::No(Unavailable::new(requirements.off, format!("the API server's own metrics {why}"))),
        None => On::Yes("the API server calls its admission plugin".to_owned()),
    }
}

/// A dry-run create of a ConfigMap.
fn trial(metadata: &Value) -> http::Request<Vec<u8>> {
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
    http::Request::post("/api/v1/namespaces/default/configmaps?dryRun=All")
        .header("Content-Type", "application/json")
        .body(object.to_string().into_bytes())
        .expect("a constant request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_those_of_the_version() {
        let told = |engine: &'static dyn Engine, minor: u32| match (engine.requirements().flags)(minor) {
            Flags::Never(_) => "never",
            Flags::Default(_) => "on",
            Flags::Needed(flags) if flags.contains("v1alpha1") => "v1alpha1",
            Flags::Needed(_) => "others",
        };
        let by_version = [6, 9, 12, 13, 14, 32, 34, 36]
            .map(|minor| engine::all().map(|engine| told(engine, minor)).collect::<Vec<_>>());
        assert_eq!(
            by_version,
            [
                ["never", "never", "never"],
                ["never", "never", "on"],
                ["v1alpha1", "never", "on"],
                ["v1alpha1", "never", "on"],
                ["never", "never", "on"],
                // Their alpha and beta versions are not used, so no flag helps.
                ["never", "never", "on"],
                ["never", "never", "on"],
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
        let named =
            |name: &str| engine::all().find(|engine| engine.name().as_str() == name).expect("an engine of that name");
        let (by_policies, by_webhook) = (named("MutatingAdmissionPolicy"), named("Webhook"));
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
