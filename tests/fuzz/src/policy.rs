//! Policies: parsed, judged and linted.

use serde_json::to_value;
use sidecar_policy::api::judge;
use sidecar_policy::lint::{self, Context, Subject};
use sidecar_policy::manifest::{File, Lines, Manifest, Object};
use sidecar_policy::policy::{Policy, Site};

/// The number of policies that are compared with each other.
const SUBJECTS: usize = 6;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(file) = File::parse("fuzz.yaml", bytes.to_vec()) else { return };
    let site = Site::new("scpol-system", [], []);
    let mut subjects = Vec::new();
    for manifest in file.manifests() {
        for object in manifest.objects() {
            is_judged_alike_by_all(&object, &site);
            fields_have_lines(manifest, &object, &site);
            subjects.extend(Subject::of(&object, "fuzz.yaml", &site));
        }
    }
    subjects.truncate(SUBJECTS);
    for minor in [None, Some(13), Some(36)] {
        let context = Context { site: Site { minor, ..site.clone() } };
        for finding in lint::lint(&subjects, &context) {
            assert!(finding.subject < subjects.len() && !finding.message.is_empty(), "{finding:?}");
        }
    }
}

fn is_judged_alike_by_all(object: &Object<'_>, site: &Site) {
    let (_, faults) = judge(object.name(), &object.body["spec"], &site.rules());
    match Policy::parse(object.body, site) {
        Ok(policy) => {
            assert!(faults.is_empty(), "valid, and yet {faults:?}");
            let mut stored = object.body.clone();
            stored["spec"] = to_value(&*policy.spec).expect("a spec is JSON");
            let again = Policy::parse(&stored, site).expect("what was read can be read again");
            assert_eq!((&again.spec_hash, again.as_written()), (&policy.spec_hash, policy.as_written()));
        }
        Err(first) => {
            assert!(!first.is_empty() && faults.starts_with(&first), "{first:?} are not the first of {faults:?}");
            assert!(faults.iter().all(|fault| is_told(&fault.message)), "{faults:?}");
        }
    }
}

/// Whether `message` can be shown.
pub(crate) fn is_told(message: &str) -> bool {
    !message.is_empty() && message.len() <= 1024
}

fn fields_have_lines(manifest: &Manifest, object: &Object<'_>, site: &Site) {
    let (_, faults) = judge(object.name(), &object.body["spec"], &site.rules());
    let (lines, indexes) = (Lines::of(manifest), manifest.indexes(object.body));
    // A lone CR also ends a line of YAML.
    let last = manifest.place.line + manifest.text.matches(['\n', '\r']).count();
    for fault in faults {
        let line = lines.place(&indexes, &fault.field).line;
        assert!((manifest.place.line..=last).contains(&line), "{} is on line {line} of {last}", fault.field);
    }
}
