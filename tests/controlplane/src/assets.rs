//! The location of the server binaries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::Version;

/// The assets of each version.
static FOLDERS: LazyLock<BTreeMap<Version, OnceCell<Assets>>> =
    LazyLock::new(|| Version::all().map(|version| (version, OnceCell::new())).collect());

/// A folder in envtest's layout: `etcd`, `kube-apiserver`, `kubectl`, ...
#[derive(Clone, Debug)]
pub(crate) struct Assets(PathBuf);

impl Assets {
    /// The assets of `version` from `build.sh`, which builds missing ones, once per process and version.
    pub(crate) async fn of(version: Version) -> Result<Self> {
        FOLDERS[&version].get_or_try_init(|| build(version)).await.cloned()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The folder's kubectl, or the one on `PATH`.
    pub(crate) fn kubectl(&self) -> PathBuf {
        let own = self.path("kubectl");
        if own.exists() { own } else { PathBuf::from("kubectl") }
    }
}

/// Ends `build.sh` when the future that waits for it is dropped.
struct Terminate(Option<Pid>);

impl Drop for Terminate {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // It may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

async fn build(version: Version) -> Result<Assets> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/build.sh");
    let child =
        Command::new("bash").args([script, &version.short()]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("running {script}"))?;
    let mut guard = Terminate(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let output = child.wait_with_output().await?;
    guard.0 = None;
    ensure!(output.status.success(), "{script} {} failed ({}); it said why on stderr", version.short(), output.status);
    let text = String::from_utf8(output.stdout)?;
    let dir = text.lines().last().with_context(|| format!("{script} printed no folder"))?;
    Ok(Assets(PathBuf::from(dir)))
}
