//! The accept loop of both ports, and the limits of their connections.
//!
//! # Limits, and their reasons
//! Any client that reaches a port can connect. No client may keep others out, or hold memory without an end.
//!
//! | limit | reason |
//! |---|---|
//! | [`Limits::connections`] in all | memory. If all places are taken, the connection of the least worth is closed |
//! | [`Limits::of_a_peer`] for each address | one client cannot close the connections of others. Above it, the peer's own connection of the least worth is closed. It is no refusal: behind a proxy or NAT all clients have one address |
//! | [`HANDSHAKE`] bytes of a handshake | TLS keeps 64 KiB of an unfinished message |
//! | [`HEAD`] bytes of a head, and 100 headers (hyper) | memory |
//! | [`timing::Connections::opening`] for a handshake, and for each head | slow clients |
//! | [`timing::Connections::idle`] without a request | what is never used goes |
//! | [`timing::Connections::proven_idle`] for a *proven* connection | API servers keep connections, those of 1.13 for ever. A request on a connection that is just closing is lost |
//!
//! A connection is proven once the handler says so: [`Connection::prove`]. The least worth has a connection that is not
//! proven, whatever it does: only a complete request counts. Then follow connections that have had no answer yet in
//! their first second ([`FRESH`]), so that a burst of new clients does not drive out itself. Then follow proven ones
//! between two requests. If half of the places have proven ones, these go before the new ones. Of equal worth, the
//! address with the most connections loses one, and of these the oldest. A complete request is finished, unless
//! [`Limits::cuts_calls`]. So a client can get in at any time: an attacker must open as many connections as there are
//! places within the milliseconds that a new client needs for its first request.
//!
//! # Stopping
//! The loop accepts no new connections, and every answer has `Connection: close`. After `linger` it closes idle
//! connections. Running calls are finished, for at most `drain`.

use crate::survival::lock;
use crate::timing;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Request, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::ReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;
use tracing::{debug, warn};

/// The most bytes of the head of a request, and of the buffers of a connection. The heads of API servers, kubelets and
/// Prometheus have less than 4 KiB, tokens included.
const HEAD: usize = 16 << 10;
/// The most bytes of a handshake. A chain of three client certificates with keys of 4096 bits has 6 KiB.
const HANDSHAKE: usize = 32 << 10;
/// The time in which a proven connection may end in order after its place was given away.
const LEAVING: Duration = Duration::from_secs(1);

/// The time in which a new connection has its first request. On a busy machine, a thousand handshakes take about as long.
const FRESH: Duration = Duration::from_secs(1);

/// The time after which a call may be cut, where calls may be cut: an answer takes milliseconds.
const HELD: Duration = Duration::from_millis(100);

/// What the connections of a port may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most open connections.
    pub(crate) connections: usize,
    /// The connections of one address from which on it makes room for itself.
    pub(crate) of_a_peer: usize,
    /// Whether a running call may be cut to make room, because its client repeats it.
    pub(crate) cuts_calls: bool,
    /// The time limits.
    pub(crate) timing: &'static timing::Connections,
}

/// The end of a server.
pub(crate) struct Ending {
    /// Becomes true once the server must stop.
    pub(crate) stop: watch::Receiver<bool>,
    /// The time for which idle connections stay open, so that a call in transit is still answered.
    pub(crate) linger: Duration,
    /// The time for running calls after that.
    pub(crate) drain: Duration,
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The TLS handshake is not complete.
    Handshake,
    /// Nothing of the next request has come.
    Idle,
    /// The head of a request is incomplete.
    Head,
    /// The body of a request is incomplete.
    Body,
    /// A complete request is being answered.
    Call,
}

/// The reason to keep a connection, the weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Worth {
    /// It has never been used as this port is meant to be.
    Stranger,
    /// It is proven, and waits for a request.
    Proven,
    /// It is about to send its first request.
    Fresh,
    /// It is proven, and few are.
    Kept,
    /// It is being answered.
    Call,
}

struct ConnectionState {
    opened: Instant,
    phase: Phase,
    since: Instant,
    is_proven: bool,
    has_asked: bool,
    is_answered: bool,
    /// The bytes of the handshake so far.
    greeted: usize,
}

