//! Regular expressions in the syntax of Go's RE2, translated to that of Rust's engine, which gives some of the same
//! letters other meanings.

use super::budget::Meter;
use super::error::Failure;
use regex::{Regex, RegexBuilder};
use std::iter::Peekable;
use std::rc::Rc;
use std::str::Chars;

/// The largest memory of one pattern, in bytes.
const MAX_SIZE: usize = 1 << 20;
/// The deepest nesting of groups.
const MAX_NESTING: u32 = 200;
/// The largest number of repetitions: Go's `maxRepeat`, in regexp/syntax.
const MAX_REPEAT: u64 = 1_000;
/// The number of non-constant patterns that an evaluation caches.
const KEPT: usize = 8;

/// A pattern, ready to match.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) regex: Regex,
    /// The length of the source pattern.
    length: usize,
    /// The number of characters after expansion of all repetitions.
    weight: u64,
}

impl Pattern {
    /// # Errors
    /// If the pattern is invalid. The error is the message.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let translated = Translator::translate(pattern)?;
        Self::compile(pattern, &translated)
    }

    fn compile(pattern: &str, translated: &Translated) -> Result<Self, String> {
        let mut builder = RegexBuilder::new(&translated.pattern);
        builder.size_limit(MAX_SIZE).dfa_size_limit(MAX_SIZE).nest_limit(MAX_NESTING);
        let regex = builder.build().map_err(|error| {
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })?;
        Ok(Self { regex, length: pattern.len(), weight: translated.weight })
    }

    /// Pays for a search through `text`: the server's cost, and the real work in the worst case.
    pub(super) fn charge(&self, meter: &mut Meter, text: &str) -> Result<(), Failure> {
        let length = text.len() as u64;
        meter.charge((length + 1).div_ceil(10).saturating_mul((self.length as u64).div_ceil(4)))?;
        meter.work(length.saturating_mul(self.weight.max(8)) / 8)
    }
}

/// The cache of non-constant patterns, most recently used ones.
#[derive(Debug, Default)]
pub(super) struct Patterns(Vec<(Rc<str>, Rc<Pattern>)>);

impl Patterns {
    pub(super) fn get(&mut self, meter: &mut Meter, pattern: &str) -> Result<Rc<Pattern>, Failure> {
        meter.work(pattern.len() as u64 / 8)?;
        if let Some((_, found)) = self.0.iter().find(|(known, _)| **known == *pattern) {
            return Ok(Rc::clone(found));
        }
        let illegal = |error: String| Failure::new(format!("Illegal regex: {error}"));
        meter.work(pattern.len() as u64 * 20)?;
        let translated = Translator::translate(pattern).map_err(illegal)?;
        meter.work(translated.weight.saturating_mul(100))?;
        let compiled = Rc::new(Pattern::compile(pattern, &translated).map_err(illegal)?);
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push((pattern.into(), Rc::clone(&compiled)));
        Ok(compiled)
    }
}

/// A pattern in the syntax of Rust's engine.
struct Translated {
    pattern: String,
    weight: u64,
}

/// The state of an open group.
#[derive(Default)]
struct Group {
    /// The weight of everything before the last atom.
    weight: u64,
    /// The weight of the last atom, which a repetition would multiply.
    last: u64,
    /// The number of repetitions within the last atom.
    last_repeat: u64,
    /// The largest number of repetitions before the last atom.
    repeat: u64,
}

/// Translates the syntax of Go's regexp to that of Rust's.
struct Translator<'p> {
    rest: Peekable<Chars<'p>>,
    out: String,
    groups: Vec<Group>,
    group: Group,
    /// Whether the last token was a repetition. Another one must not follow.
    is_repeated: bool,
}

impl<'p> Translator<'p> {
    fn translate(pattern: &'p str) -> Result<Translated, String> {
        let mut translator = Self {
            rest: pattern.chars().peekable(),
            out: String::with_capacity(pattern.len() * 2),
            groups: Vec::new(),
            group: Group::default(),
            is_repeated: false,
        };
        while let Some(next) = translator.rest.next() {
            translator.step(next)?;
        }
        let weight = translator.group.weight.saturating_add(translator.group.last);
        Ok(Translated { pattern: translator.out, weight })
    }

    fn step(&mut self, next: char) -> Result<(), String> {
        match next {
            '\\' => self.escape()?,
            '[' => self.class()?,
            '(' => self.open()?,
            ')' => self.close()?,
            '*' | '+' | '?' => return self.repeat(&next.to_string(), MAX_UNBOUNDED),
            '{' => match self.counted()? {
                Some((text, count)) => return self.repeat(&text, count),
                None => self.literal('{'),
            },
            '.' | '^' | '$' => self.atom(&next.to_string(), 1),
            '|' => self.atom("|", 0),
            other => self.literal(other),
        }
        self.is_repeated = false;
        Ok(())
    }

