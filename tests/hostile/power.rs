//! Holders of the operator's token.

use crate::prelude::*;

crate::tests![
    a_stolen_token_registers_only_webhooks_of_the_operator_on_1_30 =
        registers_only_webhooks_of_the_operator(Version::V1_30),
    a_stolen_token_registers_only_webhooks_of_the_operator_on_the_newest_version =
        registers_only_webhooks_of_the_operator(Version::NEWEST),
];

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const OWN: &str = "/api/v1/namespaces/scpol-system";

/// A client with the token, and one of the administrator.
struct Thief {
    world: World,
    token: kube::Client,
}

impl Thief {
    /// Whether admission or RBAC rejects the request with that token.
    async fn is_refused(&self, method: &str, path: &str, body: &Value) -> Result<bool> {
        match request(&self.token, method, path, body).await {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(true),
            Err(error) => Err(error).with_context(|| format!("{method} {path}")),
        }
    }

    /// Whether a webhook configuration of `kind`, changed by `patch`, is rejected.
    async fn may_not_register(&self, kind: &str, patch: Value) -> Result<bool> {
        let mut configuration = registration(kind);
        json_patch::merge(&mut configuration, &patch);
        let path = format!("{GROUP}/{}s?dryRun=All", kind.to_lowercase());
        self.is_refused("POST", &path, &configuration).await
    }
}

/// A webhook configuration that the operator could register, with a name that no policy uses.
fn registration(kind: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": "scpol-things.example.org" },
        "webhooks": [entry(&json!({}), &json!({}))],
    })
}

/// An entry of it, with changes of the client and of the rule.
fn entry(client: &Value, rule: &Value) -> Value {
    let mut own = json!({ "service": { "namespace": "scpol-system", "name": "scpol", "path": "/mutate/x" } });
    let mut all = json!({
        "operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"],
        "scope": "Namespaced",
    });
    json_patch::merge(&mut own, client);
    json_patch::merge(&mut all, rule);
    json!({
        "name": "inject.scpol.dev", "clientConfig": own, "rules": [all], "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
    })
}

async fn registers_only_webhooks_of_the_operator(version: Version) -> Result<()> {
    let world = World::with(ControlPlane::builder(version)).await?;
    let thief = Thief { token: world.cluster.client(User::Operator), world };
    let foreign = json!({ "metadata": { "name": "audit" } });
    within(LIMIT, "the policies are in effect", || async {
        thief.may_not_register("MutatingWebhookConfiguration", foreign.clone()).await
    })
    .await?;
    // The operator works with them.
    {
        let _operator = Operator::ready(&thief.world.cluster, &[]).await?;
        let mut spec = sidecar("envoy");
        (spec["engine"], spec["failurePolicy"]) = (json!("Webhook"), json!("Fail"));
        thief.world.policy("envoy", spec).await?;
        in_force(&thief.world.cluster, "envoy").await?;
        thief.world.delete_policy("envoy").await?;
    }
    webhooks(&thief).await?;
    others(&thief).await?;
    creates(&thief).await?;
    other_accounts(&thief).await
}

