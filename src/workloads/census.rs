//! Counts the stored workloads that each policy matches, has injected, or missed. Pure.
//!
//! A cluster has many workloads and few different fates. So each object is one small entry that points to a shared fate. 20 000
//! Deployments take less than a megabyte.

use crate::cluster::object::Object;
use crate::inject::Presence;
use crate::policy::checks::{self, Common};
use crate::policy::{Policies, Policy, PolicyRef, Site, Verdict, decide_with, deliver};
use crate::ranking::{self, Standing};
use crate::workload::{Kind, Workload};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// The state of a stored workload for a policy that matches it, or may match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tally {
    /// The marker has the current hash, and all content is there as the policy added it.
    Injected,
    /// The marker has the current hash, or that of a known earlier content, and something of that content was changed since.
    Edited,
    /// The marker has another hash, or other content is in the place of the current one; and what is known to have been added
    /// was not changed.
    Outdated,
    /// The workload has no marker, or a marker with the current hash that lacks content.
    Missed,
    /// The workload has no marker, or a marker that lacks content, because another policy that matches collides and leaves
    /// it out.
    Collided,
    /// Whether the policy matches is unknown: an expression fails, or the Namespace has not been read.
    Unknown,
}

impl Tally {
    /// Whether the workload has content of the policy under its marker.
    pub fn is_carried(self) -> bool {
        matches!(self, Self::Injected | Self::Edited | Self::Outdated)
    }
}

/// The fate of a workload: its tally for each policy that matches it, in order.
pub type Fate = Vec<(PolicyRef, Tally)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows 0-5 and 7 hold.
    pub matched: i64,
    /// See [`Tally::Injected`].
    pub injected: i64,
    /// See [`Tally::Edited`].
    pub edited: i64,
    /// See [`Tally::Outdated`].
    pub outdated: i64,
    /// See [`Tally::Missed`].
    pub missed: i64,
    /// The part of `missed` that is due to a collision.
    pub collided: i64,
}

impl Counts {
    fn add(&mut self, tally: Tally, objects: i64) {
        let sum = match tally {
            Tally::Unknown => return,
            Tally::Injected => &mut self.injected,
            Tally::Edited => &mut self.edited,
            Tally::Outdated => &mut self.outdated,
            Tally::Missed => &mut self.missed,
            Tally::Collided => {
                self.collided += objects;
                &mut self.missed
            }
        };
        *sum += objects;
        self.matched += objects;
    }
}

/// What was known of a workload before it was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedBefore {
    /// Nothing: it is new.
    Nothing,
    /// A newer version, or that it has been deleted since. Then this one is not counted.
    Newer,
    /// This version, or another one of the same fate.
    Same,
    /// An older version, of another fate.
    Other(Fate),
}

/// The counted objects of one kind.
struct CountedKind {
    /// 2 billion below the version of the first counted object.
    base: u64,
    /// A tree, because it grows in small steps. A hash table needs its old and its new memory at the same time.
    entries: BTreeMap<u64, CountedObject>,
}

impl CountedKind {
    fn since(version: u64) -> Self {
        Self { base: version.saturating_sub(1 << 31), entries: BTreeMap::new() }
    }

    /// `version` above the base, which takes half as many bytes. After 2 billion more changes every version counts as newer.
    fn version(&self, version: u64) -> u32 {
        u32::try_from(version.saturating_sub(self.base)).unwrap_or(u32::MAX)
    }
}

/// What many objects have in common: their namespace and their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct SharedFate {
    namespace: Arc<str>,
    fate: Fate,
}

#[derive(Clone, Copy)]
struct CountedObject {
    /// See [`CountedKind::version`].
    version: u32,
    fate: u32,
    /// The last listing that showed the object.
    listing: u32,
}

/// The fate of an object that was deleted during a listing, because the listing may still show it.
const GONE: u32 = u32::MAX;

/// All stored workloads of all watched kinds.
#[derive(Default)]
pub struct Census {
    hasher: RandomState,
    counted: HashMap<Arc<Kind>, CountedKind>,
    fates: Vec<(SharedFate, i64)>,
    /// The free places in `fates`.
    free: Vec<u32>,
    index: HashMap<SharedFate, u32>,
    /// The sums of each policy with a match. They are kept up to date, because each reader asks for every policy.
    sums: HashMap<PolicyRef, Counts>,
    listing: u32,
    /// The running listings.
    open: HashSet<u32>,
    /// The kinds of which a whole list has been counted.
    whole: HashSet<Arc<Kind>>,
    /// The namespaces with a change since the last [`Self::take_changed`]; none if nothing records them.
    changed: Option<HashSet<Arc<str>>>,
}

