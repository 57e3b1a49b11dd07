//! Whether a workload has the content that a marker claims.
//!
//! Users can write markers, so a marker counts only together with the content of its template. After an injection, the
//! API server fills in defaults, and other admission adds to containers. So an item is there if it has every field that the
//! template sets, with that value; see [`equal::kept_difference`].
//!
//! Additions to the user's own containers are there if one of these containers has all of them. Containers that others add
//! later have none, and are no reason to inject again.

use super::Template;
use super::equal;
use super::fit::{self, Gap};
use super::marker;
use super::part::{ENV, literal, variable};
use super::pod::Pod;
use super::tables::{CONTAINERS, INIT_CONTAINERS, INNER, LISTS, List, MAPS, Scope};
use crate::api::v1alpha1::RawObject;
use crate::workload::Workload;
use std::cell::OnceCell;

/// How much of the content of a template a workload has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// All of it.
    Whole,
    /// A part is missing, and nothing else is in its place: the first missing part.
    Lacking(String),
    /// Other content is in the place of a part: the first such part.
    Different(String),
}

/// The forms in which the containers of a template may be in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forms {
    /// As containers.
    pub(crate) plain: bool,
    /// As native sidecars.
    pub(crate) native: bool,
}

/// How much of the content of `template` the workload has, in one of `forms`. Containers that one of `others` names are not
/// the user's own.
pub(crate) fn presence(workload: &Workload, template: &Template, forms: Forms, others: &[&Template]) -> Presence {
    match Pod::of(workload) {
        Ok(pod) => {
            let inner = std::iter::once_with(|| of_inner(&pod, template, others));
            whole(items(&pod, template, forms).chain(inner))
        }
        Err(conflict) => Presence::Different(conflict.message),
    }
}

/// The same without additions to the user's containers.
pub(crate) fn presence_of_items(workload: &Workload, template: &Template, forms: Forms) -> Presence {
    match Pod::of(workload) {
        Ok(pod) => whole(items(&pod, template, forms)),
        Err(conflict) => Presence::Different(conflict.message),
    }
}

/// The first different one of `parts`, else the first missing one.
fn whole(parts: impl Iterator<Item = Presence>) -> Presence {
    let mut lacking = None;
    for part in parts {
        match part {
            Presence::Whole => {}
            Presence::Lacking(_) => drop(lacking.get_or_insert(part)),
            Presence::Different(_) => return part,
        }
    }
    lacking.unwrap_or(Presence::Whole)
}

/// The presence of each item and entry that `template` adds to the pod itself.
fn items<'a>(pod: &'a Pod<'_>, template: &'a Template, forms: Forms) -> impl Iterator<Item = Presence> + 'a {
    let of_lists = LISTS.iter().flat_map(move |list| {
        (list.items)(&template.spec).iter().map(move |item| of_item(pod, template, list, item, forms))
    });
    let of_maps = MAPS.iter().flat_map(move |map| {
        map.of(&template.spec).map(move |(key, value)| match pod.entry(map, key) {
            Some(there) if there == value.as_str() => Presence::Whole,
            Some(_) => Presence::Different(format!("{} `{key}` of the pod has another value", map.noun)),
            None => Presence::Lacking(format!("{} `{key}` of the pod is missing", map.noun)),
        })
    });
    let of_fields = fit::gaps(pod, template).into_iter().map(|gap| match gap {
        Gap::Lacking(what) => Presence::Lacking(what),
        Gap::Different(what) => Presence::Different(what),
    });
    of_lists.chain(of_maps).chain(of_fields)
}

/// Whether the pod has `item` of `list`.
fn of_item(pod: &Pod<'_>, template: &Template, list: &'static List, item: &RawObject, forms: Forms) -> Presence {
    let first = |list: &List, wanted: &RawObject| first(pod, list, wanted, template.shows_values());
    let name = list.key_of(item);
    let is_container = list.field == CONTAINERS;
    let plain = if is_container && !forms.plain { None } else { first(list, item) };
    if plain == Some(Presence::Whole) {
        return Presence::Whole;
    }
    let native = List::named(INIT_CONTAINERS).filter(|_| is_container && forms.native);
    let native = native.and_then(|list| {
        let mut native = item.clone();
        native.insert("restartPolicy".into(), "Always".into());
        first(list, &native)
    });
    if let Some(found) = native.filter(|found| *found == Presence::Whole).or(plain) {
        return found;
    }
    let is_elsewhere =
        list.scope().any(|other| pod.find(other, name).is_some()) || list.scope == Scope::Volumes && pod.claims(name);
    if is_elsewhere {
        return Presence::Different(format!("{} `{name}` is something else in this pod", list.noun));
    }
    Presence::Lacking(format!("{} `{name}` is missing", list.noun))
}

