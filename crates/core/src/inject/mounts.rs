//! Mounts below other mounts of a container: the container runtime makes their folder, unless the mount above is read-only.

use super::value::{at, text};
use crate::api::v1alpha1::RawObject;

/// Sources for which the kubelet makes the folders of mounts below (`MakeNestedMountpoints`).
const MADE_BY_KUBELET: [&str; 4] = ["configMap", "secret", "downwardAPI", "projected"];

/// The nearest of `mounts` above `path`.
pub(crate) fn parent<'a>(path: &str, mounts: impl Iterator<Item = &'a RawObject>) -> Option<&'a RawObject> {
    let is_above = |mount: &&RawObject| {
        let parent = text(mount, "mountPath").trim_end_matches('/');
        path.strip_prefix(parent).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
    };
    mounts.filter(is_above).max_by_key(|mount| text(mount, "mountPath").trim_end_matches('/').len())
}

/// Whether nobody can make a folder in `mount`, whose volume is `volume`.
pub(crate) fn is_closed(mount: &RawObject, volume: Option<&RawObject>) -> bool {
    let is_made = volume.is_some_and(|volume| MADE_BY_KUBELET.iter().any(|source| at(volume, &[source]).is_some()));
    mount.get("readOnly").is_some_and(|it| *it == true) && !is_made
}
