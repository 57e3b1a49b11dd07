//! The check of types and names: the faults that the server rejects when it stores an expression, and the plan for run
//! time.

use super::ast::{self, Entry, Form, Item, Kind, Literal, Node};
use super::budget::Meter;
use super::dialect::{CHECKED_FORMATS, COMPUTED_FORMATS, Dialect};
use super::error::Fault;
use super::eval::Evaluator;
use super::functions::format;
use super::library::{self, Scope};
use super::namespace::NAMESPACE;
use super::parameter;
use super::patterns::Pattern;
use super::plan::{self, Constant, Plan};
use super::signatures::{Means, Native, Overload};
use super::suggest::{self, closest};
use super::types::{Bindings, Type, most_general};
use super::value::{Outcome, Text, TypeName, Val};
use crate::Variables;
use serde_json::Value;

/// The type that an expression must have. The server accepts no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// For validations and match conditions.
    Bool,
    /// For messages.
    String,
    /// For the value of a parameter of a policy: a text, a number, a bool, a duration, a quantity, or dyn. No server
    /// evaluates it. It has the variable `template`, and [sums and extremes of quantities](crate#values-of-parameters).
    Value,
}

/// The declared variables. The last one exists for the values of parameters only.
const VARIABLES: [&str; 3] = ["object", "namespaceObject", TEMPLATE];
/// The variable of the pod template.
const TEMPLATE: &str = "template";
/// Conversions that the server evaluates at compile time for constants (`maybeOptimizeConstUnary` in cel-go's
/// interpreter/decorators.go). A failing one is rejected.
const CONVERSIONS: [&str; 9] = ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "uint"];
/// Functions whose second argument is a regular expression.
const REGEX_FUNCTIONS: [&str; 3] = ["matches", "find", "findAll"];

/// The plan for `node`.
///
/// # Errors
/// The first fault: an undeclared name, a function that does not accept the types, and so on.
pub(super) fn check(node: &Node, gives: Gives, dialect: Dialect) -> Result<Plan, Fault> {
    let scope = Scope { dialect, has_ours: gives == Gives::Value };
    let mut checker = Checker { dialect, scope, ..Checker::default() };
    let (plan, found) = checker.node(node)?;
    checker.check_literals()?;
    let found = checker.bindings.resolve(&found);
    let wanted = match gives {
        Gives::Bool => Type::Bool,
        Gives::String => Type::Text,
        Gives::Value => return parameter::check(&found).map(|()| plan).map_err(|message| Fault::new(node.at, message)),
    };
    if found == wanted {
        return Ok(plan);
    }
    let hint = match (&found, gives) {
        (Type::Dyn, Gives::Bool) => "; compare it, as in `… == true`",
        (Type::Dyn, Gives::String) => "; convert it, as in `string(…)`",
        _ => "",
    };
    Err(Fault::new(node.at, format!("must evaluate to {wanted} but got {found}{hint}")))
}

type Checked = Result<(Plan, Type), Fault>;

#[derive(Default)]
struct Checker {
    dialect: Dialect,
    scope: Scope,
    bindings: Bindings,
    /// Variables of macros, innermost last.
    locals: Vec<(String, Type)>,
    /// The types in list and map literals, with their positions. All types of one literal must be equal.
    literals: Vec<Vec<(usize, Type)>>,
    /// The number of enclosing calls of `format`, whose arguments may have different types.
    formats: usize,
    /// The types in the last checked list literal, for `format`, whose last argument it is.
    last_list: Vec<(usize, Type)>,
}

impl Checker {
    fn node(&mut self, node: &Node) -> Checked {
        match &node.kind {
            Kind::Literal(literal) => Ok(literal_of(literal)),
            Kind::Name(name) => self.name(node.at, name),
            Kind::Select { operand, field, is_optional } => self.select(node, operand, field, *is_optional),
            Kind::Has { operand, field } => self.has(node.at, operand, field),
            Kind::Call(call) => self.call(node.at, call),
            Kind::And(terms) => Ok((Plan::And(self.conditions(terms)?), Type::Bool)),
            Kind::Or(terms) => Ok((Plan::Or(self.conditions(terms)?), Type::Bool)),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Comprehension(of) => self.comprehension(of),
            Kind::OptionalMap(of) => self.optional_map(of),
            Kind::SortBy(of) => self.sort_by(of),
        }
    }

