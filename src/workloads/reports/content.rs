//! What a report says. Pure.
//!
//! A report is for one namespace. It counts pairs of a policy and a workload that the policy matches, and lists those
//! without the current template. A workload with the template is only counted, because most workloads have it.

use super::Form;
use crate::api::code::Code;
use crate::api::{MANAGED_BY, MANAGER};
use crate::decision::Decision;
use crate::policy::{Policy, Reason};
use crate::workload::Workload;
use crate::workloads::behind::{Around, Behind, Lag};
use crate::workloads::census::{Fate, Tally};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// The name of every report.
pub(super) const NAME: &str = "scpol";
/// The source of every result, by which viewers filter.
const SOURCE: &str = "sidecar-policy";
/// The `rule` of a workload with an earlier template or earlier values of parameters. All other rules are codes.
const OUTDATED: &str = "Outdated";
/// The most results of a report. With the longest possible names it stays below the 1.5 MiB that etcd takes.
const LIMIT: usize = 500;

/// The counts of a report, and its results.
#[derive(Default)]
pub(super) struct ReportContent {
    pass: i64,
    fail: i64,
    warn: i64,
    error: i64,
    /// The first [`LIMIT`] results in the order of the report.
    results: BTreeMap<ResultKey, Value>,
}

/// The place of a result in the report: failures first. Then kind, name and policy.
type ResultKey = (ResultLevel, String, String, String);

/// The `result` of a pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ResultLevel {
    Fail,
    /// It is unknown whether the policy matches.
    Error,
    Warn,
}

impl ReportContent {
    /// The content for a namespace in which all pairs have the current template.
    pub(super) fn healthy(pairs: i64) -> Self {
        Self { pass: pairs, ..Self::default() }
    }

    /// Whether no policy matches a workload, so that there is no report.
    pub(super) fn is_empty(&self) -> bool {
        self.pass + self.fail + self.warn + self.error == 0
    }

    /// Adds `workload` with this `fate`. `is_in_force` says whether new workloads get the template of a policy.
    pub(super) fn add(
        &mut self,
        workload: &Workload,
        fate: &Fate,
        around: &Around,
        is_in_force: impl Fn(&Policy) -> bool,
    ) {
        for (of, tally) in fate {
            let Some(policy) = around.policies.get(of).filter(|policy| policy.is_enforced()) else { continue };
            let (verdict, rule, message) = match around.behind(policy, is_in_force(policy), fate, workload) {
                Some(behind) => told(&behind),
                None if *tally == Tally::Unknown => undecided(policy, workload, around),
                None => {
                    self.pass += 1;
                    continue;
                }
            };
            let (count, result, severity) = match verdict {
                ResultLevel::Fail => (&mut self.fail, "fail", "medium"),
                ResultLevel::Error => (&mut self.error, "error", "medium"),
                ResultLevel::Warn => (&mut self.warn, "warn", "low"),
            };
            *count += 1;
            let subject = json!({
                "apiVersion": around.resource.api_version, "kind": around.resource.kind,
                "namespace": workload.namespace(), "name": workload.name(), "uid": workload.uid(),
            });
            let result = json!({
                "source": SOURCE, "policy": policy.name, "rule": rule, "category": "Sidecars", "severity": severity,
                "result": result, "message": message, "resources": [subject],
            });
            let place = (verdict, around.resource.kind.clone(), workload.name().to_owned(), policy.name.clone());
            self.results.insert(place, result);
            if self.results.len() > LIMIT {
                self.results.pop_last();
            }
        }
    }

    /// The report as an object, without the times of its results.
    pub(super) fn object(&self, form: Form, namespace: &str) -> Value {
        let Self { pass, fail, warn, error, results } = self;
        let mut listed: Vec<Value> = results.values().cloned().collect();
        let more = fail + warn + error - listed.len() as i64;
        if more > 0 {
            let message = format!(
                "{more} more results are left out: a report has at most {LIMIT}. `scpol status POLICY -n {namespace}` \
                 lists all"
            );
            listed.push(json!({
                "source": SOURCE, "policy": NAME, "rule": "More", "category": "Sidecars", "result": "skip",
                "message": message, "properties": { "more": more.to_string() },
            }));
        }
        let mut object = json!({
            "apiVersion": form.api_version(), "kind": form.kind(),
            "metadata": { "name": NAME, "namespace": namespace, "labels": { MANAGED_BY: MANAGER } },
            "scope": { "apiVersion": "v1", "kind": "Namespace", "name": namespace },
            "summary": { "pass": pass, "fail": fail, "warn": warn, "error": error, "skip": 0 },
            "results": listed,
        });
        // A PolicyReport has this field in each result only.
        if form == Form::Openreports {
            object["source"] = json!(SOURCE);
        }
        object
    }
}

