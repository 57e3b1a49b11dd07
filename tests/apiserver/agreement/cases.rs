//! Templates, field by field: each value of a pool in each field, each choice, each pair of fields of a definition, and the products
//! of `products.yaml`. Always the same ones.

use super::schema::{Field, Schema, Type};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A template with a name.
pub(super) struct Case {
    /// For example `HTTPHeader.name="X Y"`.
    pub(super) name: String,
    pub(super) template: Value,
}

/// The lists of a template, with the definition of their items; a field of the pod may also be one object.
const ROOTS: [(&str, &str); 10] = [
    ("containers", "Container"),
    ("initContainers", "Container"),
    ("volumes", "Volume"),
    ("imagePullSecrets", "LocalObjectReference"),
    ("env", "EnvVar"),
    ("envFrom", "EnvFromSource"),
    ("volumeMounts", "VolumeMount"),
    ("pod.hostAliases", "HostAlias"),
    (DNS, "PodDNSConfig"),
    ("pod.tolerations", "Toleration"),
];

/// The root that is an object.
const DNS: &str = "pod.dnsConfig";

/// Definitions whose place in a pod changes what the server checks: products are tried in each place, those of others in the first.
const EVERYWHERE: [&str; 6] = ["Container", "Probe", "LifecycleHandler", "EnvVar", "EnvFromSource", "VolumeMount"];

/// Definitions of which a template has nothing but by a mistake, in the metadata of a claim: each field once.
const METADATA: [&str; 8] = [
    "ObjectMeta",
    "ManagedFieldsEntry",
    "OwnerReference",
    "Initializers",
    "Initializer",
    "Status",
    "StatusDetails",
    "ListMeta",
];

/// A way from a template to the objects of a definition: the list of the template, then fields, each with its definition.
#[derive(Clone)]
struct Seat {
    root: &'static str,
    /// Whether the init container that it is in is a native sidecar.
    is_native: bool,
    steps: Vec<(&'static str, Field)>,
}

pub(super) struct Generator {
    schema: Schema,
    objects: Map<String, Value>,
    values: Map<String, Value>,
    seats: BTreeMap<&'static str, Vec<Seat>>,
}

fn yaml(text: &str) -> Result<Value> {
    Ok(serde_saphyr::from_str(text)?)
}

impl Generator {
    pub(super) fn new() -> Result<Self> {
        let schema = Schema::read()?;
        let mut examples = yaml(include_str!("examples.yaml"))?;
        let mut part = |name: &str| match examples[name].take() {
            Value::Object(part) => Ok(part),
            other => anyhow::bail!("{name}: {other}"),
        };
        let (objects, values) = (part("objects")?, part("values")?);
        let seats = seats(&schema);
        Ok(Self { schema, objects, values, seats })
    }

    /// Every case for servers of 1.`minor`.
    pub(super) fn cases(&self, minor: u32) -> Result<Vec<Case>> {
        let mut cases = Vec::new();
        for (definition, seats) in &self.seats {
            for (number, seat) in seats.iter().enumerate() {
                // Because kubelets before 1.29 run no native sidecar.
                if seat.is_native && minor < 29 {
                    continue;
                }
                for field in self.schema.fields(definition) {
                    self.of_field(&mut cases, definition, field, seat, number)?;
                }
                if number == 0 || *definition == "Container" {
                    self.pairs(&mut cases, definition, seat)?;
                }
            }
        }
        self.products(&mut cases, minor)?;
        let templates = yaml(include_str!("templates.yaml"))?;
        let templates = templates.as_array().context("a list of templates")?;
        cases.extend(templates.iter().map(|template| Case { name: template.to_string(), template: template.clone() }));
        self.covers(&cases)?;
        let mut seen = BTreeSet::new();
        cases.retain(|case| seen.insert(case.template.to_string()));
        Ok(cases)
    }

    /// Fails if a field that a template can have is in no case.
    fn covers(&self, cases: &[Case]) -> Result<()> {
        let begins = |name: &str| cases.iter().any(|case| case.name.starts_with(name));
        for definition in self.seats.keys() {
            for field in self.schema.fields(definition) {
                let name = format!("{definition}.{}=", field.name);
                ensure!(begins(&name), "no case has the field {definition}.{}: add it to examples.yaml", field.name);
            }
        }
        Ok(())
    }

    /// The object of `definition` that goes with `field`.
    fn beside(&self, definition: &str, field: &str) -> Map<String, Value> {
        let named = self.objects.get(&format!("{definition}.{field}")).or_else(|| self.objects.get(definition));
        named.and_then(Value::as_object).cloned().unwrap_or_default()
    }

