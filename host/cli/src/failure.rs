//! Reports a failed command: one `error:` line and the exit code.

use std::process::ExitCode;

use crate::terminal::{Paint, Tone};

/// Command line error that shows only after parsing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Failure that is already printed: the command ran, and for example `check` found problems.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub struct AlreadyReported;

/// Prints the error and chooses the exit code: 0 if the reader of the output is gone, 2 for a wrong command line, otherwise
/// 1.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let code = if error.is::<Usage>() { 2 } else { 1 };
    if !error.is::<AlreadyReported>() {
        let label = Paint::stderr().apply(Tone::Bad, "error:");
        eprintln!("{label} {}", line(error));
    }
    ExitCode::from(code)
}

/// Formats the error and its causes on one line, without repetitions.
pub fn line(error: &anyhow::Error) -> String {
    crate::terminal::escape(&leafhost_core::text::chain(error.as_ref())).into_owned()
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn the_exit_code_depends_on_the_kind_of_error() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        for (error, code) in [
            (anyhow!("no"), ExitCode::from(1)),
            (Usage("no".into()).into(), ExitCode::from(2)),
            (AlreadyReported.into(), ExitCode::from(1)),
            (
                anyhow::Error::from(gone).context("cannot print"),
                ExitCode::SUCCESS,
            ),
        ] {
            assert_eq!(report(&error), code, "{error:?}");
        }
    }

    #[test]
    fn causes_are_on_one_line_without_repetition() {
        let error = anyhow!("file\nmissing")
            .context("cannot read a: file\nmissing")
            .context("cannot start");
        assert_eq!(line(&error), "cannot start: cannot read a: file\\nmissing");
    }
}
