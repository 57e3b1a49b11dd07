//! An API object of any kind as raw bytes, with just the metadata that a watch needs at once.
//!
//! Typed metadata drops unknown fields, including `metadata.initializers`, and costs memory. Raw bytes lose nothing,
//! and are dropped right after use.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope, Resource};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json, value::RawValue};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The deepest nesting that we read. serde_json reads 128 levels, and we wrap objects in some of our own. API servers
/// accept any depth in a custom resource, so without this limit a deep object could stop the operator.
const MAX_DEPTH: usize = 120;

/// The most bytes of an object that is kept while it waits. As many objects can wait as the server creates at once,
/// each of up to a megabyte and a half.
const LARGE: usize = 64 * 1024;

/// One object, unparsed except for the metadata that a watch needs at once. An object that is nested too deep keeps
/// only its identity.
#[derive(Clone, Debug)]
pub struct Object {
    meta: ObjectMeta,
    created: Option<Timestamp>,
    initializers: Option<Initializers>,
    /// The bytes as received. None after [`Object::put_aside`] has dropped them.
    raw: Option<Box<RawValue>>,
}

/// `metadata.initializers`, which servers below 1.14 have.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(default)]
struct Initializers {
    pending: Option<Vec<PendingEntry>>,
    result: Option<IgnoredAny>,
}

#[derive(Deserialize, Clone, Debug)]
struct PendingEntry {
    #[serde(default)]
    name: String,
}

/// The part of an object that [`Object`] parses. Skipping the rest costs almost nothing.
#[derive(Deserialize)]
struct Slim {
    #[serde(default, deserialize_with = "map")]
    metadata: SlimMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SlimMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<String>,
    initializers: Option<Initializers>,
}

