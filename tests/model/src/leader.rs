//! A leader: what it has read, the state machine of the core, and the writes that it has still to do.

use crate::cluster::{
    BAD, Cluster, Delivered, Item, Kept, Maker, NAMESPACES, Number, Sentence, Settings, Spec, Turn, at, at_second,
    deliver, has, hash, number, place,
};
use jiff::SignedDuration;
use serde_json::{Value, json};
use sidecar_policy_core::api::condition::Progress;
use sidecar_policy_core::refit::{Carries, Way};
use sidecar_policy_core::rollout::record::Record;
use sidecar_policy_core::rollout::stored::{Begin, StoredRevision, current};
use sidecar_policy_core::rollout::{
    Action, Aim, Answer, Done, Event, Health, Leading, Machine, Makers, Member, Members, Next, Outcome, Owner, Owners,
    Published, Queries, World,
};
use sidecar_policy_core::workload::{Kind, ObjectRef};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, LazyLock};

/// How long a workload waits that the server refused for a reason that may pass, in seconds.
pub const AGAIN: u32 = 10;

/// What a leader has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frozen {
    pub spec: Option<Spec>,
    /// What is in effect, as the status of the policy says.
    pub delivered: Option<Delivered>,
    pub revisions: Option<Vec<Kept>>,
    pub items: Option<Vec<Item>>,
    pub makers: Option<Vec<Maker>>,
    pub covered: Option<[bool; 3]>,
}

/// The watches, each of which may be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Watch {
    Policies,
    Revisions,
    Workloads,
    Owners,
    Namespaces,
}

/// All watches.
pub const WATCHES: [Watch; 5] = [Watch::Policies, Watch::Revisions, Watch::Workloads, Watch::Owners, Watch::Namespaces];

impl Frozen {
    /// Stops `watch` at what `cluster` is now.
    pub fn stop(&mut self, watch: Watch, cluster: &Cluster) {
        match watch {
            Watch::Policies => {
                self.spec = Some(cluster.spec.clone());
                self.delivered = Some(cluster.delivered.clone());
            }
            Watch::Revisions => self.revisions = Some(cluster.revisions.clone()),
            Watch::Workloads => self.items = Some(cluster.items.clone()),
            Watch::Owners => self.makers = Some(cluster.makers.clone()),
            Watch::Namespaces => self.covered = Some(cluster.covered),
        }
    }

    /// Whether some watch is late.
    pub fn is_late(&self) -> bool {
        *self != Self::default()
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Todo {
    /// Writes `record` over the version that was read, of the revision with that content.
    Record(Number, u16, Box<Record>),
    /// Begins the rollout of a content; over the version of a revision that has it already.
    Begin(Number, u8, Option<u16>, Box<Record>),
    /// Reads a workload.
    Read(Try),
    /// Writes a workload of which that version was read, by an eviction or by a patch.
    Write(Try, u16, bool),
}

/// An attempt on one workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Try {
    pub next: Next,
    pub member: Member,
    pub name: u8,
    pub wanted: Number,
    pub restarted: Option<u32>,
    pub turn: Turn,
}

/// How far the rollout is, as the leader says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Said {
    #[default]
    Nothing,
    New,
    Rolling,
    /// It is rolling, and names nothing that it waits for.
    Silent,
    Paused,
    Halted,
    Complete,
}

/// One process that leads, or did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    pub name: u8,
    pub state: Machine,
    pub frozen: Frozen,
    /// The revision that it has written, until the watch shows it.
    pub written: Option<Kept>,
    pub queue: VecDeque<Todo>,
    pub said: Said,
    /// Whether it has just written a record: then it looks once more before it notices that it leads no more.
    pub has_recorded: bool,
}

impl Leader {
    /// A process that begins to lead.
    pub fn new(name: u8) -> Self {
        Self {
            name,
            state: Machine::default(),
            frozen: Frozen::default(),
            written: None,
            queue: VecDeque::new(),
            said: Said::Nothing,
            has_recorded: false,
        }
    }

    fn spec<'a>(&'a self, cluster: &'a Cluster) -> &'a Spec {
        self.frozen.spec.as_ref().unwrap_or(&cluster.spec)
    }