/// An open connection.
pub(crate) struct Connection {
    id: u64,
    peer: IpAddr,
    state: Mutex<ConnectionState>,
    places: Arc<Places>,
    /// Notified to end the connection at once.
    cut: Notify,
    /// Notified to end the connection in order.
    leave: Notify,
}

impl Connection {
    /// Records that the connection belongs to a client that this port is for.
    pub(crate) fn prove(&self) {
        lock(&self.state).is_proven = true;
    }

    /// Whether the connection belongs to a client that this port is for.
    pub(crate) fn is_proven(&self) -> bool {
        lock(&self.state).is_proven
    }

    /// Records that the body of the request is complete. From now on the request is finished.
    pub(crate) fn has_request(&self) {
        self.enter(Phase::Call);
    }

    /// Ends the connection at once.
    pub(crate) fn cut(&self) {
        lock(&self.places.open).remove(&self.id);
        self.cut.notify_one();
    }

    fn enter(&self, phase: Phase) {
        let mut state = lock(&self.state);
        (state.phase, state.since) = (phase, Instant::now());
        state.is_answered |= phase == Phase::Idle && state.has_asked;
        state.has_asked |= matches!(phase, Phase::Body | Phase::Call);
        drop(state);
        if phase == Phase::Idle {
            self.places.freed.notify_one();
        }
    }

    /// Records that bytes have come. An error if the handshake is too long.
    fn received(&self, bytes: usize) -> io::Result<()> {
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Handshake => {
                state.greeted += bytes;
                if state.greeted > HANDSHAKE {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the handshake is too long"));
                }
            }
            Phase::Idle => (state.phase, state.since) = (Phase::Head, Instant::now()),
            Phase::Head | Phase::Body | Phase::Call => {}
        }
        Ok(())
    }

    /// The worth of the connection; none if it must not be closed. The least is closed first.
    fn worth(&self, now: Instant, cuts_calls: bool) -> Option<(Worth, Instant)> {
        let state = lock(&self.state);
        let is_fresh = !state.is_answered && now.saturating_duration_since(state.opened) < FRESH;
        match (state.phase, state.is_proven) {
            // Such a call is one that its client holds.
            (Phase::Call, _) if cuts_calls && now.saturating_duration_since(state.since) >= HELD => {
                Some((Worth::Stranger, state.opened))
            }
            (Phase::Call, _) => cuts_calls.then_some((Worth::Call, state.since)),
            (_, false) if is_fresh => Some((Worth::Fresh, state.opened)),
            (_, false) => Some((Worth::Stranger, state.opened)),
            (Phase::Idle, true) => Some((Worth::Proven, state.since)),
            (Phase::Handshake | Phase::Head | Phase::Body, true) => None,
        }
    }

    /// Whether the client has taken too long. The handler itself limits a body and a call.
    fn is_late(&self, now: Instant, timing: &timing::Connections) -> bool {
        let state = lock(&self.state);
        let limit = match state.phase {
            Phase::Handshake | Phase::Head => timing.opening,
            Phase::Idle if !state.has_asked => timing.opening,
            Phase::Idle if state.is_proven => timing.proven_idle,
            Phase::Idle => timing.idle,
            Phase::Body | Phase::Call => return false,
        };
        now.saturating_duration_since(state.since) >= limit
    }

    /// Ends the connection: in order if it is proven, because then the client may be about to use it.
    fn end(&self) {
        match self.is_proven() {
            true => self.leave.notify_one(),
            false => self.cut.notify_one(),
        }
    }
}

/// The open connections of a port.
struct Places {
    limits: Limits,
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// Notified once a connection may be closed that could not be before, or has ended.
    freed: Notify,
}

