//! What browsers ask for, and who may ask.

use crate::reader::RunUpdates;
use crate::{FAREWELL, Token};
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

/// Those who may watch at a time.
const VIEWERS: usize = 64;

#[derive(Clone)]
struct ServerState {
    news: RunUpdates,
    token: Option<Token>,
    viewers: Arc<Semaphore>,
}

/// Serves until nothing more will come.
pub(crate) async fn serve(listener: TcpListener, news: RunUpdates, token: Option<Token>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let state = ServerState { news: news.clone(), token, viewers: Arc::new(Semaphore::new(VIEWERS)) };
    let router = Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/control/{what}", post(control))
        .fallback(|| async { (StatusCode::NOT_FOUND, "There is nothing here.\n") })
        .layer(from_fn_with_state(state.clone(), admit))
        .with_state(state);
    let served = axum::serve(listener, router).with_graceful_shutdown(news.clone().ended());
    // Someone who does not close its connection is not waited for.
    let limit = async {
        news.ended().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        _ = served.into_future() => {}
        () = limit => {}
    }
}

/// Before every request: who has no token is refused, and so are other people's web pages that run in a browser here.
async fn admit(State(state): State<ServerState>, request: Request, next: Next) -> Response {
    let allowed = match &state.token {
        Some(token) => given(&request).is_some_and(|guess| token.is(guess)),
        None => is_for_this_machine(request.headers()) && !is_from_elsewhere(&request),
    };
    let mut response = match (allowed, &state.token) {
        (true, _) => next.run(request).await,
        (false, Some(_)) => {
            let what = "This needs the token that `upwash` has printed: open the address as it stands there.\n";
            (StatusCode::UNAUTHORIZED, what).into_response()
        }
        (false, None) => {
            let what = "This is for browsers on the same machine: open it as localhost or 127.0.0.1.\n";
            (StatusCode::FORBIDDEN, what).into_response()
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

/// The token of a request: in its address, where a browser has it, or in a header.
fn given(request: &Request) -> Option<&str> {
    let header = request.headers().get(header::AUTHORIZATION);
    let bearer = header.and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("Bearer "));
    let mut parts = request.uri().query().unwrap_or("").split('&');
    bearer.or_else(|| parts.find_map(|part| part.strip_prefix("token=")))
}

/// A name that someone else's server has made to mean this machine is none of its own.
fn is_for_this_machine(headers: &HeaderMap) -> bool {
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

/// What a page of someone else's asks for, as browsers say; but anyone may have a link to the page itself.
fn is_from_elsewhere(request: &Request) -> bool {
    let site = request.headers().get("sec-fetch-site");
    request.uri().path() != "/" && site.is_some_and(|site| site == "cross-site")
}

async fn page(State(state): State<ServerState>) -> Html<String> {
    Html(live_page(&state.news.name()))
}

async fn events(State(state): State<ServerState>) -> Response {
    let Ok(seat) = state.viewers.clone().try_acquire_owned() else {
        let what = "Too many watch this run already.\n";
        return (StatusCode::SERVICE_UNAVAILABLE, what).into_response();
    };
    // All that there is at once, then whenever there is something new.
    let start = (state.news, Viewer::default(), true, seat);
    let messages = unfold(start, |(mut news, mut viewer, first, seat)| async move {
        if !first {
            news.wait().await?;
        }
        let (name, content) = news.tell(&mut viewer);
        let event = Event::default().event(name).data(content);
        Some((Ok::<_, Infallible>(event), (news, viewer, false, seat)))
    });
    let alive = KeepAlive::new().interval(Duration::from_secs(10));
    Sse::new(messages).keep_alive(alive).into_response()
}

async fn control(
    State(state): State<ServerState>,
    Path(what): Path<String>,
    headers: HeaderMap,
) -> (StatusCode, String) {
    // A header that a page from elsewhere cannot send without being allowed to.
    if !headers.contains_key("x-upwash") {
        let what = "The header `x-upwash` is missing.\n";
        return (StatusCode::FORBIDDEN, what.into());
    }
    let Ok(request) = what.parse::<ControlRequest>() else {
        let names = ControlRequest::ALL.map(ControlRequest::name).join(", ");
        let what = format!("A control request is one of {names}.\n");
        return (StatusCode::NOT_FOUND, what);
    };
    match state.news.request(request) {
        Ok(()) => (StatusCode::ACCEPTED, String::new()),
        Err(why) => (StatusCode::CONFLICT, why),
    }
}
