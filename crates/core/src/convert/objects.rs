//! The objects of the input, with their places.

use super::{Weight, Work, injectors};
use crate::manifest::{File, Kinds, Lines, Location, Manifest, Object};
use crate::outside::escaped;
use crate::workload::Workload;
use serde_json::Value;
use std::rc::Rc;

/// The input, sorted by its use.
#[derive(Default)]
pub(super) struct Inputs<'a> {
    pub(super) configurations: Vec<Source<'a>>,
    pub(super) config_maps: Vec<Source<'a>>,
    pub(super) presets: Vec<Source<'a>>,
    pub(super) workloads: Vec<(Source<'a>, Workload)>,
    pub(super) carriers: Vec<Carrier<'a>>,
}

/// A workload or a Namespace with something for an injector of others.
pub(super) struct Carrier<'a> {
    pub(super) source: Source<'a>,
    /// The path of the pod's metadata; none for a Namespace.
    pub(super) pod: Option<String>,
}

impl<'a> Carrier<'a> {
    fn of(source: &Source<'a>, object: &Object<'a>, workload: Option<&Workload>) -> Option<Self> {
        // Because ReplicaSets and custom resources have pods, too.
        let is_like_most = || source.body.pointer("/spec/template/spec/containers").is_some_and(Value::is_array);
        let pod = match workload.and_then(|workload| workload.kind.template_path()) {
            Some(path) if path.is_empty() => Some("metadata".to_owned()),
            Some(path) => Some(format!("{path}.metadata")),
            None if object.kind == "Namespace" && object.api_version == "v1" => None,
            None if is_like_most() => Some("spec.template.metadata".to_owned()),
            None => return None,
        };
        let carrier = Self { source: source.clone(), pod };
        carrier.metadata().iter().any(|(_, metadata)| injectors::is_meant(metadata)).then_some(carrier)
    }

    /// The metadata of its pods, and then its own, each with its path.
    pub(super) fn metadata(&self) -> Vec<(&str, &'a Value)> {
        let mut paths: Vec<&str> = self.pod.iter().map(String::as_str).chain(["metadata"]).collect();
        paths.dedup();
        let of = |path: &str| path.split('.').fold(self.source.body, |value, field| &value[field]);
        paths.into_iter().map(|path| (path, of(path))).collect()
    }
}

/// An object of the input.
#[derive(Clone)]
pub(super) struct Source<'a> {
    pub(super) body: &'a Value,
    kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) spot: Spot,
    pub(super) document: &'a Manifest,
    /// Whether it is a [`Carrier`].
    is_carrier: bool,
}

/// An object with the places of its fields.
#[derive(Clone)]
pub(super) enum Spot {
    /// In a document: under `prefix`, in the object at the indexes.
    Fields { lines: Rc<Lines>, indexes: Vec<usize>, prefix: &'static str },
    /// All in one place.
    Whole(Location),
}

impl Spot {
    /// The place of the field `path`, or of the nearest field around it.
    pub(super) fn place(&self, path: &str) -> Location {
        match self {
            Spot::Fields { lines, indexes, prefix } => {
                let dot = if prefix.is_empty() || path.is_empty() || path.starts_with('[') { "" } else { "." };
                lines.place(indexes, &format!("{prefix}{dot}{path}"))
            }
            Spot::Whole(place) => place.clone(),
        }
    }

    /// The same for the part under `field`.
    pub(super) fn within(&self, field: &'static str) -> Self {
        match self {
            Spot::Fields { lines, indexes, .. } => {
                Spot::Fields { lines: lines.clone(), indexes: indexes.clone(), prefix: field }
            }
            Spot::Whole(place) => Spot::Whole(place.clone()),
        }
    }
}

impl<'a> Source<'a> {
    pub(super) fn name(&self) -> &'a str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Its name in a sentence: `ConfigMap sidecar-initializer`.
    pub(super) fn title(&self) -> String {
        format!("{} {}", escaped(self.kind), escaped(self.name()))
    }
}

/// The kinds that are converted, each with the end of its group.
const KINDS: [(&str, &str); 3] =
    [("InitializerConfiguration", "admissionregistration.k8s.io"), ("PodPreset", "settings.k8s.io"), ("ConfigMap", "")];
/// The largest number of misspelt letters in a word.
pub(super) const TYPOS: usize = 3;
const WEBHOOKS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

impl<'a> Inputs<'a> {
    /// Sorts the objects of `files`, and reports those without use.
    pub(super) fn of(files: &'a [File], namespace: &'a str, work: &mut Work<'_>) -> Self {
        let mut inputs = Self::default();
        for document in files.iter().flat_map(File::manifests) {
            let lines = Rc::new(Lines::of(document));
            for object in document.objects() {
                let spot = Spot::Fields { lines: lines.clone(), indexes: document.indexes(object.body), prefix: "" };
                let namespace = object.body["metadata"]["namespace"].as_str().unwrap_or(namespace);
                let source =
                    Source { body: object.body, kind: object.kind, namespace, spot, document, is_carrier: false };
                inputs.sort(source, &object, work);
            }
        }
        inputs
    }

    fn sort(&mut self, mut source: Source<'a>, object: &Object<'a>, work: &mut Work<'_>) {
        let workload = Kinds::default().workload(object);
        if let Some(carrier) = Carrier::of(&source, object, workload.as_ref()) {
            source.is_carrier = true;
            self.carriers.push(carrier);
        }
        if let Some(workload) = workload {
            return self.workloads.push((source, workload));
        }
        if object.api_version.is_empty() && object.kind.is_empty() {
            let message = "no object of Kubernetes (it has neither `apiVersion` nor `kind`): nothing to convert";
            return work.tell(Weight::Note, source.spot.place(""), message);
        }
        if object.api_version.is_empty() && KINDS.iter().all(|(kind, _)| *kind != object.kind) {
            let message = format!("{} has no `apiVersion`, so its kind is unknown: add it", source.title().trim());
            return work.tell(Weight::Lost, source.spot.place(""), message);
        }
        if let Some(kind) = misspelt(object) {
            let message = format!(
                "the kind `{}` is misspelt, and no server has taken it: write `{kind}`; read as that",
                object.kind
            );
            work.tell(Weight::Guessed, source.spot.place("kind"), message);
            source.kind = kind;
        }
        match source.kind {
            "InitializerConfiguration" => self.configurations.push(source),
            "PodPreset" => self.presets.push(source),
            "ConfigMap" => self.config_maps.push(source),
            kind if WEBHOOKS.contains(&kind) => {
                let message = format!(
                    "{}: the server of a webhook decides what it injects, and no manifest shows it: docs/migrate.md has a table of fields",
                    source.title()
                );
                work.tell(Weight::Lost, source.spot.place("kind"), message);
            }
            _ => pass(&source, work),
        }
    }
}

/// Reports that `source` is not converted, unless an injector of others is asked for by it.
pub(super) fn pass(source: &Source<'_>, work: &mut Work<'_>) {
    if source.is_carrier {
        return;
    }
    let message = format!("{}: nothing to convert", source.title().trim());
    work.tell(Weight::Note, source.spot.place(""), message);
}

/// The kind that `object` probably misspells.
fn misspelt(object: &Object<'_>) -> Option<&'static str> {
    if KINDS.iter().any(|(kind, _)| *kind == object.kind) {
        return None;
    }
    let near = KINDS.iter().filter(|(kind, group)| {
        object.group() == *group
            && strsim::damerau_levenshtein(&object.kind.to_lowercase(), &kind.to_lowercase()) <= TYPOS
    });
    near.map(|(kind, _)| *kind).next()
}
