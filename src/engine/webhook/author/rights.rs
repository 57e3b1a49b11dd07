//! Asks the API server's authorizer for the rights of a policy's author.

use crate::api::code::Code;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::review::author::{Author, Places, RIGHTS};
use crate::timing;
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Client;
use kube::api::PostParams;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The most policies that are checked at one time. Further ones wait, within [`timing::Webhook::rights`]. Callers are
/// not authenticated, and each call may cause up to 28 requests of ours.
const AT_ONCE: usize = 8;

/// Checks the rights of authors, for a few policies at a time.
pub struct Rights {
    client: Client,
    room: Semaphore,
    limit: Duration,
}

impl Rights {
    /// A checker that uses `client` and the time limit of `timing`.
    pub fn new(client: Client, timing: &timing::Webhook) -> Self {
        Self { client, room: Semaphore::new(AT_ONCE), limit: timing.rights }
    }

    /// The reason why `author` may not have a policy that injects in `places`; none if the author may.
    ///
    /// # Guarantees
    /// The answer comes in time. An unknown result is a rejection.
    pub async fn refusal(&self, author: &Author, places: &Places) -> Option<String> {
        let asking = tokio::time::timeout(self.limit, self.ask(author, places)).await;
        asking.unwrap_or_else(|_| Some(unknown(author, Code::ServerAway, "the API server does not answer in time")))
    }

    async fn ask(&self, author: &Author, places: &Places) -> Option<String> {
        let _room = self.room.acquire().await.expect("it is never closed");
        let api = Api::<SubjectAccessReview>::all(self.client.clone());
        let questions = places.questions();
        let answers = questions.iter().map(|namespace| {
            let (api, question) = (&api, author.question(namespace));
            async move { call(api.create(&PostParams::default(), &question)).await }
        });
        let answers = join_all(answers).await;
        questions.iter().zip(answers).find_map(|(namespace, answer)| match answer {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => None,
            Ok(_) => Some(author.lacks(namespace)),
            Err(error) => Some(failed(author, &error)),
        })
    }
}

fn failed(author: &Author, error: &CallError) -> String {
    match error.code() {
        403 => unknown(author, Code::MissingRight, &format!("the operator may not ask: apply `{RIGHTS}`; {error}")),
        _ => unknown(author, Code::ServerAway, &error.to_string()),
    }
}

/// The message if the rights of the author are unknown.
fn unknown(author: &Author, code: Code, why: &str) -> String {
    format!("{code}: cannot find out where {} may create pods, so the policy is refused: {why}", author.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    const TIMING: &timing::Webhook = &Timing::short().webhook;

    fn author() -> Author {
        serde_json::from_value(json!({ "username": "jo", "groups": ["dev"] })).unwrap()
    }

    fn named(names: &[&str]) -> Places {
        Places::of(&json!({ "spec": { "namespaces": names } }))
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
        let told = rights.refusal(&author(), &Places::All).await.unwrap();
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
        assert!(start.elapsed() < TIMING.rights + Duration::from_millis(500), "{:?}", start.elapsed());
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
            Rights::new(Client::new(refusing, "default"), TIMING).refusal(&author(), &Places::All).await.unwrap();
        assert!(told.starts_with("SCP0304: ") && told.contains(RIGHTS), "{told}");
    }
}
