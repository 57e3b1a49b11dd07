//! Programs that tests of files run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The path of `kubectl` or `helm`: the one on `PATH`, else the one that `make assets` builds.
pub(crate) fn tool(name: &str) -> PathBuf {
    let found = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file()));
    found.unwrap_or_else(|| {
        let built = success(Command::new(root().join("tests/controlplane/build.sh")).arg("1.37"));
        let file = Path::new(String::from_utf8_lossy(&built.stdout).trim()).join(name);
        assert!(file.is_file(), "there is no {}: put {name} on PATH", file.display());
        file
    })
}

/// The folder of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Writes a generated file of the checkout anew if `UPDATE` is set, else compares it. `make TARGET` sets `UPDATE`.
#[track_caller]
pub(crate) fn assert_current(path: &str, generated: &str, target: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, generated).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    assert!(fs::read_to_string(&file).unwrap_or_default() == generated, "{path} is stale: run `make {target}`");
}

/// Runs `command`, which must succeed.
pub(crate) fn success(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
