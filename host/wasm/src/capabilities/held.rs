//! Memory that the host holds for a guest, in the resource table and in pending requests; counts as part of the guest's own memory.
//!
//! Counts the resources that may hold bytes of a guest's choice, each at its maximum. All others are bounded in number, and none is larger
//! than about a kilobyte. The sum is computed again when something is added, because the host is not informed when a guest drops something.

use http::{HeaderMap, HeaderName, HeaderValue};
use wasmtime::{Error, ResourceLimiter, Result};
use wasmtime_wasi_http::FieldMap;
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};

use super::CallState;
use super::http::{MAX_FIELDS, MAX_REQUEST, MAX_UNSENT};

/// Memory of a response whose body is being read, in addition to its headers: data that its connection has read ahead, in bytes.
const READ_AHEAD: usize = 16 << 10;
/// Memory of a header map per name with its value: twice their own size, for hash, links and index.
const ENTRY: usize = 2 * size_of::<(HeaderName, HeaderValue)>();
/// Memory of a header map per further value of a name.
const VALUE: usize = 2 * size_of::<HeaderValue>();
/// Maximum number of further values that a guest can have allocated.
const MOST_VALUES: usize = (MAX_FIELDS / size_of::<HeaderValue>()).next_power_of_two();
/// Maximum number of names: the map keeps a third of its capacity free, in powers of two.
const MOST_NAMES: usize =
    (MAX_FIELDS / size_of::<(HeaderName, HeaderValue)>()).next_power_of_two() * 2;
/// Maximum memory of a guest's header map, in bytes.
const MAX_MAP: usize = MAX_FIELDS + MOST_NAMES * ENTRY + MOST_VALUES * VALUE;

impl CallState {
    /// Counts the memory that the table holds. Call this after each addition to the table.
    ///
    /// # Errors
    /// Returns an error if the guest's memory limit has no room for it.
    pub(super) fn hold(&mut self) -> Result<()> {
        let held = self.held();
        if self.limiter.hold(held) {
            Ok(())
        } else {
            Err(Error::msg("the host keeps too much for it"))
        }
    }

    /// Returns the limiter of the guest's growth, updated with what the table holds now.
    pub(crate) fn limiter(&mut self) -> &mut dyn ResourceLimiter {
        let held = self.held();
        self.limiter.hold(held);
        &mut self.limiter
    }

    fn held(&mut self) -> u64 {
        let bytes: usize = self.table.iter_mut().map(|entry| weight(entry)).sum();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        bytes.saturating_add(self.http.most_kept())
    }
}

/// Returns the maximum number of bytes that an entry holds.
fn weight(entry: &dyn std::any::Any) -> usize {
    if let Some(fields) = entry.downcast_ref::<FieldMap>() {
        return headers(fields);
    }
    if let Some(request) = entry.downcast_ref::<HostOutgoingRequest>() {
        let unsent = request.body.as_ref().map_or(0, |_| MAX_UNSENT);
        return MAX_REQUEST + headers(&request.headers) + unsent;
    }
    if let Some(response) = entry.downcast_ref::<HostOutgoingResponse>() {
        let unsent = response.body.as_ref().map_or(0, |_| MAX_UNSENT);
        return headers(&response.headers) + unsent;
    }
    if let Some(response) = entry.downcast_ref::<HostIncomingResponse>() {
        return READ_AHEAD + headers(&response.headers);
    }
    match entry.downcast_ref::<HostFutureIncomingResponse>() {
        // Contains the request until it is sent.
        Some(HostFutureIncomingResponse::Pending(_)) => MAX_REQUEST + MAX_MAP + MAX_UNSENT,
        Some(HostFutureIncomingResponse::Ready(Ok((response, _)))) => {
            READ_AHEAD + headers(response.headers())
        }
        Some(_) | None => 0,
    }
}

/// Returns the bytes of a header map: its text and its allocated memory. The map keeps its capacity when headers are removed, and does
/// not report that of further values.
fn headers(map: &HeaderMap) -> usize {
    if map.capacity() == 0 {
        return 0;
    }
    let line = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    let text: usize = map.iter().map(line).sum();
    let values = map.len().saturating_sub(map.keys_len());
    let values = values.next_power_of_two().max(MOST_VALUES);
    text + map.capacity() * ENTRY + values * VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_map_counts_with_the_room_it_keeps_when_it_is_emptied() {
        let mut map = HeaderMap::new();
        assert_eq!(headers(&map), 0);
        for _ in 0..400 {
            map.append("a", HeaderValue::from_static(""));
        }
        for number in 0..200 {
            let name: HeaderName = format!("x{number}").parse().unwrap();
            map.append(name, HeaderValue::from_static(""));
        }
        let full = headers(&map);
        map.clear();
        let text = "a".len() * 400 + (2 * 10 + 3 * 90 + 4 * 100);
        assert_eq!(headers(&map), full - text);
        // A further value takes its own size, and two links of two words.
        assert!(headers(&map) > 400 * 72 + 200 * 112);
        assert!(full <= MAX_MAP);
    }
}
