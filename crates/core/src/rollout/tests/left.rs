//! What is left as it is, and tried again.

use super::{NEW, OLD, Scene, at, deployment, hash, left, pod};
use crate::api::code::Code;
use crate::api::v1alpha1::OnFailure;
use crate::refit::{Carries, Way};
use crate::rollout::answer::Answer;
use crate::rollout::steps::Reached;
use crate::workload::ObjectRef;
use serde_json::json;
use std::collections::BTreeMap;

#[test]
fn a_template_that_is_put_back_again_and_again_is_left() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), OLD);
    let put_back = |scene: &mut Scene| {
        let member = scene.member(&deployment("a"));
        (member.version, member.carries) = (member.version + 1, Carries::Other("old".into()));
        scene.now += 1;
    };
    let mut patches = 0;
    while let [next] = scene.next().as_slice() {
        assert_eq!(next.object, deployment("a"));
        if next.is_put_back {
            break;
        }
        patches += 1;
        assert!(patches < 9, "for ever");
        scene.patch(&deployment("a"));
        put_back(&mut scene);
    }
    assert_eq!(patches, 4, "once, and three times more");
    // Who writes all the time is found at a later attempt, which patches nothing either.
    scene.answer(&deployment("a"), Answer::Changed(scene.members.as_ref().unwrap()[&deployment("a")].version));
    put_back(&mut scene);
    assert!(scene.next()[0].is_put_back);
    scene.answer(&deployment("a"), left(Code::PutBack));
    for _ in 0..3 {
        put_back(&mut scene);
        assert_eq!(scene.updates(), ["b"], "whatever becomes of it");
    }
    scene.patch(&deployment("b"));
    scene.says("Complete 1 of 2 .. 1 are left");
    scene.now += 5000;
    scene.says("Complete 1 of 2 .. 1 are left");
    // The next rollout tries it again.
    scene.begin_anew("envoy:3");
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn whoever_changes_what_is_left_all_the_time_holds_nobody_up() {
    let mut scene = Scene::new();
    let others = [pod("aaa/a"), pod("aaa/b"), pod("aaa/c")];
    for object in &others {
        scene.has(object, OLD);
    }
    scene.has(&deployment("shop/web"), OLD);
    scene.way = Way::InPlace;
    for object in &others {
        assert_eq!(scene.updates(), std::slice::from_ref(&object.name));
        scene.answer(object, left(Code::RolloutOptedOut));
    }
    // Each of them is another version by now, and may be tried again.
    scene.now += 20;
    for object in &others {
        scene.member(object).version = 9;
    }
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&deployment("shop/web"));
    scene.says("Complete 1 of 4 workloads have this revision .. 3 are left");
}

#[test]
fn a_pod_whose_owner_keeps_none_is_left_and_an_owner_with_too_many_is_named() {
    let mut scene = Scene::new();
    scene.replica_set("gone", 1, OLD);
    scene.owner("gone").desired = 0;
    scene.has(&deployment("web"), OLD);
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&deployment("web"));
    scene.says("Complete 1 of 2 .. 1 are left");

    let mut scene = Scene::new();
    scene.replica_set("web", 2, OLD);
    scene.owner("web").desired = 1;
    scene.says(".. waits until ReplicaSet/web has no more pods than it wants");
}

#[test]
fn what_the_server_gave_no_answer_about_is_tried_again_once_it_changes() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.settings.progress_deadline_seconds = 30;
    for _ in 0..5 {
        if scene.updates().is_empty() {
            break;
        }
        scene.answer(&deployment("a"), Answer::Failed("500".into()));
        scene.now += 11;
    }
    let left: Vec<_> = scene.state.memory().left().map(|(_, left)| left.code).collect();
    assert_eq!(left, [Code::ServerAway]);
    scene.member(&deployment("a")).version += 1;
    scene.now += 11;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn what_is_left_is_tried_again_after_minutes_and_not_all_of_it_at_once() {
    let mut scene = Scene::new().max_unavailable(200);
    let name = |number: usize| deployment(&format!("a{number:03}"));
    for number in 0..100 {
        scene.has(&name(number), OLD);
    }
    let mut tried: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for _ in 0..900 {
        for update in scene.updates() {
            scene.answer(&deployment(&update), left(Code::RolloutOptedOut));
            tried.entry(update).or_default().push(scene.now);
        }
        scene.now += 1;
    }
    let times = |name: &ObjectRef| tried[&name.name].as_slice();
    assert_eq!(times(&name(0))[..2], [1, 301]);
    assert!((0..100).all(|number| (3..=4).contains(&times(&name(number)).len())), "{tried:?}");
    for minute in 2..15 {
        let all = tried.values().flatten().filter(|second| (minute * 60..minute * 60 + 60).contains(*second));
        assert!(all.count() <= 30, "in the minute {minute}");
    }
    scene.says("Complete");
    scene.patch(&name(7));
    scene.says("Complete 1 of 100");
}

