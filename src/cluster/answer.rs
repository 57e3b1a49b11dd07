//! What an API server says when it rejects a request. What the operator reads in the words of a server is read here, so each
//! wording has one place. Pure.
//!
//! The HTTP status and the reason of an answer do not tell a missing right, a quota and other admission apart: all are 403. So the
//! message decides. Its sources are in Kubernetes: `responsewriters/errors.go` (rights), `plugin/pkg/admission` (quota and
//! Initializers), and the packages `webhook/errors` and `policy/validating` of the apiserver.

use super::client::{chain, said};
use kube::core::Status;
use kube::core::response::StatusDetails;
use std::time::Duration;

/// The reason why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The server answered with an error.
    #[error("{}", answered(.0))]
    Refused(Box<Status>),
    /// No answer, or not in time.
    #[error("the API server cannot be reached: {0}")]
    Away(String),
    /// There was no connection, so the request was not sent.
    #[error("the API server cannot be reached: {0}")]
    Unconnected(String),
    /// The request was not sent, because no path can have one of its names.
    #[error("{0}")]
    Unsent(String),
}

/// Why a server does not take an object, although it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// We lack the right.
    MissingRight,
    /// The namespace would have more than a ResourceQuota allows.
    Quota,
    /// Other admission: a LimitRange, Pod Security, a policy or a webhook.
    Admission,
    /// The API's own rules for the object, or the request is one that the server does not serve.
    Rules,
}

/// The beginning of a message that names no cause.
const REJECTED: &str = "the server rejected our request";

/// Whether `message` is that of a server, or of another webhook, without support for dry runs (apiserver `create.go`,
/// `webhookerrors`).
pub fn is_without_dry_run(message: &str) -> bool {
    ["feature is disabled", "does not support dry run"].iter().any(|words| message.contains(words))
}

