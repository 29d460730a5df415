//! Finds the route of a request, by path and then by method.

use std::borrow::Cow;

use axum::http::Method;
use percent_encoding::percent_decode_str;

use super::route::{Route, Verb};
use super::routes;

/// Every route, by path template.
#[derive(Debug, Clone)]
pub struct Paths(matchit::Router<Vec<&'static Route>>);

/// The result of a lookup.
#[derive(Debug)]
pub enum RouteMatch {
    /// The route, and the values of its path parameters in order.
    Route(&'static Route, Vec<PathPart>),
    /// The path has routes, but none for this method.
    OtherMethod(Vec<&'static Route>),
    Nothing,
}

/// A decoded part of a path; `None` if it isn't UTF-8.
pub type PathPart = Option<String>;

impl Paths {
    /// Fails if two templates conflict.
    pub fn new() -> Result<Paths, matchit::InsertError> {
        let mut paths: Vec<(&str, Vec<&Route>)> = Vec::new();
        for route in routes() {
            match paths.iter_mut().find(|(path, _)| *path == route.path) {
                Some((_, routes)) => routes.push(route),
                None => paths.push((route.path, vec![route])),
            }
        }
        let mut router = matchit::Router::new();
        paths.into_iter().try_for_each(|(path, routes)| router.insert(path, routes))?;
        Ok(Paths(router))
    }

    /// HEAD goes to the route for GET.
    pub fn find(&self, method: &Method, path: &str) -> RouteMatch {
        let Ok(found) = self.0.at(path) else { return RouteMatch::Nothing };
        let verb = match *method {
            Method::GET | Method::HEAD => Some(Verb::Get),
            Method::POST => Some(Verb::Post),
            Method::PUT => Some(Verb::Put),
            Method::DELETE => Some(Verb::Delete),
            _ => None,
        };
        match found.value.iter().find(|route| Some(route.verb) == verb) {
            Some(route) => {
                RouteMatch::Route(route, found.params.iter().map(|(_, raw)| unescape(raw)).collect())
            }
            None => RouteMatch::OtherMethod(found.value.clone()),
        }
    }
}

/// Decodes the `%` escapes in a part of a path.
fn unescape(raw: &str) -> PathPart {
    percent_decode_str(raw).decode_utf8().ok().map(Cow::into_owned)
}

/// Any text as one part of a path.
pub fn part(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_path_stays_one_part() {
        assert_eq!(part("a b/c?d+e"), "a%20b%2Fc%3Fd%2Be");
        assert_eq!(part("fulfil-order_1.x"), "fulfil-order_1.x");
    }

    fn found(method: Method, path: &str) -> (&'static str, Vec<PathPart>) {
        match Paths::new().unwrap().find(&method, path) {
            RouteMatch::Route(route, values) => (route.path, values),
            RouteMatch::OtherMethod(routes) => (routes[0].verb.as_str(), Vec::new()),
            RouteMatch::Nothing => ("", Vec::new()),
        }
    }

    #[test]
    fn a_path_leads_to_its_route_with_what_it_names() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(found(Method::GET, "/v1/runs/r1"), ("/v1/runs/{run}", vec![some("r1")]));
        assert_eq!(found(Method::POST, "/v1/runs/batch"), ("/v1/runs/batch", vec![]));
        assert_eq!(
            found(Method::GET, "/v1/runs/r1/receipts/e%2F%C3%a9"),
            ("/v1/runs/{run}/receipts/{event}", vec![some("r1"), some("e/é")])
        );
        assert_eq!(found(Method::HEAD, "/livez"), ("/livez", vec![]));
        assert_eq!(found(Method::DELETE, "/livez"), ("get", vec![]), "what is there instead");
        for nowhere in ["", "/v1/runs/", "/v1/runs/r1/", "/v1//runs", "/V1/runs", "/v1/runs/a/b/c/d"] {
            assert_eq!(found(Method::GET, nowhere).0, "", "{nowhere}");
        }
    }

    #[test]
    fn escapes_are_taken_out_and_what_is_no_text_is_none() {
        assert_eq!(unescape("a%20b%7B%7d"), Some("a b{}".to_owned()));
        assert_eq!(unescape("100%"), Some("100%".to_owned()));
        assert_eq!(unescape("%zz%4"), Some("%zz%4".to_owned()));
        assert_eq!(unescape("%ff"), None);
    }

    #[test]
    fn every_route_is_found_by_its_own_path() {
        for route in routes() {
            let method = route.verb.as_str().to_uppercase().parse().unwrap();
            assert_eq!(found(method, &route.path.replace(['{', '}'], "")).0, route.path);
        }
    }
}
