//! Finds and releases objects that wait for an initializer. Only servers below 1.14 have them.

use super::live;
use crate::capabilities::Capabilities;
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

/// The time for the cache of an old server to catch up.
const LAG: Duration = Duration::from_millis(200);

/// An object that waits.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaitingObject {
    pub(super) namespace: String,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) age_seconds: i64,
    /// Every pending initializer, in order; the object waits for the first.
    pub(super) pending: Vec<String>,
    /// The action of this command.
    pub(super) result: Waited,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
    #[serde(skip)]
    api: ApiResource,
}

#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Waits,
    Cleared,
    Failed,
}

/// The result of a look at a server.
#[derive(Default)]
pub(super) struct WaitingObjects {
    pub(super) waiting: Vec<WaitingObject>,
    /// The resources that could not be listed, and why. They may have waiting objects.
    pub(super) unseen: Vec<String>,
}

/// Every waiting object of every kind that can be listed.
///
/// # Errors
/// If discovery fails.
pub(super) async fn find(
    client: &Client,
    server: &Capabilities,
    namespace: Option<&str>,
    selector: Option<&str>,
) -> Result<WaitingObjects> {
    let mut found = WaitingObjects::default();
    // Servers from 1.14 have no `metadata.initializers`.
    if server.at_least(1, 14) {
        return Ok(found);
    }
    let mut seen = HashSet::new();
    for (resource, namespaced) in resources(client, &mut found.unseen).await? {
        if namespace.is_some() && !namespaced {
            continue;
        }
        match list(&live::api(client, &resource, namespace), selector).await {
            Ok(objects) => {
                found.waiting.extend(objects.iter().filter_map(|object| waits(object, &resource, &mut seen)));
            }
            // We cannot change this. The other kinds are still listed.
            Err(error) if matches!(error.code(), 404 | 405) => {}
            Err(error) => found.unseen.push(format!("{} ({}): {error}", resource.plural, resource.api_version)),
        }
    }
    found.waiting.sort_by(|a, b| (&a.namespace, &a.resource, &a.name).cmp(&(&b.namespace, &b.resource, &b.name)));
    Ok(found)
}

/// Every resource with the verbs list and patch, and whether it is namespaced. Each has the preferred version of its
/// group or else another version: 1.13 prefers `batch/v1`, but has CronJobs in `batch/v1beta1` only.
async fn resources(client: &Client, unseen: &mut Vec<String>) -> Result<Vec<(ApiResource, bool)>> {
    let core = call(client.list_core_api_resources("v1")).await.context(live::ASKING)?;
    let mut lists = vec![(String::new(), "v1".to_owned(), core)];
    for group in call(client.list_api_groups()).await.context(live::ASKING)?.groups {
        let mut versions = group.versions;
        versions.sort_by_key(|version| Some(version) != group.preferred_version.as_ref());
        for version in versions {
            match call(client.list_api_group_resources(&version.group_version)).await {
                Ok(list) => lists.push((group.name.clone(), version.version, list)),
                Err(error) if error.means() == Meaning::NotFound => {}
                Err(error) => unseen.push(format!("{}: {error}", version.group_version)),
            }
        }
    }
    // A resource of two groups is listed under its own group.
    lists.sort_by_key(|(group, ..)| group == "extensions");
    let (mut resources, mut known) = (Vec::new(), HashSet::new());
    for (group, version, list) in lists {
        let is_usable = |verbs: &[String]| ["list", "patch"].iter().all(|verb| verbs.iter().any(|has| has == verb));
        for resource in list.resources {
            let is_meant = !resource.name.contains('/') && is_usable(&resource.verbs);
            if is_meant && known.insert((group.clone(), resource.name.clone())) {
                let address = live::resource(&group, &version, &resource.kind, &resource.name);
                resources.push((address, resource.namespaced));
            }
        }
    }
    Ok(resources)
}

