//! The available server versions.

use std::fmt;
use std::str::FromStr;

/// A version of kube-apiserver that `build.sh` builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    minor: u16,
    patch: u16,
}

impl Version {
    /// The last minor with initializers.
    pub const V1_13: Self = Self { minor: 13, patch: 5 };
    /// The first minor with ValidatingAdmissionPolicy in v1.
    pub const V1_30: Self = Self { minor: 30, patch: 14 };
    /// The first minor with MutatingAdmissionPolicy in beta.
    pub const V1_34: Self = Self { minor: 34, patch: 9 };
    /// The first minor with MutatingAdmissionPolicy in v1.
    pub const V1_36: Self = Self { minor: 36, patch: 3 };
    /// All, oldest first.
    pub const ALL: [Self; 4] = [Self::V1_13, Self::V1_30, Self::V1_34, Self::V1_36];

    /// The number after `1.`.
    pub fn minor(self) -> u32 {
        self.minor.into()
    }

    /// The short form, for example `1.13`.
    pub fn short(self) -> String {
        format!("1.{}", self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|version| text == version.short() || text == version.to_string());
        let all = || Self::ALL.map(Self::short).join(", ");
        found.ok_or_else(|| anyhow::anyhow!("no server version {text:?}; expected one of {}", all()))
    }
}
