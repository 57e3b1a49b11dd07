//! The validation of policies: one table, which three places check.
//!
//! Bounds and formats are in the schema, beside the fields ([`super::v1alpha1`]). Every other rule is a row of `ROWS`,
//! in Rust. Some rows have the rule in CEL, too: [`super::crd`] adds it to the schema, for servers from 1.25. [`check`]
//! applies the schema and all rows, so that every server and files give the same result.

use super::code::Code;
use super::derived;
use super::format;
use super::schema::{self, Fault, FaultKind};
use super::targets;
use super::trust::Trust;
use super::v1alpha1::{
    EngineChoice, LabelSelector, OF_A_STEP, Operation, Operator, RawObject, Requirement, RollingUpdate,
    SidecarPolicySpec, Step, Target, Template,
};
use admission_cel::{Dialect, Expression, Gives};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

/// The largest number of containers and init containers together. The schema has the same bound for each list.
const MAX_CONTAINERS: usize = 64;
/// The selector in a step of a rollout.
const STEP_SELECTORS: [&str; 2] = [
    "spec.updateStrategy.rollingUpdate.steps[].namespaceSelector",
    "spec.updateStrategy.rollingUpdate.steps[].workloadSelector",
];
/// The longest pause of a rollout.
const LONGEST_PAUSE: Duration = Duration::from_secs(720 * 3600);
/// The largest template, in bytes of JSON.
const MAX_TEMPLATE: usize = 64 * 1024;
/// The most that all `workloadSelector` of a policy have together, in bytes of JSON: a revision stores those of the steps that it
/// has reached, and several edits of the steps must have room there ([`crate::policy::extent`]).
const MAX_WORKLOAD_SELECTORS: usize = 16 * 1024;

/// The flags of the operator that the rules depend on.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Initializer names outside `scpol.dev` that are ours (`--initializer-name`).
    pub initializer_names: BTreeSet<String>,
    /// The limits of templates (`--pod-security` and the related flags).
    pub trust: Trust,
}

/// A fault of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The kind of fault.
    pub code: Code,
    /// The field, for example `spec.template.containers[1].name`.
    pub field: String,
    /// The rule for the field, and what to write instead.
    pub message: String,
}

/// Every fault of the policy `name`; none if it is valid.
///
/// # Guarantees
/// Everything that the schema and its rules in CEL reject is a fault here, too. The order is fixed, and no field
/// appears twice with the same code.
pub fn check(name: &str, spec: &SidecarPolicySpec, site: &Rules) -> Vec<Violation> {
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let by_schema = schema::faults(derived::schema(), &object).into_iter().map(violation);
    let policy = Subject { name, spec, site };
    let by_rows =
        ROWS.iter().flat_map(|row| (row.find)(&policy).into_iter().map(move |finding| row.violation(finding)));
    let mut seen = HashSet::new();
    by_schema.chain(by_rows).filter(|violation| seen.insert((violation.code, violation.field.clone()))).collect()
}

/// The schema of `spec`, in an object: paths begin there, as users see it.
static OBJECT: LazyLock<Value> =
    LazyLock::new(|| json!({ "type": "object", "properties": { "spec": derived::schema()["properties"]["spec"] } }));

/// The spec from the `spec` of an untyped object; `null` stands for a missing one. Fields with null count as absent.
///
/// # Errors
/// Every fault of the schema, if a field is missing, unknown, or of a wrong type or choice.
pub fn decode(raw: &Value) -> Result<SidecarPolicySpec, Vec<Violation>> {
    if raw.is_null() {
        let message =
            "must be given; e.g. `{template: {containers: [{name: envoy, image: \"envoyproxy/envoy:v1.31.0\"}]}}`"
                .to_owned();
        return Err(vec![Violation { code: Code::InvalidField, field: "spec".to_owned(), message }]);
    }
    let faults = schema::faults(&OBJECT, &json!({ "spec": raw }));
    if faults.iter().any(|fault| fault.kind.is_structural()) {
        return Err(faults.into_iter().map(violation).collect());
    }
    serde_json::from_value(schema::without_nulls(&OBJECT["properties"]["spec"], raw)).map_err(|error| {
        let message = format!("cannot be read: {error}");
        vec![Violation { code: Code::InvalidField, field: "spec".to_owned(), message }]
    })
}

/// A rule in CEL, with its place in the schema.
pub(super) struct CelRule {
    /// The path of the field that is `self`; `[]` stands for the items of a list.
    pub(super) at: &'static str,
    pub(super) rule: Cow<'static, str>,
    /// The message if it is false.
    pub(super) message: String,
}

pub(super) fn in_cel() -> impl Iterator<Item = CelRule> {
    ROWS.iter().flat_map(|row| {
        let message = format!("{}: {}", row.code, row.must);
        (row.cel)().into_iter().map(move |(at, rule)| CelRule { at, rule, message: message.clone() })
    })
}

struct Subject<'a> {
    name: &'a str,
    spec: &'a SidecarPolicySpec,
    site: &'a Rules,
}

