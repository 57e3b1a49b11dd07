//! What the record of a rollout has when it begins.

use super::{NEW, OLD, Scene, at, content, deployment, hash, pod, policy, stored};
use crate::content::Content;
use crate::policy::{Policy, Site};
use crate::refit::Carries;
use crate::rollout::record::{Commands, Halted, Write};
use crate::rollout::steps::Reached;
use crate::rollout::stored::{Begin, StoredRevision, split};
use serde_json::json;

#[test]
fn a_revision_that_is_deleted_in_the_middle_takes_no_count_with_it() {
    let mut scene = Scene::new();
    let bad = pod("a");
    let health = &mut scene.has(&bad, NEW).health;
    (health.is_ready, health.since) = (false, Some(at(1)));
    scene.has(&deployment("b"), OLD);
    // The rollout begins again a deadline later, from what is left.
    scene.now = 700;
    scene.revisions.truncate(1);
    scene.begin(NEW);
    assert_eq!(scene.updates(), [""; 0], "the one that may be unavailable is");
    scene.now += 601;
    scene.says("Halted pods shop/a: SCP0416");
    // Back to a content that was complete: a workload that had it before, and broke long ago, does not count.
    scene.begin(OLD);
    let member = scene.member(&bad);
    (member.revision, member.carries, member.health.since) = (hash(OLD).into(), Carries::This, Some(at(-5000)));
    let member = scene.member(&deployment("b"));
    (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("new".into()));
    scene.now += 1;
    assert_eq!(scene.updates(), ["b"]);
}

#[test]
fn what_was_broken_with_the_same_template_is_broken_before() {
    let mut scene = Scene::new();
    scene.revisions.truncate(1);
    // Only what is done with Jobs is another: each workload has the template already.
    let own = json!({ "template": content(OLD).template, "jobs": "Refuse" });
    let own: Content = serde_json::from_value(own).unwrap();
    let spec = json!({ "template": own.template, "jobs": "Refuse", "updateStrategy": { "type": "RollingUpdate" } });
    let object = json!({ "metadata": { "name": "envoy", "uid": "u" }, "spec": spec });
    let policy = Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap();
    let begin = Begin::of(&policy, &scene.revisions, Commands::default(), at(0)).unwrap();
    assert!(!begin.record.progress.is_new);
}

#[test]
fn going_back_to_a_content_of_long_ago_begins_now() {
    let revisions = [stored(1, OLD, Some(-90_000)), stored(2, NEW, None)];
    let begin = Begin::of(&policy(OLD, "Halt"), &revisions, Commands::default(), at(7)).unwrap();
    let progress = &begin.record.progress;
    assert_eq!((begin.number, progress.times.begun, progress.times.ended), (3, Some(at(7)), None));
    assert!(begin.record.complete >= Some(at(-90_000)), "new workloads get it at once");

    // An undo holds, whatever the policy says about failures later.
    let mut undone = revisions;
    undone[1].record.reached = Some(Reached::begin(&hash(OLD), at(1)).undo(at(2)));
    undone[1].record.progress.halted = Some(Halted { at: at(1), message: "bad".into() });
    let own: Vec<&StoredRevision> = undone.iter().collect();
    for on_failure in ["Undo", "Halt"] {
        let split = split(&policy(NEW, on_failure), &own, None, |_| true).unwrap();
        assert_eq!(split.earlier().unwrap().revision(), Some(hash(OLD).as_str()), "{on_failure}");
    }
    // Nor does it end with the earlier revision, as long as anybody knows it.
    let gone = [&undone[1]];
    assert!(split(&policy(NEW, "Halt"), &gone, None, |_| true).is_none());
    let kept = split(&policy(NEW, "Halt"), &gone, Some(&policy(OLD, "Halt")), |_| true).unwrap();
    assert_eq!(kept.earlier().unwrap().revision(), Some(hash(OLD).as_str()));
}

#[test]
fn a_write_of_an_earlier_rollout_counts_in_the_next() {
    let policy = policy("envoy:3", "Halt");
    let mut revisions = vec![stored(1, OLD, Some(-500)), stored(2, NEW, None)];
    let write = Write { uid: "u".into(), at: at(1), by: "one".into(), evict: false };
    revisions[1].record.progress.writes.insert("deployments.apps/shop/a".into(), write);
    let begin = Begin::of(&policy, &revisions, Commands::default(), at(7)).unwrap();
    assert_eq!(begin.record.progress.writes.len(), 1);
}

#[test]
fn the_hash_of_a_content_is_what_is_stored_already() {
    // If this changes, the names of all stored revisions do: a new field of a content must not be written by default.
    assert_eq!(hash(OLD), "c29d4718f830471a");
}

#[test]
fn what_broke_before_rollouts_were_switched_on_is_no_failure() {
    let template = content(NEW).template;
    for (field, value) in [("mode", json!("Audit")), ("suspend", json!(true))] {
        let mut spec = json!({ "template": template, "updateStrategy": { "type": "RollingUpdate" } });
        spec[field] = value;
        let policy = json!({ "metadata": { "name": "envoy", "uid": "u" }, "spec": spec });
        let policy = Policy::parse(&policy, &Site::new("scpol-system", [], [])).unwrap();
        let begin = Begin::of(&policy, &[], Commands::default(), at(0)).unwrap();
        assert_eq!((begin.record.progress.times.begun, begin.record.progress.times.disturbed), (None, None), "{field}");
    }
}
