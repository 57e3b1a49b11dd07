//! Splits source text into tokens.

use super::dialect::{Dialect, NO_SURROGATES};
use super::error::Fault;

/// A token and the byte where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) at: usize,
    pub(super) kind: TokenKind,
}

/// The kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind {
    /// A name, which may be a reserved word.
    Name(String),
    /// A name in backticks.
    Escaped(String),
    /// Digits of an integer, without sign; parsed with its sign.
    Int(String),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator, a bracket, a comma, or a reserved word: `in`, `true`, `false`, `null`.
    Symbol(&'static str),
    End,
}

/// Longest first, so that `<=` is not split at `<`.
const SYMBOLS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "?", ":", "+", "-", "*", "/", "%", "(", ")", "[", "]", "{", "}",
    ",", ".", ";",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

/// The tokens of `source`. The last one is [`TokenKind::End`].
///
/// # Errors
/// If some text is no token.
pub(super) fn tokens(source: &str, dialect: Dialect) -> Result<Vec<Token>, Fault> {
    let mut lexer = Lexer { source, dialect, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space();
        let at = lexer.at;
        let kind = lexer.next()?;
        let is_end = kind == TokenKind::End;
        tokens.push(Token { at, kind });
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    dialect: Dialect,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    /// Takes all characters for which `is_part` is true.
    fn take(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = rest.get(..rest.find(|c| !is_part(c)).unwrap_or(rest.len())).unwrap_or_default();
        self.at += taken.len();
        taken
    }

    fn skip_space(&mut self) {
        loop {
            self.take(|c| matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}'));
            if !self.rest().starts_with("//") {
                return;
            }
            self.take(|c| c != '\n');
        }
    }

    fn next(&mut self) -> Result<TokenKind, Fault> {
        let Some(first) = self.peek() else { return Ok(TokenKind::End) };
        let second_is_digit = self.rest().chars().nth(1).is_some_and(|c| c.is_ascii_digit());
        if let Some((prefix, quote)) = self.string_start() {
            return self.string(prefix, quote);
        }
        if first.is_ascii_digit() || (first == '.' && second_is_digit) {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
            let word = WORDS.into_iter().find(|word| *word == name);
            return Ok(word.map_or_else(|| TokenKind::Name(name.to_owned()), TokenKind::Symbol));
        }
        if first == '`' {
            return self.escaped_name();
        }
        match SYMBOLS.into_iter().find(|symbol| self.rest().starts_with(symbol)) {
            Some(symbol) => {
                self.at += symbol.len();
                Ok(TokenKind::Symbol(symbol))
            }
            None => Err(Fault::new(self.at, format!("Syntax error: token recognition error at: '{first}'"))),
        }
    }

    fn escaped_name(&mut self) -> Result<TokenKind, Fault> {
        let start = self.at;
        self.at += 1;
        let name = self.take(|c| c.is_ascii_alphanumeric() || "_.-/ ".contains(c)).to_owned();
        match self.bump() {
            Some('`') if !name.is_empty() => Ok(TokenKind::Escaped(name)),
            _ => Err(Fault::new(start, "Syntax error: token recognition error at: '`'")),
        }
    }

    /// The prefix and the quotes of a string that begins here.
    fn string_start(&self) -> Option<(&'a str, &'static str)> {
        let rest = self.rest();
        // The prefix has at most two letters, so only three bytes are searched.
        let quote_at = rest.bytes().take(3).position(|byte| matches!(byte, b'"' | b'\''))?;
        let (prefix, quoted) = rest.split_at_checked(quote_at)?;
        let is_prefix = matches!(prefix.to_ascii_lowercase().as_str(), "" | "r" | "b" | "br");
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| quoted.starts_with(quote))?;
        is_prefix.then_some((prefix, quote))
    }

    fn string(&mut self, prefix: &str, quote: &'static str) -> Result<TokenKind, Fault> {
        let start = self.at;
        self.at += prefix.len() + quote.len();
        let is_raw = prefix.contains(['r', 'R']);
        let mut content = Content {
            is_bytes: prefix.contains(['b', 'B']),
            replaces_surrogates: !self.dialect.has(NO_SURROGATES),
            bytes: Vec::new(),
        };
        while !self.rest().starts_with(quote) {
            let at = self.at;
            match self.bump() {
                None => return Err(Fault::new(start, "Syntax error: the string is not closed")),
                Some('\n' | '\r') if quote.len() == 1 => {
                    return Err(Fault::new(start, "Syntax error: the string is not closed on its line"));
                }
                Some('\\') if !is_raw => {
                    self.escape(&mut content).ok_or_else(|| Fault::new(at, "Syntax error: no such escape sequence"))?;
                }
                // A carriage return within triple quotes becomes a line feed.
                Some('\r') => {
                    if self.peek() != Some('\n') {
                        content.push('\n');
                    }
                }
                Some(c) => content.push(c),
            }
        }
        self.at += quote.len();
        content.finish().ok_or_else(|| Fault::new(start, "Syntax error: the string is not UTF-8"))
    }

    /// Parses an escape after the backslash.
    fn escape(&mut self, content: &mut Content) -> Option<()> {
        let plain = match self.bump()? {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            c @ ('\\' | '\'' | '"' | '`' | '?') => c,
            'x' | 'X' => return content.push_number(self.digits(2, 16)?),
            'u' if !content.is_bytes => return content.push_number(self.digits(4, 16)?),
            'U' if !content.is_bytes => return content.push_number(self.digits(8, 16)?),
            '0'..='3' => {
                self.at -= 1;
                return content.push_number(self.digits(3, 8)?);
            }
            _ => return None,
        };
        content.push(plain);
        Some(())
    }

    fn digits(&mut self, count: usize, radix: u32) -> Option<u32> {
        let digits = self.rest().get(..count).filter(|digits| digits.chars().all(|c| c.is_digit(radix)))?;
        self.at += count;
        u32::from_str_radix(digits, radix).ok()
    }

    fn number(&mut self) -> Result<TokenKind, Fault> {
        let start = self.at;
        let rest = self.rest();
        if let Some(hex) = rest.strip_prefix("0x").filter(|hex| hex.starts_with(|c: char| c.is_ascii_hexdigit())) {
            self.at += 2;
            let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            self.at += end;
            return self.integer(start, rest.get(..end + 2).unwrap_or_default());
        }
        let whole = self.take(|c| c.is_ascii_digit());
        let has_fraction = self.fraction();
        let has_exponent = self.exponent();
        if !has_fraction && !has_exponent {
            return self.integer(start, whole);
        }
        let text = self.source.get(start..self.at).unwrap_or_default();
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        value.map(TokenKind::Double).ok_or_else(|| Fault::new(start, "invalid double literal"))
    }

    /// Takes `.5`. A dot without a digit selects a field.
    fn fraction(&mut self) -> bool {
        let is_fraction =
            self.rest().strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if is_fraction {
            self.at += 1;
            self.take(|c| c.is_ascii_digit());
        }
        is_fraction
    }

    fn exponent(&mut self) -> bool {
        let Some(rest) = self.rest().strip_prefix(['e', 'E']) else { return false };
        let unsigned = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
            return false;
        }
        self.at += 1 + rest.len() - unsigned.len();
        self.take(|c| c.is_ascii_digit());
        true
    }

    fn integer(&mut self, start: usize, digits: &str) -> Result<TokenKind, Fault> {
        if !self.rest().starts_with(['u', 'U']) {
            return Ok(TokenKind::Int(digits.to_owned()));
        }
        self.at += 1;
        let value = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        value.map(TokenKind::Uint).map_err(|_| Fault::new(start, "invalid uint literal"))
    }
}

/// The content of a string or bytes literal.
struct Content {
    is_bytes: bool,
    replaces_surrogates: bool,
    bytes: Vec<u8>,
}

impl Content {
    fn push(&mut self, c: char) {
        self.bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }

    /// A byte, or the code point of a character.
    fn push_number(&mut self, number: u32) -> Option<()> {
        if self.is_bytes {
            self.bytes.push(u8::try_from(number).ok()?);
        } else {
            let replacement = (0xD800..0xE000).contains(&number) && self.replaces_surrogates;
            self.push(if replacement { char::REPLACEMENT_CHARACTER } else { char::from_u32(number)? });
        }
        Some(())
    }

    fn finish(self) -> Option<TokenKind> {
        if self.is_bytes {
            return Some(TokenKind::Bytes(self.bytes));
        }
        String::from_utf8(self.bytes).ok().map(TokenKind::Text)
    }
}
