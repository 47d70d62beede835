//! Discovery property on the command line: `NAME=VALUE` or `NAME=@FILE`.

use std::path::PathBuf;
use std::str::FromStr;

use leafhost_core::names::is_env_name;

/// Discovery property as given on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyArg {
    pub name: String,
    /// Value, or the file that contains it.
    pub value: PropertyValue,
}

/// Value of a property, or the file that contains it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyValue {
    Text(String),
    /// Path of a file with the bytes.
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
