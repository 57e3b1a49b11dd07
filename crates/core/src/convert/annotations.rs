//! Annotations of the injectors of others: one policy for each injector, with parameters of the same keys.

use super::injectors::{INJECTORS, Injector, Model};
use super::objects::{Carrier, Inputs, Spot};
use super::steps::Old;
use super::{Draft, Weight, Work};
use crate::api::v1alpha1::SidecarPolicySpec;
use crate::manifest::Location;
use crate::outside::{cut, escaped};
use crate::parameters::Parameters;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The most misspelt letters of a key: injectors have keys that differ from others by three.
const TYPOS: usize = 2;

/// Makes a policy for each injector that the manifests ask for, or give values to.
pub(super) fn convert(inputs: &Inputs<'_>, work: &mut Work<'_>) {
    for injector in &INJECTORS {
        let is_meant =
            |carrier: &&Carrier<'_>| carrier.metadata().iter().any(|(_, metadata)| injector.is_meant(metadata));
        let carriers: Vec<&Carrier<'_>> = inputs.carriers.iter().filter(is_meant).collect();
        if let Some(look) = Look::new(injector, &carriers) {
            look.convert(&carriers, work);
        }
    }
}

/// One injector, and what the manifests have for it.
struct Look<'a> {
    injector: &'static Injector,
    model: Model,
    parameters: Parameters,
    /// The Namespaces that ask for it, for all of their pods.
    namespaces: BTreeSet<&'a str>,
    /// The keys that workloads give values to.
    used: BTreeSet<String>,
    /// The keys without a parameter: each with its first place, and the number of places.
    unknown: BTreeMap<String, (Location, usize)>,
    /// The values of the switch that ask for it.
    asked: BTreeSet<String>,
    /// Whether a label or annotation of the pod is not all that asks for it.
    is_by_condition: bool,
}