    /// A valid value of the field.
    fn valid(&self, definition: &str, field: &Field) -> Value {
        let by_hand = self.values.get(&format!("{definition}.{}", field.name));
        let in_object = || self.objects.get(definition).and_then(|object| object.get(field.name));
        by_hand.or_else(in_object).cloned().unwrap_or_else(|| self.some(&field.of, &field.choices))
    }

    fn some(&self, of: &Type, choices: &[&str]) -> Value {
        match of {
            Type::Text => json!(choices.iter().find(|choice| !choice.is_empty()).unwrap_or(&"a")),
            Type::Time => json!("2020-01-01T00:00:00Z"),
            Type::Number | Type::NumberOrText => json!(1),
            Type::Boolean => json!(true),
            Type::Quantity => json!("1"),
            Type::Any => json!({}),
            Type::Of(name) => Value::Object(self.beside(name, "")),
            Type::List(of) => json!([self.some(of, choices)]),
            Type::Map(of) => json!({ "a": self.some(of, choices) }),
        }
    }

    fn of_field(
        &self,
        cases: &mut Vec<Case>,
        definition: &str,
        field: &Field,
        seat: &Seat,
        number: usize,
    ) -> Result<()> {
        let valid = self.valid(definition, field);
        // In the second place a value is of another container or volume, and its rule the same.
        let is_brief = METADATA.contains(&definition) || number > 0;
        let values = match is_brief {
            true => vec![valid.clone()],
            false => pool(field, &valid),
        };
        for value in values {
            let mut object = self.beside(definition, field.name);
            object.insert(field.name.to_owned(), value.clone());
            self.add(cases, &format!("{definition}.{}={value}", field.name), object, seat)?;
        }
        let mut without = self.beside(definition, field.name);
        if without.remove(field.name).is_some() && !is_brief {
            self.add(cases, &format!("{definition} without {}", field.name), without, seat)?;
        }
        Ok(())
    }

    /// Each pair of fields of a definition, both with a valid value.
    fn pairs(&self, cases: &mut Vec<Case>, definition: &str, seat: &Seat) -> Result<()> {
        let fields = self.schema.fields(definition);
        if METADATA.contains(&definition) {
            return Ok(());
        }
        for (at, first) in fields.iter().enumerate() {
            for second in &fields[at + 1..] {
                let mut object = self.beside(definition, first.name);
                object.extend(self.beside(definition, second.name));
                for field in [first, second] {
                    object.insert(field.name.to_owned(), self.valid(definition, field));
                }
                self.add(cases, &format!("{definition}: {} and {}", first.name, second.name), object, seat)?;
            }
        }
        Ok(())
    }

