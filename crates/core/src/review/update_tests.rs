//! Tests of updates, on both engines: what the webhook answers to a review, and what the API server does by the rendered
//! expressions, which our own CEL evaluates here.

use crate::capabilities::Capabilities;
use crate::compile::admission_policy::render;
use crate::policy::extent::{self, Extent};
use crate::policy::{Policies, Policy, Site};
use crate::review::{Call, Caller, Review, Told};
use crate::workload::{Kind, Workload};
use admission_cel::{Budget, Dialect, Expression, Gives, Variables as Seen};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use regex::Regex;
use serde_json::{Value, json};
use std::slice::from_ref;
use std::sync::Arc;

const NAMESPACE: &str = "shop";

fn site() -> Site {
    Site { native_sidecars: true, ..Site::new("scpol-system", [], []) }
}

fn namespace() -> Value {
    json!({ "metadata": { "name": NAMESPACE, "labels": { "team": "a" } } })
}

/// Policies for Deployments that act on updates, unless their spec says otherwise.
pub(super) fn policies(specs: &[Value]) -> Vec<Arc<Policy>> {
    let parse = |(number, spec): (usize, &Value)| {
        let mut spec = spec.clone();
        if spec.get("targets").is_none() {
            spec["targets"] =
                json!([{ "group": "apps", "resource": "deployments", "operations": ["CREATE", "UPDATE"] }]);
        }
        let object = json!({ "metadata": { "name": format!("p{number}"), "uid": "u" }, "spec": spec });
        Arc::new(Policy::parse(&object, &site()).unwrap_or_else(|faults| panic!("{faults:?} in {spec}")))
    };
    specs.iter().enumerate().map(parse).collect()
}

/// A request, as both engines see it.
struct Request<'a> {
    kind: Arc<Kind>,
    /// Null for a create.
    old: &'a Value,
    new: &'a Value,
}

impl<'a> Request<'a> {
    fn of(old: &'a Value, new: &'a Value) -> Self {
        let kind = match new["kind"].as_str() {
            Some("Rollout") => Kind::of("example.org", "rollouts", None),
            _ => Kind::find("apps", "deployments").unwrap().clone(),
        };
        Self { kind, old, new }
    }

    fn operation(&self) -> &'static str {
        if self.old.is_null() { "CREATE" } else { "UPDATE" }
    }
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub(super) struct Effect {
    pub(super) stored: Value,
    pub(super) refused: bool,
}

// The webhook

/// What the webhook makes of a request, with its reports and warnings.
pub(super) struct Answered {
    pub(super) effect: Effect,
    pub(super) told: Vec<String>,
    warnings: Vec<String>,
    pub(super) message: String,
}

fn by_webhook(policies: &[Arc<Policy>], request: &Request<'_>, site: &Site) -> Answered {
    let policies = Policies::new(policies.iter().cloned());
    let (mut stored, mut told, mut warnings) = (request.new.clone(), Vec::new(), Vec::new());
    let mut ask = |call: Call, object: &Value| {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u1", "operation": request.operation(), "namespace": NAMESPACE, "object": object, "oldObject": request.old,
                "resource": { "group": request.kind.group, "version": "v1", "resource": request.kind.resource },
            },
        });
        let review = Review::parse(review.to_string().as_bytes()).unwrap();
        let caller = Caller { call, revision: None, policies: &policies, listed: None };
        let answer = review.answer(&caller, site, Some(Arc::new(namespace())));
        let line = |told: Told<'_>| format!("{} {} {}", told.policy.name, told.outcome.label(), told.code);
        told.extend(answer.decided.iter().flat_map(|decided| decided.told().into_iter().map(line).collect::<Vec<_>>()));
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        let list = answer["response"]["warnings"].as_array().cloned().unwrap_or_default();
        warnings.extend(list.iter().filter_map(|warning| warning.as_str().map(str::to_owned)));
        answer["response"].clone()
    };
    if let Some(patch) = ask(Call::Mutate, &stored)["patch"].as_str() {
        let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        json_patch::patch(&mut stored, &patch).unwrap();
    }
    let answer = ask(Call::Validate, &stored);
    let message = answer["status"]["message"].as_str().unwrap_or_default().to_owned();
    let refused = answer["allowed"] == false;
    Answered { effect: Effect { stored, refused }, told, warnings, message }
}

// The API server

/// The beginnings of the names of variables that are texts, and of those that are true or false.
const KINDS: [(Gives, &[&str]); 2] = [
    (Gives::String, &["marker", "kept", "message", "revision"]),
    (
        Gives::Bool,
        &[
            "adds",
            "condition",
            "demand",
            "short_markers",
            "held",
            "matches",
            "selects",
            "selected",
            "survives",
            "restores",
            "wanted",
            "lost",
            "told_apart",
            "equal",
            "inner_fits",
            "is_",
            "together",
            "unreplaced",
            "replaced",
            "takes",
            "due",
            "ends",
        ],
    ),
];

/// `source` for a variable `object` that has both objects of the request.
fn placed(source: &str, request: &Request<'_>) -> String {
    let word = Regex::new(r"\b(oldObject|object|request\.[a-z.]+[a-z])\b").unwrap();
    let instead = |found: &regex::Captures<'_>| match &found[1] {
        "oldObject" => "object.old".to_owned(),
        "object" => "object.new".to_owned(),
        "request.operation" => format!("{:?}", request.operation()),
        "request.namespace" => format!("{NAMESPACE:?}"),
        "request.resource.group" => format!("{:?}", request.kind.group),
        "request.resource.version" => "\"v1\"".to_owned(),
        other => panic!("{other}"),
    };
    as_maps(&word.replace_all(source, instead))
}

