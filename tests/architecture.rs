//! Guards the architecture. Code that decides and plans has no client, reads no clock and does not wait. Only the folder of an
//! engine knows the engine. No two folders import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The pure parts, as files or folders under `src/`.
const PURE: &[&str] = &[
    "../crates/admission-cel/src",
    "../crates/core/src",
    "timing.rs",
    "controller/planner",
    "controller/policy_state.rs",
    "workloads/behind.rs",
    "workloads/census.rs",
    "workloads/ledger.rs",
    "workloads/reports/content.rs",
    "workloads/starts.rs",
    "workloads/waiting.rs",
    "engine/mod.rs",
    "engine/admission_policy",
    "engine/choice.rs",
    "engine/hold.rs",
    "engine/lifecycle.rs",
    "engine/requirements.rs",
    "engine/initializer/mod.rs",
    "engine/initializer/types.rs",
    "engine/initializer/render.rs",
    "engine/initializer/queue.rs",
    "engine/webhook/mod.rs",
    "engine/webhook/authority.rs",
];

/// The words that a pure part must not contain, with the reason.
const FORBIDDEN: &[(&str, &str)] = &[
    ("Client", "it would talk to the API server"),
    ("Api<", "it would talk to the API server"),
    ("async ", "it would wait"),
    (".await", "it would wait"),
    ("tokio", "it would wait"),
    ("::now()", "it would read a clock: `now` is passed in"),
    ("std::fs", "it would read files"),
    ("std::env", "it would read its surroundings"),
    ("std::process", "it would start or end something"),
];

#[test]
fn pure_parts_know_no_client_no_clock_and_no_waiting() {
    let source = source();
    let mut faults = Vec::new();
    let mut looked_at = 0;
    for part in PURE {
        let path = source.join(part);
        assert!(path.exists(), "{part} is gone: correct the list");
        for file in rust_files(&path) {
            looked_at += 1;
            for (number, line) in code(&fs::read_to_string(&file).expect("readable")) {
                for (word, why) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
                    faults.push(format!("{}:{number}: `{word}`: {why}", file.display()));
                }
            }
        }
    }
    assert!(looked_at > 15, "only {looked_at} files were looked at");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The pure crates, with all dependencies that each may have.
const PURE_CRATES: &[(&str, &[&str])] = &[
    (
        "crates/admission-cel",
        &["jiff", "pcre2", "regex", "regex-automata", "regex-syntax", "serde_json", "thiserror", "url"],
    ),
    (
        "crates/core",
        &[
            "admission-cel",
            "base64",
            "clap",
            "jiff",
            "json-patch",
            "k8s-openapi",
            "kube",
            "regex",
            "schemars",
            "serde",
            "serde-saphyr",
            "serde_json",
            "sha2",
            "strsim",
            "thiserror",
            "wildmatch",
        ],
    ),
];

/// The lines of `[dependencies]` in the text of a Cargo.toml.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    section.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[test]
fn the_manifests_of_pure_crates_name_nothing_that_talks_waits_or_reads_a_clock() {
    for (folder, allowed) in PURE_CRATES {
        let manifest = fs::read_to_string(source().join("..").join(folder).join("Cargo.toml")).expect("readable");
        let named: Vec<&str> = dependencies(&manifest).collect();
        assert!(named.len() > 3, "{folder}: only {} dependencies were seen", named.len());
        for line in named {
            let name = line.split(['=', ' ', '.']).next().expect("readable");
            assert!(allowed.contains(&name), "{folder} depends on {name}: is it pure? Then add it here");
            let has_client = name == "kube"
                && line != r#"kube = { version = "5", default-features = false, features = ["derive"] }"#;
            assert!(!has_client, "{folder}: kube is for its types alone: {line}");
        }
    }
}

/// The one other file that may name the folder of an engine. It does so in two lines only: the module, and the line in
/// `ENGINES`.
const REGISTRY: &str = "engine/mod.rs";

