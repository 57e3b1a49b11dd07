//! Shared code of the commands on files: reading of manifests and policies, and names of workloads.

use super::ignored::IgnoreOption;
use super::output::remark;
use crate::api::code::Code;
use crate::api::rules::{self, Violation};
use crate::content::{Content, Revision};
use crate::decision::Decision;
use crate::lint;
use crate::manifest::{self, Fault, File, Kinds, Lines, Location, Manifest, Object, Twin};
use crate::policy::{Policies, Policy, Site};
use crate::readers::Facts;
use crate::rollout::StoredRevision;
use crate::source::{self, Walk};
use crate::workload::{KINDS, Kind, Workload};
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use json_patch::Patch;
use rayon::prelude::*;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Manifests.
#[derive(Args, Debug)]
pub(super) struct Manifests {
    /// The same as -f
    #[arg(value_name = "FILE", required_unless_present = "files")]
    words: Vec<PathBuf>,
    /// Manifests: files, folders (their *.yaml, *.yml and *.json), or - for standard input (repeatable)
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    reading: ReadOptions,
}

/// How far folders are read.
#[derive(Args, Debug)]
pub(super) struct Recursion {
    /// Read subfolders, too
    #[arg(short = 'R', long)]
    recursive: bool,
}

impl Recursion {
    pub(super) fn reading(&self, is_strict: bool) -> Reading {
        let walk = if self.recursive { Walk::Recursive } else { Walk::Flat };
        Reading { walk, is_strict, sets_aside: true, tells_asides: true }
    }
}

/// How files are read, for the command line.
#[derive(Args, Debug)]
pub(super) struct ReadOptions {
    #[command(flatten)]
    recursion: Recursion,
    /// Reject documents with a duplicate key [default: the last one counts, with a warning]
    #[arg(long)]
    strict: bool,
}

impl ReadOptions {
    pub(super) fn reading(&self) -> Reading {
        self.recursion.reading(self.strict)
    }
}

/// The way files are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The depth to which folders are read.
    pub(super) walk: Walk,
    /// Whether a duplicate key is an error.
    pub(super) is_strict: bool,
    /// Whether patches, templates and other documents that are no complete objects are left alone.
    pub(super) sets_aside: bool,
    /// Whether these are reported.
    pub(super) tells_asides: bool,
}

impl Reading {
    /// The named files alone. The last of several duplicate keys counts.
    pub(super) const PLAIN: Self = Self { walk: Walk::Flat, is_strict: false, sets_aside: false, tells_asides: true };

    /// The same, but objects that are left alone are not reported if `ignore` has the code.
    pub(super) fn heeding(self, ignore: &IgnoreOption) -> Self {
        Self { tells_asides: !ignore.has(Code::PartialManifest), ..self }
    }

    /// Sets aside the documents of `files` that are no complete objects, and returns one note for each file with such.
    /// They are `faults` if there is no object at all, or if there were workloads and all of them are set aside.
    pub(super) fn set_aside(self, files: &mut [File], faults: &mut Vec<Fault>) -> Vec<Fault> {
        let mut told = self.take_asides(files, faults);
        told.retain(|_| self.tells_asides);
        told
    }

    fn take_asides(self, files: &mut [File], faults: &mut Vec<Fault>) -> Vec<Fault> {
        let is_object = |object: &Object<'_>| !object.kind.is_empty() && !object.api_version.is_empty();
        let has = |files: &[File], is: &dyn Fn(&Object<'_>) -> bool| {
            files.iter().flat_map(File::manifests).flat_map(Manifest::objects).any(|object| is(&object))
        };
        let (has_objects, had_workloads) = (has(files, &is_object), has(files, &manifest::has_pods));
        let mut asides = match self.sets_aside {
            true => manifest::set_aside(files, &std::env::current_dir().unwrap_or_default()),
            false => files.iter().flat_map(|file| file.asides.clone()).collect(),
        };
        let is_all = had_workloads && !has(files, &manifest::may_have_pods);
        if !self.sets_aside || !has_objects || is_all {
            faults.append(&mut asides);
        }
        asides
    }

