//! The rules for mounts and volumes.

use super::super::{FaultKind, Walk};
use super::forms;
use super::must_be_one_of;
use super::read::{Members, amount, given, has, is_true, items, number, object, objects, text};
use crate::api::format;
use crate::api::schema::{listed, quoted};
use serde_json::Value;
use std::collections::HashSet;

const NO_PROPAGATION: &str = "None";

pub(super) fn mount(walk: &mut Walk, members: &Members, path: &str) {
    if text(members, "subPath").is_some() && text(members, "subPathExpr").is_some() {
        walk.wrong(format!("{path}.subPathExpr"), "must be left out beside `subPath`");
    }
    let is_recursive = ["IfPossible", "Enabled"].map(Some).contains(&text(members, "recursiveReadOnly"));
    if is_recursive && !is_true(members, "readOnly") {
        walk.wrong(format!("{path}.recursiveReadOnly"), "needs `readOnly: true`");
    }
    if is_recursive && text(members, "mountPropagation").is_some_and(|found| found != NO_PROPAGATION) {
        walk.wrong(format!("{path}.recursiveReadOnly"), "needs `mountPropagation: None`");
    }
}

pub(super) fn volume(walk: &mut Walk, members: &Members, path: &str) {
    // None is fine, because the server makes it an `emptyDir`.
    let known: Vec<_> = super::super::table::fields("Volume").iter().map(|field| field.name).collect();
    let sources = members.iter().filter(|(name, value)| *name != "name" && value.is_object()).map(|(name, _)| &**name);
    let sources: Vec<_> = sources.filter(|name| known.contains(name)).collect();
    if sources.len() > 1 {
        walk.wrong(path, format!("must have one source, has {}", listed(&sources)));
    }
    if let Some(iscsi) = object(members, "iscsi").filter(|iscsi| has(iscsi, "initiatorName")) {
        let length = |members, field| text(members, field).map_or(0, str::len);
        if length(members, "name") + 1 + length(iscsi, "targetPortal") > 64 {
            let message =
                "must have at most 63 characters together with `iscsi.targetPortal`, if there is an `initiatorName`";
            walk.wrong(format!("{path}.name"), message);
        }
    }
}

pub(super) fn empty_dir(walk: &mut Walk, members: &Members, path: &str) {
    const MEDIA: [&str; 2] = ["Memory", "HugePages"];
    let medium = text(members, "medium");
    // The server takes any medium. The kubelet does not.
    if let Some(medium) = medium.filter(|medium| !MEDIA.contains(medium) && !medium.starts_with("HugePages-")) {
        walk.wrong(format!("{path}.medium"), must_be_one_of(&MEDIA, medium));
    }
    if amount(members.get("sizeLimit")).is_some_and(|limit| limit < 0) {
        walk.wrong(format!("{path}.sizeLimit"), "must not be negative");
    }
}

// Projected volumes

pub(super) fn projection(walk: &mut Walk, members: &Members, path: &str) {
    let sources: Vec<_> = members.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| &**name).collect();
    if sources.len() > 1 {
        walk.wrong(path, format!("must have one source, has {}", listed(&sources)));
    }
}

/// The fields of a source that each name a file.
const FILES: [(&str, &[&str]); 2] = [
    ("clusterTrustBundle", &["path"]),
    ("podCertificate", &["credentialBundlePath", "keyPath", "certificateChainPath"]),
];

/// Files of one path. The server does not look at those of tokens.
pub(super) fn projected(walk: &mut Walk, members: &Members, path: &str) {
    let mut seen = HashSet::new();
    let mut see = |walk: &mut Walk, file: &str, at: String| {
        if !file.is_empty() && !seen.insert(file.to_owned()) {
            let message = format!("must be unique in the volume: {} is there before", quoted(file));
            walk.blame(at, FaultKind::Duplicate, message);
        }
    };
    for (index, source) in objects(members, "sources") {
        let source = &*super::fields::kept("VolumeProjection", source, walk.minor);
        let path = format!("{path}.sources[{index}]");
        for kind in ["secret", "configMap", "downwardAPI"] {
            for (index, item) in object(source, kind).into_iter().flat_map(|of| objects(of, "items")) {
                see(walk, text(item, "path").unwrap_or_default(), format!("{path}.{kind}.items[{index}].path"));
            }
        }
        for (kind, fields) in FILES {
            let Some(of) = object(source, kind) else { continue };
            for field in fields {
                see(walk, text(of, field).unwrap_or_default(), format!("{path}.{kind}.{field}"));
            }
        }
    }
}

