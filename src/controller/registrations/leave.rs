//! Unregisters when the last replica stops.

use crate::capabilities::registration as resources;
use crate::cluster::policies::StoredPolicy;
use crate::controller::Controller;
use crate::engine::lifecycle::Registration;
use crate::engine::registrar::RegistrationKey;
use crate::engine::registration;
use crate::naming::kind_of;
use crate::policy::{Policy, PolicyRef};
use crate::workload::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tracing::{error, warn};

use super::needs_operator;
use crate::controller::registered::Slot;

impl Controller {
    /// The kinds, with their policies, that this process serves and where nothing is rejected: they can go with the process.
    /// Includes the registrations of an earlier leader that this one has not handled yet.
    fn leaving_kinds(&self, stored: &BTreeMap<PolicyRef, StoredPolicy>) -> Vec<(Arc<Kind>, Vec<Arc<Policy>>)> {
        let by_us = self.registrations.all_shared().filter(|(resource, _)| needs_operator(resource));
        let live = self.registrations.of_kinds().filter(|(_, state)| state.live().is_some());
        let live = live.map(|(kind, _)| kind.clone());
        let kinds: BTreeSet<Arc<Kind>> = by_us.filter_map(|(_, name)| kind_of(name)).chain(live).collect();
        let targeting = |kind: &Arc<Kind>| {
            let policies = stored.values().filter_map(|stored| stored.parsed.clone().ok());
            policies.filter(|policy| policy.is_enforced() && policy.kinds.contains(kind)).collect()
        };
        let served = |kind: Arc<Kind>| match self.registrations.of_kind(&kind).and_then(Registration::live) {
            Some(live) if live.wanted.engine.engine().needs_operator() => Some((kind, live.policies().to_vec())),
            Some(_) => None,
            None => Some((kind.clone(), targeting(&kind))),
        };
        let is_open = |(_, policies): &(Arc<Kind>, Vec<Arc<Policy>>)| policies.iter().all(|policy| !policy.refuses());
        kinds.into_iter().filter_map(served).filter(is_open).collect()
    }

    /// Unregisters the kinds that need this process and reject nothing. First it writes the statuses, as far as possible
    /// before `until`.
    pub(in crate::controller) async fn withdraw_kinds(
        &mut self,
        stored: &BTreeMap<PolicyRef, StoredPolicy>,
        until: Instant,
    ) {
        let open = self.leaving_kinds(stored);
        let policies: BTreeSet<&str> =
            open.iter().flat_map(|(_, policies)| policies).map(|policy| policy.name.as_str()).collect();
        let named =
            policies.into_iter().filter_map(|name| Some((name, stored.get(&PolicyRef::of_cluster(name))?))).collect();
        let message = "the operator stopped in good order and unregistered its webhook; start it again";
        self.tell_stopped(named, message, until).await;
        let whole = open.iter().map(|(kind, _)| (kind, self.registrations.registered(&Slot::of_kind(kind))));
        let removals = whole.chain(self.standbys()).map(|(kind, keys)| (self.registrar_of(kind), kind, keys));
        let removals = removals.map(|(registrar, kind, keys)| async move {
            if let Err(error) = registration::unregister_some(&registrar, &Vec::from_iter(keys)).await {
                warn!(resource = kind.resource, %error, "Cannot unregister the webhook; creates of its targets take longer until the operator is back");
            }
        });
        futures::future::join_all(removals).await;
    }

    /// The objects that call this process beside an engine that needs no process: what they stand by for goes on without them.
    fn standbys(&self) -> impl Iterator<Item = (&Arc<Kind>, BTreeSet<RegistrationKey>)> {
        let is_served =
            |state: &Registration| state.live().is_some_and(|live| !live.wanted.engine.engine().needs_operator());
        let kinds = self.registrations.of_kinds().filter(move |(_, state)| is_served(state));
        kinds.map(|(kind, _)| {
            let mut keys = self.registrations.registered(&Slot::of_kind(kind));
            keys.retain(|key| needs_operator(&key.resource) && !resources::refuses(&key.resource));
            (kind, keys)
        })
    }

    /// The same for registrations of single policies.
    pub(in crate::controller) async fn withdraw_own(
        &mut self,
        stored: &BTreeMap<PolicyRef, StoredPolicy>,
        until: Instant,
    ) {
        let Some(worker) = self.worker.clone() else { return };
        let leaving: Vec<_> = stored
            .iter()
            .filter_map(|(of, stored)| Some((of.clone(), stored.parsed.clone().ok()?)))
            .filter(|(of, policy)| !policy.refuses() && self.may_be_registered(&of.name, &stored[of]))
            .collect();
        let kinds: BTreeSet<_> = leaving.iter().flat_map(|(_, policy)| policy.kinds.iter().cloned()).collect();
        let named = leaving.iter().map(|(of, _)| (&*of.name, &stored[of])).collect();
        let message = "the operator stopped in good order and unregistered, so that creates go on without the sidecar; start it again";
        self.tell_stopped(named, message, until).await;
        let removals = leaving.iter().map(|(PolicyRef { name, .. }, _)| {
            let worker = &worker;
            async move {
                if let Err(error) = worker.remove(name).await {
                    error!(policy = &**name, %error, "Cannot unregister; creates of its targets will wait until the operator is back");
                }
            }
        });
        futures::future::join_all(removals).await;
        if leaving.is_empty() {
            return;
        }
        worker.drain(&self.workloads, &Vec::from_iter(kinds)).await;
    }
}
