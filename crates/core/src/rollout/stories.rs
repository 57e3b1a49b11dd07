//! Stories of rollouts, as tables of events: each was told of the code before the state machine, and ended wrong there.

use super::answer::{Answer, Done, Why};
use super::facts::{Aim, Busy, Leading, Makers, Published, Queries, Unknown, World};
use super::machine::{Action, Event, Machine, Outcome, Told};
use super::member::{Health, Member, Members, Owner, Owners};
use super::record::{Commands, Halted, Record, Write};
use super::steps::Reached;
use super::stored::{Begin, StoredRevision, holds, split};
use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::api::v1alpha1::{MaxUnavailable, OnFailure, RollingUpdate};
use crate::content::{Content, Revision};
use crate::policy::extent::Place;
use crate::policy::{Policy, Site};
use crate::refit::{Carries, Way};
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
        let kinds =
            [("", "pods"), ("apps", "deployments")].map(|(group, name)| Kind::find(group, name).unwrap().clone());
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

    /// The names of what it updates at one turn.
    fn updates(&mut self) -> Vec<String> {
        let outcome = self.turn().0;
        let updates = outcome.actions.iter().filter_map(|action| match action {
            Action::Update(next) => Some(next.object.name.clone()),
            _ => None,
        });
        updates.collect()
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

#[test]
fn what_has_not_been_compared_is_not_complete() {
    let mut scene = Scene::new();
    scene.members = None;
    scene.says("NewRevision what it matches is being compared");
    scene.members = Some(Members::new());
    scene.is_in_force = false;
    scene.says("NewRevision it waits until this revision is in force");
    scene.is_in_force = true;
    scene.owners = Err(Unknown::Reading);
    scene.says("NewRevision reading what makes pods");
    scene.owners = Err(Unknown::Forbidden("no".into()));
    scene.says("Halted SCP0304: no");
    scene.owners = Ok(Owners::new());
    // Members that were compared with another revision.
    scene.has(&deployment("a"), NEW).revision = hash(OLD).into();
    scene.says("NewRevision what it matches is being compared");
    scene.has(&deployment("a"), NEW);
    let (outcome, news) = scene.turn();
    assert!(matches!(outcome.progress, Some(Progress::Complete(_))), "{outcome:?}");
    assert!(matches!(news.as_slice(), [Told::Complete(_)]));
    assert_eq!((scene.record().complete, scene.record().progress.times.ended), (Some(at(1)), Some(at(1))));
}

#[test]
fn a_finished_rollout_never_fails() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.says("Complete");
    // Weeks later a registry is away, a node is lost, and the ReplicaSet grows.
    scene.now += 1_000_000;
    scene.stuck.insert(again.clone());
    scene.member(&again).health.is_ready = false;
    scene.member(&again).restarts = vec![("envoy".into(), 99)];
    scene.owner("web").desired = 5;
    for _ in 0..2 {
        let said = scene.said();
        assert!(said.starts_with("Complete") && scene.record().progress.halted.is_none(), "{said}");
        scene.new_leader();
    }
}

#[test]
fn a_revision_that_is_deleted_in_the_middle_takes_no_count_with_it() {
    let mut scene = Scene::new();
    let bad = pod("a");
    let health = &mut scene.has(&bad, NEW).health;
    (health.is_ready, health.since) = (false, Some(at(1)));
    scene.has(&deployment("b"), OLD);
    // The rollout begins again a deadline later, from what is left.
    scene.now = 700;
    scene.revisions.truncate(1);
    scene.begin(NEW);
    assert_eq!(scene.updates(), [""; 0], "the one that may be unavailable is");
    scene.now += 601;
    scene.says("Halted pods shop/a: SCP0416");
    // Back to a content that was complete: a workload that had it before, and broke long ago, does not count.
    scene.begin(OLD);
    let member = scene.member(&bad);
    (member.revision, member.carries, member.health.since) = (hash(OLD).into(), Carries::This, Some(at(-5000)));
    let member = scene.member(&deployment("b"));
    (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("new".into()));
    scene.now += 1;
    assert_eq!(scene.updates(), ["b"]);
}

#[test]
fn an_undo_goes_back_although_pods_were_evicted() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.settings.on_failure = OnFailure::Undo;
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.member(&again).health.is_ready = false;
    scene.stuck.insert(again.clone());
    let (outcome, news) = scene.turn();
    assert!(matches!(news.as_slice(), [Told::Halted(_)]), "{news:?}");
    let reached = scene.record().reached.clone().unwrap();
    assert_eq!((reached.undone, &reached.from), (true, &hash(OLD)));
    // All workloads are to have the old one now, and have been compared with it.
    drop(outcome);
    let member = scene.member(&again);
    (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("bad".into()));
    scene.now += 1;
    assert_eq!(scene.updates(), std::slice::from_ref(&again.name));
    let said = scene.said();
    assert!(said.contains("going back") && !said.contains("has the revision before again"), "{said}");
    let back = scene.evict(&again, OLD);
    scene.stuck.clear();
    let said = scene.said();
    assert!(
        said.starts_with("Halted pods shop/web-0-again3: SCP0416") && said.contains("has the revision before again"),
        "{said}"
    );
    assert_eq!(scene.member(&back).carries, Carries::This);
}

#[test]
fn a_second_restart_makes_all_pods_anew() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, NEW);
    scene.says("Complete");
    let mut name = pod("web-0");
    for _ in 0..2 {
        scene.now += 10;
        scene.commands.restarted = Some(at(scene.now));
        scene.now += 1;
        assert_eq!(scene.updates(), std::slice::from_ref(&name.name));
        scene.says(".. ; 1 are to be made anew");
        name = scene.evict(&name, NEW);
        scene.says("Complete");
    }
    // An image that is away fails the restart, too: else it would take all pods.
    scene.now += 10;
    scene.commands.restarted = Some(at(scene.now));
    scene.now += 1;
    assert_eq!(scene.updates(), std::slice::from_ref(&name.name));
    let name = scene.evict(&name, NEW);
    scene.member(&name).health.is_ready = false;
    scene.stuck.insert(name);
    scene.says("Halted");
}

#[test]
fn a_halt_and_a_resume_outlive_the_leader() {
    let mut scene = Scene::new();
    scene.commands.resumed = Some(at(-50));
    scene.record().progress.followed.resumed = Some(at(-50));
    scene.has(&deployment("a"), NEW).down(1);
    scene.has(&deployment("b"), OLD);
    scene.stuck.insert(deployment("a"));
    scene.says("Halted");
    for resumed in [Some(at(-50)), None, Some(at(-60))] {
        // `kubectl replace` and `kubectl apply` of an old manifest are no resume.
        scene.new_leader();
        scene.commands.resumed = resumed;
        scene.stuck.clear();
        scene.says("Halted");
        assert_eq!(scene.updates(), [""; 0]);
    }
    // Between two leaders.
    scene.new_leader();
    scene.stuck.insert(deployment("a"));
    scene.commands.resumed = Some(at(5));
    scene.now = 700;
    scene.member(&deployment("a")).health.since = Some(at(1));
    // It has its time again.
    scene.says("RollingOut");
    scene.now = 1200;
    scene.says("RollingOut");
    scene.stuck.clear();
    scene.now = 1301;
    scene.says("Halted deployments.apps shop/a: SCP0416: it is not ready after 10m");
}

