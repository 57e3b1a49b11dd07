//! Answers admission reviews: converts request bytes to answer bytes. Pure.
//!
//! # Calls that cannot be answered
//! A webhook has two ways to refuse. A review with `allowed: false` rejects the create under any `failurePolicy`. Any
//! HTTP status but 200, a timeout, or an unreadable answer is a failed call. Then `failurePolicy` decides: under
//! `Ignore` the API server admits the create, counts it (`apiserver_admission_webhook_fail_open_count`) and notes it in
//! the audit log (apiserver, `webhook/mutating/dispatcher.go`, `ErrCallingWebhook`). So the answer to an invalid review
//! is HTTP 400, even if its `uid` is readable: an answer with `allowed: true` would bypass `Fail` and hide the fault. A
//! patch that does not apply must never be sent, because the creator gets an HTTP 500 for it, even under `Ignore`.
//!
//! # Hostile reviews
//! Callers are not authenticated, so every field is hostile until [`Review::parse`] has checked its spelling. The
//! namespace is that of the request: it replaces `metadata.namespace` of the objects before any decision. API servers
//! themselves send the names of new objects before they check them, so a wrong name is a fault of the creator.
//!
//! # Ignored requests
//! Everything but a CREATE or UPDATE of an object in a namespace, and every resource that no policy targets. An UPDATE
//! concerns only the policies whose target lists it.

pub mod author;
pub mod record;

use crate::api::code::Code;
use crate::api::{is_dns_label, is_group};
use crate::decision::{Decision, JUDGED, Left, Outcome, Side};
use crate::inject::{Loss, undo_anywhere};
use crate::naming::{PROBE, PROBE_REFUSE, PROBE_UNSEEN};
use crate::outside::{NAME, beginning, escaped, escaped_lines, is_segment, shown};
use crate::policy::{Policies, Policy, Site};
use crate::workload::{Kind, Workload};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The largest accepted review, in bytes: two objects of 3 MiB, the most that an API server reads in one request
/// (apiserver, `MaxRequestBodyBytes`), and 64 KiB for the rest, such as the user's groups. A review of a create has one
/// object, and that of an update also the old one.
pub const LARGEST: usize = 2 * (3 << 20) + (64 << 10);
/// The most warnings in an answer, and the longest warning in bytes. The API server cuts longer ones
/// (`apiserver/pkg/endpoints/filters/warning.go`: 256 each, 4096 together).
const WARNINGS: (usize, usize) = (4, 240);
/// The longest UID of a request, in bytes. API servers send 36.
const UID: usize = 128;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The call of a MutatingWebhookConfiguration, which adds and never rejects.
    Mutate,
    /// The call of a ValidatingWebhookConfiguration, which rejects and never adds.
    Validate,
}

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

fn invalid(message: impl Into<String>) -> Invalid {
    Invalid::NoReview(message.into())
}

/// A valid review.
#[derive(Debug)]
pub struct Review {
    /// The API version of the request, which the answer repeats.
    api_version: String,
    request: Request,
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
fn expect(is_right: bool, field: &str, text: &str, expected: &str) -> Result<(), Invalid> {
    if is_right { Ok(()) } else { Err(invalid(format!("`request.{field}` is `{}`, not {expected}", shown(text)))) }
}

/// Checks the names in `metadata`, the metadata of the `field` of the request. Each may be missing.
fn check_names(field: &str, metadata: &Value) -> Result<(), Invalid> {
    type Rule<'a> = (&'a str, &'a dyn Fn(&str) -> bool);
    let is_prefix = |text: &str| text.len() <= NAME && !text.contains(['/', '%']);
    let rules: [Rule<'_>; 3] = [("name", &is_segment), ("generateName", &is_prefix), ("namespace", &is_dns_label)];
    for (key, is_right) in rules {
        match &metadata[key] {
            Value::Null => {}
            Value::String(text) if text.is_empty() || is_right(text) => {}
            other => {
                let text = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                return Err(no_name(&format!("{field}.metadata.{key}"), &text));
            }
        }
    }
    Ok(())
}

fn no_name(field: &str, text: &str) -> Invalid {
    Invalid::NoName(format!("`request.{field}` is `{}`, which no API server stores", shown(text)))
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    uid: String,
    resource: Resource,
    sub_resource: String,
    namespace: String,
    /// Empty before the server has made a name of `generateName`.
    name: String,
    operation: String,
    #[serde(deserialize_with = "object")]
    object: Value,
    #[serde(deserialize_with = "object")]
    old_object: Value,
    dry_run: Option<bool>,
}

/// The object without its `managedFields`, because decisions do not use them, and they are larger than the rest of a
/// small object.
fn object<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    Part::Object.deserialize(deserializer)
}

/// A part of an object during parsing.
#[derive(Clone, Copy)]
enum Part {
    Object,
    Metadata,
}

impl<'de> DeserializeSeed<'de> for Part {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let value = match (self, key.as_str()) {
                (Part::Object, "metadata") => fields.next_value_seed(Part::Metadata)?,
                (Part::Metadata, "managedFields") => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                _ => fields.next_value()?,
            };
            read.insert(key, value);
        }
        Ok(Value::Object(read))
    }
}

/// The resource and version through which an object was posted.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct Resource {
    pub(super) group: String,
    version: String,
    pub(super) resource: String,
}

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
    warnings: Vec<String>,
}

