//! Writes the revisions of policies. What is stored is read in one place, the [snapshot](crate::cluster::policies::Snapshot).

use crate::api::{MANAGED_BY, MANAGER, POLICY_LABEL};
use crate::cluster::answer::Meaning;
use crate::cluster::api::{Api, path};
use crate::cluster::client::{CallError, call};
use crate::cluster::keep;
use crate::cluster::object::Object;
use crate::cluster::revisions;
use crate::content::Content;
use crate::policy::Policy;
use crate::rollout::record::Commands;
use crate::rollout::stored::{Begin, LARGEST, next_number};
use crate::rollout::{Foreign, Record, StoredRevision};
use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use serde_json::{Value, json};
use tracing::{info, warn};

/// The revisions in the operator's namespace, to be written.
#[derive(Clone)]
pub(super) struct Keeper {
    client: Client,
    namespace: String,
}

/// A revision as it is stored now. None if only the watch will show it: another leader was faster, or an object was deleted.
pub(super) type Kept = Option<Box<StoredRevision>>;

impl Keeper {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self { client: client.clone(), namespace: namespace.to_owned() }
    }

    fn api(&self) -> Api<Object> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &revisions::resource())
    }

    /// Stores the content of `policy`, which has the last `commands` and these `known` revisions, as its latest revision.
    /// `foreign` is what has the name of a revision and is none.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub(super) async fn begin(
        &self,
        policy: &Policy,
        commands: Commands,
        known: &[StoredRevision],
        foreign: &[Foreign],
    ) -> Result<Kept, CallError> {
        if next_number(known) > LARGEST {
            return self.renumber(&policy.name, known).await;
        }
        // In two writes: a leader that has slept announces nothing any more after the first, and the second counts all before.
        if let Some((last, record)) = Begin::before(known) {
            return self.record(last, &record).await;
        }
        let Some(Begin { number, record }) = Begin::of(policy, known, commands, Timestamp::now()) else {
            return Ok(None);
        };
        let hash = policy.revision().unwrap_or_default();
        if let Some(stored) = known.iter().find(|stored| stored.revision.hash == hash) {
            let patch = json!({ "revision": number, "metadata": { "annotations": record.annotations() } });
            return self.patch(stored, patch).await;
        }
        let Some(content) = Content::of(&policy.spec) else { return Ok(None) };
        self.create(policy, &content, number, &record, foreign).await
    }

    /// Creates the revision `number` of `policy`.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub(super) async fn create(
        &self,
        policy: &Policy,
        content: &Content,
        number: i64,
        record: &Record,
        foreign: &[Foreign],
    ) -> Result<Kept, CallError> {
        let name = format!("{}-{}", policy.name, content.hash());
        let body = as_go_writes(&object(policy, content, &name, number, record));
        let path = path(&revisions::resource(), Some(&self.namespace), None)
            .map_err(|error| CallError::Unsent(error.to_string()))?;
        let request = Request::new(path).create(&PostParams::default(), body).expect("it is a request");
        match call(self.client.request::<Object>(request)).await {
            Ok(stored) => {
                info!(policy = policy.name, revision = number, name, "New revision");
                Ok(kept(&stored))
            }
            // Another leader was faster, or the name is taken.
            Err(error) if error.means() == Meaning::Conflict => self.clear(&name, foreign).await,
            Err(error) => Err(error),
        }
    }

    /// Gives the `known` revisions of `policy` small numbers, in the same order. Somebody has written a number above which no other
    /// counts.
    async fn renumber(&self, policy: &str, known: &[StoredRevision]) -> Result<Kept, CallError> {
        warn!(policy, "A stored revision has the largest number: the revisions get new ones");
        for (stored, number) in known.iter().zip(1_i64..) {
            self.patch(stored, json!({ "revision": number })).await?;
        }
        Ok(None)
    }

    /// Deletes the object `name` if it does not count, so that the next turn can store a revision of this name.
    ///
    /// # Errors
    /// If the server does not delete it.
    async fn clear(&self, name: &str, foreign: &[Foreign]) -> Result<Kept, CallError> {
        if let Some(taken) = foreign.iter().find(|foreign| foreign.name == name) {
            return self.delete(name, &taken.uid).await.map(|()| None);
        }
        match call(self.api().get_opt(name)).await? {
            Some(object) if StoredRevision::parse(&object.value()).is_none() => {
                let why = "is not labelled as the operator's, and has the name of a revision: delete it";
                Err(CallError::Unsent(format!("the ControllerRevision `{}/{name}` {why}", self.namespace)))
            }
            _ => Ok(None),
        }
    }

    /// Writes `record` of `stored`, if that version is stored still.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub(super) async fn record(&self, stored: &StoredRevision, record: &Record) -> Result<Kept, CallError> {
        self.patch(stored, json!({ "metadata": { "annotations": record.annotations() } })).await
    }

    async fn patch(&self, stored: &StoredRevision, mut patch: Value) -> Result<Kept, CallError> {
        patch["metadata"]["uid"] = json!(stored.uid);
        patch["metadata"]["resourceVersion"] = json!(stored.version);
        let (api, parameters) = (self.api(), PatchParams::default());
        match call(api.patch(&stored.name, &parameters, &Patch::Merge(patch))).await {
            Ok(stored) => Ok(kept(&stored)),
            Err(error) if error.means().is_outdated() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the revision `name`, if it is the one with that UID.
    ///
    /// # Errors
    /// If the server does not delete it.
    pub(super) async fn delete(&self, name: &str, uid: &str) -> Result<(), CallError> {
        keep::delete(&self.api(), name, Some(uid.to_owned())).await.map(drop)
    }
}

fn kept(object: &Object) -> Kept {
    match StoredRevision::parse(&object.value()) {
        Some(Ok(stored)) => Some(Box::new(stored)),
        _ => None,
    }
}

/// The oldest of `revisions`, which come oldest first, but those for which `is_needed` is true and `limit` others.
pub(super) fn superfluous(
    revisions: &[StoredRevision],
    limit: usize,
    is_needed: impl Fn(&StoredRevision) -> bool,
) -> Vec<&StoredRevision> {
    let others: Vec<&StoredRevision> = revisions.iter().filter(|stored| !is_needed(stored)).collect();
    let count = others.len().saturating_sub(limit);
    others.into_iter().take(count).collect()
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

fn object(policy: &Policy, content: &Content, name: &str, number: i64, record: &Record) -> Value {
    let mut annotations = record.annotations();
    annotations.as_object_mut().expect("it is an object").retain(|_, value| !value.is_null());
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "labels": { MANAGED_BY: MANAGER, POLICY_LABEL: policy.name },
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "name": policy.name, "uid": policy.meta.uid,
            }],
        },
        "data": content,
        "revision": number,
    })
}
