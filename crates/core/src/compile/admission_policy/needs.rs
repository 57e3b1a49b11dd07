//! The needs of templates as CEL: [`crate::inject::needs`] in another language. Each condition is true if the pod meets
//! the need.

use super::access::{Access, Shape};
use super::cel::{all, any, list, not, quoted};
use super::delivery::Delivery;
use super::environment::{Environment as _, Variables};
use crate::api::pod_security::{
    Demand, ENFORCE, ENFORCE_VERSION, Inherited, LATEST, Level, Lifted, USER_NAMESPACES_SINCE, VERSION_PATTERN,
    WINDOWS_SINCE,
};
use crate::api::v1alpha1::{self, Place, RawObject};
use crate::inject::conflict::{self, BIDIRECTIONAL, PRIVILEGED, PROPAGATION};
use crate::inject::needs::{MAX_ANNOTATIONS, Needs, Test, Turn, Usage, VolumeKind, Want, unset};
use crate::inject::tables::{CONTAINERS, INIT_CONTAINERS, INNER, LISTS, MAPS};
use crate::inject::unmet::HOST_PROCESS;
use crate::inject::value;
use std::collections::BTreeSet;

/// The tolerance for rounding, because CEL sums resources as floating-point numbers. An excess below this fraction
/// counts as rounding. For all amounts below a terabyte, one byte is a larger fraction.
const ROUNDING: &str = "1.000000000001";

/// The conditions for all needs of the template of `delivery`.
pub(super) fn met(delivery: &Delivery<'_>, access: &Access, variables: &mut Variables) -> Vec<String> {
    let needs = delivery.template.needs();
    let mut terms: Vec<String> = needs.list.iter().map(|need| want(&need.want, access, variables)).collect();
    if delivery.is_for_host_network() && conflict::own_clash(delivery.template).is_some() {
        terms.push(not(&access.is_on_host_network()));
    }
    terms.extend(host_process(needs, delivery.is_for_host_network(), access));
    let alone = [Included { delivery, is_in: "true".to_owned() }];
    terms.extend(resources(&alone, access, variables));
    terms.push(annotations(&alone, access, variables));
    terms.extend(admitted(&needs.security, access, variables));
    terms
}

/// The conditions that only all of `parts` together can break.
pub(super) fn met_together(parts: &[Included<'_>], access: &Access, variables: &mut Variables) -> Vec<String> {
    let mut terms: Vec<String> = Vec::new();
    if parts.iter().filter(|part| !part.delivery.template.needs().usage.is_empty()).nth(1).is_some() {
        terms.extend(resources(parts, access, variables));
    }
    terms.push(annotations(parts, access, variables));
    terms
}

/// A template, and the condition that the pod gets it.
pub(super) struct Included<'a> {
    pub(super) delivery: &'a Delivery<'a>,
    pub(super) is_in: String,
}

/// The condition that the pod is as `want` says.
pub(super) fn want(want: &Want, access: &Access, variables: &mut Variables) -> String {
    match want {
        Want::Field(path, test) => field(&access.value(&access.spec, path), test),
        Want::Either(fields) => {
            any(&fields.each_ref().map(|(path, test)| field(&access.value(&access.spec, path), test)))
        }
        Want::Container(name) => {
            let lists = [CONTAINERS, INIT_CONTAINERS].map(|field| access.names(field, variables));
            any(&lists.map(|names| format!("{} in {names}", quoted(name))))
        }
        Want::FieldOf { container, path, inherits, allowed } => {
            let ok = |value: &str| format!("(type({value}) != string || {value} in {})", texts(allowed));
            let own = access.value("c", path);
            let of_pod = if *inherits { ok(&access.value(&access.spec, path)) } else { "true".to_owned() };
            let is_ok = format!("({own} != null ? {} : {of_pod})", ok(&own));
            let is_it = format!("{} == {}", access.text_in("c", "name"), quoted(container));
            let of = |field| {
                let (items, is_it) = (access.items(field), access.map_and("c", &is_it));
                format!("{items}.all(c, !({is_it}) || {is_ok})")
            };
            all(&[of(INIT_CONTAINERS), of(CONTAINERS)])
        }
        Want::Annotation { key, allowed } => {
            let (map, key) = (access.entries("annotations", variables), quoted(key));
            format!("(!({key} in {map}) || type({map}[{key}]) != string || {map}[{key}] in {})", texts(allowed))
        }
        Want::Claim(name) => {
            let is_it = access.map_and("c", &format!("{} == {}", access.text_in("c", "name"), quoted(name)));
            format!("{}.exists(c, {is_it})", access.items("resourceClaims"))
        }
        Want::Volume(name, source) => volume(name, *source, access),
        Want::Label { key, value } => selector(key, value, access, variables),
        Want::NoPod(_) => "false".to_owned(),
        Want::NotOfJobs { key, .. } => match &access.owner {
            // Another check covers the value of an existing label.
            Some(owner) if access.is_job => {
                let labels = access.entries("labels", variables);
                format!("({} in {labels} || {} == true)", quoted(key), access.value(owner, &["manualSelector"]))
            }
            _ => "true".to_owned(),
        },
    }
}

