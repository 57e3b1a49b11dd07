//! What would be done to one stored workload to bring it from the content that it carries to another content of the same
//! policy, and back. Pure.
//!
//! | question | answer |
//! |---|---|
//! | Does a workload have the content already? | [`carries`] |
//! | Which patch changes its pod template? | [`template_update`], [`removal`] |
//! | What does a rollout do next to it: can a pod be changed while it runs? | [`next_action`] |
//! | Which pod would its controller make instead? | [`replacement`], [`made_anew`] |
//! | Would a quota allow it once the old one is gone? | [`still_exceeds`] |
//! | Which way is that, as far as the two contents say? | [`expected`] |
//! | May a workload that has the content be restarted? | [`untouchable`] |
//!
//! The marker on the workload lists what a [`Revision`] added. Users can write markers, so each entry must be exactly
//! what that revision adds (`inject::listed`); otherwise it is the user's, and nothing changes. Then:
//!
//! 1. Undo all policies and decide, as at a create. A policy that would not be injected changes nothing.
//! 2. Undo the one policy, and plan its new content ([`inject::plan`]).
//! 3. Move the new items to the places of the old ones (`order`), so that the order among policies stays.

mod action;
mod order;
mod pod;
mod replacement;

pub use crate::workload::MAKERS;
pub use action::{Asked, RESTARTED, Way, begun, expected, next_action};
pub use pod::maker;
pub use replacement::{Exceeded, made_anew, replacement, still_exceeds};

use crate::api::ROLLOUT_KEY;
use crate::api::code::Code;
use crate::api::pod_security::Standard;
use crate::content::Revision;
use crate::decision::Decision;
use crate::inject::edited::{chosen_container, edited};
use crate::inject::listed::{self, Listed, What};
use crate::inject::marker::{self, Marker};
use crate::inject::overlay::{self, Changes, Overlay};
use crate::inject::tables::{DEFAULT_CONTAINER, has_volume};
use crate::inject::{self, Leftover, LeftoverCause, Presence, Template, is_joint, owners, undo_known, undo_with};
use crate::policy::{Policies, Policy, Reason, Site, deliver};
use crate::workload::Workload;
use json_patch::jsonptr::PointerBuf;
use json_patch::{Patch, PatchOperation, TestOperation};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// What a workload carries of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Carries {
    /// It has no marker.
    Nothing,
    /// The content of the policy.
    This,
    /// Another content. Holds the hash of its template, which is that of the policy's if only the places differ.
    Other(String),
    /// Its marker is unreadable.
    Unreadable,
}

/// What a workload is brought to.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// The policy with the new content. It replaces the one of its name among the others.
    pub to: &'a Policy,
    /// The policies in effect.
    pub policies: &'a Policies,
    /// The flags.
    pub site: &'a Site,
}

/// What a rollout does next to a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum NextAction {
    /// Nothing: it has the content, and began after the last restart.
    UpToDate,
    /// Nothing, although it lacks the content or the restart.
    Leave(Unchanged),
    /// A patch of the pod template. The controller of the workload then makes its pods anew.
    PatchTemplate(Patch),
    /// The annotation [`RESTARTED`] in the pod template, and a patch of it, if parameters have other values now. The content stays.
    RestartTemplate(Patch),
    /// Changes of the running pod.
    InPlace {
        /// The images of containers and native sidecars, labels and annotations, with the marker. It begins with tests of
        /// `metadata.uid` and `metadata.resourceVersion`.
        patch: Patch,
        /// The body of a strategic merge patch of the subresource `resize`: CPU and memory, for that version of the pod.
        /// It goes first. The pod that it leaves is judged again, and needs the patch only.
        resize: Option<Value>,
    },
    /// An eviction of the pod, because of that.
    Evict { why: String },
}

/// Why a workload stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchanged {
    /// The kind of the reason.
    pub cause: Cause,
    /// The reason, with the place. It never repeats a value that may be secret.
    pub message: String,
}

