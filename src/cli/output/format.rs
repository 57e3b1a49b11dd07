//! The formats of `--output`, and which of them each command has.

use super::template::Template;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::marker::PhantomData;

/// How to print.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::cli) enum Output {
    /// For people: the answer first.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// The names of the objects alone, as `kubectl get -o name` prints them.
    Name,
    Json,
    Yaml,
    /// Parts of the document.
    JsonPath(Template),
    /// The XML of JUnit, which CI systems show as tests.
    Junit,
    /// SARIF 2.1.0, which CI systems show beside the lines of files.
    Sarif,
}

/// The prefix of the format [`Output::JsonPath`].
const JSONPATH: &str = "jsonpath=";

/// The formats of a command.
pub(in crate::cli) trait Formats: Clone + Debug + Send + Sync + 'static {
    /// The formats besides `table`, `json`, `yaml` and `jsonpath`.
    const MORE: &'static [Output];
}

/// Formats of all commands.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Reports;

impl Formats for Reports {
    const MORE: &'static [Output] = &[];
}

/// Formats of a command with a row for each check.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Checks;

impl Formats for Checks {
    const MORE: &'static [Output] = &[Output::Wide];
}

/// Formats of a command that runs tests.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Cases;

impl Formats for Cases {
    const MORE: &'static [Output] = &[Output::Junit];
}

/// Formats of a command with findings about lines of files.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Findings;

impl Formats for Findings {
    const MORE: &'static [Output] = &[Output::Junit, Output::Sarif];
}

/// Formats of a command with a row for each object of the cluster.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Names;

impl Formats for Names {
    const MORE: &'static [Output] = &[Output::Name];
}

/// Formats of a command with a row for each policy.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Items;

impl Formats for Items {
    const MORE: &'static [Output] = &[Output::Wide, Output::Name];
}

impl Output {
    /// The parser for a command that has the formats `F`.
    pub(in crate::cli) fn parser<F: Formats>() -> Parser<F> {
        Parser(PhantomData)
    }

    /// The format as users type it.
    fn word(&self) -> &'static str {
        match self {
            Output::Table => "table",
            Output::Wide => "wide",
            Output::Name => "name",
            Output::Json => "json",
            Output::Yaml => "yaml",
            Output::JsonPath(_) => JSONPATH,
            Output::Junit => "junit",
            Output::Sarif => "sarif",
        }
    }

    fn help(&self) -> &'static str {
        match self {
            Output::Table => "For people: the answer first",
            Output::Wide => "As table, with more columns",
            Output::Name => "Only names, as for kubectl",
            Output::Json | Output::Yaml => "For machines",
            Output::Junit => "For CI systems: JUnit XML",
            Output::Sarif => "For CI systems: SARIF 2.1.0",
            Output::JsonPath(_) => "Parts of the JSON, by a template of kubectl such as '{.items[*].name}'",
        }
    }
}

/// Parses `--output` of a command that has the formats `F`.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Parser<F>(PhantomData<F>);

impl<F: Formats> Parser<F> {
    fn all() -> impl Iterator<Item = Output> {
        let common = [Output::Json, Output::Yaml, Output::JsonPath(Template::default())];
        [Output::Table].into_iter().chain(F::MORE.iter().cloned()).chain(common)
    }
}

impl<F: Formats> TypedValueParser for Parser<F> {
    type Value = Output;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Output, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, argument, value)?;
        let name = argument.map_or("--output".to_owned(), ToString::to_string);
        if let Some(template) = text.strip_prefix(JSONPATH) {
            return Template::parse(template).map(Output::JsonPath).map_err(|message| {
                let message = format!("invalid value '{text}' for '{name}': {message}\n");
                clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
            });
        }
        Self::all().find(|format| format.word() == text).ok_or_else(|| {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(command);
            let words = Self::all().map(|format| format.word().to_owned());
            error.insert(ContextKind::InvalidArg, ContextValue::String(name));
            error.insert(ContextKind::InvalidValue, ContextValue::String(text));
            error.insert(ContextKind::ValidValue, ContextValue::Strings(words.collect()));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Self::all().map(|format| PossibleValue::new(format.word()).help(format.help()))))
    }
}
