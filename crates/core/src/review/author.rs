//! Whether the author of a policy could create such pods himself, wherever it injects: the same check as that of
//! `config/author-check.yaml`, for servers that lack its kind. Pure: the operator asks the API server.
//!
//! Unlike the engine's own registrations, this one fails closed: the server stores no unchecked policy.

use crate::Unavailable;
use crate::api::GROUP;
use crate::capabilities::{Capabilities, registration};
use crate::compile::webhook::Endpoint;
use crate::compile::webhook::{address, check_port, entry};
use crate::naming::{self, PROBE, PROBE_REFUSE};
use crate::outside::shown;
use crate::review::{Envelope, Invalid, Resource, allowed, check_resource, check_uid, written};
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
/// The most namespaces that are checked one by one. The number is that of `config/author-check.yaml`, which the API
/// server limits by cost, because the result must not depend on the server version.
pub const NAMED: usize = 28;
/// The largest author, in bytes: the part of a review besides its objects. Each question to the API server repeats it.
const LARGEST_AUTHOR: usize = 64 << 10;
/// The plural name of the checked resource.
const RESOURCE: &str = "sidecarpolicies";

/// The namespaces in which the author needs the right to create pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Places {
    /// All namespaces.
    All,
    /// Each of these: at least one, at most [`NAMED`], without duplicates, in the order of the policy.
    Named(Vec<String>),
}

