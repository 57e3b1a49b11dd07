//! Types and their assignability, by the rules of cel-go's checker (checker/types.go).

use std::fmt;
use std::sync::Arc;

/// The deepest type. Deeper ones become dyn, so that recursion over types is bounded.
const MAX_DEPTH: usize = 64;
/// The depth to which two types are compared.
const MAX_COMPARED: usize = 4 * MAX_DEPTH;

/// The static type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// Unknown: any value.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Timestamp,
    Duration,
    /// The type of a type.
    Meta,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    Optional(Arc<Type>),
    /// A type of Kubernetes with functions only.
    Opaque(Opaque),
    /// An object with declared fields.
    Object(&'static Object),
    /// A type parameter: of a signature, or of an empty list.
    Parameter(usize),
}

/// The types of Kubernetes' own functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opaque {
    Quantity,
    Url,
    Ip,
    Cidr,
    Semver,
    Format,
}

impl Opaque {
    /// The name in `type()` and messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quantity => "kubernetes.Quantity",
            Self::Url => "kubernetes.URL",
            Self::Ip => "net.IP",
            Self::Cidr => "net.CIDR",
            Self::Semver => "kubernetes.Semver",
            Self::Format => "kubernetes.NamedFormat",
        }
    }
}

/// A type with declared fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) name: &'static str,
    pub(super) fields: &'static [(&'static str, Field)],
}

/// The type of a declared field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field {
    Int,
    Text,
    Timestamp,
    Texts,
    /// A map of strings.
    Labels,
    Object(&'static Object),
    Objects(&'static Object),
}

impl Type {
    pub(super) fn list(item: Self) -> Self {
        Self::List(Arc::new(item.bounded()))
    }

    /// A map type. Keys of other types than the plain ones become dyn.
    pub(super) fn map(key: Self, value: Self) -> Self {
        let is_plain = matches!(key, Self::Bool | Self::Int | Self::Uint | Self::Text | Self::Dyn | Self::Parameter(_));
        Self::Map(Arc::new((if is_plain { key } else { Self::Dyn }, value.bounded())))
    }

    pub(super) fn optional(of: Self) -> Self {
        Self::Optional(Arc::new(of.bounded()))
    }

    fn bounded(self) -> Self {
        if self.depth() >= MAX_DEPTH { Self::Dyn } else { self }
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(of) | Self::Optional(of) => 1 + of.depth(),
            Self::Map(of) => 1 + of.1.depth(),
            _ => 0,
        }
    }

    /// The type of a declared field.
    pub(super) fn of_field(field: &Field) -> Self {
        match field {
            Field::Int => Self::Int,
            Field::Text => Self::Text,
            Field::Timestamp => Self::Timestamp,
            Field::Texts => Self::list(Self::Text),
            Field::Labels => Self::map(Self::Text, Self::Text),
            Field::Object(object) => Self::Object(object),
            Field::Objects(object) => Self::list(Self::Object(object)),
        }
    }

    /// Whether null is assignable to the type.
    fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Null | Self::Timestamp | Self::Duration | Self::Optional(_) | Self::Opaque(_) | Self::Object(_)
        )
    }

    /// Whether the types are equal except for the names of parameters (`IsEquivalentType`).
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Parameter(_), Self::Parameter(_)) => true,
            (Self::List(left), Self::List(right)) | (Self::Optional(left), Self::Optional(right)) => {
                left.is_equivalent(right)
            }
            (Self::Map(left), Self::Map(right)) => left.0.is_equivalent(&right.0) && left.1.is_equivalent(&right.1),
            _ => self == other,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Dyn => "dyn",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Meta => "type",
            Self::List(item) => return write!(formatter, "list({item})"),
            Self::Map(of) => return write!(formatter, "map({}, {})", of.0, of.1),
            Self::Optional(of) => return write!(formatter, "optional_type({of})"),
            Self::Opaque(opaque) => opaque.name(),
            Self::Object(object) => object.name,
            Self::Parameter(_) => "dyn",
        };
        formatter.write_str(name)
    }
}

/// The types bound to type parameters. Bindings can be rolled back.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    found: Vec<Option<Type>>,
    /// The earlier values, for a rollback.
    trail: Vec<(usize, Option<Type>)>,
}

impl Bindings {
    /// Adds `count` new parameters and returns the first.
    pub(super) fn fresh(&mut self, count: usize) -> usize {
        let first = self.found.len();
        self.found.resize(first + count, None);
        first
    }

    /// Whether each given type is assignable to its counterpart. If one is not, nothing is bound.
    pub(super) fn are_assignable(&mut self, given: &[Type], wanted: &[Type]) -> bool {
        let mark = self.trail.len();
        let fits = given.len() == wanted.len()
            && given.iter().zip(wanted).all(|(given, wanted)| self.assign(given, wanted, 0));
        if !fits {
            for (parameter, before) in self.trail.drain(mark..).rev() {
                if let Some(slot) = self.found.get_mut(parameter) {
                    *slot = before;
                }
            }
        }
        fits
    }

