//! The table of all functions and operators. The checker reads the types, and the evaluator the implementations.
//!
//! The rows are those of servers (k8s.io/apiserver/pkg/cel/environment/base.go): cel-go's standard library
//! (common/stdlib/standard.go), its extensions strings v2, lists v3, sets, optionals, two-variable comprehensions, and
//! Kubernetes' own (pkg/cel/library). [`super::dialect`] says from which version on a server has what was added.
//! [`OURS`] has the rows that no server has.

use super::dialect::Dialect;
use super::formats::FORMATS;
use super::functions::{
    arithmetic, compare, convert, format, formats, lists, moment, network, optional, quantity, regexes, semver, sets,
    strings, url,
};
use super::moment::SECOND;
use super::signatures::{Means, Native, Overload, Run};
use super::types::{Opaque, Type};
use super::value::Val;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::LazyLock;

type Row = (&'static str, Means);

const fn run(signature: &'static str, run: Run) -> Row {
    (signature, Means::Strict(run))
}

const fn native(signature: &'static str, native: Native) -> Row {
    (signature, Means::Native(native))
}

/// A signature is `function(types) -> type`, or `type.function(types) -> type` for a member.
///
/// `A` and `B` are any types. Each other letter represents several types, with one row for each: see [`CLASSES`].
/// Alternatives in braces are a row each.
///
/// The rows of one function are in the server's order, which matters if a type is unknown. The first fitting row fixes
/// the type, and then the others no longer fit.
const ROWS: &[Row] = &[
    // Operators
    native("_==_(A, A) -> bool", Native::Equal),
    native("_!=_(A, A) -> bool", Native::NotEqual),
    native("@in(A, list<A>) -> bool", Native::In),
    native("@in(A, map<A, B>) -> bool", Native::In),
    native("_?_:_(bool, A, A) -> A", Native::Choice),
    native("_[_](list<A>, int) -> A", Native::Index),
    native("_[_](map<A, B>, A) -> B", Native::Index),
    native("_[_](optional<list<A>>, int) -> optional<A>", Native::Index),
    native("_[_](optional<map<A, B>>, A) -> optional<B>", Native::Index),
    native("_[?_](list<A>, int) -> optional<A>", Native::OptionalIndex),
    native("_[?_](optional<list<A>>, int) -> optional<A>", Native::OptionalIndex),
    native("_[?_](map<A, B>, A) -> optional<B>", Native::OptionalIndex),
    native("_[?_](optional<map<A, B>>, A) -> optional<B>", Native::OptionalIndex),
    run("!_(bool) -> bool", arithmetic::not),
    run("-_(double) -> double", arithmetic::negate),
    run("-_(int) -> int", arithmetic::negate),
    run("_<_(T) -> bool", |work, values| arithmetic::ordered(work, values, Ordering::is_lt)),
    run("_<=_(T) -> bool", |work, values| arithmetic::ordered(work, values, Ordering::is_le)),
    run("_>_(T) -> bool", |work, values| arithmetic::ordered(work, values, Ordering::is_gt)),
    run("_>=_(T) -> bool", |work, values| arithmetic::ordered(work, values, Ordering::is_ge)),
    run("_+_(bytes, bytes) -> bytes", arithmetic::concatenate_bytes),
    run("_+_(double, double) -> double", arithmetic::add),
    run("_+_(duration, duration) -> duration", moment::add),
    run("_+_(duration, timestamp) -> timestamp", moment::add),
    run("_+_(timestamp, duration) -> timestamp", moment::add),
    run("_+_(int, int) -> int", arithmetic::add),
    run("_+_(list<A>, list<A>) -> list<A>", lists::concatenate),
    run("_+_(string, string) -> string", arithmetic::concatenate),
    run("_+_(uint, uint) -> uint", arithmetic::add),
    run("_-_(double, double) -> double", arithmetic::subtract),
    run("_-_(duration, duration) -> duration", moment::subtract),
    run("_-_(int, int) -> int", arithmetic::subtract),
    run("_-_(timestamp, duration) -> timestamp", moment::subtract),
    run("_-_(timestamp, timestamp) -> duration", moment::subtract),
    run("_-_(uint, uint) -> uint", arithmetic::subtract),
    run("_*_(N, N) -> N", arithmetic::multiply),
    run("_/_(N, N) -> N", arithmetic::divide),
    run("_%_(int, int) -> int", arithmetic::remainder),
    run("_%_(uint, uint) -> uint", arithmetic::remainder),
    // Conversions
    run("bool({bool|string}) -> bool", convert::to_bool),
    run("bytes({bytes|string}) -> bytes", convert::to_bytes),
    run("double({double|int|string|uint}) -> double", convert::to_double),
    run("duration({duration|int|string}) -> duration", convert::to_duration),
    run("dyn(A) -> dyn", convert::to_dyn),
    run("int({int|double|duration|string|timestamp|uint}) -> int", convert::to_int),
    run("string({string|bool|bytes|double|duration|int|timestamp|uint}) -> string", convert::to_text),
    run("timestamp({timestamp|int|string}) -> timestamp", convert::to_timestamp),
    run("type(A) -> type", convert::to_type),
    run("uint({uint|double|int|string}) -> uint", convert::to_uint),
    // Sizes
    run("size({bytes|list<A>|map<A, B>|string}) -> int", lists::size),
    run("{bytes|list<A>|map<A, B>|string}.size() -> int", lists::size),
    // Strings, and list functions that come before them
    run("list<A>.indexOf(A) -> int", lists::index_of),
    run("list<A>.lastIndexOf(A) -> int", lists::last_index_of),
    run("string.contains(string) -> bool", strings::contains),
    run("string.startsWith(string) -> bool", strings::starts_with),
    run("string.endsWith(string) -> bool", strings::ends_with),
    run("string.charAt(int) -> string", strings::char_at),
    run("string.indexOf(string{|, int}) -> int", strings::index_of),
    run("string.lastIndexOf(string{|, int}) -> int", strings::last_index_of),
    run("string.lowerAscii() -> string", strings::lower_ascii),
    run("string.upperAscii() -> string", strings::upper_ascii),
    run("string.replace(string, string{|, int}) -> string", strings::replace),
    run("string.split(string{|, int}) -> list<string>", strings::split),
    run("string.substring(int{|, int}) -> string", strings::substring),
    run("string.trim() -> string", strings::trim),
    run("string.format(list<dyn>) -> string", format::format),
    run("strings.quote(string) -> string", strings::quote),
    run("list<string>.join({|string}) -> string", strings::join),
    // Regular expressions
    run("matches(string, string) -> bool", regexes::matches),
    run("string.matches(string) -> bool", regexes::matches),
    run("string.find(string) -> string", regexes::find),
    run("string.findAll(string{|, int}) -> list<string>", regexes::find_all),
    // Timestamps and durations
    run("timestamp.getFullYear({|string}) -> int", |_, values| moment::part(values, |civil| civil.year)),
    run("timestamp.getMonth({|string}) -> int", |_, values| moment::part(values, |civil| civil.month - 1)),
    run("timestamp.getDate({|string}) -> int", |_, values| moment::part(values, |civil| civil.day)),
    run("timestamp.getDayOfMonth({|string}) -> int", |_, values| moment::part(values, |civil| civil.day - 1)),
    run("timestamp.getDayOfWeek({|string}) -> int", |_, values| moment::part(values, |civil| civil.day_of_week)),
    run("timestamp.getDayOfYear({|string}) -> int", |_, values| moment::part(values, |civil| civil.day_of_year)),
    run("timestamp.getHours({|string}) -> int", |_, values| moment::part(values, |civil| civil.second_of_day / 3_600)),
    run("timestamp.getMinutes({|string}) -> int", |_, values| {
        moment::part(values, |civil| civil.second_of_day / 60 % 60)
    }),
    run("timestamp.getSeconds({|string}) -> int", |_, values| moment::part(values, |civil| civil.second_of_day % 60)),
    run("timestamp.getMilliseconds({|string}) -> int", |_, values| {
        moment::part(values, |civil| civil.nanos / 1_000_000)
    }),
    run("duration.getHours() -> int", |_, values| moment::total(values, 3_600 * SECOND)),
    run("duration.getMinutes() -> int", |_, values| moment::total(values, 60 * SECOND)),
    run("duration.getSeconds() -> int", |_, values| moment::total(values, SECOND)),
    run("duration.getMilliseconds() -> int", |_, values| moment::total(values, 1_000_000)),
    // Lists
    run("list<C>.isSorted() -> bool", lists::is_sorted),
    run("list<S>.sum() -> S", lists::sum),
    run("list<C>.max() -> C", lists::max),
    run("list<C>.min() -> C", lists::min),
    run("sets.contains(list<A>, list<A>) -> bool", sets::contains),
    run("sets.equivalent(list<A>, list<A>) -> bool", sets::equivalent),
    run("sets.intersects(list<A>, list<A>) -> bool", sets::intersects),
    // Optionals
    run("optional.of(A) -> optional<A>", optional::of),
    run("optional.ofNonZeroValue(A) -> optional<A>", optional::of_non_zero_value),
    run("optional.none() -> optional<A>", optional::none),
    run("optional<A>.value() -> A", optional::value),
    run("optional<A>.hasValue() -> bool", optional::has_value),
    native("optional<A>.or(optional<A>) -> optional<A>", Native::Or),
    native("optional<A>.orValue(A) -> A", Native::OrValue),
    // Quantities
    run("quantity(string) -> quantity", quantity::quantity),
    run("isQuantity(string) -> bool", quantity::is_quantity),
    run("sign(quantity) -> int", |_, values| quantity::of(values).map(|quantity| Val::Int(quantity.sign()))),
    run("quantity.isGreaterThan(quantity) -> bool", compare::is_greater_than),
    run("quantity.isLessThan(quantity) -> bool", compare::is_less_than),
    run("quantity.compareTo(quantity) -> int", compare::compare_to),
    run("quantity.asApproximateFloat() -> double", |_, values| {
        quantity::of(values).map(|quantity| Val::Double(quantity.approximate()))
    }),
    run("quantity.asInteger() -> int", quantity::as_integer),
    run("quantity.isInteger() -> bool", |_, values| {
        quantity::of(values).map(|quantity| Val::Bool(quantity.integer().is_some()))
    }),
    run("quantity.add({quantity|int}) -> quantity", quantity::add),
    run("quantity.sub({quantity|int}) -> quantity", quantity::subtract),
    // URLs
    run("url(string) -> url", url::url),
    run("isURL(string) -> bool", url::is_url),
    run("url.getScheme() -> string", |_, values| url::part(values, |url| url.scheme.clone())),
    run("url.getHost() -> string", |_, values| url::part(values, |url| url.host.clone())),
    run("url.getHostname() -> string", |_, values| url::part(values, |url| url.host_and_port().0.to_owned())),
    run("url.getPort() -> string", |_, values| url::part(values, |url| url.host_and_port().1.to_owned())),
    run("url.getEscapedPath() -> string", url::escaped_path),
    run("url.getQuery() -> map<string, list<string>>", url::query),
];

/// IP addresses and ranges.
const SINCE_1_31: &[Row] = &[
    run("ip(string) -> ip", network::ip),
    run("isIP(string) -> bool", network::is_ip),
    run("ip.isCanonical(string) -> bool", network::is_canonical),
    run("<ip>.family() -> int", network::family),
    run("<ip>.isUnspecified() -> bool", |_, values| network::test(values, |ip| ip.is_unspecified())),
    run("<ip>.isLoopback() -> bool", |_, values| network::test(values, |ip| ip.is_loopback())),
    run("<ip>.isLinkLocalMulticast() -> bool", network::is_link_local_multicast),
    run("<ip>.isLinkLocalUnicast() -> bool", |_, values| network::test(values, network::is_link_local)),
    run("<ip>.isGlobalUnicast() -> bool", network::is_global_unicast),
    run("cidr(string) -> cidr", network::cidr),
    run("isCIDR(string) -> bool", network::is_cidr),
    run("<cidr>.containsIP({string|ip}) -> bool", network::contains_ip),
    run("<cidr>.containsCIDR({string|cidr}) -> bool", network::contains_cidr),
    run("<cidr>.ip() -> ip", |_, values| network::of(values).map(|cidr| Val::Ip(cidr.ip))),
    run("<cidr>.prefixLength() -> int", |_, values| network::of(values).map(|cidr| Val::Int(cidr.length.into()))),
    run("<cidr>.masked() -> cidr", |_, values| network::of(values).map(|cidr| Val::Cidr(cidr.masked().into()))),
    run("string({ip|cidr}) -> string", convert::to_text),
];

/// Named formats. [`rows`] adds a function for each of [`FORMATS`].
const SINCE_1_32: &[Row] = &[
    run("format.named(string) -> optional<format>", formats::named),
    run("<format>.validate(string) -> optional<list<string>>", formats::validate),
];

/// Optionals and lists: version 2 of the optionals of cel-go, which came with its 0.23.
const SINCE_1_33: &[Row] = &[
    run("list<A>.first() -> optional<A>", optional::first),
    run("list<A>.last() -> optional<A>", optional::last),
    run("optional.unwrap(list<optional<A>>) -> list<A>", optional::unwrap),
    run("list<optional<A>>.unwrapOpt() -> list<A>", optional::unwrap),
];

/// Semantic versions.
const SINCE_1_34: &[Row] = &[
    run("semver(string{|, bool}) -> semver", semver::semver),
    run("isSemver(string{|, bool}) -> bool", semver::is_semver),
    run("semver.isGreaterThan(semver) -> bool", compare::is_greater_than),
    run("semver.isLessThan(semver) -> bool", compare::is_less_than),
    run("semver.compareTo(semver) -> int", compare::compare_to),
    run("semver.major() -> int", |_, values| semver::number(values, 0)),
    run("semver.minor() -> int", |_, values| semver::number(values, 1)),
    run("semver.patch() -> int", |_, values| semver::number(values, 2)),
];

/// Lists v3.
const SINCE_1_35: &[Row] = &[
    run("list<A>.slice(int, int) -> list<A>", lists::slice),
    ("list<list<A>>.flatten() -> list<A>", Means::Unguarded(lists::flatten)),
    run("list<dyn>.flatten(int) -> list<dyn>", lists::flatten),
    run("list<C>.sort() -> list<C>", lists::sort),
    run("lists.range(int) -> list<int>", lists::range),
    run("list<A>.reverse() -> list<A>", lists::reverse),
    run("list<A>.distinct() -> list<A>", lists::distinct),
];

/// Rows of this crate, which no server has: lists of quantities have a sum and extremes, as lists of numbers have. They
/// exist for the values of parameters only, which no server evaluates.
const OURS: &[Row] = &[
    run("list<quantity>.sum() -> quantity", quantity::sum),
    run("list<quantity>.max() -> quantity", quantity::max),
    run("list<quantity>.min() -> quantity", quantity::min),
];

/// All rows of servers, by the first minor version that has them.
const BY_VERSION: [(u32, &[Row]); 6] =
    [(0, ROWS), (31, SINCE_1_31), (32, SINCE_1_32), (33, SINCE_1_33), (34, SINCE_1_34), (35, SINCE_1_35)];

/// Letters for several types, with one row for each type.
const CLASSES: [(&str, &[&str]); 4] = [
    ("N", &["double", "int", "uint"]),
    // Two types with an order between them.
    (
        "T",
        &[
            "bool, bool",
            "int, {int|double|uint}",
            "uint, {uint|double|int}",
            "double, {double|int|uint}",
            "string, string",
            "bytes, bytes",
            "timestamp, timestamp",
            "duration, duration",
        ],
    ),
    // Types with an order in lists.
    ("C", &["int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"]),
    // Types with a sum.
    ("S", &["int", "uint", "double", "duration"]),
];

/// The names of types in signatures.
const TYPES: [(&str, Type); 17] = [
    ("dyn", Type::Dyn),
    ("bool", Type::Bool),
    ("int", Type::Int),
    ("uint", Type::Uint),
    ("double", Type::Double),
    ("string", Type::Text),
    ("bytes", Type::Bytes),
    ("timestamp", Type::Timestamp),
    ("duration", Type::Duration),
    ("type", Type::Meta),
    ("quantity", Type::Opaque(Opaque::Quantity)),
    ("url", Type::Opaque(Opaque::Url)),
    ("ip", Type::Opaque(Opaque::Ip)),
    ("cidr", Type::Opaque(Opaque::Cidr)),
    ("semver", Type::Opaque(Opaque::Semver)),
    ("format", Type::Opaque(Opaque::Format)),
    ("A", Type::Parameter(0)),
];

static TABLE: LazyLock<HashMap<String, Vec<Overload>>> = LazyLock::new(|| {
    let mut table: HashMap<String, Vec<Overload>> = HashMap::new();
    let ours = OURS.iter().map(|(signature, means)| (0, Cow::Borrowed(*signature), *means, true));
    // Ours come last, so that the first fitting row is that of the server.
    for (since, signature, means, is_ours) in rows().map(|(since, row, means)| (since, row, means, false)).chain(ours) {
        for signature in expanded(&signature) {
            // A test checks that every row is readable.
            if let Some((name, overload)) = read(&signature, means) {
                table.entry(name).or_default().push(Overload { since, is_ours, ..overload });
            }
        }
    }
    table
});

fn rows() -> impl Iterator<Item = (u32, Cow<'static, str>, Means)> {
    let formats = FORMATS
        .iter()
        .map(|format| (32, Cow::Owned(format!("format.{}() -> format", format.name)), Means::Format(format)));
    let rows = BY_VERSION.into_iter().flat_map(|(since, rows)| rows.iter().map(move |row| (since, row)));
    rows.map(|(since, (signature, means))| (since, Cow::Borrowed(*signature), *means)).chain(formats)
}

/// The functions that an expression may call.
#[derive(Clone, Copy, Default)]
pub(super) struct Scope {
    pub(super) dialect: Dialect,
    /// Whether it may also call those of [`OURS`].
    pub(super) has_ours: bool,
}

/// The overloads of a function; none if the function does not exist in this scope.
pub(super) fn overloads(function: &str, scope: Scope) -> impl Iterator<Item = &'static Overload> + use<> {
    let overloads = TABLE.get(function).map_or(&[][..], Vec::as_slice);
    let is_there =
        move |overload: &&Overload| scope.dialect.is_since(overload.since) && (scope.has_ours || !overload.is_ours);
    overloads.iter().filter(is_there)
}

