//! Templates into workloads: one pure [`plan`].
//!
//! A [`Template`] is what a policy adds; [`collisions`] finds the templates that contradict each other, [`check`] finds
//! what contradicts a workload, and [`plan`] gives the JSON Patch that adds the rest, with a [`marker`] that says what
//! came from us. Nothing here knows a client or a clock: the same arguments give the same patch, byte by byte.

mod conflict;
mod content;
mod equal;
pub mod marker;
mod merge;
mod pod;
mod quantity;
mod undo;

pub use conflict::Conflict;
pub use undo::{Cause, Leftover, Undone, undo};

use crate::api::v1alpha1;
use crate::api::v1alpha1::Position;
use crate::workload::Workload;
use content::LISTS;
use json_patch::Patch;
use marker::Marker;
use merge::{Addition, Group, Shape};
use pod::Pod;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A template that is ready to be injected.
///
/// Its items are expected to be those of a valid policy: every one has its name, and no name is there twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The name of its policy.
    pub policy: String,
    /// What it adds.
    pub spec: v1alpha1::Template,
    /// On which side of the user's containers and init containers it adds them.
    pub position: Position,
    /// First 16 hex digits of the SHA-256 of [`Self::spec`] as canonical JSON: the same on every server, whatever
    /// the order in which the fields were written.
    pub hash: String,
}

impl Template {
    /// The template `spec` of `policy`.
    pub fn new(policy: &str, spec: &v1alpha1::Template, position: Position) -> Self {
        Self { policy: policy.to_owned(), spec: spec.clone(), position, hash: hash(spec) }
    }
}

