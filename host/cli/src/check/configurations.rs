//! Reads Configurations with the lines they are at.

use leafhost_core::configuration::Configuration;
use leafhost_files::check_text;

/// A Configuration that can be used.
#[derive(Debug)]
pub struct Located {
    /// The file.
    pub file: String,
    /// The Configuration.
    pub configuration: Configuration,
    /// The line of its handler's name, from 1.
    pub handler_line: Option<usize>,
    /// The line of its `discoveryDetails`, from 1.
    pub details_line: Option<usize>,
}

/// The valid Configurations of a file with their lines.
pub fn read(file: &str, text: &str) -> Vec<Located> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found: Vec<Located> = Vec::new();
    let mut before = 0;
    for document in lines.split(|line| line.starts_with("---")) {
        let (configurations, _) = check_text(file, &(document.join("\n") + "\n"));
        for configuration in configurations {
            let line_of = |field: &str| {
                let mut lines = document.iter();
                let index = lines.position(|line| line.trim_start().starts_with(field))?;
                Some(before + index + 1)
            };
            let handler_line = line_of("discoveryHandler:");
            let details_line = line_of("discoveryDetails:").or(handler_line);
            // Of two with one name the first counts.
            if found
                .iter()
                .all(|other| other.configuration.key != configuration.key)
            {
                found.push(Located {
                    file: file.to_owned(),
                    configuration,
                    handler_line,
                    details_line,
                });
            }
        }
        before += document.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configuration_has_its_lines() {
        let one = |name: &str| {
            format!(
                "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  discoveryHandler:\n    name: x\n    discoveryDetails: a\n"
            )
        };
        let text = format!(
            "# two\n---\n{}--- # next\n{}---\n{}",
            one("a"),
            one("b"),
            one("a")
        );
        let found = read("f", &text);
        let lines: Vec<_> = found
            .iter()
            .map(|found| {
                (
                    found.configuration.key.name(),
                    found.handler_line,
                    found.details_line,
                )
            })
            .collect();
        assert_eq!(lines, [("a", Some(7), Some(9)), ("b", Some(15), Some(17))]);
    }
}
