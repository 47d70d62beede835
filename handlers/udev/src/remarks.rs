//! Remarks on valid rules that match no device, or more devices than are probably meant.

use leafhost_sdk::udev::{Field, Rule, Term};

/// Attributes that only a USB device itself has, and the kernel writes in lower-case digits.
const USB_IDS: [&str; 2] = ["idVendor", "idProduct"];
/// Properties of udev with such digits; those of PCI devices begin with 0x.
const ID_PROPERTIES: [&str; 2] = ["ID_VENDOR_ID", "ID_MODEL_ID"];

/// Returns the remark on a term whose value no device has.
pub fn of_term(term: &Term) -> Option<String> {
    let value = &term.value;
    let key = term.key.as_deref().unwrap_or_default();
    match term.field {
        Field::Kernel | Field::Kernels if value.starts_with("/dev/") => Some(node(value)),
        Field::Kernel | Field::Subsystem if is_regex(value) => Some(format!(
            "{value:?} is a glob as in udev, not a regular expression; write it without ^, $ and +, such as \"ttyUSB[0-9]*\""
        )),
        Field::Devpath if value.starts_with("/sys/") => {
            let path = value.strip_prefix("/sys").unwrap_or_default();
            Some(format!(
                "{value:?} is not a DEVPATH, which is a path below /sys; write {path:?}"
            ))
        }
        Field::Devpath if value.starts_with("/dev/") => Some(format!(
            "{value:?} is not a DEVPATH, which is a path below /sys; write ENV{{DEVNAME}} for a node"
        )),
        Field::Env if key == "DEVNAME" && value.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Some(format!(
                "{value:?} is not a DEVNAME, which is a path; write \"/dev/{value}\""
            ))
        }
        Field::Attr | Field::Attrs if USB_IDS.contains(&key) => digits(key, value, true),
        Field::Env if ID_PROPERTIES.contains(&key) => digits(key, value, false),
        _ => None,
    }
}

/// Returns the remark on a rule whose terms no device has together.
pub fn of_rule(rule: &[Term]) -> Option<String> {
    let is_other = |term: &Term| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        term.field == Field::Subsystem
            && !term.negated
            && term.value != "usb"
            && term.value.chars().all(is_name)
    };
    let other = rule.iter().find(|term| is_other(term))?;
    let is_id = |term: &&Term| {
        let key = term.key.as_deref().unwrap_or_default();
        term.field == Field::Attr && USB_IDS.contains(&key)
    };
    let key = rule.iter().find(is_id)?.key.as_deref()?;
    Some(format!(
        "a {} device has no {key}, only the USB device above it has; write ATTRS{{{key}}}",
        other.value
    ))
}

/// Returns the index of the rule that finds all devices of a subsystem although another rule has only attributes, and the remark on it: both
/// are probably meant as one.
pub fn of_rules(rules: &[Rule]) -> Option<(usize, String)> {
    let is_attribute = |term: &Term| matches!(term.field, Field::Attr | Field::Attrs | Field::Env);
    if !rules.iter().any(|rule| rule.iter().all(is_attribute)) {
        return None;
    }
    let wide = rules.iter().enumerate().find_map(|(index, rule)| {
        let [term] = rule.as_slice() else {
            return None;
        };
        let is_wide = matches!(term.field, Field::Subsystem | Field::Subsystems) && !term.negated;
        is_wide.then_some((index, term))
    });
    let (index, term) = wide?;
    let remark = format!(
        "finds every device with {term}, because a device needs to match only one rule; write terms that must all match in one rule, with commas"
    );
    Some((index, remark))
}

/// Returns the remark on a path in place of the name of a device.
fn node(path: &str) -> String {
    let name = path.strip_prefix("/dev/").unwrap_or_default();
    if name.contains('/') {
        format!(
            "{path:?} is a path, but KERNEL is a name without folders; write ENV{{DEVNAME}} for a node, ENV{{DEVLINKS}} for a link to one"
        )
    } else {
        format!("{path:?} is a path, but KERNEL is a name without folders; write {name:?}")
    }
}

/// Returns true for anchors and repetitions that a regular expression has.
fn is_regex(value: &str) -> bool {
    value.starts_with('^') || value.ends_with('$') || value.contains("]+") || value.contains("\\d")
}