impl Census {
    /// Begins a listing of a kind. Returns its number. Objects that it does not show are removed at its end.
    pub fn begin(&mut self) -> u32 {
        self.listing += 1;
        self.open.insert(self.listing);
        self.listing
    }

    /// Aborts a listing. No object is removed.
    pub fn abort(&mut self, listing: u32) {
        self.open.remove(&listing);
    }

    /// Ends `listing` of `kind`.
    pub fn end(&mut self, kind: &Arc<Kind>, listing: u32) {
        self.open.remove(&listing);
        self.whole.insert(kind.clone());
        let Some(counted) = self.counted.get_mut(kind) else { return };
        let mut gone = Vec::new();
        counted.entries.retain(|_, entry| {
            let keep = entry.listing >= listing && entry.fate != GONE;
            if !keep && entry.fate != GONE {
                gone.push(entry.fate);
            }
            keep
        });
        for fate in gone {
            self.leave(fate, GONE);
        }
    }

    /// Counts a stored workload, unless a newer version has been counted. Returns what was known of it.
    pub fn count(&mut self, kind: &Arc<Kind>, object: &Object, fate: Fate) -> CountedBefore {
        let key = self.key(object);
        let counted = self.counted.entry(kind.clone()).or_insert_with(|| CountedKind::since(object.version()));
        let version = counted.version(object.version());
        let known = counted.entries.get_mut(&key);
        if let Some(known) = known.filter(|known| known.version > version) {
            known.listing = self.listing;
            return CountedBefore::Newer;
        }
        // Join comes before leave, because both are often the same fate, which would be dropped and created again.
        let fate = self.join(SharedFate { namespace: Arc::from(object.namespace()), fate });
        let entry = CountedObject { version, fate, listing: self.listing };
        let known = self.counted.get_mut(kind).and_then(|counted| counted.entries.insert(key, entry));
        let left = known.map(|known| known.fate).filter(|fate| *fate != GONE);
        if left != Some(fate) {
            self.note_change(fate);
        }
        let known = match left {
            None => CountedBefore::Nothing,
            Some(left) if left == fate => CountedBefore::Same,
            Some(left) => CountedBefore::Other(self.fates[left as usize].0.fate.clone()),
        };
        if let Some(left) = left {
            self.leave(left, fate);
        }
        known
    }

    /// Whether the workload of that namespace and name has been counted.
    pub fn has(&self, kind: &Arc<Kind>, place: (&str, &str)) -> bool {
        let entry = self.counted.get(kind).and_then(|counted| counted.entries.get(&self.key_at(place)));
        entry.is_some_and(|entry| entry.fate != GONE)
    }

    /// Removes a deleted workload.
    pub fn remove(&mut self, kind: &Arc<Kind>, object: &Object) {
        let key = self.key(object);
        let counted = self.counted.entry(kind.clone()).or_insert_with(|| CountedKind::since(object.version()));
        // A running listing may still show its old form.
        let old = match self.open.is_empty() {
            true => counted.entries.remove(&key),
            false => {
                let version = counted.version(object.version());
                counted.entries.insert(key, CountedObject { version, fate: GONE, listing: self.listing })
            }
        };
        if let Some(old) = old.filter(|old| old.fate != GONE) {
            self.leave(old.fate, GONE);
        }
    }

    /// Removes all workloads of a kind that is not watched any more.
    pub fn forget(&mut self, kind: &Arc<Kind>) {
        self.whole.remove(kind);
        let counted = self.counted.remove(kind).map(|counted| counted.entries);
        for entry in counted.into_iter().flat_map(BTreeMap::into_values).filter(|entry| entry.fate != GONE) {
            self.leave(entry.fate, GONE);
        }
    }

    pub fn counts(&self, policy: &PolicyRef) -> Counts {
        self.sums.get(policy).copied().unwrap_or_default()
    }

