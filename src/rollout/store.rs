//! Stores the revisions of each policy, and how far the rollout of each is.

use crate::api::{MANAGED_BY, MANAGER, POLICY_LABEL};
use crate::cluster::api::{Api, path};
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::revisions::{self, Ahead, Commands, Foreign, Stored, ahead_annotation, annotations};
use crate::policy::Policy;
use crate::revision::{Content, Revision};
use crate::steps::Reached;
use jiff::Timestamp;
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// The stored revisions of each policy, oldest first.
pub struct Revisions {
    client: Client,
    namespace: String,
    by_policy: BTreeMap<String, Vec<Stored>>,
    /// The UIDs of the policies that exist, by name. The revisions of others do not count.
    uids: BTreeMap<String, String>,
    /// What was read and does not count.
    foreign: Vec<Foreign>,
}

impl Revisions {
    /// No revisions: they are read by [`Self::read`].
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            by_policy: BTreeMap::new(),
            uids: BTreeMap::new(),
            foreign: Vec::new(),
        }
    }

    fn api<K: kube::Resource<DynamicType = kube::core::ApiResource, Scope = kube::core::DynamicResourceScope>>(
        &self,
    ) -> Api<K> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &revisions::resource())
    }

    /// Reads what is stored. Only the revisions of policies that exist count.
    ///
    /// # Errors
    /// If the server does not tell.
    pub async fn read(&mut self) -> Result<(), CallError> {
        let mut by_policy: BTreeMap<String, Vec<Stored>> = BTreeMap::new();
        let (mut foreign, uids) = (Vec::new(), &self.uids);
        let look = |object: Object| {
            let judged = Stored::parse(&object).map(|parsed| parsed.and_then(|stored| owned(stored, uids)));
            match judged {
                Some(Ok(stored)) => by_policy.entry(stored.policy.clone()).or_default().push(stored),
                Some(Err(unknown)) => foreign.push(unknown),
                None => {}
            }
        };
        Pages::new(self.api(), ListParams::default().labels(&revisions::selector())).each(look).await?;
        for revisions in by_policy.values_mut() {
            revisions.sort_by_key(|stored| stored.revision.number);
        }
        for Foreign { policy, name, why, .. } in foreign.iter().filter(|found| !self.foreign.contains(found)) {
            warn!(code = %Foreign::CODE, policy, name, why, "A stored revision is ignored");
        }
        (self.by_policy, self.foreign) = (by_policy, foreign);
        Ok(())
    }

    /// What was read and does not count.
    pub fn foreign(&self) -> &[Foreign] {
        &self.foreign
    }

    /// The revisions of `policy`, oldest first.
    pub fn of(&self, policy: &str) -> &[Stored] {
        self.by_policy.get(policy).map(Vec::as_slice).unwrap_or_default()
    }

    /// The revision of `policy` with that hash.
    pub fn get(&self, policy: &str, hash: &str) -> Option<&Stored> {
        self.of(policy).iter().find(|stored| stored.revision.hash == hash)
    }

    /// The revision of `policy` whose rollout was complete last.
    pub fn current(&self, policy: &str) -> Option<&Stored> {
        revisions::current(self.of(policy))
    }

    /// The revisions of `policy`, latest first.
    pub fn latest_first(&self, policy: &str) -> impl Iterator<Item = &Revision> {
        self.of(policy).iter().rev().map(|stored| &*stored.revision)
    }

    /// Whether the content of `policy` is stored as its latest revision.
    pub fn has(&self, policy: &str, hash: &str) -> bool {
        self.of(policy).last().is_some_and(|last| last.revision.hash == hash)
    }

    /// Stores the content of `policy`, which has the last `commands`, as its latest revision. An earlier revision with this content gets a new number: the policy has
    /// been set back to it.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub async fn store(&mut self, policy: &Policy, commands: Commands, now: Timestamp) -> Result<(), CallError> {
        let Some(content) = Content::of(&policy.spec) else { return Ok(()) };
        let hash = content.hash();
        if next_number(self.of(&policy.name)) > revisions::LARGEST {
            self.renumber(&policy.name).await?;
        }
        let number = next_number(self.of(&policy.name));
        let last = self.of(&policy.name).last();
        // Where nothing was before, there is nothing to go in steps from, and the way back is no rollout in steps either.
        let from =
            self.current(&policy.name).or(last).filter(|from| from.revision.hash != hash && !from.came_from(&hash));
        let has_steps = policy.spec.rolling_update().is_some_and(|rolling| !rolling.steps.is_empty());
        let reached = from.filter(|_| has_steps).map(|from| Reached::begin(&from.revision.hash, now));
        let is_current = self.current(&policy.name).is_some_and(|current| current.revision.hash == hash);
        // Without rollouts, whatever is created has it.
        // Not before the one before it, which a leader may have completed whose clock was ahead.
        let at = self.current(&policy.name).and_then(|current| current.complete).map_or(now, |before| before.max(now));
        let complete = (is_current || !policy.spec.rolls()).then_some(at);
        let name = format!("{}-{hash}", policy.name);
        let known = self.get(&policy.name, &hash).is_some();
        let mut annotations = annotations(reached.as_ref(), complete);
        // Because the revision that has them may be deleted.
        let ahead = Ahead::of(commands, self.of(&policy.name).iter().map(|stored| stored.ahead), now);
        if let (Value::Object(all), Value::Object(ahead)) = (&mut annotations, ahead_annotation(&ahead)) {
            all.extend(ahead);
        }
        if known {
            self.patch(&policy.name, &name, json!({ "revision": number, "metadata": { "annotations": annotations } }))
                .await?;
        } else {
            let body = as_go_writes(&object(policy, &content, &name, number, &annotations));
            let path = path(&revisions::resource(), Some(&self.namespace), None)
                .map_err(|error| CallError::Unsent(error.to_string()))?;
            let request = Request::new(path).create(&PostParams::default(), body).expect("it is a request");
            match call(self.client.request::<DynamicObject>(request)).await {
                Ok(stored) => self.note(&policy.name, &stored),
                // Another leader was faster, or the name is taken.
                Err(error) if error.code() == 409 => {
                    self.read().await?;
                    if self.get(&policy.name, &hash).is_none() {
                        return self.clear(&name).await;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        info!(policy = policy.name, revision = number, hash, "New revision");
        Ok(())
    }

    /// Gives the revisions of `policy` small numbers, in the same order. Somebody has written a number above which no other
    /// counts.
    ///
    /// # Errors
    /// If the server does not accept it.
    async fn renumber(&mut self, policy: &str) -> Result<(), CallError> {
        warn!(policy, "A stored revision has the largest number: the revisions get new ones");
        let names: Vec<String> = self.of(policy).iter().map(|stored| stored.name.clone()).collect();
        for (name, number) in names.iter().zip(1_i64..) {
            self.patch(policy, name, json!({ "revision": number })).await?;
        }
        Ok(())
    }

    /// Deletes the object `name` that does not count, so that the next turn can store a revision of this name.
    ///
    /// # Errors
    /// If it is not labelled as ours, or the server does not delete it.
    async fn clear(&mut self, name: &str) -> Result<(), CallError> {
        let Some(taken) = self.foreign.iter().find(|foreign| foreign.name == name) else {
            let why = "is not labelled as the operator's, and has the name of a revision: delete it";
            return Err(CallError::Away(format!("the ControllerRevision `{}/{name}` {why}", self.namespace)));
        };
        let same = Preconditions { uid: Some(taken.uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::background() };
        match call(self.api::<DynamicObject>().delete(name, &parameters)).await {
            Err(error) if !matches!(error.code(), 404 | 409) => Err(error),
            _ => Ok(()),
        }
    }

    /// Records the times of commands that were ahead of the clock, with a revision.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub async fn note_ahead(&mut self, policy: &str, hash: &str, ahead: &Ahead) -> Result<(), CallError> {
        let name = format!("{policy}-{hash}");
        self.patch(policy, &name, json!({ "metadata": { "annotations": ahead_annotation(ahead) } })).await
    }

    /// Records how far the rollout of a revision is, or that it is complete.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub async fn reach(
        &mut self,
        policy: &str,
        hash: &str,
        reached: Option<&Reached>,
        complete: Option<Timestamp>,
    ) -> Result<(), CallError> {
        let name = format!("{policy}-{hash}");
        self.patch(policy, &name, json!({ "metadata": { "annotations": annotations(reached, complete) } })).await
    }

    async fn patch(&mut self, policy: &str, name: &str, patch: Value) -> Result<(), CallError> {
        match call(self.api::<DynamicObject>().patch(name, &PatchParams::default(), &Patch::Merge(patch))).await {
            Ok(stored) => {
                self.note(policy, &stored);
                Ok(())
            }
            // It has been deleted. The next turn finds it missing, and stores it again.
            Err(error) if error.code() == 404 => self.read().await,
            Err(error) => Err(error),
        }
    }

    fn note(&mut self, policy: &str, stored: &DynamicObject) {
        let object: Option<Object> =
            serde_json::to_value(stored).ok().and_then(|value| serde_json::from_value(value).ok());
        let Some(Ok(stored)) = object.and_then(|object| Stored::parse(&object)) else { return };
        let revisions = self.by_policy.entry(policy.to_owned()).or_default();
        revisions.retain(|known| known.name != stored.name);
        revisions.push(stored);
        revisions.sort_by_key(|stored| stored.revision.number);
    }

    /// Deletes the oldest revisions of `policy` but those for which `is_needed` is true, and `limit` others.
    ///
    /// # Errors
    /// If the server does not delete one.
    pub async fn prune(
        &mut self,
        policy: &str,
        limit: usize,
        is_needed: impl Fn(&Revision) -> bool,
    ) -> Result<(), CallError> {
        let others: Vec<Stored> =
            self.of(policy).iter().filter(|stored| !is_needed(&stored.revision)).cloned().collect();
        for old in others.iter().take(others.len().saturating_sub(limit)) {
            let same = Preconditions { uid: Some(old.uid.clone()), resource_version: None };
            let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::background() };
            match call(self.api::<DynamicObject>().delete(&old.name, &parameters)).await {
                Err(error) if !matches!(error.code(), 404 | 409) => return Err(error),
                _ => {}
            }
            if let Some(revisions) = self.by_policy.get_mut(policy) {
                revisions.retain(|stored| stored.name != old.name);
            }
        }
        Ok(())
    }

    /// Forgets the revisions of policies other than these, given by name and UID. The garbage collector deletes them.
    pub fn retain(&mut self, policies: BTreeMap<String, String>) {
        if self.uids == policies {
            return;
        }
        self.uids = policies;
        for (policy, revisions) in &mut self.by_policy {
            revisions.retain(|stored| self.uids.get(policy).is_some_and(|uid| stored.is_of(uid)));
        }
        self.by_policy.retain(|_, revisions| !revisions.is_empty());
    }
}

