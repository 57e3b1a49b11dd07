//! No author can have a policy that injects where the author may not create pods. The check is
//! `config/author-check.yaml`, or the operator's webhook.

use crate::commands::scpol;
use crate::prelude::*;

crate::tests![
    a_policy_injects_only_where_its_author_may_create_pods =
        injects_only_where_its_author_may_create_pods(By::Policy, Version::NEWEST),
    the_webhook_judges_authors_alike_on_old_servers =
        injects_only_where_its_author_may_create_pods(By::Webhook, Version::V1_13),
    the_webhook_judges_authors_alike_on_current_servers =
        injects_only_where_its_author_may_create_pods(By::Webhook, Version::NEWEST),
    the_webhook_is_registered_once_it_can_judge_and_lets_nothing_pass_while_nobody_answers,
    the_webhook_is_not_registered_where_the_server_gets_no_answer,
];

const POLICIES: &str = "/apis/scpol.dev/v1alpha1/sidecarpolicies";

/// The component that asks the authorizer.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum By {
    /// The API server itself: `config/author-check.yaml`.
    Policy,
    /// The operator.
    Webhook,
}

/// A server with the check in effect, and two users with rights on policies. The creator may create pods everywhere,
/// the bystander in some namespaces.
pub(crate) struct Office {
    pub(crate) world: World,
    bystander: kube::Client,
    operator: Option<Operator>,
}

impl Office {
    pub(crate) async fn open(by: By, version: Version, namespaces: &[String]) -> Result<Self> {
        let mut office = Self::without(version, namespaces).await?;
        let cluster = &office.world.cluster;
        match by {
            By::Policy => drop(cluster.apply_file(&file("config/author-check.yaml")).await?),
            By::Webhook => {
                office.grant().await?;
                office.operator = Some(Operator::ready(cluster, &["--author-check"]).await?);
            }
        }
        office.is_in_force(&namespaces[0]).await?;
        Ok(office)
    }

    /// The same server without the check.
    async fn without(version: Version, namespaces: &[String]) -> Result<Self> {
        let world = World::with(ControlPlane::builder(version).audit_log()).await?;
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
        Ok(Self { bystander: world.cluster.client(User::Bystander), world, operator: None })
    }

    /// Grants the operator the rights for the check.
    async fn grant(&self) -> Result<()> {
        self.world.cluster.apply_file(&file("config/rbac/author-webhook/role.yaml")).await.map(drop)
    }

    async fn is_in_force(&self, own: &str) -> Result<()> {
        within(LIMIT, "the check is in effect, and the rights are", || async {
            let wide = self.create_dry(&policy("probe", json!(null))).await;
            let named = self.create_dry(&policy("probe", json!([own]))).await;
            Ok(wide.is_err() && named.is_ok())
        })
        .await
    }

    /// Checks that the operator, which may create policies, has created none.
    fn only_tried(&self) -> Result<()> {
        let is_create = |event: &&Value| {
            let is_of_policies = event["objectRef"]["resource"] == "sidecarpolicies";
            event["user"]["username"] == User::Operator.name() && event["verb"] == "create" && is_of_policies
        };
        let audit = self.world.cluster.audit();
        let tried: Vec<_> = audit.iter().filter(is_create).filter_map(|event| event["requestURI"].as_str()).collect();
        ensure!(!tried.is_empty() && tried.iter().all(|uri| uri.contains("dryRun=All")), "{tried:?}");
        Ok(())
    }

    async fn create_dry(&self, policy: &Value) -> kube::Result<Value> {
        request(&self.bystander, "POST", &format!("{POLICIES}?dryRun=All"), policy).await
    }

    /// The rejection of the bystander's policy for these namespaces; none if it is accepted.
    async fn refusal(&self, namespaces: Value) -> Result<Option<String>> {
        told(self.create_dry(&policy("probe", namespaces)).await)
    }

