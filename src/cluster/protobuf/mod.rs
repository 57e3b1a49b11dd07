//! Workloads are watched in protobuf, and seen as JSON.
//!
//! To write an object as JSON costs an API server many times what protobuf costs; and from 1.17 an event is encoded once for all who watch
//! in one encoding, which is protobuf for all of Kubernetes' own. So we ask for it where we know the kind, and make of it the JSON
//! that we would have got, but for `status` and `managedFields`, by which nobody decides, and for `null`, which stands there for what is
//! not there. What a newer server has and we do not know is not left out: the watch ends, and goes on in JSON.
//!
//! Clients take nothing but JSON. So each workload is handed on as it came, as a text that an [`Object`](super::object::Object) reads: an API
//! server has no text where an object belongs. What is asked for of it is read when it is asked for.
//!
//! `tests/protobuf/schema.sh` writes `schema.txt`, what we know, from Kubernetes' own types.

mod json;
mod schema;

use super::pages::is_watch;
use crate::survival::lock;
use futures::future::BoxFuture;
use futures::{TryStreamExt, stream};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Either, Full, StreamBody};
use hyper::body::{Bytes, Frame};
pub use json::Untold;
pub(super) use json::{Extent, bytes_of, value};
use kube::client::Body;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use tower::{BoxError, Layer, Service};
use tracing::info;

/// What is watched in protobuf: the kinds of `schema.txt`, everywhere in the cluster.
/// StatefulSets are not among them: protobuf leaves out of which kind their `volumeClaimTemplates` are.
const WATCHED: [&str; 7] = [
    "/api/v1/pods",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs",
    "/apis/batch/v1beta1/cronjobs",
];

const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// JSON where it is no kind of Kubernetes' own, or an old server has no protobuf.
pub const ACCEPTED: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");

/// No event is longer: API servers store no object of more than 3 MB (etcd's `--max-request-bytes`, and theirs).
const LONGEST: usize = 64 << 20;
/// So many bytes are kept for the next event.
const KEPT: usize = 64 << 10;

/// The paths that are watched as JSON, since something there was not known.
type Unknown = Arc<Mutex<HashSet<String>>>;

/// Asks for protobuf where a workload is watched, and answers as if JSON had come. Who asks for it himself with [`ACCEPTED`] is told in
/// JSON why he is refused, and gets the protobuf of anything else.
#[derive(Clone, Default)]
pub struct Protobuf {
    unknown: Unknown,
}

impl<S> Layer<S> for Protobuf {
    type Service = ProtobufService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ProtobufService { inner, unknown: self.unknown.clone() }
    }
}

/// What [`Protobuf`] makes of a client's service.
pub struct ProtobufService<S> {
    inner: S,
    unknown: Unknown,
}

impl<S, B> Service<Request<Body>> for ProtobufService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Either<B, UnsyncBoxBody<Bytes, BoxError>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let (path, is_watch) = (request.uri().path().to_owned(), is_watch(&request));
        if is_watch && WATCHED.contains(&path.as_str()) && !lock(&self.unknown).contains(&path) {
            request.headers_mut().insert(ACCEPT, ACCEPTED);
        }
        let unknown = self.unknown.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if !is_protobuf(answer.headers()) {
                return Ok(answer.map(Either::Left));
            }
            let (mut parts, body) = answer.into_parts();
            let body = match (parts.status.is_success(), is_watch) {
                (true, true) => events(body, path, unknown),
                (true, false) => return Ok(Response::from_parts(parts, Either::Left(body))),
                (false, _) => refusal(body, path, &unknown).await?,
            };
            parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(Response::from_parts(parts, Either::Right(body)))
        })
    }
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|content_type| content_type.starts_with(MEDIA_TYPE))
}

/// The events of a watch of `path`, a line each. If there is something in one that is not known, they end with an error, from before
/// which the watch goes on in JSON.
fn events<B>(body: B, path: String, unknown: Unknown) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let begin = (Box::pin(BodyDataStream::new(body)), Vec::new());
    let lines = stream::try_unfold(begin, move |(mut body, mut rest)| {
        let (path, unknown) = (path.clone(), unknown.clone());
        async move {
            while let Some(data) = body.try_next().await.map_err(Into::into)? {
                rest.extend_from_slice(&data);
                match lines(&mut rest) {
                    Ok(lines) if lines.is_empty() => {}
                    Ok(lines) => return Ok(Some((Frame::data(Bytes::from(lines)), (body, rest)))),
                    Err(error) => {
                        info!(path, %error, "The watch goes on in JSON");
                        lock(&unknown).insert(path);
                        return Err(error.into());
                    }
                }
            }
            Ok::<_, BoxError>(None)
        }
    });
    StreamBody::new(lines).boxed_unsync()
}