    /// The counts by policy and namespace, of those with a match.
    pub fn by_namespace(&self) -> BTreeMap<(PolicyRef, Arc<str>), Counts> {
        let mut counts: BTreeMap<_, Counts> = BTreeMap::new();
        for (shared, objects) in self.fates.iter().filter(|(_, objects)| *objects > 0) {
            for (policy, tally) in &shared.fate {
                counts.entry((policy.clone(), shared.namespace.clone())).or_default().add(*tally, *objects);
            }
        }
        counts.retain(|_, counts| counts.matched > 0);
        counts
    }

    /// Whether a whole list of the kind has been counted.
    pub fn is_whole(&self, kind: &Arc<Kind>) -> bool {
        self.whole.contains(kind)
    }

    /// Begins to record the namespaces that [`Self::take_changed`] returns: at first every one with a match.
    pub fn record_changes(&mut self) {
        let matched = self.fates.iter().map(|(shared, _)| shared).filter(|shared| !shared.fate.is_empty());
        self.changed = Some(matched.map(|shared| shared.namespace.clone()).collect());
    }

    /// The namespaces in which a policy got, lost or changed a workload since the last call.
    pub fn take_changed(&mut self) -> HashSet<Arc<str>> {
        self.changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// How often a workload in `namespace` has each tally, for the policies for which `counts` is true.
    pub fn tallies(&self, namespace: &str, counts: impl Fn(&PolicyRef) -> bool) -> HashMap<Tally, i64> {
        let mut tallies = HashMap::new();
        for (shared, objects) in self.fates.iter().filter(|(shared, _)| *shared.namespace == *namespace) {
            for (_, tally) in shared.fate.iter().filter(|(policy, _)| counts(policy)) {
                *tallies.entry(*tally).or_default() += objects;
            }
        }
        tallies
    }

    fn note_change(&mut self, fate: u32) {
        let (shared, _) = &self.fates[fate as usize];
        if let Some(changed) = self.changed.as_mut().filter(|_| !shared.fate.is_empty())
            && !changed.contains(&shared.namespace)
        {
            changed.insert(shared.namespace.clone());
        }
    }

    fn join(&mut self, fate: SharedFate) -> u32 {
        let known = self.index.get(&fate).copied();
        let id = known.unwrap_or_else(|| {
            let id = self.free.pop().unwrap_or_else(|| {
                self.fates.push((SharedFate::default(), 0));
                self.fates.len() as u32 - 1
            });
            self.fates[id as usize].0.clone_from(&fate);
            self.index.insert(fate, id);
            id
        });
        self.shift(id, 1);
        id
    }

    /// Ends the `fate` of an object that has the fate `next` now, or is gone.
    fn leave(&mut self, fate: u32, next: u32) {
        if fate != next {
            self.note_change(fate);
        }
        self.shift(fate, -1);
        let (shared, objects) = &mut self.fates[fate as usize];
        if *objects == 0 {
            self.index.remove(&std::mem::take(shared));
            self.free.push(fate);
        }
    }

    fn shift(&mut self, fate: u32, objects: i64) {
        let (shared, sharing) = &mut self.fates[fate as usize];
        *sharing += objects;
        for (policy, tally) in &shared.fate {
            let counts = self.sums.entry(policy.clone()).or_default();
            counts.add(*tally, objects);
            if *counts == Counts::default() {
                self.sums.remove(policy);
            }
        }
    }

    fn key(&self, object: &Object) -> u64 {
        self.key_at((object.namespace(), object.name()))
    }

    fn key_at(&self, place: (&str, &str)) -> u64 {
        self.hasher.hash_one(place)
    }
}

/// The policies whose templates collide, in both orders of the two.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    pairs: HashSet<(PolicyRef, PolicyRef)>,
    /// The hash of the spec of each policy that has been compared.
    compared: HashMap<PolicyRef, String>,
}

impl Pairs {
    /// The colliding pairs among `policies`.
    pub fn of(policies: &Policies) -> Self {
        Self::default().renewed(policies)
    }