/// The verdict, the rule and the message for a workload that is behind a policy.
fn told(behind: &Behind) -> (ResultLevel, String, String) {
    let Behind { lag, code, detail, values, fix } = behind;
    let code = code.unwrap_or(Code::Missed);
    let why = if detail.is_empty() { code.meaning() } else { detail };
    match lag {
        Lag::Outdated => {
            let earlier = "The workload has an earlier template";
            let why = values.as_ref().map_or(earlier.to_owned(), |values| format!("The workload gets {values}"));
            (ResultLevel::Warn, OUTDATED.to_owned(), sentences(&why, fix))
        }
        Lag::Edited => {
            (ResultLevel::Warn, code.to_string(), sentences(&format!("The sidecar was changed: {why}"), fix))
        }
        Lag::Failed | Lag::Missed => (ResultLevel::Fail, code.to_string(), sentences(why, fix)),
    }
}

/// The same for a workload that `policy` may match, or not.
fn undecided(policy: &Policy, workload: &Workload, around: &Around) -> (ResultLevel, String, String) {
    let decision = Decision::of(around.policies, workload, around.site);
    let left = decision.rest.into_iter().find(|left| left.policy.name == policy.name);
    let Reason { code, detail, .. } =
        left.map_or(Reason { row: 0, code: Code::ExpressionFailed, detail: String::new() }, |left| left.reason);
    let why = if detail.is_empty() { code.meaning() } else { &detail };
    (ResultLevel::Error, code.to_string(), sentences(why, code.fix()))
}

/// `why`, and what to do.
fn sentences(why: &str, fix: &str) -> String {
    let why = why.trim_end_matches('.');
    if fix.is_empty() { format!("{why}.") } else { format!("{why}. To fix it: {fix}") }
}

/// The `stored` report, or a new one, with the content of `wanted`; none if the stored one has it. A result that was there
/// keeps its time, and a new one gets `now`, in seconds since 1970.
pub(super) fn replacement(stored: Option<&Value>, mut wanted: Value, now: i64) -> Option<Value> {
    let known: HashMap<String, Value> = results(stored.unwrap_or(&Value::Null))
        .map(|result| (identity(result), result["timestamp"].clone()))
        .filter(|(_, time)| time.is_object())
        .collect();
    for result in wanted["results"].as_array_mut().into_iter().flatten() {
        let time = known.get(&identity(result)).cloned();
        result["timestamp"] = time.unwrap_or_else(|| json!({ "seconds": now, "nanos": 0 }));
    }
    let Some(stored) = stored else { return Some(wanted) };
    let mut next = stored.clone();
    for (field, value) in wanted.as_object().into_iter().flatten().filter(|(field, _)| *field != "metadata") {
        next[field] = value.clone();
    }
    (next != *stored).then_some(next)
}

fn results(report: &Value) -> impl Iterator<Item = &Value> {
    report["results"].as_array().into_iter().flatten()
}