    /// The faults of `files` beyond syntax.
    pub(super) fn faults(self, files: &[File]) -> Vec<Fault> {
        let mut faults: Vec<Fault> = files.iter().flat_map(manifest::faults).collect();
        if self.is_strict {
            faults.extend(twins(files).map(|twin| {
                let message = format!("the key `{}` is there twice; expected it once", twin.key);
                Fault { place: twin.place.clone(), message }
            }));
        }
        faults
    }
}

/// The duplicate keys in `files`.
fn twins(files: &[File]) -> impl Iterator<Item = &Twin> {
    files.iter().flat_map(File::manifests).flat_map(|manifest| &manifest.twice)
}

/// Notes the documents that are left alone.
pub(super) fn note_asides(asides: &[Fault]) {
    let code = Code::PartialManifest;
    for Fault { place, message } in asides {
        remark(format_args!("note: {place}: {code} {}: left as it is: {message}", code.name()));
    }
}

/// Warns of the duplicate keys in `files`, and of comments with a template.
pub(super) fn warn_of_twins(files: &[File]) {
    for Twin { place, key } in twins(files) {
        remark(format_args!("warning: {place}: the key `{key}` is there twice; the last one counts, as for kubectl"));
    }
    for place in files.iter().flat_map(File::manifests).filter_map(manifest::templated_comment) {
        remark(format_args!(
            "warning: {place}: the comment has a template (`{{{{`): a change of the document loses it"
        ));
    }
}

/// Warns of those of `paths` that have no document, if others have one.
pub(super) fn warn_of_empty(files: &[File], paths: &[PathBuf]) {
    let is_empty = |file: &&File| file.manifests().next().is_none() && file.asides.is_empty();
    if files.iter().all(|file| is_empty(&file)) {
        return;
    }
    for file in files.iter().filter(is_empty).filter(|file| paths.iter().any(|path| path == Path::new(&file.name))) {
        remark(format_args!("warning: {}: there is no object in it", file.name));
    }
}

/// Warns of objects that are probably meant as workloads, and whose kind is misspelt.
fn warn_of_kinds(files: &[File]) {
    for manifest in files.iter().flat_map(File::manifests) {
        for object in manifest.objects() {
            if let Some((api_version, kind)) = manifest::meant_workload(&object) {
                let place = Lines::of(manifest).place(&manifest.indexes(object.body), "kind");
                let (found, of) = (object.kind, object.api_version);
                remark(format_args!(
                    "warning: {place}: `{found}` of `{of}` is no workload; did you mean `kind: {kind}` of `apiVersion: {api_version}`?"
                ));
            }
        }
    }
}

impl Manifests {
    /// Reads all manifests, or fails with every fault.
    ///
    /// # Errors
    /// Also if there is no object at all, because the command before a pipe has failed then, and if a word without a flag is a file
    /// of policies, because a flag takes one value.
    pub(super) fn read(&self, reading: Reading) -> Result<Vec<File>> {
        let paths = self.paths();
        let files = read(&paths, reading)?;
        ensure!(
            files.iter().any(|file| file.manifests().next().is_some() || !file.asides.is_empty()),
            "no manifest found in {}",
            names(&paths)
        );
        if let Some(policy) = only_policies(&files.iter()) {
            bail!("{policy} is a SidecarPolicy; expected a workload here: give policies with --policy");
        }
        expect_workloads(&files, &self.words)?;
        Ok(files)
    }

    /// The way they are read, for other flags that take files.
    pub(super) fn reading(&self) -> Reading {
        self.reading.reading()
    }

    /// The paths as given.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        both(&self.files, &self.words)
    }
}

/// Checks that no file that is named without a flag, as in `-p a.yaml b.yaml`, has policies alone.
///
/// # Errors
/// If one of `words` has, because a flag takes one value.
pub(super) fn expect_workloads(files: &[File], words: &[PathBuf]) -> Result<()> {
    for word in words {
        if let Some(policy) = only_policies(&files.iter().filter(|file| Path::new(&file.name) == word)) {
            bail!(
                "{policy} is a SidecarPolicy; expected a workload here: repeat the flag, `--policy FILE --policy FILE`"
            );
        }
    }
    Ok(())
}

