//! Findings about passwords and tokens that are written into a template.

use super::{Context, Note};
use crate::api::code::Code;
use crate::api::v1alpha1::{RawObject, SidecarPolicySpec};
use serde_json::Value;

/// The last word of the name of a variable that holds a secret.
const WORDS: [&str; 9] =
    ["APIKEY", "CREDENTIAL", "CREDENTIALS", "PASSPHRASE", "PASSWD", "PASSWORD", "PWD", "SECRET", "TOKEN"];
/// The word before a last `KEY`. Other keys are not secret: `PARTITION_KEY`.
const KEYS: [&str; 7] = ["ACCESS", "API", "AUTH", "ENCRYPTION", "PRIVATE", "SECRET", "SIGNING"];

/// Environment variables and arguments that look like secrets, with the value in the template.
pub(super) fn literal(spec: &SidecarPolicySpec, _: &Context) -> Vec<Note> {
    let Some(template) = &spec.template else { return Vec::new() };
    let of_containers = template.all_containers().flat_map(|(path, container)| {
        let variables = items(container, "env").iter().enumerate();
        let variables = variables.map(|(index, item)| (format!("{path}.env[{index}].value"), item.as_object()));
        let variables = variables.filter_map(|(field, item)| variable(field, item?));
        variables.chain(arguments(&path, container)).collect::<Vec<_>>()
    });
    let own = template.env.iter().enumerate();
    let own = own.filter_map(|(index, item)| variable(format!("spec.template.env[{index}].value"), item));
    of_containers.chain(own).collect()
}

fn items<'a>(container: &'a RawObject, field: &str) -> &'a [Value] {
    container.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn variable(field: String, item: &RawObject) -> Option<Note> {
    let text = |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default();
    (is_secret(text("name")) && is_literal(text("value"))).then(|| note(field, &format!("of `{}`", text("name"))))
}

/// Flags such as `--password=hunter2`. `--tls-secret=web` is the name of a Secret.
fn arguments(path: &str, container: &RawObject) -> Vec<Note> {
    let all = ["command", "args"].into_iter().flat_map(|list| {
        let indexed = items(container, list).iter().enumerate();
        indexed.map(move |(index, text)| (format!("{path}.{list}[{index}]"), text.as_str().unwrap_or_default()))
    });
    let found = all.filter_map(|(field, text)| {
        let (flag, value) = text.strip_prefix('-')?.split_once('=')?;
        let is_meant = is_secret(flag) && !flag.ends_with("secret") && is_literal(value);
        is_meant.then(|| note(field, &format!("of `-{flag}`")))
    });
    found.collect()
}

/// Never with the value itself.
fn note(field: String, what: &str) -> Note {
    let message = format!(
        "has the value {what}: everyone who may read policies, pods or revisions reads it; put it into a Secret, and use \
         `valueFrom.secretKeyRef`"
    );
    Note::new(Code::LiteralSecret, field, message)
}

/// Whether a variable or flag of that name usually holds a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    let mut words = name.split(['_', '-', '.']).filter(|word| !word.is_empty()).rev();
    match (words.next(), words.next()) {
        (Some("KEY"), Some(before)) => KEYS.contains(&before),
        // The shell's working directory.
        (Some("PWD"), None) => false,
        (Some("PWD"), Some("OLD")) => false,
        (Some(last), _) => WORDS.contains(&last),
        (None, _) => false,
    }
}

/// Whether `value` may be a secret itself: no reference, no path, no switch, no number of a few digits.
fn is_literal(value: &str) -> bool {
    let is_number = value.len() < 6 && value.chars().all(|char| char.is_ascii_digit());
    let is_reference = value.starts_with("$(") && value.ends_with(')') || value.starts_with("${");
    let is_switch = ["true", "false"].contains(&value.to_lowercase().as_str());
    !(value.is_empty() || is_number || is_reference || is_switch || value.starts_with(['/', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_a_secret_by_its_last_word() {
        for name in [
            "TOKEN",
            "DB_PASSWORD",
            "db.password",
            "CLIENT_SECRET",
            "-api-key",
            "AWS_SECRET_ACCESS_KEY",
            "GITHUB_TOKEN",
            "DB_PWD",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "",
            "_",
            "PWD",
            "OLDPWD",
            "PARTITION_KEY",
            "KEY",
            "TOKEN_FILE",
            "PASSWORD_LENGTH",
            "SECRET_NAME",
            "TOKENS",
            "MONKEY",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn a_reference_a_path_and_a_switch_are_no_secrets() {
        for value in ["hunter2", "123456", "$(A)b", "eyJhbGciOi"] {
            assert!(is_literal(value), "{value}");
        }
        for value in ["", "$(TOKEN)", "${TOKEN}", "/run/secrets/token", "./token", "true", "False", "3600"] {
            assert!(!is_literal(value), "{value}");
        }
    }
}
