//! The values that a workload gives the parameters of a policy: [`Policies::valued`]. All else sees policies with their values.
//!
//! A stored workload that carries the content of the policy, as its marker says, keeps the values of the marker: an annotation that is
//! edited later makes it outdated, and changes nothing in it. A new workload that comes with the content, as a copy does, gets the values
//! of its own sources in place of those of the marker.
//!
//! Users can write markers. So on a create, and for what an update adds to a marker, a value of the marker counts only if the content is
//! there with it and the value is within the bounds. Besides, one of these must hold:
//! - The author of the workload may choose the value, or its sources give it.
//! - It is a number: other admission changes what expressions read.
//! - A controller has made the workload from a template with the content: its own labels and name may give another value.

use super::{Policies, Policy, Reason, Site, VersionedExpression, checks};
use crate::api::code::Code;
use crate::api::similar;
use crate::api::v1alpha1::Parameter as Declared;
use crate::inject::marker::Marker;
use crate::inject::overlay::{self, Changes, Overlay};
use crate::inject::tables::{CONTAINERS, INIT_CONTAINERS};
use crate::inject::{Presence, Values, marker, undo_anywhere_with};
use crate::outside::{cut, shown};
use crate::parameters::{Laid, Parameter};
use crate::workload::{Kind, MAKERS, MAKERS_ONCE, Workload};
use admission_cel::{Budget, Failure, Gives};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

/// Where the value of a parameter comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The template: nothing else gives one.
    Template,
    /// An overlay: the path of the place.
    Overlay(String),
    /// An annotation of the pod template, or of the pod.
    OfPod(String),
    /// An annotation of the workload.
    OfWorkload(String),
    /// An annotation or a label of the Namespace: the noun and the key.
    OfNamespace(&'static str, String),
    /// The expression of the parameter.
    Expression,
    /// The marker: the workload was injected with it.
    Recorded,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template => write!(f, "the template"),
            Self::Overlay(path) => write!(f, "`{path}` of the workload"),
            Self::OfPod(key) => write!(f, "annotation `{key}` of the pod"),
            Self::OfWorkload(key) => write!(f, "annotation `{key}`"),
            Self::OfNamespace(noun, key) => write!(f, "{noun} `{key}` of the Namespace"),
            Self::Expression => write!(f, "`expression`"),
            Self::Recorded => write!(f, "the injection"),
        }
    }
}

/// The value of a parameter in a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The name of the parameter.
    pub name: String,
    /// The value, or what is wrong with what the source gives. None: what stands in the template.
    pub value: Result<Option<String>, String>,
    /// Where it comes from.
    pub source: Source,
    /// What the sources give now, if the workload was injected with another value: a value, none for what stands in the template, or what is
    /// wrong with it.
    pub outdated_by: Option<Result<Option<String>, String>>,
}

/// What a policy adds to a workload by its values.
#[derive(Clone, Debug, Default)]
pub(super) struct Valuation {
    given: Vec<Given>,
    /// Why it cannot be injected.
    refused: Option<Reason>,
}

/// The compiled expressions of parameters, by their index.
pub(super) fn expressions(declared: &[Declared]) -> Arc<[Option<VersionedExpression>]> {
    let compile =
        |parameter: &Declared| VersionedExpression::compile(parameter.expression.as_ref()?, Gives::Value).ok();
    declared.iter().map(compile).collect()
}

