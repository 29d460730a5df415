//! Who may do what: every request has a principal, and every route names the scope that it needs.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, header};
use axum::response::{IntoResponse, Response};
use flowline::core::{Binding, Tenant};
use flowline::store::{Store, StoreError};
use futures_util::StreamExt as _;

use super::App;
use super::audit::{Act, Peer};
use super::cors::Origins;
use super::guesses::WrongTokens;
use super::paths::PathPart;
use super::problem::ApiError;
use super::request::{Arrived, read_ahead};
use super::route::{Handled, Route, TokenScope};
use super::uses::TokenUses;
use super::{audit, codes, events, session};
use crate::token::{self, FoundToken};
use flowline_api::access::TokenRow;

/// The header by which somebody who needs no token names a tenant.
pub const TENANT_HEADER: &str = "flowline-tenant";
/// How long what the store said of a token is believed.
const BELIEVED: Duration = Duration::from_secs(2);
/// Tokens believed at once; beyond it all are asked for again.
const REMEMBERED: usize = 10_000;

pub const UNKNOWN: &str = "the token is unknown, revoked or expired";

/// Somebody who asks.
#[derive(Debug, Clone)]
pub struct Principal {
    pub tenant: Tenant,
    /// For the audit log and for steps that ask who did it.
    pub subject: Arc<str>,
    /// Whether a token says so.
    pub by_token: bool,
    /// Which one.
    pub token_id: Option<Arc<str>>,
    pub scopes: Arc<[TokenScope]>,
    pub roles: Arc<[String]>,
    /// What it is limited to.
    pub binding: Binding,
}

impl Principal {
    /// Whoever reaches a server that asks for no tokens.
    pub fn anyone(tenant: Tenant) -> Principal {
        Principal {
            tenant,
            subject: "anyone".into(),
            by_token: false,
            token_id: None,
            scopes: [TokenScope::Admin].into(),
            roles: [].into(),
            binding: Binding::default(),
        }
    }

    fn of(row: TokenRow) -> Principal {
        Principal {
            tenant: row.tenant,
            subject: row.subject.into(),
            by_token: true,
            token_id: Some(row.id.into()),
            scopes: row.scopes.into(),
            roles: row.roles.into(),
            binding: Binding { flows: row.flows.map(Into::into), queues: row.queues.map(Into::into) },
        }
    }

    pub fn has(&self, scope: TokenScope) -> bool {
        let admin = self.scopes.contains(&TokenScope::Admin);
        match scope {
            // Tokens and the audit log belong to the whole tenant; a bound token could create one that isn't bound.
            TokenScope::Admin => admin && self.binding.is_unbound(),
            // To speak for somebody else is said of a token in so many words.
            TokenScope::OnBehalf => self.scopes.contains(&TokenScope::OnBehalf),
            _ => admin || self.scopes.contains(&scope),
        }
    }
}

/// Whom a server lets in.
#[derive(Debug)]
pub enum Door {
    /// Anybody who reaches the port: a person's own machine.
    Open {
        /// Whoever names no tenant.
        anyone: Principal,
        /// Whether only this machine reaches it: then only requests by its own names, so that no web page elsewhere can send
        /// them. Otherwise, none from web pages of other hosts.
        loopback: bool,
    },
    Tokens(Remembered),
}

/// Tokens looked up recently, by hash. Only good ones: guesses can't displace them.
#[derive(Debug)]
pub struct Remembered {
    known: Mutex<HashMap<String, (Instant, Principal)>>,
    /// Sessions that were good when they were last looked up, by hash. They are looked up again every time.
    sessions: Mutex<HashSet<String>>,
    pub wrong: WrongTokens,
    pub uses: TokenUses,
    /// Held by the one open stream that asks the store; the others use its answer.
    asking: tokio::sync::Mutex<()>,
}

