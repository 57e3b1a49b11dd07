//! The check of a workload in a file, which no server has validated.

use crate::api::code::Code;
use crate::api::pod_schema::{Fault, FaultKind, in_metadata, in_pod};
use crate::decision::Decision;
use crate::policy::{Reason, Site};
use crate::workload::Workload;

/// The number of faults in a reason.
const SHOWN: usize = 3;

/// Fails every injection in `decision` if the manifest of `workload` has a misspelt field or a value of another type: a
/// server would reject it, or read it differently. Returns the other faults, which a server rejects but which do not
/// prevent an injection.
///
/// Custom resources pass, because their schema is unknown here.
pub fn vet(decision: &mut Decision, workload: &Workload, site: &Site) -> Vec<Fault> {
    let complete = decision.with_images(workload);
    let (Some(pod), false) = (complete.pod(), decision.inject.is_empty()) else { return Vec::new() };
    let Some(path) = workload.kind.template_path().filter(|_| workload.kind.is_in_table()) else { return Vec::new() };
    let mut faults = if path.is_empty() { Vec::new() } else { in_metadata(&workload.body["metadata"]) };
    faults.extend(in_pod(pod, &path, site.minor));
    let (grave, others): (Vec<_>, Vec<_>) = faults.into_iter().partition(is_grave);
    if grave.is_empty() {
        return others;
    }
    let told = grave.iter().take(SHOWN).map(|fault| format!("`{}` {}", fault.field, fault.message));
    let more = match grave.len() {
        count if count > SHOWN => format!(", and {} more", count - SHOWN),
        _ => String::new(),
    };
    let detail = format!("the manifest cannot be: {}{more}", told.collect::<Vec<_>>().join("; "));
    for policy in decision.inject.clone() {
        decision.fail(policy, Reason { row: 8, code: Code::WorkloadInvalid, detail: detail.clone() });
    }
    others
}

fn is_grave(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::Misspelt | FaultKind::Type)
}
