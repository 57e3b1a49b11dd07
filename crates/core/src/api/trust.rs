//! The limits that the operator's owner sets on templates, by flags.
//!
//! A template becomes part of pods whose owners have not seen it. So it must follow the Pod Security Standards
//! ([`super::pod_security`]). Content with access to the node or to an identity needs a further flag. Images can be
//! limited to a list.

use super::pod_security::{self, Breach, Level};
use super::v1alpha1::{RawObject, SidecarPolicySpec, Template};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use wildmatch::WildMatch;

/// The limits for policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The level of the Pod Security Standards that templates keep to (`--pod-security`).
    pub level: Level,
    /// The namespaces without that level, for policies that name only these (`--privileged-namespaces`).
    pub privileged_namespaces: BTreeSet<String>,
    /// The further allowed content (`--allow-in-templates`).
    pub powers: BTreeSet<Power>,
    /// The allowed images, as prefixes or globs (`--allowed-images`); empty allows all.
    pub images: Vec<String>,
}

/// Content of a template that needs a flag at every level of the Pod Security Standards.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    /// Volumes of type hostPath
    HostPaths,
    /// securityContext.capabilities.add
    Capabilities,
    /// Projected tokens of the pod's service account
    ServiceAccountTokens,
    /// Projected certificates of the pod
    PodCertificates,
    /// Inline volumes of type csi or flexVolume, whose driver may give an identity of the pod
    CsiVolumes,
    /// pod.shareProcessNamespace: containers see each other's processes, files and environment
    ProcessNamespace,
    /// pod.tolerations: pods come to nodes that are kept for others
    Scheduling,
    /// Parameters for names of ConfigMaps and Secrets: workloads choose them
    References,
}

impl Power {
    /// All powers.
    pub const ALL: [Self; 8] = [
        Self::HostPaths,
        Self::Capabilities,
        Self::ServiceAccountTokens,
        Self::PodCertificates,
        Self::CsiVolumes,
        Self::ProcessNamespace,
        Self::Scheduling,
        Self::References,
    ];

    /// The value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HostPaths => "host-paths",
            Self::Capabilities => "capabilities",
            Self::ServiceAccountTokens => "service-account-tokens",
            Self::PodCertificates => "pod-certificates",
            Self::CsiVolumes => "csi-volumes",
            Self::ProcessNamespace => "process-namespace",
            Self::Scheduling => "scheduling",
            Self::References => "references",
        }
    }

    /// The fields of `template` with this content.
    fn fields(self, template: &Template) -> Vec<String> {
        let found = match self {
            Self::HostPaths => found(template.all_volumes(), "hostPath"),
            Self::Capabilities => found(template.all_containers(), "securityContext.capabilities.add[]"),
            Self::ServiceAccountTokens => found(template.all_volumes(), "projected.sources[].serviceAccountToken"),
            Self::PodCertificates => found(template.all_volumes(), "projected.sources[].podCertificate"),
            Self::CsiVolumes => {
                let drivers = ["csi", "flexVolume"].into_iter();
                drivers.flat_map(|driver| found(template.all_volumes(), driver)).collect()
            }
            Self::ProcessNamespace => of_pod(template, "shareProcessNamespace"),
            Self::Scheduling => of_pod(template, "tolerations"),
            // Of parameters alone.
            Self::References => Vec::new(),
        };
        found.into_iter().map(|(field, _)| field).collect()
    }
}

impl Trust {
    /// Everything is allowed.
    pub fn unbounded() -> Self {
        Self { level: Level::Privileged, powers: Power::ALL.into(), ..Self::default() }
    }

    /// True if and only if `spec` names privileged namespaces and no others.
    fn is_privileged(&self, spec: &SidecarPolicySpec) -> bool {
        let is_known = |name: &String| self.privileged_namespaces.contains(name);
        spec.namespaces.as_ref().is_some_and(|names| !names.is_empty() && names.iter().all(is_known))
    }

    /// The fields of the template of `spec` beyond the level, each with its fix.
    pub(super) fn beyond_level(&self, spec: &SidecarPolicySpec) -> Vec<(String, String)> {
        let Some(template) = &spec.template else { return Vec::new() };
        if self.is_privileged(spec) {
            return Vec::new();
        }
        let breaches = pod_security::breaches(template, self.level).into_iter();
        breaches.map(|breach| (breach.field.clone(), format!("{}; {}", told(&breach), self.remedy(spec)))).collect()
    }

    /// The advice for a policy that needs more than the level.
    fn remedy(&self, spec: &SidecarPolicySpec) -> String {
        if self.privileged_namespaces.is_empty() {
            return "change that, or have namespaces that may have it named to the operator by `--privileged-namespaces`".to_owned();
        }
        let names = self.privileged_namespaces.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let other = spec.namespaces.iter().flatten().find(|name| !self.privileged_namespaces.contains(*name));
        let other = match other {
            Some(name) => format!("; `{name}` is none of them"),
            None => String::new(),
        };
        format!(
            "change that, or name in `spec.namespaces` only those that `--privileged-namespaces` allows: {names}{other}"
        )
    }