#[test]
fn a_resume_ends_a_pause_and_is_followed_once() {
    let mut scene = Scene::new().steps(json!([{ "pause": {} }, { "namespaces": ["canary"] }, { "pause": {} }]));
    scene.has(&deployment("canary/a"), NEW);
    scene.has(&deployment("b"), OLD);
    scene.says("Paused step 1 is a pause until");
    scene.commands.resumed = Some(at(2));
    scene.now = 3;
    scene.turn();
    scene.has(&deployment("canary/a"), NEW);
    scene.says("Paused step 3");
    scene.new_leader();
    scene.commands.resumed = None;
    scene.says("Paused step 3");
    // A workload that somebody creates meanwhile ends no pause before it is ready.
    scene.has(&deployment("canary/new"), NEW).health.is_ready = false;
    scene.says("Paused step 3");
    scene.member(&deployment("canary/new")).health.is_ready = true;
    scene.commands.resumed = Some(at(4));
    scene.turn();
    assert!(scene.record().reached.as_ref().unwrap().step >= 3);
    // Somebody appends a step: all namespaces have the revision, and keep it.
    scene.settings.steps.extend(scene.settings.steps.clone());
    assert!(!scene.earlier("shop", &Place::default()));
}

#[test]
fn steps_by_workload_update_no_other_and_hold_none_that_they_have_reached() {
    let mut scene = Scene::new().max_unavailable(9).steps(json!([
        { "workloadSelector": { "matchLabels": { "track": "canary" } } }, { "pause": {} }, { "percentOfWorkloads": 30 },
        { "pause": {} },
    ]));
    let place = |track: &str, bucket: u8| Place { labels: Arc::new([("track".into(), track.into())].into()), bucket };
    // Three workloads of one namespace, each in another step.
    let all = [("a", place("canary", 95)), ("b", place("", 29)), ("c", place("", 30))];
    // Has the watches show them, compared with what each is to have now. The first ones have the latest content.
    let see = |scene: &mut Scene, latest: usize| {
        for (number, (name, place)) in all.iter().enumerate() {
            let image = if number < latest { NEW } else { OLD };
            scene.has_at(place, &deployment(name), image);
        }
    };
    let not_compared = "NewRevision what it matches is being compared";
    see(&mut scene, 0);
    scene.says(not_compared);
    see(&mut scene, 0);
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    scene.says("Paused step 2");
    see(&mut scene, 1);
    scene.commands.resumed = Some(at(2));
    scene.says(not_compared);
    see(&mut scene, 1);
    // A new leader knows from the record.
    scene.new_leader();
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("b"));
    scene.says("Paused step 4");
    // An edit of the steps that are over takes nothing back.
    let edited = json!([
        { "workloadSelector": { "matchLabels": { "track": "other" } } }, { "pause": {} }, { "percentOfWorkloads": 1 },
        { "pause": {} },
    ]);
    scene.settings.steps = serde_json::from_value(edited).unwrap();
    scene.says("Paused step 4");
    assert_eq!(all.each_ref().map(|(_, place)| scene.earlier("shop", place)), [false, false, true]);
    scene.commands.resumed = Some(at(3));
    scene.turn();
    see(&mut scene, 2);
    assert_eq!(scene.updates(), ["c"], "the others follow after the last step");
}

#[test]
fn unknown_namespaces_finish_no_step() {
    let mut scene = Scene::new().steps(json!([{ "namespaces": ["canary"] }, { "pause": {} }]));
    scene.namespaces = None;
    scene.says("RollingOut reading the Namespaces");
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 0);
}

#[test]
fn one_announced_write_after_the_other_counts_for_every_leader() {
    let mut scene = Scene::new().max_unavailable(2);
    for name in ["a", "b", "c", "d"] {
        scene.has(&deployment(name), OLD);
    }
    assert_eq!(scene.updates(), ["a", "b"]);
    // That leader sleeps before, within or after both requests. The next one takes the same two.
    scene.new_leader();
    assert_eq!(scene.updates(), ["a", "b"]);
    scene.patch(&deployment("a"));
    scene.member(&deployment("a")).health.is_ready = false;
    assert_eq!(scene.updates(), ["b"], "it counts until it is ready");
    scene.answer(&deployment("b"), Answer::Failed("no answer".into()));
    assert_eq!(scene.updates(), [""; 0], "it may have happened");
    scene.member(&deployment("a")).health.is_ready = true;
    assert_eq!(scene.updates(), ["c"]);
    scene.now += 11;
    assert_eq!(scene.updates(), ["b", "c"]);
}

#[test]
fn what_another_leader_may_still_do_keeps_its_place_although_we_cannot_do_it() {
    let mut scene = Scene::new();
    scene.replica_set("one", 1, OLD);
    scene.replica_set("two", 1, OLD);
    assert_eq!(scene.updates(), ["one-0"]);
    scene.new_leader();
    assert_eq!(scene.updates(), ["one-0"]);
    scene.answer(&pod("one-0"), Answer::Blocked("none".into()));
    assert_eq!(scene.updates(), [""; 0]);
    scene.now += 601;
    assert_eq!(scene.updates(), ["two-0"], "what was refused comes last");
}

#[test]
fn a_budget_holds_nobody_else_up() {
    let mut scene = Scene::new();
    scene.replica_set("one", 2, OLD);
    scene.replica_set("two", 1, OLD);
    assert_eq!(scene.updates(), ["one-0"]);
    scene.answer(&pod("one-0"), Answer::Blocked("the budget none".into()));
    assert_eq!(scene.updates(), ["two-0"], "nor is the other pod of the same owner asked for");
    scene.says(".. SCP0415: shop/one-0: the budget none; it waits since");
    scene.now += 11;
    scene.evict(&pod("two-0"), NEW);
    assert_eq!(scene.updates(), ["one-0"]);
}

#[test]
fn in_place_only_the_limit_counts_and_evictions_of_an_owner_go_one_by_one() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("web", 5, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("web", 5, OLD);
    scene.way = Way::InPlace;
    assert_eq!(scene.updates(), ["web-0", "web-1", "web-2"]);
    assert!(scene.record().progress.evictions.is_empty());
    scene.patch(&pod("web-0"));
    scene.answer(&pod("web-1"), Answer::NeedsEviction(1, "the server rejects it".into()));
    let outcome = scene.turn().0;
    let next = outcome.actions.iter().find_map(|action| match action {
        Action::Update(next) if next.object.name == "web-1" => Some(next.may_evict),
        _ => None,
    });
    assert_eq!(next, None, "not while another pod of its owner is changed");
    scene.patch(&pod("web-2"));
    scene.now += 1;
    let chosen = scene.updates();
    assert!(chosen.contains(&"web-1".to_owned()), "{chosen:?}");
    assert_eq!(scene.record().progress.evictions.values().sum::<u32>(), 1);
}

#[test]
fn no_eviction_is_begun_beyond_the_limit_and_none_is_replaced_by_a_reason_to_stop() {
    let mut scene = Scene::new().max_unavailable(5);
    for name in ["a", "b", "c"] {
        scene.replica_set(name, 1, OLD);
    }
    scene.evictions = 2;
    assert_eq!(scene.updates(), ["a-0", "b-0"]);
    scene.evictions = 0;
    scene.evict(&pod("a-0"), NEW);
    scene.evict(&pod("b-0"), NEW);
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(".. the limit of evictions of the operator");
    scene.evictions = 60;
    assert_eq!(scene.updates(), ["c-0"]);
}

