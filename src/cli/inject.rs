//! `scpol inject`: injects policies into files as the operator would.

use super::End;
use super::files::{self, DocumentFormat, Earlier, Manifests, other_version, placed, plan, title};
use super::ignored::{IgnoreOption, Ignored};
use super::output::{painted_diff, remark, unified_diff};
use super::site::{SiteOptions, one_namespace};
use crate::api::code::Code;
use crate::api::pod_schema::Fault;
use crate::decision::{Decision, Left, Outcome, rehearsal};
use crate::inject;
use crate::lint;
use crate::manifest::{self, Kinds, Layout, Manifest, Object};
use crate::policy::checks::unheard;
use crate::policy::{Policies, Site};
use crate::readers::{self, Facts};
use crate::workload::Workload;
use anyhow::Result;
use clap::Args;
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args, Debug)]
pub(super) struct InjectOptions {
    #[command(flatten)]
    manifests: Manifests,
    /// Policies: files, folders, or - for standard input (repeatable)
    #[arg(short, long = "policy", value_name = "FILE", required = true)]
    policies: Vec<PathBuf>,
    /// Namespace of the manifests that name none
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = one_namespace)]
    namespace: String,
    /// Print a unified diff instead of the manifests; the exit code is 1 if something changes
    #[arg(long, conflicts_with = "output")]
    diff: bool,
    /// Write every document in this format [default: that of the file; unchanged documents keep their bytes]
    #[arg(short, long, value_enum)]
    output: Option<DocumentFormat>,
    /// Report why each other policy is not injected
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    ignore: IgnoreOption,
    #[command(flatten)]
    earlier: Earlier,
    #[command(flatten)]
    site: SiteOptions,
}

pub(super) fn run(options: &InjectOptions, out: &mut impl Write) -> Result<End> {
    let earlier = &options.earlier.earlier;
    files::at_most_one_stdin(&[
        ("-f", &options.manifests.paths()),
        ("--policy", &options.policies),
        ("--earlier", earlier),
    ])?;
    let site = options.site.site()?.for_files();
    let reading = options.manifests.reading().heeding(&options.ignore);
    let given = files::read(&options.policies, reading)?;
    let policies = files::policies_in(&given, &options.policies, &site, "--policy")?;
    let files = options.manifests.read(reading)?;
    let earlier = options.earlier.read(reading, &policies)?;
    let ignored = options.ignore.with(given.iter().chain(&files));
    let policies = files::recognizing(&policies, earlier.iter().chain(&files));
    let objects: Vec<_> = files.iter().flat_map(manifest::File::manifests).flat_map(Manifest::objects).collect();
    let namespaces = files::namespaces(&objects);
    let facts = Facts::of(&objects, &options.namespace);
    let kinds = Kinds::new(policies.kinds(), &objects);
    let injection = Injection { options, site, policies, kinds, namespaces, facts, ignored };
    let (text, notes) = files::rewrite(&files, options.output, |manifest, notes| injection.manifest(manifest, notes));
    notes.iter().flat_map(|notes| &notes.remarks).for_each(remark);
    if options.diff {
        notes.iter().try_for_each(|notes| out.write_all(painted_diff(&notes.diff).as_bytes()))?;
    } else {
        out.write_all(text.as_bytes())?;
    }
    out.flush()?;
    // As in `scpol diff` and `kubectl diff`, differences are the finding.
    let is_fine = |notes: &Notes| !notes.has_failed && (!options.diff || notes.diff.is_empty());
    Ok(End::fine_if(notes.iter().all(is_fine)))
}

/// The input of every injection.
struct Injection<'a> {
    options: &'a InjectOptions,
    site: Site,
    policies: Policies,
    kinds: Kinds,
    namespaces: HashMap<String, Arc<Value>>,
    facts: Facts,
    ignored: Ignored,
}

/// The results of the injection of a file, besides its text.
#[derive(Default)]
struct Notes {
    /// The lines for standard error.
    remarks: Vec<String>,
    /// The unified diff.
    diff: String,
    /// Whether a matching policy was not injected.
    has_failed: bool,
}

