//! The resources of a container, and amounts of them, as the API server takes them.

use super::format;
use super::schema::{quoted, similar};
use admission_cel::quantity;

/// The resources of a container that have no domain.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// The beginning of the name of huge pages; their size follows.
pub(super) const HUGE_PAGES: &str = "hugepages-";
/// Quantities are counted in billionths.
pub(super) const ONE: i128 = 1_000_000_000;

/// True if and only if Kubernetes itself counts the resource, in fractions and with overcommitment.
pub(super) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Why `name` is no resource of a container.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let is_known = STANDARD.contains(&name) || name.starts_with(HUGE_PAGES);
    if !name.contains('/') && !is_known {
        let hint = match name {
            "mem" | "ram" => Some("memory"),
            "cpus" | "core" | "cores" => Some("cpu"),
            "storage" => Some("ephemeral-storage"),
            name => similar(name, STANDARD.into_iter()),
        };
        let hint = hint.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
        let message = "there is no such resource for a container; others have a domain, as in `example.com/gpu`";
        return Some(format!("{message}{hint}"));
    }
    // Because a quota of an extended resource has that name.
    let is_extended = || !name.starts_with("requests.") && format::is_key(&format!("requests.{name}"));
    let is_name = format::is_key(name) && (is_native(name) || is_extended());
    (!is_name).then(|| "must have the name of a resource, as `example.com/gpu` is one".to_owned())
}

/// Why `amount`, in billionths and as `written`, is none of the resource `name`.
pub(super) fn amount_fault(name: &str, amount: i128, written: &str) -> Option<String> {
    if amount < 0 {
        return Some("must not be negative".to_owned());
    }
    if !is_native(name) && amount % ONE != 0 {
        return Some(format!("must be a whole number, is {written}"));
    }
    let size = name.strip_prefix(HUGE_PAGES)?;
    match quantity::nanos(size) {
        Some(size) if size > 0 && size % ONE == 0 => {
            (amount % size != 0).then(|| format!("must be a multiple of the size of a page, is {written}"))
        }
        _ => Some(format!("must have a size in its name, as in `hugepages-2Mi`, not {}", quoted(size))),
    }
}
