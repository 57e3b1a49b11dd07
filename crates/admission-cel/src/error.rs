//! Faults of an expression: at compile time ([`CompileError`]) and at run time ([`Failure`]).

use std::borrow::Cow;
use std::fmt;

/// The reason why an expression is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct CompileError {
    /// The line, from 1.
    pub line: usize,
    /// The column, in characters, from 1.
    pub column: usize,
    /// The fault, and the expected text.
    pub message: String,
}

impl CompileError {
    /// The error at a byte of `source`.
    pub(super) fn new(source: &str, fault: Fault) -> Self {
        let before = source.get(..fault.at).unwrap_or(source);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        Self { line: before.matches('\n').count() + 1, column, message: fault.message }
    }
}

/// A compile error before its position is converted to line and column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The byte of the source.
    pub(super) at: usize,
    /// The description of the fault.
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// The reason why a compiled expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The expression failed: for example a key is missing, types do not match, or a number overflows.
    Error(Cow<'static, str>),
    /// The cost limit was exceeded. Neither `||` nor `exists` absorbs this failure.
    CostExceeded,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(message) => formatter.write_str(message),
            Self::CostExceeded => formatter.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A failure with `message`.
    pub(super) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(message.into())
    }

    /// A field or key is missing.
    pub(super) fn no_such_key(key: impl fmt::Display) -> Self {
        Self::new(format!("no such key: {key}"))
    }

    /// No function accepts these values.
    pub(super) const fn no_such_overload() -> Self {
        Self::Error(Cow::Borrowed("no such overload"))
    }

    /// A number is out of range.
    pub(super) const fn overflow(kind: NumberKind) -> Self {
        Self::Error(Cow::Borrowed(match kind {
            NumberKind::Integer => "integer overflow",
            NumberKind::Unsigned => "unsigned integer overflow",
            NumberKind::Timestamp => "timestamp overflow",
            NumberKind::Duration => "duration overflow",
        }))
    }
}

/// The kind of the number that overflowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberKind {
    Integer,
    Unsigned,
    Timestamp,
    Duration,
}
