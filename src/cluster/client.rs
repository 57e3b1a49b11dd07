//! The client of the API server: its limits, and the layers that every request passes.

pub use super::answer::{CallError, chain, said, why};
use super::api::is_sound;
use super::fitting::Fitting;
use super::proxy;
use crate::metrics::Metrics;
use crate::outside::shown;
use crate::timing::{ANSWER_LIMIT, CALL_LIMIT};
use anyhow::{Result, anyhow};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::rt::TokioExecutor;
use kube::client::{AuthError, Body, ClientBuilder, ConfigExt, DynBody};
use kube::config::AuthInfo;
use kube::{Client, Config};
use std::sync::{Arc, OnceLock};
use std::task::{self, Poll};
use std::time::Duration;
use tower::util::BoxService;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};

/// A client that sees uninitialized objects, whose own writes never wait for initializers, and that counts its
/// requests.
///
/// # Errors
/// If `config` has a setting that cannot be used.
pub fn connect(config: Config, metrics: &Arc<Metrics>) -> Result<Client> {
    connect_to(None, config, metrics)
}

/// As [`connect`]. The errors of requests without an answer name `place`, the server and where its address comes from.
///
/// # Errors
/// If `config` has a setting that cannot be used.
pub fn connect_to(place: Option<String>, config: Config, metrics: &Arc<Metrics>) -> Result<Client> {
    let counted = RequestCount { metrics: metrics.clone() };
    let inclusive = tower::util::MapRequestLayer::new(include_uninitialized);
    let user = config.auth_info.clone();
    let proxy = config.proxy_url.as_ref().map(proxy::shown);
    let by_proxy = move |source: BoxError| match &proxy {
        Some(proxy) => ByProxy { proxy: proxy.clone(), source }.into(),
        None => source,
    };
    let at_place = move |source: BoxError| match &place {
        Some(place) => AtPlace { place: place.clone(), source }.into(),
        None => source,
    };
    let socks = config.proxy_url.clone().and_then(|proxy| Some((proxy::socks_user(&proxy)?, proxy)));
    let built = match socks {
        Some((user, proxy)) => by_socks(&config, proxy, user),
        None => ClientBuilder::try_from(config),
    };
    let builder = built.map_err(|error| unusable(&error, &user))?;
    Ok(builder
        .with_layer(&tower::util::MapErrLayer::new(by_proxy))
        .with_layer(&tower::util::MapErrLayer::new(at_place))
        .with_layer(&Fitting::new(request_limit(ANSWER_LIMIT)))
        .with_layer(&inclusive)
        .with_layer(&counted)
        .build())
}

/// `config` with the token of its exec plugin. kube runs the plugin three times for each client. A command must not
/// make its user wait, or answer, three times. A long-lived client needs the plugin itself, for the next token.
///
/// # Errors
/// If the plugin gives no credentials.
pub async fn logged_in(mut config: Config) -> Result<Config> {
    if config.auth_info.exec.is_none() || config.auth_info.auth_provider.is_some() {
        return Ok(config);
    }
    let layer = config.auth_layer().map_err(|error| unusable(&error, &config.auth_info))?;
    // A certificate does not appear in a header.
    let Some(layer) = layer else { return Ok(config) };
    let echo = tower::service_fn(|request: Request<Body>| async move {
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = request.headers().clone();
        Ok::<_, BoxError>(response)
    });
    let seen = layer.layer(echo).oneshot(Request::new(Body::empty())).await.map_err(|error| anyhow!(chain(&*error)))?;
    let header = seen.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
    if let Some(token) = header.and_then(|header| header.strip_prefix("Bearer ")) {
        config.auth_info.token = Some(token.to_owned().into());
    }
    Ok(config)
}

/// The error for a client of `user` that cannot be made.
fn unusable(error: &kube::Error, user: &AuthInfo) -> anyhow::Error {
    match error {
        kube::Error::Auth(error) => refused(error, user),
        error => anyhow!(chain(error)),
    }
}

/// The error for credentials of `user` that cannot be used, with the fix.
fn refused(error: &AuthError, user: &AuthInfo) -> anyhow::Error {
    if let Some(provider) = &user.auth_provider {
        let instead = match provider.name.as_str() {
            "gcp" => "install gke-gcloud-auth-plugin, and run `gcloud container clusters get-credentials CLUSTER`",
            "azure" => "install kubelogin, and run `kubelogin convert-kubeconfig`",
            _ => "use an exec plugin, or the auth provider `oidc`",
        };
        return anyhow!(
            "the auth provider `{}` of the kubeconfig cannot be used: {}; kubectl has none since 1.26: {instead}",
            provider.name,
            auth_message(error)
        );
    }
    let Some(exec) = &user.exec else {
        return anyhow!("the credentials of the kubeconfig cannot be used: {}", chain(error));
    };
    let command = exec.command.as_deref().unwrap_or("(none)");
    let hint = exec.install_hint.as_deref().map(|hint| format!("\n{}", hint.trim_end())).unwrap_or_default();
    match error {
        AuthError::AuthExecStart(error) => {
            anyhow!("the exec plugin `{command}` of the kubeconfig cannot be started: {error}; install it{hint}")
        }
        error => anyhow!("the exec plugin `{command}` of the kubeconfig gives no credentials: {}", auth_message(error)),
    }
}

