//! What a handler gets from a request, checked: the caller, the parameters, the body.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{Request, header};
use flowline::core::time::parse_duration;
use flowline::core::{EventType, Json, Time};
use serde::de::DeserializeOwned;

use super::App;
use super::access::Principal;
use super::audit::Act;
use super::codes;
use super::paths::PathPart;
use super::problem::ApiError;
use super::route::{BodyLimit, Query, QueryKind, Required, Route, path_parameters};
use crate::filter::{MOMENT, moment};

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(30);
/// The longest `wait`.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A request's route and principal, for its handler.
#[derive(Debug, Clone)]
pub struct Arrived {
    pub route: &'static Route,
    /// The values of the path parameters, in order.
    pub values: Vec<PathPart>,
    /// The caller, unless the route is open.
    pub principal: Option<Principal>,
    /// Its entry in the audit log, if it has or may get one.
    pub act: Option<Arc<Act>>,
}

/// The parameters of path and query, checked against what the route declares.
#[derive(Debug)]
pub struct Params {
    path: Vec<(&'static str, String)>,
    query: Vec<(String, String)>,
}

impl Params {
    /// A parameter of the path.
    pub fn path(&self, name: &str) -> &str {
        self.path.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    pub fn duration(&self, name: &str) -> Option<Duration> {
        parse_duration(self.text(name)?)
    }

    pub fn moment(&self, name: &str, now: Time) -> Option<Time> {
        moment(self.text(name)?, now)
    }

    /// The items of a list.
    pub fn list(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name).into_iter().flat_map(|text| text.split(',')).filter(|part| !part.is_empty())
    }
}

impl FromRequestParts<App> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Params, ApiError> {
        let arrived = parts.extensions.get_mut::<Arrived>();
        let arrived = arrived.ok_or_else(|| ApiError::new(&codes::INTERNAL, "the route wasn't recorded"))?;
        let declared = arrived.route.query;
        let names = path_parameters(arrived.route.path);
        let path = names
            .zip(std::mem::take(&mut arrived.values))
            .map(|(name, value)| {
                let no_text =
                    || ApiError::new(&codes::BAD_REQUEST, format!("{name} in the path isn't UTF-8"));
                Ok((name, value.ok_or_else(no_text)?))
            })
            .collect::<Result<_, ApiError>>()?;
        let query = parts.uri.query().unwrap_or_default();
        let query = form_urlencoded::parse(query.as_bytes())
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        let params = Params { path, query };
        params.check(declared)?;
        Ok(params)
    }
}

impl Params {
    fn check(&self, declared: &[Query]) -> Result<(), ApiError> {
        for (at, (name, value)) in self.query.iter().enumerate() {
            let Some(query) = declared.iter().find(|query| query.name == name) else {
                let known: Vec<&str> = declared.iter().map(|query| query.name).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(ApiError::parameter(
                    name,
                    format!("this route has no parameter {name:?}; it has {known}"),
                ));
            };
            if self.query[..at].iter().any(|(other, _)| other == name) {
                return Err(ApiError::parameter(name, format!("{name} is given twice")));
            }
            if let Err(expected) = fits(query.kind, value) {
                return Err(ApiError::parameter(name, format!("{name}: {value:?} isn't {expected}")));
            }
        }
        Ok(())
    }
}

/// Checks a value; the error says what's expected.
fn fits(kind: QueryKind, value: &str) -> Result<(), String> {
    let known = |words: &[&str], value: &str| {
        if words.contains(&value) { Ok(()) } else { Err(format!("one of {}", words.join(", "))) }
    };
    match kind {
        QueryKind::Text if value.contains('\0') => Err("text without NUL".to_owned()),
        QueryKind::Text => Ok(()),
        QueryKind::Number(from, to) => match value.parse::<u64>() {
            Ok(number) if (from..=to).contains(&number) => Ok(()),
            _ => Err(format!("a whole number from {from} to {to}")),
        },
        QueryKind::Flag => known(&["true", "false"], value),
        QueryKind::Duration => match parse_duration(value) {
            Some(duration) if duration <= LONGEST_WAIT => Ok(()),
            _ => Err("a duration (500ms, 30s) of up to 60s".to_owned()),
        },
        QueryKind::Span => match parse_duration(value) {
            Some(duration) if !duration.is_zero() => Ok(()),
            _ => Err("a duration (5m, 1h, 1d)".to_owned()),
        },
        QueryKind::Moment => match moment(value, Time::default()) {
            Some(_) => Ok(()),
            None => Err(MOMENT.to_owned()),
        },
        QueryKind::Label => match value.split_once('=') {
            Some((name, _)) if !name.is_empty() => Ok(()),
            _ => Err("NAME=VALUE".to_owned()),
        },
        QueryKind::OneOf(words) => known(words, value),
        QueryKind::EventTypes => {
            let words: Vec<&str> = EventType::written().map(EventType::as_str).collect();
            value.split(',').filter(|part| !part.is_empty()).try_for_each(|part| known(&words, part))
        }
    }
}

