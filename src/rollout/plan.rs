//! Which workloads are brought up to date next, and how far a rollout is. Pure: the time is passed in.
//!
//! What counts as unavailable is read from the cluster, so that a new leader goes on where the last one ended: pods that are not
//! ready, pods that their owner lacks, and workloads that their controller is still rolling. In addition, what this leader has
//! written counts as unavailable until the watches show its effect.

use crate::api::code::Code;
use crate::update::Carries;
use crate::workloads::fleet::{Member, Members};
use crate::workloads::waiting::ObjectRef;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// How fast a rollout goes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The most workloads that may be unavailable at once, those included that were so before.
    pub max_unavailable: usize,
    /// How long a replacement must be ready before it counts.
    pub min_ready: SignedDuration,
    /// How long a replacement may take until it counts.
    pub deadline: SignedDuration,
}

/// The most restarts of a sidecar after its update.
const RESTARTS: u32 = 3;
/// How long a kubelet may take, beyond the grace period of the pod, until its status shows an image as it is in the spec. After that the
/// pod counts by its readiness alone, because a runtime may call an image by another name.
const UNSAID: SignedDuration = SignedDuration::from_secs(10);

/// A controller that makes pods, such as a ReplicaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its kind, as in a manifest.
    pub kind: &'static str,
    pub name: String,
    /// The number of pods that it keeps.
    pub desired: usize,
    pub created: Option<Timestamp>,
    /// The policies that match its pods.
    pub policies: BTreeSet<Arc<str>>,
    /// The part of them whose marker its own pod template has: its pods get what it says.
    pub carried: BTreeSet<Arc<str>>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// The owners by UID.
pub type Owners = HashMap<Arc<str>, Owner>;

/// What was done to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The pod was evicted.
    Evicted,
    /// The workload or pod was patched, and has this `resourceVersion` since.
    Patched(u64),
}

/// A write of this leader whose effect has not been seen yet.
#[derive(Clone, Debug)]
struct Touch {
    done: Done,
    uid: Arc<str>,
    at: Timestamp,
}

/// Why a workload is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub code: Code,
    pub message: String,
}

/// What this leader has done for the rollout of one revision.
#[derive(Debug, Default)]
pub struct Rolling {
    /// The time of the first look.
    begun: Option<Timestamp>,
    touches: BTreeMap<ObjectRef, Touch>,
    /// The owners of evicted pods, with the last eviction.
    evicted: HashMap<Arc<str>, (Timestamp, ObjectRef)>,
    /// The restarts of patched pods when they were patched.
    restarts: HashMap<ObjectRef, u32>,
    /// What cannot be brought up to date, in which version.
    left: BTreeMap<ObjectRef, (u64, Left)>,
}

/// The facts for one look at a rollout.
pub struct Facts<'a> {
    pub policy: &'a str,
    pub members: &'a Members,
    pub owners: &'a Owners,
    /// The hash of the update revision.
    pub update: &'a str,
    /// The hash of the revision that workloads of a namespace are to have.
    pub revision_of: &'a dyn Fn(&str) -> &'a str,
    /// When the rollout began.
    pub since: Timestamp,
    /// The time of the last `scpol rollout restart`.
    pub restarted: Option<Timestamp>,
    pub pace: Pace,
    /// Whether workloads of the namespace are to be brought up to date now.
    pub is_in_scope: &'a dyn Fn(&str) -> bool,
    /// Why a container of the policy does not start in a workload.
    pub stuck: &'a dyn Fn(&ObjectRef) -> Option<String>,
    pub now: Timestamp,
}

/// A workload that was updated and failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub object: ObjectRef,
    pub code: Code,
    pub message: String,
}

/// How far a rollout is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What the policy matches.
    pub matched: usize,
    /// The part that carries the update revision.
    pub updated: usize,
    /// The part that is available.
    pub ready: usize,
    /// What is in scope and still to be done.
    pub remaining: usize,
    /// What is left as it is.
    pub left: usize,
    pub unavailable: usize,
    /// What to update now, in this order.
    pub next: Vec<ObjectRef>,
    pub failure: Option<Failure>,
    /// True while some workloads have not been compared with the update revision.
    pub is_counting: bool,
    /// True once everything in scope is updated or left, and all that was updated is ready.
    pub is_complete: bool,
}

