//! Reads credentials from the `discoveryProperties`, in Akri's three formats. Problems name the property, and never contain
//! a value.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use leafhost_sdk::Property;
use leafhost_sdk::serde::de::{MapAccess, Visitor};
use leafhost_sdk::serde::{Deserialize, Deserializer};

use crate::security::Credential;
use crate::wsd::uuid;

const LIST: &str = "device_credential_list";
const REFERENCES: &str = "device_credential_ref_list";
const USER: &str = "username_";
const PASSWORD: &str = "password_";
const DEFAULT: &str = "default";

/// Credentials by the UUID of the camera.
#[derive(Debug, Default)]
pub struct Credentials {
    by_uuid: Vec<(String, Credential)>,
    /// Names of the properties that were looked up.
    used: Vec<String>,
    /// Problems of unusable properties, without values.
    pub problems: Vec<String>,
}

/// Entry of either kind of list.
#[derive(Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
struct Entry {
    username: Option<String>,
    password: Option<String>,
    #[serde(default)]
    base64encoded: bool,
    username_ref: Option<String>,
    password_ref: Option<String>,
}

/// Entries of a list, by the UUID as written there.
#[derive(Default)]
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("credentials by UUID")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(entry) = map.next_entry()? {
            self.0.push(entry);
        }
        Ok(self)
    }
}

impl Credentials {
    /// Reads the properties: first the lists, then the lists of references, then the single ones. Later ones replace earlier
    /// ones.
    pub fn new(properties: &[Property]) -> Self {
        let mut credentials = Self::default();
        credentials.read_lists(properties);
        credentials.read_references(properties);
        credentials.read_single(properties);
        credentials.name_unused(properties);
        credentials
    }

    /// Returns the credentials for a camera: its own, otherwise the default ones.
    pub fn get(&self, uuid: &str) -> Option<&Credential> {
        let of = |id: &str| self.by_uuid.iter().find(|(other, _)| other == id);
        of(uuid)
            .or_else(|| of(DEFAULT))
            .map(|(_, credential)| credential)
    }

    fn read_lists(&mut self, properties: &[Property]) {
        for name in self.names(properties, LIST) {
            for (id, entry) in self.entries(properties, &name) {
                let Some(user) = entry.username else {
                    self.problem(&name, "has an entry without `username`");
                    continue;
                };
                let password = match entry.password {
                    Some(text) if entry.base64encoded => {
                        let bytes = BASE64_STANDARD.decode(text).ok();
                        bytes.and_then(|bytes| String::from_utf8(bytes).ok())
                    }
                    password => Some(password.unwrap_or_default()),
                };
                match password {
                    Some(password) => self.insert(&id, user, password),
                    None => self.problem(&name, "has a password that is not Base64 of UTF-8"),
                }
            }
        }
    }

    fn read_references(&mut self, properties: &[Property]) {
        for name in self.names(properties, REFERENCES) {
            for (id, entry) in self.entries(properties, &name) {
                let reference = entry.username_ref.unwrap_or_default();
                let user = self.text(properties, &reference).unwrap_or_default();
                if user.is_empty() {
                    self.problem(
                        &name,
                        "names a property for a user name that does not exist",
                    );
                    continue;
                }
                let password = entry.password_ref.map(|reference| {
                    self.text(properties, &reference).unwrap_or_else(|| {
                        self.problem(&name, "names a property for a password that does not exist");
                        ""
                    })
                });
                self.insert(
                    &id,
                    user.to_owned(),
                    password.unwrap_or_default().to_owned(),
                );
            }
        }
    }

    fn read_single(&mut self, properties: &[Property]) {
        for property in properties {
            let Some(id) = property.name.strip_prefix(USER).filter(|id| !id.is_empty()) else {
                continue;
            };
            let user = self.text(properties, &property.name);
            let password = self.text(properties, &format!("{PASSWORD}{id}"));
            let Some(user) = user else {
                continue;
            };
            let password = password.unwrap_or_default().to_owned();
            // The name of a property is a C identifier, so it has `_` where the UUID has `-`.
            self.insert(&id.replace('_', "-"), user.to_owned(), password);
        }
    }

    /// Reports the properties that are part of no credentials, such as `ONVIF_USERNAME`.
    fn name_unused(&mut self, properties: &[Property]) {
        for property in properties {
            if !self.used.contains(&property.name) {
                self.problem(
                    &property.name,
                    "is part of no credentials; use username_default and password_default, or username_UUID and password_UUID for one camera",
                );
            }
        }
    }

    fn insert(&mut self, id: &str, user: String, password: String) {
        let id = uuid(id);
        self.by_uuid.retain(|(other, _)| *other != id);
        self.by_uuid.push((id, Credential { user, password }));
    }

    /// Returns the names in a property that lists names.
    fn names(&mut self, properties: &[Property], name: &str) -> Vec<String> {
        let Some(text) = self.text(properties, name) else {
            return Vec::new();
        };
        serde_json::from_str(text).unwrap_or_else(|_| {
            self.problem(name, "is not a JSON list of names of properties");
            Vec::new()
        })
    }

    fn entries(&mut self, properties: &[Property], name: &str) -> Vec<(String, Entry)> {
        let Some(text) = self.text(properties, name) else {
            self.problem(name, "is named in a list of credentials and does not exist");
            return Vec::new();
        };
        if let Ok(Entries(entries)) = serde_json::from_str(text) {
            return entries;
        }
        self.problem(name, "is not a JSON object of credentials by UUID");
        Vec::new()
    }

    fn text<'p>(&mut self, properties: &'p [Property], name: &str) -> Option<&'p str> {
        if !self.used.iter().any(|used| used == name) {
            self.used.push(name.to_owned());
        }
        let property = properties.iter().find(|property| property.name == name)?;
        let text = std::str::from_utf8(property.value.as_deref()?);
        if text.is_err() {
            self.problem(name, "is not UTF-8");
        }
        text.ok()
    }

    fn problem(&mut self, name: &str, what: &str) {
        let problem = format!("discovery property {name:?} {what}");
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

#[cfg(test)]
mod tests;
