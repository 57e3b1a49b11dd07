//! The fields of a pod in every minor version, from `fields.txt`, which `tests/pod-schema` writes.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The newest minor version in the table, and the oldest.
pub(super) const NEWEST: u32 = 37;
pub(super) const OLDEST: u32 = 12;

/// The type of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    /// A whole number of 32 or 64 bits.
    Int32,
    Int64,
    Boolean,
    Quantity,
    /// A whole number, or a text.
    IntOrText,
    /// An object without a definition in the table.
    Any,
    /// An object of a definition.
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
            "string" | "time" => Self::Text,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "boolean" => Self::Boolean,
            "quantity" => Self::Quantity,
            "intorstring" => Self::IntOrText,
            "object" => Self::Any,
            name => Self::Of(name),
        }
    }
}

/// A field of a definition.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) of: Type,
    pub(super) is_required: bool,
    /// The first minor version with the field, and the last one if it was removed.
    pub(super) first: u32,
    pub(super) last: Option<u32>,
    /// The allowed values, each with its first minor version; empty for any value.
    pub(super) choices: Vec<(&'static str, u32)>,
}

impl Field {
    /// `name! type first-last one|other@since`.
    fn parse(line: &'static str) -> Option<Self> {
        let mut words = line.trim_start().splitn(4, ' ');
        let (name, of, versions) = (words.next()?, words.next()?, words.next()?);
        let (first, last) = versions.split_once('-').map_or((versions, None), |(first, last)| (first, Some(last)));
        let first = first.parse().ok()?;
        let choice = |choice: &'static str| match choice.split_once('@') {
            Some((value, since)) => Some((value, since.parse().ok()?)),
            None => Some((choice, first)),
        };
        Some(Self {
            name: name.trim_end_matches('!'),
            of: Type::parse(of),
            is_required: name.ends_with('!'),
            first,
            last: last.and_then(|last| last.parse().ok()),
            choices: words.next().into_iter().flat_map(|choices| choices.split('|')).filter_map(choice).collect(),
        })
    }

    /// True if and only if servers of 1.`minor` have the field.
    pub(super) fn is_in(&self, minor: u32) -> bool {
        self.first <= minor && self.last.is_none_or(|last| minor <= last)
    }
}

/// The fields of each definition, by name.
static TABLE: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let mut table: HashMap<_, Vec<_>> = HashMap::new();
    let mut definition = "";
    for line in include_str!("fields.txt").lines().filter(|line| !line.starts_with('#')) {
        match line.starts_with(' ') {
            true => table.entry(definition).or_default().extend(Field::parse(line)),
            false => definition = line,
        }
    }
    table
});

/// The fields of the definition `name`; empty if the definition is unknown.
pub(super) fn fields(name: &str) -> &'static [Field] {
    TABLE.get(name).map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read_and_every_definition_is_there() {
        let lines = include_str!("fields.txt").lines().filter(|line| line.starts_with(' ')).count();
        assert_eq!(TABLE.values().map(Vec::len).sum::<usize>(), lines);
        assert!(lines > 500, "{lines}");
        let newest = TABLE.values().flatten().map(|field| field.first).max();
        assert!(newest.is_some_and(|newest| newest <= NEWEST));
        for (definition, fields) in TABLE.iter() {
            for field in fields {
                let mut of = &field.of;
                while let Type::List(inner) | Type::Map(inner) = of {
                    of = inner;
                }
                if let Type::Of(name) = of {
                    // Initializers lead to a Status, and managed fields to a map.
                    let is_known = !self::fields(name).is_empty() || *name == "Fields";
                    assert!(is_known, "{definition}.{} is a {name}", field.name);
                }
                assert!((OLDEST..=NEWEST).contains(&field.first), "{definition}.{}", field.name);
            }
        }
    }

    #[test]
    fn what_is_known_of_some_fields() {
        let field = |definition: &str, name: &str| fields(definition).iter().find(|field| field.name == name);
        let restart = field("Container", "restartPolicy").expect("a field");
        assert_eq!((restart.first, restart.is_in(27), restart.is_in(28)), (28, false, true));
        let source = field("PodResourceClaim", "source").expect("a field");
        assert_eq!((source.first, source.last, source.is_in(31)), (26, Some(30), false));
        let ports = field("Container", "ports").expect("a field");
        assert_eq!(ports.of, Type::List(Box::new(Type::Of("ContainerPort"))));
        let pull = field("Container", "imagePullPolicy").expect("a field");
        assert_eq!(pull.choices, [("Always", 12), ("IfNotPresent", 12), ("Never", 12)]);
        assert!(field("LifecycleHandler", "exec").expect("a field").is_in(12), "it was called Handler before 1.23");
    }
}
