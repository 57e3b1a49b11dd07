//! The ValidatingAdmissionPolicies that reject creates, for `failurePolicy: Fail` and for `validations`.
//!
//! An expression that fails at run time rejects only under `Fail`, which is a setting of a whole
//! ValidatingAdmissionPolicy. Hence policies with `Ignore` have a separate one, whose name ends in `-ignore`.

use super::access::Access;
use super::cel::{all, any, not, quoted};
use super::delivery::Delivery;
use super::environment::{AtHand, Environment as _, OBJECT, OLD, UPDATE, Variables};
use super::expressions;
use super::objects::{constraints, kind_name, registered};
use super::reasons::{self, Lacking};
use super::rows::{self, Rows, Term, act_on_updates, every, is_wanted};
use super::{API, Cel, Inexpressible, conflict, delivery, loss};
use crate::Unavailable;
use crate::api::code::Code;
use crate::api::v1alpha1::{Jobs, NativeSidecars};
use crate::capabilities::Capabilities;
use crate::inject::pod::Network;
use crate::naming::{IGNORING, PROBE, namespaces, refusal_of, shared_name};
use crate::outside::escaped;
use crate::policy::refused::Refused;
use crate::policy::{CompiledValidation, Policy, Site, scope};
use crate::workload::Kind;
use serde_json::{Value, json};
use std::sync::Arc;

/// The ValidatingAdmissionPolicies and their bindings for `policies` on `kind`; empty if no policy rejects. They judge
/// the result of any engine, on servers from 1.30.
///
/// # Errors
/// The part that cannot be expressed exactly, with its policy.
pub fn validating(
    kind: &Kind,
    policies: &[Arc<Policy>],
    cluster: &Capabilities,
    site: &Site,
) -> Result<Vec<Value>, Unavailable> {
    let halves: Vec<Arc<Policy>> = policies.iter().flat_map(Policy::halves).collect();
    let judges = halves.iter().map(AsRef::as_ref).filter(|policy: &&Policy| policy.judges());
    let (refusing, others): (Vec<&Policy>, Vec<&Policy>) = judges.partition(|policy| policy.refuses());
    let injecting: Vec<&Policy> = halves.iter().map(AsRef::as_ref).filter(|policy| policy.injects()).collect();
    let mut objects = Vec::new();
    for (failure_policy, name, policies) in
        [("Fail", shared_name(kind), refusing), ("Ignore", shared_name(kind) + IGNORING, others)]
    {
        if policies.is_empty() {
            continue;
        }
        let rendered = |extras| {
            let judging = Judging { kind, policies: &policies, injecting: &injecting, cluster, site, extras };
            let mut spec = judging.spec(failure_policy)?;
            if let Some(validations) = spec["validations"].as_array_mut() {
                validations.insert(0, probe(site, &name));
            }
            let actions = json!({ "validationActions": ["Deny"] });
            registered(API, "ValidatingAdmissionPolicy", &name, &policies, spec, actions)
        };
        // What is too large with them may fit without.
        let smaller = |extras| move |_| rendered(extras);
        objects.extend(rendered(Extras::ReasonsAndPast).or_else(smaller(Extras::Past)).or_else(smaller(Extras::None))?);
    }
    Ok(objects)
}

/// What a ValidatingAdmissionPolicy says besides what it must.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extras {
    /// What keeps the template out, in the message of a rejection, and which earlier contents are let through.
    ReasonsAndPast,
    /// Only the earlier contents.
    Past,
    /// Neither: a policy that was edited often takes no more room than a new one.
    None,
}

/// What a ValidatingAdmissionPolicy is made of.
struct Judging<'a> {
    kind: &'a Kind,
    policies: &'a [&'a Policy],
    /// All policies with a template for the resource.
    injecting: &'a [&'a Policy],
    cluster: &'a Capabilities,
    site: &'a Site,
    extras: Extras,
}

