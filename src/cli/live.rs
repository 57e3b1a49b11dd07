//! The reading of a cluster's workloads for commands.

mod requested;

pub(super) use requested::Requested;

use super::Cluster;
use super::site::one_namespace;
use crate::api::code::Code;
use crate::capabilities::Capabilities;
use crate::cluster::api::Api;
use crate::cluster::client::{self, CallError, call};
use crate::cluster::discovery;
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::servers::Servers;
use crate::metrics::Metrics;
use crate::policy::Policies;
use crate::workload::{Kind, Workload};
use crate::workloads::starts::{self, Stuck};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The most edits between a misspelt name and the intended one.
const MAX_EDITS: usize = 2;

/// Where workloads are looked for, as for kubectl.
#[derive(Args, Debug)]
pub(super) struct Scope {
    /// Namespace of the workloads [default: the context's; for manifests that name none, default]
    #[arg(short, long, value_name = "NAME", value_parser = one_namespace)]
    pub(super) namespace: Option<String>,
    /// The workloads of all namespaces of the cluster
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "files"])]
    pub(super) all_namespaces: bool,
    /// Only workloads of the cluster with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "files")]
    pub(super) selector: Option<String>,
}

/// Which objects of the cluster, for commands that look through all namespaces.
#[derive(Args, Debug, Default)]
pub(super) struct Within {
    /// Only objects of this namespace [default: all namespaces]
    #[arg(short, long, value_name = "NAME", value_parser = one_namespace)]
    pub(super) namespace: Option<String>,
    /// Objects of all namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(super) all_namespaces: bool,
    /// Only objects with these labels, as for kubectl
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
}

impl Within {
    /// Whether this is a part of the cluster.
    pub(super) fn is_part(&self) -> bool {
        self.namespace.is_some() || self.selector.is_some()
    }
}

/// The context of an error if discovery fails.
pub(super) const ASKING: &str = "cannot ask the server what it has";

/// The context of an error if policies need the Namespaces and these are unreadable.
pub(super) const NAMESPACES_UNREAD: &str = "cannot read the Namespaces, which a policy decides by";

/// Stored workloads, and the facts about their cluster that decisions need.
pub(super) struct FoundWorkloads {
    pub(super) client: Client,
    /// What the server offers.
    pub(super) server: Capabilities,
    pub(super) workloads: Vec<Workload>,
    /// The searched namespace; none for all namespaces.
    pub(super) namespace: Option<String>,
    /// The error if the Namespaces are unreadable. Policies that need a Namespace report it for each workload.
    pub(super) unread: Option<CallError>,
}

/// The most workloads whose pods are looked at.
pub(super) const LOOKED_AT: usize = 200;

/// A container of a policy that does not start in pods of a workload.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct NotStarting {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) policy: String,
    pub(super) container: String,
    /// The kubelet's word, for example `ImagePullBackOff`.
    pub(super) reason: String,
    pub(super) pods: usize,
    pub(super) code: String,
}

/// The containers of `policies` that do not start in the pods of `workload`.
///
/// # Errors
/// If the pods cannot be listed.
pub(super) async fn not_starting(
    client: &Client,
    workload: &Workload,
    policies: &Policies,
) -> Result<Vec<NotStarting>> {
    let pods = Kind::find("", "pods").expect("it is built in");
    let stuck: Vec<Stuck> = if workload.kind == *pods {
        starts::stuck(policies, workload).into_iter().collect()
    } else if let Some(selector) = starts::unready_pods(workload) {
        let resource = resource("", "v1", "Pod", "pods");
        let parameters = ListParams { label_selector: Some(selector), ..ListParams::default() };
        let listed = list(&api(client, &resource, Some(workload.namespace())), parameters).await;
        let listed = listed.with_context(|| format!("cannot list the pods of {}", workload.name()))?;
        listed.iter().flat_map(|pod| starts::stuck(policies, &Workload::new(pods, pod.value()))).collect()
    } else {
        Vec::new()
    };
    let mut counted: BTreeMap<Stuck, usize> = BTreeMap::new();
    // Of whatever content.
    let stuck = stuck.into_iter().map(|stuck| Stuck { hash: String::new(), ..stuck });
    stuck.for_each(|stuck| *counted.entry(stuck).or_default() += 1);
    let told = counted.into_iter().map(|(Stuck { policy, container, reason, .. }, pods)| NotStarting {
        kind: workload.kind_name().to_owned(),
        namespace: workload.namespace().to_owned(),
        name: workload.name().to_owned(),
        policy: policy.to_string(),
        container,
        reason,
        pods,
        code: Code::SidecarNotStarting.to_string(),
    });
    Ok(told.collect())
}

/// A client of the selected cluster.
pub(super) async fn connect(cluster: &Cluster) -> Result<Client> {
    let (config, place) = logged_in(cluster).await?;
    client::connect_to(Some(place), config, &Arc::new(Metrics::default()))
}

