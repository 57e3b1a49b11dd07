//! Initializers: the registration, the process that handles it, and the content that it injects.

use super::flags::Process;
use super::objects::{Inputs, Source, Spot, TYPOS, pass};
use super::steps::Old;
use super::{Draft, Weight, Work, rules};
use crate::manifest::{File, Lines, Location};
use serde_json::{Map, Value, json};
use std::rc::Rc;

/// Converts every initializer that is registered.
pub(super) fn convert(inputs: &Inputs<'_>, work: &mut Work<'_>) {
    let processes = processes(inputs, work);
    let contents = contents(inputs, work);
    let names = registered(inputs, work);
    let inventory =
        Inventory { processes: &processes, config_maps: &inputs.config_maps, contents: &contents, names: &names };
    let mut used = Used::default();
    for name in &names {
        inventory.convert(name, &mut used, work);
    }
    inventory.tell_what_is_left(&used, work);
}

/// An initializer that is registered, in one entry or several.
struct Registered<'a> {
    name: String,
    ways: rules::Ways,
    /// Its first place.
    spot: Spot,
    place: Location,
    configurations: Vec<&'a Source<'a>>,
}

/// A ConfigMap with content for pods.
struct Content<'a> {
    source: &'a Source<'a>,
    template: Map<String, Value>,
    spot: Spot,
}

/// What the manifests have for initializers.
struct Inventory<'a> {
    processes: &'a [Process],
    config_maps: &'a [Source<'a>],
    contents: &'a [Content<'a>],
    names: &'a [Registered<'a>],
}

/// What policies use of it.
#[derive(Default)]
struct Used<'a> {
    processes: Vec<&'a Process>,
    contents: Vec<&'a Content<'a>>,
}

fn processes(inputs: &Inputs<'_>, work: &mut Work<'_>) -> Vec<Process> {
    let mut processes = Vec::new();
    for (source, workload) in &inputs.workloads {
        match Process::of(source, workload, work) {
            Some(process) => processes.push(process),
            None => pass(source, work),
        }
    }
    processes
}

/// The initializers by name, because an object waits for a name, whichever entry added it.
fn registered<'a>(inputs: &'a Inputs<'a>, work: &mut Work<'_>) -> Vec<Registered<'a>> {
    let mut registered: Vec<Registered<'a>> = Vec::new();
    for source in &inputs.configurations {
        let entries = source.body["initializers"].as_array().map(Vec::as_slice).unwrap_or_default();
        if entries.is_empty() {
            let message = format!("{} has no `initializers` at its top level: it registers nothing", source.title());
            work.tell(Weight::Lost, source.spot.place("initializers"), message);
        }
        for (index, entry) in entries.iter().enumerate() {
            let path = format!("initializers[{index}]");
            let name = entry["name"].as_str().unwrap_or_default();
            let place = source.spot.place(&format!("{path}.name"));
            work.listed.push((name.to_owned(), source.name().to_owned()));
            let ways = rules::matched(&entry["rules"], &source.spot, &format!("{path}.rules"), work);
            if !entry["failurePolicy"].is_null() {
                let message = "`failurePolicy` of an initializer said what becomes of a create that is not answered; a policy's says what a \
                               working operator does: see docs/recovery.md";
                work.tell(Weight::Lost, source.spot.place(&format!("{path}.failurePolicy")), message);
            }
            match registered.iter_mut().find(|known| known.name == name) {
                Some(known) => {
                    known.ways.extend(ways);
                    known.configurations.push(source);
                }
                None => registered.push(Registered {
                    name: name.to_owned(),
                    ways,
                    spot: source.spot.clone(),
                    place,
                    configurations: vec![source],
                }),
            }
        }
    }
    registered
}

/// The ConfigMaps that have content for pods.
fn contents<'a>(inputs: &'a Inputs<'a>, work: &mut Work<'_>) -> Vec<Content<'a>> {
    let mut contents = Vec::new();
    for source in &inputs.config_maps {
        let told = work.findings.len();
        match Content::of(source, work) {
            Some(content) => contents.push(content),
            None if work.findings.len() > told => {}
            None => pass(source, work),
        }
    }
    contents
}

/// The key that the tutorials' initializer reads.
const KEY: &str = "config";
/// The lists that it may have, as named in a template. The tutorials' initializer reads the first two.
const LISTS: [&str; 3] = ["containers", "volumes", "initContainers"];

