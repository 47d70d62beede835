//! Credentials out of the `discoveryProperties`, in the three ways Akri has. Says what is wrong by the name of the property,
//! never with anything out of it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use leafhost_sdk::{Deserialize, Property};

use crate::security::Credential;
use crate::wsd::uuid;

const LIST: &str = "device_credential_list";
const REFERENCES: &str = "device_credential_ref_list";
const USER: &str = "username_";
const PASSWORD: &str = "password_";
const DEFAULT: &str = "default";

/// The credentials there are, by the UUID of the camera.
#[derive(Debug, Default)]
pub struct Credentials {
    by_uuid: BTreeMap<String, Credential>,
    /// What could not be used, in words without values.
    pub problems: Vec<String>,
}

#[derive(Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
struct Entry {
    username: String,
    password: Option<String>,
    #[serde(default)]
    base64encoded: bool,
}

#[derive(Deserialize)]
#[serde(crate = "leafhost_sdk::serde")]
struct Reference {
    username_ref: String,
    password_ref: Option<String>,
}

impl Credentials {
    /// Reads the properties: first the lists, then the lists of references, then the single ones, so that the last one
    /// named here wins.
    pub fn new(properties: &[Property]) -> Self {
        let mut credentials = Self::default();
        credentials.read_lists(properties);
        credentials.read_references(properties);
        credentials.read_single(properties);
        credentials
    }

    /// What a camera is to be told.
    pub fn get(&self, uuid: &str) -> Option<&Credential> {
        self.by_uuid.get(uuid).or_else(|| self.by_uuid.get(DEFAULT))
    }

    fn read_lists(&mut self, properties: &[Property]) {
        for name in self.names(properties, LIST) {
            for (id, entry) in self.map::<Entry>(properties, &name) {
                let password = match entry.password {
                    Some(text) if entry.base64encoded => {
                        let bytes = BASE64_STANDARD.decode(text).ok();
                        bytes.and_then(|bytes| String::from_utf8(bytes).ok())
                    }
                    password => Some(password.unwrap_or_default()),
                };
                match password {
                    Some(password) => self.insert(&id, entry.username, password),
                    None => self.problem(&name, "has a password that is no Base64 of UTF-8"),
                }
            }
        }
    }

    fn read_references(&mut self, properties: &[Property]) {
        for name in self.names(properties, REFERENCES) {
            for (id, entry) in self.map::<Reference>(properties, &name) {
                let user = self
                    .text(properties, &entry.username_ref)
                    .unwrap_or_default();
                if user.is_empty() {
                    self.problem(&name, "names a property for a user name that is not there");
                    continue;
                }
                let password = entry.password_ref.map(|reference| {
                    self.text(properties, &reference).unwrap_or_else(|| {
                        self.problem(&name, "names a property for a password that is not there");
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
            let Some(user) = self.text(properties, &property.name) else {
                continue;
            };
            let password = self.text(properties, &format!("{PASSWORD}{id}"));
            let password = password.unwrap_or_default().to_owned();
            // The name of a property is a C identifier, so it has `_` where the UUID has `-`.
            self.insert(&id.replace('_', "-"), user.to_owned(), password);
        }
    }

    fn insert(&mut self, id: &str, user: String, password: String) {
        self.by_uuid.insert(uuid(id), Credential { user, password });
    }

    /// The names in a property that is a list of them.
    fn names(&mut self, properties: &[Property], name: &str) -> Vec<String> {
        let Some(text) = self.text(properties, name) else {
            return Vec::new();
        };
        serde_json::from_str(text).unwrap_or_else(|_| {
            self.problem(name, "is no JSON list of names of properties");
            Vec::new()
        })
    }

    fn map<T: leafhost_sdk::serde::de::DeserializeOwned>(
        &mut self,
        properties: &[Property],
        name: &str,
    ) -> BTreeMap<String, T> {
        let Some(text) = self.text(properties, name) else {
            self.problem(name, "is named in a list of credentials and not there");
            return BTreeMap::new();
        };
        serde_json::from_str(text).unwrap_or_else(|_| {
            self.problem(name, "is no JSON object of credentials by UUID");
            BTreeMap::new()
        })
    }

    fn text<'p>(&mut self, properties: &'p [Property], name: &str) -> Option<&'p str> {
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
