//! The codes that a user does not want to see: those of `--ignore`, and those of comments in files.

use super::output::remark;
use crate::api::code::Code;
use crate::manifest::{File, Manifest, comments_with, policy_of};
use clap::Args;
use std::collections::{BTreeMap, BTreeSet};

/// What a comment for this program begins with.
const WORD: &str = "scpol";
/// The most edits between a misspelt name of a code and the intended one.
const MAX_EDITS: usize = 3;

/// The codes of the command line.
#[derive(Args, Debug, Default)]
pub(super) struct IgnoreOption {
    /// Do not report this code, such as SCP0052 (repeatable). A comment `# scpol: ignore SCP0052` in a file does the same for the
    /// objects in it. Errors, and policies that are not injected, are always reported
    #[arg(long, value_name = "CODE", value_parser = code)]
    ignore: Vec<Code>,
}

/// The codes that are not reported.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    everywhere: BTreeSet<Code>,
    files: BTreeMap<String, BTreeSet<Code>>,
    policies: BTreeMap<String, BTreeSet<Code>>,
}

impl IgnoreOption {
    /// Whether the code is ignored everywhere.
    pub(super) fn has(&self, code: Code) -> bool {
        self.ignore.contains(&code)
    }

    /// The same codes, and those of comments in `files`. Warns of comments with unknown codes.
    pub(super) fn with<'a>(&self, files: impl IntoIterator<Item = &'a File>) -> Ignored {
        let mut ignored = Ignored { everywhere: self.ignore.iter().copied().collect(), ..Ignored::default() };
        for file in files {
            let (codes, unknown) = comments(&comments_with(file, WORD));
            for (line, message) in unknown {
                remark(format_args!("warning: {}:{line}: {message}", file.name));
            }
            if codes.is_empty() {
                continue;
            }
            let objects = file.manifests().flat_map(Manifest::objects);
            for policy in objects.filter(|object| policy_of(object).is_some()) {
                ignored.policies.entry(policy.name().to_owned()).or_default().extend(&codes);
            }
            ignored.files.entry(file.name.clone()).or_default().extend(codes);
        }
        ignored
    }
}

impl Ignored {
    /// Whether `code` is not reported of an object at `place`, such as `web.yaml:9`, because of `policy`. Both may be empty.
    pub(super) fn has(&self, code: Code, place: &str, policy: &str) -> bool {
        let has = |codes: Option<&BTreeSet<Code>>| codes.is_some_and(|codes| codes.contains(&code));
        let line = place.rsplit_once(':').filter(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit()));
        let file = line.map_or(place, |(file, _)| file);
        self.everywhere.contains(&code) || has(self.files.get(file)) || has(self.policies.get(policy))
    }
}

/// Parses a code by its number, as in `SCP0052` or `52`, or by its name.
///
/// # Errors
/// If there is no such code.
pub(super) fn code(text: &str) -> Result<Code, String> {
    let number = text.to_ascii_uppercase();
    let number = number.strip_prefix("SCP").unwrap_or(&number).parse::<u16>().ok();
    let is_it = |code: &&Code| Some(**code as u16) == number || code.name().eq_ignore_ascii_case(text);
    if let Some(code) = Code::ALL.iter().find(is_it) {
        return Ok(*code);
    }
    let edits = |code: &&Code| strsim::damerau_levenshtein(code.name(), text);
    let near = Code::ALL.iter().min_by_key(edits).filter(|code| edits(code) <= MAX_EDITS);
    let hint = near.map_or("write it as `SCP0052`".to_owned(), |code| format!("did you mean `{}`?", code.name()));
    Err(format!("there is no such code; {hint}"))
}

