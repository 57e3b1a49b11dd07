//! Templates with a stand-in for each value, for an engine that writes down how a value is computed before there is a workload.
//!
//! Such an engine judges the usual values only, and leaves all others to one that judges by [`Parameter::judge`]. So it needs
//! no place whose values depend on more than themselves: those are left out here.

use super::leaves::{Form, Leaf, Rule};
use super::places::{At, List, Place};
use super::{Parameter, Parameters};
use crate::api::v1alpha1::Template;
use serde_json::Value;

/// The characters around a stand-in. They are for private use, and no name or value that is checked has them.
const AROUND: [char; 2] = ['\u{e000}', '\u{e001}'];
/// The resources of which only the request and the limit of one container depend on each other.
const PLAIN_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// What stands for a value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    /// The index of the parameter.
    pub(crate) of: usize,
    pub(crate) role: Role,
}

/// What a value is in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A number.
    Number,
    /// A text, or the end of one.
    Text,
    /// A part of a text, in the place of a mark.
    Part,
}

/// A piece of a text with stand-ins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    Text(&'t str),
    StandIn(StandIn),
}

/// Whether `text` has a stand-in, or a character of one.
pub(crate) fn has_stand_in(text: &str) -> bool {
    text.contains(AROUND)
}

/// The pieces of a text with stand-ins; none if a stand-in in it is none of ours.
pub(crate) fn pieces(text: &str) -> Option<Vec<Piece<'_>>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once(AROUND[0]) {
        let (inner, behind) = after.split_once(AROUND[1])?;
        let mut fields = inner.split(' ');
        let of = fields.next()?.parse().ok()?;
        let role = match fields.next()? {
            "number" => Role::Number,
            "text" => Role::Text,
            "part" => Role::Part,
            _ => return None,
        };
        pieces.extend((!before.is_empty()).then_some(Piece::Text(before)));
        pieces.push(Piece::StandIn(StandIn { of, role }));
        rest = behind;
    }
    pieces.extend((!rest.is_empty()).then_some(Piece::Text(rest)));
    Some(pieces)
}

impl Parameters {
    /// `template` with a stand-in in each place. `tag` makes the texts those of one template, and has no blank.
    ///
    /// # Errors
    /// The path of a place whose values depend on more than themselves, or are judged for each workload.
    pub(crate) fn with_stand_ins(&self, template: &Template, tag: &str) -> Result<Template, String> {
        let mut made = template.clone();
        for (of, parameter) in self.0.iter().enumerate() {
            for (number, place) in parameter.places.iter().enumerate() {
                let role = place.role(parameter).ok_or_else(|| place.path.clone())?;
                let word = match role {
                    Role::Number => "number",
                    Role::Text => "text",
                    Role::Part => "part",
                };
                let text = format!("{}{of} {word} {number} {tag}{}", AROUND[0], AROUND[1]);
                place.stand_in(&mut made, &parameter.name, &text);
            }
        }
        Ok(made)
    }
}

impl Place {
    /// What values are here; none if they depend on more than themselves.
    fn role(&self, parameter: &Parameter) -> Option<Role> {
        let is_listed = !parameter.limits.choices.is_empty();
        let is_judged = match self.leaf.rule {
            // Each choice has been judged with the policy.
            Rule::Like(..) => is_listed,
            Rule::Any | Rule::OneOf(_) | Rule::Between(..) => true,
            Rule::Amount | Rule::Limit => self.at.is_plain_amount(),
        };
        let is_alone = match &self.at {
            At::Item(list, ..) => *list != List::Env && !is_bound(self.leaf),
            At::Annotation(_) => true,
            // The selector of the workload judges labels.
            At::Label(_) | At::Grace => false,
        };
        let is_fit = is_judged && is_alone && (is_listed || !self.leaf.is_image());
        let role = match self.leaf.form {
            Form::Number => Role::Number,
            Form::Text | Form::Expanded | Form::Tag => Role::Text,
            Form::Mark => Role::Part,
            // A switch changes which items are added. The name of a port must be one of the container.
            Form::Switch | Form::NumberOrText => return None,
        };
        is_fit.then_some(role)
    }
}

