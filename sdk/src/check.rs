//! Checks of text formats that Kubernetes requires, for [`Handler::validate`](crate::Handler::validate).

/// Returns true if `text` is a semantic version of at most 64 bytes, as required of an attribute's
/// [`Version`](crate::AttributeValue::Version).
pub fn is_version(text: &str) -> bool {
    text.len() <= 64 && semver::Version::parse(text).is_ok()
}

/// Returns true if `text` is a Kubernetes quantity of at most 64 bytes, as required of a
/// [capacity](crate::Device::capacity): a decimal number with an optional exponent or suffix, one of `n u m k M G T P E Ki
/// Mi Gi Ti Pi Ei`.
pub fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let sign = |text: &str| text.strip_prefix(['+', '-']).map_or(0, |_| 1);
    let unsigned = text.get(sign(text)..).unwrap_or_default();
    let suffix = unsigned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = unsigned.strip_suffix(suffix).unwrap_or_default();
    let exponent = suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| {
        let digits = exponent.get(sign(exponent)..).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    });
    text.len() <= 64
        && number.bytes().any(|b| b.is_ascii_digit())
        && number.matches('.').count() <= 1
        && (SUFFIXES.contains(&suffix) || exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semantic_versions_are_recognized() {
        for text in [
            "1.2.3",
            "0.0.0",
            "1.0.0-rc.1+build.05",
            "1.0.0--",
            "1.0.0+a-b",
        ] {
            assert!(is_version(text), "{text}");
        }
        let long = format!("1.0.0-{}", "a".repeat(60));
        for text in [
            "", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3.4", "1.2.3+", &long,
        ] {
            assert!(!is_version(text), "{text}");
        }
    }

    #[test]
    fn kubernetes_quantities_are_recognized() {
        for text in [
            "80Gi", "1", "1.5", ".5", "5.", "100m", "1e3", "1E-3", "1E", "-1", "+1Ki",
        ] {
            assert!(is_quantity(text), "{text}");
        }
        let long = "1".repeat(65);
        for text in [
            "", ".", "-", "80 Gi", "80GB", "1.2.3", "1e", "1e+", "Gi", "--1", &long,
        ] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
