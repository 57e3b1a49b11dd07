//! The check of the webhook's certificate: whether an API server accepts it, and whether it is renewed in time.

use super::CheckSubject;
use super::report::CheckItem;
use crate::api::code::Code;
use crate::capabilities::registration::{MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS};
use crate::cli::installed::{CERTIFICATE, OPERATOR, Piece, setting};
use crate::cluster::client::CallError;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509Certificate};

const CHECK: &str = "certificate";
/// The fraction of its life (one in five) by which a certificate must be renewed. cert-manager renews at a third.
const RENEWED: i64 = 5;

/// The files in the Secret.
struct Files {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Checks the certificate. The result is empty if there is neither a webhook nor a certificate.
pub(super) async fn check(subject: &CheckSubject<'_>, registered: &[Piece]) -> Vec<CheckItem> {
    let webhooks: Vec<_> = registered.iter().filter(|piece| piece.is_generated() && is_webhook(piece)).collect();
    // The check of the operator reports an unreadable Deployment.
    let deployment = subject.installed.deployment().await.ok().flatten();
    if deployment.is_some_and(|deployment| setting(&deployment.container(), "--webhook-cert-dir").is_some()) {
        let message = "from files that somebody else keeps (`--webhook-cert-dir`), which cannot be seen from here: what is wrong with \
                       them stands in `Degraded` of the policies";
        return webhooks.first().map(|_| CheckItem::info(CHECK, message)).into_iter().collect();
    }
    let secret = match subject.installed.own("Secret", "secrets", CERTIFICATE).await {
        Ok(secret) => secret,
        Err(_) if webhooks.is_empty() => return Vec::new(),
        // It also has the key of the authority, so few may read it.
        Err(error) if error.downcast_ref::<CallError>().is_some_and(CallError::is_forbidden) => {
            let message = format!(
                "you may not read the Secret `{CERTIFICATE}`, which has the key of the authority: what is wrong with the certificate \
                 stands in `Degraded` of the policies"
            );
            return vec![CheckItem::info(CHECK, message)];
        }
        Err(error) => return vec![CheckItem::unknown(CHECK, &error)],
    };
    let namespace = subject.installed.namespace;
    let Some(secret) = secret else {
        let missing = format!("webhooks are registered, and there is no Secret `{CERTIFICATE}` in `{namespace}`");
        let fix = "Start the operator, which makes a new one.";
        return webhooks
            .first()
            .map(|_| CheckItem::warning(CHECK, Code::CertificateInvalid, missing).with_fix(fix))
            .into_iter()
            .collect();
    };
    let files = match Files::read(&secret.object.value()) {
        Ok(files) => files,
        Err(message) => return vec![CheckItem::problem(CHECK, Code::CertificateInvalid, message)],
    };
    let mut items = vec![judge(&files, &format!("{OPERATOR}.{namespace}.svc"), Timestamp::now())];
    items.extend(webhooks.iter().filter_map(|piece| trust(piece, &files.ca)));
    items
}

fn is_webhook(piece: &Piece) -> bool {
    [MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS].contains(&piece.resource.plural.as_str())
}

impl Files {
    fn read(secret: &Value) -> Result<Self, String> {
        let read = |key: &str| {
            let value = &secret["data"][key];
            let bytes = serde_json::from_value::<ByteString>(value.clone()).map(|bytes| bytes.0).unwrap_or_default();
            if bytes.is_empty() { Err(format!("the Secret `{CERTIFICATE}` has no `{key}`")) } else { Ok(bytes) }
        };
        Ok(Self { ca: read("ca.crt")?, certificate: read("tls.crt")?, key: read("tls.key")? })
    }
}

/// The verdict of an API server that calls `host` at `now`.
fn judge(files: &Files, host: &str, now: Timestamp) -> CheckItem {
    match verify(files, host, now) {
        Err(message) => CheckItem::problem(CHECK, Code::CertificateInvalid, message),
        Ok(Life { left, whole, ends }) if left * RENEWED < whole => CheckItem::warning(
            CHECK,
            Code::CertificateExpiring,
            format!("for `{host}`, and expires at {ends}: it should have been renewed"),
        ),
        Ok(Life { ends, .. }) => CheckItem::ok(CHECK, format!("for `{host}`, until {ends}")),
    }
}

/// The lifetime of a certificate, in seconds.
struct Life {
    left: i64,
    whole: i64,
    ends: Timestamp,
}

fn verify(files: &Files, host: &str, now: Timestamp) -> Result<Life, String> {
    let chain = certificates(&files.certificate, "tls.crt")?;
    let (leaf, intermediates) = chain.split_first().ok_or("`tls.crt` has no certificate")?;
    let life = life(leaf, now)?;
    let provider = Arc::new(ring::default_provider());
    check_key(files, &chain, &provider)?;
    let mut roots = RootCertStore::empty();
    for root in certificates(&files.ca, "ca.crt")? {
        roots.add(root).map_err(|error| format!("`ca.crt` cannot be used: {error}"))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("`ca.crt` cannot be used: {error}"))?;
    let name = ServerName::try_from(host).map_err(|error| format!("`{host}`: {error}"))?;
    let moment = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().unsigned_abs()));
    let verdict = verifier.verify_server_cert(leaf, intermediates, &name, &[], moment);
    verdict.map_err(|error| refused(&error, host, &life))?;
    Ok(life)
}