/// Checks that no file that is named without a flag, as in `FLAG a.yaml b.yaml`, has workloads and no policy.
///
/// # Errors
/// If one of `words` has, because `flag` takes one value.
pub(super) fn expect_policies(files: &[File], words: &[PathBuf], flag: &str) -> Result<()> {
    for file in files.iter().filter(|file| words.iter().any(|word| Path::new(&file.name) == word)) {
        let has =
            |is: &dyn Fn(&Object<'_>) -> bool| file.manifests().flat_map(Manifest::objects).any(|object| is(&object));
        if has(&manifest::has_pods) && !has(&|object| manifest::policy_of(object).is_some()) {
            bail!("{}: no SidecarPolicy; to give several files, repeat the flag: `{flag} FILE {flag} FILE`", file.name);
        }
    }
    Ok(())
}

/// Notes that a path is there whose name could be meant, where `word` names something of the cluster.
pub(super) fn note_of_path(word: &str) {
    if Path::new(word).exists() {
        remark(format_args!("note: `{word}` names something of the cluster; for the file or folder, write `./{word}`"));
    }
}

/// The paths of `-f`, then those without a flag.
pub(super) fn both(files: &[PathBuf], words: &[PathBuf]) -> Vec<PathBuf> {
    files.iter().chain(words).cloned().collect()
}

/// Whether `word` is meant as a file, not as a name: `web.yaml`, `./web`, `-`.
pub(super) fn is_file(word: &str) -> bool {
    let has_extension = source::is_manifest(Path::new(word));
    word == "-" || has_extension || ["/", "./", "../"].iter().any(|start| word.starts_with(start))
}

/// The place of the first policy in `files`, if they have nothing else.
fn only_policies<'a>(files: &(impl Iterator<Item = &'a File> + Clone)) -> Option<&'a Location> {
    let objects = || files.clone().flat_map(File::manifests).flat_map(Manifest::objects);
    let is_policy = |object: Object<'_>| manifest::policy_of(&object).is_some();
    let first = files.clone().flat_map(File::manifests).next()?;
    (objects().next().is_some() && objects().all(is_policy)).then_some(&first.place)
}

/// Whether `paths` includes standard input.
pub(super) fn is_stdin(paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| path.as_os_str() == "-")
}

/// Checks that at most one of `flags`, each with its paths, takes standard input.
///
/// # Errors
/// If more than one does, because standard input can be read only once.
pub(super) fn at_most_one_stdin(flags: &[(&str, &[PathBuf])]) -> Result<()> {
    if flags.iter().filter(|(_, paths)| is_stdin(paths)).count() > 1 {
        let names: Vec<_> = flags.iter().map(|(name, _)| *name).collect();
        let (last, others) = names.split_last().expect("two of them take it");
        bail!("standard input can be read only once: give `-` to one of {} and {last}", others.join(", "));
    }
    Ok(())
}

/// Reads `paths`, or fails with every fault.
pub(super) fn read(paths: &[PathBuf], reading: Reading) -> Result<Vec<File>> {
    let (mut files, mut faults) = source::read_what_can_be(paths, reading.walk);
    let asides = reading.set_aside(&mut files, &mut faults);
    faults.extend(reading.faults(&files));
    if faults.is_empty() {
        note_asides(&asides);
        warn_of_twins(&files);
        warn_of_kinds(&files);
        warn_of_empty(&files, paths);
        return Ok(files);
    }
    faults.sort_by(|one, other| one.place.cmp(&other.place));
    Err(all(&faults))
}

