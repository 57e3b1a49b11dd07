//! `scpol parameters`: what the authors of workloads may set in the content of policies.

use super::files::{self, Recursion};
use super::output::{Output, Printing, WIDE};
use super::policies::{self, KnownPolicies, short_name, unknown};
use super::site::SiteOptions;
use super::{Cluster, End, live};
use crate::api::v1alpha1::ParameterType;
use crate::policy::{Policies, Policy, PolicyRef, Site};
use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args, Debug)]
pub(super) struct ParametersOptions {
    /// Policies of the cluster [default: all]. Or files with policies, as with -f, for example envoy.yaml
    #[arg(value_name = "POLICY|FILE")]
    policies: Vec<String>,
    /// Policies: files, folders, or - for standard input (repeatable) [default: those in the cluster]
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    recursion: Recursion,
    #[command(flatten)]
    printing: Printing<WIDE>,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// The parameters of one policy.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyRow {
    policy: String,
    parameters: Vec<ParameterRow>,
}

/// One parameter.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ParameterRow {
    name: String,
    r#type: ParameterType,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: String,
    /// The annotation by which the author of a workload sets it; none if only the policy does.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotation: Option<String>,
    /// Whether the Namespace may have that annotation, or a label of the same key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    from_namespace: bool,
    /// Whether an overlay may have it: a container of the sidecar's name in the workload.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    overridable: bool,
    /// The values that it may have, in words.
    allowed: String,
    /// The value where no source gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    /// The expression that gives the value before the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    expression: Option<String>,
    /// Whether a source must give a value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    required: bool,
    /// The places of the template that get the value.
    places: Vec<String>,
}

pub(super) async fn run(options: ParametersOptions, out: &mut impl Write) -> Result<End> {
    let (words, names): (Vec<_>, Vec<_>) = options.policies.iter().cloned().partition(|word| files::is_file(word));
    let words: Vec<_> = words.into_iter().map(PathBuf::from).collect();
    let paths = files::both(&options.files, &words);
    let names = names.iter().map(|name| short_name(name).map_err(|why| anyhow::anyhow!("`{name}` {why}")));
    let names = names.collect::<Result<Vec<_>>>()?;
    let site = options.site.site()?;
    let found = match paths.is_empty() {
        true => in_cluster(&options.cluster, &names, &site).await?,
        false => in_files(&options, &paths, &names, &site.for_files())?,
    };
    let rows: Vec<_> = found.iter().map(|policy| PolicyRow::of(policy)).collect();
    let printing = &options.printing;
    printing.output.report("ParametersReport", || json!({ "items": rows }), out, |out| write(&rows, printing, out))?;
    Ok(End::Fine)
}

/// The policies `names` in the files `paths`, or all of them.
fn in_files(options: &ParametersOptions, paths: &[PathBuf], names: &[String], site: &Site) -> Result<Vec<Arc<Policy>>> {
    let policies = files::policies(paths, options.recursion.reading(false), site, "-f")?;
    chosen(&policies, names, |name| {
        let meant = live::meant(name, policies.iter().map(|policy| policy.name.as_str()));
        let hint = meant.map_or(String::new(), |meant| format!("; {meant}"));
        anyhow::anyhow!("there is no SidecarPolicy `{name}` in {}{hint}", files::names(paths))
    })
}

/// The policies `names` of the cluster, or all that are valid.
async fn in_cluster(cluster: &Cluster, names: &[String], site: &Site) -> Result<Vec<Arc<Policy>>> {
    let client = live::connect(cluster).await?;
    let stored = policies::stored(&client).await?;
    let KnownPolicies { policies, invalid, .. } = policies::known(&stored, site);
    for name in names {
        files::note_of_path(name);
        if invalid.iter().any(|policy| policy.name == *name) {
            bail!("{name} is not valid itself, and not in effect: `kubectl describe scpol {name}` says why");
        }
    }
    ensure!(!stored.is_empty(), "there is no SidecarPolicy in the cluster");
    chosen(&policies, names, |name| unknown(name, &stored))
}

