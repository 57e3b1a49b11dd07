//! Renders policies as registrations: one MutatingWebhookConfiguration per resource, and one
//! ValidatingWebhookConfiguration if a policy may reject. Pure.
//!
//! # Decisions of the API server
//! Fewer calls mean fewer creates that depend on the webhook. So a registration is narrowed by everything that the API
//! server can decide exactly as [`decide`](crate::policy::decide) does: the protected namespaces, namespaces that all
//! policies name literally, and a selector that all policies share. Selectors can exclude protected namespaces by name
//! only from 1.21, because older servers do not label Namespaces with their names. Older servers call the webhook,
//! which answers without a change.
//!
//! # Failures
//! `failurePolicy` belongs to an entry, and its selectors say for which objects the entry fails closed. So the policies
//! with `Fail` have entries of their own: one for the policies that name their namespaces, and one for the others. An
//! entry for all would fail closed wherever any policy judges. An object that several entries match is judged as often,
//! each time by all policies.
//!
//! # Updates
//! Only a resource with a policy that acts on updates has rules for them. In a ValidatingWebhookConfiguration they are in
//! an entry of their own with `failurePolicy: Ignore`. Otherwise no client could remove a finalizer while the operator is
//! down.
//!
//! # `matchPolicy`
//! It is `Exact`. The rules name every group that serves the resource, so no object escapes. And a policy that names a
//! version means only objects that are posted through that version.

use crate::api::code::Code;
use crate::api::v1alpha1::LabelSelector;
use crate::capabilities::{Capabilities, registration};
use crate::naming::{self, PROBE, namespaces, shared_name};
use crate::policy::checks::NAME_LABEL;
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use crate::{Unavailable, targets};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The annotation with the policies that a registration puts in effect: a JSON object of their names, each with the
/// hash of its spec.
pub const POLICIES: &str = "scpol.dev/policies";
/// The timeout of an API server for a call, in seconds. An answer takes some milliseconds. A read of a Namespace may
/// take one of the three seconds. If the operator hangs, creates should not wait noticeably longer.
const TIMEOUT: u32 = 3;
/// The port of a Service that servers below 1.15 always call. It is also the default of later servers.
const HTTPS: u16 = 443;

/// Where the API server finds us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Through a Service in the cluster.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// At a URL such as `https://192.0.2.1:8443`, where the operator runs outside.
    Url(String),
}

/// Why webhooks cannot be registered on `cluster`, if it cannot. Presence of an API proves nothing: a probe follows.
///
/// # Errors
/// The reason, with the server's flag to set.
pub fn check_server(cluster: &Capabilities) -> Result<(), Unavailable> {
    for resource in [registration::MUTATING_WEBHOOKS, registration::VALIDATING_WEBHOOKS] {
        if cluster.registration(resource).is_none() {
            let message = format!(
                "this server ({}) does not serve {resource} of {}; the webhook engine needs Kubernetes 1.9 or later, and the API on",
                cluster.version,
                registration::GROUP
            );
            return Err(Unavailable::new(Code::WebhookOff, message));
        }
    }
    Ok(())
}

/// Sees that this engine can serve `policy` on `cluster`.
///
/// # Errors
/// The reason why it cannot.
pub fn check(policy: &Policy, cluster: &Capabilities) -> Result<(), Unavailable> {
    targets::check(policy, cluster)?;
    if policy.refuses() && !knows_namespaces(cluster) {
        let message = format!(
            "spec.failurePolicy: this server ({}) cannot spare protected namespaces: with `Fail`, no workload could be created in kube-system while the webhook is down; use `Ignore`, or a server of 1.21 or later",
            cluster.version
        );
        return Err(Unavailable::new(Code::FailNotSafe, message));
    }
    Ok(())
}

/// The registrations of `kind` for those of `policies` that target it: none, the mutating one, the validating one, or
/// both in this order. Without `ca_bundle`, API servers trust the authorities of their own system.
///
/// # Guarantees
/// The same arguments give the same objects. The order of `policies` does not matter.
///
/// # Errors
/// If the server cannot register webhooks, or cannot serve one of the policies: see [`check`].
pub fn render(
    kind: &Kind,
    policies: &[Arc<Policy>],
    cluster: &Capabilities,
    site: &Site,
    endpoint: &Endpoint,
    ca_bundle: Option<&[u8]>,
) -> Result<Vec<Value>, Unavailable> {
    Scene { kind, cluster, site, endpoint, ca_bundle, match_conditions: None }.render(policies)
}

/// The registration of a webhook that stands by: API servers call it only for workloads for which `match_conditions` are
/// true. It can reject nothing. None if none of `policies` injects.
///
/// # Errors
/// As in [`render`].
pub fn standby(
    kind: &Kind,
    policies: &[Arc<Policy>],
    match_conditions: &Value,
    cluster: &Capabilities,
    site: &Site,
    endpoint: &Endpoint,
    ca_bundle: Option<&[u8]>,
) -> Result<Option<Value>, Unavailable> {
    let match_conditions = Some(match_conditions);
    let rendered = Scene { kind, cluster, site, endpoint, ca_bundle, match_conditions }.render(policies)?;
    Ok(rendered.into_iter().find(|object| object["kind"] == "MutatingWebhookConfiguration"))
}