/// The kinds of reasons for which a workload stays as it is. Each has a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// 410: what the marker lists is not exactly what its revision added. It is the user's.
    ContentEdited,
    /// 411: the revision of the marker is unknown, so its content cannot be distinguished from the user's.
    RevisionUnknown,
    /// 412: no controller makes the pod again.
    NotRecreated,
    /// 413: Jobs and their pods end by themselves.
    EndsByItself,
    /// 414: the annotation `scpol.dev/rollout: "false"`, or `kubectl rollout pause`.
    RolloutOptedOut,
    /// 418: the controller of the pod has the content in its own pod template.
    ContentOfOwner,
    /// The policy would not be injected into the workload if it were created now.
    NotInjected(Code),
}

impl Cause {
    /// The code of the reason.
    pub fn code(self) -> Code {
        match self {
            Self::ContentEdited => Code::ContentEdited,
            Self::RevisionUnknown => Code::RevisionUnknown,
            Self::NotRecreated => Code::NotRecreated,
            Self::EndsByItself => Code::EndsByItself,
            Self::RolloutOptedOut => Code::RolloutOptedOut,
            Self::ContentOfOwner => Code::ContentOfOwner,
            Self::NotInjected(code) => code,
        }
    }
}

impl Unchanged {
    fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }

    fn edited(pointer: &str, wrong: &str) -> Self {
        Self::new(Cause::ContentEdited, format!("`{pointer}`, which the marker lists: {wrong}"))
    }

    fn shared(pointer: &str, other: &str) -> Self {
        let message = format!(
            "`{pointer}` belongs to SidecarPolicy `{other}` as well, which needs it as it is: change that policy, too, or take \
             its content out"
        );
        Self::new(Cause::NotInjected(Code::SharedContent), message)
    }

    fn unknown(hash: &str) -> Self {
        Self::new(Cause::RevisionUnknown, format!("no revision has the template {hash}, which the marker names"))
    }
}

impl From<Reason> for Unchanged {
    fn from(reason: Reason) -> Self {
        Self::new(Cause::NotInjected(reason.code), reason.detail)
    }
}

/// A change of the pod template of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateChange {
    /// The whole object after the change.
    pub body: Value,
    /// The change as a patch. It begins with tests of `metadata.uid` and `metadata.resourceVersion`, and changes nothing
    /// outside the pod template. Empty if nothing changes.
    pub patch: Patch,
    /// Volumes of the earlier revision that stay, because containers that stay mount them. They are the user's now.
    pub kept: Vec<Leftover>,
}

/// What `workload` carries of `policy`, by the policy's marker.
///
/// # Guarantees
/// The answer is [`Carries::This`] only if no item of the content is missing, the listed items are in the lists and in the
/// order in which the policy delivers them, and none is on the wrong side of all of the user's items. An item that was
/// edited is there: a rollout leaves it as it is. If the policy restores what was edited, it is not.
pub fn carries(workload: &Workload, policy: &Policy, site: &Site) -> Carries {
    let workload = &*policy.view(workload);
    let policy = &*policy.as_recorded(workload);
    let replaced = policy.replaced_markers(workload).next();
    let Some(marker) = policy.marker(workload) else {
        return match replaced {
            _ if is_marked(workload, policy.marker_key()) => Carries::Unreadable,
            Some((_, marker)) => Carries::Other(marker.hash),
            None => Carries::Nothing,
        };
    };
    if replaced.is_some() {
        return Carries::Other(marker.hash);
    }
    let is_in_place = || {
        let delivered = deliver(policy, workload, site.native_sidecars);
        delivered.is_ok_and(|delivered| order::is_in_place(workload, delivered.template(), &marker))
    };
    let is_there = || !matches!(policy.presence_of_items(workload), Presence::Lacking(_));
    let is_restored = || !policy.spec.restores_edited() || policy.edits(workload).is_empty();
    if marker.hash == policy.template_hash() && is_in_place() && is_there() && is_restored() {
        Carries::This
    } else {
        Carries::Other(marker.hash)
    }
}

