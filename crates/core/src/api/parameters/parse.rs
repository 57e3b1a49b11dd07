//! Reads the parameters of a policy, and finds every fault.

use super::forms;
use super::leaves::{Form, Rule};
use super::limits::{Limits, Range, Size};
use super::marks;
use super::places::{At, List, Place, Step};
use super::words::meant;
use super::{Parameter, Parameters};
use crate::api::format;
use crate::api::schema::{listed, quoted};
use crate::api::trust::{Power, Trust};
use crate::api::v1alpha1::{self, ParameterType, RawObject, Template};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most marks of a template: each of them may get a text of a kilobyte.
const MOST_MARKS: usize = 64;

/// A fault: the field, and a sentence that follows on it.
type Fault = (String, String);

/// See [`Parameters::parse`].
pub(super) fn parse(policy: &str, declared: &[v1alpha1::Parameter], template: &Template) -> (Parameters, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut parameters = Vec::new();
    for (index, one) in declared.iter().enumerate() {
        let at = format!("spec.parameters[{index}]");
        let (parameter, found) = read(policy, one, template);
        faults.extend(found.into_iter().map(|(field, fault)| (format!("{at}.{field}"), fault)));
        parameters.push(parameter);
    }
    repeated(&parameters, &mut faults);
    let left = marked(template, &mut parameters, &mut faults);
    for (index, (parameter, one)) in parameters.iter_mut().zip(declared).enumerate() {
        let at = format!("spec.parameters[{index}]");
        if parameter.places.is_empty() && one.paths.is_empty() && !left.contains(parameter.name.as_str()) {
            let message = format!("must name a place, or the template must have `$(scpol.{})`", parameter.name);
            faults.push((format!("{at}.paths"), message));
        }
        faults.extend(stand(parameter, template).into_iter().map(|(field, fault)| (format!("{at}.{field}"), fault)));
        if parameter.is_required && parameter.annotation.is_none() && one.expression.is_none() {
            let message = format!("must be given, because `$(scpol.{})` has no value without it", parameter.name);
            faults.push((format!("{at}.expression"), message));
        }
    }
    shared(&parameters, &mut faults);
    misplaced(template, &mut faults);
    scripts(template, &parameters, &mut faults);
    (Parameters(parameters), faults)
}

/// The marks where none is replaced: they would stay as they are.
fn misplaced(template: &Template, faults: &mut Vec<Fault>) {
    let replaced: BTreeSet<String> = texts(template).into_iter().map(|text| text.field).collect();
    let mut open = vec![(String::new(), json!(template))];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::String(text) if !marks::of(&text).is_empty() && !replaced.contains(&path) => {
                let message = "must have no `$(scpol.NAME)`, which is replaced in `args`, `command` and the values of `env` alone; name \
                               the place in `paths`, or write `$$(scpol.NAME)`";
                faults.push((format!("spec.template.{path}"), message.to_owned()));
            }
            Value::Array(items) => {
                open.extend(items.into_iter().enumerate().map(|(index, item)| (format!("{path}[{index}]"), item)));
            }
            Value::Object(members) => {
                let below = |name: String| if path.is_empty() { name } else { format!("{path}.{name}") };
                open.extend(members.into_iter().map(|(name, value)| (below(name), value)));
            }
            _ => {}
        }
    }
}

/// The places of free texts in scripts of shells, where an author of workloads could write commands.
fn scripts(template: &Template, parameters: &[Parameter], faults: &mut Vec<Fault>) {
    for (index, parameter) in parameters.iter().enumerate() {
        let is_free = parameter.of == ParameterType::String && parameter.limits.choices.is_empty();
        let script = parameter.places.iter().find(|place| is_free && place.at.is_script(template));
        if let Some(place) = script {
            let message = format!(
                "must be given, because {} is the script of a shell, and a text could have commands; give the value by a variable in `env`, and \
                 read that in the script",
                quoted(&place.path)
            );
            faults.push((format!("spec.parameters[{index}].enum"), message));
        }
    }
}