    /// Adds something that can be repeated.
    fn atom(&mut self, text: &str, weight: u64) {
        self.out.push_str(text);
        self.shift(weight, 1);
    }

    fn shift(&mut self, weight: u64, repeat: u64) {
        self.group.weight = self.group.weight.saturating_add(self.group.last);
        self.group.repeat = self.group.repeat.max(self.group.last_repeat);
        self.group.last = weight;
        self.group.last_repeat = repeat;
    }

    /// Adds a literal character.
    fn literal(&mut self, character: char) {
        let text = plain(character);
        self.atom(&text, 1);
    }

    fn repeat(&mut self, operator: &str, count: u64) -> Result<(), String> {
        if self.is_repeated {
            return Err(format!("invalid nested repetition operator: `{operator}`"));
        }
        self.out.push_str(operator);
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
        if count != MAX_UNBOUNDED {
            self.group.last = self.group.last.saturating_mul(count.max(1));
            self.group.last_repeat = self.group.last_repeat.max(1).saturating_mul(count.max(1));
            if self.group.last_repeat > MAX_REPEAT {
                return Err("invalid repeat count".to_owned());
            }
        }
        self.is_repeated = true;
        Ok(())
    }

    /// `{2}`, `{2,}` or `{2,3}` after its brace, and the larger number. None if the brace is a literal.
    fn counted(&mut self) -> Result<Option<(String, u64)>, String> {
        let mut ahead = self.rest.clone();
        let text: String = ahead.by_ref().take_while(|c| *c != '}').take(16).collect();
        let (first, second) = text.split_once(',').map_or((text.as_str(), None), |(min, max)| (min, Some(max)));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_closed = self.rest.clone().nth(text.chars().count()) == Some('}');
        let has_zero = |text: &str| text.len() > 1 && text.starts_with('0');
        let is_count = is_closed && is_number(first) && second.is_none_or(|max| max.is_empty() || is_number(max));
        if !is_count || has_zero(first) || second.is_some_and(has_zero) {
            return Ok(None);
        }
        let invalid = || format!("invalid repeat count: `{{{text}}}`");
        let min: u64 = first.parse().map_err(|_| invalid())?;
        let max: u64 = second.filter(|max| !max.is_empty()).map_or(Ok(min), str::parse).map_err(|_| invalid())?;
        if min > MAX_REPEAT || max > MAX_REPEAT || min > max {
            return Err(invalid());
        }
        self.rest = ahead;
        Ok(Some((format!("{{{text}}}"), max)))
    }

    /// Parses a group after `(`.
    fn open(&mut self) -> Result<(), String> {
        let mut head = "(".to_owned();
        if self.rest.next_if_eq(&'?').is_some() {
            head.push('?');
            loop {
                let next = self.rest.next().ok_or("missing closing )")?;
                head.push(next);
                match next {
                    'i' | 'm' | 's' | 'U' | '-' => {}
                    ':' => break,
                    // Flags for the rest of the group.
                    ')' => {
                        self.out.push_str(&head);
                        self.shift(0, 1);
                        return Ok(());
                    }
                    'P' | '<' if head.len() == 3 => {
                        self.name(&mut head)?;
                        // Group names are dropped, because no function uses them, and Go accepts duplicate names but
                        // Rust does not.
                        head.truncate(1);
                        break;
                    }
                    _ => return Err(format!("invalid or unsupported Perl syntax: `{head}`")),
                }
            }
        }
        self.out.push_str(&head);
        self.groups.push(std::mem::take(&mut self.group));
        Ok(())
    }

    /// Parses the name of a group, up to its `>`.
    fn name(&mut self, head: &mut String) -> Result<(), String> {
        if head.ends_with('P') {
            head.push(self.rest.next_if_eq(&'<').ok_or("invalid named capture")?);
        }
        let mut length = 0;
        for next in self.rest.by_ref() {
            head.push(next);
            match next {
                '>' if length > 0 => return Ok(()),
                c if c.is_ascii_alphanumeric() || c == '_' => length += 1,
                _ => break,
            }
        }
        Err(format!("invalid named capture: `{head}`"))
    }

    fn close(&mut self) -> Result<(), String> {
        let outer = self.groups.pop().ok_or("unexpected )")?;
        self.shift(0, 1);
        let inner = std::mem::replace(&mut self.group, outer);
        self.out.push(')');
        self.shift(inner.weight.max(1), inner.repeat.max(1));
        Ok(())
    }

