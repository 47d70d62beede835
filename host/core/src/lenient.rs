//! Reads the fields of an object that others write, too: what does not fit its type is left out or stands for nothing, and the rest stays.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Deserializer};
use serde_json::Value;

/// Reads a value; its default where it does not fit.
pub fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Reads a map without the entries that do not fit.
pub fn entries<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    entries_or(deserializer, || None)
}

/// Reads a map, with a value in place of each entry that does not fit, if there is one.
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

/// Reads a map of texts. Something else is taken as the text that it is in JSON: it is not nothing.
pub fn texts<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let Value::Object(all) = Value::deserialize(deserializer)? else {
        return Ok(BTreeMap::new());
    };
    let all = all.into_iter();
    Ok(all.map(|(name, value)| (name, text(value))).collect())
}

/// Reads a list of texts in the same way. Each stays in its place.
pub fn list<'de, D>(deserializer: D) -> Result<Vec<String>, D::Error>
where
    D: Deserializer<'de>,
{
    let Value::Array(all) = Value::deserialize(deserializer)? else {
        return Ok(Vec::new());
    };
    Ok(all.into_iter().map(text).collect())
}

/// Reads a number that is not negative; the nearest one that fits, zero where it is no number.
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
