//! Stories of rollouts, as tables of events: each was told of the code as it was once, and ended wrong there. One file has
//! the stories of one room.

mod announced;
mod available;
mod begin;
mod failure;
mod left;
mod machine;
mod next;
mod spare;

use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::api::v1alpha1::{MaxUnavailable, RollingUpdate};
use crate::content::{Content, Revision};
use crate::policy::extent::Place;
use crate::policy::{Policy, Site};
use crate::refit::{Carries, Way};
use crate::rollout::answer::{Answer, Done, Why};
use crate::rollout::facts::{Aim, Busy, Leading, Makers, Published, Queries, Unknown, World};
use crate::rollout::health::Health;
use crate::rollout::look::Next;
use crate::rollout::machine::{Action, Event, Machine, Outcome, Told};
use crate::rollout::member::{Member, Members, Owner, Owners};
use crate::rollout::record::{Commands, Record};
use crate::rollout::steps::Reached;
use crate::rollout::stored::{Begin, StoredRevision, holds};
use crate::workload::{Kind, ObjectRef};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const OLD: &str = "envoy:1";
const NEW: &str = "envoy:2";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn content(image: &str) -> Content {
    serde_json::from_value(json!({ "template": { "containers": [{ "name": "envoy", "image": image }] } })).unwrap()
}

fn hash(image: &str) -> String {
    content(image).hash()
}

/// A policy that rolls out.
fn policy(image: &str, on_failure: &str) -> Arc<Policy> {
    let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "onFailure": on_failure } });
    let spec = json!({ "template": content(image).template, "updateStrategy": strategy });
    let policy = json!({ "metadata": { "name": "envoy", "uid": "u" }, "spec": spec });
    Arc::new(Policy::parse(&policy, &Site::new("scpol-system", [], [])).unwrap())
}

/// A revision whose rollout began and ended at the second `ended`; none if it goes on since the second 0.
fn stored(number: i64, image: &str, ended: Option<i64>) -> StoredRevision {
    let record = ended.map_or(Record::begun(at(0)), |ended| Record::complete(at(ended), at(ended)));
    StoredRevision::new(
        "envoy",
        Arc::new(Revision::new("envoy", number, content(image))),
        at(ended.unwrap_or(0)),
        record,
    )
}

fn object(kind: (&str, &str), name: &str) -> ObjectRef {
    let (namespace, name) = name.split_once('/').unwrap_or(("shop", name));
    ObjectRef::new(Kind::find(kind.0, kind.1).unwrap(), (namespace, name))
}

fn pod(name: &str) -> ObjectRef {
    object(("", "pods"), name)
}

fn deployment(name: &str) -> ObjectRef {
    object(("apps", "deployments"), name)
}

fn stateful_set(name: &str) -> ObjectRef {
    object(("apps", "statefulsets"), name)
}

/// A policy in a cluster, and its leader.
struct Scene {
    state: Machine,
    leader: &'static str,
    revisions: Vec<StoredRevision>,
    members: Option<Members>,
    owners: Result<Owners, Unknown>,
    beside: HashMap<Arc<str>, usize>,
    busy: Busy,
    namespaces: Option<BTreeMap<String, Arc<Value>>>,
    settings: RollingUpdate,
    commands: Commands,
    update: String,
    is_in_force: bool,
    evictions: usize,
    stuck: BTreeSet<ObjectRef>,
    by_hand: BTreeSet<ObjectRef>,
    way: Way,
    now: i64,
}

impl Scene {
    /// A rollout from [`OLD`] to [`NEW`] that has just begun.
    fn new() -> Self {
        let namespace = |name: &str| (name.to_owned(), Arc::new(json!({ "metadata": { "name": name } })));
        Self {
            state: Machine::default(),
            leader: "one",
            revisions: vec![stored(1, OLD, Some(-500)), stored(2, NEW, None)],
            members: Some(Members::new()),
            owners: Ok(Owners::new()),
            beside: HashMap::new(),
            busy: Busy::new(),
            namespaces: Some(["canary", "shop"].map(namespace).into()),
            settings: RollingUpdate::default(),
            commands: Commands::default(),
            update: hash(NEW),
            is_in_force: true,
            evictions: 60,
            stuck: BTreeSet::new(),
            by_hand: BTreeSet::new(),
            way: Way::Template,
            now: 1,
        }
    }

