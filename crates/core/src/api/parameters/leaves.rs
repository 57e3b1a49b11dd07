//! The values of a template that a parameter can replace: one table, from which paths are read, values are judged, and
//! the page of users is made.
//!
//! No row touches a security context, a port of the host, the type of a volume, an account, the host of a probe, or the
//! name of a container. So no value changes what Pod Security says of a template.

use super::forms;
use super::tokens::{Token, tokens};
use crate::api::format;
use crate::api::schema::listed;
use crate::api::v1alpha1::ParameterType;
use std::fmt::Write;

/// A value, or an item, of a template.
#[derive(Debug)]
pub(super) struct Leaf {
    /// The path. Capital letters stand for a name. What is for `containers` is for `initContainers`, too.
    pub(super) path: &'static str,
    /// What it is, for users.
    pub(super) what: &'static str,
    /// The accepted types.
    pub(super) types: &'static [ParameterType],
    /// How the value is written into the template.
    pub(super) form: Form,
    /// Which values fit, beside the type.
    pub(super) rule: Rule,
}

/// Two leaves with one path are one.
impl PartialEq for Leaf {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

/// How a value is written into the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As a number; a duration as its seconds.
    Number,
    /// As a text.
    Text,
    /// As a text in which a kubelet expands references, so that each `$` is doubled.
    Expanded,
    /// The number of a port as a number, and its name as a text.
    NumberOrText,
    /// As the part of the text behind the last colon.
    Tag,
    /// Not at all: `false` leaves the item out.
    Switch,
    /// In the place of each mark in a text that a kubelet expands.
    Mark,
}

/// Which values fit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// Every value without the character NUL.
    Any,
    /// Numbers from the first to the second, or durations of so many seconds.
    Between(i64, i64),
    /// An amount of the resource that the path names last.
    Amount,
    /// The same, above 0, which would mean that there is no limit.
    Limit,
    /// Texts for which the function holds. The words follow on "must be".
    Like(fn(&str) -> bool, &'static str),
    /// Some texts.
    OneOf(&'static [&'static str]),
}

use Form::{Expanded, Number, NumberOrText, Switch, Tag, Text};
use ParameterType::{Boolean, Duration, Integer, Quantity, String as Texts};
use Rule::{Amount, Any, Between, Like, Limit, OneOf};

const ALL_TYPES: &[ParameterType] = &[Texts, Integer, Boolean, Quantity, Duration];
const AMOUNTS: &[ParameterType] = &[Quantity, Integer];
const SECONDS: &[ParameterType] = &[Integer, Duration];
/// The largest number of 32 bits.
const MOST: i64 = 2_147_483_647;
/// The longest grace period that a template can ask for (`GracePeriod`).
const LONGEST_GRACE: i64 = 86_400;

const IMAGE: Rule = Like(forms::is_image, "an image, such as `registry.example.com/agent:1.2.3`");
const IMAGE_TAG: Rule = Like(forms::is_tag, "the tag of an image: at most 128 letters, digits, `_`, `.` and `-`");
const LABEL_VALUE: Rule = Like(
    format::is_label_value,
    "the value of a label: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
);
const HTTP_PATH: Rule =
    Like(forms::is_http_path, "a path that begins with one `/`, of printable ASCII characters without blanks");
const PORT_NAME: Rule = Like(forms::is_port, "a port from 1 to 65535, or its name");
const OBJECT: Rule =
    Like(format::is_policy_name, "the name of an object: at most 253 lower-case letters, digits, `-` and `.`");
const PORT: Rule = Between(1, 65_535);
const GRACE: Rule = Between(1, LONGEST_GRACE);
const PULL_POLICIES: Rule = OneOf(&["Always", "IfNotPresent", "Never"]);
const RESIZE_POLICIES: Rule = OneOf(&["NotRequired", "RestartContainer"]);

const fn leaf(path: &'static str, what: &'static str, types: &'static [ParameterType], form: Form, rule: Rule) -> Leaf {
    Leaf { path, what, types, form, rule }
}

/// The place of a `$(scpol.NAME)`.
pub(super) static MARK: Leaf = leaf("$(scpol.NAME)", "a part of a text", ALL_TYPES, Form::Mark, Any);

/// A field of every probe of a container.
macro_rules! any_probe {
    ($field:literal) => {
        concat!("containers[NAME].livenessProbe|readinessProbe|startupProbe.", $field)
    };
}
/// A field of a readiness probe.
macro_rules! readiness {
    ($field:literal) => {
        concat!("containers[NAME].readinessProbe.", $field)
    };
}
/// A field of the other probes.
macro_rules! others {
    ($field:literal) => {
        concat!("containers[NAME].livenessProbe|startupProbe.", $field)
    };
}

