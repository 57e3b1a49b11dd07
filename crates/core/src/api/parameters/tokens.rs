//! The parts of a path: `containers[envoy].image` has two fields and an item.

/// A part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'p> {
    /// A field.
    Field(&'p str),
    /// An item of a list or a map, in brackets.
    Item(&'p str),
}

impl<'p> Token<'p> {
    /// The text, without brackets.
    pub(super) fn text(self) -> &'p str {
        match self {
            Self::Field(text) | Self::Item(text) => text,
        }
    }

    /// Whether a path of the table that has this part covers one that has `other`.
    pub(super) fn covers(self, other: &Token<'_>) -> bool {
        match (self, *other) {
            (Self::Item(_), Token::Item(_)) => true,
            (Self::Field(own), other) if own.bytes().all(|byte| byte.is_ascii_uppercase()) => !other.text().is_empty(),
            (Self::Field("containers"), Token::Field("initContainers")) => true,
            (Self::Field(own), Token::Field(other)) => own.split('|').any(|own| own == other),
            _ => false,
        }
    }
}

/// The parts of `path`; none if it is none. A bracket ends where a `.`, a `[` or the end of the path follows.
pub(super) fn tokens(path: &str) -> Option<Vec<Token<'_>>> {
    let mut found = Vec::new();
    let mut rest = path;
    loop {
        let (field, after) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
        if field.is_empty() {
            return None;
        }
        found.push(Token::Field(field));
        rest = after;
        while let Some(inside) = rest.strip_prefix('[') {
            let is_end = |(at, _): &(usize, &str)| {
                *at > 0 && (at + 1 == inside.len() || inside[at + 1..].starts_with(['.', '[']))
            };
            let (end, _) = inside.match_indices(']').find(is_end)?;
            found.push(Token::Item(&inside[..end]));
            rest = &inside[end + 1..];
        }
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None => return rest.is_empty().then_some(found),
        }
    }
}

/// `tokens` as a path.
pub(super) fn written(tokens: &[Token<'_>]) -> String {
    let mut path = String::new();
    for token in tokens {
        match token {
            Token::Field(field) if path.is_empty() => path.push_str(field),
            Token::Field(field) => path = format!("{path}.{field}"),
            Token::Item(item) => path = format!("{path}[{item}]"),
        }
    }
    path
}
