//! The steps of a rollout: which workloads have the update revision, and when the next step begins. Pure.
//!
//! What a rollout has reached is stored in an annotation of its ControllerRevision, because every replica decides by it.

use crate::api::v1alpha1::{LabelSelector, Step, StepAction};
use crate::digest;
use crate::policy::checks;
use crate::policy::extent::Extent;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wildmatch::WildMatch;

/// How far a rollout in steps is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Reached {
    /// The hash of the revision that all other workloads have.
    pub from: String,
    /// The index of the step that goes on. At the end all workloads have the update revision.
    pub step: usize,
    /// Which step that was, so that it is found after an edit of the others. None before it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Since when that step goes on.
    pub since: Timestamp,
    /// The workloads that have the update revision. It only grows, but for an undo. What a step has added stays, also if an edit changes
    /// that step.
    #[serde(flatten)]
    pub extent: Extent,
    /// Whether the rollout has failed and goes back: then no workload has the update revision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undone: bool,
}

/// What tells a step among others. Several pauses of a rollout may be alike.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The hash of this step.
    pub own: String,
    /// Whether no other step was the same.
    pub is_only: bool,
    /// The hash of the steps to this one.
    pub until: String,
    /// The hash of the steps from this one on.
    pub from: String,
    /// The number of steps then.
    pub count: usize,
}

impl Mark {
    fn of(steps: &[Step], index: usize) -> Option<Self> {
        let (own, until, from) = (steps.get(index..=index)?, steps.get(..=index)?, steps.get(index..)?);
        let is_only = steps.iter().filter(|step| **step == own[0]).count() == 1;
        Some(Self { own: hash(own), is_only, until: hash(until), from: hash(from), count: steps.len() })
    }
}

fn hash(steps: &[Step]) -> String {
    digest::short(json!(steps).to_string())
}

/// What the steps may do now.
pub struct Now<'a> {
    /// The namespaces that the policy covers, with their Namespace objects.
    pub namespaces: &'a BTreeMap<String, Arc<Value>>,
    /// Whether everything reached so far has the update revision and is ready.
    pub is_done: bool,
    /// Whether `scpol rollout resume` asks for the end of a pause.
    pub is_resumed: bool,
    pub now: Timestamp,
}

/// The step of a rollout in which all workloads have the update revision, whatever its steps become.
const ALL: usize = u32::MAX as usize;

impl Reached {
    /// The same once all workloads have the update revision: an edit of the steps takes it from none. None if that is said already.
    pub fn of_all(&self) -> Option<Self> {
        let is_said = self.undone || self.step >= ALL;
        (!is_said).then(|| Self { step: ALL, ..self.clone() })
    }

    /// Before the first step.
    pub fn begin(from: &str, now: Timestamp) -> Self {
        Self { from: from.to_owned(), step: 0, mark: None, since: now, extent: Extent::default(), undone: false }
    }