/// A parameter as declared, with its own faults. Fields begin in the parameter.
fn read(policy: &str, declared: &v1alpha1::Parameter, template: &Template) -> (Parameter, Vec<Fault>) {
    let (mut limits, mut faults) = Limits::of(declared);
    let of = declared.r#type;
    let annotation = annotation(policy, declared).unwrap_or_else(|fault| {
        faults.push(("annotation".to_owned(), fault));
        None
    });
    if declared.from_namespace && declared.annotation.as_deref() == Some("") {
        faults.push(("fromNamespace".to_owned(), "must be left out, or `annotation` must be a key".to_owned()));
    }
    let (mut places, mut range) = (Vec::new(), Range::default());
    for (index, path) in declared.paths.iter().enumerate() {
        match place(template, path, index, of) {
            Ok(place) => {
                range = range.and(&range_of(&place, of));
                places.push(place);
            }
            Err(fault) => faults.push((format!("paths[{index}]"), fault)),
        }
    }
    let both = limits.range.and(&range);
    if both.is_empty() && !range.is_empty() && !limits.range.is_empty() {
        let words = range.judge(of, "").err().unwrap_or_default();
        let words = words.split(", is").next().unwrap_or_default().to_owned();
        let field =
            if limits.range.least.as_ref().is_some_and(|least| !range.has(least.of)) { "minimum" } else { "maximum" };
        faults.push((field.to_owned(), format!("{words}, because its places take no other")));
    }
    if both.is_empty() {
        // Because no value is in it, and the bounds have a fault already.
        limits.range = Range::default();
    }
    for (index, choice) in limits.choices.iter().enumerate() {
        if let Some(fault) = places.iter().find_map(|place| place.judge(of, choice).err()) {
            faults.push((format!("enum[{index}]"), fault));
        }
    }
    if declared.overridable && !places.iter().any(Place::is_overlaid) {
        let message =
            "must be left out, because none of `paths` is the image, a variable, a request or a limit of a container";
        faults.push(("overridable".to_owned(), message.to_owned()));
    }
    let parameter = Parameter {
        name: declared.name.clone(),
        description: declared.description.clone(),
        of,
        annotation,
        from_namespace: declared.from_namespace,
        overridable: declared.overridable,
        limits,
        range,
        places,
        default: None,
        is_required: false,
    };
    (parameter, faults)
}

/// The place that `path` names, for values of the type `of`.
fn place(template: &Template, path: &str, index: usize, of: ParameterType) -> Result<Place, String> {
    let place = Place::find(template, path, index)?;
    if place.leaf.types.contains(&of) {
        return Ok(place);
    }
    let types: Vec<String> = place.leaf.types.iter().map(|of| format!("{of:?}")).collect();
    let types: Vec<&str> = types.iter().map(String::as_str).collect();
    Err(format!("must be a place for `type: {of:?}`, and {} is for {}", quoted(path), listed(&types)))
}

/// The range of the values that `place` takes.
fn range_of(place: &Place, of: ParameterType) -> Range {
    let Rule::Between(least, most) = place.leaf.rule else { return Range::default() };
    let unit = if of == ParameterType::Duration { "s" } else { "" };
    let size = |number: i64| Some(Size { of: number.into(), text: format!("{number}{unit}") });
    if of.is_ordered() { Range { least: size(least), most: size(most) } } else { Range::default() }
}

/// The key of the annotation.
fn annotation(policy: &str, declared: &v1alpha1::Parameter) -> Result<Option<String>, String> {
    let own = format!("{policy}.scpol.dev");
    let key = match declared.annotation.as_deref() {
        Some("") => return Ok(None),
        Some(key) => key.to_owned(),
        None => format!("{own}/{}", declared.name),
    };
    let domain = key.split_once('/').map_or("", |(domain, _)| domain).to_ascii_lowercase();
    let is_ours = domain == "scpol.dev" || domain.ends_with(".scpol.dev");
    // Because the annotations under it record what policies have added.
    let is_marker = format!("{domain}/") == crate::api::MARKER_PREFIX;
    // Another rule reports the name of the policy.
    if declared.annotation.is_none() && !(policy.len() <= 63 && format::is_policy_name(policy)) {
        return Ok(None);
    }
    if declared.annotation.is_none() && (is_marker || !format::is_annotation_key(&key)) {
        return Err(format!(
            "must be given, because {} cannot be the key; e.g. `example.com/{}`",
            quoted(&key),
            declared.name
        ));
    }
    if !format::is_annotation_key(&key) {
        return Err(format!(
            "must be a key such as `example.com/{}`, or `\"\"` for none, not {}",
            declared.name,
            quoted(&key)
        ));
    }
    if is_marker || is_ours && domain != own {
        return Err(format!(
            "must not be under `scpol.dev`, but for `{own}/`; leave it out for `{own}/{}`",
            declared.name
        ));
    }
    Ok(Some(key))
}

