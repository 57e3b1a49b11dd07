//! `config/author-check.yaml`: nobody has a policy inject where he may not create pods himself.

use crate::commands::scpol;
use crate::support::{LIMIT, file, within};
use crate::world::{World, request, sidecar};
use anyhow::Result;
use controlplane::{ControlPlane, User, Version};
use serde_json::{Value, json};

const POLICIES: &str = "/apis/scpol.dev/v1alpha1/sidecarpolicies";

/// A server with the check in force, and two users who may write policies: the creator may create pods everywhere, the
/// bystander in some namespaces.
struct Office {
    world: World,
    bystander: kube::Client,
}

impl Office {
    async fn open(namespaces: &[String]) -> Result<Self> {
        let world = World::with(ControlPlane::builder(Version::V1_36)).await?;
        let kubectl = async |arguments: &[&str]| world.cluster.kubectl_output(User::Admin, arguments).await.map(drop);
        for user in ["creator", "bystander"] {
            let flag = format!("--user={user}");
            kubectl(&["create", "clusterrolebinding", &format!("{user}-edits"), "--clusterrole=scpol-edit", &flag])
                .await?;
        }
        kubectl(&["create", "clusterrole", "pods", "--verb=create", "--resource=pods"]).await?;
        for name in namespaces {
            kubectl(&["create", "namespace", name]).await?;
            kubectl(&["create", "rolebinding", "pods", "-n", name, "--clusterrole=pods", "--user=bystander"]).await?;
        }
        world.cluster.apply_file(&file("config/author-check.yaml")).await?;
        let office = Self { bystander: world.cluster.client(User::Bystander), world };
        within(LIMIT, "the check is in force, and the rights are", || async {
            let wide = office.create_dry(&policy("probe", json!(null))).await;
            let named = office.create_dry(&policy("probe", json!(namespaces[..1]))).await;
            Ok(wide.is_err() && named.is_ok())
        })
        .await?;
        Ok(office)
    }

    async fn create_dry(&self, policy: &Value) -> kube::Result<Value> {
        request(&self.bystander, "POST", &format!("{POLICIES}?dryRun=All"), policy).await
    }

    /// What the bystander is told who creates a policy for these namespaces; none if it is stored.
    async fn refusal(&self, namespaces: Value) -> Result<Option<String>> {
        told(self.create_dry(&policy("probe", namespaces)).await)
    }

    /// What `client` is told who edits the policy `team`.
    async fn edit(&self, client: &kube::Client, patch: &Value) -> Result<Option<String>> {
        told(request(client, "PATCH", &format!("{POLICIES}/team"), patch).await)
    }
}

fn told(answer: kube::Result<Value>) -> Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status.message)),
        Err(error) => Err(error.into()),
    }
}

fn policy(name: &str, namespaces: Value) -> Value {
    let mut spec = sidecar("envoy");
    if !namespaces.is_null() {
        spec["namespaces"] = namespaces;
    }
    json!({ "apiVersion": "scpol.dev/v1alpha1", "kind": "SidecarPolicy", "metadata": { "name": name }, "spec": spec })
}

/// As long as names of namespaces can be.
fn long(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{}-{number:02}", "n".repeat(60))).collect()
}

#[tokio::test]
async fn a_policy_injects_only_where_its_author_may_create_pods() -> Result<()> {
    let many = long(28);
    let office = Office::open(&many).await?;
    let (own, other) = (&many[0], "default");
    for narrow in [json!([own]), json!([many[3], many[7]]), json!(many), json!([own, own])] {
        assert_eq!(office.refusal(narrow.clone()).await?, None, "{narrow}");
    }
    let in_all = "bystander may not create pods in all namespaces";
    let in_default = "bystander may not create pods in namespace `default`";
    let mut last_is_foreign = many.clone();
    last_is_foreign[27] = other.to_owned();
    let mut one_more = many.clone();
    one_more.push(own.clone());
    for (wide, why) in [
        (json!(null), in_all),
        (json!(["*"]), in_all),
        (json!([own, "n*"]), in_all),
        (json!([format!("{}?", &own[..own.len() - 1])]), in_all),
        (json!(one_more), in_all),
        (json!([other]), in_default),
        (json!([own, other]), in_default),
        (json!(last_is_foreign), in_default),
    ] {
        let refusal = office.refusal(wide.clone()).await?.unwrap_or_default();
        assert!(refusal.contains("SCP0046") && refusal.contains(why), "{wide}: {refusal}");
    }
    // Who may create pods everywhere may have it all.
    for any in [json!(null), json!(["*"]), json!([other]), json!(one_more), json!(many)] {
        let (path, policy) = (format!("{POLICIES}?dryRun=All"), policy("probe", any.clone()));
        let created = request(&office.world.creator, "POST", &path, &policy).await;
        assert_eq!(told(created)?, None, "{any}");
    }
    Ok(())
}

#[tokio::test]
async fn an_edit_is_judged_by_who_makes_it_unless_the_spec_stays_as_it_is() -> Result<()> {
    let own = "team".to_owned();
    let office = Office::open(std::slice::from_ref(&own)).await?;
    let replace = |path: &str, value: Value| json!([{ "op": "add", "path": path, "value": value }]);
    request(&office.bystander, "POST", POLICIES, &policy("team", json!([own]))).await?;
    let (by, creator) = (&office.bystander, &office.world.creator);
    assert_eq!(office.edit(by, &replace("/spec/priority", json!(5))).await?, None);
    for wider in [
        replace("/spec/namespaces", json!(["team", "default"])),
        replace("/spec/namespaces", json!(["team*"])),
        json!([{ "op": "remove", "path": "/spec/namespaces" }]),
    ] {
        assert!(office.edit(by, &wider).await?.is_some_and(|told| told.contains("SCP0046")), "{wider}");
    }
    // Somebody else, who may, widens it. The first may then label it, and change nothing of what it does.
    assert_eq!(office.edit(creator, &replace("/spec/namespaces", json!(["*"]))).await?, None);
    assert_eq!(office.edit(by, &replace("/metadata/labels", json!({ "team": "mesh" }))).await?, None);
    assert_eq!(office.edit(by, &replace("/metadata/annotations", json!({ "note": "seen" }))).await?, None);
    assert_eq!(office.edit(by, &replace("/spec/priority", json!(5))).await?, None, "it is 5 already");
    assert!(office.edit(by, &replace("/spec/priority", json!(6))).await?.is_some());
    let image = replace("/spec/template/containers/0/image", json!("evil:1"));
    assert!(office.edit(by, &image).await?.is_some(), "what it injects is not his, either");
    // Narrowed to what is his, it is his to edit.
    assert_eq!(office.edit(by, &replace("/spec/namespaces", json!(["team"]))).await?, None);
    assert_eq!(office.edit(by, &image).await?, None);
    // The operator is no author: what it writes is `status`.
    let status = json!([{ "op": "add", "path": "/status", "value": { "matched": 1 } }]);
    let path = format!("{POLICIES}/team/status");
    request(&office.world.admin, "PATCH", &path, &status).await?;
    // It goes with the rest.
    let (code, said) = scpol(&office.world.cluster, &["uninstall", "--yes"]).await?;
    assert!(said.contains("author.scpol.dev"), "{code} {said}");
    let check = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/author.scpol.dev";
    assert_eq!(office.world.get(check).await?, None);
    Ok(())
}
