//! The model: what happens next by itself, and what may happen instead.
//!
//! By itself everything goes on fairly and at once: leaders look and write, controllers make pods, pods become ready, and time passes when
//! nothing else is left to do. A run may deviate from that a bounded number of times, at any moment: see [`Deviation`].

use crate::cluster::{Cluster, Item, Kept, Number, Sentence};
use crate::leader::{Leader, Lost, Said, Scene, Todo, WATCHES, Watch, keep, write};
use stateright::{Model, Property};

/// Something that happens once, instead of what happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deviation {
    /// The policy gets another content.
    Edit(Number),
    Pause,
    Resume,
    /// The command of an earlier time is put back.
    ResumeEarlier,
    Restart,
    /// `kubectl replace --force`: the policy has another UID.
    Replace,
    /// Somebody deletes the revision with that content.
    Delete(Number),
    /// A Namespace gets, or loses, the label that the policy selects.
    Relabel(u8),
    /// A PodDisruptionBudget begins to allow no eviction of an owner's pods, or ceases to.
    Guard(u8),
    Scale(u8, u8),
    /// The first available pod is deleted, or becomes unavailable, because its registry is away.
    Kill,
    Break,
    /// The first available pod opts out of the policy.
    OptOut,
    /// Another client puts the first Deployment back that has the latest content.
    PutBack,
    /// A watch of the leader is late from now on.
    Late(Watch),
    /// The answer to the next write gets lost; or the request, which may arrive later.
    Lose(Lost),
    /// Another process leads; the one before is dead, or sleeps.
    Fall,
    Sleep,
    /// So many seconds pass.
    Wait(u32),
    /// Controllers and kubelets are faster than the leader.
    Others,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happens {
    /// What happens by itself.
    Next,
    Instead(Deviation),
    /// The process that slept does its next thing.
    Wake,
    /// A late watch shows what is.
    Show(Watch),
    /// A request that got lost arrives.
    Arrive,
}

/// The state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub cluster: Cluster,
    pub leader: Leader,
    pub sleeper: Option<Leader>,
    /// A write that may still arrive.
    pub late: Option<Todo>,
    /// How many deviations may still happen.
    pub deviations: u8,
    /// How often time has passed since anything else happened.
    pub patience: u8,
    /// How much has happened by itself since the last deviation.
    pub age: u16,
}

/// How much may happen by itself until a rollout has come to an end.
const AGE: u16 = 300;

/// The milliseconds that pass when nothing else is left to do: the wait after a refusal, the minute of evictions, and twice the deadline.
const PATIENCE: [u32; 5] = [11_000, 11_000, 61_000, 601_000, 601_000];

/// One space of states.
#[derive(Clone, Debug)]
pub struct Space {
    pub name: &'static str,
    pub scene: Scene,
    pub begin: Cluster,
    pub deviations: Vec<Deviation>,
    /// How many deviations a run may have.
    pub bound: u8,
}

impl World {
    fn begin(space: &Space) -> Self {
        Self {
            cluster: space.begin.clone(),
            leader: Leader::new(0),
            sleeper: None,
            late: None,
            deviations: space.bound,
            patience: 0,
            age: 0,
        }
    }

    fn is_true(&self, sentence: Sentence) -> bool {
        self.cluster.untrue != Some(sentence)
    }

    /// Does what happens next by itself. Returns false if nothing does any more.
    pub fn next(&mut self, scene: &Scene) -> bool {
        if self.lead(scene) || self.move_on(scene) {
            self.patience = 0;
            return true;
        }
        if self.leader.frozen.is_late() {
            self.leader.frozen = Default::default();
            return true;
        }
        // A person ends the pause of a step.
        if self.leader.said == Said::Paused && !self.cluster.spec.is_paused {
            self.cluster.now += 1000;
            self.cluster.spec.resumed = Some(self.cluster.now);
            return true;
        }
        if matches!(self.leader.said, Said::Complete | Said::Halted | Said::Paused) {
            return false;
        }
        let Some(time) = PATIENCE.get(usize::from(self.patience)) else { return false };
        self.cluster.pass(*time);
        self.patience += 1;
        true
    }

    /// Has the leader do its next thing. Returns whether there was one.
    fn lead(&mut self, scene: &Scene) -> bool {
        if !self.leader.queue.is_empty() {
            self.leader.act(&mut self.cluster, scene, Lost::Nothing);
            return true;
        }
        let before = (self.leader.state.clone(), self.leader.said, self.leader.has_recorded);
        let has_work = self.leader.look(&mut self.cluster, scene);
        has_work || before != (self.leader.state.clone(), self.leader.said, self.leader.has_recorded)
    }

    /// Has everybody else do one thing. Returns whether there was one.
    fn move_on(&mut self, scene: &Scene) -> bool {
        self.cluster.publish(&scene.settings) || self.cluster.make(&scene.settings) || self.cluster.settle()
    }

