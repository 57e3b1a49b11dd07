//! What a workload gets of a policy. Only this file picks it: which content ([`Policy::at`]), and in which form ([`deliver`]).
//!
//! While a rollout goes in steps, new workloads that a step has reached get the latest content of the policy, all others that of the
//! last complete rollout. Selection and everything else is that of the policy as it is stored.

use super::extent::{Extent, Place};
use super::valued::{self, Valuation};
use super::{Policy, Reason, Site, VersionedExpression, hash};
use crate::api::code::Code;
use crate::api::pod_schema::{self, is_native_sidecar};
use crate::api::rules::Violation;
use crate::api::v1alpha1::{self, Jobs, NativeSidecars, SidecarPolicySpec};
use crate::content::{Content, Revision};
use crate::inject::marker::{MAX_LENGTH, Marker};
use crate::inject::overlay::{self, Changes, Overlay};
use crate::inject::presence::{Forms, presence, presence_of_items};
use crate::inject::{self, Conflict, Edit, Loss, Presence, Template, Values};
use crate::parameters::Parameter;
use crate::workload::{Kind, Workload};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What a policy adds.
#[derive(Clone, Debug)]
pub(super) struct Added {
    form: Arc<Form>,
    /// The hash of its [`Content`]; none without a template.
    revision: Option<Arc<str>>,
    /// The known contents of the policy, the latest first: by them, what a workload carries of an earlier one is recognized.
    past: Arc<[Arc<Revision>]>,
    /// The expressions of its parameters.
    pub(super) expressions: Arc<[Option<VersionedExpression>]>,
    /// Where the values come from, if it has those of one workload.
    pub(super) valuation: Option<Arc<Valuation>>,
    /// Forms with other values that were made before.
    made: Arc<Mutex<HashMap<Values, Arc<Form>>>>,
}

/// A template, with the values of its parameters.
#[derive(Debug)]
struct Form {
    /// The template as it is written.
    written: Template,
    /// The same with its containers as native sidecars, made when it is first needed.
    native: OnceLock<Template>,
    /// What is wrong with the template by its values.
    fault: OnceLock<Option<String>>,
}

impl Form {
    fn of(written: Template) -> Self {
        Self { written, native: OnceLock::new(), fault: OnceLock::new() }
    }
}

/// The most forms with values that are kept of one policy: each is as large as its template, and users choose the values.
const MOST_FORMS: usize = 16;
/// The most bytes that the values of a policy take in a marker: a quarter of the longest marker.
const MOST_VALUES: usize = MAX_LENGTH / 4;

impl Added {
    /// What the policy `name` with that `spec` adds.
    pub(super) fn of(name: &str, spec: &SidecarPolicySpec) -> Self {
        let content = Content::of(spec);
        let revision = content.as_ref().map(|content| Arc::from(content.hash()));
        let written = content.unwrap_or_default().template_of(name);
        Self {
            form: Arc::new(Form::of(written)),
            revision,
            past: Arc::default(),
            expressions: valued::expressions(&spec.parameters),
            valuation: None,
            made: Arc::default(),
        }
    }
}

/// The most earlier contents that an engine in the API server compares with. Each takes as much CEL as the present one.
const MOST_ADMITTED: usize = 4;

/// The workloads that get the content of a policy.
#[derive(Clone, Debug)]
pub(super) enum Share {
    /// All that it matches.
    All,
    /// Those of the extent. All others get the content of `earlier`, the same policy with other content.
    Split { earlier: Arc<Policy>, extent: Arc<Extent> },
    /// Those of one content of a split policy.
    Half(Half),
}

/// The workloads of one content.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    /// The workloads that have the latest content.
    pub(crate) extent: Arc<Extent>,
    /// Whether this is the latest content: for them, and not for all others.
    pub(crate) is_latest: bool,
}