    /// The part of a stored one that counts.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self { extent: self.extent.bounded(), ..self }
    }

    /// The same rollout after it has failed: all workloads have the revision that they had before.
    #[must_use]
    pub fn undo(self, now: Timestamp) -> Self {
        Self { extent: Extent::default(), undone: true, since: now, ..self }
    }

    /// How far it may go now.
    #[must_use]
    pub fn advance(&self, steps: &[Step], at: &Now<'_>) -> Self {
        let mut next = self.clone();
        if self.undone {
            return next;
        }
        let Some(index) = self.index(steps) else {
            // Nobody may lose a pause by tidying up: a person says that it goes on.
            if at.is_resumed {
                next.enter(self.step.min(steps.len()), steps, at);
            }
            return next;
        };
        // A namespace that has appeared since has its place in the steps so far.
        for step in steps.iter().take(index.saturating_add(1)) {
            next.add(step, at.namespaces);
        }
        // What an edit has put before this step is not done, and a pause after it begins again.
        let is_behind = index != self.step && next.extent != self.extent;
        (next.step, next.mark) = (index, Mark::of(steps, index));
        next.since = if is_behind { at.now } else { self.since };
        // The clock of the leader that wrote it may have been fast.
        let since = next.since.min(at.now);
        let is_over = match steps.get(index).and_then(Step::action) {
            None => false,
            Some(StepAction::Pause(pause)) => {
                let length = pause.length().and_then(|length| SignedDuration::try_from(length).ok());
                let is_past = |length: SignedDuration| at.now.duration_since(since) >= length;
                at.is_resumed || at.is_done && !is_behind && length.is_some_and(is_past)
            }
            // What has just been added is not done.
            Some(_) => at.is_done && next.extent == self.extent,
        };
        if is_over {
            next.enter(index.saturating_add(1), steps, at);
        }
        next
    }

    /// Begins the step `index`.
    fn enter(&mut self, index: usize, steps: &[Step], at: &Now<'_>) {
        (self.step, self.mark, self.since) = (index, Mark::of(steps, index), at.now);
        if let Some(step) = steps.get(index) {
            self.add(step, at.namespaces);
        }
    }

    /// Where the step that goes on is among `steps` now: the steps to it, those from it on, or it alone are as they were. None if it is not
    /// recognized.
    fn index(&self, steps: &[Step]) -> Option<usize> {
        let Some(mark) = self.mark.as_ref().filter(|_| self.step < ALL) else { return Some(self.step) };
        if steps.get(..=self.step).is_some_and(|until| hash(until) == mark.until) {
            return Some(self.step);
        }
        let moved = steps.len().checked_sub(mark.count.saturating_sub(self.step));
        let moved = moved.filter(|index| steps.get(*index..).is_some_and(|from| hash(from) == mark.from));
        if moved.is_some() {
            return moved;
        }
        let is_own = |index: &usize| steps.get(*index..=*index).is_some_and(|own| hash(own) == mark.own);
        let own: Vec<usize> = (0..steps.len()).filter(is_own).collect();
        match own.as_slice() {
            [only] if mark.is_only => Some(*only),
            // It is where it was, or has been edited itself.
            found => {
                (steps.len() == mark.count && (found.is_empty() || found.contains(&self.step))).then_some(self.step)
            }
        }
    }

    fn add(&mut self, step: &Step, namespaces: &BTreeMap<String, Arc<Value>>) {
        let added = names(step, namespaces, &self.extent.namespaces);
        self.extent.namespaces.extend(added);
        match step.action() {
            Some(StepAction::Workloads(selector)) => self.extent.add_selector(selector),
            Some(StepAction::PercentOfWorkloads(percent)) => self.extent.add_percent(percent),
            _ => {}
        }
    }

    /// Whether every workload has the update revision.
    pub fn has_all(&self, steps: &[Step]) -> bool {
        !self.undone && self.index(steps).is_some_and(|index| index >= steps.len())
    }

    /// Why nothing goes on, if the step is a pause.
    pub fn paused(&self, steps: &[Step]) -> Option<String> {
        let Some(index) = self.index(steps) else {
            let next = self.step.min(steps.len()).saturating_add(1);
            return Some(format!("the current step is not found: `scpol rollout resume` goes on with step {next}"));
        };
        let Some(StepAction::Pause(pause)) = steps.get(index)?.action() else { return None };
        let number = index + 1;
        Some(match pause.length().and_then(|length| SignedDuration::try_from(length).ok()) {
            Some(length) => {
                let end = self.since.saturating_add(length).unwrap_or(self.since);
                format!("step {number} is a pause until {end:.0}")
            }
            None => format!("step {number} is a pause until `scpol rollout resume`"),
        })
    }
}

/// What each of `steps` and those before it have, where a policy covers these `namespaces`.
pub fn extents(steps: &[Step], namespaces: &BTreeMap<String, Arc<Value>>) -> Vec<Extent> {
    let mut reached = Reached::begin("", Timestamp::UNIX_EPOCH);
    let extent = |step| {
        reached.add(step, namespaces);
        reached.extent.clone()
    };
    steps.iter().map(extent).collect()
}

