//! A discovery property on the command line: `NAME=VALUE` or `NAME=@FILE`.

use std::path::PathBuf;
use std::str::FromStr;

use leafhost_core::names::is_env_name;

/// A discovery property as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyArg {
    /// The name.
    pub name: String,
    /// The value, or where it is.
    pub value: PropertyValue,
}

/// The value of a property, or where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyValue {
    /// The text after `=`.
    Text(String),
    /// The bytes of this file.
    File(PathBuf),
}

impl FromStr for PropertyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((name, value)) = text.split_once('=') else {
            return Err("has no '=', must be NAME=VALUE or NAME=@FILE".to_owned());
        };
        if !is_env_name(name) {
            return Err(format!(
                "the name {name:?} must be letters, digits and _, not beginning with a digit"
            ));
        }
        let value = match value.strip_prefix('@') {
            Some("") => return Err("has no file after '@'".to_owned()),
            Some(file) => PropertyValue::File(file.into()),
            None => PropertyValue::Text(value.to_owned()),
        };
        Ok(Self {
            name: name.to_owned(),
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_a_value_or_a_file() {
        let value = |text: &str| text.parse::<PropertyArg>().map(|property| property.value);
        assert_eq!(value("A=b=c"), Ok(PropertyValue::Text("b=c".into())));
        assert_eq!(value("A="), Ok(PropertyValue::Text(String::new())));
        assert_eq!(value("A=@/x"), Ok(PropertyValue::File("/x".into())));
        for wrong in ["A", "=b", "a-b=c", "A=@", "1=a"] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
    }
}
