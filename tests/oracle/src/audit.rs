//! One line of an audit log, `audit.k8s.io/v1` or `v1beta1`.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// A request and its answer. What a policy of the server left out is empty.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// Tells requests apart.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// `ResponseComplete` once the answer is known.
    pub stage: String,
    /// `create`, `update`, `patch`, `delete`, `deletecollection`, `get`, `list` or `watch`.
    pub verb: String,
    /// With the query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// Who asked.
    pub user: User,
    /// What it was about.
    pub object_ref: ObjectRef,
    /// The answer.
    pub response_status: ResponseStatus,
    /// The body, or the patch.
    pub request_object: Value,
    /// What was stored. Only servers that log with `RequestResponse` tell.
    pub response_object: Value,
    /// When the request came.
    pub request_received_timestamp: Option<Timestamp>,
}

/// Who asked.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct User {
    /// His name.
    pub username: String,
}

/// What a request is about.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// The plural name.
    pub resource: String,
    /// Empty for what lies in none.
    pub namespace: String,
    /// Empty for a create whose object brings its own.
    pub name: String,
    /// The API group; empty for core.
    pub api_group: String,
    /// `status`, for one.
    pub subresource: String,
}

/// The answer.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct ResponseStatus {
    /// As in HTTP.
    pub code: u16,
}

impl Event {
    /// True if and only if it asks for a change.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "")
    }

    /// True if and only if nothing of it is stored, because the caller wanted it so.
    pub fn is_dry_run(&self) -> bool {
        self.request_uri.split_once('?').is_some_and(|(_, query)| query.contains("dryRun="))
    }

    /// True if and only if something was stored.
    pub fn is_stored(&self) -> bool {
        self.is_write() && !self.is_dry_run() && (200..300).contains(&self.response_status.code)
    }

    /// True if and only if nobody can tell whether something was stored: a server whose caller has gone meanwhile logs 500 or 504,
    /// whatever it has done.
    pub fn is_doubtful(&self) -> bool {
        self.is_write() && !self.is_dry_run() && !(200..500).contains(&self.response_status.code)
    }

    /// The name, that of a created object included.
    pub fn name(&self) -> &str {
        let made = || {
            [&self.response_object, &self.request_object].iter().find_map(|object| object["metadata"]["name"].as_str())
        };
        Some(self.object_ref.name.as_str()).filter(|name| !name.is_empty()).or_else(made).unwrap_or_default()
    }

    /// As `resource namespace/name`.
    pub fn object(&self) -> String {
        let ObjectRef { resource, namespace, subresource, .. } = &self.object_ref;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        format!("{resource}{slash}{subresource} {place}{}", self.name())
    }
}
