//! How a stored workload is behind a policy that matches it, and what to do. Pure. `scpol status` and the reports use it.

use super::census::{self, Tally};
use super::recreate;
use crate::api::code::Code;
use crate::api::is_policy_name;
use crate::decision::{Decision, Outcome};
use crate::inject;
use crate::policy::{Policies, Policy, PolicyRef, Reason, Site};
use crate::workload::Workload;
use kube::core::ApiResource;
use serde::Serialize;
use std::borrow::Cow;

/// How a workload is behind its policy.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lag {
    /// No template, and an injection would fail even now.
    Failed,
    /// No template.
    Missed,
    /// A template whose content was changed since.
    Edited,
    /// An earlier template, or other values of parameters than it would get now.
    Outdated,
}

impl Lag {
    /// The word in a table.
    pub fn word(self) -> &'static str {
        match self {
            Lag::Failed => "failed",
            Lag::Missed => "missed",
            Lag::Edited => "edited",
            Lag::Outdated => "outdated",
        }
    }
}

/// A workload whose content differs from the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    pub lag: Lag,
    /// None for an earlier template that can be replaced.
    pub code: Option<Code>,
    /// What was changed, or what stands in the way of an injection; empty if nothing does.
    pub detail: String,
    /// For a current template: the values that the workload has, and those that it would get now.
    pub values: Option<String>,
    /// The suggested fix.
    pub fix: String,
}

/// What a judgement needs besides the policy and the workload.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    pub policies: &'a Policies,
    pub site: &'a Site,
    /// The resource of the workload on the server.
    pub resource: &'a ApiResource,
}

impl Around<'_> {
    /// How `workload` with this `fate` is behind `policy`, one of the policies; none if it has the current template, does not
    /// match, or the match is undecidable.
    pub fn behind(
        &self,
        policy: &Policy,
        is_in_force: bool,
        fate: &census::Fate,
        workload: &Workload,
    ) -> Option<Behind> {
        let own = policy.reference();
        let (_, tally) = fate.iter().find(|(of, _)| *of == own)?;
        if matches!(tally, Tally::Injected | Tally::Unknown) {
            return None;
        }
        let taken_out = taken_out(self.policies, fate);
        let failure = failure(policy, self.policies, &taken_out, workload, self.site);
        let why = failure.as_ref().map(|reason| reason.code);
        let (lag, code) = match (tally, why) {
            (Tally::Edited, _) => (Lag::Edited, Some(Code::Edited)),
            (Tally::Outdated, code) => (Lag::Outdated, code),
            (_, Some(code)) => (Lag::Failed, Some(code)),
            (_, None) => (Lag::Missed, Some(Code::Missed)),
        };
        let fix = match why {
            Some(code) => code.fix().to_owned(),
            None if !is_in_force => "put the policy in effect first: creates get nothing of it now".to_owned(),
            None => remedy(&taken_out, workload, self.resource),
        };
        let detail = match lag {
            Lag::Edited => inject::all_told(&policy.edits(workload)),
            _ => failure.map(|reason| reason.detail).unwrap_or_default(),
        };
        let values = || self.policies.valued(workload, None, self.site).get(&own)?.outdated_values();
        let values = if lag == Lag::Outdated { values() } else { None };
        Some(Behind { lag, code, detail, values, fix })
    }
}

/// The policies whose templates must be removed before a workload with this `fate` is recreated, because an earlier
/// template would count as the user's own content. If there is one, current templates are removed too, since templates
/// may share content. The operator injects them again.
fn taken_out(policies: &Policies, fate: &census::Fate) -> Vec<String> {
    let comes_back = |of: &PolicyRef| policies.get(of).is_some_and(|policy| policy.is_enforced());
    let carried = fate.iter().filter(|(of, tally)| tally.is_carried() && comes_back(of));
    let carried: Vec<_> = carried.collect();
    let is_any_other = carried.iter().any(|(_, tally)| *tally != Tally::Injected);
    carried.into_iter().filter(|_| is_any_other).map(|(of, _)| of.name.to_string()).collect()
}

