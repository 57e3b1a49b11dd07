//! Values during evaluation. Parts of the object are borrowed, and converted only when used.

use super::error::Failure;
use super::formats::Format;
use super::moment::Moment;
use super::network::Cidr;
use super::quantity::Quantity;
use super::semver::Semver;
use super::types::Opaque;
use super::url::Url;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;

/// The deepest nesting of lists, maps and optionals that an expression builds. JSON below adds at most 128 levels. This
/// bounds recursion over values, including their drop.
const MAX_DEPTH: u16 = 256;

/// A value.
#[derive(Clone, Debug)]
pub(super) enum Val<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    List(List<'a>),
    Map(Map<'a>),
    Timestamp(Moment),
    /// The duration in nanoseconds.
    Duration(i64),
    Type(TypeName),
    Optional(Option<Rc<Boxed<'a>>>),
    Quantity(Rc<Quantity>),
    Url(Rc<Url>),
    Ip(IpAddr),
    Cidr(Rc<Cidr>),
    Semver(Rc<Semver>),
    Format(&'static Format),
}

/// A string.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    /// A part of the object or of the expression.
    Borrowed(&'a str),
    Built(Rc<str>),
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Built(text) => text,
        }
    }
}

impl<'a> Text<'a> {
    /// A part of the string. It is borrowed if the string is.
    pub(super) fn part(&self, range: Range<usize>) -> Val<'a> {
        match self {
            Self::Borrowed(text) => Val::Text(Text::Borrowed(text.get(range).unwrap_or_default())),
            Self::Built(text) => Val::text(text.get(range).unwrap_or_default()),
        }
    }
}

/// A list.
#[derive(Clone, Debug)]
pub(super) enum List<'a> {
    Json(&'a [Value]),
    Built(Rc<BuiltList<'a>>),
}

/// A list that an expression has built.
#[derive(Debug)]
pub(super) struct BuiltList<'a> {
    items: Vec<Val<'a>>,
    depth: u16,
}

/// A map.
#[derive(Clone, Debug)]
pub(super) enum Map<'a> {
    Json(&'a serde_json::Map<String, Value>),
    Built(Rc<BuiltMap<'a>>),
}

/// A map that an expression has built.
#[derive(Debug)]
pub(super) struct BuiltMap<'a> {
    entries: BTreeMap<Key<'a>, Val<'a>>,
    depth: u16,
}

/// The content of an optional.
#[derive(Debug)]
pub(super) struct Boxed<'a> {
    pub(super) value: Val<'a>,
    depth: u16,
}

/// The key of an entry. Equal numbers are one key, whatever their types.
#[derive(Clone, Debug)]
pub(super) enum Key<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    /// A number that is no integer.
    Double(f64),
    Text(Text<'a>),
}

impl Key<'_> {
    /// The floor of a number, and the rest.
    fn number(&self) -> Option<(i128, f64)> {
        match self {
            Self::Int(value) => Some((i128::from(*value), 0.0)),
            Self::Uint(value) => Some((i128::from(*value), 0.0)),
            #[allow(clippy::cast_possible_truncation, reason = "what is no integer is small")]
            Self::Double(value) => Some((value.floor() as i128, value - value.floor())),
            _ => None,
        }
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(left), Self::Bool(right)) => left.cmp(right),
            (Self::Text(left), Self::Text(right)) => (**left).cmp(&**right),
            (Self::Bool(_), _) | (_, Self::Text(_)) => Ordering::Less,
            (_, Self::Bool(_)) | (Self::Text(_), _) => Ordering::Greater,
            _ => match (self.number(), other.number()) {
                (Some(left), Some(right)) => left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)),
                (left, right) => left.is_some().cmp(&right.is_some()),
            },
        }
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key<'_> {}

/// The type of a value, as `type()` returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypeName {
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    List,
    Map,
    Timestamp,
    Duration,
    Type,
    Optional,
    Opaque(Opaque),
}

impl TypeName {
    /// The types that expressions may name, by the first minor version. The others have functions only.
    pub(super) const DECLARED: [(u32, Self); 15] = [
        (0, Self::Null),
        (0, Self::Bool),
        (0, Self::Int),
        (0, Self::Uint),
        (0, Self::Double),
        (0, Self::Text),
        (0, Self::Bytes),
        (0, Self::List),
        (0, Self::Map),
        (0, Self::Timestamp),
        (0, Self::Duration),
        (0, Self::Type),
        (31, Self::Optional),
        (31, Self::Opaque(Opaque::Ip)),
        (31, Self::Opaque(Opaque::Cidr)),
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::List => "list",
            Self::Map => "map",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::Type => "type",
            Self::Optional => "optional_type",
            Self::Opaque(opaque) => opaque.name(),
        }
    }
}

/// A value, or the reason why there is none.
pub(super) type Outcome<'a> = Result<Val<'a>, Failure>;

