//! The stored revisions of one policy.

use crate::cli::live;
use crate::cluster::revisions::{self, Knowledge};
use crate::content::{Content, Revision};
use crate::policy::PolicyRef;
use crate::rollout::{Foreign, StoredRevision};
use anyhow::{Context, Result, bail};
use kube::Client;
use kube::api::ListParams;
use std::sync::Arc;

/// The revisions of a policy, oldest first, and what only says that it is one.
#[derive(Default)]
pub(super) struct PolicyRevisions(pub(super) Vec<StoredRevision>, pub(super) Vec<Foreign>);

impl PolicyRevisions {
    /// Reads the revisions of `policy` in the operator's `namespace`. `uid` is that of the policy; none if it is deleted. Then
    /// revisions of any owner count, because they only recognize content.
    ///
    /// # Errors
    /// If they cannot be listed, with the missing verb.
    pub(super) async fn read(client: &Client, namespace: &str, policy: &str, uid: Option<&str>) -> Result<Self> {
        let api = live::api(client, &revisions::resource(), Some(namespace));
        let own = ListParams::default().labels(&format!("{}={policy}", revisions::selector()));
        let listed = live::list(&api, own).await;
        let listed = listed.with_context(|| format!("cannot list controllerrevisions in namespace `{namespace}`"))?;
        let parsed = listed.iter().filter_map(|object| StoredRevision::parse(&object.value()));
        let is_owned = |stored: &StoredRevision| uid.is_none_or(|uid| stored.is_of(uid));
        let all = revisions::Revisions::of(Knowledge::Read, parsed, is_owned);
        Ok(Self(all.of_policy(&PolicyRef::of_cluster(policy)).to_vec(), all.foreign().to_vec()))
    }

    /// The revision `number` of `policy`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn numbered(&self, policy: &str, number: i64) -> Result<&StoredRevision> {
        match self.0.iter().find(|stored| stored.revision.number == number) {
            Some(found) => Ok(found),
            None => {
                bail!("there is no revision {number}; `scpol rollout history {policy}` lists them, and what is ignored")
            }
        }
    }

    /// The revision before the content of the spec, which has this `hash`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn before(&self, hash: &str) -> Result<&StoredRevision> {
        if self.0.is_empty() {
            bail!("no revision is stored; the operator keeps them with the rights of `config/rbac/rollout`");
        }
        let before = self.0.iter().rfind(|stored| stored.revision.hash != hash);
        before
            .context("no earlier revision is stored: the policy has had one content since the operator keeps revisions")
    }
}

/// The revisions by which the content of workloads is recognized.
#[derive(Default)]
pub(super) struct Contents(Vec<Arc<Revision>>);

impl Contents {
    /// The `stored` revisions, then `others` of `policy`, such as the content of its spec, which the operator may not have
    /// stored yet.
    pub(super) fn new(policy: &str, stored: &PolicyRevisions, others: impl IntoIterator<Item = Content>) -> Self {
        let mut all: Vec<Arc<Revision>> = stored.0.iter().map(|stored| stored.revision.clone()).collect();
        for content in others {
            let number = all.last().map_or(0, |last| last.number) + 1;
            let hash = content.hash();
            if all.iter().all(|known| known.hash != hash) {
                all.push(Arc::new(Revision::new(policy, number, content)));
            }
        }
        Self(all)
    }

    /// All of them, the latest first.
    pub(super) fn latest_first(&self) -> impl Iterator<Item = &Revision> {
        self.0.iter().rev().map(AsRef::as_ref)
    }

    /// The revisions whose marker has the hash `hash` of a template, the latest first. There are several if only positions
    /// differ.
    pub(super) fn all_by_marker(&self, hash: &str) -> impl Iterator<Item = &Revision> {
        self.latest_first().filter(move |revision| revision.template.hash == hash)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::POLICY_LABEL;
    use crate::rollout::Record;
    use crate::rollout::stored;
    use serde_json::{Value, json};

    /// The content of a policy that adds a container with this `image`.
    pub(crate) fn content(image: &str) -> Content {
        serde_json::from_value(json!({ "template": { "containers": [{ "name": "envoy", "image": image }] } })).unwrap()
    }

    /// A revision as the operator stores it. `complete` is the second at which its rollout was complete.
    pub(crate) fn stored(number: i64, content: &Content, complete: Option<i64>) -> StoredRevision {
        let complete = complete.map(|second| jiff::Timestamp::from_second(second).unwrap());
        let mut annotations = Record { complete, ..Record::default() }.annotations();
        annotations.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let object: Value = json!({
            "metadata": { "name": format!("envoy-{}", content.hash()), "labels": { POLICY_LABEL: "envoy" }, "annotations": annotations },
            "data": content,
            "revision": number,
        });
        StoredRevision::parse(&object).unwrap().unwrap()
    }

    /// The revisions of a policy, oldest first.
    pub(crate) fn of(stored: impl IntoIterator<Item = StoredRevision>) -> PolicyRevisions {
        PolicyRevisions(stored.into_iter().collect(), Vec::new())
    }

    #[test]
    fn revisions_are_found_by_number_hash_and_marker() {
        let [one, two, three] = ["envoy:1", "envoy:2", "envoy:3"].map(content);
        let revisions = of([stored(1, &one, Some(9)), stored(2, &two, Some(5)), stored(3, &three, None)]);
        assert_eq!(
            stored::current(&revisions.0).unwrap().revision.number,
            1,
            "the last that was complete, not the last number"
        );
        assert_eq!(revisions.numbered("envoy", 2).unwrap().revision.content, two);
        assert!(revisions.numbered("envoy", 4).unwrap_err().to_string().contains("scpol rollout history envoy"));
        assert_eq!(revisions.before(&three.hash()).unwrap().revision.number, 2);
        assert_eq!(revisions.before("not stored yet").unwrap().revision.number, 3);
        assert!(of([stored(1, &one, None)]).before(&one.hash()).is_err());
        let contents = Contents::new("envoy", &revisions, [one.clone(), content("envoy:4")]);
        let marker = |image: &str| Revision::new("envoy", 0, content(image)).template.hash;
        let number = |image: &str| contents.all_by_marker(&marker(image)).next().map(|revision| revision.number);
        assert_eq!(["envoy:1", "envoy:4", "envoy:5"].map(number), [Some(1), Some(4), None]);
    }
}
