//! The stored policies: how commands read them, what their status says, and how users name them.

use super::Cluster;
use super::live;
use super::output::remark;
use crate::api::condition::condition_in;
use crate::api::rules::Violation;
use crate::api::trust::Trust;
use crate::api::v1alpha1::SidecarPolicyStatus;
use crate::cluster::answer::Meaning;
use crate::cluster::api::Api;
use crate::cluster::client::{call, why};
use crate::cluster::object::Object;
use crate::cluster::revisions::{self, Knowledge, Revisions};
use crate::cluster::{policies, watch};
use crate::policy::{self, Policies, Policy, PolicyRef, Site};
use crate::rollout::StoredRevision;
use crate::rollout::stored::Recognition;
use crate::timing::Timing;
use anyhow::{Context, Result};
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

/// A stored policy that is invalid.
pub(super) struct InvalidPolicy {
    pub(super) name: String,
    /// Whom users may ask; empty if unknown.
    pub(super) contact: String,
    pub(super) violations: Vec<Violation>,
}

/// The policies that a command uses.
#[derive(Default)]
pub(super) struct KnownPolicies {
    pub(super) policies: Policies,
    /// The invalid policies.
    pub(super) invalid: Vec<InvalidPolicy>,
    /// The reasons why valid policies are not in effect, by policy name.
    pub(super) idle: BTreeMap<String, String>,
}

/// The stored policies of the cluster.
///
/// # Errors
/// If they cannot be read. The message names the flag `instead`, which takes policies from files.
pub(super) async fn in_cluster(cluster: &Cluster, site: &Site, instead: &str) -> Result<KnownPolicies> {
    let unread = || format!("no {instead} is given, and the policies of the cluster cannot be read");
    let client = live::connect(cluster).await.with_context(unread)?;
    let stored = stored_if_defined(&client).await.with_context(unread)?;
    let stored = stored.with_context(|| {
        format!("the server has no SidecarPolicies: install the operator, or give policies with {instead}")
    })?;
    Ok(recognizing(&client, known(&stored, site), site).await)
}

/// The same policies, which recognize the contents of their stored revisions in workloads, as far as these may be read.
pub(super) async fn recognizing(client: &Client, known: KnownPolicies, site: &Site) -> KnownPolicies {
    let api = live::api(client, &revisions::resource(), Some(&site.operator_namespace));
    let listed = live::list(&api, ListParams::default().labels(&revisions::selector())).await;
    let parsed = listed.iter().flatten().filter_map(|object| StoredRevision::parse(&object.value()));
    let uid =
        |of: &StoredRevision| known.policies.get(&PolicyRef::of_cluster(&of.policy)).map(|policy| &policy.meta.uid);
    let is_owned = |of: &StoredRevision| uid(of).is_some_and(|uid| of.is_of(uid));
    let stored = Revisions::of(Knowledge::Read, parsed, is_owned);
    let mut recognition = Recognition::default();
    let policies = known.policies.iter().map(|policy| recognition.of(policy, stored.of_policy(&policy.reference())));
    let policies = Policies::new(policies.collect::<Vec<_>>());
    KnownPolicies { policies, ..known }
}

/// The stored policies as objects.
///
/// # Errors
/// If they cannot be listed, or the server has no CustomResourceDefinition for them.
pub(super) async fn stored(client: &Client) -> Result<Vec<Object>> {
    stored_if_defined(client).await?.context("the server has no SidecarPolicies: install the operator first")
}

/// The stored policies; empty if the server has no CustomResourceDefinition for them.
pub(super) async fn stored_or_none(client: &Client) -> Result<Vec<Object>> {
    Ok(stored_if_defined(client).await?.unwrap_or_default())
}

/// The API of SidecarPolicies.
pub(super) fn api(client: &Client) -> Api<Object> {
    Api::all_with(client.clone(), &policies::resource())
}

async fn stored_if_defined(client: &Client) -> Result<Option<Vec<Object>>> {
    match live::list(&api(client), ListParams::default()).await {
        Ok(listed) => Ok(Some(listed)),
        Err(error) if error.means() == Meaning::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot list the policies"),
    }
}

/// The `stored` policies, parsed.
pub(super) fn known(stored: &[Object], site: &Site) -> KnownPolicies {
    let (mut valid, mut known) = (Vec::new(), KnownPolicies::default());
    for object in stored {
        let value = object.value();
        match parse(&value, site) {
            Ok(policy) => {
                let idle = policy.is_enforced().then(|| idle(&value["status"])).flatten();
                known.idle.extend(idle.map(|why| (policy.name.clone(), why)));
                valid.push(Arc::new(policy));
            }
            Err(violations) => {
                let contact = policy::contact(&value["metadata"]);
                known.invalid.push(InvalidPolicy { name: object.name().to_owned(), contact, violations });
            }
        }
    }
    KnownPolicies { policies: Policies::new(valid), ..known }
}

