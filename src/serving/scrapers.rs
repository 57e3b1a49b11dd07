//! Who may read `/metrics`, with `--metrics-authorization`: the API server says who has the token of a scrape
//! (TokenReview), and whether that user may `get` the path `/metrics` (SubjectAccessReview). Servers of
//! controller-runtime do the same, so a role for them works here, too.
//!
//! # Limits, and their reasons
//! Any client can show tokens. Answers are kept: a grant for a minute, as in controller-runtime, and a refusal for ten
//! seconds. At most [`KEPT`] are kept, and refusals make room for others. At most [`AT_ONCE`] tokens are looked at at
//! one time. An answer comes within [`timing::Process::scraper`], and an unknown result is none.

use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::rights::may_other;
use crate::survival::lock;
use crate::timing;
use axum::http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::PostParams;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tracing::warn;

/// The most answers that are kept. A cluster has few scrapers, whose tokens change within the hour.
const KEPT: usize = 256;
/// The most tokens that are looked at at one time.
const AT_ONCE: usize = 2;
/// How long a grant is kept.
const GRANTED: Duration = Duration::from_secs(60);
/// How long a refusal is kept.
const REFUSED: Duration = Duration::from_secs(10);

/// The answer about a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Granted,
    /// The token belongs to nobody.
    Unauthenticated,
    /// The user may not read the metrics.
    Forbidden,
}

/// Checks the tokens of scrapes.
pub struct Scrapers {
    client: Client,
    limit: Duration,
    known: Mutex<BTreeMap<[u8; 32], (Instant, Verdict)>>,
    room: Semaphore,
}

impl Scrapers {
    /// A checker that uses `client`.
    pub fn new(client: Client, timing: &timing::Process) -> Self {
        Self { client, limit: timing.scraper, known: Mutex::default(), room: Semaphore::new(AT_ONCE) }
    }

    /// The reason to refuse a scrape with `headers`; none if it may read the metrics.
    pub(super) async fn refusal(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        let header = headers.get(header::AUTHORIZATION).and_then(|header| header.to_str().ok());
        let Some(token) = header.and_then(|header| header.strip_prefix("Bearer ")) else {
            return told(Verdict::Unauthenticated);
        };
        let key = Sha256::digest(token).into();
        if let Some(verdict) = self.known(&key) {
            return told(verdict);
        }
        let asking = async {
            let _room = self.room.acquire().await.expect("it is never closed");
            match self.known(&key) {
                Some(verdict) => Ok(verdict),
                None => self.ask(token).await,
            }
        };
        let away =
            (StatusCode::SERVICE_UNAVAILABLE, "cannot find out whether this token may read the metrics; try again\n");
        match tokio::time::timeout(self.limit, asking).await {
            Ok(Ok(verdict)) => {
                self.keep(key, verdict);
                told(verdict)
            }
            Ok(Err(error)) => {
                let rights = "config/rbac/metrics-authorization";
                warn!(%error, rights, "Cannot find out who may read the metrics");
                Some(away)
            }
            Err(_) => Some(away),
        }
    }

    fn known(&self, key: &[u8; 32]) -> Option<Verdict> {
        let known = lock(&self.known);
        known.get(key).filter(|(until, _)| Instant::now() < *until).map(|(_, verdict)| *verdict)
    }

    fn keep(&self, key: [u8; 32], verdict: Verdict) {
        let (mut known, now) = (lock(&self.known), Instant::now());
        if known.len() >= KEPT {
            known.retain(|_, (until, verdict)| now < *until && *verdict == Verdict::Granted);
        }
        if known.len() < KEPT {
            known.insert(key, (now + if verdict == Verdict::Granted { GRANTED } else { REFUSED }, verdict));
        }
    }

    async fn ask(&self, token: &str) -> Result<Verdict, CallError> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let review = call(Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review)).await?;
        let status = review.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Verdict::Unauthenticated);
        };
        let access = SubjectAccessReview { spec: question(user), ..SubjectAccessReview::default() };
        Ok(if may_other(&self.client, &access).await? { Verdict::Granted } else { Verdict::Forbidden })
    }
}

