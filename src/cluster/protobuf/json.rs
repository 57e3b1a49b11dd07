//! Protobuf as JSON. Pure.

use super::schema::{Field, Form, Id, Scalar, Schema, Shape};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use quick_protobuf::BytesReader;
use std::borrow::Cow;

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

impl From<quick_protobuf::Error> for Untold {
    fn from(_: quick_protobuf::Error) -> Self {
        Untold::Malformed("it ends early")
    }
}

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

/// The fields of a message, in the order in which they were written.
struct Fields<'a> {
    reader: BytesReader,
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { reader: BytesReader::from_bytes(bytes), bytes }
    }

    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Untold> {
        if self.reader.is_eof() {
            return Ok(None);
        }
        let tag = self.reader.next_tag(self.bytes)?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.reader.read_varint64(self.bytes)?),
            2 => Wire::Bytes(self.reader.read_bytes(self.bytes)?),
            _ => return Err(Untold::Malformed("a form of field that Kubernetes does not use")),
        };
        Ok(Some((tag >> 3, wire)))
    }
}

/// Adds the event that a watch has shown, as one line.
///
/// # Errors
/// If anything of it is not known; then some of it may have been added.
pub(super) fn event(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Untold> {
    let (mut kind, mut object) = (Cow::Borrowed(""), &[][..]);
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => kind = wire.text()?,
            2 => object = raw(wire.bytes()?)?,
            number => return Err(Untold::Field { message: "meta/v1.WatchEvent", number }),
        }
    }
    out.extend_from_slice(b"{\"type\":");
    string(&kind, out);
    out.extend_from_slice(b",\"object\":");
    whole(object, out)?;
    out.extend_from_slice(b"}\n");
    Ok(())
}

