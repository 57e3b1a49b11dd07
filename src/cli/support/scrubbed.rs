//! Texts that others have written, without the values that were hidden elsewhere and without credentials in addresses.

use super::redacted::{Found, REDACTED};
use crate::outside::escaped;
use aho_corasick::AhoCorasick;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

/// The least characters of a hidden value that is looked for in texts.
const LEAST: usize = 4;
/// The least characters of a value that is looked for within words, too.
const SURE: usize = 8;
/// The most characters before the end of a text that was cut.
const LONGEST: usize = 4096;
/// Words that are no secrets, even as a hidden value: a log needs them for its levels.
const COMMON: [&str; 18] = [
    "true", "false", "none", "null", "auto", "info", "INFO", "warn", "WARN", "error", "ERROR", "debug", "DEBUG",
    "trace", "TRACE", "http", "https", "json",
];
/// How the API server introduces a value that it rejects.
const REJECTED: [&str; 3] = ["Invalid value: ", "Unsupported value: ", "Duplicate value: "];
/// The parts of our messages about values that workloads may give parameters, up to where a value may be: of a refused value, of other values
/// than those of the sources, of a template that values make invalid, and of a conflict or a change.
const GIVEN: [&[&str]; 6] = [
    &["parameter `", "`, from ", ": "],
    &["other values when it is made again: ", " is "],
    &["its values make `", "` invalid: "],
    &[" another `", "`: "],
    &["host port "],
    &["terminationGracePeriodSeconds` of the pod is "],
];
/// Those of [`GIVEN`] whose values need not be in quotes.
const UNQUOTED: [&str; 2] = ["its values make `", "terminationGracePeriodSeconds` of the pod is "];

/// Takes hidden values and credentials out of texts.
pub(super) struct Scrubber {
    /// Sorted.
    patterns: Vec<String>,
    /// None if there are too many patterns: then no text is shown.
    finder: Option<AhoCorasick>,
}

impl Scrubber {
    /// A scrubber that takes the hidden values of `found` out, and their parts, but for those that are shown elsewhere.
    pub(super) fn of(found: &Found) -> Self {
        let hidden = found.hidden.iter().flat_map(|text| pieces(text)).filter(|piece| !found.shown.contains(*piece));
        let patterns: BTreeSet<_> = hidden.flat_map(forms).collect();
        let patterns: Vec<_> = patterns.into_iter().collect();
        Self { finder: AhoCorasick::new(&patterns).ok(), patterns }
    }

    /// `text` without them.
    pub(super) fn scrubbed(&self, text: &str) -> String {
        let Some(finder) = &self.finder else { return REDACTED.to_owned() };
        let mut ranges = self.found(finder, text);
        ranges.extend(self.cut_off(text));
        without_credentials(&without_rejected(&without_given(&replaced(text, ranges))))
    }

    /// Where patterns are.
    fn found(&self, finder: &AhoCorasick, text: &str) -> Vec<Range<usize>> {
        let is_whole = |found: &Range<usize>| {
            let is_inner = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
            let before = &text[..found.start];
            // The letter of an escaped end of a line is none of a word.
            let is_escape = before.strip_suffix(['n', 'r', 't']).is_some_and(|before| before.ends_with('\\'));
            (is_escape || !is_inner(before.chars().next_back())) && !is_inner(text[found.end..].chars().next())
        };
        let found = finder.find_overlapping_iter(text).map(|found| (found.range(), &self.patterns[found.pattern()]));
        found.filter(|(range, pattern)| is_sure(pattern) || is_whole(range)).map(|(range, _)| range).collect()
    }

    /// Where the beginning of a pattern is before `…`, which ends a text that was too long.
    fn cut_off(&self, text: &str) -> Vec<Range<usize>> {
        // The patterns are sorted, so those with this beginning follow it.
        let is_beginning = |cut: &str| {
            let next = self.patterns.partition_point(|pattern| pattern.as_str() < cut);
            self.patterns.get(next).is_some_and(|pattern| pattern.starts_with(cut))
        };
        let longest = |end: usize| {
            let line = text[..end].rfind('\n').map_or(0, |at| at + 1);
            let starts = text[line..end].char_indices().rev().map(|(at, _)| line + at).take(LONGEST).skip(LEAST - 1);
            let found = starts.filter(|start| is_beginning(&text[*start..end])).last();
            found.map(|start| start..end)
        };
        text.match_indices('…').filter_map(|(end, _)| longest(end)).collect()
    }
}

