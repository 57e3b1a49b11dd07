//! What is asked of a cluster.

use super::Cluster;
use super::report::Invalid;
use crate::cli::files::has_native_sidecars;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::client::{self, CallError, call};
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::metrics::Metrics;
use crate::policy::{Policies, Policy, Site};
use crate::workload::{KINDS, Kind, Workload};
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// What people type for a kind, besides its names.
const SHORT: [(&str, &str); 5] =
    [("deploy", "deployments"), ("sts", "statefulsets"), ("ds", "daemonsets"), ("cj", "cronjobs"), ("po", "pods")];

/// What fails where the server does not tell.
const ASKING: &str = "cannot ask the server what it has";

async fn connect(cluster: &Cluster) -> Result<(Client, String)> {
    let config = client::config(cluster.kubeconfig.as_deref(), cluster.context.as_deref()).await?;
    let namespace = config.default_namespace.clone();
    Ok((client::connect(config, &Arc::new(Metrics::new()))?, namespace))
}

/// A workload that is stored, with what else of its cluster decides.
pub(super) struct Found {
    pub(super) workload: Workload,
    pub(super) native_sidecars: bool,
}

/// The workload `target`, which is `KIND/NAME`.
pub(super) async fn workload(cluster: &Cluster, target: &str, namespace: Option<&str>) -> Result<Found> {
    let (typed, name) = parse(target)?;
    let (client, own) = connect(cluster).await?;
    let namespace = namespace.unwrap_or(&own);
    let server = Capabilities::discover(&client, |_| typed.kind.is_none()).await.context(ASKING)?;
    let kind = &typed.kind(&server)?;
    let Some(resource) = server.resource(kind) else { bail!("the server has no {}", kind.resource) };
    let api: Api<Object> = Api::namespaced_with(client.clone(), namespace, &resource);
    let Some(object) =
        call(api.get_opt(name)).await.with_context(|| format!("cannot read {} {namespace}/{name}", resource.kind))?
    else {
        bail!("there is no {} `{name}` in namespace `{namespace}`: give its namespace with -n", resource.kind)
    };
    // Whoever may not read it learns so from the policies that ask for it.
    let within = call(Api::<Namespace>::all(client.clone()).get_opt(namespace)).await.ok().flatten();
    let within = within.and_then(|namespace| serde_json::to_value(namespace).ok()).map(Arc::new);
    let workload = Workload::new(kind, object.value()).within(within);
    Ok(Found { workload, native_sidecars: server.at_least(1, 29) && kubelets_have_native_sidecars(&client).await })
}

/// Which workloads are meant.
pub(in crate::cli) enum Within {
    /// Those of every namespace.
    All,
    /// Those of one.
    Namespace(String),
    /// Those of the context's.
    Context,
}

/// Workloads that are stored, with what else of their cluster decides.
pub(in crate::cli) struct Stored {
    pub(in crate::cli) workloads: Vec<Workload>,
    pub(in crate::cli) native_sidecars: bool,
}

/// The workloads of `kinds`, by kind, namespace and name.
pub(in crate::cli) async fn workloads(cluster: &Cluster, kinds: &[Arc<Kind>], within: &Within) -> Result<Stored> {
    let (client, own) = connect(cluster).await?;
    let is_wanted = |group: &str| kinds.iter().any(|kind| kind.is_in(group));
    let server = Capabilities::discover(&client, is_wanted).await.context(ASKING)?;
    let namespace = match within {
        Within::All => None,
        Within::Namespace(namespace) => Some(namespace.as_str()),
        Within::Context => Some(own.as_str()),
    };
    let namespaces = namespaces(&client).await;
    let mut workloads = Vec::new();
    for kind in kinds {
        let Some(resource) = server.resource(kind) else { continue };
        let api: Api<Object> = match namespace {
            None => Api::all_with(client.clone(), &resource),
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        };
        let stored = list(&api).await.with_context(|| format!("cannot list {}", kind.resource))?;
        workloads.extend(
            stored
                .iter()
                .map(|object| Workload::new(kind, object.value()).within(namespaces.get(object.namespace()).cloned())),
        );
    }
    let native_sidecars = server.at_least(1, 29) && kubelets_have_native_sidecars(&client).await;
    Ok(Stored { workloads, native_sidecars })
}

/// Every Namespace by name. Whoever may not read them learns so from the policies that ask for one.
async fn namespaces(client: &Client) -> HashMap<String, Arc<Value>> {
    let found = call(Api::<Namespace>::all(client.clone()).list(&ListParams::default())).await;
    let named = found.into_iter().flatten().filter_map(|namespace| {
        Some((namespace.metadata.name.clone()?, Arc::new(serde_json::to_value(namespace).ok()?)))
    });
    named.collect()
}