    fn items<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = &'a Item> {
        let covered = self.frozen.covered.unwrap_or(cluster.covered);
        let items = self.frozen.items.as_ref().unwrap_or(&cluster.items);
        items.iter().filter(move |item| covered[usize::from(item.namespace)] && !item.is_out)
    }

    /// How many pods each owner has that have opted out.
    fn beside(&self, cluster: &Cluster) -> HashMap<Arc<str>, usize> {
        let mut beside = HashMap::new();
        let items = self.frozen.items.as_ref().unwrap_or(&cluster.items);
        for owner in items.iter().filter(|item| item.is_out).filter_map(|item| item.owner) {
            *beside.entry(maker_uid(owner)).or_default() += 1;
        }
        beside
    }

    /// The revisions as the watch shows them, and those that it has written since.
    fn revisions(&self, cluster: &Cluster) -> Vec<Kept> {
        let mut all = self.frozen.revisions.clone().unwrap_or_else(|| cluster.revisions.clone());
        let Some(written) = self.written.as_ref().filter(|_| self.frozen.revisions.is_some()) else { return all };
        let same = all.iter_mut().find(|kept| kept.content == written.content && kept.owner == written.owner);
        match same {
            Some(shown) if shown.version < written.version => *shown = written.clone(),
            Some(_) => {}
            None => all.push(written.clone()),
        }
        all.sort_by_key(|kept| kept.number);
        all
    }

    /// Looks once. Returns whether there is something to do.
    pub fn look(&mut self, cluster: &mut Cluster, scene: &Scene) -> bool {
        self.has_recorded = false;
        let spec = self.spec(cluster).clone();
        let revisions: Vec<Kept> = self.revisions(cluster).into_iter().filter(|kept| kept.owner == spec.uid).collect();
        let shown = self.frozen.revisions.as_ref().unwrap_or(&cluster.revisions);
        let delivered = deliver(&spec, shown, &cluster.delivered, &scene.settings);
        let stored: Vec<StoredRevision> = revisions.iter().map(Kept::stored).collect();
        if let Some(todo) = housekeeping(&spec, &revisions, &stored, (&delivered, cluster.now), scene) {
            self.queue.push_back(todo);
            return true;
        }
        let Some(last) = revisions.last() else { return false };
        let outcome = self.step(cluster, scene, (&spec, &stored, &delivered));
        self.judge(cluster, &outcome, (&spec, &stored, last));
        let members = members(self.items(cluster), &delivered);
        let turn = turn(last, &spec);
        for action in outcome.actions {
            match action {
                Action::Record(of, record) => {
                    let (before, after) = (&last.record.reached, &record.reached);
                    if let (Some(before), Some(after)) = (before, after)
                        && after.step > before.step
                        && before.paused(&scene.settings.rolling().steps).is_none()
                    {
                        let is_reached = |item: &&Item| has(&before.extent, item.namespace);
                        if self.items(cluster).filter(is_reached).any(|item| item.carries != spec.content) {
                            cluster.deny(Sentence::Step);
                        }
                    }
                    self.queue.push_back(Todo::Record(number(&of), last.version, record));
                }
                Action::Update(next) => {
                    if last.record.progress.halted.is_some() && !turn.is_back {
                        cluster.deny(Sentence::Halt);
                    }
                    let member = members[&next.object].clone();
                    let wanted = self.items(cluster).find(|item| reference(item) == next.object);
                    let item = wanted.expect("it is known");
                    let (name, wanted) = (item.name, delivered.wanted(item.namespace));
                    let restarted = spec.restarted;
                    self.queue.push_back(Todo::Read(Try { next, member, name, wanted, restarted, turn: turn.clone() }));
                }
                Action::Tell(_) => {}
            }
        }
        !self.queue.is_empty()
    }

    /// What the state machine says.
    fn step(
        &mut self,
        cluster: &Cluster,
        scene: &Scene,
        (spec, stored, delivered): (&Spec, &[StoredRevision], &Delivered),
    ) -> Outcome {
        let mut state = std::mem::take(&mut self.state);
        let members = members(self.items(cluster), delivered);
        let makers = self.frozen.makers.as_ref().unwrap_or(&cluster.makers);
        let covered = self.frozen.covered.unwrap_or(cluster.covered);
        let owners = owners(makers, covered);
        let names = NAMESPACES.iter().zip(covered).filter(|(_, is_covered)| *is_covered);
        let namespaces: BTreeMap<String, Arc<Value>> =
            names.map(|(name, _)| ((*name).to_owned(), OBJECTS[name].clone())).collect();
        let earlier = delivered.earlier.as_ref().map(|(content, updated)| (hash(*content), updated));
        let way = |object: &ObjectRef, member: &Member| match (object.kind.is_pod(), &member.carries) {
            (false, _) => Way::Template,
            (true, Carries::This) => Way::Evict,
            (true, _) => scene.way,
        };
        let bad = |object: &ObjectRef| {
            let item = self.items(cluster).find(|item| reference(item) == *object);
            let is_bad = |item: &Item| item.carries == BAD && item.is_settled || item.is_stuck;
            (scene.is_stuck_known && item.is_some_and(is_bad)).then(|| "its image cannot be pulled".to_owned())
        };
        let (update, beside) = (hash(spec.content), self.beside(cluster));
        let name = format!("leader-{}", self.name);
        let world = World {
            aim: Aim {
                policy: "p",
                kinds: &KINDS,
                update: &update,
                published: Published {
                    is_in_force: delivered == self.frozen.delivered.as_ref().unwrap_or(&cluster.delivered),
                    earlier: earlier.as_ref().map(|(hash, updated)| (hash.as_str(), *updated)),
                },
            },
            leader: Leading {
                name: &name,
                evictions: scene.evictions.saturating_sub(announced(stored, cluster.now)),
                again: SignedDuration::from_secs(AGAIN.into()),
            },
            now: at(cluster.now),
            settings: scene.settings.rolling(),
            is_paused: spec.is_paused,
            revisions: stored,
            commands: spec.commands(),
            members: Some(&members),
            makers: Ok(Makers { owners: &owners, beside: &beside, busy: &BTreeMap::new() }),
            namespaces: Some(&namespaces),
            queries: Queries { stuck: &bad, by_hand: &|_| None, way: &way, rejection: &|_| None },
        };
        let outcome = state.step(Event::Look(&world));
        self.state = state;
        outcome
    }

    /// Compares what is said with what was read.
    fn judge(
        &mut self,
        cluster: &mut Cluster,
        outcome: &Outcome,
        (spec, stored, last): (&Spec, &[StoredRevision], &Kept),
    ) {
        let Some(progress) = &outcome.progress else { return };
        let waits = outcome.look.as_ref().is_some_and(|look| !look.waits.is_empty());
        self.said = match progress {
            Progress::NewRevision(_) => Said::New,
            Progress::RollingOut(_) if waits => Said::Rolling,
            Progress::RollingOut(_) => Said::Silent,
            Progress::Paused(_) => Said::Paused,
            Progress::Halted(_) => Said::Halted,
            Progress::Complete(_) => Said::Complete,
        };
        let restarted = spec.restarted.map(|asked| {
            let seen = last.record.ahead.restarted.map(|seen| seen.at);
            seen.map_or(asked, |seen| {
                asked.min(u32::try_from(seen.as_millisecond() - 1_000_000_000).unwrap_or_default())
            })
        });
        let lacks =
            |item: &Item| item.carries != spec.content || restarted.is_some_and(|restarted| item.begun() < restarted);
        if self.said == Said::Complete && self.items(cluster).any(lacks) {
            cluster.deny(Sentence::Complete);
        }
        if let Progress::Halted(message) = progress
            && message.contains("has the revision before again")
        {
            let before = current(stored).map(|current| number(&current.revision.hash));
            let from = last.record.reached.as_ref().map(|reached| number(&reached.from));
            let is_left = self.items(cluster).any(|item| item.carries == spec.content);
            if is_left || from != before {
                cluster.deny(Sentence::Undo);
            }
        }
    }

    /// Does the next thing. `lost` is whether the answer gets lost.
    pub fn act(&mut self, cluster: &mut Cluster, scene: &Scene, lost: Lost) -> Option<(Todo, u8)> {
        let todo = self.queue.pop_front()?;
        cluster.now += 1;
        let name = self.name;
        match todo {
            Todo::Record(..) | Todo::Begin(..) => {
                let written = if lost == Lost::Request { None } else { keep(&todo, cluster) };
                if lost == Lost::Request {
                    return self.recorded(&todo, None, true).then_some((todo, name));
                }
                self.recorded(&todo, written, lost == Lost::Answer);
            }
            Todo::Read(attempt) => match read(&attempt, cluster, scene) {
                Ok(write) => self.queue.push_front(write),
                Err(answer) => self.answered(&attempt, answer, cluster.now),
            },
            Todo::Write(ref attempt, version, evicts) => {
                let answer = match lost {
                    Lost::Nothing | Lost::Answer => write(attempt, version, evicts, cluster, scene),
                    Lost::Request => Answer::Failed("no answer".into()),
                };
                let failed = || Answer::Failed("no answer".into());
                let answer = if lost == Lost::Answer { failed() } else { answer };
                self.answered(attempt, answer, cluster.now);
                return (lost == Lost::Request).then_some((todo, name));
            }
        }
        None
    }

    fn answered(&mut self, attempt: &Try, answer: Answer, now: u32) {
        let event = Event::Answered { object: &attempt.next.object, member: &attempt.member, answer, now: at(now) };
        self.state.step(event);
    }

    fn recorded(&mut self, todo: &Todo, written: Option<Kept>, is_lost: bool) -> bool {
        self.has_recorded = written.is_some() && !is_lost;
        if let Todo::Record(..) = todo {
            let why = "no answer";
            let result = if is_lost { Err(why.to_owned()) } else { Ok(()) };
            self.state.step(Event::Recorded(result));
        }
        if self.has_recorded {
            self.written = written;
        }
        true
    }
}

