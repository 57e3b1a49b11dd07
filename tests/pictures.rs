//! Pictures of pages, made from what the commands print. `make pictures` writes them.

mod dashboard;

use crate::tools::{assert_current, on_a_terminal, root};
use std::fmt::Write;

/// The columns of the terminal.
const COLUMNS: u16 = 100;
/// The width of 100 characters of the font, in pixels.
const HUNDRED: usize = 843;
const LINE: usize = 20;
const MARGIN: usize = 20;
const FONT: &str = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace";

/// The colours of a terminal that are used, on the dark background that the picture brings.
const COLORS: [(&str, &str); 4] =
    [("\u{1b}[31m", "#ff7b72"), ("\u{1b}[32m", "#7ee787"), ("\u{1b}[33m", "#f2cc60"), ("\u{1b}[1m", "#ffffff")];
const RESET: &str = "\u{1b}[0m";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A line of a terminal as the content of a `text`.
fn spans(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut spans = escaped(parts.next().unwrap_or_default());
    for part in parts {
        let part = format!("\u{1b}{part}");
        let painted = COLORS.iter().find_map(|(code, color)| Some((color, part.strip_prefix(code)?)));
        match (painted, part.strip_prefix(RESET)) {
            (Some((color, text)), _) => {
                let bold = if *color == "#ffffff" { r#" font-weight="600""# } else { "" };
                write!(spans, r#"<tspan fill="{color}"{bold}>{}</tspan>"#, escaped(text)).expect("a string");
            }
            (None, Some(rest)) => spans.push_str(&escaped(rest)),
            (None, None) => panic!("a colour that the picture does not know: {line:?}"),
        }
    }
    spans
}

/// A terminal with `text` on it.
fn terminal(title: &str, text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let width = usize::from(COLUMNS) * HUNDRED / 100 + 2 * MARGIN;
    let height = lines.len() * LINE + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{title}\"\n     font-family=\"{FONT}\" font-size=\"14\" fill=\"#d1d7e0\">\n  <title>{title}</title>\n  \
         <!-- `make pictures` wrote this. -->\n  <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#151b23\" stroke=\"#3d444d\"/>\n",
    );
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let y = MARGIN + 14 + index * LINE;
        writeln!(svg, r#"  <text x="{MARGIN}" y="{y}" xml:space="preserve">{}</text>"#, spans(line)).expect("a string");
    }
    svg + "</svg>\n"
}

#[test]
fn a_picture_has_the_colours_of_the_terminal() {
    assert_eq!(spans("a \u{1b}[32m<b>\u{1b}[0m c"), r##"a <tspan fill="#7ee787">&lt;b&gt;</tspan> c"##);
}

#[test]
fn the_picture_of_explain_is_what_explain_prints() {
    let folder = root().join("docs/examples");
    let mut session = String::new();
    for arguments in [["explain", "web.yaml", "-p", "policies"], ["explain", "shop.yaml", "-p", "policies"]] {
        let printed = on_a_terminal(&folder, COLUMNS, &arguments, &[]);
        write!(session, "\u{1b}[1m$ scpol {}\u{1b}[0m\n{printed}\n", arguments.join(" ")).expect("a string");
    }
    let picture = terminal("scpol explain says what each policy does with a workload, and why", &session);
    assert_current("docs/images/explain.svg", &picture, "pictures");
}
