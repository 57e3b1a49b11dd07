//! The formats of `--output`, and which of them each command has.

use super::template::Template;
use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsStr;

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

/// The formats besides `table`, `json`, `yaml` and `jsonpath` that a command may have, as bits, in the order of the help.
const MORE: [(u8, Output); 4] =
    [(WIDE, Output::Wide), (NAME, Output::Name), (JUNIT, Output::Junit), (SARIF, Output::Sarif)];
pub(in crate::cli) const WIDE: u8 = 1;
pub(in crate::cli) const NAME: u8 = 2;
pub(in crate::cli) const JUNIT: u8 = 4;
pub(in crate::cli) const SARIF: u8 = 8;

impl Output {
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

/// Parses `--output` of a command that has these formats besides those of all commands.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Parser<const FORMATS: u8 = 0>;

impl<const FORMATS: u8> Parser<FORMATS> {
    fn all() -> impl Iterator<Item = Output> {
        let more = MORE.into_iter().filter(|(bit, _)| FORMATS & bit != 0).map(|(_, format)| format);
        let common = [Output::Json, Output::Yaml, Output::JsonPath(Template::default())];
        [Output::Table].into_iter().chain(more).chain(common)
    }
}

impl<const FORMATS: u8> TypedValueParser for Parser<FORMATS> {
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
