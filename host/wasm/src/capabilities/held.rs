//! What the host keeps for a guest in the resource table, as part of the guest's own memory.
//!
//! Counted is what may hold bytes of a guest's choice, each for the most it can hold; the number of all others is bounded, and none
//! of them is larger than a kilobyte or so. It is counted anew where something is added, since what a guest drops is not told.

use http::HeaderMap;
use wasmtime::{Error, ResourceLimiter, Result};
use wasmtime_wasi_http::FieldMap;
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};

use super::CallState;
use super::http::{MAX_FIELDS, MAX_REQUEST, MAX_UNSENT};

/// A response whose body is being read, besides its headers: what its connection has read ahead.
const READ_AHEAD: usize = 16 << 10;

impl CallState {
    /// Counts what the table keeps; to be called when something was added.
    ///
    /// # Errors
    /// It is more than the guest's memory has room for.
    pub(super) fn hold(&mut self) -> Result<()> {
        let held = self.held();
        if self.limiter.hold(held) {
            Ok(())
        } else {
            Err(Error::msg("the host keeps too much for it"))
        }
    }

    fn held(&mut self) -> u64 {
        let bytes: usize = self.table.iter_mut().map(|entry| weight(entry)).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The most that an entry holds.
fn weight(entry: &dyn std::any::Any) -> usize {
    if entry.is::<FieldMap>() {
        return MAX_FIELDS;
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
        // The request is in there until it was sent.
        Some(HostFutureIncomingResponse::Pending(_)) => MAX_REQUEST + MAX_FIELDS + MAX_UNSENT,
        Some(HostFutureIncomingResponse::Ready(Ok((response, _)))) => {
            READ_AHEAD + headers(response.headers())
        }
        Some(_) | None => 0,
    }
}

fn headers(map: &HeaderMap) -> usize {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + size_of::<(http::HeaderName, http::HeaderValue)>()
    };
    map.iter().map(line).sum()
}

impl ResourceLimiter for CallState {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        let held = self.held();
        self.limiter.hold(held);
        self.limiter.memory_growing(current, desired, maximum)
    }

    fn memory_grow_failed(&mut self, error: Error) -> Result<()> {
        self.limiter.memory_grow_failed(error)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        self.limiter.table_growing(current, desired, maximum)
    }

    fn table_grow_failed(&mut self, error: Error) -> Result<()> {
        self.limiter.table_grow_failed(error)
    }

    fn instances(&self) -> usize {
        self.limiter.instances()
    }

    fn tables(&self) -> usize {
        self.limiter.tables()
    }

    fn memories(&self) -> usize {
        self.limiter.memories()
    }
}
