//! Encodes requests.

use std::time::{SystemTime, UNIX_EPOCH};

use super::MAX_LISTED;

/// Requested lifetime of a channel, in milliseconds.
const LIFETIME: u32 = 60_000;
/// Hint to the server how long an answer may take, in milliseconds.
const ANSWER_WITHIN: u32 = 5_000;
/// Ticks from the beginning of 1601 to that of 1970.
const TICKS_TO_1970: i64 = 116_444_736_000_000_000;

/// Ids of the requests (OPC 10000-6, annex A).
const OPEN: u16 = 446;
const CLOSE: u16 = 452;
const FIND_SERVERS: u16 = 422;
const GET_ENDPOINTS: u16 = 428;
const FIND_SERVERS_ON_NETWORK: u16 = 12_208;

/// Encodes a request for a channel without security.
pub fn open_secure_channel(handle: u32) -> Vec<u8> {
    let mut request = request(OPEN, handle);
    // Protocol version, new channel, no security.
    for number in [0, 0, 1] {
        put(&mut request, number);
    }
    put(&mut request, NOTHING);
    put(&mut request, LIFETIME);
    request
}

/// Encodes a request for the applications that the server at that URL knows.
pub fn find_servers(handle: u32, url: &str) -> Vec<u8> {
    about(FIND_SERVERS, handle, url)
}

/// Encodes a request for the records of a discovery server.
pub fn find_servers_on_network(handle: u32) -> Vec<u8> {
    let mut request = request(FIND_SERVERS_ON_NETWORK, handle);
    // Start at the first record, without a filter on capabilities.
    for number in [0, u32::try_from(MAX_LISTED).unwrap_or(u32::MAX), NOTHING] {
        put(&mut request, number);
    }
    request
}

/// Encodes a request for the endpoints of the server at that URL.
pub fn get_endpoints(handle: u32, url: &str) -> Vec<u8> {
    about(GET_ENDPOINTS, handle, url)
}

/// Encodes the message that closes a channel.
pub fn close_secure_channel(handle: u32) -> Vec<u8> {
    request(CLOSE, handle)
}

/// Encodes a request about a URL, without a locale or filter.
fn about(id: u16, handle: u32, url: &str) -> Vec<u8> {
    let mut request = request(id, handle);
    let length = u32::try_from(url.len()).unwrap_or(NOTHING);
    put(&mut request, length);
    request.extend(url.as_bytes());
    put(&mut request, NOTHING);
    put(&mut request, NOTHING);
    request
}

/// Encodes the id of a request and the header common to all: no session, the time, its number, no diagnostics, no audit
/// entry, the timeout hint, no additional header.
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

/// Length of an absent text, byte string or array.
const NOTHING: u32 = u32::MAX;

fn put(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend(number.to_le_bytes());
}

/// Returns the time in units of 100 ns since 1601 (OPC 10000-6, 5.2.2.5).
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
