//! Laws of what is there, not what the marker says: edits are found with their field, defaults of servers are none, and an earlier
//! content of a policy is brought to the present one. A tenth of `PROPTEST_CASES` is the number of cases, and 1 000 without it.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::laws::{Dice, POLICIES, dice};
use crate::refit::{Scene, as_on_server, config, edit, scene};
use proptest::prelude::*;
use serde_json::{Value, json};
use sidecar_policy::decision::{Decision, Left, Outcome};
use sidecar_policy::inject::{self, marker};
use sidecar_policy::policy::{Policies, Policy};
use sidecar_policy::workload::Workload;
use sidecar_policy::workloads::census::{Tally, fate};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The lists whose items are found by all that they have.
const FOUND_BY_ALL: [&str; 3] = ["/envFrom/", "/hostAliases/", "/tolerations/"];

/// What the marker on `workload` lists, with its place in the object.
fn listed(workload: &Workload) -> Vec<(String, String)> {
    let mut added = marker::read(workload, POLICIES[0]).unwrap().added;
    // The annotation for kubectl is the user's as soon as they choose another container.
    let all = added.clone();
    // What the workload had when it was injected is unknown.
    added.retain(|at| !at.ends_with("/kubectl.kubernetes.io~1default-container") && !crate::undo::is_shared(&all, at));
    added.into_iter().filter_map(|at| crate::undo::locate(&workload.body, &at).map(|place| (at, place))).collect()
}

/// The paths of the values below `value` that a template asks for, without those by which items of lists are found.
fn asked(value: &Value, at: &str, found: &mut Vec<String>) {
    let is_key = |field: &str| ["name", "mountPath", "devicePath", "containerPort", "protocol"].contains(&field);
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(field, _)| !is_key(field));
            fields.for_each(|(field, below)| {
                asked(below, &format!("{at}/{}", field.replace('~', "~0").replace('/', "~1")), found)
            });
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, below)| asked(below, &format!("{at}/{index}"), found))
        }
        Value::String(text) if !text.is_empty() => found.push(at.to_owned()),
        Value::Number(number) if number.as_f64() != Some(0.0) => found.push(at.to_owned()),
        Value::Bool(_) => found.push(at.to_owned()),
        _ => {}
    }
}

/// A value that was changed.
#[derive(Debug)]
struct Changed {
    /// The place of its item, as a marker lists it.
    listed: String,
    /// Its field in the item; empty for an entry of a map, such as a label.
    field: String,
}

impl Changed {
    /// Whether `edit` names the item.
    fn is_of(&self, edit: &inject::Edit) -> bool {
        if self.listed.ends_with("/shareProcessNamespace") {
            return edit.item.contains("shared process namespace");
        }
        let key = self.listed.rsplit('/').next().unwrap_or_default().replace("~1", "/").replace("~0", "~");
        edit.item.contains(key.split_once(' ').map_or(&*key, |(key, _)| key))
    }
}

/// How often a law had something to judge. [`Effects::count`] fails if that is rare.
struct Effects {
    cases: AtomicU32,
    judged: AtomicU32,
}

impl Effects {
    const fn none() -> Self {
        Self { cases: AtomicU32::new(0), judged: AtomicU32::new(0) }
    }

    /// Counts a case, and whether it `is_judged`. Of the first hundred cases, a quarter have to be: about half are, because
    /// much random content is in conflict. Later ones may come from the search for a smaller failure.
    fn count(&self, is_judged: bool) -> Result<(), TestCaseError> {
        let cases = self.cases.fetch_add(1, Relaxed) + 1;
        let judged = self.judged.fetch_add(u32::from(is_judged), Relaxed) + u32::from(is_judged);
        prop_assert!(cases != 100 || judged >= 25, "only {judged} of {cases} cases had anything to judge");
        Ok(())
    }
}

/// Changes one value that the policy has set; none if there is nothing to change.
fn change_one(dice: &mut Dice, scene: &Scene, stored: &mut Workload) -> Option<Changed> {
    // Without what the server fills in, an item has just what the template sets.
    let policies = Policies::new([scene.policy(&scene.from)]);
    let raw = scene.original.patched(&Decision::of(&policies, &scene.original, &scene.site).plan(&scene.original));
    let raw = scene.original.with_body(raw);
    let items = listed(stored);
    let start = dice.roll(items.len().max(1));
    // The next item that has anything to change.
    let mut from_there = items.iter().cycle().skip(start).take(items.len());
    let (pointer, place, paths) = from_there.find_map(|(pointer, place)| {
        let mut paths = Vec::new();
        asked(raw.body.pointer(&crate::undo::locate(&raw.body, pointer)?)?, "", &mut paths);
        // A list may have been written in another order.
        paths.retain(|path| stored.body.pointer(&format!("{place}{path}")).is_some());
        (!paths.is_empty()).then(|| (pointer.clone(), place.clone(), paths))
    })?;
    let path = paths.get(dice.roll(paths.len().max(1)))?.clone();
    let value = stored.body.pointer_mut(&format!("{place}{path}"))?;
    *value = match value {
        Value::String(text) => json!(format!("{text}-edited")),
        Value::Bool(is_on) => json!(!*is_on),
        Value::Number(number) => json!(number.as_f64()? + 7.0),
        _ => return None,
    };
    let field = path.split('/').nth(1).unwrap_or_default().replace("~1", "/").replace("~0", "~");
    Some(Changed { listed: pointer, field })
}

