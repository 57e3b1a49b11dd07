//! The server versions there are.

use std::fmt;
use std::str::FromStr;

/// A version of kube-apiserver that `build.sh` builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// 1.13.5, the last minor with initializers.
    V1_13,
    /// 1.36.3.
    V1_36,
}

impl Version {
    /// Both, oldest first.
    pub const ALL: [Self; 2] = [Self::V1_13, Self::V1_36];

    /// `1.13` or `1.36`.
    pub fn short(self) -> &'static str {
        match self {
            Self::V1_13 => "1.13",
            Self::V1_36 => "1.36",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_13 => "1.13.5",
            Self::V1_36 => "1.36.3",
        })
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|v| text == v.short() || text == v.to_string());
        found.ok_or_else(|| anyhow::anyhow!("no server version {text:?}: 1.13 or 1.36"))
    }
}
