//! Laws of rollouts, for every workload and every two revisions of a policy. A tenth of `PROPTEST_CASES` is the number of cases.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::laws::{Dice, POLICIES, as_stored, content, dice, strange, with_defaults, workload_of};
use proptest::prelude::*;
use serde_json::{Value, json};
use sidecar_policy::api::MARKER_PREFIX;
use sidecar_policy::api::v1alpha1::{Jobs, NativeSidecars};
use sidecar_policy::content::{Content, Revision};
use sidecar_policy::decision::Decision;
use sidecar_policy::inject::marker;
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::refit::{self, Asked, Carries, Cause, Goal, NextAction, TemplateChange, Unchanged, Way};
use sidecar_policy::workload::{Kind, Workload};
use std::fmt;
use std::sync::Arc;

pub(crate) fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    // Each takes some ten times as long as one of the other laws.
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases.div_ceil(10) } else { 1_000 };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

/// A stored workload, and two revisions of a policy.
pub(crate) struct Scene {
    pub(crate) original: Workload,
    pub(crate) from: Revision,
    pub(crate) to: Revision,
    base: Policy,
    pub(crate) site: Site,
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { original, from, to, site, .. } = self;
        let contents = [from, to].map(|revision| serde_json::to_string(&revision.content).unwrap());
        write!(
            f,
            "{}\n{}\nfrom {}\nto {}\nnative sidecars: {}",
            original.kind.resource, original.body, contents[0], contents[1], site.native_sidecars
        )
    }
}

impl Scene {
    pub(crate) fn policy(&self, revision: &Revision) -> Arc<Policy> {
        Arc::new(self.base.with_content(&revision.content))
    }

    /// `workload` as it is stored after a create under `policies`. None if one of them is not injected.
    pub(crate) fn created(&self, workload: &Workload, policies: &[&Arc<Policy>]) -> Option<Workload> {
        let policies = Policies::new(policies.iter().map(|policy| Arc::clone(policy)));
        let mut decision = Decision::of(&policies, workload, &self.site);
        let body = workload.patched(&decision.plan(workload));
        let is_complete = decision.inject.len() == policies.iter().count();
        is_complete.then(|| as_on_server(&workload.with_body(body)))
    }

    fn update(&self, workload: &Workload, policies: &[&Arc<Policy>]) -> Result<TemplateChange, Unchanged> {
        let all = Policies::new(policies.iter().map(|policy| Arc::clone(policy)));
        refit::template_update(
            workload,
            Some(&self.from),
            Goal { to: &self.policy(&self.to), policies: &all, site: &self.site },
        )
    }
}

