//! The state machine of one policy's rollout.

use super::answer::Answer;
use super::facts::{Busy, Facts, Makers, Pace, Unknown, World, key};
use super::look::{Look, Next};
use super::member::{Member, Members};
use super::pace::Memory;
use super::record::{Ahead, Evicted, Halted, MOST, Record, Write};
use super::steps::{Now, Reached};
use super::stored::{self, holds};
use super::words;
use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::api::v1alpha1::OnFailure;
use crate::workload::ObjectRef;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a leader remembers of the rollout of one policy. A new leader begins with [`Machine::default`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Machine {
    about: Option<About>,
    memory: Memory,
    /// Why the last record was not written.
    trouble: Option<String>,
}

/// Which rollout the memory is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct About {
    update: String,
    begun: Option<Timestamp>,
    is_undone: bool,
    restarted: Option<Timestamp>,
    resumed: Option<Timestamp>,
}

/// What has happened.
pub enum Event<'a> {
    /// The facts of now.
    Look(&'a World<'a>),
    /// The record was written, or not, with the reason.
    Recorded(Result<(), String>),
    /// The answer about a workload, of which `member` was known.
    Answered { object: &'a ObjectRef, member: &'a Member, answer: Answer, now: Timestamp },
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write the record of the revision with that hash, only over the version that was read. Look again after that, before anything
    /// else is done.
    Record(String, Box<Record>),
    /// Bring a workload up to date.
    Update(Next),
    /// Tell users.
    Tell(Told),
}

/// News for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Halted(String),
    Complete(String),
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub actions: Vec<Action>,
    /// How far the rollout is; none if the event tells nothing about it.
    pub progress: Option<Progress>,
    /// None if not everything is known.
    pub look: Option<Look>,
}

impl From<Progress> for Outcome {
    fn from(progress: Progress) -> Self {
        Self { progress: Some(progress), ..Self::default() }
    }
}

/// The facts of a look that are all known.
struct Seeing<'a> {
    world: &'a World<'a>,
    record: &'a Record,
    /// The steps, if they hold; or the way back.
    reached: Option<&'a Reached>,
    /// Why new workloads do not get the earlier revision.
    barred: Option<String>,
    restarted: Option<Timestamp>,
    /// A resume that has not been followed yet.
    resumed: Option<Timestamp>,
    look: Look,
    /// The writes that are not over, as the record has them.
    open: BTreeMap<String, Write>,
    /// The writes that are over and have written nothing for certain, by their names in the record.
    untouched: BTreeSet<String>,
}

impl Machine {
    /// The state after `event`, and what is to be done.
    pub fn step(&mut self, event: Event<'_>) -> Outcome {
        match event {
            Event::Look(world) => self.looked(world),
            Event::Recorded(result) => {
                self.trouble = result.err();
                Outcome::default()
            }
            Event::Answered { object, member, answer, now } => {
                self.memory.answered(object, member, answer, now);
                Outcome::default()
            }
        }
    }

    /// The owners of which a pod may be evicted at any moment, because `record` of a policy with these `members` announces it.
    pub fn evicting(&self, record: &Record, members: &Members, now: Timestamp) -> Busy {
        self.memory.evicting(record, members, now)
    }