    fn products(&self, cases: &mut Vec<Case>, minor: u32) -> Result<()> {
        let products = yaml(include_str!("products.yaml"))?;
        for product in products.as_array().context("a list of products")? {
            let product = product.as_object().context("a product")?;
            let definition = product["of"].as_str().context("a definition")?;
            let seats = self.seats.get(definition).with_context(|| definition.to_owned())?;
            let all = if EVERYWHERE.contains(&definition) { seats.len() } else { 1 };
            let mut objects = vec![self.beside(definition, "")];
            for (field, values) in product.iter().filter(|(field, _)| *field != "of") {
                let values = values.as_array().context("values")?;
                objects =
                    objects.iter().flat_map(|object| values.iter().map(|value| with(object, field, value))).collect();
            }
            for seat in seats.iter().take(all).filter(|seat| !seat.is_native || minor >= 29) {
                for object in &objects {
                    let fields: Map<_, _> = object
                        .iter()
                        .filter(|(field, _)| product.contains_key(*field))
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect();
                    self.add(cases, &format!("{definition} {}", Value::Object(fields)), object.clone(), seat)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the template with `object` at `seat`.
    fn add(&self, cases: &mut Vec<Case>, name: &str, object: Map<String, Value>, seat: &Seat) -> Result<()> {
        let mut value = Value::Object(object);
        for (definition, field) in seat.steps.iter().rev() {
            let mut around = self.beside(definition, field.name);
            let value_of = if matches!(field.of, Type::List(_)) { json!([value]) } else { value };
            around.insert(field.name.to_owned(), value_of);
            value = Value::Object(around);
        }
        if seat.is_native {
            value.as_object_mut().context("a container")?.entry("restartPolicy").or_insert(json!("Always"));
        }
        let place = seat.steps.iter().map(|(_, field)| field.name).collect::<Vec<_>>().join(".");
        let native = if seat.is_native { " native" } else { "" };
        let name = format!("{name} in {}{native}.{place}", seat.root);
        let of_root = if seat.root == DNS { value } else { json!([value]) };
        let template = match seat.root.strip_prefix("pod.") {
            Some(field) => json!({ "pod": { (field): of_root } }),
            None => json!({ (seat.root): of_root }),
        };
        cases.push(Case { name: name.trim_end_matches('.').to_owned(), template });
        Ok(())
    }
}

/// `object` with that value of `field`; null removes it.
fn with(object: &Map<String, Value>, field: &str, value: &Value) -> Map<String, Value> {
    let mut object = object.clone();
    match value {
        Value::Null => object.remove(field),
        value => object.insert(field.to_owned(), value.clone()),
    };
    object
}

/// The ways to each definition, the shortest first.
fn seats(schema: &Schema) -> BTreeMap<&'static str, Vec<Seat>> {
    let mut seats: BTreeMap<&'static str, Vec<Seat>> = BTreeMap::new();
    let root = |root, is_native| Seat { root, is_native, steps: Vec::new() };
    let mut next: VecDeque<_> = ROOTS.iter().map(|(list, of)| (*of, root(list, false))).collect();
    next.push_back(("Container", root("initContainers", true)));
    while let Some((definition, seat)) = next.pop_front() {
        let of = seats.entry(definition).or_default();
        let is_first = of.is_empty();
        of.push(seat.clone());
        // The others lead nowhere new.
        if !is_first {
            continue;
        }
        for field in schema.fields(definition) {
            if let Some(of) = field.of.definition().filter(|of| !schema.fields(of).is_empty()) {
                let mut seat = seat.clone();
                seat.steps.push((definition, field.clone()));
                next.push_back((of, seat));
            }
        }
    }
    seats
}

const NUMBERS: [i64; 22] = [
    -1,
    0,
    1,
    30,
    31,
    255,
    256,
    511,
    512,
    599,
    600,
    1023,
    1024,
    3599,
    3600,
    65_535,
    65_536,
    86_401,
    2_147_483_647,
    2_147_483_648,
    4_294_967_296,
    4_294_967_297,
];
const TEXTS: [&str; 18] =
    ["", "a", "A", "a.b", "a/b", "/a", "a b", " a", "a_b", "..", "../a", "..a", "a/../b", "a-", "é", "a=b", "1", "a:b"];
const QUANTITIES: [&str; 13] = ["0", "1", "-1", "1m", "0.5", "1500m", "1Gi", "1k", "1e3", "2Mi", "1.5Gi", "1gb", "1 "];
const KEYS: [&str; 9] = ["a", "A/b", "a.b/c", "a b", "é", "kubernetes.io/a", "cpu", "memory", "a/b/c"];

/// The values of a field that are tried, the valid one first.
fn pool(field: &Field, valid: &Value) -> Vec<Value> {
    let mut pool = vec![valid.clone(), Value::Null];
    match &field.of {
        Type::Text => {
            pool.extend(field.choices.iter().chain(&TEXTS).map(|text| json!(text)));
            pool.extend(field.choices.iter().take(1).map(|choice| json!(choice.to_lowercase())));
            pool.extend([63, 64, 253, 254].map(|length| json!("a".repeat(length))));
            pool.extend([json!(1), json!(true), json!({})]);
        }
        Type::Time => pool.extend([json!("a"), json!(1)]),
        Type::Number => {
            pool.extend(NUMBERS.map(|number| json!(number)));
            pool.extend([json!("1"), json!(1.5), json!(true)]);
        }
        Type::NumberOrText => {
            pool.extend(NUMBERS.map(|number| json!(number)));
            pool.extend(TEXTS.map(|text| json!(text)));
            pool.extend([json!("a1"), json!("a".repeat(16)), json!(true)]);
        }
        Type::Boolean => pool.extend([json!(true), json!(false), json!("true"), json!(1)]),
        Type::Quantity => {
            pool.extend(QUANTITIES.map(|text| json!(text)));
            pool.extend([json!(1), json!(0.5), json!(-1), json!(true)]);
        }
        Type::Any | Type::Of(_) => pool.extend([json!({}), json!([]), json!("a")]),
        Type::List(_) => {
            let item = valid.get(0).cloned().unwrap_or_default();
            pool.extend([json!([]), json!([item, item]), json!([null]), json!({}), json!("a"), json!([1])]);
        }
        Type::Map(_) => {
            let value = valid.as_object().and_then(|valid| valid.values().next()).cloned().unwrap_or_default();
            pool.extend(KEYS.map(|key| json!({ (key): value })));
            pool.extend([json!({}), json!([]), json!({ "a": true })]);
        }
    }
    pool
}
