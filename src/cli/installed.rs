//! The parts of an installation in a cluster: the registrations of engines, and the objects of the install files.

use super::live::{self, resource};
use super::output::place;
use crate::api::{GROUP, MANAGED_BY, MANAGER};
use crate::capabilities::{Capabilities, registration};
use crate::cluster::answer::Meaning;
use crate::cluster::client::{CallError, call};
use crate::cluster::lease;
use crate::cluster::object::Object;
use crate::engine::{self, Engine, EngineName};
use crate::naming::{own_name, shared_name};
use crate::policy::Policy;
use crate::workload::Kind;
use crate::workloads::reports::Form;
use anyhow::{Context, Result, bail};
use kube::Client;
use kube::api::ListParams;
use kube::core::ApiResource;
use serde_json::Value;

/// The label of every object in the install files, and its value.
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "sidecar-policy");
/// The name of the operator's Deployment, Service and ServiceAccount.
pub(super) const OPERATOR: &str = "scpol";
/// The Secret with the certificate of the webhook.
pub(super) const CERTIFICATE: &str = "scpol-webhook";

/// One object of an installation.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) resource: ApiResource,
    pub(super) object: Object,
}

impl Piece {
    /// The name of the object in messages.
    pub(super) fn title(&self) -> String {
        place(&self.resource.kind, self.object.namespace(), self.object.name())
    }

    pub(super) fn is_terminating(&self) -> bool {
        !self.object.value()["metadata"]["deletionTimestamp"].is_null()
    }

    /// Whether the operator created the object.
    pub(super) fn is_generated(&self) -> bool {
        has_label(&self.object.value(), (MANAGED_BY, MANAGER))
    }

    /// Whether the object is one of the install files.
    pub(super) fn is_installed(&self) -> bool {
        has_label(&self.object.value(), PART_OF)
    }

    /// The operator's container in the Deployment; null without one.
    pub(super) fn container(&self) -> Value {
        let mut body = self.object.value();
        let containers = body["spec"]["template"]["spec"]["containers"].as_array_mut();
        let mut containers = containers.into_iter().flatten();
        containers.find(|container| container["name"] == OPERATOR).map(Value::take).unwrap_or_default()
    }

    /// Whether the object rejects workloads and changes none.
    pub(super) fn refuses(&self) -> bool {
        registration::refuses(&self.resource.plural)
    }
}

/// The parts of the operator's own installation, in a safe order of deletion: first the process, then its rights, then its
/// data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstallPart {
    /// The Deployment, and the objects that keep it running and reachable.
    Process,
    /// The ServiceAccount and its rights.
    Rights,
    /// The objects that the operator wrote, its reports and revisions of policies included, and its address.
    Belongings,
}

/// The API group of the registrations that check, and record, the author of a policy.
const ADMISSION: &str = registration::GROUP;

/// The kinds of the install files, and of what the operator writes into its namespace: part, group, version, kind, plural
/// name, and whether the kind is namespaced. An empty version, or kind, depends on the server.
const INSTALLED: [(InstallPart, &str, &str, &str, &str, bool); 17] = [
    (InstallPart::Process, "apps", "v1", "Deployment", "deployments", true),
    (InstallPart::Process, "policy", "", "PodDisruptionBudget", "poddisruptionbudgets", true),
    (InstallPart::Process, "networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", true),
    (InstallPart::Rights, "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", false),
    (InstallPart::Rights, "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", true),
    (InstallPart::Rights, "rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false),
    (InstallPart::Rights, "rbac.authorization.k8s.io", "v1", "Role", "roles", true),
    (InstallPart::Rights, ADMISSION, "", "", registration::MUTATING_BINDINGS, false),
    (InstallPart::Rights, ADMISSION, "", "", registration::MUTATING_POLICIES, false),
    (InstallPart::Rights, ADMISSION, "", "", registration::VALIDATING_BINDINGS, false),
    (InstallPart::Rights, ADMISSION, "", "", registration::VALIDATING_POLICIES, false),
    (InstallPart::Rights, "", "v1", "ServiceAccount", "serviceaccounts", true),
    (InstallPart::Belongings, "", "v1", "Service", "services", true),
    (InstallPart::Belongings, "", "v1", "Secret", "secrets", true),
    (InstallPart::Belongings, "", "v1", "ConfigMap", "configmaps", true),
    (InstallPart::Belongings, "coordination.k8s.io", "", "Lease", "leases", true),
    (InstallPart::Belongings, "apps", "v1", "ControllerRevision", "controllerrevisions", true),
];

/// The parts of an installation that exist.
pub(super) struct Installed<'a> {
    pub(super) client: &'a Client,
    pub(super) server: &'a Capabilities,
    pub(super) namespace: &'a str,
}

