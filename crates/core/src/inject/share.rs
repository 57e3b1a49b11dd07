//! What containers of a template get of the workload's own containers: `template.share`.
//!
//! What is shared depends on the workload, so [`resolved`] makes a template for each. Only what the user wrote is shared: what
//! markers list is left out, so the result is the same before an injection and after it. A marker lists each shared item
//! of an added container, as if it were an item in a container of the user: the comparison with the revision, and the way
//! back, take it out first.

use super::Template;
use super::equal;
use super::listed::{Listed, What};
use super::marker::{self, Marker};
use super::merge::Group;
use super::mounts;
use super::obstacle::Conflict;
use super::part::{ENV, VALUE};
use super::pod::{OwnContainer, Pod};
use super::tables::{INNER, Inner, LISTS, List, Scope};
use super::value::{objects, text};
use crate::api::code::Code;
use crate::api::v1alpha1::{RawObject, Share};
use json_patch::jsonptr::PointerBuf;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use wildmatch::WildMatch;

/// The list of mounts of a container.
const MOUNTS: &str = "volumeMounts";
/// Where the API server mounts the token of the ServiceAccount.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The most items of one list that `share` gives to a container: as many as others may add to a list ([`super::equal::MAX_ADDED`]).
const MAX_SHARED: usize = 64;
/// The most bytes of their names or paths together, because the marker lists them.
const MAX_KEYS: usize = 8 << 10;
/// The fields of a mount that are shared.
const OF_A_MOUNT: [&str; 4] = ["name", "mountPath", "subPath", "readOnly"];

/// `template` as `pod` gets it. `matching` as for a plan.
///
/// # Errors
/// If two containers of the pod have different things under one name or path, if these are too many, or if a mount cannot be made.
pub(super) fn resolved<'a>(
    pod: &Pod<'_>,
    template: &'a Template,
    matching: &[&Template],
) -> Result<Cow<'a, Template>, Conflict> {
    if template.spec.share.is_empty() {
        return Ok(Cow::Borrowed(template));
    }
    let users = Users::of(pod, template);
    let mut all: HashMap<(&str, &str), Shared> = HashMap::new();
    for (index, share) in template.spec.share.iter().enumerate() {
        let containers = givers(pod, template, matching, share)?;
        for inner in shared_lists() {
            let shared = all.entry((&share.to, inner.field)).or_default();
            users.give(&Entry::of(index, share, inner), &containers, shared)?;
        }
    }
    let mut resolved = template.clone();
    for container in resolved.spec.containers.iter_mut().chain(&mut resolved.spec.init_containers) {
        let name = text(container, "name").to_owned();
        for inner in &INNER {
            if let Some(shared) = all.get(&(name.as_str(), inner.field)) {
                put(container, inner, &shared.items);
            }
        }
    }
    match unmakeable(pod, template, &resolved) {
        Some(conflict) => Err(conflict),
        None => Ok(Cow::Owned(resolved)),
    }
}

