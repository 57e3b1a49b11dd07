//! The flags of the operator that decisions depend on, for commands that decide as the operator does.

use crate::api::is_dns_label;
use crate::api::pod_security::Level;
use crate::api::trust::{Power, Trust};
use crate::capabilities::Capabilities;
use crate::policy::Site;
use anyhow::{Result, bail, ensure};
use clap::Args;

/// The default namespace of the operator.
const OPERATOR_NAMESPACE: &str = "scpol-system";

/// The heading of flags that the operator also has.
const OPERATOR: &str = "Operator, as for scpol run";
/// The heading of flags that limit what templates may hold.
const TRUST: &str = "Limits of templates, as for scpol run";

/// Which operator it is.
#[derive(Args, Debug)]
pub(super) struct OperatorOptions {
    /// Namespace of the operator, which no policy reaches
    #[arg(help_heading = OPERATOR, long, value_name = "NAME", env = "SCPOL_OPERATOR_NAMESPACE", default_value = OPERATOR_NAMESPACE, value_parser = one_namespace, hide_short_help = true)]
    pub(super) operator_namespace: String,
    /// An initializer name outside scpol.dev that policies may use, as the operator has it (repeatable)
    #[arg(help_heading = OPERATOR, long = "initializer-name", value_name = "NAME", env = "SCPOL_INITIALIZER_NAME", value_delimiter = ',', value_parser = initializer_name, hide_short_help = true)]
    pub(super) initializer_names: Vec<String>,
}

/// The name of a Namespace, or an empty text from an empty environment variable.
pub(super) fn namespace_name(text: &str) -> Result<String, String> {
    if text.is_empty() || is_dns_label(text) {
        return Ok(text.to_owned());
    }
    Err("no Namespace can have this name; write whole names, lower case, without `*`, as in `logging,shop`".to_owned())
}

/// The name of the one Namespace that a flag is about, or an empty text as above. As elsewhere, the type may stand before the name, as
/// `kubectl get -o name` prints it.
pub(super) fn one_namespace(text: &str) -> Result<String, String> {
    let types = ["namespace/", "namespaces/", "ns/"];
    let name = types.iter().find_map(|of_type| text.strip_prefix(of_type)).unwrap_or(text);
    if name.is_empty() || is_dns_label(name) {
        return Ok(name.to_owned());
    }
    Err("no Namespace can have this name; write it in lower case letters, digits and `-`, as in `shop-eu`".to_owned())
}

/// The name of an initializer, or an empty text as above.
pub(super) fn initializer_name(text: &str) -> Result<String, String> {
    if text.is_empty() || (text.split('.').count() >= 3 && text.split('.').all(is_dns_label)) {
        return Ok(text.to_owned());
    }
    Err("no initializer can have this name; write three or more segments in lower case, as in `envoy.example.com`"
        .to_owned())
}

/// The limits of templates.
#[derive(Args, Debug)]
pub(super) struct TrustOptions {
    /// Level of the Pod Security Standards that templates must meet
    #[arg(help_heading = TRUST, long, value_name = "LEVEL", env = "SCPOL_POD_SECURITY", value_enum, default_value_t, hide_short_help = true)]
    pod_security: Level,
    /// Namespaces where templates need not meet that level, for policies with only these in spec.namespaces
    #[arg(help_heading = TRUST, long, value_name = "NAMES", env = "SCPOL_PRIVILEGED_NAMESPACES", value_delimiter = ',', value_parser = namespace_name, hide_short_help = true)]
    privileged_namespaces: Vec<String>,
    /// What else templates may contain, at any level
    #[arg(help_heading = TRUST, long, value_name = "POWERS", env = "SCPOL_ALLOW_IN_TEMPLATES", value_delimiter = ',', value_enum, hide_short_help = true)]
    allow_in_templates: Vec<Power>,
    /// Images that templates may name: registries, repositories, images, or globs such as registry.example.com/mesh/*
    /// (repeatable) [default: all]
    #[arg(help_heading = TRUST, long, value_name = "IMAGES", env = "SCPOL_ALLOWED_IMAGES", value_delimiter = ',', hide_short_help = true)]
    allowed_images: Vec<String>,
}

impl TrustOptions {
    pub(super) fn trust(&self) -> Trust {
        let given = |texts: &[String]| texts.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>();
        Trust {
            level: self.pod_security,
            privileged_namespaces: given(&self.privileged_namespaces).into_iter().collect(),
            powers: self.allow_in_templates.iter().copied().collect(),
            images: given(&self.allowed_images),
        }
    }
}

/// What the operator would be told by its own flags.
#[derive(Args, Debug)]
pub(super) struct SiteOptions {
    #[command(flatten)]
    pub(super) operator: OperatorOptions,
    #[command(flatten)]
    trust: TrustOptions,
    /// Namespaces that no policy reaches, as the operator has them
    #[arg(help_heading = OPERATOR, long, value_name = "NAMES", env = "SCPOL_PROTECTED_NAMESPACES", value_delimiter = ',', value_parser = namespace_name, hide_short_help = true)]
    protected_namespaces: Vec<String>,
    /// Version of the server and its nodes, which decides about native sidecars, for example [default: a current one; for a
    /// live workload, that of its server]
    #[arg(help_heading = OPERATOR, long, value_name = "VERSION", env = "SCPOL_KUBE_VERSION", hide_short_help = true)]
    kube_version: Option<String>,
}

impl SiteOptions {
    pub(super) fn site(&self) -> Result<Site> {
        let (protected, operator) = (self.protected_namespaces.clone(), &self.operator);
        let mut site = Site::new(&operator.operator_namespace, protected, operator.initializer_names.clone());
        set_version(&mut site, self.kube_version.as_deref())?;
        site.trust = self.trust.trust();
        Ok(site)
    }

    /// The `site` on `server`, unless the user gave another version of the cluster.
    pub(super) fn on(&self, site: Site, server: &Capabilities) -> Site {
        if self.kube_version.is_some() { site } else { site.on(server) }
    }
}

/// The oldest minor version of Kubernetes 1 that the operator is made for.
const OLDEST: u32 = 12;
/// The first minor version of Kubernetes 1 with native sidecars on by default (KEP-753, beta).
const NATIVE_SIDECARS: u32 = 29;

/// Sets what `site` has of the version of servers and nodes, such as `1.28` or `v1.36.3`. Without a version it has native sidecars.
pub(super) fn set_version(site: &mut Site, version: Option<&str>) -> Result<()> {
    site.native_sidecars = true;
    let Some(version) = version else { return Ok(()) };
    let mut numbers = version.strip_prefix('v').unwrap_or(version).splitn(3, '.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        bail!("`{version}` is no version of Kubernetes; write it as `1.28` or `v1.36.3`")
    };
    ensure!(
        major == 1 && minor >= OLDEST,
        "no policy works on Kubernetes `{version}`; expected 1.{OLDEST} or a later 1.x"
    );
    site.native_sidecars = minor >= NATIVE_SIDECARS;
    site.minor = Some(minor);
    Ok(())
}