impl Subject<'_> {
    /// The template's containers and init containers, each with its path.
    fn containers(&self) -> Vec<(String, &RawObject)> {
        self.spec.template.iter().flat_map(Template::all_containers).collect()
    }
}

struct Row {
    code: Code,
    /// The rule in words, after the name of the field.
    must: &'static str,
    /// The rule in CEL, with its places in the schema. Empty if CEL cannot express it, or if a later version may lift
    /// the rule.
    cel: fn() -> Vec<(&'static str, Cow<'static, str>)>,
    find: fn(&Subject<'_>) -> Vec<Finding>,
}

impl Row {
    fn violation(&self, finding: Finding) -> Violation {
        let detail = if finding.detail.is_empty() { String::new() } else { format!("; {}", finding.detail) };
        Violation { code: self.code, field: finding.field, message: format!("{}{detail}", self.must) }
    }
}

/// A field that breaks a rule.
struct Finding {
    field: String,
    /// The value found, if it helps to understand the fault.
    detail: String,
}

impl Finding {
    fn new(field: impl Into<String>) -> Self {
        Self { field: field.into(), detail: String::new() }
    }

    fn with(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

static ROWS: &[Row] = &[
    Row {
        code: Code::InvalidName,
        must: "must not be `true` or `false`, which `scpol.dev/inject` takes for yes and no; e.g. `envoy`",
        cel: || vec![("", "!(self.metadata.name in ['true', 'false'])".into())],
        find: |policy| found(["true", "false"].contains(&policy.name), "metadata.name"),
    },
    Row {
        code: Code::EmptyTemplate,
        must: "must add something, unless there are `validations`; e.g. \
               `{containers: [{name: envoy, image: \"envoyproxy/envoy:v1.31.0\"}]}`",
        cel: || vec![("spec", adds_something().into())],
        find: |policy| {
            found(
                policy.spec.validations.is_empty() && policy.spec.template.as_ref().is_none_or(is_empty),
                "spec.template",
            )
        },
    },
    Row {
        code: Code::EmptySelector,
        must: "must have at least one requirement; leave it out to match all",
        cel: || {
            vec![
                ("spec.namespaceSelector", has_any(&["matchLabels", "matchExpressions"]).into()),
                ("spec.annotationSelector", has_any(&["matchAnnotations", "matchExpressions"]).into()),
                ("spec.labelSelector", has_any(&["matchLabels", "matchExpressions"]).into()),
                (STEP_SELECTORS[0], has_any(&["matchLabels", "matchExpressions"]).into()),
                (STEP_SELECTORS[1], has_any(&["matchLabels", "matchExpressions"]).into()),
            ]
        },
        find: empty_selectors,
    },
    Row {
        code: Code::InvalidSelector,
        must: "must have at least one value for `In` and `NotIn`, and none for `Exists` and `DoesNotExist`",
        cel: || {
            [
                "spec.namespaceSelector.matchExpressions[]",
                "spec.annotationSelector.matchExpressions[]",
                "spec.labelSelector.matchExpressions[]",
                "spec.updateStrategy.rollingUpdate.steps[].namespaceSelector.matchExpressions[]",
                "spec.updateStrategy.rollingUpdate.steps[].workloadSelector.matchExpressions[]",
            ]
            .map(|at| (at, "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)".into()))
            .into()
        },
        find: |policy| {
            let faulty = requirements(policy).into_iter().filter(|(_, requirement)| has_wrong_values(requirement));
            faulty
                .map(|(path, requirement)| {
                    Finding::with(
                        format!("{path}.values"),
                        format!("the operator is `{}`", requirement.operator.as_str()),
                    )
                })
                .collect()
        },
    },
    Row {
        code: Code::TargetRefused,
        must: "must be a namespaced resource that carries a pod template, or `pods`, and nothing that others are made \
               from or by; e.g. `deployments`",
        cel: || vec![("spec.targets[]", targets::refuses_resources().into())],
        find: |policy| blamed_targets(policy.spec, |class| matches!(class, targets::Class::Refused).then(String::new)),
    },
    Row {
        code: Code::TargetRefused,
        must: "must not be `jobs` with `spec.engine: Initializer`: the pod template of a Job cannot be changed once it is \
               stored; use `spec.engine: Auto`, or `{group: \"\", resource: pods}`",
        cel: || vec![("spec", targets::spares_jobs().into())],
        find: |policy| {
            let by_initializer = policy.spec.engine == EngineChoice::Initializer;
            let jobs = |class| (by_initializer && matches!(class, targets::Class::Job)).then(String::new);
            blamed_targets(policy.spec, jobs)
        },
    },
    Row {
        code: Code::TargetRefused,
        must: "must carry a pod template that something can be put into, since the policy has a `template`; leave that \
               out, or use `deployments`",
        cel: Vec::new,
        find: |policy| {
            let injects = policy.spec.template.is_some();
            let bare = blamed_targets(policy.spec, |class| matches!(class, targets::Class::Bare).then(String::new));
            if injects { bare } else { Vec::new() }
        },
    },
    Row {
        code: Code::TargetRefused,
        must: "must be a resource in the plural, in its own group",
        cel: Vec::new,
        find: |policy| {
            blamed_targets(policy.spec, |class| {
                if let targets::Class::Misnamed(kind) = class { Some(targets::spelt(kind)) } else { None }
            })
        },
    },
    Row {
        code: Code::InvalidField,
        must: "must be left out: it is for custom resources",
        cel: Vec::new,
        find: |policy| {
            let targets = policy.spec.targets.iter().enumerate();
            let wrong = targets.filter_map(|(index, target)| Some((index, targets::wrong_path(target)?)));
            wrong.map(|(index, detail)| Finding::with(template_path(index), detail)).collect()
        },
    },
    Row {
        code: Code::AmbiguousTemplatePath,
        must: "must be the same in all targets of one resource, since an object has one pod template",
        cel: Vec::new,
        find: |policy| {
            let second = targets::second_paths(&policy.spec.targets).into_iter();
            second.map(|(index, detail)| Finding::with(template_path(index), detail)).collect()
        },
    },
    Row {
        code: Code::InvalidField,
        must: "must contain `CREATE`, because every policy acts on new objects; write `[CREATE, UPDATE]`",
        cel: || vec![("spec.targets[]", "!has(self.operations) || 'CREATE' in self.operations".into())],
        find: |policy| operations(policy, |target| !target.operations.contains(&Operation::Create)),
    },
    Row {
        code: Code::InvalidField,
        must: "must not contain `UPDATE` for `pods` and `jobs`, because their containers cannot be changed once they are \
               stored; write `[CREATE]`, or target what makes them, e.g. `deployments`",
        cel: || vec![("spec.targets[]", targets::spares_updates().into())],
        find: |policy| operations(policy, |target| target.acts_on_update() && targets::is_immutable(target)),
    },
    Row {
        code: Code::InvalidField,
        must: "must not contain `UPDATE` with `spec.engine: Initializer`, because initializers act on creates only; write \
               `[CREATE]`, or use `spec.engine: Auto`",
        cel: || vec![("spec", targets::only_creates().into())],
        find: |policy| {
            let by_initializer = policy.spec.engine == EngineChoice::Initializer;
            // Without targets that the row before reports.
            operations(policy, |target| by_initializer && target.acts_on_update() && !targets::is_immutable(target))
        },
    },
    Row {
        code: Code::InvalidField,
        must: "must be `type: RollingUpdate` where `rollingUpdate` is given; write it, or remove `rollingUpdate`",
        cel: || {
            let rule = "!has(self.rollingUpdate) || (has(self.type) && self.type == 'RollingUpdate')";
            vec![("spec.updateStrategy", rule.into())]
        },
        find: |policy| {
            let strategy = policy.spec.update_strategy.as_ref();
            let is_wrong = strategy.is_some_and(|strategy| strategy.rolling_update.is_some() && !strategy.rolls());
            found(is_wrong, "spec.updateStrategy.type")
        },
    },
    Row {
        code: Code::InvalidField,
        must: "must be given with `updateStrategy.type: RollingUpdate`, because a policy with `validations` alone has nothing \
               to roll out; leave `updateStrategy` out",
        cel: || {
            let rule = "!has(self.updateStrategy) || !has(self.updateStrategy.type) || \
                        self.updateStrategy.type != 'RollingUpdate' || has(self.template)";
            vec![("spec", rule.into())]
        },
        find: |policy| {
            let rolls = policy.spec.update_strategy.as_ref().is_some_and(|strategy| strategy.rolls());
            // Without validations another row reports the missing template.
            let has_only_validations = policy.spec.template.is_none() && !policy.spec.validations.is_empty();
            found(rolls && has_only_validations, "spec.template")
        },
    },
    Row {
        code: Code::InvalidField,
        must: "must be greater than `minReadySeconds` (`progressDeadlineSeconds`), or no replacement is available in time",
        cel: || {
            let rule = "(has(self.progressDeadlineSeconds) ? self.progressDeadlineSeconds : 600) > \
                        (has(self.minReadySeconds) ? self.minReadySeconds : 0)";
            vec![("spec.updateStrategy.rollingUpdate", rule.into())]
        },
        find: |policy| {
            let short = rolling_update(policy)
                .filter(|rolling| rolling.progress_deadline_seconds <= rolling.min_ready_seconds)
                .map(|rolling| rolling.min_ready_seconds);
            let field = "spec.updateStrategy.rollingUpdate.progressDeadlineSeconds";
            let detail = |least: i32| format!("`minReadySeconds` is {least}; write a number above it");
            short.map(|least| Finding::with(field, detail(least))).into_iter().collect()
        },
    },
    Row {
        code: Code::InvalidField,
        must: "must have exactly one of `namespaces`, `namespaceSelector`, `workloadSelector`, `pause`, `percent` and \
               `percentOfWorkloads`",
        cel: || {
            let has = OF_A_STEP.map(|field| format!("(has(self.{field}) ? 1 : 0)")).join(" + ");
            vec![("spec.updateStrategy.rollingUpdate.steps[]", format!("{has} == 1").into())]
        },
        find: mixed_steps,
    },
    Row {
        code: Code::InvalidField,
        must: "must be greater than `percent` of every earlier step, because steps only add namespaces",
        cel: || vec![("spec.updateStrategy.rollingUpdate.steps", grows("percent").into())],
        find: |policy| shrinking_steps(policy, "percent", |step| step.percent),
    },
    Row {
        code: Code::InvalidField,
        must: "must be greater than `percentOfWorkloads` of every earlier step, because steps only add workloads",
        cel: || vec![("spec.updateStrategy.rollingUpdate.steps", grows("percentOfWorkloads").into())],
        find: |policy| shrinking_steps(policy, "percentOfWorkloads", |step| step.percent_of_workloads),
    },
    Row {
        code: Code::InvalidSelector,
        must: "must have, with those of the steps before it, at most 16 KiB of JSON; select by one label that you set for it",
        cel: Vec::new,
        find: long_workload_selectors,
    },
    Row {
        code: Code::InvalidField,
        must: "must be from `1s` to `720h`; leave `duration` out to wait for `scpol rollout resume`",
        cel: || {
            // The pattern of the schema reports what is no duration.
            let rule = format!(
                "!has(self.duration) || !self.duration.matches('{}') || (duration(self.duration) >= duration('1s') && \
                 duration(self.duration) <= duration('720h'))",
                format::DURATION
            );
            vec![("spec.updateStrategy.rollingUpdate.steps[].pause", rule.into())]
        },
        find: |policy| {
            let is_wrong = |length: Duration| length < Duration::from_secs(1) || length > LONGEST_PAUSE;
            let wrong = steps(policy)
                .filter(|(_, step)| step.pause.as_ref().and_then(|pause| pause.length()).is_some_and(is_wrong));
            wrong.map(|(path, _)| Finding::new(format!("{path}.pause.duration"))).collect()
        },
    },
    Row {
        code: Code::DuplicateName,
        must: "must differ from the names of all other containers and init containers of the template",
        cel: || vec![("spec.template", has_distinct_containers().into())],
        find: shared_container_names,
    },
    Row {
        code: Code::DuplicateName,
        must: "must be unique in the container",
        cel: Vec::new,
        find: |policy| {
            policy.containers().into_iter().flat_map(|(path, container)| duplicates_within(&path, container)).collect()
        },
    },
    Row {
        code: Code::DuplicateName,
        must: "must be used by one container of the template only",
        cel: Vec::new,
        find: duplicate_host_ports,
    },
    Row {
        code: Code::TemplateTooLarge,
        must: "must have at most 64 containers and init containers together",
        cel: || vec![("spec.template", has_few_containers().into())],
        find: too_many_together,
    },
    Row {
        code: Code::TemplateTooLarge,
        must: "must have at most 64 KiB of JSON; put content into a ConfigMap that the template mounts",
        cel: Vec::new,
        find: too_large,
    },
    Row {
        code: Code::TemplateInvalid,
        must: "must be a list of objects",
        cel: Vec::new,
        find: |policy| {
            policy.containers().into_iter().flat_map(|(path, container)| malformed_lists(&path, container)).collect()
        },
    },
    Row {
        code: Code::TemplateInvalid,
        must: "must be a key such as `example.com/name`, and none under `scpol.dev`, which are ours",
        cel: Vec::new,
        find: foreign_keys,
    },
    Row {
        code: Code::TemplateInvalid,
        must: "must have either `value` or `valueFrom`",
        cel: Vec::new,
        find: |policy| {
            let has = |item: &RawObject, field: &str| item.get(field).is_some_and(|value| !value.is_null());
            added(policy, "env", |template| &template.env, |item| has(item, "value") && has(item, "valueFrom"), "")
        },
    },
    Row {
        code: Code::TemplateInvalid,
        must: "must have either `configMapRef` or `secretRef`, with its `name`; e.g. `{configMapRef: {name: proxy}}`",
        cel: Vec::new,
        find: |policy| added(policy, "envFrom", |template| &template.env_from, |item| source(item).is_none(), ""),
    },
    Row {
        code: Code::TemplateInvalid,
        must: "must be the name of a volume, of the template or of the workload",
        cel: Vec::new,
        find: |policy| {
            let is_nameless = |item: &RawObject| text(item, "name").is_none_or(str::is_empty);
            added(policy, "volumeMounts", |template| &template.volume_mounts, is_nameless, ".name")
        },
    },
    Row {
        code: Code::DuplicateName,
        must: "must be unique in the list",
        cel: Vec::new,
        find: repeated_in_own_containers,
    },
    Row {
        code: Code::InvalidExpression,
        must: "must be an expression that a server of 1.36 takes, over `object` and `namespaceObject`",
        cel: Vec::new,
        find: faulty_expressions,
    },
    Row {
        code: Code::InvalidInitializerName,
        must: "must end in `.scpol.dev`, or be a name that the operator was given by `--initializer-name`; e.g. \
               `envoy.scpol.dev`",
        cel: Vec::new,
        find: |policy| {
            let foreign =
                |name: &&String| !name.ends_with(".scpol.dev") && !policy.site.initializer_names.contains(*name);
            found(policy.spec.initializer_name.as_ref().is_some_and(|name| foreign(&name)), "spec.initializerName")
        },
    },
    Row {
        code: Code::PodSecurity,
        must: "must keep to the Pod Security Standards",
        cel: Vec::new,
        find: |policy| trusted(policy.site.trust.beyond_level(policy.spec)),
    },
    Row {
        code: Code::PowerNotGranted,
        must: "must be allowed by the operator, since it reaches beyond the pod",
        cel: Vec::new,
        find: |policy| trusted(policy.site.trust.not_granted(policy.spec)),
    },
    Row {
        code: Code::ImageNotAllowed,
        must: "must be an image that the operator allows (`--allowed-images`)",
        cel: Vec::new,
        find: |policy| trusted(policy.site.trust.foreign_images(policy.spec)),
    },
];

fn trusted(fields: Vec<(String, String)>) -> Vec<Finding> {
    fields.into_iter().map(|(field, detail)| Finding::with(field, detail)).collect()
}

fn found(is_found: bool, field: &str) -> Vec<Finding> {
    is_found.then(|| Finding::new(field)).into_iter().collect()
}

/// The fault of a schema as a fault of a policy.
fn violation(fault: Fault) -> Violation {
    Violation { code: code_of(&fault), field: fault.path, message: fault.message }
}

fn code_of(Fault { path, kind, .. }: &Fault) -> Code {
    let is_under =
        |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let in_selector = in_selector(path);
    match kind {
        FaultKind::Unknown => Code::UnknownField,
        FaultKind::Duplicate => Code::DuplicateName,
        _ if is_under("metadata") => Code::InvalidName,
        FaultKind::Few if path == "spec.template" => Code::EmptyTemplate,
        FaultKind::Few if path == "spec.namespaces" || in_selector.is_some() => Code::EmptySelector,
        FaultKind::Many if path == "spec.template.containers" || path == "spec.template.initContainers" => {
            Code::TemplateTooLarge
        }
        FaultKind::Form if is_under("spec.targets") && (path.ends_with(".group") || path.ends_with(".resource")) => {
            Code::TargetRefused
        }
        FaultKind::Form if is_under("spec.initializerName") => Code::InvalidInitializerName,
        _ if in_selector.is_some_and(|rest| rest.contains('[')) => Code::InvalidSelector,
        _ if is_under("spec.template") && path.contains("[") => Code::TemplateInvalid,
        _ => Code::InvalidField,
    }
}

/// What follows on the name of a selector in `path`; none if the field is no selector, and in none.
fn in_selector(path: &str) -> Option<&str> {
    let selectors = ["spec.namespaceSelector", "spec.annotationSelector", "spec.labelSelector"];
    let of_policy = selectors.into_iter().find_map(|selector| path.strip_prefix(selector));
    let of_step = |selector: &&str| {
        let (list, field) = selector.split_once("[]")?;
        let (_, rest) = path.strip_prefix(list)?.strip_prefix('[')?.split_once(']')?;
        rest.strip_prefix(field)
    };
    let rest = of_policy.or_else(|| STEP_SELECTORS.iter().find_map(of_step))?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

// Rollouts

fn rolling_update<'a>(policy: &Subject<'a>) -> Option<&'a RollingUpdate> {
    policy.spec.update_strategy.as_ref()?.rolling_update.as_ref()
}

/// The steps of the rollout, each with its path.
fn steps<'a>(policy: &Subject<'a>) -> impl Iterator<Item = (String, &'a Step)> {
    let steps = rolling_update(policy).into_iter().flat_map(|rolling| rolling.steps.iter().enumerate());
    steps.map(|(index, step)| (format!("spec.updateStrategy.rollingUpdate.steps[{index}]"), step))
}

/// Steps without a field, and with several ones.
fn mixed_steps(policy: &Subject<'_>) -> Vec<Finding> {
    let mixed = steps(policy).filter_map(|(path, step)| {
        let Step { namespaces, namespace_selector, workload_selector, pause, percent, percent_of_workloads } = step;
        let is_there = [
            namespaces.is_some(),
            namespace_selector.is_some(),
            workload_selector.is_some(),
            pause.is_some(),
            percent.is_some(),
            percent_of_workloads.is_some(),
        ];
        let given: Vec<_> = OF_A_STEP.into_iter().zip(is_there).filter(|(_, is)| *is).map(|(field, _)| field).collect();
        let detail = match given.len() {
            0 => "it has none; write `{pause: {}}` to wait for `scpol rollout resume`".to_owned(),
            1 => return None,
            _ => format!("it has {}; make each a step of its own", schema::listed(&given)),
        };
        Some(Finding::with(path, detail))
    });
    mixed.collect()
}

/// The rule in CEL that the percentages in `field` of the steps grow.
fn grows(field: &str) -> String {
    let is_unique =
        format!("self.all(a, !has(a.{field}) || self.exists_one(b, has(b.{field}) && b.{field} == a.{field}))");
    format!("{is_unique} && self.filter(step, has(step.{field})).map(step, step.{field}).isSorted()")
}

/// Steps with a percentage in `field` that an earlier step has reached already.
fn shrinking_steps(policy: &Subject<'_>, field: &str, percent: impl Fn(&Step) -> Option<i32>) -> Vec<Finding> {
    let mut reached: Option<i32> = None;
    let mut findings = Vec::new();
    for (path, step) in steps(policy) {
        let Some(percent) = percent(step) else { continue };
        match reached.filter(|&reached| percent <= reached) {
            Some(reached) => {
                findings.push(Finding::with(format!("{path}.{field}"), format!("an earlier step has {reached}")));
            }
            None => reached = Some(percent),
        }
    }
    findings
}

/// The first selector of workloads with which those of all steps are too long.
fn long_workload_selectors(policy: &Subject<'_>) -> Vec<Finding> {
    let mut length = 0;
    let selectors = steps(policy).filter_map(|(path, step)| Some((path, step.workload_selector.as_ref()?)));
    let mut lengths = selectors.map(|(path, selector)| {
        length += json!(selector).to_string().len();
        (path, length)
    });
    let long = lengths.find(|(_, length)| *length > MAX_WORKLOAD_SELECTORS);
    long.map(|(path, length)| Finding::with(format!("{path}.workloadSelector"), format!("they have {length} bytes")))
        .into_iter()
        .collect()
}

// Templates

fn is_empty(template: &Template) -> bool {
    let lists = [
        &template.containers,
        &template.init_containers,
        &template.volumes,
        &template.image_pull_secrets,
        &template.env,
        &template.env_from,
        &template.volume_mounts,
    ];
    let metadata =
        template.metadata.iter().any(|metadata| !metadata.labels.is_empty() || !metadata.annotations.is_empty());
    lists.iter().all(|list| list.is_empty()) && !metadata
}

/// CEL: some list or map of the spec's template has an entry, or there are validations.
fn adds_something() -> String {
    let lists = ["containers", "initContainers", "volumes", "imagePullSecrets", "env", "envFrom", "volumeMounts"];
    let in_template = has_any_of("self.template", &lists);
    let in_metadata = has_any_of("self.template.metadata", &["labels", "annotations"]);
    let has_metadata = format!("(has(self.template.metadata) && ({in_metadata}))");
    format!("(has(self.template) && ({in_template} || {has_metadata})) || ({})", has_any(&["validations"]))
}

fn has_any(fields: &[&str]) -> String {
    has_any_of("self", fields)
}

/// CEL: one of `fields` of `object` has an entry.
fn has_any_of(object: &str, fields: &[&str]) -> String {
    let has = |field: &&str| format!("(has({object}.{field}) && size({object}.{field}) > 0)");
    fields.iter().map(has).collect::<Vec<_>>().join(" || ")
}

/// CEL: no init container has the name of a container.
fn has_distinct_containers() -> &'static str {
    "!has(self.containers) || !has(self.initContainers) || \
     self.containers.all(c, !self.initContainers.exists(i, i.name == c.name))"
}

