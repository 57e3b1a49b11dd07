//! Which workloads have the latest content of a policy while its rollout goes in steps. Pure.
//!
//! The answer is the same for a workload that is being created and for one that is stored: it depends on the namespace, on the
//! labels, and on the bucket of the workload, and on nothing else. The API server computes it in CEL.

use super::{Policy, checks};
use crate::api::v1alpha1::LabelSelector;
use crate::workload::Workload;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

/// The most that the selectors of an extent have together, in bytes of JSON. All annotations of an object may have 256 KiB, and the
/// rules let a policy have 16 KiB of selectors.
const MOST: usize = 64 * 1024;

/// The workloads that have the latest content: all in some namespaces, those with some labels, and those in some buckets.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Extent {
    /// The namespaces in which all workloads have it.
    #[serde(rename = "updated")]
    pub namespaces: BTreeSet<String>,
    /// The labels by which workloads of other namespaces have it: those of one selector are enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<LabelSelector>,
    /// The buckets below this number have it in all namespaces. There are 100 buckets.
    #[serde(default, rename = "percentOfWorkloads", skip_serializing_if = "is_zero")]
    pub percent: i32,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// What decides, besides the namespace, whether a workload is part of an [`Extent`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Its labels, as far as the steps of the policy name them.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Its bucket.
    pub bucket: u8,
}

static NO_LABELS: LazyLock<Arc<BTreeMap<String, String>>> = LazyLock::new(Arc::default);

impl Place {
    /// The place of `workload` in the rollouts of `policy`.
    pub fn of(workload: &Workload, policy: &Policy) -> Self {
        // A user can give a workload thousands of labels: only those that steps name are kept.
        let labels = keys(policy).filter_map(|key| Some((key.clone(), workload.label(key)?.to_owned())));
        let labels: BTreeMap<String, String> = labels.collect();
        let labels = if labels.is_empty() { NO_LABELS.clone() } else { Arc::new(labels) };
        Self { labels, bucket: bucket(workload) }
    }
}

/// The labels by which a step of `policy` selects workloads, or a step that its rollout has reached before an edit.
fn keys(policy: &Policy) -> impl Iterator<Item = &String> {
    let rolling = policy.spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let steps = rolling.into_iter().flat_map(|rolling| &rolling.steps);
    let reached = policy.extent().into_iter().flat_map(|extent| &extent.selectors);
    steps.filter_map(|step| step.workload_selector.as_ref()).chain(reached).flat_map(|selector| {
        let expressions = selector.match_expressions.iter().map(|requirement| &requirement.key);
        selector.match_labels.keys().chain(expressions)
    })
}

impl Extent {
    /// All workloads of `namespaces`.
    pub fn of_namespaces(namespaces: impl IntoIterator<Item = String>) -> Self {
        Self { namespaces: namespaces.into_iter().collect(), ..Self::default() }
    }

    /// Whether `workload` has the latest content.
    pub fn has(&self, workload: &Workload) -> bool {
        self.decide(workload.namespace(), |key| workload.label(key), || bucket(workload))
    }

    /// Whether the workload of that `namespace` and `place` has it.
    pub fn has_place(&self, namespace: &str, place: &Place) -> bool {
        self.decide(namespace, |key| place.labels.get(key).map(String::as_str), || place.bucket)
    }

