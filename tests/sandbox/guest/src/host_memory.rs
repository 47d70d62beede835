//! Makes the host allocate memory for the guest.

use std::hint::black_box;
use std::mem::forget;

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{Fields, Method, OutgoingBody, OutgoingRequest, OutgoingResponse};
use wasip2::io::streams::OutputStream;

/// Nearly the number of bytes that one call may make the host read.
const LARGE: usize = 8 << 20;
/// Number of requests that keep such a text.
const TIMES: usize = 96;
/// Nearly the number of handles that a guest may have.
const MANY: usize = 1350;

/// Runs the action; returns false if it is not known.
pub fn run(action: &str) -> bool {
    match action {
        "keep-methods" => {
            let method = Method::Other("x".repeat(LARGE));
            requests(TIMES, |request| {
                let _ = request.set_method(&method);
            });
        }
        "keep-authorities" => {
            let authority = "x".repeat(LARGE);
            requests(TIMES, |request| {
                let _ = request.set_authority(Some(&authority));
            });
        }
        "keep-paths" => {
            let path = format!("/{}", "x".repeat(60_000));
            requests(3 * MANY, |request| {
                let _ = request.set_path_with_query(Some(&path));
            });
        }
        "keep-fields" => (0..3 * MANY).for_each(|_| forget(fields())),
        "keep-some-fields" => (0..1000).for_each(|_| forget(fields())),
        "keep-copies" => {
            let fields = fields();
            (0..3 * MANY).for_each(|_| forget(fields.clone()));
        }
        "keep-bodies" => requests(MANY, |request| {
            if let Ok(body) = request.body() {
                forget(write(body));
            }
        }),
        "keep-responses" => (0..MANY).for_each(|_| {
            let response = OutgoingResponse::new(fields());
            if let Ok(body) = response.body() {
                forget(write(body));
            }
            forget(response);
        }),
        "keep-emptied" => (0..3 * MANY).for_each(|_| {
            let fields = Fields::new();
            let _ = fields.set("a", &vec![Vec::new(); 400]);
            let _ = fields.delete("a");
            forget(OutgoingResponse::new(fields));
        }),
        "keep-sent" => (0..MANY).for_each(|_| {
            let request = OutgoingRequest::new(fields());
            let _ = request.set_authority(Some("127.0.0.1:9"));
            let _ = request.set_path_with_query(Some("/"));
            let kept = request.body().map(write);
            forget(handle(request, None));
            forget(kept);
        }),
        "keep-some-posts" => (0..24).for_each(|_| {
            let request = OutgoingRequest::new(Fields::new());
            let _ = request.set_authority(Some("127.0.0.1:9"));
            let _ = request.set_path_with_query(Some("/"));
            let stream = request.body().and_then(|body| Ok((body.write()?, body)));
            forget(handle(request, None));
            if let Ok((stream, _)) = &stream {
                let posted =
                    (0..250).try_for_each(|_| stream.blocking_write_and_flush(&[b'x'; 4096]));
                let _ = black_box(posted);
            }
            forget(stream);
        }),
        _ => return false,
    }
    true
}

/// Makes `count` requests and never drops them.
fn requests(count: usize, give: impl Fn(&OutgoingRequest)) {
    for _ in 0..count {
        let request = OutgoingRequest::new(Fields::new());
        give(&request);
        forget(black_box(request));
    }
}

/// Returns a header map of nearly the largest size.
fn fields() -> Fields {
    let fields = Fields::new();
    let _ = fields.append("x-large", &[b'x'; 16_000]);
    fields
}

/// Writes as much of a body as the host accepts before it is sent.
fn write(body: OutgoingBody) -> (Option<OutputStream>, OutgoingBody) {
    let stream = body.write().ok();
    if let Some(stream) = &stream {
        while let Ok(room @ 1..) = stream.check_write() {
            let chunk = vec![b'x'; usize::try_from(room).unwrap_or(0)];
            if stream.write(&chunk).is_err() {
                break;
            }
        }
    }
    (stream, body)
}
