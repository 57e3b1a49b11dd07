//! What containers of a template get of the workload's own containers: `template.share`.
//!
//! What is shared depends on the workload, so [`resolved`] makes a template for each. Only what the user wrote is shared: what
//! markers list is left out, so the result is the same before an injection and after it. A marker lists each shared item
//! of an added container, as if it were an item in a container of the user: the comparison with the revision, and the way
//! back, take it out first.

use super::Template;
use super::listed::{Listed, What};
use super::marker::{self, Marker};
use super::merge::Group;
use super::mounts;
use super::obstacle::Conflict;
use super::part::{ENV, VALUE, variable};
use super::pod::{OwnContainer, Pod};
use super::tables::{INNER, Inner, LISTS, List, Scope};
use super::value::{objects, text};
use crate::api::code::Code;
use crate::api::v1alpha1::{RawObject, Share};
use json_patch::jsonptr::PointerBuf;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::HashSet;
use wildmatch::WildMatch;

/// The list of mounts of a container.
const MOUNTS: &str = "volumeMounts";
/// Where the API server mounts the token of the ServiceAccount.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The most items that one entry of `share` gives to a container: as many as others may add to a list ([`super::equal::MAX_ADDED`]).
const MAX_SHARED: usize = 64;
/// The most bytes of their names or paths together, because the marker lists them.
const MAX_KEYS: usize = 8 << 10;
/// The fields of a mount that are shared.
const OF_A_MOUNT: [&str; 4] = ["name", "mountPath", "subPath", "readOnly"];

/// `template` as `pod` gets it. `matching` as for a plan.
///
/// # Errors
/// If two containers of the pod have different things under one name or path.
pub(super) fn resolved<'a>(
    pod: &Pod<'_>,
    template: &'a Template,
    matching: &[&Template],
) -> Result<Cow<'a, Template>, Conflict> {
    if template.spec.share.is_empty() {
        return Ok(Cow::Borrowed(template));
    }
    let users = Users { pod, marked: marker::all(pod.workload).flat_map(|marker| marker.added).collect() };
    let mut resolved = template.clone();
    for share in &template.spec.share {
        let from: Vec<WildMatch> = share.from.iter().map(|glob| WildMatch::new(glob)).collect();
        let picks = |name: &str| from.is_empty() || from.iter().any(|glob| glob.matches(name));
        let containers = pod.own_picked(template, matching, picks)?;
        for inner in &INNER {
            let shared = match inner.field {
                ENV => users.shared(&containers, inner, |item| {
                    wants(&share.env, &[text(item, "name")]).then(|| item.clone())
                })?,
                MOUNTS => users.shared(&containers, inner, |mount| users.mount(share, mount))?,
                _ => continue,
            };
            let all = resolved.spec.containers.iter_mut().chain(&mut resolved.spec.init_containers);
            for container in all.filter(|container| text(container, "name") == share.to) {
                put(container, inner, &shared);
            }
        }
    }
    match unmakeable(pod, template, &resolved) {
        Some(conflict) => Err(conflict),
        None => Ok(Cow::Owned(resolved)),
    }
}

/// A mount of an init container or native sidecar of `resolved` below a read-only one, if one of the two is shared. Nobody makes its
/// folder: these start before the application. `written` is the template before [`resolved`].
fn unmakeable(pod: &Pod<'_>, written: &Template, resolved: &Template) -> Option<Conflict> {
    let volume = |name: &str| {
        let mut own = resolved.spec.volumes.iter();
        own.find(|volume| text(volume, "name") == name).or_else(|| pod.find(List::named("volumes")?, name))
    };
    let pairs = written.spec.init_containers.iter().zip(&resolved.spec.init_containers);
    for (before, now) in pairs.filter(|(before, now)| before.get(MOUNTS) != now.get(MOUNTS)) {
        let own: HashSet<&str> = objects(before, &[MOUNTS]).map(|mount| text(mount, "mountPath")).collect();
        for path in objects(now, &[MOUNTS]).map(|mount| text(mount, "mountPath")) {
            let parent = mounts::parent(path, objects(now, &[MOUNTS]));
            let Some(parent) = parent.filter(|parent| mounts::is_closed(parent, volume(text(parent, "name")))) else {
                continue;
            };
            let (above, name) = (text(parent, "mountPath"), text(now, "name"));
            if !own.contains(path) || !own.contains(above) {
                let message = format!(
                    "with `share`, init container `{name}` would have mount `{path}` below its read-only mount `{above}`, where nobody \
                     can make the folder: set `readOnly: false`, or share one of the two"
                );
                return Some(Conflict { code: Code::NotStartable, message });
            }
        }
    }
    None
}