/// The codes of the `comments` `scpol: ignore CODE CODE`, each with its line, up to the first other word, and the faults of such
/// comments, each with its line.
fn comments(comments: &[(usize, &str)]) -> (BTreeSet<Code>, Vec<(usize, String)>) {
    let (mut codes, mut faults) = (BTreeSet::new(), Vec::new());
    for (line, comment) in comments {
        let Some(words) = comment.split('#').find_map(ignoring) else { continue };
        let mut words = words.split([' ', '\t', ',']).filter(|word| !word.is_empty()).peekable();
        if words.peek().is_none_or(|word| !is_meant_as_code(word)) {
            let message = "the comment `scpol: ignore` names no code; write it as `# scpol: ignore SCP0052`";
            faults.push((*line, message.to_owned()));
        }
        for word in words.take_while(|word| is_meant_as_code(word)) {
            match code(word) {
                Ok(code) => drop(codes.insert(code)),
                Err(error) => faults.push((*line, format!("`{word}`: {error}"))),
            }
        }
    }
    (codes, faults)
}

/// Whether `word` of a comment is a code, or looks like one.
fn is_meant_as_code(word: &str) -> bool {
    let is_number = word.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("SCP"));
    is_number || Code::ALL.iter().any(|code| code.name() == word)
}

/// The words behind `scpol: ignore` in `comment`. A colon more or less is meant so, too.
fn ignoring(comment: &str) -> Option<&str> {
    let words = comment.trim_start().strip_prefix(WORD)?.trim_start_matches(':');
    let words = words.trim_start().strip_prefix("ignore")?;
    (words.is_empty() || words.starts_with([' ', '\t', ':'])).then(|| words.trim_start_matches(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_named_by_its_number_or_its_name() {
        for given in ["SCP0052", "scp0052", "52", "QualityOfServiceChanged", "qualityofservicechanged"] {
            assert_eq!(code(given), Ok(Code::QualityOfServiceChanged), "{given}");
        }
        for given in ["SCP9999", "", "SCP", "-1", "99999999999"] {
            assert!(code(given).unwrap_err().contains("write it as"), "{given}");
        }
        assert!(code("QualityOfServiceChange").unwrap_err().contains("did you mean `QualityOfServiceChanged`?"));
    }

    #[test]
    fn comments_name_codes_at_the_beginning_of_a_line_and_behind_a_space() {
        for (line, expected, faults) in [
            ("# scpol: ignore SCP0052", &[52][..], 0),
            ("a: b  #scpol:ignore SCP0052, SCP0035 because of tests", &[35, 52], 0),
            ("## scpol: ignore: SCP0052 QualityOfServiceChanged scp0035", &[35, 52], 0),
            ("# scpol: ignore SCP0052 because of #12 # or so", &[52], 0),
            ("a: 'b # c' # see # scpol: ignore SCP0052", &[52], 0),
            ("# scpol ignore SCP0052", &[52], 0),
            ("a: b#scpol ignore SCP0052", &[], 0),
            ("a: 'b # scpol: ignore SCP0052'", &[], 0),
            ("a: |\n  # scpol: ignore SCP0052\n  b", &[], 0),
            ("a: |\n  # scpol: ignore SCP0052\nb: c # scpol: ignore SCP0035", &[35], 0),
            ("# scpol: ignore SCP0052\n---\na: b", &[52], 0),
            ("{\"a\": \" # scpol: ignore SCP0052\"}", &[], 0),
            ("# scpol: ignored SCP0052", &[], 0),
            ("# scpol is SCP0052", &[], 0),
            ("# scpol: ignore", &[], 1),
            ("# scpol: ignore everything", &[], 1),
            ("# scpol: ignore SCP9999 SCP0052", &[52], 1),
            ("a: ü # scpol: ignore SCP0052", &[52], 0),
        ] {
            let file = File::parse("a.yaml", line.as_bytes().to_vec()).expect("YAML");
            let (codes, found) = comments(&comments_with(&file, WORD));
            let codes: Vec<u16> = codes.into_iter().map(|code| code as u16).collect();
            assert_eq!((codes.as_slice(), found.len()), (expected, faults), "{line}: {found:?}");
        }
    }
}
