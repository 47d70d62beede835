//! Fuzzes an OPC UA server that sends anything in pieces of any size: the handler's conversation without the network.
#![no_main]

use std::time::Duration;

use handler_opcua::framing::{Expect, MAX_CHUNK, MAX_MESSAGE, Reader};
use handler_opcua::messages;
use leafhost_fuzz::within;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((size, stream)) = data.split_first() else {
        return;
    };
    // Bounds the CPU time of a whole call.
    within(Duration::from_secs(2), || {
        messages::read_all(stream);
        converse(usize::from(*size) + 1, stream);
    });
});

fn converse(size: usize, stream: &[u8]) {
    let mut reader = Reader::default();
    let mut expect = Expect::Acknowledge;
    let mut number = 1;
    let mut channel = 0;
    for piece in stream.chunks(size) {
        reader.push(piece);
        loop {
            match reader.next(expect) {
                Ok(Some(message)) => {
                    assert!(message.len() <= MAX_MESSAGE);
                    messages::read_all(&message);
                    if let Ok(opened) = messages::channel(&message) {
                        channel = opened.id;
                    }
                    expect = match expect {
                        Expect::Acknowledge => Expect::Opened(number),
                        Expect::Opened(_) | Expect::Answer { .. } => {
                            number += 1;
                            Expect::Answer {
                                channel,
                                request: number,
                            }
                        }
                    };
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(error.to_string().len() < 1_000);
                    return;
                }
            }
        }
        // Complete messages are taken at once, so the reader holds at most one message and one incomplete chunk.
        assert!(reader.held() <= MAX_MESSAGE + MAX_CHUNK as usize);
    }
}
