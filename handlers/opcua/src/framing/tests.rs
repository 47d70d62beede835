use super::*;

const CHANNEL: u32 = 6;
const ANSWER: Expect = Expect::Answer {
    channel: CHANNEL,
    request: 2,
};

/// Creates a chunk of an answer to request 2.
fn mk_chunk(part: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = request(Kind::Message, CHANNEL, 13, 2, body);
    bytes[3] = part;
    bytes
}

fn mk_header(code: &[u8], size: u32) -> Vec<u8> {
    [code, &size.to_le_bytes()].concat()
}

fn read(expect: Expect, bytes: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut reader = Reader::default();
    reader.push(bytes);
    reader.next(expect)
}

#[test]
fn recorded_answers_are_read_in_pieces_of_any_size() {
    let hello = include_bytes!("../../fixtures/asyncua-hello.bin");
    let channel = include_bytes!("../../fixtures/asyncua-channel.bin");
    let servers = include_bytes!("../../fixtures/asyncua-servers.bin");
    let stream = [&hello[..], channel, servers].concat();
    for size in [1, 7, 8, 100, stream.len()] {
        let mut reader = Reader::default();
        let mut pieces = stream.chunks(size);
        let mut messages = Vec::new();
        for expect in [Expect::Acknowledge, Expect::Opened(1), ANSWER] {
            let message = loop {
                if let Some(message) = reader.next(expect).unwrap() {
                    break message;
                }
                reader.push(pieces.next().unwrap());
            };
            messages.push(message);
        }
        assert_eq!(messages[0], hello[8..]);
        assert_eq!(messages[1], channel[79..]);
        assert_eq!(messages[2], servers[24..]);
        assert_eq!(reader.held(), 0);
    }
}

#[test]
fn requests_match_the_recorded_client() {
    assert_eq!(
        hello("opc.tcp://127.0.0.1:4841")[..8],
        *b"HELF\x38\x00\x00\x00"
    );
    let open = open(1, b"xy");
    assert_eq!(open.len(), 8 + 4 + 51 + 8 + 8 + 2);
    assert_eq!(
        &open[..16],
        b"OPNF\x51\x00\x00\x00\x00\x00\x00\x00\x2f\x00\x00\x00"
    );
    let close = request(Kind::Close, 6, 13, 4, b"");
    assert_eq!(
        close,
        b"CLOF\x18\0\0\0\x06\0\0\0\x0d\0\0\0\x04\0\0\0\x04\0\0\0"
    );
}

#[test]
fn an_answer_in_several_chunks_is_assembled() {
    let stream = [
        mk_chunk(b'C', b"ab"),
        mk_chunk(b'C', b""),
        mk_chunk(b'F', b"c"),
        mk_chunk(b'F', b"d"),
    ]
    .concat();
    let mut reader = Reader::default();
    reader.push(&stream);
    assert_eq!(reader.next(ANSWER), Ok(Some(b"abc".to_vec())));
    assert_eq!(reader.next(ANSWER), Ok(Some(b"d".to_vec())));
    assert_eq!(reader.next(ANSWER), Ok(None));
}

#[test]
fn any_sequence_number_is_accepted() {
    let mut chunk = mk_chunk(b'F', b"a");
    chunk[16..20].copy_from_slice(&77_u32.to_le_bytes());
    assert_eq!(read(ANSWER, &chunk), Ok(Some(b"a".to_vec())));
}

#[test]
fn invalid_chunk_sizes_are_refused_from_the_header_alone() {
    for size in [0, 1, 7, MAX_CHUNK + 1, i32::MAX as u32, u32::MAX] {
        let error = read(ANSWER, &mk_header(b"MSGF", size)).unwrap_err();
        assert_eq!(error, Error::ChunkSize(size));
        assert!(error.to_string().contains(&size.to_string()), "{error}");
    }
    for size in [8, 23] {
        let bytes = [mk_header(b"MSGF", size), vec![6; 15]].concat();
        assert!(read(ANSWER, &bytes).is_err(), "{size}");
    }
    assert_eq!(read(ANSWER, &mk_header(b"MSGF", MAX_CHUNK)), Ok(None));
}

