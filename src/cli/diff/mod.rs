//! `scpol diff`: the effect of changed policies on workloads.

mod changes;

use super::files::{self, ReadOptions, Subject};
use super::live::{self, Requested, Scope};
use super::output::{Printing, remark};
use super::policies::{self, KnownPolicies};
use super::site::SiteOptions;
use super::{Cluster, End};
use crate::policy::{Policies, Site};
use crate::readers::Facts;
use anyhow::{Context, Result};
use changes::{DiffReport, Versions};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(super) struct DiffOptions {
    /// Policies as they are: files, folders, or - for standard input (repeatable) [default: those in the cluster]
    #[arg(long, value_name = "FILE")]
    old: Vec<PathBuf>,
    /// Policies as they will be (repeatable); without --old, the cluster keeps those of other names
    #[arg(long, value_name = "FILE", required = true)]
    new: Vec<PathBuf>,
    /// Workloads: files, folders, or - for standard input (repeatable) [default: those in the cluster]
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: ReadOptions,
    #[command(flatten)]
    scope: Scope,
    /// Show what changes in each workload, as a unified diff
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

pub(super) async fn run(options: DiffOptions, out: &mut impl Write) -> Result<End> {
    files::at_most_one_stdin(&[("--old", &options.old), ("--new", &options.new), ("-f", &options.files)])?;
    let mut site = options.site.site()?;
    let versions = versions(&options, &site).await?;
    let (subjects, facts) = if options.files.is_empty() {
        (in_cluster(&options, &versions, &mut site).await?, Facts::default())
    } else {
        let namespace = options.scope.namespace.as_deref().unwrap_or("default");
        site = site.for_files();
        files::subjects(&options.files, options.reading.reading(), versions.kinds(), namespace)?
    };
    let report = DiffReport::of(&subjects, &versions, &facts, &site);
    report.print(&options, out)?;
    Ok(End::fine_if(report.is_empty()))
}

/// Both versions of the policies.
async fn versions(options: &DiffOptions, site: &Site) -> Result<Versions> {
    let read = |paths: &[PathBuf], flag| files::policies(paths, options.reading.reading(), site, flag);
    let new = read(&options.new, "--new")?;
    if !options.old.is_empty() {
        return Ok(Versions { old: read(&options.old, "--old")?, new });
    }
    let KnownPolicies { policies: old, invalid, .. } = policies::in_cluster(&options.cluster, site, "--old").await?;
    for policy in &invalid {
        remark(format_args!("warning: the stored SidecarPolicy `{}` is not valid, and is left out", policy.name));
    }
    // As after `kubectl apply`, policies that are not given stay.
    let kept = old.iter().filter(|policy| new.get(&policy.reference()).is_none());
    let new = Policies::new(kept.chain(new.iter()).cloned());
    Ok(Versions { old, new })
}

/// The stored workloads that a policy of either version targets.
async fn in_cluster(options: &DiffOptions, versions: &Versions, site: &mut Site) -> Result<Vec<Subject>> {
    let found = live::workloads(&options.cluster, &Requested::all(versions.kinds()), &options.scope).await?;
    if let Some(error) =
        found.unread.filter(|_| versions.old.select_by_namespace() || versions.new.select_by_namespace())
    {
        return Err(error).context(live::NAMESPACES_UNREAD);
    }
    *site = options.site.on(site.clone(), &found.server);
    Ok(found.workloads.into_iter().map(Subject::stored).collect())
}
