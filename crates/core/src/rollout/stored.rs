//! The revisions of policies, as ControllerRevisions in the operator's namespace: their form, which of them count, and the policies
//! that rollouts in steps make of them. Pure.
//!
//! Others can write ControllerRevisions, and flags change. So a stored revision is judged wherever it is read:
//!
//! | question | if not |
//! |---|---|
//! | Do its name and content fit together ([`StoredRevision::parse`]), and is its owner the policy with this UID ([`StoredRevision::is_of`])? | it is [`Foreign`]: nothing uses it |
//! | Do the flags of now allow its content ([`rejection`])? | it recognizes what workloads carry, and no workload gets it |

use super::record::{Ahead, Commands, Course, Followed, MINUTE, Record, Times};
use super::steps::Reached;
use crate::api::POLICY_LABEL;
use crate::api::code::Code;
use crate::api::rules;
use crate::api::v1alpha1::Step;
use crate::content::{Content, Revision};
use crate::policy::{Policy, Site};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest number of a revision that counts. The API has 64 bits, and the next revision needs a larger one.
pub const LARGEST: i64 = 1 << 53;

/// A stored revision whose name fits its content.
#[derive(Clone, Debug)]
pub struct StoredRevision {
    pub policy: String,
    /// The UID of the policy that owns it; empty without an owner.
    pub owner: String,
    pub revision: Arc<Revision>,
    /// When it was first stored.
    pub created: Timestamp,
    /// What it says about its rollout.
    pub record: Record,
    /// `resourceVersion`: a write of the record names it, so that of two leaders one fails.
    pub version: String,
    pub uid: String,
    pub name: String,
}

/// A stored revision that is not one of its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub policy: String,
    pub uid: String,
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

impl Foreign {
    /// The code of the reason.
    pub const CODE: Code = Code::RevisionForeign;
}

impl StoredRevision {
    /// A revision as it would be stored, of a policy without a UID.
    pub fn new(policy: &str, revision: Arc<Revision>, created: Timestamp, record: Record) -> Self {
        let (policy, name) = (policy.to_owned(), format!("{policy}-{}", revision.hash));
        let (owner, version, uid) = Default::default();
        Self { policy, owner, revision, created, record, version, uid, name }
    }

    /// The revision in `object`; none if it does not say that it is of a policy.
    ///
    /// # Errors
    /// Why it counts for nothing: it is unreadable, its number is out of range, or its name is not that of its content. The
    /// owner is not judged: see [`Self::is_of`].
    pub fn parse(body: &Value) -> Option<Result<Self, Foreign>> {
        let metadata = &body["metadata"];
        let policy = metadata["labels"][POLICY_LABEL].as_str()?.to_owned();
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let (uid, name) = (text("uid"), text("name"));
        let foreign = |why: &str| {
            Some(Err(Foreign { policy: policy.clone(), uid: uid.clone(), name: name.clone(), why: why.to_owned() }))
        };
        let Ok(content) = serde_json::from_value::<Content>(body["data"].clone()) else {
            return foreign("its `data` is no content of a policy");
        };
        let Some(number) = body["revision"].as_i64().filter(|number| (1..=LARGEST).contains(number)) else {
            return foreign("its `revision` is out of range");
        };
        let revision = Arc::new(Revision::new(&policy, number, content));
        if name != format!("{policy}-{}", revision.hash) {
            return foreign("the hash in its name is not that of its content");
        }
        Some(Ok(Self {
            owner: owner(metadata).to_owned(),
            revision,
            policy,
            created: text("creationTimestamp").parse().unwrap_or_default(),
            record: Record::parse(&metadata["annotations"]),
            version: text("resourceVersion"),
            uid,
            name,
        }))
    }

    /// Whether the policy with the UID `policy` owns it. A policy that is deleted and made again has another UID.
    pub fn is_of(&self, policy: &str) -> bool {
        !policy.is_empty() && self.owner == policy
    }

    /// The same as a revision of no policy that exists now.
    pub fn into_foreign(self) -> Foreign {
        let Self { policy, uid, name, .. } = self;
        let why = "its owner is not the policy that has the name now".to_owned();
        Foreign { policy, uid, name, why }
    }

