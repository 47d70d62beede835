//! Protobuf codec with small buffers. Those of tonic keep 8 KiB per open list: 7 MB for 1,000 resources.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::BufferSettings;
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Initial size of a buffer, in bytes; it grows with the message.
const BUFFER: usize = 512;
/// Number of bytes encoded before they are sent.
const YIELD: usize = 32 << 10;

/// Codec for generated code: `codec_path("leafhost_uds::Codec")` in a build script.
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER, YIELD))
    }
}
