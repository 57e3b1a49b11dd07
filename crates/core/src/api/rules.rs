//! The validation of policies: one table, which three places check.
//!
//! Bounds and formats are in the schema, beside the fields ([`super::v1alpha1`]). Every other rule is a row of `RULES`,
//! in Rust. Some rows have the rule in CEL, too: [`super::crd`] adds it to the schema, for servers from 1.25. [`check`]
//! applies the schema and all rows, so that every server and files give the same result.

use super::code::Code;
use super::derived;
use super::format;
use super::parameters::{self, Parameters};
use super::pod_fields;
use super::schema::{self, Fault, FaultKind};
use super::targets;
use super::trust::Trust;
use super::v1alpha1::{
    AnnotationSelector, EditedContent, EngineChoice, LISTS, LabelSelector, OF_A_STEP, Operation, Operator, RawObject,
    Requirement, RollingUpdate, SidecarPolicySpec, Step, Target, Template, TemplateMetadata,
};
use admission_cel::{Dialect, Expression, Gives};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

pub use super::violation::Violation;

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
/// The longest value of a variable with `merge`, in bytes: markers list it for each container.
pub(crate) const MAX_PART: usize = 1024;
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

/// Every fault of the policy `name`; none if it is valid.
///
/// # Guarantees
/// Everything that the schema and its rules in CEL reject is a fault here, too. The order is fixed, and no field
/// appears twice with the same code.
pub fn check(name: &str, spec: &SidecarPolicySpec, site: &Rules) -> Vec<Violation> {
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let by_schema = schema::faults(derived::schema(), &object).into_iter().map(violation);
    let policy = Subject { name, spec, site, parameters: OnceCell::new() };
    let by_rules = RULES.iter().flat_map(|rule| rule.violations(&policy));
    let mut seen = HashSet::new();
    by_schema.chain(by_rules).filter(|violation| seen.insert((violation.code, violation.field.clone()))).collect()
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
    RULES.iter().flat_map(|rule| {
        let message = format!("{}: {}", rule.code, rule.must);
        (rule.cel)().into_iter().map(move |(at, rule)| CelRule { at, rule, message: message.clone() })
    })
}

struct Subject<'a> {
    name: &'a str,
    spec: &'a SidecarPolicySpec,
    site: &'a Rules,
    /// The parameters, and their faults, read when a rule first asks.
    parameters: OnceCell<(Parameters, Vec<(String, String)>)>,
}

impl<'a> Subject<'a> {
    fn parameters(&self) -> &(Parameters, Vec<(String, String)>) {
        self.parameters.get_or_init(|| {
            let none = Template::default();
            Parameters::parse(self.name, &self.spec.parameters, self.spec.template.as_ref().unwrap_or(&none))
        })
    }

    /// The template's containers and init containers, each with its path.
    fn containers(&self) -> impl Iterator<Item = (String, &'a RawObject)> {
        self.spec.template.iter().flat_map(Template::all_containers)
    }

    /// The items of a list of the template, each with its index.
    fn added(&self, list: fn(&Template) -> &Vec<RawObject>) -> impl Iterator<Item = (usize, &'a RawObject)> {
        self.spec.template.iter().flat_map(list).enumerate()
    }
}

struct SpecRule {
    code: Code,
    /// The rule in words, after the name of the field. Empty if each violation has its own.
    must: &'static str,
    /// The rule in CEL, with its places in the schema. Empty if CEL cannot express it, or if a later version may lift
    /// the rule.
    cel: fn() -> Vec<(&'static str, Cow<'static, str>)>,
    find: fn(&Subject<'_>, &mut Found),
}

impl SpecRule {
    fn violations(&self, policy: &Subject<'_>) -> impl Iterator<Item = Violation> {
        let mut found = Found::default();
        (self.find)(policy, &mut found);
        found.0.into_iter().map(|(field, detail)| {
            let is_alone = detail.is_empty() || self.must.is_empty();
            let detail = if is_alone { detail } else { format!("; {detail}") };
            Violation { code: self.code, field, message: format!("{}{detail}", self.must) }
        })
    }
}

/// The fields that break a rule, each with the value found, if that helps to understand the fault.
#[derive(Default)]
struct Found(Vec<(String, String)>);

impl Found {
    fn add(&mut self, field: impl Into<String>) {
        self.tell(field, "");
    }

