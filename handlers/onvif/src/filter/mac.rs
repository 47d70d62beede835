//! Normalizes hardware addresses, which cameras and operators write in many ways.

/// Returns the address in the form `00:11:22:aa:bb:cc`; a text that is not a hardware address of six bytes is returned
/// unchanged.
pub fn spell(text: &str) -> String {
    let groups: Vec<&str> = text.trim().split([':', '-', '.', ' ']).collect();
    // Six groups of one byte may omit leading zeros; other groups show where bytes begin only if they have all digits.
    let digits: String = if groups.len() == 6 {
        groups.iter().map(|group| format!("{group:0>2}")).collect()
    } else {
        groups.concat()
    };
    if digits.len() != 12 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return text.to_owned();
    }
    let mut spelled = String::with_capacity(17);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && place % 2 == 0 {
            spelled.push(':');
        }
        spelled.push(digit.to_ascii_lowercase());
    }
    spelled
}

/// Returns true if the text is a hardware address in the form of [`spell`].
pub fn is_spelled(text: &str) -> bool {
    let groups: Vec<&str> = text.split(':').collect();
    let is_byte = |group: &&str| group.len() == 2 && group.bytes().all(|b| b.is_ascii_hexdigit());
    groups.len() == 6 && groups.iter().all(is_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_becomes_one() {
        for (text, spelled) in [
            ("00:11:22:AA:bb:0C", "00:11:22:aa:bb:0c"),
            ("00-11-22-AA-BB-0C", "00:11:22:aa:bb:0c"),
            ("0011.22aa.bb0c", "00:11:22:aa:bb:0c"),
            ("001122-AABB0C", "00:11:22:aa:bb:0c"),
            ("001122AABB0C", "00:11:22:aa:bb:0c"),
            ("0:11:22:aa:bb:c", "00:11:22:aa:bb:0c"),
            (" 00:11:22:aa:bb:0c\n", "00:11:22:aa:bb:0c"),
            // Some cameras report texts that are not addresses.
            ("5792c4:5792c5:5792c6", "5792c4:5792c5:5792c6"),
            ("000:1:22:aa:bb:0c", "000:1:22:aa:bb:0c"),
            ("00:11:22:aa:bb", "00:11:22:aa:bb"),
            ("00:11:22:aa:bb:0g", "00:11:22:aa:bb:0g"),
            ("é0:11:22:aa:bb:c", "é0:11:22:aa:bb:c"),
            ("", ""),
        ] {
            assert_eq!(spell(text), spelled, "{text}");
        }
    }
}
