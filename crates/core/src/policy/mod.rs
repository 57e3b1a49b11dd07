//! The decision which policy applies to which workload, and the reason.
//!
//! A [`Policy`] is a parsed `SidecarPolicy`: it is valid by construction. [`decide`] runs the ordered chain in
//! [`checks`]; the first row that answers is the reason. Everything here is pure: no client, no clock.

pub mod checks;
mod deliver;
pub mod extent;
mod keys;
mod reference;
pub(crate) mod refused;
pub(crate) mod scope;
mod site;
mod valued;
mod versioned;

use crate::api::CONTACT_KEY;
use crate::api::code::Code;
use crate::api::rules::{self, Violation};
use crate::api::v1alpha1::{FailurePolicy, Mode, RollingUpdate, SidecarPolicySpec, Target, Validation};
use crate::inject::marker::{self, Marker};
use crate::outside;
use crate::workload::{Kind, Workload};
use admission_cel::{Budget, Dialect, Gives, Variables};
use checks::Common;
pub use deliver::{Delivered, deliver};
pub use reference::PolicyRef;
use serde_json::Value;
pub use site::{PROTECTED_NAMESPACES, Site};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
pub use valued::{Given, Source};
pub use versioned::VersionedExpression;
pub(crate) use versioned::dialect;

/// A valid `SidecarPolicy`.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The policy's name.
    pub name: String,
    /// What tells its object from others of its name.
    pub meta: Meta,
    /// The spec as parsed, defaults filled in.
    pub spec: Arc<SidecarPolicySpec>,
    /// First 16 hex digits of the SHA-256 of the spec as parsed. Unlike the generation, every server has it.
    pub spec_hash: String,
    /// The initializer name under which the Initializer engine registers it.
    pub initializer_name: String,
    /// The kinds of its targets, each once, with the pod path of the target.
    pub kinds: Vec<Arc<Kind>>,
    /// `spec.matchConditions`, compiled: name and expression.
    pub conditions: Vec<(String, Arc<VersionedExpression>)>,
    /// `spec.validations`, compiled.
    pub validations: Vec<CompiledValidation>,
    /// The pace and the steps of its rollouts, with defaults for what the spec leaves out. Some if and only if it rolls.
    pub rolling: Option<Arc<RollingUpdate>>,
    namespaces: Arc<checks::NamespaceLists>,
    added: deliver::Added,
    /// What a rollout in steps makes of it.
    share: deliver::Share,
}

/// The part of an object's metadata that differs for objects of one name and spec.
#[derive(Clone, Debug)]
pub struct Meta {
    /// The UID; empty for a policy from a file.
    pub uid: String,
    /// The creation time in RFC 3339; empty for a policy from a file.
    pub created: String,
    /// The generation; 0 if missing.
    pub generation: i64,
    /// Whom users may ask, from the annotation `scpol.dev/contact`; empty if missing. Escaped, and at most 200 characters.
    pub contact: String,
}

/// The most characters of a contact.
const CONTACT: usize = 200;

/// The contact in the `metadata` of a policy.
pub fn contact(metadata: &Value) -> String {
    outside::cut(metadata["annotations"][CONTACT_KEY].as_str().unwrap_or_default().trim(), CONTACT).into_owned()
}

/// A validation, compiled.
#[derive(Clone, Debug)]
pub struct CompiledValidation {
    /// The expression that must be true.
    pub expression: Arc<VersionedExpression>,
    /// The message if it is false.
    pub message: String,
    /// An expression for the message. [`Self::message`] is the fallback.
    pub message_expression: Option<Arc<VersionedExpression>>,
}

impl CompiledValidation {
    /// The validation as it was written, if it can be compiled.
    fn compile(validation: &Validation) -> Option<Self> {
        let expression = VersionedExpression::compile(&validation.expression, Gives::Bool).ok()?;
        let message = validation.message.clone();
        Some(Self {
            message: message.unwrap_or_else(|| format!("failed expression: {}", expression.source().trim())),
            expression: Arc::new(expression),
            message_expression: validation
                .message_expression
                .as_ref()
                .and_then(|source| VersionedExpression::compile(source, Gives::String).ok())
                .map(Arc::new),
        })
    }

    /// The message for the user who creates the workload.
    pub fn told(&self, variables: &Variables<'_>, budget: &mut Budget, dialect: Dialect) -> String {
        let message = self.message_expression.as_ref().map(|message| message.on(dialect));
        let text = message.and_then(|message| message.text(variables, budget).ok());
        // Because the server uses the result only if it is one line and not blank.
        text.map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty() && !text.contains('\n'))
            .unwrap_or_else(|| self.message.clone())
    }
}

