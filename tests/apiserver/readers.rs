//! `scpol explain` on a cluster reads what other readers of pods look at, as far as the rights of its user go.

use crate::parity::bare;
use crate::prelude::*;
use std::fs;
use tokio::process::Command;

crate::tests![explain_reads_what_its_user_may_read_and_says_what_it_may_not,];

const POLICY: &str = r#"
apiVersion: scpol.dev/v1alpha1
kind: SidecarPolicy
metadata: {name: agent}
spec:
  template:
    imagePullSecrets: [{name: agent-registry}]
    env: [{name: NODE_OPTIONS, value: ours}]
    containers:
    - name: agent
      image: registry.example/agent:1
      resources: {requests: {memory: 32Mi}}
"#;

async fn explain_reads_what_its_user_may_read_and_says_what_it_may_not() -> Result<()> {
    for version in [Version::V1_13, Version::NEWEST] {
        let world = bare(ControlPlane::builder(version)).await?;
        let post = async |path: &str, object: Value| request(&world.admin, "POST", path, &object).await.map(drop);
        let named = |name: &str| json!({ "name": name });
        let core = "/api/v1/namespaces/default";
        let account = json!({ "metadata": named("cart"), "imagePullSecrets": [named("cart-registry")] });
        post(&format!("{core}/serviceaccounts"), account).await?;
        let settings = json!({ "metadata": named("settings"), "data": { "NODE_OPTIONS": "theirs" } });
        post(&format!("{core}/configmaps"), settings).await?;
        let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
        let scaler = json!({ "metadata": named("web"), "spec": { "scaleTargetRef": target, "maxReplicas": 2, "targetCPUUtilizationPercentage": 60 } });
        post("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", scaler).await?;
        let mut web = deployment("web");
        web["spec"]["template"]["spec"]["serviceAccountName"] = json!("cart");
        web["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "10m" } });
        web["spec"]["template"]["spec"]["containers"][0]["envFrom"] = json!([{ "configMapRef": named("settings") }]);
        post(DEPLOYMENTS, web).await?;
        let folder = tempfile::tempdir()?;
        let policy = folder.path().join("policy.yaml");
        fs::write(&policy, POLICY)?;
        let explain = async |user: User| {
            let output = Command::new(env!("CARGO_BIN_EXE_scpol"))
                .args(["explain", "deploy/web", "-n", "default", "-p"])
                .arg(&policy)
                .env("KUBECONFIG", world.cluster.kubeconfig(user))
                .output()
                .await?;
            let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            anyhow::Ok(printed.concat())
        };
        let said = explain(User::Admin).await?;
        for part in
            ["`cart-registry` of ServiceAccount `cart`", "ConfigMap `settings`", "HorizontalPodAutoscaler `web`"]
        {
            ensure!(said.contains(part), "{version:?}: no `{part}` in\n{said}");
        }
        ensure!(!said.contains("cannot read"), "{version:?}\n{said}");
        read_deployments(&world).await?;
        let said = explain(User::Bystander).await?;
        let unread = "You cannot read configmaps, horizontalpodautoscalers, limitranges, priorityclasses, resourcequotas, \
                      serviceaccounts";
        for part in [unread, "SCP0232", "if it has any", "SCP0233"] {
            ensure!(said.contains(part), "{version:?}: no `{part}` in\n{said}");
        }
    }
    Ok(())
}

/// Lets the bystander read Deployments, and nothing else.
async fn read_deployments(world: &World) -> Result<()> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "metadata": { "name": "look" },
        "rules": [{ "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }],
    });
    request(&world.admin, "POST", &format!("{rbac}/clusterroles"), &role).await?;
    let binding = json!({
        "metadata": { "name": "look" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "look" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": User::Bystander.name() }],
    });
    request(&world.admin, "POST", &format!("{rbac}/clusterrolebindings"), &binding).await?;
    Ok(())
}
