//! Servers start, stop, and leave no processes and files. What they serve is what the tests on them need.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use controlplane::{ControlPlane, User, Version};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

/// Whether the process runs, and is not a zombie.
fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn assert_gone(pids: &[u32], dir: &Path) {
    assert!(pids.len() >= 2, "{pids:?}");
    let limit = Instant::now() + Duration::from_secs(5);
    while pids.iter().any(|p| alive(*p)) || dir.exists() {
        assert!(Instant::now() < limit, "left behind: {pids:?} or {}", dir.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_frozen_server_answers_again_when_thawed() -> Result<()> {
    let server = ControlPlane::builder(Version::V1_13).start().await?;
    let client = server.admin();
    server.freeze();
    let frozen = tokio::time::timeout(Duration::from_millis(300), client.apiserver_version()).await;
    assert!(frozen.is_err(), "{frozen:?}");
    server.thaw();
    client.apiserver_version().await?;
    server.stop_apiserver().await;
    assert!(client.apiserver_version().await.is_err());
    assert!(!server.log_tail(5).is_empty());
    server.start_apiserver().await?;
    assert_eq!(client.apiserver_version().await?.git_version, format!("v{}", Version::V1_13));
    let (pids, dir) = (server.pids(), server.dir().to_owned());
    server.stop().await;
    assert_gone(&pids, &dir);
    Ok(())
}

#[tokio::test]
async fn a_failing_start_shows_the_log() {
    let started = ControlPlane::builder(Version::V1_36).extra_arg("--no-such-flag=1").start().await;
    let error = format!("{:#}", started.unwrap_err());
    assert!(error.contains("no-such-flag") && error.contains("starting Kubernetes 1.36.3"), "{error}");
}

#[tokio::test]
async fn nothing_is_left_after_a_panic() -> Result<()> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let server = ControlPlane::builder(Version::V1_13).start().await.unwrap();
        sender.send((server.pids(), server.dir().to_owned())).unwrap();
        panic!("on purpose: the end of the server's log follows");
    });
    assert!(task.await.unwrap_err().is_panic());
    let (pids, dir) = receiver.await?;
    assert_gone(&pids, &dir);
    Ok(())
}

/// All descendants of a process.
fn descendants(of: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = all.filter_map(|pid: u32| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        found
            .extend(parents.iter().filter(|(_, parent)| *parent == found[at]).map(|(pid, _)| *pid).collect::<Vec<_>>());
        at += 1;
    }
    found.split_off(1)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// Starts the binary with a command that prints the folder and waits for `release`. Returns the pids of the servers.
async fn binary() -> Result<(tokio::process::Child, Vec<u32>, PathBuf)> {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_controlplane"))
        .args([
            "run",
            "--version",
            "1.13",
            "--",
            "sh",
            "-c",
            "trap 'exit 7' TERM; kubectl get ns >/dev/null; echo $SCPOL_TEST_DIR; read _; exit 3",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let dir = PathBuf::from(lines.next_line().await?.expect("a folder"));
    let servers = descendants(child.id().unwrap()).into_iter().filter(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        ["etcd", "kube-apiserver"].contains(&name.trim())
    });
    let servers: Vec<u32> = servers.collect();
    assert!(dir.is_dir() && servers.len() == 2, "{servers:?}");
    Ok((child, servers, dir))
}

#[tokio::test]
async fn nothing_is_left_after_kill_9() -> Result<()> {
    let (mut child, servers, dir) = binary().await?;
    child.kill().await?;
    assert_gone(&servers, &dir);
    Ok(())
}

#[tokio::test]
async fn the_binary_passes_on_signals_and_exit_codes() -> Result<()> {
    let (mut child, servers, dir) = binary().await?;
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    let stdin = child.stdin.take(); // `wait` would close it
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    assert_eq!(child.wait().await?.code(), Some(7));
    drop(stdin);
    assert_gone(&servers, &dir);

    let (mut child, servers, dir) = binary().await?;
    drop(child.stdin.take());
    assert_eq!(child.wait().await?.code(), Some(3));
    assert_gone(&servers, &dir);
    Ok(())
}

#[tokio::test]
async fn pods_run_on_fake_nodes() -> Result<()> {
    let server = ControlPlane::builder(Version::NEWEST).enable_admission(&["ServiceAccount"]).nodes(2).start().await?;
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: default}\n\
        spec:\n  replicas: 3\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    \
        spec: {containers: [{name: web, image: example.org/web}]}\n";
    server.apply_manifests(deployment).await?;
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let list = pods.list(&Default::default()).await?;
        let phases: Vec<_> = list.items.iter().map(|p| p.status.as_ref().and_then(|s| s.phase.as_deref())).collect();
        if phases == [Some("Running"); 3] {
            break;
        }
        assert!(Instant::now() < limit, "{phases:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let nodes = server.kubectl_output(User::Admin, &["get", "nodes", "--no-headers"]).await?;
    assert_eq!(nodes.matches(&format!("v{}", Version::NEWEST)).count(), 2, "{nodes}");
    let (pids, dir) = (server.pids(), server.dir().to_owned());
    drop(server);
    assert_eq!(pids.len(), 5);
    assert_gone(&pids, &dir);
    Ok(())
}