/// The change that brings the pod template of `workload` to the content of the `goal`. `from` are the known revisions. Several of
/// them have the hash of the marker if they differ only in the position: the first whose content is there exactly counts. The
/// Namespace of `workload` is known if it matters. `workload` is no pod.
///
/// # Guarantees
/// - The user's content and that of other policies stay as they are. Markers of other policies stay byte for byte. One that no policy
///   in effect stands behind goes, if it lists nothing that the policy does not list.
/// - [`carries`] is [`Carries::This`] afterwards. Then the same call changes nothing.
/// - If nothing was edited since the injection, the result is what a create with the new content gives.
/// - An item of both contents stays where it is in its list, unless that is the wrong side of the user's items.
///
/// # Errors
/// Why nothing changes.
pub fn template_update<'a>(
    workload: &Workload,
    from: impl IntoIterator<Item = &'a Revision>,
    goal: Goal<'_>,
) -> Result<TemplateChange, Unchanged> {
    let stored = &*goal.to.view(workload);
    let known: Vec<&Template> = from.into_iter().map(|from| &from.template).chain(goal.replaced()).collect();
    let names: Vec<&str> = goal.to.marker_names().collect();
    let settled = settled(stored, &names, &known);
    let workload = &*settled;
    let is_in_force = |name: &str, _: &Marker| goal.policies.iter().any(|policy| policy.name == name);
    let forgotten = owners::forgotten(workload, &names, is_in_force);
    let bare = (!forgotten.is_empty()).then(|| owners::without_markers(workload, &forgotten));
    let bare = bare.as_ref().unwrap_or(workload);
    let own = OwnContent::of(bare, known, names, goal.to.spec.restores_edited())?;
    let decision = verdict(&own.workload, goal)?;
    let valued = decision.injected(&goal.to.name).cloned();
    let goal = Goal { to: valued.as_deref().unwrap_or(goal.to), ..goal };
    let planned = plan(&own.workload, own.marker.as_ref(), goal, &decision)?;
    own.change(stored, planned.body, planned.leftovers, goal.policies)
}

/// `workload` without the changes that its author has made to values of the content of the policies `names`, of which `known` are templates.
fn settled<'a>(workload: &'a Workload, names: &[&str], known: &[&Template]) -> Cow<'a, Workload> {
    names.iter().fold(Cow::Borrowed(workload), |workload, name| {
        match overlay::settled(&workload, &marker::key(name), known.iter().copied(), Changes::All) {
            Cow::Owned(settled) => Cow::Owned(settled),
            Cow::Borrowed(_) => workload,
        }
    })
}

/// The change that takes what the revision `from` added out of the pod template of `workload`. `policies` are those in
/// force. `workload` is no pod.
///
/// # Guarantees
/// As for [`template_update`]. If nothing was edited since the injection, the result is the exact original. Without a
/// marker nothing changes.
///
/// # Errors
/// Why nothing changes.
pub fn removal(workload: &Workload, from: &Revision, policies: &Policies) -> Result<TemplateChange, Unchanged> {
    let (stored, names) = (workload, vec![from.template.policy.as_str()]);
    let settled = settled(stored, &names, &[&from.template]);
    let own = OwnContent::of(&settled, [&from.template], names, false)?;
    let known: Vec<&Template> = policies.iter().map(|policy| policy.as_written()).collect();
    let undone = undo_known(&own.workload, |name| own.names.contains(&name), |_| false, &known);
    let (body, leftovers) =
        undone.map_or_else(|| (stored.body.clone(), Vec::new()), |undone| (undone.body, undone.leftovers));
    own.change(stored, body, leftovers, policies)
}

