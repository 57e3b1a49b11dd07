//! The registration by which the authors of policies are judged: made, proven, repaired, and taken away.
//!
//! It belongs to no policy, and it must be answered (`failurePolicy: Fail`). So it is made only where the operator has the rights
//! to judge, and it goes again at once if it is new and no trial shows it. One that was there before stays, whatever happens to the
//! operator: a check that goes away by itself protects nobody.

use crate::api::code::Code;
use crate::capabilities::{Capabilities, registration as resources};
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::cluster::rights::{self, Right};
use crate::cluster::watch::cache::WatchCache;
use crate::cluster::watch::shared::Whose;
use crate::engine::Unavailable;
use crate::engine::lifecycle::{
    Action, Context, Event as Happened, Failure, Live, Notice, Observed, Registration, Wanted, Wish,
};
use crate::engine::probe::{ProbeResult, is_unanswered, repeat, unanswered};
use crate::engine::reach::{Reach, Reachable};
use crate::engine::registrar::RegistrationKey;
use crate::engine::registration::{self, Edition, Editions, is_marked};
use crate::engine::revision_of;
use crate::engine::webhook;
use crate::operator::Operator;
use crate::review::author::{NAME, RIGHTS, probe, probed, render};
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::{DynamicObject, ObjectMeta, PostParams};
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// How the registration is kept.
pub struct Settings {
    /// How long a registration that a person deleted is not made again.
    pub repair_hold: Duration,
    /// How the API server reaches the webhook, or why it does not.
    pub reach: watch::Receiver<Reachable>,
    /// The last authorities that the registration is known to have; none if authors are not judged.
    pub published: Option<watch::Sender<Option<Vec<u8>>>>,
}

/// Keeps the registration as flags say, for ever; or sees that there is none.
pub async fn keep(operator: Arc<Operator>, settings: Settings) {
    if settings.published.is_none() {
        return forgo(&operator).await;
    }
    loop {
        let Some(resource) = resource(&operator.capabilities()) else {
            warn!(code = %Code::WebhookOff, "This server cannot register webhooks: the authors of policies are not judged");
            tokio::time::sleep(operator.timing.controller.retry).await;
            continue;
        };
        Keeper::new(&operator, &settings, resource).follow().await;
    }
}

fn resource(capabilities: &Capabilities) -> Option<ApiResource> {
    capabilities.registration(resources::VALIDATING_WEBHOOKS)
}

/// Takes away what was registered while the flag was set.
async fn forgo(operator: &Operator) {
    while let Some(resource) = resource(&operator.capabilities()) {
        match registration::remove(&operator.client, &resource, NAME).await {
            Ok(()) => return,
            // What we may not see, we have not made.
            Err(error) if error.is_forbidden() => return debug!(%error, "Cannot see whether authors are judged"),
            Err(error) => warn!(%error, name = NAME, "Cannot be taken out; trying again"),
        }
        tokio::time::sleep(operator.timing.controller.retry).await;
    }
}

struct Keeper<'a> {
    operator: &'a Operator,
    settings: &'a Settings,
    resource: ApiResource,
    /// What the watch shows.
    stored: WatchCache<Edition>,
    state: Registration,
    /// It is new, and no trial has shown it yet.
    is_doubtful: bool,
    retry_at: Option<Instant>,
}

impl<'a> Keeper<'a> {
    fn new(operator: &'a Operator, settings: &'a Settings, resource: ApiResource) -> Self {
        let (stored, state) = (WatchCache::default(), Registration::default());
        Self { operator, settings, resource, stored, state, is_doubtful: false, retry_at: None }
    }

    /// Keeps the registration until the server serves it otherwise.
    async fn follow(mut self) {
        let listened = (resources::VALIDATING_WEBHOOKS, self.resource.clone(), Whose::Ours);
        let mut events = self.operator.watches.listen([listened]);
        let mut reach = self.settings.reach.clone();
        while resource(&self.operator.capabilities()).as_ref() == Some(&self.resource) {
            self.pass().await;
            let waits = self.state.is_held() || self.retry_at.is_some();
            tokio::select! {
                Some((_, event)) = events.next() => self.seen(event),
                Ok(()) = reach.changed() => {}
                () = tokio::time::sleep(self.operator.timing.registration.author_look), if waits => {}
            }
        }
    }

