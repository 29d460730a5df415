//! The request of an `http` step: compiled once per definition, rendered for each attempt.
//!
//! Values are put where they cannot become anything else: percent-encoded in the URL, one line in a header, JSON in the
//! body. Nothing is sent here, and which headers an engine adds is not known here.

use std::fmt;

use serde_json::Value;

use crate::budget::{Budget, TooCostly};
use crate::definition::HttpRequest;
use crate::expr::{CelPayload, EvaluationError, Variables};
use crate::json::Json;
use crate::limits::Limits;
use crate::shape::Shape;
use crate::template::Template;

/// The longest URL or header that is sent, in bytes.
const LINE_BYTES: usize = 8 << 10;

/// A request with its templates parsed.
#[derive(Debug)]
pub struct RequestTemplate {
    url: Template,
    headers: Vec<(String, Template)>,
    body: Option<Shape>,
    /// The step's input is the body.
    input_is_body: bool,
    reads_input: bool,
    /// The body is sent as it is, not as JSON.
    plain: bool,
}

/// What the templates of a request or a call read.
#[derive(Debug)]
pub struct Given<'a> {
    pub input: &'a Json,
    /// `{id, flow, tenant}`
    pub run: Value,
    /// `{name, attempt, idempotencyKey}`
    pub step: Value,
    pub limits: Limits,
}

impl Given<'_> {
    pub(crate) fn variables(&self, reads_input: bool) -> Variables {
        let input = if reads_input { self.input.clone() } else { Json::null() };
        let [run, step] = [&self.run, &self.step].map(|value| CelPayload::parsed(value.clone()));
        Variables::of([("input", CelPayload::of(input)), ("run", run), ("step", step)])
    }
}

/// A request ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
    /// The body is JSON.
    pub json: bool,
}

/// A value that a request or a call cannot carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderError {
    pub place: String,
    pub problem: String,
    /// `too_costly` where its templates were stopped, or none.
    pub code: Option<&'static str>,
}

