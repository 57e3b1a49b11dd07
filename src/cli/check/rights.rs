//! Checks the rights of the operator, and before the installation those of the user who installs. The rights are read from the
//! shipped files, so they are exactly what the files grant.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::capabilities::registration;
use crate::cli::installed::{OPERATOR, Piece, setting};
use crate::cli::output::counted;
use crate::cluster::rights::{self, Right};
use crate::engine::{self, Completing, Engine};
use crate::naming::shared_name;
use crate::workload::Kind;
use anyhow::{Context, Result};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The rights of every operator.
const SHIPPED: [&str; 2] =
    [include_str!("../../../config/rbac/cluster_role.yaml"), include_str!("../../../config/rbac/role.yaml")];
/// The rights for `--reports`.
const REPORTS: [&str; 1] = [include_str!("../../../config/rbac/reports/cluster_role.yaml")];

/// The rights that the roles in `files` grant. A Role grants them in `namespace`.
fn granted(files: &[&str], namespace: &str) -> BTreeSet<Right> {
    let documents =
        files.iter().flat_map(|file| serde_saphyr::from_multiple::<Value>(file).expect("shipped files are YAML"));
    let mut rights = BTreeSet::new();
    for role in documents.filter(|document| document["rules"].is_array()) {
        let place = (role["kind"] == "Role").then(|| namespace.to_owned());
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).expect("shipped rules are rules");
        for PolicyRule { api_groups, resources, resource_names, verbs, .. } in rules {
            let names = resource_names.map_or(vec![None], |names| names.into_iter().map(Some).collect());
            for group in api_groups.iter().flatten() {
                for resource in resources.iter().flatten() {
                    for verb in &verbs {
                        let right = Right { namespace: place.clone(), ..Right::everywhere(verb, group, resource) };
                        rights.extend(names.iter().map(|name| Right { name: name.clone(), ..right.clone() }));
                    }
                }
            }
        }
    }
    rights
}

/// The operator's ServiceAccount.
async fn account(subject: &CheckSubject<'_>) -> String {
    match subject.installed.deployment().await {
        Ok(Some(deployment)) => {
            let name = deployment.object.value()["spec"]["template"]["spec"]["serviceAccountName"].clone();
            name.as_str().unwrap_or("default").to_owned()
        }
        _ => OPERATOR.to_owned(),
    }
}

/// Checks the operator's rights for registrations beside those of policies, if such registrations exist.
pub(super) async fn check_aside(subject: &CheckSubject<'_>, registered: &[Piece]) -> Vec<CheckItem> {
    let mut items = Vec::new();
    for side in engine::all().filter_map(|engine| Some(engine.called()?.side_registration())) {
        let is_it = |piece: &Piece| piece.is_generated() && piece.object.name() == side.name;
        if !registered.iter().any(is_it) {
            continue;
        }
        let (namespace, account) = (subject.installed.namespace, account(subject).await);
        let answer = may_account(subject.client(), namespace, account.clone(), granted(side.rights, namespace)).await;
        items.push(told(side.title, answer, &account));
    }
    items
}

/// Checks the operator's rights: those for every server, and those for the engines in use.
pub(super) async fn check_operator(subject: &CheckSubject<'_>, engines: &[&dyn Engine]) -> Vec<CheckItem> {
    let (namespace, account) = (subject.installed.namespace, account(subject).await);
    let asked = |rights| may_account(subject.client(), namespace, account.clone(), rights);
    let mut items = vec![told("rights", asked(granted(&SHIPPED, namespace)).await, &account)];
    for engine in engines {
        let mut rights = granted(engine.requirements().rights, namespace);
        rights.extend(of_targets(subject, *engine));
        if rights.is_empty() {
            continue;
        }
        items.push(told(&format!("rights for {}", engine.name()), asked(rights).await, &account));
    }
    let deployment = subject.installed.deployment().await;
    if deployment.is_ok_and(|deployment| deployment.is_some_and(|found| writes_reports(&found.container()))) {
        items.push(told("rights for --reports", asked(granted(&REPORTS, namespace)).await, &account));
    }
    items
}

/// Whether the flag or the variable of the operator's `container` switches reports on.
fn writes_reports(container: &Value) -> bool {
    setting(container, "--reports").is_some_and(|form| !form.is_empty() && form != "off")
}

/// The rights for targets of policies that are not in the shipped files.
fn of_targets(subject: &CheckSubject<'_>, engine: &dyn Engine) -> Vec<Right> {
    let enforced = subject.policies.iter().filter(|policy| policy.is_enforced());
    let kinds: BTreeSet<_> = enforced.flat_map(|policy| policy.kinds.iter()).collect();
    let completed = |kind: &Arc<Kind>, completing: &dyn Completing| -> Vec<Right> {
        let verbs = ["list", "watch"].into_iter().chain(completing.verbs().iter().copied());
        verbs.map(|verb| Right::everywhere(verb, &kind.group, &kind.resource)).collect()
    };
    let registered = |kind: &Arc<Kind>| -> Vec<Right> {
        let named = |verb, resource| Right::everywhere(verb, registration::GROUP, resource).named(shared_name(kind));
        let resources = engine.registers().iter();
        resources.flat_map(|resource| ["update", "delete"].map(|verb| named(verb, resource))).collect()
    };
    let needed = |kind| match engine.completing() {
        Some(completing) => completed(kind, completing),
        None => registered(kind),
    };
    kinds.into_iter().flat_map(needed).collect()
}

