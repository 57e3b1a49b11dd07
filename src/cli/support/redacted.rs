//! What is kept of objects that others will see: known fields with values of a known form. All else becomes [`REDACTED`].

use crate::cli::installed::OPERATOR;
use crate::cli::run::RunOptions;
use clap::{Arg, Args};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What stands in place of a value.
pub(super) const REDACTED: &str = "(redacted)";

/// The most characters of a name.
const NAME: usize = 253;

/// The fields with objects, or lists of these, whose fields are looked at. The object itself has no name.
#[rustfmt::skip]
const PARTS: &[&str] = &[
    "", "metadata", "ownerReferences", "spec", "status", "conditions", "failures",
    // Policies.
    "targets", "template", "pod", "position", "updateStrategy", "rollingUpdate", "steps", "pause", "share", "validations",
    "matchConditions", "annotationSelector", "labelSelector", "namespaceSelector", "objectSelector", "workloadSelector",
    "selector", "matchExpressions", "terminationGracePeriodSeconds", "parameters",
    // Pods and Deployments.
    "containers", "initContainers", "ephemeralContainers", "env", "envFrom", "valueFrom", "secretKeyRef", "configMapKeyRef",
    "fieldRef", "resourceFieldRef", "secretRef", "configMapRef", "ports", "resources", "volumeMounts", "volumeDevices",
    "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "postStart", "preStop", "exec", "httpGet", "httpHeaders",
    "tcpSocket", "grpc", "sleep", "securityContext", "capabilities", "seccompProfile", "appArmorProfile", "volumes", "secret",
    "configMap", "emptyDir", "hostPath", "projected", "sources", "serviceAccountToken", "downwardAPI", "items",
    "persistentVolumeClaim", "csi", "imagePullSecrets", "tolerations", "topologySpreadConstraints", "strategy", "affinity",
    "nodeAffinity", "podAffinity", "podAntiAffinity", "podAffinityTerm", "preference", "nodeSelectorTerms", "matchFields",
    "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution",
    "containerStatuses", "initContainerStatuses", "state", "lastState", "waiting", "running", "terminated",
    // Registrations.
    "initializers", "webhooks", "clientConfig", "service", "rules", "matchConstraints", "resourceRules",
    "excludeResourceRules", "matchResources", "mutations", "variables", "paramKind", "jsonPatch", "applyConfiguration",
    // Events.
    "involvedObject", "related", "source", "series",
];

