//! The requirements of engines on a cluster, for `scpol check`. Pure.

use crate::api::code::Code;
use crate::cluster::client::CallError;
use serde_json::Value;

/// The requirements of an engine beyond its API.
pub struct Requirements {
    /// The rights beyond those of every operator, as texts of the shipped files.
    pub rights: &'static [&'static str],
    /// The flags that an API server of this minor version needs.
    pub flags: fn(u32) -> Flags,
    /// The admission plugins that must be on.
    pub plugins: &'static [&'static str],
    /// The code that reports a plugin that is off.
    pub off: Code,
    /// A create that shows whether the plugins are on; none if only the metrics of the server show it.
    pub witness: Option<Witness>,
}

/// The flags with which an API server must be started.
pub enum Flags {
    /// This version never has the engine, whatever its flags.
    Never(&'static str),
    /// None: the engine is on by default.
    Default(&'static str),
    /// These flags.
    Needed(&'static str),
}

/// A dry-run create of a ConfigMap.
pub struct Witness {
    pub metadata: fn() -> Value,
    /// Whether the answer shows that the engine is on; none if the answer leaves that open.
    pub is_on: fn(&Result<Value, CallError>) -> Option<bool>,
    /// The observation that shows that the engine is on.
    pub on: &'static str,
    /// The observation that shows that the engine is off.
    pub off: &'static str,
}

/// An additional registration beside those of policies.
pub struct SideRegistration {
    pub name: &'static str,
    /// The name of its rights in messages.
    pub title: &'static str,
    /// The texts of the shipped files that grant these rights.
    pub rights: &'static [&'static str],
}