    /// A field of the webhook that the server has registered; null if there is none.
    async fn entry(&self, field: &str) -> Result<Value> {
        let stored = self.world.get(REGISTRATION).await?;
        Ok(stored.and_then(|stored| stored["webhooks"][0].pointer(field).cloned()).unwrap_or_default())
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
    policy_object(name, &spec)
}

/// The longest possible names of namespaces.
fn long(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{}-{number:02}", "n".repeat(60))).collect()
}

async fn injects_only_where_its_author_may_create_pods(by: By, version: Version) -> Result<()> {
    let many = long(28);
    let office = Office::open(by, version, &many).await?;
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
    // A user who may create pods everywhere may have any policy.
    for any in [json!(null), json!(["*"]), json!([other]), json!(one_more), json!(many)] {
        let (path, policy) = (format!("{POLICIES}?dryRun=All"), policy("probe", any.clone()));
        let created = request(&office.world.creator, "POST", &path, &policy).await;
        assert_eq!(told(created)?, None, "{any}");
    }
    // `scpol uninstall` removes the check too.
    let (code, said) = scpol(&office.world.cluster, &["uninstall", "--yes", "--timeout=0"]).await?;
    assert!(said.contains("author.scpol.dev"), "{code} {said}");
    let (api, resource) = match by {
        By::Policy => ("v1", "validatingadmissionpolicies"),
        By::Webhook => (version.registration(), "validatingwebhookconfigurations"),
    };
    let check = format!("/apis/admissionregistration.k8s.io/{api}/{resource}/author.scpol.dev");
    assert_eq!(office.world.get(&check).await?, None);
    Ok(())
}

/// On a server of 1.13.
const REGISTRATION: &str =
    "/apis/admissionregistration.k8s.io/v1beta1/validatingwebhookconfigurations/author.scpol.dev";

async fn the_webhook_is_registered_once_it_can_judge_and_lets_nothing_pass_while_nobody_answers() -> Result<()> {
    let own = "team".to_owned();
    let office = Office::without(Version::V1_13, std::slice::from_ref(&own)).await?;
    let flags = ["--author-check", "--repair-hold=3s"];
    let operator = Operator::ready(&office.world.cluster, &flags).await?;
    // Without the rights it is not registered, so that nobody is locked out.
    within(LIMIT, "what is missing is told", || async { Ok(operator.log().contains("config/rbac/author-webhook")) })
        .await?;
    assert_eq!(office.world.get(REGISTRATION).await?, None);
    assert_eq!(office.refusal(json!(null)).await?, None);
    office.grant().await?;
    office.is_in_force(&own).await?;

    let (_, found) = scpol(&office.world.cluster, &["check"]).await?;
    ensure!(found.contains("rights for the author check") && !found.contains("no policy wants"), "{found}");

    an_edit_by_hand_is_repaired_and_a_deletion_is_respected_for_the_hold(&office, &operator, &own).await?;
    without_the_right_to_ask_every_policy_is_refused(&office, &own).await?;

    // Without an answer the server stores and deletes no policy, but status updates pass.
    request(&office.bystander, "POST", POLICIES, &policy("team", json!([own]))).await?;
    assert_eq!(operator.stop().await?, Some(0), "the last one, which goes in good order");
    let refused = office.create_dry(&policy("probe", json!([own]))).await;
    let refused = refused.err().context("nobody has judged it")?.to_string();
    ensure!(refused.contains("failed calling webhook") && refused.contains("author.scpol.dev"), "{refused}");
    let label = json!([{ "op": "add", "path": "/metadata/labels", "value": { "team": "mesh" } }]);
    assert!(
        office.edit(&office.bystander, &label).await.is_err(),
        "the server cannot tell that the spec stays as it is"
    );
    assert!(
        office.world.delete(&format!("{POLICIES}/team")).await.is_err(),
        "nor whom a deletion takes the sidecar from"
    );
    let status = json!([{ "op": "add", "path": "/status", "value": { "matched": 1 } }]);
    office.world.patch(&format!("{POLICIES}/team/status"), &status).await?;

    // The next one is trusted by another authority, and elsewhere.
    let trusted = office.entry("/clientConfig/caBundle").await?;
    office.world.delete("/api/v1/namespaces/scpol-system/secrets/scpol-webhook").await?;
    let operator = Operator::ready(&office.world.cluster, &flags).await?;
    office.is_in_force(&own).await?;
    assert_ne!(office.entry("/clientConfig/caBundle").await?, trusted);
    drop(operator);

    // Without the flag it is unregistered.
    let _operator = Operator::ready(&office.world.cluster, &["--repair-hold=3s"]).await?;
    within(LIMIT, "it is unregistered", || async { Ok(office.world.get(REGISTRATION).await?.is_none()) }).await?;
    within(LIMIT, "nobody is judged", || async { Ok(office.refusal(json!(null)).await?.is_none()) }).await?;
    office.only_tried()
}

async fn an_edit_by_hand_is_repaired_and_a_deletion_is_respected_for_the_hold(
    office: &Office,
    operator: &Operator,
    own: &str,
) -> Result<()> {
    let open = json!([{ "op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore" }]);
    office.world.patch(REGISTRATION, &open).await?;
    within(LIMIT, "it is repaired", || async { Ok(office.entry("/failurePolicy").await? == "Fail") }).await?;
    office.world.delete(REGISTRATION).await?;
    within(LIMIT, "the deletion is told", || async { Ok(operator.log().contains("was removed by hand")) }).await?;
    within(LIMIT, "it is not asked", || async { Ok(office.refusal(json!(null)).await?.is_none()) }).await?;
    office.is_in_force(own).await
}

/// Without the right to ask the server, the operator rejects the policy and says what to do.
async fn without_the_right_to_ask_every_policy_is_refused(office: &Office, own: &str) -> Result<()> {
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/scpol-author-webhook";
    office.world.delete(binding).await?;
    within(LIMIT, "it says what is missing", || async {
        let told = office.refusal(json!([own])).await?.unwrap_or_default();
        Ok(told.contains("SCP0304") && told.contains("config/rbac/author-webhook"))
    })
    .await?;
    office.grant().await?;
    office.is_in_force(own).await
}

async fn the_webhook_is_not_registered_where_the_server_gets_no_answer() -> Result<()> {
    let own = "team".to_owned();
    let office = Office::without(Version::V1_13, std::slice::from_ref(&own)).await?;
    office.grant().await?;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let flags = ["--author-check", "--webhook-url", &format!("https://{nobody}")];
    let operator = Operator::ready(&office.world.cluster, &flags).await?;
    within(LIMIT, "it is told", || async {
        let told = operator.log().lines().any(|line| line.contains("gets no answer from the webhook"));
        Ok(told && office.world.get(REGISTRATION).await?.is_none())
    })
    .await?;
    within(LIMIT, "nobody is locked out", || async {
        Ok(office.create_dry(&policy("probe", json!([own]))).await.is_ok())
    })
    .await?;
    office.only_tried()
}
