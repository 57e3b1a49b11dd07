//! The values of the parameters of policies in one workload.

use crate::cli::output::Printing;
use crate::parameters::Parameter;
use crate::policy::{Given, Policy};
use anyhow::Result;
use serde::Serialize;
use std::io::Write;

/// The value of one parameter, or why there is none.
#[derive(Serialize, Debug)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParameterAnswer {
    name: String,
    /// The value; none if it is refused, or if no source gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// Where the value comes from.
    from: String,
    /// What is wrong with what the source gives. Beside a `value`: with what it gives when the workload is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The value that the workload gets when it is made again, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

impl ParameterAnswer {
    /// The values of `policy` in the workload that it was valued for.
    pub(super) fn all(policy: &Policy) -> Vec<Self> {
        let answer = |(parameter, given): (&Parameter, &Given)| {
            let default = || parameter.default().map(str::to_owned);
            let (value, refused) = match &given.value {
                Ok(value) => (value.clone().or_else(default), None),
                Err(wrong) => (None, Some(wrong.clone())),
            };
            let (next, refused_next) = match given.outdated_by.clone() {
                Some(Ok(next)) => (next.or_else(default), None),
                Some(Err(wrong)) => (None, Some(wrong)),
                None => (None, None),
            };
            let (name, from, refused) = (given.name.clone(), given.source.to_string(), refused.or(refused_next));
            Self { name, value, from, refused, next }
        };
        policy.as_written().parameters().zip(policy.given()).map(answer).collect()
    }

    fn told(&self) -> String {
        let value = || self.value.clone().unwrap_or_else(|| "-".to_owned());
        match (&self.refused, &self.next) {
            (Some(wrong), _) if self.value.is_some() => format!("{}; REFUSED when it is made again: {wrong}", value()),
            (Some(wrong), _) => format!("REFUSED: {wrong}"),
            (None, Some(next)) => format!("{}; {next} when it is made again", value()),
            (None, None) => value(),
        }
    }
}

/// Writes the values of each policy that has parameters.
pub(super) fn write<'a>(
    given: impl Iterator<Item = (&'a str, &'a [ParameterAnswer])>,
    printing: &Printing,
    out: &mut impl Write,
) -> Result<()> {
    // Rows alone are those of the policies.
    if printing.no_headers {
        return Ok(());
    }
    let rows = given.flat_map(|(policy, answers)| {
        answers.iter().map(move |answer| [policy.to_owned(), answer.name.clone(), answer.from.clone(), answer.told()])
    });
    printing.section(["POLICY", "PARAMETER", "FROM", "VALUE"], rows, out)
}
