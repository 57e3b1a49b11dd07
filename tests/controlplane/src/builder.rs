//! The settings of a control plane.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::assets::Assets;
use crate::process::Process;
use crate::ready::{etcd_health, is_clash, wait_ready};
use crate::server::{AUDIT_LOG, Files, Servers};
use crate::snapshot::{Etcd, Snapshot};
use crate::user::{self, User};
use crate::version::Quirk;
use crate::{ControlPlane, Version, free_port, nodes, pool, seconds};

/// The bodies of mutating requests are logged.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [get, list, watch]
- level: Request
";

/// The settings of a control plane, from [`ControlPlane::builder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Builder {
    version: Version,
    admission: Vec<String>,
    initializers_plugin: bool,
    initializers_api: bool,
    extra_args: Vec<String>,
    audit: bool,
    nodes: usize,
    state: Option<Snapshot>,
}

impl Builder {
    /// The defaults for tests.
    pub(crate) fn new(version: Version) -> Self {
        Self {
            version,
            admission: Vec::new(),
            initializers_plugin: true,
            initializers_api: true,
            extra_args: Vec::new(),
            audit: false,
            nodes: 0,
            state: None,
        }
    }

    /// Admission plugins beyond the server's default ones. `ServiceAccount` is off unless named here, because nothing
    /// creates the `default` accounts. On 1.13 `Initializers` is on unless switched off.
    #[must_use]
    pub fn enable_admission(mut self, plugins: &[&str]) -> Self {
        self.admission.extend(plugins.iter().map(|p| (*p).to_owned()));
        self
    }

    /// 1.13: serves the initializer configurations but leaves the plugin off, so that no object is ever initialized.
    #[must_use]
    pub fn disable_initializers_plugin(mut self) -> Self {
        self.initializers_plugin = false;
        self
    }

    /// 1.13: does not serve `admissionregistration.k8s.io/v1alpha1`, which is the default of 1.13. The plugin, which
    /// needs it, is off too.
    #[must_use]
    pub fn disable_initializers_api(mut self) -> Self {
        self.initializers_api = false;
        self.disable_initializers_plugin()
    }

    /// Another argument of kube-apiserver, as `--name=value`. It overrides an earlier one.
    #[must_use]
    pub fn extra_arg(mut self, arg: impl Into<String>) -> Self {
        self.extra_args.push(arg.into());
        self
    }

    /// Switches MutatingAdmissionPolicies on where they are a beta.
    #[must_use]
    pub fn admission_policies(self) -> Self {
        if self.version.has_admission_policies_as_beta() {
            self.extra_arg("--feature-gates=MutatingAdmissionPolicy=true")
                .extra_arg("--runtime-config=admissionregistration.k8s.io/v1beta1=true")
        } else {
            self
        }
    }

    /// Records every request for [`audit`](crate::Servers::audit).
    #[must_use]
    pub fn audit_log(mut self) -> Self {
        self.audit = true;
        self
    }

    /// [`Version::NEWEST`]: also runs kube-controller-manager, kube-scheduler and kwok with `count` fake nodes, on which
    /// pods appear to run.
    #[must_use]
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// Starts with the content of etcd in `state`, a [`snapshot`](crate::Servers::snapshot) of the same version,
    /// instead of that of a new server.
    #[must_use]
    pub fn state(mut self, state: &Snapshot) -> Self {
        self.state = Some(state.clone());
        self
    }