impl<'a> Content<'a> {
    fn of(source: &'a Source<'a>, work: &mut Work<'_>) -> Option<Self> {
        let data = source.body["data"].as_object()?;
        let first = data.get_key_value(KEY).into_iter();
        let rest = data.iter().filter(|(key, _)| *key != KEY);
        for (key, text) in first.chain(rest) {
            let text = text.as_str().filter(|text| key == KEY || looks_like_content(text)).unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            let place = source.spot.place(&format!("data.{key}"));
            let (value, spot) = match document(source, text, &place, work) {
                Ok(Some(document)) => document,
                Ok(None) => continue,
                Err((place, message)) => {
                    work.tell(Weight::Lost, place, message);
                    continue;
                }
            };
            if !value.keys().any(|field| list(field).is_some()) {
                continue;
            }
            if key != KEY {
                let message = format!("the tutorials' initializer reads `data.{KEY}`; taken from `data.{key}`");
                work.tell(Weight::Guessed, place, message);
            }
            let template = template(value, &spot, work);
            return Some(Self { source, template, spot });
        }
        None
    }
}

/// The list of a template with the name `field`, in any case.
fn list(field: &str) -> Option<&'static str> {
    LISTS.into_iter().find(|list| list.eq_ignore_ascii_case(field))
}

fn template(value: Map<String, Value>, spot: &Spot, work: &mut Work<'_>) -> Map<String, Value> {
    let mut template = Map::new();
    for (field, value) in value {
        match list(&field) {
            Some(_) if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => {}
            Some(list) => drop(template.insert(list.to_owned(), value)),
            None => {
                let message = format!(
                    "`{field}` is nothing that the tutorials' initializer reads: it had no effect, and is left out"
                );
                work.tell(Weight::Lost, spot.place(&field), message);
            }
        }
    }
    if template.contains_key("initContainers") {
        let message = "the tutorials' initializer does not read `initContainers`; the policy adds them";
        work.tell(Weight::Note, spot.place("initContainers"), message);
    }
    template
}

/// True if and only if `text` may be content, because ConfigMaps hold all sorts of texts.
fn looks_like_content(text: &str) -> bool {
    let text = text.to_lowercase();
    LISTS.iter().any(|list| text.contains(&list.to_lowercase()))
}

/// An object, with the places of its fields.
type Document = (Map<String, Value>, Spot);

/// The object in the text of a ConfigMap; none if there is no object. The text is at `place`.
fn document(
    source: &Source<'_>,
    text: &str,
    place: &Location,
    work: &mut Work<'_>,
) -> Result<Option<Document>, (Location, String)> {
    let begins = source.document.place.line;
    let key = source.document.text.lines().nth(place.line.saturating_sub(begins)).unwrap_or_default();
    // Only for a block, because its lines are lines of the file. Other texts have no lines of their own.
    let is_block = key.split_once(':').is_some_and(|(_, rest)| rest.trim_start().starts_with(['|', '>']));
    let below = |line: usize| Location { line: place.line + if is_block { line } else { 0 }, ..place.clone() };
    let file = File::parse(&place.file, text.as_bytes().to_vec()).map_err(|faults| {
        let (line, fault) = faults.first().map_or((0, ""), |fault| (fault.place.line, fault.message.as_str()));
        (below(line), format!("the text of {} cannot be read: {fault}", source.title()))
    })?;
    let mut manifests = file.manifests();
    let (Some(manifest), None) = (manifests.next(), manifests.next()) else { return Ok(None) };
    let mut manifest = manifest.clone();
    for twin in &manifest.twice {
        let message = format!("the key `{}` is there twice: the last one counts, as for the old initializer", twin.key);
        work.tell(Weight::Guessed, below(twin.place.line), message);
    }
    manifest.place = below(manifest.place.line);
    let spot = if is_block {
        Spot::Fields { lines: Rc::new(Lines::of(&manifest)), indexes: Vec::new(), prefix: "" }
    } else {
        Spot::Whole(place.clone())
    };
    Ok(manifest.value.as_object().map(|value| (value.clone(), spot)))
}

impl<'a> Inventory<'a> {
    /// Makes a policy for the initializer `of`.
    fn convert(&self, of: &Registered<'_>, used: &mut Used<'a>, work: &mut Work<'_>) {
        let known = used.processes.len();
        let process = self.process(of, used, work);
        let processes = used.processes[known..].iter().map(|process| process.handle.clone()).collect();
        let Some(content) = self.content(of, process, used, work) else { return };
        if of.ways.is_empty() {
            let message = format!("no rule of `{}` is left: no policy is made of it", of.name);
            return work.tell(Weight::Lost, of.place.clone(), message);
        }
        let targets = rules::targets(&of.ways, &of.place, work);
        let mut from: Vec<String> = vec![content.source.title()];
        from.extend(of.configurations.iter().map(|source| source.title()));
        from.dedup();
        from.extend(process.map(|process| process.title.clone()));
        let segment = of.name.split('.').next().unwrap_or_default().to_owned();
        work.drafts.push(Draft {
            name: segment,
            spec: spec(content, targets, process.and_then(|process| process.annotation.as_deref())),
            from,
            initializer: Some(of.name.clone()),
            old: Old::Initializer {
                configurations: of.configurations.iter().map(|source| source.name().to_owned()).collect(),
                processes,
                config_map: format!("configmap/{} -n {}", content.source.name(), content.source.namespace),
            },
            template: content.spot.clone(),
            rest: of.spot.clone(),
        });
    }

