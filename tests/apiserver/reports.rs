//! `--reports`: a report in each namespace of the workloads that lack their sidecar. The definitions are written here from
//! the published ones, with the fields that viewers read and nothing else, so the server drops every other field.

use crate::commands::scpol;
use crate::prelude::*;
use std::collections::BTreeSet;

crate::tests![
    what_lacks_its_sidecar_is_reported_until_it_has_it_or_is_gone_with_the_shipped_rights_and_no_needless_write,
    without_the_definition_of_reports_one_warning_names_it_and_nothing_else_suffers,
    without_the_right_one_warning_names_the_verb_and_nothing_else_suffers,
    uninstall_lists_and_removes_reports_of_every_namespace_and_no_others,
    a_namespace_that_is_being_deleted_is_no_failure,
];

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// An API of reports: the flag, group, version, kind and plural.
#[derive(Clone, Copy)]
struct Form(&'static str, &'static str, &'static str, &'static str, &'static str);

const POLICY_REPORTS: Form =
    Form("--reports=policyreports", "wgpolicyk8s.io", "v1alpha2", "PolicyReport", "policyreports");
const OPEN_REPORTS: Form = Form("--reports=openreports", "openreports.io", "v1alpha1", "Report", "reports");

impl Form {
    fn path(self, namespace: &str) -> String {
        let Form(_, group, version, _, plural) = self;
        format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}")
    }

    /// The definition. Both have the same fields, but `source` of the report.
    fn definition(self) -> Value {
        let Form(_, group, version, kind, plural) = self;
        let object = |fields: Value| json!({ "type": "object", "properties": fields });
        let texts = |names: &[&str]| {
            names.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect::<Value>()
        };
        let number = json!({ "type": "integer" });
        let reference = object(texts(&["apiVersion", "kind", "namespace", "name", "uid"]));
        let mut result = texts(&["source", "policy", "rule", "category", "message"]);
        result["severity"] = json!({ "type": "string", "enum": ["critical", "high", "low", "medium", "info"] });
        result["result"] = json!({ "type": "string", "enum": ["pass", "fail", "warn", "error", "skip"] });
        result["resources"] = json!({ "type": "array", "items": reference });
        result["properties"] = json!({ "type": "object", "additionalProperties": { "type": "string" } });
        result["timestamp"] = object(json!({ "seconds": number, "nanos": number }));
        result["timestamp"]["required"] = json!(["nanos", "seconds"]);
        let mut result = object(result);
        result["required"] = json!(["policy"]);
        let counts = ["pass", "fail", "warn", "error", "skip"];
        let mut report = json!({
            "scope": reference, "results": { "type": "array", "items": result },
            "summary": object(counts.map(|name| (name.to_owned(), number.clone())).into_iter().collect()),
        });
        if group == "openreports.io" {
            report["source"] = json!({ "type": "string" });
        }
        let served = json!({
            "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema": object(report) },
        });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced", "versions": [served], "names": { "kind": kind, "plural": plural },
            },
        })
    }
}

impl World {
    /// A current server.
    async fn current() -> Result<Self> {
        Self::with(ControlPlane::builder(Version::V1_36).audit_log()).await
    }

    /// Creates the definition of reports, and waits until it is served.
    async fn define_reports(&self, form: Form) -> Result<()> {
        request(&self.admin, "POST", DEFINITIONS, &form.definition()).await?;
        within(LIMIT, "reports are served", || async { Ok(self.get(&form.path("default")).await?.is_some()) }).await
    }

    async fn undefine_reports(&self, form: Form) -> Result<()> {
        let Form(_, group, _, _, plural) = form;
        self.delete(&format!("{DEFINITIONS}/{plural}.{group}")).await?;
        within(LIMIT, "no reports are served", || async { Ok(self.get(&form.path("default")).await?.is_none()) }).await
    }

    /// Grants the shipped rights for reports.
    async fn let_report(&self) -> Result<()> {
        self.cluster.apply_file(&file("config/rbac/reports/cluster_role.yaml")).await
    }

    async fn report(&self, form: Form, namespace: &str) -> Result<Option<Value>> {
        self.get(&format!("{}/scpol", form.path(namespace))).await
    }