impl RenderError {
    pub(crate) fn new(place: String, problem: &EvaluationError) -> RenderError {
        let code = problem.is_too_costly().then_some(TooCostly::CODE);
        RenderError { place, problem: problem.to_string(), code }
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl RequestTemplate {
    pub fn compile(request: &HttpRequest) -> Result<RequestTemplate, String> {
        let url = Template::parse(&request.url).map_err(|problem| format!("the URL {problem}"))?;
        let header = |(name, value): (&String, &String)| match Template::parse(value) {
            Ok(template) => Ok((name.to_ascii_lowercase(), template)),
            Err(problem) => Err(format!("header {name:?} {problem}")),
        };
        let headers = request.headers.iter().map(header).collect::<Result<Vec<_>, _>>()?;
        let body = request.body.as_ref().map(Shape::compile).transpose();
        let body = body.map_err(|problem| format!("the body {problem}"))?;
        let other_type = |(name, value): (&String, &String)| {
            name.eq_ignore_ascii_case("content-type") && !value.to_ascii_lowercase().contains("json")
        };
        let reads_input = url.reads_input()
            || headers.iter().any(|(_, template)| template.reads_input())
            || body.as_ref().is_some_and(Shape::reads_input);
        Ok(RequestTemplate {
            url,
            headers,
            input_is_body: body.is_none() && request.has_body(),
            plain: request.headers.iter().any(other_type) && matches!(request.body, Some(Value::String(_))),
            body,
            reads_input,
        })
    }

    /// Renders it, within what a budget leaves.
    pub fn render(&self, given: &Given<'_>, budget: &Budget) -> Result<Rendered, RenderError> {
        let variables = given.variables(self.reads_input);
        let url = self.url(&variables, budget).map_err(at("the URL"))?;
        let headers = self.headers.iter().map(|(name, template)| {
            let value = template.text(&variables, budget, str::to_owned).and_then(one_line);
            value.map(|value| (name.clone(), value)).map_err(at(&format!("header {name:?}")))
        });
        let headers = headers.collect::<Result<_, _>>()?;
        let body = match &self.body {
            None if self.input_is_body => Some(given.input.get().to_owned()),
            None => None,
            Some(shape) => {
                let value = shape.value(&variables, budget, given.limits.join()).map_err(at("the body"))?;
                Some(match value {
                    Value::String(text) if self.plain => text,
                    value => value.to_string(),
                })
            }
        };
        Ok(Rendered { url, headers, body, json: !self.plain })
    }

    /// An expression that is the whole URL gives it as it is; any other value is encoded, so that it stays where it was put.
    fn url(&self, variables: &Variables, budget: &Budget) -> Result<String, EvaluationError> {
        let url = match self.url.is_one_expression() {
            true => self.url.text(variables, budget, str::to_owned),
            false => self.url.text(variables, budget, encoded),
        };
        let url = url.and_then(one_line)?;
        let path = url.split(['?', '#']).next().unwrap_or_default();
        if path.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err("its path has a segment `.` or `..`".to_owned().into());
        }
        Ok(url)
    }
}

fn at(place: &str) -> impl Fn(EvaluationError) -> RenderError {
    move |problem| RenderError::new(format!("{place} of the request"), &problem)
}

/// What would end a line, or is too long for one, could change the request.
pub(crate) fn one_line(text: String) -> Result<String, EvaluationError> {
    if text.len() > LINE_BYTES {
        return Err(format!("it has {} bytes; the limit is {LINE_BYTES}", text.len()).into());
    }
    if text.contains(|c: char| c.is_control() && c != '\t') {
        return Err("it has a control character".to_owned().into());
    }
    Ok(text)
}

/// Percent-encodes everything but the characters that mean nothing in any part of a URL.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(url: &str) -> HttpRequest {
        HttpRequest::new("POST", url)
    }

    fn render(request: &HttpRequest, input: Value) -> Result<Rendered, RenderError> {
        let input = Json::of(&input).unwrap();
        let run = json!({ "id": "r1", "flow": "f", "tenant": "t" });
        let step = json!({ "name": "s", "attempt": 2, "idempotencyKey": "r1__s" });
        let given = Given { input: &input, run, step, limits: Limits::default() };
        RequestTemplate::compile(request).unwrap().render(&given, &Budget::default())
    }

    #[test]
    fn a_value_in_the_url_cannot_leave_its_place() {
        let request = request("https://a.example/o/${input.id}?q=${input.q}&n=${step.attempt}");
        let url = |id: &str| render(&request, json!({ "id": id, "q": "x&y= z" })).map(|done| done.url);
        assert_eq!(url("7/../b?c#d").unwrap(), "https://a.example/o/7%2F..%2Fb%3Fc%23d?q=x%26y%3D%20z&n=2");
        assert_eq!(url("é@b:9").unwrap(), "https://a.example/o/%C3%A9%40b%3A9?q=x%26y%3D%20z&n=2");
        assert!(url("..").unwrap_err().problem.contains("`..`"));
    }

    #[test]
    fn a_url_can_come_whole_from_the_input() {
        let url = "https://b.example:8080/hook?a=b";
        assert_eq!(render(&request("${input.url}"), json!({ "url": url })).unwrap().url, url);
        let broken = render(&request("${input.url}"), json!({ "url": "https://a\r\nhost: b" }));
        assert!(broken.unwrap_err().problem.contains("control character"));
    }

    #[test]
    fn a_header_stays_one_line() {
        let mut request = request("https://a.example/");
        request.headers.insert("X-Id".to_owned(), "id ${input.id}".to_owned());
        let headers = |id: Value| render(&request, json!({ "id": id })).map(|done| done.headers);
        assert_eq!(headers(json!(7)), Ok(vec![("x-id".to_owned(), "id 7".to_owned())]));
        let error = headers(json!("a\r\nb: c")).unwrap_err();
        assert_eq!(error.to_string(), "header \"x-id\" of the request: it has a control character");
        assert!(headers(json!("x".repeat(9000))).unwrap_err().problem.contains("the limit is 8192"));
    }

    #[test]
    fn a_body_keeps_types_and_its_plain_parts() {
        let mut request = request("https://a.example/");
        request.body = Some(json!({
            "id": "${input.id}", "text": "order ${input.id}", "all": "${input}", "n": [1, "${run.flow}", null]
        }));
        let body = render(&request, json!({ "id": 7 })).unwrap().body.unwrap();
        let expected = json!({ "id": 7, "text": "order 7", "all": { "id": 7 }, "n": [1, "f", null] });
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    }

    #[test]
    fn without_a_body_the_input_is_sent_as_it_is() {
        let done = render(&request("https://a.example/"), json!({ "a": [1] })).unwrap();
        assert_eq!((done.body.as_deref(), done.json), (Some("{\"a\":[1]}"), true));
        assert_eq!(render(&HttpRequest::new("GET", "https://a.example/"), json!(1)).unwrap().body, None);
    }

    #[test]
    fn text_of_another_type_is_sent_as_it_is() {
        let mut request = request("https://a.example/");
        request.body = Some(json!("a=${input.a}"));
        assert_eq!(render(&request, json!({ "a": 1 })).unwrap().body.unwrap(), "\"a=1\"");
        request.headers.insert("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned());
        let done = render(&request, json!({ "a": 1 })).unwrap();
        assert_eq!((done.body.as_deref(), done.json), (Some("a=1"), false));
    }

    #[test]
    fn a_body_that_repeats_a_large_input_is_refused() {
        let mut request = request("https://a.example/");
        request.body = Some(json!(vec!["${input}"; 40]));
        let error = render(&request, json!("x".repeat(1 << 20))).unwrap_err();
        assert_eq!(error.to_string(), "the body of the request: it's over 16777216 bytes (setting max-join)");
    }

    #[test]
    fn templates_that_take_too_much_are_refused_as_too_costly() {
        let long = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, true))))";
        let input = json!({ "l": (0..55).collect::<Vec<_>>(), "s": "x".repeat(1 << 20) });
        let code = |request: &HttpRequest| render(request, input.clone()).unwrap_err().code;
        assert_eq!(code(&request(&format!("https://a.example/${{{long}}}"))), Some("too_costly"));
        let mut grown = request("https://a.example/");
        grown.body = Some(json!(format!("${{{}}}", vec!["input.s"; 100].join("+"))));
        assert_eq!(code(&grown), Some("too_costly"));
        // Each part is within its budget, all of them together aren't.
        let mut many = request("https://a.example/");
        many.body =
            Some(json!(vec![format!("${{{}}}", long.replace("input.l.", "input.l.filter(x, x < 16).")); 20]));
        assert_eq!(code(&many), Some("too_costly"));
        let mut missing = request("https://a.example/${input.lost}");
        missing.body = None;
        assert_eq!(code(&missing), None);
    }
}
