//! Attributes and capacities of a device, named as in Kubernetes' Dynamic Resource Allocation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum length of a text or version, in bytes (`resource.k8s.io/v1`, `DeviceAttributeMaxValueLength`).
pub const MAX_VALUE: usize = 64;
/// Maximum number of attributes and capacities of one device together
/// (`ResourceSliceMaxAttributesAndCapacitiesPerDevice`).
pub const MAX_COUNT: usize = 32;

/// Attribute value in the JSON form of `resource.k8s.io/v1` `DeviceAttribute`: `{"string": "LATEST-GPU-MODEL"}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AttributeValue {
    /// Text of at most 64 bytes.
    String(String),
    /// Integer.
    Int(i64),
    /// Boolean.
    Bool(bool),
    /// Semantic version of at most 64 bytes.
    Version(String),
}

/// Attributes by name.
pub type Attributes = BTreeMap<String, AttributeValue>;
/// Capacities by name; the values are Kubernetes quantities.
pub type Capacities = BTreeMap<String, String>;

/// Returns the reason why `name` is not a valid name of an attribute or capacity, if any.
///
/// The form is `[<DNS subdomain of at most 63 bytes>/]<C identifier of at most 32 bytes>`.
pub fn name_problem(name: &str) -> Option<&'static str> {
    let (domain, identifier) = name.split_once('/').unzip();
    let identifier = identifier.unwrap_or(name);
    if domain.is_some_and(|domain| domain.len() > 63 || !crate::names::is_node_name(domain)) {
        return Some("the part before '/' must be a DNS domain of at most 63 bytes");
    }
    if identifier.len() > 32 || !crate::names::is_env_name(identifier) {
        return Some("must be a C identifier of at most 32 bytes, perhaps behind 'domain/'");
    }
    None
}

/// Returns the reason why `value` is invalid, if any.
pub fn value_problem(value: &AttributeValue) -> Option<&'static str> {
    match value {
        AttributeValue::String(text) if text.len() > MAX_VALUE => {
            Some("text is longer than 64 bytes")
        }
        AttributeValue::Version(text)
            if text.len() > MAX_VALUE || semver::Version::parse(text).is_err() =>
        {
            Some("version must be like 1.2.3 and at most 64 bytes")
        }
        _ => None,
    }
}

/// Binary suffixes of quantities, from 2^10 on.
const BINARY: &[&str] = &["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Decimal suffixes of quantities, from 10^-9 on.
const DECIMAL: &[&str] = &["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// Returns true if `text` is a Kubernetes quantity: a decimal number with an SI or binary suffix or a decimal exponent.
///
/// Source: `k8s.io/apimachinery/pkg/api/resource`, the grammar in the documentation of `Quantity`.
pub fn is_quantity(text: &str) -> bool {
    quantity(text).is_some()
}

/// Splits a quantity into its number without sign, and its suffix.
fn quantity(text: &str) -> Option<(&str, &str)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = unsigned.split_at(end.unwrap_or(unsigned.len()));
    let exponent = suffix.strip_prefix(['e', 'E']).is_some_and(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && exponent.bytes().all(|b| b.is_ascii_digit())
    });
    let is_quantity = text.len() <= 64
        && number.bytes().any(|b| b.is_ascii_digit())
        && number.matches('.').count() <= 1
        && (BINARY.contains(&suffix) || DECIMAL.contains(&suffix) || exponent);
    is_quantity.then_some((number, suffix))
}

/// Returns the amount of a quantity in billionths, rounded up as in Kubernetes, or `None` if it is not a quantity or does
/// not fit. Makes quantities comparable: the API server writes an amount in one way only, handlers in several.
pub fn nanos(text: &str) -> Option<i128> {
    let (number, suffix) = quantity(text)?;
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let power_of_two = BINARY.iter().zip(1..).find(|(name, _)| **name == suffix);
    let power_of_ten = DECIMAL.iter().zip(-3..).find(|(name, _)| **name == suffix);
    let (twos, tens): (u32, i32) = match (power_of_two, power_of_ten) {
        (Some((_, power)), _) => (10 * power, 0),
        (None, Some((_, power))) => (0, 3 * power),
        (None, None) => (0, suffix.get(1..)?.parse().ok()?),
    };
    let scaled = digits.checked_mul(1_u128.checked_shl(twos)?)?;
    let behind = i32::try_from(fraction.len()).ok()?;
    let tens = tens.checked_add(9)?.checked_sub(behind)?;
    let factor = 10_u128.checked_pow(tens.unsigned_abs())?;
    let amount = if tens < 0 {
        scaled.div_ceil(factor)
    } else {
        scaled.checked_mul(factor)?
    };
    Some(sign * i128::try_from(amount).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_dra_takes() {
        for (name, good) in [
            ("model", true),
            ("gpu.example.com/model", true),
            ("driverVersion", true),
            ("", false),
            ("a-b", false),
            ("1a", false),
            ("/a", false),
            ("a/b/c", false),
            (&"a".repeat(33), false),
        ] {
            assert_eq!(name_problem(name).is_none(), good, "{name}");
        }
    }

    #[test]
    fn versions_are_semantic() {
        for (text, good) in [
            ("1.2.3", true),
            ("1.0.0-rc.1+build.5", true),
            ("1.2", false),
            ("01.2.3", false),
            ("1.2.3-", false),
            ("1.2.3-01", false),
            ("v1.2.3", false),
        ] {
            assert_eq!(
                value_problem(&AttributeValue::Version(text.into())).is_none(),
                good,
                "{text}"
            );
        }
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, good) in [
            ("80Gi", true),
            ("1", true),
            ("1.5", true),
            (".5", true),
            ("100m", true),
            ("1e3", true),
            ("1E", true),
            ("-1", true),
            ("", false),
            (".", false),
            ("80 Gi", false),
            ("80GB", false),
            ("1.2.3", false),
            ("1e", false),
        ] {
            assert_eq!(is_quantity(text), good, "{text}");
        }
    }

    #[test]
    fn one_amount_is_the_same_however_it_is_written() {
        for (one, other) in [
            ("24576Mi", "24Gi"),
            ("1.5", "1500m"),
            ("1000", "1k"),
            ("1e3", "1k"),
            (".5Gi", "512Mi"),
            ("-2", "-2000m"),
            ("+0.1", "100m"),
            ("0.0000000001", "1n"),
        ] {
            assert_eq!(nanos(one), nanos(other), "{one} {other}");
            assert!(nanos(one).is_some(), "{one}");
        }
        assert_ne!(nanos("1Gi"), nanos("1G"));
        assert_eq!(nanos("5"), Some(5_000_000_000));
        for text in [
            "",
            "x",
            "9999999999999999999999999999999999999999",
            "1e99",
            "1e2147483647",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }

    #[test]
    fn values_have_the_json_form_of_dra() {
        let json = serde_json::to_string(&AttributeValue::String("x".into())).unwrap();
        assert_eq!(json, r#"{"string":"x"}"#);
        assert_eq!(
            serde_json::to_string(&AttributeValue::Int(3)).unwrap(),
            r#"{"int":3}"#
        );
    }
}
