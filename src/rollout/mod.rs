//! Brings stored workloads up to date with their policy, at the pace of `spec.updateStrategy`.
//!
//! One task of the leader looks at each policy about once a second:
//!
//! | part | what |
//! |---|---|
//! | `store` | what each policy has added since it exists, as ControllerRevisions |
//! | `owners` | the controllers that make pods again, and how many each keeps |
//! | `plan` | which workloads are next, how far the rollout is, whether it has failed; pure |
//! | `act` | one guarded write to one workload |
//!
//! What a write does to a workload is decided by [`crate::update`]. Nothing is kept that cannot be read again: what a policy matches is
//! in the [`fleet`](crate::workloads::fleet), which the watches fill, and how far a rollout is follows from it. The steps, an undo and
//! the end of a rollout are recorded in its ControllerRevision; a halt, in the status of the policy.

pub mod act;
pub mod owners;
pub mod plan;
mod store;

use self::act::Acted;
use self::plan::{Facts, Look, Pace, Rolling};
use self::store::Revisions;
use crate::api::code::Code;
use crate::api::condition::Progress;
use crate::api::v1alpha1::{OnFailure, RollingUpdate};
use crate::cluster::client::CallError;
use crate::cluster::events::{EventReason, Subject};
use crate::cluster::policies::Stored;
use crate::cluster::revisions::{self, Ahead, Commands, Seen};
use crate::engine::registration::may;
use crate::metrics::RolloutWrite;
use crate::policy::{Policy, Site, checks};
use crate::revision::Revision;
use crate::steps::{Now, Reached};
use crate::survival::{lock, survive};
use crate::update::Carries;
use crate::workload::Kind;
use crate::workloads::Workloads;
use crate::workloads::fleet::{Member, Members, rolls};
use crate::workloads::waiting::ObjectRef;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The most writes that run at the same time.
const WRITES: usize = 8;

/// How far the rollout of a policy is, for its status and the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The hash of the revision that the policy had at the last look. All else is about that one.
    pub looked_at: Option<String>,
    /// The hash of the last revision whose rollout was complete.
    pub current: Option<String>,
    /// The hash of the revision of the policy as it is now.
    pub update: Option<String>,
    /// None if the policy does not roll.
    pub progress: Option<Progress>,
    pub is_halted: bool,
    /// The time of the last `scpol rollout restart` that it follows.
    pub restarted: Option<Timestamp>,
    pub look: Look,
}

impl State {
    /// The state for a policy that has the revision `hash` now. Of that one nothing is known before the next look.
    #[must_use]
    pub fn now(self, hash: Option<&str>) -> Self {
        if self.progress.is_none() || hash.is_none() || self.looked_at.as_deref() == hash {
            return self;
        }
        let progress = Progress::NewRevision("the latest edit has not been looked at yet".into());
        let look = Look { ready: self.look.ready, ..Look::default() };
        Self { update: hash.map(str::to_owned), progress: Some(progress), is_halted: false, look, ..self }
    }
}

/// The states of all policies, by name.
#[derive(Default)]
pub struct Board(Mutex<BTreeMap<String, State>>);

impl Board {
    /// The state of `policy`; none before the leader has looked at it.
    pub fn of(&self, policy: &str) -> Option<State> {
        lock(&self.0).get(policy).cloned()
    }

    /// All states.
    pub fn all(&self) -> BTreeMap<String, State> {
        lock(&self.0).clone()
    }
}

/// Rolls for ever. `per_minute` is the most evictions in a minute, for all policies together.
pub async fn run(workloads: &Arc<Workloads>, board: &Board, per_minute: u32) {
    let operator = &workloads.operator;
    let namespace = operator.site().operator_namespace.clone();
    let mut roller = Roller {
        workloads,
        board,
        revisions: Revisions::new(&operator.client, &namespace),
        are_read: false,
        owners: owners::Watched::default(),
        evictions: Evictions { per_minute: per_minute as usize, last: VecDeque::new() },
        policies: BTreeMap::new(),
        refused: None,
    };
    let mut tick = tokio::time::interval(operator.timing.rollout.tick);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        roller.turn().await;
    }
}

/// The evictions of the last minute.
struct Evictions {
    per_minute: usize,
    last: VecDeque<Instant>,
}