impl Places {
    fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default(), next: AtomicU64::new(0), freed: Notify::new() })
    }

    fn is_empty(&self) -> bool {
        lock(&self.open).is_empty()
    }

    /// A place for a connection from `peer`, for which another may have to go; none while no other can.
    fn admit(self: &Arc<Self>, peer: IpAddr, phase: Phase) -> Option<TakenPlace> {
        let mut open = lock(&self.open);
        let of_peer = open.values().filter(|connection| connection.peer == peer).count();
        if of_peer >= self.limits.of_a_peer {
            // If none of them is idle, the limit of all decides.
            self.make_room(&mut open, |connection, worth| connection.peer == peer && worth <= Worth::Proven);
        }
        if open.len() >= self.limits.connections && !self.make_room(&mut open, |_, _| true) {
            return None;
        }
        let now = Instant::now();
        let connection = Arc::new(Connection {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            peer,
            state: Mutex::new(ConnectionState {
                opened: now,
                phase,
                since: now,
                is_proven: false,
                has_asked: false,
                is_answered: false,
                greeted: 0,
            }),
            places: self.clone(),
            cut: Notify::new(),
            leave: Notify::new(),
        });
        open.insert(connection.id, connection.clone());
        Some(TakenPlace(connection))
    }

    /// Ends the connection of the least worth among those that `may_go`. Returns whether there was one.
    fn make_room(
        &self,
        open: &mut BTreeMap<u64, Arc<Connection>>,
        may_go: impl Fn(&Connection, Worth) -> bool,
    ) -> bool {
        let now = Instant::now();
        let (mut of_peers, mut proven) = (BTreeMap::new(), 0);
        for connection in open.values() {
            *of_peers.entry(connection.peer).or_insert(0) += 1;
            proven += usize::from(connection.is_proven());
        }
        // So a flood of new connections closes none that API servers keep, who have less than half of the places.
        let are_few_proven = 2 * proven < self.limits.connections;
        let candidates = open.values().filter_map(|connection| {
            let (worth, since) = connection.worth(now, self.limits.cuts_calls)?;
            let rank = if worth == Worth::Proven && are_few_proven { Worth::Kept } else { worth };
            may_go(connection, rank).then_some((rank, Reverse(of_peers[&connection.peer]), since, connection.id))
        });
        let Some((.., id)) = candidates.min() else { return false };
        if let Some(connection) = open.remove(&id) {
            debug!(peer = %connection.peer, "A connection is closed to make room");
            connection.end();
        }
        true
    }

    /// Ends the connections whose clients have taken too long.
    fn end_late(&self, now: Instant) {
        lock(&self.open).retain(|_, connection| {
            let is_late = connection.is_late(now, self.limits.timing);
            if is_late {
                debug!(peer = %connection.peer, "A connection was not used for too long");
                connection.end();
            }
            !is_late
        });
    }
}

/// The place of a connection, until it ends.
struct TakenPlace(Arc<Connection>);

impl Drop for TakenPlace {
    fn drop(&mut self) {
        lock(&self.0.places.open).remove(&self.0.id);
        self.0.places.freed.notify_one();
    }
}

/// Serves `router` on `listener`, by TLS with the settings from `tls` for each handshake if there are any. Ends as
/// `ending` says. A handler finds its [`Connection`] in the extensions of the request.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<&(dyn Fn() -> TlsAcceptor + Sync)>,
    router: Router,
    limits: Limits,
    mut ending: Ending,
) {
    let (places, closing) = (Places::new(limits), watch::Sender::new(Closing::No));
    let mut connections = JoinSet::new();
    let mut look = tokio::time::interval(limits.timing.look);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let phase = if tls.is_some() { Phase::Handshake } else { Phase::Idle };
    let mut waiting = None;
    loop {
        tokio::select! {
            accepted = accept(&listener, &places), if waiting.is_none() => waiting = accepted,
            () = places.freed.notified(), if waiting.is_some() => {}
            _ = look.tick(), if !places.is_empty() => places.end_late(Instant::now()),
            _ = ending.stop.wait_for(|stop| *stop) => break,
        }
        while connections.try_join_next().is_some() {}
        let Some((stream, peer)) = waiting.take() else { continue };
        match places.admit(peer, phase) {
            Some(place) => {
                connections.spawn(connection(place, stream, tls.map(|tls| tls()), router.clone(), closing.subscribe()));
                // So that a new client is served before the next ones take its place.
                tokio::task::yield_now().await;
            }
            None => waiting = Some((stream, peer)),
        }
    }
    drop((listener, waiting));
    closing.send_replace(Closing::Soon);
    let _ = tokio::time::timeout(ending.linger, drained(&mut connections)).await;
    closing.send_replace(Closing::Now);
    if tokio::time::timeout(ending.drain, drained(&mut connections)).await.is_err() {
        warn!(calls = connections.len(), "Some calls have not ended in time");
    }
}

