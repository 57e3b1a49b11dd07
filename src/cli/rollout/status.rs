//! `scpol rollout status`: how far the rollout of a policy is, as its status says.

use super::revisions::PolicyRevisions;
use super::{Revised, spec, switch_on, time};
use crate::api::v1alpha1::{Mode, SidecarPolicySpec};
use crate::api::{RESTARTED_AT_KEY, RESUMED_AT_KEY};
use crate::cli::End;
use crate::cli::output::{Printing, Screen, Text, remark, write_progress};
use crate::cli::policies::{condition, full_name, status, watched};
use crate::cluster::client::chain;
use crate::cluster::object::Object;
use crate::content::Content;
use crate::rollout::stored::with_hash;
use anyhow::{Context, Result, bail};
use clap::Args;
use futures::{StreamExt, pin_mut};
use jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::time::Duration;

#[derive(Args, Debug)]
pub(super) struct RolloutStatusOptions {
    #[command(flatten)]
    of: Revised,
    /// Print each change until the rollout is complete, or halted: exit code 1
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    printing: Printing,
}

/// A revision as the status names it.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct NumberedHash {
    hash: String,
    /// None if the revisions cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
}

/// How far a rollout is.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
struct RolloutState {
    policy: String,
    /// False if the policy has no rollouts. Then all that follows is empty.
    rolls: bool,
    /// Why it has none.
    #[serde(skip)]
    why_not: Option<WhyNot>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<NumberedHash>,
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<NumberedHash>,
    matched: i64,
    updated: i64,
    ready: i64,
    halted: bool,
    /// The reason of the condition `Progressing`; empty if there is none.
    reason: String,
    message: String,
    /// Whether a resume ends the halt that the status of the policy has, as far as the revision tells.
    #[serde(skip)]
    is_resumed: bool,
}

/// Why nothing is rolled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhyNot {
    Suspended,
    Audits,
    /// Rollouts are not switched on.
    Off,
}

impl WhyNot {
    fn of(spec: &SidecarPolicySpec) -> Option<Self> {
        if spec.suspend {
            Some(Self::Suspended)
        } else if spec.mode == Mode::Audit {
            Some(Self::Audits)
        } else {
            (!spec.rolls()).then_some(Self::Off)
        }
    }

    fn told(self, policy: &str) -> String {
        match self {
            Self::Suspended => "`spec.suspend` is true.".to_owned(),
            Self::Audits => "`spec.mode` is `Audit`.".to_owned(),
            Self::Off => format!(
                "`spec.updateStrategy.type` is not `RollingUpdate`.\nTo switch rollouts on: {}",
                switch_on(policy)
            ),
        }
    }
}

/// What a status means for who waits for the end of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// It is complete, or there is none.
    Complete,
    Halted,
    GoesOn,
    /// No operator has said anything.
    Unknown,
}

impl RolloutState {
    /// The state of `policy`.
    ///
    /// # Errors
    /// If its spec is not valid.
    fn of(policy: &Object, revisions: &PolicyRevisions) -> Result<Self> {
        let (spec, status) = (spec(policy)?, status(policy));
        let numbered = |hash: Option<String>| {
            let hash = hash?;
            Some(NumberedHash { revision: with_hash(&revisions.0, &hash).map(|stored| stored.revision.number), hash })
        };
        let why_not = WhyNot::of(&spec);
        let rolls = why_not.is_none();
        let progress = condition(&status, "Progressing").filter(|_| rolls);
        let (mut reason, mut message) =
            progress.map(|found| (found.reason.clone(), found.message.clone())).unwrap_or_default();
        let hash = Content::of(&spec).map(|content| content.hash());
        let value = policy.value();
        let recorded = hash.as_deref().and_then(|hash| with_hash(&revisions.0, hash));
        // Revisions tell of a halt, and of its end, before the status does.
        let is_resumed = recorded.map(|stored| &stored.record.progress).is_some_and(|recorded| {
            let is_over = recorded.times.begun.is_some() && recorded.halted.is_none();
            is_over || time(&value, RESUMED_AT_KEY) > recorded.followed.resumed
        });
        let is_other = status.update_revision.is_some() && status.update_revision != hash;
        let followed: Option<Timestamp> = status.restarted_at.as_deref().and_then(|time| time.parse().ok());
        if progress.is_some() && (is_other || status.observed_generation != Some(policy.generation())) {
            (reason, message) = ("NewRevision".to_owned(), "the operator has not seen the latest edit yet".to_owned());
        } else if progress.is_some() && time(&value, RESTARTED_AT_KEY) > followed {
            (reason, message) = ("RollingOut".to_owned(), "the operator has not seen the restart yet".to_owned());
        }
        let is_resumed = reason == "Halted" && status.halted && is_resumed;
        if is_resumed {
            (reason, message) = ("RollingOut".to_owned(), "it goes on after `scpol rollout resume`".to_owned());
        }
        Ok(Self {
            policy: policy.name().to_owned(),
            rolls,
            why_not,
            current: numbered(status.current_revision.filter(|_| rolls)),
            update: numbered(if rolls { hash } else { None }),
            matched: status.matched,
            updated: if is_other { 0 } else { status.updated.unwrap_or_default() },
            ready: status.ready.unwrap_or_default(),
            halted: status.halted && !is_other && !is_resumed,
            reason,
            message,
            is_resumed,
        })
    }

