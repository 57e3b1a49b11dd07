//! Findings in policies, without a cluster. Pure.
//!
//! [`lint`] returns every fault that the operator would report, and faults that no schema can express: selectors that
//! match nothing, policies that conflict, images without a version. [`against`] checks policies together with
//! workloads.

mod effects;
mod expressions;
mod manifest;
mod pairs;
mod references;
mod rollout;
mod secrets;
mod selection;
mod template;
mod version;
mod workloads;

pub use manifest::vet;
pub use references::needs;
pub use selection::add_ons_at_risk;
pub use template::{late_references, shared_ports};
pub use workloads::{against, hook};

use crate::api::code::Code;
use crate::api::judge;
use crate::api::pod_schema::in_template;
use crate::api::rules::Violation;
use crate::api::v1alpha1::{EngineChoice, SidecarPolicySpec};
use crate::manifest::{Object, is_meant_as_policy, misspelt};
use crate::parameters::Parameters;
use crate::policy::{Policy, Site};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The last minor version of Kubernetes 1 that has Initializers.
const LAST_WITH_INITIALIZERS: u32 = 13;

/// The severity of a finding, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// The operator rejects the policy.
    Error,
    /// The policy probably does not do what its author meant, or does harm.
    Warning,
    /// Good to know.
    Info,
}

impl Severity {
    /// The word in output.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }

    /// The severity of `code` in a valid policy.
    fn of(code: Code) -> Self {
        match code {
            Code::DuplicatePolicy | Code::DuplicateInitializerName | Code::ReplacesInvalid => Severity::Error,
            Code::NeedsReference
            | Code::SharedContainerPort
            | Code::QualityOfServiceChanged
            | Code::HostNetwork
            | Code::OptedOut
            | Code::InHook
            | Code::NodesLimited
            | Code::HoldsApplication
            | Code::ScaleDownBlocked
            | Code::RootUser
            | Code::MergedOverImage
            | Code::VariableMayBeHidden => Severity::Info,
            _ => Severity::Warning,
        }
    }
}

/// A finding in one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The index of the policy.
    pub subject: usize,
    /// The severity.
    pub severity: Severity,
    /// The code.
    pub code: Code,
    /// The field, for example `spec.template.containers[1].image`.
    pub field: String,
    /// The fault, and what to write instead. The sentence begins with the field.
    pub message: String,
    /// Whether the policy is not injected into a given workload because of it, or its create is refused.
    pub keeps_out: bool,
}

/// The known facts about the target cluster.
#[derive(Clone, Debug)]
pub struct Context {
    /// The operator's flags, and the version of Kubernetes if it is given.
    pub site: Site,
}

impl Context {
    /// True unless the cluster is known to be older than 1.`minor`.
    fn may_be_at_least(&self, minor: u32) -> bool {
        self.site.minor.is_none_or(|own| own >= minor)
    }

    /// True if and only if Initializers deliver `spec`: the cluster has them, or its version is unknown and `spec`
    /// names them. Without this, policies for current versions would get findings about old ones.
    fn uses_initializers(&self, spec: &SidecarPolicySpec) -> bool {
        match spec.engine {
            EngineChoice::Auto => self.site.minor.is_some_and(|minor| minor <= LAST_WITH_INITIALIZERS),
            EngineChoice::Initializer => self.site.minor.is_none_or(|minor| minor <= LAST_WITH_INITIALIZERS),
            EngineChoice::Webhook | EngineChoice::MutatingAdmissionPolicy => false,
        }
    }
}

/// A policy to check.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name of the policy; empty if missing.
    pub name: String,
    /// The place of the policy, for messages.
    pub place: String,
    /// The readable part of its spec.
    spec: Option<SidecarPolicySpec>,
    /// The faults that the operator would report.
    violations: Vec<Violation>,
    /// The policy, if it is valid.
    policy: Option<Arc<Policy>>,
}

impl Subject {
    /// The policy `object` at `place`; none if it is another kind of object.
    pub fn of(object: &Object<'_>, place: &str, site: &Site) -> Option<Self> {
        let violations = header(object)?;
        let (spec, faults) = judge(object.name(), &object.body["spec"], &site.rules());
        let mut violations: Vec<_> = violations.into_iter().chain(faults).collect();
        of_server(object.body, spec.as_ref(), site, &mut violations);
        let policy = if violations.is_empty() { Policy::parse(object.body, site).ok().map(Arc::new) } else { None };
        Some(Self { name: object.name().to_owned(), place: place.to_owned(), spec, violations, policy })
    }