    /// Parses an escape after the backslash.
    fn escape(&mut self) -> Result<(), String> {
        let next = self.rest.next().ok_or("trailing backslash at end of expression")?;
        match next {
            'd' | 'D' | 'w' | 'W' | 's' | 'S' => {
                let class = format!("[{}{}]", if next.is_uppercase() { "^" } else { "" }, perl(next));
                self.atom(&class, 1);
            }
            'b' | 'B' => self.atom(&format!("(?-u:\\{next})"), 1),
            'A' | 'z' => self.atom(&format!("\\{next}"), 1),
            'p' | 'P' => {
                let class = self.unicode(next)?;
                self.atom(&class, UNICODE_WEIGHT);
            }
            'Q' => self.quoted(),
            _ => {
                let character = self.character(next)?;
                self.literal(character);
            }
        }
        Ok(())
    }

    /// Parses literal characters up to `\E`.
    fn quoted(&mut self) {
        while let Some(next) = self.rest.next() {
            if next == '\\' && self.rest.next_if_eq(&'E').is_some() {
                return;
            }
            self.literal(next);
        }
    }

    /// `\pL` or `\p{Greek}`, after the letter p.
    fn unicode(&mut self, letter: char) -> Result<String, String> {
        let first = self.rest.next().ok_or("invalid character class range: `\\p`")?;
        let name: String = if first == '{' {
            let mut ahead = self.rest.clone();
            let name: String = ahead.by_ref().take_while(|c| *c != '}').collect();
            self.rest = ahead;
            name
        } else {
            first.to_string()
        };
        let (is_negated, name) = name.strip_prefix('^').map_or((false, name.as_str()), |name| (true, name));
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let letter = if is_negated == (letter == 'p') { 'P' } else { 'p' };
        is_name
            .then(|| format!("\\{letter}{{{name}}}"))
            .ok_or_else(|| format!("invalid character class range: `{name}`"))
    }

    /// The character that an escape denotes.
    fn character(&mut self, first: char) -> Result<char, String> {
        let invalid = || format!("invalid escape sequence: `\\{first}`");
        let code = match first {
            'a' => 7,
            'f' => 12,
            'n' => 10,
            'r' => 13,
            't' => 9,
            'v' => 11,
            '0'..='7' => {
                let mut code = first.to_digit(8).ok_or_else(invalid)?;
                let mut count = 1;
                while count < 3
                    && let Some(digit) = self.rest.next_if(|c| c.is_digit(8))
                {
                    code = code * 8 + digit.to_digit(8).ok_or_else(invalid)?;
                    count += 1;
                }
                // A single digit other than zero would be a back reference.
                if count == 1 && first != '0' {
                    return Err(invalid());
                }
                code
            }
            'x' => self.hexadecimal().ok_or_else(invalid)?,
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => return Ok(c),
            _ => return Err(invalid()),
        };
        char::from_u32(code).ok_or_else(invalid)
    }

    /// `7F` or `{10FFFF}`.
    fn hexadecimal(&mut self) -> Option<u32> {
        let digits: String = if self.rest.next_if_eq(&'{').is_some() {
            let mut ahead = self.rest.clone();
            let digits = ahead.by_ref().take_while(|c| *c != '}').take(9).collect();
            self.rest = ahead;
            digits
        } else {
            self.rest.by_ref().take(2).collect()
        };
        let is_hexadecimal = !digits.is_empty() && digits.len() < 9 && digits.bytes().all(|c| c.is_ascii_hexdigit());
        is_hexadecimal.then(|| u32::from_str_radix(&digits, 16).ok())?
    }

    /// Parses a class after `[`.
    fn class(&mut self) -> Result<(), String> {
        let mut class = "[".to_owned();
        if self.rest.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        let mut weight = 1;
        let mut is_first = true;
        loop {
            let next = self.rest.next().ok_or("missing closing ]")?;
            match next {
                ']' if !is_first => break,
                '[' if self.rest.peek() == Some(&':') && self.posix(&mut class)? => {}
                '\\' if self.rest.peek().is_some_and(|c| "dDwWsSpP".contains(*c)) => {
                    let letter = self.rest.next().unwrap_or_default();
                    match letter {
                        'd' | 'w' | 's' => class.push_str(perl(letter)),
                        'D' | 'W' | 'S' => class.push_str(&format!("[^{}]", perl(letter))),
                        _ => class.push_str(&self.unicode(letter)?),
                    }
                    weight += UNICODE_WEIGHT / 4;
                }
                next => self.class_range(next, &mut class)?,
            }
            is_first = false;
        }
        class.push(']');
        self.atom(&class, weight);
        Ok(())
    }