    /// The process that handles the name.
    fn process(&self, of: &Registered<'_>, used: &mut Used<'a>, work: &mut Work<'_>) -> Option<&'a Process> {
        let exact: Vec<_> = self.processes.iter().filter(|process| process.initializer == of.name).collect();
        if !exact.is_empty() {
            used.processes.extend(&exact);
            return Some(one_of(&exact, of, work));
        }
        let is_free = |process: &&Process| self.names.iter().all(|known| known.name != process.initializer);
        let free: Vec<_> = self.processes.iter().filter(is_free).collect();
        let near = nearest(&of.name, free.iter().copied(), |process| &process.initializer);
        let only = free.first().copied().filter(|_| free.len() == 1 && self.names.len() == 1);
        let Some(process) = near.or(only) else {
            if self.processes.is_empty() && !self.contents.is_empty() {
                let message = format!(
                    "the Deployment or Pod that answers to `{}` is not here: taken as one that injects everything that the rules match; give \
                     its manifest for its flags",
                    of.name
                );
                work.tell(Weight::Guessed, of.place.clone(), message);
            }
            return None;
        };
        let (place, default) = process.named_at();
        let message = format!(
            "no initializer answers to `{}`, so creates hung: {} ({place}) answers to `{}`{default}; taken as one, under the name that is registered",
            of.name, process.title, process.initializer
        );
        work.tell(Weight::Guessed, of.place.clone(), message);
        used.processes.push(process);
        Some(process)
    }

    fn content(
        &self,
        of: &Registered<'_>,
        process: Option<&Process>,
        used: &mut Used<'a>,
        work: &mut Work<'_>,
    ) -> Option<&'a Content<'a>> {
        let only = self.contents.first().filter(|_| self.contents.len() == 1);
        let Some(process) = process else {
            if let Some(only) = only.filter(|_| self.processes.is_empty()) {
                used.contents.push(only);
                return Some(only);
            }
            let content =
                if self.contents.is_empty() { format!(", and its ConfigMap with `data.{KEY}`") } else { String::new() };
            let message =
                format!("what `{}` injects is not known: give the manifest of its Deployment or Pod{content}", of.name);
            work.tell(Weight::Lost, of.place.clone(), message);
            return None;
        };
        let (place, default) = process.config_map_at();
        let is_named = |content: &&Content<'_>| content.source.name() == process.config_map;
        let is_it = |content: &&Content<'_>| is_named(content) && content.source.namespace == process.namespace;
        let exact: Vec<_> = self.contents.iter().filter(is_it).collect();
        if let Some(last) = last_of(&exact, work) {
            used.contents.extend(exact);
            return Some(last);
        }
        let other = self.contents.iter().find(is_named);
        let is_here = self.config_maps.iter().any(|source| source.name() == process.config_map);
        let near = || nearest(&process.config_map, self.contents.iter(), |content| content.source.name());
        // No suggestion for an existing ConfigMap without content, because its name is no misspelling.
        let guess = || near().or(only.filter(|_| self.names.len() == 1)).filter(|_| !is_here);
        let wanted = format!("ConfigMap {} in namespace `{}`{default}", process.config_map, process.namespace);
        let Some(content) = other.or_else(guess) else {
            let fault = if is_here {
                "in which nothing can be read that could be injected: expected `containers` or `volumes` in `data.config`"
            } else {
                "which is not here: give it with -f"
            };
            let message = format!("{} reads {wanted}, {fault}", process.title);
            work.tell(Weight::Lost, place, message);
            return None;
        };
        let found = content.source;
        let message = format!(
            "{} reads {wanted}; here is {} in namespace `{}`: taken as that",
            process.title,
            found.title(),
            found.namespace
        );
        work.tell(Weight::Guessed, place, message);
        used.contents.push(content);
        Some(content)
    }

    /// Reports what belongs to no policy.
    fn tell_what_is_left(&self, used: &Used<'_>, work: &mut Work<'_>) {
        let is_used = |process: &Process| used.processes.iter().any(|other| std::ptr::eq(*other, process));
        for process in self.processes.iter().filter(|process| !is_used(process)) {
            let (place, default) = process.named_at();
            let message = format!(
                "{} answers to `{}`{default}, which no InitializerConfiguration here lists: give it with -f, for the targets",
                process.title, process.initializer
            );
            work.tell(Weight::Lost, place, message);
        }
        let is_used = |content: &Content<'_>| used.contents.iter().any(|other| std::ptr::eq(*other, content));
        for content in self.contents.iter().filter(|content| !is_used(content)) {
            let missing = match (self.names.is_empty(), self.processes.is_empty()) {
                (true, true) => "give its InitializerConfiguration and its Deployment or Pod with -f",
                (true, false) => "give its InitializerConfiguration with -f",
                (false, true) => "give the Deployment or Pod that reads it with -f",
                (false, false) => "the `-configmap` of each names another",
            };
            let message = format!("{}: no initializer here injects it; {missing}", content.source.title());
            work.tell(Weight::Lost, content.source.spot.place(""), message);
        }
    }
}

/// The process to convert among `all` that handle the name: the first one that requires an annotation, because it injects
/// less.
fn one_of<'a>(all: &[&'a Process], of: &Registered<'_>, work: &mut Work<'_>) -> &'a Process {
    let does = |process: &'a Process| (&process.annotation, &process.config_map, &process.namespace);
    let first = all[0];
    if all.iter().all(|process| does(process) == does(first)) {
        return first;
    }
    let wants = all.iter().copied().find(|process| process.annotation.is_some());
    let taken = wants.unwrap_or(first);
    let titles: Vec<_> = all.iter().map(|process| format!("{} ({})", process.title, process.place)).collect();
    let why = if wants.is_some() { ", since it wants an annotation and so injects less" } else { ", the first" };
    let message = format!(
        "{} of the manifests answer to `{}`: {}; a cluster has one of them; taken as the one at {}{why}. Give only the one that ran",
        all.len(),
        of.name,
        titles.join(", "),
        taken.place
    );
    work.tell(Weight::Guessed, taken.place.clone(), message);
    taken
}

