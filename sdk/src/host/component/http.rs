//! HTTP requests on `wasi:http`.

use std::rc::Rc;

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingResponse, Method, OutgoingBody, OutgoingRequest, RequestOptions,
    Scheme, http_error_code,
};
use wasip2::io::streams::StreamError;

use super::reactor::{Reactor, nanoseconds};
use crate::http::{Request, Response, Target};
use crate::net::Error;

/// Maximum number of bytes read from a body at once.
const PIECE: usize = 64 << 10;

pub async fn send(reactor: &Reactor, request: Request) -> Result<Response, Error> {
    let target = Target::parse(&request.url)?;
    let (outgoing, body) = outgoing(&request, &target)?;
    let options = RequestOptions::new();
    let limit = Some(nanoseconds(request.limit));
    let _ = options.set_connect_timeout(limit);
    let _ = options.set_first_byte_timeout(limit);
    let _ = options.set_between_bytes_timeout(limit);

    let failed = |code| error(code, &request, &target);
    let future = handle(outgoing, Some(options)).map_err(failed)?;
    if let Some(body) = body {
        write(reactor, body, &request.body).await;
    }
    let ready = Rc::new(future.subscribe());
    let response = loop {
        match future.get() {
            Some(Ok(response)) => break response.map_err(failed)?,
            Some(Err(())) => return Err(Error::Closed),
            None => reactor.ready(&ready).await,
        }
    };
    let status = response.status();
    let headers = headers(&response);
    let body = read(reactor, &response, request.max_body).await;
    let body = body.map_err(|why| why.map_or(Error::Closed, failed))?;
    if body.len() > request.max_body {
        return Err(Error::TooLarge(request.max_body));
    }
    Ok(Response {
        status,
        headers,
        body,
    })
}

/// Creates the request for the host, and its body if it has one.
fn outgoing(
    request: &Request,
    target: &Target<'_>,
) -> Result<(OutgoingRequest, Option<OutgoingBody>), Error> {
    let fields: Vec<_> = request
        .fields()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into_bytes()))
        .collect();
    let refused = |what: &str| Error::Other(format!("{what} of {:?} is not accepted", request.url));
    let fields = Fields::from_list(&fields).map_err(|_| refused("a header"))?;
    let outgoing = OutgoingRequest::new(fields);
    let scheme = if target.tls {
        Scheme::Https
    } else {
        Scheme::Http
    };
    outgoing
        .set_method(&Method::Other(request.method.clone()))
        .map_err(|()| refused("the method"))?;
    outgoing
        .set_scheme(Some(&scheme))
        .map_err(|()| refused("the scheme"))?;
    outgoing
        .set_authority(Some(target.authority))
        .map_err(|()| refused("the host"))?;
    outgoing
        .set_path_with_query(Some(&target.path_with_query))
        .map_err(|()| refused("the path"))?;
    let body = if request.body.is_empty() {
        None
    } else {
        Some(outgoing.body().map_err(|()| refused("the body"))?)
    };
    Ok((outgoing, body))
}

/// Writes the body. An error shows up in the response.
async fn write(reactor: &Reactor, body: OutgoingBody, mut bytes: &[u8]) {
    let Ok(stream) = body.write() else {
        return;
    };
    let ready = Rc::new(stream.subscribe());
    while !bytes.is_empty() {
        let Ok(permitted) = stream.check_write() else {
            break;
        };
        if permitted == 0 {
            reactor.ready(&ready).await;
            continue;
        }
        let permitted = usize::try_from(permitted).unwrap_or(usize::MAX);
        let (now, later) = bytes.split_at(permitted.min(bytes.len()));
        if stream.write(now).is_err() {
            break;
        }
        bytes = later;
    }
    drop(ready);
    drop(stream);
    if bytes.is_empty() {
        let _ = OutgoingBody::finish(body, None);
    }
}

fn headers(response: &IncomingResponse) -> Vec<(String, String)> {
    let entries = response.headers().entries().into_iter();
    let headers = entries.map(|(mut name, value)| {
        name.make_ascii_lowercase();
        (name, String::from_utf8_lossy(&value).into_owned())
    });
    headers.collect()
}

/// Reads the body, up to one byte more than `max`.
async fn read(
    reactor: &Reactor,
    response: &IncomingResponse,
    max: usize,
) -> Result<Vec<u8>, Option<ErrorCode>> {
    let body = response.consume().map_err(|()| None)?;
    let stream = body.stream().map_err(|()| None)?;
    let ready = Rc::new(stream.subscribe());
    let mut bytes = Vec::new();
    while bytes.len() <= max {
        let piece = PIECE.min((max - bytes.len()).saturating_add(1));
        match stream.read(u64::try_from(piece).unwrap_or(u64::MAX)) {
            Ok(piece) if piece.is_empty() => reactor.ready(&ready).await,
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(why)) => return Err(http_error_code(&why)),
        }
    }
    Ok(bytes)
}

fn error(code: ErrorCode, request: &Request, target: &Target<'_>) -> Error {
    match code {
        ErrorCode::HttpRequestDenied => Error::Denied(format!("http {}", target.authority)),
        ErrorCode::DnsTimeout
        | ErrorCode::ConnectionTimeout
        | ErrorCode::ConnectionReadTimeout
        | ErrorCode::ConnectionWriteTimeout
        | ErrorCode::HttpResponseTimeout => Error::TimedOut,
        ErrorCode::DnsError(why) => {
            let why = why.rcode.unwrap_or_else(|| "no such name".to_owned());
            Error::Name(format!("{:?}: {why}", target.authority))
        }
        ErrorCode::DestinationUnavailable => Error::Unreachable,
        ErrorCode::ConnectionRefused => Error::Refused,
        ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete => Error::Closed,
        ErrorCode::HttpResponseBodySize(_) => Error::TooLarge(request.max_body),
        ErrorCode::InternalError(Some(why)) => Error::Other(why),
        ErrorCode::ConnectionLimitReached => Error::Other("too many connections".to_owned()),
        // The agent has its own texts, as `InternalError`. The names of the variants alone would add 4 KB to the component.
        _ => Error::Other("the request failed".to_owned()),
    }
}
