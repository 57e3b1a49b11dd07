//! Reads the bodies of reviews, within one budget for all of them.
//!
//! # Guarantees
//! A body is charged by the memory that it takes, before it takes it: what has come, at most doubled, never what was
//! announced. Before the end of the reading, the memory of the parsed review is charged, too. If the budget is used up,
//! the connection of the oldest unfinished body that is not proven is cut. A proven connection may also cut other
//! proven ones. So reviews go on, whatever slow clients hold. A body that cannot be charged waits as long as the
//! caller.

use crate::listener::Connection;
use crate::review::LARGEST;
use crate::survival::lock;
use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;

/// The memory of all reviews at one time, in bytes.
const BUDGET: usize = 32 << 20;
/// The least memory of a body, in bytes, also for the other costs of a call. Most reviews of pods are smaller.
const LEAST: usize = 16 << 10;
/// The memory of a parsed value beside its text, in bytes: 32 of a `serde_json::Value`, which vectors double while they
/// grow. A member of an object counts as two values.
const VALUE: usize = 64;
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
    /// The connections whose bodies are unfinished, the oldest first.
    unfinished: Mutex<BTreeMap<u64, Arc<Connection>>>,
    next: AtomicU64,
}

/// A complete body, with its share of the budget.
pub(super) struct Read {
    pub(super) bytes: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(super) fn new() -> Self {
        Self { free: Arc::new(Semaphore::new(BUDGET)), unfinished: Mutex::default(), next: AtomicU64::new(0) }
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
        let parsed = bytes.len() + VALUE * values(&bytes);
        if parsed > BUDGET - bytes.capacity() {
            return Err(Unread::TooLarge);
        }
        reading.charge(parsed.max(LEAST)).await;
        Ok(Read { bytes, _share: reading.share.take() })
    }

    /// Cuts the connection of the oldest unfinished body, but not of `of`. Returns whether there was one.
    fn cut(&self, of: &Reading<'_>) -> bool {
        let mut unfinished = lock(&self.unfinished);
        let may_cut_proven = of.connection.is_proven();
        let others = unfinished.iter().filter(|(id, other)| **id != of.id && (may_cut_proven || !other.is_proven()));
        let Some((_, id)) = others.map(|(id, other)| (other.is_proven(), *id)).min() else { return false };
        if let Some(connection) = unfinished.remove(&id) {
            debug!("A slow body is given up, because the memory for reviews is used up");
            connection.cut();
        }
        true
    }
}

/// A body that is being read.
struct Reading<'a> {
    bodies: &'a Bodies,
    connection: &'a Arc<Connection>,
    id: u64,
    share: Option<OwnedSemaphorePermit>,
}

impl<'a> Reading<'a> {
    fn begin(bodies: &'a Bodies, connection: &'a Arc<Connection>) -> Self {
        let id = bodies.next.fetch_add(1, Ordering::Relaxed);
        lock(&bodies.unfinished).insert(id, connection.clone());
        Self { bodies, connection, id, share: None }
    }

    /// Adds `bytes` to the share of the budget, as soon as they are free.
    async fn charge(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let free = &self.bodies.free;
        let more = loop {
            if let Ok(more) = free.clone().try_acquire_many_owned(bytes) {
                break more;
            }
            let waiting = free.clone().acquire_many_owned(bytes);
            let waited = match self.bodies.cut(self) {
                true => tokio::time::timeout(RELEASE, waiting).await.ok(),
                // Only complete reviews hold memory, which are answered within seconds.
                false => Some(waiting.await),
            };
            if let Some(Ok(more)) = waited {
                break more;
            }
        };
        match &mut self.share {
            Some(share) => share.merge(more),
            None => self.share = Some(more),
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(&self.bodies.unfinished).remove(&self.id);
    }
}

/// At least the number of values in the JSON text `bytes`, members of objects twice.
fn values(bytes: &[u8]) -> usize {
    let (mut values, mut is_text, mut is_escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b':' | b'[' | b'{' if !is_text => values += 1,
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
        assert_eq!((read.bytes.len(), bodies.free.available_permits()), (LARGEST, BUDGET - 2 * LARGEST - VALUE));
        assert!(matches!(bodies.read(&connection, Body::from(vec![b'1'; LARGEST + 1])).await, Err(Unread::TooLarge)));
    }

    #[tokio::test]
    async fn the_oldest_unfinished_body_goes_and_a_proven_one_not_for_a_stranger() {
        let bodies = Bodies::new();
        let (proven, stranger, new) = (connection(), connection(), connection());
        proven.prove();
        let mut first = Box::pin(bodies.read(&proven, stuck(LARGEST)));
        assert!((&mut first).now_or_never().is_none());
        let mut held: Vec<_> = (0..4).map(|_| Box::pin(bodies.read(&stranger, stuck(LARGEST)))).collect();
        for read in &mut held {
            assert!(read.now_or_never().is_none());
        }
        let mut next = Box::pin(bodies.read(&new, Body::from(vec![b'1'; 2 << 20])));
        assert!((&mut next).now_or_never().is_none(), "the memory has not been given back");
        assert_eq!(lock(&bodies.unfinished).len(), 5, "the proven one, three of the stranger, and the new one");
        drop(held.remove(0));
        assert!(next.await.is_ok());
    }

    #[tokio::test]
    async fn a_review_that_would_fill_the_memory_once_parsed_is_too_large() {
        let (bodies, connection) = (Bodies::new(), connection());
        let many = |count: usize| format!("[{}0]", "0,".repeat(count)).into_bytes();
        assert!(bodies.read(&connection, Body::from(many(400_000))).await.is_ok());
        assert!(matches!(bodies.read(&connection, Body::from(many(600_000))).await, Err(Unread::TooLarge)));
        let text = format!("\"{}\"", r#",\","#.repeat(1_000_000));
        assert!(bodies.read(&connection, Body::from(text)).await.is_ok(), "commas in a text are no values");
        assert_eq!(values(br#"{"a":[1,{}],"b,":"\\"}"#), 8);
    }
}
