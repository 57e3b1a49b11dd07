//! What must hold for any bytes: [`TARGETS`]. `make test` tries seeds and some thousand changes of them (`tests/smoke.rs`),
//! `make fuzz` as many as there is time for, guided by what they reach (`main.rs`).
//!
//! An input that breaks something becomes a file in `inputs/TARGET/`, and is tried by every `make test` from then on.

mod expression;
mod inject;
#[path = "../../kept/mod.rs"]
mod kept;
mod manifest;
mod object;
mod policy;
mod registered;
mod review;
mod schema;
mod seeds;
mod selector;

/// Something that takes bytes.
pub struct Target {
    /// Its name, also that of its folder of inputs.
    pub name: &'static str,
    /// Panics if something does not hold.
    pub run: fn(&[u8]),
    /// Reads what the checkout has for it.
    seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "policy", run: policy::run, seeds: seeds::policies },
    Target { name: "selector", run: selector::run, seeds: Vec::new },
    Target { name: "expression", run: expression::run, seeds: seeds::expressions },
    Target { name: "inject", run: inject::run, seeds: seeds::scenes },
    Target { name: "review", run: review::run, seeds: seeds::reviews },
    Target { name: "object", run: object::run, seeds: seeds::objects },
    Target { name: "registered", run: registered::run, seeds: seeds::registrations },
    Target { name: "schema", run: schema::run, seeds: seeds::schemas },
    Target { name: "manifest", run: manifest::run, seeds: seeds::manifests },
];

/// Larger inputs are no better, and slower.
const LARGEST_SEED: usize = 16 * 1024;

impl Target {
    /// Where to begin: its own inputs, and what other tests and the samples have. The order is always the same.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let own = seeds::files(&format!("tests/fuzz/inputs/{}", self.name), |_| true).into_iter();
        let found = own.chain((self.seeds)().into_iter().filter(|seed| seed.len() <= LARGEST_SEED));
        let seeds: Vec<_> = found.collect();
        assert!(!seeds.is_empty(), "{} has no seeds", self.name);
        seeds
    }
}
