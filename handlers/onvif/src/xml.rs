//! Reads untrusted XML: one pass, no tree, everything bounded. This module does not interpret SOAP.
//!
//! Elements are matched by local name, because cameras use wrong and undeclared prefixes. A qualified name in a text can be
//! resolved.

pub mod encoding;

use quick_xml::NsReader;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::{NamespaceResolver, QName, ResolveResult};

/// Maximum number of bytes in a document.
pub const MAX_BYTES: usize = 256 << 10;
/// Maximum nesting of elements.
const MAX_DEPTH: usize = 64;
/// Maximum number of elements in a document.
const MAX_ELEMENTS: usize = 10_000;
/// Maximum number of bytes in a token.
const MAX_TOKEN: usize = 128;
/// Maximum number of attributes of an element, including declared prefixes. gSOAP declares about sixty.
const MAX_ATTRIBUTES: usize = 128;

/// Result of reading a document.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a document that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Document over the size limit.
    #[error("the document has more than {MAX_BYTES} bytes")]
    TooLarge,
    /// Elements nested too deep.
    #[error("elements are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Too many elements.
    #[error("the document has more than {MAX_ELEMENTS} elements")]
    TooManyElements,
    /// Too many attributes in an element.
    #[error("an element has more than {MAX_ATTRIBUTES} attributes")]
    TooManyAttributes,
    /// Document type, which may define entities.
    #[error("a document type is not accepted")]
    DocumentType,
    /// Entity that XML does not define.
    #[error("the entity {0:?} is not accepted")]
    Entity(String),
    /// Document that ends before its first element does.
    #[error("the document is cut off")]
    CutOff,
    /// Document without an element.
    #[error("there is no XML in it")]
    Empty,
    /// Document that is not XML.
    #[error("cannot read XML")]
    Syntax(#[source] quick_xml::Error),
}

/// Element that has just ended.
#[derive(Debug)]
pub struct Element<'a> {
    path: &'a [Frame],
    /// Text directly in it, trimmed, with entities decoded once.
    pub text: &'a str,
    scope: &'a NamespaceResolver,
}

/// Element on the path from the root.
#[derive(Debug)]
struct Frame {
    local: String,
    token: String,
    text: String,
}

impl Element<'_> {
    /// Returns the local name of the element that is `above` levels up: 0 is this element.
    pub fn name(&self, above: usize) -> &str {
        self.path
            .iter()
            .nth_back(above)
            .map_or("", |frame| &frame.local)
    }

    /// Returns the value of the attribute `token`; empty if there is none of a usable length.
    pub fn token(&self) -> &str {
        self.path.last().map_or("", |frame| &frame.token)
    }

    /// Returns true if the path of this element ends with these local names; `*` matches any.
    pub fn ends(&self, names: &[&str]) -> bool {
        names.len() <= self.path.len()
            && names
                .iter()
                .rev()
                .zip(self.path.iter().rev())
                .all(|(name, frame)| *name == "*" || *name == frame.local)
    }

    /// Returns namespace and local name of a qualified name in the text, by the prefixes declared here. The namespace is
    /// `None` if the prefix is not declared.
    pub fn resolve<'n>(&self, name: &'n str) -> (Option<String>, &'n str) {
        let (local, prefix) = QName(name).decompose();
        let namespace = match self.scope.resolve_prefix(prefix, true) {
            ResolveResult::Bound(namespace) => Some(namespace.into_inner().to_owned()),
            ResolveResult::Unbound | ResolveResult::Unknown(_) => None,
        };
        (namespace, local.into_inner())
    }
}

/// Reads a document to the end of its root and calls `on` as each element ends. Bytes after the root are ignored, because
/// cameras pad datagrams.
pub fn read(document: &[u8], on: &mut dyn FnMut(&Element<'_>)) -> Result<()> {
    if document.len() > MAX_BYTES {
        return Err(Error::TooLarge);
    }
    let text = encoding::decode(document, "");
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n', '\0']);
    let mut reader = NsReader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    reader.config_mut().allow_dangling_amp = true;
    let mut path: Vec<Frame> = Vec::new();
    let mut elements = 0;
    loop {
        match reader.read_event().map_err(Error::Syntax)? {
            Event::Start(start) => {
                elements += 1;
                path.push(enter(&start, path.len(), elements)?);
            }
            Event::End(_) => {
                let Some(frame) = path.last() else {
                    return Err(Error::Empty);
                };
                on(&Element {
                    path: &path,
                    text: frame.text.trim(),
                    scope: reader.resolver(),
                });
                path.pop();
                if path.is_empty() {
                    return Ok(());
                }
            }
            Event::Text(text) => append(&mut path, &text.into_inner()),
            Event::CData(text) => append(&mut path, &text.into_inner()),
            Event::GeneralRef(entity) => {
                let character = decode(&entity)?;
                append(&mut path, character.encode_utf8(&mut [0; 4]));
            }
            Event::DocType(_) => return Err(Error::DocumentType),
            Event::Eof if elements == 0 => return Err(Error::Empty),
            Event::Eof => return Err(Error::CutOff),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::Empty(_) => {}
        }
    }
}

fn enter(start: &BytesStart<'_>, depth: usize, elements: usize) -> Result<Frame> {
    if depth >= MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    if elements > MAX_ELEMENTS {
        return Err(Error::TooManyElements);
    }
    let mut attributes = start.attributes();
    let mut token = String::new();
    for (place, attribute) in attributes.with_checks(false).enumerate() {
        if place >= MAX_ATTRIBUTES {
            return Err(Error::TooManyAttributes);
        }
        if let Ok(attribute) = attribute
            && attribute.key.local_name().into_inner() == "token"
            && let Ok(value) = quick_xml::escape::unescape(&attribute.value)
            && value.len() <= MAX_TOKEN
        {
            token = value.into_owned();
        }
    }
    Ok(Frame {
        local: start.local_name().into_inner().to_owned(),
        token,
        text: String::new(),
    })
}

fn append(path: &mut [Frame], text: &str) {
    if let Some(frame) = path.last_mut() {
        frame.text.push_str(text);
    }
}

fn decode(entity: &BytesRef<'_>) -> Result<char> {
    if let Some(character) = entity.resolve_char_ref().map_err(Error::Syntax)? {
        return Ok(character);
    }
    match &**entity {
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "amp" => Ok('&'),
        "quot" => Ok('"'),
        "apos" => Ok('\''),
        other => Err(Error::Entity(other.chars().take(32).collect())),
    }
}

/// Escapes text for an element or attribute.
pub fn escape(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

#[cfg(test)]
mod tests;
