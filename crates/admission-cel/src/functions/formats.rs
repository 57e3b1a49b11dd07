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

/// Functions that return one of [`FORMATS`].
macro_rules! formats {
    ($($function:ident $index:literal),* $(,)?) => {
        $(pub(crate) fn $function<'a>(_: &mut Work<'_>, _: &[Val<'a>]) -> Outcome<'a> {
            FORMATS.get($index).map(Val::Format).ok_or_else(Failure::no_such_overload)
        })*
    };
}

formats! {
    dns1123_label 0,
    dns1123_subdomain 1,
    dns1035_label 2,
    qualified_name 3,
    dns1123_label_prefix 4,
    dns1123_subdomain_prefix 5,
    dns1035_label_prefix 6,
    label_value 7,
    uri 8,
    uuid 9,
    byte 10,
    date 11,
    datetime 12,
}
