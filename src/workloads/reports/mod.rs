//! Writes which workloads lack their sidecar into a report for each namespace (`--reports`), for viewers of policy reports.
//!
//! The [`census`] has counts and no names, so the leader lists the workloads of a namespace after its
//! counts have changed. A namespace in which all is well is not listed, because then the counts are the whole report.
//! Everything goes one after the other, with a pause after each request. So reports may be late, and delay nothing else.

mod content;

use self::content::{NAME, ReportContent, replacement};
use super::Workloads;
use super::behind::Around;
use super::census::{self, Tally};
use crate::api::{MANAGED_BY, MANAGER};
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::keep::{self, Put};
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::cluster::policies::Snapshot;
use crate::policy::{Policy, PolicyRef};
use crate::survival;
use crate::timing;
use crate::workload::{Kind, Workload};
use clap::ValueEnum;
use jiff::Timestamp;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// The reports that the leader writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Reports {
    /// None.
    #[default]
    Off,
    /// PolicyReports of wgpolicyk8s.io/v1alpha2.
    Policyreports,
    /// Reports of openreports.io/v1alpha1.
    Openreports,
}

impl Reports {
    /// The form of the reports; none if they are off.
    pub fn form(self) -> Option<Form> {
        match self {
            Reports::Off => None,
            Reports::Policyreports => Some(Form::Policyreports),
            Reports::Openreports => Some(Form::Openreports),
        }
    }
}

/// The API of a report. The fields that the operator writes have the same names in both, but `source` of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `PolicyReport` of the policy working group of Kubernetes.
    Policyreports,
    /// `Report` of OpenReports, its successor.
    Openreports,
}

impl Form {
    /// Both of them.
    pub const ALL: [Form; 2] = [Form::Policyreports, Form::Openreports];

    fn parts(self) -> [&'static str; 4] {
        match self {
            Form::Policyreports => ["wgpolicyk8s.io", "v1alpha2", "PolicyReport", "policyreports"],
            Form::Openreports => ["openreports.io", "v1alpha1", "Report", "reports"],
        }
    }

    /// The resource on the API server.
    pub fn resource(self) -> ApiResource {
        let [group, version, kind, plural] = self.parts();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    fn api_version(self) -> String {
        self.resource().api_version
    }

    fn kind(self) -> &'static str {
        let [_, _, kind, _] = self.parts();
        kind
    }
}

/// Keeps the reports up to date for ever.
pub async fn keep(workloads: &Workloads, form: Form) {
    let timing = &workloads.operator.timing.workloads;
    let mut keeper = ReportKeeper {
        workloads,
        form,
        resource: form.resource(),
        timing,
        snapshots: workloads.operator.snapshots(),
        hasher: RandomState::new(),
        policies: 0,
        is_served: false,
        places: BTreeMap::new(),
    };
    keeper.wait_for_counts().await;
    loop {
        let pause = match keeper.turn().await {
            Ok(requests) => timing.report_pause * requests.max(1),
            Err(message) => {
                warn!(error = message, "Cannot write reports; trying again");
                timing.report_again
            }
        };
        tokio::time::sleep(pause).await;
    }
}

struct ReportKeeper<'a> {
    workloads: &'a Workloads,
    form: Form,
    resource: ApiResource,
    timing: &'static timing::Workloads,
    snapshots: watch::Receiver<Snapshot>,
    hasher: RandomState,
    /// The hash of the policies, and of which of them are in effect.
    policies: u64,
    is_served: bool,
    /// The namespaces with a match or a report.
    places: BTreeMap<Arc<str>, NamespaceReport>,
}

/// What the leader knows of a namespace.
struct NamespaceReport {
    /// The time of the next look.
    due: Instant,
    /// The time of the last look.
    looked: Option<Instant>,
    /// The hash of the report that is stored; none if that is unknown.
    written: Option<u64>,
}

