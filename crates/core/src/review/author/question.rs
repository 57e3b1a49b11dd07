//! The questions to the API server's authorizer about the author of a policy, and what an author is told who lacks a right.

use super::identity::Author;
use crate::api::code::Code;
use crate::outside::shown;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use serde_json::{Value, json};

/// The most questions about one policy. More exceed the cost that API servers from 1.30 on allow for one
/// ValidatingAdmissionPolicy: 10 000 000, and 350 000 for each question (apiserver, `RuntimeCELCostBudget` and
/// `CostEstimator`). The number holds for the webhook, too, because the result must not depend on the server version.
pub const QUESTIONS: usize = 28;

/// A policy as it is before, or after, a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `object`, which the write brings.
    New,
    /// `oldObject`, which the write changes or deletes.
    Old,
}

/// What an author lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The right to create pods in all namespaces, for a policy that does not name its namespaces.
    PodsEverywhere,
    /// The right to create pods in one namespace.
    PodsThere,
    /// The right to create pods in all namespaces, for a policy with a priority above 0.
    Priority,
    /// A right of rollouts, in all namespaces.
    RolloutEverywhere,
    /// A right of rollouts, in one namespace.
    RolloutThere,
}

impl Lack {
    /// The code of the refusal.
    pub fn code(self) -> Code {
        match self {
            Self::PodsEverywhere | Self::PodsThere => Code::AuthorLacksRight,
            Self::Priority => Code::AuthorLacksPriorityRight,
            Self::RolloutEverywhere | Self::RolloutThere => Code::AuthorLacksRolloutRight,
        }
    }
}

impl Side {
    /// The message after the code for an author with this lack, with places for `{user}`, `{right}`, `{namespace}` and `{names}`, which is the
    /// most namespaces that the policy may name. `config/author-check.yaml` has the same texts.
    pub fn text(self, lack: Lack) -> &'static str {
        match (self, lack) {
            (Self::New, Lack::PodsEverywhere) => {
                "{user} may not create pods in all namespaces, so may have a policy only for namespaces where that is allowed: name them in `spec.namespaces`, at most {names} and without globs"
            }
            (Self::Old, Lack::PodsEverywhere) => {
                "{user} may not create pods in all namespaces, so may change and delete only policies for namespaces where that is allowed: those with at most {names} in `spec.namespaces`, without globs"
            }
            (Self::New, Lack::PodsThere) => {
                "{user} may not create pods in namespace `{namespace}`, so may not have a policy inject there"
            }
            (Self::Old, Lack::PodsThere) => {
                "{user} may not create pods in namespace `{namespace}`, so may not change or delete a policy that injects there"
            }
            (Self::New, Lack::Priority) => {
                "{user} may not create pods in all namespaces, so may not have a policy with `spec.replaces`, or with a `spec.priority` above 0"
            }
            (Self::Old, Lack::Priority) => {
                "{user} may not create pods in all namespaces, so may not change or delete a policy with `spec.replaces`, or with a `spec.priority` above 0"
            }
            (Self::New, Lack::RolloutEverywhere) => {
                "{user} may not {right} in all namespaces, so may have a policy with `updateStrategy.type: RollingUpdate` only for namespaces where that is allowed: name them in `spec.namespaces`, at most {names} and without globs, with no `spec.priority` above 0"
            }
            (Self::Old, Lack::RolloutEverywhere) => {
                "{user} may not {right} in all namespaces, so may change and delete policies with `updateStrategy.type: RollingUpdate` only for namespaces where that is allowed: those with at most {names} in `spec.namespaces`, without globs, with no `spec.priority` above 0"
            }
            (Self::New, Lack::RolloutThere) => {
                "{user} may not {right} in namespace `{namespace}`, so may not have a policy with `updateStrategy.type: RollingUpdate` there"
            }
            (Self::Old, Lack::RolloutThere) => {
                "{user} may not {right} in namespace `{namespace}`, so may not change or delete a policy with `updateStrategy.type: RollingUpdate` there"
            }
        }
    }
}

/// A right that the author of a policy needs, because the operator does the same for the policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    verb: &'static str,
    group: String,
    resource: String,
    subresource: &'static str,
}

