//! Objects that wait for this operator before the API server shows them to anybody else.

use crate::cluster::object::Object;
use crate::workload::Kind;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Which stored object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Arc<Kind>,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// A reference to `object`.
    pub fn new(kind: &Arc<Kind>, object: &Object) -> Self {
        Self { kind: kind.clone(), namespace: object.namespace().to_owned(), name: object.name().to_owned() }
    }

    /// The namespace and the name.
    pub fn place(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

/// Whether an object has just been created, as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A watch shows it.
    Fresh,
    /// It is in a list.
    Listed,
}

/// How an object stands to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is pending.
    Initialized,
    /// Our name is first.
    WaitsForUs,
    /// Our name comes later.
    WaitsForOthers,
    /// Our name is not there, or the object has been rejected.
    Foreign,
}

/// How many objects wait.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// The objects that wait for us, by policy.
    pub by_policy: HashMap<String, i64>,
    /// Since when the oldest of them waits.
    pub oldest: Option<Instant>,
    /// Since when the oldest object waits that waits for somebody else first.
    pub oldest_foreign: Option<Instant>,
}

/// Takes over which objects wait.
pub trait Waiting: Send + Sync {
    /// Takes over `object`, which is not initialized, and says how it stands to us.
    fn offer(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing;

    /// Takes over that `object`, as of that version, does not wait any more. What a list says may be older than what is known.
    fn done(&self, object: &ObjectRef, version: u64, news: News);

    /// Takes over that `object` was deleted.
    fn deleted(&self, object: &ObjectRef);

    /// Drops every object of `kind` for which `keep` is false: a new list has not shown them.
    fn retain(&self, kind: &Arc<Kind>, keep: &dyn Fn(&ObjectRef) -> bool);

    /// Whether any object of `kind` waits.
    fn holds(&self, kind: &Kind) -> bool;

    /// Whether `object` waits.
    fn has(&self, object: &ObjectRef) -> bool;

    /// How many objects wait.
    fn pending(&self) -> Pending;
}
