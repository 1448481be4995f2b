//! HTTP routes and access control.

use crate::reader::RunUpdates;
use crate::{SHUTDOWN_TIMEOUT, Token};
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::unfold;
use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use upwash::run::ControlRequest;
use upwash_report::{Viewer, live_page};

/// How many browsers may be connected at a time.
const MAX_VIEWERS: usize = 64;

#[derive(Clone)]
struct ServerState {
    updates: RunUpdates,
    token: Option<Token>,
    viewers: Arc<Semaphore>,
}

/// Serves until the reader has stopped.
pub(crate) async fn serve(listener: TcpListener, updates: RunUpdates, token: Option<Token>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let state = ServerState { updates: updates.clone(), token, viewers: Arc::new(Semaphore::new(MAX_VIEWERS)) };
    let router = Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/control/{name}", post(control))
        .fallback(|| async { (StatusCode::NOT_FOUND, "Not found.\n") })
        .layer(from_fn_with_state(state.clone(), authorize))
        .with_state(state);
    let served = axum::serve(listener, router).with_graceful_shutdown(updates.clone().ended());
    // Do not wait for clients that keep their connection open.
    let limit = async {
        updates.ended().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    tokio::select! {
        _ = served.into_future() => {}
        () = limit => {}
    }
}

/// Runs before every request. Refuses requests without the token or, on a local address, requests that a foreign web
/// page makes from the user's browser.
async fn authorize(State(state): State<ServerState>, request: Request, next: Next) -> Response {
    let allowed = match &state.token {
        Some(token) => request_token(&request).is_some_and(|guess| token.matches(guess)),
        None => has_local_host(request.headers()) && !is_cross_site(&request),
    };
    let mut response = match (allowed, &state.token) {
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
        let message = "Too many browsers are connected to this run. Close one and reload this page.\n";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    };
    // The whole run at once, then a message for every change.
    let start = (state.updates, Viewer::default(), true, permit);
    let messages = unfold(start, |(mut updates, mut viewer, first, permit)| async move {
        if !first {
            updates.wait().await?;
        }
        let (name, content) = updates.next_message(&mut viewer);
        let event = Event::default().event(name).data(content);
        Some((Ok::<_, Infallible>(event), (updates, viewer, false, permit)))
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(10));
    Sse::new(messages).keep_alive(alive).into_response()
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