/// The fields whose texts of the form of a name, numbers and booleans are kept. `PARENT.FIELD` is that field of that one only.
#[rustfmt::skip]
const KEPT: &[&str] = &[
    "apiVersion", "kind", "name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp", "finalizers",
    "ownerReferences.controller", "resourceVersion", "type", "status", "reason", "lastTransitionTime", "lastUpdateTime",
    "lastProbeTime", "observedGeneration",
    // Versions and revisions.
    "scpol", "commit", "kubernetes", "revision",
    // Policies.
    "spec.engine", "failurePolicy", "hostNetworkPods", "initializerName", "jobs", "mode", "namespaces", "excludeNamespaces",
    "nativeSidecars", "optOut", "priority", "replaces", "revisionHistoryLimit", "suspend", "position.containers",
    "position.env", "position.envFrom", "position.initContainers", "position.volumeMounts", "group", "resource", "version",
    "operations", "templatePath", "appContainers", "merge", "includeInitContainers", "shareProcessNamespace", "atLeast",
    "share.env", "share.from", "share.to", "share.readOnly", "share.volumeMounts", "matchExpressions.key", "operator",
    "matchExpressions.values", "edited", "paused", "failureThreshold", "maxUnavailable", "maxUnavailablePerNamespace",
    "minReadySeconds", "onFailure", "podUpdate", "progressDeadlineSeconds", "duration", "percent", "percentOfWorkloads",
    "parameters.annotation", "parameters.fromNamespace", "parameters.maxLength", "parameters.maximum", "parameters.minimum",
    "parameters.paths", "currentRevision", "failed", "failures.code", "failures.time", "halted", "injected", "matched", "missed",
    "observedSpecHash", "outdated", "pending", "ready", "restartedAt", "templateHash", "updateRevision", "updated",
    // Pods and Deployments.
    "image", "imageID", "imagePullPolicy", "restartPolicy", "terminationMessagePolicy", "secretKeyRef.key",
    "configMapKeyRef.key", "optional", "fieldPath", "containerName", "divisor", "prefix", "containerPort", "hostPort",
    "protocol", "port", "scheme", "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold",
    "terminationGracePeriodSeconds", "seconds", "mountPath", "readOnly", "mountPropagation", "recursiveReadOnly",
    "runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "supplementalGroups", "privileged", "allowPrivilegeEscalation",
    "readOnlyRootFilesystem", "add", "drop", "secretName", "claimName", "medium", "sizeLimit", "defaultMode",
    "expirationSeconds", "audience", "driver", "serviceAccount", "serviceAccountName", "automountServiceAccountToken",
    "nodeName", "hostNetwork", "hostPID", "hostIPC", "hostUsers", "dnsPolicy", "priorityClassName", "preemptionPolicy",
    "schedulerName", "enableServiceLinks", "runtimeClassName", "tolerations.key", "effect", "tolerationSeconds", "maxSkew",
    "topologyKey", "whenUnsatisfiable", "weight", "replicas", "maxSurge", "availableReplicas", "readyReplicas", "updatedReplicas",
    "unavailableReplicas", "phase", "qosClass", "startTime", "started", "restartCount", "startedAt",
    "finishedAt", "exitCode", "signal",
    // Registrations.
    "apiGroups", "apiVersions", "scope", "sideEffects", "matchPolicy", "reinvocationPolicy", "admissionReviewVersions",
    "rules.resources", "resourceRules.resources", "excludeResourceRules.resources", "service.path", "patchType",
    "validationActions", "policyName", "parameterNotFoundAction",
    // Events and leases.
    "count", "firstTimestamp", "lastTimestamp", "eventTime", "action", "reportingComponent", "reportingInstance",
    "component", "lastObservedTime", "holderIdentity", "leaseDurationSeconds", "leaseTransitions", "acquireTime",
    "renewTime",
];

/// The fields with any names, each with a text of the form of a name.
const MAPS: &[&str] = &["labels", "matchLabels", "matchAnnotations", "nodeSelector", "requests", "limits"];

/// The fields with sentences and addresses of ours, or of a policy. Hidden values and credentials are taken out of them.
#[rustfmt::skip]
const PROSE: &[&str] = &[
    ".message", ".note", "conditions.message", "failures.message", "waiting.message", "status.engine", "validations.message",
    "parameters.description", "clientConfig.url",
];
/// The fields with CEL: prose in a policy, and in a registration the content of templates.
const CEL: &[&str] = &["expression", "messageExpression"];
/// The fields with words of a command line.
const WORDS: &[&str] = &["args", "command"];

/// The annotation in which kubectl keeps the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What objects are.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Redaction {
    /// Any without a template.
    #[default]
    Plain,
    /// Policies, whose CEL is shown.
    Policies,
    /// Registrations, whose CEL has templates in it.
    Registrations,
    /// Those that run the operator, whose flags are shown.
    Operator,
}

impl Redaction {
    /// What is kept of `object`. Adds its values to `found`. Sentences are as `prose` changes them.
    pub(super) fn applied(self, object: &Value, prose: &dyn Fn(&str) -> String, found: &mut Found) -> Value {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        Walk { redaction: self, prose, found }.value(("", ""), &mut object);
        object
    }
}

/// The values of an object.
#[derive(Default)]
pub(super) struct Found {
    pub(super) hidden: BTreeSet<String>,
    /// The names that are kept. Where one of them is also a hidden value, it is no secret.
    pub(super) shown: BTreeSet<String>,
}

/// A field, behind that of the object that has it.
type Place<'a> = (&'a str, &'a str);

fn is_in(list: &[&str], (parent, field): Place<'_>) -> bool {
    let is_here = |entry: &str| entry.split_once('.').is_some_and(|place| place == (parent, field));
    list.iter().any(|entry| *entry == field || is_here(entry))
}

/// The way through one object.
struct Walk<'a> {
    redaction: Redaction,
    prose: &'a dyn Fn(&str) -> String,
    found: &'a mut Found,
}

