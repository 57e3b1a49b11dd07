//! Tests of the API for users: generated files are current, and rules give the results of the corpus.
//!
//! `make crds` (`UPDATE=1 cargo test --test offline crd`) rewrites the generated files.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::assert_current;
use serde_json::{Value, json};
use sidecar_policy::api::code::Code;
use sidecar_policy::api::crd;
use sidecar_policy::api::rules::{self, Rules, Violation};
use std::collections::HashSet;
use std::fmt::Write;
use std::process::Command;

fn violations(object: &Value) -> Vec<Violation> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match rules::decode(&object["spec"]) {
        Ok(spec) => rules::check(name, &spec, &Rules::default()),
        Err(violations) => violations,
    }
}

fn explained(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(|violation| format!("\n  {} {}: {}", violation.code, violation.field, violation.message))
        .collect()
}

#[test]
fn the_definition_for_current_servers_is_current() {
    assert_current("crds/sidecarpolicies.yaml", &crd::yaml(&crd::v1()).unwrap(), "crds");
}

#[test]
fn the_definition_for_old_servers_is_current() {
    assert_current("crds/sidecarpolicies.v1beta1.yaml", &crd::yaml(&crd::v1beta1()).unwrap(), "crds");
}

#[test]
fn the_command_prints_the_definitions() {
    for (api, generated) in [("v1", crd::yaml(&crd::v1()).unwrap()), ("v1beta1", crd::yaml(&crd::v1beta1()).unwrap())] {
        let output = Command::new(env!("CARGO_BIN_EXE_scpol")).args(["crd", "--api", api]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8(output.stdout).unwrap() == generated, "scpol crd --api {api} prints something else");
    }
}

#[test]
fn the_page_of_codes_is_current() {
    assert_current("docs/codes.md", &codes_page(), "crds");
}

#[test]
fn the_page_of_readers_is_current() {
    assert_current("docs/readers.md", &sidecar_policy::readers::page(), "crds");
}

#[test]
fn the_page_of_fields_is_current() {
    let definition = serde_json::to_value(crd::v1()).unwrap();
    let fields = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut page = "# Fields\n\nEvery field of `spec` and of `status`, with the text of `kubectl explain sidecarpolicies.spec`. Generated \
                    from `crates/core/src/api/v1alpha1.rs` by `make crds`.\n\nYou write `spec`. The operator writes `status`, and \
                    nothing else of a policy. The counts of `status` may be up to 10 seconds old.\n"
        .to_owned();
    for part in ["spec", "status"] {
        describe(&fields[part], part, &mut page);
    }
    assert_current("docs/fields.md", &page, "crds");
}

