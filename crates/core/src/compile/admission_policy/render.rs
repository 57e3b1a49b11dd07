//! The objects that are registered for one resource.

use super::access::Access;
use super::additions::{Additions, Fitting};
use super::cel::{all, any, not, quoted};
use super::delivery::Delivery;
use super::needs::{self, Part};
use super::rows::{self, Rows, Term, every};
use super::validating::validating;
use super::variables::Variables;
use super::{API, Inexpressible, MAX_EXPRESSION, MAX_OBJECT, conflict, expressions, fresh, own};
use crate::Unavailable;
use crate::capabilities::Capabilities;
use crate::inject::pod::Network;
use crate::naming::{self, PROBE};
use crate::policy::{Policy, Site};
use crate::workload::Kind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many policies of one resource may have conditions of their own: as many as a number that JSON keeps has bits.
const MAX_NOTES: usize = 52;

/// Everything that the API server needs so that `policies`, all enforced ones that target `kind`, in priority order, take effect
/// on it: the whole set, never a delta.
///
/// # Errors
/// What cannot be expressed exactly, and in which policy.
pub fn render(
    kind: &Kind,
    policies: &[Arc<Policy>],
    cluster: &Capabilities,
    site: &Site,
) -> Result<Vec<Value>, Unavailable> {
    let injecting: Vec<&Policy> = policies.iter().map(AsRef::as_ref).filter(|policy| policy.injects()).collect();
    let mut objects = Vec::new();
    if !injecting.is_empty() {
        let spec = mutating(kind, &injecting, cluster, site)?;
        let policy = registered("MutatingAdmissionPolicy", &naming::shared_name(kind), &injecting, spec);
        fits(&policy, injecting[0])?;
        objects.push(policy);
        objects.push(binding("MutatingAdmissionPolicyBinding", &naming::shared_name(kind), &injecting, json!({})));
    }
    objects.extend(validating(kind, policies, cluster, site)?);
    Ok(objects)
}

/// The spec of the MutatingAdmissionPolicy.
fn mutating(kind: &Kind, policies: &[&Policy], cluster: &Capabilities, site: &Site) -> Result<Value, Unavailable> {
    agree_on_the_pod(kind, policies)?;
    let mut variables = Variables::default();
    let access = Access::of(kind_of(kind, policies), &mut variables);
    let rows = Rows { access: &access, kind };
    let (mut matches, mut notes) = (Vec::new(), Vec::new());
    // What is asked once, before all else.
    let mut first = rows::is_ordinary(kind);
    for policy in policies {
        expressions::mean_the_same(policy, cluster).map_err(|what| what.of(policy))?;
        let terms = does_match(&rows, policy, &mut variables).map_err(|what| what.of(policy))?;
        if policies.len() == 1 {
            first.extend(terms);
            matches.push("true".to_owned());
            continue;
        }
        let expression = every(terms);
        if policy.conditions.is_empty() {
            matches.push(variables.define("matches", &expression));
            continue;
        }
        // An error of one must not take the others with it.
        let bit = note(policy, notes.len()).map_err(|what| what.of(policy))?;
        notes.push(noted(&expression, bit, site));
        matches.push(format!("({NOTED} / {bit} % 2 == 1)"));
    }
    let inject = inject(&matches, policies, kind, site, &access, &mut variables)?;
    let inject = format!("{} ? {} : ({} ? {inject} : [])", rows::is_protected(site), answer(site), every(first));
    let takes_notes = !notes.is_empty();
    let mutations = notes.into_iter().chain([inject]).chain(takes_notes.then(forgotten));
    let patch = |expression| json!({ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } });
    Ok(json!({
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        // Protected namespaces are out by the expressions: the server parses a selector anew for each object.
        "matchConstraints": constraints(kind, policies, cluster),
        // Also where there are none: what somebody adds by hand is to be seen.
        "matchConditions": rows::conditions(&rows, policies, site),
        "variables": variables.to_value(),
        "mutations": mutations.map(patch).collect::<Vec<_>>(),
    }))
}