/// Whether the items of the name of `wanted` in `list` are `wanted`; none if there is no such item.
fn first(pod: &Pod<'_>, list: &List, wanted: &RawObject, shows_values: bool) -> Option<Presence> {
    let (name, mut found) = (list.key_of(wanted), None);
    for there in pod.items(list).filter(|there| list.key_of(there) == name) {
        if let Some(difference) = equal::kept_difference(wanted, there, list.fields) {
            let described = difference.described("template", shows_values);
            return Some(Presence::Different(format!("{} `{name}` has {described}", list.noun)));
        }
        found = Some(Presence::Whole);
    }
    found
}

/// Whether one of the user's containers that the template reaches has all that it adds to them. Without such a container,
/// nothing is missing.
fn of_inner(pod: &Pod<'_>, template: &Template, others: &[&Template]) -> Presence {
    let wanted: Vec<_> =
        INNER.iter().flat_map(|inner| (inner.items)(&template.spec).iter().map(move |item| (inner, item))).collect();
    if wanted.is_empty() {
        return Presence::Whole;
    }
    let (marked, picks) = (OnceCell::new(), template.picks());
    let is_marked = |name: &str| {
        let containers = || marked.get_or_init(|| marker::containers(pod.workload, &[]));
        marker::may_list(pod.workload, name) && containers().contains(name)
    };
    let mut result = Presence::Whole;
    for list in LISTS.iter().filter(|list| template.reaches(list)) {
        for container in pod.items(list) {
            let name = list.key_of(container);
            let is_of_a_policy =
                template.names_container(name) || others.iter().any(|other| other.names_container(name));
            if is_of_a_policy || !picks(name) || is_marked(name) {
                continue;
            }
            let mut parts = wanted.iter().map(|(inner, item)| {
                let key = (inner.key)(item);
                if inner.field == ENV && template.part(&key).is_some() {
                    return of_part(template, container, &key, &format!("{} `{name}`", list.noun));
                }
                let (noun, of) = (inner.noun, list.noun);
                let Some(there) = inner.in_effect(container, &key) else {
                    return Presence::Lacking(format!("{noun} `{key}` of {of} `{name}` is missing"));
                };
                match equal::kept_difference(item, there, inner.fields) {
                    None => Presence::Whole,
                    Some(difference) => {
                        Presence::Different(format!("{noun} `{key}` of {of} `{name}` has another `{difference}`"))
                    }
                }
            });
            let Some(part) = parts.find(|part| *part != Presence::Whole) else { return Presence::Whole };
            if result == Presence::Whole {
                result = part;
            }
        }
    }
    result
}