impl Half {
    /// Whether workloads in `namespace` may have this content.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        match self.extent.namespaces.contains(namespace) {
            is_whole if is_whole == self.is_latest => true,
            is_whole => !is_whole && self.extent.is_by_workload(),
        }
    }
}

/// The template of a policy as one workload gets it.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a>(&'a Template);

impl<'a> Delivered<'a> {
    /// What is injected.
    pub fn template(&self) -> &'a Template {
        self.0
    }
}

/// What `workload` gets of `policy`, which is that of [`Policy::at`]. `native_sidecars`: whether the server has native sidecars.
///
/// # Errors
/// The reason if it cannot be delivered.
pub fn deliver<'a>(policy: &'a Policy, workload: &Workload, native_sidecars: bool) -> Result<Delivered<'a>, Reason> {
    if let Some(refused) = policy.refused(native_sidecars).find(|refused| refused.is_in(workload)) {
        return Err(refused.reason());
    }
    let form = policy.form(workload.ends(), native_sidecars)?;
    // At last, because a pod that is refused or left out needs no values.
    policy.refused_value().map_or(Ok(Delivered(form)), |reason| Err(reason.clone()))
}

/// Which content.
impl Policy {
    /// The policy while new workloads of the `extent` get its content, and all others that of `earlier`, the same policy with other
    /// content.
    #[must_use]
    pub fn split(mut self, earlier: Arc<Policy>, extent: Extent) -> Self {
        // Whatever identifies a policy by the hash of its spec sees a change with each step.
        self.spec_hash = crate::digest::short(format!("{} {} {}", self.spec_hash, earlier.spec_hash, extent.key()));
        self.share = Share::Split { earlier, extent: Arc::new(extent) };
        self
    }

