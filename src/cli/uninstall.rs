//! `scpol uninstall`: removes everything, in an order in which no create hangs or is rejected. It works without an
//! operator, with a stopped one, with half an installation, and a second time.
//!
//! 1. Registrations, first those that reject; then waiting objects are released. Registrations are *not* marked as a
//!    removal by the operator, because a running operator would repair such a mark. It respects a removal by hand and
//!    does not register again. Meanwhile it still settles objects that the server gives it; only its leftovers are
//!    released as posted.
//! 2. The operator and its rights. From then on no operator can register, even one that still runs or starts later.
//! 3. The first step again, for registrations made in between.
//! 4. The policies' status becomes `Stopped`. A new operator must not take this for an emergency brake.
//! 5. The operator's other objects, its Namespace and, on request, the CustomResourceDefinition of the policies. The
//!    command waits until both are gone, because the server rejects an installation until then.
//!
//! With `--generated` the objects of the installation stay, for Helm or Argo CD to delete: the operator's pods stop in
//! step 2 and keep their rights, and step 5 deletes only what the operator wrote.

use super::installed::{InstallPart, Installed, Piece};
use super::output::{self, Output, Parser, counted};
use super::policies::{self, condition, status};
use super::site::OperatorOptions;
use super::waiting::{self, Waited as Released, WaitingObjects};
use super::{Cluster, End, TimingOption, live};
use crate::api::code::Code;
use crate::api::condition::{Readiness, conditions};
use crate::capabilities::registration;
use crate::cluster::api::Api;
use crate::cluster::client::{call, chain};
use crate::cluster::keep;
use crate::cluster::object::Object;
use crate::cluster::rights::may_other;
use crate::outside::escaped;
use crate::policy::Site;
use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{Patch, PatchParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

/// The number of rounds of search and release.
const TRIES: u32 = 3;

#[derive(Args, Debug)]
pub(super) struct UninstallOptions {
    /// Only list what is installed; exit code 1 if anything is
    #[arg(long, conflicts_with_all = ["dry_run", "yes"])]
    check: bool,
    /// Only show what would be done, in which order
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Remove the CRD of SidecarPolicies, too, and with it every policy
    #[arg(long)]
    crd: bool,
    /// Remove only what the operator has created, and its Deployment: for an installation that Helm or Argo CD deletes afterwards
    #[arg(long, conflicts_with = "crd")]
    generated: bool,
    /// How long to wait until the Namespace is gone, or the operator's pods with `--generated`; 0 does not wait, and exits
    /// with 1 if they are still there
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = super::cluster::duration)]
    timeout: Duration,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = Parser::<0>)]
    output: Output,
    #[command(flatten)]
    operator: OperatorOptions,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    waiting: TimingOption,
}

/// The result for an object.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
enum Handled {
    /// Exists.
    Left,
    /// Stays on purpose.
    Kept,
    /// Is being deleted by the server.
    Terminating,
    /// Would be deleted.
    WouldDelete,
    Deleted,
    /// An object that waited for an initializer was released.
    Released,
    /// Would be released.
    WouldRelease,
    /// The policy's status now says that it is not in effect.
    Told,
    Failed,
}

impl Handled {
    fn word(self) -> &'static str {
        match self {
            Handled::Left => "is there",
            Handled::Kept => "is kept",
            Handled::Terminating => "is being deleted",
            Handled::WouldDelete => "would be deleted",
            Handled::Deleted => "deleted",
            Handled::Released => "released",
            Handled::WouldRelease => "would be released",
            Handled::Told => "status: not in effect",
            Handled::Failed => "FAILED",
        }
    }
}

/// One line of the report.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// The object's kind, namespace and name.
    object: String,
    result: Handled,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

pub(super) async fn run(options: UninstallOptions, out: &mut impl Write) -> Result<End> {
    let client = live::connect(&options.cluster).await?;
    let server = live::offers(&client, [].iter()).await?;
    let namespace = options.operator.operator_namespace.as_str();
    let installed = Installed { client: &client, server: &server, namespace };
    installed.check_namespace().await?;
    let site = site(&client, &options.operator).await?;
    let mut removal = Uninstall { installed, site, options: &options, items: Vec::new(), out, unheard: None };
    let end = match (options.check, options.dry_run) {
        (true, _) => removal.look_again().await,
        (_, true) => removal.rehearse().await,
        _ => removal.carry_out().await,
    };
    let end = match end {
        Err(error) if removal.items.iter().any(|item| matches!(item.result, Handled::Deleted | Handled::Released)) => {
            removal.tell("the rest".to_owned(), Handled::Failed, Some(format!("{}; run it again", chain(&*error))));
            Ok(End::Finding)
        }
        end => end,
    };
    removal.finish()?;
    end
}