/// The revision of a rendered or stored registration, which is the last segment of the called URL. It is the first 16
/// hex digits of the SHA-256 of the registration without it.
pub fn revision_of(registration: &Value) -> Option<&str> {
    let client = &registration["webhooks"][0]["clientConfig"];
    let path = client["url"].as_str().or_else(|| client["service"]["path"].as_str())?;
    path.rsplit('/').next().filter(|revision| revision.len() == crate::digest::LENGTH)
}

/// The endpoint and the CA bundle of the stored `registration`; none if they are missing.
pub fn reach_of(registration: &Value) -> Option<(Endpoint, Option<Vec<u8>>)> {
    let client = &registration["webhooks"][0]["clientConfig"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let bundle = client["caBundle"].as_str().and_then(|bundle| STANDARD.decode(bundle).ok());
    let endpoint = match client["url"].as_str() {
        // Our own path has two segments.
        Some(url) => Endpoint::Url(url.rsplitn(3, '/').nth(2)?.to_owned()),
        None => {
            let service = &client["service"];
            let port = service["port"].as_u64().map_or(Some(HTTPS), |port| u16::try_from(port).ok())?;
            Endpoint::Service { namespace: text(&service["namespace"])?, name: text(&service["name"])?, port }
        }
    };
    Some((endpoint, bundle.filter(|bundle| !bundle.is_empty())))
}

/// The value of [`POLICIES`].
fn listed(policies: &[&Policy]) -> String {
    let by_name: BTreeMap<_, _> = policies.iter().map(|policy| (&policy.name, &policy.spec_hash)).collect();
    serde_json::to_string(&by_name).expect("texts are JSON")
}

/// The differences between the two kinds of registration.
struct What {
    resource: &'static str,
    /// The name of the main entry.
    entry: &'static str,
    /// The called path.
    path: &'static str,
}

const MUTATING: What = What { resource: registration::MUTATING_WEBHOOKS, entry: "inject.scpol.dev", path: "/mutate/" };
const VALIDATING: What =
    What { resource: registration::VALIDATING_WEBHOOKS, entry: "validate.scpol.dev", path: "/validate/" };

/// The entry for policies with `Fail` that name their namespaces, if others have `Fail`, too.
const NAMED_ENTRY: &str = "validate-named.scpol.dev";

/// The entry for policies with `Ignore`, if others have `Fail`.
const IGNORE_ENTRY: &str = "validate-ignore.scpol.dev";

/// The entry that judges updates.
const UPDATE_ENTRY: &str = "validate-update.scpol.dev";

/// The entry for probes only, in the operator's own namespace where API servers can tell it.
const PROBE_ENTRY: &str = "probe.scpol.dev";

/// Whether registrations have an entry that only probes reach and that fails closed, so that a failed probe reports the
/// reason. Without it a probe must match the selectors of the main entry, so that has none of objects.
pub fn has_probe(cluster: &Capabilities) -> bool {
    has_object_selector(cluster)
}

/// Whether registrations can select by the labels of objects, which came with 1.15.
fn has_object_selector(cluster: &Capabilities) -> bool {
    cluster.at_least(1, 15)
}

/// Whether every Namespace has its name as a label.
fn knows_namespaces(cluster: &Capabilities) -> bool {
    cluster.at_least(1, 21)
}

/// Sees that `cluster` can call `endpoint`.
pub(crate) fn check_port(endpoint: &Endpoint, cluster: &Capabilities) -> Result<(), Unavailable> {
    match endpoint {
        Endpoint::Service { port, .. } if *port != HTTPS && !cluster.at_least(1, 15) => {
            let message = format!(
                "this server ({}) calls Services on port {HTTPS} only, and the Service of the webhook has port {port}",
                cluster.version
            );
            Err(Unavailable::new(Code::EngineUnavailable, message))
        }
        _ => Ok(()),
    }
}

/// An entry of a registration, as far as the server has the fields: those of 1.13 drop what they do not know.
pub(crate) fn entry(cluster: &Capabilities, name: &str, client: &Value, rules: &Value) -> Value {
    let mut entry = json!({ "name": name, "clientConfig": client, "rules": rules, "sideEffects": "None" });
    if cluster.at_least(1, 14) {
        entry["timeoutSeconds"] = json!(TIMEOUT);
        entry["admissionReviewVersions"] = json!(["v1", "v1beta1"]);
    }
    if cluster.at_least(1, 15) {
        entry["matchPolicy"] = json!("Exact");
    }
    entry
}

/// Where and by which authorities an entry has us called.
pub(crate) fn address(endpoint: &Endpoint, ca_bundle: Option<&[u8]>, path: &str) -> Value {
    let mut client = match endpoint {
        Endpoint::Url(base) => json!({ "url": format!("{}{path}", base.trim_end_matches('/')) }),
        Endpoint::Service { namespace, name, port } => {
            let mut service = json!({ "namespace": namespace, "name": name, "path": path });
            if *port != HTTPS {
                service["port"] = json!(port);
            }
            json!({ "service": service })
        }
    };
    if let Some(bundle) = ca_bundle {
        client["caBundle"] = json!(STANDARD.encode(bundle));
    }
    client
}

/// The input of a registration.
struct Scene<'a> {
    kind: &'a Kind,
    cluster: &'a Capabilities,
    site: &'a Site,
    endpoint: &'a Endpoint,
    ca_bundle: Option<&'a [u8]>,
    /// The match conditions of a webhook that stands by; none for one that is called for every workload.
    match_conditions: Option<&'a Value>,
}

