//! Spans as a collector gets them, and the trace that steps are told of.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::kit::served::Served;
use crate::kit::wait_for;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
/// Generous: machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

const FLOW: &str = r#"
flow: order
steps:
  tell:
    command: [sh, -c, 'read -r line; line=${line#*\"traceparent\":\"}; echo "{\"result\":\"${line%%\"*}\"}"']
    returns: told
  fall: { subscribes: [told], command: [sh, -c, 'exit 4'] }
"#;

const CERTIFICATE: &[u8] = include_bytes!("../../../flowline/tests/tls/cert.pem");
const KEY: &[u8] = include_bytes!("../../../flowline/tests/tls/key.pem");

/// A connection, with or without TLS.
trait Wire: Read + Write {}

impl<W: Read + Write> Wire for W {}

/// Takes spans, as a collector would.
fn collector() -> (String, mpsc::Receiver<Value>) {
    let (address, spans) = collect(|stream| Box::new(stream));
    (format!("http://{address}"), spans)
}

/// Takes spans over TLS, from those who show a key.
fn hosted_collector() -> (String, mpsc::Receiver<Value>) {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let config = Arc::new(config);
    let (address, spans) = collect(move |stream| {
        let session = ServerConnection::new(config.clone()).unwrap();
        Box::new(StreamOwned::new(session, stream))
    });
    (format!("https://localhost:{}", address.port()), spans)
}

fn collect(
    open: impl Fn(TcpStream) -> Box<dyn Wire> + Send + 'static,
) -> (SocketAddr, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (taken, spans) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut wire = BufReader::new(open(stream.unwrap()));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(wire.read_line(&mut head).unwrap() > 0, "{head}");
            }
            let head = head.to_lowercase();
            assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
            assert!(head.contains("content-type: application/json"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            wire.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            wire.get_mut().write_all(answer).unwrap();
            wire.get_mut().flush().unwrap();
            let request: Value = serde_json::from_slice(&body).unwrap();
            let resource = &request["resourceSpans"][0];
            let service = json!({ "key": "service.name", "value": { "stringValue": "flowline" } });
            assert_eq!(resource["resource"]["attributes"][0], service);
            for span in resource["scopeSpans"][0]["spans"].as_array().unwrap() {
                let mut span = span.clone();
                span["shown"] = json!(head.lines().find_map(|line| line.strip_prefix("x-api-key: ")));
                taken.send(span).unwrap();
            }
        }
    });
    (address, spans)
}

fn attribute<'a>(span: &'a Value, name: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    attributes.iter().find(|one| one["key"] == name).map_or(&Value::Null, |one| &one["value"])
}

#[test]
fn a_run_and_its_attempts_are_spans_of_the_trace_that_it_was_started_from() {
    let (url, spans) = collector();
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--allow-commands", "--otlp-endpoint", &url]);
    served.register(FLOW);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let reply = served.send("POST", "/v1/flows/order/runs?wait=60s", &[("traceparent", &parent)], "");
    let run = reply.json();
    assert_eq!(run["status"], "failed", "{run}");
    let id = run["runId"].as_str().unwrap();
    let events = served.get(&format!("/v1/runs/{id}/events?type=step.completed")).json();
    let told = events["items"][0]["data"]["result"].as_str().unwrap().to_owned();

    let mut by_name = std::collections::BTreeMap::new();
    while by_name.len() < 3 {
        let span = spans.recv_timeout(PATIENCE).expect("a span");
        by_name.insert(span["name"].as_str().unwrap().to_owned(), span);
    }
    let [run, fall, tell] = ["order", "order/fall", "order/tell"].map(|name| &by_name[name]);
    for span in [run, fall, tell] {
        assert_eq!(span["traceId"], TRACE);
        assert_eq!(attribute(span, "flowline.run.id")["stringValue"], id);
        let [began, ended] = ["startTimeUnixNano", "endTimeUnixNano"]
            .map(|field| span[field].as_str().unwrap().parse::<u64>().unwrap());
        assert!(began <= ended && began > 1_500_000_000_000_000_000, "{span}");
    }
    assert_eq!(run["parentSpanId"], CALLER);
    assert_eq!(tell["parentSpanId"], run["spanId"]);
    assert_eq!(told, format!("00-{TRACE}-{}-01", tell["spanId"].as_str().unwrap()), "what the step was told");
    assert_eq!((&tell["status"]["code"], &fall["status"]["code"]), (&json!(1), &json!(2)));
    assert_eq!(attribute(fall, "error.type")["stringValue"], "exit_4");
    // The collector's answer is counted once it is back.
    wait_for("the spans are counted", || {
        let metrics = served.get("/metrics").body;
        let mut lines = metrics.lines();
        lines.any(|line| line.starts_with("flowline_spans_exported_total") && line.ends_with(" 3"))
    });
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_work() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{away}");
    let served = Served::start(folder.path(), &["--allow-commands", "--otlp-endpoint", &url]);
    served.register(FLOW);
    // No trace context, and so passed over.
    let reply = served.send("POST", "/v1/flows/order/runs?wait=60s", &[("traceparent", "00-bad")], "");
    assert_eq!(reply.json()["status"], "failed");
    let until = std::time::Instant::now() + PATIENCE;
    let dropped = || {
        let metrics = served.get("/metrics").body;
        metrics.lines().any(|line| line.starts_with("flowline_spans_dropped_total") && line.ends_with(" 3"))
    };
    while !dropped() {
        assert!(std::time::Instant::now() < until, "nothing was dropped");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_hosted_collector_is_spoken_to_by_tls_and_shown_its_key() {
    let (url, spans) = hosted_collector();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trusted.pem"), CERTIFICATE).unwrap();
    let variables = [("SSL_CERT_FILE", "trusted.pem"), ("FLOWLINE_OTLP_HEADERS", "x-api-key=k-7")];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--allow-commands", "--otlp-endpoint", &url];
    let served = Served::command_with(folder.path(), &serve, &variables).unwrap();
    served.register(FLOW);
    served.send("POST", "/v1/flows/order/runs?wait=60s", &[], "");
    assert_eq!(spans.recv_timeout(PATIENCE).expect("a span")["shown"], "k-7");
}
