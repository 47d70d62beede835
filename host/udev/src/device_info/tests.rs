//! A device with fixed information, for tests.

use super::*;

/// A device with fixed information.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    pub(crate) devpath: &'static str,
    pub(crate) subsystem: Option<&'static str>,
    pub(crate) driver: Option<&'static str>,
    pub(crate) properties: Vec<(&'static str, &'static str)>,
    pub(crate) attributes: Vec<(&'static str, &'static str)>,
    pub(crate) tags: Vec<String>,
}

impl DeviceInfo for Written {
    fn devpath(&self) -> &str {
        self.devpath
    }

    fn kernel(&self) -> &str {
        self.devpath.rsplit('/').next().unwrap_or_default()
    }

    fn subsystem(&self) -> Option<&str> {
        self.subsystem
    }

    fn driver(&self) -> Option<&str> {
        self.driver
    }

    fn property(&self, key: &str) -> Option<Cow<'_, [u8]>> {
        let found = self.properties.iter().find(|(name, _)| *name == key)?;
        Some(Cow::Borrowed(found.1.as_bytes()))
    }

    fn attribute(&self, key: &str) -> Option<Cow<'_, [u8]>> {
        let found = self.attributes.iter().find(|(name, _)| *name == key)?;
        Some(Cow::Borrowed(found.1.as_bytes()))
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}
