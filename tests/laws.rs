//! Laws for every template and every workload. `PROPTEST_CASES` sets the number of cases of each law.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::kept::is_kept;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use sidecar_policy::api::pod_security::Standard;
use sidecar_policy::api::v1alpha1::{self, EnvPlace, Place, Position, RawObject};
use sidecar_policy::content::Content;
use sidecar_policy::decision::{Decision, Outcome};
use sidecar_policy::inject::{self, Conflict, Presence, Template, marker};
use sidecar_policy::policy::{Policies, Policy, PolicyRef, Site};
use sidecar_policy::workload::{KINDS, Kind, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LISTS: [&str; 4] = ["volumes", "imagePullSecrets", "initContainers", "containers"];
pub(crate) const POLICIES: [&str; 4] = ["zeta", "alpha", "a.b-c", "mid"];

fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { 5_000 };
    // Without a file of past failures, because a failure becomes a golden case or a unit test.
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_plan_applies_adds_only_and_nothing_of_the_users_is_changed((workload, templates) in scene()) {
        let all: Vec<&Template> = templates.iter().collect();
        let templates = rest(&workload, &all);
        if let Ok(patch) = inject::plan(&workload, &templates, &all, Standard::NEWEST) {
            for operation in serde_json::to_value(&patch).unwrap().as_array().unwrap() {
                prop_assert_eq!(&operation["op"], "add");
            }
            let mut after = workload.body.clone();
            json_patch::patch(&mut after, &patch).unwrap();
            let markers: Vec<String> = templates.iter().map(|template| marker::key(&template.policy)).collect();
            prop_assert!(is_kept(&workload.body, &after, &markers), "{}", after);
        }
    }

    #[test]
    fn who_conflicts_with_nobody_is_injected((workload, templates) in scene()) {
        let all: Vec<&Template> = templates.iter().collect();
        let templates = rest(&workload, &all);
        if let Err(conflict) = inject::plan(&workload, &templates, &all, Standard::NEWEST) {
            prop_assert_eq!(&workload.pod().unwrap()["spec"]["hostNetwork"], true, "{}", conflict);
        }
    }

    #[test]
    fn injecting_twice_is_injecting_once((workload, templates) in scene()) {
        let all: Vec<&Template> = templates.iter().collect();
        let templates = rest(&workload, &all);
        if let Some(after) = injected(&workload, &templates, &all) {
            let after = Workload::new(&workload.kind, after);
            prop_assert_eq!(inject::plan(&after, &templates, &all, Standard::NEWEST), Ok(json_patch::Patch(Vec::new())));
            for template in &templates {
                prop_assert_eq!(inject::plan(&after, &[*template], &all, Standard::NEWEST), Ok(json_patch::Patch(Vec::new())));
            }
        }
    }

    #[test]
    fn what_was_injected_is_already_injected((workload, templates) in scene()) {
        let (policies, site) = (policies(&workload, &templates), site());
        let mut decision = Decision::of(&policies, &workload, &site);
        let patch = decision.plan(&workload);
        let after = workload.with_body(workload.patched(&patch));
        let again = Decision::of(&policies, &after, &site);
        for policy in &decision.inject {
            let left = again.rest.iter().find(|left| left.policy.name == policy.name);
            prop_assert_eq!(left.map(|left| left.reason.row), Some(6), "{} in {}", policy.name, after.body);
        }
    }

    #[test]
    fn a_forged_marker_changes_nothing((mut workload, templates) in scene(), forger in 0_usize..4, lists in 0_usize..4) {
        let (policies, site) = (policies(&workload, &templates), site());
        let forged = &templates[forger % templates.len()];
        let key = marker::key(&forged.policy);
        let pod = workload.pod_pointer();
        // A marker needs a map of annotations, which its absence leaves as it is.
        let Some(pod_of) = workload.body.pointer_mut(&pod).and_then(Value::as_object_mut) else { return Ok(()) };
        let metadata = pod_of.entry("metadata").or_insert(Value::Null);
        if !metadata.is_object() {
            *metadata = json!({});
        }
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"].as_object_mut().unwrap().remove(&key);
        let added = ["", "\"/spec/containers/app\"", "\"POD/spec/containers/web\",\"POD/spec/containers/p1-x\"", "x"][lists];
        let value = format!(r#"{{"v":1,"hash":"{}","added":[{}]}}"#, forged.hash, added.replace("POD", &pod));
        let mut with = workload.body.clone();
        with.pointer_mut(&format!("{pod}/metadata/annotations")).unwrap()[&key] = json!(value);
        let with = Workload::new(&workload.kind, with);
        let policy = policies.get(&PolicyRef::of_cluster(&forged.policy)).unwrap();
        if policy.presence_beside(&with, policies.iter()) == Presence::Whole {
            return Ok(());
        }
        let outcome = |workload: &Workload| {
            let mut decision = Decision::of(&policies, workload, &site);
            let body = workload.patched(&decision.plan(workload));
            let injected: Vec<_> = decision.inject.iter().map(|policy| policy.name.clone()).collect();
            let rest: Vec<_> = decision.rest.iter().map(|left| (left.policy.name.clone(), left.reason.code)).collect();
            (injected, rest, without_markers(&workload.with_body(body.clone()), &templates.iter().collect::<Vec<_>>()), body)
        };
        let (one, other) = (outcome(&workload), outcome(&with));
        // Who says that a container is a policy's gets another one named for kubectl, in this workload alone.
        let named = |body: &Value| body.pointer(&format!("{pod}/metadata/annotations/kubectl.kubernetes.io~1default-container")).cloned();
        if lists > 0 && named(&one.3) != named(&other.3) {
            return Ok(());
        }
        prop_assert_eq!((&one.0, &one.1, &one.2), (&other.0, &other.1, &other.2));
        // Where another policy adds the same content, there is nothing to list.
        let lists_nothing = |body: Value| marker::read(&workload.with_body(body), &forged.policy).is_some_and(|marker| marker.added.is_empty());
        if one.0.contains(&forged.policy) && !lists_nothing(one.3.clone()) {
            prop_assert_eq!(one.3, other.3, "the marker is the same");
        }
    }

    #[test]
    fn nothing_is_refused_that_was_injected((workload, templates) in scene()) {
        let (policies, site) = (policies(&workload, &templates), site());
        let mut decision = Decision::of(&policies, &workload, &site);
        let patch = decision.plan(&workload);
        if patch.is_empty() {
            return Ok(());
        }
        let stored = Workload::new(&workload.kind, as_stored(workload.patched(&patch), &workload));
        let injected = decision.inject.clone();
        decision.judge_stored(&workload, &stored, &policies, &site);
        for policy in injected {
            let left = decision.rest.iter().find(|left| left.policy.name == policy.name);
            prop_assert!(left.is_none_or(|left| left.outcome == Outcome::Skipped), "{:?} {}", left.map(|left| &left.reason), stored.body);
        }
    }

    #[test]
    fn what_the_markers_list_gives_back_the_original((workload, templates) in scene(), order in Just([0, 1, 2, 3]).prop_shuffle()) {
        let all: Vec<&Template> = templates.iter().collect();
        let templates = rest(&workload, &all);
        if let Some(mut after) = injected(&workload, &templates, &all) {
            for index in order.into_iter().filter(|&index| index < templates.len()) {
                crate::undo::undo(&mut after, &workload.pod_pointer(), &templates[index].policy);
            }
            prop_assert_eq!(after, without_markers(&workload, &templates));
        }
    }

    #[test]
    fn the_users_stand_between_every_before_and_every_after((workload, templates) in scene()) {
        let all: Vec<&Template> = templates.iter().collect();
        let templates = rest(&workload, &all);
        if let Some(after) = injected(&workload, &templates, &all) {
            let after = Workload::new(&workload.kind, after);
            for list in LISTS {
                prop_assert_eq!(names(&after, list), expected_names(&workload, &templates, list), "{}", list);
            }
        }
    }

    #[test]
    fn the_order_of_policies_decides_the_order_of_items_alone((workload, templates) in scene(), order in Just([0, 1, 2, 3]).prop_shuffle()) {
        let straight: Vec<&Template> = templates.iter().collect();
        let shuffled: Vec<&Template> = order.iter().filter_map(|&index| templates.get(index)).collect();
        prop_assert_eq!(named_collisions(&straight), named_collisions(&shuffled));
        let of = |templates: &[&Template]| {
            let after = Workload::new(&workload.kind, injected(&workload, &rest(&workload, templates), templates)?);
            let sets = LISTS.map(|list| names(&after, list).into_iter().collect::<BTreeSet<_>>());
            let markers: Vec<_> = POLICIES.iter().map(|policy| marker::read(&after, policy)).collect();
            // The annotation with the first container depends on the order of containers.
            let is_of_order = |at: &String| at.ends_with("/kubectl.kubernetes.io~1default-container");
            let added = markers.iter().flatten().flat_map(|marker| marker.added.clone());
            let added: BTreeSet<String> = added.filter(|at| !is_of_order(at)).collect();
            let hashes: Vec<_> = markers.into_iter().map(|marker| Some(marker?.hash)).collect();
            Some((sets, added, hashes))
        };
        prop_assert_eq!(of(&straight), of(&shuffled));
    }

    #[test]
    fn a_collision_depends_on_its_pair_alone((_, templates) in scene()) {
        let all: Vec<&Template> = templates.iter().collect();
        let mut pairs = BTreeMap::new();
        for (one, first) in all.iter().enumerate() {
            for second in &all[one + 1..] {
                pairs.extend(named_collisions(&[first, second]));
            }
        }
        prop_assert_eq!(named_collisions(&all), pairs);
    }

    #[test]
    fn what_the_server_makes_of_an_injected_workload_is_still_equal((workload, templates) in scene()) {
        let all: Vec<&Template> = templates.iter().collect();
        let templates = rest(&workload, &all);
        // Without markers, what is added is the user's own, and shared as well.
        if templates.iter().any(|template| !template.spec.share.is_empty()) {
            return Ok(());
        }
        if let Some(after) = injected(&workload, &templates, &all) {
            let stored = without_markers(&Workload::new(&workload.kind, as_stored(after, &workload)), &templates);
            let stored = Workload::new(&workload.kind, stored);
            for template in &templates {
                prop_assert_eq!(inject::check(&stored, template, &all, Standard::NEWEST), Ok(()));
            }
            let again = Workload::new(&workload.kind, injected(&stored, &templates, &all).unwrap());
            for template in &templates {
                let added = marker::read(&again, &template.policy).unwrap().added;
                prop_assert!(added.iter().all(|at| at.ends_with("/annotations")), "{:?}", added);
            }
        }
    }

    #[test]
    fn no_object_is_too_strange(workload in strange(), (_, templates) in scene()) {
        let templates: Vec<&Template> = templates.iter().collect();
        for template in &templates {
            let _ = inject::check(&workload, template, &templates, Standard::NEWEST);
            let _ = marker::read(&workload, &template.policy);
        }
        if let Ok(patch) = inject::plan(&workload, &templates[..1], &templates, Standard::NEWEST) {
            let mut after = workload.body.clone();
            json_patch::patch(&mut after, &patch).unwrap();
            let again = inject::plan(&Workload::new(&workload.kind, after), &templates[..1], &templates, Standard::NEWEST);
            prop_assert_eq!(again, Ok(json_patch::Patch(Vec::new())));
        }
    }
}

fn site() -> Site {
    Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
}

/// Policies with these templates that select `workload`.
fn policies(workload: &Workload, templates: &[Template]) -> Policies {
    let Kind { group, resource, .. } = &*workload.kind;
    let mut target = json!({ "group": group, "resource": resource });
    if !workload.kind.is_in_table() {
        target["templatePath"] = json!(workload.kind.template_path());
    }
    Policies::new(templates.iter().map(|template| {
        let spec = json!({ "targets": [target], "template": { "volumes": [{ "name": "v", "emptyDir": {} }] } });
        let object = json!({ "metadata": { "name": template.policy }, "spec": spec });
        let policy = Policy::parse(&object, &site()).unwrap();
        let (template, position) = (template.spec.clone(), Some(template.position));
        Arc::new(policy.with_content(&Content { template, position, ..Content::default() }))
    }))
}

/// The steps of every engine before a plan: drop colliding templates, then those that conflict with the workload.
fn rest<'a>(workload: &Workload, templates: &[&'a Template]) -> Vec<&'a Template> {
    let out: BTreeSet<usize> =
        inject::collisions(templates).into_iter().flat_map(|(one, other, _)| [one, other]).collect();
    let rest = templates.iter().enumerate().filter(|(index, template)| {
        !out.contains(index) && inject::check(workload, template, templates, Standard::NEWEST).is_ok()
    });
    rest.map(|(_, template)| *template).collect()
}

