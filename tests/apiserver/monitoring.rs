//! The dashboard and the alerts on a real Prometheus that scrapes a real operator and a real API server.

use crate::prelude::*;
use controlplane::free_port;
use std::cell::Cell;
use std::fs;
use std::process::Stdio;
use tokio::process::{Child, Command};

crate::tests![every_query_of_the_dashboard_has_data_and_alerts_fire_and_end, the_alerts_fire_as_their_cases_say,];

/// What a panel's `$__rate_interval` is here, and the period of the alerts. Prometheus scrapes each second.
const PERIOD: &str = "15s";

/// The rules of the install files, as Prometheus reads them.
fn rules() -> Result<Value> {
    let rule: Value = serde_saphyr::from_str(&fs::read_to_string(file("config/prometheus/rules.yaml"))?)?;
    Ok(rule["spec"].clone())
}

/// A Prometheus that scrapes an operator and an API server.
struct Prometheus<'a> {
    cluster: &'a ControlPlane,
    _process: Child,
    url: String,
}

impl<'a> Prometheus<'a> {
    async fn start(cluster: &'a ControlPlane) -> Result<Self> {
        let dir = cluster.dir().join("prometheus");
        fs::create_dir_all(&dir)?;
        let mut rules = rules()?;
        for group in rules["groups"].as_array_mut().context("groups")? {
            for rule in group["rules"].as_array_mut().context("rules")? {
                // The real ones wait for minutes.
                let expr = rule["expr"].as_str().context("expr")?;
                rule["expr"] = json!(expr.replace("10m", PERIOD));
                if rule.get("for").is_some() {
                    rule["for"] = json!("2s");
                }
            }
        }
        fs::write(dir.join("rules.yaml"), rules.to_string())?;
        let tokens = fs::read_to_string(cluster.dir().join("tokens.csv"))?;
        let token = tokens.split(',').next().context("a token")?;
        let url = cluster.client_config(User::Admin).cluster_url;
        let server = format!("{}:{}", url.host().context("host")?, url.port_u16().context("port")?);
        let configuration = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                { "job_name": "scpol", "file_sd_configs": [{ "files": ["operators.json"], "refresh_interval": "1s" }] },
                {
                    "job_name": "apiserver", "scheme": "https", "static_configs": [{ "targets": [server] }],
                    "authorization": { "credentials": token }, "tls_config": { "insecure_skip_verify": true },
                },
            ],
        });
        fs::write(dir.join("prometheus.yaml"), configuration.to_string())?;
        let port = free_port();
        let process = Command::new(cluster.assets().join("prometheus"))
            .arg(format!("--config.file={}", dir.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("log"))?)
            .kill_on_drop(true)
            .spawn()
            .context("prometheus")?;
        Ok(Self { cluster, _process: process, url: format!("http://127.0.0.1:{port}") })
    }

    /// Scrapes these operators from now on.
    fn scrape(&self, operators: &[&Operator]) -> Result<()> {
        let targets: Vec<_> = operators.iter().map(|operator| operator.address()).collect();
        // Renamed, so that it is never half written.
        let dir = self.cluster.dir().join("prometheus");
        fs::write(dir.join("new"), json!([{ "targets": targets }]).to_string())?;
        Ok(fs::rename(dir.join("new"), dir.join("operators.json"))?)
    }

    /// The series that `expression` returns now.
    async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let promtool = self.cluster.assets().join("promtool");
        let output =
            Command::new(promtool).args(["query", "instant", "-o", "json", &self.url, expression]).output().await?;
        let printed = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{expression}: {printed}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&printed).with_context(|| printed.clone())
    }

    /// The alerts that fire.
    async fn firing(&self) -> Result<Vec<String>> {
        let found = self.query(r#"ALERTS{alertstate="firing"}"#).await?;
        Ok(found.iter().filter_map(|series| series["metric"]["alertname"].as_str().map(str::to_owned)).collect())
    }

    async fn fires(&self, alert: &str, is_expected: bool) -> Result<()> {
        within(LIMIT, &format!("{alert} fires: {is_expected}"), || async {
            Ok(self.firing().await?.iter().any(|firing| firing == alert) == is_expected)
        })
        .await
    }
}

/// A policy for the Deployments of one namespace, by the webhook.
fn policy(namespace: &str, template: &Value) -> Value {
    json!({ "engine": "Webhook", "namespaces": [namespace], "template": template })
}

