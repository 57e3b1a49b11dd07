//! The abilities of the API server according to its version and discovery. Only a probe shows that they work.

use crate::Unavailable;
use crate::api::code::Code;
use crate::api::v1alpha1::Target;
use crate::workload::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::core::{ApiResource, GroupVersionKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The resources that engines register, by plural name.
pub mod registration {
    /// The API group of all of them.
    pub const GROUP: &str = "admissionregistration.k8s.io";
    /// Registered by the Initializer engine, in `v1alpha1`.
    pub const INITIALIZERS: &str = "initializerconfigurations";
    /// Registered by the webhook engine, to inject.
    pub const MUTATING_WEBHOOKS: &str = "mutatingwebhookconfigurations";
    /// Registered by the webhook engine, to reject.
    pub const VALIDATING_WEBHOOKS: &str = "validatingwebhookconfigurations";
    /// Registered by the MutatingAdmissionPolicy engine, to inject.
    pub const MUTATING_POLICIES: &str = "mutatingadmissionpolicies";
    /// The bindings that put a MutatingAdmissionPolicy in effect.
    pub const MUTATING_BINDINGS: &str = "mutatingadmissionpolicybindings";
    /// Registered to reject without a webhook.
    pub const VALIDATING_POLICIES: &str = "validatingadmissionpolicies";
    /// The bindings that put a ValidatingAdmissionPolicy in effect.
    pub const VALIDATING_BINDINGS: &str = "validatingadmissionpolicybindings";
    /// All of them, in a safe order of deletion: registrations that reject before those that inject, and bindings
    /// before their policies.
    pub const ALL: [&str; 7] = [
        VALIDATING_BINDINGS,
        VALIDATING_POLICIES,
        VALIDATING_WEBHOOKS,
        MUTATING_BINDINGS,
        MUTATING_POLICIES,
        MUTATING_WEBHOOKS,
        INITIALIZERS,
    ];

    /// Whether the registrations of `resource` reject workloads and change none.
    pub fn refuses(resource: &str) -> bool {
        [VALIDATING_BINDINGS, VALIDATING_POLICIES, VALIDATING_WEBHOOKS].contains(&resource)
    }
}

/// A served resource: group, version, plural name.
type Name = (String, String, String);

/// A resource in discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    kind: String,
    short_names: Vec<String>,
    namespaced: bool,
    verbs: Vec<String>,
}

impl Served {
    /// The reason why no policy can target the resource, if there is one.
    fn obstacle(&self) -> Option<String> {
        let missing = VERBS.iter().find(|verb| self.verbs.iter().all(|has| has != *verb));
        match (self.namespaced, missing) {
            (false, _) => Some("it is in no namespace, and policies are for namespaced resources".to_owned()),
            (true, missing) => missing.map(|verb| format!("the server cannot `{verb}` it")),
        }
    }
}

/// The verbs that a target needs: the operator lists and watches its objects, and releases them.
const VERBS: [&str; 3] = ["list", "watch", "patch"];

/// The parts of discovery that the operator uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The version as the server prints it, for example `v1.13.5`. Of several API servers, that of the oldest.
    pub version: String,
    /// The versions of all API servers of the cluster that could be asked.
    pub versions: BTreeSet<String>,
    /// Major and minor number; (0, 0) if the version has no readable numbers.
    pub minor: (u32, u32),
    /// Whether the server serves `initializerconfigurations` of `admissionregistration.k8s.io/v1alpha1`.
    pub initializers: bool,
    /// Whether native sidecars are usable: the server and every kubelet are 1.29 or later.
    pub native_sidecars: bool,
    /// The newest served version of `coordination.k8s.io`.
    pub lease_version: Option<String>,
    served: BTreeMap<Name, Served>,
}

impl Capabilities {
    /// A server of version `1.minor` that serves `resources`: group, version, plural name and kind of each. For tests.
    pub fn of(minor: u32, resources: &[(&str, &str, &str, &str)]) -> Self {
        let served = resources.iter().map(|(group, version, resource, kind)| {
            let verbs = VERBS.map(str::to_owned).to_vec();
            let served = Served { kind: (*kind).to_owned(), short_names: Vec::new(), namespaced: true, verbs };
            (((*group).to_owned(), (*version).to_owned(), (*resource).to_owned()), served)
        });
        Self { version: format!("v1.{minor}.0"), minor: (1, minor), served: served.collect(), ..Self::default() }
    }

    /// Adds a resource that discovery shows.
    pub fn insert(&mut self, group: &str, version: &str, resource: APIResource) {
        let served = Served {
            kind: resource.kind,
            short_names: resource.short_names.unwrap_or_default(),
            namespaced: resource.namespaced,
            verbs: resource.verbs,
        };
        self.served.insert((group.to_owned(), version.to_owned(), resource.name), served);
    }

    /// Leaves what `other`, another API server of the same cluster, offers as well: no engine may need more than every server has.
    /// Only the version and the resources that engines register are compared, because servers read all others from one etcd.
    pub fn limit_to(&mut self, other: &Self) {
        self.versions.extend(other.versions.iter().cloned());
        if other.minor < self.minor {
            (self.version, self.minor) = (other.version.clone(), other.minor);
        }
        self.served.retain(|name, _| name.0 != registration::GROUP || other.served.contains_key(name));
        self.initializers &= self.registration(registration::INITIALIZERS).is_some();
        self.native_sidecars &= self.at_least(1, 29);
    }

