//! The laws for any bytes: [`TARGETS`]. `make test` tries seeds and some thousand mutations (`tests/smoke.rs`). `make
//! fuzz` tries as many as the time allows, guided by coverage (`main.rs`).
//!
//! A failing input becomes a file in `inputs/TARGET/`, and every later `make test` tries it.

mod expression;
mod inject;
#[path = "../../kept/mod.rs"]
mod kept;
mod manifest;
mod object;
mod parameters;
mod policy;
mod registered;
mod request;
mod review;
mod seeds;
mod selector;

/// A fuzz target.
pub struct Target {
    /// The name of the target and of its folder of inputs.
    pub name: &'static str,
    /// Panics if a law is broken.
    pub run: fn(&[u8]),
    /// Reads the seeds in the checkout.
    seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "policy", run: policy::run, seeds: seeds::policies },
    Target { name: "selector", run: selector::run, seeds: Vec::new },
    Target { name: "expression", run: expression::run, seeds: seeds::expressions },
    Target { name: "inject", run: inject::run, seeds: seeds::scenes },
    Target { name: "parameters", run: parameters::run, seeds: parameters::seeds },
    Target { name: "review", run: review::run, seeds: seeds::reviews },
    Target { name: "request", run: request::run, seeds: seeds::requests },
    Target { name: "object", run: object::run, seeds: seeds::objects },
    Target { name: "registered", run: registered::run, seeds: seeds::registrations },
    Target { name: "manifest", run: manifest::run, seeds: seeds::manifests },
];

/// The largest seed. Larger inputs are slower without finding more.
const LARGEST_SEED: usize = 16 * 1024;

impl Target {
    /// The starting inputs: the target's own, and those from other tests and the samples. The order is fixed.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let own = seeds::files(&format!("tests/fuzz/inputs/{}", self.name), |_| true).into_iter();
        let found = own.chain((self.seeds)().into_iter().filter(|seed| seed.len() <= LARGEST_SEED));
        let seeds: Vec<_> = found.collect();
        assert!(!seeds.is_empty(), "{} has no seeds", self.name);
        seeds
    }
}
