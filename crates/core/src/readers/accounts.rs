//! What the admission plugin ServiceAccount does: it gives pull secrets to pods that have none, and refuses Secrets that
//! the account does not list.

use super::case::{Case, Told};
use super::facts::{Fact, account};
use crate::api::code::Code;
use crate::inject::Conflict;
use crate::inject::value::{at, objects, text};
use serde_json::{Map, Value};

const PULL_SECRETS: &str = "imagePullSecrets";
/// The annotation of a ServiceAccount whose pods use only the Secrets that it lists.
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// What the server reads as true.
const TRUE: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];

fn names<'a>(object: &'a Map<String, Value>, list: &'a str) -> Vec<&'a str> {
    objects(object, &[list]).map(|item| text(item, "name")).filter(|name| !name.is_empty()).collect()
}

/// Pull secrets of the ServiceAccount that the pods lose, because they have some of their own now.
pub(super) fn lost_pull_secrets(case: &Case<'_>) -> Vec<Told> {
    let (Some(bare), Some(after)) = (case.bare.pod_spec(), case.after.pod_spec()) else { return Vec::new() };
    // The plugin has seen a pod before any engine does.
    let is_safe = case.after.kind.is_pod() || !names(bare, PULL_SECRETS).is_empty();
    if is_safe || case.template.spec.image_pull_secrets.is_empty() {
        return Vec::new();
    }
    let account = account(bare);
    let tell = |message: String| vec![Told::new(Code::PullSecretsLost, PULL_SECRETS, message)];
    match case.facts.get(Fact::ServiceAccount, case.namespace(), account).and_then(Value::as_object) {
        Some(known) => {
            let kept = names(after, PULL_SECRETS);
            let lost: Vec<_> = names(known, PULL_SECRETS).into_iter().filter(|name| !kept.contains(name)).collect();
            if lost.is_empty() {
                return Vec::new();
            }
            tell(format!(
                "its pods lose `{}` of ServiceAccount `{account}`, which go only to pods without `imagePullSecrets`; list \
                 them in the workload",
                lost.join("`, `")
            ))
        }
        None => tell(format!(
            "its pods lose the pull secrets of ServiceAccount `{account}`, if it has any: they go only to pods without \
             `imagePullSecrets`; list them in the workload"
        )),
    }
}

/// A Secret of the template that the ServiceAccount does not let its pods use.
pub(super) fn forbidden_secrets(case: &Case<'_>) -> Option<(String, Conflict)> {
    let name = account(case.bare.pod_spec()?);
    let account = case.facts.get(Fact::ServiceAccount, case.namespace(), name)?.as_object()?;
    let enforce = at(account, &["metadata", "annotations", ENFORCE])?.as_str()?;
    if !TRUE.contains(&enforce) {
        return None;
    }
    let conflict = |field: String, secret: &str, list: &str| {
        let message = format!(
            "`{field}` of the template names Secret `{secret}`, which is not in `{list}` of ServiceAccount `{name}`: the server \
             refuses such pods"
        );
        Some((field, Conflict { code: Code::AdmissionDenied, message }))
    };
    let pullable = names(account, PULL_SECRETS);
    // The pods of a Deployment with pull secrets of their own are judged by each of them.
    for (at, item) in case.template.spec.image_pull_secrets.iter().enumerate() {
        if !pullable.contains(&text(item, "name")) {
            return conflict(format!("{PULL_SECRETS}[{at}]"), text(item, "name"), PULL_SECRETS);
        }
    }
    let mountable = names(account, "secrets");
    let secrets = super::keys::references(&case.written.spec).into_iter();
    let mut secrets = secrets.filter(|it| it.fact == Fact::Secret && it.is_judged);
    let forbidden = secrets.find(|it| !mountable.contains(&it.name.as_str()))?;
    conflict(forbidden.field, &forbidden.name, "secrets")
}
