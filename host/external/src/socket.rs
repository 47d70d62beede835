//! Sockets in the folder of external handlers, with the remedy for one that cannot be created.

use std::path::Path;

use leafhost_uds::{MAX_PATH, MORE_FILES, SocketFile};
use tokio::net::UnixListener;

/// Returns the reason why a socket could not be created, with the remedy.
fn describe(path: &Path, why: leafhost_uds::Error) -> String {
    use leafhost_uds::Error as Why;
    let path = path.display();
    let (why, remedy) = match why {
        Why::Served => (
            format!("another process serves {path}, perhaps Akri's agent"),
            "stop it, or",
        ),
        Why::Foreign => (
            format!("{path} exists and is not a socket"),
            "remove it, or",
        ),
        Why::TooLong => {
            return format!(
                "{path} has more than {MAX_PATH} bytes and cannot be a socket; choose a shorter folder with --external-handlers-dir"
            );
        }
        Why::Files(error) => return format!("cannot listen on {path} ({error}); {MORE_FILES}"),
        Why::Refused(error) => (
            format!("cannot listen on {path} ({error})"),
            "the agent must be allowed to write there, or",
        ),
    };
    format!("{why}; {remedy} choose another folder with --external-handlers-dir")
}

/// Listens on a socket that only this process's own user and root may use.
///
/// # Errors
/// Returns the reason, with the remedy.
pub async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), String> {
    let bound = leafhost_uds::bind(path).await;
    bound.map_err(|why| describe(path, why))
}