pub(super) fn trust_bundle(walk: &mut Walk, members: &Members, path: &str) {
    match given(members, &["name", "signerName"])[..] {
        ["name"] if has(members, "labelSelector") => {
            walk.wrong(format!("{path}.labelSelector"), "must be left out beside `name`");
        }
        [_] => {}
        [] => walk.wrong(path, "must have one of `name`, `signerName`"),
        _ => walk.wrong(path, "must have only one of `name`, `signerName`"),
    }
}

pub(super) fn certificate(walk: &mut Walk, members: &Members, path: &str) {
    const DAY: i64 = 24 * 60 * 60;
    let host = text(members, "signerName").unwrap_or_default().split('/').next().unwrap_or_default();
    let most = if host == "kubernetes.io" || host.ends_with(".kubernetes.io") { DAY } else { 91 * DAY };
    super::within(walk, members, path, "maxExpirationSeconds", 3600..=most);
    let files = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    if files.iter().all(|file| text(members, file).is_none()) {
        walk.wrong(path, format!("must have one of {}", listed(&files)));
    }
    for key in object(members, "userAnnotations").into_iter().flat_map(Members::keys) {
        if !(key.contains('/') && format::is_key(&key.to_lowercase())) {
            let message = "must be a key with a domain, such as `example.com/name`";
            walk.wrong(format!("{path}.userAnnotations.{key}"), message);
        }
    }
}

// Volumes of one kind each

pub(super) fn azure_disk(walk: &mut Walk, members: &Members, path: &str) {
    let kind = text(members, "kind").unwrap_or("Shared");
    let beginning = if kind == "Managed" { "/subscriptions/" } else { "https://" };
    if let Some(uri) = text(members, "diskURI").filter(|uri| !uri.starts_with(beginning)) {
        let message = format!("must begin with `{beginning}` as `kind` is `{kind}`, not {}", quoted(uri));
        walk.wrong(format!("{path}.diskURI"), message);
    }
}

pub(super) fn csi(walk: &mut Walk, members: &Members, path: &str) {
    let Some(secret) = object(members, "nodePublishSecretRef") else { return };
    let at = format!("{path}.nodePublishSecretRef.name");
    match text(secret, "name") {
        None => walk.wrong(at, "must be given"),
        Some(name) if !(forms::SUBDOMAIN.holds)(name) => {
            walk.wrong(at, format!("must be {}, not {}", forms::SUBDOMAIN.words, quoted(name)));
        }
        Some(_) => {}
    }
}

/// Volumes whose Secret, if there is one, has a name.
pub(super) fn secret_name(walk: &mut Walk, members: &Members, path: &str) {
    if object(members, "secretRef").is_some_and(|secret| text(secret, "name").is_none()) {
        walk.wrong(format!("{path}.secretRef.name"), "must be given");
    }
}

pub(super) fn fibre_channel(walk: &mut Walk, members: &Members, path: &str) {
    match (items(members, "targetWWNs").is_empty(), items(members, "wwids").is_empty()) {
        (true, true) => walk.wrong(path, "must have one of `targetWWNs`, `wwids`"),
        (false, false) => walk.wrong(path, "must have only one of `targetWWNs`, `wwids`"),
        (true, false) => {}
        (false, true) => match number(members, "lun") {
            None => walk.wrong(format!("{path}.lun"), "must be given, as `targetWWNs` is"),
            Some(_) => super::within(walk, members, path, "lun", 0..=255),
        },
    }
}

pub(super) fn flex(walk: &mut Walk, members: &Members, path: &str) {
    for key in object(members, "options").into_iter().flat_map(Members::keys) {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            walk.wrong(
                format!("{path}.options.{key}"),
                "must have another domain: Kubernetes keeps this one for itself",
            );
        }
    }
}

pub(super) fn flocker(walk: &mut Walk, members: &Members, path: &str) {
    match (text(members, "datasetName"), text(members, "datasetUUID")) {
        (None, None) => walk.wrong(path, "must have one of `datasetName`, `datasetUUID`"),
        (Some(_), Some(_)) => walk.wrong(path, "must have only one of `datasetName`, `datasetUUID`"),
        (Some(name), None) if name.contains('/') => {
            walk.wrong(format!("{path}.datasetName"), format!("must have no `/`, as {} does", quoted(name)));
        }
        _ => {}
    }
}

