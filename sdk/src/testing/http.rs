//! Fake HTTP servers.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Duration;

use super::network::Closure;
use super::{FakeHost, State};
use crate::http::{Request, Response, Target};
use crate::net::Error;

/// Answer of a fake server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Delay between the request and the complete answer.
    pub after: Duration,
    /// Response, or the error that the handler gets.
    pub result: Result<Response, Error>,
}

impl From<Response> for HttpAnswer {
    fn from(response: Response) -> Self {
        Self {
            after: Duration::ZERO,
            result: Ok(response),
        }
    }
}

type Answer = dyn FnMut(&Request) -> HttpAnswer;

#[derive(Debug)]
struct Server {
    tls: bool,
    host: String,
    port: u16,
    answer: Closure<Box<Answer>>,
}

#[derive(Debug, Default)]
pub(crate) struct Servers(RefCell<Vec<Server>>);

impl FakeHost {
    /// Adds a server at scheme, host and port, such as `http://192.168.7.9:80`. A server at an address also answers to the
    /// names of that address.
    #[must_use]
    pub fn http_server(
        self,
        at: &str,
        answer: impl FnMut(&Request) -> HttpAnswer + 'static,
    ) -> Self {
        let target = parsed_target(at);
        let (host, port) = target.host_and_port();
        let server = Server {
            tls: target.tls,
            host: host.to_owned(),
            port,
            answer: Closure(Box::new(answer)),
        };
        self.0.network.http.0.borrow_mut().push(server);
        self
    }
}

/// Parses a URL from a test; panics if it is malformed.
#[expect(
    clippy::panic,
    reason = "a mistake in a test, which has nobody to report it to"
)]
fn parsed_target(at: &str) -> Target<'_> {
    Target::parse(at).unwrap_or_else(|error| panic!("{error}"))
}

impl State {
    pub(crate) async fn http(&self, request: Request) -> Result<Response, Error> {
        let answer = self.answer(&request)?;
        let end = self.clock.now().saturating_add(answer.after);
        self.clock.sleep_until(end).await;
        let mut response = answer.result?;
        if response.body.len() > request.max_body {
            return Err(Error::TooLarge(request.max_body));
        }
        for (name, _) in &mut response.headers {
            name.make_ascii_lowercase();
        }
        Ok(response)
    }

    fn answer(&self, request: &Request) -> Result<HttpAnswer, Error> {
        let target = Target::parse(&request.url)?;
        let (host, port) = target.host_and_port();
        let named = self.network.addresses(host);
        let address = host.parse::<IpAddr>().is_ok() || host.contains(':');
        let is_server = |server: &Server| server.host == host;
        let is_known = self.network.http.0.borrow().iter().any(is_server);
        if named.is_none() && !address && !is_known {
            return Err(Error::Name(format!("{host:?}: no such name")));
        }
        let addresses = named.unwrap_or_default();
        let mut hosts = vec![host.to_owned()];
        hosts.extend(addresses.iter().map(IpAddr::to_string));
        for host in &hosts {
            let with_port = if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            };
            if self.network.denies(host) || self.network.denies(&with_port) {
                return Err(Error::Denied(format!("http {with_port}")));
            }
        }
        self.may_connect()?;
        self.contact(None, format!("http {} {}", request.method, request.url));
        let mut servers = self.network.http.0.borrow_mut();
        let server = servers.iter_mut().find(|server| {
            server.tls == target.tls && server.port == port && hosts.contains(&server.host)
        });
        match server {
            Some(server) => Ok((server.answer.0)(request)),
            None => Err(Error::Unreachable),
        }
    }
}
