//! When a rollout begins, goes on, pauses, halts, goes back and is complete.

use super::{NEW, OLD, Scene, at, deployment, hash, pod};
use crate::api::condition::Progress;
use crate::api::v1alpha1::{MaxUnavailable, OnFailure};
use crate::policy::extent::Place;
use crate::refit::Carries;
use crate::rollout::facts::Unknown;
use crate::rollout::health::Health;
use crate::rollout::machine::Told;
use crate::rollout::member::{Members, Owners};
use crate::rollout::record::{PROGRESS, Record};
use serde_json::{Value, json};
use std::sync::Arc;

#[test]
fn what_has_not_been_compared_is_not_complete() {
    let mut scene = Scene::new();
    scene.members = None;
    scene.says("NewRevision what it matches is being compared");
    scene.members = Some(Members::new());
    scene.is_in_force = false;
    scene.says("NewRevision it waits until this revision is in effect");
    scene.is_in_force = true;
    scene.owners = Err(Unknown::Reading);
    scene.says("NewRevision reading what makes pods");
    scene.owners = Err(Unknown::Forbidden("no".into()));
    scene.says("Halted SCP0304: no");
    scene.owners = Ok(Owners::new());
    // Members that were compared with another revision.
    scene.has(&deployment("a"), NEW).revision = hash(OLD).into();
    scene.says("NewRevision what it matches is being compared");
    scene.has(&deployment("a"), NEW);
    let (outcome, news) = scene.turn();
    assert!(matches!(outcome.progress, Some(Progress::Complete(_))), "{outcome:?}");
    assert!(matches!(news.as_slice(), [Told::Complete(_)]));
    assert_eq!((scene.record().complete, scene.record().progress.times.ended), (Some(at(1)), Some(at(1))));
}

#[test]
fn a_finished_rollout_never_fails() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.says("Complete");
    // Weeks later a registry is away, a node is lost, and the ReplicaSet grows.
    scene.now += 1_000_000;
    scene.stuck.insert(again.clone());
    scene.member(&again).health.is_ready = false;
    scene.member(&again).restarts = vec![("envoy".into(), 99)];
    scene.owner("web").desired = 5;
    for _ in 0..2 {
        let said = scene.said();
        assert!(said.starts_with("Complete") && scene.record().progress.halted.is_none(), "{said}");
        scene.new_leader();
    }
}

#[test]
fn an_undo_goes_back_although_pods_were_evicted() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.settings.on_failure = OnFailure::Undo;
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.member(&again).health.is_ready = false;
    scene.stuck.insert(again.clone());
    let (outcome, news) = scene.turn();
    assert!(matches!(news.as_slice(), [Told::Halted(_)]), "{news:?}");
    let reached = scene.record().reached.clone().unwrap();
    assert_eq!((reached.undone, &reached.from), (true, &hash(OLD)));
    // All workloads are to have the old one now, and have been compared with it.
    drop(outcome);
    let member = scene.member(&again);
    (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("bad".into()));
    scene.now += 1;
    assert_eq!(scene.updates(), std::slice::from_ref(&again.name));
    let said = scene.said();
    assert!(said.contains("going back") && !said.contains("has the revision before again"), "{said}");
    let back = scene.evict(&again, OLD);
    scene.stuck.clear();
    let said = scene.said();
    assert!(
        said.starts_with("Halted pods shop/web-0-again3: SCP0416") && said.contains("has the revision before again"),
        "{said}"
    );
    assert_eq!(scene.member(&back).carries, Carries::This);
}

