//! Guards the architecture. Code that decides and plans has no client, reads no clock and does not wait. Only the folder of an
//! engine knows the engine. No two files or folders of one folder import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The pure parts, as files or folders under `src/`.
const PURE: &[&str] = &[
    "../crates/admission-cel/src",
    "../crates/core/src",
    "cluster/answer.rs",
    "cluster/policies/capacity.rs",
    "cluster/revisions.rs",
    "cluster/watch/cache.rs",
    "timing.rs",
    "cluster/answer.rs",
    "controller/planner",
    "controller/policy_state.rs",
    "workloads/behind.rs",
    "workloads/census.rs",
    "workloads/fleet.rs",
    "workloads/ledger.rs",
    "workloads/recreate.rs",
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
            "granit-parser",
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
fn no_two_places_of_a_folder_import_each_other() {
    for (source, place, imported) in [
        ("src", "engine", "workloads"),
        ("crates/core/src", "inject", "workload"),
        ("crates/admission-cel/src", "eval", "value"),
    ] {
        let imports = imports(&files(&source_of(source)));
        assert!(imports[""][place].contains(imported), "{imports:?}");
        for (folder, imports) in imports {
            let circle = circle(&imports);
            assert!(circle.is_empty(), "these of {source}/{folder} import each other, in a circle: {circle:?}");
        }
    }
}

#[test]
fn one_import_that_closes_a_circle_is_found() {
    let house = |line: &str| {
        let files = [
            ("engine/mod.rs", "pub mod lifecycle;\npub use lifecycle::State;"),
            ("engine/lifecycle.rs", "use super::{\n    Engine,\n    hold::{Hold, self},\n};"),
            ("engine/hold.rs", line),
            ("cluster/mod.rs", "pub mod client;"),
            ("cluster/client.rs", "fn now() -> crate::engine::hold::Hold {}"),
        ];
        files.map(|(path, text)| (path.to_owned(), text.to_owned())).to_vec()
    };
    for (line, expected) in [
        ("use super::lifecycle::State;", &["hold", "lifecycle"][..]),
        ("use crate::engine::{Kind, lifecycle::State as Of};", &["hold", "lifecycle"]),
        ("fn f() { super::lifecycle::start() }", &["hold", "lifecycle"]),
        ("use crate::cluster::client::Client;", &["cluster", "engine"]),
        ("// use super::lifecycle::State;", &[]),
        ("use super::Engine;", &[]),
        ("#[cfg(test)]\nmod tests {\n    use crate::cluster::client::Client;\n}", &[]),
    ] {
        let found: Vec<String> = imports(&house(line)).values().flat_map(circle).collect();
        assert_eq!(found, expected, "{line}");
    }
}

/// The Rust files below `source`, each with its path there and its text.
fn files(source: &Path) -> Vec<(String, String)> {
    let files = rust_files(source).into_iter().map(|file| {
        let path = file.strip_prefix(source).expect("readable").to_str().expect("readable").to_owned();
        (path, fs::read_to_string(&file).expect("readable"))
    });
    files.collect()
}

/// For each folder its places (files and folders in it), each with those that it imports. What a folder's `mod.rs` imports does not
/// count: it shows what its files have.
type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn imports(files: &[(String, String)]) -> Imports {
    let module = |path: &str| -> Vec<String> {
        let mut names: Vec<String> = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        names.pop_if(|name| ["mod", "lib", "main"].contains(&name.as_str()));
        names
    };
    let modules: BTreeSet<Vec<String>> = files.iter().map(|(path, _)| module(path)).collect();
    let mut imports = Imports::new();
    for (path, text) in files {
        let from = module(path);
        let text: Vec<&str> = code(text).map(|(_, line)| line).collect();
        for named in paths(&text.join("\n")) {
            let mut named: Vec<String> = absolute(&named, &from);
            while !named.is_empty() && !modules.contains(&named) {
                named.pop();
            }
            let shared = named.iter().zip(&from).take_while(|(a, b)| a == b).count();
            if let (Some(to), Some(own)) = (named.get(shared), from.get(shared)) {
                let folder = imports.entry(from[..shared].join("/")).or_default();
                folder.entry(own.clone()).or_default().insert(to.clone());
            }
        }
    }
    imports
}

/// The path `named` from the root of the crate, as the module `from` writes it. Empty for what other crates have.
fn absolute(named: &str, from: &[String]) -> Vec<String> {
    let names: Vec<&str> = named.split("::").collect();
    let ups = names.iter().take_while(|name| **name == "super").count();
    let start = match names[0] {
        "crate" => &[],
        "self" => from,
        "super" => &from[..from.len().saturating_sub(ups)],
        _ => return Vec::new(),
    };
    start.iter().cloned().chain(names[ups.max(1)..].iter().map(|name| (*name).to_owned())).collect()
}

/// All paths that `code` names: those of its imports, and those from `crate` or `super` elsewhere.
fn paths(code: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), String::new());
    for statement in code.split_inclusive(';') {
        let begin =
            statement.rfind("\nuse ").or_else(|| statement.rfind("    use ")).or_else(|| statement.rfind("pub use "));
        match begin.or_else(|| statement.starts_with("use ").then_some(0)) {
            Some(at) => {
                rest.push_str(&statement[..at]);
                let tree = statement[at..].trim_end_matches(';').rsplit("use ").next().unwrap_or_default();
                found.extend(expanded(&tree.split_whitespace().collect::<Vec<_>>().join(" ")));
            }
            None => rest.push_str(statement),
        }
    }
    for root in ["crate::", "super::"] {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        found.extend(rest.match_indices(root).map(|(at, _)| rest[at..].chars().take_while(|c| is_path(*c)).collect()));
    }
    found
}

