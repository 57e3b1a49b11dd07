//! The layer of the client that requests pages that fit into memory, with a time limit for every answer.

use crate::survival::lock;
use crate::timing::CALL_LIMIT;
use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use kube::client::Body;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use std::time::Duration;
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};
use tracing::debug;

/// The most objects of one page of a list. The number is small because a whole page is in memory.
pub(super) const PAGE: u32 = 50;
/// The most bytes of a page. A larger page is requested again with fewer objects. Each object may have a megabyte and a
/// half, and a page needs three times its size in memory. Without this limit, users who create objects would decide how
/// much memory we need. A single object may have any size.
const LARGEST: usize = 4 << 20;
/// The number of fitting pages before larger pages are tried again.
const PATIENCE: u32 = 5;

/// The layer that splits every list into fitting pages and sets a time limit for every answer.
#[derive(Clone, Copy)]
pub(super) struct Fitting {
    /// The time limit for the start of an answer, and for a page.
    answer: Duration,
}

impl Fitting {
    pub(super) fn new(answer: Duration) -> Self {
        Self { answer }
    }
}

#[cfg(test)]
impl Default for Fitting {
    fn default() -> Self {
        Self { answer: crate::timing::ANSWER_LIMIT }
    }
}

impl<S> Layer<S> for Fitting {
    type Service = FittingService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FittingService { inner: Arc::new(Mutex::new(inner)), size: Arc::default(), answer: self.answer }
    }
}

/// The number of objects per request: 50, 10, 2 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    limit: u32,
    /// The number of pages of this size that have fit.
    fitting: u32,
}

impl Default for Size {
    fn default() -> Self {
        Self { limit: PAGE, fitting: 0 }
    }
}

impl Size {
    /// Records that a page of `limit` objects was too large.
    fn shrink(&mut self, limit: u32) {
        *self = Self { limit: (limit / 5).max(1), fitting: 0 };
    }

    /// Records that a page of `limit` objects has fit. A smaller page than the current size says nothing.
    fn fits(&mut self, limit: u32) {
        self.fitting += u32::from(limit >= self.limit);
        if self.fitting >= PATIENCE {
            *self = Self { limit: (self.limit * 5).min(PAGE), fitting: 0 };
        }
    }
}

pub(super) struct FittingService<S> {
    /// Shared with the pages that are being read.
    inner: Arc<Mutex<S>>,
    size: Arc<Mutex<Size>>,
    answer: Duration,
}

impl<S, B> Service<Request<Body>> for FittingService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Either<Full<Bytes>, B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        lock(&self.inner).poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(most) = limit(&request) else {
            // A watch that restarts after its connection has died may get another dead one. It must not wait long for
            // that.
            let longest = if is_watch(&request) { self.answer.min(CALL_LIMIT) } else { self.answer };
            let answer = lock(&self.inner).call(request);
            return Box::pin(async move { Ok(within(longest, answer).await??.map(Either::Right)) });
        };
        let (inner, size, longest) = (self.inner.clone(), self.size.clone(), self.answer);
        Box::pin(async move {
            loop {
                let asked = most.min(lock(&size).limit);
                let request = with_limit(&request, asked)?;
                poll_fn(|context| lock(&inner).poll_ready(context)).await?;
                let answer = lock(&inner).call(request);
                let largest = if asked > 1 { LARGEST } else { usize::MAX };
                let read = async {
                    let (parts, body) = answer.await?.into_parts();
                    let body = Limited::new(body, largest).collect().await?.to_bytes();
                    Ok(Response::from_parts(parts, Either::Left(Full::new(body))))
                };
                match within(longest, read).await? {
                    Err::<_, BoxError>(error) if error.is::<LengthLimitError>() => {
                        debug!(objects = asked, "A page of a list is too large; asking for fewer");
                        lock(&size).shrink(asked);
                    }
                    answer => {
                        if answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                            lock(&size).fits(asked);
                        }
                        return answer;
                    }
                }
            }
        })
    }
}

/// No answer arrived in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer in {}", humantime::format_duration(*.0))]
struct NoAnswer(Duration);

async fn within<T>(longest: Duration, answer: impl Future<Output = T>) -> Result<T, NoAnswer> {
    timeout(longest, answer).await.map_err(|_| NoAnswer(longest))
}

/// Whether the request is a watch.
fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.split('&').any(|field| field == "watch=true"))
}

/// The `limit` of a list request; none for other requests.
fn limit(request: &Request<Body>) -> Option<u32> {
    let fields = request.uri().query().filter(|_| request.method() == Method::GET)?.split('&');
    fields.filter_map(|field| field.strip_prefix("limit=")).find_map(|limit| limit.parse().ok())
}

