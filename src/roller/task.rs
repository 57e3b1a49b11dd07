//! The writes that a look at a rollout asks for. They run beside the loop, one task per policy at a time.

use super::act::{self, Planned};
use super::keep::{Keeper, Kept};
use crate::api::code::Code;
use crate::api::v1alpha1::{PodUpdate, RollingUpdate};
use crate::cluster::client::CallError;
use crate::cluster::events::{EventReason, EventSubject};
use crate::content::{Content, Revision};
use crate::metrics::RolloutWrite;
use crate::policy::Policy;
use crate::rollout::pace::STALE;
use crate::rollout::record::{Commands, Course};
use crate::rollout::{Action, Answer, Done, Foreign, Member, Next, Record, StoredRevision, Told, Why, stored};
use crate::survival::survive;
use crate::workload::ObjectRef;
use crate::workloads::Workloads;
use futures::StreamExt;
use jiff::Timestamp;
use std::sync::Arc;
use tracing::{info, warn};

/// The most writes for one policy that run at the same time.
const WRITES: usize = 8;

/// The reasons for which users of a workload are told that it is left: others decide them, and no object of theirs shows them.
const TOLD: [Code; 4] = [Code::ResultInvalid, Code::AdmissionDenied, Code::QuotaExceeded, Code::PutBack];

/// What is to be written for one policy.
pub(super) enum Task {
    /// Store the content of the policy as its latest revision, after these.
    Begin(Commands, Vec<StoredRevision>),
    /// Store the content of an earlier revision again, with that number.
    Restore(Box<Content>, i64),
    /// Delete the revisions of these names and UIDs.
    Prune(Vec<(String, String)>),
    /// Write a record, and then tell users.
    Record(Box<StoredRevision>, Box<Record>, Vec<Told>),
    /// Bring workloads up to date.
    /// That was decided at the last time.
    Update(Vec<(Next, Member)>, Vec<Arc<Revision>>, (PodUpdate, Option<Timestamp>, Timestamp)),
}

/// What became of a write.
pub(super) enum Happened {
    Recorded(Result<Kept, CallError>),
    Kept(Result<Kept, CallError>),
    Answered(Box<(Next, Member, Answer)>),
    /// Whether we have the rights to read revisions.
    MayKeep(bool),
}

impl Happened {
    /// When it was announced that a pod would be evicted, if it was not. What another leader has announced is tried more than once, and
    /// counted once.
    pub(super) fn unused_eviction(&self) -> Option<Timestamp> {
        match self {
            Self::Answered(answered) => {
                let (next, _, answer) = &**answered;
                next.announced.filter(|_| next.may_evict && !next.is_foreign && answer.is_no_eviction())
            }
            Self::Recorded(_) | Self::Kept(_) | Self::MayKeep(_) => None,
        }
    }
}

impl Task {
    /// The task of `actions`. `updates` are the workloads among them, with what is known of each. `hash` is that of the latest of
    /// `revisions`.
    pub(super) fn of(
        actions: Vec<Action>,
        updates: Vec<(Next, Member)>,
        revisions: &[StoredRevision],
        hash: &str,
        (settings, restarted): (&RollingUpdate, Option<Timestamp>),
    ) -> Option<Self> {
        let (mut record, mut told) = (None, Vec::new());
        for action in actions {
            match action {
                Action::Record(of, wanted) if of == hash => record = Some(wanted),
                Action::Tell(news) => told.push(news),
                Action::Record(..) | Action::Update(_) => {}
            }
        }
        if let Some(record) = record {
            let stored = stored::with_hash(revisions, hash)?;
            return Some(Self::Record(Box::new(stored.clone()), record, told));
        }
        let from = revisions.iter().rev().map(|stored| stored.revision.clone()).collect();
        (!updates.is_empty()).then(|| Self::Update(updates, from, (settings.pod_update, restarted, Timestamp::now())))
    }

    /// The record that it writes.
    pub(super) fn record(&self) -> Option<&Record> {
        if let Self::Record(_, record, _) = self { Some(record) } else { None }
    }

    /// How many evictions it announces.
    pub(super) fn evictions(&self) -> usize {
        let Self::Record(before, record, _) = self else { return 0 };
        let count = |course: &Course| course.evictions_since(i64::MIN);
        count(&record.progress).saturating_sub(count(&before.record.progress))
    }

