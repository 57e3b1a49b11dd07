//! `scpol rollout plan`: what a rollout would do to each workload. It decides as the operator does, before anything is
//! switched on, and changes nothing.

use super::revisions::{Contents, PolicyRevisions};
use super::{live, switch_on, time, uid};
use crate::api::RESTARTED_AT_KEY;
use crate::cli::files::{self, Reading};
use crate::cli::live::{Inventory, Within};
use crate::cli::output::{Output, Printing, counted, remark};
use crate::cli::policies::{self, short_name, unknown};
use crate::cli::site::SiteOptions;
use crate::cli::{Cluster, End};
use crate::cluster::object::Object;
use crate::cluster::pages::Pages;
use crate::content::Content;
use crate::inject::marker;
use crate::policy::extent::Extent;
use crate::policy::{Policies, Policy, PolicyRef, Site};
use crate::refit::{self, Asked, Carries, Goal, MAKERS, NextAction};
use crate::roller::act::RESIZE;
use crate::roller::covers;
use crate::rollout::record::{Commands, FirstSeen};
use crate::rollout::steps;
use crate::rollout::stored::Begin;
use crate::workload::{Kind, Workload};
use crate::workloads::census;
use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use kube::api::ListParams;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args, Debug)]
pub(super) struct PlanOptions {
    /// The policy [default: the one in the file]
    #[arg(value_name = "POLICY", value_parser = short_name, required_unless_present = "files")]
    policy: Option<String>,
    /// The policy as it will be: files, folders, or - for standard input (repeatable) [default: as it is stored]
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// What would be done to a workload.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
enum PlannedAction {
    /// A patch of the pod template. The controller of the workload then makes its pods anew.
    Patch,
    /// A patch of the running pod.
    InPlace,
    /// An eviction of the pod.
    Evict,
    /// Nothing, although it lacks the revision.
    Leave,
}

impl PlannedAction {
    fn word(self) -> &'static str {
        match self {
            PlannedAction::Patch => "patch template",
            PlannedAction::InPlace => "in place",
            PlannedAction::Evict => "evict",
            PlannedAction::Leave => "leave",
        }
    }
}

/// The decision on one workload.
#[derive(Clone, Debug, PartialEq)]
struct Decided {
    action: PlannedAction,
    code: Option<String>,
    why: String,
}

/// One line of the plan.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct PlanLine {
    /// The step whose turn it is, from 1; none without steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<usize>,
    namespace: String,
    #[serde(skip)]
    order: Arc<Kind>,
    kind: String,
    name: String,
    action: PlannedAction,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    why: String,
}

#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct PlanSums {
    matched: usize,
    up_to_date: usize,
    patch: usize,
    in_place: usize,
    evict: usize,
    left: usize,
}

impl PlanSums {
    fn add(&mut self, action: Option<PlannedAction>) {
        self.matched += 1;
        *match action {
            None => &mut self.up_to_date,
            Some(PlannedAction::Patch) => &mut self.patch,
            Some(PlannedAction::InPlace) => &mut self.in_place,
            Some(PlannedAction::Evict) => &mut self.evict,
            Some(PlannedAction::Leave) => &mut self.left,
        } += 1;
    }

    fn told(&self) -> String {
        let parts = [
            (self.up_to_date, "up to date"),
            (self.patch, "by a patch of the template"),
            (self.in_place, "in place"),
            (self.evict, "by eviction"),
            (self.left, "left as they are"),
        ];
        let parts = parts.into_iter().filter(|(number, _)| *number > 0);
        let parts: Vec<_> = parts.map(|(number, word)| format!("{number} {word}")).collect();
        let matched = counted(self.matched, "workload matches", "workloads match");
        if parts.is_empty() { matched } else { format!("{matched}: {}", parts.join(", ")) }
    }
}

/// What decisions need.
struct Deciding<'a> {
    policy: &'a Arc<Policy>,
    /// All policies, with this one as it will be.
    policies: &'a Policies,
    site: &'a Site,
    contents: &'a Contents,
    /// Whether the server serves `pods/resize`.
    can_resize: bool,
    restarted: Option<Timestamp>,
    /// The controllers whose own pod template has the sidecar, by UID.
    carriers: &'a HashMap<String, String>,
}

