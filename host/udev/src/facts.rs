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
    fn property(&self, key: &str) -> Option<Cow<'_, [u8]>>;
    /// A sysfs attribute.
    fn attribute(&self, key: &str) -> Option<Cow<'_, [u8]>>;
    /// The tags.
    fn tags(&self) -> &[String];
}

/// What a term finds on one device, whatever is above it.
pub(crate) enum Value<'a> {
    /// A text; an empty one for a driver, subsystem or property that is absent.
    Text(Cow<'a, [u8]>),
    /// Tags, perhaps none.
    Tags(&'a [String]),
    /// An attribute that is absent: nothing can be said of it.
    Absent,
}

pub(crate) fn value<'a>(term: &Term, facts: &'a dyn Facts) -> Value<'a> {
    let key = term.key.as_deref().unwrap_or_default();
    let text = |text: Option<&'a str>| Cow::Borrowed(text.unwrap_or_default().as_bytes());
    Value::Text(match term.field {
        Field::Attr | Field::Attrs => match facts.attribute(key) {
            Some(value) => value,
            None => return Value::Absent,
        },
        Field::Env => facts.property(key).unwrap_or_default(),
        Field::Devpath => text(Some(facts.devpath())),
        Field::Driver | Field::Drivers => text(facts.driver()),
        Field::Kernel | Field::Kernels => text(Some(facts.kernel())),
        Field::Subsystem | Field::Subsystems => text(facts.subsystem()),
        Field::Tag | Field::Tags => return Value::Tags(facts.tags()),
    })
}

impl Value<'_> {
    /// For people; none if there is nothing.
    pub(crate) fn shown(&self) -> Option<String> {
        let text = match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Self::Tags(tags) => tags.join(" "),
            Self::Absent => return None,
        };
        (!text.is_empty()).then_some(text)
    }
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
