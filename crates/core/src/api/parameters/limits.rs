//! Which values a parameter takes, beside their type: bounds, choices, a pattern, a length.

use super::words::{few, meant, shown};
use crate::api::schema::quoted;
use crate::api::v1alpha1::{self, Bound, ParameterType};

/// The longest value, in bytes.
pub(super) const LONGEST: usize = 1024;

/// The limits of the values of a parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Limits {
    pub(super) range: Range,
    pub(super) choices: Vec<String>,
    pub(super) pattern: Option<Pattern>,
    pub(super) length: Option<usize>,
}

/// The smallest and the largest value, if there are any.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Range {
    pub(super) least: Option<Size>,
    pub(super) most: Option<Size>,
}

/// A value with an order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Size {
    /// As [`ParameterType::size`] has it.
    pub(super) of: i128,
    /// The value, as written.
    pub(super) text: String,
}

/// A pattern that a whole value matches.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    source: String,
    regex: regex::Regex,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Pattern {
    /// # Errors
    /// If it is invalid. The error is the message.
    fn new(source: &str) -> Result<Self, String> {
        // Alone, because `a)|(b` would be valid between parentheses.
        admission_cel::regex(source)?;
        let regex = admission_cel::regex(&format!("^(?:{source})$"))?;
        Ok(Self { source: source.to_owned(), regex })
    }

    fn holds(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// The pattern, as declared.
    pub(super) fn source(&self) -> &str {
        &self.source
    }
}

impl Range {
    /// Both together.
    pub(super) fn and(&self, other: &Self) -> Self {
        let least = self.least.iter().chain(&other.least).max_by_key(|size| size.of);
        let most = self.most.iter().chain(&other.most).min_by_key(|size| size.of);
        Self { least: least.cloned(), most: most.cloned() }
    }

    pub(super) fn has(&self, size: i128) -> bool {
        self.least.as_ref().is_none_or(|least| size >= least.of)
            && self.most.as_ref().is_none_or(|most| size <= most.of)
    }

    /// Whether no value is in it.
    pub(super) fn is_empty(&self) -> bool {
        matches!((&self.least, &self.most), (Some(least), Some(most)) if least.of > most.of)
    }

    /// The range in words, behind those of the type.
    fn words(&self) -> String {
        match (&self.least, &self.most) {
            (Some(least), Some(most)) => format!(" from `{}` to `{}`", least.text, most.text),
            (Some(least), None) => format!(" of at least `{}`", least.text),
            (None, Some(most)) => format!(" of at most `{}`", most.text),
            (None, None) => String::new(),
        }
    }

    /// Why `text` is no value of the type in this range: a part of a sentence.
    pub(super) fn judge(&self, of: ParameterType, text: &str) -> Result<(), String> {
        let size = of.size(text);
        let is_wrong_size = of.is_ordered() && size.is_some_and(|size| !self.has(size));
        if of.has(text) && !is_wrong_size {
            return Ok(());
        }
        let hint = match of.spelt(text).filter(|better| better != text) {
            Some(better) if of.size(&better).is_none_or(|size| self.has(size)) => format!("; write `{better}`"),
            Some(better) => format!("; it is spelt `{better}`"),
            None => self.binary(of, text).map(|better| format!("; write `{better}`")).unwrap_or_default(),
        };
        Err(format!("must be {}{}, is {}{hint}", of.words(), self.words(), shown(text)))
    }

    /// `64m` as `64Mi`, where that fits: `m` is a thousandth.
    fn binary(&self, of: ParameterType, text: &str) -> Option<String> {
        let better = format!("{}Mi", text.strip_suffix('m')?);
        let is_better = of == ParameterType::Quantity && of.has(text) && self.has(of.size(&better)?);
        is_better.then_some(better)
    }
}

impl Limits {
    /// The limits that `declared` has. Second: each faulty field, with what is wrong.
    pub(super) fn of(declared: &v1alpha1::Parameter) -> (Self, Vec<(String, String)>) {
        let mut faults = Vec::new();
        let of = declared.r#type;
        let mut bound = |field: &str, bound: &Option<Bound>| {
            let bound = bound.as_ref()?;
            match size(of, bound) {
                Ok(size) => Some(size),
                Err(fault) => {
                    faults.push((field.to_owned(), fault));
                    None
                }
            }
        };
        let range = Range { least: bound("minimum", &declared.minimum), most: bound("maximum", &declared.maximum) };
        if range.is_empty() {
            faults.push(("minimum".to_owned(), "must not be above `maximum`".to_owned()));
        }
        if of != ParameterType::String {
            let given = [
                ("enum", !declared.r#enum.is_empty()),
                ("pattern", declared.pattern.is_some()),
                ("maxLength", declared.max_length.is_some()),
            ];
            let instead = if of.is_ordered() { "; write `minimum` and `maximum`" } else { "; remove it" };
            let message = format!("must be left out, because it is for `type: String`{instead}");
            faults.extend(given.iter().filter(|(_, is)| *is).map(|(field, _)| ((*field).to_owned(), message.clone())));
            return (Self { range, ..Self::default() }, faults);
        }
        let pattern = declared.pattern.as_deref().map(Pattern::new).transpose().unwrap_or_else(|fault| {
            faults.push(("pattern".to_owned(), format!("must be a regular expression of RE2: {fault}")));
            None
        });
        let length = declared.max_length.and_then(|length| usize::try_from(length).ok());
        let limits = Self { range, choices: declared.r#enum.clone(), pattern, length };
        for (index, choice) in limits.choices.iter().enumerate() {
            let field = format!("enum[{index}]");
            if limits.choices[..index].contains(choice) {
                faults.push((field, "must be there once".to_owned()));
            } else if let Err(fault) = is_text(choice).and_then(|()| limits.judge_form(choice)) {
                faults.push((field, fault));
            }
        }
        (limits, faults)
    }

    /// Why `text`, a value of the type, is outside of these limits and of `places`.
    pub(super) fn judge(&self, of: ParameterType, places: &Range, text: &str) -> Result<(), String> {
        self.range.and(places).judge(of, text)?;
        if of != ParameterType::String {
            return Ok(());
        }
        if !self.choices.is_empty() && !self.choices.iter().any(|choice| choice == text) {
            let choices = || self.choices.iter().map(String::as_str);
            let hint = meant(text, choices()).map(|choice| format!("; write {}", few([choice].into_iter())));
            let (choices, hint) = (few(choices()), hint.unwrap_or_default());
            return Err(format!("must be one of {choices}, is {}{hint}", shown(text)));
        }
        self.judge_form(text)
    }

    fn judge_form(&self, text: &str) -> Result<(), String> {
        if let Some(pattern) = self.pattern.as_ref().filter(|pattern| !pattern.holds(text)) {
            return Err(format!("must match {}, is {}", quoted(&pattern.source), shown(text)));
        }
        let length = text.chars().count();
        match self.length.filter(|most| length > *most) {
            Some(most) => Err(format!("must have at most {most} characters, has {length}")),
            None => Ok(()),
        }
    }

    /// The values, for a sentence that does not have the refused one.
    pub(super) fn wanted(&self, of: ParameterType, places: &Range) -> String {
        if of != ParameterType::String {
            return format!("{}{}", of.words(), self.range.and(places).words());
        }
        if !self.choices.is_empty() {
            return format!("one of {}", few(self.choices.iter().map(String::as_str)));
        }
        let pattern = self.pattern.as_ref().map(|pattern| format!("that matches {}", quoted(&pattern.source)));
        let length = self.length.map(|most| format!("of at most {most} characters"));
        let limits: Vec<String> = pattern.into_iter().chain(length).collect();
        format!("{} {}", of.words(), limits.join(", "))
    }

    /// The values in a few words. `words` are those of the place, if it takes some only.
    pub(super) fn allowed(&self, of: ParameterType, places: &Range, words: Option<String>) -> String {
        let range = self.range.and(places);
        match of {
            ParameterType::Boolean => "true or false".to_owned(),
            ParameterType::String if !self.choices.is_empty() => {
                format!("one of {}", few(self.choices.iter().map(String::as_str)))
            }
            ParameterType::String => {
                let text = match (&self.pattern, words) {
                    (Some(pattern), _) => format!("a text that matches `{}`", pattern.source),
                    (None, Some(words)) => words,
                    (None, None) => match self.length {
                        Some(length) => return format!("any text of at most {length} characters"),
                        None => return format!("any text of at most {LONGEST} bytes"),
                    },
                };
                self.length.map_or_else(|| text.clone(), |length| format!("{text}, of at most {length} characters"))
            }
            _ => match (&range.least, &range.most) {
                (Some(least), Some(most)) => format!("{} to {}", least.text, most.text),
                _ => format!("{}{}", of.words(), range.words().replace('`', "")),
            },
        }
    }
}

/// That `text` can be a value at all.
pub(super) fn is_text(text: &str) -> Result<(), String> {
    if text.len() > LONGEST {
        return Err(format!("must have at most {LONGEST} bytes, has {}", text.len()));
    }
    if text.contains('\0') {
        return Err(format!("must not have the character NUL, is {}", shown(text)));
    }
    Ok(())
}

/// `bound` as a value of the type.
fn size(of: ParameterType, bound: &Bound) -> Result<Size, String> {
    if !of.is_ordered() {
        let instead = if of == ParameterType::String { "; write `enum`, `pattern` or `maxLength`" } else { "" };
        return Err(format!("must be left out, because values of `type: {of:?}` have no order{instead}"));
    }
    let text = bound.to_string();
    if of == ParameterType::Duration && matches!(bound, Bound::Number(_)) {
        return Err(format!("must be a duration, is `{text}`; write `{text}s`"));
    }
    Range::default().judge(of, &text)?;
    let size = of.size(&text).ok_or_else(|| format!("must be {}", of.words()))?;
    Ok(Size { of: size, text })
}