/// The first minor version with a function, if some version has it.
pub(super) fn since(function: &str) -> Option<u32> {
    TABLE.get(function)?.iter().map(|overload| overload.since).min()
}

/// The names of all functions.
pub(super) fn functions() -> impl Iterator<Item = &'static str> {
    TABLE.keys().map(String::as_str)
}

/// The signatures for each of the alternatives in braces, and for each type of a letter.
fn expanded(signature: &str) -> Vec<String> {
    if let Some((before, rest)) = signature.split_once('{')
        && let Some((alternatives, after)) = rest.split_once('}')
    {
        return alternatives.split('|').flat_map(|one| expanded(&format!("{before}{one}{after}"))).collect();
    }
    let words: Vec<&str> = words(signature).collect();
    let Some((letter, types)) = CLASSES.into_iter().find(|(letter, _)| words.contains(letter)) else {
        return vec![signature.to_owned()];
    };
    let with = |of: &str| words.iter().map(|word| if *word == letter { of } else { word }).collect::<String>();
    types.iter().flat_map(|of| expanded(&with(of))).collect()
}

/// The names in a signature, and the text between them.
fn words(signature: &str) -> impl Iterator<Item = &str> {
    let mut rest = signature;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| is_name(c) != is_name(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at_checked(end)?;
        rest = after;
        Some(word)
    })
}