fn texts(texts: &[String]) -> String {
    list(texts.iter().map(String::as_str))
}

fn field(value: &str, test: &Test) -> String {
    match test {
        Test::OneOf(allowed) if allowed.iter().any(String::is_empty) => {
            format!("({value} == null || {value} in {})", texts(allowed))
        }
        Test::OneOf(allowed) => format!("{value} in {}", texts(allowed)),
        Test::NoneOf(refused) => format!("!({value} in {})", texts(refused)),
        Test::Is(wanted) => format!("{value} == {wanted}"),
        Test::IsNot(unwanted) => format!("{value} != {unwanted}"),
        Test::AtLeast(least, default) => format!("(type({value}) == int ? int({value}) : {default}) >= {least}"),
        Test::NotZero => format!("{value} != 0"),
        Test::Unlike(other) => {
            let other = quoted(&other.to_ascii_lowercase());
            format!("(type({value}) != string || string({value}).lowerAscii() != {other})")
        }
    }
}

fn volume(name: &str, source: VolumeKind, access: &Access) -> String {
    let is_it = access.map_and("v", &format!("{} == {}", access.text_in("v", "name"), quoted(name)));
    let has = |field: &str| format!("{} != null", access.value("f[0]", &[field]));
    let (absent, test) = match source {
        VolumeKind::Claim => ("size(f) == 0", any(&[has("persistentVolumeClaim"), has("ephemeral")])),
        VolumeKind::NoImage => ("size(f) == 0", not(&has("image"))),
        VolumeKind::NoHostPath => ("size(f) == 0", not(&has("hostPath"))),
        VolumeKind::EmptyDir => {
            let is_bare = "f[0].all(k, k == \"name\" || f[0][k] == null)".to_owned();
            ("false", all(&["size(f) != 0".to_owned(), any(&[has("emptyDir"), is_bare])]))
        }
    };
    format!("[{}.filter(v, {is_it})].all(f, {})", access.items("volumes"), any(&[absent.to_owned(), test]))
}

fn selector(key: &str, value: &str, access: &Access, variables: &mut Variables) -> String {
    let Some(owner) = &access.owner else { return "true".to_owned() };
    let labels = access.entries("labels", variables);
    let (quoted_key, value) = (quoted(key), quoted(value));
    let wanted = access.value(owner, &["selector", "matchLabels", key]);
    let requirements = access.list_at(owner, &["selector", "matchExpressions"]);
    let [operator, values] = [access.text_in("r", "operator"), access.list_in("r", "values")];
    let excludes = format!(
        "({operator} == \"DoesNotExist\" || {operator} == \"NotIn\" && {value} in {values} || {operator} == \"In\" && !({value} in \
         {values}))"
    );
    let excludes = format!("{} == {quoted_key} && {excludes}", access.text_in("r", "key"));
    format!(
        "({quoted_key} in {labels} || ({wanted} == null || {wanted} == {value}) && !{requirements}.exists(r, {}))",
        access.map_and("r", &excludes)
    )
}

fn host_process(needs: &Needs, is_for_host_network: bool, access: &Access) -> Option<String> {
    let needs_it = needs.host_process.iter().any(|(wanted, _)| *wanted == Some(true));
    if needs.host_process.is_empty() || !is_for_host_network {
        // Without that network, the pod has no HostProcess container.
        return needs_it.then(|| "false".to_owned());
    }
    let of_pod = format!("{} == true", access.value(&access.spec, HOST_PROCESS));
    let own = access.value("c", HOST_PROCESS);
    let theirs = format!("({own} != null ? {own} == true : {of_pod})");
    let same = needs.host_process.iter().map(|(wanted, _)| match wanted {
        Some(wanted) => format!("{theirs} == {wanted}"),
        None => format!("{theirs} == ({of_pod})"),
    });
    let same = all(&same.collect::<Vec<_>>());
    let guarded = match access.shape {
        Shape::Typed => same,
        Shape::Free => format!("(type(c) != map || {same})"),
    };
    let every = [INIT_CONTAINERS, CONTAINERS].map(|field| format!("{}.all(c, {guarded})", access.items(field)));
    Some(format!("({} ? {} : {})", access.is_on_host_network(), all(&every), !needs_it))
}