/// Reads old manifests without a check of their kinds, which the conversion makes. Also returns the places of replaced
/// no-break spaces.
pub(super) fn read_old(paths: &[PathBuf], reading: Reading) -> Result<(Vec<File>, Vec<Location>)> {
    let (mut files, odd) = source::read_forgiving(paths, reading.walk).map_err(|faults: Vec<Fault>| all(&faults))?;
    let mut faults = Vec::new();
    Reading { sets_aside: false, ..reading }.set_aside(&mut files, &mut faults);
    if !faults.is_empty() {
        return Err(all(&faults));
    }
    if reading.is_strict && twins(&files).next().is_some() {
        let told = |twin: &Twin| format!("{}: the key `{}` is there twice; expected it once", twin.place, twin.key);
        return Err(all(&twins(&files).map(told).collect::<Vec<_>>()));
    }
    warn_of_twins(&files);
    Ok((files, odd))
}

/// One error with all of `faults`, one line each.
pub(super) fn all<T: Display>(faults: &[T]) -> anyhow::Error {
    anyhow::Error::msg(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: "))
}

/// A workload in question.
pub(super) struct Subject {
    /// The workload unchanged.
    pub(super) workload: Workload,
    /// The workload with the namespace in which it will be created.
    pub(super) placed: Workload,
    /// The place in a file; none for a stored workload.
    pub(super) source: Option<String>,
}

impl Subject {
    /// A workload that is stored in a cluster.
    pub(super) fn stored(workload: Workload) -> Self {
        Self { placed: workload.clone(), workload, source: None }
    }
}

/// The workloads in the files `paths`, for policies with these targets, as in [`workloads`], and the objects beside them.
/// What has no namespace gets `namespace`.
pub(super) fn subjects<'a>(
    paths: &[PathBuf],
    reading: Reading,
    targets: impl Iterator<Item = &'a Arc<Kind>>,
    namespace: &str,
) -> Result<(Vec<Subject>, Facts)> {
    subjects_in(&read(paths, reading)?, paths, targets, namespace)
}

/// The same in `files`, which have been read from `paths`.
pub(super) fn subjects_in<'a>(
    files: &[File],
    paths: &[PathBuf],
    targets: impl Iterator<Item = &'a Arc<Kind>>,
    namespace: &str,
) -> Result<(Vec<Subject>, Facts)> {
    let subjects = workloads(files, targets, namespace);
    ensure!(!subjects.is_empty(), "no workload found in {}; expected one of {}", names(paths), kinds());
    Ok((subjects, facts(files, namespace)))
}

/// The objects in `files` that other readers of pods look at. What has no namespace is in `namespace`.
pub(super) fn facts(files: &[File], namespace: &str) -> Facts {
    let objects: Vec<_> = files.iter().flat_map(File::manifests).flat_map(Manifest::objects).collect();
    Facts::of(&objects, namespace)
}