impl Deciding<'_> {
    /// What would be done to `workload`, the parsed `object`. None if the policy does not match it, `Some(None)` if it is up
    /// to date.
    fn decide(&self, workload: &Workload, object: &Object) -> Option<Option<Decided>> {
        if !census::is_matched(workload, &self.policy.reference(), self.policies, self.site) || !object.is_initialized()
        {
            return None;
        }
        let owner = workload.controller().and_then(|owner| owner["uid"].as_str());
        let asked = Asked {
            restarted: self.restarted,
            pod_update: self.policy.rolling.as_ref().map(|rolling| rolling.pod_update).unwrap_or_default(),
            can_resize: self.can_resize,
            carrier: owner.and_then(|owner| self.carriers.get(owner)).map(String::as_str),
        };
        let from = self.contents.latest_first();
        let goal = Goal { to: self.policy, policies: self.policies, site: self.site };
        let (action, why) = match refit::next_action(workload, from, goal, &asked) {
            NextAction::UpToDate => return Some(None),
            NextAction::Leave(left) => {
                let code = Some(left.cause.code().to_string());
                return Some(Some(Decided { action: PlannedAction::Leave, code, why: left.message }));
            }
            NextAction::PatchTemplate(_) | NextAction::RestartTemplate(_) => (PlannedAction::Patch, self.has(workload)),
            NextAction::InPlace { .. } => (PlannedAction::InPlace, self.has(workload)),
            NextAction::Evict { why } => (PlannedAction::Evict, why),
        };
        Some(Some(Decided { action, code: None, why }))
    }

    /// What `workload` has of the policy, or else why it is touched.
    fn has(&self, workload: &Workload) -> String {
        if let Some((name, _)) = self.policy.replaced_markers(&self.policy.view(workload)).next() {
            return format!("it has the sidecar of SidecarPolicy `{name}`, whose place it takes");
        }
        match refit::carries(workload, self.policy, self.site) {
            Carries::Other(hash) => match self.contents.all_by_marker(&hash).next() {
                Some(from) => format!("it has revision {}", from.number),
                None => format!("it has the template {hash}, which no stored revision has"),
            },
            Carries::Nothing => "it has no sidecar of the policy".to_owned(),
            Carries::Unreadable => "its marker is unreadable".to_owned(),
            Carries::This => "`scpol rollout restart` asks for it".to_owned(),
        }
    }

    /// The lines of the plan, in order, and their sums.
    async fn all(&self, inventory: &Inventory<'_>, turns: &Turns) -> Result<(Vec<PlanLine>, PlanSums)> {
        let (mut lines, mut sums) = (Vec::new(), PlanSums::default());
        for kind in &self.policy.kinds {
            let look = |object: Object, workload: Workload| {
                let decided = self.decide(&workload, &object)?;
                Some(decided.map(|decided| turns.line(decided, &workload)))
            };
            let take = |line: Option<PlanLine>| {
                sums.add(line.as_ref().map(|line| line.action));
                lines.extend(line);
            };
            inventory.each(kind, look, take).await?;
        }
        in_order(&mut lines);
        Ok((lines, sums))
    }
}