impl Right {
    /// The right for injection.
    fn create_pods() -> Self {
        Self { verb: "create", group: String::new(), resource: "pods".to_owned(), subresource: "" }
    }

    /// The rights for rollouts of pods: to evict them, and to patch them where the policy does not say `podUpdate: Recreate`. What a
    /// resize changes, who may do both and create pods can change by himself; older servers do not know its subresource.
    fn of_pods(strategy: &Value) -> Vec<Self> {
        let evicts = Self { subresource: "eviction", ..Self::create_pods() };
        let patches = Self { verb: "patch", ..Self::create_pods() };
        let is_by_eviction = strategy["rollingUpdate"]["podUpdate"] == "Recreate";
        if is_by_eviction { vec![evicts] } else { vec![evicts, patches] }
    }

    /// The right for rollouts of a kind other than pods, whose template they patch.
    fn of_template(group: &str, resource: &str) -> Self {
        // Old servers have the kinds of `extensions` in `apps`, too, and the operator writes to `apps`.
        let group = if group == "extensions" { "apps" } else { group };
        Self { verb: "patch", group: group.to_owned(), resource: resource.to_owned(), subresource: "" }
    }

    /// All rights for a policy with this spec: 1 to [`QUESTIONS`]. The schema allows 16 targets; only callers that are no API
    /// server send more.
    fn of_policy(spec: &Value) -> Vec<Self> {
        let mut rights = vec![Self::create_pods()];
        let strategy = &spec["updateStrategy"];
        if strategy["type"] == "RollingUpdate" {
            let default = [json!({ "group": "apps", "resource": "deployments" })];
            let targets = spec["targets"].as_array().map_or(&default[..], Vec::as_slice);
            let named = |target: &Value| -> (String, String) {
                let text = |field: &str| target[field].as_str().unwrap_or_default().to_owned();
                (text("group"), text("resource"))
            };
            let (pods, others): (Vec<_>, Vec<_>) =
                targets.iter().map(named).partition(|(group, resource)| group.is_empty() && resource == "pods");
            // However many targets are pods, they take two rights: the number of questions has a bound.
            if !pods.is_empty() {
                rights.extend(Self::of_pods(strategy));
            }
            let room = QUESTIONS - rights.len();
            rights.extend(others.iter().take(room).map(|(group, resource)| Self::of_template(group, resource)));
        }
        rights
    }
}

impl std::fmt::Display for Right {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, group, resource, subresource } = self;
        write!(formatter, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(formatter, ".{group}")?;
        }
        if !subresource.is_empty() {
            write!(formatter, "/{subresource}")?;
        }
        Ok(())
    }
}

/// A question to the API server's authorizer: whether the author has a right in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    side: Side,
    lack: Lack,
    right: Right,
    /// Empty for all namespaces.
    namespace: String,
    /// The most namespaces that a policy with these rights may name.
    names: usize,
}

impl Question {
    /// The namespace; empty for all namespaces.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The right and the place: `create pods in namespace `shop``.
    pub fn right_and_place(&self) -> String {
        let right = self.right.to_string();
        let place = if self.namespace.is_empty() {
            "all namespaces".to_owned()
        } else {
            format!("namespace `{}`", shown(&self.namespace))
        };
        format!("{} in {place}", shown(&right))
    }

    /// The questions about `policy`: 1 to [`QUESTIONS`]. They are about each namespace that it names in `spec.namespaces`, without
    /// globs, and else about all namespaces. If there were too many questions, or its priority is above 0, they are about
    /// all namespaces, too.
    pub fn about(side: Side, policy: &Value) -> Vec<Self> {
        let spec = &policy["spec"];
        let rights = Right::of_policy(spec);
        let names = QUESTIONS / rights.len();
        let named = named(&spec["namespaces"], names);
        let is_named = named.is_some();
        let has_priority =
            !spec["priority"].is_null() && spec["priority"].as_f64().is_none_or(|priority| priority > 0.0);
        let replaces = !spec["replaces"].is_null() && spec["replaces"].as_array().is_none_or(|names| !names.is_empty());
        let outranks = has_priority || replaces;
        let places = named.filter(|_| !outranks).unwrap_or_else(|| vec![""]);
        let mut questions = Vec::new();
        for place in places {
            for (index, right) in rights.iter().enumerate() {
                let lack = match (place.is_empty(), index) {
                    (true, 0) if is_named => Lack::Priority,
                    (true, 0) => Lack::PodsEverywhere,
                    (true, _) => Lack::RolloutEverywhere,
                    (false, 0) => Lack::PodsThere,
                    (false, _) => Lack::RolloutThere,
                };
                Self { side, lack, right: right.clone(), namespace: place.to_owned(), names }.add_to(&mut questions);
            }
        }
        questions
    }

