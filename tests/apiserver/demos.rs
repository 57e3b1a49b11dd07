//! The demos of `make demo`, with the short times of tests. A demo fails at the first command that fails.

use crate::support::{file, lease_duration, timing_variable};
use anyhow::{Context, Result, ensure};
use controlplane::{Builder, ControlPlane, Version};
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

crate::tests![
    the_demo_of_1_13_shows_what_it_says = demo(ControlPlane::builder(Version::V1_13)),
    the_demo_of_the_newest_version_shows_what_it_says = demo(ControlPlane::builder(Version::NEWEST).nodes(2)),
];

/// The time limit for a demo, in seconds.
const PATIENCE: &str = "300";

async fn demo(builder: Builder) -> Result<()> {
    let script = file(&format!("tests/demo/{}.sh", builder.version().short()));
    let cluster = builder.start().await?;
    let programs = Path::new(env!("CARGO_BIN_EXE_scpol")).parent().context("a folder")?;
    // It ends the operator, too, so that no other test meets it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", PATIENCE, "bash", "-c"]);
    // One stream, so that a failure is beside its command.
    command.arg(r#"exec 2>&1; exec "$0""#).arg(&script).envs(cluster.environment()?).envs([timing_variable()]);
    command.env("SCPOL_LEASE_DURATION", lease_duration()).env("SCPOL_PROGRAMS", programs).env_remove("KEEP");
    let output = command.stdin(Stdio::null()).output().await?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && printed.contains("\n\u{1b}[1m# Done"), "{}:\n{printed}", output.status);
    Ok(())
}
