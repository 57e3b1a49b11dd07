//! A small cluster: what is stored in its API server, and what its controllers do by themselves. Nothing here knows of leaders.

use jiff::Timestamp;
use serde_json::json;
use sidecar_policy_core::content::{Content, Revision};
use sidecar_policy_core::policy::extent::{Extent, Place};
use sidecar_policy_core::policy::{Policy, Site};
use sidecar_policy_core::rollout::record::{Commands, Record};
use sidecar_policy_core::rollout::stored::{StoredRevision, current, holds};
use std::sync::{Arc, LazyLock};

/// The contents that a policy can have: 1 and 3 work, the containers of 2 never become ready. 0 is no content.
pub type Number = u8;
/// The content whose containers never become ready.
pub const BAD: Number = 2;
/// The names of the namespaces.
pub const NAMESPACES: [&str; 3] = ["a", "b", "c"];
/// The places of their workloads in the steps: those of the first have the label of a canary, and the buckets differ.
static PLACES: LazyLock<[Place; 3]> = LazyLock::new(|| {
    let place =
        |track: &str, bucket: u8| Place { labels: Arc::new([("track".to_owned(), track.to_owned())].into()), bucket };
    [place("canary", 90), place("stable", 20), place("stable", 60)]
});

/// The place of the workloads of `namespace`.
pub fn place(namespace: u8) -> &'static Place {
    &PLACES[usize::from(namespace)]
}

/// Whether workloads of `namespace` are part of `extent`.
pub fn has(extent: &Extent, namespace: u8) -> bool {
    extent.has_place(NAMESPACES[usize::from(namespace)], place(namespace))
}

/// What must be true in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sentence {
    /// Never more workloads are unavailable on our account than `maxUnavailable` allows: those that were available when we wrote them,
    /// and are not available again.
    Unavailable,
    /// What steps have reached, and the step, only grow within a rollout.
    Grows,
    /// A step that is no pause is over only if everything that it has reached has the revision.
    Step,
    /// No workload that no step has reached gets new content, by our write or because it is new.
    Outside,
    /// `Complete` is said only if everything that the leader has read has the revision.
    Complete,
    /// No workload is written twice for one revision, one restart, and one direction.
    Twice,
    /// A rollout that has ended does not fail.
    Ended,
    /// A halt holds until a person ends it, by an edit, a resume or a deletion, and no leader goes on that knows of it.
    Halt,
    /// Of each owner one pod at a time is evicted.
    Owner,
    /// An undo goes back to the last complete revision, and says that it is there only if nothing has the failed content.
    Undo,
    /// The evictions of a minute never exceed the limit of the operator.
    Evictions,
}

/// The time that many milliseconds after the model's beginning.
pub fn at(time: u32) -> Timestamp {
    Timestamp::from_millisecond(1_000_000_000 + i64::from(time)).expect("it is in range")
}

/// The same in whole seconds, as servers write it.
pub fn at_second(time: u32) -> Timestamp {
    at(time / 1000 * 1000)
}

/// What a policy asks for, as far as it changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    pub content: Number,
    pub is_paused: bool,
    pub resumed: Option<u32>,
    pub restarted: Option<u32>,
    /// Grows when the policy is replaced.
    pub uid: u8,
}

impl Spec {
    /// Its commands, as a leader reads them.
    pub fn commands(&self) -> Commands {
        Commands { restarted: self.restarted.map(at), resumed: self.resumed.map(at) }
    }
}

/// A stored revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    pub content: Number,
    pub number: u8,
    /// The UID of its policy.
    pub owner: u8,
    pub created: u32,
    pub version: u16,
    pub record: Record,
}