/// `text` with [`REDACTED`] in place of the `ranges`, which may overlap.
fn replaced(text: &str, mut ranges: Vec<Range<usize>>) -> String {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for range in ranges {
        if range.start >= at {
            out.push_str(&text[at..range.start]);
            out.push_str(REDACTED);
        }
        at = at.max(range.end);
    }
    out + &text[at..]
}

/// Whether `secret` is looked for within words. One word of small letters is not: it may be a part of any other.
fn is_sure(secret: &str) -> bool {
    secret.chars().count() >= SURE && !secret.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// A hidden value, its lines, and the parts of these that messages may repeat alone.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |character: char| character.is_whitespace() || "\"'`=,;@".contains(character);
    let lines = text.lines().map(str::trim);
    let parts = text.split(is_end).filter(|part| is_sure(part));
    iter::once(text.trim())
        .chain(lines)
        .chain(parts)
        .filter(|piece| piece.chars().count() >= LEAST && !COMMON.contains(piece))
}

/// `piece` as it may be in a text: as it is, and escaped as our messages, JSON and Rust have it, once or in each other.
fn forms(piece: &str) -> Vec<String> {
    let once = escapes(piece);
    once.iter().flat_map(|text| escapes(text)).chain(once.clone()).collect()
}

fn escapes(piece: &str) -> [String; 4] {
    let json = serde_json::to_string(piece).unwrap_or_default();
    let json = json.strip_prefix('"').and_then(|json| json.strip_suffix('"')).unwrap_or(piece);
    [piece.to_owned(), escaped(piece).into_owned(), json.to_owned(), piece.escape_debug().to_string()]
}

/// `text` without the values that the API server rejects.
fn without_rejected(text: &str) -> Cow<'_, str> {
    if !REJECTED.iter().any(|words| text.contains(words)) {
        return Cow::Borrowed(text);
    }
    let mut text = Cow::Borrowed(text);
    for words in REJECTED {
        let ranges = text.match_indices(words).map(|(at, _)| at + words.len());
        let ranges = ranges.map(|at| at..at + rejected(&text[at..])).filter(|range| !range.is_empty()).collect();
        text = Cow::Owned(replaced(&text, ranges));
    }
    text
}

/// `text` without the values that workloads give parameters, and without the words up to the last quote of the line. A message may be cut
/// within a value, which then ends in `…`. What a failed expression says has no quotes of ours, and numbers have none: there the rest of the
/// line goes.
fn without_given(text: &str) -> Cow<'_, str> {
    if !GIVEN.iter().any(|parts| text.contains(parts[0])) {
        return Cow::Borrowed(text);
    }
    let behind = |line: &str, parts: &[&str]| {
        parts.iter().try_fold(0, |at, part| Some(at + line[at..].find(part)? + part.len()))
    };
    let line = |line: &str| {
        let given = GIVEN.iter().filter_map(|parts| {
            let first = behind(line, parts)?;
            let told = &line[first..];
            let quote = told.rfind('`').map(|at| at + 1).max(told.rfind('…').map(|at| at + '…'.len_utf8()));
            let is_quoted = !told.starts_with("failed: ") && !UNQUOTED.contains(&parts[0]);
            let end = quote.filter(|_| is_quoted).unwrap_or(told.trim_end_matches('\n').len());
            Some(first..first + end)
        });
        replaced(line, given.collect())
    };
    Cow::Owned(text.split_inclusive('\n').map(line).collect())
}

/// The length of the value at the beginning of `text`: that in quotes, none for a number, else the rest of the line.
fn rejected(text: &str) -> usize {
    let line = text.lines().next().unwrap_or_default();
    let number = line.trim_start_matches(|character: char| character.is_ascii_digit());
    if number.starts_with(':') {
        return 0;
    }
    let quote = ["\\\"", "\""].into_iter().find(|quote| line.starts_with(quote));
    let end = quote.and_then(|quote| {
        let mut ends = line.match_indices(quote).skip(1);
        ends.find(|(at, _)| !line[..*at].ends_with('\\')).map(|(at, _)| at + quote.len())
    });
    end.unwrap_or(line.len())
}

/// `text` without user, password, query and fragment of addresses, and without the word after `Bearer` and `Basic`.
fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_credential = false;
    // An apostrophe may be a part of an address.
    let is_end = |character: char| character.is_whitespace() || "\"`<>\\".contains(character);
    let mut last = [' '; 3];
    let mut is_address = false;
    let ends = |character: char| {
        last = [last[1], last[2], character];
        is_address |= last == [':', '/', '/'];
        let is_end = is_end(character) || (character == '\'' && !is_address);
        is_address &= !is_end;
        is_end
    };
    for part in text.split_inclusive(ends) {
        let end = part.chars().next_back().filter(|end| is_end(*end) || (*end == '\'' && !part.contains("://")));
        let word = &part[..part.len() - end.map_or(0, char::len_utf8)];
        match is_credential && !word.is_empty() {
            true => out.push_str(REDACTED),
            false => out.push_str(&address(word)),
        }
        out.extend(end);
        let is_blank = word.is_empty() && is_credential;
        is_credential = is_blank || is_scheme(word);
    }
    out
}

