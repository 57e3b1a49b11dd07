//! Tables. On a terminal the cells wrap to its width, and states have colours. Elsewhere each row is one line.

use crate::outside::escaped;
use anstyle::{AnsiColor, Style};
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use std::io::IsTerminal;
use unicode_width::UnicodeWidthChar;

/// The headers of columns with states.
const STATES: [&str; 6] = ["READY", "STATUS", "RESULT", "SEVERITY", "FOUND", "CHANGE"];
/// A narrower terminal counts as this wide, because rows of a few letters are unreadable.
const NARROWEST: u16 = 60;
/// The spaces between two columns.
const GAP: u16 = 2;

/// How good a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Good,
    Warning,
    Bad,
}

impl Tone {
    /// The tone of a state; none for a neutral state.
    fn of(state: &str) -> Option<Self> {
        match state {
            _ if state.starts_with("failed: ") => Some(Tone::Bad),
            "True" | "ok" | "yes" | "injects" | "is in it" | "passes" | "gains" | "admitted" | "cleared" => {
                Some(Tone::Good)
            }
            "Unknown"
            | "UNKNOWN"
            | "warning"
            | "missed"
            | "missed it"
            | "edited"
            | "outdated"
            | "changes"
            | "waits"
            | "cleared; still waits" => Some(Tone::Warning),
            "False" | "NO" | "error" | "PROBLEM" | "CONFLICT" | "FAILS" | "REFUSES" | "REFUSED" | "INVALID"
            | "failed" | "loses" => Some(Tone::Bad),
            _ => None,
        }
    }

    fn style(self) -> Style {
        let color = match self {
            Tone::Good => AnsiColor::Green,
            Tone::Warning => AnsiColor::Yellow,
            Tone::Bad => AnsiColor::Red,
        };
        color.on_default()
    }
}

/// The first of the colours of tables in `text`, and its place.
pub(super) fn next_color(text: &str) -> Option<(usize, &'static str)> {
    const COLORS: [&str; 4] = ["\u{1b}[32m", "\u{1b}[33m", "\u{1b}[31m", "\u{1b}[0m"];
    COLORS.iter().filter_map(|color| Some((text.find(color)?, *color))).min()
}

/// The place that a table is written to.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Screen {
    /// The width of the terminal; none elsewhere.
    pub(in crate::cli) width: Option<u16>,
    pub(super) has_colors: bool,
}

impl Screen {
    pub(in crate::cli) fn stdout() -> Self {
        let stdout = std::io::stdout();
        let size = if stdout.is_terminal() { terminal_size::terminal_size_of(&stdout) } else { None };
        let width = size.map(|(terminal_size::Width(width), _)| width.max(NARROWEST));
        // `choice` knows `--color`, NO_COLOR and CLICOLOR_FORCE.
        Self { width, has_colors: anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never }
    }
}

/// The first column with states, and the tone of that of `row`. The conditions `Conflicted` and `Degraded` are good if they are false.
fn state<const N: usize>(header: [&str; N], row: &[String; N]) -> Option<(usize, Tone)> {
    let column = header.iter().position(|name| STATES.contains(name))?;
    let tone = match (header[0], row[0].as_str(), Tone::of(&row[column])?) {
        ("CONDITION", "Conflicted" | "Degraded", Tone::Good) => Tone::Bad,
        ("CONDITION", "Conflicted" | "Degraded", Tone::Bad) => Tone::Good,
        (_, _, tone) => tone,
    };
    Some((column, tone))
}