fn injected(workload: &Workload, templates: &[&Template], matching: &[&Template]) -> Option<Value> {
    let mut after = workload.body.clone();
    json_patch::patch(&mut after, &inject::plan(workload, templates, matching, Standard::NEWEST).ok()?).unwrap();
    Some(after)
}

fn named_collisions(templates: &[&Template]) -> BTreeMap<BTreeSet<String>, Conflict> {
    let names = |one: usize, other: usize| [one, other].map(|index| templates[index].policy.clone()).into();
    inject::collisions(templates).into_iter().map(|(one, other, conflict)| (names(one, other), conflict)).collect()
}

fn without_markers(workload: &Workload, templates: &[&Template]) -> Value {
    let mut body = workload.body.clone();
    let annotations = body.pointer_mut(&format!("{}/metadata/annotations", workload.pod_pointer()));
    if let Some(Value::Object(annotations)) = annotations {
        annotations.retain(|key, _| templates.iter().all(|template| *key != marker::key(&template.policy)));
    }
    body
}

fn names(workload: &Workload, list: &str) -> Vec<String> {
    let items = workload.pod_spec().and_then(|spec| spec.get(list)?.as_array());
    items.into_iter().flatten().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

fn expected_names(workload: &Workload, templates: &[&Template], list: &str) -> Vec<String> {
    let (own, mut before, mut after) = (names(workload, list), Vec::new(), Vec::new());
    for template in templates {
        let (items, place) = match list {
            "volumes" => (&template.spec.volumes, Place::After),
            "imagePullSecrets" => (&template.spec.image_pull_secrets, Place::After),
            "containers" => (&template.spec.containers, template.position.containers),
            _ => (&template.spec.init_containers, template.position.init_containers),
        };
        for item in items {
            let name = item["name"].as_str().unwrap().to_owned();
            let is_native = list == "initContainers" && item.get("restartPolicy").is_some();
            if ![&own, &before, &after].iter().any(|names| names.contains(&name)) {
                if place == Place::Before || is_native { &mut before } else { &mut after }.push(name);
            }
        }
    }
    [before, own, after].concat()
}

/// The object as a server stores it: with canonical quantities, defaults and the token mount, and without empty values.
/// The same again changes nothing.
pub(crate) fn as_stored(body: Value, workload: &Workload) -> Value {
    let mut body = with_defaults(body, workload);
    let spec = body.pointer_mut(&workload.pod_pointer()).and_then(|pod| pod.get_mut("spec")?.as_object_mut());
    for container in spec.into_iter().flat_map(containers) {
        let token =
            json!({"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true});
        let mounts = container.entry("volumeMounts").or_insert(json!([])).as_array_mut().unwrap();
        if !mounts.contains(&token) {
            mounts.push(token);
        }
    }
    body
}

fn containers(spec: &mut RawObject) -> impl Iterator<Item = &mut RawObject> {
    let lists = spec.iter_mut().filter(|(field, _)| ["initContainers", "containers"].contains(&field.as_str()));
    lists.flat_map(|(_, list)| objects(Some(list)))
}

/// The object as a server stores it, without what admission adds to pods. The same again changes nothing.
pub(crate) fn with_defaults(mut body: Value, workload: &Workload) -> Value {
    let pod = body.pointer_mut(&workload.pod_pointer()).unwrap();
    let Some(Value::Object(spec)) = pod.get_mut("spec") else { return body };
    containers(spec).for_each(store_container);
    for volume in objects(spec.get_mut("volumes")) {
        if volume.len() == 1 {
            volume.insert("emptyDir".into(), json!({}));
        }
        if let Some(Value::Object(source)) = volume.get_mut("configMap") {
            source.insert("defaultMode".into(), json!(420));
        }
        canonical(volume.get_mut("emptyDir").and_then(|source| source.get_mut("sizeLimit")));
    }
    body
}

fn objects(list: Option<&mut Value>) -> impl Iterator<Item = &mut RawObject> {
    list.and_then(Value::as_array_mut).into_iter().flatten().map(|item| item.as_object_mut().unwrap())
}

fn store_container(container: &mut RawObject) {
    let is_dropped = |value: &Value| [json!(null), json!(""), json!([]), json!(false)].contains(value);
    container.retain(|_, value| !is_dropped(value));
    container.entry("imagePullPolicy").or_insert(json!("Always"));
    container.insert("terminationMessagePath".into(), json!("/dev/termination-log"));
    container.entry("resources").or_insert(json!({}));
    let resources = container.get_mut("resources").and_then(Value::as_object_mut).into_iter().flatten();
    for (_, amount) in resources.flat_map(|(_, amounts)| amounts.as_object_mut().unwrap()) {
        canonical(Some(amount));
    }
    for (list, default) in [("ports", Some(("protocol", "TCP"))), ("env", None)] {
        for item in container.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let item = item.as_object_mut().unwrap();
            item.retain(|_, value| !is_dropped(value));
            if let Some((field, value)) = default {
                item.entry(field).or_insert(json!(value));
            }
        }
    }
}

fn canonical(amount: Option<&mut Value>) {
    let Some(amount) = amount else { return };
    let canonical = match amount.as_str() {
        Some("0.5") => "500m",
        Some("1024Mi" | "1073741824") => "1Gi",
        Some(other) => other,
        None => "2",
    };
    *amount = json!(canonical);
}

/// Answers to "which of n?" that proptest can shrink towards the first choice.
///
/// Ten times as fast as composed strategies, with generators in plain code.
#[derive(Debug)]
pub(crate) struct Dice(std::vec::IntoIter<u8>);

impl Dice {
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        usize::from(self.0.next().unwrap_or_default()) % sides
    }

    /// A kind with a pod.
    pub(crate) fn kind(&mut self) -> Arc<Kind> {
        let custom =
            ["spec.template", "spec.workers.podTemplate"].map(|path| Kind::of("example.org", "rollouts", Some(path)));
        let kinds: Vec<_> = KINDS.iter().filter(|kind| kind.pod_path.is_some()).cloned().chain(custom).collect();
        self.pick(&kinds)
    }

    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())].clone()
    }

    /// A selection of at most `most` of `choices`, without repetition, in any order.
    fn some<'a>(&mut self, choices: &[&'a str], most: usize) -> Vec<&'a str> {
        let mut left = choices.to_vec();
        (0..self.roll(most + 1)).map(|_| left.swap_remove(self.roll(left.len()))).collect()
    }

    /// Puts `filled`, `empty`, null or nothing under `key`.
    fn put(&mut self, into: &mut Value, key: &str, filled: Value, empty: Value) {
        if let Some(value) =
            self.pick(&[Some(filled.clone()), Some(filled.clone()), None, Some(filled), Some(empty), Some(Value::Null)])
        {
            into[key] = value;
        }
    }
}