impl Judging<'_> {
    fn spec(&self, failure_policy: &str) -> Result<Value, Unavailable> {
        let Self { kind, policies, injecting, cluster, site, .. } = *self;
        let mut variables = Variables::default();
        let is_updating = act_on_updates(policies, kind);
        let probing = rows::is_own(site);
        let mut validations = Vec::new();
        for policy in policies {
            let own = self.validations(policy, &mut variables)?;
            validations.extend(own.into_iter().map(|mut validation| {
                let expression = validation["expression"].as_str().unwrap_or_default();
                validation["expression"] = json!(format!("{probing} || {expression}"));
                validation
            }));
        }
        let access = Access::of(kind, &mut AtHand);
        let mut guards = rows::is_ordinary(kind);
        guards.push(Term::Plain(format!("(!({probing}) || {})", rows::is_probe())));
        let mut conditions = vec![json!({ "name": "ordinary", "expression": every(guards) })];
        if is_updating {
            let expression = format!("!({UPDATE}) || ({} && !({probing}))", loss::is_alive());
            conditions.push(json!({ "name": "update", "expression": expression }));
        }
        let rows = Rows { access: &access, kind, policies: injecting, old: None };
        conditions.extend(rows::conditions(&rows, policies, site));
        let mut constraints = constraints(kind, policies, cluster);
        // A rejecting policy must not match a protected namespace, except the operator's own with its probes.
        let protected = site.protected_namespaces.iter().filter(|name| **name != site.operator_namespace);
        constraints["namespaceSelector"] = json!({ "matchExpressions": [namespaces("NotIn", protected)] });
        Ok(json!({
            "failurePolicy": failure_policy,
            "matchConstraints": constraints,
            "matchConditions": conditions,
            "variables": variables.to_value(),
            "validations": validations,
        }))
    }

    /// The validations of one policy.
    fn validations(&self, policy: &Policy, variables: &mut Variables) -> Result<Vec<Value>, Unavailable> {
        let Self { kind, policies, injecting, cluster, site, extras } = *self;
        let own = policy.kinds.iter().find(|own| ***own == *kind).map_or(kind, AsRef::as_ref);
        let access = Access::of(own, variables);
        let old = act_on_updates(policies, kind).then(|| Access::at(OLD, own, variables));
        let rows = Rows { access: &access, kind, policies: injecting, old: old.as_ref() };
        let told = format!("SidecarPolicy `{}` refuses this {}", policy.name, kind_name(kind, cluster));
        expressions::compile_on(policy, cluster).map_err(|what| what.of(policy))?;
        let judged = Judged { policy, rows: &rows, site, told, extras };
        let own = judged.validations(variables).map_err(|what| what.of(policy))?;
        if expressions::is_seen(variables) && cluster.minor != (0, 0) && !cluster.at_least(1, 33) {
            let what = "on a server below 1.33 its expressions must not look at all of `object` or `object.metadata`, nor at what \
                        only the server sets; name the fields that are meant";
            return Err(Inexpressible::new(what).of(policy));
        }
        Ok(own)
    }
}

/// The validation that rejects a probe which asks the registration `name`.
fn probe(site: &Site, name: &str) -> Value {
    let label = format!("object.metadata.?labels[?{}].orValue(\"\")", quoted(PROBE));
    let own = rows::is_own(site);
    let mut probe = validation(&not(&format!("{own} && {label} == {}", quoted(refusal_of(name)))), "refused as asked");
    probe["messageExpression"] = json!("\"refused as asked, revision \" + variables.revision");
    probe
}

fn validation(expression: &str, message: &str) -> Value {
    json!({ "expression": expression, "message": message, "reason": "Forbidden" })
}

/// The most bytes of text that say why one policy rejects. A ValidatingAdmissionPolicy with 60 such policies is no larger than the
/// server takes.
pub(super) const MAX_WHY: usize = 10_000;

/// A policy that judges.
struct Judged<'a> {
    policy: &'a Policy,
    rows: &'a Rows<'a>,
    site: &'a Site,
    /// The beginning of its messages.
    told: String,
    extras: Extras,
}

impl<'a> Judged<'a> {
    fn validations(&self, variables: &mut Variables) -> Result<Vec<Value>, Inexpressible> {
        let Self { policy, rows, .. } = *self;
        let mut validations = Vec::new();
        if policy.refuses() && policy.injects() {
            let mut terms = vec![is_wanted(rows, policy, variables)?];
            terms.extend(is_delivered(policy, rows.access, self.site));
            let wanted = variables.define("wanted", &all(&terms));
            let mut is_there = vec![not(&every(vec![rows.is_missing(policy, variables)?]))];
            // Nothing here brings an earlier content to the present one.
            if self.extras != Extras::None {
                is_there.extend(rows.carries_past(policy, variables));
            }
            // With `wanted`, because an error in it is no reason to let the workload through.
            let replacement = self.has_replacement(&[&policy.name], variables)?;
            let replacement = replacement.map(|replacement| all(&[wanted.clone(), replacement]));
            is_there.extend(replacement.clone());
            for replaced in rows.policies.iter().filter(|other| policy.replaces(&other.name)) {
                let missing = every(vec![rows.is_missing(replaced, variables)?]);
                is_there.push(all(&[wanted.clone(), every(rows.is_open(replaced, variables)), not(&missing)]));
            }
            let create = format!("!{wanted} || {}", any(&is_there));
            let lost = rows.loses_marker(policy, variables);
            let update = lost.map(|lost| {
                any(&[format!("!({lost} && {wanted})")].into_iter().chain(replacement).collect::<Vec<_>>())
            });
            let expression = rows.by_operation(policy, update, true, &create);
            let message = self.message(Code::SidecarMissing, "it would be stored without the sidecar");
            let mut missing = validation(&expression, &message);
            if self.extras == Extras::ReasonsAndPast
                && let Some(why) = self.why(&wanted, &message, variables)
            {
                missing["messageExpression"] = json!(why);
            }
            validations.push(missing);
        }
        validations.extend(self.of_pods(variables)?);
        validations.extend(self.of_demands(variables)?);
        Ok(validations)
    }

