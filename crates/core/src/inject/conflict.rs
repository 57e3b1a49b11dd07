//! Conflicts: of a template with a workload, and of two templates with each other.

use super::Template;
use super::obstacle::Conflict;
use super::part::ENV;
use super::pod::{Network, OwnContainer, Pod};
use super::tables::{Entries, INIT_CONTAINERS, INNER, LISTS, List, MAPS, Scope, has_volume};
use super::{equal, fit, join, needs, unmet, value};
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::pod_security::Standard;
use crate::api::v1alpha1::{RawObject, Share};
use serde_json::Value;
use std::fmt;

/// The pairs of `templates` that contradict each other.
pub(crate) fn collisions(templates: &[&Template], network: Network) -> Vec<(usize, usize, Conflict)> {
    let pairs = (0..templates.len()).flat_map(|first| (first + 1..templates.len()).map(move |second| (first, second)));
    pairs
        .filter_map(|(first, second)| {
            let mut pair = [templates[first], templates[second]];
            pair.sort_by(|one, other| one.policy.cmp(&other.policy));
            Some((first, second, collision(pair[0], pair[1], network)?))
        })
        .collect()
}

/// The first thing that `template` would change in `pod` or lacks there. `matching` are the templates of all policies
/// that match.
pub(super) fn check(
    pod: &Pod<'_>,
    template: &Template,
    matching: &[&Template],
    standard: Standard,
) -> Result<(), Conflict> {
    let own = pod.own(template, matching)?;
    let taken = || {
        let mut items = LISTS.iter().flat_map(|list| (list.items)(&template.spec).iter().map(move |item| (list, item)));
        items
            .find_map(|(list, item)| name_conflict(pod, list, item, template))
            .or_else(|| entry_conflict(pod, template))
            .or_else(|| own.iter().find_map(|own| inner_conflict(own, template)))
            .or_else(|| host_port_conflict(pod, template))
            .map(|message| Conflict { code: Code::NameConflict, message })
    };
    let conflict = unmet::label_of_jobs(pod, template)
        .or_else(taken)
        .or_else(|| own.iter().find_map(|own| join::conflict(own, template)))
        .or_else(|| fit::conflict(pod, template, standard))
        .or_else(|| missing_volume(pod, template))
        .or_else(|| own.iter().find_map(|own| mount_conflict(own, template)))
        .or_else(|| unmet::first(pod, template, standard));
    conflict.map_or(Ok(()), Err)
}

/// A label or annotation that the pod has with another value. The message has no values, because annotations may hold
/// secrets.
fn entry_conflict(pod: &Pod<'_>, template: &Template) -> Option<String> {
    let differs = |map: &'static Entries| {
        let mut entries = map.of(&template.spec);
        entries
            .find(|(key, value)| pod.entry(map, key).is_some_and(|there| there != value.as_str()))
            .map(|(key, _)| key)
    };
    let (map, key) = MAPS.iter().find_map(|map| Some((map, differs(map)?)))?;
    Some(format!("{} `{key}` of the pod exists with another value", map.noun))
}

/// An item that `template` adds to a user's container, which has it with other content.
fn inner_conflict(own: &OwnContainer<'_>, template: &Template) -> Option<String> {
    for inner in &INNER {
        for item in (inner.items)(&template.spec) {
            let key = (inner.key)(item);
            if inner.field == ENV && template.part(&key).is_some() {
                continue;
            }
            let Some(there) = own.find(inner, &key) else { continue };
            if let Some(difference) = equal::difference(item, there, inner.fields) {
                let (noun, list, name) = (inner.noun, own.list.noun, own.name);
                return Some(format!("{noun} `{key}` of {list} `{name}` exists with another `{difference}`"));
            }
        }
    }
    None
}

