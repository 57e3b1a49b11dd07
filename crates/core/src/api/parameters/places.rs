//! Where a parameter stands in a template.

use super::forms;
use super::leaves::{Form, Leaf, MARK, Rule};
use super::marks;
use super::paths::no_leaf;
use super::tokens::{Token, tokens};
use super::words::{few, meant, shown};
use crate::api::amounts;
use crate::api::format;
use crate::api::schema::{listed, quoted};
use crate::api::v1alpha1::{GracePeriod, ParameterType, RawObject, Template};
use serde_json::{Map, Value};

/// The objects that are made where a value stands in them.
const MADE: [&str; 3] = ["resources", "requests", "limits"];

/// A place of a template, for the values of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// The path, as written.
    pub(super) path: String,
    /// Its index in `paths`; none for a mark.
    pub(super) index: Option<usize>,
    pub(super) leaf: &'static Leaf,
    pub(super) at: At,
}

/// Where a value is. The order is that in which items are taken out, backwards.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    Label(String),
    Annotation(String),
    Grace,
    /// In an item of a list.
    Item(List, usize, Vec<Step>),
}

/// A list of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    Containers,
    InitContainers,
    Env,
    Volumes,
}

/// A step into an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

impl List {
    const ALL: [Self; 4] = [Self::Containers, Self::InitContainers, Self::Env, Self::Volumes];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::InitContainers => "initContainers",
            Self::Env => "env",
            Self::Volumes => "volumes",
        }
    }

    pub(super) fn of(self, template: &Template) -> &Vec<RawObject> {
        match self {
            Self::Containers => &template.containers,
            Self::InitContainers => &template.init_containers,
            Self::Env => &template.env,
            Self::Volumes => &template.volumes,
        }
    }

    fn of_mut(self, template: &mut Template) -> &mut Vec<RawObject> {
        match self {
            Self::Containers => &mut template.containers,
            Self::InitContainers => &mut template.init_containers,
            Self::Env => &mut template.env,
            Self::Volumes => &mut template.volumes,
        }
    }
}

impl Place {
    /// The place that `path`, the one of that index, names in `template`.
    ///
    /// # Errors
    /// If it is no leaf, or if the template lacks the item. The sentence follows on the field.
    pub(super) fn find(template: &Template, path: &str, index: usize) -> Result<Self, String> {
        let parts = tokens(path).unwrap_or_default();
        let leaf = Leaf::of(&parts).ok_or_else(|| no_leaf(path))?;
        Ok(Self { path: path.to_owned(), index: Some(index), leaf, at: At::find(template, &parts)? })
    }

    /// The place of a mark.
    pub(super) fn of_mark(path: String, at: At) -> Self {
        Self { path, index: None, leaf: &MARK, at }
    }

    /// The value in `template`, as text.
    ///
    /// # Errors
    /// If it is no single value.
    pub(super) fn standing(&self, template: &Template, of: ParameterType) -> Result<Option<String>, String> {
        let Some(value) = self.at.value(template) else { return Ok(None) };
        let text = match (self.leaf.form, &value) {
            (Form::Switch, _) => return Ok(Some("true".to_owned())),
            (Form::Mark, _) => return Ok(None),
            (Form::Number, Value::Number(number)) if of == ParameterType::Duration => format!("{number}s"),
            _ => text_of(&value).ok_or("must be one value in the template, a text or a number")?,
        };
        if self.leaf.form != Form::Tag {
            return Ok(Some(text));
        }
        if text.contains('@') {
            return Err(format!("must be an image without a digest in the template, not {}", quoted(&text)));
        }
        Ok(forms::split_tag(&text).1.map(str::to_owned))
    }

    /// Whether an overlay can have the value. Servers give probes, ports and pull policies values of their own before admission, so those of
    /// the author cannot be told from them.
    pub(super) fn is_overlaid(&self) -> bool {
        matches!(self.at, At::Item(List::Containers | List::InitContainers, ..)) && self.leaf.is_overlaid()
    }

