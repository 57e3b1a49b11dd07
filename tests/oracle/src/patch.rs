//! The operations of a JSON Patch.

use serde_json::Value;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// `test`, `add`, `replace` or `remove`. Other operations also change the object.
    pub op: &'a str,
    /// A JSON pointer.
    pub path: &'a str,
    /// The tested or added value.
    pub value: &'a Value,
}

/// The operations of `patch`; empty if it is no JSON Patch.
pub fn operations<'a>(patch: &'a Value) -> Vec<Operation<'a>> {
    let operation = |item: &'a Value| {
        let text = |field: &str| item[field].as_str().unwrap_or_default();
        Operation { op: text("op"), path: text("path"), value: &item["value"] }
    };
    patch.as_array().into_iter().flatten().map(operation).collect()
}

impl Operation<'_> {
    /// Whether the operation changes nothing.
    pub fn is_test(&self) -> bool {
        self.op == "test"
    }

    /// Whether the operation removes an entry, or the whole list of initializers.
    pub fn is_removal(&self) -> bool {
        self.op == "remove"
            && (self.path == "/metadata/initializers" || self.path.starts_with("/metadata/initializers/pending/"))
    }
}

/// The value that a patch tests at `path` before its changes.
pub fn tested<'a>(patch: &'a Value, path: &str) -> Option<&'a str> {
    let operations = operations(patch);
    operations.into_iter().take_while(Operation::is_test).find(|test| test.path == path)?.value.as_str()
}