#[test]
fn other_protocols_are_recognized_by_their_first_three_bytes() {
    for (bytes, shown) in [(&b"HTT"[..], "HTT"), (b"\x15\x03\x01", "\\u{15}")] {
        let error = read(Expect::Acknowledge, bytes).unwrap_err();
        assert!(matches!(error, Error::Foreign(_)), "{error:?}");
        assert!(error.to_string().contains(shown), "{error}");
    }
    assert_eq!(read(Expect::Acknowledge, b"HT"), Ok(None));
}

#[test]
fn an_unexpected_message_is_reported() {
    for (code, expect, words) in [
        (
            &b"MSGF"[..],
            Expect::Acknowledge,
            "a MSG message where ACK was expected",
        ),
        (b"ACKF", ANSWER, "a ACK message where MSG was expected"),
        (
            b"RHEF",
            Expect::Opened(1),
            "a RHE message where OPN was expected",
        ),
        (b"CLOF", ANSWER, "a CLO message"),
        (b"MSGX", ANSWER, "of the unknown type \"X\""),
    ] {
        let error = read(expect, &mk_header(code, 24)).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn the_servers_reason_is_reported() {
    let mut refusal = 0x8083_0000_u32.to_le_bytes().to_vec();
    put_bytes(&mut refusal, b"no such\nurl");
    let bytes = chunk(Kind::Error, &refusal);
    let error = read(Expect::Acknowledge, &bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server refused: BadTcpEndpointUrlInvalid (0x80830000), \"no such\\nurl\""
    );
    let aborted = mk_chunk(b'A', &0x8008_0000_u32.to_le_bytes());
    let stream = [mk_chunk(b'C', b"ab"), aborted].concat();
    let error = read(ANSWER, &stream).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server aborted its answer: BadEncodingLimitsExceeded (0x80080000)"
    );
    let empty = read(ANSWER, &chunk(Kind::Error, b"")).unwrap_err();
    assert!(matches!(empty, Error::Refused(_)), "{empty:?}");
}

#[test]
fn an_answer_to_something_else_is_refused() {
    let other_request = request(Kind::Message, CHANNEL, 13, 3, b"");
    assert_eq!(
        read(ANSWER, &other_request),
        Err(Error::OtherRequest { asked: 2, got: 3 })
    );
    let other_channel = request(Kind::Message, 7, 13, 2, b"");
    assert_eq!(
        read(ANSWER, &other_channel),
        Err(Error::OtherChannel { own: 6, got: 7 })
    );
    let mut secured = open(1, b"");
    secured[20] = b'x';
    let error = read(Expect::Opened(1), &secured).unwrap_err();
    assert!(matches!(error, Error::Policy(_)), "{error:?}");
}

#[test]
fn fields_beyond_the_chunk_are_refused() {
    let mut long = open(1, b"");
    long[12..16].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    assert_eq!(read(Expect::Opened(1), &long), Err(Error::Short));
    for length in 8..79 {
        let cut = [mk_header(b"OPNF", length), open(1, b"")[8..].to_vec()].concat();
        assert_eq!(read(Expect::Opened(1), &cut), Err(Error::Short), "{length}");
    }
}

#[test]
fn an_endless_answer_is_refused() {
    let mut reader = Reader::default();
    let error = (0..=MAX_CHUNKS)
        .find_map(|_| {
            reader.push(&mk_chunk(b'C', b""));
            reader.next(ANSWER).err()
        })
        .unwrap();
    assert_eq!(error, Error::Endless);

    let mut reader = Reader::default();
    let big = mk_chunk(b'C', &vec![0; 65_000]);
    let error = (0..MAX_CHUNKS)
        .find_map(|_| {
            assert!(reader.held() <= MAX_MESSAGE);
            reader.push(&big);
            reader.next(ANSWER).err()
        })
        .unwrap();
    assert_eq!(error, Error::Long);
}
