use opcua_types::ObjectId;

use super::*;

/// What stands behind the frame of a recorded answer.
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
            uri: "urn:example:node:server".to_owned(),
            product: "urn:example:node:product".to_owned(),
            name: "Node Test Server".to_owned(),
            kind: 0,
            urls: vec!["opc.tcp://vm:4842/UA/NodeServer".to_owned()],
        },
        Application {
            uri: "urn:localhost:LDS".to_owned(),
            product: "NodeOPCUA-LocalDiscoveryServer".to_owned(),
            name: "NodeOPCUA-LocalDiscoveryServer".to_owned(),
            kind: 3,
            urls: vec!["opc.tcp://127.0.0.1:4840".to_owned()],
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
fn no_recorded_answer_harms_wherever_it_ends() {
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
            // The lifetime and the nonce behind its numbers are not looked at.
            assert!(channel(cut).is_err() || end >= recorded.len() - 16, "{end}");
        }
    }
}

#[test]
fn requests_have_the_ids_of_the_standard() {
    for (bytes, id, standard) in [
        (
            open_secure_channel(1),
            446,
            ObjectId::OpenSecureChannelRequest_Encoding_DefaultBinary,
        ),
        (
            find_servers(1, "opc.tcp://plc"),
            422,
            ObjectId::FindServersRequest_Encoding_DefaultBinary,
        ),
        (
            find_servers_on_network(1),
            12_208,
            ObjectId::FindServersOnNetworkRequest_Encoding_DefaultBinary,
        ),
        (
            get_endpoints(1, "opc.tcp://plc"),
            428,
            ObjectId::GetEndpointsRequest_Encoding_DefaultBinary,
        ),
        (
            close_secure_channel(1),
            452,
            ObjectId::CloseSecureChannelRequest_Encoding_DefaultBinary,
        ),
    ] {
        assert_eq!(u32::from(u16::from_le_bytes([bytes[2], bytes[3]])), id);
        assert_eq!(standard as u32, id);
    }
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

/// An answer's beginning: its id and a header with that status and those bytes behind it.
fn mk_answer(id: u16, status: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(status.to_le_bytes());
    bytes.extend(rest);
    bytes
}

/// No diagnostics, no texts, no further header.
const PLAIN: [u8; 8] = [0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];

#[test]
fn faults_are_told_by_name() {
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
    assert!(other.contains("message i=431"), "{other}");
}

#[test]
fn a_header_with_everything_in_it_is_left_behind() {
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
fn what_is_only_announced_is_refused() {
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
fn a_type_the_standard_does_not_have_leaves_the_others_readable() {
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
    assert_eq!(kinds, [0, 77]);
}