/// The ConfigMap to convert among `all` with one name and namespace: the last one, as after `kubectl apply`.
fn last_of<'a>(all: &[&'a Content<'a>], work: &mut Work<'_>) -> Option<&'a Content<'a>> {
    let (content, others) = all.split_last()?;
    if others.iter().any(|other| other.template != content.template) {
        let message = format!(
            "{} of the manifests are {} in namespace `{}`: taken is the last, as `kubectl apply` would leave it. Give only the one that was used",
            all.len(),
            content.source.title(),
            content.source.namespace
        );
        work.tell(Weight::Guessed, content.source.spot.place(""), message);
    }
    Some(content)
}

/// The one of `items` whose name `word` probably misspells.
fn nearest<'a, T>(word: &str, items: impl Iterator<Item = &'a T>, name: impl Fn(&'a T) -> &'a str) -> Option<&'a T> {
    let distances = items.map(|item| (strsim::damerau_levenshtein(word, name(item)), item));
    // Fewer differences for a short word, because more would match anything.
    let near = distances.filter(|(distance, _)| *distance <= TYPOS.min(word.len() / 5));
    near.min_by_key(|(distance, _)| *distance).map(|(_, item)| item)
}

/// The spec of a policy with the same effect.
fn spec(content: &Content<'_>, targets: Vec<Value>, annotation: Option<&str>) -> Map<String, Value> {
    let ends = |target: &Value| ["pods", "cronjobs"].iter().any(|resource| target["resource"] == *resource);
    let may_end = targets.iter().any(ends) && content.template.contains_key("containers");
    let mut spec = Map::new();
    if let Some(key) = annotation {
        let selector = json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] });
        spec.insert("annotationSelector".to_owned(), selector);
    }
    // Because the old initializer checked neither.
    spec.insert("hostNetworkPods".to_owned(), "Inject".into());
    if may_end {
        spec.insert("jobs".to_owned(), "Inject".into());
    }
    spec.insert("targets".to_owned(), targets.into());
    spec.insert("template".to_owned(), content.template.clone().into());
    spec
}

/// Reports the differences that every policy has from the tutorials' initializers.
pub(super) fn tell_differences(work: &mut Work<'_>) {
    let protected: Vec<&str> = work.site.protected_namespaces.iter().map(String::as_str).collect();
    let protected = format!("the old one reached {}; no policy does", protected.join(", "));
    let conflicts = "a workload that uses a name of the template differently is let through without it, with an event, where the old one \
                     overwrote it or left the create hanging; `failurePolicy: Fail` refuses it";
    let opt_out = "workloads may refuse by `scpol.dev/inject: \"false\"`; `optOut: Denied` takes that away";
    for message in [protected.as_str(), conflicts, opt_out] {
        work.tell(Weight::Differs, None, message);
    }
    let kept = "`hostNetworkPods: Inject`, and `jobs: Inject` on pods, keep what the old one did; without them, pods on the host's network and \
                pods that end by themselves are left out, which is safer";
    work.tell(Weight::Note, None, kept);
}