#[test]
fn what_was_broken_before_goes_first_and_halts_nobody() {
    let mut scene = Scene::new();
    for name in ["a", "b"] {
        scene.has(&deployment(name), OLD);
    }
    scene.has(&deployment("c"), OLD).down(-9000);
    assert_eq!(scene.updates(), ["a", "c"], "it costs nobody anything");
    scene.patch(&deployment("c"));
    scene.now = 900;
    assert_eq!(scene.updates(), ["a"]);
    scene.says(".. 1 were not ready before the rollout began");
    scene.new_leader();
    scene.patch(&deployment("a"));
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("b"));
    scene.says("Complete 3 of 3");
}

#[test]
fn a_sidecar_that_does_not_start_is_a_failure_also_where_something_was_broken_before() {
    let mut scene = Scene::new();
    scene.has(&deployment("c"), OLD).down(-9000);
    assert_eq!(scene.updates(), ["c"]);
    scene.patch(&deployment("c"));
    scene.stuck.insert(deployment("c"));
    scene.says("Halted");
}

#[test]
fn a_template_that_is_put_back_again_and_again_is_left() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), OLD);
    let mut patches = 0;
    while scene.updates() == ["a"] {
        patches += 1;
        assert!(patches < 9, "for ever");
        scene.patch(&deployment("a"));
        let member = scene.member(&deployment("a"));
        (member.version, member.carries) = (member.version + 1, Carries::Other("old".into()));
        scene.now += 1;
    }
    assert_eq!(patches, 4, "once, and three times more");
    assert_eq!(scene.updates(), ["b"]);
    let left: Vec<_> = scene.state.memory().left().map(|(_, left)| left.message.clone()).collect();
    assert!(left[0].contains("somebody has put it back"), "{left:?}");
}

#[test]
fn one_container_may_restart_three_times_and_another_one_too() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.way = Way::InPlace;
    assert_eq!(scene.updates(), ["web-0"]);
    scene.patch(&pod("web-0"));
    let member = scene.member(&pod("web-0"));
    member.health.is_ready = false;
    member.restarts = vec![("a".into(), 4), ("b".into(), 4)];
    // The update itself is one of each.
    scene.says("RollingOut");
    scene.member(&pod("web-0")).restarts[1].1 = 5;
    scene.says(".. its sidecar has been restarted 4 times");
}

#[test]
fn a_pod_that_opts_out_is_not_missing_and_one_whose_owner_is_unknown_is_not_touched() {
    let mut scene = Scene::new();
    scene.replica_set("web", 2, OLD);
    scene.gone(&pod("web-1"));
    assert_eq!(scene.updates(), [""; 0], "one of two is missing");
    scene.beside.insert("web".into(), 1);
    assert_eq!(scene.updates(), ["web-0"]);
    scene.evict(&pod("web-0"), NEW);
    scene.says("Complete");

    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    let owner = scene.owners.as_mut().unwrap().remove("web").unwrap();
    assert_eq!(scene.updates(), [""; 0]);
    scene.says("RollingOut .. waits for the owner of 1 pods");
    scene.owners.as_mut().unwrap().insert("web".into(), owner);
    assert_eq!(scene.updates(), ["web-0"]);
}

#[test]
fn a_rollout_that_is_switched_on_begins_then() {
    let mut scene = Scene::new();
    scene.record().progress = super::record::Course::default();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), NEW).down(50);
    scene.now = 9000;
    assert_eq!(scene.updates(), ["a"], "what broke while nothing was rolled out is no failure");
    assert_eq!(scene.record().progress.times.begun, Some(at(9000)));
}

#[test]
fn whoever_changes_what_is_left_all_the_time_holds_nobody_up() {
    let mut scene = Scene::new();
    let others = [pod("aaa/a"), pod("aaa/b"), pod("aaa/c")];
    for object in &others {
        scene.has(object, OLD);
    }
    scene.has(&deployment("shop/web"), OLD);
    scene.way = Way::InPlace;
    for object in &others {
        assert_eq!(scene.updates(), std::slice::from_ref(&object.name));
        scene.answer(object, left(Code::RolloutOptedOut));
    }
    // Each of them is another version by now, and may be tried again.
    scene.now += 20;
    for object in &others {
        scene.member(object).version = 9;
    }
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&deployment("shop/web"));
    scene.says("Complete 1 of 4 workloads have this revision .. 3 are left");
}

#[test]
fn a_pod_whose_owner_keeps_none_is_left_and_an_owner_with_too_many_is_named() {
    let mut scene = Scene::new();
    scene.replica_set("gone", 1, OLD);
    scene.owner("gone").desired = 0;
    scene.has(&deployment("web"), OLD);
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&deployment("web"));
    scene.says("Complete 1 of 2 .. 1 are left");

    let mut scene = Scene::new();
    scene.replica_set("web", 2, OLD);
    scene.owner("web").desired = 1;
    scene.says(".. waits until ReplicaSet/web has no more pods than it wants");
}

#[test]
fn a_replacement_that_came_without_the_revision_is_known_in_the_second_of_the_eviction() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.now = 10;
    assert_eq!(scene.updates(), ["web-0"]);
    // The clock of the server is behind ours.
    scene.now = 7;
    let again = scene.evict(&pod("web-0"), OLD);
    scene.member(&again).health.is_ready = false;
    scene.now = 11;
    scene.says(&format!("Halted pods shop/{}: SCP0417", again.name));
}

#[test]
fn an_owner_with_a_pod_that_is_left_is_whole_and_its_later_lack_fails_nobody() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.replica_set("web", 2, OLD);
    scene.replica_set("api", 2, OLD);
    scene.gone(&pod("api-1"));
    scene.beside.insert("api".into(), 1);
    assert_eq!(scene.updates(), ["api-0", "web-0"]);
    scene.evict(&pod("api-0"), NEW);
    scene.evict(&pod("web-0"), NEW);
    assert_eq!(scene.updates(), ["web-1"]);
    scene.answer(&pod("web-1"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    assert!(scene.record().progress.evicted.is_empty(), "{:?}", scene.record().progress.evicted);
}

#[test]
fn a_workload_younger_than_the_rollout_fails_under_the_next_leader_too() {
    let mut scene = Scene::new();
    let web = deployment("web");
    scene.has(&web, OLD).created = Some(at(5));
    scene.now = 10;
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&web);
    scene.member(&web).health = Health { is_ready: false, since: Some(at(11)), ..scene.member(&web).health };
    scene.stuck.insert(web);
    scene.new_leader();
    scene.now = 30;
    scene.says("Halted deployments.apps shop/web: SCP0416");
}

