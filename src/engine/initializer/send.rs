//! The requests of the worker: the guarded PATCH, and the object as it is stored now.

use super::lane::Lane;
use crate::cluster::api::{Api, path};
use crate::cluster::client::{CallError, call, chain, said};
use crate::cluster::object::Object;
use crate::operator::Operator;
use crate::timing::CALL_LIMIT;
use crate::workload::{ObjectRef, Workload};
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use json_patch::Patch;
use kube::client::Body;
use kube::core::Status;
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// Whether a PATCH is real or a dry run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Try {
    Real,
    Dry,
}

/// Sends the requests of the worker.
pub(super) struct Sender {
    pub(super) operator: Arc<Operator>,
    /// The priority lane for PATCHes, if the flags allow it.
    pub(super) lane: Option<Lane>,
}

impl Sender {
    /// Writes `workload` by `patch`, through the priority lane if that is open.
    ///
    /// # Errors
    /// Why the server does not take it.
    pub(super) async fn send(&self, workload: &Workload, patch: &Patch, how: Try) -> Result<(), CallError> {
        let resource = self.operator.resource(&workload.kind).ok_or_else(|| away("the kind is not served any more"))?;
        let namespace = Some(workload.namespace()).filter(|namespace| !namespace.is_empty());
        let path = path(&resource, namespace, Some(workload.name())).map_err(|error| away(&error.to_string()))?;
        let dry = if how == Try::Dry { "dryRun=All" } else { "" };
        let url = format!("{path}?{dry}");
        let body = serde_json::to_vec(patch).expect("a patch is JSON");
        let lane = self.lane.as_ref().filter(|lane| how == Try::Real && lane.is_open(Instant::now()));
        let Some(lane) = lane else { return self.exchange(&url, body, None).await };
        match self.exchange(&url, body.clone(), Some(lane)).await {
            Err(refused) if refused.is_impersonation_denied() => {
                lane.close(Instant::now());
                warn!(detail = refused.message(), "The priority lane is closed: apply config/rbac/priority-lane");
                self.exchange(&url, body, None).await
            }
            answer => answer,
        }
    }

    async fn exchange(&self, url: &str, patch: Vec<u8>, lane: Option<&Lane>) -> Result<(), CallError> {
        // The answer is not used. Still, an answer with metadata alone costs servers with Initializers more: to check that an
        // object is no list, they write all of it into an error (`meta.IsListType`).
        let request = Request::patch(url).header(CONTENT_TYPE, "application/json-patch+json");
        let request = match lane {
            Some(lane) => lane.put(request),
            None => request,
        };
        let request = request.body(Body::from(patch)).map_err(|error| away(&error.to_string()))?;
        match tokio::time::timeout(CALL_LIMIT, self.answer_to(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(away("no answer in time")),
        }
    }

    async fn answer_to(&self, request: Request<Body>) -> Result<(), CallError> {
        let answer = self.operator.client.send(request).await.map_err(|error| {
            if is_unsent(&error) { CallError::Unconnected(said(&chain(&error))) } else { away(&chain(&error)) }
        })?;
        let status = answer.status();
        let retry_after = answer
            .headers()
            .get("Retry-After")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let mut body = answer.into_body();
        if status.is_success() && status != StatusCode::NO_CONTENT {
            // The object in the answer is not needed, so its bytes are not kept. An unread body would close the connection.
            while let Some(frame) = body.frame().await {
                frame.map_err(|error| away(&chain(&error)))?;
            }
            return Ok(());
        }
        let body = body.collect().await.map_err(|error| away(&chain(&error)))?.to_bytes();
        let told =
            serde_json::from_slice(&body).unwrap_or_else(|_| Status::failure(&String::from_utf8_lossy(&body), ""));
        Err(CallError::answer(told, status.as_u16(), retry_after))
    }

    /// The object as it is stored now, if it exists.
    ///
    /// # Errors
    /// If the server does not answer.
    pub(super) async fn fetch(
        &self,
        ObjectRef { kind, namespace, name }: &ObjectRef,
    ) -> Result<Option<Object>, CallError> {
        let resource =
            self.operator.resource(kind).ok_or_else(|| CallError::Away("the kind is not served any more".into()))?;
        let api = Api::<Object>::namespaced_with(self.operator.client.clone(), namespace, &resource);
        match call(api.get(name)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_of_missing_object() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn away(why: &str) -> CallError {
    CallError::Away(said(why))
}

/// Whether there was no connection: the server is away, or no file descriptor is left.
fn is_unsent(error: &kube::Error) -> bool {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.filter_map(|error| error.downcast_ref()).any(hyper_util::client::legacy::Error::is_connect)
}
