//! Finds the line of a field in a YAML text. Pure.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_yaml_ng::{Location, Value};

/// Returns the line of a field, or of the nearest parent that exists. Calls `may_read` before each reading of the text.
pub fn locate(text: &str, path: &str, mut may_read: impl FnMut() -> bool) -> Option<usize> {
    let mut path = path;
    while !path.is_empty() && may_read() {
        let deserializer = serde_yaml_ng::Deserializer::from_str(text);
        if let Err(found) = Walk(path).deserialize(deserializer) {
            return found.location().map(|location| line(text, &location));
        }
        path = path.rfind(['.', '[']).and_then(|end| path.get(..end))?;
    }
    None
}

/// Returns the line of a location in `text`, from 1 as in editors: YAML ends lines at more characters than the line feed.
pub fn line(text: &str, location: &Location) -> usize {
    let before = text.bytes().take(location.index());
    before.filter(|byte| *byte == b'\n').count() + 1
}

/// Descends to a field and fails there: the reader's error has the location.
struct Walk<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.0.is_empty() {
            deserializer.deserialize_any(Here)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Value>()? {
            let rest = key.as_str().and_then(|key| self.0.strip_prefix(key));
            match rest {
                Some(rest) if rest.is_empty() || rest.starts_with(['.', '[']) => {
                    map.next_value_seed(Walk(rest.strip_prefix('.').unwrap_or(rest)))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let inner = self
            .0
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'));
        let wanted = inner.and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest)));
        for index in 0_usize.. {
            match wanted {
                Some((at, rest)) if at == index => {
                    let rest = rest.strip_prefix('.').unwrap_or(rest);
                    if list.next_element_seed(Walk(rest))?.is_none() {
                        break;
                    }
                }
                _ => {
                    if list.next_element::<IgnoredAny>()?.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Refuses every value.
struct Here;

impl Visitor<'_> for Here {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing: only the location is needed")
    }
}
