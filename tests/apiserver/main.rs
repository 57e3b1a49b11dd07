//! Scenarios on real servers, over TLS, with the shipped RBAC and nothing more.
//!
//! All scenarios are in one program, so that tests share servers. A test has a server for itself, because registrations
//! affect the whole cluster. It passes the server to the next test, which finds it as if it were new
//! ([`controlplane::pool`]). Most tests mostly wait, so more of them run at once than there are processors:
//! `SCPOL_TEST_SERVERS`, 8 unless set. Those in `longest.txt` start first.
//!
//! `cargo test --test apiserver -- author` runs some of them. A file lists its tests in `tests![..]`.

#![expect(clippy::too_many_lines, reason = "a test is a story, or a table of cases")]

#[path = "../chaos/mod.rs"]
mod chaos;
#[path = "../support/console.rs"]
mod console;
#[path = "../hostile/mod.rs"]
mod hostile;
#[path = "../policies/mod.rs"]
mod policies;
#[path = "../support/printed.rs"]
mod printed_table;
#[path = "../support/mod.rs"]
mod support;

mod admission_policy;
mod agreement;
mod author;
mod bad_input;
mod bug_report;
mod burst;
mod cel;
mod chart;
mod check;
mod commands;
mod conformance;
mod controller;
mod corpus;
mod crd;
mod custom;
mod demos;
mod edited;
mod engine;
mod engines;
mod engines_bad_input;
mod engines_break_glass;
mod exceptions;
mod initializer;
mod install;
mod language;
mod logs;
mod malformed;
mod migrate;
mod monitoring;
mod neighbours;
mod others;
mod overlays;
mod pages;
mod parity;
mod pods;
mod prelude;
mod printed;
mod readers;
mod refused;
mod renames;
mod replicas;
mod reports;
mod rights;
mod rollout_commands;
mod rollout_left;
mod rollout_owners;
mod rollout_story;
mod rollouts;
mod rotation;
mod rows;
mod runner;
mod scenes;
mod shared_servers;
mod starts;
mod status;
mod tenant;
mod trust;
mod uninstall;
mod updates;
mod upgrade;
mod webhook;
mod webhook_scene;
mod world;

use std::process::ExitCode;

/// The tests of every file.
const TESTS: &[&[runner::Test]] = &[
    admission_policy::TESTS,
    author::TESTS,
    bad_input::TESTS,
    bug_report::TESTS,
    burst::TESTS,
    cel::TESTS,
    chart::TESTS,
    check::TESTS,
    commands::TESTS,
    controller::TESTS,
    crd::TESTS,
    custom::TESTS,
    demos::TESTS,
    engines::TESTS,
    engines_bad_input::TESTS,
    engines_break_glass::TESTS,
    edited::TESTS,
    renames::TESTS,
    exceptions::TESTS,
    initializer::TESTS,
    install::TESTS,
    language::TESTS,
    logs::TESTS,
    malformed::TESTS,
    migrate::TESTS,
    monitoring::TESTS,
    neighbours::TESTS,
    others::TESTS,
    overlays::TESTS,
    pages::TESTS,
    parity::TESTS,
    pods::TESTS,
    printed::TESTS,
    readers::TESTS,
    refused::TESTS,
    replicas::TESTS,
    reports::TESTS,
    rights::TESTS,
    rollout_commands::TESTS,
    rollout_left::TESTS,
    rollout_owners::TESTS,
    rollouts::TESTS,
    rows::TESTS,
    shared_servers::TESTS,
    starts::TESTS,
    status::TESTS,
    tenant::TESTS,
    trust::TESTS,
    uninstall::TESTS,
    updates::TESTS,
    upgrade::TESTS,
    webhook::TESTS,
];

fn main() -> ExitCode {
    runner::run([TESTS, hostile::TESTS].concat().concat())
}