/// CEL: both lists together are short enough.
fn has_few_containers() -> String {
    let size = |list: &str| format!("(has(self.{list}) ? size(self.{list}) : 0)");
    format!("{} + {} <= {MAX_CONTAINERS}", size("containers"), size("initContainers"))
}

fn text<'a>(object: &'a RawObject, field: &str) -> Option<&'a str> {
    object.get(field)?.as_str()
}

/// The objects in a list of `container`. Empty for a malformed list, because another rule reports it.
fn objects<'a>(container: &'a RawObject, list: &str) -> impl Iterator<Item = (usize, &'a RawObject)> {
    let items = container.get(list).and_then(Value::as_array);
    items.into_iter().flatten().enumerate().filter_map(|(index, item)| Some((index, item.as_object()?)))
}

fn shared_container_names(policy: &Subject<'_>) -> Vec<Finding> {
    let Some(template) = &policy.spec.template else { return Vec::new() };
    let names: HashSet<_> = template.containers.iter().filter_map(|container| text(container, "name")).collect();
    let shared = template.init_containers.iter().enumerate().filter_map(|(index, container)| {
        let name = text(container, "name").filter(|name| names.contains(name))?;
        Some(Finding::with(
            format!("spec.template.initContainers[{index}].name"),
            format!("a container is called `{name}` as well"),
        ))
    });
    shared.collect()
}