/// The condition that the mount of `template` fits the other fields of the container `c` of the user.
pub(super) fn mount(mount: &RawObject, template: &v1alpha1::Template, access: &Access) -> String {
    let (name, path) = (quoted(value::text(mount, "name")), quoted(value::text(mount, "mountPath")));
    let is_it = format!("{} == {name} || {} == {path}", access.text_in("d", "name"), access.text_in("d", "devicePath"));
    let devices = access.list_in("c", "volumeDevices");
    let mut terms = vec![format!("!{devices}.exists(d, {})", access.map_and("d", &format!("({is_it})")))];
    if value::text(mount, PROPAGATION) == BIDIRECTIONAL {
        terms.push(format!("{} == true", access.value("c", PRIVILEGED)));
    }
    let ours = |list: &'static str| {
        let inner = INNER.iter().filter(|inner| inner.field == list);
        inner.flat_map(|inner| (inner.items)(template)).collect()
    };
    for variable in unset(mount, ours) {
        let is_it = access.map_and("d", &format!("{} == {}", access.text_in("d", "name"), quoted(variable)));
        let there = format!("{}.exists(d, {is_it})", access.list_in("c", "env"));
        let is_open = match access.shape {
            Shape::Typed => format!("size({}) > 0", access.list_in("c", "envFrom")),
            Shape::Free => format!("{}.exists(d, type(d) == map)", access.list_in("c", "envFrom")),
        };
        terms.push(any(&[there, is_open]));
    }
    all(&terms)
}

// Resources

/// The condition that a pod with its own resources has enough for `parts`; none if they request nothing.
fn resources(parts: &[Included<'_>], access: &Access, variables: &mut Variables) -> Option<String> {
    let mut taken = Vec::new();
    for part in parts {
        for usage in &part.delivery.template.needs().usage {
            let is_new = [CONTAINERS, INIT_CONTAINERS].map(|field| access.has_no(&usage.name, field, variables));
            taken.push(Taken { usage, is_in: all(&[vec![part.is_in.clone()], is_new.to_vec()].concat()) });
        }
    }
    let bound = |field: &str, name: &str| access.value(&access.spec, &["resources", field, name]);
    let mut terms = Vec::new();
    for taken in taken.iter().filter(|taken| taken.usage.turn == Turn::Main) {
        for (name, limit) in &taken.usage.limits {
            let most = bound("limits", name);
            let is_below = format!("{} <= {} * {ROUNDING}", double(*limit), amount(&most, access));
            terms.push(any(&[not(&taken.is_in), not(&is_amount(&most, access)), is_below]));
        }
    }
    let names: BTreeSet<&String> = taken.iter().flat_map(|taken| taken.usage.requests.keys()).collect();
    for name in names {
        let (requests, limits) = (bound("requests", name), bound("limits", name));
        let most = format!(
            "({} ? {} : {} ? {} : -1.0)",
            is_amount(&requests, access),
            amount(&requests, access),
            is_amount(&limits, access),
            amount(&limits, access)
        );
        let sums = sums(&taken, name, access);
        terms.push(format!("[{most}].all(m, m < 0.0 || [{}].all(s, s <= m * {ROUNDING}))", sums.join(", ")));
    }
    if terms.is_empty() {
        return None;
    }
    let enough = variables.define("enough", &all(&terms));
    Some(match access.shape {
        Shape::Typed => format!("(!has({}.resources) || {enough})", access.spec),
        Shape::Free => format!("(type({}) != map || {enough})", access.value(&access.spec, &["resources"])),
    })
}

/// A container of a template, and the condition that the pod gets it.
struct Taken<'a> {
    usage: &'a Usage,
    is_in: String,
}

impl Taken<'_> {
    /// The request for the resource `name`, 0 if the container is not added.
    fn of(&self, name: &str) -> Option<String> {
        let amount = double(*self.usage.requests.get(name)?);
        Some(if self.is_in == "true" { amount } else { format!("({} ? {amount} : 0.0)", self.is_in) })
    }
}

