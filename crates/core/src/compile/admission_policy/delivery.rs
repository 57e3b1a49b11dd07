//! The forms in which templates are delivered to pods.

use super::access::{Access, Shape};
use super::cel::{all, not};
use super::environment::Variables;
use super::{Inexpressible, loss};
use crate::api::v1alpha1::{HostNetworkPods, NativeSidecars};
use crate::inject::Template;
use crate::policy::{Policy, Site};
use crate::workload::Kind;

/// One form of a template, and the pods that get it.
pub(super) struct Delivery<'a> {
    pub(super) policy: &'a Policy,
    pub(super) template: &'a Template,
    /// The condition that the policy matches the workload, and that the pod gets this form.
    pub(super) matches: String,
    /// Whether those pods end by themselves; none for both kinds of pods.
    ends: Option<bool>,
    /// The marker with the current hash that the workload has all the same, as text; empty if it has none. An update may
    /// take away content and leave the marker. None for a policy that does not act on updates.
    pub(super) kept: Option<String>,
}

/// The pods of a kind that end by themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// No pod, because the server rejects other values of `restartPolicy`.
    Never,
    /// All pods, for the same reason.
    Always,
    /// Each pod decides by its `restartPolicy`.
    AsItSays,
}

impl Ends {
    fn of(kind: &Kind) -> Self {
        match kind.resource.as_str() {
            _ if !kind.is_in_table() => Self::AsItSays,
            _ if kind.runs_for_ever() => Self::Never,
            "jobs" | "cronjobs" => Self::Always,
            _ => Self::AsItSays,
        }
    }
}

impl<'a> Delivery<'a> {
    /// The forms of the template of `policy`. `matches` is the condition that the policy matches.
    pub(super) fn all(
        policy: &'a Policy,
        matches: &str,
        kind: &Kind,
        site: &Site,
        access: &Access,
        variables: &mut Variables,
    ) -> Vec<Self> {
        let kept = policy.acts_on_update(kind).then(|| loss::kept(policy, access, variables));
        let form = |ends, matches: String| {
            let template = policy.form(ends, site.native_sidecars).ok()?;
            Some(Self { policy, template, matches, ends: None, kept: kept.clone() })
        };
        let is_for_jobs = policy.spec.native_sidecars == NativeSidecars::ForJobs;
        match Ends::of(kind) {
            Ends::AsItSays if is_for_jobs && !policy.as_written().spec.containers.is_empty() => {
                let term = variables.short("ends", ends(access));
                let terms = [(false, not(&term)), (true, term)];
                let forms = terms.map(|(ends, term)| {
                    let form = form(ends, all(&[matches.to_owned(), term]))?;
                    Some(Self { ends: Some(ends), ..form })
                });
                forms.into_iter().flatten().collect()
            }
            of_kind => form(of_kind == Ends::Always, matches.to_owned()).into_iter().collect(),
        }
    }

    /// Whether one pod may get both.
    pub(super) fn meets(&self, other: &Delivery<'_>) -> bool {
        self.policy.name != other.policy.name && self.ends.zip(other.ends).is_none_or(|(ends, other)| ends == other)
    }

    /// Whether pods on the network of their host also get this form.
    pub(super) fn is_for_host_network(&self) -> bool {
        self.policy.spec.host_network_pods == HostNetworkPods::Inject
    }
}

/// The condition that the pod ends by itself, as the pod of a Job does.
pub(super) fn ends(access: &Access) -> String {
    match access.shape {
        Shape::Typed => format!("(has({0}.restartPolicy) && {0}.restartPolicy != \"Always\")", access.spec),
        Shape::Free => format!("!({} in [\"\", \"Always\"])", access.text_in(&access.spec, "restartPolicy")),
    }
}

/// Whether CEL has words for all content of `policy`, the same for each workload.
pub(super) fn has_words(policy: &Policy) -> bool {
    is_expressible(policy).is_ok() && !policy.has_parameters()
}

/// Checks that CEL has words for all content of `policy`.
///
/// # Errors
/// The content that it has no words for.
pub(super) fn is_expressible(policy: &Policy) -> Result<(), Inexpressible> {
    if policy.as_written().spec.pod.is_some() {
        return Err(Inexpressible::new("its template has `pod`"));
    }
    if !policy.as_written().spec.share.is_empty() {
        return Err(Inexpressible::new("its template has `share`"));
    }
    if policy.admitted_past().any(|past| past.template.parameters().next().is_some()) {
        return Err(Inexpressible::new("an earlier content of it has `parameters`"));
    }
    match policy.as_written().joins.keys().next() {
        Some(name) => Err(Inexpressible::new(format!("variable `{name}` of its template has `merge`"))),
        None => Ok(()),
    }
}
