//! Functions over strings. Positions count characters, not bytes.

use crate::dialect::{LAST_INDEX_IN_NOTHING, OFFSETS_BEYOND_THE_END, OFFSETS_OF_NOTHING};
use crate::error::Failure;
use crate::signatures::Work;
use crate::value::{Outcome, Val};

pub(crate) fn contains<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text), Val::Text(part)] = values else { return Err(Failure::no_such_overload()) };
    // The server's cost, as if the part were compared at each position.
    let places = (text.len() as u64).div_ceil(10).saturating_mul((part.len() as u64).div_ceil(10));
    work.meter.charge(places)?;
    work.meter.work(text.len() as u64 / 64)?;
    Ok(Val::Bool(text.contains(&**part)))
}

pub(crate) fn starts_with<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text), Val::Text(part)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_text(part.len())?;
    Ok(Val::Bool(text.starts_with(&**part)))
}

pub(crate) fn ends_with<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text), Val::Text(part)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_text(part.len())?;
    Ok(Val::Bool(text.ends_with(&**part)))
}

pub(crate) fn char_at<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text), Val::Int(index)] = values else { return Err(Failure::no_such_overload()) };
    work.meter.charge_text(text.len())?;
    let start = byte_of(text, *index)?;
    let character = text.get(start..).and_then(|rest| rest.chars().next());
    Ok(Val::text(character.map(String::from).unwrap_or_default()))
}

pub(crate) fn substring<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (text, start, end) = match values {
        [Val::Text(text), Val::Int(start)] => (text, *start, None),
        [Val::Text(text), Val::Int(start), Val::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(Failure::no_such_overload()),
    };
    work.meter.charge_text(text.len())?;
    if let Some(end) = end.filter(|end| start > *end) {
        return Err(Failure::new(format!("invalid substring range. start: {start}, end: {end}")));
    }
    let start = byte_of(text, start)?;
    let end = end.map_or(Ok(text.len()), |end| byte_of(text, end))?;
    Ok(text.part(start..end))
}

/// The byte offset of a character index. The end is also valid.
fn byte_of(text: &str, index: i64) -> Result<usize, Failure> {
    let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let found = usize::try_from(index).ok().and_then(|index| ends.into_iter().nth(index));
    found.ok_or_else(|| out_of_range(index))
}

fn out_of_range(index: i64) -> Failure {
    Failure::new(format!("index out of range: {index}"))
}

fn position(count: usize) -> Val<'static> {
    Val::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

pub(crate) fn index_of<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (text, wanted, offset) = search(work, values)?;
    let offset = offset.unwrap_or(0);
    if wanted.is_empty() {
        return index_of_nothing(work, offset, text.chars().count());
    }
    let start = usize::try_from(offset).map_err(|_| out_of_range(offset))?;
    let byte = match byte_of(text, offset) {
        Ok(byte) if byte < text.len() => byte,
        _ => return beyond_the_end(work, offset),
    };
    let found = text.get(byte..).and_then(|rest| Some(rest.get(..rest.find(wanted)?)?.chars().count()));
    Ok(found.map_or(Val::Int(-1), |found| position(start + found)))
}

/// The position of an empty string that is searched from an offset.
fn index_of_nothing<'a>(work: &Work<'_>, offset: i64, length: usize) -> Outcome<'a> {
    match usize::try_from(offset) {
        _ if !work.dialect.has(OFFSETS_OF_NOTHING) => Ok(Val::Int(offset)),
        Ok(offset) => Ok(position(offset.min(length))),
        Err(_) => Err(out_of_range(offset)),
    }
}

fn beyond_the_end<'a>(work: &Work<'_>, offset: i64) -> Outcome<'a> {
    if work.dialect.has(OFFSETS_BEYOND_THE_END) { Ok(Val::Int(-1)) } else { Err(out_of_range(offset)) }
}

pub(crate) fn last_index_of<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (text, wanted, offset) = search(work, values)?;
    let length = text.chars().count();
    if wanted.is_empty() {
        return offset.map_or_else(|| Ok(position(length)), |offset| index_of_nothing(work, offset, length));
    }
    let end = match offset {
        None if length == 0 && !work.dialect.has(LAST_INDEX_IN_NOTHING) => return Err(out_of_range(-1)),
        None => text.len(),
        Some(offset) if offset < 0 => return Err(out_of_range(offset)),
        Some(offset) if usize::try_from(offset).is_ok_and(|offset| offset >= length) => {
            return beyond_the_end(work, offset);
        }
        // The end of a match that begins at the offset or before.
        Some(offset) => byte_of(text, offset)?.saturating_add(wanted.len()).min(text.len()),
    };
    // If this is within a character, no match begins at the offset.
    let end = (0..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let found = text.get(..end).and_then(|before| before.get(..before.rfind(wanted)?));
    Ok(found.map_or(Val::Int(-1), |before| position(before.chars().count())))
}

