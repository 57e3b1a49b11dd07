//! The functions of URLs.

use crate::error::Failure;
use crate::signatures::Work;
use crate::url::{Url, unescaped};
use crate::value::{Key, Outcome, Text, Val};
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) fn url<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 2)?;
    let url =
        Url::parse(text, work.dialect).ok_or_else(|| Failure::new("URL parse error during conversion from string"))?;
    Ok(Val::Url(Rc::new(url)))
}

pub(crate) fn is_url<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    Ok(Val::Bool(Url::is_request_uri(text, work.dialect)))
}

pub(crate) fn part<'a>(values: &[Val<'a>], of: impl Fn(&Url) -> String) -> Outcome<'a> {
    match values {
        [Val::Url(url)] => Ok(Val::text(of(url))),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn escaped_path<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    if let [Val::Url(url)] = values {
        work.meter.charge_text(url.path.len() * 3)?;
    }
    part(values, Url::escaped_path)
}

pub(crate) fn query<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Url(url)] = values else { return Err(Failure::no_such_overload()) };
    let query = url.query.as_deref().unwrap_or_default();
    work.meter.charge_text(query.len() * 2)?;
    let mut entries: BTreeMap<String, Vec<Val<'a>>> = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
        work.meter.work(8)?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (query_text(key), query_text(value)) {
            entries.entry(key).or_default().push(Val::text(value));
        }
    }
    let mut map = BTreeMap::new();
    for (key, values) in entries {
        map.insert(Key::Text(Text::Built(key.into())), Val::list(values)?);
    }
    Val::map(map)
}

fn query_text(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let bytes = unescaped(spaced.as_bytes(), |_| true)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
