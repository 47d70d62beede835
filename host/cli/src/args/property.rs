//! Discovery property on the command line: `NAME=VALUE` or `NAME=@FILE`.

use leafhost_core::names::is_env_name;

/// Parses a property into its name, and its value or `@FILE`.
pub fn parse(text: &str) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("has no '=', must be NAME=VALUE or NAME=@FILE".to_owned());
    };
    if !is_env_name(name) {
        return Err(format!(
            "the name {name:?} must be letters, digits and _, not beginning with a digit"
        ));
    }
    if value == "@" {
        return Err("has no file after '@'".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_a_value_or_a_file() {
        for (text, value) in [("A=b=c", "b=c"), ("A=", ""), ("A=@/x", "@/x")] {
            assert_eq!(parse(text), Ok(("A".to_owned(), value.to_owned())));
        }
        for wrong in ["A", "=b", "a-b=c", "A=@", "1=a"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
