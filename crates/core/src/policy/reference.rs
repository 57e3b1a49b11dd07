//! The reference of a policy.

use super::Policy;
use std::fmt;
use std::sync::Arc;

/// Says which policy is meant. It is the key of whatever is known of a policy, and cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyRef {
    /// None for a policy of the whole cluster, as all are now.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

impl PolicyRef {
    /// The policy of the whole cluster with that name.
    pub fn of_cluster(name: &str) -> Self {
        Self { namespace: None, name: Arc::from(name) }
    }
}

impl Policy {
    /// The reference of the policy.
    pub fn reference(&self) -> PolicyRef {
        PolicyRef::of_cluster(&self.name)
    }
}

/// The name, or `namespace/name`.
impl fmt::Display for PolicyRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_one_name_in_two_namespaces_are_two_and_those_of_the_cluster_come_first() {
        let of = |namespace: &str| PolicyRef { namespace: Some(Arc::from(namespace)), name: Arc::from("envoy") };
        let mut all = [of("shop"), of("bank"), PolicyRef::of_cluster("logs"), PolicyRef::of_cluster("envoy")];
        all.sort();
        assert_eq!(all.map(|policy| policy.to_string()), ["envoy", "logs", "bank/envoy", "shop/envoy"]);
    }
}