/// Checks whether you may install, and may grant the shipped rights.
pub(super) async fn check_yours(subject: &CheckSubject<'_>, engines: &[&dyn Engine]) -> Vec<CheckItem> {
    const INSTALLED: [(&str, &str); 10] = [
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("", "namespaces"),
        ("", "serviceaccounts"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("rbac.authorization.k8s.io", "roles"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("apps", "deployments"),
        ("policy", "poddisruptionbudgets"),
        ("networking.k8s.io", "networkpolicies"),
    ];
    let client = subject.client();
    let applied = |(group, resource)| ["get", "create", "patch"].map(|verb| Right::everywhere(verb, group, resource));
    let mut rights: BTreeSet<_> = INSTALLED.into_iter().flat_map(applied).collect();
    // The shipped Deployment for old servers skips all initializers, which takes this right.
    if !subject.server().at_least(1, 14) {
        rights.insert(Right::everywhere("initialize", "apps", "deployments"));
    }
    let install = told("your rights", may_self(client, rights).await, "you");
    let files: Vec<&str> =
        SHIPPED.iter().chain(engines.iter().flat_map(|engine| engine.requirements().rights)).copied().collect();
    let escalate = Right::everywhere("escalate", "rbac.authorization.k8s.io", "clusterroles");
    let grant = match may_self(client, BTreeSet::from([escalate])).await {
        Ok(missing) if missing.missing.is_empty() => Ok(missing),
        // Without `escalate`, users can grant only rights that they have.
        _ => may_self(client, granted(&files, subject.installed.namespace)).await,
    };
    vec![install, told("your rights to grant", grant, "you")]
}

/// The number of rights asked for, and the missing ones.
struct RightsAnswer {
    asked: usize,
    missing: Vec<Right>,
}

async fn may_account(client: &Client, namespace: &str, name: String, asked: BTreeSet<Right>) -> Result<RightsAnswer> {
    let spec = SubjectAccessReviewSpec {
        user: Some(format!("system:serviceaccount:{namespace}:{name}")),
        groups: Some(vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ]),
        ..SubjectAccessReviewSpec::default()
    };
    let may = |right: Right| {
        let spec = SubjectAccessReviewSpec { resource_attributes: Some(right.attributes()), ..spec.clone() };
        let question = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        async move { rights::may_other(client, &question).await }
    };
    let count = asked.len();
    let missing = rights::missing(asked, may).await.context("cannot ask what the operator may do")?;
    Ok(RightsAnswer { asked: count, missing })
}

async fn may_self(client: &Client, asked: BTreeSet<Right>) -> Result<RightsAnswer> {
    let count = asked.len();
    let may = |right: Right| async move { rights::may(client, &right).await };
    let missing = rights::missing(asked, may).await.context("cannot ask what you may do")?;
    Ok(RightsAnswer { asked: count, missing })
}

fn told(check: &str, answer: Result<RightsAnswer>, who: &str) -> CheckItem {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return CheckItem::unknown(check, &error),
    };
    if answer.missing.is_empty() {
        return CheckItem::ok(check, format!("nothing is missing, of {}", counted(answer.asked, "right", "rights")));
    }
    let mut verbs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for right in &answer.missing {
        verbs.entry(right.object().to_string()).or_default().push(&right.verb);
    }
    let missing: Vec<_> = verbs.iter().map(|(object, verbs)| format!("{} {object}", verbs.join("/"))).collect();
    let missing = missing.join(", ");
    match who {
        "you" => CheckItem::problem(check, Code::MissingRight, format!("you may not: {missing}"))
            .with_fix("Install as an administrator (cluster-admin), or be granted what the message names."),
        account => {
            CheckItem::problem(check, Code::MissingRight, format!("the ServiceAccount `{account}` may not: {missing}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_rights_are_those_of_the_shipped_files() {
        let rights = granted(&SHIPPED, "ours");
        assert!(rights.contains(&Right::everywhere("patch", "scpol.dev", "sidecarpolicies/status")), "{rights:?}");
        let lease = |name: Option<&str>, verb: &str| Right {
            namespace: Some("ours".into()),
            group: "coordination.k8s.io".into(),
            resource: "leases".into(),
            name: name.map(str::to_owned),
            verb: verb.into(),
        };
        assert!(rights.contains(&lease(Some("scpol"), "update")) && rights.contains(&lease(None, "create")));
        assert!(!rights.contains(&lease(None, "update")), "of the one lease only");
    }

    #[test]
    fn reports_are_on_by_the_flag_or_else_by_the_variable() {
        let is_on = |args: Value, value: &str| {
            writes_reports(&json!({ "args": args, "env": [{ "name": "SCPOL_REPORTS", "value": value }] }))
        };
        assert!(is_on(json!(["run", "--reports=openreports"]), "off"));
        assert!(is_on(json!(["run", "--reports", "policyreports", "--author-check"]), "off"));
        assert!(is_on(json!(["run"]), "policyreports") && !is_on(json!(["run"]), "off"));
        assert!(!is_on(json!(["run", "--reports=off"]), "policyreports") && !writes_reports(&Value::Null));
    }
}