/// The site with the initializer names that this command clears, including those that policies use.
async fn site(client: &Client, operator: &OperatorOptions) -> Result<Site> {
    let mut site = Site::new(&operator.operator_namespace, [], operator.initializer_names.clone());
    let told =
        policies::stored_or_none(client).await?.into_iter().filter_map(|policy| own_initializer(&policy.value()));
    site.initializer_names.extend(told);
    Ok(site)
}

/// The initializer name of the stored `policy`, if its spec and its status agree on one. Neither is enough: the operator accepts only
/// names that it was given, and the spec alone does not show that; and who may write the status must not choose what is cleared.
fn own_initializer(policy: &Value) -> Option<String> {
    let named = policy["status"]["initializerName"].as_str()?;
    (policy["spec"]["initializerName"] == named).then(|| named.to_owned())
}

struct Uninstall<'a, W> {
    installed: Installed<'a>,
    site: Site,
    options: &'a UninstallOptions,
    items: Vec<Line>,
    out: &'a mut W,
    /// The error of the output, after which nothing more is printed.
    unheard: Option<std::io::Error>,
}

impl<W: Write> Uninstall<'_, W> {
    /// Reports everything that exists and has not been reported: also objects that wait for us, and what stays on purpose.
    async fn look_again(&mut self) -> Result<End> {
        for piece in self.all().await? {
            let fate = if piece.is_terminating() { Handled::Terminating } else { Handled::Left };
            let is_told = |item: &Line| item.result == fate && item.object == piece.title();
            if !self.items.iter().any(is_told) {
                self.tell(piece.title(), fate, None);
            }
        }
        let look = self.waiting().await?;
        for object in look.waiting {
            self.tell(title(&object), Handled::Left, Some(format!("waits for {}", object.pending.join(", "))));
        }
        for unseen in look.unseen {
            self.tell_unseen(&unseen);
        }
        self.tell_kept().await?;
        let is_left = |item: &Line| matches!(item.result, Handled::Left | Handled::Terminating | Handled::Failed);
        Ok(End::fine_if(!self.items.iter().any(is_left)))
    }

    /// Reports that waiting objects of a resource cannot be listed.
    fn tell_unseen(&mut self, unseen: &str) {
        self.tell("what waits".to_owned(), Handled::Failed, Some(format!("cannot be looked at: {unseen}")));
    }

    /// Lists what would be done.
    async fn rehearse(&mut self) -> Result<End> {
        let all = self.all().await?;
        let (registrations, rest): (Vec<_>, Vec<_>) = all.iter().partition(|piece| is_registration(piece));
        for piece in registrations {
            self.tell(piece.title(), Handled::WouldDelete, None);
        }
        let look = self.waiting().await?;
        for object in look.waiting {
            self.tell(title(&object), Handled::WouldRelease, None);
        }
        for unseen in look.unseen {
            self.tell_unseen(&unseen);
        }
        for piece in rest {
            self.tell(piece.title(), Handled::WouldDelete, None);
        }
        self.tell_kept().await?;
        Ok(End::fine_if(self.items.iter().all(|item| item.result != Handled::Failed)))
    }

    async fn carry_out(&mut self) -> Result<End> {
        let (all, look) = (self.all().await?, self.waiting().await?);
        if all.iter().all(Piece::is_terminating) && look.waiting.is_empty() {
            self.remove_last().await?;
            return self.look_again().await;
        }
        if !self.options.yes && !self.is_confirmed(all.len()).await? {
            bail!("not confirmed; nothing was done");
        }
        if !self.unregister().await? {
            let reason = "without it, creates would hang or be refused by what is still registered; correct that, and run it again";
            self.tell("the operator".to_owned(), Handled::Kept, Some(reason.to_owned()));
            return self.look_again().await;
        }
        self.remove_part(InstallPart::Process).await?;
        if self.options.generated {
            self.wait_for_pods_to_go().await?;
        } else {
            self.remove_part(InstallPart::Rights).await?;
            self.wait_for_rights_to_go().await;
        }
        self.unregister().await?;
        self.tell_policies().await?;
        self.remove_part(InstallPart::Belongings).await?;
        self.remove_last().await?;
        self.look_again().await
    }

    /// Everything to remove, in order.
    async fn all(&self) -> Result<Vec<Piece>> {
        let mut all = self.installed.registrations().await?;
        for part in [InstallPart::Process, InstallPart::Rights, InstallPart::Belongings] {
            all.extend(self.pieces(part).await?);
        }
        all.extend(self.last().await?);
        Ok(all)
    }

    /// The objects of `part` to remove.
    async fn pieces(&self, part: InstallPart) -> Result<Vec<Piece>> {
        if !self.options.generated {
            return self.installed.part(part).await;
        }
        Ok(match part {
            InstallPart::Process => self.installed.deployment().await?.into_iter().collect(),
            InstallPart::Rights => Vec::new(),
            InstallPart::Belongings => {
                let mut pieces = self.installed.part(part).await?;
                pieces.retain(|piece| !piece.is_installed());
                pieces
            }
        })
    }

    /// What is removed last: the Namespace, unless foreign objects keep it, and the definition on request.
    async fn last(&self) -> Result<Vec<Piece>> {
        if self.options.generated {
            return Ok(Vec::new());
        }
        let namespace = self.installed.own_namespace().await?;
        let is_kept = namespace.as_ref().is_some_and(|namespace| !namespace.is_terminating())
            && !self.installed.lodgers().await?.is_empty();
        let mut last: Vec<_> = namespace.into_iter().filter(|_| !is_kept).collect();
        if self.options.crd {
            last.extend(self.installed.definition().await?);
        }
        Ok(last)
    }

    /// The objects that wait for us.
    async fn waiting(&self) -> Result<WaitingObjects> {
        let mut look = waiting::find(self.installed.client, self.installed.server, None, None).await?;
        look.waiting.retain(|object| object.pending.iter().any(|name| self.site.owns(name)));
        Ok(look)
    }

    async fn is_confirmed(&self, pieces: usize) -> Result<bool> {
        if !std::io::stdin().is_terminal() {
            bail!("there is no terminal to ask: give `--yes`, or `--dry-run` to see what would be done");
        }
        let policies = policies::stored_or_none(self.installed.client).await?.len();
        let policies = counted(policies, "policy", "policies");
        let fate = if self.options.crd { "deleted, with the CRD" } else { "kept, without effect" };
        let version = &self.installed.server.version;
        eprint!(
            "Uninstall sidecar-policy ({pieces} objects) from this cluster ({version})? {policies}: {fate}. [y/N] "
        );
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    /// Removes every registration and releases objects that wait for us. Returns false if a registration cannot be
    /// removed. If it is a rejecting one, the injecting ones stay too.
    async fn unregister(&mut self) -> Result<bool> {
        let timing = self.options.waiting.timing();
        let registered = self.installed.registrations().await?;
        let (refusing, others): (Vec<_>, Vec<_>) = registered.iter().partition(|piece| piece.refuses());
        let names = initializer_names(&others);
        self.site.initializer_names.extend(names);
        for pieces in [refusing, others] {
            let mut is_gone = true;
            for piece in &pieces {
                is_gone &= self.remove(piece).await;
            }
            if !is_gone {
                return Ok(false);
            }
            // Every API server sees the removal within that time. Before, the injecting registrations must stay,
            // because the rejecting ones would miss their content. The operator must stay, because API servers would
            // call it.
            if !pieces.is_empty() {
                tokio::time::sleep(timing.configuration.settling).await;
            }
        }
        self.release().await?;
        Ok(true)
    }

    /// Releases waiting objects until two looks in a row find none. A foreign configuration may keep adding our names
    /// to new objects, so the number of tries is limited.
    async fn release(&mut self) -> Result<()> {
        let timing = &self.options.waiting.timing().uninstall;
        let (since, mut clean, mut tries) = (Instant::now(), 0, 0);
        while clean < 2 && tries < TRIES {
            let mut waiting = self.waiting().await?.waiting;
            clean = if waiting.is_empty() { clean + 1 } else { 0 };
            if !waiting.is_empty() && since.elapsed() > timing.patience {
                tries += 1;
                for object in &mut waiting {
                    self.let_go(object, tries == TRIES).await;
                }
            }
            tokio::time::sleep(timing.pause).await;
        }
        Ok(())
    }

    async fn let_go(&mut self, object: &mut waiting::WaitingObject, is_last_try: bool) {
        waiting::clear(self.installed.client, object, &|name: &str| self.site.owns(name)).await;
        match object.result {
            Released::Cleared if object.pending.is_empty() => self.tell(title(object), Handled::Released, None),
            Released::Cleared => {
                let others = format!("still waits for {}, which is not ours", object.pending.join(", "));
                self.tell(title(object), Handled::Released, Some(others))
            }
            _ if is_last_try => self.tell(title(object), Handled::Failed, object.message.take()),
            _ => {}
        }
    }

    async fn remove_part(&mut self, part: InstallPart) -> Result<()> {
        for piece in self.pieces(part).await? {
            self.remove(&piece).await;
        }
        Ok(())
    }

    /// Waits until the operator's pods are gone, because they keep their rights and could register again.
    async fn wait_for_pods_to_go(&mut self) -> Result<()> {
        let since = Instant::now();
        let mut pods = self.installed.pods().await?;
        while !pods.is_empty() && since.elapsed() < self.options.timeout {
            tokio::time::sleep(self.options.waiting.timing().uninstall.pause).await;
            pods = self.installed.pods().await?;
        }
        for pod in pods {
            let waited = humantime::format_duration(self.options.timeout);
            self.tell(pod.title(), Handled::Terminating, Some(format!("it is not gone after {waited}; run it again")));
        }
        Ok(())
    }

    /// Waits until the rights of a running operator are gone. An operator with additional rights could still act.
    async fn wait_for_rights_to_go(&self) {
        let account = format!("system:serviceaccount:{0}:{1}", self.installed.namespace, super::installed::OPERATOR);
        let question = json!({ "spec": { "user": account, "resourceAttributes": {
            "verb": "update", "group": "coordination.k8s.io", "resource": "leases", "name": crate::cluster::lease::NAME,
            "namespace": self.installed.namespace,
        } } });
        let question: SubjectAccessReview = serde_json::from_value(question).expect("the shape is fixed");
        let (since, timing) = (Instant::now(), &self.options.waiting.timing().uninstall);
        while since.elapsed() < timing.rights {
            if !may_other(self.installed.client, &question).await.unwrap_or_default() {
                return;
            }
            tokio::time::sleep(timing.rights_pause).await;
        }
    }

    /// Writes the status of an operator that stops properly. Otherwise the next operator would take the removal for an
    /// emergency brake, and register nothing for its `--repair-hold`.
    async fn tell_policies(&mut self) -> Result<()> {
        if self.options.crd {
            return Ok(());
        }
        let message =
            "the operator was uninstalled: new workloads get no template; install it again, or delete the policy";
        let outcome = Readiness::Waiting { code: Code::Stopped, message: message.to_owned() };
        for policy in policies::stored_or_none(self.installed.client).await? {
            let status = status(&policy);
            let counts = condition(&status, "Programmed").is_some_and(|programmed| {
                programmed.status == "True" || programmed.reason == Code::RemovedByHand.name()
            });
            if !counts {
                continue;
            }
            let now = Timestamp::now();
            let conditions = conditions(&outcome, None, &status.conditions, policy.generation(), now);
            let patch = Patch::Merge(json!({ "status": { "conditions": conditions, "engine": null } }));
            let api = policies::api(self.installed.client);
            let title = format!("SidecarPolicy {}", policy.name());
            match call(api.patch_status(policy.name(), &PatchParams::default(), &patch)).await {
                Ok(_) => self.tell(title, Handled::Told, None),
                Err(error) => self.tell(title, Handled::Failed, Some(error.to_string())),
            }
        }
        Ok(())
    }

    /// Deletes the Namespace and the definition, and waits for at most `--timeout` until they are gone.
    async fn remove_last(&mut self) -> Result<()> {
        let mut going = Vec::new();
        for piece in self.last().await? {
            if self.request_deletion(&piece).await.is_some() {
                going.push(piece);
            }
        }
        let since = Instant::now();
        for piece in going {
            let mut left = self.still_there(&piece).await?;
            while left.is_some() && since.elapsed() < self.options.timeout {
                tokio::time::sleep(self.options.waiting.timing().uninstall.pause).await;
                left = self.still_there(&piece).await?;
            }
            match left {
                None => self.tell(piece.title(), Handled::Deleted, None),
                Some(left) => {
                    let waited = humantime::format_duration(self.options.timeout);
                    let reasons = remaining(&left.value());
                    let message =
                        format!("it is not gone after {waited}, and no installation works until then{reasons}");
                    self.tell(piece.title(), Handled::Terminating, Some(message));
                }
            }
        }
        Ok(())
    }

    /// The object of `piece`, unless it is gone.
    async fn still_there(&self, piece: &Piece) -> Result<Option<Object>> {
        let found = call(self.api(piece).get_opt(piece.object.name())).await;
        let found = found.with_context(|| format!("cannot look whether {} is gone", piece.title()))?;
        Ok(found.filter(|found| found.meta().uid == piece.object.meta().uid))
    }

    fn api(&self, piece: &Piece) -> Api<Object> {
        live::api_of(self.installed.client, &piece.resource, piece.object.namespace())
    }

    /// Deletes `piece`. Returns false if that failed.
    async fn remove(&mut self, piece: &Piece) -> bool {
        let is_deleted = self.request_deletion(piece).await;
        if is_deleted == Some(true) {
            self.tell(piece.title(), Handled::Deleted, None);
        }
        is_deleted.is_some()
    }

    /// Asks the server to delete `piece`. Returns false if it is gone already, or is being deleted; `None` if that failed, and reports it.
    async fn request_deletion(&mut self, piece: &Piece) -> Option<bool> {
        if piece.is_terminating() {
            return Some(false);
        }
        // The UID protects an object that was recreated meanwhile. The next look finds it.
        let asked = keep::delete(&self.api(piece), piece.object.name(), piece.object.meta().uid.clone()).await;
        asked.map_err(|error| self.tell(piece.title(), Handled::Failed, Some(error.to_string()))).ok()
    }

    /// Reports objects that stay on purpose.
    async fn tell_kept(&mut self) -> Result<()> {
        if self.options.generated {
            return Ok(());
        }
        if self.installed.own_namespace().await?.is_some_and(|namespace| !namespace.is_terminating()) {
            let lodgers = self.installed.lodgers().await?;
            if let Some(first) = lodgers.first() {
                let message = format!("{} is in it, and is not ours", first.title());
                self.tell(format!("Namespace {}", self.installed.namespace), Handled::Kept, Some(message));
            }
        }
        if self.options.crd {
            return Ok(());
        }
        let Some(definition) = self.installed.definition().await? else { return Ok(()) };
        let policies = policies::stored_or_none(self.installed.client).await?.len();
        let message = format!("with {}; `--crd` takes that away, too", counted(policies, "policy", "policies"));
        self.tell(definition.title(), Handled::Kept, Some(message));
        Ok(())
    }

    /// Records a result and prints it at once in a table. The work continues even if printing fails.
    fn tell(&mut self, object: String, result: Handled, message: Option<String>) {
        if self.options.output == Output::Table && self.unheard.is_none() {
            let more = message.as_ref().map_or(String::new(), |message| format!(": {message}"));
            let line = format!("{object}: {}{more}", result.word());
            let told = writeln!(self.out, "{}", escaped(&line)).and_then(|()| self.out.flush());
            self.unheard = told.err();
        }
        self.items.push(Line { object, result, message });
    }

    fn finish(&mut self) -> Result<()> {
        if let Some(error) = self.unheard.take() {
            return Err(error.into());
        }
        let Self { items, options, out, .. } = self;
        options.output.report(
            "UninstallReport",
            || json!({ "items": items }),
            *out,
            |out| match items.iter().all(|item| item.result == Handled::Kept) {
                true => Ok(writeln!(out, "Nothing else of sidecar-policy is in this cluster.")?),
                false => Ok(()),
            },
        )
    }
}