/// The lines of a table: the header, then `rows`. Cells may repeat what users of the cluster have written, so what a
/// terminal obeys is escaped, line breaks included. Known states in the columns of states get a colour.
pub(super) fn lines<const N: usize>(header: [&str; N], rows: &[[String; N]], screen: Screen) -> Vec<String> {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| escaped(cell).into_owned())).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(&rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    if let Some(width) = screen.width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        // Headers do not wrap, so that the header is always one line.
        for (column, name) in table.column_iter_mut().zip(header) {
            let least = u16::try_from(name.len()).unwrap_or(u16::MAX).saturating_add(GAP);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    let mut lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    if screen.has_colors {
        paint(header, &rows, &mut lines);
    }
    lines
}

/// Colours the states in `lines`, the first of which is the header. comfy-table itself would need a second library for
/// terminals, which ignores `--color`.
fn paint<const N: usize>(header: [&str; N], rows: &[[String; N]], lines: &mut [String]) {
    let starts = starts(header, &lines[0]);
    let mut next = 1;
    for row in rows {
        let Some((column, tone)) = state(header, row) else { continue };
        let word = row[column].as_str();
        // A row may have several lines; the state is in the first.
        let mut rest = lines.iter().enumerate().skip(next);
        let found = rest.find_map(|(index, line)| {
            let at = byte_at(line, starts[column])?;
            let after = line[at..].strip_prefix(word)?;
            (after.is_empty() || after.starts_with(' ')).then_some((index, at))
        });
        if let Some((index, at)) = found {
            let style = tone.style();
            lines[index].replace_range(at..at + word.len(), &format!("{style}{word}{style:#}"));
            next = index + 1;
        }
    }
}

/// The columns of the screen at which the columns of a table begin, from its line of headers.
fn starts<const N: usize>(header: [&str; N], line: &str) -> [usize; N] {
    let mut from = 0;
    header.map(|name| {
        let start = line[from..].find(name).map_or(line.len(), |at| from + at);
        from = (start + name.len()).min(line.len());
        start
    })
}

/// The byte of `line` at the column `column` of the screen.
fn byte_at(line: &str, column: usize) -> Option<usize> {
    let mut left = column;
    for (index, character) in line.char_indices() {
        if left == 0 {
            return Some(index);
        }
        left = left.checked_sub(character.width().unwrap_or(0))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [&str; 3] = ["RESULT", "CHECK", "MESSAGE"];

    fn shown(rows: &[[&str; 3]], width: Option<u16>, has_colors: bool) -> Vec<String> {
        let rows: Vec<_> = rows.iter().map(|row| row.map(str::to_owned)).collect();
        lines(HEADER, &rows, Screen { width, has_colors })
    }

    #[test]
    fn a_row_is_one_line_without_a_terminal_and_wraps_on_one() {
        let message = "a message ".repeat(20);
        let rows = [["ok", "server", message.trim_end()], ["PROBLEM", "ok", "ok"]];
        let piped = shown(&rows, None, false);
        assert_eq!(piped.len(), 3, "{piped:#?}");
        assert_eq!(piped[0], "RESULT   CHECK   MESSAGE");
        assert!(piped[1].len() > 200 && piped[2] == "PROBLEM  ok      ok", "{piped:#?}");
        let wrapped = shown(&rows, Some(80), false);
        assert!(wrapped.len() > 4 && wrapped.iter().all(|line| line.len() <= 80), "{wrapped:#?}");
        assert!(wrapped[2].starts_with(&format!("{}message", " ".repeat(17))), "{wrapped:#?}");
    }

    #[test]
    fn a_cell_neither_ends_its_row_nor_moves_the_cursor() {
        let rows = [["ok", "a\u{1b}[2J\u{9b}1m", "b\nok  forged\r\u{202e}c"]];
        for has_colors in [false, true] {
            let lines = shown(&rows, None, has_colors);
            assert_eq!(lines.len(), 2, "{lines:#?}");
            assert!(lines[1].ends_with("a\\u{1b}[2J\\u{9b}1m  b\\nok  forged\\r\\u{202e}c"), "{lines:#?}");
        }
        for tone in [Tone::Good, Tone::Warning, Tone::Bad] {
            let style = tone.style();
            assert_eq!(
                next_color(&format!("a{style}b")),
                Some((1, &*style.to_string())).map(|(at, _)| (at, next_color(&style.to_string()).unwrap().1))
            );
            assert_eq!(next_color(&format!("{style:#}")).unwrap().0, 0);
        }
    }

    #[test]
    fn a_conflict_is_good_if_it_is_false() {
        let tone = |row: [&str; 2]| state(["CONDITION", "STATUS"], &row.map(str::to_owned)).map(|(_, tone)| tone);
        let rows = [["Ready", "True"], ["Conflicted", "True"], ["Degraded", "False"], ["Conflicted", "Unknown"]];
        assert_eq!(rows.map(tone), [Tone::Good, Tone::Bad, Tone::Good, Tone::Warning].map(Some));
    }

    #[test]
    fn states_alone_have_colours_also_in_rows_of_several_lines() {
        let message = "ok ".repeat(40);
        let rows = [["ok", "ok", message.trim_end()], ["info", "ok", "ok"], ["PROBLEM", "größe", "ok"]];
        for width in [None, Some(70)] {
            let plain = shown(&rows, width, false);
            let painted = shown(&rows, width, true);
            let told: Vec<_> = painted.iter().filter(|line| line.contains('\u{1b}')).collect();
            let [ok, problem] = told[..] else { panic!("two rows have colours: {painted:#?}") };
            assert!(ok.starts_with("\u{1b}[32mok\u{1b}[0m       ok "), "{ok:?}");
            assert_eq!(problem, "\u{1b}[31mPROBLEM\u{1b}[0m  größe  ok");
            let stripped = painted.iter().map(|line| anstream::adapter::strip_str(line).to_string());
            assert_eq!(stripped.collect::<Vec<_>>(), plain);
        }
    }
}