    /// Whether its rollout began at the revision with that hash, and has not been complete. Then that one is everywhere else.
    pub fn came_from(&self, hash: &str) -> bool {
        self.record.complete.is_none() && self.record.reached.as_ref().is_some_and(|reached| reached.from == hash)
    }
}

/// The UID of the policy among the owners in `metadata`; empty if there is none.
fn owner(metadata: &Value) -> &str {
    let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let is_policy = |owner: &&Value| {
        owner["kind"] == "SidecarPolicy"
            && owner["apiVersion"].as_str().is_some_and(|api| api.starts_with("scpol.dev/"))
    };
    owners.find(is_policy).and_then(|owner| owner["uid"].as_str()).unwrap_or_default()
}

/// Why no workload gets the content of `revision` any more, though it is one of `policy`: the flags of now, and the rules for
/// policies, are those for the content of a spec.
pub fn rejection(policy: &Policy, revision: &Revision, site: &Site) -> Option<String> {
    let spec = policy.with_content(&revision.content).spec;
    let first = rules::check(&policy.name, &spec, &site.rules()).into_iter().next()?;
    Some(format!(
        "{}: revision {} is not delivered: {}: {}",
        Code::RevisionRejected,
        revision.number,
        first.code,
        first.field
    ))
}

/// The revision whose rollout was complete last.
pub fn current<'a>(revisions: impl IntoIterator<Item = &'a StoredRevision>) -> Option<&'a StoredRevision> {
    revisions
        .into_iter()
        .filter(|stored| stored.record.complete.is_some())
        .max_by_key(|stored| (stored.record.complete, stored.revision.number))
}

/// The revision with the hash of a content.
pub fn with_hash<'a>(revisions: &'a [StoredRevision], hash: &str) -> Option<&'a StoredRevision> {
    revisions.iter().find(|stored| stored.revision.hash == hash)
}

/// Why new workloads do not get the earlier revision from which a rollout that has `reached` so far goes on; none if they do.
/// `rejection` is as [`rejection`].
pub fn barred(
    reached: &Reached,
    revisions: &[StoredRevision],
    rejection: &dyn Fn(&StoredRevision) -> Option<String>,
) -> Option<String> {
    let from = &reached.from;
    match with_hash(revisions, from) {
        Some(stored) => rejection(stored),
        None => Some(format!("{}: the revision {from}, from which it goes on, is not stored", Code::RevisionForeign)),
    }
}

/// What is stored when a policy gets a content: its number among the revisions, and its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    pub number: i64,
    pub record: Record,
}

impl Begin {
    /// The record that the last of `revisions` must have before another rollout begins, if it has another one: it says that the rollout is
    /// replaced. What leaders have announced until then is part of [`Self::of`].
    pub fn before(revisions: &[StoredRevision]) -> Option<(&StoredRevision, Record)> {
        let last = revisions.last().filter(|last| !last.record.progress.is_replaced)?;
        let mut record = last.record.clone();
        record.progress.is_replaced = true;
        Some((last, record))
    }