#[test]
fn what_the_server_gave_no_answer_about_is_tried_again_once_it_changes() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.settings.progress_deadline_seconds = 30;
    for _ in 0..5 {
        if scene.updates().is_empty() {
            break;
        }
        scene.answer(&deployment("a"), Answer::Failed("500".into()));
        scene.now += 11;
    }
    let left: Vec<_> = scene.state.memory().left().map(|(_, left)| left.code).collect();
    assert_eq!(left, [Code::ServerAway]);
    scene.member(&deployment("a")).version += 1;
    scene.now += 11;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn an_answer_that_no_news_of_the_watch_follows_holds_no_place_for_ever() {
    for answer in [Answer::Changed(1), Answer::NotNeeded(None)] {
        let mut scene = Scene::new().max_unavailable(1);
        scene.has(&deployment("a"), OLD);
        scene.has(&deployment("b"), OLD);
        assert_eq!(scene.updates(), ["a"]);
        scene.answer(&deployment("a"), answer.clone());
        scene.now += 9;
        assert_eq!(scene.updates(), [""; 0], "{answer:?}: the watch may be behind");
        scene.now += 2;
        assert_eq!(scene.updates(), ["a"], "{answer:?}");
        // A new edit does not help, and the place is free if nothing is to be done.
        scene.answer(&deployment("a"), answer.clone());
        scene.begin("envoy:3");
        for member in scene.members.as_mut().unwrap().values_mut() {
            member.revision = hash("envoy:3").into();
        }
        scene.now += 11;
        assert_eq!(scene.updates(), ["a"], "{answer:?}");
        scene.answer(&deployment("a"), answer.clone());
        scene.member(&deployment("a")).carries = Carries::This;
        scene.now += 11;
        assert_eq!(scene.updates(), ["b"], "{answer:?}");
    }
}

#[test]
fn two_policies_do_not_evict_two_pods_of_one_owner_together() {
    let scene = |updated: &str| {
        let mut scene = Scene::new().max_unavailable(5);
        scene.replica_set("web", 2, OLD);
        scene.replica_set("api", 1, OLD);
        scene.has(&pod(updated), NEW).owner = Some("web".into());
        scene
    };
    let evicting = |scene: &mut Scene| {
        let (record, now) = (scene.record().clone(), at(scene.now));
        scene.state.evicting(&record, scene.members.as_ref().unwrap(), now)
    };
    // One policy lacks one pod of the owner, and the other policy the other.
    let (mut one, mut other) = (scene("web-0"), scene("web-1"));
    assert_eq!(one.updates(), ["api-0", "web-1"]);
    other.busy = evicting(&mut one);
    assert_eq!(other.busy.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["api", "web"]);
    assert_eq!(other.updates(), [""; 0]);
    other.says(".. another policy has evicted a pod of ReplicaSet/api");
    // An answer says that it was no eviction.
    one.answer(&pod("api-0"), Answer::Blocked("budget none".into()));
    other.busy = evicting(&mut one);
    assert_eq!(other.updates(), ["api-0"]);
    // The pod may be gone, which the watch does not show yet; and then it does.
    one.answer(&pod("web-1"), Answer::Done(Done::Evicted));
    assert_eq!(evicting(&mut one).len(), 1);
    one.gone(&pod("web-1"));
    assert!(evicting(&mut one).is_empty());
    other.gone(&pod("web-1"));
    other.busy.clear();
    assert_eq!(other.updates(), ["api-0"], "its owner lacks it");
    other.evict(&pod("api-0"), NEW);
    other.has(&pod("web-2"), NEW).owner = Some("web".into());
    assert_eq!(other.updates(), ["web-0"]);
    // Two leaders have announced one each: the first one goes on.
    other.new_leader();
    let announced = other.record().progress.writes["pods/shop/web-0"].at;
    for (busy, expected) in [(announced - SignedDuration::from_secs(1), &[][..] as &[&str]), (announced, &["web-0"])] {
        other.busy = Busy::from([("web".into(), busy)]);
        assert_eq!(other.updates(), expected);
    }
    // What a halt keeps from being done holds up no other policy for ever, and waits for the others then.
    other.busy.clear();
    assert!(evicting(&mut other).contains_key("web"));
    other.now += 600;
    assert!(evicting(&mut other).is_empty());
    other.busy = Busy::from([("web".into(), at(other.now))]);
    assert!(!other.updates().contains(&"web-0".to_owned()));
}

#[test]
fn what_is_left_is_tried_again_after_minutes_and_not_all_of_it_at_once() {
    let mut scene = Scene::new().max_unavailable(200);
    let name = |number: usize| deployment(&format!("a{number:03}"));
    for number in 0..100 {
        scene.has(&name(number), OLD);
    }
    let mut tried: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for _ in 0..900 {
        for update in scene.updates() {
            scene.answer(&deployment(&update), left(Code::RolloutOptedOut));
            tried.entry(update).or_default().push(scene.now);
        }
        scene.now += 1;
    }
    let times = |name: &ObjectRef| tried[&name.name].as_slice();
    assert_eq!(times(&name(0))[..2], [1, 301]);
    assert!((0..100).all(|number| (3..=4).contains(&times(&name(number)).len())), "{tried:?}");
    for minute in 2..15 {
        let all = tried.values().flatten().filter(|second| (minute * 60..minute * 60 + 60).contains(*second));
        assert!(all.count() <= 30, "in the minute {minute}");
    }
    scene.says("Complete");
    scene.patch(&name(7));
    scene.says("Complete 1 of 100");
}

#[test]
fn a_pod_that_names_the_owner_of_another_namespace_hides_no_lack_and_fails_nobody() {
    let mut scene = Scene::new();
    scene.replica_set("web", 2, OLD);
    let foreign = object(("", "pods"), "canary/other");
    scene.has(&foreign, OLD).owner = Some("web".into());
    assert_eq!(scene.updates(), ["web-0"], "it has no pod too many");
    let again = scene.evict(&pod("web-0"), NEW);
    let now = scene.now;
    scene.has(&foreign, OLD).owner = Some("web".into());
    scene.member(&foreign).created = Some(at(now + 1));
    scene.now += 60;
    assert_eq!(scene.updates(), ["web-1"]);
    scene.gone(&again);
    assert_eq!(scene.updates(), [""; 0], "its owner lacks one");
    scene.says(".. which lacks 1");
}

#[test]
fn what_is_left_and_has_changed_goes_back_too_and_no_pause_keeps_it() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.settings.steps = serde_json::from_value(json!([{ "namespaces": ["shop"] }, { "pause": {} }])).unwrap();
    scene.record().reached = Some(Reached::begin(&hash(OLD), at(0)));
    scene.record().reached.as_mut().unwrap().extent = crate::policy::extent::Extent::of_namespaces(["shop".to_owned()]);
    scene.member(&deployment("a")).revision = hash(NEW).into();
    scene.member(&deployment("a")).carries = Carries::Other("old".into());
    assert_eq!(scene.updates(), ["a"]);
    scene.answer(&deployment("a"), left(Code::RolloutOptedOut));
    scene.now += 1;
    scene.says("Paused step 2 is a pause");
    scene.member(&deployment("a")).version = 9;
    scene.now += 20;
    assert_eq!(scene.updates(), ["a"], "the annotation is gone");
    scene.patch(&deployment("a"));

    scene.settings.on_failure = OnFailure::Undo;
    scene.stuck.insert(deployment("a"));
    scene.member(&deployment("a")).health.is_ready = false;
    scene.turn();
    let member = scene.member(&deployment("a"));
    (member.revision, member.carries) = (hash(OLD).into(), Carries::Other("bad".into()));
    scene.now += 1;
    assert_eq!(scene.updates(), ["a"]);
    scene.answer(&deployment("a"), left(Code::RolloutOptedOut));
    scene.says(".. it has gone back, but 1 are left as they are");
    scene.member(&deployment("a")).version = 20;
    scene.now += 20;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn a_pod_on_a_node_where_its_daemonset_makes_none_is_not_evicted() {
    let mut scene = Scene::new().max_unavailable(5);
    scene.replica_set("agent", 3, OLD);
    let owner = scene.owner("agent");
    (owner.kind, owner.desired, owner.astray) = ("DaemonSet", 2, 1);
    scene.says("Complete 0 of 3 .. 3 are left");
    // A change in place takes no pod away, and a restart does.
    for (restarted, expected) in [(None, &["agent-0", "agent-1", "agent-2"][..]), (Some(at(0)), &[])] {
        let mut scene = Scene::new().max_unavailable(5);
        scene.replica_set("agent", 3, OLD);
        let owner = scene.owner("agent");
        (owner.kind, owner.desired, owner.astray) = ("DaemonSet", 2, 1);
        scene.way = Way::InPlace;
        scene.commands.restarted = restarted;
        assert_eq!(scene.updates(), expected);
    }
}

