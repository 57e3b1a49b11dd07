//! Protobuf as JSON. Pure.

use super::schema::{Field, Form, Id, Scalar, Schema, Shape};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use integer_encoding::VarInt;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::marker::PhantomData;

/// Before an object, which says of which kind it is.
const MAGIC: &[u8] = b"k8s\0";

/// Why something cannot be told in JSON. Nothing is left out: it is to be asked for as JSON.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Untold {
    /// A server newer than our knowledge.
    #[error("field {number} of {message} is not known")]
    Field {
        /// As Kubernetes' packages name it: `core/v1.Volume`.
        message: &'static str,
        /// Its number on the wire.
        number: u32,
    },
    /// It is none of those that are watched.
    #[error("{kind} of {api_version} is not known")]
    Kind {
        /// `apps/v1`.
        api_version: String,
        /// `Deployment`.
        kind: String,
    },
    /// It ends early, or is otherwise not as Kubernetes writes it.
    #[error("it is no protobuf of Kubernetes: {0}")]
    Malformed(&'static str),
}

const ENDS_EARLY: Untold = Untold::Malformed("it ends early");
const OUT_OF_ORDER: Untold = Untold::Malformed("its fields are not in order");

/// A field on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn number(&self) -> Result<u64, Untold> {
        match self {
            Wire::Number(number) => Ok(*number),
            Wire::Bytes(_) => Err(Untold::Malformed("bytes where a number belongs")),
        }
    }

    fn bytes(&self) -> Result<&'a [u8], Untold> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            Wire::Number(_) => Err(Untold::Malformed("a number where bytes belong")),
        }
    }

    fn text(&self) -> Result<Cow<'a, str>, Untold> {
        Ok(text(self.bytes()?))
    }
}

/// The fields of a message that are still to be read, in the order in which they were written.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Untold> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let Ok(number) = u32::try_from(tag >> 3) else { return Err(Untold::Malformed("a field of too high a number")) };
        let wire = match tag & 7 {
            0 => Wire::Number(self.number()?),
            2 => Wire::Bytes(self.bytes()?),
            _ => return Err(Untold::Malformed("a form of field that Kubernetes does not use")),
        };
        Ok(Some((number, wire)))
    }

    fn number(&mut self) -> Result<u64, Untold> {
        // Nearly every one is of one byte.
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        let Some((number, length)) = u64::decode_var(self.0) else { return Err(ENDS_EARLY) };
        self.0 = &self.0[length..];
        Ok(number)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Untold> {
        let length = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = self.0.split_at_checked(length) else { return Err(ENDS_EARLY) };
        self.0 = rest;
        Ok(bytes)
    }
}

/// Adds the event that a watch has shown, as one line. A workload stands there as it came, in base64: most of it is never asked
/// for.
///
/// # Errors
/// If anything of it is not known; then some of it may have been added.
pub(super) fn event(bytes: &[u8], out: &mut String) -> Result<(), Untold> {
    let (mut kind, mut object) = (Cow::Borrowed(""), &[][..]);
    let mut fields = Fields(bytes);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => kind = wire.text()?,
            2 => object = raw(wire.bytes()?)?,
            number => return Err(Untold::Field { message: "meta/v1.WatchEvent", number }),
        }
    }
    out.push_str("{\"type\":");
    json(&kind, out);
    out.push_str(",\"object\":");
    match &*kind {
        "ADDED" | "MODIFIED" | "DELETED" => {
            Reader::<Nothing>::of(Extent::Whole).whole(object)?;
            // No text of it has anything that would have to be escaped.
            out.push('"');
            STANDARD.encode_string(object, out);
            out.push('"');
        }
        _ => json(&value(object, Extent::Whole)?, out),
    }
    out.push_str("}\n");
    Ok(())
}

