//! Installation and first use: the install files with kubectl, the samples, the break-glass page.

use crate::commands::scpol;
use crate::prelude::*;

crate::tests![
    the_file_for_old_servers_installs_everything_and_a_second_time_nothing,
    the_file_for_current_servers_installs_everything_and_a_second_time_nothing,
    every_sample_does_what_its_head_says_with_the_shipped_rights,
    what_is_stuck_can_be_seen_and_released_with_kubectl_alone,
];

/// Applies an install file twice, as users do. The second time must change nothing.
async fn applies_twice(cluster: &ControlPlane, bundle: &str) -> Result<()> {
    let path = file(bundle).display().to_string();
    let apply = ["apply", "--validate=false", "-f", &path];
    cluster.kubectl_output(User::Admin, &apply).await?;
    within(LIMIT, "the CRD is served", || async { Ok(policies(cluster).list(&Default::default()).await.is_ok()) })
        .await?;
    let versions = "-o=jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.generation} {.metadata.resourceVersion}{\"\\n\"}{end}";
    let first = cluster.kubectl_output(User::Admin, &["get", "-f", &path, versions]).await?;
    cluster.kubectl_output(User::Admin, &apply).await?;
    let second = cluster.kubectl_output(User::Admin, &["get", "-f", &path, versions]).await?;
    assert_eq!(first, second);
    // Exit code 1 would be a difference.
    cluster.kubectl_output(User::Admin, &["diff", "-f", &path]).await.map(drop)
}

async fn may(cluster: &ControlPlane, question: &[&str]) -> Result<bool> {
    let answer = cluster.kubectl(User::Operator).args(["auth", "can-i"]).args(question).output().await?;
    Ok(answer.stdout.starts_with(b"yes"))
}

async fn the_file_for_old_servers_installs_everything_and_a_second_time_nothing() -> Result<()> {
    let cluster = ControlPlane::builder(Version::V1_13).start().await?;
    applies_twice(&cluster, "config/install-legacy.yaml").await?;
    let deployment =
        request(&cluster.admin(), "GET", "/apis/apps/v1/namespaces/scpol-system/deployments/scpol", &Value::Null)
            .await?;
    assert_eq!(deployment["metadata"].get("initializers"), None, "it waits for nobody");
    assert!(may(&cluster, &["initialize", "deployments.apps"]).await?);
    assert!(!may(&cluster, &["create", "deployments.apps"]).await?, "in its own namespace only");
    Ok(())
}

async fn the_file_for_current_servers_installs_everything_and_a_second_time_nothing() -> Result<()> {
    let cluster = ControlPlane::builder(Version::NEWEST).start().await?;
    applies_twice(&cluster, "config/install.yaml").await?;
    let deployment =
        request(&cluster.admin(), "GET", "/apis/apps/v1/namespaces/scpol-system/deployments/scpol", &Value::Null)
            .await?;
    let template = &deployment["spec"]["template"];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "scpol", "labels": template["metadata"]["labels"] }, "spec": template["spec"],
    });
    let pods = "/api/v1/namespaces/scpol-system/pods?dryRun=All";
    request(&cluster.admin(), "POST", pods, &pod).await.context("Pod Security `restricted` lets our own pods in")?;
    let mut lax = pod;
    lax["spec"]["containers"][0]["securityContext"] = json!({});
    assert!(request(&cluster.admin(), "POST", pods, &lax).await.is_err(), "and is in effect");
    for question in [["patch", "deployments.apps"], ["update", "pods"], ["list", "secrets"], ["get", "secrets"]] {
        assert!(
            !may(&cluster, &question).await?,
            "no right to write workloads, or to see Secrets, where there are no Initializers: {question:?}"
        );
    }
    Ok(())
}

