//! All tests without a server in one program. Each file is a module.

#![expect(clippy::too_many_lines, reason = "a test is a story, or a table of cases")]

mod access;
mod architecture;
mod author_check;
mod chart;
mod commands;
#[path = "support/console.rs"]
mod console;
mod convert;
mod crd;
mod dashboard;
mod edited;
#[path = "hostile/generator.rs"]
mod generator;
mod golden;
mod hostile_objects;
mod kept;
mod laws;
mod lint;
mod manifests;
mod parameter_laws;
mod parameter_pages;
mod pictures;
mod policies;
mod printed;
#[path = "support/printed.rs"]
mod printed_table;
mod reader;
mod readers;
mod refit;
mod tenant;
mod tools;
mod undo;
