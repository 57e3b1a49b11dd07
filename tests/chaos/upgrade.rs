//! A rolling upgrade from the operator of an earlier commit, under load.

use crate::chaos::scene::{Engine, RECOVERY, Scene, agent, first, second};
use crate::chaos::stories::{in_force, leads, well};
use crate::prelude::*;
use controlplane::free_port;
use oracle::Digest;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tokio::time::sleep;

/// The environment variable with the commit to upgrade from; by default the previous one.
const FROM: &str = "SCPOL_UPGRADE_FROM";
/// The number of workloads that are created during the upgrade, for the few seconds that it takes.
const LOAD: usize = 100;

/// An operator of an earlier commit leads. Two current ones start, and the old one stops. The result must be that of a
/// single current operator.
pub(crate) async fn rolling_upgrade(scene: &Scene) -> Result<()> {
    let earlier = tokio::task::spawn_blocking(earlier).await??;
    let calm = without(scene).await?;
    scene.surround(Surroundings { program: Some(earlier), ..Surroundings::default() });
    in_force(scene).await?;
    if scene.engine == Engine::Initializer {
        scene.signal("STOP")?;
        for body in first(10) {
            scene.world.create_async(DEPLOYMENTS, &body).await?;
        }
    }
    let rolling = async {
        scene.signal("CONT")?;
        let mut today = Vec::new();
        for name in ["scpol-1", "scpol-2"] {
            let mut one = scene.replica(name, free_port())?;
            one.wait_ready().await?;
            today.push(one);
        }
        ensure!(scene.metric("scpol_leader").await? == 1.0, "the old one does not lead: this proves nothing");
        let code = scene.stop().await?;
        ensure!(code == Some(0), "the old one ended with {code:?}");
        within(RECOVERY, "a new one leads", || async { Ok(leads(&today[0]).await? != leads(&today[1]).await?) })
            .await?;
        anyhow::Ok(today)
    };
    let (rolled, loaded) = tokio::join!(rolling, load(scene));
    // They run until the judgement.
    let _today = rolled?;
    loaded?;
    rest(scene).await?;
    // A webhook whose address changes injects nothing for a moment.
    let calm: &[Digest] = if scene.engine == Engine::Webhook { &[] } else { std::slice::from_ref(&calm) };
    scene.judge_against(calm).await?;
    well(scene, &first(LOAD)).await
}

/// The result without an upgrade.
async fn without(scene: &Scene) -> Result<Digest> {
    in_force(scene).await?;
    load(scene).await?;
    rest(scene).await?;
    let calm = scene.judge().await?;
    scene.clear().await?;
    scene.kill();
    scene.begin()?;
    Ok(calm)
}

async fn load(scene: &Scene) -> Result<()> {
    for batch in first(LOAD).chunks(5) {
        scene.create_stubbornly(batch.to_vec()).await?;
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn rest(scene: &Scene) -> Result<()> {
    scene.policy("agent", agent()).await?;
    scene.in_force("agent").await?;
    scene.create_stubbornly(second(10)).await
}

/// The earlier operator, built once per commit, outside the checkout.
fn earlier() -> Result<PathBuf> {
    let from = std::env::var(FROM).unwrap_or_else(|_| "HEAD^".into());
    let commit = git(&["rev-parse", "--verify", "--quiet", &format!("{from}^{{commit}}")]).with_context(|| {
        format!(
            "there is no commit `{from}` to upgrade from: this checkout is shallow, or has no history at all. Fetch the history \
             (`git fetch --unshallow`), or name a commit that is there in {FROM}"
        )
    })?;
    let cache = cache()?.join("operators");
    let program = cache.join(commit.trim()).join("scpol");
    fs::create_dir_all(cache.join(commit.trim()))?;
    // Other test programs use the same folder.
    let lock = File::create(cache.join("lock"))?;
    lock.lock()?;
    if !program.exists() {
        build(&cache, commit.trim(), &program).with_context(|| format!("building the operator of {from}"))?;
    }
    Ok(program)
}

fn build(cache: &Path, commit: &str, program: &Path) -> Result<()> {
    let (source, target, tar) = (cache.join("source"), cache.join("target"), cache.join("source.tar"));
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    fs::create_dir_all(&source)?;
    git(&["archive", "--output", tar.to_str().context("a path in UTF-8")?, commit])?;
    // With current timestamps, because another commit was built in the same place.
    succeeded(&Command::new("tar").arg("-xmf").arg(&tar).arg("-C").arg(&source).output()?)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--bin", "scpol"]).current_dir(&source).env("CARGO_TARGET_DIR", &target);
    // One program per commit stays. With debug information it takes 300 MB, and the rest of the build 4 GB.
    cargo.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_PROFILE_DEV_STRIP", "true");
    succeeded(&cargo.output()?)?;
    let fresh = program.with_extension("fresh");
    fs::copy(target.join("debug/scpol"), &fresh)?;
    Ok(fs::rename(fresh, program)?)
}

/// The cache folder, which also has the server builds.
fn cache() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let cache = set("SCPOL_CACHE").or_else(|| Some(set("XDG_CACHE_HOME")?.join("scpol")));
    cache.or_else(|| Some(set("HOME")?.join(".cache/scpol"))).context("HOME is not set")
}

/// The output of a git command in this checkout.
fn git(args: &[&str]) -> Result<String> {
    let output =
        Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().context("running git")?;
    succeeded(&output)?;
    Ok(String::from_utf8(output.stdout)?)
}

fn succeeded(output: &Output) -> Result<()> {
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, crate::chaos::cases::tail(&told));
    Ok(())
}
