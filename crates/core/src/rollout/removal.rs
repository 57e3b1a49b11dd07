//! Takes the content of a policy that is no longer in effect out of running pods, at the pace of a rollout. Pure.
//!
//! It is the rollout of a revision that adds nothing: [`Machine`] decides who is next, what is unavailable and what has failed. A command
//! of a user drives it instead of a leader. It acts alone, so its record is kept here and not in a revision.

use super::answer::Answer;
use super::facts::{Aim, Leading, Makers, Published, Queries, World};
use super::limit::Evictions;
use super::look::{Failure, Next};
use super::machine::{Action, Event, Machine, Told};
use super::member::{Member, Members, Owners};
use super::pace::Memory;
use super::record::{Commands, MINUTE, Record};
use super::stored::StoredRevision;
use super::words;
use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::api::v1alpha1::{OnFailure, RollingUpdate};
use crate::content::{Content, Revision};
use crate::refit::{Carries, Way};
use crate::workload::{Kind, ObjectRef};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The name of the command in its record.
const COMMAND: &str = "scpol rollout remove";
/// The most records between two looks at the same facts: what is over is closed, what is next is announced, and the end is recorded.
const RECORDS: usize = 8;

/// The removal of one policy.
pub struct Removal {
    state: Machine,
    /// The revision that adds nothing, with the record.
    revision: StoredRevision,
    settings: RollingUpdate,
    limit: Evictions,
    /// The UIDs of the pods that had the content at the beginning.
    known: BTreeSet<Arc<str>>,
}

/// What has been read of the cluster.
pub struct Sight<'a> {
    pub now: Timestamp,
    /// How long a pod waits that the server refused for a reason that may pass.
    pub again: SignedDuration,
    /// The pods that have the content, and the other pods of their owners: see [`Removal::revision`].
    pub members: &'a Members,
    /// Their owners, with the policy among those that match.
    pub owners: &'a Owners,
    /// How many more pods each owner has, by its UID.
    pub beside: &'a HashMap<Arc<str>, usize>,
}

/// What follows from a look.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Evict these pods, and report the answers. What holds the removal up, most important first.
    GoOn { evict: Vec<Next>, waits: Vec<String> },
    /// No pod has the content, and all pods are available again.
    Done,
    /// A pod has failed: nothing more is evicted.
    Failed(Failure),
    /// It cannot go on, because of that.
    Refused(String),
}

impl Removal {
    /// The removal of `policy`, with the pace of `settings` and at most `per_minute` evictions in a minute. It begins `now`.
    pub fn new(policy: &str, settings: RollingUpdate, per_minute: usize, now: Timestamp) -> Self {
        let revision = Arc::new(Revision::new(policy, 1, Content::default()));
        Self {
            state: Machine::default(),
            revision: StoredRevision::new(policy, revision, now, Record::begun(now)),
            settings: RollingUpdate {
                steps: Vec::new(),
                on_failure: OnFailure::Halt,
                // Nobody could resume it.
                failure_threshold: 1,
                ..settings
            },
            limit: Evictions::new(per_minute),
            known: BTreeSet::new(),
        }
    }

    /// Takes the content out of those of `members` that have it. A pod that has it later has got it since.
    pub fn begin(&mut self, members: &Members) {
        self.known = carrying(members).map(|(_, member)| member.uid.clone()).collect();
    }

    /// The revision of every member. One without the content carries it.
    pub fn revision(&self) -> Arc<str> {
        self.revision.revision.hash.as_str().into()
    }

    /// What is known of single pods.
    pub fn memory(&self) -> &Memory {
        self.state.memory()
    }

    /// Records the answer about a pod that was to be evicted.
    pub fn answered(&mut self, next: &Next, member: &Member, answer: Answer, now: Timestamp) {
        if next.may_evict && answer.is_no_eviction() {
            self.limit.note_unused(next.announced.unwrap_or(now).as_second());
        }
        self.state.step(Event::Answered { object: &next.object, member, answer, now });
    }

