//! The rules for `template.pod` and `template.share` that a schema cannot express: those of the API server
//! (`pkg/apis/core/validation`), and what refers to the rest of the template.

use super::v1alpha1::{PodFields, Share, TaintEffect, Template, Toleration, TolerationOperator};
use std::net::IpAddr;

/// The faults of `pod`: each field, with what to write instead.
pub(super) fn faults(pod: &PodFields) -> Vec<(String, String)> {
    let at = |field: &str| format!("spec.template.pod.{field}");
    let mut found = Vec::new();
    if pod.share_process_namespace == Some(false) {
        found.push((at("shareProcessNamespace"), "write `true`, or leave it out".to_owned()));
    }
    // As on current servers, an address of IPv4 is not written as one of IPv6.
    let is_mapped = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
    let is_ip = |text: &String| text.parse().is_ok_and(|ip| !is_mapped(ip));
    let not_ip = |text: &String| format!("`{text}` is no IP address");
    let aliases = pod.host_aliases.iter().enumerate().filter(|(_, alias)| !is_ip(&alias.ip));
    found.extend(aliases.map(|(index, alias)| (at(&format!("hostAliases[{index}].ip")), not_ip(&alias.ip))));
    if let Some(dns) = &pod.dns_config {
        let servers = dns.nameservers.iter().enumerate().filter(|(_, server)| !is_ip(server));
        found.extend(servers.map(|(index, server)| (at(&format!("dnsConfig.nameservers[{index}]")), not_ip(server))));
        found.extend(repeated(&dns.nameservers).map(|index| twice(at(&format!("dnsConfig.nameservers[{index}]")))));
        found.extend(repeated(&dns.searches).map(|index| twice(at(&format!("dnsConfig.searches[{index}]")))));
        let names: Vec<&String> = dns.options.iter().map(|option| &option.name).collect();
        found.extend(repeated(&names).map(|index| twice(at(&format!("dnsConfig.options[{index}].name")))));
        if dns.searches.join(" ").len() > 256 {
            found.push((at("dnsConfig.searches"), "they have more than 256 characters together".to_owned()));
        }
    }
    found.extend(repeated(&pod.host_aliases).map(|index| twice(at(&format!("hostAliases[{index}]")))));
    found.extend(repeated(&pod.tolerations).map(|index| twice(at(&format!("tolerations[{index}]")))));
    for (index, toleration) in pod.tolerations.iter().enumerate() {
        let wrong = wrong(toleration);
        found.extend(wrong.map(|(field, why)| (at(&format!("tolerations[{index}].{field}")), why.to_owned())));
    }
    found
}

/// The faults of the entries of `share` in `template`.
pub(super) fn share_faults(template: &Template) -> Vec<(String, String)> {
    let is_there = |name: &str| {
        template.all_containers().any(|(_, container)| container.get("name").is_some_and(|own| own == name))
    };
    let mut found = Vec::new();
    for (index, share) in template.share.iter().enumerate() {
        let at = format!("spec.template.share[{index}]");
        if !is_there(&share.to) {
            found.push((format!("{at}.to"), format!("the template has no container `{}`", share.to)));
        }
        if share.volume_mounts.is_empty() && share.env.is_empty() {
            found.push((at, "name some `volumeMounts` or `env`".to_owned()));
            continue;
        }
        let differs = |other: &Share| {
            other.to == share.to
                && other.from == share.from
                && other.read_only.unwrap_or(true) != share.read_only.unwrap_or(true)
                && other.volume_mounts.iter().any(|glob| share.volume_mounts.contains(glob))
        };
        if let Some(other) = template.share[..index].iter().position(differs) {
            found.push((
                format!("{at}.readOnly"),
                format!("`share[{other}]` gives a mount of these with another `readOnly`"),
            ));
        }
    }
    found
}

/// The field of `toleration` that the server would refuse, and why.
fn wrong(toleration: &Toleration) -> Option<(&'static str, &'static str)> {
    let Toleration { key, operator, value, effect, toleration_seconds } = toleration;
    let exists = *operator == Some(TolerationOperator::Exists);
    if key.is_none() && !exists {
        return Some(("operator", "without a key it is `Exists`"));
    }
    if exists && value.as_ref().is_some_and(|value| !value.is_empty()) {
        return Some(("value", "with `operator: Exists` it is left out"));
    }
    let is_limited = toleration_seconds.is_some() && *effect != Some(TaintEffect::NoExecute);
    is_limited.then_some(("effect", "with `tolerationSeconds` it is `NoExecute`"))
}

/// The indexes of the items that are there before.
fn repeated<T: PartialEq>(items: &[T]) -> impl Iterator<Item = usize> {
    (0..items.len()).filter(|&index| items[..index].contains(&items[index]))
}

fn twice(field: String) -> (String, String) {
    (field, "it is there before".to_owned())
}
