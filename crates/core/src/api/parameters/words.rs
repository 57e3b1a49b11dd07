//! Names and values in messages, which stay short whatever is in them.

use crate::api::schema::{quoted, similar};
use crate::outside::{cut, escaped};

/// The most names in a message.
const MOST: usize = 8;
/// The most characters of a value in a message.
const SHOWN: usize = 64;
/// The longest name that may be a misspelt one, in bytes: to compare costs the product of both lengths.
const LONGEST: usize = 64;

/// The first of `names`, each cut, as a list.
pub(super) fn few<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = if names.len() > MOST { ", …" } else { "" };
    let few: Vec<String> = names.take(MOST).map(|name| escaped(&quoted(name)).into_owned()).collect();
    format!("{}{more}", few.join(", "))
}

/// The one of `names` that `name` probably means.
pub(super) fn meant<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    (name.len() <= LONGEST).then(|| similar(name, names.filter(|name| name.len() <= LONGEST)))?
}

/// A value in a message.
pub(super) fn shown(text: &str) -> String {
    if text.is_empty() { "empty".to_owned() } else { format!("`{}`", cut(text, SHOWN)) }
}