    /// The versions of all API servers, if they differ.
    pub fn mixed(&self) -> Option<String> {
        let versions: Vec<&str> = self.versions.iter().map(String::as_str).collect();
        (versions.len() > 1).then(|| versions.join(", "))
    }

    /// Whether this has a resource of one of `groups` that `other` lacks.
    pub fn has_more_of(&self, groups: &BTreeSet<String>, other: &Self) -> bool {
        self.served.keys().any(|name| groups.contains(&name.0) && !other.served.contains_key(name))
    }

    /// Checks that the server serves all `targets` of a policy, and that policies can target them.
    ///
    /// # Errors
    /// The first target that is not usable.
    pub fn check_targets(&self, targets: &[Target]) -> Result<(), Unavailable> {
        if let Some(Target { group, version, resource, .. }) =
            targets.iter().find(|target| self.of_target(target).next().is_none())
        {
            let message = format!(
                "spec.targets: this server ({}) has no `{resource}` in group `{group}`, version `{version}`; `kubectl api-resources` lists what it has",
                self.version
            );
            return Err(Unavailable::new(Code::TargetNotServed, message));
        }
        let refused =
            targets.iter().find_map(|target| Some((target, self.of_target(target).find_map(Served::obstacle)?)));
        let Some((Target { group, resource, .. }, obstacle)) = refused else { return Ok(()) };
        let message = format!("spec.targets: `{resource}` of group `{group}` can be no target: {obstacle}");
        Err(Unavailable::new(Code::TargetRefused, message))
    }

    fn of_target<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a Served> {
        let is_meant = move |version: &str| target.version == "*" || target.version == version;
        self.versions(&target.group, &target.resource)
            .filter(move |(version, _)| is_meant(version))
            .map(|(_, served)| served)
    }

    /// The versions of `group` that have `resource`. The lookup visits this group only, because every PATCH uses it.
    fn versions<'a>(&'a self, group: &'a str, resource: &'a str) -> impl Iterator<Item = (&'a str, &'a Served)> {
        let first = (group.to_owned(), String::new(), String::new());
        let of_group = self.served.range(first..).take_while(move |((own, _, _), _)| own == group);
        of_group
            .filter(move |((_, _, own), _)| own == resource)
            .map(|((_, version, _), served)| (version.as_str(), served))
    }

    /// The best version of `resource` in `group` among the versions for which `is_meant` is true, as an address for
    /// requests.
    fn best(&self, group: &str, resource: &str, is_meant: impl Fn(&str, &Served) -> bool) -> Option<ApiResource> {
        let meant = self.versions(group, resource).filter(|(version, served)| is_meant(version, served));
        let (version, served) = meant.max_by_key(|(version, _)| rank(version))?;
        Some(ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &served.kind), resource))
    }

    /// The kind that `word` names, by kind (in any case), resource or short name; only in `group`, if given.
    pub fn find(&self, word: &str, group: Option<&str>) -> Option<Arc<Kind>> {
        let is_called = |resource: &str, served: &Served| {
            resource == word
                || served.kind.eq_ignore_ascii_case(word)
                || served.short_names.iter().any(|short| short == word)
        };
        let is_meant = |(own, _, resource): &Name, served: &Served| {
            served.namespaced && group.is_none_or(|group| group == own) && is_called(resource, served)
        };
        let (name, _) = self.served.iter().find(|(name, served)| is_meant(name, served))?;
        Some(Kind::of(&name.0, &name.2, None))
    }

    /// Every group through which `kind` is served, in order.
    pub fn groups<'a>(&self, kind: &'a Kind) -> Vec<&'a str> {
        let served = |group: &&str| self.versions(group, &kind.resource).next().is_some();
        kind.groups.iter().map(String::as_str).filter(served).collect()
    }

    /// The address of `resource`, one of [`registration::ALL`], in the best version that the server has. None if it has none. A
    /// served resource may still be switched off.
    pub fn registration(&self, resource: &str) -> Option<ApiResource> {
        // Only Initializers were ever used in an alpha version.
        let is_meant = |version: &str, _: &Served| !version.contains("alpha") || resource == registration::INITIALIZERS;
        self.best(registration::GROUP, resource, is_meant)
    }

    /// The address of `kind`: its own group in the best version that the server has. None if no policy can target it.
    pub fn resource(&self, kind: &Kind) -> Option<ApiResource> {
        self.best(&kind.group, &kind.resource, |_, served| served.obstacle().is_none())
    }

    /// The number after `1.`, if it is known; `u32::MAX` for a later major version.
    pub fn known_minor(&self) -> Option<u32> {
        match self.minor {
            (0, _) => None,
            (1, minor) => Some(minor),
            _ => Some(u32::MAX),
        }
    }

    /// Whether the version is known and is at least `major.minor`.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        self.minor >= (major, minor)
    }
}

/// Orders Kubernetes versions: stable before beta before alpha, higher before lower.
fn rank(version: &str) -> (u8, u32, u32) {
    let rest = version.trim_start_matches('v');
    let split = |word: &str| rest.split_once(word).map(|(a, b)| (a.parse().unwrap_or(0), b.parse().unwrap_or(0)));
    if let Some((major, n)) = split("beta") {
        return (1, major, n);
    }
    if let Some((major, n)) = split("alpha") {
        return (0, major, n);
    }
    (2, rest.parse().unwrap_or(0), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_rank_before_beta_and_alpha() {
        let mut versions = ["v2alpha1", "v1", "v1beta1", "v1beta2"];
        versions.sort_by_key(|version| rank(version));
        assert_eq!(versions, ["v2alpha1", "v1beta1", "v1beta2", "v1"]);
    }
}
