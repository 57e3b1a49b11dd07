//! Caches rendered registrations, one for each form of its policies. Pure.

use crate::engine::{self, EngineName, Surroundings, Unavailable};
use crate::policy::Policy;
use crate::workload::Kind;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// One form in which policies can be registered.
pub(super) struct Draft {
    pub(super) objects: Vec<Value>,
    /// Equal if and only if the objects are equal.
    pub(super) print: String,
}

impl Draft {
    pub(super) fn new(objects: Vec<Value>) -> Self {
        let print = print(&objects);
        Self { objects, print }
    }
}

/// A hash of `objects`, equal for equal registrations only.
pub(super) fn print(objects: &[Value]) -> String {
    crate::digest::short(serde_json::to_string(objects).expect("values are JSON"))
}

/// The forms in which policies can be registered, the best first, or why none exists.
pub(super) type Drafts = Result<Arc<Vec<Draft>>, Unavailable>;

/// Policies on a kind by an engine. Each policy is identified by name, UID and spec hash.
type Group = (EngineName, Arc<Kind>, Vec<(String, String, String)>);

enum Entry {
    /// The result without the objects, because the objects were not requested.
    Verdict(Result<(), Unavailable>),
    Whole(Drafts),
}

/// The cache. It is cleared when an input changes, and it drops entries that a whole plan did not use.
#[derive(Default)]
pub(super) struct Rendered {
    surroundings: Option<Surroundings>,
    entries: HashMap<Group, Entry>,
}

impl Rendered {
    /// Begins a plan in these surroundings. The cache is used if they have not changed.
    pub(super) fn begin(self, surroundings: Surroundings) -> Rendering {
        let is_same = self.surroundings.is_some_and(|known| known.is_same(&surroundings));
        let entries = if is_same { self.entries } else { HashMap::new() };
        Rendering { surroundings, entries: RefCell::new(entries), used: RefCell::default() }
    }
}

/// Renders each group of policies once.
pub(super) struct Rendering {
    pub(super) surroundings: Surroundings,
    entries: RefCell<HashMap<Group, Entry>>,
    /// The groups that were requested; true if with their objects.
    used: RefCell<HashMap<Group, bool>>,
}

impl Rendering {
    /// Ends a plan: drops the entries that it did not request.
    pub(super) fn end(self) -> Rendered {
        let (used, mut entries) = (self.used.into_inner(), self.entries.into_inner());
        entries.retain(|group, entry| {
            let Some(is_whole) = used.get(group) else { return false };
            if let (Entry::Whole(drafts), false) = (&*entry, is_whole) {
                *entry = Entry::Verdict(drafts.as_ref().map(drop).map_err(Clone::clone));
            }
            true
        });
        Rendered { surroundings: Some(self.surroundings), entries }
    }

    /// Whether `engine` can register `policies` on `kind`.
    pub(super) fn check(
        &self,
        engine: EngineName,
        kind: &Arc<Kind>,
        policies: &[Arc<Policy>],
    ) -> Result<(), Unavailable> {
        let group = group(engine, kind, policies);
        self.used.borrow_mut().entry(group.clone()).or_default();
        if let Some(Entry::Verdict(verdict)) = self.entries.borrow().get(&group) {
            return verdict.clone();
        }
        self.whole(group, policies).map(drop)
    }

    /// The forms in which `engine` can register `policies` on `kind`.
    pub(super) fn drafts(&self, engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]) -> Drafts {
        let group = group(engine, kind, policies);
        self.used.borrow_mut().insert(group.clone(), true);
        self.whole(group, policies)
    }

    fn whole(&self, group: Group, policies: &[Arc<Policy>]) -> Drafts {
        if let Some(Entry::Whole(drafts)) = self.entries.borrow().get(&group) {
            return drafts.clone();
        }
        let drafts = engine::drafts(group.0, &group.1, policies, &self.surroundings)
            .map(|drafts| Arc::new(drafts.into_iter().map(Draft::new).collect()));
        self.entries.borrow_mut().insert(group, Entry::Whole(drafts.clone()));
        drafts
    }
}