#[test]
fn what_was_broken_with_the_same_template_is_broken_before() {
    let mut scene = Scene::new();
    scene.revisions.truncate(1);
    // Only what is done with Jobs is another: each workload has the template already.
    let own = json!({ "template": content(OLD).template, "jobs": "Refuse" });
    let own: Content = serde_json::from_value(own).unwrap();
    let spec = json!({ "template": own.template, "jobs": "Refuse", "updateStrategy": { "type": "RollingUpdate" } });
    let object = json!({ "metadata": { "name": "envoy", "uid": "u" }, "spec": spec });
    let policy = Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap();
    let begin = Begin::of(&policy, &scene.revisions, Commands::default(), at(0)).unwrap();
    assert!(!begin.record.progress.is_new);
}

#[test]
fn the_reason_of_the_content_before_fails_nobody() {
    let mut scene = Scene::new();
    scene.way = Way::InPlace;
    let web = pod("web");
    scene.has(&web, OLD);
    assert_eq!(scene.updates(), ["web"]);
    scene.patch(&web);
    // The kubelet has not looked yet: the image of before could not be pulled.
    scene.stuck.insert(web.clone());
    let health = &mut scene.member(&web).health;
    (health.is_ready, health.is_settled, health.grace) = (false, false, SignedDuration::from_secs(30));
    scene.now = 8;
    scene.says("RollingOut");
    scene.member(&web).health.is_settled = true;
    // It is the reason of this content now.
    scene.says("Halted");
}

#[test]
fn what_is_left_is_told_and_not_tried_again_until_it_changes() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    assert_eq!(scene.updates(), ["a"]);
    scene.answer(&deployment("a"), left(Code::ContentEdited));
    scene.says("Complete 0 of 1 workloads have this revision, 1 of them are ready; 1 are left");
    scene.member(&deployment("a")).version = 2;
    scene.now += 1;
    assert_eq!(scene.updates(), [""; 0], "a status may change every second");
    scene.now += 10;
    assert_eq!(scene.updates(), ["a"], "it may be possible now");
}

#[test]
fn going_back_to_a_content_of_long_ago_begins_now() {
    let revisions = [stored(1, OLD, Some(-90_000)), stored(2, NEW, None)];
    let begin = Begin::of(&policy(OLD, "Halt"), &revisions, Commands::default(), at(7)).unwrap();
    let progress = &begin.record.progress;
    assert_eq!((begin.number, progress.times.begun, progress.times.ended), (3, Some(at(7)), None));
    assert!(begin.record.complete >= Some(at(-90_000)), "new workloads get it at once");

    // An undo holds, whatever the policy says about failures later.
    let mut undone = revisions;
    undone[1].record.reached = Some(Reached::begin(&hash(OLD), at(1)).undo(at(2)));
    undone[1].record.progress.halted = Some(Halted { at: at(1), message: "bad".into() });
    let own: Vec<&StoredRevision> = undone.iter().collect();
    for on_failure in ["Undo", "Halt"] {
        let split = split(&policy(NEW, on_failure), &own, None, |_| true).unwrap();
        assert_eq!(split.earlier().unwrap().revision(), Some(hash(OLD).as_str()), "{on_failure}");
    }
    // Nor does it end with the earlier revision, as long as anybody knows it.
    let gone = [&undone[1]];
    assert!(split(&policy(NEW, "Halt"), &gone, None, |_| true).is_none());
    let kept = split(&policy(NEW, "Halt"), &gone, Some(&policy(OLD, "Halt")), |_| true).unwrap();
    assert_eq!(kept.earlier().unwrap().revision(), Some(hash(OLD).as_str()));
}

#[test]
fn a_write_of_an_earlier_rollout_counts_in_the_next() {
    let policy = policy("envoy:3", "Halt");
    let mut revisions = vec![stored(1, OLD, Some(-500)), stored(2, NEW, None)];
    let write = Write { uid: "u".into(), at: at(1), by: "one".into(), evict: false };
    revisions[1].record.progress.writes.insert("deployments.apps/shop/a".into(), write);
    let begin = Begin::of(&policy, &revisions, Commands::default(), at(7)).unwrap();
    assert_eq!(begin.record.progress.writes.len(), 1);
}

#[test]
fn the_hash_of_a_content_is_what_is_stored_already() {
    // If this changes, the names of all stored revisions do: a new field of a content must not be written by default.
    assert_eq!(hash(OLD), "c29d4718f830471a");
}

#[test]
fn what_is_broken_outside_the_steps_halts_nobody_and_holds_no_step() {
    for is_stuck in [false, true] {
        let steps = json!([{ "namespaces": ["canary"] }, { "pause": {} }]);
        let mut scene = Scene::new().max_unavailable(2).steps(steps);
        scene.has(&deployment("canary/a"), OLD);
        scene.has(&deployment("b"), OLD).down(1);
        if is_stuck {
            scene.stuck.insert(deployment("b"));
        }
        scene.turn();
        scene.has(&deployment("canary/a"), OLD);
        scene.now = 900;
        assert_eq!(scene.updates(), ["a"], "{is_stuck}");
        scene.patch(&deployment("canary/a"));
        scene.says("Paused step 2");
    }
}

#[test]
fn what_has_the_revision_and_was_broken_before_halts_nobody_and_counts_no_more() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), NEW).down(-9000);
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    scene.now = 5000;
    scene.says("Complete");
    // One that broke a moment before counts, and is no failure of the rollout either.
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), NEW).down(-1);
    assert_eq!(scene.updates(), [""; 0]);
    scene.now = 5000;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn a_pod_that_comes_back_without_the_revision_is_a_failure_and_after_the_end_it_is_left() {
    let mut scene = Scene::new();
    scene.replica_set("db", 1, OLD);
    assert_eq!(scene.updates(), ["db-0"]);
    // A StatefulSet gives its pod the same name again.
    let owner = scene.member(&pod("db-0")).owner.clone();
    let again = |scene: &mut Scene, image: &str| {
        scene.answer(&pod("db-0"), Answer::Done(Done::Evicted));
        scene.gone(&pod("db-0"));
        scene.now += 2;
        let now = scene.now;
        let member = scene.has(&pod("db-0"), image);
        (member.owner, member.created, member.begun) = (owner.clone(), Some(at(now)), Some(at(now)));
    };
    again(&mut scene, OLD);
    scene.says("Halted pods shop/db-0: SCP0417");
    // The same by another leader, and a resume is one more attempt.
    scene.new_leader();
    scene.says("Halted");
    scene.now += 10;
    scene.commands.resumed = Some(at(scene.now));
    assert_eq!(scene.updates(), ["db-0"]);
    again(&mut scene, NEW);
    scene.says("Complete");

    // Somebody deletes the pod while the webhook is away: one more eviction, and no more.
    again(&mut scene, OLD);
    assert_eq!(scene.updates(), ["db-0"]);
    for _ in 0..3 {
        again(&mut scene, OLD);
        assert_eq!(scene.updates(), [""; 0]);
        let left: Vec<_> = scene.state.memory().left().map(|(_, left)| left.code).collect();
        assert_eq!(left, [Code::ReplacementMissed]);
        scene.new_leader();
    }
}

