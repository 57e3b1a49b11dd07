//! Policies as MutatingAdmissionPolicies: CEL that the API server itself evaluates.
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
//! - [`render`]: all objects of one resource. [`validating`]: those that reject. [`objects`]: what both kinds share.
//! - [`loss`]: what an update takes away. [`rows`]: rows 1 to 7. [`replaces`]: who takes the place of whom. [`half`]: the steps of a rollout. [`expressions`]: the users' own. [`conflict`], [`equal`], [`needs`]: row 8. [`delivery`]: native sidecars.
//! - [`additions`]: the patch and the markers. [`fresh`]: the same for a workload without any of the added content. [`own`]: the user's own containers. [`owners`]: what other markers list. [`presence`]: what a marker claims. [`reasons`]: what stands in the way, in words.
//! - [`leaf`]: the values of templates. [`values`]: those of parameters. [`environment`]: what an expression may name. [`access`]: where things lie in a workload. [`keys`]: of items in
//!   containers. [`cel`]: text.

#![allow(rustdoc::private_intra_doc_links, reason = "the map of files is for those who work on them")]

mod access;
mod additions;
mod cel;
mod conflict;
mod delivery;
mod environment;
mod equal;
mod expressions;
mod fresh;
mod half;
mod keys;
mod leaf;
mod loss;
mod needs;
mod objects;
mod own;
mod owners;
mod presence;
mod reasons;
mod render;
mod replaces;
mod rows;
mod validating;
mod values;

pub use objects::revision_of;
pub use render::{left_out, render};
pub use validating::validating;

use crate::Unavailable;
use crate::api::code::Code;
use crate::capabilities::{Capabilities, registration};
use crate::policy::Policy;

/// The group of everything that is registered here.
const API: &str = "admissionregistration.k8s.io/v1";
/// How long an expression may be, in characters: `DefaultMaxRequestSizeBytes` is far away, cel-go's parser is not.
const MAX_EXPRESSION: usize = 100_000;
/// How large an object may be, in bytes of JSON: etcd takes 1.5 MiB, and the server adds what it manages.
const MAX_OBJECT: usize = 1 << 20;

/// Why this engine cannot run on `cluster`, if it cannot. Presence of the API proves nothing: a probe follows.
///
/// # Errors
/// If MutatingAdmissionPolicy is not served in a version that the operator uses.
pub fn check(cluster: &Capabilities) -> Result<(), Unavailable> {
    for resource in [registration::MUTATING_POLICIES, registration::MUTATING_BINDINGS] {
        let version = cluster.registration(resource).map(|served| served.version);
        let version = version.as_deref();
        // The CEL of 1.34 lacks functions of lists that the rendered expressions call.
        let is_usable = version == Some("v1") || version == Some("v1beta1") && cluster.at_least(1, 35);
        if !is_usable {
            let message = match cluster.mixed() {
                _ if version == Some("v1beta1") => format!(
                    "this server ({}) has `{resource}` in v1beta1 only, and its CEL lacks `flatten`, which this engine needs; use `spec.engine: Webhook`, or a server of 1.35 or later",
                    cluster.version
                ),
                Some(versions) => format!(
                    "not every API server ({versions}) serves `{resource}` of `{API}`; use `spec.engine: Auto` until all are of 1.36 or later"
                ),
                None => format!(
                    "this server ({}) does not serve `{resource}` of `{API}`; use `spec.engine: Webhook`, or a server of 1.36 or later",
                    cluster.version
                ),
            };
            return Err(Unavailable::new(Code::AdmissionPolicyApiOff, message));
        }
    }
    Ok(())
}

/// CEL for a part of a policy.
type Cel = Result<String, Inexpressible>;

/// The part of a policy that CEL cannot express.
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