    /// What this leader has learnt about single workloads.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn looked(&mut self, world: &World<'_>) -> Outcome {
        let Some(revision) = world.revisions.last().filter(|last| last.revision.hash == world.aim.update) else {
            return Progress::NewRevision("its revision is not stored yet".into()).into();
        };
        let record = &revision.record;
        if record.progress.is_replaced {
            return held(record, "its rollout begins again").into();
        }
        if record.progress.times.begun.is_none() {
            return self.adopt(world, record);
        }
        let ahead = Ahead::of(world.commands, world.revisions.iter().map(|stored| stored.record.ahead), world.now);
        if ahead != record.ahead {
            let record = Record { ahead, ..record.clone() };
            return self.record(world, record, Progress::RollingOut("recording the time of a command".into()));
        }
        let over = record.reached.as_ref().filter(|reached| !holds(reached, &world.settings.steps));
        if let Some(of_all) = over.and_then(Reached::of_all) {
            let record = Record { reached: Some(of_all), ..record.clone() };
            return self.record(world, record, Progress::RollingOut("all other workloads follow".into()));
        }
        let restarted = world.commands.counted(ahead).restarted;
        self.turn_to(world, record, restarted);
        let reached = record.reached.as_ref().filter(|reached| holds(reached, &world.settings.steps));
        let barred = reached.and_then(|reached| stored::barred(reached, world.revisions, world.queries.rejection));
        let known = match known(world, record, reached, barred.is_some()) {
            Ok(known) => known,
            Err(progress) => return progress.into(),
        };
        let is_in_scope = |object: &ObjectRef, member: &Member| {
            reached.is_none_or(|reached| reached.undone || reached.extent.has_place(&object.namespace, &member.place))
        };
        let facts = facts(world, record, known, restarted, &is_in_scope);
        let look = self.memory.look(&facts);
        let open = self.memory.still_open(&facts);
        let resumed =
            world.commands.resumed.filter(|asked| is_new(*asked, record.progress.followed.resumed, world.now));
        let is_untouched = |(name, write): &(&String, &Write)| self.memory.has_written_nothing(&facts, name, write);
        let untouched = record.progress.writes.iter().filter(is_untouched).map(|(name, _)| name.clone()).collect();
        let seeing = Seeing { world, record, reached, barred, restarted, resumed, look, open, untouched };
        let mut outcome = self.decide(&seeing);
        // What a person must do comes first, because a condition has little room.
        let by_hand = seeing.look.by_hand.join("; ");
        outcome.progress = outcome.progress.map(|progress| progress.after(&by_hand));
        outcome.look = Some(seeing.look);
        outcome
    }

    /// Begins the rollout of a revision that was stored while the policy did not roll.
    fn adopt(&mut self, world: &World<'_>, record: &Record) -> Outcome {
        let mut record = record.clone();
        record.progress.times.begun = Some(world.now);
        record.progress.times.disturbed.get_or_insert(world.now);
        record.progress.followed.resumed = world.commands.resumed;
        self.record(world, record, Progress::NewRevision("reading how far it is".into()))
    }

    /// Forgets the rollout that was, if this is another one.
    fn turn_to(&mut self, world: &World<'_>, record: &Record, restarted: Option<Timestamp>) {
        let about = About {
            update: world.aim.update.to_owned(),
            begun: record.progress.times.begun,
            is_undone: record.reached.as_ref().is_some_and(|reached| reached.undone),
            restarted,
            resumed: record.progress.followed.resumed,
        };
        if self.about.as_ref() != Some(&about) {
            self.about = Some(about);
            self.memory.begin();
        }
    }

    fn decide(&mut self, seeing: &Seeing<'_>) -> Outcome {
        let Seeing { world, record, look, .. } = seeing;
        if look.is_counting {
            return held(record, "what it matches is being compared with this revision").into();
        }
        if let Some(asked) = seeing.resumed {
            return self.resume(seeing, asked);
        }
        if !look.failures.is_empty() && seeing.is_going() && record.progress.halted.is_none() {
            return self.failed(seeing);
        }
        if let Some(halted) = &record.progress.halted {
            return self.halted(seeing, &halted.message);
        }
        if seeing.reached.is_some_and(|reached| reached.undone) {
            // The record lost its halt. An undo goes on without it.
            return self.halted(seeing, "the rollout failed");
        }
        if world.is_paused {
            return Progress::Paused("`spec.updateStrategy.paused` is true".into()).into();
        }
        // What is said while only what was left is tried again.
        let mut meanwhile = None;
        if let Some(reached) = seeing.reached {
            if let Some(outcome) = self.advance(seeing, reached) {
                return outcome;
            }
            let paused = reached.paused(&world.settings.steps).filter(|_| look.numbers.remaining == 0);
            meanwhile = paused.map(Progress::Paused);
        } else if look.is_complete || !seeing.is_going() && look.numbers.remaining == 0 {
            if seeing.is_going() || look.next.is_empty() {
                return self.complete(seeing);
            }
            meanwhile = Some(Progress::Complete(words::told(look)));
        }
        let mut outcome = self.proceed(seeing);
        if matches!(outcome.progress, Some(Progress::RollingOut(_))) {
            outcome.progress = meanwhile.or(outcome.progress);
        }
        outcome
    }

    /// Records what has failed: its namespaces wait, and at `failureThreshold` the rollout halts.
    fn failed(&mut self, seeing: &Seeing<'_>) -> Outcome {
        let Seeing { world, record, look, .. } = seeing;
        let mut next = (*record).clone();
        let threshold = world.settings.failure_threshold();
        let mut halted = None;
        for failure in &look.failures {
            next.progress.failed.insert(key(&failure.object));
            if next.progress.failed.len() >= threshold {
                halted = Some(words::failed(failure, next.progress.failed.len()));
                break;
            }
        }
        next.progress.halted = halted.clone().map(|message| Halted { at: world.now, message });
        seeing.close(&mut next.progress);
        // The event comes after the record.
        let mut outcome = self.record(world, next, Progress::RollingOut(words::told(look)));
        outcome.actions.extend(halted.map(|message| Action::Tell(Told::Halted(message))));
        outcome
    }

    /// Follows `scpol rollout resume`: what has failed is given another chance, and a pause ends.
    fn resume(&mut self, seeing: &Seeing<'_>, asked: Timestamp) -> Outcome {
        let Seeing { world, record, .. } = seeing;
        if seeing.reached.is_some() && world.namespaces.is_none() {
            return Progress::RollingOut("reading the Namespaces".into()).into();
        }
        let mut next = (*record).clone();
        let was_halted = next.progress.halted.take().is_some();
        next.progress.failed.clear();
        // The pods that were missed have had their chance, and what is missing has as much time again.
        next.progress.evicted.values_mut().for_each(|evicted| (evicted.at, evicted.newest) = (world.now, None));
        next.progress.followed.resumed = Some(asked);
        next.progress.followed.resumed_at = Some(world.now);
        seeing.close(&mut next.progress);
        if let Some(reached) = seeing.reached {
            next.reached = Some(match (reached.undone, world.namespaces) {
                (true, _) => Reached::begin(&reached.from, world.now),
                (false, Some(namespaces)) if !was_halted && record.progress.failed.is_empty() => {
                    let at = Now { namespaces, is_done: false, is_resumed: true, now: world.now };
                    reached.advance(&world.settings.steps, &at)
                }
                // A pause that was not over begins again: it is for looking at what has failed.
                (false, _) => Reached { since: world.now, ..reached.clone() },
            });
        }
        self.record(world, next, Progress::RollingOut("it goes on after `scpol rollout resume`".into()))
    }

    /// Begins the next step, if the one that is `reached` is over. None if workloads are to be updated now.
    fn advance(&mut self, seeing: &Seeing<'_>, reached: &Reached) -> Option<Outcome> {
        let Seeing { world, record, look, .. } = seeing;
        let Some(namespaces) = world.namespaces else {
            return Some(Progress::RollingOut("reading the Namespaces".into()).into());
        };
        // What waits for a resume holds a pause, too.
        if look.numbers.held > 0 {
            return None;
        }
        let at = Now { namespaces, is_done: look.is_complete, is_resumed: false, now: world.now };
        let further = reached.advance(&world.settings.steps, &at);
        if further != *reached {
            let steps = world.settings.steps.len();
            let message =
                format!("step {} of {steps}; {}", further.step.saturating_add(1).min(steps), words::told(look));
            let mut next = (*record).clone();
            next.reached = Some(further);
            next.progress.evicted.retain(|owner, _| look.unfinished.contains(owner));
            seeing.close(&mut next.progress);
            return Some(self.record(world, next, Progress::RollingOut(message)));
        }
        // A new workload that is not ready yet ends no pause.
        let paused = reached.paused(&world.settings.steps).filter(|_| look.is_idle());
        let is_over = look.is_complete && look.is_idle();
        let paused = paused.map(|why| match look.is_complete {
            true => why,
            false => [why].iter().chain(&look.waits).map(String::as_str).collect::<Vec<_>>().join("; "),
        });
        paused.or_else(|| is_over.then(|| words::waiting(look))).map(|why| Progress::Paused(why).into())
    }

    /// What a halted rollout does: nothing, or it goes back.
    fn halted(&mut self, seeing: &Seeing<'_>, message: &str) -> Outcome {
        let Seeing { world, record, look, .. } = seeing;
        let is_undone = seeing.reached.is_some_and(|reached| reached.undone);
        if !is_undone {
            if world.settings.on_failure == OnFailure::Halt {
                return Progress::Halted(message.to_owned()).into();
            }
            let current = stored::current(world.revisions).filter(|current| current.revision.hash != world.aim.update);
            let Some(current) = current else {
                let why = record.complete.map(|_| "this revision was complete before, and has failed now");
                return Progress::Halted(words::no_way_back(message, why)).into();
            };
            if let Some(why) = (world.queries.rejection)(current) {
                return Progress::Halted(words::no_way_back(message, Some(&why))).into();
            }
            let from = &current.revision.hash;
            let mut next = (*record).clone();
            next.reached = Some(Reached::begin(from, world.now).undo(world.now));
            // Their replacements have what now goes back.
            next.progress.evicted.clear();
            seeing.close(&mut next.progress);
            let number = current.revision.number;
            return self.record(world, next, Progress::Halted(format!("{message}; going back to revision {number}")));
        }
        if let Some(barred) = &seeing.barred {
            return Progress::Halted(words::no_way_back(message, Some(barred))).into();
        }
        if world.is_paused {
            return Progress::Halted(format!("{message}; `spec.updateStrategy.paused` is true")).into();
        }
        if look.is_idle() && seeing.open.is_empty() {
            return Progress::Halted(words::gone_back(message, look)).into();
        }
        let mut outcome = self.proceed(seeing);
        outcome.progress = outcome.progress.map(|progress| match progress {
            Progress::RollingOut(back) => Progress::Halted(format!("{message}; going back: {back}")),
            other => other,
        });
        outcome
    }

    /// Records that the rollout is complete.
    fn complete(&mut self, seeing: &Seeing<'_>) -> Outcome {
        let Seeing { world, record, look, .. } = seeing;
        let mut next = (*record).clone();
        let is_going = seeing.is_going();
        if !is_going {
            seeing.close(&mut next.progress);
        }
        if look.is_complete {
            next.progress.times.disturbed = None;
            next.progress.evicted.retain(|owner, _| look.unfinished.contains(owner));
        }
        if !is_going {
            let complete = Progress::Complete(words::told(look));
            if next.progress == record.progress {
                return complete.into();
            }
            return self.record(world, next, complete);
        }
        // The clock of an earlier leader may have been fast. Of two equal times that of the later revision counts.
        let before = stored::current(world.revisions).and_then(|current| current.record.complete);
        next.complete = Some(before.map_or(world.now, |before| before.max(world.now)));
        next.reached = None;
        next.progress.times.ended = Some(world.now);
        next.progress.followed.restarted = seeing.restarted;
        next.progress.close(&BTreeMap::new(), world.now);
        // The event comes after the record.
        let mut outcome = self.record(world, next, Progress::RollingOut(words::told(look)));
        outcome.actions.push(Action::Tell(Told::Complete(words::told(look))));
        outcome
    }

    /// Updates workloads: what the record announces, or else announces more.
    fn proceed(&mut self, seeing: &Seeing<'_>) -> Outcome {
        let Seeing { world, record, look, .. } = seeing;
        if let Some(why) = self.memory.refused(world.now, world.leader.again) {
            return Progress::Halted(format!("{}: {why}", Code::MissingRight)).into();
        }
        let progress = Progress::RollingOut(words::waiting(look));
        let (announced, new): (Vec<_>, Vec<_>) = look.next.iter().cloned().partition(|next| next.announced.is_some());
        let is_over = |(name, write): (&String, &Write)| write.evict && !seeing.open.contains_key(name);
        // The minute of an eviction begins when it is known to be over.
        let has_evicted = look.is_limited && record.progress.writes.iter().any(is_over);
        // After the end, an attempt in vain is over at once: else it would mark the time since which something is unavailable.
        let is_vain = |name: &String| seeing.untouched.contains(name) && !seeing.open.contains_key(name);
        let was_vain = !seeing.is_going() && record.progress.writes.keys().any(is_vain);
        if !announced.is_empty() || new.is_empty() && !has_evicted && !was_vain {
            let actions = announced.into_iter().map(Action::Update).collect();
            return Outcome { actions, progress: Some(progress), look: None };
        }
        let mut next = (*record).clone();
        seeing.close(&mut next.progress);
        next.progress.evicted.retain(|owner, _| look.unfinished.contains(owner));
        let second = world.now.as_second();
        // After the end, most attempts are in vain: what was left is tried again.
        if !new.is_empty() && seeing.is_going() {
            next.progress.times.disturbed.get_or_insert(world.now);
        }
        for candidate in &new {
            let write = Write {
                uid: candidate.uid.to_string(),
                at: world.now,
                by: world.leader.name.to_owned(),
                evict: candidate.may_evict,
            };
            self.memory.announce(&candidate.object);
            next.progress.writes.insert(key(&candidate.object), write);
            if candidate.may_evict {
                let count = next.progress.evictions.entry(second).or_default();
                *count = count.saturating_add(1);
            }
            let owner = candidate.owner.as_ref().filter(|_| candidate.may_evict);
            let has_room =
                |owner: &str, known: &BTreeMap<String, Evicted>| known.len() < MOST || known.contains_key(owner);
            if let Some(owner) = owner.filter(|owner| has_room(owner, &next.progress.evicted)) {
                let (pod, uid) = (key(&candidate.object), candidate.uid.to_string());
                let evicted = Evicted { pod, uid, at: world.now, newest: candidate.newest };
                next.progress.evicted.insert(owner.to_string(), evicted);
            }
            let broken = owner.map_or_else(|| key(&candidate.object), ToString::to_string);
            if !candidate.is_broken {
                next.progress.broken.remove(&broken);
            } else if next.progress.broken.len() < MOST {
                next.progress.broken.insert(broken);
            }
        }
        self.record(world, next, progress)
    }

    /// Has `record` written. `progress` holds once it is.
    fn record(&mut self, world: &World<'_>, record: Record, progress: Progress) -> Outcome {
        let progress = match &self.trouble {
            Some(why) => progress.noting(&format!("cannot record how far it is: {why}")),
            None => progress,
        };
        let actions = vec![Action::Record(world.aim.update.to_owned(), Box::new(record))];
        Outcome { actions, progress: Some(progress), look: None }
    }
}

