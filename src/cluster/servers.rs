//! All API servers of the cluster. The address in a client's configuration may lead to several, of different versions while the
//! control plane is upgraded, and each connection to another one.
//!
//! API servers list their own addresses in the Endpoints `kubernetes` of the namespace `default`. Where these cannot be read or
//! reached, for example from outside of the cluster, only the server of the own connection is known.

use super::api::Api;
use super::client::{self, CallError, call};
use super::discovery;
use crate::capabilities::Capabilities;
use crate::metrics::Metrics;
use anyhow::Result;
use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::Endpoints;
use kube::{Client, Config};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// How long an API server may take to connect and answer. One that is gone is in the list for some seconds more
/// (`DefaultEndpointReconcilerTTL` of kube-apiserver is 15 s).
const PATIENCE: Duration = Duration::from_secs(3);

/// The API servers of one cluster.
pub struct Servers {
    /// The connection for every request.
    pub client: Client,
    /// Connects to each server by its own address; none to ask only the one behind [`Self::client`].
    config: Option<Config>,
    metrics: Arc<Metrics>,
}

impl Servers {
    /// The servers behind the address in `config`.
    ///
    /// # Errors
    /// If `config` has a setting that cannot be used.
    pub fn connect(config: Config, metrics: Arc<Metrics>) -> Result<Self> {
        let client = client::connect(config.clone(), &metrics)?;
        Ok(Self::behind(client, config, metrics))
    }

    /// The servers behind the address in `config`, the configuration of `client`.
    pub fn behind(client: Client, config: Config, metrics: Arc<Metrics>) -> Self {
        // Each client would run the plugin anew.
        let config = config.auth_info.exec.is_none().then_some(config);
        Self { client, config, metrics }
    }

    /// Only the server behind `client`.
    pub fn one(client: Client) -> Self {
        Self { client, config: None, metrics: Arc::default() }
    }

    /// What every server serves: see [`discovery::discover`] and [`Capabilities::limit_to`].
    ///
    /// # Errors
    /// If the server of the own connection cannot be asked.
    pub async fn discover(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Capabilities, CallError> {
        let (found, others) = join(discovery::discover(&self.client, is_wanted), self.others()).await;
        let mut found = found?;
        for other in &others {
            found.limit_to(other);
        }
        Ok(found)
    }

    /// What each server that can be reached by its own address registers.
    async fn others(&self) -> Vec<Capabilities> {
        let Some(config) = &self.config else { return Vec::new() };
        let api = Api::<Endpoints>::namespaced(self.client.clone(), "default");
        let listed = match call(api.get_opt("kubernetes")).await {
            Ok(listed) => addresses(&listed.unwrap_or_default()),
            Err(error) => {
                debug!(%error, "Cannot read the addresses of the API servers");
                return Vec::new();
            }
        };
        let asked = listed.into_iter().map(|(ip, port)| async move {
            let url = format!("https://{}", SocketAddr::new(ip, port));
            match tokio::time::timeout(PATIENCE, self.ask(config, &url)).await {
                Ok(Ok(found)) => Some(found),
                Ok(Err(error)) => {
                    debug!(url, %error, "Cannot ask an API server by its own address");
                    None
                }
                Err(_) => {
                    debug!(url, "An API server does not answer by its own address");
                    None
                }
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn ask(&self, config: &Config, url: &str) -> Result<Capabilities> {
        let mut config = config.clone();
        // The certificate of each server has the name by which clients of the cluster know it.
        let name = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned());
        config.tls_server_name = config.tls_server_name.or(name);
        config.cluster_url = url.parse()?;
        let client = client::connect(config, &self.metrics)?;
        Ok(discovery::registrations(&client).await?)
    }
}

/// The addresses in `listed`, the Endpoints of API servers.
fn addresses(listed: &Endpoints) -> Vec<(IpAddr, u16)> {
    let subsets = listed.subsets.iter().flatten();
    let all = subsets.flat_map(|subset| {
        let ports = subset.ports.iter().flatten().filter_map(|port| u16::try_from(port.port).ok());
        let ips = subset.addresses.iter().flatten().filter_map(|address| address.ip.parse().ok());
        let ips: Vec<IpAddr> = ips.collect();
        ports.flat_map(move |port| ips.clone().into_iter().map(move |ip| (ip, port)))
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_address_is_listed_with_each_of_its_ports() {
        let listed = json!({ "subsets": [
            { "addresses": [{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }], "ports": [{ "name": "https", "port": 6443 }] },
            { "notReadyAddresses": [{ "ip": "192.0.2.9" }], "ports": [{ "port": 1 }] },
            { "addresses": [{ "ip": "192.0.2.2" }], "ports": [{ "port": 443 }, { "port": 6443 }] },
        ] });
        let listed = addresses(&serde_json::from_value(listed).unwrap());
        let listed: Vec<_> = listed.into_iter().map(|(ip, port)| format!("{ip} {port}")).collect();
        assert_eq!(listed, ["192.0.2.1 6443", "2001:db8::1 6443", "192.0.2.2 443", "192.0.2.2 6443"]);
        assert_eq!(addresses(&Endpoints::default()), []);
    }
}