/// A body as JSON of a type.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &App) -> Result<JsonBody<T>, ApiError> {
        let (kind, text) = read_text(request, app).await?;
        if !is_json(&kind) {
            return Err(ApiError::new(
                &codes::UNSUPPORTED_MEDIA_TYPE,
                format!("{kind:?} isn't supported here; send application/json"),
            ));
        }
        from_json(&text).map(JsonBody)
    }
}

/// A body as text, with its media type. A missing body is an empty JSON object.
#[derive(Debug)]
pub struct Text {
    pub kind: String,
    pub text: String,
}

impl FromRequest<App> for Text {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &App) -> Result<Text, ApiError> {
        let (kind, text) = read_text(request, app).await?;
        Ok(Text { kind, text })
    }
}

pub fn is_json(kind: &str) -> bool {
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

/// Reads a JSON body into a type. Errors have a JSON pointer.
pub fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, ApiError> {
    // Before anything recurses over it, and because payloads in it are carried unread.
    Json::check(text)?;
    // A list would be taken for the fields in their order.
    if text.trim_start().starts_with('{')
        && let Ok(fits) = serde_json::from_str(text)
    {
        return Ok(fits);
    }
    Err(misfit::<T>(text))
}

/// Why a text isn't a `T`. Reads it again, more slowly, to find the place.
fn misfit<T: DeserializeOwned>(text: &str) -> ApiError {
    if let Err(error) = Json::parse(text) {
        return error.into();
    }
    if !text.trim_start().starts_with('{') {
        return ApiError::new(&codes::BAD_BODY, "the body isn't an object").at("");
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let read: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
    let Err(error) = read else {
        return ApiError::new(&codes::BAD_BODY, "the body isn't valid").at("");
    };
    let detail = error.inner().to_string();
    let detail = detail.split(" at line ").next().unwrap_or_default();
    ApiError::new(&codes::BAD_BODY, detail).at(&pointer(error.path()))
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let part = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { variant } => format!("/{variant}"),
        Segment::Unknown => String::new(),
    };
    path.iter().map(part).collect()
}

/// Reads the body of a request before its handler does, who gets it all the same.
pub async fn read_ahead(request: Request<Body>, app: &App) -> Result<(Request<Body>, Bytes), ApiError> {
    let (parts, body) = request.into_parts();
    if takes(&parts).is_none() {
        // What comes all the same is nobody's business.
        return Ok((Request::from_parts(parts, body), Bytes::new()));
    }
    let bytes = read_bytes(&parts, body, app).await?;
    Ok((Request::from_parts(parts, Body::from(bytes.clone())), bytes))
}

async fn read_text(request: Request<Body>, app: &App) -> Result<(String, String), ApiError> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind =
        kind.and_then(|kind| kind.split(';').next()).map_or(String::new(), |kind| kind.trim().to_lowercase());
    let bytes = read_bytes(&parts, body, app).await?;
    if bytes.is_empty() {
        return match takes(&parts).map_or(Required::No, |body| body.required) {
            Required::No => Ok(("application/json".to_owned(), "{}".to_owned())),
            Required::Yes => Err(ApiError::new(&codes::BAD_BODY, "the body is missing").at("")),
        };
    }
    let text = String::from_utf8(bytes.into())
        .map_err(|error| ApiError::new(&codes::BAD_BODY, format!("the body isn't UTF-8: {error}")))?;
    Ok((kind, text))
}

/// The body that the route takes.
fn takes(parts: &Parts) -> Option<&'static super::route::Body> {
    parts.extensions.get::<Arrived>().and_then(|arrived| arrived.route.body.as_ref())
}

/// The whole body, up to what its route takes.
async fn read_bytes(parts: &Parts, body: Body, app: &App) -> Result<Bytes, ApiError> {
    let taken = takes(parts).map_or(BodyLimit::Bytes(0), |body| body.limit);
    let limit = taken.bytes(app.unchecked().config().limits);
    let too_large = || {
        let setting = taken.setting().map_or_else(String::new, |name| format!(" (setting {name})"));
        ApiError::new(
            &codes::TOO_LARGE,
            format!("the body is larger than {limit} bytes, the limit here{setting}"),
        )
    };
    let length =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > limit) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIME, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::new(&codes::BAD_REQUEST, format!("the body ended early: {error}"))),
        Err(_) => Err(ApiError::new(&codes::REQUEST_TIMEOUT, "the body took over 30s to arrive")),
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