    fn name(&self, at: usize, name: &str) -> Checked {
        if let Some(index) = self.locals.iter().rposition(|(local, _)| local == name) {
            let of = self.locals.get(index).map_or(Type::Dyn, |(_, of)| of.clone());
            return Ok((Plan::Local(index), of));
        }
        match name {
            "object" => Ok((Plan::Object, Type::Dyn)),
            "namespaceObject" => Ok((Plan::Namespace, Type::Object(&NAMESPACE))),
            TEMPLATE if self.scope.has_ours => Ok((Plan::Template, Type::Dyn)),
            _ => type_name(name, self.dialect).ok_or_else(|| self.undeclared(at, name)),
        }
    }

    fn undeclared(&self, at: usize, name: &str) -> Fault {
        let locals = self.locals.iter().map(|(local, _)| local.as_str());
        let variables = VARIABLES.into_iter().filter(|name| *name != TEMPLATE || self.scope.has_ours);
        let known: Vec<&str> = variables.chain(locals).collect();
        let meant = closest(name, known.iter().copied()).map(|meant| format!(", did you mean '{meant}'?"));
        let variables = known.join("', '");
        let hint = meant.unwrap_or_else(|| format!(": the variables are '{variables}'"));
        Fault::new(at, format!("undeclared reference to '{name}' (in container ''){hint}"))
    }

    fn select(&mut self, node: &Node, operand: &Node, field: &str, is_optional: bool) -> Checked {
        if let Some(found) = qualified(node).and_then(|name| type_name(&name, self.dialect)) {
            return Ok(found);
        }
        let (plan, of) = self.node(operand)?;
        let (result, was_optional) = self.field(node.at, &of, field)?;
        let plan = Plan::Select { operand: Box::new(plan), field: field.into(), is_optional };
        Ok((plan, if is_optional || was_optional { Type::optional(result) } else { result }))
    }

    fn has(&mut self, at: usize, operand: &Node, field: &str) -> Checked {
        let (plan, of) = self.node(operand)?;
        self.field(at, &of, field)?;
        Ok((Plan::Has { operand: Box::new(plan), field: field.into() }, Type::Bool))
    }

    /// The type of a field, and whether its operand is optional.
    fn field(&mut self, at: usize, operand: &Type, field: &str) -> Result<(Type, bool), Fault> {
        let operand = self.bindings.resolve(operand);
        let (operand, is_optional) = match operand {
            Type::Optional(of) => ((*of).clone(), true),
            other => (other, false),
        };
        let found = match &operand {
            Type::Dyn => Type::Dyn,
            Type::Map(of) => of.1.clone(),
            Type::Parameter(_) => {
                self.bindings.is_assignable(&Type::Dyn, &operand);
                Type::Dyn
            }
            Type::Object(object) => {
                let declared = object.fields.iter().find(|(name, _)| *name == field);
                declared.map(|(_, of)| Type::of_field(of)).ok_or_else(|| {
                    let known: Vec<&str> = object.fields.iter().map(|(name, _)| *name).collect();
                    Fault::new(at, format!("undefined field '{field}': {} has {}", object.name, known.join(", ")))
                })?
            }
            other => return Err(Fault::new(at, format!("type '{other}' does not support field selection"))),
        };
        Ok((found, is_optional))
    }

    fn conditions(&mut self, terms: &[Node]) -> Result<Vec<Plan>, Fault> {
        terms.iter().map(|term| self.condition(term)).collect()
    }

    /// A Boolean operand.
    fn condition(&mut self, node: &Node) -> Result<Plan, Fault> {
        let (plan, found) = self.node(node)?;
        if !self.bindings.is_assignable(&found, &Type::Bool) {
            return Err(mismatch(node.at, "bool", &self.bindings.resolve(&found)));
        }
        Ok(plan)
    }

    fn call(&mut self, at: usize, call: &ast::Call) -> Checked {
        let is_format = call.function == "format";
        self.formats += usize::from(is_format);
        let checked = self.call_within(at, call);
        self.formats -= usize::from(is_format);
        checked
    }

