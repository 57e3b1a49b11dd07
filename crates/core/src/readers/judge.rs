//! The checks of all readers, on a decision and on its result.

use super::case::{Case, Told};
use super::facts::{Fact, Facts, account, containers, source};
use super::{accounts, autoscalers, jobs, keys, limits, mounts, quotas, variables};
use crate::decision::Decision;
use crate::inject::tables::INNER;
use crate::inject::value::objects;
use crate::inject::{self, Conflict};
use crate::policy::{Policy, Site, deliver};
use crate::workload::Workload;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What stops the application, by facts.
type Obstacle = fn(&Case<'_>) -> Option<(String, Conflict)>;

const OBSTACLES: [Obstacle; 5] =
    [variables::hidden, accounts::forbidden_secrets, keys::missing, limits::exceeded, quotas::exceeded];

/// What the user should know.
type Effect = fn(&Case<'_>) -> Vec<Told>;

const EFFECTS: [Effect; 7] = [
    accounts::lost_pull_secrets,
    variables::may_be_hidden,
    mounts::below_read_only,
    mounts::shared_below_read_only,
    jobs::judged_exit_codes,
    autoscalers::misled,
    autoscalers::kept_nodes,
];

/// Fails each policy of `decision` whose content would stop the application of `workload`, by `facts`. `maker` makes
/// the pod `workload`; for other workloads it is the workload itself.
pub fn leave_out(decision: &mut Decision, workload: &Workload, maker: &Workload, facts: &Facts, site: &Site) {
    if facts.is_empty() {
        return;
    }
    loop {
        let patch = decision.clone().plan(workload);
        // A policy of custom resources may have a path of its own for the pod. All that are injected have the same.
        let Some(first) = decision.inject.first() else { return };
        let bare = first.view(workload);
        let after = bare.with_body(workload.patched(&patch));
        // The lowest priority first: it gives way if only all together are too much.
        let found = decision.inject.iter().rev().find_map(|policy| {
            let delivered = deliver(policy, &bare, site.native_sidecars).ok()?;
            let (template, written) = (delivered.template(), policy.as_written());
            let case = Case { template, written, bare: &bare, after: &after, maker, facts };
            let (_, conflict) = OBSTACLES.iter().find_map(|obstacle| obstacle(&case))?;
            Some((policy.clone(), conflict))
        });
        let Some((policy, conflict)) = found else { return };
        decision.fail(policy, conflict.into());
    }
}

/// What readers do to the application because of `policy`, whose content is in `after` and not in `bare`. Obstacles come
/// first: an engine that does not know the facts injects all the same.
pub fn told(policy: &Policy, [bare, after]: [&Workload; 2], maker: &Workload, facts: &Facts, site: &Site) -> Vec<Told> {
    let (bare, after) = (policy.view(bare), policy.view(after));
    let Ok(delivered) = deliver(policy, &bare, site.native_sidecars) else { return Vec::new() };
    let (template, written) = (delivered.template(), policy.as_written());
    let case = Case { template, written, bare: &bare, after: &after, maker, facts };
    let obstacles = OBSTACLES.iter().filter_map(|obstacle| obstacle(&case));
    let obstacles =
        obstacles.map(|(field, Conflict { code, message })| Told::new(code, &field, message)).collect::<Vec<_>>();
    obstacles.into_iter().chain(EFFECTS.iter().flat_map(|effect| effect(&case))).collect()
}

/// `workload` without the content of any policy.
pub fn bare(workload: &Workload) -> Workload {
    let undone = inject::bare(workload);
    undone.map_or_else(|| workload.clone(), |undone| workload.with_body(undone.body))
}

/// The policies whose content is in the injected workload: those that `decision` injects, and those whose content is
/// there already.
pub fn added_by(decision: &Decision) -> Vec<Arc<Policy>> {
    decision.present().cloned().collect()
}

/// The facts that decide what `policies` do to `workload`: a kind, and a name or none for all of the namespace.
pub fn wanted<'a>(
    policies: impl IntoIterator<Item = &'a Policy>,
    workload: &Workload,
) -> BTreeSet<(Fact, Option<String>)> {
    let mut wanted = BTreeSet::new();
    let Some(spec) = workload.pod_spec() else { return wanted };
    for policy in policies {
        let template = &policy.as_written().spec;
        let secrets = keys::references(template);
        if !template.image_pull_secrets.is_empty() || secrets.iter().any(|it| it.fact == Fact::Secret) {
            wanted.insert((Fact::ServiceAccount, Some(account(spec).to_owned())));
        }
        if INNER.iter().any(|inner| inner.field == "env" && !(inner.items)(template).is_empty()) {
            let sources = containers(workload).flat_map(|(_, item)| objects(item, &["envFrom"])).filter_map(source);
            wanted.extend(sources.map(|(fact, name)| (fact, Some(name.to_owned()))));
        }
        wanted.extend(secrets.into_iter().map(|it| (it.fact, Some(it.name))));
        if template.all_containers().next().is_some() {
            // The class of a pod without one decides which quotas count it.
            let kinds = [
                Fact::LimitRange,
                Fact::ResourceQuota,
                Fact::PriorityClass,
                Fact::Autoscaler,
                Fact::VerticalAutoscaler,
            ];
            wanted.extend(kinds.map(|fact| (fact, None)));
        }
    }
    wanted
}