    /// The begin of the rollout of the content of `policy`, which has these `revisions`, oldest first, and the last `commands`.
    /// None without a content.
    ///
    /// The last of `revisions` must say that its rollout is replaced: see [`Self::before`].
    ///
    /// An earlier revision with this content gets a new number: the policy has been set back to it.
    pub fn of(policy: &Policy, revisions: &[StoredRevision], commands: Commands, now: Timestamp) -> Option<Self> {
        let hash = policy.revision()?;
        let (current, last) = (current(revisions), revisions.last());
        // Where nothing was before, there is nothing to go in steps from, and the way back is no rollout in steps either.
        let from = current.or(last).filter(|from| from.revision.hash != hash && !from.came_from(hash));
        let has_steps = policy.rolling.as_ref().is_some_and(|rolling| !rolling.steps.is_empty());
        let is_current = current.is_some_and(|current| current.revision.hash == hash);
        // Not before the one before it, which a leader may have completed whose clock was ahead.
        let at = current.and_then(|current| current.record.complete).map_or(now, |before| before.max(now));
        // The last one has inherited those of the ones before.
        let writes = last.iter().flat_map(|stored| stored.record.progress.writes.clone());
        let evictions = last.iter().flat_map(|stored| stored.record.progress.evictions.clone());
        let before = last
            .map(|last| &last.record.progress)
            .filter(|before| before.times.disturbed.is_some() || before.times.ended.is_none());
        // After its end, what it was writing may be unavailable from now on.
        let written = last.iter().flat_map(|stored| stored.record.progress.writes.values().map(|write| write.at)).min();
        // What the one before has evicted is to come back with this content, or with that of before.
        let mut evicted = last.map(|last| last.record.progress.evicted.clone()).unwrap_or_default();
        evicted.values_mut().for_each(|evicted| (evicted.at, evicted.newest) = (now, None));
        // Where nothing is rolled out, a rollout begins when that is switched on.
        let begun = rolls(policy).then_some(now);
        let progress = Course {
            times: Times {
                begun,
                disturbed: before
                    .and_then(|before| before.times.disturbed.or(before.times.begun))
                    .or(written)
                    .or(begun),
                ended: None,
            },
            is_new: from.is_some()
                && revisions.iter().all(|stored| stored.revision.template.hash != policy.template_hash()),
            generation: policy.meta.generation,
            broken: before.map(|before| before.broken.clone()).unwrap_or_default(),
            followed: Followed { resumed: commands.resumed, ..Followed::default() },
            writes: writes.collect(),
            evicted,
            evictions: evictions.filter(|(second, _)| now.as_second().saturating_sub(*second) < MINUTE).collect(),
            ..Course::default()
        };
        let record = Record {
            reached: from.filter(|_| has_steps).map(|from| Reached::begin(&from.revision.hash, now)),
            // Without rollouts, whatever is created has it.
            complete: (is_current || policy.rolling.is_none()).then_some(at),
            // Because the revision that has them may be deleted.
            ahead: Ahead::of(commands, revisions.iter().map(|stored| stored.record.ahead), now),
            progress,
        };
        Some(Self { number: next_number(revisions), record })
    }
}

/// The number of the revision after `revisions`, which come oldest first.
pub fn next_number(revisions: &[StoredRevision]) -> i64 {
    revisions.last().map_or(1, |last| last.revision.number.saturating_add(1))
}

/// Whether the steps of a rollout that has `reached` so far hold: some workloads do not get the update revision. A rollout that goes
/// back gives it to none, whatever the policy says about failures now.
pub fn holds(reached: &Reached, steps: &[Step]) -> bool {
    reached.undone || !steps.is_empty() && !reached.has_all(steps)
}

/// What a rollout makes of `policy`, whose revisions these are: new workloads that it has reached get its content, all others an
/// earlier one for which `is_allowed` is true. None if all get its content. `kept` is an earlier content that this process
/// knows: it counts if its revision has been deleted.
///
/// Without an allowed earlier content all get that of the policy: the flags allow it, and a workload without a sidecar is worse
/// than one ahead of its step. What exists already still keeps the pace of the steps.
pub fn split(
    policy: &Arc<Policy>,
    revisions: &[&StoredRevision],
    kept: Option<&Arc<Policy>>,
    mut is_allowed: impl FnMut(&Revision) -> bool,
) -> Option<Policy> {
    let rolling = policy.rolling.as_ref()?;
    let hash = policy.revision()?;
    let current = current(revisions.iter().copied());
    let last = revisions.iter().max_by_key(|stored| stored.revision.number)?;
    let mut earlier = |stored: &StoredRevision| {
        is_allowed(&stored.revision).then(|| Arc::new(policy.with_content(&stored.revision.content)))
    };
    if last.revision.hash != hash {
        // The leader has not stored this revision yet. It begins with no workload.
        let from = current.filter(|current| current.revision.hash != hash).unwrap_or(last);
        let is_back = current.is_some_and(|current| current.revision.hash == hash) || from.came_from(hash);
        let has_begin = !rolling.steps.is_empty() && !is_back;
        let earlier = if has_begin { earlier(from)? } else { return None };
        return Some(Policy::clone(policy).split(earlier, Default::default()));
    }
    let reached = last.record.reached.as_ref().filter(|reached| holds(reached, &rolling.steps))?;
    let from = match revisions.iter().find(|stored| stored.revision.hash == reached.from) {
        Some(from) => earlier(from)?,
        None => kept_content(policy, &reached.from, kept?)?,
    };
    Some(Policy::clone(policy).split(from, reached.extent.clone()))
}

