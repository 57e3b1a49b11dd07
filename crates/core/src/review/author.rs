//! Whether the author of a write to a policy could do by himself what the policy does: the same check as that of
//! `config/author-check.yaml`, for servers that lack its kind. Pure: the operator asks the API server.
//!
//! | what is judged | by the places and rights of |
//! |---|---|
//! | a create | the new policy |
//! | an edit: of `spec`, `ownerReferences`, `finalizers`, or a label or annotation under `scpol.dev` | the new and the old policy, because an edit can take a sidecar away |
//! | a deletion | the old policy |
//!
//! Unlike the engine's own registrations, this one fails closed: the server stores no unchecked write.

use crate::Unavailable;
use crate::api::code::Code;
use crate::api::{GROUP, is_policy_name};
use crate::capabilities::{Capabilities, registration};
use crate::compile::webhook::Endpoint;
use crate::compile::webhook::{address, check_port, entry};
use crate::naming::{self, PROBE, PROBE_REFUSE};
use crate::outside::shown;
use crate::review::{Envelope, Invalid, Resource, allowed, check_resource, check_uid, record, written};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The name of the registration and of its only entry. The ValidatingAdmissionPolicy in `config/author-check.yaml` has
/// the same name.
pub const NAME: &str = "author.scpol.dev";
/// The first segment of the called path. The second one is the revision of the registration.
pub const PATH: &str = "/author/";
/// The folder of manifests with the rights that the check needs.
pub const RIGHTS: &str = "config/rbac/author-webhook";
/// The most questions about one policy. More exceed the cost that API servers from 1.30 on allow for one
/// ValidatingAdmissionPolicy: 10 000 000, and 350 000 for each question (apiserver, `RuntimeCELCostBudget` and
/// `CostEstimator`). The number holds for the webhook, too, because the result must not depend on the server version.
pub const QUESTIONS: usize = 28;
/// The most labels, and the most annotations, of a policy that are compared one by one. A policy with more is judged at each
/// update, because whoever adds many must not exhaust the cost of the ValidatingAdmissionPolicy for everybody.
pub const COMPARED: usize = 100;
/// The user that deletes what has lost its owner, and that completes `--cascade=foreground` and `--cascade=orphan`. Its
/// writes are not judged, because the owner references and the deletion before them are.
pub const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// The largest author, in bytes: the part of a review besides its objects. Each question to the API server repeats it.
const LARGEST_AUTHOR: usize = 64 << 10;
/// The plural name of the checked resource.
const RESOURCE: &str = "sidecarpolicies";

/// A policy as it is before, or after, a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `object`, which the write brings.
    New,
    /// `oldObject`, which the write changes or deletes.
    Old,
}

/// What an author lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The right to create pods in all namespaces, for a policy that does not name its namespaces.
    PodsEverywhere,
    /// The right to create pods in one namespace.
    PodsThere,
    /// The right to create pods in all namespaces, for a policy with a priority above 0.
    Priority,
    /// A right of rollouts, in all namespaces.
    RolloutEverywhere,
    /// A right of rollouts, in one namespace.
    RolloutThere,
}

impl Lack {
    /// The code of the refusal.
    pub fn code(self) -> Code {
        match self {
            Self::PodsEverywhere | Self::PodsThere => Code::AuthorLacksRight,
            Self::Priority => Code::AuthorLacksPriorityRight,
            Self::RolloutEverywhere | Self::RolloutThere => Code::AuthorLacksRolloutRight,
        }
    }
}

impl Side {
    /// The message after the code for an author with this lack, with places for `{user}`, `{right}`, `{namespace}` and `{names}`, which is the
    /// most namespaces that the policy may name. `config/author-check.yaml` has the same texts.
    pub fn text(self, lack: Lack) -> &'static str {
        match (self, lack) {
            (Self::New, Lack::PodsEverywhere) => {
                "{user} may not create pods in all namespaces, so may have a policy only for namespaces where that is allowed: name them in `spec.namespaces`, at most {names} and without globs"
            }
            (Self::Old, Lack::PodsEverywhere) => {
                "{user} may not create pods in all namespaces, so may change and delete only policies for namespaces where that is allowed: those with at most {names} in `spec.namespaces`, without globs"
            }
            (Self::New, Lack::PodsThere) => {
                "{user} may not create pods in namespace `{namespace}`, so may not have a policy inject there"
            }
            (Self::Old, Lack::PodsThere) => {
                "{user} may not create pods in namespace `{namespace}`, so may not change or delete a policy that injects there"
            }
            (Self::New, Lack::Priority) => {
                "{user} may not create pods in all namespaces, so may not have a policy with a `spec.priority` above 0"
            }
            (Self::Old, Lack::Priority) => {
                "{user} may not create pods in all namespaces, so may not change or delete a policy with a `spec.priority` above 0"
            }
            (Self::New, Lack::RolloutEverywhere) => {
                "{user} may not {right} in all namespaces, so may have a policy with `updateStrategy.type: RollingUpdate` only for namespaces where that is allowed: name them in `spec.namespaces`, at most {names} and without globs, with no `spec.priority` above 0"
            }
            (Self::Old, Lack::RolloutEverywhere) => {
                "{user} may not {right} in all namespaces, so may change and delete policies with `updateStrategy.type: RollingUpdate` only for namespaces where that is allowed: those with at most {names} in `spec.namespaces`, without globs, with no `spec.priority` above 0"
            }
            (Self::New, Lack::RolloutThere) => {
                "{user} may not {right} in namespace `{namespace}`, so may not have a policy with `updateStrategy.type: RollingUpdate` there"
            }
            (Self::Old, Lack::RolloutThere) => {
                "{user} may not {right} in namespace `{namespace}`, so may not change or delete a policy with `updateStrategy.type: RollingUpdate` there"
            }
        }
    }
}