/// The namespaces that one step adds as a whole to those that are `updated`. A percentage counts these, and adds as few as it needs.
fn names(step: &Step, namespaces: &BTreeMap<String, Arc<Value>>, updated: &BTreeSet<String>) -> Vec<String> {
    let chosen = |is_chosen: &dyn Fn(&str, &Value) -> bool| {
        let chosen = namespaces.iter().filter(|(name, object)| is_chosen(name, object));
        chosen.map(|(name, _)| name.clone()).collect()
    };
    match step.action() {
        Some(StepAction::Namespaces(globs)) => {
            let globs: Vec<WildMatch> = globs.iter().map(|glob| WildMatch::new(glob)).collect();
            chosen(&|name, _| globs.iter().any(|glob| glob.matches(name)))
        }
        Some(StepAction::Selector(selector)) => chosen(&|name, object| selects(selector, name, object)),
        Some(StepAction::Percent(percent)) => {
            let are_in = namespaces.keys().filter(|name| updated.contains(*name)).count();
            let missing = share(namespaces.len(), percent).saturating_sub(are_in);
            by_hash(namespaces).into_iter().filter(|name| !updated.contains(name)).take(missing).collect()
        }
        Some(StepAction::Workloads(_) | StepAction::PercentOfWorkloads(_) | StepAction::Pause(_)) | None => Vec::new(),
    }
}

/// So many of `total` namespaces are at least that percentage.
fn share(total: usize, percent: i32) -> usize {
    let percent = usize::try_from(percent).unwrap_or_default().min(100);
    total.saturating_mul(percent).div_ceil(100)
}

/// The names in the order in which percentages add them.
fn by_hash(namespaces: &BTreeMap<String, Arc<Value>>) -> Vec<String> {
    let mut names: Vec<(String, &String)> = namespaces.keys().map(|name| (digest::short(name), name)).collect();
    names.sort();
    names.into_iter().map(|(_, name)| name.clone()).collect()
}