#[test]
fn a_record_that_somebody_has_damaged_ends_no_halt() {
    for (on_failure, damaged) in
        [(OnFailure::Halt, json!("{")), (OnFailure::Undo, json!("{")), (OnFailure::Undo, Value::Null)]
    {
        let mut scene = Scene::new();
        scene.settings.on_failure = on_failure;
        scene.replica_set("web", 1, OLD);
        assert_eq!(scene.updates(), ["web-0"]);
        let again = scene.evict(&pod("web-0"), NEW);
        scene.member(&again).health.is_ready = false;
        scene.stuck.insert(again.clone());
        let (_, news) = scene.turn();
        assert!(matches!(news.as_slice(), [Told::Halted(_)]), "{news:?}");
        let reached = scene.record().reached.clone();
        if reached.is_some() {
            let member = scene.member(&again);
            (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("bad".into()));
        }
        let mut stored = scene.record().annotations();
        stored[PROGRESS] = damaged.clone();
        *scene.record() = Record::parse(&stored);
        scene.new_leader();
        scene.now += 1;
        for _ in 0..2 {
            let said = scene.said();
            assert!(said.starts_with("Halted"), "{on_failure:?}, {damaged}: {said}");
        }
        assert_eq!(scene.record().reached, reached, "{on_failure:?}, {damaged}");
    }
}

#[test]
fn a_second_restart_makes_all_pods_anew() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, NEW);
    scene.says("Complete");
    let mut name = pod("web-0");
    for _ in 0..2 {
        scene.now += 10;
        scene.commands.restarted = Some(at(scene.now));
        scene.now += 1;
        assert_eq!(scene.updates(), std::slice::from_ref(&name.name));
        scene.says(".. ; 1 are still to be recreated");
        name = scene.evict(&name, NEW);
        scene.says("Complete");
    }
    // An image that is away fails the restart, too: else it would take all pods.
    scene.now += 10;
    scene.commands.restarted = Some(at(scene.now));
    scene.now += 1;
    assert_eq!(scene.updates(), std::slice::from_ref(&name.name));
    let name = scene.evict(&name, NEW);
    scene.member(&name).health.is_ready = false;
    scene.stuck.insert(name);
    scene.says("Halted");
}

#[test]
fn a_halt_and_a_resume_outlive_the_leader() {
    let mut scene = Scene::new();
    scene.commands.resumed = Some(at(-50));
    scene.record().progress.followed.resumed = Some(at(-50));
    scene.has(&deployment("a"), NEW).down(1);
    scene.has(&deployment("b"), OLD);
    scene.stuck.insert(deployment("a"));
    scene.says("Halted");
    for resumed in [Some(at(-50)), None, Some(at(-60))] {
        // `kubectl replace` and `kubectl apply` of an old manifest are no resume.
        scene.new_leader();
        scene.commands.resumed = resumed;
        scene.stuck.clear();
        scene.says("Halted");
        assert_eq!(scene.updates(), [""; 0]);
    }
    // Between two leaders.
    scene.new_leader();
    scene.stuck.insert(deployment("a"));
    scene.commands.resumed = Some(at(5));
    scene.now = 700;
    scene.member(&deployment("a")).health.since = Some(at(1));
    // It has its time again.
    scene.says("RollingOut");
    scene.now = 1200;
    scene.says("RollingOut");
    scene.stuck.clear();
    scene.now = 1301;
    scene.says("Halted deployments.apps shop/a: SCP0416: it is not ready after 10m");
}

#[test]
fn a_resume_ends_a_pause_and_is_followed_once() {
    let mut scene = Scene::new().steps(json!([{ "pause": {} }, { "namespaces": ["canary"] }, { "pause": {} }]));
    scene.has(&deployment("canary/a"), NEW);
    scene.has(&deployment("b"), OLD);
    scene.says("Paused step 1 is a pause until");
    scene.commands.resumed = Some(at(2));
    scene.now = 3;
    scene.turn();
    scene.has(&deployment("canary/a"), NEW);
    scene.says("Paused step 3");
    scene.new_leader();
    scene.commands.resumed = None;
    scene.says("Paused step 3");
    // A workload that somebody creates meanwhile ends no pause before it is ready.
    scene.has(&deployment("canary/new"), NEW).health.is_ready = false;
    scene.says("Paused step 3");
    scene.member(&deployment("canary/new")).health.is_ready = true;
    scene.commands.resumed = Some(at(4));
    scene.turn();
    assert!(scene.record().reached.as_ref().unwrap().step >= 3);
    // Somebody appends a step: all namespaces have the revision, and keep it.
    scene.settings.steps.extend(scene.settings.steps.clone());
    assert!(!scene.earlier("shop", &Place::default()));
}