/// Takes every event of a watch that is whole out of `bytes`, and tells them in JSON, a line each, in which a workload is a text that an
/// [`Object`](super::object::Object) reads. Before each stands, in four bytes, how long it is.
///
/// # Errors
/// If there is something in one that is not known, or that is no protobuf of Kubernetes.
pub fn lines(bytes: &mut Vec<u8>) -> Result<String, Untold> {
    let (mut lines, mut rest) = (String::new(), bytes.as_slice());
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        if length > LONGEST {
            return Err(Untold::Malformed("an event that is too long"));
        }
        let Some((event, after)) = after.split_at_checked(length) else { break };
        // A text has a third more bytes.
        lines.reserve(length + length / 2);
        json::event(event, &mut lines)?;
        rest = after;
    }
    let taken = bytes.len() - rest.len();
    bytes.drain(..taken);
    bytes.shrink_to(KEPT);
    Ok(lines)
}

/// Why a request of `path` has been refused, which is a `Status`. Of one that cannot be told nothing is: its code stands in the head of
/// the answer.
async fn refusal<B>(body: B, path: String, unknown: &Unknown) -> Result<UnsyncBoxBody<Bytes, BoxError>, BoxError>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
    let status = match value(&bytes, Extent::Whole) {
        Ok(status) => status.to_string(),
        Err(error) => {
            info!(path, %error, "Why a request was refused cannot be told");
            // What is watched is asked for in JSON next time.
            if WATCHED.contains(&path.as_str()) {
                lock(unknown).insert(path);
            }
            String::new()
        }
    };
    Ok(Full::new(Bytes::from(status)).map_err(Into::into).boxed_unsync())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Object;
    use kube::core::WatchEvent;
    use serde_json::{Value, json};
    use tower::{ServiceExt, service_fn};

    /// A message of one field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        // A tag of more than seven bits goes on in the next byte.
        let tag = u16::from(number) << 3 | 2;
        let tag = if tag < 0x80 { vec![tag as u8] } else { vec![tag as u8 | 0x80, (tag >> 7) as u8] };
        [&tag[..], &[u8::try_from(bytes.len()).expect("short")], bytes].concat()
    }

    fn object(version: &str, kind: &str, fields: &[u8]) -> Vec<u8> {
        let kind = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &kind), field(2, fields)].concat()
    }

    fn framed(kind: &str, object: &[u8]) -> Vec<u8> {
        let event = [field(1, kind.as_bytes()), field(2, &field(1, object))].concat();
        [&u32::try_from(event.len()).expect("short").to_be_bytes(), event.as_slice()].concat()
    }

    fn pod(name: &str) -> Vec<u8> {
        object("v1", "Pod", &field(1, &field(1, name.as_bytes())))
    }

    /// What a client makes of the lines.
    fn events_of(lines: &str) -> Vec<WatchEvent<Object>> {
        lines.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    }

    #[test]
    fn events_come_in_any_pieces_and_are_a_line_each() {
        let status = object("v1", "Status", &[6 << 3, 0x9a, 3]);
        let bytes = [framed("ADDED", &pod("a")), framed("DELETED", &pod("b")), framed("ERROR", &status)].concat();
        for size in 1..=bytes.len() {
            let (mut rest, mut told) = (Vec::new(), String::new());
            for piece in bytes.chunks(size) {
                rest.extend_from_slice(piece);
                told.push_str(&lines(&mut rest).expect("known"));
            }
            assert!(rest.is_empty());
            let [WatchEvent::Added(a), WatchEvent::Deleted(b), WatchEvent::Error(status)] = &events_of(&told)[..]
            else {
                panic!("{told}")
            };
            let expected = |name: &str| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name } });
            assert_eq!((a.name(), a.value(), b.value(), status.code), ("a", expected("a"), expected("b"), 410));
        }
    }

    #[test]
    fn of_an_object_there_is_what_says_which_it_is_at_once_and_of_its_outline_no_lists_of_the_pod() {
        let pending = field(1, &field(1, b"a.scpol.dev"));
        let metadata = [field(1, b"web"), field(3, b"shop"), field(6, b"7"), field(16, &pending)].concat();
        let pod = [field(2, &field(1, b"app")), field(3, b"Never"), vec![11 << 3, 1]].concat();
        let selector = field(1, &[field(1, b"app"), field(2, b"web")].concat());
        let template = [field(1, &field(11, &[field(1, b"app"), field(2, b"web")].concat())), field(2, &pod)].concat();
        let spec = [field(2, &selector), field(3, &template)].concat();
        let deployment = object("apps/v1", "Deployment", &[field(1, &metadata), field(2, &spec)].concat());
        let told = lines(&mut framed("ADDED", &deployment)).expect("known");
        let [WatchEvent::Added(object)] = &events_of(&told)[..] else { panic!("one event") };
        assert_eq!((object.name(), object.namespace(), object.version()), ("web", "shop", 7));
        assert_eq!(object.pending().collect::<Vec<_>>(), ["a.scpol.dev"]);
        let mut expected = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "shop", "resourceVersion": "7", "initializers": { "pending": [{ "name": "a.scpol.dev" }] } },
            "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "app" }], "restartPolicy": "Never", "hostNetwork": true },
            } },
        });
        assert_eq!(object.value(), expected);
        expected["spec"]["template"]["spec"].as_object_mut().map(|spec| spec.remove("containers"));
        assert_eq!(object.outline(), expected);
    }

    #[test]
    fn what_is_not_known_is_an_error_that_says_what_and_no_bytes_panic() {
        // What is found to be known can be read.
        let told = |object: &[u8]| {
            let told = json::event(&framed("ADDED", object)[4..], &mut String::new());
            let read: Result<Value, _> = value(object, Extent::Whole);
            assert_eq!(told, read.map(drop));
            drop((value(object, Extent::Outline), value(object, Extent::Metadata)));
            told
        };
        let newer = object("v1", "Pod", &field(2, &field(1, &field(15, b"new"))));
        assert_eq!(told(&newer).expect_err("15").to_string(), "field 15 of core/v1.Volume is not known");
        assert_eq!(told(&object("v2", "Pod", b"")).expect_err("v2").to_string(), "Pod of v2 is not known");
        // Who has written what may be a list, of which nothing is told.
        let twice = field(1, &[field(17, b""), field(17, b"")].concat());
        assert_eq!(told(&object("v1", "Pod", &twice)), Ok(()));
        // Its spec before its metadata; and metadata twice.
        for fields in [[field(2, b""), field(1, b"")], [field(1, b""), field(1, b"")]] {
            assert_eq!(
                told(&object("v1", "Pod", &fields.concat())),
                Err(Untold::Malformed("its fields are not in order"))
            );
        }
        let whole = pod("web");
        for length in 0..whole.len() {
            let _ = told(&whole[..length]);
            for byte in 0..=255 {
                let mut other = whole.clone();
                other[length] = byte;
                let _ = told(&other);
            }
        }
    }

    #[tokio::test]
    async fn a_watch_in_which_something_is_not_known_goes_on_in_json_and_no_other_request_is_changed() {
        let server = service_fn(|request: Request<Body>| async move {
            let body = match request.headers().get(ACCEPT) {
                Some(accept) if *accept == ACCEPTED => framed("ADDED", &object("v1", "Pod", &field(15, b"new"))),
                _ => b"{}".to_vec(),
            };
            let kind = if body == b"{}" { "application/json" } else { MEDIA_TYPE };
            Ok::<_, BoxError>(Response::builder().header(CONTENT_TYPE, kind).body(Full::new(Bytes::from(body)))?)
        });
        let client = Protobuf::default().layer(server);
        let mut client = client.boxed();
        let mut read = async |uri: &str| {
            let request = Request::get(uri).body(Body::empty()).expect("a request");
            let answer = client.ready().await.expect("ready").call(request).await.expect("an answer");
            answer.into_body().collect().await.map(|body| body.to_bytes()).map_err(|error| error.to_string())
        };
        let (json, newer) = (Ok(Bytes::from_static(b"{}")), Err("field 15 of core/v1.Pod is not known".to_owned()));
        assert_eq!(read("/api/v1/pods?limit=100").await, json);
        assert_eq!(read("/api/v1/secrets?watch=true").await, json);
        assert_eq!(read("/api/v1/pods?watch=true").await, newer);
        assert_eq!(read("/api/v1/pods?watch=true").await, json);
        assert_eq!(
            read("/apis/apps/v1/deployments?watch=true").await,
            Err("field 15 of core/v1.Pod is not known".to_owned())
        );
    }

    #[tokio::test]
    async fn why_a_watch_was_refused_is_told_in_json_or_not_at_all() {
        let known = [field(4, b"Forbidden"), vec![6 << 3, 0x93, 3]].concat();
        let newer = [known.clone(), field(15, b"new")].concat();
        for (status, expected) in
            [(known, r#"{"apiVersion":"v1","code":403,"kind":"Status","reason":"Forbidden"}"#), (newer, "")]
        {
            let server = service_fn(move |_: Request<Body>| {
                let body = object("v1", "Status", &status);
                async move {
                    let answer = Response::builder().status(403).header(CONTENT_TYPE, MEDIA_TYPE);
                    Ok::<_, BoxError>(answer.body(Full::new(Bytes::from(body)))?)
                }
            });
            let layer = Protobuf::default();
            let request = Request::get("/api/v1/pods?watch=true").body(Body::empty()).expect("a request");
            let answer = layer.layer(server).oneshot(request).await.expect("an answer");
            assert_eq!(
                (answer.status().as_u16(), &answer.headers()[CONTENT_TYPE]),
                (403, &"application/json".parse().expect("a value"))
            );
            let body = answer.into_body().collect().await.expect("read").to_bytes();
            assert_eq!((body, lock(&layer.unknown).is_empty()), (Bytes::from(expected), !expected.is_empty()));
        }
    }
}
