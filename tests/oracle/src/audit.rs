//! One line of an audit log, `audit.k8s.io/v1` or `v1beta1`.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// A request and its answer. Fields that the server's audit policy omits are empty.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// The id of the request.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// `ResponseComplete` after the answer.
    pub stage: String,
    /// `create`, `update`, `patch`, `delete`, `deletecollection`, `get`, `list` or `watch`.
    pub verb: String,
    /// The URI with its query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The sender.
    pub user: User,
    /// The object of the request.
    pub object_ref: ObjectRef,
    /// The answer.
    pub response_status: ResponseStatus,
    /// The body, or the patch.
    pub request_object: Value,
    /// The stored object, only at level `RequestResponse`.
    pub response_object: Value,
    /// The time of the request.
    pub request_received_timestamp: Option<Timestamp>,
}

/// The sender of a request.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct User {
    /// The user name.
    pub username: String,
}

/// The object of a request.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// The plural name.
    pub resource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty for a create without a name in its URL.
    pub name: String,
    /// The API group; empty for core.
    pub api_group: String,
    /// For example `status`.
    pub subresource: String,
}

/// The answer.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
pub struct ResponseStatus {
    /// The HTTP status.
    pub code: u16,
}

impl Event {
    /// Whether the request asks for a change.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "")
    }

    /// Whether the request is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.request_uri.split_once('?').is_some_and(|(_, query)| query.contains("dryRun="))
    }

    /// Whether something was stored.
    pub fn is_stored(&self) -> bool {
        self.is_write() && !self.is_dry_run() && (200..300).contains(&self.response_status.code)
    }

    /// Whether it is unknown if something was stored. If the client has disconnected, a server logs 500 or 504 in
    /// either case.
    pub fn is_doubtful(&self) -> bool {
        self.is_write() && !self.is_dry_run() && !(200..500).contains(&self.response_status.code)
    }

    /// The name of the object, also of a created one.
    pub fn name(&self) -> &str {
        let made = || {
            [&self.response_object, &self.request_object].iter().find_map(|object| object["metadata"]["name"].as_str())
        };
        Some(self.object_ref.name.as_str()).filter(|name| !name.is_empty()).or_else(made).unwrap_or_default()
    }

    /// The object in the form `resource namespace/name`.
    pub fn object(&self) -> String {
        let ObjectRef { resource, namespace, subresource, .. } = &self.object_ref;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        format!("{resource}{slash}{subresource} {place}{}", self.name())
    }
}
