//! Objects that wait for this operator before the API server shows them to other clients.

use crate::cluster::object::Object;
use crate::workload::{Kind, ObjectRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Whether an object has just been created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A watch event shows the object.
    Fresh,
    /// A list shows the object, so its age is unknown.
    Listed,
}

/// The relation of an object to this operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No initializer is pending.
    Initialized,
    /// Our name is first in the list.
    WaitsForUs,
    /// Our name is later in the list.
    WaitsForOthers,
    /// Our name is not in the list, or the object has been rejected.
    Foreign,
}

/// The number of waiting objects.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    /// The number of objects that wait for us, by policy.
    pub by_policy: HashMap<String, i64>,
    /// Since when the oldest of these waits.
    pub oldest: Option<Instant>,
    /// Since when the oldest object waits that first waits for another initializer.
    pub oldest_foreign: Option<Instant>,
}

/// Keeps the objects that wait.
pub trait Waiting: Send + Sync {
    /// Records `object`, which is not initialized. Returns its relation to us.
    fn offer(&self, kind: &Arc<Kind>, object: Object, news: News) -> Standing;

    /// Records that `object`, in that version, does not wait any more. A list may be older than the known state.
    fn done(&self, object: &ObjectRef, version: u64, news: News);

    /// Records that `object` was deleted.
    fn deleted(&self, object: &ObjectRef);

    /// Removes every object of `kind` for which `keep` is false, because a new list does not show it.
    fn retain(&self, kind: &Arc<Kind>, keep: &dyn Fn(&ObjectRef) -> bool);

    fn holds(&self, kind: &Kind) -> bool;

    fn has(&self, object: &ObjectRef) -> bool;

    fn pending(&self) -> Pending;
}
