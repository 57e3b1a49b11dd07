//! URLs, parsed as Go's net/url does.

use super::dialect::{Dialect, ONE_COLON_IN_HOSTS};
use std::borrow::Cow;

/// The parts of a URL.
#[derive(Debug, Default)]
pub(super) struct Url {
    pub(super) scheme: String,
    /// The rest after the scheme if it is no path, as in `mailto:a@b`.
    opaque: String,
    user: Option<String>,
    pub(super) host: String,
    /// The path as written.
    pub(super) path: String,
    /// None without a question mark.
    pub(super) query: Option<String>,
    fragment: String,
}

/// Characters that need no escape in any part.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

impl Url {
    /// `url.ParseRequestURI`: an absolute URL, or a path.
    pub(super) fn is_request_uri(text: &str, dialect: Dialect) -> bool {
        Self::parse_as(text, true, dialect).is_some()
    }

    /// Parses the argument of `url()`: it must be a request URI, and is then parsed without its fragment.
    pub(super) fn parse(text: &str, dialect: Dialect) -> Option<Self> {
        Self::parse_as(text, true, dialect)?;
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        unescaped(fragment.as_bytes(), |_| true)?;
        let url = Self::parse_as(rest, false, dialect)?;
        Some(Self { fragment: fragment.to_owned(), ..url })
    }

    fn parse_as(text: &str, is_request: bool, dialect: Dialect) -> Option<Self> {
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) || (text.is_empty() && is_request) {
            return None;
        }
        let (scheme, rest) = scheme_of(text)?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query.to_owned())));
        let scheme = scheme.to_ascii_lowercase();
        let mut url = Self { scheme, query, ..Self::default() };
        if text == "*" {
            url.path = "*".to_owned();
            return Some(url);
        }
        if !rest.starts_with('/') {
            if !url.scheme.is_empty() {
                url.opaque = rest.to_owned();
                return Some(url);
            }
            let first = rest.split('/').next().unwrap_or_default();
            return (!is_request && !first.contains(':')).then_some(url);
        }
        let has_authority = !url.scheme.is_empty() || (!is_request && !rest.starts_with("///"));
        let path = match rest.strip_prefix("//").filter(|_| has_authority) {
            Some(rest) => {
                let (authority, path) = rest.split_at_checked(rest.find('/').unwrap_or(rest.len()))?;
                url.authority(authority, dialect)?;
                path
            }
            None => rest,
        };
        unescaped(path.as_bytes(), |_| true)?;
        url.path = path.to_owned();
        Some(url)
    }

    fn authority(&mut self, text: &str, dialect: Dialect) -> Option<()> {
        let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
        if let Some(user) = user {
            let is_valid = |byte| is_unreserved(byte) || b":!$&'()*+,;=%@".contains(&byte);
            user.bytes().all(is_valid).then_some(())?;
            unescaped(user.as_bytes(), |_| true)?;
            self.user = Some(user.to_owned());
        }
        self.host = parse_host(host, dialect)?;
        Some(())
    }

    /// The URL as one text, for comparison.
    pub(super) fn text(&self) -> String {
        let Self { scheme, opaque, user, host, query, fragment, .. } = self;
        let path = self.escaped_path();
        format!("{scheme}:{opaque}//{user:?}@{host}{path}{query:?}#{fragment}")
    }

    pub(super) fn host_and_port(&self) -> (&str, &str) {
        let (host, port) = match self.host.rfind(':').and_then(|colon| self.host.split_at_checked(colon)) {
            Some((host, port)) if is_port(port) => (host, port.get(1..).unwrap_or_default()),
            _ => (self.host.as_str(), ""),
        };
        (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
    }

    /// The path as written if all its characters are valid, else escaped again.
    pub(super) fn escaped_path(&self) -> String {
        let is_plain = |byte| is_unreserved(byte) || b"!$&'()*+,;=:@[]%/".contains(&byte);
        if self.path.bytes().all(is_plain) {
            return self.path.clone();
        }
        let bytes = unescaped(self.path.as_bytes(), |_| true).unwrap_or_default();
        let keeps = |byte: u8| is_unreserved(byte) || b"$&+,/:;=@".contains(&byte);
        let escape = |byte: &u8| match keeps(*byte) {
            true => char::from(*byte).to_string(),
            false => format!("%{byte:02X}"),
        };
        bytes.iter().map(escape).collect()
    }
}

/// The scheme without its colon, and the rest. Empty without a scheme.
fn scheme_of(text: &str) -> Option<(&str, &str)> {
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index > 0 => return text.split_once(':'),
            b':' => return None,
            _ => break,
        }
    }
    Some(("", text))
}

/// `:80`, `:` or nothing.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn parse_host(text: &str, dialect: Dialect) -> Option<String> {
    if text.starts_with('[') {
        let end = text.rfind(']')?;
        let (address, port) = text.split_at_checked(end + 1)?;
        is_port(port).then_some(())?;
        return bracketed(address).map(|address| address + port);
    }
    if let Some((_, port)) = text.rfind(':').and_then(|colon| text.split_at_checked(colon)) {
        is_port(port).then_some(())?;
    }
    let host = String::from_utf8_lossy(&host_bytes(text)?).into_owned();
    (host.matches(':').count() < 2 || !dialect.has(ONE_COLON_IN_HOSTS)).then_some(host)
}

/// `[address]` or `[address%25zone]`.
fn bracketed(text: &str) -> Option<String> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let (address, zone) = inner.split_once("%25").map_or((inner, None), |(address, zone)| (address, Some(zone)));
    address.parse::<std::net::Ipv6Addr>().ok()?;
    let zone = match zone {
        Some("") => return None,
        Some(zone) => format!("%{}", String::from_utf8_lossy(&unescaped(zone.as_bytes(), |_| true)?)),
        None => String::new(),
    };
    Some(format!("[{}{zone}]", String::from_utf8_lossy(&host_bytes(address)?)))
}

/// A host without escapes. Only non-ASCII characters and the percent sign may be escaped.
fn host_bytes(text: &str) -> Option<Cow<'_, [u8]>> {
    let is_valid = |byte: u8| is_unreserved(byte) || byte >= 0x80 || b"!$&'()*+,;=:[]<>\"%".contains(&byte);
    text.bytes().all(is_valid).then_some(())?;
    unescaped(text.as_bytes(), |byte| byte >= 0x80 || byte == b'%')
}

/// The bytes with their escapes replaced. None if an escape is incomplete, or denotes a byte that must not be escaped.
pub(super) fn unescaped(bytes: &[u8], may_be_escaped: impl Fn(u8) -> bool) -> Option<Cow<'_, [u8]>> {
    if !bytes.contains(&b'%') {
        return Some(Cow::Borrowed(bytes));
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            plain.push(*byte);
            continue;
        }
        let byte = digit(rest.next()?)? << 4 | digit(rest.next()?)?;
        may_be_escaped(byte).then(|| plain.push(byte))?;
    }
    Some(Cow::Owned(plain))
}
