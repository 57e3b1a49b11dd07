//! The spaces of states that are explored.

use crate::cluster::{Cluster, Delivered, Item, Kept, Maker, Settings, Spec};
use crate::leader::{Lost, Scene, Watch};
use crate::model::{Deviation, Space};
use serde_json::json;
use sidecar_policy_core::refit::Way;

/// Two owners with pods in the namespaces `a` and `b`, and a Deployment in `c`, all with the content 1, and an edit to `content`.
fn cluster(pods: [u8; 2], has_deployment: bool, content: u8) -> Cluster {
    let maker = |namespace: u8, desired: u8| Maker {
        namespace,
        desired,
        is_stateful: namespace == 1,
        is_guarded: false,
        ours: 0,
    };
    let ready = Item { is_ready: true, carries: 1, version: 1, ..Item::fresh() };
    let mut items = Vec::new();
    for (owner, count) in pods.into_iter().enumerate() {
        for ordinal in 0..count {
            let (name, owner) = (100 + 10 * owner as u8 + ordinal, owner as u8);
            items.push(Item { name, uid: name, namespace: owner, owner: Some(owner), ..ready.clone() });
        }
    }
    if has_deployment {
        items.push(Item { name: 140, uid: 140, namespace: 2, ..ready });
    }
    Cluster {
        now: 100_000,
        version: 1,
        uid: 0,
        spec: Spec { content, is_paused: false, resumed: None, restarted: None, uid: 1 },
        revisions: vec![Kept::complete(1, 1)],
        items,
        makers: vec![maker(0, pods[0]), maker(1, pods[1])],
        covered: [true; 3],
        delivered: Delivered { content: 1, earlier: None },
        evictions: Vec::new(),
        is_halted: false,
        untrue: None,
    }
}

/// The same after a `scpol rollout resume` that was followed.
fn resumed(mut cluster: Cluster) -> Cluster {
    cluster.spec.resumed = Some(50_000);
    cluster
}

fn scene(way: Way, rolling: &serde_json::Value) -> Scene {
    let max_unavailable = rolling["maxUnavailable"].as_u64().unwrap_or(1) as usize;
    Scene {
        settings: Settings::new(rolling),
        way,
        refuses_in_place: false,
        is_stuck_known: true,
        evictions: 100,
        max_unavailable,
    }
}

/// Whether the space is small, because nothing is left to do at its begin: its runs have one deviation more.
fn begin_has_ended(name: &str) -> bool {
    name == "after the end"
}

/// The spaces. Each run may have `bound` deviations.
pub fn spaces(bound: u8) -> Vec<Space> {
    use Deviation::{
        Break, Delete, Edit, Fall, Guard, Kill, Late, Lose, OptOut, Others, Pause, PutBack, Relabel, Replace, Restart,
        Resume, ResumeEarlier, Scale, Sleep, Wait,
    };
    let steps = json!([{ "namespaces": ["a"] }, { "pause": {} }, { "namespaces": ["b"] }]);
    let undo = json!({ "onFailure": "Undo", "maxUnavailable": 1 });
    let undo_in_steps = json!({ "onFailure": "Undo", "maxUnavailable": 1, "steps": steps });
    let (one, two) = (json!({ "maxUnavailable": 1 }), json!({ "maxUnavailable": 2 }));
    let in_steps = json!({ "maxUnavailable": 1, "steps": steps });
    let canary = json!({ "workloadSelector": { "matchLabels": { "track": "canary" } } });
    let by_workload = json!({ "maxUnavailable": 1, "steps": [canary, { "pause": {} }, { "percentOfWorkloads": 50 }] });
    let leaders = [Sleep, Fall, Lose(Lost::Answer), Lose(Lost::Request)];
    let watches = [
        Late(Watch::Policies),
        Late(Watch::Revisions),
        Late(Watch::Workloads),
        Late(Watch::Owners),
        Late(Watch::Namespaces),
    ];
    let space = |name, scene, begin, deviations: &[&[Deviation]]| Space {
        name,
        scene,
        begin,
        deviations: deviations.concat(),
        bound: if begin_has_ended(name) { bound + 1 } else { bound },
    };
    let evictions = |evictions: usize, scene: Scene| Scene { evictions, ..scene };
    vec![
        space(
            "leaders, in place",
            scene(Way::InPlace, &one),
            cluster([2, 1], true, 3),
            &[&leaders, &[Edit(2), Edit(1), Others]],
        ),
        space(
            "leaders, by eviction",
            scene(Way::Evict, &two),
            cluster([2, 2], false, 3),
            &[&leaders, &[Edit(2), Edit(1), Others]],
        ),
        space(
            "watches, in place",
            scene(Way::InPlace, &two),
            cluster([2, 1], true, 3),
            &[&watches, &[Edit(2), Sleep, Relabel(1)]],
        ),
        space(
            "watches, by eviction",
            scene(Way::Evict, &one),
            cluster([2, 1], false, 3),
            &[&watches, &[Edit(2), Kill, Scale(0, 3)]],
        ),
        space(
            "a limit",
            evictions(1, scene(Way::Evict, &two)),
            cluster([2, 2], false, 3),
            &[&leaders, &[Guard(0), Wait(11), Wait(61), Edit(1)]],
        ),
        space(
            "a failure, halted",
            scene(Way::InPlace, &two),
            resumed(cluster([2, 1], true, 2)),
            &[&[Resume, ResumeEarlier, Edit(3), Edit(1), Sleep, Fall, Wait(601), Restart]],
        ),
        space(
            "a failure, undone in place",
            scene(Way::InPlace, &undo),
            cluster([2, 1], true, 2),
            &[&leaders, &[Resume, Edit(3), Late(Watch::Workloads)]],
        ),
        space(
            "a failure, undone by eviction",
            scene(Way::Evict, &undo),
            cluster([2, 1], false, 2),
            &[&leaders, &[Resume, Edit(3), Kill, Late(Watch::Workloads)]],
        ),
        space(
            "steps",
            scene(Way::InPlace, &in_steps),
            cluster([1, 1], true, 3),
            &[&[Resume, Pause, Edit(1), Edit(2), Delete(1), Relabel(0), Relabel(2), Sleep, Kill, Replace]],
        ),
        space(
            "steps by workload",
            scene(Way::InPlace, &by_workload),
            cluster([1, 1], true, 3),
            &[&[Resume, Edit(1), Edit(2), Delete(1), Relabel(0), Sleep, Kill, Late(Watch::Workloads)]],
        ),
        space(
            "steps, undone",
            scene(Way::Evict, &undo_in_steps),
            cluster([1, 1], true, 2),
            &[&[Resume, Edit(3), Edit(1), Delete(1), Delete(2), Fall, Lose(Lost::Answer), Late(Watch::Revisions)]],
        ),
        space(
            "others write, in place",
            scene(Way::InPlace, &one),
            cluster([2, 1], true, 3),
            &[&[OptOut, PutBack, Break, Wait(601), Edit(1), Sleep, Late(Watch::Workloads)]],
        ),
        space(
            "others write, by eviction",
            scene(Way::Evict, &one),
            cluster([2, 2], true, 3),
            &[&[OptOut, PutBack, Break, Wait(601), Edit(1), Fall, Late(Watch::Workloads)]],
        ),
        space(
            "after the end",
            scene(Way::InPlace, &one),
            cluster([2, 1], true, 1),
            &[&[
                Break,
                Kill,
                OptOut,
                PutBack,
                Restart,
                Wait(601),
                Relabel(1),
                Resume,
                Fall,
                Edit(3),
                Replace,
                Delete(1),
            ]],
        ),
    ]
}
