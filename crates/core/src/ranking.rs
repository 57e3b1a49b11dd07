//! The policies that are left out because two of them contradict each other. Pure.
//!
//! | two that contradict each other | result |
//! |---|---|
//! | one has a higher `priority` | it stays, and the other is left out |
//! | both have the same | both are left out |
//!
//! A policy that is left out is in nobody's way: it leaves out no policy of a lower priority. So a policy is left out
//! by others of a lower priority in no case.

use std::collections::BTreeMap;

/// What becomes of one of several policies that match a workload. The numbers are indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It stays.
    Stays,
    /// It contradicts this policy, which stays and has a higher priority.
    Outranked(usize),
    /// It contradicts this policy, which has the same priority.
    Tied(usize),
}

/// The standing of each policy with one of `priorities`. `contradict` says whether two of them contradict each other.
///
/// # Guarantees
/// The order of the policies decides only which of several rivals is named: the first one.
pub fn standings(priorities: &[i32], contradict: impl Fn(usize, usize) -> bool) -> Vec<Standing> {
    let mut standings = vec![Standing::Stays; priorities.len()];
    let mut levels: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (at, priority) in priorities.iter().enumerate() {
        levels.entry(*priority).or_default().push(at);
    }
    let mut staying: Vec<usize> = Vec::new();
    for level in levels.values().rev() {
        let mut open = Vec::new();
        for &at in level {
            match staying.iter().find(|&&other| contradict(other, at)) {
                Some(&winner) => standings[at] = Standing::Outranked(winner),
                None => open.push(at),
            }
        }
        for &at in &open {
            if let Some(&rival) = open.iter().find(|&&other| other != at && contradict(other, at)) {
                standings[at] = Standing::Tied(rival);
            }
        }
        staying.extend(open.into_iter().filter(|&at| standings[at] == Standing::Stays));
    }
    standings
}

#[cfg(test)]
mod tests {
    use super::Standing::{Outranked, Stays, Tied};
    use super::*;

    fn of(priorities: &[i32], pairs: &[(usize, usize)]) -> Vec<Standing> {
        standings(priorities, |a, b| pairs.contains(&(a, b)) || pairs.contains(&(b, a)))
    }

    #[test]
    fn the_higher_priority_stays_and_who_is_left_out_is_in_nobodys_way() {
        for (priorities, pairs, expected) in [
            (&[0, 0][..], &[][..], vec![Stays, Stays]),
            (&[1, 0], &[(0, 1)], vec![Stays, Outranked(0)]),
            (&[0, 1], &[(0, 1)], vec![Outranked(1), Stays]),
            (&[0, 0], &[(0, 1)], vec![Tied(1), Tied(0)]),
            // A chain: the first leaves the second out, which then does not leave the third out.
            (&[2, 1, 0], &[(0, 1), (1, 2)], vec![Stays, Outranked(0), Stays]),
            // Two that leave each other out do not leave a third one out.
            (&[1, 1, 0], &[(0, 1), (1, 2)], vec![Tied(1), Tied(0), Stays]),
            // One that is left out from above does not leave its equal out.
            (&[1, 0, 0], &[(0, 1), (1, 2)], vec![Stays, Outranked(0), Stays]),
            (&[0, 0, 0], &[(0, 1), (1, 2)], vec![Tied(1), Tied(0), Tied(1)]),
            (&[5, i32::MAX, i32::MIN], &[(0, 1), (0, 2), (1, 2)], vec![Outranked(1), Stays, Outranked(1)]),
        ] {
            assert_eq!(of(priorities, pairs), expected, "{priorities:?} {pairs:?}");
        }
    }

    #[test]
    fn no_policy_of_a_lower_priority_changes_what_stays() {
        let pairs = [(0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5)];
        let all = [3, 3, 2, 2, 1, 1];
        for known in 1..=all.len() {
            let some = of(&all[..known], &pairs);
            for at in (0..known).filter(|at| all[*at] > all[known - 1]) {
                assert_eq!(some[at], of(&all, &pairs)[at], "{at} of {known}");
            }
        }
    }
}
