//! `scpol rollout remove`: removes the content of a policy that is no longer in effect from the pod templates of workloads, and evicts
//! running pods that have it although the template of their controller does not. Jobs are never changed: they end.

mod evict;
mod pods;

use self::evict::Evicting;
use self::pods::PodReader;
use super::edit::{self, DryRun, Patched};
use super::revisions::{Contents, PolicyRevisions};
use super::{live, uid};
use crate::api::code::Code;
use crate::cli::files::{self, Reading};
use crate::cli::live::{Inventory, Within};
use crate::cli::output::{Printing, counted, remark};
use crate::cli::policies::{self, is_programmed, short_name, status, unknown};
use crate::cli::signals::{Signals, Stop, until};
use crate::cli::site::SiteOptions;
use crate::cli::{Cluster, End};
use crate::cluster::api::Api;
use crate::cluster::client::call;
use crate::cluster::object::Object;
use crate::content::Content;
use crate::inject::marker;
use crate::policy::{Policies, Policy, PolicyRef, Site};
use crate::refit::{self, TemplateChange};
use crate::roller::EVICTIONS;
use crate::rollout::removal::Removal;
use crate::workload::{KINDS, Kind, Workload};
use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args, Debug)]
pub(super) struct RemoveOptions {
    /// The policy, which is deleted or suspended
    #[arg(value_name = "POLICY", value_parser = short_name)]
    policy: String,
    /// The policy as it was: files, folders, or - for standard input (repeatable). A deleted policy has no stored revisions; its
    /// content is recognized by these
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Remove it. Without this flag it is only listed
    #[arg(short, long)]
    yes: bool,
    /// Evict at most this many pods a minute
    #[arg(long, value_name = "N", default_value_t = EVICTIONS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rollouts: u32,
    /// Only show what would be done
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_value_t, default_missing_value = "client")]
    dry_run: DryRun,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    site: SiteOptions,
}

/// The result for one workload.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
enum RemovalResult {
    WouldRemove,
    Removed,
    WouldEvict,
    Evicted,
    /// Its content stays.
    Left,
    Failed,
}

impl RemovalResult {
    fn word(self) -> &'static str {
        match self {
            RemovalResult::WouldRemove => "would be removed",
            RemovalResult::Removed => "removed",
            RemovalResult::WouldEvict => "would be evicted",
            RemovalResult::Evicted => "evicted",
            RemovalResult::Left => "left",
            RemovalResult::Failed => "failed",
        }
    }
}

/// One line of the report.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct RemovalLine {
    namespace: String,
    kind: String,
    name: String,
    result: RemovalResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

impl RemovalLine {
    fn of(workload: &Workload, result: RemovalResult, code: Option<Code>, why: String) -> Self {
        Self {
            namespace: workload.namespace().to_owned(),
            kind: workload.kind_name().to_owned(),
            name: workload.name().to_owned(),
            result,
            code: code.map(|code| code.to_string()),
            why,
        }
    }

    fn cells(&self) -> [String; 5] {
        let why = self.code.as_ref().map_or(self.why.clone(), |code| format!("{code}: {}", self.why));
        [self.namespace.clone(), self.kind.clone(), self.name.clone(), self.result.word().to_owned(), why]
    }
}

/// A workload with the marker of the policy.
struct Marked {
    workload: Workload,
    api: Api<Object>,
}

