//! Row 8 as CEL: the conflicts of a template with a workload, and of templates with each other.

use super::access::Access;
use super::cel::{all, any, list, not, quoted};
use super::delivery::Delivery;
use super::environment::{Environment as _, Variables};
use super::equal::{Comparison, Repeated};
use super::keys::has_key;
use super::leaf::Leaf;
use super::needs;
use super::own::Own;
use super::{Cel, Inexpressible};
use crate::api::v1alpha1::RawObject;
use crate::inject::conflict::{self, ANY_IP, HostPort, Phase};
use crate::inject::pod::Network;
use crate::inject::tables::{CONTAINERS, INIT_CONTAINERS, INNER, LISTS, List, MAPS, Scope, has_volume};
use std::collections::BTreeSet;
use std::ops::Range;

/// Whether the templates of both contradict each other in a pod on such a network.
pub(super) fn collide(one: &Delivery<'_>, other: &Delivery<'_>, network: Network) -> bool {
    one.meets(other) && !conflict::collisions(&[one.template, other.template], network).is_empty()
}

/// For each of `deliveries`, which come by priority, the condition that it matches and stays beside all others that
/// match: [`crate::ranking`] in another language.
pub(super) fn staying(deliveries: &[Delivery<'_>], variables: &mut Variables) -> Vec<String> {
    let mut staying: Vec<String> = Vec::new();
    let none_of = |places: Range<usize>, at: usize, conditions: &[String]| -> Vec<String> {
        let rivals = places.filter(|&other| collide(&deliveries[at], &deliveries[other], Network::Own));
        rivals.map(|other| not(&conditions[other])).collect()
    };
    let mut with = |stem: &str, condition: &str, further: Vec<String>| match further.is_empty() {
        true => condition.to_owned(),
        false => variables.define(stem, &all(&[vec![condition.to_owned()], further].concat())),
    };
    for level in deliveries.chunk_by(|one, other| one.policy.spec.priority == other.policy.spec.priority) {
        let (start, end) = (staying.len(), staying.len() + level.len());
        // Those that are not left out from above; only they leave each other out.
        let mut open = staying.clone();
        for (at, delivery) in (start..).zip(level) {
            let unbeaten = none_of(0..start, at, &staying);
            open.push(with("open", &delivery.matches, unbeaten));
        }
        for at in start..end {
            staying.push(with("stays", &open[at], none_of(start..end, at, &open)));
        }
    }
    staying
}

/// The condition that nothing in the workload conflicts with the template of `delivery`.
///
/// # Errors
/// If its template cannot be compared in CEL.
pub(super) fn fits(delivery: &Delivery<'_>, access: &Access, own: Option<&Own>, variables: &mut Variables) -> Cel {
    let mut terms: Vec<String> = access.is_well_formed(&LISTS, &MAPS).into_iter().collect();
    terms.extend(own.map(|own| own.can_be_told_apart.clone()));
    for list in &LISTS {
        for item in (list.items)(&delivery.template.spec) {
            terms.extend(name_is_free(list, item, access, variables)?);
        }
    }
    for map in &MAPS {
        for (key, value) in map.of(&delivery.template.spec) {
            let (there, key) = (access.entries(map.field, variables), quoted(key));
            let value = Leaf::of(&value.as_str().into(), variables).text()?;
            terms.push(format!("(!({key} in {there}) || {there}[{key}] == {value})"));
        }
    }
    if let Some(own) = own {
        terms.extend(inner(delivery, access, own, variables)?.iter().map(|term| variables.define("inner_fits", term)));
    }
    terms.extend(host_ports(delivery, access));
    terms.extend(volumes(delivery, access, variables).into_iter().map(|(_, is_there)| is_there));
    terms.extend(needs::met(delivery, access, variables));
    Ok(all(&terms))
}

/// The condition that the name of `item` is unused, or used for an equal item.
fn name_is_free(
    list: &'static List,
    item: &RawObject,
    access: &Access,
    variables: &mut Variables,
) -> Result<Vec<String>, Inexpressible> {
    let key = quoted(list.key_of(item));
    let mut terms = Vec::new();
    if list.scope == Scope::Volumes
        && let Some(claims) = access.claims(variables)
    {
        terms.push(format!("!({key} in {claims})"));
    }
    for other in list.scope() {
        let is_free = access.has_no(list.key_of(item), other.field, variables);
        if !other.is(list) {
            terms.push(is_free);
            continue;
        }
        let equal = Comparison::new(access, variables).fields(item, "c", list.fields, "")?;
        let items = access.items(list.field);
        let is_it = format!("{} == {key}", access.text_in("c", "name"));
        let equal = format!("{items}.all(c, !{} || {equal})", access.map_and("c", &format!("({is_it})")));
        // A variable, because it is evaluated only if the name exists.
        let equal = variables.define(&format!("equal_{}", list.field), &equal);
        terms.push(any(&[is_free, equal]));
    }
    Ok(terms)
}

/// The conditions that the user's own containers have no conflicting items.
fn inner(
    delivery: &Delivery<'_>,
    access: &Access,
    own: &Own,
    variables: &Variables,
) -> Result<Vec<String>, Inexpressible> {
    let mut equal = Vec::new();
    for inner in &INNER {
        for item in (inner.items)(&delivery.template.spec) {
            let items = access.list_in("c", inner.field);
            let is_it = has_key(inner, item, "e", access);
            let same = Comparison::new(access, variables).fields(item, "l", inner.fields, inner.field);
            let can_be_added = match inner.field {
                conflict::VOLUME_MOUNTS => needs::mount(item, &delivery.template.spec, access),
                _ => "true".to_owned(),
            };
            equal.push(Repeated { list: &items, is_it: &is_it, item: "e" }.last("l", &can_be_added, same)?);
        }
    }
    Ok(own
        .lists
        .iter()
        .map(|list| format!("{}.all(i, [{}].all(c, {}))", list.indexes, list.item("i"), all(&equal)))
        .collect())
}

/// The volumes that the template's containers and mounts name, each with the condition that the workload has it.
pub(super) fn volumes(delivery: &Delivery<'_>, access: &Access, variables: &mut Variables) -> Vec<(String, String)> {
    let spec = &delivery.template.spec;
    let containers: Vec<_> = conflict::running(delivery.template).collect();
    let by_containers = containers.iter().flat_map(|container| container.volumes());
    let by_mounts = spec.volume_mounts.iter().filter_map(|mount| mount.get("name")?.as_str());
    let needed: BTreeSet<&str> = by_containers.chain(by_mounts).filter(|name| !has_volume(spec, name)).collect();
    let mut is_there = |name: &str| {
        let mut places = vec![access.names("volumes", variables)];
        places.extend(access.claims(variables));
        any(&places.iter().map(|names| format!("{} in {names}", quoted(name))).collect::<Vec<_>>())
    };
    needed.into_iter().map(|name| (name.to_owned(), is_there(name))).collect()
}

/// The condition that no container of the workload uses one of the template's host ports at the same time.
pub(super) fn host_ports(delivery: &Delivery<'_>, access: &Access) -> Option<String> {
    let own = on(delivery, access, Network::Own);
    if !delivery.is_for_host_network() {
        return own;
    }
    let host = on(delivery, access, Network::Host)?;
    let own = own.unwrap_or_else(|| "true".to_owned());
    Some(format!("({} ? {host} : {own})", access.is_on_host_network()))
}

fn on(delivery: &Delivery<'_>, access: &Access, network: Network) -> Option<String> {
    let containers: Vec<_> = conflict::running(delivery.template).collect();
    let ports = |is_meant: fn(Phase) -> bool| -> Vec<String> {
        let meant = containers.iter().filter(|container| is_meant(container.phase()));
        meant.flat_map(|container| container.host_ports(network)).map(|port| is_taken(&port, access, network)).collect()
    };
    let names = list(containers.iter().map(|container| container.name()));
    let uses = |list: &str, is_meant: &str, ports: &[String]| {
        let is_other = format!("!({} in {names})", access.text_in("c", "name"));
        let terms =
            [is_other, is_meant.to_owned(), format!("{}.exists(p, {})", access.list_in("c", "ports"), any(ports))];
        format!("{}.exists(c, {})", access.items(list), access.map_and("c", &all(&terms)))
    };
    let always = format!("{} == \"Always\"", access.text_in("c", "restartPolicy"));
    // The ports of containers, of native sidecars, and of init containers. Only native sidecars run at the same time as
    // init containers.
    let rows = [
        (CONTAINERS, "true", ports(|phase| phase != Phase::Passing)),
        (INIT_CONTAINERS, always.as_str(), ports(|_| true)),
        (INIT_CONTAINERS, "true", ports(|phase| phase == Phase::Whole)),
    ];
    let used: Vec<String> = rows
        .iter()
        .filter(|(.., ports)| !ports.is_empty())
        .map(|(list, is_meant, ports)| uses(list, is_meant, ports))
        .collect();
    (!used.is_empty()).then(|| not(&any(&used)))
}

/// The condition that the port `p` of a container is `port`.
fn is_taken(port: &HostPort<'_>, access: &Access, network: Network) -> String {
    let host = "p.?hostPort.orValue(0)";
    let number = match network {
        Network::Own => host.to_owned(),
        Network::Host => format!("({host} != 0 ? {host} : p.?containerPort.orValue(0))"),
    };
    let protocol = access.text_in("p", "protocol");
    let protocol = match port.protocol {
        "TCP" => format!("{protocol} in [\"\", \"TCP\"]"),
        other => format!("{protocol} == {}", quoted(other)),
    };
    let mut terms = vec![format!("{number} == {}", port.number), protocol];
    if port.ip != ANY_IP {
        terms.push(format!("{} in {}", access.text_in("p", "hostIP"), list(["", ANY_IP, port.ip])));
    }
    access.map_and("p", &all(&terms))
}
