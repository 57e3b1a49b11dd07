//! What stays of a template where a Boolean leaves a part of it out: it must be valid, and refer to nothing that is left out.

use super::leaves::Form;
use super::places::{At, List, Place, Step};
use super::words::shown;
use super::{Parameter, Parameters};
use crate::api::pod_schema::in_template;
use crate::api::v1alpha1::{RawObject, Template};
use crate::api::violation::Violation;
use crate::expansion;
use serde_json::{Value, json};

/// The annotation that names the container of kubectl's `exec` and `logs`.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The beginning of annotations that name a profile of AppArmor for a container.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// A fault: the field, and a sentence that follows on it.
type Fault = (String, String);

/// What is wrong with `template` where one of its Booleans is `false`, and not where all are `true`.
pub(in crate::api) fn left_behind(parameters: &Parameters, template: &Template) -> Vec<Fault> {
    let is_switch = |parameter: &Parameter| parameter.places.iter().any(is_switch);
    if !parameters.0.iter().any(is_switch) {
        return Vec::new();
    }
    let before = in_template(&json!(template), None);
    let before: Vec<_> = before.iter().map(Violation::without_indexes).collect();
    let mut faults = Vec::new();
    for (number, parameter) in parameters.0.iter().enumerate().filter(|(_, parameter)| is_switch(parameter)) {
        let mut values = vec![None; parameters.0.len()];
        values[number] = Some("false".to_owned());
        let left = json!(parameters.applied(template, &values));
        let texts = texts(&left);
        let mut add = |place: &Place, message: String| {
            faults.push((format!("spec.parameters[{number}].paths[{}]", place.index.unwrap_or_default()), message));
        };
        for place in parameter.places.iter().filter(|place| self::is_switch(place)) {
            if let Some(text) =
                part(template, &place.at).and_then(|part| texts.iter().find(|text| part.is_needed(text)))
            {
                let message = format!(
                    "must not leave out what the template still refers to, with {} in `{}`; leave that out, too, or remove it",
                    shown(&text.text),
                    text.path
                );
                add(place, message);
            }
        }
        let new = in_template(&left, None).into_iter().find(|fault| !before.contains(&fault.without_indexes()));
        if let (Some(fault), Some(place)) = (new, parameter.places.iter().find(|place| self::is_switch(place))) {
            add(place, format!("must leave a valid template: `{}` {}", fault.field, fault.message));
        }
    }
    faults
}

fn is_switch(place: &Place) -> bool {
    place.leaf.form == Form::Switch
}

/// A part that is left out, by its name.
enum Part<'t> {
    Container(&'t str),
    Volume(&'t str),
    /// A variable for the containers of workloads.
    Variable(&'t str),
    /// A variable of a container, which is given by its list and name.
    Own(&'static str, &'t str, &'t str),
}

/// The part of `template` at `at`. None if others may take its place.
fn part<'t>(template: &'t Template, at: &At) -> Option<Part<'t>> {
    let At::Item(list, index, steps) = at else { return None };
    let item = list.of(template).get(*index)?;
    match (list, &steps[..]) {
        (List::Containers | List::InitContainers, []) => Some(Part::Container(name(item)?)),
        (List::Volumes, []) => Some(Part::Volume(name(item)?)),
        (List::Env, []) => Some(Part::Variable(name(item)?)),
        (_, [Step::Key(_), Step::Index(index)]) => {
            let env = item.get("env")?.as_array()?;
            let variable = name(env.get(*index)?.as_object()?)?;
            let same = env.iter().filter(|other| other["name"] == variable).count();
            let has_more = item.get("envFrom").and_then(Value::as_array).is_some_and(|sources| !sources.is_empty());
            let container = name(item)?;
            let is_shared = template.share.iter().any(|share| share.to == container && !share.env.is_empty());
            (same == 1 && !has_more && !is_shared).then_some(Part::Own(list.name(), container, variable))
        }
        _ => None,
    }
}

fn name(item: &RawObject) -> Option<&str> {
    item.get("name")?.as_str()
}

impl Part<'_> {
    /// Whether `text` refers to it.
    fn is_needed(&self, text: &Text) -> bool {
        let keys: Vec<&str> = text.keys.iter().map(String::as_str).collect();
        let refers = |variable: &str| {
            let references = expansion::references(&text.text).into_iter();
            references.into_iter().any(|at| expansion::name(&text.text, at) == variable)
        };
        match self {
            Self::Container(name) => {
                // The value of an annotation, or its key.
                let is_default = keys == ["metadata", "annotations", DEFAULT_CONTAINER];
                let of_key = keys.last().and_then(|key| key.strip_prefix(APP_ARMOR));
                (is_default || keys.ends_with(&["resourceFieldRef", "containerName"])) && text.text == *name
                    || keys.starts_with(&["metadata", "annotations"]) && of_key == Some(name)
            }
            Self::Volume(name) => {
                let fields = [["volumeMounts", "name"], ["volumeDevices", "name"], ["fileKeyRef", "volumeName"]];
                fields.iter().any(|field| keys.ends_with(field)) && text.text == *name
            }
            Self::Variable(name) => {
                matches!(keys[..], ["env", "value"] | ["volumeMounts", "subPathExpr"]) && refers(name)
            }
            Self::Own(list, container, name) => {
                // A kubelet expands the commands of probes, and not those of hooks.
                let is_expanded = matches!(
                    keys[1..],
                    ["args" | "command"] | ["env", "value"] | ["volumeMounts", "subPathExpr"] | [_, "exec", "command"]
                );
                is_expanded && text.path.starts_with(&format!("{list}[{container}].")) && refers(name)
            }
        }
    }
}

/// A text in a template.
struct Text {
    /// The path, with names of items where they have some.
    path: String,
    /// The fields of the path.
    keys: Vec<String>,
    text: String,
}

/// Every text in `template`.
fn texts(template: &Value) -> Vec<Text> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), Vec::new(), template)];
    while let Some((path, keys, value)) = open.pop() {
        match value {
            Value::String(text) => found.push(Text { path, keys, text: text.clone() }),
            Value::Array(items) => {
                let label = |(index, item): (usize, &Value)| {
                    item.get("name").and_then(Value::as_str).map_or_else(|| index.to_string(), str::to_owned)
                };
                let items = items.iter().enumerate().rev();
                open.extend(
                    items.map(|(index, item)| (format!("{path}[{}]", label((index, item))), keys.clone(), item)),
                );
            }
            Value::Object(members) => open.extend(members.iter().rev().map(|(key, member)| {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                (below, keys.iter().cloned().chain([key.clone()]).collect(), member)
            })),
            _ => {}
        }
    }
    found
}
