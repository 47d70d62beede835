//! `leafhost handler new`: writes the SDK's template as a new crate.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use include_dir::{Dir, DirEntry, include_dir};

use crate::args::NewArgs;
use crate::failure::Usage;
use crate::terminal;

/// Source of the SDK: its template, and the files that a crate gets a copy of if no SDK is installed.
static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../sdk");
/// Folder of that copy.
const COPY: &str = "leafhost-sdk";

/// Crate names that Cargo or the compiler rejects.
const TAKEN: &str = "abstract alloc as async await become box break const continue core crate do dyn else enum \
    extern false final fn for gen if impl in leafhost-sdk let loop macro match mod move mut override priv \
    proc-macro pub ref return self static std struct super test trait true try type typeof unsafe unsized use \
    virtual where while yield";

pub fn run(args: &NewArgs) -> Result<()> {
    check_name(&args.name)?;
    let dir = args
        .path
        .clone()
        .unwrap_or_else(|| args.name.as_str().into());
    let sdk = match &args.sdk {
        Some(sdk) => Some(named_sdk(sdk)?),
        None => installed_sdk(),
    };
    write(&args.name, &dir, sdk)?;
    let shown = dir.display();
    let library = args.name.replace('-', "_");
    let name = &args.name;
    terminal::print(&format!(
        "\
Wrote the handler {name} to {shown}. Next:

  cd {shown}
  cargo test
  cargo build --release --target wasm32-wasip2
  leafhost handler run target/wasm32-wasip2/release/{library}.wasm --details details.yaml --grants {name}.grants.yaml

The handler is in src/lib.rs; README.md says how to install it.
"
    ))?;
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    let fine = name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && !name.contains("--")
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !fine {
        bail!(Usage(format!(
            "the name {name:?} must be 1 to 63 lower-case letters, digits and single '-', beginning with a letter"
        )));
    }
    if TAKEN.split_whitespace().any(|taken| taken == name) {
        bail!(Usage(format!(
            "a crate cannot be called {name:?}; choose another name"
        )));
    }
    Ok(())
}

/// Returns the value of `leafhost-sdk = …` for `--sdk`.
fn named_sdk(sdk: &str) -> Result<String> {
    let path = Path::new(sdk);
    if sdk.starts_with(|c: char| c.is_ascii_digit()) && !path.exists() {
        return Ok(toml_string(sdk));
    }
    let path = path.canonicalize().with_context(|| {
        format!("cannot find the SDK {sdk}: --sdk takes its folder or a version such as 0.1.0")
    })?;
    if !is_sdk(&path) {
        bail!(
            "{} is not the folder of leafhost-sdk: its Cargo.toml does not name it",
            path.display()
        );
    }
    Ok(dependency_on(&path))
}

/// Returns the SDK installed with this program, or that of the source tree it was built in.
fn installed_sdk() -> Option<String> {
    let executable = std::env::current_exe().and_then(|path| path.canonicalize());
    let folder = executable.ok()?.parent()?.to_owned();
    ["../share/leafhost/sdk", "../../sdk"]
        .iter()
        .filter_map(|place| folder.join(place).canonicalize().ok())
        .find(|path| is_sdk(path))
        .map(|path| dependency_on(&path))
}

fn is_sdk(path: &Path) -> bool {
    std::fs::read_to_string(path.join("Cargo.toml")).is_ok_and(|text| {
        text.lines()
            .any(|line| line.trim() == "name = \"leafhost-sdk\"")
    })
}

fn dependency_on(path: &Path) -> String {
    format!("{{ path = {} }}", toml_string(&path.to_string_lossy()))
}

