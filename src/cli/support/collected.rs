//! The files of an archive, each bounded and without secrets, and what could not be read.

use super::redacted::{Found, REDACTED, Redaction};
use super::scrubbed::Scrubber;
use crate::cluster::answer::Meaning;
use crate::cluster::client::{CallError, chain};
use crate::outside::{beginning, escaped_lines};
use anyhow::Result;
use serde_json::{Value, json};

/// The most objects of a file.
const OBJECTS: usize = 1000;
/// The most bytes of a file.
const BYTES: usize = 2 << 20;

/// The head of the archive.
const README: &str = "\
What scpol support has collected for a bug report. Read it before you send it.

No Secret is read, and no address or credential of your kubeconfig is in it. Of objects these are kept:
- names, kinds, labels, selectors, numbers, booleans, times, amounts, and fields with a fixed choice of values,
- images, mount paths, names of variables, of headers and of long flags, keys of annotations, annotations of scpol.dev,
- the expressions of a policy, and the messages of its validations, of conditions and of events,
- of the container scpol also the flags of the operator.
All else is (redacted), such as values of variables, arguments, commands, paths of probes, data, and what registrations
inject. A text that has not the form of a name is no name.

The logs, metrics, expressions and messages are without values of at least 4 letters that are hidden in what was read,
the earlier revisions included, and without users, passwords and queries of addresses. Of refused parameters, conflicts
and changed fields they have no values. They may still have a value of a policy or a revision that is deleted, and one
that is also a common word or a name.
";

/// The files so far.
#[derive(Default)]
pub(super) struct Collected {
    files: Vec<(String, Content)>,
    missing: Vec<Missing>,
    /// The values of all objects. Texts may repeat the hidden ones.
    found: Found,
    /// The file without which the hidden values are unknown.
    unknown: Option<String>,
}

/// What a file has, before anything is taken out.
enum Content {
    Objects(Vec<Value>, Redaction),
    Text(String),
}

/// What is not in the archive.
struct Missing {
    name: String,
    why: String,
    /// The reason for others, if it is not the same: without the address of the server and our kubeconfig.
    public: Option<String>,
}

impl Collected {
    /// Adds the objects `found` as the file `name`, without what `redaction` takes out.
    pub(super) fn objects(&mut self, name: &str, found: Result<Vec<Value>>, redaction: Redaction) {
        let mut objects = match found {
            Ok(objects) => objects,
            Err(error) => return self.lacks(name, &error),
        };
        objects.iter().for_each(|object| self.hides(object, redaction));
        if objects.len() > OBJECTS {
            self.lacks_some(name, format!("{} of {} objects", objects.len() - OBJECTS, objects.len()));
            objects.truncate(OBJECTS);
        }
        self.files.push((name.to_owned(), Content::Objects(objects, redaction)));
    }

    /// Adds the text `found` as the file `name`.
    pub(super) fn text(&mut self, name: &str, found: Result<String>) {
        match found {
            Ok(text) => self.files.push((name.to_owned(), Content::Text(text))),
            Err(error) => self.lacks(name, &error),
        }
    }

    /// What is hidden of `object` is in no text either. What registrations hide, policies have.
    pub(super) fn hides(&mut self, object: &Value, redaction: Redaction) {
        if redaction == Redaction::Registrations {
            return;
        }
        redaction.applied(object, &str::to_owned, &mut self.found);
    }

    /// The values that texts may repeat are unknown, because the objects of the file `name` are.
    pub(super) fn is_without_values(&mut self, name: &str) {
        self.unknown.get_or_insert_with(|| name.to_owned());
    }

    /// The file `name` is missing, because of `error`.
    pub(super) fn lacks(&mut self, name: &str, error: &anyhow::Error) {
        let public = match error.downcast_ref::<CallError>() {
            Some(CallError::Away(_) | CallError::Unconnected(_)) => Some("the API server did not answer".to_owned()),
            // The answer names the user, and what we tried does not.
            Some(answer) if answer.means() == Meaning::MissingRight => {
                let tried = error.chain().next().filter(|outer| !outer.is::<CallError>());
                let tried = tried.map_or(String::new(), |tried| format!("{tried}: "));
                Some(format!("{tried}the right is missing"))
            }
            _ => None,
        };
        self.missing.push(Missing { name: name.to_owned(), why: chain(&**error), public });
    }

    /// The file `name` lacks `what`.
    pub(super) fn lacks_some(&mut self, name: &str, what: String) {
        self.missing.push(Missing { name: name.to_owned(), why: what, public: None });
    }