    /// The policy, if it is valid.
    pub fn policy(&self) -> Option<&Arc<Policy>> {
        self.policy.as_ref()
    }
}

/// Parses the policy `object` from a file: [`Policy::parse`], and the checks that a server of the site's version makes
/// on the template.
///
/// # Errors
/// Every fault of the spec, each with its code and the path of its field.
pub fn parse(object: &Value, site: &Site) -> Result<Policy, Vec<Violation>> {
    let (parsed, mut violations) = match Policy::parse(object, site) {
        Ok(policy) => (Some(policy), Vec::new()),
        Err(violations) => (None, violations),
    };
    of_server(object, parsed.as_ref().map(|policy| &*policy.spec), site, &mut violations);
    // Without this fault, because the decision reports missing native sidecars.
    violations.retain(|violation| {
        violation.code != Code::NativeSidecarsUnavailable || violation.field != "spec.nativeSidecars"
    });
    parsed.filter(|_| violations.is_empty()).ok_or(violations)
}

/// Adds the faults that a server would report in the policy `object`, whose readable part is `spec`. Fields in
/// `violations` get no second fault.
fn of_server(object: &Value, spec: Option<&SidecarPolicySpec>, site: &Site, violations: &mut Vec<Violation>) {
    let mut more = in_template(&object["spec"]["template"], site.minor);
    if let Some(spec) = spec {
        more.extend(version::lacking(spec, site.minor));
        more.extend(lacking_by_parameters(spec, site.minor));
    }
    for violation in more {
        if !violations.iter().any(|known| known.field == violation.field) {
            violations.push(violation);
        }
    }
}

/// The fields that only parameters set, and that servers of 1.`minor` lack.
fn lacking_by_parameters(spec: &SidecarPolicySpec, minor: Option<u32>) -> Vec<Violation> {
    let Some(template) = spec.template.as_ref().filter(|_| !spec.parameters.is_empty()) else { return Vec::new() };
    // Its faults have been reported, and the name of the policy is for annotations alone.
    let (parameters, _) = Parameters::parse("", &spec.parameters, template);
    let faults = in_template(&json!(parameters.filled(template)), minor).into_iter();
    faults.filter(|fault| fault.code == Code::UnknownTemplateField).collect()
}

/// The faults in `apiVersion` and `kind` of `object`; none if it is no policy and is not meant to be one.
fn header(object: &Object<'_>) -> Option<Vec<Violation>> {
    let violation = |(field, wanted, found): (&str, &str, &str)| {
        let message = format!("must be `{wanted}`, is `{found}`");
        Violation { code: Code::InvalidField, field: field.to_owned(), message }
    };
    is_meant_as_policy(object).then(|| misspelt(object).map(violation).into_iter().collect())
}

/// A finding without the index of its policy.
struct Note {
    code: Code,
    field: String,
    message: String,
}

impl Note {
    fn new(code: Code, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, field: field.into(), message: message.into() }
    }

    fn about(self, subject: usize) -> Finding {
        let Note { code, field, message } = self;
        Finding { subject, severity: Severity::of(code), code, field, message, keeps_out: false }
    }
}

type Check = fn(&SidecarPolicySpec, &Context) -> Vec<Note>;

const CHECKS: [Check; 26] = [
    selection::contradictions,
    selection::namespaces,
    selection::targets,
    selection::pods,
    selection::fail_on_pods,
    selection::fail_on_add_ons,
    selection::endless_jobs,
    selection::jobs,
    expressions::constant,
    template::images,
    template::merged,
    template::requests,
    secrets::literal,
    template::deprecated,
    template::ports,
    template::without_effect,
    references::volumes,
    references::objects,
    effects::pull_secrets,
    effects::nodes,
    effects::holds,
    effects::scale_down,
    effects::users,
    rollout::steps,
    rollout::at_once,
    rollout::of_jobs,
];

/// All findings in `subjects`, each by itself and in pairs.
///
/// # Guarantees
/// Every fault that the operator would reject is an error, with the same code. An unreadable field does not hide other
/// findings. The order is that of the subjects, then that of the checks.
pub fn lint(subjects: &[Subject], context: &Context) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        findings.extend(subject.violations.iter().cloned().map(|Violation { code, field, message }| Finding {
            subject: index,
            severity: Severity::Error,
            code,
            field,
            message,
            keeps_out: false,
        }));
        let spec = subject.spec.iter();
        let notes = spec.flat_map(|spec| CHECKS.iter().flat_map(move |check| check(spec, context)));
        findings.extend(notes.map(|note| note.about(index)));
    }
    findings.extend(pairs::findings(subjects, context));
    findings
}
