//! Behaviour that Akri's users rely on: filters, ids, and the differences.

use leafhost_sdk::testing::FakeHost;
use opcua_types::ApplicationType;

use super::fake::{Fake, application};
use super::{connections, discover, ids, reason};

/// Checks the URL of a server's own entry, as in Akri: its host if it can be resolved, otherwise the configured URL with the
/// path.
#[test]
fn a_server_has_the_url_it_has_in_akri() {
    for (configured, listed, id) in [
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://plc:4840/UA",
            "opc.tcp://plc:4840/UA",
        ),
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://10.1.2.3:4840/UA",
            "opc.tcp://10.1.2.3:4840/UA",
        ),
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://lost:4840/UA",
            "opc.tcp://10.1.2.3:4840/UA",
        ),
        (
            "opc.tcp://10.1.2.3:4840",
            "opc.tcp://lost:4840/UA",
            "opc.tcp://10.1.2.3:4840/UA",
        ),
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://lost:4840",
            "opc.tcp://10.1.2.3:4840/",
        ),
        (
            "opc.tcp://10.1.2.3:4840",
            "opc.tcp://lost:4840/",
            "opc.tcp://10.1.2.3:4840/",
        ),
        // Behind a mapped port the requested URL is the one that works.
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://lost:14840/UA",
            "opc.tcp://10.1.2.3:4840/UA",
        ),
        (
            "opc.tcp://plc:4840/",
            "opc.tcp://lost:4840/UA",
            "opc.tcp://plc:4840/UA",
        ),
        // Akri would publish an unreachable URL.
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://0.0.0.0:4840/UA",
            "opc.tcp://10.1.2.3:4840/UA",
        ),
        (
            "opc.tcp://10.1.2.3:4840/",
            "opc.tcp://localhost:4840/UA",
            "opc.tcp://10.1.2.3:4840/UA",
        ),
        (
            "opc.tcp://10.1.2.3:4840/a",
            "opc.tcp://lost:4840/a",
            "opc.tcp://10.1.2.3:4840/a",
        ),
    ] {
        let host = FakeHost::new().name("plc", ["10.1.2.3"]);
        let host = Fake::server("urn:plc", "PLC", listed).at(host, "10.1.2.3:4840");
        let found = discover(&host, &[configured], "");
        assert_eq!(
            ids(&found),
            [id],
            "{configured} {listed} {:?}",
            host.skipped()
        );
        assert_eq!(found.devices()[0].shared, Some(true));
    }
}

#[test]
fn a_server_that_lists_an_address_beyond_a_router_has_the_remedy() {
    const ASKED: &str = "opc.tcp://10.1.2.3:14840/";
    const LISTED: &str = "opc.tcp://192.168.0.5:4840/";
    let mk_host = || Fake::server("urn:plc", "PLC", LISTED).at(FakeHost::new(), "10.1.2.3:14840");
    let host = mk_host();
    assert_eq!(discover(&host, &[ASKED], "").devices(), []);
    let why = reason(&host, LISTED);
    assert!(
        why.contains("it answered at opc.tcp://10.1.2.3:14840/")
            && why.ends_with("write hostRewrite: use-configured-host"),
        "{why}"
    );
    let found = discover(&mk_host(), &[ASKED], "hostRewrite: use-configured-host");
    assert_eq!(ids(&found), [ASKED]);
    // A server that is down has no other address.
    let host = Fake::discovery(ASKED).knows("urn:plc", "PLC", LISTED);
    let host = host.at(FakeHost::new(), "10.1.2.3:14840");
    assert_eq!(discover(&host, &[ASKED], "").devices(), []);
    let why = reason(&host, LISTED);
    assert!(!why.contains("hostRewrite"), "{why}");
}

