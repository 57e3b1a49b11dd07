//! Evicts the pods that have the content of a policy, at the pace of a rollout.

use super::pods::{PodReader, PodReading};
use super::{RemovalLine, RemovalResult};
use crate::api::code::Code;
use crate::cli::live;
use crate::cli::output::remark;
use crate::cli::signals::{Stop, until};
use crate::cluster::answer::Meaning;
use crate::cluster::client::{call, chain};
use crate::refit;
use crate::roller::act;
use crate::rollout::removal::{Removal, Sight, Step};
use crate::rollout::{Answer, Done, Failure, Member, Next, Why};
use crate::timing::Timing;
use crate::workload::ObjectRef;
use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most evictions that run at the same time, as in a rollout.
const AT_ONCE: usize = 8;
/// The shortest rest between two looks.
const REST: Duration = Duration::from_secs(1);
/// The rest after a look, as a multiple of the time that its lists took, so that they load no server.
const RESTS: u32 = 3;

/// The eviction of the pods that had the content at the first look.
pub(super) struct Evicting<'a> {
    reader: PodReader<'a>,
    removal: Removal,
    /// What the first look has shown.
    first: PodReading,
    /// How far the server's clock is ahead of ours.
    ahead: SignedDuration,
    /// The UIDs of the evicted pods.
    evicted: BTreeSet<Arc<str>>,
    told: LastRemark,
}

/// What the user was told.
struct LastRemark {
    waits: String,
    /// When a pod was last evicted, or something was told.
    at: Instant,
}

/// Why nothing more is evicted.
enum Ended {
    Done,
    Failed(Failure),
    Because(String),
}

impl<'a> Evicting<'a> {
    pub(super) fn new(reader: PodReader<'a>, removal: Removal, first: PodReading, ahead: SignedDuration) -> Self {
        let told = LastRemark { waits: String::new(), at: Instant::now() };
        Self { reader, removal, first, ahead, evicted: BTreeSet::new(), told }
    }

    /// What would be done.
    pub(super) fn would(&self) -> Vec<RemovalLine> {
        let evicted = self.first.carrying().map(|(pod, _)| line(pod, RemovalResult::WouldEvict, None, String::new()));
        self.with_left(evicted.collect())
    }

    /// What stays, if nothing is evicted.
    pub(super) fn stays(&self) -> Vec<RemovalLine> {
        self.with_left(self.lines(&self.first))
    }

    /// Evicts the pods, until none is left, one has failed, or the user ends it by `stop`. Returns what became of each.
    pub(super) async fn run(mut self, stop: &Stop) -> Vec<RemovalLine> {
        self.reader.narrow(&self.first);
        self.removal.begin(&self.first.members);
        let mut last = self.first.clone();
        let ended = loop {
            let begun = Instant::now();
            let read = tokio::select! {
                biased;
                () = stop.clone() => break interrupted(),
                read = self.reader.read() => read,
            };
            match read {
                Ok(reading) => {
                    let step = self.look(&reading);
                    match step {
                        Step::Done => break Ended::Done,
                        Step::Failed(failure) => break Ended::Failed(failure),
                        Step::Refused(why) => break Ended::Because(why),
                        Step::GoOn { evict, waits } => self.go_on(evict, &waits, &reading, stop).await,
                    }
                    last = reading;
                }
                Err(error) if Meaning::of(&error) == Some(Meaning::MissingRight) => {
                    break Ended::Because(chain(&*error));
                }
                Err(error) => self.tell(&format!("{}; trying again", chain(&*error))),
            }
            tokio::select! {
                () = stop.clone() => break interrupted(),
                () = tokio::time::sleep((begun.elapsed() * RESTS).max(REST)) => {}
            }
        };
        let mut lines = self.lines(&last);
        match ended {
            Ended::Done => {}
            Ended::Because(why) => remark(format_args!("nothing more is evicted: {why}")),
            Ended::Failed(Failure { object, code, message }) => {
                remark(format_args!(
                    "nothing more is evicted: {}/{}: {code}: {message}",
                    object.namespace, object.name
                ));
                lines.retain(|line| (&line.namespace, &line.name) != (&object.namespace, &object.name));
                lines.push(line(&object, RemovalResult::Failed, Some(code), message));
            }
        }
        self.with_left(lines)
    }

    /// The time by the server's clock.
    fn now(&self) -> Timestamp {
        Timestamp::now() + self.ahead
    }

    fn look(&mut self, reading: &PodReading) -> Step {
        let again = SignedDuration::try_from(Timing::documented().rollout.again).unwrap_or_default();
        let PodReading { members, owners, beside, .. } = reading;
        let now = self.now();
        self.removal.look(&Sight { now, again, members, owners, beside })
    }

