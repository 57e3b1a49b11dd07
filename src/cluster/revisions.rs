//! The revisions of policies, as ControllerRevisions in the operator's namespace: their form, which of them count, and the policies
//! that rollouts in steps make of them.
//!
//! Others can write ControllerRevisions, and flags change. So a stored revision is judged wherever it is read:
//!
//! | question | if not |
//! |---|---|
//! | Do its name and content fit together ([`Stored::parse`]), and is its owner the policy with this UID ([`Stored::is_of`])? | it is [`Foreign`]: nothing uses it |
//! | Do the flags of now allow its content ([`rejection`])? | it recognizes what workloads carry, and no workload gets it |

use crate::api::code::Code;
use crate::api::rules;
use crate::api::v1alpha1::OnFailure;
use crate::api::{MANAGED_BY, MANAGER, POLICY_LABEL};
use crate::cluster::object::Object;
use crate::policy::{Policy, Site};
use crate::revision::{Content, Revision};
use crate::steps::Reached;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Resource;
use kube::core::ApiResource;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The annotation with how far a rollout in steps is.
const REACHED: &str = "scpol.dev/rollout";
/// The annotation with the time at which the rollout of the revision was complete.
const COMPLETE: &str = "scpol.dev/complete";
/// The annotation with the times of commands that were ahead of the leader's clock.
const AHEAD: &str = "scpol.dev/ahead";
/// The largest number of a revision that counts. The API has 64 bits, and the next revision needs a larger one.
pub const LARGEST: i64 = 1 << 53;

/// The address of ControllerRevisions.
pub fn resource() -> ApiResource {
    ApiResource::erase::<ControllerRevision>(&())
}

/// The selector of ours.
pub fn selector() -> String {
    format!("{MANAGED_BY}={MANAGER},{POLICY_LABEL}")
}

/// A stored revision whose name fits its content.
#[derive(Clone, Debug)]
pub struct Stored {
    pub policy: String,
    /// The UID of the policy that owns it; empty without an owner.
    pub owner: String,
    pub revision: Arc<Revision>,
    /// When it was first stored.
    pub created: Timestamp,
    /// How far its rollout is, if it goes in steps, or back.
    pub reached: Option<Reached>,
    /// When its rollout was complete.
    pub complete: Option<Timestamp>,
    pub ahead: Ahead,
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

/// The times of commands that were ahead of the leader's clock. A clock that is fast must not repeat a command until the
/// leader's clock has caught up.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Ahead {
    /// Of `scpol rollout restart`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Seen>,
    /// Of `scpol rollout resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Seen>,
}

impl Ahead {
    /// What is recorded about the commands that count now, of which the revisions have `recorded`: what they say about other
    /// commands is not kept.
    pub fn of(commands: Commands, recorded: impl Iterator<Item = Self> + Clone, now: Timestamp) -> Self {
        // Creation times are in whole seconds, and what was created in this one is not made anew twice.
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self {
            restarted: Seen::of(commands.restarted, recorded.clone().filter_map(|ahead| ahead.restarted), second),
            resumed: Seen::of(commands.resumed, recorded.filter_map(|ahead| ahead.resumed), now),
        }
    }
}

/// The times of the last command of each kind, as the policy has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Of `scpol rollout restart`.
    pub restarted: Option<Timestamp>,
    /// Of `scpol rollout resume`.
    pub resumed: Option<Timestamp>,
}

/// A time that was ahead of the leader's clock.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The time as written.
    pub asked: Timestamp,
    /// When a leader first saw it: the time that counts.
    pub at: Timestamp,
}

impl Seen {
    /// What is recorded about the time `asked`, of which the revisions have `recorded`: none if it was never ahead of a
    /// leader's clock.
    pub fn of(asked: Option<Timestamp>, recorded: impl Iterator<Item = Seen>, now: Timestamp) -> Option<Self> {
        let asked = asked?;
        let known = recorded.filter(|seen| seen.asked == asked && seen.at <= now).min_by_key(|seen| seen.at);
        known.or_else(|| (asked > now).then_some(Self { asked, at: now }))
    }
}

