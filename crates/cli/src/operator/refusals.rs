//! What a server or a filter refuses, as the store's side words it.

use flowline_api::codes::Code;
use flowline_client::ClientError;
use flowline_server::filter::FilterError;

use crate::failure::{CliError, Exit};

impl From<FilterError> for CliError {
    fn from(error: FilterError) -> CliError {
        CliError::usage(format!("--{}: {}", error.name, error.problem))
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> CliError {
        let text = error.to_string();
        let unreachable =
            |help: &str| CliError::new(Exit::Store, "server-unreachable", text.clone()).help(help);
        match error {
            ClientError::Address(_) | ClientError::Token => CliError::usage(text),
            ClientError::Refused { status, code, detail, .. } => refused(status, &code, detail),
            ClientError::Unconnected { .. } => unreachable(
                "check --server (`flowline config` shows where it's set), and that the server is running",
            ),
            ClientError::Unreachable { .. } | ClientError::Late { .. } => unreachable(
                "it's unknown whether the server carried out the request: check before you repeat it",
            ),
            _ => no_server(text),
        }
    }
}

/// A refusal of the API as the store's side words it.
fn refused(status: u16, code: &str, detail: String) -> CliError {
    let known = Code::find(code).map_or("", |known| known.code);
    match known {
        "unauthorized" | "forbidden" | "token-expired" | "too-many-wrong-tokens" => CliError::new(
            Exit::Store,
            known,
            detail,
        )
        .help(
            "set FLOWLINE_TOKEN or --token to a token that allows this; `flowline token create` creates one",
        ),
        "no-such-event" => CliError::refusal("not-accepted", detail),
        "inbox-full" => CliError::inbox_full(detail),
        "event-rejected" | "lock-held" | "lock-lost" => CliError::new(Exit::Found, known, detail),
        "too-large" | "log-full" => CliError::refusal("limit", detail),
        "bad-parameter" => CliError::usage(detail),
        "bad-body" | "run-not-ended" | "no-such-step" => CliError::input(detail),
        "no-such-run" | "no-such-flow" | "no-such-queue" | "no-such-token" | "no-such-receipt"
        | "no-such-lock" | "no-such-key" | "run-ended" | "flow-retired" | "refused" | "role"
        | "key-conflict" | "schema" | "too-costly" | "definition" | "invalid" | "stale-lease"
        | "outcome-conflict" => CliError::refusal(known, detail),
        "unavailable" => CliError::new(Exit::Store, "store-unavailable", detail)
            .help("the server can't reach its store; try again in a moment"),
        "store" => CliError::new(Exit::Store, "store", detail),
        "quota-exceeded" => CliError::new(Exit::Store, known, detail).help("try again later"),
        "stopping" | "too-many-requests" | "timeout" | "internal" | "request-timeout" => {
            CliError::new(Exit::Store, "server", format!("{detail} ({status} {known})"))
        }
        _ => no_server(format!("the server refused: {detail} ({status})")),
    }
}

fn no_server(text: String) -> CliError {
    CliError::new(Exit::Store, "server", text)
        .help("check that --server is the address of a Flowline server of the same version, without a path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline_api::codes;

    #[test]
    fn a_refusal_of_the_api_ends_a_command_as_the_store_would() {
        for code in codes::ALL {
            let failure = refused(code.status, code.code, "why".to_owned());
            let request = !matches!(code.code, "bad-request" | "not-found" | "not-acceptable");
            let exit = match code.status {
                _ if code.code == "role" => Exit::Usage,
                _ if matches!(code.code, "event-rejected" | "lock-held" | "lock-lost") => Exit::Found,
                400 | 404 | 409 | 413 if request => Exit::Usage,
                _ => Exit::Store,
            };
            assert_eq!(failure.exit, exit, "{}", code.code);
            assert!(failure.message.contains("why"), "{}", failure.message);
        }
        let elsewhere = refused(404, "unknown", "the server refused".to_owned());
        assert_eq!((elsewhere.exit, elsewhere.code), (Exit::Store, "server"));
    }
}