    fn call_within(&mut self, at: usize, call: &ast::Call) -> Checked {
        // `a.b(x)` is the function `a.b` if there is one.
        let prefix = call.arguments.first().filter(|_| call.is_member).and_then(qualified);
        let whole = prefix.map(|prefix| format!("{prefix}.{}", call.function));
        let whole = whole.filter(|name| library::overloads(name, self.scope).next().is_some());
        let (name, is_member, arguments) = match &whole {
            Some(name) => (name.as_str(), false, call.arguments.get(1..).unwrap_or_default()),
            None => (call.function.as_str(), call.is_member, call.arguments.as_slice()),
        };
        let mut plans = Vec::with_capacity(arguments.len());
        let mut types = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let (plan, of) = self.node(argument)?;
            plans.push(plan);
            types.push(of);
        }
        let (overloads, gives) = self.resolve(at, name, is_member, &types)?;
        let plan = self.planned(name, overloads, plans, arguments)?;
        Ok((plan, gives))
    }

    /// The overloads that may accept the arguments, and their result type.
    fn resolve(
        &mut self,
        at: usize,
        name: &str,
        is_member: bool,
        types: &[Type],
    ) -> Result<(Vec<&'static Overload>, Type), Fault> {
        let known: Vec<&Overload> = library::overloads(name, self.scope).collect();
        if known.is_empty() {
            return Err(suggest::undeclared_function(at, name, is_member, self.scope));
        }
        let mut fitting = Vec::new();
        let mut gives: Option<Type> = None;
        for overload in known.iter().copied().filter(|overload| overload.is_member == is_member) {
            let first = self.bindings.fresh(overload.parameters);
            let takes: Vec<Type> = overload.takes.iter().map(|of| of.with_parameters_from(first)).collect();
            if !self.bindings.are_assignable(types, &takes) {
                continue;
            }
            fitting.push(overload);
            let result = self.bindings.resolve(&overload.gives.with_parameters_from(first));
            gives = Some(match gives {
                Some(before) if before != Type::Dyn && before != result => Type::Dyn,
                Some(before) => before,
                None => result,
            });
        }
        // If several overloads may fit, the server tries all at run time, even those that the types exclude. It always
        // does so if one implementation serves all overloads.
        if fitting.len() > 1 || (!fitting.is_empty() && is_served_by_one(name)) {
            fitting = known.into_iter().filter(|overload| overload.is_member == is_member).collect();
        }
        let types = || types.iter().map(|of| self.bindings.resolve(of)).collect::<Vec<_>>();
        let fault = || suggest::no_matching_overload(at, name, is_member, &types(), self.scope);
        gives.map(|gives| (fitting, gives)).ok_or_else(fault)
    }

    fn planned(
        &self,
        name: &str,
        overloads: Vec<&'static Overload>,
        plans: Vec<Plan>,
        arguments: &[Node],
    ) -> Result<Plan, Fault> {
        if let Some(Means::Native(native)) = overloads.first().map(|overload| overload.means) {
            check_index(native, &plans, arguments, self.dialect)?;
            return Ok(Plan::Native(native, plans));
        }
        let is_conversion = CONVERSIONS.contains(&name);
        let mut call = plan::Call { overloads, arguments: plans, pattern: None, is_conversion };
        if REGEX_FUNCTIONS.contains(&name)
            && let (Some(Plan::Constant(Constant::Text(pattern))), Some(node)) =
                (call.arguments.get(1), arguments.get(1))
        {
            let pattern = Pattern::new(pattern);
            call.pattern =
                Some(pattern.map_err(|error| Fault::new(node.at, format!("invalid {name} argument: {error}")))?);
        }
        if name == "format" && self.dialect.has(CHECKED_FORMATS) {
            self.check_format(arguments)?;
        }
        let plan = Plan::Call(Box::new(call));
        if is_constant(&plan) {
            let at = arguments.first().map_or(0, |argument| argument.at);
            constant_value(&plan, self.dialect)
                .map_err(|failure| Fault::new(at, format!("invalid {name} argument: {failure}")))?;
        }
        Ok(plan)
    }

    /// Checks that a constant format fits its list of arguments.
    fn check_format(&self, arguments: &[Node]) -> Result<(), Fault> {
        match arguments {
            [Node { kind: Kind::Literal(Literal::Text(text)), .. }, Node { kind: Kind::List(_), at, .. }] => {
                let types: Vec<Type> = self.last_list.iter().map(|(_, of)| self.bindings.resolve(of)).collect();
                format::check(text, &types).map_err(|message| Fault::new(*at, message))
            }
            [Node { kind: Kind::Literal(_), .. }, _] => Ok(()),
            [node, ..] if !self.dialect.has(COMPUTED_FORMATS) => {
                Err(Fault::new(node.at, "the format must be a literal: others crash a server of 1.31"))
            }
            _ => Ok(()),
        }
    }

    fn list(&mut self, items: &[Item<Node>]) -> Checked {
        let mut joined = None;
        let mut plans = Vec::with_capacity(items.len());
        let mut types = Vec::with_capacity(items.len());
        for Item { value, is_optional } in items {
            let (plan, of) = self.entry(value, *is_optional)?;
            joined = Some(self.join(joined, &of));
            plans.push(Item { value: plan, is_optional: *is_optional });
            types.push((value.at, of));
        }
        self.same(&types);
        self.last_list = types;
        let item = joined.unwrap_or_else(|| Type::Parameter(self.bindings.fresh(1)));
        Ok((Plan::List(plans), Type::list(item)))
    }

    fn map(&mut self, entries: &[Entry<Node>]) -> Checked {
        let (mut keys, mut values) = (None, None);
        let mut plans = Vec::with_capacity(entries.len());
        let (mut key_types, mut value_types) = (Vec::new(), Vec::new());
        for Entry { key, value, is_optional } in entries {
            let (key_plan, key_type) = self.node(key)?;
            keys = Some(self.join(keys, &key_type));
            let (value_plan, value_type) = self.entry(value, *is_optional)?;
            values = Some(self.join(values, &value_type));
            plans.push(Entry { key: key_plan, value: value_plan, is_optional: *is_optional });
            key_types.push((key.at, key_type));
            value_types.push((value.at, value_type));
        }
        self.same(&key_types);
        self.same(&value_types);
        let key = keys.unwrap_or_else(|| Type::Parameter(self.bindings.fresh(1)));
        let value = values.unwrap_or_else(|| Type::Parameter(self.bindings.fresh(1)));
        Ok((Plan::Map(plans), Type::map(key, value)))
    }

    /// A value in a list or map literal. For an optional entry, the type of its content.
    fn entry(&mut self, node: &Node, is_optional: bool) -> Checked {
        let (plan, of) = self.node(node)?;
        match (is_optional, self.bindings.resolve(&of)) {
            (false, _) => Ok((plan, of)),
            (true, Type::Optional(of)) => Ok((plan, (*of).clone())),
            (true, Type::Dyn) => Ok((plan, Type::Dyn)),
            (true, other) => Err(mismatch(node.at, &format!("optional_type({other})"), &other)),
        }
    }

    /// The common type of both.
    fn join(&mut self, before: Option<Type>, next: &Type) -> Type {
        match before {
            None => next.clone(),
            Some(before) if self.bindings.is_assignable(&before, next) => most_general(&before, next),
            Some(_) => Type::Dyn,
        }
    }

    fn same(&mut self, types: &[(usize, Type)]) {
        if self.formats == 0 && types.len() > 1 {
            self.literals.push(types.to_vec());
        }
    }

    /// Checks that each literal has a single type. This comes last, when all types are known.
    fn check_literals(&mut self) -> Result<(), Fault> {
        for literal in std::mem::take(&mut self.literals) {
            let mut types = literal.iter().map(|(at, of)| (*at, self.bindings.resolve(of)));
            let Some((_, first)) = types.next() else { continue };
            if let Some((at, other)) = types.find(|(_, other)| !first.is_equivalent(other)) {
                let fault = mismatch(at, &first.to_string(), &other);
                let message = format!("{}: all entries of a literal have the same type", fault.message);
                return Err(Fault { message, ..fault });
            }
        }
        Ok(())
    }

    fn comprehension(&mut self, of: &ast::Comprehension) -> Checked {
        let (range, range_type) = self.node(&of.range)?;
        let (key, value) = self.entries_of(of.range.at, &range_type)?;
        let item = if matches!(self.bindings.resolve(&range_type), Type::Map(_)) { &key } else { &value };
        let locals = match &of.second {
            None => vec![(of.variable.clone(), item.clone())],
            Some(second) => vec![(of.variable.clone(), key.clone()), (second.clone(), value.clone())],
        };
        let (filter, body, body_type) = self.with_locals(locals, |checker| {
            let filter = of.filter.as_ref().map(|filter| checker.condition(filter)).transpose()?;
            let (body, body_type) = checker.node(&of.body)?;
            if matches!(of.form, Form::All | Form::Exists | Form::ExistsOne | Form::Filter)
                && !checker.bindings.is_assignable(&body_type, &Type::Bool)
            {
                return Err(mismatch(of.body.at, "bool", &checker.bindings.resolve(&body_type)));
            }
            Ok((filter, body, body_type))
        })?;
        let gives = match of.form {
            Form::All | Form::Exists | Form::ExistsOne => Type::Bool,
            Form::Filter => Type::list(item.clone()),
            Form::List => Type::list(body_type),
            Form::Map => Type::map(key, body_type),
            Form::MapEntry => self.entry_map(of.body.at, &body_type)?,
        };
        let has_two = of.second.is_some();
        Ok((Plan::Comprehension(Box::new(plan::Comprehension { form: of.form, has_two, range, filter, body })), gives))
    }

    fn with_locals<T>(
        &mut self,
        locals: Vec<(String, Type)>,
        check: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let outer = self.locals.len();
        self.locals.extend(locals);
        let checked = check(self);
        self.locals.truncate(outer);
        checked
    }

    /// The types of the two variables of a macro over `range`.
    fn entries_of(&mut self, at: usize, range: &Type) -> Result<(Type, Type), Fault> {
        match self.bindings.resolve(range) {
            Type::List(item) => Ok((Type::Int, (*item).clone())),
            Type::Map(of) => Ok((of.0.clone(), of.1.clone())),
            Type::Dyn => Ok((Type::Dyn, Type::Dyn)),
            parameter @ Type::Parameter(_) => {
                self.bindings.is_assignable(&Type::Dyn, &parameter);
                Ok((Type::Dyn, Type::Dyn))
            }
            other => {
                let rule = "cannot be range of a comprehension (must be list, map, or dynamic)";
                Err(Fault::new(at, format!("expression of type '{other}' {rule}")))
            }
        }
    }

    fn entry_map(&self, at: usize, body: &Type) -> Result<Type, Fault> {
        match self.bindings.resolve(body) {
            map @ Type::Map(_) => Ok(map),
            Type::Dyn | Type::Parameter(_) => Ok(Type::map(Type::Dyn, Type::Dyn)),
            other => Err(mismatch(at, "map", &other)),
        }
    }

    fn optional_map(&mut self, of: &ast::OptionalMap) -> Checked {
        let (target, target_type) = self.node(&of.target)?;
        let held = match self.bindings.resolve(&target_type) {
            Type::Optional(held) => (*held).clone(),
            Type::Dyn | Type::Parameter(_) => Type::Dyn,
            other => return Err(mismatch(of.target.at, "optional_type", &other)),
        };
        let (body, found) = self.with_locals(vec![(of.variable.clone(), held)], |checker| checker.node(&of.body))?;
        let gives = if of.is_flat { self.flat(of.body.at, &found)? } else { Type::optional(found) };
        Ok((Plan::OptionalMap(Box::new(plan::OptionalMap { target, body, is_flat: of.is_flat })), gives))
    }

    /// The type of the optional that a body returns.
    fn flat(&mut self, at: usize, found: &Type) -> Result<Type, Fault> {
        let any = Type::optional(Type::Parameter(self.bindings.fresh(1)));
        if !self.bindings.is_assignable(found, &any) {
            return Err(mismatch(at, "optional_type", &self.bindings.resolve(found)));
        }
        Ok(most_general(found, &any))
    }

    fn sort_by(&mut self, of: &ast::SortBy) -> Checked {
        let (range, range_type) = self.node(&of.range)?;
        let item = match self.bindings.resolve(&range_type) {
            Type::List(item) => (*item).clone(),
            Type::Dyn | Type::Parameter(_) => Type::Dyn,
            other => return Err(mismatch(of.range.at, "list", &other)),
        };
        let locals = vec![(of.variable.clone(), item.clone())];
        let (key, key_type) = self.with_locals(locals, |checker| checker.node(&of.key))?;
        // A list can be sorted exactly if its items have an order.
        self.resolve(of.key.at, "sort", true, &[Type::list(key_type)])?;
        Ok((Plan::SortBy(Box::new(plan::SortBy { range, key })), Type::list(item)))
    }
}