fn tally(workload: &Workload, policy: &Arc<Policy>, scene: &Scene) -> Option<Tally> {
    let policies = Policies::new([policy.clone()]);
    fate(workload, &policies, &scene.site, |_, _| false).first().map(|(_, tally)| *tally)
}

/// The policy of the second revision, which knows the first one.
fn knowing(scene: &Scene) -> Arc<Policy> {
    let past = Arc::new(scene.from.clone());
    Arc::new(Policy::clone(&scene.policy(&scene.to)).knowing([past].into()))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_the_server_fills_in_is_no_edit(scene in prop_oneof![scene(false), scene(true)]) {
        let from = scene.policy(&scene.from);
        static EFFECTS: Effects = Effects::none();
        let stored = scene.created(&scene.original, &[&from]);
        EFFECTS.count(stored.is_some())?;
        let Some(stored) = stored else { return Ok(()) };
        prop_assert_eq!(from.edits(&stored), []);
        prop_assert_eq!(tally(&stored, &from, &scene), Some(Tally::Injected));
        let other = tally(&stored, &knowing(&scene), &scene);
        prop_assert_ne!(other, Some(Tally::Edited));
    }

    #[test]
    fn every_edit_is_found((scene, mut dice) in (scene(false), dice())) {
        let from = scene.policy(&scene.from);
        static EFFECTS: Effects = Effects::none();
        let stored = scene.created(&scene.original, &[&from]);
        let items = stored.as_ref().map(listed).unwrap_or_default();
        EFFECTS.count(!items.is_empty())?;
        let Some(mut stored) = stored.filter(|_| !items.is_empty()) else { return Ok(()) };
        let items: Vec<String> = items.into_iter().map(|(_, place)| place).collect();
        edit(&mut dice, &mut stored.body, &items);
        for policy in [from, knowing(&scene)] {
            prop_assert!(!policy.edits(&stored).is_empty(), "{}", stored.body);
            let tally = tally(&stored, &policy, &scene);
            prop_assert!(matches!(tally, Some(Tally::Edited | Tally::Missed)), "{:?} {}", tally, stored.body);
        }
    }

    #[test]
    fn the_field_of_an_edit_is_named((scene, mut dice) in (scene(false), dice())) {
        let from = scene.policy(&scene.from);
        static EFFECTS: Effects = Effects::none();
        let mut stored = scene.created(&scene.original, &[&from]);
        let changed = stored.as_mut().and_then(|stored| change_one(&mut dice, &scene, stored));
        EFFECTS.count(changed.is_some())?;
        let (Some(stored), Some(changed)) = (stored, changed) else { return Ok(()) };
        let edits = from.edits(&stored);
        // A label or annotation has no fields, and an item that is found by all of it, such as a variable source, is gone.
        let has_fields = !changed.field.is_empty() && !FOUND_BY_ALL.iter().any(|list| changed.listed.contains(list));
        let is_named =
            |edit: &inject::Edit| changed.is_of(edit) && if has_fields { edit.field.starts_with(&changed.field) } else { edit.field.is_empty() };
        prop_assert!(edits.iter().any(is_named), "{:?} in {:?} {}", changed, edits, stored.body);
        prop_assert_ne!(tally(&stored, &from, &scene), Some(Tally::Injected));
    }

    #[test]
    fn an_earlier_content_is_brought_to_the_present_one(scene in prop_oneof![scene(false), scene(true)]) {
        let (from, to, known) = (scene.policy(&scene.from), scene.policy(&scene.to), knowing(&scene));
        static EFFECTS: Effects = Effects::none();
        let is_free = |stored: &Workload| inject::undo(stored, Some(POLICIES[0])).unwrap().leftovers.is_empty();
        let is_other = scene.from.template.hash != scene.to.template.hash;
        let stored = scene.created(&scene.original, &[&from]).filter(|stored| is_other && is_free(stored));
        EFFECTS.count(stored.is_some())?;
        let Some(stored) = stored else { return Ok(()) };
        let expected = scene.created(&scene.original, &[&to]).map(|expected| expected.body);
        let renewed = scene.created(&stored, &[&known]).map(|renewed| renewed.body);
        prop_assert_eq!(&renewed, &expected);
        if expected.is_none() {
            let policies = Policies::new([known]);
            let kept = stored.patched(&Decision::of(&policies, &stored, &scene.site).plan(&stored));
            prop_assert_eq!(kept, stored.body, "it keeps what it has");
        }
    }

    #[test]
    fn no_other_content_gets_past_under_a_marker((scene, mut dice) in (scene(false), dice())) {
        let (from, known) = (scene.policy(&scene.from), knowing(&scene));
        static EFFECTS: Effects = Effects::none();
        let mut stored = scene.created(&scene.original, &[&from]);
        let changed = stored.as_mut().and_then(|stored| change_one(&mut dice, &scene, stored));
        EFFECTS.count(changed.is_some())?;
        let (Some(stored), true) = (stored, changed.is_some()) else { return Ok(()) };
        let mut decision = Decision::of(&Policies::new([known.clone()]), &stored, &scene.site);
        let after = stored.with_body(stored.patched(&decision.plan(&stored)));
        // Skipped is what is not delivered, in whatever a workload carries: native sidecars on an old server.
        let is_left = |left: &Left| left.outcome == Outcome::Failed || left.reason.row == 8;
        let is_failed = decision.rest.iter().any(is_left);
        prop_assert!(is_failed || known.is_injected(&as_on_server(&after)), "{}", after.body);
    }
}
