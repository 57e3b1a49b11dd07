//! Server processes that never outlive this one, without `unsafe`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Runs `"$@"` with its output in the file `$1`, and prints its pid. When our end of its stdin closes, for any reason,
/// the script kills the server and removes the folder `$2`. When the server ends, the script ends with the same code.
const WATCHDOG: &str = r#"
log=$1 dir=$2; shift 2
exec 3<&0
"$@" </dev/null >>"$log" 2>&1 3<&- &
server=$!
( read -r _ <&3; trap '' TERM; kill -9 $server; sleep 0.2; rm -rf "$dir" ) >/dev/null 2>&1 &
watchdog=$!
exec 3<&-
echo $server
exec >/dev/null
wait $server
code=$?
kill $watchdog
exit $code
"#;

/// A server under a watchdog.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    pid: Pid,
    shell: Mutex<Child>,
    /// Closed by the kernel if this process dies. It is never written to.
    _lifeline: ChildStdin,
    log: PathBuf,
}

impl Process {
    /// Starts `command` and appends its output to `<dir>/<name>.log`. `dir` is removed if this process dies.
    pub(crate) fn start(name: &'static str, command: &Path, args: &[String], dir: &Path) -> Result<Self> {
        let log = dir.join(format!("{name}.log"));
        let mut shell = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .args([&log, dir, command])
            .args(args)
            .current_dir(dir)
            // A server of a test is small. Go collects its garbage a third as often, which saves a tenth of its processor time.
            .env("GOGC", "300")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C is for us; our end also ends the server
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let lifeline = shell.stdin.take().expect("stdin is piped");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("stdout is piped")).read_line(&mut line)?;
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("no pid from the watchdog of {name}: {line:?}"))?;
        Ok(Self { name, pid, shell: Mutex::new(shell), _lifeline: lifeline, log })
    }

    fn shell(&self) -> MutexGuard<'_, Child> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exit status of the server, if it has ended.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.shell().try_wait().ok().flatten()
    }

    /// Sends a signal, unless the server has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let mut shell = self.shell();
        if matches!(shell.try_wait(), Ok(None)) {
            // It may end at this moment; then there is nothing to signal.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Kills the server and waits for its end, which takes some milliseconds.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        let _ = self.shell().wait();
    }

    /// The pid of the server itself.
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// An error with the end of the server's output.
    pub(crate) fn failure(&self, what: &str) -> anyhow::Error {
        anyhow::anyhow!("{} {what}; the end of its log:\n{}", self.name, tail(&self.log, 40))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `lines` lines of a log.
pub(crate) fn tail(log: &Path, lines: usize) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
