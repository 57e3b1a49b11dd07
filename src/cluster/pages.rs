//! Lists that are read page by page, however large the objects are.

use super::client::{CallError, Reconnect, call};
use super::object::Object;
use futures::future::{self, BoxFuture};
use futures::stream::{self, Stream, StreamExt};
use http::{Method, Request, Response};
use http_body_util::{Either, LengthLimitError, Limited};
use kube::Api;
use kube::api::ListParams;
use kube::client::Body;
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fmt::Debug;
use std::iter::successors;
use std::task::{self, Poll};
use tower::{BoxError, Layer, Service};

/// How many objects one page of a list has at most: few, since a page is in memory as a whole.
const MOST: u32 = 100;
/// A page of more bytes is not read to its end, but asked for anew with fewer objects: each may have a megabyte and a half, and
/// whoever may create them would decide how much memory we need: three times this, since it is read, checked and taken apart.
const LARGEST: usize = 4 << 20;
/// After so many pages that fit, larger ones are tried again.
const PATIENCE: u32 = 5;

/// How many objects are asked for at once: 100, 20, 4 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageSize(u32);

impl Default for PageSize {
    fn default() -> Self {
        Self(MOST)
    }
}

impl PageSize {
    fn limit(self) -> u32 {
        self.0
    }

    fn smaller(self) -> Self {
        Self((self.0 / 5).max(1))
    }

    fn larger(self) -> Self {
        Self((self.0 * 5).min(MOST))
    }
}

/// The pages of one list.
pub struct Pages<K> {
    api: Api<K>,
    parameters: ListParams,
    size: PageSize,
    /// How many pages of that size have not been too large.
    fitting: u32,
    is_over: bool,
}

impl<K: Clone + DeserializeOwned + Debug> Pages<K> {
    /// Of what `parameters` select, from the first one on.
    pub fn new(api: Api<K>, parameters: ListParams) -> Self {
        Self { api, parameters, size: PageSize::default(), fitting: 0, is_over: false }
    }

    /// The next one; none after the last.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn next(&mut self) -> Result<Option<Vec<K>>, CallError> {
        while !self.is_over {
            self.parameters.limit = Some(self.size.limit());
            let page = match call(self.api.list(&self.parameters)).await {
                Err(CallError::TooLarge) => {
                    (self.size, self.fitting) = (self.size.smaller(), 0);
                    continue;
                }
                page => page?,
            };
            self.fitting += 1;
            if self.fitting == PATIENCE {
                (self.size, self.fitting) = (self.size.larger(), 0);
            }
            self.parameters.continue_token = page.metadata.continue_.filter(|next| !next.is_empty());
            self.is_over = self.parameters.continue_token.is_none();
            return Ok(Some(page.items));
        }
        Ok(None)
    }
}

/// A watch that goes on after failures. If a page of its first list is too large, the list begins anew with smaller ones.
pub fn watched(
    api: &Api<Object>,
    settings: &watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send + use<> {
    let (api, settings) = (api.clone(), settings.clone());
    let begin = move |size: PageSize| {
        watcher(api.clone(), settings.clone().page_size(size.limit())).backoff(Reconnect::default()).boxed()
    };
    stream::unfold((PageSize::default(), None), move |(size, events)| {
        let mut events = events.unwrap_or_else(|| begin(size));
        async move {
            let event = events.next().await?;
            let next = if is_over_a_page(&event) { (size.smaller(), None) } else { (size, Some(events)) };
            Some((event, next))
        }
    })
    .filter(|event| future::ready(!is_over_a_page(event)))
}

fn is_over_a_page<T>(event: &watcher::Result<T>) -> bool {
    event.as_ref().is_err_and(|error| is_too_large(error))
}

/// True if and only if it was a page of a list that was too large.
pub(super) fn is_too_large(error: &(dyn Error + 'static)) -> bool {
    successors(Some(error), |&error| error.source()).any(|error| error.is::<LengthLimitError>())
}

/// Reads no page of a list further than to [`LARGEST`] bytes. One object alone may have any number of them.
#[derive(Clone, Copy)]
pub(super) struct Bounded;

impl<S> Layer<S> for Bounded {
    type Service = BoundedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BoundedService(inner)
    }
}

#[derive(Clone)]
pub(super) struct BoundedService<S>(S);

impl<S, B> Service<Request<Body>> for BoundedService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Either<Limited<B>, B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_page = is_page(&request);
        let answer = self.0.call(request);
        Box::pin(async move {
            let bound = |body| if is_page { Either::Left(Limited::new(body, LARGEST)) } else { Either::Right(body) };
            Ok(answer.await?.map(bound))
        })
    }
}

/// True if it asks for at most so many objects, and for more than one.
fn is_page(request: &Request<Body>) -> bool {
    let limit = request.uri().query().into_iter().flat_map(|query| query.split('&')).find_map(|field| {
        let limit = field.strip_prefix("limit=")?;
        limit.parse::<u32>().ok()
    });
    request.method() == Method::GET && limit.is_some_and(|limit| limit > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_more_than_one_object_have_a_largest_size_and_nothing_else_has() {
        let is_page = |method: &str, uri: &str| {
            is_page(&Request::builder().method(method).uri(uri).body(Body::empty()).expect("request"))
        };
        assert!(is_page("GET", "/api/v1/pods?&limit=100&continue=x"));
        for (method, uri) in [
            ("GET", "/api/v1/pods?limit=1"),
            ("GET", "/api/v1/pods"),
            ("GET", "/api/v1/pods?watch=true"),
            ("PATCH", "/api/v1/pods?limit=100"),
        ] {
            assert!(!is_page(method, uri), "{method} {uri}");
        }
    }

    #[test]
    fn sizes_go_down_to_one_object_and_up_again() {
        let sizes: Vec<u32> =
            successors(Some(PageSize::default()), |size| Some(size.smaller())).map(PageSize::limit).take(5).collect();
        assert_eq!(sizes, [100, 20, 4, 1, 1]);
        assert_eq!(PageSize(1).larger().larger().larger(), PageSize::default());
    }
}
