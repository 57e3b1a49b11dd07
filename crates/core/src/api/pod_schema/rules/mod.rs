//! The rules that the API server checks by hand (`pkg/apis/core/validation/validation.go` of Kubernetes 1.37), for
//! content of templates that can be checked alone.
//!
//! A rule for one field is a row of a table ([`fields`]). A rule for several fields is a function. `tests/apiserver/agreement`
//! compares both with real servers.

mod containers;
pub(super) mod fields;
mod forms;
pub(super) mod metadata;
mod pods;
mod read;
mod resources;
mod volumes;

pub(super) use pods::of_template;

use super::super::schema::{listed, quoted, similar};
use super::{FaultKind, Walk};
use read::{Members, number, objects, text};
use std::collections::HashSet;

/// A rule for objects of one definition; the text is the object's path.
type Rule = fn(&mut Walk, &Members, &str);

const RULES: [(&str, Rule); 36] = [
    ("AzureDiskVolumeSource", volumes::azure_disk),
    ("CSIVolumeSource", volumes::csi),
    ("CinderVolumeSource", volumes::secret_name),
    ("ClusterTrustBundleProjection", volumes::trust_bundle),
    ("Container", containers::container),
    ("ContainerPort", containers::container_port),
    ("ContainerRestartRule", containers::restart_rule),
    ("DownwardAPIVolumeFile", containers::downward_file),
    ("EmptyDirVolumeSource", volumes::empty_dir),
    ("EnvFromSource", containers::variables_source),
    ("EnvVar", containers::variable),
    ("EnvVarSource", containers::variable_source),
    ("FCVolumeSource", volumes::fibre_channel),
    ("FlexVolumeSource", volumes::flex),
    ("FlockerVolumeSource", volumes::flocker),
    ("GRPCAction", containers::port),
    ("HTTPGetAction", containers::http_get),
    ("ISCSIVolumeSource", volumes::iscsi),
    ("LabelSelector", volumes::label_selector),
    ("LifecycleHandler", containers::lifecycle_handler),
    ("PersistentVolumeClaimSpec", volumes::claim),
    ("PersistentVolumeClaimTemplate", volumes::claim_template),
    ("PodCertificateProjection", volumes::certificate),
    ("PodSpec", pods::pod_spec),
    ("PodTemplateSpec", pods::pod_template),
    ("Probe", containers::probe),
    ("ProjectedVolumeSource", volumes::projected),
    ("QuobyteVolumeSource", volumes::quobyte),
    ("ResourceFieldSelector", resources::field),
    ("ResourceRequirements", resources::requirements),
    ("SecurityContext", containers::security_context),
    ("SleepAction", containers::sleep),
    ("StorageOSVolumeSource", volumes::secret_name),
    ("TCPSocketAction", containers::port),
    ("Volume", volumes::volume),
    ("VolumeMount", volumes::mount),
];

/// Checks the object `members` of the definition `name`.
pub(super) fn of(name: &str, walk: &mut Walk, members: &Members, path: &str) {
    let members = &*fields::kept(name, members, walk.minor);
    if let Some((_, rule)) = RULES.iter().find(|(definition, _)| *definition == name) {
        rule(walk, members, path);
    }
    fields::of(name, walk, members, path);
    match name {
        "SeccompProfile" => containers::profile(walk, members, path, forms::BELOW),
        "AppArmorProfile" => containers::profile(walk, members, path, forms::APP_ARMOR),
        "VolumeProjection" => volumes::projection(walk, members, path),
        _ => {}
    }
}

fn within(walk: &mut Walk, members: &Members, path: &str, field: &str, bounds: std::ops::RangeInclusive<i64>) {
    if let Some(number) = number(members, field).filter(|number| !bounds.contains(number)) {
        let (least, most) = (bounds.start(), bounds.end());
        let wanted = if *most == i64::MAX {
            format!("must be {least} or more")
        } else {
            format!("must be between {least} and {most}")
        };
        walk.wrong(format!("{path}.{field}"), format!("{wanted}, is {number}"));
    }
}

/// Items of `list` whose `field` is that of an earlier one.
fn distinct(walk: &mut Walk, members: &Members, path: &str, list: &str, field: &str) {
    let mut seen = HashSet::new();
    for (index, item) in objects(members, list) {
        if let Some(name) = text(item, field).filter(|name| !seen.insert(*name)) {
            let message = format!("must be unique in the list: {} is there before", quoted(name));
            walk.blame(format!("{path}.{list}[{index}].{field}"), FaultKind::Duplicate, message);
        }
    }
}

fn must_be_one_of(choices: &[&str], found: &str) -> String {
    let hint = similar(found, choices.iter().copied());
    let hint = hint.map(|choice| format!("; did you mean `{choice}`?")).unwrap_or_default();
    format!("must be one of {}, not {}{hint}", listed(choices), quoted(found))
}
