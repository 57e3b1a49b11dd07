//! Asks the API server's authorizer for the rights of a policy's author.
//!
//! # Limits, and their reasons
//! Users with the right to write policies decide how many reviews come, and each may cause 56 questions: 28 about the
//! new policy, and 28 about the old one. So few policies are checked at one time, and few of one author. Equal questions
//! share one answer, which is kept for a second.

use crate::api::code::Code;
use crate::api::is_dns_label;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::cluster::policies;
use crate::cluster::rights::may_other;
use crate::outside::shown;
use crate::review::author::{Author, Question, RIGHTS, Side};
use crate::survival::lock;
use crate::timing;
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Client;
use kube::api::ListParams;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, Semaphore};

/// The most policies that are checked at one time. Further ones wait, within [`timing::Registration::author_rights`].
const AT_ONCE: usize = 8;
/// The most policies of one author that are checked at one time, so that nobody takes all places.
const OF_AUTHOR: usize = 2;
/// The time for which an answer is used again. A right that was taken away still counts for so long, as it does in API
/// servers, which see a change of their roles a moment later.
const KEPT: Duration = Duration::from_secs(1);
/// The most answers that are kept.
const ANSWERS: usize = 512;

/// An answer, or the request that will have it, and since when.
type Asked = (Instant, Arc<OnceCell<bool>>);

/// Checks the rights of authors, for a few policies at a time.
pub struct Rights {
    client: Client,
    room: Semaphore,
    /// The places of each author whose policies are checked now.
    authors: Mutex<HashMap<String, Weak<Semaphore>>>,
    /// By the hash of the question.
    answers: Mutex<HashMap<[u8; 32], Asked>>,
    limit: Duration,
}

impl Rights {
    /// A checker that uses `client` and the time limit of `timing`.
    pub fn new(client: Client, timing: &timing::Registration) -> Self {
        let (authors, answers) = (Mutex::default(), Mutex::default());
        Self { client, room: Semaphore::new(AT_ONCE), authors, answers, limit: timing.author_rights }
    }

    /// The reason why `author` may not write or delete a policy; none if the author has the rights that `questions` are about.
    ///
    /// # Guarantees
    /// The answer comes in time. An unknown result is a rejection.
    pub async fn refusal(&self, author: &Author, questions: &[Question]) -> Option<String> {
        self.in_time(author, self.ask(author, questions)).await
    }

    /// The same for the deletion of the stored policy `name`; none if there is no such policy.
    pub async fn refusal_of_deletion(&self, author: &Author, name: &str) -> Option<String> {
        self.in_time(author, async {
            let api = Api::<Object>::all_with(self.client.clone(), &policies::resource());
            // The operator may `list` policies, and not `get` one.
            let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
            match call(api.list(&parameters)).await {
                Ok(stored) => match stored.items.first() {
                    Some(stored) => self.ask(author, &Question::about(Side::Old, &stored.value())).await,
                    None => None,
                },
                Err(error) => Some(unknown(author, Code::ServerAway, &error.to_string())),
            }
        })
        .await
    }

    async fn in_time(&self, author: &Author, asking: impl Future<Output = Option<String>>) -> Option<String> {
        let asking = async {
            let places = self.places_of(author);
            let _place = places.acquire().await.expect("it is never closed");
            let _room = self.room.acquire().await.expect("it is never closed");
            asking.await
        };
        let asking = tokio::time::timeout(self.limit, asking).await;
        asking.unwrap_or_else(|_| Some(unknown(author, Code::ServerAway, "the API server does not answer in time")))
    }

    async fn ask(&self, author: &Author, questions: &[Question]) -> Option<String> {
        // No Namespace has such a name, so no role gives a right there.
        let is_odd = |question: &&Question| !question.namespace().is_empty() && !is_dns_label(question.namespace());
        if let Some(question) = questions.iter().find(is_odd) {
            return Some(question.refusal(author));
        }
        let answers = join_all(questions.iter().map(|question| self.may(question.review(author)))).await;
        questions.iter().zip(answers).find_map(|(question, answer)| match answer {
            Ok(true) => None,
            Ok(false) => Some(question.refusal(author)),
            Err(error) => Some(failed(author, &error)),
        })
    }