impl Response<'_> {
    fn with_patch(self, patch: &Patch) -> Self {
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

/// An answer and its decision.
#[derive(Debug)]
pub struct Answer {
    /// The review to send back, as valid JSON.
    pub body: Vec<u8>,
    /// The decision, if there was one.
    pub decided: Option<Decided>,
}

/// The decision on one object.
#[derive(Debug)]
pub struct Decided {
    /// The kind of the call.
    pub call: Call,
    /// Whether the object will not be stored. Dry runs are not counted and cause no events.
    pub is_dry_run: bool,
    /// The object as received.
    pub workload: Workload,
    /// The decisions of the policies.
    pub decision: Decision,
}

/// The report of one call on one policy.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The policy.
    pub policy: &'a Arc<Policy>,
    /// The outcome.
    pub outcome: Outcome,
    /// The deciding row; none if the template was injected.
    pub row: Option<u8>,
    /// The reason.
    pub code: Code,
    /// The compared values; empty if the template was injected.
    pub detail: &'a str,
}

impl Decided {
    /// The reports of this call. Each result is reported by exactly one of the two calls. The mutating call reports
    /// injected, skipped and failed policies. The validating call reports rejections and the results of validations. A
    /// rejected object gets no injection.
    pub fn told(&self) -> Vec<Told<'_>> {
        let is_refused = self.decision.refusal().is_some();
        let injected = self.decision.inject.iter().filter(|_| self.call == Call::Mutate && !is_refused);
        let injected = injected.map(|policy| Told {
            policy,
            outcome: Outcome::Injected,
            row: None,
            code: Code::Programmed,
            detail: "",
        });
        let is_told = |left: &&Left| {
            let by_validation = left.outcome == Outcome::Rejected || left.reason.row == JUDGED;
            by_validation == (self.call == Call::Validate)
        };
        let rest = self.decision.rest.iter().filter(is_told).map(|left| Told {
            policy: &left.policy,
            outcome: left.outcome,
            row: Some(left.reason.row),
            code: left.reason.code,
            detail: &left.reason.detail,
        });
        injected.chain(rest).collect()
    }
}

impl Request {
    /// Checks the spelling of everything that says which object it is about.
    fn check(&self) -> Result<(), Invalid> {
        check_uid(&self.uid)?;
        check_resource(&self.operation, &self.resource, &self.sub_resource)?;
        // Empty for objects of the cluster.
        let is_namespace = self.namespace.is_empty() || is_dns_label(&self.namespace);
        expect(is_namespace, "namespace", &self.namespace, "the name of a Namespace, which is a DNS label")?;
        if !self.name.is_empty() && !is_segment(&self.name) {
            return Err(no_name("name", &self.name));
        }
        check_names("object", &self.object["metadata"])?;
        check_names("oldObject", &self.old_object["metadata"])
    }
}

impl Review {
    /// Parses `body`. The time grows linearly with its length.
    ///
    /// # Errors
    /// The fault of the body. Its message is safe to show, and short.
    ///
    /// # Guarantees
    /// The namespace is empty or a DNS label, and the names can be segments of a path.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let (api_version, request): (_, Request) = Envelope::open(body)?;
        request.check()?;
        let review = Self { api_version, request };
        let Request { object, old_object, operation, .. } = &review.request;
        let needed = [("object", object), ("oldObject", old_object)];
        let needed = &needed[..if operation == UPDATE { 2 } else { 1 }];
        match needed.iter().find(|(_, object)| review.is_of_interest() && !object["metadata"].is_object()) {
            Some((field, _)) => Err(invalid(format!(
                "`request.{field}` is missing, or has no `metadata`, though `operation` is {operation}"
            ))),
            None => Ok(review),
        }
    }

    /// The namespace whose Namespace object is needed for the answer: a policy that targets this resource reads more
    /// than its name.
    pub fn needs_namespace(&self, policies: &Policies) -> Option<&str> {
        if !policies.read_namespaces() || !self.is_of_interest() {
            return None;
        }
        let kind = self.kind(policies)?;
        let acts = |policy: &Policy| self.request.operation != UPDATE || policy.acts_on_update(kind);
        let reads =
            policies.iter().any(|policy| policy.kinds.contains(kind) && acts(policy) && policy.reads_namespaces());
        reads.then_some(self.request.namespace.as_str())
    }

    /// The answer to `call` of the registration with the given `revision`, if that registration has been seen.
    /// `policies` are those in effect by webhook, and `namespace` is the object for [`Self::needs_namespace`]. Without
    /// it, policies that read it fail. A validating call uses only the policies that are `listed`, if the list is
    /// known, because others may have come into effect after the mutating call.
    ///
    /// # Guarantees
    /// Pure. A mutating call never rejects, and its patch applies to the received object. A dry run gets the same
    /// answer.
    pub fn answer(
        self,
        call: Call,
        revision: Option<&str>,
        policies: &Policies,
        listed: Option<&BTreeSet<String>>,
        site: &Site,
        namespace: Option<Arc<Value>>,
    ) -> Answer {
        let Self { api_version, request } = self;
        if !is_of_interest(&request) {
            return Answer { body: written(&api_version, allowed(&request.uid)), decided: None };
        }
        if let Some(body) = probe(&api_version, &request, call, revision, site) {
            return Answer { body, decided: None };
        }
        let Some(kind) = kind(&request.resource, policies) else {
            return Answer { body: written(&api_version, allowed(&request.uid)), decided: None };
        };
        let Request { uid, resource, object, old_object, namespace: name, operation, dry_run, .. } = request;
        let is_update = operation == UPDATE;
        let object = if is_update { object } else { created(object) };
        let workload = placed(Workload::new(kind, object).within(namespace), &name, call, is_update);
        let old = is_update.then(|| placed(workload.with_body(old_object), &name, call, is_update));
        let is_asked = |policy: &Policy| {
            policy.targets_of(kind).any(|target| {
                let is_posted = target.group == resource.group && target.version == resource.version;
                (target.version == "*" || is_posted) && (!is_update || target.acts_on_update())
            })
        };
        let is_listed = |policy: &Policy| listed.is_none_or(|listed| listed.contains(&policy.name));
        let is_judge = |policy: &Policy| is_asked(policy) && is_listed(policy);
        let (response, decision) = match (call, &old) {
            (Call::Mutate, None) => mutate(allowed(&uid), &workload, policies, site, is_asked),
            (Call::Validate, None) => validate(allowed(&uid), &workload, policies, site, is_judge),
            (Call::Mutate, Some(old)) => mutate_update(allowed(&uid), [old, &workload], policies, site, is_asked),
            (Call::Validate, Some(old)) => validate_update(allowed(&uid), [old, &workload], policies, site, is_judge),
        };
        let body = written(&api_version, response);
        let decided = Decided { call, is_dry_run: dry_run == Some(true), workload, decision };
        // Most updates concern no policy.
        let is_told = !is_update || !decided.told().is_empty();
        Answer { body, decided: is_told.then_some(decided) }
    }

    fn is_of_interest(&self) -> bool {
        is_of_interest(&self.request)
    }

    fn kind<'a>(&self, policies: &'a Policies) -> Option<&'a Arc<Kind>> {
        kind(&self.request.resource, policies)
    }
}