/// A right that the author of a policy needs, because the operator does the same for the policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: &'static str,
    group: String,
    resource: String,
    subresource: &'static str,
}

impl Right {
    /// The right for injection.
    fn create_pods() -> Self {
        Self { verb: "create", group: String::new(), resource: "pods".to_owned(), subresource: "" }
    }

    /// The rights for rollouts of pods: to evict them, and to patch them where the policy does not say `podUpdate: Recreate`. What a
    /// resize changes, who may do both and create pods can change by himself; older servers do not know its subresource.
    fn of_pods(strategy: &Value) -> Vec<Self> {
        let evicts = Self { subresource: "eviction", ..Self::create_pods() };
        let patches = Self { verb: "patch", ..Self::create_pods() };
        let is_by_eviction = strategy["rollingUpdate"]["podUpdate"] == "Recreate";
        if is_by_eviction { vec![evicts] } else { vec![evicts, patches] }
    }

    /// The right for rollouts of a kind other than pods, whose template they patch.
    fn of_template(group: &str, resource: &str) -> Self {
        // Old servers have the kinds of `extensions` in `apps`, too, and the operator writes to `apps`.
        let group = if group == "extensions" { "apps" } else { group };
        Self { verb: "patch", group: group.to_owned(), resource: resource.to_owned(), subresource: "" }
    }

    /// All rights for a policy with this spec: 1 to [`QUESTIONS`]. The schema allows 16 targets; only callers that are no API
    /// server send more.
    fn of_policy(spec: &Value) -> Vec<Self> {
        let mut rights = vec![Self::create_pods()];
        let strategy = &spec["updateStrategy"];
        if strategy["type"] == "RollingUpdate" {
            let default = [json!({ "group": "apps", "resource": "deployments" })];
            let targets = spec["targets"].as_array().map_or(&default[..], Vec::as_slice);
            let named = |target: &Value| -> (String, String) {
                let text = |field: &str| target[field].as_str().unwrap_or_default().to_owned();
                (text("group"), text("resource"))
            };
            let (pods, others): (Vec<_>, Vec<_>) =
                targets.iter().map(named).partition(|(group, resource)| group.is_empty() && resource == "pods");
            // However many targets are pods, they take two rights: the number of questions has a bound.
            if !pods.is_empty() {
                rights.extend(Self::of_pods(strategy));
            }
            let room = QUESTIONS - rights.len();
            rights.extend(others.iter().take(room).map(|(group, resource)| Self::of_template(group, resource)));
        }
        rights
    }
}

impl std::fmt::Display for Right {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, group, resource, subresource } = self;
        write!(formatter, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(formatter, ".{group}")?;
        }
        if !subresource.is_empty() {
            write!(formatter, "/{subresource}")?;
        }
        Ok(())
    }
}

/// A question to the API server's authorizer: whether the author has a right in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    side: Side,
    lack: Lack,
    right: Right,
    /// Empty for all namespaces.
    namespace: String,
    /// The most namespaces that a policy with these rights may name.
    names: usize,
}

impl Question {
    /// The namespace; empty for all namespaces.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The right and the place: `create pods in namespace `shop``.
    pub fn right_and_place(&self) -> String {
        let right = self.right.to_string();
        let place = if self.namespace.is_empty() {
            "all namespaces".to_owned()
        } else {
            format!("namespace `{}`", shown(&self.namespace))
        };
        format!("{} in {place}", shown(&right))
    }

