//! The targets in an ordinary build, with every seed and random mutations. `FUZZ_SEED` sets another random seed.

use fuzz::TARGETS;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// The number of mutated inputs per target.
const CHANGED: usize = 2_000;
/// The time limit per input, for a slow build on a busy machine.
const PROMPT: Duration = Duration::from_secs(30);

#[test]
fn no_input_breaks_a_law_or_takes_long() {
    let seed = std::env::var("FUZZ_SEED").ok().map_or(1, |seed| seed.parse().expect("FUZZ_SEED is a number"));
    let words = words();
    std::thread::scope(|scope| {
        for target in TARGETS {
            let words = &words;
            scope.spawn(move || {
                let (start, seeds) = (Instant::now(), target.seeds());
                let mut random = fastrand::Rng::with_seed(seed);
                seeds.iter().for_each(|input| run(target.name, target.run, input));
                for _ in 0..CHANGED {
                    run(target.name, target.run, &changed(&seeds, words, &mut random));
                }
                eprintln!(
                    "{}: {} seeds, {CHANGED} changed with FUZZ_SEED={seed}, {:?}",
                    target.name,
                    seeds.len(),
                    start.elapsed()
                );
            });
        }
    });
}

fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    if outcome.is_err() || start.elapsed() > PROMPT {
        let path = std::env::temp_dir().join(format!("fuzz-{name}-{}", std::process::id()));
        std::fs::write(&path, input).expect("the folder for temporary files can be written to");
        panic!(
            "{name} breaks, or takes {:?}, with {}: keep it in tests/fuzz/inputs/{name}/",
            start.elapsed(),
            path.display()
        );
    }
}

/// Words with a meaning in one of the languages.
fn words() -> Vec<Vec<u8>> {
    let lines = include_str!("../words.dict").lines();
    lines.filter_map(|line| line.strip_prefix('"')?.strip_suffix('"')).map(unescaped).collect()
}

/// Decodes libFuzzer's `\\`, `\"` and `\x0a`.
fn unescaped(word: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let (byte, length) = match rest.strip_prefix('\\') {
            Some(escape) if escape.starts_with('x') => (u8::from_str_radix(&escape[1..3], 16).expect("two digits"), 4),
            Some(escape) => (escape.as_bytes()[0], 2),
            None => (u8::try_from(first).expect("others than ASCII are escaped"), 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

/// One of `seeds` with a few mutations.
fn changed(seeds: &[Vec<u8>], words: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let any = |random: &mut fastrand::Rng| &seeds[random.usize(..seeds.len())];
    let mut input = any(random).clone();
    for _ in 0..random.usize(1..5) {
        let from = random.usize(..=input.len());
        let to = random.usize(from..=input.len().min(from + 24));
        let piece = match random.u8(..6) {
            0 => Vec::new(),
            1 => vec![random.u8(..)],
            2 => input[from..to].repeat(2),
            3 => {
                let other = any(random);
                let start = random.usize(..=other.len());
                other[start..random.usize(start..=other.len())].to_vec()
            }
            _ => words[random.usize(..words.len())].clone(),
        };
        input.splice(from..to, piece);
    }
    input
}
