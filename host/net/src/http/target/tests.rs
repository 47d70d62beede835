use super::*;

fn target(url: &str) -> Result<Target, String> {
    let uri: Uri = url.parse().map_err(|error| format!("uri: {error}"))?;
    Target::of(&uri).map_err(|error| error.to_string())
}

#[test]
fn a_url_says_host_port_and_host_header() {
    let cases = [
        ("http://192.168.7.9", "192.168.7.9", 80, "192.168.7.9"),
        ("http://192.168.7.9:80/x", "192.168.7.9", 80, "192.168.7.9"),
        ("http://192.168.7.9:/x", "192.168.7.9", 80, "192.168.7.9"),
        (
            "http://192.168.7.9:8080/x?y",
            "192.168.7.9",
            8080,
            "192.168.7.9:8080",
        ),
        ("https://192.168.7.9:443", "192.168.7.9", 443, "192.168.7.9"),
        (
            "https://192.168.7.9:80",
            "192.168.7.9",
            80,
            "192.168.7.9:80",
        ),
        (
            "http://[2001:DB8::1]:81",
            "2001:db8::1",
            81,
            "[2001:db8::1]:81",
        ),
        (
            "http://[::ffff:192.168.7.9]",
            "192.168.7.9",
            80,
            "192.168.7.9",
        ),
        ("http://[fe80::1%25lo]:81/", "fe80::1", 81, "[fe80::1]:81"),
        (
            "http://Cam-1.Example.COM.:81",
            "cam-1.example.com",
            81,
            "cam-1.example.com:81",
        ),
        ("http://cam_1", "cam_1", 80, "cam_1"),
    ];
    for (url, host, port, header) in cases {
        let found = target(url).unwrap();
        let told = (found.host.to_string(), found.port, found.authority());
        assert_eq!(told, (host.into(), port, header.into()), "{url}");
    }
}

#[test]
fn a_zone_is_an_interface_by_name_or_index() {
    let cases = [
        ("http://[fe80::1%25lo]:81/", 1),
        ("http://[fe80::1%lo]:81/", 1),
        ("http://[fe80::1%253]:81/", 3),
        ("http://[fe80::1%25]:81/", 25),
        ("http://[fe80::1%4]:81/", 4),
    ];
    for (url, index) in cases {
        let found = target(url).unwrap();
        let expected = SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, index);
        assert_eq!(found.host, Host::Address(expected.into()), "{url}");
    }
}

#[test]
fn what_is_no_target_is_refused_with_the_reason() {
    let long = format!("http://{}/", "a.".repeat(150));
    let cases = [
        ("ftp://cam/", "http:// or https://"),
        ("/onvif", "http:// or https://"),
        ("http://user:word@cam/", "user name"),
        ("http://cam:0/", "port"),
        ("http://cam:70000/", "port"),
        ("http://cam:+80/", "port"),
        ("http://[fe80::1]/", "[fe80::1%25eth0]"),
        (
            "http://[fe80::1%25no-such-nic]/",
            "no interface \"no-such-nic\"",
        ),
        ("http://[2001:db8::1%25lo]/", "not link-local"),
        ("http://[cam]/", "between the brackets"),
        ("http://0.0.0.0/", "not an address of a peer"),
        ("http://[::]/", "not an address of a peer"),
        ("http://[::ffff:0.0.0.0]/", "not an address of a peer"),
        ("http://239.255.255.250/", "not an address of a peer"),
        ("http://[ff02::c]/", "not an address of a peer"),
        ("http://255.255.255.255/", "not an address of a peer"),
        ("http://127.1/", "an unsupported form"),
        ("http://2130706433/", "an unsupported form"),
        ("http://0x7f000001/", "an unsupported form"),
        ("http://127.0.0.0x1/", "an unsupported form"),
        ("http://1.2.3.4.5/", "an unsupported form"),
        ("http://cam..example/", "not a host name"),
        ("http://-cam/", "not a host name"),
        ("http://cam*/", "not a host name"),
        (&long, "not a host name"),
    ];
    for (url, reason) in cases {
        let error = target(url).unwrap_err();
        assert!(error.contains(reason), "{url}: {error}");
        assert!(
            error.starts_with("cannot send the request: "),
            "{url}: {error}"
        );
    }
}
