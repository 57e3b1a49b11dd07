//! The certificate of the webhook, and the bundle by which API servers trust it. Both are our own, in a Secret that all
//! replicas share, or come from files.
//!
//! # Guarantees
//! After any failure, the last good certificate stays in use. Each handshake uses the current certificate, and no
//! change breaks one. A leaf of a new authority is used only after the controller has reported, through
//! [`Certificates::is_published`], that every registration has the new bundle. [`authority`] describes the steps.

use super::authority::{self, Action, Ages, Lifetimes, StoredKeys};
use crate::api::code::Code;
use crate::api::{MANAGED_BY, MANAGER};
use crate::cluster::api::Api;
use crate::cluster::client::{CallError, call, chain};
use crate::engine::Unavailable;
use crate::metrics::Metrics;
use crate::survival::lock;
use crate::timing;
use arc_swap::ArcSwapOption;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::PostParams;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{info, warn};

/// The Secret, in the operator's namespace.
pub const SECRET: &str = "scpol-webhook";
/// The number of immediate retries of a write after another replica was faster.
const TRIES: usize = 5;
/// The remaining lifetime below which certificates from files are reported. Our own are renewed 30 days before.
const SOON: SignedDuration = SignedDuration::from_hours(24 * 7);

/// The keys of the Secret, and the names of the files.
const KEYS: [&str; 4] = ["ca.crt", "ca.key", "tls.crt", "tls.key"];

