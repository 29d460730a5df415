//! A route says everything about itself in one place: its path, who may use it, what it takes and what it answers. The
//! router, the check of the scope, the check of the query and the OpenAPI document are all made from it.

use std::borrow::Cow;
use std::pin::Pin;

use axum::extract::Request;
use axum::response::Response;
use flowline::Limits;
pub use flowline_api::access::TokenScope;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::App;

/// How a route is handled. Handlers are axum's, whose arguments are read off the request.
pub type Handling = fn(Request, App) -> Handled;
pub type Handled = Pin<Box<dyn Future<Output = Response> + Send>>;

#[derive(Debug)]
pub struct Route {
    pub verb: Verb,
    pub effect: RouteEffect,
    /// As axum and OpenAPI write it: `/v1/runs/{run}`.
    pub path: &'static str,
    pub access: RouteAccess,
    /// A short imperative sentence.
    pub summary: &'static str,
    /// What it does beyond the summary; empty where that says all.
    pub about: &'static str,
    pub query: &'static [Query],
    pub body: Option<Body>,
    pub answers: &'static [Answer],
    /// Codes of problems beyond those that every route can answer with.
    pub problems: &'static [&'static super::codes::Code],
    pub handler: Handling,
}

/// A function that answers requests, as a route names it.
macro_rules! handler {
    ($function:path) => {
        |request, app| axum::handler::Handler::call($function, request, app)
    };
}
pub(crate) use handler;

/// A route takes nothing and says no more about itself unless it's told to.
impl Route {
    /// Reads, and answers quickly or streams.
    pub const fn get(
        path: &'static str,
        access: RouteAccess,
        summary: &'static str,
        handler: Handling,
    ) -> Route {
        Route::new(Verb::Get, RouteEffect::Reads, path, access, summary, handler)
    }

    pub const fn post(
        path: &'static str,
        access: RouteAccess,
        summary: &'static str,
        handler: Handling,
    ) -> Route {
        Route::new(Verb::Post, RouteEffect::Writes, path, access, summary, handler)
    }

    pub const fn put(
        path: &'static str,
        access: RouteAccess,
        summary: &'static str,
        handler: Handling,
    ) -> Route {
        Route::new(Verb::Put, RouteEffect::Writes, path, access, summary, handler)
    }

    pub const fn delete(
        path: &'static str,
        access: RouteAccess,
        summary: &'static str,
        handler: Handling,
    ) -> Route {
        Route::new(Verb::Delete, RouteEffect::Writes, path, access, summary, handler)
    }

    const fn new(
        verb: Verb,
        effect: RouteEffect,
        path: &'static str,
        access: RouteAccess,
        summary: &'static str,
        handler: Handling,
    ) -> Route {
        let (query, body, answers, problems) = (&[], None, &[], &[]);
        Route { verb, effect, path, access, summary, about: "", query, body, answers, problems, handler }
    }

    pub const fn about(self, about: &'static str) -> Route {
        Route { about, ..self }
    }

    pub const fn query(self, query: &'static [Query]) -> Route {
        Route { query, ..self }
    }

    pub const fn body(self, body: Body) -> Route {
        Route { body: Some(body), ..self }
    }

    pub const fn answers(self, answers: &'static [Answer]) -> Route {
        Route { answers, ..self }
    }

    pub const fn problems(self, problems: &'static [&'static super::codes::Code]) -> Route {
        Route { problems, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Post => "post",
            Verb::Put => "put",
            Verb::Delete => "delete",
        }
    }
}

/// What a route does, which says which threads serve it ([`super::threads`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteEffect {
    /// Short reads of the store, and streams.
    Reads,
    /// Everything else, long computations too.
    Writes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAccess {
    /// Anybody who reaches the port.
    Open,
    /// A token with this scope, where tokens are asked for.
    Needs(TokenScope),
    /// A token with one of these scopes.
    Either(TokenScope, TokenScope),
}

impl RouteAccess {
    pub const READ: RouteAccess = RouteAccess::Needs(TokenScope::Read);
    pub const START: RouteAccess = RouteAccess::Needs(TokenScope::Start);
    pub const OPERATE: RouteAccess = RouteAccess::Needs(TokenScope::Operate);
    pub const WORK: RouteAccess = RouteAccess::Needs(TokenScope::Work);
    pub const ADMIN: RouteAccess = RouteAccess::Needs(TokenScope::Admin);

