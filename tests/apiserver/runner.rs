//! The test runner: many tests at once, the longest first, each with its duration.

use crate::{chaos, conformance, support};
use anyhow::{Context, Result};
use controlplane::{Version, pool, seconds};
use futures::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The number of concurrent tests, each with its own server, which takes up to 500 MB. Eight keep two processors busy.
const AT_ONCE: usize = 8;
/// The number of slowest tests in the summary.
const SLOWEST: usize = 30;
/// The characters of a failure that are repeated at the end.
const REASON: usize = 1500;
/// The failures, with reasons.
static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The tests that ran once more, with the reasons.
static RETRIED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One test on real servers.
#[derive(Clone, Copy)]
pub(crate) struct Test {
    /// The name `file::function`, after that of this program.
    pub(crate) name: &'static str,
    pub(crate) run: fn() -> LocalBoxFuture<'static, Result<()>>,
}

/// Names the tests of a file as its `TESTS`. Each is an `async fn() -> Result<()>`, or a call of a function that other tests
/// call as well.
#[macro_export]
macro_rules! tests {
    (@call $name:ident) => { $name() };
    (@call $name:ident $call:expr) => { $call };
    ($($name:ident $(= $call:expr)?,)*) => {
        pub(crate) const TESTS: &[$crate::runner::Test] = &[$($crate::runner::Test {
            name: concat!(module_path!(), "::", stringify!($name)),
            run: || Box::pin($crate::tests!(@call $name $($call)?)),
        }),*];
    };
}

/// Runs a test on each version.
pub(crate) async fn on_each<F: Future<Output = Result<()>>>(
    versions: [Version; 2],
    test: fn(Version) -> F,
) -> Result<()> {
    for version in versions {
        test(version).await.with_context(|| format!("{version:?}"))?;
    }
    Ok(())
}

/// Runs `tests`, the cases of [`chaos`] and those of [`conformance`] according to the arguments of this process.
pub(crate) fn run(tests: Vec<Test>) -> ExitCode {
    pool::share();
    let mut arguments = Arguments::from_args();
    let at_once = std::env::var("SCPOL_TEST_SERVERS").ok().and_then(|count| count.parse().ok());
    arguments.test_threads = arguments.test_threads.or(at_once).or(Some(AT_ONCE));
    let of_files = tests.into_iter().map(|test| {
        let name = test.name.split_once("::").map_or(test.name, |(_, name)| name);
        trial(name.to_owned(), test.run)
    });
    let of_versions = match conformance::trials() {
        Ok(trials) => trials,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let mut trials: Vec<Trial> = of_files.chain(chaos::trials()).chain(of_versions).collect();
    // Tests that are not in the list are short.
    let longest: Vec<&str> = include_str!("longest.txt").lines().collect();
    let is_there = |name: &&str| trials.iter().any(|trial| trial.name() == *name);
    // Another seed than usual is another name.
    let is_seed_chosen = std::env::var_os("SCPOL_CHAOS_SEED").is_some();
    let may_be_gone = |name: &str| is_seed_chosen && name.contains(" seed ");
    if let Some(gone) = longest.iter().find(|name| !is_there(name) && !may_be_gone(name)) {
        eprintln!("error: tests/apiserver/longest.txt names `{gone}`, which is no test: take it out");
        return ExitCode::from(2);
    }
    trials.sort_by_key(|trial| longest.iter().position(|name| *name == trial.name()).unwrap_or(longest.len()));
    let conclusion = libtest_mimic::run(&arguments, trials);
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let taken = seconds::taken();
    if let Err(error) = tell(&taken) {
        eprintln!("the seconds cannot be written: {error}");
    }
    // At the end, where a reader of the end of a log finds it.
    for why in [&RETRIED, &FAILED].iter().flat_map(|kept| support::lock(kept).clone()) {
        eprintln!("\n{}", why.chars().take(REASON).collect::<String>());
    }
    if conclusion.num_passed + conclusion.num_failed == 0 {
        eprintln!("error: no test is named like that: `--list` names them");
        return ExitCode::from(2);
    }
    conclusion.exit_code()
}

/// A test that runs alone on its thread, with its duration, and with notes if it fails. It may run once more: see
/// [`may_run_again`].
pub(crate) fn trial(name: String, run: impl Fn() -> LocalBoxFuture<'static, Result<()>> + Send + 'static) -> Trial {
    let shown = name.clone();
    Trial::test(name, move || {
        let Err(mut why) = attempt(&shown, &run) else { return Ok(()) };
        if may_run_again(&shown) {
            tell_at_once(&RETRIED, format!("RETRIED {shown}: {why}"));
            match attempt(&shown, &run) {
                Ok(()) => return Ok(()),
                Err(again) => why = again,
            }
        }
        tell_at_once(&FAILED, format!("FAILED {shown}: {why}"));
        Err(Failed::from(why))
    })
}

/// Runs a test. The error has its notes.
fn attempt(name: &str, run: impl Fn() -> LocalBoxFuture<'static, Result<()>>) -> Result<(), String> {
    let begin = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(run())
    }));
    seconds::took(format!("test {name}"), begin);
    let notes = support::take_notes();
    let why = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => {
            let told = panic.downcast_ref::<String>().map(String::as_str);
            told.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it has panicked").to_owned()
        }
    };
    Err(format!("{why}\n{notes}"))
}

/// Whether a failed test may run once more: so many times in a run as `SCPOL_TEST_RETRIES` says, by default never. Such a
/// test is printed as `RETRIED`, and `make slowest` lists it. Races are what chaos and conformance look for, so a failure
/// there counts.
fn may_run_again(name: &str) -> bool {
    static USED: AtomicUsize = AtomicUsize::new(0);
    if name.starts_with("chaos::") || name.starts_with("conformance::") {
        return false;
    }
    let most = std::env::var("SCPOL_TEST_RETRIES").ok().and_then(|most| most.parse().ok()).unwrap_or(0);
    USED.fetch_add(1, Ordering::Relaxed) < most
}

/// Prints `why` at once, because the other tests may take minutes, and keeps it for the end.
fn tell_at_once(kept: &Mutex<Vec<String>>, why: String) {
    eprintln!("{why}");
    support::lock(kept).push(why);
}

/// Prints the slowest tests, and writes all durations to `target/seconds/servers.txt`, one per line.
fn tell(taken: &[(String, f64)]) -> Result<()> {
    let mut lines = String::new();
    for (what, seconds) in taken {
        writeln!(lines, "{seconds:8.1} s  {what}")?;
    }
    let of_tests: Vec<&str> = lines.lines().filter(|line| line.contains(" s  test ")).take(SLOWEST).collect();
    eprintln!("\nthe slowest tests:\n{}", of_tests.join("\n"));
    for what in ["start", "reset"] {
        let these: Vec<f64> =
            taken.iter().filter(|(name, _)| name.starts_with(what)).map(|(_, seconds)| *seconds).collect();
        eprintln!("{:8.1} s  in {} {what}s of servers", these.iter().sum::<f64>(), these.len());
    }
    let retried = support::lock(&RETRIED)
        .iter()
        .map(|why| why.chars().take(REASON).collect::<String>() + "\n")
        .collect::<String>();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/seconds");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("retried.txt"), retried)?;
    Ok(std::fs::write(folder.join("servers.txt"), lines)?)
}
