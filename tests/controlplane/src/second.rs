//! A second API server on the same etcd.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use kube::{Client, Config};

use crate::assets::Assets;
use crate::process::Process;
use crate::ready::{is_clash, probe, wait_ready};
use crate::{ControlPlane, User, Version, free_port};

/// The number of tries of ports that were free a moment ago.
const TRIES: usize = 5;

/// A second API server with the same users and flags. Dropping it ends it.
#[derive(Debug)]
pub struct ApiServer {
    _process: Process,
    url: String,
    config: Config,
}

impl ApiServer {
    /// The file of its audit log in the folder of the control plane, if that has an audit log.
    pub const AUDIT_LOG: &'static str = "audit-second.log";

    /// `https://127.0.0.1:<port>`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A new client with its own connections and all rights.
    pub fn admin(&self) -> Client {
        Client::try_from(self.config.clone()).expect("the same configuration was used to wait for the server")
    }

    async fn start(plane: &ControlPlane, etcd: SocketAddr, version: Version) -> Result<Self> {
        let port = free_port();
        let url = format!("https://127.0.0.1:{port}");
        let audit = plane.dir().join(Self::AUDIT_LOG);
        let other = |arg: &String| match arg.split_once('=') {
            Some((name @ "--etcd-servers", _)) => format!("{name}=http://{etcd}"),
            Some((name @ "--secure-port", _)) => format!("{name}={port}"),
            Some((name @ "--audit-log-path", _)) => format!("{name}={}", audit.display()),
            _ => arg.clone(),
        };
        let args: Vec<String> = plane.files.args.iter().map(other).collect();
        let program = Assets::of(version).await?.path("kube-apiserver");
        let process = Process::start("kube-apiserver-second", &program, &args, plane.dir())?;
        let mut config = plane.client_config(User::Admin);
        config.cluster_url = url.parse().context("the URL of the second API server")?;
        let client = Client::try_from(config.clone())?;
        wait_ready(&process, || probe(&client, version)).await?;
        Ok(Self { _process: process, url, config })
    }
}

impl ControlPlane {
    /// Starts a second API server, which connects to etcd at the address `etcd`, for example of a proxy. It must be
    /// dropped before the control plane.
    ///
    /// # Errors
    /// If the server is not ready within 60 s. The error has the end of its log.
    pub async fn second_apiserver(&self, etcd: SocketAddr) -> Result<ApiServer> {
        self.another_apiserver(etcd, self.version()).await
    }

    /// Starts another API server of this control plane, of another version, with the same users and flags. It must be dropped
    /// before the control plane.
    ///
    /// # Errors
    /// If the server is not ready within 60 s. The error has the end of its log.
    pub async fn apiserver_of(&self, version: Version) -> Result<ApiServer> {
        self.another_apiserver(self.etcd_address().parse()?, version).await
    }

    async fn another_apiserver(&self, etcd: SocketAddr, version: Version) -> Result<ApiServer> {
        self.spoil();
        let mut tries = 0;
        loop {
            tries += 1;
            match ApiServer::start(self, etcd, version).await {
                Err(error) if tries < TRIES && is_clash(&error) => {}
                started => return started.with_context(|| format!("starting another API server, of {version}")),
            }
        }
    }
}