    /// The fields of the template of `spec` that need a missing flag, each with its fix.
    pub(super) fn not_granted(&self, spec: &SidecarPolicySpec) -> Vec<(String, String)> {
        let missing = Power::ALL.into_iter().filter(|power| !self.powers.contains(power));
        let fields = missing.flat_map(|power| {
            let fields = spec.template.iter().flat_map(move |template| power.fields(template));
            fields.map(move |field| {
                (field, format!("remove it, or start the operator with `--allow-in-templates={}`", power.as_str()))
            })
        });
        fields.collect()
    }

    /// The fields of the template of `spec` with images that are not allowed, each with its fix.
    pub(super) fn foreign_images(&self, spec: &SidecarPolicySpec) -> Vec<(String, String)> {
        spec.template.as_ref().map(|template| self.foreign_images_of(template)).unwrap_or_default()
    }

    /// The fields of `template` with images that are not allowed, each with what is wrong.
    pub fn foreign_images_of(&self, template: &Template) -> Vec<(String, String)> {
        let foreign = images(template).into_iter().filter_map(|(field, image)| Some((field, self.foreign(&image)?)));
        foreign.collect()
    }

    /// What is wrong with `image`, if it is not allowed.
    pub(super) fn foreign(&self, image: &str) -> Option<String> {
        if self.images.is_empty() || self.allows_image(image) {
            return None;
        }
        Some(format!("`{image}` is none of {}", self.listed_images()))
    }

    /// The patterns of the images that are allowed, for a sentence.
    pub fn listed_images(&self) -> String {
        self.images.iter().map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>().join(", ")
    }

    fn allows_image(&self, image: &str) -> bool {
        self.images.iter().any(|pattern| covers(pattern, image))
    }
}

/// True if and only if `pattern` matches `image`. A pattern with `*` or `?` is a glob over the whole image. Otherwise
/// it is a registry, a folder, a repository or an image, and matches whole parts of the name.
fn covers(pattern: &str, image: &str) -> bool {
    if pattern.contains(['*', '?']) {
        return WildMatch::new(pattern).matches(image);
    }
    let Some(rest) = image.strip_prefix(pattern) else { return false };
    // Runtimes take the digest, whatever the tag is.
    let is_tagged = pattern.rsplit('/').next().is_some_and(|name| name.contains([':', '@']));
    let is_tag = rest.starts_with([':', '@']) && !rest.contains('/') && !is_tagged;
    rest.is_empty() || pattern.ends_with('/') || rest.starts_with('/') || is_tag
}

/// Every image in `template`, with its field: images of containers, and mounted images.
fn images(template: &Template) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let run = found(template.all_containers(), "image");
    let mounted = found(template.all_volumes(), "image.reference");
    run.into_iter().chain(mounted).map(|(field, value)| (field, text(&value))).collect()
}

/// The field `field` of the pod, if `template` sets it.
fn of_pod(template: &Template, field: &str) -> Vec<(String, Value)> {
    let value = template.pod.as_ref().and_then(|pod| serde_json::to_value(pod).ok()?.get(field).cloned());
    value
        .filter(|value| *value != false)
        .map(|value| (format!("spec.template.pod.{field}"), value))
        .into_iter()
        .collect()
}

/// Every existing `field` of `items`, with its value; see [`pod_security::fields`].
fn found<'a>(items: impl Iterator<Item = (String, &'a RawObject)>, field: &str) -> Vec<(String, Value)> {
    let fields = items.flat_map(|(path, item)| {
        let item = Value::Object(item.clone());
        let fields = pod_security::fields(&item, field).into_iter();
        fields.map(|field| (format!("{path}.{}", field.path), field.value.clone())).collect::<Vec<_>>()
    });
    fields.collect()
}