    /// The version of the server.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether `other` starts the same servers, whatever the content of etcd.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let servers = |builder: &Self| Self { state: None, ..builder.clone() };
        servers(self) == servers(other)
    }

    /// Starts everything and waits until it is ready. Before that, `build.sh` may have to build the servers. [`pool`]
    /// describes when a used control plane is taken.
    ///
    /// # Errors
    /// If the build fails, or the servers are not ready within 60 s. The error then has the end of the log.
    pub async fn start(mut self) -> Result<ControlPlane> {
        ensure!(
            self.nodes == 0 || self.version == Version::NEWEST,
            "only the newest version, {}, has nodes",
            Version::NEWEST
        );
        let assets = Assets::of(self.version).await?;
        let servers = if pool::is_shared() {
            // So that tests with and without an audit log share servers.
            self.audit = true;
            self.shared(&assets).await
        } else {
            self.fresh(&assets, self.state.as_ref()).await
        };
        let servers = servers.inspect_err(|_| pool::ended(&self));
        let servers = servers.with_context(|| format!("starting Kubernetes {}", self.version))?;
        let mut plane = ControlPlane::new(self.clone(), servers);
        if self.nodes > 0 {
            plane.nodes = nodes::start(&plane, &plane.assets, self.nodes).await?;
        }
        Ok(plane)
    }

    /// Used servers, reset to the requested state, or new ones with that state.
    async fn shared(&self, assets: &Assets) -> Result<Servers> {
        let fresh = pool::fresh(self.version, || async {
            let plain = Self::new(self.version).audit_log();
            let servers = plain.fresh(assets, None).await?;
            let snapshot = servers.etcd_client()?.settled().await?;
            pool::give(plain, servers);
            Ok(snapshot)
        });
        let fresh = fresh.await?;
        let state = self.state.as_ref().unwrap_or(&fresh);
        let Some((used, since)) = pool::take(self).await else { return self.fresh(assets, Some(state)).await };
        let begin = Instant::now();
        used.reset(state, since).await.context("giving a used control plane its former state")?;
        seconds::took(format!("reset Kubernetes {}", self.version), begin);
        Ok(used)
    }

    /// New servers, with `state` in etcd before the API server starts.
    async fn fresh(&self, assets: &Assets, state: Option<&Snapshot>) -> Result<Servers> {
        let begin = Instant::now();
        let mut tries = 0;
        let (mut files, etcd, apiserver) = loop {
            tries += 1;
            match self.attempt(assets, state).await {
                Err(error) if tries < 5 && is_clash(&error) => {}
                other => break other?,
            }
        };
        seconds::took(format!("start Kubernetes {}", self.version), begin);
        files.note_own()?;
        Ok(Servers {
            nodes: Vec::new(),
            apiserver: Mutex::new(Some(apiserver)),
            etcd,
            files,
            assets: assets.clone(),
            version: self.version,
            audit: self.audit,
            is_asleep: AtomicBool::new(false),
        })
    }

    /// One attempt, on ports that were free a moment ago.
    async fn attempt(&self, assets: &Assets, state: Option<&Snapshot>) -> Result<(Files, Process, Process)> {
        let (port, etcd_port) = (free_port(), free_port());
        let mut files = Files::write(port)?;
        for user in User::ALL {
            files.configs.push(user::config(&user.kubeconfig(files.dir())).await?);
        }
        if self.audit {
            fs::write(files.dir().join("audit.yaml"), AUDIT_POLICY)?;
            // Servers append to an existing log. In a log that 1.13 has created itself, it continues at its old offset
            // even after truncation.
            fs::write(files.dir().join(AUDIT_LOG), "")?;
        }
        let etcd = start_etcd(assets, files.dir(), etcd_port).await?;
        if let Some(state) = state {
            Etcd::at(&format!("127.0.0.1:{etcd_port}"))?.fill(state).await?;
        }
        files.args = self.apiserver_args(files.dir(), port, etcd_port);
        let apiserver = files.start_apiserver(assets, self.version).await?;
        Ok((files, etcd, apiserver))
    }

    fn apiserver_args(&self, dir: &Path, port: u16, etcd_port: u16) -> Vec<String> {
        let dir = dir.display();
        let mut args = vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            // No route to the outside is needed, and the address of the service `kubernetes` does not matter.
            "--advertise-address=127.0.0.1".into(),
            "--endpoint-reconciler-type=none".into(),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
            format!("--cert-dir={dir}"),
            format!("--tls-cert-file={dir}/tls.crt"),
            format!("--tls-private-key-file={dir}/tls.key"),
            format!("--token-auth-file={dir}/tokens.csv"),
            "--authorization-mode=RBAC".into(),
            format!("--service-account-key-file={dir}/sa.pub"),
            "--allow-privileged=true".into(),
        ];
        if self.audit {
            args.push(format!("--audit-policy-file={dir}/audit.yaml"));
            args.push(format!("--audit-log-path={dir}/audit.log"));
        }
        args.extend(self.version_args(&dir.to_string()));
        args.extend(self.admission_args());
        args.extend(self.extra_args.iter().cloned());
        args
    }

    fn version_args(&self, dir: &str) -> Vec<String> {
        let mut args = Vec::new();
        if self.version.is(Quirk::InsecurePort) {
            args.push("--insecure-port=0".into());
        }
        if self.version.has_initializers() && self.initializers_api {
            args.push("--runtime-config=admissionregistration.k8s.io/v1alpha1=true".into());
        }
        if !self.version.is(Quirk::NoIssuer) {
            args.push(format!("--service-account-signing-key-file={dir}/sa.key"));
            args.push("--service-account-issuer=https://kubernetes.default.svc".into());
        }
        args
    }

    fn admission_args(&self) -> Vec<String> {
        let mut enable = self.admission.clone();
        if self.version.has_initializers() && self.initializers_plugin {
            enable.push("Initializers".into());
        }
        let mut args = Vec::new();
        if !enable.iter().any(|p| p == "ServiceAccount") {
            args.push("--disable-admission-plugins=ServiceAccount".into());
        }
        if !enable.is_empty() {
            args.push(format!("--enable-admission-plugins={}", enable.join(",")));
        }
        args
    }
}

async fn start_etcd(assets: &Assets, dir: &Path, port: u16) -> Result<Process> {
    let args = [
        format!("--data-dir={}/etcd", dir.display()),
        format!("--listen-client-urls=http://127.0.0.1:{port}"),
        format!("--advertise-client-urls=http://127.0.0.1:{port}"),
        "--listen-peer-urls=http://127.0.0.1:0".into(),
        "--unsafe-no-fsync".into(),
        // It elects itself after 100 ms. With a tenth of these, an idle one takes twice the processor time.
        "--heartbeat-interval=50".into(),
        "--election-timeout=250".into(),
        "--log-level=warn".into(),
    ];
    let process = Process::start("etcd", &assets.path("etcd"), &args, dir)?;
    wait_ready(&process, || etcd_health(port)).await?;
    Ok(process)
}
