//! Why a workload lacks the sidecar, as a ValidatingAdmissionPolicy says it: each condition of [`super::conflict`] that is
//! false, with its code and the place in the workload. It has no values of the workload, because they may be secret.
//!
//! The expressions run on servers from 1.30, whose lists lack the functions that other parts need. So three reasons have no
//! words here: resources of the pod, the size of annotations, and the level of the Namespace.

use super::Inexpressible;
use super::cel::{all, not, quoted};
use super::conflict::{self, collide};
use super::delivery::Delivery;
use super::environment::{Environment as _, Variables};
use super::equal::{Comparison, Repeated};
use super::keys::has_key;
use super::leaf::Leaf;
use super::needs;
use super::presence::Claimed;
use crate::api::code::Code;
use crate::api::v1alpha1::RawObject;
use crate::inject::conflict::article;
use crate::inject::needs::{Need, Want};
use crate::inject::pod::Network;
use crate::inject::tables::{Fields, INNER, LISTS, List, MAPS, Scope};

/// A reason, and when it holds.
pub(super) struct Reason {
    /// The condition that it holds.
    pub(super) holds: String,
    pub(super) code: Code,
    /// The place and what is wrong there: a text of CEL.
    pub(super) text: String,
}

impl Reason {
    fn new(holds: String, code: Code, text: &str) -> Self {
        Self { holds, code, text: quoted(text) }
    }

    /// The same where `condition` holds.
    pub(super) fn only_where(self, condition: &str) -> Self {
        Self { holds: all(&[condition.to_owned(), self.holds]), ..self }
    }
}

/// A policy whose sidecar a workload may lack.
pub(super) struct Lacking<'a> {
    /// The template in the form that the pod gets.
    pub(super) delivery: &'a Delivery<'a>,
    /// The other policies with a template for the resource, each with the condition that it selects the workload.
    pub(super) others: &'a [Delivery<'a>],
    pub(super) claimed: &'a Claimed<'a>,
}

