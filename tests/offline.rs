//! All tests without a server in one program. Each file is a module.

mod access;
mod architecture;
mod chart;
mod commands;
#[path = "support/console.rs"]
mod console;
mod convert;
mod crd;
mod dashboard;
mod golden;
mod kept;
mod laws;
mod lint;
mod manifests;
mod policies;
mod tools;
mod undo;
mod updates;