/// Names and annotations that two parameters have.
fn repeated(parameters: &[Parameter], faults: &mut Vec<Fault>) {
    for (index, parameter) in parameters.iter().enumerate() {
        let before = &parameters[..index];
        if before.iter().any(|other| other.name == parameter.name) {
            let message = format!("must be unique in the list: {} is there before", quoted(&parameter.name));
            faults.push((format!("spec.parameters[{index}].name"), message));
        }
        let same = before.iter().find(|other| other.annotation.is_some() && other.annotation == parameter.annotation);
        if let Some(other) = same.filter(|other| other.name != parameter.name) {
            let message = format!("must differ from that of {}", quoted(&other.name));
            faults.push((format!("spec.parameters[{index}].annotation"), message));
        }
    }
}

/// A text of a template in which a kubelet expands references.
struct Text<'t> {
    at: At,
    /// The path from `spec.template` by indexes.
    field: String,
    /// The path as a user writes it.
    path: String,
    text: &'t str,
    /// Whether it is joined with that of a workload.
    is_part: bool,
}

/// Every such text.
fn texts(template: &Template) -> Vec<Text<'_>> {
    let mut found = Vec::new();
    for list in [List::Containers, List::InitContainers] {
        for (index, item) in list.of(template).iter().enumerate() {
            let name = item.get("name").and_then(Value::as_str).unwrap_or_default();
            let around = (format!("{}[{index}].", list.name()), format!("{}[{name}].", list.name()));
            for key in ["args", "command"] {
                for (at, text) in items(item, key).enumerate().filter_map(|(at, item)| Some((at, item.as_str()?))) {
                    let steps = vec![Step::Key(key.to_owned()), Step::Index(at)];
                    let tail = format!("{key}[{at}]");
                    let (field, path) = (format!("{}{tail}", around.0), format!("{}{tail}", around.1));
                    found.push(Text { at: At::Item(list, index, steps), field, path, text, is_part: false });
                }
            }
            for (at, variable) in items(item, "env").enumerate().filter_map(|(at, item)| Some((at, item.as_object()?)))
            {
                let steps = ["env".to_owned(), "value".to_owned()].map(Step::Key);
                let [env, value] = steps;
                let at = (At::Item(list, index, vec![env, Step::Index(at), value]), format!("env[{at}]"));
                found.extend(variable_text(variable, at, (&around.0, &around.1)));
            }
        }
    }
    for (index, variable) in template.env.iter().enumerate() {
        let at = At::Item(List::Env, index, vec![Step::Key("value".to_owned())]);
        found.extend(variable_text(variable, (at, format!("env[{index}]")), ("", "")));
    }
    found
}

fn variable_text<'t>(variable: &'t RawObject, at: (At, String), around: (&str, &str)) -> Option<Text<'t>> {
    let (at, tail) = at;
    let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
    let is_part = matches!(at, At::Item(List::Env, ..)) && variable.get("merge").is_some_and(|merge| !merge.is_null());
    let (field, path) = (format!("{}{tail}.value", around.0), format!("{}env[{name}].value", around.1));
    Some(Text { at, field, path, text: variable.get("value")?.as_str()?, is_part })
}

fn items<'t>(item: &'t RawObject, key: &str) -> impl Iterator<Item = &'t Value> {
    item.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Gives each parameter the places of its marks. Returns the names in marks that have a fault.
fn marked<'t>(template: &'t Template, parameters: &mut [Parameter], faults: &mut Vec<Fault>) -> BTreeSet<&'t str> {
    let (mut count, mut left) = (0, BTreeSet::new());
    for Text { at, field, path, text, is_part } in texts(template) {
        let field = format!("spec.template.{field}");
        for (name, _) in marks::of(text) {
            count += 1;
            let known: Vec<String> = parameters.iter().map(|parameter| parameter.name.clone()).collect();
            let Some(parameter) = parameters.iter_mut().find(|parameter| parameter.name == name) else {
                let hint = match meant(name, known.iter().map(String::as_str)) {
                    Some(known) => format!("; did you mean `$(scpol.{known})`?"),
                    None => format!(
                        "; declare it, or write `$$(scpol.{})` for the text itself",
                        crate::outside::cut(name, 63)
                    ),
                };
                let message = format!("must name a parameter, and no parameter is called {}{hint}", quoted(name));
                faults.push((field.clone(), message));
                continue;
            };
            if is_part {
                faults.push((field.clone(), "must have no `$(scpol.NAME)`, because it has `merge`".to_owned()));
                left.insert(name);
                continue;
            }
            let is_known = |place: &Place| place.leaf.form == Form::Mark && place.at == at;
            if count <= MOST_MARKS && !parameter.places.iter().any(is_known) {
                parameter.places.push(Place::of_mark(path.clone(), at.clone()));
            }
        }
    }
    if count > MOST_MARKS {
        let message = format!("must have at most {MOST_MARKS} places `$(scpol.NAME)`, has {count}");
        faults.push(("spec.template".to_owned(), message));
    }
    left
}