/// `object` as an API server creates it: without a deletion time. Servers below 1.25 take it away only after the mutating
/// calls, so otherwise it would keep every policy out of an object that then lives on.
fn created(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("deletionTimestamp");
    }
    object
}

/// `workload`, which came without its namespace, as decisions need it.
fn placed(mut workload: Workload, namespace: &str, call: Call, is_update: bool) -> Workload {
    let metadata = &mut workload.body["metadata"];
    // The request has the namespace even if the object does not.
    metadata["namespace"] = Value::from(namespace);
    if call == Call::Validate || is_update {
        // On 1.13, the server itself may have added initializers since the mutating call (plugin `Initializers`). Whether
        // the object was posted with its own is unknown now, and validations must not depend on it.
        metadata.as_object_mut().map(|metadata| metadata.remove("initializers"));
    }
    workload
}

const CREATE: &str = "CREATE";
const UPDATE: &str = "UPDATE";

/// Whether an object in a namespace is created or changed.
fn is_of_interest(request: &Request) -> bool {
    let is_acted_on = [CREATE, UPDATE].contains(&request.operation.as_str());
    is_acted_on && request.sub_resource.is_empty() && !request.namespace.is_empty()
}

/// The kind of the resource, as the policies that target it define it.
fn kind<'a>(resource: &Resource, policies: &'a Policies) -> Option<&'a Arc<Kind>> {
    policies.kinds().find(|kind| kind.resource == resource.resource && kind.is_in(&resource.group))
}

pub(super) fn allowed(uid: &str) -> Response<'_> {
    Response { uid, allowed: true, ..Response::default() }
}

pub(super) fn written(api_version: &str, response: Response<'_>) -> Vec<u8> {
    let answer = Answered { api_version, kind: "AdmissionReview", response };
    serde_json::to_vec(&answer).expect("an answer is JSON")
}

/// The answer to a probe; none for other requests.
fn probe(api_version: &str, request: &Request, call: Call, revision: Option<&str>, site: &Site) -> Option<Vec<u8>> {
    let metadata = &request.object["metadata"];
    let is_meant = request.operation == CREATE && request.namespace == site.operator_namespace;
    let asked = metadata["labels"].get(PROBE).filter(|_| is_meant)?;
    let response = allowed(&request.uid);
    Some(match (call, revision) {
        (Call::Mutate, revision) => {
            written(api_version, response.with_patch(&annotated(metadata, revision.unwrap_or(PROBE_UNSEEN))))
        }
        (Call::Validate, Some(revision)) if asked == PROBE_REFUSE => {
            written(api_version, response.refused(&format!("the probe asks to be refused by registration {revision}")))
        }
        _ => written(api_version, response),
    })
}

fn annotated(metadata: &Value, revision: &str) -> Patch {
    let key = PROBE.replace('/', "~1");
    // Another engine may have answered before, while a resource moves between engines.
    let answers = metadata["annotations"][PROBE].as_str().into_iter().chain([revision]);
    let value = answers.collect::<Vec<_>>().join(",");
    let operation = match metadata["annotations"].is_object() {
        true => json!({ "op": "add", "path": format!("/metadata/annotations/{key}"), "value": value }),
        false => json!({ "op": "add", "path": "/metadata/annotations", "value": { PROBE: value } }),
    };
    serde_json::from_value(json!([operation])).expect("the shape is fixed")
}

fn mutate<'a>(
    response: Response<'a>,
    workload: &Workload,
    policies: &Policies,
    site: &Site,
    is_asked: impl Fn(&Policy) -> bool,
) -> (Response<'a>, Decision) {
    let mut decision = Decision::of(policies, workload, site);
    decision.retain(is_asked);
    patched(response, workload, decision)
}

/// The patch of `decision` about `workload`, with a warning for each policy that fails.
fn patched<'a>(response: Response<'a>, workload: &Workload, mut decision: Decision) -> (Response<'a>, Decision) {
    let patch = decision.plan(workload);
    let failed = decision.rest.iter().filter(|left| left.outcome == Outcome::Failed && left.reason.row != JUDGED);
    let warnings = failed.take(WARNINGS.0).map(|left| warning(left, workload)).collect();
    (Response { warnings, ..response }.with_patch(&patch), decision)
}