/// The duplicates in one container: ports by number and protocol, names of ports, mount paths, device paths.
fn duplicates_within(path: &str, container: &RawObject) -> Vec<Finding> {
    type Key = fn(&RawObject) -> Option<String>;
    const UNIQUE: [(&str, &str, Key); 4] = [
        ("ports", "containerPort", |port| Some(format!("{} {}", port.get("containerPort")?, protocol(port)))),
        ("ports", "name", |port| text(port, "name").filter(|name| !name.is_empty()).map(str::to_owned)),
        ("volumeMounts", "mountPath", mounted_at),
        ("volumeDevices", "devicePath", |device| text(device, "devicePath").map(str::to_owned)),
    ];
    let mut findings = Vec::new();
    for (list, field, key) in UNIQUE {
        let mut seen = HashSet::new();
        for (index, item) in objects(container, list) {
            if let Some(key) = key(item).filter(|key| !seen.insert(key.clone())) {
                findings
                    .push(Finding::with(format!("{path}.{list}[{index}].{field}"), format!("`{key}` is there before")));
            }
        }
    }
    findings
}

fn protocol(port: &RawObject) -> &str {
    text(port, "protocol").filter(|protocol| !protocol.is_empty()).unwrap_or("TCP")
}

/// Host ports that two containers would open at the same time; init containers run before them, one by one.
fn duplicate_host_ports(policy: &Subject<'_>) -> Vec<Finding> {
    let mut used = HashSet::new();
    let mut findings = Vec::new();
    for (path, container) in
        policy.containers().into_iter().filter(|(path, _)| path.starts_with("spec.template.containers"))
    {
        for (index, port) in objects(container, "ports") {
            let Some(number) = port.get("hostPort").and_then(Value::as_u64).filter(|&number| number > 0) else {
                continue;
            };
            let key = (number, protocol(port), text(port, "hostIP").unwrap_or_default());
            if !used.insert(key) {
                findings
                    .push(Finding::with(format!("{path}.ports[{index}].hostPort"), format!("{number} is used before")));
            }
        }
    }
    findings
}

