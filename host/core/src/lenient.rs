//! Lenient deserialization of objects that others write as well: values of a wrong type are skipped or replaced, the
//! rest is kept.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Deserializer};
use serde_json::Value;

/// Reads a value, or its default if the type is wrong.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Reads a map without the entries of a wrong type.
pub fn entries<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    entries_or(deserializer, || None)
}

/// Reads a map. Replaces each entry of a wrong type with the result of `other`, or drops it if that is `None`.
pub fn entries_or<'de, D, T>(
    deserializer: D,
    other: impl Fn() -> Option<T>,
) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let Value::Object(all) = Value::deserialize(deserializer)? else {
        return Ok(BTreeMap::new());
    };
    let read = |(name, value)| {
        let value = serde_json::from_value(value).ok().or_else(&other)?;
        Some((name, value))
    };
    Ok(all.into_iter().filter_map(read).collect())
}

/// Reads a map of strings. A value of another type becomes its JSON text, so that it is not taken as empty; null
/// becomes empty.
pub fn texts<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let all: BTreeMap<String, Value> = entries(deserializer)?;
    let all = all.into_iter();
    Ok(all.map(|(name, value)| (name, text(value))).collect())
}

/// Reads a list of strings, converting other elements as [`texts`] does. Every element keeps its position.
pub fn list<'de, D>(deserializer: D) -> Result<Vec<String>, D::Error>
where
    D: Deserializer<'de>,
{
    let all: Vec<Value> = or_default(deserializer)?;
    Ok(all.into_iter().map(text).collect())
}

/// Reads a whole number, at most `u32::MAX`. A number of at least one with a fraction or an exponent becomes `u32::MAX`,
/// and every other value zero.
pub fn count<'de, D>(deserializer: D) -> Result<u32, D::Error>
where
    D: Deserializer<'de>,
{
    let value = Value::deserialize(deserializer)?;
    let is_much = || value.as_f64().is_some_and(|number| number >= 1.0);
    let whole = value
        .as_u64()
        .or_else(|| is_much().then_some(u64::MAX))
        .unwrap_or_default();
    Ok(u32::try_from(whole).unwrap_or(u32::MAX))
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
