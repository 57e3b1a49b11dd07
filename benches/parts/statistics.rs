//! Many measurements in one number.

/// The middle one.
pub(super) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The one that a share of `share` of all is below.
pub(super) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values[at.min(values.len() - 1)]
}
