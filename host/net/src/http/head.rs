//! Writes the request: old cameras want its length up front, `Host` first, and nothing that keeps the connection open.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};

use super::budget::BudgetGuard;
use super::target::Target;
use super::until::Until;
use super::{BoxError, HttpError, MAX_REQUEST_BODY, Stage};

/// Headers that control the connection, which handlers may not set.
const REFUSED: [HeaderName; 11] = [
    header::CONNECTION,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// Reads the body to its end and writes the head for it. Counts the body as it comes, because the host holds it until it is written.
pub(super) async fn collect(
    target: &Target,
    request: Request<impl http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send>,
    until: Until,
    kept: &mut BudgetGuard<'_>,
) -> Result<Request<Full<Bytes>>, HttpError> {
    let (parts, body) = request.into_parts();
    let body = Box::pin(whole(body, kept));
    let body = until.run(Stage::Request, body).await??;
    let headers = headers(target, &parts.method, &parts.headers, body.len())?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = parts.method;
    *request.uri_mut() = Uri::from(target.path.clone());
    *request.headers_mut() = headers;
    Ok(request)
}

async fn whole(
    body: impl http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    kept: &mut BudgetGuard<'_>,
) -> Result<Bytes, HttpError> {
    let mut body = pin!(Limited::new(body, MAX_REQUEST_BODY));
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                HttpError::Request(format!("its body exceeds {MAX_REQUEST_BODY} bytes"))
            } else {
                HttpError::Request(format!("its body broke off: {error}"))
            }
        })?;
        let data = frame
            .into_data()
            .map_err(|_| HttpError::Request("it has trailers".into()))?;
        kept.add(data.len());
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn headers(
    target: &Target,
    method: &Method,
    given: &HeaderMap,
    length: usize,
) -> Result<HeaderMap, HttpError> {
    let refuse = |text: String| Err(HttpError::Request(text));
    if *method == Method::CONNECT {
        return refuse("CONNECT asks for a tunnel".into());
    }
    if let Some(name) = REFUSED.iter().find(|name| given.contains_key(*name)) {
        return refuse(format!("a handler may not set the header {name}"));
    }
    let lengths = given.get_all(header::CONTENT_LENGTH);
    let right = |value: &HeaderValue| {
        value
            .to_str()
            .is_ok_and(|text| text.trim().parse() == Ok(length))
    };
    if !lengths.iter().all(right) {
        return refuse(format!(
            "its Content-Length is not that of its body, {length}"
        ));
    }

    let mut out = HeaderMap::with_capacity(given.len() + 3);
    let host = HeaderValue::try_from(target.authority())
        .map_err(|error| HttpError::Request(format!("its host: {error}")))?;
    out.insert(header::HOST, host);
    for (name, value) in given {
        if name != header::HOST && name != header::CONTENT_LENGTH {
            out.append(name, value.clone());
        }
    }
    if length != 0 || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        out.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    out.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(out)
}
