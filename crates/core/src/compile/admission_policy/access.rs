//! CEL expressions that access the parts of a workload.
//!
//! The server decodes a built-in kind into its own type. Hence lists are lists, and empty values are absent. A custom
//! resource may have any value in any place, and no expression may fail on it.

use super::cel::{any, optional, quoted};
use super::environment::{Environment, OBJECT, Variables};
use crate::api::MARKER_PREFIX;
use crate::inject::tables::{Entries, List};
use crate::workload::Kind;
use json_patch::jsonptr::Token;

/// Whether the parts of a workload have known types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A built-in kind.
    Typed,
    /// A custom resource.
    Free,
}

/// CEL expressions for the parts of a pod.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) shape: Shape,
    /// The variable with the workload: [`OBJECT`] or [`OLD`](super::environment::OLD).
    pub(super) root: &'static str,
    /// The pod as a JSON pointer.
    pub(super) pointer: String,
    /// The object with the pod's `metadata` and `spec`. In a custom resource it may be any value.
    pub(super) pod: String,
    /// The pod's `spec`, always a map.
    pub(super) spec: String,
    /// The object around the pod template, such as the `spec` of a Deployment. In a custom resource it may be any
    /// value. None for a pod.
    pub(super) owner: Option<String>,
    /// Whether the kind is a Job, or makes Jobs.
    pub(super) is_job: bool,
    /// The length of [`Self::pointer`] without escapes, in bytes.
    pub(super) plain_pointer: usize,
    /// Whether the workload is the pod itself.
    pub(super) is_pod: bool,
    /// Whether claim templates of the workload are volumes of its pods.
    pub(super) has_claims: bool,
    /// The facts about the workload that are known in advance, and that expressions need not check.
    pub(super) fresh: Option<Fresh>,
}

/// A workload that is known to have containers and metadata, but no item of the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fresh {
    /// Whether the pod has annotations.
    pub(super) has_annotations: bool,
}

impl Access {
    /// The expressions for workloads of `kind`.
    pub(super) fn of(kind: &Kind, environment: &mut dyn Environment) -> Self {
        Self::at(OBJECT, kind, environment)
    }

    /// The same for the workload in the variable `root`.
    pub(super) fn at(root: &'static str, kind: &Kind, environment: &mut dyn Environment) -> Self {
        let path = kind.pod_path.as_deref().unwrap_or_default();
        let shape = if kind.is_in_table() { Shape::Typed } else { Shape::Free };
        let mut pod = root.to_owned();
        let mut owner = None;
        for step in path {
            owner = Some(pod.clone());
            pod = match shape {
                Shape::Typed => format!("{pod}.{step}"),
                Shape::Free => {
                    let inner = optional(&pod, step);
                    environment.define("at", &format!("type({pod}) == map ? {inner}.orValue(null) : null"))
                }
            };
        }
        let spec = match shape {
            Shape::Typed => format!("{pod}.spec"),
            Shape::Free => {
                let map = format!("type({pod}) == map && type({pod}.?spec.orValue(null)) == map");
                environment.define("spec", &format!("{map} ? {pod}.spec : dyn({{}})"))
            }
        };
        Self {
            shape,
            root,
            pointer: path.iter().map(|step| format!("/{}", Token::new(step).encoded())).collect(),
            pod,
            spec,
            owner,
            is_job: kind.is_in_table() && ["jobs", "cronjobs"].contains(&kind.resource.as_str()),
            plain_pointer: path.iter().map(|step| step.len() + 1).sum(),
            is_pod: kind.is_in_table() && path.is_empty(),
            has_claims: kind.resource == "statefulsets" && kind.group == "apps",
            fresh: None,
        }
    }

