//! Holding and ending one control plane.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use kube::{Client, Config};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use crate::assets::Assets;
use crate::process::{Process, tail};
use crate::ready::{POLL, READY_LIMIT, is_clash, probe, wait_ready};
use crate::user::{self, User};
use crate::{Builder, Version, tls};

/// The folder of one control plane and what is needed to start its API server again.
#[derive(Debug)]
pub(crate) struct Files {
    temp: TempDir,
    url: String,
    ca_pem: String,
    /// In the order of [`User::ALL`].
    pub(crate) configs: Vec<Config>,
    pub(crate) args: Vec<String>,
}

impl Files {
    pub(crate) fn write(port: u16) -> Result<Self> {
        let temp = tempfile::Builder::new().prefix("scpol-controlplane-").tempdir()?;
        let url = format!("https://127.0.0.1:{port}");
        let ca_pem = tls::write(temp.path())?;
        let tokens = user::write_tokens(temp.path())?;
        user::write_kubeconfigs(temp.path(), &url, &ca_pem, &tokens)?;
        Ok(Self { temp, url, ca_pem, configs: Vec::new(), args: Vec::new() })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.temp.path()
    }

    fn config(&self, user: User) -> Config {
        let at = User::ALL.iter().position(|u| *u == user).expect("ALL has every user");
        self.configs[at].clone()
    }

    pub(crate) async fn start_apiserver(&self, assets: &Assets, version: Version) -> Result<Process> {
        let process = Process::start("kube-apiserver", &assets.path("kube-apiserver"), &self.args, self.dir())?;
        let client = Client::try_from(self.config(User::Admin))?;
        wait_ready(&process, || probe(&client, version)).await?;
        Ok(process)
    }
}

/// Running etcd and kube-apiserver. Dropping it ends them and removes their folder.
#[derive(Debug)]
pub struct ControlPlane {
    // In the order in which they are to end.
    pub(crate) nodes: Vec<Process>,
    pub(crate) apiserver: Mutex<Option<Process>>,
    pub(crate) etcd: Process,
    pub(crate) files: Files,
    pub(crate) assets: Assets,
    pub(crate) version: Version,
    pub(crate) audit: bool,
    pub(crate) _permit: OwnedSemaphorePermit,
}

impl ControlPlane {
    /// A control plane of this version, with everything as a test usually wants it.
    pub fn builder(version: Version) -> Builder {
        Builder::new(version)
    }

    /// `https://127.0.0.1:<port>`; stays the same over restarts.
    pub fn url(&self) -> &str {
        &self.files.url
    }

    /// The certificate authority of the server's certificate.
    pub fn ca_pem(&self) -> &str {
        &self.files.ca_pem
    }

    /// Which version this is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its temporary folder: kubeconfigs, certificates, logs, etcd's data. Files put there are removed with it.
    pub fn dir(&self) -> &Path {
        self.files.dir()
    }

    /// The folder of the server binaries, with kubectl in it unless assets were given without.
    pub fn assets(&self) -> &Path {
        self.assets.dir()
    }

    /// A new client, with connections of its own, that may do anything.
    pub fn admin(&self) -> Client {
        self.client(User::Admin)
    }

    /// A new client, with connections of its own, for a user. It never retries.
    pub fn client(&self, user: User) -> Client {
        Client::try_from(self.client_config(user)).expect("the same configuration was used to wait for the server")
    }

    /// The configuration of [`Self::client`], to change before use.
    pub fn client_config(&self, user: User) -> Config {
        self.files.config(user)
    }

    /// A kubeconfig file with the user's token and the certificate authority in it.
    pub fn kubeconfig(&self, user: User) -> PathBuf {
        user.kubeconfig(self.dir())
    }

    /// `kubectl` as a user, without the caller's own settings and caches. Add arguments, then `output()`.
    pub fn kubectl(&self, user: User) -> Command {
        let mut command = Command::new(self.assets.kubectl());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.dir());
        command
            .env("KUBECONFIG", self.kubeconfig(user))
            .env("KUBERC", "off")
            .env("KUBECACHEDIR", self.dir().join("cache"));
        command.current_dir(self.dir()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// What `kubectl ARGS` prints.
    ///
    /// # Errors
    /// With what it wrote to stderr, if it fails.
    pub async fn kubectl_output(&self, user: User, args: &[&str]) -> Result<String> {
        printed(self.kubectl(user).args(args).output().await?, args)
    }

    /// `kubectl apply` of one or more YAML documents as the administrator; unknown fields are let through.
    ///
    /// # Errors
    /// With what kubectl wrote to stderr, if it fails.
    pub async fn apply_manifests(&self, yaml: &str) -> Result<String> {
        let args = ["apply", "--validate=false", "-f", "-"];
        let mut command = self.kubectl(User::Admin);
        let mut child =
            command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let (written, output) = tokio::join!(
            async move { stdin.write_all(yaml.as_bytes()).await }, // moved, so that it is closed
            child.wait_with_output()
        );
        let printed = printed(output?, &args)?;
        written?;
        Ok(printed)
    }

    /// [`Self::apply_manifests`] of a file.
    ///
    /// # Errors
    /// If it cannot be read, or kubectl fails.
    pub async fn apply_file(&self, path: &Path) -> Result<String> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        self.apply_manifests(&text).await.with_context(|| path.display().to_string())
    }

