//! What is announced counts for every leader.

use super::{NEW, OLD, Scene, deployment, hash, left, pod};
use crate::api::code::Code;
use crate::refit::Carries;
use crate::rollout::answer::Answer;
use crate::rollout::health::Health;

#[test]
fn one_announced_write_after_the_other_counts_for_every_leader() {
    let mut scene = Scene::new().max_unavailable(2);
    for name in ["a", "b", "c", "d"] {
        scene.has(&deployment(name), OLD);
    }
    assert_eq!(scene.updates(), ["a", "b"]);
    // That leader sleeps before, within or after both requests. The next one takes the same two.
    scene.new_leader();
    assert_eq!(scene.updates(), ["a", "b"]);
    scene.patch(&deployment("a"));
    scene.member(&deployment("a")).health.is_ready = false;
    assert_eq!(scene.updates(), ["b"], "it counts until it is ready");
    scene.answer(&deployment("b"), Answer::Failed("no answer".into()));
    assert_eq!(scene.updates(), [""; 0], "it may have happened");
    scene.member(&deployment("a")).health.is_ready = true;
    assert_eq!(scene.updates(), ["c"]);
    scene.now += 11;
    assert_eq!(scene.updates(), ["b", "c"]);
}

#[test]
fn what_another_leader_may_still_do_keeps_its_place_although_we_cannot_do_it() {
    let mut scene = Scene::new();
    scene.replica_set("one", 1, OLD);
    scene.replica_set("two", 1, OLD);
    assert_eq!(scene.updates(), ["one-0"]);
    scene.new_leader();
    assert_eq!(scene.updates(), ["one-0"]);
    scene.answer(&pod("one-0"), Answer::Blocked("none".into()));
    assert_eq!(scene.updates(), [""; 0]);
    scene.now += 601;
    assert_eq!(scene.updates(), ["two-0"], "what was refused comes last");
}

#[test]
fn an_answer_that_no_news_of_the_watch_follows_holds_no_place_for_ever() {
    for answer in [Answer::Changed(1), Answer::NotNeeded(None)] {
        let mut scene = Scene::new().max_unavailable(1);
        scene.has(&deployment("a"), OLD);
        scene.has(&deployment("b"), OLD);
        assert_eq!(scene.updates(), ["a"]);
        scene.answer(&deployment("a"), answer.clone());
        scene.now += 9;
        assert_eq!(scene.updates(), [""; 0], "{answer:?}: the watch may be behind");
        scene.now += 2;
        assert_eq!(scene.updates(), ["a"], "{answer:?}");
        // A new edit does not help, and the place is free if nothing is to be done.
        scene.answer(&deployment("a"), answer.clone());
        scene.begin("envoy:3");
        for member in scene.members.as_mut().unwrap().values_mut() {
            member.revision = hash("envoy:3").into();
        }
        scene.now += 11;
        assert_eq!(scene.updates(), ["a"], "{answer:?}");
        scene.answer(&deployment("a"), answer.clone());
        scene.member(&deployment("a")).carries = Carries::This;
        scene.now += 11;
        assert_eq!(scene.updates(), ["b"], "{answer:?}");
    }
}

#[test]
fn what_is_tried_again_in_vain_after_the_end_disturbs_nothing() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.has(&deployment("left"), OLD);
    let member = scene.has(&deployment("down"), NEW);
    member.health = Health { is_ready: true, since: None, ..member.health };
    assert_eq!(scene.updates(), ["left"]);
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    scene.member(&deployment("down")).health.is_ready = false;
    scene.now += 400;
    assert_eq!(scene.updates(), ["left"]);
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    assert_eq!(scene.record().progress.times.disturbed, None);
}

#[test]
fn what_was_tried_in_vain_after_the_end_does_not_stay_in_the_record() {
    let mut scene = Scene::new().max_unavailable(1);
    scene.has(&deployment("left"), OLD);
    assert_eq!(scene.updates(), ["left"]);
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    scene.now += 400;
    assert_eq!(scene.updates(), ["left"]);
    scene.record().progress.failed.insert("deployments.apps/canary/x".into());
    scene.has(&deployment("canary/held"), OLD).revision = hash(NEW).into();
    scene.member(&deployment("canary/held")).carries = Carries::Other(OLD.into());
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.turn();
    let progress = &scene.record().progress;
    assert_eq!((progress.writes.len(), progress.times.disturbed), (0, None));
}
