//! The owners of an addition: the markers that list it. It goes with the last one of them.
//!
//! | moment | rule |
//! |---|---|
//! | a policy is injected | its marker lists what it adds, and also equal content that a marker lists which stays. Content that no marker lists is the user's |
//! | | it lists the created lists and maps that hold one of its entries, whoever created them |
//! | a marker goes ([`Handover`]) | entries that another marker lists stay |
//! | a marker goes beside one of an earlier release | that one listed no content of others: now it gets the entries that its policy adds, too |

use super::listed::{Listed, What, locate};
use super::marker::{self, Marker};
use super::part::VALUE;
use super::{Markers, Template};
use crate::workload::Workload;
use json_patch::jsonptr::{Pointer, PointerBuf};
use serde_json::Value;
use std::collections::HashSet;

/// The entries of the markers that stay on a workload while templates are injected into it.
#[derive(Default)]
pub(super) struct Owned {
    pod: String,
    added: HashSet<String>,
    nulls: HashSet<String>,
}

impl Owned {
    /// The entries beside an injection of `templates`, whose own markers are `Replaced` or `Extended`. Empty if the markers on
    /// `workload` are longer than [`marker::MAX_LENGTH`] together.
    pub(super) fn beside(workload: &Workload, templates: &[&Template], markers: Markers) -> Self {
        let mut owned = Self { pod: workload.pod_pointer(), ..Self::default() };
        if !marker::are_within(workload) {
            return owned;
        }
        for policy in marker::policies(workload) {
            let template = templates.iter().find(|template| template.policy == policy);
            let Some(marker) = marker::read(workload, policy) else { continue };
            if template.is_none_or(|template| markers == Markers::Extended && marker.hash == template.hash) {
                owned.added.extend(marker.added);
                owned.nulls.extend(marker.nulls);
            }
        }
        owned
    }

    /// True if and only if a marker that stays lists `pointer`.
    pub(super) fn has(&self, pointer: &Pointer) -> bool {
        self.has_text(pointer.as_str())
    }

    /// The same for a pointer as text.
    pub(super) fn has_text(&self, pointer: &str) -> bool {
        !self.added.is_empty() && self.added.contains(pointer)
    }

    /// The pointers below `parent` that markers that stay list, each with whether null was there before.
    pub(super) fn below(&self, parent: &Pointer) -> impl Iterator<Item = (&str, bool)> {
        let below = self.added.iter().filter(move |pointer| holds(parent.as_str(), pointer));
        below.map(|pointer| (pointer.as_str(), self.nulls.contains(pointer)))
    }

    /// True if and only if a marker that stays lists the variable `pointer`, and parts of its value.
    pub(super) fn has_joint(&self, pointer: &Pointer) -> bool {
        let value = format!("{pointer}/{VALUE}/");
        self.has(pointer) && self.added.iter().any(|other| other.starts_with(&value))
    }

    /// The created lists and maps from the pod down to `parent`, outermost first, for a marker: those for which `is_absent` is
    /// true, and those that a marker that stays lists. `keyed` is `parent` as in a marker. Null was what is null in `body`, or
    /// what such a marker lists as null.
    pub(super) fn created(&self, body: &Value, parent: &Pointer, keyed: &Pointer) -> Marker {
        let mut created = Marker::default();
        let mut at = Some((parent, keyed));
        while let Some((parent, keyed)) = at.filter(|(parent, _)| !parent.is_root()) {
            let there = parent.resolve(body).ok();
            let pointer = keyed.to_string();
            let is_absent = there.is_none_or(Value::is_null);
            if is_absent || self.lists_parent(&pointer) {
                let was_null = if is_absent { there.is_some() } else { self.nulls.contains(&pointer) };
                created.nulls.extend(was_null.then(|| pointer.clone()));
                created.added.push(pointer);
            }
            at = parent.parent().zip(keyed.parent());
        }
        created.added.reverse();
        created.nulls.reverse();
        created
    }

    fn lists_parent(&self, pointer: &str) -> bool {
        self.added.contains(pointer) && is_parent(&self.pod, pointer)
    }
}

/// Whether the entry `pointer` of a marker is a created list or map.
fn is_parent(pod: &str, pointer: &str) -> bool {
    Listed::parse(pod, pointer).is_some_and(|listed| matches!(listed.what, What::Parent))
}

/// True if and only if `below` is in the list or map `parent`.
fn holds(parent: &str, below: &str) -> bool {
    below.strip_prefix(parent).is_some_and(|rest| rest.starts_with('/'))
}

/// Adds to `marker` of `policy` the created lists and maps of `others` that hold one of its entries for which `counts` is true,
/// or the marker itself. They exist because of policies, and the last marker that goes takes them away.
pub(crate) fn inherit_created<'m>(
    pod: &str,
    policy: &str,
    marker: &mut Marker,
    others: impl IntoIterator<Item = &'m Marker>,
    counts: impl Fn(&str) -> bool,
) {
    let own = PointerBuf::from_tokens(["metadata", "annotations", marker::key(policy).as_str()]);
    let own = format!("{pod}{own}");
    let is_used =
        |parent: &str| holds(parent, &own) || marker.added.iter().any(|below| holds(parent, below) && counts(below));
    let (mut added, mut nulls) = (Vec::new(), Vec::new());
    for other in others {
        for parent in &other.added {
            let is_new = !marker.added.contains(parent) && !added.contains(parent);
            if is_new && is_parent(pod, parent) && is_used(parent) {
                nulls.extend(other.nulls.contains(parent).then(|| parent.clone()));
                added.push(parent.clone());
            }
        }
    }
    marker.nulls.extend(nulls);
    marker.added.splice(..0, added);
}