/// `paths` in an error.
pub(super) fn names(paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    paths.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// The kinds that policies can target, for a sentence.
pub(super) fn kinds() -> String {
    let built_in = KINDS.iter().filter_map(|kind| kind.kind.as_deref()).collect::<Vec<_>>().join(", ");
    format!("{built_in}, or a custom resource that a policy targets")
}

/// The Namespaces among `objects`, by name.
pub(super) fn namespaces(objects: &[Object<'_>]) -> HashMap<String, Arc<Value>> {
    let namespaces = objects.iter().filter(|object| object.kind == "Namespace" && object.api_version == "v1");
    namespaces.map(|object| (object.name().to_owned(), Arc::new(object.body.clone()))).collect()
}

/// The workloads in `files` for policies with these targets, each with its place in the file and with `namespace` as
/// its default namespace. If there are none, the custom resources that no policy targets, so that the user learns that.
pub(super) fn workloads<'a>(
    files: &[File],
    targets: impl Iterator<Item = &'a Arc<Kind>>,
    namespace: &str,
) -> Vec<Subject> {
    let objects: Vec<_> = files.iter().flat_map(File::manifests).flat_map(Manifest::objects).collect();
    let (kinds, namespaces) = (Kinds::new(targets, &objects), namespaces(&objects));
    let find = |kind: &dyn Fn(&Object<'_>) -> Option<Workload>| {
        let mut found = Vec::new();
        for manifest in files.iter().flat_map(File::manifests) {
            found.extend(manifest.objects().iter().filter_map(kind).map(|workload| Subject {
                placed: placed(&workload, namespace, &namespaces),
                workload,
                source: Some(manifest.place.to_string()),
            }));
        }
        found
    };
    let found = find(&|object| kinds.workload(object));
    if found.is_empty() { find(&|object| kinds.any_workload(object)) } else { found }
}

/// The policies in the files `paths` of the flag `flag`. Other objects are ignored.
///
/// # Errors
/// Every fault of every policy, with its file and field.
pub(super) fn policies(paths: &[PathBuf], reading: Reading, site: &Site, flag: &str) -> Result<Policies> {
    policies_in(&read(paths, reading)?, paths, site, flag)
}

/// The same in `files`, which have been read from `paths`.
pub(super) fn policies_in(files: &[File], paths: &[PathBuf], site: &Site, flag: &str) -> Result<Policies> {
    let mut found: BTreeMap<String, (String, Arc<Policy>)> = BTreeMap::new();
    let mut faults = Vec::new();
    for manifest in files.iter().flat_map(File::manifests) {
        for object in manifest.objects().iter().filter(|object| manifest::is_meant_as_policy(object)) {
            match parse(object, site) {
                Ok(policy) => {
                    let place = manifest.place.to_string();
                    if let Some((first, _)) = found.get(&policy.name) {
                        faults.push(format!(
                            "{place}: SidecarPolicy `{}` is in {first} already; expected once",
                            policy.name
                        ));
                    }
                    found.insert(policy.name.clone(), (place, Arc::new(policy)));
                }
                Err(found) => {
                    let (lines, indexes) = (Lines::of(manifest), manifest.indexes(object.body));
                    let tell = |(field, fault): (String, String)| format!("{}: {fault}", lines.place(&indexes, &field));
                    faults.extend(found.into_iter().map(tell));
                }
            }
        }
    }
    if !faults.is_empty() {
        return Err(all(&faults));
    }
    if found.is_empty() {
        bail!("{flag}: no SidecarPolicy found in {} (manifests are given with -f)", names(paths));
    }
    Ok(Policies::new(found.into_values().map(|(_, policy)| policy)))
}

/// Earlier versions of policies.
#[derive(Args, Debug, Default)]
pub(super) struct Earlier {
    /// Earlier versions of the policies: files, folders, or - for standard input (repeatable). Their content in workloads
    /// is replaced
    #[arg(long, value_name = "FILE")]
    pub(super) earlier: Vec<PathBuf>,
}

impl Earlier {
    /// Reads the files, which have earlier versions of some of `policies`.
    ///
    /// # Errors
    /// Every policy that cannot be read; or if none of `policies` is there.
    pub(super) fn read(&self, reading: Reading, policies: &Policies) -> Result<Vec<File>> {
        let files = read(&self.earlier, reading)?;
        if files.is_empty() {
            return Ok(files);
        }
        let (mut there, mut faults) = (Vec::new(), Vec::new());
        for manifest in files.iter().flat_map(File::manifests) {
            for object in manifest.objects() {
                let name = object.name().to_owned();
                let spec = manifest::policy_of(&object).map(|_| rules::decode(&object.body["spec"]));
                match (spec, content_of(&object)) {
                    (Some(Err(found)), _) => {
                        let tell = |fault| format!("{}: {}", manifest.place, told(&name, fault));
                        faults.extend(found.into_iter().map(tell));
                    }
                    (_, Some((policy, _))) => there.push(policy),
                    (Some(Ok(_)), None) => there.push(name),
                    (None, None) => {}
                }
            }
        }
        if !faults.is_empty() {
            return Err(all(&faults));
        }
        let is_known = there.iter().any(|name| policies.iter().any(|policy| policy.name == *name));
        let found =
            if there.is_empty() { "no SidecarPolicy".to_owned() } else { format!("only `{}`", there.join("`, `")) };
        ensure!(is_known, "{}: {found} there; expected an earlier version of a given policy", names(&self.earlier));
        Ok(files)
    }
}

/// `policies`, which recognize the contents of the SidecarPolicies and ControllerRevisions in `files` in workloads.
pub(super) fn recognizing<'a>(policies: &Policies, files: impl IntoIterator<Item = &'a File>) -> Policies {
    let mut past: BTreeMap<String, Vec<Arc<Revision>>> = BTreeMap::new();
    for object in files.into_iter().flat_map(File::manifests).flat_map(Manifest::objects) {
        if let Some((policy, content)) = content_of(&object) {
            let known = past.entry(policy.clone()).or_default();
            let revision = Revision::new(&policy, known.len() as i64 + 1, content);
            known.insert(0, Arc::new(revision));
        }
    }
    let knowing = |policy: &Arc<Policy>| match past.remove(&policy.name) {
        Some(past) => Arc::new(Policy::clone(policy).knowing(past.into())),
        None => policy.clone(),
    };
    Policies::new(policies.iter().map(knowing).collect::<Vec<_>>())
}

