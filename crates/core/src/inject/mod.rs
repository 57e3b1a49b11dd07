//! Templates into workloads: one pure [`plan`].
//!
//! A [`Template`] is the content that a policy adds. [`collisions`] finds templates that contradict each other, and
//! [`check`] finds those that contradict a workload. [`plan`] gives the JSON Patch that adds the rest, with a
//! [`marker`] that records our additions. Nothing here uses a client or a clock: the same arguments give the same
//! patch, byte by byte.

pub(crate) mod conflict;
pub(crate) mod defaults;
pub(crate) mod edited;
pub(crate) mod edits;
pub(crate) mod equal;
mod field;
mod fit;
mod join;
pub(crate) mod listed;
mod loss;
pub mod marker;
mod merge;
pub(crate) mod mounts;
pub(crate) mod needs;
mod obstacle;
pub(crate) mod overlay;
pub(crate) mod owners;
pub(crate) mod part;
pub(crate) mod pod;
pub(crate) mod presence;
pub(crate) mod references;
#[cfg(test)]
mod round_trip;
mod share;
pub(crate) mod tables;
mod undo;
pub(crate) mod unmet;
pub(crate) mod value;
mod valued;

pub use edits::{Edit, all_told};
pub use listed::LeftoverCause;
pub use loss::{Loss, loss};
pub use obstacle::Conflict;
pub use presence::Presence;
pub use undo::{Leftover, Undone, bare, undo, undo_anywhere};
pub(crate) use undo::{is_joint, undo_anywhere_with, undo_known, undo_those, undo_with};
pub use valued::Values;

use crate::api::pod_security::Standard;
use crate::api::v1alpha1;
use crate::api::v1alpha1::{Place, Position, RawObject};
use crate::outside;
use crate::workload::Workload;
use fit::Fits;
use join::Joining;
use json_patch::Patch;
use marker::Marker;
use merge::{Addition, Group, Shape};
use needs::Needs;
use owners::Owned;
use part::Join;
use pod::Pod;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use tables::{ANNOTATIONS, Entries, INNER, LISTS, List, MAPS};
use valued::Valued;
use wildmatch::WildMatch;

/// A template that is ready to be injected.
///
/// Its items must come from a valid policy: every item has a name, and names are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The name of the policy.
    pub policy: String,
    /// The key of the policy's marker annotation.
    pub marker_key: String,
    /// The injected content. Its variables have no `merge`.
    pub spec: v1alpha1::Template,
    /// The side of the user's items on which the template's items go.
    pub position: Position,
    /// First 16 hex digits of the SHA-256 of [`Self::spec`] as canonical JSON, before native sidecars are resolved. The
    /// hash is the same on every server and for every order of fields.
    pub hash: String,
    /// Its variables that refer to a variable outside the template.
    pub(crate) out: BTreeSet<String>,
    /// Its variables that join the workload's own of that name.
    pub(crate) joins: BTreeMap<String, Join>,
    needs: Needs,
    /// None without parameters.
    valued: Option<Arc<Valued>>,
}

impl Template {
    /// The template `spec` of `policy`.
    pub fn new(policy: &str, spec: &v1alpha1::Template, position: Position) -> Self {
        Self::with_hash(policy, spec.clone(), position, hash(spec))
    }

    fn with_hash(policy: &str, mut spec: v1alpha1::Template, position: Position, hash: String) -> Self {
        let marker_key = marker::key(policy);
        let joins = part::split(&mut spec);
        Self {
            policy: policy.to_owned(),
            needs: Needs::of(&spec, position.init_containers, &marker_key),
            marker_key,
            position,
            hash,
            out: references::out(&spec.env),
            joins,
            valued: None,
            spec,
        }
    }

    /// True if and only if its variable `name` refers by `$(NAME)` to a variable outside the template, directly or
    /// through others.
    pub(crate) fn refers_out(&self, name: &str) -> bool {
        self.out.contains(name)
    }

    /// The marker of its policy on the pod, or pod template, of `workload`. None if it is missing or unreadable.
    pub fn marker(&self, workload: &Workload) -> Option<Marker> {
        marker::parse(workload.pod_annotation(&self.marker_key)?)
    }

