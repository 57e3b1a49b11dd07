//! # sidecar-policy
//!
//! A Kubernetes operator that *injects* the *template* of a *policy* into every new *workload* that the policy *matches*.
//!
//! ```text
//!  SidecarPolicy ──parse──▶ Policy ──┐
//!  (api, crds/)     (policy)         ├─ policy::decide ─▶ Verdict ─┐
//!  Deployment, ... ────────▶ Workload┘      (pure)                 ├─ inject::plan ─▶ Patch ─▶ one PATCH
//!  (watch, raw JSON)        (workload)                             ┘     (pure)
//! ```
//!
//! One idea carries everything: **one pure [`policy::decide`], one pure [`inject::plan`]**. An [`engine`] is a way to have
//! them asked at the right moment: [`engine::initializer`] for Kubernetes 1.12 and 1.13, [`engine::webhook`] from 1.9, and
//! [`engine::admission_policy`] from 1.36, which has the API server itself ask them, as CEL.
//!
//! | to change | look in |
//! |---|---|
//! | a field, a bound, a rule of the custom resource | [`api`] (`v1alpha1`, `rules`, `crd`), then `make crds` |
//! | a reason and its text | [`api::code`] |
//! | which workload a policy matches | [`policy::checks`] |
//! | what expressions mean | [`admission_cel`], a crate of its own in `crates/` |
//! | what an injected workload looks like, and conflicts | [`inject`] |
//! | what becomes of one workload under many policies | [`decision`] |
//! | which engine serves which resource | [`engine::choice`], [`controller`] (`plan`) |
//! | what an engine is, and which there are | [`engine::Engine`] |
//! | what happens after a registration fails, is edited or is deleted by hand | [`controller`] (`lifecycle`, pure) |
//! | how registrations are written, verified and watched | [`engine::registration`], [`engine::trial`], [`controller`] (`registrations`) |
//! | what Initializers are told, and the loop behind it | [`engine::initializer`] |
//! | what becomes CEL, and what cannot | [`engine::admission_policy`] |
//! | what a webhook registers, answers and shows as certificate | [`engine::webhook`] |
//! | how policies become registrations and status | [`controller`] |
//! | how stored workloads are seen and counted, and what is remembered of failures | [`workloads`] |
//! | what `scpol lint` finds | [`lint`] |
//! | the start of the operator, its term as leader, its log | [`cli`] (`run`), [`telemetry`] |
//! | what old initializers and PodPresets become | [`mod@convert`] |
//! | how manifests are read and written back | [`manifest`] |
//! | how we talk to the API server, lead, write events | [`cluster`] |
//! | commands and flags | [`cli`] |
//! | the scrape and the probes | [`metrics`], [`serving`] |
//! | how long the operator waits for anything | [`timing`] |
//!
//! Words of the code:
//!
//! - *engine*: a way to deliver a policy.
//! - *kind*: a resource that policies target, with the path of its pod template.
//! - *registration*: the objects on the API server that make an engine act, for one policy or for all policies on a kind.
//! - *in effect*: a registration that is verified, or that nobody can verify. Conditions and messages say *in force*.
//! - *verify*: to see by a create that is not stored that a registration shows. *Unverified*: no such create tells.
//! - *hold*: the time for which a registration that a person deleted is not made again.
//! - *marker*: the annotation on a pod that says what was added to it.
//! - *row*: one of the seven steps that decide whether a policy matches a workload.
//! - *missed*, *outdated*: a workload without the sidecar; one with the sidecar of an earlier template.
//! - *to wait*: a new object that an initializer has not completed yet.
//!
//! Tests on real servers start the operator with `SCPOL_TIMING=short`, which makes it wait less ([`timing`]). With
//! `SCPOL_TEST_TIMING=documented` they wait as long as production does.
//!
//! Nothing in `policy`, `inject`, `workload` and `api` knows a client, a clock or `async`; `tests/architecture.rs` sees to
//! that.

pub mod cli;
pub mod cluster;
pub mod controller;
pub mod engine;
pub mod metrics;
pub mod operator;
pub mod serving;
pub mod source;
mod survival;
pub mod telemetry;
pub mod timing;
pub mod workloads;

use sidecar_policy_core::digest;
pub use sidecar_policy_core::{
    api, capabilities, compile, convert, decision, inject, lint, manifest, naming, policy, review, targets, workload,
};