/// The policy of which `object` has a content, and that.
fn content_of(object: &Object<'_>) -> Option<(String, Content)> {
    if manifest::policy_of(object).is_some() {
        let spec = rules::decode(&object.body["spec"]).ok()?;
        return Some((object.name().to_owned(), Content::of(&spec)?));
    }
    if object.kind != "ControllerRevision" {
        return None;
    }
    let stored = StoredRevision::parse(object.body)?.ok()?;
    Some((stored.policy, stored.revision.content.clone()))
}

/// The policy `object`.
///
/// # Errors
/// Its faults, each with its field.
fn parse(object: &Object<'_>, site: &Site) -> Result<Policy, Vec<(String, String)>> {
    let name = object.name();
    if let Some((field, wanted, found)) = manifest::misspelt(object) {
        let message = format!("SidecarPolicy `{name}`: {field} is `{found}`; expected `{wanted}`");
        return Err(vec![(field.to_owned(), message)]);
    }
    if name.is_empty() {
        let message = "SidecarPolicy without `metadata.name`; expected a name, e.g. `envoy`".to_owned();
        return Err(vec![("metadata.name".to_owned(), message)]);
    }
    let tell = |fault: Violation| (fault.field.clone(), told(name, fault));
    lint::parse(object.body, site).map_err(|violations| violations.into_iter().map(tell).collect())
}

/// The fault of the policy `name` for an error.
fn told(name: &str, fault: Violation) -> String {
    let Violation { code, field, message } = fault;
    format!("SidecarPolicy `{name}`: {code} {}: {field}: {message}", code.name())
}

/// `workload` as decisions see it: with the namespace in which it will be created, and the Namespace object from
/// `namespaces`, if the files have it.
pub(super) fn placed(workload: &Workload, namespace: &str, namespaces: &HashMap<String, Arc<Value>>) -> Workload {
    let mut workload = workload.clone();
    if workload.namespace().is_empty()
        && let Some(object) = workload.body.as_object_mut()
    {
        let metadata = object.entry("metadata").or_insert(Value::Null);
        if metadata.is_null() {
            *metadata = Value::Object(serde_json::Map::new());
        }
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
    }
    let known = namespaces.get(workload.namespace()).cloned();
    workload.within(known)
}

/// The pod that `workload` makes, and the decision of the policies that target pods but not the workload itself. None
/// if there are no such policies, or if the workload makes no pods.
pub(super) fn of_pods(policies: &Policies, workload: &Workload, site: &Site) -> Option<(Workload, Decision)> {
    let is_for_pods = |policy: &Policy| {
        let targets = |of: &dyn Fn(&Kind) -> bool| policy.kinds.iter().any(|kind| of(kind));
        targets(&Kind::is_pod) && !targets(&|kind| *kind == *workload.kind)
    };
    if !policies.iter().any(|policy| is_for_pods(policy)) {
        return None;
    }
    let pod = workload.made_pod()?;
    let mut decision = Decision::of(policies, &pod, site);
    decision.retain(is_for_pods);
    Some((pod, decision))
}

/// The patch of `decision` for `workload` in its file. The decision is about `placed`.
pub(super) fn plan(decision: &mut Decision, workload: &Workload, placed: &Workload) -> Patch {
    let patch = decision.plan(placed);
    if patch.is_empty() || workload.body["metadata"].is_object() {
        return patch;
    }
    // The file has no `metadata`, so the patch must create it.
    decision.clone().plan(workload)
}

