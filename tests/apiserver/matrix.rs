//! The versions of `SCPOL_MATRIX`: each is installed on, and a Deployment gets its sidecar.

use crate::support::{Operator, in_force};
use crate::world::{DEPLOYMENTS, World, containers, deployment, sidecar};
use anyhow::{Context, Result, ensure};
use controlplane::{ControlPlane, Version};

crate::tests![every_version_is_installed_on_and_injects,];

async fn every_version_is_installed_on_and_injects() -> Result<()> {
    let versions = Version::matrix()?;
    let mut faults = Vec::new();
    for version in &versions {
        if let Err(error) = installs_and_injects(*version).await {
            faults.push(format!("{version}: {error:#}"));
        }
    }
    ensure!(faults.is_empty(), "{} of {} versions:\n{}", faults.len(), versions.len(), faults.join("\n"));
    Ok(())
}

async fn installs_and_injects(version: Version) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    let _operator = Operator::ready(&world.cluster, &[]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    in_force(&world.cluster, "envoy").await?;
    world.create_promptly(DEPLOYMENTS, &deployment("web")).await?;
    let stored = world.get(&format!("{DEPLOYMENTS}/web")).await?.context("the Deployment is not stored")?;
    ensure!(containers(&stored) == ["app", "envoy"], "{:?}", containers(&stored));
    let registered = world.owners().await?;
    ensure!(registered.iter().eq(["envoy"]), "the registrations belong to {registered:?}");
    Ok(())
}
