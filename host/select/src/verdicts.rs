//! Cache of verdicts by expression and by the values that the expression reads, so that unchanged devices are judged once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::device_attributes::DeviceAttributes;
use crate::expression::{Expression, Functions, Verdict};

/// Maximum number of cached expressions; all are dropped when it is reached.
const EXPRESSIONS: usize = 1_000;
/// Maximum number of cached verdicts of all expressions together; all are dropped when it is reached.
const VERDICTS: usize = 100_000;

/// Maximum number of places in `numbered` for all expressions together; all are dropped when it is exceeded.
const NUMBERED: usize = 2_000_000;

/// Cache of parsed expressions and verdicts.
#[derive(Default)]
pub struct Verdicts {
    functions: Functions,
    expressions: HashMap<String, Arc<Expression>>,
    /// Number of expressions parsed so far; each gets its own number.
    parsed: u64,
    /// Verdicts by the number of the expression and the values that it reads.
    judged: HashMap<(u64, DeviceAttributes), Verdict>,
    /// Results by the number of the expression, with a place per device number: the version of the device's attributes, and whether the
    /// expression is true.
    numbered: HashMap<u64, Vec<(u64, bool)>>,
    /// Number of places in `numbered`.
    places: usize,
}

impl Verdicts {
    /// Returns the parsed expression, from the cache if it was parsed before, or the error of [`Expression::new`].
    pub fn expression(&mut self, text: &str) -> Result<Arc<Expression>, String> {
        if let Some(known) = self.expressions.get(text) {
            return Ok(Arc::clone(known));
        }
        let mut expression = Expression::new(text)?;
        self.parsed += 1;
        expression.number = self.parsed;
        let expression = Arc::new(expression);
        if self.expressions.len() >= EXPRESSIONS {
            self.expressions.clear();
        }
        let kept = Arc::clone(&expression);
        self.expressions.insert(text.to_owned(), kept);
        Ok(expression)
    }

    /// Returns true if an expression is true for a device. `number` identifies the device; `version` must change whenever its attributes change and must
    /// not be 0. For a known number and version, no attributes are compared.
    pub fn fits(
        &mut self,
        expression: &Expression,
        (number, version): (usize, u64),
        device_attributes: &DeviceAttributes,
    ) -> bool {
        let known = self.numbered.get(&expression.number);
        if let Some((known, fits)) = known.and_then(|known| known.get(number))
            && *known == version
        {
            return *fits;
        }
        let fits = self.judge(expression, device_attributes) == Verdict::Fits;
        if self.places > NUMBERED {
            self.numbered.clear();
            self.places = 0;
        }
        let kept = self.numbered.entry(expression.number).or_default();
        let missing = (number + 1).saturating_sub(kept.len());
        kept.extend(std::iter::repeat_n((0, false), missing));
        self.places += missing;
        if let Some(place) = kept.get_mut(number) {
            *place = (version, fits);
        }
        fits
    }

    /// Returns the verdict on a device, from the cache if a device with the same values was judged before.
    pub fn judge(
        &mut self,
        expression: &Expression,
        device_attributes: &DeviceAttributes,
    ) -> Verdict {
        let key = (expression.number, expression.depends_on(device_attributes));
        if let Some(known) = self.judged.get(&key) {
            return known.clone();
        }
        let verdict = expression.judge(&self.functions, &key.1);
        if self.judged.len() >= VERDICTS {
            self.judged.clear();
        }
        self.judged.insert(key, verdict.clone());
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leafhost_core::attribute::AttributeValue;

    fn device_attributes(index: i64, serial: &str) -> DeviceAttributes {
        let name = |name: &str| ("leafhost.dev".to_owned(), name.to_owned());
        DeviceAttributes {
            attributes: [
                (name("index"), AttributeValue::Int(index)),
                (name("serial"), AttributeValue::String(serial.to_owned())),
            ]
            .into_iter()
            .collect(),
            ..DeviceAttributes::default()
        }
    }

    #[test]
    fn devices_with_the_same_values_are_judged_once() {
        let mut verdicts = Verdicts::default();
        let text = r#"device.attributes["leafhost.dev"].index == 1"#;
        let expression = verdicts.expression(text).unwrap();
        for serial in ["a", "b", "c"] {
            assert_eq!(
                verdicts.judge(&expression, &device_attributes(1, serial)),
                Verdict::Fits
            );
            assert_eq!(
                verdicts.judge(&expression, &device_attributes(2, serial)),
                Verdict::Differs
            );
        }
        assert_eq!(verdicts.judged.len(), 2);
        assert!(Arc::ptr_eq(
            &expression,
            &verdicts.expression(text).unwrap()
        ));
    }

    #[test]
    fn a_device_whose_attributes_differ_is_judged_again() {
        let mut verdicts = Verdicts::default();
        let text = r#"device.attributes["leafhost.dev"].index == 1"#;
        let expression = verdicts.expression(text).unwrap();
        assert!(verdicts.fits(&expression, (7, 1), &device_attributes(1, "a")));
        assert!(
            verdicts.fits(&expression, (7, 1), &device_attributes(2, "a")),
            "it is the same version"
        );
        assert!(!verdicts.fits(&expression, (7, 2), &device_attributes(2, "a")));
        assert!(!verdicts.fits(&expression, (3, 1), &device_attributes(2, "a")));
        assert_eq!(verdicts.places, 8);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut verdicts = Verdicts::default();
        for number in 0..EXPRESSIONS + 10 {
            let text = format!(r#"device.attributes["leafhost.dev"].index == {number}"#);
            let expression = verdicts.expression(&text).unwrap();
            verdicts.judge(&expression, &device_attributes(1, "a"));
        }
        assert!(verdicts.expressions.len() <= EXPRESSIONS);
        assert!(verdicts.judged.len() <= VERDICTS);
    }
}