impl<'a> Look<'a> {
    /// None if no carrier has anything for `injector`.
    fn new(injector: &'static Injector, carriers: &[&'a Carrier<'a>]) -> Option<Self> {
        carriers.first()?;
        let mut secrets: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, metadata) in carriers.iter().flat_map(|carrier| carrier.metadata()) {
            for name in keys(metadata).filter_map(|key| injector.secret(key)) {
                *secrets.entry(name).or_default() += 1;
            }
        }
        let commonest = secrets.into_iter().rev().max_by_key(|(_, count)| *count);
        let model = injector.model(commonest.map(|(name, _)| name))?;
        let spec: SidecarPolicySpec = serde_json::from_value(model.object["spec"].clone()).ok()?;
        let (parameters, _) = Parameters::parse(injector.title, &spec.parameters, &spec.template.unwrap_or_default());
        let asks = |carrier: &&&Carrier<'_>| {
            let of = injector.switch.of_namespaces.filter(|_| carrier.pod.is_none());
            of.is_some_and(|(field, key)| carrier.source.body["metadata"][field][key] == "enabled")
        };
        let namespaces: BTreeSet<&str> = carriers.iter().filter(asks).map(|carrier| carrier.source.name()).collect();
        Some(Self {
            injector,
            model,
            parameters,
            is_by_condition: !namespaces.is_empty(),
            namespaces,
            used: BTreeSet::new(),
            unknown: BTreeMap::new(),
            asked: BTreeSet::new(),
        })
    }

    fn convert(mut self, carriers: &[&'a Carrier<'a>], work: &mut Work<'_>) {
        let Some(first) = carriers.first() else { return };
        for carrier in carriers {
            match &carrier.pod {
                Some(pod) => self.workload(carrier, pod, work),
                None => self.namespace(carrier, work),
            }
        }
        self.tell_unknown(work);
        self.tell_differences(work);
        let mut spec = self.model.object["spec"].as_object().cloned().unwrap_or_default();
        self.injector.switch.select(&mut spec, &self.asked, self.is_by_condition);
        let place = first.source.spot.place("metadata");
        work.drafts.push(Draft {
            name: self.injector.title.to_owned(),
            spec,
            from: carriers.iter().map(|carrier| carrier.source.title()).collect(),
            initializer: None,
            old: Old::Injector { webhook: self.injector.webhook },
            template: Spot::Whole(place.clone()),
            rest: Spot::Whole(place),
        });
    }

    /// Whether the pods of `carrier`, with their metadata at `pod`, get the sidecar; then their values are looked at.
    fn workload(&mut self, carrier: &Carrier<'_>, pod: &str, work: &mut Work<'_>) {
        let (source, title) = (&carrier.source, carrier.source.title());
        if work.site.protected_namespaces.contains(source.namespace) {
            let message = format!("{title}: no policy reaches the protected namespace `{}`", source.namespace);
            return work.tell(Weight::Lost, source.spot.place("metadata.namespace"), message);
        }
        let of_pods = carrier.metadata().into_iter().find(|(path, _)| *path == pod).map(|(_, metadata)| metadata);
        if let Some(metadata) = of_pods.filter(|metadata| self.is_asked(carrier, (pod, metadata), work)) {
            self.values(carrier, (pod, metadata), work);
        }
        for (path, metadata) in carrier.metadata().into_iter().filter(|(path, _)| *path != pod) {
            let is_ours = |key: &&str| self.injector.has(key) || *key == self.injector.switch.key;
            for key in keys(metadata).filter(is_ours) {
                let is_there = of_pods.is_some_and(|metadata| metadata["annotations"].get(key).is_some());
                let what = if is_there { "remove it, for there is one in" } else { "write it into" };
                let message = format!(
                    "{title}: {} is on the workload, where {} does not read it: it had no effect; {what} `{pod}.annotations`",
                    name(key),
                    self.injector.title
                );
                work.tell(Weight::Lost, source.spot.place(&format!("{path}.annotations.{key}")), message);
            }
        }
    }

    /// Whether the pods with `metadata` get the sidecar, or may: there is a value that does not keep it out.
    fn is_asked(&mut self, carrier: &Carrier<'_>, (path, metadata): (&str, &Value), work: &mut Work<'_>) -> bool {
        let (switch, title) = (&self.injector.switch, carrier.source.title());
        let fields = [("labels", switch.is_label), ("annotations", true)];
        let mut found = fields.iter().filter(|(_, is)| *is).filter_map(|(field, _)| {
            Some((*field, metadata[*field].get(switch.key).filter(|value| !value.is_null())?))
        });
        let Some((field, value)) = found.next() else {
            self.tell_unasked(carrier, path, work);
            return true;
        };
        let place = carrier.source.spot.place(&format!("{path}.{field}.{}", switch.key));
        let text = text(switch.key, value, &place, work);
        let says = switch.says(&text);
        let written = format!("`{}: {}`", switch.key, escaped(&cut(&text, 64)));
        match says {
            Some(true) => {
                self.asked.insert(text.into_owned());
                if switch.is_label && field == "annotations" {
                    self.is_by_condition = true;
                    self.tell_unasked(carrier, path, work);
                }
            }
            Some(false) => work.tell(Weight::Note, place, format!("{title}: {written} keeps its pods out, as before")),
            None => {
                let message =
                    format!("{title}: {written} is not read: the policy leaves its pods out; write {}", switch.asked());
                work.tell(Weight::Lost, place, message);
            }
        }
        says == Some(true)
    }

    /// Reports that the pods of `carrier`, with their metadata at `path`, do not ask for the injector, unless their Namespace does.
    fn tell_unasked(&self, carrier: &Carrier<'_>, path: &str, work: &mut Work<'_>) {
        if self.namespaces.contains(carrier.source.namespace) {
            return;
        }
        let switch = &self.injector.switch;
        let what = if switch.is_label { "label" } else { "annotation" };
        let (or, add) = match switch.of_namespaces {
            Some((_, key)) => {
                (format!(", nor has its Namespace here `{key}: enabled`"), "one of them, or give the Namespace with -f")
            }
            None => (String::new(), "it"),
        };
        let message = format!(
            "{}: its pods have no {what} {}{or}: the policy leaves them out; add {add}",
            carrier.source.title(),
            switch.asked()
        );
        work.tell(Weight::Guessed, carrier.source.spot.place(path), message);
    }

    /// Looks at the values in the annotations of `metadata`, which is at `path`.
    fn values(&mut self, carrier: &Carrier<'_>, (path, metadata): (&str, &Value), work: &mut Work<'_>) {
        let is_namespace = carrier.pod.is_none();
        for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
            if !self.injector.has(key) {
                continue;
            }
            let place = carrier.source.spot.place(&format!("{path}.annotations.{key}"));
            let Some(parameter) = self.parameters.iter().find(|it| it.annotation.as_ref() == Some(key)) else {
                self.unknown.entry(key.clone()).or_insert((place, 0)).1 += 1;
                continue;
            };
            let title = carrier.source.title();
            if is_namespace && !parameter.from_namespace {
                let message = format!(
                    "{title}: the policy reads {} of pods alone; write it on the pods of this namespace, or write \
                     `fromNamespace: true` in the parameter `{}`",
                    name(key),
                    parameter.name
                );
                work.tell(Weight::Lost, place, message);
                continue;
            }
            self.used.insert(parameter.name.clone());
            let text = text(key, value, &place, work);
            let Err(fault) = parameter.judge_openly(&text) else { continue };
            let what = if fault.contains("; write ") { "" } else { "; write such a value" };
            let message = format!(
                "{title}: {} {fault}{what}, or allow it in the parameter `{}`: a wrong value keeps the sidecar out (SCP0245)",
                name(key),
                parameter.name
            );
            work.tell(Weight::Lost, place, message);
        }
    }

    fn namespace(&mut self, carrier: &Carrier<'_>, work: &mut Work<'_>) {
        let metadata = &carrier.source.body["metadata"];
        if self.injector.reads_namespaces {
            return self.values(carrier, ("metadata", metadata), work);
        }
        for key in keys(metadata).filter(|key| self.injector.has(key) || *key == self.injector.switch.key) {
            let message = format!(
                "{}: {} is on a Namespace, where {} does not read it: it had no effect; write it on pods",
                carrier.source.title(),
                name(key),
                self.injector.title
            );
            work.tell(Weight::Lost, carrier.source.spot.place(&format!("metadata.annotations.{key}")), message);
        }
    }

    fn tell_unknown(&self, work: &mut Work<'_>) {
        let known = || self.parameters.iter().filter_map(|parameter| parameter.annotation.as_deref());
        for (number, (key, (place, count))) in self.unknown.iter().enumerate() {
            let key = cut(key, 128);
            // Another secret is no misspelt one, and users can write any number of keys.
            let is_compared = self.injector.secret(&key).is_none() && number < MOST_COMPARED;
            let is_near = |known: &&str| known.len().abs_diff(key.len()) <= TYPOS;
            let near = known().filter(is_near).filter(|_| is_compared);
            let meant = near.into_iter().find(|known| strsim::damerau_levenshtein(known, &key) <= TYPOS);
            let meant = meant.map(|meant| format!("; did you mean `{meant}`?"));
            let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
            let otherwise = match self.injector.secret(&key) {
                Some(_) => ", because it is for one secret: add this one to the template",
                None => ": write what it does into the template, or declare a parameter",
            };
            let message = format!(
                "{}{times}: the policy of {} has no parameter for it{}",
                name(&key),
                self.injector.title,
                meant.as_deref().unwrap_or(otherwise)
            );
            work.tell(Weight::Lost, place.clone(), message);
        }
    }

    /// Reports what the policy says about itself, and about the parameters that matter here.
    fn tell_differences(&self, work: &mut Work<'_>) {
        let title = self.injector.title;
        work.tell(Weight::Differs, None, format!("{title}: {}", self.model.about));
        for parameter in self.parameters.iter() {
            let Some(differs) = self.model.differs.get(&parameter.name) else { continue };
            // Because a default is for those who give no value.
            if self.used.contains(&parameter.name) || differs.contains("the default") {
                let key = parameter.annotation.as_deref().unwrap_or_default();
                work.tell(Weight::Differs, None, format!("{title}: `{key}`: {differs}"));
            }
        }
    }
}

