//! The versions of Kubernetes in `versions.txt`, and what their servers have.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// A minor version of Kubernetes whose servers `build.sh` builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    minor: u16,
}

/// A peculiarity of a server, in the words of `versions.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quirk {
    OpenApi,
    Initializers,
    InsecurePort,
    NoIssuer,
    NoReadyz,
}

/// What servers have by default from some minor version on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `coordination.k8s.io/v1`.
    LeaseV1,
    /// `admissionregistration.k8s.io/v1` for webhooks, and `apiextensions.k8s.io/v1`.
    RegistrationV1,
    /// `batch/v1` for CronJobs.
    CronJobV1,
    /// `policy/v1` for PodDisruptionBudgets.
    DisruptionBudgetV1,
    /// The label `kubernetes.io/metadata.name` of every Namespace.
    NamespaceNames,
    /// Init containers with `restartPolicy: Always`.
    NativeSidecars,
    /// ValidatingAdmissionPolicies in `admissionregistration.k8s.io/v1`.
    ValidatingAdmissionPolicy,
    /// MutatingAdmissionPolicies in `admissionregistration.k8s.io/v1beta1`, if they are switched on.
    MutatingAdmissionPolicyBeta,
    /// The same, with a CEL that has all functions that the operator's objects call.
    UsableAdmissionPolicyBeta,
    /// MutatingAdmissionPolicies in `admissionregistration.k8s.io/v1`.
    MutatingAdmissionPolicy,
}

/// A line of `versions.txt`.
struct Row {
    version: Version,
    patch: u16,
    is_in_suite: bool,
    quirks: Vec<Quirk>,
}

static TABLE: LazyLock<Vec<Row>> =
    LazyLock::new(|| rows(include_str!("../versions.txt")).expect("a unit test reads versions.txt"));

impl Version {
    /// The only version with initializers.
    pub const V1_13: Self = Self { minor: 13 };
    /// The first minor with ValidatingAdmissionPolicy in v1.
    pub const V1_30: Self = Self { minor: 30 };
    /// The first minor with MutatingAdmissionPolicy in beta.
    pub const V1_34: Self = Self { minor: 34 };
    /// The first minor with MutatingAdmissionPolicy in v1.
    pub const V1_36: Self = Self { minor: 36 };
    /// The last one of `versions.txt`, which also has the controllers.
    pub const NEWEST: Self = Self { minor: 37 };

    /// All, oldest first.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.version)
    }

    /// The versions in the environment variable `SCPOL_MATRIX`, such as `1.28,1.33` or `all`. Without it, those that
    /// `make test` takes.
    ///
    /// # Errors
    /// If the variable names an unknown version.
    pub fn matrix() -> Result<Vec<Self>> {
        let Ok(text) = std::env::var("SCPOL_MATRIX") else { return Ok(Self::suite()) };
        Self::list(&text).context("SCPOL_MATRIX")
    }

    /// The versions that `make test` takes.
    pub fn suite() -> Vec<Self> {
        TABLE.iter().filter(|row| row.is_in_suite).map(|row| row.version).collect()
    }

    fn list(text: &str) -> Result<Vec<Self>> {
        if text == "all" {
            return Ok(Self::all().collect());
        }
        text.split(',').map(|word| word.trim().parse()).collect()
    }

    /// The number after `1.`.
    pub fn minor(self) -> u32 {
        self.minor.into()
    }

    /// The short form, for example `1.13`.
    pub fn short(self) -> String {
        format!("1.{}", self.minor)
    }

    /// Whether the server has `feature`, unless flags change that.
    pub fn has(self, feature: Feature) -> bool {
        self.minor >= feature.since()
    }

    /// Whether the server has initializers, unless flags change that.
    pub fn has_initializers(self) -> bool {
        self.is(Quirk::Initializers)
    }

    /// Whether MutatingAdmissionPolicies are a beta that must be switched on.
    pub fn has_admission_policies_as_beta(self) -> bool {
        self.has(Feature::MutatingAdmissionPolicyBeta) && !self.has(Feature::MutatingAdmissionPolicy)
    }

    /// The version of `admissionregistration.k8s.io` for webhooks and of `apiextensions.k8s.io`: `v1` or `v1beta1`.
    pub fn registration(self) -> &'static str {
        if self.has(Feature::RegistrationV1) { "v1" } else { "v1beta1" }
    }

    pub(crate) fn is(self, quirk: Quirk) -> bool {
        self.row().quirks.contains(&quirk)
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.version == self).expect("a version is made from a row, or a unit test looks for it")
    }
}

