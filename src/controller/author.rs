//! The registration by which the authors of policies are judged: made, proven, repaired, and taken away.
//!
//! It belongs to no policy, and it must be answered (`failurePolicy: Fail`). So it is made only where the operator has the rights
//! to judge, and it goes again at once if it is new and no trial shows it. One that was there before stays, whatever happens to the
//! operator: a check that goes away by itself protects nobody.

use super::Settings;
use super::hold::Hold;
use crate::api::code::Code;
use crate::cluster::capabilities::{Capabilities, registration as resources};
use crate::cluster::client::{self, call, why};
use crate::cluster::mirror::Mirror;
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::engine::Unavailable;
use crate::engine::registration::{self, revision_of};
use crate::engine::webhook::author::{NAME, RIGHTS, probe, probed, render};
use crate::engine::webhook::replica::Reach;
use crate::workloads::watch::Shared;
use futures::StreamExt;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// Keeps the registration as flags say, for ever; or sees that there is none.
pub async fn keep(shared: Arc<Shared>, settings: Settings) {
    if settings.author_check.is_none() {
        return forgo(&shared).await;
    }
    loop {
        let Some(resource) = resource(&shared.capabilities()) else {
            warn!(code = %Code::WebhookOff, "This server cannot register webhooks: the authors of policies are not judged");
            tokio::time::sleep(shared.timing.controller.retry).await;
            continue;
        };
        Keeper::new(&shared, &settings, resource).follow().await;
    }
}

fn resource(capabilities: &Capabilities) -> Option<ApiResource> {
    capabilities.registration(resources::VALIDATING_WEBHOOKS)
}

/// Takes away what was registered while the flag was set.
async fn forgo(shared: &Shared) {
    while let Some(resource) = resource(&shared.capabilities()) {
        match registration::remove(&shared.client, &resource, NAME).await {
            Ok(()) => return,
            // What we may not see, we have not made.
            Err(error) if error.code() == 403 => return debug!(%error, "Cannot see whether authors are judged"),
            Err(error) => warn!(%error, name = NAME, "Cannot be taken out; trying again"),
        }
        tokio::time::sleep(shared.timing.controller.retry).await;
    }
}

struct Keeper<'a> {
    shared: &'a Shared,
    settings: &'a Settings,
    resource: ApiResource,
    /// The generation of what is registered.
    stored: Mirror<i64>,
    /// What we have registered, and its generation: an edit by hand raises it.
    written: Option<(Value, i64)>,
    /// It is new, and no trial has shown it yet.
    is_doubtful: bool,
    /// Not to be registered again before.
    hold: Option<Hold>,
    retry_at: Option<Instant>,
    /// Why it is not in force, as the log has it.
    trouble: Option<Unavailable>,
}

impl<'a> Keeper<'a> {
    fn new(shared: &'a Shared, settings: &'a Settings, resource: ApiResource) -> Self {
        let (stored, written, is_doubtful) = (Mirror::default(), None, false);
        Self { shared, settings, resource, stored, written, is_doubtful, hold: None, retry_at: None, trouble: None }
    }

    /// Keeps the registration until the server serves it otherwise.
    async fn follow(mut self) {
        let api = Api::<Object>::all_with(self.shared.client.clone(), &self.resource);
        let named = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let mut events = client::watch(&api, &named, self.shared.resync, &self.shared.timing.watch).boxed();
        let mut reach = self.settings.reach.clone();
        while resource(&self.shared.capabilities()).as_ref() == Some(&self.resource) {
            self.pass().await;
            let waits = self.hold.is_some() || self.retry_at.is_some();
            tokio::select! {
                Some(event) = events.next() => self.seen(event),
                Ok(()) = reach.changed() => {}
                () = tokio::time::sleep(self.shared.timing.controller.author_look), if waits => {}
            }
        }
    }

    fn seen(&mut self, event: watcher::Result<Event<Object>>) {
        match event {
            Ok(event) => self.stored.apply(&event, |object, _| object.generation()),
            Err(error) => warn!(name = NAME, error = why(&error), "Cannot follow the registration; trying again"),
        }
    }

