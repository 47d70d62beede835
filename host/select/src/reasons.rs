//! Explains to people which condition of a request a device does not meet.

use crate::choose::Candidate;
use crate::expression::Verdict;
use crate::request::Alternative;

/// Condition of a request that a device does not meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnmetCondition {
    /// Device of another Configuration, which this holds.
    #[error("it is of Configuration {0}")]
    Configuration(String),
    /// An expression is false for the device.
    #[error("selector {number} is false: {text}")]
    Selector {
        /// Number of the selector in the request, from 1.
        number: usize,
        /// Text of the expression.
        text: String,
    },
    /// An expression failed for the device.
    #[error("selector {number} fails: {why}: {text}")]
    Fails {
        /// Number of the selector in the request, from 1.
        number: usize,
        /// Text of the expression.
        text: String,
        /// Error of the expression.
        why: String,
    },
}

/// Returns the first condition of an alternative that a device does not meet, or `None` if it meets all. `judge` judges the device by an expression.
pub fn unmet_condition(
    alternative: &Alternative,
    candidate: &Candidate<'_>,
    mut judge: impl FnMut(&str) -> Verdict,
) -> Option<UnmetCondition> {
    if candidate.configuration != alternative.configuration {
        return Some(UnmetCondition::Configuration(
            candidate.configuration.to_owned(),
        ));
    }
    let mut numbered = (1..).zip(&alternative.expressions);
    numbered.find_map(|(number, text)| match judge(text) {
        Verdict::Fits => None,
        Verdict::Differs => Some(UnmetCondition::Selector {
            number,
            text: text.clone(),
        }),
        Verdict::Failed(why) => Some(UnmetCondition::Fails {
            number,
            text: text.clone(),
            why,
        }),
    })
}