/// The items of a list of the template that `is_wrong` finds, each at `field`.
fn added(
    policy: &Subject<'_>,
    list: &str,
    items: fn(&Template) -> &Vec<RawObject>,
    is_wrong: impl Fn(&RawObject) -> bool,
    field: &str,
) -> Vec<Finding> {
    let items = policy.spec.template.iter().flat_map(items).enumerate();
    let wrong = items.filter(|(_, item)| is_wrong(item));
    wrong.map(|(index, _)| Finding::new(format!("spec.template.{list}[{index}]{field}"))).collect()
}

/// The reference of an item of `envFrom`, if it has exactly one.
fn source(item: &RawObject) -> Option<String> {
    let refers = |field: &str| item.get(field).filter(|value| !value.is_null());
    let of = match (refers("configMapRef"), refers("secretRef")) {
        (Some(of), None) | (None, Some(of)) => of,
        _ => return None,
    };
    let name = of["name"].as_str().filter(|name| !name.is_empty())?;
    Some(format!("{} {name} {}", refers("secretRef").is_some(), text(item, "prefix").unwrap_or_default()))
}

/// The duplicates that the schema cannot find: equal sources, and paths that are equal but for a slash at the end.
fn repeated_in_own_containers(policy: &Subject<'_>) -> Vec<Finding> {
    let Some(template) = &policy.spec.template else { return Vec::new() };
    let sources = template.env_from.iter().map(source);
    let paths = template.volume_mounts.iter().map(mounted_at);
    let repeated = |keys: Vec<Option<String>>, list: &str, field: &str| {
        let mut seen = HashSet::new();
        let indexed = keys.into_iter().enumerate();
        let twice = indexed.filter(|(_, key)| key.as_ref().is_some_and(|key| !seen.insert(key.clone())));
        twice.map(|(index, _)| Finding::new(format!("spec.template.{list}[{index}]{field}"))).collect::<Vec<_>>()
    };
    let mut findings = repeated(sources.collect(), "envFrom", "");
    findings.extend(repeated(paths.collect(), "volumeMounts", ".mountPath"));
    findings
}