/// `source` with a map for each `JSONPatch`.
fn as_maps(source: &str) -> String {
    let Some((before, rest)) = source.split_once("JSONPatch{") else { return source.to_owned() };
    let (mut depth, mut is_text, mut is_escaped, mut cuts, mut end) = (0, false, false, Vec::new(), 0);
    for (at, c) in rest.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_text = !is_text,
            _ if is_text => {}
            '(' | '[' | '{' => depth += 1,
            '}' if depth == 0 => {
                end = at;
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => cuts.push(at),
            _ => {}
        }
    }
    let bounds: Vec<usize> = [0].into_iter().chain(cuts.iter().map(|cut| cut + 1)).collect();
    let ends = cuts.into_iter().chain([end]);
    let fields = bounds.into_iter().zip(ends).map(|(start, end)| {
        let (name, value) = rest[start..end].trim().split_once(": ").unwrap();
        format!("\"{name}\": dyn({})", as_maps(value))
    });
    format!("{before}{{{}}}{}", fields.collect::<Vec<_>>().join(", "), as_maps(&rest[end + 1..]))
}

/// JSON as an expression.
fn literal(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| format!("dyn({})", literal(item))).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let entry = |(key, value): (&String, &Value)| format!("{}: dyn({})", json!(key), literal(value));
            format!("{{{}}}", fields.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

/// Evaluates the expressions of one admission policy.
struct Evaluator<'a> {
    request: &'a Request<'a>,
    spec: &'a Value,
    objects: Value,
    /// The variables with their values, or their expressions if the values are lists or maps.
    variables: Vec<(String, String)>,
}

impl<'a> Evaluator<'a> {
    fn new(spec: &'a Value, request: &'a Request<'a>, stored: &Value) -> Self {
        let objects = json!({ "old": request.old, "new": stored });
        let mut evaluator = Self { request, spec, objects, variables: Vec::new() };
        for variable in spec["variables"].as_array().into_iter().flatten() {
            let (name, own) = (variable["name"].as_str().unwrap(), variable["expression"].as_str().unwrap());
            let kind = KINDS.iter().find(|(_, stems)| stems.iter().any(|stem| name.starts_with(stem)));
            // What fails does so where it is used, because the server evaluates it only there.
            let value = match kind.map(|(gives, _)| gives) {
                Some(Gives::Bool) => evaluator.test(own).map_or("(1 / 0 == 1)".to_owned(), |value| value.to_string()),
                Some(Gives::String) => {
                    evaluator.text(own).map_or("string(1 / 0)".to_owned(), |value| json!(value).to_string())
                }
                Some(Gives::Value) | None => String::new(),
            };
            let value = if value.is_empty() { evaluator.whole(own) } else { value };
            evaluator.variables.push((format!("variables.{name}"), value));
        }
        evaluator
    }

    /// `source` with the variables that it uses.
    fn whole(&self, source: &str) -> String {
        let mut text = placed(source, self.request);
        for (name, value) in self.variables.iter().rev() {
            let word = Regex::new(&format!(r"\b{}\b", regex::escape(name))).unwrap();
            let is_value =
                value == "true" || value == "false" || value.starts_with(['"', 's']) || value == "(1 / 0 == 1)";
            let uses = word.find_iter(&text).count();
            if is_value || uses == 1 {
                text = word.replace_all(&text, regex::NoExpand(&format!("({value})"))).into_owned();
            } else if uses > 1 {
                let bound = name.replace('.', "_");
                text = format!("[{value}].map({bound}, {})[0]", word.replace_all(&text, regex::NoExpand(&bound)));
            }
        }
        text
    }

    fn compile(&self, source: &str, gives: Gives) -> Expression {
        let source = self.whole(source);
        Expression::compile(&source, gives, Dialect::NEWEST)
            .unwrap_or_else(|error| panic!("{error}\n{}", &source[..source.len().min(3000)]))
    }

    fn test(&self, source: &str) -> Result<bool, String> {
        let (namespace, mut budget) = (namespace(), Budget::validations());
        let seen = Seen { object: &self.objects, namespace: Some(&namespace), template: None };
        self.compile(source, Gives::Bool).test(&seen, &mut budget).map_err(|failure| failure.to_string())
    }

    fn text(&self, source: &str) -> Result<String, String> {
        let (namespace, mut budget) = (namespace(), Budget::validations());
        let seen = Seen { object: &self.objects, namespace: Some(&namespace), template: None };
        self.compile(source, Gives::String).text(&seen, &mut budget).map_err(|failure| failure.to_string())
    }

    fn is_meant(&self) -> bool {
        let operations = &self.spec["matchConstraints"]["resourceRules"][0]["operations"];
        if !operations.as_array().unwrap().contains(&json!(self.request.operation())) {
            return false;
        }
        let conditions = self.spec["matchConditions"].as_array().into_iter().flatten();
        conditions.into_iter().all(|condition| self.test(condition["expression"].as_str().unwrap()).unwrap())
    }

    /// The operations of a mutation, whose values are texts, numbers, maps of texts, or among `values`.
    fn operations(&self, source: &str, values: &[Value]) -> Result<Vec<Value>, String> {
        let known = values
            .iter()
            .enumerate()
            .map(|(number, known)| format!("v == dyn({}) ? \"known {number}\" : ", literal(known)));
        let known: String = known.collect();
        let map = "\"map \" + dyn(v).map(k, string(k) + \" \" + string(dyn(v)[k])).join(\" \")";
        let kind =
            format!("{known}type(v) == map ? {map} : type(v) == int ? \"int \" + string(v) : \"text \" + string(v)");
        let line =
            format!("string(o.op) + \" \" + string(o.path) + \" \" + [dyn(o.?value.orValue(\"\"))].map(v, {kind})[0]");
        let lines = self.text(&format!("({source}).map(o, {line}).join(\"\\n\")"))?;
        let operation = |line: &str| {
            let [op, path, kind, text] = line.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
            let value = match kind {
                "known" => values[text.parse::<usize>().unwrap()].clone(),
                "int" => json!(text.parse::<i64>().unwrap()),
                "map" => text.split(' ').collect::<Vec<_>>().chunks(2).map(|entry| (entry[0], entry[1])).collect(),
                _ => json!(text),
            };
            match op {
                "remove" => json!({ "op": op, "path": path }),
                _ => json!({ "op": op, "path": path, "value": value }),
            }
        };
        Ok(lines.lines().map(operation).collect())
    }
}

