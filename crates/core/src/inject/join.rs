//! Injection of the parts of values ([`super::part`]): conflicts of templates and workloads, the operations, and what
//! markers list.

use super::Template;
use super::marker::Marker;
use super::merge::{Addition, Group, add};
use super::obstacle::Conflict;
use super::owners::Owned;
use super::part::{ENV, VALUE, literal, variable};
use super::pod::{OwnContainer, Pod};
use super::tables::{INNER, Inner};
use super::value::text;
use crate::api::code::Code;
use crate::api::v1alpha1::{Place, RawObject};
use json_patch::PatchOperation;
use json_patch::jsonptr::PointerBuf;
use serde_json::Value;

/// The longest value with a part of one policy, in bytes. Linux starts no program with a variable of 128 KiB, and the
/// parts of further policies have at most 1 KiB each.
const MAX_VALUE: usize = 32 << 10;
/// The variable with the folders of programs.
const PATH: &str = "PATH";

/// A variable of `own` that a part of `template` cannot be joined to.
pub(super) fn conflict(own: &OwnContainer<'_>, template: &Template) -> Option<Conflict> {
    template.joins.keys().find_map(|name| {
        let (part, there) = (template.part(name)?, variable(own.item(), name).map(|(_, there)| there));
        let of = format!("environment variable `{name}` of {} `{}`", own.list.noun, own.name);
        let message = match there.map_or(Some(""), literal) {
            // Every image has one, and the application is found in it.
            Some("") if name.eq_ignore_ascii_case(PATH) => {
                format!(
                    "{of} is not set, so the template's would replace that of the image: set all of it in the workload"
                )
            }
            None => format!("{of} has no `value` that the template's could be joined to; it is set by `valueFrom`"),
            Some(theirs)
                if theirs.len() + part.separator.len() + part.text.len() > MAX_VALUE && !part.is_in(theirs) =>
            {
                format!("{of} would have more than {MAX_VALUE} bytes with that of the template")
            }
            Some(_) => return None,
        };
        Some(Conflict { code: Code::VariableNotJoined, message })
    })
}

/// The words for two templates that treat the variable `name` differently; none if they do not, or if neither joins.
pub(super) fn collision(one: &Template, other: &Template, name: &str) -> Option<Option<String>> {
    match (one.joins.get(name), other.joins.get(name)) {
        (None, None) => None,
        (Some(one), Some(other)) if one.separator == other.separator => Some(None),
        (Some(_), Some(_)) => Some(Some(format!("join environment variable `{name}` with another `separator`"))),
        _ => Some(Some(format!("add environment variable `{name}`, one with `merge` and one without"))),
    }
}

/// All parts that templates join to variables of a workload.
pub(super) struct Joining<'a> {
    pub(super) owned: &'a Owned,
    values: Vec<Joined>,
    /// The owners of parts, each with what its marker lists.
    records: Vec<(usize, Marker)>,
    /// The owners of parts that are added.
    adding: Vec<usize>,
}

/// A variable with parts.
struct Joined {
    /// Its pointer in a marker.
    keyed: PointerBuf,
    /// Its pointer in the workload; none if it is added.
    at: Option<PointerBuf>,
    theirs: String,
    separator: String,
    before: Vec<String>,
    after: Vec<String>,
}

impl Joined {
    fn value(&self) -> String {
        let theirs = Some(&self.theirs).filter(|theirs| !theirs.is_empty());
        let all = self.before.iter().chain(theirs).chain(&self.after);
        all.map(String::as_str).collect::<Vec<_>>().join(&self.separator)
    }
}

impl<'a> Joining<'a> {
    /// No parts yet. Markers that stay own what `owned` has.
    pub(super) fn beside(owned: &'a Owned) -> Self {
        Self { owned, values: Vec::new(), records: Vec::new(), adding: Vec::new() }
    }

    /// True if and only if a part of `owner` is added.
    pub(super) fn adds(&self, owner: usize) -> bool {
        self.adding.contains(&owner)
    }