impl CallError {
    /// The answer `status`, which came with that HTTP status and `Retry-After`. Its message gets its causes, if it names none.
    pub fn answer(status: Status, code: u16, retry_after: Option<Duration>) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let causes: Vec<_> = causes.map(|cause| cause.message.as_str()).collect();
        let message = if causes.is_empty() || !status.message.starts_with(REJECTED) {
            said(&status.message)
        } else {
            said(&format!("{}: {}", status.message, causes.join("; ")))
        };
        let none = || StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        let mut details = status.details.unwrap_or_else(none);
        details.retry_after_seconds = retry_after.map_or(0, |after| u32::try_from(after.as_secs()).unwrap_or(u32::MAX));
        Self::Refused(Box::new(Status { message, code, details: Some(details), ..status }))
    }

    /// The HTTP status of an answer; 0 if there was no answer.
    pub fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// The server's own words, as they came; without an answer, the reason for that.
    pub fn message(&self) -> &str {
        match self {
            Self::Refused(status) => &status.message,
            Self::Away(why) | Self::Unconnected(why) | Self::Unsent(why) => why,
        }
    }

    /// How long the server asks us to wait, from [`Self::answer`].
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) => Some(status),
            Self::Away(_) | Self::Unconnected(_) | Self::Unsent(_) => None,
        }
    }

    fn says(&self, words: &str) -> bool {
        self.status().is_some_and(|status| status.message.contains(words))
    }

    /// Whether the server answers about the object `name` of that resource itself. It does not if another object is the reason, or if it
    /// does not serve the path.
    pub fn is_about(&self, resource: &str, name: &str) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| details.kind == resource && details.name == name)
    }

    /// Whether we lack a right, and admission is not the reason: the words of RBAC, `User "x" cannot create resource "y"`, or those of
    /// the plugin Initializers.
    pub fn is_missing_right(&self) -> bool {
        let is_authorization = self.says("\" cannot ") && self.says(" resource \"");
        self.code() == 403 && (is_authorization || self.says("update to uninitialized resource denied"))
    }

    /// Whether the plugin Initializers rejects a create, because the client lacks the verb `initialize`.
    pub fn is_initializing_denied(&self) -> bool {
        self.code() == 403 && self.says("create with initializers denied")
    }

    /// Whether the server rejects our impersonation.
    pub fn is_impersonation_denied(&self) -> bool {
        self.code() == 403 && self.says("cannot impersonate")
    }

    /// Whether a ResourceQuota has no room.
    pub fn is_quota_exceeded(&self) -> bool {
        self.code() == 403 && self.says("exceeded quota")
    }

    /// Whether a webhook or a ValidatingAdmissionPolicy has rejected the object. Each chooses its HTTP status.
    pub fn is_denied(&self) -> bool {
        self.says("denied the request") || self.says("denied request")
    }

    /// Whether the server cannot try a request without storing the result, because the feature gate is off. Its words (`create.go`):
    /// "the dryRun alpha feature is disabled"; later versions say "beta".
    pub fn is_dry_run_disabled(&self) -> bool {
        self.code() == 400 && self.says("the dryRun") && self.says("feature is disabled")
    }

    /// Whether the server rejects a create because its namespace is gone, or is being deleted.
    pub fn is_of_deleted_namespace(&self) -> bool {
        match self.status() {
            Some(status) if status.code == 403 => status.message.contains("because it is being terminated"),
            Some(status) if status.code == 404 => status.message.starts_with("namespaces "),
            _ => false,
        }
    }

    /// Whether a patch could not be applied, for example because a test failed. 1.13.5 gives no cause for that, but it gives causes for
    /// an invalid object.
    pub fn is_not_applied(&self) -> bool {
        self.status().is_some_and(|status| status.code == 422 && status.message.starts_with(REJECTED))
    }

    /// Whether a `test` of a JSON Patch has failed: the object is not the one that was read. Most servers name no cause for that, and
    /// name one for an invalid object.
    pub fn is_failed_test(&self) -> bool {
        let Some(status) = self.status() else { return false };
        let has_cause = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
        let is_untold = self.is_not_applied() && !has_cause;
        is_untold || matches!(status.code, 400 | 422 | 500) && status.message.contains("testing path")
    }

    /// The words of a PodDisruptionBudget that does not allow an eviction, with its name where the server gives it. None if the reason
    /// is another one.
    pub fn budget(&self) -> Option<String> {
        let status = self.status()?;
        // 500: more than one budget selects the pod, which the API of evictions rejects.
        if status.code != 429 && !(status.code == 500 && status.message.contains("PodDisruptionBudget")) {
            return None;
        }
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        let cause = causes.find(|cause| !cause.message.is_empty());
        Some(cause.map_or_else(|| self.to_string(), |cause| cause.message.clone()))
    }

    /// Why the server does not take the object. None without a verdict: no answer, too much to do, or a quota that it does not know yet.
    pub fn rejection(&self) -> Option<Rejection> {
        match self.code() {
            400 | 403 | 405 | 422 if self.says("status unknown for quota") => None,
            403 if self.is_missing_right() => Some(Rejection::MissingRight),
            403 if self.is_quota_exceeded() => Some(Rejection::Quota),
            403 => Some(Rejection::Admission),
            400..=499 if self.is_denied() => Some(Rejection::Admission),
            400 | 405 | 422 => Some(Rejection::Rules),
            _ => None,
        }
    }

    /// The server's reason, without the whole object that some versions print before it.
    pub fn cause(&self) -> String {
        let text = self.to_string();
        text.rsplit("validation failure list:").next().unwrap_or_default().trim().to_owned()
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => CallError::Refused(status),
            kube::Error::BuildRequest(kube::core::request::Error::Validation(message)) => CallError::Unsent(message),
            other => CallError::Away(said(&chain(&other))),
        }
    }
}

