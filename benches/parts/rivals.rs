//! The rivals of the engines: hand-written equivalents for the same sidecar.

use crate::support::file;
use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use json_patch::Patch;
use serde_json::{Value, json};
use sidecar_policy::api::pod_security::Standard;
use sidecar_policy::engine::webhook::authority::{self, Action, Lifetimes};
use sidecar_policy::inject;
use sidecar_policy::policy::{Policy, Site};
use sidecar_policy::workload::Workload;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};

/// The API path of registrations.
pub(super) const ADMISSION: &str = "/apis/admissionregistration.k8s.io";

/// The container of all rivals, and of the compared policy.
pub(super) fn sidecar() -> Value {
    json!({ "name": "sidecar", "image": "envoy:1" })
}

/// `policy`, parsed as by the operator.
pub(super) fn parsed(policy: &Value) -> Result<Policy> {
    Policy::parse(policy, &Site::new("scpol-system", [], [])).map_err(|violations| anyhow!("{violations:?}"))
}

/// The operator's patch of `workload` by `policy`.
pub(super) fn planned(policy: &Policy, workload: &Workload) -> Result<Patch> {
    let template = [policy.as_written()];
    inject::plan(workload, &template, &template, Standard::NEWEST).map_err(|conflict| anyhow!(conflict.message))
}

/// A webhook that answers every review with the same patch, as long as this value lives.
pub(super) struct Nothing {
    /// The called URL.
    url: String,
    /// The CA bundle, base64 of PEM.
    bundle: String,
    /// Closing it ends the process.
    _input: ChildStdin,
}

impl Nothing {
    /// Starts a webhook in Go with the standard library, which answers with `patch`. Builds `benches/nothing` first.
    pub(super) fn start(patch: &Value) -> Result<Self> {
        let binary = file("target/bench/nothing");
        let built = Command::new("go")
            .args(["build", "-trimpath", "-buildvcs=false", "-o"])
            .arg(&binary)
            .arg(".")
            .current_dir(file("benches/nothing"))
            .envs([("GOWORK", "off"), ("CGO_ENABLED", "0")])
            .status()
            .context("the webhook that does nothing is written in Go: install Go 1.26 or later")?;
        ensure!(built.success(), "`go build` of benches/nothing failed: {built}");
        let names = ["127.0.0.1".to_owned()];
        let made = authority::carry_out(Action::Replace, None, &names, Timestamp::now(), &Lifetimes::default())?;
        let mut process = Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = process.stdin.take().context("its input")?;
        serde_json::to_writer(&input, &json!({ "certificate": made.leaf, "key": made.leaf_key, "patch": patch }))?;
        input.flush()?;
        let mut address = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut address)?;
        ensure!(!address.is_empty(), "the webhook that does nothing did not start: {}", process.wait()?);
        let url = format!("https://{}/", address.trim_end());
        Ok(Self { url, bundle: STANDARD.encode(made.bundle), _input: input })
    }

    /// `registration` of an engine, changed to call this webhook, under another name.
    pub(super) fn registered_as(&self, registration: &Value) -> Value {
        let mut own = registration.clone();
        own["metadata"] = json!({ "name": "nothing" });
        for entry in own["webhooks"].as_array_mut().into_iter().flatten() {
            entry["clientConfig"] = json!({ "url": self.url, "caBundle": self.bundle });
        }
        own
    }
}

/// A MutatingAdmissionPolicy that adds the container, and its binding: paths and objects. It asks whether the container
/// exists, as the example of the Kubernetes documentation does. Otherwise a pod that has it would be rejected.
pub(super) fn literal() -> Vec<(String, Value)> {
    let container = sidecar();
    let expression = format!(
        r#"[JSONPatch{{op: "add", path: "/spec/containers/-", value: {{"name": {}, "image": {}}}}}]"#,
        container["name"], container["image"]
    );
    let is_missing = format!("!object.spec.containers.exists(c, c.name == {})", container["name"]);
    let conditions = json!([{ "name": "does-not-already-have-sidecar", "expression": is_missing }]);
    let (api, metadata) = ("admissionregistration.k8s.io/v1", json!({ "name": "literal" }));
    let policy = json!({
        "apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": metadata,
        "spec": {
            "failurePolicy": "Ignore", "reinvocationPolicy": "Never",
            "matchConstraints": { "resourceRules": [
                { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] },
            ] },
            "matchConditions": conditions,
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }],
        },
    });
    let binding = json!({
        "apiVersion": api, "kind": "MutatingAdmissionPolicyBinding", "metadata": metadata, "spec": { "policyName": "literal" },
    });
    vec![
        (format!("{ADMISSION}/v1/mutatingadmissionpolicies"), policy),
        (format!("{ADMISSION}/v1/mutatingadmissionpolicybindings"), binding),
    ]
}