/// A mount that the API server rejects in a user's container, because of another field of the container.
fn mount_conflict(own: &OwnContainer<'_>, template: &Template) -> Option<Conflict> {
    let mounts = INNER.iter().filter(|inner| inner.field == VOLUME_MOUNTS);
    let added = mounts.flat_map(|inner| {
        let items = (inner.items)(&template.spec).iter();
        items.filter(|item| own.find(inner, &(inner.key)(item)).is_none())
    });
    let conflict = |what: String| {
        let message = format!("{what} of {} `{}`", own.list.noun, own.name);
        Some(Conflict { code: Code::PodFieldMismatch, message })
    };
    for mount in added {
        let (name, path) = (value::text(mount, "name"), value::text(mount, "mountPath"));
        for device in value::objects(own.item(), &["volumeDevices"]) {
            if value::text(device, "name") == name || value::text(device, "devicePath") == path {
                return conflict(format!("mount `{path}` of volume `{name}` is a device already, in `volumeDevices`"));
            }
        }
        let both = |list: &'static str| {
            let ours = INNER.iter().filter(|inner| inner.field == list).flat_map(|inner| (inner.items)(&template.spec));
            ours.chain(value::objects(own.item(), &[list])).collect()
        };
        if let Some(variable) = needs::unset(mount, both).first() {
            let (list, name) = (own.list.noun, own.name);
            let message = format!("mount `{path}` with `subPathExpr` needs variable `{variable}` in {list} `{name}`");
            return Some(Conflict { code: Code::NotStartable, message });
        }
        let is_privileged = value::at(own.item(), PRIVILEGED).is_some_and(|value| *value == true);
        if value::text(mount, PROPAGATION) == BIDIRECTIONAL && !is_privileged {
            return conflict(format!(
                "mount `{path}` with `mountPropagation: Bidirectional` needs `securityContext.privileged: true`"
            ));
        }
    }
    None
}

/// The list of a container's mounts.
pub(crate) const VOLUME_MOUNTS: &str = "volumeMounts";
pub(crate) const PRIVILEGED: &[&str] = &["securityContext", "privileged"];
/// The field for the propagation of mounts between a container and its node.
pub(crate) const PROPAGATION: &str = "mountPropagation";
/// The propagation that needs a privileged container.
pub(crate) const BIDIRECTIONAL: &str = "Bidirectional";

fn name_conflict(pod: &Pod<'_>, list: &List, item: &RawObject, template: &Template) -> Option<String> {
    let (name, noun) = (list.key_of(item), list.noun);
    if list.scope == Scope::Volumes && pod.claims(name) {
        return Some(format!("{noun} `{name}` exists as a volume claim template"));
    }
    for other in list.scope() {
        for there in pod.items(other).filter(|there| other.key_of(there) == name) {
            if !other.is(list) {
                let article = article(noun);
                return Some(format!("{} `{name}` exists, the template has {article} of that name", other.noun));
            }
            if let Some(difference) = equal::difference(item, there, list.fields) {
                let difference = difference.described("template", template.shows_values());
                let overlay = template.told_of_overlay((pod.workload, list), there, &difference);
                return Some(overlay.unwrap_or_else(|| format!("{noun} `{name}` exists with {difference}")));
            }
        }
    }
    None
}

/// `noun` with its article.
pub(crate) fn article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {noun}")
}

fn host_port_conflict(pod: &Pod<'_>, template: &Template) -> Option<String> {
    if pod.network() == Network::Host
        && let Some(port) = own_clash(template)
    {
        let port = told_port(&port, template.shows_values());
        return Some(format!(
            "{port}, which is a container port of the template, would be there twice: the pod sets `hostNetwork: true`"
        ));
    }
    // Without those of the template itself, because they are equal or conflicted by name before.
    let is_own = |there: &Running<'_>| running(template).any(|own| own.name() == there.name());
    let all = container_lists().flat_map(|list| pod.items(list).map(move |item| Running { list, item }));
    let theirs: Vec<Running<'_>> = all.filter(|there| !is_own(there)).collect();
    for own in running(template) {
        for there in &theirs {
            if let Some(port) = shared_host_port(&own, there, pod.network()) {
                let port = told_port(&port, template.shows_values());
                return Some(format!("{port} of the template's {own} is used by {there}"));
            }
        }
    }
    None
}