    fn add_if(&mut self, is_wrong: bool, field: &str) {
        if is_wrong {
            self.add(field);
        }
    }

    fn tell(&mut self, field: impl Into<String>, detail: impl Into<String>) {
        self.0.push((field.into(), detail.into()));
    }
}

static RULES: &[SpecRule] = &[
    SpecRule {
        code: Code::InvalidName,
        must: "must not be `true` or `false`, which `scpol.dev/inject` takes for yes and no; e.g. `envoy`",
        cel: || vec![("", "!(self.metadata.name in ['true', 'false'])".into())],
        find: |policy, found| found.add_if(["true", "false"].contains(&policy.name), "metadata.name"),
    },
    SpecRule {
        code: Code::EmptyTemplate,
        must: "must add something, unless there are `validations`; e.g. \
               `{containers: [{name: envoy, image: \"envoyproxy/envoy:v1.31.0\"}]}`",
        cel: || vec![("spec", adds_something().into())],
        find: |policy, found| {
            let adds_nothing = policy.spec.template.as_ref().is_none_or(is_empty);
            found.add_if(policy.spec.validations.is_empty() && adds_nothing, "spec.template");
        },
    },
    SpecRule {
        code: Code::ReplacesInvalid,
        must: "must not have the name of the policy itself",
        cel: || {
            vec![(
                "",
                "!has(self.spec) || !has(self.spec.replaces) || !(self.metadata.name in self.spec.replaces)".into(),
            )]
        },
        find: |policy, found| {
            found.add_if(policy.spec.replaces.iter().any(|name| name == policy.name), "spec.replaces");
        },
    },
    SpecRule {
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
    SpecRule {
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
        find: |policy, found| {
            for (path, requirement) in requirements(policy).into_iter().filter(|(_, wanted)| has_wrong_values(wanted)) {
                found.tell(format!("{path}.values"), format!("the operator is `{}`", requirement.operator.as_str()));
            }
        },
    },
    SpecRule {
        code: Code::TargetRefused,
        must: "must be a namespaced resource that carries a pod template, or `pods`, and nothing that others are made \
               from or by; e.g. `deployments`",
        cel: || vec![("spec.targets[]", targets::refuses_resources().into())],
        find: |policy, found| {
            blame_targets(policy, found, |class| matches!(class, targets::Class::Refused).then(String::new));
        },
    },
    SpecRule {
        code: Code::TargetRefused,
        must: "must not be `jobs` with `spec.engine: Initializer`: the pod template of a Job cannot be changed once it is \
               stored; use `spec.engine: Auto`, or `{group: \"\", resource: pods}`",
        cel: || vec![("spec", targets::spares_jobs().into())],
        find: |policy, found| {
            let by_initializer = policy.spec.engine == EngineChoice::Initializer;
            let is_job = |class| (by_initializer && matches!(class, targets::Class::Job)).then(String::new);
            blame_targets(policy, found, is_job);
        },
    },
    SpecRule {
        code: Code::TargetRefused,
        must: "must carry a pod template that something can be put into, since the policy has a `template`; leave that \
               out, or use `deployments`",
        cel: Vec::new,
        find: |policy, found| {
            let injects = policy.spec.template.is_some();
            let is_bare = |class| (injects && matches!(class, targets::Class::Bare)).then(String::new);
            blame_targets(policy, found, is_bare);
        },
    },
    SpecRule {
        code: Code::TargetRefused,
        must: "must be a resource in the plural, in its own group",
        cel: Vec::new,
        find: |policy, found| {
            blame_targets(policy, found, |class| {
                if let targets::Class::Misnamed(kind) = class { Some(targets::spelt(kind)) } else { None }
            });
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be left out: it is for custom resources",
        cel: Vec::new,
        find: |policy, found| {
            for (index, target) in policy.spec.targets.iter().enumerate() {
                if let Some(detail) = targets::wrong_path(target) {
                    found.tell(format!("spec.targets[{index}].templatePath"), detail);
                }
            }
        },
    },
    SpecRule {
        code: Code::AmbiguousTemplatePath,
        must: "must be the same in all targets of one resource, since an object has one pod template",
        cel: Vec::new,
        find: |policy, found| {
            for (index, detail) in targets::second_paths(&policy.spec.targets) {
                found.tell(format!("spec.targets[{index}].templatePath"), detail);
            }
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must contain `CREATE`, because every policy acts on new objects; write `[CREATE, UPDATE]`",
        cel: || vec![("spec.targets[]", "!has(self.operations) || 'CREATE' in self.operations".into())],
        find: |policy, found| operations(policy, found, |target| !target.operations.contains(&Operation::Create)),
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must not contain `UPDATE` for `pods` and `jobs`, because their containers cannot be changed once they are \
               stored; write `[CREATE]`, or target what makes them, e.g. `deployments`",
        cel: || vec![("spec.targets[]", targets::spares_updates().into())],
        find: |policy, found| {
            operations(policy, found, |target| target.acts_on_update() && targets::is_immutable(target));
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must not contain `UPDATE` with `spec.engine: Initializer`, because initializers act on creates only; write \
               `[CREATE]`, or use `spec.engine: Auto`",
        cel: || vec![("spec", targets::only_creates().into())],
        find: |policy, found| {
            let by_initializer = policy.spec.engine == EngineChoice::Initializer;
            // Without targets that the row before reports.
            let is_wrong =
                |target: &Target| by_initializer && target.acts_on_update() && !targets::is_immutable(target);
            operations(policy, found, is_wrong);
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be `type: RollingUpdate` where `rollingUpdate` is given; write it, or remove `rollingUpdate`",
        cel: || {
            let rule = "!has(self.rollingUpdate) || (has(self.type) && self.type == 'RollingUpdate')";
            vec![("spec.updateStrategy", rule.into())]
        },
        find: |policy, found| {
            found.add_if(rolling_update(policy).is_some() && !policy.spec.rolls(), "spec.updateStrategy.type");
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be `type: RollingUpdate` where `edited` is `Restore`, because rollouts restore; write it, or remove `edited`",
        cel: || {
            let rule = "!has(self.edited) || self.edited != 'Restore' || \
                        (has(self.type) && self.type == 'RollingUpdate')";
            vec![("spec.updateStrategy", rule.into())]
        },
        find: |policy, found| {
            let strategy = policy.spec.update_strategy.as_ref();
            let restores = strategy.is_some_and(|strategy| strategy.edited == EditedContent::Restore);
            found.add_if(restores && !policy.spec.rolls(), "spec.updateStrategy.type");
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be given with `updateStrategy.type: RollingUpdate`, because a policy with `validations` alone has nothing \
               to roll out; leave `updateStrategy` out",
        cel: || {
            let rule = "!has(self.updateStrategy) || !has(self.updateStrategy.type) || \
                        self.updateStrategy.type != 'RollingUpdate' || has(self.template)";
            vec![("spec", rule.into())]
        },
        find: |policy, found| {
            // Without validations another row reports the missing template.
            let has_only_validations = policy.spec.template.is_none() && !policy.spec.validations.is_empty();
            found.add_if(policy.spec.rolls() && has_only_validations, "spec.template");
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be greater than `minReadySeconds` (`progressDeadlineSeconds`), or no replacement is available in time",
        cel: || {
            let rule = "(has(self.progressDeadlineSeconds) ? self.progressDeadlineSeconds : 600) > \
                        (has(self.minReadySeconds) ? self.minReadySeconds : 0)";
            vec![("spec.updateStrategy.rollingUpdate", rule.into())]
        },
        find: |policy, found| {
            let Some(RollingUpdate { progress_deadline_seconds, min_ready_seconds, .. }) = rolling_update(policy)
            else {
                return;
            };
            if progress_deadline_seconds <= min_ready_seconds {
                let field = "spec.updateStrategy.rollingUpdate.progressDeadlineSeconds";
                found.tell(field, format!("`minReadySeconds` is {min_ready_seconds}; write a number above it"));
            }
        },
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must have exactly one of `namespaces`, `namespaceSelector`, `workloadSelector`, `pause`, `percent` and \
               `percentOfWorkloads`",
        cel: || {
            let has = OF_A_STEP.map(|field| format!("(has(self.{field}) ? 1 : 0)")).join(" + ");
            vec![("spec.updateStrategy.rollingUpdate.steps[]", format!("{has} == 1").into())]
        },
        find: mixed_steps,
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be greater than `percent` of every earlier step, because steps only add namespaces",
        cel: || vec![("spec.updateStrategy.rollingUpdate.steps", grows("percent").into())],
        find: |policy, found| shrinking_steps(policy, found, "percent", |step| step.percent),
    },
    SpecRule {
        code: Code::InvalidField,
        must: "must be greater than `percentOfWorkloads` of every earlier step, because steps only add workloads",
        cel: || vec![("spec.updateStrategy.rollingUpdate.steps", grows("percentOfWorkloads").into())],
        find: |policy, found| shrinking_steps(policy, found, "percentOfWorkloads", |step| step.percent_of_workloads),
    },
    SpecRule {
        code: Code::InvalidSelector,
        must: "must have, with those of the steps before it, at most 16 KiB of JSON; select by one label that you set for it",
        cel: Vec::new,
        find: long_workload_selectors,
    },
    SpecRule {
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
        find: |policy, found| {
            for (path, step) in steps(policy) {
                let length = step.pause.as_ref().and_then(|pause| pause.length());
                if length.is_some_and(|length| !(Duration::from_secs(1)..=LONGEST_PAUSE).contains(&length)) {
                    found.add(format!("{path}.pause.duration"));
                }
            }
        },
    },
    SpecRule {
        code: Code::DuplicateName,
        must: "must differ from the names of all other containers and init containers of the template",
        cel: || vec![("spec.template", has_distinct_containers().into())],
        find: shared_container_names,
    },
    SpecRule {
        code: Code::DuplicateName,
        must: "must be unique in the container",
        cel: Vec::new,
        find: duplicates_in_containers,
    },
    SpecRule {
        code: Code::DuplicateName,
        must: "must be used by one container of the template only",
        cel: Vec::new,
        find: duplicate_host_ports,
    },
    SpecRule {
        code: Code::TemplateTooLarge,
        must: "must have at most 64 containers and init containers together",
        cel: || vec![("spec.template", has_few_containers().into())],
        find: too_many_together,
    },
    SpecRule {
        code: Code::TemplateTooLarge,
        must: "must have at most 64 KiB of JSON; put content into a ConfigMap that the template mounts",
        cel: Vec::new,
        find: too_large,
    },
    SpecRule { code: Code::TemplateInvalid, must: "must be a list of objects", cel: Vec::new, find: malformed_lists },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must be a key such as `example.com/name`, and none under `scpol.dev`, which are ours",
        cel: Vec::new,
        find: foreign_keys,
    },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must have either `value` or `valueFrom`",
        cel: Vec::new,
        find: |policy, found| {
            let has =
                |item: &RawObject, field: &str| item.get(field).is_some_and(|value| !value.is_null() && value != "");
            for (index, item) in policy.added(|template| &template.env) {
                found.add_if(has(item, "value") && has(item, "valueFrom"), &format!("spec.template.env[{index}]"));
            }
        },
    },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must have a `value` of 1 to 1024 bytes where `merge` is given, and `separator` only there, without control \
               characters; e.g. `{name: JAVA_TOOL_OPTIONS, value: \"-javaagent:/agent/a.jar\", merge: Append}`",
        cel: Vec::new,
        find: |policy, found| {
            for (index, item) in policy.added(|template| &template.env) {
                found.add_if(is_wrong_part(item), &format!("spec.template.env[{index}]"));
            }
        },
    },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must have either `configMapRef` or `secretRef`, with its `name`; e.g. `{configMapRef: {name: proxy}}`",
        cel: Vec::new,
        find: |policy, found| {
            for (index, item) in policy.added(|template| &template.env_from) {
                found.add_if(source(item).is_none(), &format!("spec.template.envFrom[{index}]"));
            }
        },
    },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must be the name of a volume, of the template or of the workload",
        cel: Vec::new,
        find: |policy, found| {
            for (index, item) in policy.added(|template| &template.volume_mounts) {
                let is_nameless = text(item, "name").is_none_or(str::is_empty);
                found.add_if(is_nameless, &format!("spec.template.volumeMounts[{index}].name"));
            }
        },
    },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must be what the API server takes in a pod, and add something: each item once, and no `false`",
        cel: Vec::new,
        find: |policy, found| {
            let pod = policy.spec.template.as_ref().and_then(|template| template.pod.as_ref());
            found.0 = pod.map(pod_fields::faults).unwrap_or_default();
        },
    },
    SpecRule {
        code: Code::TemplateInvalid,
        must: "must give something of the workload to a container of the template",
        cel: Vec::new,
        find: |policy, found| {
            found.0 = policy.spec.template.as_ref().map(pod_fields::share_faults).unwrap_or_default();
        },
    },
    SpecRule {
        code: Code::DuplicateName,
        must: "must be unique in the list",
        cel: Vec::new,
        find: repeated_in_own_containers,
    },
    SpecRule {
        code: Code::InvalidExpression,
        must: "must be an expression over `object` and `namespaceObject` that API servers accept; of a parameter, also over `template`",
        cel: Vec::new,
        find: faulty_expressions,
    },
    SpecRule {
        code: Code::ParameterInvalid,
        // Each fault says what the field must be.
        must: "",
        cel: Vec::new,
        find: |policy, found| {
            let (parameters, faults) = policy.parameters();
            // The schema reports names that are there twice.
            found.0 = faults.iter().filter(|(field, _)| !field.ends_with("].name")).cloned().collect();
            if let Some(template) = policy.spec.template.as_ref().filter(|_| faults.is_empty()) {
                found.0 = parameters::left_behind(parameters, template);
            }
        },
    },
    SpecRule {
        code: Code::InvalidInitializerName,
        must: "must end in `.scpol.dev`, or be a name that the operator was given by `--initializer-name`; e.g. \
               `envoy.scpol.dev`",
        cel: Vec::new,
        find: |policy, found| {
            let is_ours = |name: &String| name.ends_with(".scpol.dev") || policy.site.initializer_names.contains(name);
            let is_foreign = policy.spec.initializer_name.as_ref().is_some_and(|name| !is_ours(name));
            found.add_if(is_foreign, "spec.initializerName");
        },
    },
    SpecRule {
        code: Code::PodSecurity,
        must: "must keep to the Pod Security Standards",
        cel: Vec::new,
        find: |policy, found| found.0 = policy.site.trust.beyond_level(policy.spec),
    },
    SpecRule {
        code: Code::PowerNotGranted,
        must: "must be allowed by the operator, since it reaches beyond the pod",
        cel: Vec::new,
        find: |policy, found| {
            let trust = &policy.site.trust;
            found.0 = trust.not_granted(policy.spec);
            found.0.extend(parameters::not_granted(&policy.parameters().0, trust));
        },
    },
    SpecRule {
        code: Code::ImageNotAllowed,
        must: "must be an image that the operator allows (`--allowed-images`)",
        cel: Vec::new,
        find: |policy, found| {
            let trust = &policy.site.trust;
            found.0 = trust.foreign_images(policy.spec);
            if let Some(template) = &policy.spec.template {
                found.0.extend(parameters::foreign_images(&policy.parameters().0, template, trust));
            }
        },
    },
];

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
fn mixed_steps(policy: &Subject<'_>, found: &mut Found) {
    for (path, step) in steps(policy) {
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
        match given.len() {
            0 => found.tell(path, "it has none; write `{pause: {}}` to wait for `scpol rollout resume`"),
            1 => {}
            _ => found.tell(path, format!("it has {}; make each a step of its own", schema::listed(&given))),
        }
    }
}

/// The rule in CEL that the percentages in `field` of the steps grow.
fn grows(field: &str) -> String {
    let is_unique =
        format!("self.all(a, !has(a.{field}) || self.exists_one(b, has(b.{field}) && b.{field} == a.{field}))");
    format!("{is_unique} && self.filter(step, has(step.{field})).map(step, step.{field}).isSorted()")
}

/// Steps with a percentage in `field` that an earlier step has reached already.
fn shrinking_steps(policy: &Subject<'_>, found: &mut Found, field: &str, percent: fn(&Step) -> Option<i32>) {
    let mut reached: Option<i32> = None;
    for (path, step) in steps(policy) {
        let Some(percent) = percent(step) else { continue };
        match reached.filter(|&reached| percent <= reached) {
            Some(reached) => found.tell(format!("{path}.{field}"), format!("an earlier step has {reached}")),
            None => reached = Some(percent),
        }
    }
}

/// The first selector of workloads with which those of all steps are too long.
fn long_workload_selectors(policy: &Subject<'_>, found: &mut Found) {
    let mut length = 0;
    for (path, step) in steps(policy) {
        length += step.workload_selector.as_ref().map_or(0, |selector| json!(selector).to_string().len());
        if length > MAX_WORKLOAD_SELECTORS {
            return found.tell(format!("{path}.workloadSelector"), format!("they have {length} bytes"));
        }
    }
}

// Templates

fn is_empty(template: &Template) -> bool {
    let has_entries = |metadata: &TemplateMetadata| !metadata.labels.is_empty() || !metadata.annotations.is_empty();
    let has_fields = template.pod.as_ref().is_some_and(|pod| !pod.is_empty());
    !has_fields
        && LISTS.iter().all(|list| (list.of)(template).is_empty())
        && !template.metadata.as_ref().is_some_and(has_entries)
}

/// CEL: some list or map of the spec's template has an entry, or there are validations.
fn adds_something() -> String {
    let in_template = has_any_of("self.template", &LISTS.map(|list| list.name));
    let in_metadata = has_any_of("self.template.metadata", &["labels", "annotations"]);
    let has_metadata = format!("(has(self.template.metadata) && ({in_metadata}))");
    let single = ["shareProcessNamespace", "terminationGracePeriodSeconds"]
        .map(|field| format!("has(self.template.pod.{field})"));
    let of_dns = has_any_of("self.template.pod.dnsConfig", &["nameservers", "searches", "options"]);
    let of_pod = has_any_of("self.template.pod", &["hostAliases", "tolerations"]);
    let has_fields = format!(
        "(has(self.template.pod) && ({} || {of_pod} || (has(self.template.pod.dnsConfig) && ({of_dns}))))",
        single.join(" || ")
    );
    format!(
        "(has(self.template) && ({in_template} || {has_metadata} || {has_fields})) || ({})",
        has_any(&["validations"])
    )
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

fn shared_container_names(policy: &Subject<'_>, found: &mut Found) {
    let names: HashSet<_> =
        policy.added(|template| &template.containers).filter_map(|(_, container)| text(container, "name")).collect();
    for (index, container) in policy.added(|template| &template.init_containers) {
        if let Some(name) = text(container, "name").filter(|name| names.contains(name)) {
            let field = format!("spec.template.initContainers[{index}].name");
            found.tell(field, format!("a container is called `{name}` as well"));
        }
    }
}

/// The duplicates in one container: ports by number and protocol, names of ports, mount paths, device paths.
fn duplicates_in_containers(policy: &Subject<'_>, found: &mut Found) {
    type Key = fn(&RawObject) -> Option<String>;
    const UNIQUE: [(&str, &str, Key); 4] = [
        ("ports", "containerPort", |port| Some(format!("{} {}", port.get("containerPort")?, protocol(port)))),
        ("ports", "name", |port| text(port, "name").filter(|name| !name.is_empty()).map(str::to_owned)),
        ("volumeMounts", "mountPath", mounted_at),
        ("volumeDevices", "devicePath", |device| text(device, "devicePath").map(str::to_owned)),
    ];
    for (path, container) in policy.containers() {
        for (list, field, key) in UNIQUE {
            let mut seen = HashSet::new();
            for (index, item) in objects(container, list) {
                if let Some(key) = key(item).filter(|key| !seen.insert(key.clone())) {
                    found.tell(format!("{path}.{list}[{index}].{field}"), format!("`{key}` is there before"));
                }
            }
        }
    }
}

fn protocol(port: &RawObject) -> &str {
    text(port, "protocol").filter(|protocol| !protocol.is_empty()).unwrap_or("TCP")
}

/// Host ports that two containers would open at the same time; init containers run before them, one by one.
fn duplicate_host_ports(policy: &Subject<'_>, found: &mut Found) {
    let mut used = HashSet::new();
    for (at, container) in policy.added(|template| &template.containers) {
        for (index, port) in objects(container, "ports") {
            let Some(number) = port.get("hostPort").and_then(Value::as_u64).filter(|&number| number > 0) else {
                continue;
            };
            if !used.insert((number, protocol(port), text(port, "hostIP").unwrap_or_default())) {
                let field = format!("spec.template.containers[{at}].ports[{index}].hostPort");
                found.tell(field, format!("{number} is used before"));
            }
        }
    }
}

/// Whether the variable `item` has `merge` without a value that can be joined, or `separator` without `merge`.
fn is_wrong_part(item: &RawObject) -> bool {
    let given = |field: &str| item.get(field).filter(|value| !value.is_null());
    let separator = given("separator").map(|separator| separator.as_str().unwrap_or_default());
    let is_odd = separator.is_some_and(|text| text.is_empty() || text.contains(char::is_control));
    match given("merge") {
        None => separator.is_some(),
        Some(_) => is_odd || text(item, "value").is_none_or(|value| !(1..=MAX_PART).contains(&value.len())),
    }
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
fn repeated_in_own_containers(policy: &Subject<'_>, found: &mut Found) {
    let mut seen = HashSet::new();
    for (index, item) in policy.added(|template| &template.env_from) {
        let is_there = source(item).is_some_and(|source| !seen.insert(source));
        found.add_if(is_there, &format!("spec.template.envFrom[{index}]"));
    }
    seen.clear();
    for (index, mount) in policy.added(|template| &template.volume_mounts) {
        let is_there = mounted_at(mount).is_some_and(|path| !seen.insert(path));
        found.add_if(is_there, &format!("spec.template.volumeMounts[{index}].mountPath"));
    }
}

fn mounted_at(mount: &RawObject) -> Option<String> {
    text(mount, "mountPath").map(|path| format::mount_path(path).to_owned())
}

/// Keys of labels and annotations that Kubernetes rejects, and our own keys under `scpol.dev`.
fn foreign_keys(policy: &Subject<'_>, found: &mut Found) {
    let is_ours = |key: &str| {
        key.split_once('/').is_some_and(|(domain, _)| domain == "scpol.dev" || domain.ends_with(".scpol.dev"))
    };
    for metadata in policy.spec.template.iter().filter_map(|template| template.metadata.as_ref()) {
        for key in metadata.labels.keys().filter(|key| !format::is_key(key) || is_ours(key)) {
            found.add(format!("spec.template.metadata.labels.{key}"));
        }
        let is_annotation = |key: &&String| format::is_annotation_key(key) && !is_ours(&key.to_lowercase());
        for key in metadata.annotations.keys().filter(|key| !is_annotation(key)) {
            found.add(format!("spec.template.metadata.annotations.{key}"));
        }
    }
}

fn malformed_lists(policy: &Subject<'_>, found: &mut Found) {
    let is_well_formed = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(Value::is_object));
    for (path, container) in policy.containers() {
        for list in ["env", "envFrom", "ports", "volumeDevices", "volumeMounts"] {
            let is_wrong = container.get(list).is_some_and(|value| !value.is_null() && !is_well_formed(value));
            found.add_if(is_wrong, &format!("{path}.{list}"));
        }
    }
}

/// A single list that is too long is skipped here, because the schema reports it.
fn too_many_together(policy: &Subject<'_>, found: &mut Found) {
    let Some(Template { containers, init_containers, .. }) = &policy.spec.template else { return };
    let together = containers.len() + init_containers.len();
    if containers.len().max(init_containers.len()) <= MAX_CONTAINERS && together > MAX_CONTAINERS {
        found.tell("spec.template", format!("it has {together}"));
    }
}

fn too_large(policy: &Subject<'_>, found: &mut Found) {
    let json = policy.spec.template.as_ref().map_or(Ok(Vec::new()), serde_json::to_vec);
    let size = json.map_or(0, |json| json.len());
    if size > MAX_TEMPLATE {
        found.tell("spec.template", format!("it has {size} bytes"));
    }
}

// Selectors

fn empty_selectors(policy: &Subject<'_>, found: &mut Found) {
    for (field, LabelSelector { match_labels, match_expressions }) in label_selectors(policy) {
        found.add_if(match_labels.is_empty() && match_expressions.is_empty(), &field);
    }
    if let Some(AnnotationSelector { match_annotations, match_expressions }) = &policy.spec.annotation_selector {
        found.add_if(match_annotations.is_empty() && match_expressions.is_empty(), "spec.annotationSelector");
    }
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

fn faulty_expressions(policy: &Subject<'_>, found: &mut Found) {
    let mut check = |field: String, source: &str, gives| {
        if let Err(fault) = Expression::compile(source, gives, Dialect::NEWEST) {
            found.tell(field, fault.to_string());
        }
    };
    for (index, condition) in policy.spec.match_conditions.iter().enumerate() {
        check(format!("spec.matchConditions[{index}].expression"), &condition.expression, Gives::Bool);
    }
    for (index, parameter) in policy.spec.parameters.iter().enumerate() {
        if let Some(expression) = &parameter.expression {
            check(format!("spec.parameters[{index}].expression"), expression, Gives::Value);
        }
    }
    for (index, validation) in policy.spec.validations.iter().enumerate() {
        check(format!("spec.validations[{index}].expression"), &validation.expression, Gives::Bool);
        if let Some(message) = &validation.message_expression {
            check(format!("spec.validations[{index}].messageExpression"), message, Gives::String);
        }
    }
}

// Targets

/// Adds the targets whose class `explain` blames.
fn blame_targets(policy: &Subject<'_>, found: &mut Found, explain: impl Fn(targets::Class) -> Option<String>) {
    for (index, target) in policy.spec.targets.iter().enumerate() {
        if let Some(detail) = explain(targets::classify(target)) {
            found.tell(format!("spec.targets[{index}].resource"), detail);
        }
    }
}

/// Adds the field `operations` of the targets that are wrong.
fn operations(policy: &Subject<'_>, found: &mut Found, is_wrong: impl Fn(&Target) -> bool) {
    for (index, target) in policy.spec.targets.iter().enumerate() {
        found.add_if(is_wrong(target), &format!("spec.targets[{index}].operations"));
    }
}
