//! The ways to deliver a template. An engine is one folder: take the folder and its row in `ENGINES` away, and the engine
//! is gone.
//!
//! [`initializer`] registers policies, one by one, and acts on stored objects. The others register *resources*: all
//! policies that may meet on one share one registration there, since order and conflicts need it. [`choice`] says which
//! engine serves which resource; [`registration`] writes what engines register, [`trial`] proves that it works.

pub mod admission_policy;
pub mod choice;
pub mod initializer;
pub mod object;
pub mod registration;
pub mod targets;
pub mod trial;
pub mod webhook;

use crate::api::code::Code;
use crate::api::v1alpha1::EngineChoice;
use crate::cluster::capabilities::Capabilities;
use crate::cluster::capabilities::registration as resources;
use std::fmt;

/// Why something cannot be delivered: a code, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unavailable {
    /// The code.
    pub code: Code,
    /// What is missing, and where it could be had.
    pub message: String,
}

impl Unavailable {
    /// A reason with its code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// An engine, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineName {
    /// Objects are completed before anybody sees them, on Kubernetes 1.12 and 1.13.
    Initializer,
    /// The API server itself injects, from 1.36.
    MutatingAdmissionPolicy,
    /// The API server asks the operator, from 1.9.
    Webhook,
}

impl EngineName {
    /// The name as in `spec.engine`, `status.engine` and metrics.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Those that a `status.engine` lists, with commas between them.
    pub fn listed(engines: &str) -> impl Iterator<Item = Self> {
        engines.split(',').filter_map(|name| ENGINES.iter().find(|row| row.name == name.trim())).map(|row| row.engine)
    }

    /// The engine that a policy asks for; none if it takes what is there.
    pub fn asked_for(choice: EngineChoice) -> Option<Self> {
        ENGINES.iter().find(|row| row.choice == choice).map(|row| row.engine)
    }

    /// Why it cannot run on `cluster`, if it cannot. That an API is served proves nothing: a trial follows.
    ///
    /// # Errors
    /// The reason, with the server's flag to set.
    pub fn check(self, cluster: &Capabilities) -> Result<(), Unavailable> {
        (self.row().check)(cluster)
    }

    /// What it registers, as plural names of [`resources::ALL`]: the first is what injects.
    pub fn registers(self) -> &'static [&'static str] {
        self.row().registers
    }

    fn row(self) -> &'static Row {
        ENGINES.iter().find(|row| row.engine == self).expect("every engine has a row")
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

struct Row {
    engine: EngineName,
    choice: EngineChoice,
    name: &'static str,
    check: fn(&Capabilities) -> Result<(), Unavailable>,
    registers: &'static [&'static str],
}

/// Every engine, in the order in which `Auto` prefers them.
static ENGINES: [Row; 3] = [
    Row {
        engine: EngineName::Initializer,
        choice: EngineChoice::Initializer,
        name: "Initializer",
        check: initializer::check,
        registers: &[resources::INITIALIZERS],
    },
    Row {
        engine: EngineName::MutatingAdmissionPolicy,
        choice: EngineChoice::MutatingAdmissionPolicy,
        name: "MutatingAdmissionPolicy",
        check: admission_policy::check,
        registers: &[resources::MUTATING_POLICIES, resources::MUTATING_BINDINGS],
    },
    Row {
        engine: EngineName::Webhook,
        choice: EngineChoice::Webhook,
        name: "Webhook",
        check: webhook::check,
        registers: &[resources::MUTATING_WEBHOOKS],
    },
];
