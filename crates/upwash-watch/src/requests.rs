//! HTTP routes and access control.

use crate::connections::{self, Capacity, Connection};
use crate::reader::RunUpdates;
use crate::{MAX_VIEWERS, SHUTDOWN_TIMEOUT, Token};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::stream::unfold;
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use upwash::run::ControlRequest;
use upwash_report::{Viewer, live_page};

/// With more viewers than this, each receives at most one update per [`CROWD_INTERVAL`].
const CROWD: usize = 8;
const CROWD_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct ServerState {
    updates: RunUpdates,
    token: Option<Token>,
    viewers: Arc<Semaphore>,
    /// How many viewers there may be.
    capacity: usize,
}

/// Serves until the reader has stopped.
pub(crate) async fn serve(listener: TcpListener, updates: RunUpdates, token: Option<Token>, capacity: Capacity) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let viewers = MAX_VIEWERS.min(capacity.admitted);
    let state =
        ServerState { updates: updates.clone(), token, viewers: Arc::new(Semaphore::new(viewers)), capacity: viewers };
    let router = Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/control/{name}", post(control))
        .fallback(|| async { (StatusCode::NOT_FOUND, "Not found.\n") })
        .layer(from_fn_with_state(state.clone(), authorize))
        .with_state(state);
    connections::serve(listener, router, capacity, updates.ended(), SHUTDOWN_TIMEOUT).await;
}

/// Runs before every request. Refuses requests without the token or, on a local address, requests that a foreign web
/// page makes from the user's browser.
async fn authorize(
    State(state): State<ServerState>,
    Extension(connection): Extension<Connection>,
    request: Request,
    next: Next,
) -> Response {
    let allowed = match &state.token {
        Some(token) => request_token(&request).is_some_and(|guess| token.matches(guess)),
        None => has_local_host(request.headers()) && !is_cross_site(&request),
    };
    let mut response = match (allowed, &state.token) {
        (true, _) if !connection.admit() => too_many(),
        (true, _) => next.run(request).await,
        (false, Some(_)) => {
            let message = "The token is missing or wrong: open the complete address that `upwash` printed.\n";
            (StatusCode::UNAUTHORIZED, message).into_response()
        }
        (false, None) => {
            let message = "Only browsers on this machine have access: open this page as localhost or 127.0.0.1.\n";
            (StatusCode::FORBIDDEN, message).into_response()
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The token of a request: from its URL, where a browser sends it, or from the `Authorization` header.
fn request_token(request: &Request) -> Option<&str> {
    let header = request.headers().get(header::AUTHORIZATION);
    let bearer = header.and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    let mut parts = request.uri().query().unwrap_or("").split('&');
    bearer.or_else(|| parts.find_map(|part| part.strip_prefix("token=")))
}

/// Whether the `Host` header names this machine. This prevents DNS rebinding: a foreign name that resolves to a
/// loopback address is refused.
fn has_local_host(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let name = host.map(|host| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    });
    name.is_some_and(|name| {
        let ip = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || ip.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    })
}

/// Whether the browser says that a page of another site makes this request. Links to the page itself are allowed.
fn is_cross_site(request: &Request) -> bool {
    let site = request.headers().get("sec-fetch-site");
    request.uri().path() != "/" && site.is_some_and(|site| site == "cross-site")
}

async fn page(State(state): State<ServerState>) -> Html<String> {
    Html(live_page(&state.updates.name()))
}

async fn events(State(state): State<ServerState>) -> Response {
    let Ok(permit) = state.viewers.clone().try_acquire_owned() else {
        return too_many();
    };
    // The whole run at once, then a message for every change.
    let stream = ViewerStream { state, viewer: Viewer::default(), is_first: true, _permit: permit };
    let messages = unfold(stream, |mut stream| async move {
        let (name, content) = stream.next().await?;
        let event = Event::default().event(name).data(content);
        Some((Ok::<_, Infallible>(event), stream))
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(10));
    Sse::new(messages).keep_alive(alive).into_response()
}

/// The messages to one viewer.
struct ViewerStream {
    state: ServerState,
    viewer: Viewer,
    is_first: bool,
    _permit: OwnedSemaphorePermit,
}

impl ViewerStream {
    /// The next message; `None` when the reader has stopped.
    async fn next(&mut self) -> Option<(&'static str, String)> {
        let updates = &mut self.state.updates;
        if !std::mem::replace(&mut self.is_first, false) {
            if self.state.capacity - self.state.viewers.available_permits() > CROWD {
                let _ = tokio::time::timeout(CROWD_INTERVAL, updates.clone().ended()).await;
            }
            updates.wait().await?;
        }
        Some(updates.next_message(&mut self.viewer))
    }
}

fn too_many() -> Response {
    let message = "Too many browsers are connected to this run. Close one and reload this page.\n";
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}

async fn control(
    State(state): State<ServerState>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> (StatusCode, String) {
    // A page of another site cannot send this header without a CORS preflight, which fails.
    if !headers.contains_key("x-upwash") {
        let message = "The header `x-upwash` is missing.\n";
        return (StatusCode::FORBIDDEN, message.into());
    }
    let Ok(request) = name.parse::<ControlRequest>() else {
        let names = ControlRequest::ALL.map(ControlRequest::name).join(", ");
        let message = format!("Unknown control request: use one of {names}.\n");
        return (StatusCode::NOT_FOUND, message);
    };
    match state.updates.request(request) {
        Ok(()) => (StatusCode::ACCEPTED, String::new()),
        Err(message) => (StatusCode::CONFLICT, message),
    }
}
