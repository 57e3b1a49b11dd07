//! Writes, recognises and deletes the registrations that engines render. [`probe`] verifies them.
//!
//! Objects without our label are never touched. Before we delete an object of our own, we mark it. An object that vanishes
//! without the mark was deleted by somebody else: that is the emergency brake.

use super::probe::{self, Effect, Unverified, Verification};
use super::registrar::{Registrar, RegistrationKey, name_of, refuses};
use super::trial::{self, Strictness};
use super::{Completing, EngineName, Unavailable};
use crate::api::code::Code;
use crate::api::{MANAGED_BY, MANAGER};
use crate::capabilities::registration as resources;
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::keep::{self, Put};
use crate::cluster::rights::{Right, may};
use crate::naming::{IGNORING, PROBE_REFUSE, PROBE_REFUSE_IGNORING, shared_name};
use kube::Client;
use kube::api::{DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::info;

/// The annotation that we set on a registration before we delete it ourselves.
const REMOVING: &str = "scpol.dev/removing";

/// A failed call, as the reason why a policy is not in effect.
impl From<CallError> for Unavailable {
    fn from(error: CallError) -> Self {
        let code = match error.code() {
            403 => Code::MissingRight,
            _ => Code::ServerAway,
        };
        Self::new(code, error.to_string())
    }
}

/// Whether we marked the object with this `metadata` before deleting it.
pub fn is_marked(metadata: &ObjectMeta) -> bool {
    metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(REMOVING))
}

/// Whether we made `object`.
pub fn is_ours_of(object: &Value) -> bool {
    object["metadata"]["labels"][MANAGED_BY] == MANAGER
}

/// Whether `stored` has everything that we `wanted` and no mark of removal. Fields that the server added do not matter.
/// `apiVersion` and `kind` are not compared, because the items of a list lack them.
pub fn is_as(stored: &Value, wanted: &Value) -> bool {
    let mut parts =
        wanted.as_object().into_iter().flatten().filter(|(part, _)| !["apiVersion", "kind"].contains(&part.as_str()));
    stored["metadata"]["annotations"].get(REMOVING).is_none()
        && parts.all(|(part, wanted)| covers(&stored[part.as_str()], wanted))
}

/// Creates or replaces a registration of ours. Returns the stored object.
///
/// # Errors
/// If an object of that name exists that is not ours, or the server rejects the write.
pub async fn apply(client: &Client, resource: &ApiResource, wanted: &Value) -> Result<Value, Unavailable> {
    let name = name_of(wanted);
    match put(client, resource, wanted, &PostParams::default()).await? {
        Put::Written(written) => Ok(value(&written)),
        Put::AsIs => Ok(wanted.clone()),
        Put::Foreign => {
            let message = format!("{} `{name}` exists, and we did not make it: delete or rename it", resource.kind);
            Err(Unavailable::new(Code::NameTaken, message))
        }
        Put::Refused(error) => Err(not_written(resource, name, error)),
    }
}

/// Asks the server by dry runs whether it accepts `objects`, which an engine rendered for `registrar`. A server or a webhook
/// without dry-run support counts as accepting.
///
/// # Errors
/// Why it rejects them; [`Code::ServerAway`] if it does not answer at all.
pub async fn rehearse(registrar: &Registrar, objects: &[Value]) -> Result<(), Unavailable> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for object in objects {
        let Some(resource) = registrar.resource_of(object) else { continue };
        let why = match put(&registrar.client, &resource, object, &dry_run).await {
            // The write itself reports a foreign object: another set of policies does not change it.
            Ok(Put::Written(_) | Put::AsIs | Put::Foreign) => continue,
            Ok(Put::Refused(error)) if error.is_without_dry_run() => continue,
            Ok(Put::Refused(error)) => not_written(&resource, name_of(object), error),
            Err(unread) => unread.into(),
        };
        if why.code != Code::ServerAway {
            return Err(why);
        }
        // Another webhook may time out for this object alone. A GET shows whether the server answers.
        let api = Api::<DynamicObject>::all_with(registrar.client.clone(), &resource);
        call(api.get_opt(name_of(object))).await?;
        return Err(refusal(&resource, name_of(object), &why.message));
    }
    Ok(())
}

async fn put(
    client: &Client,
    resource: &ApiResource,
    wanted: &Value,
    parameters: &PostParams,
) -> Result<Put, CallError> {
    let object: DynamicObject = serde_json::from_value(wanted.clone()).expect("a registration is an object");
    let api = Api::all_with(client.clone(), resource);
    keep::put(&api, name_of(wanted), parameters, |_| Some(object.clone())).await
}

