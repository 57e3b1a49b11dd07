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
mod calls;
mod envelope;
mod probe;
mod request;

pub use envelope::{Invalid, LARGEST};

use crate::api::code::Code;
use crate::decision::{Decision, JUDGED, Left, Outcome};
use crate::policy::{Policies, Policy, Site};
use crate::workload::Workload;
use envelope::{Envelope, Response, invalid};
use request::Request;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The call of a MutatingWebhookConfiguration, which adds and never rejects.
    Mutate,
    /// The call of a ValidatingWebhookConfiguration, which rejects and never adds.
    Validate,
}

/// A call, and what is known of the registration that makes it.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The kind of the call.
    pub call: Call,
    /// The revision of the registration; none if it has not been seen.
    pub revision: Option<&'a str>,
    /// The policies in effect by webhook.
    pub policies: &'a Policies,
    /// The names of the registered policies, if they are known. A validating call uses only these, because others may have
    /// come into force after the mutating call.
    pub listed: Option<&'a BTreeSet<String>>,
}

/// A valid review.
#[derive(Debug)]
pub struct Review {
    /// The API version of the request, which the answer repeats.
    api_version: String,
    request: Request,
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
        let Request { object, old_object, operation, .. } = &request;
        let needed = [("object", object), ("oldObject", old_object)];
        let needed = &needed[..if request.is_update() { 2 } else { 1 }];
        match needed.iter().find(|(_, object)| request.is_of_interest() && !object["metadata"].is_object()) {
            Some((field, _)) => Err(invalid(format!(
                "`request.{field}` is missing, or has no `metadata`, though `operation` is {operation}"
            ))),
            None => Ok(Self { api_version, request }),
        }
    }

    /// The namespace whose Namespace object is needed for the answer: a policy that targets this resource reads more
    /// than its name.
    pub fn needs_namespace(&self, policies: &Policies) -> Option<&str> {
        if !policies.read_namespaces() || !self.request.is_of_interest() {
            return None;
        }
        let kind = self.request.kind(policies)?;
        let acts = |policy: &Policy| !self.request.is_update() || policy.acts_on_update(kind);
        let reads =
            policies.iter().any(|policy| policy.kinds.contains(kind) && acts(policy) && policy.reads_namespaces());
        reads.then_some(self.request.namespace.as_str())
    }

    /// The answer to `caller`. `namespace` is the object for [`Self::needs_namespace`]. Without it, policies that read it
    /// fail.
    ///
    /// # Guarantees
    /// Pure. A mutating call never rejects, and its patch applies to the received object. A dry run gets the same
    /// answer.
    pub fn answer(self, caller: &Caller<'_>, site: &Site, namespace: Option<Arc<Value>>) -> Answer {
        let Self { api_version, mut request } = self;
        let undecided = |response: Response<'_>| Answer { body: response.written(&api_version), decided: None };
        if !request.is_of_interest() {
            return undecided(Response::allowed(&request.uid));
        }
        if let Some(response) = probe::response(&request, caller, site) {
            return undecided(response);
        }
        let Some(kind) = request.kind(caller.policies) else {
            return undecided(Response::allowed(&request.uid));
        };
        let (old, workload) = request.workloads(caller.call, kind, namespace);
        let is_update = old.is_some();
        let is_listed = |policy: &Policy| {
            caller.call == Call::Mutate || caller.listed.is_none_or(|listed| listed.contains(&policy.name))
        };
        let is_asked = |policy: &Policy| {
            policy.targets_of(kind).any(|target| {
                let is_posted = target.group == request.resource.group && target.version == request.resource.version;
                (target.version == "*" || is_posted) && (!is_update || target.acts_on_update())
            })
        };
        let mut decision =
            calls::decide(caller, (old.as_ref(), &workload), site, |policy| is_asked(policy) && is_listed(policy));
        let body = calls::response(caller.call, &request.uid, &workload, &mut decision).written(&api_version);
        let is_dry_run = request.dry_run == Some(true);
        let decided = Decided { call: caller.call, is_dry_run, workload, decision };
        // Most updates concern no policy.
        let is_told = !is_update || !decided.told().is_empty();
        Answer { body, decided: is_told.then_some(decided) }
    }
}

#[cfg(test)]
mod replaces_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod update_tests;