/// The stored policy `object`. The operator decides what policies are trusted with. Hence a policy that it has accepted
/// in its current form is valid, whatever flags this command has.
///
/// # Errors
/// Every fault of the policy's spec.
pub(super) fn parse(object: &Value, site: &Site) -> Result<Policy, Vec<Violation>> {
    Policy::parse(object, site).or_else(|violations| {
        let trusting = Site { trust: Trust::unbounded(), ..site.clone() };
        if is_accepted(object) { Policy::parse(object, &trusting).map_err(|_| violations) } else { Err(violations) }
    })
}

/// Whether the operator has accepted the policy `object` in its current form.
fn is_accepted(object: &Value) -> bool {
    let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
    status["observedGeneration"] == *generation
        && condition_in(status, "Accepted").is_some_and(|accepted| accepted["status"] == "True")
}

/// The reason why a policy with this `status` is not in effect although it should be.
fn idle(status: &Value) -> Option<String> {
    match condition_in(status, "Programmed") {
        None => Some("no operator has seen it; is one running?".to_owned()),
        Some(programmed) if programmed["status"] == "True" => None,
        Some(programmed) => Some(programmed["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// The stored policy `name`.
///
/// # Errors
/// If it cannot be read, or there is none. The message then has the name that was probably meant.
pub(super) async fn find(client: &Client, name: &str) -> Result<Object> {
    let found = call(api(client).get_opt(name)).await;
    if let Some(found) = found.with_context(|| format!("cannot get the SidecarPolicy `{name}`"))? {
        return Ok(found);
    }
    Err(unknown(name, &stored(client).await?))
}

/// The events of all policies, or of the policy `name`. A watch is repeated for ever, and its errors are too: each is remarked once,
/// until another one or an event comes. `what` is watched, in their words.
pub(super) fn watched(client: &Client, name: Option<&str>, what: &str) -> impl Stream<Item = Event<Object>> {
    let settings = match name {
        Some(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
        None => watcher::Config::default(),
    };
    let mut trouble = String::new();
    watch::watched(&api(client), &settings, &Timing::documented().watch).filter_map(move |event| {
        let news = event.map_err(|error| why(&error));
        match &news {
            Ok(Event::Init) => {}
            Ok(_) => trouble.clear(),
            Err(reason) if *reason == trouble => {}
            Err(reason) => {
                remark(format_args!("warning: cannot watch {what}: {reason}; trying again"));
                trouble.clone_from(reason);
            }
        }
        ready(news.ok())
    })
}

/// The name of a policy, as `kubectl get -o name` prints it.
pub(super) fn full_name(policy: &str) -> String {
    format!("sidecarpolicy.scpol.dev/{policy}")
}

/// The name of a policy that is given as itself or, as in `kubectl`, after its type.
///
/// # Errors
/// If the type is another one.
pub(super) fn short_name(given: &str) -> Result<String, String> {
    let Some((kind, name)) = given.split_once('/') else { return Ok(given.to_owned()) };
    let is_policy = ["sidecarpolicies", "sidecarpolicy", "scpol"].iter().any(|word| {
        let kind = kind.to_ascii_lowercase();
        let rest = kind.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest == ".scpol.dev")
    });
    if is_policy && !name.is_empty() {
        return Ok(name.to_owned());
    }
    Err(format!("is no SidecarPolicy; write its name, or `{}`", full_name("NAME")))
}

/// The stored status; empty if it is unreadable.
pub(super) fn status(policy: &Object) -> SidecarPolicyStatus {
    serde_json::from_value(policy.value()["status"].clone()).unwrap_or_default()
}

/// The condition of type `type_`.
pub(super) fn condition<'a>(status: &'a SidecarPolicyStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the operator's last status says that the policy is in effect.
pub(super) fn is_programmed(status: &SidecarPolicyStatus) -> bool {
    condition(status, "Programmed").is_some_and(|programmed| programmed.status == "True")
}

/// The error if there is no policy `name` among those `stored`.
pub(super) fn unknown(name: &str, stored: &[Object]) -> anyhow::Error {
    let hint = live::meant(name, stored.iter().map(Object::name))
        .unwrap_or("`scpol status` lists those that there are".to_owned());
    anyhow::anyhow!("there is no SidecarPolicy `{name}`; {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_named_with_and_without_its_type() {
        for given in ["a", "scpol/a", "sidecarpolicy/a", "sidecarpolicies/a", "sidecarpolicy.scpol.dev/a"] {
            assert_eq!(short_name(given).as_deref(), Ok("a"), "{given}");
        }
        for given in ["deployment/a", "scpol/", "sidecarpolicyx/a", "/a"] {
            assert!(short_name(given).is_err(), "{given}");
        }
    }
}