/// What makes two results the same finding.
fn identity(result: &Value) -> String {
    [&result["policy"], &result["rule"], &result["result"], &result["resources"][0]["uid"]]
        .map(Value::to_string)
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policies, Site};
    use crate::workload::Kind;
    use crate::workloads::census;
    use kube::core::{ApiResource, GroupVersionKind};
    use std::sync::Arc;

    fn policies(specs: &[(&str, Value)]) -> Policies {
        let parse = |(name, spec): &(&str, Value)| {
            let object = json!({ "metadata": { "name": name }, "spec": spec });
            Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).expect("valid"))
        };
        Policies::new(specs.iter().map(parse))
    }

    fn template(container: &str, image: &str) -> Value {
        json!({ "template": { "containers": [{ "name": container, "image": image }] } })
    }

    fn deployment(name: &str) -> Workload {
        let pod = json!({ "spec": { "containers": [{ "name": "app", "image": "app:1" }] } });
        let metadata = json!({ "name": name, "namespace": "shop", "uid": format!("uid-of-{name}") });
        let kind = Kind::find("apps", "deployments").expect("built in");
        Workload::new(kind, json!({ "metadata": metadata, "spec": { "template": pod } }))
    }

    /// The content for `workloads`.
    fn content(policies: &Policies, workloads: &[Workload], is_in_force: bool) -> ReportContent {
        let site = Site::new("scpol-system", [], []);
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("apps", "v1", "Deployment"), "deployments");
        let around = Around { policies, site: &site, resource: &resource };
        let mut content = ReportContent::default();
        for workload in workloads {
            let fate = census::fate(workload, policies, &site, |_, _| false);
            content.add(workload, &fate, &around, |_| is_in_force);
        }
        content
    }

    /// `workload` as `policies` inject it.
    fn injected(policies: &Policies, workload: &Workload) -> Workload {
        let site = Site::new("scpol-system", [], []);
        workload.with_body(workload.patched(&Decision::of(policies, workload, &site).plan(workload)))
    }

    fn listed(object: &Value) -> Vec<[&str; 4]> {
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let row = |result: &Value| {
            [&result["resources"][0]["name"], &result["policy"], &result["rule"], &result["result"]]
                .map(|value| Box::leak(text(value).into_boxed_str()) as &str)
        };
        results(object).map(row).collect()
    }

    #[test]
    fn a_report_lists_what_lacks_the_template_with_code_and_fix_and_counts_the_rest() {
        let before = policies(&[("mesh", template("envoy", "envoy:1"))]);
        let now = policies(&[
            ("mesh", template("envoy", "envoy:2")),
            ("clash", template("app", "mine:1")),
            ("off", json!({ "template": template("x", "x:1")["template"], "suspend": true })),
            ("audit", json!({ "template": template("y", "y:1")["template"], "mode": "Audit" })),
        ]);
        let workloads = [
            injected(&policies(&[("mesh", template("envoy", "envoy:2"))]), &deployment("current")),
            injected(&before, &deployment("old")),
            deployment("bare"),
        ];
        let object = content(&now, &workloads, true).object(Form::Policyreports, "shop");
        let expected = [
            ["bare", "clash", "SCP0200", "fail"],
            ["bare", "mesh", "SCP0114", "fail"],
            ["current", "clash", "SCP0200", "fail"],
            ["old", "clash", "SCP0200", "fail"],
            ["old", "mesh", "Outdated", "warn"],
        ];
        assert_eq!(listed(&object), expected);
        assert_eq!(object["summary"], json!({ "pass": 1, "fail": 4, "warn": 1, "error": 0, "skip": 0 }));
        let missed = &object["results"][1];
        let message = missed["message"].as_str().expect("a message");
        assert!(message.contains("has no sidecar") && message.contains("| kubectl replace --force -f -"), "{message}");
        let subject = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "bare", "uid": "uid-of-bare",
        });
        assert_eq!((&missed["resources"], &missed["severity"]), (&json!([subject]), &json!("medium")));
        let of_clash = object["results"][0]["message"].as_str().expect("a message");
        assert!(of_clash.contains("`app`") && of_clash.contains(Code::NameConflict.fix()), "{of_clash}");
        let idle = content(&before, &[deployment("bare")], false).object(Form::Policyreports, "shop");
        assert!(idle["results"][0]["message"].as_str().is_some_and(|told| told.contains("in effect first")), "{idle}");
    }

    #[test]
    fn a_workload_with_other_values_than_it_would_get_now_is_told_with_them() {
        let mut spec = template("envoy", "envoy:1");
        spec["template"]["containers"][0]["resources"] = json!({ "limits": { "memory": "128Mi" } });
        let paths = json!(["containers[envoy].resources.limits.memory"]);
        spec["parameters"] = json!([{ "name": "memory", "type": "Quantity", "paths": paths }]);
        let now = policies(&[("mesh", spec)]);
        let with = |workload: &Workload, value: &str| {
            let mut body = workload.body.clone();
            body["metadata"]["annotations"]["mesh.scpol.dev/memory"] = json!(value);
            body["metadata"]["resourceVersion"] = json!("7");
            workload.with_body(body)
        };
        let stored = injected(&now, &with(&deployment("web"), "256Mi"));
        let object = content(&now, std::slice::from_ref(&stored), true).object(Form::Policyreports, "shop");
        assert_eq!(object["summary"]["pass"], 1, "{object}");
        let object = content(&now, &[with(&stored, "512Mi")], true).object(Form::Policyreports, "shop");
        assert_eq!(listed(&object), [["web", "mesh", "Outdated", "warn"]]);
        let message = object["results"][0]["message"].as_str().expect("a message");
        let values =
            "The workload gets other values when it is made again: `memory` is `256Mi`, now `512Mi`. To fix it: ";
        assert!(message.starts_with(values) && message.contains("scpol uninject"), "{message}");
    }

    #[test]
    fn an_expression_that_fails_is_an_error_and_a_namespace_without_a_match_has_no_report() {
        let mut spec = template("envoy", "envoy:1");
        spec["matchConditions"] = json!([{ "name": "team", "expression": "object.metadata.labels.team == 'a'" }]);
        let content_of = |spec: &Value| content(&policies(&[("mesh", spec.clone())]), &[deployment("bare")], true);
        let object = content_of(&spec).object(Form::Policyreports, "shop");
        assert_eq!(listed(&object), [["bare", "mesh", "SCP0211", "error"]]);
        assert_eq!(object["summary"]["error"], 1);
        spec["matchConditions"] = json!([{ "name": "never", "expression": "false" }]);
        assert!(content_of(&spec).is_empty() && !ReportContent::healthy(1).is_empty());
    }

    #[test]
    fn a_report_has_at_most_its_limit_of_results_the_worst_first_and_tells_how_many_more() {
        let (before, now) = (template("envoy", "envoy:1"), template("envoy", "envoy:2"));
        let old = injected(&policies(&[("mesh", before)]), &deployment("a-first"));
        // The longest names that the API server takes.
        let longest = |number: usize| format!("{number:04}{}", "n".repeat(249));
        let workloads: Vec<_> =
            [old].into_iter().chain((0..LIMIT + 20).map(|number| deployment(&longest(number)))).collect();
        let object = content(&policies(&[("mesh", now)]), &workloads, true).object(Form::Openreports, "shop");
        assert_eq!(results(&object).count(), LIMIT + 1);
        assert!(results(&object).take(LIMIT).all(|result| result["result"] == "fail"), "warnings are left out first");
        let more = results(&object).last().expect("more");
        assert_eq!((&more["properties"]["more"], &more["result"]), (&json!("21"), &json!("skip")));
        assert_eq!(object["summary"], json!({ "pass": 0, "fail": LIMIT + 20, "warn": 1, "error": 0, "skip": 0 }));
        assert!(object.to_string().len() < 1 << 20, "{} bytes", object.to_string().len());
    }

    #[test]
    fn the_two_forms_differ_in_their_names_and_in_the_source() {
        let of = |form: Form| ReportContent::healthy(2).object(form, "shop");
        let (mut old, new) = (of(Form::Policyreports), of(Form::Openreports));
        assert_eq!((&old["apiVersion"], &old["kind"]), (&json!("wgpolicyk8s.io/v1alpha2"), &json!("PolicyReport")));
        for (field, value) in [("apiVersion", "openreports.io/v1alpha1"), ("kind", "Report"), ("source", SOURCE)] {
            assert_eq!(new[field], value);
            old[field] = json!(value);
        }
        assert_eq!(old, new);
    }

    #[test]
    fn a_report_is_written_if_its_content_is_new_and_a_finding_keeps_its_time() {
        let now = policies(&[("mesh", template("envoy", "envoy:1"))]);
        let of = |names: &[&str]| {
            let workloads: Vec<_> = names.iter().map(|name| deployment(name)).collect();
            content(&now, &workloads, true).object(Form::Policyreports, "shop")
        };
        let mut stored = replacement(None, of(&["a"]), 100).expect("a new report");
        assert_eq!(stored["results"][0]["timestamp"], json!({ "seconds": 100, "nanos": 0 }));
        stored["metadata"]["resourceVersion"] = json!("7");
        stored["metadata"]["labels"]["team"] = json!("a");
        assert_eq!(replacement(Some(&stored), of(&["a"]), 200), None);
        let next = replacement(Some(&stored), of(&["a", "b"]), 200).expect("another content");
        assert_eq!(next["metadata"], stored["metadata"], "others may label it");
        let times: Vec<_> = results(&next).map(|result| result["timestamp"]["seconds"].clone()).collect();
        assert_eq!(times, [100, 200]);
        let healed = replacement(Some(&next), ReportContent::healthy(2).object(Form::Policyreports, "shop"), 300);
        assert_eq!(healed.expect("another content")["results"], json!([]));
    }
}
