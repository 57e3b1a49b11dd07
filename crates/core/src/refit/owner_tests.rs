//! Any order of adding, renaming, splitting, updating and removing policies gives back the object exactly.

use super::*;
use crate::content::Content;
use crate::inject::{self, undo};
use crate::workload::Kind;
use proptest::prelude::*;
use serde_json::json;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Content that any policy may add, at most one of each row.
const ITEMS: [&str; 14] = [
    r#"{"volumes":[{"name":"v","emptyDir":{}}]}"#,
    r#"{"volumes":[{"name":"v","emptyDir":{}},{"name":"w","configMap":{"name":"w"}}],"volumeMounts":[{"name":"v","mountPath":"/v"}]}"#,
    r#"{"containers":[{"name":"x","image":"x:1"}]}"#,
    r#"{"containers":[{"name":"x","image":"x:2"}]}"#,
    r#"{"containers":[{"name":"y","image":"y"}]}"#,
    r#"{"initContainers":[{"name":"i","image":"i"}]}"#,
    r#"{"env":[{"name":"A","value":"1"}]}"#,
    r#"{"env":[{"name":"J","value":"-b","merge":"Append"}]}"#,
    r#"{"metadata":{"labels":{"mesh":"on"}}}"#,
    r#"{"imagePullSecrets":[{"name":"s"}],"metadata":{"annotations":{"n":"1"}}}"#,
    r#"{"env":[{"name":"J","value":"-c","merge":"Prepend"}]}"#,
    r#"{"pod":{"terminationGracePeriodSeconds":{"atLeast":60},"shareProcessNamespace":true}}"#,
    r#"{"pod":{"hostAliases":[{"ip":"10.0.0.1","hostnames":["a"]}],"dnsConfig":{"options":[{"name":"ndots","value":"2"}]}}}"#,
    r#"{"pod":{"terminationGracePeriodSeconds":{"atLeast":90}}}"#,
];

/// What happens to a workload.
#[derive(Clone, Debug)]
enum Event {
    /// The policy gets this content, and is rolled out.
    Roll(usize, [bool; ITEMS.len()], bool),
    /// The policy gets this content, and takes the place of the other one.
    Rename(usize, usize, [bool; ITEMS.len()]),
    /// The first policy gets the content where this is true, and the other one the rest, and what both are to have.
    Split(usize, usize, [bool; ITEMS.len()], [bool; ITEMS.len()]),
    /// `scpol rollout remove`.
    Remove(usize),
    /// `scpol uninject -p`.
    Uninject(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let items = || prop::array::uniform14(prop::bool::weighted(0.3));
    prop_oneof![
        4 => (0..4_usize, items(), any::<bool>()).prop_map(|(policy, items, before)| Event::Roll(policy, items, before)),
        2 => (0..4_usize, 0..4_usize, items()).prop_map(|(policy, other, items)| Event::Rename(policy, other, items)),
        1 => (0..4_usize, 0..4_usize, items(), items()).prop_map(|(one, two, of_one, of_two)| Event::Split(one, two, of_one, of_two)),
        1 => (0..4_usize).prop_map(Event::Remove),
        1 => (0..4_usize).prop_map(Event::Uninject),
    ]
}

fn policy(name: &str, items: &[bool; ITEMS.len()], before: bool, replaces: Option<&str>) -> Arc<Policy> {
    let mut template = json!({});
    for item in ITEMS.iter().zip(items).filter(|(_, is_in)| **is_in).map(|(item, _)| item) {
        let item: Value = serde_json::from_str(item).unwrap();
        for (field, more) in item.as_object().unwrap() {
            match (&mut template[field], more) {
                (Value::Array(all), Value::Array(more)) => {
                    let is_new = |item: &Value, all: &[Value]| all.iter().all(|other| other["name"] != item["name"]);
                    let new: Vec<Value> = more.iter().filter(|item| is_new(item, all)).cloned().collect();
                    all.extend(new);
                }
                (Value::Object(all), Value::Object(more)) => all.extend(more.clone()),
                (there, more) => *there = more.clone(),
            }
        }
    }
    let spec = json!({ "template": { "volumes": [{ "name": "placeholder", "emptyDir": {} }] }, "replaces": Vec::from_iter(replaces) });
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let parsed = Policy::parse(&object, &site()).unwrap();
    let place = if before { json!("Before") } else { json!("After") };
    let position = serde_json::from_value(json!({ "containers": place })).unwrap();
    let template = serde_json::from_value(template).unwrap();
    Arc::new(parsed.with_content(&Content { template, position: Some(position), ..Content::default() }))
}

fn site() -> Site {
    Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
}

/// The state of a workload and of the policies.
struct Scene {
    workload: Workload,
    policies: Vec<Arc<Policy>>,
    revisions: Vec<Revision>,
}

impl Scene {
    fn set(&mut self, policy: Arc<Policy>) {
        self.policies.retain(|other| other.name != policy.name);
        let revision = Revision::new(&policy.name, 1, Content::of(&policy.spec).unwrap());
        self.revisions.push(revision);
        self.policies.push(policy);
    }

