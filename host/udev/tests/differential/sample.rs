//! The devices of the recorded or real machine, read from sysfs and udev's database without the code under test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Attributes that change between two reads, or whose reading has side effects.
const LEFT_ALONE: [&str; 12] = [
    "config",
    "eeprom",
    "inflight",
    "nvmem",
    "rom",
    "stat",
    "statistics",
    "trace",
    "urbnum",
    "vpd",
    "legacy_io",
    "legacy_mem",
];

/// A device of the recorded or real machine.
#[derive(Debug, Default)]
pub struct Sample {
    pub devpath: String,
    pub kernel: String,
    pub subsystem: String,
    pub driver: String,
    /// Properties from the kernel and udev.
    pub properties: BTreeMap<String, String>,
    /// Names of the properties that udev has set.
    pub database: BTreeSet<String>,
    /// Path of its file in udev's database.
    pub database_file: String,
    /// Small readable files, links, and those in the folder above.
    pub attributes: BTreeMap<String, String>,
    pub tags: Vec<String>,
    /// True if the device had other tags at an earlier event.
    pub had_tags: bool,
}

/// All devices with a subsystem and their ancestors, sorted by path.
#[derive(Debug)]
pub struct Samples {
    pub all: Vec<Sample>,
    indexes: BTreeMap<String, usize>,
}

impl Samples {
    pub fn read() -> io::Result<Self> {
        let mut folders = Vec::new();
        walk(Path::new("/sys/devices"), &mut folders)?;
        let has_subsystem = |path: &str| Path::new(&format!("/sys{path}/subsystem")).is_symlink();
        let wanted = |path: &str| {
            let below = format!("{path}/");
            has_subsystem(path)
                || folders
                    .iter()
                    .any(|other| other.starts_with(&below) && has_subsystem(other))
        };
        let mut all: Vec<Sample> = folders
            .iter()
            .filter(|path| wanted(path))
            .map(|path| Sample::read(path))
            .collect();
        all.sort_by(|a, b| a.devpath.cmp(&b.devpath));
        let indexes = (0..all.len())
            .map(|index| (all[index].devpath.clone(), index))
            .collect();
        Ok(Self { all, indexes })
    }

    pub fn index(&self, devpath: &str) -> Option<usize> {
        self.indexes.get(devpath).copied()
    }

    /// Returns a device and its ancestors.
    pub fn chain(&self, device: usize) -> Vec<&Sample> {
        let devpath = &self.all[device].devpath;
        let mut ends: Vec<usize> = devpath.match_indices('/').map(|(at, _)| at).collect();
        ends.push(devpath.len());
        ends.iter()
            .rev()
            .filter_map(|end| self.index(&devpath[..*end]))
            .map(|index| &self.all[index])
            .collect()
    }

    /// Returns the names of all properties that udev has set.
    pub fn database_keys(&self) -> impl Iterator<Item = &str> {
        let keys: BTreeSet<&str> = self
            .all
            .iter()
            .flat_map(|sample| sample.database.iter().map(String::as_str))
            .collect();
        keys.into_iter()
    }
}

/// Adds the folders with a `uevent`; does not follow links.
fn walk(folder: &Path, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_symlink() || !path.is_dir() {
            continue;
        }
        if path.join("uevent").exists()
            && let Some(devpath) = path.to_str().and_then(|path| path.strip_prefix("/sys"))
        {
            found.push(devpath.to_owned());
        }
        walk(&path, found)?;
    }
    Ok(())
}

impl Sample {
    fn read(devpath: &str) -> Self {
        let folder = format!("/sys{devpath}");
        let link = |name: &str| {
            let target = fs::read_link(format!("{folder}/{name}")).ok();
            let last = target.and_then(|target| Some(target.file_name()?.to_str()?.to_owned()));
            last.unwrap_or_default()
        };
        let kernel = devpath.rsplit('/').next().unwrap_or_default();
        let mut sample = Self {
            devpath: devpath.to_owned(),
            kernel: kernel.replace('!', "/"),
            subsystem: link("subsystem"),
            driver: link("driver"),
            ..Self::default()
        };
        let uevent = fs::read_to_string(format!("{folder}/uevent")).unwrap_or_default();
        for (key, value) in uevent.lines().filter_map(|line| line.split_once('=')) {
            sample.properties.insert(key.to_owned(), value.to_owned());
        }
        sample.read_database(kernel);
        sample.read_attributes(&folder, "", 0);
        if let Some(above) = Path::new(&folder).parent().and_then(Path::to_str) {
            sample.read_attributes(above, "../", 1);
        }
        sample
    }

    fn read_database(&mut self, kernel: &str) {
        let number = |key: &str| self.properties.get(key);
        let id = match (number("MAJOR"), number("MINOR"), number("IFINDEX")) {
            (Some(major), Some(minor), _) if self.subsystem == "block" => {
                format!("b{major}:{minor}")
            }
            (Some(major), Some(minor), _) => format!("c{major}:{minor}"),
            (_, _, Some(index)) => format!("n{index}"),
            _ => format!("+{}:{kernel}", self.subsystem),
        };
        self.database_file = format!("/run/udev/data/{id}");
        let text = fs::read_to_string(&self.database_file).unwrap_or_default();
        let mut ever = Vec::new();
        for (letter, rest) in text.lines().filter_map(|line| line.split_once(':')) {
            match (letter, rest.split_once('=')) {
                ("E", Some((key, value))) => {
                    self.properties.insert(key.to_owned(), value.to_owned());
                    self.database.insert(key.to_owned());
                }
                ("G", _) => ever.push(rest.to_owned()),
                ("Q", _) => self.tags.push(rest.to_owned()),
                _ => {}
            }
        }
        self.had_tags = ever.iter().any(|tag| !self.tags.contains(tag));
    }

    fn read_attributes(&mut self, folder: &str, prefix: &str, depth: usize) {
        let Ok(entries) = fs::read_dir(folder) else {
            return;
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let Ok(metadata) = entry.path().symlink_metadata() else {
                continue;
            };
            let is_left = LEFT_ALONE.contains(&name.as_str()) || name.starts_with("resource");
            if metadata.is_symlink() && depth == 0 {
                let target = fs::read_link(entry.path()).unwrap_or_default();
                let last = target.file_name().unwrap_or_default().to_string_lossy();
                self.attributes.insert(name.clone(), last.into_owned());
                if name == "device" {
                    self.read_attributes(&format!("{folder}/{name}/"), "device/", 1);
                }
            } else if metadata.is_file() && metadata.permissions().mode() & 0o444 != 0 && !is_left {
                let mut bytes = Vec::new();
                let file = fs::File::open(entry.path());
                if file
                    .and_then(|file| file.take(600).read_to_end(&mut bytes))
                    .is_err()
                {
                    continue;
                }
                let text = String::from_utf8_lossy(&bytes);
                let text = text.trim_end_matches(['\n', '\r']);
                self.attributes
                    .insert(format!("{prefix}{name}"), text.to_owned());
            }
        }
    }
}