/// The same list request with another limit. It has no body.
fn with_limit(request: &Request<Body>, limit: u32) -> Result<Request<Body>, BoxError> {
    let query = request.uri().query().unwrap_or_default();
    let fields: Vec<String> = query
        .split('&')
        .map(|field| if field.starts_with("limit=") { format!("limit={limit}") } else { field.to_owned() })
        .collect();
    let uri = format!("{}?{}", request.uri().path(), fields.join("&")).parse::<Uri>()?;
    let mut copy = Request::get(uri).body(Body::empty())?;
    copy.headers_mut().clone_from(request.headers());
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat_n;
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    fn request(method: &str, uri: &str) -> Request<Body> {
        Request::builder().method(method).uri(uri).header("Accept", "text/plain").body(Body::empty()).expect("request")
    }

    #[test]
    fn only_a_list_that_says_how_many_objects_it_wants_is_a_page() {
        assert_eq!(limit(&request("GET", "/api/v1/pods?&limit=100&continue=x")), Some(100));
        for (method, uri) in
            [("GET", "/api/v1/pods"), ("GET", "/api/v1/pods?watch=true"), ("PATCH", "/api/v1/pods?limit=100")]
        {
            assert_eq!(limit(&request(method, uri)), None, "{method} {uri}");
        }
    }

    #[test]
    fn a_page_that_is_asked_for_anew_differs_by_its_size_alone() {
        let again = with_limit(&request("GET", "/api/v1/pods?&limit=100&continue=limit=100x"), 20).expect("a URI");
        assert_eq!(again.uri(), "/api/v1/pods?&limit=20&continue=limit=100x");
        assert_eq!(again.headers()["Accept"], "text/plain");
    }

    /// A server with one list of objects of a megabyte each. Returns the requested and the received number for each
    /// page.
    async fn pages(count: u32) -> Vec<(u32, usize)> {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let asked = asked.clone();
            service_fn(move |request: Request<Body>| {
                let limit = limit(&request).expect("a page");
                lock(&asked).push(limit);
                let body: Vec<u8> = repeat_n(b'x', (limit as usize) << 20).collect();
                async move { Ok::<_, BoxError>(Response::new(Full::new(Bytes::from(body)))) }
            })
        };
        let mut client = ServiceBuilder::new().layer(Fitting::default()).service(server);
        let mut seen = Vec::new();
        for _ in 0..count {
            let answer = client.ready().await.expect("ready").call(request("GET", "/pods?limit=50")).await;
            let body = answer.expect("a page").into_body().collect().await.expect("read").to_bytes();
            seen.push((lock(&asked).len() as u32, body.len() >> 20));
        }
        seen
    }

    #[tokio::test]
    async fn a_page_that_is_too_large_is_asked_for_with_fewer_objects_and_larger_ones_are_tried_again_later() {
        // 50, 10, 2 for the first page. Then 2 at once, and 10 again after five pages.
        assert_eq!(pages(6).await, [(3, 2), (4, 2), (5, 2), (6, 2), (7, 2), (9, 2)]);
    }

    #[test]
    fn only_pages_of_the_present_size_say_whether_it_may_grow() {
        let mut size = Size::default();
        size.shrink(PAGE);
        (0..2 * PATIENCE).for_each(|_| size.fits(1));
        assert_eq!(size, Size { limit: PAGE / 5, fitting: 0 });
        (0..PATIENCE).for_each(|_| size.fits(PAGE / 5));
        assert_eq!(size, Size::default());
    }

    #[tokio::test]
    async fn an_answer_that_never_begins_or_a_page_that_never_ends_is_an_error_in_the_end() {
        let silent = service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>());
        let endless = service_fn(|_: Request<Body>| async {
            let never = futures::stream::pending::<Result<hyper::body::Frame<Bytes>, BoxError>>();
            Ok::<_, BoxError>(Response::new(http_body_util::StreamBody::new(never)))
        });
        let limit = Fitting { answer: Duration::from_millis(50) };
        let page = || request("GET", "/pods?limit=100");
        let errors = [
            limit.layer(silent).oneshot(request("GET", "/pods?watch=true")).await.err(),
            limit.layer(silent).oneshot(page()).await.err(),
            limit.layer(endless).oneshot(page()).await.err(),
        ];
        let errors = errors.map(|error| error.expect("nothing has come").to_string());
        assert_eq!(errors, ["no answer in 50ms"; 3]);
        assert!(limit.layer(endless).oneshot(request("GET", "/pods?watch=true")).await.is_ok(), "a watch has no end");
    }
}