impl Rolling {
    /// Records a write.
    pub fn touched(&mut self, object: &ObjectRef, member: &Member, done: Done, now: Timestamp) {
        match (done, &member.owner) {
            (Done::Evicted, Some(owner)) => drop(self.evicted.insert(owner.clone(), (now, object.clone()))),
            (Done::Evicted, None) => {}
            (Done::Patched(_), _) => drop(self.restarts.insert(object.clone(), member.restarts)),
        }
        let touch = Touch { done, uid: member.uid.clone(), at: now };
        self.touches.insert(object.clone(), touch);
    }

    /// Records that a workload, in that version, cannot be brought up to date.
    pub fn leave(&mut self, object: &ObjectRef, version: u64, left: Left) {
        self.left.insert(object.clone(), (version, left));
    }

    /// What is left as it is, with the reasons.
    pub fn left(&self) -> impl Iterator<Item = (&ObjectRef, &Left)> {
        self.left.iter().map(|(object, (_, left))| (object, left))
    }

    /// Looks at everything once.
    pub fn look(&mut self, facts: &Facts<'_>) -> Look {
        self.begun.get_or_insert(facts.now);
        self.forget_what_is_over(facts);
        let mut look = Look { matched: facts.members.len(), ..Look::default() };
        let mut by_owner: HashMap<&str, Vec<(&ObjectRef, &Member, bool)>> = HashMap::new();
        let mut candidates = Vec::new();
        for (object, member) in facts.members {
            let wanted = (facts.revision_of)(&object.namespace);
            look.is_counting |= *member.revision != *wanted;
            let is_available = self.is_available(object, member, facts);
            look.unavailable += usize::from(!is_available);
            look.ready += usize::from(is_available);
            if let Some(owner) = &member.owner {
                by_owner.entry(owner).or_default().push((object, member, is_available));
            }
            look.updated += usize::from(member.carries == Carries::This && *member.revision == *facts.update);
            if member.is_done(facts.restarted) {
                if !is_available && look.failure.is_none() {
                    look.failure = self.failure(object, member, facts);
                }
            } else if self.is_left(object, member) || self.follows_its_owner(object, member, facts) {
                look.left += 1;
            } else if (facts.is_in_scope)(&object.namespace) {
                look.remaining += 1;
                if look.failure.is_none() {
                    look.failure = self.missed_again(object, member);
                }
                if !self.touches.contains_key(object) {
                    candidates.push((is_available, object, member));
                }
            }
        }
        let matched = facts.owners.iter().filter(|(_, owner)| owner.policies.contains(facts.policy));
        let missing: HashMap<&str, usize> = matched
            .filter_map(|(uid, owner)| {
                let there = by_owner.get(&**uid).map_or(0, Vec::len);
                let missing = owner.desired.saturating_sub(there);
                (missing > 0).then_some((&**uid, missing))
            })
            .collect();
        look.unavailable = missing.values().fold(look.unavailable, |sum, missing| sum.saturating_add(*missing));
        if look.failure.is_none() {
            look.failure = self.not_made_again(&missing, facts);
        }
        if look.is_counting || look.failure.is_some() {
            return look;
        }
        let are_parts_ready = facts.members.iter().all(|(object, member)| {
            !member.is_done(facts.restarted)
                || !self.is_part(object, member, facts)
                || self.is_available(object, member, facts)
        });
        look.is_complete = look.remaining == 0 && self.touches.is_empty() && are_parts_ready && missing.is_empty();
        // What is unavailable anyway comes first, and costs nothing.
        candidates
            .sort_by_key(|(is_available, object, _)| (*is_available, &object.namespace, &object.kind, &object.name));
        let mut allowed = facts.pace.max_unavailable.saturating_sub(look.unavailable);
        let mut slots = facts.pace.max_unavailable.saturating_sub(self.touches.len());
        let mut owners = BTreeSet::new();
        for (is_available, object, member) in candidates {
            if slots == 0 {
                break;
            }
            if is_available && allowed == 0 {
                continue;
            }
            if let Some(owner) = member.owner.as_deref() {
                let others = by_owner.get(owner).into_iter().flatten().filter(|(other, ..)| *other != object);
                let is_busy =
                    missing.contains_key(owner) || others.into_iter().any(|(_, _, is_available)| !is_available);
                if is_busy || !owners.insert(owner) {
                    continue;
                }
            }
            slots -= 1;
            allowed -= usize::from(is_available);
            look.next.push(object.clone());
        }
        look
    }

