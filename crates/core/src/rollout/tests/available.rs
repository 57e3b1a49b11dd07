//! What was unavailable before is no fault of the rollout.

use super::{NEW, OLD, Scene, deployment, pod, stateful_set};
use crate::refit::Carries;
use serde_json::json;

#[test]
fn what_was_broken_before_goes_first_and_halts_nobody() {
    let mut scene = Scene::new();
    for name in ["a", "b"] {
        scene.has(&deployment(name), OLD);
    }
    scene.has(&deployment("c"), OLD).down(-9000);
    assert_eq!(scene.updates(), ["a", "c"], "it costs nobody anything");
    scene.patch(&deployment("c"));
    scene.now = 900;
    assert_eq!(scene.updates(), ["a"]);
    scene.says(".. 1 were not ready before the rollout began");
    scene.new_leader();
    scene.patch(&deployment("a"));
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("b"));
    scene.says("Complete 3 of 3");
}

#[test]
fn what_is_broken_outside_the_steps_halts_nobody_and_holds_no_step() {
    for is_stuck in [false, true] {
        let steps = json!([{ "namespaces": ["canary"] }, { "pause": {} }]);
        let mut scene = Scene::new().max_unavailable(2).steps(steps);
        scene.has(&deployment("canary/a"), OLD);
        scene.has(&deployment("b"), OLD).down(1);
        if is_stuck {
            scene.stuck.insert(deployment("b"));
        }
        scene.turn();
        scene.has(&deployment("canary/a"), OLD);
        scene.now = 900;
        assert_eq!(scene.updates(), ["a"], "{is_stuck}");
        scene.patch(&deployment("canary/a"));
        scene.says("Paused step 2");
    }
}

#[test]
fn what_has_the_revision_and_was_broken_before_halts_nobody_and_counts_no_more() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), NEW).down(-9000);
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    scene.now = 5000;
    scene.says("Complete");
    // One that broke a moment before counts, and is no failure of the rollout either.
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), NEW).down(-1);
    assert_eq!(scene.updates(), [""; 0]);
    scene.now = 5000;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn what_was_broken_before_waits_where_the_record_has_no_room_for_it() {
    let mut scene = Scene::new();
    let known = (0..256).map(|number| format!("deployments.apps/shop/other-{number}"));
    scene.record().progress.broken = known.collect();
    scene.has(&deployment("a"), OLD).down(-1000);
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(".. 1 are left");
    scene.record().progress.broken.clear();
    scene.member(&deployment("a")).version += 1;
    scene.now += 20;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn what_was_patched_before_it_was_broken_for_long_is_patched_again_without_a_place_in_the_record() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD).down(-100);
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    let known = (0..256).map(|number| format!("deployments.apps/shop/other-{number}"));
    scene.record().progress.broken = known.collect();
    scene.now = 590;
    scene.turn();
    let member = scene.member(&deployment("a"));
    (member.version, member.carries) = (member.version + 1, Carries::Nothing);
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn what_a_leader_has_seen_broken_for_long_is_broken_before_where_no_status_tells() {
    for (name, is_new_leader, seconds, is_broken) in
        [("a", false, 601, true), ("b", false, 599, false), ("c", true, 601, false)]
    {
        let mut scene = Scene::new();
        let (db, web) = (stateful_set("db"), deployment("web"));
        scene.has(&db, NEW);
        scene.has(&web, NEW);
        scene.says("Complete");
        let health = &mut scene.member(&db).health;
        (health.is_ready, health.since) = (false, None);
        scene.turn();
        scene.now += seconds;
        if is_new_leader {
            scene.new_leader();
        }
        scene.begin_anew("envoy:3");
        let both = ["web".to_owned(), "db".to_owned()];
        let expected = if is_broken { &both[..] } else { &both[1..] };
        assert_eq!(scene.updates(), expected, "{name}: it costs nobody anything");
        scene.patch(&db);
        scene.new_leader();
        scene.now += 1;
        assert_eq!(scene.updates(), expected[..expected.len() - 1], "{name}");
    }
}

#[test]
fn what_was_down_a_moment_before_and_is_so_a_deadline_later_holds_nobody_up() {
    // One that became unavailable with the patch fails.
    for (since, is_failure) in [(-5, false), (3, true)] {
        let mut scene = Scene::new();
        (scene.now, scene.way) = (2, crate::refit::Way::InPlace);
        for name in ["a", "b"] {
            scene.has(&pod(name), OLD);
        }
        if !is_failure {
            scene.member(&pod("a")).down(since);
        }
        assert_eq!(scene.updates()[0], "a");
        scene.patch(&pod("a"));
        scene.member(&pod("a")).down(since);
        scene.now = 4;
        assert_eq!(scene.updates(), [""; 0], "it counts for now");
        scene.now = 800;
        if is_failure {
            scene.says("Halted pods shop/a: SCP0416");
            continue;
        }
        assert_eq!(scene.updates(), ["b"]);
        scene.patch(&pod("b"));
        scene.says("Complete 2 of 2");
    }
}