/// Every leaf.
pub(super) static LEAVES: &[Leaf] = &[
    leaf("containers[NAME]", "whether the container is added", &[Boolean], Switch, Any),
    leaf("containers[NAME].image", "the image", &[Texts], Text, IMAGE),
    leaf("containers[NAME].image:tag", "the tag of the image", &[Texts], Tag, IMAGE_TAG),
    leaf("containers[NAME].imagePullPolicy", "when the image is pulled", &[Texts], Text, PULL_POLICIES),
    leaf("containers[NAME].args[INDEX]", "an argument, counted from 0", ALL_TYPES, Expanded, Any),
    leaf("containers[NAME].command[INDEX]", "an item of the command, counted from 0", ALL_TYPES, Expanded, Any),
    leaf("containers[NAME].env[NAME]", "whether the variable is added", &[Boolean], Switch, Any),
    leaf("containers[NAME].env[NAME].value", "a variable", ALL_TYPES, Expanded, Any),
    leaf("containers[NAME].env[NAME].valueFrom.configMapKeyRef.name", "a ConfigMap", &[Texts], Text, OBJECT),
    leaf("containers[NAME].env[NAME].valueFrom.secretKeyRef.name", "a Secret", &[Texts], Text, OBJECT),
    leaf("containers[NAME].resources.requests.RESOURCE", "a request", AMOUNTS, Text, Amount),
    leaf("containers[NAME].resources.limits.RESOURCE", "a limit", AMOUNTS, Text, Limit),
    leaf(
        "containers[NAME].resizePolicy[RESOURCE].restartPolicy",
        "what a resize does",
        &[Texts],
        Text,
        RESIZE_POLICIES,
    ),
    leaf("containers[NAME].ports[PORT].containerPort", "a port, by its name or number", &[Integer], Number, PORT),
    leaf(any_probe!("initialDelaySeconds"), "the delay of a probe", SECONDS, Number, Between(0, MOST)),
    leaf(any_probe!("periodSeconds"), "the period of a probe", SECONDS, Number, Between(1, MOST)),
    leaf(any_probe!("timeoutSeconds"), "the timeout of a probe", SECONDS, Number, Between(1, MOST)),
    leaf(any_probe!("failureThreshold"), "failures that count", &[Integer], Number, Between(1, MOST)),
    leaf(readiness!("successThreshold"), "successes that count", &[Integer], Number, Between(1, MOST)),
    leaf(others!("successThreshold"), "successes that count, only 1", &[Integer], Number, Between(1, 1)),
    leaf(others!("terminationGracePeriodSeconds"), "the time to end", SECONDS, Number, Between(1, MOST)),
    leaf(any_probe!("httpGet.path"), "the path of a probe", &[Texts], Text, HTTP_PATH),
    leaf(any_probe!("httpGet.port"), "the port of a probe", &[Integer, Texts], NumberOrText, PORT_NAME),
    leaf(any_probe!("tcpSocket.port"), "the port of a probe", &[Integer, Texts], NumberOrText, PORT_NAME),
    leaf(any_probe!("grpc.port"), "the port of a probe", &[Integer], Number, PORT),
    leaf(
        "containers[NAME].lifecycle.preStop.sleep.seconds",
        "the pause before the end",
        SECONDS,
        Number,
        Between(1, MOST),
    ),
    leaf("env[NAME]", "whether the workload's containers get the variable", &[Boolean], Switch, Any),
    leaf("env[NAME].value", "a variable for the workload's containers", ALL_TYPES, Expanded, Any),
    leaf("volumes[NAME]", "whether the volume is added", &[Boolean], Switch, Any),
    leaf("volumes[NAME].emptyDir.sizeLimit", "the size of the volume", &[Quantity], Text, Limit),
    leaf("volumes[NAME].configMap.name", "a ConfigMap", &[Texts], Text, OBJECT),
    leaf("volumes[NAME].secret.secretName", "a Secret", &[Texts], Text, OBJECT),
    leaf("metadata.labels[KEY]", "a label for the pod", ALL_TYPES, Text, LABEL_VALUE),
    leaf("metadata.annotations[KEY]", "an annotation for the pod", ALL_TYPES, Text, Any),
    leaf("pod.terminationGracePeriodSeconds.atLeast", "the least grace period", SECONDS, Number, GRACE),
];

impl Rule {
    /// The texts that fit, in a few words. None if a type and its range say all.
    pub(super) fn words(self) -> Option<String> {
        match self {
            Like(_, words) => Some(words.to_owned()),
            OneOf(choices) => Some(format!("one of {}", listed(choices))),
            Any | Between(..) | Amount | Limit => None,
        }
    }
}

impl Leaf {
    /// The leaf of a path.
    pub(super) fn of(path: &[Token<'_>]) -> Option<&'static Self> {
        LEAVES.iter().find(|leaf| leaf.shared(path) == path.len() && leaf.tokens().len() == path.len())
    }

    /// The parts of its path.
    pub(super) fn tokens(&self) -> Vec<Token<'static>> {
        tokens(self.path).unwrap_or_default()
    }

    /// How many parts of its path are those of `path`, from the first on.
    pub(super) fn shared(&self, path: &[Token<'_>]) -> usize {
        self.tokens().iter().zip(path).take_while(|(own, other)| own.covers(other)).count()
    }

    /// Whether the value names an object of the namespace, which needs `references` in `--allow-in-templates`.
    pub(super) fn is_reference(&self) -> bool {
        let ends = ["KeyRef.name", "configMap.name", "secret.secretName"];
        ends.iter().any(|end| self.path.ends_with(end))
    }

    /// Whether overlays can have it, where it is in a container.
    pub(super) fn is_overlaid(&self) -> bool {
        let paths = ["containers[NAME].image", "containers[NAME].env[NAME].value"];
        paths.contains(&self.path) || self.path.starts_with("containers[NAME].resources.")
    }

    /// Whether the value decides which image runs.
    pub(super) fn is_image(&self) -> bool {
        self.form == Tag || self.path.ends_with(".image")
    }
}

/// The table of leaves in Markdown, for the page of users.
pub fn markdown() -> String {
    let mut table = "| path | what | types |\n|---|---|---|\n".to_owned();
    for leaf in LEAVES {
        let types: Vec<String> = leaf.types.iter().map(|of| format!("{of:?}")).collect();
        let types = if leaf.types.len() == ALL_TYPES.len() { "all".to_owned() } else { types.join(", ") };
        let _ = writeln!(table, "| `{}` | {} | {types} |", leaf.path.replace('|', "\\|"), leaf.what);
    }
    table
}