    /// The questions about `policy`: 1 to [`QUESTIONS`]. They are about each namespace that it names in `spec.namespaces`, without
    /// globs, and else about all namespaces. If there were too many questions, or its priority is above 0, they are about
    /// all namespaces, too.
    pub fn about(side: Side, policy: &Value) -> Vec<Self> {
        let spec = &policy["spec"];
        let rights = Right::of_policy(spec);
        let names = QUESTIONS / rights.len();
        let named = named(&spec["namespaces"], names);
        let is_named = named.is_some();
        let outranks = !spec["priority"].is_null() && spec["priority"].as_f64().is_none_or(|priority| priority > 0.0);
        let places = named.filter(|_| !outranks).unwrap_or_else(|| vec![""]);
        let of_place = |place: &&str| {
            rights
                .iter()
                .enumerate()
                .map(|(index, right)| Self {
                    side,
                    lack: match (place.is_empty(), index) {
                        (true, 0) if is_named => Lack::Priority,
                        (true, 0) => Lack::PodsEverywhere,
                        (true, _) => Lack::RolloutEverywhere,
                        (false, 0) => Lack::PodsThere,
                        (false, _) => Lack::RolloutThere,
                    },
                    right: right.clone(),
                    namespace: (*place).to_owned(),
                    names,
                })
                .collect::<Vec<_>>()
        };
        let mut questions = Vec::new();
        places.iter().flat_map(of_place).for_each(|question| question.add_to(&mut questions));
        questions
    }

    /// The questions about policies that are not known: those about a policy for all namespaces with rollouts of every built-in kind.
    pub fn about_any_policy() -> Vec<Self> {
        let targets = [
            ("", "pods"),
            ("apps", "deployments"),
            ("apps", "statefulsets"),
            ("apps", "daemonsets"),
            ("batch", "cronjobs"),
        ];
        let targets = targets.map(|(group, resource)| json!({ "group": group, "resource": resource }));
        Self::about(
            Side::Old,
            &json!({ "spec": { "targets": targets, "updateStrategy": { "type": "RollingUpdate" } } }),
        )
    }

    /// Adds the question, unless the same is asked already.
    fn add_to(self, questions: &mut Vec<Self>) {
        let is_same = |other: &Self| (&other.right, &other.namespace) == (&self.right, &self.namespace);
        if !questions.iter().any(is_same) {
            questions.push(self);
        }
    }

    /// The message for an author who lacks the right.
    pub fn refusal(&self, author: &Author) -> String {
        let (user, namespace) = (shown(author.name()), shown(&self.namespace));
        let (right, names) = (self.right.to_string(), self.names.to_string());
        let right = shown(&right);
        let filled = self.side.text(self.lack).split(['{', '}']).map(|part| match part {
            "user" => &*user,
            "right" => &*right,
            "namespace" => &*namespace,
            "names" => &names,
            text => text,
        });
        format!("{}: {}", self.lack.code(), filled.collect::<String>())
    }

    /// The question as the API server takes it.
    pub fn review(&self, author: &Author) -> SubjectAccessReview {
        let Right { verb, group, resource, subresource } = &self.right;
        let mut attributes = json!({
            "verb": verb, "group": group, "version": "*", "resource": resource, "namespace": self.namespace,
        });
        if !subresource.is_empty() {
            attributes["subresource"] = json!(subresource);
        }
        let extra: BTreeMap<_, _> =
            author.extra.iter().map(|(key, values)| (key, values.clone().unwrap_or_default())).collect();
        let spec = json!({
            "user": author.username, "uid": author.uid, "groups": author.groups, "extra": extra, "resourceAttributes": attributes,
        });
        serde_json::from_value(json!({ "spec": spec })).expect("the shape is fixed")
    }
}

/// The namespaces in `listed`, if these are 1 to `most` names without globs.
fn named(listed: &Value, most: usize) -> Option<Vec<&str>> {
    let listed = listed.as_array().filter(|listed| (1..=most).contains(&listed.len()))?;
    listed.iter().map(|name| name.as_str().filter(|name| !name.contains(['*', '?']))).collect()
}

/// Whether a label or an annotation of this key may concern a policy.
fn is_ours(key: &str) -> bool {
    key.starts_with("scpol.dev/") || key.contains(".scpol.dev/")
}

/// Whether the update of `old` to `new` can change what a policy does, or whether it stays. `is_ours` has the keys of labels and
/// annotations that count.
fn is_edit(new: &Value, old: &Value, is_ours: impl Fn(&str) -> bool) -> bool {
    let (new_metadata, old_metadata) = (&new["metadata"], &old["metadata"]);
    let concerns_us = |field: &str| {
        [new_metadata, old_metadata].into_iter().filter_map(|metadata| metadata[field].as_object()).any(|keys| {
            let differs = |key: &String| new_metadata[field].get(key) != old_metadata[field].get(key);
            keys.len() > COMPARED || keys.keys().any(|key| is_ours(key) && differs(key))
        })
    };
    new["spec"].is_null()
        || new["spec"] != old["spec"]
        || ["ownerReferences", "finalizers"].iter().any(|field| new_metadata[field] != old_metadata[field])
        || ["annotations", "labels"].into_iter().any(concerns_us)
}

/// The sender of a request, as reported by the API server.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Author {
    #[serde(deserialize_with = "or_empty")]
    username: String,
    #[serde(deserialize_with = "or_empty")]
    uid: String,
    #[serde(deserialize_with = "or_empty")]
    groups: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    extra: BTreeMap<String, Option<Vec<String>>>,
}

