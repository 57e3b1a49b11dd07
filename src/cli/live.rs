//! The reading of a cluster's workloads and policies for commands.

use super::Cluster;
use super::files::kinds;
use crate::api::code::Code;
use crate::api::condition::ConditionType;
use crate::api::rules::Violation;
use crate::api::trust::Trust;
use crate::capabilities::Capabilities;
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::{self, CallError, call};
use crate::cluster::discovery;
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::policies;
use crate::cluster::servers::Servers;
use crate::metrics::Metrics;
use crate::policy::{Policies, Policy, Site};
use crate::workload::{KINDS, Kind, Workload};
use crate::workloads::starts::{self, Stuck};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Short names of kinds.
const SHORT: [(&str, &str); 5] =
    [("deploy", "deployments"), ("sts", "statefulsets"), ("ds", "daemonsets"), ("cj", "cronjobs"), ("po", "pods")];
/// The most edits between a misspelt name and the intended one.
pub(super) const MAX_EDITS: usize = 2;

/// Where workloads are looked for, as for kubectl.
#[derive(Args, Debug)]
pub(super) struct Scope {
    /// Namespace of the workloads [default: the context's; for manifests that name none, default]
    #[arg(short, long, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// The workloads of all namespaces of the cluster
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "files"])]
    pub(super) all_namespaces: bool,
    /// Only workloads of the cluster with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "files")]
    pub(super) selector: Option<String>,
}

/// Which objects of the cluster, for commands that look through all namespaces.
#[derive(Args, Debug)]
pub(super) struct Within {
    /// Only objects of this namespace [default: all namespaces]
    #[arg(short, long, value_name = "NAME")]
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

/// A kind as the user typed it.
#[derive(Clone, Debug)]
struct Typed {
    /// The typed text.
    text: String,
    word: String,
    group: Option<String>,
    /// The kind, if it is known without the server.
    kind: Option<Arc<Kind>>,
}

impl Typed {
    /// Parses `deploy`, `Deployment` or `deployments.apps`.
    fn parse(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let (word, group) = lower.split_once('.').map_or((lower.as_str(), None), |(word, group)| (word, Some(group)));
        let word = SHORT.iter().find(|(short, _)| *short == word).map_or(word, |(_, resource)| resource);
        match word {
            "" => return Err(unknown(text)),
            "rs" | "replicasets" | "replicaset" => {
                bail!("no policy is for `{text}`: what a Deployment makes is decided at the Deployment; ask for that")
            }
            _ => {}
        }
        let is_group = |kind: &Kind| {
            group.is_none_or(|group| kind.is_in(group) || behind_version(group).is_some_and(|group| kind.is_in(group)))
        };
        let is_called = |kind: &Kind| {
            kind.resource == word || kind.kind.as_ref().is_some_and(|kind| kind.eq_ignore_ascii_case(word))
        };
        let kind = KINDS.iter().find(|kind| is_called(kind) && is_group(kind)).cloned();
        Ok(Self { text: text.to_owned(), word: word.to_owned(), group: group.map(str::to_owned), kind })
    }

    /// The kind on `server`.
    fn kind(&self, server: &Capabilities) -> Result<Arc<Kind>> {
        let group = self.group.as_deref();
        let found = self.kind.clone().or_else(|| server.find(&self.word, group));
        found.or_else(|| server.find(&self.word, Some(behind_version(group?)?))).ok_or_else(|| unknown(&self.text))
    }

    /// Whether discovery of `group` is needed.
    fn may_be_in(&self, group: &str) -> bool {
        self.kind.as_ref().is_none_or(|kind| kind.is_in(group))
    }
}

/// kubectl accepts a version before the group.
fn behind_version(group: &str) -> Option<&str> {
    group.split_once('.').map(|(_, group)| group)
}

fn unknown(typed: &str) -> anyhow::Error {
    let kinds = kinds();
    anyhow!("`{typed}` is no kind of workload; expected KIND/NAME, e.g. `deploy/web`, where the kind is one of {kinds}")
}

/// One workload, or all workloads of a kind.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    kind: Typed,
    name: Option<String>,
}