fn hash(spec: &v1alpha1::Template) -> String {
    // serde_json's maps are sorted by key, so that going through `Value` is the canonical form.
    let canonical = serde_json::to_value(spec).expect("a template is JSON").to_string();
    Sha256::digest(canonical).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The pairs of `templates`, by index, that add one name or one host port differently; each pair once, lower index
/// first.
///
/// # Guarantees
/// It depends on the two templates of a pair alone, and their order changes neither the finding nor its message.
pub fn collisions(templates: &[&Template]) -> Vec<(usize, usize, Conflict)> {
    conflict::collisions(templates, pod::Network::Own)
}

/// Whether `template` can be injected into `workload` without changing what is there.
///
/// # Errors
/// The first thing in the way: a name or host port that the workload uses differently, a volume that is mounted and
/// exists nowhere, or a pod template that is missing or malformed.
pub fn check(workload: &Workload, template: &Template) -> Result<(), Conflict> {
    conflict::check(&Pod::of(workload)?, template)
}

/// The patch that injects `templates`, which come in the order of their priority, into `workload`.
///
/// # Guarantees
/// - It applies to `workload`, consists of `add` operations only, and neither changes nor removes anything of the
///   user's. (The marker of an earlier version of the same policy is ours, and is replaced.)
/// - In both lists of containers: every `Before` in the order of `templates`, then what was there, then every `After`.
/// - An item that is there already with equal content is not added again, nor named in the marker.
/// - After the patch, planning again gives an empty patch.
/// - What the markers list is enough to give back the original exactly.
///
/// # Errors
/// The first [`collisions`] or [`check`] that fails: then nothing of any template may be injected. Leave out the
/// templates that these two name, and plan again.
pub fn plan(workload: &Workload, templates: &[&Template]) -> Result<Patch, Conflict> {
    if templates.is_empty() {
        return Ok(Patch::default());
    }
    let pod = Pod::of(workload)?;
    if let Some((_, _, conflict)) = conflict::collisions(templates, pod.network()).into_iter().next() {
        return Err(conflict);
    }
    templates.iter().try_for_each(|template| conflict::check(&pod, template))?;
    let mut groups = content_of(&pod, templates);
    groups.push(markers_for(&pod, templates, &groups));
    Ok(Patch(merge::operations(&workload.body, groups)))
}

/// What `templates` add to each list of the pod.
fn content_of(pod: &Pod<'_>, templates: &[&Template]) -> Vec<Group> {
    LISTS
        .iter()
        .map(|list| {
            let mut additions: Vec<Addition> = Vec::new();
            for (owner, template) in templates.iter().enumerate() {
                for item in (list.items)(&template.spec) {
                    let key = list.key_of(item);
                    let is_there = pod.find(list, key).is_some() || additions.iter().any(|other| other.key == key);
                    if !is_there {
                        let (key, value) = (key.to_owned(), Value::Object(item.clone()));
                        additions.push(Addition { owner, key, value, place: (list.place)(template.position) });
                    }
                }
            }
            Group { parent: pod.pointer_of(list), shape: Shape::List, additions }
        })
        .collect()
}

/// The marker annotations of `templates`, whose content is in `groups`. One that is up to date is left alone.
fn markers_for(pod: &Pod<'_>, templates: &[&Template], groups: &[Group]) -> Group {
    let annotations = pod.annotations_pointer();
    let additions = templates.iter().enumerate().filter_map(|(owner, template)| {
        let stored = marker::read(pod.workload, &template.policy).filter(|stored| stored.hash == template.hash);
        let fresh = merge::record(&pod.workload.body, groups, owner);
        let marker = match stored {
            Some(_) if fresh.added.is_empty() => return None,
            Some(stored) => stored.and(fresh),
            None => merge::record_parent(&pod.workload.body, &annotations).and(fresh),
        };
        Some(Addition {
            owner,
            key: marker::key(&template.policy),
            value: Marker { hash: template.hash.clone(), ..marker }.to_value(),
            place: v1alpha1::Place::default(),
        })
    });
    let additions = additions.collect();
    Group { parent: annotations, shape: Shape::Map, additions }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::json;

    fn template(text: &str) -> Template {
        Template::new("p", &serde_json::from_str(text).unwrap(), Position::default())
    }

    #[test]
    fn the_hash_is_that_of_canonical_json() {
        let one = template(r#"{"containers":[{"name":"a","image":"b"}],"volumes":[]}"#);
        let other = template(r#"{"containers":[{"image":"b","name":"a"}]}"#);
        assert_eq!(one.hash, other.hash);
        // printf '{"containers":[{"image":"b","name":"a"}]}' | sha256sum
        assert_eq!(one.hash, "2f14c4fea098b18b");
        assert_ne!(one.hash, template(r#"{"containers":[{"image":"c","name":"a"}]}"#).hash);
    }

    #[test]
    fn a_list_that_is_not_there_is_added_whole_and_one_that_is_there_item_by_item() {
        let template = template(r#"{"containers":[{"name":"x"},{"name":"y"}],"volumes":[{"name":"v"}]}"#);
        let pod = json!({"metadata": {"annotations": {}}, "spec": {"containers": [{"name": "app"}]}});
        let patch = plan(&Workload::new(Kind::find("", "pods").unwrap(), pod), &[&template]).unwrap();
        let paths: Vec<String> = patch.iter().map(|operation| operation.path().to_string()).collect();
        assert_eq!(
            paths,
            [
                "/spec/volumes",
                "/spec/containers/-",
                "/spec/containers/-",
                "/metadata/annotations/injected.scpol.dev~1p"
            ]
        );
    }

    #[test]
    fn what_was_taken_away_by_hand_is_added_again_and_the_marker_still_lists_all() {
        let template = template(r#"{"containers":[{"name":"x"}],"volumes":[{"name":"v"}]}"#);
        let kind = Kind::find("", "pods").unwrap();
        let inject = |mut body: Value| {
            let patch = plan(&Workload::new(kind, body.clone()), &[&template]).unwrap();
            json_patch::patch(&mut body, &patch).unwrap();
            body
        };
        let before = inject(json!({"metadata": {}, "spec": {"containers": [{"name": "app"}]}}));
        let mut robbed = before.clone();
        robbed["spec"]["containers"].as_array_mut().unwrap().pop();
        assert_eq!(inject(robbed), before);
    }
}