/// Reads the value of `parameter` in `template`, and whether there is one for marks. Returns the faults of those values.
fn stand(parameter: &mut Parameter, template: &Template) -> Vec<Fault> {
    let (mut faults, mut found) = (Vec::new(), Vec::new());
    for place in parameter.places.iter().filter(|place| place.leaf.form != Form::Mark) {
        let field = format!("paths[{}]", place.index.unwrap_or_default());
        match place.standing(template, parameter.of) {
            Ok(None) => {}
            Err(fault) => faults.push((field, fault)),
            Ok(Some(text)) if place.leaf.form == Form::Expanded && !marks::of(&text).is_empty() => {
                let message =
                    format!("must not replace the whole of a text with a `$(scpol.NAME)` in it: {}", quoted(&text));
                faults.push((field, message));
            }
            Ok(Some(text)) => {
                let plain =
                    if place.leaf.form == Form::Expanded { marks::unescaped(&text) } else { Some(text.clone()) };
                if let Err(fault) = parameter.judge_openly(plain.as_ref().unwrap_or(&text)) {
                    faults.push((field, format!("must have a value in the template that fits: {fault}")));
                }
                found.push((text, plain));
            }
        }
    }
    let is_marked = parameter.places.iter().any(|place| place.leaf.form == Form::Mark);
    let mut plain = found.iter().map(|(_, plain)| plain.as_ref());
    let first = plain.next().flatten();
    let is_one = first.is_some() && plain.all(|other| other == first);
    parameter.default = first.cloned().or_else(|| found.first().map(|(text, _)| text.clone()));
    parameter.is_required = is_marked && !is_one;
    faults
}

/// Places that two parameters have, or one twice.
fn shared(parameters: &[Parameter], faults: &mut Vec<Fault>) {
    let mut seen: Vec<(&str, &Place)> = Vec::new();
    for (number, parameter) in parameters.iter().enumerate() {
        for place in &parameter.places {
            let Some(index) = place.index else { continue };
            if let Some((other, _)) = seen.iter().find(|(_, other)| other.at == place.at) {
                let message = format!("must be the place of one parameter, once: {} has it already", quoted(other));
                faults.push((format!("spec.parameters[{number}].paths[{index}]"), message));
            }
            seen.push((&parameter.name, place));
        }
    }
}

/// The places that need `references` in `--allow-in-templates`, each with its fix.
pub(in crate::api) fn not_granted(parameters: &Parameters, trust: &Trust) -> Vec<Fault> {
    if trust.powers.contains(&Power::References) {
        return Vec::new();
    }
    let fix = format!("remove it, or start the operator with `--allow-in-templates={}`", Power::References.as_str());
    let places = parameters.0.iter().enumerate().flat_map(|(number, parameter)| {
        let places = parameter.places.iter().filter(|place| place.leaf.is_reference());
        places.map(move |place| format!("spec.parameters[{number}].paths[{}]", place.index.unwrap_or_default()))
    });
    places.map(|field| (field, fix.clone())).collect()
}

/// The choices of images that `trust` does not allow, and images without choices where it has no list.
pub(in crate::api) fn foreign_images(parameters: &Parameters, template: &Template, trust: &Trust) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, parameter) in parameters.0.iter().enumerate() {
        for place in parameter.places.iter().filter(|place| place.leaf.is_image()) {
            if parameter.limits.choices.is_empty() && trust.images.is_empty() && place.leaf.form != Form::Tag {
                let message = "give an `enum`, or start the operator with `--allowed-images`".to_owned();
                faults.push((format!("spec.parameters[{number}].paths[{}]", place.index.unwrap_or_default()), message));
            }
            let own = place.at.value(template).and_then(|image| image.as_str().map(str::to_owned)).unwrap_or_default();
            for (index, choice) in parameter.limits.choices.iter().enumerate() {
                let is_tag = place.leaf.form == Form::Tag;
                let image = if is_tag { format!("{}:{choice}", forms::split_tag(&own).0) } else { choice.clone() };
                let fault =
                    trust.foreign(&image).map(|fault| (format!("spec.parameters[{number}].enum[{index}]"), fault));
                faults.extend(fault);
            }
        }
    }
    faults
}
