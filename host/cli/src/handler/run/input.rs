//! Input of the handler: details and properties from a Configuration, a file, or the handler's example.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use leafhost_core::configuration::details_problem;
use leafhost_core::handler::Description;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::session::Property;
use leafhost_core::text;
use leafhost_files::check_file;
use leafhost_files::properties::{Values, without_newline};

use crate::args::RunArgs;

#[derive(Debug)]
pub struct Input {
    pub configuration: ConfigurationKey,
    pub details: String,
    /// Properties, sorted by name.
    pub properties: Vec<Property>,
    /// Origin of the details, as text.
    pub origin: String,
}

/// Reads the Configuration or details and adds the properties of the command line.
pub fn read(args: &RunArgs, description: &Description) -> Result<Input> {
    let alone = |details, origin: String| -> Result<Input> {
        Ok(Input {
            configuration: stand_in(&description.name)?,
            details,
            properties: Vec::new(),
            origin,
        })
    };
    let mut input = match (&args.configuration, &args.details) {
        (Some(path), _) => configuration(path, &description.name)?,
        (None, Some(path)) => {
            let origin = match path.to_str() {
                Some("-") => "the details on stdin".to_owned(),
                _ => format!("the details in {}", path.display()),
            };
            alone(details(path)?, origin)?
        }
        (None, None) if description.example.is_empty() => bail!(
            "{} has no example; give details with --details FILE or --configuration FILE",
            description.name
        ),
        (None, None) => alone(description.example.clone(), "its own example".to_owned())?,
    };
    for property in &args.property {
        set(&mut input.properties, property)?;
    }
    input.properties.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(input)
}

fn details(path: &Path) -> Result<String> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.with_context(|| format!("cannot read the details {}", path.display()))?;
    let has_line = |begin: &str| text.lines().any(|line| line.starts_with(begin));
    if has_line("apiVersion: akri.sh/") && has_line("kind: Configuration") {
        bail!(
            "{} is a whole Configuration, not only its details; give the file with --configuration",
            path.display()
        );
    }
    if let Some(problem) = details_problem(&text) {
        bail!("{} {problem}", path.display());
    }
    Ok(text)
}

/// Returns the name of the Configuration for a handler that is run without one.
pub fn stand_in(handler: &str) -> Result<ConfigurationKey> {
    let name = handler.to_ascii_lowercase();
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    Ok(ConfigurationKey::new("default", &name)?)
}

/// Sets a property of the command line; it replaces one of the same name. It counts as secret if it comes from a file or
/// replaces a secret.
fn set(properties: &mut Vec<Property>, (name, value): &(String, String)) -> Result<()> {
    let before = properties.iter().position(|held| held.name == *name);
    let before = before.map(|index| properties.swap_remove(index));
    let file = value.strip_prefix('@');
    let value = match file {
        None => value.clone().into_bytes(),
        Some(path) => {
            let value = std::fs::read(path)
                .with_context(|| format!("cannot read the property {name} from {path}"))?;
            without_newline(&value).to_vec()
        }
    };
    properties.push(Property {
        name: name.clone(),
        value: Some(value.into()),
        secret: file.is_some() || before.is_some_and(|property| property.secret),
    });
    Ok(())
}

/// Reads the only Configuration in the file for this handler, with its properties.
fn configuration(path: &Path, handler: &str) -> Result<Input> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the Configuration {}", path.display()))?;
    let checked = check_file(&path.display().to_string(), &text);
    let configurations = checked.documents.iter().map(|one| &one.configuration);
    let mut fitting = configurations
        .clone()
        .filter(|configuration| configuration.handler == handler);
    let Some(configuration) = fitting.next() else {
        if let Some(problem) = checked.problems.first() {
            bail!("{problem}");
        }
        let handlers = configurations.map(|configuration| &configuration.handler);
        bail!(
            "no Configuration in {} is for the handler {handler}: spec.discoveryHandler.name is {}",
            path.display(),
            text::few(handlers, usize::MAX)
        );
    };
    if let Some(other) = fitting.next() {
        bail!(
            "{} has several Configurations for {handler}, {} and {}; give a file with one",
            path.display(),
            configuration.key,
            other.key
        );
    }
    let properties = values(path).resolve(configuration);
    let properties = properties.map_err(|problem| anyhow!("{}: {problem}", path.display()))?;
    Ok(Input {
        configuration: configuration.key.clone(),
        details: configuration.details.clone(),
        properties,
        origin: format!("the discoveryDetails in {}", path.display()),
    })
}

