//! Bounded work: everything that takes time or memory is paid for in cost units, before it is done.

use super::error::Failure;

/// What one expression may cost: `PerCallLimit` in k8s.io/apiserver/pkg/apis/cel/config.go.
pub const COST_PER_EXPRESSION: u64 = 1_000_000;
/// What all validations of one policy may cost together: `RuntimeCELCostBudget`, same file.
pub const COST_OF_VALIDATIONS: u64 = 10_000_000;
/// What all match conditions of one policy may cost together: `RuntimeCELCostBudgetMatchConditions`, same file.
pub const COST_OF_MATCH_CONDITIONS: u64 = 2_500_000;

/// Cost units that are left for a row of expressions. One unit is a field, a call or an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// This many units.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// For the validations of one policy.
    pub const fn validations() -> Self {
        Self(COST_OF_VALIDATIONS)
    }

    /// For the match conditions of one policy.
    pub const fn match_conditions() -> Self {
        Self(COST_OF_MATCH_CONDITIONS)
    }

    /// How many units are left.
    pub const fn left(&self) -> u64 {
        self.0
    }

    pub(super) fn meter(&self) -> Meter {
        Meter::new(self.0.min(COST_PER_EXPRESSION))
    }

    pub(super) fn spend(&mut self, meter: &Meter) {
        self.0 = self.0.saturating_sub(meter.limit - meter.left);
    }
}

/// How many steps of real work one expression may take. The server has no such bound: its costs leave out what is cheap
/// for it (constants, `has`, views of lists). Each takes ten to twenty nanoseconds, so that nothing runs for long; no
/// expression that we know of comes near it before the costs end it.
const WORK_PER_EXPRESSION: u64 = 2_500_000;

/// The units of one evaluation: costs as the server counts them, and real work.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u64,
    left: u64,
    work_left: u64,
}

impl Meter {
    /// For anything that is done at compile time, on constants of the source.
    pub(super) const fn at_compile_time() -> Self {
        Self::new(COST_PER_EXPRESSION)
    }

    const fn new(limit: u64) -> Self {
        Self { limit, left: limit, work_left: WORK_PER_EXPRESSION }
    }

    /// Pays costs.
    ///
    /// # Errors
    /// If there is not that much left; then nothing is.
    pub(super) fn charge(&mut self, units: u64) -> Result<(), Failure> {
        take(&mut self.left, units)
    }

    /// Pays for real work.
    ///
    /// # Errors
    /// If there is not that much left; then nothing is.
    pub(super) fn work(&mut self, steps: u64) -> Result<(), Failure> {
        take(&mut self.work_left, steps)
    }

    /// Pays for going through or copying `length` bytes: a tenth of a unit each, as the server has it.
    pub(super) fn charge_text(&mut self, length: usize) -> Result<(), Failure> {
        self.charge(text_cost(length))
    }

    /// Pays for going through `length` items.
    pub(super) fn charge_items(&mut self, length: usize) -> Result<(), Failure> {
        self.charge(length as u64)?;
        self.work(length as u64)
    }
}

fn take(left: &mut u64, units: u64) -> Result<(), Failure> {
    let rest = left.checked_sub(units);
    *left = rest.unwrap_or(0);
    rest.map(drop).ok_or(Failure::CostExceeded)
}

/// A tenth of a unit for each byte, rounded up.
pub(super) const fn text_cost(length: usize) -> u64 {
    (length as u64).div_ceil(10)
}