/// An engine, as found in its folder.
struct Engine {
    folder: String,
    /// As in `spec.engine`.
    name: String,
}

fn engines() -> Vec<Engine> {
    let folders = fs::read_dir(source().join("engine")).expect("readable").map(|entry| entry.expect("readable").path());
    let engines = folders.filter(|path| path.join("mod.rs").exists()).map(|path| {
        let text = fs::read_to_string(path.join("mod.rs")).expect("readable");
        let name = text.split("EngineName(\"").nth(1).and_then(|rest| rest.split('"').next());
        let name = name.unwrap_or_else(|| panic!("{} is no engine: it has no name", path.display())).to_owned();
        Engine { folder: path.file_name().expect("readable").to_str().expect("readable").to_owned(), name }
    });
    engines.collect()
}

/// The lines of `text`, the file `path` under `src/`, that name `engine` and must not.
fn knows<'a>(engine: &Engine, path: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let Engine { folder, name } = engine;
    if path.starts_with(&format!("engine/{folder}/")) {
        return Vec::new();
    }
    let registered = format!("pub mod {folder};");
    let is_registered =
        |line: &str| path == REGISTRY && (line == registered || line.contains(&format!("&{folder}::{name}")));
    // Outside `engine`, a module of that name may be another one.
    let words = match path.starts_with("engine/") {
        true => vec![format!("{folder}::"), format!("::{folder}"), format!("mod {folder};")],
        false => vec![format!("engine::{folder}")],
    };
    let names = [format!("\"{name}\""), format!("EngineChoice::{name}"), format!("EngineName::{name}")];
    // The compiler of the engine's registrations is not part of the engine.
    let compiled = format!("compile::{folder}");
    code(text)
        .filter(|(_, line)| !is_registered(line.trim()))
        .filter(|(_, line)| {
            let names_it = names.iter().any(|word| line.contains(word));
            names_it || words.iter().any(|word| has_word(&line.replace(&compiled, ""), word))
        })
        .collect()
}

/// Whether `line` has `word` with no other name around it.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        (word.starts_with(':') || !before.is_some_and(is_part))
            && (word.ends_with([':', ';']) || !after.is_some_and(is_part))
    })
}

#[test]
fn only_its_folder_and_one_registry_know_an_engine() {
    let (source, engines) = (source(), engines());
    assert!(engines.len() >= 2, "engines are folders of src/engine");
    let mut faults = Vec::new();
    for file in rust_files(&source) {
        let path = file.strip_prefix(&source).expect("readable").to_str().expect("readable").to_owned();
        let text = fs::read_to_string(&file).expect("readable");
        for engine in &engines {
            let known = knows(engine, &path, &text);
            faults.extend(
                known.iter().map(|(number, line)| format!("{path}:{number}: {}: {}", engine.name, line.trim())),
            );
        }
    }
    assert!(faults.is_empty(), "these lines know an engine:\n{}", faults.join("\n"));
}

#[test]
fn one_line_in_the_wrong_place_is_found() {
    let engine = Engine { folder: "webhook".to_owned(), name: "Webhook".to_owned() };
    for (path, line, is_fault) in [
        ("controller/mod.rs", "use crate::engine::webhook::certs::Certificates;", true),
        ("cli/run/process.rs", "    let names = engine::webhook::certs::service_names(SERVICE, namespace);", true),
        ("cli/run/term.rs", "use crate::engine::webhook;", true),
        ("workloads/report.rs", "    if engine == EngineName::Webhook {", true),
        ("engine/choice.rs", "use super::webhook;", true),
        ("engine/reach.rs", "use crate::compile::webhook::Endpoint;", false),
        ("engine/initializer/mod.rs", "use crate::engine::webhook::force;", true),
        ("cli/check/rights.rs", "    if engine.name == \"Webhook\" {", true),
        ("controller/status.rs", "        EngineChoice::Webhook => true,", true),
        ("engine/mod.rs", "    webhook::render::revision_of(object)", true),
        ("engine/mod.rs", "pub mod webhook;", false),
        ("engine/mod.rs", "    &[&initializer::Initializer, &webhook::Webhook];", false),
        ("engine/webhook/mod.rs", "const NAME: EngineName = EngineName(\"Webhook\");", false),
        ("controller/mod.rs", "    // The webhook::render of old.", false),
        ("engine/choice.rs", "    let thing = my_webhook::thing;", false),
        ("convert/mod.rs", "    webhook::convert(&inputs);", false),
    ] {
        assert_eq!(!knows(&engine, path, line).is_empty(), is_fault, "{path}: {line}");
    }
}