    /// The condition that there is a pod whose lists are lists and whose maps are maps; none if this is always true.
    pub(super) fn is_well_formed(&self, lists: &[List], maps: &[Entries]) -> Option<String> {
        if self.shape == Shape::Typed {
            return None;
        }
        let Self { pod, spec, .. } = self;
        let is = |of: &str, field: &str, kind: &str| {
            let value = optional(of, field);
            format!("({value}.orValue(null) == null || type({value}.orValue(null)) == {kind})")
        };
        let mut terms = vec![
            format!("type({pod}) == map"),
            format!("type({pod}.?spec.orValue(null)) == map"),
            is(pod, "metadata", "map"),
        ];
        terms.extend(lists.iter().map(|list| is(spec, list.field, "list")));
        let maps: Vec<String> = maps.iter().map(|map| is(&format!("{pod}.metadata"), map.field, "map")).collect();
        terms.push(format!("({pod}.?metadata.orValue(null) == null || {})", maps.join(" && ")));
        Some(format!("({})", terms.join(" && ")))
    }

    /// The items of a list of the pod's `spec`.
    pub(super) fn items(&self, field: &str) -> String {
        let (spec, list) = (&self.spec, format!("{}.{field}", self.spec));
        match self.shape {
            // A required list is null if it is empty.
            Shape::Typed if field == "containers" => format!("({list} != null ? {list} : [])"),
            _ => self.list_in(spec, field),
        }
    }

    /// The condition that a list of the pod's `spec` is missing.
    pub(super) fn lacks(&self, field: &str) -> String {
        let list = format!("{}.{field}", self.spec);
        match self.shape {
            Shape::Typed if field == "containers" && self.fresh.is_some() => "false".to_owned(),
            Shape::Typed if field == "containers" => format!("{list} == null"),
            Shape::Typed => format!("!has({list})"),
            Shape::Free => format!("{}.?{field}.orValue(null) == null", self.spec),
        }
    }

    /// The items of the list `field` of the map `of`.
    pub(super) fn list_in(&self, of: &str, field: &str) -> String {
        let value = optional(of, field);
        match self.shape {
            Shape::Typed => format!("{value}.orValue([])"),
            Shape::Free => format!("(type({value}.orValue(null)) == list ? {value}.orValue([]) : [])"),
        }
    }

    /// The value in the map `of` at `path`; null if it is missing.
    pub(super) fn value(&self, of: &str, path: &[&str]) -> String {
        match self.shape {
            Shape::Typed => {
                let chain = path.iter().fold(of.to_owned(), |of, step| optional(&of, step));
                // Without `dyn`, the expression has the type of null.
                format!("dyn({chain}.orValue(null))")
            }
            Shape::Free => path.iter().fold(of.to_owned(), |of, step| {
                format!("(type({of}) == map ? dyn({}.orValue(null)) : dyn(null))", optional(&of, step))
            }),
        }
    }

    /// The items of the list at `path` in the map `of`.
    pub(super) fn list_at(&self, of: &str, path: &[&str]) -> String {
        let value = self.value(of, path);
        match self.shape {
            Shape::Typed => format!("({value} != null ? {value} : [])"),
            Shape::Free => format!("(type({value}) == list ? {value} : [])"),
        }
    }

    /// The text `field` of the map `of`; empty if missing.
    pub(super) fn text_in(&self, of: &str, field: &str) -> String {
        let value = optional(of, field);
        match self.shape {
            Shape::Typed => format!("{value}.orValue(\"\")"),
            Shape::Free => format!("(type({value}.orValue(null)) == string ? {value}.orValue(\"\") : \"\")"),
        }
    }

    /// The condition that `item` is a map and `term` is true.
    pub(super) fn map_and(&self, item: &str, term: &str) -> String {
        match self.shape {
            Shape::Typed => term.to_owned(),
            Shape::Free => format!("(type({item}) == map && {term})"),
        }
    }

    /// The name of `item`, a map in the list `field` of the pod's `spec`; empty if missing.
    pub(super) fn name_in(&self, item: &str, field: &str) -> String {
        match self.shape {
            // The server rejects items without a name.
            Shape::Typed if field != "imagePullSecrets" => format!("{item}.name"),
            _ => self.text_in(item, "name"),
        }
    }

