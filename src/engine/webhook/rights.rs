//! Asks the API server's authorizer what the author of a policy may do.

use super::author::{Author, Places, RIGHTS};
use crate::api::code::Code;
use crate::cluster::client::{CallError, call};
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long all questions about one policy may take together. The API server waits 3 s in all.
pub const LIMIT: Duration = Duration::from_secs(2);
/// About how many policies is asked at one time: more wait, within [`LIMIT`]. Nobody who calls the webhook is known, and each call
/// may be up to 28 requests of ours.
const AT_ONCE: usize = 8;

/// Asks, for one policy or a few at a time.
pub struct Rights {
    client: Client,
    room: Semaphore,
}

impl Rights {
    /// One that asks by `client`.
    pub fn new(client: Client) -> Self {
        Self { client, room: Semaphore::new(AT_ONCE) }
    }

    /// Why `author` may not have a policy that injects in `places`; none if he may.
    ///
    /// # Guarantees
    /// It comes within [`LIMIT`], and what could not be found out is a refusal.
    pub async fn refusal(&self, author: &Author, places: &Places) -> Option<String> {
        let asking = tokio::time::timeout(LIMIT, self.ask(author, places)).await;
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

/// What is told where it is not known what the author may do.
fn unknown(author: &Author, code: Code, why: &str) -> String {
    format!("{code}: cannot find out where {} may create pods, so the policy is refused: {why}", author.name())
}
