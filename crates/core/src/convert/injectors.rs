//! The injectors of others whose annotations are parameters of a policy.

use crate::manifest::File;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// An injector.
pub(super) struct Injector {
    /// Its name in sentences.
    pub(super) title: &'static str,
    /// The manifest of the policy that does the same.
    text: &'static str,
    /// The beginnings of the keys of its annotations.
    prefixes: &'static [&'static str],
    /// Annotations that it writes itself.
    written: &'static [&'static str],
    /// The label or annotation that asks for it.
    pub(super) switch: Switch,
    /// Whether annotations of a Namespace count for its pods.
    pub(super) reads_namespaces: bool,
    /// The beginning of the keys that name a secret by their end.
    secret: Option<&'static str>,
    /// The MutatingWebhookConfiguration of its default installation.
    pub(super) webhook: &'static str,
}

/// How a pod asks for an injector.
pub(super) struct Switch {
    pub(super) key: &'static str,
    /// Whether it is a label. Then an annotation of that key counts where the Namespace asks for the injector.
    pub(super) is_label: bool,
    /// The values that ask for it, the first one as in the policy.
    on: &'static [&'static str],
    /// The same on a Namespace, for all of its pods: the field of its metadata and the key. The value is `enabled`.
    pub(super) of_namespaces: Option<(&'static str, &'static str)>,
    /// The condition for pods and Namespaces together.
    condition: &'static str,
}

/// The values that keep an injector out.
const OFF: [&str; 7] = ["disabled", "false", "no", "off", "n", "f", "0"];
/// The secret in the policy of Vault: its key, its file, its default and the word about it.
const SECRET: [(&str, &str, &str); 4] = [
    ("agent-inject-secret-", "config", ""),
    ("/vault/secrets/", "config", ""),
    ("+ \"/", "config", "\""),
    ("here `", "config", "`"),
];

/// The policies are those that `docs/migrate.md` describes.
pub(super) const INJECTORS: [Injector; 4] = [
    Injector {
        title: "Linkerd",
        text: include_str!("../../../../docs/examples/parameters/linkerd.yaml"),
        prefixes: &["config.linkerd.io/", "config.alpha.linkerd.io/", "config.beta.linkerd.io/"],
        written: &[],
        switch: Switch {
            key: "linkerd.io/inject",
            is_label: false,
            on: &["enabled"],
            of_namespaces: Some(("annotations", "linkerd.io/inject")),
            condition: "object.metadata.?annotations[\"linkerd.io/inject\"]\
                        .orValue(namespaceObject.?metadata.?annotations[\"linkerd.io/inject\"].orValue(\"\")) == \"enabled\"",
        },
        reads_namespaces: true,
        secret: None,
        webhook: "linkerd-proxy-injector-webhook-config",
    },
    Injector {
        title: "Dapr",
        text: include_str!("../../../../docs/examples/parameters/dapr.yaml"),
        prefixes: &["dapr.io/"],
        written: &[],
        switch: Switch {
            key: "dapr.io/enabled",
            is_label: false,
            on: &["true", "True", "TRUE", "t", "T", "yes", "Yes", "y", "Y", "on", "On", "1"],
            of_namespaces: None,
            condition: "",
        },
        reads_namespaces: false,
        secret: None,
        webhook: "dapr-sidecar-injector",
    },
    Injector {
        title: "Vault",
        text: include_str!("../../../../docs/examples/parameters/vault.yaml"),
        prefixes: &["vault.hashicorp.com/"],
        written: &["vault.hashicorp.com/agent-inject-status"],
        switch: Switch {
            key: "vault.hashicorp.com/agent-inject",
            is_label: false,
            on: &["true", "True", "TRUE", "t", "T", "1"],
            of_namespaces: None,
            condition: "",
        },
        reads_namespaces: false,
        secret: Some("vault.hashicorp.com/agent-inject-secret-"),
        webhook: "vault-agent-injector-cfg",
    },
    Injector {
        title: "Istio",
        text: include_str!("../../../../docs/examples/parameters/istio.yaml"),
        prefixes: &[
            "sidecar.istio.io/",
            "readiness.status.sidecar.istio.io/",
            "status.sidecar.istio.io/",
            "traffic.sidecar.istio.io/",
            "proxy.istio.io/",
            "inject.istio.io/",
        ],
        written: &["sidecar.istio.io/status"],
        switch: Switch {
            key: "sidecar.istio.io/inject",
            is_label: true,
            on: &["true"],
            of_namespaces: Some(("labels", "istio-injection")),
            condition: "object.metadata.?labels[\"sidecar.istio.io/inject\"]\
                        .orValue(namespaceObject.?metadata.?labels[\"istio-injection\"].orValue(\"\") == \"enabled\" \
                        && object.metadata.?annotations[\"sidecar.istio.io/inject\"].orValue(\"\") != \"false\" ? \"true\" : \"\") == \"true\"",
        },
        reads_namespaces: false,
        secret: None,
        webhook: "istio-sidecar-injector",
    },
];

/// Whether `metadata`, of pods or of a Namespace, has something for one of [`INJECTORS`].
pub(super) fn is_meant(metadata: &Value) -> bool {
    INJECTORS.iter().any(|injector| injector.is_meant(metadata))
}

impl Injector {
    /// Whether `metadata` has something for it.
    pub(super) fn is_meant(&self, metadata: &Value) -> bool {
        let switch = &self.switch;
        let keys = metadata["annotations"].as_object().into_iter().flat_map(Map::keys);
        let has = |field: &str, key: &str| metadata[field].get(key).is_some();
        keys.into_iter().any(|key| *key == switch.key || self.has(key))
            || switch.is_label && has("labels", switch.key)
            || switch.of_namespaces.is_some_and(|(field, key)| has(field, key))
    }

