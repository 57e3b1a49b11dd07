//! The needs of a template ([`super::needs`]) that a workload does not meet.

use super::needs::{FieldPath, MAX_ANNOTATIONS, Need, Test, Turn, Usage, VolumeKind, Want};
use super::obstacle::Conflict;
use super::pod::{Network, Pod};
use super::tables::{ANNOTATIONS, CONTAINERS, INIT_CONTAINERS, LABELS, LISTS, List};
use super::{Template, fit, value};
use crate::api::code::Code;
use crate::api::pod_schema::is_native_sidecar;
use crate::api::pod_security::{
    Demand, Enforced, Inherited, Level, Lifted, Standard, USER_NAMESPACES_SINCE, WINDOWS_SINCE,
};
use crate::api::v1alpha1::{Place, RawObject};
use serde_json::Value;
use std::collections::BTreeSet;

/// The first need of `template` that `pod` does not meet.
pub(super) fn first(pod: &Pod<'_>, template: &Template, standard: Standard) -> Option<Conflict> {
    let needs = template.needs();
    needs
        .list
        .iter()
        .find_map(|need| unmet(pod, need))
        .or_else(|| other_host_process(pod, template))
        .or_else(|| exceeded(pod, &[template]))
        .or_else(|| too_large(pod, &[template]))
        .or_else(|| forbidden(pod, template, standard))
}

/// A label of `template` that Kubernetes itself gives the pods of a Job, even if the pod has it already.
pub(super) fn label_of_jobs(pod: &Pod<'_>, template: &Template) -> Option<Conflict> {
    let is_meant = |need: &&Need| matches!(need.want, Want::NotOfJobs { .. });
    template.needs().list.iter().filter(is_meant).find_map(|need| unmet(pod, need))
}

fn is_true(item: &RawObject, path: &[&str]) -> bool {
    value::at(item, path).is_some_and(|value| *value == true)
}

/// The first conflict that only all `templates` together have.
pub(super) fn together(pod: &Pod<'_>, templates: &[&Template], standard: Standard) -> Option<Conflict> {
    if templates.len() < 2 {
        return None;
    }
    exceeded(pod, templates).or_else(|| too_large(pod, templates)).or_else(|| fit::together(pod, templates, standard))
}

fn unmet(pod: &Pod<'_>, need: &Need) -> Option<Conflict> {
    let but = match &need.want {
        Want::Field(path, test) => field(pod, path, test)?,
        Want::Either(fields) => {
            let holds = |(path, test): &(FieldPath, Test)| test.holds(pod.value(path));
            let told = |(path, _): &(FieldPath, Test)| {
                format!("`spec.{}: {}`", path.join("."), pod.value(path).map(plain).unwrap_or_default())
            };
            let [one, other] = fields.each_ref().map(told);
            (!fields.iter().any(holds)).then(|| format!("does not go with {one} and {other} of the pod"))?
        }
        Want::Container(name) => {
            let is_there = container(pod, name).is_some();
            (!is_there).then(|| format!("names container `{name}`, which the pod does not have"))?
        }
        Want::FieldOf { container: name, path, inherits, allowed } => {
            let own = container(pod, name).and_then(|item| value::at(item, path));
            let value = own.or_else(|| pod.value(path).filter(|_| *inherits))?.as_str().unwrap_or_default();
            let is_allowed = allowed.iter().any(|allowed| allowed == value);
            (!is_allowed).then(|| format!("does not go with `{}: {value}` of container `{name}`", path.join(".")))?
        }
        Want::Annotation { key, allowed } => {
            let value = pod.entry(ANNOTATIONS, key)?.as_str()?;
            let is_allowed = allowed.iter().any(|allowed| allowed == value);
            (!is_allowed).then(|| format!("does not go with annotation `{key}: {value}` of the pod"))?
        }
        Want::Claim(name) => {
            let mut claims = pod.value(&["resourceClaims"]).and_then(Value::as_array).into_iter().flatten();
            let is_there = claims.any(|claim| claim.get("name").is_some_and(|own| own == name));
            (!is_there).then(|| format!("names `{name}`, which is not in `spec.resourceClaims` of the pod"))?
        }
        Want::Volume(name, source) => volume(pod, name, *source)?,
        Want::Label { key, value } => selector(pod, key, value)?,
        Want::NoPod(but) => (*but).to_owned(),
        Want::NotOfJobs { key, value } => {
            let kind = &pod.workload.kind;
            let is_job = kind.is_in_table() && matches!(kind.resource.as_str(), "jobs" | "cronjobs");
            let is_manual = || pod.owner().is_some_and(|owner| is_true(owner, &["manualSelector"]));
            let is_taken = is_job && pod.entry(LABELS, key).is_none_or(|there| there != value) && !is_manual();
            is_taken.then(|| format!("is one that the pods of a {} get from Kubernetes", pod.workload.kind_name()))?
        }
    };
    Some(Conflict { code: need.code, message: format!("{} {but}", need.who) })
}

