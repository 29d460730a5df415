//! TLS towards the server, by rustls.

use std::sync::Arc;

use flowline_store::StoreError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::target::Trust;

pub(crate) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Invalid(format!("can't set up TLS: {error}")))?;
    let config = match trust {
        Trust::Anyone => {
            versions.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        }
        Trust::Roots(file) => versions.with_root_certificates(roots(file.as_deref())?),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn roots(file: Option<&std::path::Path>) -> Result<RootCertStore, StoreError> {
    let mut store = RootCertStore::empty();
    let Some(path) = file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(store);
    };
    let unreadable = |error: String| StoreError::Invalid(format!("sslrootcert {}: {error}", path.display()));
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        store.add(certificate).map_err(|error| unreadable(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(unreadable("it has no certificate".to_owned()));
    }
    Ok(store)
}

/// `sslmode=require` asks for encryption, not for proof of who answers: any certificate will do.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