    fn stand(&self) -> Outlook {
        match self.reason.as_str() {
            _ if !self.rolls => Outlook::Complete,
            "Complete" => Outlook::Complete,
            "Halted" => Outlook::Halted,
            "" => Outlook::Unknown,
            _ => Outlook::GoesOn,
        }
    }

    /// `12 of 60 workloads`, and what holds the rollout up.
    fn line(&self) -> String {
        let line = format!("{}: {} of {} workloads, {} ready", self.policy, self.updated, self.matched, self.ready);
        match self.reason.as_str() {
            "" => format!("{}: waiting for the operator", self.policy),
            "RollingOut" => line,
            "Complete" => format!("{line}: Complete"),
            reason => format!("{line}: {reason}: {}", self.message),
        }
    }

    /// The line for a terminal, with a bar.
    fn bar(&self) -> String {
        const CELLS: usize = 20;
        let share = |part: i64| usize::try_from(part).unwrap_or_default().saturating_mul(CELLS);
        let full = share(self.updated).checked_div(usize::try_from(self.matched).unwrap_or_default()).unwrap_or(CELLS);
        let full = full.min(CELLS);
        format!("[{}{}] {}", "#".repeat(full), "-".repeat(CELLS - full), self.line())
    }

    fn write(&self, printing: &Printing, out: &mut impl Write) -> Result<()> {
        if let Some(why_not) = self.why_not {
            return Ok(writeln!(out, "{}: nothing is rolled out: {}", self.policy, why_not.told(&self.policy))?);
        }
        printing.line(format_args!("{}: {}\n{}\n", self.policy, self.reason, self.message), out)?;
        let row = |role: &str, told: &NumberedHash| {
            let number = told.revision.map_or("-".to_owned(), |number| number.to_string());
            [role.to_owned(), number, told.hash.clone()]
        };
        let rows = [("current", &self.current), ("update", &self.update)];
        let rows = rows.into_iter().filter_map(|(role, told)| Some(row(role, told.as_ref()?)));
        printing.table(["ROLE", "REVISION", "HASH"], rows, out)?;
        let numbers = [self.matched, self.updated, self.ready].map(|number| number.to_string());
        printing.section(["MATCHED", "UPDATED", "AVAILABLE"], [numbers], out)
    }
}

pub(super) async fn run(options: RolloutStatusOptions, out: &mut impl Write) -> Result<End> {
    let (client, policy) = options.of.named.read().await?;
    let revisions = options.of.revisions(&client, &policy).await.unwrap_or_else(|error| {
        remark(format_args!("warning: {}; so revisions have no numbers here", chain(&*error)));
        PolicyRevisions::default()
    });
    let state = RolloutState::of(&policy, &revisions)?;
    if options.watch && state.rolls {
        return watch(&client, &options, revisions, out).await;
    }
    if state.stand() == Outlook::Unknown {
        bail!(
            "no operator has reported the rollout of {}: is one running, with `--rollouts` above 0?",
            full_name(&state.policy)
        );
    }
    let printing = &options.printing;
    printing.output.report("RolloutStatus", || json!(state), out, |out| state.write(printing, out))?;
    Ok(End::fine_if(state.stand() == Outlook::Complete))
}

/// The rest before revisions are read again.
const REST: Duration = Duration::from_secs(2);