impl Evictions {
    fn may(&mut self, now: Instant) -> bool {
        while self.last.front().is_some_and(|then| now.duration_since(*then) >= Duration::from_secs(60)) {
            self.last.pop_front();
        }
        let may = self.last.len() < self.per_minute;
        if may {
            self.last.push_back(now);
        }
        may
    }
}

struct Roller<'a> {
    workloads: &'a Arc<Workloads>,
    board: &'a Board,
    revisions: Revisions,
    are_read: bool,
    owners: owners::Watched,
    evictions: Evictions,
    policies: BTreeMap<String, Of>,
    /// When and why the server last refused to let us read or keep revisions.
    refused: Option<(Instant, String)>,
}

/// What is known of the rollout of one policy.
#[derive(Default)]
struct Of {
    uid: String,
    /// When and why the server last refused to keep its revision.
    refused: Option<(Instant, String)>,
    /// The update revision that [`Self::rolling`] is about.
    update: String,
    rolling: Rolling,
    halted: Option<String>,
    /// The time of the last `scpol rollout resume`.
    resumed: Option<Timestamp>,
    /// The words of a PodDisruptionBudget, or of a missing right, and until when it is not asked again.
    waits: Option<(Instant, Wait)>,
    /// When a look panicked. The next one waits.
    panicked: Option<Instant>,
    /// Why new workloads do not get the revision from which the steps of the rollout go on, with what was judged: the hashes of
    /// that revision and of the policy's spec.
    barred: Option<(String, String, Option<String>)>,
    /// What else the condition says.
    note: String,
    state: State,
}

#[derive(Clone, Debug)]
enum Wait {
    Budget(String),
    Refused(String),
}

