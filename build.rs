//! How the binary is linked.

use std::env::var;
use std::process::Command;

/// The first glibc whose loader reads addresses that are packed.
const READS_PACKED: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |variable: &str, value: &str| var(variable).is_ok_and(|found| found == value);
    let is_for_here =
        is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") && var("TARGET") == var("HOST");
    if is_for_here && glibc().is_some_and(|version| version >= READS_PACKED) {
        // The addresses that the loader adjusts at the start take 10 KB instead of 440, which stay in memory.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's glibc, from the likes of `glibc 2.36`. None if it cannot be told.
fn glibc() -> Option<(u32, u32)> {
    let answer = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let answer = String::from_utf8(answer.stdout).ok()?;
    let (major, minor) = answer.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