    /// The files, after a page that says what they are; and what could not be read, and why.
    pub(super) fn finished(mut self) -> (Vec<(String, String)>, Vec<String>) {
        let scrubber = Scrubber::of(&self.found);
        let mut files = Vec::new();
        for (name, content) in std::mem::take(&mut self.files) {
            let text = match (content, &self.unknown) {
                (Content::Text(_), Some(unread)) => {
                    let why = format!("it may repeat values, which are unknown without {unread}");
                    self.lacks_some(&name, why);
                    continue;
                }
                (Content::Text(text), None) => scrubber.scrubbed(&text),
                (Content::Objects(objects, redaction), unread) => {
                    let prose =
                        |text: &str| if unread.is_some() { REDACTED.to_owned() } else { scrubber.scrubbed(text) };
                    let kept = |object| redaction.applied(object, &prose, &mut Found::default());
                    let objects: Vec<_> = objects.iter().map(kept).collect();
                    match serde_saphyr::to_string(&json!({ "items": objects })) {
                        Ok(text) => text,
                        Err(error) => {
                            self.lacks_some(&name, error.to_string());
                            continue;
                        }
                    }
                }
            };
            let text = escaped_lines(&text);
            if text.len() > BYTES {
                self.lacks_some(&name, format!("the last {} bytes", text.len() - BYTES));
            }
            files.push((name, beginning(&text, BYTES).to_owned()));
        }
        let line = |name: &str, why: &str| format!("{name}: {}", escaped_lines(&scrubber.scrubbed(why)));
        let public =
            self.missing.iter().map(|missing| line(&missing.name, missing.public.as_deref().unwrap_or(&missing.why)));
        let readme = public.fold(README.to_owned(), |readme, missing| format!("{readme}\nNot in it: {missing}"));
        files.insert(0, ("README.txt".to_owned(), readme));
        (files, self.missing.iter().map(|missing| line(&missing.name, &missing.why)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(secret: &str) -> Value {
        json!({
            "spec": { "template": { "env": [{ "name": "TOKEN", "value": secret }] } },
            "status": { "conditions": [{ "message": format!("SCP0001: not {secret}") }] },
        })
    }

    #[test]
    fn what_an_object_hides_no_text_shows_and_all_is_bounded() {
        let mut collected = Collected::default();
        collected.text("log.txt", Ok(format!("a s3cret-of-mine last-s3cret b\u{1b}[2J{}", "x".repeat(BYTES))));
        let many = (0..OBJECTS).map(|number| policy(&format!("s3cret-of-mine-{number:06}")));
        let policies = [policy("s3cret-of-mine")].into_iter().chain(many).chain([policy("last-s3cret")]).collect();
        collected.objects("policies.yaml", Ok(policies), Redaction::Policies);
        collected.text("metrics.txt", Err(anyhow::anyhow!("no s3cret-of-mine")));
        let (files, missing) = collected.finished();
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["README.txt", "log.txt", "policies.yaml"]);
        for (name, text) in &files {
            assert!(!text.contains("s3cret") && !text.contains('\u{1b}') && text.len() <= BYTES + 100, "{name}");
        }
        assert_eq!(missing[0], "policies.yaml: 2 of 1002 objects");
        assert_eq!(missing[1], "metrics.txt: no (redacted)");
        assert!(missing[2].starts_with("log.txt: the last "), "{missing:?}");
    }

    #[test]
    fn a_value_that_json_and_yaml_escape_is_taken_out_too() {
        let mut collected = Collected::default();
        collected.objects("policies.yaml", Ok(vec![policy("pa\"ss\\w0rd")]), Redaction::Policies);
        collected.text("log.txt", Ok(json!({ "message": "not pa\"ss\\w0rd" }).to_string()));
        let (files, _) = collected.finished();
        let text = files.into_iter().map(|(_, text)| text).collect::<String>();
        assert!(!text.contains("w0rd") && text.contains("not (redacted)"), "{text}");
    }

    #[test]
    fn without_the_policies_no_text_is_in_it() {
        let mut collected = Collected::default();
        let forbidden = || CallError::Away("https://me:pw@1.2.3.4 (context `mine` of kubeconfig /home/me): EOF".into());
        collected.lacks("policies.yaml", &anyhow::Error::from(forbidden()).context("cannot list"));
        collected.is_without_values("policies.yaml");
        collected.objects(
            "events.yaml",
            Ok(vec![json!({ "message": "it is s3cret", "reason": "R" })]),
            Redaction::Plain,
        );
        collected.text("log.txt", Ok("it is s3cret".to_owned()));
        let (files, missing) = collected.finished();
        let text = files.iter().map(|(_, text)| text.as_str()).collect::<String>();
        assert!(!text.contains("s3cret") && text.contains("reason: R"), "{text}");
        assert!(text.contains("Not in it: policies.yaml: the API server did not answer\n"), "{text}");
        assert!(
            text.contains("Not in it: log.txt: it may repeat values, which are unknown without policies.yaml"),
            "{text}"
        );
        assert!(missing[0].contains("/home/me") && !missing[0].contains("me:pw"), "{missing:?}");
    }
}