impl<'a> Goal<'a> {
    /// The templates, present and earlier, of the policies whose place the new one takes.
    fn replaced(&self) -> impl Iterator<Item = &'a Template> + use<'a> {
        let to = self.to;
        let replaced = self.policies.iter().filter(|policy| to.replaces(&policy.name));
        replaced.flat_map(|policy| [policy.as_written()].into_iter().chain(policy.past().map(|past| &past.template)))
    }
}

/// A workload whose markers of a policy, and of those whose place it takes, list only what is their own.
struct OwnContent<'a> {
    names: Vec<&'a str>,
    workload: Cow<'a, Workload>,
    /// All of these markers in one; none if the workload has none.
    marker: Option<Marker>,
}

impl<'a> OwnContent<'a> {
    /// The content of the policies `names` in `workload`. `known` are the templates of known revisions. `restores`: whether edits of
    /// it are given up.
    ///
    /// # Errors
    /// If the workload must not change, or its content is not exactly what one of them added.
    fn of<'r>(
        workload: &'a Workload,
        known: impl IntoIterator<Item = &'r Template>,
        names: Vec<&'a str>,
        restores: bool,
    ) -> Result<Self, Unchanged> {
        check(workload)?;
        let known: Vec<&Template> = known.into_iter().collect();
        let mut own = Self { names: names.clone(), workload: Cow::Borrowed(workload), marker: None };
        for policy in names.into_iter().filter(|policy| is_marked(workload, &marker::key(policy))) {
            own.take(policy, &known, restores)?;
        }
        Ok(own)
    }

    /// Adds the marker of `policy`, which is on the workload. See [`Self::of`].
    fn take(&mut self, policy: &str, known: &[&Template], restores: bool) -> Result<(), Unchanged> {
        let (at, key) = (self.workload.pod_pointer(), marker::key(policy));
        let unreadable = || Unchanged::new(Cause::ContentEdited, format!("annotation `{key}` is unreadable"));
        let mut marker = marker::read(&self.workload, policy).ok_or_else(unreadable)?;
        let (mut left, mut restored) = (None, None);
        let exact = known.iter().filter(|from| from.hash == marker.hash).find_map(|from| {
            let added = from.as_listed(&at, &marker);
            let Some((pointer, wrong)) = edited(&self.workload, &added, &marker) else { return Some(added) };
            left.get_or_insert(Unchanged::edited(&pointer, &wrong));
            if restores && restored.is_none() {
                restored = still_there(&self.workload, &added, &marker).map(|there| (added, there));
            }
            None
        });
        let listed = marker.added.len();
        let added = match (exact, restored) {
            (Some(added), _) => added,
            (None, Some((added, there))) => {
                marker.added = there;
                added
            }
            (None, None) => return Err(left.unwrap_or_else(|| Unchanged::unknown(&marker.hash))),
        };
        let chosen = chosen_container(&self.workload, &added, &marker);
        if let Some(chosen) = &chosen {
            marker.added.retain(|pointer| pointer != chosen);
        }
        if marker.added.len() < listed {
            let mut body = self.workload.body.clone();
            if let Some(annotations) = body.pointer_mut(&format!("{at}/metadata/annotations")) {
                annotations[key.as_str()] = marker.to_value();
            }
            self.workload = Cow::Owned(self.workload.with_body(body));
        }
        match &mut self.marker {
            Some(all) => all.extend(&marker),
            None => self.marker = Some(marker),
        }
        Ok(())
    }

    /// The change of `stored`, as it was before, to `body`, in which `leftovers` stay.
    fn change(
        &self,
        stored: &Workload,
        body: Value,
        leftovers: Vec<Leftover>,
        policies: &Policies,
    ) -> Result<TemplateChange, Unchanged> {
        if let Some(left) = leftovers.iter().find(|left| left.cause != LeftoverCause::Mounted) {
            return Err(Unchanged::edited(&left.pointer, &left.to_string()));
        }
        let (marker, after) = (self.marker.as_ref(), stored.with_body(body));
        let lost = marker.and_then(|marker| lost(&self.workload, &after, marker, &self.names, policies));
        if let Some((pointer, other)) = lost {
            return Err(Unchanged::shared(&pointer, &other));
        }
        Ok(TemplateChange { patch: guarded(&stored.body, &after.body), body: after.body, kept: leftovers })
    }
}