    /// Why `text`, a value of the type `of`, does not fit here.
    pub(super) fn judge(&self, of: ParameterType, text: &str) -> Result<(), String> {
        let shown = shown(text);
        match self.leaf.rule {
            Rule::Any => Ok(()),
            Rule::Between(least, most) => {
                let fits = of.size(text).is_some_and(|size| (i128::from(least)..=i128::from(most)).contains(&size));
                let unit = if of == ParameterType::Duration { "s" } else { "" };
                let wanted = if least == most {
                    format!("`{least}{unit}`")
                } else {
                    format!("from `{least}{unit}` to `{most}{unit}`")
                };
                fits.then_some(()).ok_or_else(|| format!("must be {wanted}, is {shown}"))
            }
            Rule::Amount | Rule::Limit => {
                let nanos =
                    ParameterType::Quantity.size(text).ok_or_else(|| format!("must be a quantity, is {shown}"))?;
                if nanos == 0 && matches!(self.leaf.rule, Rule::Limit) {
                    return Err(format!("must be above 0, is {shown}: it would mean no limit"));
                }
                let fault = self.at.last().and_then(|name| amounts::amount_fault(name, nanos, &shown));
                fault.map_or(Ok(()), Err)
            }
            Rule::Like(holds, words) => holds(text).then_some(()).ok_or_else(|| format!("must be {words}, is {shown}")),
            Rule::OneOf(choices) if choices.contains(&text) => Ok(()),
            Rule::OneOf(choices) => {
                let hint = meant(text, choices.iter().copied()).map(|choice| format!("; write `{choice}`"));
                Err(format!("must be one of {}, is {shown}{}", listed(choices), hint.unwrap_or_default()))
            }
        }
    }

    /// Writes `text`, which stands for a value, into `template`.
    pub(super) fn stand_in(&self, template: &mut Template, name: &str, text: &str) {
        match self.leaf.form {
            Form::Number | Form::NumberOrText => self.at.set(template, text.into()),
            _ => self.set(template, name, ParameterType::String, text),
        }
    }

    /// Writes `text`, a value that fits, into `template`. A switch changes nothing.
    pub(super) fn set(&self, template: &mut Template, name: &str, of: ParameterType, text: &str) {
        let number = |size: Option<i128>| size.and_then(|size| i64::try_from(size).ok()).map(Value::from);
        let value = match (self.leaf.form, of) {
            (Form::Switch, _) => return,
            (Form::Number, _) | (Form::NumberOrText, ParameterType::Integer) => number(of.size(text)),
            // A port as a text is a name, never a number.
            (Form::NumberOrText, _) => Some(text.parse::<u16>().map_or_else(|_| text.into(), Value::from)),
            (Form::Text, _) => Some(text.into()),
            (Form::Expanded, _) => Some(marks::escaped(text).into()),
            (Form::Tag, _) => self.at.value(template).and_then(|image| {
                let name = forms::split_tag(image.as_str()?).0;
                Some(format!("{name}:{text}").into())
            }),
            (Form::Mark, _) => self
                .at
                .value(template)
                .and_then(|found| Some(marks::filled(found.as_str()?, name, &marks::escaped(text)).into())),
        };
        if let Some(value) = value {
            self.at.set(template, value);
        }
    }
}

