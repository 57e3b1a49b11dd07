//! Scenarios on real servers, over TLS, with the shipped RBAC and nothing more.
//!
//! Each test has a server of its own, since registrations concern the whole cluster.

#[path = "../policies/mod.rs"]
mod policies;
#[path = "../support/mod.rs"]
mod support;

mod admission_policy;
mod author;
mod bad_input;
mod burst;
mod cel;
mod check;
mod commands;
mod controller;
mod corpus;
mod crd;
mod custom;
mod engines;
mod engines_bad_input;
mod engines_break_glass;
mod exceptions;
mod initializer;
mod install;
mod language;
mod malformed;
mod migrate;
mod others;
mod pace;
mod parity;
mod pods;
mod protobuf;
mod replicas;
mod rights;
mod rotation;
mod rows;
mod scenes;
mod status;
mod trust;
mod uninstall;
mod webhook;
mod webhook_scene;
mod world;
