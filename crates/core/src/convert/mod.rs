//! The conversion of initializers with a ConfigMap, of PodPresets, and of annotations of other injectors to policies. Pure.
//!
//! [`convert`] reads manifests and returns policies with the same effect on new objects. It reports everything that
//! is lost, guessed or different, with the line.

mod annotations;
mod flags;
mod initializer;
mod injectors;
mod objects;
mod preset;
mod rules;
mod steps;

use crate::lint::needs;
use crate::manifest::{File, Location};
use crate::policy::{Policy, Site};
use objects::{Inputs, Spot};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The result of a conversion.
#[derive(Clone, Debug, Default)]
pub struct Conversion {
    /// Valid policies, in the order of the input.
    pub policies: Vec<Converted>,
    /// The findings about them, by weight.
    pub findings: Vec<Finding>,
    /// The steps to switch over.
    pub steps: Vec<String>,
}

impl Conversion {
    /// The initializer names that the operator must be given by `--initializer-name`.
    pub fn initializer_names(&self) -> BTreeSet<&str> {
        self.policies
            .iter()
            .filter_map(|policy| policy.initializer.as_deref())
            .filter(|name| is_foreign(name))
            .collect()
    }

    /// True if and only if a person must review the result, because something is lost or guessed.
    pub fn needs_attention(&self) -> bool {
        self.findings.iter().any(|finding| finding.weight <= Weight::Guessed)
    }
}

/// A policy.
#[derive(Clone, Debug)]
pub struct Converted {
    /// The name of the policy.
    pub name: String,
    /// The whole object.
    pub object: Value,
    /// The sources of the policy, such as `ConfigMap sidecar-initializer`.
    pub from: Vec<String>,
    /// The name of the replaced initializer; none for a PodPreset or another injector.
    pub initializer: Option<String>,
    /// The objects that the namespaces of its workloads must have.
    pub needs: BTreeSet<String>,
    /// The old objects that it replaces.
    old: steps::Old,
}

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Not carried over.
    Lost,
    /// The input is contradictory or incomplete; the conversion follows its probable meaning.
    Guessed,
    /// The policy does it differently.
    Differs,
    /// Worth knowing.
    Note,
}

impl Weight {
    /// Every weight, the heaviest first.
    pub const ALL: [Weight; 4] = [Weight::Lost, Weight::Guessed, Weight::Differs, Weight::Note];

    /// The word for machines.
    pub fn word(self) -> &'static str {
        match self {
            Weight::Lost => "NotCarriedOver",
            Weight::Guessed => "TakenAsMeant",
            Weight::Differs => "Differs",
            Weight::Note => "Note",
        }
    }
}

/// A finding about a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The weight.
    pub weight: Weight,
    /// The place in the input; none if the finding is about all of it.
    pub place: Option<Location>,
    /// The finding, and what to write instead.
    pub message: String,
}

/// Converts the objects in `files` to policies. `namespace` is the namespace of objects that name none. At the places
/// `odd_spaces`, plain spaces have replaced other ones.
///
/// # Guarantees
/// [`Policy::parse`] accepts every policy, on a site that has [`Conversion::initializer_names`].
pub fn convert(files: &[File], odd_spaces: &[Location], namespace: &str, site: &Site) -> Conversion {
    let mut work = Work { site, drafts: Vec::new(), findings: Vec::new(), listed: Vec::new() };
    for place in odd_spaces {
        let message =
            "a no-break space (U+00A0 or similar), which no server takes: all such spaces are read as plain ones";
        work.tell(Weight::Guessed, place.clone(), message);
    }
    let inputs = Inputs::of(files, namespace, &mut work);
    initializer::convert(&inputs, &mut work);
    preset::convert(&inputs, &mut work);
    annotations::convert(&inputs, &mut work);
    work.finish()
}

