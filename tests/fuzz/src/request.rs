//! Texts in reviews, and the requests that they make the operator send: Namespaces alone, by a name that stays one segment
//! of the path.

use crate::inject::POLICIES;
use serde_json::{Value, json};
use sidecar_policy::api::{is_dns_label, is_policy_name};
use sidecar_policy::outside::{escaped, is_unsafe, segment, shown};
use sidecar_policy::review::author::{self, Judgement};
use sidecar_policy::review::{Call, Caller, Review};

/// The texts of a request that anybody can write.
const FIELDS: [&str; 11] = [
    "/request/namespace",
    "/request/name",
    "/request/uid",
    "/request/operation",
    "/request/subResource",
    "/request/resource/group",
    "/request/resource/version",
    "/request/resource/resource",
    "/request/object/metadata/name",
    "/request/object/metadata/generateName",
    "/request/object/metadata/namespace",
];

pub(crate) fn run(bytes: &[u8]) {
    asked(bytes);
    let text = String::from_utf8_lossy(bytes);
    for field in FIELDS {
        let mut review = seed("shop");
        *review.pointer_mut(field).expect("the seed has every field") = json!(text);
        asked(review.to_string().as_bytes());
    }
    one_segment(&text);
    for safe in [escaped(&text), shown(&text)] {
        assert!(!safe.contains(is_unsafe), "{safe:?}");
    }
    assert_eq!(escaped(&escaped(&text)), escaped(&text), "twice is once");
}

/// A review in which an API server could have written everything but `namespace`.
pub(crate) fn seed(namespace: &str) -> Value {
    let request = json!({
        "uid": "u", "operation": "CREATE", "namespace": namespace, "name": "", "subResource": "",
        "resource": { "group": "", "version": "v1", "resource": "pods" },
        "object": { "metadata": { "name": "web", "generateName": "", "namespace": "" }, "spec": { "containers": [] } },
    });
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
}

/// What the bytes make the operator ask for, if they are a review.
fn asked(bytes: &[u8]) {
    match Review::parse(bytes) {
        Ok(review) => {
            if let Some(namespace) = review.needs_namespace(&POLICIES) {
                assert!(is_dns_label(namespace), "{namespace:?}");
                assert_eq!(segment(namespace).as_deref(), Ok(namespace));
            }
            let caller = Caller { call: Call::Mutate, revision: None, policies: &POLICIES, listed: None };
            let answer = review.answer(&caller, &crate::inject::site(true), None);
            for warning in
                serde_json::from_slice::<Value>(&answer.body).expect("an answer is JSON")["response"]["warnings"]
                    .as_array()
                    .into_iter()
                    .flatten()
            {
                assert!(!warning.as_str().unwrap_or_default().contains(is_unsafe), "{warning}");
            }
        }
        Err(invalid) => {
            let message = invalid.to_string();
            assert!(message.len() < 4096 && !message.contains(is_unsafe), "{message:?}");
        }
    }
    let Ok(review) = author::Review::parse(bytes) else { return };
    match review.judgement() {
        // Of the new policy, and of the old one.
        Judgement::Asks(questions) => assert!(questions.len() <= 2 * author::QUESTIONS),
        Judgement::AsksAboutStored(name) => assert!(is_policy_name(&name), "{name:?}"),
        Judgement::Refused(message) => assert!(message.len() < 4096 && !message.contains(is_unsafe), "{message:?}"),
        Judgement::Allowed | Judgement::Probed => {}
    }
}

/// The text as a part of a path, if it can be one, is decoded to itself and ends nothing.
fn one_segment(text: &str) {
    let Ok(encoded) = segment(text) else { return };
    assert!(!encoded.is_empty() && !matches!(&*encoded, "." | ".."), "{encoded:?}");
    assert!(encoded.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#\\\"<>".contains(&byte)), "{encoded:?}");
    let mut decoded = Vec::new();
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        decoded.push(match byte {
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).expect("two digits")
            }
            byte => byte,
        });
    }
    assert!(!decoded.contains(&b'/') && !decoded.contains(&b'%'), "{encoded:?}");
    assert_eq!(decoded, text.as_bytes());
}