impl Policies {
    /// The policies with the values that `workload` gives their parameters, and with the content that it gets if it is new. `old` is the
    /// object before an update.
    pub fn valued(&self, workload: &Workload, old: Option<&Workload>, site: &Site) -> Cow<'_, Self> {
        let is_of_kind = |kind: &Arc<Kind>| kind.resource == workload.kind.resource;
        let is_near = |policy: &Policy| {
            policy.kinds.iter().any(is_of_kind) && policy.covers_namespace(workload.namespace())
                || policy.is_claimed(workload)
        };
        let needs = |policy: &Arc<Policy>| policy.may_have_parameters() && is_near(policy);
        if !self.in_order.iter().any(needs) {
            return Cow::Borrowed(self);
        }
        let (applied, workload, old) = (workload, &*self.settled(workload), old.map(|old| self.settled(old)));
        let bare = Bare::of(workload, self.at(workload).map(AsRef::as_ref));
        let old_bare = old.as_ref().map(|old| (&**old, Bare::of(old, self.at(old).map(AsRef::as_ref))));
        let old = old_bare.as_ref().map(|(old, bare)| (*old, bare));
        let sides = Sides { applied, workload, bare: &bare, old, is_new: old.is_none() };
        let mut policies = self.clone();
        for policy in policies.in_order.iter_mut().filter(|policy| needs(policy)) {
            *policy = Arc::new(policy.at(workload).valued(sides, site));
            policies.valued.push(policy.clone());
        }
        Cow::Owned(policies)
    }

    /// `workload` as if its author had not changed overridable values in what it carries: see [`Policy::settled`].
    fn settled<'a>(&self, workload: &'a Workload) -> Cow<'a, Workload> {
        let mut settled = Cow::Borrowed(workload);
        for policy in self.at(workload) {
            let of_policy = match policy.settled(&policy.view(&settled), Changes::All) {
                Cow::Owned(of_policy) => Some(workload.with_body(of_policy.body)),
                Cow::Borrowed(_) => None,
            };
            settled = of_policy.map_or(settled, Cow::Owned);
        }
        settled
    }
}

/// `workload` without what `policies` have added in a known form, as expressions see it; none if it has nothing of them. A marker takes away
/// only what its policy adds: otherwise it could hide content of the user's. The marker of a template does not say where its content is in
/// a pod, so such a pod loses the containers of the policy alone.
fn without_policies<'a>(workload: &Workload, policies: impl Iterator<Item = &'a Policy>) -> Option<Workload> {
    if workload.kind.is_in_table() && !marker::is_marked(workload) {
        return None;
    }
    let (mut narrowed, mut names, mut containers) = (workload.clone(), Vec::new(), HashSet::new());
    let policies: Vec<&Policy> = policies.collect();
    let has = |overlay: &Overlay| policies.iter().any(|policy| policy.as_written().has_overlay(overlay));
    for policy in &policies {
        let view = policy.view(&narrowed);
        let Some(marker) = policy.marker(&view) else { continue };
        let present = Some(policy.as_written()).filter(|present| present.hash == marker.hash);
        let past = || policy.past().map(|past| &past.template).find(|past| past.hash == marker.hash);
        let Some(template) = present.or_else(past) else { continue };
        if marker::is_of_template(&view, &marker) {
            let listed = marker.added.iter().filter_map(|pointer| marker::container(pointer));
            containers.extend(listed.filter(|name| template.names_container(name)));
        } else if let Some(body) = template.narrowed(&view, &marker) {
            narrowed = narrowed.with_body(body);
        }
        names.push(policy.name.clone());
    }
    let mut bare = undo_anywhere_with(&narrowed, &names, has).filter(|_| !names.is_empty())?.body;
    for list in [CONTAINERS, INIT_CONTAINERS].iter().filter(|_| !containers.is_empty()) {
        let list = format!("{}/spec/{list}", workload.pod_pointer());
        if let Some(items) = bare.pointer_mut(&list).and_then(Value::as_array_mut) {
            items.retain(|item| !item["name"].as_str().is_some_and(|name| containers.contains(name)));
        }
    }
    Some(workload.with_body(bare))
}

/// A workload as expressions see it: without what policies have added, and without overlays.
struct Bare<'a> {
    workload: Cow<'a, Workload>,
    /// The overlays, by the name of the policy.
    overlays: BTreeMap<String, Vec<Overlay>>,
}

