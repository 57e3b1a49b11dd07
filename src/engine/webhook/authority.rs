//! Our own certificates: an authority (CA), and the leaf that it signs for the server. Pure: the clock and the key
//! store are elsewhere.
//!
//! # How to replace a certificate without a failed call
//! An API server verifies us by the `caBundle` of a registration. A new leaf of the same authority is usable at once. A
//! new authority takes three steps:
//! 1. It is added at the front of the bundle, and the server still uses the old leaf.
//! 2. Once all registrations have had the bundle for [`Lifetimes::settle`], it signs a new leaf.
//! 3. Once the new leaf has existed for the same time, so that every replica uses it, the old authority leaves the
//!    bundle.
//!
//! If the old leaf is unusable, the first two steps happen at once.

use crate::timing::Timing;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData,
};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use std::fmt;
use std::time::Duration;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The lifetimes of certificates.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// The lifetime of an authority.
    pub authority: SignedDuration,
    /// The lifetime of a leaf. The leaf is renewed after two thirds.
    pub leaf: SignedDuration,
    /// How far a certificate's validity begins before its creation, because clocks differ.
    pub backdated: SignedDuration,
    /// The time for a change to reach every API server and every replica, by a monotonic clock.
    pub settle: Duration,
}

impl Default for Lifetimes {
    /// An authority lives 10 years, and a leaf 90 days, as from public authorities. Certificates are backdated by two
    /// days. So a clock that is set back by a day invalidates nothing, and a clock that was a day ahead has made no
    /// rejected certificate. `settle` comes from [`Timing::documented`].
    fn default() -> Self {
        Self {
            authority: SignedDuration::from_hours(24 * 3650),
            leaf: SignedDuration::from_hours(24 * 90),
            backdated: SignedDuration::from_hours(48),
            settle: Timing::documented().webhook.authority_settling,
        }
    }
}

/// The data that all replicas share, as PEM.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StoredKeys {
    /// The trusted authorities for API servers, newest first.
    pub bundle: String,
    /// The key of the newest authority.
    pub authority_key: String,
    pub leaf: String,
    pub leaf_key: String,
}

impl fmt::Debug for StoredKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys must not appear in logs.
        f.debug_struct("StoredKeys").field("bundle", &self.bundle).field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

/// The next step for the stored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// No change is due.
    Keep,
    /// The newest authority signs a new leaf.
    RenewLeaf,
    /// A new authority joins the bundle; the leaf stays.
    AddAuthority,
    /// All authorities except the newest leave the bundle.
    DropOld,
    /// Everything is created again, because nothing stored is usable.
    Replace,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::Keep => "nothing",
            Action::RenewLeaf => "a new certificate of the same authority",
            Action::AddAuthority => "a new authority beside the old one",
            Action::DropOld => "without the old authorities",
            Action::Replace => "a new authority and a new certificate",
        })
    }
}

/// The ages of the stored data by our own monotonic clock, so that a jump of the wall clock does not hurry a change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ages {
    /// How long every registration has had the bundle; none if unknown.
    pub published: Option<Duration>,
    /// How long the leaf has been stored.
    pub leaf: Duration,
}

/// The next step for `stored`, for a server with the names `names`. `now` is the time by the wall clock, which decides
/// the validity of certificates.
pub fn next(
    stored: Option<&StoredKeys>,
    names: &[String],
    now: Timestamp,
    seen: Ages,
    lifetimes: &Lifetimes,
) -> Action {
    let Some(stored) = stored else { return Action::Replace };
    let authorities = certificates(&stored.bundle).unwrap_or_default();
    let Some(newest) = authorities.first() else { return Action::Replace };
    let is_good = |leaf: &Leaf| leaf.certificate.is_valid(now) && authorities[leaf.authority].is_valid(now);
    let leaf = Leaf::of(stored, &authorities).filter(is_good);
    let can_sign = newest.fits(&stored.authority_key)
        && newest.is_valid(now)
        && newest.until.duration_since(now) >= lifetimes.leaf;
    match leaf {
        None if can_sign => Action::RenewLeaf,
        None => Action::Replace,
        Some(_) if !can_sign => Action::AddAuthority,
        Some(leaf) if leaf.authority > 0 => match seen.published {
            Some(published) if published >= lifetimes.settle => Action::RenewLeaf,
            _ => Action::Keep,
        },
        Some(leaf) if leaf.certificate.is_due(now) || !leaf.certificate.is_for(names) => Action::RenewLeaf,
        Some(_) if authorities.len() > 1 && seen.leaf >= lifetimes.settle => Action::DropOld,
        Some(_) => Action::Keep,
    }
}

