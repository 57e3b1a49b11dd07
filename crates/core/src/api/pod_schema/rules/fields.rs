//! The rules for one field alone, as tables.

use super::super::Walk;
use super::forms::{self, Form};
use super::must_be_one_of;
use super::read::{Members, items, number, text};
use crate::api::schema::quoted;
use serde_json::Value;
use std::borrow::Cow;

/// A rule for one field of a definition.
struct Row(&'static str, &'static str, Must);

#[derive(Clone, Copy)]
enum Must {
    /// Neither absent nor empty.
    BeGiven,
    /// Of that form, unless it is empty.
    Be(Form),
    /// Of that form, also if it is empty: to the server a pointer that is set.
    BeAlways(Form),
    /// Given, and of that form.
    BeGivenAs(Form),
    /// One of these texts, where an empty text is none. `fields.txt` has the choices of other fields.
    BeOneOf(&'static [&'static str]),
    /// A number between these.
    BeWithin(i64, i64),
    /// A list of at most that many items.
    HaveAtMost(usize),
}

use Must::{Be, BeAlways, BeGiven, BeGivenAs, BeOneOf, BeWithin, HaveAtMost};

const MODE: Must = BeWithin(0, 0o777);
const USER: Must = BeWithin(0, i32::MAX as i64);
/// The number of a SCSI unit, and of a partition.
const BYTE: Must = BeWithin(0, 255);

