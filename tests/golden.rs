//! Every folder of `tests/golden` is a case: `policy.yaml` (one or more policies) injected into `workload.yaml` gives
//! `expected.yaml`, and `expected-conflict.txt` tells what could not be injected. A case is added without Rust:
//! write the first two files, run `UPDATE=1 cargo test --test golden`, and read what it wrote.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod undo;

use serde_json::Value;
use sidecar_policy::api::v1alpha1::SidecarPolicySpec;
use sidecar_policy::inject::{self, Conflict, Template};
use sidecar_policy::workload::{KINDS, Workload};
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_case_gives_what_is_expected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases: Vec<PathBuf> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    cases.sort();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let failures: Vec<String> = cases.iter().filter_map(|case| run(case).err()).collect();
    assert!(failures.is_empty(), "{} of {} cases fail\n\n{}", failures.len(), cases.len(), failures.join("\n\n"));
}

fn run(case: &Path) -> Result<(), String> {
    let name = case.file_name().unwrap().to_string_lossy();
    let templates = templates(&case.join("policy.yaml"));
    let workload = workload(&documents(&case.join("workload.yaml"))[0]);
    let outcome = inject(&workload, &templates).map_err(|fault| format!("{name}: {fault}"))?;
    let conflicts = Some(outcome.conflicts.join("\n") + "\n").filter(|text| text != "\n");
    let body = Some(&outcome.body).filter(|_| outcome.conflicts.is_empty() || outcome.body != workload.body);
    let (yaml, text) = (case.join("expected.yaml"), case.join("expected-conflict.txt"));
    if std::env::var_os("UPDATE").is_some() {
        let known = yaml.exists().then(|| documents(&yaml)[0].clone());
        if known.as_ref() != body {
            write(&yaml, body.map(|body| serde_saphyr::to_string(body).unwrap()));
        }
        write(&text, conflicts.clone());
    }
    let expected = yaml.exists().then(|| documents(&yaml)[0].clone());
    if expected.as_ref() != body {
        return Err(format!("{name}: the result is\n{}", serde_saphyr::to_string(&outcome.body).unwrap()));
    }
    let expected = fs::read_to_string(&text).ok();
    if expected != conflicts {
        return Err(format!("{name}: the conflicts are\n{}", outcome.conflicts.join("\n")));
    }
    Ok(())
}

struct Outcome {
    body: Value,
    conflicts: Vec<String>,
}

/// What every engine does: leave out the pairs that collide, then who conflicts with the workload, and plan the rest.
fn inject(workload: &Workload, templates: &[Template]) -> Result<Outcome, String> {
    let all: Vec<&Template> = templates.iter().collect();
    let line = |names: &str, conflict: &Conflict| {
        format!("{} {} {names}: {}", conflict.code, conflict.code.name(), conflict.message)
    };
    let pairs = inject::collisions(&all);
    let mut conflicts: Vec<String> = pairs
        .iter()
        .map(|(one, other, conflict)| line(&format!("{}, {}", all[*one].policy, all[*other].policy), conflict))
        .collect();
    let mut rest = Vec::new();
    for (index, &template) in all.iter().enumerate() {
        if pairs.iter().any(|(one, other, _)| [*one, *other].contains(&index)) {
            continue;
        }
        match inject::check(workload, template, &all) {
            Ok(()) => rest.push(template),
            Err(conflict) => conflicts.push(line(&template.policy, &conflict)),
        }
    }
    if !conflicts.is_empty() {
        inject::plan(workload, &all, &all).expect_err("a plan of all has the same conflicts");
    }
    let body = match patched(workload, &rest, &all) {
        _ if rest.is_empty() => workload.body.clone(),
        Ok(body) => body,
        Err(conflict) => {
            conflicts.push(line("the rest", &conflict));
            workload.body.clone()
        }
    };
    it_is_idempotent_and_reversible(workload, &body, &rest, &all)?;
    Ok(Outcome { body, conflicts })
}

fn patched(workload: &Workload, templates: &[&Template], matching: &[&Template]) -> Result<Value, Conflict> {
    let patch = inject::plan(workload, templates, matching)?;
    let mut body = workload.body.clone();
    json_patch::patch(&mut body, &patch).expect("a plan applies");
    Ok(body)
}

fn it_is_idempotent_and_reversible(
    workload: &Workload,
    body: &Value,
    templates: &[&Template],
    matching: &[&Template],
) -> Result<(), String> {
    if *body == workload.body {
        return Ok(());
    }
    let again = inject::plan(&Workload::new(workload.kind, body.clone()), templates, matching)
        .map_err(|conflict| format!("again: {conflict}"))?;
    if !again.is_empty() {
        return Err(format!("a second plan is not empty: {again}"));
    }
    let (mut back, mut original) = (body.clone(), workload.body.clone());
    for template in templates {
        undo::undo(&mut back, &workload.pod_pointer(), &template.policy);
        // A marker that was there before is ours, and is not given back.
        let annotations = original.pointer_mut(&format!("{}/metadata/annotations", workload.pod_pointer()));
        annotations.and_then(Value::as_object_mut).map(|map| map.remove(&inject::marker::key(&template.policy)));
    }
    if back == original { Ok(()) } else { Err(format!("undone, it is\n{}", serde_saphyr::to_string(&back).unwrap())) }
}

/// The templates of the policies in `path`, in the order of their priority.
fn templates(path: &Path) -> Vec<Template> {
    let mut policies: Vec<(i32, Template)> = documents(path)
        .into_iter()
        .map(|policy| {
            let name = policy["metadata"]["name"].as_str().unwrap();
            let spec: SidecarPolicySpec = serde_json::from_value(policy["spec"].clone()).unwrap();
            (spec.priority, Template::new(name, &spec.template.unwrap_or_default(), spec.position.unwrap_or_default()))
        })
        .collect();
    policies.sort_by(|(priority, template), (other, rival)| {
        other.cmp(priority).then_with(|| template.policy.cmp(&rival.policy))
    });
    policies.into_iter().map(|(_, template)| template).collect()
}

fn workload(body: &Value) -> Workload {
    let kind = KINDS.iter().find(|kind| body["kind"] == kind.kind).expect("a kind of the table");
    Workload::new(kind, body.clone())
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, text: Option<String>) {
    match text {
        Some(text) => fs::write(path, text).unwrap(),
        None if path.exists() => fs::remove_file(path).unwrap(),
        None => {}
    }
}