/// A port that two containers of one template share if container ports become host ports.
pub(crate) fn own_clash(template: &Template) -> Option<String> {
    let all: Vec<_> = running(template).collect();
    for (index, one) in all.iter().enumerate() {
        let others = all[index + 1..].iter().filter(|other| one.meets(other));
        let others: Vec<_> = others.flat_map(|other| other.host_ports(Network::Host)).collect();
        let own: Vec<_> = one.host_ports(Network::Host).collect();
        for (at, port) in own.iter().enumerate() {
            if own[at + 1..].iter().chain(&others).any(|other| port.overlaps(other)) {
                return Some(port.to_string());
            }
        }
    }
    None
}

fn missing_volume(pod: &Pod<'_>, template: &Template) -> Option<Conflict> {
    let by_containers = running(template).flat_map(|container| {
        let who = container.to_string();
        container.volumes().map(|name| (who.clone(), name.to_owned())).collect::<Vec<_>>()
    });
    let mounts = template.spec.volume_mounts.iter().filter_map(|mount| mount.get("name")?.as_str());
    let by_mounts = mounts.map(|name| ("the template".to_owned(), name.to_owned()));
    let is_missing = |name: &str| !has_volume(&template.spec, name) && !pod.has_volume(name);
    let (who, name) = by_containers.chain(by_mounts).find(|(_, name)| is_missing(name))?;
    let message = format!("{who} mounts volume `{name}`, which neither the template nor the workload has");
    Some(Conflict { code: Code::VolumeMissing, message })
}

/// The first contradiction between `one` and `other`, which come in the order of their names.
fn collision(one: &Template, other: &Template, network: Network) -> Option<Conflict> {
    let message = name_collision(one, other)
        .or_else(|| entry_collision(one, other))
        .or_else(|| inner_collision(one, other))
        .or_else(|| fit::collision(one, other))
        .or_else(|| host_port_collision(one, other, network))?;
    let message = format!("policies `{}` and `{}` {message}", one.policy, other.policy);
    Some(Conflict { code: Code::PolicyConflict, message })
}

fn name_collision(one: &Template, other: &Template) -> Option<String> {
    let shows_values = one.shows_values() && other.shows_values();
    for list in &LISTS {
        for item in (list.items)(&one.spec) {
            let name = list.key_of(item);
            for rival in list.scope() {
                let Some(there) = (rival.items)(&other.spec).iter().find(|there| rival.key_of(there) == name) else {
                    continue;
                };
                if !rival.is(list) {
                    return Some(format!(
                        "add `{name}`, the first as {}, the second as {}",
                        article(list.noun),
                        article(rival.noun)
                    ));
                }
                if let Some(difference) = equal::mutual_difference(item, there, list.fields) {
                    if !shows_values {
                        return Some(format!("add {} `{name}` with another `{}`", list.noun, difference.fields()));
                    }
                    let values = difference.told().map(|(wanted, actual)| format!(": {wanted} and {actual}"));
                    return Some(format!(
                        "add {} `{name}` with another `{difference}`{}",
                        list.noun,
                        values.unwrap_or_default()
                    ));
                }
                let shares = |template: &Template| -> Vec<Share> {
                    template.spec.share.iter().filter(|share| share.to == name).cloned().collect()
                };
                if list.scope == Scope::Containers && shares(one) != shares(other) {
                    return Some(format!("add {} `{name}` with another `share`", list.noun));
                }
            }
        }
    }
    None
}