    /// The scopes of which a token needs one; none where the route is open.
    pub fn scopes(self) -> Vec<TokenScope> {
        match self {
            RouteAccess::Open => Vec::new(),
            RouteAccess::Needs(scope) => vec![scope],
            RouteAccess::Either(one, other) => vec![one, other],
        }
    }
}

/// A parameter of the query string.
#[derive(Debug)]
pub struct Query {
    pub name: &'static str,
    pub kind: QueryKind,
    pub about: &'static str,
}

impl Query {
    /// What every list takes to give its next page.
    pub const CURSOR: Query = Query::new("cursor", QueryKind::Text, "`next` of the previous page.");

    pub const fn new(name: &'static str, kind: QueryKind, about: &'static str) -> Query {
        Query { name, kind, about }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKind {
    Text,
    /// A whole number from the first to the second.
    Number(u64, u64),
    Flag,
    /// How long to wait: `500ms`, `30s`.
    Duration,
    /// A stretch of time: `5m`, `1h`, `7d`.
    Span,
    /// A time as RFC 3339 writes it, or a duration before now.
    Moment,
    /// NAME=VALUE.
    Label,
    OneOf(&'static [&'static str]),
    /// Types of events, separated by commas.
    EventTypes,
}

/// The schema of a type.
#[derive(Debug, Clone, Copy)]
pub struct SchemaOf {
    pub name: fn() -> Cow<'static, str>,
    /// Adds it to those of a document, and refers to it.
    pub refer: fn(&mut SchemaGenerator) -> Schema,
}

impl SchemaOf {
    pub const fn of<T: JsonSchema>() -> SchemaOf {
        SchemaOf { name: T::schema_name, refer: SchemaGenerator::subschema_for::<T> }
    }
}

/// What a request carries.
#[derive(Debug)]
pub struct Body {
    pub schema: SchemaOf,
    pub limit: BodyLimit,
    pub required: Required,
    /// Media types beside `application/json`.
    pub also: &'static [&'static str],
}

impl Body {
    /// JSON of this type.
    pub const fn of<T: JsonSchema>(limit: BodyLimit) -> Body {
        Body { schema: SchemaOf::of::<T>(), limit, required: Required::Yes, also: &[] }
    }

    /// JSON of this type, with no payload in it.
    pub const fn small<T: JsonSchema>() -> Body {
        Body::of::<T>(BodyLimit::Bytes(64 << 10))
    }

    /// May be left out.
    pub const fn optional(self) -> Body {
        Body { required: Required::No, ..self }
    }
}

/// The most bytes that a body may have. Where payloads are in it, it grows with their limit, and never below what is usual:
/// a payload over its own limit is refused by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLimit {
    Bytes(usize),
    /// This many payloads, or one with what stands around it.
    Payloads(usize),
    /// A batch of payloads, together as large as a join may be.
    Batch,
}

impl BodyLimit {
    pub fn bytes(self, limits: Limits) -> usize {
        let usual = Limits::default();
        let payload = limits.payload.max(usual.payload);
        match self {
            BodyLimit::Bytes(bytes) => bytes,
            BodyLimit::Payloads(count) => count * payload,
            BodyLimit::Batch => limits.join.max(usual.join).max(4 * payload),
        }
    }

    /// The setting that it grows with.
    pub fn setting(self) -> Option<&'static str> {
        let usual = Limits::default();
        match self {
            BodyLimit::Bytes(_) => None,
            BodyLimit::Payloads(_) => Some(usual.payload().setting),
            BodyLimit::Batch => Some(usual.join().setting),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Required {
    Yes,
    /// Left out it means an object with nothing in it.
    No,
}

/// A good answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub about: &'static str,
    pub content: Content,
}

#[derive(Debug, Clone, Copy)]
pub enum Content {
    None,
    Json(SchemaOf),
    /// Something else, by media type.
    Other(&'static str),
}

impl Answer {
    /// JSON of this type.
    pub const fn json<T: JsonSchema>(status: u16, about: &'static str) -> Answer {
        Answer { status, about, content: Content::Json(SchemaOf::of::<T>()) }
    }

    pub const fn empty(status: u16, about: &'static str) -> Answer {
        Answer { status, about, content: Content::None }
    }

    /// Something of another media type.
    pub const fn other(status: u16, about: &'static str, kind: &'static str) -> Answer {
        Answer { status, about, content: Content::Other(kind) }
    }
}

/// The parameters of a path template, in order.
pub fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}
