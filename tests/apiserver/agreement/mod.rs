//! The rules of the project for templates against those of real servers: some thousand templates, field by field, each judged
//! as `scpol lint` and `scpol inject` do, and by a dry-run create of the pod with the template.
//!
//! No template is accepted here and refused by the server. `stricter.yaml` names the others that differ, with the reason.

mod cases;
mod schema;
mod verdict;

use crate::prelude::*;
use cases::{Case, Generator};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde::Deserialize;
use verdict::Verdict;

/// The least number of templates for each version.
const LEAST: usize = 3_000;
/// One template in so many may be refused here alone.
const STRICTER: usize = 90;
/// The number of concurrent requests.
const AT_ONCE: usize = 16;
/// The number of differences that a failure shows.
const SHOWN: usize = 40;
/// The path of dry-run creates. Strict, as kubectl asks: an unknown field is refused.
const PODS: &str = "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict";

/// Templates that are refused here and taken by a server.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stricter {
    cases: Vec<String>,
    reason: String,
    #[serde(default = "newest")]
    until: u32,
}

fn newest() -> u32 {
    Version::NEWEST.minor()
}

/// Compares the project with a server of that version.
pub(crate) async fn templates_are_judged_as_the_server_judges(version: Version) -> Result<()> {
    let minor = version.minor();
    let known: Vec<Stricter> = serde_saphyr::from_str(include_str!("stricter.yaml"))?;
    let cluster = ControlPlane::builder(version).start().await?;
    let admin = cluster.admin();
    let cases = Generator::new()?.cases(minor)?;
    ensure!(cases.len() >= LEAST, "{} templates", cases.len());
    let judged = stream::iter(cases.iter().map(|case| ask(&admin, case, minor)));
    let judged: Vec<_> = judged.buffered(AT_ONCE).try_collect().await?;
    let (mut stricter, mut faults) = (Vec::new(), Vec::new());
    for (case, (refusal, answer)) in cases.iter().zip(&judged) {
        match (refusal, answer) {
            (None, Some(answer)) => faults.push(format!("accepted, and the server refuses: {}: {answer}", case.name)),
            (Some(refusal), None) => match reason(&known, &case.name, minor) {
                Some(reason) => stricter.push((reason, &case.name)),
                None => faults.push(format!("refused, and the server takes it: {}: {refusal}", case.name)),
            },
            _ => {}
        }
    }
    for entry in known.iter().filter(|entry| minor <= entry.until) {
        if !stricter.iter().any(|(reason, _)| **reason == entry.reason) {
            faults.push(format!("no case is stricter for this reason any more: {}", entry.reason));
        }
    }
    let agreed = cases.len().saturating_sub(stricter.len() + faults.len());
    eprintln!("1.{minor}: {} templates, {agreed} agreed, {} stricter with a reason", cases.len(), stricter.len());
    for entry in &known {
        let count = stricter.iter().filter(|(reason, _)| **reason == entry.reason).count();
        eprintln!("1.{minor}: {count} stricter: {}", entry.reason);
    }
    let few: Vec<_> = faults.iter().take(SHOWN).map(String::as_str).collect();
    ensure!(faults.is_empty(), "{} new differences on 1.{minor}:\n{}", faults.len(), few.join("\n"));
    ensure!(stricter.len() * STRICTER <= cases.len(), "{} of {} are stricter", stricter.len(), cases.len());
    Ok(())
}

/// The refusal of the project and that of the server.
async fn ask(admin: &Client, case: &Case, minor: u32) -> Result<(Option<String>, Option<String>)> {
    let Verdict { refusal, pod } = verdict::of(&case.template, minor);
    Ok((refusal, refusal_of(admin, &pod).await.with_context(|| case.name.clone())?))
}

/// The message of the server if it refuses `pod`.
async fn refusal_of(admin: &Client, pod: &Value) -> Result<Option<String>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match request(admin, "POST", PODS, pod).await {
            Ok(_) => return Ok(None),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => return Ok(Some(status.message)),
            Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503 | 504) && Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Why the project may refuse the case `name` on a server of 1.`minor`, which takes it.
fn reason<'a>(known: &'a [Stricter], name: &str, minor: u32) -> Option<&'a str> {
    let holds = |entry: &&Stricter| minor <= entry.until && entry.cases.iter().any(|pattern| matches(pattern, name));
    known.iter().find(holds).map(|entry| entry.reason.as_str())
}

/// Whether `name` is of the form `pattern`, where `*` is any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}