pub(crate) fn dice() -> impl Strategy<Value = Dice> {
    prop::collection::vec(any::<u8>(), 0..160).prop_map(|rolls| Dice(rolls.into_iter()))
}

/// A workload and the templates of policies, by priority.
fn scene() -> impl Strategy<Value = (Workload, Vec<Template>)> {
    dice().prop_map(|mut dice| {
        let templates = (0..1 + dice.roll(POLICIES.len())).map(|index| template(&mut dice, index)).collect();
        (workload(&mut dice), templates)
    })
}

/// The template of the policy `index`.
fn template(dice: &mut Dice, index: usize) -> Template {
    let (spec, position) = content(dice, index);
    let template = Template::new(POLICIES[index], &spec, position);
    if dice.roll(4) == 3 { template.with_native_sidecars() } else { template }
}

/// What the policy `index` adds, with unique names and shared ones.
pub(crate) fn content(dice: &mut Dice, index: usize) -> (v1alpha1::Template, Position) {
    let own = [format!("p{index}-x"), format!("p{index}-y")];
    let names = [own[0].as_str(), own[1].as_str(), "app", "proxy", "d/1~2", own[0].as_str(), own[1].as_str()];
    let pick = |dice: &mut Dice, most| dice.some(&names, most).into_iter().collect::<BTreeSet<_>>();
    let volumes = pick(dice, 2);
    let containers = pick(dice, 2);
    let inits: Vec<_> = pick(dice, 2).into_iter().filter(|name| !containers.contains(name)).collect();
    let shares = containers.iter().chain(&inits).next().map(|to| share(dice, to));
    let spec = v1alpha1::Template {
        share: shares.into_iter().flatten().collect(),
        volumes: volumes.iter().map(|name| item(name, volume(dice))).collect(),
        containers: containers.iter().map(|name| item(name, container(dice, volumes.first()))).collect(),
        init_containers: inits.iter().map(|name| item(name, container(dice, volumes.last()))).collect(),
        ..inner(dice, volumes.first().copied().unwrap_or("app"))
    };
    let mut place = || dice.pick(&[Place::After, Place::Before]);
    let [containers, init_containers, env_from, volume_mounts] = [place(), place(), place(), place()];
    let env = dice.pick(&[EnvPlace::Auto, EnvPlace::Before, EnvPlace::After]);
    (spec, Position { containers, init_containers, env, env_from, volume_mounts })
}