    fn wake(&mut self, scene: &Scene) {
        let Some(mut sleeper) = self.sleeper.take() else { return };
        sleeper.act(&mut self.cluster, scene, Lost::Nothing);
        // With the record as the server returned it, it looks once more before it notices that it leads no more.
        if sleeper.queue.is_empty() && sleeper.has_recorded {
            let untrue = self.cluster.untrue;
            sleeper.look(&mut self.cluster, scene);
            self.cluster.untrue = untrue;
        }
        self.sleeper = (!sleeper.queue.is_empty()).then_some(sleeper);
    }

    fn arrive(&mut self, scene: &Scene) {
        match self.late.take() {
            Some(todo @ (Todo::Record(..) | Todo::Begin(..))) => drop(keep(&todo, &mut self.cluster)),
            Some(Todo::Write(attempt, version, evicts)) => {
                write(&attempt, version, evicts, &mut self.cluster, scene);
            }
            Some(Todo::Read(_)) | None => {}
        }
    }

    /// Whether `deviation` would change anything, so that it is worth a try.
    fn may(&self, deviation: Deviation) -> bool {
        let (cluster, leader) = (&self.cluster, &self.leader);
        let is_available = |item: &Item| item.owner.is_some() && item.is_ready && item.is_settled;
        match deviation {
            Deviation::Edit(content) => cluster.spec.content != content,
            Deviation::ResumeEarlier => cluster.spec.resumed.is_some(),
            Deviation::Delete(content) => cluster.revisions.iter().any(|kept: &Kept| kept.content == content),
            Deviation::PutBack => put_back(&mut cluster.clone()),
            Deviation::Kill | Deviation::Break | Deviation::OptOut => cluster.items.iter().any(is_available),
            Deviation::Late(watch) => {
                let mut late = leader.frozen.clone();
                late.stop(watch, cluster);
                !leader.frozen.is_late() && late != leader.frozen
            }
            Deviation::Lose(lost) => {
                let is_write =
                    matches!(leader.queue.front(), Some(Todo::Write(..) | Todo::Record(..) | Todo::Begin(..)));
                is_write && (lost != Lost::Request || self.late.is_none())
            }
            Deviation::Sleep => self.sleeper.is_none() && !leader.queue.is_empty(),
            _ => true,
        }
    }

    fn deviate(&mut self, deviation: Deviation, scene: &Scene) {
        self.deviations -= 1;
        self.age = 0;
        self.patience = 0;
        let cluster = &mut self.cluster;
        match deviation {
            Deviation::Edit(content) => {
                cluster.now += 1000;
                cluster.spec.content = content;
                cluster.is_halted = false;
            }
            Deviation::Pause => cluster.spec.is_paused ^= true,
            Deviation::Resume => {
                cluster.now += 1000;
                cluster.spec.resumed = Some(cluster.now);
            }
            Deviation::ResumeEarlier => cluster.spec.resumed = cluster.spec.resumed.map(|resumed| resumed - 500),
            Deviation::Restart => {
                cluster.now += 1000;
                cluster.spec.restarted = Some(cluster.now);
            }
            Deviation::Replace => {
                cluster.spec.uid += 1;
                cluster.is_halted = false;
            }
            Deviation::Delete(content) => {
                // A person who deletes the revision with the halt ends it.
                cluster.is_halted &= cluster.own().last().is_none_or(|last| last.content != content);
                cluster.revisions.retain(|kept| kept.content != content);
            }
            Deviation::Relabel(namespace) => cluster.covered[usize::from(namespace)] ^= true,
            Deviation::Guard(owner) => cluster.makers[usize::from(owner)].is_guarded ^= true,
            Deviation::Scale(owner, desired) => scale(cluster, owner, desired),
            Deviation::Kill => {
                let killed = available(cluster);
                killed.map(|index| cluster.items.remove(index));
            }
            Deviation::Break => {
                let now = cluster.now;
                change_available(cluster, |item| (item.is_ready, item.is_stuck, item.since) = (false, true, now));
            }
            Deviation::OptOut => change_available(cluster, |item| item.is_out = true),
            Deviation::PutBack => drop(put_back(cluster)),
            Deviation::Late(watch) => self.leader.frozen.stop(watch, cluster),
            Deviation::Lose(lost) => {
                let late = self.leader.act(cluster, scene, lost);
                self.late = late.map(|(todo, _)| todo);
            }
            Deviation::Fall | Deviation::Sleep => {
                let new = Leader::new(self.leader.name + 1);
                let mut old = std::mem::replace(&mut self.leader, new);
                if deviation == Deviation::Sleep {
                    WATCHES.iter().for_each(|watch| old.frozen.stop(*watch, cluster));
                    self.sleeper = Some(old);
                }
            }
            Deviation::Wait(seconds) => cluster.pass(1000 * seconds),
            Deviation::Others => drop(self.move_on(scene)),
        }
    }
}

fn scale(cluster: &mut Cluster, owner: u8, desired: u8) {
    cluster.makers[usize::from(owner)].desired = desired;
    while cluster.items.iter().filter(|item| item.owner == Some(owner)).count() > usize::from(desired) {
        let last = cluster.items.iter().rposition(|item| item.owner == Some(owner));
        last.map(|last| cluster.items.remove(last));
    }
    cluster.next_version();
    cluster.forgive(owner);
}