/// The reason why there is no certificate, or no new one.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("{} cannot be read", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The content is unusable.
    #[error("{0}")]
    Unusable(String),
    /// The Secret cannot be read or written.
    #[error("Secret `{SECRET}`")]
    Secret(#[source] CallError),
    /// No certificate can be made.
    #[error("cannot make a certificate")]
    Generation(#[from] rcgen::Error),
}

impl CertificateError {
    /// The reason for conditions.
    pub fn reason(&self) -> Unavailable {
        let code = match self {
            CertificateError::Secret(error) if error.is_forbidden() => Code::MissingRight,
            CertificateError::Secret(_) => Code::ServerAway,
            _ => Code::CertificateInvalid,
        };
        Unavailable::new(code, chain(self))
    }
}

/// The current certificate.
struct Shown {
    key: Arc<CertifiedKey>,
    bundle: Option<Vec<u8>>,
    expires: Timestamp,
    /// The full stored data, if the certificate is our own.
    stored: Option<StoredKeys>,
}

enum Source {
    Secret(Box<Api<Secret>>),
    Files(PathBuf),
}

/// The certificates of the webhook; see the module.
pub struct Certificates {
    source: Source,
    /// The names or addresses of the server.
    names: Vec<String>,
    poll: Duration,
    lifetimes: Lifetimes,
    shown: ArcSwapOption<Shown>,
    /// The bundle that all registrations have, and the time since which they have it.
    published: Mutex<Option<(Vec<u8>, Instant)>>,
    /// The stored leaf, and the time since which we know it.
    leaf: Mutex<Option<(String, Instant)>>,
    trouble: Mutex<Option<Unavailable>>,
    changed: watch::Sender<()>,
    metrics: Arc<Metrics>,
}

/// The names of the Service `name` in `namespace`.
pub fn service_names(name: &str, namespace: &str) -> Vec<String> {
    vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")]
}

impl Certificates {
    /// Our own certificates, for a server with the names `names`, in the Secret [`SECRET`] of `namespace`.
    pub fn of_secret(
        client: Client,
        namespace: &str,
        names: Vec<String>,
        metrics: Arc<Metrics>,
        timing: &timing::Webhook,
    ) -> Self {
        Self::new(Source::Secret(Box::new(Api::namespaced(client, namespace))), names, metrics, timing)
    }

    /// Certificates from the files `tls.crt`, `tls.key` and, for the bundle, `ca.crt` in `folder`, which others
    /// maintain. They must cover each of `names`. Without `ca.crt`, API servers must trust them by the authorities of
    /// their own system.
    pub fn of_files(folder: &Path, names: Vec<String>, metrics: Arc<Metrics>, timing: &timing::Webhook) -> Self {
        Self::new(Source::Files(folder.to_owned()), names, metrics, timing)
    }

    fn new(source: Source, names: Vec<String>, metrics: Arc<Metrics>, timing: &timing::Webhook) -> Self {
        Self {
            source,
            names,
            poll: timing.certificate_poll,
            lifetimes: Lifetimes { settle: timing.authority_settling, ..Lifetimes::default() },
            shown: ArcSwapOption::empty(),
            published: Mutex::default(),
            leaf: Mutex::default(),
            trouble: Mutex::default(),
            changed: watch::Sender::new(()),
            metrics,
        }
    }

    /// The same with another poll interval and other lifetimes, for tests.
    #[must_use]
    pub fn with(self, poll: Duration, lifetimes: Lifetimes) -> Self {
        Self { poll, lifetimes, ..self }
    }

    /// The `caBundle` for registrations, as PEM. None if registrations must have none, and before the first
    /// [`Self::refresh`].
    pub fn ca_bundle(&self) -> Option<Vec<u8>> {
        self.shown.load().as_ref()?.bundle.clone()
    }

    /// The expiry of the current certificate; none if there is none yet.
    pub fn expires(&self) -> Option<Timestamp> {
        Some(self.shown.load().as_ref()?.expires)
    }

    /// Signals each change of [`Self::ca_bundle`], which the registrations must follow.
    pub fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Records that every registration has `bundle`, since now or earlier. The writer of registrations calls this after
    /// each look at all of them. A new authority signs only after that.
    pub fn is_published(&self, bundle: &[u8]) {
        let mut published = lock(&self.published);
        if published.as_ref().is_none_or(|(known, _)| known != bundle) {
            *published = Some((bundle.to_vec(), Instant::now()));
        }
    }

    /// The current problem, if there is one: the last refresh failed, or the certificate expires soon.
    pub fn trouble(&self, now: Timestamp) -> Option<Unavailable> {
        let trouble = lock(&self.trouble).clone();
        let Some(expires) = self.expires() else { return trouble };
        if expires <= now {
            let message = format!("the certificate of the webhook has expired: {expires}");
            return Some(Unavailable::new(Code::CertificateInvalid, message));
        }
        if trouble.is_none() && expires.duration_since(now) < SOON {
            let message = format!("the certificate of the webhook expires at {expires}");
            return Some(Unavailable::new(Code::CertificateExpiring, message));
        }
        trouble
    }

    /// Refreshes the certificate at each interval, for ever.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(self.poll).await;
            // The error is logged, and `trouble` reports it.
            let _ = self.refresh().await;
        }
    }

    /// Reads the stored certificate, renews it if due, and uses the result from the next handshake on.
    ///
    /// # Errors
    /// The reason why there is no new certificate. The current one stays in use.
    pub async fn refresh(&self) -> Result<(), CertificateError> {
        let now = Timestamp::now();
        let found = match &self.source {
            Source::Secret(api) => self.keep(api, now).await,
            Source::Files(folder) => self.read(folder, now),
        };
        let reason = found.as_ref().err().map(CertificateError::reason);
        lock(&self.trouble).clone_from(&reason);
        if let Some(Unavailable { code, message }) = reason {
            match self.shown.load().is_some() {
                true => warn!(%code, detail = message, "No new certificate; the last good one is shown"),
                false => warn!(%code, detail = message, "No certificate; the webhook shows none"),
            }
        }
        found.map(|shown| self.show(shown))
    }

    fn show(&self, shown: Shown) {
        let before = self.shown.load_full();
        let is_same = before.as_ref().is_some_and(|before| before.key.cert == shown.key.cert);
        let is_bundle = before.as_ref().is_some_and(|before| before.bundle == shown.bundle);
        if !is_same {
            info!(expires = %shown.expires, "The webhook shows another certificate");
        }
        self.metrics.process.webhook_cert_expiry.set(shown.expires.as_second());
        self.shown.store(Some(Arc::new(shown)));
        if !is_bundle {
            self.changed.send_replace(());
        }
    }

    fn read(&self, folder: &Path, now: Timestamp) -> Result<Shown, CertificateError> {
        let file = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(|error| CertificateError::File(path, error))
        };
        let [bundle, _, chain, key] = KEYS;
        let unusable = |what: String| CertificateError::Unusable(format!("{}: {what}", folder.display()));
        let (chain, key) = (file(chain)?, file(key)?);
        let bundle = match file(bundle) {
            Ok(bundle) => Some(bundle),
            Err(CertificateError::File(_, error)) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if bundle.as_deref().is_some_and(|bundle| authority::certificates(bundle).is_none_or(|all| all.is_empty())) {
            return Err(unusable("`ca.crt` is no list of certificates in PEM".into()));
        }
        let leaf = authority::certificates(&chain).and_then(|all| all.into_iter().next());
        let Some(leaf) = leaf else { return Err(unusable("`tls.crt` is no certificate in PEM".into())) };
        let Some(key) = authority::key(&chain, &key) else {
            return Err(unusable("`tls.key` is not the key of `tls.crt`".into()));
        };
        if let Some(name) = leaf.missing(&self.names) {
            return Err(unusable(format!("`tls.crt` is not for `{name}`, by which API servers call the webhook")));
        }
        if !leaf.is_valid(now) {
            return Err(unusable(format!("`tls.crt` is not valid now; it expires at {}", leaf.until)));
        }
        Ok(Shown { key: Arc::new(key), bundle: bundle.map(String::into_bytes), expires: leaf.until, stored: None })
    }

    async fn keep(&self, api: &Api<Secret>, now: Timestamp) -> Result<Shown, CertificateError> {
        for _ in 0..TRIES {
            let secret = call(api.get_opt(SECRET)).await.map_err(CertificateError::Secret)?;
            let stored = secret.as_ref().map(stored);
            let (action, base) = self.due(stored.as_ref(), now);
            if action == Action::Keep {
                return shown(base.unwrap_or_default());
            }
            let fresh = authority::carry_out(action, base.as_ref(), &self.names, now, &self.lifetimes)?;
            match call(write(api, secret, &fresh)).await {
                Ok(_) => {
                    info!(%action, "Renewed the certificates of the webhook");
                    return shown(fresh);
                }
                // Another replica was faster, so its result counts.
                Err(error) if error.means().is_outdated() => {}
                Err(error) => return Err(CertificateError::Secret(error)),
            }
        }
        Err(CertificateError::Unusable(format!("Secret `{SECRET}` changes all the time")))
    }

    /// The next step, and the data for it. If the stored data is unusable or missing, the current certificate is used
    /// as the basis: API servers trust it, so a new authority is added beside it.
    fn due(&self, stored: Option<&StoredKeys>, now: Timestamp) -> (Action, Option<StoredKeys>) {
        let next = |stored: Option<&StoredKeys>| {
            let seen = stored.map(|stored| self.seen(stored)).unwrap_or_default();
            authority::next(stored, &self.names, now, seen, &self.lifetimes)
        };
        let action = next(stored);
        let last = self.shown.load().as_ref().and_then(|shown| shown.stored.clone());
        match last {
            Some(last) if action == Action::Replace && next(Some(&last)) != Action::Replace => {
                (Action::AddAuthority, Some(last))
            }
            _ => (action, stored.cloned()),
        }
    }

    /// The observed ages of the stored data.
    fn seen(&self, stored: &StoredKeys) -> Ages {
        let published = lock(&self.published);
        let published = published.as_ref().filter(|(bundle, _)| *bundle == stored.bundle.as_bytes());
        let mut leaf = lock(&self.leaf);
        let known = leaf.take_if(|(known, _)| *known == stored.leaf);
        let (_, since) = leaf.insert(known.unwrap_or_else(|| (stored.leaf.clone(), Instant::now())));
        Ages { published: published.map(|(_, since)| since.elapsed()), leaf: since.elapsed() }
    }
}