    fn roll(&mut self, to: &Arc<Policy>) {
        let policies = Policies::new(self.policies.iter().cloned());
        let goal = Goal { to, policies: &policies, site: &site() };
        if let Ok(change) = template_update(&self.workload, &self.revisions, goal) {
            self.workload = self.workload.with_body(change.body);
            // In one step: the new marker is there, and those that it takes the place of are gone.
            assert_eq!(carries(&self.workload, to, &site()), Carries::This, "{}", self.workload.body);
            assert_eq!(to.replaced_markers(&self.workload).count(), 0, "{}", self.workload.body);
        }
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Roll(name, items, before) => {
                let to = policy(NAMES[*name], items, *before, None);
                self.set(to.clone());
                self.roll(&to);
            }
            Event::Rename(name, other, items) if name != other => {
                let to = policy(NAMES[*name], items, false, Some(NAMES[*other]));
                self.set(to.clone());
                self.roll(&to);
            }
            Event::Split(one, two, of_one, of_both) if one != two => {
                let rest = std::array::from_fn(|at| !of_one[at] || of_both[at]);
                for (name, items) in [(two, rest), (one, *of_one)] {
                    let to = policy(NAMES[*name], &items, false, None);
                    self.set(to.clone());
                    self.roll(&to);
                }
            }
            Event::Rename(..) | Event::Split(..) => {}
            Event::Remove(name) => {
                self.policies.retain(|policy| policy.name != NAMES[*name]);
                let policies = Policies::new(self.policies.iter().cloned());
                let of: Vec<Revision> =
                    self.revisions.iter().filter(|it| it.template.policy == NAMES[*name]).cloned().collect();
                let change = of.iter().rev().find_map(|from| removal(&self.workload, from, &policies).ok());
                if let Some(change) = change {
                    self.workload = self.workload.with_body(change.body);
                }
            }
            Event::Uninject(name) => {
                if let Some(undone) = undo(&self.workload, Some(NAMES[*name])) {
                    self.workload = self.workload.with_body(undone.body);
                }
            }
        }
    }
}

fn originals() -> impl Strategy<Value = Value> {
    let app = json!({ "name": "app", "image": "app" });
    prop_oneof![
        Just(json!({ "spec": { "containers": [app] } })),
        Just(
            json!({ "metadata": { "labels": { "app": "web" }, "annotations": { "a": "b" } }, "spec": { "containers": [app], "volumes": [] } })
        ),
        Just(
            json!({ "metadata": null, "spec": { "containers": [{ "name": "app", "env": [{ "name": "J", "value": "-a" }] }], "volumes": null } })
        ),
        Just(json!({ "spec": { "containers": [app], "terminationGracePeriodSeconds": 75, "hostAliases": [],
            "dnsConfig": { "options": [{ "name": "edns0" }] } } })),
        // The user has some of it.
        Just(json!({ "metadata": { "labels": { "mesh": "on" } }, "spec": {
            "containers": [{ "name": "app", "env": [{ "name": "A", "value": "1" }] }, { "name": "x", "image": "x:1" }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        } })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn whatever_policies_do_the_last_one_that_goes_leaves_the_original(
        pod in originals(),
        events in prop::collection::vec(event(), 1..7),
        order in Just(NAMES).prop_shuffle(),
        one_by_one in any::<bool>(),
    ) {
        let body = json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": { "template": pod } });
        let workload = Workload::new(Kind::find("apps", "deployments").unwrap(), body.clone());
        let mut scene = Scene { workload, policies: Vec::new(), revisions: Vec::new() };
        for event in &events {
            scene.step(event);
        }
        let injected = scene.workload.body.clone();
        for name in order.iter().filter(|_| one_by_one) {
            let undone = undo(&scene.workload, Some(name));
            let Some(undone) = undone else { continue };
            prop_assert_eq!(&undone.leftovers, &[], "{} {}", name, injected);
            scene.workload = scene.workload.with_body(undone.body);
        }
        let rest = inject::undo(&scene.workload, None).map_or(scene.workload.body, |undone| undone.body);
        prop_assert_eq!(rest, body, "{}", injected);
    }
}

#[test]
fn a_list_that_two_policies_have_goes_with_the_last_of_them_though_a_third_one_created_it() {
    // The user has the container `x`, which the last policy names, too, so that it adds nothing to it by itself.
    let containers =
        json!([{ "name": "app", "env": [{ "name": "A", "value": "1" }] }, { "name": "x", "image": "x:1" }]);
    let pod = json!({ "spec": { "containers": containers, "volumes": [{ "name": "v", "emptyDir": {} }] } });
    let body = json!({ "metadata": { "namespace": "shop", "name": "web" }, "spec": { "template": pod } });
    let workload = Workload::new(Kind::find("apps", "deployments").unwrap(), body.clone());
    let mut scene = Scene { workload, policies: Vec::new(), revisions: Vec::new() };
    let none = [false; ITEMS.len()];
    let with = |at: usize| std::array::from_fn(|other| other == at);
    for event in [Event::Roll(2, with(7), false), Event::Roll(0, with(10), false), Event::Split(2, 1, none, none)] {
        scene.step(&event);
    }
    assert_eq!(inject::undo(&scene.workload, None).unwrap().body, body, "{}", scene.workload.body);
}
