//! A watch of workloads that shows much rests now and then: what has happened meanwhile then comes at once.
//!
//! For each event that it shows at once an API server wakes up, encodes, encrypts and sends, and so do we, on a machine that has other
//! things to do while many workloads are created. Events that come together cost a part of that. Where nobody waits for us, as they do
//! under Initializers, it is enough to know them half a second later.
//!
//! # Guarantees
//! No event is lost: a watch ends between two events, once all that is there has been read, and goes on from the last one. Where a
//! server has forgotten what came after that, all is listed anew, as after any gap, and that watch never rests again.
//! Nothing is sent for a rest: the request by which a watch goes on waits for its end.

use super::pages::is_watch;
use super::protobuf::WATCHED;
use crate::survival::lock;
use crate::timing;
use futures::future::BoxFuture;
use futures::{Stream, stream};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Either, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::{Duration, Instant};
use tower::{BoxError, Layer, Service};

/// From so many events in one [`timing::Watch::busy_window`] on it is worth a rest: less are not worth the request by which the watch goes on.
const BUSY: usize = 50;

/// Whether watches rest, and which do.
#[derive(Clone)]
pub struct Pace {
    shared: Arc<Shared>,
    timing: &'static timing::Watch,
}

#[derive(Default)]
struct Shared {
    may_rest: AtomicBool,
    /// By path, until when it rests; none for one that never does again.
    rests: Mutex<HashMap<String, Option<Instant>>>,
}

impl Pace {
    /// By which no watch rests yet.
    pub fn new(timing: &'static timing::Watch) -> Self {
        Self { shared: Arc::default(), timing }
    }

    /// Lets watches rest, or not: at first none does.
    pub fn let_rest(&self, may_rest: bool) {
        self.shared.may_rest.store(may_rest, Ordering::Relaxed);
    }

    fn may_rest(&self, path: &str) -> bool {
        // Policies and registrations are to be known at once.
        WATCHED.contains(&path)
            && self.shared.may_rest.load(Ordering::Relaxed)
            && lock(&self.shared.rests).get(path) != Some(&None)
    }

    /// How long a watch of `path` is to rest yet.
    fn left(&self, path: &str) -> Option<Duration> {
        let rests = lock(&self.shared.rests);
        Some(rests.get(path).copied()??.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    fn rest(&self, path: &str) {
        lock(&self.shared.rests).insert(path.to_owned(), Some(Instant::now() + self.timing.busy_rest));
    }

    fn never_again(&self, path: &str) {
        lock(&self.shared.rests).insert(path.to_owned(), None);
    }
}

impl<S> Layer<S> for Pace {
    type Service = PaceService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PaceService { inner, pace: self.clone() }
    }
}

/// What [`Pace`] makes of a client's service.
pub struct PaceService<S> {
    inner: S,
    pace: Pace,
}

impl<S, B> Service<Request<Body>> for PaceService<S>
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

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watched = is_watch(&request).then(|| (self.pace.clone(), request.uri().path().to_owned()));
        // It is sent when it is asked for its answer.
        let answer = self.inner.call(request);
        let Some((pace, path)) = watched else {
            return Box::pin(async move { Ok(answer.await?.map(Either::Left)) });
        };
        Box::pin(async move {
            if let Some(left) = pace.left(&path) {
                tokio::time::sleep(left).await;
            }
            let answer = answer.await?;
            if !answer.status().is_success() || !pace.may_rest(&path) {
                return Ok(answer.map(Either::Left));
            }
            Ok(answer.map(|body| Either::Right(StreamBody::new(events(body, pace, path)).boxed_unsync())))
        })
    }
}

/// The events of a watch of `path`, a line each, until it is to rest.
fn events<B>(body: B, pace: Pace, path: String) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>>
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let mut body = Box::pin(BodyDataStream::new(body));
    let begin = Instant::now();
    let (mut window, mut events, mut is_between) = (begin, 0, true);
    let timing = pace.timing;
    stream::poll_fn(move |context| {
        let Poll::Ready(next) = body.as_mut().poll_next(context) else {
            if events >= BUSY && is_between && begin.elapsed() >= timing.busy_open && pace.may_rest(&path) {
                pace.rest(&path);
                return Poll::Ready(None);
            }
            return Poll::Pending;
        };
        if let Some(Ok(lines)) = &next {
            if window.elapsed() >= timing.busy_window {
                (window, events) = (Instant::now(), 0);
            }
            events += lines.iter().filter(|byte| **byte == b'\n').count();
            is_between = lines.ends_with(b"\n");
            if lines.starts_with(GONE) {
                pace.never_again(&path);
            }
        }
        Poll::Ready(next.map(|lines| lines.map(Frame::data).map_err(Into::into)))
    })
}