const ROWS: &[Row] = &[
    Row("AWSElasticBlockStoreVolumeSource", "partition", BYTE),
    Row("AzureDiskVolumeSource", "cachingMode", BeOneOf(&["None", "ReadOnly", "ReadWrite"])),
    Row("AzureDiskVolumeSource", "kind", BeOneOf(&["Dedicated", "Managed", "Shared"])),
    Row("CSIVolumeSource", "driver", Be(forms::CSI_DRIVER)),
    Row("ClusterTrustBundleProjection", "path", Be(forms::UNRESERVED)),
    Row("ClusterTrustBundleProjection", "name", BeAlways(forms::TRUST_BUNDLE)),
    Row("ClusterTrustBundleProjection", "signerName", BeAlways(forms::SIGNER)),
    Row("ClusterTrustBundleProjection", "user", USER),
    Row("ConfigMapEnvSource", "name", BeGivenAs(forms::BEGINNING)),
    Row("ConfigMapKeySelector", "name", BeGivenAs(forms::SUBDOMAIN)),
    Row("ConfigMapKeySelector", "key", Be(forms::CONFIG_KEY)),
    Row("ConfigMapProjection", "name", BeGiven),
    Row("ConfigMapVolumeSource", "name", BeGiven),
    Row("ConfigMapVolumeSource", "defaultMode", MODE),
    Row("ConfigMapVolumeSource", "defaultUser", USER),
    Row("Container", "image", Be(forms::NOT_PADDED)),
    Row("Container", "name", Be(forms::LABEL)),
    Row("Container", "restartPolicyRules", HaveAtMost(20)),
    Row("ContainerResizePolicy", "resourceName", BeOneOf(&["cpu", "memory"])),
    Row("ContainerResizePolicy", "restartPolicy", BeOneOf(&["NotRequired", "RestartContainer"])),
    Row("ContainerRestartRule", "exitCodes", BeGiven),
    Row("ContainerRestartRuleOnExitCodes", "operator", BeOneOf(&["In", "NotIn"])),
    Row("ContainerRestartRuleOnExitCodes", "values", HaveAtMost(255)),
    Row("DownwardAPIVolumeFile", "mode", MODE),
    Row("DownwardAPIVolumeFile", "path", Be(forms::UNRESERVED)),
    Row("DownwardAPIVolumeFile", "user", USER),
    Row("DownwardAPIVolumeSource", "defaultMode", MODE),
    Row("DownwardAPIVolumeSource", "defaultUser", USER),
    Row("EmptyDirVolumeSource", "mode", BeWithin(0, 0o1777)),
    Row("EphemeralVolumeSource", "volumeClaimTemplate", BeGiven),
    Row("FileKeySelector", "key", Be(forms::PRINTABLE)),
    Row("FileKeySelector", "path", Be(forms::NO_STEPS_UP)),
    Row("FileKeySelector", "volumeName", Be(forms::LABEL)),
    Row("GCEPersistentDiskVolumeSource", "partition", BYTE),
    Row("GRPCAction", "mode", BeOneOf(&["Plaintext", "TLS"])),
    Row("GitRepoVolumeSource", "directory", Be(forms::BELOW)),
    Row("HTTPGetAction", "protocol", BeOneOf(&["HTTP1", "HTTP2"])),
    Row("HTTPHeader", "name", BeGivenAs(forms::HEADER)),
    Row("HostPathVolumeSource", "path", Be(forms::NO_STEPS_UP)),
    Row("ISCSIVolumeSource", "initiatorName", BeAlways(forms::ISCSI_NAME)),
    Row("ISCSIVolumeSource", "iqn", Be(forms::ISCSI_NAME)),
    Row("ISCSIVolumeSource", "lun", BYTE),
    Row("ImageVolumeSource", "reference", BeGiven),
    Row("KeyToPath", "mode", MODE),
    Row("KeyToPath", "path", Be(forms::UNRESERVED)),
    Row("KeyToPath", "user", USER),
    Row("NFSVolumeSource", "path", Be(forms::ABSOLUTE)),
    Row("ObjectFieldSelector", "apiVersion", BeOneOf(&["v1", ""])),
    Row("PersistentVolumeClaimSpec", "accessModes", BeGiven),
    Row("PersistentVolumeClaimSpec", "storageClassName", Be(forms::SUBDOMAIN)),
    Row("PersistentVolumeClaimSpec", "volumeAttributesClassName", Be(forms::SUBDOMAIN)),
    Row("PersistentVolumeClaimSpec", "volumeMode", BeOneOf(&["Block", "Filesystem"])),
    Row("PodCertificateProjection", "certificateChainPath", Be(forms::UNRESERVED)),
    Row("PodCertificateProjection", "credentialBundlePath", Be(forms::UNRESERVED)),
    Row("PodCertificateProjection", "keyPath", Be(forms::UNRESERVED)),
    Row(
        "PodCertificateProjection",
        "keyType",
        BeOneOf(&["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"]),
    ),
    Row("PodCertificateProjection", "signerName", Be(forms::SIGNER)),
    Row("PodCertificateProjection", "user", USER),
    Row("ProjectedVolumeSource", "defaultMode", MODE),
    Row("ProjectedVolumeSource", "defaultUser", USER),
    Row("QuobyteVolumeSource", "registry", Be(forms::REGISTRIES)),
    Row("ResourceClaim", "request", Be(forms::LABEL)),
    Row("ScaleIOVolumeSource", "volumeName", BeGiven),
    Row("SecretEnvSource", "name", BeGivenAs(forms::BEGINNING)),
    Row("SecretKeySelector", "name", BeGivenAs(forms::SUBDOMAIN)),
    Row("SecretKeySelector", "key", Be(forms::CONFIG_KEY)),
    Row("SecretProjection", "name", BeGiven),
    Row("SecretVolumeSource", "secretName", BeGiven),
    Row("SecretVolumeSource", "defaultMode", MODE),
    Row("SecretVolumeSource", "defaultUser", USER),
    Row("SecurityContext", "procMount", BeOneOf(&["Default", "Unmasked"])),
    Row("SecurityContext", "runAsUser", USER),
    Row("SecurityContext", "runAsGroup", USER),
    Row("ServiceAccountTokenProjection", "expirationSeconds", BeWithin(600, 1 << 32)),
    Row("ServiceAccountTokenProjection", "path", Be(forms::UNRESERVED)),
    Row("ServiceAccountTokenProjection", "user", USER),
    Row("StorageOSVolumeSource", "volumeName", BeGivenAs(forms::LABEL)),
    Row("StorageOSVolumeSource", "volumeNamespace", Be(forms::LABEL)),
    Row("TypedLocalObjectReference", "apiGroup", Be(forms::SUBDOMAIN)),
    Row("TypedObjectReference", "apiGroup", Be(forms::SUBDOMAIN)),
    Row("TypedObjectReference", "namespace", Be(forms::LABEL)),
    Row("Volume", "name", Be(forms::LABEL)),
    Row("VolumeDevice", "devicePath", Be(forms::NO_STEPS_UP)),
    Row("VolumeMount", "mountPropagation", BeOneOf(&["Bidirectional", "HostToContainer", "None"])),
    Row("VolumeMount", "recursiveReadOnly", BeOneOf(&["Disabled", "IfPossible", "Enabled"])),
    Row("VolumeMount", "subPath", Be(forms::BELOW)),
    Row("VolumeMount", "subPathExpr", Be(forms::BELOW)),
    Row("WindowsSecurityContextOptions", "gmsaCredentialSpec", BeAlways(forms::NOT_LONG)),
    Row("WindowsSecurityContextOptions", "gmsaCredentialSpecName", BeAlways(forms::SUBDOMAIN)),
    Row("WindowsSecurityContextOptions", "runAsUserName", BeAlways(forms::WINDOWS_USER)),
];

/// The first minor version that checks the form of a field, for rows that older ones lack.
const LATER: &[(&str, &str, u32)] = &[
    ("ServiceAccountTokenProjection", "path", 29),
    ("TypedLocalObjectReference", "apiGroup", 29),
    ("TypedObjectReference", "apiGroup", 29),
];

/// No known version has the feature on.
const NEVER: u32 = u32::MAX;

