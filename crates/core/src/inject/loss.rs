//! What an update takes away of the additions of a policy.
//!
//! The marker of the stored object lists the additions. Only what the stored object still had can be lost, so that an
//! update of something else brings nothing back. Content is compared by key alone: a changed image is no loss.

use super::Template;
use super::field;
use super::listed::{Listed, What};
use super::tables::{MAPS, key_in};
use crate::workload::Workload;
use serde_json::Value;

/// The loss of a policy's additions by an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The marker is kept, and some content that it lists is gone.
    Content,
    /// The marker is gone, or has become unreadable.
    Marker,
}

/// The loss of the additions of `template`'s policy by an update of `old` to `new`. None if nothing is lost: `old` has
/// no marker, or `new` has all listed content that is in `old`.
///
/// A new object with a marker of another hash loses nothing: it comes with another revision of the content, as after
/// `kubectl rollout undo`.
pub fn loss(template: &Template, old: &Workload, new: &Workload) -> Option<Loss> {
    let before = template.marker(old)?;
    let Some(after) = template.marker(new) else { return Some(Loss::Marker) };
    if after.hash != before.hash {
        return None;
    }
    let is_gone =
        |pointer: &String| ListedItem::at(pointer, old).is_some_and(|item| item.is_in(old) && item.is_gone(new));
    before.added.iter().any(is_gone).then_some(Loss::Content)
}

/// An item of a list, or an entry of a map, that a marker lists.
struct ListedItem(Listed);

impl ListedItem {
    /// The item or entry at `pointer` of a marker on `workload`. None for a created list or map, and for a pointer that no
    /// marker of ours has.
    fn at(pointer: &str, workload: &Workload) -> Option<Self> {
        // JSON writes control characters in several ways, and no key has one.
        let listed = Listed::parse(&workload.pod_pointer(), pointer).filter(|_| !pointer.contains(|c| c < ' '))?;
        (!matches!(listed.what, What::Parent)).then_some(Self(listed))
    }

    fn is_in(&self, workload: &Workload) -> bool {
        let Some(pod) = workload.pod() else { return false };
        if let Some((_, part)) = self.0.part() {
            return self.0.joined(pod).is_some_and(|value| part.is_in(value));
        }
        if let What::Field(entry) = self.0.what {
            return field::holds(&pod["spec"], entry, &self.0.tokens);
        }
        match &self.steps()[..] {
            ["metadata", map, key] => {
                debug_assert!(MAPS.iter().any(|entries| entries.field == *map));
                pod["metadata"].get(map).and_then(|map| map.get(key)).is_some()
            }
            ["spec", list, key] => keyed(&pod["spec"], list, key).next().is_some(),
            ["spec", list, container, inner, key] => {
                keyed(&pod["spec"], list, container).any(|container| keyed(container, inner, key).next().is_some())
            }
            _ => false,
        }
    }

    /// Whether `new` lacks the item. An addition to a container of the user goes with that container, which is no loss.
    fn is_gone(&self, new: &Workload) -> bool {
        let is_without_place = match &self.steps()[..] {
            ["spec", list, container, _, _, ..] if !matches!(self.0.what, What::Field(_)) => {
                new.pod().is_none_or(|pod| keyed(&pod["spec"], list, container).next().is_none())
            }
            _ => false,
        };
        !is_without_place && !self.is_in(new)
    }

    fn steps(&self) -> Vec<&str> {
        self.0.tokens.iter().map(String::as_str).collect()
    }
}

/// The items with the key `key` of the list `list` of the map `of`.
fn keyed<'a>(of: &'a Value, list: &'a str, key: &'a str) -> impl Iterator<Item = &'a Value> {
    let items = of.get(list).and_then(Value::as_array).into_iter().flatten();
    items.filter(move |item| item.as_object().is_some_and(|item| key_in(list, item) == key))
}
