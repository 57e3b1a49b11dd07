//! Everybody who reads a pod, and what they do to the application because of what policies add. Pure.
//!
//! The API server takes a pod that admission plugins, controllers or the kubelet then stop. [`table`] has each field of a
//! template, with what each reader does. What follows from template and workload alone is a conflict on every engine
//! ([`crate::inject`]). This room has the rest: it needs other objects, which are [`Facts`].
//!
//! [`leave_out`] fails policies whose content would stop the application, as far as the facts say so. [`told`] has the
//! effects that stop nothing for sure. What is unknown stops nothing.

mod accounts;
mod autoscalers;
mod case;
mod facts;
mod jobs;
mod judge;
mod keys;
mod limits;
mod mounts;
mod page;
mod quotas;
mod sums;
pub mod table;
mod variables;

pub use case::Told;
pub use facts::{FACTS, Fact, FactKind, Facts};
pub use judge::{added_by, bare, leave_out, told, wanted};
pub use page::page;
pub(crate) use sums::sums_of;
