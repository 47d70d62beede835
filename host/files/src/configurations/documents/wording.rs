//! Rewords messages of the YAML reader for the author of the text. Pure.

const DETAILS: &str = "spec.discoveryHandler.discoveryDetails";

/// Describes the mistake at `path`, on `line` of the text, from 1.
pub fn reworded(text: &str, line: Option<usize>, path: &str, message: &str) -> String {
    let number = line.and_then(|line| line.checked_sub(1));
    let written = number
        .and_then(|number| text.split('\n').nth(number))
        .unwrap_or_default();
    let begins = |part: &str| part.trim_start().starts_with("{{");
    if written.split([':', '-']).any(begins) {
        return "begins with {{: render the Helm template first".to_owned();
    }
    if let Some(rest) = message.strip_prefix("missing field `") {
        let field = rest.split('`').next().unwrap_or_default();
        return match field {
            "apiVersion" => {
                "is not a Configuration (first line: apiVersion: akri.sh/v0)".to_owned()
            }
            _ => format!("has no {field}"),
        };
    }
    if let Some(mismatch) = message.strip_prefix("invalid type: ") {
        let mismatch = mismatch.rsplit_once(", expected ");
        let said = mismatch.and_then(|(found, expected)| of_another_type(path, found, expected));
        return said.unwrap_or_else(|| message.to_owned());
    }
    let indent = written.len() - written.trim_start().len();
    let has_tab = written.bytes().take(indent).any(|byte| byte == b'\t');
    if has_tab && !message.starts_with("duplicate ") {
        return "has a tab; YAML indents with spaces".to_owned();
    }
    message.to_owned()
}

fn of_another_type(path: &str, found: &str, expected: &str) -> Option<String> {
    match (found.split_once(' '), expected) {
        (None, "a string") if path == DETAILS => {
            Some("must be text: write `discoveryDetails: |` and indent what follows".to_owned())
        }
        (Some(("string", quoted)), "i64") => {
            let number = quoted.trim_matches('"');
            Some(match number.parse::<i64>() {
                Ok(number) => format!("is {quoted}; write {number} without quotes"),
                Err(_) => format!("is {quoted}, must be a number"),
            })
        }
        _ => None,
    }
}