/// A workload that the policy matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// Its name: those of replaced pods are new, but for a StatefulSet.
    pub name: u8,
    pub uid: u8,
    pub namespace: u8,
    /// The index of the controller that makes it again; none for a Deployment.
    pub owner: Option<u8>,
    pub version: u16,
    pub carries: Number,
    pub created: u32,
    /// When its readiness last changed.
    pub since: u32,
    pub is_ready: bool,
    pub is_settled: bool,
    /// Whether a container does not start although its content works: its registry is away.
    pub is_stuck: bool,
    /// Whether it is unavailable because we have written it.
    pub is_ours: bool,
    /// Whether it has opted out of the policy, though its owner has not.
    pub is_out: bool,
    /// The last rollout that has written it.
    pub touched: Option<Turn>,
    /// When it was restarted, if it is no pod.
    pub restarted: Option<u32>,
}

/// One direction of one rollout: nothing is written twice within it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    pub number: u8,
    pub is_back: bool,
    pub restarted: Option<u32>,
    pub resumed: Option<Timestamp>,
}

/// A controller that makes pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Maker {
    pub namespace: u8,
    pub desired: u8,
    /// Whether its pods keep their names.
    pub is_stateful: bool,
    /// Whether a PodDisruptionBudget allows no eviction.
    pub is_guarded: bool,
    /// How many of its pods we have evicted that were available, and have no available replacement.
    pub ours: u8,
}

/// What new workloads get.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delivered {
    pub content: Number,
    /// The content that all workloads get but these.
    pub earlier: Option<(Number, Extent)>,
}

impl Delivered {
    /// The content that workloads of `namespace` get.
    pub fn wanted(&self, namespace: u8) -> Number {
        match &self.earlier {
            Some((earlier, extent)) if !has(extent, namespace) => *earlier,
            _ => self.content,
        }
    }
}

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    pub now: u32,
    /// The last `resourceVersion`.
    pub version: u16,
    /// The last UID and name.
    pub uid: u8,
    pub spec: Spec,
    pub revisions: Vec<Kept>,
    pub items: Vec<Item>,
    pub makers: Vec<Maker>,
    /// Which namespaces the policy covers.
    pub covered: [bool; 3],
    pub delivered: Delivered,
    /// When pods were evicted in the last minute.
    pub evictions: Vec<u32>,
    /// Whether a rollout has halted since a person last did something.
    pub is_halted: bool,
    /// The first sentence that is untrue.
    pub untrue: Option<Sentence>,
}

impl Cluster {
    /// The next `resourceVersion`.
    pub fn next_version(&mut self) -> u16 {
        self.version += 1;
        self.version
    }

    /// Notes that `sentence` is untrue.
    pub fn deny(&mut self, sentence: Sentence) {
        self.untrue.get_or_insert(sentence);
    }

    /// The revisions of the policy that exists now, oldest first.
    pub fn own(&self) -> impl Iterator<Item = &Kept> {
        self.revisions.iter().filter(|kept| kept.owner == self.spec.uid)
    }

    /// Whether the policy matches `item`.
    pub fn matches(&self, item: &Item) -> bool {
        self.covered[usize::from(item.namespace)] && !item.is_out
    }

    /// Has the replicas deliver what is stored. Returns whether anything has changed.
    pub fn publish(&mut self, settings: &Settings) -> bool {
        let fresh = deliver(&self.spec, &self.revisions, &self.delivered, settings);
        let is_new = fresh != self.delivered;
        self.delivered = fresh;
        is_new
    }

    /// Has one controller make one pod. Returns whether one was missing.
    pub fn make(&mut self, settings: &Settings) -> bool {
        let lacking = |(index, maker): (usize, &Maker)| {
            let pods = self.items.iter().filter(|item| item.owner.map(usize::from) == Some(index));
            (pods.count() < usize::from(maker.desired)).then_some(index)
        };
        let Some(index) = self.makers.iter().enumerate().find_map(lacking) else { return false };
        self.uid += 1;
        let (uid, version) = (self.uid, self.next_version());
        let maker = &self.makers[index];
        let names: Vec<u8> = (0..maker.desired).map(|ordinal| 100 + 10 * index as u8 + ordinal).collect();
        let free = names.into_iter().find(|name| self.items.iter().all(|item| item.name != *name));
        let name = if maker.is_stateful { free.unwrap_or(uid) } else { uid };
        let namespace = maker.namespace;
        let is_covered = self.covered[usize::from(namespace)];
        let carries = if is_covered { self.delivered.wanted(namespace) } else { 0 };
        self.see_new_content(settings, namespace, carries);
        let (created, owner) = (self.now, Some(index as u8));
        let item = Item { name, uid, namespace, owner, version, carries, created, since: created, ..Item::fresh() };
        self.items.push(item);
        self.items.sort_by_key(|item| item.name);
        true
    }