    /// Whether the pod, or pod template, of `workload` has a marker of its policy with its hash. Users can write one.
    pub(crate) fn is_claimed(&self, workload: &Workload) -> bool {
        workload.pod_annotation(&self.marker_key).is_some_and(|value| marker::is_current(value, &self.hash))
    }

    /// The same template with its containers as native sidecars: init containers with `restartPolicy: Always`. They
    /// start after its own init containers that go before the user's.
    #[must_use]
    pub fn with_native_sidecars(&self) -> Self {
        let mut native = Self { needs: self.needs.as_native(), ..self.clone() };
        native.spec.init_containers.extend(native.spec.containers.drain(..).map(|mut container| {
            container.insert("restartPolicy".into(), "Always".into());
            container
        }));
        native
    }

    /// True if and only if one of its containers or init containers is called `name`.
    pub(crate) fn names_container(&self, name: &str) -> bool {
        let all = self.spec.containers.iter().chain(&self.spec.init_containers);
        all.into_iter().any(|container| container.get("name").is_some_and(|own| own == name))
    }

    /// True if and only if its additions to the user's containers go into those of `list`.
    pub(crate) fn reaches(&self, list: &List) -> bool {
        list.field == tables::CONTAINERS || list.field == tables::INIT_CONTAINERS && self.spec.include_init_containers
    }

    /// A check whether its additions go into a user's container of that name.
    fn picks(&self) -> impl Fn(&str) -> bool + use<> {
        let globs: Vec<_> = self.spec.app_containers.iter().map(|glob| WildMatch::new(glob)).collect();
        move |name| globs.is_empty() || globs.iter().any(|glob| glob.matches(name))
    }
}

/// First 16 hex digits of the SHA-256 of `content` as canonical JSON.
pub(crate) fn hash(content: &impl Serialize) -> String {
    // A `Value` gives the canonical form, because serde_json sorts maps by key.
    let mut canonical = serde_json::to_value(content).expect("content of a policy is JSON");
    without_fractions(&mut canonical);
    crate::digest::short(canonical.to_string())
}

/// The largest whole number up to which floats are exact.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Gives whole numbers one form, because a server keeps the `1e9` that a client posts, while kubectl posts 1000000000.
fn without_fractions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(without_fractions),
        Value::Object(members) => members.values_mut().for_each(without_fractions),
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT);
            if let Some(whole) = whole.and_then(|whole| format!("{whole:.0}").parse::<i64>().ok()) {
                *number = whole.into();
            }
        }
        _ => {}
    }
}

/// The pairs of `templates`, by index, that add one name or one host port differently; each pair once, lower index
/// first.
///
/// # Guarantees
/// The result for a pair depends on its two templates alone. Their order changes neither the finding nor its message.
pub fn collisions(templates: &[&Template]) -> Vec<(usize, usize, Conflict)> {
    conflict::collisions(templates, pod::Network::Own)
}

/// As [`collisions`], with the ports of `workload`: on the host's network every container port is one of the host.
pub(crate) fn collisions_in(workload: &Workload, templates: &[&Template]) -> Vec<(usize, usize, Conflict)> {
    Pod::of(workload).map(|pod| conflict::collisions(templates, pod.network())).unwrap_or_default()
}

/// The first conflict with `workload` that only several of `templates` together have.
pub(crate) fn excess(workload: &Workload, templates: &[&Template], standard: Standard) -> Option<Conflict> {
    unmet::together(&Pod::of(workload).ok()?, templates, standard)
}

/// Whether `template` can be injected into `workload` without a change of existing content. `matching` are the
/// templates of all policies that match, this one included: containers that they name are not the user's own.
/// `standard` is what the server knows of the Pod Security Standards.
///
/// # Errors
/// The first obstacle: a name, path or host port that the workload uses differently; a mounted volume that exists
/// nowhere; a rule of the API server that both break together; or a pod template that is missing or malformed.
pub fn check(
    workload: &Workload,
    template: &Template,
    matching: &[&Template],
    standard: Standard,
) -> Result<(), Conflict> {
    let pod = Pod::of(workload)?;
    conflict::check(&pod, share::resolved(&pod, template, matching)?.as_ref(), matching, standard)
}

