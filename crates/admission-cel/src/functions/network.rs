//! The functions of IP addresses and of ranges.

use crate::dialect::RANGES_IN_RANGES;
use crate::error::Failure;
use crate::network::{Cidr, parse_ip};
use crate::signatures::Work;
use crate::value::{Outcome, Val};
use std::net::IpAddr;
use std::rc::Rc;

fn invalid_ip(text: &str) -> Failure {
    Failure::new(format!("IP Address '{text}' parse error during conversion from string"))
}

fn invalid_cidr(text: &str) -> Failure {
    Failure::new(format!("network address parse error during conversion from string '{text}'"))
}

pub(crate) fn ip<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    parse_ip(text).map(Val::Ip).ok_or_else(|| invalid_ip(text))
}

pub(crate) fn is_ip<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(parse_ip(work.text(values, 1)?).is_some()))
}

pub(crate) fn is_canonical<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    let ip = parse_ip(text).ok_or_else(|| invalid_ip(text))?;
    Ok(Val::Bool(ip.to_string() == **text))
}

pub(crate) fn test<'a>(values: &[Val<'a>], holds: fn(IpAddr) -> bool) -> Outcome<'a> {
    match values {
        [Val::Ip(ip)] => Ok(Val::Bool(holds(*ip))),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn family<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    match values {
        [Val::Ip(ip)] => Ok(Val::Int(if ip.is_ipv4() { 4 } else { 6 })),
        _ => Err(Failure::no_such_overload()),
    }
}

pub(crate) fn is_link_local_multicast<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    test(values, |ip| match ip {
        IpAddr::V4(ip) => ip.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    })
}

pub(crate) const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// As in Go, private addresses are global.
pub(crate) fn is_global_unicast<'a>(_: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    test(values, |ip| {
        let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
        !(is_broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local(ip))
    })
}

pub(crate) fn cidr<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let text = work.text(values, 1)?;
    Cidr::parse(text).map(|cidr| Val::Cidr(Rc::new(cidr))).ok_or_else(|| invalid_cidr(text))
}

pub(crate) fn is_cidr<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(Cidr::parse(work.text(values, 1)?).is_some()))
}

pub(crate) fn contains_ip<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (cidr, ip) = match values {
        [Val::Cidr(cidr), Val::Ip(ip)] => (cidr, *ip),
        [Val::Cidr(cidr), of @ Val::Text(_)] => {
            let text = work.text(std::slice::from_ref(of), 1)?;
            (cidr, parse_ip(text).ok_or_else(|| invalid_ip(text))?)
        }
        _ => return Err(Failure::no_such_overload()),
    };
    Ok(Val::Bool(cidr.contains(ip)))
}

pub(crate) fn contains_cidr<'a>(work: &mut Work<'_>, values: &[Val<'a>]) -> Outcome<'a> {
    let (outer, inner) = match values {
        [Val::Cidr(outer), Val::Cidr(inner)] => (outer, **inner),
        [Val::Cidr(outer), of @ Val::Text(_)] => {
            let text = work.text(std::slice::from_ref(of), 1)?;
            (outer, Cidr::parse(text).ok_or_else(|| invalid_cidr(text))?)
        }
        _ => return Err(Failure::no_such_overload()),
    };
    let is_within = match work.dialect.has(RANGES_IN_RANGES) {
        true => outer.contains(inner.ip),
        false => outer.masked() == Cidr { length: outer.length, ..inner },
    };
    Ok(Val::Bool(inner.length >= outer.length && is_within))
}

pub(crate) fn of<'v>(values: &'v [Val<'_>]) -> Result<&'v Cidr, Failure> {
    match values {
        [Val::Cidr(cidr)] => Ok(cidr),
        _ => Err(Failure::no_such_overload()),
    }
}