/// Quotes a basic TOML string, whose escapes are those of JSON.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Writes the crate, with a copy of the SDK if it depends on no other one.
fn write(name: &str, dir: &Path, sdk: Option<String>) -> Result<()> {
    if dir
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
    {
        bail!(
            "{} is not empty; choose another folder with --path",
            dir.display()
        );
    }
    let copied = sdk.is_none();
    let sdk = sdk.unwrap_or_else(|| dependency_on(Path::new(COPY)));
    let fill = |text: &str| {
        text.replace("{{name}}", name)
            .replace("{{crate_name}}", &name.replace('-', "_"))
            .replace("{{sdk}}", &sdk)
    };
    for (path, text) in sdk_files() {
        let (path, text) = match path.strip_prefix("template") {
            Ok(path) => {
                let path = match path.to_str() {
                    Some("Cargo.toml.tmpl") => "Cargo.toml".into(),
                    Some("gitignore") => ".gitignore".into(),
                    Some("grants.yaml") => format!("{name}.grants.yaml").into(),
                    _ => path.to_owned(),
                };
                (path, fill(text))
            }
            Err(_) if !copied => continue,
            Err(_) if path.ends_with("Cargo.toml") => {
                (Path::new(COPY).join(path), without_workspace(text))
            }
            Err(_) => (Path::new(COPY).join(path), text.to_owned()),
        };
        let path = dir.join(path);
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::File::create_new(&path)?.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns all text files of [`SDK`].
fn sdk_files() -> Vec<(&'static Path, &'static str)> {
    let mut files = Vec::new();
    let mut dirs = vec![&SDK];
    while let Some(dir) = dirs.pop() {
        for entry in dir.entries() {
            match entry {
                DirEntry::Dir(dir) => dirs.push(dir),
                DirEntry::File(file) => {
                    files.extend(file.contents_utf8().map(|text| (file.path(), text)));
                }
            }
        }
    }
    files
}

/// Returns the manifest with the keys inherited from the workspace written out.
fn without_workspace(manifest: &str) -> String {
    let workspace = include_str!("../../../../Cargo.toml");
    let lines = manifest.lines().filter_map(|line| {
        let Some(key) = line.strip_suffix(".workspace = true") else {
            return (!["[lints]", "workspace = true"].contains(&line)).then_some(line);
        };
        let mut lines = workspace.lines();
        lines.find(|line| line.split(" = ").next() == Some(key))
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_handler_is_complete_and_has_no_placeholder_left() {
        let dir = tempfile::tempdir().unwrap();
        let crate_dir = dir.path().join("my-sensor");
        write("my-sensor", &crate_dir, Some("\"0.1.0\"".into())).unwrap();
        for file in [
            "Cargo.toml",
            "src/lib.rs",
            "my-sensor.grants.yaml",
            "details.yaml",
            "configuration.yaml",
            "README.md",
            ".gitignore",
        ] {
            let text = std::fs::read_to_string(crate_dir.join(file)).unwrap();
            assert!(!text.contains("{{"), "{file}: {text}");
        }
        assert!(!crate_dir.join(COPY).exists());
        let manifest = std::fs::read_to_string(crate_dir.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("name = \"my-sensor\""), "{manifest}");
        assert!(manifest.contains("leafhost-sdk = \"0.1.0\""), "{manifest}");
    }

    #[test]
    fn a_copied_sdk_needs_no_workspace() {
        for (path, text) in sdk_files() {
            if path.ends_with("Cargo.toml") {
                let manifest = without_workspace(text);
                assert!(!manifest.contains("workspace"), "{manifest}");
                assert_eq!(
                    manifest.lines().count() + 2,
                    text.lines().count(),
                    "all but [lints] is there: {manifest}"
                );
            }
        }
    }

    #[test]
    fn a_folder_that_is_not_empty_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write("a", &dir.path().join("empty"), None).unwrap();
        let error = write("a", dir.path(), None).unwrap_err().to_string();
        assert!(error.contains("is not empty"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn names_are_valid_for_cargo() {
        for (name, good) in [
            ("thermo", true),
            ("my-sensor-2", true),
            ("", false),
            ("2x", false),
            ("a_b", false),
            ("A", false),
            ("a-", false),
            ("a--b", false),
            ("type", false),
            ("core", false),
            ("../x", false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name}");
        }
    }

    #[test]
    fn the_sdk_is_a_version_or_a_folder() {
        assert_eq!(named_sdk("0.1.0").unwrap(), "\"0.1.0\"");
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk");
        let dependency = named_sdk(sdk.to_str().unwrap()).unwrap();
        assert!(dependency.starts_with("{ path = \"/"), "{dependency}");
        let error = format!("{:#}", named_sdk("/nowhere").unwrap_err());
        assert!(error.contains("--sdk"), "{error}");
        let other = tempfile::tempdir().unwrap();
        assert!(named_sdk(other.path().to_str().unwrap()).is_err());
    }
}