/// Every value that a template of `policies` adds.
fn values(policies: &[Arc<Policy>]) -> Vec<Value> {
    let templates = policies.iter().flat_map(|policy| {
        let template = serde_json::to_value(&policy.as_written().spec).unwrap();
        template.as_object().cloned().unwrap_or_default().into_iter().map(|(_, value)| value)
    });
    let items = templates.flat_map(|list| list.as_array().cloned().unwrap_or_default());
    items.chain([json!([]), json!({})]).collect()
}

fn by_server(policies: &[Arc<Policy>], request: &Request<'_>, site: &Site) -> Effect {
    let objects = render(&request.kind, policies, &Capabilities::default(), site).unwrap();
    let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let mut stored = request.new.clone();
    let evaluator = |spec, stored: &Value| Evaluator::new(spec, request, stored);
    for object in of("MutatingAdmissionPolicy").filter(|object| evaluator(&object["spec"], request.new).is_meant()) {
        let spec = &object["spec"];
        for mutation in spec["mutations"].as_array().unwrap() {
            let source = mutation["jsonPatch"]["expression"].as_str().unwrap();
            // What fails changes nothing, because the policy has `Ignore`.
            let operations = evaluator(spec, &stored).operations(source, &values(policies)).unwrap_or_default();
            let patch: json_patch::Patch = serde_json::from_value(json!(operations)).unwrap();
            json_patch::patch(&mut stored, &patch).unwrap();
        }
    }
    let mut refused = false;
    for object in of("ValidatingAdmissionPolicy").filter(|object| evaluator(&object["spec"], &stored).is_meant()) {
        let spec = &object["spec"];
        for validation in spec["validations"].as_array().unwrap() {
            let passed = evaluator(spec, &stored).test(validation["expression"].as_str().unwrap());
            refused |= !passed.unwrap_or(spec["failurePolicy"] == "Ignore");
        }
    }
    Effect { stored, refused }
}

/// The answer of the webhook, which must be that of the server.
pub(super) fn answered(specs: &[Value], old: &Value, new: &Value) -> Answered {
    answered_at(specs, old, new, &site())
}

fn answered_at(specs: &[Value], old: &Value, new: &Value, site: &Site) -> Answered {
    // By priority.
    let policies: Vec<Arc<Policy>> = Policies::new(policies(specs)).iter().cloned().collect();
    let request = Request::of(old, new);
    let answered = by_webhook(&policies, &request, site);
    let by_server = by_server(&policies, &request, site);
    assert_eq!(by_server.refused, answered.effect.refused, "{} {}", json!(specs), answered.message);
    assert_eq!(by_server.stored, answered.effect.stored, "{}", json!(specs));
    answered
}

// Objects

pub(super) fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": NAMESPACE, "labels": { "app": "web" } },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
            },
        },
    })
}

fn template(image: &str) -> Value {
    json!({ "containers": [{ "name": "envoy", "image": image }] })
}

fn simple(image: &str) -> Value {
    json!({ "template": template(image) })
}

/// `object` after its create under these policies.
pub(super) fn created(specs: &[Value], object: &Value) -> Value {
    answered(specs, &Value::Null, object).effect.stored
}

/// `object` with `value` at `pointer`; null removes the field.
pub(super) fn with(object: &Value, pointer: &str, value: Value) -> Value {
    let mut object = object.clone();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
    let field = field.replace("~1", "/");
    match value {
        Value::Null => drop(parent.as_object_mut().unwrap().remove(&field)),
        value => parent[&field] = value,
    }
    object
}

const MARKER: &str = "/spec/template/metadata/annotations/injected.scpol.dev~1p0";
pub(super) const CONTAINERS: &str = "/spec/template/spec/containers";

/// The containers of `object`, each with its image, and the hash of its marker.
pub(super) fn told(object: &Value) -> String {
    let containers = object.pointer(CONTAINERS).and_then(Value::as_array).into_iter().flatten();
    let containers = containers.map(|container| container["image"].as_str().unwrap_or_default().to_owned());
    let is_marked = object.pointer(MARKER).is_some();
    containers.chain(is_marked.then(|| "marked".to_owned())).collect::<Vec<_>>().join(" ")
}

// Content

