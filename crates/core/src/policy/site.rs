//! The operator's flags, as far as decisions depend on them.

use super::versioned;
use crate::api::rules::Rules;
use crate::api::trust::Trust;
use crate::capabilities::Capabilities;
use admission_cel::Dialect;
use std::collections::BTreeSet;

/// Namespaces that no policy ever reaches, besides the operator's own and those that flags add.
pub const PROTECTED_NAMESPACES: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// The operator's flags, as far as decisions depend on them.
#[derive(Clone, Debug)]
pub struct Site {
    /// The namespace that the operator runs in: always protected.
    pub operator_namespace: String,
    /// Every protected namespace, the built-in ones included.
    pub protected_namespaces: BTreeSet<String>,
    /// Initializer names outside `scpol.dev` that are ours (`--initializer-name`).
    pub initializer_names: BTreeSet<String>,
    /// Whether containers can be delivered as native sidecars: server and every kubelet are of version 1.29 or later.
    pub native_sidecars: bool,
    /// The allowed content of templates.
    pub trust: Trust,
    /// The minor version of Kubernetes 1: of the server, or the one that files are meant for. None stands for the newest.
    pub minor: Option<u32>,
    /// Whether workloads come from files. A kubelet marks its static pods by `kubernetes.io/config.source`, and every user
    /// of a server may write that annotation.
    pub reads_files: bool,
}

impl Site {
    /// A site whose operator runs in `operator_namespace`.
    pub fn new(
        operator_namespace: &str,
        protected: impl IntoIterator<Item = String>,
        initializer_names: impl IntoIterator<Item = String>,
    ) -> Self {
        let built_in = PROTECTED_NAMESPACES.iter().map(|&name| name.to_owned());
        let protected = protected.into_iter().filter(|name| !name.is_empty());
        Self {
            operator_namespace: operator_namespace.to_owned(),
            protected_namespaces: built_in.chain([operator_namespace.to_owned()]).chain(protected).collect(),
            initializer_names: initializer_names.into_iter().collect(),
            native_sidecars: false,
            trust: Trust::default(),
            minor: None,
            reads_files: false,
        }
    }

    /// The same site on `server`, with the facts about the cluster that decisions need.
    #[must_use]
    pub fn on(&self, server: &Capabilities) -> Self {
        Self { native_sidecars: server.native_sidecars, minor: server.known_minor(), ..self.clone() }
    }

    /// The same site for workloads from files.
    #[must_use]
    pub fn for_files(&self) -> Self {
        Self { reads_files: true, ..self.clone() }
    }

    /// True if and only if `initializer` is a name that we may remove from an object: under `scpol.dev`, or given by a
    /// flag.
    pub fn owns(&self, initializer: &str) -> bool {
        let under_ours = initializer.strip_suffix(".scpol.dev").is_some_and(|rest| !rest.is_empty());
        under_ours || self.initializer_names.contains(initializer)
    }

    /// The CEL that decisions use.
    pub fn dialect(&self) -> Dialect {
        versioned::dialect(self.minor)
    }

    /// The flags that the rules for policies depend on.
    pub fn rules(&self) -> Rules {
        Rules { initializer_names: self.initializer_names.clone(), trust: self.trust.clone() }
    }
}