fn shown(stored: StoredKeys) -> Result<Shown, CertificateError> {
    let leaf = authority::certificates(&stored.leaf).and_then(|all| all.into_iter().next());
    let (Some(leaf), Some(key)) = (leaf, authority::key(&stored.leaf, &stored.leaf_key)) else {
        return Err(CertificateError::Unusable(format!("Secret `{SECRET}` has no certificate")));
    };
    let bundle = stored.bundle.clone().into_bytes();
    Ok(Shown { key: Arc::new(key), bundle: Some(bundle), expires: leaf.until, stored: Some(stored) })
}

/// The content of `secret`; empty for missing values and for values that are no text.
fn stored(secret: &Secret) -> StoredKeys {
    let [bundle, authority_key, leaf, leaf_key] = KEYS.map(|key| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok()).unwrap_or_default()
    });
    StoredKeys { bundle, authority_key, leaf, leaf_key }
}

/// Replaces exactly the version that was read, or creates the Secret.
async fn write(api: &Api<Secret>, secret: Option<Secret>, stored: &StoredKeys) -> kube::Result<Secret> {
    let values = [&stored.bundle, &stored.authority_key, &stored.leaf, &stored.leaf_key];
    let data = KEYS.iter().zip(values).map(|(key, value)| ((*key).to_owned(), ByteString(value.clone().into_bytes())));
    let data: BTreeMap<_, _> = data.collect();
    match secret {
        Some(secret) => api.replace(SECRET, &PostParams::default(), &Secret { data: Some(data), ..secret }).await,
        None => {
            let metadata = ObjectMeta {
                name: Some(SECRET.into()),
                labels: Some(BTreeMap::from([(MANAGED_BY.into(), MANAGER.into())])),
                ..ObjectMeta::default()
            };
            let secret = Secret { metadata, data: Some(data), type_: Some("Opaque".into()), ..Secret::default() };
            api.create(&PostParams::default(), &secret).await
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown.load().as_ref()?.key.clone())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("names", &self.names).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    fn names() -> Vec<String> {
        service_names("scpol", "scpol-system")
    }

    fn made(names: &[String]) -> StoredKeys {
        authority::carry_out(Action::Replace, None, names, Timestamp::now(), &Lifetimes::default()).unwrap()
    }

    fn put(folder: &Path, stored: &StoredKeys) {
        for (name, text) in [("ca.crt", &stored.bundle), ("tls.crt", &stored.leaf), ("tls.key", &stored.leaf_key)] {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    #[tokio::test]
    async fn files_are_shown_and_whatever_becomes_of_them_the_last_good_ones_are_shown_on() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::default());
        let certificates = Certificates::of_files(folder.path(), names(), metrics.clone(), &Timing::short().webhook);
        let mut changed = certificates.changed();
        assert!(certificates.refresh().await.unwrap_err().to_string().contains("tls.crt cannot be read"));
        assert_eq!(certificates.trouble(Timestamp::now()).unwrap().code, Code::CertificateInvalid);
        assert_eq!(certificates.expires(), None);

        let first = made(&names());
        put(folder.path(), &first);
        certificates.refresh().await.unwrap();
        assert_eq!(certificates.ca_bundle().unwrap(), first.bundle.as_bytes());
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        let expires = certificates.expires().unwrap();
        assert!(metrics.render().contains(&format!("cert_expiry_timestamp_seconds {}", expires.as_second())));
        assert_eq!(certificates.trouble(Timestamp::now()), None);
        assert_eq!(
            certificates.trouble(expires - SignedDuration::from_hours(1)).unwrap().code,
            Code::CertificateExpiring
        );
        assert_eq!(certificates.trouble(expires).unwrap().code, Code::CertificateInvalid);

        let other = made(&names());
        let with = |change: &dyn Fn(&mut StoredKeys)| {
            let mut stored = other.clone();
            change(&mut stored);
            stored
        };
        let cases = [
            (with(&|stored| stored.leaf_key.clone_from(&first.leaf_key)), "`tls.key` is not the key of `tls.crt`"),
            (with(&|stored| stored.leaf = "garbage".into()), "`tls.crt` is no certificate in PEM"),
            (with(&|stored| stored.leaf_key.clear()), "`tls.key` is not the key of `tls.crt`"),
            (with(&|stored| stored.bundle = "garbage".into()), "`ca.crt` is no list of certificates in PEM"),
            (made(&["scpol.other.svc".to_owned()]), "`tls.crt` is not for `scpol.scpol-system.svc`"),
        ];
        for (stored, told) in cases {
            put(folder.path(), &stored);
            let error = certificates.refresh().await.unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!(certificates.expires(), Some(expires));
            assert_eq!(certificates.ca_bundle().unwrap(), first.bundle.as_bytes());
        }
        assert!(!changed.has_changed().unwrap());
        put(folder.path(), &other);
        std::fs::remove_file(folder.path().join("ca.crt")).unwrap();
        certificates.refresh().await.unwrap();
        assert_eq!(certificates.ca_bundle(), None, "API servers trust it by what their system trusts");
        assert!(changed.has_changed().unwrap());
    }
}
