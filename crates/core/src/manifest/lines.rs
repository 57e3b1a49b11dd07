//! The line of each field in the text of a document.

use super::yaml::{key_text, options};
use super::{Location, Manifest, repair};
use crate::api::field;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use std::collections::HashMap;
use std::fmt;

/// The lines of a document's fields.
#[derive(Clone, Debug)]
pub struct Lines {
    file: String,
    /// The line of the file on which the document begins.
    first: usize,
    /// None if the text has no readable lines. Every field is then at the beginning of the document.
    root: Option<Node>,
}

impl Lines {
    /// The lines of `manifest`.
    pub fn of(manifest: &Manifest) -> Self {
        let root = root(&manifest.text);
        Self { file: manifest.place.file.clone(), first: manifest.place.line, root }
    }

    /// The place of the field `path`, such as `spec.template.containers[1].name`, of one object. In a list, `object`
    /// has the indexes that lead to the object. A missing field has the place of the nearest field around it.
    pub fn place(&self, object: &[usize], path: &str) -> Location {
        let line = self.root.as_ref().map_or(1, |root| {
            let (mut node, mut line) = (root, 1);
            for index in object {
                match node.field("items").and_then(|items| items.node.item(*index)) {
                    Some(item) => (node, line) = (&item.node, item.line),
                    None => return line,
                }
            }
            node.line(path, line)
        });
        Location { file: self.file.clone(), line: self.first + line.max(1) - 1 }
    }
}

fn root(text: &str) -> Option<Node> {
    let read = |text: &str| {
        serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::LastWins, MergeKeyPolicy::Merge)).ok()
    };
    // A repair keeps the lines.
    read(text).or_else(|| read(&repair::repaired(text)?))
}

/// The duplicate keys of the document `text`, each with the line of the last one. Duplicates within a discarded value
/// are not listed.
pub(super) fn twice(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    if let Some(root) = root(text) {
        root.twice(&mut found);
    }
    // An alias repeats the duplicate keys of its anchor.
    found.sort();
    found.dedup();
    found
}

impl Manifest {
    /// The indexes that lead to `object`, one of [`Manifest::objects`], through the lists around it.
    pub fn indexes(&self, object: &Value) -> Vec<usize> {
        let mut indexes = Vec::new();
        find(&self.value, object, &mut indexes);
        indexes
    }
}

/// Whether `object` is `value` or one of its items; then `indexes` lead to it.
fn find(value: &Value, object: &Value, indexes: &mut Vec<usize>) -> bool {
    if std::ptr::eq(value, object) {
        return true;
    }
    let items = value.get("items").and_then(Value::as_array);
    for (index, item) in items.into_iter().flatten().enumerate() {
        indexes.push(index);
        if find(item, object, indexes) {
            return true;
        }
        indexes.pop();
    }
    false
}

/// A node, and the line of the document on which it begins.
#[derive(Clone, Debug)]
struct At {
    line: usize,
    node: Node,
}

/// A value, reduced to its shape and lines.
#[derive(Clone, Debug)]
enum Node {
    Scalar,
    List(Vec<At>),
    /// Fields by key, each with the line of the key; then the duplicate keys.
    Map(HashMap<String, At>, Vec<(usize, String)>),
}

impl Node {
    fn field(&self, name: &str) -> Option<&At> {
        let Node::Map(fields, _) = self else { return None };
        fields.get(name)
    }

    fn item(&self, index: usize) -> Option<&At> {
        let Node::List(items) = self else { return None };
        items.get(index)
    }

    /// Collects the duplicate keys.
    fn twice(&self, found: &mut Vec<(usize, String)>) {
        match self {
            Node::Scalar => {}
            Node::List(items) => items.iter().for_each(|item| item.node.twice(found)),
            Node::Map(fields, twice) => {
                found.extend(twice.iter().cloned());
                fields.values().for_each(|field| field.node.twice(found));
            }
        }
    }

    /// The line of `path`, or of the nearest field around it. `line` is the line of this node.
    fn line(&self, path: &str, line: usize) -> usize {
        match self.step(path) {
            Some((at, rest)) => at.node.line(rest, at.line),
            None => line,
        }
    }

