//! `scpol check`: finds everything that keeps policies from working in a cluster, before or after the installation, and
//! suggests fixes. One line per check. Changes nothing.

mod answers;
mod authors;
mod certificate;
mod engines;
mod operator;
mod policies;
mod registrations;
mod report;
mod rights;
mod server;

use super::installed::Installed;
use super::output::{Printing, WIDE};
use super::site::SiteOptions;
use super::{Cluster, End, live};
use crate::api::v1alpha1::EngineChoice;
use crate::capabilities::Capabilities;
use crate::cli::policies::{known, recognizing, status, stored_or_none};
use crate::cluster::object::Object;
use crate::engine::EngineName;
use crate::policy::{Policies, Site};
use anyhow::{Context, Result};
use clap::Args;
use kube::Client;
use report::{CheckItem, CheckReport};
use std::collections::BTreeSet;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct CheckOptions {
    /// Check before the installation: only what can be known then, and whether you may install
    #[arg(long)]
    pre: bool,
    /// Check that this engine can be used: Initializer, Webhook or MutatingAdmissionPolicy [default: those that policies use, else any]
    #[arg(long, value_name = "NAME", value_parser = engines::parse)]
    engine: Option<EngineChoice>,
    /// Also check that the last author of each policy may still do what it does; needs config/author-record
    #[arg(long, conflicts_with = "pre")]
    authors: bool,
    /// Exit code 1 for warnings, too
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    printing: Printing<WIDE>,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// The input of all checks.
struct CheckSubject<'a> {
    installed: Installed<'a>,
    site: &'a Site,
    /// The stored policies.
    stored: &'a [Object],
    /// The valid ones among them.
    policies: &'a Policies,
}

impl CheckSubject<'_> {
    fn client(&self) -> &Client {
        self.installed.client
    }

    fn server(&self) -> &Capabilities {
        self.installed.server
    }

    /// The engines that deliver policies at present.
    fn engines_in_force(&self) -> BTreeSet<EngineName> {
        let told = self.stored.iter().filter_map(|policy| status(policy).engine);
        told.flat_map(|engines| EngineName::listed(&engines).collect::<Vec<_>>()).collect()
    }
}

pub(super) async fn run(options: CheckOptions, out: &mut impl Write) -> Result<End> {
    let servers = live::servers(&options.cluster).await?;
    let client = servers.client.clone();
    let site = options.site.site()?;
    // The checks of policies report a missing right to read them.
    let stored = stored_or_none(&client).await;
    let known = recognizing(&client, known(stored.as_deref().unwrap_or_default(), &site), &site).await;
    let groups: BTreeSet<&str> = known.policies.kinds().map(|kind| kind.group.as_str()).collect();
    let server = servers.discover(|group| groups.contains(group)).await.context(live::ASKING)?;
    let installed = Installed { client: &client, server: &server, namespace: &site.operator_namespace };
    let listed = stored.as_deref().unwrap_or_default();
    let subject = CheckSubject { installed, site: &site, stored: listed, policies: &known.policies };
    let mut report = CheckReport::new(&server.version);
    report.add(server::check(&subject, options.pre).await);
    let engines = engines::check(&subject, options.engine).await;
    let wanted = engines.wanted;
    report.add(engines.items);
    if options.pre {
        report.add(rights::check_yours(&subject, &wanted).await);
    } else {
        report.add(operator::check(&subject).await);
        report.add(rights::check_operator(&subject, &wanted).await);
        match &stored {
            Ok(_) => {
                check_work(&subject, &mut report).await;
                if options.authors {
                    report.add(authors::check(&subject).await);
                }
            }
            Err(error) => report.add([CheckItem::unknown("policies", error)]),
        }
        report.add(policies::stuck(&subject).await);
    }
    report.print(&options.printing, out)?;
    report.end(options.strict)
}

/// Checks that the registrations match the policies, and the state of the policies.
async fn check_work(subject: &CheckSubject<'_>, report: &mut CheckReport) {
    match subject.installed.all_registrations().await {
        Ok(registered) => {
            report.add(rights::check_aside(subject, &registered).await);
            report.add(certificate::check(subject, &registered).await);
            report.add(registrations::check(subject, &registered).await);
        }
        Err(error) => report.add([CheckItem::unknown("registrations", &error)]),
    }
    report.add(policies::check(subject));
}