    fn places_of(&self, author: &Author) -> Arc<Semaphore> {
        let mut authors = lock(&self.authors);
        if let Some(known) = authors.get(author.name()).and_then(Weak::upgrade) {
            return known;
        }
        authors.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(OF_AUTHOR));
        authors.insert(author.name().to_owned(), Arc::downgrade(&places));
        places
    }

    /// The answer to `question`. All who ask it at one time share the request.
    async fn may(&self, question: SubjectAccessReview) -> Result<bool, CallError> {
        let text = serde_json::to_vec(&question).expect("a question is JSON");
        let answer = self.answer_of(Sha256::digest(text).into(), Instant::now());
        answer.get_or_try_init(|| may_other(&self.client, &question)).await.copied()
    }

    fn answer_of(&self, question: [u8; 32], now: Instant) -> Arc<OnceCell<bool>> {
        let is_kept = |since: &Instant| now.duration_since(*since) < KEPT;
        let mut answers = lock(&self.answers);
        if let Some((_, known)) = answers.get(&question).filter(|(since, _)| is_kept(since)) {
            return known.clone();
        }
        if answers.len() >= ANSWERS {
            answers.retain(|_, (since, _)| is_kept(since));
        }
        let asked = Arc::<OnceCell<bool>>::default();
        if answers.len() < ANSWERS {
            answers.insert(question, (now, asked.clone()));
        }
        asked
    }
}

fn failed(author: &Author, error: &CallError) -> String {
    if error.is_forbidden() {
        return unknown(author, Code::MissingRight, &format!("the operator may not ask: apply `{RIGHTS}`; {error}"));
    }
    unknown(author, Code::ServerAway, &error.to_string())
}

