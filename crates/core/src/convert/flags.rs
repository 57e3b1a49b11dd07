//! The process behind an initializer: the flags in its manifest, and their defaults.

use super::objects::{Source, Spot};
use super::{Weight, Work};
use crate::manifest::Location;
use crate::workload::Workload;
use serde_json::Value;
use std::collections::BTreeMap;

/// A flag of the tutorials' initializer, with the default from its source.
struct InitializerFlag {
    name: &'static str,
    default: &'static str,
    /// Whether it takes no value.
    is_switch: bool,
}

const INITIALIZER: &str = "initializer-name";
const CONFIG_MAP: &str = "configmap";
const NAMESPACE: &str = "namespace";
const ANNOTATION: &str = "annotation";
const REQUIRE: &str = "require-annotation";

const FLAGS: [InitializerFlag; 5] = [
    InitializerFlag { name: INITIALIZER, default: "envoy.initializer.kubernetes.io", is_switch: false },
    InitializerFlag { name: CONFIG_MAP, default: "envoy-initializer", is_switch: false },
    InitializerFlag { name: NAMESPACE, default: "default", is_switch: false },
    InitializerFlag { name: ANNOTATION, default: "initializer.kubernetes.io/envoy", is_switch: false },
    InitializerFlag { name: REQUIRE, default: "false", is_switch: true },
];
/// Flags without effect on the injected content: of a shell, of logs and of connections.
const WITHOUT_EFFECT: [&str; 9] =
    ["alsologtostderr", "c", "kubeconfig", "log_dir", "logtostderr", "master", "stderrthreshold", "v", "vmodule"];

/// A running initializer.
pub(super) struct Process {
    /// Its kind and name: `Deployment sidecar-initializer`.
    pub(super) title: String,
    /// The arguments for kubectl: `deployment/sidecar-initializer -n default`.
    pub(super) handle: String,
    /// The initializer name that it handles.
    pub(super) initializer: String,
    pub(super) config_map: String,
    pub(super) namespace: String,
    /// The annotation that it requires, if there is one.
    pub(super) annotation: Option<String>,
    /// The places of its flags.
    places: BTreeMap<&'static str, Location>,
    pub(super) place: Location,
}

impl Process {
    /// The place of `-initializer-name`, with a remark if the flag is missing.
    pub(super) fn named_at(&self) -> (Location, &'static str) {
        self.at(INITIALIZER)
    }

    /// The same for `-configmap`.
    pub(super) fn config_map_at(&self) -> (Location, &'static str) {
        self.at(CONFIG_MAP)
    }

    fn at(&self, flag: &str) -> (Location, &'static str) {
        match self.places.get(flag) {
            Some(place) => (place.clone(), ""),
            None => (self.place.clone(), " (the default, as the flag is not given)"),
        }
    }

    /// The process in `workload`, if it is an initializer.
    pub(super) fn of(source: &Source<'_>, workload: &Workload, work: &mut Work<'_>) -> Option<Self> {
        let containers = workload.pod_spec()?.get("containers")?.as_array()?;
        let is_one = |container: &&Value| {
            let texts = [&container["name"], &container["image"]].map(|text| text.as_str().unwrap_or_default());
            texts.iter().any(|text| text.contains("initializer"))
                || tokens(container).iter().any(|(_, token)| matches!(flag(token).0, INITIALIZER | REQUIRE))
        };
        let index = containers.iter().position(|container| is_one(&container))?;
        let pod: String = workload.kind.pod_path.as_ref()?.iter().map(|step| format!("{step}.")).collect();
        let path = format!("{pod}spec.containers[{index}]");
        let given = given(&containers[index], &source.spot, &path, work);
        let value = |name: &str| {
            let known = FLAGS.iter().find(|flag| flag.name == name).map_or("", |flag| flag.default);
            given.get(name).map_or(known, |(value, _)| value).to_owned()
        };
        let wants_annotation = ["1", "t", "T", "true", "TRUE", "True"].contains(&value(REQUIRE).as_str());
        if let Some((_, place)) = given.get(ANNOTATION).filter(|_| !wants_annotation) {
            work.tell(
                Weight::Note,
                place.clone(),
                "`-annotation` has no effect without `-require-annotation`: left out",
            );
        }
        Some(Self {
            title: source.title(),
            handle: format!("{}/{} -n {}", workload.kind_name().to_lowercase(), source.name(), source.namespace),
            initializer: value(INITIALIZER),
            config_map: value(CONFIG_MAP),
            namespace: value(NAMESPACE),
            annotation: wants_annotation.then(|| value(ANNOTATION)),
            places: given.into_iter().map(|(name, (_, place))| (name, place)).collect(),
            place: source.spot.place(&path),
        })
    }
}

