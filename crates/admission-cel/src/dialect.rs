//! The versions of Kubernetes whose CEL this crate has, and the behaviours that changed between them.
//!
//! Functions have their first version in the table of [`library`](super::library), macros in that of
//! [`macros`](super::macros). All versions are those of a server that gets a new expression. A server refuses what came
//! with itself, so that it can be replaced by the version before: what Kubernetes introduces in 1.34 counts from 1.35
//! on. Changes of cel-go count at once. Kubernetes has cel-go 0.17 in 1.30, 0.20 in 1.31, 0.22 in 1.32, 0.23 in 1.33,
//! 0.26 from 1.34 to 1.36, and 0.29 in 1.37.

use std::fmt;

/// The CEL of a minor version of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dialect {
    minor: u32,
}

impl Dialect {
    /// The first version with ValidatingAdmissionPolicy in `v1`: 1.30.
    pub const OLDEST: Self = Self { minor: 30 };
    /// The newest known version: 1.37.
    pub const NEWEST: Self = Self { minor: 37 };

    /// The dialect of Kubernetes 1.`minor`, or the nearest known one.
    pub const fn of(minor: u32) -> Self {
        if minor < Self::OLDEST.minor {
            Self::OLDEST
        } else if minor > Self::NEWEST.minor {
            Self::NEWEST
        } else {
            Self { minor }
        }
    }

    /// The minor version.
    pub const fn minor(self) -> u32 {
        self.minor
    }

    /// Whether the dialect has a behaviour.
    pub(super) const fn has(self, change: Change) -> bool {
        self.is_since(change.0)
    }

    /// Whether the dialect has what came with a minor version.
    pub(super) const fn is_since(self, minor: u32) -> bool {
        self.minor >= minor
    }
}

impl Default for Dialect {
    fn default() -> Self {
        Self::NEWEST
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor)
    }
}

/// A behaviour, by the first minor version that has it.
#[derive(Clone, Copy)]
pub(super) struct Change(pub(super) u32);

/// A literal format is checked against its list of arguments at compile time (cel-go 0.20).
pub(super) const CHECKED_FORMATS: Change = Change(31);
/// The check of formats leaves out a format that is no literal. It crashes in 1.31 (fixed in cel-go 0.22).
pub(super) const COMPUTED_FORMATS: Change = Change(32);
/// `indexOf` and `lastIndexOf` from beyond the end are -1, and no error (cel-go 0.22).
pub(super) const OFFSETS_BEYOND_THE_END: Change = Change(32);
/// `containsCIDR` compares ranges. Before, bits after the prefix counted (kubernetes library of 1.32).
pub(super) const RANGES_IN_RANGES: Change = Change(32);
/// Surrogates in escapes are refused. Before, they became U+FFFD (cel-go 0.23).
pub(super) const NO_SURROGATES: Change = Change(33);
/// `%e` writes no spaces around its `×` (golang.org/x/text 0.23).
pub(super) const NARROW_EXPONENTS: Change = Change(33);
/// `''.lastIndexOf('x')` is -1, and no error (cel-go 0.26).
pub(super) const LAST_INDEX_IN_NOTHING: Change = Change(34);
/// A host in a URL has at most one colon (`urlstrictcolons` of Go 1.26).
pub(super) const ONE_COLON_IN_HOSTS: Change = Change(36);
/// Fields may be named in backticks (cel-go 0.29).
pub(super) const ESCAPED_FIELDS: Change = Change(37);
/// Conditions, variables and selections keep an optional in an optional. Before, they lost one (cel-go 0.29).
pub(super) const NESTED_OPTIONALS: Change = Change(37);
/// `or` and `orValue` of a value that is no optional are an error. Before, they gave that value (cel-go 0.29).
pub(super) const OPTIONALS_BEFORE_OR: Change = Change(37);
/// `indexOf('', offset)` checks the offset, and ends at the end of the string (cel-go 0.29).
pub(super) const OFFSETS_OF_NOTHING: Change = Change(37);
/// `lists.range` of a negative number is an error (cel-go 0.29).
pub(super) const NO_NEGATIVE_RANGES: Change = Change(37);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_versions_are_like_the_nearest_known_one() {
        assert_eq!([13, 29, 30, 33, 37, 38].map(|minor| Dialect::of(minor).minor()), [30, 30, 30, 33, 37, 37]);
        assert_eq!(Dialect::default().to_string(), "1.37");
        assert!(!Dialect::of(36).has(ESCAPED_FIELDS) && Dialect::of(37).has(ESCAPED_FIELDS));
    }
}
