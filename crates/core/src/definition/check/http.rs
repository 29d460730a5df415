//! The request of an `http` step: its method, URL, headers, body and secret, and the templates in them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::expressions::ExpressionUse;
use super::parts::Parts;
use crate::definition::place::Place;
use crate::definition::{HttpRequest, METHODS};
use crate::template::{Piece, split};

/// Headers that say how the message is carried, or that the engine writes.
const RESERVED: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// How the names of other headers begin that the engine writes.
const RESERVED_PREFIXES: [&str; 2] = ["flowline-", "webhook-"];

impl Parts {
    pub(super) fn http(&mut self, who: &str, request: &HttpRequest, place: &Place) {
        let method = request.method.to_ascii_lowercase();
        if !METHODS.contains(&method.as_str()) || request.method != method.to_ascii_uppercase() {
            let message = format!("{who} uses the HTTP method {:?}, which isn't supported", request.method);
            self.error("bad-http", place.clone(), message, "use GET, POST, PUT, PATCH or DELETE");
        }
        self.url(who, request, place.key(&method));
        self.headers(who, request, &place.key("headers"));
        if let Some(body) = &request.body {
            if request.method == "GET" {
                let message = format!("{who} sends a GET request, which has no body");
                self.error("bad-http", place.key("body"), message, "remove `body`, or use `post`");
            }
            self.shape("the body", who, body, place.key("body"));
        }
        if let Some(name) = &request.secret
            && (name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
        {
            let message = format!("{name:?}, the secret of {who}, isn't a valid name");
            let help = "use letters, digits and '_': `secret: STOCK` is read from FLOWLINE_SECRET_STOCK";
            self.error("bad-name", place.key("secret"), message, help);
        }
    }

    fn url(&mut self, who: &str, request: &HttpRequest, place: Place) {
        let Some(pieces) = self.template("the URL", who, &request.url, &place) else { return };
        if let [Piece::Expression(_)] = pieces[..] {
            return;
        }
        // A value is encoded where it is put, so that it is like a letter.
        let text = pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text,
            Piece::Expression(_) => "x",
        });
        let text: String = text.collect();
        let rest = text.strip_prefix("https://").or(text.strip_prefix("http://"));
        let fine = |rest: &str| {
            !rest.is_empty()
                && !rest.starts_with(['/', '?', '#'])
                && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        if !rest.is_some_and(fine) {
            let message = format!("{:?} isn't a URL that {who} can call", request.url);
            self.error("bad-url", place, message, "use a full URL such as https://stock.example/reserve");
        } else if rest
            .is_some_and(|rest| rest.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@')))
        {
            let message = format!("the URL of {who} contains a user name");
            self.error("bad-url", place, message, "send credentials in a header");
        }
    }

    fn headers(&mut self, who: &str, request: &HttpRequest, place: &Place) {
        let mut seen = BTreeSet::new();
        for (name, value) in &request.headers {
            let at = place.key(name);
            let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            let lower = name.to_ascii_lowercase();
            if name.is_empty()
                || !name.bytes().all(token)
                || value.contains(|c: char| c.is_control() && c != '\t')
            {
                let message = format!("{who} has a header {name:?} that HTTP doesn't allow");
                let help = "names are letters, digits and '-'; values are one line";
                self.error("bad-http", at, message, help);
            } else if RESERVED.contains(&lower.as_str())
                || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
            {
                let message = format!("{who} can't set the header {name:?}");
                let help = "remove it: the engine or the HTTP connection sets it";
                self.error("reserved-header", at, message, help);
            } else if !seen.insert(lower) {
                let message = format!("{who} sets the header {name:?} twice");
                self.error("bad-http", at, message, "header names ignore case; keep one of them");
            } else {
                self.template(&format!("the header {name:?}"), who, value, &at);
            }
        }
    }

    /// Judges the templates in a JSON value.
    pub(super) fn shape(&mut self, what: &str, who: &str, value: &Value, place: Place) {
        match value {
            Value::String(text) => _ = self.template(what, who, text, &place),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, item)| self.shape(what, who, item, place.index(i)));
            }
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| self.shape(what, who, value, place.key(key)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Judges every expression of a template; its pieces, if it can be split.
    pub(super) fn template<'a>(
        &mut self,
        what: &str,
        who: &str,
        text: &'a str,
        place: &Place,
    ) -> Option<Vec<Piece<'a>>> {
        let pieces = match split(text) {
            Ok(pieces) => pieces,
            Err(problem) => {
                let help = "close it with `}`, or write `$${` for a plain `${`";
                self.error("bad-expression", place.clone(), format!("{what} of {who} {problem}"), help);
                return None;
            }
        };
        for piece in &pieces {
            if let Piece::Expression(expression) = piece {
                let what = format!("the expression `{expression}` in {what} of {who}");
                self.expression(&what, expression, ExpressionUse::Template, place.clone());
            }
        }
        Some(pieces)
    }
}