/// A field of a template that has no effect in a workload. It reads as its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The path in the policy.
    pub field: &'static str,
    /// What has no effect, and why.
    pub message: String,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}

/// The note that `appContainers` of `template` selects none of the containers of `workload`, or that `share` gives nothing of them. None
/// if there is nothing to select. `matching` as for [`check`].
pub fn unreached(workload: &Workload, template: &Template, matching: &[&Template]) -> Option<Unreached> {
    let of_share = || share::in_vain(&Pod::of(workload).ok()?, template, matching);
    let by_containers = || unreached_containers(workload, template, matching);
    let of = |field| move |message| Unreached { field, message };
    by_containers().map(of("spec.template.appContainers")).or_else(|| of_share().map(of("spec.template.share")))
}

fn unreached_containers(workload: &Workload, template: &Template, matching: &[&Template]) -> Option<String> {
    let spec = &template.spec;
    if spec.app_containers.is_empty() || !tables::reaches_in(spec) {
        return None;
    }
    let pod = Pod::of(workload).ok()?;
    if !pod.own(template, matching).ok()?.is_empty() {
        return None;
    }
    let anywhere = v1alpha1::Template { app_containers: Vec::new(), ..spec.clone() };
    let all = pod.own(&Template { spec: anywhere, ..template.clone() }, matching).ok()?;
    let names: Vec<_> = all.iter().map(|container| container.name).collect();
    let globs: Vec<_> = spec.app_containers.iter().map(String::as_str).collect();
    let lists = [("env", &spec.env), ("envFrom", &spec.env_from), ("volumeMounts", &spec.volume_mounts)];
    let lost: Vec<_> = lists.iter().filter(|(_, list)| !list.is_empty()).map(|(name, _)| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| {
        format!(
            "`appContainers` [{}] selects none of the containers [{}]: {} reach none",
            shown_names(&globs),
            shown_names(&names),
            lost.join(", ")
        )
    })
}

/// The first of `names`, for a message.
fn shown_names(names: &[&str]) -> String {
    /// The most names in a message.
    const MOST: usize = 5;
    /// The most characters of a name: the server accepts no longer one.
    const LONGEST: usize = 63;
    let mut shown: Vec<_> = names.iter().take(MOST).map(|name| outside::cut(name, LONGEST)).collect();
    if names.len() > MOST {
        shown.push("…".into());
    }
    shown.join(", ")
}

/// The patch that injects `templates`, which come in the order of their priority, into `workload`. `matching` and
/// `standard` as for [`check`].
///
/// # Guarantees
/// - It applies to `workload`, consists of `add` operations only, and neither changes nor removes anything of the
///   user's. Three exceptions: a variable with `merge` gets a longer value, a grace period may be raised, and a marker
///   of one of the policies is replaced, because users can write it: it lists what this patch adds.
/// - Every list has first all `Before` items in the order of `templates`, then the existing items, then all `After`
///   items.
/// - If a container goes before the user's first one, the annotation `kubectl.kubernetes.io/default-container` names
///   the user's, unless it is set already.
/// - An item that exists with equal content is not added again. The marker lists it if a marker that stays lists it:
///   see `owners`. Otherwise it is the user's.
/// - After the patch, planning again gives an empty patch.
/// - The markers suffice to restore the original exactly.
///
/// # Errors
/// The first failure of [`collisions`] or [`check`]: then no template may be injected. Drop the templates that they
/// name, and plan again.
pub fn plan(
    workload: &Workload,
    templates: &[&Template],
    matching: &[&Template],
    standard: Standard,
) -> Result<Patch, Conflict> {
    plan_with(workload, templates, matching, standard, Markers::Replaced)
}

/// What becomes of the current markers on a workload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Markers {
    /// They list what is added now.
    Replaced,
    /// They list that, too: the object has lost a part of its content by an update, and they list what is left.
    Extended,
}

