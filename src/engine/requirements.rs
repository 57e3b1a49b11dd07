//! What engines need of a cluster, as `scpol check` tells it. Pure.

use crate::api::code::Code;
use crate::cluster::client::CallError;
use serde_json::Value;

/// What an engine needs beyond its API.
pub struct Requirements {
    /// The rights that it needs beyond those of every operator: the texts of the shipped files.
    pub rights: &'static [&'static str],
    /// The flags of an API server of that minor version.
    pub flags: fn(u32) -> Flags,
    /// The admission plugins that must be on.
    pub plugins: &'static [&'static str],
    /// The code if one of them is off.
    pub off: Code,
    /// A create that shows whether they are on; none if only the server's metrics show it.
    pub witness: Option<Witness>,
}

/// What an API server must be started with.
pub enum Flags {
    /// This version has no such engine, whatever it is started with.
    Never(&'static str),
    /// Nothing: it is on, unless it was switched off.
    Default(&'static str),
    /// These.
    Needed(&'static str),
}

/// A create of a ConfigMap, which is not stored.
pub struct Witness {
    /// The metadata of the ConfigMap.
    pub metadata: fn() -> Value,
    /// Whether the answer shows that the engine is on; none if it does not tell.
    pub is_on: fn(&Result<Value, CallError>) -> Option<bool>,
    /// What shows that it is on.
    pub on: &'static str,
    /// What shows that it is off.
    pub off: &'static str,
}

/// A registration beside those of policies.
pub struct SideRegistration {
    /// The plural name of its resource.
    pub resource: &'static str,
    /// Its name.
    pub name: &'static str,
    /// How people call the rights that it needs.
    pub title: &'static str,
    /// The texts of the shipped files with these rights.
    pub rights: &'static [&'static str],
}
