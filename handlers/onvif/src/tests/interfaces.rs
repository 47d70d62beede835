//! Tests of cameras with several network interfaces.

use super::*;

fn mk_interface(mac: &str, is_enabled: Option<bool>, version: &str, ips: &[&str]) -> String {
    let enabled = is_enabled.map_or(String::new(), |is| format!("<tt:Enabled>{is}</tt:Enabled>"));
    let addresses: String = ips
        .iter()
        .map(|ip| format!("<tt:Manual><tt:Address>{ip}</tt:Address></tt:Manual>"))
        .collect();
    format!(
        "<tds:NetworkInterfaces>{enabled}<tt:Info><tt:HwAddress>{mac}</tt:HwAddress></tt:Info>\
         <tt:{version}><tt:Enabled>true</tt:Enabled><tt:Config>{addresses}</tt:Config></tt:{version}></tds:NetworkInterfaces>"
    )
}

/// Adds camera `n` with these interfaces.
fn with_interfaces(host: FakeHost, n: u32, interfaces: String) -> FakeHost {
    announced(host, n).http_server(&format!("http://192.168.7.{n}:80"), move |request| {
        if !String::from_utf8_lossy(&request.body).contains("<GetNetworkInterfaces ") {
            return answer(n, request).into();
        }
        let body = format!(
            "<tds:GetNetworkInterfacesResponse>{interfaces}</tds:GetNetworkInterfacesResponse>"
        );
        http::Response::new(200, mk_soap(&body)).into()
    })
}

const DEAD: &str = "00:00:00:00:00:dd";
const LIVE: &str = "00:11:22:33:44:09";

#[test]
fn the_hardware_address_is_that_of_the_interface_that_is_asked_else_of_the_first_enabled_one() {
    let (on, off) = (Some(true), Some(false));
    for (name, interfaces, ip) in [
        (
            "a disabled one first",
            mk_interface(DEAD, off, "IPv4", &[])
                + &mk_interface(LIVE, on, "IPv4", &["192.168.7.9"]),
            "192.168.7.9",
        ),
        (
            "an enabled one without a cable first",
            mk_interface(DEAD, on, "IPv4", &["192.168.1.10"])
                + &mk_interface(LIVE, on, "IPv4", &["192.168.7.9"]),
            "192.168.7.9",
        ),
        (
            "the one that is asked says that it is disabled",
            mk_interface(DEAD, on, "IPv4", &["192.168.1.10"])
                + &mk_interface(LIVE, off, "IPv4", &["192.168.7.9"]),
            "192.168.7.9",
        ),
        (
            "behind a mapped address, a disabled one with an address first",
            mk_interface(DEAD, off, "IPv4", &["192.168.1.10"])
                + &mk_interface(LIVE, on, "IPv4", &["10.0.0.9"]),
            "10.0.0.9",
        ),
        (
            "none tells an address",
            mk_interface(DEAD, off, "IPv4", &[]) + &mk_interface(LIVE, None, "IPv4", &[]),
            "192.168.7.9",
        ),
        (
            "the one that is asked tells no hardware address",
            mk_interface("", on, "IPv4", &["192.168.7.9"])
                + &mk_interface(DEAD, off, "IPv4", &[])
                + &mk_interface(LIVE, on, "IPv6", &["2001:db8::9"]),
            "192.168.7.9",
        ),
        (
            "all are disabled",
            mk_interface(LIVE, off, "IPv4", &[]) + &mk_interface(DEAD, off, "IPv4", &[]),
            "192.168.7.9",
        ),
    ] {
        let host = with_interfaces(mk_network(), 9, interfaces);
        let found = call("").run(&host).unwrap();
        let device = &found.devices()[0];
        let property = |name: &str| device.get_property(name).unwrap_or_default().to_owned();
        assert_eq!(property("ONVIF_DEVICE_MAC_ADDRESS"), LIVE, "{name}");
        assert_eq!(property("ONVIF_DEVICE_IP_ADDRESS"), ip, "{name}");
    }
}

#[test]
fn a_filter_compares_the_hardware_addresses_of_all_interfaces() {
    let other = "00:11:22:33:44:08";
    for (filter, numbers) in [
        (format!("{{items: ['{LIVE}']}}"), &[9][..]),
        (format!("{{items: ['{other}']}}"), &[8]),
        (format!("{{items: ['{DEAD}']}}"), &[8, 9]),
        (format!("{{action: Exclude, items: ['{LIVE}']}}"), &[8]),
        (format!("{{action: Exclude, items: ['{DEAD}']}}"), &[]),
    ] {
        let mut host = mk_network();
        for (n, mac) in [(8, other), (9, LIVE)] {
            let ip = format!("192.168.7.{n}");
            let interfaces = mk_interface(DEAD, Some(false), "IPv4", &[])
                + &mk_interface(mac, Some(true), "IPv4", &[&ip]);
            host = with_interfaces(host, n, interfaces);
        }
        let found = call(&format!("macAddresses: {filter}")).run(&host).unwrap();
        let expected: Vec<String> = numbers.iter().map(|n| id(*n)).collect();
        assert_eq!(ids(&found), expected, "{filter}");
        // The next call has them from the cursor.
        host.pass(Duration::from_secs(10));
        let details = format!("macAddresses: {filter}");
        let again = next(&found, &details, vec![Event::Timer])
            .run(&host)
            .unwrap();
        assert_eq!(again.devices, Devices::Unchanged, "{filter}");
    }
}
