//! The MutatingAdmissionPolicy engine: converts policies to CEL that the API server itself evaluates. Pure.
//!
//! Every targeted resource has one MutatingAdmissionPolicy. It does exactly the same as
//! [`Decision::of`](crate::decision::Decision::of) and [`plan`](crate::decision::Decision::plan) for the same object. A
//! policy without an exact equivalent is [`Code::NotExpressible`]. Then every policy of that resource uses another
//! engine. If a policy rejects workloads (`failurePolicy: Fail`, or `validations`), ValidatingAdmissionPolicies are
//! registered too.
//!
//! # One mutation for all policies
//! All policies decide at once on the object as posted. No policy may see the additions of another, and contradicting
//! policies are all left out. But the mutations of one MutatingAdmissionPolicy see the results of earlier ones. So all
//! policies of the resource share one mutation, in their order, as elsewhere they share one patch.
//!
//! Only users' expressions can fail at run time, and CEL cannot catch errors. With a single policy this is fine: the
//! mutation fails, and nothing is injected. With several policies, each one with conditions has its own mutation before
//! the injecting one. That mutation notes that the policy matches, or fails and notes nothing. The notes are bits in
//! `metadata.deletionGracePeriodSeconds`. The server clears this field on every create before admission. The last
//! mutation clears it again, even after a failed injection.
//!
//! # Files
//! - [`render`]: the registered objects. [`validating`]: the rejecting ones.
//! - [`rows`]: rows 1 to 7. [`expressions`]: the users' expressions. [`conflict`], [`equal`], [`needs`]: row 8.
//!   [`delivery`]: native sidecars.
//! - [`additions`]: the patch and the markers. [`fresh`]: a shortcut for workloads without earlier additions. [`own`]:
//!   the user's own containers.
//! - [`access`]: the parts of a workload. [`cel`], [`variables`]: text.

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

use super::{Engine, EngineName, Surroundings, Unavailable};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::{Capabilities, registration};
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;

/// The API group and version of all registrations.
const API: &str = "admissionregistration.k8s.io/v1";
/// The longest expression, in characters. The limit of cel-go's parser is near, unlike `DefaultMaxRequestSizeBytes`.
const MAX_EXPRESSION: usize = 100_000;
/// The largest object, in bytes of JSON. etcd accepts 1.5 MiB, and the server adds managed fields.
const MAX_OBJECT: usize = 1 << 20;

/// The reason why this engine cannot run on `cluster`, if there is one. Discovery alone proves nothing; a probe
/// follows.
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
    fn id(&self) -> EngineName {
        EngineName::MutatingAdmissionPolicy
    }

    fn name(&self) -> &'static str {
        "MutatingAdmissionPolicy"
    }

    fn choice(&self) -> EngineChoice {
        EngineChoice::MutatingAdmissionPolicy
    }

    fn check(&self, cluster: &Capabilities) -> Result<(), Unavailable> {
        check(cluster)
    }

    fn registers(&self) -> &'static [&'static str] {
        &[registration::MUTATING_POLICIES, registration::MUTATING_BINDINGS]
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

/// The part of a policy that cannot be expressed in CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inexpressible(String);

impl Inexpressible {
    /// `what` is a clause about the policy, such as "its template ...".
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// The reason for `policy` and for all other policies of the resource.
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
