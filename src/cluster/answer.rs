//! What the answer of an API server to a failed request means. Only this file reads the words of a server, so each wording has one
//! place; all others match on [`Meaning`] or ask [`CallError`]. Pure.
//!
//! The HTTP status and the reason of an answer do not tell a missing right, a quota and other admission apart: all are 403. So the
//! message decides. Its sources are in Kubernetes: `responsewriters/errors.go` (rights), `plugin/pkg/admission` (quota and
//! Initializers), and the packages `webhook/errors` and `policy/validating` of the apiserver.

use crate::outside::cut;
use crate::refit::Exceeded;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::runtime::watcher;
use serde_json::Value;
use std::collections::BTreeMap;
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

/// What a failed call means: of each error exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// No answer, or not in time. The server may have done what the request asks for.
    Unanswered,
    /// The request was not sent: there was no connection, or no path can have one of its names.
    Unsent,
    /// We lack the right.
    MissingRight,
    /// The namespace would have more than a ResourceQuota allows.
    Quota,
    /// The server does not know yet how much of a ResourceQuota is used.
    QuotaUnknown,
    /// Other admission rejects the object: a LimitRange, Pod Security, a policy or a webhook. The last two choose their HTTP status.
    Admission,
    /// The API's own rules reject the object, or the request is one that the server does not serve.
    Rules,
    /// The object does not exist, or the server does not serve its resource.
    NotFound,
    /// The object exists already, or is not the one that the request expects.
    Conflict,
    /// A `test` of a JSON Patch has failed: the object is not the one that was read.
    FailedTest,
    /// The server, or a webhook, has a fault of its own or too much to do.
    Unwell,
}

impl Meaning {
    /// Whether the server will not take the object as it is.
    pub fn is_rejection(self) -> bool {
        matches!(self, Self::MissingRight | Self::Quota | Self::Admission | Self::Rules | Self::FailedTest)
    }

    /// Whether the object of a write that names its version or its UID is gone, or is not the one that was read any more.
    pub fn is_outdated(self) -> bool {
        matches!(self, Self::NotFound | Self::Conflict)
    }

    /// What `error` means, if a call is its cause.
    pub fn of(error: &anyhow::Error) -> Option<Self> {
        error.downcast_ref::<CallError>().map(CallError::means)
    }
}