/// The first minor version that has the feature of a field on by default. Before it servers drop the field in silence, so
/// its value breaks no rule there.
const OFF_BEFORE: &[(&str, &str, u32)] = &[
    ("ClusterTrustBundleProjection", "user", NEVER),
    ("ConfigMapVolumeSource", "defaultUser", NEVER),
    ("Container", "resizePolicy", 33),
    ("Container", "restartPolicyRules", 35),
    ("DownwardAPIVolumeFile", "user", NEVER),
    ("DownwardAPIVolumeSource", "defaultUser", NEVER),
    ("EmptyDirVolumeSource", "mode", NEVER),
    ("EnvVarSource", "fileKeyRef", 35),
    ("GRPCAction", "mode", NEVER),
    ("HTTPGetAction", "protocol", NEVER),
    ("KeyToPath", "user", NEVER),
    ("Lifecycle", "stopSignal", NEVER),
    ("LifecycleHandler", "sleep", 30),
    ("PersistentVolumeClaimSpec", "volumeAttributesClassName", 34),
    ("PodCertificateProjection", "user", NEVER),
    ("ProjectedVolumeSource", "defaultUser", NEVER),
    ("ResourceRequirements", "claims", 34),
    ("SecretVolumeSource", "defaultUser", NEVER),
    ("SecurityContext", "procMount", 33),
    ("ServiceAccountTokenProjection", "user", NEVER),
    ("Volume", "image", 35),
    ("VolumeMount", "bindMountOptions", NEVER),
    ("VolumeMount", "recursiveReadOnly", 31),
    ("VolumeProjection", "clusterTrustBundle", 37),
    ("VolumeProjection", "podCertificate", 37),
];

/// Fields that the schema requires, and whose absence the server takes.
const NOT_ASKED: &[(&str, &str)] = &[("HTTPHeader", "value"), ("ScaleIOVolumeSource", "secretRef")];

/// Whether servers of 1.`minor` drop the field in silence.
pub(in super::super) fn is_dropped(definition: &str, field: &str, minor: u32) -> bool {
    let found = OFF_BEFORE.iter().find(|(of, name, _)| *of == definition && *name == field);
    found.is_some_and(|(.., since)| minor < *since)
}

/// Whether the absence of a field that the schema requires is a fault.
pub(in super::super) fn is_asked(definition: &str, field: &str) -> bool {
    !NOT_ASKED.contains(&(definition, field))
}

/// `members` as servers of 1.`minor` validate them: without the fields that they drop.
pub(super) fn kept<'a>(definition: &str, members: &'a Members, minor: u32) -> Cow<'a, Members> {
    if !members.keys().any(|name| is_dropped(definition, name, minor)) {
        return Cow::Borrowed(members);
    }
    let mut kept = members.clone();
    kept.retain(|name, _| !is_dropped(definition, name, minor));
    Cow::Owned(kept)
}

/// Checks each field of the object `members` by its row.
pub(super) fn of(definition: &str, walk: &mut Walk, members: &Members, path: &str) {
    for Row(_, field, must) in ROWS.iter().filter(|Row(of, ..)| *of == definition) {
        let is_later = LATER.iter().any(|(of, name, since)| (of, name) == (&definition, field) && walk.minor < *since);
        if is_later {
            continue;
        }
        check(walk, members, path, field, *must);
    }
}

fn check(walk: &mut Walk, members: &Members, path: &str, field: &str, must: Must) {
    let value = members.get(field).filter(|value| !value.is_null());
    let at = format!("{path}.{field}");
    match must {
        BeGiven => given(walk, value, path, field),
        Be(form) => in_form(walk, text(members, field), at, form),
        BeAlways(form) => in_form(walk, value.and_then(Value::as_str), at, form),
        BeGivenAs(form) => {
            given(walk, value, path, field);
            in_form(walk, text(members, field), at, form);
        }
        BeOneOf(choices) => {
            if let Some(found) = value.and_then(Value::as_str).filter(|found| !choices.contains(found)) {
                walk.wrong(at, must_be_one_of(choices, found));
            }
        }
        BeWithin(0, 0o777) => {
            if let Some(found) = number(members, field).filter(|found| !(0..=0o777).contains(found)) {
                let message = format!("must be between 0 and 0777 (in JSON, and quoted nowhere: 0 to 511), is {found}");
                walk.wrong(at, message);
            }
        }
        BeWithin(least, most) => super::within(walk, members, path, field, least..=most),
        HaveAtMost(most) => {
            let count = items(members, field).len();
            if count > most {
                walk.wrong(at, format!("must have at most {most} items, has {count}"));
            }
        }
    }
}

fn given(walk: &mut Walk, value: Option<&Value>, path: &str, field: &str) {
    let is_empty = match value {
        None => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    };
    if is_empty && !walk.is_meant(field, path) {
        walk.wrong(format!("{path}.{field}"), "must be given");
    }
}

fn in_form(walk: &mut Walk, text: Option<&str>, at: String, form: Form) {
    if let Some(found) = text.filter(|text| !(form.holds)(text)) {
        walk.wrong(at, format!("must be {}, not {}", form.words, quoted(found)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::table;
    use super::*;

    #[test]
    fn each_row_names_a_field_of_the_schema() {
        let rows = ROWS.iter().map(|Row(of, field, _)| (*of, *field));
        let dated = OFF_BEFORE.iter().chain(LATER).map(|(of, field, _)| (*of, *field));
        let rows = rows.chain(dated).chain(NOT_ASKED.iter().copied());
        for (definition, field) in rows {
            let is_there = table::fields(definition).iter().any(|known| known.name == field);
            assert!(is_there, "{definition}.{field}");
        }
    }
}
