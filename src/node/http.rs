//! `/metrics` for Prometheus and `/health` for load balancers and people, over HTTP/1 on an address of their own.

use super::metrics;
use super::state::State;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Connections at one time: a few scrapers.
pub const MAX_CONNECTIONS: usize = 32;

/// Answers one request.
pub fn answer<B>(state: &Arc<State>, request: &Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let reply = |status: StatusCode, kind: &'static str, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
        response
    };
    const TEXT: &str = "text/plain; charset=utf-8";
    if request.method() != Method::GET {
        return Ok(reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is served here\n".into()));
    }
    Ok(match request.uri().path() {
        "/metrics" => reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics::text(state)),
        "/health" if state.draining.load(Ordering::Relaxed) => {
            reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n".into())
        }
        "/health" => reply(StatusCode::OK, TEXT, "serving\n".into()),
        _ => reply(StatusCode::NOT_FOUND, TEXT, "/metrics and /health are served here\n".into()),
    })
}