/// The index of the first available pod.
fn available(cluster: &mut Cluster) -> Option<usize> {
    cluster.next_version();
    cluster.items.iter().position(|item| item.owner.is_some() && item.is_ready && item.is_settled && !item.is_out)
}

fn change_available(cluster: &mut Cluster, change: impl FnOnce(&mut Item)) {
    let Some(index) = available(cluster) else { return };
    let version = cluster.version;
    let item = &mut cluster.items[index];
    item.version = version;
    change(item);
}

/// Has another client put the first Deployment back that has the latest content. Returns whether there is one.
fn put_back(cluster: &mut Cluster) -> bool {
    let (now, version, content) = (cluster.now, cluster.next_version(), cluster.spec.content);
    let Some(item) = cluster.items.iter_mut().find(|item| item.owner.is_none() && item.carries == content) else {
        return false;
    };
    let before = if content == 1 { 0 } else { 1 };
    (item.carries, item.version, item.since, item.touched) = (before, version, now, None);
    (item.is_ready, item.is_settled) = (false, false);
    true
}

impl Model for Space {
    type State = World;
    type Action = Happens;

    fn init_states(&self) -> Vec<World> {
        vec![World::begin(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Happens>) {
        if world.cluster.untrue.is_some() {
            return;
        }
        actions.push(Happens::Next);
        if world.deviations > 0 {
            let possible = self.deviations.iter().filter(|deviation| world.may(**deviation));
            actions.extend(possible.map(|deviation| Happens::Instead(*deviation)));
        }
        if world.sleeper.is_some() {
            actions.push(Happens::Wake);
        }
        if world.late.is_some() {
            actions.push(Happens::Arrive);
        }
        let shown = WATCHES.into_iter().filter(|watch| is_late(world, *watch));
        actions.extend(shown.map(Happens::Show));
    }

    fn next_state(&self, world: &World, action: Happens) -> Option<World> {
        let mut next = world.clone();
        match action {
            Happens::Next => {
                next.age += 1;
                if next.age > AGE || !next.next(&self.scene) {
                    return None;
                }
            }
            Happens::Instead(deviation) => next.deviate(deviation, &self.scene),
            Happens::Wake => next.wake(&self.scene),
            Happens::Arrive => next.arrive(&self.scene),
            Happens::Show(watch) => show(&mut next, watch),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("unavailable", |_, world: &World| world.is_true(Sentence::Unavailable)),
            Property::always("grows", |_, world: &World| world.is_true(Sentence::Grows)),
            Property::always("step", |_, world: &World| world.is_true(Sentence::Step)),
            Property::always("outside", |_, world: &World| world.is_true(Sentence::Outside)),
            Property::always("complete", |_, world: &World| world.is_true(Sentence::Complete)),
            Property::always("twice", |_, world: &World| world.is_true(Sentence::Twice)),
            Property::always("ended", |_, world: &World| world.is_true(Sentence::Ended)),
            Property::always("halt", |_, world: &World| world.is_true(Sentence::Halt)),
            Property::always("owner", |_, world: &World| world.is_true(Sentence::Owner)),
            Property::always("undo", |_, world: &World| world.is_true(Sentence::Undo)),
            Property::always("evictions", |_, world: &World| world.is_true(Sentence::Evictions)),
            Property::always("a rollout ends, or says what it waits for", |space: &Space, world: &World| {
                let mut after = world.clone();
                let goes_on = world.age < AGE && after.next(&space.scene);
                world.cluster.untrue.is_some() || goes_on || is_over(world)
            }),
        ]
    }
}

/// Whether the rollout of `world`, in which nothing happens by itself any more, has come to an end, or is held up by what it names.
fn is_over(world: &World) -> bool {
    let is_guarded = world.cluster.makers.iter().any(|maker| maker.is_guarded);
    match world.leader.said {
        _ if world.age >= AGE => is_guarded,
        Said::Complete | Said::Halted | Said::Paused => true,
        // What a budget forbids is tried again and again.
        Said::Rolling | Said::Silent => is_guarded,
        Said::Nothing | Said::New => false,
    }
}

fn is_late(world: &World, watch: Watch) -> bool {
    let frozen = &world.leader.frozen;
    match watch {
        Watch::Policies => frozen.spec.is_some(),
        Watch::Revisions => frozen.revisions.is_some(),
        Watch::Workloads => frozen.items.is_some(),
        Watch::Owners => frozen.makers.is_some(),
        Watch::Namespaces => frozen.covered.is_some(),
    }
}

fn show(world: &mut World, watch: Watch) {
    let frozen = &mut world.leader.frozen;
    match watch {
        Watch::Policies => (frozen.spec, frozen.delivered) = (None, None),
        Watch::Revisions => frozen.revisions = None,
        Watch::Workloads => frozen.items = None,
        Watch::Owners => frozen.makers = None,
        Watch::Namespaces => frozen.covered = None,
    }
}