impl<'a> Bare<'a> {
    /// `workload` without the content and the overlays of `policies`.
    fn of<'p>(workload: &'a Workload, policies: impl Iterator<Item = &'p Policy>) -> Self {
        let policies: Vec<&Policy> = policies.collect();
        let bare = without_policies(workload, policies.iter().copied()).map_or(Cow::Borrowed(workload), Cow::Owned);
        let mut overlays = BTreeMap::new();
        for policy in policies.iter().filter(|policy| policy.as_written().is_overridable()) {
            let found = policy.as_written().overlays(&policy.view(&bare));
            if !found.is_empty() {
                overlays.insert(policy.name.clone(), found);
            }
        }
        let without = |bare: Cow<'a, Workload>, policy: &Policy| match overlays.get(&policy.name) {
            Some(overlays) => Cow::Owned(workload.with_body(overlay::without(&policy.view(&bare), overlays))),
            None => bare,
        };
        let bare = policies.into_iter().fold(bare, without);
        Self { workload: bare, overlays }
    }

    /// The overlays of `policy`.
    fn overlays(&self, policy: &Policy) -> &[Overlay] {
        self.overlays.get(&policy.name).map_or(&[], Vec::as_slice)
    }

    /// What they give the parameter `at` of `policy`.
    fn laid(&self, policy: &Policy, at: usize, parameter: &Parameter) -> Option<Laid> {
        let mut all = self.overlays(policy).iter().filter_map(|overlay| overlay.values.get(at)?.clone());
        let first = all.next()?;
        Some(all.fold(first, |first, other| first.and(&other, parameter)))
    }
}

/// Whether `workload` is one that a controller has made from a template with the content that `marker` lists: a pod, or the Job of a CronJob.
/// Users can write that, too.
fn is_made(workload: &Workload, marker: &Marker) -> bool {
    let maker = workload.controller_among(&MAKERS).or_else(|| workload.controller_among(&MAKERS_ONCE));
    maker.is_some() && marker::is_of_template(workload, marker)
}

/// A workload that is judged.
#[derive(Clone, Copy)]
struct Sides<'a> {
    /// As it is.
    applied: &'a Workload,
    /// Without the changes that its author has made to values.
    workload: &'a Workload,
    bare: &'a Bare<'a>,
    /// Before an update: the same two.
    old: Option<(&'a Workload, &'a Bare<'a>)>,
    /// Whether it is created now, and has not been injected.
    is_new: bool,
}

impl Policy {
    /// Whether its content has parameters.
    pub fn has_parameters(&self) -> bool {
        self.as_written().parameters().next().is_some()
    }

    /// Whether the content that it gives some workload has parameters.
    pub fn may_have_parameters(&self) -> bool {
        self.has_parameters() || self.earlier().is_some_and(|earlier| earlier.has_parameters())
    }

