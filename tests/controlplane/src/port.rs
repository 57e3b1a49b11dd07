//! Ports that stay free.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Below the ephemeral ports of the kernel: 32768 to 60999 on Linux (`net.ipv4.ip_local_port_range`).
const PORTS: std::ops::Range<u16> = 10_000..32_768;

/// A free loopback port, never the same twice in this process. The kernel does not assign it as an ephemeral port, so
/// it is still free after a restart of its server.
///
/// # Panics
/// If a thousand ports in a row are taken.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ports = std::iter::repeat_with(|| fastrand::u16(PORTS)).take(1000);
    let is_free = |port: &u16| !given.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = ports.find(is_free).expect("a port of loopback is free");
    given.insert(port);
    port
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_though_nobody_listens_yet() {
        let ports: BTreeSet<u16> = std::iter::repeat_with(free_port).take(500).collect();
        assert_eq!(ports.len(), 500);
    }
}
