//! Bodies of requests to the webhook: each gets an answer, and the answer is right.

use crate::inject::{POLICIES, site};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::{Patch, PatchOperation};
use serde_json::{Value, from_slice, json, to_vec};
use sidecar_policy::api::MARKER_PREFIX;
use sidecar_policy::review::author::{self as author, Judgement};
use sidecar_policy::review::{Answer, Call, Caller, Review};
use std::sync::Arc;

const REVISION: &str = "0123456789abcdef";

pub(crate) fn run(bytes: &[u8]) {
    judged(bytes);
    for namespace in [None, Some(Arc::new(json!({ "metadata": { "labels": { "team": "shop" } } })))] {
        let Some(injected) = answered(bytes, Call::Mutate, namespace.clone()) else { return };
        answered(bytes, Call::Validate, namespace.clone());
        // Unread parts of a review may be broken.
        let Ok(review) = from_slice::<Value>(bytes) else { continue };
        let Some(created) = holds_once(&review, &injected, namespace.as_ref()) else { continue };
        if review["request"]["operation"] != "CREATE" {
            continue;
        }
        // A client that knows nothing of the additions writes the object again.
        let mut update = review.clone();
        update["request"]["operation"] = json!("UPDATE");
        update["request"]["oldObject"] = created.clone();
        let body = to_vec(&update).expect("a review is JSON");
        let restored = answered(&body, Call::Mutate, namespace.clone()).expect("it is a review still");
        let restored = holds_once(&update, &restored, namespace.as_ref());
        let is_marked = update["request"]["object"].to_string().contains(MARKER_PREFIX);
        if let Some(restored) = restored.filter(|_| !is_marked) {
            assert_eq!(restored, created, "what an update gives back is what a create gives: {review}");
        }
    }
}

/// The object of `review` after the patch of the answer `injected`; none without a patch. Checks the laws of injection.
fn holds_once(review: &Value, injected: &Answer, namespace: Option<&Arc<Value>>) -> Option<Value> {
    let patch = patch(&injected.body)?;
    let is_refused = injected.decided.as_ref().is_some_and(|decided| decided.decision.refusal().is_some());
    let mut review = review.clone();
    let object = &mut review["request"]["object"];
    let is_marked = object.to_string().contains(MARKER_PREFIX);
    json_patch::patch(object, &patch).expect("a patch applies to what came");
    let stored = object.clone();
    assert!(patch.iter().all(|operation| matches!(operation, PatchOperation::Add(_))), "{patch}");
    let body = to_vec(&review).expect("a review is JSON");
    if answered(&body, Call::Mutate, namespace.cloned()).is_some_and(|again| !is_probe(&review) && patched(&again)) {
        panic!("to inject twice is to inject once: {review}");
    }
    let judged = answered(&body, Call::Validate, namespace.cloned()).expect("it is a review still");
    let judged: Value = from_slice(&judged.body).expect("an answer is JSON");
    if !is_marked && !is_refused && !is_probe(&review) {
        assert_eq!(judged["response"]["allowed"], true, "what was injected must pass: {judged}");
    }
    Some(stored)
}

fn is_probe(review: &Value) -> bool {
    !review["request"]["object"]["metadata"]["labels"]["scpol.dev/probe"].is_null()
}

fn patched(answer: &Answer) -> bool {
    patch(&answer.body).is_some()
}

fn patch(answer: &[u8]) -> Option<Patch> {
    let answer: Value = from_slice(answer).expect("an answer is JSON");
    let patch = STANDARD.decode(answer["response"]["patch"].as_str()?).expect("a patch is in base64");
    Some(from_slice(&patch).expect("a patch is JSON"))
}

/// The answer, if the bytes are a valid review.
fn answered(bytes: &[u8], call: Call, namespace: Option<Arc<Value>>) -> Option<Answer> {
    let review = match Review::parse(bytes) {
        Ok(review) => review,
        Err(invalid) => {
            assert!(matches!(invalid.status(), 400 | 413) && invalid.to_string().starts_with("SCP0212: "), "{invalid}");
            return None;
        }
    };
    review.needs_namespace(&POLICIES);
    let caller = Caller { call, revision: Some(REVISION), policies: &POLICIES, listed: None };
    let answer = review.answer(&caller, &site(true), namespace);
    let answered: Value = from_slice(&answer.body).expect("an answer is JSON");
    let response = &answered["response"];
    assert_eq!(answered["kind"], "AdmissionReview");
    if let Ok(asked) = from_slice::<Value>(bytes) {
        assert_eq!(answered["apiVersion"], asked["apiVersion"]);
        assert_eq!(response["uid"], asked["request"]["uid"]);
    }
    assert_eq!(response["patch"].is_null(), response["patchType"].is_null());
    match call {
        Call::Mutate => assert_eq!(response["allowed"], true, "{answered}"),
        Call::Validate => assert!(response["patch"].is_null(), "{answered}"),
    }
    let told = |status: &Value| status["message"].as_str().is_some_and(|message| !message.is_empty());
    assert!(response["allowed"] == true || told(&response["status"]), "{answered}");
    Some(answer)
}

/// The same bytes as a review of a policy. Its author is checked for a few namespaces, and gets a reason.
fn judged(bytes: &[u8]) {
    let Ok(review) = author::Review::parse(bytes) else { return };
    if let Judgement::Asks(questions) = review.judgement() {
        assert!((1..=2 * author::QUESTIONS).contains(&questions.len()), "{questions:?}");
        questions.iter().for_each(|question| drop(question.review(review.author())));
        let lacks = questions[0].refusal(review.author());
        let refused: Value = from_slice(&review.answer(Some(&lacks))).expect("an answer is JSON");
        assert_eq!(
            (&refused["response"]["allowed"], &refused["response"]["status"]["message"]),
            (&json!(false), &json!(lacks))
        );
    }
}
