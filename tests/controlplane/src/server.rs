//! The life and the end of a control plane.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use kube::{Client, Config};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::assets::Assets;
use crate::manifest;
use crate::process::{Process, tail};
use crate::ready::{POLL, READY_LIMIT, is_clash, probe, wait_ready};
use crate::snapshot::{Etcd, Snapshot};
use crate::user::{self, User};
use crate::{Builder, Version, pool, tls};

/// The folder of a control plane, and the data to start its API server again.
#[derive(Debug)]
pub(crate) struct Files {
    temp: TempDir,
    url: String,
    ca_pem: String,
    /// In the order of [`User::ALL`].
    pub(crate) configs: Vec<Config>,
    pub(crate) args: Vec<String>,
    own: BTreeSet<OsString>,
}

/// The file of the audit log.
pub(crate) const AUDIT_LOG: &str = "audit.log";

impl Files {
    pub(crate) fn write(port: u16) -> Result<Self> {
        let temp = tempfile::Builder::new().prefix("scpol-controlplane-").tempdir()?;
        let url = format!("https://127.0.0.1:{port}");
        let ca_pem = tls::write(temp.path())?;
        let tokens = user::write_tokens(temp.path())?;
        user::write_kubeconfigs(temp.path(), &url, &ca_pem, &tokens)?;
        Ok(Self { temp, url, ca_pem, configs: Vec::new(), args: Vec::new(), own: BTreeSet::new() })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.temp.path()
    }

    /// Records the present files as the servers' own.
    pub(crate) fn note_own(&mut self) -> Result<()> {
        let names = fs::read_dir(self.dir())?.map(|entry| Ok(entry?.file_name()));
        self.own = names.collect::<Result<_>>()?;
        Ok(())
    }