impl At {
    fn find(template: &Template, tokens: &[Token<'_>]) -> Result<Self, String> {
        match tokens {
            [Token::Field("metadata"), Token::Field("labels"), key] => {
                key_fault(key.text(), format::is_key(key.text()))
                    .map_or_else(|| Ok(Self::Label(key.text().to_owned())), Err)
            }
            [Token::Field("metadata"), _, key] => {
                let fault = key_fault(key.text(), format::is_annotation_key(key.text()));
                fault.map_or_else(|| Ok(Self::Annotation(key.text().to_owned())), Err)
            }
            [Token::Field("pod"), ..] => Ok(Self::Grace),
            [Token::Field(list), Token::Item(name), rest @ ..] => {
                let list = List::ALL.into_iter().find(|known| known.name() == *list);
                let list = list.ok_or_else(|| "must be a path of the template".to_owned())?;
                let (index, item) = named(list.of(template).iter(), name, |item| names(item, "name"))
                    .map_err(|known| missing(&format!("{}[{name}]", list.name()), name, &known))?;
                Ok(Self::Item(list, index, steps(item, list, name, rest)?))
            }
            _ => Err("must be a path of the template".to_owned()),
        }
    }

    /// Whether it is in an argument or an item of a command that a shell reads as a script.
    pub(super) fn is_script(&self, template: &Template) -> bool {
        let Self::Item(list, index, steps) = self else { return false };
        let ([Step::Key(key), Step::Index(at)], Some(item)) = (&steps[..], list.of(template).get(*index)) else {
            return false;
        };
        let texts = |key: &str| item.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let words =
            || texts("command").iter().chain(if key == "args" { texts("args") } else { &[] }).filter_map(Value::as_str);
        let place = if key == "args" { texts("command").len() + at } else { *at };
        words().take(place).skip_while(|word| !is_shell(word)).any(takes_script)
    }

    /// The name at the end.
    pub(super) fn last(&self) -> Option<&str> {
        match self {
            Self::Item(_, _, steps) => match steps.last()? {
                Step::Key(key) => Some(key),
                Step::Index(_) => None,
            },
            _ => None,
        }
    }

    /// The value in `template`; null counts as absent.
    pub(super) fn value(&self, template: &Template) -> Option<Value> {
        let metadata = template.metadata.as_ref();
        match self {
            Self::Label(key) => metadata?.labels.get(key).cloned().map(Value::from),
            Self::Annotation(key) => metadata?.annotations.get(key).cloned().map(Value::from),
            Self::Grace => Some(template.pod.as_ref()?.termination_grace_period_seconds?.at_least.into()),
            Self::Item(list, index, steps) => {
                let item = list.of(template).get(*index)?;
                let Some((Step::Key(first), rest)) = steps.split_first() else { return Some(item.clone().into()) };
                let found = rest.iter().try_fold(item.get(first)?, |value, step| match step {
                    Step::Key(key) => value.get(key),
                    Step::Index(index) => value.get(index),
                });
                found.filter(|value| !value.is_null()).cloned()
            }
        }
    }

    fn set(&self, template: &mut Template, value: Value) {
        match self {
            Self::Label(key) | Self::Annotation(key) => {
                let metadata = template.metadata.get_or_insert_default();
                let of = if matches!(self, Self::Label(_)) { &mut metadata.labels } else { &mut metadata.annotations };
                if let Value::String(text) = value {
                    of.insert(key.clone(), text);
                }
            }
            Self::Grace => {
                if let Some(at_least) = value.as_i64() {
                    let pod = template.pod.get_or_insert_default();
                    pod.termination_grace_period_seconds = Some(GracePeriod { at_least });
                }
            }
            Self::Item(list, index, steps) => {
                if let Some(item) = list.of_mut(template).get_mut(*index) {
                    put(item, steps, value);
                }
            }
        }
    }

    /// Takes the item out.
    pub(super) fn remove(&self, template: &mut Template) {
        let Self::Item(list, index, steps) = self else { return };
        let items = list.of_mut(template);
        if steps.is_empty() {
            if *index < items.len() {
                items.remove(*index);
            }
            return;
        }
        let [Step::Key(key), Step::Index(at)] = &steps[..] else { return };
        let Some(item) = items.get_mut(*index) else { return };
        if let Some(list) = item.get_mut(key).and_then(Value::as_array_mut) {
            if *at < list.len() {
                list.remove(*at);
            }
            if list.is_empty() {
                item.remove(key);
            }
        }
    }
}

/// A single value as text; none if it is something else.
pub(super) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Why a template cannot have the label or annotation `key` as a place.
fn key_fault(key: &str, is_key: bool) -> Option<String> {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain).to_ascii_lowercase();
    let is_under = |of: &str| domain == of || domain.strip_suffix(of).is_some_and(|before| before.ends_with('.'));
    // Kubernetes reads those of `security`, and some whose value it refuses.
    let is_read = domain.contains("security") && (is_under("kubernetes.io") || is_under("k8s.io"));
    let is_odd = ["kubernetes.io/config.mirror", "controller.kubernetes.io/pod-deletion-cost"].contains(&key);
    if !is_key {
        Some(format!("must have a key such as `example.com/name` in brackets, not {}", quoted(key)))
    } else if is_under("scpol.dev") {
        Some(format!("must not have a key under `scpol.dev`, which are ours: {}", quoted(key)))
    } else {
        (is_read || is_odd).then(|| format!("must not be {}, which Kubernetes itself reads", quoted(key)))
    }
}

/// The names of `item` by `field`: a text, or a number.
fn names(item: &RawObject, field: &str) -> Vec<String> {
    match item.get(field) {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Number(number)) => vec![number.to_string()],
        _ => Vec::new(),
    }
}

/// The first of `items` that has the name `name`, and its index.
///
/// # Errors
/// The names of all, if none has it.
fn named<'a, T>(
    items: impl Iterator<Item = &'a T>,
    name: &str,
    of: impl Fn(&'a T) -> Vec<String>,
) -> Result<(usize, &'a T), Vec<String>> {
    let mut known = Vec::new();
    for (index, item) in items.enumerate() {
        let own = of(item);
        if own.iter().any(|own| own == name) {
            return Ok((index, item));
        }
        known.extend(own);
    }
    Err(known)
}

fn missing(path: &str, name: &str, known: &[String]) -> String {
    let names = || known.iter().map(String::as_str);
    let hint = match meant(name, names()) {
        Some(known) => format!("; did you mean `{known}`?"),
        None if known.is_empty() => "; add it there".to_owned(),
        None => format!("; it has {}", few(names())),
    };
    format!("must be in the template, which has no {}{hint}", quoted(path))
}

