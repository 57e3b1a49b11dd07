//! # sidecar-policy
//!
//! A Kubernetes operator that *injects* the *template* of a *policy* into every new *workload* that the policy *matches*.
//!
//! ```text
//!  SidecarPolicy ──parse──▶ Policy ──┐
//!  (api, crds/)     (policy)         ├─ policy::decide ─▶ Verdict ─┐
//!  Deployment, ... ────────▶ Workload┘      (pure)                 ├─ inject::plan ─▶ Patch
//!  (watch, raw JSON)        (workload)                             ┘     (pure)
//!                                       decision::Decision joins both, for all policies
//! ```
//!
//! One idea carries everything: **one pure [`policy::decide`], one pure [`inject::plan`]**. An [`engine`] is a way to have them asked at
//! the right moment.
//!
//! There are three crates. `admission-cel` is the CEL of Kubernetes admission. `sidecar-policy-core` decides, plans, compiles and reviews;
//! it has no client and no clock. This crate is the operator and the command line. It re-exports the modules of the core, so `crate::api`
//! is `crates/core/src/api`.
//!
//! | to change | look in |
//! |---|---|
//! | a field, a bound or a rule of the custom resource | core: [`api`] (`v1alpha1`, `rules`, `crd`), then `make crds` |
//! | a code and its text | core: [`api::code`] |
//! | the text of a condition | core: [`api::condition`] |
//! | which built-in kinds are workloads | core: [`workload`] (`TABLE`) |
//! | which workloads a policy matches | core: [`policy::checks`] |
//! | what expressions mean | the crate `admission-cel` |
//! | what an injected workload looks like, and conflicts | core: [`inject`] |
//! | the result of many policies for one workload | core: [`decision`] |
//! | what a policy adds, and its revisions | core: [`content`] |
//! | what one workload gets of a policy | core: [`policy::deliver`] and the file of that name |
//! | how policies become CEL, or webhook configurations | core: [`compile`] |
//! | the answers of the webhook | core: [`review`] |
//! | the spelling, the length and the display of text from others | core: [`outside`]; in URLs: [`cluster::api`] |
//! | what `scpol lint` finds | core: [`lint`] |
//! | who else reads a pod, and what they do to it because of us | core: [`readers`], with its table of fields |
//! | what old initializers, PodPresets and annotations of other injectors become | core: [`mod@convert`] |
//! | how manifests are read and written back | core: [`manifest`]; files and folders: [`source`] |
//! | what an engine is; which engines there are | [`engine::Engine`]; `ENGINES` in [`engine`]. Each has a folder beside it |
//! | which engine serves which kind | [`engine::choice`] |
//! | the reaction to a registration that fails, is edited or is deleted by hand | [`engine::lifecycle`] and [`engine::hold`] |
//! | how registrations are written and verified | [`engine::registration`], [`engine::probe`], [`engine::trial`] |
//! | how policies become registrations | [`controller`]: `discovery`, `planner`, `watches`, `registrations` |
//! | when a condition holds, and its variable text | [`controller`]: `status` (`describe`), `policy_state` (`outcome_of`) |
//! | the work of engines in the operator process | [`engine::process`]: `Worker`, `Serving` |
//! | how stored workloads are watched, counted and reported | [`workloads`] |
//! | the reports of `--reports` | [`workloads::reports`] |
//! | how a stored workload gets another content of a policy, or loses it | core: [`refit`] |
//! | which workloads a rollout touches, when and in which order | core: [`rollout`]; the loop around it: [`roller`] |
//! | the steps of a rollout | core: [`rollout::steps`]; for new workloads [`policy::extent`] |
//! | the facts that tasks of the process tell each other | [`board`] |
//! | how we connect, watch, lead and write events | [`cluster`] |
//! | what an answer of the server means; how we ask for rights | [`cluster::answer`], [`cluster::rights`] |
//! | which rights the operator is granted | `config/rbac`; `scpol check` reads them: [`cli`] (`check/rights`) |
//! | how rooms say which policy they mean | core: [`policy::PolicyRef`] |
//! | how objects of ours are written and deleted beside other clients | [`cluster::keep`] |
//! | the connection, configuration and caches of the process | [`operator`] |
//! | the start of the operator, its term as leader | [`cli`] (`run`) |
//! | commands and flags | [`cli`] |
//! | a column of `kubectl get`; of `scpol status` | core: `printcolumn` in `api/v1alpha1.rs`; [`cli`] (`status/mod`) |
//! | what an API server can do; the names of our objects | core: [`capabilities`], [`naming`] |
//! | the scrape, the probes, the log | [`metrics`], [`serving`], [`telemetry`] |
//! | which connections a port accepts, keeps and closes | `listener` |
//! | waiting times that no flag sets | [`timing`] |
//!
//! Words of the code:
//!
//! - *engine*: a way to deliver a policy.
//! - *kind*: a resource that policies target, with the path of its pod template.
//! - *registration*: the objects on the API server that make an engine act, for one policy or for all policies on a kind.
//! - *in effect*: a registration that is verified, or that no dry-run create can verify.
//! - *verify*: to see by a dry-run create that a registration has its effect. *Unverified*: dry-run creates cannot show it.
//! - *hold*: the time for which a registration that a person deleted is not made again.
//! - *marker*: the annotation on a pod that lists what was added to it.
//! - *row*: a step that decides about a policy and a workload: rows 0 to 7 whether it matches, row 8 whether it conflicts.
//! - *slot*: one policy or one kind, which has at most one registration. *Wish*: what the plan wants for a slot.
//! - *passed over*: an engine that would come first and cannot express a policy.
//! - *missed*, *outdated*: a workload without the sidecar; one with the sidecar of an earlier template, or with other values of
//!   parameters than it would get now.
//! - *to wait*: a new object waits until its initializers have completed it.
//!
//! Tests on real servers start the operator with `SCPOL_TIMING=short`, which makes it wait less ([`timing`]). With
//! `SCPOL_TEST_TIMING=documented` they wait as long as production does.
//!
//! `tests/architecture.rs` proves what is pure, that in this crate only its folder and one registry know an engine, and that folders do
//! not import each other in a circle.

#![cfg_attr(test, expect(clippy::too_many_lines, reason = "a test is a story, or a table of cases"))]

pub mod board;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod engine;
pub(crate) mod listener;
pub mod metrics;
pub mod operator;
pub mod roller;
pub mod serving;
pub mod source;
mod survival;
pub mod telemetry;
pub mod timing;
pub mod workloads;

use sidecar_policy_core::digest;
pub use sidecar_policy_core::{
    api, capabilities, compile, content, convert, decision, inject, lint, manifest, naming, outside, parameters,
    policy, qos, ranking, readers, refit, review, rollout, workload,
};
