//! The oracle: judges the operator by the audit log of an API server and the final objects.
//!
//! It uses only public facts about the operator: its user, and the names in the contract. So it can judge a run of any
//! length, on any server, without the operator. [`rules`] has one row per rule.
//!
//! ```
//! use oracle::{Oracle, Site};
//!
//! let mut oracle = Oracle::new(Site::default());
//! let line = r#"{"auditID":"a1","verb":"delete","user":{"username":"system:serviceaccount:scpol-system:scpol"},
//!     "objectRef":{"resource":"configmaps","namespace":"shop","name":"web"},"responseStatus":{"code":200}}"#;
//! oracle.read(line.replace('\n', "").as_bytes())?;
//! let findings = oracle.findings(None);
//! assert_eq!(findings[0].to_string(), "O4 ours-to-write: configmaps shop/web [a1]: `delete` is not ours to do there");
//! # anyhow::Ok(())
//! ```

pub mod audit;
pub mod digest;
mod history;
pub mod patch;
pub mod pod;
mod rollout;
pub mod rules;
mod site;
pub mod state;

pub use digest::Digest;
pub use history::Write;
pub use rollout::Step;
pub use site::{Rest, Site, Target};
pub use state::State;

use anyhow::{Context, Result};
use audit::Event;
use history::History;
use std::fmt;
use std::io::BufRead;
use std::ops::RangeInclusive;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule, as in the tables of [`rules`].
    pub rule: &'static str,
    /// The object in the form `resource namespace/name`.
    pub object: String,
    /// The audit id of the request, if there is one.
    pub audit_id: Option<String>,
    /// The description of the violation.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.object)?;
        if let Some(id) = &self.audit_id {
            write!(f, " [{id}]")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The judge of one run, event by event.
pub struct Oracle {
    site: Site,
    history: History,
    findings: Vec<Finding>,
    writes: usize,
}

impl Oracle {
    /// An oracle without any events.
    pub fn new(site: Site) -> Self {
        Self { site, history: History::default(), findings: Vec::new(), writes: 0 }
    }

    /// Records the workloads, policies and namespaces that are stored before the log begins.
    pub fn begin(&mut self, state: &State) {
        self.history.begin(&self.site, state);
    }

    /// Reads an audit log line by line. The last line may be incomplete.
    ///
    /// # Errors
    /// If the log is unreadable, or a line before the last one is no audit event.
    pub fn read(&mut self, log: impl BufRead) -> Result<()> {
        let mut torn: Option<(usize, serde_json::Error)> = None;
        for (number, line) in log.lines().enumerate() {
            let line = line.context("the audit log cannot be read")?;
            if let Some((number, error)) = torn {
                return Err(error).with_context(|| format!("line {number} of the audit log is no audit event"));
            }
            match serde_json::from_str(&line) {
                Ok(event) => self.see(&event),
                Err(error) => torn = Some((number + 1, error)),
            }
        }
        Ok(())
    }

    /// Judges one event.
    pub fn see(&mut self, event: &Event) {
        let Some(write) = self.history.see(&self.site, event) else { return };
        self.writes += 1;
        for rule in &rules::WRITES {
            self.findings.extend((rule.check)(&self.site, &write).map(|message| Finding {
                rule: rule.name,
                object: event.object(),
                audit_id: Some(event.audit_id.clone()),
                message,
            }));
        }
    }

    /// The number of the operator's writes so far, including dry runs.
    pub fn writes(&self) -> usize {
        self.writes
    }

    /// The number of the operator's writes of a workload, which is named as in `deployments shop/web`. It is a range if
    /// the log has doubtful writes.
    pub fn written(&self, workload: &str) -> RangeInclusive<u64> {
        self.history.writes().get(workload).copied().unwrap_or_default().range()
    }

    /// All findings so far, and those in the final `state`.
    pub fn findings(&self, state: Option<&State>) -> Vec<Finding> {
        let mut findings = self.findings.clone();
        findings.extend(self.history.crowds().into_iter().map(|crowd| Finding {
            rule: rules::IN_TURN.0,
            object: crowd.object,
            audit_id: Some(crowd.audit_id),
            message: crowd.message,
        }));
        let Some(state) = state else { return findings };
        for rule in &rules::STATES {
            findings.extend((rule.check)(&self.site, state).into_iter().map(|(object, message)| Finding {
                rule: rule.name,
                object,
                audit_id: None,
                message,
            }));
        }
        findings
    }

    /// The digest for the comparison with a run without faults.
    pub fn digest(&self, state: &State) -> Digest {
        Digest::new(&self.site, state, self.history.writes())
    }
}
