//! The address of the API server and our credentials, from the same sources as kubectl: kubeconfig, flags and
//! environment.

use super::client::chain;
use super::proxy::Proxies;
use crate::timing::CONNECT_LIMIT;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use http::Uri;
use kube::Config;
use kube::config::{AuthInfo, Cluster, Context, ExecAuthCluster, InClusterError, Kubeconfig};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::ExposeSecret;
use std::path::{Path, PathBuf};

/// The flags that select a cluster and a user. Every missing flag falls back to the kubeconfig.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The kubeconfig [default: `KUBECONFIG`, else `~/.kube/config`, else the pod's own account].
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig.
    pub context: Option<String>,
    /// The cluster of the kubeconfig.
    pub cluster: Option<String>,
    /// The user of the kubeconfig.
    pub user: Option<String>,
    /// The address of the API server.
    pub server: Option<String>,
    /// A file with the certificate authority of the API server.
    pub certificate_authority: Option<PathBuf>,
    /// Whether to accept any certificate of the API server.
    pub is_insecure: bool,
    /// The name that the certificate of the API server must have.
    pub tls_server_name: Option<String>,
    /// A bearer token, instead of the credentials of the kubeconfig.
    pub token: Option<String>,
    /// The user to impersonate.
    pub impersonated: Option<String>,
    /// The groups to impersonate.
    pub impersonated_groups: Vec<String>,
}

impl Access {
    /// The configuration of a client for this cluster and this user.
    ///
    /// # Errors
    /// If no usable configuration is found. The message lists the sources and the fix.
    pub fn config(&self) -> Result<Config> {
        self.config_and_place().map(|(config, _)| config)
    }

    /// As [`Self::config`], and the place of the server for messages: its address, and where that comes from.
    ///
    /// # Errors
    /// As [`Self::config`].
    pub fn config_and_place(&self) -> Result<(Config, String)> {
        let (mut config, source) = match file(self.kubeconfig.as_deref())? {
            Some((source, file)) => {
                let read = self.read(&file).with_context(|| format!("kubeconfig {source} cannot be used"))?;
                let context = self.context.as_ref().or(file.current_context.as_ref()).filter(|name| !name.is_empty());
                let context = context.map_or(String::new(), |name| format!("context `{name}` of "));
                (read, format!("{context}kubeconfig {source}"))
            }
            None if self.server.is_some() => (self.read(&Kubeconfig::default())?, "--server".to_owned()),
            None => (self.in_cluster()?, "the service account of this pod".to_owned()),
        };
        // kube 4 and 5 retry by default, even a POST that got 504. We retry ourselves, only where a retry is safe.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_LIMIT);
        let place = format!("{} ({source})", shown(&config.cluster_url));
        Ok((config, place))
    }

    /// The service account of the pod. The client connects to the API server directly, because a cluster has no proxy
    /// to itself.
    fn in_cluster(&self) -> Result<Config> {
        let kubeconfig = "no kubeconfig found (looked at --kubeconfig, KUBECONFIG and ~/.kube/config)";
        let named = [("--context", &self.context), ("--cluster", &self.cluster), ("--user", &self.user)];
        if let Some((flag, _)) = named.iter().find(|(_, name)| name.is_some()) {
            bail!("{flag} names something in a kubeconfig, and {kubeconfig}");
        }
        let mut config = Config::incluster().map_err(|error| match error {
            InClusterError::ReadEnvironmentVariable(_) => anyhow!("{kubeconfig}, and not running in a pod"),
            error => anyhow!("{kubeconfig}, and the account of the pod cannot be used: {}", chain(&error)),
        })?;
        config.accept_invalid_certs = self.is_insecure;
        config.tls_server_name.clone_from(&self.tls_server_name);
        config.auth_info = usable(self.authenticated(config.auth_info))?;
        Ok(config)
    }

