//! Checks whether the last author of each policy still has the rights for what it does, by the record of the author.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::api::is_dns_label;
use crate::capabilities::registration;
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call};
use crate::cluster::object::Object;
use crate::cluster::rights::may_other;
use crate::outside::shown;
use crate::review::author::{Author, NAME, Question, Side, record};
use futures::{StreamExt, stream};
use kube::Client;

/// The number of policies that are looked at at the same time.
const AT_ONCE: usize = 8;

/// Checks the author of every policy.
pub(super) async fn check(subject: &CheckSubject<'_>) -> Vec<CheckItem> {
    let client = subject.client();
    if subject.stored.is_empty() {
        return vec![CheckItem::ok("authors", "there is no policy")];
    }
    match is_recorded(subject).await {
        Ok(true) => {}
        Ok(false) => {
            let fix = format!("From Kubernetes 1.36 on, `{}` has the API server record authors.", record::SOURCE);
            return vec![
                CheckItem::unknown("authors", "the API server does not record who writes a policy").with_fix(fix),
            ];
        }
        Err(error) => {
            return vec![CheckItem::unknown("authors", format!("cannot see whether authors are recorded: {error}"))];
        }
    }
    stream::iter(subject.stored).map(|policy| author(client, policy)).buffered(AT_ONCE).collect().await
}

/// Whether API servers write the record. Without that, anybody may have written it.
async fn is_recorded(subject: &CheckSubject<'_>) -> Result<bool, CallError> {
    for plural in [registration::MUTATING_POLICIES, registration::MUTATING_BINDINGS] {
        let Some(resource) = subject.server().registration(plural) else { return Ok(false) };
        let api = Api::<Object>::all_with(subject.client().clone(), &resource);
        if call(api.get_opt(NAME)).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

async fn author(client: &Client, policy: &Object) -> CheckItem {
    let check = format!("author of {}", policy.name());
    let value = policy.value();
    let author = match record::read(&value) {
        Ok(author) => author,
        Err(why) => {
            return CheckItem::unknown(check, why).with_fix("Ask a user who has the right to write the policy again.");
        }
    };
    let name = shown(author.name());
    for question in Question::about(Side::New, &value) {
        match may(client, &question, &author).await {
            Ok(true) => {}
            Ok(false) => {
                let message = format!("{name} wrote it last, and may no longer {}", question.right_and_place());
                return CheckItem::warning(check, Code::AuthorLostRight, message);
            }
            Err(error) => return CheckItem::unknown(check, format!("cannot ask what {name} may do: {error}")),
        }
    }
    CheckItem::ok(check, format!("its last author, {name}, may do what it does"))
}

/// Whether `author` has the right that `question` is about.
async fn may(client: &Client, question: &Question, author: &Author) -> Result<bool, CallError> {
    // No Namespace has another name, so no role gives a right there.
    if !question.namespace().is_empty() && !is_dns_label(question.namespace()) {
        return Ok(false);
    }
    may_other(client, &question.review(author)).await
}
