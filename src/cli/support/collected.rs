//! The files of an archive, each bounded and without secrets, and what could not be read.

use super::redacted::Redaction;
use crate::cluster::client::chain;
use crate::outside::{beginning, escaped_lines};
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most objects of a file.
const OBJECTS: usize = 1000;
/// The most bytes of a file.
const BYTES: usize = 2 << 20;
/// The most secrets that are looked for in texts.
const SECRETS: usize = 2000;
/// The least characters of a secret that is looked for in texts: shorter ones are parts of other words.
const SECRET: usize = 8;

/// The head of the archive.
const README: &str = "\
What scpol support has collected for a bug report. Read it before you send it.

No Secret is read. The values of environment variables, arguments, commands, headers, annotations of others and data are
replaced by (redacted), and so is what registrations inject. Names, images, conditions and expressions are as they are.
";

/// The files so far.
#[derive(Default)]
pub(super) struct Collected {
    files: Vec<(String, String)>,
    missing: Vec<String>,
    /// The redacted values, which texts may repeat.
    secrets: BTreeSet<String>,
}

impl Collected {
    /// Adds the objects `found` as the file `name`, without what `redaction` takes out.
    pub(super) fn objects(&mut self, name: &str, found: Result<Vec<Value>>, redaction: &Redaction) {
        let mut objects = match found {
            Ok(objects) => objects,
            Err(error) => return self.lacks(name, &error),
        };
        if objects.len() > OBJECTS {
            self.missing.push(format!("{name}: {} of {} objects", objects.len() - OBJECTS, objects.len()));
            objects.truncate(OBJECTS);
        }
        let mut secrets = Vec::new();
        objects.iter_mut().for_each(|object| redaction.apply(object, &mut secrets));
        let room = SECRETS.saturating_sub(self.secrets.len());
        self.secrets.extend(secrets.into_iter().filter(|secret| secret.chars().count() >= SECRET).take(room));
        match serde_saphyr::to_string(&json!({ "items": objects })) {
            Ok(text) => self.add(name, &text),
            Err(error) => self.missing.push(format!("{name}: {error}")),
        }
    }

    /// Adds the text `found` as the file `name`.
    pub(super) fn text(&mut self, name: &str, found: Result<String>) {
        match found {
            Ok(text) => self.add(name, &text),
            Err(error) => self.lacks(name, &error),
        }
    }

    fn add(&mut self, name: &str, text: &str) {
        if text.len() > BYTES {
            self.missing.push(format!("{name}: the last {} bytes", text.len() - BYTES));
        }
        self.files.push((name.to_owned(), beginning(text, BYTES).to_owned()));
    }

    fn lacks(&mut self, name: &str, error: &anyhow::Error) {
        self.missing.push(format!("{name}: {}", chain(&**error)));
    }

    /// What could not be read, and why.
    pub(super) fn missing(&self) -> impl Iterator<Item = String> {
        self.missing.iter().map(|missing| self.scrubbed(missing))
    }

    /// The files, after a page that says what they are.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let mut readme = README.to_owned();
        for missing in self.missing() {
            readme.push_str(&format!("\nNot in it: {missing}"));
        }
        let files = self.files.iter().map(|(name, text)| (name.clone(), self.scrubbed(text)));
        [("README.txt".to_owned(), readme)].into_iter().chain(files).collect()
    }

    /// `text` without the redacted values, which messages may repeat.
    fn scrubbed(&self, text: &str) -> String {
        let mut text = escaped_lines(text).into_owned();
        for secret in self.secrets.iter().filter(|secret| !super::redacted::is_plain(secret)) {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), super::redacted::REDACTED);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_object_hides_no_later_text_shows_and_all_is_bounded() {
        let mut collected = Collected::default();
        let policy = json!({ "spec": { "template": { "env": [{ "name": "TOKEN", "value": "s3cret-of-mine" }] } } });
        collected.objects("policies.yaml", Ok(vec![policy; OBJECTS + 1]), &Redaction::of_policies());
        collected.text("log.txt", Ok(format!("a s3cret-of-mine b\u{1b}[2J{}", "x".repeat(BYTES))));
        collected.text("metrics.txt", Err(anyhow::anyhow!("no s3cret-of-mine")));
        let files = collected.files();
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["README.txt", "policies.yaml", "log.txt"]);
        for (name, text) in &files {
            assert!(!text.contains("s3cret") && !text.contains('\u{1b}') && text.len() <= BYTES + 100, "{name}");
        }
        let missing: Vec<_> = collected.missing().collect();
        assert_eq!(missing[0], "policies.yaml: 1 of 1001 objects");
        assert!(
            missing[1].starts_with("log.txt: the last ") && missing[2] == "metrics.txt: no (redacted)",
            "{missing:?}"
        );
    }
}
