//! Certificates and keys of one control plane.

use std::fs;
use std::path::Path;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Writes `ca.crt`, `tls.crt`, `tls.key`, `sa.pub` and `sa.key` into `dir` and returns the CA in PEM.
///
/// A real CA and a leaf with an IP SAN, because rustls accepts neither a self-signed leaf nor a certificate with only a
/// common name.
pub(crate) fn write(dir: &Path) -> Result<String> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.distinguished_name.push(DnType::CommonName, "scpol-test-ca");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(["127.0.0.1", "localhost", "kubernetes.default.svc"].map(String::from))?;
    leaf.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    fs::write(dir.join("tls.crt"), leaf.signed_by(&key, &issuer)?.pem())?;
    fs::write(dir.join("tls.key"), key.serialize_pem())?;
    fs::write(dir.join("ca.crt"), &ca_pem)?;

    let accounts = KeyPair::generate()?;
    fs::write(dir.join("sa.pub"), accounts.public_key_pem())?; // 1.13 reads no PKCS#8 key here
    fs::write(dir.join("sa.key"), accounts.serialize_pem())?;
    Ok(ca_pem)
}