/// As [`plan`], with what becomes of the `markers`.
///
/// # Errors
/// As in [`plan`].
pub(crate) fn plan_with(
    workload: &Workload,
    templates: &[&Template],
    matching: &[&Template],
    standard: Standard,
    markers: Markers,
) -> Result<Patch, Conflict> {
    if templates.is_empty() {
        return Ok(Patch::default());
    }
    let pod = Pod::of(workload)?;
    let (written, resolved) = (templates, share::all_resolved(&pod, templates, matching)?);
    let templates = &resolved.iter().map(AsRef::as_ref).collect::<Vec<_>>()[..];
    if let Some((_, _, conflict)) = conflict::collisions(templates, pod.network()).into_iter().next() {
        return Err(conflict);
    }
    templates.iter().try_for_each(|template| conflict::check(&pod, template, matching, standard))?;
    unmet::together(&pod, templates, standard).map_or(Ok(()), Err)?;
    let owned = Owned::beside(workload, templates, markers);
    // The user's containers first, because items before them change their index.
    let (mut groups, joining) = inner_of(&pod, templates, matching, &owned)?;
    // Before all other operations, because variables that are added change the index of others.
    let mut operations = joining.operations(&mut groups);
    groups.extend(content_of(&pod, templates, &owned));
    groups.extend(entries_of(&pod, templates, &owned));
    let mut fits = Fits::of(&pod, templates, &owned);
    groups.append(&mut fits.groups);
    operations.append(&mut fits.operations);
    keep_default_container(&pod, templates, &mut groups, &owned);
    let shared = share::records(&pod, &groups, templates, written);
    let beside = Beside { owned: &owned, joining: &joining, fits: &fits, shared: &shared };
    add_markers(&pod, templates, &mut groups, &beside, markers);
    operations.extend(merge::operations(&workload.body, groups));
    Ok(Patch(operations))
}

/// The additions of `templates` to each list of the pod.
fn content_of(pod: &Pod<'_>, templates: &[&Template], owned: &Owned) -> Vec<Group> {
    let group = |list: &'static List| {
        let mut group = Group::at(pod.pointer_of(list), Shape::List);
        for (owner, template) in templates.iter().enumerate() {
            for item in (list.items)(&template.spec) {
                let key = list.key_of(item);
                let (value, place) = (Value::Object(item.clone()), (list.place)(template, item));
                let addition = Addition { owner, key: key.to_owned(), value, place };
                group.give(addition, pod.find(list, key).is_some(), owned);
            }
        }
        group
    };
    LISTS.iter().map(group).collect()
}

/// The additions of `templates` to the maps of the pod's metadata.
fn entries_of(pod: &Pod<'_>, templates: &[&Template], owned: &Owned) -> Vec<Group> {
    let group = |map: &'static Entries| {
        let mut group = Group::at(pod.pointer_of_map(map), Shape::Map);
        for (owner, template) in templates.iter().enumerate() {
            for (key, value) in map.of(&template.spec) {
                let addition = Addition { owner, key: key.clone(), value: value.as_str().into(), place: Place::After };
                group.give(addition, pod.entry(map, key).is_some(), owned);
            }
        }
        group
    };
    MAPS.iter().map(group).collect()
}

/// The additions of `templates` to the lists of the user's own containers.
fn inner_of<'a>(
    pod: &Pod<'_>,
    templates: &[&Template],
    matching: &[&Template],
    owned: &'a Owned,
) -> Result<(Vec<Group>, Joining<'a>), Conflict> {
    let (mut groups, mut joining) = (Vec::<Group>::new(), Joining::beside(owned));
    for (owner, template) in templates.iter().enumerate() {
        for own in pod.own(template, matching)? {
            for inner in &INNER {
                let (parent, keyed) = pod.pointers_in(&own, inner);
                let at = groups.iter().position(|group| group.parent == parent).unwrap_or_else(|| {
                    groups.push(Group { keyed, ..Group::at(parent, Shape::List) });
                    groups.len() - 1
                });
                for item in (inner.items)(&template.spec) {
                    let (key, place) = ((inner.key)(item), (inner.place)(template, item));
                    let is_joined =
                        inner.field == part::ENV && joining.join(pod, &own, (owner, template), item, &mut groups[at]);
                    if !is_joined {
                        let is_there = own.find(inner, &key).is_some();
                        let addition = Addition { owner, key, value: Value::Object(item.clone()), place };
                        groups[at].give(addition, is_there, owned);
                    }
                }
            }
        }
    }
    Ok((groups, joining))
}

