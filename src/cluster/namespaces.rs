//! The cache of Namespaces, watched only while a policy selects them by more than their names.

use super::answer::{CallError, why};
use super::api::Api;
use super::client::call;
use super::object::Object;
use super::watch::{WatchState, watch_with_resync};
use crate::survival;
use crate::timing;
use futures::{TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::core::ApiResource;
use kube::runtime::watcher;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot, watch};
use tracing::warn;

/// The most requests at one time about names in reviews that the cache lacks. Anybody who reaches the port of the webhook
/// can post any name.
const AT_ONCE: usize = 2;
/// The most names that wait for such a request.
const QUEUED: usize = 32;
/// The most reviews that wait for a Namespace. Then the one that has waited longest is answered without it.
const WAITING: usize = 32;

/// Namespaces by name, as last seen.
pub struct Namespaces {
    state: Mutex<Cached>,
    /// Signals that a Namespace has been seen.
    news: watch::Sender<()>,
    /// The places for requests about names in reviews.
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Cached {
    known: HashMap<String, Arc<Value>>,
    /// Whether a whole list has been read.
    is_synced: bool,
    /// How often labels have changed.
    changes: u64,
    /// The changes that count.
    edition: u64,
    /// Until when no later change counts, and how long that is.
    holds: (Option<Instant>, Duration),
    relabelled: bool,
    /// The names in reviews that will be asked for. All reviews of one name that come before the request share it.
    queued: HashMap<String, watch::Sender<Option<Lookup>>>,
    /// The places of waiting reviews, the oldest first: those that may not ask, and those that may. So strangers take no
    /// place of others.
    waiting: [VecDeque<oneshot::Sender<()>>; 2],
}

impl Cached {
    /// Counts the changes of labels until `now`, unless others have been counted a moment ago.
    fn count(&mut self, now: Instant) {
        let (until, pause) = self.holds;
        if self.changes != self.edition && until.is_none_or(|until| until <= now) {
            (self.edition, self.holds, self.relabelled) = (self.changes, (Some(now + pause), pause), true);
        }
    }
}

/// The answer of the server about a name: none if there is no such Namespace.
type Lookup = Result<Option<Arc<Value>>, CallError>;

impl Default for Namespaces {
    fn default() -> Self {
        let (news, _) = watch::channel(());
        Self { state: Mutex::default(), news, room: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Namespaces {
    /// The Namespace `name`, if it has been seen.
    pub fn get(&self, name: &str) -> Option<Arc<Value>> {
        self.state().known.get(name).cloned()
    }

    /// All Namespaces, as last seen; none before a whole list has been read.
    pub fn all(&self) -> Option<BTreeMap<String, Arc<Value>>> {
        let state = self.state();
        state.is_synced.then(|| state.known.iter().map(|(name, object)| (name.clone(), object.clone())).collect())
    }

    /// How often labels have changed; none before a whole list has been read. What was compared with Namespaces holds as long as
    /// this number stays. It stays for [`timing::Watch::relabelled`] at least: whoever changes labels all the time does not keep others from
    /// being compared.
    pub fn edition(&self) -> Option<u64> {
        let mut state = self.state();
        state.count(Instant::now());
        state.is_synced.then_some(state.edition)
    }

    /// The Namespace `name` of a stored workload, from the cache or else from the server, because a workload may arrive
    /// before its Namespace is cached. None if there is none.
    ///
    /// # Errors
    /// If the server cannot be read.
    pub async fn read(&self, client: &Client, name: &str) -> Result<Option<Arc<Value>>, CallError> {
        if let Some(known) = self.get(name) {
            return Ok(Some(known));
        }
        let api = Api::<Object>::all_with(client.clone(), &resource());
        Ok(call(api.get_opt(name)).await?.map(|object| Arc::new(object.value())))
    }

    /// The Namespace `name` of a review, which anybody can have written, from the cache or else from the server. None if
    /// there is none. The watch may bring it in the meantime: a Namespace that was created a moment ago has workloads at
    /// once. With `may_ask` false the server is not asked.
    ///
    /// # Guarantees
    /// However many reviews come: `AT_ONCE` requests at one time. A name that the server does not know, or an error,
    /// keeps its place for [`timing::Watch::unknown_namespace`], so that there are a few requests a second at most. A
    /// known name costs nothing, and delays nobody. The answer is never older than the review: no negative answer is
    /// kept.
    ///
    /// # Errors
    /// If the server cannot be read.
    pub async fn find(
        self: &Arc<Self>,
        client: &Client,
        name: &str,
        may_ask: bool,
        timing: &'static timing::Watch,
    ) -> Result<Option<Arc<Value>>, CallError> {
        if let Some(known) = self.get(name) {
            return Ok(Some(known));
        }
        let mut news = self.news.subscribe();
        if let Some(known) = self.get(name) {
            return Ok(Some(known));
        }
        let mut place = self.wait(may_ask);
        let mut asked = may_ask.then(|| self.ask(client, name, timing)).flatten();
        let arrival = if asked.is_some() { timing.namespace } else { timing.namespace_arrival };
        let mut arrival = pin!(tokio::time::sleep(arrival));
        loop {
            tokio::select! {
                biased;
                Ok(()) = news.changed() => {
                    if let Some(known) = self.get(name) {
                        return Ok(Some(known));
                    }
                }
                answer = answered(&mut asked) => return answer.unwrap_or(Ok(None)),
                // Others need the place.
                _ = &mut place => return Ok(None),
                () = &mut arrival => return Ok(None),
            }
        }
    }

    /// A place among the waiting reviews. It ends if others need it.
    fn wait(&self, may_ask: bool) -> oneshot::Receiver<()> {
        let (place, ends) = oneshot::channel();
        let mut state = self.state();
        let waiting = &mut state.waiting[usize::from(may_ask)];
        waiting.retain(|place| !place.is_closed());
        if waiting.len() >= WAITING {
            waiting.pop_front();
        }
        waiting.push_back(place);
        ends
    }

    /// Has the server asked for `name`, and returns where the answer will be. None if too many names wait for that.
    fn ask(
        self: &Arc<Self>,
        client: &Client,
        name: &str,
        timing: &'static timing::Watch,
    ) -> Option<watch::Receiver<Option<Lookup>>> {
        let mut state = self.state();
        if let Some(queued) = state.queued.get(name) {
            return Some(queued.subscribe());
        }
        // Those who wanted the others may be gone.
        state.queued.retain(|_, queued| !queued.is_closed());
        if state.queued.len() >= QUEUED {
            return None;
        }
        let (queued, answer) = watch::channel(None);
        state.queued.insert(name.to_owned(), queued);
        drop(state);
        let (namespaces, client, name) = (self.clone(), client.clone(), name.to_owned());
        tokio::spawn(async move { namespaces.answer(&client, &name, timing).await });
        Some(answer)
    }

    /// Asks the server for the queued `name` once there is a place.
    async fn answer(&self, client: &Client, name: &str, timing: &timing::Watch) {
        let Ok(_place) = self.room.acquire().await else { return };
        // A review that comes from now on might have been written after the server's answer.
        let Some(queued) = self.state().queued.remove(name) else { return };
        if queued.is_closed() {
            return;
        }
        let answer = match tokio::time::timeout(timing.namespace, self.read(client, name)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Away("no answer in time".to_owned())),
        };
        let is_known = matches!(answer, Ok(Some(_)));
        queued.send_replace(Some(answer));
        if !is_known {
            tokio::time::sleep(timing.unknown_namespace).await;
        }
    }

    /// Whether labels have changed since the last call, so that other workloads may match now.
    pub fn take_relabelled(&self) -> bool {
        let mut state = self.state();
        state.count(Instant::now());
        std::mem::take(&mut state.relabelled)
    }

    fn set(&self, object: &Object) {
        let fresh = object.value();
        let mut state = self.state();
        let known = state.known.get(object.name());
        if known.is_some_and(|known| known["metadata"]["labels"] != fresh["metadata"]["labels"]) {
            state.changes += 1;
            state.count(Instant::now());
        }
        state.known.insert(object.name().to_owned(), Arc::new(fresh));
        drop(state);
        self.news.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, Cached> {
        // A panic while holding the lock leaves a consistent map.
        survival::lock(&self.state)
    }
}

/// The answer of a request, once it is there; none if there will be none. Never without a request.
async fn answered(asked: &mut Option<watch::Receiver<Option<Lookup>>>) -> Option<Lookup> {
    match asked {
        Some(answer) => answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone()),
        None => std::future::pending().await,
    }
}

fn resource() -> ApiResource {
    ApiResource::erase::<Namespace>(&())
}

/// Watches all Namespaces for ever and reports the progress. Lists them all again after each `resync`.
pub async fn follow(
    client: Client,
    namespaces: Arc<Namespaces>,
    resync: Duration,
    progress: &watch::Sender<WatchState>,
    timing: &'static timing::Watch,
) {
    let api = Api::<Object>::all_with(client, &resource());
    let events = watch_with_resync(&api, &watcher::Config::default(), resync, timing);
    pin_mut!(events);
    let mut listed = HashSet::new();
    namespaces.state().holds.1 = timing.relabelled;
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => listed.clear(),
            Ok(Some(watcher::Event::InitApply(object))) => {
                listed.insert(object.name().to_owned());
                namespaces.set(&object);
            }
            Ok(Some(watcher::Event::InitDone)) => {
                let listed = std::mem::take(&mut listed);
                let mut state = namespaces.state();
                state.known.retain(|name, _| listed.contains(name));
                // Workloads that were counted without the Namespaces must be counted again.
                state.relabelled = true;
                state.is_synced = true;
                drop(state);
                progress.send_replace(WatchState::Synced);
            }
            Ok(Some(watcher::Event::Apply(object))) => namespaces.set(&object),
            Ok(Some(watcher::Event::Delete(object))) => drop(namespaces.state().known.remove(object.name())),
            Ok(None) => return,
            Err(error) => {
                let message = why(&error);
                warn!(error = message, "Cannot follow the Namespaces; trying again");
                progress.send_if_modified(|progress| progress.fail(&error, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_unknown_before_a_whole_list_and_each_change_of_labels_is_an_edition() {
        let namespaces = Namespaces::default();
        let set = |labels: Value| {
            let object = serde_json::json!({ "metadata": { "name": "n", "labels": labels } });
            namespaces.set(&serde_json::from_value(object).unwrap());
        };
        set(serde_json::json!({}));
        assert_eq!((namespaces.edition(), namespaces.all().is_some()), (None, false));
        namespaces.state().is_synced = true;
        let mut editions = vec![namespaces.edition()];
        for value in ["1", "1", "2", "1"] {
            set(serde_json::json!({ "v": value }));
            editions.push(namespaces.edition());
        }
        assert_eq!(editions, [0, 1, 1, 2, 3].map(Some));
        assert_eq!(namespaces.all().map(|all| all.len()), Some(1));
    }

    #[test]
    fn whoever_relabels_all_the_time_makes_few_editions_and_the_last_change_counts() {
        let begin = Instant::now();
        let mut state = Cached { holds: (None, Duration::from_secs(60)), ..Cached::default() };
        let mut editions = BTreeMap::new();
        for second in 0..=150 {
            state.changes += u64::from(second < 100);
            state.count(begin + Duration::from_secs(second));
            if std::mem::take(&mut state.relabelled) {
                editions.insert(second, state.edition);
            }
        }
        assert_eq!(editions, [(0, 1), (60, 61), (120, 100)].into());
    }

    use crate::timing::Timing;
    use futures::future::join_all;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    const TIMING: &timing::Watch = &Timing::short().watch;

    fn namespace(name: &str) -> Object {
        serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
    }

    /// A server that knows the Namespace `real` alone, and the paths of the requests to it.
    fn server() -> (Client, Arc<Mutex<Vec<String>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let seen = sent.clone();
        let answer = move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            seen.lock().unwrap().push(path.clone());
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let (status, body) = match path.strip_prefix("/api/v1/namespaces/") {
                    Some("real") => (200, json!({ "metadata": { "name": "real" } })),
                    _ => (404, json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" })),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(status).body(body)?)
            }
        };
        (Client::new(service_fn(answer), "default"), sent)
    }

    #[tokio::test]
    async fn a_flood_of_unknown_names_is_a_handful_of_requests_and_delays_nobody_whose_namespace_is_known() {
        let (client, sent) = server();
        let namespaces = Arc::new(Namespaces::default());
        namespaces.set(&namespace("shop"));
        let begin = Instant::now();
        let names: Vec<String> = (0..1000).map(|number| format!("unknown-{number}")).collect();
        let flood = join_all(names.iter().map(|name| namespaces.find(&client, name, true, TIMING)));
        let cached = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let begin = Instant::now();
            assert!(matches!(namespaces.find(&client, "shop", true, TIMING).await, Ok(Some(_))));
            begin.elapsed()
        };
        // A Namespace that was created in the middle of it, which the watch shows.
        let created = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let found = namespaces.find(&client, "new", true, TIMING);
            let shown = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                namespaces.set(&namespace("new"));
            };
            tokio::join!(found, shown).0
        };
        let (flood, cached, created) = tokio::join!(flood, cached, created);
        assert!(flood.iter().all(|found| matches!(found, Ok(None))), "nobody is let through");
        assert!(cached < Duration::from_millis(20), "{cached:?}");
        assert!(matches!(created, Ok(Some(_))), "{created:?}");
        assert!(begin.elapsed() < 2 * TIMING.namespace, "{:?}", begin.elapsed());
        let sent = sent.lock().unwrap().len();
        assert!((1..=AT_ONCE + QUEUED).contains(&sent), "{sent} requests");
        assert!(
            namespaces.state().queued.len() <= QUEUED
                && namespaces.state().waiting.iter().all(|waiting| waiting.len() <= WAITING)
        );
    }

    #[tokio::test]
    async fn reviews_of_one_name_share_a_request_and_a_caller_who_may_not_ask_causes_none() {
        let (client, sent) = server();
        let namespaces = Arc::new(Namespaces::default());
        let found = join_all((0..20).map(|_| namespaces.find(&client, "real", true, TIMING))).await;
        assert!(found.iter().all(|found| matches!(found, Ok(Some(_)))), "{found:?}");
        assert_eq!(sent.lock().unwrap().len(), 1);
        let found = namespaces.find(&client, "real", false, TIMING).await;
        assert!(matches!(found, Ok(None)), "{found:?}");
        assert_eq!(sent.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_namespace_that_was_missing_a_moment_ago_is_found_once_it_is_there() {
        let known = Arc::new(Mutex::new(false));
        let exists = known.clone();
        let answer = move |_: Request<Body>| {
            let status = if *exists.lock().unwrap() { 200 } else { 404 };
            async move {
                let body = match status {
                    200 => json!({ "metadata": { "name": "new" } }),
                    _ => json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" }),
                };
                let body = Body::from(body.to_string().into_bytes());
                Ok::<_, BoxError>(Response::builder().status(status).body(body)?)
            }
        };
        let client = Client::new(service_fn(answer), "default");
        let namespaces = Arc::new(Namespaces::default());
        let find = || namespaces.find(&client, "new", true, TIMING);
        assert!(matches!(find().await, Ok(None)));
        *known.lock().unwrap() = true;
        assert!(matches!(find().await, Ok(Some(_))), "no negative answer is kept");
    }
}