    /// Removes all other files, from a test or kubectl.
    fn remove_others(&self) -> Result<()> {
        for entry in fs::read_dir(self.dir())? {
            let entry = entry?;
            if self.own.contains(&entry.file_name()) {
                continue;
            }
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
        }
        Ok(())
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
pub struct Servers {
    // In the order of termination.
    pub(crate) nodes: Vec<Process>,
    pub(crate) apiserver: Mutex<Option<Process>>,
    pub(crate) etcd: Process,
    pub(crate) files: Files,
    pub(crate) assets: Assets,
    pub(crate) version: Version,
    pub(crate) audit: bool,
    pub(crate) is_asleep: AtomicBool,
}

/// The [`Servers`] of one test. Dropping it ends them, or passes them to the next test: see [`crate::pool`].
#[derive(Debug)]
pub struct ControlPlane {
    builder: Builder,
    /// None after they were passed on.
    servers: Option<Servers>,
    /// Whether their state has changed in a way that a reset cannot undo.
    is_spoilt: AtomicBool,
    /// The client of [`Self::same_admin`].
    admin: Kept,
}

/// A client, once there is one.
#[derive(Default)]
struct Kept(Mutex<Option<Client>>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl Deref for ControlPlane {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        self.servers.as_ref().expect("they are handed on when this is dropped")
    }
}

impl DerefMut for ControlPlane {
    fn deref_mut(&mut self) -> &mut Servers {
        self.is_spoilt.store(true, Ordering::Relaxed);
        self.servers.as_mut().expect("they are handed on when this is dropped")
    }
}

impl ControlPlane {
    /// The settings for a control plane of this version, with the defaults for tests.
    pub fn builder(version: Version) -> Builder {
        Builder::new(version)
    }

    pub(crate) fn new(builder: Builder, servers: Servers) -> Self {
        Self { builder, servers: Some(servers), is_spoilt: AtomicBool::new(false), admin: Kept::default() }
    }

    /// A client with all rights, the same one until the API server is stopped. A new connection costs more than a request, and
    /// tests poll.
    pub fn same_admin(&self) -> Client {
        let mut admin = self.admin.0.lock().unwrap_or_else(PoisonError::into_inner);
        admin.get_or_insert_with(|| self.admin()).clone()
    }

    /// Excludes these servers from reuse.
    pub(crate) fn spoil(&self) {
        self.is_spoilt.store(true, Ordering::Relaxed);
    }

    /// Kills the API server and starts a new one on the same port and data. Returns when it is ready.
    ///
    /// # Errors
    /// If the server is not ready in time.
    pub async fn restart_apiserver(&self) -> Result<()> {
        self.stop_apiserver().await;
        self.start_apiserver().await
    }

    /// [`Self::restart_apiserver`] with more arguments, as `--name=value`. They replace earlier ones of the same name.
    ///
    /// # Errors
    /// If the server is not ready in time.
    pub async fn restart_apiserver_with(&mut self, args: &[&str]) -> Result<()> {
        let name = |arg: &str| arg.split('=').next().unwrap_or_default().to_owned();
        let replaced: Vec<_> = args.iter().map(|arg| name(arg)).collect();
        self.files.args.retain(|arg| !replaced.contains(&name(arg)));
        self.files.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self.restart_apiserver().await
    }

    /// Kills the API server and starts one of another version on the same port and data, with the same arguments.
    ///
    /// # Errors
    /// If the server cannot be built, or is not ready in time.
    pub async fn change_apiserver(&mut self, version: Version) -> Result<()> {
        let assets = Assets::of(version).await?;
        self.stop_apiserver().await;
        (self.assets, self.version) = (assets, version);
        self.start_apiserver().await
    }

    /// Kills the API server. etcd keeps running.
    pub async fn stop_apiserver(&self) {
        self.spoil();
        *self.admin.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let process = self.apiserver().take();
        drop_blocking(process).await;
    }

    /// Starts the API server again after [`Self::stop_apiserver`].
    ///
    /// # Errors
    /// If the server is not ready in time.
    pub async fn start_apiserver(&self) -> Result<()> {
        ensure!(self.apiserver().is_none(), "the API server was not stopped");
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            match self.files.start_apiserver(&self.assets, self.version).await {
                Ok(process) => {
                    *self.apiserver() = Some(process);
                    return Ok(());
                }
                // Another process may have the port for a moment, for an outgoing connection.
                Err(error) if is_clash(&error) && Instant::now() < deadline => sleep(POLL).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Freezes the API server (SIGSTOP): connections stay open, but nothing answers.
    pub fn freeze(&self) {
        self.spoil();
        self.signal(Signal::STOP);
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends everything and removes the folder.
    pub async fn stop(mut self) {
        drop_blocking(self.servers.take()).await;
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        pool::ended(&self.builder);
        let Some(servers) = self.servers.take() else { return };
        let is_whole = !self.is_spoilt.load(Ordering::Relaxed) && servers.nodes.is_empty() && servers.is_running();
        if pool::is_shared() && is_whole && !std::thread::panicking() {
            pool::give(self.builder.clone(), servers);
        }
    }
}

impl Servers {
    /// `https://127.0.0.1:<port>`, the same after restarts.
    pub fn url(&self) -> &str {
        &self.files.url
    }

    /// The CA of the server's certificate, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.files.ca_pem
    }

    /// The version of the server.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The temporary folder with kubeconfigs, certificates, logs and etcd's data. Files added to it are removed with
    /// it.
    pub fn dir(&self) -> &Path {
        self.files.dir()
    }

    /// The folder of the server binaries. It includes kubectl, unless the assets lack it.
    pub fn assets(&self) -> &Path {
        self.assets.dir()
    }

    /// A new client with its own connections and all rights.
    pub fn admin(&self) -> Client {
        self.client(User::Admin)
    }

    /// A new client with its own connections, for a user. It never retries.
    pub fn client(&self, user: User) -> Client {
        Client::try_from(self.client_config(user)).expect("the same configuration was used to wait for the server")
    }

    /// The configuration of [`Self::client`], for changes before use.
    pub fn client_config(&self, user: User) -> Config {
        self.files.config(user)
    }

    /// A kubeconfig file with the user's token and the CA.
    pub fn kubeconfig(&self, user: User) -> PathBuf {
        user.kubeconfig(self.dir())
    }

    /// The environment of a command that uses the servers: KUBECONFIG (the administrator's) and the other variables that
    /// `controlplane run --help` names, with kubectl first in PATH.
    ///
    /// # Errors
    /// If the folder of the binaries has a `:` in its name.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(self.assets().to_owned()).chain(std::env::split_paths(&inherited));
        Ok(vec![
            ("PATH", std::env::join_paths(path)?),
            ("KUBECONFIG", self.kubeconfig(User::Admin).into()),
            ("KUBECACHEDIR", self.dir().join("cache").into()),
            ("KUBERC", "off".into()),
            ("SCPOL_TEST_URL", self.url().into()),
            ("SCPOL_TEST_DIR", self.dir().into()),
            ("SCPOL_TEST_KUBECONFIG_OPERATOR", self.kubeconfig(User::Operator).into()),
            ("SCPOL_TEST_KUBECONFIG_CREATOR", self.kubeconfig(User::Creator).into()),
            ("SCPOL_TEST_KUBECONFIG_BYSTANDER", self.kubeconfig(User::Bystander).into()),
        ])
    }

    /// `kubectl` as a user, without the caller's settings and caches. The caller adds arguments, then calls `output()`.
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

    /// The output of `kubectl ARGS`.
    ///
    /// # Errors
    /// If kubectl fails. The error has its stderr.
    pub async fn kubectl_output(&self, user: User, args: &[&str]) -> Result<String> {
        printed(self.kubectl(user).args(args).output().await?, args)
    }

    /// Creates the objects in `yaml` as the administrator, or merges them into existing ones. Unknown fields are
    /// allowed.
    ///
    /// # Errors
    /// At the first object that the server rejects.
    pub async fn apply_manifests(&self, yaml: &str) -> Result<()> {
        manifest::apply(&self.admin(), yaml).await
    }

    /// [`Self::apply_manifests`] of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or as for [`Self::apply_manifests`].
    pub async fn apply_file(&self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        self.apply_manifests(&text).await.with_context(|| path.display().to_string())
    }

    /// The requests so far as audit events, oldest first. Needs [`Builder::audit_log`].
    ///
    /// # Panics
    /// Without it.
    pub fn audit(&self) -> Vec<Value> {
        assert!(self.audit, "started without audit_log()");
        let text = fs::read_to_string(self.dir().join(AUDIT_LOG)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect() // the last line may be incomplete
    }

    /// Forgets the requests so far.
    ///
    /// # Errors
    /// If the file cannot be emptied.
    pub fn clear_audit(&self) -> Result<()> {
        empty(&self.dir().join(AUDIT_LOG))
    }

    /// The last lines of the API server's log, which continues after restarts.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.dir().join("kube-apiserver.log"), lines)
    }

    /// The pids of all servers.
    pub fn pids(&self) -> Vec<u32> {
        let apiserver = self.apiserver().as_ref().map(Process::id);
        self.nodes.iter().map(Process::id).chain(apiserver).chain([self.etcd.id()]).collect()
    }

    /// The content of etcd once the API server has no more writes of its own, for [`Builder::state`].
    ///
    /// # Errors
    /// If etcd does not answer, or the writes do not end.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        self.etcd_client()?.settled().await
    }

    /// The current content of etcd.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn stored(&self) -> Result<Snapshot> {
        self.etcd_client()?.read().await
    }

    /// Writes `object` into etcd as the object at `key`, such as `services/endpoints/default/kubernetes`, without the checks of an
    /// API server, which does not take a loopback address there.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn store(&self, key: &str, object: &Value) -> Result<()> {
        self.etcd_client()?.put(format!("/registry/{key}").as_bytes(), object.to_string().as_bytes()).await
    }

