use super::*;

fn leaves(document: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    read(document.as_bytes(), &mut |element| {
        found.push((element.name(0).to_owned(), element.text.to_owned()));
    })?;
    Ok(found)
}

#[test]
fn entities_are_decoded_once() {
    assert_eq!(
        leaves("<a><b>x?p=1&amp;amp;q=2 &#x41;&#66; &lt;<![CDATA[&amp;]]></b></a>").unwrap(),
        [
            ("b".to_owned(), "x?p=1&amp;q=2 AB <&amp;".to_owned()),
            ("a".to_owned(), String::new())
        ]
    );
}

#[test]
fn common_mistakes_of_cameras_are_accepted() {
    for (document, text) in [
        ("<a>x</a>\0\0\0", "x"),
        (
            "\u{feff}<?xml version=\u{201d}1.0\u{201d} ?>\n<a>x</a>",
            "x",
        ),
        ("\r\n<u:a>x</u:a><b>", "x"),
        ("<a>p=1&q=2</a>", "p=1&q=2"),
        ("<a><!-- c -->x<?p i?></a>", "x"),
        ("<a>\n  x\r\n</a>", "x"),
    ] {
        assert_eq!(
            leaves(document).unwrap().pop().unwrap().1,
            text,
            "{document}"
        );
    }
    let mut text = String::new();
    read(b"<a>caf\xe9</a>", &mut |element| {
        text = element.text.to_owned();
    })
    .unwrap();
    assert_eq!(text, "caf\u{fffd}");
}

#[test]
fn a_qualified_name_in_a_text_is_resolved_by_the_prefixes_in_scope() {
    let document =
        r#"<a xmlns:p="urn:one" xmlns="urn:d"><b xmlns:p="urn:two">p:x</b><c>p:x q:x x</c></a>"#;
    let mut found = Vec::new();
    read(document.as_bytes(), &mut |element| {
        for name in element.text.split_whitespace() {
            let (namespace, local) = element.resolve(name);
            found.push((namespace.unwrap_or_default(), local.to_owned()));
        }
    })
    .unwrap();
    assert_eq!(
        found,
        [
            ("urn:two".to_owned(), "x".to_owned()),
            ("urn:one".to_owned(), "x".to_owned()),
            (String::new(), "x".to_owned()),
            ("urn:d".to_owned(), "x".to_owned()),
        ]
    );
}

#[test]
fn a_path_is_matched_from_its_end() {
    let mut found = Vec::new();
    read(b"<r><a><b><c/></b></a></r>", &mut |element| {
        if element.name(0) == "c" {
            found = [
                vec!["c"],
                vec!["b", "c"],
                vec!["a", "*", "c"],
                vec!["a", "c"],
                vec!["x", "r", "a", "b", "c"],
            ]
            .iter()
            .map(|names| element.ends(names))
            .collect();
        }
    })
    .unwrap();
    assert_eq!(found, [true, true, true, false, false]);
}

#[test]
fn malicious_documents_are_refused() {
    let laughs = r#"<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]><l>&b;</l>"#;
    let external = r#"<!DOCTYPE l SYSTEM "http://169.254.169.254/"><l/>"#;
    let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
    let deep = deep.get(..MAX_BYTES).unwrap();
    let wide = format!("<a>{}</a>", "<b/>".repeat(MAX_ELEMENTS));
    let mut many = "<a".to_owned();
    for n in 0..10_000 {
        use std::fmt::Write as _;
        write!(many, " a{n}=''").unwrap();
    }
    many.push_str("/>");
    let prefixes = many.replace(" a", " xmlns:a");
    let long = format!("<a>{}</a>", "x".repeat(MAX_BYTES));
    for (document, words) in [
        (laughs, "document type"),
        (external, "document type"),
        ("<a>&nbsp;</a>", "entity \"nbsp\""),
        ("<a>&#xFFFFFFFF;</a>", "cannot read XML"),
        (deep, "64 deep"),
        (&wide, "10000 elements"),
        (&many, "128 attributes"),
        (&prefixes, "cannot read XML"),
        (&long, "262144 bytes"),
        ("<a><b>x</b>", "cut off"),
        ("<a><b>x", "cut off"),
        ("<a><b>x</a>", "cannot read XML"),
        ("", "no XML"),
        ("   \0", "no XML"),
        ("401 Unauthorized", "no XML"),
        ("</a>", "cannot read XML"),
    ] {
        let error = leaves(document).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn no_prefix_of_a_document_panics() {
    let document = "<?xml version=\"1.0\"?><s:E xmlns:s='u' a=\"b\"><s:B>&lt;&#65;<![CDATA[c]]><!--d--></s:B></s:E>\u{e9}";
    for end in 0..document.len() {
        let bytes = document.as_bytes().get(..end).unwrap();
        let _ = read(bytes, &mut |element| {
            let _ = element.resolve(element.text);
        });
        let mut flipped = document.as_bytes().to_vec();
        for value in [0, b'<', b'&', b':', b'"', 0xff] {
            *flipped.get_mut(end).unwrap() = value;
            let _ = read(&flipped, &mut |element| {
                let _ = element.resolve(element.text);
            });
        }
    }
}