    /// The policy with the content that `workload` gets if it is new.
    pub fn at<'a>(self: &'a Arc<Self>, workload: &Workload) -> &'a Arc<Self> {
        self.where_in(|extent| extent.has(workload))
    }

    /// The policy with the content that a new workload of that `namespace` and `place` gets.
    pub fn at_place<'a>(self: &'a Arc<Self>, namespace: &str, place: &Place) -> &'a Arc<Self> {
        self.where_in(|extent| extent.has_place(namespace, place))
    }

    fn where_in(self: &Arc<Self>, is_in: impl FnOnce(&Extent) -> bool) -> &Arc<Self> {
        match &self.share {
            Share::Split { earlier, extent } if !is_in(extent) => earlier,
            _ => self,
        }
    }

    /// The policy with its earlier content; none if all workloads get the latest.
    pub fn earlier(&self) -> Option<&Arc<Self>> {
        if let Share::Split { earlier, .. } = &self.share { Some(earlier) } else { None }
    }

    /// The workloads that get the latest content if they are new; none if all do.
    pub fn extent(&self) -> Option<&Extent> {
        if let Share::Split { extent, .. } = &self.share { Some(extent) } else { None }
    }

    /// The policy as policies without a split, each for its own workloads. The names are the same, and none matches where another
    /// one does.
    pub fn halves(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let Share::Split { earlier, extent } = &self.share else { return vec![self.clone()] };
        let half = |policy: &Policy, is_latest| {
            let share = Share::Half(Half { extent: extent.clone(), is_latest });
            Arc::new(Policy { share, ..policy.clone() })
        };
        vec![half(self, true), half(earlier, false)]
    }

    /// The workloads of its content, if it is one half of a split policy.
    pub(crate) fn half(&self) -> Option<&Half> {
        if let Share::Half(half) = &self.share { Some(half) } else { None }
    }

    /// The same policy with another `content` for all: it selects the same workloads, and adds what `content` says.
    #[must_use]
    pub fn with_content(&self, content: &Content) -> Self {
        let Content { template, position, native_sidecars, jobs, parameters } = content.clone();
        let template = Some(template);
        let stored = SidecarPolicySpec::clone(&self.spec);
        let spec = SidecarPolicySpec { template, position, native_sidecars, jobs, parameters, ..stored };
        let added = Added { past: self.added.past.clone(), ..Added::of(&self.name, &spec) };
        let spec_hash = hash(&spec);
        Self { spec_hash, added, share: Share::All, spec: Arc::new(spec), ..self.clone() }
    }

    /// The same policy with `values` of its parameters, for one workload.
    pub(super) fn with_values(&self, values: &[Option<String>]) -> Self {
        let made = || self.added.made.lock().unwrap_or_else(PoisonError::into_inner);
        let known = made().get(values).cloned();
        let form = known.unwrap_or_else(|| {
            let form = Arc::new(Form::of(self.as_written().with_values(values).into_owned()));
            let mut made = made();
            if made.len() >= MOST_FORMS {
                made.clear();
            }
            made.entry(values.to_vec()).or_insert(form).clone()
        });
        Self { share: Share::All, added: Added { form, ..self.added.clone() }, ..self.clone() }
    }

    /// The same policy, whose marker records that the workload had `overlays`.
    pub(super) fn with_overlays(self, overlays: &[Overlay]) -> Self {
        if overlays.is_empty() {
            return self;
        }
        let form = Arc::new(Form::of(self.as_written().with_overlays(overlays)));
        Self { added: Added { form, ..self.added }, ..self }
    }

    /// The same policy with a stand-in for each value of its parameters; none if it has no parameters. See [`Template::with_stand_ins`].
    ///
    /// # Errors
    /// The path of a place that an engine which computes values itself cannot serve.
    pub(crate) fn with_stand_ins(&self, longest: usize) -> Result<Option<Self>, String> {
        let template = self.as_written().with_stand_ins(longest)?;
        let form = template.map(|template| Arc::new(Form::of(template)));
        Ok(form.map(|form| Self { added: Added { form, ..self.added.clone() }, ..self.clone() }))
    }

    /// What is wrong with the template by its values: a fault that it does not have as it is written, such as a request above its limit,
    /// or an image that the `site` does not allow. It shows no value of a private parameter.
    pub(crate) fn fault_of_values(&self, site: &Site) -> Option<String> {
        let form = &self.added.form;
        let fault = form.fault.get_or_init(|| {
            if form.written.length_of_values() > MOST_VALUES {
                return Some(format!(
                    "its values have more than {} KiB together: write shorter ones",
                    MOST_VALUES >> 10
                ));
            }
            let faults = |template: &v1alpha1::Template| pod_schema::in_template(&json!(template), None);
            let found = faults(&form.written.spec);
            if found.is_empty() {
                return None;
            }
            let before = faults(self.spec.template.as_ref()?);
            let before: Vec<_> = before.iter().map(Violation::without_indexes).collect();
            let fault = found.into_iter().find(|fault| !before.contains(&fault.without_indexes()))?;
            // One that is the same without the private values does not show them.
            let is_open = form.written.without_private_values().is_none_or(|open| {
                faults(&open.spec).iter().any(|other| other.without_indexes() == fault.without_indexes())
            });
            Some(match is_open {
                true => format!("its values make `{}` invalid: {}", fault.field, fault.message),
                false => {
                    format!("its values make `{}` invalid; {} not shown", fault.field, form.written.told_private())
                }
            })
        });
        fault.clone().or_else(|| self.foreign_image(site))
    }

    /// The first image that is none which the `site` allows, if its values give images.
    fn foreign_image(&self, site: &Site) -> Option<String> {
        let written = self.as_written();
        let mut free = written.parameters().filter(|parameter| parameter.needs_trust()).peekable();
        free.peek()?;
        let (field, why) = site.trust.foreign_images_of(&written.spec).into_iter().next()?;
        Some(match free.any(Parameter::is_private) {
            true => {
                let allowed = site.trust.listed_images();
                format!("its values make `{field}` invalid; it is none of {allowed}, and the value is not shown")
            }
            false => format!("its values make `{field}` invalid: {why}"),
        })
    }

    /// The same policy, which recognizes the contents of `past` in workloads. They come with the latest first.
    #[must_use]
    pub fn knowing(mut self, past: Arc<[Arc<Revision>]>) -> Self {
        self.added.past = past;
        self
    }

    /// The earlier contents that an engine in the API server lets through under `Fail`: it cannot bring them to the present one.
    pub(crate) fn admitted_past(&self) -> impl Iterator<Item = &Revision> {
        self.past().filter(|_| self.refuses()).take(MOST_ADMITTED)
    }

    /// What its registrations depend on: the hash of its spec, and those of `admitted_past`.
    pub fn registered_form(&self) -> String {
        self.admitted_past().fold(self.spec_hash.clone(), |form, past| form + " " + &past.hash)
    }

    /// Whether it recognizes just the contents of `past`.
    pub fn recognizes(&self, past: &[Arc<Revision>]) -> bool {
        self.added.past.iter().map(|past| &past.hash).eq(past.iter().map(|past| &past.hash))
    }

    /// The contents that it recognizes in workloads, besides its own. The latest comes first.
    pub fn past(&self) -> impl Iterator<Item = &Revision> {
        self.added.past.iter().map(AsRef::as_ref).filter(|past| past.template.hash != self.added.form.written.hash)
    }

    /// The hash of its content; none without a template.
    pub fn revision(&self) -> Option<&str> {
        self.added.revision.as_deref()
    }

    /// [`Self::revision`], or an empty text, to keep.
    pub fn shared_revision(&self) -> Arc<str> {
        self.added.revision.clone().unwrap_or_default()
    }
}

