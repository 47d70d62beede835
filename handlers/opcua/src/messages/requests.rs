//! What is asked, as bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use super::MAX_LISTED;

/// What is asked for a channel's life, in milliseconds.
const LIFETIME: u32 = 60_000;
/// How long an answer may take, in milliseconds; a hint.
const ANSWER_WITHIN: u32 = 5_000;
/// From the beginning of 1601 to that of 1970.
const TICKS_TO_1970: i64 = 116_444_736_000_000_000;

/// The ids of the requests (OPC 10000-6, annex A).
const OPEN: u16 = 446;
const CLOSE: u16 = 452;
const FIND_SERVERS: u16 = 422;
const GET_ENDPOINTS: u16 = 428;
const FIND_SERVERS_ON_NETWORK: u16 = 12_208;

/// A request for a channel without security.
pub fn open_secure_channel(handle: u32) -> Vec<u8> {
    let mut request = request(OPEN, handle);
    // The protocol's version, a new channel, no security.
    for number in [0, 0, 1] {
        put(&mut request, number);
    }
    put(&mut request, NOTHING);
    put(&mut request, LIFETIME);
    request
}

/// A request for the applications that the server at that URL knows.
pub fn find_servers(handle: u32, url: &str) -> Vec<u8> {
    about(FIND_SERVERS, handle, url)
}

/// A request for the records of a discovery server.
pub fn find_servers_on_network(handle: u32) -> Vec<u8> {
    let mut request = request(FIND_SERVERS_ON_NETWORK, handle);
    // From the first record on, whatever the servers can do.
    for number in [0, u32::try_from(MAX_LISTED).unwrap_or(u32::MAX), NOTHING] {
        put(&mut request, number);
    }
    request
}

/// A request for the endpoints of the server at that URL.
pub fn get_endpoints(handle: u32, url: &str) -> Vec<u8> {
    about(GET_ENDPOINTS, handle, url)
}

/// The end of a channel.
pub fn close_secure_channel(handle: u32) -> Vec<u8> {
    request(CLOSE, handle)
}

/// A request about a URL, in any language, without a choice.
fn about(id: u16, handle: u32, url: &str) -> Vec<u8> {
    let mut request = request(id, handle);
    let length = u32::try_from(url.len()).unwrap_or(NOTHING);
    put(&mut request, length);
    request.extend(url.as_bytes());
    put(&mut request, NOTHING);
    put(&mut request, NOTHING);
    request
}

/// The id of a request, and the header that all have: no session, the time, its number, no diagnostics, no audit entry, how long
/// the answer may take, nothing more.
fn request(id: u16, handle: u32) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(now().to_le_bytes());
    for number in [handle, 0, NOTHING, ANSWER_WITHIN] {
        put(&mut bytes, number);
    }
    bytes.extend([0, 0, 0]);
    bytes
}

/// A text, byte string or array that is not there.
const NOTHING: u32 = u32::MAX;

fn put(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend(number.to_le_bytes());
}

/// The time in tenths of microseconds since 1601 (OPC 10000-6, 5.2.2.5).
fn now() -> i64 {
    let Ok(since_1970) = SystemTime::now().duration_since(UNIX_EPOCH) else {
        return 0;
    };
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or_default();
    let rest = i64::from(since_1970.subsec_nanos() / 100);
    seconds
        .saturating_mul(10_000_000)
        .saturating_add(rest + TICKS_TO_1970)
}
