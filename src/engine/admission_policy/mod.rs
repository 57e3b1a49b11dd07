//! The MutatingAdmissionPolicy engine: policies become CEL that the API server itself evaluates. Pure.
//!
//! For every targeted resource there is one MutatingAdmissionPolicy, which does exactly what
//! [`Decision::of`](crate::decision::Decision::of) and [`plan`](crate::decision::Decision::plan) would do with the same object.
//! What cannot be said exactly is not said at all: [`Code::NotExpressible`], and every policy of that resource goes to another
//! engine. Where a policy refuses (`failurePolicy: Fail`, or `validations`), ValidatingAdmissionPolicies stand beside it.
//!
//! # One mutation for all policies
//! Decisions are made on the object as it was posted, by all policies at once: what one adds must not be seen by the next, and
//! two that contradict each other are both left out. The mutations of one MutatingAdmissionPolicy see what those before them
//! did. So there is one mutation for all policies of the resource, in their order, as there is one patch elsewhere.
//!
//! Only users' expressions can fail when they run, and an error in CEL cannot be caught. With one policy it need not be: the
//! mutation fails, nothing is injected. With several, each that has conditions has a mutation of its own before the one that
//! injects: it notes that the policy matches, or fails and notes nothing. The notes are bits in
//! `metadata.deletionGracePeriodSeconds`, a field that the server takes off every create before admission; the last mutation takes it
//! away again, also where the one before it failed.
//!
//! # Files
//! - [`render`]: the objects, and what they are made of. [`validating`]: those that refuse.
//! - [`rows`]: rows 1 to 7. [`expressions`]: the users' own. [`conflict`], [`equal`], [`needs`]: row 8. [`delivery`]: native sidecars.
//! - [`additions`]: the patch and the markers. [`fresh`]: the same where the workload has nothing yet of what is added. [`own`]: the user's own containers.
//! - [`access`]: where things lie in a workload. [`cel`], [`variables`]: text.

#![allow(rustdoc::private_intra_doc_links, reason = "the map of files is for those who work on them")]

mod access;
mod additions;
mod cel;
mod conflict;
mod delivery;
mod equal;
mod expressions;
mod fresh;
mod needs;
mod own;
mod render;
mod rows;
mod validating;
mod variables;

pub use render::{render, revision_of};
pub use validating::validating;

use super::requirements::{Flags, Requirements};
use super::{Engine, EngineName, Surroundings, Unavailable, object};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::{Capabilities, registration};
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;

/// The name of the engine.
const NAME: EngineName = EngineName("MutatingAdmissionPolicy");

/// The group of everything that is registered here.
const API: &str = "admissionregistration.k8s.io/v1";
/// How long an expression may be, in characters: `DefaultMaxRequestSizeBytes` is far away, cel-go's parser is not.
const MAX_EXPRESSION: usize = 100_000;
/// How large an object may be, in bytes of JSON: etcd takes 1.5 MiB, and the server adds what it manages.
const MAX_OBJECT: usize = 1 << 20;

/// Why this engine cannot run on `cluster`, if it cannot. Presence of the API proves nothing: a probe follows.
///
/// # Errors
/// If MutatingAdmissionPolicy is not served in version v1.
pub fn check(cluster: &Capabilities) -> Result<(), Unavailable> {
    for resource in [registration::MUTATING_POLICIES, registration::MUTATING_BINDINGS] {
        if cluster.registration(resource).is_none_or(|served| served.version != "v1") {
            let message = format!(
                "this server ({}) does not serve `{resource}` of `{API}`; use `spec.engine: Webhook`, or a server of 1.36 or later",
                cluster.version
            );
            return Err(Unavailable::new(Code::AdmissionPolicyApiOff, message));
        }
    }
    Ok(())
}

/// The engine.
pub struct MutatingAdmissionPolicy;

impl Engine for MutatingAdmissionPolicy {
    fn name(&self) -> EngineName {
        NAME
    }

