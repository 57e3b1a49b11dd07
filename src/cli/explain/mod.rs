//! `scpol explain`: what every policy says of a workload, and why.

pub(super) mod live;
mod report;

use super::files::{self, Recursion, SiteOptions};
use super::{Cluster, End};
use crate::policy::{Policies, Site};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use report::{Invalid, Report, Subject};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(super) struct Options {
    /// A workload in the cluster: KIND/NAME or KIND NAME, for example deploy/web
    #[arg(value_name = "KIND/NAME", num_args = 1..=2, required_unless_present = "files", conflicts_with = "files")]
    target: Vec<String>,
    /// Manifests instead: files, folders, or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    recursion: Recursion,
    /// Policies: files, folders, or - for standard input [default: those in the cluster]
    #[arg(short, long = "policy", value_name = "FILE", num_args = 1..)]
    policies: Vec<PathBuf>,
    /// Namespace of the workload [default: the context's; for manifests that name none, default]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
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
    #[default]
    Table,
    Json,
    Yaml,
}

pub(super) async fn run(options: Options, out: &mut impl Write) -> Result<End> {
    files::at_most_one_stdin(&[("-f", &options.files), ("--policy", &options.policies)])?;
    let mut site = options.site.site()?;
    let (policies, invalid) = policies(&options, &site).await?;
    let subjects = if options.files.is_empty() {
        let found = live::workload(&options.cluster, &options.target.join("/"), options.namespace.as_deref()).await?;
        if !options.site.names_version() {
            site.native_sidecars = found.native_sidecars;
        }
        vec![Subject { placed: found.workload.clone(), workload: found.workload, source: None }]
    } else {
        in_files(&options, &policies)?
    };
    let reports: Vec<_> = subjects.into_iter().map(|subject| Report::of(subject, &policies, &invalid, &site)).collect();
    report::print(&reports, options.output, out)?;
    out.flush()?;
    Ok(if reports.iter().any(Report::is_finding) { End::Finding } else { End::Fine })
}

/// The policies to ask, and those that are broken.
async fn policies(options: &Options, site: &Site) -> Result<(Policies, Vec<Invalid>)> {
    if options.policies.is_empty() {
        return live::policies(&options.cluster, site).await;
    }
    Ok((files::policies(&options.policies, options.recursion.walk(), site, "--policy")?, Vec::new()))
}

fn in_files(options: &Options, policies: &Policies) -> Result<Vec<Subject>> {
    let namespace = options.namespace.as_deref().unwrap_or("default");
    let files = files::read(&options.files, options.recursion.walk())?;
    let found = files::workloads(&files, policies.kinds(), namespace).into_iter();
    let subjects: Vec<_> = found
        .map(|found| Subject { workload: found.workload, placed: found.placed, source: Some(found.place.to_string()) })
        .collect();
    if subjects.is_empty() {
        let names: Vec<_> = options.files.iter().map(|path| path.display().to_string()).collect();
        bail!("{}: no workload there; expected one of {}", names.join(", "), live::kinds());
    }
    Ok(subjects)
}
