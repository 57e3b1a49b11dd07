//! Many policies and many workloads, of which each is matched by exactly one policy.

use super::load::{create_patiently, send};
use crate::support::policies;
use crate::world::World;
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

/// Among so many namespaces the workloads are spread; more policies than that tell workloads by an annotation, too.
pub(super) const NAMESPACES: usize = 100;
/// So many requests at once make and delete what is there before something is measured.
const HANDS: usize = 64;

/// So many policies, numbered from 0. Workload number n is matched by policy n modulo their count.
#[derive(Clone, Copy)]
pub(super) struct Estate {
    pub(super) policies: usize,
    /// What they target, each one of it in turn: each resource may have an engine of its own.
    pub(super) resources: &'static [&'static str],
}

impl Estate {
    /// Makes the namespaces.
    pub(super) async fn found(self, world: &World) -> Result<()> {
        let create = |number| async move {
            let body =
                json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": format!("team-{number}") } });
            send(&world.admin, "POST", "/api/v1/namespaces", "application/json", &body).await
        };
        all(0..NAMESPACES, create).await
    }

    /// Makes the policies; `engine` says which engine each is to have.
    pub(super) async fn rule(self, world: &World, engine: impl Fn(usize) -> &'static str + Copy) -> Result<()> {
        let create = |number| async move {
            let mut spec = self.spec(number, 0);
            spec["engine"] = json!(engine(number));
            world.policy(&name(number), spec).await
        };
        all(0..self.policies, create).await
    }

    /// What the policy of that number is to do; each `edition` has another template.
    pub(super) fn spec(self, number: usize, edition: usize) -> Value {
        json!({
            "namespaces": [team(number)],
            "targets": [{ "group": "apps", "resource": self.resource(number) }],
            "annotationSelector": { "matchAnnotations": { "tier": tier(number) } },
            "template": { "containers": [{ "name": sidecar(number), "image": format!("envoy:{edition}") }] },
        })
    }

    /// Makes the workload of that number, of about `kilobytes` more than the least, and sees that it comes with its sidecar if
    /// one is `wanted`.
    pub(super) async fn create(self, client: &Client, workload: usize, kilobytes: usize, wanted: bool) -> Result<()> {
        let policy = workload % self.policies;
        let answer = create_patiently(client, &self.collection(policy), &self.workload(workload, kilobytes)).await?;
        let has = answer.contains(&format!("\"name\":\"{}\"", sidecar(policy)));
        ensure!(!wanted || has, "workload {workload} has no sidecar");
        Ok(())
    }

    /// Deletes the workload of that number.
    pub(super) async fn delete(self, client: &Client, workload: usize) -> Result<()> {
        let path =
            format!("{}/load-{workload}?propagationPolicy=Background", self.collection(workload % self.policies));
        send(client, "DELETE", &path, "application/json", &json!({})).await.map(drop)
    }

    /// Makes the workloads of those numbers.
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

    /// The sum over all policies of a field of their status.
    pub(super) async fn sum(self, world: &World, field: &str) -> Result<usize> {
        let list = policies(&world.cluster).list(&ListParams::default()).await?;
        Ok(list.items.iter().filter_map(|policy| policy.data["status"][field].as_u64()).sum::<u64>() as usize)
    }

    /// How many policies are ready.
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

    /// How many workloads are stored, how many of them wait for an initializer, and how many are without their sidecar.
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

/// What the server has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stored {
    pub(super) all: usize,
    pub(super) waiting: usize,
    pub(super) without: usize,
}

/// The policy of that number.
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

async fn all<T, F: Future<Output = Result<T>>>(
    numbers: std::ops::Range<usize>,
    work: impl Fn(usize) -> F,
) -> Result<()> {
    futures::stream::iter(numbers).map(work).buffer_unordered(HANDS).try_for_each(|_| async { Ok(()) }).await
}
