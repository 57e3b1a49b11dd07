//! The pods that a policy refuses instead of leaving them out: `hostNetworkPods: Refuse` and `jobs: Refuse`.

use super::checks::{HOST_FIELDS, uses_host};
use super::{Policy, Reason};
use crate::api::code::Code;
use crate::api::v1alpha1::{HostNetworkPods, Jobs, NativeSidecars};
use crate::workload::Workload;

/// A property of a pod for which a policy refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The pod sets this field, one of [`HOST_FIELDS`].
    OnHost(&'static str),
    /// The pod ends by itself.
    Ending,
}

impl Refused {
    /// Whether the pod of `workload` has the property.
    pub(crate) fn is_in(self, workload: &Workload) -> bool {
        match self {
            Self::OnHost(field) => uses_host(workload, field),
            Self::Ending => workload.ends(),
        }
    }

    /// The field of the policy that says so.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::OnHost(_) => "spec.hostNetworkPods",
            Self::Ending => "spec.jobs",
        }
    }

    /// The message for the user who writes the workload.
    pub(crate) fn message(self) -> String {
        match self {
            Self::OnHost(field) => format!(
                "the pod sets `{field}: true`, and `spec.hostNetworkPods` of the policy is `Refuse`: remove `{field}`, or run \
                 the workload where the policy does not match"
            ),
            Self::Ending => "the pod ends by itself, as its `restartPolicy` is not `Always`; a plain sidecar would prevent \
                             that, and `spec.jobs` of the policy is `Refuse`: run it where the policy does not match, or \
                             upgrade to Kubernetes 1.29 or later for native sidecars"
                .to_owned(),
        }
    }

    /// The reason of a rejection.
    pub(crate) fn reason(self) -> Reason {
        Reason { row: 8, code: Code::PodRefused, detail: self.message() }
    }
}

impl Policy {
    /// The properties for which the policy refuses pods. `native_sidecars`: whether containers can be delivered as native
    /// sidecars; then pods that end by themselves get them.
    pub(crate) fn refused(&self, native_sidecars: bool) -> impl Iterator<Item = Refused> {
        let host = self.injects() && self.spec.host_network_pods == HostNetworkPods::Refuse;
        let is_for_jobs = self.spec.native_sidecars == NativeSidecars::ForJobs && self.spec.jobs == Jobs::Refuse;
        let ending = is_for_jobs && !native_sidecars && !self.as_written().spec.containers.is_empty();
        let fields = HOST_FIELDS.into_iter().filter(move |_| host).map(Refused::OnHost);
        fields.chain(ending.then_some(Refused::Ending))
    }
}
