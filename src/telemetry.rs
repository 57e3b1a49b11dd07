//! Logs: JSON in a cluster, text on a terminal, one line per decision.

use crate::api::code::Code;
use crate::decision::Outcome;
use crate::outside::{is_unsafe, shown};
use crate::survival::lock;
use crate::workload::Workload;
use clap::ValueEnum;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, debug, info, warn};
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object per line.
    Json,
    /// Text for people.
    Text,
}

/// Starts logging to standard error. `level` is a level or a list by module, for example `info` or `info,kube=debug`.
///
/// # Errors
/// If `level` cannot be parsed.
pub fn start(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let levels = levels(level)?;
    let terminal = std::io::stderr().is_terminal();
    // `choice` knows `--color` and NO_COLOR.
    let has_colors = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let is_json = matches!((format, terminal), (LogFormat::Json, _) | (LogFormat::Auto, false));
    let writer = move || Safe { to: std::io::stderr(), is_json };
    let lines = fmt::layer().with_writer(writer).with_ansi(has_colors);
    let lines = match is_json {
        true => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
        false => lines.with_target(false).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(levels.and(News::default()))).init();
    Ok(())
}

/// The libraries of the client, with the level of their messages. Those of kube are off, because it logs each failed
/// request, and our caller logs it again with its purpose.
const LIBRARIES: [(&str, LevelFilter); 6] = [
    ("kube_client", LevelFilter::OFF),
    ("kube_runtime", LevelFilter::OFF),
    ("hyper", LevelFilter::WARN),
    ("tower", LevelFilter::WARN),
    ("rustls", LevelFilter::WARN),
    ("h2", LevelFilter::WARN),
];

/// The levels of `level`, with those of [`LIBRARIES`] for the libraries that it does not name.
fn levels(level: &str) -> anyhow::Result<Targets> {
    let unreadable =
        |why: &str| anyhow::anyhow!("--log-level `{level}` is no level such as `info` or `info,kube=debug`: {why}");
    let given: Targets = level.parse().map_err(|error| unreadable(&format!("{error}")))?;
    // A word alone would be a library with all levels.
    let is_library = |part: &&str| !part.contains('=') && part.trim().parse::<LevelFilter>().is_err();
    if let Some(part) = level.split(',').find(is_library) {
        return Err(unreadable(&format!("`{part}` is none of error, warn, info, debug, trace, off")));
    }
    let names = |library: &str| given.iter().any(|(target, _)| library.starts_with(target));
    let default = given.default_level().unwrap_or(LevelFilter::OFF);
    let quiet = LIBRARIES.into_iter().filter(|(library, _)| !names(library));
    Ok(given.clone().with_targets(quiet.map(|(library, level)| (library, level.min(default)))))
}

/// The time after which a repeated line is logged again.
const REMINDER: Duration = Duration::from_secs(60);
/// The most different warnings and errors in that time. Texts from outside can make each line another one.
const LINES: usize = 1000;

/// Passes a warning or an error only if no line with the same fields was logged within the last minute. So a failure that
/// lasts, and one that has two messages in turn, is one line a minute. No more than [`LINES`] different ones pass in a minute.
/// Each decision is news.
#[derive(Default)]
struct News(Mutex<Logged>);

#[derive(Default)]
struct Logged {
    /// When lines were logged last, by the hash of their fields.
    lines: HashMap<u64, Instant>,
    /// When the old ones were last forgotten: once a minute, because in a crowd each line can be another one.
    tidied: Option<Instant>,
}

impl News {
    fn is_news(&self, line: u64, now: Instant) -> bool {
        let is_over = |at: Instant| now.duration_since(at) >= REMINDER;
        let mut logged = lock(&self.0);
        if logged.tidied.is_none_or(is_over) {
            logged.lines.retain(|_, at| !is_over(*at));
            logged.tidied = Some(now);
        }
        let is_news = match logged.lines.get(&line) {
            Some(at) => is_over(*at),
            None => logged.lines.len() < LINES,
        };
        if is_news {
            logged.lines.insert(line, now);
        }
        is_news
    }
}

impl<S: Subscriber> Filter<S> for News {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        // This module logs decisions only.
        if *event.metadata().level() > Level::WARN || event.metadata().target() == module_path!() {
            return true;
        }
        let mut line = Line(DefaultHasher::new());
        event.metadata().target().hash(&mut line.0);
        event.record(&mut line);
        self.is_news(line.0.finish(), Instant::now())
    }
}

