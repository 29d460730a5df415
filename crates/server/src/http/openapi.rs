//! The OpenAPI document, made from the routes and the schemas.

use axum::http::HeaderMap;
use axum::response::Response;
use flowline::core::EventType;
use flowline_api::runs::{DURATION, LABEL};
use serde_json::{Map, Value, json};

use super::codes::{self, Code};
use super::etag::{UNCHANGED, tagged};
use super::problem::{ApiError, PROBLEM_JSON};
use super::route::{
    Answer, Content, QueryKind, Required, Route, RouteAccess, TokenScope, handler, path_parameters,
};
use super::routes;
use super::schemas::Schemas;

pub const ROUTES: &[Route] =
    &[Route::get("/openapi.json", RouteAccess::Open, "Get this API description", handler!(show))
        .answers(&[Answer::other(200, "OpenAPI 3.1.", "application/json"), UNCHANGED])];

/// Problems that any route can answer with.
const ANYWHERE: &[&Code] =
    &[&codes::BAD_REQUEST, &codes::BAD_PARAMETER, &codes::INTERNAL, &codes::UNAVAILABLE, &codes::TIMEOUT];
/// Problems of routes that need a token.
const GUARDED: &[&Code] =
    &[&codes::UNAUTHORIZED, &codes::TOKEN_EXPIRED, &codes::FORBIDDEN, &codes::TOO_MANY_WRONG_TOKENS];
/// Problems of routes that take a body.
const WITH_BODY: &[&Code] =
    &[&codes::BAD_BODY, &codes::TOO_LARGE, &codes::UNSUPPORTED_MEDIA_TYPE, &codes::REQUEST_TIMEOUT];

async fn show(headers: HeaderMap) -> Result<Response, ApiError> {
    tagged(&headers, &document())
}

/// The whole document.
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    // What only sends a browser on is no part of the API.
    for route in routes().filter(|route| route.answers.iter().any(|answer| answer.status < 300)) {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.as_str()] = operation(route, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Flowline",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable workflows: register definitions, start and control runs, follow their events, and run their jobs.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "This server" }],
        "tags": [],
        "paths": paths,
        "components": {
            "schemas": schemas.components(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "responses": responses(route, schemas),
    });
    if !route.about.is_empty() {
        operation["description"] = route.about.into();
    }
    let in_path = path_parameters(route.path).map(|name| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } })
    });
    let in_query = route.query.iter().map(|query| {
        json!({ "name": query.name, "in": "query", "description": query.about, "schema": schema_of(query.kind) })
    });
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = &route.body {
        let mut content = json!({ "application/json": { "schema": schemas.request(body.schema) } });
        for kind in body.also {
            content[kind] = json!({ "schema": { "type": "string" } });
        }
        operation["requestBody"] = json!({ "required": body.required == Required::Yes, "content": content });
    }
    operation["security"] = json!([]);
    let scopes: Vec<&str> = route.access.scopes().into_iter().map(TokenScope::as_str).collect();
    if !scopes.is_empty() {
        operation["security"] = json!([{ "token": [] }, {}]);
        operation["x-scope"] = scopes.join(" or ").into();
    }
    operation
}

/// `get /v1/runs/{run}/events` is `getV1RunsRunEvents`, without the version.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(['/', '{', '}', '.', '-']).filter(|word| !word.is_empty() && *word != "v1");
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    std::iter::once(route.verb.as_str().to_owned()).chain(words.map(capital)).collect()
}

fn responses(route: &Route, schemas: &mut Schemas) -> Value {
    let mut responses: Map<String, Value> = Map::new();
    for answer in route.answers {
        let response = responses
            .entry(answer.status.to_string())
            .or_insert_with(|| json!({ "description": answer.about }));
        match answer.content {
            Content::None => {}
            Content::Json(schema) => {
                response["content"]["application/json"] = json!({ "schema": schemas.answer(schema) })
            }
            Content::Other(kind) => response["content"][kind] = json!({}),
        }
    }
    let guarded: &[&Code] = if route.access == RouteAccess::Open { &[] } else { GUARDED };
    let with_body = route.body.as_ref().map_or(&[][..], |_| WITH_BODY);
    let problems: Vec<&&Code> =
        [ANYWHERE, guarded, with_body, route.problems].into_iter().flatten().collect();
    for problem in &problems {
        let same: Vec<String> = problems
            .iter()
            .filter(|other| other.status == problem.status)
            .map(|code| format!("`{}`", code.code))
            .collect();
        responses.entry(problem.status.to_string()).or_insert_with(|| {
            json!({ "description": same.join(", "), "content": { PROBLEM_JSON: { "schema": reference("Problem") } } })
        });
    }
    Value::Object(responses)
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn schema_of(kind: QueryKind) -> Value {
    match kind {
        QueryKind::Text => json!({ "type": "string" }),
        QueryKind::Number(from, to) => json!({ "type": "integer", "minimum": from, "maximum": to }),
        QueryKind::Flag => json!({ "type": "boolean" }),
        QueryKind::Duration => json!({ "type": "string", "pattern": DURATION, "examples": ["30s"] }),
        QueryKind::Span => json!({ "type": "string", "pattern": DURATION, "examples": ["1h"] }),
        QueryKind::Moment => json!({ "type": "string", "examples": ["2026-01-31T12:00:00Z", "24h"] }),
        QueryKind::Label => json!({ "type": "string", "pattern": LABEL, "examples": ["team=billing"] }),
        QueryKind::OneOf(words) => json!({ "enum": words }),
        QueryKind::EventTypes => {
            let words: Vec<&str> = EventType::written().map(EventType::as_str).collect();
            let one = words.join("|").replace('.', "\\.");
            json!({ "type": "string", "pattern": format!("^({one})(,({one}))*$"), "examples": [words[0]] })
        }
    }
}