#[test]
fn a_broken_pod_does_not_wait_for_those_that_its_controller_makes_after_it() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.owner("web").desired = 3;
    scene.member(&pod("web-0")).health.is_ready = false;
    assert_eq!(scene.updates(), ["web-0"]);
    let mut scene = Scene::new().max_unavailable(5);
    scene.replica_set("web", 1, OLD);
    scene.owner("web").desired = 3;
    assert_eq!(scene.updates(), [""; 0], "one that serves waits");
}

#[test]
fn one_that_does_not_recover_holds_no_broken_one_up() {
    // A StatefulSet does not replace a broken pod by itself, and its status does not say since when it is not ready.
    let mut scene = Scene::new();
    for name in ["a", "b"] {
        let broken = scene.has(&deployment(name), OLD);
        broken.health = Health { is_ready: false, since: None, ..broken.health };
    }
    assert_eq!(scene.updates(), ["a", "b"], "neither serves anybody");
    scene.patch(&deployment("a"));
    scene.now += 100;
    assert_eq!(scene.updates(), ["b"]);
}

#[test]
fn a_pod_that_is_not_made_again_is_a_failure_for_every_leader() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    scene.answer(&pod("web-0"), Answer::Done(Done::Evicted));
    scene.members.as_mut().unwrap().clear();
    scene.now = 500;
    scene.says("RollingOut");
    scene.new_leader();
    scene.says("RollingOut");
    scene.now = 1101;
    scene.says("Halted pods shop/web-0: SCP0416: ReplicaSet/web has made no new pod");
    scene.commands.resumed = Some(at(1103));
    scene.now = 1104;
    // A resume gives it as much time again.
    scene.says("RollingOut");
    scene.now = 1705;
    scene.says("Halted");
}

#[test]
fn an_owner_that_lacks_pods_for_another_reason_holds_no_end_up() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.has(&deployment("a"), OLD);
    scene.replica_set("other", 1, NEW);
    scene.owner("other").desired = 2;
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    scene.says("Complete");
    // Nor does one count that could make none long before the rollout.
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.replica_set("other", 1, NEW);
    let other = scene.owner("other");
    other.desired = 2;
    assert_eq!(scene.updates(), [""; 0]);
    scene.owner("other").fails_since = Some(at(-9000));
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn one_about_which_the_server_gives_no_answer_is_left_after_the_deadline() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    scene.has(&deployment("b"), OLD);
    assert_eq!(scene.updates(), ["a"]);
    while scene.now < 590 {
        scene.answer(&deployment("a"), Answer::Failed("webhook \"x\" has failed".into()));
        let said = scene.said();
        assert!(said.contains("SCP0313: shop/a: webhook") && !said.contains("SCP0415"), "{said}");
        scene.now += 11;
        assert_eq!(scene.updates(), ["a"]);
    }
    scene.now += 20;
    scene.answer(&deployment("a"), Answer::Failed("webhook \"x\" has failed".into()));
    assert_eq!(scene.updates(), [""; 0], "the last attempt may have had its effect");
    scene.now += 11;
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("b"));
    scene.says(".. 1 are left as they are");
}

#[test]
fn each_namespace_has_its_limit() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Count(1));
    for name in ["canary/a", "canary/b", "shop/a", "shop/b"] {
        scene.has(&deployment(name), OLD);
    }
    assert_eq!(scene.updates(), ["a", "a"], "one of each");
    scene.new_leader();
    assert_eq!(scene.updates(), ["a", "a"], "they are announced");
    scene.patch(&deployment("canary/a"));
    scene.patch(&deployment("shop/a"));
    scene.member(&deployment("shop/a")).health.is_ready = false;
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("canary/b"));
    scene.says(".. 1 are unavailable in shop and maxUnavailablePerNamespace is 1: deployments.apps shop/a");
    // Of the workloads of the namespace, not of all.
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Percentage("100%".into()));
    assert_eq!(scene.updates(), ["b"]);
    // A pod that an owner of the namespace lacks counts there.
    let mut scene = Scene::new().max_unavailable(9);
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Count(1));
    scene.has(&deployment("shop/a"), OLD);
    scene.has(&deployment("canary/a"), OLD);
    scene.replica_set("web", 1, NEW);
    scene.owner("web").desired = 2;
    let outcome = scene.turn().0;
    let places = outcome.actions.iter().filter_map(|action| match action {
        Action::Update(next) => Some(next.object.namespace.clone()),
        _ => None,
    });
    assert_eq!(places.collect::<Vec<_>>(), ["canary"]);
}

#[test]
fn a_failure_holds_its_namespace_until_so_many_have_failed_that_the_rollout_halts() {
    let mut scene = Scene::new().max_unavailable(4);
    scene.settings.max_unavailable_per_namespace = Some(MaxUnavailable::Count(1));
    scene.settings.failure_threshold = 2;
    for name in ["canary/a", "canary/b", "shop/a", "shop/b", "shop/c"] {
        scene.has(&deployment(name), OLD);
    }
    assert_eq!(scene.updates(), ["a", "a"]);
    let fails = |scene: &mut Scene, name: &str| {
        scene.patch(&deployment(name));
        let now = scene.now;
        scene.member(&deployment(name)).down(now);
        scene.stuck.insert(deployment(name));
    };
    fails(&mut scene, "canary/a");
    scene.patch(&deployment("shop/a"));
    assert_eq!(scene.updates(), ["b"], "in shop alone");
    // Also for the next leader, and if the workload is well again: only a person lets it go on.
    scene.new_leader();
    scene.stuck.clear();
    scene.member(&deployment("canary/a")).health.is_ready = true;
    scene.patch(&deployment("shop/b"));
    assert_eq!(scene.updates(), ["c"]);
    scene.patch(&deployment("shop/c"));
    let said = scene.said();
    let told = "deployments.apps/canary/a failed: 1 more of the same namespaces wait for `scpol rollout resume`";
    assert!(said.starts_with("RollingOut 4 of 5") && said.contains(told), "{said}");
    scene.commands.resumed = Some(at(scene.now));
    assert_eq!(scene.updates(), ["b"]);
    // It counts anew from there.
    fails(&mut scene, "canary/b");
    scene.says("RollingOut");
    fails(&mut scene, "shop/a");
    let said = scene.said();
    assert!(
        said.starts_with("Halted 2 workloads have failed, the last of them deployments.apps shop/a: SCP0416"),
        "{said}"
    );
}

#[test]
fn an_owner_with_more_pods_than_it_is_known_to_want_waits() {
    let mut scene = Scene::new();
    scene.replica_set("web", 3, OLD);
    scene.owner("web").desired = 2;
    assert_eq!(scene.updates(), [""; 0], "the watch of the owners is behind, or one pod is about to go");
    scene.owner("web").desired = 3;
    assert_eq!(scene.updates(), ["web-0"]);
}

