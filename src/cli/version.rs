//! `scpol version`.

use super::output::{Output, Parser, remark};
use super::{Cluster, End, live};
use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// How long the API server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The commit of the sources, if the build names it.
const COMMIT: Option<&str> = option_env!("SCPOL_COMMIT");

#[derive(Args, Debug)]
pub(super) struct VersionOptions {
    /// Ask no API server
    #[arg(long)]
    client: bool,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = Parser::<0>)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
}

/// Prints the version of this program and, if it can be reached, that of the API server. `scpol check` shows the version of the operator.
pub(super) async fn run(options: VersionOptions, out: &mut impl Write) -> Result<End> {
    let version = env!("CARGO_PKG_VERSION");
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    let server = if options.client { None } else { server(&options.cluster).await.inspect_err(note).ok() };
    let mut fields = json!({ "version": version });
    for (field, value) in [("commit", commit), ("server", server.as_deref())] {
        if let Some(value) = value {
            fields[field] = value.into();
        }
    }
    options.output.report(
        "Version",
        || fields,
        out,
        |out| {
            let commit = commit.map_or(String::new(), |commit| format!(" (commit {commit})"));
            writeln!(out, "scpol {version}{commit}")?;
            if let Some(server) = &server {
                writeln!(out, "server {server}")?;
            }
            Ok(())
        },
    )?;
    Ok(End::Fine)
}

fn note(error: &anyhow::Error) {
    remark(format_args!("note: the version of the server is unknown: {error:#}"));
}

/// The version of the API server.
///
/// # Errors
/// If there is no cluster, or its server does not answer soon.
async fn server(cluster: &Cluster) -> Result<String> {
    let ask = async {
        let client = live::connect(cluster).await?;
        Ok(live::version(&client).await?.version)
    };
    let late = || anyhow!("no answer within {}", humantime::format_duration(PATIENCE));
    tokio::time::timeout(PATIENCE, ask).await.unwrap_or_else(|_| Err(late()))
}