    /// Compares what is to be registered with what is, and does what is missing.
    async fn pass(&mut self) {
        let reach = self.settings.reach.borrow().clone();
        // Before anybody answers, nothing is registered anew, and what is there stays.
        let (true, Ok(reach)) = (self.stored.is_complete(), reach) else { return };
        self.hold = self.hold.filter(|hold| !hold.is_over());
        self.retry_at = self.retry_at.filter(|at| *at > Instant::now());
        let stored = self.stored.known().get(NAME).copied();
        if stored.is_none() && self.written.take().is_some() {
            let hold = Hold::begin(self.settings.repair_hold);
            warn!(name = NAME, until = %hold, code = %Code::RemovedByHand, "The registration was removed by hand; it is not made again before");
            self.hold = Some(hold);
        }
        if stored.is_none() && self.hold.is_some() {
            return self.tell_published(&reach);
        }
        if self.retry_at.is_none() {
            self.settle(&reach, stored).await;
        }
    }

    async fn settle(&mut self, reach: &Reach, stored: Option<i64>) {
        let rendered = render(&self.shared.capabilities(), &reach.endpoint, reach.ca_bundle.as_deref());
        let raised = match (rendered, &self.written) {
            (Ok(wanted), Some((written, generation))) if wanted == *written && stored <= Some(*generation) => {
                return self.tell_published(reach);
            }
            (Ok(wanted), _) => self.raise(&wanted).await.map(|generation| (wanted, generation)),
            (Err(reason), _) => Err(reason),
        };
        match raised {
            Ok((wanted, generation)) => {
                info!(name = NAME, revision = revision_of(&wanted), "The authors of policies are judged");
                self.stored.expect(NAME, generation);
                (self.written, self.trouble) = (Some((wanted, generation)), None);
                self.tell_published(reach);
            }
            Err(reason) => self.tell_trouble(reason, reach),
        }
    }

    fn tell_trouble(&mut self, reason: Unavailable, reach: &Reach) {
        self.retry_at = Some(Instant::now() + self.shared.timing.controller.retry);
        self.shared.metrics.reconcile_errors.inc();
        let is_registered = self.stored.known().contains_key(NAME);
        if !is_registered {
            self.tell_published(reach);
        }
        let (code, message) = (reason.code, &reason.message);
        if self.trouble.as_ref() != Some(&reason) {
            warn!(%code, message, is_registered, "The authors of policies are not judged as they should be; trying again");
        }
        self.trouble = Some(reason);
    }

    /// Nothing of ours that is registered here trusts less than `reach` says.
    fn tell_published(&self, reach: &Reach) {
        if let Some(published) = &self.settings.author_check {
            published.send_if_modified(|known| {
                let is_new = *known != reach.ca_bundle;
                known.clone_from(&reach.ca_bundle);
                is_new
            });
        }
    }

    /// Registers `wanted`, sees it in force, and gives its generation.
    async fn raise(&mut self, wanted: &Value) -> Result<i64, Unavailable> {
        let client = &self.shared.client;
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
                Ok(stored["metadata"]["generation"].as_i64().unwrap_or_default())
            }
        }
    }

    /// Tries to create a policy, which is not stored, until it is refused by the registration `wanted`.
    async fn prove(&self, wanted: &Value) -> Result<(), Unavailable> {
        let refusal = probed(&revision_of(wanted).unwrap_or_default());
        let api = Api::<DynamicObject>::all_with(self.shared.client.clone(), &policies::resource());
        let policy = serde_json::from_value(probe(&self.shared.site().operator_namespace));
        let policy: DynamicObject = policy.expect("a policy is an object");
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let (since, timing) = (Instant::now(), &self.shared.timing.registration);
        loop {
            let why = match call(api.create(&dry_run, &policy)).await {
                Err(error) if error.to_string().contains(&refusal) => return Ok(()),
                Err(error) if registration::is_unanswered(&error) => Some(error.to_string()),
                Err(error) => return Err(error.into()),
                Ok(_) => None,
            };
            if since.elapsed() > timing.probe_limit {
                let without_effect = || without_effect(timing.probe_limit);
                return Err(why.as_deref().map_or_else(without_effect, registration::unanswered));
            }
            tokio::time::sleep(timing.author_probe_pause).await;
        }
    }
}

/// Sees that the operator may ask about authors, and may try whether it is asked.
async fn check_rights(client: &kube::Client) -> Result<(), Unavailable> {
    let group = crate::api::GROUP;
    for (group, resource) in [("authorization.k8s.io", "subjectaccessreviews"), (group, "sidecarpolicies")] {
        if !registration::may(client, "create", group, resource, None).await? {
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