    /// Waits until the report counts so many `[pass, fail, warn]` and lists exactly these names, each with this rule.
    async fn reports(
        &self,
        (form, namespace): (Form, &str),
        counts: [i64; 3],
        names: &[&str],
        rule: &str,
    ) -> Result<Value> {
        let what = format!("the report has {counts:?} and {names:?}");
        within(LIMIT, &what, || async {
            let report = self.report(form, namespace).await?.context("there is no report")?;
            let summary = ["pass", "fail", "warn"].map(|count| report["summary"][count].as_i64().unwrap_or(-1));
            let results = report["results"].as_array().cloned().unwrap_or_default();
            let listed: Vec<_> = results.iter().filter_map(|result| result["resources"][0]["name"].as_str()).collect();
            ensure!(summary == counts && listed == names, "{report}");
            ensure!(results.iter().all(|result| result["rule"] == rule), "{report}");
            Ok(true)
        })
        .await?;
        self.report(form, namespace).await?.context("it is gone")
    }

    /// Waits until there is no report.
    async fn unreported(&self, form: Form, namespace: &str) -> Result<()> {
        within(LIMIT, "there is no report", || async { Ok(self.report(form, namespace).await?.is_none()) }).await
    }

    /// Waits until the policy `envoy` injects, and counts so many workloads.
    async fn works(&self, name: &str) -> Result<()> {
        in_force(&self.cluster, "envoy").await?;
        assert_eq!(containers(&self.create_promptly(DEPLOYMENTS, &deployment(name)).await?), ["app", "envoy"]);
        Ok(())
    }

    /// The operator's requests about reports: verb, namespace and answer.
    fn asked_for_reports(&self) -> Vec<(String, String, i64)> {
        let ours = |event: &Value| {
            let group = &event["objectRef"]["apiGroup"];
            event["user"]["username"] == User::Operator.name()
                && [POLICY_REPORTS.1, OPEN_REPORTS.1].iter().any(|own| group == own)
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.cluster.audit().into_iter().filter(ours);
        let answered =
            events.filter(|event| event["stage"] == "ResponseComplete" && event["objectRef"]["resource"].is_string());
        answered
            .map(|event| {
                let code = event["responseStatus"]["code"].as_i64().unwrap_or_default();
                (text(&event["verb"]), text(&event["objectRef"]["namespace"]), code)
            })
            .collect()
    }
}

/// The lines of the log that say that reports cannot be written.
fn warnings(operator: &Operator) -> Vec<String> {
    operator.log().lines().filter(|line| line.contains("Cannot write reports")).map(str::to_owned).collect()
}

/// Waits until a warning about reports has this text, and then so long that it would be repeated.
async fn warned_once(operator: &Operator, text: &str) -> Result<()> {
    within(LIMIT, "it is warned", || async { Ok(warnings(operator).iter().any(|line| line.contains(text))) }).await?;
    tokio::time::sleep(4 * timing().workloads.report_again).await;
    let lines = warnings(operator);
    ensure!(lines.iter().filter(|line| line.contains(text)).count() == 1, "{lines:?}");
    Ok(())
}

async fn what_lacks_its_sidecar_is_reported_until_it_has_it_or_is_gone_with_the_shipped_rights_and_no_needless_write()
-> Result<()> {
    for form in [POLICY_REPORTS, OPEN_REPORTS] {
        let (world, at) = (World::current().await?, (form, "default"));
        world.define_reports(form).await?;
        world.let_report().await?;
        for name in ["early", "other"] {
            world.create(DEPLOYMENTS, &deployment(name)).await?;
        }
        let flags = [form.0, "--resync=4s"];
        let operator = Operator::ready(&world.cluster, &flags).await?;
        world.policy("envoy", sidecar("envoy")).await?;
        let report = world.reports(at, [0, 2, 0], &["early", "other"], "SCP0114").await?;
        let result = &report["results"][0];
        let early = world.get(&path("early")).await?.context("it is there")?;
        let subject = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "early",
            "uid": early["metadata"]["uid"],
        });
        assert_eq!(
            (&result["resources"][0], &result["policy"], &result["result"]),
            (&subject, &json!("envoy"), &json!("fail"))
        );
        assert_eq!((&result["source"], &result["severity"]), (&json!("sidecar-policy"), &json!("medium")));
        assert_eq!(report["source"].is_string(), form.1 == OPEN_REPORTS.1);
        world.works("new").await?;
        let report = world.reports(at, [1, 2, 0], &["early", "other"], "SCP0114").await?;
        within(LIMIT, "the fix follows the policy into force", || async {
            let report = world.report(form, "default").await?.context("it is gone")?;
            Ok(report["results"][0]["message"].as_str().is_some_and(|text| text.contains("kubectl replace --force")))
        })
        .await?;
        // It is in one namespace, and in no other.
        assert!(world.report(form, "scpol-system").await?.is_none());
        let time = report["results"][1]["timestamp"]["seconds"].clone();
        world.delete(&path("early")).await?;
        let report = world.reports(at, [1, 1, 0], &["other"], "SCP0114").await?;
        assert_eq!(report["results"][0]["timestamp"]["seconds"], time, "a finding keeps its time");
        // Without a change nothing is written, not even by another leader or after a resync.
        operator.stop().await?;
        let operator = Operator::ready(&world.cluster, &flags).await?;
        in_force(&world.cluster, "envoy").await?;
        let before = world.reports(at, [1, 1, 0], &["other"], "SCP0114").await?;
        let times = |verb: &str| world.asked_for_reports().iter().filter(|(asked, ..)| asked == verb).count();
        let [gets, updates] = ["get", "update"].map(times);
        within(LIMIT, "two more resyncs", || async { Ok(times("get") >= gets + 2) }).await?;
        assert_eq!(
            times("update"),
            updates,
            "the server ignores an update that changes nothing, but it costs a request"
        );
        let after = world.report(form, "default").await?.context("it is gone")?;
        assert_eq!(after["results"], before["results"]);
        assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
        // A report that somebody deletes comes back.
        world.delete(&format!("{}/scpol", form.path("default"))).await?;
        world.reports(at, [1, 1, 0], &["other"], "SCP0114").await?;
        // It is recreated, and gets its sidecar.
        world.delete(&path("other")).await?;
        world.works("other").await?;
        world.reports(at, [2, 0, 0], &[], "").await?;
        let mut other = sidecar("envoy");
        other["template"]["containers"][0]["image"] = json!("envoy:2");
        world.edit_policy("envoy", other).await?;
        world.reports(at, [0, 0, 2], &["new", "other"], "Outdated").await?;
        world.delete_policy("envoy").await?;
        world.unreported(form, "default").await?;
        let asked = world.asked_for_reports();
        let verbs: BTreeSet<_> = asked.iter().map(|(verb, ..)| verb.as_str()).collect();
        assert_eq!(verbs, BTreeSet::from(["create", "delete", "get", "list", "update"]), "each right is used");
        let refused: Vec<_> = asked.iter().filter(|(.., code)| *code == 403).collect();
        assert!(refused.is_empty() && warnings(&operator).is_empty(), "{refused:?} {:?}", warnings(&operator));
    }
    Ok(())
}