impl ReportKeeper<'_> {
    /// Waits until all workloads have been counted. A kind that cannot be listed is given up after a while.
    async fn wait_for_counts(&self) {
        let (since, limit) = (Instant::now(), 2 * self.workloads.operator.timing.watch.refused);
        let are_counted = || {
            let snapshot = self.snapshots.borrow();
            let (_, missing) = self.kinds(&snapshot);
            snapshot.synced && missing == 0
        };
        while !are_counted() && since.elapsed() < limit {
            tokio::time::sleep(self.timing.report_pause).await;
        }
    }

    /// The kinds that the policies target and whose objects have been counted, with their resources, and the number of
    /// the others.
    fn kinds(&self, snapshot: &Snapshot) -> (Vec<(Arc<Kind>, ApiResource)>, usize) {
        let enforced = snapshot.policies.iter().filter(|policy| policy.is_enforced() && policy.injects());
        let kinds: BTreeSet<&Arc<Kind>> = enforced.flat_map(|policy| &policy.kinds).collect();
        let served = kinds.into_iter().filter_map(|kind| Some((kind.clone(), self.workloads.operator.resource(kind)?)));
        let (whole, missing): (Vec<_>, Vec<_>) =
            served.partition(|(kind, _)| self.workloads.census(|census| census.is_whole(kind)));
        (whole, missing.len())
    }

    /// Looks at the namespace that is due, if there is one. Returns the number of requests.
    async fn turn(&mut self) -> Result<u32, String> {
        if !self.is_served {
            self.begin().await?;
        }
        self.note_changes();
        let now = Instant::now();
        let first = self.places.iter().filter(|(_, place)| place.due <= now).min_by_key(|(_, place)| place.due);
        let Some((namespace, place)) = first else { return Ok(0) };
        let namespace = namespace.clone();
        // Because the report may have been edited or deleted meanwhile.
        let resync = self.workloads.operator.resync;
        let written = place.written.filter(|_| place.looked.is_none_or(|looked| now < looked + resync));
        let looked = self.look(&namespace, written).await;
        let next = match &looked {
            Ok((_, None)) => None,
            Ok((_, written)) => Some(NamespaceReport { due: now + resync, looked: Some(now), written: *written }),
            Err(_) => Some(NamespaceReport { due: now + self.timing.report_again, looked: Some(now), written: None }),
        };
        match next {
            Some(place) => drop(self.places.insert(namespace.clone(), place)),
            None => drop(self.places.remove(&namespace)),
        }
        match looked {
            Ok((requests, _)) => Ok(requests),
            Err(error) => {
                // Perhaps the definition of reports is gone.
                self.is_served = error.means() != Meaning::NotFound;
                Err(format!("in namespace `{namespace}`: {error}"))
            }
        }
    }

    /// Asks whether the server serves reports, and which exist.
    async fn begin(&mut self) -> Result<(), String> {
        let operator = &self.workloads.operator;
        let [group, _, kind, plural] = self.form.parts();
        let listed = match call(operator.client.list_api_group_resources(&self.resource.api_version)).await {
            Ok(listed) => listed.resources,
            // The server behind an aggregated API may be away.
            Err(error) if matches!(error.code(), 404 | 503) => Vec::new(),
            Err(error) => return Err(error.to_string()),
        };
        if !listed.iter().any(|resource| resource.name == plural) {
            return Err(format!(
                "the server does not serve {kind} of {}: install the CustomResourceDefinition `{plural}.{group}`, or set \
                 `--reports=off`",
                self.resource.api_version
            ));
        }
        let api = Api::<Object>::all_with(operator.client.clone(), &self.resource);
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let mut namespaces = BTreeSet::new();
        let look = |report: Object| namespaces.extend([Arc::from(report.namespace())]);
        Pages::new(api, ours).each(look).await.map_err(|error| error.to_string())?;
        info!(reports = namespaces.len(), form = self.resource.api_version, "Writing reports");
        self.workloads.census(census::Census::record_changes);
        let due = Instant::now();
        self.places =
            namespaces.into_iter().map(|name| (name, NamespaceReport { due, looked: None, written: None })).collect();
        self.is_served = true;
        Ok(())
    }

    /// Makes the namespaces due whose workloads have changed, and all of them after a change of the policies.
    fn note_changes(&mut self) {
        let (now, period) = (Instant::now(), self.timing.report_period);
        let soon = |place: &mut NamespaceReport| {
            let next = place.looked.map_or(now, |looked| (looked + period).max(now));
            place.due = place.due.min(next);
        };
        for namespace in self.workloads.census(census::Census::take_changed) {
            soon(self.places.entry(namespace).or_insert(NamespaceReport { due: now, looked: None, written: None }));
        }
        if self.snapshots.has_changed().unwrap_or_default() {
            let snapshot = self.snapshots.borrow_and_update().clone();
            let policies = snapshot.policies.iter().map(|policy| (&policy.spec_hash, is_in_force(&snapshot, policy)));
            let policies = self.hasher.hash_one(policies.collect::<Vec<_>>());
            if std::mem::replace(&mut self.policies, policies) != policies {
                self.places.values_mut().for_each(soon);
            }
        }
    }

    /// Brings the report of `namespace` up to date, unless it has the hash `written`. Returns the number of requests, and
    /// the hash of the report; none if there is no report.
    async fn look(&self, namespace: &str, written: Option<u64>) -> Result<(u32, Option<u64>), CallError> {
        let (content, mut requests) = self.content(namespace).await?;
        if content.is_empty() {
            self.delete(namespace).await?;
            return Ok((requests + 2, None));
        }
        let wanted = content.object(self.form, namespace);
        let hash = self.hasher.hash_one(wanted.to_string());
        if written != Some(hash) {
            self.write(namespace, &wanted).await?;
            requests += 2;
        }
        Ok((requests, Some(hash)))
    }

    /// The content of the report of `namespace`, and the number of requests for it.
    async fn content(&self, namespace: &str) -> Result<(ReportContent, u32), CallError> {
        let operator = &self.workloads.operator;
        let (snapshot, site) = (operator.snapshot(), operator.site());
        let policies = &snapshot.policies;
        let is_reported = |of: &PolicyRef| policies.get(of).is_some_and(|policy| policy.is_enforced());
        let tallies = self.workloads.census(|census| census.tallies(namespace, is_reported));
        if tallies.keys().all(|tally| *tally == Tally::Injected) {
            return Ok((ReportContent::healthy(tallies.values().sum()), 0));
        }
        let mut content = ReportContent::default();
        let (kinds, _) = self.kinds(&snapshot);
        for (kind, resource) in &kinds {
            let around = Around { policies, site: &site, resource };
            let look = |object: Object| {
                let mut workload = Workload::new(kind, object.value());
                if !object.is_initialized() {
                    return;
                }
                if policies.read_namespaces() {
                    workload = workload.within(operator.namespaces.get(namespace));
                }
                let add = || {
                    let fate = census::fate(&workload, policies, &site, |a, b| self.workloads.collide(a, b));
                    content.add(&workload, &fate, &around, |policy| is_in_force(&snapshot, policy));
                };
                // A panic costs only this workload's lines.
                survival::attempt(&operator.metrics, "reporting on a workload", add);
            };
            let api = Api::namespaced_with(operator.client.clone(), namespace, resource);
            match Pages::new(api, ListParams::default()).each(look).await {
                // The definition of a custom resource is gone.
                Err(error) if error.means() == Meaning::NotFound => {}
                listed => listed?,
            }
        }
        Ok((content, kinds.len() as u32))
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.workloads.operator.client.clone(), namespace, &self.resource)
    }

    /// Creates or updates the report.
    async fn write(&self, namespace: &str, wanted: &Value) -> Result<(), CallError> {
        let now = Timestamp::now().as_second();
        let next = |stored: Option<&DynamicObject>| {
            let stored = stored.map(|stored| serde_json::to_value(stored).expect("an object is JSON"));
            let next = replacement(stored.as_ref(), wanted.clone(), now)?;
            Some(serde_json::from_value(next).expect("a report is an object"))
        };
        match keep::put(&self.api(namespace), NAME, &PostParams::default(), next).await? {
            Put::Written(_) => debug!(namespace, "Report written"),
            Put::AsIs => {}
            Put::Foreign => {
                warn!(namespace, name = NAME, "A report of this name is not ours, so there is none of ours")
            }
            Put::Refused(error) if error.is_of_deleted_namespace() => {}
            Put::Refused(error) => return Err(error),
        }
        Ok(())
    }

    /// Deletes the report, if the operator wrote it.
    async fn delete(&self, namespace: &str) -> Result<(), CallError> {
        let api = self.api(namespace);
        if let Some(stored) = keep::ours(&api, NAME).await? {
            keep::delete(&api, NAME, stored.metadata.uid).await?;
        }
        Ok(())
    }
}

/// Whether new workloads get the template of `policy`.
fn is_in_force(snapshot: &Snapshot, policy: &Policy) -> bool {
    snapshot.stored.get(&policy.reference()).is_some_and(|stored| stored.is_programmed())
}