/// The message of `error`, without details for programmers of kube.
fn auth_message(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = said.trim();
            if said.is_empty() { out.status.to_string() } else { format!("{}: {said}", out.status) }
        }
        // This message is about the build features of kube.
        AuthError::AuthExec(message) if message.contains("feature") => "it has no `cmd-path`".to_owned(),
        error => chain(error),
    }
}

/// The connection type of kube.
type Connection = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// The client builder for a socks5 proxy with user and password, because kube sends these to HTTP proxies only.
fn by_socks(
    config: &Config,
    proxy: Uri,
    (user, password): (String, String),
) -> kube::Result<ClientBuilder<Connection>> {
    let mut direct = HttpConnector::new();
    direct.enforce_http(false);
    direct.set_connect_timeout(config.connect_timeout);
    let socks = SocksV5::new(proxy, direct).with_auth(user, password);
    let connector = config.rustls_https_connector_with_connector(socks)?;
    let client = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .map_response(|response: Response<Incoming>| {
            response.map(|body| Box::new(body.map_err(BoxError::from)) as Box<DynBody>)
        })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace.clone()))
}

/// The cause why a request through a proxy has no answer.
#[derive(Debug, thiserror::Error)]
#[error("by the proxy {proxy}")]
struct ByProxy {
    proxy: String,
    source: BoxError,
}

/// The cause why a request to a server has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{place}")]
struct AtPlace {
    place: String,
    source: BoxError,
}

/// The time limit for requests, if one is set.
static REQUEST_LIMIT: OnceLock<Duration> = OnceLock::new();

/// Lets every request of this process fail after `limit`, as `--request-timeout` of kubectl does; zero means never.
/// Commands call this before their first request. The operator has its own limits.
pub fn limit_requests(limit: Duration) {
    /// Practically never, and small enough to add to a clock.
    const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    // The first setting wins.
    let _ = REQUEST_LIMIT.set(if limit.is_zero() { NEVER } else { limit });
}

/// The limit that was set, else `default`.
fn request_limit(default: Duration) -> Duration {
    REQUEST_LIMIT.get().copied().unwrap_or(default)
}

/// Adds `includeUninitialized=1` to reads and creates.
///
/// Servers below 1.14 hide uninitialized objects from lists and watches without it, and make a create wait for all
/// initializers, those of our own events and leases included. Later servers ignore it. Below 1.12 only the literal
/// `1` is understood.
fn include_uninitialized(mut request: Request<Body>) -> Request<Body> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return request;
    }
    let old = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let separator = match old {
        old if !old.contains('?') => "?",
        old if old.ends_with(['?', '&']) => "",
        _ => "&",
    };
    if let Ok(uri) = format!("{old}{separator}includeUninitialized=1").parse::<Uri>() {
        *request.uri_mut() = uri;
    }
    request
}

/// Counts requests by verb and answer. Sends none whose path a server would resolve or split: a second look, beside
/// [`Api`](super::api::Api).
struct RequestCount {
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for RequestCount {
    type Service = RequestCountService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RequestCountService { inner, metrics: self.metrics.clone() }
    }
}

#[derive(Clone)]
struct RequestCountService<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B> Service<Request<Body>> for RequestCountService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !is_sound(request.uri().path()) {
            let error = format!("the path of a request is not sound: {}", shown(request.uri().path()));
            return Box::pin(async { Err(error.into()) });
        }
        let metrics = self.metrics.clone();
        let verb = verb(&request);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            metrics.process.api_request(verb, answer.as_ref().ok().map(|answer| answer.status().as_u16()));
            answer
        })
    }
}

fn verb(request: &Request<Body>) -> &'static str {
    let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    match request.method().as_str() {
        "GET" if watching => "watch",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// Delays between attempts, without end: `first`, doubling to `longest`, with jitter, which at most doubles each.
pub fn backoff(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(first)
        .with_max_delay(longest)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Waits for `call`, at most [`CALL_LIMIT`] or the limit of [`limit_requests`].
///
/// # Errors
/// [`CallError`]. A timeout counts as no answer.
pub async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    let limit = request_limit(CALL_LIMIT);
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(CallError::from),
        Err(_) => Err(CallError::Away(format!("no answer in {}", humantime::format_duration(limit)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_creates_include_uninitialized_objects_and_other_writes_are_untouched() {
        let sent = |method: &str, uri: &str| {
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).expect("request");
            include_uninitialized(request).uri().to_string()
        };
        assert_eq!(sent("GET", "/api/v1/pods"), "/api/v1/pods?includeUninitialized=1");
        assert_eq!(sent("GET", "/api/v1/pods?&limit=5"), "/api/v1/pods?&limit=5&includeUninitialized=1");
        assert_eq!(sent("POST", "/api/v1/pods?"), "/api/v1/pods?includeUninitialized=1");
        assert_eq!(sent("PATCH", "/api/v1/pods/a?"), "/api/v1/pods/a?");
    }
}