/// The beginning of a message that names no cause.
const REJECTED: &str = "the server rejected our request";

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

    /// Whether the object itself is missing. A server that has just started also answers 404 for custom resources whose definition it
    /// does not know yet. Such an answer names no object.
    pub fn is_of_missing_object(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        self.code() == 404 && details.is_some_and(|details| !details.name.is_empty())
    }

    /// What the error means.
    pub fn means(&self) -> Meaning {
        match self {
            Self::Away(_) => Meaning::Unanswered,
            Self::Unconnected(_) | Self::Unsent(_) => Meaning::Unsent,
            Self::Refused(_) if self.is_failed_test() => Meaning::FailedTest,
            Self::Refused(status) => match status.code {
                400 | 403 | 405 | 422 if self.says("status unknown for quota") => Meaning::QuotaUnknown,
                403 if self.is_missing_right() => Meaning::MissingRight,
                403 if self.says("exceeded quota") => Meaning::Quota,
                403 => Meaning::Admission,
                400..=499 if self.is_denied() => Meaning::Admission,
                400 | 405 | 422 => Meaning::Rules,
                404 => Meaning::NotFound,
                409 => Meaning::Conflict,
                _ => Meaning::Unwell,
            },
        }
    }

    /// Whether the server forbids the request. For a read that is a missing right, because admission judges writes alone.
    pub fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// Whether we lack a right, and admission is not the reason: the words of RBAC, `User "x" cannot create resource "y"`, or those of
    /// the plugin Initializers.
    fn is_missing_right(&self) -> bool {
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

    /// Whether a webhook or a ValidatingAdmissionPolicy has rejected the object. Each chooses its HTTP status.
    pub fn is_denied(&self) -> bool {
        self.says("denied the request") || self.says("denied request")
    }

    /// Whether the server, or a webhook of others, does not support dry runs (apiserver `create.go`, `webhookerrors`).
    pub fn is_without_dry_run(&self) -> bool {
        self.says("feature is disabled") || self.says("does not support dry run")
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
    fn is_failed_test(&self) -> bool {
        let Some(status) = self.status() else { return false };
        let has_cause = status.details.as_ref().is_some_and(|details| !details.causes.is_empty());
        let is_untold = self.is_not_applied() && !has_cause;
        is_untold || matches!(status.code, 400 | 422 | 500) && status.message.contains("testing path")
    }

    /// What a ResourceQuota does not allow: `exceeded quota: small, requested: pods=1,requests.cpu=70m, used: .., limited: ..`
    /// (`plugin/resourcequota/controller.go`). Empty if the server does not say it.
    pub fn exceeded(&self) -> Vec<Exceeded> {
        let text = self.message();
        let amounts = |part: &str| {
            let text = text.split_once(part).map_or("", |(_, rest)| rest);
            let text = text.split(", ").next().unwrap_or_default();
            let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
            pairs.map(|(resource, amount)| (resource, Value::from(amount.trim()))).collect::<BTreeMap<_, _>>()
        };
        let [requested, mut used, mut hard] = [", requested: ", ", used: ", ", limited: "].map(amounts);
        let exceeded = requested.into_iter().filter_map(|(resource, requested)| {
            let (used, hard) = (used.remove(resource)?, hard.remove(resource)?);
            Some(Exceeded { resource: resource.to_owned(), requested, used, hard })
        });
        exceeded.collect()
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

    /// Whether the server could not call a webhook for which `is_ours` is true: `failed calling webhook "probe.scpol.dev"`, and why
    /// (apiserver `webhook/errors`).
    pub fn is_of_uncalled_webhook(&self, is_ours: impl Fn(&str) -> bool) -> bool {
        let text = self.to_string();
        let mut names = text.split("failed calling webhook \"").skip(1).filter_map(|rest| rest.split('"').next());
        names.any(is_ours)
    }

    /// Whether the server repeats `text`, which is in the message of a registration of ours.
    pub fn repeats(&self, text: &str) -> bool {
        self.to_string().contains(text)
    }

    /// The server's reason, without the whole object that some versions print before it.
    pub fn cause(&self) -> String {
        let text = self.to_string();
        text.rsplit("validation failure list:").next().unwrap_or_default().trim().to_owned()
    }

    /// [`Self::cause`], without the words of the server about the object `name` that stand before it.
    pub fn cause_beside(&self, name: &str) -> String {
        let why = self.cause();
        let why = why.strip_prefix("Internal error occurred: ").unwrap_or(&why);
        why.split_once(&format!("\"{name}\" is forbidden: ")).map_or(why, |(_, why)| why).to_owned()
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => CallError::Refused(status),
            kube::Error::BuildRequest(kube::core::request::Error::Validation(message)) => CallError::Unsent(message),
            other => CallError::Away(said(chain(&other).trim_start_matches("ServiceError: "))),
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

/// Whether the server lacks this resource.
pub fn is_not_found(error: &watcher::Error) -> bool {
    answer_to_watch(error).is_some_and(|status| status.code == 404)
}

/// Whether we lack the right to list or watch.
pub fn is_refused(error: &watcher::Error) -> bool {
    answer_to_watch(error).is_some_and(|status| status.code == 403)
}

/// The answer of the server that made a watch fail, if there was one.
fn answer_to_watch(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error as E;
    match error {
        E::InitialListFailed(kube::Error::Api(status))
        | E::WatchStartFailed(kube::Error::Api(status))
        | E::WatchFailed(kube::Error::Api(status))
        | E::WatchError(status) => Some(status),
        _ => None,
    }
}

/// The most characters of a message of the server. It may repeat names and values that others have written. More than
/// [`SHOWN`](crate::outside::SHOWN), because what users need stands at the end: before it are the names of the object, of
/// an admission policy and of its binding, up to 253 characters each (apiserver, `policy/validating/dispatcher.go`:
/// "ValidatingAdmissionPolicy '..' with binding '..' denied request: .."). Longer answers repeat a whole value (apimachinery,
/// `field.Error`).
const SAID: usize = 1024;

/// A message of the server, or of an error on the way to it, on one line: escaped, and cut. Every such message passes here
/// before it reaches a log, an event, a condition or a terminal.
pub fn said(text: &str) -> String {
    cut(&faults(text), SAID).into_owned()
}

/// `text` on one line. Servers below 1.16 repeat a whole custom resource before its faults: it is left out.
fn faults(text: &str) -> String {
    let object = text.find("Invalid value: map[").zip(text.rfind("validation failure list:"));
    let told = match object.filter(|(begin, end)| begin < end) {
        Some((begin, end)) => format!("{}{}", &text[..begin], &text[end..]),
        None => text.to_owned(),
    };
    told.replace('\n', " ")
}

/// The message of an error and of all its sources, without repetition.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    text
}

/// The reason why a watch failed, in the server's own words if there was an answer.
pub fn why(error: &watcher::Error) -> String {
    said(&answer_to_watch(error).map_or_else(|| chain(error), |status| status.message.clone()))
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
                Meaning::MissingRight,
            ),
            (
                403,
                "exceeded quota: small, requested: requests.cpu=150m, used: requests.cpu=210m, limited: requests.cpu=260m",
                Meaning::Quota,
            ),
            // The quota controller has not seen a new quota yet.
            (403, "status unknown for quota: small, resources: requests.cpu", Meaning::QuotaUnknown),
            (403, "maximum cpu usage per Container is 100m, but limit is 200m", Meaning::Admission),
            (403, "violates PodSecurity \"restricted:latest\": unrestricted capabilities", Meaning::Admission),
            (403, "ValidatingAdmissionPolicy 'images' with binding 'images' denied request: no", Meaning::Admission),
            // A policy chooses the reason, Invalid by default, and a webhook the code.
            (422, "ValidatingAdmissionPolicy 'images' with binding 'images' denied request: no", Meaning::Admission),
            (400, "admission webhook \"a.example.org\" denied the request: no", Meaning::Admission),
            (418, "admission webhook \"a.example.org\" denied the request: no", Meaning::Admission),
            (
                422,
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`",
                Meaning::Rules,
            ),
            (400, "the server could not understand the request", Meaning::Rules),
            // Of a webhook that denies with 409 or 404, no object is gone or changed.
            (409, "admission webhook \"a.example.org\" denied the request: no", Meaning::Admission),
            (404, "admission webhook \"a.example.org\" denied the request: no", Meaning::Admission),
            (405, "the server does not allow this method on the requested resource", Meaning::Rules),
            (404, "not found", Meaning::NotFound),
            (409, "the object has been modified", Meaning::Conflict),
            (429, "too many requests", Meaning::Unwell),
            (500, "etcdserver: request timed out", Meaning::Unwell),
            (503, "not ready", Meaning::Unwell),
        ] {
            assert_eq!(error(code, &format!("{pod}{message}"), &json!([])).means(), expected, "{code} {message}");
        }
        assert_eq!(CallError::Away("denied request".into()).means(), Meaning::Unanswered);
        assert_eq!(CallError::Unsent("no name".into()).means(), Meaning::Unsent);
    }

    #[test]
    fn the_amounts_of_a_quota_are_read_and_nothing_else_is() {
        let message = "pods \"web-1\" is forbidden: exceeded quota: small, requested: pods=1,requests.cpu=70m, used: \
                       pods=3,requests.cpu=210m, limited: pods=3,requests.cpu=215m";
        let exceeded = |resource: &str, [requested, used, hard]: [&str; 3]| Exceeded {
            resource: resource.to_owned(),
            requested: requested.into(),
            used: used.into(),
            hard: hard.into(),
        };
        let expected = [exceeded("pods", ["1", "3", "3"]), exceeded("requests.cpu", ["70m", "210m", "215m"])];
        assert_eq!(error(403, message, &json!([])).exceeded(), expected);
        for other in
            ["exceeded quota: small", "requested: pods=1, used: cpu=3, limited: pods=3", ", used: , limited: x"]
        {
            assert_eq!(error(403, other, &json!([])).exceeded(), [], "{other}");
        }
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

    #[test]
    fn a_message_of_the_server_is_escaped_and_cut_and_keeps_the_words_of_what_refuses() {
        let status = |message: &str| -> Box<Status> {
            serde_json::from_value(
                serde_json::json!({ "status": "Failure", "message": message, "reason": "Forbidden", "code": 403 }),
            )
            .unwrap()
        };
        let ways = |message: &str| {
            let [one, other] = [status(message), status(message)];
            let refused = CallError::from(kube::Error::Api(one)).to_string();
            let watched = why(&watcher::Error::WatchFailed(kube::Error::Api(other)));
            let away = CallError::from(kube::Error::Service(message.into())).to_string();
            [refused, watched, away]
        };
        let name = "n".repeat(253);
        let why = "SidecarPolicy `audit` refuses this Pod: SCP0119: the pod sets `hostNetwork: true`";
        let beginning =
            format!("pods \"{name}\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}'");
        for told in ways(&format!("{beginning} denied request: {why}")) {
            assert!(told.contains(why), "{told}");
        }
        for told in ways(&format!("a\u{1b}[2J\nb{}", "x".repeat(100_000))) {
            assert!(told.contains("a\\u{1b}[2J bx") && told.chars().count() < SAID + 100, "{told}");
        }
    }
}
