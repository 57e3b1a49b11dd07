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

/// What `scpol` with `arguments` and `variables`, in `folder`, prints on a terminal of so many columns.
pub(crate) fn on_a_terminal(folder: &Path, columns: u16, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    use rustix::{pty, termios};
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let terminal = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).expect("a terminal");
    pty::grantpt(&terminal).expect("granted");
    pty::unlockpt(&terminal).expect("unlocked");
    let size = termios::Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    termios::tcsetwinsize(&terminal, size).expect("a size");
    let name = PathBuf::from(pty::ptsname(&terminal, Vec::new()).expect("a name").into_string().expect("UTF-8"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_scpol"));
    command.args(arguments).current_dir(folder).env_remove("NO_COLOR").env("TERM", "xterm");
    // Otherwise the terminal may become that of this process, which then gets a SIGHUP.
    let is_not_ours = i32::try_from(pty::OpenptFlags::NOCTTY.bits()).expect("small");
    let screen = fs::OpenOptions::new().write(true).custom_flags(is_not_ours).open(name).expect("it can be opened");
    command.envs(variables.iter().copied()).stdout(screen);
    let code = command.status().expect("scpol runs").code();
    assert!(code.is_some_and(|code| code < 2), "{arguments:?}: {code:?}");
    // The terminal has an end only when nobody has it open for writing.
    drop(command);
    let (mut text, mut terminal) = (Vec::new(), fs::File::from(terminal));
    // Linux reports the end as an error.
    let _ = terminal.read_to_end(&mut text);
    String::from_utf8(text).expect("UTF-8").replace("\r\n", "\n")
}
