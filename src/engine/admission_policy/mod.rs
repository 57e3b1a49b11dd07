//! The MutatingAdmissionPolicy engine: the API server itself decides and injects, from 1.36 on. The registered objects come
//! from [`admission_policy`](crate::compile::admission_policy).

use super::requirements::{Flags, Requirements};
use super::{Engine, EngineName, InServer, Injector, Sharing, StoredRegistration, Surroundings, Unavailable};
use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::{Capabilities, registration};
use crate::compile::admission_policy::{check, left_out, render, revision_of, validating};
use crate::naming::{IGNORING, shared_name};
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::Value;
use std::sync::Arc;

const NAME: EngineName = EngineName("MutatingAdmissionPolicy");

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

    fn injector(&self) -> Injector<'_> {
        Injector::InServer(self)
    }
}

impl Sharing for MutatingAdmissionPolicy {
    fn rejects_by(&self) -> &'static [&'static str] {
        &[registration::VALIDATING_POLICIES, registration::VALIDATING_BINDINGS]
    }

    fn rejecting_name(&self, policy: &Policy, kind: &Kind) -> String {
        let name = shared_name(kind);
        if policy.refuses() { name } else { name + IGNORING }
    }

    fn render(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Result<Vec<Value>, Unavailable> {
        render(kind, policies, &surroundings.cluster, &surroundings.site)
    }

    fn render_as(
        &self,
        stored: &StoredRegistration<'_>,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        cluster: &Capabilities,
        site: &Site,
    ) -> Option<Vec<Value>> {
        let rendered = if registration::refuses(stored.resource) {
            validating(kind, policies, cluster, site)
        } else {
            render(kind, policies, cluster, site)
        };
        rendered.ok()
    }

    fn without_effect(&self, tried: &str, _: Option<&str>, _: &Capabilities) -> Unavailable {
        let message = format!(
            "{tried}: are the feature gate and the admission plugin on? Start the API server with `--feature-gates=MutatingAdmissionPolicy=true`, and without `MutatingAdmissionPolicy` in `--disable-admission-plugins`"
        );
        Unavailable::new(Code::AdmissionPolicyPluginOff, message)
    }

    fn revision_of(&self, object: &Value) -> Option<String> {
        revision_of(object)
    }
}

impl InServer for MutatingAdmissionPolicy {
    fn render_rejecting(
        &self,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
        surroundings: &Surroundings,
    ) -> Option<Vec<Value>> {
        let Surroundings { cluster, site, unreadable, .. } = surroundings;
        let is_served =
            cluster.registration(registration::VALIDATING_POLICIES).is_some_and(|served| served.version == "v1");
        let resources = [registration::VALIDATING_POLICIES, registration::VALIDATING_BINDINGS];
        let is_readable = !resources.iter().any(|resource| unreadable.contains(resource));
        validating(kind, policies, cluster, site).ok().filter(|_| is_served && is_readable)
    }

    fn left_out(&self, kind: &Arc<Kind>, policies: &[Arc<Policy>]) -> Option<Value> {
        left_out(kind, policies)
    }
}

/// KEP-3962: alpha in 1.32, beta and off by default in 1.34, stable and on in 1.36.
fn flags(minor: u32) -> Flags {
    match minor {
        0..=31 => Flags::Never("MutatingAdmissionPolicies came with 1.32, and are stable from 1.36"),
        // As alpha or beta they can be switched on, which would change nothing here.
        32..=34 => Flags::Never(
            "the CEL of servers below 1.35 lacks functions that the operator's MutatingAdmissionPolicies need",
        ),
        35 => Flags::Needed(
            "`--feature-gates=MutatingAdmissionPolicy=true` and `--runtime-config=admissionregistration.k8s.io/v1beta1=true`",
        ),
        _ => Flags::Default(
            "`MutatingAdmissionPolicy` must not be false in `--feature-gates`, nor be in `--disable-admission-plugins`",
        ),
    }
}