/// The words of the command line of `container`, each with the field that it is in.
fn tokens(container: &Value) -> Vec<(String, &str)> {
    let mut tokens = Vec::new();
    for list in ["command", "args"] {
        for (index, item) in container[list].as_array().into_iter().flatten().enumerate() {
            // Split, because a shell's command is one text.
            let words = item.as_str().unwrap_or_default().split_whitespace();
            tokens.extend(words.map(|word| (format!("{list}[{index}]"), word.trim_matches(['"', '\'']))));
        }
    }
    tokens
}

/// The name of a flag, and its value after `=`; the name is empty if `token` is no flag.
fn flag(token: &str) -> (&str, Option<&str>) {
    let Some(rest) = token.strip_prefix('-') else { return ("", None) };
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)))
}

/// The known flags of `container`, which is at `path` of `spot`.
fn given(
    container: &Value,
    spot: &Spot,
    path: &str,
    work: &mut Work<'_>,
) -> BTreeMap<&'static str, (String, Location)> {
    let mut given = BTreeMap::new();
    let tokens = tokens(container);
    let mut rest = tokens.iter().peekable();
    while let Some((field, token)) = rest.next() {
        let (name, value) = flag(token);
        let place = spot.place(&format!("{path}.{field}"));
        let Some(known) = FLAGS.iter().find(|known| known.name == name) else {
            if !name.is_empty() && !WITHOUT_EFFECT.contains(&name) {
                let message =
                    format!("the flag `-{name}` is none of the tutorials' initializer: what it does is not known");
                work.tell(Weight::Lost, place, message);
            }
            continue;
        };
        let mut behind = || rest.next_if(|(_, token)| flag(token).0.is_empty()).map(|(_, token)| *token);
        let value = match value {
            Some(value) => value,
            None if known.is_switch => "true",
            None => behind().unwrap_or_default(),
        };
        match expand(value, container) {
            Ok(value) => drop(given.insert(known.name, (value, place))),
            Err(variable) => {
                let message = format!(
                    "`-{name}` has the value of `$({variable})`, which the manifest does not tell: write it out; taken as `{}`, the default",
                    known.default
                );
                work.tell(Weight::Guessed, place, message);
            }
        }
    }
    given
}

/// `text` with the variables of `container` expanded.
fn expand(text: &str, container: &Value) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, variable, after)) = rest
        .split_once("$(")
        .and_then(|(before, after)| after.split_once(')').map(|(variable, after)| (before, variable, after)))
    {
        // The last one, as the kubelet does.
        let mut variables = container["env"].as_array().into_iter().flatten().rev();
        let value = variables.find(|entry| entry["name"] == variable).and_then(|entry| entry["value"].as_str());
        expanded.push_str(before);
        expanded.push_str(value.ok_or_else(|| variable.to_owned())?);
        rest = after;
    }
    Ok(expanded + rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flags_are_read_as_go_reads_them() {
        for (token, expected) in [
            ("-a=b", ("a", Some("b"))),
            ("--a=b=c", ("a", Some("b=c"))),
            ("-a", ("a", None)),
            ("a", ("", None)),
            ("", ("", None)),
            ("-", ("", None)),
        ] {
            assert_eq!(flag(token), expected, "{token}");
        }
    }

    #[test]
    fn variables_are_put_in_where_they_are_known() {
        let container = json!({"env": [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {}}]});
        assert_eq!(expand("$(A)-$(A).y", &container), Ok("x-x.y".to_owned()));
        assert_eq!(expand("$(B)", &container), Err("B".to_owned()));
        assert_eq!(expand("$(", &container), Ok("$(".to_owned()));
    }
}