/// All of `templates`, each as [`resolved`].
pub(super) fn all_resolved<'a>(
    pod: &Pod<'_>,
    templates: &[&'a Template],
    matching: &[&Template],
) -> Result<Vec<Cow<'a, Template>>, Conflict> {
    templates.iter().map(|template| resolved(pod, template, matching)).collect()
}

/// What the markers of `templates`, by index, list of items that are shared with added containers, which are in `groups`. `written` are
/// the templates before [`resolved`].
pub(super) fn records(
    pod: &Pod<'_>,
    groups: &[Group],
    templates: &[&Template],
    written: &[&Template],
) -> Vec<(usize, Marker)> {
    let lists = LISTS.iter().filter(|list| list.scope == Scope::Containers);
    let listed = lists.flat_map(|list| {
        let of_list = groups.iter().filter(|group| group.parent == pod.pointer_of(list));
        of_list.flat_map(|group| &group.listed).map(move |(owner, key)| (list, *owner, key))
    });
    let at = pod.pointer_below_spec(&[]);
    let record = |(list, owner, key): (&'static List, usize, &String)| {
        (owner, templates[owner].shared_entries(written[owner], &at, list.field, key))
    };
    listed.map(record).collect()
}

/// Whether one of `globs` matches one of `texts`.
fn wants(globs: &[String], texts: &[&str]) -> bool {
    globs.iter().map(|glob| WildMatch::new(glob)).any(|glob| texts.iter().any(|text| glob.matches(text)))
}

/// The containers of the user.
struct Users<'a> {
    pod: &'a Pod<'a>,
    /// The pointers in all markers.
    marked: HashSet<String>,
}

impl Users<'_> {
    /// The items of the list `inner` of `containers` that `pick` gives, each once.
    fn shared(
        &self,
        containers: &[OwnContainer<'_>],
        inner: &Inner,
        pick: impl Fn(&RawObject) -> Option<RawObject>,
    ) -> Result<Vec<(String, RawObject)>, Conflict> {
        let mut shared: Vec<(String, String, RawObject)> = Vec::new();
        for own in containers {
            for item in objects(own.item(), &[inner.field]) {
                let key = (inner.key)(item);
                // The kubelet takes the last of two variables with one name.
                let is_last = inner.field != ENV || variable(own.item(), &key).is_some_and(|(_, last)| last == item);
                let pointer = self.pod.pointer_below_spec(&[own.list.field, own.name, inner.field, &key]);
                if !is_last || self.marked.contains(&pointer.to_string()) {
                    continue;
                }
                let Some(item) = pick(&self.without_parts(&pointer, item)) else { continue };
                match shared.iter().find(|(other, ..)| *other == key) {
                    None => shared.push((key, own.name.to_owned(), item)),
                    Some((_, _, there)) if *there == item => {}
                    Some((_, first, _)) => {
                        let (noun, name) = (inner.noun, own.name);
                        let message = format!(
                            "{noun} `{key}` of containers `{first}` and `{name}` differs, and `share` wants one"
                        );
                        return Err(Conflict { code: Code::SharedDiffers, message });
                    }
                }
            }
        }
        let length: usize = shared.iter().map(|(key, ..)| key.len()).sum();
        if shared.len() > MAX_SHARED || length > MAX_KEYS {
            let (noun, count) = (inner.noun, shared.len());
            let message =
                format!("`share` takes {count} of {noun}, more than {MAX_SHARED} or {MAX_KEYS} bytes of names");
            return Err(Conflict { code: Code::SharedDiffers, message });
        }
        Ok(shared.into_iter().map(|(key, _, item)| (key, item)).collect())
    }

    /// The variable `item` as the user wrote it: without the parts that markers list. `pointer` is that of the variable.
    fn without_parts(&self, pointer: &PointerBuf, item: &RawObject) -> RawObject {
        let mut users = item.clone();
        let (at, of) = (self.pod.workload.pod_pointer(), format!("{pointer}/{VALUE}/"));
        for listed in self.marked.iter().filter(|marked| marked.starts_with(&of)) {
            let listed = Listed::parse(&at, listed);
            let part = listed.as_ref().and_then(|listed| listed.part()).map(|(_, part)| part);
            let left = part.and_then(|part| part.replaced(text(&users, VALUE), None, &[]));
            users.extend(left.map(|left| (VALUE.to_owned(), Value::from(left))));
        }
        users
    }

    /// `mount` as `share` gives it on; none if it does not.
    fn mount(&self, share: &Share, mount: &RawObject) -> Option<RawObject> {
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        let is_wanted = wants(&share.volume_mounts, &[name, path]);
        // The variables that `subPathExpr` names are those of its container.
        let is_bound = path.starts_with(TOKEN) || !text(mount, "subPathExpr").is_empty();
        if !is_wanted || is_bound || !self.pod.has_volume(name) || self.is_withheld(name) {
            return None;
        }
        let mut shared = mount.clone();
        shared.retain(|field, _| OF_A_MOUNT.contains(&field.as_str()));
        if share.read_only != Some(false) {
            shared.insert("readOnly".to_owned(), true.into());
        }
        Some(shared)
    }

    /// Whether the volume `name` is a path of the node, or has a token of the ServiceAccount: a template gets these by a power alone.
    fn is_withheld(&self, name: &str) -> bool {
        let lists = LISTS.iter().filter(|list| list.scope == Scope::Volumes);
        let volume = lists.filter_map(|list| self.pod.find(list, name)).next();
        let is_token = |source: &RawObject| source.get("serviceAccountToken").is_some_and(|token| !token.is_null());
        volume.is_some_and(|volume| {
            volume.get("hostPath").is_some_and(|path| !path.is_null())
                || objects(volume, &["projected", "sources"]).any(is_token)
        })
    }
}