#[test]
fn steps_by_workload_update_no_other_and_hold_none_that_they_have_reached() {
    let mut scene = Scene::new().max_unavailable(9).steps(json!([
        { "workloadSelector": { "matchLabels": { "track": "canary" } } }, { "pause": {} }, { "percentOfWorkloads": 30 },
        { "pause": {} },
    ]));
    let place = |track: &str, bucket: u8| Place { labels: Arc::new([("track".into(), track.into())].into()), bucket };
    // Three workloads of one namespace, each in another step.
    let all = [("a", place("canary", 95)), ("b", place("", 29)), ("c", place("", 30))];
    // Has the watches show them, compared with what each is to have now. The first ones have the latest content.
    let see = |scene: &mut Scene, latest: usize| {
        for (number, (name, place)) in all.iter().enumerate() {
            let image = if number < latest { NEW } else { OLD };
            scene.has_at(place, &deployment(name), image);
        }
    };
    let not_compared = "NewRevision what it matches is being compared";
    see(&mut scene, 0);
    scene.says(not_compared);
    see(&mut scene, 0);
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    scene.says("Paused step 2");
    see(&mut scene, 1);
    scene.commands.resumed = Some(at(2));
    scene.says(not_compared);
    see(&mut scene, 1);
    // A new leader knows from the record.
    scene.new_leader();
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("b"));
    scene.says("Paused step 4");
    // An edit of the steps that are over takes nothing back.
    let edited = json!([
        { "workloadSelector": { "matchLabels": { "track": "other" } } }, { "pause": {} }, { "percentOfWorkloads": 1 },
        { "pause": {} },
    ]);
    scene.settings.steps = serde_json::from_value(edited).unwrap();
    scene.says("Paused step 4");
    assert_eq!(all.each_ref().map(|(_, place)| scene.earlier("shop", place)), [false, false, true]);
    scene.commands.resumed = Some(at(3));
    scene.turn();
    see(&mut scene, 2);
    assert_eq!(scene.updates(), ["c"], "the others follow after the last step");
}

#[test]
fn unknown_namespaces_finish_no_step() {
    let mut scene = Scene::new().steps(json!([{ "namespaces": ["canary"] }, { "pause": {} }]));
    scene.namespaces = None;
    scene.says("RollingOut reading the Namespaces");
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 0);
}

#[test]
fn a_rollout_that_is_switched_on_begins_then() {
    let mut scene = Scene::new();
    scene.record().progress = crate::rollout::record::Course::default();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), NEW).down(50);
    scene.now = 9000;
    assert_eq!(scene.updates(), ["a"], "what broke while nothing was rolled out is no failure");
    assert_eq!(scene.record().progress.times.begun, Some(at(9000)));
}

#[test]
fn a_failure_holds_its_namespace_until_so_many_have_failed_that_the_rollout_halts() {
    let mut scene = Scene::new().max_unavailable(4);
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Count(1));
    scene.settings.failure_threshold = 2;
    for name in ["canary/a", "canary/b", "shop/a", "shop/b", "shop/c"] {
        scene.has(&deployment(name), OLD);
    }
    assert_eq!(scene.updates(), ["a", "a"]);
    let fails = |scene: &mut Scene, name: &str| {
        scene.patch(&deployment(name));
        let now = scene.now;
        scene.member(&deployment(name)).down(now);
        scene.stuck.insert(deployment(name));
    };
    fails(&mut scene, "canary/a");
    scene.patch(&deployment("shop/a"));
    assert_eq!(scene.updates(), ["b"], "in shop alone");
    // Also for the next leader, and if the workload is well again: only a person lets it go on.
    scene.new_leader();
    scene.stuck.clear();
    scene.member(&deployment("canary/a")).health.is_ready = true;
    scene.patch(&deployment("shop/b"));
    assert_eq!(scene.updates(), ["c"]);
    scene.patch(&deployment("shop/c"));
    let said = scene.said();
    let told = "deployments.apps/canary/a failed: 1 more of the same namespaces wait for `scpol rollout resume`";
    assert!(said.starts_with("RollingOut 4 of 5") && said.contains(told), "{said}");
    scene.commands.resumed = Some(at(scene.now));
    assert_eq!(scene.updates(), ["b"]);
    // It counts anew from there.
    fails(&mut scene, "canary/b");
    scene.says("RollingOut");
    fails(&mut scene, "shop/a");
    let said = scene.said();
    assert!(
        said.starts_with("Halted 2 workloads have failed, the last of them deployments.apps shop/a: SCP0416"),
        "{said}"
    );
}