impl Walk<'_> {
    fn value(&mut self, place: Place<'_>, value: &mut Value) {
        let is_prose = is_in(PROSE, place) || (self.redaction == Redaction::Policies && is_in(CEL, place));
        match value {
            Value::Object(fields) if is_in(PARTS, place) => self.fields(place, fields),
            Value::Object(fields) if is_in(MAPS, place) => self.map(fields),
            Value::Object(fields) if place.1 == "annotations" => self.annotations(fields),
            Value::Array(items) if is_in(WORDS, place) => items.iter_mut().for_each(|word| self.word(word)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(place, item)),
            Value::String(text) if is_prose => *text = (self.prose)(text),
            value if is_in(KEPT, place) => self.plain(value),
            value => self.hide(value),
        }
    }

    fn fields(&mut self, (_, field): Place<'_>, fields: &mut Map<String, Value>) {
        self.names(fields);
        let is_ours = self.redaction == Redaction::Operator
            && field == "containers"
            && fields.get("name").is_some_and(|name| name == OPERATOR);
        for (name, value) in fields {
            match (is_ours, value) {
                (true, Value::Array(words)) if WORDS.contains(&name.as_str()) => self.own_words(words),
                (true, Value::Array(variables)) if name == "env" => self.own_variables(variables),
                (_, value) => self.value((field, name), value),
            }
        }
    }

    /// Hides the names of `fields` that have not the form of a name.
    fn names(&mut self, fields: &mut Map<String, Value>) {
        let odd: Vec<_> = fields.keys().filter(|name| !is_name(name)).cloned().collect();
        for name in odd {
            fields.remove(&name).into_iter().for_each(|mut value| self.hide(&mut value));
            fields.insert(REDACTED.to_owned(), REDACTED.into());
            self.found.hidden.insert(name);
        }
    }

    fn map(&mut self, fields: &mut Map<String, Value>) {
        self.names(fields);
        fields.values_mut().for_each(|value| self.plain(value));
    }

    /// Hides a value that has not the form of a name.
    fn plain(&mut self, value: &mut Value) {
        if !is_plain(value) {
            return self.hide(value);
        }
        self.found.shown.extend(value.as_str().map(str::to_owned));
    }

    /// Hides the annotations that are not ours.
    fn annotations(&mut self, fields: &mut Map<String, Value>) {
        self.names(fields);
        for (key, value) in fields {
            match value {
                Value::String(text) if key.starts_with("scpol.dev/") => *text = (self.prose)(text),
                Value::String(text) if key == LAST_APPLIED => {
                    // Of the object in it, the same values are hidden, and its names are no secrets.
                    let mut object = serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into());
                    self.value(("", ""), &mut object);
                    *value = REDACTED.into();
                }
                value => self.hide(value),
            }
        }
    }

    /// Hides a word of a command, but for the name of a flag.
    fn word(&mut self, word: &mut Value) {
        let Some(text) = word.as_str() else { return self.hide(word) };
        match text.split_once('=') {
            None if is_flag(text) => {}
            Some((flag, value)) if is_flag(flag) => {
                self.found.hidden.insert(value.to_owned());
                *word = format!("{flag}={REDACTED}").into();
            }
            _ => {
                // A flag of one letter may have its value right behind it.
                self.found.hidden.extend(text.strip_prefix('-').and_then(|text| text.get(1..)).map(str::to_owned));
                self.hide(word);
            }
        }
    }

    /// Hides the words of the operator's command, but for its path and the flags of `scpol run`.
    fn own_words(&mut self, words: &mut [Value]) {
        let (flags, mut is_value) = (run_flags(), false);
        for word in words {
            let text = word.as_str().unwrap_or_default();
            let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
            let known = flags.iter().find(|known| flag.strip_prefix("--") == known.get_long());
            let is_kept = match known {
                Some(_) if value.is_some() => value.is_some_and(is_setting),
                None if is_value => is_setting(text),
                None => text == "run" || (is_name(text) && text.rsplit('/').next() == Some(OPERATOR)),
                Some(_) => true,
            };
            is_value = value.is_none() && known.is_some_and(|known| known.get_action().takes_values());
            if !is_kept {
                self.hide(word);
            }
        }
    }

    /// Hides the values of variables, but for those of `scpol run`.
    fn own_variables(&mut self, variables: &mut [Value]) {
        let flags = run_flags();
        for variable in variables {
            let is_of = |flag: &Arg| flag.get_env().is_some_and(|name| variable["name"] == *name.to_string_lossy());
            let is_known = flags.iter().any(is_of);
            let is_shown = |value: &&mut Value| is_known && value.as_str().is_some_and(is_setting);
            let shown = variable.get_mut("value").filter(is_shown).map(Value::take);
            self.value(("containers", "env"), variable);
            if let Some(shown) = shown {
                variable["value"] = shown;
            }
        }
    }

    fn hide(&mut self, value: &mut Value) {
        match value {
            Value::Null => return,
            Value::String(text) if text.is_empty() => return,
            Value::String(text) => self.found.hidden.extend([text.clone()]),
            Value::Number(number) => self.found.hidden.extend([number.to_string()]),
            Value::Bool(_) => {}
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.hide(field)),
        }
        *value = REDACTED.into();
    }
}