/// Those of `policies` with these `names`, or all.
///
/// # Errors
/// `missing` for a name that none has.
fn chosen(policies: &Policies, names: &[String], missing: impl Fn(&str) -> anyhow::Error) -> Result<Vec<Arc<Policy>>> {
    if names.is_empty() {
        let mut all: Vec<_> = policies.iter().cloned().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        return Ok(all);
    }
    let find = |name: &String| policies.get(&PolicyRef::of_cluster(name)).cloned().ok_or_else(|| missing(name));
    names.iter().map(find).collect()
}

impl PolicyRow {
    fn of(policy: &Policy) -> Self {
        let expression = |name: &str| {
            let declared = policy.spec.parameters.iter().find(|declared| declared.name == name)?;
            declared.expression.as_ref().map(|expression| expression.trim().to_owned())
        };
        let rows = policy.as_written().parameters().map(|parameter| ParameterRow {
            name: parameter.name.clone(),
            r#type: parameter.of,
            description: parameter.description.clone(),
            annotation: parameter.annotation.clone(),
            from_namespace: parameter.from_namespace,
            overridable: parameter.overridable,
            allowed: parameter.allowed(),
            default: parameter.default().map(str::to_owned),
            expression: expression(&parameter.name),
            required: parameter.is_required(),
            places: parameter.places().collect(),
        });
        Self { policy: policy.name.clone(), parameters: rows.collect() }
    }
}

const HEADER: [&str; 8] = ["POLICY", "PARAMETER", "TYPE", "SET BY", "ALLOWED", "DEFAULT", "DESCRIPTION", "PLACES"];

impl ParameterRow {
    /// The cells of `-o wide`.
    fn cells(&self, policy: &str) -> [String; 8] {
        let by = match &self.annotation {
            None if self.overridable => "an overlay".to_owned(),
            None => "the policy".to_owned(),
            Some(key) => {
                let namespace = if self.from_namespace { ", also of the Namespace" } else { "" };
                let overlay = if self.overridable { ", or an overlay" } else { "" };
                format!("{key}{namespace}{overlay}")
            }
        };
        let default = match (&self.default, &self.expression) {
            (_, Some(_)) => "by its expression".to_owned(),
            (Some(value), None) => value.clone(),
            (None, None) => "-".to_owned(),
        };
        let description = if self.description.is_empty() { "-" } else { &self.description };
        let (name, allowed, places) = (self.name.clone(), self.allowed.clone(), self.places.join(", "));
        [policy.to_owned(), name, format!("{:?}", self.r#type), by, allowed, default, description.to_owned(), places]
    }
}

fn write(rows: &[PolicyRow], printing: &Printing<WIDE>, out: &mut impl Write) -> Result<()> {
    let cells = |row: &PolicyRow| row.parameters.iter().map(|it| it.cells(&row.policy)).collect::<Vec<_>>();
    let cells: Vec<_> = rows.iter().flat_map(cells).collect();
    let without: Vec<_> = rows.iter().filter(|row| row.parameters.is_empty()).map(|row| row.policy.as_str()).collect();
    let told = match without.len() {
        1 => format!("{} has no parameters.", without[0]),
        _ => format!("Without parameters: {}.", without.join(", ")),
    };
    if cells.is_empty() {
        return printing.line(told, out);
    }
    match printing.output {
        Output::Wide => printing.table(HEADER, cells, out)?,
        _ => {
            let narrow = |[policy, name, of, by, allowed, default, description, _]: [String; 8]| {
                [policy, name, of, by, allowed, default, description]
            };
            let [header @ .., _] = HEADER;
            printing.table::<7>(header, cells.into_iter().map(narrow), out)?;
        }
    }
    printing.notes((!without.is_empty()).then_some(told), out)
}