/// Puts `shared` into the list `inner` of `container`, which keeps its own. Variables go first, so that its own may refer to them.
fn put(container: &mut RawObject, inner: &Inner, shared: &[(String, RawObject)]) {
    let own = objects(container, &[inner.field]).map(|item| (inner.key)(item)).collect::<HashSet<_>>();
    let further = shared.iter().filter(|(key, _)| !own.contains(key)).map(|(_, item)| json!(item));
    let further: Vec<Value> = further.collect();
    if further.is_empty() {
        return;
    }
    let list = container.entry(inner.field).or_insert_with(|| json!([]));
    let Some(items) = list.as_array_mut() else {
        *list = further.into();
        return;
    };
    match inner.field {
        ENV => drop(items.splice(..0, further)),
        _ => items.extend(further),
    }
}

impl Template {
    /// Whether it shares an item of the list `inner` called `key` with its container `name`.
    pub(super) fn may_share(&self, name: &str, inner: &Inner, key: &str) -> bool {
        let to_it = self.spec.share.iter().filter(|share| share.to == name);
        self.names_container(name)
            && to_it.into_iter().any(|share| match inner.field {
                ENV => wants(&share.env, &[key]),
                MOUNTS => !share.volume_mounts.is_empty(),
                _ => false,
            })
    }

    /// The entries of a marker for what its containers share, if `added` of them are added to the pod at `at`. `written` is the template
    /// before [`resolved`].
    pub(super) fn shared_entries(&self, written: &Template, at: &PointerBuf, list: &str, added: &str) -> Marker {
        let mut entries = Marker::default();
        let find = |template: &Template| -> Option<RawObject> {
            let all = template.spec.containers.iter().chain(&template.spec.init_containers);
            all.into_iter().find(|container| text(container, "name") == added).cloned()
        };
        let (Some(now), Some(before)) = (find(self), find(written)) else { return entries };
        for inner in &INNER {
            let own: HashSet<String> = objects(&before, &[inner.field]).map(|item| (inner.key)(item)).collect();
            for key in objects(&now, &[inner.field]).map(|item| (inner.key)(item)).filter(|key| !own.contains(key)) {
                let steps = [list, added, inner.field, &key];
                let pointer = steps.iter().fold(at.clone(), |pointer, step| pointer.with_trailing_token(*step));
                entries.added.push(pointer.to_string());
            }
        }
        entries
    }
}