/// The entries of `marker` that can be taken out of `workload`, edited or not: without those that are gone. None if one is nothing
/// that `added` adds, or is not the only one of its name.
fn still_there(workload: &Workload, added: &Template, marker: &Marker) -> Option<Vec<String>> {
    let at = workload.pod_pointer();
    let pod = workload.pod()?;
    let mut there = Vec::new();
    for pointer in &marker.added {
        let listed = Listed::parse(&at, pointer)?;
        let is_ours =
            matches!(listed.what, What::Parent) || added.adds(&listed) || listed.split().0 == DEFAULT_CONTAINER;
        let is_part_there = listed.part().map(|(_, part)| listed.joined(pod).is_some_and(|value| part.is_in(value)));
        match listed::locate(pod, &listed.tokens) {
            _ if !is_ours => return None,
            _ if is_part_there == Some(true) => there.push(pointer.clone()),
            _ if is_part_there == Some(false) => {}
            Ok(_) => there.push(pointer.clone()),
            Err(LeftoverCause::Missing) => {}
            Err(_) => return None,
        }
    }
    Some(there)
}

/// Whether `workload` has the marker `key`, readable or not.
fn is_marked(workload: &Workload, key: &str) -> bool {
    workload.pod().is_some_and(|pod| !pod["metadata"]["annotations"][key].is_null())
}

/// Why a rollout leaves `workload` as it is, whatever it carries; none if it may be restarted. The Namespace of `workload` is known.
pub fn untouchable(workload: &Workload) -> Option<Unchanged> {
    if workload.kind.is_pod() { pod::check(workload).err() } else { check(workload).err() }
}

/// Whether `kubectl rollout pause` keeps the pods of `workload` at the pod templates that they have.
pub fn is_paused(workload: &Workload) -> bool {
    !workload.kind.is_pod() && workload.body["spec"]["paused"] == true
}

/// Whether the workload, which is no pod, may be touched.
fn check(workload: &Workload) -> Result<(), Unchanged> {
    check_opt_out(workload)?;
    if workload.kind.is_job() {
        return Err(Unchanged::new(Cause::EndsByItself, "the pod template of a Job cannot change"));
    }
    if is_paused(workload) {
        // No pod would follow.
        let message = "its own rollout is paused: `kubectl rollout resume` lets it go on";
        return Err(Unchanged::new(Cause::RolloutOptedOut, message));
    }
    Ok(())
}

fn check_opt_out(workload: &Workload) -> Result<(), Unchanged> {
    let of_namespace = || workload.namespace_object.as_ref()?["metadata"]["annotations"].get(ROLLOUT_KEY)?.as_str();
    let said = [
        ("the object", workload.annotation(ROLLOUT_KEY)),
        ("the pod template", workload.pod_annotation(ROLLOUT_KEY)),
        ("the Namespace", of_namespace()),
    ];
    match said.into_iter().find(|(_, value)| *value == Some("false")) {
        Some((who, _)) => Err(Unchanged::new(Cause::RolloutOptedOut, format!("{who} has `{ROLLOUT_KEY}: \"false\"`"))),
        None => Ok(()),
    }
}

