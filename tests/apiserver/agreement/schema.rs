//! The fields of pods, from the table that the product reads too.

use anyhow::{Context, Result};
use std::collections::BTreeMap;

const TABLE: &str = include_str!("../../../crates/core/src/api/pod_schema/fields.txt");

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type {
    Text,
    Time,
    Number,
    Boolean,
    Quantity,
    NumberOrText,
    Any,
    Of(&'static str),
    List(Box<Type>),
    Map(Box<Type>),
}

impl Type {
    fn parse(text: &'static str) -> Self {
        if let Some(items) = text.strip_prefix("[]") {
            return Self::List(Box::new(Self::parse(items)));
        }
        if let Some(values) = text.strip_prefix("{}") {
            return Self::Map(Box::new(Self::parse(values)));
        }
        match text {
            "string" => Self::Text,
            "time" => Self::Time,
            "int32" | "int64" => Self::Number,
            "boolean" => Self::Boolean,
            "quantity" => Self::Quantity,
            "intorstring" => Self::NumberOrText,
            "object" => Self::Any,
            name => Self::Of(name),
        }
    }

    /// The definition of its objects, or of those in it.
    pub(super) fn definition(&self) -> Option<&'static str> {
        match self {
            Self::Of(name) => Some(name),
            Self::List(of) | Self::Map(of) => of.definition(),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) of: Type,
    pub(super) choices: Vec<&'static str>,
}

/// The fields of each definition.
pub(super) struct Schema(BTreeMap<&'static str, Vec<Field>>);

impl Schema {
    pub(super) fn read() -> Result<Self> {
        let (mut schema, mut definition) = (BTreeMap::<_, Vec<Field>>::new(), "");
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let Some(line) = line.strip_prefix(' ') else {
                definition = line;
                continue;
            };
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let (name, of) = (words.first().context("a name")?, words.get(1).context("a type")?);
            let choices = words.get(3).into_iter().flat_map(|choices| choices.split('|'));
            let choices = choices.map(|choice| choice.split('@').next().unwrap_or_default()).collect();
            let field = Field { name: name.trim_end_matches('!'), of: Type::parse(of), choices };
            schema.entry(definition).or_default().push(field);
        }
        Ok(Self(schema))
    }

    pub(super) fn fields(&self, definition: &str) -> &[Field] {
        self.0.get(definition).map(Vec::as_slice).unwrap_or_default()
    }
}