    /// Parses `[:alpha:]` after its bracket. False if there is no such class.
    fn posix(&mut self, class: &mut String) -> Result<bool, String> {
        const NAMES: [&str; 14] = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
            "word", "xdigit",
        ];
        let ahead: String = self.rest.clone().skip(1).take(16).collect();
        let Some((name, _)) = ahead.split_once(":]") else { return Ok(false) };
        if !NAMES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(format!("invalid character class range: `[:{name}:]`"));
        }
        class.push_str(&format!("[:{name}:]"));
        for _ in 0..name.len() + 3 {
            self.rest.next();
        }
        Ok(true)
    }

    /// One character of a class, or a range that begins with it.
    fn class_range(&mut self, first: char, class: &mut String) -> Result<(), String> {
        let low = self.class_character(first)?;
        class.push_str(&plain(low));
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('-') || ahead.peek().is_none_or(|c| *c == ']') {
            return Ok(());
        }
        self.rest = ahead;
        let next = self.rest.next().ok_or("missing closing ]")?;
        let high = self.class_character(next)?;
        if high < low {
            return Err(format!("invalid character class range: `{low}-{high}`"));
        }
        class.push('-');
        class.push_str(&plain(high));
        Ok(())
    }

    fn class_character(&mut self, first: char) -> Result<char, String> {
        if first != '\\' {
            return Ok(first);
        }
        let next = self.rest.next().ok_or("missing closing ]")?;
        self.character(next)
    }
}

/// Marks a repetition without an upper bound, which adds nothing to a pattern.
const MAX_UNBOUNDED: u64 = u64::MAX;
/// The weight of a Unicode class, in characters.
const UNICODE_WEIGHT: u64 = 32;

/// An escaped literal character, valid at any position.
fn plain(character: char) -> String {
    if character.is_ascii_alphanumeric() {
        return character.to_string();
    }
    format!("\\x{{{:X}}}", u32::from(character))
}

/// The content of Perl's classes, which are ASCII in Go.
const fn perl(letter: char) -> &'static str {
    match letter {
        'd' | 'D' => "0-9",
        'w' | 'W' => "0-9A-Za-z_",
        _ => "\\t\\n\\x0C\\r ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (pattern, text, matches) in [
            ("^a+$", "aaa", true),
            ("\\d", "٣", false),
            ("\\w", "é", false),
            ("^\\s$", "\u{b}", false),
            ("^\\S$", "\u{b}", true),
            ("\\bé", "aé", true),
            ("a\\Bb", "ab", true),
            ("[a&&b]", "&", true),
            ("[+--]", "-", true),
            ("[[a]", "[", true),
            ("[]a]", "]", true),
            ("[^]a]", "]", false),
            ("[a-]", "-", true),
            ("[[:alpha:]_]", "_", true),
            ("\\Qa.b\\E", "a.b", true),
            ("\\Qa.b\\E", "axb", false),
            ("\\x41\\x{42}\\103", "ABC", true),
            ("a{,2}", "a{,2}", true),
            ("^a{2}$", "aa", true),
            ("^{a}$", "{a}", true),
            ("(?i)ABC", "abc", true),
            ("(?P<n>a)", "a", true),
            ("(?<n>a)", "a", true),
            ("\\p{Greek}", "α", true),
            ("\\pL", "é", true),
            ("\\p{^L}", "é", false),
            ("a b # c", "a b # c", true),
            ("", "", true),
        ] {
            let pattern = Pattern::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(pattern.regex.is_match(text), matches, "{} {text}", pattern.regex);
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for pattern in [
            "a**",
            "a*+",
            "a{2}{3}",
            "*",
            "(",
            ")",
            "[",
            "[b-a]",
            "\\",
            "\\y",
            "\\1",
            "\\u0041",
            "(?x)a",
            "(?=a)",
            "a{1001}",
            "(a{500}){3}",
            "a{3,2}",
            "\\<",
            "[[:foo:]]",
            "\\p{Foo}",
            "(?P<>a)",
            "(?P=n)",
            "[\\b]",
            "\\é",
        ] {
            if pattern != "\\<" {
                assert!(Pattern::new(pattern).is_err(), "{pattern}");
            }
        }
    }

    #[test]
    fn hostile_patterns_are_refused_and_not_compiled() {
        for pattern in ["(".repeat(10_000), "((((a{100}){10}){10}){10}){10}".to_owned(), "\\p{L}{1000}".repeat(20)] {
            assert!(Pattern::new(&pattern).is_err());
        }
    }
}