/// Names the user's first container in the annotation for kubectl if one of ours goes before it, because kubectl's
/// default is the first container. The annotation belongs to all templates with such a container.
fn keep_default_container(pod: &Pod<'_>, templates: &[&Template], groups: &mut [Group], owned: &Owned) {
    let Some(containers) = List::named(tables::CONTAINERS) else { return };
    let [of_containers, of_annotations] = [pod.pointer_of(containers), pod.annotations_pointer()]
        .map(|parent| groups.iter().position(|group| group.parent == parent));
    let Some((of_containers, of_annotations)) = of_containers.zip(of_annotations) else { return };
    let key = tables::DEFAULT_CONTAINER;
    let is_owned = |name: &str| owned.has(&pod.pointer_of(containers).with_trailing_token(name));
    let name = pod.items(containers).map(|item| containers.key_of(item)).find(|name| !is_owned(name));
    let first = groups[of_containers].additions.iter().find(|addition| addition.place == Place::Before);
    let is_there = pod.entry(ANNOTATIONS, key).is_some();
    // One of the templates gives it a value.
    if groups[of_annotations].adds(key) {
        return;
    }
    if let (Some(first), Some(name), false) = (first, name.filter(|name| !name.is_empty()), is_there) {
        let (owner, key) = (first.owner, key.to_owned());
        groups[of_annotations].additions.push(Addition { owner, key, value: name.into(), place: Place::After });
    } else if !is_there || !owned.has(&pod.annotations_pointer().with_trailing_token(key)) {
        return;
    }
    for (owner, template) in templates.iter().enumerate() {
        let goes_before = |item: &RawObject| {
            (containers.place)(template, item) == Place::Before
                && groups[of_containers].lists(owner, containers.key_of(item))
        };
        let is_listed = groups[of_annotations].lists(owner, key);
        if !is_listed && (containers.items)(&template.spec).iter().any(goes_before) {
            groups[of_annotations].list(owner, key);
        }
    }
}

/// What is added besides groups of items and entries.
struct Beside<'a> {
    owned: &'a Owned,
    joining: &'a Joining<'a>,
    fits: &'a Fits,
    /// Owners of containers, each with the entries for what is shared with them.
    shared: &'a [(usize, Marker)],
}

impl Beside<'_> {
    /// What the marker of `owner` lists of it.
    fn records_of(&self, owner: usize) -> impl Iterator<Item = &Marker> {
        let shared = self.shared.iter().filter(move |(own, _)| *own == owner).map(|(_, record)| record);
        self.joining.records_of(owner).chain(self.fits.records_of(owner)).chain(shared)
    }
}