/// The template hash in `workload`, if it is from another version of `policy`.
pub(super) fn other_version(policy: &Policy, workload: &Workload) -> Option<String> {
    let marker = policy.marker(workload)?;
    (marker.hash != policy.template_hash()).then_some(marker.hash)
}

/// The name of `workload` for output: `Deployment shop/web`.
pub(super) fn title(workload: &Workload) -> String {
    let name = match workload.name() {
        "" => match workload.body["metadata"]["generateName"].as_str() {
            Some(prefix) => format!("{prefix}*"),
            None => "(no name)".to_owned(),
        },
        name => name.to_owned(),
    };
    match workload.namespace() {
        "" => format!("{} {name}", workload.kind_name()),
        namespace => format!("{} {namespace}/{name}", workload.kind_name()),
    }
}

/// How documents are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DocumentFormat {
    /// Every document as YAML
    Yaml,
    /// Every document as JSON; several as one `List`
    Json,
}

/// The text of `files` after `change` has replaced some documents, and the notes of `change` on each file. Files are
/// processed in parallel.
///
/// Without `output`, unchanged documents keep their bytes.
pub(super) fn rewrite<N: Default + Send>(
    files: &[File],
    output: Option<DocumentFormat>,
    change: impl Fn(&Manifest, &mut N) -> Option<Value> + Sync,
) -> (String, Vec<N>) {
    let value = |(manifest, is_complete): (&Manifest, bool), notes: &mut N| {
        is_complete.then(|| change(manifest, notes)).flatten().unwrap_or_else(|| manifest.value.clone())
    };
    match output {
        None => {
            let (texts, notes) = each(files, |file, notes| file.rewrite(|manifest| change(manifest, notes)));
            (manifest::join(texts), notes)
        }
        Some(DocumentFormat::Yaml) => {
            let emit = |value| manifest::emit(&value, &manifest::Layout::YAML);
            let (documents, notes) = each(files, |file, notes| {
                file.documents().map(|document| emit(value(document, notes))).collect::<Vec<_>>()
            });
            (documents.concat().join("---\n"), notes)
        }
        Some(DocumentFormat::Json) => {
            let (values, notes) =
                each(files, |file, notes| file.documents().map(|document| value(document, notes)).collect::<Vec<_>>());
            let mut values: Vec<_> = values.into_iter().flatten().collect();
            let value = match values.len() {
                1 => values.remove(0),
                _ => serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": values }),
            };
            (manifest::emit(&value, &manifest::Layout::json(4)) + "\n", notes)
        }
    }
}

/// The results of `work` for each of `files`, and its notes.
fn each<R: Send, N: Default + Send>(files: &[File], work: impl Fn(&File, &mut N) -> R + Sync) -> (Vec<R>, Vec<N>) {
    let results = files.par_iter().map(|file| {
        let mut notes = N::default();
        (work(file, &mut notes), notes)
    });
    results.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(body: Value) -> Workload {
        Workload::new(Kind::find("", "pods").expect("pods"), body)
    }

    #[test]
    fn a_workload_gets_a_namespace_only_if_it_has_none() {
        for (body, expected) in [
            (json!({}), "given"),
            (json!({"metadata": null}), "given"),
            (json!({"metadata": {"namespace": "own"}}), "own"),
            (json!({"metadata": {"namespace": ""}}), "given"),
            (json!({"metadata": []}), ""),
            (json!([]), ""),
        ] {
            assert_eq!(placed(&pod(body), "given", &HashMap::new()).namespace(), expected);
        }
    }

    #[test]
    fn a_title_says_what_there_is() {
        assert_eq!(title(&pod(json!({"metadata": {"namespace": "a", "name": "b"}}))), "Pod a/b");
        assert_eq!(title(&pod(json!({"metadata": {"generateName": "b-"}}))), "Pod b-*");
        assert_eq!(title(&pod(json!({}))), "Pod (no name)");
    }
}
