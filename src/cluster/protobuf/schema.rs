//! How workloads look in protobuf and in JSON, as Kubernetes 1.13 and 1.36 have them.
//!
//! `schema.txt` has a line for each field: its message, its number, its key in JSON, its form. A form is a message or a
//! [`Scalar`], with `[]` before it for a list, with `{}` for a map from strings, with `!` after it where JSON has its zero,
//! too. A field whose key is `-` has its own fields beside those of the message it is in. What is `left-out` nobody reads: it is never
//! seen by what decides ([`crate::workload::Workload::seen_by_expressions`]), and can be more than all the rest.

use std::collections::HashMap;
use std::sync::LazyLock;

const SCHEMA: &str = include_str!("schema.txt");

/// A place in [`Schema::messages`].
pub(super) type Id = usize;

/// All messages.
pub(super) struct Schema {
    messages: Vec<Message>,
    ids: HashMap<&'static str, Id>,
    /// The `spec` of a pod.
    pub(super) pod_spec: Id,
    /// The `metadata` of anything.
    pub(super) object_meta: Id,
}

/// The fields of a message, in the order of their numbers.
#[derive(Default)]
pub(super) struct Message {
    pub(super) name: &'static str,
    pub(super) fields: Vec<Field>,
}

/// A field of a message.
pub(super) struct Field {
    pub(super) number: u32,
    pub(super) key: &'static str,
    pub(super) shape: Shape,
    pub(super) form: Form,
    /// Whether JSON has it even if it is zero.
    pub(super) has_zero: bool,
}

/// How often something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    List,
    Map,
    /// Its fields are beside the others.
    Inline,
}

/// What something is.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Scalar(Scalar),
    Message(Id),
    LeftOut,
}

/// What has no fields in JSON.
#[derive(Clone, Copy)]
pub(super) enum Scalar {
    String,
    Bool,
    Int,
    Bytes,
    Quantity,
    IntOrString,
    Time,
}

impl Field {
    /// Whether it has no fields itself.
    pub(super) fn is_scalar(&self) -> bool {
        matches!(self.form, Form::Scalar(_))
    }
}

impl Schema {
    /// What `schema.txt` says.
    pub(super) fn get() -> &'static Self {
        static READ: LazyLock<Schema> = LazyLock::new(|| Schema::read(SCHEMA));
        &READ
    }

    fn read(text: &'static str) -> Self {
        let mut schema = Self { messages: Vec::new(), ids: HashMap::new(), pod_spec: 0, object_meta: 0 };
        schema.pod_spec = schema.id("core/v1.PodSpec");
        schema.object_meta = schema.id("meta/v1.ObjectMeta");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let mut word = || words.next().expect("four words a line");
            let (message, number, key, form) = (word(), word(), word(), word());
            let has_zero = form.ends_with('!');
            let (form, shape) = match form.trim_end_matches('!') {
                form if key == "-" => (form, Shape::Inline),
                form if form.starts_with("[]") => (&form[2..], Shape::List),
                form if form.starts_with("{}") => (&form[2..], Shape::Map),
                form => (form, Shape::One),
            };
            let form = match (form, scalar(form)) {
                ("left-out", _) => Form::LeftOut,
                (_, Some(scalar)) => Form::Scalar(scalar),
                (message, None) => Form::Message(schema.id(message)),
            };
            let field = Field { number: number.parse().expect("a number"), key, shape, form, has_zero };
            let id = schema.id(message);
            schema.messages[id].fields.push(field);
        }
        schema
    }

    fn id(&mut self, name: &'static str) -> Id {
        *self.ids.entry(name).or_insert_with(|| {
            self.messages.push(Message { name, fields: Vec::new() });
            self.messages.len() - 1
        })
    }

    /// The message of objects of that `apiVersion` and `kind`.
    pub(super) fn of_kind(&self, api_version: &str, kind: &str) -> Option<Id> {
        let package = match (api_version, kind) {
            ("v1", "Status") => "meta/v1",
            ("v1", _) => "core/v1",
            (other, _) => other,
        };
        self.ids.get(format!("{package}.{kind}").as_str()).copied()
    }

    pub(super) fn message(&self, id: Id) -> &Message {
        &self.messages[id]
    }
}

fn scalar(name: &str) -> Option<Scalar> {
    Some(match name {
        "string" => Scalar::String,
        "bool" => Scalar::Bool,
        "int" => Scalar::Int,
        "bytes" => Scalar::Bytes,
        "quantity" => Scalar::Quantity,
        "intorstring" => Scalar::IntOrString,
        "time" => Scalar::Time,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_read_and_every_message_has_fields_in_order() {
        let schema = Schema::get();
        let empty: Vec<_> =
            schema.messages.iter().filter(|message| message.fields.is_empty()).map(|message| message.name).collect();
        // As Kubernetes has it.
        assert_eq!(empty, ["core/v1.SleepAction"; 0]);
        for message in &schema.messages {
            assert!(message.fields.is_sorted_by(|a, b| a.number < b.number), "{}", message.name);
        }
    }
}
