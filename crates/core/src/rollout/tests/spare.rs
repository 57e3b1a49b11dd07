//! What the owner of pods can spare.

use super::{NEW, OLD, Scene, at, deployment, object, pod};
use crate::refit::Way;
use crate::rollout::answer::{Answer, Done};
use crate::rollout::facts::Busy;
use crate::rollout::health::Health;
use crate::rollout::machine::Action;
use crate::rollout::record::Write;
use jiff::SignedDuration;

#[test]
fn a_budget_holds_nobody_else_up() {
    let mut scene = Scene::new();
    scene.replica_set("one", 2, OLD);
    scene.replica_set("two", 1, OLD);
    assert_eq!(scene.updates(), ["one-0"]);
    scene.answer(&pod("one-0"), Answer::Blocked("the budget none".into()));
    assert_eq!(scene.updates(), ["two-0"], "nor is the other pod of the same owner asked for");
    scene.says(".. SCP0415: shop/one-0: the budget none; it waits since");
    scene.now += 11;
    scene.evict(&pod("two-0"), NEW);
    assert_eq!(scene.updates(), ["one-0"]);
}

#[test]
fn in_place_only_the_limit_counts_and_evictions_of_an_owner_go_one_by_one() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("web", 5, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("web", 5, OLD);
    scene.way = Way::InPlace;
    assert_eq!(scene.updates(), ["web-0", "web-1", "web-2"]);
    assert!(scene.record().progress.evictions.is_empty());
    scene.patch(&pod("web-0"));
    scene.answer(&pod("web-1"), Answer::NeedsEviction(1, "the server rejects it".into()));
    let outcome = scene.turn().0;
    let next = outcome.actions.iter().find_map(|action| match action {
        Action::Update(next) if next.object.name == "web-1" => Some(next.may_evict),
        _ => None,
    });
    assert_eq!(next, None, "not while another pod of its owner is changed");
    scene.patch(&pod("web-2"));
    scene.now += 1;
    let chosen = scene.updates();
    assert!(chosen.contains(&"web-1".to_owned()), "{chosen:?}");
    assert_eq!(scene.record().progress.evictions.values().sum::<u32>(), 1);
}

#[test]
fn a_pod_that_opts_out_is_not_missing_and_one_whose_owner_is_unknown_is_not_touched() {
    let mut scene = Scene::new();
    scene.replica_set("web", 2, OLD);
    scene.gone(&pod("web-1"));
    assert_eq!(scene.updates(), [""; 0], "one of two is missing");
    scene.beside.insert("web".into(), 1);
    assert_eq!(scene.updates(), ["web-0"]);
    scene.evict(&pod("web-0"), NEW);
    scene.says("Complete");

    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    let owner = scene.owners.as_mut().unwrap().remove("web").unwrap();
    assert_eq!(scene.updates(), [""; 0]);
    scene.says("RollingOut .. waits for the owner of 1 pods");
    scene.owners.as_mut().unwrap().insert("web".into(), owner);
    assert_eq!(scene.updates(), ["web-0"]);
}

