//! Asks the API server what it offers.

use super::api::Api;
use super::client::{CallError, call};
use super::pages::Pages;
use crate::capabilities::{Capabilities, registration};
use crate::workload::KINDS;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::ListParams;

/// The version of the server, and nothing else.
///
/// # Errors
/// If the server does not answer.
pub async fn version(client: &Client) -> Result<Capabilities, CallError> {
    let version = call(client.apiserver_version()).await?;
    let minor = numbers(&version.major, &version.minor);
    let mut found = Capabilities::default();
    found.versions.insert(version.git_version.clone());
    (found.minor, found.version) = (minor, version.git_version);
    Ok(found)
}

/// What the server serves, in the groups of the built-in kinds and in those for which `is_wanted` is true.
///
/// # Errors
/// If the server cannot be reached, rejects discovery, or cannot answer now. A failed request never means "not served", except for the
/// group of another server behind the API server.
pub async fn discover(client: &Client, is_wanted: impl Fn(&str) -> bool) -> Result<Capabilities, CallError> {
    let mut found = version(client).await?;
    let versions = group_versions(client).await?;
    for group_version in versions.iter().map(String::as_str).chain(["v1"]) {
        match group_of(group_version) {
            "coordination.k8s.io" if found.lease_version.is_none() => found.lease_version = version_of(group_version),
            group if is_of_server(group) || is_wanted(group) => read(&mut found, client, group_version).await?,
            _ => {}
        }
    }
    found.initializers = found.registration(registration::INITIALIZERS).is_some();
    found.native_sidecars = found.at_least(1, 29) && kubelets_have_native_sidecars(client).await?;
    Ok(found)
}

/// The version of the server, and what it serves of the resources that engines register.
///
/// # Errors
/// As in [`discover`].
pub async fn registrations(client: &Client) -> Result<Capabilities, CallError> {
    let mut found = version(client).await?;
    let versions = group_versions(client).await?;
    for group_version in versions.iter().filter(|name| group_of(name) == registration::GROUP) {
        read(&mut found, client, group_version).await?;
    }
    Ok(found)
}

/// The versions of all groups but the core group, as `group/version`.
async fn group_versions(client: &Client) -> Result<Vec<String>, CallError> {
    let groups = call(client.list_api_groups()).await?.groups;
    Ok(groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version).collect())
}

/// The group of `group_version`; empty for the core group.
fn group_of(group_version: &str) -> &str {
    group_version.split_once('/').map_or("", |(group, _)| group)
}

async fn read(found: &mut Capabilities, client: &Client, group_version: &str) -> Result<(), CallError> {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let listed = match group {
        "" => call(client.list_core_api_resources(version)).await,
        _ => call(client.list_api_group_resources(group_version)).await,
    };
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) if error.code() == 404 || error.code() == 503 && !is_of_server(group) => return Ok(()),
        Err(error) => return Err(error),
    };
    for resource in listed.resources.into_iter().filter(|resource| !resource.name.contains('/')) {
        found.insert(group, version, resource);
    }
    Ok(())
}

/// Whether the API server itself serves the group, and engines or built-in kinds need it.
fn is_of_server(group: &str) -> bool {
    group == registration::GROUP || KINDS.iter().any(|kind| kind.is_in(group))
}

/// Whether every kubelet is known to be of 1.29 or later. Without the right to read Nodes no version is known.
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
            Err(error) if error.is_forbidden() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// Major and minor number of `v1.29.3`, or of the like that vendors have.
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;
    use tower::{BoxError, service_fn};

    /// Asks a server of which one path answers with an error.
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
        discover(&Client::new(server, "default"), |_| true).await
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
        // Who may not read Nodes does not know; what another server serves may be away.
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