/// The sums of requests for the resource `name`, one for each set of containers that run at the same time.
fn sums(taken: &[Taken<'_>], name: &str, access: &Access) -> Vec<String> {
    let of = |is_meant: &dyn Fn(Turn) -> bool| -> Vec<String> {
        taken.iter().filter(|taken| is_meant(taken.usage.turn)).filter_map(|taken| taken.of(name)).collect()
    };
    let (mains, sidecars) = (of(&|turn| turn == Turn::Main), of(&|turn| turn == Turn::Native));
    let (containers, inits) = (access.items(CONTAINERS), access.items(INIT_CONTAINERS));
    let own = |item: &str| requested(item, name, access);
    let is_native =
        |item: &str| access.map_and(item, &format!("{} == \"Always\"", access.text_in(item, "restartPolicy")));
    let total = |list: &str| format!("([0.0] + {list}).sum()");
    let own_mains = total(&format!("{containers}.map(c, {})", own("c")));
    let own_sidecars = total(&format!("{inits}.filter(c, {}).map(c, {})", is_native("c"), own("c")));
    let plus = |terms: Vec<String>| terms.join(" + ");
    let mut sums = vec![plus([vec![own_mains, own_sidecars.clone()], mains, sidecars.clone()].concat())];
    // Each of the user's init containers, together with the sidecars before it. All sidecars of templates come before
    // it.
    let before = total(&format!("{inits}.transformList(j, d, j < i && {}, {})", is_native("d"), own("d")));
    let peak = format!("([0.0] + {inits}.transformList(i, c, {} + {before})).max()", own("c"));
    sums.push(plus([vec![peak], sidecars.clone()].concat()));
    for (index, passing) in taken.iter().enumerate() {
        let Some(amount) = passing.of(name) else { continue };
        match passing.usage.turn {
            Turn::Passing(Place::Before) => {
                let earlier = taken[..index].iter().filter(|taken| taken.usage.turn == Turn::Native);
                sums.push(plus([vec![amount], earlier.filter_map(|taken| taken.of(name)).collect()].concat()));
            }
            Turn::Passing(Place::After) => {
                sums.push(plus([vec![amount, own_sidecars.clone()], sidecars.clone()].concat()));
            }
            Turn::Main | Turn::Native => {}
        }
    }
    sums
}

/// The request of the container `item` for the resource `name`, or its limit.
fn requested(item: &str, name: &str, access: &Access) -> String {
    let [request, limit] = ["requests", "limits"].map(|field| access.value(item, &["resources", field, name]));
    let either = format!("({request} != null ? {request} : {limit})");
    format!("[{either}].map(q, {} ? {} : 0.0)[0]", is_amount("q", access), amount("q", access))
}

/// The condition that `value` is an amount.
fn is_amount(value: &str, access: &Access) -> String {
    match access.shape {
        Shape::Typed => format!("{value} != null"),
        Shape::Free => format!(
            "(type({value}) == string ? isQuantity(string({value})) : type({value}) == int || type({value}) == double)"
        ),
    }
}

/// The amount `value` as a number.
fn amount(value: &str, access: &Access) -> String {
    match access.shape {
        Shape::Typed => format!("quantity({value}).asApproximateFloat()"),
        Shape::Free => {
            format!("(type({value}) == string ? quantity(string({value})).asApproximateFloat() : double({value}))")
        }
    }
}

/// `nanos` billionths as a literal.
fn double(nanos: i128) -> String {
    #[expect(clippy::cast_precision_loss, reason = "CEL has no better number for it")]
    let amount = nanos as f64 / 1e9;
    format!("{amount:?}")
}

// Annotations

/// The condition that the annotations of the pod stay within the limit.
fn annotations(parts: &[Included<'_>], access: &Access, variables: &mut Variables) -> String {
    let (map, size_of) = (access.entries("annotations", variables), size_of_entry(access));
    let there = annotation_bytes(access, variables);
    let (mut added, mut ours) = (Vec::new(), Vec::new());
    for Included { delivery, is_in } in parts {
        let (template, pointer) = (&delivery.template, access.plain_pointer);
        let weight = template.needs().weight;
        let mut sum = weight.fixed(pointer).to_string();
        let each = weight.each(pointer);
        if each > 0 {
            let lists = LISTS.iter().filter(|list| template.reaches(list)).map(|list| match access.shape {
                Shape::Typed => format!("size({})", access.items(list.field)),
                Shape::Free => format!("size({}.filter(c, type(c) == map))", access.items(list.field)),
            });
            sum = format!("{sum} + {each} * ({})", lists.collect::<Vec<_>>().join(" + "));
        }
        added.push(if is_in == "true" { format!("({sum})") } else { format!("({is_in} ? {sum} : 0)") });
        let keys = MAPS[1].of(&template.spec).map(|(key, _)| key.as_str());
        ours.push(all(&[is_in.clone(), format!("k in {}", list(keys.chain([template.marker_key.as_str()])))]));
    }
    let added = added.join(" + ");
    // Our earlier markers are replaced. This matters only close to the limit.
    let markers = format!("([0] + {map}.transformList(k, v, {}, {size_of})).sum()", any(&ours));
    let is_small =
        format!("{there} + {added} <= {MAX_ANNOTATIONS} || {there} - {markers} + {added} <= {MAX_ANNOTATIONS}");
    let lacks = match access.shape {
        Shape::Typed => access.lacks_entries("annotations"),
        Shape::Free => format!("size({map}) == 0"),
    };
    any(&[lacks, variables.define("is_small", &is_small)])
}

/// The bytes of the entry `k` with the value `v` of a map of annotations.
fn size_of_entry(access: &Access) -> &'static str {
    match access.shape {
        Shape::Typed => "size(bytes(k)) + size(bytes(v))",
        Shape::Free => "size(bytes(k)) + (type(v) == string ? size(bytes(string(v))) : 0)",
    }
}

/// The bytes of all annotations of the pod.
pub(super) fn annotation_bytes(access: &Access, variables: &mut Variables) -> String {
    let (map, size_of) = (access.entries("annotations", variables), size_of_entry(access));
    variables.define("annotation_bytes", &format!("([0] + {map}.transformList(k, v, {size_of})).sum()"))
}

// Namespaces

/// The condition that the Namespace admits the template; none if every Namespace does.
fn admitted(demands: &[Demand], access: &Access, variables: &mut Variables) -> Option<String> {
    // MutatingAdmissionPolicies are served from 1.36 on, and controls have changed only before.
    let demands: Vec<&Demand> = demands.iter().filter(|demand| demand.is_current()).collect();
    if demands.is_empty() {
        return None;
    }
    let labels = variables.namespace_labels();
    let (key, version) = (quoted(ENFORCE), quoted(ENFORCE_VERSION));
    let level = format!("{labels}[{key}]");
    let minor = format!(
        "[{labels}[?{version}].orValue(\"\")].map(v, v.matches({}) ? int(v.substring(3)) : {LATEST})[0]",
        quoted(VERSION_PATTERN)
    );
    let minor = variables.define("enforced_version", &minor);
    let broken = demands.into_iter().map(|demand| is_broken(demand, &level, &minor, access));
    let fine = format!("{level} == \"privileged\" || {}", not(&any(&broken.collect::<Vec<_>>())));
    Some(format!("(!({key} in {labels}) || {})", variables.define("is_admitted", &fine)))
}

fn is_broken(demand: &Demand, level: &str, minor: &str, access: &Access) -> String {
    let value = |path: &[&str]| access.value(&access.spec, path);
    let mut terms = Vec::new();
    if demand.level == Level::Restricted {
        terms.push(format!("{level} != \"baseline\""));
    }
    if demand.versions.start > 0 {
        terms.push(format!("{minor} >= {}", demand.versions.start));
    }
    if demand.versions.end < LATEST {
        terms.push(format!("{minor} < {}", demand.versions.end));
    }
    let in_user_namespace = format!("{minor} >= {USER_NAMESPACES_SINCE} && {} == false", value(&["hostUsers"]));
    match demand.lifted {
        Lifted::Never => {}
        Lifted::Windows => {
            terms.push(not(&format!("{minor} >= {WINDOWS_SINCE} && {} == \"windows\"", value(&["os", "name"]))))
        }
        Lifted::UserNamespace => terms.push(not(&in_user_namespace)),
        Lifted::UserNamespaceAtBaseline => terms.push(not(&format!("{level} == \"baseline\" && {in_user_namespace}"))),
    }
    if let Some((path, wanted)) = demand.inherits {
        let value = value(path);
        terms.push(not(&match wanted {
            Inherited::True => format!("{value} == true"),
            Inherited::OneOf(texts) => format!("{value} in {}", list(texts.iter().copied())),
        }));
    }
    match terms.is_empty() {
        true => "true".to_owned(),
        false => all(&terms),
    }
}