/// The flags of `scpol run`. Their values are no secrets.
fn run_flags() -> Vec<Arg> {
    RunOptions::augment_args(clap::Command::new("run")).get_arguments().cloned().collect()
}

/// Whether `text` is the name of a flag, and no value that is attached to one. `-D` may have the name of a property behind it.
fn is_flag(text: &str) -> bool {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || b"-.".contains(&byte));
    let name = text.strip_prefix("--").or_else(|| text.strip_prefix("-D")).filter(|name| !name.is_empty());
    let is_letter = text.len() == 2 && text.starts_with('-') && text.as_bytes()[1].is_ascii_alphabetic();
    text.len() <= 40 && (name.is_some_and(is_name) || is_letter)
}

/// Whether `value` is a number, a boolean, or a text of the form of a name, an image, a path, a time or an amount: no address.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Number(_) | Value::Bool(_) => true,
        Value::String(text) => {
            let is_part = text.strip_suffix('%').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
            let (name, digest) = text.split_once("@sha256:").unwrap_or((text, ""));
            is_part || is_name(name) && !name.contains("//") && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
        }
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn is_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/*+[]'".contains(&byte);
    text.len() <= NAME && text.bytes().all(is_of_name)
}

/// Whether `text` may be the value of a flag of ours. No address has a user in it then, and no query.
fn is_setting(text: &str) -> bool {
    is_name(&text.replace([',', '='], ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is kept of `object`, as text, and what is hidden.
    fn kept(redaction: Redaction, object: &Value) -> (String, Vec<String>) {
        let mut found = Found::default();
        let object = redaction.applied(object, &str::to_owned, &mut found);
        (object.to_string(), found.hidden.into_iter().collect())
    }

    /// What is kept of `container` in a policy.
    fn of_container(container: &Value) -> (String, Vec<String>) {
        kept(Redaction::Policies, &json!({ "spec": { "template": { "containers": [container] } } }))
    }

    #[test]
    fn what_may_be_a_secret_is_replaced_wherever_a_policy_has_it() {
        let template = json!({
            "containers": [{
                "name": "a", "image": "a:1", "command": ["sh", "-c", "curl -u me:S1"], "args": ["--user=S2", "--verbose", "-pS3", "S4"],
                "env": [{ "name": "TOKEN", "value": "S5" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                "livenessProbe": {
                    "httpGet": { "port": 80, "httpHeaders": [{ "name": "Authorization", "value": "S6" }] },
                    "exec": { "command": ["S7"] },
                },
            }],
            "volumes": [{ "name": "v", "csi": { "driver": "d", "volumeAttributes": { "key": "S8", "name": "S13" } } }],
            "metadata": { "annotations": { "a": "S9" }, "labels": { "app": "web" } },
            "env": [{ "name": "C", "value": "S10", "merge": "Append" }],
        });
        let last = json!({ "kubectl.kubernetes.io/last-applied-configuration": "S11", "scpol.dev/contact": "team" });
        let policy = json!({
            "metadata": { "name": "p", "annotations": last, "managedFields": [{ "f": "S12" }] },
            "spec": { "updateStrategy": { "rollingUpdate": { "maxUnavailable": "25%" } }, "template": template, "matchConditions": [{ "name": "n", "expression": "object.a == 'b'" }] },
            "status": { "conditions": [{ "type": "Ready", "message": "SCP0002: in effect" }], "engine": "A, B", "ready": 7 },
        });
        let (text, hidden) = kept(Redaction::Policies, &policy);
        for number in 1..=13 {
            assert!(
                !text.contains(&format!("S{number}\"")) && !text.contains(&format!("S{number} ")),
                "S{number}: {text}"
            );
        }
        for kept in [
            "\"a:1\"",
            "--verbose",
            "--user=(redacted)",
            "\"secretKeyRef\":{\"key\":\"k\"",
            "\"team\"",
            "\"app\":\"web\"",
            "object.a == 'b'",
            "SCP0002: in effect",
            "A, B",
            "\"ready\":7",
            "25%",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        assert!(["S2", "S5", "S8", "S13"].iter().all(|secret| hidden.iter().any(|text| text == secret)), "{hidden:?}");
    }

    #[test]
    fn of_a_parameter_the_values_of_texts_are_hidden() {
        let parameters = json!([
            {
                "name": "memory", "type": "Quantity", "description": "Memory of the proxy", "annotation": "a.example.com/memory",
                "paths": ["containers[envoy].env[A].value"], "minimum": "64Mi", "maximum": 7, "fromNamespace": true,
            },
            { "name": "key", "enum": ["S1"], "pattern": "S2", "maxLength": 63, "expression": "object.metadata.name" },
        ]);
        let (text, hidden) = kept(Redaction::Policies, &json!({ "spec": { "parameters": parameters } }));
        assert_eq!(hidden, ["S1", "S2"]);
        let hidden = json!({ "enum": [REDACTED], "pattern": REDACTED });
        let mut expected = parameters.clone();
        (expected[1]["enum"], expected[1]["pattern"]) = (hidden["enum"].clone(), hidden["pattern"].clone());
        assert_eq!(text, json!({ "spec": { "parameters": expected } }).to_string());
    }

    #[test]
    fn of_a_word_nothing_but_the_name_of_a_flag_is_kept() {
        for (word, kept) in [
            ("-HAuthorization: Basic dXNlcjpodW50ZXIy=", REDACTED),
            ("-uadmin:cGFzczE=", REDACTED),
            ("--auth dXNlcjpwYXNz=", REDACTED),
            ("-pHunter22=x", REDACTED),
            ("-phunter=x", REDACTED),
            ("hunter2=x", REDACTED),
            ("--Hunter2=x", REDACTED),
            ("-Dpw=x", "-Dpw=(redacted)"),
            ("-Djavax.net.pw=x", "-Djavax.net.pw=(redacted)"),
            ("--user=a=b", "--user=(redacted)"),
            ("-u", "-u"),
            ("--", REDACTED),
        ] {
            let (text, hidden) = of_container(&json!({ "args": [word] }));
            assert!(text.contains(&format!("[\"{kept}\"]")), "{word}: {text}");
            let secret = word.split_once('=').map_or(word, |(_, value)| value);
            assert!(word == "-u" || hidden.iter().any(|hidden| hidden.contains(secret)), "{word}: {hidden:?}");
        }
        let (_, hidden) = of_container(&json!({ "args": ["-pHunter22=x"] }));
        assert!(hidden.contains(&"Hunter22=x".to_owned()), "{hidden:?}");
    }

    #[test]
    fn a_field_that_is_not_listed_and_a_value_of_another_form_are_hidden() {
        for (number, container) in [
            json!({ "livenessProbe": { "httpGet": { "path": "/health?token=S3" } } }),
            json!({ "lifecycle": { "postStart": { "httpGet": { "path": "/S3" } } } }),
            json!({ "gitRepo": { "repository": "https://user:S3@host" } }),
            json!({ "azureDisk": { "diskURI": "https://host?sig=S3" } }),
            json!({ "image": "user:S3@registry.example.com/a:1" }),
            json!({ "image": "https://user:S3@registry.example.com/a" }),
            json!({ "image": "a:1@sha256:0a", "name": "a b=S3" }),
            json!({ "env": [{ "name": "PASSWORD=S3" }] }),
            json!({ "env": [{ "name": "PIN", "value": { "name": "S3" } }] }),
            json!({ "env": ["PASSWORD", "S3"] }),
            json!({ "environment": { "name": "S3" } }),
            json!({ "secret": "S3", "env": "S3", "args": "S3", "resources": "S3" }),
            json!({ "resources": { "limits": { "cpu": { "name": "S3" } } } }),
            json!({ "volumeMounts": [{ "mountPath": "/a", "subPathExpr": "S3" }] }),
            json!({ "my password is S3": 1 }),
            json!({ "annotations": { "key is S3": "a" } }),
            json!({ "terminated": { "message": "S3" } }),
            json!({ "claimName": "https://hooks.example.com/S3" }),
        ]
        .iter()
        .enumerate()
        {
            let (text, _) = of_container(container);
            assert!(!text.contains("S3") && text.contains(REDACTED), "{number}: {text}");
        }
        for pin in [json!({ "env": [{ "name": "PIN", "value": 48151 }] }), json!({ "pin": 48151 })] {
            let (text, hidden) = of_container(&pin);
            assert!(!text.contains("48151") && hidden == ["48151"], "{text}: {hidden:?}");
        }
        let (text, _) =
            of_container(&json!({ "image": "reg:5000/a:1@sha256:0a", "resources": { "limits": { "cpu": "100m" } } }));
        assert!(text.contains("reg:5000/a:1@sha256:0a") && text.contains("100m"), "{text}");
    }

    #[test]
    fn the_names_in_the_last_applied_object_are_no_secrets() {
        let last = json!({ "metadata": { "namespace": "scpol-system" }, "spec": { "template": { "env": [
            { "name": "A", "value": "S3cret" }] } } });
        let annotations = json!({ LAST_APPLIED: last.to_string() });
        let (text, hidden) = kept(Redaction::Policies, &json!({ "metadata": { "annotations": annotations } }));
        assert!(!text.contains("S3cret") && hidden == ["S3cret"], "{text}: {hidden:?}");
    }

    #[test]
    fn registrations_hide_their_cel() {
        let policy = json!({ "spec": { "mutations": [{ "jsonPatch": { "expression": "S1" } }] }, "webhooks": [{
            "name": "w", "clientConfig": { "caBundle": "S2", "service": { "name": "scpol", "path": "/inject" } } }] });
        let (text, _) = kept(Redaction::Registrations, &policy);
        assert!(!text.contains("\"S") && text.contains("\"scpol\"") && text.contains("/inject"), "{text}");
    }

    #[test]
    fn the_operator_shows_its_own_flags_and_no_other() {
        let own = json!({ "name": "scpol", "command": ["/scpol", "run", "S3"],
            "args": ["--log-level=info,kube=debug", "--listen", "[::]:8080", "--token=S3", "--token", "S3", "--priority-lane",
                "S3", "--webhook-url=https://a:S3@b", "--webhook-url", "https://a:S3@b"],
            "env": [{ "name": "SCPOL_WORKERS", "value": "8" }, { "name": "SCPOL_TOKEN", "value": "S3" }, "S3",
                { "name": "HTTPS_PROXY", "value": "http://a:S3@b" }, { "name": "SCPOL_WEBHOOK_URL", "value": "https://a:S3@b" }] });
        let other = json!({ "name": "proxy", "args": ["--log-level=S3", "S3"], "command": ["/scpol", "--listen", "S3"],
            "env": [{ "name": "SCPOL_WORKERS", "value": "S3" }, { "name": "SCPOL_TOKEN", "value": "S3" }] });
        let pod =
            json!({ "spec": { "containers": [own, other, "S3", { "args": ["S3"] }], "initContainers": [other] } });
        let (text, _) = kept(Redaction::Operator, &pod);
        assert!(!text.contains("S3"), "{text}");
        for shown in [
            "\"/scpol\",\"run\"",
            "--log-level=info,kube=debug",
            "\"--listen\",\"[::]:8080\"",
            "--priority-lane",
            "\"8\"",
        ] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
        assert_eq!(text.matches("\"8\"").count(), 1, "{text}");
    }
}
