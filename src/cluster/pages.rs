//! Lists that are read page by page, however large the objects are.

use super::client::{CallError, call};
use super::object::Object;
use http::Request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{ApiResource, ObjectList, Resource, Status};

/// How many objects one page of a list has at most: few, since a page is in memory as a whole.
pub const PAGE: u32 = 100;
/// A page of more bytes is not read to its end, but asked for anew with fewer objects: each may have a megabyte and a half, and
/// whoever may create them would decide how much memory we need.
const LARGEST: usize = 4 << 20;

/// The pages of one list of all objects of a resource.
pub struct Pages<'a> {
    client: &'a Client,
    resource: &'a ApiResource,
    limit: u32,
    /// What the server wants to be asked with for the next page: nothing for the first; none after the last.
    next: Option<String>,
}

impl<'a> Pages<'a> {
    /// From the first one on.
    pub fn new(client: &'a Client, resource: &'a ApiResource) -> Self {
        Self { client, resource, limit: PAGE, next: Some(String::new()) }
    }

    /// The next one; none after the last.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn next(&mut self) -> Result<Option<Vec<Object>>, CallError> {
        while let Some(next) = &self.next {
            let mut parameters = ListParams::default().limit(self.limit);
            parameters.continue_token = Some(next.clone()).filter(|next| !next.is_empty());
            let most = if self.limit > 1 { LARGEST } else { usize::MAX };
            let Some(page) = call(self.read(&parameters, most)).await? else {
                self.limit = (self.limit / 4).max(1);
                continue;
            };
            let bytes: usize = page.items.iter().map(|object| object.json().len()).sum();
            if bytes < LARGEST / 2 {
                self.limit = (self.limit * 2).min(PAGE);
            }
            self.next = page.metadata.continue_.filter(|next| !next.is_empty());
            return Ok(Some(page.items));
        }
        Ok(None)
    }

    /// One page; none if it has more than so many bytes.
    async fn read(&self, parameters: &ListParams, most: usize) -> kube::Result<Option<ObjectList<Object>>> {
        let path = Object::url_path(self.resource, None);
        let request: Request<Vec<u8>> =
            kube::core::Request::new(path).list(parameters).map_err(kube::Error::BuildRequest)?;
        let answer = self.client.send(request.map(Body::from)).await?;
        let status = answer.status();
        let body = match Limited::new(answer.into_body(), most).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Ok(None),
            Err(error) => return Err(kube::Error::Service(error)),
        };
        if !status.is_success() {
            let told = serde_json::from_slice(&body)
                .unwrap_or_else(|_| Status::failure(&String::from_utf8_lossy(&body), "").with_code(status.as_u16()));
            return Err(kube::Error::Api(Box::new(told)));
        }
        serde_json::from_slice(&body).map(Some).map_err(kube::Error::SerdeError)
    }
}