/// The reason of the failure if `workload` were recreated without the content of the policies `taken_out`, by `policy` or
/// by a rejection.
pub fn failure(
    policy: &Policy,
    policies: &Policies,
    taken_out: &[String],
    workload: &Workload,
    site: &Site,
) -> Option<Reason> {
    let undone = if taken_out.is_empty() { None } else { inject::undo_anywhere(workload, taken_out) };
    let workload = undone.map_or(Cow::Borrowed(workload), |undone| Cow::Owned(workload.with_body(undone.body)));
    let mut decision = Decision::of(policies, &workload, site);
    decision.plan(&workload);
    let own = decision.rest.iter().find(|left| left.policy.name == policy.name && left.outcome != Outcome::Skipped);
    own.or(decision.refusal()).map(|left| left.reason.clone())
}

/// The command that recreates `workload` without the content of the policies `taken_out`, because only creates are
/// injected. A rollout of a Deployment creates pods but no Deployment, which is enough for a policy that targets pods.
fn remedy(taken_out: &[String], workload: &Workload, resource: &ApiResource) -> String {
    let (namespace, name) = (workload.namespace(), workload.name());
    match (maker(workload), workload.controller()) {
        (Some(("cj", _)), _) => "wait for the next one of its CronJob".to_owned(),
        (Some((kind, maker)), _) => format!("kubectl rollout restart -n {namespace} {kind}/{maker}"),
        (None, Some(owner)) if owner["kind"] == "Job" => "wait for the next one of its Job".to_owned(),
        (None, Some(_)) => format!("kubectl delete -n {namespace} {}/{name}", recreate::address(resource)),
        (None, None) => recreate::command(taken_out, workload, resource),
    }
}

/// The owner of `workload`, as the short kind and the name; none if the owner is nothing that a policy may target. Users can write
/// owners, and commands with the name are printed: so it is the name of an object.
pub fn maker(workload: &Workload) -> Option<(&'static str, &str)> {
    let metadata = &workload.body["metadata"];
    let owner = workload.controller()?;
    let name = owner["name"].as_str().filter(|name| is_policy_name(name))?;
    match owner["kind"].as_str()? {
        // The name of a ReplicaSet is that of its Deployment and the hash of the template.
        "ReplicaSet" => {
            let hash = metadata["labels"]["pod-template-hash"].as_str()?;
            Some(("deploy", name.strip_suffix(hash)?.strip_suffix('-')?))
        }
        "StatefulSet" => Some(("sts", name)),
        "DaemonSet" => Some(("ds", name)),
        "CronJob" => Some(("cj", name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};
    use std::sync::Arc;

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
            (by("Job", "once"), "wait for the next one of its Job"),
            (by("ReplicationController", "rc"), "kubectl delete -n shop pods/web-6d4b-x"),
            (by("ReplicaSet", "web; rm -rf /;-6d4b"), "kubectl delete -n shop pods/web-6d4b-x"),
            (by("DaemonSet", "$(reboot)"), "kubectl delete -n shop pods/web-6d4b-x"),
            (
                json!([]),
                "kubectl get -n shop pods/web-6d4b-x -o yaml | scpol uninject --recreate -f - | kubectl replace --force -f -",
            ),
        ] {
            assert_eq!(told("", "pods", "Pod", &[], owner), expected);
        }
        let job = "delete it, and create it from its own manifest: the stored one has the selector of another Job";
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
            let policy = policies.get(&PolicyRef::of_cluster(name)).expect("it is there");
            let code = failure(policy, policies, &taken_out, &stored, &site).map(|reason| reason.code);
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
        let clashing =
            Policies::new([Arc::new(clash)].into_iter().chain(before.get(&PolicyRef::of_cluster("a")).cloned()));
        assert_eq!(told("b", &clashing), ("a b".to_owned(), Some(Code::NameConflict)));
        assert_eq!(told("a", &clashing), ("a b".to_owned(), Some(Code::NameConflict)), "it would be refused");
    }
}