    fn max_unavailable(mut self, count: i32) -> Self {
        self.settings.max_unavailable = MaxUnavailable::Count(count);
        self
    }

    fn steps(mut self, steps: Value) -> Self {
        self.settings.steps = serde_json::from_value(steps).unwrap();
        self.record().reached = Some(Reached::begin(&hash(OLD), at(0)));
        self
    }

    fn record(&mut self) -> &mut Record {
        &mut self.revisions.last_mut().unwrap().record
    }

    /// Adds a workload that has the `image`.
    fn has(&mut self, object: &ObjectRef, image: &str) -> &mut Member {
        self.has_at(&Place::default(), object, image)
    }

    /// The same with a place in the steps.
    fn has_at(&mut self, place: &Place, object: &ObjectRef, image: &str) -> &mut Member {
        let earlier = self.earlier(&object.namespace, place);
        let wanted = if earlier { hash(&self.revisions.first().unwrap().image()) } else { self.update.clone() };
        let carries = if hash(image) == wanted { Carries::This } else { Carries::Other(image.into()) };
        let member = Member {
            uid: format!("{}-{}", object.name, self.now).into(),
            version: 1,
            revision: wanted.into(),
            carries,
            health: Health::settled(true, Some(at(-100))),
            created: Some(at(-100)),
            owner: None,
            begun: Some(at(-100)),
            restarts: Vec::new(),
            place: place.clone(),
        };
        let members = self.members.get_or_insert_default();
        members.insert(object.clone(), member);
        members.get_mut(object).unwrap()
    }

    /// Adds a ReplicaSet with so many pods that have the `image`.
    fn replica_set(&mut self, name: &str, pods: usize, image: &str) {
        self.owners.as_mut().unwrap().insert(name.into(), Owner::replica_set("envoy", name, pods, at(-100)));
        for number in 0..pods {
            self.has(&pod(&format!("{name}-{number}")), image).owner = Some(name.into());
        }
        self.way = Way::Evict;
    }

    fn owner(&mut self, uid: &str) -> &mut Owner {
        self.owners.as_mut().unwrap().get_mut(uid).unwrap()
    }

    /// Another one is a member no more.
    fn gone(&mut self, object: &ObjectRef) -> Member {
        self.members.as_mut().unwrap().remove(object).unwrap()
    }

    fn member(&mut self, object: &ObjectRef) -> &mut Member {
        self.members.as_mut().unwrap().get_mut(object).unwrap()
    }

    /// Whether a workload of that namespace and place is to have the first revision.
    fn earlier(&self, namespace: &str, place: &Place) -> bool {
        let reached = self.revisions.last().and_then(|last| last.record.reached.as_ref());
        reached
            .is_some_and(|reached| holds(reached, &self.settings.steps) && !reached.extent.has_place(namespace, place))
    }

    /// What the leader does at one look.
    fn look(&mut self) -> Outcome {
        let kinds = [("", "pods"), ("apps", "deployments"), ("apps", "statefulsets")];
        let kinds = kinds.map(|(group, name)| Kind::find(group, name).unwrap().clone());
        let reached = self.revisions.last().and_then(|last| last.record.reached.clone());
        let reached = reached.filter(|reached| holds(reached, &self.settings.steps));
        let earlier = reached.as_ref().map(|reached| (reached.from.as_str(), &reached.extent));
        let makers = |owners| Makers { owners, beside: &self.beside, busy: &self.busy };
        let world = World {
            aim: Aim {
                policy: "envoy",
                kinds: &kinds,
                update: &self.update,
                published: Published { is_in_force: self.is_in_force, earlier },
            },
            leader: Leading { name: self.leader, evictions: self.evictions, again: SignedDuration::from_secs(10) },
            now: at(self.now),
            settings: &self.settings,
            is_paused: false,
            revisions: &self.revisions,
            commands: self.commands,
            members: self.members.as_ref(),
            makers: self.owners.as_ref().map(makers).map_err(Clone::clone),
            namespaces: self.namespaces.as_ref(),
            queries: Queries {
                stuck: &|object| self.stuck.contains(object).then(|| "ImagePullBackOff".to_owned()),
                by_hand: &|object| self.by_hand.contains(object).then(|| format!("delete a pod of {}", object.name)),
                way: &|_, _| self.way,
                rejection: &|_| None,
            },
        };
        self.state.step(Event::Look(&world))
    }

