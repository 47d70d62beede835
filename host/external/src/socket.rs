//! Sockets in the folder of external handlers, with the remedy for one that cannot be created.

use std::path::{Path, PathBuf};

use leafhost_uds::{MAX_PATH, MORE_FILES, SocketFile};
use tokio::net::UnixListener;

/// Reason why the socket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(path, why))]
pub struct Error {
    path: PathBuf,
    why: leafhost_uds::Error,
}

fn describe(path: &Path, why: &leafhost_uds::Error) -> String {
    use leafhost_uds::Error as Why;
    let path = path.display();
    let (why, remedy) = match why {
        Why::Served => (
            format!("another process serves {path}, perhaps Akri's agent"),
            "stop it, or",
        ),
        Why::Foreign => (format!("{path} exists and is no socket"), "remove it, or"),
        Why::TooLong => {
            return format!(
                "{path} has more than {MAX_PATH} bytes and can be no socket; choose a shorter folder with --external-handlers-dir"
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
pub async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), Error> {
    leafhost_uds::bind(path).await.map_err(|why| Error {
        path: path.to_owned(),
        why,
    })
}
