//! Tests that Configurations of Akri's users give the same ids, names and values.

use super::*;

/// Creates a network with an open camera, one with two addresses, and one that reports its interfaces only with a password.
fn mk_site() -> FakeHost {
    let announced = |n: u32, name: &str, xaddrs: &str| {
        let text = String::from_utf8(mk_match(&uuid(n), xaddrs)).unwrap();
        text.replace("name/Cam", &format!("name/{name}"))
            .into_bytes()
    };
    let second = format!("http://10.0.0.1{SERVICE}");
    let host = answering(
        mk_network(),
        "192.168.7.9:3702",
        announced(9, "GreatONVIFCamera", &url(9)),
    );
    let host = answering(
        host,
        "10.0.0.1:3702",
        announced(10, "AwesomeONVIFCamera", &second),
    );
    let host = answering(host, "192.168.7.11:3702", announced(11, "Locked", &url(11)));
    with_service(host, 9)
        .http_server("http://10.0.0.1:80", |request| {
            let mut response = answer(10, request);
            let body = String::from_utf8_lossy(&response.body).replace("192.168.7.10", "10.0.0.1");
            response.body = body.into_bytes();
            response.into()
        })
        .http_server("http://192.168.7.11:80", |request| {
            if String::from_utf8_lossy(&request.body).contains("<GetSystemDateAndTime ") {
                answer(11, request).into()
            } else {
                http::Response::new(401, "").into()
            }
        })
}

/// Creates details as rendered by Akri's chart: filters with and without items, and much white space.
fn mk_details(ips: &str, macs: &str, scopes: &str, more: &str) -> String {
    format!(
        "ipAddresses: \n  action: {ips}\nmacAddresses:\n  action: {macs}\nscopes:\n  action: {scopes}\n{more}\n\n"
    )
}

#[test]
fn configurations_of_akri_give_the_same_instances() {
    const NONE: &str = "Exclude\n  items: []";
    let all: &[u32] = &[9, 10, 11];
    for (details, expected) in [
        (String::new(), all),
        (
            mk_details(NONE, NONE, NONE, "discoveryTimeoutSeconds: 1"),
            all,
        ),
        (
            mk_details(
                NONE,
                NONE,
                NONE,
                "uuids:\n  action: Exclude\n  items: []\ndiscoveryTimeoutSeconds: 2",
            ),
            all,
        ),
        (
            mk_details(
                "Exclude\n  items:\n  - 10.0.0.1\n  - 10.0.0.2",
                NONE,
                NONE,
                "",
            ),
            &[9, 11],
        ),
        (
            mk_details(
                "Exclude\n  items:\n  - 10.0.0.1\n  - 10.0.0.2",
                NONE,
                "Include\n  items:\n  - onvif://www.onvif.org/name/GreatONVIFCamera\n  - onvif://www.onvif.org/name/AwesomeONVIFCamera",
                "discoveryTimeoutSeconds: 2",
            ),
            &[9],
        ),
        (
            mk_details(NONE, "Include\n  items:\n  - 00:11:22:33:44:0A", NONE, ""),
            &[10],
        ),
        // A camera that does not report the value is dropped by any filter on it.
        (
            mk_details(NONE, "Exclude\n  items:\n  - 00:11:22:33:44:0A", NONE, ""),
            &[9],
        ),
        (
            mk_details(
                NONE,
                NONE,
                NONE,
                "uuids:\n  action: Include\n  items:\n  - 00000000-0000-4000-8000-00000000000B\n  - 00000000-0000-4000-8000-000000000011",
            ),
            &[11],
        ),
        (mk_details(NONE, NONE, "Include\n  items: []", ""), &[]),
    ] {
        let found = call(&details).run(&mk_site()).unwrap();
        let mut expected: Vec<_> = expected
            .iter()
            .map(|n| {
                let url = match n {
                    10 => format!("http://10.0.0.1{SERVICE}"),
                    n => url(*n),
                };
                let mut properties = vec![
                    ("ONVIF_DEVICE_SERVICE_URL".to_owned(), url.clone()),
                    ("ONVIF_DEVICE_UUID".to_owned(), uuid(*n)),
                ];
                let ip = match n {
                    10 => "10.0.0.1".to_owned(),
                    n => format!("192.168.7.{n}"),
                };
                properties.push(("ONVIF_DEVICE_IP_ADDRESS".to_owned(), ip));
                if *n != 11 {
                    let mac = format!("00:11:22:33:44:{n:02x}");
                    properties.push(("ONVIF_DEVICE_MAC_ADDRESS".to_owned(), mac));
                }
                (format!("{url}-{}", uuid(*n)), properties)
            })
            .collect();
        expected.sort();
        let found: Vec<_> = found
            .devices()
            .iter()
            .map(|device| {
                // Akri's handler shares all its devices, and so does this one.
                assert_eq!(device.shared, None);
                assert!(device.mounts.is_empty() && device.device_nodes.is_empty());
                (device.id.clone(), device.properties.clone())
            })
            .collect();
        assert_eq!(found, expected, "{details}");
    }
}
