//! `scpol diff`: what becomes of workloads when policies change.

mod changes;

use super::explain::live;
use super::files::{self, Recursion, SiteOptions};
use super::{Cluster, End};
use crate::policy::{Policies, Site};
use crate::workload::Workload;
use anyhow::{Result, bail};
use changes::{Report, Subject, Versions};
use clap::{Args, ValueEnum};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(super) struct Options {
    /// Policies as they are: files, folders, or - for standard input [default: those in the cluster]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    old: Vec<PathBuf>,
    /// Policies as they will be; without --old, the cluster keeps those of other names
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    new: Vec<PathBuf>,
    /// Workloads: files, folders, or - for standard input [default: those in the cluster]
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    recursion: Recursion,
    /// Namespace of the workloads [default: the context's; for manifests that name none, default]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// The workloads of all namespaces of the cluster
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "files"])]
    all_namespaces: bool,
    /// Show what changes in each workload, as a unified diff
    #[arg(short, long)]
    verbose: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people: a line of sums, and a row for every change
    #[default]
    Table,
    /// For machines
    Json,
}

pub(super) async fn run(options: Options, out: &mut impl Write) -> Result<End> {
    files::at_most_one_stdin(&[("--old", &options.old), ("--new", &options.new), ("-f", &options.files)])?;
    let mut site = options.site.site()?;
    let versions = versions(&options, &site).await?;
    let subjects = if options.files.is_empty() {
        in_cluster(&options, &versions, &mut site).await?
    } else {
        in_files(&options, &versions)?
    };
    let report = Report::of(&subjects, &versions, &site);
    report.print(&options, out)?;
    out.flush()?;
    Ok(if report.is_empty() { End::Fine } else { End::Finding })
}

/// Both versions of the policies.
async fn versions(options: &Options, site: &Site) -> Result<Versions> {
    let read = |paths: &[PathBuf], flag| files::policies(paths, options.recursion.walk(), site, flag);
    let new = read(&options.new, "--new")?;
    if !options.old.is_empty() {
        return Ok(Versions { old: read(&options.old, "--old")?, new });
    }
    let (old, invalid) = live::policies(&options.cluster, site).await?;
    for policy in &invalid {
        eprintln!("warning: the stored SidecarPolicy `{}` is not valid, and is left out", policy.name);
    }
    // As after `kubectl apply`: what is not given stays.
    let kept = old.iter().filter(|policy| new.get(&policy.name).is_none());
    let new = Policies::new(kept.chain(new.iter()).cloned());
    Ok(Versions { old, new })
}

fn in_files(options: &Options, versions: &Versions) -> Result<Vec<Subject>> {
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let files = files::read(&options.files, options.recursion.walk())?;
    let found = files::workloads(&files, versions.kinds(), namespace).into_iter();
    let subjects: Vec<_> =
        found.map(|found| Subject { workload: found.placed, source: Some(found.place.to_string()) }).collect();
    if subjects.is_empty() {
        let names: Vec<_> = options.files.iter().map(|path| path.display().to_string()).collect();
        bail!("{}: no workload there; expected one of {}", names.join(", "), live::kinds());
    }
    Ok(subjects)
}

/// The stored workloads that either version targets.
async fn in_cluster(options: &Options, versions: &Versions, site: &mut Site) -> Result<Vec<Subject>> {
    let targeted: Vec<_> = versions.kinds().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let within = match (&options.namespace, options.all_namespaces) {
        (_, true) => live::Within::All,
        (Some(namespace), _) => live::Within::Namespace(namespace.clone()),
        (None, _) => live::Within::Context,
    };
    let found = live::workloads(&options.cluster, &targeted, &within).await?;
    if !options.site.names_version() {
        site.native_sidecars = found.native_sidecars;
    }
    let subject = |workload: Workload| Subject { workload, source: None };
    Ok(found.workloads.into_iter().map(subject).collect())
}