/// The file that may use kube's own `Api`, which puts names into URLs as they are.
const REQUESTS: &str = "cluster/api.rs";

/// Whether `line` makes a URL of names that others may have written.
fn makes_urls(line: &str) -> bool {
    let imports = line.trim_start().starts_with("use kube::") && has_word(line, "Api");
    imports || line.contains("kube::Api") || line.contains("url_path(")
}

#[test]
fn every_name_becomes_a_part_of_a_url_in_one_file() {
    for line in
        ["use kube::{Api, Client};", "use kube::Api;", "    let api = kube::Api::all(client);", "Pod::url_path(&(), x)"]
    {
        assert!(makes_urls(line), "{line}");
    }
    for line in
        ["use kube::api::{ApiResource, Patch};", "use crate::cluster::api::Api;", "use kube::core::ApiResource;"]
    {
        assert!(!makes_urls(line), "{line}");
    }
    let source = source();
    let mut faults = Vec::new();
    for file in rust_files(&source) {
        let path = file.strip_prefix(&source).expect("readable").to_str().expect("readable").to_owned();
        let text = fs::read_to_string(&file).expect("readable");
        let lines = code(&text).filter(|(_, line)| path != REQUESTS && makes_urls(line));
        faults.extend(lines.map(|(number, line)| format!("{path}:{number}: {}", line.trim())));
    }
    assert!(faults.is_empty(), "use crate::cluster::api::Api here, which encodes names:\n{}", faults.join("\n"));
}

/// The file that may read the words of a server.
const ANSWERS: &str = "cluster/answer.rs";

/// Whether `line` decides by the words of a server. Conditions of policies are our own words.
fn reads_words(line: &str) -> bool {
    const TEXTS: &[&str] =
        &[".message", ".message()", "status.reason", "error.to_string()", "error).to_string()", "why(&error)"];
    const LOOKS: &[&str] = &[
        ".contains(",
        ".starts_with(",
        ".ends_with(",
        ".strip_prefix(",
        ".find(",
        ".split",
        ".rsplit",
        " == ",
        " != ",
    ];
    let of_server = |text: &&&str| LOOKS.iter().any(|look| line.contains(&format!("{text}{look}")));
    TEXTS.iter().any(|text| of_server(&text)) || line.contains("CallError::Refused(")
}

#[test]
fn the_words_of_a_server_are_read_in_one_file() {
    for line in [
        r#"    if status.message.contains("exceeded quota") {"#,
        r#"    Err(error) if error.message().starts_with("namespaces ") => {"#,
        r#"    status.message == "not found""#,
        r#"    matches!(error, Error::Api(status) if status.reason == "Expired")"#,
        r#"    Err(error) if error.to_string().contains(revision) => Ok(Seen::Yes),"#,
        r#"    let names = error.to_string().split("failed calling webhook");"#,
        r#"    Err(CallError::Refused(status)) if status.code == 404 => Vec::new(),"#,
    ] {
        assert!(reads_words(line), "{line}");
    }
    for line in [
        "    Err(error) if error.means() == Meaning::NotFound => Vec::new(),",
        "    Err(error) if error.repeats(revision) => Ok(Seen::Yes),",
        "    programmed.reason == Code::RemovedByHand.name()",
        "    warn!(detail = refused.message(), \"The server refuses\");",
    ] {
        assert!(!reads_words(line), "{line}");
    }
    let source = source();
    let mut faults = Vec::new();
    for file in rust_files(&source) {
        let path = file.strip_prefix(&source).expect("readable").to_str().expect("readable").to_owned();
        let text = fs::read_to_string(&file).expect("readable");
        let lines = code(&text).filter(|(_, line)| path != ANSWERS && reads_words(line));
        faults.extend(lines.map(|(number, line)| format!("{path}:{number}: {}", line.trim())));
    }
    assert!(faults.is_empty(), "ask crate::cluster::answer here, which reads the words:\n{}", faults.join("\n"));
}