#[test]
fn a_pod_that_is_moved_long_after_its_eviction_fails_nothing() {
    let mut scene = Scene::new().steps(json!([{ "namespaces": ["shop"] }, { "pause": {} }]));
    scene.turn();
    scene.replica_set("web", 1, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.says("Paused step 2");
    scene.now = 5000;
    scene.gone(&again);
    for _ in 0..2 {
        // Somebody drains its node.
        scene.says("Paused step 2");
        scene.new_leader();
        scene.now += 1;
    }
}

#[test]
fn each_owner_that_makes_no_pod_again_is_a_failure() {
    let mut scene = Scene::new().max_unavailable(5);
    scene.settings.failure_threshold = 2;
    for name in ["a", "b"] {
        scene.replica_set(name, 1, OLD);
    }
    assert_eq!(scene.updates(), ["a-0", "b-0"]);
    for name in ["a-0", "b-0"] {
        scene.answer(&pod(name), Answer::Done(Done::Evicted));
        scene.gone(&pod(name));
    }
    scene.says("RollingOut");
    scene.now = 700;
    scene.says("Halted 2 workloads have failed");
}

#[test]
fn a_young_pod_that_was_evicted_can_fail() {
    let mut scene = Scene::new();
    scene.replica_set("web", 1, OLD);
    scene.owner("web").created = Some(at(1));
    scene.member(&pod("web-0")).created = Some(at(1));
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    scene.member(&again).health.is_ready = false;
    scene.stuck.insert(again);
    scene.says("Halted");
}

#[test]
fn what_waits_for_a_resume_holds_a_pause_and_one_resume_ends_one_of_them() {
    let steps = json!([{ "namespaces": ["canary"] }, { "pause": { "duration": "60s" } }, { "pause": {} }]);
    let mut scene = Scene::new().max_unavailable(4).steps(steps);
    scene.settings.failure_threshold = 3;
    scene.turn();
    scene.has(&deployment("canary/a"), NEW);
    scene.says("Paused step 2");
    scene.has(&deployment("canary/b"), OLD);
    scene.has(&deployment("canary/a"), NEW).down(1);
    scene.stuck.insert(deployment("canary/a"));
    scene.now = 500;
    scene.says("RollingOut");
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 1, "the pause is over, and something waits");
    scene.stuck.clear();
    scene.has(&deployment("canary/a"), NEW);
    scene.commands.resumed = Some(at(500));
    assert_eq!(scene.updates(), ["b"]);
    scene.patch(&deployment("canary/b"));
    // It begins again.
    scene.says("Paused step 2");
    scene.now += 60;
    scene.says("Paused step 3");
}

#[test]
fn an_owner_that_cannot_make_pods_keeps_those_that_it_has() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("web", 3, OLD);
    scene.gone(&pod("web-2"));
    scene.owner("web").fails_since = Some(at(-1000));
    assert_eq!(scene.updates(), [""; 0]);
    scene.says("Complete 0 of 2 .. 2 are left");
}

#[test]
fn what_an_owner_lacks_counts_also_if_its_template_does_not_match() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.replica_set("db", 3, OLD);
    scene.owner("db").policies.clear();
    assert_eq!(scene.updates(), ["db-0"]);
    scene.answer(&pod("db-0"), Answer::Done(Done::Evicted));
    scene.gone(&pod("db-0"));
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(".. ReplicaSet/db, which lacks 1");
}

#[test]
fn a_moment_without_readiness_is_no_failure_long_after_the_update() {
    let mut scene = Scene::new();
    scene.now = 7200;
    let health = scene.has(&deployment("a"), NEW).health;
    let uid = scene.member(&deployment("a")).uid.to_string();
    scene.has(&deployment("b"), OLD);
    assert_eq!(scene.updates(), ["b"]);
    scene.answer(&deployment("b"), Answer::Blocked("no".into()));
    let write = Write { uid, at: at(1), by: "one".into(), evict: false };
    scene.record().progress.writes.insert("deployments.apps/shop/a".into(), write);
    for (is_ready, is_settled, since) in [(false, true, Some(7195)), (false, true, None), (true, false, Some(-100))] {
        scene.member(&deployment("a")).health = Health { is_ready, is_settled, since: since.map(at), ..health };
        let said = scene.said();
        assert!(said.starts_with("RollingOut"), "{since:?}: {said}");
        scene.member(&deployment("a")).health = health;
        scene.turn();
    }
    scene.member(&deployment("a")).health = Health { is_ready: false, since: None, ..health };
    scene.turn();
    scene.now += 601;
    scene.answer(&deployment("b"), Answer::Blocked("no".into()));
    scene.says("Halted");
}

#[test]
fn a_resume_after_a_failure_ends_no_timed_pause_and_neither_does_time_while_something_is_not_ready() {
    let mut scene = Scene::new()
        .steps(json!([{ "namespaces": ["canary"] }, { "pause": { "duration": "30m" } }, { "percent": 100 }]));
    let canary = deployment("canary/a");
    scene.has(&canary, OLD);
    scene.has(&deployment("b"), OLD);
    scene.turn();
    let hash = hash(NEW);
    let member = scene.member(&canary);
    (member.revision, member.carries) = (hash.into(), Carries::Other(OLD.into()));
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&canary);
    scene.says("Paused step 2 is a pause");
    scene.now = 600;
    let ready = scene.member(&canary).health;
    scene.member(&canary).health = Health { is_ready: false, since: Some(at(600)), ..ready };
    scene.stuck.insert(canary.clone());
    scene.says("Halted");
    scene.now = 40_000;
    scene.commands.resumed = Some(at(40_000));
    scene.stuck.clear();
    scene.turn();
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 1);
    scene.now += 1800;
    scene.member(&canary).health = Health { is_ready: false, since: Some(at(scene.now - 5)), ..ready };
    scene.says(".. waits for what is not ready: deployments.apps canary/a");
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 1, "its canary is not ready");
    scene.member(&canary).health = Health { since: Some(at(scene.now)), ..ready };
    scene.turn();
    assert_eq!(scene.record().reached.as_ref().unwrap().step, 2);
}

#[test]
fn an_owner_that_is_scaled_after_its_eviction_and_one_that_lacked_pods_before_fail_nothing() {
    for was_broken in [false, true] {
        let mut scene = Scene::new();
        scene.replica_set("db", if was_broken { 3 } else { 1 }, OLD);
        if was_broken {
            scene.members.as_mut().unwrap().retain(|object, _| object.name == "db-0");
            scene.member(&pod("db-0")).down(-1000);
        }
        assert_eq!(scene.updates(), ["db-0"]);
        let again = scene.evict(&pod("db-0"), NEW);
        if was_broken {
            let member = scene.member(&again);
            member.health.is_ready = false;
        } else {
            scene.owner("db").desired = 100;
        }
        scene.turn();
        scene.now += 1000;
        let said = scene.said();
        assert!(said.starts_with("Complete"), "{was_broken}: {said}");
    }
}

#[test]
fn a_pod_for_which_others_of_its_owner_wait_is_named() {
    let mut scene = Scene::new();
    scene.replica_set("db", 3, OLD);
    scene.member(&pod("db-1")).down(-1000);
    assert_eq!(scene.updates(), ["db-1"]);
    let again = scene.evict(&pod("db-1"), NEW);
    scene.member(&again).health.is_ready = false;
    scene.says(&format!(".. waits for shop/{}, which is not ready", again.name));
}

