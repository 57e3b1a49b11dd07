//! What has failed, and what has not.

use super::{NEW, OLD, Scene, at, deployment, hash, left, pod, stateful_set};
use crate::api::code::Code;
use crate::api::v1alpha1::OnFailure;
use crate::refit::{Carries, Way};
use crate::rollout::answer::{Answer, Done};
use crate::rollout::health::Health;
use crate::rollout::record::Write;
use jiff::SignedDuration;
use serde_json::json;

#[test]
fn a_sidecar_that_does_not_start_is_a_failure_also_where_something_was_broken_before() {
    let mut scene = Scene::new();
    scene.has(&deployment("c"), OLD).down(-9000);
    assert_eq!(scene.updates(), ["c"]);
    scene.patch(&deployment("c"));
    scene.stuck.insert(deployment("c"));
    scene.says("Halted");
}

#[test]
fn one_container_may_restart_three_times_and_another_one_too() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.way = Way::InPlace;
    assert_eq!(scene.updates(), ["web-0"]);
    scene.patch(&pod("web-0"));
    let member = scene.member(&pod("web-0"));
    member.health.is_ready = false;
    member.restarts = vec![("a".into(), 4), ("b".into(), 4)];
    // The update itself is one of each.
    scene.says("RollingOut");
    scene.member(&pod("web-0")).restarts[1].1 = 5;
    scene.says(".. its sidecar has been restarted 4 times");
}

#[test]
fn a_replacement_that_came_without_the_revision_is_known_in_the_second_of_the_eviction() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.now = 10;
    assert_eq!(scene.updates(), ["web-0"]);
    // The clock of the server is behind ours.
    scene.now = 7;
    let again = scene.evict(&pod("web-0"), OLD);
    scene.member(&again).health.is_ready = false;
    scene.now = 11;
    scene.says(&format!("Halted pods shop/{}: SCP0417", again.name));
}

#[test]
fn an_owner_with_a_pod_that_is_left_is_whole_and_its_later_lack_fails_nobody() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.replica_set("web", 2, OLD);
    scene.replica_set("api", 2, OLD);
    scene.gone(&pod("api-1"));
    scene.beside.insert("api".into(), 1);
    assert_eq!(scene.updates(), ["api-0", "web-0"]);
    scene.evict(&pod("api-0"), NEW);
    scene.evict(&pod("web-0"), NEW);
    assert_eq!(scene.updates(), ["web-1"]);
    scene.answer(&pod("web-1"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    assert!(scene.record().progress.evicted.is_empty(), "{:?}", scene.record().progress.evicted);
}

#[test]
fn a_workload_younger_than_the_rollout_fails_under_the_next_leader_too() {
    let mut scene = Scene::new();
    let web = deployment("web");
    scene.has(&web, OLD).created = Some(at(5));
    scene.now = 10;
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&web);
    scene.member(&web).health = Health { is_ready: false, since: Some(at(11)), ..scene.member(&web).health };
    scene.stuck.insert(web);
    scene.new_leader();
    scene.now = 30;
    scene.says("Halted deployments.apps shop/web: SCP0416");
}

#[test]
fn the_reason_of_the_content_before_fails_nobody() {
    let mut scene = Scene::new();
    scene.way = Way::InPlace;
    let web = pod("web");
    scene.has(&web, OLD);
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&web);
    // The kubelet has not looked yet: the image of before could not be pulled.
    scene.stuck.insert(web.clone());
    let health = &mut scene.member(&web).health;
    (health.is_ready, health.is_settled, health.grace) = (false, false, SignedDuration::from_secs(30));
    scene.now = 8;
    scene.says("RollingOut");
    scene.member(&web).health.is_settled = true;
    // It is the reason of this content now.
    scene.says("Halted");
}

#[test]
fn a_pod_that_comes_back_without_the_revision_is_a_failure_and_after_the_end_it_is_left() {
    let mut scene = Scene::new();
    scene.replica_set("db", 1, OLD);
    assert_eq!(scene.updates(), ["db-0"]);
    // A StatefulSet gives its pod the same name again.
    let owner = scene.member(&pod("db-0")).owner.clone();
    let again = |scene: &mut Scene, image: &str| {
        scene.answer(&pod("db-0"), Answer::Done(Done::Evicted));
        scene.gone(&pod("db-0"));
        scene.now += 2;
        let now = scene.now;
        let member = scene.has(&pod("db-0"), image);
        (member.owner, member.created, member.begun) = (owner.clone(), Some(at(now)), Some(at(now)));
    };
    again(&mut scene, OLD);
    scene.says("Halted pods shop/db-0: SCP0417");
    // The same by another leader, and a resume is one more attempt.
    scene.new_leader();
    scene.says("Halted");
    scene.now += 10;
    scene.commands.resumed = Some(at(scene.now));
    assert_eq!(scene.updates(), ["db-0"]);
    again(&mut scene, NEW);
    scene.says("Complete");

    // Somebody deletes the pod while the webhook is away: one more eviction, and no more.
    again(&mut scene, OLD);
    assert_eq!(scene.updates(), ["db-0"]);
    for _ in 0..3 {
        again(&mut scene, OLD);
        assert_eq!(scene.updates(), [""; 0]);
        let left: Vec<_> = scene.state.memory().left().map(|(_, left)| left.code).collect();
        assert_eq!(left, [Code::ReplacementMissed]);
        scene.new_leader();
    }
}

#[test]
fn a_pod_that_is_not_made_again_is_a_failure_for_every_leader() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    scene.answer(&pod("web-0"), Answer::Done(Done::Evicted));
    scene.members.as_mut().unwrap().clear();
    scene.now = 500;
    scene.says("RollingOut");
    scene.new_leader();
    scene.says("RollingOut");
    scene.now = 1101;
    scene.says("Halted pods shop/web-0: SCP0416: ReplicaSet/web has made no new pod");
    scene.commands.resumed = Some(at(1103));
    scene.now = 1104;
    // A resume gives it as much time again.
    scene.says("RollingOut");
    scene.now = 1705;
    scene.says("Halted");
}