    /// Whether `given` is assignable to `wanted`.
    pub(super) fn is_assignable(&mut self, given: &Type, wanted: &Type) -> bool {
        self.are_assignable(std::slice::from_ref(given), std::slice::from_ref(wanted))
    }

    /// The type with all bound parameters replaced.
    pub(super) fn resolve(&self, of: &Type) -> Type {
        self.resolve_within(of, 0)
    }

    fn resolve_within(&self, of: &Type, depth: usize) -> Type {
        if depth > MAX_DEPTH {
            return Type::Dyn;
        }
        let inner = |of: &Type| self.resolve_within(of, depth + 1);
        match of {
            Type::Parameter(parameter) => self.get(*parameter).map_or_else(|| of.clone(), inner),
            Type::List(item) => Type::list(inner(item)),
            Type::Optional(of) => Type::optional(inner(of)),
            Type::Map(of) => Type::map(inner(&of.0), inner(&of.1)),
            _ => of.clone(),
        }
    }

    fn get(&self, parameter: usize) -> Option<&Type> {
        self.found.get(parameter)?.as_ref()
    }

    fn bind(&mut self, parameter: usize, to: Type) {
        if let Some(slot) = self.found.get_mut(parameter) {
            self.trail.push((parameter, slot.replace(to)));
        }
    }

    /// `internalIsAssignable`.
    fn assign(&mut self, given: &Type, wanted: &Type, depth: usize) -> bool {
        if depth > MAX_COMPARED {
            return true;
        }
        if let Type::Parameter(parameter) = wanted {
            match self.substitute(given, *parameter, depth) {
                Substitution::Valid => return true,
                Substitution::Taken => return false,
                Substitution::Circular => {}
            }
        }
        if let Type::Parameter(parameter) = given {
            return matches!(self.substitute(wanted, *parameter, depth), Substitution::Valid);
        }
        match (given, wanted) {
            (Type::Dyn, _) | (_, Type::Dyn) => true,
            (Type::Null, other) | (other, Type::Null) => other.is_nullable(),
            (Type::List(given), Type::List(wanted)) | (Type::Optional(given), Type::Optional(wanted)) => {
                self.assign(given, wanted, depth + 1)
            }
            (Type::Map(given), Type::Map(wanted)) => {
                self.assign(&given.0, &wanted.0, depth + 1) && self.assign(&given.1, &wanted.1, depth + 1)
            }
            _ => given == wanted,
        }
    }

    /// `isValidTypeSubstitution`: binds a parameter to `given`.
    fn substitute(&mut self, given: &Type, parameter: usize, depth: usize) -> Substitution {
        if matches!(given, Type::Parameter(same) if *same == parameter) {
            return Substitution::Valid;
        }
        let Some(found) = self.get(parameter).cloned() else {
            if self.occurs(parameter, given, 0) {
                return Substitution::Circular;
            }
            self.bind(parameter, given.clone());
            return Substitution::Valid;
        };
        if *given == found {
            return Substitution::Valid;
        }
        if !self.assign(given, &found, depth + 1) {
            return Substitution::Taken;
        }
        let general = most_general(given, &found);
        if !self.occurs(parameter, &general, 0) {
            self.bind(parameter, general);
        }
        Substitution::Valid
    }

    fn occurs(&self, parameter: usize, within: &Type, depth: usize) -> bool {
        if depth > MAX_COMPARED {
            return true;
        }
        match within {
            Type::Parameter(same) if *same == parameter => true,
            Type::Parameter(other) => self.get(*other).is_some_and(|found| self.occurs(parameter, found, depth + 1)),
            Type::List(of) | Type::Optional(of) => self.occurs(parameter, of, depth + 1),
            Type::Map(of) => self.occurs(parameter, &of.0, depth + 1) || self.occurs(parameter, &of.1, depth + 1),
            _ => false,
        }
    }
}

/// The result of an attempt to bind a parameter.
enum Substitution {
    Valid,
    /// The parameter has another type.
    Taken,
    /// The type would contain itself.
    Circular,
}

/// The more general of two assignable types.
pub(super) fn most_general(left: &Type, right: &Type) -> Type {
    if says_less(left, right) { left.clone() } else { right.clone() }
}

/// `isEqualOrLessSpecific`.
fn says_less(left: &Type, right: &Type) -> bool {
    match (left, right) {
        (Type::Dyn | Type::Parameter(_), _) => true,
        (_, Type::Dyn | Type::Parameter(_)) => false,
        (Type::List(left), Type::List(right)) | (Type::Optional(left), Type::Optional(right)) => says_less(left, right),
        (Type::Map(left), Type::Map(right)) => says_less(&left.0, &right.0) && says_less(&left.1, &right.1),
        _ => left == right,
    }
}