#[test]
fn what_waits_for_a_resume_holds_a_pause_and_one_resume_ends_one_of_them() {
    let steps = json!([{ "namespaces": ["canary"] }, { "pause": { "duration": "60s" } }, { "pause": {} }]);
    let mut scene = Scene::new().max_unavailable(4).steps(steps);
    scene.settings.failure_threshold = 3;
    scene.turn();
    scene.has(&deployment("canary/a"), NEW);
    scene.says("Paused step 2");
    scene.has(&deployment("canary/b"), OLD);
    scene.has(&deployment("canary/a"), NEW).down(1);
    scene.stuck.insert(deployment("canary/a"));
    scene.now = 500;
    scene.says("RollingOut");
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 1, "the pause is over, and something waits");
    scene.stuck.clear();
    scene.has(&deployment("canary/a"), NEW);
    scene.commands.resumed = Some(at(500));
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("canary/b"));
    // It begins again.
    scene.says("Paused step 2");
    scene.now += 60;
    scene.says("Paused step 3");
}

#[test]
fn a_resume_after_a_failure_ends_no_timed_pause_and_neither_does_time_while_something_is_not_ready() {
    let mut scene = Scene::new()
        .steps(json!([{ "namespaces": ["canary"] }, { "pause": { "duration": "30m" } }, { "percent": 100 }]));
    let canary = deployment("canary/a");
    scene.has(&canary, OLD);
    scene.has(&deployment("b"), OLD);
    scene.turn();
    let hash = hash(NEW);
    let member = scene.member(&canary);
    (member.revision, member.carries) = (hash.into(), Carries::Other(OLD.into()));
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&canary);
    scene.says("Paused step 2 is a pause");
    scene.now = 600;
    let ready = scene.member(&canary).health;
    scene.member(&canary).health = Health { is_ready: false, since: Some(at(600)), ..ready };
    scene.stuck.insert(canary.clone());
    scene.says("Halted");
    scene.now = 40_000;
    scene.commands.resumed = Some(at(40_000));
    scene.stuck.clear();
    scene.turn();
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 1);
    scene.now += 1800;
    scene.member(&canary).health = Health { is_ready: false, since: Some(at(scene.now - 5)), ..ready };
    scene.says(".. waits until these are ready: deployments.apps canary/a");
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 1, "its canary is not ready");
    scene.member(&canary).health = Health { since: Some(at(scene.now)), ..ready };
    scene.turn();
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 2);
}

#[test]
fn a_resume_waits_until_the_namespaces_are_known() {
    let mut scene = Scene::new().steps(json!([{ "namespaces": ["canary"] }, { "pause": {} }]));
    scene.has(&deployment("canary/a"), NEW).revision = hash(NEW).into();
    scene.member(&deployment("canary/a")).carries = Carries::This;
    scene.record().reached.as_mut().unwrap().extent.namespaces.insert("canary".into());
    scene.says("Paused step 2");
    let namespaces = scene.namespaces.take();
    scene.commands.resumed = Some(at(2));
    scene.says(".. reading the Namespaces");
    scene.namespaces = namespaces;
    scene.turn();
    assert!(scene.record().reached.as_ref().is_none_or(|reached| reached.step > 1));
}