impl Roller<'_> {
    /// Looks at each policy once.
    async fn turn(&mut self) {
        let operator = &self.workloads.operator;
        let snapshot = operator.snapshot();
        if !snapshot.synced {
            return;
        }
        self.owners.follow(operator, &snapshot.policies);
        self.workloads.fleet(|fleet| {
            fleet.retain_policies(|name| snapshot.policies.get(name).is_some_and(|policy| rolls(policy)))
        });
        self.policies.retain(|name, _| snapshot.stored.contains_key(name));
        self.revisions
            .retain(snapshot.stored.iter().map(|(name, stored)| (name.clone(), stored.uid.clone())).collect());
        for (name, stored) in snapshot.stored.iter() {
            let Ok(policy) = &stored.parsed else { continue };
            let known = self.policies.entry(name.clone()).or_default();
            if known.uid != stored.uid {
                *known = Of { uid: stored.uid.clone(), resumed: stored.resumed, ..Of::default() };
            }
            self.look_at_safely(policy, stored).await;
        }
        *lock(&self.board.0) = self.policies.iter().map(|(name, known)| (name.clone(), known.state.clone())).collect();
    }

    /// Looks at `policy`. A panic costs only this rollout, for a while.
    async fn look_at_safely(&mut self, policy: &Arc<Policy>, stored: &Stored) {
        let operator = &self.workloads.operator;
        let (again, now) = (operator.timing.rollout.again, Instant::now());
        let panicked = self.policies.get(&policy.name).and_then(|known| known.panicked);
        if panicked.is_some_and(|at| now.duration_since(at) < again) {
            return;
        }
        // Boxed, because the future of a look is large.
        let look = Box::pin(self.look_at(policy, stored));
        let is_done = survive(&operator.metrics, "looking at a rollout", look).await.is_some();
        if let Some(known) = self.policies.get_mut(&policy.name) {
            known.panicked = (!is_done).then_some(now);
        }
        if !is_done {
            let message = "the operator panicked over this rollout, which is a defect of the operator's; see its log";
            self.conclude(policy, None, Progress::Halted(format!("{}: {message}", Code::Panicked)));
        }
    }

    async fn look_at(&mut self, policy: &Arc<Policy>, stored: &Stored) {
        let Some(hash) = policy.revision.as_deref() else { return };
        if let Some(known) = self.policies.get_mut(&policy.name) {
            known.state.looked_at = Some(hash.to_owned());
        }
        match self.record(policy, stored, hash).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(message) => return self.conclude(policy, None, Progress::Halted(message)),
        }
        let current = self.revisions.current(&policy.name).map(|current| current.revision.hash.clone());
        let Some(known) = self.policies.get_mut(&policy.name) else { return };
        known.state.update = Some(hash.to_owned());
        known.state.current = current;
        if known.update != hash {
            let is_halted = stored.status["halted"] == true && stored.status["updateRevision"] == hash;
            let halted = is_halted.then(|| halted_before(stored));
            let (state, resumed) = (std::mem::take(&mut known.state), known.resumed);
            *known = Of { uid: known.uid.clone(), update: hash.to_owned(), halted, resumed, state, ..Of::default() };
        }
        if known.resumed != stored.resumed {
            // What has failed is given another chance.
            (known.resumed, known.halted, known.rolling) = (stored.resumed, None, Rolling::default());
        }
        let Some(settings) = policy.spec.rolling_update().filter(|_| rolls(policy)) else {
            known.state = State { looked_at: known.state.looked_at.take(), ..State::default() };
            return;
        };
        known.state.restarted = stored.restarted;
        self.roll(policy, stored, &settings).await;
    }

    /// Stores the content of `policy`, which has that `hash`, as its latest revision. Returns false if it cannot be stored and need not.
    ///
    /// # Errors
    /// Why it cannot be stored.
    async fn record(&mut self, policy: &Policy, stored: &Stored, hash: &str) -> Result<bool, String> {
        if self.are_read && self.revisions.has(&policy.name, hash) {
            return Ok(true);
        }
        let now = Instant::now();
        let refused = |why: String| if rolls(policy) { Err(why) } else { Ok(false) };
        let timing = &self.workloads.operator.timing.rollout;
        let is_any = self.workloads.operator.snapshot().policies.iter().any(|policy| rolls(policy));
        let pause = if is_any { timing.again } else { timing.rights };
        // The revision of one policy holds up no other one.
        let own = self.policies.get(&policy.name).and_then(|known| known.refused.as_ref());
        let recent = [self.refused.as_ref(), own].into_iter().flatten().find(|(at, _)| now.duration_since(*at) < pause);
        if let Some((_, why)) = recent {
            return refused(why.clone());
        }
        if !self.are_read && !self.may_keep_revisions().await {
            self.refused = Some((now, refusal()));
            if is_any {
                warn!(error = refusal(), "Cannot keep revisions; without them nothing is rolled out");
            }
            return refused(refusal());
        }
        match self.store(policy, stored, hash).await {
            Ok(()) => Ok(true),
            Err(error) => {
                let why = format!("{}: {error}", Code::ServerAway);
                match self.policies.get_mut(&policy.name).filter(|_| self.are_read) {
                    Some(known) => known.refused = Some((now, why.clone())),
                    None => self.refused = Some((now, why.clone())),
                }
                warn!(policy = policy.name, %error, "Cannot keep revisions; without them nothing is rolled out");
                refused(why)
            }
        }
    }

    async fn store(&mut self, policy: &Policy, stored: &Stored, hash: &str) -> Result<(), CallError> {
        if !self.are_read {
            self.revisions.read().await?;
            self.are_read = true;
            self.tell_foreign();
        }
        if !self.revisions.has(&policy.name, hash) {
            self.revisions.store(policy, commands(stored), Timestamp::now()).await?;
        }
        let current = self.revisions.current(&policy.name).map(|current| current.revision.hash.clone());
        // Steps go on from this one.
        let from = self.revisions.get(&policy.name, hash).and_then(|update| update.reached.as_ref());
        let from = from.map(|reached| reached.from.clone());
        let is_needed = |revision: &Revision| {
            revision.hash == hash || [&current, &from].into_iter().any(|kept| kept.as_ref() == Some(&revision.hash))
        };
        self.revisions.prune(&policy.name, policy.spec.revision_history_limit(), is_needed).await
    }

    /// Records an event about each stored revision that says that it is one of a policy, and is not.
    fn tell_foreign(&self) {
        let policies = self.workloads.operator.snapshot().policies;
        for foreign in self.revisions.foreign() {
            let Some(policy) = policies.get(&foreign.policy) else { continue };
            let message = format!("ControllerRevision `{}` is ignored: {}", foreign.name, foreign.why);
            let subject = Subject::policy(&policy.name, &policy.uid);
            self.workloads.recorder.tell(subject, EventReason::RevisionIgnored, revisions::Foreign::CODE, &message);
        }
    }

    /// Whether we have the right to read revisions. Without an answer, the attempt will tell.
    async fn may_keep_revisions(&self) -> bool {
        let operator = &self.workloads.operator;
        let namespace = &operator.site().operator_namespace;
        for verb in ["list", "watch"] {
            if !may(&operator.client, verb, "apps", "controllerrevisions", Some(namespace), None).await.unwrap_or(true)
            {
                return false;
            }
        }
        true
    }

    async fn roll(&mut self, policy: &Arc<Policy>, stored: &Stored, settings: &RollingUpdate) {
        let name = policy.name.as_str();
        let now = Timestamp::now();
        let owners = match self.owners_for(policy) {
            Ok(owners) => owners,
            Err(progress) => return self.conclude(policy, None, progress),
        };
        let Some(known) = self.policies.get_mut(name) else { return };
        let Some(revision) = self.revisions.get(name, &known.update).cloned() else { return };
        let reached = revision.reached.clone().filter(|reached| reached.undone || !settings.steps.is_empty());
        let barred = self.barred(policy, reached.as_ref().filter(|reached| !reached.has_all(&settings.steps)));
        let times = match self.times(name, stored, now).await {
            Ok(times) => times,
            Err(error) => {
                let message = format!("cannot record that a command is ahead of the clock: {error}");
                return self.conclude(policy, None, Progress::RollingOut(message));
            }
        };
        let Some(known) = self.policies.get_mut(name) else { return };
        known.note = note(stored, barred.as_deref());
        let (restarted, resumed) = times;
        let (look, next) =
            look(self.workloads, policy, settings, &owners, known, &revision, reached.as_ref(), restarted, now);
        if barred.is_some() && reached.as_ref().is_some_and(|reached| reached.undone) {
            let halted = known.halted.clone().unwrap_or_else(|| "the rollout failed".to_owned());
            return self.conclude(policy, Some(look), Progress::Halted(no_way_back(&halted, barred.as_deref())));
        }
        let split = reached.as_ref().filter(|_| barred.is_none());
        if let Some(progress) = self.not_yet(policy, stored, &look, split, settings) {
            return self.conclude(policy, Some(look), progress);
        }
        let Some(known) = self.policies.get_mut(name) else { return };
        if let Some(failure) = look.failure.as_ref().filter(|_| known.halted.is_none()) {
            let message = told_failure(failure);
            warn!(policy = policy.name, message, "The rollout is halted");
            let subject = Subject::policy(&policy.name, &policy.uid);
            self.workloads.recorder.tell(subject, EventReason::RolloutHalted, Code::Halted, &message);
            known.halted = Some(message);
        }
        if let Some(halted) = known.halted.clone() {
            let progress = self.halted(policy, settings, halted, &revision, &look, next).await;
            return self.conclude(policy, Some(look), progress);
        }
        if policy.spec.is_paused() {
            return self.conclude(policy, Some(look), Progress::Paused("`spec.updateStrategy.paused` is true".into()));
        }
        if let Some(reached) = reached.filter(|reached| !reached.has_all(&settings.steps)) {
            if let Some(progress) = self.step(policy, settings, &reached, &look, resumed, now).await {
                return self.conclude(policy, Some(look), progress);
            }
        } else if look.is_complete {
            let progress = self.complete(policy, &revision, &look, now).await;
            return self.conclude(policy, Some(look), progress);
        }
        let progress = self.proceed(policy, settings, &look, next).await;
        self.conclude(policy, Some(look), progress);
    }

    /// Begins the next step, if the one that is `reached` is over. Returns the progress unless workloads are to be updated now.
    async fn step(
        &mut self,
        policy: &Policy,
        settings: &RollingUpdate,
        reached: &Reached,
        look: &Look,
        resumed: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Progress> {
        let hash = policy.revision.as_deref()?;
        let namespaces = self.namespaces_of(policy);
        let at = Now { namespaces: &namespaces, is_done: look.is_complete, resumed, now };
        let further = reached.advance(&settings.steps, &at);
        if further != *reached {
            let message = match self.revisions.reach(&policy.name, hash, Some(&further), None).await {
                Ok(()) => {
                    format!("step {} of {}; {}", further.step.saturating_add(1), settings.steps.len(), told(look))
                }
                Err(error) => format!("cannot record the next step: {error}"),
            };
            return Some(Progress::RollingOut(message));
        }
        look.is_complete.then(|| Progress::Paused(reached.paused(&settings.steps).unwrap_or_else(|| told(look))))
    }

    /// Why the rollout cannot begin yet.
    fn not_yet(
        &self,
        policy: &Policy,
        stored: &Stored,
        look: &Look,
        reached: Option<&Reached>,
        settings: &RollingUpdate,
    ) -> Option<Progress> {
        let operator = &self.workloads.operator;
        let wanted = reached.filter(|reached| !reached.has_all(&settings.steps)).map(|reached| &reached.updated);
        if policy.updated() != wanted {
            return Some(Progress::NewRevision("it waits until all replicas can know the step that it is at".into()));
        }
        if !stored.is_programmed() || stored.status["observedSpecHash"] != *policy.spec_hash {
            return Some(Progress::NewRevision("it waits until this revision is in force for new workloads".into()));
        }
        let is_counted = |kind: &&Arc<Kind>| {
            operator.resource(kind).is_none() || self.workloads.census(|census| census.is_whole(kind))
        };
        let are_counted = policy.kinds.iter().filter(|kind| !kind.is_job()).all(|kind| is_counted(&kind));
        let message = "what it matches is being compared with this revision";
        (!are_counted || look.is_counting).then(|| Progress::NewRevision(message.into()))
    }

    /// Why no new workload gets the revision from which the steps of `policy` go on, as far as they have `reached`.
    fn barred(&mut self, policy: &Arc<Policy>, reached: Option<&Reached>) -> Option<String> {
        let known = self.policies.get_mut(&policy.name)?;
        let Some(from) = reached.map(|reached| reached.from.as_str()) else {
            known.barred = None;
            return None;
        };
        let Some(stored) = self.revisions.get(&policy.name, from) else {
            return Some(format!(
                "{}: the revision {from}, from which it goes on, is not stored",
                Code::RevisionForeign
            ));
        };
        if let Some((of, spec, barred)) = &known.barred
            && of == from
            && *spec == policy.spec_hash
        {
            return barred.clone();
        }
        let barred = revisions::rejection(policy, &stored.revision, &self.workloads.operator.site());
        if let Some(why) = &barred {
            warn!(policy = policy.name, why, "New workloads outside the steps get the latest revision");
        }
        known.barred = Some((from.to_owned(), policy.spec_hash.clone(), barred.clone()));
        barred
    }

    /// The times of the last restart and of the last resume that count for the policy `name`. A time ahead of our clock counts as
    /// the time at which a leader first saw it, which is recorded with the update revision.
    ///
    /// # Errors
    /// If it cannot be recorded. Nothing may follow such a time then, because the next leader would follow it again.
    async fn times(
        &mut self,
        name: &str,
        stored: &Stored,
        now: Timestamp,
    ) -> Result<(Option<Timestamp>, Option<Timestamp>), CallError> {
        let ahead = Ahead::of(commands(stored), self.revisions.of(name).iter().map(|stored| stored.ahead), now);
        let update = self.policies.get(name).map(|known| known.update.clone()).unwrap_or_default();
        if self.revisions.get(name, &update).is_some_and(|revision| revision.ahead != ahead) {
            self.revisions.note_ahead(name, &update, &ahead).await?;
        }
        let counts = |asked: Option<Timestamp>, seen: Option<Seen>| seen.map(|seen| seen.at).or(asked);
        Ok((counts(stored.restarted, ahead.restarted), counts(stored.resumed, ahead.resumed)))
    }

    /// The makers of pods, if the policy targets pods.
    ///
    /// # Errors
    /// Why they are not known.
    fn owners_for(&self, policy: &Policy) -> Result<Arc<plan::Owners>, Progress> {
        if !policy.kinds.iter().any(|kind| kind.is_pod()) {
            return Ok(Arc::default());
        }
        let timing = &self.workloads.operator.timing.watch;
        self.owners.owners(Instant::now(), timing).map_err(|message| match message.is_empty() {
            true => Progress::NewRevision("reading what makes pods".into()),
            false => Progress::Halted(format!("{}: {message}; apply `config/rbac/rollout`", Code::MissingRight)),
        })
    }

    /// The namespaces that `policy` covers.
    fn namespaces_of(&self, policy: &Policy) -> BTreeMap<String, Arc<Value>> {
        let operator = &self.workloads.operator;
        let site = operator.site();
        let mut namespaces = operator.namespaces.all();
        namespaces.retain(|name, object| covers(policy, &site, name, object));
        namespaces
    }

    /// What a halted rollout does: nothing, or it goes back.
    async fn halted(
        &mut self,
        policy: &Arc<Policy>,
        settings: &RollingUpdate,
        halted: String,
        revision: &revisions::Stored,
        look: &Look,
        next: Vec<(ObjectRef, Member)>,
    ) -> Progress {
        let (name, hash) = (policy.name.as_str(), revision.revision.hash.as_str());
        let is_undone = revision.reached.as_ref().is_some_and(|reached| reached.undone);
        if settings.on_failure == OnFailure::Halt && !is_undone {
            return Progress::Halted(halted);
        }
        if !is_undone {
            let Some(current) = self.revisions.current(name) else {
                return Progress::Halted(no_way_back(&halted, None));
            };
            if let Some(why) = revisions::rejection(policy, &current.revision, &self.workloads.operator.site()) {
                return Progress::Halted(no_way_back(&halted, Some(&why)));
            }
            let from = current.revision.hash.clone();
            let now = Timestamp::now();
            let reached = Reached::begin(&from, now).undo(now);
            let undone = self.revisions.reach(name, hash, Some(&reached), None).await;
            return Progress::Halted(match undone {
                Ok(()) => format!("{halted}; going back to revision {from}"),
                Err(error) => format!("{halted}; cannot go back: {error}"),
            });
        }
        if look.failure.is_none() && !look.is_complete {
            let progress = self.proceed(policy, settings, look, next).await;
            if let Progress::RollingOut(message) = progress {
                return Progress::Halted(format!("{halted}; going back: {message}"));
            }
            return progress;
        }
        Progress::Halted(format!("{halted}; what it had changed has the revision before again"))
    }

    /// Records that the rollout is complete.
    async fn complete(
        &mut self,
        policy: &Policy,
        revision: &revisions::Stored,
        look: &Look,
        now: Timestamp,
    ) -> Progress {
        let (name, hash) = (policy.name.as_str(), revision.revision.hash.as_str());
        let current = self.revisions.current(name);
        let is_news = current.is_none_or(|current| current.revision.hash != hash);
        if is_news {
            // The clock of an earlier leader may have been fast. Of two equal times that of the later revision counts.
            let now = current.and_then(|current| current.complete).map_or(now, |before| before.max(now));
            if let Err(error) = self.revisions.reach(name, hash, None, Some(now)).await {
                return Progress::RollingOut(format!("{}; cannot record that it is complete: {error}", told(look)));
            }
            info!(policy = name, revision = hash, updated = look.updated, left = look.left, "The rollout is complete");
            let subject = Subject::policy(&policy.name, &policy.uid);
            self.workloads.recorder.tell(subject, EventReason::RolloutComplete, Code::Complete, &told(look));
            if let Some(known) = self.policies.get_mut(name) {
                known.state.current = Some(hash.to_owned());
            }
        }
        Progress::Complete(told(look))
    }

    /// Updates the workloads `next`, unless the last attempt was refused a moment ago.
    async fn proceed(
        &mut self,
        policy: &Arc<Policy>,
        settings: &RollingUpdate,
        look: &Look,
        next: Vec<(ObjectRef, Member)>,
    ) -> Progress {
        let waits = |roller: &Self| roller.policies.get(&policy.name).and_then(|known| known.waits.clone());
        if waits(self).is_none_or(|(until, _)| Instant::now() >= until) {
            self.act(policy, settings, next).await;
        }
        match waits(self) {
            Some((_, Wait::Refused(message))) => Progress::Halted(message),
            Some((_, Wait::Budget(message))) => {
                Progress::RollingOut(format!("{}; {}: {message}", told(look), Code::DisruptionBudget))
            }
            None => Progress::RollingOut(told(look)),
        }
    }

    /// Updates those of the workloads `next` that it begins with before it is time for the next look.
    async fn act(&mut self, policy: &Arc<Policy>, settings: &RollingUpdate, next: Vec<(ObjectRef, Member)>) {
        let operator = &self.workloads.operator;
        let (revisions, evictions) = (&self.revisions, Mutex::new(&mut self.evictions));
        let until = Instant::now() + operator.timing.rollout.tick;
        let acts = next.into_iter().take_while(|_| Instant::now() < until).map(|(object, member)| {
            let (evictions, own) = (&evictions, policy.at(&object.namespace));
            async move {
                let may_evict = || lock(evictions).may(Instant::now());
                let is_restart = member.carries == Carries::This;
                let update = act::update(operator, revisions, own, settings.pod_update, &object, is_restart, may_evict);
                // A panic costs only this workload, until it changes.
                let acted = survive(&operator.metrics, "updating a workload", update).await.unwrap_or_else(|| {
                    let message = "the operator panicked over it, which is a defect of the operator's".to_owned();
                    Acted::Left(member.version, plan::Left { code: Code::Panicked, message })
                });
                (object, member, acted)
            }
        });
        let done: Vec<_> = futures::stream::iter(acts).buffer_unordered(WRITES).collect().await;
        let metrics = &operator.metrics;
        let Some(known) = self.policies.get_mut(&policy.name) else { return };
        let again = Instant::now() + operator.timing.rollout.again;
        known.waits = None;
        for (object, member, acted) in done {
            match acted {
                Acted::Done(done) => {
                    let write = match done {
                        plan::Done::Evicted => RolloutWrite::Eviction,
                        plan::Done::Patched(_) if object.kind.is_pod() => RolloutWrite::InPlace,
                        plan::Done::Patched(_) => RolloutWrite::Template,
                    };
                    metrics.rolled_out(&policy.name, write);
                    known.rolling.touched(&object, &member, done, Timestamp::now());
                }
                Acted::NotNeeded | Acted::Changed => {}
                Acted::Left(version, left) => {
                    info!(policy = policy.name, resource = object.kind.resource, namespace = object.namespace, name = object.name,
                        code = %left.code, message = left.message, "Left as it is");
                    known.rolling.leave(&object, version, left);
                }
                Acted::Blocked(message) => {
                    let message = format!("{}/{}: {message}", object.namespace, object.name);
                    known.waits = Some((again, Wait::Budget(message)));
                }
                Acted::Refused(message) => {
                    known.waits = Some((again, Wait::Refused(format!("{}: {message}", Code::MissingRight))))
                }
                Acted::Rejected(message) => {
                    known.rolling.leave(&object, member.version, plan::Left { code: Code::ResultInvalid, message });
                }
                Acted::Failed(message) => {
                    warn!(policy = policy.name, error = message, "Cannot update a workload; trying again");
                }
            }
        }
    }

    fn conclude(&mut self, policy: &Policy, look: Option<Look>, progress: Progress) {
        let Some(known) = self.policies.get_mut(&policy.name) else { return };
        let state = &mut known.state;
        state.is_halted = known.halted.is_some();
        state.progress = Some(progress.noting(&known.note));
        state.look = look.unwrap_or_default();
    }
}