/// A mount of an init container or native sidecar of `resolved` below a read-only one, if one of the two is shared. These containers
/// start before the application, which could make its folder. `written` is the template before [`resolved`].
fn unmakeable(pod: &Pod<'_>, written: &Template, resolved: &Template) -> Option<Conflict> {
    let volume = |name: &str| {
        let mut own = resolved.spec.volumes.iter();
        own.find(|volume| text(volume, "name") == name).or_else(|| pod.find(List::named("volumes")?, name))
    };
    let pairs = written.spec.init_containers.iter().zip(&resolved.spec.init_containers);
    for (before, now) in pairs.filter(|(before, now)| before.get(MOUNTS) != now.get(MOUNTS)) {
        let own: HashSet<&str> = objects(before, &[MOUNTS]).map(|mount| text(mount, "mountPath")).collect();
        for path in objects(now, &[MOUNTS]).map(|mount| text(mount, "mountPath")) {
            let Some(above) = mounts::closed_above(path, objects(now, &[MOUNTS]), volume) else { continue };
            let name = text(now, "name");
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

/// The message that an entry of `share` gives nothing of the containers of `pod`. `matching` as for a plan.
pub(super) fn in_vain(pod: &Pod<'_>, template: &Template, matching: &[&Template]) -> Option<String> {
    let users = Users::of(pod, template);
    let reason = |(index, share): (usize, &Share)| {
        let containers = givers(pod, template, matching, share).ok()?;
        if containers.is_empty() {
            return Some("`from` selects none of the containers");
        }
        for inner in shared_lists() {
            let mut shared = Shared::default();
            users.give(&Entry::of(index, share, inner), &containers, &mut shared).ok()?;
            if !shared.items.is_empty() {
                return None;
            }
        }
        Some("the containers have no such mount or variable")
    };
    template.spec.share.iter().enumerate().find_map(|(index, share)| {
        let reason = reason((index, share))?;
        Some(format!("`share[{index}]` gives container `{}` nothing: {reason}", share.to))
    })
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

/// The lists of a container of which `share` gives items.
fn shared_lists() -> impl Iterator<Item = &'static Inner> {
    INNER.iter().filter(|inner| [ENV, MOUNTS].contains(&inner.field))
}

/// The containers of the user that `share`, an entry of `template`, takes items from.
fn givers<'a>(
    pod: &Pod<'a>,
    template: &Template,
    matching: &[&Template],
    share: &Share,
) -> Result<Vec<OwnContainer<'a>>, Conflict> {
    let from = globs(&share.from);
    pod.own_picked(template, matching, |name| from.is_empty() || wants(&from, &[name]))
}

/// Whether one of `globs` matches one of `texts`.
fn wants(globs: &[WildMatch], texts: &[&str]) -> bool {
    globs.iter().any(|glob| texts.iter().any(|text| glob.matches(text)))
}

fn globs(globs: &[String]) -> Vec<WildMatch> {
    globs.iter().map(|glob| WildMatch::new(glob)).collect()
}

/// An entry of `share`, for one list of containers.
struct Entry<'a> {
    index: usize,
    share: &'a Share,
    inner: &'static Inner,
    globs: Vec<WildMatch>,
}

impl<'a> Entry<'a> {
    fn of(index: usize, share: &'a Share, inner: &'static Inner) -> Self {
        Self { index, share, inner, globs: globs(if inner.field == ENV { &share.env } else { &share.volume_mounts }) }
    }

    fn too_many(&self) -> Conflict {
        let (to, index, field) = (&self.share.to, self.index, self.inner.field);
        let message = format!(
            "`share` would give container `{to}` more than {MAX_SHARED} items of `{field}`, or more than {MAX_KEYS} bytes of their names: \
             name fewer in `share[{index}].{field}` or in `from`"
        );
        Conflict { code: Code::SharedTooMany, message }
    }
}

/// What one container of a template gets of one list.
#[derive(Default)]
struct Shared {
    items: Vec<(String, RawObject)>,
    /// The place of each key in `items`, with the entry of `share` and the container that gives it first.
    given: HashMap<String, (usize, usize, String)>,
    /// The bytes of the keys.
    length: usize,
}

impl Shared {
    /// Adds `item` of the container `name`.
    fn add(&mut self, entry: &Entry<'_>, name: &str, key: String, item: RawObject) -> Result<(), Conflict> {
        let Some((place, index, first)) = self.given.get(&key) else {
            self.length += key.len();
            if self.items.len() == MAX_SHARED || self.length > MAX_KEYS {
                return Err(entry.too_many());
            }
            self.given.insert(key.clone(), (self.items.len(), entry.index, name.to_owned()));
            self.items.push((key, item));
            return Ok(());
        };
        if are_alike(entry.inner, &self.items[*place].1, &item) {
            return Ok(());
        }
        let noun = entry.inner.noun;
        let message = if first == name {
            format!(
                "`share[{index}]` and `share[{}]` give {noun} `{key}` of container `{name}` differently",
                entry.index
            )
        } else {
            format!("{noun} `{key}` of containers `{first}` and `{name}` differs, and `share` wants one")
        };
        Err(Conflict { code: Code::SharedDiffers, message })
    }
}

/// Whether both items, which have one key, mean the same.
fn are_alike(inner: &Inner, one: &RawObject, other: &RawObject) -> bool {
    let mut other = other.clone();
    // A slash at the end of the path makes no other key.
    other.extend(one.get("mountPath").map(|path| ("mountPath".to_owned(), path.clone())));
    equal::mutual_difference(one, &other, inner.fields).is_none()
}

