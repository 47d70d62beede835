//! Errors that end a call without an answer.

use std::fmt;

use crate::Problem;

/// Result of [`Handler::discover`](crate::Handler::discover).
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a call that has no answer. The devices found before stay.
///
/// Any `std::error::Error` converts into [`Unavailable`](Self::Unavailable) with `?`; the text includes its sources. Because
/// of this conversion, the type itself does not implement `std::error::Error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// Details that turned out to be wrong only during the call. There is no further call until the Configuration changes.
    InvalidDetails(Vec<Problem>),
    /// Temporary failure; the text says what is not available. The next call comes after one second, then two, and so on up
    /// to five minutes.
    Unavailable(String),
}

impl Error {
    /// Creates an [`Unavailable`](Self::Unavailable) that says what is not available.
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable(what.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidDetails(problems) => {
                f.write_str("the details are wrong")?;
                for problem in problems {
                    write!(f, "; {problem}")?;
                }
                Ok(())
            }
            Self::Unavailable(what) => f.write_str(what),
        }
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self::Unavailable(text)
    }
}

impl Problem {
    /// Creates a problem. `path` is the field as YAML tools write it, such as `filter.items[2]`, or empty for the text as a
    /// whole; `message` says what is wrong and what would be right.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_of_an_error_are_in_the_text() {
        #[derive(Debug)]
        struct Outer(std::num::ParseIntError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot read the port")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        fn fails() -> Result<u16> {
            Ok("x".parse::<u16>().map_err(Outer)?)
        }
        assert_eq!(
            fails(),
            Err(Error::unavailable(
                "cannot read the port: invalid digit found in string"
            ))
        );
    }

    #[test]
    fn problems_are_shown_with_their_paths() {
        let error = Error::InvalidDetails(vec![
            Problem::new("a[1]", "is too large"),
            Problem::new("", "is not YAML"),
        ]);
        assert_eq!(
            error.to_string(),
            "the details are wrong; a[1]: is too large; is not YAML"
        );
    }
}
