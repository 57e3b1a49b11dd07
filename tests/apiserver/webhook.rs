//! The webhook engine: the server and the certificates of the library in this process, registered by URL with what is rendered.

use crate::support::{LIMIT, within};
use crate::world::{World, containers, request};
use anyhow::{Context, Result, bail, ensure};
use controlplane::{ControlPlane, Version};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sidecar_policy::cluster::capabilities::Capabilities;
use sidecar_policy::cluster::namespaces::Namespaces;
use sidecar_policy::engine::webhook::authority::Lifetimes;
use sidecar_policy::engine::webhook::certs::{Certificates, SECRET};
use sidecar_policy::engine::webhook::render::{self, Endpoint, render, revision_of};
use sidecar_policy::engine::webhook::review::{LARGEST, PROBE_KEY, PROBE_REFUSE};
use sidecar_policy::engine::webhook::server::{self, Webhook};
use sidecar_policy::metrics::Metrics;
use sidecar_policy::policy::{Policies, Policy, Site};
use sidecar_policy::workload::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Where the operator would run.
const OPERATOR: &str = "scpol-system";
/// How often the certificates are looked at.
const POLL: Duration = Duration::from_millis(100);

/// A server, and a webhook that it calls.
pub struct Scene {
    pub world: World,
    pub capabilities: Capabilities,
    pub webhook: Arc<Webhook>,
    certificates: Arc<Certificates>,
    endpoint: Endpoint,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Scene {
    pub async fn new(version: Version, site: Site) -> Result<Self> {
        Self::with(World::with(ControlPlane::builder(version)).await?, site, |_| false).await
    }

    /// In `world`, where groups of custom resources are asked about as well for which `is_wanted` is true.
    pub async fn with(world: World, site: Site, is_wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let capabilities = Capabilities::discover(&world.admin, is_wanted).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = Endpoint::Url(format!("https://{}", listener.local_addr()?));
        let metrics = Arc::new(Metrics::new());
        let lifetimes = Lifetimes { settle: SignedDuration::from_secs(2), ..Lifetimes::default() };
        let names = vec!["127.0.0.1".to_owned()];
        let certificates = Certificates::of_secret(world.admin.clone(), OPERATOR, names, metrics.clone());
        let certificates = Arc::new(certificates.with(POLL, lifetimes));
        certificates.refresh().await?;
        let webhook = Arc::new(Webhook {
            policies: Default::default(),
            site: Arc::new(site).into(),
            namespaces: Arc::new(Namespaces::default()),
            client: world.admin.clone(),
            metrics,
            observer: None,
        });
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(server::serve(listener, certificates.clone(), webhook.clone(), stopped));
        Ok(Self { world, capabilities, webhook, certificates, endpoint, stop, serving })
    }

    fn policies(&self) -> Vec<Arc<Policy>> {
        self.webhook.policies.load().iter().cloned().collect()
    }

    fn rendered(&self, kind: &Kind) -> Result<Vec<Value>> {
        let (site, bundle) = (self.webhook.site.load(), self.certificates.ca_bundle());
        Ok(render(kind, &self.policies(), &self.capabilities, &site, &self.endpoint, bundle.as_deref())?)
    }

    /// Where registrations of that shape are.
    fn collection(registration: &Value) -> Result<String> {
        let api = registration["apiVersion"].as_str().context("an apiVersion")?;
        let kind = registration["kind"].as_str().context("a kind")?;
        Ok(format!("/apis/{api}/{}s", kind.to_lowercase()))
    }

    /// Puts `policies` in force, and waits until probes show it.
    pub async fn register(&self, policies: Vec<Policy>) -> Result<()> {
        let policies = Policies::new(policies.into_iter().map(Arc::new));
        let kinds: BTreeMap<Arc<Kind>, ()> = policies.kinds().map(|kind| (kind.clone(), ())).collect();
        self.webhook.policies.store(Arc::new(policies));
        for kind in kinds.into_keys() {
            self.write(&kind).await?;
            self.in_force(&kind).await?;
        }
        Ok(())
    }

    /// Writes the registrations of `kind`, over those that are there.
    async fn write(&self, kind: &Kind) -> Result<()> {
        for mut registration in self.rendered(kind)? {
            let collection = Self::collection(&registration)?;
            let path = format!("{collection}/{}", render::name(kind));
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

    /// Waits until creates of `kind` show the revisions that are registered.
    async fn in_force(&self, kind: &Kind) -> Result<()> {
        for registration in self.rendered(kind)? {
            let revision = revision_of(&registration).context("a revision")?.to_owned();
            let refuses = registration["kind"] == "ValidatingWebhookConfiguration";
            let what = format!("{} {revision} of {kind:?} is in force", registration["kind"]);
            within(LIMIT, &what, || async {
                let answer = self.probe(kind, if refuses { PROBE_REFUSE } else { "" }).await?;
                Ok(match answer {
                    Ok(shown) => shown["metadata"]["annotations"][PROBE_KEY] == revision,
                    Err(message) if refuses => message.contains(&revision),
                    Err(message) => bail!(message),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// What a create of a probe gives, or with which message it is refused; nothing is stored.
    async fn probe(&self, kind: &Kind, value: &str) -> Result<std::result::Result<Value, String>> {
        let address = self.capabilities.resource(kind).context("it is served")?;
        let mut body = json!({
            "apiVersion": address.api_version, "kind": address.kind,
            "metadata": { "name": "probe", "namespace": OPERATOR, "labels": { PROBE_KEY: value } },
        });
        // The namespace takes only what the strictest level of Pod Security lets through.
        let strict = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
        let pod = json!({
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "probe", "image": "none:1", "securityContext": strict }],
        });
        let labels = json!({ "app": "probe" });
        match address.kind.as_str() {
            "Pod" => body["spec"] = pod,
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
        let path = format!("{root}/{}/namespaces/{OPERATOR}/{}?dryRun=All", address.api_version, kind.resource);
        match request(&self.world.admin, "POST", &path, &body).await {
            Ok(shown) => Ok(Ok(shown)),
            Err(kube::Error::Api(status)) => Ok(Err(status.message)),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops in good order.
    async fn stop(self) -> Result<World> {
        self.stop.send_replace(true);
        self.serving.await?;
        Ok(self.world)
    }
}

pub fn site() -> Site {
    Site::new(OPERATOR, ["vault".to_owned()], [])
}

/// A policy as it would be read from the server.
pub fn policy(object: &Value) -> Result<Policy> {
    let mut object = object.clone();
    object["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    Policy::parse(&object, &site()).map_err(|faults| anyhow::anyhow!("{faults:?}"))
}