    fn decide<'a>(
        &self,
        namespace: &str,
        label: impl Fn(&str) -> Option<&'a str>,
        bucket: impl FnOnce() -> u8,
    ) -> bool {
        self.namespaces.contains(namespace)
            || self.selectors.iter().any(|selector| checks::selects_labels(selector, &label))
            || self.percent > 0 && i32::from(bucket()) < self.percent
    }

    /// Whether it has workloads of namespaces that it has not as a whole.
    pub fn is_by_workload(&self) -> bool {
        !self.selectors.is_empty() || self.percent > 0
    }

    /// Whether it has all that `other` has.
    pub fn contains(&self, other: &Self) -> bool {
        self.namespaces.is_superset(&other.namespaces)
            && other.selectors.iter().all(|selector| self.selectors.contains(selector))
            && self.percent >= other.percent
    }

    /// Adds the workloads with the labels of `selector`. Nothing is added that [`Self::bounded`] would drop.
    pub fn add_selector(&mut self, selector: &LabelSelector) {
        let length = self.selectors.iter().map(length).fold(length(selector), usize::saturating_add);
        if !self.selectors.contains(selector) && length <= MOST {
            self.selectors.push(selector.clone());
        }
    }

    /// Adds that percentage of all workloads, if it is not reached.
    pub fn add_percent(&mut self, percent: i32) {
        self.percent = self.percent.max(percent.clamp(0, 100));
    }

    /// The part of a stored extent that counts: no percentage that cannot be, and no more selectors than we write. Users with
    /// the right to write ControllerRevisions can write more.
    #[must_use]
    pub fn bounded(self) -> Self {
        let mut left = MOST;
        let fits = |selector: &LabelSelector| {
            let rest = left.checked_sub(length(selector));
            left = rest.unwrap_or_default();
            rest.is_some()
        };
        let selectors = self.selectors.into_iter().take_while(fits).collect();
        Self { namespaces: self.namespaces, selectors, percent: self.percent.clamp(0, 100) }
    }

    /// A text that differs for different extents.
    pub(super) fn key(&self) -> String {
        let mut key = self.namespaces.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        if self.is_by_workload() {
            key.push_str(&json!([self.selectors, self.percent]).to_string());
        }
        key
    }
}

/// The length of `selector`, in bytes of JSON.
fn length(selector: &LabelSelector) -> usize {
    json!(selector).to_string().len()
}

// Buckets

/// The characters of names, and of the separator. Each counts as its place among them, from 1; all others as 0.
pub(crate) const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyz0123456789-./";
/// The modulus of the hash, a prime number.
pub(crate) const MODULUS: i64 = 1_000_000_007;
/// The least weight of a character. With weights from 0.3 to 0.5 of the modulus, names that differ only in a number are in distant buckets.
pub(crate) const BASE: i64 = 300_000_000;
/// The factor in all weights: of 150 random ones, the one that spreads common names best.
pub(crate) const FACTOR: i64 = 284_573_606;
/// The part of the modulus by which weights differ.
pub(crate) const SPREAD: i64 = 5;
/// The most characters that count: those of a namespace, a separator and a name.
pub(crate) const LONGEST: usize = 63 + 1 + 253;
/// The label of a pod by which a Deployment tells the templates of its ReplicaSets apart. The name of each ends with its value.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

/// The bucket of `workload`, from 0 to 99: the same for all pods of one owner, and for each new template of a Deployment.
///
/// CEL has no hash. So it is what CEL can compute, too: a sum over the characters of the namespace and the name of the owner, each with a
/// weight that depends on its place.
pub fn bucket(workload: &Workload) -> u8 {
    let name = owner(workload);
    let key = workload.namespace().chars().chain(['/']).chain(name.chars()).take(LONGEST);
    let sum: i64 = key.zip(1..).map(|(character, place)| weight(place) * value(character)).sum();
    u8::try_from(sum % MODULUS * 100 / MODULUS).unwrap_or_default()
}

fn weight(place: i64) -> i64 {
    BASE + place * place * place * FACTOR % MODULUS / SPREAD
}

fn value(character: char) -> i64 {
    let found = ALPHABET.chars().zip(1..).find(|(known, _)| *known == character);
    found.map_or(0, |(_, place)| place)
}