pub(super) async fn run(options: RemoveOptions, out: &mut impl Write) -> Result<End> {
    let name = options.policy.as_str();
    let client = live::connect(&options.cluster).await?;
    let site = options.site.site()?;
    let stored = policies::stored_or_none(&client).await?;
    let object = stored.iter().find(|object| object.name() == name);
    if let Some(object) = object {
        check_not_in_force(object)?;
    }
    let known = policies::known(&stored, &site);
    let given = given(&options, &site)?;
    let of = PolicyRef::of_cluster(name);
    let forms: Vec<&Arc<Policy>> =
        [&given, &known.policies].into_iter().filter_map(|policies| policies.get(&of)).collect();
    let kinds = kinds(&known.policies, &forms);
    let server = live::offers(&client, kinds.iter()).await?;
    let site = options.site.on(site, &server);
    let revisions = PolicyRevisions::read(&client, &site.operator_namespace, name, object.map(uid)).await?;
    let contents = Contents::new(name, &revisions, forms.iter().rev().filter_map(|form| Content::of(&form.spec)));
    let namespaces = live::namespaces(&client, None).await.context("cannot read the Namespaces")?;
    let inventory = Inventory { client: &client, server: &server, namespaces: &namespaces, within: &Within::default() };
    let removing = Removing { name, contents: &contents, policies: &known.policies, inventory: &inventory };
    let (marked, paused) = removing.marked(&kinds).await?;
    let dry_run = if options.yes { options.dry_run } else { DryRun::Client };
    // Before anything is changed, so that a missing right is told first.
    let pods = async || removing.pods(forms.first().copied(), options.rollouts, &paused).await;
    let first = pods().await?;
    let (lines, unread) = removing.run(&marked, first, pods, dry_run, &Signals::first()?).await;
    let printing = &options.printing;
    printing.output.report(
        "RolloutRemoval",
        || json!({ "items": lines }),
        out,
        |out| {
            let nothing = format!("No pod template and no running pod has content of {name}.");
            printing.list(
                nothing,
                ["NAMESPACE", "KIND", "NAME", "RESULT", "WHY"],
                lines.iter().map(RemovalLine::cells),
                out,
            )
        },
    )?;
    if let Some(error) = unread {
        return Err(error.context("no pod was evicted; give the command again to go on"));
    }
    if lines.is_empty() && revisions.0.is_empty() && forms.is_empty() {
        // It may be deleted, with everything that it left.
        remark(format_args!("warning: {}", unknown(name, &stored)));
    }
    if let Some(would) = would(&lines).filter(|_| !options.yes && options.dry_run == DryRun::None) {
        bail!("nothing was done: give `--yes` to {would}");
    }
    let is_left = lines.iter().any(|line| matches!(line.result, RemovalResult::Left | RemovalResult::Failed));
    Ok(End::fine_if(!is_left))
}

/// The policies of `-f`.
fn given(options: &RemoveOptions, site: &Site) -> Result<Policies> {
    let given = match options.files.as_slice() {
        [] => return Ok(Policies::default()),
        files => files::policies(files, Reading::PLAIN, site, "-f")?,
    };
    if given.get(&PolicyRef::of_cluster(&options.policy)).is_none() {
        bail!("-f has no SidecarPolicy `{}`", options.policy);
    }
    Ok(given)
}

/// What would be done; none if that is nothing.
fn would(lines: &[RemovalLine]) -> Option<String> {
    let count = |fate: RemovalResult| lines.iter().filter(|line| line.result == fate).count();
    let parts = [
        (count(RemovalResult::WouldRemove), "change", ("workload", "workloads")),
        (count(RemovalResult::WouldEvict), "evict", ("pod", "pods")),
    ];
    let parts = parts.iter().filter(|(count, ..)| *count > 0);
    let parts: Vec<_> =
        parts.map(|(count, verb, (one, many))| format!("{verb} {}", counted(*count, one, many))).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}

/// What a removal needs.
struct Removing<'a> {
    name: &'a str,
    contents: &'a Contents,
    policies: &'a Policies,
    inventory: &'a Inventory<'a>,
}

impl<'a> Removing<'a> {
    /// The workloads of `kinds` whose pod templates have the content, in order. And the UIDs of those that are paused, without it.
    ///
    /// # Errors
    /// If a kind cannot be listed.
    async fn marked(&self, kinds: &BTreeSet<Arc<Kind>>) -> Result<(Vec<Marked>, HashSet<String>)> {
        let (mut marked, mut paused) = (Vec::new(), HashSet::new());
        for kind in kinds {
            let Some(resource) = self.inventory.server.resource(kind) else { continue };
            let is_of_interest = |workload: &Workload| is_marked(workload, self.name) || refit::is_paused(workload);
            let take = |workload: Workload| {
                if is_marked(&workload, self.name) {
                    let api = live::api(self.inventory.client, &resource, Some(workload.namespace()));
                    marked.push(Marked { workload, api });
                } else {
                    paused.insert(workload.uid().to_owned());
                }
            };
            self.inventory.each(kind, |_, workload| Some(workload).filter(is_of_interest), take).await?;
        }
        marked.sort_by(|a, b| key(&a.workload).cmp(&key(&b.workload)));
        Ok((marked, paused))
    }