async fn every_query_of_the_dashboard_has_data_and_alerts_fire_and_end() -> Result<()> {
    let world = World::with(ControlPlane::builder(Version::NEWEST)).await?;
    let prometheus = Prometheus::start(&world.cluster).await?;
    let deployments = |namespace: &str| format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    for namespace in ["missed", "shop", "torn"] {
        world.namespace(namespace, &json!({})).await?;
    }
    request(&world.admin, "POST", &deployments("missed"), &deployment("early")).await?;

    let operator = Operator::ready(&world.cluster, &[]).await?;
    prometheus.scrape(&[&operator])?;
    let template = sidecar("envoy")["template"].clone();
    for part in ["cluster_role", "role"] {
        world.cluster.apply_file(&file(&format!("config/rbac/rollout/{part}.yaml"))).await?;
    }
    // Paused, so that what is missed or outdated stays so.
    let rolling = json!({ "type": "RollingUpdate", "paused": true });
    world.policy("envoy", json!({ "engine": "Webhook", "template": template, "updateStrategy": rolling })).await?;
    // Two that want a container of one name, each its own.
    for (name, image) in [("one", "a:1"), ("two", "b:1")] {
        let template = json!({ "containers": [{ "name": "same", "image": image }] });
        world.policy(name, policy("torn", &template)).await?;
    }
    for name in ["envoy", "one", "two"] {
        in_force(&world.cluster, name).await?;
    }
    request(&world.admin, "POST", &deployments("shop"), &deployment("outdated")).await?;
    within(LIMIT, "it is counted", || async {
        Ok(operator.metric(r#"scpol_namespace_workloads{namespace="shop",policy="envoy",state="injected"}"#).await?
            == 1.0)
    })
    .await?;
    let newer = json!({ "containers": [{ "name": "envoy", "image": "envoy:2" }] });
    world.edit_policy("envoy", json!({ "engine": "Webhook", "template": newer })).await?;
    within(LIMIT, "it is outdated", || async {
        Ok(operator.metric(r#"scpol_namespace_workloads{namespace="shop",policy="envoy",state="outdated"}"#).await?
            == 1.0)
    })
    .await?;
    in_force(&world.cluster, "envoy").await?;

    // Nothing fires while nothing is wrong. Prometheus was there before the operator, and finds it after seconds.
    within(LIMIT, "Prometheus scrapes the operator", || async {
        Ok(!prometheus.query("scpol_leader == 1").await?.is_empty())
    })
    .await?;
    prometheus.fires("SidecarPolicyNobodyLeads", false).await?;
    assert_eq!(prometheus.firing().await?, [""; 0]);
    let made = Cell::new(0);
    let create = async |namespace: &str| -> Result<Value> {
        made.set(made.get() + 1);
        let body = deployment(&format!("web-{}", made.get()));
        Ok(request(&world.admin, "POST", &deployments(namespace), &body).await?)
    };
    for _ in 0..5 {
        create("shop").await?;
        create("torn").await?;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    prometheus.fires("SidecarPolicyInjectionFails", true).await?;

    // While no operator runs, the API server passes the webhook over.
    operator.kill().await?;
    prometheus.scrape(&[])?;
    prometheus.fires("SidecarPolicyNobodyLeads", true).await?;
    // The first one that comes without its sidecar.
    create("shop").await?;
    prometheus.fires("SidecarPolicyWebhookPassedOver", true).await?;
    let operator = Operator::ready(&world.cluster, &[]).await?;
    prometheus.scrape(&[&operator])?;
    prometheus.fires("SidecarPolicyNobodyLeads", false).await?;

    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file("config/grafana/dashboard.json"))?)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let queries = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| (panel["title"].to_string(), target["expr"].as_str().unwrap_or_default()))
    });
    let mut asked = 0;
    for (panel, query) in queries {
        let query = query.replace("$__rate_interval", PERIOD).replace("$policy", ".*").replace("$namespace", ".*");
        within(LIMIT, &format!("{panel} has data: {query}"), || async {
            // There is always something new to see.
            create("shop").await?;
            create("torn").await?;
            let series = prometheus.query(&query).await?;
            let values = series.iter().filter_map(|series| series["value"][1].as_str());
            Ok(values.filter(|value| *value != "NaN").count() > 0)
        })
        .await?;
        asked += 1;
    }
    assert!(asked >= 15, "{asked} queries");
    let counts = prometheus.query(r#"scpol_namespace_workloads{state="missed",namespace="missed"}"#).await?;
    assert_eq!(counts.first().map(|series| &series["value"][1]), Some(&json!("1")));

    world
        .policy(
            "broken",
            json!({ "targets": [{ "group": "example.org", "resource": "nowhere" }], "template": template }),
        )
        .await?;
    within(LIMIT, "it is not ready", || async {
        Ok(condition(&world.cluster, "broken", "Ready").await?.is_some_and(|ready| ready["status"] == "False"))
    })
    .await?;
    prometheus.fires("SidecarPolicyNotReady", true).await?;
    world.delete_policy("broken").await?;
    for alert in ["SidecarPolicyNotReady", "SidecarPolicyInjectionFails", "SidecarPolicyWebhookPassedOver"] {
        prometheus.fires(alert, false).await?;
    }
    // A paused rollout leaves what is missed.
    prometheus.fires("SidecarPolicyWorkloadsMissed", true).await?;
    world.edit_policy("envoy", json!({ "updateStrategy": null })).await?;
    prometheus.fires("SidecarPolicyWorkloadsMissed", false).await?;
    assert_eq!(prometheus.firing().await?, [""; 0]);
    Ok(())
}

/// `promtool test rules`: each alert fires in its case, and in no other.
async fn the_alerts_fire_as_their_cases_say() -> Result<()> {
    let cluster = ControlPlane::builder(Version::NEWEST).start().await?;
    let dir = cluster.dir();
    fs::write(dir.join("rules.yaml"), rules()?.to_string())?;
    let cases = fs::read_to_string(file("tests/alerts.yaml"))?;
    for alert in rules()?["groups"][0]["rules"].as_array().context("rules")? {
        let alert = alert["alert"].as_str().context("alert")?;
        ensure!(
            cases.matches(&format!("alertname: {alert}\n")).count() >= 2,
            "{alert} has no case, or none where it is silent"
        );
    }
    fs::write(dir.join("tests.yaml"), cases)?;
    let promtool = cluster.assets().join("promtool");
    let output = Command::new(promtool).args(["test", "rules", "tests.yaml"]).current_dir(dir).output().await?;
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    ensure!(output.status.success() && printed.contains("SUCCESS"), "{printed}");
    Ok(())
}