    /// Looks at everything once.
    pub fn look(&mut self, seen: &Sight<'_>) -> Step {
        // Any author may mark a pod. One that came in place of an evicted pod tells more.
        let evicted = &self.revision.record.progress.evicted;
        let is_in_place = |member: &Member| member.owner.as_ref().is_some_and(|owner| evicted.contains_key(&**owner));
        let is_back = |member: &Member| {
            let is_new = member.created.is_some_and(|created| created >= self.revision.created);
            is_new && is_in_place(member) && !self.known.contains(&member.uid)
        };
        let brought_back = carrying(seen.members).find(|(_, member)| is_back(member));
        if let Some((object, _)) = brought_back {
            let message = "it is new, and has the content again: the policy is still in effect somewhere".to_owned();
            return Step::Failed(Failure { object: object.clone(), code: Code::ReplacementMissed, message });
        }
        let kinds = [Kind::find("", "pods").expect("it is built in").clone()];
        for _ in 0..RECORDS {
            let now = seen.now.as_second();
            let begun = self.revision.record.progress.evictions_since(now - MINUTE);
            let world = World {
                aim: Aim {
                    policy: &self.revision.policy,
                    kinds: &kinds,
                    update: &self.revision.revision.hash,
                    published: Published { is_in_force: true, earlier: None },
                },
                leader: Leading { name: COMMAND, evictions: self.limit.left(begun, now), again: seen.again },
                now: seen.now,
                settings: &self.settings,
                is_paused: false,
                revisions: std::slice::from_ref(&self.revision),
                commands: Commands::default(),
                members: Some(seen.members),
                makers: Ok(Makers { owners: seen.owners, beside: seen.beside, busy: &BTreeMap::new() }),
                namespaces: None,
                queries: Queries {
                    stuck: &|_| None,
                    by_hand: &|_| None,
                    way: &|_, _| Way::Evict,
                    rejection: &|_| None,
                },
            };
            let outcome = self.state.step(Event::Look(&world));
            let mut look = outcome.look.unwrap_or_default();
            let first = (!look.failures.is_empty()).then(|| look.failures.swap_remove(0));
            let (mut evict, mut is_recorded) = (Vec::new(), false);
            for action in outcome.actions {
                match action {
                    Action::Record(_, record) => {
                        self.revision.record = *record;
                        is_recorded = true;
                    }
                    Action::Update(next) => evict.push(next),
                    Action::Tell(Told::Complete(_)) => return Step::Done,
                    Action::Tell(Told::Halted(why)) => return first.map_or(Step::Refused(why), Step::Failed),
                }
            }
            match outcome.progress {
                _ if is_recorded => {}
                Some(Progress::Halted(why)) => return Step::Refused(why),
                _ => return Step::GoOn { evict, waits: told(look.waits) },
            }
        }
        Step::GoOn { evict: Vec::new(), waits: Vec::new() }
    }
}

fn carrying(members: &Members) -> impl Iterator<Item = (&ObjectRef, &Member)> {
    members.iter().filter(|(_, member)| member.carries != Carries::This)
}

