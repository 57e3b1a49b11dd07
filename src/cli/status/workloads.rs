//! The stored workloads of one policy, counted as the operator counts them, and those without its template.

use crate::api::code::Code;
use crate::capabilities::Capabilities;
use crate::cli::live::{self, NotStarting, Within, maker};
use crate::cluster::pages::Pages;
use crate::decision::{Decision, Outcome};
use crate::inject;
use crate::policy::{Policies, Policy, Site};
use crate::workload::{Kind, Workload};
use crate::workloads::census::{self, Pairs, Tally};
use crate::workloads::starts;
use anyhow::{Context, Result};
use kube::Client;
use kube::api::ListParams;
use kube::core::ApiResource;
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;

/// The sums of one kind.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sums {
    /// For example `deployments.apps`.
    pub(super) resource: String,
    pub(super) matched: usize,
    pub(super) injected: usize,
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
pub(super) struct Behind {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) result: Lag,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// The suggested fix.
    pub(super) fix: String,
    /// The generation of a workload that lacks the template and has changed since its creation: it may have had the
    /// template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) generation: Option<i64>,
}

/// How a workload is behind its policy.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lag {
    /// No template, and an injection would fail even now.
    Failed,
    /// No template.
    Missed,
    /// An earlier template.
    Outdated,
}

impl Lag {
    pub(super) fn word(self) -> &'static str {
        match self {
            Lag::Failed => "failed",
            Lag::Missed => "missed",
            Lag::Outdated => "outdated",
        }
    }
}

/// The result of a count.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) sums: Vec<Sums>,
    pub(super) behind: Vec<Behind>,
    /// The containers of the policy that do not start.
    pub(super) not_starting: Vec<NotStarting>,
}

/// Counts every stored workload `within` the cluster that may concern `policy`, one of `policies`, whether in effect or not.
///
/// # Errors
/// If a kind cannot be listed, or the Namespaces that a policy needs.
pub(super) async fn count(
    client: &Client,
    server: &Capabilities,
    policy: &Arc<Policy>,
    is_in_force: bool,
    policies: &Policies,
    site: &Site,
    within: &Within,
) -> Result<Counted> {
    let namespace = within.namespace.as_deref();
    let namespaces = match live::namespaces(client, namespace).await {
        Err(error) if policies.select_by_namespace() => return Err(error).context(live::NAMESPACES_UNREAD),
        found => found.unwrap_or_default(),
    };
    let pairs = Pairs::of(policies);
    let (mut counted, mut unready) = (Counted::default(), Vec::new());
    for kind in &policy.kinds {
        let Some(resource) = server.resource(kind) else { continue };
        let mut sums = Sums { resource: named(kind), ..Sums::default() };
        let look = |object: crate::cluster::object::Object| {
            if !object.is_initialized() {
                sums.pending += usize::from(object.pending().any(|name| name == policy.initializer_name));
                return;
            }
            let namespace = namespaces.get(object.namespace()).cloned();
            let workload = Workload::new(kind, object.value()).within(namespace);
            let fate = census::fate(&workload, policies, site, |a, b| pairs.collide(a, b));
            let Some(&(_, tally)) = fate.iter().find(|(name, _)| **name == *policy.name) else { return };
            let is_injected = matches!(tally, Tally::Injected | Tally::Outdated);
            if is_injected && unready.len() < live::LOOKED_AT && may_not_start(policies, &workload) {
                unready.push(workload.clone());
            }
            if matches!(tally, Tally::Injected | Tally::Unknown) {
                return sums.add(tally, false);
            }
            let taken_out = taken_out(policies, &fate);
            let failure = failure(policy, policies, &taken_out, &workload, site);
            sums.add(tally, failure.is_some());
            let fix = match failure {
                Some(code) => code.fix().to_owned(),
                None if !is_in_force => {
                    "put the policy in force first: what is created now comes without it".to_owned()
                }
                None => remedy(&taken_out, &workload, &resource),
            };
            counted.behind.push(behind(tally, failure, fix, &workload));
        };
        let parameters = ListParams { label_selector: within.selector.clone(), ..ListParams::default() };
        Pages::new(live::api(client, &resource, namespace), parameters)
            .each(look)
            .await
            .with_context(|| format!("cannot list {}", named(kind)))?;
        counted.sums.push(sums);
    }
    for workload in unready {
        let found = live::not_starting(client, &workload, policies).await?;
        counted.not_starting.extend(found.into_iter().filter(|found| found.policy == policy.name));
    }
    counted
        .behind
        .sort_by(|a, b| (a.result, &a.kind, &a.namespace, &a.name).cmp(&(b.result, &b.kind, &b.namespace, &b.name)));
    Ok(counted)
}

