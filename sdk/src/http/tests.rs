use super::*;
use crate::net::Error;

#[test]
fn a_body_is_read_as_json() {
    let response = Response::new(200, r#"{"model": "Model 7"}"#);
    let value: serde_json::Value = response.json().unwrap();
    assert_eq!(value["model"], "Model 7");
    let error = Response::new(502, "<html>").json::<serde_json::Value>();
    assert!(error.unwrap_err().to_string().contains("line 1 column 1"));
}

#[test]
fn a_url_is_parsed() {
    for (url, tls, authority, path, host, port) in [
        ("http://a", false, "a", "/", "a", 80),
        ("HTTPS://a/", true, "a", "/", "a", 443),
        ("http://a:8080?q", false, "a:8080", "/?q", "a", 8080),
        ("http://a/b?c#d", false, "a", "/b?c", "a", 80),
        (
            "http://[fe80::1%25eth0]:81/b",
            false,
            "[fe80::1%25eth0]:81",
            "/b",
            "fe80::1%25eth0",
            81,
        ),
        ("https://[::1]#x", true, "[::1]", "/", "::1", 443),
    ] {
        let target = Target::parse(url).unwrap();
        assert_eq!(
            (
                target.tls,
                target.authority,
                target.path_with_query.as_str(),
                target.host_and_port()
            ),
            (tls, authority, path, (host, port)),
            "{url}"
        );
    }
}

#[test]
fn an_unusable_url_is_refused_with_the_reason() {
    for (url, why) in [
        ("a/b", "has no scheme"),
        ("ftp://a", "is neither http nor https"),
        ("http://u:p@a/", "has a user"),
        ("http:///b", "has no host"),
        ("http://:80/b", "has no host"),
        ("http://a/b c", "has a space or control character"),
        ("http://a/\r\nX: y", "has a space or control character"),
    ] {
        assert_eq!(
            Target::parse(url),
            Err(Error::Other(format!("URL {url:?} {why}")))
        );
    }
}

#[test]
fn the_content_length_is_sent_once_and_correct() {
    let length = |request: Request| {
        let fields = request.fields();
        fields
            .into_iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map(|(_, value)| value)
            .collect::<Vec<_>>()
    };
    assert_eq!(length(Request::get("http://a")), Vec::<String>::new());
    assert_eq!(length(Request::post("http://a", "")), ["0"]);
    assert_eq!(
        length(Request::post("http://a", "abc").header("content-length", "9")),
        ["3"]
    );
}

#[test]
fn headers_are_case_insensitive() {
    let mut response = Response::new(401, "");
    for value in ["Digest", "Basic"] {
        let header = ("www-authenticate".to_owned(), value.to_owned());
        response.headers.push(header);
    }
    assert_eq!(response.header("WWW-Authenticate"), Some("Digest"));
    let all: Vec<_> = response.headers_named("www-authenticate").collect();
    assert_eq!(all, ["Digest", "Basic"]);
    assert_eq!(response.header("server"), None);
}
