//! Manifests in files, folders and pipes: read as kubectl reads them, and written back byte for byte where nothing changed.
//!
//! [`read`] gives [`File`]s. Each is its text, cut into [`Part`]s: [`Manifest`]s, and what stands between them (separators, the
//! comments before a document, a byte order mark). Every part keeps its bytes, so that [`File::rewrite`] touches only the documents
//! that really change.

mod check;
mod kinds;
mod lines;
pub mod odd;
mod split;
mod value;
mod write;

pub use check::faults;
pub use kinds::{Kinds, Object, is_meant_as_policy, misspelt, policy_of};
pub use lines::Lines;
pub use write::{Layout, emit};

use serde_json::Value;
use std::fmt;

/// Where something stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as the user named it; `standard input` for `-`.
    pub file: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What is there, and what was expected.
    pub message: String,
}

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// A document: one object, or a list of some.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Where it begins.
    pub place: Place,
    /// How it is written.
    pub format: Format,
    /// Its text, to the byte.
    pub text: String,
    /// What kubectl would send for it.
    pub value: Value,
    /// The keys that are in one of its maps twice, in order.
    pub twice: Vec<Twin>,
}

/// A key that is in a map twice, of which the last counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// Where the last one is.
    pub place: Place,
    /// The key.
    pub key: String,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// No document: a separator, comments, white space.
    Verbatim(String),
    /// A document.
    Manifest(Manifest),
}

/// A file, in the order of its text.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// As the user named it.
    pub name: String,
    /// Its pieces; put together they are the file, to the byte.
    pub parts: Vec<Part>,
}

impl File {
    /// The file in `bytes`.
    ///
    /// # Errors
    /// Everything in it that cannot be read, at most one fault per document.
    pub fn parse(name: &str, bytes: Vec<u8>) -> Result<Self, Vec<Fault>> {
        let text = value::text(name, bytes).map_err(|fault| vec![fault])?;
        let parts = split::parts(name, &text)?;
        Ok(Self { name: name.to_owned(), parts })
    }

    /// Its documents, in order.
    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.parts.iter().filter_map(|part| match part {
            Part::Manifest(manifest) => Some(manifest),
            Part::Verbatim(_) => None,
        })
    }

    /// The text of the file once `change` has given the documents that it changes their new values.
    pub fn rewrite(&self, mut change: impl FnMut(&Manifest) -> Option<Value>) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Verbatim(bytes) => text.push_str(bytes),
                Part::Manifest(manifest) => match change(manifest) {
                    None => text.push_str(&manifest.text),
                    Some(value) => text.push_str(&emit(&value, &Layout::of(manifest))),
                },
            }
        }
        text
    }
}

/// Puts the texts of several files after one another, so that a reader finds each document where it was.
pub fn join(texts: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    if texts.len() < 2 {
        return texts.pop().unwrap_or_default();
    }
    let mut all = String::new();
    for text in &texts {
        // A byte order mark is one only at the very beginning.
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