/// The version of the server.
pub(super) async fn version(client: &Client) -> Result<Capabilities> {
    discovery::version(client).await.context(ASKING)
}

/// What the server offers, for workloads of `kinds`.
pub(super) async fn offers<'a>(client: &Client, kinds: impl Iterator<Item = &'a Arc<Kind>>) -> Result<Capabilities> {
    let kinds: BTreeSet<_> = kinds.collect();
    discovery::discover(client, |group| kinds.iter().any(|kind| kind.is_in(group))).await.context(ASKING)
}

/// The time by the clock of the API server, in whole seconds, which the operator's follows more closely than that of this machine.
/// The latter, if the server does not tell.
pub(super) async fn server_time(client: &Client) -> Timestamp {
    let request = http::Request::get("/version").body(kube::client::Body::empty()).expect("it is a request");
    let answer = client.send(request).await.ok();
    let date = answer.as_ref().and_then(|answer| answer.headers().get(http::header::DATE)?.to_str().ok());
    let time = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
    time.unwrap_or_else(Timestamp::now)
}

/// All API servers of the cluster.
pub(super) async fn servers(cluster: &Cluster) -> Result<Servers> {
    let ((config, place), metrics) = (logged_in(cluster).await?, Arc::new(Metrics::default()));
    let client = client::connect_to(Some(place), config.clone(), &metrics)?;
    Ok(Servers::behind(client, config, metrics))
}

/// The configuration of a client, and the place of the server for messages.
async fn logged_in(cluster: &Cluster) -> Result<(Config, String)> {
    if let Some(limit) = cluster.request_timeout {
        client::limit_requests(limit);
    }
    let (config, place) = cluster.access().config_and_place()?;
    Ok((client::logged_in(config).await?, place))
}

/// The requested workloads, by kind, namespace and name.
pub(super) async fn workloads(cluster: &Cluster, asked: &[Requested], scope: &Scope) -> Result<FoundWorkloads> {
    let is_named = asked.iter().any(Requested::is_named);
    ensure!(!(is_named && scope.all_namespaces), "a workload is named within one namespace: use -n instead of -A");
    ensure!(!(is_named && scope.selector.is_some()), "a workload is selected by name or by labels, not by both");
    let (config, place) = logged_in(cluster).await?;
    let own = config.default_namespace.clone();
    let client = client::connect_to(Some(place), config, &Arc::new(Metrics::default()))?;
    let is_wanted = |group: &str| asked.iter().any(|asked| asked.kind.may_be_in(group));
    let server = discovery::discover(&client, is_wanted).await.context(ASKING)?;
    let namespace = (!scope.all_namespaces).then(|| scope.namespace.clone().unwrap_or(own));
    let (namespaces, unread) = match namespaces(&client, namespace.as_deref()).await {
        Ok(found) => (found, None),
        Err(error) => (HashMap::new(), Some(error)),
    };
    let mut workloads = Vec::new();
    for Requested { kind, name } in asked {
        let kind = &kind.kind(&server)?;
        let objects = match (server.resource(kind), name, &namespace) {
            (None, None, _) => continue,
            (None, Some(_), _) => bail!("the server has no {}", kind.resource),
            (Some(resource), Some(name), Some(namespace)) => vec![one(&client, &resource, namespace, name).await?],
            (Some(resource), ..) => {
                let api = api(&client, &resource, namespace.as_deref());
                let parameters = ListParams { label_selector: scope.selector.clone(), ..ListParams::default() };
                list(&api, parameters).await.with_context(|| format!("cannot list {}", kind.resource))?
            }
        };
        workloads.extend(
            objects
                .iter()
                .map(|object| Workload::new(kind, object.value()).within(namespaces.get(object.namespace()).cloned())),
        );
    }
    Ok(FoundWorkloads { client, server, workloads, namespace, unread })
}

/// The stored workloads of a cluster, or of a part of it.
pub(super) struct Inventory<'a> {
    pub(super) client: &'a Client,
    pub(super) server: &'a Capabilities,
    /// The Namespaces, by name.
    pub(super) namespaces: &'a HashMap<String, Arc<Value>>,
    pub(super) within: &'a Within,
}

impl Inventory<'_> {
    /// The stored `object` of that `kind`.
    pub(super) fn workload(&self, kind: &Arc<Kind>, object: &Object) -> Workload {
        Workload::new(kind, object.value()).within(self.namespaces.get(object.namespace()).cloned())
    }

    /// Calls `take` with each result of `look` for the workloads of `kind`, in order. Those of a page are looked at at the same time.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) async fn each<R: Send>(
        &self,
        kind: &Arc<Kind>,
        look: impl Fn(Object, Workload) -> Option<R> + Sync,
        mut take: impl FnMut(R),
    ) -> Result<()> {
        let Some(resource) = self.server.resource(kind) else { return Ok(()) };
        let Within { namespace, selector, .. } = self.within;
        let parameters = ListParams { label_selector: selector.clone(), ..ListParams::default() };
        let mut pages = Pages::new(api(self.client, &resource, namespace.as_deref()), parameters).large();
        let listed = || format!("cannot list {}", kind.group_resource());
        while let Some(page) = pages.next().await.with_context(listed)? {
            let look = |object: Object| {
                let workload = self.workload(kind, &object);
                look(object, workload)
            };
            page.into_par_iter().filter_map(look).collect::<Vec<_>>().into_iter().for_each(&mut take);
        }
        Ok(())
    }
}