    /// The questions about policies that are not known: those about a policy for all namespaces with rollouts of every built-in kind.
    pub fn about_any_policy() -> Vec<Self> {
        let targets = [
            ("", "pods"),
            ("apps", "deployments"),
            ("apps", "statefulsets"),
            ("apps", "daemonsets"),
            ("batch", "cronjobs"),
        ];
        let targets = targets.map(|(group, resource)| json!({ "group": group, "resource": resource }));
        Self::about(
            Side::Old,
            &json!({ "spec": { "targets": targets, "updateStrategy": { "type": "RollingUpdate" } } }),
        )
    }

    /// Adds the question, unless the same is asked already.
    pub(super) fn add_to(self, questions: &mut Vec<Self>) {
        let is_same = |other: &Self| (&other.right, &other.namespace) == (&self.right, &self.namespace);
        if !questions.iter().any(is_same) {
            questions.push(self);
        }
    }

    /// The message for an author who lacks the right.
    pub fn refusal(&self, author: &Author) -> String {
        let (user, namespace) = (shown(author.name()), shown(&self.namespace));
        let (right, names) = (self.right.to_string(), self.names.to_string());
        let right = shown(&right);
        let filled = self.side.text(self.lack).split(['{', '}']).map(|part| match part {
            "user" => &*user,
            "right" => &*right,
            "namespace" => &*namespace,
            "names" => &names,
            text => text,
        });
        format!("{}: {}", self.lack.code(), filled.collect::<String>())
    }

    /// The question as the API server takes it.
    pub fn review(&self, author: &Author) -> SubjectAccessReview {
        let Right { verb, group, resource, subresource } = self.right.clone();
        let Author { username, uid, groups, extra } = author.clone();
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group),
            version: Some("*".to_owned()),
            resource: Some(resource),
            subresource: Some(subresource.to_owned()).filter(|subresource| !subresource.is_empty()),
            namespace: Some(self.namespace.clone()),
            ..ResourceAttributes::default()
        };
        let extra = extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect();
        let spec = SubjectAccessReviewSpec {
            user: Some(username),
            uid: Some(uid),
            groups: Some(groups),
            extra: Some(extra),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        SubjectAccessReview { spec, ..SubjectAccessReview::default() }
    }
}