/// `kind` with its pod where `policies` take it to lie.
fn kind_of<'a>(kind: &'a Kind, policies: &[&'a Policy]) -> &'a Kind {
    policies.iter().flat_map(|policy| &policy.kinds).find(|own| ***own == *kind).map_or(kind, AsRef::as_ref)
}

/// Policies that take the pod of a custom resource to lie in different places.
fn agree_on_the_pod(kind: &Kind, policies: &[&Policy]) -> Result<(), Unavailable> {
    let [first, others @ ..] = policies else { return Ok(()) };
    let differ = others.iter().find_map(|other| Some((other, first.disagreement(other, kind)?)));
    differ.map_or(Ok(()), |(other, (own, theirs))| {
        let what = format!(
            "the pod template of `{}` lies at `{theirs}` for it, at `{own}` for SidecarPolicy `{}`; use one `templatePath`",
            kind.resource, first.name
        );
        Err(Inexpressible::new(what).of(other))
    })
}

/// Rows 4 to 7.
fn does_match(rows: &Rows<'_>, policy: &Policy, variables: &mut Variables) -> Result<Vec<Term>, Inexpressible> {
    let mut terms = rows.is_open(policy, variables);
    terms.push(rows.is_unmarked(policy, variables));
    terms.extend(rows.selects(policy, variables)?.into_iter().map(Term::Plain));
    Ok(terms)
}

// Notes

/// What has been noted so far.
const NOTED: &str = "object.metadata.?deletionGracePeriodSeconds.orValue(0)";

/// The bit for the policy that is the `index`th with conditions of its own.
fn note(policy: &Policy, index: usize) -> Result<u64, Inexpressible> {
    if let Some((name, _)) = policy.conditions.iter().find(|(_, condition)| expressions::sees_notes(condition)) {
        return Err(Inexpressible::new(format!(
            "beside other policies, its condition `{name}` must not look at all of the metadata, nor at `{}` of it; name the \
             fields that are meant",
            expressions::NOTES
        )));
    }
    if index >= MAX_NOTES {
        return Err(Inexpressible::new(format!("{MAX_NOTES} policies on the resource have `matchConditions` already")));
    }
    Ok(1 << index)
}

/// Notes `bit` where `expression` is true.
fn noted(expression: &str, bit: u64, site: &Site) -> String {
    let is_meant = all(&[not(&rows::is_protected(site)), expression.to_owned()]);
    let path = format!("/metadata/{}", expressions::NOTES);
    format!("{is_meant} ? [JSONPatch{{op: \"add\", path: \"{path}\", value: {NOTED} + {bit}}}] : []")
}

/// Takes the notes away, whatever has become of them.
fn forgotten() -> String {
    let field = expressions::NOTES;
    let remove = format!("[JSONPatch{{op: \"remove\", path: \"/metadata/{field}\"}}]");
    format!("has(object.metadata.{field}) ? {remove} : []")
}

// Injection

/// The operations that inject whatever is to be injected.
fn inject(
    matches: &[String],
    policies: &[&Policy],
    kind: &Kind,
    site: &Site,
    access: &Access,
    variables: &mut Variables,
) -> Result<String, Unavailable> {
    let deliveries: Vec<Delivery<'_>> = policies
        .iter()
        .zip(matches)
        .flat_map(|(policy, matches)| Delivery::all(policy, matches, kind, site, access, variables))
        .collect();
    let templates = fitting(deliveries, access, variables)?;
    // Whose it is cannot be told: each literal is one of some template's.
    let blame = |what: Inexpressible| what.of(policies[0]);
    if policies.len() == 1 {
        return one_of(templates, access, variables).map_err(blame);
    }
    let someone = any(&templates.iter().map(|template| template.fits.clone()).collect::<Vec<_>>());
    let someone = all(&[someone, together(&templates, access, variables)]);
    let operations = Additions { templates: &templates, access }.operations(variables).map_err(blame)?;
    Ok(format!("({someone} ? {operations} : [])"))
}

/// The operations of the first of `templates` that fits. At most one does: they are forms of one policy's.
fn one_of(templates: Vec<Fitting<'_>>, access: &Access, variables: &mut Variables) -> Result<String, Inexpressible> {
    let mut chosen = String::new();
    for template in templates {
        let condition = template.fits.clone();
        let template = [Fitting { fits: "true".to_owned(), ..template }];
        if let Some((condition, operations)) = fresh::operations(&template, access, variables)? {
            chosen.push_str(&format!("{condition} ? {operations} : "));
        }
        let operations = Additions { templates: &template, access }.operations(variables)?;
        chosen.push_str(&format!("{condition} ? {operations} : "));
    }
    Ok(format!("({chosen}[])"))
}

/// What a probe gets, and nothing else in a protected namespace.
fn answer(site: &Site) -> String {
    let (annotation, is_probe) = (PROBE.replace('/', "~1"), all(&[rows::is_own(site), rows::is_probe()]));
    format!(
        "(!({is_probe}) ? [] : [?(has(object.metadata.annotations) ? optional.none() : optional.of(JSONPatch{{op: \"add\", path: \
         \"/metadata/annotations\", value: {{}}}})), JSONPatch{{op: \"add\", path: \"/metadata/annotations/{annotation}\", \
         value: variables.revision}}])"
    )
}

/// Each delivery with the condition under which it is injected: it matches, nobody who matches contradicts it, and nothing
/// in the workload is in its way.
fn fitting<'a>(
    deliveries: Vec<Delivery<'a>>,
    access: &Access,
    variables: &mut Variables,
) -> Result<Vec<Fitting<'a>>, Unavailable> {
    let owns: Vec<_> = deliveries.iter().map(|delivery| own::of(delivery, &deliveries, access, variables)).collect();
    let mut survive = Vec::new();
    for (delivery, own) in deliveries.iter().zip(&owns) {
        let mut terms = vec![delivery.matches.clone()];
        let rivals = deliveries.iter().filter(|other| conflict::collide(delivery, other, Network::Own));
        terms.extend(rivals.map(|other| not(&other.matches)));
        let fits = conflict::fits(delivery, access, own.as_ref(), variables);
        terms.push(fits.map_err(|what| what.of(delivery.policy))?);
        let survives = all(&terms);
        // With one policy it is asked once.
        let is_alone = deliveries.iter().all(|other| other.policy.name == delivery.policy.name);
        survive.push(if is_alone { survives } else { variables.define("survives", &survives) });
    }
    let templates = deliveries.into_iter().zip(survive).zip(owns);
    Ok(templates.map(|((delivery, fits), own)| Fitting { delivery, fits, own }).collect())
}

