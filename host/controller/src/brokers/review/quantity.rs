//! Kubernetes quantities: `0.5` and `500m` are equal.

use serde_json::Value;

/// Number of decimal digits that Kubernetes keeps.
const NANO: i32 = 9;

/// Returns true if both values are quantities of the same amount.
pub fn are_equal(one: &Value, other: &Value) -> bool {
    match (amount(one), amount(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// Parses a non-negative quantity into billionths. Returns `None` if the value is no such quantity or is too large.
fn amount(value: &Value) -> Option<u128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let text = text.strip_prefix('+').unwrap_or(&text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (tens, twos): (i32, u32) = match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, 0),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let tens = i32::try_from(part.len())
        .ok()
        .and_then(|behind| tens.checked_sub(behind))?
        .checked_add(NANO)?;
    let scaled = digits.checked_mul(2_u128.checked_pow(twos)?)?;
    let power = 10_u128.checked_pow(tens.unsigned_abs())?;
    if tens < 0 {
        Some(scaled.div_ceil(power))
    } else {
        scaled.checked_mul(power)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_equal_in_whatever_form_they_are_written() {
        for (one, other, expected) in [
            (json!("1"), json!(1), true),
            (json!(0.5), json!("500m"), true),
            (json!("1000m"), json!("1"), true),
            (json!("1024Mi"), json!("1Gi"), true),
            (json!("1.5Gi"), json!("1536Mi"), true),
            (json!("1e3"), json!("1k"), true),
            (json!("1E"), json!("1000P"), true),
            (json!("0.0000000001"), json!("1n"), true),
            (json!("1G"), json!("1Gi"), false),
            (json!("1"), json!("2"), false),
            (json!("x"), json!("x"), false),
            (json!("1e99"), json!("1e99"), false),
            (json!(""), json!("0"), false),
            (json!(null), json!("0"), false),
        ] {
            assert_eq!(are_equal(&one, &other), expected, "{one} {other}");
        }
    }
}