/// Prints each change until the rollout has ended.
async fn watch(
    client: &Client,
    options: &RolloutStatusOptions,
    mut revisions: PolicyRevisions,
    out: &mut impl Write,
) -> Result<End> {
    let name = options.of.named.policy.as_str();
    let events = watched(client, Some(name), "the policy");
    pin_mut!(events);
    let width = Screen::stdout().width;
    let (mut shown, mut is_there) = (None, false);
    // The policy, while its status may be that of before a resume.
    let mut resumed = None;
    loop {
        let event = tokio::select! {
            event = events.next() => event.context("the watch of the policy has ended")?,
            // A halt that follows at once changes no status.
            Some(policy) = later(&mut resumed) => Event::Apply(policy),
        };
        let policy = match event {
            Event::Apply(policy) | Event::InitApply(policy) => policy,
            Event::InitDone if is_there => continue,
            Event::Delete(_) | Event::InitDone => bail!("the SidecarPolicy `{name}` has been deleted"),
            Event::Init => {
                (is_there, resumed) = (false, None);
                continue;
            }
        };
        is_there = true;
        let mut state = RolloutState::of(&policy, &revisions)?;
        if state.is_resumed {
            revisions = options.of.revisions(client, &policy).await.unwrap_or(revisions);
            state = RolloutState::of(&policy, &revisions)?;
        }
        resumed = state.is_resumed.then_some(policy);
        if shown.as_ref() != Some(&state) {
            write_progress(&if width.is_some() { state.bar() } else { state.line() }, width, out)?;
            out.flush()?;
        }
        let end = match state.stand() {
            Outlook::Complete => Some(End::Fine),
            Outlook::Halted => Some(End::Finding),
            Outlook::GoesOn | Outlook::Unknown => None,
        };
        if let Some(end) = end {
            if width.is_some() {
                writeln!(Text::new(&mut *out), "\n{}", state.message)?;
            }
            return Ok(end);
        }
        shown = Some(state);
    }
}

/// What is in `policy`, after a rest.
async fn later(policy: &mut Option<Object>) -> Option<Object> {
    tokio::time::sleep(REST).await;
    policy.take()
}

#[cfg(test)]
mod tests {
    use super::super::revisions::tests::{content, of, stored};
    use super::*;
    use crate::rollout::record::Halted;
    use serde_json::Value;

    /// A policy at generation 2 whose spec has the image `envoy:2`.
    fn policy(strategy: Value, status: Value) -> Object {
        let mut object = json!({
            "metadata": { "name": "envoy", "generation": 2 }, "spec": { "template": content("envoy:2").template },
        });
        (object["spec"]["updateStrategy"], object["status"]) = (strategy, status);
        serde_json::from_value(object).unwrap()
    }