/// Whether a credential follows `word`, as in `Authorization:Bearer`.
fn is_scheme(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let before = ["bearer", "basic"].into_iter().find_map(|scheme| word.strip_suffix(scheme));
    before.is_some_and(|before| !before.ends_with(char::is_alphanumeric))
}

/// `word` without user, password, query and fragment, if it is an address.
pub(super) fn address(word: &str) -> Cow<'_, str> {
    let digest = ["@sha256:", "@sha512:"].into_iter().filter_map(|mark| word.rfind(mark)).max();
    let (mut rest, mut digest) = word.split_at(digest.unwrap_or(word.len()));
    if !digest.bytes().skip(8).all(|byte| byte.is_ascii_alphanumeric()) {
        (rest, digest) = (word, "");
    }
    let mut out = String::new();
    let scheme = rest.find("://").map(|at| at + 3);
    if let Some((user, host)) = rest.rsplit_once('@')
        && user.contains(':')
    {
        let scheme = scheme.filter(|end| *end <= user.len()).unwrap_or_default();
        out.push_str(&format!("{}{REDACTED}@", &user[..scheme]));
        rest = host;
    }
    let is_query = |at: usize| scheme.is_some() || rest[at..].contains('=');
    match rest.find(['?', '#']).filter(|at| is_query(*at)) {
        Some(at) => out.push_str(&format!("{}{REDACTED}", &rest[..=at])),
        None if out.is_empty() => return Cow::Borrowed(word),
        None => out.push_str(rest),
    }
    Cow::Owned(out + digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubbed(hidden: &[&str], text: &str) -> String {
        let hidden = hidden.iter().map(|text| (*text).to_owned()).collect();
        Scrubber::of(&Found { hidden, shown: ["envoy-1".to_owned()].into() }).scrubbed(text)
    }

    #[test]
    fn hidden_values_are_taken_out_whole_also_if_one_begins_another() {
        for (hidden, text, expected) in [
            (vec!["s3cret-a", "s3cret-a-and-more"], "x s3cret-a-and-more y", "x (redacted) y"),
            (vec!["abc-1234567", "4567-xyzzy"], "abc-1234567-xyzzy", "(redacted)"),
            (vec!["hunter"], "password hunter, hunters", "password (redacted), hunters"),
            (vec!["pw1x"], "it is pw1x", "it is (redacted)"),
            (vec!["info", "abc", ""], "info abc", "info abc"),
            (vec!["envoy-1"], "container envoy-1", "container envoy-1"),
            (vec!["one\ntwo-lines"], "one two-lines", "one (redacted)"),
            (vec!["admin\nhunter"], r"quotes `admin\nhunter`", "quotes `(redacted)`"),
            (vec!["--config=line one\npw1x"], r"x\npw1x", r"x\n(redacted)"),
            (vec!["tab\tpw2x"], r"tab\\tpw2x", "(redacted)"),
            (vec!["pa\"s\\w"], r#"pa\\\"s\\\\w"#, "(redacted)"),
            (vec!["curl -u me:S3cretOf x"], "me:S3cretOf", "(redacted)"),
        ] {
            assert_eq!(scrubbed(&hidden, text), expected, "{hidden:?}");
        }
    }

    #[test]
    fn hidden_values_are_taken_out_as_texts_escape_or_cut_them() {
        let hidden = ["pa\"ss\\w0rd"];
        for text in ["pa\"ss\\w0rd", r#"{"message":"pa\"ss\\w0rd"}"#, &format!("{:?}", hidden[0])] {
            let found = scrubbed(&hidden, text);
            assert!(found.contains(REDACTED) && !found.contains("w0rd"), "{text}: {found}");
        }
        assert_eq!(scrubbed(&["a\u{1b}-s3cret"], "a\\u{1b}-s3cret"), REDACTED);
        assert_eq!(
            scrubbed(&["s3cret-of-mine", "s3cret"], "a…\nit is s3cret-of…, s3c…"),
            "a…\nit is (redacted)…, s3c…"
        );
        assert_eq!(scrubbed(&["äs3cret"], "äs3c… äs3"), "(redacted)… äs3");
    }

    #[test]
    fn addresses_lose_their_credentials() {
        for (text, expected) in [
            ("Get \"https://me:pw@a.b:1/c?d=e\": EOF", "Get \"https://(redacted)@a.b:1/c?(redacted)\": EOF"),
            ("https://token@git.example.com/x#frag", "https://(redacted)@git.example.com/x#(redacted)"),
            ("http://a:p@w@host/", "http://(redacted)@host/"),
            ("http://a:p/w?@host/", "http://(redacted)@host/"),
            ("me:pw@reg/x:1@sha256:0a", "(redacted)@reg/x:1@sha256:0a"),
            ("me:pw@shadow", "(redacted)@shadow"),
            ("reg:5000/x@sha256:0a", "reg:5000/x@sha256:0a"),
            ("/health?token=x", "/health?(redacted)"),
            ("object.a ? b : c", "object.a ? b : c"),
            ("Authorization: Bearer abc, Basic dTpw", "Authorization: Bearer (redacted) Basic (redacted)"),
            ("team@example.com", "team@example.com"),
            ("https://me:p'w0rdX@a.b/c", "https://(redacted)@a.b/c"),
            ("https://a.b/c?sig='abcSIGdef'&x=y z", "https://a.b/c?(redacted) z"),
            ("'https://a.b/c' 'd'", "'https://a.b/c' 'd'"),
            ("Authorization:Bearer tok {basic dTpw", "Authorization:Bearer (redacted) {basic (redacted)"),
        ] {
            assert_eq!(scrubbed(&[], text), expected);
        }
    }

    #[test]
    fn what_workloads_give_parameters_is_taken_out() {
        let refused = "SCP0245: parameter `level`, from annotation `a/level` of the pod: ";
        let wrong = "must be one of `debug`, `info`, is ";
        for (text, expected) in [
            (format!("{refused}{wrong}`x`y`; write `info`, or\nb `c`"), format!("{refused}(redacted), or\nb `c`")),
            (format!("{{\"m\":\"{refused}{wrong}`x\\\"y`\"}}"), format!("{{\"m\":\"{refused}(redacted)\"}}")),
            (
                "other values when it is made again: `level` is `x`, now `y`".to_owned(),
                "other values when it is made again: `level` is (redacted)".to_owned(),
            ),
            ("parameter `level`: no path".to_owned(), "parameter `level`: no path".to_owned()),
            (
                format!("{{\"m\":\"{refused}must be one of `a`, is `hunter2-…\",\"n\":1}}"),
                format!("{{\"m\":\"{refused}(redacted)\",\"n\":1}}"),
            ),
            (
                "SCP0245: its values make `spec.template.containers[0].resources.requests.cpu` invalid: must be at most `5`, is 7\nb".to_owned(),
                "SCP0245: its values make `spec.template.containers[0].resources.requests.cpu` invalid: (redacted)\nb".to_owned(),
            ),
            (
                "SCP0213: container `a` exists with another `image`: `a:1` here, `b:2` in the template".to_owned(),
                "SCP0213: container `a` exists with another `image`: (redacted) in the template".to_owned(),
            ),
            (
                "policies `a` and `b` add container `c` with another `image`: `a:1` and `b:2`".to_owned(),
                "policies `a` and `b` add container `c` with another `image`: (redacted)".to_owned(),
            ),
            (
                "host port 4711/TCP of the template's container `a` is used by container `b`".to_owned(),
                "host port (redacted)".to_owned(),
            ),
            ("`spec.terminationGracePeriodSeconds` of the pod is 30, below 4711".to_owned(), "`spec.terminationGracePeriodSeconds` of the pod is (redacted)".to_owned()),
            (
                "parameter `drain`, from `expression`: failed: time: invalid duration \"s3cret\"\nb".to_owned(),
                "parameter `drain`, from `expression`: (redacted)\nb".to_owned(),
            ),
        ] {
            assert_eq!(scrubbed(&[], &text), expected);
        }
    }

    #[test]
    fn a_rejected_value_is_taken_out() {
        for (text, expected) in [
            ("a: Invalid value: \"x\\\"y\": must be z", "a: Invalid value: (redacted): must be z"),
            (r#"{"m":"Invalid value: \"x\\\"y\": must"}"#, r#"{"m":"Invalid value: (redacted): must"}"#),
            ("a: Invalid value: 5: must be z", "a: Invalid value: 5: must be z"),
            ("Duplicate value: v1.Pod{A: b}\nc", "Duplicate value: (redacted)\nc"),
        ] {
            assert_eq!(scrubbed(&[], text), expected);
        }
    }
}
