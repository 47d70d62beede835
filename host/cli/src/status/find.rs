//! Finds the running agent and asks it for its status.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leafhost_agent::admin::VERSION_HEADER;
use leafhost_agent::status::Status;

use crate::agent_file::AgentFile;
use crate::args::DEFAULT_LISTEN;
use crate::folders::{SYSTEM_STATE, User};

/// An agent answers within this or not at all.
const ANSWER: Duration = Duration::from_secs(10);
/// So long the agent may wait with its answer until something changes.
const LONG_POLL: Duration = Duration::from_secs(30);
/// The largest status that is read: 100,000 Instances fit.
const LARGEST: u64 = 512 << 20;

/// What an agent answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// Its version, to ask for a later one.
    pub version: Option<String>,
}

/// Where to look for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// At this address.
    Address(String),
    /// In these state folders, in this order.
    Folders {
        /// The folders.
        dirs: Vec<PathBuf>,
        /// Whether to try the default address at last: not if the user named a folder.
        and_default_address: bool,
    },
}

impl Search {
    /// As the flags say; without any, the user's own agent before the system's.
    pub fn new(address: Option<&str>, state_dir: Option<&Path>, user: &User) -> Self {
        if let Some(address) = address {
            let address = address.strip_prefix("http://").unwrap_or(address);
            return Self::Address(address.trim_end_matches('/').to_owned());
        }
        if let Some(dir) = state_dir {
            return Self::Folders {
                dirs: vec![dir.to_owned()],
                and_default_address: false,
            };
        }
        let mut dirs: Vec<PathBuf> = user.state_dir().into_iter().collect();
        if dirs.iter().all(|dir| dir != Path::new(SYSTEM_STATE)) {
            dirs.push(SYSTEM_STATE.into());
        }
        Self::Folders {
            dirs,
            and_default_address: true,
        }
    }

    /// The status of the first agent that answers; else where was looked and what was there. With `after`, the version of
    /// an earlier answer, it waits up to half a minute for another version and returns nothing if there is none.
    pub fn status(&self, after: Option<&str>) -> Result<Option<Answer>> {
        let (dirs, and_default_address) = match self {
            Self::Address(address) => {
                return fetch(address, after)
                    .with_context(|| format!("no agent answers at {address}"));
            }
            Self::Folders {
                dirs,
                and_default_address,
            } => (dirs, *and_default_address),
        };
        let mut looked = Vec::new();
        for dir in dirs {
            let path = AgentFile::path(dir);
            match AgentFile::read(dir) {
                Ok(file) => match fetch(&file.address.to_string(), after) {
                    Ok(answer) => return Ok(answer),
                    Err(error) => looked.push(format!(
                        "{} names {}, where none answers ({error:#})",
                        path.display(),
                        file.address
                    )),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    looked.push(format!("no {}", path.display()));
                }
                Err(error) => looked.push(format!("cannot read {}: {error}", path.display())),
            }
        }
        if and_default_address {
            match fetch(DEFAULT_LISTEN, after) {
                Ok(answer) => return Ok(answer),
                Err(error) => looked.push(format!("none at {DEFAULT_LISTEN} ({error:#})")),
            }
        }
        bail!(
            "no running agent found: {}; start one with `leafhost agent --standalone`, or say where it is with --agent ADDR:PORT or --state-dir DIR",
            looked.join(", ")
        )
    }
}

fn fetch(address: &str, after: Option<&str>) -> Result<Option<Answer>> {
    let (query, patience) = match after {
        Some(version) => (format!("?after={version}"), ANSWER + LONG_POLL),
        None => (String::new(), ANSWER),
    };
    // No proxy: the agent is on this machine or named by the user.
    let client: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(patience))
        .proxy(None)
        .build()
        .into();
    let mut response = client
        .get(format!("http://{address}/status{query}"))
        .call()
        .map_err(plain)?;
    if response.status().as_u16() == 304 {
        return Ok(None);
    }
    let version = response.headers().get(VERSION_HEADER);
    let version = version.and_then(|value| Some(value.to_str().ok()?.to_owned()));
    let status: Status = response
        .body_mut()
        .with_config()
        .limit(LARGEST)
        .read_json()
        .context("the answer is no status of a leafhost agent")?;
    // Every field may be absent, so any JSON object would pass; an agent always has a node.
    anyhow::ensure!(
        !status.node.is_empty(),
        "the answer is no status of a leafhost agent: it names no node"
    );
    Ok(Some(Answer { status, version }))
}

/// The cause without the library's own words around it.
fn plain(error: ureq::Error) -> anyhow::Error {
    match error {
        ureq::Error::Io(error) => error.into(),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_own_agent_comes_before_the_systems() {
        let user = User {
            home: Some("/home/a".into()),
            ..User::default()
        };
        let Search::Folders { dirs, .. } = Search::new(None, None, &user) else {
            panic!("an address");
        };
        assert_eq!(
            dirs,
            [
                Path::new("/home/a/.local/state/leafhost"),
                Path::new("/var/lib/leafhost")
            ]
        );
        let root = User {
            is_root: true,
            ..User::default()
        };
        let Search::Folders { dirs, .. } = Search::new(None, None, &root) else {
            panic!("an address");
        };
        assert_eq!(dirs, [Path::new("/var/lib/leafhost")]);
    }

    #[test]
    fn where_was_looked_and_what_to_do_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let search = Search::new(None, Some(dir.path()), &User::default());
        let error = format!("{:#}", search.status(None).unwrap_err());
        for words in ["no running agent", "agent.json", "--agent ADDR:PORT"] {
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn an_agent_that_was_killed_is_no_running_agent() {
        let dir = tempfile::tempdir().unwrap();
        // A port that was free a moment ago.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let _published = AgentFile::of_this_process(address)
            .publish(dir.path())
            .unwrap();
        let search = Search::new(None, Some(dir.path()), &User::default());
        let error = format!("{:#}", search.status(None).unwrap_err());
        assert!(error.contains("none answers"), "{error}");
        assert!(error.contains("refused"), "{error}");
    }

    #[test]
    fn an_address_may_be_a_url() {
        let search = Search::new(Some("http://127.0.0.1:1/"), None, &User::default());
        assert_eq!(search, Search::Address("127.0.0.1:1".into()));
    }

    /// Answers one request after the other with these texts; yields the requests' first lines.
    fn serve(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        use std::io::{BufRead as _, BufReader, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                asked.push(lines.next().unwrap().unwrap());
                while !lines.next().unwrap().unwrap().is_empty() {}
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (address, server)
    }

    #[test]
    fn a_version_is_kept_and_asked_for() {
        let status = serde_json::to_string(&Status {
            node: "edge-1".into(),
            ..Status::default()
        })
        .unwrap();
        let (address, server) = serve(vec![
            format!(
                "HTTP/1.1 200 OK\r\nleafhost-status-version: 7\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{status}",
                status.len()
            ),
            "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}".into(),
        ]);
        let search = Search::new(Some(&address), None, &User::default());
        let answer = search.status(None).unwrap().unwrap();
        assert_eq!(answer.status.node, "edge-1");
        assert_eq!(answer.version.as_deref(), Some("7"));
        assert!(search.status(Some("7")).unwrap().is_none());
        let other = format!("{:#}", search.status(None).unwrap_err());
        assert!(other.contains("no status of a leafhost agent"), "{other}");
        let asked = server.join().unwrap();
        assert!(asked[0].starts_with("GET /status HTTP"), "{asked:?}");
        assert!(
            asked[1].starts_with("GET /status?after=7 HTTP"),
            "{asked:?}"
        );
    }
}
