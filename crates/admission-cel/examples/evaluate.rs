//! Evaluates an expression on an object: `evaluate EXPRESSION OBJECT.json [NAMESPACE.json]`.
//!
//! Prints `true` or `false`. If the expression is rejected or fails, prints the reason and exits with 1.

#![allow(clippy::print_stdout, reason = "the verdict goes to standard output")]

use admission_cel::{Budget, Dialect, Expression, Gives, Variables};
use serde_json::Value;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match verdict(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(verdict) => {
            println!("{verdict}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn verdict(arguments: &[String]) -> Result<bool, Box<dyn Error>> {
    let (source, object, namespace) = match arguments {
        [source, object] => (source, json(object)?, None),
        [source, object, namespace] => (source, json(object)?, Some(json(namespace)?)),
        _ => return Err("usage: evaluate EXPRESSION OBJECT.json [NAMESPACE.json]".into()),
    };
    let expression = Expression::compile(source, Gives::Bool, Dialect::NEWEST)?;
    let variables = Variables { object: &object, namespace: namespace.as_ref(), template: None };
    Ok(expression.test(&variables, &mut Budget::validations())?)
}

fn json(path: &str) -> Result<Value, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{path}: {error}").into())
}
