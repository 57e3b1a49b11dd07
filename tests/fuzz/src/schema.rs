//! OpenAPI documents of a server: templates can be compared with any content.

use crate::inject::POLICIES;
use sidecar_policy::cluster::openapi::PodSchema;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(schema) = PodSchema::parse(bytes) else { return };
    for policy in POLICIES.iter() {
        for field in schema.unknown_fields(&policy.template.spec) {
            assert!(field.starts_with("spec.template."), "{field}");
        }
    }
}
