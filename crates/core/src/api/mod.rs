//! The API for users: the custom resource, its conditions, its codes.

mod amounts;
pub mod code;
pub mod condition;
pub mod crd;
mod derived;
pub(crate) mod field;
mod format;
mod judge;
pub mod parameters;
mod pod_fields;
pub mod pod_schema;
pub mod pod_security;
pub mod rules;
mod schema;
mod targets;
pub mod trust;
pub mod v1alpha1;
mod violation;

pub use format::{is_dns_label, is_policy_name};
pub(crate) use format::{is_group, is_label_value, mount_path};
pub use judge::judge;
pub(crate) use schema::similar;

/// The API group of everything that users write.
pub const GROUP: &str = crate::workload::OWN_GROUP;
/// The label of generated objects; its value is [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub const MANAGER: &str = "scpol";
/// The label that names the policy of a generated object.
pub const POLICY_LABEL: &str = "scpol.dev/policy";
/// The key of a label and of an annotation on objects that ask whether a registration is in effect: `naming::PROBE`.
pub const PROBE_KEY: &str = "scpol.dev/probe";
/// The key for users to choose policies, as an annotation or label on a workload or its pod template.
pub const INJECT_KEY: &str = "scpol.dev/inject";
/// The annotation of a policy that says whom its users may ask, such as `team-mesh@example.com`.
pub const CONTACT_KEY: &str = "scpol.dev/contact";
/// The prefix of the marker annotations; the policy's name follows.
pub const MARKER_PREFIX: &str = "injected.scpol.dev/";
/// The annotation of a policy with the time of the last `scpol rollout restart`, in RFC 3339.
pub const RESTARTED_AT_KEY: &str = "scpol.dev/restartedAt";
/// The annotation of a policy with the time of the last `scpol rollout resume`, in RFC 3339.
pub const RESUMED_AT_KEY: &str = "scpol.dev/resumedAt";
/// The annotation of a Namespace, a pod or a workload that opts out of rollouts, with the value `false`.
pub const ROLLOUT_KEY: &str = "scpol.dev/rollout";