    /// Its parameters, each with its expression.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = (&Parameter, Option<&VersionedExpression>)> {
        self.as_written().parameters().zip(self.added.expressions.iter().map(Option::as_ref))
    }

    /// The values of its parameters in the workload that it was valued for; empty for a policy as it is stored.
    pub fn given(&self) -> &[Given] {
        self.added.valuation.as_ref().map_or(&[], |valuation| &valuation.given)
    }

    /// The values with which the workload that it was valued for was injected, where its sources give others now, as a sentence. Variables and
    /// arguments of containers are not shown: who reads this may not read the workload.
    pub fn outdated_values(&self) -> Option<String> {
        let other = self.as_written().parameters().zip(self.given()).filter_map(|(parameter, given)| {
            let (is, now) = (given.value.as_ref().ok()?, given.outdated_by.as_ref()?);
            let name = &given.name;
            Some(match now {
                _ if parameter.is_private() => format!("`{name}` has another value now"),
                Ok(now) => format!("`{name}` is {}, now {}", told_value(parameter, is), told_value(parameter, now)),
                Err(wrong) => format!("`{name}` is {}, and now {wrong}", told_value(parameter, is)),
            })
        });
        let mut other: Vec<String> = other.take(MOST_TOLD + 1).collect();
        if other.len() > MOST_TOLD {
            other[MOST_TOLD] = "…".to_owned();
        }
        (!other.is_empty()).then(|| format!("other values when it is made again: {}", other.join(", ")))
    }

    /// The annotations of `workload` that no parameter has and that are meant for one, each with a sentence: those under the policy's own
    /// prefix, and those that are nearly the key of a parameter.
    pub fn misspelt(&self, workload: &Workload) -> Vec<String> {
        if !self.has_parameters() {
            return Vec::new();
        }
        let keys: Vec<&str> = self.as_written().parameters().filter_map(|it| it.annotation.as_deref()).collect();
        let own = format!("{}.scpol.dev/", self.name);
        let on = |body: &Value| {
            body["metadata"]["annotations"].as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
        };
        let mut there: BTreeSet<String> = on(&workload.body);
        there.extend(workload.pod().map(on).into_iter().flatten());
        let domain = |key: &str| key.split_once('/').map(|(domain, _)| domain.to_owned());
        let domains: BTreeSet<Option<String>> = keys.iter().map(|key| domain(key)).collect();
        let is_near = |key: &&String| key.starts_with(&own) || key.contains('/') && domains.contains(&domain(key));
        let there = there
            .iter()
            .filter(|key| !keys.contains(&key.as_str()))
            .filter(is_near)
            .filter(|key| key.len() <= LONGEST_KEY)
            .take(MOST_COMPARED);
        let sentence = |key: &String| {
            let begins = || format!("no parameter has the annotation `{}`", shown(key));
            let name = |key: &str| key.rsplit('/').next().map(str::to_owned).unwrap_or_default();
            let of_domain: Vec<&str> = keys.iter().copied().filter(|of| domain(of) == domain(key)).collect();
            let names: Vec<String> = of_domain.iter().map(|key| name(key)).collect();
            let meant = similar(&name(key), names.iter().map(String::as_str));
            match meant.and_then(|meant| of_domain.iter().find(|key| key.ends_with(&format!("/{meant}")))) {
                Some(meant) => Some(format!("{}; did you mean `{meant}`?", begins())),
                None => key.starts_with(&own).then(|| format!("{}: {}", begins(), listed_keys(&keys))),
            }
        };
        there.filter_map(sentence).take(MOST_TOLD).collect()
    }

    /// Why a value keeps it out of the workload that it was valued for.
    pub(crate) fn refused_value(&self) -> Option<&Reason> {
        self.added.valuation.as_ref()?.refused.as_ref()
    }

    /// Whether decisions need the Namespace object for the values.
    pub(super) fn values_read_namespaces(&self) -> bool {
        let reads = |expression: &VersionedExpression| expression.source().contains("namespaceObject");
        self.as_written().parameters().any(|parameter| parameter.from_namespace)
            || self.added.expressions.iter().flatten().any(reads)
            || self.earlier().is_some_and(|earlier| earlier.values_read_namespaces())
    }

    /// The policy with the values that its marker on `workload` records. Users can write it.
    pub fn as_recorded(&self, workload: &Workload) -> Cow<'_, Self> {
        match self.marker(workload).filter(|marker| self.has_parameters() && marker.hash == self.template_hash()) {
            None => Cow::Borrowed(self),
            Some(marker) => Cow::Owned(self.with_values(&self.as_written().recorded(&marker, Parameter::may_be))),
        }
    }

    /// The policy with the values of `workload`, which has been injected: by this create, or before. Expressions see `workload` without
    /// the content of this policy, and of `all`.
    pub fn valued_for(&self, workload: &Workload, all: &Policies, site: &Site) -> Cow<'_, Self> {
        if !self.has_parameters() {
            return Cow::Borrowed(self);
        }
        let (applied, workload) = (workload, &*all.settled(workload));
        let others = all.at(workload).map(AsRef::as_ref).filter(|other: &&Self| other.name != self.name);
        let bare = Bare::of(workload, std::iter::once(self).chain(others));
        let sides = Sides { applied, workload, bare: &bare, old: None, is_new: false };
        Cow::Owned(self.valued(sides, site))
    }

    fn valued(&self, sides: Sides<'_>, site: &Site) -> Self {
        if !self.has_parameters() {
            return self.clone();
        }
        let wanted = self.wanted(sides.bare, site);
        let overlays = sides.bare.overlays(self);
        if let Some(kept) = self.kept(sides, &wanted, site) {
            return kept.with_overlays(overlays);
        }
        let before = sides.old.and_then(|old| self.before(old, &wanted, site)).unwrap_or_default();
        let given: Vec<Given> = wanted
            .into_iter()
            .enumerate()
            .map(|(at, given)| match before.get(at) {
                Some(Some(value)) => Given { value: Ok(value.clone()), source: Source::Recorded, ..given },
                _ => given,
            })
            .collect();
        self.with_given(given, overlays, site)
    }

    /// The policy with the values of the marker on the workload, if the content is there with them and each may be.
    fn kept(&self, sides: Sides<'_>, wanted: &[Given], site: &Site) -> Option<Self> {
        let (workload, written) = (&*self.view(sides.workload), self.as_written());
        let marker = self.current_marker(workload)?;
        if sides.old.is_some() && self.has_applied(sides.applied) {
            return None;
        }
        let before = sides.old.and_then(|(old, _)| self.current_marker(&self.view(old)));
        let is_stored = sides.old.is_none() && workload.is_stored();
        let was_there =
            |name: &str| is_stored || before.as_ref().is_some_and(|it| it.value(name) == marker.value(name));
        let is_made = is_made(workload, &marker);
        let is_given = |at: usize| wanted[at].value.as_ref() == Ok(&marker.value(&wanted[at].name));
        let is_allowed = |(at, parameter): (usize, &Parameter)| {
            let is_fit = || match marker.value(&parameter.name) {
                Some(value) => parameter.judge(&value).is_ok(),
                None => !parameter.is_required(),
            };
            was_there(&parameter.name) || is_given(at) || (is_made || parameter.may_be_forged()) && is_fit()
        };
        if !written.parameters().enumerate().all(is_allowed) {
            return None;
        }
        let kept = self.with_values(&written.recorded(&marker, Parameter::may_be));
        let is_known = written.parameters().all(|parameter| was_there(&parameter.name));
        if kept.presence_beside(workload, []) != Presence::Whole || !is_known && kept.fault_of_values(site).is_some() {
            return None;
        }
        // Content that was copied gets the values of its new place.
        let is_new = sides.is_new && !is_known && !is_made && !(0..wanted.len()).all(is_given);
        if is_new && self.carries_values(workload, &marker) {
            return None;
        }
        // Other admission changes what expressions read in pods. A workload that a controller has made lacks the sources of its owner.
        let is_loose = |wanted: &Given| is_made || workload.kind.is_pod() && wanted.source == Source::Expression;
        let values = written.parameters().zip(kept.as_written().values());
        let given =
            values.zip(wanted).map(|((parameter, value), wanted)| recorded(parameter, value, wanted, is_loose(wanted)));
        let valuation = Valuation { given: given.collect(), refused: None };
        Some(kept.with_valuation(valuation))
    }

    /// For an update of `old`, which is `bare` without the content of policies, the values that stay, by the index of the parameter: those of its marker whose sources have not changed.
    fn before(
        &self,
        (old, bare): (&Workload, &Bare<'_>),
        wanted: &[Given],
        site: &Site,
    ) -> Option<Vec<Option<Option<String>>>> {
        let marker = self.current_marker(&self.view(old))?;
        let sources = self.wanted(bare, site);
        let values = self.as_written().recorded(&marker, |parameter, value| parameter.judge(value).is_ok());
        let stays = |(at, value): (usize, Option<String>)| {
            let (then, now) = (&sources[at], &wanted[at]);
            let is_same = then.source == now.source && (then.source == Source::Expression || then.value == now.value);
            // One that is not within its bounds any more is asked for anew.
            let is_lost = value.is_none() && marker.value(&now.name).is_some();
            (is_same && !is_lost).then_some(value)
        };
        Some(values.into_iter().enumerate().map(stays).collect())
    }

    /// Its marker, if it has the current hash.
    fn current_marker(&self, workload: &Workload) -> Option<Marker> {
        self.as_written().marker(workload).filter(|marker| marker.hash == self.template_hash())
    }

    /// What the sources give for `workload`, which has no content of policies.
    fn wanted(&self, bare: &Bare<'_>, site: &Site) -> Vec<Given> {
        let (mut budget, workload) = (Budget::validations(), &*self.view(&bare.workload));
        let parameters = self.as_written().parameters().zip(self.added.expressions.iter());
        let given = parameters.enumerate().map(|(at, (parameter, expression))| {
            let found = match bare.laid(self, at, parameter) {
                Some(Laid { path, text: Ok(text) }) => Ok((Source::Overlay(path), Some(text))),
                Some(Laid { path, text: Err(wrong) }) => Err((Source::Overlay(path), wrong)),
                None => self.source(parameter, expression.as_ref(), workload, (site, &mut budget)),
            };
            let (source, text) = match found {
                Ok((source, text)) => (source, Ok(text)),
                Err((source, wrong)) => (source, Err(wrong)),
            };
            let value = text.and_then(|text| match text {
                Some(text) => parameter.judge(&text).map(Some),
                None if parameter.is_required() => Err(format!("a value is needed: {}", parameter.allowed())),
                None => Ok(None),
            });
            Given { name: parameter.name.clone(), value, source, outdated_by: None }
        });
        given.collect()
    }

    /// The nearest source of `parameter`, and its text.
    ///
    /// # Errors
    /// The source that cannot be read, and why.
    fn source(
        &self,
        parameter: &Parameter,
        expression: Option<&VersionedExpression>,
        workload: &Workload,
        (site, budget): (&Site, &mut Budget),
    ) -> Result<(Source, Option<String>), (Source, String)> {
        let unread = || format!("needs the Namespace `{}`{UNREAD}", workload.namespace());
        if let Some(key) = &parameter.annotation {
            if let Some(text) = workload.pod_annotation(key) {
                return Ok((Source::OfPod(key.clone()), Some(text.to_owned())));
            }
            if let Some(text) = workload.annotation(key) {
                return Ok((Source::OfWorkload(key.clone()), Some(text.to_owned())));
            }
            for (noun, map) in
                [("annotation", "annotations"), ("label", "labels")].into_iter().filter(|_| parameter.from_namespace)
            {
                let source = Source::OfNamespace(noun, key.clone());
                let Some(namespace) = &workload.namespace_object else { return Err((source, unread())) };
                if let Some(text) = namespace["metadata"][map].get(key).and_then(Value::as_str) {
                    return Ok((source, Some(text.to_owned())));
                }
            }
        }
        let Some(expression) = expression else { return Ok((Source::Template, None)) };
        if workload.namespace_object.is_none() && expression.source().contains("namespaceObject") {
            return Err((Source::Expression, unread()));
        }
        let variables = checks::variables(workload);
        let variables = admission_cel::Variables { template: workload.pod_seen_by_expressions(), ..variables };
        match expression.on(site.dialect()).value(&variables, budget) {
            Ok(text) => Ok((Source::Expression, Some(text))),
            Err(failure) if parameter.is_private() && !is_plain(&failure, expression) => {
                Err((Source::Expression, "failed; the reason is not shown, because it may have a value".to_owned()))
            }
            Err(failure) => Err((Source::Expression, format!("failed: {failure}"))),
        }
    }

    /// The policy with the values of `given`, or with the first that is wrong.
    fn with_given(&self, given: Vec<Given>, overlays: &[Overlay], site: &Site) -> Self {
        let reason = |detail: String| {
            let code = if detail.ends_with(UNREAD) { Code::NamespaceUnreadable } else { Code::ParameterRefused };
            Reason { row: 8, code, detail }
        };
        let wrong = given.iter().find_map(|given| Some(reason(told(given, given.value.as_ref().err()?))));
        if let Some(refused) = wrong {
            return self.clone().with_valuation(Valuation { given, refused: Some(refused) });
        }
        let values: Values = given.iter().filter_map(|given| given.value.clone().ok()).collect();
        let policy = self.with_values(&values).with_overlays(overlays);
        let refused = policy.fault_of_values(site).map(reason);
        policy.with_valuation(Valuation { given, refused })
    }

    fn with_valuation(mut self, valuation: Valuation) -> Self {
        self.added.valuation = Some(Arc::new(valuation));
        self
    }
}