/// All pointers in the markers on `workload` of policies for which `is_own` is false.
pub(crate) fn others(workload: &Workload, is_own: impl Fn(&str) -> bool) -> HashSet<String> {
    let others = marker::policies(workload).filter(|policy| !is_own(policy));
    others.filter_map(|policy| marker::read(workload, policy)).flat_map(|marker| marker.added).collect()
}

/// The policies for which `is_known` is false and whose markers on `workload` list only what the markers of `names` list, too. A rename
/// leaves such markers. `names` own the content alone.
pub(crate) fn forgotten<'w>(
    workload: &'w Workload,
    names: &[&str],
    is_known: impl Fn(&str, &Marker) -> bool,
) -> Vec<&'w str> {
    let pod = workload.pod_pointer();
    let own: HashSet<String> =
        names.iter().filter_map(|name| marker::read(workload, name)).flat_map(|own| own.added).collect();
    let markers =
        marker::named(workload).filter(|(policy, marker)| !names.contains(policy) && !is_known(policy, marker));
    let is_covered = |marker: &Marker| {
        let mut content = marker.added.iter().filter(|pointer| !is_parent(&pod, pointer)).peekable();
        content.peek().is_some() && content.all(|pointer| own.contains(pointer))
    };
    markers.filter(|(_, marker)| is_covered(marker)).map(|(policy, _)| policy).collect()
}

/// `workload` without the markers of `policies`.
pub(crate) fn without_markers(workload: &Workload, policies: &[&str]) -> Workload {
    let mut body = workload.body.clone();
    let annotations = body.pointer_mut(&format!("{}/metadata/annotations", workload.pod_pointer()));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.retain(|key, _| policies.iter().all(|policy| marker::key(policy) != *key));
    }
    workload.with_body(body)
}

/// The markers on a workload of which some go.
pub(super) struct Handover<'w> {
    pod: String,
    /// The policies whose marker goes, with the marker.
    pub(super) going: Vec<(&'w str, Marker)>,
    /// The policies whose marker goes and is unreadable.
    pub(super) unreadable: Vec<&'w str>,
    staying: Vec<Staying<'w>>,
}

/// A marker that stays.
struct Staying<'w> {
    policy: &'w str,
    marker: Marker,
    is_changed: bool,
}

impl<'w> Handover<'w> {
    /// The markers on `workload`; those go for which `is_wanted` is true. `known` are templates of policies.
    pub(super) fn of(workload: &'w Workload, is_wanted: impl Fn(&str) -> bool, known: &[&Template]) -> Self {
        let (going, staying, unreadable) = (Vec::new(), Vec::new(), Vec::new());
        let mut handover = Self { pod: workload.pod_pointer(), going, unreadable, staying };
        for policy in marker::policies(workload) {
            match (marker::read(workload, policy), is_wanted(policy)) {
                (Some(marker), true) => handover.going.push((policy, marker)),
                (Some(marker), false) => handover.staying.push(Staying { policy, marker, is_changed: false }),
                (None, true) => handover.unreadable.push(policy),
                (None, false) => {}
            }
        }
        if !handover.going.is_empty() && marker::are_within(workload) {
            handover.complete(workload, known);
        }
        handover
    }

    /// The pointers that a marker that stays lists.
    pub(super) fn kept(&self) -> HashSet<String> {
        self.staying.iter().flat_map(|staying| &staying.marker.added).cloned().collect()
    }

    /// The markers that stay and list more than before.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&str, &Marker)> {
        let changed = self.staying.iter().filter(|staying| staying.is_changed);
        changed.map(|staying| (staying.policy, &staying.marker))
    }

    /// Adds to the markers that stay what they would list if this release had written them: of the content of a marker that
    /// goes, what their own policy adds, too. That is known of the same template, and of the `known` ones.
    fn complete(&mut self, workload: &Workload, known: &[&Template]) {
        let (pod, Some(there)) = (&self.pod, workload.pod()) else { return };
        let (kept, injected) = (self.kept(), marker::containers(workload, &[]));
        let ownerless = |(_, marker): &(&str, Marker)| {
            let added = marker.added.iter().filter(|pointer| !kept.contains(*pointer)).cloned().collect();
            Marker { added, ..marker.clone() }
        };
        let is_there = |pointer: &str| {
            Listed::parse(pod, pointer).is_some_and(|listed| match listed.part() {
                Some((_, part)) => listed.joined(there).is_some_and(|value| part.is_in(value)),
                None => locate(there, &listed.tokens).is_ok(),
            })
        };
        let ownerless: Vec<Marker> = self.going.iter().map(ownerless).collect();
        for Staying { policy, marker, is_changed } in &mut self.staying {
            let before = marker.added.len();
            let template = known.iter().find(|known| known.policy == *policy && known.hash == marker.hash);
            let template = template.map(|template| template.as_listed(pod, marker));
            for (_, gone) in &self.going {
                let is_own = |pointer: &&String| {
                    let listed = Listed::parse(pod, pointer).filter(|listed| !matches!(listed.what, What::Parent));
                    listed.is_some_and(|listed| {
                        let adds = || template.as_ref().is_some_and(|own| own.adds_beside(&injected, &listed));
                        (gone.hash == marker.hash || adds()) && is_there(pointer)
                    })
                };
                let added: Vec<String> = gone.added.iter().filter(is_own).cloned().collect();
                marker.extend(&Marker { added: added.clone(), ..Marker::default() });
                // The list around it, too, even if another marker has that: all may go at once.
                if !added.is_empty() {
                    inherit_created(pod, policy, marker, [gone], |below| added.iter().any(|own| own == below));
                }
            }
            inherit_created(pod, policy, marker, &ownerless, is_there);
            *is_changed = marker.added.len() != before;
        }
    }
}
