//! Information about a device that rules ask for, independent of its source.

use std::borrow::Cow;

use crate::rule::{Field, Term};

/// A device as rules see it. Each fact is looked up only when a rule asks.
pub(crate) trait DeviceInfo {
    /// Returns the path below `/sys`.
    fn devpath(&self) -> &str;
    /// Returns the kernel name.
    fn kernel(&self) -> &str;
    /// Returns the subsystem.
    fn subsystem(&self) -> Option<&str>;
    /// Returns the driver.
    fn driver(&self) -> Option<&str>;
    /// Returns a property.
    fn property(&self, key: &str) -> Option<Cow<'_, [u8]>>;
    /// Returns a sysfs attribute.
    fn attribute(&self, key: &str) -> Option<Cow<'_, [u8]>>;
    /// Returns the tags.
    fn tags(&self) -> &[String];
}

/// Value that a term finds on one device, regardless of ancestors.
pub(crate) enum Value<'a> {
    /// A text; empty for an absent driver, subsystem or property.
    Text(Cow<'a, [u8]>),
    /// Tags, possibly none.
    Tags(&'a [String]),
    /// An absent attribute, which no term matches.
    Absent,
}

pub(crate) fn value<'a>(term: &Term, device: &'a dyn DeviceInfo) -> Value<'a> {
    let key = term.key.as_deref().unwrap_or_default();
    let text = |text: Option<&'a str>| Cow::Borrowed(text.unwrap_or_default().as_bytes());
    Value::Text(match term.field {
        Field::Attr | Field::Attrs => match device.attribute(key) {
            Some(value) => value,
            None => return Value::Absent,
        },
        Field::Env => device.property(key).unwrap_or_default(),
        Field::Devpath => text(Some(device.devpath())),
        Field::Driver | Field::Drivers => text(device.driver()),
        Field::Kernel | Field::Kernels => text(Some(device.kernel())),
        Field::Subsystem | Field::Subsystems => text(device.subsystem()),
        Field::Tag | Field::Tags => return Value::Tags(device.tags()),
    })
}

impl Value<'_> {
    /// Formats the value for people; returns `None` if it is empty.
    pub(crate) fn shown(&self) -> Option<String> {
        let text = match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Self::Tags(tags) => tags.join(" "),
            Self::Absent => return None,
        };
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
pub(crate) mod tests;
