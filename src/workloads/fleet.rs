//! The workloads that policies with `updateStrategy: RollingUpdate` match, as the leader last saw them. Pure.
//!
//! Nothing is kept for other policies. A member takes some 300 bytes.

use crate::policy::PolicyRef;
use crate::rollout::{Member, Members, Owners};
use crate::workload::{Kind, ObjectRef};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What workloads are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The edition of the policy.
    pub policy: u64,
    /// That of the Namespaces, if the policy reads them.
    pub namespaces: Option<u64>,
}

/// The basis of each policy.
pub type Bases = BTreeMap<PolicyRef, Basis>;

/// What is known of the workloads of one policy.
#[derive(Default)]
struct OfPolicy {
    members: Members,
    /// The pods in its namespaces that it does not match, though another one of their controller may be a member. Each with that
    /// controller.
    beside: HashMap<ObjectRef, Arc<str>>,
    /// By kind: with what all workloads have been compared.
    counted: HashMap<Arc<Kind>, Basis>,
}

/// The members of each policy.
#[derive(Default)]
pub struct Fleet {
    policies: HashMap<PolicyRef, OfPolicy>,
    /// Whether a member has changed since [`Self::take_changed`].
    has_changed: bool,
}

impl Fleet {
    fn of(&mut self, policy: &PolicyRef) -> &mut OfPolicy {
        self.policies.entry(policy.clone()).or_default()
    }

    /// Records that `policy` matches `object`; none if it does not, or no longer.
    pub fn see(&mut self, policy: &PolicyRef, object: &ObjectRef, member: Option<Member>) {
        let Some(member) = member else {
            self.has_changed |= self.policies.get_mut(policy).is_some_and(|of| of.members.remove(object).is_some());
            return;
        };
        let members = &mut self.of(policy).members;
        // A list may be older than the last event.
        let is_old = |known: &Member| known.uid == member.uid && known.version > member.version;
        if !members.get(object).is_some_and(|known| is_old(known) || *known == member) {
            members.insert(object.clone(), member);
            self.has_changed = true;
        }
    }

    /// Records that the pod `object` is no member of `policy`, and has that controller; none if it is one, or has none.
    pub fn see_beside(&mut self, policy: &PolicyRef, object: &ObjectRef, controller: Option<Arc<str>>) {
        match controller {
            Some(controller) => drop(self.of(policy).beside.insert(object.clone(), controller)),
            None => drop(self.policies.get_mut(policy).and_then(|of| of.beside.remove(object))),
        }
    }

    /// How many pods each of `owners` has that are no members of `policy`. A user can write any controller into a pod: one of another
    /// namespace does not count.
    pub fn beside(&self, policy: &PolicyRef, owners: &Owners) -> HashMap<Arc<str>, usize> {
        let mut counts = HashMap::new();
        for (object, controller) in self.policies.get(policy).into_iter().flat_map(|of| &of.beside) {
            if owners.get(controller).is_some_and(|owner| owner.namespace == object.namespace) {
                *counts.entry(controller.clone()).or_default() += 1;
            }
        }
        counts
    }

    /// Forgets a deleted workload.
    pub fn gone(&mut self, object: &ObjectRef) {
        for of in self.policies.values_mut() {
            of.beside.remove(object);
            self.has_changed |= of.members.remove(object).is_some();
        }
    }

    /// Forgets the workloads for which `keeps` is false, by policy. Returns whether there was a member among them.
    fn retain_all(&mut self, keeps: impl Fn(&PolicyRef, &ObjectRef) -> bool) -> bool {
        let mut has_changed = false;
        for (policy, of) in &mut self.policies {
            of.beside.retain(|object, _| keeps(policy, object));
            let before = of.members.len();
            of.members.retain(|object, _| keeps(policy, object));
            has_changed |= of.members.len() != before;
        }
        has_changed
    }

    /// Forgets the workloads of `kind` that do not `exist`.
    pub fn retain(&mut self, kind: &Kind, exists: impl Fn(&ObjectRef) -> bool) {
        self.has_changed |= self.retain_all(|_, object| *object.kind != *kind || exists(object));
    }

    /// Records that all workloads of `kind` have been compared with the policies whose basis was the same at the `begin` and is
    /// so `now`.
    pub fn counted(&mut self, kind: &Arc<Kind>, begin: &Bases, now: &Bases) {
        self.policies.retain(|policy, of| {
            let is_known = now.contains_key(policy);
            if !is_known {
                of.counted.clear();
            }
            is_known || !of.members.is_empty() || !of.beside.is_empty()
        });
        for (policy, basis) in begin.iter().filter(|(policy, basis)| now.get(*policy) == Some(basis)) {
            self.of(policy).counted.insert(kind.clone(), *basis);
            self.has_changed = true;
        }
    }

    /// Forgets a kind that is not watched any more.
    pub fn forget(&mut self, kind: &Arc<Kind>) {
        self.retain(kind, |_| false);
        for of in self.policies.values_mut() {
            of.counted.remove(kind);
        }
    }