impl Asked {
    /// All workloads of each of `kinds`: built-in kinds in the order of their table, then custom resources.
    pub(super) fn all<'a>(kinds: impl Iterator<Item = &'a Arc<Kind>>) -> Vec<Self> {
        let kinds: BTreeSet<_> = kinds.collect();
        let built_in = KINDS.iter().filter(|kind| kinds.contains(kind));
        let custom = kinds.iter().copied().filter(|kind| !kind.is_in_table());
        let all_of = |kind: &Arc<Kind>| {
            let (word, group) = (kind.resource.clone(), Some(kind.group.clone()));
            Self { kind: Typed { text: word.clone(), word, group, kind: Some(kind.clone()) }, name: None }
        };
        built_in.chain(custom).map(all_of).collect()
    }

    /// The meaning of `words`, as in kubectl: `KIND/NAME` once or several times; or `KIND` or `KIND,KIND`, alone for
    /// all workloads or followed by names.
    pub(super) fn parse(words: &[String]) -> Result<Vec<Self>> {
        let Some((first, names)) = words.split_first() else { return Ok(Vec::new()) };
        if words.iter().any(|word| word.contains('/')) {
            return words.iter().map(|word| Self::named(word)).collect();
        }
        let kinds = first.split(',').map(Typed::parse).collect::<Result<Vec<_>>>()?;
        if names.is_empty() {
            return Ok(kinds.into_iter().map(|kind| Self { kind, name: None }).collect());
        }
        let named = |kind: Typed| names.iter().map(move |name| Self { kind: kind.clone(), name: Some(name.clone()) });
        Ok(kinds.into_iter().flat_map(named).collect())
    }

    fn named(word: &str) -> Result<Self> {
        let split = word.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/'));
        let (typed, name) =
            split.with_context(|| format!("`{word}` names no workload; expected KIND/NAME, e.g. `deploy/web`"))?;
        Ok(Self { kind: Typed::parse(typed)?, name: Some(name.to_owned()) })
    }

    /// Whether this names one workload.
    pub(super) fn is_named(&self) -> bool {
        self.name.is_some()
    }
}

