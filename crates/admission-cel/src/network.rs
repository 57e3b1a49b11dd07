//! IP addresses and CIDR ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address with the length of its prefix. Bits after the prefix may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    pub(super) ip: IpAddr,
    pub(super) length: u8,
}

impl Cidr {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (ip, length) = text.rsplit_once('/')?;
        let is_plain = length.bytes().all(|byte| byte.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
        let ip = parse_ip(ip)?;
        let length = length.parse().ok().filter(|length| is_plain && *length <= bits(ip))?;
        Some(Self { ip, length })
    }

    pub(super) fn text(self) -> String {
        format!("{}/{}", self.ip, self.length)
    }

    pub(super) fn masked(self) -> Self {
        let ip = match self.ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(u32::from(32 - self.length)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(u32::from(128 - self.length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        };
        Self { ip, ..self }
    }

    pub(super) fn contains(self, ip: IpAddr) -> bool {
        bits(ip) == bits(self.ip) && Self { ip, ..self }.masked() == self.masked()
    }
}

const fn bits(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Parses an address. IPv4-mapped IPv6 addresses are rejected.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    let is_mapped = matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    (!is_mapped).then_some(ip)
}