/// Why the write of the object `name` of `resource` has failed.
fn not_written(resource: &ApiResource, name: &str, error: CallError) -> Unavailable {
    let refusal = refusal(resource, name, &error.to_string());
    match (error.code(), error.means()) {
        // The server validates expressions when they are written.
        (400 | 413 | 422, _) if resource.kind.contains("AdmissionPolicy") => {
            Unavailable { code: Code::NotExpressible, ..refusal }
        }
        (_, Meaning::Unanswered | Meaning::Unsent | Meaning::MissingRight) => error.into(),
        _ => refusal,
    }
}

/// The server rejects the object `name` of `resource`, although it answers and we have the right to write it.
fn refusal(resource: &ApiResource, name: &str, why: &str) -> Unavailable {
    let message = format!("the server does not take the {} `{name}`: {why}", resource.kind);
    Unavailable::new(Code::RegistrationRefused, message)
}

/// Deletes the registration `name` if it is ours. Marks it first, so that the deletion does not count as one by hand.
///
/// # Errors
/// If the server fails. A missing object is no error.
pub async fn remove(client: &Client, resource: &ApiResource, name: &str) -> Result<(), CallError> {
    let api = Api::<DynamicObject>::all_with(client.clone(), resource);
    let Some(mut stored) = keep::ours(&api, name).await? else { return Ok(()) };
    stored.metadata.annotations.get_or_insert_default().insert(REMOVING.into(), "true".into());
    match call(api.replace(name, &PostParams::default(), &stored)).await {
        Err(error) if error.means() == Meaning::NotFound => return Ok(()),
        answer => drop(answer?),
    }
    if keep::delete(&api, name, stored.metadata.uid).await? {
        info!(kind = resource.kind, name, "Unregistered");
    }
    Ok(())
}

/// The rights on a registration: on all of its resource, and on its own name.
const READING: [&str; 4] = ["get", "list", "watch", "create"];
const WRITING: [&str; 2] = ["update", "delete"];

/// Asks the server whether we have all rights to deliver by `engine` at `registrar`.
///
/// # Errors
/// If the server does not answer.
pub async fn may_deliver(registrar: &Registrar, engine: EngineName) -> Result<bool, CallError> {
    let Registrar { client, namespace, kind, .. } = registrar;
    let completing = engine.engine().completing();
    let registered = |verb: &str, resource| Right::everywhere(verb, resources::GROUP, resource);
    let completed = |verb: &str| Right::everywhere(verb, &kind.group, &kind.resource);
    // Roles name the registrations that are shared by policies, because those have fixed names.
    let written = |verb: &str, resource| match completing {
        Some(_) => registered(verb, resource),
        None => registered(verb, resource).named(shared_name(kind)),
    };
    let mut needed = Vec::new();
    for resource in engine.engine().registers() {
        needed.extend(READING.map(|verb| registered(verb, resource)));
        needed.extend(WRITING.map(|verb| written(verb, resource)));
    }
    needed.extend(completing.map_or(&[][..], Completing::verbs).iter().map(|verb| completed(verb)));
    needed.push(completed("create").within(namespace));
    for right in &needed {
        if !may(client, right).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}

pub type Editions = BTreeMap<RegistrationKey, Edition>;

/// Identifies one stored version of a registration, to detect edits by others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edition {
    /// `resourceVersion`, which grows with each write; 0 if it is no number.
    version: u64,
    /// The server increments it with each change outside of the metadata.
    generation: i64,
    /// Our annotations, without the mark of removal. Replicas read there what is in effect.
    annotations: BTreeMap<String, Value>,
}