impl Scene<'_> {
    /// See [`render`].
    fn render(&self, policies: &[Arc<Policy>]) -> Result<Vec<Value>, Unavailable> {
        check_server(self.cluster)?;
        let targeting = policies.iter().filter(|policy| policy.targets_of(self.kind).next().is_some());
        let by_name: BTreeMap<&str, &Policy> =
            targeting.map(|policy| (policy.name.as_str(), policy.as_ref())).collect();
        let policies: Vec<&Policy> = by_name.into_values().collect();
        policies.iter().try_for_each(|policy| check(policy, self.cluster))?;
        check_port(self.endpoint, self.cluster)?;
        let injecting: Vec<&Policy> = policies.iter().copied().filter(|policy| policy.injects()).collect();
        let judging: Vec<&Policy> = policies.into_iter().filter(|policy| policy.judges()).collect();
        let registrations = [(&MUTATING, injecting), (&VALIDATING, judging)];
        let needed = registrations.iter().filter(|(_, policies)| !policies.is_empty());
        Ok(needed.map(|(what, policies)| self.registration(what, policies)).collect())
    }

    fn registration(&self, what: &What, policies: &[&Policy]) -> Value {
        let mut registration = self.at_revision(what, policies, "");
        let revision = crate::digest::short(registration.to_string());
        for entry in registration["webhooks"].as_array_mut().into_iter().flatten() {
            entry["clientConfig"] = self.client(what, &revision);
        }
        registration
    }

    fn at_revision(&self, what: &What, policies: &[&Policy], revision: &str) -> Value {
        let address = self.cluster.registration(what.resource).expect("the engine has been checked");
        let mut metadata = naming::webhook_metadata(&shared_name(self.kind), policies);
        metadata["annotations"] = json!({ POLICIES: listed(policies) });
        json!({
            "apiVersion": address.api_version,
            "kind": address.kind,
            "metadata": metadata,
            "webhooks": self.entries(what, policies, revision),
        })
    }

    fn entries(&self, what: &What, policies: &[&Policy], revision: &str) -> Vec<Value> {
        let is_judging = what.resource == registration::VALIDATING_WEBHOOKS;
        let updating: Vec<&Policy> = policies.iter().copied().filter(|p| p.acts_on_update(self.kind)).collect();
        let operations: &[&str] = if updating.is_empty() || is_judging { &["CREATE"] } else { &["CREATE", "UPDATE"] };
        let groups = if is_judging { by_failure(policies) } else { vec![(what.entry, "Ignore", policies.to_vec())] };
        let mut entries: Vec<Value> = Vec::new();
        for (name, failure_policy, policies) in groups {
            // The first entry has the name that is the same in every registration.
            let name = if entries.is_empty() { what.entry } else { name };
            let entry = self.narrowed(what, name, &policies, revision, operations);
            entries.push(with_failure_policy(entry, failure_policy));
        }
        if is_judging && !updating.is_empty() {
            let update = self.narrowed(what, UPDATE_ENTRY, &updating, revision, &["UPDATE"]);
            entries.push(with_failure_policy(update, "Ignore"));
        }
        if self.match_conditions.is_some() || !has_probe(self.cluster) {
            return entries;
        }
        // A failed probe reports why we are not reachable. This entry can reject only probes.
        let probe = self.entry(what, PROBE_ENTRY, policies, revision, &["CREATE"]);
        let mut probe = with_failure_policy(probe, "Fail");
        if knows_namespaces(self.cluster) {
            let own = namespaces("In", [&self.site.operator_namespace]);
            probe["namespaceSelector"] = json!({ "matchExpressions": [own] });
        }
        probe["objectSelector"] = json!({ "matchExpressions": [{ "key": PROBE, "operator": "Exists" }] });
        entries.push(probe);
        entries
    }

    /// The entry `name` for what `policies` may select.
    fn narrowed(&self, what: &What, name: &str, policies: &[&Policy], revision: &str, operations: &[&str]) -> Value {
        let mut entry = self.entry(what, name, policies, revision, operations);
        if let Some(selector) = self.namespaces(policies) {
            entry["namespaceSelector"] = selector;
        }
        if let Some(selector) = self.objects(policies) {
            entry["objectSelector"] = selector;
        }
        if let Some(conditions) = self.match_conditions {
            entry["matchConditions"] = conditions.clone();
        }
        entry
    }

    /// The common fields of all entries.
    fn entry(&self, what: &What, name: &str, policies: &[&Policy], revision: &str, operations: &[&str]) -> Value {
        let rules = json!(self.rules(policies, operations));
        let mut entry = entry(self.cluster, name, &self.client(what, revision), &rules);
        if self.cluster.at_least(1, 15) && what.resource == registration::MUTATING_WEBHOOKS {
            entry["reinvocationPolicy"] = json!("Never");
        }
        entry
    }

    fn client(&self, what: &What, revision: &str) -> Value {
        address(self.endpoint, self.ca_bundle, &format!("{}{revision}", what.path))
    }

    /// The matched requests: all groups and versions, or only the named ones.
    fn rules(&self, policies: &[&Policy], operations: &[&str]) -> Vec<Value> {
        let targets = || policies.iter().flat_map(|policy| policy.targets_of(self.kind));
        if targets().any(|target| target.version == "*") {
            return vec![self.rule(&self.cluster.groups(self.kind), &["*"], operations)];
        }
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for target in targets() {
            versions.entry(&target.group).or_default().insert(&target.version);
        }
        let rule =
            |(group, versions): (&str, BTreeSet<&str>)| self.rule(&[group], &Vec::from_iter(versions), operations);
        versions.into_iter().map(rule).collect()
    }

    /// One rule. It never matches subresources, which have names of their own.
    fn rule(&self, groups: &[&str], versions: &[&str], operations: &[&str]) -> Value {
        let mut rule = json!({
            "operations": operations,
            "apiGroups": groups,
            "apiVersions": versions,
            "resources": [self.kind.resource],
        });
        if self.cluster.at_least(1, 14) {
            rule["scope"] = json!("Namespaced");
        }
        rule
    }

    /// A selector of the namespaces that policies can select.
    fn namespaces(&self, policies: &[&Policy]) -> Option<Value> {
        if !knows_namespaces(self.cluster) {
            return None;
        }
        let protected = &self.site.protected_namespaces;
        let reachable = literal(policies).map(|names| names.into_iter().filter(|name| !protected.contains(*name)));
        let named: Option<BTreeSet<&str>> = reachable.map(Iterator::collect);
        let by_name = match &named {
            // No namespace, because each has the label: such a policy must not reach others.
            Some(named) if named.is_empty() => json!({ "key": NAME_LABEL, "operator": "DoesNotExist" }),
            Some(named) => namespaces("In", named),
            None => namespaces("NotIn", protected),
        };
        let shared = shared(policies, |policy| policy.spec.namespace_selector.as_ref());
        Some(selector(shared, Some(by_name)))
    }

    /// The label selector that every policy has.
    fn objects(&self, policies: &[&Policy]) -> Option<Value> {
        let shared = shared(policies, |policy| policy.spec.label_selector.as_ref());
        shared.filter(|_| has_object_selector(self.cluster)).map(|shared| selector(Some(shared), None))
    }
}