/// The name of the controller of the workload. For a pod of a ReplicaSet, that is the name of the Deployment. A workload without a
/// controller has its own name, or its `generateName`.
fn owner(workload: &Workload) -> &str {
    let metadata = &workload.body["metadata"];
    let Some(owner) = workload.controller() else {
        let generated = metadata["generateName"].as_str().unwrap_or_default();
        return if generated.is_empty() { workload.name() } else { generated };
    };
    let name = owner["name"].as_str().unwrap_or_default();
    let hash = metadata["labels"][TEMPLATE_HASH].as_str().unwrap_or_default();
    let deployment = name.strip_suffix(hash).and_then(|rest| rest.strip_suffix('-'));
    deployment.filter(|_| !hash.is_empty()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::Value;

    fn pod(metadata: &Value) -> Workload {
        Workload::new(Kind::find("", "pods").unwrap(), json!({ "metadata": metadata }))
    }

    fn named(namespace: &str, name: &str) -> Workload {
        pod(&json!({ "namespace": namespace, "name": name }))
    }

    fn selector(labels: &Value) -> LabelSelector {
        serde_json::from_value(json!({ "matchLabels": labels })).unwrap()
    }

    /// The largest difference between a percentage and the share of `names` that it has, in percent.
    fn worst(names: &[(String, String)]) -> f64 {
        let buckets: Vec<u8> = names.iter().map(|(namespace, name)| bucket(&named(namespace, name))).collect();
        let share = |percent: u8| {
            let count = buckets.iter().filter(|bucket| **bucket < percent).count();
            count as f64 * 100.0 / names.len() as f64 - f64::from(percent)
        };
        (1..=100).map(share).map(f64::abs).fold(0.0, f64::max)
    }

    #[test]
    fn common_names_spread_over_the_buckets() {
        let random = |number: u32| crate::digest::short(format!("{number}"));
        let words = [
            "api", "auth", "cart", "checkout", "catalog", "search", "user", "order", "payment", "billing", "web",
            "worker",
        ];
        let parts = ["a", "b", "backend", "frontend", "db", "cache", "proxy", "v1", "v2", "blue", "green", "eu", "us"];
        let one = |name: &dyn Fn(u32) -> (String, String), count: u32| (0..count).map(name).collect::<Vec<_>>();
        let mut all = Vec::new();
        for prefix in (1..40).map(|length| &"team-payments-production-europe-west1-of-the-shop"[..length]) {
            let families = [
                ("web-0", one(&|number| (prefix.into(), format!("web-{number}")), 100)),
                ("web-00", one(&|number| (prefix.into(), format!("web-{number:02}")), 100)),
                ("web-000", one(&|number| (prefix.into(), format!("web-{number}")), 300)),
                ("namespaces", one(&|number| (format!("{prefix}-{number}"), "web".into()), 1000)),
                ("both", one(&|number| (format!("{prefix}-{number}"), format!("web-{number}")), 500)),
                ("random", one(&|number| (prefix.into(), random(number)), 500)),
                ("with a hash", one(&|number| (prefix.into(), format!("web-{}", &random(number)[..5])), 500)),
                (
                    "words",
                    words.iter().flat_map(|word| parts.map(|part| (prefix.into(), format!("{word}-{part}")))).collect(),
                ),
            ];
            for (family, names) in families {
                let worst = worst(&names);
                // A random hash of 100 names is that far off, too.
                assert!(worst <= 11.0, "{prefix} {family}: {worst}");
                all.push(worst);
            }
        }
        let average = all.iter().sum::<f64>() / all.len() as f64;
        assert!(average < 4.0, "{average}");
        let all: BTreeSet<u8> = (0..2000).map(|number| bucket(&named("shop", &random(number)))).collect();
        assert_eq!((all.len(), all.last()), (100, Some(&99)));
    }

    #[test]
    fn a_pod_has_the_bucket_of_its_owner_and_of_every_later_template() {
        let owned = |kind: &str, owner: &str, hash: &str| {
            let owners = json!([
                { "kind": "Other", "name": "other" },
                { "kind": kind, "name": owner, "controller": true },
            ]);
            pod(&json!({ "namespace": "shop", "name": format!("{owner}-x"), "generateName": format!("{owner}-"),
                "labels": { TEMPLATE_HASH: hash }, "ownerReferences": owners }))
        };
        let of = |name: &str| bucket(&named("shop", name));
        for (workload, name) in [
            (owned("ReplicaSet", "web-5d4f", "5d4f"), "web"),
            (owned("ReplicaSet", "web-77aa", "77aa"), "web"),
            (owned("ReplicaSet", "web-5d4f", "77aa"), "web-5d4f"),
            (owned("ReplicaSet", "web", ""), "web"),
            (owned("ReplicaSet", "web-", ""), "web-"),
            (owned("StatefulSet", "db", ""), "db"),
            (pod(&json!({ "namespace": "shop", "generateName": "job-" })), "job-"),
            (pod(&json!({ "namespace": "shop", "generateName": "job-", "name": "job-x7" })), "job-"),
            (pod(&json!({ "namespace": "shop", "name": "lone" })), "lone"),
        ] {
            assert_eq!(bucket(&workload), of(name), "{name}: {}", workload.body);
        }
        assert_ne!(of("web"), of("web-5d4f"));
        assert_ne!(bucket(&named("shop", "web")), bucket(&named("other", "web")), "the namespace counts");
        bucket(&named("\u{1f600}", &"é".repeat(10_000)));
        assert_eq!(bucket(&pod(&json!(7))), bucket(&named("", "")), "what is malformed has a bucket, too");
    }

    #[test]
    fn an_extent_has_its_namespaces_labels_and_buckets() {
        let workload = |namespace: &str, track: &str| {
            pod(&json!({ "namespace": namespace, "name": "web", "labels": { "track": track } }))
        };
        let own = i32::from(bucket(&workload("shop", "")));
        let none = Extent::default();
        let canary = Extent {
            selectors: vec![selector(&json!({ "track": "canary" })), selector(&json!({ "a": "b" }))],
            ..none.clone()
        };
        for (extent, expected) in [
            (none.clone(), [false, false]),
            (Extent::of_namespaces(["shop".to_owned()]), [true, true]),
            (Extent::of_namespaces(["other".to_owned()]), [false, false]),
            (canary, [true, false]),
            (Extent { percent: own, ..none.clone() }, [false, false]),
            (Extent { percent: own + 1, ..none.clone() }, [true, true]),
            (Extent { percent: 100, ..none }, [true, true]),
        ] {
            let labels = ["canary", "stable"];
            assert_eq!(labels.map(|track| extent.has(&workload("shop", track))), expected, "{extent:?}");
            let place = |track: &str| Place {
                labels: Arc::new([("track".to_owned(), track.to_owned())].into()),
                bucket: u8::try_from(own).unwrap(),
            };
            assert_eq!(labels.map(|track| extent.has_place("shop", &place(track))), expected, "{extent:?}");
        }
    }

    #[test]
    fn of_labels_only_those_that_steps_name_are_kept() {
        let step = |selector: Value| json!({ "workloadSelector": selector });
        let beta = json!({ "matchExpressions": [{ "key": "beta", "operator": "DoesNotExist" }] });
        let steps = json!([step(json!({ "matchLabels": { "track": "canary" } })), step(beta)]);
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "steps": steps } });
        let template = json!({ "containers": [{ "name": "x", "image": "x:1" }] });
        let parse = |spec: Value| {
            let object = json!({ "metadata": { "name": "p" }, "spec": spec });
            Policy::parse(&object, &crate::policy::Site::new("scpol-system", [], [])).unwrap()
        };
        let mut labels = json!({ "track": "canary", "beta": "1", "before": "2" });
        for number in 0..1000 {
            labels[format!("more-{number}")] = json!("x");
        }
        let pod = pod(&json!({ "namespace": "shop", "name": "web", "labels": labels }));
        let keys = |policy: &Policy| Place::of(&pod, policy).labels.keys().cloned().collect::<Vec<_>>().join(" ");
        let plain = parse(json!({ "template": template }));
        let rolling = parse(json!({ "template": template, "updateStrategy": strategy }));
        let before = Extent { selectors: vec![selector(&json!({ "before": "2" }))], ..Extent::default() };
        let split = rolling.clone().split(Arc::new(plain.clone()), before);
        assert_eq!([&plain, &rolling, &split].map(keys), ["", "beta track", "before beta track"]);
        assert_eq!(Place::of(&pod, &split).bucket, bucket(&pod));
    }

    #[test]
    fn a_stored_extent_counts_no_further_than_we_write() {
        let mut written = Extent::default();
        for number in 0..2000 {
            written.add_selector(&selector(&json!({ "track": format!("canary-{number}") })));
        }
        written.add_percent(200);
        let length: usize = written.selectors.iter().map(length).sum();
        assert!((MOST - 100..=MOST).contains(&length), "{length}");
        assert_eq!(written.clone().bounded(), written, "what is written is read");
        let forged = Extent {
            selectors: (0..20_000).map(|number| selector(&json!({ "track": format!("canary-{number}") }))).collect(),
            percent: i32::MAX,
            ..Extent::default()
        };
        let read = forged.bounded();
        assert_eq!((read.selectors, read.percent), (written.selectors, 100));
        assert_eq!(Extent { percent: i32::MIN, ..Extent::default() }.bounded(), Extent::default());
    }
}
