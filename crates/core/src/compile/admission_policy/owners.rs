//! What markers that stay list, as CEL: [`crate::inject::owners`] in another language.

use super::access::Access;
use super::cel::{all, any, not, quoted};
use super::environment::{Environment as _, Variables};
use super::own::{LISTED, readable};
use crate::inject::marker;
use serde_json::Value;

/// The entries of the markers that stay on a workload while templates are injected into it.
pub(super) struct Owned {
    /// The list of all entries, as JSON texts; none if there is no marker. A look into a list costs as much as it has items. Into a text
    /// it costs the length of that times the length of what is looked for, and a call may cost 1 000 000.
    added: Option<String>,
    /// The same for those that were null.
    nulls: String,
}

impl Owned {
    /// The entries beside the injection of templates, whose markers are `replaced`: the key, the condition of the injection, and
    /// the marker that an update extends instead.
    pub(super) fn beside<'a>(
        replaced: impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)>,
        access: &Access,
        variables: &mut Variables,
    ) -> Self {
        if access.fresh.is_some() {
            return Self { added: None, nulls: "[]".to_owned() };
        }
        let mut terms = Vec::new();
        for (key, fits, kept) in replaced {
            let mut goes = vec![format!("k == {}", quoted(key)), fits.to_owned()];
            goes.extend(kept.map(|kept| format!("{kept} == \"\"")));
            let term = not(&all(&goes));
            if !terms.contains(&term) {
                terms.push(term);
            }
        }
        let (readable, stays) = (readable(access, variables), all(&terms));
        // Each entry has a comma before it, and what stands last in a marker may have the marker's own end after it.
        let bare = r#"(t.endsWith("]}") ? t.substring(0, size(t) - 2) : t)"#;
        let entries =
            |texts: &str| format!(r#"{texts}.map(t, {bare}.split(",\"")).flatten().map(t, "\"" + string(t))"#);
        let added = entries(&format!("{readable}.transformList(k, t, {stays}, {LISTED})"));
        let nulls = quoted(marker::NULLS);
        let of_nulls = format!("\",\" + t.split({nulls})[1]");
        let nulls = entries(&format!("{readable}.transformList(k, t, t.contains({nulls}) && {stays}, {of_nulls})"));
        Self { added: Some(variables.define("owned", &added)), nulls: variables.define("owned_nulls", &nulls) }
    }

    /// The condition that a marker that stays lists `pointer`, a JSON text.
    pub(super) fn has(&self, pointer: &str) -> String {
        self.has_text(&quoted(pointer))
    }

    /// The same for the text of the expression `text`.
    pub(super) fn has_text(&self, text: &str) -> String {
        self.added.as_ref().map_or_else(|| "false".to_owned(), |added| format!("{text} in {added}"))
    }

    /// The condition that the created list or map `pointer`, a JSON text, is listed if the workload lacks it, or another marker
    /// lists it beside one of `entries`; without `entries` the marker itself is one. Then the condition that it was null:
    /// `is_null` if the workload lacks it.
    pub(super) fn created(
        &self,
        pointer: &str,
        lacks: String,
        entries: &[String],
        is_null: Option<String>,
    ) -> (String, Option<String>) {
        self.created_text(&quoted(pointer), lacks, entries, is_null)
    }

    /// The same for the text of the expression `text`.
    pub(super) fn created_text(
        &self,
        text: &str,
        lacks: String,
        entries: &[String],
        is_null: Option<String>,
    ) -> (String, Option<String>) {
        let Some(added) = &self.added else {
            let null = is_null.map(|is_null| all(&[lacks.clone(), is_null]));
            return (lacks, null);
        };
        let mut inherited = vec![format!("{text} in {added}")];
        inherited.extend((!entries.is_empty()).then(|| any(entries)));
        let inherited = all(&inherited);
        let was_null = all(&[not(&lacks), format!("{text} in {}", self.nulls), inherited.clone()]);
        let null =
            any(&[is_null.map_or_else(|| "false".to_owned(), |is_null| all(&[lacks.clone(), is_null])), was_null]);
        (any(&[lacks, inherited]), Some(null))
    }
}

/// `below` the pod at `pod` as an entry of a marker, a JSON text.
pub(super) fn entry(pod: &str, below: &str) -> String {
    Value::from(format!("{pod}{below}")).to_string()
}