/// Whether the Namespace `object` of that `name` is one that steps of `policy` count.
pub fn covers(policy: &Policy, site: &Site, name: &str, object: &Value) -> bool {
    let selector = policy.spec.namespace_selector.as_ref();
    let is_selected = selector.is_none_or(|selector| checks::selects_namespace(selector, name, object));
    is_selected && policy.covers_namespace(name) && !site.protected_namespaces.contains(name)
}

/// Looks at the rollout of `policy` once. Returns what to update now, with what is known of it.
#[allow(clippy::too_many_arguments, reason = "the facts come from as many places")]
fn look(
    workloads: &Workloads,
    policy: &Arc<Policy>,
    settings: &RollingUpdate,
    owners: &plan::Owners,
    known: &mut Of,
    revision: &revisions::Stored,
    reached: Option<&Reached>,
    restarted: Option<Timestamp>,
    now: Timestamp,
) -> (Look, Vec<(ObjectRef, Member)>) {
    let name = policy.name.as_str();
    let span = |duration: Duration| SignedDuration::try_from(duration).unwrap_or_default();
    let earlier = policy.earlier().and_then(|earlier| earlier.revision.as_deref()).unwrap_or_default();
    let is_earlier = |namespace: &str| !Arc::ptr_eq(policy.at(namespace), policy);
    workloads.fleet(|fleet| {
        let none = Members::new();
        let members = fleet.of(name).unwrap_or(&none);
        let stuck = |object: &ObjectRef| workloads.starts(|starts| starts.stuck_in(object, name));
        let facts = Facts {
            policy: name,
            members,
            owners,
            update: &revision.revision.hash,
            revision_of: &|namespace| if is_earlier(namespace) { earlier } else { &revision.revision.hash },
            since: reached.filter(|reached| reached.undone).map_or(revision.created, |reached| reached.since),
            restarted,
            pace: Pace {
                max_unavailable: settings.max_unavailable.of(members.len()),
                min_ready: span(settings.min_ready()),
                deadline: span(settings.progress_deadline()),
            },
            is_in_scope: &|namespace| {
                reached.is_none_or(|reached| {
                    reached.undone || reached.has_all(&settings.steps) || reached.updated.contains(namespace)
                })
            },
            stuck: &stuck,
            now,
        };
        let look = known.rolling.look(&facts);
        let next = look.next.iter().filter_map(|object| Some((object.clone(), members.get(object)?.clone()))).collect();
        (look, next)
    })
}

