//! Rollouts: how stored workloads come to the content that their policy has now, as a pure state machine. It has no client, and the
//! time is passed in.
//!
//! [`Machine::step`] takes an event and returns actions. The leader looks at the facts ([`Event::Look`]), runs the actions, and reports
//! what became of them. What must survive the leader stands in the update revision, as its [`Record`]; the [`Machine`] may be lost.
//!
//! | the record says | a look leads to |
//! |---|---|
//! | replaced | nothing: another rollout begins |
//! | not halted | failure: halted. Step over: the next one. All done: ended. Else: announced writes, then these writes |
//! | halted | nothing; with `onFailure: Undo` the way back, if a revision was complete before |
//! | going back | announced writes, then these writes, until nothing is left to do |
//! | ended | writes for what is missed or outdated later. No failure |
//!
//! A resume ends a halt and a pause, and is followed once. An edit of the content begins another rollout ([`stored::Begin`]).
//!
//! # Guarantees
//! Each is a sentence of the model in `tests/model`, which tries every interleaving of small worlds.
//!
//! - Never more is unavailable on our account than `maxUnavailable`, however many leaders there are, and however late they write: each
//!   write is announced in the record first, which only one leader can write over the version that it has read.
//! - Evictions of all leaders and policies together keep the limit of a minute.
//! - The namespaces of the steps only grow, and no other namespace gets the new content.
//! - `Complete` is said only once all that match have the content, or are left with a reason.
//! - A halt holds until a person or an edit ends it. A rollout that has ended does not fail.
//! - A fact that is not known holds a rollout, and is neither zero nor done.
//!
//! | part | what |
//! |---|---|
//! | [`facts`] | what one look is about |
//! | [`machine`] | the state machine |
//! | [`pace`] | which workloads are next, and how far the rollout is |
//! | [`look`] | the result of a look |
//! | [`answer`] | what became of an attempt on one workload |
//! | [`record`] | what a revision says about its rollout |
//! | [`stored`] | the stored revisions, and what new workloads get meanwhile |
//! | [`steps`] | which workloads have the update revision |
//! | [`removal`] | the same machine for a command that takes the content of a policy out of running pods |
//! | [`limit`] | the limit of evictions in a minute |
//! | [`member`] | workloads and the controllers of pods, as far as rollouts need them |
//! | [`by_hand`] | pods that their controller does not replace, so that a person must delete them |
//! | `health` | whether a stored workload serves its users |
//! | `words` | the sentences about a rollout |
//!
//! Words: a *member* is a workload that the policy matches. An *owner* is the controller of a pod. A write is *announced* in the
//! record, and *open* until the watch shows what became of it. What is *left* stays as it is, with a reason. *Broken* is what was
//! unavailable before its update.

pub mod answer;
pub mod by_hand;
pub mod facts;
mod health;
pub mod limit;
pub mod look;
pub mod machine;
pub mod member;
pub mod pace;
pub mod record;
pub mod removal;
pub mod steps;
pub mod stored;
#[cfg(test)]
mod tests;
mod words;

pub use crate::refit::Way;
pub use answer::{Answer, Done, Why};
pub use facts::{Aim, Busy, Facts, Leading, Makers, Pace, Published, Queries, Unknown, World};
pub use health::Health;
pub use look::{Failure, Look, Next, Numbers};
pub use machine::{Action, Event, Machine, Outcome, Told};
pub use member::{Member, Members, Owner, Owners};
pub use pace::Memory;
pub use record::Record;
pub use stored::{Foreign, StoredRevision};
