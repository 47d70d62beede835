mod akri;
mod fake;
mod hostile;
mod later_calls;
mod mirrored;
mod secured;
mod withdrawals;

use std::time::Duration;

use leafhost_sdk::testing::{Call, FakeHost, TcpReaction, description_problems, validate};
use leafhost_sdk::{Device, Devices, Discovery};
use opcua_types::StatusCode;

use super::OpcUa;
use fake::Fake;

fn details(urls: &[&str], more: &str) -> String {
    let urls: String = urls.iter().map(|url| format!("    - {url}\n")).collect();
    format!("opcuaDiscoveryMethod:\n  standard:\n    discoveryUrls:\n{urls}{more}")
}

fn discover(host: &FakeHost, urls: &[&str], more: &str) -> Discovery {
    let found = Call::<OpcUa>::new(&details(urls, more)).run(host).unwrap();
    assert!(matches!(found.devices, Devices::Complete(_)), "{found:?}");
    found
}

fn ids(discovery: &Discovery) -> Vec<&str> {
    discovery
        .devices()
        .iter()
        .map(|device| device.id.as_str())
        .collect()
}

/// Returns the only explanation of a subject.
fn reason(host: &FakeHost, subject: &str) -> String {
    let skipped = host.skipped();
    let reasons: Vec<String> = skipped
        .iter()
        .filter(|skipped| skipped.subject == subject)
        .map(|skipped| format!("{}: {}", skipped.rule, skipped.reason))
        .collect();
    assert_eq!(reasons.len(), 1, "{subject}: {skipped:#?}");
    reasons[0].clone()
}

/// Returns the connections made or attempted, in order.
fn connections(host: &FakeHost) -> Vec<String> {
    let contacts = host.contacts().into_iter();
    contacts
        .filter_map(|contact| Some(contact.to.strip_prefix("tcp ")?.to_owned()))
        .collect()
}

