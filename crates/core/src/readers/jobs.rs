//! What the Job controller does: its `podFailurePolicy` looks at the exit codes of all containers.

use super::case::{Case, Told};
use crate::api::code::Code;
use crate::inject::value::{objects, text};
use serde_json::{Map, Value};

/// Exit codes that are usual for a container that is stopped: by itself, by SIGINT, SIGKILL, SIGTERM.
const USUAL: [i64; 5] = [1, 2, 130, 137, 143];

/// The `spec` of the Job that makes the pods.
fn job_of<'a>(case: &'a Case<'_>) -> Option<&'a Map<String, Value>> {
    let kind = &case.maker.kind;
    let is_job = kind.is_in_table() && ["jobs", "cronjobs"].contains(&kind.resource.as_str());
    let (_, path) = kind.pod_path.as_ref().filter(|_| is_job)?.split_last()?;
    path.iter().try_fold(&case.maker.body, |at, step| at.get(step))?.as_object()
}

/// Rules of the Job's `podFailurePolicy` that also judge the added containers.
pub(super) fn judged_exit_codes(case: &Case<'_>) -> Vec<Told> {
    let added: Vec<_> = case.added().iter().map(|(_, item)| text(item, "name")).collect();
    let (Some(job), false) = (job_of(case), added.is_empty()) else { return Vec::new() };
    let rules = objects(job, &["podFailurePolicy", "rules"]).enumerate();
    let judging = rules.filter(|(_, rule)| rule.get("onExitCodes").and_then(Value::as_object).is_some_and(judges));
    let rules: Vec<_> = judging.map(|(index, _)| format!("`podFailurePolicy.rules[{index}]`")).collect();
    if rules.is_empty() {
        return Vec::new();
    }
    let (all, verb) = (rules.join(", "), if rules.len() == 1 { "judges" } else { "judge" });
    let message = format!(
        "{all} of the Job also {verb} how container `{}` ends: `onExitCodes` names no container; set \
         `onExitCodes.containerName` to the workload's own",
        added.join("`, `")
    );
    vec![Told::new(Code::ExitCodesJudged, &case.path_of(added[0]), message)]
}

/// Whether `onExitCodes` matches a container of any name that is stopped.
fn judges(rule: &Map<String, Value>) -> bool {
    let has = |code: &i64| {
        rule.get("values").and_then(Value::as_array).is_some_and(|all| all.iter().any(|value| value == code))
    };
    let is_any = text(rule, "containerName").is_empty();
    is_any
        && match text(rule, "operator") {
            "In" => USUAL.iter().any(has),
            "NotIn" => !USUAL.iter().all(has),
            _ => false,
        }
}
