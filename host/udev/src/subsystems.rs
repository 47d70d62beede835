//! Limits the devices that may be seen, by subsystem.

use crate::pattern::{Match, Pattern};

/// An allow-list of subsystems. Devices of others are invisible, except as nameless links in a chain of ancestors.
#[derive(Debug, Clone, Default)]
pub struct Subsystems {
    globs: Vec<Pattern>,
}

impl Subsystems {
    /// Creates the list from globs in udev's syntax: `video4linux`, `usb*`. `*` allows all, including devices without a subsystem.
    pub fn new(globs: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let globs = globs.into_iter();
        let globs = globs.map(|glob| Pattern::glob(glob.as_ref())).collect();
        Self { globs }
    }

    /// Returns true if devices of `subsystem` may be seen.
    pub fn allows(&self, subsystem: Option<&str>) -> bool {
        match subsystem {
            Some(name) => self
                .globs
                .iter()
                .any(|glob| glob.matches(name.as_bytes()) == Match::Glob),
            None => self.globs.iter().any(Pattern::is_any),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_star_allows_devices_without_a_subsystem() {
        let table: [(&[&str], Option<&str>, bool); 6] = [
            (&["*"], None, true),
            (&["*"], Some("usb"), true),
            (&["usb*"], Some("usbmisc"), true),
            (&["usb*"], Some("block"), false),
            (&["usb*", "?*"], None, false),
            (&[], Some("usb"), false),
        ];
        for (globs, subsystem, expected) in table {
            assert_eq!(Subsystems::new(globs).allows(subsystem), expected);
        }
    }
}