/// Gives back what an update from `old` to `new` takes away.
fn mutate_update<'a>(
    response: Response<'a>,
    [old, new]: [&Workload; 2],
    policies: &Policies,
    site: &Site,
    acts: impl Fn(&Policy) -> bool,
) -> (Response<'a>, Decision) {
    let decision = Decision::of_update(policies, [old.into(), new.into()], site, acts, |_| true);
    patched(response, new, decision)
}

/// The warning for the creator about a policy that admits the object without its sidecar.
fn warning(left: &Left, workload: &Workload) -> String {
    let reason = &left.reason;
    let text = format!(
        "SidecarPolicy `{}` does not inject this {}: {}: {}",
        left.policy.name,
        workload.kind_name(),
        reason.code,
        reason.detail
    );
    beginning(&escaped(&text), WARNINGS.1).to_owned()
}

/// Evaluates the policies on the object without our additions. The additions of one policy must not make another one
/// match, as in a decision by all policies at once.
fn validate<'a>(
    response: Response<'a>,
    stored: &Workload,
    policies: &Policies,
    site: &Site,
    is_asked: impl Fn(&Policy) -> bool,
) -> (Response<'a>, Decision) {
    let before = without_ours(stored, policies);
    let before = before.as_ref().unwrap_or(stored);
    let mut decision = Decision::of(policies, before, site);
    decision.retain(is_asked);
    decision.judge_stored(before, stored);
    judged(response, stored, decision)
}

/// `stored` without what `policies` have added in its current form; none if there is nothing of it. A marker takes away
/// only what its policy adds: otherwise it could hide content of the user's from selectors and expressions.
fn without_ours(stored: &Workload, policies: &Policies) -> Option<Workload> {
    let is_ours = |policy: &&Arc<Policy>| policy.kinds.contains(&stored.kind) && policy.is_injected(stored);
    let ours: Vec<&Arc<Policy>> = policies.at(stored).filter(is_ours).collect();
    let mut stored = Cow::Borrowed(stored);
    for policy in &ours {
        let view = policy.view(&stored);
        let narrowed = policy.template.marker(&view).and_then(|marker| policy.template.narrowed(&view, &marker));
        if let Some(body) = narrowed {
            stored = Cow::Owned(stored.with_body(body));
        }
    }
    let names: Vec<String> = ours.into_iter().map(|policy| policy.name.clone()).collect();
    let undone = (!names.is_empty()).then(|| undo_anywhere(&stored, &names)).flatten();
    undone.map(|undone| stored.with_body(undone.body))
}

/// Refuses an update from `old` to `new` that newly breaks a validation, or that loses the sidecar of a policy with
/// `Fail` because nothing could give it back.
fn validate_update<'a>(
    response: Response<'a>,
    [old, new]: [&Workload; 2],
    policies: &Policies,
    site: &Site,
    acts: impl Fn(&Policy) -> bool,
) -> (Response<'a>, Decision) {
    let [old_bare, new_bare] = [old, new].map(|stored| without_ours(stored, policies));
    let old = Side { stored: old, bare: old_bare.as_ref().unwrap_or(old) };
    let new = Side { stored: new, bare: new_bare.as_ref().unwrap_or(new) };
    let mut decision = Decision::of_update(policies, [old, new], site, acts, |loss| loss == Loss::Marker);
    decision.judge_stored(new.bare, new.stored);
    let (response, decision) = judged(response, new.stored, decision);
    let kind = new.stored.kind_name();
    let warning = |(policy, code, message): (&Policy, Code, &str)| {
        let text = format!("SidecarPolicy `{}` does not allow this {kind}, as before: {code}: {message}", policy.name);
        beginning(&escaped(&text), WARNINGS.1).to_owned()
    };
    let warnings = decision.excused().take(WARNINGS.0).map(warning).collect();
    (Response { warnings, ..response }, decision)
}

/// Refuses `workload` if `decision` does, with the reason.
fn judged<'a>(response: Response<'a>, workload: &Workload, decision: Decision) -> (Response<'a>, Decision) {
    let refusal = decision.refusal().map(|Left { policy, reason, .. }| {
        format!(
            "SidecarPolicy `{}` refuses this {}: {}: {}",
            policy.name,
            workload.kind_name(),
            reason.code,
            reason.detail
        )
    });
    let response = match refusal {
        Some(message) => response.refused(&message),
        None => response,
    };
    (response, decision)
}

#[cfg(test)]
mod update_tests;

#[cfg(test)]
mod tests {
    use super::*;

    const REVISION: &str = "0123456789abcdef";

    fn site() -> Site {
        Site::new("scpol-system", [], [])
    }

    /// Policies for pods, each with a name and additional fields of its spec.
    fn policies(specs: &[(&str, Value)]) -> Policies {
        let policy = |(name, more): &(&str, Value)| {
            let mut spec = json!({
                "targets": [{ "group": "", "resource": "pods" }],
                "template": { "containers": [{ "name": name, "image": "envoy:1" }] },
            });
            for (field, value) in more.as_object().unwrap() {
                spec[field] = value.clone();
            }
            let object = json!({ "metadata": { "name": name }, "spec": spec });
            Arc::new(Policy::parse(&object, &site()).unwrap())
        };
        Policies::new(specs.iter().map(policy))
    }

