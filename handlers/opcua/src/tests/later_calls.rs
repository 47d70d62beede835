//! Tests of calls after the first.

use leafhost_sdk::testing::{Call, FakeHost, TcpReaction, budget};
use leafhost_sdk::{Budget, Devices, Discovery, Event, Wake};

use super::fake::Fake;
use super::{details, discover, ids, reason};
use crate::OpcUa;

fn again(host: &FakeHost, urls: &[&str], before: &Discovery) -> Discovery {
    let call = Call::<OpcUa>::new(&details(urls, "")).events([Event::Timer]);
    call.cursor(before.cursor.clone().unwrap())
        .run(host)
        .unwrap()
}

#[test]
fn an_unchanged_server_gets_few_requests_and_the_answer_is_unchanged() {
    let lds =
        Fake::discovery("opc.tcp://10.1.2.3:4840/").knows("urn:a", "A", "opc.tcp://10.1.2.4:4840/");
    let mk_host = |name: &str| {
        let host = lds
            .clone()
            .knows("urn:b", name, "opc.tcp://10.1.2.5:4840/")
            .at(FakeHost::new(), "10.1.2.3:4840");
        let host = Fake::new().endpoint("urn:a").at(host, "10.1.2.4:4840");
        Fake::new().endpoint("urn:b").at(host, "10.1.2.5:4840")
    };
    let urls = ["opc.tcp://10.1.2.3:4840/"];
    let first = discover(&mk_host("B"), &urls, "");
    assert_eq!(first.wakes(), [Wake::After(10_000), Wake::Network]);

    let second = again(&mk_host("B"), &urls, &first);
    assert_eq!(second.devices, Devices::Unchanged);
    assert_eq!(
        again(&mk_host("B"), &urls, &second).devices,
        Devices::Unchanged
    );
    // The name has changed, and the endpoints are known.
    let third = again(&mk_host("C"), &urls, &second);
    assert_eq!(third.devices().len(), 2);
    assert_eq!(
        third.devices()[1].get_attribute("modeNone"),
        Some(&true.into())
    );
    // One server is gone and left out.
    let gone = lds.clone().at(FakeHost::new(), "10.1.2.3:4840");
    let fourth = again(&gone, &urls, &second);
    assert!(
        matches!(&fourth.devices, Devices::Complete(devices) if devices.is_empty()),
        "{fourth:?}"
    );
    assert_eq!(fourth.departed, Vec::<String>::new());
    // A restarted agent needs all devices.
    let call = Call::<OpcUa>::new(&details(&urls, "")).cursor(second.cursor.clone().unwrap());
    assert_eq!(call.run(&mk_host("B")).unwrap().devices().len(), 2);
}

#[test]
fn missing_endpoints_are_taken_from_the_last_call() {
    let urls = ["opc.tcp://10.1.2.3:4840/"];
    let server = || Fake::server("urn:a", "A", urls[0]);
    let first = discover(&server().at(FakeHost::new(), "10.1.2.3:4840"), &urls, "");
    let mut last = first.clone();
    for _ in 0..70 {
        let silent = server().without_endpoints();
        last = again(&silent.at(FakeHost::new(), "10.1.2.3:4840"), &urls, &last);
        assert_eq!(last.devices, Devices::Unchanged);
    }
}

#[test]
fn known_servers_stay_if_not_all_devices_fit() {
    let url = |number| format!("opc.tcp://10.1.2.{number}:4840/");
    let mk_host = |numbers: &[u8]| {
        numbers.iter().fold(FakeHost::new(), |host, number| {
            Fake::server("", "PLC", &url(*number)).at(host, &format!("10.1.2.{number}:4840"))
        })
    };
    let urls: Vec<String> = (1..=4).map(url).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let first = discover(&mk_host(&[3, 4]), &urls, "");
    let host = mk_host(&[1, 2, 3, 4]);
    let second = Call::<OpcUa>::new(&details(&urls, ""))
        .events([Event::Timer])
        .budget(Budget {
            devices: 3,
            ..budget()
        })
        .cursor(first.cursor.unwrap())
        .run(&host)
        .unwrap();
    assert_eq!(ids(&second), [urls[0], urls[2], urls[3]]);
    assert!(reason(&host, urls[1]).contains("more servers than an answer"));
}

/// Creates a server whose first connection is lost, or every one if it is `gone`.
fn mk_shaky(address: &str, gone: bool) -> FakeHost {
    let lost = std::cell::Cell::new(0);
    let fake = std::rc::Rc::new(Fake::server("urn:a", "A", "opc.tcp://127.0.0.1:4840/"));
    FakeHost::new().tcp_server(address, move || {
        lost.set(lost.get() + 1);
        let (fake, close) = (fake.clone(), gone || lost.get() == 1);
        Box::new(move |bytes| {
            if close {
                TcpReaction {
                    close: true,
                    ..TcpReaction::default()
                }
            } else {
                fake.react(bytes)
            }
        })
    })
}

#[test]
fn one_lost_connection_withdraws_no_known_server() {
    let url = "opc.tcp://127.0.0.1:4840/";
    let server = || Fake::server("urn:a", "A", url);
    let first = discover(&server().at(FakeHost::new(), "127.0.0.1:4840"), &[url], "");
    assert_eq!(first.devices().len(), 1);
    let host = mk_shaky("127.0.0.1:4840", false);
    let second = again(&host, &[url], &first);
    assert_eq!(second.devices, Devices::Unchanged);
    let host = mk_shaky("127.0.0.1:4840", true);
    let third = again(&host, &[url], &second);
    assert!(third.devices().is_empty() && third.devices != Devices::Unchanged);
    assert!(host.now() < std::time::Duration::from_secs(2));
    // An unknown server is asked once.
    let host = mk_shaky("127.0.0.1:4840", true);
    discover(&host, &[url], "");
    assert!(host.now() < std::time::Duration::from_secs(1));
}

#[test]
fn a_known_listed_server_is_asked_again_after_a_failure() {
    let lds = || {
        let lds = Fake::discovery("opc.tcp://127.0.0.1:4841/");
        lds.knows("urn:a", "A", "opc.tcp://127.0.0.1:4840/")
    };
    let urls = ["opc.tcp://127.0.0.1:4841/"];
    let host = lds().at(FakeHost::new(), "127.0.0.1:4841");
    let first = discover(
        &Fake::new().endpoint("urn:a").at(host, "127.0.0.1:4840"),
        &urls,
        "",
    );
    assert_eq!(first.devices().len(), 1);
    let host = lds().at(mk_shaky("127.0.0.1:4840", false), "127.0.0.1:4841");
    assert_eq!(again(&host, &urls, &first).devices, Devices::Unchanged);
}