/// A section per field, followed by those of its subfields.
fn describe(schema: &Value, path: &str, page: &mut String) {
    let (schema, path) = match schema.get("items") {
        Some(items) => (items, format!("{path}[]")),
        None => (schema, path.to_owned()),
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let type_ = field["type"].as_str().unwrap_or("object");
        let text = field["description"].as_str().unwrap_or_default();
        let choices: Vec<_> = field["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|choice| format!("`{}`", choice.as_str().unwrap()))
            .collect();
        write!(page, "\n## `{path}`\n\n*{type_}*").unwrap();
        if !choices.is_empty() {
            write!(page, ", one of {}", choices.join(", ")).unwrap();
        }
        writeln!(page, ". {text}").unwrap();
        describe(field, &path, page);
    }
}

/// The page with one section per code, so that each code has an anchor.
fn codes_page() -> String {
    const PARTS: [(u16, &str); 5] = [
        (0, "SCP00xx: about a policy"),
        (100, "SCP01xx: a workload was left out"),
        (200, "SCP02xx: a workload could not be injected"),
        (300, "SCP03xx: about the system"),
        (400, "SCP04xx: about a rollout"),
    ];
    let mut page = "# Codes\n\nEvery reason that is ever given, in conditions, events, metrics, logs and command output. Generated from \
                    `crates/core/src/api/code.rs` by `make crds`.\n"
        .to_owned();
    for (first, title) in PARTS {
        let mut codes: Vec<_> =
            Code::ALL.iter().copied().filter(|&code| (first..first + 100).contains(&(code as u16))).collect();
        codes.sort();
        write!(page, "\n## {title}\n").unwrap();
        for code in codes {
            write!(page, "\n### {code} {}\n\n{}\n", code.name(), code.meaning()).unwrap();
            if !code.fix().is_empty() {
                write!(page, "\n**What to do:** {}\n", code.fix()).unwrap();
            }
        }
    }
    page
}

#[test]
fn the_definition_is_small_enough_for_every_client() {
    let json = serde_json::to_string(&crd::v1()).unwrap();
    // `kubectl apply` keeps a copy in an annotation, and annotations have 256 KiB in all.
    assert!(json.len() <= 200 * 1024, "{} bytes", json.len());
}

#[test]
fn every_field_is_documented() {
    let definition = serde_json::to_value(crd::v1()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut bare = Vec::new();
    for part in ["spec", "status"] {
        undocumented(&schema[part], part, &mut bare);
    }
    assert!(bare.is_empty(), "without a description: {bare:?}");
}

fn undocumented(schema: &Value, path: &str, bare: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(str::is_empty) {
        bare.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        undocumented(property, &format!("{path}.{name}"), bare);
    }
    for (name, property) in schema["items"]["properties"].as_object().into_iter().flatten() {
        undocumented(property, &format!("{path}[].{name}"), bare);
    }
}

#[test]
fn the_definition_for_old_servers_has_only_what_they_know() {
    let definition = crd::v1beta1();
    let text = definition["spec"]["validation"].to_string();
    for keyword in
        ["\"default\":", "\"nullable\":", "\"x-kubernetes-", "\"$ref\":", "\"additionalProperties\":false", "null"]
    {
        assert!(!text.contains(keyword), "{keyword}");
    }
    assert_eq!(definition["apiVersion"], "apiextensions.k8s.io/v1beta1");
    assert_eq!(definition["spec"]["version"], "v1alpha1");
    let columns: Vec<_> = definition["spec"]["additionalPrinterColumns"].as_array().unwrap().iter().collect();
    assert!(columns.iter().all(|column| column["JSONPath"].is_string() && column["jsonPath"].is_null()));
    let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "Ready",
            "Programmed",
            "Reason",
            "Engine",
            "Matched",
            "Injected",
            "Edited",
            "Updated",
            "Age",
            "Message",
            "Initializer"
        ]
    );
}

#[test]
fn the_generated_yaml_is_read_back_as_it_was() {
    for definition in [serde_json::to_value(crd::v1()).unwrap(), crd::v1beta1()] {
        let yaml = crd::yaml(&definition).unwrap();
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), definition);
        assert!(yaml.lines().all(|line| line == line.trim_end()), "no line ends in blanks");
    }
}

#[test]
fn valid_policies_have_no_fault() {
    let cases = crate::policies::valid();
    assert!(cases.len() >= 10, "{} cases", cases.len());
    let faulty: Vec<_> = cases
        .iter()
        .map(|case| (&case.name, violations(&case.object)))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    let text: String = faulty.iter().map(|(name, found)| format!("\n{name}:{}", explained(found))).collect();
    assert!(faulty.is_empty(), "{text}");
}

