//! The picture of the dashboard: its panels with what a real Prometheus answered in a run of `record.sh`.
//!
//! `dashboard.json` has that run. This draws it: Grafana itself is not needed.

use super::escaped;
use crate::tools::{assert_current, root};
use regex::Regex;
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const RECORDING: &str = "tests/pictures/dashboard.json";
const SECONDS: u32 = 240;
/// A panel, in pixels, and the plot in it.
const PANEL: (usize, usize) = (300, 194);
const PLOT: (f64, f64, f64, f64) = (54.0, 38.0, 228.0, 92.0);
const GAP: usize = 10;
const ROW: usize = 34;
const COLORS: [&str; 6] = ["#7ee787", "#79c0ff", "#f2cc60", "#ff7b72", "#d2a8ff", "#ffa657"];
/// The names that a legend has room for.
const NAMES: usize = 4;

struct Series<'a> {
    name: &'a str,
    values: Vec<Option<f64>>,
}

impl Series<'_> {
    fn highest(&self) -> f64 {
        self.values.iter().flatten().fold(0.0, |highest, value| highest.max(*value))
    }

    fn last(&self) -> f64 {
        self.values.iter().flatten().next_back().copied().unwrap_or_default()
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The name of a series, as Grafana makes it from a legend.
fn name(legend: &str, labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let name =
        pairs.fold(legend.to_owned(), |name, (label, value)| name.replace(&format!("{{{{{label}}}}}"), text(value)));
    // A label that the series lacks is empty.
    Regex::new(r"\{\{\w+\}\}").expect("well-formed").replace_all(&name, "").into_owned()
}

/// A number with four digits that count.
fn rounded(value: f64) -> Value {
    let short: f64 = format!("{value:.3e}").parse().expect("a number");
    if short.is_finite() { json!(short) } else { Value::Null }
}

/// The series of an answer of `promtool query range`, with a value for each step.
fn series(answer: &Value, legend: &str, times: &[u64]) -> Vec<Value> {
    let of = |found: &Value| {
        let values = times.iter().map(|time| {
            let at = list(&found["values"]).iter().find(|pair| pair[0].as_f64().is_some_and(|at| at as u64 == *time));
            at.and_then(|pair| text(&pair[1]).parse().ok()).map_or(Value::Null, rounded)
        });
        json!({ "name": name(legend, &found["metric"]), "values": values.collect::<Vec<_>>() })
    };
    list(answer).iter().map(of).collect()
}

/// The panels of the dashboard, each with its row.
fn panels(source: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    list(&source["rows"]).iter().flat_map(|row| list(&row["panels"]).iter().map(move |panel| (&row["title"], panel)))
}

/// What `record.sh` wrote into a folder, with the panels that it was asked for.
fn read(source: &Value, folder: &Path) -> Value {
    let mut files: Vec<_> = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let answers: Vec<Value> =
        files.iter().map(|file| serde_json::from_slice(&fs::read(file).expect("readable")).expect("JSON")).collect();
    let times = answers.iter().flat_map(|answer| list(answer).iter().flat_map(|found| list(&found["values"])));
    let mut times: Vec<u64> = times.filter_map(|pair| pair[0].as_f64()).map(|time| time as u64).collect();
    times.sort_unstable();
    times.dedup();
    let mut answers = answers.iter();
    let panels = panels(source).map(|(row, panel)| {
        let queries = list(&panel["queries"]).iter().map(|query| {
            let answer = answers.next().expect("an answer to each query");
            json!({ "expr": query["expr"], "legend": query["legend"], "series": series(answer, text(&query["legend"]), &times) })
        });
        json!({ "row": row, "title": panel["title"], "unit": panel["unit"], "kind": panel["kind"], "queries": queries.collect::<Vec<_>>() })
    });
    Value::Array(panels.collect())
}

/// The recording with a series in a line.
fn written(recording: &Value) -> String {
    recording.to_string().replace(r#"{"name""#, "\n{\"name\"").replace(r#"{"kind""#, "\n{\"kind\"") + "\n"
}

/// A value with its unit.
fn shown(value: f64, unit: &str) -> String {
    let number = |value: f64| {
        let text = if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match unit {
        "percentunit" => format!("{:.0} %", value * 100.0),
        "s" if value >= 172_800.0 => format!("{:.0} days", value / 86_400.0),
        "s" if value < 1.0 && value > 0.0 => format!("{} ms", number(value * 1000.0)),
        "s" => format!("{} s", number(value)),
        "reqps" => format!("{}/s", number(value)),
        "opm" => format!("{}/min", number(value)),
        _ => number(value),
    }
}

/// The least of 1, 2, 5, 10, .. that is not below.
fn top(highest: f64) -> f64 {
    let mut power = 10f64.powi(-4);
    loop {
        for digit in [1.0, 2.0, 5.0] {
            if digit * power >= highest {
                return digit * power;
            }
        }
        power *= 10.0;
    }
}

fn line(values: &[Option<f64>], top: f64) -> String {
    let (left, above, width, height) = PLOT;
    let last = values.len().saturating_sub(1).max(1);
    let mut path = String::new();
    let mut is_on = false;
    for (index, value) in values.iter().enumerate() {
        if let Some(value) = value {
            let x = left + width * index as f64 / last as f64;
            let y = above + height * (1.0 - value / top);
            write!(path, "{}{x:.1} {y:.1}", if is_on { "L" } else { "M" }).expect("a string");
        }
        is_on = value.is_some();
    }
    path
}

/// A name that fits into a legend.
fn short(name: &str) -> String {
    const MOST: usize = 20;
    let cut: String = name.chars().take(MOST).collect();
    escaped(&if cut.len() < name.len() { format!("{}..", cut.trim_end()) } else { cut })
}

/// Each series with its colour.
fn coloured<'a>(series: &'a [Series<'a>]) -> impl DoubleEndedIterator<Item = (&'a Series<'a>, &'static str)> {
    series.iter().enumerate().map(|(index, one)| (one, COLORS[index % COLORS.len()]))
}

fn timeseries(svg: &mut String, series: &[Series<'_>], unit: &str) {
    let (left, above, width, height) = PLOT;
    let highest = series.iter().map(Series::highest).fold(0.0, f64::max);
    let top = if unit == "percentunit" { 1.0 } else { top(if highest > 0.0 { highest } else { 1.0 }) };
    for (value, y) in [(top, above), (top / 2.0, above + height / 2.0), (0.0, above + height)] {
        let (right, label) = (left + width, shown(value, unit));
        write!(svg, r##"<path d="M{left} {y}H{right}" stroke="#3d444d"/>"##).expect("a string");
        write!(svg, r#"<text x="{}" y="{}" text-anchor="end" font-size="11">{label}</text>"#, left - 6.0, y + 4.0)
            .expect("a string");
    }
    for (minute, at) in (0..=SECONDS / 60).map(|minute| (minute, f64::from(minute * 60) / f64::from(SECONDS))) {
        let (x, y) = (left + width * at, above + height + 16.0);
        write!(svg, r#"<text x="{x}" y="{y}" text-anchor="middle" font-size="11">{minute}:00</text>"#)
            .expect("a string");
    }
    for (one, color) in coloured(series).rev() {
        let path = line(&one.values, top);
        write!(svg, r#"<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>"#).expect("a string");
    }
    for (index, (one, color)) in coloured(series).take(NAMES).enumerate() {
        let y = 164 + index % 2 * 18;
        let x = 14 + index / 2 * 142;
        let more = series.len() - NAMES.min(series.len());
        let name = if index + 1 == NAMES && more > 0 { format!("and {} more", more + 1) } else { short(one.name) };
        write!(svg, r#"<rect x="{x}" y="{}" width="10" height="3" fill="{color}"/>"#, y - 5).expect("a string");
        write!(svg, r#"<text x="{}" y="{y}" font-size="11">{name}</text>"#, x + 15).expect("a string");
    }
}

/// The last values: large for a `stat`, in rows for a `table`.
fn values(svg: &mut String, series: &[Series<'_>], unit: &str, is_large: bool) {
    for (index, one) in series.iter().enumerate() {
        let (y, size, x) = if is_large { (110, 30, 20 + index * 130) } else { (60 + index * 22, 13, 20) };
        let value = shown(one.last(), unit);
        write!(svg, r##"<text x="{x}" y="{y}" font-size="{size}" fill="#7ee787">{value}</text>"##).expect("a string");
        let (x, y) = if is_large { (x, y + 24) } else { (x + 40, y) };
        write!(svg, r#"<text x="{x}" y="{y}" font-size="13">{}</text>"#, escaped(one.name)).expect("a string");
    }
}

fn panel(recorded: &Value, (x, y): (usize, usize)) -> String {
    let all = list(&recorded["queries"]).iter().flat_map(|query| list(&query["series"]));
    let mut series: Vec<Series<'_>> = all
        .map(|one| Series {
            name: text(&one["name"]),
            values: list(&one["values"]).iter().map(Value::as_f64).collect(),
        })
        .collect();
    series.sort_by(|a, b| b.highest().total_cmp(&a.highest()).then_with(|| a.name.cmp(b.name)));
    let (width, height) = PANEL;
    let mut svg = format!(
        "  <g transform=\"translate({x} {y})\"><rect width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"#212830\"/>\
         <text x=\"14\" y=\"24\" font-weight=\"600\">{}</text>",
        escaped(text(&recorded["title"])),
    );
    let unit = text(&recorded["unit"]);
    match text(&recorded["kind"]) {
        _ if series.is_empty() => svg.push_str(r#"<text x="150" y="100" text-anchor="middle">No data</text>"#),
        "stat" => values(&mut svg, &series, unit, true),
        "table" => values(&mut svg, &series, unit, false),
        _ => timeseries(&mut svg, &series, unit),
    }
    svg + "</g>\n"
}

fn drawing(recording: &Value) -> String {
    let width = 3 * PANEL.0 + 4 * GAP;
    let (mut body, mut y, mut column, mut row) = (String::new(), GAP, 0, "");
    for recorded in list(recording) {
        if text(&recorded["row"]) != row {
            y += if column > 0 { PANEL.1 + GAP } else { 0 };
            (row, column) = (text(&recorded["row"]), 0);
            writeln!(body, r#"  <text x="{}" y="{}" font-size="15" font-weight="600">{row}</text>"#, 2 * GAP, y + 20)
                .expect("a string");
            y += ROW;
        }
        if column == 3 {
            (column, y) = (0, y + PANEL.1 + GAP);
        }
        body.push_str(&panel(recorded, (GAP + column * (PANEL.0 + GAP), y)));
        column += 1;
    }
    let height = y + PANEL.1 + GAP;
    let title = "The dashboard of sidecar-policy: coverage, injection, rollouts, operator";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{title}\"\n     font-family=\"system-ui, sans-serif\" font-size=\"14\" fill=\"#d1d7e0\">\n  <title>{title}</title>\n  \
         <!-- `make pictures` drew this from {RECORDING}. -->\n  <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#151b23\" stroke=\"#3d444d\"/>\n\
         {body}</svg>\n"
    )
}

#[test]
fn the_picture_of_the_dashboard_has_its_panels_and_what_was_recorded() {
    let source = fs::read_to_string(root().join("config/grafana/dashboard.yaml")).expect("readable");
    let source: Value = serde_saphyr::from_str(&source).expect("YAML");
    if let Some(folder) = std::env::var_os("RECORDED") {
        fs::write(root().join(RECORDING), written(&read(&source, Path::new(&folder)))).expect("writable");
    }
    let recording: Value =
        serde_json::from_slice(&fs::read(root().join(RECORDING)).expect("readable")).expect("a recording");
    let asked = |panel: &Value| {
        let queries = list(&panel["queries"]).iter().map(|query| [query["expr"].clone(), query["legend"].clone()]);
        (panel["title"].clone(), panel["unit"].clone(), queries.collect::<Vec<_>>())
    };
    let is_current = panels(&source).map(|(_, panel)| asked(panel)).eq(list(&recording).iter().map(asked));
    assert!(is_current, "{RECORDING} has other panels than the dashboard: run `make dashboard-picture`");
    assert_current("docs/images/dashboard.svg", &drawing(&recording), "pictures");
}

#[test]
fn values_have_their_unit() {
    let shown: Vec<_> =
        [(0.5, "percentunit"), (0.0042, "s"), (2.5, "s"), (7_700_000.0, "s"), (12.34, "reqps"), (3.0, "short")]
            .map(|(value, unit)| shown(value, unit))
            .into();
    assert_eq!(shown, ["50 %", "4.2 ms", "2.5 s", "89 days", "12/s", "3"]);
    assert_eq!([0.3, 1.0, 7.0].map(top), [0.5, 1.0, 10.0]);
}