    /// Judges that something in `namespace` gets `content` now.
    pub fn see_new_content(&mut self, settings: &Settings, namespace: u8, content: Number) {
        let Some(last) = self.own().last().filter(|last| last.content == content && content == self.spec.content)
        else {
            return;
        };
        let outside = last.record.reached.as_ref().filter(|reached| {
            let is_stored = self.own().any(|kept| hash(kept.content) == reached.from);
            is_stored && !reached.undone && !has(&reached.extent, namespace)
        });
        if outside.is_some_and(|reached| holds(reached, &settings.rolling().steps)) {
            self.deny(Sentence::Outside);
        }
    }

    /// Has one workload become ready, or be known as one that does not. Returns whether anything has changed.
    pub fn settle(&mut self) -> bool {
        let now = self.now;
        let fine = |item: &Item| item.carries != BAD;
        let is_unsettled = self.items.iter().any(|item| !item.is_settled);
        let changes = |item: &&mut Item| !item.is_settled || !is_unsettled && !item.is_ready && fine(item);
        let version = self.version + 1;
        let Some(item) = self.items.iter_mut().find(changes) else { return false };
        let is_ready = fine(item);
        if item.is_ready != is_ready {
            item.since = now;
        }
        (item.is_settled, item.is_ready, item.version) = (true, is_ready, version);
        item.is_ours &= !is_ready;
        item.is_stuck &= !is_ready;
        let owner = item.owner;
        self.version = version;
        if let Some(owner) = owner {
            self.forgive(owner);
        }
        true
    }

    /// Forgets the evictions of pods of `owner` that have available replacements.
    pub fn forgive(&mut self, owner: u8) {
        let ready = self.items.iter().filter(|item| item.owner == Some(owner) && item.is_ready).count();
        let maker = &mut self.makers[usize::from(owner)];
        maker.ours = maker.ours.min(maker.desired.saturating_sub(ready as u8));
    }

    /// How many workloads that the policy matches are unavailable on our account.
    pub fn ours(&self) -> usize {
        let items = self.items.iter().filter(|item| item.is_ours && self.matches(item)).count();
        let makers = self.makers.iter().filter(|maker| self.covered[usize::from(maker.namespace)]);
        items + makers.map(|maker| usize::from(maker.ours)).sum::<usize>()
    }

    /// Lets that many milliseconds pass. Kubelets and controllers begin with what was written meanwhile.
    pub fn pass(&mut self, time: u32) {
        while self.items.iter().any(|item| !item.is_settled) {
            self.settle();
        }
        self.now += time;
    }
}

impl Item {
    /// A pod that has just been made.
    pub fn fresh() -> Self {
        Self {
            name: 0,
            uid: 0,
            namespace: 0,
            owner: None,
            version: 0,
            carries: 0,
            created: 0,
            since: 0,
            is_ready: false,
            is_settled: true,
            is_stuck: false,
            is_ours: false,
            is_out: false,
            touched: None,
            restarted: None,
        }
    }

    /// When its containers were begun.
    pub fn begun(&self) -> u32 {
        if self.owner.is_some() { self.created } else { self.restarted.unwrap_or(0) }
    }
}

