//! Many policies and many workloads. Each workload matches exactly one policy.

use super::load::{create_patiently, send};
use crate::support::policies;
use crate::world::World;
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

/// The number of namespaces. With more policies than namespaces, policies also use an annotation.
pub(super) const NAMESPACES: usize = 100;
/// The number of concurrent requests for the setup and the cleanup.
const HANDS: usize = 64;

/// The policies, numbered from 0. The workload n matches the policy n modulo their number.
#[derive(Clone, Copy)]
pub(super) struct Estate {
    pub(super) policies: usize,
    /// The targets, one per policy in turn, because each resource may have its own engine.
    pub(super) resources: &'static [&'static str],
}

impl Estate {
    /// Creates the namespaces.
    pub(super) async fn found(self, world: &World) -> Result<()> {
        let create = |number| async move {
            let body =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": format!("team-{number}") } });
            send(&world.admin, "POST", "/api/v1/namespaces", "application/json", &body).await
        };
        all(0..NAMESPACES, create).await
    }

    /// Creates the policies. `engine` selects the engine of each.
    pub(super) async fn rule(self, world: &World, engine: impl Fn(usize) -> &'static str + Copy) -> Result<()> {
        let create = |number| async move {
            let mut spec = self.spec(number, 0);
            spec["engine"] = json!(engine(number));
            world.policy(&name(number), spec).await
        };
        all(0..self.policies, create).await
    }

    /// The spec of the policy `number`. Each `edition` has another template.
    pub(super) fn spec(self, number: usize, edition: usize) -> Value {
        json!({
            "namespaces": [team(number)],
            "targets": [{ "group": "apps", "resource": self.resource(number) }],
            "annotationSelector": { "matchAnnotations": { "tier": tier(number) } },
            "template": { "containers": [{ "name": sidecar(number), "image": format!("envoy:{edition}") }] },
        })
    }

    /// Creates a workload with about `kilobytes` of additional content. If a sidecar is `wanted`, checks that the
    /// workload has it.
    pub(super) async fn create(self, client: &Client, workload: usize, kilobytes: usize, wanted: bool) -> Result<()> {
        let policy = workload % self.policies;
        let answer = create_patiently(client, &self.collection(policy), &self.workload(workload, kilobytes)).await?;
        let has = answer.contains(&format!("\"name\":\"{}\"", sidecar(policy)));
        ensure!(!wanted || has, "workload {workload} has no sidecar");
        Ok(())
    }

    /// Deletes the workload.
    pub(super) async fn delete(self, client: &Client, workload: usize) -> Result<()> {
        let path =
            format!("{}/load-{workload}?propagationPolicy=Background", self.collection(workload % self.policies));
        send(client, "DELETE", &path, "application/json", &json!({})).await.map(drop)
    }

    /// Creates these workloads.
    pub(super) async fn fill(self, client: &Client, workloads: std::ops::Range<usize>, wanted: bool) -> Result<()> {
        all(workloads, |workload| self.create(client, workload, 0, wanted)).await
    }

    fn workload(self, number: usize, kilobytes: usize) -> Value {
        let policy = number % self.policies;
        let env: Vec<_> = (0..kilobytes)
            .map(|number| json!({ "name": format!("VARIABLE_{number:04}"), "value": "x".repeat(1000) }))
            .collect();
        let labels = json!({ "app": format!("load-{number}") });
        let mut spec = json!({
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "app", "image": "app:1", "env": env }] } },
        });
        let is_stateful = self.resource(policy) == "statefulsets";
        if is_stateful {
            spec["serviceName"] = json!("load");
        }
        let kind = if is_stateful { "StatefulSet" } else { "Deployment" };
        json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": { "name": format!("load-{number}"), "labels": labels, "annotations": { "tier": tier(policy) } },
            "spec": spec,
        })
    }

    fn resource(self, policy: usize) -> &'static str {
        self.resources[policy % self.resources.len()]
    }

    fn collection(self, policy: usize) -> String {
        format!("/apis/apps/v1/namespaces/{}/{}", team(policy), self.resource(policy))
    }

    /// The sum of a status field over all policies.
    pub(super) async fn sum(self, world: &World, field: &str) -> Result<usize> {
        let list = policies(&world.cluster).list(&ListParams::default()).await?;
        Ok(list.items.iter().filter_map(|policy| policy.data["status"][field].as_u64()).sum::<u64>() as usize)
    }

    /// The number of ready policies.
    pub(super) async fn ready(self, world: &World) -> Result<usize> {
        let list = policies(&world.cluster).list(&ListParams::default()).await?;
        let is_ready = |policy: &Value| {
            let conditions = policy["status"]["conditions"].as_array();
            conditions.is_some_and(|conditions| {
                conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            })
        };
        Ok(list.items.iter().filter(|policy| is_ready(&policy.data)).count())
    }

    /// The numbers of stored workloads, of those that wait for an initializer, and of those without their sidecar.
    pub(super) async fn stored(self, world: &World) -> Result<Stored> {
        let mut seen = Stored::default();
        for resource in self.resources {
            let mut next = String::new();
            loop {
                let path = format!("/apis/apps/v1/{resource}?includeUninitialized=1&limit=100&continue={next}");
                let text = send(&world.admin, "GET", &path, "application/json", &Value::Null).await?;
                let page: Value = serde_json::from_str(&text)?;
                for item in page["items"].as_array().context("items")? {
                    let Some(number) = item["metadata"]["name"].as_str().and_then(|name| name.strip_prefix("load-"))
                    else {
                        continue;
                    };
                    let wanted = sidecar(number.parse::<usize>()? % self.policies);
                    let containers = item["spec"]["template"]["spec"]["containers"].as_array().context("containers")?;
                    seen.all += 1;
                    seen.waiting += usize::from(item["metadata"].get("initializers").is_some());
                    seen.without +=
                        usize::from(!containers.iter().any(|container| container["name"] == wanted.as_str()));
                }
                match page["metadata"]["continue"].as_str() {
                    Some(more) if !more.is_empty() => more.clone_into(&mut next),
                    _ => break,
                }
            }
        }
        Ok(seen)
    }
}

/// The workloads on the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stored {
    pub(super) all: usize,
    pub(super) waiting: usize,
    pub(super) without: usize,
}

/// The name of the policy.
pub(super) fn name(policy: usize) -> String {
    format!("policy-{policy}")
}

fn sidecar(policy: usize) -> String {
    format!("sidecar-{policy}")
}

fn team(policy: usize) -> String {
    format!("team-{}", policy % NAMESPACES)
}

fn tier(policy: usize) -> String {
    format!("tier-{}", policy / NAMESPACES)
}

/// Does the work of all `numbers`, much of it at the same time.
pub(super) async fn all<T, F: Future<Output = Result<T>>>(
    numbers: std::ops::Range<usize>,
    work: impl Fn(usize) -> F,
) -> Result<()> {
    futures::stream::iter(numbers).map(work).buffer_unordered(HANDS).try_for_each(|_| async { Ok(()) }).await
}
