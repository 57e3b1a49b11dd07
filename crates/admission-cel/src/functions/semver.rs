//! The functions of semantic versions.

use crate::error::Failure;
use crate::semver::Semver;
use crate::signatures::Work;
use crate::value::{Outcome, Val};
use std::rc::Rc;

pub(crate) fn semver<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let semver = read(work, values)?;
    semver.map(|semver| Val::Semver(Rc::new(semver))).ok_or_else(|| Failure::new("invalid semantic version"))
}

pub(crate) fn is_semver<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(read(work, values)?.is_some()))
}

fn read(work: &mut Work<'_>, values: &[Val<'_>]) -> Result<Option<Semver>, Failure> {
    let (text, normalize) = match values {
        [Val::Text(text)] => (text, false),
        [Val::Text(text), Val::Bool(normalize)] => (text, *normalize),
        _ => return Err(Failure::no_such_overload()),
    };
    work.meter.charge_text(text.len() * 2)?;
    Ok(if normalize { Semver::parse_normalized(text) } else { Semver::parse(text) })
}

/// The number at an index: major, minor and patch.
pub(crate) fn number<'a>(values: &[Val<'a>], index: usize) -> Outcome<'a> {
    let [Val::Semver(semver)] = values else { return Err(Failure::no_such_overload()) };
    let number = semver.numbers.get(index).and_then(|number| i64::try_from(*number).ok());
    number.map(Val::Int).ok_or_else(|| Failure::new("integer overflow"))
}