    /// The names of the items of a list of the pod's `spec`, in order; empty for items without a name.
    pub(super) fn names(&self, field: &str, variables: &mut Variables) -> String {
        let items = self.items(field);
        let maps = if self.shape == Shape::Free { ".filter(c, type(c) == map)" } else { "" };
        let names = format!("{items}{maps}.map(c, {})", self.name_in("c", field));
        variables.define(&format!("names_{field}"), &names)
    }

    /// The condition that no item of a list of the pod's `spec` has the name `name`.
    pub(super) fn has_no(&self, name: &str, field: &str, variables: &mut Variables) -> String {
        if self.fresh.is_some() {
            return "true".to_owned();
        }
        let is_free = format!("!({} in {})", quoted(name), self.names(field, variables));
        match self.shape {
            // The list is nearly always missing, and this is the cheapest check.
            Shape::Typed if field != "containers" => format!("({} || {is_free})", self.lacks(field)),
            _ => is_free,
        }
    }

    /// The map `field` of the pod's metadata; empty if missing.
    pub(super) fn entries(&self, field: &str, environment: &mut dyn Environment) -> String {
        let (pod, root) = (&self.pod, self.root);
        let map = match self.shape {
            Shape::Typed if self.is_pod => format!("{root}.metadata.?{field}.orValue({{}})"),
            Shape::Typed => format!("{pod}.?metadata.?{field}.orValue({{}})"),
            Shape::Free => {
                let metadata = format!("{pod}.?metadata.orValue(null)");
                let inner = format!("{pod}.metadata.?{field}.orValue(null)");
                let is_map = format!("type({pod}) == map && type({metadata}) == map && type({inner}) == map");
                format!("{is_map} ? {pod}.metadata.{field} : dyn({{}})")
            }
        };
        environment.define(&format!("pod_{field}"), &map)
    }

    /// The condition that the pod has no metadata; none if it always has metadata.
    pub(super) fn lacks_metadata(&self) -> Option<String> {
        match self.shape {
            _ if self.is_pod || self.fresh.is_some() => None,
            Shape::Typed => Some(format!("!has({}.metadata)", self.pod)),
            Shape::Free => Some(format!("{}.?metadata.orValue(null) == null", self.pod)),
        }
    }

    /// The condition that a map of the pod's metadata is missing.
    pub(super) fn lacks_entries(&self, field: &str) -> String {
        let (pod, root) = (&self.pod, self.root);
        if let Some(fresh) = self.fresh.filter(|_| field == "annotations") {
            return (!fresh.has_annotations).to_string();
        }
        match self.shape {
            Shape::Typed if self.is_pod => format!("!has({root}.metadata.{field})"),
            Shape::Typed => format!("!{pod}.?metadata.?{field}.hasValue()"),
            Shape::Free => {
                format!("({pod}.?metadata.orValue(null) == null || {pod}.metadata.?{field}.orValue(null) == null)")
            }
        }
    }

    /// The condition that the pod has no marker: what one lists may belong to any template.
    pub(super) fn has_no_marker(&self) -> String {
        let annotations = format!("{}.metadata.annotations", self.pod);
        let is_marker = format!("k.startsWith({})", quoted(MARKER_PREFIX));
        any(&[self.lacks_entries("annotations"), format!("!{annotations}.exists(k, {is_marker})")])
    }

    /// The condition that the pod uses the network of its host.
    pub(super) fn is_on_host_network(&self) -> String {
        format!("{}.?hostNetwork.orValue(false) == true", self.spec)
    }

    /// The names of the volumes from claim templates; none if the kind has no claim templates.
    pub(super) fn claims(&self, variables: &mut Variables) -> Option<String> {
        let templates = format!("{}.spec.?volumeClaimTemplates", self.root);
        let names = format!("{templates}.orValue([]).map(c, c.metadata.?name.orValue(\"\"))");
        self.has_claims.then(|| variables.define("claims", &names))
    }
}
