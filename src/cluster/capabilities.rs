//! The abilities of the API server according to its version and discovery. Only a probe shows that they work.

use super::client::{CallError, call};
use super::pages::Pages;
use crate::api::v1alpha1::Target;
use crate::workload::{KINDS, Kind};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug, Default)]
pub struct Capabilities {
    /// The version as the server prints it, for example `v1.13.5`.
    pub version: String,
    /// Major and minor number; (0, 0) if the version has no readable numbers.
    pub minor: (u32, u32),
    /// `initializerconfigurations` of `admissionregistration.k8s.io/v1alpha1` are served.
    pub initializers: bool,
    /// Native sidecars are usable: the server and every kubelet are 1.29 or later.
    pub native_sidecars: bool,
    /// The newest served version of `coordination.k8s.io`.
    pub lease_version: Option<String>,
    served: BTreeMap<Name, Served>,
}

impl Capabilities {
    /// The capabilities with the version alone.
    ///
    /// # Errors
    /// If the server does not report its version.
    pub async fn of_version(client: &Client) -> Result<Self, CallError> {
        let version = call(client.apiserver_version()).await?;
        let minor = numbers(&version.major, &version.minor);
        Ok(Self { minor, version: version.git_version, ..Self::default() })
    }

    /// The capabilities of the server: the groups of the built-in kinds, and every group for which `is_wanted` is true.
    ///
    /// # Errors
    /// If the server cannot be reached, rejects discovery, or fails on a group of its own: such a group never counts as
    /// "not served". A group of an aggregated server that is down at the moment counts as not served.
    pub async fn discover(client: &Client, is_wanted: impl Fn(&str) -> bool) -> Result<Self, CallError> {
        let mut found = Self::of_version(client).await?;
        let groups = call(client.list_api_groups()).await?;
        let versions =
            groups.groups.iter().flat_map(|group| &group.versions).map(|version| version.group_version.as_str());
        for group_version in versions.chain(["v1"]) {
            let group = group_version.split_once('/').map_or("", |(group, _)| group);
            match group {
                "coordination.k8s.io" if found.lease_version.is_none() => {
                    found.lease_version = version_of(group_version)
                }
                group if is_of_server(group) || is_wanted(group) => found.read(client, group_version).await?,
                _ => {}
            }
        }
        found.initializers = found.registration(registration::INITIALIZERS).is_some();
        found.native_sidecars = found.at_least(1, 29) && kubelets_have_native_sidecars(client).await?;
        Ok(found)
    }

    async fn read(&mut self, client: &Client, group_version: &str) -> Result<(), CallError> {
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        let listed = match group {
            "" => call(client.list_core_api_resources(version)).await,
            _ => call(client.list_api_group_resources(group_version)).await,
        };
        let listed = match listed {
            Ok(listed) => listed,
            Err(CallError::Refused(status)) if status.code == 404 => return Ok(()),
            Err(CallError::Refused(status)) if status.code == 503 && !is_of_server(group) => return Ok(()),
            Err(error) => return Err(error),
        };
        for resource in listed.resources.into_iter().filter(|resource| !resource.name.contains('/')) {
            let served = Served {
                kind: resource.kind,
                short_names: resource.short_names.unwrap_or_default(),
                namespaced: resource.namespaced,
                verbs: resource.verbs,
            };
            self.served.insert((group.to_owned(), version.to_owned(), resource.name), served);
        }
        Ok(())
    }

    /// Whether this has a resource of one of `groups` that `other` lacks.
    pub fn has_more_of(&self, groups: &BTreeSet<String>, other: &Self) -> bool {
        self.served.keys().any(|name| groups.contains(&name.0) && !other.served.contains_key(name))
    }

    /// Whether the server serves `target`.
    pub fn serves(&self, target: &Target) -> bool {
        self.of_target(target).next().is_some()
    }

    /// The reason why no policy can target `target` although the server serves it.
    pub fn obstacle(&self, target: &Target) -> Option<String> {
        self.of_target(target).find_map(Served::obstacle)
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

    /// The groups that serve `kind`, in order.
    pub fn groups<'a>(&self, kind: &'a Kind) -> Vec<&'a str> {
        let served = |group: &&str| self.versions(group, &kind.resource).next().is_some();
        kind.groups.iter().map(String::as_str).filter(served).collect()
    }

    /// The address of `resource`, one of [`registration::ALL`], in the best served version. None if no version is
    /// served. A served resource may still be switched off.
    pub fn registration(&self, resource: &str) -> Option<ApiResource> {
        // Only initializers were ever used as alpha.
        let is_meant = |version: &str, _: &Served| !version.contains("alpha") || resource == registration::INITIALIZERS;
        self.best(registration::GROUP, resource, is_meant)
    }

    /// The address of `kind`: its own group in the best served version. None if no policy can target it.
    pub fn resource(&self, kind: &Kind) -> Option<ApiResource> {
        self.best(&kind.group, &kind.resource, |_, served| served.obstacle().is_none())
    }

    /// Whether the version is known and is at least `major.minor`.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        self.minor >= (major, minor)
    }
}

/// Whether `group` is one of the groups that we use, and is served by the API server itself.
fn is_of_server(group: &str) -> bool {
    group == registration::GROUP || KINDS.iter().any(|kind| kind.is_in(group))
}

