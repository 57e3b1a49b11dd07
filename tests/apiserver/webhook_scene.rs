//! A webhook of the library in this process, with rendered registrations by URL.

use crate::support::{LIMIT, timing, within};
use crate::world::{World, request};
use anyhow::{Context, Result, bail};
use controlplane::{ControlPlane, Version};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use sidecar_policy::api::trust::Trust;
use sidecar_policy::capabilities::Capabilities;
use sidecar_policy::cluster::discovery;
use sidecar_policy::cluster::policies::Snapshot;
use sidecar_policy::cluster::servers::Servers;
use sidecar_policy::compile::webhook::{Address, Endpoint, render, revision_of};
use sidecar_policy::engine::webhook::authority::Lifetimes;
use sidecar_policy::engine::webhook::certs::{Certificates, SECRET};
use sidecar_policy::engine::webhook::server::{self, Webhook};
use sidecar_policy::engine::webhook::tls::Tls;
use sidecar_policy::metrics::Metrics;
use sidecar_policy::naming::shared_name;
use sidecar_policy::naming::{PROBE, PROBE_REFUSE};
use sidecar_policy::operator::Operator;
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::workload::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The namespace of the operator.
pub(crate) const OPERATOR: &str = "scpol-system";
/// The interval of looks at the certificates.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// A certificate resolver that counts handshakes.
#[derive(Debug)]
pub(crate) struct Counted {
    certificates: Arc<Certificates>,
    pub(crate) handshakes: AtomicUsize,
}

impl ResolvesServerCert for Counted {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        self.certificates.resolve(hello)
    }
}

/// A server and its webhook.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) capabilities: Capabilities,
    pub(crate) webhook: Arc<Webhook>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) counted: Arc<Counted>,
    pub(crate) endpoint: Endpoint,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) serving: JoinHandle<()>,
}

impl Scene {
    pub(crate) async fn new(version: Version, site: Site) -> Result<Self> {
        Self::with(World::with(ControlPlane::builder(version)).await?, site, |_| false).await
    }

    /// A scene in `world`. Discovery includes the groups of custom resources for which `is_wanted` is true.
    pub(crate) async fn with(world: World, site: Site, is_wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let capabilities = discovery::discover(&world.admin, is_wanted).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = Endpoint::Url(format!("https://{}", listener.local_addr()?));
        let metrics = Arc::new(Metrics::default());
        let lifetimes = Lifetimes { settle: Duration::from_secs(2), ..Lifetimes::default() };
        let names = vec!["127.0.0.1".to_owned()];
        let certificates =
            Certificates::of_secret(world.admin.clone(), OPERATOR, names, metrics.clone(), &timing().webhook);
        let certificates = Arc::new(certificates.with(POLL, lifetimes));
        certificates.refresh().await?;
        let (_, snapshots) = watch::channel(Snapshot::default());
        let (client, resync) = (world.admin.clone(), Duration::from_secs(900));
        let operator = Operator::new(Servers::one(client), Arc::new(site), metrics, snapshots, resync, timing());
        let webhook = Arc::new(Webhook::new(Arc::new(operator)));
        let (stop, stopped) = watch::channel(false);
        let counted = Arc::new(Counted { certificates: certificates.clone(), handshakes: AtomicUsize::new(0) });
        let serving =
            tokio::spawn(server::serve(listener, Arc::new(Tls::new(counted.clone())), webhook.clone(), stopped));
        Ok(Self { world, capabilities, webhook, certificates, counted, endpoint, stop, serving })
    }

    fn policies(&self) -> Vec<Arc<Policy>> {
        self.webhook.policies.load().iter().cloned().collect()
    }

    /// Where servers reach the webhook.
    pub(crate) fn address(&self) -> Address {
        Address { endpoint: self.endpoint.clone(), ca_bundle: self.certificates.ca_bundle() }
    }

    fn rendered(&self, kind: &Kind) -> Result<Vec<Value>> {
        Ok(render(kind, &self.policies(), &self.capabilities, &self.webhook.operator.site(), &self.address())?)
    }

    /// The API path of a registration.
    fn collection(registration: &Value) -> Result<String> {
        let api = registration["apiVersion"].as_str().context("an apiVersion")?;
        let kind = registration["kind"].as_str().context("a kind")?;
        Ok(format!("/apis/{api}/{}s", kind.to_lowercase()))
    }

    /// Puts `policies` in effect, and waits until probes verify it.
    pub(crate) async fn register(&self, policies: Vec<Policy>) -> Result<()> {
        let policies = Policies::new(policies.into_iter().map(Arc::new));
        let kinds: BTreeMap<Arc<Kind>, ()> = policies.kinds().map(|kind| (kind.clone(), ())).collect();
        self.webhook.policies.store(Arc::new(policies));
        for kind in kinds.into_keys() {
            self.write(&kind).await?;
            self.in_force(&kind).await?;
        }
        Ok(())
    }