impl Places {
    /// The places of a policy: all namespaces, unless `spec.namespaces` is a readable list of names.
    pub fn of(policy: &Value) -> Self {
        let listed = policy["spec"]["namespaces"].as_array().filter(|listed| (1..=NAMED).contains(&listed.len()));
        let literal = |name: &Value| name.as_str().filter(|name| !name.contains(['*', '?'])).map(str::to_owned);
        let Some(listed) = listed.and_then(|listed| listed.iter().map(literal).collect::<Option<Vec<_>>>()) else {
            return Self::All;
        };
        let mut names: Vec<String> = Vec::new();
        for name in listed {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Self::Named(names)
    }

    /// The namespace of each question to the API server; empty for all namespaces.
    pub fn questions(&self) -> Vec<&str> {
        match self {
            Self::All => vec![""],
            Self::Named(names) => names.iter().map(String::as_str).collect(),
        }
    }
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

    /// The length of all texts, in bytes.
    fn size(&self) -> usize {
        let extra = self.extra.iter().flat_map(|(key, values)| [key].into_iter().chain(values.iter().flatten()));
        [&self.username, &self.uid].into_iter().chain(&self.groups).chain(extra).map(String::len).sum()
    }

    /// The question whether the author may create pods in `namespace`, or in all namespaces if it is empty.
    pub fn question(&self, namespace: &str) -> SubjectAccessReview {
        let attributes =
            json!({ "verb": "create", "group": "", "version": "*", "resource": "pods", "namespace": namespace });
        let extra: BTreeMap<_, _> =
            self.extra.iter().map(|(key, values)| (key, values.clone().unwrap_or_default())).collect();
        let spec = json!({
            "user": self.username, "uid": self.uid, "groups": self.groups, "extra": extra, "resourceAttributes": attributes,
        });
        serde_json::from_value(json!({ "spec": spec })).expect("the shape is fixed")
    }

    /// The message for an author who may not create pods in `namespace`, or in all namespaces if it is empty.
    pub fn lacks(&self, namespace: &str) -> String {
        let (code, name, namespace) =
            (crate::api::code::Code::AuthorLacksRight, shown(&self.username), shown(namespace));
        match &*namespace {
            "" => format!(
                "{code}: {name} may not create pods in all namespaces, so may have a policy only for namespaces where that is allowed: name them in `spec.namespaces`, at most {NAMED} and without globs"
            ),
            namespace => format!(
                "{code}: {name} may not create pods in namespace `{namespace}`, so may not have a policy inject there"
            ),
        }
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
    /// The result depends on the author's rights in these places.
    Asks(Places),
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
        self.request.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The result of the review, or the places to check.
    pub fn judgement(&self) -> Judgement {
        let Request { resource, sub_resource, operation, object, old_object, dry_run, .. } = &self.request;
        let is_policy = resource.group == GROUP && resource.resource == RESOURCE && sub_resource.is_empty();
        let is_same = !object["spec"].is_null() && object["spec"] == old_object["spec"];
        match operation.as_str() {
            "CREATE" | "UPDATE" if !is_policy => Judgement::Allowed,
            "CREATE" if *dry_run == Some(true) && object["metadata"]["labels"][PROBE] == PROBE_REFUSE => {
                Judgement::Probed
            }
            "UPDATE" if is_same => Judgement::Allowed,
            "CREATE" | "UPDATE" => Judgement::Asks(Places::of(object)),
            _ => Judgement::Allowed,
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
        "operations": ["CREATE", "UPDATE"],
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
        json!({ "metadata": { "name": "p" }, "spec": { "namespaces": namespaces, "priority": 1 } })
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

    #[test]
    fn the_author_is_asked_about_each_namespace_that_is_named_and_else_about_all() {
        let names = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
        let named = |names: &[&str]| Places::Named(names.iter().map(|name| (*name).to_owned()).collect());
        for (namespaces, expected) in [
            (json!(["a"]), named(&["a"])),
            (json!(["b", "a", "b"]), named(&["b", "a"])),
            (json!(names(28)), Places::Named(names(28))),
            (json!(names(29)), Places::All),
            (json!(vec!["a"; 29]), Places::All),
            (json!([]), Places::All),
            (json!(null), Places::All),
            (json!(["*"]), Places::All),
            (json!(["a", "b?"]), Places::All),
            (json!(["a", "b*"]), Places::All),
            (json!(["a", 7]), Places::All),
            (json!("a"), Places::All),
        ] {
            assert_eq!(Places::of(&policy(&namespaces)), expected, "{namespaces}");
        }
        for odd in [json!(null), json!({}), json!({ "spec": [] }), json!({ "spec": { "template": {} } })] {
            assert_eq!(Places::of(&odd), Places::All, "{odd}");
        }
        assert_eq!(Places::All.questions(), [""]);
        assert_eq!(named(&["b", "a"]).questions(), ["b", "a"]);
    }

    #[test]
    fn it_is_asked_at_each_create_and_at_each_edit_of_the_spec() {
        let (here, there) = (policy(&json!(["here"])), policy(&json!(["there"])));
        let asks = |namespace: &str| Judgement::Asks(Places::Named(vec![namespace.to_owned()]));
        let mut labelled = here.clone();
        labelled["metadata"]["labels"] = json!({ "a": "b", PROBE: PROBE_REFUSE });
        let bare = json!({ "metadata": { "name": "p" } });
        for (operation, object, old, expected) in [
            ("CREATE", &here, &json!(null), asks("here")),
            ("CREATE", &here, &here, asks("here")),
            ("UPDATE", &here, &there, asks("here")),
            ("UPDATE", &here, &json!(null), asks("here")),
            ("UPDATE", &labelled, &here, Judgement::Allowed),
            ("UPDATE", &bare, &bare, Judgement::Asks(Places::All)),
            ("DELETE", &json!(null), &here, Judgement::Allowed),
            // Only a dry run may ask for a rejection.
            ("CREATE", &labelled, &json!(null), asks("here")),
        ] {
            assert_eq!(judged(&review(operation, object, old)), expected, "{operation} {object} {old}");
        }
        let mut dry = review("CREATE", &labelled, &json!(null));
        dry["request"]["dryRun"] = json!(true);
        assert_eq!(judged(&dry), Judgement::Probed);
        for (pointer, value) in [
            ("/request/resource/group", "other.example"),
            ("/request/resource/resource", "secrets"),
            ("/request/subResource", "status"),
        ] {
            let mut other = review("UPDATE", &here, &there);
            match other.pointer_mut(pointer) {
                Some(field) => *field = json!(value),
                None => other["request"]["subResource"] = json!(value),
            }
            assert_eq!(judged(&other), Judgement::Allowed, "{pointer}");
        }
    }

    #[test]
    fn it_is_asked_about_who_has_sent_the_request() {
        let review =
            Review::parse(review("CREATE", &policy(&json!(["a"])), &json!(null)).to_string().as_bytes()).unwrap();
        let question = serde_json::to_value(review.author().question("a")).unwrap();
        let attributes = json!({ "verb": "create", "group": "", "version": "*", "resource": "pods", "namespace": "a" });
        let expected = json!({
            "user": "jo", "uid": "7", "groups": ["dev"], "extra": { "none": [], "scopes": ["a"] },
            "resourceAttributes": attributes,
        });
        assert_eq!(question["spec"], expected);
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
                "apiGroups": ["scpol.dev"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
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