fn refused(error: &rustls::Error, host: &str, life: &Life) -> String {
    use CertificateError as E;
    match error {
        rustls::Error::InvalidCertificate(E::Expired | E::ExpiredContext { .. }) => {
            format!("`tls.crt` has expired at {}", life.ends)
        }
        rustls::Error::InvalidCertificate(E::NotValidForName | E::NotValidForNameContext { .. }) => {
            format!("`tls.crt` is not for `{host}`, by which API servers call")
        }
        rustls::Error::InvalidCertificate(E::UnknownIssuer | E::BadSignature) => {
            "`tls.crt` was not signed by `ca.crt`".to_owned()
        }
        other => format!("`tls.crt` cannot be used: {other}"),
    }
}

fn certificates(pem: &[u8], file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| format!("`{file}` cannot be read: {error}"))?;
    if read.is_empty() { Err(format!("`{file}` has no certificate")) } else { Ok(read) }
}

fn check_key(files: &Files, chain: &[CertificateDer<'static>], provider: &CryptoProvider) -> Result<(), String> {
    let key =
        PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| format!("`tls.key` cannot be read: {error}"))?;
    match CertifiedKey::from_der(chain.to_vec(), key, provider) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => Err("`tls.key` is not the key of `tls.crt`".to_owned()),
        Err(error) => Err(format!("`tls.key` cannot be used: {error}")),
    }
}

fn life(leaf: &CertificateDer<'_>, now: Timestamp) -> Result<Life, String> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| format!("`tls.crt` cannot be read: {error}"))?;
    let (begins, ends) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    Ok(Life {
        left: ends - now.as_second(),
        whole: ends - begins,
        ends: Timestamp::from_second(ends).map_err(|error| format!("`tls.crt` cannot be read: {error}"))?,
    })
}

/// The problem if API servers trust another authority than the signing one. During a renewal they trust both.
fn trust(webhook: &Piece, ca: &[u8]) -> Option<CheckItem> {
    let signs = certificates(ca, "ca.crt").ok()?;
    let body = webhook.object.value();
    let is_trusted = body["webhooks"].as_array().into_iter().flatten().all(|entry| {
        let bundle = entry["clientConfig"]["caBundle"].clone();
        let bundle = serde_json::from_value::<ByteString>(bundle).map(|bytes| bytes.0).unwrap_or_default();
        certificates(&bundle, "caBundle").is_ok_and(|trusted| signs.iter().all(|ca| trusted.contains(ca)))
    });
    if is_trusted {
        return None;
    }
    let message = format!("{} trusts another authority than `ca.crt` of the Secret `{CERTIFICATE}`", webhook.title());
    let fix = "Start the operator, which repairs it; or delete the registration: the operator makes a new one.";
    Some(CheckItem::problem(CHECK, Code::CertificateInvalid, message).with_fix(fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::report::CheckLevel;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    const HOST: &str = "scpol.ours.svc";

    /// An authority, and its certificate for `host`, valid for all of 2030.
    fn made(host: &str) -> Files {
        let ca_key = KeyPair::generate().expect("a key");
        let mut ca = CertificateParams::new(Vec::new()).expect("parameters");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).expect("a certificate").pem();
        let key = KeyPair::generate().expect("a key");
        let mut leaf = CertificateParams::new([host.to_owned()]).expect("parameters");
        (leaf.not_before, leaf.not_after) = (rcgen::date_time_ymd(2030, 1, 1), rcgen::date_time_ymd(2031, 1, 1));
        let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).expect("a certificate");
        Files { ca: ca_pem.into(), certificate: leaf.pem().into(), key: key.serialize_pem().into() }
    }

    fn told(files: &Files, now: &str) -> (CheckLevel, String) {
        let item = judge(files, HOST, now.parse().expect("a time"));
        let (level, _, message) = item.told();
        (level, message.to_owned())
    }

    #[test]
    fn a_certificate_is_judged_as_an_api_server_does() {
        let (early, late) = ("2030-02-01T00:00:00Z", "2030-12-01T00:00:00Z");
        let good = made(HOST);
        assert_eq!(told(&good, early), (CheckLevel::Ok, "for `scpol.ours.svc`, until 2031-01-01T00:00:00Z".to_owned()));
        let (level, message) = told(&good, late);
        assert!(level == CheckLevel::Warning && message.contains("should have been renewed"), "{message}");
        let other = made(HOST);
        for (files, now, expected) in [
            (made(HOST), "2031-02-01T00:00:00Z", "`tls.crt` has expired at 2031-01-01T00:00:00Z"),
            (made(HOST), "2029-02-01T00:00:00Z", "`tls.crt` cannot be used"),
            (made("scpol.other.svc"), early, "`tls.crt` is not for `scpol.ours.svc`"),
            (Files { ca: other.ca.clone(), ..made(HOST) }, early, "`tls.crt` was not signed by `ca.crt`"),
            (Files { key: other.key.clone(), ..made(HOST) }, early, "`tls.key` is not the key of `tls.crt`"),
            (Files { key: b"?".to_vec(), ..made(HOST) }, early, "`tls.key` cannot be read"),
            (Files { certificate: b"?".to_vec(), ..made(HOST) }, early, "`tls.crt` has no certificate"),
            (Files { ca: b"?".to_vec(), ..made(HOST) }, early, "`ca.crt` has no certificate"),
        ] {
            let (level, message) = told(&files, now);
            assert!(level == CheckLevel::Problem && message.starts_with(expected), "{expected}: {message}");
        }
    }
}
