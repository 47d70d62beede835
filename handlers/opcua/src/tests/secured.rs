//! Tests of servers that list endpoints for one URL only, and of servers that accept no unsecured channel.

use leafhost_sdk::testing::{Call, FakeHost};
use leafhost_sdk::{Discovery, Event};
use opcua_types::StatusCode;

use super::fake::{self, Fake};
use super::{connections, details, discover, ids, reason};
use crate::OpcUa;

const ASKED: &str = "opc.tcp://10.1.2.3:14840/";
const AT: &str = "10.1.2.3:14840";
const LISTED: &str = "opc.tcp://plc:4840/UA";
/// URL of a server with a working requested URL and an unresolvable listed one.
const MOVED: &str = "opc.tcp://10.1.2.3:14840/UA";

fn refuses(status: StatusCode) -> Fake {
    Fake::server("urn:a", "A", LISTED).refuses(fake::error(status))
}

fn again(host: &FakeHost, before: &Discovery) -> Discovery {
    let call = Call::<OpcUa>::new(&details(&[ASKED], "")).events([Event::Timer]);
    call.cursor(before.cursor.clone().unwrap())
        .run(host)
        .unwrap()
}

#[test]
fn a_server_with_endpoints_only_for_its_listed_url_is_asked_with_it() {
    let server = Fake::server("urn:a", "A", LISTED).endpoints_by(LISTED);
    let found = discover(&server.clone().at(FakeHost::new(), AT), &[ASKED], "");
    assert_eq!(ids(&found), [MOVED]);
    let device = &found.devices()[0];
    assert_eq!(device.get_attribute("modeSign"), Some(&true.into()));

    // A server listed by a discovery server with an unresolvable name.
    let lds = Fake::discovery("opc.tcp://10.1.2.3:4840/").knows("urn:a", "A", LISTED);
    let host = lds.at(FakeHost::new(), "10.1.2.3:4841");
    let host = server.at(host, "10.1.2.3:4840");
    let found = discover(&host, &["opc.tcp://10.1.2.3:4841/"], "");
    assert_eq!(ids(&found), ["opc.tcp://10.1.2.3:4840/UA"]);
    let device = &found.devices()[0];
    assert_eq!(device.get_attribute("modeSign"), Some(&true.into()));
    assert_eq!(connections(&host).len(), 2, "one conversation is enough");
}

#[test]
fn a_discovery_server_behind_a_mapped_port_is_asked_with_its_own_url() {
    let own = "opc.tcp://lds:4840/";
    let lds = Fake::discovery(own)
        .knows("urn:b", "B", "opc.tcp://10.1.2.9:4840/")
        .endpoints_by(own);
    let host = Fake::new().at(lds.at(FakeHost::new(), AT), "10.1.2.9:4840");
    let more = "applicationTypes: [DiscoveryServer]";
    let found = discover(&host, &[ASKED], more);
    assert_eq!(ids(&found), [ASKED]);
    let device = &found.devices()[0];
    assert_eq!(device.get_attribute("modeSign"), Some(&true.into()));
}