/// `there`, the added container at `pointer`, without what `marker` lists as shared with it.
pub(super) fn without_shared(at: &str, marker: &Marker, pointer: &str, there: &RawObject) -> RawObject {
    let (mut bare, below) = (there.clone(), format!("{pointer}/"));
    for listed in marker.added.iter().filter(|listed| listed.starts_with(&below)) {
        let Some(listed) = Listed::parse(at, listed) else { continue };
        let What::Inner(_, inner) = listed.what else { continue };
        let key = listed.split().0;
        if let Some(Value::Array(items)) = bare.get_mut(inner.field) {
            items.retain(|item| item.as_object().is_none_or(|item| (inner.key)(item) != key));
        }
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::Position;
    use crate::inject::edited;
    use crate::inject::round_trip::{goes_as_it_came, injected};
    use crate::workload::{Kind, Workload};
    use proptest::prelude::*;

    fn template(policy: &str, share: &Value) -> Template {
        let container = json!({"name": policy, "image": "x", "env": [{"name": "OWN", "value": "1"}]});
        let further = json!([{"name": "ADDED", "value": policy, "merge": "Append"}]);
        let spec = json!({"containers": [container], "env": further, "share": [share]});
        Template::new(policy, &serde_json::from_value(spec).unwrap(), Position::default())
    }

    fn container(name: &str, env: &[(&str, &str)], mounts: &[&str]) -> Value {
        let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let mounts: Vec<Value> = mounts.iter().map(|path| json!({"name": "v", "mountPath": path})).collect();
        json!({"name": name, "image": "y", "env": env, "volumeMounts": mounts})
    }

    fn pod(containers: &[Value]) -> Workload {
        let spec = json!({"containers": containers, "volumes": [{"name": "v", "emptyDir": {}}]});
        Workload::new(Kind::find("", "pods").unwrap(), json!({ "spec": spec }))
    }

    #[test]
    fn what_the_application_gets_later_makes_no_edit_of_the_sidecar() {
        let ours = template("p", &json!({"to": "p", "volumeMounts": ["*"], "env": ["*"]}));
        let mut now = injected(&pod(&[container("app", &[("A", "1")], &["/a"])]), &[&ours]);
        let marker = ours.marker(&now).unwrap();
        assert!(marker.added.contains(&"/spec/containers/p/volumeMounts/~1a".to_owned()), "{marker:?}");
        assert_eq!(edited::edited(&now, &ours, &marker), None);
        let app = &mut now.body["spec"]["containers"][0];
        app["volumeMounts"] = json!([{"name": "v", "mountPath": "/b"}]);
        app["env"][1]["value"] = json!("2");
        assert_eq!(edited::edited(&now, &ours, &marker), None);
        now.body["spec"]["containers"][1]["env"].as_array_mut().unwrap().push(json!({"name": "B", "value": "users"}));
        assert!(edited::edited(&now, &ours, &marker).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn what_is_shared_goes_as_it_came_in_any_order(
            env in proptest::sample::subsequence(vec![("A", "1"), ("B", "2"), ("ADDED", "3")], 0..=3),
            mounts in proptest::sample::subsequence(vec!["/a", "/b/~"], 0..=2),
            globs in proptest::collection::vec(prop_oneof!["A", r"\*", "[AB]D*", "/a"], 1..4),
            order in any::<prop::sample::Index>(),
        ) {
            let all: Vec<Template> = globs.iter().enumerate().map(|(number, glob)| {
                let name = format!("p{number}");
                template(&name, &json!({"to": name, "volumeMounts": [glob], "env": [glob]}))
            }).collect();
            let all: Vec<&Template> = all.iter().collect();
            let users = pod(&[container("app", &env, &mounts), container("other", &[], &[])]);
            let full = injected(&users, &all);
            for template in &all {
                prop_assert_eq!(edited::edited(&full, template, &template.marker(&full).unwrap()), None);
            }
            goes_as_it_came(&users, &full, &all, &order)?;
        }
    }
}