impl Lacking<'_> {
    /// The reasons, in the order in which injection looks for them.
    ///
    /// # Errors
    /// If the template cannot be compared in CEL.
    pub(super) fn reasons(&self, variables: &mut Variables) -> Result<Vec<Reason>, Inexpressible> {
        let (access, needs) = (self.claimed.access, &self.delivery.template.needs().list);
        let mut reasons = self.rivals();
        let (of_jobs, needs): (Vec<_>, Vec<_>) =
            needs.iter().partition(|need| matches!(need.want, Want::NotOfJobs { .. }));
        let mut unmet = |needs: Vec<&Need>| -> Vec<Reason> {
            let reason =
                |need: &Need| Reason::new(not(&needs::want(&need.want, access, variables)), need.code, &words(need));
            needs.into_iter().map(reason).collect()
        };
        let (of_jobs, needs) = (unmet(of_jobs), unmet(needs));
        reasons.extend(of_jobs);
        for list in &LISTS {
            for item in (list.items)(&self.delivery.template.spec) {
                reasons.extend(self.name(list, item, variables)?);
            }
        }
        reasons.extend(self.entries(variables)?);
        reasons.extend(self.inner(variables)?);
        if let Some(free) = conflict::host_ports(self.delivery, access) {
            reasons.push(Reason::new(
                not(&free),
                Code::NameConflict,
                "a host port of the template is used by another container",
            ));
        }
        for (name, is_there) in conflict::volumes(self.delivery, access, variables) {
            let text = format!("the template mounts volume `{name}`, which neither the template nor the workload has");
            reasons.push(Reason::new(not(&is_there), Code::VolumeMissing, &text));
        }
        reasons.extend(needs);
        Ok(reasons)
    }

    /// The policies that keep this one out.
    fn rivals(&self) -> Vec<Reason> {
        let own = self.delivery.policy;
        let rivals = self.others.iter().filter(|other| {
            other.policy.spec.priority >= own.spec.priority && collide(self.delivery, other, Network::Own)
        });
        let reason = |other: &Delivery<'_>| {
            let (name, priority) = (&other.policy.name, other.policy.spec.priority);
            let (code, text) = match priority > own.spec.priority {
                true => {
                    (Code::Outranked, format!("gives way to SidecarPolicy `{name}`, which has the priority {priority}"))
                }
                false => (Code::PolicyConflict, format!("collides with SidecarPolicy `{name}`")),
            };
            Reason::new(other.matches.clone(), code, &text)
        };
        rivals.map(reason).collect()
    }

    /// Why the name of `item` is not free.
    fn name(
        &self,
        list: &'static List,
        item: &RawObject,
        variables: &mut Variables,
    ) -> Result<Vec<Reason>, Inexpressible> {
        let (access, name) = (self.claimed.access, list.key_of(item));
        let mut reasons = Vec::new();
        let mut add = |holds: String, text: String| reasons.push(Reason::new(holds, Code::NameConflict, &text));
        if list.scope == Scope::Volumes
            && let Some(claims) = access.claims(variables)
        {
            let text = format!("{} `{name}` exists as a volume claim template", list.noun);
            add(format!("{} in {claims}", quoted(name)), text);
        }
        for other in list.scope().filter(|other| !other.is(list)) {
            let text = format!("{} `{name}` exists, the template has {} of that name", other.noun, article(list.noun));
            add(not(&access.has_no(name, other.field, variables)), text);
        }
        let is_it = format!("{} == {}", access.text_in("c", "name"), quoted(name));
        let differs = |equal: &str| {
            let differs = access.map_and("c", &format!("({is_it} && {})", not(equal)));
            format!("{}.exists(c, {differs})", access.items(list.field))
        };
        for (field, value) in item.iter().filter(|(field, _)| *field != "name") {
            let one = RawObject::from_iter([(field.clone(), value.clone())]);
            let equal = Comparison::new(access, variables).fields(&one, "c", Fields::Open, "")?;
            if equal != "true" {
                add(differs(&equal), format!("{} `{name}` exists with another `{field}`", list.noun));
            }
        }
        if list.fields == Fields::Closed {
            let equal = Comparison::new(access, variables).fields(item, "c", list.fields, "")?;
            add(differs(&equal), format!("{} `{name}` exists with other content", list.noun));
        }
        Ok(reasons)
    }

    /// The labels and annotations of the pod that differ.
    fn entries(&self, variables: &mut Variables) -> Result<Vec<Reason>, Inexpressible> {
        let mut reasons = Vec::new();
        for map in &MAPS {
            for (key, value) in map.of(&self.delivery.template.spec) {
                let (there, quoted_key) = (self.claimed.access.entries(map.field, variables), quoted(key));
                let value = Leaf::of(&value.as_str().into(), variables).text()?;
                let differs = format!("({quoted_key} in {there} && {there}[{quoted_key}] != {value})");
                let text = format!("{} `{key}` of the pod exists with another value", map.noun);
                reasons.push(Reason::new(differs, Code::NameConflict, &text));
            }
        }
        Ok(reasons)
    }

    /// What a container of the user's own has otherwise.
    fn inner(&self, variables: &mut Variables) -> Result<Vec<Reason>, Inexpressible> {
        let (access, template) = (self.claimed.access, self.delivery.template);
        let is_reached = self.claimed.is_reached();
        let mut reasons = Vec::new();
        for inner in &INNER {
            for item in (inner.items)(&template.spec) {
                let key = (inner.key)(item);
                let equal = Comparison::new(access, variables).fields(item, "l", inner.fields, inner.field);
                let (items, is_it) = (access.list_in("c", inner.field), has_key(inner, item, "e", access));
                let equal = Repeated { list: &items, is_it: &is_it, item: "e" }.last("l", "true", equal)?;
                let differs = access.map_and("c", &all(&[is_reached.clone(), not(&equal)]));
                for list in LISTS.iter().filter(|list| template.reaches(list)) {
                    let name = access.text_in("c", "name");
                    let names = format!("{}.filter(c, {differs}).map(c, {name})", access.items(list.field));
                    let names = variables.define("differing", &names);
                    let [before, after] = [
                        format!("{} `{key}` of {} `", inner.noun, list.noun),
                        "` exists with other content".to_owned(),
                    ];
                    let text = format!("{} + {names}[0] + {}", quoted(&before), quoted(&after));
                    reasons.push(Reason { holds: format!("size({names}) > 0"), code: Code::NameConflict, text });
                }
            }
        }
        Ok(reasons)
    }
}

/// The words for a need that the pod does not meet.
fn words(need: &Need) -> String {
    let but = match &need.want {
        Want::Field(path, _) => format!("does not go with `spec.{}` of the pod", path.join(".")),
        Want::Either([(one, _), (other, _)]) => {
            format!("does not go with `spec.{}` and `spec.{}` of the pod", one.join("."), other.join("."))
        }
        Want::Container(name) => format!("names container `{name}`, which the pod does not have"),
        Want::FieldOf { container, path, .. } => {
            format!("does not go with `{}` of container `{container}`", path.join("."))
        }
        Want::Annotation { key, .. } => format!("does not go with annotation `{key}` of the pod"),
        Want::Claim(name) => format!("names `{name}`, which is not in `spec.resourceClaims` of the pod"),
        Want::Volume(name, _) => format!("does not go with volume `{name}` of the workload"),
        Want::Label { key, .. } => {
            format!("does not go with the selector of the workload, which asks for another `{key}`")
        }
        Want::NoPod(but) => (*but).to_owned(),
        Want::NotOfJobs { .. } => "is one that the pods of a Job get from Kubernetes".to_owned(),
    };
    format!("{} {but}", need.who)
}

/// The text of the first of `reasons` that holds, each after its `beginning`, else `otherwise`. All of them are texts of CEL.
pub(super) fn first(reasons: &[Reason], beginning: impl Fn(Code) -> String, otherwise: &str) -> String {
    let told = |reason: &Reason| {
        let Reason { holds, code, text } = reason;
        format!("({holds} ? {} + {text} : \"\")", quoted(&beginning(*code)))
    };
    let told: Vec<String> = reasons.iter().map(told).collect();
    format!("([{}].filter(m, m != \"\") + [{otherwise}])[0]", told.join(",\n"))
}
