//! The listener behind TLS.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::live::http::{Stream, answer, connect, write};
use crate::live::served::Server;

/// A certificate of this machine that signs itself, and its key.
pub fn make_certificate(folder: &Path) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=flowline"]);
    openssl.args([
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    let made = openssl.current_dir(folder).output().expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

pub async fn connect_safely(server: &Server, folder: &Path) -> BufReader<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    BufReader::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap())
}

#[tokio::test]
async fn requests_and_streams_go_over_tls() {
    let folder = TempDir::new().unwrap();
    make_certificate(folder.path());
    let server = Server::start(folder.path(), &["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    assert_eq!(server.scheme, "https");
    let mut wire = connect_safely(&server, folder.path()).await;
    let flow = json!({ "flow": "tiny", "steps": { "never": { "worker": "nobody" } } }).to_string();
    write(&mut wire, "POST /v1/flows", &[], Some(&flow)).await;
    let registered = answer(&mut wire).await.unwrap();
    assert_eq!(registered.status, 201);
    // Who has been here by TLS doesn't come back without it.
    assert_eq!(registered.header("strict-transport-security"), Some("max-age=31536000"));
    let wire = connect_safely(&server, folder.path()).await;
    let mut stream = Stream::over(wire, "/v1/stream?from=start", &[]).await;
    let mut wire = connect_safely(&server, folder.path()).await;
    write(&mut wire, "POST /v1/flows/tiny/runs", &[], Some("{}")).await;
    assert_eq!(answer(&mut wire).await.unwrap().status, 201);
    assert_eq!(stream.next().await.unwrap().event, "flow.start");
    // Somebody who does not speak TLS is not understood, and others go on.
    let mut plain = connect(server.address).await;
    write(&mut plain, "GET /livez", &[], None).await;
    assert!(answer(&mut plain).await.is_err());
    let mut wire = connect_safely(&server, folder.path()).await;
    write(&mut wire, "GET /livez", &[], None).await;
    assert_eq!(answer(&mut wire).await.unwrap().status, 200);
}

#[test]
fn a_certificate_that_cannot_be_used_is_told_at_the_start() {
    let folder = TempDir::new().unwrap();
    make_certificate(folder.path());
    std::fs::write(folder.path().join("empty.pem"), "nothing").unwrap();
    for (flags, texts) in [
        (&["--tls-cert", "cert.pem"][..], &["tls-key"][..]),
        (&["--tls-cert", "none.pem", "--tls-key", "key.pem"], &["tls-cert", "none.pem"]),
        (&["--tls-cert", "empty.pem", "--tls-key", "key.pem"], &["tls-cert", "empty.pem"]),
        (&["--tls-cert", "cert.pem", "--tls-key", "empty.pem"], &["tls-key", "empty.pem"]),
    ] {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_flowline"));
        let said = serve.arg("serve").args(flags).current_dir(folder.path()).output().unwrap();
        assert_eq!(said.status.code(), Some(2), "{flags:?}");
        let err = String::from_utf8(said.stderr).unwrap();
        assert!(texts.iter().all(|text| err.contains(text)), "{flags:?}: {err}");
    }
}