impl Remembered {
    /// Refuses an address that sends more wrong tokens than this.
    pub fn new(wrong_per_minute: usize) -> Remembered {
        let wrong = WrongTokens::new(wrong_per_minute);
        Remembered {
            known: Mutex::default(),
            sessions: Mutex::default(),
            wrong,
            uses: TokenUses::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Lets in a token with this hash, or counts it as a wrong one.
    async fn admit(&self, store: &dyn Store, hash: &str, from: Peer) -> Result<Principal, ApiError> {
        let address = from.0.ip();
        // One that was good a moment ago waits for nobody.
        let is_known = self.lock().contains_key(hash);
        let _turn = if is_known { None } else { self.wrong.turn(address).await };
        match self.find(store, hash).await? {
            FoundToken::Good(principal) => Ok(principal),
            FoundToken::Expired(at) => {
                let expired = ApiError::new(&codes::TOKEN_EXPIRED, format!("the token expired at {at}"));
                Err(self.wrong.count(address, expired))
            }
            FoundToken::Unknown => {
                Err(self.wrong.count(address, ApiError::new(&codes::UNAUTHORIZED, UNKNOWN)))
            }
        }
    }

    /// The hash of the token that a session stands for, or counts it as a wrong one.
    async fn session(
        &self,
        store: &dyn Store,
        (method, headers): (&Method, &HeaderMap),
        cookie: &str,
        from: Peer,
    ) -> Result<String, ApiError> {
        let (address, hash) = (from.0.ip(), token::hash(cookie));
        let is_known = self.sessions().contains(&hash);
        let _turn = if is_known { None } else { self.wrong.turn(address).await };
        let found = session::token_of(store, method, headers, cookie).await?;
        let mut sessions = self.sessions();
        let Some(token) = found else {
            sessions.remove(&hash);
            let over = ApiError::new(&codes::UNAUTHORIZED, "the session has ended; sign in again");
            return Err(self.wrong.count(address, over));
        };
        if !is_known && sessions.len() >= REMEMBERED {
            sessions.clear();
        }
        sessions.insert(hash);
        Ok(token)
    }

    async fn find(&self, store: &dyn Store, hash: &str) -> Result<FoundToken<Principal>, StoreError> {
        let known = self.lock().get(hash).filter(|(at, _)| at.elapsed() < BELIEVED).cloned();
        if let Some((_, principal)) = known {
            return Ok(FoundToken::Good(principal));
        }
        let found = token::find(store, hash).await?;
        let mut remembered = self.lock();
        match found {
            FoundToken::Good(row) => {
                if remembered.len() >= REMEMBERED && !remembered.contains_key(hash) {
                    remembered.clear();
                }
                let principal = Principal::of(row);
                remembered.insert(hash.to_owned(), (Instant::now(), principal.clone()));
                self.uses.note(&principal);
                Ok(FoundToken::Good(principal))
            }
            FoundToken::Expired(at) => {
                remembered.remove(hash);
                Ok(FoundToken::Expired(at))
            }
            FoundToken::Unknown => {
                remembered.remove(hash);
                Ok(FoundToken::Unknown)
            }
        }
    }

    /// Waits until a token is no longer valid. An unavailable store doesn't make it invalid.
    async fn revoked(&self, store: &dyn Store, hash: &str) {
        loop {
            tokio::time::sleep(BELIEVED).await;
            let _turn = self.asking.lock().await;
            if let Ok(FoundToken::Expired(_) | FoundToken::Unknown) = self.find(store, hash).await {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Instant, Principal)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, HashSet<String>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes a request to its handler with its principal and route, or refuses it.
pub async fn check(
    app: &App,
    route: &'static Route,
    values: Vec<PathPart>,
    mut request: Request<Body>,
) -> Response {
    let mut arrived = Arrived { route, values, principal: None, act: None };
    let scopes = route.access.scopes();
    if scopes.is_empty() {
        request.extensions_mut().insert(arrived);
        return (route.handler)(request, app.clone()).await;
    }
    let peer = Peer::of(request.extensions());
    let (principal, token) = match identify(app, request.method(), request.headers(), peer).await {
        Ok(known) => known,
        Err(problem) => return problem.into_response(),
    };
    let audited = audit::is_audited(route);
    let may_act = audited || principal.has(TokenScope::OnBehalf) && events::SENDS.contains(&route.path);
    let act = may_act.then(|| Arc::new(Act::of(&principal, route, request.uri().path(), peer)));
    let Some(scope) = scopes.iter().copied().find(|scope| principal.has(*scope)) else {
        let unbound = if scopes == [TokenScope::Admin] { " that isn't bound to flows or queues" } else { "" };
        let names: Vec<String> = scopes.iter().map(|scope| format!("`{}`", scope.as_str())).collect();
        let detail = format!("this needs a token with scope {}{unbound}", names.join(" or "));
        let problem = ApiError::new(&codes::FORBIDDEN, detail);
        return match act.filter(|_| audited) {
            Some(act) => audit::carried_out(refused(app.clone(), act, problem)).await,
            None => problem.into_response(),
        };
    };
    arrived.principal = Some(principal);
    arrived.act = act.clone();
    request.extensions_mut().insert(arrived);
    match act {
        None => while_good(app.clone(), scope, token, (route.handler)(request, app.clone())).await,
        Some(act) => audit::carried_out(recorded(app.clone(), route, (scope, token), request, act)).await,
    }
}

/// Writes to the audit log what was asked for in vain.
async fn refused(app: App, act: Arc<Act>, problem: ApiError) -> Response {
    act.end(app.unchecked().store(), codes::FORBIDDEN.status).await;
    problem.into_response()
}

/// Does what the audit log is to know of, between the two times that it is written. What is done for somebody else is
/// written when the handler knows for whom.
async fn recorded(
    app: App,
    route: &'static Route,
    (scope, token): (TokenScope, Option<String>),
    request: Request<Body>,
    act: Arc<Act>,
) -> Response {
    let audited = audit::is_audited(route);
    let request = match audited {
        true => intended(&app, request, &act).await,
        false => Ok(request),
    };
    let response = match request {
        Ok(request) => while_good(app.clone(), scope, token, (route.handler)(request, app.clone())).await,
        Err(problem) => problem.into_response(),
    };
    if audited || act.is_for_another() {
        act.end(app.unchecked().store(), response.status().as_u16()).await;
    }
    response
}

/// Writes what is asked for, before it is done.
async fn intended(app: &App, request: Request<Body>, act: &Act) -> Result<Request<Body>, ApiError> {
    let (request, body) = read_ahead(request, app).await?;
    act.asks_by(&body);
    act.begin(app.unchecked().store()).await?;
    Ok(request)
}

/// Ends waits and streams when the token is revoked.
async fn while_good(app: App, scope: TokenScope, token: Option<String>, answer: Handled) -> Response {
    let Some(token) = token else { return answer.await };
    // A worker that waits would be given a job.
    if scope == TokenScope::Work {
        return tokio::select! {
            response = answer => response,
            () = Box::pin(revoked(app.clone(), token)) => ApiError::new(&codes::UNAUTHORIZED, UNKNOWN).into_response(),
        };
    }
    let response = answer.await;
    if !is_stream(&response) {
        return response;
    }
    let revoked = Box::pin(revoked(app.clone(), token));
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(revoked)))
}

async fn revoked(app: App, token: String) {
    match &app.door {
        Door::Tokens(remembered) => remembered.revoked(app.unchecked().store(), &token).await,
        Door::Open { .. } => std::future::pending().await,
    }
}

/// Refuses a token with this hash unless it's good. A server that asks for no tokens takes any.
pub async fn sign_in(app: &App, hash: &str, from: Peer) -> Result<(), ApiError> {
    match &app.door {
        Door::Tokens(remembered) => remembered.admit(app.unchecked().store(), hash, from).await.map(drop),
        Door::Open { .. } => Ok(()),
    }
}

/// Writes when tokens were used, for as long as it's polled.
pub async fn keep_uses(app: &App) {
    match &app.door {
        Door::Tokens(remembered) => remembered.uses.keep(app.unchecked().store()).await,
        Door::Open { .. } => std::future::pending().await,
    }
}

/// Writes the last of it.
pub async fn finish_uses(app: &App) {
    if let Door::Tokens(remembered) = &app.door {
        remembered.uses.finish(app.unchecked().store()).await;
    }
}

/// Whether a response is an event stream.
pub fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The principal, and the hash of its token if tokens are required.
async fn identify(
    app: &App,
    method: &Method,
    headers: &HeaderMap,
    from: Peer,
) -> Result<(Principal, Option<String>), ApiError> {
    match &app.door {
        Door::Tokens(remembered) => {
            let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            let secret =
                given.and_then(|given| given.strip_prefix("Bearer ").or(given.strip_prefix("bearer ")));
            let hash = match (secret, session::cookie(headers)) {
                (Some(secret), _) => token::hash(secret.trim()),
                (None, Some(cookie)) => {
                    remembered.session(app.unchecked().store(), (method, headers), cookie, from).await?
                }
                (None, None) => {
                    return Err(ApiError::new(&codes::UNAUTHORIZED, "send `Authorization: Bearer TOKEN`"));
                }
            };
            let principal = remembered.admit(app.unchecked().store(), &hash, from).await?;
            Ok((principal, Some(hash)))
        }
        Door::Open { anyone, loopback } => {
            is_meant_for_here(headers, &app.origins, *loopback)?;
            let principal = match headers.get(TENANT_HEADER) {
                None => anyone.clone(),
                Some(name) => {
                    let tenant = Tenant::new(name.to_str().unwrap_or_default())
                        .map_err(|error| ApiError::parameter(TENANT_HEADER, error.to_string()))?;
                    Principal { tenant, ..anyone.clone() }
                }
            };
            Ok((principal, None))
        }
    }
}

/// Without tokens, other web pages must not reach the server through the user's browser: such requests have an `Origin`, or a
/// host name that points here (DNS rebinding). What names a server on another address than loopback has isn't known, so there
/// a page must only be of the host that it sends its request to.
fn is_meant_for_here(headers: &HeaderMap, let_in: &Origins, loopback: bool) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    let refuse = |what: &str| {
        Err(ApiError::new(&codes::FORBIDDEN, format!("a server without tokens refuses requests {what}")))
    };
    let host = text(header::HOST).unwrap_or_default();
    if loopback && !is_local(host) {
        return refuse("for a host name other than localhost");
    }
    match text(header::ORIGIN) {
        Some(origin) if let_in.has(origin) => Ok(()),
        Some(origin) => match origin.split_once("://") {
            Some((_, origin)) if loopback && is_local(origin) => Ok(()),
            Some((_, origin)) if !loopback && origin.eq_ignore_ascii_case(host) => Ok(()),
            _ => refuse("from web pages of other origins"),
        },
        None => Ok(()),
    }
}

fn is_local(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use flowline::core::{Json, Time};
    use flowline::store::{Catalog as _, Clock, MemoryStore, NewDocument};
    use flowline_api::access::NewToken;

    use super::*;

    fn peer() -> Peer {
        Peer(SocketAddr::from(([10, 0, 0, 1], 1)))
    }

    #[tokio::test]
    async fn an_expired_token_is_told_so_and_counts_as_a_wrong_one() {
        let clock = Clock::manual(Time::default());
        let store = MemoryStore::new(clock.clone());
        let new = NewToken {
            subject: "ci".to_owned(),
            scopes: vec![TokenScope::Read],
            expires: Some("1m".to_owned()),
            ..NewToken::default()
        };
        let secret = token::create(&store, &Tenant::default(), new).await.unwrap().token;
        clock.advance(Duration::from_secs(60));
        let (remembered, hash) = (Remembered::new(2), token::hash(&secret));
        for code in [&codes::TOKEN_EXPIRED, &codes::TOKEN_EXPIRED, &codes::TOO_MANY_WRONG_TOKENS] {
            let refused = remembered.admit(&store, &hash, peer()).await.unwrap_err();
            assert_eq!(refused.code.code, code.code);
        }
    }

    #[tokio::test]
    async fn a_session_that_was_good_a_moment_ago_waits_for_no_guesses() {
        let store = MemoryStore::new(Clock::system());
        let body = Json::of(&"the hash of a token").unwrap();
        let session = NewDocument::new("sessions", &token::hash("good"), body, None);
        store.put_document(session).await.unwrap();
        let remembered = Remembered::new(1);
        let (method, headers) = (Method::GET, HeaderMap::new());
        let asks = async |cookie: &str| {
            let answer = remembered.session(&store, (&method, &headers), cookie, peer());
            tokio::time::timeout(Duration::from_millis(500), answer).await.ok()
        };
        assert!(asks("good").await.is_some_and(|answer| answer.is_ok()));
        assert!(asks("wrong").await.is_some_and(|answer| answer.is_err()));
        let turn = remembered.wrong.turn(peer().0.ip()).await;
        assert!(turn.is_some(), "the address is over its allowance");
        assert!(asks("good").await.is_some_and(|answer| answer.is_ok()));
        assert!(asks("wrong").await.is_none(), "it waits for its turn");
    }

    #[test]
    fn only_names_of_this_machine_are_local() {
        for local in
            ["localhost", "localhost:7400", "127.0.0.1:7400", "127.1.2.3", "[::1]:7400", "LOCALHOST:1"]
        {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example:7400",
            "10.0.0.1:7400",
            "127.0.0.1.evil:1",
            "[::2]:1",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