#[test]
fn hosts_are_rewritten_as_the_details_say() {
    const LDS: &str = "opc.tcp://10.1.2.3:4840/";
    for (mode, listed, expected) in [
        ("none", "opc.tcp://plc:4842/a", Ok("opc.tcp://plc:4842/a")),
        ("none", "opc.tcp://lost:4842/a", Err("hostRewrite is none")),
        (
            "unresolvable",
            "opc.tcp://plc:4842/a",
            Ok("opc.tcp://plc:4842/a"),
        ),
        (
            "unresolvable",
            "opc.tcp://lost:4842/a",
            Ok("opc.tcp://10.1.2.3:4842/a"),
        ),
        (
            "unresolvable",
            "opc.tcp://lost_%:4842/a",
            Ok("opc.tcp://10.1.2.3:4842/a"),
        ),
        (
            "use-configured-host",
            "opc.tcp://plc:4842/a",
            Ok("opc.tcp://10.1.2.3:4842/a"),
        ),
        (
            "use-configured-host",
            "opc.tcp://10.9.9.9:4842/",
            Ok("opc.tcp://10.1.2.3:4842/"),
        ),
        // Another server listens there, or the discovery server itself.
        (
            "unresolvable",
            "opc.tcp://lost:4840/a",
            Err("answers in its place"),
        ),
        (
            "unresolvable",
            "opc.tcp://lost:4843/a",
            Err("answers in its place"),
        ),
    ] {
        let host = FakeHost::new().name("plc", ["10.1.2.9"]);
        let host = Fake::discovery(LDS)
            .knows("urn:plc", "PLC", listed)
            .at(host, "10.1.2.3:4840");
        let host = Fake::new().endpoint("urn:plc").at(host, "10.1.2.3:4842");
        let host = Fake::new().endpoint("urn:plc").at(host, "10.1.2.9:4842");
        let host = Fake::new().endpoint("urn:other").at(host, "10.1.2.3:4843");
        let found = discover(&host, &[LDS], &format!("hostRewrite: {mode}"));
        match expected {
            Ok(id) => assert_eq!(ids(&found), [id], "{mode} {listed} {:?}", host.skipped()),
            Err(words) => {
                assert_eq!(found.devices(), []);
                let skipped = host.skipped();
                assert!(
                    skipped
                        .iter()
                        .any(|skipped| skipped.rule == "hostRewrite"
                            && skipped.reason.contains(words)),
                    "{mode} {listed} {skipped:?}"
                );
            }
        }
    }
}

#[test]
fn only_applications_whose_name_passes_the_filter_are_devices() {
    let mk_host = || {
        let lds = Fake::discovery("opc.tcp://10.1.2.3:4840/")
            .knows("urn:a", "PLC 1", "opc.tcp://10.1.2.4:4840/")
            .knows("urn:b", "PLC 2", "opc.tcp://10.1.2.5:4840/");
        let host = lds.at(FakeHost::new(), "10.1.2.3:4840");
        let host = Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840");
        Fake::new().endpoint("urn:b").at(host, "10.1.2.5:4840")
    };
    let (one, two) = ("opc.tcp://10.1.2.4:4840/", "opc.tcp://10.1.2.5:4840/");
    for (filter, expected) in [
        ("items: [PLC 1]", &[one][..]),
        ("{action: Include, items: [PLC 2, x]}", &[two]),
        ("{action: Exclude, items: [PLC 2]}", &[one]),
        ("{action: Exclude, items: []}", &[one, two]),
        ("items: []", &[]),
        ("items: [plc 1]", &[]),
    ] {
        let host = mk_host();
        let filter = filter.trim_start_matches('{').trim_end_matches('}');
        let found = discover(
            &host,
            &["opc.tcp://10.1.2.3:4840/"],
            &format!("applicationNames: {{{filter}}}"),
        );
        assert_eq!(ids(&found), expected, "{filter}");
        for url in [one, two].iter().filter(|url| !expected.contains(url)) {
            let why = reason(&host, url);
            assert!(why.starts_with("applicationNames: "), "{why}");
        }
        let asked = connections(&host).len();
        assert_eq!(asked, 1 + expected.len(), "who is left out is not asked");
    }
}

#[test]
fn the_url_is_the_first_opc_tcp_one_or_else_the_first() {
    for (urls, expected) in [
        (
            &["https://10.1.2.4:443/", "opc.tcp://10.1.2.4:4840/"][..],
            Ok("opc.tcp://10.1.2.4:4840/"),
        ),
        (
            &["https://10.1.2.4:443/", "opc.wss://10.1.2.4:4843/"],
            Ok("https://10.1.2.4:443/"),
        ),
        (
            &["https://10.1.2.4:444/"],
            Err(("https://10.1.2.4:444/", "there is no server")),
        ),
        (&[], Err(("PLC", "lists no discovery URL"))),
        (&["plc"], Err(("plc", "has no scheme"))),
        (&["opc.tcp://"], Err(("opc.tcp://", "has no host"))),
    ] {
        let plc = application("urn:plc", "PLC", ApplicationType::Server, urls);
        let host = Fake::discovery("opc.tcp://10.1.2.3:4840/")
            .lists(plc)
            .at(FakeHost::new(), "10.1.2.3:4840");
        let host = Fake::new().endpoint("urn:plc").at(host, "10.1.2.4:4840");
        let host = Fake::new().at(host, "10.1.2.4:443");
        let found = discover(&host, &["opc.tcp://10.1.2.3:4840/"], "");
        match expected {
            Ok(id) => assert_eq!(ids(&found), [id]),
            Err((subject, words)) => {
                assert_eq!(found.devices(), []);
                let why = reason(&host, subject);
                assert!(why.contains(words), "{why}");
            }
        }
    }
}