    /// Whether `key` is that of an annotation with a value for it, which the switch is not.
    pub(super) fn has(&self, key: &str) -> bool {
        key != self.switch.key
            && !self.written.contains(&key)
            && self.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// The name of the secret that the annotation `key` is about.
    pub(super) fn secret<'k>(&self, key: &'k str) -> Option<&'k str> {
        let is_plain = |name: &&str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        key.strip_prefix(self.secret?).filter(is_plain)
    }

    /// The policy, for the secret of that name. It is what a repository has, so it can be read: `None` never comes.
    pub(super) fn model(&self, secret: Option<&str>) -> Option<Model> {
        let mut text = self.text.to_owned();
        for (before, name, after) in SECRET.iter().filter(|_| self.secret.is_some()) {
            let of = |name: &str| format!("{before}{name}{after}");
            text = text.replace(&of(name), &of(secret.unwrap_or(name)));
        }
        let file = File::parse(self.title, text.clone().into_bytes()).ok()?;
        let object = file.manifests().next()?.value.clone();
        let lines = || text.lines();
        let head: Vec<&str> = lines().map_while(|line| line.strip_prefix("# ")).collect();
        let about = head.join(" ").split_once(". ").map(|(_, rest)| rest.trim_end_matches('.').to_owned());
        let pairs = lines().zip(lines().skip(1)).filter_map(|(line, next)| {
            let differs = line.trim().strip_prefix("# Differs: ")?;
            Some((next.trim().strip_prefix("- name: ")?.to_owned(), differs.trim_end_matches('.').to_owned()))
        });
        Some(Model { differs: pairs.collect(), about: about.unwrap_or_default(), object })
    }
}

impl Switch {
    /// What its value `text` says: true asks for the injector, false keeps it out, none is another value.
    pub(super) fn says(&self, text: &str) -> Option<bool> {
        if self.on.contains(&text) { Some(true) } else { OFF.contains(&text.to_lowercase().as_str()).then_some(false) }
    }

    /// Makes `spec` select the pods that ask for it by one of the values `texts`, or with those whose Namespace does.
    pub(super) fn select(&self, spec: &mut Map<String, Value>, texts: &BTreeSet<String>, is_by_condition: bool) {
        let selector = if self.is_label { "labelSelector" } else { "annotationSelector" };
        if is_by_condition {
            spec.remove(selector);
            let condition = json!([{ "name": "asked-for", "expression": self.condition }]);
            spec.insert("matchConditions".to_owned(), condition);
        } else if texts.iter().any(|text| *text != self.on()) {
            let values: BTreeSet<&str> = texts.iter().map(String::as_str).chain([self.on()]).collect();
            let of = json!({ "matchExpressions": [{ "key": self.key, "operator": "In", "values": values }] });
            spec.insert(selector.to_owned(), of);
        }
    }

    /// The key and the value by which the policy is asked for, as a manifest has them.
    pub(super) fn asked(&self) -> String {
        // Because YAML reads it as a Boolean otherwise.
        let quote = if self.on() == "true" { "\"" } else { "" };
        format!("`{}: {quote}{}{quote}`", self.key, self.on())
    }

    /// The value by which the policy is asked for.
    fn on(&self) -> &'static str {
        self.on.first().copied().unwrap_or_default()
    }
}

/// The policy that does what an injector does.
pub(super) struct Model {
    pub(super) object: Value,
    /// What it leaves out.
    pub(super) about: String,
    /// What parameters do otherwise, by name.
    pub(super) differs: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_is_read_with_what_it_says_about_itself() {
        for injector in &INJECTORS {
            let model = injector.model(None).unwrap();
            assert!(!model.about.is_empty() && !model.differs.is_empty(), "{}", injector.title);
            let parameters = model.object["spec"]["parameters"].as_array().unwrap();
            assert_eq!(parameters.len(), 10);
            for parameter in parameters {
                assert!(injector.has(parameter["annotation"].as_str().unwrap()), "{parameter}");
            }
            let selector = if injector.switch.is_label { "labelSelector" } else { "annotationSelector" };
            let asked = model.object["spec"][selector].to_string();
            let (key, on) = (injector.switch.key, injector.switch.on());
            assert!(asked.contains(&format!("{{\"{key}\":\"{on}\"}}")), "{asked}");
        }
    }

    #[test]
    fn the_policy_of_vault_is_for_the_secret_that_is_asked_for() {
        let vault = &INJECTORS[2];
        assert_eq!(vault.secret("vault.hashicorp.com/agent-inject-secret-db.yaml"), Some("db.yaml"));
        for key in ["vault.hashicorp.com/agent-inject-secret-", "vault.hashicorp.com/agent-inject-secret-a\"b", "a"] {
            assert_eq!(vault.secret(key), None, "{key}");
        }
        assert_eq!(INJECTORS[1].secret("vault.hashicorp.com/agent-inject-secret-db"), None);
        let [old, new] = [None, Some("db")].map(|secret| vault.model(secret).unwrap());
        let text = new.object.to_string();
        assert_eq!(
            text.matches("/vault/secrets/db").count(),
            old.object.to_string().matches("/vault/secrets/config").count()
        );
        assert!(text.contains("agent-inject-secret-db\"") && text.contains("+ \\\"/db\\\""), "{text}");
        assert!(!text.contains("secrets/config") && new.about.contains("`db`"), "{}", new.about);
    }
}