fn field(pod: &Pod<'_>, path: &[&str], test: &Test) -> Option<String> {
    let value = pod.value(path);
    if test.holds(value) {
        return None;
    }
    let path = path.join(".");
    Some(match (value, test) {
        (Some(value), _) => format!("does not go with `spec.{path}: {}` of the pod", plain(value)),
        (None, Test::AtLeast(_, default)) => {
            format!("does not go with `spec.{path}` of the pod, which is {default} by default")
        }
        (None, _) => format!("does not go with a pod that has no `spec.{path}`"),
    })
}

/// A scalar as in YAML.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn list(field: &str) -> &'static List {
    List::named(field).expect("the lists of a pod have one of containers and one of volumes")
}

fn container<'a>(pod: &Pod<'a>, name: &str) -> Option<&'a RawObject> {
    [INIT_CONTAINERS, CONTAINERS].into_iter().find_map(|field| pod.find(list(field), name))
}

fn volume(pod: &Pod<'_>, name: &str, source: VolumeKind) -> Option<String> {
    let there = pod.find(list("volumes"), name);
    let has = |field: &str| there.is_some_and(|volume| value::at(volume, &[field]).is_some());
    match source {
        // No check for existence, because it was made before.
        VolumeKind::Claim => {
            let is_claim = has("persistentVolumeClaim") || has("ephemeral");
            (there.is_some() && !is_claim).then(|| format!("names volume `{name}`, which is no claim"))
        }
        VolumeKind::NoImage => has("image").then(|| format!("names volume `{name}`, which is an image")),
        VolumeKind::NoHostPath => has("hostPath").then(|| {
            format!(
                "names volume `{name}` of the workload, which is a path of the node: the template must have it, too"
            )
        }),
        VolumeKind::EmptyDir => {
            // Because the server makes a volume without a source an empty directory.
            let is_bare =
                there.is_some_and(|volume| volume.iter().all(|(key, value)| key == "name" || value.is_null()));
            let is_empty_dir = has("emptyDir") || is_bare;
            (!is_empty_dir).then(|| format!("names volume `{name}`, and the pod has no `emptyDir` of that name"))
        }
    }
}

fn selector(pod: &Pod<'_>, key: &str, value: &str) -> Option<String> {
    if pod.entry(LABELS, key).is_some() {
        return None;
    }
    let owner = pod.owner()?;
    let wanted = value::at(owner, &["selector", "matchLabels", key]);
    if wanted.is_some_and(|wanted| wanted != value) {
        return Some("has another value than the `selector` of the workload asks for".to_owned());
    }
    let requirement = value::objects(owner, &["selector", "matchExpressions"]).find(|requirement| {
        let is_listed = || {
            requirement
                .get("values")
                .and_then(Value::as_array)
                .is_some_and(|values| values.iter().any(|own| own == value))
        };
        value::text(requirement, "key") == key
            && match value::text(requirement, "operator") {
                "DoesNotExist" => true,
                "NotIn" => is_listed(),
                "In" => !is_listed(),
                _ => false,
            }
    })?;
    Some(format!("is excluded by the `selector` of the workload, with `{}`", value::text(requirement, "operator")))
}

