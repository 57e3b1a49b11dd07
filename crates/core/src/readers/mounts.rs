//! Mounts that a template adds below a read-only mount of the workload: the container runtime cannot make their folder.

use super::case::{Case, Told};
use super::facts::containers;
use crate::api::code::Code;
use crate::inject::value::{at, objects, text};
use serde_json::{Map, Value};

/// Sources for which the kubelet makes the folders of mounts below (`MakeNestedMountpoints`).
const MADE_BY_KUBELET: [&str; 4] = ["configMap", "secret", "downwardAPI", "projected"];

/// Added mounts below a read-only mount.
pub(super) fn below_read_only(case: &Case<'_>) -> Vec<Told> {
    let mut told = Vec::new();
    for (list, own) in containers(case.bare) {
        let name = text(own, "name");
        let is_it = |(other, item): &(&str, &Map<String, Value>)| *other == list && text(item, "name") == name;
        let Some((_, after)) = containers(case.after).find(is_it) else { continue };
        let paths = |item| objects(item, &["volumeMounts"]).map(|mount| text(mount, "mountPath"));
        let there: Vec<_> = paths(own).collect();
        let is_ours = |path: &str| case.template.spec.volume_mounts.iter().any(|it| text(it, "mountPath") == path);
        for path in paths(after).filter(|path| is_ours(path) && !there.contains(path)) {
            let below = |mount: &&Map<String, Value>| {
                let parent = text(mount, "mountPath").trim_end_matches('/');
                path.strip_prefix(parent).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
            };
            let parent = objects(own, &["volumeMounts"]).filter(below).max_by_key(|it| text(it, "mountPath").len());
            if let Some(parent) = parent.filter(|parent| is_read_only(case, parent)) {
                let message = format!(
                    "mount `{path}` is below the read-only mount `{}` of container `{name}`, which does not start unless the \
                     volume has that folder",
                    text(parent, "mountPath")
                );
                told.push(Told::new(Code::NotStartable, "volumeMounts", message));
            }
        }
    }
    told
}

/// Whether nobody can make a folder in the mount.
fn is_read_only(case: &Case<'_>, mount: &Map<String, Value>) -> bool {
    let volumes = case.bare.pod_spec().into_iter().flat_map(|spec| objects(spec, &["volumes"]));
    let mut volume = volumes.filter(|volume| text(volume, "name") == text(mount, "name"));
    let is_made = volume.next().is_some_and(|volume| MADE_BY_KUBELET.iter().any(|it| at(volume, &[it]).is_some()));
    mount.get("readOnly").is_some_and(|it| *it == true) && !is_made
}
