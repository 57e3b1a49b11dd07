//! The election of the leader among replicas, by a Lease, which servers have from 1.12.
//!
//! The lease saves double work, but is no lock. Every write of the operator has its own guard, so two leaders at once
//! are harmless. Hence a leader continues until it *sees* another holder, and an unreachable server costs no relist.

use super::answer::Meaning;
use super::api::Api;
use super::client::{CallError, call};
use crate::timing;
use jiff::Timestamp;
use kube::Client;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The name of the Lease in the operator's namespace.
pub const NAME: &str = "scpol";

/// One replica's view of the lease.
pub struct Lease {
    api: Api<DynamicObject>,
    identity: String,
    duration: Duration,
    /// The interval at which a follower checks whether the lease is free.
    look: Duration,
    /// The lease as we last read or wrote it.
    stored: Option<DynamicObject>,
    /// The holder and renewal time last seen, and when we first saw them by our own clock. Clocks of other machines are
    /// never compared.
    observed: Option<(String, Instant)>,
}

/// The result of a look at the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We hold the lease.
    Leader,
    /// Another replica holds the lease.
    Follower,
}

impl Lease {
    /// The lease in `namespace`, through the API `version` of the server. `duration` is how long a holder without
    /// renewals keeps the lease.
    pub fn new(
        client: Client,
        version: &str,
        namespace: &str,
        identity: &str,
        duration: Duration,
        timing: &timing::Process,
    ) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("coordination.k8s.io", version, "Lease"));
        Self {
            api: Api::namespaced_with(client, namespace, &resource),
            identity: identity.to_owned(),
            duration,
            look: timing.follower_look,
            stored: None,
            observed: None,
        }
    }

    /// The pause before the next [`Lease::look`].
    pub fn pause(&self, role: Role) -> Duration {
        match role {
            Role::Leader => self.duration / 3,
            Role::Follower => self.look,
        }
    }

    /// Renews our lease, or takes a free or expired lease. Returns our role afterwards.
    ///
    /// # Errors
    /// If the server gives no valid answer. The role stays unknown, so the caller keeps its last role.
    pub async fn look(&mut self) -> Result<Role, CallError> {
        if let Some(ours) = self.stored.clone().filter(|lease| self.holds(lease)) {
            match self.write(ours, Some(&self.identity.clone())).await {
                Err(error) if error.means() == Meaning::Conflict => {}
                Err(error) if error.means() == Meaning::NotFound => self.stored = None,
                written => return written.map(|()| Role::Leader),
            }
        }
        let Some(lease) = call(self.api.get_opt(NAME)).await? else { return self.create().await };
        if self.holds(&lease) || self.is_free(&lease) {
            return match self.write(lease, Some(&self.identity.clone())).await {
                Ok(()) => Ok(Role::Leader),
                Err(error) if error.means() == Meaning::Conflict => Ok(Role::Follower),
                Err(error) => Err(error),
            };
        }
        self.stored = Some(lease);
        Ok(Role::Follower)
    }

    /// Runs `work`, which may take longer than the lease lasts, and renews the lease meanwhile. Returns the result of
    /// `work` and our last known role.
    pub async fn hold_during<T>(&mut self, work: impl Future<Output = T>) -> (T, Role) {
        let mut work = std::pin::pin!(work);
        let mut role = Role::Leader;
        loop {
            match tokio::time::timeout(self.pause(role), work.as_mut()).await {
                Ok(done) => return (done, role),
                Err(_) => role = self.look().await.unwrap_or(role),
            }
        }
    }

    /// Releases the lease, so that another replica takes it at its next look.
    pub async fn release(&mut self) {
        let Some(ours) = self.stored.clone().filter(|lease| self.holds(lease)) else { return };
        if let Err(error) = self.write(ours, None).await {
            warn!(%error, "Cannot release the lease");
        }
    }

    /// Waits until another replica holds the released lease, at most `limit`.
    pub async fn has_successor(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Ok(Some(lease)) = call(self.api.get_opt(NAME)).await
                && !holder(&lease).is_empty()
                && holder(&lease) != self.identity
            {
                info!(holder = holder(&lease), "Another replica leads");
                return true;
            }
            tokio::time::sleep(self.look / 4).await;
        }
        false
    }

    fn holds(&self, lease: &DynamicObject) -> bool {
        holder(lease) == self.identity
    }

    /// Whether `lease` has no holder, or a holder without renewal for the whole duration while we watched.
    fn is_free(&mut self, lease: &DynamicObject) -> bool {
        let spec = &lease.data["spec"];
        let seen = format!("{}@{}", holder(lease), spec["renewTime"].as_str().unwrap_or_default());
        if holder(lease).is_empty() {
            return true;
        }
        let granted = Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(self.duration.as_secs()));
        match &self.observed {
            Some((last, since)) if *last == seen => since.elapsed() >= granted,
            _ => {
                self.observed = Some((seen, Instant::now()));
                false
            }
        }
    }

    async fn create(&mut self) -> Result<Role, CallError> {
        let mut lease = DynamicObject::new(NAME, &ApiResource::from_gvk(&GroupVersionKind::gvk("", "", "Lease")));
        lease.types = None;
        lease.data = json!({ "spec": self.spec(Some(&self.identity), &Value::Null) });
        match call(self.api.create(&PostParams::default(), &lease)).await {
            Ok(stored) => {
                self.stored = Some(stored);
                Ok(Role::Leader)
            }
            Err(error) if error.means() == Meaning::Conflict => Ok(Role::Follower),
            Err(error) => Err(error),
        }
    }

    async fn write(&mut self, mut lease: DynamicObject, holder: Option<&str>) -> Result<(), CallError> {
        lease.data["spec"] = self.spec(holder, &lease.data["spec"]);
        self.stored = Some(call(self.api.replace(NAME, &PostParams::default(), &lease)).await?);
        Ok(())
    }

    fn spec(&self, holder: Option<&str>, old: &Value) -> Value {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        let changes = old["holderIdentity"].as_str() != holder;
        let changes_hands = changes && holder.is_some() && !old.is_null();
        let before = i32::try_from(old["leaseTransitions"].as_i64().unwrap_or(0)).unwrap_or(i32::MAX);
        let transitions = before.saturating_add(i32::from(changes_hands));
        let mut spec = json!({
            "leaseDurationSeconds": self.duration.as_secs().max(1),
            "acquireTime": if changes { json!(now) } else { old["acquireTime"].clone() },
            "renewTime": now,
            "leaseTransitions": transitions,
        });
        if let Some(holder) = holder {
            spec["holderIdentity"] = json!(holder);
        }
        spec
    }
}

fn holder(lease: &DynamicObject) -> &str {
    lease.data["spec"]["holderIdentity"].as_str().unwrap_or_default()
}
