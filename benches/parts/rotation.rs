//! Renewal of certificates under load, on both servers.

use super::figure::{Figure, at_most, told};
use crate::rotation::Rotation;
use anyhow::{Result, ensure};
use controlplane::Version;

const CREATES: usize = 10_000;

/// See the module.
pub(super) async fn rotation(figures: &mut Vec<Figure>) -> Result<()> {
    for version in [Version::V1_13, Version::NEWEST] {
        let Rotation { created, failed, late, handshakes } = Rotation::run(version, CREATES).await?;
        for failure in failed.iter().take(5) {
            eprintln!("rotation, {version}: {failure}");
        }
        let all = created + late + failed.len();
        ensure!(
            all >= CREATES && handshakes > 100,
            "too little to prove anything: {all} creates, {handshakes} handshakes"
        );
        figures.extend([
            told(format!("rotation, {version}: creates while leaf and authority change"), all as f64, ""),
            told(format!("rotation, {version}: answered, and came out without their sidecar"), late as f64, ""),
            at_most(format!("rotation, {version}: failed calls"), failed.len() as f64, "", 0.0),
        ]);
    }
    Ok(())
}
