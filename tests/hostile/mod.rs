//! What users with fewer rights than the operator, and callers without credentials, can do to it. Each test shows one
//! attack on a real server, and that it fails.
//!
//! | module | the attacker |
//! |---|---|
//! | [`serving`] | opens connections to the operator's ports |
//! | [`reviews`] | posts reviews to the webhook |
//! | [`authors`] | writes policies for a namespace |
//! | [`markers`] | writes the metadata of workloads |
//! | [`revisions`] | writes stored revisions, times and numbers |
//! | [`tenants`] | has a policy beside those of others |
//! | [`power`] | holds the operator's token |
//! | [`ways_out`] | writes workloads that a policy could leave out |
//! | [`objects`] | creates workloads that a generator makes |

mod authors;
mod generator;
#[path = "../kept/mod.rs"]
mod kept;
mod markers;
mod objects;
mod power;
mod reviews;
mod revisions;
pub(crate) mod serving;
mod tenants;
mod ways_out;

/// The tests of every file.
pub(crate) const TESTS: &[&[crate::runner::Test]] = &[
    authors::TESTS,
    markers::TESTS,
    objects::TESTS,
    power::TESTS,
    reviews::TESTS,
    revisions::TESTS,
    serving::TESTS,
    tenants::TESTS,
    ways_out::TESTS,
];