    /// The running pods with the content. They are evicted at the pace of the policy as it was, or else at that of the defaults. `paused`
    /// are the UIDs of workloads as in [`Self::marked`].
    ///
    /// # Errors
    /// If they, or what makes them, cannot be listed.
    async fn pods<'p>(
        &self,
        form: Option<&Arc<Policy>>,
        per_minute: u32,
        paused: &'p HashSet<String>,
    ) -> Result<Evicting<'p>>
    where
        'a: 'p,
    {
        let settings = form.and_then(|form| form.spec.rolling_update()).unwrap_or_default();
        let begun = live::server_time(self.inventory.client).await;
        let ahead = begun.duration_since(Timestamp::now());
        let removal = Removal::new(self.name, settings, per_minute as usize, begun);
        let mut reader = PodReader::new(self.inventory, self.name, paused, removal.revision());
        let first = reader.read().await?;
        Ok(Evicting::new(reader, removal, first, ahead))
    }

    /// The change that removes the content from `workload`.
    ///
    /// # Errors
    /// Why it stays.
    fn change(&self, workload: &Workload) -> Result<TemplateChange, (Code, String)> {
        let unreadable = || (Code::ContentEdited, format!("annotation `{}` is unreadable", marker::key(self.name)));
        let marker = marker::read(workload, self.name).ok_or_else(unreadable)?;
        let mut left = None;
        for from in self.contents.all_by_marker(&marker.hash) {
            match refit::removal(workload, from, self.policies) {
                Ok(change) => return Ok(change),
                Err(why) => left = left.or(Some((why.cause.code(), why.message))),
            }
        }
        Err(left.unwrap_or_else(|| {
            let message =
                format!("no known revision has the template {}; give the policy as it was with -f", marker.hash);
            (Code::RevisionUnknown, message)
        }))
    }

    /// Removes the content from the templates of `marked`, and evicts the pods that were read `first`, or `again` after a change, until
    /// `stop`. Returns what became of each, and why pods could not be read again: then none is evicted.
    async fn run<'p>(
        &self,
        marked: &[Marked],
        first: Evicting<'p>,
        again: impl AsyncFn() -> Result<Evicting<'p>>,
        dry_run: DryRun,
        stop: &Stop,
    ) -> (Vec<RemovalLine>, Option<anyhow::Error>) {
        let mut lines = self.all(marked, dry_run, stop).await;
        let (mut evicting, mut unread) = (first, None);
        if lines.iter().any(|line| line.result == RemovalResult::Removed) {
            tokio::select! {
                biased;
                () = stop.clone() => {}
                read = again() => match read {
                    Ok(read) => evicting = read,
                    Err(error) => unread = Some(error),
                },
            }
        }
        lines.extend(match dry_run {
            DryRun::None if unread.is_none() => evicting.run(stop).await,
            DryRun::None => evicting.stays(),
            DryRun::Client | DryRun::Server => evicting.would(),
        });
        (lines, unread)
    }

    /// Removes the content from workloads, one after the other, until `stop`. Returns what became of each.
    async fn all(&self, marked: &[Marked], dry_run: DryRun, stop: &Stop) -> Vec<RemovalLine> {
        let mut lines = until(stop, marked.iter().map(|found| self.remove(found, dry_run)), 1).await;
        let rest = marked.iter().skip(lines.len());
        let untouched = |found: &Marked| {
            RemovalLine::of(&found.workload, RemovalResult::Left, None, "it has not been changed".to_owned())
        };
        lines.extend(rest.map(untouched));
        lines
    }

    /// Removes the content from one workload.
    async fn remove(&self, found: &Marked, dry_run: DryRun) -> RemovalLine {
        let mut workload = found.workload.clone();
        for _ in 0..edit::TRIES {
            let change = match self.change(&workload) {
                Ok(change) => change,
                Err((code, why)) => return RemovalLine::of(&workload, RemovalResult::Left, Some(code), why),
            };
            let kept: Vec<String> = change.kept.iter().map(ToString::to_string).collect();
            match edit::send(&found.api, workload.name(), change.patch, dry_run).await {
                Patched::Done if dry_run == DryRun::None => {
                    return RemovalLine::of(&workload, RemovalResult::Removed, None, kept.join("; "));
                }
                Patched::Done => return RemovalLine::of(&workload, RemovalResult::WouldRemove, None, kept.join("; ")),
                Patched::Failed(error) => {
                    return RemovalLine::of(&workload, RemovalResult::Failed, None, format!("cannot patch: {error}"));
                }
                Patched::Changed => {}
            }
            match call(found.api.get_opt(workload.name())).await {
                Ok(Some(object)) => workload = self.inventory.workload(&workload.kind, &object),
                Ok(None) => {
                    return RemovalLine::of(&workload, RemovalResult::Removed, None, "it has been deleted".to_owned());
                }
                Err(error) => {
                    return RemovalLine::of(&workload, RemovalResult::Failed, None, format!("cannot get it: {error}"));
                }
            }
            if !is_marked(&workload, self.name) {
                return RemovalLine::of(
                    &workload,
                    RemovalResult::Removed,
                    None,
                    "it has been changed meanwhile".to_owned(),
                );
            }
        }
        RemovalLine::of(&workload, RemovalResult::Failed, None, "it changes all the time; try again".to_owned())
    }
}

