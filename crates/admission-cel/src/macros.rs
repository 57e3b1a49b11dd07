//! Macros: calls whose arguments are not values, but names and expressions over them.

use super::ast::{Call, Comprehension, Form, Kind, Node, OptionalMap, SortBy};
use super::dialect::Dialect;
use super::error::Fault;
use super::suggest;

/// A macro of one or two iteration variables.
struct Macro {
    name: &'static str,
    form: Form,
    variables: usize,
    has_filter: bool,
    /// The first minor version that has it.
    since: u32,
}

/// Two variables came with Kubernetes 1.32.
const fn comprehension(name: &'static str, form: Form, variables: usize, has_filter: bool) -> Macro {
    Macro { name, form, variables, has_filter, since: if variables == 2 { 33 } else { 0 } }
}

/// The macros, by name and number of arguments.
const COMPREHENSIONS: [Macro; 16] = [
    comprehension("all", Form::All, 1, false),
    comprehension("exists", Form::Exists, 1, false),
    comprehension("exists_one", Form::ExistsOne, 1, false),
    comprehension("filter", Form::Filter, 1, false),
    comprehension("map", Form::List, 1, false),
    comprehension("map", Form::List, 1, true),
    comprehension("all", Form::All, 2, false),
    comprehension("exists", Form::Exists, 2, false),
    comprehension("exists_one", Form::ExistsOne, 2, false),
    comprehension("existsOne", Form::ExistsOne, 2, false),
    comprehension("transformList", Form::List, 2, false),
    comprehension("transformList", Form::List, 2, true),
    comprehension("transformMap", Form::Map, 2, false),
    comprehension("transformMap", Form::Map, 2, true),
    comprehension("transformMapEntry", Form::MapEntry, 2, false),
    comprehension("transformMapEntry", Form::MapEntry, 2, true),
];

/// The first minor version with `sortBy`, as of the other functions of lists v3.
const SORT_BY: u32 = 35;

/// `function(arguments)`.
///
/// # Errors
/// If this is a macro with invalid arguments.
pub(super) fn global(at: usize, function: String, mut arguments: Vec<Node>) -> Result<Node, Fault> {
    if function != "has" || arguments.len() != 1 {
        return Node::new(at, Kind::Call(Box::new(Call { function, is_member: false, arguments })));
    }
    match arguments.pop().map(|argument| (argument.at, argument.kind)) {
        Some((_, Kind::Select { operand, field, is_optional: false })) => Node::new(at, Kind::Has { operand, field }),
        Some((at, _)) => {
            Err(Fault::new(at, "invalid argument to has() macro: it takes a field, as in has(object.spec)"))
        }
        None => Err(Fault::new(at, "invalid argument to has() macro")),
    }
}

/// `target.function(arguments)`.
///
/// # Errors
/// If this is a macro with invalid arguments.
pub(super) fn member(
    at: usize,
    target: Node,
    function: &str,
    arguments: Vec<Node>,
    dialect: Dialect,
) -> Result<Node, Fault> {
    let takes = |of: &&Macro| of.name == function && of.variables + usize::from(of.has_filter) + 1 == arguments.len();
    if let Some(of) = COMPREHENSIONS.iter().find(takes) {
        return if dialect.is_since(of.since) {
            expand(at, of, target, arguments)
        } else {
            Err(suggest::younger_function(at, function, of.since))
        };
    }
    match (function, <[Node; 2]>::try_from(arguments)) {
        ("optMap" | "optFlatMap", Ok([variable, body])) => {
            let message = format!("{function}() variable name must be a simple identifier");
            let variable = simple_name(&variable).ok_or_else(|| Fault::new(variable.at, message))?;
            Node::new(
                at,
                Kind::OptionalMap(Box::new(OptionalMap { target, variable, body, is_flat: function != "optMap" })),
            )
        }
        ("sortBy", Ok(_)) if !dialect.is_since(SORT_BY) => Err(suggest::younger_function(at, function, SORT_BY)),
        ("sortBy", Ok([variable, key])) => sort_by(at, target, &variable, key),
        (_, Ok(arguments)) => plain(at, target, function, arguments.into()),
        (_, Err(arguments)) => plain(at, target, function, arguments),
    }
}

fn plain(at: usize, target: Node, function: &str, mut arguments: Vec<Node>) -> Result<Node, Fault> {
    arguments.insert(0, target);
    Node::new(at, Kind::Call(Box::new(Call { function: function.to_owned(), is_member: true, arguments })))
}

fn expand(at: usize, of: &Macro, range: Node, arguments: Vec<Node>) -> Result<Node, Fault> {
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next().ok_or_else(|| Fault::new(at, "too few arguments"));
    let variable = variable(&next()?)?;
    let second = if of.variables == 2 {
        let node = next()?;
        let second = self::variable(&node)?;
        if second == variable {
            return Err(Fault::new(node.at, format!("duplicate variable name: {second}")));
        }
        Some(second)
    } else {
        None
    };
    let filter = of.has_filter.then(&mut next).transpose()?;
    let body = next()?;
    Node::new(at, Kind::Comprehension(Box::new(Comprehension { form: of.form, range, variable, second, filter, body })))
}

fn sort_by(at: usize, range: Node, variable: &Node, key: Node) -> Result<Node, Fault> {
    if matches!(range.kind, Kind::Literal(_) | Kind::Map(_)) {
        let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err(Fault::new(range.at, message));
    }
    let variable = self::variable(variable)?;
    Node::new(at, Kind::SortBy(Box::new(SortBy { range, variable, key })))
}

/// The name that an argument declares.
fn variable(node: &Node) -> Result<String, Fault> {
    simple_name(node).ok_or_else(|| Fault::new(node.at, "argument must be a simple name"))
}

fn simple_name(node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Name(name) => Some(name.clone()),
        _ => None,
    }
}