fn told_failure(failure: &plan::Failure) -> String {
    let ObjectRef { kind, namespace, name } = &failure.object;
    format!("{} {namespace}/{name}: {}: {}", kind.group_resource(), failure.code, failure.message)
}

fn refusal() -> String {
    format!(
        "{}: cannot list and watch controllerrevisions in the operator's namespace; apply `config/rbac/rollout`",
        Code::MissingRight
    )
}

/// How far it is, in a sentence.
fn told(look: &Look) -> String {
    let left = if look.left == 0 { String::new() } else { format!("; {} are left as they are", look.left) };
    format!("{} of {} workloads have this revision, {} of them are ready{left}", look.updated, look.matched, look.ready)
}

/// The last commands for a policy.
fn commands(stored: &Stored) -> Commands {
    Commands { restarted: stored.restarted, resumed: stored.resumed }
}

/// The message of a rollout that has `halted` and cannot go back.
fn no_way_back(halted: &str, why: Option<&str>) -> String {
    let why = why.unwrap_or("no rollout was complete before");
    format!("{halted}; there is nothing to go back to: {why}")
}

/// What the condition of a policy says besides its progress: an earlier revision that is `barred`, and annotations without effect.
fn note(stored: &Stored, barred: Option<&str>) -> String {
    let odd = stored.odd_times.iter().map(|key| format!("`{key}` is no time and has no effect"));
    barred.map(str::to_owned).into_iter().chain(odd).collect::<Vec<_>>().join("; ")
}

