//! The forms in which templates are delivered to pods.

use super::access::{Access, Shape};
use super::cel::{all, not};
use super::loss;
use super::variables::Variables;
use crate::api::v1alpha1::{HostNetworkPods, Jobs, NativeSidecars};
use crate::inject::Template;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use std::borrow::Cow;

/// One form of a template, and the pods that get it.
pub(super) struct Delivery<'a> {
    pub(super) policy: &'a Policy,
    pub(super) template: Cow<'a, Template>,
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
        let own = &policy.template;
        let kept = policy.acts_on_update(kind).then(|| loss::kept(policy, access, variables));
        let plain = || Some(Cow::Borrowed(own));
        let native = || site.native_sidecars.then(|| Cow::Owned(own.with_native_sidecars()));
        let one = |template: Option<Cow<'a, Template>>| {
            template
                .map(|template| Self { policy, template, matches: matches.to_owned(), ends: None, kept: kept.clone() })
                .into_iter()
                .collect()
        };
        let ending = || match (site.native_sidecars, policy.spec.jobs) {
            (false, Jobs::Skip | Jobs::Refuse) => None,
            (false, Jobs::Inject) => plain(),
            (true, _) => native(),
        };
        match (policy.spec.native_sidecars, Ends::of(kind)) {
            _ if own.spec.containers.is_empty() => one(plain()),
            (NativeSidecars::Never, _) | (NativeSidecars::ForJobs, Ends::Never) => one(plain()),
            (NativeSidecars::Always, _) => one(native()),
            (NativeSidecars::ForJobs, Ends::Always) => one(ending()),
            (NativeSidecars::ForJobs, Ends::AsItSays) => {
                let ends = variables.short("ends", ends(access));
                let form = |template: Option<Cow<'a, Template>>, term: String, ends| {
                    let matches = all(&[matches.to_owned(), term]);
                    template.map(|template| Self { policy, template, matches, ends: Some(ends), kept: kept.clone() })
                };
                [form(plain(), not(&ends), false), form(ending(), ends, true)].into_iter().flatten().collect()
            }
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