/// What holds a rollout up, as a removal says it: its limit is not that of the operator.
fn told(waits: Vec<String>) -> Vec<String> {
    let own =
        |why: String| if why == words::LIMITED { "the limit of evictions (`--rollouts`)".to_owned() } else { why };
    waits.into_iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::MaxUnavailable;
    use crate::rollout::{Done, Health, Owner, Why};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// A cluster whose controllers make a pod anew at once.
    struct Scene {
        removal: Removal,
        members: Members,
        owners: Owners,
        beside: HashMap<Arc<str>, usize>,
        now: i64,
        /// Whether new pods have the content, and whether they are ready.
        again: (bool, bool),
    }

    impl Scene {
        /// ReplicaSets, each with so many pods that have the content.
        fn new(sets: &[(&str, usize)], max_unavailable: i32, per_minute: usize) -> Self {
            let settings = RollingUpdate {
                max_unavailable: MaxUnavailable::Count(max_unavailable),
                min_ready_seconds: 5,
                progress_deadline_seconds: 60,
                ..RollingUpdate::default()
            };
            let removal = Removal::new("envoy", settings, per_minute, at(0));
            let (members, owners, beside) = (Members::new(), Owners::new(), HashMap::new());
            let mut scene = Self { removal, members, owners, beside, now: 0, again: (false, true) };
            for (set, pods) in sets {
                scene.owners.insert((*set).into(), Owner::replica_set("envoy", set, *pods, at(-100)));
                (0..*pods).for_each(|number| scene.add(set, &format!("{set}-{number}"), -100, (true, true)));
            }
            scene.removal.begin(&scene.members);
            scene
        }

        fn add(&mut self, set: &str, name: &str, created: i64, (has_it, is_ready): (bool, bool)) {
            let since = Some(at(created));
            let member = Member {
                uid: name.into(),
                version: 1,
                revision: self.removal.revision(),
                carries: if has_it { Carries::Other("1".into()) } else { Carries::This },
                health: Health::settled(is_ready, since),
                created: since,
                owner: Some(set.into()),
                begun: since,
                restarts: Vec::new(),
                place: crate::policy::extent::Place::default(),
            };
            self.members.insert(pod(name), member);
        }

        fn look(&mut self) -> Step {
            let Self { members, owners, beside, .. } = self;
            let again = SignedDuration::from_secs(10);
            self.removal.look(&Sight { now: at(self.now), again, members, owners, beside })
        }

        /// What is to be evicted now.
        fn next(&mut self) -> Vec<Next> {
            match self.look() {
                Step::GoOn { evict, .. } => evict,
                step => panic!("{step:?}"),
            }
        }

        fn names(&mut self) -> Vec<String> {
            self.next().into_iter().map(|next| next.object.name).collect()
        }

        fn waits(&mut self) -> String {
            match self.look() {
                Step::GoOn { waits, .. } => waits.join("; "),
                step => panic!("{step:?}"),
            }
        }

        fn answer(&mut self, next: &Next, answer: Answer) {
            let member = self.members[&next.object].clone();
            self.removal.answered(next, &member, answer, at(self.now));
        }

        /// Evicts, and makes another pod.
        fn evict(&mut self, next: &Next) {
            self.answer(next, Answer::Done(Done::Evicted));
            let old = self.members.remove(&next.object).unwrap();
            let (set, now, again) = (old.owner.unwrap(), self.now, self.again);
            self.add(&set, &format!("{set}-at-{now}"), now, again);
        }

        fn carrying(&self) -> usize {
            carrying(&self.members).count()
        }
    }

    fn pod(name: &str) -> ObjectRef {
        ObjectRef::new(Kind::find("", "pods").unwrap(), ("shop", name))
    }

    #[test]
    fn pods_are_evicted_one_of_each_owner_at_a_time_until_none_has_the_content() {
        for (sets, max_unavailable, per_minute) in [
            (&[("a", 3), ("b", 2)][..], 1, 60),
            (&[("a", 3), ("b", 2)], 2, 60),
            (&[("a", 3), ("b", 2)], 100, 60),
            (&[("a", 30)], 100, 60),
            (&[("a", 2), ("b", 2), ("c", 2)], 100, 2),
        ] {
            let mut scene = Scene::new(sets, max_unavailable, per_minute);
            let (mut evicted, mut most) = (Vec::new(), 0);
            for second in 0..1000 {
                scene.now = second;
                if scene.carrying() == 0 && scene.look() == Step::Done {
                    break;
                }
                let next = scene.next();
                let owners: BTreeSet<_> = next.iter().map(|next| next.owner.clone()).collect();
                assert_eq!(owners.len(), next.len(), "two pods of one owner");
                for next in &next {
                    evicted.push(second);
                    scene.evict(next);
                }
                let min_ready = |member: &&Member| member.health.since.unwrap() > at(second - 5);
                most = most.max(scene.members.values().filter(min_ready).count());
            }
            let pods: usize = sets.iter().map(|(_, pods)| pods).sum();
            assert_eq!((evicted.len(), scene.carrying()), (pods, 0), "{sets:?}");
            assert!(most <= usize::try_from(max_unavailable).unwrap(), "{most} were unavailable of {sets:?}");
            let in_a_minute = |from: &i64| evicted.iter().filter(|at| (0..60).contains(&(*at - from))).count();
            assert!(evicted.iter().map(in_a_minute).max().unwrap() <= per_minute, "{evicted:?}");
        }
    }

    #[test]
    fn what_a_budget_blocks_is_passed_by_and_tried_again_and_costs_no_eviction() {
        let mut scene = Scene::new(&[("a", 1), ("b", 1)], 1, 1);
        let [next] = scene.next().try_into().unwrap();
        assert_eq!(next.object.name, "a-0");
        scene.answer(&next, Answer::Blocked("budget none".into()));
        let [next] = scene.next().try_into().unwrap();
        assert_eq!(next.object.name, "b-0");
        scene.evict(&next);
        scene.now = 9;
        assert!(scene.waits().starts_with("SCP0415: shop/a-0: budget none; it waits since 1970-01-12T13:46:40Z"));
        assert_eq!(scene.removal.memory().waits().map(|(_, since, _)| since).collect::<Vec<_>>(), [at(0)]);
        scene.now = 30;
        assert_eq!(scene.names(), [""; 0], "one eviction in a minute");
        assert!(scene.waits().contains("the limit of evictions (`--rollouts`)"), "{}", scene.waits());
        // The minute begins when the eviction is known to be over.
        scene.now = 90;
        let [next] = scene.next().try_into().unwrap();
        scene.evict(&next);
        scene.now = 100;
        assert_eq!(scene.look(), Step::Done);
    }

    #[test]
    fn a_pod_that_its_author_marks_ends_nothing() {
        let mut scene = Scene::new(&[("a", 1), ("b", 1)], 1, 60);
        scene.members.get_mut(&pod("b-0")).unwrap().carries = Carries::This;
        scene.removal.begin(&scene.members);
        assert_eq!(scene.names(), ["a-0"]);
        scene.members.get_mut(&pod("b-0")).unwrap().carries = Carries::Unreadable;
        scene.add("b", "b-1", 0, (true, true));
        assert!(matches!(scene.look(), Step::GoOn { .. }));
    }

    #[test]
    fn a_replacement_that_is_not_ready_in_time_ends_it_and_one_that_was_broken_before_does_not() {
        let mut scene = Scene::new(&[("a", 2)], 1, 60);
        scene.again = (false, false);
        let [next] = scene.next().try_into().unwrap();
        scene.evict(&next);
        for second in [1, 60] {
            scene.now = second;
            assert_eq!(scene.names(), [""; 0], "it waits for the other pod");
        }
        scene.now = 61;
        let Step::Failed(failure) = scene.look() else { panic!("{:?}", scene.look()) };
        assert_eq!((failure.object.name.as_str(), failure.code), ("a-at-0", Code::ReplacementNotReady));

        let mut scene = Scene::new(&[("a", 1)], 1, 60);
        let health = &mut scene.members.get_mut(&pod("a-0")).unwrap().health;
        *health = Health { is_ready: false, ..*health };
        scene.again = (false, false);
        let [next] = scene.next().try_into().unwrap();
        scene.evict(&next);
        scene.now = 100;
        assert_eq!(scene.look(), Step::Done);
    }

    #[test]
    fn a_controller_that_makes_no_new_pod_ends_it() {
        let mut scene = Scene::new(&[("a", 2), ("b", 1)], 1, 60);
        let [next] = scene.next().try_into().unwrap();
        scene.answer(&next, Answer::Done(Done::Evicted));
        scene.members.remove(&next.object);
        assert_eq!(scene.names(), [""; 0]);
        scene.now = 60;
        assert_eq!(scene.names(), [""; 0]);
        scene.now = 61;
        let Step::Failed(failure) = scene.look() else { panic!("{:?}", scene.look()) };
        assert_eq!((failure.object, failure.code), (pod("a-0"), Code::ReplacementNotReady));
    }

    #[test]
    fn a_new_pod_with_the_content_ends_it_in_the_second_of_the_eviction() {
        // A StatefulSet gives the new pod the name of the old one.
        for name in ["a-at-0", "a-0"] {
            let mut scene = Scene::new(&[("a", 2)], 1, 60);
            let [next] = scene.next().try_into().unwrap();
            scene.answer(&next, Answer::Done(Done::Evicted));
            scene.members.remove(&next.object);
            scene.add("a", name, 0, (true, true));
            scene.members.get_mut(&pod(name)).unwrap().uid = "again".into();
            for second in [0, 30] {
                scene.now = second;
                let Step::Failed(failure) = scene.look() else { panic!("{:?}", scene.look()) };
                assert_eq!((failure.object.name.as_str(), failure.code), (name, Code::ReplacementMissed));
            }
        }
    }

    #[test]
    fn what_is_left_and_what_is_refused_ends_it() {
        let mut scene = Scene::new(&[("a", 1)], 1, 60);
        let [next] = scene.next().try_into().unwrap();
        let left = Why { code: Code::RolloutOptedOut, message: "no".into() };
        scene.answer(&next, Answer::Left(1, left));
        assert_eq!(scene.look(), Step::Done);
        assert_eq!(scene.removal.memory().left().count(), 1);

        let mut scene = Scene::new(&[("a", 1)], 1, 60);
        let [next] = scene.next().try_into().unwrap();
        scene.answer(&next, Answer::Refused("cannot create pods/eviction".into()));
        assert_eq!(scene.look(), Step::Refused("SCP0304: cannot create pods/eviction".into()));
    }

    #[test]
    fn pods_that_are_not_to_be_evicted_are_there() {
        let mut scene = Scene::new(&[("a", 1)], 1, 60);
        scene.owners.get_mut("a").unwrap().desired = 3;
        assert_eq!(scene.names(), [""; 0], "two pods are missing");
        scene.beside.insert("a".into(), 2);
        assert_eq!(scene.names(), ["a-0"]);
    }

    #[test]
    fn nothing_to_do_is_done() {
        assert_eq!(Scene::new(&[], 1, 60).look(), Step::Done);
    }
}