/// API servers write a missing list as null.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Author {
    /// The user name.
    pub fn name(&self) -> &str {
        &self.username
    }

    /// A user of this name in these groups.
    pub fn named(username: String, groups: Vec<String>) -> Self {
        Self { username, groups, ..Self::default() }
    }

    /// The groups of the user.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The length of all texts, in bytes.
    fn size(&self) -> usize {
        let extra = self.extra.iter().flat_map(|(key, values)| [key].into_iter().chain(values.iter().flatten()));
        [&self.username, &self.uid].into_iter().chain(&self.groups).chain(extra).map(String::len).sum()
    }
}

/// A review of a policy.
#[derive(Debug)]
pub struct Review {
    /// The API version of the request, which the answer repeats.
    api_version: String,
    request: Request,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    uid: String,
    resource: Resource,
    #[serde(deserialize_with = "or_empty")]
    sub_resource: String,
    #[serde(deserialize_with = "or_empty")]
    name: String,
    operation: String,
    user_info: Author,
    object: Value,
    old_object: Value,
    dry_run: Option<bool>,
}

/// The result of a review.
#[derive(Debug, PartialEq, Eq)]
pub enum Judgement {
    /// No check is needed.
    Allowed,
    /// The request is a probe, which is rejected: see [`probe`].
    Probed,
    /// The write is rejected with this message.
    Refused(String),
    /// The result depends on the answers to these questions about the author.
    Asks(Vec<Question>),
    /// The stored policy of this name is deleted. Servers before 1.15 do not send it, so it must be read.
    AsksAboutStored(String),
}

impl Review {
    /// Parses `body`. The time grows linearly with its length.
    ///
    /// # Errors
    /// The fault of the body.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let (api_version, request): (_, Request) = Envelope::open(body)?;
        check_uid(&request.uid)?;
        check_resource(&request.operation, &request.resource, &request.sub_resource)?;
        if request.user_info.size() > LARGEST_AUTHOR {
            let message = format!("`request.userInfo` is larger than {LARGEST_AUTHOR} bytes");
            return Err(Invalid::NoReview(message));
        }
        Ok(Self { api_version, request })
    }

    /// The author of the policy.
    pub fn author(&self) -> &Author {
        &self.request.user_info
    }

    /// The policy's name; empty if missing.
    pub fn policy(&self) -> &str {
        let Request { name, object, .. } = &self.request;
        object["metadata"]["name"].as_str().unwrap_or(name)
    }

    /// The result of the review, or the questions on which it depends.
    pub fn judgement(&self) -> Judgement {
        let Request { resource, sub_resource, operation, user_info, object, old_object, dry_run, .. } = &self.request;
        let is_policy = resource.group == GROUP && resource.resource == RESOURCE && sub_resource.is_empty();
        if !is_policy || user_info.username == GARBAGE_COLLECTOR {
            return Judgement::Allowed;
        }
        if let Some(message) = self.foreign_record() {
            return Judgement::Refused(message);
        }
        match operation.as_str() {
            "CREATE" if *dry_run == Some(true) && object["metadata"]["labels"][PROBE] == PROBE_REFUSE => {
                Judgement::Probed
            }
            "CREATE" => Judgement::Asks(Question::about(Side::New, object)),
            "UPDATE" if !is_edit(object, old_object, is_ours) => Judgement::Allowed,
            "UPDATE" => {
                let mut questions = Question::about(Side::New, object);
                Question::about(Side::Old, old_object).into_iter().for_each(|question| question.add_to(&mut questions));
                Judgement::Asks(questions)
            }
            "DELETE" => self.deletion(),
            _ => Judgement::Allowed,
        }
    }

    /// The message for a writer who records somebody else as the author; none if the record is right or there is none.
    fn foreign_record(&self) -> Option<String> {
        let Request { operation, user_info, object, old_object, .. } = &self.request;
        let is_edit = match operation.as_str() {
            "CREATE" => true,
            "UPDATE" => is_edit(object, old_object, |key| key != record::KEY && is_ours(key)),
            _ => return None,
        };
        let old = if operation == "CREATE" { &Value::Null } else { old_object };
        record::refusal(user_info, object, old, is_edit)
    }

    /// The result for a deletion. For each object of a `deletecollection`, servers from 1.15 on send the policy. Older servers ask
    /// once, and say nothing about what is deleted: that takes the rights for any policy.
    fn deletion(&self) -> Judgement {
        let Request { name, old_object, .. } = &self.request;
        match old_object {
            Value::Null if is_policy_name(name) => Judgement::AsksAboutStored(name.clone()),
            Value::Null => Judgement::Asks(Question::about_any_policy()),
            old => Judgement::Asks(Question::about(Side::Old, old)),
        }
    }

    /// The answer as a JSON review. It rejects with the message `refusal`, if there is one.
    pub fn answer(&self, refusal: Option<&str>) -> Vec<u8> {
        let response = allowed(&self.request.uid);
        let response = match refusal {
            Some(message) => response.refused(message),
            None => response,
        };
        written(&self.api_version, response)
    }
}