#[test]
fn what_broke_before_rollouts_were_switched_on_is_no_failure() {
    let template = content(NEW).template;
    for (field, value) in [("mode", json!("Audit")), ("suspend", json!(true))] {
        let mut spec = json!({ "template": template, "updateStrategy": { "type": "RollingUpdate" } });
        spec[field] = value;
        let policy = json!({ "metadata": { "name": "envoy", "uid": "u" }, "spec": spec });
        let policy = Policy::parse(&policy, &Site::new("scpol-system", [], [])).unwrap();
        let begin = Begin::of(&policy, &[], Commands::default(), at(0)).unwrap();
        assert_eq!((begin.record.progress.times.begun, begin.record.progress.times.disturbed), (None, None), "{field}");
    }
}

#[test]
fn an_announced_eviction_waits_while_another_pod_of_its_owner_is_not_available() {
    let mut scene = Scene::new().max_unavailable(2);
    scene.replica_set("web", 2, OLD);
    assert_eq!(scene.updates(), ["web-0"]);
    scene.new_leader();
    let member = scene.member(&pod("web-1"));
    let ready = member.health;
    member.health = Health { is_ready: false, since: Some(at(1)), ..ready };
    // The other leader may be sending it still. After that, none waits for the other.
    assert_eq!(scene.updates(), [""; 0]);
    scene.now += 30;
    assert_eq!(scene.updates(), ["web-1"]);
    scene.member(&pod("web-1")).health = ready;
    let again = scene.evict(&pod("web-1"), NEW);
    scene.member(&again).health.is_ready = false;
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(&format!(".. {}", again.name));
    scene.member(&again).health.is_ready = true;
    assert_eq!(scene.updates(), ["web-0"]);
}

#[test]
fn what_is_tried_again_in_vain_after_the_end_disturbs_nothing() {
    let mut scene = Scene::new().max_unavailable(3);
    scene.has(&deployment("left"), OLD);
    let member = scene.has(&deployment("down"), NEW);
    member.health = Health { is_ready: true, since: None, ..member.health };
    assert_eq!(scene.updates(), ["left"]);
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    scene.member(&deployment("down")).health.is_ready = false;
    scene.now += 400;
    assert_eq!(scene.updates(), ["left"]);
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    assert_eq!(scene.record().progress.times.disturbed, None);
}

#[test]
fn what_was_broken_before_waits_where_the_record_has_no_room_for_it() {
    let mut scene = Scene::new();
    let known = (0..256).map(|number| format!("deployments.apps/shop/other-{number}"));
    scene.record().progress.broken = known.collect();
    scene.has(&deployment("a"), OLD).down(-1000);
    assert_eq!(scene.updates(), [""; 0]);
    scene.says(".. 1 are left");
    scene.record().progress.broken.clear();
    scene.member(&deployment("a")).version += 1;
    scene.now += 20;
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn a_template_that_is_written_anew_months_later_is_patched_again_each_time() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD);
    for _ in 0..6 {
        assert_eq!(scene.updates(), ["a"]);
        scene.patch(&deployment("a"));
        scene.now += 3600;
        scene.says("Complete");
        let member = scene.member(&deployment("a"));
        (member.version, member.carries) = (member.version + 1, Carries::Nothing);
    }
}

#[test]
fn an_eviction_that_waits_for_its_owner_stops_no_other_one() {
    let mut scene = Scene::new().max_unavailable(4);
    scene.replica_set("web", 2, OLD);
    scene.replica_set("zoo", 1, OLD);
    scene.evictions = 1;
    assert_eq!(scene.updates(), ["web-0"]);
    scene.new_leader();
    scene.member(&pod("web-1")).down(1);
    scene.now += 100;
    assert_eq!(scene.updates(), ["web-1"]);
}

#[test]
fn two_announced_pods_of_one_owner_never_go_together() {
    let mut scene = Scene::new().max_unavailable(4);
    scene.replica_set("web", 2, OLD);
    let member = scene.member(&pod("web-1"));
    let ready = member.health;
    assert_eq!(scene.updates(), ["web-0"]);
    let write = |name: &str, scene: &mut Scene| {
        let write = Write { uid: scene.member(&pod(name)).uid.to_string(), at: at(1), by: "one".into(), evict: true };
        scene.record().progress.writes.insert(format!("pods/shop/{name}"), write);
    };
    write("web-1", &mut scene);
    for health in [ready, Health { is_ready: false, since: Some(at(1)), ..ready }] {
        scene.member(&pod("web-0")).health = health;
        scene.member(&pod("web-1")).health = health;
        assert_eq!(scene.updates().len(), 1);
    }
}

#[test]
fn a_resume_waits_until_the_namespaces_are_known() {
    let mut scene = Scene::new().steps(json!([{ "namespaces": ["canary"] }, { "pause": {} }]));
    scene.has(&deployment("canary/a"), NEW).revision = hash(NEW).into();
    scene.member(&deployment("canary/a")).carries = Carries::This;
    scene.record().reached.as_mut().unwrap().extent.namespaces.insert("canary".into());
    scene.says("Paused step 2");
    let namespaces = scene.namespaces.take();
    scene.commands.resumed = Some(at(2));
    scene.says(".. reading the Namespaces");
    scene.namespaces = namespaces;
    scene.turn();
    assert!(scene.record().reached.as_ref().is_none_or(|reached| reached.step > 1));
}

#[test]
fn what_is_evicted_after_the_end_and_does_not_come_back_counts() {
    let mut scene = Scene::new().max_unavailable(1);
    scene.replica_set("web", 1, NEW);
    scene.replica_set("zoo", 1, NEW);
    scene.says("Complete");
    scene.now = 5000;
    for name in ["web-0", "zoo-0"] {
        let member = scene.member(&pod(name));
        (member.version, member.carries) = (2, Carries::Nothing);
    }
    assert_eq!(scene.updates(), ["web-0"]);
    let again = scene.evict(&pod("web-0"), NEW);
    let now = scene.now;
    scene.member(&again).down(now);
    scene.now += 20;
    for _ in 0..3 {
        assert_eq!(scene.updates(), [""; 0], "one is unavailable already");
        scene.now += 1000;
    }
}

#[test]
fn what_was_patched_before_it_was_broken_for_long_is_patched_again_without_a_place_in_the_record() {
    let mut scene = Scene::new();
    scene.has(&deployment("a"), OLD).down(-100);
    assert_eq!(scene.updates(), ["a"]);
    scene.patch(&deployment("a"));
    let known = (0..256).map(|number| format!("deployments.apps/shop/other-{number}"));
    scene.record().progress.broken = known.collect();
    scene.now = 590;
    scene.turn();
    let member = scene.member(&deployment("a"));
    (member.version, member.carries) = (member.version + 1, Carries::Nothing);
    assert_eq!(scene.updates(), ["a"]);
}

#[test]
fn what_was_tried_in_vain_after_the_end_does_not_stay_in_the_record() {
    let mut scene = Scene::new().max_unavailable(1);
    scene.has(&deployment("left"), OLD);
    assert_eq!(scene.updates(), ["left"]);
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.says("Complete");
    scene.now += 400;
    assert_eq!(scene.updates(), ["left"]);
    scene.record().progress.failed.insert("deployments.apps/canary/x".into());
    scene.has(&deployment("canary/held"), OLD).revision = hash(NEW).into();
    scene.member(&deployment("canary/held")).carries = Carries::Other(OLD.into());
    scene.answer(&deployment("left"), left(Code::RolloutOptedOut));
    scene.turn();
    let progress = &scene.record().progress;
    assert_eq!((progress.writes.len(), progress.times.disturbed), (0, None));
}