fn key(workload: &Workload) -> (&str, &Arc<Kind>, &str) {
    (workload.namespace(), &workload.kind, workload.name())
}

/// Checks that the stored policy `object` adds nothing to new workloads.
///
/// # Errors
/// If it does, with what to do.
fn check_not_in_force(object: &Object) -> Result<()> {
    let (name, value) = (object.name(), object.value());
    let spec = &value["spec"];
    let is_enforced = spec["suspend"] != true && spec["mode"] != "Audit";
    if is_enforced && value["metadata"]["deletionTimestamp"].is_null() {
        bail!(
            "SidecarPolicy `{name}` is in effect: its sidecars would come back; delete it, or set `spec.suspend` to true first"
        );
    }
    if is_programmed(&status(object)) {
        bail!("the operator has not taken SidecarPolicy `{name}` out of force yet; wait for `scpol status {name}`");
    }
    Ok(())
}

/// The kinds whose workloads may have the content of the policy with these `forms`: with pod templates that can change.
fn kinds(policies: &Policies, forms: &[&Arc<Policy>]) -> BTreeSet<Arc<Kind>> {
    let own = forms.iter().flat_map(|form| &form.kinds);
    let others = policies.kinds().filter(|kind| !forms.iter().any(|form| form.kinds.contains(kind)));
    let mut kinds: BTreeSet<Arc<Kind>> = own.chain(KINDS.iter()).chain(others).cloned().collect();
    kinds.retain(|kind| !kind.is_pod() && !kind.is_job());
    kinds
}