impl Type {
    /// The type of a signature, with its parameters counted from `first`.
    fn with_parameters_from(&self, first: usize) -> Self {
        match self {
            Self::Parameter(parameter) => Self::Parameter(first + parameter),
            Self::List(of) => Self::list(of.with_parameters_from(first)),
            Self::Optional(of) => Self::optional(of.with_parameters_from(first)),
            Self::Map(of) => Self::map(of.0.with_parameters_from(first), of.1.with_parameters_from(first)),
            other => other.clone(),
        }
    }
}

fn mismatch(at: usize, expected: &str, found: &Type) -> Fault {
    Fault::new(at, format!("expected type '{expected}' but found '{found}'"))
}

fn literal_of(literal: &Literal) -> (Plan, Type) {
    let (constant, of) = match literal {
        Literal::Null => (Constant::Null, Type::Null),
        Literal::Bool(value) => (Constant::Bool(*value), Type::Bool),
        Literal::Int(value) => (Constant::Int(*value), Type::Int),
        Literal::Uint(value) => (Constant::Uint(*value), Type::Uint),
        Literal::Double(value) => (Constant::Double(*value), Type::Double),
        Literal::Text(text) => (Constant::Text(text.as_str().into()), Type::Text),
        Literal::Bytes(bytes) => (Constant::Bytes(bytes.as_slice().into()), Type::Bytes),
    };
    (Plan::Constant(constant), of)
}

