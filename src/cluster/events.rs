//! Events for `kubectl describe`: core/v1 Events, which every server has (`events.k8s.io/v1` exists only from 1.19).
//!
//! Events are advice and never delay anything else. They go through a bounded queue. Repeats are counted in one Event,
//! and a flood is cut off.

use super::answer::Meaning;
use super::api::Api;
use super::client::call;
use crate::api::code::Code;
use crate::metrics::Metrics;
use crate::outside::{self, cut};
use crate::survival;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// The most events that wait to be written. Further events are dropped, with a line in the log.
const QUEUE: usize = 1024;
/// The most events that are remembered to count their repeats.
const REMEMBERED: usize = 512;
/// The most characters of a message, as API servers limit those of newer Events. It may repeat what users have written.
const MESSAGE: usize = 1024;
/// Sustained events per second, with at most [`BURST`] at once. The values are those of client-go's spam filter, but
/// per process instead of per object.
const RATE: f64 = 5.0;
/// See [`RATE`].
const BURST: f64 = 50.0;

/// The `reason` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventReason {
    /// Off by default.
    SidecarInjected,
    /// Nothing was injected although the policy selects the workload.
    SidecarInjectionSkipped,
    /// The injection failed.
    SidecarInjectionFailed,
    /// A policy is in effect.
    PolicyAccepted,
    /// A policy's spec is invalid.
    PolicyRejected,
    /// Two policies conflict.
    PolicyConflict,
    /// A policy cannot be delivered.
    EngineUnavailable,
    /// A rollout touches no further workload, because an updated one failed.
    RolloutHalted,
    /// Everything that a policy matches has its latest revision.
    RolloutComplete,
    /// A rollout leaves a workload, because of what another client or admission does.
    RolloutLeft,
    /// A stored revision is not one of its policy.
    RevisionIgnored,
}

impl EventReason {
    fn is_warning(self) -> bool {
        !matches!(
            self,
            EventReason::SidecarInjected
                | EventReason::PolicyAccepted
                | EventReason::SidecarInjectionSkipped
                | EventReason::RolloutComplete
        )
    }
}

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventSubject {
    /// The `apiVersion`, as in a manifest.
    pub api_version: String,
    /// The `kind`, as in a manifest.
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's UID.
    pub uid: String,
}

impl EventSubject {
    /// The policy `name` with the UID `uid`.
    pub fn policy(name: &str, uid: &str) -> Self {
        Self {
            api_version: "scpol.dev/v1alpha1".into(),
            kind: "SidecarPolicy".into(),
            namespace: String::new(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

/// Passes events to the task that writes them. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<(EventSubject, EventReason, String)>,
}

impl Recorder {
    /// A recorder, and the task that writes the recorded events.
    pub fn new(client: Client, reporter: String, metrics: Arc<Metrics>) -> (Self, impl Future<Output = ()>) {
        let (queue, events) = mpsc::channel(QUEUE);
        (
            Self { queue },
            Writer {
                client,
                reporter,
                seen: HashMap::new(),
                order: VecDeque::new(),
                tokens: BURST,
                filled: Instant::now(),
            }
            .run(events, metrics),
        )
    }

    /// Records an event about `subject`. The message begins with `code`.
    pub fn tell(&self, subject: EventSubject, reason: EventReason, code: Code, message: &str) {
        let message = cut(&format!("{code}: {message}"), MESSAGE).into_owned();
        if self.queue.try_send((subject, reason, message)).is_err() {
            debug!("An event was dropped: too many at once");
        }
    }
}

type EventKey = (EventSubject, EventReason, String);

struct Writer {
    client: Client,
    reporter: String,
    /// The name and count of each written event; `order` has the oldest first.
    seen: HashMap<EventKey, (String, i32)>,
    order: VecDeque<EventKey>,
    tokens: f64,
    filled: Instant,
}

impl Writer {
    async fn run(mut self, mut events: mpsc::Receiver<EventKey>, metrics: Arc<Metrics>) {
        while let Some(event) = events.recv().await {
            if !self.may_write() {
                debug!("An event was dropped: over the rate");
                continue;
            }
            if let Some(Err(error)) = survival::survive(&metrics, "writing an event", self.write(event)).await {
                warn!(%error, "An event could not be written");
            }
        }
    }

    fn may_write(&mut self) -> bool {
        let now = Instant::now();
        self.tokens = (self.tokens + RATE * now.duration_since(self.filled).as_secs_f64()).min(BURST);
        self.filled = now;
        let may = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(may));
        may
    }

    async fn write(&mut self, key: EventKey) -> Result<(), super::client::CallError> {
        let namespace = if key.0.namespace.is_empty() { "default" } else { &key.0.namespace };
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if let Some((name, count)) = self.seen.get_mut(&key) {
            *count += 1;
            let repeat = json!({ "count": *count, "lastTimestamp": now });
            match call(api.patch(name, &PatchParams::default(), &Patch::Merge(&repeat))).await {
                Err(error) if error.means() == Meaning::NotFound => {}
                answer => return answer.map(drop),
            }
        }
        let name = format!("{}.{:x}", beginning(&key.0.name), Timestamp::now().as_nanosecond());
        let event = serde_json::from_value(self.event(&key, &name, namespace, &now)).expect("the shape is fixed");
        call(api.create(&PostParams::default(), &event)).await?;
        self.remember(key, name);
        Ok(())
    }

    fn event(&self, (subject, reason, message): &EventKey, name: &str, namespace: &str, now: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": name, "namespace": namespace },
            "involvedObject": {
                "apiVersion": subject.api_version, "kind": subject.kind, "namespace": subject.namespace, "name": subject.name, "uid": subject.uid,
            },
            "reason": format!("{reason:?}"),
            "message": message,
            "type": if reason.is_warning() { "Warning" } else { "Normal" },
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": { "component": "scpol", "host": self.reporter },
        })
    }

    fn remember(&mut self, key: EventKey, name: String) {
        if self.seen.insert(key.clone(), (name, 1)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
    }
}

/// The beginning of an object's name that leaves room for a time in the Event's name, of 253 characters in all.
fn beginning(name: &str) -> &str {
    const MOST: usize = 253 - ".".len() - 16;
    outside::beginning(name, MOST).trim_end_matches(['-', '.'])
}
