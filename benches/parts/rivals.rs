//! What engines are held against: what would be written by hand for the same sidecar, and the least that can be.

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
use sidecar_policy::engine::webhook::authority::{self, Action, Lifetimes, Stored};
use sidecar_policy::inject;
use sidecar_policy::policy::{Policy, Site};
use sidecar_policy::workload::Workload;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Where the objects of this group are.
pub(super) const ADMISSION: &str = "/apis/admissionregistration.k8s.io";

/// The container of all of them, and of the policy that they are compared with.
pub(super) fn sidecar() -> Value {
    json!({ "name": "sidecar", "image": "envoy:1" })
}

/// `policy`, as the operator reads it.
pub(super) fn parsed(policy: &Value) -> Result<Policy> {
    Policy::parse(policy, &Site::new("scpol-system", [], [])).map_err(|violations| anyhow!("{violations:?}"))
}

/// What the operator adds to `workload` by `policy`.
pub(super) fn planned(policy: &Policy, workload: &Workload) -> Result<Patch> {
    let template = [&policy.template];
    inject::plan(workload, &template, &template).map_err(|conflict| anyhow!(conflict.message))
}

/// A webhook that does nothing, as long as this lives: whatever it is asked, it answers with one constant patch.
pub(super) struct Nothing {
    /// Where it is called.
    url: String,
    /// By what it is trusted, base64 of PEM.
    bundle: String,
    /// What ends it when it is closed, if it is a process of its own.
    _input: Option<ChildStdin>,
}

impl Nothing {
    /// Starts one as it is written with Go's standard library, which answers with `patch`: `benches/nothing`, built first.
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

    /// Starts the least that can be, which answers with `patch`: it looks for the `uid` and reads nothing else. On one thread, as the
    /// operator is, and a thread of its own, so that it does not wait for the clients.
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

    /// `registration`, by which an engine is called, as one by which this is called instead, of another name.
    pub(super) fn registered_as(&self, registration: &Value) -> Value {
        let mut own = registration.clone();
        own["metadata"] = json!({ "name": "nothing" });
        for entry in own["webhooks"].as_array_mut().into_iter().flatten() {
            entry["clientConfig"] = json!({ "url": self.url, "caBundle": self.bundle });
        }
        own
    }
}

/// A certificate for loopback, and who has signed it.
fn authority() -> Result<Stored> {
    let names = ["127.0.0.1".to_owned()];
    Ok(authority::carry_out(Action::Replace, None, &names, Timestamp::now(), &Lifetimes::default())?)
}

/// `patch` is base64.
async fn serve(listener: std::net::TcpListener, acceptor: TlsAcceptor, patch: Arc<str>) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A connection that breaks is the caller's to notice: his create fails.
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
    // Only what it needs is looked for: the first `uid` is the request's, which API servers write before the object.
    let text = std::str::from_utf8(&body)?;
    let uid = text.split_once(r#""uid":""#).and_then(|(_, rest)| rest.split('"').next()).context("no uid")?;
    let version = if text.contains("admission.k8s.io/v1beta1") { "v1beta1" } else { "v1" };
    let answer = format!(
        r#"{{"apiVersion":"admission.k8s.io/{version}","kind":"AdmissionReview","response":{{"uid":"{uid}","allowed":true,"patchType":"JSONPatch","patch":"{patch}"}}}}"#
    );
    Ok(Response::builder().header("Content-Type", "application/json").body(Full::new(answer.into()))?)
}

/// What a MutatingAdmissionPolicy that is written by hand asks before it adds the container.
#[derive(Clone, Copy)]
pub(super) enum Asks {
    /// Whether it is there already, as the example in Kubernetes' documentation does. A pod that has it is refused otherwise.
    WhetherItIsThere,
    /// Nothing.
    Nothing,
}

/// A MutatingAdmissionPolicy that adds the container, and what binds it: where they are posted, and they.
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
