//! What the handler is told: details and properties from a Configuration, a file, or the handler's own example.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use leafhost_core::configuration::MAX_DETAILS;
use leafhost_core::handler::Description;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::session::Property;

use crate::args::{PropertyArg, PropertyValue};

/// Where details come from.
#[derive(Debug, Clone)]
pub enum Given {
    /// A Configuration file.
    Configuration(PathBuf),
    /// A file with details alone; `-` is stdin.
    Details(PathBuf),
}

/// What the handler is told.
#[derive(Debug)]
pub struct Input {
    /// The Configuration.
    pub configuration: ConfigurationKey,
    /// Its details.
    pub details: String,
    /// Its properties, sorted by name.
    pub properties: Vec<Property>,
    /// Where the details are from, in words.
    pub origin: String,
}

/// Reads all of it.
pub fn read(
    given: Option<&Given>,
    description: &Description,
    properties: &[PropertyArg],
) -> Result<Input> {
    let mut input = match given {
        Some(Given::Configuration(path)) => configuration(path, &description.name)?,
        Some(Given::Details(path)) => Input {
            configuration: stand_in(&description.name)?,
            details: details(path)?,
            properties: Vec::new(),
            origin: format!("the details in {}", path.display()),
        },
        None if description.example.is_empty() => bail!(
            "{} has no example: give details with --details FILE or --configuration FILE",
            description.name
        ),
        None => Input {
            configuration: stand_in(&description.name)?,
            details: description.example.clone(),
            properties: Vec::new(),
            origin: "its own example".to_owned(),
        },
    };
    for property in properties {
        set(&mut input.properties, property)?;
    }
    input.properties.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(input)
}

fn details(path: &Path) -> Result<String> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read details from stdin")?;
        text
    } else {
        std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the details {}", path.display()))?
    };
    if text.len() > MAX_DETAILS {
        bail!(
            "the details in {} have more than {} KiB",
            path.display(),
            MAX_DETAILS >> 10
        );
    }
    Ok(text)
}

/// A Configuration's name for a handler that is tried without one.
fn stand_in(handler: &str) -> Result<ConfigurationKey> {
    let name: String = handler
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    Ok(ConfigurationKey::new("default", &name)?)
}

/// A property from the command line takes the place of the one of its name. What is in a file counts as secret, as does
/// what takes the place of a secret.
fn set(properties: &mut Vec<Property>, given: &PropertyArg) -> Result<()> {
    let before = properties.iter().position(|held| held.name == given.name);
    let before = before.map(|index| properties.swap_remove(index));
    let (value, from_file) = match &given.value {
        PropertyValue::Text(text) => (text.clone().into_bytes(), false),
        PropertyValue::File(path) => {
            let value = std::fs::read(path).with_context(|| {
                format!(
                    "cannot read the property {} from {}",
                    given.name,
                    path.display()
                )
            })?;
            (value, true)
        }
    };
    properties.push(Property {
        name: given.name.clone(),
        value: Some(value.into()),
        secret: from_file || before.is_some_and(|property| property.secret),
    });
    Ok(())
}

fn configuration(path: &Path, handler: &str) -> Result<Input> {
    let _ = handler;
    bail!("{}", path.display())
}
