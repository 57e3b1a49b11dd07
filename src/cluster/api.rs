//! Requests about objects. Every name and every namespace becomes one encoded segment of the path, whoever has written
//! it. kube's own `Api` puts them into the URL as they are: a name such as `kube-system/pods?watch=true` would make
//! another request of it. So `tests/architecture.rs` allows kube's `Api` in this file only.

use crate::outside::{NoSegment, segment};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicResourceScope, NamespaceResourceScope, ObjectList, Resource};
use kube::runtime::watcher;
use kube::{Client, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// The objects of one resource, in one namespace or in all. Requests with a name or a namespace that no path can have are
/// not sent: they fail.
#[derive(Clone)]
pub struct Api<K>(Result<kube::Api<K>, NoSegment>);

impl<K: Resource> Api<K> {
    /// The objects of the cluster, or of all namespaces.
    pub fn all(client: Client) -> Self
    where
        K::DynamicType: Default,
    {
        Self::all_with(client, &K::DynamicType::default())
    }

    /// The objects of `resource` in the cluster, or in all namespaces.
    pub fn all_with(client: Client, resource: &K::DynamicType) -> Self {
        Self(Ok(kube::Api::all_with(client, resource)))
    }

    /// The objects in `namespace`.
    pub fn namespaced(client: Client, namespace: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Self(segment(namespace).map(|namespace| kube::Api::namespaced(client, &namespace)))
    }

    /// The objects of `resource` in `namespace`.
    pub fn namespaced_with(client: Client, namespace: &str, resource: &K::DynamicType) -> Self
    where
        K: Resource<Scope = DynamicResourceScope>,
    {
        Self(segment(namespace).map(|namespace| kube::Api::namespaced_with(client, &namespace, resource)))
    }
}

impl<K: Clone + DeserializeOwned + Debug> Api<K> {
    /// The object `name`.
    ///
    /// # Errors
    /// As all requests: if it is not sent, or not answered, or refused.
    pub async fn get(&self, name: &str) -> kube::Result<K> {
        self.known()?.get(&encoded(name)?).await
    }

    /// The object `name`; none if there is none.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn get_opt(&self, name: &str) -> kube::Result<Option<K>> {
        self.known()?.get_opt(&encoded(name)?).await
    }

    /// A page of the objects.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn list(&self, parameters: &ListParams) -> kube::Result<ObjectList<K>> {
        self.known()?.list(parameters).await
    }

    /// Creates `object`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn create(&self, parameters: &PostParams, object: &K) -> kube::Result<K>
    where
        K: Serialize,
    {
        self.known()?.create(parameters, object).await
    }

    /// Creates `object` below the object `name`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn create_subresource<I: Serialize, T: DeserializeOwned>(
        &self,
        subresource: &str,
        name: &str,
        parameters: &PostParams,
        object: &I,
    ) -> kube::Result<T> {
        self.known()?.create_subresource(subresource, &encoded(name)?, parameters, object).await
    }

    /// Replaces the object `name`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn replace(&self, name: &str, parameters: &PostParams, object: &K) -> kube::Result<K>
    where
        K: Serialize,
    {
        self.known()?.replace(&encoded(name)?, parameters, object).await
    }

    /// Patches the object `name`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn patch<P: Serialize + Debug>(
        &self,
        name: &str,
        parameters: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<K> {
        self.known()?.patch(&encoded(name)?, parameters, patch).await
    }

    /// Patches the status of the object `name`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn patch_status<P: Serialize + Debug>(
        &self,
        name: &str,
        parameters: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<K> {
        self.known()?.patch_status(&encoded(name)?, parameters, patch).await
    }

    /// Patches a subresource of the object `name`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn patch_subresource<P: Serialize + Debug>(
        &self,
        subresource: &str,
        name: &str,
        parameters: &PatchParams,
        patch: &Patch<P>,
    ) -> kube::Result<K> {
        self.known()?.patch_subresource(subresource, &encoded(name)?, parameters, patch).await
    }

    /// Deletes the object `name`.
    ///
    /// # Errors
    /// See [`Self::get`].
    pub async fn delete(&self, name: &str, parameters: &DeleteParams) -> kube::Result<()> {
        self.known()?.delete(&encoded(name)?, parameters).await.map(drop)
    }

    fn known(&self) -> kube::Result<&kube::Api<K>> {
        self.0.as_ref().map_err(unsent)
    }
}

impl<K: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Api<K> {
    /// The events of a watch. The client's [`watched`](super::watch::watched) goes on after failures.
    pub(super) fn watcher(&self, settings: watcher::Config) -> BoxStream<'static, watcher::Result<watcher::Event<K>>>
    where
        K::DynamicType: Send,
    {
        match self.known() {
            Ok(api) => watcher(api.clone(), settings).boxed(),
            Err(error) => stream::once(async { Err(watcher::Error::InitialListFailed(error)) }).boxed(),
        }
    }
}