fn type_name(name: &str, dialect: Dialect) -> Option<(Plan, Type)> {
    let (_, found) =
        TypeName::DECLARED.into_iter().find(|(since, of)| dialect.is_since(*since) && of.name() == name)?;
    Some((Plan::Constant(Constant::Type(found)), Type::Meta))
}

/// `a.b.c`, if the node is names only.
fn qualified(node: &Node) -> Option<String> {
    let mut parts = Vec::new();
    let mut node = node;
    loop {
        match &node.kind {
            Kind::Name(name) => {
                parts.push(name.as_str());
                parts.reverse();
                return Some(parts.join("."));
            }
            Kind::Select { operand, field, is_optional: false } => {
                parts.push(field);
                node = operand;
            }
            _ => return None,
        }
    }
}

/// Whether the server has one implementation for all overloads (`Singleton…Binding` in cel-go). Operators and two
/// functions have.
fn is_served_by_one(name: &str) -> bool {
    name.contains('_') || matches!(name, "size" | "sort")
}

/// Whether the server treats the plan as a constant: a constant, a successful conversion of one, a list or a map.
fn is_constant(plan: &Plan) -> bool {
    match plan {
        Plan::Constant(_) => true,
        Plan::Call(call) => call.is_conversion && call.arguments.iter().all(is_constant),
        Plan::List(items) => items.iter().all(|item| !item.is_optional && is_constant(&item.value)),
        Plan::Map(entries) => {
            entries.iter().all(|entry| !entry.is_optional && is_constant(&entry.key) && is_constant(&entry.value))
        }
        _ => false,
    }
}