/// In which form.
impl Policy {
    /// The template as it is written. No workload gets it because of that: see [`deliver`].
    pub fn as_written(&self) -> &Template {
        &self.added.form.written
    }

    /// The template for pods that end by themselves or not: a plain container would keep a pod from ending.
    ///
    /// # Errors
    /// The reason if it cannot be delivered.
    pub(crate) fn form(&self, ends: bool, native_sidecars: bool) -> Result<&Template, Reason> {
        let written = &self.added.form.written;
        let is_wanted = match self.spec.native_sidecars {
            NativeSidecars::Never => false,
            NativeSidecars::Always => true,
            NativeSidecars::ForJobs => ends,
        };
        if !is_wanted || written.spec.containers.is_empty() {
            return Ok(written);
        }
        let missing = |code, detail: &str| Err(Reason { row: 8, code, detail: detail.to_owned() });
        match (native_sidecars, self.spec.native_sidecars, self.spec.jobs) {
            (true, ..) => Ok(self.added.form.native.get_or_init(|| written.with_native_sidecars())),
            (false, NativeSidecars::Always, _) => {
                missing(Code::NativeSidecarsUnavailable, "`spec.nativeSidecars: Always` needs Kubernetes 1.29 or later")
            }
            (false, _, Jobs::Inject) => Ok(written),
            // `Refuse` has been decided before.
            (false, _, Jobs::Skip | Jobs::Refuse) => missing(
                Code::JobSkipped,
                "the pod ends by itself, which a plain sidecar would prevent; native sidecars need Kubernetes 1.29 or later",
            ),
        }
    }

    /// The forms in which its containers may be in workloads of `kind`. A pod may have been injected by a server with other
    /// abilities.
    pub(crate) fn forms(&self, kind: &Kind) -> Forms {
        match self.spec.native_sidecars {
            NativeSidecars::Never => Forms { plain: true, native: false },
            NativeSidecars::Always => Forms { plain: false, native: true },
            NativeSidecars::ForJobs => Forms { plain: true, native: !kind.runs_for_ever() },
        }
    }

