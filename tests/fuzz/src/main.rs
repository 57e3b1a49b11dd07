//! A target under libFuzzer, named by `FUZZ_TARGET`. First it writes its seeds into the folder `FUZZ_SEEDS`.

#![no_main]

use fuzz::Target;
use std::path::Path;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let names: Vec<_> = fuzz::TARGETS.iter().map(|target| target.name).collect();
    let target = fuzz::TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("FUZZ_TARGET must be one of {names:?}, is `{name}`"))
});

fn write_seeds() {
    if let Some(folder) = std::env::var_os("FUZZ_SEEDS") {
        for (index, seed) in TARGET.seeds().iter().enumerate() {
            std::fs::write(Path::new(&folder).join(format!("seed-{index}")), seed).expect("FUZZ_SEEDS is a folder");
        }
    }
}

libfuzzer_sys::fuzz_target!(init: write_seeds(), |bytes: &[u8]| (TARGET.run)(bytes));
