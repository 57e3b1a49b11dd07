//! What is wrong with policies before any cluster sees them. Pure.
//!
//! [`lint`] gives every fault that the operator would name, and what no schema can see: selectors that match nothing, policies
//! that get in each other's way, images without a version. [`against`] puts the policies and workloads together.

mod expressions;
mod manifest;
mod pairs;
mod references;
mod selection;
mod template;
mod version;
mod workloads;

pub use manifest::vet;
pub use references::needs;
pub use template::{late_references, shared_ports};
pub use workloads::against;

use crate::api::code::Code;
use crate::api::judge;
use crate::api::pod_schema::in_template;
use crate::api::rules::Violation;
use crate::api::v1alpha1::{EngineChoice, SidecarPolicySpec};
use crate::manifest::{Object, is_meant_as_policy, misspelt};
use crate::policy::{Policy, Site};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// The last minor version of Kubernetes 1 that has Initializers.
const LAST_WITH_INITIALIZERS: u32 = 13;

/// How much a finding matters, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// The operator refuses the policy.
    Error,
    /// It does not do what somebody meant, or harms.
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

    /// How much what has `code` matters, where the policy is valid.
    fn of(code: Code) -> Self {
        match code {
            Code::DuplicatePolicy | Code::DuplicateInitializerName => Severity::Error,
            Code::NeedsReference | Code::SharedContainerPort | Code::HostNetwork | Code::OptedOut => Severity::Info,
            _ => Severity::Warning,
        }
    }
}

/// Something about one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which of the policies, by index.
    pub subject: usize,
    /// How much it matters.
    pub severity: Severity,
    /// What kind of thing it is.
    pub code: Code,
    /// The field, for example `spec.template.containers[1].image`.
    pub field: String,
    /// What is wrong with it, and what to write instead. The sentence begins with the field.
    pub message: String,
}

/// What is known of the cluster that the policies are for.
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

    /// True if and only if `spec` is delivered by Initializers: where they are, or where it asks for them and nobody says which
    /// version the cluster has. Nobody else is told about versions that few still have.
    fn uses_initializers(&self, spec: &SidecarPolicySpec) -> bool {
        match spec.engine {
            EngineChoice::Auto => self.site.minor.is_some_and(|minor| minor <= LAST_WITH_INITIALIZERS),
            EngineChoice::Initializer => self.site.minor.is_none_or(|minor| minor <= LAST_WITH_INITIALIZERS),
            EngineChoice::Webhook | EngineChoice::MutatingAdmissionPolicy => false,
        }
    }
}

/// A policy that is judged.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name; empty if it has none.
    pub name: String,
    /// Where it stands, as people are told.
    pub place: String,
    /// As much of its spec as can be read.
    spec: Option<SidecarPolicySpec>,
    /// What the operator has against it.
    violations: Vec<Violation>,
    /// The policy, if it is valid.
    policy: Option<Arc<Policy>>,
}

impl Subject {
    /// The policy `object`, which stands at `place`; none if it is something else.
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

/// Parses the policy `object` from a file, where no server judges its template: [`Policy::parse`], and what a server of the
/// version that the site names would have against it.
///
/// # Errors
/// Every fault of the spec, each with its code and the path of its field.
pub fn parse(object: &Value, site: &Site) -> Result<Policy, Vec<Violation>> {
    let (parsed, mut violations) = match Policy::parse(object, site) {
        Ok(policy) => (Some(policy), Vec::new()),
        Err(violations) => (None, violations),
    };
    of_server(object, parsed.as_ref().map(|policy| &policy.spec), site, &mut violations);
    // Who cannot have native sidecars is left out by the decision, with the reason.
    violations.retain(|violation| {
        violation.code != Code::NativeSidecarsUnavailable || violation.field != "spec.nativeSidecars"
    });
    parsed.filter(|_| violations.is_empty()).ok_or(violations)
}

/// Adds to `violations` what a server would have against the policy `object`, whose readable part is `spec`. Of one field, what
/// is said already is enough.
fn of_server(object: &Value, spec: Option<&SidecarPolicySpec>, site: &Site, violations: &mut Vec<Violation>) {
    let mut more = in_template(&object["spec"]["template"], site.minor);
    more.extend(spec.into_iter().flat_map(|spec| version::lacking(spec, site.minor)));
    for violation in more {
        if !violations.iter().any(|known| known.field == violation.field) {
            violations.push(violation);
        }
    }
}

/// What is wrong with what `object` says that it is; none if it is no policy, nor meant to be one.
fn header(object: &Object<'_>) -> Option<Vec<Violation>> {
    let violation = |(field, wanted, found): (&str, &str, &str)| {
        let message = format!("must be `{wanted}`, is `{found}`");
        Violation { code: Code::InvalidField, field: field.to_owned(), message }
    };
    is_meant_as_policy(object).then(|| misspelt(object).map(violation).into_iter().collect())
}

/// Something about a policy, before it is known which one it is in a list.
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
        Finding { subject, severity: Severity::of(code), code, field, message }
    }
}

/// A look at one policy by itself.
type Check = fn(&SidecarPolicySpec, &Context) -> Vec<Note>;

/// Every such look.
const CHECKS: [Check; 15] = [
    selection::contradictions,
    selection::namespaces,
    selection::targets,
    selection::pods,
    selection::fail_on_pods,
    selection::endless_jobs,
    selection::jobs,
    expressions::constant,
    template::images,
    template::requests,
    template::deprecated,
    template::ports,
    template::without_effect,
    references::volumes,
    references::objects,
];

/// Everything that can be said of `subjects` by themselves.
///
/// # Guarantees
/// What the operator would refuse is an error, every fault of it, with the same codes. What cannot be read is no reason to be
/// silent about the rest. The order is that of the subjects, then that of the checks.
pub fn lint(subjects: &[Subject], context: &Context) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        findings.extend(subject.violations.iter().cloned().map(|Violation { code, field, message }| Finding {
            subject: index,
            severity: Severity::Error,
            code,
            field,
            message,
        }));
        let spec = subject.spec.iter();
        let notes = spec.flat_map(|spec| CHECKS.iter().flat_map(move |check| check(spec, context)));
        findings.extend(notes.map(|note| note.about(index)));
    }
    findings.extend(pairs::findings(subjects, context));
    findings
}