/// Hashes the fields of a line.
struct Line(DefaultHasher);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        field.name().hash(&mut self.0);
        format!("{value:?}").hash(&mut self.0);
    }
}

/// The workload of a decision, in a log line.
pub(crate) struct About {
    resource: String,
    namespace: String,
    name: String,
}

impl About {
    /// `workload`. It appears by its `generateName` if it has no name.
    pub(crate) fn of(workload: &Workload) -> Self {
        let name = Some(workload.name()).filter(|name| !name.is_empty());
        let name = name.or_else(|| workload.body["metadata"]["generateName"].as_str()).unwrap_or_default();
        Self {
            resource: workload.kind.resource.clone(),
            namespace: shown(workload.namespace()).into_owned(),
            name: shown(name).into_owned(),
        }
    }
}

/// The rate of lines about decisions: users decide how many workloads they create, and callers of the webhook how many
/// reviews they post.
struct Rate {
    /// The lines that may follow at once.
    left: f64,
    filled: Option<Instant>,
    /// The decisions that were not logged since the last line.
    missed: u64,
}

/// The decisions that are logged each second, sustained. More than any measured cluster creates workloads.
const DECISIONS: f64 = 200.0;
/// The decisions that are logged at once.
const DECISIONS_AT_ONCE: f64 = 2000.0;

impl Rate {
    /// The decisions that were not logged before this one; none if this one is not logged either.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let passed = self.filled.replace(now).map_or(0.0, |filled| now.duration_since(filled).as_secs_f64());
        self.left = (self.left + DECISIONS * passed).min(DECISIONS_AT_ONCE);
        if self.left < 1.0 {
            self.missed += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.missed))
    }
}

static RATE: Mutex<Rate> = Mutex::new(Rate { left: DECISIONS_AT_ONCE, filled: None, missed: 0 });

/// Logs the outcome of `policy` for a workload.
pub(crate) fn decided(about: &About, policy: &str, outcome: Outcome, code: Code, detail: &str) {
    let (About { resource, namespace, name }, result) = (about, outcome.label());
    let detail = &*shown(detail);
    // Debug, because most policies skip most workloads: with hundreds of policies a create would log hundreds of lines.
    if outcome == Outcome::Skipped {
        debug!(policy, resource, namespace, name, result, %code, reason = code.name(), detail, "Decided");
        return;
    }
    match lock(&RATE).take(Instant::now()) {
        None => return,
        Some(0) => {}
        Some(decisions) => warn!(decisions, "Some decisions were not logged: too many at once"),
    }
    match outcome {
        Outcome::Failed | Outcome::Rejected => {
            warn!(policy, resource, namespace, name, result, %code, reason = code.name(), detail, "Decided");
        }
        Outcome::Injected | Outcome::Skipped => {
            info!(policy, resource, namespace, name, result, %code, reason = code.name(), detail, "Decided");
        }
    }
}

/// Writes log lines to `to` without characters that a terminal obeys. Each call writes one line.
struct Safe<W> {
    to: W,
    /// JSON has its own escapes. In text, the formatter has escaped what it did not write itself for colours.
    is_json: bool,
}

