//! No more than the limits allow.

use super::{NEW, OLD, Scene, deployment, pod};
use crate::api::v1alpha1::MaxUnavailable;
use crate::refit::Carries;
use crate::rollout::machine::Action;

#[test]
fn no_eviction_is_begun_beyond_the_limit_and_none_is_replaced_by_a_reason_to_stop() {
    let mut scene = Scene::new().max_unavailable(5);
    for name in ["a", "b", "c"] {
        scene.replica_set(name, 1, OLD);
    }
    scene.evictions = 2;
    assert_eq!(scene.updates(), ["a-0", "b-0"]);
    scene.evictions = 0;
    scene.evict(&pod("a-0"), NEW);
    scene.evict(&pod("b-0"), NEW);
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(".. the limit of evictions of the operator");
    scene.evictions = 60;
    assert_eq!(scene.updates(), ["c-0"]);
}

#[test]
fn each_namespace_has_its_limit() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Count(1));
    for name in ["canary/a", "canary/b", "shop/a", "shop/b"] {
        scene.has(&deployment(name), OLD);
    }
    assert_eq!(scene.updates(), ["a", "a"], "one of each");
    scene.new_leader();
    assert_eq!(scene.updates(), ["a", "a"], "they are announced");
    scene.patch(&deployment("canary/a"));
    scene.patch(&deployment("shop/a"));
    scene.member(&deployment("shop/a")).health.is_ready = false;
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("canary/b"));
    scene.says(".. 1 are unavailable in shop and maxUnavailablePerNamespace is 1: deployments.apps shop/a");
    // Of the workloads of the namespace, not of all.
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Percentage("100%".into()));
    assert_eq!(scene.updates(), ["b"]);
    // A pod that an owner of the namespace lacks counts there.
    let mut scene = Scene::new().max_unavailable(9);
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Count(1));
    scene.has(&deployment("shop/a"), OLD);
    scene.has(&deployment("canary/a"), OLD);
    scene.replica_set("web", 1, NEW);
    scene.owner("web").desired = 2;
    let outcome = scene.turn().0;
    let places = outcome.actions.iter().filter_map(|action| match action {
        Action::Update(next) => Some(next.object.namespace.clone()),
        _ => None,
    });
    assert_eq!(places.collect::<Vec<_>>(), ["canary"]);
}

#[test]
fn what_is_evicted_after_the_end_and_does_not_come_back_counts() {
    let mut scene = Scene::new().max_unavailable(1);
    scene.replica_set("web", 1, NEW);
    scene.replica_set("zoo", 1, NEW);
    scene.says("Complete");
    scene.now = 5000;
    for name in ["web-0", "zoo-0"] {
        let member = scene.member(&pod(name));
        (member.version, member.carries) = (2, Carries::Nothing);
    }
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    let now = scene.now;
    scene.member(&again).down(now);
    scene.now += 20;
    for _ in 0..3 {
        assert_eq!(scene.updates(), [""; 0], "one is unavailable already");
        scene.now += 1000;
    }
}
