//! Reads the bodies of reviews, within one budget for the bodies and another one for the parsed reviews.
//!
//! # Guarantees
//! A body is charged by the memory that it takes, before it takes it: what has come, at most doubled, never what was
//! announced. If the budget of the bodies is used up, the connection of the oldest unfinished body is cut if it is older
//! than [`PATIENCE`]; strangers go before proven ones. So reviews go on, whatever slow clients hold. A complete body is
//! never cut. It waits for the memory of the parsed review, which others give back within the time of a call.

use crate::listener::Connection;
use crate::review::LARGEST;
use crate::survival::lock;
use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

/// The memory of all bodies at one time, in bytes: two of the largest, or a thousand small ones.
const BUDGET: usize = 16 << 20;
/// The memory of all parsed reviews at one time, in bytes. A larger one waits until it is alone.
const PARSED: usize = 16 << 20;
/// The largest parsed review, in bytes. The shipped Deployment has 128 MiB.
const LARGEST_PARSED: usize = 64 << 20;
/// The least memory of a body, in bytes, also for the other costs of a call. Most reviews of pods are smaller.
const LEAST: usize = 16 << 10;
/// The memory of a parsed value beside its text, in bytes: 32 of a `serde_json::Value`, which vectors double while they
/// grow. A member of an object counts as two values.
const VALUE: usize = 64;
/// The units that a list takes for its first values: a vector begins with room for four, of 32 bytes.
const OF_LIST: usize = 2;
/// The units that an object takes for its first members: a node of a `BTreeMap` has room for eleven, of 56 bytes.
const OF_OBJECT: usize = 10;
/// The time after which an unfinished body may be cut. An API server sends a whole body at once.
const PATIENCE: Duration = Duration::from_millis(500);
/// The time in which a connection that was cut gives its memory back.
const RELEASE: Duration = Duration::from_millis(20);

/// The reason why there is no body.
pub(super) enum Unread {
    TooLarge,
    /// The client has sent an incomplete body.
    Broken(axum::Error),
}

/// The bodies of one server.
pub(super) struct Bodies {
    free: Arc<Semaphore>,
    parsed: Arc<Semaphore>,
    /// The connections whose bodies are unfinished, the oldest first, with their beginning.
    unfinished: Mutex<BTreeMap<u64, (Instant, Arc<Connection>)>>,
    next: AtomicU64,
}

/// A complete body, with its share of the budget.
pub(super) struct Read {
    pub(super) bytes: Vec<u8>,
    _shares: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
}

