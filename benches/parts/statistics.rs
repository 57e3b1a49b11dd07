//! Statistics of many measurements.

/// The median.
pub(super) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value below which `share` of all values are.
pub(super) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values[at.min(values.len() - 1)]
}

/// A value with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) value: f64,
    /// Two standard errors, estimated from the run itself. None if there is no estimate.
    pub(super) noise: Option<f64>,
}

impl From<f64> for Estimate {
    fn from(value: f64) -> Self {
        Self { value, noise: None }
    }
}

impl Estimate {
    /// The median of all `groups` together. Each group was measured on its own servers.
    ///
    /// The standard error is the larger of two. One is that of independent values: 1.25 IQR / (1.35 √n), as for the
    /// notches of box plots (McGill, Tukey, Larsen 1978). The other is that of the groups' medians: two servers differ
    /// for their whole life, so more values from the same servers do not reduce this error.
    pub(super) fn of(groups: &[Vec<f64>]) -> Self {
        let all = groups.concat();
        let spread = quantile(all.clone(), 0.75) - quantile(all.clone(), 0.25);
        let within = 1.25 * spread / (1.35 * (all.len() as f64).sqrt());
        let medians: Vec<f64> = groups.iter().cloned().map(median).collect();
        let between = if medians.len() > 1 { deviation(&medians) / (medians.len() as f64).sqrt() } else { 0.0 };
        Self { value: median(all), noise: Some(2.0 * within.max(between)) }
    }
}

/// The standard deviation of the population of two or more `values`.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}
