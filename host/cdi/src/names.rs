//! Rules for the three parts of `vendor/class=device`.

/// Returns the reason why a vendor name is invalid, if any.
pub fn vendor_problem(vendor: &str) -> Option<&'static str> {
    if vendor.is_empty() {
        Some("is empty")
    } else {
        kind_part_problem(vendor)
    }
}

/// Returns the reason why a class name is invalid, if any.
///
/// Rejects a class of one character although the specification allows it: the CDI library of podman up to 0.5 crashes
/// on it, which disables all other devices of the machine as well.
pub fn class_problem(class: &str) -> Option<&'static str> {
    match class.len() {
        0 => Some("is empty"),
        1 => Some(
            "has one character, on which podman's CDI library up to 0.5 crashes; two are enough",
        ),
        _ => kind_part_problem(class),
    }
}

/// Returns the reason why a device name is invalid, if any.
pub fn device_name_problem(name: &str) -> Option<&'static str> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if name.is_empty() {
        Some("is empty")
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !name.ends_with(|c: char| c.is_ascii_alphanumeric())
    {
        Some("does not begin and end with a letter or digit")
    } else if !name.chars().all(inner) {
        Some("has a character other than letters, digits, '_', '-', '.' and ':'")
    } else {
        None
    }
}

fn kind_part_problem(text: &str) -> Option<&'static str> {
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        Some("does not begin with a letter")
    } else if !text.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        Some("does not end with a letter or digit")
    } else if text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    {
        None
    } else {
        Some("has a character other than letters, digits, '_', '-' and '.'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_specification_save_for_classes_of_one_character() {
        for (class, good) in [
            ("udev-video", true),
            ("a.b_c", true),
            ("ab", true),
            ("a", false),
            ("", false),
            ("1a", false),
            ("a-", false),
            ("a/b", false),
            ("a=b", false),
            ("ä1", false),
        ] {
            assert_eq!(class_problem(class).is_none(), good, "class {class:?}");
        }
        for (name, good) in [
            ("8120fe", true),
            ("all", true),
            ("a:b.c-d_e", true),
            ("0", true),
            ("", false),
            ("-a", false),
            ("a:", false),
            ("a b", false),
            ("aäb", false),
        ] {
            assert_eq!(device_name_problem(name).is_none(), good, "device {name:?}");
        }
        for (vendor, good) in [("akri.sh", true), ("v", true), ("", false), ("0.sh", false)] {
            assert_eq!(vendor_problem(vendor).is_none(), good, "vendor {vendor:?}");
        }
    }
}