/// The containers of the user.
struct Users<'a> {
    pod: &'a Pod<'a>,
    /// The pointers in all markers.
    marked: HashSet<String>,
    /// The parts of values in all markers, by the pointer of their variable.
    parts: HashMap<String, Vec<Listed>>,
    /// The volumes of the user and of the template by name; none for a claim of a StatefulSet.
    volumes: HashMap<&'a str, Option<&'a RawObject>>,
}

impl<'a> Users<'a> {
    fn of(pod: &'a Pod<'a>, template: &'a Template) -> Self {
        let pointers: Vec<String> = marker::all(pod.workload).flat_map(|marker| marker.added).collect();
        let at = pod.workload.pod_pointer();
        let mut parts: HashMap<String, Vec<Listed>> = HashMap::new();
        for pointer in &pointers {
            let listed = Listed::parse(&at, pointer).filter(|listed| listed.part().is_some());
            // Below the variable are `value`, the side, the separator and the text.
            if let (Some(listed), Some(variable)) = (listed, pointer.rsplitn(5, '/').nth(4)) {
                parts.entry(variable.to_owned()).or_default().push(listed);
            }
        }
        let marked: HashSet<String> = pointers.into_iter().collect();
        // Without those of other policies, which may not be there yet.
        let is_users = |name: &str| !marked.contains(pod.pointer_below_spec(&["volumes", name]).as_str());
        let mut volumes = pod.volumes();
        volumes.retain(|name, _| is_users(name));
        for volume in &template.spec.volumes {
            volumes.entry(text(volume, "name")).or_insert(Some(volume));
        }
        Self { pod, marked, parts, volumes }
    }

    /// Gives `shared` the items of `containers` that `entry` names.
    fn give(&self, entry: &Entry<'_>, containers: &[OwnContainer<'_>], shared: &mut Shared) -> Result<(), Conflict> {
        let inner = entry.inner;
        for own in containers.iter().filter(|_| !entry.globs.is_empty()) {
            let items: Vec<_> = objects(own.item(), &[inner.field]).map(|item| ((inner.key)(item), item)).collect();
            // Of two items with one key, the last is in effect.
            let last: HashMap<&str, usize> =
                items.iter().enumerate().map(|(place, (key, _))| (key.as_str(), place)).collect();
            for (place, (key, item)) in items.iter().enumerate() {
                if last[key.as_str()] != place {
                    continue;
                }
                let Some(picked) = self.picked(entry, own.name, (key, item)) else { continue };
                let pointer = self.pod.pointer_below_spec(&[own.list.field, own.name, inner.field, key]);
                if !self.marked.contains(pointer.as_str()) {
                    shared.add(entry, own.name, key.clone(), self.without_parts(&pointer, picked))?;
                }
            }
        }
        Ok(())
    }

    /// The item `key` of the container `name` as `entry` gives it on; none if it does not.
    fn picked(&self, entry: &Entry<'_>, name: &str, (key, item): (&str, &RawObject)) -> Option<RawObject> {
        match entry.inner.field {
            ENV => wants(&entry.globs, &[key]).then(|| of_container(item, name)),
            _ => self.mount(entry, item),
        }
    }

    /// The variable `item` at `pointer` as the user wrote it: without the parts that markers list.
    fn without_parts(&self, pointer: &PointerBuf, mut item: RawObject) -> RawObject {
        for (_, part) in self.parts.get(pointer.as_str()).into_iter().flatten().filter_map(Listed::part) {
            let left = part.replaced(text(&item, VALUE), None, &[]);
            item.extend(left.map(|left| (VALUE.to_owned(), Value::from(left))));
        }
        // The first part created it.
        let is_created = || self.marked.contains(pointer.with_trailing_token(VALUE).as_str());
        if text(&item, VALUE).is_empty() && is_created() {
            item.remove(VALUE);
        }
        item
    }

    /// `mount` as `share` gives it on; none if it does not.
    fn mount(&self, entry: &Entry<'_>, mount: &RawObject) -> Option<RawObject> {
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        // The variables that `subPathExpr` names are those of its container.
        let is_bound = path.starts_with(TOKEN) || !text(mount, "subPathExpr").is_empty();
        if is_bound || !wants(&entry.globs, &[name, path]) || self.volumes.get(name)?.is_some_and(is_withheld) {
            return None;
        }
        Some(of_a_mount(mount, entry.share.read_only != Some(false)))
    }
}