/// The longest key of annotations: a prefix of 253 characters, a slash, and a name of 63. Servers check keys after admission.
const LONGEST_KEY: usize = 317;
/// The end of the sentence on a value that needs an unknown Namespace.
const UNREAD: &str = ", which could not be read";
/// The beginning of the failure of an expression that asks for a key which is not there.
const NO_KEY: &str = "no such key: ";
/// The most characters of a value in a message. A report of a namespace has 500 messages, and escapes take nine bytes.
const MOST_SHOWN: usize = 64;
/// The most misspelt annotations, or outdated values, in an answer: users can write any number.
const MOST_TOLD: usize = 4;
/// The most annotations of the domains of parameters that are compared with their keys.
const MOST_COMPARED: usize = 64;

/// The `keys` that the author of a workload may set, for a sentence.
fn listed_keys(keys: &[&str]) -> String {
    match keys {
        [] => "its author sets none".to_owned(),
        keys => format!("its author sets {}", keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")),
    }
}

fn told_value(parameter: &Parameter, value: &Option<String>) -> String {
    let value = value.as_deref().or(parameter.default());
    value.map_or_else(|| "the template's".to_owned(), |value| format!("`{}`", cut(value, MOST_SHOWN)))
}

/// What a workload has that was injected with `value`, where its sources give what is `wanted`. `is_loose`: another value of theirs does not
/// count.
fn recorded(parameter: &Parameter, value: &Option<String>, wanted: &Given, is_loose: bool) -> Given {
    let is_other = |now: &Option<String>| !parameter.is_same(value.as_deref(), now.as_deref());
    let outdated_by = match &wanted.value {
        Ok(now) if now == value => return wanted.clone(),
        _ if is_loose => None,
        Ok(now) => is_other(now).then(|| Ok(now.clone())),
        Err(wrong) if wrong.ends_with(UNREAD) => None,
        Err(wrong) => Some(Err(wrong.clone())),
    };
    Given { name: wanted.name.clone(), value: Ok(value.clone()), source: Source::Recorded, outdated_by }
}

/// Whether a failure of `expression` has nothing of the workload: its message is always the same, or names a key of the expression.
fn is_plain(failure: &Failure, expression: &VersionedExpression) -> bool {
    match failure {
        Failure::CostExceeded | Failure::Error(Cow::Borrowed(_)) => true,
        Failure::Error(message) => message.strip_prefix(NO_KEY).is_some_and(|key| expression.source().contains(key)),
    }
}

/// The sentence that the value of a parameter is `wrong`.
fn told(given: &Given, wrong: &str) -> String {
    let name = shown(&given.name);
    match &given.source {
        Source::Template | Source::Recorded => format!("parameter `{name}`: {wrong}"),
        source => format!("parameter `{name}`, from {source}: {wrong}"),
    }
}

#[cfg(test)]
mod tests;
