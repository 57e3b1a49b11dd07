//! Tests of the benchmark's statistics.

use figure::{Verdict, at_least, at_most, told};
use statistics::Estimate;

#[path = "../benches/parts/figure.rs"]
mod figure;
#[path = "../benches/parts/statistics.rs"]
mod statistics;

fn estimate(value: f64, noise: Option<f64>) -> Estimate {
    Estimate { value, noise }
}

#[test]
fn a_miss_fails_only_beyond_the_noise() {
    use Verdict::{Fails, Holds, NotTold};
    for (value, noise, expected) in [
        (0.90, None, Holds),
        (0.89, None, Fails),
        (0.90, Some(0.02), Holds),
        (0.89, Some(0.02), NotTold),
        (0.87, Some(0.02), Fails),
        (f64::NAN, Some(0.02), Fails),
    ] {
        let figure = at_least("rate", estimate(value, noise), "ratio", 0.9);
        assert_eq!((figure.verdict, figure.holds), (expected, expected == Holds), "{value} {noise:?}");
    }
    for (value, expected) in [(1.2, Holds), (1.21, NotTold), (1.23, Fails)] {
        assert_eq!(at_most("p50", estimate(value, Some(0.02)), "ratio", 1.2).verdict, expected, "{value}");
    }
    assert_eq!(told("rate", 0.1, "1/s").verdict, Holds);
}

#[test]
fn results_have_bar_noise_and_verdict() {
    let figure = at_least("rate", estimate(0.75, Some(0.25)), "ratio", 0.9);
    let expected = serde_json::json!({
        "name": "rate", "value": 0.75, "unit": "ratio", "noise": 0.25, "bar": ">= 0.9", "holds": false, "verdict": figure.verdict.text(),
    });
    assert_eq!(serde_json::to_value(&figure).expect("JSON"), expected);
    assert!(serde_json::to_value(at_most("RSS", 7.0, "MB", 20.0)).expect("JSON")["noise"].is_null());
}

/// `count` values around `middle`, evenly spread over `width`.
fn group(middle: f64, width: f64, count: usize) -> Vec<f64> {
    (0..count).map(|number| middle + width * ((number as f64 + 0.5) / count as f64 - 0.5)).collect()
}

fn noise(groups: &[Vec<f64>]) -> f64 {
    Estimate::of(groups).noise.expect("some")
}

#[test]
fn noise_falls_with_the_number_of_values_while_servers_agree() {
    let of = |count| noise(&[group(1.0, 0.4, count), group(1.0, 0.4, count), group(1.0, 0.4, count)]);
    // The quartiles are 0.2 apart: 2 * 1.25 * 0.2 / (1.35 * √90).
    assert!((of(30) - 0.039).abs() < 0.002, "{}", of(30));
    assert!((of(120) / of(30) - 0.5).abs() < 0.02, "{}", of(120));
}

#[test]
fn noise_does_not_fall_with_the_number_of_values_while_servers_differ() {
    let of = |count| noise(&[group(0.96, 0.01, count), group(1.0, 0.01, count), group(1.04, 0.01, count)]);
    // Their standard deviation is 0.04: 2 * 0.04 / √3.
    assert!((of(30) - 0.046).abs() < 0.002, "{}", of(30));
    assert!((of(3000) - of(30)).abs() < 0.002, "{}", of(3000));
}

#[test]
fn one_outlier_changes_neither_value_nor_noise() {
    let clean = vec![group(1.0, 0.4, 31); 3];
    let mut dirty = clean.clone();
    dirty[0][30] = 50.0;
    assert_eq!(Estimate::of(&clean), Estimate::of(&dirty));
}