/// Accounts of others that are named like the operator's, or whose names end like its name: they are held by their own roles alone.
async fn other_accounts(thief: &Thief) -> Result<()> {
    for (number, user) in [
        "system:serviceaccount:shop:scpol",
        "system:serviceaccount:scpol-system:other-scpol",
        "system:serviceaccount:not-scpol-system:scpol",
        "scpol-system:scpol",
    ]
    .into_iter()
    .enumerate()
    {
        let binding = json!({
            "metadata": { "name": format!("other-{number}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        request(&thief.world.admin, "POST", bindings, &binding).await?;
        let mut config = thief.world.cluster.client_config(User::Admin);
        config.auth_info.impersonate = Some(user.to_owned());
        let other = kube::Client::try_from(config)?;
        let mut foreign = registration("MutatingWebhookConfiguration");
        foreign["metadata"]["name"] = json!("audit");
        foreign["webhooks"][0]["clientConfig"]["service"] = json!({ "namespace": "shop", "name": "audit" });
        let lease = json!({ "metadata": { "name": "more" } });
        for (path, body) in [
            (format!("{GROUP}/mutatingwebhookconfigurations?dryRun=All"), foreign),
            ("/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(), lease),
        ] {
            let accepted = || async { Ok(request(&other, "POST", &path, &body).await.is_ok()) };
            within(LIMIT, &format!("{user} may create at {path}"), accepted).await?;
        }
        thief.world.delete("/apis/coordination.k8s.io/v1/namespaces/default/leases/more").await?;
    }
    Ok(())
}

/// Webhooks with another name, for another server, or for what grants power.
async fn webhooks(thief: &Thief) -> Result<()> {
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        ensure!(!thief.may_not_register(kind, json!({})).await?, "{kind}: its own is accepted");
        let client = |client: Value| json!({ "webhooks": [entry(&client, &json!({}))] });
        let rule = |rule: Value| json!({ "webhooks": [entry(&json!({}), &rule)] });
        let url = |url: &str| client(json!({ "service": null, "url": url }));
        let mut second = entry(&json!({ "service": { "name": "evil" } }), &json!({}));
        second["name"] = json!("second.scpol.dev");
        for attack in [
            json!({ "metadata": { "name": "audit" } }),
            json!({ "metadata": { "name": null, "generateName": "audit-" } }),
            client(json!({ "service": { "name": "evil" } })),
            client(json!({ "service": { "namespace": "default" } })),
            url("https://evil.example.com/"),
            url("https://127.0.0.1.evil.example.com:443/"),
            json!({ "webhooks": [entry(&json!({}), &json!({})), second] }),
            rule(json!({ "apiGroups": [""], "resources": ["secrets"] })),
            rule(json!({ "apiGroups": [""], "resources": ["pods", "secrets"] })),
            rule(json!({ "apiGroups": ["example.org", ""], "resources": ["things", "secrets"] })),
            rule(json!({ "apiGroups": [""], "resources": ["serviceaccounts"] })),
            rule(json!({ "apiGroups": ["example.org", ""], "resources": ["serviceaccounts"] })),
            rule(json!({ "apiGroups": ["*"] })),
            rule(json!({ "resources": ["*"] })),
            rule(json!({ "resources": ["*/*"] })),
            rule(json!({ "resources": ["deployments/scale"] })),
            rule(json!({ "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"] })),
            rule(json!({ "apiGroups": ["apps", "rbac.authorization.k8s.io"], "resources": ["rolebindings"] })),
            rule(
                json!({ "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "scope": "*" }),
            ),
            rule(json!({ "apiGroups": [""], "resources": ["nodes"], "scope": "Cluster" })),
        ] {
            ensure!(thief.may_not_register(kind, attack.clone()).await?, "{kind} is accepted: {attack}");
        }
        // Custom resources that have the names of the core resources.
        for resource in ["secrets", "serviceaccounts"] {
            let custom = rule(json!({ "apiGroups": ["example.org"], "resources": [resource] }));
            ensure!(!thief.may_not_register(kind, custom.clone()).await?, "{kind} is refused: {custom}");
        }
    }
    // The check of authors, which only validates.
    let authors = json!({ "metadata": { "name": "author.scpol.dev" }, "webhooks": [entry(&json!({}), &json!({
        "apiGroups": ["scpol.dev"], "resources": ["sidecarpolicies"], "scope": "Cluster",
    }))] });
    ensure!(!thief.may_not_register("ValidatingWebhookConfiguration", authors.clone()).await?, "the check of authors");
    ensure!(thief.may_not_register("MutatingWebhookConfiguration", authors).await?, "it changes no policies");
    // With the right to read all Secrets, policies may judge them. They never change them.
    let role = std::fs::read_to_string(file("config/rbac/secrets/cluster_role.yaml"))?;
    thief.world.cluster.apply_manifests(&role).await?;
    let secrets = json!({ "webhooks": [entry(&json!({}), &json!({ "apiGroups": [""], "resources": ["secrets"] }))] });
    within(LIMIT, "Secrets may be judged", || async {
        Ok(!thief.may_not_register("ValidatingWebhookConfiguration", secrets.clone()).await?)
    })
    .await?;
    ensure!(thief.may_not_register("MutatingWebhookConfiguration", secrets).await?, "Secrets are never changed");
    Ok(())
}

/// The registrations of others, and the policies that hold the account.
async fn others(thief: &Thief) -> Result<()> {
    let mut foreign = registration("ValidatingWebhookConfiguration");
    foreign["metadata"]["name"] = json!("audit");
    let webhooks = format!("{GROUP}/validatingwebhookconfigurations");
    request(&thief.world.admin, "POST", &webhooks, &foreign).await?;
    let holding = ["operator.scpol.dev", "creates.operator.scpol.dev"].into_iter().flat_map(|name| {
        ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]
            .map(|plural| format!("{GROUP}/{plural}/{name}"))
    });
    for path in holding.chain([format!("{webhooks}/audit")]) {
        let stored = thief.world.get(&path).await?.context("it is there")?;
        ensure!(thief.is_refused("PUT", &format!("{path}?dryRun=All"), &stored).await?, "it may change {path}");
        ensure!(thief.is_refused("DELETE", &format!("{path}?dryRun=All"), &json!({})).await?, "it may delete {path}");
    }
    for plural in ["validatingadmissionpolicies", "mutatingwebhookconfigurations"] {
        let all = format!("{GROUP}/{plural}?dryRun=All");
        ensure!(thief.is_refused("DELETE", &all, &json!({})).await?, "it may delete all {plural}");
    }
    Ok(())
}

/// Objects in the operator's namespace: only dry runs, and the two that the operator stores.
async fn creates(thief: &Thief) -> Result<()> {
    let pod = json!({
        "metadata": { "name": "evil", "labels": { "app.kubernetes.io/name": "scpol" } },
        "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "a", "image": "a", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            } }],
        },
    });
    let secret = |name: &str| json!({ "metadata": { "name": name } });
    let lease = |name: &str| json!({ "metadata": { "name": name } });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/scpol-system/leases";
    let (pods, secrets) = (format!("{OWN}/pods"), format!("{OWN}/secrets"));
    ensure!(!thief.is_refused("POST", &format!("{pods}?dryRun=All"), &pod).await?, "the trial");
    ensure!(thief.is_refused("POST", &pods, &pod).await?, "a pod that answers in place of the operator");
    ensure!(thief.is_refused("POST", &secrets, &secret("more")).await?);
    let token = json!({
        "metadata": { "name": "token", "annotations": { "kubernetes.io/service-account.name": "default" } },
        "type": "kubernetes.io/service-account-token",
    });
    ensure!(thief.is_refused("POST", &secrets, &token).await?, "a token of another account");
    ensure!(thief.is_refused("POST", leases, &lease("more")).await?);
    for (collection, name) in [(secrets.as_str(), "scpol-webhook"), (leases, "scpol")] {
        let path = format!("{collection}/{name}");
        if thief.world.get(&path).await?.is_some() {
            thief.world.delete(&path).await?;
        }
        ensure!(!thief.is_refused("POST", collection, &secret(name)).await?, "{path} is the operator's own");
    }
    Ok(())
}