impl Edition {
    /// The edition of a stored object.
    pub fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let annotations = metadata["annotations"].as_object().into_iter().flatten();
        let ours = annotations.filter(|(key, _)| key.starts_with("scpol.dev/") && *key != REMOVING);
        Self {
            version: metadata["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or_default(),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            annotations: ours.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }

    /// Whether somebody else changed the spec or our annotations after we `wrote` the object.
    pub fn is_edit_of(&self, wrote: &Self) -> bool {
        let differs = self.generation > wrote.generation || self.annotations != wrote.annotations;
        self.version > wrote.version && differs
    }
}

/// The objects that reject workloads while the injecting objects change. They must never require a sidecar that is not injected
/// at that time.
pub enum Meanwhile {
    /// Those that are registered: they require nothing that changes.
    AsIs,
    /// Only these objects, which an engine rendered.
    Only(Vec<Value>),
}

/// Registers `objects`, which `engine` rendered, and verifies them by dry-run creates: first those that inject, then those that
/// reject.
///
/// # Errors
/// Why they are not in effect. Some of them may be registered then: see [`restore`].
pub async fn register(
    registrar: &Registrar,
    engine: EngineName,
    objects: &[Value],
    meanwhile: &Meanwhile,
) -> Result<(Option<Unverified>, Editions), Unavailable> {
    let (refusing, injecting): (Vec<_>, Vec<_>) = objects.iter().partition(|object| refuses(object));
    let (mut unverified, mut editions) = (None, Editions::new());
    if let Meanwhile::Only(objects) = meanwhile {
        let meanwhile: Vec<_> = objects.iter().collect();
        establish(registrar, engine, &meanwhile, Effect::Refuses, &mut Editions::new()).await?;
        // If nothing rejects in the meantime, a rejecting object that already has its final form can stay.
        let wanted = if meanwhile.is_empty() { &refusing } else { &meanwhile };
        let mut staying = 0;
        for resource in [resources::VALIDATING_BINDINGS, resources::VALIDATING_POLICIES, resources::VALIDATING_WEBHOOKS]
        {
            staying += withdraw(registrar, resource, wanted).await?;
        }
        // What stays goes on rejecting.
        let all_stay = !wanted.is_empty() && staying == wanted.len();
        if meanwhile.is_empty() && !all_stay {
            released(registrar).await?;
        }
    }
    for (step, effect) in [(injecting, Effect::Injects), (refusing, Effect::Refuses)] {
        let doubt = establish(registrar, engine, &step, effect, &mut editions).await?;
        unverified = unverified.or(doubt);
    }
    Ok((unverified, editions))
}

/// Registers `before` again, which was in effect until `objects` failed to replace it. First the other objects are deleted. Then
/// the injecting objects of `before` are written, and last the rejecting ones. Returns the editions of `before`.
///
/// # Errors
/// If the server cannot be reached, or rejects them now.
pub async fn restore(registrar: &Registrar, objects: &[Value], before: &[Value]) -> Result<Editions, Unavailable> {
    let is_before = |key: &RegistrationKey| before.iter().any(|object| registrar.key_of(object).as_ref() == Some(key));
    let keys = objects.iter().filter_map(|object| registrar.key_of(object)).filter(|key| !is_before(key));
    let mut editions = Editions::new();
    unregister_some(registrar, &keys.collect::<Vec<_>>()).await?;
    let (refusing, injecting): (Vec<_>, Vec<_>) = before.iter().partition(|object| refuses(object));
    for object in injecting.into_iter().chain(refusing) {
        let (Some(resource), Some(key)) = (registrar.resource_of(object), registrar.key_of(object)) else { continue };
        let stored = apply(&registrar.client, &resource, object).await?;
        editions.insert(key, Edition::of(&stored));
    }
    Ok(editions)
}

/// Deletes all that is registered, the objects with these `keys`: those that reject first, and bindings before their policies. The
/// injecting ones stay until the server no longer rejects what lacks the sidecar, because it goes on doing so for about a second.
/// What rejects may be gone already: the garbage collector deletes it together with its policies.
///
/// # Errors
/// If the server cannot be reached. Call it again then.
pub async fn unregister(registrar: &Registrar, keys: &[RegistrationKey]) -> Result<(), CallError> {
    remove_all(registrar, keys, true).await
}

/// As [`unregister`], for objects beside which others stay: those may go on rejecting.
///
/// # Errors
/// As for [`unregister`].
pub async fn unregister_some(registrar: &Registrar, keys: &[RegistrationKey]) -> Result<(), CallError> {
    remove_all(registrar, keys, false).await
}

async fn remove_all(
    registrar: &Registrar,
    keys: &[RegistrationKey],
    mut requires_sidecar: bool,
) -> Result<(), CallError> {
    for resource in resources::ALL {
        let Some(served) = registrar.capabilities.registration(resource) else { continue };
        for RegistrationKey { name, .. } in keys.iter().filter(|key| key.resource == resource) {
            if requires_sidecar && !resources::refuses(resource) {
                released(registrar).await?;
                requires_sidecar = false;
            }
            remove(&registrar.client, &served, name).await?;
            requires_sidecar |= resources::refuses(resource) && !name.ends_with(IGNORING);
        }
    }
    Ok(())
}

/// Deletes our objects of `resource` on this kind that differ from `wanted`. Returns how many stay.
async fn withdraw(registrar: &Registrar, resource: &str, wanted: &[&Value]) -> Result<usize, CallError> {
    let Some(resource) = registrar.capabilities.registration(resource) else { return Ok(0) };
    let api = Api::<DynamicObject>::all_with(registrar.client.clone(), &resource);
    let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let own = shared_name(&registrar.kind);
    let is_of_kind = |name: &str| name.strip_suffix(IGNORING).unwrap_or(name) == own;
    let listed = match call(api.list(&ours)).await {
        // Without the right to list, we made none, or made them when we had the right.
        Err(error) if error.is_forbidden() => return Ok(0),
        listed => listed?,
    };
    let mut staying = 0;
    for stored in listed {
        let mut stored = value(&stored);
        // The items of a list lack `apiVersion` and `kind`.
        (stored["apiVersion"], stored["kind"]) = (json!(resource.api_version), json!(resource.kind));
        let is_wanted = wanted.iter().any(|object| name_of(object) == name_of(&stored) && covers(&stored, object));
        match is_of_kind(name_of(&stored)) {
            true if is_wanted => staying += 1,
            true => remove(&registrar.client, &resource, name_of(&stored)).await?,
            false => {}
        }
    }
    Ok(staying)
}

/// Waits until the server accepts a probe that asks to be rejected. Only the server knows whether it still rejects: the garbage
/// collector may have deleted what rejects, and another leader may have registered it.
async fn released(registrar: &Registrar) -> Result<(), CallError> {
    let Some(resource) = registrar.capabilities.resource(&registrar.kind) else { return Ok(()) };
    for asks in [PROBE_REFUSE, PROBE_REFUSE_IGNORING] {
        let (object, since) = (probe::object(&registrar.kind, &resource, asks), Instant::now());
        while since.elapsed() < registrar.timing.settling {
            match trial::create(&registrar.client, &resource, &registrar.namespace, &object, Strictness::Lenient).await
            {
                Err(error) if error.code() == 0 => return Err(error),
                Err(_) => tokio::time::sleep(registrar.timing.probe_pause).await,
                Ok(_) => break,
            }
        }
    }
    Ok(())
}

/// Whether `stored` has everything that `wanted` has. Fields that the server added do not matter. An empty wanted value equals
/// an empty or missing one.
pub fn covers(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Null, Value::Object(wanted)) => wanted.is_empty(),
        (Value::Null, Value::Array(wanted)) => wanted.is_empty(),
        (Value::Object(stored), Value::Object(wanted)) if wanted.is_empty() => stored.is_empty(),
        (Value::Object(stored), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| covers(stored.get(key).unwrap_or(&Value::Null), wanted))
        }
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len() && stored.iter().zip(wanted).all(|(stored, wanted)| covers(stored, wanted))
        }
        _ => stored == wanted,
    }
}