/// Whether a sidecar does not start in the pod `workload`, or may not start in its pods.
fn may_not_start(policies: &Policies, workload: &Workload) -> bool {
    starts::unready_pods(workload).is_some() || !starts::stuck(policies, workload).is_empty()
}

fn named(kind: &Kind) -> String {
    if kind.group.is_empty() { kind.resource.clone() } else { format!("{}.{}", kind.resource, kind.group) }
}

impl Sums {
    fn add(&mut self, tally: Tally, is_failed: bool) {
        self.matched += usize::from(tally != Tally::Unknown);
        match tally {
            Tally::Injected => self.injected += 1,
            Tally::Outdated => self.outdated += 1,
            Tally::Missed | Tally::Collided => {
                self.missed += 1;
                self.failed += usize::from(is_failed);
            }
            Tally::Unknown => self.unknown += 1,
        }
    }
}

/// The policies whose templates must be removed before a workload with this `fate` is recreated, because an earlier
/// template would count as the user's own content. If there is one, current templates are removed too, since templates
/// may share content. The operator injects them again.
fn taken_out(policies: &Policies, fate: &census::Fate) -> Vec<String> {
    let comes_back = |name: &str| policies.get(name).is_some_and(|policy| policy.is_enforced());
    let carried =
        fate.iter().filter(|(name, tally)| matches!(tally, Tally::Injected | Tally::Outdated) && comes_back(name));
    let carried: Vec<_> = carried.collect();
    let is_any_outdated = carried.iter().any(|(_, tally)| *tally == Tally::Outdated);
    carried.into_iter().filter(|_| is_any_outdated).map(|(name, _)| name.to_string()).collect()
}

/// The code of the failure if `workload` were recreated without the content of the policies `taken_out`, by `policy` or
/// by a rejection.
fn failure(
    policy: &Policy,
    policies: &Policies,
    taken_out: &[String],
    workload: &Workload,
    site: &Site,
) -> Option<Code> {
    let undone = if taken_out.is_empty() { None } else { inject::undo_anywhere(workload, taken_out) };
    let workload = undone.map_or(Cow::Borrowed(workload), |undone| Cow::Owned(workload.with_body(undone.body)));
    let mut decision = Decision::of(policies, &workload, site);
    decision.plan(&workload);
    let own = decision.rest.iter().find(|left| left.policy.name == policy.name && left.outcome != Outcome::Skipped);
    own.or(decision.refusal()).map(|left| left.reason.code)
}

fn behind(tally: Tally, failure: Option<Code>, fix: String, workload: &Workload) -> Behind {
    let (result, code) = match (tally, failure) {
        (Tally::Outdated, code) => (Lag::Outdated, code),
        (_, Some(code)) => (Lag::Failed, Some(code)),
        (_, None) => (Lag::Missed, Some(Code::Missed)),
    };
    Behind {
        kind: workload.kind_name().to_owned(),
        namespace: workload.namespace().to_owned(),
        name: workload.name().to_owned(),
        result,
        code: code.map(|code| code.to_string()),
        fix,
        generation: workload.changed_since_creation().filter(|_| result == Lag::Missed),
    }
}

/// The command that recreates `workload` without the content of the policies `taken_out`, because only creates are
/// injected. A rollout of a Deployment creates pods but no Deployment, which is enough for a policy that targets pods.
fn remedy(taken_out: &[String], workload: &Workload, resource: &ApiResource) -> String {
    let (namespace, name) = (workload.namespace(), workload.name());
    let owners = workload.body["metadata"]["ownerReferences"].as_array();
    let owner = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    match (maker(workload), owner) {
        (Some(("cj", _)), _) => "the next one of its CronJob is created anew".to_owned(),
        (Some((kind, maker)), _) => format!("kubectl rollout restart -n {namespace} {kind}/{maker}"),
        (None, Some(owner)) if owner["kind"] == "Job" => "the next one of its Job is created anew".to_owned(),
        (None, Some(_)) => format!("kubectl delete -n {namespace} {}/{name}", address(resource)),
        // API servers reject a Job with the selector of another Job, and the stored one has such a selector.
        (None, None) if workload.kind.resource == "jobs" => "delete it, and create it from its own manifest".to_owned(),
        (None, None) => {
            let uninject = match taken_out {
                [] => String::new(),
                names => format!(" | scpol uninject -f - -p {}", names.join(" -p ")),
            };
            let address = address(resource);
            format!("kubectl get -n {namespace} {address}/{name} -o yaml{uninject} | kubectl replace --force -f -")
        }
    }
}