/// The API of `resource` in `namespace`, or in all namespaces. An empty namespace, such as that of an unset variable, is no namespace:
/// each request fails.
pub(super) fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<Object> {
    match namespace {
        None => Api::all_with(client.clone(), resource),
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
    }
}

/// The API of the `resource` of an object that is in `namespace`, which is empty if it is in none.
pub(super) fn api_of(client: &Client, resource: &ApiResource, namespace: &str) -> Api<Object> {
    api(client, resource, Some(namespace).filter(|namespace| !namespace.is_empty()))
}

/// The resource for requests about `kind`.
pub(super) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// The workload `name`, or an error with a hint where it may be.
async fn one(client: &Client, resource: &ApiResource, namespace: &str, name: &str) -> Result<Object> {
    let kind = &resource.kind;
    let found = call(api(client, resource, Some(namespace)).get_opt(name)).await;
    if let Some(object) = found.with_context(|| format!("cannot read {kind} {namespace}/{name}"))? {
        return Ok(object);
    }
    let hint = elsewhere(client, resource, namespace, name).await.map_or(String::new(), |hint| format!("; {hint}"));
    bail!("there is no {kind} `{name}` in namespace `{namespace}`{hint}")
}

/// A hint where a missing workload may be. None without the right to look.
async fn elsewhere(client: &Client, resource: &ApiResource, namespace: &str, name: &str) -> Option<String> {
    let of_that_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let others = list(&api(client, resource, None), of_that_name).await.unwrap_or_default();
    if let Some(other) = others.first() {
        return Some(format!("there is one in `{0}`: add `-n {0}`", other.namespace()));
    }
    if let Ok(None) = call(Api::<Namespace>::all(client.clone()).get_opt(namespace)).await {
        return Some("there is no such namespace".to_owned());
    }
    let there = list(&api(client, resource, Some(namespace)), ListParams::default()).await.ok()?;
    meant(name, there.iter().map(Object::name))
}

/// The question whether one of the objects whose names are `there` was meant by `name`.
pub(super) fn meant<'a>(name: &str, there: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = there.map(|there| (strsim::damerau_levenshtein(there, name), there));
    let (_, meant) = near.filter(|(edits, _)| *edits <= MAX_EDITS).min()?;
    Some(format!("did you mean `{meant}`?"))
}

/// The Namespace `namespace`, or all of them, by name.
///
/// # Errors
/// If the Namespaces are unreadable.
pub(super) async fn namespaces(
    client: &Client,
    namespace: Option<&str>,
) -> Result<HashMap<String, Arc<Value>>, CallError> {
    let api = Api::<Namespace>::all(client.clone());
    let found: Vec<Namespace> = match namespace {
        Some(name) => call(api.get_opt(name)).await?.into_iter().collect(),
        None => call(api.list(&ListParams::default())).await?.items,
    };
    let named = found.into_iter().filter_map(|namespace| {
        Some((namespace.metadata.name.clone()?, Arc::new(serde_json::to_value(namespace).ok()?)))
    });
    Ok(named.collect())
}

/// All objects that `parameters` select.
pub(super) async fn list(api: &Api<Object>, parameters: ListParams) -> Result<Vec<Object>, CallError> {
    let mut objects = Vec::new();
    Pages::new(api.clone(), parameters).each(|object| objects.push(object)).await?;
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::behind::maker;
    use serde_json::json;

    #[test]
    fn what_made_a_pod_is_told_where_a_policy_may_target_it() {
        let pod = |kind: &str, name: &str| {
            let owner = json!([{ "kind": kind, "name": name, "controller": true }]);
            let labels = json!({ "pod-template-hash": "6d4b" });
            let body = json!({ "metadata": { "namespace": "shop", "labels": labels, "ownerReferences": owner } });
            let pod = Workload::new(Kind::find("", "pods").expect("pods"), body);
            maker(&pod).map(|(kind, name)| format!("{kind}/{name}"))
        };
        assert_eq!(pod("ReplicaSet", "web-6d4b").as_deref(), Some("deploy/web"));
        assert_eq!(pod("ReplicaSet", "by-hand"), None);
        assert_eq!(pod("StatefulSet", "db").as_deref(), Some("sts/db"));
        assert_eq!(pod("Job", "once"), None);
    }
}