pub(super) fn iscsi(walk: &mut Walk, members: &Members, path: &str) {
    let has_password = ["chapAuthDiscovery", "chapAuthSession"].iter().any(|field| is_true(members, field));
    if has_password && !has(members, "secretRef") {
        walk.wrong(format!("{path}.secretRef"), "must be given, as CHAP is on");
    }
}

pub(super) fn quobyte(walk: &mut Walk, members: &Members, path: &str) {
    if text(members, "tenant").is_some_and(|tenant| tenant.len() > 64) {
        walk.wrong(format!("{path}.tenant"), "must have at most 64 characters");
    }
}

// Claims

pub(super) fn claim_template(walk: &mut Walk, members: &Members, path: &str) {
    let Some(metadata) = object(members, "metadata") else { return };
    let path = format!("{path}.metadata");
    for (field, value) in metadata {
        let is_zero = value.is_null() || value == "" || value == 0 || value == &Value::Array(Vec::new());
        if field != "labels" && field != "annotations" && !is_zero {
            walk.wrong(
                format!("{path}.{field}"),
                "must be left out: a template of claims has labels and annotations only",
            );
        }
    }
    super::metadata::keys(walk, metadata, &path);
    super::metadata::of(walk, Some(&Value::Object(metadata.clone())), &path);
}

pub(super) fn claim(walk: &mut Walk, members: &Members, path: &str) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let modes = || items(members, "accessModes").iter().filter_map(Value::as_str);
    for mode in modes().filter(|mode| !MODES.contains(mode)) {
        walk.wrong(format!("{path}.accessModes"), must_be_one_of(&MODES, mode));
    }
    if modes().any(|mode| mode == MODES[3]) && modes().any(|mode| mode != MODES[3]) {
        walk.wrong(format!("{path}.accessModes"), "must have nothing beside `ReadWriteOncePod`");
    }
    let storage = object(members, "resources").and_then(|of| object(of, "requests")?.get("storage"));
    if amount(storage).is_none_or(|storage| storage <= 0) {
        walk.wrong(format!("{path}.resources.requests.storage"), "must be given, and more than 0");
    }
    data_sources(walk, members, path);
}

fn data_sources(walk: &mut Walk, members: &Members, path: &str) {
    let sources = ["dataSource", "dataSourceRef"].map(|field| (field, object(members, field)));
    for (field, source) in sources {
        let Some(source) = source else { continue };
        if text(source, "apiGroup").is_none()
            && text(source, "kind").is_some_and(|kind| kind != "PersistentVolumeClaim")
        {
            let message = "must be `PersistentVolumeClaim` without an `apiGroup`";
            walk.wrong(format!("{path}.{field}.kind"), message);
        }
    }
    let [(_, Some(old)), (_, Some(new))] = sources else { return };
    let differs = ["apiGroup", "kind", "name"].iter().any(|field| old.get(*field) != new.get(*field));
    if differs || text(new, "namespace").is_some() {
        walk.wrong(format!("{path}.dataSource"), "must be left out, or be `dataSourceRef`");
    }
}

pub(super) fn label_selector(walk: &mut Walk, members: &Members, path: &str) {
    let metadata = Members::from_iter([("labels".to_owned(), members.get("matchLabels").cloned().unwrap_or_default())]);
    super::metadata::labels(walk, &metadata, &format!("{path}.matchLabels"));
    for (index, wanted) in objects(members, "matchExpressions") {
        let path = format!("{path}.matchExpressions[{index}]");
        let count = items(wanted, "values").len();
        match text(wanted, "operator").unwrap_or_default() {
            "In" | "NotIn" if count == 0 => walk.wrong(format!("{path}.values"), "must have at least one value"),
            "Exists" | "DoesNotExist" if count > 0 => walk.wrong(format!("{path}.values"), "must have no value"),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
                walk.wrong(format!("{path}.operator"), must_be_one_of(&operators, other));
            }
        }
        if text(wanted, "key").is_some_and(|key| !format::is_key(key)) {
            walk.wrong(format!("{path}.key"), "must be the key of a label");
        }
        let is_value = |value: &Value| value.as_str().is_none_or(format::is_label_value);
        if !items(wanted, "values").iter().all(is_value) {
            walk.wrong(format!("{path}.values"), "must be values of a label");
        }
    }
}