/// Judging policies in groups that fail in the same way, each with the name of its entry and its `failurePolicy`.
fn by_failure<'a>(policies: &[&'a Policy]) -> Vec<(&'static str, &'static str, Vec<&'a Policy>)> {
    let (refusing, lenient): (Vec<&Policy>, Vec<&Policy>) = policies.iter().partition(|policy| policy.refuses());
    let (named, others): (Vec<&Policy>, Vec<&Policy>) =
        refusing.iter().partition(|policy| literal(&[**policy]).is_some());
    let is_everywhere = !others.is_empty()
        && shared(&others, |policy| policy.spec.namespace_selector.as_ref()).is_none()
        && shared(&others, |policy| policy.spec.label_selector.as_ref()).is_none();
    let (named, others) = if is_everywhere { (Vec::new(), refusing) } else { (named, others) };
    let groups = [(VALIDATING.entry, "Fail", others), (NAMED_ENTRY, "Fail", named), (IGNORE_ENTRY, "Ignore", lenient)];
    groups.into_iter().filter(|(.., policies)| !policies.is_empty()).collect()
}

fn with_failure_policy(mut entry: Value, failure_policy: &str) -> Value {
    entry["failurePolicy"] = json!(failure_policy);
    entry
}

/// The namespaces that policies name, if each policy names some and none uses a glob.
fn literal<'a>(policies: &[&'a Policy]) -> Option<BTreeSet<&'a str>> {
    let mut names = BTreeSet::new();
    for policy in policies {
        for name in policy.spec.namespaces.as_ref()? {
            if name.contains(['*', '?']) {
                return None;
            }
            // What is no label value is no name of a Namespace either.
            names.extend(Some(name.as_str()).filter(|name| is_label_value(name)));
        }
    }
    Some(names)
}

