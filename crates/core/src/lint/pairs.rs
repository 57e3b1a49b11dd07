//! Conflicts between two policies.

use super::template::{Named, named_ports};
use super::{Context, Finding, Note, Severity, Subject, selection};
use crate::api::code::Code;
use crate::api::v1alpha1::{self, LISTS, TemplateMetadata};
use crate::inject::{self, Template};
use crate::policy::{Policies, Policy};
use crate::workload::Kind;
use std::cmp::Ordering;
use std::sync::Arc;

/// The findings about pairs of policies, at the later one.
pub(super) fn findings(subjects: &[Subject], context: &Context) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        let earlier = &subjects[..index];
        let duplicate = duplicate_name(earlier, subject);
        // Only once, because an equal name implies an equal initializer name.
        let is_said = |note: &Note| duplicate.is_some() && note.code == Code::DuplicateInitializerName;
        let notes = earlier.iter().flat_map(|other| both(other, subject, context));
        let notes: Vec<_> = notes.filter(|note| !is_said(note)).collect();
        let is_overlay = duplicate.is_some() && !earlier.iter().any(|other| is_beside(other, subject));
        let duplicate = duplicate.map(|note| note.about(index)).map(|finding| match is_overlay {
            true => Finding { severity: Severity::Warning, ..finding },
            false => finding,
        });
        findings.extend(duplicate.into_iter().chain(notes.into_iter().map(|note| note.about(index))));
    }
    findings.extend(circles(subjects));
    findings
}

/// Whether both have one name, and are in one folder. Those of several folders may be overlays, of which each cluster gets one.
fn is_beside(other: &Subject, subject: &Subject) -> bool {
    let folder = |subject: &Subject| subject.place.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    other.name == subject.name && folder(other) == folder(subject)
}

/// The policies that replace each other in a circle.
fn circles(subjects: &[Subject]) -> Vec<Finding> {
    let policies = Policies::new(subjects.iter().filter_map(Subject::policy).cloned());
    let found = subjects.iter().enumerate().filter_map(|(index, subject)| {
        let message = policies.circle(&subject.policy()?.name)?;
        Some(Note::new(Code::ReplacesInvalid, "spec.replaces", message).about(index))
    });
    found.collect()
}

fn duplicate_name(earlier: &[Subject], subject: &Subject) -> Option<Note> {
    let first = earlier.iter().find(|other| other.name == subject.name && !subject.name.is_empty())?;
    let message = format!("must be unique: {} has `{}` as well", first.place, subject.name);
    Some(Note::new(Code::DuplicatePolicy, "metadata.name", message))
}

fn both(other: &Subject, subject: &Subject, context: &Context) -> Vec<Note> {
    let (Some(one), Some(two)) = (other.policy(), subject.policy()) else { return Vec::new() };
    // Because a suspended policy has no effect.
    if one.name == two.name || !one.is_enforced() || !two.is_enforced() {
        return Vec::new();
    }
    let mut notes: Vec<_> = shared_initializer(one, two, &other.place).into_iter().collect();
    if one.replaces(&two.name) || two.replaces(&one.name) {
        return notes;
    }
    let mut where_they_meet = paths(one, two, &other.place);
    where_they_meet.extend(collisions(one, two, &other.place));
    where_they_meet.extend(shared_ports(one, two));
    if !where_they_meet.is_empty() && may_meet(one, two, context) {
        notes.extend(where_they_meet);
    }
    notes
}

fn shared_initializer(one: &Policy, two: &Policy, place: &str) -> Option<Note> {
    let field = if two.spec.initializer_name.is_some() { "spec.initializerName" } else { "metadata.name" };
    let message = format!(
        "must give an initializer name of its own: policy `{}` ({place}) has `{}`",
        one.name, one.initializer_name
    );
    (one.initializer_name == two.initializer_name).then(|| Note::new(Code::DuplicateInitializerName, field, message))
}

/// False only if no workload can be matched by both.
fn may_meet(one: &Policy, two: &Policy, context: &Context) -> bool {
    let share_kind = one.kinds.iter().any(|kind| two.kinds.contains(kind));
    let reaches = |policy: &Policy, name: &str| {
        policy.covers_namespace(name) && !context.site.protected_namespaces.contains(name)
    };
    let names = [one, two].into_iter().filter_map(|policy| selection::literals(&policy.spec));
    let mut names = names.map(|names| names.iter().any(|name| reaches(one, name) && reaches(two, name)));
    let [of_one, of_two] = [one, two].map(|policy| selection::demands(&policy.spec, &context.site));
    let exclude = of_one.iter().zip(&of_two).any(|((_, one), (_, two))| selection::exclude_each_other(one, two));
    share_kind && names.all(|share| share) && !exclude
}