/// What gets lost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    Nothing,
    /// The server does it, and its answer does not arrive.
    Answer,
    /// It may arrive at the server later.
    Request,
}

/// What stays the same in one space of states.
#[derive(Clone, Debug)]
pub struct Scene {
    pub settings: Settings,
    pub way: Way,
    /// Whether a pod that was read cannot be changed in place.
    pub refuses_in_place: bool,
    pub is_stuck_known: bool,
    /// The limit of evictions in a minute.
    pub evictions: usize,
    pub max_unavailable: usize,
}

static KINDS: LazyLock<Vec<Arc<Kind>>> =
    LazyLock::new(|| [("", "pods"), ("apps", "deployments")].map(|(group, name)| Kind::of(group, name, None)).to_vec());
static OBJECTS: LazyLock<BTreeMap<&str, Arc<Value>>> = LazyLock::new(|| {
    NAMESPACES.iter().map(|name| (*name, Arc::new(json!({ "metadata": { "name": name } })))).collect()
});
static UIDS: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| (0..=255).map(|uid| format!("u{uid:03}").into()).collect());
static HASHES: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| (0..=3).map(|content| hash(content).into()).collect());
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| (0..=255).map(|name| format!("w{name:03}")).collect());

fn maker_uid(index: u8) -> Arc<str> {
    UIDS[250 - usize::from(index)].clone()
}

