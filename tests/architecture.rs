//! Guards the pure parts: decisions and plans use no client and no clock, and never wait.

use std::fs;
use std::path::{Path, PathBuf};

/// The pure parts, as files or folders under `src/`.
const PURE: &[&str] = &[
    "api",
    "../crates/admission-cel/src",
    "policy",
    "inject",
    "lint",
    "convert",
    "decision.rs",
    "timing.rs",
    "workload.rs",
    "controller/hold.rs",
    "controller/lifecycle.rs",
    "controller/lifecycle",
    "workloads/census.rs",
    "workloads/ledger.rs",
    "engine/mod.rs",
    "engine/choice.rs",
    "engine/targets.rs",
    "engine/admission_policy",
    "engine/initializer/mod.rs",
    "engine/initializer/types.rs",
    "engine/initializer/render.rs",
    "engine/initializer/completion.rs",
    "engine/initializer/queue.rs",
    "engine/webhook/mod.rs",
    "engine/webhook/author.rs",
    "engine/webhook/authority.rs",
    "engine/webhook/render.rs",
    "engine/webhook/review.rs",
];

/// The words that a pure part must not contain, and why.
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut faults = Vec::new();
    let mut looked_at = 0;
    for part in PURE {
        let path = source.join(part);
        assert!(path.exists(), "{part} is gone: correct the list");
        for file in rust_files(&path).into_iter().filter(|file| !file.ends_with("tests.rs")) {
            looked_at += 1;
            let text = fs::read_to_string(&file).unwrap();
            // Tests, in a separate file or at the end of a file, are exempt.
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (number, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
                for (word, why) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
                    faults.push(format!("{}:{}: `{word}`: {why}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(looked_at > 15, "only {looked_at} files were looked at");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn an_engine_is_one_folder() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The code that composes the process may name an engine. Decisions, plans and communication must not.
    for part in ["api", "policy", "inject", "workload.rs", "cluster", "metrics.rs", "serving.rs"] {
        for file in rust_files(&source.join(part)) {
            let text = fs::read_to_string(&file).unwrap();
            for engine in ["engine::initializer", "engine::webhook", "engine::admission_policy"] {
                assert!(!text.contains(engine), "{} knows {engine}", file.display());
            }
        }
    }
}

fn rust_files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("readable").path());
    let files =
        entries.flat_map(|entry| rust_files(&entry)).filter(|file| file.extension().is_some_and(|ext| ext == "rs"));
    files.collect()
}
