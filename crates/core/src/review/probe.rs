//! The answer to a probe: a dry-run create by the operator, which shows that a registration is in effect.

use super::envelope::{CREATE, Response};
use super::request::Request;
use super::{Call, Caller};
use crate::naming::{PROBE, PROBE_REFUSE, PROBE_UNSEEN};
use crate::policy::Site;
use json_patch::Patch;
use serde_json::{Value, json};

/// The answer to a probe; none for other requests.
pub(super) fn response<'a>(request: &'a Request, caller: &Caller<'_>, site: &Site) -> Option<Response<'a>> {
    let metadata = &request.object["metadata"];
    let is_meant = request.operation == CREATE && request.namespace == site.operator_namespace;
    let asked = metadata["labels"].get(PROBE).filter(|_| is_meant)?;
    let response = Response::allowed(&request.uid);
    Some(match (caller.call, caller.revision) {
        (Call::Mutate, revision) => response.with_patch(&annotated(metadata, revision.unwrap_or(PROBE_UNSEEN))),
        (Call::Validate, Some(revision)) if asked == PROBE_REFUSE => response.refused(&probed(revision)),
        _ => response,
    })
}

/// The message for a probe of the registration `revision`.
pub fn probed(revision: &str) -> String {
    format!("the probe asks to be refused by registration {revision}")
}

fn annotated(metadata: &Value, revision: &str) -> Patch {
    let key = PROBE.replace('/', "~1");
    // Another engine may have answered before, while a resource moves between engines.
    let answers = metadata["annotations"][PROBE].as_str().into_iter().chain([revision]);
    let value = answers.collect::<Vec<_>>().join(",");
    let operation = match metadata["annotations"].is_object() {
        true => json!({ "op": "add", "path": format!("/metadata/annotations/{key}"), "value": value }),
        false => json!({ "op": "add", "path": "/metadata/annotations", "value": { PROBE: value } }),
    };
    serde_json::from_value(json!([operation])).expect("the shape is fixed")
}