#[test]
fn a_marker_without_its_content_is_as_good_as_none() {
    let on_create = json!([{ "group": "apps", "resource": "deployments" }]);
    for targets in [Value::Null, on_create] {
        let spec = |template: &Value| {
            let mut spec = json!({ "template": template, "failurePolicy": "Fail" });
            if !targets.is_null() {
                spec["targets"] = targets.clone();
            }
            spec
        };
        let (of_container, of_variable) = (
            spec(&template("envoy:1")),
            spec(&json!({ "env": [{ "name": "A", "value": "1" }], "appContainers": ["a*"] })),
        );
        let both = [of_container.clone(), of_variable.clone()];
        let (app, envoy) = (json!({ "name": "app", "image": "app:1" }), json!({ "name": "envoy", "image": "envoy:1" }));
        let containers = |object: &Value, containers: &[&Value]| with(object, CONTAINERS, json!(containers));
        let add = |container: &Value, field: &str, value: Value| {
            with(&json!({ "c": container }), &format!("/c/{field}"), value)["c"].clone()
        };
        let (honest, variables) = (created(&both[..1], &deployment()), created(from_ref(&of_variable), &deployment()));
        let own = json!(honest.pointer(MARKER).unwrap().as_str().unwrap().replace("/envoy", "/app"));
        let garbage = json!(honest.pointer(MARKER).unwrap().as_str().unwrap().replace("[\"", "[yes"));
        let long = format!(",\"{}\"", "x".repeat(300)).repeat(700);
        let long = json!(honest.pointer(MARKER).unwrap().as_str().unwrap().replace("\"]}", &format!("\"{long}]}}")));
        let with_a = add(&app, "env", json!([{ "name": "A", "value": "1" }]));
        for (what, specs, posted, expected) in [
            ("nothing is there", &both[..1], containers(&honest, &[&app]), "app:1 envoy:1 marked"),
            (
                "it lists the user's",
                &both[..1],
                with(&containers(&honest, &[&app]), MARKER, own),
                "app:1 envoy:1 marked",
            ),
            ("it is garbage", &both[..1], with(&containers(&honest, &[&app]), MARKER, garbage), "app:1 envoy:1 marked"),
            ("it is long", &both[..1], with(&containers(&honest, &[&app]), MARKER, long), "app:1 envoy:1 marked"),
            ("beside another policy", &both[..], containers(&honest, &[&app]), "app:1 envoy:1 marked"),
            (
                "other content",
                &both[..1],
                containers(&honest, &[&app, &add(&envoy, "image", json!("pause"))]),
                "refused",
            ),
            ("all is there", &both[..1], honest.clone(), "as it was"),
            (
                "a webhook has added to it",
                &both[..1],
                containers(&honest, &[&app, &add(&envoy, "env", json!([{ "name": "ROLE", "value": "1" }]))]),
                "as it was",
            ),
            ("no variable", from_ref(&of_variable), containers(&variables, &[&app]), "app:1 marked"),
            ("all variables", from_ref(&of_variable), variables.clone(), "as it was"),
            (
                "a container came later",
                from_ref(&of_variable),
                containers(&variables, &[&app, &with_a, &envoy]),
                "as it was",
            ),
        ] {
            let mut posted = posted;
            if what == "a container came later" {
                posted = containers(&posted, &[&add(&app, "name", json!("a-later")), &with_a, &envoy]);
            }
            let answered = answered(specs, &Value::Null, &posted);
            let stored = answered.effect.stored;
            let found = match answered.effect.refused {
                true => "refused".to_owned(),
                false if stored == posted => "as it was".to_owned(),
                false => told(&stored),
            };
            assert_eq!(found, expected, "{what}: {stored}");
            // Again, as for a pod that is made of a template.
            if found != "refused" {
                assert_eq!(created(specs, &stored), stored, "{what}");
            }
        }
    }
}

#[test]
fn an_update_gets_back_what_it_would_lose_and_nothing_else() {
    let now = [simple("envoy:2")];
    let (bare, current, outdated) =
        (deployment(), created(&now, &deployment()), created(&[simple("envoy:1")], &deployment()));
    let emptied = |object: &Value| with(object, CONTAINERS, json!([{ "name": "app", "image": "app:1" }]));
    let unmarked = |object: &Value| with(object, MARKER, Value::Null);
    let edited = |object: &Value| with(object, "/spec/replicas", json!(3));
    let rehashed = with(&emptied(&current), MARKER, outdated.pointer(MARKER).unwrap().clone());
    let stale = json!([{ "name": "app", "image": "app:1" }, { "name": "envoy", "image": "envoy:0" }]);
    let opted_out = with(&bare, "/metadata/annotations", json!({ "scpol.dev/inject": "false" }));
    let ending = with(&current, "/metadata/deletionTimestamp", json!("2030-01-01T00:00:00Z"));
    for (what, old, new, expected, report) in [
        ("the whole manifest comes anew", &current, &bare, "app:1 envoy:2 marked", "p0 injected SCP0002"),
        ("an outdated one is lost", &outdated, &edited(&bare), "app:1 envoy:2 marked", "p0 injected SCP0002"),
        ("only the containers come anew", &current, &emptied(&current), "app:1 envoy:2 marked", "p0 injected SCP0002"),
        (
            "an outdated one loses its containers",
            &outdated,
            &emptied(&outdated),
            "app:1 envoy:2 marked",
            "p0 injected SCP0002",
        ),
        ("only the marker is lost", &current, &unmarked(&current), "app:1 envoy:2 marked", "p0 injected SCP0002"),
        ("something else changes", &current, &edited(&current), "app:1 envoy:2 marked", ""),
        ("something else of an outdated one changes", &outdated, &edited(&outdated), "app:1 envoy:1 marked", ""),
        ("it is brought up to date", &outdated, &current, "app:1 envoy:2 marked", ""),
        ("it goes back to an earlier revision", &current, &outdated, "app:1 envoy:1 marked", ""),
        ("a marker of another revision counts, as on a create", &current, &rehashed, "app:1 marked", ""),
        ("its image is edited", &current, &with(&current, CONTAINERS, stale.clone()), "app:1 envoy:0 marked", ""),
        ("it never had one", &bare, &edited(&bare), "app:1", ""),
        (
            "it never had one, and its containers change",
            &bare,
            &with(&bare, CONTAINERS, stale.clone()),
            "app:1 envoy:0",
            "",
        ),
        ("it had lost the content before", &emptied(&current), &edited(&emptied(&current)), "app:1 marked", ""),
        ("it opts out", &current, &opted_out, "app:1", "p0 skipped SCP0105"),
        (
            "another one comes without a marker",
            &current,
            &with(&bare, CONTAINERS, stale),
            "app:1 envoy:0",
            "p0 failed SCP0200",
        ),
        ("the old one is being deleted", &ending, &bare, "app:1", ""),
        (
            "it is being deleted",
            &ending,
            &with(&ending, CONTAINERS, json!([{ "name": "app", "image": "app:1" }])),
            "app:1 marked",
            "",
        ),
    ] {
        let answered = answered(&now, old, new);
        assert_eq!(told(&answered.effect.stored), expected, "{what}");
        assert_eq!(answered.told.join(", "), report, "{what}");
        assert!(!answered.effect.refused, "{what}");
        assert_eq!(answered.warnings.len(), usize::from(report.contains("failed")), "{what}");
    }
    // The same content counts as the user's, as on a create.
    let stored = answered(&now, &current, &unmarked(&current)).effect.stored;
    assert!(!stored.pointer(MARKER).unwrap().as_str().unwrap().contains("envoy"), "{stored}");
    // What is left of the marker stays in it.
    assert_eq!(answered(&now, &current, &emptied(&current)).effect.stored, current);
}