/// A conflict about HostProcess: in a pod of Windows all containers are HostProcess containers or none is, and they
/// need the host's network.
fn other_host_process(pod: &Pod<'_>, template: &Template) -> Option<Conflict> {
    let own = &template.needs().host_process;
    let conflict = |who: &str, but: String| {
        let message = format!("{who} is {but}");
        Some(Conflict { code: Code::PodFieldMismatch, message })
    };
    if pod.network() == Network::Own {
        let (_, who) = own.iter().find(|(wanted, _)| *wanted == Some(true))?;
        return conflict(who, "a HostProcess container, which needs `spec.hostNetwork: true` of the pod".to_owned());
    }
    let of_pod = pod.value(HOST_PROCESS).is_some_and(|value| *value == true);
    for there in [INIT_CONTAINERS, CONTAINERS].into_iter().flat_map(|field| pod.items(list(field))) {
        let theirs = value::at(there, HOST_PROCESS).map_or(of_pod, |value| *value == true);
        if let Some((_, who)) = own.iter().find(|(wanted, _)| wanted.unwrap_or(of_pod) != theirs) {
            let name = value::text(there, "name");
            let but = if theirs { "no HostProcess container" } else { "a HostProcess container" };
            return conflict(who, format!("{but}, other than container `{name}` of the pod"));
        }
    }
    None
}

/// Whether a container of Windows runs on its host.
pub(crate) const HOST_PROCESS: &[&str] = &["securityContext", "windowsOptions", "hostProcess"];

/// A resource with requests above the pod's own, in a pod with `spec.resources`.
fn exceeded(pod: &Pod<'_>, templates: &[&Template]) -> Option<Conflict> {
    let resources = pod.value(&["resources"])?.as_object()?;
    let bound = |field: &str, name: &str| {
        value::at(resources, &[field, name]).and_then(|value| Some((value, value::nanos(value)?)))
    };
    let is_new = |usage: &&Usage| container(pod, &usage.name).is_none();
    let usages: Vec<&Usage> = templates.iter().flat_map(|template| &template.needs().usage).filter(is_new).collect();
    let conflict = |message| Some(Conflict { code: Code::PodResourcesExceeded, message });
    for usage in usages.iter().filter(|usage| usage.turn == Turn::Main) {
        for (name, limit) in &usage.limits {
            if let Some((most, _)) = bound("limits", name).filter(|(_, most)| limit > most) {
                return conflict(format!(
                    "`resources.limits.{name}` of the template's container `{}` is above `spec.resources.limits.{name}: {}` of the pod",
                    usage.name,
                    plain(most)
                ));
            }
        }
    }
    let names: BTreeSet<&String> = usages.iter().flat_map(|usage| usage.requests.keys()).collect();
    for name in names {
        // Because the server derives a missing request of the pod from its containers, up to its limit.
        let (field, there) = match (bound("requests", name), bound("limits", name)) {
            (Some(there), _) => ("requests", there),
            (None, Some(there)) => ("limits", there),
            (None, None) => continue,
        };
        if requested(pod, &usages, name) > there.1 {
            return conflict(format!(
                "the containers of the pod and of the template together request more than `spec.resources.{field}.{name}: {}` of the pod",
                plain(there.0)
            ));
        }
    }
    None
}

/// The request of all containers of `pod` and of `usages` for the resource `name`, summed as on the server: over
/// containers that run at the same time.
fn requested(pod: &Pod<'_>, usages: &[&Usage], name: &str) -> i128 {
    let amount = |item: &RawObject| {
        let request = value::at(item, &["resources", "requests", name])
            .or_else(|| value::at(item, &["resources", "limits", name]));
        request.and_then(value::nanos).unwrap_or_default()
    };
    let own = |usage: &&Usage| (usage.turn == Turn::Native, usage.requests.get(name).copied().unwrap_or_default());
    let before =
        usages.iter().copied().filter(|usage| matches!(usage.turn, Turn::Native | Turn::Passing(Place::Before)));
    let after = usages.iter().copied().filter(|usage| usage.turn == Turn::Passing(Place::After));
    let theirs = pod.items(list(INIT_CONTAINERS)).map(|item| (is_native_sidecar(item), amount(item)));
    let turns = before.map(|usage| own(&usage)).chain(theirs).chain(after.map(|usage| own(&usage)));
    // An amount may be as large as the type.
    let (mut sidecars, mut peak) = (0_i128, 0);
    for (is_native, amount) in turns {
        peak = peak.max(sidecars.saturating_add(amount));
        sidecars = sidecars.saturating_add(if is_native { amount } else { 0 });
    }
    let mains = usages.iter().filter(|usage| usage.turn == Turn::Main).map(|usage| own(usage).1);
    let mains = mains.chain(pod.items(list(CONTAINERS)).map(amount)).fold(0, i128::saturating_add);
    peak.max(mains.saturating_add(sidecars))
}

