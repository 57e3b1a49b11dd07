//! A cache of the objects of one watch, with the bookkeeping of relists.
//!
//! kube's own store keeps whole objects, each behind a lock and one more pointer. This cache keeps only the needed part
//! of each object.

use crate::cluster::object::Object;
use kube::runtime::watcher::Event;
use std::collections::BTreeMap;

/// The cached value of every object of one watch, by the object's name. For cluster-scoped objects.
pub struct WatchCache<V> {
    known: BTreeMap<String, V>,
    /// The list that is being read.
    listing: BTreeMap<String, V>,
    is_complete: bool,
}

impl<V> Default for WatchCache<V> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), listing: BTreeMap::new(), is_complete: false }
    }
}

impl<V> WatchCache<V> {
    /// Applies `event`. `read` makes the new cached value from an object and its previous value.
    pub fn apply(&mut self, event: &Event<Object>, read: impl FnOnce(&Object, Option<&V>) -> V) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                let value = read(object, self.known.get(object.name()));
                self.listing.insert(object.name().to_owned(), value);
            }
            Event::InitDone => {
                self.known = std::mem::take(&mut self.listing);
                self.is_complete = true;
            }
            Event::Apply(object) => {
                let value = read(object, self.known.get(object.name()));
                self.known.insert(object.name().to_owned(), value);
            }
            Event::Delete(object) => drop(self.known.remove(object.name())),
        }
    }

    /// Adds an object that we wrote ourselves, unless the watch has already shown it.
    pub fn expect(&mut self, name: &str, value: V) {
        if !self.known.contains_key(name) {
            self.known.insert(name.to_owned(), value);
        }
    }

    /// Changes the cached value `name`, if there is one.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut V)) {
        self.known.get_mut(name).map(change);
    }

    /// All cached values, by name.
    pub fn known(&self) -> &BTreeMap<String, V> {
        &self.known
    }

    /// Whether a list has been read to its end.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_read_anew_replaces_what_was_known_at_its_end() {
        let object = |name: &str, generation: i64| {
            serde_json::from_value::<Object>(
                serde_json::json!({ "metadata": { "name": name, "generation": generation } }),
            )
            .unwrap()
        };
        let mut cache = WatchCache::default();
        let mut apply = |event| {
            cache.apply(&event, |object, _| object.generation());
            (cache.known.clone(), cache.is_complete)
        };
        let both = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]);
        for event in [Event::Init, Event::InitApply(object("a", 1)), Event::InitApply(object("b", 1))] {
            assert_eq!(apply(event), (BTreeMap::new(), false));
        }
        assert_eq!(apply(Event::InitDone), (both.clone(), true));
        // A list that breaks off changes nothing.
        for event in [Event::Init, Event::InitApply(object("b", 2)), Event::Init, Event::InitApply(object("a", 2))] {
            assert_eq!(apply(event), (both.clone(), true));
        }
        assert_eq!(apply(Event::InitDone), (BTreeMap::from([("a".to_owned(), 2)]), true));
        assert_eq!(apply(Event::Apply(object("a", 3))).0, BTreeMap::from([("a".to_owned(), 3)]));
        assert_eq!(apply(Event::Delete(object("a", 3))).0, BTreeMap::new());
    }
}