/// The number of the revision after `revisions`, which come oldest first.
fn next_number(revisions: &[Stored]) -> i64 {
    revisions.last().map_or(1, |last| last.revision.number.saturating_add(1))
}

/// `stored`, if one of the policies with these UIDs owns it.
fn owned(stored: Stored, uids: &BTreeMap<String, String>) -> Result<Stored, Foreign> {
    let is_own = uids.get(&stored.policy).is_some_and(|uid| stored.is_of(uid));
    if is_own { Ok(stored) } else { Err(stored.into_foreign()) }
}

/// `object` as JSON, with the escapes that Go's `encoding/json` writes.
///
/// The server stores `data` of a ControllerRevision as bytes, which never may change, and each patch of the object writes them
/// again.
fn as_go_writes(object: &Value) -> Vec<u8> {
    // JSON has these characters only in strings.
    let escapes =
        [('&', r"\u0026"), ('<', r"\u003c"), ('>', r"\u003e"), ('\u{2028}', r"\u2028"), ('\u{2029}', r"\u2029")];
    escapes.iter().fold(object.to_string(), |json, (character, escape)| json.replace(*character, escape)).into_bytes()
}

fn object(policy: &Policy, content: &Content, name: &str, number: i64, annotations: &Value) -> Value {
    let mut annotations = annotations.clone();
    annotations.as_object_mut().expect("it is an object").retain(|_, value| !value.is_null());
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "labels": { MANAGED_BY: MANAGER, POLICY_LABEL: policy.name },
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "name": policy.name, "uid": policy.uid,
            }],
        },
        "data": content,
        "revision": number,
    })
}