/// The path of the object `name` of `resource`, or of all its objects, in `namespace` or in the cluster, for requests that
/// kube's `Api` has not.
///
/// # Errors
/// If no path can have the name or the namespace.
pub fn path(resource: &ApiResource, namespace: Option<&str>, name: Option<&str>) -> Result<String, NoSegment> {
    let namespace = namespace.map(segment).transpose()?;
    let mut path = DynamicObject::url_path(resource, namespace.as_deref());
    if let Some(name) = name {
        path = format!("{path}/{}", segment(name)?);
    }
    Ok(path)
}

fn encoded(name: &str) -> kube::Result<std::borrow::Cow<'_, str>> {
    segment(name).map_err(|error| unsent(&error))
}

fn unsent(error: &NoSegment) -> Error {
    Error::BuildRequest(kube::core::request::Error::Validation(error.to_string()))
}

/// Whether `path` has only whole segments, none of which a server would resolve or split: the last look at every request.
pub(super) fn is_sound(path: &str) -> bool {
    let is_whole = |segment: &str| {
        let lower = segment.to_ascii_lowercase();
        !matches!(segment, "" | "." | "..") && !["%2f", "%2e", "%25", "%00"].iter().any(|code| lower.contains(code))
    };
    path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Object;
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Namespace;
    use kube::client::Body;
    use kube::core::GroupVersionKind;
    use std::sync::{Arc, Mutex};
    use tower::{BoxError, service_fn};

    /// A client, and the methods and URIs of its requests.
    fn server() -> (Client, Arc<Mutex<Vec<String>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = sent.clone();
        let answer = move |request: Request<Body>| {
            seen.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            async {
                let missing = r#"{ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" }"#;
                Ok::<_, BoxError>(Response::builder().status(404).body(Body::from(missing.as_bytes().to_vec()))?)
            }
        };
        (Client::new(service_fn(answer), "default"), sent)
    }

    const HOSTILE: [&str; 8] =
        ["", ".", "..", "../nodes", "kube-system/pods", "default/pods?limit=1", "a/b/c", "a%2fb"];

    #[tokio::test]
    async fn no_name_and_no_namespace_makes_another_request() {
        let (client, sent) = server();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v1", "Thing"));
        let patch = Patch::<()>::Json(json_patch::Patch::default());
        let parameters = PatchParams::default();
        for hostile in HOSTILE {
            assert!(Api::<Namespace>::all(client.clone()).get_opt(hostile).await.is_err(), "{hostile}");
            let there = Api::<Object>::namespaced_with(client.clone(), "shop", &resource);
            let elsewhere = Api::<Object>::namespaced_with(client.clone(), hostile, &resource);
            for (api, name) in [(&there, hostile), (&elsewhere, "web")] {
                assert!(api.get(name).await.is_err() && api.patch(name, &parameters, &patch).await.is_err());
                assert!(api.patch_status(name, &parameters, &patch).await.is_err());
                assert!(api.patch_subresource("resize", name, &parameters, &patch).await.is_err());
                assert!(api.delete(name, &DeleteParams::default()).await.is_err());
                let evicted = api.create_subresource::<_, ()>("eviction", name, &PostParams::default(), &()).await;
                assert!(evicted.is_err());
            }
            assert!(path(&resource, Some(hostile), None).is_err() && path(&resource, None, Some(hostile)).is_err());
            assert!(elsewhere.list(&ListParams::default()).await.is_err());
            let watched = elsewhere.watcher(watcher::Config::default()).next().await;
            assert!(matches!(watched, Some(Err(_))), "{hostile}");
        }
        assert_eq!(*sent.lock().unwrap(), [""; 0], "nothing was sent");
    }

    #[tokio::test]
    async fn what_ends_a_path_elsewhere_is_encoded() {
        let (client, sent) = server();
        let api = Api::<Namespace>::all(client);
        for name in ["shop", "a?watch=true", "a#b", "system:x y", "ü\n"] {
            assert!(api.get_opt(name).await.is_ok_and(|found| found.is_none()), "{name}");
        }
        let expected = ["shop", "a%3Fwatch=true", "a%23b", "system:x%20y", "%C3%BC%0A"];
        assert_eq!(*sent.lock().unwrap(), expected.map(|name| format!("GET /api/v1/namespaces/{name}")));
    }

    #[test]
    fn a_path_that_a_server_would_resolve_or_split_is_not_sound() {
        for path in ["/version", "/api/v1/namespaces/shop/pods/web-0", "/apis/a.b/v1/namespaces/x/roles/system:y%20z"] {
            assert!(is_sound(path), "{path}");
        }
        for path in
            ["", "api", "/api//v1", "/api/v1/..", "/api/./v1", "/api/v1/a%2Fb", "/api/v1/%2e%2E", "/a%252f", "/a/"]
        {
            assert!(!is_sound(path), "{path}");
        }
    }
}
