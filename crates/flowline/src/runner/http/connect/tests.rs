//! Connections to servers of this test: TLS, refused addresses, what a URL may be.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

const CERTIFICATE: &[u8] = include_bytes!("../../../../tests/tls/cert.pem");
const KEY: &[u8] = include_bytes!("../../../../tests/tls/key.pem");

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(CERTIFICATE).unwrap()
}

/// A server that says one byte to whoever trusts its certificate; its port.
async fn tls_server() -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], PrivateKeyDer::from_pem_slice(KEY).unwrap())
        .unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.write_all(b"!").await;
                let _ = stream.shutdown().await;
            }
        }
    });
    port
}

fn code(error: &StepError) -> Option<&str> {
    error.0.code.as_deref()
}

#[tokio::test]
async fn a_certificate_counts_for_the_names_in_it_where_its_issuer_is_trusted() {
    let port = tls_server().await;
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    let connector = Connector::new(Allow::private());
    assert!(connector.tls.set(trusting(roots).unwrap()).is_ok());
    for host in ["localhost", "127.0.0.1"] {
        let target = HttpTarget::of(&format!("https://{host}:{port}/")).unwrap();
        let mut stream = connector.connect(&target).await.unwrap();
        let mut said = [0];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"!", "{host}");
    }
    let target = HttpTarget::of(&format!("https://127.0.0.2:{port}/")).unwrap();
    let error = connector.connect(&target).await.err().unwrap();
    assert_eq!(code(&error), Some("connect"));
    // Elsewhere that address may not be there at all.
    if cfg!(target_os = "linux") {
        assert!(error.0.error.contains("certificate"), "{}", error.0.error);
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let target = HttpTarget::of(&format!("https://localhost:{}/", tls_server().await)).unwrap();
    let error = Connector::new(Allow::private()).connect(&target).await.err().unwrap();
    assert_eq!(code(&error), Some("connect"));
    assert!(error.0.error.contains("certificate"), "{}", error.0.error);
}

#[tokio::test]
async fn every_way_to_write_a_loopback_address_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connector = Connector::new(Allow::default());
    for host in
        ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0", "[::1]", "[::ffff:127.0.0.1]"]
    {
        let target = HttpTarget::of(&format!("http://{host}:{port}/")).unwrap();
        let error = connector.connect(&target).await.err().unwrap();
        assert_eq!(code(&error), Some("address_refused"), "{host}: {}", error.0.error);
        assert!(error.0.error.contains("http-allow"), "{}", error.0.error);
    }
}

#[test]
fn a_url_that_cannot_be_called_is_refused_before_anything_is_looked_up() {
    for url in [
        "ftp://a.example/",
        "/path",
        "a.example",
        "http://",
        "http://me@a.example/",
        "http://a b/",
        "http://a%2Fb/",
    ] {
        assert_eq!(code(&HttpTarget::of(url).unwrap_err()), Some("bad_url"), "{url}");
    }
    let target = HttpTarget::of("https://a.example/path?token=hidden").unwrap();
    assert_eq!((target.port, target.to_string().as_str()), (443, "https://a.example/path"));
}