async fn every_sample_does_what_its_head_says_with_the_shipped_rights() -> Result<()> {
    let (world, operator) = World::with(ControlPlane::builder(Version::V1_13).audit_log()).await?.operated(&[]).await?;
    world.sample("01-sidecar.yaml", "sidecar").await?;
    assert_eq!(world.workload("nginx.v1beta1.yaml", "default").await?, ["nginx", "sidecar-nginx"]);
    assert_eq!(world.workload("nginx.yaml", "default").await?, ["nginx", "sidecar-nginx"]);
    world.delete_policy("sidecar").await?;
    world.sample("02-annotation.yaml", "sidecar-on-request").await?;
    world.unregistered_as("sidecar.scpol.dev").await?;
    assert_eq!(world.workload("nginx.v1beta1.yaml", "default").await?, ["nginx"]);
    assert_eq!(world.workload("nginx-with-annotation.v1beta1.yaml", "default").await?, ["nginx", "sidecar-nginx"]);
    assert_eq!(world.workload("nginx-with-annotation.yaml", "default").await?, ["nginx", "sidecar-nginx"]);
    world.sample("04-envoy-annotation.yaml", "envoy-on-request").await?;
    assert_eq!(world.workload("nginx-with-annotation.yaml", "default").await?, ["nginx", "envoy", "sidecar-nginx"]);
    world.sample("03-envoy.yaml", "envoy").await?;
    assert_eq!(world.workload("myapp-pod.yaml", "envoy-demo").await?, ["myapp-container", "envoy"]);
    assert_eq!(world.workload("myapp-pod.yaml", "default").await?, ["myapp-container"]);
    world.uninstall(operator).await?;
    let ours = |event: &&Value| event["user"]["username"] == User::Operator.name();
    let refused: Vec<_> = world
        .cluster
        .audit()
        .into_iter()
        .filter(|event| ours(&event) && event["responseStatus"]["code"] == 403)
        .collect();
    assert_eq!(refused, [Value::Null; 0]);
    Ok(())
}

async fn what_is_stuck_can_be_seen_and_released_with_kubectl_alone() -> Result<()> {
    let world = World::new().await?;
    world.foreign("left-behind", "sidecar.scpol.dev").await?;
    world.create_async(DEPLOYMENTS, &deployment("nginx")).await?;
    let listed = world
        .cluster
        .kubectl_output(User::Admin, &["get", "--raw", "/apis/apps/v1/deployments?includeUninitialized=1"])
        .await?;
    assert!(listed.contains("sidecar.scpol.dev"), "{listed}");
    let patch = r#"[{"op": "test", "path": "/metadata/initializers/pending/0/name", "value": "sidecar.scpol.dev"}, {"op": "remove", "path": "/metadata/initializers"}]"#;
    let arguments = ["-n", "default", "patch", "deployments.v1.apps", "nginx", "--type=json", "-p", patch];
    assert!(world.cluster.kubectl_output(User::Creator, &arguments).await.is_err(), "it takes the verb `initialize`");
    world.cluster.kubectl_output(User::Admin, &arguments).await?;
    assert_eq!(pending(&world.initialized(&path("nginx")).await?), [""; 0]);
    Ok(())
}

impl World {
    /// Applies a sample and waits until its policy is in effect.
    async fn sample(&self, name: &str, policy: &str) -> Result<()> {
        self.cluster.apply_file(&file("samples").join(name)).await?;
        in_force(&self.cluster, policy).await
    }

    /// Creates a workload of the samples with kubectl and deletes it. Returns the names of its containers.
    async fn workload(&self, name: &str, namespace: &str) -> Result<Vec<String>> {
        let manifest = file("samples/workloads").join(name).display().to_string();
        let since = Instant::now();
        self.cluster
            .kubectl_output(User::Admin, &["create", "--validate=false", "-n", namespace, "-f", &manifest])
            .await?;
        ensure!(since.elapsed() < PROMPT, "{name} took {:?}", since.elapsed());
        let json =
            self.cluster.kubectl_output(User::Admin, &["get", "-n", namespace, "-f", &manifest, "-o", "json"]).await?;
        self.cluster
            .kubectl_output(User::Admin, &["delete", "-n", namespace, "-f", &manifest, "--grace-period=0", "--force"])
            .await?;
        Ok(containers(&serde_json::from_str(&json)?))
    }

    /// Waits until creates get no entry with that name.
    async fn unregistered_as(&self, initializer: &str) -> Result<()> {
        within(LIMIT, "creates get no such entry", || async {
            Ok(self.assigned().await?.iter().all(|name| name != initializer))
        })
        .await
    }

    /// Uninstalls in the order of the recovery page: policies first, the operator last.
    async fn uninstall(&self, operator: Operator) -> Result<()> {
        self.cluster.kubectl_output(User::Admin, &["delete", "scpol", "--all"]).await?;
        within(LIMIT, "no registration is left", || async { Ok(self.configurations().await?.is_empty()) }).await?;
        let (code, waiting) = scpol(&self.cluster, &["drain", "--list"]).await?;
        assert_eq!((code, waiting.trim()), (0, "Nothing waits for an initializer."));
        assert_eq!(operator.stop().await?, Some(0));
        let bundle = file("config/install-legacy.yaml").display().to_string();
        // No controller here would end the namespace. The Deployment was never created.
        self.cluster
            .kubectl_output(User::Admin, &["delete", "--wait=false", "--ignore-not-found", "-f", &bundle])
            .await?;
        let created = self.create_promptly(PODS, &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "after" }, "spec": { "containers": [{ "name": "app", "image": "busybox:1.36" }] } })).await?;
        assert_eq!(containers(&created), ["app"]);
        Ok(())
    }
}
