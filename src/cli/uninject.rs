//! `scpol uninject`: the way back.

use super::End;
use super::files::{self, Manifests, Output, title};
use super::output::remark;
use crate::inject;
use crate::manifest::{Kinds, Manifest, Object};
use anyhow::Result;
use clap::Args;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    manifests: Manifests,
    /// Take away only what these policies have added [default: what all have]
    #[arg(short, long = "policy", value_name = "NAME", num_args = 1..)]
    policies: Vec<String>,
    /// Write every document in this format [default: as it came, byte for byte where it is not changed]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

pub(super) fn run(options: &Options, out: &mut impl Write) -> Result<End> {
    let files = options.manifests.read()?;
    let mut removal = Removal { names: &options.policies, found: BTreeSet::new(), end: End::Fine };
    let text =
        files::rewrite(&files, options.output, |manifest| manifest.rewrite(|object| removal.object(manifest, object)));
    for name in options.policies.iter().filter(|name| !removal.found.contains(*name)) {
        remark(format_args!("warning: no workload has a marker of policy `{name}`"));
    }
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(removal.end)
}

/// A removal under way.
struct Removal<'a> {
    /// Whose content is taken away; all, if empty.
    names: &'a [String],
    /// Whose marker was there.
    found: BTreeSet<String>,
    end: End,
}

impl Removal<'_> {
    /// The object as it was before; none if it has no marker of ours.
    fn object(&mut self, manifest: &Manifest, object: &Object<'_>) -> Option<Value> {
        let workload = Kinds::default().any_workload(object)?;
        let undone = inject::undo_anywhere(&workload, self.names)?;
        for leftover in &undone.leftovers {
            self.end = End::Finding;
            remark(format_args!("{}: {}: {leftover}", manifest.place, title(&workload)));
        }
        self.found.extend(undone.policies);
        (undone.body != workload.body).then_some(undone.body)
    }
}