fn reference(item: &Item) -> ObjectRef {
    let kind = &KINDS[usize::from(item.owner.is_none())];
    ObjectRef::new(kind, (NAMESPACES[usize::from(item.namespace)], &NAMES[usize::from(item.name)]))
}

/// The members among `items`, compared with what is `delivered`.
fn members<'a>(items: impl Iterator<Item = &'a Item>, delivered: &Delivered) -> Members {
    let member = |item: &Item| {
        let wanted = delivered.wanted(item.namespace);
        let carries = match item.carries {
            0 => Carries::Nothing,
            carries if carries == wanted => Carries::This,
            carries => Carries::Other(hash(carries)),
        };
        let is_pod = item.owner.is_some();
        let begun = if is_pod { Some(at_second(item.created)) } else { item.restarted.map(at) };
        let health = Health {
            is_ready: item.is_ready,
            since: Some(at_second(item.since)),
            is_settled: item.is_settled,
            grace: SignedDuration::from_secs(30),
        };
        let member = Member {
            uid: UIDS[usize::from(item.uid)].clone(),
            version: item.version.into(),
            revision: HASHES[usize::from(wanted)].clone(),
            carries,
            health,
            created: Some(at_second(item.created)),
            owner: item.owner.map(maker_uid),
            begun,
            restarts: Vec::new(),
            place: place(item.namespace).clone(),
        };
        (reference(item), member)
    };
    items.map(member).collect()
}

fn owners(makers: &[Maker], covered: [bool; 3]) -> Owners {
    let owner = |(index, maker): (usize, &Maker)| {
        let is_covered = covered[usize::from(maker.namespace)];
        let policies: BTreeSet<Arc<str>> = is_covered.then(|| "p".into()).into_iter().collect();
        let owner = Owner {
            namespace: NAMESPACES[usize::from(maker.namespace)].into(),
            kind: if maker.is_stateful { "StatefulSet" } else { "ReplicaSet" },
            name: format!("maker-{index}"),
            desired: maker.desired.into(),
            created: Some(at(0)),
            policies,
            ..Owner::default()
        };
        (maker_uid(index as u8), owner)
    };
    makers.iter().enumerate().map(owner).collect()
}