    /// The condition that another policy takes the place of the last one of `path`, at once or over others, and its content is there;
    /// none if no policy does.
    ///
    /// # Errors
    /// As in [`Rows::selects`] and [`Rows::is_missing`].
    fn has_replacement(&self, path: &[&str], variables: &mut Variables) -> Result<Option<String>, Inexpressible> {
        let is_next = |by: &&&Policy| path.last().is_some_and(|last| by.replaces(last)) && !path.contains(&&*by.name);
        let mut ways = Vec::new();
        for by in self.rows.policies.iter().filter(is_next) {
            let missing = every(vec![self.rows.is_missing(by, variables)?]);
            let further = self.has_replacement(&[path, &[&by.name]].concat(), variables)?;
            let there = any(&[not(&missing)].into_iter().chain(further).collect::<Vec<_>>());
            ways.push(all(&[is_wanted(self.rows, by, variables)?, there]));
        }
        Ok((!ways.is_empty()).then(|| variables.define("replaced", &any(&ways))))
    }

    /// What keeps the template out of a workload that is `wanted` and comes without it, as text of CEL; `message` if it is nothing
    /// in the workload. The server evaluates it for each create, so the cheap conditions come first. None if it is too long: the
    /// message is the same for all then.
    fn why(&self, wanted: &str, message: &str, variables: &mut Variables) -> Option<String> {
        if !delivery::has_words(self.policy) {
            return None;
        }
        let before = variables.clone();
        let length = |variables: &Variables| variables.iter().map(|(_, expression)| expression.len()).sum::<usize>();
        let why = self.first_reason(message, variables).ok().and_then(|first| {
            let (policy, rows) = (self.policy, self.rows);
            let unmarked = every(vec![rows.without_marker(policy, "true", variables)]);
            let is_asked = all(&[rows.by_operation(policy, None, false, "true"), wanted.to_owned(), unmarked]);
            let why = format!("{is_asked} ? {first} : {}", quoted(message));
            (why.len() + length(variables) - length(&before) <= MAX_WHY).then_some(why)
        });
        if why.is_none() {
            *variables = before;
        }
        why
    }