impl Injection<'_> {
    /// The injected document; none if no policy is injected.
    fn manifest(&self, manifest: &Manifest, notes: &mut Notes) -> Option<Value> {
        let changed = manifest.rewrite(|object| self.object(manifest, object, notes))?;
        if self.options.diff {
            notes.diff.push_str(&unified(manifest, &changed));
        }
        Some(changed)
    }

    fn object(&self, manifest: &Manifest, object: &Object<'_>, notes: &mut Notes) -> Option<Value> {
        if manifest::policy_of(object).is_some() {
            notes.remarks.push(format!(
                "warning: {} is a SidecarPolicy, and passes through: give policies with --policy",
                manifest.place
            ));
        }
        let workload = self.kinds.workload(object)?;
        let placed = placed(&workload, &self.options.namespace, &self.namespaces);
        let mut decision = Decision::of(&self.policies, &placed, &self.site);
        for fault in lint::vet(&mut decision, &placed, &self.site) {
            let Fault { field, message, .. } = fault;
            notes.remarks.push(format!("warning: {}: {}: `{field}` {message}", manifest.place, title(&placed)));
        }
        decision.admit_unknown(&self.policies, &placed, &self.site);
        readers::leave_out(&mut decision, &placed, &placed, &self.facts, &self.site);
        let patch = plan(&mut decision, &workload, &placed);
        self.say_replaced(manifest, &placed, &decision, notes);
        for left in &decision.rest {
            self.say(&manifest.place.to_string(), &title(&placed), &placed, left, notes);
        }
        if self.policies.kinds().any(|kind| *kind == placed.kind) {
            let names = || self.policies.iter().map(|policy| policy.name.as_str());
            let unheard = unheard(&placed, names).into_iter().filter(|(code, _)| self.tells(*code, manifest, ""));
            notes.remarks.extend(unheard.map(|(code, message)| {
                format!("warning: {}: {}: {code} {}: {message}", manifest.place, title(&placed), code.name())
            }));
        }
        self.misspelt(manifest, &title(&placed), &decision, &placed, notes);
        self.unreached(manifest, &title(&placed), &decision, &placed, notes);
        self.pods(manifest, &placed, notes);
        self.readers(
            manifest,
            &title(&placed),
            &decision,
            [&placed, &workload.with_body(workload.patched(&patch)), &placed],
            notes,
        );
        if decision.refusal().is_some() || patch.is_empty() {
            return None;
        }
        let code = Code::InHook;
        let hook = lint::hook(&placed).filter(|_| self.tells(code, manifest, ""));
        notes.remarks.extend(
            hook.map(|message| format!("{}: {}: {code} {}: it {message}", manifest.place, title(&placed), code.name())),
        );
        Some(workload.patched(&patch))
    }

    /// Whether a note with `code` about `manifest` and `policy`, which may be empty, is wanted.
    fn tells(&self, code: Code, manifest: &Manifest, policy: &str) -> bool {
        !self.ignored.has(code, &manifest.place.file, policy)
    }

    /// Adds remarks on the policies whose earlier content in `workload` is replaced.
    fn say_replaced(&self, manifest: &Manifest, workload: &Workload, decision: &Decision, notes: &mut Notes) {
        for policy in decision.replaced().filter(|_| self.options.verbose) {
            let hash = other_version(policy, workload).unwrap_or_default();
            let (place, title, name) = (&manifest.place, title(workload), &policy.name);
            let message = "content of another version is replaced";
            notes.remarks.push(format!("{place}: {title}: policy `{name}`: the {message}: it had the template {hash}"));
        }
    }

    /// Adds remarks on the pods that `workload` makes, because its manifest does not show them.
    fn pods(&self, manifest: &Manifest, workload: &Workload, notes: &mut Notes) {
        let Some((pod, mut decision)) = files::of_pods(&self.policies, workload, &self.site) else { return };
        readers::leave_out(&mut decision, &pod, workload, &self.facts, &self.site);
        let patch = decision.plan(&pod);
        let of = format!("the pods of {}", title(workload));
        let hint = if self.options.diff { "" } else { "; `--diff` shows it" };
        for policy in &decision.inject {
            notes.remarks.push(format!(
                "{}: {of}: policy `{}` is for pods, and injects them when they are created{hint}",
                manifest.place, policy.name
            ));
        }
        for left in &decision.rest {
            self.say(&manifest.place.to_string(), &of, &pod, left, notes);
        }
        self.readers(manifest, &of, &decision, [&pod, &pod.with_body(pod.patched(&patch)), workload], notes);
        self.misspelt(manifest, &of, &decision, &pod, notes);
        self.unreached(manifest, &of, &decision, &pod, notes);
        if self.options.diff && decision.refusal().is_none() && !patch.is_empty() {
            let after = pod.patched(&patch);
            let name = format!("{} ({of})", manifest.place);
            notes.diff.push_str(&difference(&pod.body, &after, &name, &Layout::YAML));
        }
    }

    /// Adds remarks on what other readers do to the second of the workloads, the injected one, which the third one makes.
    fn readers(
        &self,
        manifest: &Manifest,
        of: &str,
        decision: &Decision,
        [workload, injected, maker]: [&Workload; 3],
        notes: &mut Notes,
    ) {
        let bare = readers::bare(workload);
        for policy in &decision.inject {
            let told = readers::told(policy, [&bare, injected], maker, &self.facts, &self.site).into_iter();
            let told = told.filter(|told| self.tells(told.code, manifest, &policy.name));
            notes.remarks.extend(told.map(|readers::Told { code, message, .. }| {
                format!(
                    "warning: {}: {of}: policy `{}`: {code} {}: {message}",
                    manifest.place,
                    policy.name,
                    code.name()
                )
            }));
        }
    }

    /// Adds warnings of policies whose `appContainers` selects none of the containers of `workload`.
    fn unreached(&self, manifest: &Manifest, title: &str, decision: &Decision, workload: &Workload, notes: &mut Notes) {
        let code = Code::NoEffect;
        let unreached = decision.unreached(workload).into_iter();
        let unreached = unreached.filter(|(policy, _)| self.tells(code, manifest, &policy.name));
        notes.remarks.extend(unreached.map(|(policy, message)| {
            format!("warning: {}: {title}: policy `{}`: {code} {}: {message}", manifest.place, policy.name, code.name())
        }));
    }

    /// Adds warnings of annotations of `workload` that are meant for a parameter, and that none has.
    fn misspelt(&self, manifest: &Manifest, title: &str, decision: &Decision, workload: &Workload, notes: &mut Notes) {
        let code = Code::MisspeltKey;
        let misspelt = decision.misspelt(workload).into_iter();
        let misspelt = misspelt.filter(|(policy, _)| self.tells(code, manifest, &policy.name));
        notes.remarks.extend(misspelt.map(|(policy, message)| {
            format!("warning: {}: {title}: policy `{}`: {code} {}: {message}", manifest.place, policy.name, code.name())
        }));
    }

    fn say(&self, place: &str, title: &str, workload: &Workload, left: &Left, notes: &mut Notes) {
        // A selected workload without injection is always reported, as the operator does with an event.
        let would = (left.reason.code == Code::Audit).then(|| rehearsal(&left.policy, workload, &self.site)).flatten();
        let edits = left.policy.edits(workload);
        let is_outdated = left.reason.code == Code::Outdated;
        let is_told = self.options.verbose || is_left_out(left) || would.is_some() || is_outdated || !edits.is_empty();
        let what = match left.outcome {
            Outcome::Injected => return,
            Outcome::Skipped if !is_told => return,
            Outcome::Skipped if is_outdated => "left as it is",
            Outcome::Skipped if !edits.is_empty() => "is in it, edited",
            Outcome::Skipped => "skipped",
            Outcome::Failed if !edits.is_empty() => "is in it, edited, and not injected",
            Outcome::Failed => "not injected",
            Outcome::Rejected => "not injected, and its create would be refused",
        };
        let is_served = left.reason.code != Code::NativeSidecarsUnavailable;
        notes.has_failed |= left.outcome != Outcome::Skipped || !is_served;
        let (reason, policy) = (&left.reason, &left.policy.name);
        if !edits.is_empty() {
            let (code, told) = (Code::Edited, inject::all_told(&edits));
            let because = if left.outcome == Outcome::Skipped { String::new() } else { format!(" ({})", reason.code) };
            notes.remarks.push(format!(
                "{place}: {title}: policy `{policy}`: {what}{because}: {code} {} (row {}): {told}; undo that, or take it out \
                 first, with `scpol uninject -f FILE -p {policy}`",
                code.name(),
                reason.row
            ));
            return;
        }
        let hint = match reason.code {
            Code::Outdated => {
                "; an operator that knows it brings it to the present one, and so does `--earlier` with the earlier policy"
                    .to_owned()
            }
            Code::NamespaceUnreadable => ": give its manifest with -f, too".to_owned(),
            Code::NameConflict if other_version(&left.policy, workload).is_some() => {
                format!(": another version is in it; take it out first, with `scpol uninject -f FILE -p {policy}`")
            }
            _ => would.map_or(String::new(), |would| format!(": {would}")),
        };
        notes.remarks.push(format!(
            "{place}: {title}: policy `{policy}`: {what}: {} {} (row {}): {}{hint}",
            reason.code,
            reason.code.name(),
            reason.row,
            reason.detail
        ));
    }
}

/// Whether a policy selects the workload but skips it.
fn is_left_out(left: &Left) -> bool {
    matches!(left.reason.code, Code::HostNetwork | Code::OptedOut | Code::JobSkipped | Code::NativeSidecarsUnavailable)
}

/// The diff of `manifest`. Both sides have the same layout, so only real changes show.
fn unified(manifest: &Manifest, changed: &Value) -> String {
    let layout = Layout { is_crlf: false, ..Layout::of(manifest) };
    difference(&manifest.value, changed, &manifest.place.to_string(), &layout)
}

fn difference(before: &Value, after: &Value, name: &str, layout: &Layout) -> String {
    let [old, new] = [before, after].map(|value| {
        let text = manifest::emit(value, layout);
        if text.ends_with('\n') { text } else { text + "\n" }
    });
    unified_diff([&old, &new], [name.to_owned(), format!("{name} (injected)")], 3)
}