/// Whether the variable `name` of `container`, which is called `title`, has the part that `template` joins to it.
fn of_part(template: &Template, container: &RawObject, name: &str, title: &str) -> Presence {
    let there = variable(container, name).map(|(_, there)| literal(there));
    match (template.part(name), there) {
        (Some(part), Some(Some(value))) if part.is_in(value) => Presence::Whole,
        (_, Some(None)) => Presence::Different(format!("environment variable `{name}` of {title} has no `value`")),
        _ => Presence::Lacking(format!("environment variable `{name}` of {title} lacks the part of the template")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::Position;
    use crate::workload::Kind;
    use serde_json::{Value, json};

    const PLAIN: Forms = Forms { plain: true, native: false };
    const EITHER: Forms = Forms { plain: true, native: true };

    fn of(template: &Value, pod: Value, forms: Forms) -> &'static str {
        let template = Template::new("p", &serde_json::from_value(template.clone()).unwrap(), Position::default());
        match presence(&Workload::new(Kind::find("", "pods").unwrap(), pod), &template, forms, &[]) {
            Presence::Whole => "whole",
            Presence::Lacking(_) => "lacking",
            Presence::Different(_) => "different",
        }
    }

    #[test]
    fn an_item_is_there_if_it_has_what_the_template_sets() {
        let template = json!({
            "containers": [{
                "name": "x", "image": "x:1", "imagePullPolicy": "IfNotPresent", "env": [{"name": "A", "value": "1"}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
                "livenessProbe": {"httpGet": {"path": "/live", "port": 1}, "periodSeconds": 5},
            }],
            "volumes": [{"name": "v", "emptyDir": {}}],
        });
        let pod = |change: &dyn Fn(&mut Value)| {
            let mut spec = json!({
                "containers": [{"name": "app"}, template["containers"][0]],
                "volumes": [{"name": "v", "emptyDir": {}}],
            });
            change(&mut spec);
            json!({"spec": spec})
        };
        let x = |field: &str, value: Value| {
            let pointer = format!("/containers/1/{field}");
            move |spec: &mut Value| *spec.pointer_mut(&pointer).unwrap() = value.clone()
        };
        assert_eq!(of(&template, pod(&|_| {}), PLAIN), "whole");
        // Admission plugins and other webhooks do these.
        for change in [
            x("imagePullPolicy", json!("Always")),
            x("resources/requests", json!({"cpu": "500m", "memory": "1Gi"})),
            x("resources/limits", json!({"cpu": "1"})),
            x("env", json!([{"name": "B", "value": "2"}, {"name": "A", "value": "1"}])),
            x("livenessProbe/httpGet", json!({"path": "/app-health/x/livez", "port": 15020})),
        ] {
            assert_eq!(of(&template, pod(&change), PLAIN), "whole");
        }
        for change in [
            x("imagePullPolicy", json!("Never")),
            x("image", json!("y")),
            x("livenessProbe/periodSeconds", json!(1)),
            x("env", json!([{"name": "A", "value": "2"}])),
            x("env", json!([])),
        ] {
            assert_eq!(of(&template, pod(&change), PLAIN), "different");
        }
        let many: Vec<Value> =
            (0..500).map(|n| json!({"name": format!("E{n}")})).chain([json!({"name": "A", "value": "1"})]).collect();
        assert_eq!(of(&template, pod(&x("env", json!(many))), PLAIN), "different", "no admission adds so many");
        for (list, expected) in [("containers", "lacking"), ("volumes", "lacking")] {
            assert_eq!(of(&template, pod(&|spec| drop(spec[list].as_array_mut().unwrap().pop())), PLAIN), expected);
        }
        let both = pod(&|spec| {
            spec["volumes"] = json!([]);
            spec["containers"][1]["image"] = json!("y");
        });
        assert_eq!(of(&template, both, PLAIN), "different", "injection would be a conflict");
        assert_eq!(of(&template, json!({"spec": "text"}), PLAIN), "different");
    }

    #[test]
    fn a_container_may_be_there_in_either_form() {
        let template = json!({"containers": [{"name": "x", "image": "x:1"}]});
        let native = json!({"spec": {"initContainers": [{"name": "x", "image": "x:1", "restartPolicy": "Always"}]}});
        let init = json!({"spec": {"initContainers": [{"name": "x", "image": "x:1"}]}});
        assert_eq!(of(&template, native.clone(), EITHER), "whole");
        assert_eq!(of(&template, native, PLAIN), "different");
        assert_eq!(of(&template, init, EITHER), "different");
        let plain = json!({"spec": {"containers": [{"name": "x", "image": "x:1"}]}});
        assert_eq!(of(&template, plain.clone(), EITHER), "whole");
        assert_eq!(of(&template, plain, Forms { plain: false, native: true }), "different");
    }

    #[test]
    fn what_one_container_of_the_users_has_is_there() {
        let template =
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "appContainers": ["app*"]});
        let both = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
        let container = |name: &str, env: &Value| json!({"name": name, "env": env});
        for (containers, expected) in [
            (vec![container("app", &both)], "whole"),
            (vec![container("app", &json!([])), container("app-2", &both)], "whole"),
            (vec![container("app", &json!([both[0]])), container("app-2", &json!([both[1]]))], "lacking"),
            (vec![container("app", &json!([both[0], {"name": "B", "value": "3"}]))], "different"),
            (vec![container("app", &json!([])), container("other", &both)], "lacking"),
            (vec![container("other", &json!([]))], "whole"),
        ] {
            assert_eq!(of(&template, json!({"spec": {"containers": containers}}), PLAIN), expected, "{containers:?}");
        }
    }
}