    /// The colliding pairs among `policies`. Pairs that have been compared already are copied from `self`.
    pub fn renewed(&self, policies: &Policies) -> Self {
        let enforced = policies.iter().filter(|policy| policy.is_enforced());
        let is_known = |policy: &&Arc<Policy>| self.compared.get(&policy.reference()) == Some(&policy.spec_hash);
        let (mut old, new): (Vec<_>, Vec<_>) = enforced.partition(is_known);
        let compared: HashMap<_, _> = old.iter().map(|policy| (policy.reference(), policy.spec_hash.clone())).collect();
        let stays = |(a, b): &&(PolicyRef, PolicyRef)| compared.contains_key(a) && compared.contains_key(b);
        let mut renewed = Self { pairs: self.pairs.iter().filter(stays).cloned().collect(), compared };
        for policy in new {
            let collides = |other: &&&Arc<Policy>| policy.collides_with(other);
            for other in old.iter().filter(collides) {
                renewed.pairs.insert((policy.reference(), other.reference()));
                renewed.pairs.insert((other.reference(), policy.reference()));
            }
            renewed.compared.insert(policy.reference(), policy.spec_hash.clone());
            old.push(policy);
        }
        renewed
    }

    /// Whether the templates of the two policies collide.
    pub fn collide(&self, a: &PolicyRef, b: &PolicyRef) -> bool {
        self.pairs.contains(&(a.clone(), b.clone()))
    }
}

/// Whether `policy`, one of `policies`, matches `workload`, which is stored.
pub fn is_matched(workload: &Workload, policy: &PolicyRef, policies: &Policies, site: &Site) -> bool {
    let fate = fate(workload, policies, site, |_, _| false);
    fate.iter().any(|(of, tally)| of == policy && *tally != Tally::Unknown)
}

/// The fate of `workload`, which is stored and initialized, for `policies`. `collide` says whether two policies collide.
pub fn fate(
    workload: &Workload,
    policies: &Policies,
    site: &Site,
    collide: impl Fn(&PolicyRef, &PolicyRef) -> bool,
) -> Fate {
    let common = Common::of(workload, site);
    let policies = policies.valued(workload, None, site);
    let at_hand = policies.at(workload);
    let judged: Vec<(&Arc<Policy>, Verdict)> =
        at_hand.filter_map(|policy| Some((policy, verdict(&common, policy, workload, site)?))).collect();
    // Containers of policies that match are not the user's own, as in a decision.
    let is_beside = |(policy, verdict): &&(&Arc<Policy>, Verdict)| match verdict {
        _ if !policy.is_enforced() => false,
        Verdict::Inject => deliver(policy, &policy.view(workload), site.native_sidecars).is_ok(),
        Verdict::Skip(reason) => reason.row == INJECTED,
        Verdict::Error(_) => false,
    };
    let is_any_claimed =
        judged.iter().any(|(policy, verdict)| *verdict == Verdict::Inject && policy.is_claimed(workload));
    let beside: Vec<&Arc<Policy>> =
        judged.iter().filter(|_| is_any_claimed).filter(is_beside).map(|(policy, _)| *policy).collect();
    let counted = judged.iter().filter_map(|(policy, verdict)| {
        Some((*policy, tally(policy, verdict, &beside, &policy.view(workload), site)?))
    });
    // Where another one takes its place, nothing is missing.
    let is_replaced = |policy: &Policy| {
        let mut by = judged.iter().filter(|(by, _)| by.is_enforced() && by.replaces(&policy.name));
        by.any(|(by, verdict)| match verdict {
            Verdict::Inject => true,
            Verdict::Skip(reason) => reason.row == INJECTED && checks::selects(by, &by.view(workload), site),
            Verdict::Error(_) => false,
        })
    };
    let mut matching: Vec<(&Arc<Policy>, Tally)> =
        counted.filter(|(policy, tally)| *tally != Tally::Missed || !is_replaced(policy)).collect();
    matching.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let enforced: Vec<&Arc<Policy>> = matching
        .iter()
        .filter(|(policy, _)| policy.is_enforced() && !is_replaced(policy))
        .map(|(policy, _)| *policy)
        .collect();
    let contradict = |at: usize, other: usize| {
        let (one, two) = (enforced[at], enforced[other]);
        collide(&one.reference(), &two.reference()) || one.disagreement(two, &workload.kind).is_some()
    };
    // Only where it matters, because most workloads have what they are to have.
    let is_missed = matching.iter().any(|(_, tally)| *tally == Tally::Missed);
    let priorities: Vec<i32> = enforced.iter().filter(|_| is_missed).map(|policy| policy.spec.priority).collect();
    let standings = ranking::standings(&priorities, contradict);
    let left_out = enforced.iter().zip(standings).filter(|(_, standing)| *standing != Standing::Stays);
    let left_out: HashSet<&str> = left_out.map(|(policy, _)| policy.name.as_str()).collect();
    matching
        .iter()
        .map(|(policy, tally)| {
            let tally = if *tally == Tally::Missed && left_out.contains(policy.name.as_str()) {
                Tally::Collided
            } else {
                *tally
            };
            (policy.reference(), tally)
        })
        .collect()
}