    /// Evicts what is next, until `stop`. Says what holds it up, if that lasts.
    async fn go_on(&mut self, evict: Vec<Next>, waits: &[String], reading: &PodReading, stop: &Stop) {
        if evict.is_empty() {
            return self.tell(&waits.join("; "));
        }
        let known = evict.into_iter().filter_map(|next| Some((reading.members.get(&next.object)?, next)));
        let answers = until(stop, known.map(|(member, next)| self.evict(member, next)), AT_ONCE).await;
        let now = self.now();
        for (next, member, answer) in answers {
            if answer == Answer::Done(Done::Evicted) {
                self.evicted.insert(next.uid.clone());
                let (done, all) = (self.evicted.len(), self.first.carrying().count());
                remark(format_args!("{}/{}: evicted, {done} of {all}", next.object.namespace, next.object.name));
                self.told = LastRemark { waits: String::new(), at: Instant::now() };
            }
            self.removal.answered(&next, member, answer, now);
        }
    }

    /// Tells the user `what`, if nothing else has happened for a while.
    fn tell(&mut self, what: &str) {
        if !what.is_empty() && what != self.told.waits && self.told.at.elapsed() >= Timing::documented().rollout.again {
            remark(what);
            self.told = LastRemark { waits: what.to_owned(), at: Instant::now() };
        }
    }

    /// Evicts one pod, as it is now.
    async fn evict<'m>(&self, member: &'m Member, next: Next) -> (Next, &'m Member, Answer) {
        let answer = self.attempt(member, &next.object).await;
        let left = |message| Answer::Left(member.version, Why { code: Code::ResultInvalid, message });
        (next, member, answer.unwrap_or_else(left))
    }

    /// # Errors
    /// What the server says, if it rejects the request itself.
    async fn attempt(&self, member: &Member, object: &ObjectRef) -> Result<Answer, String> {
        let api = self.reader.pods(Some(&object.namespace));
        let stored = match call(api.get_opt(&object.name)).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(Answer::NotNeeded(None)),
            Err(error) => return act::refused(&error, "get", "pods"),
        };
        let (pod, version) = (self.reader.pod(&stored), stored.version());
        if pod.uid() != &*member.uid || pod.is_terminating() {
            return Ok(Answer::NotNeeded(None));
        }
        if !super::is_marked(&pod, self.reader.policy) {
            return Ok(Answer::NotNeeded(Some(version)));
        }
        match refit::untouchable(&pod) {
            Some(left) => Ok(Answer::Left(version, Why { code: left.cause.code(), message: left.message })),
            None => {
                let (minor, client) = (self.reader.inventory.server.known_minor(), self.reader.inventory.client);
                match act::would_refuse(client, &live::resource("", "v1", "Pod", "pods"), (&pod, version), minor).await
                {
                    Some(answer) => Ok(answer),
                    None => act::evict(&api, &pod, version, minor).await,
                }
            }
        }
    }

    /// What became of each pod that was to be evicted. `last` is what was read at the end.
    fn lines(&self, last: &PodReading) -> Vec<RemovalLine> {
        let memory = self.removal.memory();
        let of = |pod: &ObjectRef, member: &Member| {
            if self.evicted.contains(&member.uid) {
                return line(pod, RemovalResult::Evicted, None, String::new());
            }
            // It was to be evicted at the first look, and is to stay now.
            if let Some((_, code, why)) = last.left.iter().find(|(object, ..)| object == pod) {
                return line(pod, RemovalResult::Left, Some(*code), why.clone());
            }
            if last.follow.contains(pod) {
                let why = "the pod template of its workload has it now, which the pod follows".to_owned();
                return line(pod, RemovalResult::Left, Some(Code::ContentOfOwner), why);
            }
            if last.members.get(pod).is_none_or(|now| now.uid != member.uid) {
                return line(pod, RemovalResult::Removed, None, "it has been deleted".to_owned());
            }
            if let Some((_, left)) = memory.left().find(|(object, _)| *object == pod) {
                return line(pod, RemovalResult::Left, Some(left.code), left.message.clone());
            }
            match memory.waits().find(|(object, ..)| *object == pod) {
                Some((_, since, Why { code, message })) => {
                    line(pod, RemovalResult::Left, Some(*code), format!("{message}; it waits since {since:.0}"))
                }
                None => line(pod, RemovalResult::Left, None, "it has not been evicted".to_owned()),
            }
        };
        self.first.carrying().map(|(pod, member)| of(pod, member)).collect()
    }

    /// `lines` and the pods that were never to be evicted.
    fn with_left(&self, mut lines: Vec<RemovalLine>) -> Vec<RemovalLine> {
        let left = self.first.left.iter();
        lines.extend(left.map(|(pod, code, why)| line(pod, RemovalResult::Left, Some(*code), why.clone())));
        lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        lines
    }
}

