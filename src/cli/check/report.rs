//! The findings of the checks, and their output.

use crate::api::code::Code;
use crate::cli::End;
use crate::cli::output::{Output, Printing, WIDE, counted};
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;
use std::io::Write;

/// The finding of one check.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct CheckItem {
    /// The checked subject.
    check: String,
    result: CheckLevel,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    message: String,
    /// The suggested fix.
    #[serde(skip_serializing_if = "String::is_empty")]
    fix: String,
}

/// The severity.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckLevel {
    Ok,
    /// A fact that needs no action.
    Info,
    Warning,
    /// The check could not be made.
    Unknown,
    Problem,
}

impl CheckLevel {
    fn word(self) -> &'static str {
        match self {
            CheckLevel::Ok => "ok",
            CheckLevel::Info => "info",
            CheckLevel::Warning => "warning",
            CheckLevel::Unknown => "UNKNOWN",
            CheckLevel::Problem => "PROBLEM",
        }
    }
}

impl CheckItem {
    pub(super) fn ok(check: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(check, CheckLevel::Ok, None, message)
    }

    pub(super) fn info(check: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(check, CheckLevel::Info, None, message)
    }

    pub(super) fn warning(check: impl Into<String>, code: Code, message: impl Into<String>) -> Self {
        Self::new(check, CheckLevel::Warning, Some(code), message)
    }

    pub(super) fn problem(check: impl Into<String>, code: Code, message: impl Into<String>) -> Self {
        Self::new(check, CheckLevel::Problem, Some(code), message)
    }

    /// A check that could not be made, for `reason`.
    pub(super) fn unknown(check: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::new(check, CheckLevel::Unknown, Some(Code::CannotTell), format!("{reason:#}"))
    }

    fn new(check: impl Into<String>, result: CheckLevel, code: Option<Code>, message: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            result,
            code: code.map(|code| code.to_string()),
            message: message.into(),
            fix: code.map_or(String::new(), |code| code.fix().to_owned()),
        }
    }

    /// The same finding with a better fix than that of its code.
    #[must_use]
    pub(super) fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }

    /// The same finding with the code that the operator has written, if it is a known code.
    #[must_use]
    pub(super) fn coded_as(self, code: Option<Code>) -> Self {
        match code {
            Some(code) => Self { code: Some(code.to_string()), fix: code.fix().to_owned(), ..self },
            None => self,
        }
    }

    #[cfg(test)]
    pub(super) fn told(&self) -> (CheckLevel, Option<&str>, &str) {
        (self.result, self.code.as_deref(), &self.message)
    }
}

/// All findings.
#[derive(Debug)]
pub(super) struct CheckReport {
    server: String,
    items: Vec<CheckItem>,
}

impl CheckReport {
    pub(super) fn new(server: &str) -> Self {
        Self { server: server.to_owned(), items: Vec::new() }
    }

    pub(super) fn add(&mut self, items: impl IntoIterator<Item = CheckItem>) {
        self.items.extend(items);
    }

    fn count(&self, level: CheckLevel) -> usize {
        self.items.iter().filter(|item| item.result == level).count()
    }

    fn headline(&self) -> String {
        let counts = [
            (CheckLevel::Problem, "problem", "problems"),
            (CheckLevel::Warning, "warning", "warnings"),
            (CheckLevel::Unknown, "unknown", "unknown"),
        ];
        let parts = counts.map(|(level, word, words)| match self.count(level) {
            0 => None,
            count => Some(counted(count, word, words)),
        });
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { "all is well".to_owned() } else { parts.join(", ") };
        format!("Kubernetes {}: {parts}", self.server)
    }

    pub(super) fn print(&self, printing: &Printing<WIDE>, out: &mut impl Write) -> Result<()> {
        let fields = || json!({ "server": self.server, "items": self.items });
        printing.output.report("CheckReport", fields, out, |out| self.tell(printing, out))
    }

    fn tell(&self, printing: &Printing<WIDE>, out: &mut impl Write) -> Result<()> {
        printing.line(self.headline(), out)?;
        let row = |item: &CheckItem| {
            let code = item.code.clone().unwrap_or("-".to_owned());
            [item.result.word().to_owned(), code, item.check.clone(), item.message.clone()]
        };
        if printing.output == Output::Wide {
            let rows = self.items.iter().map(|item| {
                let [result, code, check, message] = row(item);
                let fix = if item.fix.is_empty() { "-".to_owned() } else { item.fix.clone() };
                [result, code, check, message, fix]
            });
            return printing.section(["RESULT", "CODE", "CHECK", "MESSAGE", "FIX"], rows, out);
        }
        printing.section(["RESULT", "CODE", "CHECK", "MESSAGE"], self.items.iter().map(row), out)?;
        let fixes = self.items.iter().filter(|item| !item.fix.is_empty());
        printing.notes(fixes.map(|item| format!("{}: {}", item.check, item.fix)), out)
    }

    /// The exit code of the command.
    ///
    /// # Errors
    /// If there is no problem, but some checks could not be made.
    pub(super) fn end(&self, is_strict: bool) -> Result<End> {
        if self.count(CheckLevel::Problem) > 0 || (is_strict && self.count(CheckLevel::Warning) > 0) {
            return Ok(End::Finding);
        }
        match self.count(CheckLevel::Unknown) {
            0 => Ok(End::Fine),
            count => bail!("{count} checks could not be made: see above"),
        }
    }
}
