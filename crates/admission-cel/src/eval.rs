//! Evaluation of plans, from left to right, as lazily as on the server.

use super::ast::{Entry, Form, Item};
use super::budget::Meter;
use super::dialect::{Dialect, NESTED_OPTIONALS, OPTIONALS_BEFORE_OR};
use super::error::Failure;
use super::functions::{compare, lists};
use super::patterns::Patterns;
use super::plan::{Call, Comprehension, OptionalMap, Plan, SortBy};
use super::signatures::{Means, Native, Work};
use super::value::{Key, List, Map, Outcome, Val};
use serde_json::Value;
use std::collections::BTreeMap;

/// The cost of a list literal: `ListCreateBaseCost` in cel-go's common/cost.go.
const LIST_COST: u64 = 10;
/// The cost of a map literal: `MapCreateBaseCost`, same file.
const MAP_COST: u64 = 30;

/// One evaluation of one expression.
pub(super) struct Evaluator<'a> {
    pub(super) object: &'a Value,
    pub(super) namespace: Option<&'a Value>,
    pub(super) template: Option<&'a Value>,
    dialect: Dialect,
    pub(super) meter: Meter,
    /// Variables of macros, innermost last.
    locals: Vec<Val<'a>>,
    patterns: Patterns,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(variables: &super::Variables<'a>, dialect: Dialect, meter: Meter) -> Self {
        let super::Variables { object, namespace, template } = *variables;
        Self { object, namespace, template, dialect, meter, locals: Vec::new(), patterns: Patterns::default() }
    }

    /// The value of `plan`.
    ///
    /// # Errors
    /// If the evaluation fails or exceeds the cost limit.
    pub(super) fn value(&mut self, plan: &'a Plan) -> Outcome<'a> {
        self.meter.work(1)?;
        match plan {
            Plan::Constant(constant) => Ok(constant.value()),
            Plan::Object => self.variable(Some(self.object)),
            Plan::Namespace => self.variable(self.namespace),
            Plan::Template => self.variable(self.template),
            Plan::Local(index) => self.local(*index),
            Plan::Select { operand, field, is_optional } => self.select(operand, field, *is_optional),
            Plan::Has { operand, field } => self.has(operand, field),
            Plan::And(terms) => self.chain(terms, false),
            Plan::Or(terms) => self.chain(terms, true),
            Plan::Native(native, arguments) => self.native(*native, arguments),
            Plan::Call(call) => self.call(call),
            Plan::List(items) => self.list(items),
            Plan::Map(entries) => self.map(entries),
            Plan::Comprehension(of) => self.comprehension(of),
            Plan::OptionalMap(of) => self.optional_map(of),
            Plan::SortBy(of) => self.sort_by(of),
        }
    }

    fn variable(&mut self, value: Option<&'a Value>) -> Outcome<'a> {
        self.meter.charge(1)?;
        Ok(value.map_or(Val::Null, Val::json))
    }

    fn local(&mut self, index: usize) -> Outcome<'a> {
        self.meter.charge(1)?;
        let value = self.locals.get(index).cloned().ok_or_else(Failure::no_such_overload)?;
        self.attribute(value)
    }

    /// The value of a variable, a condition, or the operand of a selection. Older versions look into each optional there,
    /// and lose all but one of those that lie in each other.
    fn attribute(&self, value: Val<'a>) -> Outcome<'a> {
        match &value {
            Val::Optional(Some(held))
                if matches!(held.value, Val::Optional(_)) && !self.dialect.has(NESTED_OPTIONALS) =>
            {
                let mut inner = &held.value;
                while let Val::Optional(Some(held)) = inner {
                    inner = &held.value;
                }
                Val::some(if matches!(inner, Val::Optional(None)) { Val::Null } else { inner.clone() })
            }
            _ => Ok(value),
        }
    }

    fn select(&mut self, operand: &'a Plan, field: &'a str, is_optional: bool) -> Outcome<'a> {
        let operand = self.value(operand)?;
        let operand = self.attribute(operand)?;
        self.meter.charge(1)?;
        match operand {
            Val::Optional(None) => Ok(operand),
            Val::Optional(Some(held)) => Val::optional(field_of(&held.value, field)?),
            _ if is_optional => Val::optional(field_of(&operand, field)?),
            _ => field_of(&operand, field)?.ok_or_else(|| Failure::no_such_key(field)),
        }
    }

    fn has(&mut self, operand: &'a Plan, field: &'a str) -> Outcome<'a> {
        let found = match self.value(operand)? {
            Val::Optional(None) => None,
            Val::Optional(Some(held)) => field_of(&held.value, field)?,
            operand => field_of(&operand, field)?,
        };
        Ok(Val::Bool(found.is_some()))
    }

    /// `||` and `&&`: a `decisive` term decides even if other terms fail.
    fn chain(&mut self, terms: &'a [Plan], decisive: bool) -> Outcome<'a> {
        let mut failure = None;
        for term in terms {
            match self.value(term) {
                Ok(Val::Bool(value)) if value == decisive => return Ok(Val::Bool(decisive)),
                Ok(Val::Bool(_)) => {}
                Ok(_) => failure = failure.or(Some(Failure::no_such_overload())),
                Err(Failure::CostExceeded) => return Err(Failure::CostExceeded),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Val::Bool(!decisive)), Err)
    }

    fn native(&mut self, native: Native, arguments: &'a [Plan]) -> Outcome<'a> {
        match (native, arguments) {
            (Native::Choice, [condition, yes, no]) => {
                let choice = if self.condition(condition)? { yes } else { no };
                let value = self.value(choice)?;
                self.attribute(value)
            }
            (Native::In, [_, Plan::List(items)]) if items.is_empty() => Ok(Val::Bool(false)),
            (Native::Or | Native::OrValue, [left, right]) => self.alternative(left, right, native == Native::OrValue),
            (_, [left, right]) => {
                let left = self.value(left)?;
                // An empty optional has no entries, whatever the key.
                if matches!((native, &left), (Native::Index | Native::OptionalIndex, Val::Optional(None))) {
                    return Ok(left);
                }
                let right = self.value(right)?;
                self.strict(native, &left, &right)
            }
            _ => Err(Failure::no_such_overload()),
        }
    }

    fn strict(&mut self, native: Native, left: &Val<'a>, right: &Val<'a>) -> Outcome<'a> {
        self.meter.charge(compare::cost(native, left, right))?;
        match native {
            Native::Equal => compare::equal(&mut self.meter, left, right).map(Val::Bool),
            // Incomparable values are unequal.
            Native::NotEqual => match compare::equal(&mut self.meter, left, right) {
                Ok(is_equal) => Ok(Val::Bool(!is_equal)),
                Err(Failure::CostExceeded) => Err(Failure::CostExceeded),
                Err(_) => Ok(Val::Bool(true)),
            },
            Native::In => compare::contains(&mut self.meter, left, right).map(Val::Bool),
            Native::Index => indexed(left, right, false),
            Native::OptionalIndex => indexed(left, right, true),
            Native::Choice | Native::Or | Native::OrValue => Err(Failure::no_such_overload()),
        }
    }

    fn alternative(&mut self, left: &'a Plan, right: &'a Plan, is_value: bool) -> Outcome<'a> {
        self.meter.charge(1)?;
        match self.value(left)? {
            Val::Optional(None) => self.value(right),
            Val::Optional(Some(held)) if is_value => Ok(held.value.clone()),
            some @ Val::Optional(Some(_)) => Ok(some),
            _ if self.dialect.has(OPTIONALS_BEFORE_OR) => Err(Failure::no_such_overload()),
            other => Ok(other),
        }
    }

    fn condition(&mut self, plan: &'a Plan) -> Result<bool, Failure> {
        match self.value(plan)? {
            Val::Bool(value) => Ok(value),
            _ => Err(Failure::no_such_overload()),
        }
    }

    fn call(&mut self, call: &'a Call) -> Outcome<'a> {
        match call.arguments.as_slice() {
            [first] => {
                let values = [self.value(first)?];
                self.run(call, &values)
            }
            [first, second] => {
                let values = [self.value(first)?, self.value(second)?];
                self.run(call, &values)
            }
            arguments => {
                let values = arguments.iter().map(|argument| self.value(argument)).collect::<Result<Vec<_>, _>>()?;
                self.run(call, &values)
            }
        }
    }

    /// Runs the first overload that accepts the values.
    fn run(&mut self, call: &'a Call, values: &[Val<'a>]) -> Outcome<'a> {
        self.meter.charge(1)?;
        let overload = call.overloads.iter().find(|overload| overload.accepts(values));
        let overload = overload.ok_or_else(Failure::no_such_overload)?;
        let run = match overload.means {
            Means::Strict(run) | Means::Unguarded(run) => run,
            Means::Format(format) => return Ok(Val::Format(format)),
            Means::Native(_) => return Err(Failure::no_such_overload()),
        };
        let mut work = Work {
            meter: &mut self.meter,
            dialect: self.dialect,
            pattern: call.pattern.as_ref(),
            patterns: &mut self.patterns,
            gives: &overload.gives,
        };
        run(&mut work, values)
    }

    fn list(&mut self, items: &'a [Item<Plan>]) -> Outcome<'a> {
        self.meter.charge(LIST_COST)?;
        let mut values = Vec::with_capacity(items.len());
        for Item { value, is_optional } in items {
            let value = self.value(value)?;
            values.extend(if *is_optional { held(value)? } else { Some(value) });
        }
        Val::list(values)
    }

    fn map(&mut self, entries: &'a [Entry<Plan>]) -> Outcome<'a> {
        self.meter.charge(MAP_COST)?;
        let mut values = BTreeMap::new();
        for Entry { key, value, is_optional } in entries {
            let key = self.value(key)?;
            let value = self.value(value)?;
            let key = literal_key(&key)?;
            if let Some(value) = if *is_optional { held(value)? } else { Some(value) } {
                values.insert(key, value);
            }
        }
        Val::map(values)
    }

    fn comprehension(&mut self, of: &'a Comprehension) -> Outcome<'a> {
        let outer = self.locals.len();
        let value = match self.value(&of.range)? {
            Val::List(list) => self.over(of, ListEntries { list, index: 0, has_two: of.has_two }),
            Val::Map(Map::Json(members)) => {
                let entries = members.iter().map(|(key, value)| (Key::Text(super::value::Text::Borrowed(key)), value));
                self.over(of, entries.map(|(key, value)| (key.value(), of.has_two.then(|| Val::json(value)))))
            }
            Val::Map(map) => {
                self.meter.work(map.len() as u64)?;
                let entries: Vec<_> =
                    map.iter().map(|(key, value)| (key.value(), of.has_two.then_some(value))).collect();
                self.over(of, entries.into_iter())
            }
            _ => Err(Failure::no_such_overload()),
        };
        self.locals.truncate(outer);
        value
    }

    fn over(&mut self, of: &'a Comprehension, entries: impl Iterator<Item = Variables<'a>>) -> Outcome<'a> {
        match of.form {
            Form::All => self.quantify(of, entries, false),
            Form::Exists => self.quantify(of, entries, true),
            Form::ExistsOne => self.exists_one(of, entries),
            Form::Filter | Form::List => self.transform_list(of, entries),
            Form::Map | Form::MapEntry => self.transform_map(of, entries),
        }
    }

    /// Sets the variables of an iteration.
    fn bind(&mut self, outer: usize, (first, second): Variables<'a>) -> Result<(), Failure> {
        self.meter.work(1)?;
        self.locals.truncate(outer);
        self.locals.push(first);
        self.locals.extend(second);
        Ok(())
    }

    /// `all` and `exists`: a `decisive` body decides even if others fail.
    fn quantify(
        &mut self,
        of: &'a Comprehension,
        entries: impl Iterator<Item = Variables<'a>>,
        decisive: bool,
    ) -> Outcome<'a> {
        let outer = self.locals.len();
        let mut failure = None;
        for entry in entries {
            self.bind(outer, entry)?;
            match self.condition(&of.body) {
                Ok(value) if value == decisive => return Ok(Val::Bool(decisive)),
                Ok(_) => {}
                Err(Failure::CostExceeded) => return Err(Failure::CostExceeded),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Val::Bool(!decisive)), Err)
    }

    fn exists_one(&mut self, of: &'a Comprehension, entries: impl Iterator<Item = Variables<'a>>) -> Outcome<'a> {
        let outer = self.locals.len();
        let mut count = 0_usize;
        for entry in entries {
            self.bind(outer, entry)?;
            count += usize::from(self.condition(&of.body)?);
        }
        Ok(Val::Bool(count == 1))
    }

    fn is_wanted(&mut self, of: &'a Comprehension) -> Result<bool, Failure> {
        of.filter.as_ref().map_or(Ok(true), |filter| self.condition(filter))
    }

    fn transform_list(&mut self, of: &'a Comprehension, entries: impl Iterator<Item = Variables<'a>>) -> Outcome<'a> {
        let outer = self.locals.len();
        let mut values = Vec::new();
        for entry in entries {
            let item = entry.0.clone();
            self.bind(outer, entry)?;
            match of.form {
                Form::Filter if self.condition(&of.body)? => values.push(item),
                Form::Filter => {}
                _ if self.is_wanted(of)? => values.push(self.value(&of.body)?),
                _ => {}
            }
        }
        Val::list(values)
    }

    fn transform_map(&mut self, of: &'a Comprehension, entries: impl Iterator<Item = Variables<'a>>) -> Outcome<'a> {
        let outer = self.locals.len();
        let mut values = BTreeMap::new();
        for entry in entries {
            let key = entry.0.clone();
            self.bind(outer, entry)?;
            if !self.is_wanted(of)? {
                continue;
            }
            let value = self.value(&of.body)?;
            self.meter.work(2 * compare::LOOKUP)?;
            if of.form == Form::Map {
                values.insert(literal_key(&key)?, value);
            } else {
                self.insert_all(&mut values, &value)?;
            }
        }
        Val::map(values)
    }

    fn insert_all(&mut self, values: &mut BTreeMap<Key<'a>, Val<'a>>, entries: &Val<'a>) -> Result<(), Failure> {
        let Val::Map(entries) = entries else { return Err(Failure::no_such_overload()) };
        self.meter.work(entries.len() as u64 * compare::LOOKUP)?;
        for (key, value) in entries.iter() {
            if values.insert(key, value).is_some() {
                return Err(Failure::new("insert failed: key already exists"));
            }
        }
        Ok(())
    }

    fn optional_map(&mut self, of: &'a OptionalMap) -> Outcome<'a> {
        let held = match self.value(&of.target)? {
            Val::Optional(Some(held)) => held.value.clone(),
            none @ Val::Optional(None) => return Ok(none),
            _ => return Err(Failure::no_such_overload()),
        };
        let outer = self.locals.len();
        self.locals.push(held);
        let value = self.value(&of.body);
        self.locals.truncate(outer);
        let value = if of.is_flat { value? } else { Val::some(value?)? };
        self.attribute(value)
    }

    fn sort_by(&mut self, of: &'a SortBy) -> Outcome<'a> {
        let Val::List(list) = self.value(&of.range)? else { return Err(Failure::no_such_overload()) };
        let outer = self.locals.len();
        let mut pairs = Vec::new();
        for item in list.iter() {
            self.bind(outer, (item.clone(), None))?;
            let key = self.value(&of.key)?;
            pairs.push((key, item));
        }
        self.locals.truncate(outer);
        lists::sorted(&mut self.meter, pairs)
    }
}

/// The variables of one iteration.
type Variables<'a> = (Val<'a>, Option<Val<'a>>);

/// The iterations over a list: items, or indexes and items.
struct ListEntries<'a> {
    list: List<'a>,
    index: usize,
    has_two: bool,
}

