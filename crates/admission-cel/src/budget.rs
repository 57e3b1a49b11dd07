//! Bounded work: an expression pays cost units for time and memory before using them.

use super::error::Failure;

/// The cost limit of one expression: `PerCallLimit` in k8s.io/apiserver/pkg/apis/cel/config.go.
pub const COST_PER_EXPRESSION: u64 = 1_000_000;
/// The cost limit of all validations of one policy together: `RuntimeCELCostBudget`, same file.
pub const COST_OF_VALIDATIONS: u64 = 10_000_000;
/// The cost limit of all match conditions of one policy together: `RuntimeCELCostBudgetMatchConditions`, same file.
pub const COST_OF_MATCH_CONDITIONS: u64 = 2_500_000;

/// The remaining cost units for a series of expressions. One unit is a field, a call or an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget(u64);

impl Budget {
    /// A budget of `units`.
    pub const fn new(units: u64) -> Self {
        Self(units)
    }

    /// The budget for the validations of one policy.
    pub const fn validations() -> Self {
        Self(COST_OF_VALIDATIONS)
    }

    /// The budget for the match conditions of one policy.
    pub const fn match_conditions() -> Self {
        Self(COST_OF_MATCH_CONDITIONS)
    }

    /// The remaining units.
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

/// The most steps of real work of one expression. The server has no such limit, because its costs omit operations that
/// are cheap there (constants, `has`, views of lists). A step takes ten to twenty nanoseconds, so this limit bounds the
/// time. All expressions that we know reach the cost limit long before.
const WORK_PER_EXPRESSION: u64 = 2_500_000;

/// The units of one evaluation: costs as the server counts them, and steps of real work.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u64,
    left: u64,
    work_left: u64,
}

impl Meter {
    /// A meter for work at compile time, on constants of the source.
    pub(super) const fn at_compile_time() -> Self {
        Self::new(COST_PER_EXPRESSION)
    }

    const fn new(limit: u64) -> Self {
        Self { limit, left: limit, work_left: WORK_PER_EXPRESSION }
    }

    /// Pays costs.
    ///
    /// # Errors
    /// If too few units are left. Then none remain.
    pub(super) fn charge(&mut self, units: u64) -> Result<(), Failure> {
        take(&mut self.left, units)
    }

    /// Pays for real work.
    ///
    /// # Errors
    /// If too few steps are left. Then none remain.
    pub(super) fn work(&mut self, steps: u64) -> Result<(), Failure> {
        take(&mut self.work_left, steps)
    }

    /// Pays for reading or copying `length` bytes: a tenth of a unit each, as on the server.
    pub(super) fn charge_text(&mut self, length: usize) -> Result<(), Failure> {
        self.charge(text_cost(length))
    }

    /// Pays for visiting `length` items.
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