impl Seeing<'_> {
    /// Closes the writes that are over in `progress`. After the end, those that may have written something disturb workloads from then on.
    fn close(&self, progress: &mut super::record::Course) {
        let over = self.record.progress.writes.iter().filter(|(name, _)| !self.open.contains_key(*name));
        for (name, write) in over {
            if self.untouched.contains(name) {
                progress.evicted.retain(|_, evicted| evicted.uid != write.uid);
            } else if !self.is_going() {
                progress.times.disturbed = Some(progress.times.disturbed.map_or(write.at, |since| since.min(write.at)));
            }
        }
        progress.close(&self.open, self.world.now);
    }

    /// Whether the rollout, or a restart, has not ended: only then it can fail.
    fn is_going(&self) -> bool {
        is_going(self.record, self.restarted)
    }
}

fn is_going(record: &Record, restarted: Option<Timestamp>) -> bool {
    let progress = &record.progress;
    let is_new = |restarted: Timestamp| progress.followed.restarted.is_none_or(|done| done < restarted);
    progress.times.ended.is_none() || restarted.is_some_and(is_new)
}

/// The workloads and what makes pods.
///
/// # Errors
/// Why the rollout cannot go on before more is known.
fn known<'a>(
    world: &World<'a>,
    record: &Record,
    reached: Option<&Reached>,
    is_barred: bool,
) -> Result<(&'a Members, Makers<'a>), Progress> {
    let makers = world.makers.as_ref().map_err(|unknown| match unknown {
        Unknown::Reading => held(record, "reading what makes pods"),
        Unknown::Forbidden(why) => {
            Progress::Halted(format!("{}: {why}; apply `config/rbac/rollout`", Code::MissingRight))
        }
    })?;
    let published = world.aim.published.earlier.map(|(_, extent)| extent);
    let is_published = published.is_none() || published == reached.map(|reached| &reached.extent);
    let is_split = reached.is_none_or(|_| published.is_some());
    // If the earlier revision is barred, all get the latest.
    if !is_published || !is_split && !is_barred {
        return Err(held(record, "it waits until all replicas can know the step that it is at"));
    }
    if !world.aim.published.is_in_force {
        return Err(held(record, "it waits until this revision is in effect for new workloads"));
    }
    let Some(members) = world.members else {
        return Err(held(record, "what it matches is being compared with this revision"));
    };
    Ok((members, *makers))
}

