//! Snapshots of the content of etcd, and their restoration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use http::Request;
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

/// The key range of API servers: its beginning, and the first key after it.
const ALL: (&[u8], &[u8]) = (b"/registry/", b"/registry0");
/// The keys that servers write about themselves while they run. They are not part of a state.
const OWN: [&str; 4] = [
    "/registry/leases/kube-system/apiserver-",
    "/registry/leases/kube-system/kube-apiserver-", // 1.26
    "/registry/masterleases/",
    "/registry/peerserverleases/",
];
/// The keys whose values servers reconcile themselves, with their own port and served APIs.
const RECONCILED: [&str; 2] =
    ["/registry/services/specs/default/kubernetes", "/registry/apiregistration.k8s.io/apiservices/"];
/// The last object that a server creates for itself, up to ten seconds after its start.
const LAST: &[u8] = b"/registry/services/specs/default/kubernetes";
/// The operations per transaction; etcd accepts 128 (`--max-txn-ops`).
const TRANSACTION: usize = 100;
/// The time without changes after which a new server has created all its own objects.
const QUIET: Duration = Duration::from_millis(700);
/// The time limit for that.
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// The objects that an API server polls once a second.
const REGISTRATIONS: [&str; 3] =
    ["/registry/initializerconfigurations/", "/registry/mutatingadmission", "/registry/validatingadmission"];
/// The time until it has polled them: `k8s.io/apiserver`, `initializer_manager.go` of 1.13 and
/// `plugin/policy/generic/policy_source.go` of 1.36. It may take two polls.
const POLLED: Duration = Duration::from_millis(2_200);
/// The time until an API server's own watches show a change in etcd.
const WATCHED: Duration = Duration::from_millis(100);

/// Every key of etcd with its value, except those that API servers write about themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(Arc<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Snapshot {
    /// The keys that are only here, or whose value in `other` differs and is not reconciled by servers.
    pub fn difference(&self, other: &Self) -> Vec<String> {
        self.not_in(other).map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect()
    }

    fn not_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> {
        self.0.iter().filter(|(key, value)| match other.0.get(*key) {
            Some(there) => there != *value && !begins(key, &RECONCILED),
            None => true,
        })
    }
}

/// The etcd of a control plane, through its HTTP gateway.
#[derive(Clone)]
pub(crate) struct Etcd(Client);

impl Etcd {
    pub(crate) fn at(address: &str) -> Result<Self> {
        let mut config = Config::new(format!("http://{address}").parse()?);
        config.default_retry = false;
        Ok(Self(Client::try_from(config)?))
    }

    async fn call(&self, path: &str, body: &Value) -> Result<Value> {
        let request = Request::post(format!("/v3/kv/{path}")).header("Content-Type", "application/json");
        Ok(self.0.request(request.body(body.to_string().into_bytes())?).await?)
    }

    /// The current content.
    pub(crate) async fn read(&self) -> Result<Snapshot> {
        let (first, end) = ALL;
        let all = json!({ "key": ByteString(first.to_vec()), "range_end": ByteString(end.to_vec()) });
        let mut answer = self.call("range", &all).await?;
        let mut read = BTreeMap::new();
        for pair in answer["kvs"].as_array_mut().into_iter().flatten() {
            let [key, value] = ["key", "value"].map(|field| pair[field].take());
            let key = serde_json::from_value::<ByteString>(key)?.0;
            if !begins(&key, &OWN) {
                read.insert(key, serde_json::from_value::<ByteString>(value)?.0);
            }
        }
        ensure!(!read.is_empty(), "etcd holds nothing of an API server");
        Ok(Snapshot(Arc::new(read)))
    }

    /// The content once the API server has created all its own objects.
    pub(crate) async fn settled(&self) -> Result<Snapshot> {
        let deadline = Instant::now() + QUIET_LIMIT;
        let mut before = self.read().await?;
        loop {
            sleep(QUIET).await;
            let now = self.read().await?;
            if now == before && now.0.contains_key(LAST) {
                return Ok(now);
            }
            ensure!(Instant::now() < deadline, "etcd is not quiet: {:?}", now.difference(&before));
            before = now;
        }
    }

    /// Writes everything into an empty etcd.
    pub(crate) async fn fill(&self, snapshot: &Snapshot) -> Result<()> {
        let puts: Vec<Value> = snapshot.0.iter().map(|(key, value)| put(key, value)).collect();
        for part in puts.chunks(TRANSACTION) {
            self.commit(part).await?;
        }
        Ok(())
    }

    /// Makes `snapshot` the exact content, and waits until the API server must have seen it, and all other changes
    /// until `since`.
    pub(crate) async fn restore(&self, snapshot: &Snapshot, since: std::time::Instant) -> Result<()> {
        let mut registered = Instant::from_std(since);
        // Pending writes may still arrive, so it repeats until a look finds no difference.
        for _ in 0..10 {
            let now = self.read().await?;
            let (mut operations, mut is_polled) = (Vec::new(), false);
            for (key, _) in now.not_in(snapshot).filter(|(key, _)| !snapshot.0.contains_key(*key)) {
                is_polled |= begins(key, &REGISTRATIONS);
                operations.push(json!({ "requestDeleteRange": { "key": ByteString(key.clone()) } }));
            }
            for (key, value) in snapshot.not_in(&now) {
                is_polled |= begins(key, &REGISTRATIONS);
                operations.push(put(key, value));
            }
            if operations.is_empty() {
                sleep_until(registered + POLLED).await;
                return Ok(());
            }
            // One at a time, because API servers rely on different versions for different objects.
            for operation in &operations {
                self.commit(std::slice::from_ref(operation)).await?;
            }
            if is_polled {
                registered = Instant::now();
            }
            sleep(WATCHED).await;
        }
        let now = self.read().await?;
        anyhow::bail!("something writes all the time: {:?}", now.difference(snapshot))
    }

    async fn commit(&self, operations: &[Value]) -> Result<()> {
        self.call("txn", &json!({ "success": operations })).await.map(drop)
    }
}

fn put(key: &[u8], value: &[u8]) -> Value {
    json!({ "requestPut": { "key": ByteString(key.to_vec()), "value": ByteString(value.to_vec()) } })
}

fn begins(key: &[u8], prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
}