    fn told(reason: &str, update: &str, generation: i64) -> Value {
        json!({
            "observedGeneration": generation, "matched": 60, "updated": 12, "ready": 58, "halted": reason == "Halted",
            "updateRevision": content(update).hash(), "currentRevision": content("envoy:1").hash(),
            "conditions": [{
                "type": "Progressing", "status": "True", "reason": reason, "message": "why",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        })
    }

    #[test]
    fn the_end_of_a_rollout_is_told_from_the_status_of_this_spec_alone() {
        let revisions = of([stored(1, &content("envoy:1"), Some(1)), stored(2, &content("envoy:2"), None)]);
        let rolling = || json!({ "type": "RollingUpdate" });
        for (strategy, status, expected, line) in [
            (json!({}), json!({}), Outlook::Complete, None),
            (rolling(), json!({}), Outlook::Unknown, Some("envoy: waiting for the operator")),
            (rolling(), told("RollingOut", "envoy:2", 2), Outlook::GoesOn, Some("envoy: 12 of 60 workloads, 58 ready")),
            (rolling(), told("Complete", "envoy:2", 2), Outlook::Complete, None),
            (rolling(), told("Complete", "envoy:1", 2), Outlook::GoesOn, None),
            (rolling(), told("Halted", "envoy:1", 1), Outlook::GoesOn, None),
            (rolling(), told("Complete", "envoy:2", 1), Outlook::GoesOn, None),
            (
                rolling(),
                told("Halted", "envoy:2", 2),
                Outlook::Halted,
                Some("envoy: 12 of 60 workloads, 58 ready: Halted: why"),
            ),
        ] {
            let state = RolloutState::of(&policy(strategy, status.clone()), &revisions).unwrap();
            assert_eq!(state.stand(), expected, "{status}");
            if let Some(line) = line {
                assert_eq!(state.line(), line);
            }
        }
        let state = RolloutState::of(&policy(rolling(), told("RollingOut", "envoy:2", 2)), &revisions).unwrap();
        let numbers = [state.current, state.update].map(|told| told.and_then(|told| told.revision));
        assert_eq!(numbers, [Some(1), Some(2)]);
    }

    #[test]
    fn why_nothing_is_rolled_out_names_the_field_that_stops_it() {
        for (field, value, named, is_told_how) in [
            ("suspend", json!(true), "`spec.suspend` is true", false),
            ("mode", json!("Audit"), "`spec.mode` is `Audit`", false),
            ("updateStrategy", json!({}), "`spec.updateStrategy.type`", true),
        ] {
            let mut stored = policy(json!({ "type": "RollingUpdate" }), json!({})).value();
            stored["spec"][field] = value;
            let state =
                RolloutState::of(&serde_json::from_value(stored).unwrap(), &PolicyRevisions::default()).unwrap();
            let said = state.why_not.unwrap().told("envoy");
            assert!(said.contains(named) && said.contains("kubectl patch") == is_told_how, "{said}");
        }
    }

    #[test]
    fn a_restart_is_not_complete_before_the_operator_follows_it() {
        let rolling = || json!({ "type": "RollingUpdate" });
        let stand = |asked: Option<&str>, followed: Option<&str>| {
            let mut status = told("Complete", "envoy:2", 2);
            status["restartedAt"] = json!(followed);
            let mut stored = policy(rolling(), status).value();
            stored["metadata"]["annotations"] = json!({ RESTARTED_AT_KEY: asked });
            let stored = serde_json::from_value(stored).unwrap();
            RolloutState::of(&stored, &PolicyRevisions::default()).unwrap().stand()
        };
        let (first, second) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-01T00:00:01Z"));
        assert_eq!([stand(first, None), stand(second, first)], [Outlook::GoesOn; 2]);
        assert_eq!([stand(None, None), stand(None, first), stand(first, first)], [Outlook::Complete; 3]);
    }

    #[test]
    fn a_halt_of_before_a_resume_does_not_end_the_watch() {
        let (first, second) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-01T00:00:01Z"));
        let time = |text: Option<&str>| text.map(|text| text.parse::<Timestamp>().unwrap());
        // What the annotation asks for, what the revision has followed, and whether that is halted.
        let state = |asked: Option<&str>, followed: Option<&str>, is_halted: bool| {
            let mut policy = policy(json!({ "type": "RollingUpdate" }), told("Halted", "envoy:2", 2)).value();
            policy["metadata"]["annotations"] = json!({ RESUMED_AT_KEY: asked });
            let mut stored = stored(2, &content("envoy:2"), None);
            let halted = Halted { at: Timestamp::UNIX_EPOCH, message: "why".to_owned() };
            let progress = &mut stored.record.progress;
            (progress.times.begun, progress.followed.resumed) = (Some(Timestamp::UNIX_EPOCH), time(followed));
            progress.halted = is_halted.then_some(halted);
            RolloutState::of(&serde_json::from_value(policy).unwrap(), &of([stored])).unwrap()
        };
        for (asked, followed, is_halted, expected) in [
            (None, None, true, Outlook::Halted),
            (first, None, true, Outlook::GoesOn),
            (second, first, true, Outlook::GoesOn),
            // It has been followed, and the status does not show it yet.
            (first, first, false, Outlook::GoesOn),
            // It has failed again.
            (first, first, true, Outlook::Halted),
            // An edit has put an earlier time back.
            (first, second, true, Outlook::Halted),
            (None, second, true, Outlook::Halted),
        ] {
            let state = state(asked, followed, is_halted);
            assert_eq!(state.stand(), expected, "{asked:?} {followed:?} {is_halted}");
            assert_eq!((state.halted, state.is_resumed), (expected == Outlook::Halted, expected == Outlook::GoesOn));
        }
        let state = |status: Value| {
            let stored = policy(json!({ "type": "RollingUpdate" }), status).value();
            RolloutState::of(&serde_json::from_value(stored).unwrap(), &PolicyRevisions::default()).unwrap().stand()
        };
        assert_eq!(state(told("Halted", "envoy:2", 2)), Outlook::Halted, "the revisions cannot be read");
        // The operator lacks a right: a resume ends nothing.
        let mut refused = told("Halted", "envoy:2", 2);
        refused["halted"] = json!(false);
        assert_eq!(state(refused), Outlook::Halted);
    }

    #[test]
    fn the_bar_is_as_full_as_the_rollout() {
        let state = |updated: i64, matched: i64| {
            let mut state = RolloutState::of(
                &policy(json!({ "type": "RollingUpdate" }), told("RollingOut", "envoy:2", 2)),
                &PolicyRevisions::default(),
            );
            let state = state.as_mut().unwrap();
            (state.updated, state.matched) = (updated, matched);
            state.bar().chars().filter(|cell| *cell == '#').count()
        };
        assert_eq!([state(0, 60), state(30, 60), state(60, 60), state(0, 0), state(9, 3)], [0, 10, 20, 20, 20]);
    }
}