    /// Forgets the writes whose effect the watches show.
    fn forget_what_is_over(&mut self, facts: &Facts<'_>) {
        self.touches.retain(|object, touch| {
            let Some(member) = facts.members.get(object).filter(|member| member.uid == touch.uid) else { return false };
            let Done::Patched(version) = touch.done else { return true };
            let is_over = member.health.is_ready && is_settled(member, touch.at, facts.now);
            member.version < version || member.is_done(facts.restarted) && !is_over
        });
        self.left
            .retain(|object, (version, _)| facts.members.get(object).is_some_and(|member| member.version <= *version));
        self.restarts.retain(|object, _| facts.members.contains_key(object));
        self.evicted.retain(|owner, _| facts.owners.contains_key(owner));
    }

    fn is_left(&self, object: &ObjectRef, member: &Member) -> bool {
        self.left.get(object).is_some_and(|(version, _)| *version >= member.version)
    }

    /// Leaves a pod that has the sidecar from the pod template of its owner: every replacement would have it, too.
    fn follows_its_owner(&mut self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let owner = member.owner.as_ref().and_then(|owner| facts.owners.get(owner));
        let Some(owner) = owner.filter(|owner| owner.carried.contains(facts.policy)) else { return false };
        let message = format!("{owner} has it in its own pod template, which the pod follows");
        self.leave(object, member.version, Left { code: Code::ContentOfOwner, message });
        true
    }

    fn is_available(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let since = ready_since(member, facts.now);
        let has_been_ready = since.is_none_or(|since| facts.now.duration_since(since) >= facts.pace.min_ready);
        let is_settled = is_settled(member, self.begun.unwrap_or(facts.now), facts.now);
        member.health.is_ready && has_been_ready && is_settled && !self.touches.contains_key(object)
    }

