//! Deciding and planning alone, and `scpol inject` on files: no server.

use super::figure::{Figure, at_most};
use super::objects::{pod_of, policies_unlike, unlike};
use super::statistics::median;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sidecar_policy::decision::Decision;
use sidecar_policy::policy::{Policies, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::time::Instant;

/// The cases of deciding and planning take turns, since the processor may be faster or slower from one moment to the next: so many,
/// after some that do not count, and so many samples each. Of each turn the median counts.
const TURNS: usize = 100;
const WARM_UP: usize = 50;
const SAMPLES: usize = 20;

/// See the module.
pub(super) fn language(figures: &mut Vec<Figure>) -> Result<()> {
    let site = Site::new("scpol-system", [], []);
    let kind = Kind::find("", "pods").context("a built-in kind")?;
    let case = |policies: usize, kilobytes: usize| {
        Ok::<_, anyhow::Error>((policies_unlike(policies, &site)?, Workload::new(kind, pod_of(kilobytes))))
    };
    let cases = [case(100, 10)?, case(200, 10)?, case(100, 20)?];
    let time = |(policies, workload): &(Policies, Workload)| {
        let samples = (0..SAMPLES).map(|_| {
            let start = Instant::now();
            let mut decision = Decision::of(policies, workload, &site);
            std::hint::black_box(decision.plan(workload));
            start.elapsed().as_secs_f64() * 1e6
        });
        median(samples.collect())
    };
    let times: Vec<[f64; 3]> = (0..WARM_UP + TURNS).map(|_| cases.each_ref().map(time)).skip(WARM_UP).collect();
    let of = |figure: fn(&[f64; 3]) -> f64| median(times.iter().map(figure).collect());
    figures.push(at_most("decide and plan, 10 KB pod, 100 policies, p50", of(|[one, ..]| *one), "us", 50.0));
    figures.push(at_most("the same with 200 policies, against 100", of(|[one, more, _]| more / one), "ratio", 2.5));
    figures.push(at_most(
        "the same with a 20 KB pod, against 10 KB",
        of(|[one, _, larger]| larger / one),
        "ratio",
        2.5,
    ));

    let folder = tempfile::tempdir()?;
    let write = |name: &str, documents: Vec<Value>| {
        let text = documents.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n");
        let path = folder.path().join(name);
        std::fs::write(&path, text).map(|()| path)
    };
    let matching = |number| {
        let mut policy = unlike(number);
        policy["spec"]["labelSelector"] = json!({ "matchLabels": { "app": "web" } });
        policy
    };
    let policies = write("policies.yaml", (0..10).map(matching).collect())?;
    let manifests = write("manifests.yaml", (0..1_000).map(|number| deployment(&format!("web-{number}"))).collect())?;
    let runs = (0..9).map(|_| {
        let start = Instant::now();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_scpol"))
            .args(["inject", "-f"])
            .arg(&manifests)
            .arg("-p")
            .arg(&policies)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        ensure!(
            String::from_utf8_lossy(&output.stdout).matches("injected.scpol.dev/p9").count() == 1_000,
            "not all were injected"
        );
        Ok(start.elapsed().as_secs_f64())
    });
    let inject = median(runs.collect::<Result<_>>()?);
    figures.push(at_most("scpol inject, 1 000 manifests, 10 policies", inject, "s", 0.25));
    Ok(())
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "labels": { "app": "web" } },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": { "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:1.8.1", "ports": [{ "containerPort": 80 }] }] } } },
    })
}