/// `policy` with the content of the revision `hash`, if `kept` has it.
fn kept_content(policy: &Policy, hash: &str, kept: &Arc<Policy>) -> Option<Arc<Policy>> {
    let mut known = [Some(kept), kept.earlier()].into_iter().flatten();
    let known = known.find(|known| known.meta.uid == policy.meta.uid && known.revision() == Some(hash))?;
    Some(Arc::new(policy.with_content(&Content::of(&known.spec)?)))
}

/// Whether `policy` brings stored workloads up to date. Then its revisions decide what new workloads get.
pub fn rolls(policy: &Policy) -> bool {
    policy.is_enforced() && policy.injects() && policy.rolling.is_some()
}

/// The policies with the stored contents by which they recognize what workloads carry. A policy of which no content is new stays
/// the same.
#[derive(Default)]
pub struct Recognition {
    known: BTreeMap<String, (Arc<Policy>, Arc<Policy>)>,
}

impl Recognition {
    /// `policy`, which recognizes the contents of its `revisions`. They come oldest first.
    pub fn of(&mut self, policy: &Arc<Policy>, revisions: &[StoredRevision]) -> Arc<Policy> {
        // Its own content is among them: the half of a split policy that has an earlier one recognizes it, too.
        let past: Vec<Arc<Revision>> = revisions.iter().rev().map(|stored| stored.revision.clone()).collect();
        let is_new = |past: &Arc<Revision>| policy.revision() != Some(&*past.hash);
        if !past.iter().any(is_new) || !policy.injects() {
            self.known.remove(&policy.name);
            return policy.clone();
        }
        if let Some((base, known)) = self.known.get(&policy.name)
            && Arc::ptr_eq(base, policy)
            && known.recognizes(&past)
        {
            return known.clone();
        }
        let fresh = Arc::new(Policy::clone(policy).knowing(past.into()));
        self.known.insert(policy.name.clone(), (policy.clone(), fresh.clone()));
        fresh
    }

    /// Forgets the policies for which `is_stored` is false.
    pub fn retain(&mut self, is_stored: impl Fn(&str) -> bool) {
        self.known.retain(|name, _| is_stored(name));
    }
}

/// The policies with what rollouts make of them. A policy whose rollout has not moved stays the same.
pub struct Splits {
    /// Whether the operator rolls out. If not, it stores no revisions that a policy could wait for.
    are_on: bool,
    site: Arc<Site>,
    known: BTreeMap<String, (Arc<Policy>, Arc<Policy>)>,
    /// Whether the flags allow the content of a revision, by the policy that it was judged for. The judgement takes as long as
    /// that of a policy.
    judged: BTreeMap<String, (Arc<Policy>, String, bool)>,
}

impl Splits {
    /// No policies.
    pub fn new(are_on: bool, site: &Arc<Site>) -> Self {
        Self { are_on, site: site.clone(), known: BTreeMap::new(), judged: BTreeMap::new() }
    }

    /// Whether the revisions of `policy` decide what new workloads get.
    pub fn decide(&self, policy: &Policy) -> bool {
        self.are_on && rolls(policy)
    }