    fn pod(metadata: &Value) -> Value {
        json!({ "metadata": metadata, "spec": { "containers": [{ "name": "app", "image": "app:1" }] } })
    }

    fn review(object: &Value) -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u1", "operation": "CREATE", "namespace": "shop", "object": object, "oldObject": null,
                "resource": { "group": "", "version": "v1", "resource": "pods" },
            },
        })
    }

    fn asked(call: Call, review: &Value, policies: &Policies) -> (Value, Option<Decided>) {
        asked_by(call, Some(REVISION), review, policies)
    }

    fn asked_by(call: Call, revision: Option<&str>, review: &Value, policies: &Policies) -> (Value, Option<Decided>) {
        let review = Review::parse(review.to_string().as_bytes()).unwrap();
        let answer = review.answer(call, revision, policies, None, &site(), None);
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        (body["response"].clone(), answer.decided)
    }

    #[test]
    fn what_refuses_judges_by_the_policies_of_its_own_registration() {
        let policies =
            policies(&[("a", json!({ "failurePolicy": "Fail" })), ("b", json!({ "failurePolicy": "Fail" }))]);
        let pod =
            json!({ "metadata": { "name": "web" }, "spec": { "containers": [{ "name": "app", "image": "app:1" }] } });
        let refusal = |listed: Option<&[&str]>| {
            let listed: Option<BTreeSet<String>> = listed.map(|names| names.iter().map(ToString::to_string).collect());
            let review = Review::parse(review(&pod).to_string().as_bytes()).unwrap();
            let answer = review.answer(Call::Validate, Some(REVISION), &policies, listed.as_ref(), &site(), None);
            let body: Value = serde_json::from_slice(&answer.body).unwrap();
            body["response"]["status"]["message"].as_str().unwrap_or_default().to_owned()
        };
        assert!(refusal(None).contains("SidecarPolicy `a`"), "{}", refusal(None));
        assert!(refusal(Some(&["b"])).contains("SidecarPolicy `b`"), "{}", refusal(Some(&["b"])));
        assert_eq!(refusal(Some(&[])), "");
    }

    /// The object of `review` after the patch of `response`.
    fn patched(review: &Value, response: &Value) -> Value {
        let patch = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        let patch: Patch = serde_json::from_slice(&patch).unwrap();
        let mut object = review["request"]["object"].clone();
        json_patch::patch(&mut object, &patch).unwrap();
        object
    }

    fn told(decided: Option<Decided>) -> Vec<String> {
        let decided = decided.unwrap();
        let line = |told: Told<'_>| format!("{} {} {}", told.policy.name, told.outcome.label(), told.code);
        decided.told().into_iter().map(line).collect()
    }

    #[test]
    fn an_object_gets_its_sidecar_wherever_its_namespace_stands_and_passes_then() {
        let policies = policies(&[("envoy", json!({ "failurePolicy": "Fail", "namespaces": ["shop"] }))]);
        for metadata in [json!({ "generateName": "web-" }), json!({ "name": "web", "namespace": "shop" })] {
            let review = review(&pod(&metadata));
            let (response, decided) = asked(Call::Mutate, &review, &policies);
            assert_eq!((&response["uid"], &response["patchType"]), (&json!("u1"), &json!("JSONPatch")));
            assert_eq!(told(decided), ["envoy injected SCP0002"]);
            let stored = patched(&review, &response);
            assert_eq!(stored["spec"]["containers"][1]["name"], "envoy");
            assert_eq!(stored["metadata"]["namespace"], metadata["namespace"], "the patch is for what came");
            let (response, decided) = asked(Call::Validate, &super::tests::review(&stored), &policies);
            assert_eq!((&response["allowed"], told(decided).len()), (&json!(true), 0));
            let (response, decided) = asked(Call::Validate, &review, &policies);
            assert_eq!(response["allowed"], false);
            assert_eq!(response["status"]["code"], 403);
            let message = response["status"]["message"].as_str().unwrap();
            assert!(message.starts_with("SidecarPolicy `envoy` refuses this Pod: SCP0213: "), "{message}");
            assert_eq!(told(decided), ["envoy rejected SCP0213"]);
        }
    }

    #[test]
    fn of_an_object_everything_is_read_but_what_nobody_decides_by() {
        let managed = json!([{ "manager": "kubectl", "fieldsV1": { "f:metadata": { "managedFields": {} } } }]);
        let mut came = pod(&json!({ "name": "web", "labels": { "managedFields": "no" }, "managedFields": managed }));
        came["spec"]["metadata"] = json!({ "managedFields": 1 });
        let read =
            |object: &Value| Review::parse(review(object).to_string().as_bytes()).map(|review| review.request.object);
        let mut expected = came.clone();
        expected["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(read(&came), Ok(expected));
        for metadata in [json!(null), json!(7), json!([]), json!("web")] {
            assert_eq!(read(&json!({ "metadata": metadata })).unwrap_err().status(), 400, "{metadata}");
        }
        for object in [json!(7), json!([]), json!("web"), json!(true)] {
            assert_eq!(read(&object).unwrap_err().status(), 400, "{object}");
        }
        assert!(read(&json!(null)).is_err(), "nothing is created");
        let mut changed = review(&came);
        changed["request"]["operation"] = json!("UPDATE");
        assert!(Review::parse(changed.to_string().as_bytes()).is_err(), "nothing was there");
        changed["request"]["oldObject"] = came.clone();
        let read_old = Review::parse(changed.to_string().as_bytes()).unwrap().request.old_object;
        assert!(read_old["metadata"].get("managedFields").is_none());
        let mut deleted = review(&json!(null));
        deleted["request"]["operation"] = json!("DELETE");
        assert!(Review::parse(deleted.to_string().as_bytes()).is_ok());
    }

    #[test]
    fn what_no_api_server_writes_is_refused_and_the_field_is_named() {
        let long = "x".repeat(300);
        let hostile = [
            ("/request/namespace", json!("kube-system/pods"), "namespace"),
            ("/request/namespace", json!("default/pods?limit=1"), "namespace"),
            ("/request/namespace", json!("../nodes"), "namespace"),
            ("/request/namespace", json!("kube-system/pods?watch=true"), "namespace"),
            ("/request/namespace", json!("shop#"), "namespace"),
            ("/request/namespace", json!("Shop"), "namespace"),
            ("/request/namespace", json!("shop\n"), "namespace"),
            ("/request/namespace", json!("x".repeat(64)), "namespace"),
            ("/request/name", json!("../web"), "name"),
            ("/request/name", json!(".."), "name"),
            ("/request/name", json!("a%2fb"), "name"),
            ("/request/name", json!("x".repeat(1025)), "name"),
            ("/request/uid", json!("u\u{1b}[2J"), "uid"),
            ("/request/uid", json!(long), "uid"),
            ("/request/operation", json!("create"), "operation"),
            ("/request/operation", json!(""), "operation"),
            ("/request/resource/resource", json!("pods/exec"), "resource.resource"),
            ("/request/resource/resource", json!("Pods"), "resource.resource"),
            ("/request/resource/version", json!("v1/pods"), "resource.version"),
            ("/request/resource/group", json!("apps/v1"), "resource.group"),
            ("/request/resource/group", json!("a.".repeat(200)), "resource.group"),
            ("/request/subResource", json!("status/.."), "subResource"),
            ("/request/object/metadata/name", json!("a/b"), "object.metadata.name"),
            ("/request/object/metadata/name", json!(7), "object.metadata.name"),
            ("/request/object/metadata/generateName", json!("a/"), "object.metadata.generateName"),
            ("/request/object/metadata/namespace", json!("a/b"), "object.metadata.namespace"),
            ("/request/oldObject/metadata/name", json!("a/b"), "oldObject.metadata.name"),
        ];
        for (pointer, value, field) in hostile {
            let refused = Review::parse(with(pointer, &value).to_string().as_bytes()).unwrap_err();
            let message = refused.to_string();
            assert!(message.starts_with(&format!("SCP0212: `request.{field}` is ")), "{message}");
            assert_eq!(
                (refused.status(), refused.is_of_the_creator()),
                (400, field.contains("ame") && field != "namespace")
            );
            assert!(message.chars().count() < 500 && !message.contains(char::is_control), "{message}");
        }
        let echoed = with("/request/dryRun", &json!(format!("\u{1b}{}", "x".repeat(1 << 20))));
        let message = Review::parse(echoed.to_string().as_bytes()).unwrap_err().to_string();
        assert!(message.len() < 500 && !message.contains('\u{1b}'), "{message}");
    }

    #[test]
    fn what_api_servers_write_is_taken() {
        let real = [
            ("/request/name", json!("")),
            ("/request/name", json!("system:node:a.b")),
            ("/request/name", json!("web-0.shop.example")),
            ("/request/namespace", json!("")),
            ("/request/namespace", json!("kube-system")),
            ("/request/uid", json!("705ab4f5-6393-11e8-b7cc-42010a800002")),
            ("/request/operation", json!("CONNECT")),
            (
                "/request/resource",
                json!({ "group": "rbac.authorization.k8s.io", "version": "v1beta1", "resource": "rolebindings" }),
            ),
            ("/request/resource", json!({ "group": "argoproj.io", "version": "v1alpha1", "resource": "rollouts" })),
            ("/request/subResource", json!("ephemeralcontainers")),
            ("/request/object/metadata/name", json!(null)),
            ("/request/object/metadata/name", json!("system:x y")),
            ("/request/object/metadata/generateName", json!("web-")),
            ("/request/object/metadata/namespace", json!("")),
        ];
        for (pointer, value) in real {
            let review = with(pointer, &value);
            assert!(Review::parse(review.to_string().as_bytes()).is_ok(), "{review}");
        }
    }

    /// A review with `value` at `pointer`.
    fn with(pointer: &str, value: &Value) -> Value {
        let mut review = review(&pod(&json!({ "name": "web" })));
        review["request"]["oldObject"] = review["request"]["object"].clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        review.pointer_mut(parent).unwrap()[key] = value.clone();
        review
    }

    #[test]
    fn what_is_no_create_or_nobodys_target_is_left_alone() {
        let policies = policies(&[("envoy", json!({}))]);
        let changes = [
            ("/request/operation", json!("UPDATE")),
            ("/request/operation", json!("DELETE")),
            ("/request/namespace", json!("")),
            ("/request/resource/resource", json!("secrets")),
            ("/request/resource/group", json!("other.example")),
        ];
        for (pointer, value) in changes {
            let mut review = review(&pod(&json!({ "name": "web" })));
            review["request"]["oldObject"] = review["request"]["object"].clone();
            *review.pointer_mut(pointer).unwrap() = value;
            let (response, decided) = asked(Call::Mutate, &review, &policies);
            assert_eq!(response, json!({ "uid": "u1", "allowed": true }), "{pointer}");
            assert!(decided.is_none(), "{pointer}");
        }
        let mut binding = review(&json!({ "target": {} }));
        binding["request"]["subResource"] = json!("binding");
        assert_eq!(asked(Call::Mutate, &binding, &policies).0, json!({ "uid": "u1", "allowed": true }));
    }

    #[test]
    fn a_named_version_is_for_what_is_posted_through_it_and_conflicts_are_seen_all_the_same() {
        let at = |version: &str| json!({ "targets": [{ "group": "", "version": version, "resource": "pods" }] });
        let review = review(&pod(&json!({ "name": "web" })));
        let (response, decided) =
            asked(Call::Mutate, &review, &policies(&[("old", at("v0")), ("new", at("v1")), ("any", json!({}))]));
        assert_eq!(told(decided), ["any injected SCP0002", "new injected SCP0002"]);
        assert!(!patched(&review, &response).to_string().contains("old"));
    }

    #[test]
    fn each_thing_is_told_by_one_of_the_two_calls_and_the_creator_is_warned() {
        let conflict = json!([{ "name": "app", "image": "other:1" }]);
        let policies = policies(&[
            ("far", json!({ "namespaces": ["other"] })),
            ("lenient", json!({ "template": { "containers": conflict } })),
            ("plain", json!({})),
        ]);
        let review = review(&pod(&json!({ "name": "web" })));
        let (response, decided) = asked(Call::Mutate, &review, &policies);
        assert_eq!(told(decided), ["plain injected SCP0002", "far skipped SCP0108", "lenient failed SCP0200"]);
        let warnings = response["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].as_str().unwrap().starts_with("SidecarPolicy `lenient` does not inject this Pod: SCP0200: ")
        );
        let (response, decided) = asked(Call::Validate, &super::tests::review(&patched(&review, &response)), &policies);
        assert_eq!((response["allowed"].clone(), told(decided).len()), (json!(true), 0));

        let strict = [
            ("strict", json!({ "failurePolicy": "Fail", "template": { "containers": conflict } })),
            ("plain", json!({})),
        ];
        let strict = super::tests::policies(&strict);
        let (response, decided) = asked(Call::Mutate, &review, &strict);
        assert_eq!((response["allowed"].clone(), told(decided).len()), (json!(true), 0), "the other call refuses");
        let (_, decided) = asked(Call::Validate, &super::tests::review(&patched(&review, &response)), &strict);
        assert_eq!(told(decided), ["strict rejected SCP0200"]);
    }

    /// As the pods of a workload that was injected before the other policy came.
    #[test]
    fn a_policy_of_a_higher_or_equal_priority_refuses_nothing_that_has_the_content_of_another() {
        let with = |image: &str, priority: i32, failure: &str| {
            let container = json!({ "name": "proxy", "image": image });
            json!({ "priority": priority, "failurePolicy": failure, "template": { "containers": [container] } })
        };
        let low = ("low", with("low:1", 0, "Fail"));
        let review = review(&pod(&json!({ "name": "web" })));
        let injected = patched(&review, &asked(Call::Mutate, &review, &policies(std::slice::from_ref(&low))).0);
        let again = super::tests::review(&injected);
        for priority in [0, 10] {
            let policies = policies(&[low.clone(), ("high", with("high:1", priority, "Ignore"))]);
            let (response, _) = asked(Call::Mutate, &again, &policies);
            assert!(response["patch"].is_null(), "{priority}: {response}");
            let (response, decided) = asked(Call::Validate, &again, &policies);
            assert_eq!(response["allowed"], true, "{priority}: {:?}", told(decided));
        }
    }

    #[test]
    fn an_authorised_bypass_is_nobodys_business_and_validations_hold_all_the_same() {
        let demand = json!({ "validations": [{ "expression": "has(object.metadata.labels)", "message": "label it" }] });
        let policies = policies(&[("envoy", demand)]);
        let own = json!({ "name": "web", "initializers": { "pending": [{ "name": "other.example.org" }] } });
        let review = review(&pod(&own));
        let (response, decided) = asked(Call::Mutate, &review, &policies);
        assert_eq!((response["patch"].is_null(), told(decided)), (true, vec!["envoy skipped SCP0100".to_owned()]));
        let (response, decided) = asked(Call::Validate, &review, &policies);
        assert_eq!((&response["allowed"], told(decided)), (&json!(false), vec!["envoy rejected SCP0210".to_owned()]));
    }

    /// [`update_tests`](super::update_tests) has the decisions, which both engines share.
    #[test]
    fn an_update_is_told_only_if_it_concerns_a_policy_and_never_twice() {
        let deployments = json!([{ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] }]);
        let strict = json!({ "targets": deployments, "failurePolicy": "Fail" });
        let policies = policies(&[
            ("envoy", strict),
            ("creates", json!({ "targets": [{ "group": "apps", "resource": "deployments" }] })),
        ]);
        let deployment = json!({ "metadata": { "name": "web" }, "spec": { "template": pod(&json!({})) } });
        let mut create = review(&deployment);
        create["request"]["resource"] = json!({ "group": "apps", "version": "v1", "resource": "deployments" });
        let stored = patched(&create, &asked(Call::Mutate, &create, &policies).0);
        let update = |old: &Value, new: &Value| {
            let mut update = create.clone();
            update["request"]["operation"] = json!("UPDATE");
            (update["request"]["oldObject"], update["request"]["object"]) = (old.clone(), new.clone());
            update
        };
        let mut scaled = stored.clone();
        scaled["spec"]["replicas"] = json!(3);
        for call in [Call::Mutate, Call::Validate] {
            let (response, decided) = asked(call, &update(&stored, &scaled), &policies);
            assert_eq!((response, decided.is_none()), (json!({ "uid": "u1", "allowed": true }), true), "{call:?}");
        }
        let lost = update(&stored, &deployment);
        let (response, decided) = asked(Call::Mutate, &lost, &policies);
        assert_eq!(told(decided), ["envoy injected SCP0002"]);
        let restored = patched(&lost, &response);
        assert!(asked(Call::Validate, &update(&stored, &restored), &policies).1.is_none());
        // Without the first call, the second one refuses.
        let (response, decided) = asked(Call::Validate, &lost, &policies);
        assert_eq!((&response["allowed"], told(decided)), (&json!(false), vec!["envoy rejected SCP0213".to_owned()]));
        // A probe is a create.
        let mut probe = update(&stored, &deployment);
        probe["request"]["namespace"] = json!("scpol-system");
        probe["request"]["object"]["metadata"]["labels"] = json!({ PROBE: PROBE_REFUSE });
        assert_eq!(asked(Call::Validate, &probe, &policies).0["allowed"], true);
    }

    #[test]
    fn a_dry_run_is_answered_like_any_other_and_marked() {
        let policies = policies(&[("envoy", json!({}))]);
        let mut review = review(&pod(&json!({ "name": "web" })));
        let (response, decided) = asked(Call::Mutate, &review, &policies);
        assert!(!decided.unwrap().is_dry_run);
        review["request"]["dryRun"] = json!(true);
        let (dry, decided) = asked(Call::Mutate, &review, &policies);
        assert_eq!(dry, response);
        assert!(decided.unwrap().is_dry_run);
    }

    #[test]
    fn a_probe_gets_the_revision_and_nothing_else_and_only_in_the_operators_namespace() {
        let policies = policies(&[("envoy", json!({}))]);
        let probe = |value: &str, annotations: Value| {
            let mut review =
                review(&pod(&json!({ "name": "p", "labels": { PROBE: value }, "annotations": annotations })));
            review["request"]["namespace"] = json!("scpol-system");
            review
        };
        for annotations in [json!(null), json!({}), json!({ "a": "b" })] {
            let review = probe("", annotations.clone());
            let (response, decided) = asked(Call::Mutate, &review, &policies);
            let mut expected = review["request"]["object"].clone();
            expected["metadata"]["annotations"][PROBE] = json!(REVISION);
            assert_eq!(patched(&review, &response), expected);
            assert!(decided.is_none());
            assert_eq!(asked(Call::Validate, &review, &policies).0["allowed"], true);
        }
        let review = probe("", json!({}));
        let unseen = patched(&review, &asked_by(Call::Mutate, None, &review, &policies).0);
        assert_eq!(
            unseen["metadata"]["annotations"][PROBE], PROBE_UNSEEN,
            "whoever has not seen the registration says so"
        );
        let (response, _) = asked(Call::Validate, &probe(PROBE_REFUSE, json!({})), &policies);
        assert_eq!(response["allowed"], false);
        assert!(response["status"]["message"].as_str().unwrap().contains(REVISION));
        let mut elsewhere = probe(PROBE_REFUSE, json!({}));
        elsewhere["request"]["namespace"] = json!("shop");
        assert_eq!(asked(Call::Validate, &elsewhere, &policies).0["allowed"], true);
        assert_eq!(
            patched(&elsewhere, &asked(Call::Mutate, &elsewhere, &policies).0)["spec"]["containers"][1]["name"],
            "envoy"
        );
    }

    #[test]
    fn a_namespace_is_asked_for_only_where_somebody_reads_it() {
        let needs = |policies: &Policies| {
            let review = Review::parse(review(&pod(&json!({ "name": "web" }))).to_string().as_bytes()).unwrap();
            review.needs_namespace(policies).map(str::to_owned)
        };
        let selector = json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } } });
        // No level of the Pod Security Standards forbids this template.
        let harmless = json!({ "template": { "env": [{ "name": "A", "value": "b" }] } });
        assert_eq!(needs(&policies(&[("envoy", harmless.clone())])), None);
        assert_eq!(needs(&policies(&[("envoy", json!({}))])), Some("shop".to_owned()));
        assert_eq!(needs(&policies(&[("envoy", selector.clone())])), Some("shop".to_owned()));
        let elsewhere = json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } }, "targets": [{ "group": "apps", "resource": "deployments" }] });
        assert_eq!(needs(&policies(&[("envoy", elsewhere), ("other", harmless)])), None);
        let (response, decided) =
            asked(Call::Mutate, &review(&pod(&json!({ "name": "web" }))), &policies(&[("envoy", selector.clone())]));
        assert_eq!((response["patch"].is_null(), told(decided)), (true, vec!["envoy failed SCP0209".to_owned()]));
        // For an update only by a policy that acts on updates.
        for (operations, expected) in
            [(json!(["CREATE"]), None), (json!(["CREATE", "UPDATE"]), Some("shop".to_owned()))]
        {
            let mut update = review(&pod(&json!({ "name": "web" })));
            update["request"]["operation"] = json!("UPDATE");
            update["request"]["oldObject"] = update["request"]["object"].clone();
            update["request"]["resource"] = json!({ "group": "apps", "version": "v1", "resource": "deployments" });
            let mut spec = selector.clone();
            spec["targets"] = json!([{ "group": "apps", "resource": "deployments", "operations": operations }]);
            let review = Review::parse(update.to_string().as_bytes()).unwrap();
            assert_eq!(review.needs_namespace(&policies(&[("envoy", spec)])).map(str::to_owned), expected);
        }
    }
}