impl Bodies {
    pub(super) fn new() -> Self {
        let [free, parsed] = [BUDGET, PARSED].map(|bytes| Arc::new(Semaphore::new(bytes)));
        Self { free, parsed, unfinished: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// The body of the request on `connection`.
    pub(super) async fn read(&self, connection: &Arc<Connection>, mut body: Body) -> Result<Read, Unread> {
        let announced = body.size_hint();
        if announced.lower() > LARGEST as u64 {
            return Err(Unread::TooLarge);
        }
        let most = announced.upper().and_then(|most| usize::try_from(most).ok()).unwrap_or(LARGEST).min(LARGEST);
        let mut reading = Reading::begin(self, connection);
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(Unread::Broken)?.into_data() else { continue };
            let size = bytes.len() + data.len();
            if size > LARGEST {
                return Err(Unread::TooLarge);
            }
            if size > bytes.capacity() {
                let capacity = (2 * bytes.capacity()).clamp(LEAST, most.max(LEAST)).max(size);
                reading.charge(capacity - bytes.capacity()).await;
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        reading.end();
        let parsed = bytes.len() + VALUE * values(&bytes);
        if parsed > LARGEST_PARSED {
            return Err(Unread::TooLarge);
        }
        let parsed = u32::try_from(parsed.clamp(LEAST, PARSED)).unwrap_or(u32::MAX);
        let parsed = self.parsed.clone().acquire_many_owned(parsed).await.ok();
        Ok(Read { bytes, _shares: (reading.share.take(), parsed) })
    }

    /// Cuts the connection of the oldest unfinished body that is old enough, but not that of `id`.
    fn cut(&self, id: u64) {
        let mut unfinished = lock(&self.unfinished);
        let others = unfinished.iter().filter(|(other, (begun, _))| **other != id && begun.elapsed() >= PATIENCE);
        let Some((_, id)) = others.map(|(id, (_, other))| (other.is_proven(), *id)).min() else { return };
        if let Some((_, connection)) = unfinished.remove(&id) {
            debug!("A slow body is given up, because the memory for reviews is used up");
            connection.cut();
        }
    }
}

/// A body that is being read.
struct Reading<'a> {
    bodies: &'a Bodies,
    id: u64,
    share: Option<OwnedSemaphorePermit>,
}

impl<'a> Reading<'a> {
    fn begin(bodies: &'a Bodies, connection: &Arc<Connection>) -> Self {
        let id = bodies.next.fetch_add(1, Ordering::Relaxed);
        lock(&bodies.unfinished).insert(id, (Instant::now(), connection.clone()));
        Self { bodies, id, share: None }
    }

    /// Records that the body is complete: it is not cut any more.
    fn end(&self) {
        lock(&self.bodies.unfinished).remove(&self.id);
    }

    /// Adds `bytes` to the share of the budget, as soon as they are free.
    async fn charge(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut waiting = pin!(self.bodies.free.clone().acquire_many_owned(bytes));
        // The place among those that wait is kept.
        let more = loop {
            match tokio::time::timeout(RELEASE, waiting.as_mut()).await {
                Ok(more) => break more.ok(),
                Err(_) => self.bodies.cut(self.id),
            }
        };
        match (&mut self.share, more) {
            (Some(share), Some(more)) => share.merge(more),
            (share, more) => *share = more,
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The memory of the JSON text `bytes` once it is parsed beside its text, in units of [`VALUE`]: one for each value,
/// members of objects twice, and what a list and an object allocate for their first value.
fn values(bytes: &[u8]) -> usize {
    let (mut values, mut is_text, mut is_escaped, mut opened) = (1, false, false, 0);
    for byte in bytes {
        if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            // An empty list or object allocates nothing.
            values += if matches!(byte, b']' | b'}') && !is_text { 0 } else { opened };
            opened = 0;
        }
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' if !is_text => values += 1,
            b'[' if !is_text => opened = OF_LIST,
            b'{' if !is_text => opened = OF_OBJECT,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::tests::connection;
    use futures::FutureExt;
    use futures::stream::{self, StreamExt};
    use http_body_util::StreamBody;
    use hyper::body::{Bytes, Frame};

    /// A body of which so many bytes come, and then nothing more.
    fn stuck(bytes: usize) -> Body {
        let frames = vec![b' '; bytes].chunks(16 << 10).map(Bytes::copy_from_slice).collect::<Vec<_>>();
        let frames = stream::iter(frames).chain(stream::pending());
        Body::new(StreamBody::new(frames.map(|bytes| Ok::<_, std::io::Error>(Frame::data(bytes)))))
    }

    #[tokio::test]
    async fn what_was_announced_costs_nothing_before_it_comes() {
        let (bodies, connection) = (Bodies::new(), connection());
        let mut reading: Vec<_> = (0..100).map(|_| Box::pin(bodies.read(&connection, stuck(1)))).collect();
        for read in &mut reading {
            assert!(read.now_or_never().is_none());
        }
        assert_eq!(bodies.free.available_permits(), BUDGET - 100 * LEAST);
        drop(reading);
        assert_eq!(bodies.free.available_permits(), BUDGET, "an unfinished body gives its share back");
        let read = bodies.read(&connection, Body::from(vec![b'1'; LARGEST])).await.ok().expect("it is complete");
        assert_eq!((read.bytes.len(), bodies.free.available_permits()), (LARGEST, BUDGET - LARGEST));
        assert_eq!(bodies.parsed.available_permits(), PARSED - LARGEST - VALUE);
        assert!(matches!(bodies.read(&connection, Body::from(vec![b'1'; LARGEST + 1])).await, Err(Unread::TooLarge)));
    }

    #[tokio::test]
    async fn the_oldest_unfinished_body_goes_strangers_first_and_a_new_one_never() {
        let bodies = Bodies::new();
        let (proven, stranger, new) = (connection(), connection(), connection());
        proven.prove();
        let hold = |connection| Box::pin(bodies.read(connection, stuck(7 << 20 >> 1)));
        let mut held: Vec<_> = [&proven, &stranger, &stranger, &stranger].map(hold).into();
        for read in &mut held {
            assert!(read.now_or_never().is_none());
        }
        let next = Box::pin(bodies.read(&new, Body::from(vec![b'1'; 4 << 20])));
        assert!(tokio::time::timeout(PATIENCE / 2, next).await.is_err(), "there is no room");
        assert_eq!(lock(&bodies.unfinished).len(), 4, "all are new");
        tokio::time::sleep(PATIENCE).await;
        let mut next = Box::pin(bodies.read(&new, Body::from(vec![b'1'; 4 << 20])));
        assert!(tokio::time::timeout(3 * RELEASE, &mut next).await.is_err(), "the memory has not been given back");
        let first = *lock(&bodies.unfinished).keys().next().expect("some are left");
        assert_eq!(first, 0, "the proven one stays");
        held.truncate(1);
        assert!(next.await.is_ok());
    }

    #[tokio::test]
    async fn complete_bodies_wait_for_each_other_and_none_is_cut() {
        let (bodies, connection) = (Bodies::new(), connection());
        let large = || Body::from(format!("[{}0]", "0,".repeat(300_000)));
        let first = bodies.read(&connection, large()).await.ok().expect("it is alone");
        let mut second = Box::pin(bodies.read(&connection, large()));
        assert!(tokio::time::timeout(2 * PATIENCE, &mut second).await.is_err(), "it waits");
        drop(first);
        assert!(second.await.is_ok());
    }

    #[tokio::test]
    async fn a_review_that_would_fill_the_memory_once_parsed_is_too_large() {
        let (bodies, connection) = (Bodies::new(), connection());
        let many = |count: usize| format!("[{}0]", "0,".repeat(count)).into_bytes();
        assert!(bodies.read(&connection, Body::from(many(900_000))).await.is_ok());
        assert!(matches!(bodies.read(&connection, Body::from(many(1_100_000))).await, Err(Unread::TooLarge)));
        let text = format!("\"{}\"", r#",\","#.repeat(1_000_000));
        assert!(bodies.read(&connection, Body::from(text)).await.is_ok(), "commas in a text are no values");
        assert_eq!(values(br#"{"a":[1,{}],"b,":"\\"}"#), 5 + OF_LIST + OF_OBJECT);
        assert_eq!(values(b"[[ ],{\n}, []]"), 3 + OF_LIST);
    }
}
