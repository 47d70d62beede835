use std::collections::BTreeSet;

use opcua_types::{
    BinaryDecodable, ByteString, CloseSecureChannelRequest, ContextOwned, DateTime,
    DecodingOptions, FindServersOnNetworkRequest, FindServersRequest, GetEndpointsRequest,
    MessageInfo, MessageSecurityMode, NamespaceMap, NodeId, ObjectId, OpenSecureChannelRequest,
    RequestHeader, SecurityTokenRequestType, TypeLoaderCollection,
};

use super::reader::FAULT;
use super::*;

/// Returns the body of a recorded answer.
fn body(recorded: &[u8], frame: usize) -> &[u8] {
    &recorded[frame..]
}

#[test]
fn recorded_answers_are_read() {
    let lds = servers(body(
        include_bytes!("../../fixtures/node-lds-servers.bin"),
        24,
    ))
    .unwrap();
    let expected = [
        Application {
            uri: "urn:localhost:LDS".to_owned(),
            product: "NodeOPCUA-LocalDiscoveryServer".to_owned(),
            name: "NodeOPCUA-LocalDiscoveryServer".to_owned(),
            kind: 3,
            urls: vec!["opc.tcp://127.0.0.1:4840".to_owned()],
        },
        Application {
            uri: "urn:example:node:server".to_owned(),
            product: "urn:example:node:product".to_owned(),
            name: "Node Test Server".to_owned(),
            kind: 0,
            urls: vec!["opc.tcp://vm:4842/UA/NodeServer".to_owned()],
        },
    ];
    assert_eq!(lds.items, expected);
    assert!(!lds.cut);

    let asyncua = servers(body(
        include_bytes!("../../fixtures/asyncua-servers.bin"),
        24,
    ))
    .unwrap();
    assert_eq!(asyncua.items.len(), 1);
    assert_eq!(asyncua.items[0].kind, 2);

    let opened = channel(body(
        include_bytes!("../../fixtures/asyncua-channel.bin"),
        79,
    ))
    .unwrap();
    assert_eq!(opened, Channel { id: 6, token: 13 });
}

#[test]
fn recorded_endpoints_are_read() {
    for (recorded, count, policies, tokens) in [
        (
            &include_bytes!("../../fixtures/asyncua-endpoints.bin")[..],
            3,
            &["Basic256Sha256", "None"][..],
            &[0, 1, 2][..],
        ),
        (
            include_bytes!("../../fixtures/node-lds-endpoints.bin"),
            7,
            &[
                "Aes128_Sha256_RsaOaep",
                "Aes256_Sha256_RsaPss",
                "Basic256Sha256",
                "None",
            ],
            &[],
        ),
    ] {
        let endpoints = endpoints(body(recorded, 24)).unwrap();
        assert_eq!(endpoints.len(), count);
        let found: BTreeSet<&str> = endpoints
            .iter()
            .filter_map(|endpoint| Some(endpoint.policy.rsplit_once('#')?.1))
            .collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), policies);
        let found: BTreeSet<u32> = endpoints
            .iter()
            .flat_map(|endpoint| endpoint.tokens.clone())
            .collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), tokens);
        assert!(
            endpoints
                .iter()
                .all(|endpoint| endpoint.certificate.first() == Some(&0x30))
        );
    }
}

#[test]
fn truncated_recorded_answers_do_not_panic() {
    for recorded in [
        &include_bytes!("../../fixtures/asyncua-servers.bin")[24..],
        &include_bytes!("../../fixtures/asyncua-channel.bin")[79..],
        &include_bytes!("../../fixtures/asyncua-endpoints.bin")[24..],
    ] {
        let whole = [
            servers(recorded).is_ok(),
            channel(recorded).is_ok(),
            endpoints(recorded).is_ok(),
        ];
        assert_eq!(whole.iter().filter(|ok| **ok).count(), 1);
        for end in 0..recorded.len() {
            let cut = &recorded[..end];
            assert!(servers(cut).is_err() && endpoints(cut).is_err(), "{end}");
            // The lifetime and the nonce after the numbers are not read.
            assert!(channel(cut).is_err() || end >= recorded.len() - 16, "{end}");
        }
    }
}

