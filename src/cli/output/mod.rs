//! The output of commands that report: a table for people, a document for machines.

mod format;
mod table;
mod template;

pub(super) use format::{JUNIT, NAME, Output, Parser, SARIF, WIDE};
pub(super) use table::Screen;

use crate::outside::{escaped, escaped_lines};
use anstyle::AnsiColor;
use anyhow::Result;
use clap::Args;
use quick_junit::TestSuite;
use serde_json::Value;
use similar::TextDiff;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

/// The version of the documents for machines.
const API_VERSION: &str = "cli.scpol.dev/v1alpha1";

/// Erases the line on a terminal, and goes to its beginning.
const ERASE: &str = "\r\u{1b}[2K";

/// How a report is printed. `MORE` has the formats of the command besides those of all commands.
#[derive(Args, Debug)]
pub(super) struct Printing<const MORE: u8 = 0> {
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = Parser::<MORE>)]
    pub(super) output: Output,
    /// Print only the rows of the table, without its header and the lines around it
    #[arg(long)]
    pub(super) no_headers: bool,
}

impl<const MORE: u8> Printing<MORE> {
    /// Writes `rows` under `header`. Known states in the columns of states get a colour.
    pub(super) fn table<const N: usize>(
        &self,
        header: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        out: &mut impl Write,
    ) -> Result<()> {
        let rows: Vec<_> = rows.into_iter().collect();
        let lines = table::lines(header, &rows, Screen::stdout());
        write_lines(lines.iter().skip(usize::from(self.no_headers)), out)
    }

    /// Writes an empty line and the table of `rows`, or nothing if there are none.
    pub(super) fn section<const N: usize>(
        &self,
        header: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        out: &mut impl Write,
    ) -> Result<()> {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        if !self.no_headers {
            writeln!(out)?;
        }
        self.table(header, rows, out)
    }

    /// Writes the table of `rows`, or the line `nothing` if there are none.
    pub(super) fn list<const N: usize>(
        &self,
        nothing: impl Display,
        header: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
        out: &mut impl Write,
    ) -> Result<()> {
        let mut rows = rows.into_iter().peekable();
        match rows.peek() {
            Some(_) => self.table(header, rows, out),
            None => self.line(nothing, out),
        }
    }

