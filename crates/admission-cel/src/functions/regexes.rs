//! Functions of regular expressions.

use crate::budget::Meter;
use crate::error::Failure;
use crate::patterns::Pattern;
use crate::signatures::Work;
use crate::value::{Outcome, Text, Val};

pub(crate) fn matches<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    with_pattern(work, values, |_, pattern, text| Ok(Val::Bool(pattern.regex.is_match(text))))
}

pub(crate) fn find<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    with_pattern(work, values, |_, pattern, text| {
        Ok(pattern.regex.find(text).map_or(Val::Text(Text::Borrowed("")), |found| text.part(found.range())))
    })
}

pub(crate) fn find_all<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let limit = match values {
        [_, _, Val::Int(limit)] => usize::try_from(*limit).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    with_pattern(work, values, |meter, pattern, text| {
        let mut parts = Vec::new();
        for found in pattern.regex.find_iter(text).take(limit) {
            meter.charge_items(1)?;
            meter.work(4)?;
            parts.push(text.part(found.range()));
        }
        Val::list(parts)
    })
}

fn with_pattern<'a>(
    work: &mut Work<'_>,
    values: &[Val<'a>],
    run: impl FnOnce(&mut Meter, &Pattern, &Text<'a>) -> Outcome<'a>,
) -> Outcome<'a> {
    let [Val::Text(text), Val::Text(pattern), ..] = values else { return Err(Failure::no_such_overload()) };
    if let Some(pattern) = work.pattern {
        pattern.charge(work.meter, text)?;
        return run(work.meter, pattern, text);
    }
    let pattern = work.patterns.get(work.meter, pattern)?;
    pattern.charge(work.meter, text)?;
    run(work.meter, &pattern, text)
}
