//! What people read, and the document for machines.

use serde_json::Value;

use crate::kit::served::Served;

/// Where the document is committed, for those who generate clients without a server.
const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

#[test]
fn the_committed_openapi_document_is_the_one_that_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let document = served.get("/openapi.json").json();
    let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
    if std::env::var_os("FLOWLINE_WRITE").is_some() {
        std::fs::write(COMMITTED, &text).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(
        committed == text,
        "docs/openapi.json is out of date; regenerate it with FLOWLINE_WRITE=1 cargo test -p flowline-cli --test all http::"
    );
}

#[test]
fn every_operation_says_whether_it_needs_a_token_and_has_a_good_answer() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let document = served.get("/openapi.json").json();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            let tokens = operation["security"].as_array().map(Vec::len);
            let expected = if operation["x-scope"].is_null() { 0 } else { 2 };
            assert_eq!(tokens, Some(expected), "{verb} {path}");
            let good = |status: &String| status.starts_with('2');
            assert!(operation["responses"].as_object().unwrap().keys().any(good), "{verb} {path}");
        }
    }
}

#[test]
fn every_code_of_a_problem_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let document = served.get("/openapi.json").json();
    let codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"].clone();
    let codes: Vec<String> = serde_json::from_value(codes).unwrap();
    assert!(codes.len() > 20);
    for code in codes {
        let page = served.get(&format!("/errors/{code}"));
        assert_eq!(page.status, 200, "{code}");
        assert!(page.body.contains(&code), "{code}");
    }
    assert_eq!(served.get("/errors/none").code(), "not-found");
}

#[test]
fn pages_allow_no_script() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let page = served.get("/docs");
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert!(!page.body.contains("<script"));
    for path in served.get("/openapi.json").json()["paths"].as_object().unwrap().keys() {
        assert!(page.body.contains(path.as_str()), "{path}");
    }
    assert!(matches!(served.get("/openapi.json").json(), Value::Object(_)));
}

#[test]
fn the_console_is_served_under_a_strict_policy_and_every_page_of_it_has_a_url() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    assert_eq!(served.get("/").header("location"), Some("/ui/"));
    for page in ["/ui/", "/ui/runs/some-run?tab=log", "/ui/flows/my.flow"] {
        let page = served.get(page);
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
        let policy = page.header("content-security-policy").unwrap();
        assert!(
            policy.contains("script-src 'self';") && policy.contains("require-trusted-types-for 'script'")
        );
        assert!(!page.body.contains("<script>") && !page.body.contains("style="), "{}", page.body);
    }
    assert_eq!(served.get("/ui/nothing.js").code(), "not-found");
}