impl At {
    fn is_plain_amount(&self) -> bool {
        // The other amount is the size of a volume.
        self.last().is_some_and(|name| PLAIN_RESOURCES.contains(&name) || name == "sizeLimit")
    }
}

/// Whether other rules than that of its table compare the value with more: with ports, with the abilities of the pod, or with the grace
/// period.
fn is_bound(leaf: &Leaf) -> bool {
    let bound = ["ports[", ".port", "resizePolicy", "sleep", "terminationGracePeriodSeconds", "KeyRef.name"];
    bound.iter().any(|part| leaf.path.contains(part))
}

/// What a value must be, for an engine that judges by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked<'p> {
    /// The smallest value: the text, as it is written, and its size: an integer, the billionths of a quantity, the seconds of a duration.
    pub(crate) least: Option<(&'p str, i128)>,
    pub(crate) most: Option<(&'p str, i128)>,
    /// The only texts, if there are any. More than one list: the text is in each.
    pub(crate) lists: Vec<Vec<&'p str>>,
    /// A regular expression that a whole text matches.
    pub(crate) pattern: Option<&'p str>,
    /// The most characters.
    pub(crate) length: Option<usize>,
    /// Whether an amount must be more than 0.
    pub(crate) is_positive: bool,
}

impl Parameter {
    /// What its values must be, beside the type.
    pub(crate) fn asked(&self) -> Asked<'_> {
        let own = |of: fn(&super::Range) -> Option<&super::limits::Size>| {
            [&self.limits.range, &self.range].into_iter().filter_map(of).collect::<Vec<_>>()
        };
        let least = own(|range| range.least.as_ref()).into_iter().max_by_key(|size| size.of);
        let most = own(|range| range.most.as_ref()).into_iter().min_by_key(|size| size.of);
        let mut lists = Vec::new();
        if !self.limits.choices.is_empty() {
            lists.push(self.limits.choices.iter().map(String::as_str).collect());
        }
        lists.extend(self.places.iter().filter_map(|place| match place.leaf.rule {
            Rule::OneOf(choices) => Some(choices.to_vec()),
            _ => None,
        }));
        let is_amount = |place: &Place| matches!(place.leaf.rule, Rule::Amount | Rule::Limit);
        Asked {
            least: least.map(|size| (size.text.as_str(), size.of)),
            most: most.map(|size| (size.text.as_str(), size.of)),
            lists,
            pattern: self.limits.pattern.as_ref().map(super::limits::Pattern::source),
            length: self.limits.length,
            is_positive: self.places.iter().any(is_amount),
        }
    }

    /// The text that marks get if nothing else gives one.
    pub(crate) fn text_of_marks(&self) -> Option<String> {
        self.default().filter(|_| !self.is_required).map(super::marks::escaped)
    }

    /// The bytes of the longest value that is in the template or has at most `longest` bytes, once for each place.
    pub(crate) fn bytes_in_places(&self, longest: usize) -> usize {
        self.places.len() * longest.max(self.default().map_or(0, str::len))
    }

    /// Whether a marker may claim any value within the bounds: the author of a workload may choose it anyway, or it is a number, because other
    /// admission changes what expressions read.
    pub(crate) fn may_be_forged(&self) -> bool {
        self.annotation.is_some() || self.overridable || self.of.is_ordered()
    }
}

/// Every text with a stand-in in `made`, with what stands in the same place of `plain`, the template without values.
pub(crate) fn texts<'v>(made: &'v Value, plain: Option<&'v Value>, found: &mut Vec<(&'v str, Option<&'v Value>)>) {
    match made {
        Value::String(text) if has_stand_in(text) => found.push((text, plain)),
        Value::Array(items) => {
            let there = |index: usize| plain.and_then(|plain| plain.get(index));
            items.iter().enumerate().for_each(|(index, item)| texts(item, there(index), found));
        }
        Value::Object(members) => {
            members.iter().for_each(|(name, member)| texts(member, plain.and_then(|plain| plain.get(name)), found));
        }
        _ => {}
    }
}
