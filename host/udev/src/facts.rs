//! What a rule can ask of a device, wherever the answer comes from.

use std::borrow::Cow;

use crate::rule::{Field, Term};

/// A device, as far as rules look at it. Each is asked only when a rule asks.
pub(crate) trait Facts {
    /// The path below `/sys`.
    fn devpath(&self) -> &str;
    /// The kernel's name.
    fn kernel(&self) -> &str;
    /// The subsystem.
    fn subsystem(&self) -> Option<&str>;
    /// The driver.
    fn driver(&self) -> Option<&str>;
    /// A property.
    fn property(&self, key: &str) -> Option<String>;
    /// A sysfs attribute.
    fn attribute(&self, key: &str) -> Option<String>;
    /// The tags.
    fn tags(&self) -> &[String];
}

/// What a term finds on one device, ancestors left aside: texts, at least one; an empty one for what is absent.
pub(crate) fn values<'a>(term: &Term, facts: &'a dyn Facts) -> Vec<Cow<'a, str>> {
    let key = term.key.as_deref().unwrap_or_default();
    let value = match term.field {
        Field::Attr | Field::Attrs => facts.attribute(key).map(Cow::Owned),
        Field::Env => facts.property(key).map(Cow::Owned),
        Field::Devpath => Some(Cow::Borrowed(facts.devpath())),
        Field::Driver | Field::Drivers => facts.driver().map(Cow::Borrowed),
        Field::Kernel | Field::Kernels => Some(Cow::Borrowed(facts.kernel())),
        Field::Subsystem | Field::Subsystems => facts.subsystem().map(Cow::Borrowed),
        Field::Tag | Field::Tags => {
            let tags = facts.tags();
            if !tags.is_empty() {
                return tags.iter().map(|tag| Cow::Borrowed(tag.as_str())).collect();
            }
            None
        }
    };
    vec![value.unwrap_or_default()]
}

/// A device written down, for tests.
#[cfg(test)]
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    pub(crate) devpath: &'static str,
    pub(crate) subsystem: Option<&'static str>,
    pub(crate) driver: Option<&'static str>,
    pub(crate) properties: Vec<(&'static str, &'static str)>,
    pub(crate) attributes: Vec<(&'static str, &'static str)>,
    pub(crate) tags: Vec<String>,
}

#[cfg(test)]
impl Facts for Written {
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

    fn property(&self, key: &str) -> Option<String> {
        let found = self.properties.iter().find(|(name, _)| *name == key)?;
        Some(found.1.to_owned())
    }

    fn attribute(&self, key: &str) -> Option<String> {
        let found = self.attributes.iter().find(|(name, _)| *name == key)?;
        Some(found.1.to_owned())
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}
