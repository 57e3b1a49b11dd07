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

/// A value, and how far it may be from the true one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) value: f64,
    /// Two standard errors, from the run itself. None where nothing says how large they are.
    pub(super) noise: Option<f64>,
}

impl From<f64> for Estimate {
    fn from(value: f64) -> Self {
        Self { value, noise: None }
    }
}

impl Estimate {
    /// The median of all `groups` together, each of which was measured on servers of its own.
    ///
    /// The standard error is the larger of two. One is that of independent values: 1.25 IQR / (1.35 √n), as for the notches of box
    /// plots (McGill, Tukey, Larsen 1978). The other is that of the medians of the groups: two servers differ for as long as they run,
    /// so that more values from the same ones say nothing new about that.
    pub(super) fn of(groups: &[Vec<f64>]) -> Self {
        let all = groups.concat();
        let spread = quantile(all.clone(), 0.75) - quantile(all.clone(), 0.25);
        let within = 1.25 * spread / (1.35 * (all.len() as f64).sqrt());
        let medians: Vec<f64> = groups.iter().cloned().map(median).collect();
        let between = if medians.len() > 1 { deviation(&medians) / (medians.len() as f64).sqrt() } else { 0.0 };
        Self { value: median(all), noise: Some(2.0 * within.max(between)) }
    }
}

/// The standard deviation of what two or more `values` are a sample of.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}