/// Writes `objects` and waits until they have an effect.
async fn establish(
    registrar: &Registrar,
    engine: EngineName,
    objects: &[&Value],
    effect: Effect,
    editions: &mut Editions,
) -> Verification {
    for object in objects {
        let Some(resource) = registrar.resource_of(object) else {
            let message = format!("the server does not serve {} any more", object["kind"]);
            return Err(Unavailable::new(Code::EngineUnavailable, message));
        };
        let stored = apply(&registrar.client, &resource, object).await?;
        editions.insert(RegistrationKey::of(resource.plural, name_of(object)), Edition::of(&stored));
    }
    probe::show(registrar, engine, objects, effect).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_has_completed_is_covered_and_what_somebody_has_added_is_not() {
        let wanted = json!({ "failurePolicy": "Ignore", "rules": [{ "resources": ["pods"] }], "selector": {}, "conditions": [] });
        for (path, stored, expected) in [
            ("/more", json!(1), true),
            ("/rules/0/scope", json!("*"), true),
            ("/selector", Value::Null, true),
            ("/conditions", Value::Null, true),
            ("/failurePolicy", json!("Fail"), false),
            ("/failurePolicy", Value::Null, false),
            ("/rules", json!([]), false),
            ("/selector", json!({ "matchLabels": { "a": "b" } }), false),
            ("/conditions", json!([{ "name": "never" }]), false),
        ] {
            let mut object = wanted.clone();
            let (parent, field) = path.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[field] = stored.clone();
            assert_eq!(covers(&object, &wanted), expected, "{path} {stored}");
        }
    }
}
