//! `scpol convert`: converts manifests of an old initializer, PodPresets, and annotations of other injectors to policies.

use super::End;
use super::files::{self, ReadOptions};
use super::output::{Output, remark};
use super::site::{SiteOptions, one_namespace};
use crate::convert::{Conversion, Converted, Finding, Weight, convert};
use crate::manifest::{self, File, Layout};
use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(super) struct ConvertOptions {
    /// The same as -f
    #[arg(value_name = "FILE", required_unless_present = "files")]
    words: Vec<PathBuf>,
    /// Old manifests, or workloads and Namespaces with annotations of another injector: files, folders (their *.yaml, *.yml and *.json), or - for standard input (repeatable)
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: ReadOptions,
    /// Namespace of the manifests that name none
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = one_namespace)]
    namespace: String,
    /// Print the report on standard output, and no policies
    #[arg(long, conflicts_with = "output")]
    report: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: PoliciesFormat,
    #[command(flatten)]
    site: SiteOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PoliciesFormat {
    /// The policies on standard output, the report on standard error
    #[default]
    Yaml,
    /// Both for machines, in one object on standard output
    Json,
}

pub(super) fn run(options: &ConvertOptions, out: &mut impl Write) -> Result<End> {
    let site = options.site.site()?;
    let (files, odd_spaces) = files::read_old(&files::both(&options.files, &options.words), options.reading.reading())?;
    let conversion = convert(&files, &odd_spaces, &options.namespace, &site);
    let report = report(&conversion, &files);
    match (options.output, options.report) {
        (PoliciesFormat::Json, _) => {
            Output::Json.is_written("ConvertReport", || machine(&conversion), out)?;
        }
        (PoliciesFormat::Yaml, true) => out.write_all(report.as_bytes())?,
        (PoliciesFormat::Yaml, false) => {
            out.write_all(yaml(&conversion.policies).as_bytes())?;
            remark(report.trim_end());
        }
    }
    out.flush()?;
    let is_fine = !conversion.policies.is_empty() && !conversion.needs_attention();
    Ok(End::fine_if(is_fine))
}

fn yaml(policies: &[Converted]) -> String {
    let texts: Vec<_> = policies.iter().map(|policy| manifest::emit(&policy.object, &Layout::YAML)).collect();
    texts.join("---\n")
}

/// The findings of each weight, and their title.
const SECTIONS: [(Weight, &str); 4] = [
    (Weight::Lost, "NOT CARRIED OVER"),
    (Weight::Guessed, "TAKEN AS MEANT"),
    (Weight::Differs, "DIFFERENT FROM BEFORE"),
    (Weight::Note, "ALSO"),
];

/// The most findings per weight in the report for people.
const SHOWN: usize = 12;

/// The report for people: the answer first.
fn report(conversion: &Conversion, files: &[File]) -> String {
    let mut text = headline(conversion, files);
    let needs = ("NEEDED", needs(conversion));
    let of = |weight| conversion.findings.iter().filter(move |finding| finding.weight == weight).map(line).collect();
    let sections = SECTIONS.iter().map(|(weight, title)| (*title, of(*weight)));
    let (before, after): (Vec<_>, Vec<(&str, Vec<String>)>) = sections.partition(|(title, _)| *title != "ALSO");
    for (title, lines) in before.into_iter().chain([needs]).chain(after) {
        if !lines.is_empty() {
            text.push_str(&format!("\n{title}\n"));
            text.extend(lines.iter().take(SHOWN).map(|line| format!("- {line}\n")));
        }
        if lines.len() > SHOWN {
            text.push_str(&format!("- and {} more: `-o json` has them all\n", lines.len() - SHOWN));
        }
    }
    if !conversion.steps.is_empty() {
        text.push_str("\nSWITCHING OVER, in this order (docs/migrate.md says why)\n");
        let numbered = conversion.steps.iter().enumerate();
        text.extend(numbered.map(|(index, step)| format!("{}. {step}\n", index + 1)));
    }
    text
}

fn headline(conversion: &Conversion, files: &[File]) -> String {
    let policies = &conversion.policies;
    let made = |policy: &Converted| format!("{} (of {})\n", policy.name, few(&policy.from));
    match policies.len() {
        0 => {
            let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
            format!(
                "Nothing could be converted in {}: wanted are a ConfigMap with containers, its InitializerConfiguration and its initializer's \
                 Deployment or Pod, PodPresets, or workloads with annotations of Linkerd, Dapr, Vault or Istio.\n",
                names.join(", ")
            )
        }
        1 => format!("1 policy: {}", made(&policies[0])),
        count => {
            format!(
                "{count} policies:\n{}",
                policies.iter().map(|policy| format!("  {}", made(policy))).collect::<String>()
            )
        }
    }
}

/// The first of `sources`, and how many more there are: a folder may have any number of workloads.
fn few(sources: &[String]) -> String {
    const MOST: usize = 4;
    let first = sources.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match sources.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn line(finding: &Finding) -> String {
    match &finding.place {
        Some(place) => format!("{place}: {}", finding.message),
        None => finding.message.clone(),
    }
}

/// The objects and flags that the policies need.
fn needs(conversion: &Conversion) -> Vec<String> {
    let flags = conversion.initializer_names();
    let mut needs: Vec<String> =
        flags.iter().map(|name| format!("the operator's flag `--initializer-name {name}`")).collect();
    for policy in conversion.policies.iter().filter(|policy| !policy.needs.is_empty()) {
        let objects = policy.needs.iter().cloned().collect::<Vec<_>>().join(", ");
        needs.push(format!("in the namespace of every workload of `{}`: {objects}", policy.name));
    }
    needs
}

fn machine(conversion: &Conversion) -> Value {
    let policies = conversion.policies.iter().map(|policy| {
        json!({ "name": policy.name, "from": policy.from, "initializer": policy.initializer, "needs": policy.needs, "object": policy.object })
    });
    let findings = conversion.findings.iter().map(|finding| {
        let place = finding.place.as_ref().map(ToString::to_string);
        json!({ "result": finding.weight.word(), "source": place, "message": finding.message })
    });
    json!({
        "policies": policies.collect::<Vec<_>>(),
        "initializerNames": conversion.initializer_names(),
        "findings": findings.collect::<Vec<_>>(),
        "steps": conversion.steps,
    })
}