/// Adds the marker annotations of `templates`, whose content is in `groups` and `beside` them. A current marker stays as it
/// is if nothing is added; otherwise it is extended or replaced.
fn add_markers(pod: &Pod<'_>, templates: &[&Template], groups: &mut [Group], beside: &Beside<'_>, markers: Markers) {
    let (annotations, owned) = (pod.annotations_pointer(), beside.owned);
    let body = &pod.workload.body;
    let created = owned.created(body, &annotations, &annotations);
    let fresh = merge::records(body, groups, owned, templates.len());
    let adds = |owner: usize| {
        let is_added = |group: &Group| {
            // What another policy adds alike is listed, too.
            let mut shared = group.listed.iter().filter(|(of, _)| *of == owner);
            group.additions.iter().any(|addition| addition.owner == owner)
                || shared.any(|(_, key)| group.additions.iter().any(|addition| addition.key == *key))
        };
        groups.iter().any(is_added) || beside.joining.adds(owner) || beside.fits.adds(owner)
    };
    let markers = templates.iter().zip(fresh).enumerate().filter_map(|(owner, (template, mut fresh))| {
        beside.records_of(owner).for_each(|record| fresh.extend(record));
        if !adds(owner) && template.is_claimed(pod.workload) {
            return None;
        }
        let stored =
            template.marker(pod.workload).filter(|stored| markers == Markers::Extended && stored.hash == template.hash);
        let mut marker = stored.unwrap_or_else(|| Marker { hash: template.hash.clone(), ..Marker::default() });
        marker.extend(&created);
        marker.extend(&fresh);
        marker.values = template.value_entries();
        Some(Addition { owner, key: template.marker_key.clone(), value: marker.to_value(), place: Place::After })
    });
    let markers: Vec<Addition> = markers.collect();
    // Into the same group, because annotations of templates go into the same map.
    if let Some(group) = groups.iter_mut().find(|group| group.parent == annotations) {
        group.additions.extend(markers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::code::Code;
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
        let [whole, float, other] = ["1000000000", "1e9", "1e9,\"b\":0.5"]
            .map(|number| template(&format!(r#"{{"containers":[{{"name":"a","a":{number}}}]}}"#)).hash);
        assert_eq!(whole, float);
        assert_ne!(whole, other);
    }

    #[test]
    fn a_list_that_is_not_there_is_added_whole_and_one_that_is_there_item_by_item() {
        let template = template(r#"{"containers":[{"name":"x"},{"name":"y"}],"volumes":[{"name":"v"}]}"#);
        let pod = json!({"metadata": {"annotations": {}}, "spec": {"containers": [{"name": "app"}]}});
        let patch =
            plan(&Workload::new(Kind::find("", "pods").unwrap(), pod), &[&template], &[&template], Standard::NEWEST)
                .unwrap();
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
    fn nothing_goes_into_a_container_whose_name_is_another_text_in_a_marker() {
        let template = template(r#"{"env":[{"name":"A","value":"1"}]}"#);
        let checked = |name: &str| {
            let pod = json!({"spec": {"containers": [{"name": name}]}});
            let pod = Workload::new(Kind::find("", "pods").unwrap(), pod);
            check(&pod, &template, &[&template], Standard::NEWEST).map_err(|conflict| conflict.code)
        };
        for name in ["a\u{1f}", "\n", "a\"b", "a\\b", ""] {
            assert_eq!(checked(name), Err(Code::NoPodTemplate), "{name:?}");
        }
        for name in ["app", "a b", "a/b~c", "\u{7f}", "日志"] {
            assert_eq!(checked(name), Ok(()), "{name:?}");
        }
    }

    #[test]
    fn what_only_an_earlier_marker_lists_is_the_users_own_before_and_after_it_is_replaced() {
        let template = template(r#"{"env":[{"name":"A","value":"1"}]}"#);
        let marker = r#"{"v":1,"hash":"0123456789abcdef","added":["/spec/containers/x"]}"#;
        let mut body = json!({"metadata": {"annotations": {"injected.scpol.dev/p": marker}}, "spec": {"containers": [{"name": "x"}]}});
        let plan = |body: &Value| {
            let pod = Workload::new(Kind::find("", "pods").unwrap(), body.clone());
            plan(&pod, &[&template], &[&template], Standard::NEWEST).unwrap()
        };
        let patch = plan(&body);
        json_patch::patch(&mut body, &patch).unwrap();
        assert_eq!(body["spec"]["containers"][0]["env"], json!([{"name": "A", "value": "1"}]));
        assert_eq!(plan(&body), Patch::default());
    }

    #[test]
    fn what_was_taken_away_by_hand_is_added_again_and_the_marker_still_lists_all() {
        let template = template(r#"{"containers":[{"name":"x"}],"volumes":[{"name":"v"}]}"#);
        let kind = Kind::find("", "pods").unwrap();
        let inject = |mut body: Value| {
            let patch = plan_with(
                &Workload::new(kind, body.clone()),
                &[&template],
                &[&template],
                Standard::NEWEST,
                Markers::Extended,
            )
            .unwrap();
            json_patch::patch(&mut body, &patch).unwrap();
            body
        };
        let before = inject(json!({"metadata": {}, "spec": {"containers": [{"name": "app"}]}}));
        let mut robbed = before.clone();
        robbed["spec"]["containers"].as_array_mut().unwrap().pop();
        assert_eq!(inject(robbed), before);
    }
}