/// What replicas deliver that know these `revisions`, and delivered `before`: the rule of `stored::split`.
pub fn deliver(spec: &Spec, revisions: &[Kept], before: &Delivered, settings: &Settings) -> Delivered {
    let all = Delivered { content: spec.content, earlier: None };
    let own: Vec<StoredRevision> = revisions.iter().filter(|kept| kept.owner == spec.uid).map(Kept::stored).collect();
    let (Some(last), steps) = (own.last(), &settings.rolling().steps) else { return all };
    let (current, hash_now) = (current(&own), hash(spec.content));
    if last.revision.hash != hash_now {
        let from = current.filter(|current| current.revision.hash != hash_now).unwrap_or(last);
        let is_back = current.is_some_and(|current| current.revision.hash == hash_now) || from.came_from(&hash_now);
        let earlier = (!steps.is_empty() && !is_back).then(|| (number(&from.revision.hash), Extent::default()));
        return Delivered { earlier, ..all };
    }
    let Some(reached) = last.record.reached.as_ref().filter(|reached| holds(reached, steps)) else { return all };
    let from = number(&reached.from);
    let is_stored = own.iter().any(|stored| stored.revision.hash == reached.from);
    let is_kept = before.content == from || before.earlier.as_ref().is_some_and(|(earlier, _)| *earlier == from);
    Delivered { earlier: (is_stored || is_kept).then(|| (from, reached.extent.clone())), ..all }
}

impl Kept {
    /// The same as the operator reads it.
    pub fn stored(&self) -> StoredRevision {
        let revision = revision(self.content, self.number);
        let stored = StoredRevision::new("p", revision, at_second(self.created), self.record.clone());
        StoredRevision { owner: self.owner.to_string(), version: self.version.to_string(), ..stored }
    }

    /// A revision whose rollout was complete before, after the workloads were made.
    pub fn complete(content: Number, number: u8) -> Self {
        let record = Record::complete(at(10_000), at(20_000));
        Self { content, number, owner: 1, created: 0, version: 1, record }
    }
}

/// The settings of a policy that do not change, and its contents.
#[derive(Clone, Debug)]
pub struct Settings {
    policies: Vec<Arc<Policy>>,
    rolling: sidecar_policy_core::api::v1alpha1::RollingUpdate,
}

impl Settings {
    /// Those of `spec.updateStrategy.rollingUpdate`.
    pub fn new(rolling: &serde_json::Value) -> Self {
        let policy = |content: Number| {
            let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": rolling });
            let object = json!({
                "metadata": { "name": "p", "uid": "1" },
                "spec": { "template": content_of(content).template, "updateStrategy": strategy },
            });
            Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).expect("it is a policy"))
        };
        let policies: Vec<_> = (0..=3).map(policy).collect();
        let rolling = policies[0].rolling.clone().expect("it rolls");
        Self { policies, rolling: (*rolling).clone() }
    }

    /// The policy with that content.
    pub fn policy(&self, content: Number) -> &Arc<Policy> {
        &self.policies[usize::from(content)]
    }

    /// The settings.
    pub fn rolling(&self) -> &sidecar_policy_core::api::v1alpha1::RollingUpdate {
        &self.rolling
    }
}

fn content_of(content: Number) -> Content {
    let image = format!("x:{content}");
    serde_json::from_value(json!({ "template": { "containers": [{ "name": "x", "image": image }] } }))
        .expect("it is a content")
}

static CONTENTS: LazyLock<Vec<Revision>> =
    LazyLock::new(|| (0..=3).map(|content| Revision::new("p", 0, content_of(content))).collect());
static REVISIONS: LazyLock<Vec<Vec<Arc<Revision>>>> = LazyLock::new(|| {
    let numbered = |content: &Revision, number: i64| Arc::new(Revision { number, ..content.clone() });
    CONTENTS.iter().map(|content| (0..64).map(|number| numbered(content, number)).collect()).collect()
});

fn revision(content: Number, number: u8) -> Arc<Revision> {
    REVISIONS[usize::from(content)][usize::from(number)].clone()
}

/// The hash of a content.
pub fn hash(content: Number) -> String {
    CONTENTS[usize::from(content)].hash.clone()
}

/// The content with that hash.
pub fn number(hash: &str) -> Number {
    let found = CONTENTS.iter().position(|content| content.hash == hash);
    found.and_then(|found| u8::try_from(found).ok()).unwrap_or_default()
}