    /// Joins the variable `item` of `template`, the owner `owner`, to that of `own`, to which `group` adds variables.
    /// False if the template sets the variable.
    pub(super) fn join(
        &mut self,
        pod: &Pod<'_>,
        own: &OwnContainer<'_>,
        (owner, template): (usize, &Template),
        item: &RawObject,
        group: &mut Group,
    ) -> bool {
        let name = text(item, "name");
        let Some(part) = template.part(name) else { return false };
        let keyed = group.keyed.with_trailing_token(name);
        let there = variable(own.item(), name);
        let is_new = !self.values.iter().any(|value| value.keyed == keyed);
        if is_new {
            let at = there.map(|(index, _)| group.parent.with_trailing_token(index.to_string()));
            let theirs = there.and_then(|(_, there)| literal(there)).unwrap_or_default().to_owned();
            let separator = part.separator.to_owned();
            self.values.push(Joined { keyed: keyed.clone(), at, theirs, separator, before: vec![], after: vec![] });
        }
        let Some(joined) = self.values.iter_mut().find(|value| value.keyed == keyed) else { return true };
        let pointer = part.pointer(&keyed);
        let is_listed =
            self.owned.has_text(&pointer) || self.records.iter().any(|(_, record)| record.added.contains(&pointer));
        // What the user has written is theirs. The parts of other policies in this plan are not.
        if !is_listed && part.is_in(&joined.theirs) {
            return true;
        }
        let is_there = is_listed && part.is_in(&joined.value());
        let mut record = record(self.owned, joined, &pod.workload.body, group);
        record.added.push(pointer);
        self.records.push((owner, record));
        if is_there {
            return true;
        }
        self.adding.push(owner);
        match part.side {
            Place::Before => joined.before.push(part.text.to_owned()),
            Place::After => joined.after.push(part.text.to_owned()),
        }
        if joined.at.is_none() && is_new {
            let place = env().map_or(Place::After, |env| (env.place)(template, item));
            let value = Value::Object(item.clone());
            group.additions.push(Addition { owner, key: name.to_owned(), value, place });
        }
        true
    }

    /// The operations on variables that exist. Those that are added get their values in `groups`.
    pub(super) fn operations(&self, groups: &mut [Group]) -> Vec<PatchOperation> {
        let mut operations = Vec::new();
        for joined in self.values.iter().filter(|joined| !joined.before.is_empty() || !joined.after.is_empty()) {
            if let Some(at) = &joined.at {
                operations.push(add(at.with_trailing_token(VALUE), joined.value().into()));
                continue;
            }
            let is_it = |group: &Group, addition: &Addition| {
                group.keyed.with_trailing_token(addition.key.as_str()) == joined.keyed
            };
            for group in groups.iter_mut() {
                for at in
                    (0..group.additions.len()).filter(|at| is_it(group, &group.additions[*at])).collect::<Vec<_>>()
                {
                    group.additions[at].value[VALUE] = joined.value().into();
                }
            }
        }
        operations
    }

    /// What the marker of `owner` lists of it.
    pub(super) fn records_of(&self, owner: usize) -> impl Iterator<Item = &Marker> {
        self.records.iter().filter(move |(own, _)| *own == owner).map(|(_, record)| record)
    }
}

/// What a marker with a part of `joined` lists besides the part: what was created for it.
fn record(owned: &Owned, joined: &Joined, body: &Value, group: &Group) -> Marker {
    let mut record = match &joined.at {
        Some(at) => {
            let [at, keyed] = [at, &joined.keyed].map(|pointer| pointer.with_trailing_token(VALUE));
            owned.created(body, &at, &keyed)
        }
        None => Marker::default(),
    };
    // With the last part, the variable goes, too.
    if joined.at.is_none() || owned.has_joint(&joined.keyed) {
        record.extend(&owned.created(body, &group.parent, &group.keyed));
        record.added.push(joined.keyed.to_string());
    }
    record
}

