//! Explains to people which condition of a request a device does not meet.

use crate::choose::Candidate;
use crate::expression::Verdict;
use crate::request::Way;

/// Condition of a request that a device does not meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
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

/// Returns the first condition of a way that a device does not meet, or `None` if it meets all. `judge` judges the device by an expression.
pub fn missed(
    way: &Way,
    candidate: &Candidate<'_>,
    mut judge: impl FnMut(&str) -> Verdict,
) -> Option<Missed> {
    if candidate.configuration != way.configuration {
        return Some(Missed::Configuration(candidate.configuration.to_owned()));
    }
    let mut numbered = (1..).zip(&way.expressions);
    numbered.find_map(|(number, text)| match judge(text) {
        Verdict::Fits => None,
        Verdict::Differs => Some(Missed::Selector {
            number,
            text: text.clone(),
        }),
        Verdict::Failed(why) => Some(Missed::Fails {
            number,
            text: text.clone(),
            why,
        }),
    })
}
