//! Converts bytes to text: from UTF-8, or from the encoding that the document or its response declares, if cameras are known
//! to use that encoding.

use std::borrow::Cow;

use encoding_rs::{Encoding, GB18030, WINDOWS_1252};

/// Number of bytes searched for the document's declaration.
const DECLARATION: usize = 128;

/// Decodes a document. Valid UTF-8 is used regardless of the declaration, since many UTF-8 documents declare another
/// encoding. Unreadable bytes are replaced. `content_type` is the response's.
pub fn decode<'d>(document: &'d [u8], content_type: &str) -> Cow<'d, str> {
    if let Ok(text) = std::str::from_utf8(document) {
        return Cow::Borrowed(text);
    }
    let start = document.get(..DECLARATION).unwrap_or(document);
    let declared = String::from_utf8_lossy(start);
    let declaration = declared.split("?>").next().unwrap_or_default();
    let encoding = named(declaration, "encoding").or_else(|| named(content_type, "charset"));
    match encoding {
        Some(encoding) => encoding.decode_without_bom_handling(document).0,
        None => String::from_utf8_lossy(document),
    }
}

/// Returns the encoding that a text names after `key` and `=`.
fn named(text: &str, key: &str) -> Option<&'static Encoding> {
    let text = text.to_ascii_lowercase();
    let (_, rest) = text.split_once(key)?;
    let value = rest.trim_start().strip_prefix('=')?.trim_start();
    let value = value.trim_start_matches(['"', '\'']);
    let end = value.find(['"', '\'', ';', ' ', '?']);
    match value.get(..end.unwrap_or(value.len()))? {
        // GB18030 includes the others.
        "gb2312" | "gbk" | "gb18030" | "x-gbk" | "gb_2312-80" => Some(GB18030),
        "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "windows-1252" | "us-ascii" => {
            Some(WINDOWS_1252)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_in_the_encoding_it_has() {
        let xml = |name: &str| format!("<?xml version=\"1.0\" encoding=\"{name}\"?>");
        for (start, content_type, bytes, text) in [
            (xml("GB2312"), "", &b"\xb4\xf3\xc3\xc5"[..], "大门"),
            (
                xml("gbk"),
                "text/xml; charset=utf-8",
                b"\xb4\xf3\xc3\xc5",
                "大门",
            ),
            (
                "<?xml version='1.0' encoding = 'GB18030' ?>".to_owned(),
                "",
                b"\xb4\xf3\x82\x35\x87\x38",
                "大\u{4db5}",
            ),
            (xml("ISO-8859-1"), "", b"K\xfcche", "Küche"),
            (
                String::new(),
                "text/xml;charset=ISO-8859-1",
                b"K\xfcche",
                "Küche",
            ),
            (
                String::new(),
                "text/xml; charset=\"gb2312\"; x=y",
                b"\xb4\xf3",
                "大",
            ),
            // The declaration does not match the bytes.
            (xml("GB2312"), "", "大门".as_bytes(), "大门"),
            (xml("ISO-8859-1"), "", "Küche".as_bytes(), "Küche"),
            (xml("UTF-8"), "", b"K\xfcche", "K\u{fffd}che"),
            (xml("x"), "charset", b"K\xfcche", "K\u{fffd}che"),
            (xml("GB2312"), "", b"\xb4\xf3\xff", "大\u{fffd}"),
        ] {
            let document = [start.as_bytes(), bytes].concat();
            let read = decode(&document, content_type);
            assert_eq!(read, format!("{start}{text}"), "{start} {content_type}");
        }
    }
}
