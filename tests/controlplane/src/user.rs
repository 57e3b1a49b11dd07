//! The fixed users of the server, each with a random token.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use k8s_openapi::ByteString;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

/// A user in the server's token file. Only [`User::Admin`] has rights before a test grants some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum User {
    /// In `system:masters`: everything is allowed, and no in-flight limit applies.
    Admin,
    /// `system:serviceaccount:scpol-system:scpol`, the account of the operator's pod.
    Operator,
    /// `creator`, only in the group `system:authenticated`.
    Creator,
    /// `bystander`, with the same group.
    Bystander,
}

impl User {
    /// All users.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Operator, Self::Creator, Self::Bystander];

    /// The name that the server sees.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "system:serviceaccount:scpol-system:scpol",
            Self::Creator => "creator",
            Self::Bystander => "bystander",
        }
    }

    /// The groups in the token file. The server adds `system:authenticated`.
    pub fn groups(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Operator => "system:serviceaccounts,system:serviceaccounts:scpol-system,system:authenticated",
            Self::Creator | Self::Bystander => "",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Admin => "admin.kubeconfig",
            Self::Operator => "operator.kubeconfig",
            Self::Creator => "creator.kubeconfig",
            Self::Bystander => "bystander.kubeconfig",
        }
    }

    /// The user's kubeconfig file in `dir`.
    pub(crate) fn kubeconfig(self, dir: &Path) -> PathBuf {
        dir.join(self.file())
    }
}

/// Writes `tokens.csv`, with one random token per user, in the order of [`User::ALL`].
pub(crate) fn write_tokens(dir: &Path) -> Result<Vec<String>> {
    let mut random = File::open("/dev/urandom")?;
    let mut lines = String::new();
    let mut tokens = Vec::new();
    for user in User::ALL {
        let mut bytes = [0; 16];
        random.read_exact(&mut bytes)?;
        let token = format!("{:032x}", u128::from_ne_bytes(bytes));
        lines += &format!("{token},{name},{name},\"{groups}\"\n", name = user.name(), groups = user.groups());
        tokens.push(token);
    }
    fs::write(dir.join("tokens.csv"), lines)?;
    Ok(tokens)
}

/// Writes every user's kubeconfig for the server at `url`.
pub(crate) fn write_kubeconfigs(dir: &Path, url: &str, ca_pem: &str, tokens: &[String]) -> Result<()> {
    let ca = ByteString(ca_pem.as_bytes().to_vec()); // base64 when serialised
    for (user, token) in User::ALL.into_iter().zip(tokens) {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": ca}}],
            "users": [{"name": user.name(), "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user.name()}}],
            "current-context": "test",
        });
        fs::write(user.kubeconfig(dir), serde_json::to_vec_pretty(&config)?)?;
    }
    Ok(())
}

/// A client configuration from a kubeconfig file, without a proxy and without automatic retries.
pub(crate) async fn config(file: &Path) -> Result<Config> {
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &options).await?;
    config.default_retry = false;
    config.proxy_url = None;
    Ok(config)
}