impl Feature {
    /// The first minor version.
    fn since(self) -> u16 {
        match self {
            Self::LeaseV1 => 14,
            Self::RegistrationV1 => 16,
            Self::CronJobV1 | Self::DisruptionBudgetV1 | Self::NamespaceNames => 21,
            Self::NativeSidecars => 29,
            Self::ValidatingAdmissionPolicy => 30,
            Self::MutatingAdmissionPolicyBeta => 34,
            Self::UsableAdmissionPolicyBeta => 35,
            Self::MutatingAdmissionPolicy => 36,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.row().patch)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::all().find(|version| text == version.short() || text == version.to_string());
        found.with_context(|| {
            let all: Vec<String> = Self::all().map(Self::short).collect();
            format!("no server version {text:?}; expected one of {}", all.join(", "))
        })
    }
}

impl FromStr for Quirk {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        Ok(match word {
            "openapi" => Self::OpenApi,
            "initializers" => Self::Initializers,
            "insecure-port" => Self::InsecurePort,
            "no-issuer" => Self::NoIssuer,
            "no-readyz" => Self::NoReadyz,
            _ => bail!("no quirk {word:?}"),
        })
    }
}

fn rows(table: &str) -> Result<Vec<Row>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| row(line).context(line.to_owned())).collect()
}

fn row(line: &str) -> Result<Row> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [minor, patch, suite, quirks] = columns[..] else { bail!("expected 4 columns") };
    ensure!(["yes", "no"].contains(&suite), "no {suite:?}: yes or no");
    let minor = minor.strip_prefix("1.").ok_or_else(|| anyhow!("no minor version {minor:?}"))?.parse()?;
    let quirks = quirks.split(',').filter(|word| *word != "-").map(str::parse).collect::<Result<_>>()?;
    Ok(Row { version: Version { minor }, patch: patch.parse()?, is_in_suite: suite == "yes", quirks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_row_has_its_module_and_every_module_its_row() {
        let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("modules");
        let mut versions = Vec::new();
        for folder in std::fs::read_dir(modules).expect("modules") {
            let module = std::fs::read_to_string(folder.expect("a folder").path().join("go.mod")).expect("a go.mod");
            let of_kubernetes = module.lines().find_map(|line| line.split_once("k8s.io/kubernetes v"));
            versions
                .extend(of_kubernetes.and_then(|(_, version)| version.split_whitespace().next().map(str::to_owned)));
        }
        versions.sort();
        let mut listed: Vec<String> = Version::all().map(|version| version.to_string()).collect();
        assert!(listed.len() > 4 && Version::all().is_sorted());
        listed.sort();
        assert_eq!(versions, listed);
    }

    #[test]
    fn the_named_versions_are_in_the_table_and_the_newest_is_the_last() {
        for named in [Version::V1_13, Version::V1_30, Version::V1_34, Version::V1_36] {
            assert!(Version::suite().contains(&named), "{named:?}");
        }
        assert_eq!(Version::all().last(), Some(Version::NEWEST));
        assert!(Version::all().all(|version| version.has_initializers() == (version == Version::V1_13)));
    }

    #[test]
    fn a_list_of_versions_is_read_and_an_unknown_one_is_an_error() {
        let read = |text| Version::list(text).map_err(|error| error.to_string());
        assert_eq!(read("1.36, 1.13.5"), Ok(vec![Version::V1_36, Version::V1_13]));
        assert_eq!(read("all"), Ok(Version::all().collect()));
        assert!(read("1.36,1.5").is_err_and(|error| error.contains("\"1.5\"") && error.contains("1.13, ")));
        assert!(read("").is_err());
    }

    #[test]
    fn a_line_that_cannot_be_read_is_an_error() {
        assert!(rows("# words\n1.13 5 yes openapi\n").is_ok_and(|rows| rows[0].quirks == [Quirk::OpenApi]));
        for line in ["1.13 5 yes", "1.13 5 maybe -", "1.13 5 yes haste", "13 5 yes -", "1.13 x yes -", ""] {
            assert!(rows(&format!("{line}\n1.36 3 yes -")).is_err(), "{line}");
        }
    }
}
