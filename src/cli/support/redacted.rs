//! What is taken out of objects before others see them: a value that may be a secret becomes [`REDACTED`].

use serde_json::{Map, Value};

/// What stands in place of a value.
pub(super) const REDACTED: &str = "(redacted)";

/// The fields of maps whose values may be secrets, whatever their names are.
const MAPS: [&str; 7] = ["data", "stringData", "binaryData", "volumeAttributes", "options", "parameters", "attributes"];
/// The fields with lists of words that may have secrets in them.
const WORDS: [&str; 2] = ["args", "command"];
/// The fields with texts that may be or have secrets.
const TEXTS: [&str; 7] = ["value", "password", "token", "caBundle", "secret", "defaultValue", "initiatorName"];
/// The fields of registrations with CEL, which has the content of templates in it.
const CEL: [&str; 3] = ["expression", "messageExpression", "valueExpression"];

/// Which values are taken out.
#[derive(Default)]
pub(super) struct Redaction {
    /// Whether CEL has values of templates in it.
    hides_cel: bool,
    /// Whether arguments and our own variables are flags of the operator, none of which is a secret.
    shows_flags: bool,
}

impl Redaction {
    /// That of policies.
    pub(super) fn of_policies() -> Self {
        Self::default()
    }

    /// That of registrations.
    pub(super) fn of_registrations() -> Self {
        Self { hides_cel: true, ..Self::default() }
    }

    /// That of the objects that run the operator.
    pub(super) fn of_the_operator() -> Self {
        Self { shows_flags: true, ..Self::default() }
    }

    /// Takes values out of `object`, and adds them to `secrets`.
    pub(super) fn apply(&self, object: &mut Value, secrets: &mut Vec<String>) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        self.walk("", object, secrets);
    }

    fn walk(&self, field: &str, value: &mut Value, secrets: &mut Vec<String>) {
        match value {
            Value::Object(fields) if field == "annotations" => annotations(fields, secrets),
            Value::Object(fields) if MAPS.contains(&field) => {
                fields.values_mut().for_each(|value| hide(value, secrets))
            }
            Value::Object(fields) => self.fields(fields, secrets),
            Value::Array(items) if WORDS.contains(&field) && !self.shows_flags => words(items, secrets),
            Value::Array(items) => items.iter_mut().for_each(|item| self.walk(field, item, secrets)),
            value if TEXTS.contains(&field) || (self.hides_cel && CEL.contains(&field)) => hide(value, secrets),
            _ => {}
        }
    }

    fn fields(&self, fields: &mut Map<String, Value>, secrets: &mut Vec<String>) {
        let is_ours = fields.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with("SCPOL_"));
        for (field, value) in fields {
            if !(field == "value" && is_ours && self.shows_flags) {
                self.walk(field, value, secrets);
            }
        }
    }
}

/// Hides the values of annotations that are not ours. kubectl keeps whole objects in one.
fn annotations(annotations: &mut Map<String, Value>, secrets: &mut Vec<String>) {
    let is_ours = |key: &str| key.split_once('/').is_some_and(|(domain, _)| domain == "scpol.dev");
    annotations.iter_mut().filter(|(key, _)| !is_ours(key)).for_each(|(_, value)| hide(value, secrets));
}

/// Hides the words of a command but for the names of flags.
fn words(words: &mut [Value], secrets: &mut Vec<String>) {
    for word in words {
        let Some(text) = word.as_str() else {
            hide(word, secrets);
            continue;
        };
        match text.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => {
                secrets.push(value.to_owned());
                *word = format!("{flag}={REDACTED}").into();
            }
            None if is_flag(text) => {}
            _ => hide(word, secrets),
        }
    }
}

/// Whether `text` is the name of a flag, and no value that is attached to one.
fn is_flag(text: &str) -> bool {
    let long = text.strip_prefix("--").is_some_and(|name| !name.is_empty());
    let is_name = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    (long && is_name && text.len() <= 40) || (text.starts_with('-') && text.len() == 2)
}

/// Whether `secret` is so common that its place in a text says nothing: one word of lower case letters.
pub(super) fn is_plain(secret: &str) -> bool {
    secret.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn hide(value: &mut Value, secrets: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::String(text) => {
            secrets.extend(text.lines().map(str::to_owned));
            *value = REDACTED.into();
        }
        Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_) => *value = REDACTED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_may_be_a_secret_is_replaced_wherever_a_policy_has_it() {
        let template = json!({
            "containers": [{
                "name": "a", "image": "a:1", "command": ["sh", "-c", "curl -u me:S1"], "args": ["--user=S2", "--verbose", "-pS3", "S4"],
                "env": [{ "name": "TOKEN", "value": "S5" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                "livenessProbe": {
                    "httpGet": { "port": 80, "httpHeaders": [{ "name": "Authorization", "value": "S6" }] },
                    "exec": { "command": ["S7"] },
                },
            }],
            "volumes": [{ "name": "v", "csi": { "driver": "d", "volumeAttributes": { "key": "S8" } } }],
            "metadata": { "annotations": { "a": "S9" } },
            "env": [{ "name": "C", "value": "S10", "merge": "Append" }],
        });
        let last = json!({ "kubectl.kubernetes.io/last-applied-configuration": "S11", "scpol.dev/contact": "team" });
        let mut policy = json!({
            "metadata": { "name": "p", "annotations": last, "managedFields": [{ "f": "S12" }] },
            "spec": { "template": template, "matchConditions": [{ "name": "n", "expression": "object.a" }] },
            "status": { "conditions": [{ "type": "Ready", "message": "SCP0002: in effect" }] },
        });
        let mut secrets = Vec::new();
        Redaction::of_policies().apply(&mut policy, &mut secrets);
        let text = policy.to_string();
        for number in 1..=12 {
            assert!(
                !text.contains(&format!("S{number}\"")) && !text.contains(&format!("S{number} ")),
                "S{number}: {text}"
            );
        }
        for kept in [
            "\"a:1\"",
            "--verbose",
            "--user=(redacted)",
            "\"secretKeyRef\"",
            "\"team\"",
            "object.a",
            "SCP0002: in effect",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        assert!(secrets.contains(&"S5".to_owned()) && secrets.contains(&"S2".to_owned()), "{secrets:?}");
    }

    #[test]
    fn registrations_hide_their_cel_and_the_operator_shows_its_flags() {
        let mut policy = json!({ "spec": { "mutations": [{ "jsonPatch": { "expression": "S1" } }] }, "webhooks": [{
            "name": "w", "clientConfig": { "caBundle": "S2", "service": { "name": "scpol" } } }] });
        Redaction::of_registrations().apply(&mut policy, &mut Vec::new());
        assert!(
            !policy.to_string().contains("\"S") && policy["webhooks"][0]["clientConfig"]["service"]["name"] == "scpol"
        );
        let mut deployment = json!({ "containers": [{ "args": ["run", "--log-level=debug"], "env": [
            { "name": "SCPOL_WORKERS", "value": "8" }, { "name": "HTTPS_PROXY", "value": "http://a:S1@b" }] }] });
        Redaction::of_the_operator().apply(&mut deployment, &mut Vec::new());
        let text = deployment.to_string();
        assert!(text.contains("--log-level=debug") && text.contains("\"8\"") && !text.contains("S1"), "{text}");
    }
}