fn read(signature: &str, means: Means) -> Option<(String, Overload)> {
    let (call, gives) = signature.split_once(" -> ")?;
    let (function, arguments) = call.strip_suffix(')')?.rsplit_once('(')?;
    let (target, name) = target(function);
    let mut takes: Vec<Type> = target.into_iter().collect();
    for argument in split(arguments) {
        takes.push(type_of(argument)?);
    }
    let parameters = ["A", "B"].into_iter().filter(|letter| words(signature).any(|word| word == *letter)).count();
    let overload = Overload {
        is_member: function.len() != name.len(),
        takes,
        gives: type_of(gives)?,
        parameters,
        means,
        since: 0,
        is_ours: false,
    };
    Some((name.to_owned(), overload))
}

/// The type of the target of a member, and its name. The text before a dot may also be part of the name of a global
/// function (`optional.of`, `format.uri`). It counts as such unless it is a type. Types that are also such a prefix are
/// written `<ip>`.
fn target(function: &str) -> (Option<Type>, &str) {
    const PREFIXES: [&str; 6] = ["optional", "lists", "sets", "strings", "ip", "format"];
    match function.rsplit_once('.') {
        Some((target, name)) if !PREFIXES.contains(&target) => {
            let bare = target.strip_prefix('<').and_then(|bare| bare.strip_suffix('>')).unwrap_or(target);
            (type_of(bare), name)
        }
        _ => (None, function),
    }
}

