//! The flags that say which cluster, and as whom: those of kubectl.

use crate::cluster::access::Access;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Which kubeconfig: as for kubectl.
#[derive(Args, Debug, Clone)]
pub(super) struct Kubeconfig {
    /// Kubeconfig to use [default: KUBECONFIG, else ~/.kube/config, else the pod's service account]
    #[arg(help_heading = CLUSTER, long, value_name = "FILE", env = "SCPOL_KUBECONFIG", hide_short_help = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use [default: its current context]
    #[arg(help_heading = CLUSTER, long, value_name = "NAME", env = "SCPOL_CONTEXT", hide_short_help = true)]
    context: Option<String>,
}

/// The heading of flags that kubectl also has.
const CLUSTER: &str = "Cluster, as for kubectl";

/// Which cluster, and as whom: as for kubectl.
#[derive(Args, Debug, Clone)]
pub(super) struct Cluster {
    #[command(flatten)]
    kubeconfig: Kubeconfig,
    /// Cluster of the kubeconfig to use [default: the context's]
    #[arg(help_heading = CLUSTER, long, value_name = "NAME", env = "SCPOL_CLUSTER", hide_short_help = true)]
    cluster: Option<String>,
    /// User of the kubeconfig to use [default: the context's]
    #[arg(help_heading = CLUSTER, long, value_name = "NAME", env = "SCPOL_USER", hide_short_help = true)]
    user: Option<String>,
    /// Address of the API server [default: the cluster's]
    #[arg(help_heading = CLUSTER, short, long, value_name = "URL", env = "SCPOL_SERVER", hide_short_help = true)]
    server: Option<String>,
    /// File with the certificate authority of the API server [default: the cluster's]
    #[arg(help_heading = CLUSTER, long, value_name = "FILE", env = "SCPOL_CERTIFICATE_AUTHORITY", hide_short_help = true)]
    certificate_authority: Option<PathBuf>,
    /// Accept any certificate of the API server
    #[arg(help_heading = CLUSTER, long, env = "SCPOL_INSECURE_SKIP_TLS_VERIFY", hide_short_help = true)]
    insecure_skip_tls_verify: bool,
    /// Name that the API server's certificate must have [default: its host name]
    #[arg(help_heading = CLUSTER, long, value_name = "NAME", env = "SCPOL_TLS_SERVER_NAME", hide_short_help = true)]
    tls_server_name: Option<String>,
    /// Bearer token to use, instead of the user's credentials
    #[arg(help_heading = CLUSTER, long, value_name = "TOKEN", env = "SCPOL_TOKEN", hide_env_values = true, hide_short_help = true)]
    token: Option<String>,
    /// User to impersonate
    #[arg(help_heading = CLUSTER, id = "as", long = "as", value_name = "NAME", env = "SCPOL_AS", hide_short_help = true)]
    impersonated: Option<String>,
    /// Group to impersonate (repeatable)
    #[arg(
        help_heading = CLUSTER,
        id = "as-group",
        long = "as-group",
        value_name = "NAME",
        env = "SCPOL_AS_GROUP",
        value_delimiter = ',',
        requires = "as",
        hide_short_help = true
    )]
    impersonated_groups: Vec<String>,
    /// How long one request may take, such as 5s; 0: no limit [default: 10s]
    #[arg(help_heading = CLUSTER, long, value_name = "DURATION", env = "SCPOL_REQUEST_TIMEOUT", value_parser = duration, hide_short_help = true)]
    pub(super) request_timeout: Option<Duration>,
}

impl Kubeconfig {
    pub(super) fn access(&self) -> Access {
        Access { kubeconfig: self.kubeconfig.clone(), context: self.context.clone(), ..Access::default() }
    }
}

impl Cluster {
    pub(super) fn access(&self) -> Access {
        Access {
            cluster: self.cluster.clone(),
            user: self.user.clone(),
            server: self.server.clone(),
            certificate_authority: self.certificate_authority.clone(),
            is_insecure: self.insecure_skip_tls_verify,
            tls_server_name: self.tls_server_name.clone(),
            token: self.token.clone(),
            impersonated: self.impersonated.clone(),
            impersonated_groups: self.impersonated_groups.clone(),
            ..self.kubeconfig.access()
        }
    }
}

/// Parses a duration as kubectl does: a plain number is in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 5s, 1m or 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_take_as_long_as_kubectl_would_be_told() {
        for (text, expected) in
            [("5", Some(5)), ("0", Some(0)), ("1m", Some(60)), ("0s", Some(0)), ("5x", None), ("-1", None)]
        {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_secs), "{text}");
        }
    }
}
