//! Features that the given version of the cluster lacks.

use super::LAST_WITH_INITIALIZERS;
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::rules::Violation;
use crate::api::v1alpha1::{EngineChoice, FailurePolicy, NativeSidecars, SidecarPolicySpec};

/// The first minor version with native sidecars on by default (KEP-753, beta).
const NATIVE_SIDECARS: u32 = 29;
/// The first minor version that serves MutatingAdmissionPolicy v1.
const ADMISSION_POLICIES: u32 = 36;
/// The first minor version whose webhooks can exclude namespaces by name.
const NAME_LABELS: u32 = 21;

/// The features that `spec` needs and a server of 1.`minor` lacks: the operator would not deliver it there. Empty
/// without a version.
pub(super) fn lacking(spec: &SidecarPolicySpec, minor: Option<u32>) -> Vec<Violation> {
    let Some(minor) = minor else { return Vec::new() };
    let mut found = Vec::new();
    let mut tell = |code, field: &str, message: String| {
        found.push(Violation { code, field: field.to_owned(), message });
    };
    match spec.engine {
        EngineChoice::Initializer if minor > LAST_WITH_INITIALIZERS => {
            let message = format!(
                "is `Initializer`, which Kubernetes has up to 1.{LAST_WITH_INITIALIZERS}, and this is 1.{minor}; use `Auto`"
            );
            tell(Code::EngineUnavailable, "spec.engine", message);
        }
        EngineChoice::MutatingAdmissionPolicy if minor < ADMISSION_POLICIES => {
            let message = format!(
                "is `MutatingAdmissionPolicy`, which needs Kubernetes 1.{ADMISSION_POLICIES}, and this is 1.{minor}; use `Auto`"
            );
            tell(Code::AdmissionPolicyApiOff, "spec.engine", message);
        }
        _ => {}
    }
    let has_initializers = minor <= LAST_WITH_INITIALIZERS && spec.engine != EngineChoice::Webhook;
    if spec.failure_policy == FailurePolicy::Fail && minor < NAME_LABELS && !has_initializers {
        let message = format!(
            "is `Fail`, which needs Kubernetes 1.{NAME_LABELS} on the webhook engine, and this is 1.{minor}: in protected \
             namespaces creates would be refused while the webhook is down; use `Ignore`"
        );
        tell(Code::FailNotSafe, "spec.failurePolicy", message);
    }
    if minor < NATIVE_SIDECARS {
        let template = spec.template.iter();
        let has_containers = template.clone().any(|template| !template.containers.is_empty());
        let needs = format!("needs Kubernetes 1.{NATIVE_SIDECARS}, and this is 1.{minor}");
        if spec.native_sidecars == NativeSidecars::Always && has_containers {
            let message = format!("is `Always`, which {needs}; use `ForJobs` or `Never`");
            tell(Code::NativeSidecarsUnavailable, "spec.nativeSidecars", message);
        }
        let init = template.flat_map(|template| template.init_containers.iter().enumerate());
        for (index, _) in init.filter(|(_, container)| is_native_sidecar(container)) {
            let field = format!("spec.template.initContainers[{index}].restartPolicy");
            let message = format!("is `Always`, which {needs}; make it one of `containers`");
            tell(Code::NativeSidecarsUnavailable, &field, message);
        }
    }
    found
}