fn type_of(text: &str) -> Option<Type> {
    if let Some((_, found)) = TYPES.iter().find(|(name, _)| *name == text) {
        return Some(found.clone());
    }
    if text == "B" {
        return Some(Type::Parameter(1));
    }
    let (name, inner) = text.strip_suffix('>')?.split_once('<')?;
    let mut inner = split(inner).into_iter().map(type_of);
    let first = inner.next()??;
    match name {
        "list" => Some(Type::list(first)),
        "optional" => Some(Type::optional(first)),
        "map" => Some(Type::map(first, inner.next()??)),
        _ => None,
    }
}

/// The parts between commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(move |c: char| {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_readable() {
        let ours = OURS.iter().map(|(signature, means)| (0, Cow::Borrowed(*signature), *means));
        for (_, signature, means) in rows().chain(ours) {
            for signature in expanded(&signature) {
                let (name, overload) = read(&signature, means).expect(&signature);
                let dots = signature.split('(').next().expect("a name").contains('.');
                assert_eq!(overload.is_member, dots && !name.contains('.'), "{signature}: {name}");
                let names_parameter = |of: &Type| format!("{of:?}").contains("Parameter(1)");
                assert!(overload.parameters == 2 || !overload.takes.iter().any(names_parameter), "{signature}");
                assert_eq!(overload.takes.len(), {
                    let arguments = signature.split_once('(').expect("(").1.rsplit_once(')').expect(")").0;
                    split(arguments).len() + usize::from(overload.is_member)
                });
            }
        }
    }

    #[test]
    fn letters_and_braces_stand_for_several_rows() {
        assert_eq!(
            expanded("list.join({|string}) -> string"),
            ["list.join() -> string", "list.join(string) -> string"]
        );
        assert_eq!(expanded("_<_(T) -> bool")[1], "_<_(int, int) -> bool");
        assert_eq!(expanded("_+_(N, N) -> N").len(), 3);
        assert_eq!(expanded("list<C>.max() -> C").len(), 8);
        assert_eq!(expanded("list<S>.sum() -> S")[3], "list<duration>.sum() -> duration");
    }
}