/// How many evictions were announced in the last minute.
fn announced(stored: &[StoredRevision], now: u32) -> usize {
    let now = at(now).as_second();
    let last = stored.last().map(|last| &last.record.progress.evictions);
    let recent = last.into_iter().flatten().filter(|(second, _)| now - **second < 60);
    recent.map(|(_, count)| *count as usize).sum()
}

/// The rollout of `last`, and its direction.
fn turn(last: &Kept, spec: &Spec) -> Turn {
    Turn {
        number: last.number,
        is_back: last.record.reached.as_ref().is_some_and(|reached| reached.undone),
        restarted: spec.restarted,
        resumed: last.record.progress.followed.resumed_at,
    }
}

/// What is to be written before a look: the revision of the policy as it is now, or an earlier one that others have deleted.
fn housekeeping(
    spec: &Spec,
    revisions: &[Kept],
    stored: &[StoredRevision],
    (delivered, now): (&Delivered, u32),
    scene: &Scene,
) -> Option<Todo> {
    let is_latest = |last: &&Kept| last.content == spec.content && !last.record.progress.is_replaced;
    let Some(last) = revisions.last().filter(is_latest) else {
        if let (Some((_, record)), Some(last)) = (Begin::before(stored), revisions.last()) {
            return Some(Todo::Record(last.content, last.version, Box::new(record)));
        }
        let policy = scene.settings.policy(spec.content);
        let begin = Begin::of(policy, stored, spec.commands(), at(now))?;
        let version = revisions.iter().find(|kept| kept.content == spec.content).map(|kept| kept.version);
        return Some(Todo::Begin(spec.content, begin.number as u8, version, Box::new(begin.record)));
    };
    let from = number(&last.record.reached.as_ref()?.from);
    let is_there = revisions.iter().any(|kept| kept.content == from);
    let is_known = delivered.earlier.as_ref().is_some_and(|(earlier, _)| *earlier == from);
    if is_there || !is_known {
        return None;
    }
    let record = Box::new(Record::complete(at(now), at(now)));
    Some(Todo::Begin(from, last.number.saturating_sub(1).max(1), None, record))
}

/// Has the server store a revision. None if it was another version, or another leader has created it.
pub fn keep(todo: &Todo, cluster: &mut Cluster) -> Option<Kept> {
    let owner = cluster.spec.uid;
    let (content, base) = match todo {
        Todo::Record(content, base, _) => (*content, Some(*base)),
        Todo::Begin(content, _, base, _) => (*content, *base),
        Todo::Read(_) | Todo::Write(..) => return None,
    };
    let found = cluster.revisions.iter().position(|kept| kept.content == content);
    let version = cluster.next_version();
    match (found, base) {
        (Some(index), Some(base)) if cluster.revisions[index].version == base => {
            let mut kept = cluster.revisions[index].clone();
            if let Todo::Record(_, _, record) = todo {
                judge_record(cluster, &kept, record);
                kept.record = Record::clone(record);
            } else if let Todo::Begin(_, number, _, record) = todo {
                (kept.number, kept.record) = (*number, Record::clone(record));
            }
            kept.version = version;
            cluster.revisions[index] = kept.clone();
            cluster.revisions.sort_by_key(|kept| kept.number);
            Some(kept)
        }
        (None, None) => {
            let Todo::Begin(_, number, _, record) = todo else { return None };
            let created = cluster.now;
            let kept = Kept { content, number: *number, owner, created, version, record: Record::clone(record) };
            cluster.revisions.push(kept.clone());
            cluster.revisions.sort_by_key(|kept| kept.number);
            Some(kept)
        }
        // What has the name and is of a policy that was replaced is deleted.
        (Some(index), None) if cluster.revisions[index].owner != owner => {
            cluster.revisions.remove(index);
            None
        }
        _ => None,
    }
}

