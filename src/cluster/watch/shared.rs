//! One watch of each resource in the process, shared by all listeners.

use super::renewable_watch;
use crate::api::{MANAGED_BY, MANAGER};
use crate::cluster::answer::why;
use crate::cluster::api::Api;
use crate::cluster::object::Object;
use crate::survival::lock;
use crate::timing;
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, stream};
use kube::Client;
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::warn;

/// An event of the watch of a resource, and the plural name of that resource.
pub type ResourceEvent = (&'static str, Result<Event<Object>, Arc<watcher::Error>>);

/// The events of several watches.
pub type Events = SelectAll<BoxStream<'static, ResourceEvent>>;

/// Whose objects are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// Those with our label.
    Ours,
    /// Those of everybody.
    All,
}

/// The watches of a process.
pub struct SharedWatches {
    client: Client,
    resync: Duration,
    timing: &'static timing::Watch,
    feeds: Mutex<BTreeMap<(&'static str, Whose), Feed>>,
}

/// A watch that is under way.
struct Feed {
    resource: ApiResource,
    join: UnboundedSender<UnboundedSender<ResourceEvent>>,
}

impl SharedWatches {
    /// No watch yet. Each watch lists its objects anew after each `resync`.
    pub fn new(client: Client, resync: Duration, timing: &'static timing::Watch) -> Self {
        Self { client, resync, timing, feeds: Mutex::default() }
    }

    /// The events of the watches of `resources`, each with its plural name and its address, for ever.
    ///
    /// # Guarantees
    /// The events of each resource begin with a whole list. If others listen already, they get that list, too.
    pub fn listen(&self, resources: impl IntoIterator<Item = (&'static str, ApiResource, Whose)>) -> Events {
        let heard = resources.into_iter().map(|(name, resource, whose)| {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.join(name, resource, whose, sender);
            let next =
                |mut receiver: UnboundedReceiver<ResourceEvent>| async { Some((receiver.recv().await?, receiver)) };
            stream::unfold(receiver, next).boxed()
        });
        stream::select_all(heard)
    }

    fn join(&self, name: &'static str, resource: ApiResource, whose: Whose, listener: UnboundedSender<ResourceEvent>) {
        let mut feeds = lock(&self.feeds);
        let known = feeds.get(&(name, whose)).filter(|feed| feed.resource == resource);
        if known.is_some_and(|feed| feed.join.send(listener.clone()).is_ok()) {
            return;
        }
        let (join, joined) = mpsc::unbounded_channel();
        // The task has not begun, so the receiver exists.
        drop(join.send(listener));
        let api = Api::<Object>::all_with(self.client.clone(), &resource);
        let config = match whose {
            Whose::Ours => watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}")),
            Whose::All => watcher::Config::default(),
        };
        tokio::spawn(feed(name, api, config, self.resync, self.timing, joined));
        feeds.insert((name, whose), Feed { resource, join });
    }
}

/// Watches until no listener is left.
async fn feed(
    name: &'static str,
    api: Api<Object>,
    config: watcher::Config,
    resync: Duration,
    timing: &'static timing::Watch,
    mut joined: UnboundedReceiver<UnboundedSender<ResourceEvent>>,
) {
    let (mut listeners, renew): (Vec<UnboundedSender<ResourceEvent>>, _) = (Vec::new(), Arc::new(Notify::new()));
    let mut events = pin!(renewable_watch(&api, &config, resync, timing, renew.clone()));
    let mut has_begun = false;
    loop {
        tokio::select! {
            // A new listener is known before the next event.
            biased;
            Some(listener) = joined.recv() => {
                // It gets a whole list.
                if has_begun {
                    renew.notify_one();
                }
                listeners.push(listener);
            }
            Some(event) = events.next(), if !listeners.is_empty() => {
                has_begun = true;
                let event = event.map_err(Arc::new);
                if let Err(error) = &event {
                    warn!(resource = name, error = why(error), "Cannot follow registrations; trying again");
                }
                listeners.retain(|listener| listener.send((name, event.clone())).is_ok());
                if listeners.is_empty() {
                    // A listener that has joined in the meantime is served. A later one starts a new watch.
                    joined.close();
                }
            }
            else => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;
    use http::{Request, Response};
    use kube::client::Body;
    use kube::core::GroupVersionKind;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tower::{BoxError, service_fn};

    static LISTS: AtomicUsize = AtomicUsize::new(0);
    static WATCHES: AtomicUsize = AtomicUsize::new(0);

    /// A server with one object, which never changes.
    fn server() -> Client {
        let answer = |request: Request<Body>| async move {
            if request.uri().query().unwrap_or_default().contains("watch=true") {
                WATCHES.fetch_add(1, Ordering::Relaxed);
                return std::future::pending().await;
            }
            LISTS.fetch_add(1, Ordering::Relaxed);
            let item = json!({ "metadata": { "name": "a", "resourceVersion": "1" } });
            let list =
                json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "1" }, "items": [item] });
            Ok::<_, BoxError>(Response::new(Body::from(list.to_string().into_bytes())))
        };
        Client::new(service_fn(answer), "default")
    }