async fn list(api: &Api<Object>, selector: Option<&str>) -> Result<Vec<Object>, CallError> {
    let parameters = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
    let mut waiting = Vec::new();
    let look = |object: Object| waiting.extend((!object.is_initialized()).then_some(object));
    Pages::new(api.clone(), parameters).each(look).await?;
    Ok(waiting)
}

fn waits(object: &Object, resource: &ApiResource, seen: &mut HashSet<String>) -> Option<WaitingObject> {
    // Several groups may serve the same object.
    if !seen.insert(object.meta().uid.clone().unwrap_or_default()) {
        return None;
    }
    let age = object.created().map_or(0, |created| Timestamp::now().duration_since(created).as_secs());
    Some(WaitingObject {
        namespace: object.namespace().into(),
        resource: if resource.group.is_empty() {
            resource.plural.clone()
        } else {
            format!("{}.{}", resource.plural, resource.group)
        },
        name: object.name().into(),
        age_seconds: age.max(0),
        pending: pending(object),
        result: Waited::Waits,
        message: None,
        api: resource.clone(),
    })
}

/// Removes the names for which `is_cleared` is true from the pending list of `object`, at any position, and nothing
/// else.
pub(super) async fn clear(client: &Client, object: &mut WaitingObject, is_cleared: &impl Fn(&str) -> bool) {
    let api = live::api_of(client, &object.api, &object.namespace);
    // The object may change meanwhile, so each try reads it again. The cache of an old server, to which the patch is
    // applied, may lag.
    for _ in 0..5 {
        let patch = Patch::<()>::Json(clearing(&object.pending, is_cleared));
        match call(api.patch(&object.name, &PatchParams::default(), &patch)).await {
            Ok(stored) => return cleared(object, pending(&stored)),
            Err(error) => {
                if error.code() == 422 {
                    tokio::time::sleep(LAG).await;
                }
                object.message = Some(error.to_string());
            }
        }
        match call(api.get_opt(&object.name)).await {
            Ok(Some(stored)) if stored.pending().any(is_cleared) => object.pending = pending(&stored),
            Ok(Some(stored)) => return cleared(object, pending(&stored)),
            Ok(None) => return cleared(object, Vec::new()),
            Err(error) => object.message = Some(error.to_string()),
        }
    }
    object.result = Waited::Failed;
}

fn pending(object: &Object) -> Vec<String> {
    object.pending().map(str::to_owned).collect()
}

fn cleared(object: &mut WaitingObject, pending: Vec<String>) {
    (object.result, object.message, object.pending) = (Waited::Cleared, None, pending);
}

/// Tests each name before its removal, and removes from the back, so that positions stay valid.
fn clearing(pending: &[String], is_cleared: impl Fn(&str) -> bool) -> json_patch::Patch {
    let places: Vec<usize> = (0..pending.len()).rev().filter(|&place| is_cleared(&pending[place])).collect();
    let path = |place: &usize| format!("/metadata/initializers/pending/{place}");
    let test = |place| json!({ "op": "test", "path": path(place) + "/name", "value": pending[*place] });
    let removed = match places.len() == pending.len() {
        true => vec!["/metadata/initializers".to_owned()],
        false => places.iter().map(path).collect(),
    };
    let removals = removed.iter().map(|path| json!({ "op": "remove", "path": path }));
    let operations: Vec<_> = places.iter().map(test).chain(removals).collect();
    serde_json::from_value(json!(operations)).expect("the operations are those of a JSON Patch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_entries_are_cleared_wherever_they_stand() {
        let pending: Vec<String> = ["a.scpol.dev", "x.other.io", "b.scpol.dev"].map(str::to_owned).to_vec();
        let mut object = json!({ "metadata": { "initializers": { "pending": pending.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() } } });
        json_patch::patch(&mut object, &clearing(&pending, |name| name.ends_with(".scpol.dev"))).expect("applies");
        assert_eq!(object, json!({ "metadata": { "initializers": { "pending": [{ "name": "x.other.io" }] } } }));
        json_patch::patch(&mut object, &clearing(&["x.other.io".to_owned()], |_| true)).expect("applies");
        assert_eq!(object, json!({ "metadata": {} }));
    }
}