impl Policy {
    /// Parses the custom resource `object`.
    ///
    /// # Errors
    /// Every fault of the spec, each with its code and the path of its field.
    pub fn parse(object: &Value, site: &Site) -> Result<Self, Vec<Violation>> {
        let meta = &object["metadata"];
        let name = meta["name"].as_str().unwrap_or_default();
        let spec = rules::decode(&object["spec"])?;
        let violations = rules::check(name, &spec, &site.rules());
        if !violations.is_empty() {
            return Err(violations);
        }
        Ok(Self::new(meta, spec))
    }

    /// The order of priority: higher ones first, and equal ones by name.
    pub fn by_priority(&self, other: &Self) -> Ordering {
        other.spec.priority.cmp(&self.spec.priority).then_with(|| self.name.cmp(&other.name))
    }

    fn new(meta: &Value, spec: SidecarPolicySpec) -> Self {
        let text = |field: &str| meta[field].as_str().unwrap_or_default();
        let name = text("name");
        let mut kinds: Vec<Arc<Kind>> = Vec::new();
        for target in &spec.targets {
            let kind = Kind::of(&target.group, &target.resource, target.template_path.as_deref());
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Self {
            name: name.to_owned(),
            meta: Meta {
                uid: text("uid").to_owned(),
                created: text("creationTimestamp").to_owned(),
                generation: meta["generation"].as_i64().unwrap_or_default(),
                contact: contact(meta),
            },
            spec_hash: hash(&spec),
            initializer_name: spec.initializer_name.clone().unwrap_or_else(|| format!("{name}.scpol.dev")),
            kinds,
            // Drops none, because the rules have compiled each of them before.
            conditions: spec
                .match_conditions
                .iter()
                .filter_map(|condition| {
                    let expression = VersionedExpression::compile(&condition.expression, Gives::Bool).ok()?;
                    Some((condition.name.clone(), Arc::new(expression)))
                })
                .collect(),
            validations: spec.validations.iter().filter_map(CompiledValidation::compile).collect(),
            rolling: spec.rolling_update().map(Arc::new),
            namespaces: Arc::new(checks::NamespaceLists::of(&spec)),
            added: deliver::Added::of(name, &spec),
            share: deliver::Share::All,
            spec: Arc::new(spec),
        }
    }

    /// The policy's expressions, in the order of the spec.
    pub fn expressions(&self) -> impl Iterator<Item = &Arc<VersionedExpression>> {
        let conditions = self.conditions.iter().map(|(_, condition)| condition);
        let demands =
            self.validations.iter().flat_map(|demand| [Some(&demand.expression), demand.message_expression.as_ref()]);
        conditions.chain(demands.flatten())
    }

    /// True if and only if the policy is neither suspended nor in Audit mode.
    pub fn is_enforced(&self) -> bool {
        !self.spec.suspend && self.spec.mode == Mode::Enforce
    }

    /// True if and only if the policy rejects creates that cannot be injected.
    pub fn refuses(&self) -> bool {
        self.spec.failure_policy == FailurePolicy::Fail
    }

    /// True if and only if the policy may reject creates: because an injection failed, by its validations, or because it
    /// refuses some pods.
    pub fn judges(&self) -> bool {
        self.refuses() || !self.validations.is_empty() || self.refuses_pods()
    }

    /// True if and only if the policy rejects pods that it could leave out. Unlike failures, they are known without a doubt,
    /// so they are rejected also under `Ignore`.
    pub fn refuses_pods(&self) -> bool {
        self.refused(false).next().is_some()
    }

    /// True if and only if decisions may depend on the Namespace object, not only on its name: because the policy
    /// selects by it, or because a level of the Pod Security Standards would reject the template.
    pub fn reads_namespaces(&self) -> bool {
        self.selects_by_namespace() || self.is_against_a_level()
    }

    /// True if and only if every decision needs the Namespace object.
    pub fn selects_by_namespace(&self) -> bool {
        let reads = |expression: &Arc<VersionedExpression>| expression.source().contains("namespaceObject");
        self.spec.namespace_selector.is_some() || self.expressions().any(reads) || self.values_read_namespaces()
    }

    /// True if and only if it takes the place of other policies.
    pub fn takes_places(&self) -> bool {
        !self.spec.replaces.is_empty()
    }

    /// True if and only if it takes the place of the policy `name`: see `spec.replaces`.
    pub fn replaces(&self, name: &str) -> bool {
        self.spec.replaces.iter().any(|replaced| replaced == name)
    }

    /// The names of the policies whose markers are its own: its name, then those of the policies whose place it takes.
    pub fn marker_names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.spec.replaces).map(String::as_str)
    }

    /// True if and only if the marker of the policy `name` is its own: it is that policy, or takes its place.
    pub fn takes_over(&self, name: &str) -> bool {
        self.marker_names().any(|own| own == name)
    }

    /// The markers on `workload` of the policies whose place it takes.
    pub fn replaced_markers<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = (&'a str, Marker)> {
        let names = self.spec.replaces.iter().map(String::as_str);
        names.filter_map(|name| Some((name, marker::read(workload, name)?)))
    }

    /// True if and only if the policy has a template, not only validations.
    pub fn injects(&self) -> bool {
        self.spec.template.is_some()
    }

    /// The policy's targets that name `kind`, through any group that serves it.
    pub fn targets_of<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a Target> {
        self.spec.targets.iter().filter(|target| target.resource == kind.resource && kind.is_in(&target.group))
    }

    /// True if and only if the policy also acts on updates of `kind`, through some version.
    pub fn acts_on_update(&self, kind: &Kind) -> bool {
        self.targets_of(kind).any(Target::acts_on_update)
    }

    /// `workload` with its pod at the path that this policy gives. Policies may give different paths for a custom
    /// resource.
    pub fn view<'a>(&self, workload: &'a Workload) -> Cow<'a, Workload> {
        if workload.kind.is_in_table() {
            return Cow::Borrowed(workload);
        }
        match self.kinds.iter().find(|kind| **kind == workload.kind) {
            Some(kind) if kind.pod_path != workload.kind.pod_path => Cow::Owned(workload.seen_as(kind)),
            _ => Cow::Borrowed(workload),
        }
    }

    /// The paths that this policy and `other` give for the pod of `kind`, if both target it and the paths differ.
    pub fn disagreement(&self, other: &Policy, kind: &Kind) -> Option<(String, String)> {
        fn path<'a>(policy: &'a Policy, kind: &Kind) -> Option<&'a Vec<String>> {
            policy.kinds.iter().find(|own| ***own == *kind)?.pod_path.as_ref()
        }
        let (own, other) = (path(self, kind)?, path(other, kind)?);
        (own != other).then(|| (own.join("."), other.join(".")))
    }

    /// True if and only if the lists of namespaces let `namespace` through.
    pub fn covers_namespace(&self, namespace: &str) -> bool {
        self.namespaces.objection(namespace).is_none() && self.half().is_none_or(|half| half.covers(namespace))
    }
}

