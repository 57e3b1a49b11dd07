//! What etcd holds, read at one moment and put back later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use http::Request;
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

/// Where API servers keep everything, and the first key behind it.
const ALL: (&[u8], &[u8]) = (b"/registry/", b"/registry0");
/// What servers write about themselves while they run: nobody's state.
const OWN: [&str; 3] =
    ["/registry/leases/kube-system/apiserver-", "/registry/masterleases/", "/registry/peerserverleases/"];
/// Whose values servers bring in line by themselves, with their own port and with what is served.
const RECONCILED: [&str; 2] =
    ["/registry/services/specs/default/kubernetes", "/registry/apiregistration.k8s.io/apiservices/"];
/// The last thing that a server makes for itself, up to ten seconds after its start.
const LAST: &[u8] = b"/registry/services/specs/default/kubernetes";
/// Operations in one transaction; etcd takes 128 (`--max-txn-ops`).
const TRANSACTION: usize = 100;
/// How long nothing may change until a new server has made all that it makes for itself.
const QUIET: Duration = Duration::from_millis(700);
/// How long that may take.
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// What an API server looks for once a second.
const REGISTRATIONS: [&str; 3] =
    ["/registry/initializerconfigurations/", "/registry/mutatingadmission", "/registry/validatingadmission"];
/// Until it has looked for these: `k8s.io/apiserver`, `initializer_manager.go` of 1.13 and
/// `plugin/policy/generic/policy_source.go` of 1.36. It may take two looks.
const POLLED: Duration = Duration::from_millis(2_200);
/// How long an API server's own watches may take to show it what has changed in etcd.
const WATCHED: Duration = Duration::from_millis(100);

/// Every key of etcd with its value, but for what API servers write about themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(Arc<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Snapshot {
    /// The keys that are only here, or have another value in `other` that servers do not bring in line by themselves.
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

/// The etcd of one control plane, by the HTTP gateway that it has beside gRPC.
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

    /// What it holds now.
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

    /// What it holds once the API server has made all that it makes for itself.
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

    /// Puts everything into an etcd that is empty.
    pub(crate) async fn fill(&self, snapshot: &Snapshot) -> Result<()> {
        let puts: Vec<Value> = snapshot.0.iter().map(|(key, value)| put(key, value)).collect();
        for part in puts.chunks(TRANSACTION) {
            self.commit(part).await?;
        }
        Ok(())
    }

    /// Makes it hold what `snapshot` holds, and nothing else, and waits until the API server on it must have seen that, and what else has
    /// changed until `since`.
    pub(crate) async fn restore(&self, snapshot: &Snapshot, since: std::time::Instant) -> Result<()> {
        let mut registered = Instant::from_std(since);
        // What was under way may still be written: it ends when a look finds nothing to do.
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
            // One after the other: API servers count on it that no two objects have the same version.
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