type Search<'v> = (&'v str, &'v str, Option<i64>);

fn search<'v>(work: &mut Work<'_>, values: &'v [Val<'_>]) -> Result<Search<'v>, Failure> {
    let (text, wanted, offset) = match values {
        [Val::Text(text), Val::Text(wanted)] => (text, wanted, None),
        [Val::Text(text), Val::Text(wanted), Val::Int(offset)] => (text, wanted, Some(*offset)),
        _ => return Err(Failure::no_such_overload()),
    };
    work.meter.charge_text(text.len() + wanted.len())?;
    Ok((text, wanted, offset))
}

pub(crate) fn lower_ascii<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    Ok(Val::text(text.to_ascii_lowercase()))
}

pub(crate) fn upper_ascii<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    Ok(Val::text(text.to_ascii_uppercase()))
}

pub(crate) fn trim<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    let start = text.len() - text.trim_start().len();
    Ok(text.part(start..start + text.trim().len()))
}

pub(crate) fn replace<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (text, old, new, limit) = match values {
        [Val::Text(text), Val::Text(old), Val::Text(new)] => (text, old, new, None),
        [Val::Text(text), Val::Text(old), Val::Text(new), Val::Int(limit)] => {
            (text, old, new, usize::try_from(*limit).ok())
        }
        _ => return Err(Failure::no_such_overload()),
    };
    // The server's cost, and the largest possible size of the result.
    work.meter.charge_text(text.len() * 2)?;
    let places = if old.is_empty() { text.chars().count() + 1 } else { text.matches(&**old).count() };
    let places = places.min(limit.unwrap_or(places));
    work.meter.charge_text(places.saturating_mul(new.len()))?;
    Ok(Val::text(text.replacen(&**old, new, places)))
}

pub(crate) fn split<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (text, separator, limit) = match values {
        [Val::Text(text), Val::Text(separator)] => (text, separator, usize::MAX),
        [Val::Text(text), Val::Text(separator), Val::Int(limit)] => {
            (text, separator, usize::try_from(*limit).unwrap_or(usize::MAX))
        }
        _ => return Err(Failure::no_such_overload()),
    };
    work.meter.charge_text(text.len() * 2)?;
    let mut parts = Vec::new();
    let mut start = 0;
    while parts.len().saturating_add(1) < limit {
        let Some((end, next)) = next_separator(text, start, separator) else { break };
        work.meter.charge_items(1)?;
        parts.push(text.part(start..end));
        start = next;
    }
    // Without a separator, nothing remains after the last character.
    if limit > 0 && (start < text.len() || !separator.is_empty()) {
        parts.push(text.part(start..text.len()));
    }
    Val::list(parts)
}

/// The end of the part that begins at `start`, and the beginning of the next part.
fn next_separator(text: &str, start: usize, separator: &str) -> Option<(usize, usize)> {
    let rest = text.get(start..)?;
    if separator.is_empty() {
        let end = start + rest.chars().next()?.len_utf8();
        return Some((end, end));
    }
    let end = start + rest.find(separator)?;
    Some((end, end + separator.len()))
}

pub(crate) fn join<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (list, separator) = match values {
        [Val::List(list)] => (list, ""),
        [Val::List(list), Val::Text(separator)] => (list, &**separator),
        _ => return Err(Failure::no_such_overload()),
    };
    let mut joined = String::new();
    for (index, item) in list.iter().enumerate() {
        let Val::Text(item) = item else { return Err(Failure::new("join: invalid input")) };
        work.meter.charge_text(item.len() + separator.len())?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(&item);
    }
    Ok(Val::text(joined))
}

pub(crate) fn quote<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 2)?;
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match escape(character) {
            Some(escape) => quoted.extend(['\\', escape]),
            None => quoted.push(character),
        }
    }
    quoted.push('"');
    Ok(Val::text(quoted))
}

/// The character after the backslash.
pub(crate) const fn escape(character: char) -> Option<char> {
    Some(match character {
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\u{c}' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\u{b}' => 'v',
        '\\' => '\\',
        '"' => '"',
        _ => return None,
    })
}
