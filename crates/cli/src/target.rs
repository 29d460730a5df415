//! Where a command finds its runs: in a store that it opens itself, or at a server that it asks.
//!
//! A command gets its data from either, as one type, and prints it in one place. What a server refuses becomes the same
//! [`Failure`] that the store's side has for it, so that scripts need not know which of the two they speak to.

use std::time::Duration;

use flowline_api::codes::Code;
use flowline_client::{Client, ClientError, Method};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::failure::{Exit, Failure};

/// How long an answer may take: as long as a server works on it.
const PATIENCE: Duration = flowline_server::api::HANDLER_TIME;

#[derive(Debug)]
pub enum Target {
    /// The store of the settings.
    Store,
    Server(Server),
}

/// A server, with what it takes to speak to it.
#[derive(Debug)]
pub struct Server {
    /// Boxed, since it is much larger than a store's name.
    client: Box<Client>,
}

impl Server {
    pub fn new(client: Client) -> Server {
        Server { client: Box::new(client) }
    }

    pub async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Failure> {
        Ok(self.client.get(path, PATIENCE).await?)
    }

    /// Asks with the parameters that have a value.
    pub async fn find<A: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, Option<String>)],
    ) -> Result<A, Failure> {
        let mut query = form_urlencoded::Serializer::new(format!("{path}?"));
        for (name, value) in parameters {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        self.get(&query.finish()).await
    }

    /// Asks for something to be done; what it takes is written as JSON.
    pub async fn post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::input(error.to_string()))?;
        self.send(path, "application/json", body).await
    }

    /// Sends a body as it is, under its media type.
    pub async fn send<A: DeserializeOwned>(
        &self,
        path: &str,
        kind: &'static str,
        body: Vec<u8>,
    ) -> Result<A, Failure> {
        Ok(self.client.request(Method::POST, path, Some((kind, body)), PATIENCE).await?)
    }

    /// Puts something in its place.
    pub async fn put<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::input(error.to_string()))?;
        let body = Some(("application/json", body));
        Ok(self.client.request(Method::PUT, path, body, PATIENCE).await?)
    }

    /// Removes something, and hears what there was.
    pub async fn remove<A: DeserializeOwned>(&self, path: &str) -> Result<A, Failure> {
        Ok(self.client.delete(path, PATIENCE).await?)
    }

    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        let _: IgnoredAny = self.client.delete(path, PATIENCE).await?;
        Ok(())
    }
}

/// An answer that is not what this build would have given.
pub fn misread(path: &str, error: &serde_json::Error) -> Failure {
    no_server(format!("can't read the response of {path}: {error}"))
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let text = error.to_string();
        let unreachable =
            |help: &str| Failure::new(Exit::Store, "server-unreachable", text.clone()).help(help);
        match error {
            ClientError::Address(_) | ClientError::Token => Failure::usage(text),
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
fn refused(status: u16, code: &str, detail: String) -> Failure {
    let known = Code::find(code).map_or("", |known| known.code);
    match known {
        "unauthorized" | "forbidden" => Failure::new(Exit::Store, known, detail).help(
            "set FLOWLINE_TOKEN or --token to a token that allows this; `flowline token create` creates one",
        ),
        "no-such-event" => Failure::refusal("not-accepted", detail),
        "inbox-full" => Failure::inbox_full(detail),
        "event-rejected" | "lock-held" | "lock-lost" => Failure::new(Exit::Found, known, detail),
        "too-large" => Failure::refusal("limit", detail),
        "bad-parameter" => Failure::usage(detail),
        "bad-body" | "run-not-ended" | "no-such-step" => Failure::input(detail),
        "no-such-run" | "no-such-flow" | "no-such-queue" | "no-such-token" | "no-such-receipt"
        | "no-such-lock" | "no-such-key" | "run-ended" | "flow-retired" | "refused" | "role"
        | "key-conflict" | "schema" | "definition" | "invalid" | "stale-lease" | "outcome-conflict" => {
            Failure::refusal(known, detail)
        }
        "unavailable" => Failure::new(Exit::Store, "store-unavailable", detail)
            .help("the server can't reach its store; try again in a moment"),
        "store" => Failure::new(Exit::Store, "store", detail),
        "stopping" | "too-many-requests" | "timeout" | "internal" | "request-timeout" => {
            Failure::new(Exit::Store, "server", format!("{detail} ({status} {known})"))
        }
        _ => no_server(format!("the server refused: {detail} ({status})")),
    }
}

fn no_server(text: String) -> Failure {
    Failure::new(Exit::Store, "server", text)
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
