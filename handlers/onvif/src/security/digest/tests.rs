use super::*;

fn mk_credential(user: &str, password: &str) -> Credential {
    Credential {
        user: user.to_owned(),
        password: password.to_owned(),
    }
}

/// RFC 7616, 3.9.1: one resource, two challenges.
const RFC_7616: [&str; 2] = [
    r#"Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm=MD5, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#,
    r#"Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm=SHA-256, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS""#,
];
const CNONCE: &str = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ";

#[test]
fn the_responses_match_the_examples_of_the_standards() {
    let rfc_2617 = r#"Digest realm="testrealm@host.com", qop="auth,auth-int", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", opaque="5ccc069c403ebaf9f0171e9517f40e41""#;
    let rfc_2069 = r#"Digest realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093", opaque="5ccc069c403ebaf9f0171e9517f40e41""#;
    let mufasa = mk_credential("Mufasa", "Circle of Life");
    let mufasa_2617 = mk_credential("Mufasa", "Circle Of Life");
    let [md5, sha256] = RFC_7616;
    for (challenge, credential, cnonce, response) in [
        (md5, &mufasa, CNONCE, "8ca523f5e9506fed4657c9700eebdbec"),
        (
            sha256,
            &mufasa,
            CNONCE,
            "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
        ),
        (
            rfc_2617,
            &mufasa_2617,
            "0a4f113b",
            "6629fae49393a05397450978507c4ef1",
        ),
        (
            rfc_2069,
            &mufasa_2617,
            "",
            "670fd8c2df070c60b045671b8b24ff02",
        ),
    ] {
        let challenge = Challenge::strongest([challenge]).unwrap();
        let header = challenge.answer(credential, ("GET", "/dir/index.html"), cnonce, 1);
        assert!(
            header.contains(&format!("response=\"{response}\"")),
            "{header}"
        );
        assert!(!header.contains("ircle"), "{header}");
    }
}

#[test]
fn the_response_names_its_parameters() {
    let challenge = Challenge::strongest(RFC_7616).unwrap();
    assert_eq!(
        challenge.answer(&mk_credential("a\"b", "p"), ("POST", "/onvif"), "c", 10),
        format!(
            "Digest username=\"a\\\"b\", realm=\"http-auth@example.org\", \
             nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\", uri=\"/onvif\", response=\"{}\", algorithm=SHA-256, \
             opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\", qop=auth, nc=0000000a, cnonce=\"c\"",
            {
                let one = hex(&Sha256::digest("a\"b:http-auth@example.org:p"));
                let two = hex(&Sha256::digest("POST:/onvif"));
                hex(&Sha256::digest(format!(
                    "{one}:7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v:0000000a:c:auth:{two}"
                )))
            }
        )
    );
}

#[test]
fn the_strongest_supported_challenge_is_used() {
    let strongest = |headers: &[&str]| {
        Challenge::strongest(headers.iter().copied())
            .map(|challenge| (challenge.algorithm, challenge.realm, challenge.is_stale))
    };
    let md5 = |realm: &str, is_stale| Some((Algorithm::Md5, realm.to_owned(), is_stale));
    let sha256 = |realm: &str| Some((Algorithm::Sha256, realm.to_owned(), false));
    for (headers, expected) in [
        (&RFC_7616[..], sha256("http-auth@example.org")),
        (
            &[
                r#"Digest realm="a", nonce="1", Digest realm="b", nonce="2", algorithm=SHA-256, Basic realm="c""#,
            ],
            sha256("b"),
        ),
        (
            &[r#"Basic realm="c", digest REALM = "a" ,nonce=n,stale=TRUE"#],
            md5("a", true),
        ),
        (
            &[r#"Digest realm="a, \"b\"", nonce="1",qop=auth"#],
            md5("a, \"b\"", false),
        ),
        (&[r#"Basic realm="c""#], None),
        (&[r#"Digest realm="a", nonce="1", qop="auth-int""#], None),
        (
            &[r#"Digest realm="a", nonce="1", algorithm=SHA-512-256"#],
            None,
        ),
        (&[r#"Digest realm="a""#], None),
        (&["Negotiate YII=", "=", ",,,", "\"", ""], None),
    ] {
        assert_eq!(strongest(headers), expected, "{headers:?}");
    }
    let long = format!(r#"Digest realm="a", nonce="{}""#, "n".repeat(MAX_HEADER));
    assert_eq!(strongest(&[&long]), None);
    let late = vec![r#"Basic realm="c""#; 300];
    let late = [&late[..], &[r#"Digest realm="a", nonce="1""#]].concat();
    assert_eq!(strongest(&late), None);
}

#[test]
fn a_session_key_has_both_nonces() {
    let challenge =
        Challenge::strongest([r#"Digest realm="r", nonce="n", algorithm=MD5-sess, qop="auth""#])
            .unwrap();
    let secret = hex(&Md5::digest(format!("{}:n:c", hex(&Md5::digest("u:r:p")))));
    let request = hex(&Md5::digest("POST:/"));
    let response = hex(&Md5::digest(format!(
        "{secret}:n:00000001:c:auth:{request}"
    )));
    let header = challenge.answer(&mk_credential("u", "p"), ("POST", "/"), "c", 1);
    assert!(header.contains(&response), "{header}");
}
