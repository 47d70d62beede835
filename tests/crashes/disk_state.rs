//! Checks the agent's files strictly: an unexpected or incomplete file is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::agent::Home;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// UID and creation time of each Instance, by name.
pub type Identities = BTreeMap<String, (String, String)>;

/// Expected final state.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Number and capacity of the Instances of each Configuration.
    pub instances: BTreeMap<&'static str, (usize, u64)>,
    /// Names of the handler files.
    pub handlers: BTreeSet<&'static str>,
}

/// Reads the Instances; fails if a file with an Instance's name is incomplete.
pub fn instances(home: &Home) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for path in files(&home.path().join("state/instances"))? {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.context("a name that is no text")?;
        if name.starts_with('.') {
            continue;
        }
        let stem = name.strip_suffix(".yaml");
        let stem = stem.with_context(|| format!("{name} is no Instance"))?;
        let text = fs::read_to_string(&path)?;
        let instance: Value = serde_saphyr::from_str(&text)
            .with_context(|| format!("incomplete Instance: {name}"))?;
        ensure!(
            text_at(&instance, "/metadata/name") == stem && instance.get("spec").is_some(),
            "incomplete Instance: {name}"
        );
        found.insert(stem.to_owned(), instance);
    }
    Ok(found)
}

pub fn identities(instances: &BTreeMap<String, Value>) -> Identities {
    let of = |(name, instance): (&String, &Value)| {
        let uid = text_at(instance, "/metadata/uid").to_owned();
        let made = text_at(instance, "/metadata/creationTimestamp").to_owned();
        (name.clone(), (uid, made))
    };
    instances.iter().map(of).collect()
}

/// Returns the Instances that exist before and after but were recreated.
pub fn re_created(before: &Identities, after: &Identities) -> Vec<String> {
    let changed = before
        .iter()
        .filter(|(name, one)| after.get(*name).is_some_and(|other| other != *one));
    changed.map(|(name, _)| name.clone()).collect()
}

/// Checks that the disk has exactly the expected state.
pub fn is_as_expected(home: &Home, expected: &Expected) -> Result<()> {
    let instances = instances(home)?;
    let mut counts: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for instance in instances.values() {
        let capacity = instance.pointer("/spec/capacity").and_then(Value::as_u64);
        let configuration = text_at(instance, "/spec/configurationName");
        let capacity = capacity.context("no capacity")?;
        let (count, same) = counts.entry(configuration).or_insert((0, capacity));
        ensure!(*same == capacity, "{configuration} has two capacities");
        *count += 1;
    }
    ensure!(counts == expected.instances, "Instances {counts:?}");
    specs(home.cdi(), &instances)?;
    handlers(home, expected)?;
    let names = |path: &str| -> Result<BTreeSet<String>> {
        let files = files(&home.path().join(path))?;
        let names = files.iter().filter_map(|path| path.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    };
    ensure!(
        names("configurations")? == names("state/accepted/configurations")?,
        "other Configurations are kept"
    );
    for path in files(&home.path().join("state/accepted/configurations"))? {
        let kept: Value = serde_saphyr::from_str(&fs::read_to_string(&path)?)?;
        let given = path.file_name().context("no name")?;
        let given = fs::read_to_string(home.path().join("configurations").join(given))?;
        ensure!(
            kept == serde_saphyr::from_str::<Value>(&given)?,
            "{} is not what was given",
            path.display()
        );
    }
    let entries = fs::read_dir(home.path().join("state"))?;
    let entries = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    let mut entries: BTreeSet<String> = entries.collect::<Result<_>>()?;
    // `loading` may still list a version that was being loaded when the agent was killed.
    for name in ["agent.sock", "loading"] {
        entries.remove(name);
    }
    let usual = [
        "accepted",
        "boot",
        "instances",
        "lock",
        "native",
        "node-name",
        "owners.yaml",
        "version",
    ];
    ensure!(
        entries.iter().eq(usual),
        "more or less than usual: {entries:?}"
    );
    owners(home, expected)
}

/// Checks that each handler's name belongs to its file.
fn owners(home: &Home, expected: &Expected) -> Result<()> {
    let text = fs::read_to_string(home.path().join("state/owners.yaml"))?;
    let owners: BTreeMap<String, Value> = serde_saphyr::from_str(&text)?;
    let sources: BTreeSet<&str> = owners.values().map(|one| text_at(one, "/source")).collect();
    for handler in &expected.handlers {
        ensure!(sources.contains(handler), "{handler} owns no name: {text}");
    }
    Ok(())
}

/// Checks that there is one spec per Configuration, with a device per Instance.
fn specs(folder: &Path, instances: &BTreeMap<String, Value>) -> Result<()> {
    let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, instance) in instances {
        let configuration = text_at(instance, "/spec/configurationName");
        let devices = wanted
            .entry(format!("akri.sh-{configuration}_leafhost.json"))
            .or_default();
        devices.insert("all".to_owned());
        let hash = name.strip_prefix(&format!("{configuration}-"));
        devices.insert(hash.context("a name without a hash")?.to_owned());
    }
    let mut found = BTreeMap::new();
    for path in files(folder)? {
        if path.ends_with(".akri.sh_leafhost.lock") {
            continue;
        }
        let spec: Value = serde_json::from_slice(&fs::read(&path)?)
            .with_context(|| format!("incomplete spec: {}", path.display()))?;
        let devices = spec.get("devices").and_then(Value::as_array);
        let devices = devices.into_iter().flatten();
        let devices = devices.map(|device| text_at(device, "/name").to_owned());
        let name = path.file_name().and_then(|name| name.to_str());
        found.insert(name.unwrap_or_default().to_owned(), devices.collect());
    }
    ensure!(found == wanted, "CDI specs {found:?}");
    Ok(())
}