/// The data to store after `action` on `stored`.
///
/// # Errors
/// If a key or certificate cannot be created, or a name is invalid.
pub fn carry_out(
    action: Action,
    stored: Option<&StoredKeys>,
    names: &[String],
    now: Timestamp,
    lifetimes: &Lifetimes,
) -> Result<StoredKeys, rcgen::Error> {
    let stored = stored.cloned().unwrap_or_default();
    let first = || certificates(&stored.bundle).unwrap_or_default().first().map(Certificate::pem).unwrap_or_default();
    match action {
        Action::Keep => Ok(stored),
        Action::DropOld => Ok(StoredKeys { bundle: first(), ..stored }),
        Action::RenewLeaf => {
            let (leaf, leaf_key) = sign(&first(), &stored.authority_key, names, now, lifetimes)?;
            Ok(StoredKeys { leaf, leaf_key, ..stored })
        }
        Action::AddAuthority => {
            let (authority, authority_key) = found(now, lifetimes)?;
            // Of the other authorities, only the one of the current leaf is kept.
            let authorities = certificates(&stored.bundle).unwrap_or_default();
            let shown = Leaf::of(&stored, &authorities).map(|leaf| authorities[leaf.authority].pem());
            Ok(StoredKeys { bundle: authority + &shown.unwrap_or_default(), authority_key, ..stored })
        }
        Action::Replace => {
            let (bundle, authority_key) = found(now, lifetimes)?;
            let (leaf, leaf_key) = sign(&bundle, &authority_key, names, now, lifetimes)?;
            Ok(StoredKeys { bundle, authority_key, leaf, leaf_key })
        }
    }
}

/// A new authority: certificate and key.
fn found(now: Timestamp, lifetimes: &Lifetimes) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(Vec::new())?;
    // The time makes the name unique, because equal names are hard to tell apart.
    params.distinguished_name.push(DnType::CommonName, format!("scpol webhook CA {}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    (params.not_before, params.not_after) = (moment(now - lifetimes.backdated), moment(now + lifetimes.authority));
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// A new leaf for `names`, which expires no later than its authority: certificate and key.
fn sign(
    authority: &str,
    authority_key: &str,
    names: &[String],
    now: Timestamp,
    lifetimes: &Lifetimes,
) -> Result<(String, String), rcgen::Error> {
    let end = certificates(authority).unwrap_or_default().first().map_or(Timestamp::MAX, |authority| authority.until);
    let issuer = Issuer::from_ca_cert_pem(authority, KeyPair::from_pem(authority_key)?)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "scpol webhook");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = (moment(now - lifetimes.backdated), moment(end.min(now + lifetimes.leaf)));
    Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}

fn moment(at: Timestamp) -> OffsetDateTime {
    // Both types count seconds, and X.509 covers the range of jiff: years to 9999.
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The parts of a certificate that we use.
pub(super) struct Certificate {
    der: CertificateDer<'static>,
    public_key: Vec<u8>,
    from: Timestamp,
    /// The time of expiry.
    pub(super) until: Timestamp,
}

impl Certificate {
    fn read(der: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let (validity, public_key) = (parsed.validity(), parsed.public_key().raw.to_vec());
        let from = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
        let until = Timestamp::from_second(validity.not_after.timestamp()).ok()?;
        Some(Self { public_key, from, until, der })
    }

    /// Whether the certificate is valid at `now`.
    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }

    /// Whether two thirds of its lifetime are over.
    fn is_due(&self, now: Timestamp) -> bool {
        now.duration_since(self.from) >= self.until.duration_since(self.from) * 2 / 3
    }

    /// Whether the certificate covers each of `names`, which are names or addresses.
    pub(super) fn is_for(&self, names: &[String]) -> bool {
        self.missing(names).is_none()
    }

    /// The first of `names` that the certificate does not cover.
    pub(super) fn missing<'a>(&self, names: &'a [String]) -> Option<&'a String> {
        let parsed = ParsedCertificate::try_from(&self.der).ok();
        names.iter().find(|name| {
            let name = ServerName::try_from(name.as_str()).ok();
            !parsed.iter().zip(name).any(|(parsed, name)| verify_server_name(parsed, &name).is_ok())
        })
    }

    /// Whether `key` is the private key of the certificate.
    fn fits(&self, key: &str) -> bool {
        KeyPair::from_pem(key).is_ok_and(|key| key.subject_public_key_info() == self.public_key)
    }

    fn is_signed_by(&self, authority: &Self) -> bool {
        let parsed = X509Certificate::from_der(&self.der).ok().zip(X509Certificate::from_der(&authority.der).ok());
        parsed.is_some_and(|((_, own), (_, authority))| own.verify_signature(Some(authority.public_key())).is_ok())
    }

    fn pem(&self) -> String {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(&self.der);
        let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    }
}

