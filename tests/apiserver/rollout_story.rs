//! A rollout in steps under random events, on a real server: users edit the policy and their workloads, workloads are not ready, and
//! the operator is killed. `SCPOL_CHAOS_SEED=n` repeats the events of that seed.
//!
//! Each Deployment has a twin in a namespace without policies, and each edit of a user is made to both. So the twin is what the user
//! wrote, in the words of the server.

use crate::chaos::dice::Dice;
use crate::chaos::is_everything;
use crate::commands::scpol;
use crate::prelude::*;
use crate::rollouts::{Controllers, namespaces, path_in, progressing, status, world};
use crate::runner;
use anyhow::anyhow;
use futures::FutureExt;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use libtest_mimic::Trial;
use sidecar_policy::inject::undo_anywhere;
use sidecar_policy::workload::{Kind, Workload};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// The seeds of `make test`.
const SEEDS: [u64; 2] = [1, 2];
/// The seeds of `make chaos`.
const ALL_SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// The number of random events.
const EVENTS: u64 = 20;
const NAMESPACES: [&str; 4] = ["canary", "blog", "shop", "web"];
/// The namespace of the twins.
const PLAIN: &str = "plain";
const POLICY: &str = "/apis/scpol.dev/v1alpha1/sidecarpolicies/envoy";
const ALL: &str = "/apis/apps/v1/deployments";
/// The containers that the policy may add.
const OURS: [&str; 2] = ["envoy", "extra"];
/// The time in which everything comes to its end.
const END: Duration = Duration::from_secs(120);