    /// Writes a line beside the tables, unless only their rows are wanted.
    pub(super) fn line(&self, line: impl Display, out: &mut impl Write) -> Result<()> {
        if !self.no_headers {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Writes an empty line and the `notes` below a table, unless only its rows are wanted.
    pub(super) fn notes(&self, notes: impl IntoIterator<Item = String>, out: &mut impl Write) -> Result<()> {
        let mut gap = "\n";
        for note in notes {
            self.line(format_args!("{}{note}", std::mem::take(&mut gap)), out)?;
        }
        Ok(())
    }

    /// Writes those of `rows` that `is_shown`, aligned as in a table of all of them. Each is one line, also on a terminal.
    pub(super) fn rows<const N: usize>(
        &self,
        header: [&str; N],
        rows: &[[String; N]],
        is_headed: bool,
        is_shown: impl Fn(usize) -> bool,
        out: &mut impl Write,
    ) -> Result<()> {
        let screen = Screen { width: None, ..Screen::stdout() };
        let lines = table::lines(header, rows, screen);
        let is_wanted = |line: usize| if line == 0 { is_headed && !self.no_headers } else { is_shown(line - 1) };
        write_lines(lines.iter().enumerate().filter(|(line, _)| is_wanted(*line)).map(|(_, line)| line), out)
    }
}

fn write_lines<'a>(lines: impl Iterator<Item = &'a String>, out: &mut impl Write) -> Result<()> {
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The first words of lines on standard error, and their colours, which are those of clap.
const WORDS: [(&str, AnsiColor); 3] =
    [("error:", AnsiColor::Red), ("warning:", AnsiColor::Yellow), ("note:", AnsiColor::Cyan)];

/// Writes a line to standard error, without characters that a terminal obeys. Its first word has a colour on a terminal. A failed write
/// is ignored.
pub(super) fn remark(line: impl Display) {
    let mut stderr = std::io::stderr();
    let text = line.to_string();
    let text = escaped_lines(&text);
    let has_colors = anstream::AutoStream::choice(&stderr) != anstream::ColorChoice::Never;
    let _ = if has_colors { writeln!(stderr, "{}", painted_words(&text)) } else { writeln!(stderr, "{text}") };
}

/// `text` with colours for the first word of each line that is one of [`WORDS`].
fn painted_words(text: &str) -> String {
    let line = |line: &str| {
        let known = WORDS.iter().find_map(|(word, color)| Some((word, color, line.strip_prefix(word)?)));
        known.map_or(line.to_owned(), |(word, color, rest)| {
            let style = color.on_default().bold();
            format!("{style}{word}{style:#}{rest}")
        })
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The unified diff `text` with the colours of git, where standard output has colours.
pub(super) fn painted_diff(text: &str) -> Cow<'_, str> {
    if !Screen::stdout().has_colors {
        return Cow::Borrowed(text);
    }
    let line = |line: &str| {
        let color = match line.bytes().next() {
            Some(b'+') => AnsiColor::Green,
            Some(b'-') => AnsiColor::Red,
            _ => return line.to_owned(),
        };
        let (style, text) = (color.on_default(), line.trim_end_matches('\n'));
        format!("{style}{text}{style:#}{}", &line[text.len()..])
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Text for people, which may repeat what users of the cluster have written: everything that a terminal obeys is escaped,
/// but for line breaks, tabs and our own colours. Documents for machines do not pass it: they are data.
pub(super) struct Text<W> {
    to: W,
    has_colors: bool,
}

impl<W: Write> Text<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, has_colors: Screen::stdout().has_colors }
    }
}

impl<W: Write> Write for Text<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut rest = &*text;
        while let Some((at, color)) = table::next_color(rest).filter(|_| self.has_colors) {
            self.to.write_all(escaped_lines(&rest[..at]).as_bytes())?;
            self.to.write_all(color.as_bytes())?;
            rest = &rest[at + color.len()..];
        }
        self.to.write_all(escaped_lines(rest).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

impl Output {
    /// Writes a report and ends it: for machines the document of that `kind` with these `fields`, for people what `tell` writes.
    pub(super) fn report<W: Write>(
        &self,
        kind: &str,
        fields: impl FnOnce() -> Value,
        out: &mut W,
        tell: impl FnOnce(&mut Text<&mut W>) -> Result<()>,
    ) -> Result<()> {
        if !self.is_written(kind, fields, out)? {
            tell(&mut Text::new(&mut *out))?;
        }
        Ok(out.flush()?)
    }

    /// Writes the document of that `kind` with these `fields` if the format is one that prints whole documents. Returns false for
    /// other formats, without writing.
    pub(super) fn is_written(&self, kind: &str, fields: impl FnOnce() -> Value, out: &mut impl Write) -> Result<bool> {
        let document = || {
            let mut document = fields();
            (document["apiVersion"], document["kind"]) = (API_VERSION.into(), kind.into());
            document
        };
        self.is_value_written(document, out)
    }

    /// The same for a `value` that is no report.
    pub(super) fn is_value_written(&self, value: impl FnOnce() -> Value, out: &mut impl Write) -> Result<bool> {
        match self {
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&value())?)?,
            Output::Yaml => write!(out, "{}", serde_saphyr::to_string(&value())?)?,
            Output::JsonPath(template) => write!(out, "{}", template.of(&value()))?,
            Output::Table | Output::Wide | Output::Name | Output::Junit | Output::Sarif => return Ok(false),
        }
        Ok(true)
    }
}

/// Writes `suites` in the XML of JUnit.
pub(super) fn write_junit(name: &str, suites: impl IntoIterator<Item = TestSuite>, out: &mut impl Write) -> Result<()> {
    let mut report = quick_junit::Report::new(name);
    report.add_test_suites(suites);
    // The serializer may fail half-way, so it writes into memory first.
    Ok(writeln!(out, "{}", report.to_string()?.trim_end())?)
}

/// Writes the line `text`. On a terminal of this `width` it replaces the line before.
pub(super) fn write_progress(text: &str, width: Option<u16>, out: &mut impl Write) -> Result<()> {
    let text = escaped(text);
    match width {
        None => writeln!(out, "{text}")?,
        // A longer line would go on in the next line, which is not erased.
        Some(width) => write!(out, "{ERASE}{}", text.chars().take(usize::from(width) - 1).collect::<String>())?,
    }
    Ok(())
}

/// An age in kubectl's format.
pub(super) fn age(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What changes `before` into `after`, as a unified diff with `context` lines around each change; empty if nothing does.
pub(super) fn unified_diff([before, after]: [&str; 2], names: [String; 2], context: usize) -> String {
    let [from, to] = names;
    // Documents that have nothing in common would take for ever.
    let diff = TextDiff::configure().timeout(Duration::from_secs(1)).diff_lines(before, after);
    diff.unified_diff().context_radius(context).header(&from, &to).to_string()
}

/// The name of an object in output: `deployments.apps shop/web`.
pub(super) fn place(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// `1 policy`, `2 policies`.
pub(super) fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_a_remark_has_a_colour() {
        let painted = painted_words("error: a\nerror: error: b\nwarning: c\nno error: d");
        let red = |text: &str| format!("\u{1b}[1m\u{1b}[31m{text}\u{1b}[0m");
        let yellow = "\u{1b}[1m\u{1b}[33mwarning:\u{1b}[0m";
        assert_eq!(painted, format!("{0} a\n{0} error: b\n{yellow} c\nno error: d", red("error:")));
        assert_eq!(
            anstream::adapter::strip_str(&painted).to_string(),
            "error: a\nerror: error: b\nwarning: c\nno error: d"
        );
    }

    #[test]
    fn progress_is_one_line_that_changes_on_a_terminal_and_many_lines_elsewhere() {
        let written = |width| {
            let mut out = Vec::new();
            for text in ["one of many", "two"] {
                write_progress(text, width, &mut out).expect("it is memory");
            }
            String::from_utf8(out).expect("text")
        };
        assert_eq!(written(None), "one of many\ntwo\n");
        assert_eq!(written(Some(8)), "\r\u{1b}[2Kone of \r\u{1b}[2Ktwo");
    }
}