/// Decodes the request with the library, without its time.
fn read_back<T: BinaryDecodable + MessageInfo>(bytes: &[u8]) -> T {
    let owned = ContextOwned::new(
        NamespaceMap::new(),
        TypeLoaderCollection::new_empty(),
        DecodingOptions::default(),
    );
    let context = owned.context();
    let mut rest = bytes;
    let id = NodeId::decode(&mut rest, &context).unwrap();
    let request = T::decode(&mut rest, &context).unwrap();
    assert_eq!(id, NodeId::from(&request.type_id()));
    assert_eq!(rest, b"", "nothing is left");
    request
}

#[test]
fn requests_match_the_standard() {
    let before = DateTime::now();
    let header = |header: &RequestHeader| {
        assert!(
            before.ticks() <= header.timestamp.ticks() + 10_000
                && header.timestamp <= DateTime::now()
        );
        RequestHeader {
            timeout_hint: 5_000,
            ..RequestHeader::new(&NodeId::null(), &header.timestamp, 7)
        }
    };
    let open: OpenSecureChannelRequest = read_back(&open_secure_channel(7));
    let expected = OpenSecureChannelRequest {
        request_header: header(&open.request_header),
        client_protocol_version: 0,
        request_type: SecurityTokenRequestType::Issue,
        security_mode: MessageSecurityMode::None,
        client_nonce: ByteString::null(),
        requested_lifetime: 60_000,
    };
    assert_eq!(open, expected);
    let find: FindServersRequest = read_back(&find_servers(7, "opc.tcp://plc:4840/"));
    let expected = FindServersRequest {
        request_header: header(&find.request_header),
        endpoint_url: "opc.tcp://plc:4840/".into(),
        locale_ids: None,
        server_uris: None,
    };
    assert_eq!(find, expected);
    let network: FindServersOnNetworkRequest = read_back(&find_servers_on_network(7));
    let expected = FindServersOnNetworkRequest {
        request_header: header(&network.request_header),
        starting_record_id: 0,
        max_records_to_return: 1_000,
        server_capability_filter: None,
    };
    assert_eq!(network, expected);
    let endpoints: GetEndpointsRequest = read_back(&get_endpoints(7, "opc.tcp://plc:4840/"));
    let expected = GetEndpointsRequest {
        request_header: header(&endpoints.request_header),
        endpoint_url: "opc.tcp://plc:4840/".into(),
        locale_ids: None,
        profile_uris: None,
    };
    assert_eq!(endpoints, expected);
    let close: CloseSecureChannelRequest = read_back(&close_secure_channel(7));
    assert_eq!(close.request_header, header(&close.request_header));
}

#[test]
fn answer_ids_match_the_standard() {
    for (id, standard) in [
        (
            OPENED,
            ObjectId::OpenSecureChannelResponse_Encoding_DefaultBinary,
        ),
        (
            SERVERS,
            ObjectId::FindServersResponse_Encoding_DefaultBinary,
        ),
        (
            ENDPOINTS,
            ObjectId::GetEndpointsResponse_Encoding_DefaultBinary,
        ),
        (
            RECORDS,
            ObjectId::FindServersOnNetworkResponse_Encoding_DefaultBinary,
        ),
        (FAULT, ObjectId::ServiceFault_Encoding_DefaultBinary),
    ] {
        assert_eq!(standard as u32, id);
    }
}

#[test]
fn every_encoding_of_an_id_is_read() {
    for (form, id) in [
        (&[0, 7][..], 7),
        (&[1, 0, 0xa9, 1], 425),
        (&[1, 1, 0xa9, 1], 0),
        (&[2, 0, 0, 0xa9, 1, 0, 0], 425),
        (&[2, 1, 0, 0xa9, 1, 0, 0], 0),
        (&[3, 0, 0, 1, 0, 0, 0, b'x'], 0),
        (
            &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            0,
        ),
        (&[5, 0, 0, 0xff, 0xff, 0xff, 0xff], 0),
    ] {
        let mut reader = Reader { rest: form };
        assert_eq!(reader.node_id("id"), Ok(id), "{form:?}");
        assert_eq!(reader.rest, b"");
        reader.rest = &form[..form.len() - 1];
        assert_eq!(
            reader.node_id("id"),
            Err(Error::Broken { what: "id" }),
            "{form:?}"
        );
    }
}

