//! `oracle`: judges a run of the operator by the API server's audit log.

#![allow(clippy::print_stdout, reason = "findings go to standard output")]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use oracle::{Digest, Oracle, Rest, Site, State, Target, rules};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

/// Judge a run of the operator by the API server's audit log. Exit code 0: nothing found, 1: findings, 2: could not tell.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The audit log, JSON lines of audit.k8s.io/v1 or v1beta1; write bodies must be in it (level Request, better RequestResponse)
    #[arg(long, value_name = "FILE", required_unless_present = "rules")]
    audit: Option<PathBuf>,
    /// What is stored in the end, as `kubectl get .. -o json` prints it; uninitialized objects must be in it
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// What is stored before the log begins, in the same form: workloads, policies, namespaces
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// A kind that was listed for it, even if there is no object of that kind (repeatable): else nobody knows that it was looked for
    #[arg(long, value_name = "KIND", requires = "state")]
    listed: Vec<String>,
    /// The user that the operator is
    #[arg(long, value_name = "NAME", default_value_t = Site::default().user)]
    user: String,
    /// The namespace that the operator runs in
    #[arg(long, value_name = "NAME", default_value_t = Site::default().namespace)]
    namespace: String,
    /// An initializer name outside scpol.dev that is the operator's, too (repeatable)
    #[arg(long, value_name = "NAME")]
    initializer_name: Vec<String>,
    /// A custom resource that policies target (repeatable)
    #[arg(long, value_name = "GROUP/RESOURCE[=/PATH]")]
    target: Vec<Target>,
    /// A span of time in which nothing but the lease may be written
    #[arg(long, value_name = "FROM..TO")]
    rest: Option<Rest>,
    /// A field that differs from run to run (repeatable)
    #[arg(long, value_name = "NAME")]
    mask: Vec<String>,
    /// The digest of a run of the same scenario without faults (repeatable: it is enough to be like one of them)
    #[arg(long, value_name = "FILE", requires = "state")]
    against: Vec<PathBuf>,
    /// Where to write the digest of this run
    #[arg(long, value_name = "FILE", requires = "state")]
    write_digest: Option<PathBuf>,
    /// List the rules and end
    #[arg(long)]
    rules: bool,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether there are no findings.
fn run(options: Options) -> Result<bool> {
    if options.rules {
        let writes = rules::WRITES.iter().map(|rule| (rule.name, rule.wants));
        let states = rules::STATES.iter().map(|rule| (rule.name, rule.wants));
        writes.chain([rules::IN_TURN]).chain(states).for_each(|(name, wants)| println!("{name}: {wants}"));
        return Ok(true);
    }
    let site = Site {
        user: options.user,
        namespace: options.namespace,
        initializers: options.initializer_name,
        targets: options.target,
        rest: options.rest,
        masked: options.mask,
    };
    let user = site.user.clone();
    let mut oracle = Oracle::new(site);
    if let Some(before) = &options.before {
        oracle.begin(&State::new(json(before)?)?);
    }
    if let Some(audit) = &options.audit {
        oracle.read(BufReader::new(open(audit)?))?;
    }
    ensure!(
        oracle.writes() > 0,
        "nothing in the audit log was written by `{user}`: nothing can be told about it (--user)"
    );
    let state = options
        .state
        .as_ref()
        .map(|path| anyhow::Ok(State::new(json(path)?)?.with_listed(options.listed.clone())))
        .transpose()?;
    let mut findings = oracle.findings(state.as_ref());
    if let Some(digest) = state.as_ref().map(|state| oracle.digest(state)) {
        let others = options.against.iter().map(json).collect::<Result<Vec<Digest>>>()?;
        findings.extend(digest.compare(&others));
        if let Some(path) = &options.write_digest {
            serde_json::to_writer_pretty(File::create(path)?, &digest).with_context(|| path.display().to_string())?;
        }
    }
    findings.iter().for_each(|finding| println!("{finding}"));
    println!("{} writes by {user}, {} findings", oracle.writes(), findings.len());
    Ok(findings.is_empty())
}

fn open(path: &PathBuf) -> Result<File> {
    File::open(path).with_context(|| path.display().to_string())
}

fn json<T: serde::de::DeserializeOwned>(path: &PathBuf) -> Result<T> {
    serde_json::from_reader(BufReader::new(open(path)?)).with_context(|| path.display().to_string())
}
