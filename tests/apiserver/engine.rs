//! The engines, as tests name them.

use std::fmt;

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EngineName {
    Initializer,
    Webhook,
    MutatingAdmissionPolicy,
}

impl EngineName {
    pub(crate) const ALL: &[Self] = &[Self::Initializer, Self::Webhook, Self::MutatingAdmissionPolicy];

    /// As in `spec.engine`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Initializer => "Initializer",
            Self::Webhook => "Webhook",
            Self::MutatingAdmissionPolicy => "MutatingAdmissionPolicy",
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