/// A conflict if the annotations of the pod would be too large.
fn too_large(pod: &Pod<'_>, templates: &[&Template]) -> Option<Conflict> {
    let mut there = pod.entries(ANNOTATIONS).peekable();
    // None, because the annotations of templates alone are far below the limit.
    there.peek()?;
    // Without our earlier additions, because they are among the new ones.
    let is_ours = |key: &str| {
        templates
            .iter()
            .any(|template| template.marker_key == key || ANNOTATIONS.of(&template.spec).any(|(own, _)| own == key))
    };
    let own = there.filter(|(key, _)| !is_ours(key)).map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
    let pointer = pod.workload.pod_pointer_length();
    let added = templates.iter().map(|template| {
        let weight = template.needs().weight;
        let reached =
            LISTS.iter().filter(|list| template.reaches(list)).map(|list| pod.items(list).count()).sum::<usize>();
        weight.fixed(pointer) + weight.each(pointer) * reached
    });
    let size = own.chain(added).sum::<usize>();
    (size > MAX_ANNOTATIONS).then(|| Conflict {
        code: Code::AnnotationsTooLarge,
        message: format!("the annotations of the pod would have {size} bytes with those of the template; the server takes {MAX_ANNOTATIONS}"),
    })
}

/// A conflict with the Pod Security level of the Namespace.
fn forbidden(pod: &Pod<'_>, template: &Template, standard: Standard) -> Option<Conflict> {
    let enforced = Enforced::by(pod.workload.namespace_object.as_deref()?, standard)?;
    let demand = template.needs().security.iter().find(|demand| is_broken(pod, demand, enforced))?;
    let message = format!(
        "`{}` is against `{}` of the Pod Security Standards: namespace `{}` enforces `{}`",
        demand.field,
        demand.control,
        pod.workload.namespace(),
        enforced.level
    );
    Some(Conflict { code: Code::NamespaceForbids, message })
}

