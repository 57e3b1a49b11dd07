//! The programs that make pods run, or appear to: controllers, a scheduler, and kwok's fake nodes.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::assets::Assets;
use crate::process::Process;
use crate::ready::wait_ready;
use crate::{ControlPlane, User, Version};

/// Starts the three programs beside `plane` and waits until `count` nodes are ready.
pub(crate) async fn start(plane: &ControlPlane, assets: &Assets, count: usize) -> Result<Vec<Process>> {
    let start = |name, args: &[String]| Process::start(name, &assets.path(name), args, plane.dir());
    let dir = plane.dir().display();
    let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig(User::Admin).display());
    let own = [kubeconfig.clone(), "--leader-elect=false".into(), "--secure-port=0".into()];
    let mut manager = own.to_vec();
    manager.push(format!("--service-account-private-key-file={dir}/sa.key"));
    manager.push(format!("--root-ca-file={dir}/ca.crt"));
    let mut kwok = vec![
        kubeconfig,
        "--manage-all-nodes=false".into(),
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".into(),
        "--node-lease-duration-seconds=40".into(),
    ];
    kwok.extend(stages(assets)?);
    let processes =
        vec![start("kube-controller-manager", &manager)?, start("kube-scheduler", &own)?, start("kwok", &kwok)?];
    let nodes = Api::<Node>::all(plane.admin());
    for index in 0..count {
        nodes.create(&PostParams::default(), &node(index)?).await.context("creating a node")?;
    }
    wait_ready(&processes[2], || all_ready(&nodes, count)).await?;
    for process in &processes {
        ensure!(process.exited().is_none(), process.failure("has ended"));
    }
    Ok(processes)
}

fn stages(assets: &Assets) -> Result<Vec<String>> {
    let dir = assets.path("stages");
    let entries = fs::read_dir(&dir).with_context(|| format!("kwok's stages in {}", dir.display()))?;
    entries.map(|entry| Ok(format!("--config={}", entry?.path().display()))).collect()
}

/// A node for kwok. Without this setting its kubelet version would be `kwok-v..`.
fn node(index: usize) -> Result<Node> {
    let name = format!("fake-{index}");
    let size = json!({"cpu": "32", "memory": "256Gi", "pods": "1000"});
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "type": "kwok"},
        },
        "status": {"allocatable": size, "capacity": size, "nodeInfo": {
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "fake",
            "kubeletVersion": format!("v{}", Version::NEWEST), "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
        }},
    }))?)
}

async fn all_ready(nodes: &Api<Node>, count: usize) -> Result<()> {
    let list = nodes.list(&ListParams::default()).await?;
    let ready = list.items.iter().filter(|n| is_ready(n)).count();
    ensure!(ready == count, "{ready} of {count} nodes are ready");
    Ok(())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let untainted = node.spec.as_ref().and_then(|s| s.taints.as_ref()).is_none_or(Vec::is_empty);
    untainted && conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}
