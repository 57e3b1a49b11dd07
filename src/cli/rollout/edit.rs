//! Guarded edits of stored objects.

use crate::cli::policies::{self, find};
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::roller::act;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// How often an object is read again after it has changed meanwhile.
pub(super) const TRIES: usize = 5;

/// Whether a change is made, as for kubectl.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DryRun {
    /// Make the change
    #[default]
    None,
    /// Send nothing
    Client,
    /// Have the server check the change, and store nothing
    Server,
}

impl DryRun {
    /// The words behind what would be done, as kubectl has them.
    pub(super) fn note(self) -> &'static str {
        match self {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        }
    }

    pub(super) fn parameters(self) -> PatchParams {
        PatchParams { dry_run: self == DryRun::Server, ..PatchParams::default() }
    }
}

/// The result of a guarded patch.
pub(super) enum Patched {
    Done,
    /// The object has changed since it was read.
    Changed,
    Failed(CallError),
}

/// Sends `patch`, which tests the version of the object that was read.
pub(super) async fn send(api: &Api<Object>, name: &str, patch: json_patch::Patch, dry_run: DryRun) -> Patched {
    if dry_run == DryRun::Client {
        return Patched::Done;
    }
    match call(api.patch(name, &dry_run.parameters(), &Patch::<()>::Json(patch))).await {
        Ok(_) => Patched::Done,
        Err(error) if matches!(error.means(), Meaning::Conflict | Meaning::FailedTest) => Patched::Changed,
        Err(error) => Patched::Failed(error),
    }
}

/// Edits the policy `name` by the operations of a JSON Patch that `change` returns for the stored object. Returns false if
/// it returns none.
///
/// # Errors
/// Those of `change`; or if the policy cannot be read or patched.
pub(super) async fn policy(
    client: &Client,
    name: &str,
    dry_run: DryRun,
    change: impl Fn(&Object) -> Result<Vec<Value>>,
) -> Result<bool> {
    for _ in 0..TRIES {
        let stored = find(client, name).await?;
        let operations = change(&stored)?;
        if operations.is_empty() {
            return Ok(false);
        }
        let version = stored.value()["metadata"]["resourceVersion"].clone();
        let test = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version });
        let patch: Vec<Value> = [test].into_iter().chain(operations).collect();
        let patch = serde_json::from_value(json!(patch)).expect("the operations are those of a JSON Patch");
        match send(&policies::api(client), name, patch, dry_run).await {
            Patched::Done => return Ok(true),
            Patched::Changed => {}
            Patched::Failed(error) => {
                return Err(error).with_context(|| format!("cannot patch the SidecarPolicy `{name}`"));
            }
        }
    }
    bail!("the SidecarPolicy `{name}` changes all the time; try again")
}

/// The operation that sets the annotation `key` of `object`.
pub(super) fn annotate(object: &Value, key: &str, value: &str) -> Value {
    act::annotate("", &object["metadata"], key, value)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// `object` after `operations`.
    pub(crate) fn applied(object: &Value, operations: &[Value]) -> Value {
        let patch: json_patch::Patch = serde_json::from_value(json!(operations)).unwrap();
        let mut object = object.clone();
        json_patch::patch(&mut object, &patch).unwrap();
        object
    }

    #[test]
    fn an_annotation_is_added_beside_others_and_where_there_are_none() {
        for (before, expected) in [
            (json!({}), json!({ "scpol.dev/x": "1" })),
            (json!({ "annotations": null }), json!({ "scpol.dev/x": "1" })),
            (json!({ "annotations": { "a": "b" } }), json!({ "a": "b", "scpol.dev/x": "1" })),
            (json!({ "annotations": { "scpol.dev/x": "0" } }), json!({ "scpol.dev/x": "1" })),
        ] {
            let object = json!({ "metadata": before });
            let after = applied(&object, &[annotate(&object, "scpol.dev/x", "1")]);
            assert_eq!(after["metadata"]["annotations"], expected);
        }
    }
}