/// The paths of the tree of an import: `a::{b, c::d}` names `a::b` and `a::c::d`.
fn expanded(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let inside = &inside[..inside.rfind('}').unwrap_or(inside.len())];
    let (mut depth, mut branches) = (0, vec![String::new()]);
    for c in inside.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match (c, depth) {
            (',', 0) => branches.push(String::new()),
            _ => branches.last_mut().expect("one at least").push(c),
        }
    }
    branches.iter().flat_map(|branch| expanded(&format!("{before}{}", branch.trim()))).collect()
}

/// The places that import each other in a circle, and those between such circles.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut left: BTreeSet<&String> = imports.keys().chain(imports.values().flatten()).collect();
    // Removes each place that imports no remaining one, or that no remaining one imports. A circle remains.
    let is_free = |left: &BTreeSet<&String>, place: &String| {
        let is_imported =
            left.iter().any(|other| *other != place && imports.get(*other).is_some_and(|of| of.contains(place)));
        !is_imported
            || imports.get(place).is_none_or(|of| of.iter().all(|other| other == place || !left.contains(other)))
    };
    while let Some(place) = left.iter().find(|place| is_free(&left, place)).copied() {
        left.remove(place);
    }
    left.into_iter().cloned().collect()
}

/// The crates, each with the folder of its sources.
const CRATES: [&str; 3] = ["src", "crates/core/src", "crates/admission-cel/src"];

/// The most fields of a struct. The most lines and parameters of a function are in `clippy.toml`.
const MOST_FIELDS: usize = 12;

/// The structs that may have more fields, because they mirror what the API has.
const MIRRORS: &[&str] = &["Parameter", "SidecarPolicySpec", "SidecarPolicyStatus"];

/// The structs of `text` that have too many fields, each with their number.
fn wide(text: &str) -> Vec<(String, usize)> {
    let mut lines = code(text).map(|(_, line)| line);
    let mut wide = Vec::new();
    while let Some(line) = lines.next() {
        let Some((_, name)) = line.split_once("struct ").filter(|_| line.ends_with('{')) else { continue };
        let margin = " ".repeat(line.len() - line.trim_start().len());
        let body = lines.by_ref().take_while(|line| *line != format!("{margin}}}"));
        let is_field = |line: &&str| {
            let field = line.strip_prefix(&format!("{margin}    ")).unwrap_or_default();
            field.starts_with(char::is_alphabetic) && field.contains(": ")
        };
        let (name, fields) = (first_name(name), body.filter(is_field).count());
        if fields > MOST_FIELDS && !MIRRORS.contains(&name.as_str()) {
            wide.push((name, fields));
        }
    }
    wide
}

