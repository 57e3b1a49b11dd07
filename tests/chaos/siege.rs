//! F27: clients without credentials hold and flood both ports at once.

use crate::chaos::crowd::most_held;
use crate::chaos::dice::Dice;
use crate::chaos::scene::Scene;
use crate::hostile::serving::{OPENING, Target, half_request, hold, scrape, trickle};
use crate::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};

/// The duration, in seconds. `SCPOL_SIEGE_SECONDS` sets another one.
const SECONDS: u64 = 300;
/// The pause between two rounds of creates.
const ROUND: Duration = Duration::from_secs(10);
/// Idle connections, uploads of a byte a second, and half requests to the other port.
const HELD: (usize, usize, usize) = (1024, 8, 1000);
/// Connections that post reviews, and the reviews of each in a second: 1 000 in all.
const POSTING: (usize, u32) = (50, 20);
/// The scrapes in a second.
const SCRAPES: u32 = 200;
/// The memory limit of the shipped Deployment, in MiB.
const MEMORY: u64 = 128;

/// Every pod gets its sidecar within a second, and the operator keeps within its memory limit.
pub(crate) async fn siege(scene: &Scene) -> Result<()> {
    let seconds = std::env::var("SCPOL_SIEGE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let target = Arc::new(Target::new(Version::NEWEST).await?);
    let (posted, scraped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // A thread of their own: what is measured is the operator, and not how soon the attackers let the test go on.
    let attackers = Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let (attacked, seed, counts) = (target.clone(), scene.seed, (posted.clone(), scraped.clone()));
    std::thread::spawn(move || {
        attackers.block_on(async {
            attack(&attacked, seed, &counts.0, &counts.1);
            let _ = stopped.await;
        });
    });
    let start = Instant::now();
    rounds(&target, Duration::from_secs(seconds.unwrap_or(SECONDS))).await?;
    drop(stop);
    let (posted, scraped) = (posted.load(Ordering::Relaxed) as f64, scraped.load(Ordering::Relaxed) as f64);
    let took = start.elapsed().as_secs_f64();
    let most = most_held(target.operator.pid())?;
    eprintln!(
        "{:.0} reviews and {:.0} scrapes a second were answered; at most {most} MiB",
        posted / took,
        scraped / took
    );
    ensure!(most < MEMORY, "the operator has held {most} MiB");
    ensure!(posted / took > 200.0, "only {posted} reviews were answered in {took} s: this proves nothing");
    ensure!(target.operator.metric("scpol_panics_total").await? == 0.0, "it has panicked");
    Ok(())
}

/// Creates pods for so long, each of which must get its sidecar in time.
async fn rounds(target: &Target, duration: Duration) -> Result<()> {
    let start = Instant::now();
    for round in 0.. {
        tokio::time::sleep(ROUND).await;
        target.pods_get_their_sidecar(&format!("round-{round}")).await?;
        if start.elapsed() >= duration {
            break;
        }
    }
    Ok(())
}

/// Begins all attacks, which end with the runtime.
fn attack(target: &Arc<Target>, seed: u64, posted: &Arc<AtomicUsize>, scraped: &Arc<AtomicUsize>) {
    let opening = Arc::new(Semaphore::new(OPENING));
    for _ in 0..HELD.0 {
        let (target, opening) = (target.clone(), opening.clone());
        tokio::spawn(async move { again(|| hold(&target, Arc::default(), opening.clone())).await });
    }
    for _ in 0..HELD.1 {
        let target = target.clone();
        tokio::spawn(async move { again(async || trickle(target.connect().await?).await.map(drop)).await });
    }
    for _ in 0..HELD.2 {
        let target = target.clone();
        tokio::spawn(async move { again(|| half_request(&target)).await });
    }
    for number in 0..POSTING.0 {
        let (target, posted, dice) = (target.clone(), posted.clone(), Dice(seed + number as u64));
        tokio::spawn(async move { again(|| post(&target, dice, &posted)).await });
    }
    let (target, scraped) = (target.clone(), scraped.clone());
    tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_secs(1) / SCRAPES);
        loop {
            every.tick().await;
            let (target, scraped) = (target.clone(), scraped.clone());
            tokio::spawn(async move {
                if scrape(&target).await.is_ok() {
                    scraped.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

/// Attacks again and again.
async fn again<F: Future<Output = Result<()>>>(attack: impl Fn() -> F) {
    loop {
        // The server may close the connection at any time.
        let _ = attack().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Posts reviews of all kinds on one connection.
async fn post(target: &Target, dice: Dice, posted: &AtomicUsize) -> Result<()> {
    let mut stream = target.connect().await?;
    let mut every = tokio::time::interval(Duration::from_secs(1) / POSTING.1);
    for number in 0.. {
        every.tick().await;
        let body = body(dice.below(100, format!("{number}")));
        let head =
            format!("POST /mutate/0123456789abcdef HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        let mut answer = [0; 16 << 10];
        ensure!(stream.read(&mut answer).await? > 0, "no answer");
        posted.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// A body by `chance`, below 100.
fn body(chance: u64) -> Vec<u8> {
    let review = |namespace: &str, object| {
        let request = json!({
            "uid": "u1", "operation": "CREATE", "namespace": namespace, "object": object,
            "resource": { "group": "", "version": "v1", "resource": "pods" },
        });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
        review.to_string().into_bytes()
    };
    let pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "app", "image": "a" }] } });
    match chance {
        0 => review("default", json!({ "metadata": {}, "many": vec![0; 1 << 18] })),
        1 => vec![b'['; 1 << 18],
        2..30 => b"garbage".to_vec(),
        30..60 => review("kube-system/pods", pod),
        _ => review("default", pod),
    }
}