    /// True if and only if the policy cannot be served without native sidecars.
    pub fn needs_native_sidecars(&self) -> bool {
        let template = &self.added.form.written.spec;
        let always = self.spec.native_sidecars == NativeSidecars::Always && !template.containers.is_empty();
        always || template.init_containers.iter().any(is_native_sidecar)
    }

    /// Whether a level of the Pod Security Standards would reject a template of the policy.
    pub(super) fn is_against_a_level(&self) -> bool {
        self.added.form.written.is_against_a_level()
            || self.earlier().is_some_and(|earlier| earlier.is_against_a_level())
    }

    /// Whether the templates of both contradict each other.
    pub fn collides_with(&self, other: &Self) -> bool {
        !inject::collisions(&[&self.added.form.written, &other.added.form.written]).is_empty()
    }
}

/// What a workload has of it.
impl Policy {
    /// The hash of the template, as in markers. The revision has more than the template.
    pub fn template_hash(&self) -> &str {
        &self.added.form.written.hash
    }

    /// The key of its marker, an annotation.
    pub fn marker_key(&self) -> &str {
        &self.added.form.written.marker_key
    }

    /// The policy's marker on `workload`; none if missing or unreadable.
    pub fn marker(&self, workload: &Workload) -> Option<Marker> {
        self.added.form.written.marker(&self.view(workload))
    }

    /// Whether `workload` has the policy's marker with the current hash. Users can write it: see [`Self::presence_beside`].
    pub fn is_claimed(&self, workload: &Workload) -> bool {
        self.added.form.written.is_claimed(&self.view(workload))
    }

    /// The same, with the values of its parameters, and as it was injected.
    pub(crate) fn is_recorded(&self, workload: &Workload) -> bool {
        let differs = || self.marker(workload).is_some_and(|marker| self.as_written().differs_in_values(&marker));
        self.is_claimed(workload) && !(self.has_parameters() && (differs() || self.has_applied(workload)))
    }