    fn seen(&mut self, event: Result<Event<Object>, Arc<watcher::Error>>) {
        let Ok(event) = event else { return };
        let happened = match &event {
            Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) if object.name() != NAME => return,
            Event::Delete(object) => Some(Happened::deleted(self.key(), object)),
            Event::Apply(_) | Event::InitApply(_) => Some(Happened::Appeared(self.key())),
            Event::Init | Event::InitDone => None,
        };
        happened.map(|happened| self.step(happened));
        self.stored.apply(&event, |object, _| Edition::of(&object.value()));
    }

    fn key(&self) -> RegistrationKey {
        RegistrationKey::of(&self.resource.plural, NAME)
    }

    fn is_registered(&self) -> bool {
        self.stored.known().contains_key(NAME)
    }

    /// Compares what is to be registered with what is, and does what is missing.
    async fn pass(&mut self) {
        let reach = self.settings.reach.borrow().clone();
        // Before anybody answers, nothing is registered anew, and what is there stays.
        let (true, Ok(reach)) = (self.stored.is_complete(), reach) else { return };
        self.retry_at = self.retry_at.filter(|at| *at > Instant::now());
        if self.retry_at.is_some() {
            return;
        }
        let object = match render(&self.operator.capabilities(), &reach.address) {
            Ok(object) => object,
            Err(reason) => {
                self.report_trouble(&reason);
                return self.publish(&reach, None);
            }
        };
        let (engine, policies, kinds) = (webhook::NAME, Vec::new(), Vec::new());
        let wanted = Arc::new(Wanted { engine, policies, kinds, objects: vec![object] });
        let registered = self.is_registered().then(|| self.key()).into_iter().collect();
        let edition = self.state.at_rest().and_then(|live| live.editions.get(&self.key()));
        let edited = edition.zip(self.stored.known().get(NAME)).filter(|(ours, stored)| stored.is_edit_of(ours));
        let edited = edited.map(|_| self.key());
        let observed = Observed { registered, edited, ..Observed::default() };
        self.happened(Happened::Compared(Wish::Registered(wanted.clone()), observed)).await;
        self.publish(&reach, Some(&wanted));
    }

    /// Takes over an event, and does what follows.
    async fn happened(&mut self, event: Happened) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.step(event) {
                match action {
                    Action::Register { wanted, before } => {
                        let result = self.register(&wanted, before.as_deref()).await;
                        events.push(Happened::Registered(wanted, result));
                    }
                    // It is gone already: it has one object.
                    Action::Unregister => events.push(Happened::Unregistered(Ok(()))),
                    Action::Expect(live, deleted) => {
                        let written = live.editions.iter().find(|(key, _)| !deleted.contains(*key));
                        written.into_iter().for_each(|(_, edition)| self.stored.expect(NAME, edition.clone()));
                    }
                    Action::Report(report) => self.report(report),
                    // It is of no policy, and never verified twice.
                    Action::NoteFailure(..)
                    | Action::Verify(_)
                    | Action::AskOwners(_)
                    | Action::Publish
                    | Action::Forget => {}
                }
            }
        }
    }

    fn step(&mut self, event: Happened) -> Vec<Action> {
        let context = Context {
            now: Instant::now(),
            wall: Timestamp::now(),
            timing: &self.operator.timing.controller,
            repair_hold: self.settings.repair_hold,
            is_by_hand: &|metadata: &ObjectMeta| !is_marked(metadata),
        };
        let (state, actions) = std::mem::take(&mut self.state).step(event, &context);
        self.state = state;
        actions
    }

    fn report(&mut self, report: Notice) {
        match report {
            Notice::Registered(live) => {
                let revision = live.wanted.objects.first().and_then(revision_of);
                info!(name = NAME, revision, "The authors of policies are judged");
            }
            Notice::NotInForce(_, reason) | Notice::KeptBefore(_, reason) => self.report_trouble(&reason),
            Notice::Held(_, hold) => {
                warn!(name = NAME, until = %hold, code = %Code::RemovedByHand, "The registration was removed by hand; it is not made again before");
            }
            Notice::Edited(..) => info!(name = NAME, "The registration was edited; repairing it"),
            Notice::NotUnregistered(error) => warn!(name = NAME, error, "Cannot be taken out; trying again"),
        }
    }

    fn report_trouble(&mut self, reason: &Unavailable) {
        self.retry_at = Some(Instant::now() + self.operator.timing.controller.retry);
        self.operator.metrics.process.reconcile_errors.inc();
        let (code, message, is_registered) = (reason.code, &reason.message, self.is_registered());
        warn!(%code, message, is_registered, "The authors of policies are not judged as they should be; trying again");
    }

    /// Tells those who keep the certificate that nothing of ours that is registered here trusts less than `reach` says, if that is so.
    fn publish(&self, reach: &Reach, wanted: Option<&Arc<Wanted>>) {
        let live = self.state.at_rest().zip(wanted);
        if live.is_some_and(|(live, wanted)| live.wanted.is_as(wanted)) || !self.is_registered() {
            self.tell_published(reach);
        }
    }

    /// Nothing of ours that is registered here trusts less than `reach` says.
    fn tell_published(&self, reach: &Reach) {
        if let Some(published) = &self.settings.published {
            published.send_if_modified(|known| {
                let is_new = *known != reach.address.ca_bundle;
                known.clone_from(&reach.address.ca_bundle);
                is_new
            });
        }
    }

    /// Registers `wanted` and verifies it.
    async fn register(&mut self, wanted: &Arc<Wanted>, before: Option<&Live>) -> Result<Live, Failure> {
        let object = wanted.objects.first().cloned().unwrap_or_default();
        match self.registered(&object).await {
            Ok(edition) => {
                let editions = Editions::from([(self.key(), edition)]);
                Ok(Live { wanted: wanted.clone(), unverified: None, leftover: None, editions })
            }
            Err(reason) => Err((reason, before.cloned())),
        }
    }

    async fn registered(&mut self, wanted: &Value) -> Result<Edition, Unavailable> {
        let client = &self.operator.client;
        let api = Api::<DynamicObject>::all_with(client.clone(), &self.resource);
        let is_there = call(api.get_opt(NAME)).await?.is_some();
        if !is_there {
            check_rights(client).await?;
        }
        self.is_doubtful |= !is_there;
        let stored = registration::apply(client, &self.resource, wanted).await?;
        match self.prove(wanted).await {
            Err(reason) if self.is_doubtful => {
                registration::remove(client, &self.resource, NAME).await?;
                Err(reason)
            }
            proven => {
                proven?;
                self.is_doubtful = false;
                Ok(Edition::of(&stored))
            }
        }
    }

    /// Tries to create a policy, which is not stored, until it is refused by the registration `wanted`.
    async fn prove(&self, wanted: &Value) -> Result<(), Unavailable> {
        let refusal = probed(&revision_of(wanted).unwrap_or_default());
        let api = Api::<DynamicObject>::all_with(self.operator.client.clone(), &policies::resource());
        let policy = serde_json::from_value(probe(&self.operator.site().operator_namespace));
        let policy: DynamicObject = policy.expect("a policy is an object");
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let timing = &self.operator.timing.registration;
        let once = || async {
            match call(api.create(&dry_run, &policy)).await {
                Err(error) if error.repeats(&refusal) => Ok(ProbeResult::Shown),
                Err(error) if is_unanswered(&error) => Ok(ProbeResult::NotYet(Some(error.to_string()))),
                Err(error) => Err(error.into()),
                Ok(_) => Ok(ProbeResult::NotYet(None)),
            }
        };
        match repeat(timing, timing.author_probe_pause, once).await? {
            ProbeResult::NotYet(Some(why)) => Err(unanswered(&why)),
            ProbeResult::NotYet(None) => Err(without_effect(timing.probe_limit)),
            ProbeResult::Shown | ProbeResult::CannotTell(_) => Ok(()),
        }
    }
}

/// Sees that the operator may ask about authors, and may try whether it is asked.
async fn check_rights(client: &kube::Client) -> Result<(), Unavailable> {
    let group = crate::api::GROUP;
    for (group, resource) in [("authorization.k8s.io", "subjectaccessreviews"), (group, "sidecarpolicies")] {
        if !rights::may(client, &Right::everywhere("create", group, resource)).await? {
            let message = format!("the operator may not create {resource} of {group}: apply `{RIGHTS}`");
            return Err(Unavailable::new(Code::MissingRight, message));
        }
    }
    Ok(())
}

fn without_effect(limit: Duration) -> Unavailable {
    let message = format!(
        "registered, but a new SidecarPolicy did not show it in {} s: see that `ValidatingAdmissionWebhook` is not in the API server's `--disable-admission-plugins`",
        limit.as_secs_f64()
    );
    Unavailable::new(Code::WebhookOff, message)
}
