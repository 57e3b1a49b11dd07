//! The record of who wrote a policy last: the annotation [`KEY`]. Pure.
//!
//! API servers do not store the author of an object. The record is how `scpol check --authors` finds authors who have lost a
//! right. From 1.36 on, the MutatingAdmissionPolicy in `config/author-record` writes the record, and overwrites what a writer
//! sends. Both forms of the author check refuse a new record that names another user, so a record cannot be forged before a server
//! writes records. A record gives no power: it is only shown, and only where servers record. Elsewhere an edit may keep an old record,
//! because tools that apply manifests do not know it.

use super::identity::Author;
use crate::api::code::Code;
use crate::outside::shown;
use serde::Deserialize;
use serde_json::{Value, json};

/// The annotation.
pub const KEY: &str = "scpol.dev/author";
/// The folder of the manifest that has the API server write it.
pub const SOURCE: &str = "config/author-record";
/// The most groups of a recorded author. The groups of a token have no bound; a directory gives most users some dozens.
pub const GROUPS: usize = 32;
/// The most characters of a name of a recorded user or group. A name is never cut, because that would name another one.
pub const NAME: usize = 256;
/// The record of an author who has too many groups, or names that are too long or have control characters.
pub const TOO_LARGE: &str = r#"{"unknown":"too many groups, or an odd name"}"#;
/// The largest record, in bytes: all names with the longest characters, each escaped.
const LARGEST: usize = (GROUPS + 1) * NAME * 8;

/// The names in a record.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    user: String,
    groups: Vec<String>,
}

fn is_told(user: &str, groups: &[String]) -> bool {
    let is_plain = |name: &str| name.chars().count() <= NAME && !name.contains(|character: char| character < ' ');
    groups.len() <= GROUPS && is_plain(user) && groups.iter().all(|group| is_plain(group))
}

/// The record of the writer `author`. `config/author-record` writes the same text.
pub fn of(author: &Author) -> String {
    let (user, groups) = (author.name(), author.groups());
    if !is_told(user, groups) {
        return TOO_LARGE.to_owned();
    }
    // In this order, as the API server writes it.
    format!(r#"{{"user":{},"groups":{}}}"#, json!(user), json!(groups))
}

/// The record in `policy`; empty if there is none.
fn stored(policy: &Value) -> &str {
    policy["metadata"]["annotations"][KEY].as_str().unwrap_or_default()
}

/// The author of the stored `policy`, by its record. The name is not empty.
///
/// # Errors
/// Why the author is unknown.
pub fn read(policy: &Value) -> Result<Author, &'static str> {
    match stored(policy) {
        "" => Err("its last author is not recorded"),
        TOO_LARGE => Err("its last author has too many groups, or an odd name"),
        record if record.len() > LARGEST => Err("the record of its last author is too large"),
        record => match serde_json::from_str(record) {
            Ok(Names { user, groups }) if !user.is_empty() && is_told(&user, &groups) => {
                Ok(Author::named(user, groups))
            }
            _ => Err("the record of its last author cannot be read"),
        },
    }
}

/// Why the write of `new` over `old` by `author` is refused: it brings a record, and that is neither the one before nor, if it `is_edit`,
/// its own. `old` is null for a create.
pub fn refusal(author: &Author, new: &Value, old: &Value, is_edit: bool) -> Option<String> {
    let record = stored(new);
    let is_allowed = record.is_empty() || record == stored(old) || is_edit && record == of(author);
    (!is_allowed).then(|| text(&shown(author.name())))
}

/// The message for the writer `user`.
pub fn text(user: &str) -> String {
    format!(
        "{}: the annotation `{KEY}` does not say that {user} writes this policy: leave the annotation out",
        Code::ForeignAuthorRecord
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(user: &str, groups: &[&str]) -> Author {
        Author::named(user.to_owned(), groups.iter().map(|group| (*group).to_owned()).collect())
    }

    fn recorded(record: &str) -> Value {
        json!({ "metadata": { "annotations": { KEY: record } } })
    }

    #[test]
    fn who_is_recorded_is_read_again_and_nobody_else() {
        let many: Vec<String> = (0..=GROUPS).map(|number| format!("g{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let longest = "\u{10ffff}".repeat(NAME);
        for (user, groups) in
            [("jo", &["dev", "system:authenticated"][..]), (r#"CORP\jo "the" boss"#, &[]), (&longest, &many[..GROUPS])]
        {
            let author = author(user, groups);
            let read = read(&recorded(&of(&author))).expect("it is a record");
            assert_eq!((read.name(), read.groups()), (author.name(), author.groups()));
        }
        assert_eq!(of(&author("jo", &["a", "b"])), r#"{"user":"jo","groups":["a","b"]}"#);
        for (user, groups) in [("jo", &many[..]), (&"a".repeat(NAME + 1), &[]), ("jo", &["a\nb"]), ("j\u{0}o", &[])] {
            assert_eq!(of(&author(user, groups)), TOO_LARGE, "{user}");
        }
        let long = format!(r#"{{"user":"{}","groups":[]}}"#, "a".repeat(NAME + 1));
        let bulk = format!(r#"{{"user":"jo","groups":[{}]}}"#, " ".repeat(LARGEST));
        for odd in ["", TOO_LARGE, "jo", "{}", r#"{"user":"","groups":[]}"#, r#"{"user":"jo"}"#, &long, &bulk] {
            assert!(read(&recorded(odd)).is_err(), "{odd}");
        }
        assert!(read(&json!({ "metadata": { "annotations": { KEY: ["jo"] } } })).is_err());
        assert!(read(&json!(null)).is_err());
    }

    #[test]
    fn a_record_of_somebody_else_is_refused() {
        let (jo, al) = (author("jo", &["dev"]), author("al", &["dev"]));
        let (of_jo, of_al, none) = (recorded(&of(&jo)), recorded(&of(&al)), json!({ "metadata": {} }));
        for (new, old, is_edit, is_refused) in [
            (&none, &json!(null), true, false),
            (&of_jo, &json!(null), true, false),
            (&of_al, &json!(null), true, true),
            // An edit makes its writer the author.
            (&of_jo, &of_al, true, false),
            (&none, &of_al, true, false),
            // Tools that apply leave it.
            (&of_al, &of_al, true, false),
            // Everything else leaves the author.
            (&of_al, &of_al, false, false),
            (&of_jo, &of_al, false, true),
            (&of_al, &none, false, true),
        ] {
            let told = refusal(&jo, new, old, is_edit);
            assert_eq!(told.is_some(), is_refused, "{new} over {old}, edit: {is_edit}: {told:?}");
            assert!(told.is_none_or(|told| told.starts_with("SCP0049: ") && told.contains("jo")));
        }
    }
}
