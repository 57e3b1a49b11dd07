//! The rules, one row each.

mod state;
mod writes;

use crate::{Site, State, Write};

/// A rule for each write of the operator.
pub struct WriteRule {
    /// The name in reports.
    pub name: &'static str,
    /// The rule in a sentence.
    pub wants: &'static str,
    /// The violation by a write, if there is one.
    pub check: fn(&Site, &Write) -> Option<String>,
}

/// A rule for the final objects.
pub struct StateRule {
    /// The name in reports.
    pub name: &'static str,
    /// The rule in a sentence.
    pub wants: &'static str,
    /// The violations, by object.
    pub check: fn(&Site, &State) -> Vec<(String, String)>,
}

/// The rules for writes.
pub const WRITES: [WriteRule; 6] = [
    WriteRule {
        name: "O1 once",
        wants: "a workload is written once, by a rollout once for each revision, and again only after somebody else has written it, or the policy",
        check: writes::once,
    },
    WriteRule {
        name: "O2 all-or-nothing",
        wants: "one guarded patch has the content, its marker, and the removal of our entries; what is being deleted gets no content; an eviction and a resize are guarded, too",
        check: writes::whole,
    },
    WriteRule {
        name: "O3 nothing-foreign",
        wants: "a patch stays within what injection may touch, and changes nothing that was there; a rollout changes nothing but what markers list",
        check: writes::own_fields,
    },
    WriteRule {
        name: "O4 ours-to-write",
        wants: "nothing is written that is not the operator's to write; a rollout needs a policy that rolls out to the workload, and keeps away from what has opted out, and from what nobody makes again",
        check: writes::own_objects,
    },
    WriteRule { name: "O7 silence", wants: "at rest, only the lease is written", check: writes::silent },
    WriteRule {
        name: "O11 stays-in-force",
        wants: "a policy in force stays in force unless it, or what is registered, was changed",
        check: writes::keeps_in_force,
    },
];

/// The rules for the final state.
pub const STATES: [StateRule; 4] = [
    StateRule { name: "O5 nothing-waits", wants: "no object waits for us", check: state::nothing_waits },
    StateRule {
        name: "O6 whole",
        wants: "what a marker lists is there exactly once, with all containers and volumes of the template that it is about, and no container of a template is there without its marker",
        check: state::whole,
    },
    StateRule {
        name: "O8 status-true",
        wants: "the status of each policy says what is stored, by the hash of its template, of the policy as it is now, and what injects is registered",
        check: state::true_status,
    },
    StateRule {
        name: "O10 left-alone",
        wants: "nothing of ours is in a protected namespace",
        check: state::left_alone,
    },
];

/// The rule for all writes of rollouts together, by name, and in a sentence.
pub const IN_TURN: (&str, &str) =
    ("O12 in-turn", "never are more workloads updated and not available yet than `maxUnavailable`");

/// The name of the comparison with runs without faults: see [`crate::Digest::compare`].
pub const SAME: &str = "O9 same-as-without-faults";