    #[tokio::test]
    async fn all_listeners_share_one_watch_and_each_gets_a_whole_list() {
        let watches = SharedWatches::new(server(), Duration::from_secs(900), &Timing::short().watch);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v1", "Thing"));
        let listen = || watches.listen([("things", resource.clone(), Whose::Ours)]);
        let mut first = listen();
        assert_eq!(whole(&mut first).await, ["a"]);
        let mut second = listen();
        assert_eq!(whole(&mut second).await, ["a"]);
        assert_eq!(whole(&mut first).await, ["a"], "the first one sees the new list, too");
        assert_eq!(LISTS.load(Ordering::Relaxed), 2);
        assert_eq!(lock(&watches.feeds).len(), 1);
        assert!(WATCHES.load(Ordering::Relaxed) <= 2);
        // When all have gone, the next one begins a watch anew.
        drop((first, second));
        assert_eq!(whole(&mut listen()).await, ["a"]);
    }

    /// What the server of [`a_watch_that_goes_on_after_a_refusal_shows_nothing`] does to a watch.
    static ALLOWED: AtomicUsize = AtomicUsize::new(ENDS);
    const ENDS: usize = 0;
    const REFUSED: usize = 1;
    const GRANTED: usize = 2;
    const RESUMED: usize = 3;

    #[tokio::test]
    async fn a_watch_that_goes_on_after_a_refusal_shows_nothing() {
        let answer = |request: Request<Body>| async move {
            let ok = |body: String| Ok::<_, BoxError>(Response::new(Body::from(body.into_bytes())));
            if !request.uri().query().unwrap_or_default().contains("watch=true") {
                return ok(json!({ "metadata": { "resourceVersion": "1" }, "items": [] }).to_string());
            }
            match ALLOWED.load(Ordering::Relaxed) {
                ENDS => {
                    ALLOWED.store(REFUSED, Ordering::Relaxed);
                    ok(String::new())
                }
                REFUSED => {
                    let status = json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403 });
                    Ok(Response::builder().status(403).body(Body::from(status.to_string().into_bytes()))?)
                }
                _ => {
                    ALLOWED.store(RESUMED, Ordering::Relaxed);
                    std::future::pending().await
                }
            }
        };
        let client = Client::new(service_fn(answer), "default");
        let watches = SharedWatches::new(client, Duration::from_secs(900), &Timing::short().watch);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v1", "Thing"));
        let mut events = watches.listen([("things", resource, Whose::Ours)]);
        assert!(whole(&mut events).await.is_empty());
        for _ in 0..2 {
            let (_, refused) = events.next().await.expect("it never ends");
            assert!(crate::cluster::answer::is_refused(&refused.expect_err("a refusal")));
        }
        ALLOWED.store(GRANTED, Ordering::Relaxed);
        // A refusal may be on its way still.
        let mut last = None;
        while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(2), events.next()).await {
            last = Some(event);
        }
        assert_eq!(ALLOWED.load(Ordering::Relaxed), RESUMED);
        assert!(last.is_none_or(|(_, event)| event.is_err()), "neither a list nor an object");
    }

    /// The names in the next list that is read to its end.
    async fn whole(events: &mut Events) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            match events.next().await.expect("it never ends") {
                (_, Ok(Event::Init)) => names.clear(),
                (_, Ok(Event::InitApply(object))) => names.push(object.name().to_owned()),
                (_, Ok(Event::InitDone)) => return names,
                other => panic!("{other:?}"),
            }
        }
    }
}