/// Whether the server stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closing {
    No,
    /// Every answer has `Connection: close`.
    Soon,
    /// Idle connections end.
    Now,
}

async fn drained(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

async fn accept(listener: &TcpListener, places: &Places) -> Option<(TcpStream, IpAddr)> {
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer.ip().to_canonical())),
        Err(error) => {
            // For example, no file descriptors are left. The pause avoids a flood of log lines.
            warn!(%error, "Cannot accept a connection");
            places.make_room(&mut lock(&places.open), |_, worth| worth <= Worth::Fresh);
            tokio::time::sleep(places.limits.timing.accept_pause).await;
            None
        }
    }
}

/// Serves one connection until it ends.
async fn connection(
    place: TakenPlace,
    mut stream: TcpStream,
    tls: Option<TlsAcceptor>,
    router: Router,
    closing: watch::Receiver<Closing>,
) {
    // Small answers are sent at once.
    let _ = stream.set_nodelay(true);
    let connection = &place.0;
    let (socket, outgoing) = stream.split();
    let wire = tokio::io::join(Incoming { socket, connection }, outgoing);
    let serving = async {
        let Some(tls) = tls else { return talk(wire, connection, router, closing).await };
        match tls.accept(wire).await {
            Ok(stream) => {
                connection.enter(Phase::Idle);
                talk(stream, connection, router, closing).await;
            }
            Err(error) => debug!(%error, "A handshake failed"),
        }
    };
    tokio::select! {
        () = serving => {}
        () = connection.cut.notified() => {}
    }
}

/// Answers the requests on `stream`.
async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: &Arc<Connection>,
    router: Router,
    mut closing: watch::Receiver<Closing>,
) {
    let stopping = closing.clone();
    let service = service_fn(|mut request: Request<hyper::body::Incoming>| {
        connection.enter(if request.body().is_end_stream() { Phase::Call } else { Phase::Body });
        request.extensions_mut().insert(connection.clone());
        let answering = router.clone().oneshot(request.map(Body::new));
        let stopping = &stopping;
        async move {
            let mut answer = answering.await;
            connection.enter(Phase::Idle);
            if let Ok(answer) = &mut answer
                && *stopping.borrow() != Closing::No
            {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        }
    });
    let mut serving = pin!(
        http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(stream), service)
    );
    let is_evicted = tokio::select! {
        ended = serving.as_mut() => return told(ended),
        _ = closing.wait_for(|closing| *closing == Closing::Now) => false,
        () = connection.leave.notified() => true,
    };
    if !lock(&connection.state).has_asked {
        return;
    }
    serving.as_mut().graceful_shutdown();
    match is_evicted {
        true => drop(tokio::time::timeout(LEAVING, serving).await),
        false => told(serving.await),
    }
}

fn told(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        debug!(%error, "A connection failed");
    }
}

/// What comes from a socket, of which the connection is told.
struct Incoming<'a> {
    socket: ReadHalf<'a>,
    connection: &'a Connection,
}

