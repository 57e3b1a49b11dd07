//! Applies manifests without a kubectl process.

use anyhow::{Context, Result};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::Value;

/// Creates each object of `yaml`, or merges it into the existing one.
pub(crate) async fn apply(client: &Client, yaml: &str) -> Result<()> {
    let mut known: Vec<(GroupVersionKind, (ApiResource, ApiCapabilities))> = Vec::new();
    for document in serde_saphyr::from_multiple::<Value>(yaml)? {
        for object in objects(document) {
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let (api_version, kind) = (text("apiVersion"), text("kind"));
            let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
            let gvk = GroupVersionKind::gvk(group, version, &kind);
            let told = || format!("{kind} {}", object["metadata"]["name"]);
            if !known.iter().any(|(other, _)| *other == gvk) {
                known.push((gvk.clone(), pinned_kind(client, &gvk).await.with_context(told)?));
            }
            let (_, (resource, capabilities)) = known.iter().find(|(other, _)| *other == gvk).expect("just found");
            let api: Api<DynamicObject> = match (&capabilities.scope, object["metadata"]["namespace"].as_str()) {
                (Scope::Cluster, _) => Api::all_with(client.clone(), resource),
                (Scope::Namespaced, namespace) => {
                    Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), resource)
                }
            };
            apply_one(&api, &object).await.with_context(told)?;
        }
    }
    Ok(())
}

/// The objects of a document: its items if it is a list.
fn objects(mut document: Value) -> Vec<Value> {
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ if document.is_null() => Vec::new(),
        _ => vec![document],
    }
}

async fn apply_one(api: &Api<DynamicObject>, object: &Value) -> Result<()> {
    let wanted: DynamicObject = serde_json::from_value(object.clone())?;
    match api.create(&PostParams::default(), &wanted).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let name = object["metadata"]["name"].as_str().context("it has no name")?;
            api.patch(name, &PatchParams::default(), &Patch::Merge(object)).await?;
            Ok(())
        }
        created => Ok(created.map(drop)?),
    }
}
