use super::*;

fn mk_envelope(body: &str) -> Vec<u8> {
    format!(r#"<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Body>{body}</s:Body></s:Envelope>"#)
        .into_bytes()
}

/// Formats the addresses of each interface, and their hardware addresses.
fn shown(answer: &Answer) -> (String, String) {
    let ips = answer.interfaces.iter().map(|one| {
        let ips: Vec<_> = one.ips.iter().map(ToString::to_string).collect();
        ips.join(" ")
    });
    let macs: Vec<&str> = answer
        .interfaces
        .iter()
        .map(|one| one.mac.as_str())
        .collect();
    (ips.collect::<Vec<_>>().join(" | "), macs.join(" | "))
}

fn is_not_authorized(status: u16, body: &[u8]) -> bool {
    matches!(
        read(Operation::GetDeviceInformation, status, body),
        Err(Failure::NotAuthorized(_))
    )
}

#[test]
fn a_request_has_the_form_that_old_devices_require() {
    assert_eq!(
        Operation::GetScopes.request("", None),
        "<s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\"><s:Body xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\"><GetScopes xmlns=\"http://www.onvif.org/ver10/device/wsdl\"/></s:Body></s:Envelope>"
    );
    assert_eq!(
        Operation::GetNetworkInterfaces.content_type(),
        "application/soap+xml; charset=utf-8; action=\"http://www.onvif.org/ver10/device/wsdl/GetNetworkInterfaces\""
    );
    let request = Operation::GetScopes.request("", Some("<t/>"));
    assert!(
        request.contains("<s:Header><t/></s:Header><s:Body"),
        "{request}"
    );
}

#[test]
fn recorded_answers_are_read() {
    let time = |body: &[u8]| {
        let answer = read(Operation::GetSystemDateAndTime, 200, body).unwrap();
        answer.time.unwrap().xml()
    };
    assert_eq!(
        time(include_bytes!(
            "../../fixtures/onvif-server-GetSystemDateAndTime.xml"
        )),
        "2026-11-20T08:58:44Z"
    );
    assert_eq!(
        time(include_bytes!(
            "../../fixtures/predator-GetSystemDateAndTime.xml"
        )),
        "2014-12-24T19:14:37Z"
    );
    for (body, told) in [
        (
            &include_bytes!("../../fixtures/onvif-server-GetDeviceInformation.xml")[..],
            ["Example & Sons", "Minimal <1>", "1.0.0", "SN-0001"],
        ),
        (
            include_bytes!("../../fixtures/predator-GetDeviceInformation.xml"),
            [
                "Mockup Manufacturer",
                "Mockup Model",
                "Mockup_15_14_13",
                "00000000",
            ],
        ),
    ] {
        let answer = read(Operation::GetDeviceInformation, 200, body).unwrap();
        assert!(answer.is_response);
        assert_eq!(
            [
                answer.manufacturer,
                answer.model,
                answer.firmware,
                answer.serial
            ],
            told
        );
    }
    for (body, ip, mac) in [
        (
            &include_bytes!("../../fixtures/onvif-server-GetNetworkInterfaces.xml")[..],
            "",
            "02:00:5e:10:00:01",
        ),
        (
            include_bytes!("../../fixtures/hikvision-GetNetworkInterfaces.xml"),
            "192.168.68.111 fe80::2a57:beff:fe65:7dd5 fe80::2a57:beff:fe65:7dd5",
            "28:57:be:65:7d:d5",
        ),
    ] {
        let answer = read(Operation::GetNetworkInterfaces, 200, body).unwrap();
        assert_eq!(shown(&answer), (ip.to_owned(), mac.to_owned()));
    }
    let scopes = |body: &[u8]| read(Operation::GetScopes, 200, body).unwrap().scopes;
    assert_eq!(
        scopes(include_bytes!("../../fixtures/onvif-server-GetScopes.xml")),
        [
            "onvif://www.onvif.org/type/video_encoder",
            "onvif://www.onvif.org/Profile/Streaming"
        ]
    );
    assert_eq!(
        scopes(include_bytes!("../../fixtures/predator-GetScopes.xml")).len(),
        7
    );
}

#[test]
fn addresses_keep_their_order() {
    let interface = |mac: &str, config: &str| {
        format!(
            "<a:NetworkInterfaces><b:Info><b:HwAddress>{mac}</b:HwAddress></b:Info>{config}</a:NetworkInterfaces>"
        )
    };
    let v4 = |kind: &str, ip: &str| {
        format!(
            "<b:IPv4><b:Config><b:{kind}><b:Address>{ip}</b:Address></b:{kind}></b:Config></b:IPv4>"
        )
    };
    let link_local = "<b:IPv4><b:Config><b:LinkLocal><b:Address>10.137.185.208</b:Address><b:PrefixLength>0</b:PrefixLength></b:LinkLocal><b:FromDHCP><b:Address>10.137.185.209\r\n</b:Address></b:FromDHCP></b:Config></b:IPv4>";
    let v6 = "<b:IPv6><b:Config><b:Manual><b:Address>2001:db8::1</b:Address></b:Manual></b:Config></b:IPv6>";
    for (interfaces, ip, mac) in [
        (
            interface("00:12:41:5C:a1:a5", &v4("Manual", "192.168.1.36")),
            "192.168.1.36",
            "00:12:41:5C:a1:a5",
        ),
        (
            interface("m", link_local),
            "10.137.185.208 10.137.185.209",
            "m",
        ),
        (interface("m", &v4("Manual", "none")), "", "m"),
        (
            interface("m", &v4("Manual", "10.0.0.1").repeat(40)),
            ["10.0.0.1"; MAX_IPS].join(" ").as_str(),
            "m",
        ),
        (
            interface("m", &v4("FromDHCP", "\n192.168.1.36\r\n")),
            "192.168.1.36",
            "m",
        ),
        (
            interface("5792c4:5792c5:5792c6", v6),
            "2001:db8::1",
            "5792c4:5792c5:5792c6",
        ),
        (interface("", ""), "", ""),
        (
            interface("00-11-22", "") + &interface("33", &v4("Manual", "192.168.1.36")),
            " | 192.168.1.36",
            "00-11-22 | 33",
        ),
        (String::new(), "", ""),
    ] {
        let body = format!(
            "<a:GetNetworkInterfacesResponse>{interfaces}</a:GetNetworkInterfacesResponse>"
        );
        let answer = read(Operation::GetNetworkInterfaces, 200, &mk_envelope(&body)).unwrap();
        assert_eq!(
            shown(&answer),
            (ip.to_owned(), mac.to_owned()),
            "{interfaces}"
        );
    }
}

#[test]
fn children_in_a_wrong_namespace_are_read() {
    let body = mk_envelope(
        "<x:GetDeviceInformationResponse xmlns:x='urn:1'><trt:Model xmlns:trt='urn:2'>M&amp;1</trt:Model></x:GetDeviceInformationResponse>",
    );
    assert_eq!(
        read(Operation::GetDeviceInformation, 200, &body)
            .unwrap()
            .model,
        "M&1"
    );
    let body = include_bytes!("../../fixtures/wrong-prefix.xml");
    assert!(
        !read(Operation::GetDeviceInformation, 200, body)
            .unwrap()
            .is_response
    );
}

#[test]
fn an_empty_soap_body_is_an_answer_and_an_empty_response_is_not() {
    let answer = read(Operation::GetSystemDateAndTime, 200, &mk_envelope("")).unwrap();
    assert_eq!(answer, Answer::default());
    for (status, body, words) in [
        (200, &b""[..], "no XML"),
        (200, b"<html><body>Log in</body></html>", "not SOAP"),
        (200, b"<s:Envelope><s:Body>", "cut off"),
        (404, b"<html/>", "HTTP status 404"),
        (302, b"", "redirect (302)"),
        (500, b"", "HTTP status 500"),
        (400, b"<Envelope/>", "HTTP status 400"),
    ] {
        let failure = read(Operation::GetSystemDateAndTime, status, body).unwrap_err();
        assert!(matches!(failure, Failure::NotSoap(_)), "{failure:?}");
        assert!(failure.to_string().contains(words), "{failure}");
    }
}

#[test]
fn an_invalid_time_is_ignored() {
    let time = |date: &str| {
        let body = format!(
            "<GetSystemDateAndTimeResponse><SystemDateAndTime><UTCDateTime>{date}</UTCDateTime><LocalDateTime><Date><Year>2026</Year></Date></LocalDateTime></SystemDateAndTime></GetSystemDateAndTimeResponse>"
        );
        read(Operation::GetSystemDateAndTime, 200, &mk_envelope(&body))
            .unwrap()
            .time
    };
    let date = |year: &str| {
        format!(
            "<Date><Year>{year}</Year><Month>1</Month><Day>2</Day></Date><Time><Hour>3</Hour><Minute>4</Minute><Second>5</Second></Time>"
        )
    };
    assert_eq!(time(&date("1970")).unwrap().xml(), "1970-01-02T03:04:05Z");
    for year in ["99999999999999999999", "-1", "0", "", "year", "2300"] {
        assert_eq!(time(&date(year)), None, "{year}");
    }
    assert_eq!(time(""), None);
}

#[test]
fn every_form_of_not_authorized_is_recognized() {
    let fault = |code: &str, subcode: &str, reason: &str| {
        mk_envelope(&format!(
            "<s:Fault><s:Code><s:Value>{code}</s:Value>{subcode}</s:Code><s:Reason><s:Text>{reason}</s:Text></s:Reason></s:Fault>"
        ))
    };
    let sub = |code: &str| format!("<s:Subcode><s:Value>{code}</s:Value></s:Subcode>");
    let nested = "<s:Subcode><s:Value>ter:InvalidArgVal</s:Value><s:Subcode><s:Value>ter:NotAuthorized</s:Value></s:Subcode></s:Subcode>";
    for (status, body, expected) in [
        (
            400,
            fault(
                "s:Sender",
                &sub("ter:NotAuthorized"),
                "The action requested requires authorization",
            ),
            true,
        ),
        (200, fault("s:Sender", &sub("ter:NotAuthorized"), ""), true),
        (500, fault("s:Sender", nested, ""), true),
        (500, fault("env:Sender", "", "Authentication failed"), true),
        (500, fault("env:Sender", "", "whatever"), true),
        (
            500,
            fault("env:Receiver", "", "Sender not authorized"),
            true,
        ),
        (
            400,
            fault("env:Sender", &sub("wsse:FailedAuthentication"), ""),
            true,
        ),
        (401, b"<html><body>401</body></html>".to_vec(), true),
        (401, Vec::new(), true),
        (401, b"<html><br>".to_vec(), true),
        (
            500,
            fault("env:Sender", &sub("ter:InvalidArgVal"), "No such token"),
            false,
        ),
        (
            500,
            fault("env:Receiver", "", "method is not a function"),
            false,
        ),
        (
            500,
            mk_envelope(
                "<s:Fault><faultcode>s:Server</faultcode><faultstring>x</faultstring></s:Fault>",
            ),
            false,
        ),
        (
            500,
            mk_envelope(
                "<s:Fault><faultcode>s:Client</faultcode><faultstring>x</faultstring></s:Fault>",
            ),
            true,
        ),
        (
            500,
            mk_envelope("<s:Fault><faultcode>s:Client.Authentication</faultcode></s:Fault>"),
            true,
        ),
        (
            500,
            mk_envelope(
                "<s:Fault><faultcode>s:Server</faultcode><faultstring>Unauthorized</faultstring></s:Fault>",
            ),
            true,
        ),
        (403, Vec::new(), true),
        (403, fault("s:Receiver", "", "x"), true),
        (404, Vec::new(), false),
        (
            400,
            fault(
                "SOAP-ENV:Sender",
                "",
                "Method 'GetScopes' not implemented: method name or namespace not recognized",
            ),
            false,
        ),
        (
            500,
            fault("env:Sender", "", "The operation is not supported"),
            false,
        ),
        (401, fault("env:Sender", "", "method not implemented"), true),
    ] {
        assert_eq!(
            is_not_authorized(status, &body),
            expected,
            "{status} {}",
            String::from_utf8_lossy(&body)
        );
    }
}

#[test]
fn a_malformed_fault_is_a_fault() {
    let body = include_bytes!("../../fixtures/error.xml");
    let failure = read(Operation::GetScopes, 500, body).unwrap_err();
    assert_eq!(
        failure,
        Failure::Fault("fault code ter:fault subcode ter:fault subcode: fault reason".to_owned())
    );
}

#[test]
fn texts_of_cameras_are_cut_to_one_short_line() {
    let text = format!("a\r\nb\u{7}{}", "\u{e4}".repeat(500));
    let body = format!(
        "<GetDeviceInformationResponse><Model>{text}</Model></GetDeviceInformationResponse>"
    );
    let model = read(Operation::GetDeviceInformation, 200, &mk_envelope(&body))
        .unwrap()
        .model;
    assert!(
        model.len() <= MAX_TEXT && model.starts_with("a  b \u{e4}"),
        "{model}"
    );
    let many = "<Scopes><ScopeItem>a</ScopeItem></Scopes>".repeat(500);
    let body = format!("<GetScopesResponse>{many}</GetScopesResponse>");
    let scopes = read(Operation::GetScopes, 200, &mk_envelope(&body))
        .unwrap()
        .scopes;
    assert_eq!(scopes.len(), MAX_SCOPES);
}

#[test]
fn no_damage_to_an_answer_panics() {
    for whole in [
        &include_bytes!("../../fixtures/onvif-server-GetSystemDateAndTime.xml")[..],
        include_bytes!("../../fixtures/onvif-server-GetDeviceInformation.xml"),
        include_bytes!("../../fixtures/onvif-server-GetNetworkInterfaces.xml"),
        include_bytes!("../../fixtures/error.xml"),
    ] {
        for at in 0..whole.len() {
            let cut = whole.get(..at).unwrap();
            assert!(read(Operation::GetScopes, 200, cut).is_err(), "{at}");
            for value in [0, b'<', b'>', b'&', b':', b'"', b'9', 0xff] {
                let mut damaged = whole.to_vec();
                damaged[at] = value;
                let _ = read(Operation::GetSystemDateAndTime, 200, &damaged);
            }
        }
    }
}