/// `mount` as it is shared.
fn of_a_mount(mount: &RawObject, is_read_only: bool) -> RawObject {
    let mut shared = mount.clone();
    shared.retain(|field, _| OF_A_MOUNT.contains(&field.as_str()));
    if is_read_only {
        shared.insert("readOnly".to_owned(), true.into());
    }
    shared
}

/// The variable `item` of the container `name`, for another container: an amount of resources is still that of `name`.
fn of_container(item: &RawObject, name: &str) -> RawObject {
    let mut item = item.clone();
    let amount = item.get_mut("valueFrom").and_then(|from| from.get_mut("resourceFieldRef"));
    if let Some(amount) = amount.and_then(Value::as_object_mut)
        && text(amount, "containerName").is_empty()
    {
        amount.insert("containerName".to_owned(), name.into());
    }
    item
}

/// Whether `volume` is a path of the node, or has a token of the ServiceAccount: a template gets these by a power alone.
fn is_withheld(volume: &RawObject) -> bool {
    let is_token = |source: &RawObject| source.get("serviceAccountToken").is_some_and(|token| !token.is_null());
    volume.get("hostPath").is_some_and(|path| !path.is_null())
        || objects(volume, &["projected", "sources"]).any(is_token)
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
                ENV => wants(&globs(&share.env), &[key]),
                MOUNTS => !share.volume_mounts.is_empty(),
                _ => false,
            })
    }

    /// `there`, an item of the list `inner` of its container `name`, as it gives it to it; none if it does not. What the workload had when
    /// it was injected is unknown: only what it says itself counts, which is that a mount can only be read.
    pub(super) fn shared(&self, name: &str, inner: &Inner, there: &RawObject) -> Option<RawObject> {
        if inner.field != MOUNTS {
            return Some(there.clone());
        }
        let texts = [text(there, "name"), text(there, "mountPath")];
        let to_it = self.spec.share.iter().filter(|share| share.to == name);
        let giving: Vec<&Share> = to_it.filter(|share| wants(&globs(&share.volume_mounts), &texts)).collect();
        (!giving.is_empty()).then(|| of_a_mount(there, giving.iter().all(|share| share.read_only != Some(false))))
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
    let below = format!("{pointer}/");
    let mut keys: HashSet<(&str, String)> = HashSet::new();
    for listed in marker.added.iter().filter(|listed| listed.starts_with(&below)) {
        let Some(listed) = Listed::parse(at, listed) else { continue };
        let What::Inner(_, inner) = listed.what else { continue };
        keys.insert((inner.field, listed.split().0.to_owned()));
    }
    let mut bare = there.clone();
    for inner in INNER.iter().filter(|_| !keys.is_empty()) {
        if let Some(Value::Array(items)) = bare.get_mut(inner.field) {
            items.retain(|item| item.as_object().is_none_or(|item| !keys.contains(&(inner.field, (inner.key)(item)))));
        }
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod_security::Standard;
    use crate::api::v1alpha1::Position;
    use crate::inject::round_trip::{goes_as_it_came, injected};
    use crate::inject::{edited, edits};
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

    #[test]
    fn an_edit_of_what_is_shared_is_an_edit_as_far_as_the_policy_says_what_it_was() {
        let ours = template("p", &json!({"to": "p", "volumeMounts": ["v"], "env": ["*"]}));
        let writes = template("p", &json!({"to": "p", "volumeMounts": ["v"], "env": ["*"], "readOnly": false}));
        let change = |template: &Template, pointer: &str, to: Value| {
            let mut now = injected(&pod(&[container("app", &[("A", "1")], &["/a"])]), &[template]);
            match (now.body.pointer_mut(pointer).unwrap(), to) {
                (Value::Array(items), Value::Null) => drop(items.remove(0)),
                (there, to) => *there = to,
            }
            let marker = template.marker(&now).unwrap();
            let edits = edits::edits(&now, template, &marker);
            assert_eq!(edits.is_empty(), edited::edited(&now, template, &marker).is_none(), "{edits:?}");
            edits.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let at = |rest: &str| format!("/spec/containers/1/{rest}");
        for (pointer, to, expected) in [
            (
                "volumeMounts/0/readOnly",
                json!(false),
                "mount /a in p has another `readOnly`: `false` here, `true` from the policy",
            ),
            ("volumeMounts/0/name", json!("w"), "mount /a in p is something else"),
            ("volumeMounts", json!(null), "mount /a in p is gone"),
            ("env", json!(null), "variable A in p is gone"),
        ] {
            assert_eq!(change(&ours, &at(pointer), to), [expected], "{pointer}");
        }
        // What the application had is unknown here: its value, and whether it could write.
        assert_eq!(change(&ours, &at("env/0/value"), json!("2")), [""; 0]);
        assert_eq!(change(&writes, &at("volumeMounts/0/name"), json!("v")), [""; 0]);
        let whole = change(&ours, "/spec/containers", json!([{"name": "app"}]));
        assert_eq!(whole, ["container p is gone", "a part of variable ADDED in app is gone"]);
    }

    fn checked(users: &Workload, ours: &Template) -> Result<(), Code> {
        crate::inject::check(users, ours, &[ours], Standard::NEWEST).map_err(|conflict| conflict.code)
    }

    #[test]
    fn what_is_shared_has_an_end_and_is_found_in_linear_time() {
        let names: Vec<String> = (0..20_000).map(|number| format!("V{number}")).collect();
        let env: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        let mounts: Vec<String> = (0..20_000).map(|number| format!("/{number}")).collect();
        let mounts: Vec<&str> = mounts.iter().map(String::as_str).collect();
        let users = pod(&[container("app", &env, &mounts), container("other", &env, &mounts)]);
        let began = std::time::Instant::now();
        for (share, expected) in [
            (json!({"to": "p", "env": ["*"]}), Err(Code::SharedTooMany)),
            (json!({"to": "p", "volumeMounts": ["*"]}), Err(Code::SharedTooMany)),
            (json!({"to": "p", "env": ["none"], "volumeMounts": ["/none"]}), Ok(())),
            (json!({"to": "p", "env": ["V1999?"], "volumeMounts": ["/1999?"]}), Ok(())),
        ] {
            assert_eq!(checked(&users, &template("p", &share)), expected, "{share}");
        }
        // With the square of the length it takes minutes.
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        for (count, expected) in [(MAX_SHARED, Ok(())), (MAX_SHARED + 1, Err(Code::SharedTooMany))] {
            let users = pod(&[container("app", &env[..count], &[])]);
            assert_eq!(checked(&users, &template("p", &json!({"to": "p", "env": ["*"]}))), expected, "{count}");
        }
    }

    #[test]
    fn what_means_the_same_is_shared_once() {
        let shared = |one: &Value, other: &Value, field: &str| {
            let containers = [json!({"name": "app", field: [one]}), json!({"name": "web", field: [other]})];
            checked(&pod(&containers), &template("p", &json!({"to": "p", field: ["*"], "readOnly": false})))
        };
        for (field, one, other, alike) in [
            ("volumeMounts", json!({"mountPath": "/logs"}), json!({"mountPath": "/logs/"}), true),
            ("volumeMounts", json!({"mountPath": "/l", "readOnly": false}), json!({"mountPath": "/l"}), true),
            ("volumeMounts", json!({"mountPath": "/l", "subPath": ""}), json!({"mountPath": "/l"}), true),
            ("volumeMounts", json!({"mountPath": "/l", "readOnly": true}), json!({"mountPath": "/l"}), false),
            ("volumeMounts", json!({"mountPath": "/l", "subPath": "a"}), json!({"mountPath": "/l"}), false),
            ("env", json!({"name": "A", "value": ""}), json!({"name": "A"}), true),
            ("env", json!({"name": "A", "value": "", "valueFrom": null}), json!({"name": "A"}), true),
            ("env", json!({"name": "A", "value": "1"}), json!({"name": "A"}), false),
        ] {
            let [one, other] = [one, other].map(|mut item| {
                if field == "volumeMounts" {
                    item["name"] = json!("v");
                }
                item
            });
            let expected = if alike { Ok(()) } else { Err(Code::SharedDiffers) };
            assert_eq!(shared(&one, &other, field), expected, "{one} {other}");
            assert_eq!(shared(&other, &one, field), expected, "{other} {one}");
        }
    }

    #[test]
    fn two_entries_for_one_thing_have_to_give_the_same() {
        let users = pod(&[container("app", &[("A", "1")], &["/a"]), container("web", &[("A", "2")], &[])]);
        for (entries, expected) in [
            (json!([{"volumeMounts": ["*"]}, {"volumeMounts": ["/a"]}]), Ok(())),
            (json!([{"volumeMounts": ["*"]}, {"volumeMounts": ["/a"], "readOnly": false}]), Err(Code::SharedDiffers)),
            (json!([{"env": ["A"], "from": ["app"]}, {"env": ["A"], "from": ["web"]}]), Err(Code::SharedDiffers)),
        ] {
            let mut ours = template("p", &json!({"to": "p", "env": ["none"]}));
            let entries: Vec<Value> = entries.as_array().unwrap().clone();
            ours.spec.share = entries
                .into_iter()
                .map(|mut entry| {
                    entry["to"] = json!("p");
                    serde_json::from_value(entry).unwrap()
                })
                .collect();
            assert_eq!(checked(&users, &ours), expected);
        }
    }

    #[test]
    fn a_mount_of_a_volume_that_a_policy_adds_is_shared_before_and_after_as_the_template_says() {
        let other: Template = {
            let spec = json!({"volumes": [{"name": "theirs", "emptyDir": {}}]});
            Template::new("other", &serde_json::from_value(spec).unwrap(), Position::default())
        };
        let mut ours = template("p", &json!({"to": "p", "volumeMounts": ["*"]}));
        ours.spec.volumes = serde_json::from_value(json!([{"name": "ours", "emptyDir": {}}])).unwrap();
        let mounts = json!([{"name": "ours", "mountPath": "/ours"}, {"name": "theirs", "mountPath": "/theirs"}]);
        let users = pod(&[json!({"name": "app", "volumeMounts": mounts})]);
        let all = [&ours, &other];
        let after = injected(&users, &all);
        let shared = json!([{"name": "ours", "mountPath": "/ours", "readOnly": true}]);
        assert_eq!(after.body["spec"]["containers"][1]["volumeMounts"], shared);
        assert_eq!(crate::inject::plan(&after, &all, &all, Standard::NEWEST), Ok(json_patch::Patch::default()));
    }

    #[test]
    fn an_entry_that_gives_nothing_is_told() {
        let users = pod(&[container("app", &[("A", "1")], &["/a"])]);
        for (share, expected) in [
            (json!({"from": ["nosuch"], "env": ["*"]}), Some("`from` selects none of the containers")),
            (json!({"env": ["B"], "volumeMounts": ["w"]}), Some("the containers have no such mount or variable")),
            (json!({"env": ["B"], "volumeMounts": ["v"]}), None),
            (json!({"env": ["A"], "volumeMounts": ["w"]}), None),
        ] {
            let mut share = share;
            share["to"] = json!("p");
            let ours = template("p", &share);
            for workload in [&users, &injected(&users, &[&ours])] {
                let found = crate::inject::unreached(workload, &ours, &[&ours]).map(|found| found.message);
                let expected = expected.map(|why| format!("`share[0]` gives container `p` nothing: {why}"));
                assert_eq!(found, expected, "{share}");
            }
        }
    }

    #[test]
    fn an_amount_of_resources_is_that_of_the_container_that_gives_it() {
        let amount = |name: Option<&str>| {
            let mut of = json!({"resource": "limits.memory"});
            if let Some(name) = name {
                of["containerName"] = json!(name);
            }
            json!({"name": "LIMIT", "valueFrom": {"resourceFieldRef": of}})
        };
        let users = pod(&[json!({"name": "app", "env": [amount(None)]})]);
        let after = injected(&users, &[&template("p", &json!({"to": "p", "env": ["*"]}))]);
        let env = &after.body["spec"]["containers"][1]["env"];
        assert_eq!(env[0], amount(Some("app")));
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