/// Creates the beginning of an answer: its id and a header with this status and these bytes.
fn mk_answer(id: u16, status: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(status.to_le_bytes());
    bytes.extend(rest);
    bytes
}

/// Rest of a header without diagnostics, texts and additional header.
const PLAIN: [u8; 8] = [0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];

#[test]
fn faults_are_reported_by_name() {
    for (id, status, words) in [
        (397, 0x800b_0000, "BadServiceUnsupported (0x800B0000)"),
        (397, 0x801f_0000, "BadUserAccessDenied (0x801F0000)"),
        (397, 0, "the server answered Good"),
        (425, 0x8001_0000, "BadUnexpectedError"),
        (397, 0xbfff_0000, "0xBFFF0000"),
    ] {
        let error = servers(&mk_answer(id, status, &PLAIN))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
    }
    let other = servers(&mk_answer(431, 0, &PLAIN)).unwrap_err().to_string();
    assert!(other.contains("message 431"), "{other}");
}

#[test]
fn a_header_with_all_optional_fields_is_skipped() {
    let texts = [2, 0, 0, 0, 1, 0, 0, 0, b'a', 0xff, 0xff, 0xff, 0xff];
    let inner = [
        0x7f, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, b'x', 5, 0, 0, 0, 0x00,
    ];
    let object = [0, 77, 1, 3, 0, 0, 0, 1, 2, 3];
    let empty = [0, 0, 0, 0];
    let bytes = mk_answer(425, 0, &[&inner[..], &texts, &object, &empty].concat());
    assert_eq!(servers(&bytes).unwrap().items, []);
}

#[test]
fn announced_but_missing_bytes_are_refused() {
    let endless = [0x40; 17];
    let long_text = [0x10, 0xff, 0xff, 0xff, 0x7f];
    let many_texts = [0, 0xff, 0xff, 0xff, 0x7f];
    let object = [0, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0xff, 0xff, 0xff, 0x7f];
    let kind = [0, 0xff, 0xff, 0xff, 0xff, 0, 0, 3];
    for (rest, what) in [
        (&endless[..], "diagnostics"),
        (&long_text, "diagnostics"),
        (&many_texts, "string table"),
        (&object, "additional header"),
        (&kind, "additional header"),
    ] {
        let error = servers(&mk_answer(425, 0, rest)).unwrap_err();
        assert_eq!(error, Error::Broken { what });
    }
    let servers_announced = [&PLAIN[..], &i32::MAX.to_le_bytes()].concat();
    assert!(servers(&mk_answer(425, 0, &servers_announced)).is_err());
    assert!(endpoints(&mk_answer(431, 0, &servers_announced)).is_err());
}

#[test]
fn an_unknown_application_type_leaves_the_others_readable() {
    let item = |kind: u32| {
        let mut bytes = [0xff; 8].to_vec();
        bytes.push(0);
        bytes.extend(kind.to_le_bytes());
        bytes.extend([0xff; 12]);
        bytes
    };
    let list = [&PLAIN[..], &2_u32.to_le_bytes(), &item(77), &item(0)].concat();
    let kinds: Vec<u32> = servers(&mk_answer(425, 0, &list))
        .unwrap()
        .items
        .iter()
        .map(|item| item.kind)
        .collect();
    assert_eq!(kinds, [77, 0]);
}

/// Part of an answer.
#[derive(Clone)]
enum Part {
    Bytes(Vec<u8>),
    /// Length of a text or array.
    Length(u32),
}

fn text(text: &str) -> [Part; 2] {
    let length = u32::try_from(text.len()).unwrap();
    [Part::Length(length), Part::Bytes(text.as_bytes().to_vec())]
}

