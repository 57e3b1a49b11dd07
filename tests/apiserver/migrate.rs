//! From the tutorials' initializer to a policy, in the order that `scpol convert` prints. Creates continue all the
//! time, and each gets its sidecar once and promptly.

use crate::prelude::*;
use http::Request;
use kube::Client;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::task::JoinHandle;

crate::tests![an_old_initializer_hands_over_and_no_create_hangs_or_is_missed,];

const NAME: &str = "sidecar.initializer.kubernetes.io";
const OLD: &str = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations/sidecar";

/// The result of `scpol convert` on the tutorial's files.
fn converted() -> Result<Value> {
    let input = file("tests/convert/tutorial-sidecar/input.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_scpol")).args(["convert", "-f"]).arg(input).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let policy: Value = serde_saphyr::from_slice(&output.stdout)?;
    Ok(policy["spec"].clone())
}

/// A loop in parallel to the test, until it is stopped.
pub(crate) struct Beside {
    stop: Arc<AtomicBool>,
    pub(crate) task: JoinHandle<Result<()>>,
}

impl Beside {
    pub(crate) fn run<F: Future<Output = Result<()>> + Send + 'static>(
        work: impl FnOnce(Arc<AtomicBool>) -> F,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        Self { task: tokio::spawn(work(stop.clone())), stop }
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

/// The tutorials' initializer: a strategic merge patch without a test, for every object with its name first.
async fn old_initializer(client: Client, template: Value, stop: Arc<AtomicBool>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let list = request(&client, "GET", &format!("{DEPLOYMENTS}?includeUninitialized=1"), &Value::Null).await?;
        for object in list["items"].as_array().into_iter().flatten() {
            if pending(object).first().is_none_or(|first| first != NAME) {
                continue;
            }
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let order = json!([{ "name": "app" }, { "name": "sidecar-nginx" }]);
            let pod = json!({ "containers": template["containers"], "$setElementOrder/containers": order });
            let patch =
                json!({ "metadata": { "initializers": null }, "spec": { "template": { "spec": pod } } }).to_string();
            let patch = Request::patch(path(name))
                .header("Content-Type", "application/strategic-merge-patch+json")
                .body(patch.into_bytes())?;
            client.request::<Value>(patch).await?;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Creates one Deployment after another. Each must be created promptly, with its sidecar.
async fn creates(client: Client, created: Arc<AtomicUsize>, stop: Arc<AtomicBool>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let name = format!("web-{}", created.load(Ordering::Relaxed));
        let since = Instant::now();
        let object = request(&client, "POST", DEPLOYMENTS, &deployment(&name)).await.context(name.clone())?;
        ensure!(since.elapsed() < PROMPT, "{name} took {:?}", since.elapsed());
        let containers = containers(&object);
        ensure!(containers == ["app", "sidecar-nginx"], "{name} has {containers:?}");
        created.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn an_old_initializer_hands_over_and_no_create_hangs_or_is_missed() -> Result<()> {
    let world = World::new().await?;
    let spec = converted()?;
    world.foreign("sidecar", NAME).await?;
    let (admin, template) = (world.admin.clone(), spec["template"].clone());
    let old = Beside::run(|stop| old_initializer(admin, template, stop));
    let created = Arc::new(AtomicUsize::new(0));
    let (creator, count) = (world.creator.clone(), created.clone());
    let creating = Beside::run(|stop| creates(creator, count, stop));
    // Waits for further creates, and for everything that a server does once a second.
    let go_on = async || -> Result<()> {
        let (since, before) = (Instant::now(), created.load(Ordering::Relaxed));
        while !creating.task.is_finished()
            && (since.elapsed() < Duration::from_secs(4) || created.load(Ordering::Relaxed) < before + 10)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    go_on().await?;

    world.policy("sidecar", spec).await?;
    go_on().await?;
    let _operator = Operator::ready(&world.cluster, &["--initializer-name", NAME]).await?;
    wait_condition(&world.cluster, "sidecar", "Programmed", "False", "ForeignConfiguration").await?;
    go_on().await?;
    old.stop().await?;
    go_on().await?;
    let label = ["label", "initializerconfigurations", "sidecar", "app.kubernetes.io/managed-by=scpol"];
    world.cluster.kubectl_output(User::Admin, &label).await?;
    in_force(&world.cluster, "sidecar").await?;
    go_on().await?;
    world.delete(OLD).await?;
    go_on().await?;

    creating.stop().await?;
    assert!(created.load(Ordering::Relaxed) >= 6 * 10, "{created:?} creates");
    assert_eq!(world.configurations().await?, ["scpol-sidecar"]);
    in_force(&world.cluster, "sidecar").await?;
    for number in 0..created.load(Ordering::Relaxed) {
        let stored = world.get(&path(&format!("web-{number}"))).await?.unwrap_or_default();
        assert_eq!(containers(&stored), ["app", "sidecar-nginx"], "web-{number}");
        assert_eq!(stored["metadata"].get("initializers"), None, "web-{number}");
    }
    Ok(())
}
