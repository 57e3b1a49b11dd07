//! The values that the API server gives to fields of a pod template that are not set: `pkg/apis/core/v1/defaults.go` and
//! `zz_generated.defaults.go` of Kubernetes 1.12 to 1.37.
//!
//! Pods get more than pod templates, such as requests from limits, or by LimitRanges and ServiceAccounts. None of that
//! is here.

use super::value::nanos;
use crate::api::v1alpha1::RawObject;
use serde_json::Value;

const CONTAINERS: &[&str] = &["containers", "initContainers"];
const PROBES: &[&str] = &["livenessProbe", "readinessProbe", "startupProbe"];
const FILES: &[&str] = &["secret", "configMap", "downwardAPI", "projected"];

/// The fields or lists that hold a field, the field, and its default as JSON.
const TABLE: [(&[&str], &str, &str); 25] = [
    (CONTAINERS, "terminationMessagePath", r#""/dev/termination-log""#),
    (CONTAINERS, "terminationMessagePolicy", r#""File""#),
    (&["ports"], "protocol", r#""TCP""#),
    (PROBES, "timeoutSeconds", "1"),
    (PROBES, "periodSeconds", "10"),
    (PROBES, "successThreshold", "1"),
    (PROBES, "failureThreshold", "3"),
    (&["httpGet"], "path", r#""/""#),
    (&["httpGet"], "scheme", r#""HTTP""#),
    (&["fieldRef"], "apiVersion", r#""v1""#),
    (&["fileKeyRef"], "optional", "false"),
    // Only 1.12.
    (&["securityContext"], "procMount", r#""Default""#),
    (FILES, "defaultMode", "420"),
    (&["serviceAccountToken"], "expirationSeconds", "3600"),
    // Of the claim in an ephemeral volume.
    (&["spec"], "volumeMode", r#""Filesystem""#),
    (&["iscsi"], "iscsiInterface", r#""default""#),
    (&["azureDisk"], "cachingMode", r#""ReadWrite""#),
    (&["azureDisk"], "kind", r#""Shared""#),
    (&["azureDisk"], "fsType", r#""ext4""#),
    (&["azureDisk"], "readOnly", "false"),
    (&["rbd"], "pool", r#""rbd""#),
    (&["rbd"], "user", r#""admin""#),
    (&["rbd"], "keyring", r#""/etc/ceph/keyring""#),
    (&["scaleIO"], "storageMode", r#""ThinProvisioned""#),
    (&["scaleIO"], "fsType", r#""xfs""#),
];

/// True if and only if the API server gives the value `there` to the field `field` of `holder` by itself. `holder` is the
/// value of the field `name`, or an item of that list, in a pod that is on the network of its host or not.
pub(super) fn is_default(name: &str, field: &str, there: &Value, holder: &RawObject, host_network: bool) -> bool {
    let reference = |field: &str| holder.get(field).and_then(Value::as_str).unwrap_or_default();
    match (name, field) {
        ("containers" | "initContainers", "imagePullPolicy") => there == pull_policy(reference("image")),
        ("image", "pullPolicy") => there == pull_policy(reference("reference")),
        // Up to 1.27. Later servers do it for pods only.
        ("ports", "hostPort") => host_network && holder.get("containerPort") == Some(there),
        ("resourceFieldRef", "divisor") => nanos(there) == Some(0),
        _ => {
            let json = there.to_string();
            TABLE.iter().any(|(names, of, value)| *of == field && names.contains(&name) && *value == json)
        }
    }
}

/// The policy by which `image` is pulled if the container sets none.
pub(crate) fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let tag = name.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    match (tag, digest) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_pulled_each_time_if_its_tag_is_latest() {
        for (image, expected) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("nginx@sha256:00", "IfNotPresent"),
            ("nginx:latest@sha256:00", "Always"),
            ("nginx:1@sha256:00", "IfNotPresent"),
            ("registry:5000/nginx", "Always"),
            ("registry:5000/a/nginx:latest-1", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), expected, "{image}");
        }
    }
}