/// Creates an `ApplicationDescription` with these texts.
fn mk_application(words: &str) -> Vec<Part> {
    let mut parts = [text(words), text(words)].concat();
    parts.push(Part::Bytes(vec![3]));
    parts.extend([text(words), text(words)].concat());
    parts.push(Part::Bytes(vec![0; 4]));
    parts.extend([text(words), text(words)].concat());
    parts.push(Part::Length(1));
    parts.extend(text(words));
    parts
}

/// Creates the three lists, each with one item in which all texts are `words`.
fn mk_lists(words: &str) -> [Vec<Part>; 3] {
    let header = |id: u16| {
        let begin = Part::Bytes([mk_answer(id, 0, &[]), vec![0]].concat());
        vec![begin, Part::Length(0), Part::Bytes(vec![0; 3])]
    };
    let one = [Part::Length(1)];
    let servers = [header(425), one.to_vec(), mk_application(words)].concat();
    let records = [
        header(12_209),
        vec![
            Part::Bytes(vec![0; 8]),
            Part::Length(1),
            Part::Bytes(vec![0; 4]),
        ],
        text(words).to_vec(),
        text(words).to_vec(),
        one.to_vec(),
        text(words).to_vec(),
    ]
    .concat();
    let token = [text(words).to_vec(), vec![Part::Bytes(vec![0; 4])]].concat();
    let texts = [text(words), text(words), text(words)].concat();
    let endpoints = [
        header(431),
        one.to_vec(),
        text(words).to_vec(),
        mk_application(words),
        // Certificate.
        text(words).to_vec(),
        vec![Part::Bytes(vec![1, 0, 0, 0])],
        text(words).to_vec(),
        one.to_vec(),
        [token, texts, text(words).to_vec()].concat(),
        vec![Part::Bytes(vec![0])],
    ]
    .concat();
    [servers, records, endpoints]
}

fn written(parts: &[Part]) -> Vec<u8> {
    let bytes = parts.iter().map(|part| match part {
        Part::Bytes(bytes) => bytes.clone(),
        Part::Length(length) => length.to_le_bytes().to_vec(),
    });
    bytes.collect::<Vec<_>>().concat()
}

/// Returns the number of items of the list.
fn read_list(bytes: &[u8]) -> Result<usize, Error> {
    match u16::from_le_bytes([bytes[2], bytes[3]]) {
        425 => servers(bytes).map(|list| list.items.len()),
        431 => endpoints(bytes).map(|list| list.len()),
        _ => records(bytes).map(|list| list.items.len()),
    }
}

#[test]
fn impossible_lengths_are_refused_everywhere() {
    for parts in mk_lists("some words") {
        assert_eq!(read_list(&written(&parts)), Ok(1));
        for place in 0..parts.len() {
            if !matches!(parts[place], Part::Length(_)) {
                continue;
            }
            for length in [-2, i32::MIN, i32::MAX, 1 << 30] {
                let mut parts = parts.clone();
                parts[place] = Part::Length(length.cast_unsigned());
                let read = read_list(&written(&parts));
                assert!(
                    matches!(read, Err(Error::Broken { .. })),
                    "{place} {length}: {read:?}"
                );
            }
        }
    }
}

#[test]
fn an_absent_text_is_empty() {
    let null = |parts: &[Part]| -> Vec<Part> {
        let parts = parts.iter().map(|part| match part {
            Part::Length(0) => Part::Length(u32::MAX),
            other => other.clone(),
        });
        parts.collect()
    };
    let [applications, network, own] = mk_lists("");
    let (empty, none) = (written(&applications), written(&null(&applications)));
    assert_ne!(empty, none);
    assert_eq!(servers(&empty), servers(&none));
    assert_eq!(servers(&none).unwrap().items[0].urls, [""]);
    assert_eq!(
        records(&written(&network)),
        records(&written(&null(&network)))
    );
    assert_eq!(endpoints(&written(&own)), endpoints(&written(&null(&own))));
    assert_eq!(read_list(&written(&null(&own))), Ok(1));
}