    /// Whether the rollout has made the workload what it is. A workload that came later is its author's.
    fn is_part(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> bool {
        let is_older = |created: Option<Timestamp>| created.is_some_and(|created| created < facts.since);
        let owner = member.owner.as_ref().and_then(|owner| facts.owners.get(owner));
        self.restarts.contains_key(object)
            || is_older(member.created)
            || owner.is_some_and(|owner| is_older(owner.created))
    }

    /// Why an updated workload that is not available has failed; none if it may still become available.
    fn failure(&self, object: &ObjectRef, member: &Member, facts: &Facts<'_>) -> Option<Failure> {
        if !self.is_part(object, member, facts) {
            return None;
        }
        let fail = |message: String| Some(Failure { object: object.clone(), code: Code::ReplacementNotReady, message });
        if let Some(stuck) = (facts.stuck)(object) {
            return fail(stuck);
        }
        let before = self.restarts.get(object).copied();
        let restarts = member.restarts.saturating_sub(before.map_or(0, |before| before.saturating_add(1)));
        if restarts > RESTARTS && !(before.is_none() && member.created.is_some_and(|created| created < facts.since)) {
            return fail(format!("its sidecar has been restarted {restarts} times since the update"));
        }
        let touched = self.touches.get(object).map(|touch| touch.at);
        let since =
            touched.or(ready_since(member, facts.now)).or(member.created.filter(|created| *created >= facts.since));
        let limit = facts.pace.deadline;
        since
            .filter(|since| facts.now.duration_since(*since) > limit)
            .and_then(|_| fail(format!("it is not ready after {limit:#}")))
    }

    /// The replacement of an evicted pod that does not carry the update revision. Another eviction would not change that.
    fn missed_again(&self, object: &ObjectRef, member: &Member) -> Option<Failure> {
        let (at, _) = self.evicted.get(member.owner.as_ref()?)?;
        let is_replacement = member.created.is_some_and(|created| created.as_second() > at.as_second());
        (is_replacement && !self.touches.contains_key(object)).then(|| {
            let message = "it replaces an evicted pod, and has not got the update revision".to_owned();
            Failure { object: object.clone(), code: Code::ReplacementMissed, message }
        })
    }

    /// An evicted pod that has not been replaced in time.
    fn not_made_again(&self, missing: &HashMap<&str, usize>, facts: &Facts<'_>) -> Option<Failure> {
        let late = self.evicted.iter().find(|(owner, (at, _))| {
            missing.contains_key(&***owner) && facts.now.duration_since(*at) > facts.pace.deadline
        });
        let (owner, (_, object)) = late?;
        let owner = facts.owners.get(owner).map(ToString::to_string).unwrap_or_default();
        let message = format!("{owner} has made no new pod in its place after {:#}", facts.pace.deadline);
        Some(Failure { object: object.clone(), code: Code::ReplacementNotReady, message })
    }
}

/// How far the clock of a node may be ahead of ours. A time beyond that is forged, or of a broken clock.
const AHEAD: SignedDuration = SignedDuration::from_secs(300);

/// Since when the workload is ready, or not ready, as its status says. Its creation, if the status has a time that cannot be.
fn ready_since(member: &Member, now: Timestamp) -> Option<Timestamp> {
    let since = member.health.since?;
    if since.duration_since(now) <= AHEAD { Some(since) } else { member.created }
}

/// Whether the kubelet has acted on what was written to a pod at the latest `at` that time.
fn is_settled(member: &Member, at: Timestamp, now: Timestamp) -> bool {
    member.health.is_settled || now.duration_since(at) >= member.health.grace.saturating_add(UNSAID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use crate::workloads::fleet::Health;
    use proptest::prelude::*;

    const NEW: &str = "new";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn object(kind: (&str, &str), namespace: &str, name: &str) -> ObjectRef {
        ObjectRef { kind: Kind::find(kind.0, kind.1).unwrap().clone(), namespace: namespace.into(), name: name.into() }
    }

    fn pod(name: &str) -> ObjectRef {
        object(("", "pods"), "shop", name)
    }

    fn deployment(name: &str) -> ObjectRef {
        object(("apps", "deployments"), "shop", name)
    }

    fn ready(is_ready: bool, since: i64) -> Health {
        Health { is_ready, since: Some(at(since)), is_settled: true, grace: SignedDuration::ZERO }
    }

    fn member(carries: Carries, owner: Option<&str>) -> Member {
        Member {
            uid: "u".into(),
            version: 1,
            revision: NEW.into(),
            carries,
            health: ready(true, -100),
            created: Some(at(-100)),
            owner: owner.map(Arc::from),
            begun: Some(at(-100)),
            restarts: 0,
        }
    }

    fn old() -> Carries {
        Carries::Other("old".into())
    }

    fn owner(desired: usize) -> Owner {
        Owner {
            kind: "ReplicaSet",
            name: "web".into(),
            desired,
            created: Some(at(-100)),
            policies: BTreeSet::from(["envoy".into()]),
            carried: BTreeSet::new(),
        }
    }

    fn pace(max_unavailable: usize) -> Pace {
        Pace { max_unavailable, min_ready: SignedDuration::ZERO, deadline: SignedDuration::from_secs(600) }
    }

    fn look_with(
        rolling: &mut Rolling,
        members: &Members,
        owners: &Owners,
        pace: Pace,
        now: i64,
        stuck: &dyn Fn(&ObjectRef) -> Option<String>,
    ) -> Look {
        rolling.look(&Facts {
            policy: "envoy",
            members,
            owners,
            update: NEW,
            revision_of: &|_| NEW,
            since: at(0),
            restarted: None,
            pace,
            is_in_scope: &|_| true,
            stuck,
            now: at(now),
        })
    }

    fn look(rolling: &mut Rolling, members: &Members, owners: &Owners, max_unavailable: usize, now: i64) -> Look {
        look_with(rolling, members, owners, pace(max_unavailable), now, &|_| None)
    }

    fn names(look: &Look) -> Vec<&str> {
        look.next.iter().map(|object| object.name.as_str()).collect()
    }

    #[test]
    fn no_more_is_begun_than_may_be_unavailable_and_what_was_so_before_counts() {
        let mut members: Members = ["a", "b", "c", "d"].map(|name| (deployment(name), member(old(), None))).into();
        let next =
            |members: &Members, max| names(&look(&mut Rolling::default(), members, &Owners::new(), max, 1)).join(" ");
        assert_eq!((next(&members, 1), next(&members, 3)), ("a".into(), "a b c".into()));
        members.get_mut(&deployment("d")).unwrap().health.is_ready = false;
        // `d` is not available anyway, so its update costs nothing.
        assert_eq!((next(&members, 1), next(&members, 2)), ("d".into(), "d a".into()));
        members.get_mut(&deployment("d")).unwrap().carries = Carries::This;
        assert_eq!((next(&members, 1), next(&members, 2)), (String::new(), "a".into()));
    }

    #[test]
    fn of_one_owner_one_pod_at_a_time_and_the_next_when_its_replacement_is_ready() {
        let owners = Owners::from([("x".into(), owner(2)), ("y".into(), owner(2))]);
        let mut members: Members = [("x1", "x"), ("x2", "x"), ("y1", "y"), ("y2", "y")]
            .map(|(name, owner)| (pod(name), member(old(), Some(owner))))
            .into();
        let mut rolling = Rolling::default();
        assert_eq!(names(&look(&mut rolling, &members, &owners, 10, 1)), ["x1", "y1"]);
        let evicted = members[&pod("x1")].clone();
        rolling.touched(&pod("x1"), &evicted, Done::Evicted, at(1));
        assert_eq!(names(&look(&mut rolling, &members, &owners, 10, 2)), ["y1"], "the watch does not show it yet");
        members.remove(&pod("x1"));
        assert_eq!(
            names(&look(&mut Rolling::default(), &members, &owners, 10, 3)),
            ["y1"],
            "nor does a new leader take the next"
        );
        let mut replacement = Member {
            uid: "v".into(),
            created: Some(at(3)),
            health: ready(false, 3),
            ..member(Carries::This, Some("x"))
        };
        members.insert(pod("x3"), replacement.clone());
        assert_eq!(names(&look(&mut rolling, &members, &owners, 10, 4)), ["y1"]);
        replacement.health = ready(true, 5);
        members.insert(pod("x3"), replacement);
        let slow = Pace { min_ready: SignedDuration::from_secs(30), ..pace(10) };
        assert_eq!(
            names(&look_with(&mut rolling, &members, &owners, slow, 6, &|_| None)),
            ["y1"],
            "not for long enough"
        );
        assert_eq!(names(&look(&mut rolling, &members, &owners, 10, 6)), ["x2", "y1"]);
    }

    #[test]
    fn a_patched_pod_counts_once_its_kubelet_has_acted() {
        let owners = Owners::from([("x".into(), owner(2))]);
        let mut members: Members = ["a", "b"].map(|name| (pod(name), member(old(), Some("x")))).into();
        let mut rolling = Rolling::default();
        let before = members[&pod("a")].clone();
        rolling.touched(&pod("a"), &before, Done::Patched(5), at(1));
        let a = members.get_mut(&pod("a")).unwrap();
        (a.version, a.carries, a.health.is_settled) = (5, Carries::This, false);
        assert_eq!(names(&look(&mut rolling, &members, &owners, 1, 2)), [""; 0]);
        members.get_mut(&pod("a")).unwrap().health.is_settled = true;
        assert_eq!(names(&look(&mut rolling, &members, &owners, 1, 2)), ["b"]);
        // A runtime may call the image by another name.
        rolling.touched(&pod("a"), &before, Done::Patched(5), at(1));
        members.get_mut(&pod("a")).unwrap().health.is_settled = false;
        assert_eq!(names(&look(&mut rolling, &members, &owners, 1, 2)), [""; 0]);
        assert_eq!(names(&look(&mut rolling, &members, &owners, 1, 12)), ["b"]);
    }

    #[test]
    fn a_failed_replacement_ends_the_rollout_and_what_was_created_later_does_not() {
        let fail = |created: i64, health: Health, now: i64, stuck: Option<&str>| {
            let stuck = stuck.map(str::to_owned);
            let members: Members = [
                (deployment("a"), Member { health, created: Some(at(created)), ..member(Carries::This, None) }),
                (deployment("b"), member(old(), None)),
            ]
            .into();
            let stuck = |object: &ObjectRef| stuck.clone().filter(|_| object.name == "a");
            let look = look_with(&mut Rolling::default(), &members, &Owners::new(), pace(5), now, &stuck);
            (look.failure.map(|failure| failure.message), look.next.len())
        };
        let no = ready(false, 1);
        assert_eq!(fail(-9, no, 600, None), (None, 1), "there is still time");
        assert_eq!(fail(-9, no, 602, None), (Some("it is not ready after 10m".into()), 0));
        assert_eq!(fail(-9, no, 2, Some("ImagePullBackOff")), (Some("ImagePullBackOff".into()), 0));
        assert_eq!(fail(9, no, 900, Some("ImagePullBackOff")), (None, 1), "its author created it after the edit");
    }

    #[test]
    fn a_replacement_without_the_revision_and_one_that_never_comes_end_the_rollout() {
        let owners = Owners::from([("x".into(), owner(1))]);
        let mut rolling = Rolling::default();
        rolling.touched(&pod("a"), &member(old(), Some("x")), Done::Evicted, at(1));
        let none = look(&mut rolling, &Members::new(), &owners, 1, 500);
        assert_eq!((none.failure, none.unavailable, none.is_complete), (None, 1, false));
        let none = look(&mut rolling, &Members::new(), &owners, 1, 602).failure.unwrap();
        assert_eq!(none.message, "ReplicaSet/web has made no new pod in its place after 10m");
        let again: Members = [(pod("b"), Member { created: Some(at(3)), ..member(old(), Some("x")) })].into();
        let failure = look(&mut rolling, &again, &owners, 1, 5).failure.unwrap();
        assert_eq!(failure.code, Code::ReplacementMissed);
    }

    #[test]
    fn what_is_left_is_not_tried_again_until_it_changes() {
        let mut members: Members = [(deployment("a"), member(old(), None))].into();
        let mut rolling = Rolling::default();
        rolling.leave(&deployment("a"), 1, Left { code: Code::ContentEdited, message: "edited".into() });
        let left = look(&mut rolling, &members, &Owners::new(), 1, 1);
        assert_eq!((left.left, left.next.len(), left.is_complete), (1, 0, true));
        members.get_mut(&deployment("a")).unwrap().version = 2;
        assert_eq!(names(&look(&mut rolling, &members, &Owners::new(), 1, 1)), ["a"]);
    }

    #[test]
    fn a_pod_that_follows_the_template_of_its_owner_is_left() {
        let template = Owner { carried: BTreeSet::from(["envoy".into()]), ..owner(1) };
        let owners = Owners::from([("x".into(), template)]);
        let members: Members = [(pod("a"), member(old(), Some("x")))].into();
        let mut rolling = Rolling::default();
        let seen = look(&mut rolling, &members, &owners, 1, 1);
        assert_eq!((seen.left, seen.next.len(), seen.is_complete), (1, 0, true));
        assert_eq!(rolling.left().next().map(|(_, left)| left.code), Some(Code::ContentOfOwner));
    }

    #[test]
    fn a_status_from_the_future_counts_from_the_creation() {
        let mut member = member(Carries::This, None);
        let available = |member: &Member, now: i64| {
            let members: Members = [(deployment("a"), member.clone())].into();
            let slow = Pace { min_ready: SignedDuration::from_secs(30), ..pace(1) };
            look_with(&mut Rolling::default(), &members, &Owners::new(), slow, now, &|_| None).ready == 1
        };
        member.health.since = Some(at(10));
        assert_eq!([available(&member, 5), available(&member, 39), available(&member, 40)], [false, false, true]);
        member.health.since = Some(at(100_000));
        assert!(available(&member, 5), "it was created more than 30 s ago");
        member.created = Some(at(0));
        assert!(!available(&member, 5) && available(&member, 30));
    }

    /// A time, a duration or a number at the end of its range, or somewhere.
    fn times() -> impl Strategy<Value = Timestamp> {
        prop_oneof![Just(Timestamp::MIN), Just(Timestamp::MAX), (-1000_i64..1000).prop_map(at)]
    }

    fn durations() -> impl Strategy<Value = SignedDuration> {
        let some = (-1000_i64..1000).prop_map(SignedDuration::from_secs);
        prop_oneof![Just(SignedDuration::MIN), Just(SignedDuration::MAX), some]
    }

    prop_compose! {
        fn extreme()(
            version in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
            restarts in prop_oneof![Just(0), Just(u32::MAX), Just(7)],
            (is_ready, is_settled, is_new, is_owned) in any::<(bool, bool, bool, bool)>(),
            (since, created, begun) in (prop::option::of(times()), prop::option::of(times()), prop::option::of(times())),
            grace in durations(),
        ) -> Member {
            let health = Health { is_ready, since, is_settled, grace };
            let carries = if is_new { Carries::This } else { old() };
            Member { version, restarts, health, created, begun, ..member(carries, is_owned.then_some("x")) }
        }
    }

    proptest! {
        /// Whatever workloads, owners and clocks say, a look ends, and touches no more than it may.
        #[test]
        fn no_number_and_no_time_ends_a_look(
            members in prop::collection::vec(extreme(), 0..6),
            desired in prop::collection::vec(prop_oneof![Just(usize::MAX), 0_usize..5], 2),
            (min_ready, deadline) in (durations(), durations()),
            max in prop_oneof![Just(usize::MAX), 0_usize..4],
            (now, restarted, since) in (times(), prop::option::of(times()), times()),
            touched in any::<bool>(),
        ) {
            let members: Members =
                members.into_iter().enumerate().map(|(index, member)| (pod(&format!("p{index}")), member)).collect();
            let owners: Owners = ["x", "y"].into_iter().zip(&desired).map(|(uid, desired)| (uid.into(), owner(*desired))).collect();
            let mut rolling = Rolling::default();
            if touched {
                for (index, (object, member)) in members.iter().enumerate() {
                    rolling.touched(object, member, if index % 2 == 0 { Done::Evicted } else { Done::Patched(member.version) }, now);
                }
            }
            let pace = Pace { max_unavailable: max, min_ready, deadline };
            for _ in 0..2 {
                let look = rolling.look(&Facts {
                    policy: "envoy", members: &members, owners: &owners, update: NEW, revision_of: &|_| NEW, since, restarted, pace,
                    is_in_scope: &|_| true, stuck: &|_| None, now,
                });
                prop_assert!(look.next.len() <= max);
            }
        }
    }

    /// A cluster that makes pods again, and rolls Deployments, in a few seconds.
    struct World {
        members: Members,
        owners: Owners,
        /// What becomes ready at which second.
        coming: Vec<(i64, ObjectRef)>,
        writes: BTreeMap<String, usize>,
        now: i64,
        version: u64,
    }

    impl World {
        fn unavailable(&self) -> usize {
            let unready = self.members.values().filter(|member| !member.health.is_ready).count();
            let missing = self.owners.iter().map(|(uid, owner)| {
                let there = self.members.values().filter(|member| member.owner.as_ref() == Some(uid)).count();
                owner.desired.saturating_sub(there)
            });
            unready + missing.sum::<usize>()
        }

        fn write(&mut self, rolling: Option<&mut Rolling>, object: &ObjectRef, evict: bool, takes: i64) {
            self.version += 1;
            let before = self.members[object].clone();
            *self.writes.entry(format!("{}/{}", object.name, before.uid)).or_default() += 1;
            let done = if evict { Done::Evicted } else { Done::Patched(self.version) };
            if let Some(rolling) = rolling {
                rolling.touched(object, &before, done, at(self.now));
            }
            if evict {
                self.members.remove(object);
                let name = format!("{}-{}", object.name, self.version);
                self.coming.push((self.now + takes, pod(&name)));
                let replacement = Member {
                    uid: name.as_str().into(),
                    version: self.version,
                    health: ready(false, self.now),
                    created: Some(at(self.now)),
                    carries: Carries::This,
                    ..before
                };
                self.members.insert(pod(&name), replacement);
            } else {
                let member = self.members.get_mut(object).unwrap();
                (member.version, member.carries) = (self.version, Carries::This);
                member.health = ready(false, self.now);
                self.coming.push((self.now + takes, object.clone()));
            }
        }

        fn pass(&mut self) {
            self.now += 1;
            self.version += 1;
            let (due, later) = self.coming.drain(..).partition(|(due, _)| *due <= self.now);
            self.coming = later;
            let due: Vec<(i64, ObjectRef)> = due;
            for (_, object) in due {
                let now = self.now;
                if let Some(member) = self.members.get_mut(&object) {
                    (member.health.is_ready, member.health.since, member.version) = (true, Some(at(now)), self.version);
                }
            }
        }
    }

    proptest! {
        /// Whenever the leader dies, also between a write and its record, a new one goes on: nothing is touched twice, and never is
        /// more unavailable than allowed.
        #[test]
        fn a_rollout_keeps_its_promises_through_any_deaths_of_its_leader(
            owners in prop::collection::vec(1usize..4, 0..5),
            deployments in 0usize..6,
            max in 1usize..5,
            steps in prop::collection::vec((0u8..4, 1i64..4, any::<bool>()), 300),
        ) {
            let mut world = World { members: Members::new(), owners: Owners::new(), coming: Vec::new(), writes: BTreeMap::new(), now: 1, version: 10 };
            for (index, desired) in owners.iter().enumerate() {
                let uid = format!("o{index}");
                world.owners.insert(uid.as_str().into(), owner(*desired));
                for at in 0..*desired {
                    world.members.insert(pod(&format!("p{index}-{at}")), member(old(), Some(&uid)));
                }
            }
            world.members.extend((0..deployments).map(|index| (deployment(&format!("d{index}")), member(old(), None))));
            let mut rolling = Rolling::default();
            let mut is_complete = false;
            for (what, takes, evict) in steps {
                if what == 0 {
                    rolling = Rolling::default();
                }
                let seen = look(&mut rolling, &world.members, &world.owners, max, world.now);
                prop_assert_eq!(&seen.failure, &None);
                for object in &seen.next {
                    let evict = evict && object.kind.resource == "pods";
                    let dies = what == 1;
                    world.write((!dies).then_some(&mut rolling), object, evict, takes);
                    prop_assert!(world.unavailable() <= max, "{} of {max}", world.unavailable());
                    if dies {
                        rolling = Rolling::default();
                        break;
                    }
                }
                world.pass();
                is_complete = seen.is_complete;
            }
            prop_assert!(is_complete, "{:?}", look(&mut rolling, &world.members, &world.owners, max, world.now));
            prop_assert!(world.writes.values().all(|writes| *writes == 1), "{:?}", world.writes);
        }
    }
}
