//! `scpol uninject`: removes injected content from manifests.

use super::End;
use super::files::{self, DocumentFormat, Manifests, Reading, title};
use super::output::remark;
use super::policies::short_name;
use crate::inject;
use crate::manifest::{File, Kinds, Manifest, Object, policy_of};
use crate::workloads::recreate;
use anyhow::{Result, anyhow, ensure};
use clap::Args;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(super) struct UninjectOptions {
    #[command(flatten)]
    manifests: Manifests,
    /// Remove only what this policy has added: its name, or its file (repeatable) [default: what all have; with --recreate:
    /// nothing]
    #[arg(short, long = "policy", value_name = "NAME|FILE")]
    policies: Vec<String>,
    /// Prepare stored objects for `kubectl replace --force`: also remove what a create rejects or sets itself
    #[arg(long)]
    recreate: bool,
    /// Write every document in this format [default: that of the file; unchanged documents keep their bytes]
    #[arg(short, long, value_enum)]
    output: Option<DocumentFormat>,
}

pub(super) fn run(options: &UninjectOptions, out: &mut impl Write) -> Result<End> {
    let of_policies: Vec<_> = options.policies.iter().map(PathBuf::from).collect();
    files::at_most_one_stdin(&[("-f", &options.manifests.paths()), ("--policy", &of_policies)])?;
    let policies = names(&options.policies, options.manifests.reading())?;
    let files = options.manifests.read(options.manifests.reading())?;
    let change = |manifest: &Manifest, notes: &mut Notes| {
        manifest.rewrite(|object| original(manifest, object, (&policies, options.recreate), notes))
    };
    let (text, notes) = files::rewrite(&files, options.output, change);
    let leftovers: Vec<_> = notes.iter().flat_map(|notes| &notes.leftovers).collect();
    leftovers.iter().for_each(remark);
    for name in policies.iter().filter(|name| !notes.iter().any(|notes| notes.found.contains(*name))) {
        remark(format_args!("warning: no workload has a marker of policy `{name}`"));
    }
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(End::fine_if(leftovers.is_empty()))
}

/// The names of the policies that `given` are or, where they are files, have.
fn names(given: &[String], reading: Reading) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for given in given {
        if !files::is_file(given) {
            files::note_of_path(given);
            names.push(short_name(given).map_err(|error| anyhow!("--policy: `{given}` {error}"))?);
            continue;
        }
        let files = files::read(&[given.into()], reading)?;
        let objects = files.iter().flat_map(File::manifests).flat_map(Manifest::objects);
        let found: Vec<_> =
            objects.filter(|object| policy_of(object).is_some()).map(|policy| policy.name().to_owned()).collect();
        ensure!(!found.is_empty(), "--policy: no SidecarPolicy found in {given} (manifests are given with -f)");
        names.extend(found);
    }
    Ok(names)
}

/// The results of the removal from a file, besides its text.
#[derive(Default)]
struct Notes {
    /// The policies whose markers were found.
    found: BTreeSet<String>,
    /// Content that stays: lines for standard error.
    leftovers: Vec<String>,
}

/// The object without the content of `policies`, or of all if there are none; `is_recreated`: for `kubectl replace --force`. None if
/// nothing changes.
fn original(
    manifest: &Manifest,
    object: &Object<'_>,
    (policies, is_recreated): (&[String], bool),
    notes: &mut Notes,
) -> Option<Value> {
    let stored = Kinds::default().any_workload(object)?;
    // First, because a container of `kubectl debug` may mount a volume of a policy.
    let workload = if is_recreated { stored.with_body(recreate::creatable(&stored)) } else { stored.clone() };
    let is_asked = !is_recreated || !policies.is_empty();
    let undone = if is_asked { inject::undo_anywhere(&workload, policies) } else { None };
    let body = match undone {
        None => workload.body,
        Some(undone) => {
            let leftovers = undone.leftovers.iter();
            notes
                .leftovers
                .extend(leftovers.map(|leftover| format!("{}: {}: {leftover}", manifest.place, title(&stored))));
            notes.found.extend(undone.policies);
            undone.body
        }
    };
    (body != stored.body).then_some(body)
}
