use super::*;

const UUID: &str = "11111111-aaaa-bbbb-cccc-222222222222";

fn mk_properties(properties: &[(&str, &[u8])]) -> Vec<Property> {
    let mk = |(name, value): &(&str, &[u8])| Property {
        name: (*name).to_owned(),
        value: Some(value.to_vec()),
        secret: true,
    };
    properties.iter().map(mk).collect()
}

fn given(properties: &[(&str, &[u8])], uuid: &str) -> Option<(String, String)> {
    let credentials = Credentials::new(&mk_properties(properties));
    let credential = credentials.get(uuid)?;
    Some((credential.user.clone(), credential.password.clone()))
}

fn pair(user: &str, password: &str) -> (String, String) {
    (user.to_owned(), password.to_owned())
}

#[test]
fn akris_three_forms_are_accepted_and_the_later_wins() {
    let list: &[(&str, &[u8])] = &[
        ("device_credential_list", br#"["one", "two"]"#),
        ("one", br#"{"11111111-AAAA-bbbb-cccc-222222222222": {"username": "list", "password": "c2VjcmV0", "base64encoded": true}, "other": {"username": "o"}}"#),
        ("two", br#"{"urn:uuid:third": {"username": "t", "password": "p"}, "default": {"username": "d", "password": "e"}}"#),
    ];
    let references: &[(&str, &[u8])] = &[
        ("device_credential_ref_list", br#"["refs"]"#),
        ("refs", br#"{"11111111-aaaa-bbbb-cccc-222222222222": {"username_ref": "u1", "password_ref": "p1"}}"#),
        ("u1", b"ref"),
        ("p1", b"referred"),
    ];
    let single: &[(&str, &[u8])] = &[
        ("username_11111111_aaaa_bbbb_cccc_222222222222", b"single"),
        ("password_11111111_aaaa_bbbb_cccc_222222222222", b"alone"),
        ("username_default", b"default"),
    ];
    assert_eq!(given(list, UUID), Some(pair("list", "secret")));
    assert_eq!(given(list, "other"), Some(pair("o", "")));
    assert_eq!(given(list, "third"), Some(pair("t", "p")));
    assert_eq!(given(list, "fourth"), Some(pair("d", "e")));
    let two = [list, references].concat();
    assert_eq!(given(&two, UUID), Some(pair("ref", "referred")));
    let mut three = [list, references, single].concat();
    assert_eq!(given(&three, UUID), Some(pair("single", "alone")));
    assert_eq!(given(&three, "fourth"), Some(pair("default", "")));
    three.push(("password_default", b"p"));
    assert_eq!(given(&three, "fourth"), Some(pair("default", "p")));
    assert_eq!(
        given(single, "11111111_aaaa_bbbb_cccc_222222222222"),
        Some(pair("default", ""))
    );
    assert_eq!(given(&single[..2], "fourth"), None);
}

#[test]
fn problems_are_reported_without_values() {
    let secret = "hunter2";
    let hunter = secret.as_bytes();
    for (properties, problem) in [
        (
            vec![("device_credential_list", hunter)],
            "discovery property \"device_credential_list\" is not a JSON list of names of properties",
        ),
        (
            vec![("device_credential_list", &br#"["x"]"#[..])],
            "discovery property \"x\" is named in a list of credentials and does not exist",
        ),
        (
            vec![("device_credential_list", br#"["x"]"#), ("x", hunter)],
            "discovery property \"x\" is not a JSON object of credentials by UUID",
        ),
        (
            vec![
                ("device_credential_list", br#"["x"]"#),
                ("x", br#"{"a": {"password": "hunter2"}}"#),
            ],
            "discovery property \"x\" has an entry without `username`",
        ),
        (
            vec![
                ("device_credential_list", br#"["x"]"#),
                (
                    "x",
                    br#"{"a": {"username": "u", "password": "hunter2!", "base64encoded": true}}"#,
                ),
            ],
            "discovery property \"x\" has a password that is not Base64 of UTF-8",
        ),
        (
            vec![
                ("device_credential_ref_list", br#"["x"]"#),
                ("x", br#"{"a": {"username_ref": "u"}}"#),
            ],
            "discovery property \"x\" names a property for a user name that does not exist",
        ),
        (
            vec![
                ("device_credential_ref_list", br#"["x"]"#),
                ("u", b"u"),
                ("x", br#"{"a": {"username_ref": "u", "password_ref": "p"}}"#),
            ],
            "discovery property \"x\" names a property for a password that does not exist",
        ),
        (
            vec![("username_a", b"\xff")],
            "discovery property \"username_a\" is not UTF-8",
        ),
    ] {
        let credentials = Credentials::new(&mk_properties(&properties));
        assert_eq!(credentials.problems, [problem]);
        assert!(!format!("{credentials:?}").contains(secret));
    }
}

#[test]
fn properties_of_no_credentials_are_reported() {
    for (names, reported) in [
        (&["ONVIF_USERNAME", "ONVIF_PASSWORD"][..], 2),
        (&["username", "password_default"], 2),
        (&["username_default", "password_default"], 0),
        (&["username_a", "password_a", "user_b"], 1),
    ] {
        let properties: Vec<(&str, &[u8])> =
            names.iter().map(|name| (*name, &b"hunter2"[..])).collect();
        let problems = Credentials::new(&mk_properties(&properties)).problems;
        assert_eq!(problems.len(), reported, "{problems:?}");
        for problem in problems {
            assert!(problem.contains("is part of no credentials; use username_default"));
            assert!(!problem.contains("hunter2"));
        }
    }
}

#[test]
fn an_empty_property_counts_as_absent() {
    let properties = [Property {
        name: "username_default".to_owned(),
        value: None,
        secret: true,
    }];
    let credentials = Credentials::new(&properties);
    assert!(credentials.get("a").is_none() && credentials.problems.is_empty());
}