impl<'a> Iterator for ListEntries<'a> {
    type Item = Variables<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.list.get(self.index)?;
        let position = Val::Int(i64::try_from(self.index).ok()?);
        self.index += 1;
        Some(if self.has_two { (position, Some(item)) } else { (item, None) })
    }
}

/// The field of a value, if it exists. Values without fields have none, except that a list is an error.
fn field_of<'a>(operand: &Val<'a>, field: &'a str) -> Result<Option<Val<'a>>, Failure> {
    match operand {
        Val::Map(map) => Ok(map.field(field)),
        Val::List(_) => Err(Failure::new("unsupported index type 'string' in list")),
        _ => Ok(None),
    }
}

/// `operand[key]` or `operand[?key]`.
fn indexed<'a>(operand: &Val<'a>, key: &Val<'a>, is_optional: bool) -> Outcome<'a> {
    match operand {
        Val::Optional(None) => Ok(Val::Optional(None)),
        Val::Optional(Some(held)) => Val::optional(entry_of(&held.value, key)?),
        _ if is_optional => Val::optional(entry_of(operand, key)?),
        _ => entry_of(operand, key)?.ok_or_else(|| missing(operand, key)),
    }
}

fn entry_of<'a>(operand: &Val<'a>, key: &Val<'a>) -> Result<Option<Val<'a>>, Failure> {
    match (operand, key) {
        (Val::Map(map), Val::Text(_) | Val::Int(_) | Val::Uint(_) | Val::Bool(_) | Val::Double(_)) => {
            Ok(key.key().and_then(|key| map.get(&key)))
        }
        (Val::List(list), _) => Ok(usize::try_from(position(key)?).ok().and_then(|index| list.get(index))),
        (_, Val::Text(_) | Val::Int(_) | Val::Uint(_) | Val::Bool(_) | Val::Double(_)) => Ok(None),
        _ => Err(Failure::new(format!("invalid qualifier type: {}", key.type_name().name()))),
    }
}