/// The row that says that the content of a policy is there.
const INJECTED: u8 = 6;

/// The verdict of `policy`; none if it concerns neither the workload nor another policy. Most policies do not concern a
/// workload, so the detailed reason is not computed.
fn verdict(common: &Common, policy: &Policy, workload: &Workload, site: &Site) -> Option<Verdict> {
    let concerns = policy.injects() && (checks::reaches(policy, workload) || policy.is_claimed(workload));
    concerns.then(|| decide_with(common, policy, &policy.view(workload), site))
}

/// The tally of `policy` after its `verdict`. The policies `beside` match, too.
fn tally(
    policy: &Policy,
    verdict: &Verdict,
    beside: &[&Arc<Policy>],
    workload: &Workload,
    site: &Site,
) -> Option<Tally> {
    let or_edited = |tally| Some(if policy.edits(workload).is_empty() { tally } else { Tally::Edited });
    let injected = || or_edited(if policy.outdated_values().is_some() { Tally::Outdated } else { Tally::Injected });
    let takes_over = || policy.replaced_markers(workload).next().is_some();
    match verdict {
        Verdict::Inject if takes_over() => or_edited(Tally::Outdated),
        Verdict::Skip(reason) if reason.row == INJECTED && takes_over() && checks::selects(policy, workload, site) => {
            or_edited(Tally::Outdated)
        }
        Verdict::Inject if policy.is_claimed(workload) => {
            match policy.presence_beside(workload, beside.iter().copied()) {
                Presence::Whole => injected(),
                // What is not listed, or is there in another form, was not edited.
                Presence::Different(_) => or_edited(Tally::Outdated),
                Presence::Lacking(_) => Some(Tally::Missed),
            }
        }
        Verdict::Inject if policy.marker(workload).is_some() => or_edited(Tally::Outdated),
        Verdict::Inject => Some(Tally::Missed),
        Verdict::Skip(reason) if reason.row == INJECTED && checks::selects(policy, workload, site) => injected(),
        Verdict::Skip(_) => None,
        Verdict::Error(_) => Some(Tally::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> &'static Arc<Kind> {
        Kind::find("apps", "deployments").expect("built in")
    }

    fn object(name: &str, version: u64) -> Object {
        serde_json::from_str(&format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#))
            .expect("JSON")
    }

    fn fate(tally: Tally) -> Fate {
        vec![(PolicyRef::of_cluster("p"), tally)]
    }

    fn counts(census: &Census) -> Counts {
        census.counts(&PolicyRef::of_cluster("p"))
    }

    /// The only container lacks the variable that the marker lists. A policy that is in effect names that container: only
    /// where it matches, the container is not the user's own, so that nothing is added there.
    #[test]
    fn a_workload_is_counted_as_a_decision_by_all_policies_would_find_it() {
        let site = Site::new("scpol-system", [], []);
        let policy = |name: &str, spec: serde_json::Value| {
            let object = serde_json::json!({ "metadata": { "name": name }, "spec": spec });
            Arc::new(Policy::parse(&object, &site).expect("valid"))
        };
        let variable = serde_json::json!({ "env": [{ "name": "A", "value": "1" }], "appContainers": ["*"] });
        let adds = policy("adds", serde_json::json!({ "template": variable }));
        let added = "/spec/template/spec/containers/log/env/A";
        let marker = format!(r#"{{"v":1,"hash":"{}","added":["{added}"]}}"#, adds.template_hash());
        let workload = Workload::new(
            kind(),
            serde_json::json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web", "namespace": "shop" },
                "spec": { "template": {
                    "metadata": { "annotations": { "injected.scpol.dev/adds": marker } },
                    "spec": { "containers": [{ "name": "log", "image": "log:1" }] },
                } },
            }),
        );
        for (namespace, expected) in [("other", Tally::Missed), ("shop", Tally::Edited)] {
            let logs = serde_json::json!({
                "namespaces": [namespace], "template": { "containers": [{ "name": "log", "image": "log:1" }] },
            });
            let policies = Policies::new([adds.clone(), policy("logs", logs)]);
            assert!(adds.is_claimed(&workload));
            let fate = super::fate(&workload, &policies, &site, |_, _| false);
            let found = fate.iter().find(|(of, _)| *of == adds.reference()).map(|(_, tally)| *tally);
            assert_eq!(found, Some(expected), "{namespace}");
            let decision = crate::decision::Decision::of(&policies, &workload, &site);
            let is_due = decision.inject.iter().any(|policy| policy.name == "adds");
            assert_eq!(is_due, expected == Tally::Missed, "{namespace}");
        }
    }

    #[test]
    fn the_counts_of_namespaces_follow_their_workloads() {
        let mut census = Census::default();
        let listing = census.begin();
        census.end(kind(), listing);
        let place = |namespace: &str, name: &str, version: u64| -> Object {
            let meta = format!(r#""namespace":"{namespace}","name":"{name}","resourceVersion":"{version}""#);
            serde_json::from_str(&format!(r#"{{"metadata":{{{meta}}}}}"#)).expect("JSON")
        };
        let told = |census: &Census| {
            let counts = census.by_namespace().into_iter();
            counts
                .map(|((_, namespace), counts)| (namespace.to_string(), counts.injected, counts.missed))
                .collect::<Vec<_>>()
        };
        for (namespace, name, version, tally) in [
            ("a", "web", 1, Tally::Injected),
            ("a", "api", 2, Tally::Missed),
            ("b", "web", 3, Tally::Injected),
            ("c", "web", 4, Tally::Unknown),
        ] {
            census.count(kind(), &place(namespace, name, version), fate(tally));
        }
        assert_eq!(told(&census), [("a".to_owned(), 1, 1), ("b".to_owned(), 1, 0)]);
        assert_eq!(counts(&census), Counts { matched: 3, injected: 2, missed: 1, ..Counts::default() });
        census.count(kind(), &place("a", "api", 5), fate(Tally::Injected));
        census.remove(kind(), &place("b", "web", 6));
        assert_eq!(told(&census), [("a".to_owned(), 2, 0)]);
    }

    #[test]
    fn pairs_that_are_renewed_are_those_that_there_are() {
        let site = Site::new("scpol-system", [], []);
        let policies = |images: &[(&str, &str)]| {
            let parse = |(name, image): &(&str, &str)| {
                let template = serde_json::json!({ "containers": [{ "name": "same", "image": image }] });
                let object = serde_json::json!({ "metadata": { "name": name }, "spec": { "template": template } });
                Arc::new(Policy::parse(&object, &site).expect("valid"))
            };
            Policies::new(images.iter().map(parse))
        };
        let mut pairs = Pairs::default();
        for images in [
            vec![("a", "i:1"), ("b", "i:2"), ("c", "i:2")],
            vec![("a", "i:2"), ("b", "i:2"), ("c", "i:2")],
            vec![("a", "i:2"), ("c", "i:3"), ("d", "i:3")],
            vec![],
        ] {
            let policies = policies(&images);
            pairs = pairs.renewed(&policies);
            assert_eq!((&pairs.pairs, &pairs.compared), (&Pairs::of(&policies).pairs, &Pairs::of(&policies).compared));
            let expected =
                images.iter().flat_map(|a| images.iter().filter(move |b| a.1 != b.1).map(move |b| (a.0, b.0)));
            assert!(
                expected.clone().all(|(a, b)| pairs.collide(&PolicyRef::of_cluster(a), &PolicyRef::of_cluster(b)))
                    && expected.count() == pairs.pairs.len()
            );
        }
    }

    #[test]
    fn a_change_moves_an_object_from_one_sum_to_the_other() {
        let mut census = Census::default();
        let mut count = |version, tally| census.count(kind(), &object("a", version), fate(tally));
        assert_eq!(count(1, Tally::Missed), CountedBefore::Nothing);
        assert_eq!(count(2, Tally::Injected), CountedBefore::Other(fate(Tally::Missed)));
        assert_eq!(count(1, Tally::Missed), CountedBefore::Newer);
        assert_eq!(count(2, Tally::Injected), CountedBefore::Same);
        assert_eq!(counts(&census), Counts { matched: 1, injected: 1, ..Counts::default() });
        assert_eq!((census.has(kind(), ("", "a")), census.has(kind(), ("", "b"))), (true, false));
        census.remove(kind(), &object("a", 3));
        assert!(!census.has(kind(), ("", "a")));
        assert_eq!(counts(&census), Counts::default());
        assert!(census.counted[kind()].entries.is_empty() && census.sums.is_empty(), "nothing is kept of what is gone");
    }

    #[test]
    fn a_namespace_has_changed_if_a_policy_has_other_workloads_there_or_workloads_of_another_fate() {
        let mut census = Census::default();
        let changed = |census: &mut Census| census.take_changed().iter().map(ToString::to_string).collect::<Vec<_>>();
        census.count(kind(), &object("a", 1), fate(Tally::Missed));
        assert_eq!(changed(&mut census), [""; 0], "nothing records it");
        census.record_changes();
        assert_eq!(changed(&mut census), ["".to_owned()], "every one at first");
        census.count(kind(), &object("a", 2), fate(Tally::Missed));
        census.count(kind(), &object("unmatched", 3), Vec::new());
        assert_eq!(changed(&mut census), [""; 0], "the same fate, and no fate");
        census.count(kind(), &object("a", 4), fate(Tally::Injected));
        assert_eq!(changed(&mut census), ["".to_owned()]);
        census.remove(kind(), &object("a", 5));
        census.count(kind(), &object("b", 6), fate(Tally::Injected));
        assert_eq!(changed(&mut census), ["".to_owned()], "the counts are the same");
        let listing = census.begin();
        assert!(!census.is_whole(kind()));
        census.end(kind(), listing);
        assert_eq!((changed(&mut census), census.is_whole(kind())), (vec![String::new()], true));
        census.count(kind(), &object("c", 7), fate(Tally::Missed));
        assert_eq!(census.tallies("", |_| true), HashMap::from([(Tally::Missed, 1)]));
        assert_eq!((census.tallies("", |_| false), census.tallies("other", |_| true)), Default::default());
        census.take_changed();
        census.forget(kind());
        assert_eq!((changed(&mut census), census.is_whole(kind())), (vec![String::new()], false));
    }

    #[test]
    fn versions_are_told_apart_wherever_they_begin_and_what_is_too_far_ahead_counts_as_newer() {
        for first in [1, 1 << 33, u64::MAX - 5] {
            let mut census = Census::default();
            for (name, version, tally) in [
                ("a", first + 2, Tally::Injected),
                ("a", first + 1, Tally::Missed),
                ("b", first + 1, Tally::Missed),
                ("b", first + 3, Tally::Injected),
            ] {
                census.count(kind(), &object(name, version), fate(tally));
            }
            assert_eq!(counts(&census), Counts { matched: 2, injected: 2, ..Counts::default() }, "{first}");
        }
        let mut census = Census::default();
        for (version, tally) in [(1, Tally::Missed), (1 << 40, Tally::Outdated), ((1 << 40) + 1, Tally::Injected)] {
            census.count(kind(), &object("a", version), fate(tally));
        }
        assert_eq!(counts(&census), Counts { matched: 1, injected: 1, ..Counts::default() });
    }

    #[test]
    fn what_a_listing_does_not_show_is_gone_and_what_was_deleted_meanwhile_stays_gone() {
        let mut census = Census::default();
        census.count(kind(), &object("unseen", 1), fate(Tally::Missed));
        let listing = census.begin();
        census.remove(kind(), &object("deleted", 5));
        assert!(!census.has(kind(), ("", "deleted")));
        census.count(kind(), &object("deleted", 4), fate(Tally::Missed));
        census.count(kind(), &object("listed", 2), fate(Tally::Outdated));
        census.end(kind(), listing);
        assert_eq!(counts(&census), Counts { matched: 1, outdated: 1, ..Counts::default() });
        assert_eq!(census.counted[kind()].entries.len(), 1);
    }
}