/// That nothing stands against all of `templates` that fit together. What only shows then keeps them all out: on the network of the
/// host, where every port of a container is one of the host, two want one port; or the pod is too small for all.
fn together(templates: &[Fitting<'_>], access: &Access, variables: &mut Variables) -> String {
    let mut pairs = Vec::new();
    for (at, one) in templates.iter().enumerate() {
        for other in &templates[at + 1..] {
            let are_for_it = one.delivery.is_for_host_network() && other.delivery.is_for_host_network();
            if are_for_it && conflict::collide(&one.delivery, &other.delivery, Network::Host) {
                pairs.push(format!("({} && {})", one.fits, other.fits));
            }
        }
    }
    let parts = templates.iter().map(|template| Part { delivery: &template.delivery, is_in: template.fits.clone() });
    let mut terms = needs::met_together(&parts.collect::<Vec<_>>(), access, variables);
    if !pairs.is_empty() {
        terms.push(not(&format!("{} && {}", access.is_on_host_network(), any(&pairs))));
    }
    variables.short("together", all(&terms))
}

// Objects

/// Which requests are matched, in whatever namespace: creates through any version that one of `policies` names.
pub(super) fn constraints(kind: &Kind, policies: &[&Policy], cluster: &Capabilities) -> Value {
    let targets: Vec<_> = policies.iter().flat_map(|policy| policy.targets_of(kind)).collect();
    let is_any = targets.iter().any(|target| target.version == "*");
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    if is_any {
        let served = cluster.groups(kind);
        let groups = if served.is_empty() { vec![kind.group.as_str()] } else { served };
        versions.extend(groups.into_iter().map(|group| (group, BTreeSet::from(["*"]))));
    } else {
        for target in targets {
            versions.entry(&target.group).or_default().insert(&target.version);
        }
    }
    let rule = |(group, versions): (&str, BTreeSet<&str>)| {
        json!({
            "apiGroups": [group], "apiVersions": versions, "operations": ["CREATE"], "resources": [kind.resource], "scope": "Namespaced",
        })
    };
    // A version that is named means objects that are posted through it, and no conversion of others.
    let policy = if is_any { "Equivalent" } else { "Exact" };
    json!({
        "matchPolicy": policy,
        "objectSelector": {},
        "excludeResourceRules": [],
        "namespaceSelector": {},
        "resourceRules": versions.into_iter().map(rule).collect::<Vec<_>>(),
    })
}

/// A policy of the API server with `spec`, and a variable `revision` before the others.
pub(super) fn registered(kind: &str, name: &str, policies: &[&Policy], mut spec: Value) -> Value {
    let revision = crate::digest::short(spec.to_string());
    if let Some(variables) = spec["variables"].as_array_mut() {
        variables.insert(0, json!({ "name": "revision", "expression": quoted(&revision) }));
    }
    let mut object = bare(kind, name, policies);
    object["metadata"]["annotations"] = json!({ REVISION: revision });
    object["spec"] = spec;
    object
}

/// The annotation of a generated object that tells its revision.
const REVISION: &str = "scpol.dev/revision";

/// The revision of a generated MutatingAdmissionPolicy or ValidatingAdmissionPolicy: 16 hex digits that change with its spec.
/// It is what a probe gets for an answer.
pub fn revision_of(object: &Value) -> Option<String> {
    Some(object["metadata"]["annotations"].get(REVISION)?.as_str()?.to_owned())
}

/// Puts the policy `name` in force everywhere; `spec` has what the kind of binding wants beside.
pub(super) fn binding(kind: &str, name: &str, policies: &[&Policy], mut spec: Value) -> Value {
    spec["policyName"] = json!(name);
    let mut object = bare(kind, name, policies);
    object["spec"] = spec;
    object
}

fn bare(kind: &str, name: &str, policies: &[&Policy]) -> Value {
    json!({ "apiVersion": API, "kind": kind, "metadata": naming::metadata(name, policies) })
}

/// That the server takes `object`, of which `policy` is the first, as far as its size goes.
pub(super) fn fits(object: &Value, policy: &Policy) -> Result<(), Unavailable> {
    let longest = longest(object);
    let size = object.to_string().len();
    if longest <= MAX_EXPRESSION && size <= MAX_OBJECT {
        return Ok(());
    }
    let what = format!(
        "with the others on the resource it makes {size} bytes, and an expression of {longest} characters, of at most {MAX_OBJECT} \
         and {MAX_EXPRESSION}; make templates smaller"
    );
    Err(Inexpressible::new(what).of(policy))
}

/// The length of the longest text in `value`, in characters.
fn longest(value: &Value) -> usize {
    match value {
        Value::String(text) => text.chars().count(),
        Value::Array(items) => items.iter().map(longest).max().unwrap_or(0),
        Value::Object(fields) => fields.values().map(longest).max().unwrap_or(0),
        _ => 0,
    }
}

/// The name of the kind in a sentence.
pub(super) fn kind_name(kind: &Kind, cluster: &Capabilities) -> String {
    let served = || cluster.resource(kind).map(|resource| resource.kind);
    kind.kind.clone().or_else(served).unwrap_or_else(|| kind.resource.clone())
}