/// An index of a list.
fn position(key: &Val<'_>) -> Result<i64, Failure> {
    let position = match key {
        Val::Int(value) => Some(*value),
        Val::Uint(value) => i64::try_from(*value).ok(),
        Val::Double(value) => super::value::exact_int(*value),
        _ => None,
    };
    position.ok_or_else(|| Failure::new(format!("unsupported index type '{}' in list", key.type_name().name())))
}

fn missing(operand: &Val<'_>, key: &Val<'_>) -> Failure {
    match (operand, key) {
        (Val::List(_), Val::Int(index)) => Failure::new(format!("index out of bounds: {index}")),
        (Val::List(_), _) => Failure::new("index out of bounds"),
        (_, Val::Text(key)) => Failure::no_such_key(&**key),
        (_, Val::Int(key)) => Failure::no_such_key(key),
        (_, Val::Uint(key)) => Failure::no_such_key(key),
        (_, Val::Bool(key)) => Failure::no_such_key(key),
        _ => Failure::new("no such key"),
    }
}

/// The key of a map literal.
fn literal_key<'a>(key: &Val<'a>) -> Result<Key<'a>, Failure> {
    key.key().ok_or_else(|| Failure::new("unsupported key type"))
}

/// The content of an optional entry of a literal.
fn held(value: Val<'_>) -> Result<Option<Val<'_>>, Failure> {
    match value {
        Val::Optional(held) => Ok(held.map(|held| held.value.clone())),
        _ => Err(Failure::new("cannot initialize optional list element or map entry from non-optional value")),
    }
}
