//! gRPC over a connection, with protobuf whose memory is estimated before it is decoded: an empty device takes two bytes on the wire and a
//! hundred in memory.

use bytes::{Buf as _, Bytes};
use hyper_util::rt::TokioIo;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstEncoder;

use crate::paced::PacedConnection;
use crate::proto::DiscoverRequest;

/// Maximum size of one message, in bytes. A set of devices may have 8 MiB of text, and each text takes some bytes more.
pub const MAX_MESSAGE: usize = 12 << 20;
/// Maximum memory of a decoded message, in bytes: as much as a component may make the host hold.
const MAX_WEIGHT: usize = 32 << 20;
/// Flow-control window of a stream, in bytes: a handler that has sent this much must wait for the agent to read.
const WINDOW: u32 = 64 << 10;
/// Flow-control window of a connection, in bytes: a session that waits holds up few others that share the connection.
const WINDOW_OF_ALL: u32 = 4 * WINDOW;
/// Memory of a length-delimited field besides its content, in bytes.
const FIELD: usize = 100;
/// Nesting depth of fields that contain fields: devices in a set, properties in a device.
const DEPTH: u8 = 2;

/// Opens a channel over one connection; the caller decides what happens after its end.
pub async fn channel<S>(connection: PacedConnection<S>) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut once = Some(connection);
    let connector = tower::service_fn(move |_| {
        let connection = once.take();
        async move {
            connection
                .map(TokioIo::new)
                .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected))
        }
    });
    tonic::transport::Endpoint::from_static("http://localhost")
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW_OF_ALL)
        .connect_with_connector(connector)
        .await
}

/// Asks for devices. The caller decodes the sets: only the newest of many, and not on the threads that serve connections.
pub async fn discover(
    channel: Channel,
    request: DiscoverRequest,
) -> Result<Streaming<Bytes>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let lost = |error: tonic::transport::Error| Status::from_error(Box::new(error));
    client.ready().await.map_err(lost)?;
    let path = PathAndQuery::from_static("/v0.DiscoveryHandler/Discover");
    let answer = client
        .server_streaming(Request::new(request), path, Raw)
        .await?;
    Ok(answer.into_inner())
}

/// Codec of [`discover`]: returns the bytes of each message.
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = DiscoverRequest;
    type Decode = Bytes;
    type Encoder = ProstEncoder<DiscoverRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // One contiguous chunk: tonic collects a message before it calls the decoder.
        if weight(source.chunk(), DEPTH) > MAX_WEIGHT {
            return Err(Status::out_of_range(format!(
                "a message would take more than {} MiB of memory",
                MAX_WEIGHT >> 20
            )));
        }
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// Estimates the memory of a message in bytes. Stops where the message is malformed; decoding reports that, too.
fn weight(mut message: &[u8], depth: u8) -> usize {
    let mut total = 0_usize;
    while total <= MAX_WEIGHT
        && let Some((field, rest)) = next_field(message)
    {
        message = rest;
        if let Some(field) = field {
            // A text may look like a message; it then counts for more than it takes.
            let within = depth.checked_sub(1).map_or(0, |depth| weight(field, depth));
            total += FIELD + within.max(field.len());
        }
    }
    total
}

/// Returns the first field, if it is length-delimited, and the rest of the message.
fn next_field(mut message: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (tag, kind) = decode_key(&mut message).ok()?;
    if kind == WireType::LengthDelimited {
        let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
        let (field, rest) = message.split_at_checked(length)?;
        return Some((Some(field), rest));
    }
    skip_field(kind, tag, &mut message, DecodeContext::default()).ok()?;
    Some((None, message))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::{Device, DiscoverResponse};

    #[test]
    fn a_set_weighs_what_it_takes_in_memory() {
        let device = |number: usize| Device {
            id: format!("device-{number}"),
            properties: [("A".to_owned(), "x".repeat(50))].into(),
            ..Device::default()
        };
        let set = DiscoverResponse {
            devices: (0..4096).map(device).collect(),
        };
        let bytes = set.encode_to_vec();
        let weight_of_set = weight(&bytes, DEPTH);
        assert!(weight_of_set > 4096 * 5 * FIELD, "{weight_of_set}");
        assert!(weight_of_set > bytes.len(), "{weight_of_set}");
        assert!(weight_of_set < MAX_WEIGHT, "{weight_of_set}");
    }

    #[test]
    fn empty_devices_and_a_set_that_breaks_off_are_weighed() {
        let empty = [0x0a, 0x00].repeat(1 << 20);
        assert!(weight(&empty, DEPTH) > MAX_WEIGHT);
        let mut broken = [0x0a, 0x00].repeat(1000);
        broken.extend([0x0a, 0xff, 0xff]);
        assert_eq!(weight(&broken, DEPTH), 1000 * FIELD);
        // Within a device, too: properties without key and value.
        let mut device = vec![0x0a, 0xd0, 0x0f];
        device.extend([0x12, 0x00].repeat(1000));
        assert_eq!(weight(&device, DEPTH), FIELD + 1000 * FIELD);
        // A group and numbers of any size, which decoding skips as unknown fields, do not end the estimate.
        let mut unknown = vec![0x4b, 0x4c, 0x48, 0x01, 0x4d, 0, 0, 0, 0];
        unknown.extend([0x49, 0, 0, 0, 0, 0, 0, 0, 0]);
        unknown.extend([0x0a, 0x00].repeat(1000));
        assert_eq!(weight(&unknown, DEPTH), 1000 * FIELD);
    }

    #[test]
    fn a_text_is_not_taken_apart() {
        let text = DiscoverResponse {
            devices: vec![Device {
                properties: [("A".to_owned(), "\u{2}\u{1}".repeat(1000))].into(),
                ..Device::default()
            }],
        };
        assert!(weight(&text.encode_to_vec(), DEPTH) < 4 * FIELD + 3000);
    }
}
