//! `scpol uninject`: removes injected content from manifests.

use super::End;
use super::files::{self, DocumentFormat, Manifests, title};
use super::output::remark;
use crate::inject;
use crate::manifest::{Kinds, Manifest, Object};
use anyhow::Result;
use clap::Args;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct UninjectOptions {
    #[command(flatten)]
    manifests: Manifests,
    /// Take away only what these policies have added [default: what all have]
    #[arg(short, long = "policy", value_name = "NAME", num_args = 1..)]
    policies: Vec<String>,
    /// Write every document in this format [default: as it came, byte for byte where it is not changed]
    #[arg(short, long, value_enum)]
    output: Option<DocumentFormat>,
}

pub(super) fn run(options: &UninjectOptions, out: &mut impl Write) -> Result<End> {
    let files = options.manifests.read()?;
    let change = |manifest: &Manifest, notes: &mut Notes| {
        manifest.rewrite(|object| original(manifest, object, &options.policies, notes))
    };
    let (text, notes) = files::rewrite(&files, options.output, change);
    let leftovers: Vec<_> = notes.iter().flat_map(|notes| &notes.leftovers).collect();
    leftovers.iter().for_each(remark);
    for name in options.policies.iter().filter(|name| !notes.iter().any(|notes| notes.found.contains(*name))) {
        remark(format_args!("warning: no workload has a marker of policy `{name}`"));
    }
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(End::fine_if(leftovers.is_empty()))
}

/// The results of the removal from a file, besides its text.
#[derive(Default)]
struct Notes {
    /// The policies whose markers were found.
    found: BTreeSet<String>,
    /// Content that stays: lines for standard error.
    leftovers: Vec<String>,
}

/// The object without the content of `policies`, or of all policies if the list is empty; none if nothing changes.
fn original(manifest: &Manifest, object: &Object<'_>, policies: &[String], notes: &mut Notes) -> Option<Value> {
    let workload = Kinds::default().any_workload(object)?;
    let undone = inject::undo_anywhere(&workload, policies)?;
    let leftovers = undone.leftovers.iter();
    notes.leftovers.extend(leftovers.map(|leftover| format!("{}: {}: {leftover}", manifest.place, title(&workload))));
    notes.found.extend(undone.policies);
    (undone.body != workload.body).then_some(undone.body)
}
