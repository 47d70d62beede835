//! Finds fields that the type of the details does not know, and the known fields that they are likely to be.

use std::cell::Cell;
use std::iter::once;

use serde::de::value::{Error as Stopped, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_ignored::Path;

use crate::Problem;

/// Field that the type of the details does not know.
#[derive(Debug)]
pub struct Unknown {
    /// Path of the value that has the field.
    parent: String,
    /// Name of the field.
    pub name: String,
    known: &'static [&'static str],
    /// Known field with a similar name.
    pub suggestion: Option<&'static str>,
}

impl Unknown {
    /// Looks up an ignored field in the type of the details. Returns `None` if the type has the field and only discards its
    /// value.
    pub fn find<'de, D: Deserialize<'de>>(path: &Path<'_>) -> Option<Self> {
        let Path::Map { parent, key } = path else {
            return None;
        };
        let (steps, parent) = follow(parent);
        let known = fields_at::<D>(&steps);
        if known.contains(&key.as_str()) {
            return None;
        }
        Some(Self {
            parent,
            name: key.clone(),
            known,
            suggestion: nearest(key, known),
        })
    }

    /// Returns the path of `field` in the same parent.
    pub fn sibling(&self, field: &str) -> String {
        join(&self.parent, field)
    }

    /// Describes the field and suggests a known one.
    pub fn problem(&self) -> Problem {
        let name = &self.name;
        let message = match self.suggestion {
            Some(suggestion) => format!("unknown field {name}; did you mean {suggestion}?"),
            None if self.known.is_empty() => format!("unknown field {name}"),
            None => format!("unknown field {name}; known: {}", self.known.join(", ")),
        };
        Problem::new(self.sibling(name), message)
    }
}

/// Returns the known field most similar to `name`, if at most a third of its letters differ. `name` may omit a prefix such
/// as `leafhost.dev/`.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let spellings = known.iter().flat_map(|&known| {
        let last = known.rsplit('/').next().unwrap_or(known);
        [(known, known), (last, known)]
    });
    let distances = spellings.map(|(spelling, known)| {
        let distance = strsim::osa_distance(&name, &spelling.to_ascii_lowercase());
        (distance, known, spelling.len())
    });
    let (distance, known, length) = distances.min()?;
    (distance <= length / 3).then_some(known)
}

/// Step from a value into one of its fields or items.
enum Step {
    Field(String),
    Item,
}

/// Returns the steps of a path, and the path as text.
fn follow(path: &Path<'_>) -> (Vec<Step>, String) {
    match path {
        Path::Root => (Vec::new(), String::new()),
        Path::Seq { parent, index } => {
            let (mut steps, text) = follow(parent);
            steps.push(Step::Item);
            (steps, format!("{text}[{index}]"))
        }
        Path::Map { parent, key } => {
            let (mut steps, text) = follow(parent);
            steps.push(Step::Field(key.clone()));
            (steps, join(&text, key))
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => follow(parent),
    }
}

/// Returns the field names of the struct that `D` has at `place`; empty if there is none.
fn fields_at<'de, D: Deserialize<'de>>(place: &[Step]) -> &'static [&'static str] {
    let fields = Cell::default();
    // Deserializing always fails: at the struct, or with another error before it.
    let _ = D::deserialize(Guide {
        place,
        fields: &fields,
    });
    fields.get()
}

/// Deserializer that walks a type along `place` and records the field names of the struct there.
#[derive(Clone, Copy)]
struct Guide<'a> {
    place: &'a [Step],
    fields: &'a Cell<&'static [&'static str]>,
}

impl<'de> Deserializer<'de> for Guide<'_> {
    type Error = Stopped;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stopped> {
        let Some((step, place)) = self.place.split_first() else {
            return Err(Stopped::custom("reached"));
        };
        let next = Self { place, ..self };
        match step {
            Step::Field(name) => {
                visitor.visit_map(MapDeserializer::new(once((name.as_str(), next))))
            }
            Step::Item => visitor.visit_seq(SeqDeserializer::new(once(next))),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stopped> {
        if self.place.is_empty() {
            self.fields.set(fields);
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stopped> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stopped> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

impl IntoDeserializer<'_, Stopped> for Guide<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Returns the path of a field of the value at `path`.
pub fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}
