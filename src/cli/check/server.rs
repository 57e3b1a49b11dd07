//! Checks of the server itself, and of the CustomResourceDefinition.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::api::condition::condition_in;
use crate::api::crd;
use crate::cli::installed::Piece;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The minor versions of Kubernetes 1 that the tests start; see tests/controlplane/versions.txt.
const TESTED: [RangeInclusive<u32>; 2] = [13..=13, 16..=37];
/// The first minor version with the basics that the operator needs: Leases, and dry-run creates.
const FIRST: u32 = 12;
/// The most fields that a message names as missing.
const NAMED: usize = 3;

pub(super) async fn check(subject: &CheckSubject<'_>, is_early: bool) -> Vec<CheckItem> {
    let server = subject.server();
    let mixed = server.mixed().map(|versions| {
        let message =
            format!("they are of different versions ({versions}); an engine is used once all of them can serve it");
        CheckItem::ok("API servers", message)
    });
    let version = version(&server.version, server.minor);
    [version].into_iter().chain(mixed).chain([definition(subject, is_early).await]).collect()
}

fn version(version: &str, (major, minor): (u32, u32)) -> CheckItem {
    match (major, minor) {
        (0, 0) => {
            CheckItem::warning("server", Code::VersionUnsupported, format!("its version `{version}` cannot be read"))
                .with_fix("What depends on the version counts as not there.")
        }
        (1, minor) if minor < FIRST => {
            CheckItem::problem("server", Code::VersionUnsupported, format!("{version} is older than 1.{FIRST}"))
                .with_fix(format!("Use a server of 1.{FIRST} or later."))
        }
        (1, minor) if is_tested(minor) => CheckItem::ok("server", format!("{version}, which is tested")),
        _ => {
            let tested = TESTED.map(|range| match range.into_inner() {
                (first, last) if first == last => format!("1.{first}"),
                (first, last) => format!("1.{first} to 1.{last}"),
            });
            CheckItem::ok("server", format!("{version}, which is supported; tested are {}", tested.join(" and ")))
        }
    }
}

fn is_tested(minor: u32) -> bool {
    TESTED.iter().any(|range| range.contains(&minor))
}

async fn definition(subject: &CheckSubject<'_>, is_early: bool) -> CheckItem {
    const CHECK: &str = "CRD";
    match subject.installed.definition().await {
        Err(error) => CheckItem::unknown(CHECK, &error),
        Ok(None) if is_early => CheckItem::ok(CHECK, "not there yet: the install file brings it"),
        Ok(None) => CheckItem::problem(CHECK, Code::NotInstalled, "the server has no SidecarPolicies"),
        Ok(Some(piece)) => stored_definition(CHECK, &piece),
    }
}

fn stored_definition(check: &str, piece: &Piece) -> CheckItem {
    let body = piece.object.value();
    if piece.is_terminating() {
        return CheckItem::problem(check, Code::NotInstalled, "the CRD is being deleted, and with it every policy");
    }
    let established = condition_in(&body["status"], "Established");
    if established.is_none_or(|condition| condition["status"] != "True") {
        let why =
            established.and_then(|condition| condition["message"].as_str()).unwrap_or("the server gives no reason");
        return CheckItem::problem(check, Code::NotInstalled, format!("the server does not serve the CRD: {why}"));
    }
    let ours = if body["apiVersion"] == "apiextensions.k8s.io/v1" {
        serde_json::to_value(crd::v1()).unwrap_or_default()
    } else {
        crd::v1beta1()
    };
    match differences(&fields(&schema(&body)), &fields(&schema(&ours))) {
        None => CheckItem::ok(check, "established, with the fields of this release"),
        Some(difference) => CheckItem::problem(
            check,
            Code::ReleasesDiffer,
            format!("the CRD is of another release: {difference}"),
        )
        .with_fix(
            "Apply the CRD of this release: `scpol crd | kubectl apply -f -` (below 1.16 `scpol crd --api v1beta1`).",
        ),
    }
}

/// The schema of our version, at either of the two places where servers keep it.
fn schema(definition: &Value) -> Value {
    let spec = &definition["spec"];
    let versions = spec["versions"].as_array().into_iter().flatten();
    let version = versions.into_iter().find(|version| version["name"] == "v1alpha1" && version["served"] == true);
    let own = version.map(|version| &version["schema"]["openAPIV3Schema"]).filter(|schema| !schema.is_null());
    own.unwrap_or(&spec["validation"]["openAPIV3Schema"]).clone()
}

/// The paths of all fields, and their enum values. Servers complete a schema in different ways, so descriptions and
/// bounds are not compared.
fn fields(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = vec![(String::new(), schema)];
    while let Some((path, schema)) = left.pop() {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            left.push((path.clone(), field));
            found.insert(path);
        }
        if schema["items"].is_object() {
            left.push((format!("{path}[]"), &schema["items"]));
        }
        for value in schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            found.insert(format!("{path}={value}"));
        }
    }
    found.retain(|path| path.starts_with(".spec") || path.starts_with(".status"));
    found
}

/// The fields that only one side has.
fn differences(there: &BTreeSet<String>, ours: &BTreeSet<String>) -> Option<String> {
    let told = |words: &str, fields: Vec<&String>| {
        let named = fields.iter().take(NAMED).map(|field| format!("`{}`", field.trim_start_matches('.')));
        let more = fields.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!fields.is_empty()).then(|| format!("{words} {}{more}", named.collect::<Vec<_>>().join(", ")))
    };
    let parts =
        [told("it lacks", ours.difference(there).collect()), told("it also has", there.difference(ours).collect())];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::report::CheckLevel;

    #[test]
    fn a_definition_without_a_field_or_a_value_of_this_release_is_told() {
        let ours = serde_json::to_value(crd::v1()).expect("JSON");
        let mut old = ours.clone();
        let spec = &mut old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        spec.as_object_mut().expect("properties").remove("validations");
        spec["engine"]["enum"] = serde_json::json!(["Auto", "Initializer"]);
        let told = differences(&fields(&schema(&old)), &fields(&schema(&ours))).expect("it differs");
        assert!(
            told.starts_with(
                "it lacks `spec.engine=MutatingAdmissionPolicy`, `spec.engine=Webhook`, `spec.validations`"
            ),
            "{told}"
        );
        let newer = differences(&fields(&schema(&ours)), &fields(&schema(&old))).expect("it differs");
        assert!(newer.starts_with("it also has"), "{newer}");
        assert_eq!(
            differences(&fields(&schema(&ours)), &fields(&schema(&crd::v1beta1()))),
            None,
            "in both words the same"
        );
    }

    #[test]
    fn the_tested_versions_are_those_that_the_tests_can_start() {
        let table = include_str!("../../../tests/controlplane/versions.txt");
        let minors = table.lines().filter_map(|line| line.split_whitespace().next()?.strip_prefix("1.")?.parse().ok());
        let minors: Vec<u32> = minors.collect();
        let tested: Vec<u32> = (0..100).filter(|minor| is_tested(*minor)).collect();
        assert_eq!(minors, tested);
    }

    #[test]
    fn a_version_is_judged_by_what_the_operator_needs() {
        let level = |minor| version("x", minor).told().0;
        assert_eq!(
            [(1, 11), (1, 12), (1, 36), (2, 0), (0, 0)].map(level),
            [CheckLevel::Problem, CheckLevel::Ok, CheckLevel::Ok, CheckLevel::Ok, CheckLevel::Warning]
        );
    }
}