/// Why the server has not removed `object` yet, as its conditions say: `; <type>: <message>` for each.
fn remaining(object: &Value) -> String {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let blocks = |condition: &&Value| {
        let name = text(condition, "type");
        condition["status"] == "True" && (name.starts_with("Namespace") || name == "Terminating")
    };
    let blocking = conditions.iter().filter(blocks);
    blocking.map(|condition| format!("; {}: {}", text(condition, "type"), text(condition, "message"))).collect()
}

fn is_registration(piece: &Piece) -> bool {
    registration::ALL.contains(&piece.resource.plural.as_str())
}

/// The initializer names that our own registrations put on objects.
fn initializer_names(pieces: &[&Piece]) -> Vec<String> {
    let entries =
        pieces.iter().flat_map(|piece| piece.object.value()["initializers"].as_array().cloned().unwrap_or_default());
    entries.filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
}

fn title(object: &waiting::WaitingObject) -> String {
    output::place(&object.resource, &object.namespace, &object.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initializer_of_others_is_cleared_neither_for_a_spec_nor_for_a_status() {
        let of = |spec: Value, status: Value| own_initializer(&json!({ "spec": spec, "status": status }));
        let (own, foreign) = ("sidecar.example.com", "compliance.example.com");
        let named = |name: &str| json!({ "initializerName": name });
        assert_eq!(of(named(own), named(own)).as_deref(), Some(own));
        for (spec, status) in [
            (json!({}), named(foreign)),
            (named(own), named(foreign)),
            (named(foreign), named(own)),
            (named(foreign), json!({})),
            (named(foreign), json!(null)),
            (json!({ "initializerName": [foreign] }), json!({ "initializerName": [foreign] })),
        ] {
            assert_eq!(of(spec.clone(), status.clone()), None, "{spec} {status}");
        }
    }
}