    /// The requests so far, oldest first, as audit events; needs [`Builder::audit_log`].
    ///
    /// # Panics
    /// Without it.
    pub fn audit(&self) -> Vec<Value> {
        assert!(self.audit, "started without audit_log()");
        let text = fs::read_to_string(self.dir().join("audit.log")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect() // the last line may still be in writing
    }

    /// Forgets the requests so far.
    ///
    /// # Errors
    /// If the file cannot be emptied.
    pub fn clear_audit(&self) -> Result<()> {
        match fs::OpenOptions::new().write(true).open(self.dir().join("audit.log")) {
            Ok(file) => Ok(file.set_len(0)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// SIGKILL, and a new server on the same port and data; returns when it is ready.
    ///
    /// # Errors
    /// If it does not come back.
    pub async fn restart_apiserver(&self) -> Result<()> {
        self.stop_apiserver().await;
        self.start_apiserver().await
    }

    /// [`Self::restart_apiserver`] with more arguments, as `--name=value`, in place of those of the same name that were given before.
    ///
    /// # Errors
    /// If it does not come back.
    pub async fn restart_apiserver_with(&mut self, args: &[&str]) -> Result<()> {
        let name = |arg: &str| arg.split('=').next().unwrap_or_default().to_owned();
        let replaced: Vec<_> = args.iter().map(|arg| name(arg)).collect();
        self.files.args.retain(|arg| !replaced.contains(&name(arg)));
        self.files.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.restart_apiserver().await
    }

    /// Kills the API server; etcd stays.
    pub async fn stop_apiserver(&self) {
        let process = self.apiserver().take();
        drop_blocking(process).await;
    }

    /// Starts the API server again after [`Self::stop_apiserver`].
    ///
    /// # Errors
    /// If it does not come back.
    pub async fn start_apiserver(&self) -> Result<()> {
        ensure!(self.apiserver().is_none(), "the API server was not stopped");
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            match self.files.start_apiserver(&self.assets, self.version).await {
                Ok(process) => {
                    *self.apiserver() = Some(process);
                    return Ok(());
                }
                // Someone's outgoing connection has the port for a moment.
                Err(error) if is_clash(&error) && Instant::now() < deadline => sleep(POLL).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Stops the API server in its tracks (SIGSTOP): connections stay open, nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// The last lines of the API server's log, which goes on over restarts.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.dir().join("kube-apiserver.log"), lines)
    }

    /// The pids of all servers.
    pub fn pids(&self) -> Vec<u32> {
        let apiserver = self.apiserver().as_ref().map(Process::id);
        self.nodes.iter().map(Process::id).chain(apiserver).chain([self.etcd.id()]).collect()
    }

    /// Ends everything and removes the folder. Dropping does the same.
    pub async fn stop(self) {
        drop_blocking(self).await;
    }

    fn apiserver(&self) -> MutexGuard<'_, Option<Process>> {
        self.apiserver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = self.apiserver().as_ref() {
            process.signal(signal);
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let apiserver = self.apiserver().take();
        if let Some(process) = &apiserver {
            if let Some(status) = process.exited() {
                eprintln!("{}", process.failure(&format!("had ended by itself ({status})")));
            } else if std::thread::panicking() {
                eprintln!("{}", process.failure("was running"));
            }
        }
        self.nodes.clear();
    }
}

/// Waits for processes to end (some milliseconds each) and folders to go, off the runtime's threads.
async fn drop_blocking<T: Send + 'static>(value: T) {
    let done = tokio::task::spawn_blocking(move || drop(value)).await;
    done.expect("dropping does not panic");
}

fn printed(output: Output, args: &[&str]) -> Result<String> {
    if !output.status.success() {
        bail!("kubectl {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