#[test]
fn a_pod_that_is_moved_long_after_its_eviction_fails_nothing() {
    let mut scene = Scene::new().steps(json!([{ "namespaces": ["shop"] }, { "pause": {} }]));
    scene.turn();
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.says("Paused step 2");
    scene.now = 5000;
    scene.gone(&again);
    for _ in 0..2 {
        // Somebody drains its node.
        scene.says("Paused step 2");
        scene.new_leader();
        scene.now += 1;
    }
}

#[test]
fn each_owner_that_makes_no_pod_again_is_a_failure() {
    let mut scene = Scene::new().max_unavailable(5);
    scene.settings.failure_threshold = 2;
    for name in ["a", "b"] {
        scene.replica_set(name, 1, OLD);
    }
    assert_eq!(scene.updates(), ["a-0", "b-0"]);
    for name in ["a-0", "b-0"] {
        scene.answer(&pod(name), Answer::Done(Done::Evicted));
        scene.gone(&pod(name));
    }
    scene.says("RollingOut");
    scene.now = 700;
    scene.says("Halted 2 workloads have failed");
}

#[test]
fn a_young_pod_that_was_evicted_can_fail() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.owner("web").created = Some(at(1));
    scene.member(&pod("web-0")).created = Some(at(1));
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.member(&again).health.is_ready = false;
    scene.stuck.insert(again);
    scene.says("Halted");
}

#[test]
fn a_moment_without_readiness_is_no_failure_long_after_the_update() {
    let mut scene = Scene::new();
    scene.now = 7200;
    let health = scene.has(&deployment("a"), NEW).health;
    let uid = scene.member(&deployment("a")).uid.to_string();
    scene.has(&deployment("b"), OLD);
    assert_eq!(scene.updates(), ["b"]);
    scene.answer(&deployment("b"), Answer::Blocked("no".into()));
    let write = Write { uid, at: at(1), by: "one".into(), evict: false };
    scene.record().progress.writes.insert("deployments.apps/shop/a".into(), write);
    for (is_ready, is_settled, since) in [(false, true, Some(7195)), (false, true, None), (true, false, Some(-100))] {
        scene.member(&deployment("a")).health = Health { is_ready, is_settled, since: since.map(at), ..health };
        let said = scene.said();
        assert!(said.starts_with("RollingOut"), "{since:?}: {said}");
        scene.member(&deployment("a")).health = health;
        scene.turn();
    }
    scene.member(&deployment("a")).health = Health { is_ready: false, since: None, ..health };
    scene.turn();
    scene.now += 601;
    scene.answer(&deployment("b"), Answer::Blocked("no".into()));
    scene.says("Halted");
}

#[test]
fn an_owner_that_is_scaled_after_its_eviction_and_one_that_lacked_pods_before_fail_nothing() {
    for was_broken in [false, true] {
        let mut scene = Scene::new();
        scene.replica_set("db", if was_broken { 3 } else { 1 }, OLD);
        if was_broken {
            scene.members.as_mut().unwrap().retain(|object, _| object.name == "db-0");
            scene.member(&pod("db-0")).down(-1000);
        }
        assert_eq!(scene.updates(), ["db-0"]);
        let again = scene.evict(&pod("db-0"), NEW);
        if was_broken {
            let member = scene.member(&again);
            member.health.is_ready = false;
        } else {
            scene.owner("db").desired = 100;
        }
        scene.turn();
        scene.now += 1000;
        let said = scene.said();
        assert!(said.starts_with("Complete"), "{was_broken}: {said}");
    }
}

#[test]
fn a_stateful_set_that_waits_for_a_pod_of_an_earlier_content_asks_for_its_deletion_and_fails_nobody() {
    for on_failure in [OnFailure::Undo, OnFailure::Halt] {
        let mut scene = Scene::new();
        let db = stateful_set("db");
        scene.settings.on_failure = on_failure;
        scene.has(&db, OLD);
        assert_eq!(scene.updates(), ["db"]);
        scene.patch(&db);
        let health = &mut scene.member(&db).health;
        (health.is_ready, health.since) = (false, None);
        scene.stuck.insert(db.clone());
        scene.now += 20;
        scene.says("Halted statefulsets.apps shop/db: SCP0416: ImagePullBackOff");
        // It goes back by itself, or by `scpol rollout undo`.
        if on_failure == OnFailure::Halt {
            scene.begin(OLD);
        }
        let member = scene.member(&db);
        (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("bad".into()));
        scene.now += 1;
        assert_eq!(scene.updates(), ["db"], "{on_failure:?}");
        scene.patch(&db);
        // Its pod has the content of before the undo.
        scene.stuck.clear();
        scene.by_hand.insert(db.clone());
        let expected = if on_failure == OnFailure::Undo { "Halted" } else { "RollingOut" };
        for _ in 0..3 {
            scene.says(&format!("{expected} delete a pod of db; .. 0 of them are ready"));
            scene.now += 1000;
            scene.new_leader();
        }
        // Somebody does, and the new pod has its time.
        for _ in 0..2 {
            scene.says(&format!("{expected} delete a pod of db; .. 0 of them are ready"));
            scene.now += 500;
        }
        scene.by_hand.clear();
        scene.says(&format!("{expected} .. 0 of them are ready"));
        scene.member(&db).health.is_ready = true;
        let expected =
            if on_failure == OnFailure::Undo { "Halted .. has the revision before again" } else { "Complete" };
        scene.says(expected);
    }
}
