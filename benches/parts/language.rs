//! Decisions and plans alone, and `scpol inject` on files, without a server.

use super::figure::{Figure, at_most, told};
use super::objects::{parse, pod_of, policies_unlike, tunable, tuned, unlike};
use super::statistics::median;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use sidecar_policy::decision::Decision;
use sidecar_policy::policy::{Policies, Site};
use sidecar_policy::workload::{Kind, Workload};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The turns of each case. Cases of decision and plan take turns, because the speed of the processor varies. `TURNS`
/// count, after `WARM_UP` that do not, each with `SAMPLES` samples and their median.
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

    parameters(figures, &site)?;
    inject(figures)
}

/// The workloads of a turn, each with values of its own.
const VALUED: usize = 200;

/// Decisions and plans of a policy with 8 parameters, in turns with the same policy without them.
fn parameters(figures: &mut Vec<Figure>, site: &Site) -> Result<()> {
    let kind = Kind::find("", "pods").context("a built-in kind")?;
    let parsed = |count: usize| Ok::<_, anyhow::Error>(Policies::new([Arc::new(parse(&tunable(count), site)?)]));
    let (with, without) = (parsed(8)?, parsed(0)?);
    let workloads = |is_distinct: bool| -> Vec<Workload> {
        let number = |at: usize| if is_distinct { at } else { 0 };
        (0..VALUED).map(|at| Workload::new(kind, tuned(pod_of(10), number(at)))).collect()
    };
    let time = |policies: &Policies, workloads: &[Workload]| {
        let start = Instant::now();
        for workload in workloads {
            let mut decision = Decision::of(policies, workload, site);
            std::hint::black_box(decision.plan(workload));
        }
        start.elapsed().as_secs_f64() * 1e6 / VALUED as f64
    };
    for (words, is_distinct) in [("the same values", false), ("values of its own", true)] {
        let workloads = workloads(is_distinct);
        let turns = (0..WARM_UP + TURNS).map(|_| [time(&with, &workloads), time(&without, &workloads)]).skip(WARM_UP);
        let turns: Vec<[f64; 2]> = turns.collect();
        let of = |figure: fn(&[f64; 2]) -> f64| median(turns.iter().map(figure).collect());
        let name = format!("decide and plan, 8 parameters, each pod with {words}, against none");
        figures.push(at_most(&name, of(|[with, without]| with / without), "ratio", 1.3));
        figures.push(told("the same, time of one", of(|[with, _]| *with), "us"));
    }
    Ok(())
}

/// Manifests as written by people and by helm. `NAME` is replaced.
const DEPLOYMENTS: [&str; 2] = [include_str!("../manifests/by-hand.yaml"), include_str!("../manifests/by-helm.yaml")];
/// The number of files, each with one Deployment.
const FILES: usize = 1_000;

/// `scpol inject` on a folder, in turns with policies that all match and with one that matches nothing.
fn inject(figures: &mut Vec<Figure>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests)?;
    for (number, text) in (0..FILES).zip(DEPLOYMENTS.iter().cycle()) {
        let name = format!("web-{number}");
        std::fs::write(manifests.join(format!("{name}.yaml")), text.replace("NAME", &name))?;
    }
    let policies = |name: &str, count: usize, app: &str| {
        let documents = (0..count).map(|number| {
            let mut policy = unlike(number);
            policy["spec"]["labelSelector"] = json!({ "matchLabels": { "app": app } });
            policy.to_string()
        });
        let path = folder.path().join(name);
        std::fs::write(&path, documents.collect::<Vec<_>>().join("\n---\n")).map(|()| path)
    };
    let (matching, other) = (policies("matching.yaml", 10, "web")?, policies("other.yaml", 1, "other")?);
    let time = |policies: &Path, injected: usize| {
        let start = Instant::now();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_scpol"))
            .args(["inject", "-f"])
            .args([&manifests, Path::new("-p"), policies])
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = String::from_utf8_lossy(&output.stdout).matches("injected.scpol.dev/p9").count();
        ensure!(found == injected, "{found} are injected instead of {injected}");
        Ok(start.elapsed().as_secs_f64())
    };
    let runs = (0..9).map(|_| Ok([time(&matching, FILES)?, time(&other, 0)?])).collect::<Result<Vec<_>>>()?;
    let of = |index: usize| median(runs.iter().map(|run| run[index]).collect());
    figures.push(at_most("scpol inject, 1 000 files, 10 policies that match", of(0), "s", 0.2));
    figures.push(told("the same with a policy that matches nothing", of(1), "s"));
    Ok(())
}
