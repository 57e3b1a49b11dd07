//! `exceptions.yaml`: the cases of `tests/golden` in which an engine and files differ or cannot be compared, each with its
//! reason. `parity.rs` checks every verdict. `docs/engines.md` shows the file as a table.

use crate::corpus;
use crate::engine::EngineName;
use crate::support::file;
use anyhow::{Context, Result, bail, ensure};
use controlplane::{Feature, Version};
use serde::Deserialize;
use sidecar_policy::api::code::Code;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fmt::Write;

crate::tests![
    every_exception_names_a_case_and_a_reason_and_stands_once,
    a_new_difference_and_an_exception_that_no_longer_holds_are_faults,
    the_table_in_the_documentation_is_current,
];

const FILE: &str = "tests/apiserver/exceptions.yaml";
const PAGE: &str = "docs/engines.md";
/// The markers around the table in [`PAGE`].
const BEGIN: &str = "<!-- begin: tests/apiserver/exceptions.yaml -->\n";
const END: &str = "<!-- end: tests/apiserver/exceptions.yaml -->\n";

/// An engine on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) engine: EngineName,
    pub(crate) version: Version,
}

impl Setup {
    /// Every engine on every version that has it.
    fn all() -> impl Iterator<Item = Self> {
        let has = |engine, version: Version| match engine {
            EngineName::Initializer => version.has_initializers(),
            EngineName::Webhook => true,
            EngineName::MutatingAdmissionPolicy => version.has(Feature::MutatingAdmissionPolicy),
        };
        let of = move |version| EngineName::ALL.iter().map(move |engine| Self { engine: *engine, version });
        Version::all().flat_map(of).filter(move |setup| has(setup.engine, setup.version))
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.engine, self.version.short())
    }
}

/// An engine on some versions: `Webhook 1.13`, `Webhook 1.16-1.20`, or `Webhook 1.36+`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
struct Setups {
    engine: EngineName,
    /// The first minor version.
    first: u32,
    /// The last minor version; none for all later ones.
    last: Option<u32>,
}

impl Setups {
    fn has(&self, setup: Setup) -> bool {
        self.engine == setup.engine && self.covers(setup.version)
    }

    fn covers(&self, version: Version) -> bool {
        let minor = version.minor();
        self.first <= minor && self.last.is_none_or(|last| minor <= last)
    }

    fn versions(&self) -> String {
        match self.last {
            None => format!("from 1.{} on", self.first),
            Some(last) if last == self.first => format!("on 1.{last}"),
            Some(last) => format!("from 1.{} to 1.{last}", self.first),
        }
    }
}

impl TryFrom<String> for Setups {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let read = || {
            let (engine, versions) = text.split_once(' ')?;
            let engine = *EngineName::ALL.iter().find(|known| known.name() == engine)?;
            let minor = |version: &str| version.strip_prefix("1.")?.parse().ok();
            let (first, last) = match (versions.strip_suffix('+'), versions.split_once('-')) {
                (Some(first), _) => (minor(first)?, None),
                (_, Some((first, last))) => (minor(first)?, Some(minor(last)?)),
                _ => (minor(versions)?, Some(minor(versions)?)),
            };
            Some(Self { engine, first, last })
        };
        read().ok_or_else(|| format!("`{text}` is not like `Webhook 1.13`, `Webhook 1.16-1.20` or `Webhook 1.36+`"))
    }
}

/// The result of a case.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) enum Verdict {
    /// The server stores the same.
    Agrees,
    /// The server stores something else.
    Differs,
    /// The server rejects the workload, with the sidecar and without it, so there is nothing to compare.
    Refused,
    /// The engine does not serve a policy of the case, for this reason.
    NotServed(Code),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agrees => f.write_str("Agrees"),
            Self::Differs => f.write_str("Differs"),
            Self::Refused => f.write_str("Refused"),
            Self::NotServed(code) => code.fmt(f),
        }
    }
}

impl TryFrom<String> for Verdict {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let codes = Code::ALL.iter().copied().map(Self::NotServed);
        let known = [Self::Differs, Self::Refused].into_iter().chain(codes).find(|verdict| verdict.to_string() == text);
        known.ok_or_else(|| format!("`{text}` is neither `Differs`, nor `Refused`, nor a code"))
    }
}

/// Cases with one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    reason: String,
    setups: Vec<Setups>,
    verdict: Verdict,
    cases: Vec<String>,
}

impl Exception {
    /// Its cases among `all`. `parameter-*` is each whose name begins like that.
    fn cases(&self, all: &[String]) -> Vec<String> {
        let is_meant = |name: &str, case: &str| match name.strip_suffix('*') {
            Some(prefix) => case.starts_with(prefix),
            None => name == case,
        };
        let of_name = |name: &String| all.iter().filter(|case| is_meant(name, case)).cloned().collect::<Vec<_>>();
        self.cases.iter().flat_map(of_name).collect()
    }
}

fn read() -> Result<Vec<Exception>> {
    serde_saphyr::from_str(&std::fs::read_to_string(file(FILE))?).context(FILE)
}

/// The exceptions of one setup.
pub(crate) struct Exceptions {
    setup: Setup,
    /// The verdict and the reason, by case.
    expected: BTreeMap<String, (Verdict, String)>,
}

impl Exceptions {
    pub(crate) fn of(setup: Setup) -> Result<Self> {
        let (all, mut expected) = (corpus::names()?, BTreeMap::new());
        for exception in read()?.into_iter().filter(|exception| exception.setups.iter().any(|setups| setups.has(setup)))
        {
            for case in exception.cases(&all) {
                expected.insert(case, (exception.verdict, exception.reason.clone()));
            }
        }
        Ok(Self { setup, expected })
    }