/// Adds a server that replays a recording.
fn recorded(host: FakeHost, address: &str, answers: [&'static [u8]; 4]) -> FakeHost {
    host.tcp_server(address, move || {
        let mut answers = answers.into_iter();
        Box::new(move |bytes| TcpReaction {
            send: if bytes.is_empty() {
                None
            } else {
                answers.next()
            }
            .unwrap_or_default()
            .to_vec(),
            ..TcpReaction::default()
        })
    })
}

fn recorded_asyncua(host: FakeHost) -> FakeHost {
    recorded(
        host,
        "127.0.0.1:4841",
        [
            include_bytes!("../fixtures/asyncua-hello.bin"),
            include_bytes!("../fixtures/asyncua-channel.bin"),
            include_bytes!("../fixtures/asyncua-servers.bin"),
            include_bytes!("../fixtures/asyncua-endpoints.bin"),
        ],
    )
}

fn recorded_lds(host: FakeHost) -> FakeHost {
    recorded(
        host,
        "127.0.0.1:4840",
        [
            include_bytes!("../fixtures/node-lds-hello.bin"),
            include_bytes!("../fixtures/node-lds-channel.bin"),
            include_bytes!("../fixtures/node-lds-servers.bin"),
            include_bytes!("../fixtures/node-lds-endpoints.bin"),
        ],
    )
}

const NODE_SERVER: &str = "opc.tcp://vm:4842/UA/NodeServer";

#[test]
fn a_recorded_discovery_server_gives_the_server_that_registered() {
    let node = || Fake::server("urn:example:node:server", "Node Test Server", NODE_SERVER);
    let host = node().at(
        recorded_lds(FakeHost::new()).name("vm", ["127.0.1.1"]),
        "127.0.1.1:4842",
    );
    let found = discover(&host, &["opc.tcp://127.0.0.1:4840"], "");
    assert_eq!(ids(&found), [NODE_SERVER]);
    let device = &found.devices()[0];
    assert_eq!(
        device.get_property("OPCUA_DISCOVERY_URL"),
        Some(NODE_SERVER)
    );
    assert_eq!(
        device.physical_id.as_deref(),
        Some("urn:example:node:server")
    );
    assert_eq!(
        device.get_attribute("applicationName"),
        Some(&"Node Test Server".into())
    );
    assert_eq!(device.get_attribute("modeSign"), Some(&true.into()));
    assert_eq!(device.get_attribute("tokenUserName"), Some(&true.into()));
    assert!(reason(&host, "opc.tcp://127.0.0.1:4840").contains("is a DiscoveryServer"));

    // The name cannot be resolved: the server is on the host that was asked, at its own port.
    let host = node().at(recorded_lds(FakeHost::new()), "127.0.0.1:4842");
    let found = discover(&host, &["opc.tcp://127.0.0.1:4840"], "");
    assert_eq!(ids(&found), ["opc.tcp://127.0.0.1:4842/UA/NodeServer"]);
    assert_eq!(found.devices()[0].shared, Some(false));

    // This server was killed and is still listed.
    let host = recorded_lds(FakeHost::new());
    let found = discover(&host, &["opc.tcp://127.0.0.1:4840"], "");
    assert_eq!(found.devices(), []);
    let why = reason(&host, "opc.tcp://127.0.0.1:4842/UA/NodeServer");
    assert!(
        why.contains("Node Test Server") && why.contains("unreachable"),
        "{why}"
    );
}

#[test]
fn a_recorded_client_and_server_is_a_device_unless_its_type_is_filtered_out() {
    let urls = ["opc.tcp://127.0.0.1:4841"];
    let host = recorded_asyncua(FakeHost::new());
    let found = discover(&host, &urls, "applicationTypes: [Server]");
    assert_eq!(found.devices(), []);
    let url = "opc.tcp://127.0.0.1:4841/freeopcua/server/";
    let why = reason(&host, url);
    assert!(
        why.starts_with("applicationTypes: ") && why.contains("is a ClientAndServer"),
        "{why}"
    );

    let host = recorded_asyncua(FakeHost::new());
    let found = discover(&host, &urls, "");
    assert_eq!(ids(&found), [url]);
    assert_eq!(
        connections(&host),
        ["127.0.0.1:4841"],
        "one conversation says it all"
    );
    let device = &found.devices()[0];
    for (name, value) in [
        ("applicationType", "ClientAndServer".into()),
        ("modeSignAndEncrypt", true.into()),
        ("policyBasic256Sha256", true.into()),
        ("policyAes128_Sha256_RsaOaep", false.into()),
        ("tokenAnonymous", true.into()),
    ] {
        assert_eq!(device.get_attribute(name), Some(&value), "{name}");
    }
    assert!(device.get_attribute("certificateSha256").is_some());
}

#[test]
fn a_server_listed_by_several_servers_is_one_device() {
    let plc = "opc.tcp://10.1.2.4:4840/";
    let lds = || Fake::discovery("opc.tcp://10.1.2.3:4840/").knows("urn:plc", "PLC", plc);
    let host = lds().at(FakeHost::new(), "10.1.2.3:4840");
    let host = lds().knows("urn:plc", "PLC", plc).at(host, "10.1.2.5:4840");
    let host = Fake::server("urn:plc", "PLC", plc).at(host, "10.1.2.4:4840");
    let urls = [
        "opc.tcp://10.1.2.3:4840/",
        "opc.tcp://10.1.2.5:4840/",
        plc,
        plc,
    ];
    let found = discover(&host, &urls, "");
    assert_eq!(ids(&found), [plc]);
    assert_eq!(connections(&host).len(), 3, "{:?}", connections(&host));
}

#[test]
fn servers_from_find_servers_on_network_are_asked() {
    let lds = Fake::discovery("opc.tcp://10.1.2.3:4840/")
        .knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/")
        .recorded("opc.tcp://10.1.2.4:4840/")
        .recorded("opc.tcp://10.1.2.5:4840/")
        .recorded("opc.tcp://lost:4850/")
        .recorded("opc.tcp://a:4840/")
        .recorded("opc.tcp://10.1.2.3:4840/")
        .recorded("https://10.1.2.7/")
        .recorded("nonsense");
    let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
    let host = Fake::server("urn:b", "B", "opc.tcp://10.1.2.5:4840/UA").at(host, "10.1.2.5:4840");
    let host = Fake::server("urn:c", "C", "opc.tcp://lost:4850/UA").at(host, "10.1.2.3:4850");
    // Another URL of the first server.
    let host = host.name("a", ["10.1.2.4"]);
    let a = Fake::server("urn:a", "A", "").calls_itself_as_asked();
    let host = a.at(host, "10.1.2.4:4840");
    let found = discover(&host, &["opc.tcp://10.1.2.3:4840/"], "");
    assert_eq!(
        ids(&found),
        [
            "opc.tcp://10.1.2.3:4850/UA",
            "opc.tcp://10.1.2.4:4840/",
            "opc.tcp://10.1.2.5:4840/UA"
        ]
    );
    assert!(reason(&host, "opc.tcp://a:4840/").contains("is a device already"));
    assert!(reason(&host, "nonsense").contains("on the network has no scheme"));
    assert_eq!(connections(&host).len(), 5, "{:?}", connections(&host));
}

#[test]
fn a_discovery_server_without_endpoints_is_still_asked_for_its_records() {
    let lds = Fake::discovery("opc.tcp://10.1.2.3:4840/")
        .recorded("opc.tcp://10.1.2.5:4840/")
        .faults_at_endpoints();
    let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
    let host = Fake::server("urn:b", "B", "opc.tcp://10.1.2.5:4840/").at(host, "10.1.2.5:4840");
    let found = discover(&host, &["opc.tcp://10.1.2.3:4840/"], "");
    assert_eq!(ids(&found), ["opc.tcp://10.1.2.5:4840/"]);
}

#[test]
fn a_discovery_server_without_network_records_is_still_used() {
    let lds =
        Fake::discovery("opc.tcp://10.1.2.3:4840/").knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/");
    let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
    let host = Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840");
    assert_eq!(
        ids(&discover(&host, &["opc.tcp://10.1.2.3:4840/"], "")),
        ["opc.tcp://10.1.2.4:4840/"]
    );
    let log = host.log();
    assert!(
        log.iter()
            .any(|(_, line)| line.contains("BadServiceUnsupported")),
        "{log:?}"
    );
}

#[test]
fn a_fault_of_find_servers_on_network_keeps_the_list() {
    // asyncua sends the first status; servers of node-opcua and async-opcua send the second.
    for status in [
        StatusCode::BadUserAccessDenied,
        StatusCode::BadServiceUnsupported,
    ] {
        let lds = Fake::discovery("opc.tcp://10.1.2.3:4840/")
            .knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/")
            .faults_at_records(status);
        let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
        let host = Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840");
        let found = discover(&host, &["opc.tcp://10.1.2.3:4840/"], "");
        assert_eq!(ids(&found), ["opc.tcp://10.1.2.4:4840/"]);
        let (name, log) = (status.to_string(), host.log());
        assert!(log.iter().any(|(_, line)| line.contains(&name)), "{log:?}");
    }
}

#[test]
fn a_discovery_server_that_lists_itself_by_the_requested_url_has_that_id() {
    for asked in ["opc.tcp://10.1.2.3:4840", "opc.tcp://lds:4840"] {
        let host = FakeHost::new().name("lds", ["10.1.2.3"]);
        let lds = Fake::discovery("opc.tcp://127.0.0.1:4840").calls_itself_as_asked();
        let host = lds.at(host, "10.1.2.3:4840");
        let found = discover(&host, &[asked], "applicationTypes: [DiscoveryServer]");
        assert_eq!(ids(&found), [asked], "{:?}", host.skipped());
        assert_eq!(connections(&host), ["10.1.2.3:4840"]);
    }
}

#[test]
fn a_server_that_does_not_answer_is_explained() {
    let url = "opc.tcp://10.1.2.3:4840/";
    let path = "opcuaDiscoveryMethod.standard.discoveryUrls[0]: ";
    for (host, urls, words) in [
        (FakeHost::new(), url, "cannot connect: unreachable"),
        (
            FakeHost::new().tcp_silent("10.1.2.3:4840"),
            url,
            "no hello within 3 s",
        ),
        (
            FakeHost::new().deny("10.1.2.3"),
            url,
            "cannot connect: not granted",
        ),
        (
            FakeHost::new(),
            "opc.tcp://lost:4840/",
            "cannot find the server's address: cannot resolve",
        ),
        (
            Fake::new()
                .faults(StatusCode::BadServiceUnsupported)
                .at(FakeHost::new(), "10.1.2.3:4840"),
            url,
            "the server answered BadServiceUnsupported (0x800B0000)",
        ),
        (
            Fake::new()
                .slow(Duration::from_secs(5))
                .at(FakeHost::new(), "10.1.2.3:4840"),
            url,
            "the answers took longer than 6 s",
        ),
    ] {
        assert_eq!(discover(&host, &[urls], "").devices(), []);
        let why = reason(&host, urls);
        assert!(why.starts_with(path) && why.contains(words), "{why}");
    }
}

#[test]
fn answers_in_many_chunks_are_read() {
    let mut lds = Fake::discovery("opc.tcp://10.1.2.3:4840/").in_chunks(100);
    let mut host = FakeHost::new();
    for number in 0..40 {
        let url = format!("opc.tcp://10.1.3.{number}:4840/");
        lds = lds.knows(&format!("urn:{number}"), "PLC", &url);
        let uri = format!("urn:{number}");
        host = Fake::new()
            .endpoint(&uri)
            .in_chunks(7)
            .at(host, &format!("10.1.3.{number}:4840"));
    }
    let host = lds.at(host, "10.1.2.3:4840");
    let found = discover(&host, &["opc.tcp://10.1.2.3:4840/"], "");
    assert_eq!(found.devices().len(), 40, "{:?}", host.skipped());
    assert!(
        found
            .devices()
            .iter()
            .all(|device| device.get_attribute("modeNone").is_some())
    );
}

#[test]
fn several_dead_servers_cost_one_timeout() {
    let limit = Duration::from_secs(4);
    let alive = |number| number % 10 != 3;
    // Fifty configured servers.
    let mut host = FakeHost::new();
    let mut urls = Vec::new();
    for number in 0..50 {
        let (address, url) = (
            format!("10.1.3.{number}:4840"),
            format!("opc.tcp://10.1.3.{number}:4840/"),
        );
        host = if alive(number) {
            Fake::server("", "PLC", &url).at(host, &address)
        } else {
            host.tcp_silent(&address)
        };
        urls.push(url);
    }
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    assert_eq!(discover(&host, &urls, "").devices().len(), 45);
    assert!(host.now() <= limit, "{:?}", host.now());
    // Fifty listed servers, and one of two lists is slow.
    let mut host = FakeHost::new();
    let mut lds = Fake::discovery("opc.tcp://10.1.2.3:4840/");
    for number in 0..50 {
        let address = format!("10.1.3.{number}:4840");
        lds = lds.knows("", "PLC", &format!("opc.tcp://{address}/"));
        host = if alive(number) {
            Fake::new().at(host, &address)
        } else {
            host.tcp_silent(&address)
        };
    }
    let host = lds.at(host, "10.1.2.3:4840").tcp_silent("10.1.2.4:4840");
    let found = discover(
        &host,
        &["opc.tcp://10.1.2.3:4840/", "opc.tcp://10.1.2.4:4840/"],
        "",
    );
    assert_eq!(found.devices().len(), 45);
    assert!(host.now() <= limit, "{:?}", host.now());
}

#[test]
fn the_second_address_of_a_name_is_tried_after_the_head_start() {
    let host = FakeHost::new()
        .name("plc", ["fd00::7", "10.1.2.3"])
        .tcp_silent("10.1.2.3:4840");
    let host = Fake::server("urn:plc", "PLC", "opc.tcp://plc:4840/").at(host, "[fd00::7]:4840");
    assert_eq!(
        discover(&host, &["opc.tcp://plc:4840/"], "")
            .devices()
            .len(),
        1
    );
    assert!(host.now() < Duration::from_secs(1), "{:?}", host.now());
    assert_eq!(connections(&host), ["10.1.2.3:4840", "[fd00::7]:4840"]);
}

#[test]
fn a_server_on_this_machine_is_a_local_device() {
    for (url, address) in [
        ("opc.tcp://127.0.0.1:4840/", "127.0.0.1:4840"),
        ("opc.tcp://[::1]:4840/", "[::1]:4840"),
        ("opc.tcp://localhost:4840/", "127.0.0.1:4840"),
    ] {
        let host = Fake::server("urn:plc", "PLC", url).at(FakeHost::new(), address);
        let found = discover(&host, &[url], "");
        // The id is the same on every node, as in Akri; the host distinguishes the nodes.
        assert_eq!(ids(&found), [url]);
        assert_eq!(found.devices()[0].shared, Some(false));
    }
    let host = Fake::server("urn:plc", "PLC", "opc.tcp://localhost:4840/")
        .at(FakeHost::new(), "[::1]:4840");
    let found = Call::<OpcUa>::new("opcuaDiscoveryMethod: {standard: {}}")
        .run(&host)
        .unwrap();
    assert_eq!(ids(&found), ["opc.tcp://localhost:4840/"]);
    assert_eq!(found.devices()[0].shared, Some(false));
    assert_eq!(connections(&host), ["127.0.0.1:4840", "[::1]:4840"]);
}

#[test]
fn problems_of_details_name_the_field() {
    let many = details(&["opc.tcp://plc:4840/"; 65], "");
    let url = |url: &str| details(&[url], "");
    let good = "opcuaDiscoveryMethod: {standard: {}}";
    let first = "opcuaDiscoveryMethod.standard.discoveryUrls[0]";
    for (text, path, words) in [
        (String::new(), "opcuaDiscoveryMethod", "is missing"),
        (
            "opcuaDiscoveryMethod: {}".to_owned(),
            "opcuaDiscoveryMethod.standard",
            "is missing",
        ),
        (
            format!("{good}\napplicationName: {{action: Exclude, items: []}}"),
            "applicationName",
            "unknown field applicationName; did you mean applicationNames?",
        ),
        (
            "opcuaDiscoveryMethod: {standard: {discoveryUrl: []}}".to_owned(),
            "opcuaDiscoveryMethod.standard.discoveryUrl",
            "unknown field discoveryUrl; did you mean discoveryUrls?",
        ),
        (url("opc.tcp://plc/"), first, "has no port; 4840"),
        (url("http://plc:4840/"), first, "only opc.tcp is supported"),
        (
            url("plc:4840"),
            first,
            "has no scheme; write it as opc.tcp://HOST:PORT/",
        ),
        (
            url("opc.tcp://plc:x/"),
            first,
            "has a port that is not a number",
        ),
        (url("''"), first, "has no scheme"),
        (
            many,
            "opcuaDiscoveryMethod.standard.discoveryUrls",
            "has 65 URLs, at most 64",
        ),
        (
            format!("{good}\napplicationNames: {{action: Include}}"),
            "applicationNames.items",
            "is missing",
        ),
        (
            format!("{good}\napplicationNames: {{action: x, items: []}}"),
            "applicationNames.action",
            "Include",
        ),
        (
            format!("{good}\napplicationTypes: []"),
            "applicationTypes",
            "is empty",
        ),
        (
            format!("{good}\napplicationTypes: [Client]"),
            "applicationTypes[0]",
            "is \"Client\", but must be one of Server, ClientAndServer",
        ),
        (
            format!("{good}\nhostRewrite: always"),
            "hostRewrite",
            "use-configured-host",
        ),
    ] {
        let problems = validate::<OpcUa>(&text);
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert_eq!(problems[0].path, path, "{text}: {problems:?}");
        assert!(problems[0].message.contains(words), "{text}: {problems:?}");
    }
    let two = validate::<OpcUa>(&details(&["a", "opc.tcp://plc:4840/", "b"], ""));
    assert_eq!(two.len(), 2, "every wrong URL is named");
    for text in [
        "opcuaDiscoveryMethod: {standard: {}}",
        "opcuaDiscoveryMethod: {standard: {discoveryUrls: []}}",
        "{opcuaDiscoveryMethod: {standard: {}}, hostRewrite: none}",
    ] {
        assert_eq!(validate::<OpcUa>(text), [], "{text}");
    }
}

#[test]
fn the_description_is_valid() {
    assert_eq!(description_problems::<OpcUa>(), Vec::<String>::new());
}

#[test]
fn the_order_of_answers_does_not_change_the_devices() {
    let mut urls = Vec::new();
    let mut host = FakeHost::new();
    for number in [3, 1, 2] {
        let url = format!("opc.tcp://10.1.2.{number}:4840/");
        host = Fake::server("", "PLC", &url).at(host, &format!("10.1.2.{number}:4840"));
        urls.push(url);
    }
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let found = discover(&host, &urls, "");
    let sorted: Vec<&Device> = found.devices().iter().collect();
    assert!(sorted.is_sorted_by_key(|device| &device.id));
}