#[test]
fn a_server_without_endpoints_is_a_device_and_explained() {
    for (server, words) in [
        (
            Fake::server("urn:a", "A", MOVED).without_endpoints(),
            "the server lists none",
        ),
        (
            Fake::server("urn:a", "A", MOVED).faults_at_endpoints(),
            "BadServiceUnsupported",
        ),
    ] {
        let host = server.at(FakeHost::new(), AT);
        let found = discover(&host, &[ASKED], "");
        assert_eq!(ids(&found), [MOVED]);
        assert_eq!(found.devices()[0].get_attribute("modeSign"), None);
        let why = reason(&host, &format!("endpoints of {MOVED}"));
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_server_that_refuses_an_unsecured_channel_is_a_device_and_explained() {
    for (refusal, words) in [
        (
            fake::error(StatusCode::BadSecurityPolicyRejected),
            "the server refused: BadSecurityPolicyRejected (0x80550000)",
        ),
        (
            fake::error(StatusCode::BadSecurityChecksFailed),
            "BadSecurityChecksFailed",
        ),
        (
            fake::error(StatusCode::BadInternalError),
            "BadInternalError",
        ),
        // The server closes the connection without an answer.
        (Vec::new(), "lost the connection"),
    ] {
        let server = Fake::server("urn:a", "A", LISTED).refuses(refusal);
        let host = server.clone().at(FakeHost::new(), AT);
        let found = discover(&host, &[ASKED], "");
        assert_eq!(ids(&found), [ASKED], "{words}: {:?}", host.skipped());
        let device = &found.devices()[0];
        assert_eq!(device.get_property("OPCUA_DISCOVERY_URL"), Some(ASKED));
        assert_eq!((&device.physical_id, device.attributes.len()), (&None, 0));
        let why = reason(&host, &format!("endpoints of {ASKED}"));
        assert!(why.contains(words), "{why}");

        // A server listed by a discovery server has a name.
        let lds = Fake::discovery("opc.tcp://10.1.2.9:4840/").knows("urn:a", "A", ASKED);
        let host = server.at(lds.at(FakeHost::new(), "10.1.2.9:4840"), AT);
        let found = discover(&host, &["opc.tcp://10.1.2.9:4840/"], "");
        assert_eq!(ids(&found), [ASKED]);
        let name = found.devices()[0].get_attribute("applicationName");
        assert_eq!(name, Some(&"A".into()));
        let why = reason(&host, &format!("endpoints of {ASKED}"));
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn a_server_that_refuses_is_described_by_its_discovery_server() {
    let server = refuses(StatusCode::BadSecurityPolicyRejected);
    let lds = Fake::discovery("opc.tcp://10.1.2.9:4840/").knows("urn:a", "A", MOVED);
    let host = server.at(lds.at(FakeHost::new(), "10.1.2.9:4840"), AT);
    let found = discover(&host, &[ASKED, "opc.tcp://10.1.2.9:4840/"], "");
    assert_eq!(ids(&found), [MOVED], "{:?}", host.skipped());
}

#[test]
fn a_server_without_a_known_name_or_type_passes_no_filter() {
    for (more, rule) in [
        ("applicationNames: {items: [A]}", "applicationNames"),
        (
            "applicationNames: {action: Exclude, items: [B]}",
            "applicationNames",
        ),
        ("applicationTypes: [DiscoveryServer]", "applicationTypes"),
    ] {
        let host = refuses(StatusCode::BadSecurityPolicyRejected).at(FakeHost::new(), AT);
        assert_eq!(discover(&host, &[ASKED], more).devices(), []);
        let why = reason(&host, ASKED);
        assert!(why.starts_with(rule), "{why}");
        assert!(why.contains("BadSecurityPolicyRejected"), "{why}");
    }
}

#[test]
fn a_busy_server_known_by_its_listed_url_gets_no_second_id() {
    let first = discover(
        &Fake::server("urn:a", "A", LISTED).at(FakeHost::new(), AT),
        &[ASKED],
        "",
    );
    assert_eq!(ids(&first), [MOVED]);
    for refusal in [fake::error(StatusCode::BadTcpServerTooBusy), Vec::new()] {
        let host = Fake::server("urn:a", "A", LISTED)
            .refuses(refusal)
            .at(FakeHost::new(), AT);
        assert_eq!(again(&host, &first).devices(), []);
        assert!(reason(&host, ASKED).starts_with("opcuaDiscoveryMethod"));
    }
    // A server that explicitly refuses such channels.
    let host = refuses(StatusCode::BadSecurityPolicyRejected).at(FakeHost::new(), AT);
    assert_eq!(ids(&again(&host, &first)), [ASKED]);
}

#[test]
fn a_server_that_lists_nothing_is_explained() {
    let host = Fake::new().at(FakeHost::new(), AT);
    assert_eq!(discover(&host, &[ASKED], "").devices(), []);
    assert!(reason(&host, ASKED).contains("lists no server"));
}