fn mounted_at(mount: &RawObject) -> Option<String> {
    text(mount, "mountPath").map(|path| format::mount_path(path).to_owned())
}

/// Keys of labels and annotations that Kubernetes rejects, and our own keys under `scpol.dev`.
fn foreign_keys(policy: &Subject<'_>) -> Vec<Finding> {
    let metadata = policy.spec.template.iter().filter_map(|template| template.metadata.as_ref());
    let keys = metadata.flat_map(|metadata| {
        let labels = metadata.labels.keys().map(|key| ("labels", key));
        labels.chain(metadata.annotations.keys().map(|key| ("annotations", key)))
    });
    let is_ours = |key: &str| {
        key.split_once('/').is_some_and(|(domain, _)| domain == "scpol.dev" || domain.ends_with(".scpol.dev"))
    };
    let faulty = keys.filter(|(_, key)| !format::is_key(key) || is_ours(key));
    faulty.map(|(map, key)| Finding::new(format!("spec.template.metadata.{map}.{key}"))).collect()
}

fn malformed_lists(path: &str, container: &RawObject) -> Vec<Finding> {
    const LISTS: [&str; 5] = ["env", "envFrom", "ports", "volumeDevices", "volumeMounts"];
    let is_well_formed = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(Value::is_object));
    let malformed = LISTS
        .into_iter()
        .filter(|list| container.get(*list).is_some_and(|value| !value.is_null() && !is_well_formed(value)));
    malformed.map(|list| Finding::new(format!("{path}.{list}"))).collect()
}