    /// True if and only if the case is an exception.
    pub(crate) fn has(&self, case: &str) -> bool {
        self.expected.contains_key(case)
    }

    /// The reasons for which some policies are not served.
    pub(crate) fn codes(&self) -> Vec<Code> {
        let codes = self.expected.values().filter_map(|(verdict, _)| match verdict {
            Verdict::NotServed(code) => Some(*code),
            _ => None,
        });
        codes.collect()
    }

    /// The fault of a case with the verdict `found`: a verdict that is not in the file, or one in the file that no
    /// longer holds.
    pub(crate) fn fault(&self, case: &str, found: Verdict, detail: &str) -> Option<String> {
        let setup = self.setup;
        match self.expected.get(case) {
            None if found == Verdict::Agrees => None,
            None => Some(format!(
                "{case}: {found} on {setup}: {detail}\n  Fix it, or add the case to {FILE} with the reason."
            )),
            Some((expected, _)) if found == *expected => None,
            Some((_, reason)) if found == Verdict::Agrees => Some(format!(
                "{case}: agrees on {setup}: the exception \"{reason}\" no longer holds. Remove it from {FILE}."
            )),
            Some((expected, reason)) => Some(format!(
                "{case}: {found} on {setup}: {detail}\n  {FILE} expects {expected}: \"{reason}\". Correct it there."
            )),
        }
    }
}

async fn every_exception_names_a_case_and_a_reason_and_stands_once() -> Result<()> {
    let (cases, mut seen) = (corpus::names()?, BTreeSet::new());
    for exception in read()? {
        let named = exception.cases(&cases);
        let Exception { reason, setups, cases: names, .. } = exception;
        ensure!(!reason.is_empty() && !setups.is_empty() && !names.is_empty(), "{FILE}: \"{reason}\" is incomplete");
        for name in names.iter().filter(|name| !name.ends_with('*')) {
            ensure!(cases.contains(name), "{FILE}: \"{reason}\": tests/golden has no case `{name}`");
        }
        for case in named {
            for setup in Setup::all().filter(|setup| setups.iter().any(|setups| setups.has(*setup))) {
                ensure!(seen.insert((case.clone(), setup.to_string())), "{FILE}: `{case}` stands twice for {setup}");
            }
        }
    }
    Ok(())
}

async fn a_new_difference_and_an_exception_that_no_longer_holds_are_faults() -> Result<()> {
    let setup = Setup { engine: EngineName::Webhook, version: Version::NEWEST };
    let known = [("differs", Verdict::Differs), ("unserved", Verdict::NotServed(Code::FailNotSafe))];
    let expected = known.map(|(case, verdict)| (case.to_owned(), (verdict, "why".to_owned())));
    let exceptions = Exceptions { setup, expected: expected.into() };
    for (case, found, expected) in [
        ("other", Verdict::Agrees, None),
        ("differs", Verdict::Differs, None),
        ("unserved", Verdict::NotServed(Code::FailNotSafe), None),
        ("other", Verdict::Refused, Some("add the case to")),
        ("differs", Verdict::Agrees, Some("\"why\" no longer holds")),
        ("differs", Verdict::Refused, Some("expects Differs")),
        ("unserved", Verdict::NotServed(Code::NotExpressible), Some("expects SCP0325")),
    ] {
        let fault = exceptions.fault(case, found, "detail");
        match expected {
            None => assert_eq!(fault, None),
            Some(words) => assert!(fault.as_ref().is_some_and(|fault| fault.contains(words)), "{fault:?}"),
        }
    }
    Ok(())
}

async fn the_table_in_the_documentation_is_current() -> Result<()> {
    let page = std::fs::read_to_string(file(PAGE))?;
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
    let (before, (there, after)) = parts.with_context(|| format!("{PAGE} has no place for the table"))?;
    let table = table(&read()?)?;
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file(PAGE), format!("{before}{BEGIN}{table}{END}{after}"))?;
    } else if there != table {
        bail!("the table in {PAGE} is stale: run `UPDATE=1 cargo test --test apiserver exceptions`");
    }
    Ok(())
}

/// A row for each exception.
fn table(exceptions: &[Exception]) -> Result<String> {
    let mut table = "| engine, server | reason | cases |\n|---|---|---|\n".to_owned();
    for exception in exceptions {
        let code = match exception.verdict {
            Verdict::NotServed(code) => format!(" ({code})"),
            _ => String::new(),
        };
        let cases: Vec<String> = exception.cases.iter().map(|case| format!("`{case}`")).collect();
        writeln!(table, "| {} | {}{code} | {} |", places(&exception.setups), exception.reason, cases.join(", "))?;
    }
    Ok(table)
}

/// The setups in as few words as possible.
fn places(setups: &[Setups]) -> String {
    let is_meant = |setup: &Setup| setups.iter().any(|setups| setups.has(*setup));
    if Setup::all().all(|setup| is_meant(&setup)) {
        return "all".to_owned();
    }
    let mut places: Vec<String> = Vec::new();
    for own in setups {
        let is_whole = Setup::all().filter(|setup| own.covers(setup.version)).all(|setup| is_meant(&setup));
        let engine = if is_whole { "all" } else { own.engine.name() };
        let place = format!("{engine} {}", own.versions());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.join(", ")
}