    /// Does it for `policy`. `foreign` is what has the name of a revision and is none.
    pub(super) async fn run(
        self,
        workloads: &Workloads,
        keeper: &Keeper,
        policy: &Arc<Policy>,
        foreign: &[Foreign],
    ) -> Vec<Happened> {
        match self {
            Self::Begin(commands, known) => {
                vec![Happened::Kept(keeper.begin(policy, commands, &known, foreign).await)]
            }
            Self::Restore(content, number) => {
                let now = Timestamp::now();
                let record = Record::complete(now, now);
                vec![Happened::Kept(keeper.create(policy, &content, number, &record, foreign).await)]
            }
            Self::Prune(old) => {
                for (name, uid) in old {
                    // One revision too many stops no rollout.
                    if let Err(error) = keeper.delete(&name, &uid).await {
                        warn!(policy = policy.name, name, %error, "Cannot delete an old revision");
                    }
                }
                vec![Happened::Kept(Ok(None))]
            }
            Self::Record(stored, record, told) => {
                let result = keeper.record(&stored, &record).await;
                if matches!(result, Ok(Some(_))) {
                    told.into_iter().for_each(|news| tell(workloads, policy, news));
                }
                vec![Happened::Recorded(result)]
            }
            Self::Update(updates, from, (pod_update, restarted, made)) => {
                let acts = updates
                    .into_iter()
                    .map(|(next, member)| act(workloads, policy, &from, (pod_update, restarted, made), (next, member)));
                futures::stream::iter(acts).buffer_unordered(WRITES).collect().await
            }
        }
    }
}

/// Tells users.
fn tell(workloads: &Workloads, policy: &Policy, news: Told) {
    let subject = EventSubject::policy(&policy.name, &policy.meta.uid);
    match news {
        Told::Halted(message) => {
            warn!(policy = policy.name, message, "The rollout is halted");
            workloads.recorder.tell(subject, EventReason::RolloutHalted, Code::Halted, &message);
        }
        Told::Complete(message) => {
            info!(policy = policy.name, message, "The rollout is complete");
            workloads.recorder.tell(subject, EventReason::RolloutComplete, Code::Complete, &message);
        }
    }
}

fn subject(workloads: &Workloads, next: &Next) -> EventSubject {
    let (operator, ObjectRef { kind, namespace, name }) = (&workloads.operator, &next.object);
    EventSubject {
        api_version: operator.api_version(kind),
        kind: operator.kind_name(kind),
        namespace: namespace.clone(),
        name: name.clone(),
        uid: next.uid.to_string(),
    }
}

/// Brings one workload up to date. A panic costs only this workload, until it changes.
async fn act(
    workloads: &Workloads,
    policy: &Arc<Policy>,
    from: &[Arc<Revision>],
    (pod_update, restarted, made): (PodUpdate, Option<Timestamp>, Timestamp),
    (next, member): (Next, Member),
) -> Happened {
    let operator = &workloads.operator;
    // A process that was frozen does nothing that it decided before. Another leader may have decided otherwise since.
    if Timestamp::now().duration_since(made) > STALE / 2 {
        return Happened::Answered(Box::new((next, member, Answer::Changed(0))));
    }
    let Next { object, may_evict, is_put_back, .. } = &next;
    let (may_evict, is_put_back) = (*may_evict, *is_put_back);
    let planned = Planned { object, policy, pod_update, restarted, may_evict, is_put_back };
    let update = act::update(operator, from, &planned);
    let left = |code: Code, message: String| Answer::Left(member.version, Why { code, message });
    let answer = match survive(&operator.metrics, "updating a workload", update).await {
        Some(Ok(answer)) => answer,
        Some(Err(message)) => left(Code::ResultInvalid, message),
        None => left(Code::Panicked, "the operator panicked over it, which is a defect of the operator's".to_owned()),
    };
    match &answer {
        Answer::Done(done) => {
            let write = match done {
                Done::Evicted => RolloutWrite::Eviction,
                Done::Patched(_) if next.object.kind.is_pod() => RolloutWrite::InPlace,
                Done::Patched(_) => RolloutWrite::Template,
            };
            operator.metrics.rollouts.wrote(&policy.name, write);
        }
        Answer::Left(_, left) => {
            info!(policy = policy.name, resource = next.object.kind.resource, namespace = next.object.namespace,
                name = next.object.name, code = %left.code, message = left.message, "Left as it is");
            if TOLD.contains(&left.code) {
                let subject = subject(workloads, &next);
                workloads.recorder.tell(subject, EventReason::RolloutLeft, left.code, &left.message);
            }
        }
        Answer::Failed(error) => warn!(policy = policy.name, error, "Cannot update a workload; trying again"),
        _ => {}
    }
    Happened::Answered(Box::new((next, member, answer)))
}