#[test]
fn who_does_not_ask_for_updates_has_none() {
    let of = |operations: Value| {
        let mut spec = simple("envoy:1");
        spec["failurePolicy"] = json!("Fail");
        spec["validations"] = json!([{ "expression": "object.spec.replicas < 3" }]);
        spec["targets"] =
            json!([{ "group": "apps", "version": "v1", "resource": "deployments", "operations": operations }]);
        spec
    };
    let (quiet, acting) = (of(json!(["CREATE"])), of(json!(["CREATE", "UPDATE"])));
    let old = created(from_ref(&quiet), &deployment());
    let new = with(&deployment(), "/spec/replicas", json!(3));
    let registered = |specs: &[Value]| {
        let policies = policies(specs);
        let objects = render(&policies[0].kinds[0], &policies, &Capabilities::default(), &site()).unwrap();
        let rules = objects.iter().filter_map(|object| object["spec"]["matchConstraints"]["resourceRules"].as_array());
        rules.flatten().map(|rule| format!("{} {}", rule["operations"], rule["resources"])).collect::<Vec<_>>()
    };
    assert_eq!(registered(from_ref(&quiet)), [r#"["CREATE"] ["deployments"]"#; 2]);
    assert_eq!(registered(from_ref(&acting)), [r#"["CREATE","UPDATE"] ["deployments"]"#; 2]);
    // Beside one that acts, it still does not.
    let other = json!({ "template": { "containers": [{ "name": "other", "image": "other:1" }] } });
    for (specs, expected) in [(vec![quiet, other.clone()], false), (vec![acting, other], true)] {
        let answered = answered(&specs, &old, &new);
        assert_eq!(answered.effect.refused, expected, "{}", answered.message);
        assert_eq!(told(&answered.effect.stored).contains("envoy"), expected);
    }
}

#[test]
fn a_target_of_a_named_version_acts_on_updates_through_it() {
    for (version, expected) in [("v1", "app:1 envoy:1 marked"), ("v1beta1", "app:1")] {
        let mut spec = simple("envoy:1");
        let target = |version: &str, operations: Value| json!({ "group": "apps", "version": version, "resource": "deployments", "operations": operations });
        let other = if version == "v1" { "v1beta1" } else { "v1" };
        spec["targets"] = json!([target(version, json!(["CREATE", "UPDATE"])), target(other, json!(["CREATE"]))]);
        spec["validations"] = json!([{ "expression": "object.spec.replicas < 3" }]);
        let old = created(&[spec.clone()], &deployment());
        let answered = answered(&[spec.clone()], &old, &deployment());
        assert_eq!(told(&answered.effect.stored), expected, "{version}");
        let many = with(&deployment(), "/spec/replicas", json!(3));
        assert_eq!(self::answered(&[spec], &old, &many).effect.refused, version == "v1");
    }
}

#[test]
fn what_comes_back_is_what_a_create_would_give() {
    // The first two exclude each other, and the last one does not act on updates.
    let policy = |container: &str, image: &str, condition: &str| {
        let template = json!({ "containers": [{ "name": container, "image": image }] });
        json!({ "template": template, "matchConditions": [{ "name": "c", "expression": condition }] })
    };
    let holds = |field: &str| format!("object.spec.{field} == 1");
    let mut quiet = policy("envoy", "envoy:3", &holds("quiet"));
    quiet["targets"] = json!([{ "group": "apps", "resource": "deployments" }]);
    let specs = [policy("envoy", "envoy:1", &holds("replicas")), policy("envoy", "envoy:2", &holds("paused")), quiet];
    let old = created(&specs, &deployment());
    assert_eq!(told(&old), "app:1 envoy:1 marked");
    for (field, value, containers, report) in [
        ("metadata/labels/more", json!("x"), "app:1 envoy:1 marked", "p0 injected SCP0002"),
        // The other policy matches now, and has nothing to get back.
        ("spec/paused", json!(1), "app:1", "p0 failed SCP0201"),
        ("spec/quiet", json!(1), "app:1", "p0 failed SCP0201"),
        ("spec/replicas", json!(2), "app:1", "p0 skipped SCP0112"),
        ("spec/replicas", Value::Null, "app:1", "p0 failed SCP0211"),
    ] {
        let new = with(&deployment(), &format!("/{field}"), value);
        let answered = answered(&specs, &old, &new);
        assert_eq!(
            (told(&answered.effect.stored).as_str(), answered.told.join(" ").as_str()),
            (containers, report),
            "{field}"
        );
        // Beside the sidecar, nothing comes that was not there.
        let kept = self::answered(&specs, &old, &with(&old, &format!("/{field}"), json!(1)));
        assert_eq!((told(&kept.effect.stored).as_str(), kept.told.len()), ("app:1 envoy:1 marked", 0), "{field}");
    }
}

#[test]
fn while_a_rollout_goes_in_steps_a_create_and_an_update_get_the_content_of_their_place() {
    let [old, new] = ["x:1", "x:2"].map(|image| policies(&[simple(image)]).remove(0));
    let of = |names: &[&str]| Extent::of_namespaces(names.iter().map(|name| (*name).to_owned()));
    let labels = |labels: Value| Extent {
        selectors: vec![serde_json::from_value(json!({ "matchLabels": labels })).unwrap()],
        ..of(&["other"])
    };
    let own = deployment()["metadata"]["labels"].clone();
    let workload = Workload::new(Kind::find("apps", "deployments").unwrap(), deployment());
    let bucket = i32::from(extent::bucket(&workload));
    let percent = |percent: i32| Extent { percent, ..of(&[]) };
    for (extent, image) in [
        (of(&[]), "x:1"),
        (of(&["other"]), "x:1"),
        (of(&[NAMESPACE]), "x:2"),
        (labels(json!({ "track": "canary" })), "x:1"),
        (labels(own), "x:2"),
        (percent(bucket), "x:1"),
        (percent(bucket + 1), "x:2"),
        (percent(100), "x:2"),
    ] {
        let split = [Arc::new(Policy::clone(&new).split(old.clone(), extent))];
        let before = created(&[simple("x:1")], &deployment());
        for stored in [Value::Null, before] {
            let posted = deployment();
            let request = Request::of(&stored, &posted);
            let by_webhook = by_webhook(&split, &request, &site()).effect;
            assert_eq!(by_webhook, by_server(&split, &request, &site()), "{image}");
            let containers = by_webhook.stored["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            let images: Vec<&Value> = containers.iter().map(|container| &container["image"]).collect();
            assert!(images.contains(&&json!(image)) && !by_webhook.refused, "{images:?}, not {image}");
        }
    }
}

#[test]
fn notes_of_a_client_are_no_notes() {
    let policy = |name: &str| {
        json!({
            "template": { "containers": [{ "name": name, "image": format!("{name}:1") }] },
            "matchConditions": [{ "name": "c", "expression": "object.spec.replicas == 1" }],
        })
    };
    let specs = [policy("a"), policy("b")];
    let old = created(&specs, &deployment());
    for grace in [0, 1, 2, 3] {
        let mut new = with(&deployment(), "/spec/replicas", json!(2));
        new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        let by_server = by_server(&policies(&specs), &Request::of(&old, &new), &site());
        assert_eq!(told(&by_server.stored), "app:1", "{grace}");
    }
}

// Refusals

#[test]
fn an_update_is_refused_for_what_it_breaks_and_for_nothing_that_was_broken_before() {
    // The objects have this many replicas; without a number, the expression fails. The policy selects the tier `web`.
    let object = |replicas: Option<u32>, tier: &str| {
        let object = with(&deployment(), "/metadata/labels/tier", json!(tier));
        with(&object, "/spec/replicas", replicas.map_or(Value::Null, |replicas| json!(replicas)))
    };
    let [few, many, more, none] = [Some(1), Some(3), Some(4), None].map(|replicas| object(replicas, "web"));
    let elsewhere = object(Some(1), "db");
    let free = |object: &Value| with(object, "/metadata/finalizers", json!(["a/b"]));
    let other = |object: &Value| with(object, "/metadata/labels/more", json!("x"));
    let moved = |object: &Value| with(object, "/metadata/labels/tier", json!("db"));
    let ending = with(&few, "/metadata/deletionTimestamp", json!("2030-01-01T00:00:00Z"));
    let (refused, warned) = ("p0 rejected SCP0210", "warned");
    // With `Ignore` and with `Fail`.
    for (what, old, new, ignoring, failing) in [
        ("newly broken", &few, many.clone(), refused, refused),
        ("broken as before", &many, free(&many), warned, warned),
        ("broken otherwise", &many, more.clone(), warned, warned),
        ("mended", &many, few.clone(), "", ""),
        ("good as before", &few, free(&few), "", ""),
        ("newly selected and broken", &object(Some(3), "db"), many.clone(), refused, refused),
        ("newly selected and good", &elsewhere, few.clone(), "", ""),
        ("no longer selected", &few, moved(&many), "", ""),
        ("never selected", &elsewhere, moved(&many), "", ""),
        ("fails as before", &none, free(&none), warned, warned),
        (
            "fails as before, and something else changes",
            &none,
            other(&none),
            "p0 failed SCP0211",
            "p0 rejected SCP0211",
        ),
        ("newly fails", &few, none.clone(), "p0 failed SCP0211", "p0 rejected SCP0211"),
        ("broken before, and fails", &many, none.clone(), warned, warned),
        ("failed before, and broken", &none, many.clone(), "p0 failed SCP0211", "p0 rejected SCP0211"),
        ("failed before, and good", &none, few.clone(), "", ""),
        ("being deleted", &ending, many.clone(), "", ""),
    ] {
        for (failure_policy, expected) in [("Ignore", ignoring), ("Fail", failing)] {
            let spec = json!({
                "failurePolicy": failure_policy, "labelSelector": { "matchLabels": { "tier": "web" } },
                "validations": [{ "expression": "object.spec.replicas < 3", "message": "too many" }],
            });
            let answered = answered(&[spec], old, &new);
            let warnings = if answered.warnings.is_empty() { "" } else { warned };
            let reported = answered.told.join(" ");
            assert_eq!(format!("{reported}{warnings}"), expected, "{what} with {failure_policy}: {}", answered.message);
            assert_eq!(answered.effect.refused, expected.contains("rejected"), "{what} with {failure_policy}");
            assert_eq!(answered.effect.stored, new, "{what}");
        }
    }
}

#[test]
fn what_a_validation_does_not_look_at_may_change_where_it_fails() {
    for (expression, field, is_admitted) in [
        ("object.spec.paused == true", "/spec/replicas", true),
        ("object.spec.template.spec.hostname != ''", "/spec/template/spec/containers", true),
        ("object.spec.template.spec.hostname != ''", "/spec/template/metadata/labels", true),
        ("object.metadata.annotations.a != ''", "/metadata/labels/more", true),
        ("object.metadata.labels.team != ''", "/metadata/labels/more", true),
        ("object.spec.strategy.type != ''", "/spec/replicas", true),
        ("object.spec.strategy.type != ''", "/spec/strategy", false),
        ("object.spec.template.spec.containers[7].image != ''", "/spec/template/spec/containers", false),
        (
            "object.metadata.labels.all(k, v, v != '') && object.metadata.labels.team != ''",
            "/metadata/labels/more",
            false,
        ),
        // They look at the object without what only the server sets.
        ("object.metadata.generateName == object.metadata.name", "/spec/replicas", true),
        ("object.metadata.exists(k, k == object.metadata.nowhere)", "/spec/replicas", true),
        ("object.metadata.exists(k, k == object.metadata.nowhere)", "/metadata/labels/more", false),
        ("object.exists(k, k == object.nowhere)", "/spec/replicas", false),
        ("object.status.nowhere == 1", "/spec/replicas", true),
    ] {
        let spec = json!({ "failurePolicy": "Fail", "validations": [{ "expression": expression }] });
        let old = deployment();
        let value = match field {
            "/spec/replicas" => json!(7),
            "/spec/template/spec/containers" => json!([{ "name": "app", "image": "app:2" }]),
            "/spec/strategy" => json!({ "a": "b" }),
            "/spec/template/metadata/labels" => json!({ "app": "web", "more": "x" }),
            _ => json!("x"),
        };
        assert!(answered(from_ref(&spec), &Value::Null, &old).effect.refused, "{expression} holds or is broken");
        let answered = answered(&[spec], &old, &with(&old, field, value));
        assert_eq!(!answered.effect.refused, is_admitted, "{expression} {field}: {}", answered.message);
    }
}

#[test]
fn fail_refuses_an_update_that_loses_the_sidecar_for_good() {
    let spec = json!({
        "failurePolicy": "Fail", "labelSelector": { "matchLabels": { "app": "web" } },
        "template": { "containers": [{ "name": "envoy", "image": "envoy:1" }, { "name": "more", "image": "more:1" }] },
    });
    let specs = [spec];
    let bare = deployment();
    let current = created(&specs, &bare);
    let conflict = json!([{ "name": "app", "image": "app:1" }, { "name": "more", "image": "mine:1" }]);
    let with_conflict = |object: &Value| with(object, CONTAINERS, conflict.clone());
    let opted_out = with(&with_conflict(&bare), "/metadata/annotations", json!({ "scpol.dev/inject": "false" }));
    let unselected = with(&with_conflict(&bare), "/metadata/labels/app", json!("db"));
    let foreign = with(
        &with_conflict(&bare),
        "/spec/template/metadata/annotations",
        json!({ "injected.scpol.dev/p0": "garbage" }),
    );
    let refused = "p0 rejected SCP0200";
    for (what, old, new, expected) in [
        ("it cannot come back", &current, with_conflict(&bare), refused),
        ("an unreadable marker is none", &current, foreign, refused),
        ("it was never there", &bare, with_conflict(&bare), ""),
        ("it comes back", &current, bare.clone(), "p0 injected SCP0002"),
        ("it opts out", &current, opted_out, "p0 skipped SCP0105"),
        ("it is not selected any more", &current, unselected, "p0 skipped SCP0111"),
        // The object keeps the marker: a warning must do.
        ("only content is lost for good", &current, with_conflict(&current), "p0 failed SCP0200"),
        ("nothing is lost", &current, with(&current, "/spec/replicas", json!(2)), ""),
    ] {
        let answered = answered(&specs, old, &new);
        assert_eq!(answered.told.join(" "), expected, "{what}");
        assert_eq!(answered.effect.refused, expected == refused, "{what}");
        assert_eq!(answered.warnings.len(), usize::from(expected.contains("failed")), "{what}");
    }
}

/// Each pair of an old and a new object, with and without each of two fields for which the policy refuses pods.
#[test]
fn an_update_that_takes_the_sidecar_is_refused_for_each_such_field_whatever_the_old_object_set() {
    let [network, pid, ending] =
        [("hostNetwork", json!(true)), ("hostPID", json!(true)), ("restartPolicy", json!("Never"))];
    // Without native sidecars, because with them pods that end by themselves are served.
    let site = Site { native_sidecars: false, ..site() };
    // The pods of a Deployment never end by themselves.
    for (group, resource, kind, fields) in [
        ("apps", "deployments", "Deployment", [network, pid.clone()]),
        ("example.org", "rollouts", "Rollout", [pid, ending]),
    ] {
        let targets = json!([{ "group": group, "resource": resource, "operations": ["CREATE", "UPDATE"] }]);
        let [injecting, refusing] = ["Inject", "Refuse"].map(|setting| {
            json!({ "template": template("envoy:1"), "hostNetworkPods": setting, "jobs": setting, "targets": targets })
        });
        let bare = with(&deployment(), "/kind", json!(kind));
        let injected = answered_at(from_ref(&injecting), &Value::Null, &bare, &site).effect.stored;
        assert_eq!(told(&injected), "app:1 envoy:1 marked");
        let has = |form: usize| move |field: &usize| form >> field & 1 == 1;
        let of = |object: &Value, form: usize| {
            let set = (0..fields.len()).filter(has(form)).map(|field| &fields[field]);
            set.fold(object.clone(), |object, (field, value)| {
                with(&object, &format!("/spec/template/spec/{field}"), value.clone())
            })
        };
        for (before, after) in (0..4).flat_map(|before| (0..4).map(move |after| (before, after))) {
            let old = of(&injected, before);
            let lost = answered_at(from_ref(&refusing), &old, &of(&bare, after), &site);
            let set = (0..fields.len()).find(has(after)).map(|field| fields[field].0);
            let expected = if set.is_some() { "p0 rejected SCP0119" } else { "p0 injected SCP0002" };
            let what = format!("{kind} {before:02b} {after:02b}: {}", lost.message);
            assert_eq!(lost.told.join(" "), expected, "{what}");
            assert_eq!(lost.effect.refused, set.is_some(), "{what}");
            assert!(set.is_none_or(|field| lost.message.contains(&format!("`{field}"))), "{what}");
        }
        // An update that keeps the marker.
        let kept = answered_at(from_ref(&refusing), &injected, &of(&injected, 3), &site);
        assert_eq!((kept.effect.refused, kept.told.len()), (false, 0), "{kind}");
    }
}

/// What an update may take away: a pointer, or an item of a list.
const PARTS: [(&str, &str); 14] = [
    (MARKER, ""),
    ("/spec/template/metadata/annotations/injected.scpol.dev~1p1", ""),
    ("/spec/template/metadata/annotations", ""),
    ("/spec/template/metadata/labels/mesh", ""),
    ("/spec/template/metadata/annotations/a~1b", ""),
    (CONTAINERS, "envoy"),
    (CONTAINERS, "second"),
    (CONTAINERS, "app"),
    ("/spec/template/spec/initContainers", "native"),
    ("/spec/template/spec/volumes", "v"),
    ("/spec/template/spec/imagePullSecrets", "pull"),
    ("/spec/template/spec/containers/0/env", "A"),
    ("/spec/template/spec/containers/0/volumeMounts", "/m"),
    ("/spec/template/spec/containers/0/envFrom", "c"),
];

fn without(object: &Value, (pointer, key): (&str, &str)) -> Value {
    let mut object = object.clone();
    let Some((parent, field)) = pointer.rsplit_once('/') else { return object };
    if key.is_empty() {
        if let Some(Value::Object(map)) = object.pointer_mut(parent) {
            map.remove(&field.replace("~1", "/"));
        }
        return object;
    }
    let is_it = |item: &Value| {
        item["name"] == key
            || item["mountPath"].as_str().is_some_and(|path| path.trim_end_matches('/') == key)
            || item["configMapRef"]["name"] == key
    };
    if let Some(Value::Array(items)) = object.pointer_mut(pointer) {
        items.retain(|item| !is_it(item));
    }
    object
}

/// Two policies that add something to every place.
fn rich(kind: &str) -> Vec<Value> {
    let one = json!({
        "metadata": { "labels": { "mesh": "on" }, "annotations": { "a/b": "1" } },
        "containers": [{ "name": "envoy", "image": "envoy:1" }],
        "initContainers": [{ "name": "native", "image": "native:1" }],
        "volumes": [{ "name": "v", "emptyDir": {} }], "imagePullSecrets": [{ "name": "pull" }],
        "env": [{ "name": "A", "value": "1" }], "envFrom": [{ "configMapRef": { "name": "c" } }],
        "volumeMounts": [{ "name": "v", "mountPath": "/m/" }],
    });
    let two =
        json!({ "containers": [{ "name": "second", "image": "second:1" }], "env": [{ "name": "B", "value": "2" }] });
    let spec = |template: Value| {
        let group = if kind == "Rollout" { ("example.org", "rollouts") } else { ("apps", "deployments") };
        json!({ "template": template, "failurePolicy": "Fail",
            "targets": [{ "group": group.0, "resource": group.1, "operations": ["CREATE", "UPDATE"] }] })
    };
    vec![spec(one), spec(two)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Both engines decide alike about an update that removes content of two policies. If it removes all of it, the
    /// result is that of a create.
    #[test]
    fn whatever_is_taken_away_both_engines_give_back_the_same(
        taken in 0u32..(1 << PARTS.len()), is_custom in any::<bool>(), is_alone in any::<bool>(),
    ) {
        let mut bare = deployment();
        if is_custom {
            (bare["kind"], bare["apiVersion"]) = (json!("Rollout"), json!("example.org/v1"));
        }
        let mut specs = rich(bare["kind"].as_str().unwrap());
        specs.truncate(if is_alone { 1 } else { 2 });
        let old = created(&specs, &bare);
        let parts = PARTS.into_iter().enumerate().filter(|(number, _)| taken >> number & 1 == 1);
        let new = parts.fold(old.clone(), |object, (_, part)| without(&object, part));
        let has_container = new.pointer(CONTAINERS).is_some_and(|list| list.as_array().is_some_and(|list| !list.is_empty()));
        if has_container {
            let stored = answered(&specs, &old, &new).effect.stored;
            // Nothing is lost any more.
            prop_assert_eq!(&answered(&specs, &old, &stored).effect.stored, &stored);
            prop_assert_eq!(answered(&specs, &old, &bare).effect.stored, old);
        }
    }
}