    /// The first reason of a workload that lacks the sidecar, else `message`.
    fn first_reason(&self, message: &str, variables: &mut Variables) -> Cel {
        let Self { policy, rows, site, .. } = *self;
        let forms =
            |policy, variables: &mut Variables| Delivery::all(policy, "true", rows.kind, site, rows.access, variables);
        let own = forms(policy, variables);
        let mut others = Vec::new();
        for other in
            rows.policies.iter().filter(|other| !policy.takes_over(&other.name) && !other.replaces(&policy.name))
        {
            let rivals = forms(other, variables).into_iter();
            let is_rival = |rival: &Delivery<'_>| own.iter().any(|own| conflict::collide(own, rival, Network::Own));
            let rivals: Vec<_> = rivals.filter(is_rival).collect();
            if rivals.is_empty() {
                continue;
            }
            let selected = is_wanted(rows, other, variables)?;
            let selected = variables.define("rival", &selected);
            let matching = |mut rival: Delivery<'a>| {
                rival.matches = all(&[selected.clone(), rival.matches]);
                rival
            };
            others.extend(rivals.into_iter().map(matching));
        }
        let claimed = rows.claimed(policy);
        let mut reasons = Vec::new();
        for delivery in &own {
            let of_form = Lacking { delivery, others: &others, claimed: &claimed }.reasons(variables)?.into_iter();
            reasons.extend(of_form.map(|reason| reason.only_where(&delivery.matches)));
        }
        Ok(reasons::first(&reasons, |code| self.message(code, ""), &quoted(message)))
    }

    fn message(&self, code: Code, why: &str) -> String {
        format!("{}: {code}: {why}", self.told)
    }

    /// The validations that refuse pods which the policy could leave out, one for each property of the pod.
    ///
    /// # Errors
    /// As in [`Rows::selects`] and [`Rows::is_missing`].
    fn of_pods(&self, variables: &mut Variables) -> Result<Vec<Value>, Inexpressible> {
        let Self { policy, rows, .. } = *self;
        let refused: Vec<Refused> = policy.refused(self.site.native_sidecars).collect();
        if refused.is_empty() {
            return Ok(Vec::new());
        }
        let mut terms = rows.is_not_opted_out(policy, variables);
        terms.extend(rows.selects(policy, variables)?.into_iter().map(Term::Plain));
        let meant = variables.define("meant", &every(terms));
        let missing = every(vec![rows.is_missing(policy, variables)?]);
        let lost = rows.loses_marker(policy, variables);
        let is_new = rows.by_operation(policy, lost, false, &missing);
        let refuse = |refused: Refused| {
            let has = rows.has(refused);
            let message = self.message(Code::PodRefused, &refused.message());
            validation(&format!("!({has} && {meant} && {is_new})"), &message)
        };
        Ok(refused.into_iter().map(refuse).collect())
    }

    /// The user's own validations.
    fn of_demands(&self, variables: &mut Variables) -> Result<Vec<Value>, Inexpressible> {
        let Self { policy, rows, .. } = *self;
        if policy.validations.is_empty() {
            return Ok(Vec::new());
        }
        let selects = all(&rows.selects(policy, variables)?);
        let selects = variables.define("selects", &selects);
        let old = rows.old.filter(|_| policy.acts_on_update(rows.kind));
        let selected = old.map(|old| {
            let selected = all(&Rows { access: old, ..*rows }.selects(policy, variables)?);
            Ok(variables.define("selected", &selected))
        });
        let selected = selected.transpose()?;
        let of_demand = |demand: &CompiledValidation| {
            let holds = expressions::define(&demand.expression, "demand", OBJECT, variables)?;
            let holds = format!("({selects} ? {holds} : true)");
            let mut validation = self.of_demand(demand, variables)?;
            let update = selected.as_ref().map(|selected| {
                let excused = self.is_excused(demand, selected, variables)?;
                Ok(format!("({holds} || {excused})"))
            });
            validation["expression"] = json!(rows.by_operation(policy, update.transpose()?, true, &holds));
            Ok(validation)
        };
        policy.validations.iter().map(of_demand).collect()
    }

    /// The validation for `demand`, without its expression.
    fn of_demand(&self, demand: &CompiledValidation, variables: &mut Variables) -> Result<Value, Inexpressible> {
        // The server accepts only one-line messages, and does not escape them.
        let message = self.message(Code::ValidationFailed, &escaped(&demand.message.trim().replace('\n', " ")));
        let mut validation = validation("", &message);
        if let Some(expression) = &demand.message_expression {
            let better = expressions::define(expression, "message", OBJECT, variables)?;
            let (fallback, beginning) = (quoted(&message), quoted(&self.message(Code::ValidationFailed, "")));
            let text =
                format!("[{better}.trim()].map(t, t == \"\" || t.contains(\"\\n\") ? {fallback} : {beginning} + t)[0]");
            validation["messageExpression"] = json!(text);
        }
        Ok(validation)
    }

    /// The condition that an update may break `demand`: nothing changes on which it depends, or the old object, which the
    /// policy has `selected`, broke it as well. `||` overrules an error on its other side.
    fn is_excused(&self, demand: &CompiledValidation, selected: &str, variables: &mut Variables) -> Cel {
        let parts = scope::parts(self.policy, demand, self.rows.kind);
        let parts: Vec<String> = parts.iter().map(|path| expressions::is_unchanged(path, OLD, variables)).collect();
        let held = expressions::define(&demand.expression, "held", OLD, variables)?;
        Ok(format!("{} || ({selected} ? !{held} : false)", all(&parts)))
    }
}

/// The condition that the pod gets the template in some form; none if every pod does.
fn is_delivered(policy: &Policy, access: &Access, site: &Site) -> Option<String> {
    let plain = policy.spec.native_sidecars == NativeSidecars::Never || policy.as_written().spec.containers.is_empty();
    if plain || site.native_sidecars {
        return None;
    }
    match (policy.spec.native_sidecars, policy.spec.jobs) {
        (NativeSidecars::Always, _) => Some("false".to_owned()),
        (_, Jobs::Inject) => None,
        (_, Jobs::Skip | Jobs::Refuse) => Some(not(&delivery::ends(access))),
    }
}