/// A single list that is too long is skipped here, because the schema reports it.
fn too_many_together(policy: &Subject<'_>) -> Vec<Finding> {
    let lengths =
        policy.spec.template.iter().map(|template| (template.containers.len(), template.init_containers.len()));
    lengths
        .filter(|&(containers, init)| containers.max(init) <= MAX_CONTAINERS && containers + init > MAX_CONTAINERS)
        .map(|(containers, init)| Finding::with("spec.template", format!("it has {}", containers + init)))
        .collect()
}

fn too_large(policy: &Subject<'_>) -> Vec<Finding> {
    let size = policy
        .spec
        .template
        .as_ref()
        .and_then(|template| serde_json::to_vec(template).ok())
        .map_or(0, |json| json.len());
    let is_large = size > MAX_TEMPLATE;
    is_large.then(|| Finding::with("spec.template", format!("it has {size} bytes"))).into_iter().collect()
}

// Selectors

fn empty_selectors(policy: &Subject<'_>) -> Vec<Finding> {
    let of_labels = label_selectors(policy).into_iter().filter_map(|(field, selector)| {
        (selector.match_labels.is_empty() && selector.match_expressions.is_empty()).then_some(field)
    });
    let of_annotations = policy
        .spec
        .annotation_selector
        .iter()
        .filter(|selector| selector.match_annotations.is_empty() && selector.match_expressions.is_empty());
    of_labels.chain(of_annotations.map(|_| "spec.annotationSelector".to_owned())).map(Finding::new).collect()
}