/// Checks that exactly the given handlers are kept, complete, each with native code.
fn handlers(home: &Home, expected: &Expected) -> Result<()> {
    let mut digests = BTreeSet::new();
    for name in &expected.handlers {
        let bytes = fs::read(home.path().join("handlers").join(name))?;
        let digest = digest(&bytes);
        let kept = home
            .path()
            .join("state/accepted/handlers")
            .join(format!("{name}.yaml"));
        let version: Value = serde_saphyr::from_str(&fs::read_to_string(kept)?)?;
        ensure!(
            text_at(&version, "/digest") == digest,
            "another version of {name} is kept"
        );
        digests.insert(digest);
    }
    let accepted = home.path().join("state/accepted/handlers");
    let mut kept = BTreeSet::new();
    for path in files(&accepted)? {
        let name = path.strip_prefix(&accepted)?.to_string_lossy().into_owned();
        if let Some(named) = name.strip_prefix("bytes/") {
            ensure!(
                digest(&fs::read(&path)?) == named,
                "incomplete bytes of a handler"
            );
            kept.insert(named.to_owned());
        } else if !name
            .strip_suffix(".yaml")
            .is_some_and(|name| expected.handlers.contains(name))
        {
            bail!("{name} is kept");
        }
    }
    ensure!(kept == digests, "bytes are kept: {kept:?}");
    let mut native = BTreeSet::new();
    for path in files(&home.path().join("state/native"))? {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        match name.split_once('-') {
            Some((digest, rest)) if rest.strip_suffix(".native").is_some() => {
                native.insert(digest.to_owned());
            }
            _ => ensure!(name == "key", "{name} next to native code"),
        }
    }
    ensure!(native.is_superset(&digests), "native code of {native:?}");
    Ok(())
}

/// Returns all files below a folder, none if it is missing.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                // Skip a file that was removed during the walk.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => found.push(entry.path()),
            }
        }
    }
    found.sort();
    Ok(found)
}

pub fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}
