//! Which devices may be seen, by subsystem.

use crate::pattern::{Match, Pattern};

/// An allow-list of subsystems. Devices of others are as if they were not there, except as nameless links in a chain
/// of ancestors.
#[derive(Debug, Clone, Default)]
pub struct Subsystems {
    globs: Vec<Pattern>,
}

impl Subsystems {
    /// From globs, as udev understands them: `video4linux`, `usb*`. `*` stands for all, devices without a subsystem
    /// included.
    pub fn new<I>(globs: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Self {
            globs: globs
                .into_iter()
                .map(|glob| Pattern::glob(glob.as_ref()))
                .collect(),
        }
    }

    /// Whether devices of `subsystem` may be seen.
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