impl Stored {
    /// The revision in `object`; none if it does not say that it is of a policy.
    ///
    /// # Errors
    /// Why it counts for nothing: it is unreadable, its number is out of range, or its name is not that of its content. The
    /// owner is not judged: see [`Self::is_of`].
    pub fn parse(object: &Object) -> Option<Result<Self, Foreign>> {
        let body = object.value();
        let metadata = &body["metadata"];
        let policy = metadata["labels"][POLICY_LABEL].as_str()?.to_owned();
        let (uid, name) = (object.meta().uid.clone().unwrap_or_default(), object.name().to_owned());
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
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        Some(Ok(Self {
            owner: owner(metadata).to_owned(),
            revision,
            policy,
            created: object.created().unwrap_or_default(),
            reached: annotation(REACHED).and_then(|text| serde_json::from_str(text).ok()),
            complete: annotation(COMPLETE).and_then(|text| text.parse().ok()),
            ahead: annotation(AHEAD).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
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
        self.complete.is_none() && self.reached.as_ref().is_some_and(|reached| reached.from == hash)
    }
}

/// The annotations of a revision; null for one that is to be removed.
pub fn annotations(reached: Option<&Reached>, complete: Option<Timestamp>) -> Value {
    json!({
        REACHED: reached.map(|reached| serde_json::to_string(reached).expect("it is JSON")),
        COMPLETE: complete.map(|time| time.to_string()),
    })
}

/// The annotation for the times of commands; null if there is none.
pub fn ahead_annotation(ahead: &Ahead) -> Value {
    let text = serde_json::to_string(ahead).expect("it is JSON");
    json!({ AHEAD: (*ahead != Ahead::default()).then_some(text) })
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
pub fn current<'a>(revisions: impl IntoIterator<Item = &'a Stored>) -> Option<&'a Stored> {
    revisions
        .into_iter()
        .filter(|stored| stored.complete.is_some())
        .max_by_key(|stored| (stored.complete, stored.revision.number))
}

/// What a rollout makes of `policy`, whose revisions these are: new workloads of some namespaces get its content, all others an
/// earlier one for which `is_allowed` is true. None if all get its content.
///
/// Without an allowed earlier content all get that of the policy: the flags allow it, and a workload without a sidecar is worse
/// than one ahead of its step. What exists already still keeps the pace of the steps.
pub fn split(
    policy: &Arc<Policy>,
    revisions: &[&Stored],
    mut is_allowed: impl FnMut(&Revision) -> bool,
) -> Option<Policy> {
    let rolling = policy.spec.rolling_update()?;
    let hash = policy.revision.as_deref()?;
    let current = current(revisions.iter().copied());
    if current.is_some_and(|current| current.revision.hash == hash) {
        return None;
    }
    let last = revisions.iter().max_by_key(|stored| stored.revision.number)?;
    let mut earlier =
        |stored: &Stored| is_allowed(&stored.revision).then(|| Arc::new(policy.with_content(&stored.revision.content)));
    if last.revision.hash != hash {
        // The leader has not stored this revision yet. It begins with no namespace.
        let from = current.unwrap_or(last);
        let has_begin = !rolling.steps.is_empty() && !from.came_from(hash);
        let earlier = if has_begin { earlier(from)? } else { return None };
        return Some(Policy::clone(policy).split(earlier, Default::default()));
    }
    let reached = last.reached.as_ref()?;
    if reached.has_all(&rolling.steps) || rolling.steps.is_empty() && !reached.undone {
        return None;
    }
    let from = revisions.iter().find(|stored| stored.revision.hash == reached.from)?;
    Some(Policy::clone(policy).split(earlier(from)?, reached.updated.clone()))
}

/// Whether the revisions of `policy` decide what new workloads get.
pub fn decide(policy: &Policy) -> bool {
    let rolling = policy.spec.rolling_update();
    rolling.is_some_and(|rolling| !rolling.steps.is_empty() || rolling.on_failure == OnFailure::Undo)
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
        self.are_on && decide(policy)
    }

    /// `policy` with what its rollout makes of it.
    pub fn of(&mut self, policy: &Arc<Policy>, revisions: &BTreeMap<String, Stored>) -> Arc<Policy> {
        if !self.decide(policy) {
            self.known.remove(&policy.name);
            self.judged.remove(&policy.name);
            return policy.clone();
        }
        let is_own = |stored: &&Stored| stored.policy == policy.name && stored.is_of(&policy.uid);
        let own: Vec<&Stored> = revisions.values().filter(is_own).collect();
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
        let fresh = split(policy, &own, is_allowed).map_or_else(|| policy.clone(), Arc::new);
        let known = self.known.get(&policy.name);
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
        let mut annotations = annotations(reached, complete.map(|second| Timestamp::from_second(second).unwrap()));
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

    fn parse(object: &Value) -> Option<Result<Stored, Foreign>> {
        Stored::parse(&serde_json::from_value(object.clone()).unwrap())
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
        let image = |policy: &Arc<Policy>| json!(policy.at("shop").template.spec.containers)[0]["image"].clone();
        for second in
            [None, Some(object(2, "good/x:1", None, Some(&reached))), Some(object(2, "good/x:1", None, Some(&undone)))]
        {
            let objects: Vec<&Value> = [&first].into_iter().chain(&second).collect();
            let stored = objects.into_iter().map(|object| parse(object).unwrap().unwrap());
            let revisions: BTreeMap<String, Stored> = stored.map(|stored| (stored.name.clone(), stored)).collect();
            for (allowed, expected) in [(&[][..], "bad/x:1"), (&["good/*"], "good/x:1")] {
                let mut splits = Splits::new(true, &Arc::new(site(allowed)));
                assert_eq!(image(&splits.of(&policy, &revisions)), expected, "{second:?}");
                assert_eq!(image(&splits.of(&policy, &revisions)), expected, "the second time");
            }
            // The policy has been made again.
            let mut again = Policy::clone(&policy);
            again.uid = "new".to_owned();
            let again = Splits::new(true, &Arc::new(site(&[]))).of(&Arc::new(again), &revisions);
            assert_eq!(image(&again), "good/x:1");
        }
        let bad = Revision::new("p", 1, content("bad/x:1"));
        let why = rejection(&policy, &bad, &site(&["good/*"])).unwrap();
        assert!(why.starts_with("SCP0420: revision 1 is not delivered: SCP0"), "{why}");
        assert_eq!(rejection(&policy, &bad, &site(&[])), None);
    }

    #[test]
    fn a_time_ahead_of_the_clock_counts_as_the_time_at_which_it_was_first_seen() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let seen = |asked: i64, seen: i64| Seen { asked: at(asked), at: at(seen) };
        let of = |asked: i64, recorded: &[Seen], now: i64| {
            Seen::of(Some(at(asked)), recorded.iter().copied(), at(now)).map(|seen| seen.at.as_second())
        };
        assert_eq!(Seen::of(None, [].into_iter(), at(5)), None);
        assert_eq!((of(5, &[], 5), of(5, &[], 6)), (None, None), "it is not ahead");
        assert_eq!(of(600, &[], 5), Some(5));
        // Also after the leader, and after our clock has caught up.
        for now in [6, 599, 600, 10_000] {
            assert_eq!(of(600, &[seen(600, 5)], now), Some(5), "{now}");
        }
        assert_eq!(of(700, &[seen(600, 5)], 6), Some(6), "it is another command");
        assert_eq!(of(600, &[seen(600, 9), seen(600, 5)], 10), Some(5), "the first counts");
        assert_eq!(of(600, &[seen(600, 300)], 10), Some(10), "the clock of that leader was fast, too");
        // The last command counts, whatever is recorded about others: the clock of a leader may have been fast, too.
        let kept = |asked: Option<i64>, recorded: &[Seen]| {
            let recorded = recorded.iter().map(|seen| Ahead { restarted: Some(*seen), resumed: Some(*seen) });
            let commands = Commands { restarted: asked.map(at), resumed: asked.map(at) };
            let Ahead { restarted, resumed } = Ahead::of(commands, recorded, at(40));
            assert_eq!(restarted, resumed);
            restarted
        };
        let recorded = [seen(600, 5), seen(700, 30), seen(700, 20), seen(900, 9000)];
        assert_eq!(kept(Some(700), &recorded), Some(seen(700, 20)));
        assert_eq!(kept(Some(600), &recorded), Some(seen(600, 5)));
        assert_eq!(kept(Some(800), &recorded), Some(seen(800, 40)), "it is a new command");
        assert_eq!(kept(Some(30), &recorded), None, "it was never ahead");
        assert_eq!((kept(None, &recorded), kept(Some(700), &[])), (None, Some(seen(700, 40))));
        let ahead = Ahead { restarted: Some(seen(600, 5)), resumed: None };
        let mut stored = object(1, "x:1", None, None);
        stored["metadata"]["annotations"] = ahead_annotation(&ahead);
        assert_eq!(parse(&stored).unwrap().unwrap().ahead, ahead);
        assert_eq!(ahead_annotation(&Ahead::default())[AHEAD], Value::Null);
    }
}