impl Installed<'_> {
    /// The registrations of engines, by our label, in the order of [`registration::ALL`].
    pub(super) async fn registrations(&self) -> Result<Vec<Piece>> {
        let mut found = self.all_registrations().await?;
        found.retain(Piece::is_generated);
        Ok(found)
    }

    /// The registrations of engines of the resource `plural`, by our label. None if the server has no such resource.
    pub(super) async fn registrations_of(&self, plural: &str) -> Result<Vec<Piece>> {
        let Some(resource) = self.server.registration(plural) else { return Ok(Vec::new()) };
        let mut found = self.list(&resource, None, None).await?;
        found.retain(Piece::is_generated);
        Ok(found)
    }

    /// All objects of the kinds that engines register, foreign ones included.
    pub(super) async fn all_registrations(&self) -> Result<Vec<Piece>> {
        let mut found = Vec::new();
        for resource in registration::ALL.iter().filter_map(|plural| self.server.registration(plural)) {
            found.extend(self.list(&resource, None, None).await?);
        }
        Ok(found)
    }

    /// The existing objects of `part`.
    pub(super) async fn part(&self, part: InstallPart) -> Result<Vec<Piece>> {
        let installed = format!("{}={}", PART_OF.0, PART_OF.1);
        let mut found = Vec::new();
        for (resource, namespaced) in
            INSTALLED.iter().filter(|kind| kind.0 == part).filter_map(|kind| self.served(kind))
        {
            let (namespace, selector) =
                if namespaced { (Some(self.namespace), None) } else { (None, Some(installed.as_str())) };
            let listed = self.list(&resource, namespace, selector).await?;
            found.extend(listed.into_iter().filter(is_ours));
        }
        if part == InstallPart::Belongings {
            found.extend(self.reports().await?);
        }
        Ok(found)
    }

    /// The reports of `scpol run --reports`, in all namespaces.
    async fn reports(&self) -> Result<Vec<Piece>> {
        let ours = format!("{MANAGED_BY}={MANAGER}");
        let is_away =
            |error: &anyhow::Error| error.downcast_ref::<CallError>().is_some_and(|error| error.code() == 503);
        let mut found = Vec::new();
        for form in Form::ALL {
            match self.list(&form.resource(), None, Some(&ours)).await {
                // An aggregated API whose server is away must not keep anyone from uninstalling.
                Err(error) if is_away(&error) => {}
                listed => found.extend(listed?),
            }
        }
        Ok(found)
    }

    /// The operator's pods.
    pub(super) async fn pods(&self) -> Result<Vec<Piece>> {
        self.list(
            &resource("", "v1", "Pod", "pods"),
            Some(self.namespace),
            Some(&format!("app.kubernetes.io/name={OPERATOR}")),
        )
        .await
    }

    /// The operator's Namespace, if it was created for the operator.
    pub(super) async fn own_namespace(&self) -> Result<Option<Piece>> {
        let found = self.get(resource("", "v1", "Namespace", "namespaces"), None, self.namespace).await?;
        Ok(found.filter(|piece| has_label(&piece.object.value(), PART_OF)))
    }

    /// The foreign objects in the operator's namespace that run pods.
    pub(super) async fn lodgers(&self) -> Result<Vec<Piece>> {
        let mut found = Vec::new();
        for kind in crate::workload::KINDS.iter().filter(|kind| kind.pod_path.is_some()) {
            let Some(resource) = self.server.resource(kind) else { continue };
            found.extend(self.list(&resource, Some(self.namespace), None).await?);
        }
        found.retain(|piece| !is_ours(piece));
        Ok(found)
    }

    /// The CustomResourceDefinition of the policies.
    pub(super) async fn definition(&self) -> Result<Option<Piece>> {
        let version = if self.server.at_least(1, 16) { "v1" } else { "v1beta1" };
        let definitions =
            resource("apiextensions.k8s.io", version, "CustomResourceDefinition", "customresourcedefinitions");
        self.get(definitions, None, &format!("sidecarpolicies.{GROUP}")).await
    }

    pub(super) async fn deployment(&self) -> Result<Option<Piece>> {
        self.get(resource("apps", "v1", "Deployment", "deployments"), Some(self.namespace), OPERATOR).await
    }

    /// An object of the core group in the operator's namespace.
    pub(super) async fn own(&self, kind: &str, plural: &str, name: &str) -> Result<Option<Piece>> {
        self.get(resource("", "v1", kind, plural), Some(self.namespace), name).await
    }

    /// The lease of the leading replica.
    pub(super) async fn lease(&self) -> Result<Option<Piece>> {
        let Some(version) = &self.server.lease_version else { return Ok(None) };
        let leases = resource("coordination.k8s.io", version, "Lease", "leases");
        self.get(leases, Some(self.namespace), lease::NAME).await
    }

    /// Fails if the operator is installed in another namespace only, because the user most likely means that one.
    pub(super) async fn check_namespace(&self) -> Result<()> {
        self.elsewhere().await?.map_or(Ok(()), |place| bail!(place))
    }

    /// What to do if the operator is installed in another namespace only.
    pub(super) async fn elsewhere(&self) -> Result<Option<String>> {
        let installed = format!("{}={}", PART_OF.0, PART_OF.1);
        let deployments =
            self.list(&resource("apps", "v1", "Deployment", "deployments"), None, Some(&installed)).await?;
        let bindings = self.part(InstallPart::Rights).await?;
        let bound = bindings.iter().filter(|piece| piece.resource.kind == "ClusterRoleBinding").flat_map(|binding| {
            let subjects = binding.object.value()["subjects"].as_array().cloned().unwrap_or_default();
            subjects.into_iter().map(|subject| (binding.title(), subject["namespace"].as_str().map(str::to_owned)))
        });
        let placed = deployments.iter().map(|piece| (piece.title(), Some(piece.object.namespace().to_owned())));
        let places: Vec<_> = placed.chain(bound).filter_map(|(title, namespace)| Some((title, namespace?))).collect();
        match places.first() {
            Some((by, other)) if places.iter().all(|(_, place)| place != self.namespace) => Ok(Some(format!(
                "the operator is installed in namespace `{other}` ({by}), not in `{}`: give `--operator-namespace {other}`",
                self.namespace
            ))),
            _ => Ok(None),
        }
    }

    fn served(&self, kind: &(InstallPart, &str, &str, &str, &str, bool)) -> Option<(ApiResource, bool)> {
        let (_, group, version, kind, plural, namespaced) = *kind;
        if group == ADMISSION {
            return Some((self.server.registration(plural)?, namespaced));
        }
        let version = match (group, version) {
            // policy/v1 came with 1.21; policy/v1beta1 ended after 1.24.
            ("policy", _) if self.server.at_least(1, 21) => "v1",
            ("policy", _) => "v1beta1",
            (_, "") => self.server.lease_version.as_deref()?,
            (_, version) => version,
        };
        Some((resource(group, version, kind, plural), namespaced))
    }

    async fn get(&self, resource: ApiResource, namespace: Option<&str>, name: &str) -> Result<Option<Piece>> {
        let found = call(live::api(self.client, &resource, namespace).get_opt(name)).await;
        let object = found.with_context(|| format!("cannot read {} `{name}`", resource.kind))?;
        Ok(object.map(|object| Piece { resource, object }))
    }

    async fn list(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Vec<Piece>> {
        let parameters = ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
        let objects = match live::list(&live::api(self.client, resource, namespace), parameters).await {
            Ok(objects) => objects,
            Err(error) if error.means() == Meaning::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot list {}", resource.plural)),
        };
        Ok(objects.into_iter().map(|object| Piece { resource: resource.clone(), object }).collect())
    }
}