/// A scene with a workload that is a pod, or that is none.
pub(crate) fn scene(is_pod: bool) -> impl Strategy<Value = Scene> {
    (dice(), dice(), dice()).prop_map(move |(mut dice, mut old, mut new)| {
        let pods = Kind::find("", "pods").unwrap();
        let other = Some(dice.kind()).filter(|kind| kind != pods && !kind.is_job());
        let other = other.unwrap_or_else(|| Kind::find("apps", "deployments").unwrap().clone());
        let original = workload_of(if is_pod { pods } else { &other }, &mut dice);
        let mut body = as_on_server(&original).body;
        if let Some(Value::Object(all)) = body.pointer_mut(&format!("{}/metadata/annotations", original.pod_pointer()))
        {
            all.retain(|key, _| !key.starts_with(MARKER_PREFIX));
        }
        body["metadata"]["uid"] = json!("the-uid");
        body["metadata"]["resourceVersion"] = json!("7");
        if is_pod {
            body["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "web", "controller": true}]);
        }
        let mut site = Site::new("scpol-system", [], []);
        site.native_sidecars = dice.roll(3) > 0;
        let from = of_policy(&mut old, 0);
        let to = if new.roll(3) == 0 { of_policy(&mut new, 0) } else { edited(&mut new, &from) };
        let [from, to] = [(1, from), (2, to)].map(|(number, content)| Revision::new(POLICIES[0], number, content));
        let base = policy(POLICIES[0], &original);
        Scene { original: original.with_body(body), from, to, base, site }
    })
}

/// `workload` as a server stores it. The same again changes nothing.
pub(crate) fn as_on_server(workload: &Workload) -> Workload {
    if workload.kind.resource != "pods" {
        return workload.with_body(with_defaults(workload.body.clone(), workload));
    }
    let mut body = as_stored(workload.body.clone(), workload);
    for list in ["containers", "initContainers"] {
        for container in body["spec"][list].as_array_mut().into_iter().flatten() {
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (name, amount) in limits {
                let requests = &mut container["resources"]["requests"];
                if requests[&name].is_null() {
                    requests[name] = amount;
                }
            }
            let resources = container["resources"].as_object_mut().unwrap();
            resources.retain(|_, amounts| amounts.as_object().is_some_and(|amounts| !amounts.is_empty()));
        }
        if body["spec"][list].is_null() {
            body["spec"].as_object_mut().unwrap().remove(list);
        }
    }
    workload.with_body(body)
}

/// A policy for the kind of `workload`.
fn policy(name: &str, workload: &Workload) -> Policy {
    let kind = &workload.kind;
    let path = kind.template_path().filter(|_| !kind.is_in_table());
    let target = json!({"group": kind.group, "resource": kind.resource, "templatePath": path});
    let spec = json!({"targets": [target], "template": {"containers": [{"name": "x", "image": "x"}]}});
    Policy::parse(&json!({"metadata": {"name": name}, "spec": spec}), &Site::new("scpol-system", [], [])).unwrap()
}

fn of_policy(dice: &mut Dice, index: usize) -> Content {
    let (template, position) = content(dice, index);
    let native_sidecars = dice.pick(&[NativeSidecars::ForJobs, NativeSidecars::Always, NativeSidecars::Never]);
    Content { template, position: Some(position), native_sidecars, jobs: Jobs::Inject, parameters: Vec::new() }
}

/// `content` after some edits that users make.
fn edited(dice: &mut Dice, content: &Content) -> Content {
    let mut edited = content.clone();
    let template = &mut edited.template;
    for _ in 0..=dice.roll(3) {
        match dice.roll(8) {
            0 => drop(template.containers.pop()),
            1 => template.containers.reverse(),
            2 => edited.position = of_policy(dice, 0).position,
            3 => edited.native_sidecars = of_policy(dice, 0).native_sidecars,
            4 => {
                let labels = &mut template.metadata.get_or_insert_default().labels;
                if labels.remove("mesh").is_none() {
                    labels.insert("mesh".into(), "off".into());
                }
            }
            5 => {
                let amounts =
                    dice.pick(&[json!({"cpu": "1"}), json!({"cpu": "500m"}), json!({"cpu": "1", "memory": "1Gi"})]);
                for container in template.containers.iter_mut().chain(&mut template.init_containers) {
                    container.insert("resources".into(), json!({"limits": amounts}));
                }
            }
            _ => {
                for container in template.containers.iter_mut().chain(&mut template.init_containers) {
                    container.insert("image".into(), json!(dice.pick(&["c", "d"])));
                }
            }
        }
    }
    edited
}

/// The object without what the markers of `policies` list, by code that knows nothing of updates.
fn without(workload: &Workload, policies: &[usize]) -> Value {
    let mut body = workload.body.clone();
    for &policy in policies {
        crate::undo::undo(&mut body, &workload.pod_pointer(), POLICIES[policy]);
    }
    body
}

/// What each operation changes, without the two that guard the patch.
fn changed_paths(patch: &json_patch::Patch) -> Vec<String> {
    let operations = serde_json::to_value(patch).unwrap();
    let operations = operations.as_array().unwrap();
    let is_test = |operation: &Value, path: &str| operation["op"] == "test" && operation["path"] == path;
    if let [uid, version, ..] = &operations[..] {
        assert!(is_test(uid, "/metadata/uid") && is_test(version, "/metadata/resourceVersion"), "{operations:?}");
    }
    operations.iter().skip(2).map(|operation| operation["path"].as_str().unwrap().to_owned()).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_updated_template_is_what_a_create_gives_and_the_same_again_changes_nothing(scene in scene(false)) {
        let (from, to) = (scene.policy(&scene.from), scene.policy(&scene.to));
        let Some(stored) = scene.created(&scene.original, &[&from]) else { return Ok(()) };
        prop_assert_eq!(refit::carries(&stored, &from, &scene.site), Carries::This);
        let expected = scene.created(&scene.original, &[&to]);
        let change = match scene.update(&stored, &[&to]) {
            Ok(change) => change,
            Err(left) => {
                prop_assert!(matches!(left.cause, Cause::NotInjected(_)) && expected.is_none(), "{:?}", left);
                return Ok(());
            }
        };
        let after = stored.with_body(change.body);
        prop_assert_eq!(refit::carries(&after, &to, &scene.site), Carries::This);
        prop_assert_eq!(&stored.patched(&change.patch), &after.body);
        let pod = stored.pod_pointer() + "/";
        prop_assert!(changed_paths(&change.patch).iter().all(|path| path.starts_with(&pod)), "{:?}", change.patch);
        let again = Scene { from: scene.to.clone(), ..scene };
        prop_assert_eq!(again.update(&after, &[&to]).unwrap().patch, json_patch::Patch::default());
        if change.kept.is_empty() {
            prop_assert_eq!(Some(as_on_server(&after).body), expected.map(|expected| expected.body));
        }
    }

    #[test]
    fn a_removal_gives_the_original_back(scene in scene(false)) {
        let from = scene.policy(&scene.from);
        let Some(stored) = scene.created(&scene.original, &[&from]) else { return Ok(()) };
        let change = refit::removal(&stored, &scene.from, &Policies::default()).unwrap();
        prop_assert_eq!(&stored.patched(&change.patch), &change.body);
        if change.kept.is_empty() {
            prop_assert_eq!(&change.body, &scene.original.body);
            let again = refit::removal(&stored.with_body(change.body), &scene.from, &Policies::default());
            prop_assert_eq!(again.unwrap().patch, json_patch::Patch::default());
        }
    }

    #[test]
    fn what_a_user_edits_is_the_users((scene, mut dice) in (scene(false), dice())) {
        let (from, to) = (scene.policy(&scene.from), scene.policy(&scene.to));
        let Some(mut stored) = scene.created(&scene.original, &[&from]) else { return Ok(()) };
        let mut added = marker::read(&stored, POLICIES[0]).unwrap().added;
        // The annotation for kubectl becomes the user's, and everything else is updated.
        let all = added.clone();
        added.retain(|at| !at.ends_with("/kubectl.kubernetes.io~1default-container") && !crate::undo::is_shared(&all, at));
        let items: Vec<String> = added.iter().filter_map(|at| crate::undo::locate(&stored.body, at)).collect();
        if items.is_empty() {
            return Ok(());
        }
        edit(&mut dice, &mut stored.body, &items);
        for result in [scene.update(&stored, &[&to]), refit::removal(&stored, &scene.from, &Policies::default())] {
            prop_assert_eq!(result.map_err(|left| left.cause), Err(Cause::ContentEdited), "{}", stored.body);
        }
    }

    #[test]
    fn the_user_and_other_policies_keep_their_own((scene, mut dice, mut other) in (scene(false), dice(), dice())) {
        let (from, to) = (scene.policy(&scene.from), scene.policy(&scene.to));
        let other = Arc::new(policy(POLICIES[1], &scene.original).with_content(&of_policy(&mut other, 1)));
        let Some(mut stored) = scene.created(&scene.original, &[&from, &other]) else { return Ok(()) };
        prop_assert_eq!([&from, &other].map(|policy| refit::carries(&stored, policy, &scene.site)), [Carries::This, Carries::This]);
        use_it(&mut dice, &mut stored);
        let Ok(change) = scene.update(&stored, &[&to, &other]) else { return Ok(()) };
        let after = stored.with_body(change.body);
        prop_assert_eq!(refit::carries(&after, &to, &scene.site), Carries::This);
        prop_assert_eq!(refit::carries(&after, &other, &scene.site), refit::carries(&stored, &other, &scene.site));
        prop_assert_eq!(&stored.patched(&change.patch), &after.body);
        if change.kept.is_empty() {
            prop_assert_eq!(without(&after, &[0]), without(&stored, &[0]));
            prop_assert_eq!(without(&after, &[0, 1]), without(&stored, &[0, 1]));
            prop_assert_eq!(without(&after, &[1, 0]), without(&stored, &[1, 0]));
        }
    }

    #[test]
    fn a_change_of_a_running_pod_is_what_a_create_gives_and_touches_nothing_else(scene in scene(true)) {
        let (from, to) = (scene.policy(&scene.from), scene.policy(&scene.to));
        let Some(pod) = scene.created(&scene.original, &[&from]) else { return Ok(()) };
        let expected = scene.created(&scene.original, &[&to]);
        let all = Policies::new([to.clone()]);
        let judge = |pod: &Workload| refit::next_action(pod, Some(&scene.from), Goal { to: &to, policies: &all, site: &scene.site }, &Asked { can_resize: true, ..Asked::default() });
        let (patch, resize) = match judge(&pod) {
            NextAction::InPlace { patch, resize } => (patch, resize),
            NextAction::UpToDate => (json_patch::Patch::default(), None),
            NextAction::Evict { .. } => return Ok(()),
            NextAction::Leave(left) => {
                prop_assert!(matches!(left.cause, Cause::NotInjected(_)) && expected.is_none(), "{:?}", left);
                return Ok(());
            }
            action => panic!("{action:?}"),
        };
        let is_allowed = |path: &String| {
            let below = path.strip_prefix("/spec/").map(|path| path.split('/').collect::<Vec<_>>());
            let is_image = below.is_some_and(|below| matches!(below[..], ["containers" | "initContainers", _, "image"]));
            is_image || path.starts_with("/metadata/labels") || path.starts_with("/metadata/annotations")
        };
        prop_assert!(changed_paths(&patch).iter().all(is_allowed), "{:?}", patch);
        let resized = pod.with_body(resize.as_ref().map_or_else(|| pod.body.clone(), |resize| merged(&pod.body, resize)));
        // The next leader, if this one ends between the two.
        let rest = NextAction::InPlace { patch: patch.clone(), resize: None };
        prop_assert_eq!(judge(&resized), if patch.is_empty() { NextAction::UpToDate } else { rest });
        let after = resized.with_body(resized.patched(&patch));
        prop_assert_eq!(refit::carries(&after, &to, &scene.site), Carries::This);
        prop_assert_eq!(judge(&after), NextAction::UpToDate);
        let Some(expected) = expected else {
            // A container of the user's that is that of the template is in no list of ours. So a change of the form in which it is to
            // be there moves nothing, though a create would be in conflict.
            prop_assert_eq!(after.body, pod.body);
            return Ok(());
        };
        prop_assert_eq!(as_on_server(&after).body, expected.body);
    }

    #[test]
    fn a_pod_that_is_expected_to_change_in_place_does_so((scene, can_resize) in (scene(true), any::<bool>())) {
        let (from, to) = (scene.policy(&scene.from), scene.policy(&scene.to));
        let Some(pod) = scene.created(&scene.original, &[&from]) else { return Ok(()) };
        let (all, asked) = (Policies::new([to.clone()]), Asked { can_resize, ..Asked::default() });
        let way = refit::expected(&pod.kind, Some(&scene.from), &to, &scene.site, &asked);
        let action = refit::next_action(&pod, Some(&scene.from), Goal { to: &to, policies: &all, site: &scene.site }, &asked);
        prop_assert_ne!(way, Way::Template);
        // A pod of Windows, or one with resources of its own, cannot be resized.
        let spec = &pod.body["spec"];
        let is_resizable = spec["os"]["name"] != "windows" && spec["resources"].is_null();
        if way == Way::InPlace && (is_resizable || !can_resize) {
            prop_assert!(matches!(action, NextAction::InPlace { .. } | NextAction::Leave(_)), "{:?}", action);
        }
    }

    #[test]
    fn no_object_is_too_strange(workload in strange(), mut dice in dice()) {
        let base = policy(POLICIES[0], &workload);
        let [from, to] = [(1, of_policy(&mut dice, 0)), (2, of_policy(&mut dice, 0))]
            .map(|(number, content)| Revision::new(POLICIES[0], number, content));
        let mut workload = workload;
        let pod = workload.pod_pointer();
        let listed = from.content.template.all_containers().map(|(_, item)| format!("{pod}/spec/containers/{}", item["name"].as_str().unwrap()));
        let marker = json!({"v": 1, "hash": from.template.hash, "added": listed.collect::<Vec<_>>()});
        let marker = format!(r#"{{"v":1,"hash":{},"added":{}}}"#, marker["hash"], marker["added"]);
        if let Some(Value::Object(metadata)) = workload.body.pointer_mut(&format!("{pod}/metadata")) {
            metadata.insert("annotations".into(), json!({marker::key(POLICIES[0]): marker}));
        }
        let (policy, site) = (base.with_content(&to.content), Site::new("scpol-system", [], []));
        let all = Policies::new([Arc::new(policy.clone())]);
        let _ = refit::carries(&workload, &policy, &site);
        let _ = refit::template_update(&workload, Some(&from), Goal { to: &policy, policies: &all, site: &site });
        let _ = refit::removal(&workload, &from, &all);
        let _ = refit::next_action(&workload, Some(&from), Goal { to: &policy, policies: &all, site: &site }, &Asked { can_resize: true, ..Asked::default() });
        let _ = refit::next_action(&workload, Some(&from), Goal { to: &policy, policies: &all, site: &site }, &Asked::default());
        let _ = refit::expected(&workload.kind, Some(&from), &policy, &site, &Asked::default());
    }
}

/// `pod` after the resize.
fn merged(pod: &Value, resize: &Value) -> Value {
    let mut pod = pod.clone();
    assert_eq!(resize["metadata"], json!({"uid": "the-uid", "resourceVersion": "7"}));
    for (list, changes) in resize["spec"].as_object().unwrap() {
        for change in changes.as_array().unwrap() {
            assert_eq!(change.as_object().unwrap().keys().collect::<Vec<_>>(), ["name", "resources"]);
            let mut containers = pod["spec"][list].as_array_mut().unwrap().iter_mut();
            let container = containers.find(|container| container["name"] == change["name"]).unwrap();
            for (kind, amounts) in change["resources"].as_object().unwrap() {
                for (name, amount) in amounts.as_object().unwrap() {
                    assert!(["cpu", "memory"].contains(&name.as_str()), "{name}");
                    container["resources"][kind][name] = amount.clone();
                }
            }
        }
    }
    pod
}

/// Edits one of `items`, which are pointers.
pub(crate) fn edit(dice: &mut Dice, body: &mut Value, items: &[String]) {
    let item = dice.pick(items);
    let (parent, last) = item.rsplit_once('/').unwrap();
    if dice.roll(4) == 0 {
        match body.pointer_mut(parent).unwrap() {
            Value::Array(list) if dice.roll(2) == 0 => list.push(list[last.parse::<usize>().unwrap()].clone()),
            Value::Array(list) => drop(list.remove(last.parse().unwrap())),
            map => drop(map.as_object_mut().unwrap().remove(&last.replace("~1", "/").replace("~0", "~"))),
        }
        return;
    }
    let item = body.pointer_mut(&item).unwrap();
    let Some(fields) = item.as_object_mut() else {
        *item = json!("edited");
        return;
    };
    match dice.roll(4) {
        0 => drop(fields.insert("edited".into(), dice.pick(&[json!(0), json!(false), json!("x"), json!({"x": [0]})]))),
        1 => drop(fields.insert("securityContext".into(), json!({"runAsUser": 0}))),
        _ => {
            let mut texts = Vec::new();
            find_texts(item, &mut texts);
            let count = texts.len();
            texts.swap_remove(dice.roll(count)).push_str("-edited");
        }
    }
}

/// The texts in `value` that say something.
fn find_texts<'a>(value: &'a mut Value, texts: &mut Vec<&'a mut String>) {
    match value {
        Value::String(text) if !text.is_empty() => texts.push(text),
        Value::Array(items) => items.iter_mut().for_each(|item| find_texts(item, texts)),
        Value::Object(fields) => fields.values_mut().for_each(|field| find_texts(field, texts)),
        _ => {}
    }
}

/// Adds what a user may add later: anywhere in the lists, and into a container of the user's own.
fn use_it(dice: &mut Dice, workload: &mut Workload) {
    let pod = workload.pod_pointer();
    for _ in 0..dice.roll(4) {
        let marked: Vec<String> = POLICIES
            .iter()
            .filter_map(|policy| marker::read(workload, policy))
            .flat_map(|marker| marker.added)
            .filter_map(|at| crate::undo::locate(&workload.body, &at))
            .collect();
        let list = dice.pick(&["containers", "initContainers", "volumes", "env", "volumeMounts"]);
        let parent = match list {
            "env" | "volumeMounts" => {
                let own = (0..8).map(|index| format!("{pod}/spec/containers/{index}"));
                let own: Vec<String> =
                    own.filter(|at| !marked.contains(at) && workload.body.pointer(at).is_some()).collect();
                if own.is_empty() {
                    continue;
                }
                dice.pick(&own)
            }
            _ => format!("{pod}/spec"),
        };
        let item = match list {
            "volumeMounts" => json!({"name": dice.pick(&["app", "proxy", "p0-x"]), "mountPath": "/users"}),
            "volumes" => json!({"name": "users", "emptyDir": {}}),
            _ => json!({"name": "users"}),
        };
        let field = &mut workload.body.pointer_mut(&parent).unwrap()[list];
        if field.is_null() {
            *field = json!([]);
        }
        let items = field.as_array_mut().unwrap();
        if items.iter().all(|other| other["name"] != item["name"] && other["mountPath"] != "/users") {
            // Not before the first container, because then the annotation for kubectl becomes the user's.
            let is_first =
                |index: &usize| list != "containers" || !marked.contains(&format!("{parent}/{list}/{index}"));
            let least = (0..items.len()).find(is_first).map_or(0, |first| first + usize::from(list == "containers"));
            items.insert(least + dice.roll(items.len() + 1 - least), item);
        }
    }
}
