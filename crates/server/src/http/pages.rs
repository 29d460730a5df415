//! Pages for people: the API documentation, and a page per problem code. Plain HTML with one style sheet: nothing is loaded
//! from elsewhere, and there are no scripts.

use std::fmt::Write as _;

use axum::http::header;
use axum::response::{Html, IntoResponse, Redirect, Response};

use super::codes::{self, Code};
use super::problem::ApiError;
use super::request::Params;
use super::route::{Answer, Content, Handling, Route, RouteAccess, handler};
use super::routes;

const STYLE: &str = include_str!("style.css");
/// Nothing but our own style sheet.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const fn page(
    path: &'static str,
    summary: &'static str,
    kind: &'static [Answer],
    handler: Handling,
) -> Route {
    Route::get(path, RouteAccess::Open, summary, handler).answers(kind)
}

const HTML: &[Answer] = &[Answer::other(200, "A page.", "text/html")];
const CSS: &[Answer] = &[Answer::other(200, "A style sheet.", "text/css")];
const ELSEWHERE: &[Answer] = &[Answer::empty(307, "To /ui/.")];

pub const ROUTES: &[Route] = &[
    page("/", "Go to the console", ELSEWHERE, handler!(to_console)),
    page("/docs", "Read the API documentation", HTML, handler!(docs)),
    page("/docs/style.css", "Get the style sheet of the documentation", CSS, handler!(style)),
    page("/errors", "List the problem codes", HTML, handler!(errors)),
    page("/errors/{code}", "Read about a problem code", HTML, handler!(problem))
        .problems(&[&codes::NOT_FOUND]),
];

async fn to_console() -> Redirect {
    Redirect::temporary("/ui/")
}

async fn docs() -> Response {
    html("Flowline API", &api())
}

async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response()
}

async fn errors() -> Response {
    html("Problems", &problems())
}

async fn problem(params: Params) -> Result<Response, ApiError> {
    let code = params.path("code");
    let code = Code::find(code)
        .ok_or_else(|| ApiError::new(&codes::NOT_FOUND, format!("there is no problem {code:?}")))?;
    Ok(html(code.code, &about(code)))
}

fn html(title: &str, body: &str) -> Response {
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title><link rel=\"stylesheet\" href=\"/docs/style.css\"></head><body><main>{body}</main></body></html>",
        escape(title)
    );
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], Html(page)).into_response()
}

/// The API, a section per route.
fn api() -> String {
    let mut page = String::from(
        "<h1>Flowline API</h1><p>Also available as <a href=\"/openapi.json\">OpenAPI 3.1</a>. \
         For errors, see <a href=\"/errors\">problem codes</a>.</p>",
    );
    for route in routes() {
        let scopes: Vec<String> =
            route.access.scopes().iter().map(|scope| format!("<code>{}</code>", scope.as_str())).collect();
        let scope = match route.access {
            RouteAccess::Open => "no token needed".to_owned(),
            _ => format!("scope {}", scopes.join(" or ")),
        };
        let _ = write!(
            page,
            "<section><h2><span class=\"verb\">{}</span> {}</h2><p><strong>{}</strong>, {scope}. {}</p>",
            route.verb.as_str().to_uppercase(),
            escape(route.path),
            escape(route.summary),
            escape(route.about),
        );
        if !route.query.is_empty() {
            page.push_str("<table><tr><th>parameter</th><th></th></tr>");
            for query in route.query {
                let _ = write!(
                    page,
                    "<tr><td><code>{}</code></td><td>{}</td></tr>",
                    query.name,
                    escape(query.about)
                );
            }
            page.push_str("</table>");
        }
        page.push_str("<table><tr><th>answer</th><th></th></tr>");
        for answer in route.answers {
            let what = match answer.content {
                Content::None => String::new(),
                Content::Json(schema) => format!("<code>{}</code> ", (schema.name)()),
                Content::Other(kind) => format!("<code>{kind}</code> "),
            };
            let _ =
                write!(page, "<tr><td>{}</td><td>{what}{}</td></tr>", answer.status, escape(answer.about));
        }
        for code in route.problems {
            let _ = write!(page, "<tr><td>{}</td><td>{}</td></tr>", code.status, link(code));
        }
        page.push_str("</table></section>");
    }
    page
}

fn problems() -> String {
    let mut page = String::from("<h1>Problems</h1><table><tr><th>status</th><th>code</th><th></th></tr>");
    for code in codes::ALL {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            code.status,
            link(code),
            escape(code.title)
        );
    }
    page + "</table>"
}

fn about(code: &Code) -> String {
    format!(
        "<h1>{}</h1><p>Status {}, code <code>{}</code>.</p><p>{}</p><p><a href=\"/errors\">All problem codes</a></p>",
        escape(code.title),
        code.status,
        code.code,
        escape(code.about)
    )
}

fn link(code: &Code) -> String {
    format!("<a href=\"/errors/{0}\">{0}</a>", code.code)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