/// The message for a probe of the registration `revision`.
pub fn probed(revision: &str) -> String {
    format!("the probe asks to be refused by registration {revision}")
}

/// The message for an author whose policy came by the registration `revision`, which this operator has not seen.
pub fn unseen(revision: &str) -> String {
    format!(
        "{}: this replica of the operator has not seen registration {revision} yet, so the policy is refused: try again",
        crate::api::code::Code::Reconciling
    )
}

/// A policy for a dry-run create that the registration rejects with [`probed`] once it is in effect. The policy is only
/// for `namespace`, the operator's own. The operator may create pods there, so `config/author-check.yaml` admits the
/// probe.
pub fn probe(namespace: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "SidecarPolicy",
        "metadata": { "name": "scpol-probe", "labels": { PROBE: PROBE_REFUSE } },
        "spec": {
            "mode": "Audit",
            "namespaces": [namespace],
            "template": { "containers": [{ "name": "probe", "image": "probe" }] },
        },
    })
}

/// The registration. Without `ca_bundle`, API servers trust the authorities of their own system.
///
/// # Errors
/// If the server cannot register webhooks, or cannot call this one.
pub fn render(cluster: &Capabilities, endpoint: &Endpoint, ca_bundle: Option<&[u8]>) -> Result<Value, Unavailable> {
    crate::compile::webhook::check_server(cluster)?;
    check_port(endpoint, cluster)?;
    let resource = cluster.registration(registration::VALIDATING_WEBHOOKS).expect("the engine has been checked");
    let mut rule = json!({
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "resources": [RESOURCE],
    });
    if cluster.at_least(1, 14) {
        rule["scope"] = json!("Cluster");
    }
    let at_revision = |revision: &str| {
        let client = address(endpoint, ca_bundle, &format!("{PATH}{revision}"));
        let mut entry = entry(cluster, NAME, &client, &json!([rule]));
        entry["failurePolicy"] = json!("Fail");
        json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": naming::webhook_metadata(NAME, &[]),
            "webhooks": [entry],
        })
    };
    Ok(at_revision(&crate::digest::short(at_revision("").to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(namespaces: &Value) -> Value {
        json!({ "metadata": { "name": "p" }, "spec": { "namespaces": namespaces, "position": {} } })
    }

    fn review(operation: &str, object: &Value, old_object: &Value) -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview",
            "request": {
                "uid": "u1", "operation": operation, "object": object, "oldObject": old_object,
                "resource": { "group": "scpol.dev", "version": "v1alpha1", "resource": "sidecarpolicies" },
                "userInfo": { "username": "jo", "uid": "7", "groups": ["dev"], "extra": { "scopes": ["a"], "none": null } },
            },
        })
    }

    fn judged(review: &Value) -> Judgement {
        Review::parse(review.to_string().as_bytes()).unwrap().judgement()
    }

    fn author() -> Author {
        serde_json::from_value(json!({ "username": "jo", "uid": "7", "groups": ["dev"] })).unwrap()
    }

    /// The namespaces of the questions about a policy, and what is asked.
    fn asked(side: Side, spec: &Value) -> Vec<(String, String)> {
        let questions = Question::about(side, &json!({ "spec": spec }));
        questions.iter().map(|question| (question.namespace.clone(), question.right.to_string())).collect()
    }

    fn pods(namespaces: &[&str]) -> Vec<(String, String)> {
        namespaces.iter().map(|name| ((*name).to_owned(), "create pods".to_owned())).collect()
    }

    #[test]
    fn the_author_is_asked_about_each_namespace_that_is_named_and_else_about_all() {
        let names = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
        let many = names(28);
        for (namespaces, expected) in [
            (json!(["a"]), vec!["a"]),
            (json!(["b", "a", "b"]), vec!["b", "a"]),
            (json!(many), many.iter().map(String::as_str).collect()),
            (json!(names(29)), vec![""]),
            (json!(vec!["a"; 29]), vec![""]),
            (json!([]), vec![""]),
            (json!(null), vec![""]),
            (json!(["*"]), vec![""]),
            (json!(["a", "b?"]), vec![""]),
            (json!(["a", "b*"]), vec![""]),
            (json!(["a", 7]), vec![""]),
            (json!("a"), vec![""]),
        ] {
            assert_eq!(asked(Side::New, &json!({ "namespaces": namespaces })), pods(&expected), "{namespaces}");
        }
        for odd in [json!(null), json!({}), json!([]), json!({ "template": {} })] {
            assert_eq!(asked(Side::Old, &odd), pods(&[""]), "{odd}");
        }
    }

    #[test]
    fn a_priority_above_0_takes_the_right_everywhere() {
        for (priority, place) in [
            (json!(null), "a"),
            (json!(0), "a"),
            (json!(-1), "a"),
            (json!(1), ""),
            (json!(2_147_483_647), ""),
            (json!(0.5), ""),
            (json!("1"), ""),
        ] {
            let spec = json!({ "namespaces": ["a"], "priority": priority });
            assert_eq!(asked(Side::New, &spec), pods(&[place]), "{priority}");
        }
        let of = |spec: Value| Question::about(Side::Old, &json!({ "spec": spec }))[0].lack;
        assert_eq!(of(json!({ "namespaces": ["a"], "priority": 1 })), Lack::Priority);
        assert_eq!(of(json!({ "priority": 1 })), Lack::PodsEverywhere, "it would be without a priority, too");
    }

    #[test]
    fn a_policy_that_rolls_takes_the_rights_to_what_a_rollout_does() {
        let target = |group: &str, resource: &str| json!({ "group": group, "resource": resource });
        let rolls = |namespaces: &[&str], targets: &[Value]| {
            let strategy = json!({ "type": "RollingUpdate" });
            json!({ "namespaces": namespaces, "targets": targets, "updateStrategy": strategy })
        };
        let both = [
            target("", "pods"),
            target("apps", "deployments"),
            target("extensions", "daemonsets"),
            target("", "replicationcontrollers"),
        ];
        let expected = [
            "create pods",
            "create pods/eviction",
            "patch pods",
            "patch deployments.apps",
            "patch daemonsets.apps",
            "patch replicationcontrollers",
        ];
        let of_both = |place: &str| expected.map(|right| (place.to_owned(), right.to_owned())).to_vec();
        assert_eq!(asked(Side::New, &rolls(&["a"], &both)), of_both("a"));
        let four = ["a", "b", "c", "d"];
        assert_eq!(asked(Side::New, &rolls(&four, &both)), four.map(of_both).concat());
        assert_eq!(asked(Side::New, &rolls(&["a", "b", "c", "d", "e"], &both)), of_both(""), "30 are too many");
        // Without `targets` it is for Deployments.
        let default = json!({ "namespaces": ["a"], "updateStrategy": { "type": "RollingUpdate" } });
        let of_deployments = ["create pods", "patch deployments.apps"].map(|right| ("a".to_owned(), right.to_owned()));
        assert_eq!(asked(Side::New, &default), of_deployments);
        let twice = rolls(&["a"], &[target("apps", "deployments"), target("apps", "deployments")]);
        assert_eq!(asked(Side::New, &twice), of_deployments, "the same is asked once");
        // By eviction alone no pod is patched. Many targets for pods take no more rights than one, so that none of the others is left out.
        let mut recreates = rolls(&["a"], &both[..2]);
        recreates["updateStrategy"]["rollingUpdate"] = json!({ "podUpdate": "Recreate" });
        let of_recreation = ["create pods", "create pods/eviction", "patch deployments.apps"];
        assert_eq!(asked(Side::New, &recreates), of_recreation.map(|right| ("a".to_owned(), right.to_owned())));
        for odd in [json!("InPlaceOrRecreate"), json!(null), json!(["Recreate"])] {
            recreates["updateStrategy"]["rollingUpdate"]["podUpdate"] = odd;
            assert_eq!(asked(Side::New, &recreates), of_both("a")[..4]);
        }
        let mut many = vec![target("", "pods"); 15];
        many.push(target("apps", "daemonsets"));
        let rights = asked(Side::New, &rolls(&["a"], &many));
        assert_eq!((rights.len(), rights[3].1.as_str()), (4, "patch daemonsets.apps"));
        let on_delete = json!({ "namespaces": ["a"], "targets": both, "updateStrategy": { "type": "OnDelete" } });
        assert_eq!(asked(Side::New, &on_delete), pods(&["a"]));
        let hostile: Vec<_> = (0..50_000).map(|number| target("apps", &format!("r{number}"))).collect();
        assert_eq!(Question::about(Side::New, &json!({ "spec": rolls(&["a"], &hostile) })).len(), QUESTIONS);
        let any = Question::about_any_policy();
        assert!(any.len() == 7 && any.iter().all(|question| question.namespace.is_empty()), "{any:?}");
    }

    #[test]
    fn every_text_says_who_lacks_what_and_where() {
        let told = |side, spec: Value| -> Vec<String> {
            let questions = Question::about(side, &json!({ "spec": spec }));
            questions.iter().map(|question| question.refusal(&author())).collect()
        };
        let rolls = |more: Value| {
            let mut spec = json!({ "updateStrategy": { "type": "RollingUpdate" } });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        assert_eq!(
            told(Side::New, rolls(json!({ "namespaces": ["{user}"] }))),
            [
                "SCP0046: jo may not create pods in namespace `{user}`, so may not have a policy inject there",
                "SCP0047: jo may not patch deployments.apps in namespace `{user}`, so may not have a policy with `updateStrategy.type: RollingUpdate` there",
            ]
        );
        let everywhere = told(Side::Old, rolls(json!({})));
        assert!(
            everywhere[0]
                .starts_with("SCP0046: jo may not create pods in all namespaces, so may change and delete only ")
        );
        assert!(everywhere.iter().all(|told| told.contains("at most 14 in `spec.namespaces`")), "{everywhere:?}");
        let priority = told(Side::Old, json!({ "namespaces": ["a"], "priority": 1 }));
        assert!(priority[0].starts_with("SCP0048: jo may not ") && priority[0].ends_with("`spec.priority` above 0"));
    }

    /// The namespaces that a judgement asks about.
    fn places(judgement: &Judgement) -> Option<Vec<&str>> {
        match judgement {
            Judgement::Asks(questions) => Some(questions.iter().map(Question::namespace).collect()),
            _ => None,
        }
    }

    fn with(policy: &Value, pointer: &str, value: Value) -> Value {
        let mut changed = policy.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        if changed.pointer(parent).is_none() {
            let (grandparent, name) = parent.rsplit_once('/').unwrap();
            changed.pointer_mut(grandparent).unwrap()[name] = json!({});
        }
        changed.pointer_mut(parent).unwrap()[&key] = value;
        changed
    }

    #[test]
    fn an_edit_is_judged_by_what_was_there_and_by_what_comes() {
        let (here, there) = (policy(&json!(["here"])), policy(&json!(["there"])));
        let bare = json!({ "metadata": { "name": "p" } });
        for (operation, object, old, expected) in [
            ("CREATE", &here, &json!(null), vec!["here"]),
            ("CREATE", &here, &here, vec!["here"]),
            ("UPDATE", &here, &there, vec!["here", "there"]),
            ("UPDATE", &here, &json!(null), vec!["here", ""]),
            ("UPDATE", &bare, &bare, vec![""]),
            ("DELETE", &json!(null), &here, vec!["here"]),
        ] {
            let judged = judged(&review(operation, object, old));
            assert_eq!(places(&judged), Some(expected), "{operation} {object} {old}");
        }
        let many: serde_json::Map<_, _> = (0..=COMPARED).map(|number| (format!("a{number}"), json!("b"))).collect();
        for (pointer, value) in [
            ("/metadata/annotations/scpol.dev~1restartedAt", json!("2026-01-02T03:04:05Z")),
            ("/metadata/annotations/any.scpol.dev~1new", json!("")),
            ("/metadata/labels/scpol.dev~1probe", json!("refuse")),
            ("/metadata/ownerReferences", json!([{ "kind": "Namespace", "name": "shop", "uid": "1" }])),
            ("/metadata/finalizers", json!(["a.example/b"])),
            ("/metadata/annotations", json!(many)),
        ] {
            let edited = with(&here, pointer, value);
            for (object, old) in [(&edited, &here), (&here, &edited)] {
                assert_eq!(places(&judged(&review("UPDATE", object, old))), Some(vec!["here"]), "{pointer}");
            }
        }
        for (pointer, value) in [
            ("/metadata/annotations/note", json!("seen")),
            ("/metadata/annotations/scpol.dev.example~1note", json!("seen")),
            ("/metadata/labels/team", json!("mesh")),
            ("/metadata/resourceVersion", json!("8")),
            ("/metadata/managedFields", json!([])),
        ] {
            let edited = with(&here, pointer, value);
            for (object, old) in [(&edited, &here), (&here, &edited), (&edited, &edited)] {
                assert_eq!(judged(&review("UPDATE", object, old)), Judgement::Allowed, "{pointer}");
            }
        }
    }

    #[test]
    fn a_deletion_of_which_the_server_does_not_say_what_it_deletes_takes_the_rights_for_it() {
        let nothing = json!(null);
        let mut review = review("DELETE", &nothing, &nothing);
        assert_eq!(judged(&review), Judgement::Asks(Question::about_any_policy()), "a deletecollection");
        review["request"]["name"] = json!("team.a");
        assert_eq!(judged(&review), Judgement::AsksAboutStored("team.a".to_owned()));
        for hostile in ["a/b", "a?watch=true", "..", "a,metadata.name!=b", "A", &"a".repeat(254)] {
            review["request"]["name"] = json!(hostile);
            assert_eq!(judged(&review), Judgement::Asks(Question::about_any_policy()), "{hostile}");
        }
        review["request"]["oldObject"] = policy(&json!(["here"]));
        assert_eq!(places(&judged(&review)), Some(vec!["here"]), "what the server says counts");
    }

    #[test]
    fn who_records_somebody_else_as_the_author_is_refused_before_any_question() {
        let here = policy(&json!(["here"]));
        let key = format!("/metadata/annotations/{}", record::KEY.replace('/', "~1"));
        let own = with(&here, &key, json!(r#"{"user":"jo","groups":["dev"]}"#));
        let other = with(&here, &key, json!(r#"{"user":"al","groups":["dev"]}"#));
        let edited = |policy: &Value| with(policy, "/spec/suspend", json!(true));
        for (operation, object, old, is_refused) in [
            ("CREATE", &own, &json!(null), false),
            ("CREATE", &other, &json!(null), true),
            ("CREATE", &other, &other, true),
            ("UPDATE", &edited(&own), &other, false),
            ("UPDATE", &edited(&other), &other, false),
            ("UPDATE", &edited(&other), &own, true),
            ("UPDATE", &own, &other, true),
            ("UPDATE", &with(&other, "/metadata/labels/team", json!("mesh")), &other, false),
            ("DELETE", &json!(null), &other, false),
        ] {
            let judged = judged(&review(operation, object, old));
            assert_eq!(matches!(judged, Judgement::Refused(_)), is_refused, "{operation} {object} {old}: {judged:?}");
        }
        assert_eq!(Question::about(Side::New, &here)[0].right_and_place(), "create pods in namespace `here`");
        assert_eq!(Question::about(Side::New, &json!({}))[0].right_and_place(), "create pods in all namespaces");
    }

    #[test]
    fn probes_other_resources_and_the_garbage_collector_are_not_judged() {
        let (here, there) = (policy(&json!(["here"])), policy(&json!(["there"])));
        let labelled = with(&here, &format!("/metadata/labels/{}", PROBE.replace('/', "~1")), json!(PROBE_REFUSE));
        // Only a dry run may ask for a rejection.
        let mut dry = review("CREATE", &labelled, &json!(null));
        assert_eq!(places(&judged(&dry)), Some(vec!["here"]));
        dry["request"]["dryRun"] = json!(true);
        assert_eq!(judged(&dry), Judgement::Probed);
        for (pointer, value) in [
            ("/request/resource/group", "other.example"),
            ("/request/resource/resource", "secrets"),
            ("/request/subResource", "status"),
            ("/request/userInfo/username", GARBAGE_COLLECTOR),
            ("/request/operation", "CONNECT"),
        ] {
            let other = with(&review("UPDATE", &here, &there), pointer, json!(value));
            assert_eq!(judged(&other), Judgement::Allowed, "{pointer}");
        }
    }

    #[test]
    fn it_is_asked_about_who_has_sent_the_request() {
        let review =
            Review::parse(review("CREATE", &policy(&json!(["a"])), &json!(null)).to_string().as_bytes()).unwrap();
        let asked = |spec: Value, index: usize| {
            let questions = Question::about(Side::New, &json!({ "spec": spec }));
            serde_json::to_value(questions[index].review(review.author())).unwrap()["spec"].clone()
        };
        let attributes = json!({ "verb": "create", "group": "", "version": "*", "resource": "pods", "namespace": "a" });
        let expected = json!({
            "user": "jo", "uid": "7", "groups": ["dev"], "extra": { "none": [], "scopes": ["a"] },
            "resourceAttributes": attributes,
        });
        assert_eq!(asked(json!({ "namespaces": ["a"] }), 0), expected);
        let targets = json!([{ "group": "", "resource": "pods" }]);
        let rolls = json!({ "namespaces": ["a"], "targets": targets, "updateStrategy": { "type": "RollingUpdate" } });
        let eviction = asked(rolls, 1)["resourceAttributes"].clone();
        assert_eq!((&eviction["subresource"], &eviction["resource"]), (&json!("eviction"), &json!("pods")));
        let nobody: Author =
            serde_json::from_value(json!({ "username": null, "groups": null, "extra": null })).unwrap();
        assert_eq!(nobody.name(), "");
    }

    #[test]
    fn the_registration_must_be_answered_and_has_what_the_server_knows() {
        let cluster = |minor: u32, version: &'static str| {
            let plurals = [
                ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
                ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
            ];
            let served = plurals.map(|(plural, kind)| ("admissionregistration.k8s.io", version, plural, kind));
            Capabilities::of(minor, &served)
        };
        let endpoint = Endpoint::Service { namespace: "scpol-system".into(), name: "scpol".into(), port: 443 };
        let old = render(&cluster(13, "v1beta1"), &endpoint, Some(b"ca")).unwrap();
        let revision = crate::compile::webhook::revision_of(&old).unwrap();
        let expected = json!({
            "name": NAME, "failurePolicy": "Fail", "sideEffects": "None",
            "clientConfig": {
                "service": { "namespace": "scpol-system", "name": "scpol", "path": format!("/author/{revision}") },
                "caBundle": "Y2E=",
            },
            "rules": [{
                "apiGroups": ["scpol.dev"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["sidecarpolicies"],
            }],
        });
        assert_eq!(old["webhooks"], json!([expected]));
        let current = render(&cluster(36, "v1"), &endpoint, Some(b"ca")).unwrap();
        let entry = &current["webhooks"][0];
        assert_eq!((&entry["timeoutSeconds"], &entry["rules"][0]["scope"]), (&json!(3), &json!("Cluster")));
        let other = render(&cluster(36, "v1"), &endpoint, Some(b"other")).unwrap();
        assert_ne!(current["webhooks"][0]["clientConfig"]["service"], other["webhooks"][0]["clientConfig"]["service"]);
        assert!(render(&Capabilities::of(36, &[]), &endpoint, None).is_err());
    }
}