/// The progress of a rollout that can only wait: a halt stays one.
fn held(record: &Record, message: &str) -> Progress {
    match &record.progress.halted {
        Some(halted) => Progress::Halted(halted.message.clone()),
        None => Progress::NewRevision(message.to_owned()),
    }
}

fn facts<'a>(
    world: &'a World<'a>,
    record: &'a Record,
    (members, makers): (&'a Members, Makers<'a>),
    restarted: Option<Timestamp>,
    is_in_scope: &'a dyn Fn(&ObjectRef, &Member) -> bool,
) -> Facts<'a> {
    let span = |duration: Duration| SignedDuration::try_from(duration).unwrap_or_default();
    let settings = world.settings;
    let is_undone = record.reached.as_ref().is_some_and(|reached| reached.undone);
    Facts {
        aim: world.aim,
        leader: world.leader,
        now: world.now,
        members,
        makers,
        record,
        restarted,
        pace: Pace {
            max_unavailable: settings.max_unavailable.of(members.len()),
            per_namespace: settings.max_unavailable_per_namespace.as_ref(),
            min_ready: span(settings.min_ready()),
            deadline: span(settings.progress_deadline()),
        },
        can_fail: is_going(record, restarted) && record.progress.halted.is_none(),
        // All that was updated goes back.
        held: if is_undone { BTreeSet::new() } else { record.progress.held() },
        is_in_scope,
        queries: world.queries,
    }
}

/// Whether the command of the time `asked` has not been followed, if `seen` is the last one that was. A command that an edit puts
/// back to an earlier time is none.
fn is_new(asked: Timestamp, seen: Option<Timestamp>, now: Timestamp) -> bool {
    seen.is_none_or(|seen| asked > seen || seen > now && asked != seen)
}