/// The selector that all policies share, if the API server accepts it.
fn shared<'a>(
    policies: &[&'a Policy],
    of: impl Fn(&'a Policy) -> Option<&'a LabelSelector>,
) -> Option<&'a LabelSelector> {
    let (first, others) = policies.split_first()?;
    let selector = of(first)?;
    // The parser of policies has checked the values in `matchLabels`, but expressions may list any text.
    let mut listed = selector.match_expressions.iter().flat_map(|requirement| requirement.values.iter().flatten());
    let is_valid = listed.all(|value| is_label_value(value));
    (is_valid && others.iter().all(|other| of(other) == Some(selector))).then_some(selector)
}

fn selector(shared: Option<&LabelSelector>, further: Option<Value>) -> Value {
    let shared = shared.cloned().unwrap_or_default();
    let mut requirements: Vec<Value> = shared.match_expressions.iter().map(|one| json!(one)).collect();
    requirements.extend(further);
    let mut selector = json!({});
    if !shared.match_labels.is_empty() {
        selector["matchLabels"] = json!(shared.match_labels);
    }
    if !requirements.is_empty() {
        selector["matchExpressions"] = json!(requirements);
    }
    selector
}

/// The server's check of label values: empty, or at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit
/// at both ends.
fn is_label_value(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const WEBHOOKS: [(&str, &str, &str, &str); 4] = [
        ("admissionregistration.k8s.io", "v1beta1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        (
            "admissionregistration.k8s.io",
            "v1beta1",
            "validatingwebhookconfigurations",
            "ValidatingWebhookConfiguration",
        ),
        ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ];
    const WORKLOADS: [(&str, &str, &str, &str); 3] = [
        ("apps", "v1", "deployments", "Deployment"),
        ("extensions", "v1beta1", "deployments", "Deployment"),
        ("", "v1", "pods", "Pod"),
    ];

    fn cluster(minor: u32) -> Capabilities {
        let webhooks = if minor < 16 { &WEBHOOKS[..2] } else { &WEBHOOKS[..] };
        let workloads = WORKLOADS.iter().filter(|row| minor < 16 || row.0 != "extensions");
        Capabilities::of(minor, &webhooks.iter().chain(workloads).copied().collect::<Vec<_>>())
    }

    fn site() -> Site {
        Site::new("scpol-system", [], [])
    }

    fn policy(name: &str, more: &Value) -> Arc<Policy> {
        let mut spec = json!({ "template": { "containers": [{ "name": name, "image": "envoy:1" }] } });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let object = json!({ "metadata": { "name": name, "uid": format!("uid-{name}") }, "spec": spec });
        Arc::new(Policy::parse(&object, &site()).unwrap())
    }

    fn service() -> Endpoint {
        Endpoint::Service { namespace: "scpol-system".into(), name: "scpol".into(), port: 443 }
    }

    fn rendered(minor: u32, policies: &[Arc<Policy>]) -> Vec<Value> {
        let kind = Kind::find("apps", "deployments").unwrap();
        render(kind, policies, &cluster(minor), &site(), &service(), Some(b"ca")).unwrap()
    }

    fn expressions(selector: &Value) -> Vec<String> {
        let items = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| format!("{} {} {}", item["key"], item["operator"], item["values"])).collect()
    }

    #[test]
    fn a_registration_tells_where_it_is_called_and_whom_it_trusts() {
        let kind = Kind::find("apps", "deployments").unwrap();
        let elsewhere = Endpoint::Service { namespace: "a".into(), name: "b".into(), port: 8443 };
        for (endpoint, bundle) in
            [(service(), Some(&b"ca"[..])), (elsewhere, None), (Endpoint::Url("https://192.0.2.1:8443".into()), None)]
        {
            let policies = [policy("a", &json!({}))];
            let rendered = render(kind, &policies, &cluster(36), &site(), &endpoint, bundle).unwrap();
            assert_eq!(reach_of(&rendered[0]), Some((endpoint, bundle.map(<[u8]>::to_vec))));
        }
        assert_eq!(reach_of(&json!({ "webhooks": [{ "clientConfig": {} }] })), None);
        assert_eq!(reach_of(&json!({ "webhooks": [{ "clientConfig": { "url": "x" } }] })), None);
    }

    #[test]
    fn a_current_server_gets_one_mutating_registration_with_an_entry_for_probes() {
        let [registration] = &rendered(36, &[policy("b", &json!({})), policy("a", &json!({}))])[..] else { panic!() };
        assert_eq!(registration["apiVersion"], "admissionregistration.k8s.io/v1");
        assert_eq!(registration["metadata"]["name"], "scpol-deployments.apps");
        assert_eq!(registration["metadata"]["labels"]["admissions.enforcer/disabled"], "true");
        assert_eq!(registration["metadata"]["ownerReferences"][0]["name"], "a");
        assert_eq!(registration["metadata"]["ownerReferences"][1]["uid"], "uid-b");
        let revision = revision_of(registration).unwrap();
        let [inject, probe] = &registration["webhooks"].as_array().unwrap()[..] else { panic!() };
        let expected = json!({
            "name": "inject.scpol.dev", "failurePolicy": "Ignore", "sideEffects": "None", "timeoutSeconds": 3,
            "admissionReviewVersions": ["v1", "v1beta1"], "matchPolicy": "Exact", "reinvocationPolicy": "Never",
            "clientConfig": {
                "service": { "namespace": "scpol-system", "name": "scpol", "path": format!("/mutate/{revision}") },
                "caBundle": "Y2E=",
            },
            "rules": [{ "operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"], "scope": "Namespaced" }],
            "namespaceSelector": { "matchExpressions": [{
                "key": "kubernetes.io/metadata.name", "operator": "NotIn",
                "values": ["kube-node-lease", "kube-public", "kube-system", "scpol-system"],
            }] },
        });
        assert_eq!(*inject, expected);
        assert_eq!(probe["name"], "probe.scpol.dev");
        assert_eq!(probe["clientConfig"], inject["clientConfig"]);
        assert_eq!(
            expressions(&probe["namespaceSelector"]),
            [r#""kubernetes.io/metadata.name" "In" ["scpol-system"]"#]
        );
        assert_eq!(expressions(&probe["objectSelector"]), [r#""scpol.dev/probe" "Exists" null"#]);
    }

    #[test]
    fn a_server_of_1_13_gets_only_fields_that_it_has_and_every_group() {
        let [registration] = &rendered(13, &[policy("a", &json!({}))])[..] else { panic!() };
        assert_eq!(registration["apiVersion"], "admissionregistration.k8s.io/v1beta1");
        let [inject] = &registration["webhooks"].as_array().unwrap()[..] else { panic!() };
        let fields: Vec<&String> = inject.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["clientConfig", "failurePolicy", "name", "rules", "sideEffects"]);
        assert_eq!(inject["rules"][0]["apiGroups"], json!(["apps", "extensions"]));
        assert_eq!(inject["rules"][0].get("scope"), None);
        let between = &rendered(14, &[policy("a", &json!({}))])[0]["webhooks"][0];
        assert_eq!((&between["timeoutSeconds"], between.get("matchPolicy")), (&json!(3), None));
    }

    #[test]
    fn a_server_of_1_16_gets_an_entry_for_probes_which_need_not_match_the_policies() {
        let selecting = policy("a", &json!({ "labelSelector": { "matchLabels": { "tier": "web" } } }));
        let [registration] = &rendered(16, &[selecting])[..] else { panic!() };
        let [inject, probe] = &registration["webhooks"].as_array().unwrap()[..] else { panic!() };
        assert_eq!(inject["objectSelector"]["matchLabels"]["tier"], "web");
        assert_eq!((&inject["failurePolicy"], &probe["failurePolicy"]), (&json!("Ignore"), &json!("Fail")));
        assert_eq!(expressions(&probe["objectSelector"]), [r#""scpol.dev/probe" "Exists" null"#]);
        assert_eq!(probe.get("namespaceSelector"), None);
    }

    #[test]
    fn named_versions_are_registered_and_no_others() {
        let target = |group: &str, version: &str| json!({ "targets": [{ "group": group, "version": version, "resource": "deployments" }] });
        let named = [policy("a", &target("apps", "v1")), policy("b", &target("extensions", "v1beta1"))];
        let rules = &rendered(13, &named)[0]["webhooks"][0]["rules"];
        assert_eq!((&rules[0]["apiGroups"], &rules[0]["apiVersions"]), (&json!(["apps"]), &json!(["v1"])));
        assert_eq!((&rules[1]["apiGroups"], &rules[1]["apiVersions"]), (&json!(["extensions"]), &json!(["v1beta1"])));
        let missing = render(
            Kind::find("apps", "deployments").unwrap(),
            &[policy("a", &target("apps", "v2"))],
            &cluster(36),
            &site(),
            &service(),
            None,
        );
        assert_eq!(missing.unwrap_err().code, Code::TargetNotServed);
    }

    #[test]
    fn whoever_may_refuse_is_registered_for_validation_and_calls_fail_closed_only_where_a_policy_says_so() {
        let demand = json!({ "validations": [{ "expression": "has(object.metadata.labels)" }] });
        let kinds = |policies: &[Arc<Policy>]| {
            let kind = |object: &Value| {
                format!("{} {}", object["kind"].as_str().unwrap(), object["webhooks"][0]["failurePolicy"])
            };
            rendered(36, policies).iter().map(kind).collect::<Vec<_>>()
        };
        let (mutating, ignore, fail) = (
            "MutatingWebhookConfiguration \"Ignore\"",
            "ValidatingWebhookConfiguration \"Ignore\"",
            "ValidatingWebhookConfiguration \"Fail\"",
        );
        assert_eq!(kinds(&[policy("a", &json!({}))]), [mutating]);
        assert_eq!(kinds(&[policy("a", &demand)]), [mutating, ignore]);
        assert_eq!(kinds(&[policy("a", &demand), policy("b", &json!({ "failurePolicy": "Fail" }))]), [mutating, fail]);
        let judge =
            json!({ "metadata": { "name": "a" }, "spec": { "validations": [{ "expression": "has(object.spec)" }] } });
        assert_eq!(kinds(&[Arc::new(Policy::parse(&judge, &site()).unwrap())]), [ignore]);
        assert!(kinds(&[]).is_empty());
        let refused = check(&policy("b", &json!({ "failurePolicy": "Fail" })), &cluster(20)).unwrap_err();
        assert_eq!(refused.code, Code::FailNotSafe);
    }

    #[test]
    fn a_policy_with_fail_makes_calls_fail_closed_only_where_it_selects() {
        let entries = |policies: &[Arc<Policy>]| {
            let rendered = rendered(22, policies);
            let webhooks = rendered[1]["webhooks"].as_array().unwrap().clone();
            let told = |entry: &Value| {
                let places =
                    expressions(&entry["namespaceSelector"]).join("; ").replace("kubernetes.io/metadata.name", "");
                let labels = entry["objectSelector"]["matchLabels"].as_object().map(|labels| json!(labels).to_string());
                let name = entry["name"].as_str().unwrap().trim_end_matches(".scpol.dev");
                let (failure, labels) = (&entry["failurePolicy"], labels.unwrap_or_default());
                format!("{name} {failure} {places} {labels}").replace('"', "")
            };
            let revisions: BTreeSet<String> =
                webhooks.iter().map(|entry| entry["clientConfig"]["service"]["path"].to_string()).collect();
            assert_eq!(revisions.len(), 1, "every entry shows the revision");
            webhooks.iter().filter(|entry| entry["name"] != PROBE_ENTRY).map(told).collect::<Vec<_>>()
        };
        let everywhere = "NotIn [kube-node-lease,kube-public,kube-system,scpol-system]";
        let demand = json!([{ "expression": "has(object.metadata.labels)" }]);
        let platform = policy("platform", &json!({ "validations": demand }));
        let tenant = policy("tenant", &json!({ "failurePolicy": "Fail", "namespaces": ["shop"] }));
        let labelled = json!({ "failurePolicy": "Fail", "labelSelector": { "matchLabels": { "tier": "web" } } });
        let labelled = policy("labelled", &labelled);
        assert_eq!(entries(from_ref(&platform)), [format!("validate Ignore  {everywhere} ")]);
        assert_eq!(entries(from_ref(&tenant)), ["validate Fail  In [shop] "]);
        assert_eq!(
            entries(&[platform.clone(), tenant.clone()]),
            ["validate Fail  In [shop] ".to_owned(), format!("validate-ignore Ignore  {everywhere} ")]
        );
        assert_eq!(
            entries(&[platform, tenant, labelled]),
            [
                format!("validate Fail  {everywhere} {{tier:web}}"),
                "validate-named Fail  In [shop] ".to_owned(),
                format!("validate-ignore Ignore  {everywhere} "),
            ]
        );
    }

    #[test]
    fn updates_are_registered_where_a_policy_asks_for_them_and_judged_by_an_entry_that_never_fails_closed() {
        let at = |operations: Value, more: Value| {
            let mut spec = json!({ "targets": [
                { "group": "apps", "resource": "deployments", "operations": operations }, { "group": "", "resource": "pods" },
            ] });
            more.as_object().into_iter().flatten().for_each(|(field, value)| spec[field] = value.clone());
            spec
        };
        let quiet = policy("quiet", &at(json!(["CREATE"]), json!({ "failurePolicy": "Fail" })));
        let acting = |more: Value| policy("acting", &at(json!(["CREATE", "UPDATE"]), more));
        let entries = |minor: u32, group: &str, resource: &str, policies: &[Arc<Policy>]| {
            let kind = Kind::find(group, resource).unwrap();
            let rendered = render(kind, policies, &cluster(minor), &site(), &service(), None).unwrap();
            let told = |entry: &Value| {
                let rule = &entry["rules"][0];
                let name = entry["name"].as_str().unwrap().split('.').next().unwrap();
                format!("{name} {} {} {}", entry["failurePolicy"], rule["operations"], rule["resources"])
            };
            let entries = rendered.iter().flat_map(|registration| registration["webhooks"].as_array().unwrap());
            entries
                .filter(|entry| entry["name"] != PROBE_ENTRY)
                .map(told)
                .collect::<Vec<_>>()
                .join("; ")
                .replace('"', "")
        };
        let refusing = json!({ "failurePolicy": "Fail", "namespaces": ["shop"] });
        for (policies, expected) in [
            (vec![quiet.clone()], "inject Ignore [CREATE] [deployments]; validate Fail [CREATE] [deployments]"),
            (
                vec![quiet.clone(), acting(json!({}))],
                "inject Ignore [CREATE,UPDATE] [deployments]; validate Fail [CREATE] [deployments]",
            ),
            (
                vec![quiet.clone(), acting(refusing.clone())],
                "inject Ignore [CREATE,UPDATE] [deployments]; validate Fail [CREATE] [deployments]; validate-update Ignore [UPDATE] [deployments]",
            ),
        ] {
            for minor in [13, 20, 36] {
                // A server below 1.21 cannot have `Fail`.
                if minor == 36 {
                    assert_eq!(entries(minor, "apps", "deployments", &policies), expected);
                }
                let lenient = [acting(json!({ "validations": [{ "expression": "true" }] }))];
                let expected = "inject Ignore [CREATE,UPDATE] [deployments]; validate Ignore [CREATE] [deployments]; validate-update Ignore [UPDATE] [deployments]";
                assert_eq!(entries(minor, "apps", "deployments", &lenient), expected, "{minor}");
            }
            assert!(!entries(36, "", "pods", &policies).contains("UPDATE"));
        }
        // The entry for updates is narrowed by the policies that act on them, and its probe is still a create.
        let rendered = rendered(36, &[quiet, acting(refusing)]);
        let [main, update, probe] = &rendered[1]["webhooks"].as_array().unwrap()[..] else { panic!() };
        assert!(expressions(&main["namespaceSelector"])[0].contains("NotIn"));
        assert_eq!(expressions(&update["namespaceSelector"]), [r#""kubernetes.io/metadata.name" "In" ["shop"]"#]);
        assert_eq!((&probe["name"], &probe["rules"][0]["operations"]), (&json!(PROBE_ENTRY), &json!(["CREATE"])));
        assert_eq!(update["clientConfig"], main["clientConfig"]);
    }

    #[test]
    fn a_registration_is_narrowed_only_by_what_holds_for_all() {
        let labels = json!({ "labelSelector": { "matchLabels": { "app": "web" } } });
        let inject = |policies: &[Arc<Policy>]| rendered(36, policies)[0]["webhooks"][0].clone();
        let shared = inject(&[policy("a", &labels), policy("b", &labels)]);
        assert_eq!(shared["objectSelector"], json!({ "matchLabels": { "app": "web" } }));
        assert_eq!(inject(&[policy("a", &labels), policy("b", &json!({}))]).get("objectSelector"), None);
        let no_label = json!({ "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["no label's value"] }] } });
        assert_eq!(inject(&[policy("a", &no_label)]).get("objectSelector"), None);

        let at = |names: Value| policy("a", &json!({ "namespaces": names }));
        let selected = |policy| expressions(&inject(&[policy])["namespaceSelector"]);
        assert_eq!(
            selected(at(json!(["shop", "bank", "kube-system"]))),
            [r#""kubernetes.io/metadata.name" "In" ["bank","shop"]"#]
        );
        assert!(selected(at(json!(["shop", "team-*"])))[0].contains("NotIn"));
        let none = [r#""kubernetes.io/metadata.name" "DoesNotExist" null"#];
        assert_eq!(selected(at(json!(["kube-system"]))), none);
        let both =
            policy("a", &json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } }, "namespaces": ["shop"] }));
        let both = &inject(&[both])["namespaceSelector"];
        assert_eq!((&both["matchLabels"]["team"], expressions(both).len()), (&json!("shop"), 1));
    }

    #[test]
    fn the_revision_changes_exactly_with_the_registration() {
        let revision = |policies: &[Arc<Policy>]| revision_of(&rendered(36, policies)[0]).unwrap().to_owned();
        let (a, b) = (policy("a", &json!({})), policy("b", &json!({})));
        assert_eq!(revision(&[a.clone(), b.clone()]), revision(&[b.clone(), a.clone()]));
        assert_ne!(revision(from_ref(&a)), revision(&[a.clone(), b]));
        let kind = Kind::find("apps", "deployments").unwrap();
        let url = Endpoint::Url("https://127.0.0.1:8443/".into());
        let other = render(kind, from_ref(&a), &cluster(36), &site(), &url, Some(b"other")).unwrap();
        let path = other[0]["webhooks"][0]["clientConfig"]["url"].as_str().unwrap();
        assert_eq!(path, format!("https://127.0.0.1:8443/mutate/{}", revision_of(&other[0]).unwrap()));
        assert_ne!(revision_of(&other[0]), Some(revision(&[a]).as_str()));
    }

    #[test]
    fn what_the_server_cannot_register_is_told() {
        let render = |cluster: &Capabilities, endpoint: &Endpoint| {
            let kind = Kind::find("", "pods").unwrap();
            super::render(
                kind,
                &[policy("a", &json!({ "targets": [{ "group": "", "resource": "pods" }] }))],
                cluster,
                &site(),
                endpoint,
                None,
            )
        };
        let none = Capabilities::of(36, &WORKLOADS);
        assert_eq!(render(&none, &service()).unwrap_err().code, Code::WebhookOff);
        let port = Endpoint::Service { namespace: "n".into(), name: "s".into(), port: 8443 };
        assert_eq!(render(&cluster(13), &port).unwrap_err().code, Code::EngineUnavailable);
        assert_eq!(render(&cluster(36), &port).unwrap()[0]["webhooks"][0]["clientConfig"]["service"]["port"], 8443);
    }
}