    /// Writes the registrations of `kind`, and replaces existing ones.
    pub(crate) async fn write(&self, kind: &Kind) -> Result<()> {
        for mut registration in self.rendered(kind)? {
            let collection = Self::collection(&registration)?;
            let path = format!("{collection}/{}", shared_name(kind));
            match self.world.get(&path).await? {
                None => drop(request(&self.world.admin, "POST", &collection, &registration).await?),
                Some(there) => {
                    registration["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
                    request(&self.world.admin, "PUT", &path, &registration).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits until creates of `kind` show the registered revisions.
    async fn in_force(&self, kind: &Kind) -> Result<()> {
        for registration in self.rendered(kind)? {
            let revision = revision_of(&registration).context("a revision")?.to_owned();
            let refuses = registration["kind"] == "ValidatingWebhookConfiguration";
            let what = format!("{} {revision} of {kind:?} is in effect", registration["kind"]);
            within(LIMIT, &what, || async {
                let answer = self.probe(kind, if refuses { PROBE_REFUSE } else { "" }).await?;
                Ok(match answer {
                    // Up to 1.20 the main entry is called for it, too.
                    Ok(shown) => {
                        let shown = shown["metadata"]["annotations"][PROBE].as_str().unwrap_or_default();
                        shown.split(',').any(|shown| shown == revision)
                    }
                    Err(message) if refuses => message.contains(&revision),
                    Err(message) => bail!(message),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// The result of a dry-run create of a probe, or the message of its rejection.
    async fn probe(&self, kind: &Kind, value: &str) -> Result<std::result::Result<Value, String>> {
        let address = self.capabilities.resource(kind).context("it is served")?;
        let mut body = json!({
            "apiVersion": address.api_version, "kind": address.kind,
            "metadata": { "name": "probe", "namespace": OPERATOR, "labels": { PROBE: value } },
        });
        // The namespace accepts only pods at the strictest level of Pod Security.
        let strict = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
        let pod = json!({
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "probe", "image": "none:1", "securityContext": strict }],
        });
        let labels = json!({ "app": "probe" });
        match address.kind.as_str() {
            "Pod" => body["spec"] = pod,
            // The server creates a selector.
            "Job" => {
                body["spec"] = json!({ "template": { "spec": pod } });
                body["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
            }
            "CronJob" => {
                let template = json!({ "spec": { "restartPolicy": "Never", "containers": pod["containers"] } });
                body["spec"] = json!({ "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": template } } });
            }
            "PersistentVolumeClaim" => {
                body["spec"] =
                    json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
            }
            _ => {
                let template = json!({ "metadata": { "labels": labels }, "spec": pod });
                body["spec"] = json!({ "selector": { "matchLabels": labels }, "template": template });
            }
        }
        if address.kind == "StatefulSet" {
            body["spec"]["serviceName"] = json!("probe");
        }
        let root = if kind.group.is_empty() { "/api" } else { "/apis" };
        // On 1.13 even a dry run would wait for foreign initializers.
        let query = "dryRun=All&includeUninitialized=1";
        let path = format!("{root}/{}/namespaces/{OPERATOR}/{}?{query}", address.api_version, kind.resource);
        match request(&self.world.admin, "POST", &path, &body).await {
            Ok(shown) => Ok(Ok(shown)),
            Err(kube::Error::Api(status)) => Ok(Err(status.message)),
            Err(error) => Err(error.into()),
        }
    }

    /// The Secret of the certificates.
    pub(crate) async fn secret(&self) -> Result<Value> {
        self.world.get(&format!("/api/v1/namespaces/{OPERATOR}/secrets/{SECRET}")).await?.context("it is there")
    }

    /// Stops properly.
    pub(crate) async fn stop(self) -> Result<World> {
        self.stop.send_replace(true);
        self.serving.await?;
        Ok(self.world)
    }
}

pub(crate) fn site() -> Site {
    Site { trust: Trust::unbounded(), ..Site::new(OPERATOR, ["vault".to_owned()], []) }
}

/// A policy as if it were read from the server.
pub(crate) fn policy(object: &Value) -> Result<Policy> {
    let mut object = object.clone();
    object["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    Policy::parse(&object, &site()).map_err(|faults| anyhow::anyhow!("{faults:?}"))
}

pub(crate) fn simple(name: &str, more: &Value) -> Result<Policy> {
    let targets = json!([{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }]);
    let mut spec = json!({ "targets": targets, "template": { "containers": [{ "name": name, "image": "envoy:1" }] } });
    for (field, value) in more.as_object().context("fields")? {
        spec[field] = value.clone();
    }
    policy(&json!({ "metadata": { "name": name }, "spec": spec }))
}

pub(crate) fn kinds() -> [&'static Arc<Kind>; 2] {
    [("", "pods"), ("apps", "deployments")].map(|(group, resource)| Kind::find(group, resource).expect("built-in"))
}
