//! `scpol uninject`: removes injected content from manifests.

use super::End;
use super::files::{self, DocumentFormat, Manifests, title};
use super::output::remark;
use crate::inject;
use crate::manifest::{Kinds, Manifest, Object};
use crate::workloads::recreate;
use anyhow::Result;
use clap::Args;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct UninjectOptions {
    #[command(flatten)]
    manifests: Manifests,
    /// Take away only what these policies have added [default: what all have; with --recreate: nothing]
    #[arg(short, long = "policy", value_name = "NAME", num_args = 1..)]
    policies: Vec<String>,
    /// Of stored objects, for `kubectl replace --force`: also without what a create refuses, or decides anew
    #[arg(long)]
    recreate: bool,
    /// Write every document in this format [default: as it came, byte for byte where it is not changed]
    #[arg(short, long, value_enum)]
    output: Option<DocumentFormat>,
}

pub(super) fn run(options: &UninjectOptions, out: &mut impl Write) -> Result<End> {
    let files = options.manifests.read()?;
    let change =
        |manifest: &Manifest, notes: &mut Notes| manifest.rewrite(|object| original(manifest, object, options, notes));
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

/// The object without the content that `options` ask to take away; none if nothing changes.
fn original(manifest: &Manifest, object: &Object<'_>, options: &UninjectOptions, notes: &mut Notes) -> Option<Value> {
    let stored = Kinds::default().any_workload(object)?;
    // First, because a container of `kubectl debug` may mount a volume of a policy.
    let workload = if options.recreate { stored.with_body(recreate::creatable(&stored)) } else { stored.clone() };
    let is_asked = !options.recreate || !options.policies.is_empty();
    let undone = if is_asked { inject::undo_anywhere(&workload, &options.policies) } else { None };
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