#[test]
fn two_policies_do_not_evict_two_pods_of_one_owner_together() {
    let scene = |updated: &str| {
        let mut scene = Scene::new().max_unavailable(5);
        scene.replica_set("web", 2, OLD);
        scene.replica_set("api", 1, OLD);
        scene.has(&pod(updated), NEW).owner = Some("web".into());
        scene
    };
    let evicting = |scene: &mut Scene| {
        let (record, now) = (scene.record().clone(), at(scene.now));
        scene.state.evicting(&record, scene.members.as_ref().unwrap(), now)
    };
    // One policy lacks one pod of the owner, and the other policy the other.
    let (mut one, mut other) = (scene("web-0"), scene("web-1"));
    assert_eq!(one.updates(), ["api-0", "web-1"]);
    other.busy = evicting(&mut one);
    assert_eq!(other.busy.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["api", "web"]);
    assert_eq!(other.updates(), [""; 0]);
    other.says(".. another policy has evicted a pod of ReplicaSet/api");
    // An answer says that it was no eviction.
    one.answer(&pod("api-0"), Answer::Blocked("budget none".into()));
    other.busy = evicting(&mut one);
    assert_eq!(other.updates(), ["api-0"]);
    // The pod may be gone, which the watch does not show yet; and then it does.
    one.answer(&pod("web-1"), Answer::Done(Done::Evicted));
    assert_eq!(evicting(&mut one).len(), 1);
    one.gone(&pod("web-1"));
    assert!(evicting(&mut one).is_empty());
    other.gone(&pod("web-1"));
    other.busy.clear();
    assert_eq!(other.updates(), ["api-0"], "its owner lacks it");
    other.evict(&pod("api-0"), NEW);
    other.has(&pod("web-2"), NEW).owner = Some("web".into());
    assert_eq!(other.updates(), ["web-0"]);
    // Two leaders have announced one each: the first one goes on.
    other.new_leader();
    let announced = other.record().progress.writes["pods/shop/web-0"].at;
    for (busy, expected) in [(announced - SignedDuration::from_secs(1), &[][..] as &[&str]), (announced, &["web-0"])] {
        other.busy = Busy::from([("web".into(), busy)]);
        assert_eq!(other.updates(), expected);
    }
    // What a halt keeps from being done holds up no other policy for ever, and waits for the others then.
    other.busy.clear();
    assert!(evicting(&mut other).contains_key("web"));
    other.now += 600;
    assert!(evicting(&mut other).is_empty());
    other.busy = Busy::from([("web".into(), at(other.now))]);
    assert!(!other.updates().contains(&"web-0".to_owned()));
}

#[test]
fn a_pod_that_names_the_owner_of_another_namespace_hides_no_lack_and_fails_nobody() {
    let mut scene = Scene::new();
    scene.replica_set("web", 2, OLD);
    let foreign = object(("", "pods"), "canary/other");
    scene.has(&foreign, OLD).owner = Some("web".into());
    assert_eq!(scene.updates(), ["web-0"], "it has no pod too many");
    let again = scene.evict(&pod("web-0"), NEW);
    let now = scene.now;
    scene.has(&foreign, OLD).owner = Some("web".into());
    scene.member(&foreign).created = Some(at(now + 1));
    scene.now += 60;
    assert_eq!(scene.updates(), ["web-1"]);
    scene.gone(&again);
    assert_eq!(scene.updates(), [""; 0], "its owner lacks one");
    scene.says(".. which lacks 1");
}

#[test]
fn a_broken_pod_does_not_wait_for_those_that_its_controller_makes_after_it() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.owner("web").desired = 3;
    scene.member(&pod("web-0")).health.is_ready = false;
    assert_eq!(scene.updates(), ["web-0"]);
    let mut scene = Scene::new().max_unavailable(5);
    scene.replica_set("web", 1, OLD);
    scene.owner("web").desired = 3;
    assert_eq!(scene.updates(), [""; 0], "one that serves waits");
}

#[test]
fn one_that_does_not_recover_holds_no_broken_one_up() {
    // A StatefulSet does not replace a broken pod by itself, and its status does not say since when it is not ready.
    let mut scene = Scene::new();
    for name in ["a", "b"] {
        let broken = scene.has(&deployment(name), OLD);
        broken.health = Health { is_ready: false, since: None, ..broken.health };
    }
    assert_eq!(scene.updates(), ["a", "b"], "neither serves anybody");
    scene.patch(&deployment("a"));
    scene.now += 100;
    assert_eq!(scene.updates(), ["b"]);
}