    /// The node at the beginning of `path`, and the rest of `path`. Keys may contain dots: the longest matching key
    /// wins.
    fn step<'a, 'p>(&'a self, path: &'p str) -> Option<(&'a At, &'p str)> {
        if let Some(rest) = path.strip_prefix('[') {
            let (index, rest) = rest.split_once(']')?;
            return Some((self.item(index.parse().ok()?)?, rest));
        }
        let path = path.strip_prefix('.').unwrap_or(path);
        field::beginnings(path).find_map(|key| Some((self.field(key)?, &path[key.len()..])))
    }
}

impl<'de> serde::Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_any(Shape)
    }
}

/// Reads a [`Node`].
struct Shape;

/// The line of a value; for an alias, the line of its anchor.
fn line_of<T>(spanned: &Spanned<T>) -> usize {
    usize::try_from(spanned.defined.line()).unwrap_or(0)
}

impl<'de> Visitor<'de> for Shape {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Node>>()? {
            list.push(At { line: line_of(&item), node: item.value });
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
        let (mut map, mut twice) = (HashMap::new(), Vec::new());
        while let Some(key) = fields.next_key::<Spanned<Value>>()? {
            let line = line_of(&key);
            let key = key_text(key.value).map_err(A::Error::custom)?;
            if map.insert(key.clone(), At { line, node: fields.next_value()? }).is_some() {
                twice.push((line, key));
            }
        }
        Ok(Node::Map(map, twice))
    }
}

#[cfg(test)]
mod tests {
    use crate::manifest::File;

    fn line(text: &str, index: usize, path: &str) -> usize {
        let file = File::parse("t.yaml", text.as_bytes().to_vec()).unwrap_or_else(|faults| panic!("{}", faults[0]));
        let mut found = Vec::new();
        for manifest in file.manifests() {
            let lines = super::Lines::of(manifest);
            assert!(lines.root.is_some(), "{text}");
            for object in manifest.objects() {
                found.push(lines.place(&manifest.indexes(object.body), path).line);
            }
        }
        found[index]
    }

    #[test]
    fn a_field_is_found_by_its_path_and_one_that_is_not_there_by_what_is_around_it() {
        let text = "# head\n---\n\nmetadata:\n  name: a\nspec:\n  template: # here\n    containers:\n    - name: a\n\n    - image: b\n      \
                    name:\n        c\n    metadata:\n      labels: {a: b,\n        example.com/x: y, example.com: z}\n  list: [a, b,\n   c]\n  \
                    true: x\n";
        for (path, expected) in [
            ("metadata.name", 5),
            ("spec", 6),
            ("spec.template", 7),
            ("spec.template.containers", 8),
            ("spec.template.containers[0]", 9),
            ("spec.template.containers[1]", 11),
            ("spec.template.containers[1].name", 12),
            ("spec.template.containers[1].ports[3].name", 11),
            ("spec.template.containers[2].name", 8),
            ("spec.template.metadata.labels.example.com/x", 16),
            ("spec.template.metadata.labels.example.com", 16),
            ("spec.template.metadata.labels.a", 15),
            ("spec.list[1]", 17),
            ("spec.list[2]", 18),
            ("spec.list[x]", 17),
            ("spec.true", 19),
            ("spec.none", 6),
            ("status", 4),
            ("", 4),
        ] {
            assert_eq!(line(text, 0, path), expected, "{path}");
        }
    }

    #[test]
    fn of_a_key_that_is_there_twice_the_line_is_that_of_the_last() {
        assert_eq!(line("a: {b: 1}\nc: 1\na:\n  b: 2\n", 0, "a.b"), 4);
    }

    #[test]
    fn documents_lists_aliases_and_json_have_lines_too() {
        assert_eq!(line("a: 1\n---\n\nb:\n  c: 1\n", 1, "b.c"), 5);
        let list = "kind: List\nitems:\n- kind: A\n- kind: List\n  items:\n  - kind: B\n    spec:\n      x: 1\n";
        assert_eq!(line(list, 0, "spec"), 3);
        assert_eq!(line(list, 1, "spec.x"), 8);
        assert_eq!(line("a: &a\n  x: 1\nb: *a\nc:\n  <<: *a\n  y: 1\n", 0, "b.x"), 2);
        assert_eq!(line("{\"a\": 1,\n\t\"b\": {\n\t\t\"c\": [\n1,\n2]}}", 0, "b.c[1]"), 5);
        assert_eq!(line("{\"a\": 1}\n{\"b\": {\n\"c\": 1}}", 1, "b.c"), 3);
    }
}
