//! `scpol explain`: the decision of every policy about a workload, and its reason.

mod parameters;
mod qos;
mod report;
mod summary;

use super::facts::LiveFacts;
use super::files::{self, Earlier, ReadOptions, Subject};
use super::ignored::IgnoreOption;
use super::live::{self, NotStarting, Requested, Scope};
use super::output::Printing;
use super::policies::{self, KnownPolicies};
use super::site::SiteOptions;
use super::{Cluster, End};
use crate::manifest::File;
use crate::policy::{Policies, Site};
use anyhow::{Result, bail};
use clap::Args;
use report::ExplainReport;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(super) struct ExplainOptions {
    /// Workloads in the cluster: KIND/NAME or KIND NAME, for example deploy/web, or KIND for all of them [default, with -n,
    /// -A or -l: all that a policy targets]. Or manifests, as with -f, for example web.yaml
    #[arg(value_name = "KIND/NAME|FILE")]
    target: Vec<String>,
    /// Manifests instead: files, folders, or - for standard input (repeatable)
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: ReadOptions,
    /// Policies: files, folders, or - for standard input (repeatable) [default: those in the cluster]
    #[arg(short, long = "policy", value_name = "FILE")]
    policies: Vec<PathBuf>,
    #[command(flatten)]
    ignore: IgnoreOption,
    #[command(flatten)]
    earlier: Earlier,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// The words among `target` that name workloads; the other words, which are files; and all files, with those of `-f`.
///
/// # Errors
/// If there are both, or if a flag about the cluster comes with files.
fn targets(target: &[String], files: &[PathBuf], scope: &Scope) -> Result<(Vec<String>, [Vec<PathBuf>; 2])> {
    let (words, named): (Vec<_>, Vec<_>) = target.iter().cloned().partition(|word| files::is_file(word));
    let words: Vec<_> = words.into_iter().map(PathBuf::from).collect();
    let files = files::both(files, &words);
    if let (Some(name), Some(file)) = (named.first(), files.first()) {
        bail!("`{name}` names workloads of the cluster, and `{}` is a file; give one of both", file.display());
    }
    let of_cluster = [("-A", scope.all_namespaces), ("-l", scope.selector.is_some())];
    if let (Some((flag, _)), Some(file)) = (of_cluster.iter().find(|(_, is_given)| *is_given), files.first()) {
        bail!("{flag} selects workloads of the cluster, and `{}` is a file; give one of both", file.display());
    }
    named.iter().for_each(|name| files::note_of_path(name));
    Ok((named, [words, files]))
}

pub(super) async fn run(mut options: ExplainOptions, out: &mut impl Write) -> Result<End> {
    let (named, [words, files]) = targets(&options.target, &options.files, &options.scope)?;
    (options.target, options.files) = (named, files);
    let earlier = &options.earlier.earlier;
    files::at_most_one_stdin(&[("-f", &options.files), ("--policy", &options.policies), ("--earlier", earlier)])?;
    let asked = Requested::parse(&options.target)?;
    let mut site = options.site.site()?;
    let reading = options.reading.reading().heeding(&options.ignore);
    let given = files::read(&options.policies, reading)?;
    let known = known(&options, &given, &site).await?;
    let manifests = files::read(&options.files, reading)?;
    files::expect_workloads(&manifests, &words)?;
    let earlier = options.earlier.read(reading, &known.policies)?;
    let ignored = options.ignore.with(given.iter().chain(&manifests));
    let known = match options.files.is_empty() && earlier.is_empty() {
        true => known,
        false => {
            KnownPolicies { policies: files::recognizing(&known.policies, earlier.iter().chain(&manifests)), ..known }
        }
    };
    let ToExplain { subjects, not_starting, facts, place, minor } = if options.files.is_empty() {
        in_cluster(&options, asked, &known.policies, &mut site).await?
    } else {
        let namespace = options.scope.namespace.as_deref().unwrap_or("default");
        let targets = known.policies.kinds();
        let (subjects, facts) = files::subjects_in(&manifests, &options.files, targets, namespace)?;
        site = site.for_files();
        let facts = LiveFacts::of_files(facts);
        ToExplain { subjects, not_starting: Vec::new(), facts, place: None, minor: site.minor }
    };
    let report = |subject| ExplainReport::of(subject, &known, &facts, &site, minor).without(&ignored);
    let mut reports: Vec<_> = subjects.into_iter().map(report).collect();
    reports.iter_mut().zip(not_starting).for_each(|(report, not_starting)| report.take(not_starting));
    let printing = &options.printing;
    printing.output.report(
        "ExplainReport",
        || json!({ "items": reports }),
        out,
        |out| match &reports[..] {
            [] => {
                let place = place.map_or(String::new(), |namespace| format!(" in namespace `{namespace}`"));
                Ok(writeln!(out, "no such workload{place}")?)
            }
            [report] => report.write(printing, out),
            reports => summary::write(reports, &known, printing, out),
        },
    )?;
    Ok(End::fine_if(!reports.iter().any(ExplainReport::is_finding)))
}

/// The policies: those in the files `given` or, without any, those of the cluster.
async fn known(options: &ExplainOptions, given: &[File], site: &Site) -> Result<KnownPolicies> {
    if options.policies.is_empty() {
        return policies::in_cluster(&options.cluster, site, "--policy").await;
    }
    let policies = files::policies_in(given, &options.policies, site, "--policy")?;
    Ok(KnownPolicies { policies, ..KnownPolicies::default() })
}

/// The workloads to explain.
struct ToExplain {
    subjects: Vec<Subject>,
    /// The containers of policies that do not start in the pods of the first workloads, for each of them.
    not_starting: Vec<Vec<NotStarting>>,
    /// The objects beside the workloads that other readers of pods look at.
    facts: LiveFacts,
    /// The single namespace that was searched.
    place: Option<String>,
    /// The minor version of their Kubernetes 1; none stands for the newest.
    minor: Option<u32>,
}

/// The requested stored workloads. Without a kind, the workloads of every kind that a policy targets.
async fn in_cluster(
    options: &ExplainOptions,
    mut asked: Vec<Requested>,
    policies: &Policies,
    site: &mut Site,
) -> Result<ToExplain> {
    let Scope { namespace, all_namespaces, selector } = &options.scope;
    if asked.is_empty() {
        if namespace.is_none() && !all_namespaces && selector.is_none() {
            bail!("which workload? Name it (`deploy/web`), its kind (`deploy`), or give -n, -A, -l or -f");
        }
        asked = Requested::all(policies.kinds());
    }
    let found = live::workloads(&options.cluster, &asked, &options.scope).await?;
    *site = options.site.on(site.clone(), &found.server);
    let minor = site.minor.or(found.server.known_minor());
    let mut not_starting = Vec::new();
    for workload in found.workloads.iter().take(live::LOOKED_AT) {
        not_starting.push(live::not_starting(&found.client, workload, policies).await?);
    }
    let facts = LiveFacts::read(&found.client, &found.workloads, policies).await;
    let subjects = found.workloads.into_iter().map(Subject::stored).collect();
    Ok(ToExplain { subjects, not_starting, facts, place: found.namespace, minor })
}