    /// How much of the policy's content `workload` has, where `others` match, too: containers that they name are not the
    /// user's own.
    pub fn presence_beside<'a>(
        &self,
        workload: &Workload,
        others: impl IntoIterator<Item = &'a Arc<Policy>>,
    ) -> Presence {
        let others: Vec<&Template> = others.into_iter().map(|other| other.as_written()).collect();
        let view = self.view(workload);
        let settled = self.settled(&view, Changes::Values);
        presence(&settled, &self.added.form.written, self.forms(&workload.kind), &others)
    }

    /// The same without additions to the user's containers, which depend on the other policies.
    pub fn presence_of_items(&self, workload: &Workload) -> Presence {
        presence_of_items(&self.view(workload), &self.added.form.written, self.forms(&workload.kind))
    }

    /// `workload` as if its author had not made these `changes` to the content that it carries: the marker has other values, as an overlay.
    pub(crate) fn settled<'a>(&self, workload: &'a Workload, changes: Changes) -> Cow<'a, Workload> {
        let known = || [self.as_written()].into_iter().chain(self.past().map(|past| &past.template));
        if !known().any(Template::is_overridable) {
            return Cow::Borrowed(workload);
        }
        overlay::settled(workload, self.marker_key(), known(), changes)
    }

    /// Whether `workload` has exactly the present content, but that its author has applied other values.
    pub(crate) fn has_applied(&self, workload: &Workload) -> bool {
        let view = self.view(workload);
        let settled = self.settled(&view, Changes::All);
        let is_exact = || self.marker(&settled).is_some_and(|marker| self.carries_values(&settled, &marker));
        matches!(settled, Cow::Owned(_)) && is_exact()
    }

    /// Whether the policy has been injected into `workload`: the marker has the current hash, and all content is there.
    pub fn is_injected(&self, workload: &Workload) -> bool {
        self.is_injected_beside(workload, [])
    }

    /// The same where `others` match, too: row 6 of a decision by all policies.
    pub fn is_injected_beside<'a>(
        &self,
        workload: &Workload,
        others: impl IntoIterator<Item = &'a Arc<Policy>>,
    ) -> bool {
        self.is_claimed(workload) && self.presence_beside(workload, others) == Presence::Whole
    }

    /// Whether `workload` has, under the policy's marker, exactly what an earlier content of it added, or the present one with other values.
    /// `workload` is a [`Self::view`].
    pub(crate) fn carries_past(&self, workload: &Workload) -> bool {
        let settled = self.settled(workload, Changes::All);
        let is_settled = matches!(settled, Cow::Owned(_));
        let Some(marker) = self.added.form.written.marker(&settled) else { return false };
        let at = workload.pod_pointer();
        let mut of_marker = self.past().filter(|past| past.template.hash == marker.hash);
        of_marker.any(|past| inject::edits::is_exact(&settled, &past.template.as_listed(&at, &marker), &marker))
            || self.carries_other_values(&settled, &marker)
            || is_settled && !workload.is_stored() && self.carries_values(&settled, &marker)
    }

    /// Whether `workload` has exactly the present content with other values, which `marker` records: it was copied, or its sources have
    /// changed before it was made anew.
    fn carries_other_values(&self, workload: &Workload, marker: &Marker) -> bool {
        self.has_parameters() && self.as_written().differs_in_values(marker) && self.carries_values(workload, marker)
    }

    /// Whether `workload` has exactly the present content with the values that `marker` records.
    pub(super) fn carries_values(&self, workload: &Workload, marker: &Marker) -> bool {
        let written = self.as_written();
        marker.hash == written.hash
            && inject::edits::is_exact(workload, &written.as_listed(&workload.pod_pointer(), marker), marker)
    }

    /// The same for an earlier content or the present one.
    pub(crate) fn carries_known(&self, workload: &Workload) -> bool {
        let workload = &*self.settled(workload, Changes::All);
        let is_present = |marker: Marker| self.carries_values(workload, &marker);
        self.added.form.written.marker(workload).is_some_and(is_present) || self.carries_past(workload)
    }

    /// How `workload` differs from what the content that its marker names added to it. Empty without a marker, or if that content
    /// is unknown.
    pub fn edits(&self, workload: &Workload) -> Vec<Edit> {
        let view = self.view(workload);
        let (workload, written) = (&*self.settled(&view, Changes::Values), &self.added.form.written);
        let Some(marker) = written.marker(workload) else { return Vec::new() };
        let past = || self.past().map(|past| &past.template).find(|past| past.hash == marker.hash);
        let Some(added) = Some(written).filter(|own| own.hash == marker.hash).or_else(past) else { return Vec::new() };
        inject::edits::edits(workload, &added.as_listed(&workload.pod_pointer(), &marker), &marker)
    }

    /// What an update of `old` to `new` takes away of the policy's additions; see [`inject::loss`]. The markers of the policies whose
    /// place it takes count as its own: the last of all of them.
    pub fn loss(&self, old: &Workload, new: &Workload) -> Option<Loss> {
        let (old, new) = (&*self.view(old), &*self.view(new));
        let own = inject::loss(&self.added.form.written, old, new);
        if self.spec.replaces.is_empty() || own == Some(Loss::Content) {
            return own;
        }
        let has_any = |workload| self.marker(workload).is_some() || self.replaced_markers(workload).next().is_some();
        (has_any(old) && !has_any(new)).then_some(Loss::Marker)
    }

    /// The body of `workload` with the policy's marker narrowed to what the policy adds; none if that is all it lists.
    pub(crate) fn narrowed(&self, workload: &Workload) -> Option<Value> {
        let (view, template) = (self.view(workload), &self.added.form.written);
        template.narrowed(&view, &template.marker(&view)?)
    }
}

impl From<Conflict> for Reason {
    fn from(conflict: Conflict) -> Self {
        Reason { row: 8, code: conflict.code, detail: conflict.message }
    }
}
