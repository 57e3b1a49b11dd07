//! Who has written a policy.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// The sender of a request, as reported by the API server.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Author {
    #[serde(deserialize_with = "or_empty")]
    pub(super) username: String,
    #[serde(deserialize_with = "or_empty")]
    pub(super) uid: String,
    #[serde(deserialize_with = "or_empty")]
    pub(super) groups: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    pub(super) extra: BTreeMap<String, Option<Vec<String>>>,
}

/// API servers write a missing list as null.
pub(super) fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Author {
    /// The user name.
    pub fn name(&self) -> &str {
        &self.username
    }

    /// A user of this name in these groups.
    pub fn named(username: String, groups: Vec<String>) -> Self {
        Self { username, groups, ..Self::default() }
    }

    /// The groups of the user.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The length of all texts, in bytes.
    pub(super) fn size(&self) -> usize {
        let extra = self.extra.iter().flat_map(|(key, values)| [key].into_iter().chain(values.iter().flatten()));
        [&self.username, &self.uid].into_iter().chain(&self.groups).chain(extra).map(String::len).sum()
    }
}
