//! Keeps objects of ours as they are wanted, each by itself. Other clients write them too: so a write names the version that was
//! read, and a deletion the object that was read.
//!
//! # Guarantees
//! An object that exists without our label is not written.

use super::answer::{CallError, Meaning};
use super::api::Api;
use super::client::call;
use crate::api::{MANAGED_BY, MANAGER};
use kube::api::{DeleteParams, DynamicObject, ObjectMeta, PostParams, Preconditions};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// The attempts to write an object that another client writes at the same time.
const TRIES: usize = 3;

/// What a write has led to.
pub enum Put {
    /// The server stores this now.
    Written(Box<DynamicObject>),
    /// Nothing was to be written.
    AsIs,
    /// The object of that name is not ours.
    Foreign,
    /// The server could be asked, and did not take the write.
    Refused(CallError),
}

/// Whether we made the object with this `metadata`.
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == MANAGER)
}

/// The stored object `name`, if it is ours.
///
/// # Errors
/// If the server does not answer, or refuses.
pub async fn ours(api: &Api<DynamicObject>, name: &str) -> Result<Option<DynamicObject>, CallError> {
    Ok(call(api.get_opt(name)).await?.filter(|stored| is_ours(&stored.metadata)))
}

/// Creates or replaces the object `name`. `next` is the object to write in place of the stored one; none if that is as it should be.
///
/// # Errors
/// If the stored object cannot be read.
pub async fn put(
    api: &Api<DynamicObject>,
    name: &str,
    parameters: &PostParams,
    next: impl Fn(Option<&DynamicObject>) -> Option<DynamicObject>,
) -> Result<Put, CallError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let stored = call(api.get_opt(name)).await?;
        if stored.as_ref().is_some_and(|stored| !is_ours(&stored.metadata)) {
            return Ok(Put::Foreign);
        }
        let Some(mut object) = next(stored.as_ref()) else { return Ok(Put::AsIs) };
        object.metadata.resource_version = stored.as_ref().and_then(|stored| stored.metadata.resource_version.clone());
        let is_new = stored.is_none();
        let written = match stored {
            Some(_) => call(api.replace(name, parameters, &object)).await,
            None => call(api.create(parameters, &object)).await,
        };
        // Whether the object was deleted, changed or created in the meantime. A create that finds nothing lacks its resource.
        let is_outdated = |error: &CallError| match error.means() {
            Meaning::Conflict => true,
            Meaning::NotFound => !is_new && !error.is_of_deleted_namespace(),
            _ => false,
        };
        match written {
            Err(error) if is_outdated(&error) && tries < TRIES => {}
            Ok(written) => return Ok(Put::Written(Box::new(written))),
            Err(error) => return Ok(Put::Refused(error)),
        }
    }
}

/// Deletes the object `name`, if it is still the one with that UID. Returns whether it was.
///
/// # Errors
/// If the server does not answer, or refuses.
pub async fn delete<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    uid: Option<String>,
) -> Result<bool, CallError> {
    let same = Preconditions { uid, resource_version: None };
    let parameters = DeleteParams { preconditions: Some(same), ..DeleteParams::background() };
    match call(api.delete(name, &parameters)).await {
        Err(error) if error.means().is_outdated() => Ok(false),
        answer => answer.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use kube::core::ApiResource;
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};
    use tower::{BoxError, service_fn};

    fn object(labels: &Value) -> DynamicObject {
        let metadata = json!({ "name": "a", "uid": "1", "resourceVersion": "7", "labels": labels });
        serde_json::from_value(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })).unwrap()
    }

    fn ours() -> DynamicObject {
        object(&json!({ MANAGED_BY: MANAGER }))
    }

    /// A server that has `stored`, and answers each write with the next of `codes`, then with 200. It records the methods.
    fn server(stored: Option<DynamicObject>, codes: &[u16]) -> (Api<DynamicObject>, Arc<Mutex<Vec<Method>>>) {
        let (asked, codes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(codes.to_vec())));
        let told = asked.clone();
        let service = service_fn(move |request: Request<Body>| {
            let code = match (request.method(), &stored) {
                (&Method::GET, Some(_)) => 200,
                (&Method::GET, None) => 404,
                _ => codes.lock().unwrap().pop().unwrap_or(200),
            };
            let reason = if code == 404 { "NotFound" } else { "Other" };
            let refusal = json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason });
            let body = if code == 200 { json!(stored.clone().unwrap_or_else(ours)) } else { refusal };
            told.lock().unwrap().push(request.method().clone());
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, BoxError>(answer?) }
        });
        let resource = ApiResource::erase::<ConfigMap>(&());
        (Api::namespaced_with(Client::new(service, "default"), "default", &resource), asked)
    }

    #[tokio::test]
    async fn what_is_ours_is_replaced_and_what_is_missing_created_also_if_another_client_was_faster() {
        for (stored, codes, expected) in [
            (None, vec![], "GET POST"),
            (None, vec![409], "GET POST GET POST"),
            (Some(ours()), vec![409], "GET PUT GET PUT"),
            (Some(ours()), vec![], "GET PUT"),
            (Some(ours()), vec![404, 409], "GET PUT GET PUT GET PUT"),
            (Some(object(&json!({ "team": "a" }))), vec![], "GET"),
        ] {
            let is_foreign = stored.as_ref().is_some_and(|stored| !is_ours(&stored.metadata));
            let (api, asked) = server(stored, &codes);
            let put = put(&api, "a", &PostParams::default(), |_| Some(ours())).await.unwrap();
            assert_eq!(matches!(put, Put::Foreign), is_foreign, "{expected}");
            assert_eq!(matches!(put, Put::Written(_)), !is_foreign, "{expected}");
            let asked = asked.lock().unwrap().iter().map(Method::as_str).collect::<Vec<_>>().join(" ");
            assert_eq!(asked, expected);
        }
    }

    #[tokio::test]
    async fn a_write_that_the_server_does_not_take_is_told_from_one_that_is_not_needed() {
        let (api, asked) = server(Some(ours()), &[422, 409, 409, 409]);
        let parameters = PostParams::default();
        for code in [409, 422] {
            let put = put(&api, "a", &parameters, |_| Some(ours())).await.unwrap();
            assert!(matches!(put, Put::Refused(error) if error.code() == code), "{code}");
        }
        assert!(matches!(put(&api, "a", &parameters, |_| None).await, Ok(Put::AsIs)));
        assert_eq!(asked.lock().unwrap().iter().filter(|method| **method == Method::PUT).count(), 3 + 1);
    }

    #[tokio::test]
    async fn what_is_gone_or_another_one_now_is_not_deleted() {
        let (api, _) = server(Some(ours()), &[500, 409, 404]);
        for expected in [Ok(false), Ok(false), Err(500), Ok(true)] {
            let deleted = delete(&api, "a", Some("1".to_owned())).await;
            assert_eq!(deleted.map_err(|error| error.code()), expected);
        }
    }
}