/// Stored workloads, and the facts about their cluster that decisions need.
pub(super) struct Stored {
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
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
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

/// A stored policy that is invalid.
pub(super) struct Invalid {
    pub(super) name: String,
    pub(super) violations: Vec<Violation>,
}

/// The policies that a command uses.
#[derive(Default)]
pub(super) struct Known {
    pub(super) policies: Policies,
    /// The invalid policies.
    pub(super) invalid: Vec<Invalid>,
    /// The reasons why valid policies are not in effect, by policy name.
    pub(super) idle: BTreeMap<String, String>,
}

/// A client of the selected cluster, and the namespace of its context.
pub(super) async fn connect(cluster: &Cluster) -> Result<(Client, String)> {
    let config = logged_in(cluster).await?;
    let namespace = config.default_namespace.clone();
    Ok((client::connect(config, &Arc::new(Metrics::default()))?, namespace))
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
    Servers::connect(logged_in(cluster).await?, Arc::new(Metrics::default()))
}

async fn logged_in(cluster: &Cluster) -> Result<Config> {
    if let Some(limit) = cluster.request_timeout {
        client::limit_requests(limit);
    }
    client::logged_in(cluster.access().config()?).await
}

/// The requested workloads, by kind, namespace and name.
pub(super) async fn workloads(cluster: &Cluster, asked: &[Asked], scope: &Scope) -> Result<Stored> {
    let is_named = asked.iter().any(Asked::is_named);
    ensure!(!(is_named && scope.all_namespaces), "a workload is named within one namespace: use -n instead of -A");
    ensure!(!(is_named && scope.selector.is_some()), "a workload is selected by name or by labels, not by both");
    let (client, own) = connect(cluster).await?;
    let is_wanted = |group: &str| asked.iter().any(|asked| asked.kind.may_be_in(group));
    let server = discovery::discover(&client, is_wanted).await.context(ASKING)?;
    let namespace = (!scope.all_namespaces).then(|| scope.namespace.clone().unwrap_or(own));
    let (namespaces, unread) = match namespaces(&client, namespace.as_deref()).await {
        Ok(found) => (found, None),
        Err(error) => (HashMap::new(), Some(error)),
    };
    let mut workloads = Vec::new();
    for Asked { kind, name } in asked {
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
    Ok(Stored { client, server, workloads, namespace, unread })
}

/// The API of `resource` in `namespace`, or in all namespaces.
pub(super) fn api(client: &Client, resource: &ApiResource, namespace: Option<&str>) -> Api<Object> {
    match namespace {
        None => Api::all_with(client.clone(), resource),
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
    }
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
    let near = there.iter().map(|object| (strsim::damerau_levenshtein(object.name(), name), object.name()));
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

/// The stored policies of the cluster.
pub(super) async fn policies(cluster: &Cluster, site: &Site) -> Result<Known> {
    let (client, _) = connect(cluster).await.context("no --policy is given, and the cluster's cannot be read")?;
    Ok(known(&stored(&client).await?.context(NO_POLICIES)?, site))
}

/// The message if the server has no SidecarPolicies.
pub(super) const NO_POLICIES: &str =
    "the server has no SidecarPolicies: install the operator, or give policies with --policy";

/// The stored policies as objects; none if the server has no CustomResourceDefinition for them.
pub(super) async fn stored(client: &Client) -> Result<Option<Vec<Object>>> {
    let api: Api<Object> = Api::all_with(client.clone(), &policies::resource());
    match list(&api, ListParams::default()).await {
        Ok(listed) => Ok(Some(listed)),
        Err(error) if error.means() == Meaning::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot list the policies"),
    }
}

/// The `stored` policies, parsed.
pub(super) fn known(stored: &[Object], site: &Site) -> Known {
    let (mut valid, mut known) = (Vec::new(), Known::default());
    for object in stored {
        let value = object.value();
        match parse(&value, site) {
            Ok(policy) => {
                let idle = policy.is_enforced().then(|| idle(&value["status"])).flatten();
                known.idle.extend(idle.map(|why| (policy.name.clone(), why)));
                valid.push(Arc::new(policy));
            }
            Err(violations) => known.invalid.push(Invalid { name: object.name().to_owned(), violations }),
        }
    }
    Known { policies: Policies::new(valid), ..known }
}

/// The stored policy `object`. The operator decides what policies are trusted with. Hence a policy that it has accepted
/// in its current form is valid, whatever flags this command has.
///
/// # Errors
/// Every fault of the policy's spec.
pub(super) fn parse(object: &Value, site: &Site) -> Result<Policy, Vec<Violation>> {
    Policy::parse(object, site).or_else(|violations| {
        let trusting = Site { trust: Trust::unbounded(), ..site.clone() };
        if is_accepted(object) { Policy::parse(object, &trusting).map_err(|_| violations) } else { Err(violations) }
    })
}

/// Whether the operator has accepted the policy `object` in its current form.
fn is_accepted(object: &Value) -> bool {
    let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
    let accepted = ConditionType::Accepted.as_str();
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["observedGeneration"] == *generation
        && conditions.any(|condition| condition["type"] == accepted && condition["status"] == "True")
}

/// The reason why a policy with this `status` is not in effect although it should be.
fn idle(status: &Value) -> Option<String> {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    match conditions.find(|condition| condition["type"] == "Programmed") {
        None => Some("no operator has seen it; is one running?".to_owned()),
        Some(programmed) if programmed["status"] == "True" => None,
        Some(programmed) => Some(programmed["message"].as_str().unwrap_or_default().to_owned()),
    }
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

    /// The built-in kinds in the request; none if one is not built in.
    fn parse(words: &[&str]) -> Option<Vec<(String, Option<String>)>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let asked = Asked::parse(&words).ok()?;
        asked.into_iter().map(|asked| Some((asked.kind.kind?.resource.clone(), asked.name))).collect()
    }

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
            ("deploy/", None),
            ("deploy/a/b", None),
            ("/web", None),
        ] {
            let expected = expected.map(|resource: &str| vec![(resource.to_owned(), Some("web".to_owned()))]);
            assert_eq!(parse(&[typed]), expected, "{typed}");
        }
    }

    #[test]
    fn several_workloads_and_whole_kinds_are_named_as_for_kubectl() {
        let (web, api) = (Some("web".to_owned()), Some("api".to_owned()));
        for (typed, expected) in [
            (&[][..], Some(vec![])),
            (&["deploy"], Some(vec![("deployments", None)])),
            (&["sts,ds"], Some(vec![("statefulsets", None), ("daemonsets", None)])),
            (&["deploy", "web", "api"], Some(vec![("deployments", web.clone()), ("deployments", api.clone())])),
            (&["deploy/web", "sts/api"], Some(vec![("deployments", web), ("statefulsets", api)])),
            (&["deploy/web", "api"], None),
            (&["deploy", "web/api"], None),
            (&["web"], None),
            (&["deploy,"], None),
        ] {
            let named = |(resource, name): (&str, _)| (resource.to_owned(), name);
            let expected = expected.map(|asked| asked.into_iter().map(named).collect::<Vec<_>>());
            assert_eq!(parse(typed), expected, "{typed:?}");
        }
    }
}