#[test]
fn no_struct_has_more_fields_than_a_reader_can_hold() {
    let fields = |count: usize| (0..count).map(|at| format!("    pub(super) f{at}: u8,\n")).collect::<String>();
    let of = |name: &str, count| {
        format!("#[derive(Debug)]\npub struct {name}<'a> {{\n    // One: two.\n{}}}\n", fields(count))
    };
    assert_eq!(wide(&of("Policy", 13)), [("Policy".to_owned(), 13)]);
    assert_eq!(wide(&(of("Policy", 12) + &of("SidecarPolicySpec", 22))), []);
    for source in CRATES {
        for (path, text) in files(&source_of(source)) {
            let wide = wide(&text);
            assert!(
                wide.is_empty(),
                "{source}/{path}: group the fields that belong together, {MOST_FIELDS} at most: {wide:?}"
            );
        }
    }
}

/// The files of the operator whose head calls them pure, and that [`PURE`] lacks.
fn unlisted(files: &[(String, String)]) -> Vec<&str> {
    let is_pure = |text: &str| {
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
        head.join(" ").contains("Pure.")
    };
    let is_listed = |path: &str| PURE.iter().any(|part| path == *part || path.starts_with(&format!("{part}/")));
    let of_folder = |path: &str| path.strip_suffix("/mod.rs").is_some_and(|folder| PURE.contains(&folder));
    let found = files.iter().filter(|(path, text)| is_pure(text) && !is_listed(path) && !of_folder(path));
    found.map(|(path, _)| path.as_str()).collect()
}

#[test]
fn what_calls_itself_pure_is_on_the_list() {
    let files_of = |path: &str| [(path.to_owned(), "//! What is next.\n//! Pure.\n".to_owned())];
    assert_eq!(unlisted(&files_of("cluster/client.rs")), ["cluster/client.rs"]);
    assert!(unlisted(&files_of("engine/choice.rs")).is_empty());
    assert!(unlisted(&files_of("controller/planner/mod.rs")).is_empty());
    assert_eq!(unlisted(&files(&source())), Vec::<&str>::new(), "add them to PURE");
}

/// The page that tells a newcomer where things are.
const MAP: &str = "ARCHITECTURE.md";

#[test]
fn every_place_is_on_the_map() {
    let map = fs::read_to_string(source_of(MAP)).expect("readable");
    let is_shown = |place: &str, map: &str| map.contains(&format!("`{place}`"));
    assert!(is_shown("engine", "| `engine` | a folder per engine |") && !is_shown("engine", "`engines` of engine"));
    let mut missing = Vec::new();
    for source in CRATES {
        for entry in fs::read_dir(source_of(source)).expect("readable") {
            let path = entry.expect("readable").path();
            let name = path.file_stem().expect("readable").to_string_lossy().into_owned();
            let is_test = name == "tests" || path.extension().is_some_and(|ending| ending != "rs");
            if !["lib", "main"].contains(&name.as_str()) && !is_test && !is_shown(&name, &map) {
                missing.push(format!("{source}/{name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{MAP} does not say what these are: {missing:?}");
}

fn first_name(path: &str) -> String {
    path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn source() -> PathBuf {
    source_of("src")
}

/// A file or folder of the checkout.
pub(crate) fn source_of(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The lines of code, with their numbers. Tests at the end of a file are skipped, because they may import everything.
pub(crate) fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The Rust files below `path`, without those that contain only tests.
pub(crate) fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("readable").path());
    let files = entries.filter(|entry| !entry.ends_with("tests")).flat_map(|entry| rust_files(&entry));
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
