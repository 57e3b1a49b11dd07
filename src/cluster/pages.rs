//! Lists that are read page by page, for objects of any size.

use super::api::Api;
use super::client::{CallError, call};
use super::fitting::PAGE;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// The number of objects in a large page.
const LARGE: u32 = 500;

/// The pages of one list.
pub struct Pages<K> {
    api: Api<K>,
    parameters: ListParams,
    is_over: bool,
}

impl<K: Clone + DeserializeOwned + Debug> Pages<K> {
    /// The pages of the objects that `parameters` select, from the first page on.
    pub fn new(api: Api<K>, parameters: ListParams) -> Self {
        Self { api, parameters: parameters.limit(PAGE), is_over: false }
    }

    /// The same list in pages as large as those of kubectl: fewer, for a command whose memory is not limited.
    #[must_use]
    pub fn large(self) -> Self {
        Self { parameters: self.parameters.limit(LARGE), ..self }
    }

    /// The next page; none after the last.
    ///
    /// # Errors
    /// If the page cannot be read.
    pub async fn next(&mut self) -> Result<Option<Vec<K>>, CallError> {
        if self.is_over {
            return Ok(None);
        }
        let page = call(self.api.list(&self.parameters)).await?;
        self.parameters.continue_token = page.metadata.continue_.filter(|next| !next.is_empty());
        self.is_over = self.parameters.continue_token.is_none();
        Ok(Some(page.items))
    }

    /// Calls `look` with each object. At most one page is in memory.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub async fn each(mut self, mut look: impl FnMut(K)) -> Result<(), CallError> {
        while let Some(page) = self.next().await? {
            page.into_iter().for_each(&mut look);
        }
        Ok(())
    }
}
