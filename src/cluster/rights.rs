//! The rights that we and others have: asked of the server, or seen by the refusals of a watch.

use super::answer::CallError;
use super::api::Api;
use super::client::call;
use crate::timing::CALL_LIMIT;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
};
use kube::Client;
use kube::api::PostParams;
use std::time::{Duration, Instant};

/// The number of questions at the same time.
const AT_ONCE: usize = 8;

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// None for all namespaces, and for resources without a namespace.
    pub namespace: Option<String>,
    pub group: String,
    /// With the subresource after a slash.
    pub resource: String,
    /// None for every object.
    pub name: Option<String>,
    pub verb: String,
}

impl Right {
    /// `verb` on all objects of the resource.
    pub fn everywhere(verb: &str, group: &str, resource: &str) -> Self {
        let (verb, group, resource) = (verb.to_owned(), group.to_owned(), resource.to_owned());
        Self { namespace: None, group, resource, name: None, verb }
    }

    /// The same in one namespace.
    pub fn within(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// The same on one object.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// The resource and its subresource.
    fn parts(&self) -> (&str, Option<&str>) {
        self.resource.split_once('/').map_or((&*self.resource, None), |(resource, sub)| (resource, Some(sub)))
    }

    /// The right in a question for the server.
    pub fn attributes(&self) -> ResourceAttributes {
        let (resource, subresource) = self.parts();
        ResourceAttributes {
            namespace: self.namespace.clone(),
            group: Some(self.group.clone()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(str::to_owned),
            name: self.name.clone(),
            verb: Some(self.verb.clone()),
            ..ResourceAttributes::default()
        }
    }

    /// The object of the right in messages.
    pub fn object(&self) -> String {
        let (resource, subresource) = self.parts();
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        let subresource = subresource.map(|subresource| format!("/{subresource}")).unwrap_or_default();
        let name = self.name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default();
        let namespace = self.namespace.as_ref().map(|namespace| format!(" in `{namespace}`")).unwrap_or_default();
        format!("{resource}{group}{subresource}{name}{namespace}")
    }
}

/// Whether we have the `right`.
///
/// # Errors
/// If the server does not answer.
pub async fn may(client: &Client, right: &Right) -> Result<bool, CallError> {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(right.attributes()), ..Default::default() };
    let question = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = call(Api::all(client.clone()).create(&PostParams::default(), &question)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Whether the revisions in `namespace` may be listed and watched. Without an answer, the attempt will tell.
pub async fn may_read_revisions(client: &Client, namespace: &str) -> bool {
    for verb in ["list", "watch"] {
        let right = Right::everywhere(verb, "apps", "controllerrevisions").within(namespace);
        if !may(client, &right).await.unwrap_or(true) {
            return false;
        }
    }
    true
}

/// Whether the user that `question` names has the right in it.
///
/// # Errors
/// If the server does not answer.
pub async fn may_other(client: &Client, question: &SubjectAccessReview) -> Result<bool, CallError> {
    let answer = call(Api::all(client.clone()).create(&PostParams::default(), question)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Those of `rights` for which `may` answers no, in their order. Asks a few at a time.
///
/// # Errors
/// The first of `may`.
pub async fn missing<F: Future<Output = Result<bool, CallError>>>(
    rights: impl IntoIterator<Item = Right>,
    may: impl Fn(Right) -> F,
) -> Result<Vec<Right>, CallError> {
    let questions = rights.into_iter().map(|right| {
        let answer = may(right.clone());
        async move { Ok::<_, CallError>((!answer.await?).then_some(right)) }
    });
    let missing: Vec<_> = stream::iter(questions).buffered(AT_ONCE).try_collect().await?;
    Ok(missing.into_iter().flatten().collect())
}

/// The refusals of a watch. A watch that goes on after one shows no event until an object changes, and kube does not list
/// again. So only the time between refusals tells that they have ended.
#[derive(Default)]
pub struct WatchRefusals {
    /// The first and the last one without a longer pause between two.
    streak: Option<(Instant, Instant)>,
    /// The last failure of another kind, which tells nothing of rights.
    failed: Option<Instant>,
}

impl WatchRefusals {
    /// Records a refusal. Returns whether a right is missing: an API server that has just started refuses for up to `limit`,
    /// because it has not read its roles.
    pub fn note(&mut self, now: Instant, limit: Duration) -> bool {
        let lasting = self.streak.filter(|(_, last)| now.saturating_duration_since(*last) <= limit);
        let since = lasting.map_or(now, |(since, _)| since);
        self.streak = Some((since, now));
        now.duration_since(since) >= limit
    }

    /// Records a failure that is no refusal, such as that of a server that is away.
    pub fn note_failure(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// Whether the last failure is longer ago than `limit` and a call. A watch that is still refused tries again sooner.
    pub fn have_ended(&self, now: Instant, limit: Duration) -> bool {
        let last = self.streak.map(|(_, last)| self.failed.map_or(last, |failed| last.max(failed)));
        last.is_none_or(|last| now.saturating_duration_since(last) > limit + CALL_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_missing_once_a_watch_is_refused_again_and_again() {
        let (mut refusals, begin, limit) = (WatchRefusals::default(), Instant::now(), Duration::from_secs(10));
        let at = |second| begin + Duration::from_secs(second);
        let mut note = |second| refusals.note(at(second), limit);
        assert_eq!([0, 3, 6, 9].map(&mut note), [false; 4], "the server has just started");
        assert_eq!([12, 15].map(&mut note), [true; 2]);
        assert_eq!([60, 63].map(&mut note), [false; 2], "it was allowed in between");
        assert!(note(70));
        let ended = |refusals: &WatchRefusals, second| refusals.have_ended(at(second), limit);
        assert_eq!([71, 90, 91].map(|second| ended(&refusals, second)), [false, false, true]);
        // A server that is away tells nothing of rights, and begins no streak.
        refusals.note_failure(at(85));
        assert_eq!([91, 105, 106].map(|second| ended(&refusals, second)), [false, false, true]);
        assert!(!refusals.note(at(86), limit));
    }

    #[test]
    fn a_right_is_shown_with_its_subresource_its_name_and_its_namespace() {
        let right = Right::everywhere("patch", "scpol.dev", "sidecarpolicies/status");
        assert_eq!(right.object().to_string(), "sidecarpolicies.scpol.dev/status");
        let attributes = right.attributes();
        assert_eq!(
            (attributes.resource.as_deref(), attributes.subresource.as_deref()),
            (Some("sidecarpolicies"), Some("status"))
        );
        let lease = Right::everywhere("update", "coordination.k8s.io", "leases").named("scpol").within("ours");
        assert_eq!(lease.object().to_string(), "leases.coordination.k8s.io `scpol` in `ours`");
        assert_eq!(Right::everywhere("get", "", "pods").object().to_string(), "pods");
    }
}