fn json(value: &(impl Serialize + ?Sized), out: &mut String) {
    // Nothing is written that could fail.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}

/// The bytes of a workload in an [`event`], if it is one.
pub(in crate::cluster) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// How much of an object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Extent {
    /// All that [`super::schema`] has.
    Whole,
    /// Of pods, what is no list, map or message in their `spec`: most of an object is what this leaves out.
    Outline,
    /// Its kind and, of its `metadata`, what is no list, map or message, and its initializers.
    Metadata,
}

/// An object that says of which kind it is.
///
/// # Errors
/// As for [`event`].
pub(in crate::cluster) fn value(bytes: &[u8], extent: Extent) -> Result<Value, Untold> {
    Reader::<Json>::of(extent).whole(bytes).map(Value::Object)
}

/// What is made of what is read.
trait Make {
    type Value;
    type Object: Default;
    type List: Default;
    fn put(object: &mut Self::Object, key: &str, value: Self::Value);
    fn push(list: &mut Self::List, value: Self::Value);
    fn object(object: Self::Object) -> Self::Value;
    fn list(list: Self::List) -> Self::Value;
    fn text(text: &[u8]) -> Self::Value;
    fn base64(bytes: &[u8]) -> Self::Value;
    fn bool(is: bool) -> Self::Value;
    fn int(number: i64) -> Self::Value;
    fn time(time: Timestamp) -> Self::Value;
}

/// The JSON that the server would have sent.
struct Json;

impl Make for Json {
    type Value = Value;
    type Object = Map<String, Value>;
    type List = Vec<Value>;

    fn put(object: &mut Self::Object, key: &str, value: Value) {
        object.insert(key.to_owned(), value);
    }

    fn push(list: &mut Self::List, value: Value) {
        list.push(value);
    }

    fn object(object: Self::Object) -> Value {
        Value::Object(object)
    }

    fn list(list: Self::List) -> Value {
        Value::Array(list)
    }

    fn text(text: &[u8]) -> Value {
        Value::String(self::text(text).into_owned())
    }

    fn base64(bytes: &[u8]) -> Value {
        Value::String(STANDARD.encode(bytes))
    }

    fn bool(is: bool) -> Value {
        Value::Bool(is)
    }

    fn int(number: i64) -> Value {
        Value::from(number)
    }

    fn time(time: Timestamp) -> Value {
        Value::String(time.to_string())
    }
}

/// Nothing: it is only seen that JSON could be made.
struct Nothing;

impl Make for Nothing {
    type Value = ();
    type Object = ();
    type List = ();

    fn put((): &mut (), _: &str, (): ()) {}
    fn push((): &mut (), (): ()) {}
    fn object((): ()) {}
    fn list((): ()) {}
    fn text(_: &[u8]) {}
    fn base64(_: &[u8]) {}
    fn bool(_: bool) {}
    fn int(_: i64) {}
    fn time(_: Timestamp) {}
}

/// A list or map that is not yet at its end: all items of one follow each other.
enum Open<M: Make> {
    List(M::List),
    Map(M::Object),
}

struct Reader<M> {
    schema: &'static Schema,
    extent: Extent,
    makes: PhantomData<M>,
}

impl<M: Make> Reader<M> {
    fn of(extent: Extent) -> Self {
        Self { schema: Schema::get(), extent, makes: PhantomData }
    }