/// Adds an object that says of which kind it is.
///
/// # Errors
/// As for [`event`].
pub(super) fn whole(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Untold> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or(Untold::Malformed("it does not begin as an object"))?;
    let (mut api_version, mut kind, mut object) = (Cow::Borrowed(""), Cow::Borrowed(""), &[][..]);
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => {
                let mut fields = Fields::of(wire.bytes()?);
                while let Some((number, wire)) = fields.next()? {
                    match number {
                        1 => api_version = wire.text()?,
                        2 => kind = wire.text()?,
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
    let schema = Schema::get();
    let unknown = || Untold::Kind { api_version: api_version.to_string(), kind: kind.to_string() };
    let id = schema.of_kind(&api_version, &kind).ok_or_else(unknown)?;
    out.extend_from_slice(b"{\"apiVersion\":");
    string(&api_version, out);
    out.extend_from_slice(b",\"kind\":");
    string(&kind, out);
    Writer { schema, out, is_first: false }.fields(id, object)?;
    out.push(b'}');
    Ok(())
}

struct Writer<'a> {
    schema: &'a Schema,
    out: &'a mut Vec<u8>,
    /// Whether nothing is yet in the innermost object.
    is_first: bool,
}

impl Writer<'_> {
    /// Adds the fields of a message to the object that is open.
    fn fields(&mut self, id: Id, bytes: &[u8]) -> Result<(), Untold> {
        let message = self.schema.message(id);
        // The list or map that is open. All of one follow each other.
        let mut open: Option<(u32, Shape)> = None;
        let mut last = 0;
        let mut fields = Fields::of(bytes);
        while let Some((number, wire)) = fields.next()? {
            let field = message.field(number).ok_or(Untold::Field { message: message.name, number })?;
            let is_left_out = matches!(field.form, Form::LeftOut);
            let goes_on = open.is_some_and(|(open, _)| open == number);
            // What is left out may be a list.
            if number < last || number == last && !goes_on && !is_left_out {
                return Err(Untold::Malformed("its fields are not in order"));
            }
            last = number;
            if is_left_out {
                continue;
            }
            if !goes_on {
                self.close(open.take());
            }
            match field.shape {
                Shape::Inline => self.inline(field, &wire)?,
                Shape::One => self.one(field, &wire)?,
                Shape::List | Shape::Map => {
                    if goes_on {
                        self.out.push(b',');
                    } else {
                        self.key(field.key);
                        self.out.push(if field.shape == Shape::List { b'[' } else { b'{' });
                        open = Some((number, field.shape));
                    }
                    if field.shape == Shape::List {
                        self.value(field.form, &wire)?
                    } else {
                        self.entry(field.form, &wire)?
                    }
                }
            }
        }
        self.close(open);
        Ok(())
    }

    fn close(&mut self, open: Option<(u32, Shape)>) {
        if let Some((_, shape)) = open {
            self.out.push(if shape == Shape::List { b']' } else { b'}' });
        }
    }

    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        // No key has anything in it that would have to be escaped.
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn inline(&mut self, field: &Field, wire: &Wire<'_>) -> Result<(), Untold> {
        match field.form {
            Form::Message(id) => self.fields(id, wire.bytes()?),
            Form::Scalar(_) | Form::LeftOut => Err(Untold::Malformed("no message")),
        }
    }

    fn one(&mut self, field: &Field, wire: &Wire<'_>) -> Result<(), Untold> {
        let is_zero = match (field.form, wire) {
            (Form::Scalar(Scalar::Time), wire) => wire.bytes()?.is_empty(),
            (Form::Scalar(Scalar::String | Scalar::Bytes), wire) => !field.has_zero && wire.bytes()?.is_empty(),
            (Form::Scalar(Scalar::Bool | Scalar::Int), wire) => !field.has_zero && wire.number()? == 0,
            _ => false,
        };
        if is_zero {
            return Ok(());
        }
        self.key(field.key);
        self.value(field.form, wire)
    }

    /// Adds an entry of a map.
    fn entry(&mut self, form: Form, wire: &Wire<'_>) -> Result<(), Untold> {
        let (mut key, mut value) = (Cow::Borrowed(""), Wire::Bytes(&[]));
        let mut fields = Fields::of(wire.bytes()?);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => key = wire.text()?,
                2 => value = wire,
                number => return Err(Untold::Field { message: "an entry of a map", number }),
            }
        }
        string(&key, self.out);
        self.out.push(b':');
        self.value(form, &value)
    }

    fn value(&mut self, form: Form, wire: &Wire<'_>) -> Result<(), Untold> {
        let scalar = match form {
            Form::LeftOut => return Ok(()),
            Form::Scalar(scalar) => scalar,
            Form::Message(id) => {
                self.out.push(b'{');
                self.is_first = true;
                self.fields(id, wire.bytes()?)?;
                self.is_first = false;
                self.out.push(b'}');
                return Ok(());
            }
        };
        match scalar {
            Scalar::String => string(&wire.text()?, self.out),
            Scalar::Bool => self.out.extend_from_slice(if wire.number()? == 0 { b"false" } else { b"true" }),
            Scalar::Int => self.int(wire.number()?),
            Scalar::Bytes => string(&STANDARD.encode(wire.bytes()?), self.out),
            Scalar::Quantity => string(&text(raw(wire.bytes()?)?), self.out),
            Scalar::IntOrString => self.int_or_string(wire.bytes()?)?,
            Scalar::Time => string(&time(wire.bytes()?)?, self.out),
        }
        Ok(())
    }

    /// Adds a number, which protobuf has without a sign.
    fn int(&mut self, number: u64) {
        self.out.extend_from_slice(number.cast_signed().to_string().as_bytes());
    }

    fn int_or_string(&mut self, bytes: &[u8]) -> Result<(), Untold> {
        let (mut is_string, mut number, mut text) = (false, 0, Cow::Borrowed(""));
        let mut fields = Fields::of(bytes);
        while let Some((field, wire)) = fields.next()? {
            match field {
                1 => is_string = wire.number()? == 1,
                2 => number = wire.number()?,
                3 => text = wire.text()?,
                number => return Err(Untold::Field { message: "util/intstr.IntOrString", number }),
            }
        }
        if is_string {
            string(&text, self.out)
        } else {
            self.int(number)
        }
        Ok(())
    }
}

/// The bytes of a message that has nothing but them.
fn raw(bytes: &[u8]) -> Result<&[u8], Untold> {
    let (mut raw, mut fields) = (&[][..], Fields::of(bytes));
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => raw = wire.bytes()?,
            number => return Err(Untold::Field { message: "a message of bytes", number }),
        }
    }
    Ok(raw)
}

fn time(bytes: &[u8]) -> Result<String, Untold> {
    let (mut seconds, mut fields) = (0, Fields::of(bytes));
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => seconds = wire.number()?.cast_signed(),
            // JSON has no parts of a second.
            2 => {}
            number => return Err(Untold::Field { message: "meta/v1.Time", number }),
        }
    }
    Timestamp::from_second(seconds).map(|time| time.to_string()).map_err(|_| Untold::Malformed("no time"))
}

/// As Go writes it, which takes any bytes for a text.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    // To look for what is no text takes longer than to see that there is nothing.
    str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

fn string(text: &str, out: &mut Vec<u8>) {
    // Nothing is written that could fail, and no text is not JSON.
    let _ = serde_json::to_writer(out, text);
}