    /// `file`, overridden by the flags.
    fn read(&self, file: &Kubeconfig) -> Result<Config> {
        let context = self.context(file)?;
        let cluster = self.cluster(file, &context)?;
        let mut user = self.user(file, &context)?;
        // `ExecAuthCluster` is made for plugins, but it reads the certificate authority both from the kubeconfig and
        // from a file.
        let known = ExecAuthCluster::try_from(&cluster).map_err(|error| anyhow!(chain(&error)))?;
        let authority = known.certificate_authority_data.clone();
        if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
            exec.cluster = Some(known);
        }
        let insecure = cluster.insecure_skip_tls_verify.unwrap_or(false);
        let has_certificate = user.client_certificate.is_some() || user.client_certificate_data.is_some();
        let server = server(&cluster, authority.is_some() || insecure || has_certificate)?;
        let mut config = Config::new(server);
        config.proxy_url = Proxies::from_env(cluster.proxy_url.clone()).of(&config.cluster_url)?;
        config.root_cert = authority.as_deref().map(certificates).transpose()?;
        config.accept_invalid_certs = insecure;
        config.tls_server_name = cluster.tls_server_name;
        config.disable_compression = cluster.disable_compression.unwrap_or(false);
        config.auth_info = usable(self.authenticated(user))?;
        if let Some(namespace) = context.namespace.filter(|namespace| !namespace.is_empty()) {
            config.default_namespace = namespace;
        }
        Ok(config)
    }

    fn context(&self, file: &Kubeconfig) -> Result<Context> {
        let names = || names(file.contexts.iter().map(|named| named.name.as_str()));
        let name = self.context.as_ref().or(file.current_context.as_ref()).filter(|name| !name.is_empty());
        let Some(name) = name else {
            // As in kubectl, an address and a user together make a context.
            ensure!(
                self.server.is_some() || self.cluster.is_some(),
                "it has no `current-context`; give `--context` with one of {}",
                names()
            );
            return Ok(Context::default());
        };
        let found = file.contexts.iter().find(|named| named.name == *name);
        let found = found.with_context(|| format!("it has no context `{name}`; expected one of {}", names()))?;
        Ok(found.context.clone().unwrap_or_default())
    }

    fn cluster(&self, file: &Kubeconfig, context: &Context) -> Result<Cluster> {
        let name = self.cluster.as_ref().unwrap_or(&context.cluster);
        let found = file.clusters.iter().find(|named| named.name == *name).and_then(|named| named.cluster.clone());
        let mut cluster = match found {
            Some(cluster) => cluster,
            None if self.server.is_some() && self.cluster.is_none() => Cluster::default(),
            None => {
                let names = names(file.clusters.iter().map(|named| named.name.as_str()));
                bail!("it has no cluster `{name}`; expected one of {names}")
            }
        };
        if let Some(server) = &self.server {
            cluster.server = Some(server.clone());
            // The kubeconfig has this name for another server.
            cluster.tls_server_name = None;
        }
        if let Some(path) = &self.certificate_authority {
            cluster.certificate_authority = Some(path.to_string_lossy().into_owned());
            cluster.certificate_authority_data = None;
        }
        if let Some(name) = &self.tls_server_name {
            cluster.tls_server_name = Some(name.clone());
        }
        if self.is_insecure {
            cluster.insecure_skip_tls_verify = Some(true);
        }
        Ok(cluster)
    }

    fn user(&self, file: &Kubeconfig, context: &Context) -> Result<AuthInfo> {
        let Some(name) = self.user.as_ref().or(context.user.as_ref()) else { return Ok(AuthInfo::default()) };
        match file.auth_infos.iter().find(|named| named.name == *name) {
            Some(named) => Ok(named.auth_info.clone().unwrap_or_default()),
            // As in kubectl, a context may name a missing user.
            None if self.user.is_none() => Ok(AuthInfo::default()),
            None => {
                let names = names(file.auth_infos.iter().map(|named| named.name.as_str()));
                bail!("it has no user `{name}`; expected one of {names}")
            }
        }
    }

    /// `user`, overridden by the flags.
    fn authenticated(&self, user: AuthInfo) -> AuthInfo {
        let mut user = match &self.token {
            None => user,
            // A server ignores the token if the client also has a certificate.
            Some(token) => AuthInfo {
                token: Some(token.clone().into()),
                impersonate: user.impersonate,
                impersonate_uid: user.impersonate_uid,
                impersonate_groups: user.impersonate_groups,
                impersonate_user_extra: user.impersonate_user_extra,
                ..AuthInfo::default()
            },
        };
        if let Some(name) = &self.impersonated {
            user.impersonate = Some(name.clone());
        }
        if !self.impersonated_groups.is_empty() {
            user.impersonate_groups = Some(self.impersonated_groups.clone());
        }
        user
    }
}

