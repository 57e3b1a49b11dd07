//! A JSON Patch as it was sent.

use serde_json::Value;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// `test`, `add`, `replace` or `remove`; what else there is changes things, too.
    pub op: &'a str,
    /// A JSON pointer.
    pub path: &'a str,
    /// What is tested or put there.
    pub value: &'a Value,
}

/// Reads the operations of `patch`; none if it is no JSON Patch.
pub fn operations<'a>(patch: &'a Value) -> Vec<Operation<'a>> {
    let operation = |item: &'a Value| {
        let text = |field: &str| item[field].as_str().unwrap_or_default();
        Operation { op: text("op"), path: text("path"), value: &item["value"] }
    };
    patch.as_array().into_iter().flatten().map(operation).collect()
}

impl Operation<'_> {
    /// True if and only if it only looks.
    pub fn is_test(&self) -> bool {
        self.op == "test"
    }

    /// True if and only if it takes an entry, or all, off the list of initializers.
    pub fn is_removal(&self) -> bool {
        self.op == "remove"
            && (self.path == "/metadata/initializers" || self.path.starts_with("/metadata/initializers/pending/"))
    }
}

/// What a patch tests at `path` before it changes anything.
pub fn tested<'a>(patch: &'a Value, path: &str) -> Option<&'a str> {
    let operations = operations(patch);
    operations.into_iter().take_while(Operation::is_test).find(|test| test.path == path)?.value.as_str()
}