/// Reads the secrets and config maps of the standalone folder that contains the file, or those next to it.
fn values(path: &Path) -> Values {
    let beside = path.parent().unwrap_or(Path::new(""));
    let folder = match beside.file_name() {
        Some(name) if name == "configurations" => beside.parent().unwrap_or(beside),
        _ => beside,
    };
    Values::now(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command, HandlerCommand};

    fn mk_input(flags: &str, example: &str) -> Result<Input> {
        let line = format!("leafhost handler run a.wasm {flags}");
        let Ok(Command::Handler(HandlerCommand::Run(args))) = args::parse(line.split_whitespace())
        else {
            panic!("{line}");
        };
        read(&args, &mk_description(example))
    }

    fn mk_description(example: &str) -> Description {
        Description {
            name: "debugEcho".into(),
            version: String::new(),
            summary: String::new(),
            example: example.into(),
            shared: true,
        }
    }

    fn mk_configuration(dir: &Path, name: &str, handler: &str) -> String {
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  discoveryHandler:\n    name: {handler}\n    discoveryDetails: 'a: 1'\n    discoveryProperties:\n    - name: P\n      valueFrom: {{secretKeyRef: {{name: s, key: k}}}}\n"
        );
        std::fs::create_dir_all(dir.join("secrets/s")).unwrap();
        std::fs::write(dir.join("secrets/s/k"), "hidden").unwrap();
        text
    }

    #[test]
    fn a_configuration_in_place_of_its_details_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        std::fs::write(&path, mk_configuration(dir.path(), "a", "debugEcho")).unwrap();
        let error = mk_input(&format!("--details {}", path.display()), "").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("give the file with --configuration"),
            "{error}"
        );
    }

    #[test]
    fn a_configuration_provides_details_and_the_secrets_of_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("configurations");
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("a.yaml");
        let text = mk_configuration(dir.path(), "a", "debugEcho");
        std::fs::write(&path, text).unwrap();
        let given = format!("--configuration {}", path.display());
        let input = mk_input(&given, "").unwrap();
        assert_eq!(input.configuration.to_string(), "default/a");
        assert_eq!(input.details, "a: 1");
        assert_eq!(input.properties[0].value.as_deref(), Some(&b"hidden"[..]));
        assert!(input.properties[0].secret);
        let input = mk_input(&format!("{given} --property P=shown"), "").unwrap();
        assert_eq!(input.properties.len(), 1);
        assert_eq!(input.properties[0].value.as_deref(), Some(&b"shown"[..]));
        assert!(input.properties[0].secret, "takes the place of a secret");
    }

    #[test]
    fn a_configuration_for_another_handler_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        std::fs::write(&path, mk_configuration(dir.path(), "a", "udev")).unwrap();
        let given = format!("--configuration {}", path.display());
        let error = mk_input(&given, "").unwrap_err();
        assert!(error.to_string().contains("is udev"), "{error}");
    }

    #[test]
    fn without_details_the_example_is_used_if_there_is_one() {
        let input = mk_input("", "x: 1").unwrap();
        assert_eq!(input.details, "x: 1");
        assert_eq!(input.configuration.to_string(), "default/debugecho");
        let error = mk_input("", "").unwrap_err();
        assert!(error.to_string().contains("--details"), "{error}");
    }

    #[test]
    fn a_property_from_a_file_counts_as_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        std::fs::write(&path, "x\n").unwrap();
        let given = format!("--property B=@{} --property A=1", path.display());
        let input = mk_input(&given, "x: 1").unwrap();
        let shown: Vec<(&str, &[u8], bool)> = input
            .properties
            .iter()
            .map(|one| (one.name.as_str(), one.value.as_deref().unwrap(), one.secret))
            .collect();
        assert_eq!(
            shown,
            [("A", b"1".as_slice(), false), ("B", b"x", true)],
            "and its last newline is not part of it"
        );
    }
}