/// How an event begins that says that the server has forgotten what came after the last one.
const GONE: &[u8] = br#"{"type":"ERROR""#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;
    use futures::StreamExt;
    use tokio::sync::mpsc::{self, UnboundedSender};
    use tokio::time::{sleep, timeout};
    use tower::service_fn;

    const OPEN: Duration = Timing::short().watch.busy_open;
    const REST: Duration = Timing::short().watch.busy_rest;
    const PODS: &str = "/api/v1/pods?watch=true";
    const EVENT: &str = "{\"type\":\"ADDED\"}\n";

    /// Watches through `pace` until the watch ends, and gives what it has shown. The server shows what comes through the channel.
    fn scene(pace: &Pace) -> (impl AsyncFnMut(&str) -> String, UnboundedSender<String>) {
        let (sender, receiver) = mpsc::unbounded_channel::<String>();
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        let server = service_fn(move |_: Request<Body>| {
            let receiver = receiver.clone();
            let next = |receiver: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>>| async {
                let lines = receiver.lock().await.recv().await?;
                Some((Ok::<_, BoxError>(Frame::data(Bytes::from(lines))), receiver))
            };
            async move { Ok::<_, BoxError>(Response::new(StreamBody::new(stream::unfold(receiver, next)))) }
        });
        let mut client = pace.layer(server);
        let read = async move |uri: &str| {
            let request = Request::get(uri).body(Body::empty()).expect("a request");
            let answer = client.call(request).await.expect("an answer");
            let data = BodyDataStream::new(answer.into_body()).map(|data| data.expect("data"));
            let shown = data.collect::<Vec<_>>().await.concat();
            String::from_utf8(shown).expect("text")
        };
        (read, sender)
    }

    /// Shows `parts`, each so long after the one before.
    fn show(sender: &UnboundedSender<String>, parts: &[(Duration, &str)]) {
        let parts: Vec<_> = parts.iter().map(|(pause, part)| (*pause, (*part).to_owned())).collect();
        let sender = sender.clone();
        tokio::spawn(async move {
            for (pause, part) in parts {
                sleep(pause).await;
                sender.send(part).expect("read");
            }
        });
    }

    #[tokio::test]
    async fn a_busy_watch_ends_between_two_events_and_begins_again_after_a_rest() {
        let pace = Pace::new(&Timing::short().watch);
        pace.let_rest(true);
        let (mut read, sender) = scene(&pace);
        let ((half, rest), burst) = (EVENT.split_at(5), EVENT.repeat(BUSY));
        let begin = Instant::now();
        show(&sender, &[(Duration::ZERO, &burst), (OPEN * 2, half), (OPEN, rest)]);
        assert_eq!(read(PODS).await, format!("{burst}{EVENT}"));
        let ended = Instant::now();
        assert!(ended - begin >= OPEN * 3, "in the middle of an event");
        // What is no watch, and watches of others, go on.
        for (uri, left) in [("/api/v1/pods?limit=1", "list"), ("/api/v1/secrets?watch=true", "other")] {
            show(&sender, &[(Duration::ZERO, left)]);
            assert!(timeout(REST / 4, read(uri)).await.is_err());
        }
        assert!(pace.left("/api/v1/pods").is_some() && pace.left("/api/v1/secrets").is_none());
        show(&sender, &[(Duration::ZERO, &burst), (REST + OPEN, EVENT)]);
        assert_eq!(read(PODS).await, format!("{burst}{EVENT}"));
        assert!(ended.elapsed() >= REST);
    }

    /// Whether a busy watch goes on.
    async fn goes_on(read: &mut impl AsyncFnMut(&str) -> String, sender: &UnboundedSender<String>, uri: &str) -> bool {
        show(sender, &[(Duration::ZERO, &EVENT.repeat(BUSY)), (OPEN * 2, EVENT)]);
        timeout(OPEN * 4, read(uri)).await.is_err()
    }

    #[tokio::test]
    async fn nothing_rests_where_it_must_not_nor_once_a_server_has_forgotten_what_came_after() {
        let pace = Pace::new(&Timing::short().watch);
        let (mut read, sender) = scene(&pace);
        assert!(goes_on(&mut read, &sender, PODS).await, "it is not allowed yet");
        pace.let_rest(true);
        assert!(goes_on(&mut read, &sender, "/apis/scpol.dev/v1alpha1/sidecarpolicies?watch=true").await);
        assert!(!goes_on(&mut read, &sender, PODS).await);
        show(&sender, &[(Duration::ZERO, "{\"type\":\"ERROR\"}\n")]);
        assert!(timeout(REST + OPEN, read(PODS)).await.is_err(), "the error is told, and no rest of it");
        assert!(goes_on(&mut read, &sender, PODS).await);
    }
}