/// Whether the object belongs to the installation: by a label of ours, or by the name of what the operator itself creates.
fn is_ours(piece: &Piece) -> bool {
    let named = [("Lease", lease::NAME), ("Secret", CERTIFICATE), ("Service", OPERATOR)];
    let body = piece.object.value();
    has_label(&body, PART_OF)
        || has_label(&body, (MANAGED_BY, MANAGER))
        || named.contains(&(piece.resource.kind.as_str(), piece.object.name()))
}

fn has_label(body: &Value, (key, value): (&str, &str)) -> bool {
    body["metadata"]["labels"][key] == value
}

/// What the `container` of the operator has for `flag`: on its command line, or else in the environment. It may be empty.
pub(super) fn setting(container: &Value, flag: &str) -> Option<String> {
    let arguments = ["command", "args"].into_iter().filter_map(|field| container[field].as_array()).flatten();
    let mut arguments = arguments.filter_map(Value::as_str).flat_map(|argument| argument.splitn(2, '='));
    if arguments.any(|argument| argument == flag) {
        return Some(arguments.next().unwrap_or_default().to_owned());
    }
    let name = format!("SCPOL_{}", flag.trim_start_matches('-').replace('-', "_").to_uppercase());
    let variable = container["env"].as_array()?.iter().rfind(|variable| variable["name"] == name)?;
    Some(variable["value"].as_str().unwrap_or_default().to_owned())
}

