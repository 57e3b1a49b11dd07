//! Manifests in files, folders and pipes: read as kubectl reads them, and written back byte for byte unless changed.
//!
//! The text of a [`File`] is cut into [`FilePiece`]s: [`Manifest`]s, and the text between them
//! (separators, comments before a document, a byte order mark). Every part keeps its bytes, so [`File::rewrite`]
//! touches only documents that change.

mod aside;
mod check;
mod comments;
mod kinds;
mod lines;
pub mod odd;
mod repair;
mod split;
mod value;
mod write;
mod yaml;

pub use aside::set_aside;
pub use check::faults;
pub use comments::{comments_with, templated_comment};
pub use kinds::{Kinds, Object, has_pods, is_meant_as_policy, may_have_pods, meant_workload, misspelt, policy_of};
pub use lines::Lines;
pub use write::{Layout, emit};

use serde_json::Value;
use std::fmt;

/// A position in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file, as the user named it; `standard input` for `-`.
    pub file: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// The reason why a file cannot be read, or why a document of it is left alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Fault {
    /// The position of the fault.
    pub place: Location,
    /// The value found, and the expected one.
    pub message: String,
}

/// The format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// A document: one object, or a list of objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The beginning of the document.
    pub place: Location,
    /// The format of the text.
    pub format: Format,
    /// The exact text.
    pub text: String,
    /// The value that kubectl would send.
    pub value: Value,
    /// The duplicate keys in its maps, in order.
    pub twice: Vec<Twin>,
}

/// A duplicate key in a map, of which the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// The place of the last one.
    pub place: Location,
    /// The key.
    pub key: String,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum FilePiece {
    /// Text outside documents: a separator, comments, white space.
    Verbatim(String),
    /// A document.
    Manifest(Manifest),
    /// A document that is no complete object: no command looks for workloads in it.
    SetAside(Manifest),
}

/// A file, in the order of its text.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// The name of the file, as the user gave it.
    pub name: String,
    /// The parts, which together are the exact file.
    pub parts: Vec<FilePiece>,
    /// The documents that are no objects, and are left alone: each with its place and its kind.
    pub asides: Vec<Fault>,
}

impl File {
    /// Parses `bytes` as the file `name`.
    ///
    /// # Errors
    /// All faults, at most one per document.
    pub fn parse(name: &str, bytes: Vec<u8>) -> Result<Self, Vec<Fault>> {
        let text = value::text(name, bytes).map_err(|fault| vec![fault])?;
        split::file(name, &text)
    }

    /// The documents of the file, in order.
    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.parts.iter().filter_map(|part| match part {
            FilePiece::Manifest(manifest) => Some(manifest),
            FilePiece::Verbatim(_) | FilePiece::SetAside(_) => None,
        })
    }

    /// The documents of the file that name a kind, in order, and whether each is a complete object.
    pub fn documents(&self) -> impl Iterator<Item = (&Manifest, bool)> {
        self.parts.iter().filter_map(|part| match part {
            FilePiece::Manifest(manifest) => Some((manifest, true)),
            FilePiece::SetAside(manifest) if manifest.value.get("kind").is_some() => Some((manifest, false)),
            FilePiece::Verbatim(_) | FilePiece::SetAside(_) => None,
        })
    }

    /// The text of the file after `change` has replaced some of its documents.
    pub fn rewrite(&self, mut change: impl FnMut(&Manifest) -> Option<Value>) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                FilePiece::Verbatim(bytes) => text.push_str(bytes),
                FilePiece::SetAside(manifest) => text.push_str(&manifest.text),
                FilePiece::Manifest(manifest) => match change(manifest) {
                    None => text.push_str(&manifest.text),
                    Some(value) => text.push_str(&emit(&value, &Layout::of(manifest))),
                },
            }
        }
        text
    }
}

/// Concatenates the texts of several files so that each document stays a document.
pub fn join(texts: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    if texts.len() < 2 {
        return texts.pop().unwrap_or_default();
    }
    let mut all = String::new();
    for text in &texts {
        // A byte order mark is valid only at the very beginning.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if !all.is_empty() && !all.ends_with('\n') {
            all.push('\n');
        }
        if !text.lines().next().is_some_and(split::is_separator) {
            all.push_str("---\n");
        }
        all.push_str(text);
    }
    all
}