/// The code of a conflict between the two, and its result.
fn consequence(one: &Policy, two: &Policy) -> (Code, String) {
    let (higher, lower) = match one.spec.priority.cmp(&two.spec.priority) {
        Ordering::Equal => return (Code::Conflicted, "Neither is injected where both match".to_owned()),
        Ordering::Greater => (one, two),
        Ordering::Less => (two, one),
    };
    let end = format!(
        "`{}` is not injected where both match, because `{}` has a higher `spec.priority`",
        lower.name, higher.name
    );
    (Code::Outranked, end)
}

/// The targets of `two` for which `one` gives another path of the pod template.
fn paths(one: &Policy, two: &Policy, place: &str) -> Vec<Note> {
    if !one.injects() || !two.injects() {
        return Vec::new();
    }
    let indexed = two.spec.targets.iter().enumerate();
    let (code, end) = consequence(one, two);
    let note = |(index, target): (usize, &v1alpha1::Target)| {
        let kind = Kind::of(&target.group, &target.resource, None);
        let (own, theirs) = two.disagreement(one, &kind)?;
        let message = format!(
            "collides: the pod template lies at `{own}`, and at `{theirs}` for `{}` in {place}. {end}",
            one.name
        );
        Some(Note::new(code, format!("spec.targets[{index}].templatePath"), message))
    };
    indexed.filter_map(note).collect()
}

/// The pieces of `two` that `one` adds differently.
fn collisions(one: &Arc<Policy>, two: &Arc<Policy>, place: &str) -> Vec<Note> {
    let collides = |other: &Template| inject::collisions(&[one.as_written(), other]).into_iter().next();
    // First, because most pairs do not conflict, and pieces are costly.
    if collides(two.as_written()).is_none() {
        return Vec::new();
    }
    let (code, end) = consequence(one, two);
    let note = |(field, piece): (String, Template)| {
        let (_, _, conflict) = collides(&piece)?;
        let message = format!("collides: {}; `{}` is in {place}. {end}", conflict.message, one.name);
        Some(Note::new(code, field, message))
    };
    pieces(two).into_iter().filter_map(note).collect()
}

/// The template of `policy` in pieces of one item each, with the item's field.
pub(super) fn pieces(policy: &Policy) -> Vec<(String, Template)> {
    let whole = policy.as_written();
    let piece = |spec: &v1alpha1::Template| Template::new(&whole.policy, spec, whole.position);
    let bare = v1alpha1::Template {
        app_containers: whole.spec.app_containers.clone(),
        include_init_containers: whole.spec.include_init_containers,
        ..v1alpha1::Template::default()
    };
    let mut pieces = Vec::new();
    for list in &LISTS {
        for (index, item) in (list.of)(&whole.spec).iter().enumerate() {
            let mut spec = bare.clone();
            (list.of_mut)(&mut spec).push(item.clone());
            pieces.push((format!("spec.template.{}[{index}]", list.name), piece(&spec)));
        }
    }
    let mut entry = |field: String, metadata: TemplateMetadata| {
        let spec = v1alpha1::Template { metadata: Some(metadata), ..bare.clone() };
        pieces.push((format!("spec.template.metadata.{field}"), piece(&spec)));
    };
    if let Some(TemplateMetadata { labels, annotations }) = &whole.spec.metadata {
        for (key, value) in labels {
            let labels = [(key.clone(), value.clone())].into();
            entry(format!("labels.{key}"), TemplateMetadata { labels, ..TemplateMetadata::default() });
        }
        for (key, value) in annotations {
            let annotations = [(key.clone(), value.clone())].into();
            entry(format!("annotations.{key}"), TemplateMetadata { annotations, ..TemplateMetadata::default() });
        }
    }
    pieces
}

/// Ports in containers of both. Containers with the same name are skipped, because they are equal or collide.
fn shared_ports(one: &Policy, two: &Policy) -> Vec<Note> {
    let theirs = named_ports(&one.as_written().spec);
    let note = |own: Named| {
        let is_it = |other: &&Named| other.port == own.port && other.container != own.container;
        let other = theirs.iter().find(is_it)?;
        Some(own.shared_with(&format!("container `{}` of policy `{}`", other.container, one.name)))
    };
    named_ports(&two.as_written().spec).into_iter().filter_map(note).collect()
}