    /// An object that says of which kind it is.
    fn whole(&self, bytes: &[u8]) -> Result<M::Object, Untold> {
        let bytes = bytes.strip_prefix(MAGIC).ok_or(Untold::Malformed("it does not begin as an object"))?;
        let (mut api_version, mut kind, mut object) = (&[][..], &[][..], &[][..]);
        let mut fields = Fields(bytes);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => {
                    let mut fields = Fields(wire.bytes()?);
                    while let Some((number, wire)) = fields.next()? {
                        match number {
                            1 => api_version = wire.bytes()?,
                            2 => kind = wire.bytes()?,
                            number => return Err(Untold::Field { message: "runtime.TypeMeta", number }),
                        }
                    }
                }
                2 => object = wire.bytes()?,
                // Of what encoding and type it is: empty, since it is this one.
                3 | 4 if wire.bytes()?.is_empty() => {}
                number => return Err(Untold::Field { message: "runtime.Unknown", number }),
            }
        }
        let unknown = || Untold::Kind { api_version: text(api_version).into_owned(), kind: text(kind).into_owned() };
        let id = self.schema.of_kind(&text(api_version), &text(kind)).ok_or_else(unknown)?;
        let mut made = M::Object::default();
        M::put(&mut made, "apiVersion", M::text(api_version));
        M::put(&mut made, "kind", M::text(kind));
        match self.extent {
            Extent::Metadata => self.metadata(id, object, &mut made)?,
            Extent::Whole | Extent::Outline => self.fields(id, object, &mut made)?,
        }
        Ok(made)
    }

    fn metadata(&self, id: Id, bytes: &[u8], made: &mut M::Object) -> Result<(), Untold> {
        let Some(field) = self.schema.message(id).fields.iter().find(|field| field.key == "metadata") else {
            return Ok(());
        };
        let mut fields = Fields(bytes);
        while let Some((number, wire)) = fields.next()? {
            if number == field.number {
                M::put(made, field.key, self.value(field.form, &wire)?);
                break;
            }
        }
        Ok(())
    }

    /// Adds the fields of a message to the object that `made` is.
    fn fields(&self, id: Id, bytes: &[u8], made: &mut M::Object) -> Result<(), Untold> {
        let message = self.schema.message(id);
        let mut open: Option<(&Field, Open<M>)> = None;
        // Those that are known have the same order.
        let (mut known, mut at) = (message.fields.iter(), None::<&Field>);
        let mut fields = Fields(bytes);
        while let Some((number, wire)) = fields.next()? {
            let last = at.map_or(0, |field| field.number);
            if number < last {
                return Err(OUT_OF_ORDER);
            }
            if number > last {
                at = known.find(|field| field.number >= number);
            }
            let Some(field) = at.filter(|field| field.number == number) else {
                return Err(Untold::Field { message: message.name, number });
            };
            if self.leaves_out(id, field) {
                continue;
            }
            let goes_on = open.as_ref().is_some_and(|(open, _)| open.number == number);
            if number == last && !goes_on {
                return Err(OUT_OF_ORDER);
            }
            if !goes_on {
                Self::close(open.take(), made);
            }
            match field.shape {
                Shape::Inline => self.inline(field, &wire, made)?,
                Shape::One => self.one(field, &wire, made)?,
                Shape::List => {
                    let item = self.value(field.form, &wire)?;
                    if let (_, Open::List(list)) = open.get_or_insert_with(|| (field, Open::List(M::List::default()))) {
                        M::push(list, item);
                    }
                }
                Shape::Map => {
                    if let (_, Open::Map(map)) = open.get_or_insert_with(|| (field, Open::Map(M::Object::default()))) {
                        self.entry(field.form, &wire, map)?;
                    }
                }
            }
        }
        Self::close(open, made);
        Ok(())
    }

    /// Whether nobody asks for `field` of the message `id`.
    fn leaves_out(&self, id: Id, field: &Field) -> bool {
        let is_more = || !(field.shape == Shape::One && field.is_scalar());
        let is_cut = match self.extent {
            Extent::Whole => false,
            Extent::Outline => id == self.schema.pod_spec && is_more(),
            Extent::Metadata => id == self.schema.object_meta && is_more() && field.key != "initializers",
        };
        is_cut || matches!(field.form, Form::LeftOut)
    }

    fn close(open: Option<(&Field, Open<M>)>, made: &mut M::Object) {
        match open {
            Some((field, Open::List(list))) => M::put(made, field.key, M::list(list)),
            Some((field, Open::Map(map))) => M::put(made, field.key, M::object(map)),
            None => {}
        }
    }

    fn inline(&self, field: &Field, wire: &Wire<'_>, made: &mut M::Object) -> Result<(), Untold> {
        match field.form {
            Form::Message(id) => self.fields(id, wire.bytes()?, made),
            Form::Scalar(_) | Form::LeftOut => Err(Untold::Malformed("no message")),
        }
    }

    fn one(&self, field: &Field, wire: &Wire<'_>, made: &mut M::Object) -> Result<(), Untold> {
        let is_zero = match (field.form, wire) {
            (Form::Scalar(Scalar::Time), wire) => wire.bytes()?.is_empty(),
            (Form::Scalar(Scalar::String | Scalar::Bytes), wire) => !field.has_zero && wire.bytes()?.is_empty(),
            (Form::Scalar(Scalar::Bool | Scalar::Int), wire) => !field.has_zero && wire.number()? == 0,
            _ => false,
        };
        if !is_zero {
            M::put(made, field.key, self.value(field.form, wire)?);
        }
        Ok(())
    }

    /// Adds an entry to a map.
    fn entry(&self, form: Form, wire: &Wire<'_>, map: &mut M::Object) -> Result<(), Untold> {
        let (mut key, mut value) = (Cow::Borrowed(""), Wire::Bytes(&[]));
        let mut fields = Fields(wire.bytes()?);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => key = wire.text()?,
                2 => value = wire,
                number => return Err(Untold::Field { message: "an entry of a map", number }),
            }
        }
        M::put(map, &key, self.value(form, &value)?);
        Ok(())
    }

    fn value(&self, form: Form, wire: &Wire<'_>) -> Result<M::Value, Untold> {
        let scalar = match form {
            Form::LeftOut => return Err(Untold::Malformed("left out, and asked for")),
            Form::Scalar(scalar) => scalar,
            Form::Message(id) => {
                let mut made = M::Object::default();
                self.fields(id, wire.bytes()?, &mut made)?;
                return Ok(M::object(made));
            }
        };
        Ok(match scalar {
            Scalar::String => M::text(wire.bytes()?),
            Scalar::Bool => M::bool(wire.number()? != 0),
            Scalar::Int => M::int(wire.number()?.cast_signed()),
            Scalar::Bytes => M::base64(wire.bytes()?),
            Scalar::Quantity => M::text(raw(wire.bytes()?)?),
            Scalar::IntOrString => Self::int_or_string(wire.bytes()?)?,
            Scalar::Time => M::time(time(wire.bytes()?)?),
        })
    }

    fn int_or_string(bytes: &[u8]) -> Result<M::Value, Untold> {
        let (mut is_string, mut number, mut text) = (false, 0, &[][..]);
        let mut fields = Fields(bytes);
        while let Some((field, wire)) = fields.next()? {
            match field {
                1 => is_string = wire.number()? == 1,
                2 => number = wire.number()?,
                3 => text = wire.bytes()?,
                number => return Err(Untold::Field { message: "util/intstr.IntOrString", number }),
            }
        }
        Ok(if is_string { M::text(text) } else { M::int(number.cast_signed()) })
    }
}

/// The bytes of a message that has nothing but them.
fn raw(bytes: &[u8]) -> Result<&[u8], Untold> {
    let (mut raw, mut fields) = (&[][..], Fields(bytes));
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => raw = wire.bytes()?,
            number => return Err(Untold::Field { message: "a message of bytes", number }),
        }
    }
    Ok(raw)
}

fn time(bytes: &[u8]) -> Result<Timestamp, Untold> {
    let (mut seconds, mut fields) = (0, Fields(bytes));
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => seconds = wire.number()?.cast_signed(),
            // JSON has no parts of a second.
            2 => {}
            number => return Err(Untold::Field { message: "meta/v1.Time", number }),
        }
    }
    Timestamp::from_second(seconds).map_err(|_| Untold::Malformed("no time"))
}

/// As Go writes it, which takes any bytes for a text.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    // To look for what is no text takes longer than to see that there is nothing.
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}
