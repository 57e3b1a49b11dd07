//! The revisions of a policy: what it added, one after the other.

use crate::api::v1alpha1::{Jobs, NativeSidecars, Parameter, Position, SidecarPolicySpec, Template};
use crate::inject;
use serde::{Deserialize, Serialize};

/// The part of a policy's spec that decides what the policy adds. As JSON it is the `data` of a ControllerRevision.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// The pod content to add.
    pub template: Template,
    /// Where it goes. None is the default position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Where containers are native sidecars.
    #[serde(default)]
    pub native_sidecars: NativeSidecars,
    /// What happens to pods that end by themselves, without native sidecars.
    #[serde(default)]
    pub jobs: Jobs,
    /// The values that differ between workloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameter>,
}

impl Content {
    /// The content of a policy with that spec. None without a template.
    pub fn of(spec: &SidecarPolicySpec) -> Option<Self> {
        let SidecarPolicySpec { template, position, native_sidecars, jobs, parameters, .. } = spec;
        Some(Self {
            template: template.clone()?,
            position: *position,
            native_sidecars: *native_sidecars,
            jobs: *jobs,
            parameters: parameters.clone(),
        })
    }

    /// First 16 hex digits of the SHA-256 of the content as canonical JSON.
    ///
    /// # Guarantees
    /// The hash does not depend on the order of fields, the form of numbers, whether a default position is written, or what
    /// parameters are described as.
    pub fn hash(&self) -> String {
        let position = self.position.filter(|position| *position != Position::default());
        let bare = |parameter: &Parameter| Parameter { description: String::new(), ..parameter.clone() };
        let parameters = self.parameters.iter().map(bare).collect();
        inject::hash(&Self { position, parameters, ..self.clone() })
    }

    /// What it injects, as that of the policy `name`.
    pub(crate) fn template_of(&self, name: &str) -> inject::Template {
        let template = inject::Template::new(name, &self.template, self.position.unwrap_or_default());
        template.with_parameters(&self.parameters, &self.template)
    }
}

/// One content of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// The hash of the content.
    pub hash: String,
    /// The number of the revision: 1, 2, 3 and so on. A policy that is set back to an earlier content gets a new number.
    pub number: i64,
    /// The content.
    pub content: Content,
    /// The template of the content. Markers have its hash, which is not that of the content.
    pub template: inject::Template,
}

impl Revision {
    /// The revision `number` of `policy`.
    pub fn new(policy: &str, number: i64, content: Content) -> Self {
        Self { hash: content.hash(), number, template: content.template_of(policy), content }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(mut fields: Value) -> SidecarPolicySpec {
        fields["template"] =
            json!({"containers": [{"name": "x", "image": "x", "resources": {"limits": {"memory": 1e9}}}]});
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_content_is_read_back_as_it_was_written_and_with_the_same_hash() {
        for fields in [
            json!({}),
            json!({"position": {"containers": "Before"}, "nativeSidecars": "Never", "jobs": "Inject", "priority": 7}),
        ] {
            let content = Content::of(&spec(fields)).unwrap();
            let data = serde_json::to_string(&content).unwrap();
            let read: Content = serde_json::from_str(&data).unwrap();
            assert_eq!((read.hash(), &read), (content.hash(), &content), "{data}");
        }
        let short: Content = serde_json::from_value(json!({"template": {}})).unwrap();
        assert_eq!(short, Content::default());
        let validations_only = SidecarPolicySpec::default();
        assert_eq!(Content::of(&validations_only), None);
    }

    #[test]
    fn the_hash_changes_with_what_the_policy_adds_and_with_nothing_else() {
        let hash = |fields: Value| Content::of(&spec(fields)).unwrap().hash();
        let plain = hash(json!({}));
        assert_eq!(plain.len(), crate::digest::LENGTH);
        for same in [
            json!({"priority": 7, "suspend": true, "namespaces": ["shop"]}),
            json!({"position": {}}),
            json!({"position": {"envFrom": "Before"}}),
            json!({"nativeSidecars": "ForJobs", "jobs": "Skip"}),
        ] {
            assert_eq!(hash(same.clone()), plain, "{same}");
        }
        for other in
            [json!({"position": {"env": "After"}}), json!({"nativeSidecars": "Always"}), json!({"jobs": "Inject"})]
        {
            assert_ne!(hash(other.clone()), plain, "{other}");
        }
        let mut content = Content::of(&spec(json!({}))).unwrap();
        content.template.containers[0]["resources"] = json!({"limits": {"memory": 1_000_000_000}});
        assert_eq!(content.hash(), plain, "a number is its value");
        content.template.containers[0]["image"] = json!("y");
        assert_ne!(content.hash(), plain);
    }

    #[test]
    fn a_revision_has_the_template_that_its_policy_had() {
        let content = Content::of(&spec(json!({"position": {"containers": "Before"}}))).unwrap();
        let revision = Revision::new("p", 3, content.clone());
        let position = content.position.unwrap();
        assert_eq!(revision.template, inject::Template::new("p", &content.template, position));
        assert_eq!((revision.number, revision.hash), (3, content.hash()));
    }
}