    /// `policy` with what its rollout makes of it.
    pub fn of(&mut self, policy: &Arc<Policy>, revisions: &[StoredRevision]) -> Arc<Policy> {
        if !self.decide(policy) {
            self.known.remove(&policy.name);
            self.judged.remove(&policy.name);
            return policy.clone();
        }
        let is_own = |stored: &&StoredRevision| stored.policy == policy.name && stored.is_of(&policy.meta.uid);
        let own: Vec<&StoredRevision> = revisions.iter().filter(is_own).collect();
        let (site, judged) = (&self.site, &mut self.judged);
        let is_allowed = |revision: &Revision| {
            let known = judged.get(&policy.name);
            if let Some((_, _, is_allowed)) =
                known.filter(|(of, hash, _)| Arc::ptr_eq(of, policy) && *hash == revision.hash)
            {
                return *is_allowed;
            }
            let is_allowed = rejection(policy, revision, site).is_none();
            judged.insert(policy.name.clone(), (policy.clone(), revision.hash.clone(), is_allowed));
            is_allowed
        };
        let known = self.known.get(&policy.name);
        let kept = known.map(|(_, known)| known);
        let fresh = split(policy, &own, kept, is_allowed).map_or_else(|| policy.clone(), Arc::new);
        if let Some((base, known)) = known
            && Arc::ptr_eq(base, policy)
            && known.spec_hash == fresh.spec_hash
        {
            return known.clone();
        }
        self.known.insert(policy.name.clone(), (policy.clone(), fresh.clone()));
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::extent::Place;
    use serde_json::json;

    fn site(images: &[&str]) -> Site {
        let mut site = Site::new("scpol-system", [], []);
        site.trust.images = images.iter().map(|image| (*image).to_owned()).collect();
        site
    }

    fn content(image: &str) -> Content {
        serde_json::from_value(json!({ "template": { "containers": [{ "name": "x", "image": image }] } })).unwrap()
    }

    /// A policy with the UID `u` whose rollouts go in steps.
    fn policy(image: &str) -> Arc<Policy> {
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "steps": [{ "namespaces": ["canary"] }] } });
        let spec = json!({ "template": content(image).template, "updateStrategy": strategy });
        let object = json!({ "metadata": { "name": "p", "uid": "u" }, "spec": spec });
        Arc::new(Policy::parse(&object, &site(&[])).unwrap())
    }

    /// A revision of [`policy`] as the operator stores it.
    fn object(number: i64, image: &str, complete: Option<i64>, reached: Option<&Reached>) -> Value {
        let complete = complete.map(|second| Timestamp::from_second(second).unwrap());
        let mut annotations = Record { reached: reached.cloned(), complete, ..Record::default() }.annotations();
        annotations.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        json!({
            "metadata": {
                "name": format!("p-{}", content(image).hash()), "uid": "r", "labels": { POLICY_LABEL: "p" },
                "annotations": annotations,
                "ownerReferences": [{ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "name": "p", "uid": "u" }],
            },
            "data": content(image), "revision": number,
        })
    }

    fn parse(object: &Value) -> Option<Result<StoredRevision, Foreign>> {
        StoredRevision::parse(object)
    }

    #[test]
    fn a_revision_counts_only_with_the_name_of_its_content_a_number_in_range_and_the_owner() {
        let fine = object(3, "x:1", None, None);
        let stored = parse(&fine).unwrap().unwrap();
        assert_eq!((stored.revision.number, &stored.revision.content), (3, &content("x:1")));
        assert!(stored.is_of("u") && !stored.is_of("other") && !stored.is_of(""));
        let changed = |pointer: &str, value: Value| {
            let mut object = fine.clone();
            *object.pointer_mut(pointer).unwrap() = value;
            parse(&object).unwrap()
        };
        for (pointer, value, why) in [
            ("/data/template/containers/0/image", json!("evil:1"), "the hash in its name"),
            ("/metadata/name", json!("p-0123456789abcdef"), "the hash in its name"),
            ("/metadata/labels/scpol.dev~1policy", json!("other"), "the hash in its name"),
            ("/data", json!({ "template": 7 }), "`data` is no content"),
            ("/data", Value::Null, "`data` is no content"),
            ("/revision", json!(0), "out of range"),
            ("/revision", json!(i64::MAX), "out of range"),
            ("/revision", json!("3"), "out of range"),
        ] {
            let foreign = changed(pointer, value).unwrap_err();
            assert!(foreign.why.contains(why), "{pointer}: {}", foreign.why);
        }
        for owner in [
            json!([]),
            Value::Null,
            json!([{ "kind": "SidecarPolicy", "apiVersion": "scpol.dev/v1alpha1", "uid": "old" }]),
            json!([{ "kind": "SidecarPolicy", "apiVersion": "other.dev/v1", "uid": "u" }]),
            json!([{ "kind": "Namespace", "apiVersion": "v1", "uid": "u" }]),
        ] {
            assert!(!changed("/metadata/ownerReferences", owner.clone()).unwrap().is_of("u"), "{owner}");
        }
        assert!(parse(&json!({ "metadata": { "name": "else" } })).is_none(), "it is nobody's");
    }

    #[test]
    fn an_earlier_content_that_the_flags_do_not_allow_is_given_to_nobody_and_all_get_the_latest() {
        let old = content("bad/x:1").hash();
        let reached = Reached::begin(&old, Timestamp::UNIX_EPOCH);
        let undone = reached.clone().undo(Timestamp::UNIX_EPOCH);
        let first = object(1, "bad/x:1", Some(1), None);
        let policy = policy("good/x:1");
        let image = |policy: &Arc<Policy>| {
            json!(policy.at_place("shop", &Place::default()).as_written().spec.containers)[0]["image"].clone()
        };
        for second in
            [None, Some(object(2, "good/x:1", None, Some(&reached))), Some(object(2, "good/x:1", None, Some(&undone)))]
        {
            let objects: Vec<&Value> = [&first].into_iter().chain(&second).collect();
            let stored = objects.into_iter().map(|object| parse(object).unwrap().unwrap());
            let revisions: Vec<StoredRevision> = stored.collect();
            for (allowed, expected) in [(&[][..], "bad/x:1"), (&["good/*"], "good/x:1")] {
                let mut splits = Splits::new(true, &Arc::new(site(allowed)));
                assert_eq!(image(&splits.of(&policy, &revisions)), expected, "{second:?}");
                assert_eq!(image(&splits.of(&policy, &revisions)), expected, "the second time");
            }
            // The policy has been made again.
            let mut again = Policy::clone(&policy);
            again.meta.uid = "new".to_owned();
            let again = Splits::new(true, &Arc::new(site(&[]))).of(&Arc::new(again), &revisions);
            assert_eq!(image(&again), "good/x:1");
        }
        let bad = Revision::new("p", 1, content("bad/x:1"));
        let why = rejection(&policy, &bad, &site(&["good/*"])).unwrap();
        assert!(why.starts_with("SCP0420: revision 1 is not delivered: SCP0"), "{why}");
        assert_eq!(rejection(&policy, &bad, &site(&[])), None);
    }

    #[test]
    fn where_the_steps_have_not_come_yet_the_newest_content_is_known_and_the_earlier_one_takes_its_place() {
        use crate::decision::Decision;
        use crate::policy::Policies;
        use crate::workload::{Kind, Workload};
        let policy = policy("x:2");
        let reached = Reached::begin(&content("x:1").hash(), Timestamp::UNIX_EPOCH);
        let objects = [object(1, "x:1", Some(1), None), object(2, "x:2", None, Some(&reached))];
        let revisions: Vec<StoredRevision> = objects.iter().map(|object| parse(object).unwrap().unwrap()).collect();
        let mut splits = Splits::new(true, &Arc::new(site(&[])));
        let split = splits.of(&Recognition::default().of(&policy, &revisions), &revisions);
        let pod = json!({ "spec": { "containers": [{ "name": "app", "image": "app:1" }] } });
        let body = json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": { "template": pod } });
        let bare = Workload::new(Kind::find("apps", "deployments").unwrap(), body);
        let created = |policy: &Arc<Policy>, workload: &Workload| {
            let patch = Decision::of(&Policies::new([policy.clone()]), workload, &site(&[])).plan(workload);
            workload.with_body(workload.patched(&patch))
        };
        let ahead = created(&policy, &bare);
        let image = |workload: &Workload| workload.body["spec"]["template"]["spec"]["containers"][1]["image"].clone();
        assert_eq!(image(&ahead), "x:2");
        assert_eq!(image(&created(&split, &ahead)), "x:1");
    }
}
