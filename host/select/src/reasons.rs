//! Says what a device is missing for a request, for people.

use crate::choose::Candidate;
use crate::expression::Verdict;
use crate::request::Way;

/// Says why a device is not for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missed {
    /// It is of another Configuration.
    #[error("it is of Configuration {0}")]
    Configuration(String),
    /// An expression is not true of it.
    #[error("selector {number} is false: {text}")]
    Selector {
        /// Counts the selectors of the request, from 1.
        number: usize,
        /// The expression.
        text: String,
    },
    /// An expression failed for it.
    #[error("selector {number} fails: {why}: {text}")]
    Fails {
        /// Counts the selectors of the request, from 1.
        number: usize,
        /// The expression.
        text: String,
        /// What is wrong.
        why: String,
    },
}

/// Returns the first condition of a request that a device does not meet.
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