pub(super) async fn run(options: PlanOptions, out: &mut impl Write) -> Result<End> {
    let client = live::connect(&options.cluster).await?;
    let site = options.site.site()?;
    let given = match options.files.as_slice() {
        [] => None,
        files => Some(given(files, options.policy.as_deref(), &site)?),
    };
    let stored = policies::stored(&client).await?;
    let known = policies::known(&stored, &site);
    let policy = match given {
        Some(given) => given,
        None => in_cluster(options.policy.as_deref().unwrap_or_default(), &stored, &known)?,
    };
    let others = known.policies.iter().filter(|other| other.name != policy.name).cloned();
    let policies = Policies::new(others.chain([policy.clone()]));
    let server = live::offers(&client, policies.kinds()).await?;
    let site = options.site.on(site, &server);
    let object = stored.iter().find(|object| object.name() == policy.name);
    let revisions = PolicyRevisions::read(&client, &site.operator_namespace, &policy.name, object.map(uid)).await?;
    // What is stored becomes a revision as soon as the operator may store some.
    let now = known.policies.get(&policy.reference());
    let contents = Contents::new(&policy.name, &revisions, now.and_then(|stored| Content::of(&stored.spec)));
    let namespaces = live::namespaces(&client, None).await.context("cannot read the Namespaces")?;
    let deciding = Deciding {
        policy: &policy,
        policies: &policies,
        site: &site,
        contents: &contents,
        can_resize: server.known_minor().is_none_or(|minor| minor >= RESIZE),
        restarted: restarted(object, &revisions),
        carriers: &carriers(&client, &policy).await?,
    };
    let hold = steps_hold(&policy, &revisions, now.and_then(|stored| stored.revision()));
    let turns = if hold { Turns::of(&policy, &site, &namespaces) } else { Turns::default() };
    let inventory = Inventory { client: &client, server: &server, namespaces: &namespaces, within: &options.within };
    let (lines, sums) = deciding.all(&inventory, &turns).await?;
    let fields = || json!({ "policy": policy.name, "sums": sums, "items": lines });
    options.printing.output.report("RolloutPlan", fields, out, |out| {
        options.printing.line(format_args!("{}: {}", policy.name, sums.told()), out)?;
        write(&lines, &turns, &options.printing, out)
    })?;
    if options.printing.output == Output::Table {
        let has_steps = policy.rolling.as_ref().is_some_and(|rolling| !rolling.steps.is_empty());
        if has_steps && !hold {
            remark(
                "The steps do not hold this time: there is no other revision that workloads could keep until their turn.",
            );
        }
        why_not(&policy, &revisions).into_iter().for_each(remark);
    }
    Ok(End::Fine)
}

/// The time of the last restart that counts, of those that the stored policy and its `revisions` name.
fn restarted(policy: Option<&Object>, revisions: &PolicyRevisions) -> Option<Timestamp> {
    let asked = policy.and_then(|policy| time(&policy.value(), RESTARTED_AT_KEY));
    let recorded = revisions.0.iter().filter_map(|stored| stored.record.ahead.restarted);
    FirstSeen::of(asked, recorded, Timestamp::now()).map(|seen| seen.at).or(asked)
}

/// The policy in `files`: the one called `name`, or the only one.
fn given(files: &[PathBuf], name: Option<&str>, site: &Site) -> Result<Arc<Policy>> {
    let found = files::policies(files, Reading::PLAIN, site, "-f")?;
    let mut all = found.iter();
    match (name, all.next(), all.next()) {
        (Some(name), ..) => found
            .get(&PolicyRef::of_cluster(name))
            .cloned()
            .with_context(|| format!("-f has no SidecarPolicy `{name}`")),
        (None, Some(only), None) => Ok(only.clone()),
        (None, ..) => bail!("-f has several policies: name the one to plan"),
    }
}

/// The stored policy `name`.
fn in_cluster(name: &str, stored: &[Object], known: &policies::KnownPolicies) -> Result<Arc<Policy>> {
    if let Some(found) = known.policies.get(&PolicyRef::of_cluster(name)) {
        return Ok(found.clone());
    }
    match known.invalid.iter().find(|invalid| invalid.name == name) {
        Some(invalid) => {
            let faults = invalid.violations.iter();
            let faults: Vec<_> =
                faults.map(|fault| format!("{} {} {}", fault.code, fault.field, fault.message)).collect();
            Err(files::all(&faults).context(format!("SidecarPolicy `{name}` is not valid")))
        }
        None => Err(unknown(name, stored)),
    }
}