fn is_marked(workload: &Workload, policy: &str) -> bool {
    let annotations = workload.pod().map(|pod| &pod["metadata"]["annotations"]);
    annotations.is_some_and(|annotations| !annotations[marker::key(policy).as_str()].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Capabilities;
    use crate::content::Revision;
    use anyhow::anyhow;
    use futures::FutureExt;
    use kube::Client;
    use kube::client::Body;
    use serde_json::Value;
    use std::collections::HashMap;
    use tokio::sync::Notify;

    #[test]
    fn a_policy_in_force_is_not_removed_and_one_that_is_going_out_of_force_is_waited_for() {
        let programmed = json!([{
            "type": "Programmed", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        for (spec, conditions, deleted, expected) in [
            (json!({}), json!([]), Value::Null, Some("is in effect")),
            (json!({ "suspend": false }), json!([]), Value::Null, Some("is in effect")),
            (json!({ "suspend": true }), programmed.clone(), Value::Null, Some("out of force yet")),
            (json!({ "suspend": true }), json!([]), Value::Null, None),
            (json!({ "mode": "Audit" }), json!([]), Value::Null, None),
            (json!({}), json!([]), json!("2026-01-01T00:00:00Z"), None),
        ] {
            let object = json!({
                "metadata": { "name": "envoy", "deletionTimestamp": deleted }, "spec": spec,
                "status": { "conditions": conditions },
            });
            let refused = check_not_in_force(&serde_json::from_value(object).unwrap());
            let message = refused.err().map(|error| error.to_string());
            match expected {
                None => assert_eq!(message, None, "{spec}"),
                Some(expected) => assert!(message.unwrap_or_default().contains(expected), "{spec}"),
            }
        }
    }

    /// A server that stores what it is sent, and has no pods. It calls `patched` with the name of each object that is patched.
    fn server(patched: impl Fn(&str) + Clone + Send + 'static) -> Client {
        let answer = move |request: http::Request<Body>| {
            if request.method() == http::Method::PATCH {
                patched(request.uri().path().rsplit('/').next().unwrap_or_default());
            }
            let body = json!({ "metadata": { "name": "x" }, "items": [] }).to_string();
            async { Ok::<_, std::io::Error>(http::Response::new(Body::from(body.into_bytes()))) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// Removes the content from Deployments with these names. Returns each name with its result and its code, and the error.
    async fn removed(client: &Client, names: &[&str], stop: &Stop, again: Result<()>) -> (Vec<String>, Option<String>) {
        let template = json!({ "containers": [{ "name": "envoy", "image": "envoy:1" }] });
        let content: Content = serde_json::from_value(json!({ "template": template })).unwrap();
        let hash = Revision::new("envoy", 1, content.clone()).template.hash;
        let marker = format!(r#"{{"v":1,"hash":"{hash}","added":["/spec/template/spec/containers/envoy"]}}"#);
        let kind = Kind::find("apps", "deployments").unwrap();
        let resource = live::resource("apps", "v1", "Deployment", "deployments");
        let found = |name: &&str| {
            let containers = json!([{ "name": "app", "image": "app" }, template["containers"][0]]);
            let body = json!({
                "metadata": { "namespace": "shop", "name": name, "uid": name, "resourceVersion": "1" },
                "spec": {
                    "paused": name.starts_with("paused"),
                    "template": {
                        "metadata": { "annotations": { "injected.scpol.dev/envoy": marker } },
                        "spec": { "containers": containers },
                    },
                },
            });
            Marked { workload: Workload::new(kind, body), api: live::api(client, &resource, Some("shop")) }
        };
        let marked: Vec<_> = names.iter().map(found).collect();
        let contents = Contents::new("envoy", &PolicyRevisions::default(), [content]);
        let (policies, namespaces, paused) = (Policies::default(), HashMap::new(), HashSet::new());
        let (server, within) = (Capabilities::default(), Within::default());
        let inventory = Inventory { client, server: &server, namespaces: &namespaces, within: &within };
        let removing = Removing { name: "envoy", contents: &contents, policies: &policies, inventory: &inventory };
        let pods = async || removing.pods(None, 60, &paused).await;
        let first = pods().await.unwrap();
        let again = async || match &again {
            Ok(()) => pods().await,
            Err(error) => bail!("{error}"),
        };
        let (lines, unread) = removing.run(&marked, first, again, DryRun::None, stop).await;
        let told = |line: &RemovalLine| {
            format!("{} {} {}", line.name, line.result.word(), line.code.as_deref().unwrap_or("-"))
        };
        (lines.iter().map(told).collect(), unread.map(|error| error.to_string()))
    }

    #[tokio::test]
    async fn no_patch_begins_after_a_signal_and_what_has_begun_is_told() {
        let signal = Arc::new(Notify::new());
        let came = signal.clone();
        let stop = async move { came.notified().await }.boxed().shared();
        // The signal comes during the second patch.
        let client = server(move |name| {
            assert_ne!(name, "c");
            if name == "b" {
                signal.notify_one();
            }
        });
        let told = removed(&client, &["a", "paused", "b", "c"], &stop, Ok(())).await;
        assert_eq!(told.0, ["a removed -", "paused left SCP0414", "b removed -", "c left -"]);
        assert_eq!(told.1, None);
    }

    #[tokio::test]
    async fn what_was_changed_is_told_if_pods_cannot_be_read_again() {
        let never = std::future::pending().boxed().shared();
        let told = removed(&server(|_| ()), &["a"], &never, Err(anyhow!("cannot list pods"))).await;
        assert_eq!(told, (vec!["a removed -".to_owned()], Some("cannot list pods".to_owned())));
        let told = removed(&server(|_| ()), &["a"], &never, Ok(())).await;
        assert_eq!(told, (vec!["a removed -".to_owned()], None));
    }

    #[test]
    fn only_kinds_whose_templates_can_change_are_patched() {
        let names: Vec<String> = kinds(&Policies::default(), &[]).iter().map(|kind| kind.resource.clone()).collect();
        assert!(names.contains(&"deployments".to_owned()) && names.contains(&"cronjobs".to_owned()), "{names:?}");
        assert!(!names.contains(&"pods".to_owned()) && !names.contains(&"jobs".to_owned()), "{names:?}");
    }
}
