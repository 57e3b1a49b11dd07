//! The Grafana dashboard is generated from `config/grafana/dashboard.yaml`.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::tools::{assert_current, root};
use serde_json::{Value, json};
use std::fs;

const SOURCE: &str = "config/grafana/dashboard.yaml";
const DASHBOARD: &str = "config/grafana/dashboard.json";
/// Grafana's grid: 24 columns.
const COLUMNS: usize = 24;
const WIDTH: usize = 8;
const HEIGHT: usize = 8;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// A variable that lists the values of a label.
fn variable(name: &str, metric: &str) -> Value {
    json!({
        "name": name, "label": name, "type": "query", "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "query": { "query": format!("label_values({metric}, {name})"), "refId": name }, "refresh": 2,
        "includeAll": true, "multi": true, "allValue": ".*", "current": { "text": "All", "value": "$__all" }, "sort": 1,
    })
}

fn panel(source: &Value, id: usize, (x, y): (usize, usize)) -> Value {
    let kind = source["kind"].as_str().unwrap_or("timeseries");
    let targets = list(&source["queries"]).iter().zip(b'A'..).map(|(query, letter)| {
        json!({
            "refId": (letter as char).to_string(), "expr": query["expr"], "legendFormat": query["legend"],
            "instant": kind != "timeseries", "range": kind == "timeseries",
            "format": if kind == "table" { "table" } else { "time_series" },
        })
    });
    let mut defaults = json!({ "unit": source["unit"], "min": 0 });
    if source["unit"] == "percentunit" {
        defaults["max"] = json!(1);
    }
    json!({
        "id": id, "type": kind, "title": source["title"], "description": source["description"].as_str().unwrap_or_default(),
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "gridPos": { "x": x, "y": y, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": defaults, "overrides": [] },
        "targets": targets.collect::<Vec<_>>(),
    })
}

fn dashboard(source: &Value) -> Value {
    let (mut panels, mut y) = (Vec::new(), 0);
    for row in list(&source["rows"]) {
        let id = panels.len() + 1;
        let place = json!({ "x": 0, "y": y, "w": COLUMNS, "h": 1 });
        panels.push(json!({ "id": id, "type": "row", "title": row["title"], "collapsed": false, "gridPos": place, "panels": [] }));
        y += 1;
        let members = list(&row["panels"]);
        for (index, source) in members.iter().enumerate() {
            let across = COLUMNS / WIDTH;
            let place = (index % across * WIDTH, y + index / across * HEIGHT);
            panels.push(panel(source, panels.len() + 1, place));
        }
        y += members.len().div_ceil(COLUMNS / WIDTH) * HEIGHT;
    }
    let datasource =
        json!({ "name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus" });
    json!({
        "uid": "sidecar-policy", "title": source["title"], "tags": ["kubernetes", "sidecar-policy"], "schemaVersion": 39,
        "editable": true, "graphTooltip": 1, "refresh": "30s", "time": { "from": "now-6h", "to": "now" }, "version": 1,
        "templating": { "list": [
            datasource, variable("policy", "scpol_policy_workloads"), variable("namespace", "scpol_namespace_workloads"),
        ] },
        "panels": panels,
    })
}

#[test]
fn the_dashboard_is_what_its_source_says() {
    let source: Value = serde_saphyr::from_str(&read(SOURCE)).unwrap();
    let generated = serde_json::to_string_pretty(&dashboard(&source)).unwrap() + "\n";
    assert_current(DASHBOARD, &generated, "install-files");
}

#[test]
fn every_query_of_the_dashboard_can_be_parsed_and_every_panel_says_what_it_shows() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut queries = 0;
    for panel in list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        for target in list(&panel["targets"]) {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            promql_parser::parser::parse(&expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
            queries += 1;
        }
    }
    assert!(queries >= 15, "{queries} queries");
}
