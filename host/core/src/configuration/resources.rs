//! Resources that are offered to the kubelet for the devices of a Configuration.

/// Annotation that selects the resources offered to the kubelet: `configuration`, `instances` or `both`.
pub const RESOURCES_ANNOTATION: &str = "leafhost.dev/resources";

/// Resources that offer the slots of a Configuration to the kubelet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum Resources {
    /// One resource for the Configuration, served by any of its devices.
    Configuration,
    /// One resource per Instance.
    Instances,
    /// One resource for the Configuration and one per Instance, as in Akri.
    #[default]
    Both,
}

impl Resources {
    /// Parses the value of [`RESOURCES_ANNOTATION`].
    pub fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("is {text:?}, must be \"configuration\", \"instances\" or \"both\"")
        })
    }

    /// Returns true if the Configuration has a resource.
    pub fn has_configuration(self) -> bool {
        self != Self::Instances
    }

    /// Returns true if each Instance has a resource.
    pub fn has_instances(self) -> bool {
        self != Self::Configuration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_offers_at_least_one_of_the_two_and_another_value_is_a_problem() {
        for (text, expected) in [
            ("configuration", (true, false)),
            ("instances", (false, true)),
            ("both", (true, true)),
        ] {
            let resources = Resources::parse(text).unwrap();
            let offered = (resources.has_configuration(), resources.has_instances());
            assert_eq!(offered, expected, "{text}");
        }
        assert_eq!(Resources::default(), Resources::Both);
        for wrong in ["", "Both", "instance", "none"] {
            let problem = Resources::parse(wrong).unwrap_err();
            let words = "must be \"configuration\", \"instances\" or \"both\"";
            assert!(problem.contains(words), "{problem}");
        }
    }
}