/// First 16 hex digits of the SHA-256 of `spec` in canonical form.
fn hash(spec: &SidecarPolicySpec) -> String {
    // A `Value` gives the canonical form, because serde_json sorts maps by key.
    let canonical = serde_json::to_value(spec).expect("a spec is JSON").to_string();
    crate::digest::short(canonical)
}

/// The verdict of a policy on one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The policy matches: no row from 0 to 7 objects.
    Inject,
    /// The policy does not apply.
    Skip(Reason),
    /// The policy cannot decide: an expression failed, or the Namespace could not be read. Never treated as "no match".
    Error(Reason),
}

/// The reason why a policy does nothing to a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The row of the precedence table that decided.
    pub row: u8,
    /// The code of the reason.
    pub code: Code,
    /// The two values that were compared.
    pub detail: String,
}

/// The verdict of `policy` on `workload`.
///
/// # Guarantees
/// Pure: the same arguments give the same verdict, on every engine and offline. The first row that says no is the
/// reason. A row that cannot decide counts only if no other row says no.
pub fn decide(policy: &Policy, workload: &Workload, site: &Site) -> Verdict {
    decide_with(&Common::of(workload, site), policy, &policy.view(workload), site)
}

/// [`decide`] with the results that are `common` to all policies; `workload` must come from [`Policy::view`].
pub fn decide_with(common: &Common, policy: &Policy, workload: &Workload, site: &Site) -> Verdict {
    if let Some(reason) = common.untouchable(policy, workload, site) {
        return Verdict::Skip(reason);
    }
    match checks::run(common.rows(), policy, workload, site) {
        // Because "not selected" is the better reason: rows 4 and 5 matter only for selected workloads.
        Verdict::Skip(reason) if REFUSALS.contains(&reason.row) => {
            Verdict::Skip(checks::unselected(policy, workload, site).unwrap_or(reason))
        }
        verdict => verdict,
    }
}

