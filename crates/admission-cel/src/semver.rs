//! Semantic versions, parsed and ordered as in github.com/blang/semver.

use std::cmp::Ordering;

/// A version. Build metadata is dropped, because it does not affect the order.
#[derive(Debug)]
pub(super) struct Semver {
    pub(super) numbers: [u64; 3],
    pre: Vec<Identifier>,
}

/// A part of a pre-release. Numbers come before words.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

impl Semver {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (major, minor, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        if build.is_some_and(|build| !build.split('.').all(is_identifier)) {
            return None;
        }
        let pre = pre.map_or(Some(Vec::new()), |pre| pre.split('.').map(Identifier::parse).collect())?;
        Some(Self { numbers: [number(major)?, number(minor)?, number(patch)?], pre })
    }

    /// As [`Self::parse`], after the server's normalization.
    pub(super) fn parse_normalized(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
        if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return None;
        }
        parts.resize(3, "0".to_owned());
        Self::parse(&parts.join("."))
    }

    /// The order of two versions. A pre-release comes before its release.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let pre = match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre.cmp(&other.pre),
        };
        self.numbers.cmp(&other.numbers).then(pre)
    }
}

impl Identifier {
    fn parse(text: &str) -> Option<Self> {
        if !is_identifier(text) {
            return None;
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return number(text).map(Self::Number);
        }
        Some(Self::Word(text.to_owned()))
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A number without a leading zero.
fn number(text: &str) -> Option<u64> {
    let has_zero = text.len() > 1 && text.starts_with('0');
    if has_zero || !text.bytes().all(|byte| byte.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn without_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|c: char| c.is_ascii_digit()) { rest.to_owned() } else { format!("0{rest}") }
}