/// The message of a halt that an earlier leader has written.
fn halted_before(stored: &Stored) -> String {
    let condition = crate::api::condition::condition_in(&stored.status, "Progressing");
    let message = condition.and_then(|condition| condition["message"].as_str()).unwrap_or_default();
    let prefix = format!("{}: ", Code::Halted);
    message.strip_prefix(&prefix).unwrap_or(message).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_one_revision_is_not_said_of_the_next() {
        let look = Look { matched: 3, updated: 3, ready: 3, is_complete: true, ..Look::default() };
        let complete = State {
            looked_at: Some("old".into()),
            current: Some("old".into()),
            update: Some("old".into()),
            progress: Some(Progress::Complete("m".into())),
            is_halted: true,
            restarted: None,
            look,
        };
        assert_eq!(complete.clone().now(Some("old")), complete);
        assert_eq!(complete.clone().now(None), complete, "it is not valid any more");
        let now = complete.now(Some("new"));
        assert!(matches!(now.progress, Some(Progress::NewRevision(_))), "{now:?}");
        let told = (now.current.as_deref(), now.update.as_deref(), now.is_halted, now.look.updated, now.look.ready);
        assert_eq!(told, (Some("old"), Some("new"), false, 0, 3));
        assert_eq!(State::default().now(Some("new")), State::default(), "it does not roll");
    }
}