/// Every selector by labels, with its path.
fn label_selectors<'a>(policy: &Subject<'a>) -> Vec<(String, &'a LabelSelector)> {
    let SidecarPolicySpec { namespace_selector, label_selector, .. } = policy.spec;
    let of_policy = [("spec.namespaceSelector", namespace_selector), ("spec.labelSelector", label_selector)];
    let of_policy = of_policy.into_iter().filter_map(|(field, selector)| Some((field.to_owned(), selector.as_ref()?)));
    let of_steps = steps(policy).flat_map(|(path, step)| {
        let of_step = [("namespaceSelector", &step.namespace_selector), ("workloadSelector", &step.workload_selector)];
        of_step.map(|(field, selector)| Some((format!("{path}.{field}"), selector.as_ref()?)))
    });
    of_policy.chain(of_steps.flatten()).collect()
}

/// Every requirement of every selector, with its path.
fn requirements<'a>(policy: &Subject<'a>) -> Vec<(String, &'a Requirement)> {
    let by_labels = label_selectors(policy).into_iter().map(|(path, selector)| (path, &selector.match_expressions));
    let by_annotations = policy.spec.annotation_selector.iter();
    let by_annotations =
        by_annotations.map(|selector| ("spec.annotationSelector".to_owned(), &selector.match_expressions));
    let all = by_labels.chain(by_annotations).flat_map(|(path, list)| {
        list.iter().enumerate().map(move |(index, item)| (format!("{path}.matchExpressions[{index}]"), item))
    });
    all.collect()
}

fn has_wrong_values(requirement: &Requirement) -> bool {
    let compares = matches!(requirement.operator, Operator::In | Operator::NotIn);
    compares == requirement.values.as_ref().is_none_or(Vec::is_empty)
}

// Expressions

fn faulty_expressions(policy: &Subject<'_>) -> Vec<Finding> {
    let conditions = policy.spec.match_conditions.iter().enumerate();
    let conditions = conditions
        .map(|(index, condition)| (format!("matchConditions[{index}].expression"), &condition.expression, Gives::Bool));
    let validations = policy.spec.validations.iter().enumerate().flat_map(|(index, validation)| {
        let of = |field: &str| format!("validations[{index}].{field}");
        let message = validation.message_expression.as_ref();
        [(of("expression"), &validation.expression, Gives::Bool)]
            .into_iter()
            .chain(message.map(|message| (of("messageExpression"), message, Gives::String)))
            .collect::<Vec<_>>()
    });
    let faulty = conditions.chain(validations).filter_map(|(field, source, gives)| {
        let fault = Expression::compile(source, gives, Dialect::NEWEST).err()?;
        Some(Finding::with(format!("spec.{field}"), fault.to_string()))
    });
    faulty.collect()
}

// Targets

/// The targets whose class `explain` blames.
fn blamed_targets(spec: &SidecarPolicySpec, explain: impl Fn(targets::Class) -> Option<String>) -> Vec<Finding> {
    let blamed = spec.targets.iter().enumerate().filter_map(|(index, target)| {
        let detail = explain(targets::classify(target))?;
        Some(Finding { field: format!("spec.targets[{index}].resource"), detail })
    });
    blamed.collect()
}

/// The field `operations` of the targets that `is_wrong` finds.
fn operations(policy: &Subject<'_>, is_wrong: impl Fn(&Target) -> bool) -> Vec<Finding> {
    let wrong = policy.spec.targets.iter().enumerate().filter(|(_, target)| is_wrong(target));
    wrong.map(|(index, _)| Finding::new(format!("spec.targets[{index}].operations"))).collect()
}

fn template_path(index: usize) -> String {
    format!("spec.targets[{index}].templatePath")
}