fn interrupted() -> Ended {
    Ended::Because("it was interrupted; give the command again to go on".to_owned())
}

fn line(pod: &ObjectRef, result: RemovalResult, code: Option<Code>, why: String) -> RemovalLine {
    RemovalLine {
        namespace: pod.namespace.clone(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        result,
        code: code.map(|code| code.to_string()),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::RollingUpdate;
    use crate::capabilities::Capabilities;
    use crate::cli::live::{Inventory, Within};
    use futures::FutureExt;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::{HashMap, HashSet};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    const PODS: usize = 30;

    /// A ReplicaSet without the content, and its pod, which has it.
    fn owned(number: usize) -> [Value; 2] {
        let metadata = json!({ "namespace": "shop", "name": format!("web-{number}"), "uid": format!("set-{number}") });
        let set = json!({ "metadata": metadata, "spec": { "replicas": 1 }, "status": { "replicas": 1 } });
        let marker = r#"{"v":1,"hash":"0123456789abcdef","added":["/spec/containers/envoy"]}"#;
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let pod = json!({
            "metadata": {
                "namespace": "shop", "name": format!("web-{number}-x"), "uid": format!("pod-{number}"), "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": { "injected.scpol.dev/envoy": marker },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": metadata["name"], "uid": metadata["uid"], "controller": true,
                }],
            },
            "spec": { "containers": [] },
            "status": { "phase": "Running", "conditions": [ready] },
        });
        [set, pod]
    }

    /// What the server answers to a request other than an eviction.
    fn answer(path: &str) -> Value {
        let name = path.rsplit('/').next().unwrap_or_default();
        let index = match name {
            "replicasets" => Some(0),
            "pods" => Some(1),
            _ => None,
        };
        let all = |index: usize| (0..PODS).map(|number| owned(number)[index].clone()).collect::<Vec<_>>();
        match index {
            Some(index) => json!({ "metadata": { "resourceVersion": "1" }, "items": all(index) }),
            None if name.starts_with("web-") => {
                all(1).into_iter().find(|pod| pod["metadata"]["name"] == name).unwrap_or_default()
            }
            None => json!({ "metadata": { "resourceVersion": "1" }, "items": [] }),
        }
    }

    #[tokio::test]
    async fn no_eviction_begins_after_a_signal_and_the_report_says_what_was_done() {
        let (count, signal) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let stop = {
            let signal = signal.clone();
            async move { signal.notified().await }.boxed().shared()
        };
        let evictions = count.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let path = request.uri().path().to_owned();
            let is_eviction = path.ends_with("/eviction");
            if is_eviction && evictions.fetch_add(1, Ordering::Relaxed) == 2 {
                signal.notify_one();
            }
            async move {
                tokio::task::yield_now().await;
                let body = if is_eviction { json!({}) } else { answer(&path) };
                Ok::<_, std::io::Error>(http::Response::new(Body::from(body.to_string().into_bytes())))
            }
        });
        let client = Client::new(server, "default");
        let (namespaces, paused) = (HashMap::new(), HashSet::new());
        let settings = RollingUpdate {
            max_unavailable: serde_json::from_value(json!("100%")).unwrap(),
            ..RollingUpdate::default()
        };
        let removal = Removal::new("envoy", settings, 60, Timestamp::now());
        let (server, within) = (Capabilities::default(), Within::default());
        let inventory = Inventory { client: &client, server: &server, namespaces: &namespaces, within: &within };
        let mut reader = PodReader::new(&inventory, "envoy", &paused, removal.revision());
        let first = reader.read().await.unwrap();
        let evicting = Evicting::new(reader, removal, first, SignedDuration::ZERO);
        assert_eq!(evicting.stays().len(), PODS);
        let lines = evicting.run(&stop).await;
        let evicted = lines.iter().filter(|line| line.result == RemovalResult::Evicted).count();
        assert_eq!(evicted, count.load(Ordering::Relaxed), "what has begun is finished");
        assert!((3..3 + AT_ONCE).contains(&evicted), "{evicted} were evicted");
        let left =
            lines.iter().filter(|line| line.result == RemovalResult::Left && line.why == "it has not been evicted");
        assert_eq!(left.count(), PODS - evicted);
    }
}