impl<'a> Val<'a> {
    /// A JSON value as on the server: integers within 64 bits are int, other numbers are double.
    pub(super) fn json(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => {
                number.as_i64().map_or_else(|| Self::Double(number.as_f64().unwrap_or(f64::NAN)), Self::Int)
            }
            Value::String(text) => Self::Text(Text::Borrowed(text)),
            Value::Array(items) => Self::List(List::Json(items)),
            Value::Object(members) => Self::Map(Map::Json(members)),
        }
    }

    pub(super) fn text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(Text::Built(text.into()))
    }

    /// A list.
    ///
    /// # Errors
    /// If the list is nested too deep.
    pub(super) fn list(items: Vec<Self>) -> Outcome<'a> {
        let depth = deeper(items.iter())?;
        Ok(Self::List(List::Built(Rc::new(BuiltList { items, depth }))))
    }

    /// A map.
    ///
    /// # Errors
    /// If the map is nested too deep.
    pub(super) fn map(entries: BTreeMap<Key<'a>, Self>) -> Outcome<'a> {
        let depth = deeper(entries.values())?;
        Ok(Self::Map(Map::Built(Rc::new(BuiltMap { entries, depth }))))
    }

    /// An optional with a value.
    ///
    /// # Errors
    /// If the value is nested too deep.
    pub(super) fn some(value: Self) -> Outcome<'a> {
        let depth = deeper(std::iter::once(&value))?;
        Ok(Self::Optional(Some(Rc::new(Boxed { value, depth }))))
    }

    /// An optional, with or without a value.
    ///
    /// # Errors
    /// If the value is nested too deep.
    pub(super) fn optional(value: Option<Self>) -> Outcome<'a> {
        value.map_or(Ok(Self::Optional(None)), Self::some)
    }

    pub(super) fn type_name(&self) -> TypeName {
        match self {
            Self::Null => TypeName::Null,
            Self::Bool(_) => TypeName::Bool,
            Self::Int(_) => TypeName::Int,
            Self::Uint(_) => TypeName::Uint,
            Self::Double(_) => TypeName::Double,
            Self::Text(_) => TypeName::Text,
            Self::Bytes(_) => TypeName::Bytes,
            Self::List(_) => TypeName::List,
            Self::Map(_) => TypeName::Map,
            Self::Timestamp(_) => TypeName::Timestamp,
            Self::Duration(_) => TypeName::Duration,
            Self::Type(_) => TypeName::Type,
            Self::Optional(_) => TypeName::Optional,
            Self::Quantity(_) => TypeName::Opaque(Opaque::Quantity),
            Self::Url(_) => TypeName::Opaque(Opaque::Url),
            Self::Ip(_) => TypeName::Opaque(Opaque::Ip),
            Self::Cidr(_) => TypeName::Opaque(Opaque::Cidr),
            Self::Semver(_) => TypeName::Opaque(Opaque::Semver),
            Self::Format(_) => TypeName::Opaque(Opaque::Format),
        }
    }

    /// The value as a key of a map, if its type allows that.
    pub(super) fn key(&self) -> Option<Key<'a>> {
        match self {
            Self::Bool(value) => Some(Key::Bool(*value)),
            Self::Int(value) => Some(Key::Int(*value)),
            Self::Uint(value) => Some(Key::Uint(*value)),
            Self::Text(text) => Some(Key::Text(text.clone())),
            Self::Double(value) if value.is_finite() => Some(exact_int(*value).map_or(Key::Double(*value), Key::Int)),
            _ => None,
        }
    }

    fn depth(&self) -> u16 {
        match self {
            Self::List(List::Built(list)) => list.depth,
            Self::Map(Map::Built(map)) => map.depth,
            Self::Optional(Some(boxed)) => boxed.depth,
            _ => 0,
        }
    }
}

/// The integer value of a double, if it has one.
pub(super) fn exact_int(value: f64) -> Option<i64> {
    let in_range = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
    #[allow(clippy::cast_possible_truncation, reason = "it is in range and has no fraction")]
    (in_range && value.fract() == 0.0).then_some(value as i64)
}

/// The depth of a container of `values`.
fn deeper<'v, 'a: 'v>(values: impl Iterator<Item = &'v Val<'a>>) -> Result<u16, Failure> {
    let depth = values.map(Val::depth).max().unwrap_or(0) + 1;
    if depth > MAX_DEPTH {
        return Err(Failure::new("the value is nested too deep"));
    }
    Ok(depth)
}

impl<'a> Key<'a> {
    pub(super) fn value(&self) -> Val<'a> {
        match self {
            Self::Bool(value) => Val::Bool(*value),
            Self::Int(value) => Val::Int(*value),
            Self::Uint(value) => Val::Uint(*value),
            Self::Double(value) => Val::Double(*value),
            Self::Text(text) => Val::Text(text.clone()),
        }
    }
}

impl<'a> List<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(items) => items.len(),
            Self::Built(list) => list.items.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Val<'a>> {
        match self {
            Self::Json(items) => items.get(index).map(Val::json),
            Self::Built(list) => list.items.get(index).cloned(),
        }
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Val<'a>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl<'a> Map<'a> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Json(members) => members.len(),
            Self::Built(map) => map.entries.len(),
        }
    }

    pub(super) fn get(&self, key: &Key<'a>) -> Option<Val<'a>> {
        match (self, key) {
            (Self::Json(members), Key::Text(text)) => members.get(&**text).map(Val::json),
            (Self::Json(_), _) => None,
            (Self::Built(map), _) => map.entries.get(key).cloned(),
        }
    }

    /// The value of the field `name`.
    pub(super) fn field(&self, name: &'a str) -> Option<Val<'a>> {
        match self {
            Self::Json(members) => members.get(name).map(Val::json),
            Self::Built(map) => map.entries.get(&Key::Text(Text::Borrowed(name))).cloned(),
        }
    }

    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = (Key<'a>, Val<'a>)> + '_> {
        match self {
            Self::Json(members) => {
                let members: &'a serde_json::Map<String, Value> = members;
                Box::new(members.iter().map(|(key, value)| (Key::Text(Text::Borrowed(key)), Val::json(value))))
            }
            Self::Built(map) => Box::new(map.entries.iter().map(|(key, value)| (key.clone(), value.clone()))),
        }
    }
}
