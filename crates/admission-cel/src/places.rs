//! The places of a variable in an expression.

use super::ast::{Kind, Node};

/// A place in the source of an expression where a variable occurs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The byte at which the variable begins.
    pub at: usize,
    /// The names of the fields that are selected or tested at this place, outermost first. For
    /// `object.metadata.labels["a"]` they are `metadata` and `labels`.
    pub fields: Vec<String>,
}

/// Every place in `node` of the global variable `variable`, without variables of macros that hide it.
pub(super) fn of(node: &Node, variable: &str) -> Vec<Place> {
    let mut found = Vec::new();
    Walk { variable, found: &mut found }.node(node, Vec::new());
    found.sort_by_key(|place| place.at);
    found
}

struct Walk<'a> {
    variable: &'a str,
    found: &'a mut Vec<Place>,
}

impl Walk<'_> {
    /// `fields` are the fields selected from `node`, innermost first.
    fn node(&mut self, node: &Node, mut fields: Vec<String>) {
        match &node.kind {
            Kind::Literal(_) => {}
            Kind::Name(name) if name == self.variable => {
                fields.reverse();
                self.found.push(Place { at: node.at, fields });
            }
            Kind::Name(_) => {}
            Kind::Select { operand, field, .. } | Kind::Has { operand, field } => {
                fields.push(field.clone());
                self.node(operand, fields);
            }
            Kind::Call(call) => self.all(&call.arguments),
            Kind::And(terms) | Kind::Or(terms) => self.all(terms),
            Kind::List(items) => items.iter().for_each(|item| self.whole(&item.value)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                self.whole(&entry.key);
                self.whole(&entry.value);
            }),
            Kind::Comprehension(of) => {
                self.whole(&of.range);
                let names = [Some(&of.variable), of.second.as_ref()];
                let body = of.filter.iter().chain([&of.body]);
                self.within(names.into_iter().flatten(), body);
            }
            Kind::OptionalMap(of) => {
                self.whole(&of.target);
                self.within([&of.variable], [&of.body]);
            }
            Kind::SortBy(of) => {
                self.whole(&of.range);
                self.within([&of.variable], [&of.key]);
            }
        }
    }

    fn whole(&mut self, node: &Node) {
        self.node(node, Vec::new());
    }

    fn all(&mut self, nodes: &[Node]) {
        nodes.iter().for_each(|node| self.whole(node));
    }

    /// Visits the parts of a macro that see its own variables `names`.
    fn within<'a>(&mut self, names: impl IntoIterator<Item = &'a String>, nodes: impl IntoIterator<Item = &'a Node>) {
        if names.into_iter().all(|name| name != self.variable) {
            nodes.into_iter().for_each(|node| self.whole(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Dialect, Expression, Gives};

    fn places(source: &str) -> Vec<(usize, String)> {
        let expression = Expression::compile(source, Gives::Bool, Dialect::NEWEST).unwrap();
        expression.places_of_object().into_iter().map(|place| (place.at, place.fields.join("."))).collect()
    }

    #[test]
    fn every_place_is_found_with_the_fields_that_are_selected_there() {
        for (source, expected) in [
            ("true", vec![]),
            ("object == object", vec![(0, ""), (10, "")]),
            ("object.a.b[\"c\"].d == 1", vec![(0, "a.b")]),
            ("has(object.a.b) && object.?a[?\"x\"].orValue(true)", vec![(4, "a.b"), (19, "a")]),
            ("[1].exists(object, object == 1) && object.a", vec![(35, "a")]),
            ("object.a.all(k, v, object.b[k] == v) // object", vec![(0, "a"), (19, "b")]),
            ("\"object\" == string(  object  .  a  )", vec![(21, "a")]),
            (".object.a == 1", vec![(1, "a")]),
            ("[object.a].sortBy(x, object.b)[0] == 1", vec![(1, "a"), (21, "b")]),
            ("object.?a.optMap(x, object.b == x).orValue(false)", vec![(0, "a"), (20, "b")]),
            ("{object.a: [object.b]} == {}", vec![(1, "a"), (12, "b")]),
        ] {
            let found = places(source);
            let expected: Vec<_> = expected.into_iter().map(|(at, fields)| (at, fields.to_owned())).collect();
            assert_eq!(found, expected, "{source}");
        }
    }
}
