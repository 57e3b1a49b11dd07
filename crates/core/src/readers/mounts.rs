//! Mounts that a template adds below a read-only mount of a container: the container runtime cannot make their folder.

use super::case::{Case, Told};
use super::facts::containers;
use crate::api::code::Code;
use crate::inject::mounts::{is_closed, parent};
use crate::inject::tables::CONTAINERS;
use crate::inject::value::{objects, text};
use serde_json::{Map, Value};

/// Added mounts below a read-only mount.
pub(super) fn below_read_only(case: &Case<'_>) -> Vec<Told> {
    let mut told = Vec::new();
    for (list, own) in containers(case.bare) {
        let name = text(own, "name");
        let is_it = |(other, item): &(&str, &Map<String, Value>)| *other == list && text(item, "name") == name;
        let Some((_, after)) = containers(case.after).find(is_it) else { continue };
        let paths = |item| objects(item, &[MOUNTS]).map(|mount| text(mount, "mountPath"));
        let there: Vec<_> = paths(own).collect();
        let is_ours = |path: &str| case.template.spec.volume_mounts.iter().any(|it| text(it, "mountPath") == path);
        for path in paths(after).filter(|path| is_ours(path) && !there.contains(path)) {
            if let Some(parent) = closed_parent(case, path, own) {
                let message = format!(
                    "mount `{path}` is below the read-only mount `{parent}` of container `{name}`, which does not start unless the \
                     volume has that folder"
                );
                told.push(Told::new(Code::NotStartable, MOUNTS, message));
            }
        }
    }
    told
}

/// Mounts of containers of the template below a read-only mount, where one of the two is shared. In an init container they are a conflict.
pub(super) fn shared_below_read_only(case: &Case<'_>) -> Vec<Told> {
    let mut told = Vec::new();
    for (_, after) in case.added().into_iter().filter(|(list, _)| *list == CONTAINERS) {
        let name = text(after, "name");
        let written = case.template.spec.containers.iter().find(|item| text(item, "name") == name);
        let is_own = |path: &str| {
            written.is_some_and(|item| objects(item, &[MOUNTS]).any(|mount| text(mount, "mountPath") == path))
        };
        if !case.template.spec.share.iter().any(|share| share.to == name) {
            continue;
        }
        for path in objects(after, &[MOUNTS]).map(|mount| text(mount, "mountPath")) {
            if let Some(parent) = closed_parent(case, path, after).filter(|parent| !is_own(path) || !is_own(parent)) {
                let message = format!(
                    "container `{name}` has mount `{path}` below its read-only mount `{parent}`: it does not start before the volume \
                     has that folder. Set `readOnly: false`, or share one of the two"
                );
                told.push(Told::new(Code::NotStartable, "share", message));
            }
        }
    }
    told
}

const MOUNTS: &str = "volumeMounts";

/// The path of the nearest mount of `container` above `path`, if nobody can make a folder in it.
fn closed_parent<'a>(case: &Case<'_>, path: &str, container: &'a Map<String, Value>) -> Option<&'a str> {
    let parent = parent(path, objects(container, &[MOUNTS]))?;
    let mut volumes = case.after.pod_spec().into_iter().flat_map(|spec| objects(spec, &["volumes"]));
    let volume = volumes.find(|volume| text(volume, "name") == text(parent, "name"));
    is_closed(parent, volume).then(|| text(parent, "mountPath"))
}