/// The rows that can skip a selected workload.
const REFUSALS: [u8; 2] = [4, 5];

/// Every valid policy at one moment.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    by_reference: Arc<HashMap<PolicyRef, Arc<Policy>>>,
    by_initializer: Arc<HashMap<String, PolicyRef>>,
    in_order: Vec<Arc<Policy>>,
    /// Those of [`Self::in_order`] that have values for one workload.
    valued: Vec<Arc<Policy>>,
    read_namespaces: bool,
}

impl Policies {
    /// The set of `policies`. If two have one initializer name, the older one keeps it; if both are equally old, the
    /// first by name.
    pub fn new(policies: impl IntoIterator<Item = Arc<Policy>>) -> Self {
        Self::after(&Self::default(), policies)
    }

    /// The set of `policies` that replaces `before`. A policy keeps the initializer name that it had in `before`.
    pub fn after(before: &Self, policies: impl IntoIterator<Item = Arc<Policy>>) -> Self {
        let by_reference: HashMap<_, _> = policies.into_iter().map(|policy| (policy.reference(), policy)).collect();
        let mut by_initializer: HashMap<String, PolicyRef> = HashMap::new();
        let claim = |policy: &Policy| {
            let holder = before.by_initializer.get(&policy.initializer_name);
            (holder != Some(&policy.reference()), policy.meta.created.clone(), policy.reference())
        };
        for (reference, policy) in &by_reference {
            let owner = by_initializer.entry(policy.initializer_name.clone()).or_insert_with(|| reference.clone());
            if claim(policy) < claim(&by_reference[owner]) {
                owner.clone_from(reference);
            }
        }
        let mut in_order: Vec<_> = by_reference.values().cloned().collect();
        in_order.sort_by(|a, b| Policy::by_priority(a, b));
        let read_namespaces = in_order.iter().any(|policy| policy.reads_namespaces());
        let (by_reference, by_initializer) = (Arc::new(by_reference), Arc::new(by_initializer));
        Self { by_reference, by_initializer, in_order, valued: Vec::new(), read_namespaces }
    }

    /// The policies with the content that `workload` gets if it is new, by priority.
    pub fn at<'a>(&'a self, workload: &'a Workload) -> impl Iterator<Item = &'a Arc<Policy>> {
        self.in_order.iter().map(move |policy| policy.at(workload))
    }

    /// That policy.
    pub fn get(&self, policy: &PolicyRef) -> Option<&Arc<Policy>> {
        let valued = self.valued.iter().find(|valued| valued.reference() == *policy);
        valued.or_else(|| self.by_reference.get(policy))
    }

    /// The policy that registers under `initializer`.
    pub fn by_initializer(&self, initializer: &str) -> Option<&Arc<Policy>> {
        self.get(self.by_initializer.get(initializer)?)
    }

    /// True if and only if [`Policy::reads_namespaces`] holds for a policy.
    pub fn read_namespaces(&self) -> bool {
        self.read_namespaces
    }

    /// The kinds that the policies target. A kind with several policies appears several times.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.in_order.iter().flat_map(|policy| &policy.kinds)
    }

    /// True if and only if [`Policy::selects_by_namespace`] holds for a policy.
    pub fn select_by_namespace(&self) -> bool {
        self.in_order.iter().any(|policy| policy.selects_by_namespace())
    }

    /// The sentence on the circle in which the policy `name` replaces others that replace it; none if it is in no circle. A policy that
    /// is suspended or in Audit mode takes no place, and closes none.
    pub fn circle(&self, name: &str) -> Option<String> {
        let (mut paths, mut seen) = (vec![vec![name]], HashSet::new());
        while let Some(path) = paths.pop() {
            let last = path.last().and_then(|last| self.get(&PolicyRef::of_cluster(last)));
            let last = last.filter(|last| last.is_enforced());
            for next in last.iter().flat_map(|policy| &policy.spec.replaces) {
                let longer: Vec<&str> = path.iter().copied().chain([next.as_str()]).collect();
                if next == name {
                    return Some(format!("must not come back to the policy: `{}`", longer.join("` replaces `")));
                }
                if seen.insert(next) {
                    paths.push(longer);
                }
            }
        }
        None
    }

    /// All policies, by descending priority, then by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.in_order.iter()
    }
}

#[cfg(test)]
mod tests;
