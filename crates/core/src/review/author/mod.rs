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

mod identity;
mod question;
pub mod record;
mod registration;

pub use super::probe::probed;
pub use identity::Author;
pub use question::{Lack, QUESTIONS, Question, Side};
pub use registration::{NAME, PATH, RIGHTS, probe, render, unseen};

use super::envelope::{Envelope, Invalid, Resource, Response, check_resource, check_uid};
use crate::api::{GROUP, is_policy_name};
use crate::naming::{PROBE, PROBE_REFUSE};
use identity::or_empty;
use registration::RESOURCE;
use serde::Deserialize;
use serde_json::Value;

/// The most labels, and the most annotations, of a policy that are compared one by one. A policy with more is judged at each
/// update, because whoever adds many must not exhaust the cost of the ValidatingAdmissionPolicy for everybody.
pub const COMPARED: usize = 100;
/// The user that deletes what has lost its owner, and that completes `--cascade=foreground` and `--cascade=orphan`. Its
/// writes are not judged, because the owner references and the deletion before them are.
pub const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// The largest author, in bytes: the part of a review besides its objects. Each question to the API server repeats it.
const LARGEST_AUTHOR: usize = 64 << 10;

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
        let response = Response::allowed(&self.request.uid);
        let response = match refusal {
            Some(message) => response.refused(message),
            None => response,
        };
        response.written(&self.api_version)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