/// One way to put a part of a policy in effect: the objects that must be registered, by plural name and name.
pub(super) type Way = Vec<(&'static str, String)>;

/// The objects that must be registered for `policy` by `engines`, in the format of `status.engine`. For each part of the policy
/// the result has several ways, and one of them is enough.
pub(super) fn needed(policy: &Policy, engines: &str) -> Vec<Vec<Way>> {
    let engines: Vec<_> = EngineName::listed(engines).map(EngineName::engine).collect();
    let of_name = |name: String, plurals: &[&'static str]| -> Way {
        plurals.iter().map(|plural| (*plural, name.clone())).collect()
    };
    let own = |engine: &dyn Engine| of_name(own_name(&policy.name), engine.registers());
    if let [engine] = engines.as_slice()
        && engine.is_per_policy()
    {
        return vec![vec![own(*engine)]];
    }
    let rejecting = |engine: &dyn Engine, kind: &Kind| {
        let shared = engine.sharing()?;
        Some(of_name(shared.rejecting_name(policy, kind), shared.rejects_by()))
    };
    let way = |engine: &&'static dyn Engine, kind: &Kind, injects: bool| -> Vec<Way> {
        match injects {
            _ if engine.is_per_policy() => vec![own(*engine)],
            true => vec![of_name(shared_name(kind), engine.registers())],
            // Any engine's rejecting objects may reject workloads, whichever engine injects.
            false => {
                let others = engine::all().filter(|other| other.name() != engine.name());
                [*engine].into_iter().chain(others).filter_map(|engine| rejecting(engine, kind)).collect()
            }
        }
    };
    let ways =
        |kind: &Kind, injects: bool| engines.iter().flat_map(|engine| way(engine, kind, injects)).collect::<Vec<_>>();
    let parts = [(policy.injects(), true), (policy.judges(), false)];
    let parts = policy.kinds.iter().flat_map(|kind| parts.map(|(is_there, injects)| (kind, is_there, injects)));
    parts.filter(|(_, is_there, _)| *is_there).map(|(kind, _, injects)| ways(kind, injects)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Site;
    use serde_json::json;

    #[test]
    fn a_setting_is_on_the_command_line_or_else_in_the_environment() {
        let deployment = |name: &str, more: Value| {
            let mut container = json!({ "name": name, "args": ["run"], "env": [{ "name": "SCPOL_POD_NAME" }] });
            container.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let containers = json!([{ "name": "other" }, container]);
            let object = json!({ "metadata": {}, "spec": { "template": { "spec": { "containers": containers } } } });
            let object = serde_json::from_value(object).expect("an object");
            Piece { resource: resource("apps", "v1", "Deployment", "deployments"), object }
        };
        for (more, expected) in [
            (json!({}), None),
            (json!({ "args": ["run", "--webhook-cert-dir", "/certs"] }), Some("/certs")),
            (json!({ "args": ["run", "--webhook-cert-dir=/certs"] }), Some("/certs")),
            (json!({ "command": ["scpol", "run", "--webhook-cert-dir=/certs"] }), Some("/certs")),
            (json!({ "env": [{ "name": "SCPOL_WEBHOOK_CERT_DIR", "value": "/certs" }] }), Some("/certs")),
            (json!({ "env": [{ "name": "SCPOL_WEBHOOK_CERT_DIR", "valueFrom": {} }] }), Some("")),
        ] {
            let found = |name: &str| setting(&deployment(name, more.clone()).container(), "--webhook-cert-dir");
            assert_eq!(found(OPERATOR).as_deref(), expected, "{more}");
            assert_eq!(found("proxy"), None, "it is another container");
        }
    }

    #[test]
    fn what_must_be_registered_is_that_of_the_engines_in_force() {
        let told = |spec: Value, engines: &str| {
            let policy = json!({ "metadata": { "name": "p" }, "spec": spec });
            let policy = Policy::parse(&policy, &Site::new("", [], [])).expect("a valid policy");
            let way =
                |way: Way| way.iter().map(|(plural, name)| format!("{plural}/{name}")).collect::<Vec<_>>().join("+");
            let part = |ways: Vec<Way>| ways.into_iter().map(way).collect::<Vec<_>>().join(" or ");
            needed(&policy, engines).into_iter().map(part).collect::<Vec<_>>()
        };
        let targets = json!([{ "group": "", "resource": "pods" }, { "group": "apps", "resource": "deployments" }]);
        let template = json!({ "containers": [{ "name": "a", "image": "b" }] });
        let both = json!({ "targets": targets, "template": template });
        assert_eq!(told(both.clone(), "Initializer"), ["initializerconfigurations/scpol-p"]);
        assert_eq!(
            told(both.clone(), "Webhook"),
            ["mutatingwebhookconfigurations/scpol-pods", "mutatingwebhookconfigurations/scpol-deployments.apps"]
        );
        let policies = |name: &str| format!("mutatingadmissionpolicies/{name}+mutatingadmissionpolicybindings/{name}");
        let either = |name: &str| format!("{} or mutatingwebhookconfigurations/{name}", policies(name));
        assert_eq!(
            told(both.clone(), "MutatingAdmissionPolicy, Webhook"),
            [either("scpol-pods"), either("scpol-deployments.apps")]
        );
        assert_eq!(told(both, ""), ["", ""], "of a policy that is not in effect nothing is asked");
        let webhook = "validatingwebhookconfigurations/scpol-pods";
        let policies =
            |name: &str| format!("validatingadmissionpolicies/{name}+validatingadmissionpolicybindings/{name}");
        let mut judge = json!({ "targets": [{ "group": "", "resource": "pods" }], "validations": [{ "expression": "has(object.spec)" }] });
        assert_eq!(told(judge.clone(), "Webhook"), [format!("{webhook} or {}", policies("scpol-pods-ignore"))]);
        judge["failurePolicy"] = json!("Fail");
        assert_eq!(told(judge, "MutatingAdmissionPolicy"), [format!("{} or {webhook}", policies("scpol-pods"))]);
        let must =
            json!({ "targets": [{ "group": "", "resource": "pods" }], "template": template, "failurePolicy": "Fail" });
        assert_eq!(
            told(must.clone(), "Webhook"),
            ["mutatingwebhookconfigurations/scpol-pods".to_owned(), format!("{webhook} or {}", policies("scpol-pods"))]
        );
        assert_eq!(told(must, "Initializer"), ["initializerconfigurations/scpol-p"]);
    }
}