/// Whether every kubelet is known to be 1.29 or later. False if we may not read Nodes.
async fn kubelets_have_native_sidecars(client: &Client) -> Result<bool, CallError> {
    let mut nodes = Pages::new(Api::<Node>::all(client.clone()), ListParams::default());
    let is_young = |node: &Node| {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        info.and_then(|info| version_numbers(&info.kubelet_version)).is_some_and(|version| version >= (1, 29))
    };
    loop {
        match nodes.next().await {
            Ok(Some(page)) if page.iter().all(is_young) => {}
            Ok(None) => return Ok(true),
            Ok(Some(_)) => return Ok(false),
            Err(error) if error.code() == 403 => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Major and minor number of `v1.29.3`, or of a similar version of a vendor.
fn version_numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let mut number = || parts.next()?.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    Some((number()?, number()?))
}

fn version_of(group_version: &str) -> Option<String> {
    group_version.split_once('/').map(|(_, version)| version.to_owned())
}

/// `("1", "13+")` as numbers.
fn numbers(major: &str, minor: &str) -> (u32, u32) {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    (number(major), number(minor))
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
impl Capabilities {
    /// A server of version `1.minor` that serves `resources`: group, version, plural name and kind of each.
    pub(crate) fn of(minor: u32, resources: &[(&str, &str, &str, &str)]) -> Self {
        let served = resources.iter().map(|(group, version, resource, kind)| {
            let verbs = VERBS.map(str::to_owned).to_vec();
            let served = Served { kind: (*kind).to_owned(), short_names: Vec::new(), namespaced: true, verbs };
            (((*group).to_owned(), (*version).to_owned(), (*resource).to_owned()), served)
        });
        Self { version: format!("v1.{minor}.0"), minor: (1, minor), served: served.collect(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::{BoxError, service_fn};

    #[test]
    fn stable_versions_rank_before_beta_and_alpha() {
        let mut versions = ["v2alpha1", "v1", "v1beta1", "v1beta2"];
        versions.sort_by_key(|version| rank(version));
        assert_eq!(versions, ["v2alpha1", "v1beta1", "v1beta2", "v1"]);
    }

    /// Discovers a server that answers one path with an error.
    async fn discovered(broken: &'static str, code: u16) -> Result<Capabilities, CallError> {
        let server = service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let resource =
                |name: &str, kind: &str| json!({ "name": name, "kind": kind, "namespaced": true, "verbs": [] });
            let group = |group: &str| {
                let version = json!({ "groupVersion": format!("{group}/v1"), "version": "v1" });
                json!({ "name": group, "versions": [version], "preferredVersion": version })
            };
            let answer = match path.as_str() {
                path if path == broken => {
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code })
                }
                "/version" => {
                    let keys =
                        ["gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
                    let mut version: Value = keys.map(|key| (key.to_owned(), json!("v1.36.3"))).into_iter().collect();
                    (version["major"], version["minor"]) = (json!("1"), json!("36"));
                    version
                }
                "/apis" => {
                    json!({ "kind": "APIGroupList", "groups": [group("apps"), group("aggregated.example.org")] })
                }
                "/api/v1/nodes" => json!({ "kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": [] }),
                "/apis/apps/v1" => {
                    json!({ "groupVersion": "apps/v1", "resources": [resource("deployments", "Deployment")] })
                }
                "/apis/aggregated.example.org/v1" => {
                    json!({ "groupVersion": "aggregated.example.org/v1", "resources": [resource("things", "Thing")] })
                }
                _ => json!({ "groupVersion": "v1", "resources": [] }),
            };
            let status = if path == broken { code } else { 200 };
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, BoxError>(Response::builder().status(status).body(body).expect("an answer"))
        });
        Capabilities::discover(&Client::new(server, "default"), |_| true).await
    }

    #[tokio::test]
    async fn a_request_that_failed_is_no_answer() {
        let deployments = |found: &Capabilities| found.find("deployment", None).is_some();
        let found = discovered("none", 500).await.expect("an answer");
        assert!(deployments(&found) && found.native_sidecars);
        for (broken, code) in [("/apis/apps/v1", 503), ("/apis/apps/v1", 500), ("/api/v1/nodes", 503), ("/apis", 503)] {
            let error = discovered(broken, code).await.err().unwrap_or_else(|| panic!("{broken}: {code} is an answer"));
            assert_eq!(error.code(), code, "{broken}");
        }
        // Without the right to read Nodes the answer is unknown. An aggregated server may be down.
        assert!(!discovered("/api/v1/nodes", 403).await.expect("an answer").native_sidecars);
        assert!(!deployments(&discovered("/apis/apps/v1", 404).await.expect("an answer")));
        let away = discovered("/apis/aggregated.example.org/v1", 503).await.expect("an answer");
        assert!(deployments(&away));
        let asked = |group: &str| BTreeSet::from([group.to_owned()]);
        assert!(found.has_more_of(&asked("aggregated.example.org"), &away));
        assert!(
            !found.has_more_of(&asked("apps"), &away) && !away.has_more_of(&asked("aggregated.example.org"), &found)
        );
    }

    #[test]
    fn minor_versions_of_vendors_are_understood() {
        assert_eq!(numbers("1", "13+"), (1, 13));
        assert_eq!(numbers("", ""), (0, 0));
    }
}