/// The namespaces in `listed`, if these are 1 to `most` names without globs.
fn named(listed: &Value, most: usize) -> Option<Vec<&str>> {
    let listed = listed.as_array().filter(|listed| (1..=most).contains(&listed.len()))?;
    listed.iter().map(|name| name.as_str().filter(|name| !name.contains(['*', '?']))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author() -> Author {
        serde_json::from_value(json!({ "username": "jo", "uid": "7", "groups": ["dev"] })).unwrap()
    }

    /// The namespaces of the questions about a policy, and what is asked.
    fn asked(side: Side, spec: &Value) -> Vec<(String, String)> {
        let questions = Question::about(side, &json!({ "spec": spec }));
        questions.iter().map(|question| (question.namespace.clone(), question.right.to_string())).collect()
    }

    fn pods(namespaces: &[&str]) -> Vec<(String, String)> {
        namespaces.iter().map(|name| ((*name).to_owned(), "create pods".to_owned())).collect()
    }

    #[test]
    fn the_author_is_asked_about_each_namespace_that_is_named_and_else_about_all() {
        let names = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
        let many = names(28);
        for (namespaces, expected) in [
            (json!(["a"]), vec!["a"]),
            (json!(["b", "a", "b"]), vec!["b", "a"]),
            (json!(many), many.iter().map(String::as_str).collect()),
            (json!(names(29)), vec![""]),
            (json!(vec!["a"; 29]), vec![""]),
            (json!([]), vec![""]),
            (json!(null), vec![""]),
            (json!(["*"]), vec![""]),
            (json!(["a", "b?"]), vec![""]),
            (json!(["a", "b*"]), vec![""]),
            (json!(["a", 7]), vec![""]),
            (json!("a"), vec![""]),
        ] {
            assert_eq!(asked(Side::New, &json!({ "namespaces": namespaces })), pods(&expected), "{namespaces}");
        }
        for odd in [json!(null), json!({}), json!([]), json!({ "template": {} })] {
            assert_eq!(asked(Side::Old, &odd), pods(&[""]), "{odd}");
        }
    }

    #[test]
    fn a_priority_above_0_takes_the_right_everywhere() {
        for (priority, place) in [
            (json!(null), "a"),
            (json!(0), "a"),
            (json!(-1), "a"),
            (json!(1), ""),
            (json!(2_147_483_647), ""),
            (json!(0.5), ""),
            (json!("1"), ""),
        ] {
            let spec = json!({ "namespaces": ["a"], "priority": priority });
            assert_eq!(asked(Side::New, &spec), pods(&[place]), "{priority}");
        }
        for (replaces, place) in [(json!(null), "a"), (json!([]), "a"), (json!(["b"]), ""), (json!("b"), "")] {
            let spec = json!({ "namespaces": ["a"], "replaces": replaces });
            assert_eq!(asked(Side::New, &spec), pods(&[place]), "{replaces}");
        }
        let of = |spec: Value| Question::about(Side::Old, &json!({ "spec": spec }))[0].lack;
        assert_eq!(of(json!({ "namespaces": ["a"], "priority": 1 })), Lack::Priority);
        assert_eq!(of(json!({ "priority": 1 })), Lack::PodsEverywhere, "it would be without a priority, too");
    }

    #[test]
    fn a_policy_that_rolls_takes_the_rights_to_what_a_rollout_does() {
        let target = |group: &str, resource: &str| json!({ "group": group, "resource": resource });
        let rolls = |namespaces: &[&str], targets: &[Value]| {
            let strategy = json!({ "type": "RollingUpdate" });
            json!({ "namespaces": namespaces, "targets": targets, "updateStrategy": strategy })
        };
        let both = [
            target("", "pods"),
            target("apps", "deployments"),
            target("extensions", "daemonsets"),
            target("", "replicationcontrollers"),
        ];
        let expected = [
            "create pods",
            "create pods/eviction",
            "patch pods",
            "patch deployments.apps",
            "patch daemonsets.apps",
            "patch replicationcontrollers",
        ];
        let of_both = |place: &str| expected.map(|right| (place.to_owned(), right.to_owned())).to_vec();
        assert_eq!(asked(Side::New, &rolls(&["a"], &both)), of_both("a"));
        let four = ["a", "b", "c", "d"];
        assert_eq!(asked(Side::New, &rolls(&four, &both)), four.map(of_both).concat());
        assert_eq!(asked(Side::New, &rolls(&["a", "b", "c", "d", "e"], &both)), of_both(""), "30 are too many");
        // Without `targets` it is for Deployments.
        let default = json!({ "namespaces": ["a"], "updateStrategy": { "type": "RollingUpdate" } });
        let of_deployments = ["create pods", "patch deployments.apps"].map(|right| ("a".to_owned(), right.to_owned()));
        assert_eq!(asked(Side::New, &default), of_deployments);
        let twice = rolls(&["a"], &[target("apps", "deployments"), target("apps", "deployments")]);
        assert_eq!(asked(Side::New, &twice), of_deployments, "the same is asked once");
        // By eviction alone no pod is patched. Many targets for pods take no more rights than one, so that none of the others is left out.
        let mut recreates = rolls(&["a"], &both[..2]);
        recreates["updateStrategy"]["rollingUpdate"] = json!({ "podUpdate": "Recreate" });
        let of_recreation = ["create pods", "create pods/eviction", "patch deployments.apps"];
        assert_eq!(asked(Side::New, &recreates), of_recreation.map(|right| ("a".to_owned(), right.to_owned())));
        for odd in [json!("InPlaceOrRecreate"), json!(null), json!(["Recreate"])] {
            recreates["updateStrategy"]["rollingUpdate"]["podUpdate"] = odd;
            assert_eq!(asked(Side::New, &recreates), of_both("a")[..4]);
        }
        let mut many = vec![target("", "pods"); 15];
        many.push(target("apps", "daemonsets"));
        let rights = asked(Side::New, &rolls(&["a"], &many));
        assert_eq!((rights.len(), rights[3].1.as_str()), (4, "patch daemonsets.apps"));
        let on_delete = json!({ "namespaces": ["a"], "targets": both, "updateStrategy": { "type": "OnDelete" } });
        assert_eq!(asked(Side::New, &on_delete), pods(&["a"]));
        let hostile: Vec<_> = (0..50_000).map(|number| target("apps", &format!("r{number}"))).collect();
        assert_eq!(Question::about(Side::New, &json!({ "spec": rolls(&["a"], &hostile) })).len(), QUESTIONS);
        let any = Question::about_any_policy();
        assert!(any.len() == 7 && any.iter().all(|question| question.namespace.is_empty()), "{any:?}");
    }

    #[test]
    fn every_text_says_who_lacks_what_and_where() {
        let told = |side, spec: Value| -> Vec<String> {
            let questions = Question::about(side, &json!({ "spec": spec }));
            questions.iter().map(|question| question.refusal(&author())).collect()
        };
        let rolls = |more: Value| {
            let mut spec = json!({ "updateStrategy": { "type": "RollingUpdate" } });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        assert_eq!(
            told(Side::New, rolls(json!({ "namespaces": ["{user}"] }))),
            [
                "SCP0046: jo may not create pods in namespace `{user}`, so may not have a policy inject there",
                "SCP0047: jo may not patch deployments.apps in namespace `{user}`, so may not have a policy with `updateStrategy.type: RollingUpdate` there",
            ]
        );
        let everywhere = told(Side::Old, rolls(json!({})));
        assert!(
            everywhere[0]
                .starts_with("SCP0046: jo may not create pods in all namespaces, so may change and delete only ")
        );
        assert!(everywhere.iter().all(|told| told.contains("at most 14 in `spec.namespaces`")), "{everywhere:?}");
        let priority = told(Side::Old, json!({ "namespaces": ["a"], "priority": 1 }));
        assert!(priority[0].starts_with("SCP0048: jo may not ") && priority[0].ends_with("`spec.priority` above 0"));
    }

    #[test]
    fn it_is_asked_about_who_has_sent_the_request() {
        let sender =
            json!({ "username": "jo", "uid": "7", "groups": ["dev"], "extra": { "scopes": ["a"], "none": null } });
        let sender: Author = serde_json::from_value(sender).unwrap();
        let asked = |spec: Value, index: usize| {
            let questions = Question::about(Side::New, &json!({ "spec": spec }));
            serde_json::to_value(questions[index].review(&sender)).unwrap()["spec"].clone()
        };
        let attributes = json!({ "verb": "create", "group": "", "version": "*", "resource": "pods", "namespace": "a" });
        let expected = json!({
            "user": "jo", "uid": "7", "groups": ["dev"], "extra": { "none": [], "scopes": ["a"] },
            "resourceAttributes": attributes,
        });
        assert_eq!(asked(json!({ "namespaces": ["a"] }), 0), expected);
        let targets = json!([{ "group": "", "resource": "pods" }]);
        let rolls = json!({ "namespaces": ["a"], "targets": targets, "updateStrategy": { "type": "RollingUpdate" } });
        let eviction = asked(rolls, 1)["resourceAttributes"].clone();
        assert_eq!((&eviction["subresource"], &eviction["resource"]), (&json!("eviction"), &json!("pods")));
        let nobody: Author =
            serde_json::from_value(json!({ "username": null, "groups": null, "extra": null })).unwrap();
        assert_eq!(nobody.name(), "");
    }
}