/// Compares a record that is written over that of `kept` with what may be.
fn judge_record(cluster: &mut Cluster, kept: &Kept, record: &Record) {
    let (before, after) = (&kept.record, record);
    let is_last =
        cluster.own().last().is_some_and(|last| last.content == kept.content && last.content == cluster.spec.content);
    let is_restart = cluster.spec.restarted.is_some();
    if before.progress.times.ended.is_some() && after.progress.halted.is_some() && !is_restart {
        cluster.deny(Sentence::Ended);
    }
    if is_last {
        if after.progress.halted.is_some() {
            cluster.is_halted = true;
        } else if after.progress.followed.resumed > before.progress.followed.resumed {
            cluster.is_halted = false;
        } else if cluster.is_halted {
            cluster.deny(Sentence::Halt);
        }
    }
    if let (Some(old), Some(new)) = (&before.reached, &after.reached)
        && !old.undone
        && !new.undone
        && (!new.extent.contains(&old.extent) || new.step < old.step || new.from != old.from)
    {
        cluster.deny(Sentence::Grows);
    }
}

/// Reads a workload fresh.
///
/// # Errors
/// The answer, if nothing is to be written.
fn read(attempt: &Try, cluster: &Cluster, scene: &Scene) -> Result<Todo, Answer> {
    let found = cluster.items.iter().find(|item| item.name == attempt.name);
    let Some(item) = found.filter(|item| UIDS[usize::from(item.uid)] == attempt.next.uid) else {
        return Err(Answer::NotNeeded(None));
    };
    let is_begun = attempt.restarted.is_none_or(|restarted| item.begun() >= restarted);
    if !cluster.matches(item) || item.carries == attempt.wanted && is_begun {
        return Err(Answer::NotNeeded(Some(item.version.into())));
    }
    let is_pod = item.owner.is_some();
    let must_evict = scene.way == Way::Evict || scene.refuses_in_place || !is_begun;
    if is_pod && must_evict && !attempt.next.may_evict {
        return Err(Answer::NeedsEviction(item.version.into(), "not in place".into()));
    }
    Ok(Todo::Write(attempt.clone(), item.version, is_pod && must_evict))
}

/// Has the server write a workload, if it is the version that was read.
pub fn write(attempt: &Try, version: u16, evicts: bool, cluster: &mut Cluster, scene: &Scene) -> Answer {
    let found = cluster.items.iter().position(|item| item.name == attempt.name);
    let found = found.filter(|index| UIDS[usize::from(cluster.items[*index].uid)] == attempt.next.uid);
    let Some(index) = found else { return Answer::NotNeeded(None) };
    let item = cluster.items[index].clone();
    if item.version != version {
        return Answer::Changed(version.into());
    }
    if evicts && cluster.makers[usize::from(item.owner.unwrap_or_default())].is_guarded {
        return Answer::Blocked("Cannot evict pod as it would violate the pod's disruption budget.".into());
    }
    if item.touched.as_ref() == Some(&attempt.turn) {
        cluster.deny(Sentence::Twice);
    }
    let done = if evicts { evict(cluster, &item, scene) } else { patch(cluster, index, attempt, scene) };
    if cluster.ours() > scene.max_unavailable && item.is_ready {
        cluster.deny(Sentence::Unavailable);
    }
    Answer::Done(done)
}

fn evict(cluster: &mut Cluster, item: &Item, scene: &Scene) -> Done {
    let now = cluster.now;
    cluster.next_version();
    cluster.items.retain(|other| other.uid != item.uid);
    let maker = &mut cluster.makers[usize::from(item.owner.unwrap_or_default())];
    let is_second = maker.ours > 0 && item.is_ready && item.is_settled;
    maker.ours += u8::from(item.is_ready && item.is_settled || item.is_ours);
    cluster.evictions.retain(|then| now - then < 60_000);
    cluster.evictions.push(now);
    if is_second {
        cluster.deny(Sentence::Owner);
    }
    if cluster.evictions.len() > scene.evictions {
        cluster.deny(Sentence::Evictions);
    }
    Done::Evicted
}

fn patch(cluster: &mut Cluster, index: usize, attempt: &Try, scene: &Scene) -> Done {
    let version = cluster.next_version();
    let now = cluster.now;
    let item = &mut cluster.items[index];
    item.is_ours |= item.is_ready && item.is_settled;
    (item.carries, item.version, item.is_settled) = (attempt.wanted, version, false);
    item.touched = Some(attempt.turn.clone());
    if item.owner.is_none() {
        item.is_ready = false;
        item.since = now;
        item.restarted = attempt.restarted.map(|_| now).or(item.restarted);
    }
    let (namespace, carries) = (item.namespace, item.carries);
    cluster.see_new_content(&scene.settings, namespace, carries);
    Done::Patched(version.into())
}