/// The controllers whose own pod template has the sidecar of `policy`, such as `ReplicaSet/web-5d4f`, by UID; none if it targets no pods.
async fn carriers(client: &Client, policy: &Policy) -> Result<HashMap<String, String>> {
    let key = marker::key(&policy.name);
    let mut carriers = HashMap::new();
    let targets_pods = policy.kinds.iter().any(|kind| kind.is_pod());
    for (group, kind, plural) in MAKERS.into_iter().filter(|_| targets_pods) {
        let resource = live::resource(group, "v1", kind, plural);
        let look = |object: Object| {
            let body = object.value();
            if !body["spec"]["template"]["metadata"]["annotations"][key.as_str()].is_null() {
                let uid = body["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                carriers.insert(uid, format!("{kind}/{}", object.name()));
            }
        };
        let pages = Pages::new(live::api(client, &resource, None), ListParams::default()).large();
        pages.each(look).await.with_context(|| format!("cannot list {plural}"))?;
    }
    Ok(carriers)
}

/// Whether the rollout of the content of `policy` goes in its steps. `stored` is the hash of the content of the stored policy.
fn steps_hold(policy: &Policy, revisions: &PolicyRevisions, stored: Option<&str>) -> bool {
    let last = revisions
        .0
        .last()
        .filter(|last| policy.revision() == Some(last.revision.hash.as_str()) && !last.record.progress.is_replaced);
    match last {
        Some(last) => last.record.reached.is_some(),
        // The operator stores that content as soon as it may store some.
        None if revisions.0.is_empty() && stored.is_some() && stored != policy.revision() => true,
        None => Begin::of(policy, &revisions.0, Commands::default(), Timestamp::now())
            .is_some_and(|begin| begin.record.reached.is_some()),
    }
}

/// At which step of a rollout the turn of each workload comes.
#[derive(Default)]
struct Turns {
    /// What each step and those before it have.
    extents: Vec<Extent>,
}

impl Turns {
    fn of(policy: &Policy, site: &Site, namespaces: &HashMap<String, Arc<Value>>) -> Self {
        let steps = policy.rolling.as_ref().map(|rolling| &rolling.steps[..]).unwrap_or_default();
        let covered = namespaces.iter().filter(|(name, object)| covers(policy, site, name, object));
        let covered = covered.map(|(name, object)| (name.clone(), object.clone())).collect();
        Self { extents: steps::extents(steps, &covered) }
    }

    /// The step of `workload`, from 1; none without steps. What no step names comes after the last.
    fn step(&self, workload: &Workload) -> Option<usize> {
        let last = self.extents.len();
        (last > 0).then(|| 1 + self.extents.iter().position(|extent| extent.has(workload)).unwrap_or(last))
    }

    fn line(&self, decided: Decided, workload: &Workload) -> PlanLine {
        PlanLine {
            step: self.step(workload),
            namespace: workload.namespace().to_owned(),
            order: workload.kind.clone(),
            kind: workload.kind_name().to_owned(),
            name: workload.name().to_owned(),
            action: decided.action,
            code: decided.code,
            why: decided.why,
        }
    }
}

/// Sorts `lines` as the operator takes them, if all are available: what is not, comes first in its step.
fn in_order(lines: &mut [PlanLine]) {
    lines.sort_by(|a, b| (a.step, &a.namespace, &a.order, &a.name).cmp(&(b.step, &b.namespace, &b.order, &b.name)));
}

fn write(lines: &[PlanLine], turns: &Turns, printing: &Printing, out: &mut impl Write) -> Result<()> {
    let cells = |line: &PlanLine| {
        let why = line.code.as_ref().map_or(line.why.clone(), |code| format!("{code}: {}", line.why));
        [line.namespace.clone(), line.kind.clone(), line.name.clone(), line.action.word().to_owned(), why]
    };
    if turns.extents.is_empty() {
        return printing.section(["NAMESPACE", "KIND", "NAME", "ACTION", "WHY"], lines.iter().map(cells), out);
    }
    let rows = lines.iter().map(|line| {
        let step =
            line.step.filter(|step| *step <= turns.extents.len()).map_or("last".to_owned(), |step| step.to_string());
        let [namespace, kind, name, action, why] = cells(line);
        [step, namespace, kind, name, action, why]
    });
    printing.section(["STEP", "NAMESPACE", "KIND", "NAME", "ACTION", "WHY"], rows, out)
}

/// Why none of it happens now.
fn why_not(policy: &Policy, revisions: &PolicyRevisions) -> Option<String> {
    if policy.rolling.is_none() {
        let command = switch_on(&policy.name);
        return Some(format!("Nothing of this happens until `spec.updateStrategy.type` is `RollingUpdate`: {command}"));
    }
    if !policy.is_enforced() {
        return Some("Nothing of this happens while the policy is suspended or only audits.".to_owned());
    }
    let resume = format!("scpol rollout resume {}", policy.name);
    let last = revisions.0.last().filter(|last| policy.revision() == Some(last.revision.hash.as_str()));
    if let Some(halted) = last.and_then(|last| last.record.progress.halted.as_ref()) {
        return Some(format!(
            "Nothing of this happens until `{resume}`, because the rollout is halted: {}",
            halted.message
        ));
    }
    let is_paused = policy.spec.is_paused();
    is_paused.then(|| format!("Nothing of this happens until `{resume}`: `spec.updateStrategy.paused` is true."))
}

#[cfg(test)]
mod tests {
    use super::super::revisions::tests::{content, of, stored};
    use super::*;
    use std::collections::BTreeSet;

    fn policy(image: &str, more: Value) -> Arc<Policy> {
        let mut object = json!({
            "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": "envoy" },
            "spec": {
                "targets": [{ "group": "apps", "resource": "deployments" }, { "group": "", "resource": "pods" }],
                "template": content(image).template,
            },
        });
        if let (Some(spec), Value::Object(more)) = (object["spec"].as_object_mut(), more) {
            spec.extend(more);
        }
        Arc::new(Policy::parse(&object, &site()).unwrap())
    }

    fn site() -> Site {
        Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
    }

    /// A workload after the injection of `by`.
    fn workload(kind: (&str, &str), mut body: Value, by: Option<&Arc<Policy>>) -> (Workload, Object) {
        body["metadata"]["name"] = json!("web");
        body["metadata"]["namespace"] = json!("shop");
        body["metadata"]["uid"] = json!("u");
        body["metadata"]["resourceVersion"] = json!("1");
        let kind = Kind::find(kind.0, kind.1).unwrap();
        let mut workload = Workload::new(kind, body).within(Some(Arc::new(json!({ "metadata": { "name": "shop" } }))));
        if let Some(by) = by {
            let policies = Policies::new([by.clone()]);
            let patch = crate::decision::Decision::of(&policies, &workload, &site()).plan(&workload);
            workload = workload.with_body(workload.patched(&patch));
        }
        let object = serde_json::from_value(workload.body.clone()).unwrap();
        (workload, object)
    }

    fn deployment(by: Option<&Arc<Policy>>) -> (Workload, Object) {
        let body = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "app", "image": "app" }] } } } });
        workload(("apps", "deployments"), body, by)
    }

    fn pod(by: Option<&Arc<Policy>>, owner: Value) -> (Workload, Object) {
        let mut body = json!({ "metadata": {}, "spec": { "containers": [{ "name": "app", "image": "app" }] } });
        body["metadata"]["ownerReferences"] = Value::Array(vec![owner]);
        workload(("", "pods"), body, by)
    }

    fn decided(
        to: &Arc<Policy>,
        known: &[i64],
        workload: &(Workload, Object),
        carriers: &HashMap<String, String>,
    ) -> String {
        let policies = Policies::new([to.clone()]);
        let revisions = known.iter().map(|number| stored(*number, &content(&format!("envoy:{number}")), None));
        let contents = Contents::new("envoy", &of(revisions), None);
        let site = site();
        let deciding = Deciding {
            policy: to,
            policies: &policies,
            site: &site,
            contents: &contents,
            can_resize: true,
            restarted: None,
            carriers,
        };
        match deciding.decide(&workload.0, &workload.1) {
            None => "not matched".to_owned(),
            Some(None) => "up to date".to_owned(),
            Some(Some(Decided { action, code, why })) => {
                format!("{}: {}", action.word(), code.map_or(why, |code| code))
            }
        }
    }

    #[test]
    fn each_workload_gets_the_action_of_the_operator_and_the_reason() {
        let (one, two) = (policy("envoy:1", json!({})), policy("envoy:2", json!({})));
        let recreate =
            json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "podUpdate": "Recreate" } } });
        let recreate = policy("envoy:2", recreate);
        let elsewhere = policy("envoy:2", json!({ "namespaces": ["other"] }));
        let owner = json!({ "kind": "ReplicaSet", "name": "web-1", "uid": "rs", "controller": true });
        let (none, carrier) = (HashMap::new(), HashMap::from([("rs".to_owned(), "ReplicaSet/web-1".to_owned())]));
        for (to, known, workload, carriers, expected) in [
            (&two, &[1, 2][..], deployment(Some(&two)), &none, "up to date"),
            (&two, &[1, 2], deployment(Some(&one)), &none, "patch template: it has revision 1"),
            (&two, &[], deployment(Some(&one)), &none, "leave: SCP0411"),
            (&two, &[], deployment(None), &none, "patch template: it has no sidecar of the policy"),
            (&elsewhere, &[1], deployment(Some(&one)), &none, "not matched"),
            (&two, &[1], pod(Some(&one), owner.clone()), &none, "in place: it has revision 1"),
            (&two, &[1], pod(Some(&one), owner.clone()), &carrier, "leave: SCP0418"),
            (&two, &[1], pod(Some(&one), json!({ "kind": "Node", "controller": true })), &none, "leave: SCP0412"),
            (
                &recreate,
                &[1],
                pod(Some(&one), owner.clone()),
                &none,
                "evict: `spec.updateStrategy.rollingUpdate.podUpdate` is `Recreate`",
            ),
            (&two, &[1], pod(None, owner.clone()), &none, "evict: it does not carry the template"),
        ] {
            assert_eq!(decided(to, known, &workload, carriers), expected);
        }
    }

    #[test]
    fn a_plan_that_waits_for_a_person_says_so() {
        let rolling = |more: Value| {
            let mut strategy = json!({ "type": "RollingUpdate" });
            json_patch::merge(&mut strategy, &more);
            policy("envoy:2", json!({ "updateStrategy": strategy }))
        };
        let mut halted = stored(2, &content("envoy:2"), None);
        let at = Timestamp::UNIX_EPOCH;
        halted.record.progress.halted = Some(crate::rollout::record::Halted { at, message: "it broke".into() });
        let revisions = of([halted]);
        let why = why_not(&rolling(json!({})), &revisions).unwrap();
        assert!(why.contains("scpol rollout resume envoy") && why.ends_with("is halted: it broke"), "{why}");
        let why = why_not(&rolling(json!({ "paused": true })), &PolicyRevisions::default()).unwrap();
        assert!(why.contains("`spec.updateStrategy.paused` is true"), "{why}");
        let other = policy("envoy:3", json!({ "updateStrategy": { "type": "RollingUpdate" } }));
        assert_eq!(why_not(&other, &revisions), None, "another content begins a rollout of its own");
    }

    #[test]
    fn steps_hold_where_another_revision_is_to_go_from() {
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "steps": [{ "namespaces": ["a"] }] } });
        let policy = policy("envoy:2", json!({ "updateStrategy": strategy }));
        let [one, two] = ["envoy:1", "envoy:2"].map(content);
        let hold = |stored: Vec<_>| steps_hold(&policy, &of(stored), None);
        assert!(!hold(Vec::new()), "the first revision");
        assert!(hold(vec![stored(1, &one, Some(1))]), "a new one");
        assert!(
            steps_hold(&policy, &PolicyRevisions::default(), Some(&one.hash())),
            "an edit of one that is not stored yet"
        );
        assert!(!hold(vec![stored(1, &two, None)]), "the first one, stored already");
        assert!(!hold(vec![stored(1, &one, Some(1)), stored(2, &two, None)]), "one that began before there were steps");
    }

    #[test]
    fn the_turn_of_a_workload_comes_with_the_first_step_that_has_it() {
        let canary = json!({ "matchLabels": { "track": "canary" } });
        let steps = json!([
            { "percentOfWorkloads": 30 }, { "workloadSelector": canary }, { "namespaces": ["b"] },
            { "percentOfWorkloads": 60 },
        ]);
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": { "steps": steps } });
        let policy = policy("envoy:1", json!({ "updateStrategy": strategy }));
        let namespaces = ["a", "b"].map(|name| (name.to_owned(), Arc::new(json!({ "metadata": { "name": name } }))));
        let turns = Turns::of(&policy, &site(), &HashMap::from(namespaces));
        let mut seen = BTreeSet::new();
        for number in 0..40 {
            for (namespace, track, others) in [("a", "canary", 2), ("b", "", 3), ("a", "", 4)] {
                let (mut workload, _) = deployment(None);
                let name = format!("web-{number}");
                workload.body["metadata"] =
                    json!({ "namespace": namespace, "name": name, "labels": { "track": track } });
                let bucket = crate::policy::extent::bucket(&workload);
                let expected = match bucket {
                    0..30 => 1,
                    60.. if others == 4 => 5,
                    _ => others,
                };
                assert_eq!(turns.step(&workload), Some(expected), "{namespace} {track} {bucket}");
                seen.insert(expected);
            }
        }
        assert_eq!(seen, BTreeSet::from([1, 2, 3, 4, 5]));
    }

    #[test]
    fn the_order_is_that_of_the_steps_then_of_namespaces_kinds_and_names() {
        let steps = json!([{ "namespaces": ["canary-*"] }, { "pause": {} }, { "namespaces": ["*-b"] }]);
        let policy = policy(
            "envoy:1",
            json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "steps": steps } } }),
        );
        let names = ["a", "shop-b", "canary-a", "canary-b", "kube-system"];
        let namespaces = names.map(|name| (name.to_owned(), Arc::new(json!({ "metadata": { "name": name } }))));
        let turns = Turns::of(&policy, &site(), &HashMap::from(namespaces));
        let of = |turns: &Turns, namespace: &str, name: &str, track: &str| {
            let (mut workload, _) = deployment(None);
            workload.body["metadata"] = json!({ "namespace": namespace, "name": name, "labels": { "track": track } });
            turns.step(&workload)
        };
        assert_eq!(names.map(|name| of(&turns, name, "web", "")), [Some(4), Some(3), Some(1), Some(1), Some(4)]);
        let decided = Decided { action: PlannedAction::Patch, code: None, why: String::new() };
        let mut lines: Vec<PlanLine> = ["a", "shop-b", "canary-b", "canary-a"]
            .into_iter()
            .flat_map(|namespace| {
                let at = |(mut workload, _): (Workload, Object)| {
                    workload.body["metadata"]["namespace"] = json!(namespace);
                    turns.line(decided.clone(), &workload)
                };
                [at(pod(None, json!({}))), at(deployment(None))]
            })
            .collect();
        in_order(&mut lines);
        let told: Vec<_> = lines.iter().map(|line| format!("{}/{}", line.namespace, line.kind)).collect();
        let kinds = if *lines[0].order < *lines[1].order {
            [&lines[0].kind, &lines[1].kind]
        } else {
            [&lines[1].kind, &lines[0].kind]
        };
        let expected = ["canary-a", "canary-b", "shop-b", "a"]
            .iter()
            .flat_map(|namespace| kinds.map(|kind| format!("{namespace}/{kind}")));
        assert_eq!(told, expected.collect::<Vec<_>>());
    }

    #[test]
    fn sums_leave_out_what_is_zero() {
        let mut sums = PlanSums::default();
        assert_eq!(sums.told(), "0 workloads match");
        for action in [None, Some(PlannedAction::Evict), Some(PlannedAction::Evict)] {
            sums.add(action);
        }
        assert_eq!(sums.told(), "3 workloads match: 1 up to date, 2 by eviction");
    }
}