    /// Looks, and writes what is to be recorded, until nothing is. Returns the last outcome, and all news.
    fn turn(&mut self) -> (Outcome, Vec<Told>) {
        let mut news = Vec::new();
        for _ in 0..20 {
            let outcome = self.look();
            let mut is_written = false;
            for action in &outcome.actions {
                match action {
                    Action::Record(_, record) => {
                        *self.record() = (**record).clone();
                        is_written = true;
                    }
                    Action::Tell(told) => news.push(told.clone()),
                    Action::Update(_) => {}
                }
            }
            if !is_written {
                return (outcome, news);
            }
        }
        panic!("it writes for ever");
    }

    /// What it updates at one turn.
    fn next(&mut self) -> Vec<Next> {
        let outcome = self.turn().0;
        let updates = outcome.actions.into_iter().filter_map(|action| match action {
            Action::Update(next) => Some(next),
            _ => None,
        });
        updates.collect()
    }

    /// The names of what it updates at one turn.
    fn updates(&mut self) -> Vec<String> {
        self.next().into_iter().map(|next| next.object.name).collect()
    }

    /// The rollout of the `image` begins, which no workload has.
    fn begin_anew(&mut self, image: &str) {
        let before = self.update.clone();
        self.begin(image);
        for member in self.members.as_mut().unwrap().values_mut() {
            (member.revision, member.carries) = (self.update.as_str().into(), Carries::Other(before.clone()));
            member.version += 1;
        }
    }

    fn said(&mut self) -> String {
        match self.turn().0.progress.unwrap() {
            Progress::NewRevision(message) => format!("NewRevision {message}"),
            Progress::RollingOut(message) => format!("RollingOut {message}"),
            Progress::Paused(message) => format!("Paused {message}"),
            Progress::Halted(message) => format!("Halted {message}"),
            Progress::Complete(message) => format!("Complete {message}"),
        }
    }

    /// What it says at one turn begins so, and has what comes after `.. `.
    #[track_caller]
    fn says(&mut self, expected: &str) {
        let said = self.said();
        let (start, parts) = expected.split_once("..").unwrap_or((expected, ""));
        let has_all = parts.split(" .. ").all(|part| said.contains(part.trim()));
        assert!(said.starts_with(start.trim_end()) && has_all, "{said}");
    }

    fn answer(&mut self, object: &ObjectRef, answer: Answer) {
        let member = self.members.as_ref().unwrap()[object].clone();
        let now = at(self.now);
        self.state.step(Event::Answered { object, member: &member, answer, now });
    }

    /// Patches a workload, as the watch shows it.
    fn patch(&mut self, object: &ObjectRef) {
        let version = self.member(object).version + 1;
        self.answer(object, Answer::Done(Done::Patched(version)));
        let member = self.member(object);
        (member.version, member.carries) = (version, Carries::This);
    }

    /// Evicts a pod, in whose place its owner makes another one with the `image`.
    fn evict(&mut self, object: &ObjectRef, image: &str) -> ObjectRef {
        self.answer(object, Answer::Done(Done::Evicted));
        let old = self.gone(object);
        self.now += 2;
        let again = pod(&format!("{}-again{}", object.name, self.now));
        let now = self.now;
        let member = self.has(&again, image);
        (member.owner, member.created, member.begun) = (old.owner, Some(at(now)), Some(at(now)));
        member.health.since = Some(at(now));
        again
    }

    /// The rollout of the `image` begins.
    fn begin(&mut self, image: &str) {
        let begin = Begin::of(&policy(image, "Halt"), &self.revisions, self.commands, at(self.now)).unwrap();
        let revision = StoredRevision { record: begin.record, ..stored(begin.number, image, None) };
        self.revisions.retain(|stored| stored.revision.hash != hash(image));
        self.revisions.push(revision);
        self.update = hash(image);
    }

    /// Another leader, which knows what is stored.
    fn new_leader(&mut self) {
        (self.state, self.leader) = (Machine::default(), "two");
    }
}

impl Member {
    /// It is not ready since that second.
    fn down(&mut self, since: i64) -> &mut Self {
        self.health = Health { is_ready: false, since: Some(at(since)), ..self.health };
        self
    }
}

fn left(code: Code) -> Answer {
    Answer::Left(1, Why { code, message: "opted out".into() })
}

impl StoredRevision {
    fn image(&self) -> String {
        self.revision.content.template.containers[0]["image"].as_str().unwrap().to_owned()
    }
}