struct Work<'a> {
    site: &'a Site,
    drafts: Vec<Draft>,
    findings: Vec<Finding>,
    /// Every initializer with an InitializerConfiguration that lists it.
    listed: Vec<(String, String)>,
}

/// A policy before its validation.
struct Draft {
    /// The wanted name; another policy may have it.
    name: String,
    spec: Map<String, Value>,
    from: Vec<String>,
    initializer: Option<String>,
    old: steps::Old,
    template: Spot,
    /// The source of all other fields.
    rest: Spot,
}

impl Work<'_> {
    fn tell(&mut self, weight: Weight, place: impl Into<Option<Location>>, message: impl Into<String>) {
        self.findings.push(Finding { weight, place: place.into(), message: message.into() });
    }

    fn finish(mut self) -> Conversion {
        let mut policies: Vec<Converted> = Vec::new();
        let mut taken = BTreeSet::new();
        for draft in std::mem::take(&mut self.drafts) {
            let name = free_name(&draft.name, &taken);
            taken.insert(name.clone());
            policies.extend(self.judge(name, draft));
        }
        if policies.iter().any(|policy| policy.initializer.is_some()) {
            initializer::tell_differences(&mut self);
        }
        if policies.iter().any(|policy| policy.old.is_preset()) {
            preset::tell_differences(&mut self);
        }
        let steps = steps::steps(&policies, &self.listed);
        let mut findings = self.findings;
        findings.sort_by_key(|finding| finding.weight);
        Conversion { policies, findings, steps }
    }

    /// The policy, if it is valid.
    fn judge(&mut self, name: String, draft: Draft) -> Option<Converted> {
        let Draft { mut spec, from, initializer, old, template, rest, .. } = draft;
        if let Some(initializer) =
            initializer.as_ref().filter(|initializer| **initializer != format!("{name}.scpol.dev"))
        {
            spec.insert("initializerName".to_owned(), initializer.as_str().into());
        }
        let object = json!({
            "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": name }, "spec": spec,
        });
        let mut site = self.site.clone();
        site.initializer_names.extend(initializer.clone());
        let Err(violations) = Policy::parse(&object, &site) else {
            let needs = needs(&object["spec"]["template"]);
            return Some(Converted { name, object, from, initializer, needs, old });
        };
        for violation in violations {
            let place = match violation.field.strip_prefix("spec.template") {
                Some(field) => template.place(field.trim_start_matches('.')),
                None => rest.place(""),
            };
            let (code, field) = (violation.code, violation.field);
            let message = format!(
                "no policy is made of it: {code} {}: `{field}` {}; correct it here and convert again",
                code.name(),
                violation.message
            );
            self.tell(Weight::Lost, place, message);
        }
        None
    }
}

/// True if and only if the operator needs a flag to own the name `initializer`.
fn is_foreign(initializer: &str) -> bool {
    !initializer.ends_with(".scpol.dev")
}

/// The longest name of a policy, in bytes: the name becomes the value of a label.
const NAME: usize = 63;

/// `wanted` as the name of a policy that is none of `taken`.
fn free_name(wanted: &str, taken: &BTreeSet<String>) -> String {
    let lower = wanted.to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let short: String = lower.trim_matches('-').chars().take(NAME - 3).collect();
    let name = match short.trim_end_matches('-') {
        "" | "true" | "false" => "converted",
        name => name,
    };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_gets_a_name_that_it_may_have_and_nobody_else_has() {
        let taken = BTreeSet::from(["envoy".to_owned(), "envoy-2".to_owned()]);
        for (wanted, expected) in [
            ("sidecar", "sidecar"),
            ("envoy", "envoy-3"),
            ("My.Preset_1", "my-preset-1"),
            ("true", "converted"),
            ("--", "converted"),
            ("", "converted"),
        ] {
            assert_eq!(free_name(wanted, &taken), expected, "{wanted}");
        }
        assert!(free_name(&"a".repeat(200), &taken).len() <= NAME);
    }
}