/// All certificates in `pem`; none if one of them is unreadable.
pub(super) fn certificates(pem: &str) -> Option<Vec<Certificate>> {
    let all = CertificateDer::pem_slice_iter(pem.as_bytes());
    all.map(|der| Certificate::read(der.ok()?)).collect()
}

/// A leaf with its matching key, and the index of its authority in the bundle.
struct Leaf {
    certificate: Certificate,
    authority: usize,
}

impl Leaf {
    fn of(stored: &StoredKeys, authorities: &[Certificate]) -> Option<Self> {
        key(&stored.leaf, &stored.leaf_key)?;
        let certificate = certificates(&stored.leaf)?.into_iter().next()?;
        let authority = authorities.iter().position(|authority| certificate.is_signed_by(authority))?;
        Some(Self { certificate, authority })
    }
}

/// The certificates and the key of a server, ready for handshakes; none if they are unreadable or do not match.
pub(super) fn key(chain: &str, key: &str) -> Option<CertifiedKey> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 3600;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * DAY).unwrap()
    }

    fn names() -> Vec<String> {
        ["scpol.scpol-system.svc", "127.0.0.1"].map(str::to_owned).to_vec()
    }

    /// The step that is due at `now`, with ages of zero.
    fn due(stored: &StoredKeys, now: Timestamp) -> Action {
        after(stored, now, Ages::default())
    }

    fn after(stored: &StoredKeys, now: Timestamp, seen: Ages) -> Action {
        next(Some(stored), &names(), now, seen, &Lifetimes::default())
    }

    fn done(action: Action, stored: Option<&StoredKeys>, now: Timestamp) -> StoredKeys {
        carry_out(action, stored, &names(), now, &Lifetimes::default()).unwrap()
    }

    fn fresh() -> StoredKeys {
        done(Action::Replace, None, at(0))
    }

    fn authorities(stored: &StoredKeys) -> usize {
        certificates(&stored.bundle).unwrap().len()
    }

    #[test]
    fn what_is_not_there_is_made_and_then_kept_whoever_has_a_clock_that_is_off_by_a_day() {
        assert_eq!(next(None, &names(), at(0), Ages::default(), &Lifetimes::default()), Action::Replace);
        let stored = fresh();
        let hour = SignedDuration::from_hours(1);
        for now in [at(0), at(0) - hour, at(0) + hour, at(-1), at(1), at(59)] {
            assert_eq!(due(&stored, now), Action::Keep);
        }
        let leaf = certificates(&stored.leaf).unwrap().remove(0);
        assert_eq!(leaf.until, at(90));
        assert!(leaf.is_for(&names()) && leaf.is_signed_by(&certificates(&stored.bundle).unwrap()[0]));
        assert_eq!(leaf.missing(&["scpol.other.svc".to_owned()]), Some(&"scpol.other.svc".to_owned()));
        assert!(!format!("{stored:?}").contains("PRIVATE"), "keys are in no log");
    }

    #[test]
    fn a_leaf_is_renewed_after_two_thirds_of_its_life_by_the_same_authority() {
        let stored = fresh();
        assert_eq!(due(&stored, at(61)), Action::RenewLeaf);
        let renewed = done(Action::RenewLeaf, Some(&stored), at(61));
        assert_eq!(renewed.bundle, stored.bundle);
        assert_eq!(due(&renewed, at(61)), Action::Keep);
        assert_eq!(certificates(&renewed.leaf).unwrap()[0].until, at(151));
    }

    #[test]
    fn what_cannot_be_shown_is_made_anew_at_once() {
        let (stored, other) = (fresh(), fresh());
        assert_eq!(due(&stored, at(91)), Action::RenewLeaf, "expired at start");
        assert_eq!(due(&stored, at(-3)), Action::Replace, "nothing of it is valid yet");
        let with = |change: &dyn Fn(&mut StoredKeys)| {
            let mut changed = stored.clone();
            change(&mut changed);
            due(&changed, at(1))
        };
        assert_eq!(
            with(&|stored| stored.leaf_key.clone_from(&other.leaf_key)),
            Action::RenewLeaf,
            "the key does not fit"
        );
        assert_eq!(with(&|stored| stored.leaf = "garbage".into()), Action::RenewLeaf);
        assert_eq!(with(&|stored| stored.leaf.insert(40, '!')), Action::RenewLeaf);
        assert_eq!(with(&|stored| stored.leaf.clear()), Action::RenewLeaf);
        assert_eq!(with(&|stored| stored.bundle = "garbage".into()), Action::Replace);
        assert_eq!(with(&|stored| stored.bundle.insert(40, '!')), Action::Replace);
        assert_eq!(with(&|stored| *stored = StoredKeys::default()), Action::Replace);
        let foreign = |stored: &mut StoredKeys| {
            (stored.leaf, stored.leaf_key) = (other.leaf.clone(), other.leaf_key.clone());
        };
        assert_eq!(with(&foreign), Action::RenewLeaf, "no authority of ours has signed it");
        assert_eq!(due(&stored, at(3651)), Action::Replace, "nothing is valid any more");
    }

    #[test]
    fn a_leaf_for_other_names_is_renewed() {
        let more = [names(), vec!["192.0.2.1".to_owned()]].concat();
        assert_eq!(next(Some(&fresh()), &more, at(1), Ages::default(), &Lifetimes::default()), Action::RenewLeaf);
        let less = vec!["127.0.0.1".to_owned()];
        assert_eq!(next(Some(&fresh()), &less, at(1), Ages::default(), &Lifetimes::default()), Action::Keep);
    }

    #[test]
    fn a_new_authority_is_published_before_it_signs_and_the_old_one_leaves_last() {
        // The last leaf of the old authority is young when the authority nears its end.
        let old = done(Action::RenewLeaf, Some(&fresh()), at(3555));
        assert_eq!(due(&old, at(3559)), Action::Keep);
        assert_eq!(due(&old, at(3561)), Action::AddAuthority);
        let both = done(Action::AddAuthority, Some(&old), at(3561));
        assert_eq!((authorities(&both), &both.leaf), (2, &old.leaf));
        let minutes = |minutes| at(3561) + SignedDuration::from_mins(minutes);
        let published = |minutes: u64| Ages { published: Some(Duration::from_secs(60 * minutes)), ..Ages::default() };
        assert_eq!(due(&both, minutes(60)), Action::Keep, "nobody has said that the bundle is known");
        assert_eq!(after(&both, minutes(60), published(4)), Action::Keep, "it is not known everywhere yet");
        assert_eq!(after(&both, minutes(-60), published(5)), Action::RenewLeaf);
        let signed = done(Action::RenewLeaf, Some(&both), minutes(15));
        assert_eq!(signed.bundle, both.bundle);
        assert!(certificates(&signed.leaf).unwrap()[0].is_signed_by(&certificates(&signed.bundle).unwrap()[0]));
        let shown = |minutes: u64| Ages { leaf: Duration::from_secs(60 * minutes), ..Ages::default() };
        assert_eq!(after(&signed, minutes(75), shown(4)), Action::Keep, "a replica may show the old leaf");
        assert_eq!(after(&signed, minutes(-45), shown(5)), Action::DropOld);
        let alone = done(Action::DropOld, Some(&signed), minutes(20));
        assert_eq!((authorities(&alone), due(&alone, minutes(20))), (1, Action::Keep));
        assert!(signed.bundle.starts_with(&alone.bundle));
    }

    #[test]
    fn an_authority_whose_key_is_lost_is_replaced_in_steps_and_bundles_do_not_grow() {
        let lost = StoredKeys { authority_key: fresh().authority_key, ..fresh() };
        assert_eq!(due(&lost, at(1)), Action::AddAuthority);
        let mut stored = lost;
        for _ in 0..3 {
            stored = done(Action::AddAuthority, Some(&stored), at(1));
            assert_eq!(authorities(&stored), 2);
        }
        assert_eq!(due(&stored, at(1)), Action::Keep);
        let expired = StoredKeys { authority_key: String::new(), ..fresh() };
        assert_eq!(due(&expired, at(91)), Action::Replace);
    }

    #[test]
    fn a_name_that_is_none_is_an_error() {
        let bad = vec!["not a name\u{e9}".to_owned()];
        assert!(carry_out(Action::Replace, None, &bad, at(0), &Lifetimes::default()).is_err());
    }
}