impl Object {
    /// The object, parsed. Only its identity if it has a number beyond 64 bits, which API servers do not store.
    pub fn value(&self) -> Value {
        let read = self.raw.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok());
        read.unwrap_or_else(|| self.identity())
    }

    fn identity(&self) -> Value {
        let mut metadata = json!(self.meta);
        if let Some(initializers) = &self.initializers {
            let pending: Vec<Value> = self.pending().map(|name| json!({ "name": name })).collect();
            metadata["initializers"] = json!({ "pending": pending });
            if initializers.result.is_some() {
                metadata["initializers"]["result"] = json!({});
            }
        }
        json!({ "metadata": metadata })
    }

    /// The object for a queue. A large object keeps only its identity and must be read again.
    pub fn put_aside(self) -> Self {
        Self { raw: self.raw.filter(|raw| raw.get().len() <= LARGE), ..self }
    }

    /// False if [`Self::put_aside`] has dropped the content.
    pub fn is_whole(&self) -> bool {
        self.raw.is_some()
    }

    /// `metadata.name`; empty if missing.
    pub fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`; empty if missing.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    /// Its namespace and its name.
    pub fn place(&self) -> (&str, &str) {
        (self.namespace(), self.name())
    }

    /// `metadata.resourceVersion`, which grows with each write; 0 if it is no number.
    pub fn version(&self) -> u64 {
        self.meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
    }

    /// `metadata.generation`, which grows with each change beyond metadata; 0 if missing.
    pub fn generation(&self) -> i64 {
        self.meta.generation.unwrap_or_default()
    }

    /// The creation time, by the server's clock.
    pub fn created(&self) -> Option<Timestamp> {
        self.created
    }

    /// The version and the creation time.
    pub fn age(&self) -> (u64, Option<Timestamp>) {
        (self.version(), self.created())
    }

    /// Whether the server shows the object to every client: it has no `metadata.initializers`.
    pub fn is_initialized(&self) -> bool {
        self.initializers.is_none()
    }

    /// Whether an initializer has rejected the object.
    pub fn is_rejected(&self) -> bool {
        self.initializers.as_ref().is_some_and(|initializers| initializers.result.is_some())
    }

    /// The names of the pending initializers, in order.
    pub fn pending(&self) -> impl Iterator<Item = &str> {
        let entries = self.initializers.as_ref().and_then(|initializers| initializers.pending.as_ref());
        entries.into_iter().flatten().map(|entry| entry.name.as_str())
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let Slim { metadata } = map(&mut serde_json::Deserializer::from_str(raw.get())).map_err(D::Error::custom)?;
        let raw = if is_too_deep(raw.get()) { without_depth(&raw).map_err(D::Error::custom)? } else { raw };
        let meta = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            generation: metadata.generation,
            ..ObjectMeta::default()
        };
        let created = metadata.creation_timestamp.and_then(|created| created.parse().ok());
        Ok(Self { meta, created, initializers: metadata.initializers, raw: Some(raw) })
    }
}

/// Reads a JSON object. Derived code would also accept a list of field values.
fn map<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Map<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
        type Value = T;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Map(PhantomData))
}

/// Whether the nesting of lists and maps exceeds [`MAX_DEPTH`]. Most objects have fewer lists and maps in all, and
/// counting them is cheap.
fn is_too_deep(json: &str) -> bool {
    let begins = json.bytes().filter(|byte| matches!(byte, b'{' | b'[')).count();
    begins > MAX_DEPTH && depth(json) > MAX_DEPTH
}

/// The deepest nesting of lists and maps. `json` is well-formed.
fn depth(json: &str) -> usize {
    let (mut now, mut most, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => {
                now += 1;
                most = most.max(now);
            }
            b'}' | b']' if !is_text => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// The identity of an object that is nested too deep. `managedFields` are dropped, because they are as deep as the
/// fields they list.
fn without_depth(raw: &RawValue) -> serde_json::Result<Box<RawValue>> {
    const META: [&str; 10] = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "labels",
        "annotations",
        "initializers",
    ];
    let mut object: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get())?;
    object.retain(|key, _| ["apiVersion", "kind", "metadata"].contains(&key.as_str()));
    let metadata = match object.get("metadata") {
        Some(metadata) => {
            let mut metadata: BTreeMap<String, &RawValue> = serde_json::from_str(metadata.get())?;
            metadata.retain(|key, value| META.contains(&key.as_str()) && depth(value.get()) <= MAX_DEPTH);
            serde_json::value::to_raw_value(&metadata)?
        }
        None => serde_json::value::to_raw_value(&())?,
    };
    object.insert("metadata".to_owned(), &metadata);
    serde_json::value::to_raw_value(&object)
}

impl Resource for Object {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::{ObjectList, WatchEvent};

    const UNINITIALIZED: &str = r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"7","initializers":{"pending":[{"name":"a.scpol.dev"}]},"clusterName":"x"},"spec":{"newer":1}}"#;

    #[test]
    fn of_what_lies_too_deep_there_is_what_says_which_it_is() {
        let read = |levels: usize| -> Object {
            let (open, close) = ("{\"[\\\"\":".repeat(levels), "}".repeat(levels));
            serde_json::from_str(&UNINITIALIZED.replace("\"newer\":1", &format!("\"newer\":{open}1{close}")))
                .expect("JSON")
        };
        let fine = read(MAX_DEPTH - 2);
        assert!(fine.value()["spec"]["newer"].is_object());
        let deep = read(MAX_DEPTH - 1);
        let expected = json!({ "metadata": {
            "name": "web", "namespace": "shop", "resourceVersion": "7", "initializers": { "pending": [{ "name": "a.scpol.dev" }] },
        } });
        assert_eq!(deep.value(), expected);
        assert_eq!(read(100_000).pending().collect::<Vec<_>>(), ["a.scpol.dev"]);
    }

    #[test]
    fn a_list_is_no_object() {
        for json in [r#"[["web"]]"#, r#"{"metadata":["web"]}"#, "null", "7", r#""web""#] {
            assert!(serde_json::from_str::<Object>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn of_what_has_a_number_that_no_64_bits_hold_there_is_what_says_which_it_is() {
        let object: Object =
            serde_json::from_str(&UNINITIALIZED.replace("\"newer\":1", "\"newer\":1e400")).expect("JSON");
        let expected = json!({ "metadata": {
            "name": "web", "namespace": "shop", "resourceVersion": "7", "initializers": { "pending": [{ "name": "a.scpol.dev" }] },
        } });
        assert_eq!(object.value(), expected);
    }

    #[test]
    fn of_what_is_large_only_what_says_which_it_is_is_put_aside() {
        let large = UNINITIALIZED.replace("\"newer\":1", &format!("\"newer\":\"{}\"", "x".repeat(LARGE)));
        for (json, is_whole) in [(UNINITIALIZED, true), (large.as_str(), false)] {
            let object: Object = serde_json::from_str(json).expect("JSON");
            assert!(object.is_whole());
            let kept = object.put_aside();
            assert_eq!((kept.is_whole(), kept.name(), kept.pending().count()), (is_whole, "web", 1));
        }
    }

    #[test]
    fn nothing_of_an_object_is_lost_in_a_list_or_a_watch() {
        let list: ObjectList<Object> =
            serde_json::from_str(&format!(r#"{{"metadata":{{}},"items":[{UNINITIALIZED}]}}"#)).expect("list");
        let expected: Value = serde_json::from_str(UNINITIALIZED).expect("JSON");
        assert_eq!(list.items[0].value(), expected);
        let event = format!(r#"{{"type":"ADDED","object":{UNINITIALIZED}}}"#);
        let WatchEvent::Added(object) = serde_json::from_str::<WatchEvent<Object>>(&event).expect("event") else {
            panic!("not added")
        };
        assert_eq!((object.value(), object.namespace(), object.name()), (expected, "shop", "web"));
    }
}