/// The most unknown annotations that are compared with those of parameters.
const MOST_COMPARED: usize = 100;

/// The keys of the annotations of `metadata`.
fn keys(metadata: &Value) -> impl Iterator<Item = &str> {
    metadata["annotations"].as_object().into_iter().flat_map(Map::keys).map(String::as_str)
}

/// The key of an annotation in a message.
fn name(key: &str) -> String {
    format!("`{}`", escaped(&cut(key, 128)))
}

/// The value of the annotation `key`, at `place`, as a text.
fn text<'v>(key: &str, value: &'v Value, place: &Location, work: &mut Work<'_>) -> Cow<'v, str> {
    if let Some(text) = value.as_str() {
        return text.into();
    }
    let text = value.to_string();
    let message = format!(
        "{} has the value {} without quotes, which no server takes: write it in quotes; read as text",
        name(key),
        escaped(&cut(&text, 64))
    );
    work.tell(Weight::Guessed, place.clone(), message);
    text.into()
}

#[cfg(test)]
mod tests {
    use crate::convert::{Conversion, Weight, convert};
    use crate::manifest::File;
    use crate::policy::Site;
    use serde_json::{Value, json};

    fn converted(manifests: &[Value]) -> Conversion {
        let text = serde_json::to_vec(&json!({ "apiVersion": "v1", "kind": "List", "items": manifests })).unwrap();
        convert(&[File::parse("t.json", text).unwrap()], &[], "shop", &Site::new("scpol-system", [], []))
    }