fn group(engine: EngineName, kind: &Arc<Kind>, policies: &[Arc<Policy>]) -> Group {
    let form = |policy: &Arc<Policy>| (policy.name.clone(), policy.meta.uid.clone(), policy.registered_form());
    (engine, kind.clone(), policies.iter().map(form).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::code::Code;
    use crate::capabilities::Capabilities;
    use crate::policy::Site;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn around(cluster: &Arc<Capabilities>, site: &Arc<Site>) -> Surroundings {
        let reach = Err(Unavailable::new(Code::Reconciling, "not yet"));
        Surroundings { cluster: cluster.clone(), site: site.clone(), reach, unreadable: BTreeSet::new() }
    }

    fn policy(image: &str) -> Arc<Policy> {
        let template = json!({ "containers": [{ "name": "a", "image": image }] });
        let object = json!({ "metadata": { "name": "p", "uid": "1" }, "spec": { "engine": "MutatingAdmissionPolicy", "template": template } });
        Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap())
    }

    #[test]
    fn each_form_of_a_policy_is_rendered_once_and_forgotten_when_no_plan_needs_it() {
        let group = "admissionregistration.k8s.io";
        let served = [
            (group, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
            (group, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
            (group, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
            (group, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        ];
        let (cluster, site) = (Arc::new(Capabilities::of(36, &served)), Arc::new(Site::new("scpol-system", [], [])));
        let engine = engine::all().find(|engine| !engine.is_per_policy() && !engine.needs_operator());
        let engine = engine.expect("an engine in the API server").name();
        let kind = Kind::find("apps", "deployments").unwrap();
        let drafts = |rendering: &Rendering, image: &str| rendering.drafts(engine, kind, &[policy(image)]).unwrap();
        let first = Rendered::default().begin(around(&cluster, &site));
        let (drawn, again) = (drafts(&first, "i:1"), drafts(&first, "i:1"));
        assert!(Arc::ptr_eq(&drawn, &again));
        // The next plan still has the form, and the edited form beside it.
        let second = first.end().begin(around(&cluster, &site));
        assert!(Arc::ptr_eq(&drawn, &drafts(&second, "i:1")));
        assert_ne!(drawn[0].print, drafts(&second, "i:2")[0].print);
        // A plan that does not request a form drops it. Other surroundings drop it, too.
        let third = second.end().begin(around(&cluster, &site));
        drafts(&third, "i:2");
        let fourth = third.end().begin(around(&cluster, &site));
        assert!(!Arc::ptr_eq(&drawn, &drafts(&fourth, "i:1")));
        let (renewed, kept) = (Arc::new(Capabilities::clone(&cluster)), drafts(&fourth, "i:1"));
        let fifth = fourth.end().begin(around(&renewed, &site));
        assert!(!Arc::ptr_eq(&kept, &drafts(&fifth, "i:1")));
    }

    #[test]
    fn where_only_the_verdict_was_asked_for_the_objects_are_not_kept() {
        let (cluster, site) = (Arc::new(Capabilities::of(36, &[])), Arc::new(Site::new("scpol-system", [], [])));
        let engine = engine::all().find(|engine| engine.needs_operator()).expect("an engine that is asked").name();
        let kind = Kind::find("", "pods").unwrap();
        let rendering = Rendered::default().begin(around(&cluster, &site));
        let reason = rendering.check(engine, kind, &[policy("i:1")]).unwrap_err();
        assert_eq!(reason.code, Code::Reconciling, "nobody answers yet");
        let rendered = rendering.end();
        assert!(rendered.entries.values().all(|entry| matches!(entry, Entry::Verdict(Err(_)))));
        assert_eq!(rendered.begin(around(&cluster, &site)).check(engine, kind, &[policy("i:1")]), Err(reason));
    }
}