fn is_broken(pod: &Pod<'_>, demand: &Demand, enforced: Enforced) -> bool {
    let is_in_user_namespace =
        || enforced.minor >= USER_NAMESPACES_SINCE && pod.value(&["hostUsers"]).is_some_and(|value| *value == false);
    let is_lifted = || match demand.lifted {
        Lifted::Never => false,
        Lifted::Windows => {
            enforced.minor >= WINDOWS_SINCE && pod.value(&["os", "name"]).is_some_and(|name| name == "windows")
        }
        Lifted::UserNamespace => is_in_user_namespace(),
        Lifted::UserNamespaceAtBaseline => enforced.level == Level::Baseline && is_in_user_namespace(),
    };
    let is_inherited = || {
        demand.inherits.is_some_and(|(path, wanted)| {
            pod.value(path).is_some_and(|value| match wanted {
                Inherited::True => *value == true,
                Inherited::OneOf(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            })
        })
    };
    enforced.has(demand) && !is_lifted() && !is_inherited()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod_security::{ENFORCE, ENFORCE_VERSION};
    use crate::api::v1alpha1::{self, Position};
    use crate::inject;
    use crate::workload::{Kind, Workload};
    use serde_json::json;
    use std::sync::Arc;

    fn template(policy: &str, spec: Value) -> Template {
        let spec: v1alpha1::Template = serde_json::from_value(spec).unwrap();
        Template::new(policy, &spec, Position::default())
    }

    fn pod(body: Value) -> Workload {
        Workload::new(Kind::find("", "pods").unwrap(), body)
    }

    fn code(workload: &Workload, template: &Template) -> Option<Code> {
        inject::check(workload, template, &[template], Standard::NEWEST).err().map(|conflict| conflict.code)
    }

    /// The size of all annotations of `workload` with `template` in it.
    fn size(workload: &Workload, template: &Template) -> usize {
        let after = workload.patched(&inject::plan(workload, &[template], &[template], Standard::NEWEST).unwrap());
        let annotations = after["metadata"]["annotations"].as_object().unwrap();
        annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum()
    }

    #[test]
    fn annotations_stay_within_what_the_server_takes_and_nearly_all_of_it_is_used() {
        let templates = [
            json!({ "containers": [{ "name": "proxy", "image": "p" }], "volumes": [{ "name": "v" }] }),
            json!({ "env": [{ "name": "A", "value": "1" }], "metadata": { "annotations": { "a/b": "c" }, "labels": { "x": "y" } } }),
        ];
        for template in templates.map(|spec| self::template("p", spec)) {
            let with = |bytes: usize| {
                pod(
                    json!({ "metadata": { "annotations": { "k": "x".repeat(bytes) } }, "spec": { "containers": [{ "name": "app" }] } }),
                )
            };
            let (mut fits, mut is_too_much) = (0, MAX_ANNOTATIONS);
            while is_too_much - fits > 1 {
                let middle = usize::midpoint(fits, is_too_much);
                match code(&with(middle), &template) {
                    None => fits = middle,
                    Some(code) => {
                        assert_eq!(code, Code::AnnotationsTooLarge);
                        is_too_much = middle;
                    }
                }
            }
            let size = size(&with(fits), &template);
            assert!(size <= MAX_ANNOTATIONS && size > MAX_ANNOTATIONS - 1_500, "{size}");
            // A template that is injected already takes no more room.
            let after =
                pod(with(fits)
                    .patched(&inject::plan(&with(fits), &[&template], &[&template], Standard::NEWEST).unwrap()));
            assert_eq!(code(&after, &template), None);
        }
    }

    #[test]
    fn two_templates_share_the_room_for_annotations() {
        let one =
            |policy: &str| template(policy, json!({ "metadata": { "annotations": { policy: "x".repeat(30_000) } } }));
        let (one, two) = (one("a"), one("b"));
        let workload =
            pod(json!({ "metadata": { "annotations": { "k": "x".repeat(220_000) } }, "spec": { "containers": [] } }));
        assert_eq!((code(&workload, &one), code(&workload, &two)), (None, None));
        let conflict = inject::plan(&workload, &[&one, &two], &[&one, &two], Standard::NEWEST).unwrap_err();
        assert_eq!(conflict.code, Code::AnnotationsTooLarge);
    }

    #[test]
    fn the_kubelet_starts_no_root_that_must_not_be_root_on_linux_and_on_windows() {
        let of = |context: Value| {
            template("p", json!({ "containers": [{ "name": "x", "image": "x", "securityContext": context }] }))
        };
        let name = |name: &str| json!({ "windowsOptions": { "runAsUserName": name } });
        let mut both = name("ContainerAdministrator");
        both["runAsNonRoot"] = true.into();
        for (own, pod_has, expected) in [
            (json!({ "runAsUser": 0 }), json!({ "runAsNonRoot": true }), Some(Code::PodFieldMismatch)),
            (json!({ "runAsUser": 0 }), json!({ "runAsNonRoot": false }), None),
            (json!({ "runAsUser": 0 }), json!({ "runAsNonRoot": null }), None),
            (json!({ "runAsUser": 0, "runAsNonRoot": false }), json!({ "runAsNonRoot": true }), None),
            (
                json!({ "runAsUser": 0, "runAsNonRoot": null }),
                json!({ "runAsNonRoot": true }),
                Some(Code::PodFieldMismatch),
            ),
            (json!({ "runAsUser": 1 }), json!({ "runAsNonRoot": true }), None),
            (json!({}), json!({ "runAsNonRoot": true, "runAsUser": 0 }), Some(Code::PodFieldMismatch)),
            (json!({ "runAsUser": 5 }), json!({ "runAsNonRoot": true, "runAsUser": 0 }), None),
            (json!({ "runAsNonRoot": false }), json!({ "runAsNonRoot": true, "runAsUser": 0 }), None),
            (json!({}), json!({ "runAsUser": 0 }), None),
            (json!({ "runAsUser": 0, "runAsNonRoot": true }), json!({}), Some(Code::NotStartable)),
            (json!({ "runAsNonRoot": true }), json!({ "runAsUser": 0 }), Some(Code::PodFieldMismatch)),
            (json!({ "runAsNonRoot": true }), json!({ "runAsUser": 0.0 }), Some(Code::PodFieldMismatch)),
            (json!({ "runAsNonRoot": true }), json!({ "runAsUser": "0" }), None),
            (json!({ "runAsNonRoot": true }), json!({}), None),
            (json!({ "runAsNonRoot": true, "runAsUser": 1 }), json!({ "runAsUser": 0 }), None),
            (name("containeradministrator"), json!({ "runAsNonRoot": true }), Some(Code::PodFieldMismatch)),
            (name("ContainerUser"), json!({ "runAsNonRoot": true }), None),
            (json!({ "runAsNonRoot": true }), name("CONTAINERADMINISTRATOR"), Some(Code::PodFieldMismatch)),
            (json!({ "runAsNonRoot": true }), name("ContainerUser"), None),
            (both, json!({}), Some(Code::NotStartable)),
        ] {
            let workload = pod(json!({ "spec": { "containers": [], "securityContext": pod_has } }));
            assert_eq!(code(&workload, &of(own.clone())), expected, "{own} in {pod_has}");
        }
    }

    #[test]
    fn requests_add_up_as_the_server_does_it() {
        let container =
            |name: &str, cpu: &str| json!({ "name": name, "image": "i", "resources": { "requests": { "cpu": cpu } } });
        let native = |name: &str, cpu: &str| {
            let mut native = container(name, cpu);
            native["restartPolicy"] = json!("Always");
            native
        };
        let (main, passing, sidecar) = (
            json!({ "containers": [container("t", "100m")] }),
            json!({ "initContainers": [container("t", "100m")] }),
            json!({ "initContainers": [native("t", "100m")] }),
        );
        let before = v1alpha1::Position { init_containers: Place::Before, ..Position::default() };
        // The requests of the pod of containers and init containers with each of them, in thousandths.
        for (inits, containers, expected) in [
            (vec![], vec![container("a", "200m")], [300, 200, 300, 200]),
            (vec![container("i", "50m")], vec![container("a", "200m")], [300, 200, 300, 200]),
            (vec![container("i", "500m")], vec![container("a", "200m")], [500, 500, 600, 500]),
            (vec![native("s", "200m"), container("i", "300m")], vec![container("a", "100m")], [500, 500, 600, 500]),
            (vec![container("i", "500m"), native("s", "200m")], vec![container("a", "100m")], [500, 500, 600, 500]),
            (vec![native("s", "200m")], vec![container("a", "50m")], [350, 300, 350, 250]),
        ] {
            let forms = [
                (&main, Position::default()),
                (&passing, Position::default()),
                (&sidecar, Position::default()),
                (&passing, before),
            ];
            for ((spec, position), expected) in forms.into_iter().zip(expected) {
                let template = Template::new("p", &serde_json::from_value(spec.clone()).unwrap(), position);
                for (cpu, is_enough) in [(expected, true), (expected - 1, false)] {
                    let workload = pod(json!({ "spec": {
                        "resources": { "requests": { "cpu": format!("{cpu}m") } }, "containers": containers, "initContainers": inits,
                    } }));
                    let code = code(&workload, &template);
                    assert_eq!(code.is_none(), is_enough, "{cpu} {spec} {}", workload.body);
                }
            }
        }
    }

    #[test]
    fn a_level_holds_as_far_as_the_server_knows_it() {
        let of = |context: Value| json!({ "containers": [{ "name": "a", "image": "a", "securityContext": context }] });
        let engine = of(json!({ "seLinuxOptions": { "type": "container_engine_t" } }));
        let probe = json!({ "httpGet": { "host": "x", "port": 1 } });
        let probe = json!({ "containers": [{ "name": "a", "image": "a", "livenessProbe": probe }] });
        let unmasked = of(json!({ "procMount": "Unmasked" }));
        let image = json!({ "volumes": [{ "name": "v", "image": { "reference": "r" } }] });
        for (spec, level, version, first_admitting, first_forbidding) in [
            (&engine, "baseline", "latest", 31, 99),
            (&engine, "baseline", "v1.34", 31, 99),
            (&engine, "baseline", "v1.30", 99, 99),
            (&probe, "baseline", "latest", 0, 34),
            (&probe, "baseline", "v1.36", 0, 34),
            (&probe, "baseline", "v1.33", 0, 99),
            (&unmasked, "baseline", "latest", 35, 99),
            // By the server alone, whatever version is named.
            (&image, "restricted", "v1.30", 33, 99),
        ] {
            let template = template("p", spec.clone());
            let labels = json!({ (ENFORCE): level, (ENFORCE_VERSION): version });
            let namespace = Arc::new(json!({ "metadata": { "labels": labels } }));
            let workload = pod(json!({ "spec": { "hostUsers": false } })).within(Some(namespace));
            for minor in 28..40 {
                let checked = inject::check(&workload, &template, &[&template], Standard::of(Some(minor)));
                let is_forbidden = |conflict: &Conflict| conflict.code == Code::NamespaceForbids;
                let is_admitted = !checked.as_ref().is_err_and(is_forbidden);
                let expected = minor >= first_admitting && minor < first_forbidding;
                assert_eq!(is_admitted, expected, "{spec} {level} {version} on 1.{minor}: {checked:?}");
            }
        }
    }

    #[test]
    fn a_level_holds_by_its_version_and_what_the_pod_lifts() {
        let bare = json!({ "name": "a", "image": "a" });
        let probe = json!({ "name": "a", "image": "a", "livenessProbe": { "httpGet": { "host": "x", "port": 1 } } });
        let engine = json!({ "name": "a", "image": "a", "securityContext": { "seLinuxOptions": { "type": "container_engine_t" } } });
        let unmasked = json!({ "name": "a", "image": "a", "securityContext": { "procMount": "Unmasked" } });
        let free = json!({ "hostUsers": false });
        let nothing = json!({});
        for (container, level, version, spec, is_admitted) in [
            (&bare, "privileged", None, &nothing, true),
            (&bare, "baseline", None, &nothing, true),
            (&bare, "restricted", None, &nothing, false),
            // The spelling of the server.
            (&bare, "Baseline", None, &nothing, false),
            (&probe, "baseline", None, &nothing, false),
            (&probe, "baseline", Some("latest"), &nothing, false),
            (&probe, "baseline", Some("v1.33"), &nothing, true),
            (&probe, "baseline", Some("v1.34"), &nothing, false),
            (&probe, "baseline", Some("v1.033"), &nothing, false),
            (&probe, "baseline", Some("1.33"), &nothing, false),
            (&engine, "baseline", Some("v1.30"), &nothing, false),
            (&engine, "baseline", Some("v1.31"), &nothing, true),
            (&engine, "baseline", None, &nothing, true),
            (&unmasked, "baseline", None, &free, true),
            (&unmasked, "baseline", Some("v1.34"), &free, false),
            (&unmasked, "restricted", None, &free, false),
        ] {
            let template = template("p", json!({ "containers": [container] }));
            let mut labels = json!({ "pod-security.kubernetes.io/enforce": level });
            if let Some(version) = version {
                labels["pod-security.kubernetes.io/enforce-version"] = json!(version);
            }
            let workload =
                pod(json!({ "spec": spec })).within(Some(Arc::new(json!({ "metadata": { "labels": labels } }))));
            let code = code(&workload, &template).filter(|code| *code == Code::NamespaceForbids);
            assert_eq!(code.is_none(), is_admitted, "{container} {level} {version:?} {spec}");
        }
    }
}