/// The message for a breach.
fn told(breach: &Breach) -> String {
    let found = match &breach.found {
        Some(value) => format!("it is {value}"),
        None => "it is missing".to_owned(),
    };
    format!("`{}` (level `{}`) allows {}, and {found}", breach.control, breach.level, breach.allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(spec: Value) -> SidecarPolicySpec {
        serde_json::from_value(spec).unwrap()
    }

    fn fields(found: Vec<(String, String)>) -> Vec<String> {
        found.into_iter().map(|(field, _)| field).collect()
    }

    #[test]
    fn what_is_beyond_the_level_takes_a_policy_that_names_nothing_but_privileged_namespaces() {
        let names = ["logging", "mesh"].map(str::to_owned).into();
        let trust = Trust { privileged_namespaces: names, ..Trust::default() };
        let beyond = |namespaces: Value| {
            let container = json!({ "name": "a", "image": "a", "securityContext": { "privileged": true } });
            trust.beyond_level(&spec(json!({ "namespaces": namespaces, "template": { "containers": [container] } })))
        };
        for lawful in [json!(["logging"]), json!(["mesh", "logging"])] {
            assert_eq!(beyond(lawful), []);
        }
        for unlawful in [json!(null), json!(["logging", "shop"]), json!(["log*"]), json!(["*"]), json!(["loggin?"])] {
            let found = beyond(unlawful);
            assert_eq!(found[0].0, "spec.template.containers[0].securityContext.privileged");
            for part in [
                "`Privileged Containers`",
                "`baseline`",
                "it is true",
                "`--privileged-namespaces`",
                "`logging`, `mesh`",
            ] {
                assert!(found[0].1.contains(part), "{part} in {}", found[0].1);
            }
        }
        assert!(beyond(json!(["logging", "shop"]))[0].1.ends_with("`shop` is none of them"));
    }

    #[test]
    fn no_level_and_no_namespace_gives_a_power() {
        let template = json!({
            "containers": [{ "name": "a", "image": "a", "securityContext": { "capabilities": { "add": ["CHOWN"], "drop": ["ALL"] } } }],
            "volumes": [
                { "name": "h", "hostPath": { "path": "/var/log" } }, { "name": "s", "secret": { "secretName": "tls" } },
                { "name": "t", "projected": { "sources": [{ "secret": {} }, { "serviceAccountToken": { "path": "t" } }] } },
                { "name": "p", "projected": { "sources": [{ "clusterTrustBundle": {} }, { "podCertificate": { "signerName": "s" } }] } },
                { "name": "c", "csi": { "driver": "csi.spiffe.io" } },
            ],
        });
        let spec = spec(json!({ "namespaces": ["logging"], "template": template }));
        let mut trust = Trust {
            level: Level::Privileged,
            privileged_namespaces: ["logging".to_owned()].into(),
            ..Trust::default()
        };
        assert_eq!(trust.beyond_level(&spec), []);
        let expected = [
            "spec.template.volumes[0].hostPath",
            "spec.template.containers[0].securityContext.capabilities.add[0]",
            "spec.template.volumes[2].projected.sources[1].serviceAccountToken",
            "spec.template.volumes[3].projected.sources[1].podCertificate",
            "spec.template.volumes[4].csi",
        ];
        assert_eq!(fields(trust.not_granted(&spec)), expected);
        for (power, field) in Power::ALL.into_iter().zip(expected) {
            trust.powers = BTreeSet::from([power]);
            let left = fields(trust.not_granted(&spec));
            assert!(left.len() == 4 && !left.contains(&field.to_owned()), "{left:?}");
        }
        trust.powers = Power::ALL.into();
        assert_eq!(trust.not_granted(&spec), []);
    }

    #[test]
    fn an_image_is_allowed_by_whole_parts_of_its_name() {
        for (pattern, image, expected) in [
            ("registry.example.com", "registry.example.com/a:1", true),
            ("registry.example.com", "registry.example.com.evil.io/a", false),
            ("registry.example.com", "registry.example.com:5000/a", false),
            ("registry.example.com/mesh", "registry.example.com/mesh/proxy@sha256:00", true),
            ("registry.example.com/mesh", "registry.example.com/meshes/proxy", false),
            ("registry.example.com/mesh/", "registry.example.com/mesh/proxy", true),
            ("envoyproxy/envoy", "envoyproxy/envoy:v1.31.0", true),
            ("envoyproxy/envoy", "envoyproxy/envoy@sha256:00", true),
            ("envoyproxy/envoy", "envoyproxy/envoys", false),
            ("envoyproxy/envoy:v1.31.0", "envoyproxy/envoy:v1.31.0", true),
            ("envoyproxy/envoy:v1.31.0", "envoyproxy/envoy:v1.31.01", false),
            ("envoyproxy/envoy:v1.31.0", "envoyproxy/envoy:v1.31.0@sha256:00", false),
            ("registry:5000", "registry:5000/a@sha256:00", true),
            ("registry.example.com/mesh/*", "registry.example.com/mesh/a/b:1", true),
            ("registry.example.com/mesh/*", "other.example.com/registry.example.com/mesh/a", false),
            ("*/proxy:v?", "a/proxy:v1", true),
            ("*/proxy:v?", "a/proxy:v11", false),
        ] {
            assert_eq!(covers(pattern, image), expected, "{pattern} {image}");
        }
    }

    #[test]
    fn every_image_of_a_template_is_judged() {
        let trust = Trust { images: vec!["good".to_owned()], ..Trust::default() };
        let spec = spec(json!({ "template": {
            "containers": [{ "name": "a", "image": "good:1" }, { "name": "b", "image": "bad:1" }],
            "initContainers": [{ "name": "c", "image": "bad:1" }],
            "volumes": [{ "name": "d", "image": { "reference": "bad:1" } }, { "name": "e", "image": { "reference": "good" } }],
        } }));
        let expected = [
            "spec.template.containers[1].image",
            "spec.template.initContainers[0].image",
            "spec.template.volumes[0].image.reference",
        ];
        assert_eq!(fields(trust.foreign_images(&spec)), expected);
        assert_eq!(Trust::default().foreign_images(&spec), []);
    }
}