fn selects(selector: &LabelSelector, name: &str, namespace: &Value) -> bool {
    checks::selects_namespace(selector, name, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn namespaces(names: &[&str]) -> BTreeMap<String, Arc<Value>> {
        let object = |name: &str| {
            let tier = if name.starts_with("canary") { json!({ "tier": "canary" }) } else { json!({}) };
            Arc::new(json!({ "metadata": { "name": name, "labels": tier } }))
        };
        names.iter().map(|name| ((*name).to_owned(), object(name))).collect()
    }

    fn steps(steps: Value) -> Vec<Step> {
        serde_json::from_value(steps).unwrap()
    }

    fn advance(
        reached: &Reached,
        steps: &[Step],
        names: &[&str],
        is_done: bool,
        is_resumed: bool,
        now: i64,
    ) -> Reached {
        let namespaces = namespaces(names);
        reached.advance(steps, &Now { namespaces: &namespaces, is_done, is_resumed, now: at(now) })
    }

    fn updated(reached: &Reached) -> String {
        reached.extent.namespaces.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_step_adds_its_namespaces_once_those_before_are_done() {
        let all = ["canary-a", "canary-b", "shop", "web"];
        let steps = steps(json!([
            { "namespaces": ["canary-a"] }, { "namespaceSelector": { "matchLabels": { "tier": "canary" } } }, { "pause": {} },
            { "pause": { "duration": "10s" } }, { "percent": 100 },
        ]));
        let reached = Reached::begin("old", at(0));
        let first = advance(&reached, &steps, &all, true, false, 1);
        assert_eq!((first.step, updated(&first)), (0, "canary-a".into()), "it has only just been added");
        assert_eq!(advance(&first, &steps, &all, false, false, 2), first);
        let second = advance(&first, &steps, &all, true, false, 3);
        assert_eq!((second.step, updated(&second)), (1, "canary-a canary-b".into()));
        let pause = advance(&second, &steps, &all, true, false, 4);
        assert_eq!(
            (pause.step, pause.paused(&steps).unwrap()),
            (2, "step 3 is a pause until `scpol rollout resume`".into())
        );
        assert_eq!(advance(&pause, &steps, &all, true, false, 99), pause);
        let timed = advance(&pause, &steps, &all, true, true, 6);
        assert_eq!(timed.step, 3);
        assert_eq!(advance(&timed, &steps, &all, true, false, 15), timed);
        let last = advance(&timed, &steps, &all, true, false, 16);
        assert_eq!((last.step, updated(&last), last.has_all(&steps)), (4, "canary-a canary-b shop web".into(), false));
        let end = advance(&last, &steps, &all, true, false, 17);
        assert_eq!((end.step, end.has_all(&steps)), (5, true));
    }

    #[test]
    fn a_namespace_that_appears_has_its_place_in_the_steps_so_far_and_one_that_has_it_keeps_it() {
        let steps = steps(json!([{ "namespaceSelector": { "matchLabels": { "tier": "canary" } } }, { "pause": {} }]));
        let reached = advance(&Reached::begin("old", at(0)), &steps, &["canary-a"], false, false, 1);
        let reached = advance(&reached, &steps, &["canary-a"], true, false, 2);
        assert_eq!(reached.step, 1);
        let reached = advance(&reached, &steps, &["canary-b", "web"], true, false, 3);
        assert_eq!(updated(&reached), "canary-a canary-b");
    }

    #[test]
    fn steps_of_workloads_add_labels_and_percentages_and_keep_what_an_edit_takes_away() {
        let canary = json!({ "matchLabels": { "track": "canary" } });
        let steps_of = |selector: &Value, percent: i32| {
            steps(json!([
                { "workloadSelector": selector }, { "pause": {} }, { "percentOfWorkloads": percent }, { "namespaces": ["shop"] },
            ]))
        };
        let first = steps_of(&canary, 30);
        let told = |reached: &Reached| {
            let extent = &reached.extent;
            (reached.step, extent.selectors.len(), extent.percent, updated(reached))
        };
        let begin = Reached::begin("old", at(0));
        let reached = advance(&begin, &first, &["shop"], true, false, 1);
        assert_eq!(told(&reached), (0, 1, 0, String::new()), "it has only just been added");
        assert_eq!(advance(&reached, &first, &["shop"], false, false, 2), reached, "it is not done");
        let reached = advance(&reached, &first, &["shop"], true, false, 3);
        assert_eq!(told(&reached), (1, 1, 0, String::new()));
        assert_eq!(advance(&reached, &first, &["shop"], true, false, 4), reached, "it is paused");
        let reached = advance(&reached, &first, &["shop"], true, true, 5);
        assert_eq!(told(&reached), (2, 1, 30, String::new()));
        let reached = advance(&reached, &first, &["shop"], true, false, 6);
        assert_eq!(told(&reached), (3, 1, 30, "shop".into()));
        // An edit of steps that are over: what they have reached stays, and what they reach now is added.
        let edited = steps_of(&json!({ "matchLabels": { "track": "beta" } }), 10);
        let further = advance(&reached, &edited, &[], false, false, 7);
        assert_eq!(told(&further), (3, 2, 30, "shop".into()));
        assert!(further.extent.contains(&reached.extent));
        assert_eq!(told(&advance(&further, &steps(json!([])), &[], false, false, 8)), told(&further));
        assert_eq!(further.undo(at(9)).extent, Extent::default());
    }

    #[test]
    fn a_begin_ahead_of_the_clock_and_a_step_out_of_range_hold_nothing_up() {
        let steps = steps(json!([{ "pause": {} }, { "percent": 100 }]));
        let ahead = Reached::begin("old", at(600));
        assert_eq!(advance(&ahead, &steps, &["a"], true, false, 5).since, ahead.since);
        assert_eq!(advance(&ahead, &steps, &["a"], true, true, 5).step, 1, "it is resumed");
        let far = Reached { step: usize::MAX, ..Reached::begin("old", at(0)) };
        assert_eq!(advance(&far, &steps, &["a"], true, true, 5).step, usize::MAX);
        assert!(far.has_all(&steps) && far.paused(&steps).is_none());
    }

    #[test]
    fn an_edit_of_the_steps_before_loses_no_pause() {
        let canary = json!({ "namespaces": ["canary"] });
        let (gate, half, minutes) =
            (json!({ "pause": {} }), json!({ "percent": 50 }), json!({ "pause": { "duration": "30m" } }));
        let first = steps(json!([canary, minutes, half, gate]));
        let reached =
            |index: usize| Reached { step: index, mark: Mark::of(&first, index), ..Reached::begin("old", at(0)) };
        let told = |from: &Reached, now: Value, is_resumed: bool| {
            let now = steps(now);
            let next = advance(from, &now, &["a", "b"], true, is_resumed, 5);
            (next.step, next.paused(&now).is_some(), next.has_all(&now))
        };
        assert_eq!(told(&reached(1), json!([minutes, half, gate]), false), (0, true, false), "the canary is removed");
        assert_eq!(told(&reached(3), json!([half, gate]), false), (1, true, false), "all before are removed");
        assert_eq!(
            told(&reached(1), json!([gate, canary, minutes, half, gate]), false),
            (2, true, false),
            "one is added"
        );
        assert_eq!(told(&reached(3), json!([canary, half]), false), (3, true, false), "the pause itself is removed");
        assert_eq!(told(&reached(3), json!([canary, half]), true), (2, false, true), "and that is confirmed");
        assert_eq!(told(&reached(1), json!([half]), true), (1, false, true));
        assert_eq!(
            told(&reached(1), json!([canary, minutes, half, half, gate]), false),
            (1, true, false),
            "a later one"
        );
        let alike = steps(json!([canary, minutes, half, minutes]));
        let first = Reached { step: 1, mark: Mark::of(&alike, 1), ..Reached::begin("old", at(0)) };
        assert!(
            told(&first, json!([canary, half, minutes]), false).1
                && first.index(&steps(json!([half, minutes]))).is_none()
        );
        let moved = steps(json!([canary, half, minutes, gate]));
        let behind = advance(&reached(1), &moved, &["a", "b"], true, false, 9000);
        assert_eq!((behind.step, behind.since, behind.extent.namespaces.len()), (2, at(9000), 1), "it begins again");
        let longer = json!([canary, { "pause": { "duration": "40m" } }, half, gate]);
        assert_eq!(told(&reached(1), longer, false), (1, true, false), "it is edited itself");
    }

    #[test]
    fn an_undo_takes_it_from_all_for_good() {
        let steps = steps(json!([{ "percent": 100 }]));
        let reached = advance(&Reached::begin("old", at(0)), &steps, &["a", "b"], false, false, 1).undo(at(2));
        assert_eq!((updated(&reached), reached.undone, reached.has_all(&steps)), (String::new(), true, false));
        assert_eq!(advance(&reached, &steps, &["a", "b"], true, true, 9), reached);
    }

    #[test]
    fn a_percentage_counts_what_is_in_already() {
        let steps = steps(json!([{ "namespaces": ["canary"] }, { "percent": 50 }, { "pause": {} }]));
        for name in ["a", "b", "c", "d", "e"] {
            let others = ["canary", "x", "y", name];
            let mut reached = Reached::begin("old", at(0));
            for second in 0..6 {
                reached = advance(&reached, &steps, &others, true, false, second);
            }
            assert_eq!(
                (reached.step, reached.extent.namespaces.len()),
                (2, 2),
                "{name}: {:?}",
                reached.extent.namespaces
            );
        }
    }

    proptest! {
        #[test]
        fn the_set_only_grows_and_a_percentage_of_all_namespaces_has_it_at_least(
            count in 1usize..40,
            percents in prop::collection::btree_set(1i32..=100, 1..5),
            done in prop::collection::vec(any::<bool>(), 40),
        ) {
            let names: Vec<String> = (0..count).map(|number| format!("n{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let percents: Vec<i32> = percents.into_iter().collect();
            let steps: Vec<Step> = percents.iter().map(|percent| Step { percent: Some(*percent), ..Step::default() }).collect();
            let mut reached = Reached::begin("old", at(0));
            for (second, is_done) in done.into_iter().enumerate() {
                // Namespaces come and go.
                let seen = &names[..(second % 7 + 1).min(count)];
                let next = advance(&reached, &steps, seen, is_done, false, second as i64);
                prop_assert!(next.extent.contains(&reached.extent) && next.step >= reached.step);
                if let Some(percent) = percents.get(next.step) {
                    let least = (seen.len() * *percent as usize).div_ceil(100);
                    let has = next.extent.namespaces.iter().filter(|name| seen.contains(&name.as_str())).count();
                    prop_assert!(has >= least, "{has} of {least}");
                }
                reached = next;
            }
        }
    }
}
