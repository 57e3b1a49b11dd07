//! The stored workloads of one policy, counted as the operator counts them, and those without its template.

use crate::capabilities::Capabilities;
use crate::cli::live::{self, Inventory, NotStarting, Within};
use crate::cluster::object::Object;
use crate::inject::Edit;
use crate::policy::{Policies, Policy, Site};
use crate::workload::Workload;
use crate::workloads::behind::{self, Around, Lag};
use crate::workloads::census::{self, Pairs, Tally};
use crate::workloads::starts;
use anyhow::{Context, Result};
use kube::Client;
use serde::Serialize;
use std::sync::Arc;

/// The sums of one kind.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct KindSums {
    /// For example `deployments.apps`.
    pub(super) resource: String,
    pub(super) matched: usize,
    pub(super) injected: usize,
    pub(super) edited: usize,
    pub(super) outdated: usize,
    pub(super) missed: usize,
    /// Part of `missed`: an injection would fail even now.
    pub(super) failed: usize,
    /// Workloads that wait for the policy's initializer. They are not part of `matched`.
    pub(super) pending: usize,
    /// Workloads for which the match is undecidable.
    pub(super) unknown: usize,
}

/// A workload whose content differs from the policy.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct BehindRow {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) result: Lag,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// What was changed in an edited one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) edits: Vec<Edit>,
    /// The values of parameters that an outdated one has, and those that it would get now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) values: Option<String>,
    /// The suggested fix.
    pub(super) fix: String,
    /// The generation of a workload that lacks the template and has changed since its creation: it may have had the
    /// template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<i64>,
}

/// The result of a count.
#[derive(Debug, Default)]
pub(super) struct WorkloadCounts {
    pub(super) sums: Vec<KindSums>,
    pub(super) behind: Vec<BehindRow>,
    /// The containers of the policy that do not start.
    pub(super) not_starting: Vec<NotStarting>,
}

/// What a count needs besides the policy.
pub(super) struct Counting<'a> {
    pub(super) client: &'a Client,
    pub(super) server: &'a Capabilities,
    pub(super) policies: &'a Policies,
    pub(super) site: &'a Site,
    pub(super) within: &'a Within,
}

/// What a look at one workload shows.
enum LookResult {
    /// It waits for the initializer of the policy.
    Pending,
    Matched {
        tally: Tally,
        behind: Option<behind::Behind>,
        workload: Workload,
    },
}

impl Counting<'_> {
    /// Counts the stored workloads that may concern `policy`, one of the policies, whether in effect or not.
    ///
    /// # Errors
    /// If a kind cannot be listed, or the Namespaces that a policy needs.
    pub(super) async fn count(&self, policy: &Arc<Policy>, is_in_force: bool) -> Result<WorkloadCounts> {
        let Self { client, server, policies, site, within } = *self;
        let namespaces = match live::namespaces(client, within.namespace.as_deref()).await {
            Err(error) if policies.select_by_namespace() => return Err(error).context(live::NAMESPACES_UNREAD),
            found => found.unwrap_or_default(),
        };
        let inventory = Inventory { client, server, namespaces: &namespaces, within };
        let pairs = Pairs::of(policies);
        let (mut counted, mut unready) = (WorkloadCounts::default(), Vec::new());
        for kind in &policy.kinds {
            let Some(resource) = server.resource(kind) else { continue };
            let mut sums = KindSums { resource: kind.group_resource(), ..KindSums::default() };
            let around = Around { policies, site, resource: &resource };
            let look = |object: Object, workload: Workload| {
                if !object.is_initialized() {
                    return object.pending().any(|name| name == policy.initializer_name).then_some(LookResult::Pending);
                }
                let fate = census::fate(&workload, policies, site, |a, b| pairs.collide(a, b));
                let tally = fate.iter().find(|(of, _)| *of == policy.reference())?.1;
                let behind = around.behind(policy, is_in_force, &fate, &workload);
                Some(LookResult::Matched { tally, behind, workload })
            };
            let take = |looked: LookResult| {
                let LookResult::Matched { tally, behind, workload } = looked else { return sums.pending += 1 };
                sums.add(tally, behind.as_ref().is_some_and(|behind| behind.lag == Lag::Failed));
                counted.behind.extend(behind.map(|behind| row(behind, policy, &workload)));
                let is_injected = tally.is_carried();
                if is_injected && unready.len() < live::LOOKED_AT && may_not_start(policies, &workload) {
                    unready.push(workload);
                }
            };
            inventory.each(kind, look, take).await?;
            counted.sums.push(sums);
        }
        for workload in unready {
            let found = live::not_starting(client, &workload, policies).await?;
            counted.not_starting.extend(found.into_iter().filter(|found| found.policy == policy.name));
        }
        counted.behind.sort_by(|a, b| {
            (a.result, &a.kind, &a.namespace, &a.name).cmp(&(b.result, &b.kind, &b.namespace, &b.name))
        });
        Ok(counted)
    }
}

/// Whether a sidecar does not start in the pod `workload`, or may not start in its pods.
fn may_not_start(policies: &Policies, workload: &Workload) -> bool {
    starts::unready_pods(workload).is_some() || !starts::stuck(policies, workload).is_empty()
}

impl KindSums {
    fn add(&mut self, tally: Tally, is_failed: bool) {
        self.matched += usize::from(tally != Tally::Unknown);
        match tally {
            Tally::Injected => self.injected += 1,
            Tally::Edited => self.edited += 1,
            Tally::Outdated => self.outdated += 1,
            Tally::Missed | Tally::Collided => {
                self.missed += 1;
                self.failed += usize::from(is_failed);
            }
            Tally::Unknown => self.unknown += 1,
        }
    }
}

fn row(behind: behind::Behind, policy: &Policy, workload: &Workload) -> BehindRow {
    let behind::Behind { lag, code, values, fix, .. } = behind;
    BehindRow {
        kind: workload.kind_name().to_owned(),
        namespace: workload.namespace().to_owned(),
        name: workload.name().to_owned(),
        result: lag,
        code: code.map(|code| code.to_string()),
        edits: if lag == Lag::Edited { policy.edits(workload) } else { Vec::new() },
        values,
        fix,
        generation: workload.changed_since_creation().filter(|_| lag == Lag::Missed),
    }
}