/// All objects, page by page.
async fn list(api: &Api<Object>) -> Result<Vec<Object>, CallError> {
    let mut parameters = ListParams::default().limit(500);
    let mut objects = Vec::new();
    loop {
        let page = call(api.list(&parameters)).await?;
        objects.extend(page.items);
        let Some(next) = page.metadata.continue_.filter(|next| !next.is_empty()) else { return Ok(objects) };
        parameters.continue_token = Some(next);
    }
}

/// True if and only if every kubelet is known to be of 1.29 or later.
async fn kubelets_have_native_sidecars(client: &Client) -> bool {
    let Ok(nodes) = call(Api::<Node>::all(client.clone()).list(&ListParams::default())).await else { return false };
    nodes.items.into_iter().all(|node| {
        let version = node.status.and_then(|status| status.node_info).map(|info| info.kubelet_version);
        version.is_some_and(|version| has_native_sidecars(Some(&version)).unwrap_or(false))
    })
}

/// The policies that are stored, and those of them that are broken.
pub(in crate::cli) async fn policies(cluster: &Cluster, site: &Site) -> Result<(Policies, Vec<Invalid>)> {
    let (client, _) = connect(cluster).await.context("no --policy is given, and the cluster's cannot be read")?;
    let api: Api<Object> = Api::all_with(client, &policies::resource());
    let stored = match call(api.list(&ListParams::default())).await {
        Ok(list) => list.items,
        Err(CallError::Refused(status)) if status.code == 404 => {
            bail!("the server has no SidecarPolicies: install the operator, or give policies with --policy")
        }
        Err(error) => return Err(error).context("cannot list the policies"),
    };
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    for object in stored {
        match Policy::parse(&object.value(), site) {
            Ok(policy) => valid.push(Arc::new(policy)),
            Err(violations) => invalid.push(Invalid { name: object.name().to_owned(), violations }),
        }
    }
    Ok((Policies::new(valid), invalid))
}

/// The kinds that policies are asked about, in a sentence.
pub(in crate::cli) fn kinds() -> String {
    let built_in = KINDS.iter().filter_map(|kind| kind.kind.as_deref()).collect::<Vec<_>>().join(", ");
    format!("{built_in}, or a custom resource that a policy targets")
}

/// A kind as people type it.
struct Typed<'a> {
    typed: &'a str,
    word: String,
    group: Option<String>,
    /// Which it is, if it is a built-in one.
    kind: Option<&'static Arc<Kind>>,
}

impl Typed<'_> {
    /// Which it is on `server`.
    fn kind(&self, server: &Capabilities) -> Result<Arc<Kind>> {
        let group = self.group.as_deref();
        // kubectl lets the version stand before the group.
        let behind_version = group.and_then(|group| group.split_once('.')).map(|(_, group)| group);
        let found = self.kind.cloned().or_else(|| server.find(&self.word, group));
        found
            .or_else(|| server.find(&self.word, Some(behind_version?)))
            .with_context(|| format!("`{}` is no kind of workload; expected one of {}", self.typed, kinds()))
    }
}

/// `deploy/web`, `Deployment/web` and `deployments.apps/web` alike.
fn parse(target: &str) -> Result<(Typed<'_>, &str)> {
    let Some((typed, name)) = target.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/')) else {
        bail!("`{target}` names no workload; expected KIND/NAME, e.g. `deploy/web`");
    };
    let lower = typed.to_ascii_lowercase();
    let (word, group) = lower.split_once('.').map_or((lower.as_str(), None), |(word, group)| (word, Some(group)));
    let word = SHORT.iter().find(|(short, _)| *short == word).map_or(word, |(_, resource)| resource);
    // kubectl lets the version stand before the group.
    let is_group = |kind: &Kind| {
        group.is_none_or(|group| kind.is_in(group) || group.split_once('.').is_some_and(|(_, group)| kind.is_in(group)))
    };
    let is_called =
        |kind: &Kind| kind.resource == word || kind.kind.as_ref().is_some_and(|kind| kind.eq_ignore_ascii_case(word));
    let kind = KINDS.iter().find(|kind| is_called(kind) && is_group(kind));
    Ok((Typed { typed, word: word.to_owned(), group: group.map(str::to_owned), kind }, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_named_as_for_kubectl() {
        for (typed, expected) in [
            ("deploy/web", Some("deployments")),
            ("Deployment/web", Some("deployments")),
            ("deployments.apps/web", Some("deployments")),
            ("deployments.v1.apps/web", Some("deployments")),
            ("deployment.extensions/web", Some("deployments")),
            ("po/web", Some("pods")),
            ("cj/web", Some("cronjobs")),
            ("deployments.batch/web", None),
            ("configmap/web", None),
            ("deploy", None),
            ("deploy/", None),
            ("deploy/a/b", None),
            ("/web", None),
        ] {
            let found = parse(typed).ok().and_then(|(typed, name)| {
                assert_eq!(name, "web");
                Some(typed.kind?.resource.as_str())
            });
            assert_eq!(found, expected, "{typed}");
        }
    }
}
