//! The rivals of the engines: hand-written equivalents for the same sidecar, and minimal ones.

use crate::support::file;
use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use json_patch::Patch;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use sidecar_policy::api::pod_security::Standard;
use sidecar_policy::engine::webhook::authority::{self, Action, Lifetimes, StoredKeys};
use sidecar_policy::inject;
use sidecar_policy::policy::{Policy, Site};
use sidecar_policy::workload::Workload;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

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
    /// Closing it ends the process, if there is a separate one.
    _input: Option<ChildStdin>,
}

impl Nothing {
    /// Starts a webhook in Go with the standard library, which answers with `patch`. Builds `benches/nothing` first.
    pub(super) fn in_go(patch: &Value) -> Result<Self> {
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
        let made = authority()?;
        let mut process = Command::new(binary).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = process.stdin.take().context("its input")?;
        serde_json::to_writer(&input, &json!({ "certificate": made.leaf, "key": made.leaf_key, "patch": patch }))?;
        input.flush()?;
        let mut address = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut address)?;
        ensure!(!address.is_empty(), "the webhook that does nothing did not start: {}", process.wait()?);
        let url = format!("https://{}/", address.trim_end());
        Ok(Self { url, bundle: STANDARD.encode(made.bundle), _input: Some(input) })
    }

    /// Starts a minimal webhook, which answers with `patch` and reads only the `uid`. It runs on one thread, as the
    /// operator does, separate from the clients.
    pub(super) fn bare(patch: &Value) -> Result<Self> {
        let made = authority()?;
        let chain = CertificateDer::pem_slice_iter(made.leaf.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(made.leaf_key.as_bytes())?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let url = format!("https://{}/", listener.local_addr()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let patch = STANDARD.encode(patch.to_string()).into();
        std::thread::spawn(move || runtime.block_on(serve(listener, TlsAcceptor::from(Arc::new(config)), patch)));
        Ok(Self { url, bundle: STANDARD.encode(made.bundle), _input: None })
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

/// A certificate for loopback, and its authority.
fn authority() -> Result<StoredKeys> {
    let names = ["127.0.0.1".to_owned()];
    Ok(authority::carry_out(Action::Replace, None, &names, Timestamp::now(), &Lifetimes::default())?)
}

/// Serves reviews. `patch` is base64.
async fn serve(listener: std::net::TcpListener, acceptor: TlsAcceptor, patch: Arc<str>) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A broken connection makes the caller's create fail, so it is noticed there.
        tokio::spawn(connection(stream, acceptor.clone(), patch.clone()));
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, patch: Arc<str>) -> Result<()> {
    stream.set_nodelay(true)?;
    let stream = TokioIo::new(acceptor.accept(stream).await?);
    let service = service_fn(move |request| answer(request, patch.clone()));
    Ok(http1::Builder::new().serve_connection(stream, service).await?)
}

async fn answer(request: Request<Incoming>, patch: Arc<str>) -> Result<Response<Full<Bytes>>> {
    let body = request.into_body().collect().await?.to_bytes();
    // Only the necessary part is parsed: the first `uid` is the request's, because API servers write it before the
    // object.
    let text = std::str::from_utf8(&body)?;
    let uid = text.split_once(r#""uid":""#).and_then(|(_, rest)| rest.split('"').next()).context("no uid")?;
    let version = if text.contains("admission.k8s.io/v1beta1") { "v1beta1" } else { "v1" };
    let answer = format!(
        r#"{{"apiVersion":"admission.k8s.io/{version}","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true,"patchType":"JSONPatch","patch":"{patch}"}}}}"#
    );
    Ok(Response::builder().header("Content-Type", "application/json").body(Full::new(answer.into()))?)
}

/// The check of a hand-written MutatingAdmissionPolicy before it adds the container.
#[derive(Clone, Copy)]
pub(super) enum Asks {
    /// Whether the container exists, as in the example of the Kubernetes documentation. Otherwise a pod that has it
    /// would be rejected.
    WhetherItIsThere,
    /// Nothing.
    Nothing,
}

/// A MutatingAdmissionPolicy that adds the container, and its binding: paths and objects.
pub(super) fn literal(asks: Asks) -> Vec<(String, Value)> {
    let container = sidecar();
    let expression = format!(
        r#"[JSONPatch{{op: "add", path: "/spec/containers/-", value: {{"name": {}, "image": {}}}}}]"#,
        container["name"], container["image"]
    );
    let conditions = match asks {
        Asks::WhetherItIsThere => {
            let expression = format!("!object.spec.containers.exists(c, c.name == {})", container["name"]);
            json!([{ "name": "does-not-already-have-sidecar", "expression": expression }])
        }
        Asks::Nothing => json!([]),
    };
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