    /// The address of etcd, as `127.0.0.1:<port>`.
    pub fn etcd_address(&self) -> String {
        let address = self.files.args.iter().find_map(|arg| arg.strip_prefix("--etcd-servers=http://"));
        address.expect("the API server was started with it").to_owned()
    }

    pub(crate) fn etcd_client(&self) -> Result<Etcd> {
        Etcd::at(&self.etcd_address())
    }

    /// Stops (SIGSTOP) idle servers, so that they take no processor time.
    pub(crate) fn sleep(&self) {
        if !self.is_asleep.swap(true, Ordering::Relaxed) {
            self.signal(Signal::STOP);
            self.etcd.signal(Signal::STOP);
        }
    }

    /// Ends [`Self::sleep`], and waits until the API server is ready.
    async fn wake(&self) -> Result<()> {
        if self.is_asleep.swap(false, Ordering::Relaxed) {
            self.etcd.signal(Signal::CONT);
            self.signal(Signal::CONT);
            let client = self.admin();
            wait_ready(&self.etcd, || probe(&client, self.version)).await?;
        }
        Ok(())
    }

    /// Resets the servers as if they had just started, with `state` in etcd. They have been unused since `since`.
    pub(crate) async fn reset(&self, state: &Snapshot, since: std::time::Instant) -> Result<()> {
        self.wake().await?;
        self.etcd_client()?.restore(state, since).await?;
        self.files.remove_others()?;
        for log in [AUDIT_LOG, "kube-apiserver.log", "etcd.log"] {
            empty(&self.dir().join(log))?;
        }
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.etcd.exited().is_none() && self.apiserver().as_ref().is_some_and(|process| process.exited().is_none())
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

impl Drop for Servers {
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

/// Truncates a log, if it exists. Writers may be appending to it.
fn empty(log: &Path) -> Result<()> {
    match fs::OpenOptions::new().write(true).open(log) {
        Ok(file) => Ok(file.set_len(0)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Drops `value` off the runtime's threads, because it waits for processes to end and folders to be removed.
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