impl<W: Write> Write for Safe<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (text, end) = text.strip_suffix('\n').map_or((&*text, ""), |text| (text, "\n"));
        let is_escaped = |character: char| is_unsafe(character) && (self.is_json || character != '\u{1b}');
        let mut safe = String::with_capacity(line.len());
        for character in text.chars() {
            match character {
                character if !is_escaped(character) => safe.push(character),
                character if self.is_json => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        safe.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                character => safe.extend(character.escape_default()),
            }
        }
        safe.push_str(end);
        self.to.write_all(safe.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn libraries_are_quiet_unless_they_are_named() {
        for (level, target, logged, silent) in [
            ("info", "sidecar_policy::cli", Some(Level::INFO), Some(Level::DEBUG)),
            ("info", "kube_client::client::builder", None, Some(Level::ERROR)),
            ("debug", "kube_runtime::watcher", None, Some(Level::ERROR)),
            ("debug", "hyper_util::client", Some(Level::WARN), Some(Level::INFO)),
            ("error", "rustls", Some(Level::ERROR), Some(Level::WARN)),
            ("info,kube=debug", "kube_client::client", Some(Level::DEBUG), Some(Level::TRACE)),
            ("info,kube=debug", "hyper::proto", Some(Level::WARN), Some(Level::INFO)),
            ("info,hyper_util=trace", "hyper_util::client", Some(Level::TRACE), None),
        ] {
            let levels = levels(level).expect("levels");
            for (logs, expected) in [(logged, true), (silent, false)] {
                let is_logged = logs.map(|logs| levels.would_enable(target, &logs));
                assert!(is_logged.is_none_or(|is_logged| is_logged == expected), "{level} {target} {logs:?}");
            }
        }
        assert!(levels("loud").is_err() && levels("info,kube=loud").is_err());
    }

    /// The lines that `write` logs.
    fn logged(write: impl FnOnce()) -> Vec<String> {
        let written = Arc::new(Mutex::new(Vec::new()));
        let lines = fmt::layer().without_time().with_target(false).with_ansi(false).with_writer({
            let written = written.clone();
            move || Sink(written.clone())
        });
        let filter = LevelFilter::INFO.and(News::default());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.with_filter(filter)), write);
        let written = lock(&written).clone();
        String::from_utf8(written).expect("UTF-8").lines().map(|line| line.trim().to_owned()).collect()
    }

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_failure_that_repeats_is_logged_once_and_all_else_each_time() {
        const ELSEWHERE: &str = "sidecar_policy::elsewhere";
        let lines = logged(|| {
            for error in ["a", "a", "b", "a"] {
                warn!(target: ELSEWHERE, error, "Watch failed");
            }
            warn!(target: ELSEWHERE, resource = "pods", error = "a", "Watch failed");
            for _ in 0..2 {
                info!(target: ELSEWHERE, "Registered");
                warn!(target: "sidecar_policy::telemetry", policy = "envoy", "Decided");
            }
        });
        let expected = [
            r#"WARN Watch failed error="a""#,
            r#"WARN Watch failed error="b""#,
            r#"WARN Watch failed resource="pods" error="a""#,
            "INFO Registered",
            r#"WARN Decided policy="envoy""#,
            "INFO Registered",
            r#"WARN Decided policy="envoy""#,
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_failure_that_lasts_is_logged_once_a_minute() {
        let (news, now) = (News::default(), Instant::now());
        let at = |seconds| news.is_news(1, now + Duration::from_secs(seconds));
        assert_eq!([at(0), at(59), at(60), at(61)], [true, false, true, false]);
        for seconds in 62..300 {
            news.is_news(seconds, now + Duration::from_secs(seconds));
        }
        assert!(lock(&news.0).lines.len() <= 120, "old lines are forgotten");
    }

    #[test]
    fn different_lines_are_no_flood_and_decisions_neither() {
        let (news, now) = (News::default(), Instant::now());
        let passed = (0..5000).filter(|line| news.is_news(*line, now)).count();
        assert_eq!(passed, LINES);
        assert!(news.is_news(7777, now + REMINDER));
        let mut rate = Rate { left: DECISIONS_AT_ONCE, filled: None, missed: 0 };
        let passed = (0..5000).filter(|_| rate.take(now).is_some()).count();
        assert_eq!(passed as f64, DECISIONS_AT_ONCE);
        assert_eq!(rate.take(now + Duration::from_secs(1)), Some(3000), "and the next line says how many");
        assert_eq!(rate.take(now + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn a_line_obeys_nobody() {
        let hostile = "a\u{1b}[2J\u{9b}1m\u{202e}b\u{e0001}\nWARN forged";
        let written = |line: &str, is_json: bool| {
            let mut bytes = Vec::new();
            Safe { to: &mut bytes, is_json }.write_all(line.as_bytes()).expect("memory");
            String::from_utf8(bytes).expect("UTF-8")
        };
        let json = serde_json::json!({ "name": hostile }).to_string();
        let line = written(&format!("{json}\n"), true);
        assert!(line.ends_with("}\n") && !line.trim_end().contains(is_unsafe), "{line:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("JSON")["name"], hostile, "the same data");
        let line = written("name=a\u{202e}b\nWARN forged\n", false);
        assert_eq!(line, "name=a\\u{202e}b\\nWARN forged\n");
    }
}