/// `user` with a token that can be sent. Files and YAML blocks end the token with a line break.
fn usable(mut user: AuthInfo) -> Result<AuthInfo> {
    if user.token.is_none()
        && let Some(path) = &user.token_file
    {
        let text = std::fs::read_to_string(path).with_context(|| format!("the token file {path} cannot be read"))?;
        // A token that can be sent unchanged stays a file, because the client reads the file again when it changes.
        if text.trim_end() != text {
            user.token = Some(text.into());
        }
    }
    if let Some(token) = &user.token {
        let token = token.expose_secret().trim();
        let is_sound = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(is_sound, "the token has letters that no token has; expected one line without spaces");
        user.token = Some(token.to_owned().into());
    }
    Ok(user)
}

/// The kubeconfig that `flag`, the environment or the home directory names, and its source for messages.
fn file(flag: Option<&Path>) -> Result<Option<(String, Kubeconfig)>> {
    if let Some(path) = flag {
        return read(path).map(|file| Some((path.display().to_string(), file)));
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<PathBuf> = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if listed.is_empty() {
        let default = std::env::home_dir().map(|home| home.join(".kube/config")).filter(|path| path.exists());
        return default.map(|path| read(&path).map(|file| (path.display().to_string(), file))).transpose();
    }
    // As in kubectl, some of several files may be missing.
    let there: Vec<_> = listed.iter().filter(|path| path.exists()).collect();
    let named = listed.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    ensure!(!there.is_empty(), "KUBECONFIG names {named}, where there is no file; correct it, or unset it");
    let merged = there.into_iter().try_fold(Kubeconfig::default(), |merged, path| {
        merged.merge(read(path)?).map_err(|error| anyhow!("the files of KUBECONFIG do not fit: {}", chain(&error)))
    })?;
    Ok(Some((format!("{named} (of KUBECONFIG)"), merged)))
}

fn read(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path)
        .map_err(|error| anyhow!("kubeconfig {} cannot be read: {}", path.display(), chain(&error)))
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    match names.collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => "those that `kubectl config` would add: there are none yet".to_owned(),
        names => names,
    }
}

/// `server` for display: without user, password and query.
fn shown(server: &Uri) -> String {
    format!("{}{}", super::proxy::shown(server), server.path().trim_end_matches('/'))
}

/// The address of `cluster`. Without a scheme, `is_secure` chooses between HTTPS and HTTP.
fn server(cluster: &Cluster, is_secure: bool) -> Result<Uri> {
    let server = cluster.server.as_deref().filter(|server| !server.is_empty());
    let server = server.context("the cluster has no `server`; give `--server https://HOST:PORT`")?;
    let full = match server.contains("://") {
        true => server.to_owned(),
        false => format!("{}://{server}", if is_secure { "https" } else { "http" }),
    };
    let expected = "expected https://HOST:PORT";
    let server = server.rsplit_once('@').map_or(server, |(_, host)| host);
    let uri: Uri =
        full.parse().map_err(|error| anyhow!("`{server}` is no address of a server: {error}; {expected}"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    ensure!(
        is_http && uri.host().is_some_and(|host| !host.is_empty()),
        "`{server}` is no address of a server; {expected}"
    );
    Ok(uri)
}

/// The certificates in `pem`.
fn certificates(pem: &[u8]) -> Result<Vec<Vec<u8>>> {
    let found: Vec<Vec<u8>> = CertificateDer::pem_slice_iter(pem)
        .map(|certificate| certificate.map(|certificate| certificate.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|error| anyhow!("the certificate authority of the cluster is no PEM: {error}"))?;
    ensure!(!found.is_empty(), "the certificate authority of the cluster has no certificate; expected PEM");
    Ok(found)
}