/// The value of a constant, or its failure.
fn constant_value(plan: &Plan, dialect: Dialect) -> Outcome<'_> {
    let nothing = Variables { object: &Value::Null, namespace: None, template: None };
    Evaluator::new(&nothing, dialect, Meter::at_compile_time()).value(plan)
}

/// Checks that a constant index is valid.
fn check_index(native: Native, plans: &[Plan], arguments: &[Node], dialect: Dialect) -> Result<(), Fault> {
    let (Native::Index | Native::OptionalIndex, [_, key], [_, node]) = (native, plans, arguments) else {
        return Ok(());
    };
    if !is_constant(key) {
        return Ok(());
    }
    match constant_value(key, dialect) {
        Ok(Val::Text(_) | Val::Int(_) | Val::Uint(_) | Val::Bool(_) | Val::Double(_)) => Ok(()),
        Ok(other) => Err(Fault::new(node.at, format!("invalid qualifier type: {}", other.type_name().name()))),
        Err(failure) => Err(Fault::new(node.at, failure.to_string())),
    }
}

impl Constant {
    /// The value of the constant.
    pub(super) fn value(&self) -> Val<'_> {
        match self {
            Self::Null => Val::Null,
            Self::Bool(value) => Val::Bool(*value),
            Self::Int(value) => Val::Int(*value),
            Self::Uint(value) => Val::Uint(*value),
            Self::Double(value) => Val::Double(*value),
            Self::Text(text) => Val::Text(Text::Borrowed(text)),
            Self::Bytes(bytes) => Val::Bytes((&**bytes).into()),
            Self::Type(of) => Val::Type(*of),
        }
    }
}