#[test]
fn no_two_folders_import_each_other() {
    for (source, room, imported) in
        [(source(), "engine", "workloads"), (source().join("../crates/core/src"), "inject", "workload")]
    {
        let imports = imports(&source);
        assert!(imports.len() > 10 && imports[room].contains(imported), "{imports:?}");
        no_circle(&imports);
    }
}

/// The rooms (folders and files) of a crate, each with the rooms that it imports.
fn imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files(source) {
        let path = file.strip_prefix(source).expect("readable").to_str().expect("readable");
        let room = path.split('/').next().expect("readable").trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&file).expect("readable");
        let known = code(&text).flat_map(|(_, line)| line.split("crate::").skip(1).map(first_name).collect::<Vec<_>>());
        imports.entry(room.clone()).or_default().extend(known.filter(|other| *other != room));
    }
    imports
}

fn no_circle(imports: &BTreeMap<String, BTreeSet<String>>) {
    // Removes each room that imports no remaining room, or that no remaining room imports. A cycle remains.
    let mut left = imports.clone();
    let is_free = |left: &BTreeMap<String, BTreeSet<String>>, room: &str| {
        let is_imported = left.iter().any(|(other, rooms)| other != room && rooms.contains(room));
        !is_imported || left[room].iter().all(|other| !left.contains_key(other))
    };
    while let Some(room) = left.keys().find(|room| is_free(&left, room)).cloned() {
        left.remove(&room);
    }
    assert!(left.is_empty(), "these import each other, in a circle: {:?}", left.keys().collect::<Vec<_>>());
}

fn first_name(path: &str) -> String {
    path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The lines of code, with their numbers. Tests at the end of a file are skipped, because they may import everything.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The Rust files below `path`, without those that contain only tests.
fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("readable").path());
    let files = entries.flat_map(|entry| rust_files(&entry));
    files.filter(|file| file.extension().is_some_and(|ext| ext == "rs") && !file.ends_with("tests.rs")).collect()
}

/// A test program that the Makefile does not name would be compiled, and never run.
#[test]
fn make_test_runs_every_test_program() {
    let root = source().join("..");
    let makefile = fs::read_to_string(root.join("Makefile")).expect("readable");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("readable");
    let mut programs: Vec<String> = manifest
        .split("[[test]]")
        .skip(1)
        .filter_map(|table| Some(table.split_once("name = \"")?.1.split_once('"')?.0.to_owned()))
        .collect();
    for folder in ["crates", "tests"] {
        for package in fs::read_dir(root.join(folder)).expect("readable") {
            let files = fs::read_dir(package.expect("readable").path().join("tests")).into_iter().flatten();
            let files = files.map(|file| file.expect("readable").path()).filter(|path| path.is_file());
            programs.extend(files.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())));
        }
    }
    assert!(programs.len() >= 7, "{programs:?}");
    let missing: Vec<_> = programs.iter().filter(|name| !makefile.contains(&format!("--test {name} "))).collect();
    assert!(missing.is_empty(), "no target of the Makefile runs the test programs {missing:?}");
}