/// The message of an error answer, and its HTTP status.
fn answered(status: &Status) -> String {
    match [&status.message, &status.reason].into_iter().find(|text| !text.is_empty()) {
        Some(text) => format!("{} ({})", said(text), status.code),
        None => format!("HTTP status {}, without a message: is it an API server?", status.code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn error(code: u16, message: &str, causes: &Value) -> CallError {
        let status = json!({
            "status": "Failure", "code": code, "message": message, "reason": "Invalid", "details": { "causes": causes },
        });
        CallError::Refused(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn a_patch_of_another_version_is_told_from_one_that_the_server_rejects() {
        let untold = "the server rejected our request due to an error in our request";
        assert!(error(422, untold, &json!([])).is_failed_test(), "as 1.13 and 1.37 say it");
        assert!(error(500, "testing path /metadata/uid: failed", &json!([])).is_failed_test());
        let cause = json!([{ "reason": "FieldValueInvalid", "message": "Invalid value", "field": "spec" }]);
        assert!(!error(422, untold, &cause).is_failed_test());
        assert!(!error(422, "Deployment.apps \"web\" is invalid: spec", &cause).is_failed_test());
        assert!(!error(403, "pods is forbidden", &json!([])).is_failed_test());
        assert!(!CallError::Away("no route".into()).is_failed_test());
    }

    #[test]
    fn an_answer_is_about_an_object_only_if_it_names_it() {
        let answer = |code: u16, details: &Value| {
            let status = json!({ "status": "Failure", "code": code, "details": details });
            let status: Status = serde_json::from_value(status).unwrap();
            CallError::answer(status, code, None)
        };
        let pod = answer(409, &json!({ "name": "web-1", "kind": "pods" }));
        assert!(pod.is_about("pods", "web-1") && !pod.is_about("pods", "web-2"));
        let quota = json!({ "name": "web-1", "kind": "resourcequotas" });
        assert!(!answer(409, &quota).is_about("pods", "web-1"));
        for path_not_served in [json!({}), Value::Null] {
            assert!(!answer(404, &path_not_served).is_about("pods", "web-1"));
        }
        assert!(!CallError::Away("no route".into()).is_about("pods", "web-1"));
    }

    #[test]
    fn the_words_of_a_server_tell_why_it_rejects_an_object() {
        let pod = "pods \"web-1\" is forbidden: ";
        for (code, message, expected) in [
            (
                403,
                "User \"system:serviceaccount:scpol-system:scpol\" cannot create resource \"pods\" in API group \"\" in the namespace \"shop\"",
                Some(Rejection::MissingRight),
            ),
            (
                403,
                "exceeded quota: small, requested: requests.cpu=150m, used: requests.cpu=210m, limited: requests.cpu=260m",
                Some(Rejection::Quota),
            ),
            // The quota controller has not seen a new quota yet.
            (403, "status unknown for quota: small, resources: requests.cpu", None),
            (403, "maximum cpu usage per Container is 100m, but limit is 200m", Some(Rejection::Admission)),
            (403, "violates PodSecurity \"restricted:latest\": unrestricted capabilities", Some(Rejection::Admission)),
            (
                403,
                "ValidatingAdmissionPolicy 'images' with binding 'images' denied request: no",
                Some(Rejection::Admission),
            ),
            // A policy chooses the reason, Invalid by default, and a webhook the code.
            (
                422,
                "ValidatingAdmissionPolicy 'images' with binding 'images' denied request: no",
                Some(Rejection::Admission),
            ),
            (400, "admission webhook \"a.example.org\" denied the request: no", Some(Rejection::Admission)),
            (418, "admission webhook \"a.example.org\" denied the request: no", Some(Rejection::Admission)),
            (
                422,
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
                Some(Rejection::Rules),
            ),
            (400, "the server could not understand the request", Some(Rejection::Rules)),
            (405, "the server does not allow this method on the requested resource", Some(Rejection::Rules)),
            (404, "not found", None),
            (409, "the object has been modified", None),
            (429, "too many requests", None),
            (500, "etcdserver: request timed out", None),
            (503, "not ready", None),
        ] {
            assert_eq!(error(code, &format!("{pod}{message}"), &json!([])).rejection(), expected, "{code} {message}");
        }
        assert_eq!(CallError::Away("denied request".into()).rejection(), None);
    }

    #[test]
    fn an_answer_keeps_its_causes_and_the_time_to_wait() {
        let status: Status = serde_json::from_value(json!({
            "message": "the server rejected our request", "details": { "causes": [{ "message": "spec: a\nb" }], "retryAfterSeconds": 9 },
        }))
        .unwrap();
        let answer = CallError::answer(status, 503, Some(Duration::from_secs(7)));
        assert_eq!((answer.code(), answer.message()), (503, "the server rejected our request: spec: a b"));
        assert_eq!(answer.retry_after(), Some(Duration::from_secs(7)), "the header counts");
        assert_eq!(CallError::answer(Status::default(), 500, None).retry_after(), None);
        let budget = error(429, "Cannot evict pod", &json!([{ "message": "The disruption budget none needs 3" }]));
        assert_eq!(budget.budget().as_deref(), Some("The disruption budget none needs 3"));
        assert_eq!(error(500, "etcd", &json!([])).budget(), None);
    }
}
