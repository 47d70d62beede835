//! Lists in which several applications have one URL, and entries without one.

use leafhost_sdk::testing::{Call, FakeHost};
use opcua_types::ApplicationType;

use super::fake::{Fake, application};
use super::{OpcUa, connections, details, discover, ids, reason};

const LDS: &str = "opc.tcp://10.1.2.3:4840/";
const PUMP: &str = "opc.tcp://10.1.2.4:4840/";
const VALVE: &str = "opc.tcp://10.1.2.5:4840/";

/// Counts the explanations of a subject that contain these words.
fn count(host: &FakeHost, subject: &str, words: &str) -> usize {
    let skipped = host.skipped();
    let of = skipped
        .iter()
        .filter(|skipped| skipped.subject == subject && skipped.reason.contains(words));
    of.count()
}

fn mk_lds() -> Fake {
    Fake::discovery(LDS)
        .knows("urn:pump", "Pump", PUMP)
        .knows("urn:valve", "Valve", VALVE)
}

fn mk_servers(host: FakeHost) -> FakeHost {
    let host = Fake::server("urn:pump", "Pump", PUMP).at(host, "10.1.2.4:4840");
    Fake::server("urn:valve", "Valve", VALVE).at(host, "10.1.2.5:4840")
}

#[test]
fn a_discovery_server_that_writes_the_asked_url_into_each_entry_gives_the_true_urls() {
    for lds in [mk_lds(), mk_lds().without_endpoints()] {
        let host = mk_servers(
            lds.mirrors_the_request()
                .at(FakeHost::new(), "10.1.2.3:4840"),
        );
        let found = discover(&host, &[LDS], "");
        assert_eq!(ids(&found), [PUMP, VALVE], "{:?}", host.skipped());
        let names: Vec<_> = found
            .devices()
            .iter()
            .map(|device| device.get_attribute("applicationName"))
            .collect();
        assert_eq!(names, [Some(&"Pump".into()), Some(&"Valve".into())]);
        assert_eq!(connections(&host).len(), 3);
        assert!(reason(&host, LDS).contains("is a DiscoveryServer"));
    }
    // The discovery server itself keeps the URL that it has while no server is registered.
    for lds in [Fake::discovery("opc.tcp://lds:4840/"), mk_lds()] {
        let host = mk_servers(
            lds.mirrors_the_request()
                .at(FakeHost::new(), "10.1.2.3:4840"),
        );
        let found = discover(&host, &[LDS], "applicationTypes: [DiscoveryServer]");
        assert_eq!(ids(&found), [LDS], "{:?}", host.skipped());
    }
}

#[test]
fn a_url_where_another_application_answers_is_given_to_none_and_each_is_explained() {
    for lds in [
        Fake::discovery(LDS),
        Fake::discovery(LDS).without_endpoints(),
        // Its own type does not show it, but its endpoints do.
        Fake::server("urn:lds", "LDS", LDS),
    ] {
        let lds = lds
            .knows("urn:pump", "Pump", LDS)
            .knows("urn:valve", "Valve", LDS);
        let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
        let found = discover(
            &host,
            &[LDS],
            "applicationNames: {action: Exclude, items: [LDS]}",
        );
        assert_eq!(ids(&found), <[&str; 0]>::default(), "{:?}", host.skipped());
        for name in ["Pump", "Valve"] {
            let words = format!("listed as \"{name}\", but \"urn:lds\" answers there");
            assert_eq!(count(&host, LDS, &words), 1, "{:?}", host.skipped());
        }
    }
    // Neither list nor endpoints show which application answers.
    let lds = Fake::server("urn:lds", "LDS", LDS)
        .knows("urn:pump", "Pump", LDS)
        .without_endpoints();
    let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
    assert_eq!(discover(&host, &[LDS], "").devices(), []);
    assert_eq!(count(&host, LDS, "nothing shows which of them"), 2);
}

#[test]
fn a_listed_url_of_another_application_is_no_device() {
    let lds = Fake::discovery(LDS).knows("urn:pump", "Pump", VALVE);
    let host = mk_servers(lds.at(FakeHost::new(), "10.1.2.3:4840"));
    assert_eq!(discover(&host, &[LDS], "").devices(), []);
    assert!(reason(&host, VALVE).contains("\"urn:valve\" answers there, not \"urn:pump\""));
    // The server that answers there is a device if it is listed, too, in any order.
    let lds =
        Fake::discovery(LDS)
            .knows("urn:pump", "Pump", VALVE)
            .knows("urn:VALVE", "Valve", VALVE);
    let host = mk_servers(lds.at(FakeHost::new(), "10.1.2.3:4840"));
    let found = discover(&host, &[LDS], "");
    assert_eq!(ids(&found), [VALVE]);
    let name = found.devices()[0].get_attribute("applicationName");
    assert_eq!(name, Some(&"Valve".into()));
}

#[test]
fn a_replaced_server_is_a_device_in_the_next_call() {
    let mk_host = |uri: &str| {
        let lds = Fake::discovery(LDS).knows(uri, "PLC", PUMP);
        let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
        Fake::server(uri, "PLC", PUMP).at(host, "10.1.2.4:4840")
    };
    let before = Call::<OpcUa>::new(&details(&[LDS], ""))
        .run(&mk_host("urn:old"))
        .unwrap();
    let host = mk_host("urn:new");
    let found = Call::<OpcUa>::new(&details(&[LDS], ""))
        .cursor(before.cursor.as_deref().unwrap())
        .run(&host)
        .unwrap();
    assert_eq!(ids(&found), [PUMP], "{:?}", host.skipped());
    assert_eq!(found.devices()[0].physical_id.as_deref(), Some("urn:new"));
}

#[test]
fn a_server_that_lists_itself_without_a_url_is_a_device_where_it_answered() {
    for urls in [&[][..], &["opc.tcp://:4840"]] {
        let own = application("urn:plc", "PLC", ApplicationType::Server, urls);
        let host = Fake::new()
            .lists(own.clone())
            .endpoint("urn:plc")
            .at(FakeHost::new(), "10.1.2.3:4840");
        let found = discover(&host, &[LDS], "");
        assert_eq!(ids(&found), [LDS], "{:?}", host.skipped());
        assert_eq!(connections(&host).len(), 1);
        // The same holds if it lists others as well.
        let server = Fake::new().lists(own).endpoint("urn:plc");
        let host = server.knows("urn:pump", "Pump", PUMP);
        let host = mk_servers(host.at(FakeHost::new(), "10.1.2.3:4840"));
        let found = discover(&host, &[LDS], "");
        assert_eq!(ids(&found), [LDS, PUMP], "{:?}", host.skipped());
    }
}

#[test]
fn a_server_whose_list_and_endpoints_disagree_is_a_device() {
    for url in [LDS, "opc.tcp://plc:4840/"] {
        let plc = Fake::server("urn:plc", "PLC", url).endpoint("urn:other");
        let host = plc.at(FakeHost::new().name("plc", ["10.1.2.3"]), "10.1.2.3:4840");
        let found = discover(&host, &[LDS], "");
        assert_eq!(ids(&found), [url], "{:?}", host.skipped());
    }
}