#[test]
fn an_owner_that_lacks_pods_for_another_reason_holds_no_end_up() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.has(&deployment("a"), OLD);
    scene.replica_set("other", 1, NEW);
    scene.owner("other").desired = 2;
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    scene.says("Complete");
    // Nor does one count that could make none long before the rollout.
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.replica_set("other", 1, NEW);
    let other = scene.owner("other");
    other.desired = 2;
    assert_eq!(scene.updates(), [""; 0]);
    scene.owner("other").fails_since = Some(at(-9000));
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn an_owner_with_more_pods_than_it_is_known_to_want_waits() {
    let mut scene = Scene::new();
    scene.replica_set("web", 3, OLD);
    scene.owner("web").desired = 2;
    assert_eq!(scene.updates(), [""; 0], "the watch of the owners is behind, or one pod is about to go");
    scene.owner("web").desired = 3;
    assert_eq!(scene.updates(), ["web-0"]);
}

#[test]
fn what_an_owner_lacks_counts_also_if_its_template_does_not_match() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("db", 3, OLD);
    scene.owner("db").policies.clear();
    assert_eq!(scene.updates(), ["db-0"]);
    scene.answer(&pod("db-0"), Answer::Done(Done::Evicted));
    scene.gone(&pod("db-0"));
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(".. ReplicaSet/db, which lacks 1");
}

#[test]
fn a_pod_for_which_others_of_its_owner_wait_is_named() {
    let mut scene = Scene::new();
    scene.replica_set("db", 3, OLD);
    scene.member(&pod("db-1")).down(-1000);
    assert_eq!(scene.updates(), ["db-1"]);
    let again = scene.evict(&pod("db-1"), NEW);
    scene.member(&again).health.is_ready = false;
    scene.says(&format!(".. waits for shop/{}, which is not ready", again.name));
}

#[test]
fn an_announced_eviction_waits_while_another_pod_of_its_owner_is_not_available() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.replica_set("web", 2, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    scene.new_leader();
    let member = scene.member(&pod("web-1"));
    let ready = member.health;
    member.health = Health { is_ready: false, since: Some(at(1)), ..ready };
    // The other leader may be sending it still. After that, none waits for the other.
    assert_eq!(scene.updates(), [""; 0]);
    scene.now += 30;
    assert_eq!(scene.updates(), ["web-1"]);
    scene.member(&pod("web-1")).health = ready;
    let again = scene.evict(&pod("web-1"), NEW);
    scene.member(&again).health.is_ready = false;
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(&format!(".. {}", again.name));
    scene.member(&again).health.is_ready = true;
    assert_eq!(scene.updates(), ["web-0"]);
}

#[test]
fn an_eviction_that_waits_for_its_owner_stops_no_other_one() {
    let mut scene = Scene::new().max_unavailable(4);
    scene.replica_set("web", 2, OLD);
    scene.replica_set("zoo", 1, OLD);
    scene.evictions = 1;
    assert_eq!(scene.updates(), ["web-0"]);
    scene.new_leader();
    scene.member(&pod("web-1")).down(1);
    scene.now += 100;
    assert_eq!(scene.updates(), ["web-1"]);
}

#[test]
fn two_announced_pods_of_one_owner_never_go_together() {
    let mut scene = Scene::new().max_unavailable(4);
    scene.replica_set("web", 2, OLD);
    let member = scene.member(&pod("web-1"));
    let ready = member.health;
    assert_eq!(scene.updates(), ["web-0"]);
    let write = |name: &str, scene: &mut Scene| {
        let write = Write { uid: scene.member(&pod(name)).uid.to_string(), at: at(1), by: "one".into(), evict: true };
        scene.record().progress.writes.insert(format!("pods/shop/{name}"), write);
    };
    write("web-1", &mut scene);
    for health in [ready, Health { is_ready: false, since: Some(at(1)), ..ready }] {
        scene.member(&pod("web-0")).health = health;
        scene.member(&pod("web-1")).health = health;
        assert_eq!(scene.updates().len(), 1);
    }
}