/// What the container `to` gets of the user's; nothing in most cases.
fn share(dice: &mut Dice, to: &str) -> Option<v1alpha1::Share> {
    let choices = [
        json!(null),
        json!(null),
        json!({"to": to, "volumeMounts": ["*"]}),
        json!({"to": to, "env": ["*"], "from": ["w*", "app"]}),
        json!({"to": to, "volumeMounts": ["/d", "app"], "env": ["A"], "readOnly": false}),
    ];
    serde_json::from_value(dice.pick(&choices)).unwrap()
}

/// Fields of the pod; none in half of the cases.
fn fields(dice: &mut Dice) -> Option<v1alpha1::PodFields> {
    let choices = [
        json!(null),
        json!(null),
        json!(null),
        json!({"shareProcessNamespace": true, "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b.example"]}]}),
        json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}], "searches": ["a.example"]}}),
        json!({"tolerations": [{"key": "a/b", "operator": "Exists"}], "terminationGracePeriodSeconds": {"atLeast": 60}}),
        json!({"terminationGracePeriodSeconds": {"atLeast": 90}, "dnsConfig": {"nameservers": ["10.0.0.1"]}}),
    ];
    serde_json::from_value(dice.pick(&choices)).unwrap()
}

/// Content besides containers, and for the user's own containers. Empty in half of the cases.
fn inner(dice: &mut Dice, volume: &str) -> v1alpha1::Template {
    if dice.roll(2) == 0 {
        return v1alpha1::Template::default();
    }
    let objects = |list: Value| serde_json::from_value::<Vec<RawObject>>(list).unwrap();
    let map = |dice: &mut Dice, choices: &[Value]| serde_json::from_value(dice.pick(choices)).unwrap();
    let variables = dice.pick(&[
        json!([]),
        json!([{"name": "A", "value": "1"}]),
        json!([{"name": "A", "value": "$(B)"}, {"name": "D", "value": "$$(B)"}]),
        json!([{"name": "A", "value": "-x", "merge": "Append"}]),
        json!([{"name": "A", "value": "-y", "merge": "Prepend"}, {"name": "B", "value": "c", "merge": "Append", "separator": ","}]),
        json!([{"name": "A", "value": ""}, {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    ]);
    let sources = dice.pick(&[
        json!([]),
        json!([]),
        json!([{"configMapRef": {"name": "c"}}, {"prefix": "P/", "secretRef": {"name": "s"}}]),
    ]);
    let mounts = dice.pick(&[
        json!([]),
        json!([]),
        json!([{"name": volume, "mountPath": "/m"}]),
        json!([{"name": volume, "mountPath": "/d/"}]),
    ]);
    let secrets = dice.pick(&[json!([]), json!([{"name": "registry"}]), json!([{"name": "r2"}, {"name": "registry"}])]);
    let globs = dice.pick(&[json!([]), json!([]), json!(["app"]), json!(["w*", "日?"])]);
    v1alpha1::Template {
        metadata: Some(v1alpha1::TemplateMetadata {
            labels: map(dice, &[json!({}), json!({"app": "web"}), json!({"mesh": "on"}), json!({"app": "other"})]),
            annotations: map(dice, &[json!({}), json!({"a/b": "1"}), json!({"own/a~b": "x", "a/b": "2"})]),
        }),
        image_pull_secrets: objects(secrets),
        pod: fields(dice),
        env: objects(variables),
        env_from: objects(sources),
        volume_mounts: objects(mounts),
        app_containers: serde_json::from_value(globs).unwrap(),
        include_init_containers: dice.roll(3) == 2,
        ..v1alpha1::Template::default()
    }
}

fn item(name: &str, mut body: Value) -> RawObject {
    body["name"] = json!(name);
    body.as_object().unwrap().clone()
}

/// A container from few choices, so that equal and unequal ones occur, some of them in two notations.
fn container(dice: &mut Dice, volume: Option<&&str>) -> Value {
    match dice.roll(18) {
        0..6 => json!({"image": "a"}),
        6 => json!({"image": "a", "tty": false, "args": [], "command": null, "workingDir": "", "stdin": false}),
        7 => json!({"image": "a", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}),
        8 => json!({"image": "a", "resources": {"limits": {"memory": "1024Mi", "cpu": "0.5"}}}),
        9 => json!({"image": "a", "resources": {"limits": {"cpu": 2}}}),
        10 => json!({"image": "b"}),
        11 => json!({"image": "a", "env": [{"name": "A", "value": ""}, {"name": "B", "value": "b"}]}),
        12 => {
            json!({"image": "a", "env": [{"name": "B", "value": "b"}, {"name": "A"}], "future": {"x": [1, {"y": null}]}})
        }
        13 => json!({"image": "a", "ports": [{"containerPort": 80, "hostPort": 80 + dice.roll(3)}]}),
        14 => {
            json!({"image": "a", "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}], "restartPolicy": "Always"})
        }
        15 => json!({"image": "a", "ports": [{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 80}]}),
        16 => json!({"image": "a", "volumeMounts": [{"name": "app", "mountPath": "/b", "readOnly": false}]}),
        _ => json!({"image": "a", "volumeMounts": [{"name": volume.unwrap_or(&"proxy"), "mountPath": "/d"}]}),
    }
}

fn volume(dice: &mut Dice) -> Value {
    match dice.roll(8) {
        0..3 => json!({"emptyDir": {}}),
        3 => json!({}),
        4 => json!({"emptyDir": {"sizeLimit": "1Gi"}}),
        5 => json!({"emptyDir": {"sizeLimit": "1073741824"}}),
        6 => json!({"emptyDir": {"medium": "Memory"}}),
        _ => json!({"configMap": {"name": "c"}}),
    }
}

fn workload(dice: &mut Dice) -> Workload {
    let kind = dice.kind();
    workload_of(&kind, dice)
}

pub(crate) fn workload_of(kind: &Arc<Kind>, dice: &mut Dice) -> Workload {
    const NAMES: [&str; 6] = ["app", "web", "proxy", "d/1~2", "日志", "p1-x"];
    let mut names = dice.some(&NAMES, 5);
    let inits = names.split_off(dice.roll(names.len() + 1));
    let volumes = dice.some(&NAMES, 4);
    let items = |dice: &mut Dice, names: &[&str]| {
        names.iter().map(|name| Value::Object(item(name, container(dice, Some(&"app"))))).collect::<Value>()
    };
    let mut spec = json!({"restartPolicy": "Always", "unknown": [null, {"deep": {}}]});
    let (apps, inits) = (items(dice, &names), items(dice, &inits));
    let volumes = volumes.iter().map(|name| Value::Object(item(name, volume(dice)))).collect();
    dice.put(&mut spec, "containers", apps, json!([]));
    dice.put(&mut spec, "initContainers", inits, json!([]));
    dice.put(&mut spec, "volumes", volumes, json!([]));
    if dice.roll(12) == 11 {
        spec["hostNetwork"] = json!(true);
    }
    for (field, value) in [
        ("terminationGracePeriodSeconds", json!(45)),
        ("shareProcessNamespace", json!(true)),
        ("dnsConfig", json!({"options": [{"name": "ndots", "value": "5"}]})),
        ("dnsConfig", json!({"options": [{"name": "edns0"}], "searches": ["a.example"]})),
        ("tolerations", json!([{"key": "c", "operator": "Exists"}])),
    ] {
        if dice.roll(8) == 7 {
            spec[field] = dice.pick(&[value, Value::Null]);
        }
    }
    let mut pod = json!({"spec": spec});
    let metadata = metadata(dice);
    dice.put(&mut pod, "metadata", metadata, json!({}));
    let mut body = kind.pod_path.iter().flatten().rev().fold(pod, |inner, key| json!({key: inner, "beside": [1, "x"]}));
    body["kind"] = json!(kind.kind.as_deref().unwrap_or("Rollout"));
    if kind.resource == "statefulsets" {
        body["spec"]["volumeClaimTemplates"] =
            dice.pick(&[json!([{"metadata": {"name": "proxy"}}]), json!(null), json!([])]);
    }
    Workload::new(kind, body)
}

fn metadata(dice: &mut Dice) -> Value {
    const MARKERS: [&str; 5] =
        ["", "garbage", "[]", r#"{"v":1,"hash":"0123456789abcdef","added":["/spec","/x/y"]}"#, r#"{"v":2,"hash":"x"}"#];
    let mut annotations = Map::new();
    if dice.roll(2) == 1 {
        annotations.insert("own/a~b".into(), json!("x"));
    }
    if dice.roll(3) == 2 {
        annotations.insert(marker::key(dice.pick(&POLICIES)), json!(dice.pick(&MARKERS)));
    }
    let mut metadata = json!({"labels": {"app": "web"}});
    dice.put(&mut metadata, "annotations", Value::Object(annotations), json!({}));
    metadata
}

/// JSON that no server sends, from the words that the code looks for.
pub(crate) fn strange() -> impl Strategy<Value = Workload> {
    dice().prop_map(|mut dice| {
        let kind = dice.kind();
        let pod = match dice.roll(4) {
            0 => tree(&mut dice, 5),
            1 => json!({"metadata": tree(&mut dice, 3), "spec": tree(&mut dice, 4)}),
            _ => json!({"metadata": {"annotations": tree(&mut dice, 2)}, "spec": {"containers": [tree(&mut dice, 3), tree(&mut dice, 3)], "volumes": tree(&mut dice, 2)}}),
        };
        let body = if dice.roll(8) == 7 { tree(&mut dice, 6) } else { kind.pod_path.iter().flatten().rev().fold(pod, |inner, key| json!({key: inner})) };
        Workload::new(&kind, body)
    })
}

fn tree(dice: &mut Dice, depth: usize) -> Value {
    const WORDS: [&str; 22] = [
        "spec",
        "template",
        "jobTemplate",
        "metadata",
        "annotations",
        "containers",
        "initContainers",
        "volumes",
        "name",
        "name",
        "ports",
        "hostPort",
        "containerPort",
        "protocol",
        "volumeMounts",
        "volumeClaimTemplates",
        "image",
        "injected.scpol.dev/zeta",
        "hostNetwork",
        "app",
        "p0-x",
        "restartPolicy",
    ];
    match dice.roll(if depth == 0 { 6 } else { 16 }) {
        0 => Value::Null,
        1 => json!(dice.roll(2) == 1),
        2 => json!(dice.pick(&[0, 80, -1, i64::MIN])),
        3 => json!(dice.pick(&[0.5, 1e300, -0.0])),
        4..6 => json!(dice.pick(&WORDS)),
        6..10 => (0..dice.roll(4)).map(|_| tree(dice, depth - 1)).collect(),
        _ => (0..dice.roll(6)).map(|_| (dice.pick(&WORDS).to_owned(), tree(dice, depth - 1))).collect(),
    }
}