#[test]
fn invalid_policies_have_exactly_the_faults_that_they_name() {
    let cases = crate::policies::invalid();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let mut wrong = String::new();
    for case in &cases {
        let found = violations(&case.object);
        let named: Vec<_> = found.iter().map(|violation| format!("{} {}", violation.code, violation.field)).collect();
        if named != case.expected || named.is_empty() {
            write!(wrong, "\n{}: expected {:?}, found{}", case.name, case.expected, explained(&found)).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn whatever_is_wrong_with_a_field_is_found_first_and_nothing_is_said_of_other_fields() {
    let damaged = crate::policies::damaged();
    let mut wrong = String::new();
    for case in &damaged {
        let found = violations(&case.object);
        let first = found.first().map(|violation| format!("{} {}", violation.code, violation.field));
        let (_, field) = case.expected.split_once(' ').unwrap();
        // Faults within one item count as one, because an unknown group also makes its resource unknown.
        let part = field.rfind(']').map_or(field, |end| &field[..=end]);
        let is_apart =
            |violation: &Violation| !violation.field.starts_with(part) && !part.starts_with(&violation.field);
        if first.as_ref() != Some(&case.expected) || found.iter().any(is_apart) {
            write!(wrong, "\n{}: expected {}, found{}", case.what, case.expected, explained(&found)).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let distinct: HashSet<_> = damaged.iter().map(|case| case.object["spec"].to_string()).collect();
    println!("{} damaged policies, {} distinct specs", damaged.len(), distinct.len());
    assert!(distinct.len() >= 300, "{} distinct damaged policies", distinct.len());
}

#[test]
fn what_a_current_server_stores_an_old_one_stores_too() {
    for case in crate::policies::invalid() {
        let stored_by: Vec<_> = case.stored_by.iter().map(String::as_str).collect();
        assert!([&[][..], &["1.13"], &["1.13", "1.37"]].contains(&&stored_by[..]), "{}: {stored_by:?}", case.name);
    }
}

#[test]
fn every_message_says_what_the_field_must_be() {
    for case in crate::policies::invalid() {
        for violation in violations(&case.object) {
            let is_told = violation.message.starts_with("must ") || violation.code == Code::UnknownField;
            assert!(is_told && violation.message.len() <= 420, "{}: {}", case.name, violation.message);
        }
    }
}

#[test]
fn no_value_of_any_kind_in_any_place_is_unreadable_or_ends_in_a_panic() {
    for case in crate::policies::valid().iter().chain(&crate::policies::invalid()) {
        for mutant in crate::policies::mutants(&case.object) {
            let found = violations(&mutant);
            let unreadable = found.iter().find(|violation| violation.message.starts_with("cannot be read"));
            assert_eq!(unreadable, None, "the schema and the types disagree about {mutant}");
        }
    }
}

#[test]
fn null_is_as_good_as_absent() {
    let spec = json!({
        "namespaces": null, "targets": null, "priority": null, "engine": null, "suspend": null, "position": { "containers": null },
        "annotationSelector": { "matchAnnotations": null, "matchExpressions": [{ "key": "a", "operator": "Exists", "values": null }] },
        "template": { "volumes": null, "containers": [{ "name": "envoy", "image": "e", "args": null }] },
    });
    let spec = rules::decode(&spec).unwrap();
    assert_eq!(rules::check("envoy", &spec, &Rules::default()), []);
    assert_eq!(spec.targets[0].resource, "deployments");
    assert_eq!(
        spec.template.unwrap().containers[0]["args"],
        Value::Null,
        "what the schema does not know is kept as written"
    );
}

#[test]
fn an_unknown_field_gets_a_suggestion() {
    let found = rules::decode(&json!({ "namespace": ["shop"], "optout": "Denied", "zzz": 1 })).unwrap_err();
    let messages: Vec<_> =
        found.iter().map(|violation| (violation.field.as_str(), violation.message.as_str())).collect();
    assert_eq!(messages[0], ("spec.namespace", "there is no such field; did you mean `namespaces`?"));
    assert_eq!(messages[1], ("spec.optout", "there is no such field; did you mean `optOut`?"));
    assert!(messages[2].1.contains("the fields here are `annotationSelector`, `engine`"), "{:?}", messages[2]);
}

#[test]
fn an_initializer_name_given_by_a_flag_may_be_used() {
    let site = Rules { initializer_names: ["envoy.initializer.example.com".to_owned()].into(), ..Rules::default() };
    let spec =
        json!({ "initializerName": "envoy.initializer.example.com", "template": { "volumes": [{ "name": "v" }] } });
    let spec = rules::decode(&spec).unwrap();
    assert_eq!(rules::check("envoy", &spec, &site), []);
    assert_eq!(rules::check("envoy", &spec, &Rules::default())[0].code, Code::InvalidInitializerName);
}
