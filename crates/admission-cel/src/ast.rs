//! The syntax tree of an expression, with macros as separate nodes.
//!
//! A comprehension is one node, unlike cel-go's fold over an accumulator. So nothing is copied per iteration.

use super::error::Fault;

/// The deepest expression: `maxRecursionDepth` of cel-go's parser, which counts each grammar rule separately.
pub(super) const MAX_DEPTH: u16 = 250;

/// A part of an expression.
#[derive(Debug)]
pub(super) struct Node {
    /// The byte of the source for messages.
    pub(super) at: usize,
    /// The height of its subtree in nodes. The parser bounds it, and thereby all recursion over nodes.
    pub(super) height: u16,
    pub(super) kind: Kind,
}

impl Node {
    /// A node at the byte `at` of the source.
    ///
    /// # Errors
    /// If it is deeper than [`MAX_DEPTH`].
    pub(super) fn new(at: usize, kind: Kind) -> Result<Self, Fault> {
        let height = kind.inner_height() + 1;
        if height > MAX_DEPTH {
            return Err(too_deep(at));
        }
        Ok(Self { at, height, kind })
    }
}

/// The fault of an expression that is deeper than [`MAX_DEPTH`].
pub(super) fn too_deep(at: usize) -> Fault {
    Fault::new(at, format!("expression recursion limit exceeded: {MAX_DEPTH}"))
}

/// The kind of a part.
#[derive(Debug)]
pub(super) enum Kind {
    Literal(Literal),
    Name(String),
    /// `operand.field`; `operand.?field`.
    Select {
        operand: Box<Node>,
        field: String,
        is_optional: bool,
    },
    /// `has(operand.field)`.
    Has {
        operand: Box<Node>,
        field: String,
    },
    /// A function or an operator, the target of a member call first.
    Call(Box<Call>),
    /// A chain of `&&`.
    And(Vec<Node>),
    /// A chain of `||`.
    Or(Vec<Node>),
    List(Vec<Item<Node>>),
    Map(Vec<Entry<Node>>),
    Comprehension(Box<Comprehension>),
    /// `target.optMap(variable, body)` or `optFlatMap`.
    OptionalMap(Box<OptionalMap>),
    /// `target.sortBy(variable, key)`.
    SortBy(Box<SortBy>),
}

#[derive(Debug)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Call {
    /// The name as in signatures: `size`, `_+_`.
    pub(super) function: String,
    pub(super) is_member: bool,
    pub(super) arguments: Vec<Node>,
}

/// An item of a list; `[?item]` if it is optional. Its parts are nodes before the check, and plans after it.
#[derive(Debug)]
pub(super) struct Item<Part> {
    pub(super) value: Part,
    pub(super) is_optional: bool,
}

/// An entry of a map; `{?key: value}` if it is optional.
#[derive(Debug)]
pub(super) struct Entry<Part> {
    pub(super) key: Part,
    pub(super) value: Part,
    pub(super) is_optional: bool,
}

/// `range.all(variable, body)` and the like.
#[derive(Debug)]
pub(super) struct Comprehension {
    pub(super) form: Form,
    pub(super) range: Node,
    pub(super) variable: String,
    /// The second of two variables.
    pub(super) second: Option<String>,
    /// The condition for items to be visited.
    pub(super) filter: Option<Node>,
    pub(super) body: Node,
}

/// The result of a comprehension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    All,
    Exists,
    ExistsOne,
    /// A list of the items for which the body is true.
    Filter,
    /// A list of bodies: `map`, `transformList`.
    List,
    /// A map from keys to bodies: `transformMap`.
    Map,
    /// A map of the entries of bodies: `transformMapEntry`.
    MapEntry,
}

#[derive(Debug)]
pub(super) struct OptionalMap {
    pub(super) target: Node,
    pub(super) variable: String,
    pub(super) body: Node,
    /// Whether the body itself is an optional.
    pub(super) is_flat: bool,
}

#[derive(Debug)]
pub(super) struct SortBy {
    pub(super) range: Node,
    pub(super) variable: String,
    pub(super) key: Node,
}

impl Kind {
    /// The height of the highest part.
    pub(super) fn inner_height(&self) -> u16 {
        let highest = |nodes: &[Node]| nodes.iter().map(|node| node.height).max().unwrap_or(0);
        match self {
            Self::Literal(_) | Self::Name(_) => 0,
            Self::Select { operand, .. } | Self::Has { operand, .. } => operand.height,
            Self::Call(call) => highest(&call.arguments),
            Self::And(terms) | Self::Or(terms) => highest(terms),
            Self::List(items) => items.iter().map(|item| item.value.height).max().unwrap_or(0),
            Self::Map(entries) => {
                entries.iter().map(|entry| entry.key.height.max(entry.value.height)).max().unwrap_or(0)
            }
            Self::Comprehension(of) => {
                let filter = of.filter.as_ref().map_or(0, |filter| filter.height);
                of.range.height.max(filter).max(of.body.height)
            }
            Self::OptionalMap(of) => of.target.height.max(of.body.height),
            Self::SortBy(of) => of.range.height.max(of.key.height),
        }
    }
}