/// The message if the rights of the author are unknown.
fn unknown(author: &Author, code: Code, why: &str) -> String {
    let author = shown(author.name());
    format!("{code}: cannot find out what {author} may do, so the write is refused: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const TIMING: &timing::Registration = &Timing::short().registration;

    fn author() -> Author {
        serde_json::from_value(json!({ "username": "jo", "groups": ["dev"] })).unwrap()
    }

    fn named(names: &[&str]) -> Vec<Question> {
        Question::about(Side::New, &json!({ "spec": { "namespaces": names } }))
    }

    fn everywhere() -> Vec<Question> {
        Question::about(Side::New, &json!({ "spec": {} }))
    }

    type Answered = Result<http::Response<Body>, std::io::Error>;

    /// Rights from an API server that allows creation of pods in `own` only, and the namespaces of the questions to it.
    fn rights(own: &'static [&'static str]) -> (Rights, Arc<Mutex<BTreeSet<String>>>) {
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let told = asked.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let told = told.clone();
            async move {
                let body = request.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
                let mut review: Value = serde_json::from_slice(&body)?;
                let namespace =
                    review["spec"]["resourceAttributes"]["namespace"].as_str().unwrap_or_default().to_owned();
                review["status"] = json!({ "allowed": own.contains(&namespace.as_str()) });
                told.lock().unwrap().insert(namespace);
                Answered::Ok(http::Response::new(Body::from(review.to_string().into_bytes())))
            }
        });
        (Rights::new(Client::new(server, "default"), TIMING), asked)
    }

    #[tokio::test]
    async fn one_namespace_where_he_may_not_is_enough_and_the_first_is_told() {
        let (rights, asked) = rights(&["a", "b"]);
        assert_eq!(rights.refusal(&author(), &named(&["a", "b"])).await, None);
        let told = rights.refusal(&author(), &named(&["a", "d", "c", "b"])).await.unwrap();
        assert_eq!(told, "SCP0046: jo may not create pods in namespace `d`, so may not have a policy inject there");
        let told = rights.refusal(&author(), &everywhere()).await.unwrap();
        assert!(told.starts_with("SCP0046: jo may not create pods in all namespaces, so "), "{told}");
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked, ["", "a", "b", "c", "d"].map(str::to_owned).into());
    }

    #[tokio::test]
    async fn what_cannot_be_found_out_in_time_is_refused_in_time_whoever_else_asks() {
        let silent = tower::service_fn(|_: http::Request<Body>| std::future::pending::<Answered>());
        let rights = Rights::new(Client::new(silent, "default"), TIMING);
        let (author, places, start) = (author(), named(&["a"]), Instant::now());
        let told = join_all((0..3 * AT_ONCE).map(|_| rights.refusal(&author, &places))).await;
        assert!(start.elapsed() < TIMING.author_rights + Duration::from_millis(500), "{:?}", start.elapsed());
        assert!(told.iter().flatten().all(|told| told.starts_with("SCP0313: ")), "{told:?}");
        assert_eq!(told.iter().flatten().count(), 3 * AT_ONCE);
    }

    #[tokio::test]
    async fn who_may_not_ask_says_what_to_apply() {
        let refusing = tower::service_fn(|_: http::Request<Body>| async {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no" });
            let mut response = http::Response::new(Body::from(status.to_string().into_bytes()));
            *response.status_mut() = http::StatusCode::FORBIDDEN;
            Answered::Ok(response)
        });
        let told =
            Rights::new(Client::new(refusing, "default"), TIMING).refusal(&author(), &everywhere()).await.unwrap();
        assert!(told.starts_with("SCP0304: ") && told.contains(RIGHTS), "{told}");
    }

    fn of(name: &str) -> Author {
        serde_json::from_value(json!({ "username": name })).unwrap()
    }

    #[tokio::test]
    async fn equal_questions_share_a_request_for_a_moment_and_different_ones_do_not() {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let number = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let body = request.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
                let mut review: Value = serde_json::from_slice(&body)?;
                review["status"] = json!({ "allowed": number == 0 });
                Answered::Ok(http::Response::new(Body::from(review.to_string().into_bytes())))
            }
        });
        let rights = Rights::new(Client::new(server, "default"), TIMING);
        let (jo, places) = (of("jo"), named(&["a"]));
        let told = join_all((0..20).map(|_| rights.refusal(&jo, &places))).await;
        assert_eq!((told.iter().flatten().count(), count.load(Ordering::Relaxed)), (0, 1));
        assert!(rights.refusal(&of("al"), &places).await.is_some(), "another author");
        assert!(rights.refusal(&jo, &named(&["b"])).await.is_some(), "another namespace");
        assert_eq!(count.load(Ordering::Relaxed), 3);
        tokio::time::sleep(KEPT).await;
        assert!(rights.refusal(&jo, &places).await.is_some(), "the right has been taken away");
        let later = Instant::now();
        for number in 0..2 * ANSWERS {
            rights.answer_of(Sha256::digest(number.to_string()).into(), later);
        }
        assert!(lock(&rights.answers).len() <= ANSWERS);
    }

    #[tokio::test]
    async fn one_author_leaves_places_for_others() {
        let server = tower::service_fn(|request: http::Request<Body>| async move {
            let body = request.into_body().collect_bytes().await.map_err(std::io::Error::other)?;
            let mut review: Value = serde_json::from_slice(&body)?;
            if review["spec"]["user"] == "mallory" {
                return std::future::pending().await;
            }
            review["status"] = json!({ "allowed": true });
            Answered::Ok(http::Response::new(Body::from(review.to_string().into_bytes())))
        });
        let rights = Rights::new(Client::new(server, "default"), TIMING);
        let (mallory, jo) = (of("mallory"), of("jo"));
        let namespaces: Vec<_> = (0..4 * AT_ONCE).map(|number| named(&[&format!("n{number}")])).collect();
        let slow = join_all(namespaces.iter().map(|places| rights.refusal(&mallory, places)));
        let other = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let begin = Instant::now();
            (rights.refusal(&jo, &named(&["a"])).await, begin.elapsed())
        };
        let (slow, (told, took)) = tokio::join!(slow, other);
        assert_eq!(slow.iter().flatten().count(), 4 * AT_ONCE);
        assert!(told.is_none() && took < Duration::from_millis(500), "{told:?} after {took:?}");
        rights.places_of(&of("al"));
        assert_eq!(lock(&rights.authors).len(), 1, "those who ask nothing are forgotten");
    }

    #[tokio::test]
    async fn no_question_is_asked_about_what_is_no_namespace() {
        let (rights, asked) = rights(&["a"]);
        let told = rights.refusal(&author(), &named(&["a", "b/../c\u{1b}"])).await.unwrap();
        assert!(told.starts_with("SCP0046: jo may not create pods in namespace `b/../c\\u{1b}`"), "{told}");
        assert!(asked.lock().unwrap().is_empty());
    }
}