fn entry_collision(one: &Template, other: &Template) -> Option<String> {
    let value = |map: &Entries, key: &str| map.of(&other.spec).find(|(there, _)| *there == key).map(|(_, value)| value);
    let differs = |map: &'static Entries| {
        let mut entries = map.of(&one.spec);
        entries.find(|(key, wanted)| value(map, key).is_some_and(|there| there != *wanted)).map(|(key, _)| key)
    };
    let (map, key) = MAPS.iter().find_map(|map| Some((map, differs(map)?)))?;
    Some(format!("add {} `{key}` with different values", map.noun))
}

/// An item that both add to the user's containers with different content. The containers are unknown here, unless both
/// templates name theirs.
fn inner_collision(one: &Template, other: &Template) -> Option<String> {
    if !may_meet(&one.spec.app_containers, &other.spec.app_containers) {
        return None;
    }
    for inner in &INNER {
        for item in (inner.items)(&one.spec) {
            let key = (inner.key)(item);
            let Some(there) = (inner.items)(&other.spec).iter().find(|there| (inner.key)(there) == key) else {
                continue;
            };
            match join::collision(one, other, &key).filter(|_| inner.field == ENV) {
                Some(None) => continue,
                Some(different) => return different,
                None => {}
            }
            if let Some(difference) = equal::mutual_difference(item, there, inner.fields) {
                return Some(format!("add {} `{key}` with another `{difference}`", inner.noun));
            }
        }
    }
    None
}

/// False if and only if no container can be in both lists of names and globs; an empty list stands for all.
fn may_meet(one: &[String], other: &[String]) -> bool {
    let is_name = |glob: &String| !glob.contains(['*', '?']);
    let are_names = one.iter().chain(other).all(is_name);
    one.is_empty() || other.is_empty() || !are_names || one.iter().any(|name| other.contains(name))
}

fn host_port_collision(one: &Template, other: &Template, network: Network) -> Option<String> {
    for own in running(one).filter(|own| own.host_ports(network).next().is_some()) {
        for there in running(other).filter(|there| there.name() != own.name()) {
            if let Some(port) = shared_host_port(&own, &there, network) {
                let port = told_port(&port, one.shows_values() && other.shows_values());
                return Some(format!("both use {port}, in {own} and {there}"));
            }
        }
    }
    None
}

/// A container or init container.
pub(crate) struct Running<'a> {
    list: &'static List,
    item: &'a RawObject,
}

/// The part of a pod's life in which a container runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// An init container: one at a time, and gone before the containers start.
    Passing,
    /// A container.
    Main,
    /// A native sidecar: from its turn among the init containers to the end.
    Whole,
}

fn container_lists() -> impl Iterator<Item = &'static List> {
    LISTS.iter().filter(|list| list.scope == Scope::Containers)
}

pub(crate) fn running(template: &Template) -> impl Iterator<Item = Running<'_>> {
    container_lists().flat_map(|list| (list.items)(&template.spec).iter().map(move |item| Running { list, item }))
}

impl Running<'_> {
    pub(crate) fn name(&self) -> &str {
        self.list.key_of(self.item)
    }

    /// The phase in which it runs.
    pub(crate) fn phase(&self) -> Phase {
        match (self.list.field == INIT_CONTAINERS, is_native_sidecar(self.item)) {
            (false, _) => Phase::Main,
            (true, false) => Phase::Passing,
            (true, true) => Phase::Whole,
        }
    }

    /// True if and only if both run at the same time.
    fn meets(&self, other: &Running<'_>) -> bool {
        match (self.phase(), other.phase()) {
            (Phase::Whole, _) | (_, Phase::Whole) => true,
            (one, other) => one == Phase::Main && other == Phase::Main,
        }
    }

    /// The names of the volumes that it mounts or uses as devices.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = &str> {
        let lists = ["volumeMounts", "volumeDevices"].into_iter();
        lists.flat_map(|list| value::objects(self.item, &[list])).filter_map(|mount| mount.get("name")?.as_str())
    }

    pub(crate) fn host_ports(&self, network: Network) -> impl Iterator<Item = HostPort<'_>> {
        value::objects(self.item, &["ports"]).filter_map(move |port| {
            let number = |field| port.get(field).and_then(Value::as_u64).filter(|&number| number != 0);
            let number = match network {
                Network::Own => number("hostPort"),
                Network::Host => number("hostPort").or_else(|| number("containerPort")),
            };
            let ip = port.get("hostIP").and_then(Value::as_str).filter(|ip| !ip.is_empty()).unwrap_or(ANY_IP);
            Some(HostPort { number: number?, protocol: value::protocol(port.get("protocol")), ip })
        })
    }
}