    fn deployment(labels: &Value, annotations: &Value) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": { "template": { "metadata": { "labels": labels, "annotations": annotations }, "spec": { "containers": [] } } },
        })
    }

    fn namespace(labels: &Value, annotations: &Value) -> Value {
        let metadata = json!({ "name": "shop", "labels": labels, "annotations": annotations });
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
    }

    /// The findings of a weight.
    fn told(conversion: &Conversion, weight: Weight) -> Vec<&str> {
        let of = conversion.findings.iter().filter(|finding| finding.weight == weight);
        of.map(|finding| finding.message.as_str()).collect()
    }

    #[test]
    fn each_injector_that_the_manifests_ask_for_becomes_its_policy() {
        let none = json!({});
        for (labels, annotations, name) in [
            (&none, json!({ "linkerd.io/inject": "enabled" }), "linkerd"),
            (&none, json!({ "dapr.io/enabled": "true", "dapr.io/app-id": "web" }), "dapr"),
            (&none, json!({ "vault.hashicorp.com/agent-inject": "true" }), "vault"),
            (&json!({ "sidecar.istio.io/inject": "true" }), none.clone(), "istio"),
        ] {
            let conversion = converted(&[deployment(labels, &annotations)]);
            let names: Vec<_> = conversion.policies.iter().map(|policy| policy.name.as_str()).collect();
            assert_eq!(names, [name]);
            assert!(!conversion.needs_attention(), "{:?}", conversion.findings);
            assert_eq!(conversion.policies[0].from, ["Deployment web"]);
        }
        assert!(converted(&[deployment(&none, &json!({ "example.com/a": "b" }))]).policies.is_empty());
    }

    #[test]
    fn what_the_policy_would_refuse_or_does_not_know_is_lost() {
        let on = |key: &str, value: Value| {
            let mut annotations = json!({ "dapr.io/enabled": "true" });
            annotations[key] = value;
            deployment(&json!({}), &annotations)
        };
        for (key, value, weight, expected) in [
            (
                "dapr.io/sidecar-memory-limit",
                json!("512m"),
                Weight::Lost,
                "is `512m`; write `512Mi`, or allow it in the parameter `memory-limit`",
            ),
            (
                "dapr.io/log-level",
                json!("loud"),
                Weight::Lost,
                "is `loud`; write such a value, or allow it in the parameter `log-level`",
            ),
            ("dapr.io/app-prot", json!("80"), Weight::Lost, "did you mean `dapr.io/app-port`?"),
            (
                "dapr.io/app-ssl",
                json!("true"),
                Weight::Lost,
                "`dapr.io/app-ssl`: the policy of Dapr has no parameter for it: write",
            ),
            ("dapr.io/app-port", json!(8080), Weight::Guessed, "8080 without quotes"),
            ("dapr.io/enabled", json!("maybe"), Weight::Lost, "write `dapr.io/enabled: \"true\"`"),
            ("dapr.io/enabled", json!("false"), Weight::Note, "keeps its pods out"),
        ] {
            let conversion = converted(&[on(key, value)]);
            let told = told(&conversion, weight);
            assert!(told.len() == 1 && told[0].contains(expected), "{key}: {told:#?}");
        }
        let twice = converted(&[on("dapr.io/app-ssl", json!("true")), on("dapr.io/app-ssl", json!("true"))]);
        let told = told(&twice, Weight::Lost);
        assert!(told.len() == 1 && told[0].contains("(2 times)"), "{told:#?}");
    }

    #[test]
    fn the_switch_becomes_the_selector_wherever_it_is() {
        let spec = |manifests: &[Value]| converted(manifests).policies.remove(0).object["spec"].take();
        let none = json!({});
        let of_linkerd = json!({ "linkerd.io/inject": "enabled" });
        let on_pods = spec(&[deployment(&none, &of_linkerd)]);
        assert_eq!(on_pods["annotationSelector"], json!({ "matchAnnotations": of_linkerd }));
        for manifest in [
            namespace(&none, &of_linkerd),
            namespace(&json!({ "istio-injection": "enabled" }), &none),
            deployment(&none, &json!({ "sidecar.istio.io/inject": "true" })),
        ] {
            let by_condition = spec(&[manifest]);
            assert!(by_condition["annotationSelector"].is_null() && by_condition["labelSelector"].is_null());
            assert_eq!(by_condition["matchConditions"][0]["name"], "asked-for");
        }
        let yes = spec(&[deployment(&none, &json!({ "dapr.io/enabled": "yes" }))]);
        let expected = json!([{ "key": "dapr.io/enabled", "operator": "In", "values": ["true", "yes"] }]);
        assert_eq!(yes["annotationSelector"]["matchExpressions"], expected);
    }

    #[test]
    fn an_annotation_where_no_injector_reads_it_is_lost() {
        let mut on_workload = deployment(&json!({}), &json!({ "dapr.io/enabled": "true" }));
        on_workload["metadata"]["annotations"] = json!({ "dapr.io/app-id": "web" });
        let mut protected = deployment(&json!({}), &json!({ "dapr.io/enabled": "true" }));
        protected["metadata"]["namespace"] = "kube-system".into();
        let asked = deployment(&json!({}), &json!({ "linkerd.io/inject": "enabled" }));
        for (manifests, expected) in [
            (vec![on_workload], "`dapr.io/app-id` is on the workload"),
            (vec![protected], "the protected namespace `kube-system`"),
            (vec![namespace(&json!({}), &json!({ "dapr.io/app-id": "web" }))], "is on a Namespace"),
            (
                vec![
                    asked.clone(),
                    namespace(&json!({}), &json!({ "config.linkerd.io/proxy-version": "edge-26.8.2" })),
                ],
                "of pods alone",
            ),
            (vec![asked, namespace(&json!({}), &json!({ "config.linkerd.io/proxy-memory-limit": "1" }))], "is `1`"),
        ] {
            let conversion = converted(&manifests);
            let told = told(&conversion, Weight::Lost);
            assert!(told.len() == 1 && told[0].contains(expected), "{told:#?}");
        }
        let unasked = converted(&[deployment(&json!({}), &json!({ "config.linkerd.io/proxy-cpu-limit": "1" }))]);
        let of_linkerd = told(&unasked, Weight::Guessed);
        assert!(of_linkerd.len() == 1 && of_linkerd[0].contains("have no annotation `linkerd.io/inject: enabled`"));
        // Istio does not look at the annotation where its webhook is not called.
        let by_annotation = deployment(&json!({}), &json!({ "sidecar.istio.io/inject": "true" }));
        let unasked = converted(std::slice::from_ref(&by_annotation));
        let told = told(&unasked, Weight::Guessed);
        assert!(
            told.len() == 1 && told[0].contains("have no label `sidecar.istio.io/inject: \"true\"`, nor"),
            "{told:#?}"
        );
        let of_namespace = namespace(&json!({ "istio-injection": "enabled" }), &json!({}));
        assert!(!converted(&[of_namespace, by_annotation]).needs_attention());
    }
}