/// The decision that a create of `workload` would get: without the content of any policy.
///
/// # Errors
/// Why the policy of the `goal` would not be injected.
fn verdict(workload: &Workload, goal: Goal<'_>) -> Result<Decision, Unchanged> {
    let Goal { to, policies, site } = goal;
    let policies = match policies.get(&to.reference()) {
        Some(own) if own.spec_hash == to.spec_hash => Cow::Borrowed(policies),
        _ => {
            let others = policies.iter().filter(|other| other.name != to.name).cloned();
            Cow::Owned(Policies::new(others.chain([Arc::new(to.clone())])))
        }
    };
    let returns = |name: &str| policies.iter().any(|policy| has_volume(&policy.as_written().spec, name));
    let has = |overlay: &Overlay| policies.at(workload).any(|policy| policy.as_written().has_overlay(overlay));
    let bare = undo_with(workload, |_| true, returns, has).map(|undone| workload.with_body(undone.body));
    let decision = Decision::of(&policies, bare.as_ref().unwrap_or(workload), site);
    if decision.inject.iter().any(|policy| policy.name == to.name) {
        return Ok(decision);
    }
    let left = decision.rest.iter().find(|left| left.policy.name == to.name).map(|left| left.reason.clone());
    Err(left
        .map_or_else(|| Unchanged::new(Cause::NotInjected(Code::EmptyTemplate), "it has no template"), Unchanged::from))
}

/// A workload with the new content of a policy in place of its old one.
struct Replanned<'a> {
    body: Value,
    /// The template as it is delivered to the workload.
    template: &'a Template,
    /// The marker in `body`.
    marker: Marker,
    /// What `marker` of before listed and could not be removed.
    leftovers: Vec<Leftover>,
    /// The pointers in the markers of other policies.
    shared: HashSet<String>,
}

/// `workload` with the content of the `goal` in place of that of `marker`. `decision` is the [`verdict`].
///
/// # Errors
/// The conflict of the new content with what is there.
fn plan<'a>(
    workload: &Workload,
    marker: Option<&Marker>,
    goal: Goal<'a>,
    decision: &Decision,
) -> Result<Replanned<'a>, Unchanged> {
    let Goal { to, policies, site } = goal;
    let template = deliver(to, workload, site.native_sidecars)?.template();
    if let Some((pointer, other)) = marker.and_then(|marker| disputed(workload, marker, template, goal)) {
        return Err(Unchanged::shared(&pointer, &other));
    }
    let returns = |name: &str| has_volume(&template.spec, name);
    let known: Vec<&Template> = policies.iter().map(|policy| policy.as_written()).collect();
    let undone = marker.and_then(|_| undo_known(workload, |name| to.takes_over(name), returns, &known));
    let (base, leftovers) =
        undone.map_or_else(|| (workload.body.clone(), Vec::new()), |undone| (undone.body, undone.leftovers));
    let base = workload.with_body(base);
    // A workload that has not been injected may have one.
    let base = to.as_written().without_overlays(&base).map_or(base.clone(), |body| base.with_body(body));
    // Without those that carry an earlier template, because its containers would count as the user's own.
    let marker_of = |policy: &Policy| marker::read(workload, &policy.name);
    let is_current = |policy: &Policy| marker_of(policy).is_none_or(|marker| marker.hash == policy.template_hash());
    let others = decision.matching().filter(|policy| !to.takes_over(&policy.name) && is_current(policy));
    // With the values that the workload has of them, not with those that it would get.
    let others: Vec<Cow<'_, Policy>> = others.map(|policy| policy.as_recorded(workload)).collect();
    let others = others.iter().filter_map(|policy| deliver(policy, workload, site.native_sidecars).ok());
    let matching: Vec<&Template> = others.map(|delivered| delivered.template()).chain([template]).collect();
    let patch = inject::plan(&base, &[template], &matching, Standard::of(site.minor)).map_err(Reason::from)?;
    let mut body = base.patched(&patch);
    let mut planned = template.marker(&base.with_body(body.clone())).unwrap_or_default();
    let shared = owners::others(workload, |name| to.takes_over(name));
    order::settle(workload, &mut body, template, (marker.unwrap_or(&Marker::default()), &mut planned), &shared);
    Ok(Replanned { body, template, marker: planned, leftovers, shared })
}