/// Returns the remark on hexadecimal digits that are not written as the kernel writes them.
fn digits(key: &str, value: &str, without_prefix: bool) -> Option<String> {
    let fixed = |text: &str| {
        let lower = text.to_ascii_lowercase();
        let digits = lower.strip_prefix("0x").filter(|_| without_prefix);
        digits.unwrap_or(&lower).to_owned()
    };
    let is_hex = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit() || c == 'x');
    let parts: Vec<&str> = value.split('|').collect();
    let fixed: Vec<String> = parts.iter().map(|part| fixed(part)).collect();
    let fixed = fixed.join("|");
    let is_wrong = fixed != value && parts.iter().all(|part| is_hex(&part.to_ascii_lowercase()));
    let form = if without_prefix {
        "lower-case digits without 0x"
    } else {
        "lower-case digits"
    };
    is_wrong.then(|| format!("{value:?} matches no {key}, which has {form}; write {fixed:?}"))
}

#[cfg(test)]
mod tests {
    use leafhost_sdk::testing::remarks;

    use crate::Udev;

    fn told(rules: &[&str]) -> Vec<String> {
        let items: Vec<String> = rules.iter().map(|rule| format!("- '{rule}'")).collect();
        let told = remarks::<Udev>(&format!("udevRules:\n{}", items.join("\n")));
        told.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_that_matches_no_device_has_a_remark() {
        for (rule, words) in [
            (r#"KERNEL=="/dev/ttyUSB0""#, r#"write "ttyUSB0""#),
            (r#"KERNELS!="/dev/dri/card0""#, "ENV{DEVNAME} for a node"),
            (r#"KERNEL=="^ttyUSB[0-9]*$""#, "not a regular expression"),
            (r#"KERNEL=="ttyUSB[0-9]+""#, "not a regular expression"),
            (r#"DEVPATH=="/sys/devices/x""#, r#"write "/devices/x""#),
            (r#"DEVPATH=="/dev/ttyUSB0""#, "ENV{DEVNAME} for a node"),
            (r#"ENV{DEVNAME}=="ttyUSB0""#, r#"write "/dev/ttyUSB0""#),
            (r#"ATTRS{idVendor}=="10C4|1A86""#, r#"write "10c4|1a86""#),
            (r#"ATTRS{idProduct}=="0xea60""#, r#"write "ea60""#),
            (r#"ENV{ID_VENDOR_ID}=="0x10DE""#, r#"write "0x10de""#),
            (
                r#"SUBSYSTEM=="tty", ATTR{idVendor}=="10c4""#,
                "a tty device has no idVendor, only the USB device above it has; write ATTRS{idVendor}",
            ),
        ] {
            let told = told(&[rule]);
            let [one] = told.as_slice() else {
                panic!("{rule}: {told:?}");
            };
            assert!(one.starts_with("udevRules[0]: "), "{one}");
            assert!(one.contains(words), "{rule}: {one}");
        }
    }

    #[test]
    fn a_rule_that_may_match_has_no_remark() {
        for rule in [
            r#"KERNEL=="ttyUSB[0-9]*|ttyACM?""#,
            r#"DEVPATH=="/devices/*""#,
            r#"ENV{DEVNAME}=="/dev/ttyUSB0""#,
            r#"ATTRS{idVendor}=="10[Cc]4""#,
            r#"ATTRS{idVendor}=="10c4|*""#,
            r#"ENV{ID_VENDOR_ID}=="0x10de""#,
            r#"ATTR{vendor}=="0x10DE""#,
            r#"SUBSYSTEM=="usb", ATTR{idVendor}=="10c4""#,
            r#"SUBSYSTEM=="usb*", ATTR{idVendor}=="10c4""#,
            r#"SUBSYSTEM=="tty", ATTRS{idVendor}=="10c4""#,
        ] {
            assert_eq!(told(&[rule]), [""; 0], "{rule}");
        }
    }

    #[test]
    fn one_rule_in_several_items_has_a_remark() {
        let vendor = r#"ATTRS{idVendor}=="10c4""#;
        let tty = r#"SUBSYSTEM=="tty""#;
        let found = told(&[vendor, tty]);
        assert_eq!(found.len(), 1, "{found:?}");
        let words = r#"udevRules[1]: finds every device with SUBSYSTEM=="tty""#;
        assert!(found[0].starts_with(words), "{found:?}");
        for rules in [
            [tty, r#"SUBSYSTEM=="usb""#],
            [tty, r#"KERNEL=="video*""#],
            [r#"KERNEL=="tty*""#, vendor],
        ] {
            assert_eq!(told(&rules), [""; 0], "{rules:?}");
        }
        let none = remarks::<Udev>("udevRules: []");
        assert_eq!(none.len(), 1, "{none:?}");
    }
}
