//! The functions of named formats.

use crate::budget::text_cost;
use crate::error::Failure;
use crate::formats::FORMATS;
use crate::signatures::Work;
use crate::value::{Outcome, Val};

pub(crate) fn named<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(name)] = values else { return Err(Failure::no_such_overload()) };
    Val::optional(FORMATS.iter().find(|format| format.name == &**name).map(Val::Format))
}

pub(crate) fn validate<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Format(format), Val::Text(text)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge(text_cost(text.len()).saturating_mul(4))?;
    if (format.is_valid)(text, work.dialect) {
        return Ok(Val::Optional(None));
    }
    Val::some(Val::list(vec![Val::text(format.must)])?)
}