fn env() -> Option<&'static Inner> {
    INNER.iter().find(|inner| inner.field == ENV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod_security::Standard;
    use crate::api::v1alpha1::Position;
    use crate::inject::round_trip::{goes_as_it_came, injected};
    use crate::inject::{LeftoverCause, Presence, presence, undo};
    use crate::workload::{Kind, Workload};
    use proptest::prelude::*;
    use serde_json::json;

    fn template(policy: &str, text: &str, merge: &str, separator: &str) -> Template {
        let env = json!([{"name": "X", "value": text, "merge": merge, "separator": separator}]);
        Template::new(policy, &serde_json::from_value(json!({ "env": env })).unwrap(), Position::default())
    }

    fn pod(env: &Value) -> Workload {
        Workload::new(Kind::find("", "pods").unwrap(), json!({"spec": {"containers": [{"name": "app", "env": env}]}}))
    }

    fn value(workload: &Workload) -> &Value {
        &workload.body["spec"]["containers"][0]["env"][0]["value"]
    }

    #[test]
    fn what_a_user_changes_afterwards_stays_without_our_part_if_it_is_still_there() {
        let ours = template("p", "-b", "Append", " ");
        let before = injected(&pod(&json!([{"name": "X", "value": "-a"}])), &[&ours]);
        for (edited, expected, cause) in [
            ("-a -b", "-a", None),
            ("-c -b -d", "-c -d", None),
            ("-b -d", "-d", None),
            ("-b", "", None),
            ("-a -bb", "-a -bb", Some(LeftoverCause::Edited)),
            ("-a", "-a", Some(LeftoverCause::Edited)),
            ("", "", Some(LeftoverCause::Edited)),
        ] {
            let mut after = before.clone();
            after.body["spec"]["containers"][0]["env"][0]["value"] = edited.into();
            let undone = undo(&after, None).unwrap();
            let causes: Vec<_> = undone.leftovers.iter().map(|leftover| leftover.cause).collect();
            assert_eq!(causes, Vec::from_iter(cause), "{edited}");
            assert_eq!(value(&before.with_body(undone.body)), expected, "{edited}");
        }
    }

    #[test]
    fn a_variable_that_was_created_for_parts_goes_with_the_last_unless_somebody_writes_into_it() {
        let (one, two) = (template("one", "1", "Append", ","), template("two", "2", "Prepend", ","));
        let both = injected(&pod(&json!(null)), &[&one, &two]);
        assert_eq!(value(&both), "2,1");
        let without = both.with_body(undo(&both, Some("one")).unwrap().body);
        assert_eq!(value(&without), "2");
        let mut edited = without.clone();
        edited.body["spec"]["containers"][0]["env"][0]["value"] = "2,users".into();
        let undone = undo(&edited, None).unwrap();
        assert_eq!((value(&edited.with_body(undone.body)), undone.leftovers), (&json!("users"), vec![]));
    }

    #[test]
    fn a_part_is_current_while_it_stands_between_separators() {
        let ours = template("p", "-b", "Append", " ");
        let forms = presence::Forms { plain: true, native: false };
        for (env, expected) in [
            (json!([{"name": "X", "value": "-a -b -c"}]), "whole"),
            (json!([{"name": "X", "value": "-a"}]), "lacking"),
            (json!([{"name": "X", "value": "-a -bb"}]), "lacking"),
            (json!([{"name": "X", "value": "-b"}, {"name": "X", "value": "-a"}]), "lacking"),
            (json!([]), "lacking"),
            (json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]), "different"),
            (json!([{"name": "X", "value": 7}]), "different"),
        ] {
            let found = match presence::presence(&pod(&env), &ours, forms, &[]) {
                Presence::Whole => "whole",
                Presence::Lacking(_) => "lacking",
                Presence::Different(_) => "different",
            };
            assert_eq!(found, expected, "{env}");
        }
    }

    #[test]
    fn the_path_of_an_image_is_never_replaced() {
        for (name, env, expected) in [
            ("PATH", json!([]), Err(Code::VariableNotJoined)),
            ("Path", json!(null), Err(Code::VariableNotJoined)),
            ("PATH", json!([{"name": "PATH", "value": ""}]), Err(Code::VariableNotJoined)),
            ("PATH", json!([{"name": "PATH", "value": "/bin"}]), Ok(())),
            ("CLASSPATH", json!([]), Ok(())),
        ] {
            let env_of_ours = json!([{"name": name, "value": "/agent", "merge": "Append", "separator": ":"}]);
            let spec = serde_json::from_value(json!({ "env": env_of_ours })).unwrap();
            let ours = Template::new("p", &spec, Position::default());
            let found = crate::inject::check(&pod(&env), &ours, &[&ours], Standard::NEWEST);
            assert_eq!(found.map_err(|conflict| conflict.code), expected, "{name} {env}");
        }
    }

    #[test]
    fn a_value_has_an_end() {
        let ours = template("p", "b", "Append", " ");
        for (length, fits) in [(MAX_VALUE - 2, true), (MAX_VALUE - 1, false)] {
            let users = pod(&json!([{"name": "X", "value": "a".repeat(length)}]));
            let found = crate::inject::check(&users, &ours, &[&ours], Standard::NEWEST);
            assert_eq!(
                found.map_err(|conflict| conflict.code),
                if fits { Ok(()) } else { Err(Code::VariableNotJoined) }
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn parts_go_as_they_came_in_any_order(
            theirs in proptest::option::of("[ab: ]{0,7}"),
            parts in proptest::collection::vec(("[ab]{1,2}(:[ab])?", prop_oneof!["Append", "Prepend"]), 1..4),
            others in 0..3_usize,
            order in any::<prop::sample::Index>(),
        ) {
            let all: Vec<Template> = parts.iter().enumerate()
                .map(|(number, (text, merge))| template(&format!("p{number}"), text, merge, ":"))
                .collect();
            let all: Vec<&Template> = all.iter().collect();
            let mut env: Vec<Value> = (0..others).map(|number| json!({"name": format!("O{number}"), "value": "1"})).collect();
            env.extend(theirs.map(|theirs| json!({"name": "X", "value": theirs})));
            let users = pod(&json!(env));
            let full = injected(&users, &all);
            goes_as_it_came(&users, &full, &all, &order)?;
        }
    }
}