    /// The members of `policy`; none while not all workloads of `kinds` have been compared with this `basis` of it.
    pub fn members<'a>(
        &self,
        policy: &PolicyRef,
        basis: Basis,
        mut kinds: impl Iterator<Item = &'a Arc<Kind>>,
    ) -> Option<&Members> {
        let of = self.policies.get(policy);
        let is_counted = |kind: &Arc<Kind>| of.and_then(|of| of.counted.get(kind)) == Some(&basis);
        kinds.all(is_counted).then(|| self.known(policy))
    }

    /// The members of `policy` that are known, whether or not that is all of them.
    pub fn known(&self, policy: &PolicyRef) -> &Members {
        self.policies.get(policy).map_or(&NOBODY, |of| &of.members)
    }

    /// Forgets the policies that no longer roll, and the kinds that they no longer target.
    pub fn retain_policies(&mut self, rolls: impl Fn(&PolicyRef, &Arc<Kind>) -> bool) {
        self.retain_all(|policy, object| rolls(policy, &object.kind));
        self.policies.retain(|_, of| !(of.members.is_empty() && of.beside.is_empty() && of.counted.is_empty()));
    }

    /// Whether a member has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}

static NOBODY: Members = Members::new();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::extent::Place;
    use crate::rollout::Health;
    use jiff::SignedDuration;

    fn of(name: &str) -> PolicyRef {
        PolicyRef::of_cluster(name)
    }

    #[test]
    fn a_change_is_a_member_that_is_not_as_it_was() {
        let object = |name: &str| ObjectRef {
            kind: Kind::find("", "pods").unwrap().clone(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let member = |version| Member {
            uid: "u".into(),
            version,
            revision: "new".into(),
            carries: crate::refit::Carries::This,
            health: Health { is_ready: true, since: None, is_settled: true, grace: SignedDuration::ZERO },
            created: None,
            owner: None,
            begun: None,
            restarts: Vec::new(),
            place: Place::default(),
        };
        let (pods, mut fleet) = (Kind::find("", "pods").unwrap(), Fleet::default());
        let mut changes = |change: &dyn Fn(&mut Fleet)| {
            change(&mut fleet);
            fleet.take_changed()
        };
        assert!(changes(&|fleet| fleet.see(&of("envoy"), &object("a"), Some(member(2)))));
        assert!(!changes(&|fleet| fleet.see(&of("envoy"), &object("a"), Some(member(2)))), "it is listed again");
        assert!(!changes(&|fleet| fleet.see(&of("envoy"), &object("a"), Some(member(1)))), "by an older list");
        assert!(changes(&|fleet| fleet.see(&of("envoy"), &object("a"), Some(member(3)))));
        assert!(!changes(&|fleet| fleet.see(&of("envoy"), &object("b"), None)), "it was none");
        assert!(!changes(&|fleet| fleet.gone(&object("b"))));
        assert!(!changes(&|fleet| fleet.retain(pods, |_| true)));
        assert!(changes(&|fleet| fleet.see(&of("envoy"), &object("a"), None)));
        for end in [&|fleet: &mut Fleet| fleet.gone(&object("a")), &|fleet: &mut Fleet| fleet.retain(pods, |_| false)]
            as [&dyn Fn(&mut Fleet); 2]
        {
            assert!(changes(&|fleet| fleet.see(&of("envoy"), &object("a"), Some(member(4)))));
            assert!(changes(end));
        }
    }

    #[test]
    fn only_pods_of_its_namespace_are_beside_the_members_of_an_owner() {
        let owner = crate::rollout::Owner {
            kind: "ReplicaSet",
            namespace: "shop".into(),
            name: "web".into(),
            desired: 2,
            astray: 0,
            created: None,
            fails_since: None,
            policies: ["p".into()].into(),
            carried: [].into(),
        };
        let (mut fleet, owners) = (Fleet::default(), Owners::from([("u".into(), owner)]));
        for (namespace, controller) in [("shop", "u"), ("other", "u"), ("shop", "v")] {
            let pod = ObjectRef::new(Kind::find("", "pods").unwrap(), (namespace, &format!("pod-{controller}")));
            fleet.see_beside(&of("p"), &pod, Some(controller.into()));
        }
        assert_eq!(fleet.beside(&of("p"), &owners), HashMap::from([("u".into(), 1)]));
    }

    #[test]
    fn members_are_known_once_every_kind_has_been_compared_with_this_edition() {
        let kinds =
            [("apps", "deployments"), ("", "pods")].map(|(group, resource)| Kind::find(group, resource).unwrap());
        let [deployments, pods] = kinds;
        let basis = |policy, namespaces| Basis { policy, namespaces };
        let bases = |basis| Bases::from([(of("p"), basis)]);
        let mut fleet = Fleet::default();
        let known = |fleet: &Fleet, basis| fleet.members(&of("p"), basis, kinds.into_iter()).is_some();
        let (one, two, labelled) = (basis(1, None), basis(2, None), basis(2, Some(1)));
        assert!(!known(&fleet, one), "nothing has been listed");
        fleet.counted(deployments, &bases(one), &bases(one));
        assert!(!known(&fleet, one), "pods have not been listed");
        fleet.counted(pods, &bases(one), &bases(one));
        assert!(known(&fleet, one));
        assert!(!known(&fleet, two), "the policy was edited");
        fleet.counted(deployments, &bases(one), &bases(two));
        fleet.counted(pods, &bases(two), &bases(two));
        assert!(!known(&fleet, two), "it was edited during the list");
        fleet.counted(deployments, &bases(two), &bases(two));
        assert!(known(&fleet, two));
        assert!(!known(&fleet, one) && !known(&fleet, labelled), "another edition");
        fleet.forget(pods);
        assert!(!known(&fleet, two), "pods are not watched any more");
        fleet.counted(pods, &bases(two), &bases(two));
        assert!(known(&fleet, two));
        fleet.counted(pods, &Bases::new(), &Bases::new());
        assert!(!known(&fleet, two), "the policy was deleted");
    }
}