/// One test for each seed.
pub(crate) fn trials() -> Vec<Trial> {
    let chosen = std::env::var("SCPOL_CHAOS_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut seeds: Vec<u64> = if is_everything() { ALL_SEEDS.collect() } else { SEEDS.to_vec() };
    if let Some(seed) = chosen {
        seeds.retain(|fixed| !is_everything() && *fixed != seed);
        seeds.push(seed);
    }
    let trial = |seed| {
        runner::trial(format!("chaos::rollout_story seed {seed}"), move || {
            let told = move |error| anyhow!("SCPOL_CHAOS_SEED={seed} repeats this.\n{error:#}");
            play(seed).map(move |played| played.map_err(told)).boxed_local()
        })
    };
    seeds.into_iter().map(trial).collect()
}

/// What the policy adds.
#[derive(Clone, Debug, Default)]
struct Content {
    /// A label tells it from all others.
    edition: u64,
    image: u64,
    variable: u64,
    label: u64,
    /// A variable of the user's containers.
    of_app: u64,
    has_extra: bool,
    is_before: bool,
}

impl Content {
    fn template(&self) -> Value {
        let image = format!("envoy:{}", self.image);
        let env = json!([{ "name": "A", "value": self.variable.to_string() }]);
        let mut containers = vec![json!({ "name": "envoy", "image": image, "env": env })];
        if self.has_extra {
            containers.push(json!({ "name": "extra", "image": "extra:1", "env": env }));
        }
        let mut template = json!({
            "metadata": { "labels": { "mesh": self.edition.to_string(), "more": self.label.to_string() } },
            "containers": containers,
        });
        if self.of_app > 0 {
            template["env"] = json!([{ "name": "MESH", "value": self.of_app.to_string() }]);
        }
        template
    }

    fn position(&self) -> Value {
        json!({ "containers": if self.is_before { "Before" } else { "After" } })
    }
}

/// What the story knows.
#[derive(Default)]
struct Known {
    /// Each edit of the content begins another rollout.
    rollout: u64,
    /// The content of the policy.
    edition: u64,
    /// Whether nothing had that content before.
    is_fresh: bool,
    /// Every content so far, by edition.
    contents: BTreeMap<u64, Content>,
    /// The namespace of each workload.
    workloads: BTreeMap<String, &'static str>,
}

struct Story {
    world: World,
    dice: Dice,
    /// Held while a user edits a workload or the policy.
    known: Mutex<Known>,
    controllers: Controllers,
    /// What happened, for a failure.
    log: std::sync::Mutex<Vec<String>>,
    begun: Instant,
}

async fn play(seed: u64) -> Result<()> {
    let world = world(Version::NEWEST).await?;
    namespaces(&world, &NAMESPACES).await?;
    namespaces(&world, &[PLAIN]).await?;
    let controllers = Controllers::start(world.admin.clone(), Duration::from_millis(100));
    let story = Story {
        world,
        dice: Dice(seed),
        known: Mutex::default(),
        controllers,
        log: std::sync::Mutex::default(),
        begun: Instant::now(),
    };
    let played = tokio::select! {
        played = story.play() => played,
        Err(wrong) = story.watch() => Err(wrong),
    };
    let told = || story.log.lock().map(|log| log.join("\n")).unwrap_or_default();
    played.with_context(told)
}

impl Story {
    fn tell(&self, what: impl Into<String>) {
        let what = what.into();
        if let Ok(mut log) = self.log.lock() {
            log.push(format!("{:6.2} s  {}", self.begun.elapsed().as_secs_f64(), what));
        }
    }

    fn is_undone_by_itself(&self) -> bool {
        self.dice.falls(30, "on failure")
    }

    async fn play(&self) -> Result<()> {
        let mut operator = Some(Operator::ready(&self.world.cluster, &[]).await?);
        self.begin().await?;
        let mut lost = None;
        for event in 0..EVENTS {
            let below = |limit, what: &str| self.dice.below(limit, (event, what));
            if operator.is_none() && below(2, "start") == 0 {
                self.tell("the operator starts");
                operator = Some(Operator::ready(&self.world.cluster, &[]).await?);
            }
            match below(20, "what") {
                0..=4 => self.edit_policy(event).await?,
                5 => self.command("pause").await?,
                6 | 7 => self.command("resume").await?,
                8 | 9 => self.undo().await?,
                10 => self.delete(event).await?,
                11 | 12 => self.create(event).await?,
                13..=15 => self.edit(event).await?,
                16 if lost.is_none() => lost = self.lose(event).await?,
                16 => self.find(&mut lost).await?,
                17 => self.stick(event).await,
                _ => {
                    if let Some(alive) = operator.take() {
                        self.tell("the operator is killed");
                        alive.kill().await?;
                    }
                }
            }
            sleep(Duration::from_millis(100 + below(700, "pause"))).await;
        }
        self.controllers.unstick();
        self.find(&mut lost).await?;
        let operator = match operator {
            Some(operator) => operator,
            None => Operator::ready(&self.world.cluster, &[]).await?,
        };
        if self.is_undone_by_itself() {
            self.edit_policy(EVENTS).await?;
        }
        self.ends().await?;
        self.is_uninjected().await?;
        self.rests().await?;
        drop(operator);
        Ok(())
    }

    /// A complete rollout of the first content.
    async fn begin(&self) -> Result<()> {
        let content = Content::default();
        let on_failure = if self.is_undone_by_itself() { "Undo" } else { "Halt" };
        let engine = if self.dice.falls(50, "engine") { "Webhook" } else { "MutatingAdmissionPolicy" };
        self.tell(format!("{engine}, {on_failure}"));
        let rolling = json!({
            "maxUnavailable": 1 + self.dice.below(4, "most"),
            "progressDeadlineSeconds": 3,
            "onFailure": on_failure,
            "steps": [
                { "namespaces": ["canary"] }, { "pause": { "duration": "1s" } }, { "percent": 50 }, { "pause": {} }, { "percent": 75 },
            ],
        });
        let spec = json!({
            "engine": engine, "namespaces": NAMESPACES, "template": content.template(), "position": content.position(),
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": rolling },
        });
        self.known.lock().await.contents.insert(0, content);
        self.world.policy("envoy", spec).await?;
        // Another policy, whose content stays as it is.
        let mut log = sidecar("log");
        (log["engine"], log["namespaces"]) = (json!(engine), json!(NAMESPACES));
        self.world.policy("log", log).await?;
        in_force(&self.world.cluster, "envoy").await?;
        in_force(&self.world.cluster, "log").await?;
        for number in 0..8 {
            self.create(1000 + number).await?;
        }
        within(LIMIT, "the first content is complete", || async {
            Ok(progressing(&self.world, "envoy").await?.0 == "Complete")
        })
        .await
    }

    async fn edit_policy(&self, event: u64) -> Result<()> {
        let mut known = self.known.lock().await;
        let edition = known.contents.keys().last().copied().unwrap_or_default() + 1;
        let mut content = known.contents.get(&known.edition).cloned().unwrap_or_default();
        content.edition = edition;
        match self.dice.below(6, (event, "edit")) {
            0 => content.image = edition,
            1 => content.has_extra = !content.has_extra,
            2 => content.variable = edition,
            3 => content.label = edition,
            4 => content.of_app = if content.of_app > 0 { 0 } else { edition },
            _ => content.is_before = !content.is_before,
        }
        self.tell(format!("{content:?}"));
        let patch = json!([
            { "op": "replace", "path": "/spec/template", "value": content.template() },
            { "op": "add", "path": "/spec/position", "value": content.position() },
        ]);
        known.contents.insert(edition, content);
        (known.rollout, known.edition, known.is_fresh) = (known.rollout + 1, edition, true);
        self.world.patch(POLICY, &patch).await.map(drop)
    }

    async fn command(&self, command: &str) -> Result<()> {
        let (code, printed) = scpol(&self.world.cluster, &["rollout", command, "envoy"]).await?;
        self.tell(format!("{command}: {}", printed.trim()));
        ensure!(code == 0, "{command}: {code}: {printed}");
        Ok(())
    }

    async fn undo(&self) -> Result<()> {
        let mut known = self.known.lock().await;
        let (code, printed) = scpol(&self.world.cluster, &["rollout", "undo", "envoy"]).await?;
        // The operator may not have stored any other revision yet.
        ensure!(code == 0 || printed.contains("no earlier revision"), "undo: {code}: {printed}");
        let policy = request(&self.world.admin, "GET", POLICY, &Value::Null).await?;
        let edition = &policy["spec"]["template"]["metadata"]["labels"]["mesh"];
        let edition = edition.as_str().and_then(|text| text.parse().ok()).context("no edition")?;
        self.tell(format!("undo to edition {edition}: {}", printed.trim()));
        if known.edition != edition {
            (known.rollout, known.edition, known.is_fresh) = (known.rollout + 1, edition, false);
        }
        Ok(())
    }

    async fn create(&self, event: u64) -> Result<()> {
        let mut known = self.known.lock().await;
        let namespace = NAMESPACES[usize::try_from(event % 4)?];
        let name = format!("w{event}");
        self.tell(format!("create {namespace}/{name}"));
        let mut body = deployment(&name);
        if event.is_multiple_of(3) {
            body["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{ "name": "OWN", "value": "1" }]);
        }
        for namespace in [namespace, PLAIN] {
            let all = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
            self.world.create(&all, &body).await?;
        }
        known.workloads.insert(name, namespace);
        Ok(())
    }

    async fn delete(&self, event: u64) -> Result<()> {
        let mut known = self.known.lock().await;
        let Some((name, namespace)) = self.any(&known, event) else { return Ok(()) };
        // Each namespace keeps something to look at.
        if known.workloads.values().filter(|other| **other == namespace).count() < 2 {
            return Ok(());
        }
        self.tell(format!("delete {namespace}/{name}"));
        for namespace in [namespace, PLAIN] {
            self.world.delete(&path_in(namespace, &name)).await?;
        }
        known.workloads.remove(&name);
        Ok(())
    }

    /// A workload of this event.
    fn any(&self, known: &Known, event: u64) -> Option<(String, &'static str)> {
        let number = self.dice.below(known.workloads.len() as u64, (event, "workload"));
        known.workloads.iter().nth(usize::try_from(number).ok()?).map(|(name, namespace)| (name.clone(), *namespace))
    }

    /// A user edits a workload, or writes it anew from a manifest without the sidecar.
    async fn edit(&self, event: u64) -> Result<()> {
        let known = self.known.lock().await;
        let Some((name, namespace)) = self.any(&known, event) else { return Ok(()) };
        let app = |fields: Value| {
            let mut app = json!({ "name": "app" });
            for (field, value) in fields.as_object().into_iter().flatten() {
                app[field] = value.clone();
            }
            json!({ "spec": { "template": { "spec": { "containers": [app] } } } })
        };
        let edit = match self.dice.below(7, (event, "edit")) {
            0 => json!({ "spec": { "replicas": 1 + event % 3 } }),
            1 => app(json!({ "image": format!("nginx:{event}") })),
            2 => json!({ "metadata": { "annotations": { "why": event.to_string() } } }),
            3 => json!({ "spec": { "template": { "metadata": { "annotations": { "why": event.to_string() } } } } }),
            4 => app(json!({ "env": [{ "name": "MORE", "value": event.to_string() }] })),
            5 => {
                json!({ "spec": { "template": { "spec": { "containers": [{ "name": "own", "image": format!("own:{event}") }] } } } })
            }
            _ => {
                self.tell(format!("write {namespace}/{name} anew"));
                let twin = self.world.get(&path_in(PLAIN, &name)).await?.context("no twin")?;
                let metadata = json!({ "name": name, "labels": twin["metadata"]["labels"], "annotations": twin["metadata"]["annotations"] });
                let body = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": twin["spec"] });
                request(&self.world.creator, "PUT", &path_in(namespace, &name), &body).await?;
                return Ok(());
            }
        };
        self.tell(format!("edit {namespace}/{name}: {edit}"));
        for namespace in [namespace, PLAIN] {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
            let api = Api::<DynamicObject>::namespaced_with(self.world.creator.clone(), namespace, &kind);
            api.patch(&name, &PatchParams::default(), &Patch::Strategic(&edit)).await?;
        }
        Ok(())
    }

    /// The pods of a workload are gone, as with their node. Returns the path of the workload.
    async fn lose(&self, event: u64) -> Result<Option<String>> {
        let known = self.known.lock().await;
        let Some((name, namespace)) = self.any(&known, event) else { return Ok(None) };
        self.tell(format!("{namespace}/{name} loses its pods"));
        let place = path_in(namespace, &name);
        self.available(&place, 0).await?;
        Ok(Some(place))
    }

    /// They are there again.
    async fn find(&self, lost: &mut Option<String>) -> Result<()> {
        let Some(place) = lost.take() else { return Ok(()) };
        let _known = self.known.lock().await;
        let Some(stored) = self.world.get(&place).await? else { return Ok(()) };
        self.tell(format!("{place} has its pods again"));
        self.available(&place, stored["spec"]["replicas"].as_i64().unwrap_or(1)).await
    }

    async fn available(&self, place: &str, replicas: i64) -> Result<()> {
        let patch = json!([{ "op": "add", "path": "/status/availableReplicas", "value": replicas }]);
        self.world.patch(&format!("{place}/status"), &patch).await.map(drop)
    }

    /// A workload that does not become ready after its next change, or those that did not so far do.
    async fn stick(&self, event: u64) {
        let known = self.known.lock().await;
        if self.controllers.unstick() {
            return self.tell("everything becomes ready");
        }
        let Some((name, namespace)) = self.any(&known, event) else { return };
        self.tell(format!("{namespace}/{name} does not become ready"));
        self.controllers.stick(&name);
    }

    /// Looks all the time whether what must hold always does. It ends with what does not.
    async fn watch(&self) -> Result<()> {
        let mut reached: (u64, BTreeSet<&str>) = (0, BTreeSet::new());
        loop {
            sleep(Duration::from_millis(50)).await;
            let (rollout, edition, updated) = {
                let known = self.known.lock().await;
                let updated = self.judge(&known).await?;
                (known.rollout, known.edition, if known.is_fresh { updated } else { BTreeSet::new() })
            };
            let mut now = if reached.0 == rollout { reached.1.clone() } else { BTreeSet::new() };
            let mut lost = BTreeSet::new();
            let mut outside = BTreeSet::new();
            for namespace in NAMESPACES {
                let all = format!("/apis/apps/v1/namespaces/{namespace}/deployments?dryRun=All");
                let created = request(&self.world.creator, "POST", &all, &deployment("probe")).await?;
                match edition_of(&created) {
                    // The webhook of an operator that was killed does not answer.
                    None => {}
                    Some(has) if has == edition => drop(now.insert(namespace)),
                    Some(_) if now.contains(namespace) => drop(lost.insert(namespace)),
                    Some(_) => drop(outside.insert(namespace)),
                }
            }
            let known = self.known.lock().await;
            if known.rollout != rollout {
                continue;
            }
            if !lost.is_empty() && !self.is_going_back().await? {
                bail!("new workloads of {lost:?} had edition {edition} and have it no longer");
            }
            let early: Vec<_> = updated.iter().filter(|namespace| outside.contains(**namespace)).collect();
            if !early.is_empty() && !self.is_going_back().await? {
                bail!("workloads of {early:?} have edition {edition}, and new ones there do not");
            }
            now.retain(|namespace| !lost.contains(namespace));
            if now != reached.1 {
                self.tell(format!("edition {edition} is in {now:?}"));
            }
            reached = (rollout, now);
        }
    }

    /// Whether the rollout has failed and goes back.
    async fn is_going_back(&self) -> Result<bool> {
        Ok(self.is_undone_by_itself() && status(&self.world, "envoy").await?["halted"] == true)
    }

    /// Checks that every workload is what its user wrote and one content of the policy, as a whole. Returns the namespaces that have
    /// workloads with the content of now.
    async fn judge(&self, known: &Known) -> Result<BTreeSet<&'static str>> {
        let list = request(&self.world.admin, "GET", ALL, &Value::Null).await?;
        let items = list["items"].as_array().context("a list")?;
        let find = |namespace: &str, name: &str| {
            items
                .iter()
                .find(|item| item["metadata"]["namespace"] == namespace && item["metadata"]["name"] == name)
                .with_context(|| format!("{namespace}/{name} is gone"))
        };
        let mut updated = BTreeSet::new();
        for (name, namespace) in &known.workloads {
            let (stored, twin) = (find(namespace, name)?, find(PLAIN, name)?);
            let (own, is_marked) = without(stored)?;
            ensure!(own == users(twin), "{namespace}/{name} is not what its user wrote: {own}\n{}", users(twin));
            self.is_whole(known, stored).with_context(|| format!("{namespace}/{name}: {stored}"))?;
            if is_marked && edition_of(stored) == Some(known.edition) {
                updated.insert(*namespace);
            }
        }
        Ok(updated)
    }

    /// Checks that the workload has one content of the policy, exactly once, or none.
    fn is_whole(&self, known: &Known, stored: &Value) -> Result<()> {
        let empty = Vec::new();
        let containers = stored["spec"]["template"]["spec"]["containers"].as_array().unwrap_or(&empty);
        let there = containers.iter().filter(|item| OURS.iter().any(|name| item["name"] == *name));
        let field = |item: &Value| json!([item["name"], item["image"], item["env"]]);
        let mut there: Vec<Value> = there.map(field).collect();
        let mut wanted = Vec::new();
        if let Some(edition) = edition_of(stored) {
            let template = known.contents.get(&edition).context("nobody wrote that edition")?.template();
            wanted.extend(template["containers"].as_array().into_iter().flatten().map(field));
            let label = &stored["spec"]["template"]["metadata"]["labels"]["more"];
            ensure!(*label == template["metadata"]["labels"]["more"], "the label is not that of edition {edition}");
        }
        there.sort_by_key(Value::to_string);
        wanted.sort_by_key(Value::to_string);
        ensure!(there == wanted, "{there:?} instead of {wanted:?}");
        Ok(())
    }

    /// Waits until everything has the content of the policy.
    async fn ends(&self) -> Result<()> {
        self.tell("the end begins");
        let deadline = Instant::now() + END;
        self.command("resume").await?;
        loop {
            sleep(Duration::from_millis(300)).await;
            let (reason, message) = progressing(&self.world, "envoy").await?;
            if reason == "Paused" || reason == "Halted" {
                self.command("resume").await?;
            }
            let policy = status(&self.world, "envoy").await?;
            let known = self.known.lock().await;
            let mut has_all = reason == "Complete" && policy["halted"] != true;
            let mut those = Vec::new();
            for (name, namespace) in &known.workloads {
                let stored = self.world.get(&path_in(namespace, name)).await?.context("it is gone")?;
                if edition_of(&stored) != Some(known.edition) {
                    has_all = false;
                    those.push(format!("{namespace}/{name}: {:?}", edition_of(&stored)));
                }
            }
            if has_all {
                self.tell("everything has it");
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "not everything has edition {}: {reason}: {message}: {policy}: {those:?}",
                known.edition
            );
        }
    }

    /// Checks that `scpol uninject` gives what the user wrote.
    async fn is_uninjected(&self) -> Result<()> {
        let known = self.known.lock().await;
        for (name, namespace) in &known.workloads {
            let stored = self.world.get(&path_in(namespace, name)).await?.context("it is gone")?;
            let twin = self.world.get(&path_in(PLAIN, name)).await?.context("no twin")?;
            let file = self.world.cluster.dir().join("stored.json");
            std::fs::write(&file, stored.to_string())?;
            let file = file.to_str().context("it is text")?;
            let (code, printed) = scpol(&self.world.cluster, &["uninject", "-f", file, "-o", "json"]).await?;
            ensure!(code == 0, "{namespace}/{name}: {printed}");
            let own: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
            ensure!(users(&own) == users(&twin), "{namespace}/{name}: {printed}\n{twin}");
        }
        Ok(())
    }

    /// Checks that nothing is written any more.
    async fn rests(&self) -> Result<()> {
        let writes = || {
            let audit = self.world.cluster.audit();
            let ours = audit.iter().filter(|event| event["user"]["username"] == User::Operator.name());
            let writes = ours.filter(|event| !matches!(event["verb"].as_str(), Some("get" | "list" | "watch")));
            let writes = writes.filter(|event| event["objectRef"]["resource"] != "leases");
            // An event or a status may be late.
            let of_status = |event: &&Value| {
                event["objectRef"]["resource"] == "events" || event["objectRef"]["subresource"] == "status"
            };
            let (late, other): (Vec<_>, Vec<_>) = writes.partition(of_status);
            (late.len(), other.len())
        };
        sleep(Duration::from_secs(1)).await;
        let first = writes();
        let mut last = (first, Instant::now());
        let deadline = Instant::now() + LIMIT;
        while last.1.elapsed() < Duration::from_secs(3) {
            sleep(Duration::from_millis(300)).await;
            let now = writes();
            ensure!(now.1 == first.1, "{} writes after the end", now.1 - first.1);
            if now != last.0 {
                last = (now, Instant::now());
            }
            ensure!(Instant::now() < deadline, "there are more and more writes: {first:?}, {now:?}");
        }
        Ok(())
    }
}

/// The content of the policy that a Deployment has, by its label.
fn edition_of(object: &Value) -> Option<u64> {
    object["spec"]["template"]["metadata"]["labels"]["mesh"].as_str()?.parse().ok()
}

/// What a user writes of a Deployment.
fn users(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({ "labels": metadata["labels"], "annotations": metadata["annotations"], "spec": object["spec"] })
}

/// What is left of a Deployment without what markers list, and whether it has one.
fn without(object: &Value) -> Result<(Value, bool)> {
    let kind = Kind::find("apps", "deployments").context("it is built in")?;
    let Some(undone) = undo_anywhere(&Workload::new(kind, object.clone()), &[]) else {
        return Ok((users(object), false));
    };
    let left: Vec<String> = undone.leftovers.iter().map(ToString::to_string).collect();
    ensure!(left.is_empty(), "{left:?} in {object}");
    Ok((users(&undone.body), true))
}