/// The resource for kubectl, unambiguous even on old servers, which have Deployments in two groups.
fn address(resource: &ApiResource) -> String {
    if resource.group.is_empty() {
        return resource.plural.clone();
    }
    format!("{}.{}.{}", resource.plural, resource.version, resource.group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    #[test]
    fn what_is_to_be_done_creates_the_workload_anew() {
        let told = |group: &str, resource: &str, kind: &str, taken_out: &[&str], owner: Value| {
            let metadata = json!({ "name": "web-6d4b-x", "namespace": "shop", "labels": { "pod-template-hash": "6d4b" }, "ownerReferences": owner });
            let workload =
                Workload::new(Kind::find(group, resource).expect("built in"), json!({ "metadata": metadata }));
            let gvk = GroupVersionKind::gvk(group, "v1", kind);
            let taken_out: Vec<_> = taken_out.iter().map(ToString::to_string).collect();
            remedy(&taken_out, &workload, &ApiResource::from_gvk_with_plural(&gvk, resource))
        };
        let by = |kind: &str, name: &str| json!([{ "kind": kind, "name": name, "controller": true }]);
        for (owner, expected) in [
            (by("ReplicaSet", "web-6d4b"), "kubectl rollout restart -n shop deploy/web"),
            (by("DaemonSet", "log"), "kubectl rollout restart -n shop ds/log"),
            (by("Job", "once"), "the next one of its Job is created anew"),
            (by("ReplicationController", "rc"), "kubectl delete -n shop pods/web-6d4b-x"),
            (json!([]), "kubectl get -n shop pods/web-6d4b-x -o yaml | kubectl replace --force -f -"),
        ] {
            assert_eq!(told("", "pods", "Pod", &[], owner), expected);
        }
        let job = "delete it, and create it from its own manifest";
        assert_eq!(told("batch", "jobs", "Job", &[], Value::Null), job);
        for (taken_out, uninject) in [(&[][..], ""), (&["a", "b"], " | scpol uninject -f - -p a -p b")] {
            let get = "kubectl get -n shop deployments.v1.apps/web-6d4b-x -o yaml";
            let expected = format!("{get}{uninject} | kubectl replace --force -f -");
            assert_eq!(told("apps", "deployments", "Deployment", taken_out, Value::Null), expected);
        }
    }

    #[test]
    fn what_carries_an_earlier_template_is_judged_as_it_would_be_without() {
        let site = Site::new("scpol-system", [], []);
        let policies = |images: &[(&str, &str)], suspended: bool| {
            let parse = |(name, image): &(&str, &str)| {
                let template = json!({ "containers": [{ "name": format!("of-{name}"), "image": image }] });
                let spec =
                    json!({ "template": template, "failurePolicy": "Fail", "suspend": suspended && *name == "b" });
                let object = json!({ "metadata": { "name": name }, "spec": spec });
                Arc::new(Policy::parse(&object, &site).expect("valid"))
            };
            Policies::new(images.iter().map(parse))
        };
        let kind = Kind::find("apps", "deployments").expect("built in");
        let pod = json!({ "spec": { "containers": [{ "name": "app", "image": "app:1" }] } });
        let body = json!({ "metadata": { "name": "web", "namespace": "shop" }, "spec": { "template": pod } });
        let bare = Workload::new(kind, body);
        let before = policies(&[("a", "a:1"), ("b", "b:1"), ("c", "c:1")], false);
        let stored = bare.with_body(bare.patched(&Decision::of(&before, &bare, &site).plan(&bare)));
        let told = |name: &str, policies: &Policies| {
            let taken_out = taken_out(policies, &census::fate(&stored, policies, &site, |_, _| false));
            let policy = policies.get(name).expect("it is there");
            let code = failure(policy, policies, &taken_out, &stored, &site);
            (taken_out.join(" "), code)
        };
        assert_eq!(told("a", &before), (String::new(), None));
        // The leftovers of another policy would also reject the create.
        let edited = policies(&[("a", "a:1"), ("b", "b:2"), ("c", "c:1")], false);
        assert_eq!(told("a", &edited), ("a b c".to_owned(), None));
        assert_eq!(told("b", &edited), ("a b c".to_owned(), None));
        // The operator does not inject a suspended policy again.
        let suspended = policies(&[("a", "a:2"), ("b", "b:1"), ("c", "c:1")], true);
        assert_eq!(told("a", &suspended), ("a c".to_owned(), None));
        let clash =
            json!({ "template": { "containers": [{ "name": "app", "image": "mine:1" }] }, "failurePolicy": "Fail" });
        let clash = Policy::parse(&json!({ "metadata": { "name": "b" }, "spec": clash }), &site).expect("valid");
        let clashing = Policies::new([Arc::new(clash)].into_iter().chain(before.get("a").cloned()));
        assert_eq!(told("b", &clashing), ("a b".to_owned(), Some(Code::NameConflict)));
        assert_eq!(told("a", &clashing), ("a b".to_owned(), Some(Code::NameConflict)), "it would be refused");
    }
}