    fn choice(&self) -> EngineChoice {
        EngineChoice::MutatingAdmissionPolicy
    }

    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        check(cluster)
    }

    fn requirements(&self) -> Requirements {
        Requirements {
            rights: &[include_str!("../../../config/rbac/admission-policy/cluster_role.yaml")],
            flags,
            plugins: &["MutatingAdmissionPolicy"],
            off: Code::AdmissionPolicyPluginOff,
            witness: None,
        }
    }

    fn registers(&self) -> &'static [&'static str] {
        &[registration::MUTATING_POLICIES, registration::MUTATING_BINDINGS]
    }

    fn rejects_by(&self) -> &'static [&'static str] {
        &[registration::VALIDATING_POLICIES, registration::VALIDATING_BINDINGS]
    }

    fn rejecting_name(&self, policy: &Policy, kind: &Kind) -> String {
        let name = object::shared_name(kind);
        if policy.refuses() { name } else { name + object::IGNORING }
    }

    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings<'_>,
    ) -> Result<Vec<Value>, Unavailable> {
        render(kind, policies, surroundings.cluster, surroundings.site)
    }

    fn render_rejecting(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings<'_>,
    ) -> Option<Vec<Value>> {
        let Surroundings { cluster, site, is_readable, .. } = surroundings;
        let is_served =
            cluster.registration(registration::VALIDATING_POLICIES).is_some_and(|served| served.version == "v1");
        let resources = [registration::VALIDATING_POLICIES, registration::VALIDATING_BINDINGS];
        let is_readable = resources.into_iter().all(*is_readable);
        validating(kind, policies, cluster, site).ok().filter(|_| is_served && is_readable)
    }

    fn render_as(
        &self,
        resource: &str,
        _: &Value,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        cluster: &Capabilities,
        site: &Site,
    ) -> Option<Vec<Value>> {
        let rendered = if registration::refuses(resource) {
            validating(kind, policies, cluster, site)
        } else {
            render(kind, policies, cluster, site)
        };
        rendered.ok()
    }

    fn revision_of(&self, object: &Value) -> Option<String> {
        revision_of(object)
    }

    fn without_effect(&self, tried: &str, _: Option<&str>, _: &Capabilities) -> Unavailable {
        let message = format!(
            "{tried}: are the feature gate and the admission plugin on? Start the API server with `--feature-gates=MutatingAdmissionPolicy=true`, and without `MutatingAdmissionPolicy` in `--disable-admission-plugins`"
        );
        Unavailable::new(Code::AdmissionPolicyPluginOff, message)
    }
}

/// KEP-3962: alpha in 1.32, beta and off in 1.34, stable and on in 1.36.
fn flags(minor: u32) -> Flags {
    match minor {
        0..=31 => Flags::Never("MutatingAdmissionPolicies came with 1.32, and are stable from 1.36"),
        32..=33 => Flags::Needed(
            "`--feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1alpha1=true`; the operator uses them in version v1 only, from 1.36",
        ),
        34..=35 => Flags::Needed(
            "`--feature-gates=MutatingAdmissionPolicy=true --runtime-config=admissionregistration.k8s.io/v1beta1=true`; the operator uses them in version v1 only, from 1.36",
        ),
        _ => Flags::Default(
            "`MutatingAdmissionPolicy` must not be false in `--feature-gates`, nor be in `--disable-admission-plugins`",
        ),
    }
}

/// What of a policy cannot be said in CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inexpressible(String);

impl Inexpressible {
    /// `what` says it of the policy, as in "its template ...".
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// The reason for `policy` and all others of the resource.
    fn of(self, policy: &Policy) -> Unavailable {
        let message = format!(
            "SidecarPolicy `{}` cannot be a MutatingAdmissionPolicy: {}; leave `spec.engine` at `Auto` or set `Webhook`",
            policy.name, self.0
        );
        Unavailable::new(Code::NotExpressible, message)
    }
}

#[cfg(test)]
mod tests;