/// The steps of `tokens` in `item` of `list`. Each item of a list is there, and each object but those that are made.
fn steps(item: &RawObject, list: List, name: &str, tokens: &[Token<'_>]) -> Result<Vec<Step>, String> {
    let whole = Value::Object(item.clone());
    let mut here = Some(&whole);
    let mut steps = Vec::new();
    let mut path = format!("{}[{name}]", list.name());
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| tokens.get(before)).map(|token| token.text());
        let is_last = index + 1 == tokens.len();
        path = match token {
            Token::Field(field) => format!("{path}.{field}"),
            Token::Item(item) => format!("{path}[{item}]"),
        };
        let found = match (before, token) {
            (Some("requests" | "limits"), name) => {
                let odd = amounts::name_fault(name.text()).or_else(|| amounts::amount_fault(name.text(), 0, ""));
                if let Some(fault) = odd {
                    return Err(format!("must name a resource: {fault}"));
                }
                steps.push(Step::Key(name.text().to_owned()));
                here.and_then(|here| here.get(name.text()))
            }
            (_, Token::Field(field)) => {
                let field = field.split(':').next().unwrap_or(field);
                steps.push(Step::Key(field.to_owned()));
                here.and_then(|here| here.get(field))
            }
            (of, Token::Item(name)) => {
                let (at, item) =
                    item_of(here, of.unwrap_or_default(), name).map_err(|known| missing(&path, name, &known))?;
                steps.push(Step::Index(at));
                Some(item)
            }
        };
        here = found.filter(|value| !value.is_null());
        if !is_last {
            let is_made = before_is_made(token, here);
            if !is_made && !here.is_some_and(|value| value.is_object() || value.is_array()) {
                return Err(format!("must be in the template, which has no {}; add it there", quoted(&path)));
            }
        }
    }
    is_free(&whole, list, tokens)?;
    Ok(steps)
}

/// Whether `token` names an object that is made with the value in it.
fn before_is_made(token: &Token<'_>, found: Option<&Value>) -> bool {
    found.is_none() && matches!(token, Token::Field(field) if MADE.contains(field))
}

/// The item `name` of the list `of`, and its index.
fn item_of<'v>(list: Option<&'v Value>, of: &str, name: &str) -> Result<(usize, &'v Value), Vec<String>> {
    let items = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let object = |item: &'v Value| item.as_object();
    let fields: &[&str] = match of {
        "args" | "command" => {
            let index = name.parse::<usize>().ok().filter(|index| index.to_string() == name);
            let item = index.and_then(|index| Some((index, items.get(index)?)));
            return item.ok_or_else(|| (0..items.len()).map(|index| index.to_string()).collect());
        }
        "ports" => &["name", "containerPort"],
        "resizePolicy" => &["resourceName"],
        _ => &["name"],
    };
    named(items.iter(), name, |item| {
        object(item).into_iter().flat_map(|item| fields.iter().flat_map(|field| names(item, field))).collect()
    })
}

/// That the variable of a place can have a value.
fn is_free(item: &Value, list: List, tokens: &[Token<'_>]) -> Result<(), String> {
    let Some(Token::Field("value")) = tokens.last() else { return Ok(()) };
    let variable = match tokens {
        [Token::Field(_), Token::Item(name), _] => item_of(item.get("env"), "env", name).map(|(_, item)| item).ok(),
        _ => Some(item),
    };
    let has = |field: &str| variable.is_some_and(|item| item.get(field).is_some_and(|value| !value.is_null()));
    if has("valueFrom") {
        return Err("must be a variable with `value`, and this one has `valueFrom`".to_owned());
    }
    if list == List::Env && has("merge") {
        return Err("must be a variable without `merge`".to_owned());
    }
    Ok(())
}

/// Whether `word` names a shell, with or without its folder.
fn is_shell(word: &str) -> bool {
    const SHELLS: [&str; 9] = ["sh", "ash", "bash", "dash", "ksh", "zsh", "cmd", "powershell", "pwsh"];
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word).to_ascii_lowercase();
    SHELLS.contains(&name.strip_suffix(".exe").unwrap_or(&name))
}

/// Whether a shell takes what is behind `flag` as a script: `-c` of Unix, also among other letters, and what Windows has for it.
fn takes_script(flag: &str) -> bool {
    let flag = flag.to_ascii_lowercase();
    let letters = flag.strip_prefix('-').filter(|letters| letters.bytes().all(|byte| byte.is_ascii_alphabetic()));
    letters.is_some_and(|letters| letters.contains('c')) || ["/c", "/k"].contains(&flag.as_str())
}

/// Writes `value` at `steps` in `item`.
fn put(item: &mut RawObject, steps: &[Step], value: Value) {
    let Some((Step::Key(first), rest)) = steps.split_first() else { return };
    let mut here = item.entry(first.as_str()).or_insert(Value::Null);
    for step in rest {
        if here.is_null() {
            *here = Value::Object(Map::new());
        }
        let next = match (step, here) {
            (Step::Key(key), Value::Object(members)) => Some(members.entry(key.as_str()).or_insert(Value::Null)),
            (Step::Index(index), Value::Array(items)) => items.get_mut(*index),
            _ => None,
        };
        let Some(next) = next else { return };
        here = next;
    }
    *here = value;
}