/// The first entry of `marker` of the policies `names` that changes from `before` to `after` and that another policy has,
/// too, and that policy.
fn lost(
    before: &Workload,
    after: &Workload,
    marker: &Marker,
    names: &[&str],
    policies: &Policies,
) -> Option<(String, String)> {
    let (at, owners) = (before.pod_pointer(), CoOwners::of(before, names, policies));
    let value = |workload: &Workload, listed: &Listed| {
        let pod = workload.pod()?;
        pod.pointer(&listed::locate(pod, &listed.tokens).ok()?).cloned()
    };
    marker.added.iter().find_map(|pointer| {
        let listed = Listed::parse(&at, pointer).filter(|listed| !matches!(listed.what, What::Parent))?;
        let other = owners.first(pointer, &listed).filter(|_| !is_joint(marker, pointer, &listed))?;
        (value(before, &listed) != value(after, &listed)).then(|| (pointer.clone(), other.to_owned()))
    })
}

/// The first entry of `marker` of the policy of `template` that is other content than `template` adds there, and that another
/// policy has, too, and that policy.
fn disputed(workload: &Workload, marker: &Marker, template: &Template, goal: Goal<'_>) -> Option<(String, String)> {
    let names: Vec<&str> = goal.to.marker_names().collect();
    let (at, owners) = (workload.pod_pointer(), CoOwners::of(workload, &names, goal.policies));
    let pod = workload.pod()?;
    marker.added.iter().find_map(|pointer| {
        let listed = Listed::parse(&at, pointer)?;
        let other = owners.first(pointer, &listed)?;
        let there = pod.pointer(&listed::locate(pod, &listed.tokens).ok()?)?;
        template.differs(&listed, there).then(|| (pointer.clone(), other.to_owned()))
    })
}

/// The other policies with a marker on a workload.
struct CoOwners<'a> {
    markers: Vec<(&'a str, HashSet<String>)>,
    /// Those in effect, whose marker is of an earlier release perhaps: it does not list what was there.
    templates: Vec<(&'a str, Cow<'a, Template>)>,
    /// The containers that policies added.
    injected: HashSet<String>,
}

impl<'a> CoOwners<'a> {
    /// Those of `workload` beside the policies `names`. `policies` are those in effect.
    fn of(workload: &'a Workload, names: &[&str], policies: &'a Policies) -> Self {
        let at = workload.pod_pointer();
        let injected = marker::containers(workload, &[]);
        let mut owners = Self { markers: Vec::new(), templates: Vec::new(), injected };
        for (policy, marker) in marker::named(workload).filter(|(policy, _)| !names.contains(policy)) {
            if let Some(known) = policies.iter().find(|known| known.name == policy) {
                owners.templates.push((policy, known.as_written().as_listed(&at, &marker)));
            }
            owners.markers.push((policy, marker.added.into_iter().collect()));
        }
        owners
    }

    /// The first that has the entry `pointer`, which is `listed`.
    fn first(&self, pointer: &str, listed: &Listed) -> Option<&'a str> {
        let lists = self.markers.iter().find(|(_, added)| added.contains(pointer)).map(|(policy, _)| *policy);
        let adds = |template: &Template| template.adds_beside(&self.injected, listed);
        lists.or_else(|| self.templates.iter().find(|(_, template)| adds(template)).map(|(policy, _)| *policy))
    }
}

/// The patch that makes `after` of `before`, and only of that version of it. Empty if they are equal.
fn guarded(before: &Value, after: &Value) -> Patch {
    let changes = json_patch::diff(before, after).0;
    if changes.is_empty() {
        return Patch::default();
    }
    let test = |field: &str| {
        let path = PointerBuf::from_tokens(["metadata", field]);
        PatchOperation::Test(TestOperation { path, value: before["metadata"][field].clone() })
    };
    Patch(["uid", "resourceVersion"].map(test).into_iter().chain(changes).collect())
}

#[cfg(test)]
mod overlay_tests;
#[cfg(test)]
mod owner_tests;
#[cfg(test)]
mod restored;
#[cfg(test)]
mod tests;
