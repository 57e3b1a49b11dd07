//! How a review of any kind is read and answered: what all of them have beside their objects.

use crate::api::code::Code;
use crate::api::{is_dns_label, is_group};
use crate::outside::{escaped_lines, shown};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(super) const CREATE: &str = "CREATE";
pub(super) const UPDATE: &str = "UPDATE";
/// The largest accepted review, in bytes: two objects of 3 MiB, the most that an API server reads in one request
/// (apiserver, `MaxRequestBodyBytes`), and 64 KiB for the rest, such as the user's groups. A review of a create has one
/// object, and that of an update also the old one.
pub const LARGEST: usize = 2 * (3 << 20) + (64 << 10);
/// The longest UID of a request, in bytes. API servers send 36.
const UID: usize = 128;

/// The reason why a body is no valid review.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The body is longer than [`LARGEST`].
    #[error(
        "{}: the review is larger than {LARGEST} bytes; an API server reads no object of more than 3 MiB",
        Code::ReviewInvalid
    )]
    TooLarge,
    /// The body is no valid review.
    #[error("{code}: {0}", code = Code::ReviewInvalid)]
    NoReview(String),
    /// A name in the review is none. API servers send such reviews, because they check names after the mutating call,
    /// and reject the object then.
    #[error("{code}: {0}", code = Code::ReviewInvalid)]
    NoName(String),
}

impl Invalid {
    /// The HTTP status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Invalid::TooLarge => 413,
            Invalid::NoReview(_) | Invalid::NoName(_) => 400,
        }
    }

    /// Whether a user can cause it through an API server, which then rejects the object by itself.
    pub fn is_of_the_creator(&self) -> bool {
        matches!(self, Invalid::NoName(_))
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Invalid {
    Invalid::NoReview(message.into())
}

/// The envelope of a request, reduced to the fields that we use.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Envelope<R> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<R>,
}

impl<R: DeserializeOwned> Envelope<R> {
    /// The API version and the request of the review in `body`.
    ///
    /// # Errors
    /// The fault of the body.
    pub(super) fn open(body: &[u8]) -> Result<(String, R), Invalid> {
        if body.len() > LARGEST {
            return Err(Invalid::TooLarge);
        }
        let envelope: Self = serde_json::from_slice(body)
            .map_err(|error| invalid(format!("the body is no AdmissionReview: {}", shown(&error.to_string()))))?;
        if envelope.kind != "AdmissionReview" {
            return Err(invalid(format!("`kind` is `{}`, not `AdmissionReview`", shown(&envelope.kind))));
        }
        if !matches!(envelope.api_version.as_str(), "admission.k8s.io/v1" | "admission.k8s.io/v1beta1") {
            let message = format!(
                "`apiVersion` is `{}`, not `admission.k8s.io/v1` or `admission.k8s.io/v1beta1`",
                shown(&envelope.api_version)
            );
            return Err(invalid(message));
        }
        let request = envelope.request.ok_or_else(|| invalid("`request` is missing"))?;
        Ok((envelope.api_version, request))
    }
}

/// Checks that the answer can be matched to its request.
pub(super) fn check_uid(uid: &str) -> Result<(), Invalid> {
    if uid.is_empty() {
        return Err(invalid("`request.uid` is missing: nothing could be answered to it"));
    }
    let is_printable = uid.len() <= UID && uid.bytes().all(|byte| byte.is_ascii_graphic());
    expect(is_printable, "uid", uid, &format!("at most {UID} printable ASCII characters"))
}

/// Checks what the request does, and to which resource.
pub(super) fn check_resource(operation: &str, resource: &Resource, sub_resource: &str) -> Result<(), Invalid> {
    let Resource { group, version, resource } = resource;
    let (label, is_operation) = ("a lower-case DNS label", [CREATE, UPDATE, "DELETE", "CONNECT"].contains(&operation));
    expect(is_operation, "operation", operation, "CREATE, UPDATE, DELETE or CONNECT")?;
    let is_api_group = group.len() <= 253 && is_group(group);
    expect(is_api_group, "resource.group", group, "an API group, which is empty or a lower-case DNS name")?;
    expect(is_dns_label(version), "resource.version", version, label)?;
    expect(is_dns_label(resource), "resource.resource", resource, label)?;
    expect(sub_resource.is_empty() || is_dns_label(sub_resource), "subResource", sub_resource, label)
}

/// An error that names the `field` of the request and its `text`, unless `is_right`.
pub(super) fn expect(is_right: bool, field: &str, text: &str, expected: &str) -> Result<(), Invalid> {
    if is_right { Ok(()) } else { Err(invalid(format!("`request.{field}` is `{}`, not {expected}", shown(text)))) }
}

/// The resource and version through which an object was posted.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct Resource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
}

/// The review that goes back.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response<'a>,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

impl<'a> Response<'a> {
    pub(super) fn allowed(uid: &'a str) -> Self {
        Self { uid, allowed: true, ..Self::default() }
    }

    /// The review with this response, as JSON.
    pub(super) fn written(self, api_version: &str) -> Vec<u8> {
        let answer = Answered { api_version, kind: "AdmissionReview", response: self };
        serde_json::to_vec(&answer).expect("an answer is JSON")
    }

    pub(super) fn with_patch(self, patch: &Patch) -> Self {
        if patch.is_empty() {
            return self;
        }
        let bytes = serde_json::to_vec(patch).expect("a patch is JSON");
        Self { patch_type: Some("JSONPatch"), patch: Some(STANDARD.encode(bytes)), ..self }
    }

    pub(super) fn refused(self, message: &str) -> Self {
        // The messages of policies and the names of users reach the terminal of the creator.
        let message = escaped_lines(message);
        let status = json!({ "status": "Failure", "reason": "Forbidden", "code": 403, "message": message });
        Self { allowed: false, status: Some(status), ..self }
    }
}