impl AsyncRead for Incoming<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        let bytes = buffer.filled().len() - before;
        Poll::Ready(if bytes > 0 { self.connection.received(bytes) } else { Ok(()) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::timing::Timing;
    use std::net::Ipv4Addr;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn places(connections: usize, of_a_peer: usize, cuts_calls: bool) -> Arc<Places> {
        Places::new(Limits { connections, of_a_peer, cuts_calls, timing: &Timing::short().connections })
    }

    /// A connection of no server.
    pub(crate) fn connection() -> Arc<Connection> {
        let place = places(1, 1, false).admit(PEER, Phase::Body).expect("there is room");
        place.0.clone()
    }

    fn ids(places: &Places) -> Vec<u64> {
        lock(&places.open).keys().copied().collect()
    }

    /// An old connection that has reached `phase`.
    fn at(places: &Arc<Places>, peer: IpAddr, phase: Phase, is_proven: bool) -> TakenPlace {
        let place = places.admit(peer, Phase::Handshake).expect("there is room");
        lock(&place.0.state).opened -= FRESH;
        place.0.enter(phase);
        if is_proven {
            place.0.prove();
        }
        place
    }

    #[test]
    fn the_oldest_that_is_not_proven_goes_first_whatever_it_does_and_a_complete_request_never() {
        let places = places(5, 5, false);
        let _all = [
            at(&places, PEER, Phase::Idle, true),
            at(&places, PEER, Phase::Call, false),
            at(&places, PEER, Phase::Body, false),
            at(&places, PEER, Phase::Head, false),
            at(&places, PEER, Phase::Body, true),
        ];
        let mut new = Vec::new();
        for open in [[0, 1, 3, 4, 5], [0, 1, 4, 5, 6], [1, 4, 5, 6, 7]] {
            new.push(at(&places, PEER, Phase::Call, true));
            assert_eq!(ids(&places), open);
        }
        assert!(places.admit(PEER, Phase::Handshake).is_none(), "requests run on all of them");
        new[0].0.enter(Phase::Idle);
        assert!(places.admit(OTHER, Phase::Handshake).is_some());
        assert_eq!(ids(&places), [1, 4, 6, 7], "the last has ended");
    }

    #[test]
    fn a_peer_above_its_limit_makes_room_for_itself() {
        let places = places(4, 2, false);
        let _others = [at(&places, OTHER, Phase::Idle, false), at(&places, PEER, Phase::Idle, true)];
        let _more = [at(&places, PEER, Phase::Idle, false), at(&places, PEER, Phase::Call, false)];
        assert_eq!(ids(&places), [0, 1, 3], "its own goes, though that of the other is older");
        let _third = at(&places, PEER, Phase::Call, false);
        assert_eq!(ids(&places), [0, 1, 3, 4], "what is proven is kept");
        let _fourth = at(&places, PEER, Phase::Call, false);
        assert_eq!(ids(&places), [1, 3, 4, 5], "the limit of a peer is no refusal");
    }

    #[test]
    fn a_burst_of_new_clients_drives_out_strangers_and_itself() {
        let places = places(4, 2, false);
        let _idle = [at(&places, PEER, Phase::Idle, true), at(&places, OTHER, Phase::Idle, false)];
        let new = || places.admit(PEER, Phase::Handshake).expect("there is room");
        let _first = [new(), new()];
        assert_eq!(ids(&places), [0, 1, 2, 3]);
        let _second = [new(), new()];
        assert_eq!(
            ids(&places),
            [0, 3, 4, 5],
            "the idle stranger goes, then the oldest new one; what is proven is kept"
        );
        let _third = new();
        assert_eq!(ids(&places), [0, 4, 5, 6]);
    }

    #[test]
    fn where_calls_may_be_cut_the_longest_goes_last() {
        let places = places(2, 2, true);
        let _all = [at(&places, PEER, Phase::Call, false), at(&places, PEER, Phase::Idle, true)];
        let _new = [at(&places, PEER, Phase::Call, false), at(&places, PEER, Phase::Call, false)];
        assert_eq!(ids(&places), [2, 3]);
    }

    #[test]
    fn each_phase_has_its_time() {
        let (places, timing) = (places(9, 9, false), &Timing::short().connections);
        for (phase, is_proven, has_asked, limit) in [
            (Phase::Handshake, false, false, Some(timing.opening)),
            (Phase::Idle, false, false, Some(timing.opening)),
            (Phase::Idle, false, true, Some(timing.idle)),
            (Phase::Idle, true, true, Some(timing.proven_idle)),
            (Phase::Head, true, true, Some(timing.opening)),
            (Phase::Body, false, true, None),
            (Phase::Call, false, true, None),
        ] {
            let place = at(&places, PEER, phase, is_proven);
            lock(&place.0.state).has_asked = has_asked;
            let since = lock(&place.0.state).since;
            let limit = limit.unwrap_or(Duration::from_secs(1 << 20));
            assert!(!place.0.is_late(since + limit - Duration::from_millis(1), timing), "{phase:?}");
            assert_eq!(
                place.0.is_late(since + limit, timing),
                !matches!(phase, Phase::Body | Phase::Call),
                "{phase:?}"
            );
        }
    }

    #[test]
    fn a_handshake_is_short() {
        let places = places(1, 1, false);
        let place = places.admit(PEER, Phase::Handshake).expect("there is room");
        assert!(place.0.received(HANDSHAKE).is_ok());
        assert!(place.0.received(1).is_err());
    }
}