impl fmt::Display for Running<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.list.noun, self.name())
    }
}

/// A port of the host.
#[derive(PartialEq, Eq)]
pub(crate) struct HostPort<'a> {
    pub(crate) number: u64,
    pub(crate) protocol: &'a str,
    pub(crate) ip: &'a str,
}

/// The address for all addresses, as in the scheduler.
pub(crate) const ANY_IP: &str = "0.0.0.0";

impl HostPort<'_> {
    fn overlaps(&self, other: &HostPort<'_>) -> bool {
        let ips = self.ip == other.ip || self.ip == ANY_IP || other.ip == ANY_IP;
        self.number == other.number && self.protocol == other.protocol && ips
    }
}

impl fmt::Display for HostPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            ANY_IP => write!(f, "{}/{}", self.number, self.protocol),
            ip => write!(f, "{ip}:{}/{}", self.number, self.protocol),
        }
    }
}

/// `port` for a message.
fn told_port(port: &impl fmt::Display, is_shown: bool) -> String {
    if is_shown { format!("host port {port}") } else { "a host port".to_owned() }
}

/// A host port that both containers need at the same time.
fn shared_host_port<'a>(one: &'a Running<'_>, other: &Running<'_>, network: Network) -> Option<HostPort<'a>> {
    if !one.meets(other) {
        return None;
    }
    one.host_ports(network).find(|port| other.host_ports(network).any(|there| port.overlaps(&there)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::{self, Position};
    use crate::workload::{Kind, Workload};
    use serde_json::json;

    fn template(policy: &str, spec: Value) -> Template {
        let spec: v1alpha1::Template = serde_json::from_value(spec).unwrap();
        Template::new(policy, &spec, Position::default())
    }

    fn with_port(policy: &str, port: &Value) -> Template {
        template(policy, json!({"containers": [{"name": policy, "image": "x", "ports": [port]}]}))
    }

    #[test]
    fn host_ports_clash_by_number_protocol_and_address() {
        let port =
            |ip: &str, protocol: &str| json!({"containerPort": 1, "hostPort": 80, "hostIP": ip, "protocol": protocol});
        for (one, other, clash) in [
            (port("", "TCP"), port("", ""), true),
            (port("0.0.0.0", ""), port("10.0.0.1", ""), true),
            (port("10.0.0.1", ""), port("", ""), true),
            (port("10.0.0.1", ""), port("10.0.0.1", ""), true),
            (port("10.0.0.1", ""), port("10.0.0.2", ""), false),
            (port("", "UDP"), port("", "TCP"), false),
            (port("", ""), json!({"containerPort": 80}), false),
            (port("", ""), json!({"containerPort": 1, "hostPort": 0}), false),
        ] {
            for (one, other) in [(&one, &other), (&other, &one)] {
                let (one, other) = (with_port("a", one), with_port("b", other));
                assert_eq!(!collisions(&[&one, &other], Network::Own).is_empty(), clash, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn host_ports_clash_where_two_containers_run_at_one_time() {
        let port = json!([{"containerPort": 1, "hostPort": 80}]);
        let in_phase = |policy: &str, phase| match phase {
            Phase::Main => template(policy, json!({"containers": [{"name": policy, "ports": port}]})),
            Phase::Passing => template(policy, json!({"initContainers": [{"name": policy, "ports": port}]})),
            Phase::Whole => template(
                policy,
                json!({"initContainers": [{"name": policy, "ports": port, "restartPolicy": "Always"}]}),
            ),
        };
        for (one, other, clash) in [
            (Phase::Main, Phase::Main, true),
            (Phase::Passing, Phase::Passing, false),
            (Phase::Passing, Phase::Main, false),
            (Phase::Main, Phase::Passing, false),
            (Phase::Whole, Phase::Passing, true),
            (Phase::Main, Phase::Whole, true),
            (Phase::Whole, Phase::Whole, true),
        ] {
            assert_eq!(!collisions(&[&in_phase("a", one), &in_phase("b", other)], Network::Own).is_empty(), clash);
        }
    }

    #[test]
    fn on_the_hosts_network_container_ports_are_host_ports() {
        let (one, other) =
            (with_port("a", &json!({"containerPort": 80})), with_port("b", &json!({"containerPort": 80})));
        assert!(collisions(&[&one, &other], Network::Own).is_empty());
        assert_eq!(collisions(&[&one, &other], Network::Host).len(), 1);
    }

    #[test]
    fn two_policies_with_one_template_agree() {
        let spec = json!({"containers": [{"name": "x", "image": "x", "ports": [{"containerPort": 1, "hostPort": 1}]}], "volumes": [{"name": "v"}]});
        assert!(collisions(&[&template("a", spec.clone()), &template("b", spec)], Network::Own).is_empty());
    }

    #[test]
    fn no_template_is_a_rival_of_its_own() {
        let port = json!([{"containerPort": 1, "hostPort": 1}]);
        let own = template("a", json!({"containers": [{"name": "x", "ports": port}, {"name": "y", "ports": port}]}));
        let other = template("b", json!({"containers": [{"name": "z"}]}));
        assert_eq!(collisions(&[&own], Network::Own), []);
        assert_eq!(collisions(&[&own, &other], Network::Own), []);
    }

    #[test]
    fn what_two_policies_put_into_the_users_containers_collides_where_they_can_mean_the_same_one() {
        let into = |policy: &str, containers: &[&str]| {
            let env = json!([{"name": "A", "value": policy}]);
            template(policy, json!({"env": env, "appContainers": containers}))
        };
        for (one, other, meet) in [
            (&[][..], &[][..], true),
            (&[], &["web"], true),
            (&["web"], &["web"], true),
            (&["web", "db"], &["proxy", "db"], true),
            (&["web"], &["db"], false),
            (&["web*"], &["db"], true),
            (&["web"], &["d?"], true),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let found = collisions(&[&into("a", one), &into("b", other)], Network::Own);
                assert_eq!(!found.is_empty(), meet, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_claim_is_a_volume_of_a_stateful_set_alone() {
        let claim = template("p", json!({"volumes": [{"name": "data"}]}));
        let body = json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}], "template": {"spec": {"containers": []}}}});
        let check_in = |resource| {
            let workload = Workload::new(Kind::find("apps", resource).unwrap(), body.clone());
            check(&Pod::of(&workload).unwrap(), &claim, &[&claim], Standard::NEWEST).map_err(|conflict| conflict.code)
        };
        assert_eq!(check_in("statefulsets"), Err(Code::NameConflict));
        assert_eq!(check_in("deployments"), Ok(()));
    }

    #[test]
    fn a_policy_is_reported_with_the_first_thing_in_its_way() {
        let both = template(
            "p",
            json!({"containers": [{"name": "app", "image": "b", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}]}),
        );
        let body = json!({"spec": {"containers": [{"name": "app", "image": "a"}]}});
        let workload = Workload::new(Kind::find("", "pods").unwrap(), body);
        let conflict = check(&Pod::of(&workload).unwrap(), &both, &[&both], Standard::NEWEST).unwrap_err();
        assert_eq!(conflict.code, Code::NameConflict);
        assert_eq!(conflict.to_string(), "container `app` exists with another `image`: `a` here, `b` in the template");
    }
}