/// Whether `user` may read the metrics.
fn question(user: UserInfo) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        groups: user.groups,
        uid: user.uid,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some("/metrics".to_owned()),
            verb: Some("get".to_owned()),
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

fn told(verdict: Verdict) -> Option<(StatusCode, &'static str)> {
    match verdict {
        Verdict::Granted => None,
        Verdict::Unauthenticated => {
            Some((StatusCode::UNAUTHORIZED, "the metrics need the token of a user: `Authorization: Bearer TOKEN`\n"))
        }
        Verdict::Forbidden => {
            Some((StatusCode::FORBIDDEN, "this user may not `get` the path `/metrics`: bind scpol-metrics-reader\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;
    use axum::http::HeaderValue;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    type Answered = Result<http::Response<Body>, std::io::Error>;

    fn bearer(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())])
    }

    /// Scrapers of an API server on which `prometheus` may read the metrics and `jo` may not, and the number of
    /// questions to it.
    fn scrapers() -> (Scrapers, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            async move {
                let body = request.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
                let mut review: Value = serde_json::from_slice(&body)?;
                review["status"] = match review["kind"].as_str() {
                    Some("TokenReview") => {
                        let token = review["spec"]["token"].clone();
                        let is_known = ["prometheus", "jo"].iter().any(|name| token == *name);
                        json!({ "authenticated": is_known, "user": { "username": token } })
                    }
                    _ => {
                        let question = json!({ "path": "/metrics", "verb": "get" });
                        assert_eq!(review["spec"]["nonResourceAttributes"], question);
                        json!({ "allowed": review["spec"]["user"] == "prometheus" })
                    }
                };
                Answered::Ok(http::Response::new(Body::from(review.to_string().into_bytes())))
            }
        });
        (Scrapers::new(Client::new(server, "default"), &Timing::short().process), asked)
    }

    #[tokio::test]
    async fn who_may_scrape_is_asked_once_for_each_token() {
        let (scrapers, asked) = scrapers();
        for _ in 0..2 {
            for (headers, status) in [
                (HeaderMap::new(), Some(StatusCode::UNAUTHORIZED)),
                (bearer("nobody"), Some(StatusCode::UNAUTHORIZED)),
                (bearer("jo"), Some(StatusCode::FORBIDDEN)),
                (bearer("prometheus"), None),
            ] {
                assert_eq!(scrapers.refusal(&headers).await.map(|(status, _)| status), status, "{headers:?}");
            }
        }
        assert_eq!(asked.load(Ordering::Relaxed), 5);
    }

    #[tokio::test]
    async fn any_number_of_tokens_takes_little_and_drives_out_no_grant() {
        let (scrapers, asked) = scrapers();
        assert_eq!(scrapers.refusal(&bearer("prometheus")).await, None);
        for number in 0..2 * KEPT {
            assert!(scrapers.refusal(&bearer(&format!("forged-{number}"))).await.is_some());
        }
        assert!(lock(&scrapers.known).len() <= KEPT);
        let before = asked.load(Ordering::Relaxed);
        assert_eq!(scrapers.refusal(&bearer("prometheus")).await, None);
        assert_eq!(asked.load(Ordering::Relaxed), before);
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_lets_nobody_in_and_holds_up_nobody_for_long() {
        let silent = tower::service_fn(|_: http::Request<Body>| std::future::pending::<Answered>());
        let timing = &Timing::short().process;
        let (scrapers, start) = (Scrapers::new(Client::new(silent, "default"), timing), Instant::now());
        let refusal = scrapers.refusal(&HeaderMap::new()).await;
        assert_eq!(refusal.map(|(status, _)| status), Some(StatusCode::UNAUTHORIZED));
        let (one, other) = (bearer("a"), bearer("b"));
        let (one, other) = tokio::join!(scrapers.refusal(&one), scrapers.refusal(&other));
        for refusal in [one, other] {
            assert_eq!(refusal.map(|(status, _)| status), Some(StatusCode::SERVICE_UNAVAILABLE));
        }
        assert!(start.elapsed() < 2 * timing.scraper, "{:?}", start.elapsed());
    }
}