#[test]
fn what_is_left_and_has_changed_goes_back_too_and_no_pause_keeps_it() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.settings.steps = serde_json::from_value(json!([{ "namespaces": ["shop"] }, { "pause": {} }])).unwrap();
    scene.record().reached = Some(Reached::begin(&hash(OLD), at(0)));
    scene.record().reached.as_mut().unwrap().extent = crate::policy::extent::Extent::of_namespaces(["shop".to_owned()]);
    scene.member(&deployment("a")).revision = hash(NEW).into();
    scene.member(&deployment("a")).carries = Carries::Other("old".into());
    assert_eq!(scene.updates(), ["a"]);
    scene.answer(&deployment("a"), left(Code::RolloutOptedOut));
    scene.now += 1;
    scene.says("Paused step 2 is a pause");
    scene.member(&deployment("a")).version = 9;
    scene.now += 20;
    assert_eq!(scene.updates(), ["a"], "the annotation is gone");
    scene.patch(&deployment("a"));

    scene.settings.on_failure = OnFailure::Undo;
    scene.stuck.insert(deployment("a"));
    scene.member(&deployment("a")).health.is_ready = false;
    scene.turn();
    let member = scene.member(&deployment("a"));
    (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("bad".into()));
    scene.now += 1;
    assert_eq!(scene.updates(), ["a"]);
    scene.answer(&deployment("a"), left(Code::RolloutOptedOut));
    scene.says(".. it has gone back, but 1 are left as they are");
    scene.member(&deployment("a")).version = 20;
    scene.now += 20;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn a_pod_on_a_node_where_its_daemonset_makes_none_is_not_evicted() {
    let mut scene = Scene::new().max_unavailable(5);
    scene.replica_set("agent", 3, OLD);
    let owner = scene.owner("agent");
    (owner.kind, owner.desired, owner.astray) = ("DaemonSet", 2, 1);
    scene.says("Complete 0 of 3 .. 3 are left");
    // A change in place takes no pod away, and a restart does.
    for (restarted, expected) in [(None, &["agent-0", "agent-1", "agent-2"][..]), (Some(at(0)), &[])] {
        let mut scene = Scene::new().max_unavailable(5);
        scene.replica_set("agent", 3, OLD);
        let owner = scene.owner("agent");
        (owner.kind, owner.desired, owner.astray) = ("DaemonSet", 2, 1);
        scene.way = Way::InPlace;
        scene.commands.restarted = restarted;
        assert_eq!(scene.updates(), expected);
    }
}

#[test]
fn what_is_left_is_told_and_not_tried_again_until_it_changes() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    assert_eq!(scene.updates(), ["a"]);
    scene.answer(&deployment("a"), left(Code::ContentEdited));
    scene.says("Complete 0 of 1 workloads have this revision, 1 of them are ready; 1 are left");
    scene.member(&deployment("a")).version = 2;
    scene.now += 1;
    assert_eq!(scene.updates(), [""; 0], "a status may change every second");
    scene.now += 10;
    assert_eq!(scene.updates(), ["a"], "it may be possible now");
}

#[test]
fn one_about_which_the_server_gives_no_answer_is_left_after_the_deadline() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), OLD);
    assert_eq!(scene.updates(), ["a"]);
    while scene.now < 590 {
        scene.answer(&deployment("a"), Answer::Failed("webhook \"x\" has failed".into()));
        let said = scene.said();
        assert!(said.contains("SCP0313: shop/a: webhook") && !said.contains("SCP0415"), "{said}");
        scene.now += 11;
        assert_eq!(scene.updates(), ["a"]);
    }
    scene.now += 20;
    scene.answer(&deployment("a"), Answer::Failed("webhook \"x\" has failed".into()));
    assert_eq!(scene.updates(), [""; 0], "the last attempt may have had its effect");
    scene.now += 11;
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("b"));
    scene.says(".. 1 are left as they are");
}

#[test]
fn an_owner_that_cannot_make_pods_keeps_those_that_it_has() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("web", 3, OLD);
    scene.gone(&pod("web-2"));
    scene.owner("web").fails_since = Some(at(-1000));
    assert_eq!(scene.updates(), [""; 0]);
    scene.says("Complete 0 of 2 .. 2 are left");
}

#[test]
fn a_template_that_is_written_anew_months_later_is_patched_again_each_time() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    for _ in 0..6 {
        assert_eq!(scene.updates(), ["a"]);
        scene.patch(&deployment("a"));
        scene.now += 3600;
        scene.says("Complete");
        let member = scene.member(&deployment("a"));
        (member.version, member.carries) = (member.version + 1, Carries::Nothing);
    }
}