async fn without_the_definition_of_reports_one_warning_names_it_and_nothing_else_suffers() -> Result<()> {
    let (world, at) = (World::current().await?, (OPEN_REPORTS, "default"));
    world.let_report().await?;
    world.create(DEPLOYMENTS, &deployment("early")).await?;
    let operator = Operator::ready(&world.cluster, &[OPEN_REPORTS.0]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    world.works("first").await?;
    warned_once(&operator, "install the CustomResourceDefinition `reports.openreports.io`").await?;
    world.status("envoy", "missed", 1).await?;
    world.define_reports(OPEN_REPORTS).await?;
    world.reports(at, [1, 1, 0], &["early"], "SCP0114").await?;
    world.undefine_reports(OPEN_REPORTS).await?;
    world.works("second").await?;
    world.status("envoy", "injected", 2).await?;
    world.define_reports(OPEN_REPORTS).await?;
    world.reports(at, [2, 1, 0], &["early"], "SCP0114").await.map(drop)
}

async fn without_the_right_one_warning_names_the_verb_and_nothing_else_suffers() -> Result<()> {
    let (world, at) = (World::current().await?, (POLICY_REPORTS, "default"));
    world.define_reports(POLICY_REPORTS).await?;
    world.create(DEPLOYMENTS, &deployment("early")).await?;
    let operator = Operator::ready(&world.cluster, &[POLICY_REPORTS.0]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    world.works("first").await?;
    warned_once(&operator, "cannot list resource \\\"policyreports\\\"").await?;
    world.status("envoy", "missed", 1).await?;
    world.let_report().await?;
    world.reports(at, [1, 1, 0], &["early"], "SCP0114").await?;
    // It may read and not write.
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/scpol-reports";
    let rules = json!([{ "apiGroups": [POLICY_REPORTS.1], "resources": ["policyreports"], "verbs": ["list", "get"] }]);
    world.patch(role, &json!([{ "op": "replace", "path": "/rules", "value": rules }])).await?;
    world.works("second").await?;
    warned_once(&operator, "cannot update resource \\\"policyreports\\\"").await?;
    world.let_report().await?;
    world.reports(at, [2, 1, 0], &["early"], "SCP0114").await.map(drop)
}

async fn uninstall_lists_and_removes_reports_of_every_namespace_and_no_others() -> Result<()> {
    let world = World::current().await?;
    world.install_all().await?;
    world.define_reports(POLICY_REPORTS).await?;
    world.let_report().await?;
    world.namespace("team", &json!({})).await?;
    world.namespace("foreign", &json!({})).await?;
    let report = |name: &str| json!({ "apiVersion": "wgpolicyk8s.io/v1alpha2", "kind": "PolicyReport", "metadata": { "name": name } });
    request(&world.admin, "POST", &POLICY_REPORTS.path("default"), &report("other")).await?;
    // One of our name that is not ours.
    request(&world.admin, "POST", &POLICY_REPORTS.path("foreign"), &report("scpol")).await?;
    for namespace in ["default", "team", "foreign"] {
        world.create(&DEPLOYMENTS.replace("default", namespace), &deployment("early")).await?;
    }
    let operator = Operator::ready(&world.cluster, &[POLICY_REPORTS.0]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    for namespace in ["default", "team"] {
        world.reports((POLICY_REPORTS, namespace), [0, 1, 0], &["early"], "SCP0114").await?;
    }
    let titles = ["PolicyReport default/scpol", "PolicyReport team/scpol"];
    let (code, told) = scpol(&world.cluster, &["uninstall", "--check"]).await?;
    ensure!(code == 1 && titles.iter().all(|title| told.contains(&format!("{title}: is there"))), "{code}: {told}");
    ensure!(!told.contains("foreign") && !told.contains("default/other"), "{told}");
    let (code, told) = world.uninstalls(&["--yes"]).await?;
    ensure!(code == 0 && titles.iter().all(|title| told.contains(&format!("{title}: deleted"))), "{code}: {told}");
    world.is_clean().await?;
    for (namespace, name, is_left) in
        [("default", "scpol", false), ("team", "scpol", false), ("default", "other", true), ("foreign", "scpol", true)]
    {
        let left = world.get(&format!("{}/{name}", POLICY_REPORTS.path(namespace))).await?;
        ensure!(left.is_some() == is_left, "{namespace}/{name}: {left:?}");
        ensure!(left.is_none_or(|left| left["results"].is_null()), "{namespace}/{name} was written");
    }
    drop(operator);
    Ok(())
}

async fn a_namespace_that_is_being_deleted_is_no_failure() -> Result<()> {
    let (world, team) = (World::current().await?, "/api/v1/namespaces/team");
    world.define_reports(POLICY_REPORTS).await?;
    world.let_report().await?;
    world.namespace("team", &json!({})).await?;
    let deployments = DEPLOYMENTS.replace("default", "team");
    for name in ["a", "b"] {
        world.create(&deployments, &deployment(name)).await?;
    }
    let operator = Operator::ready(&world.cluster, &[POLICY_REPORTS.0]).await?;
    world.policy("envoy", sidecar("envoy")).await?;
    world.reports((POLICY_REPORTS, "team"), [0, 2, 0], &["a", "b"], "SCP0114").await?;
    in_force(&world.cluster, "envoy").await?;
    // No controller-manager runs here, so the test does its work, in an unlucky order.
    world.delete(team).await?;
    world.delete(&format!("{}/scpol", POLICY_REPORTS.path("team"))).await?;
    world.delete(&format!("{deployments}/a")).await?;
    let is_tried = |asked: &(String, String, i64)| asked.0 == "create" && asked.1 == "team" && asked.2 == 403;
    within(LIMIT, "a create is refused", || async { Ok(world.asked_for_reports().iter().any(is_tried)) }).await?;
    world.delete(&format!("{deployments}/b")).await?;
    let mut namespace = world.get(team).await?.context("it is there")?;
    namespace["spec"]["finalizers"] = json!([]);
    request(&world.admin, "PUT", &format!("{team}/finalize"), &namespace).await?;
    world.works("web").await?;
    world.reports((POLICY_REPORTS, "default"), [1, 0, 0], &[], "").await?;
    ensure!(warnings(&operator).is_empty(), "{:?}", warnings(&operator));
    Ok(())
}
