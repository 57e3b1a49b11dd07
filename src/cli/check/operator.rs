//! Checks that the operator is installed, is ready, has a leader, and has this release.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::cli::installed::{OPERATOR, Piece};
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The interval of the looks at the lease. Its holder renews it every third of its duration, by default every 2 s.
const LOOK: Duration = Duration::from_millis(250);
/// The lease duration of a holder that states none: the default of `--lease-duration`.
const DURATION: Duration = Duration::from_secs(6);

pub(super) async fn check(subject: &CheckSubject<'_>) -> Vec<CheckItem> {
    let (deployment, leads) = tokio::join!(subject.installed.deployment(), leader(subject));
    let is_led = matches!(&leads, Ok(Leader::Renews(_)));
    let mut items = match &deployment {
        Err(error) => vec![CheckItem::unknown("operator", error)],
        Ok(deployment) => vec![replicas(deployment.as_ref(), subject.installed.namespace, is_led)],
    };
    items.push(match leads {
        Err(error) => CheckItem::unknown("leader", &error),
        Ok(leader) => leader.item(),
    });
    if let Ok(Some(deployment)) = &deployment {
        items.push(release(deployment.container()["image"].as_str().unwrap_or_default()));
    }
    items
}

fn replicas(deployment: Option<&Piece>, namespace: &str, is_led: bool) -> CheckItem {
    const CHECK: &str = "operator";
    let Some(deployment) = deployment else {
        let message = format!("there is no Deployment `{OPERATOR}` in namespace `{namespace}`");
        return if is_led {
            CheckItem::warning(
                CHECK,
                Code::NotInstalled,
                format!("{message}; a replica leads all the same, from elsewhere"),
            )
        } else {
            CheckItem::problem(CHECK, Code::NotInstalled, message)
        };
    };
    let body = deployment.object.value();
    let (wanted, ready) =
        (body["spec"]["replicas"].as_i64().unwrap_or(1), body["status"]["readyReplicas"].as_i64().unwrap_or_default());
    let message = format!("{ready} of {wanted} replicas are ready");
    match ready {
        0 if wanted == 0 => CheckItem::problem(CHECK, Code::OperatorNotReady, "the Deployment is scaled to 0")
            .with_fix(format!("kubectl scale -n {namespace} deployments.v1.apps {OPERATOR} --replicas=2")),
        0 => CheckItem::problem(CHECK, Code::OperatorNotReady, message),
        ready if ready < wanted => CheckItem::warning(CHECK, Code::OperatorNotReady, message),
        _ => CheckItem::ok(CHECK, message),
    }
}

/// The state of the lease.
enum Leader {
    NoLease,
    Nobody,
    /// This holder has renewed the lease while we watched.
    Renews(String),
    /// This holder has not renewed it, for so many seconds.
    Silent(String, u64),
}

impl Leader {
    fn item(self) -> CheckItem {
        const CHECK: &str = "leader";
        match self {
            Leader::Renews(holder) => CheckItem::ok(CHECK, format!("`{holder}` leads")),
            Leader::NoLease => {
                CheckItem::problem(CHECK, Code::OperatorNotReady, "there is no lease: no replica has ever led")
            }
            Leader::Nobody => CheckItem::problem(
                CHECK,
                Code::OperatorNotReady,
                "no replica holds the lease: the last one has stopped",
            ),
            Leader::Silent(holder, seconds) => CheckItem::problem(
                CHECK,
                Code::OperatorNotReady,
                format!("`{holder}` holds the lease and has not renewed it for {seconds} s: it is gone or frozen"),
            ),
        }
    }
}

/// Watches the lease until its holder renews it, at most for the lease duration. Clocks of different machines are never
/// compared.
async fn leader(subject: &CheckSubject<'_>) -> Result<Leader> {
    let since = Instant::now();
    let mut first: Option<Value> = None;
    loop {
        let lease = subject.installed.lease().await.context("cannot tell who leads")?;
        let Some(lease) = lease else { return Ok(Leader::NoLease) };
        let spec = lease.object.value()["spec"].clone();
        let holder = spec["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let duration = spec["leaseDurationSeconds"].as_u64().map_or(DURATION, Duration::from_secs);
        match &first {
            _ if holder.is_empty() && since.elapsed() > duration => return Ok(Leader::Nobody),
            Some(first) if !holder.is_empty() && first["renewTime"] != spec["renewTime"] => {
                return Ok(Leader::Renews(holder));
            }
            _ if since.elapsed() > duration => return Ok(Leader::Silent(holder, duration.as_secs())),
            _ => first = first.or(Some(spec)),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Compares the release by the tag of the image. For other images the user has to know the release.
fn release(image: &str) -> CheckItem {
    const CHECK: &str = "release";
    const OURS: &str = env!("CARGO_PKG_VERSION");
    // A port is no tag, and a digest has no release.
    let name = image.split('@').next().unwrap_or_default();
    let tag = name.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag.trim_start_matches('v'));
    let is_release = |tag: &str| tag.starts_with(|c: char| c.is_ascii_digit()) && tag.contains('.');
    match tag {
        Some(OURS) => CheckItem::ok(CHECK, format!("the operator and this `scpol` are {OURS}")),
        Some(tag) if is_release(tag) => {
            CheckItem::warning(CHECK, Code::ReleasesDiffer, format!("the operator is {tag}, this `scpol` is {OURS}"))
        }
        _ => CheckItem::info(CHECK, format!("the image `{image}` does not tell its release; this `scpol` is {OURS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::report::CheckLevel;

    #[test]
    fn the_release_is_read_from_the_tag_of_the_image() {
        let level = |image: &str| release(image).told().0;
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(level(&format!("sidecar-policy:{ours}")), CheckLevel::Ok);
        assert_eq!(level(&format!("registry.example.com:5000/sidecar-policy:v{ours}@sha256:0")), CheckLevel::Ok);
        assert_eq!(level("sidecar-policy:99.0.0"), CheckLevel::Warning);
        assert_eq!(level("registry.example.com:5000/sidecar-policy"), CheckLevel::Info);
        assert_eq!(level("sidecar-policy:latest"), CheckLevel::Info);
    }
}
