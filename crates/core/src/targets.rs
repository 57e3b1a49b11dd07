//! The requirements of every engine on a policy's targets.

use super::Unavailable;
use crate::api::code::Code;
use crate::capabilities::Capabilities;
use crate::policy::Policy;

/// Checks that the server serves every target of `policy`, and that policies can target it.
///
/// # Errors
/// The first target that is not usable.
pub fn check(policy: &Policy, cluster: &Capabilities) -> Result<(), Unavailable> {
    if let Some(target) = policy.spec.targets.iter().find(|target| !cluster.serves(target)) {
        let message = format!(
            "spec.targets: this server ({}) has no `{}` in group `{}`, version `{}`; `kubectl api-resources` lists what it has",
            cluster.version, target.resource, target.group, target.version
        );
        return Err(Unavailable::new(Code::TargetNotServed, message));
    }
    for target in &policy.spec.targets {
        if let Some(obstacle) = cluster.obstacle(target) {
            let message =
                format!("spec.targets: `{}` of group `{}` can be no target: {obstacle}", target.resource, target.group);
            return Err(Unavailable::new(Code::TargetRefused, message));
        }
    }
    Ok(())
}
