//! Asynchronous methods of [`Host`]: time and network.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::imports::{TcpStream, UdpSocket};
use super::{Host, executor};
use crate::net::{Error, NetworkInterface};
use crate::{http, tcp, udp};

/// Delay of [`Host::retry`] after the first failure.
const FIRST_RETRY: Duration = Duration::from_millis(200);

impl Host {
    /// Runs a future to completion. Await all `async` functions of the host inside it.
    pub fn block_on<F: Future>(&self, work: F) -> F::Output {
        executor::block_on(&self.imports, work)
    }

    /// Waits for `time`.
    pub async fn sleep(&self, time: Duration) {
        let end = self.imports.clock().saturating_add(time);
        self.imports.sleep_until(end).await;
    }

    /// Returns the output of `work`, or `None` if it takes longer than `limit`; then it is dropped with everything it has
    /// open.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        executor::unless(self.sleep(limit), work).await
    }

    /// Retries a failed network operation, with a backoff of 200 ms that doubles each time: at most `times` attempts in all,
    /// and only while [`time_left`](Self::time_left) allows. Denied operations and answers that are too large are not
    /// retried.
    ///
    /// ```
    /// # use leafhost_sdk::{Host, http, net};
    /// async fn model(host: &Host) -> Result<http::Response, net::Error> {
    ///     host.retry(3, || host.http(http::Request::get("http://192.168.7.9/model"))).await
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the last attempt.
    pub async fn retry<T, F: Future<Output = Result<T, Error>>>(
        &self,
        times: u32,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let may_pass = |error: &Error| !matches!(error, Error::Denied(_) | Error::TooLarge(_));
        let mut wait = FIRST_RETRY;
        let mut tries = 1;
        loop {
            match work().await {
                Err(error) if may_pass(&error) && tries < times && wait < self.time_left() => {
                    self.sleep(wait).await;
                    wait = wait.saturating_mul(2);
                    tries += 1;
                }
                end => return end,
            }
        }
    }

    /// Runs all futures and returns their outputs in the order of `works`. At most `at_once` (at least one) run
    /// concurrently; the next is taken from `works` only when one has ended. Dropping the returned future drops those that
    /// run.
    pub async fn all<F: Future>(
        &self,
        at_once: usize,
        works: impl IntoIterator<Item = F>,
    ) -> Vec<F::Output> {
        let mut outputs = Vec::new();
        let numbered = works.into_iter().enumerate();
        let works = numbered.map(|(number, work)| async move { (number, work.await) });
        let mut ended = stream::iter(works).buffer_unordered(at_once.max(1));
        while let Some((number, output)) = ended.next().await {
            if outputs.len() <= number {
                outputs.resize_with(number.saturating_add(1), || None);
            }
            if let Some(place) = outputs.get_mut(number) {
                *place = Some(output);
            }
        }
        outputs.into_iter().flatten().collect()
    }

    /// Returns the network interfaces that the handler may use and that are up and have an address, sorted by index. Needs
    /// the grant `network`.
    pub fn interfaces(&self) -> Vec<NetworkInterface> {
        self.imports.interfaces()
    }

    /// Binds a UDP socket to an address with port 0: the unspecified address or one of [`interfaces`](Self::interfaces),
    /// with the scope id if it is link-local. Datagrams leave through the interface that has the address.
    ///
    /// # Errors
    /// [`Denied`](Error::Denied) if the grants do not permit UDP from that address.
    pub fn udp(&self, local: SocketAddr) -> Result<udp::Socket, Error> {
        UdpSocket::bind(&self.imports, local).map(udp::Socket)
    }

    /// Sends datagrams from several addresses at given times and collects the answers until the window ends. An address that
    /// cannot be bound or sent from is skipped with a log line at `debug`; if nothing could be sent at all, the line is at
    /// `warn`.
    pub async fn probe(&self, probe: udp::Probe) -> Vec<udp::Reply> {
        udp::run(self, probe).await
    }

    /// Opens a TCP connection. Has no timeout of its own: see [`within`](Self::within).
    ///
    /// # Errors
    /// [`Denied`](Error::Denied), or an error of the network.
    pub async fn connect(&self, remote: SocketAddr) -> Result<tcp::Stream, Error> {
        let connected = TcpStream::connect(&self.imports, remote).await;
        connected.map(tcp::Stream)
    }

    /// Resolves a host name to its addresses; an IP address as text resolves to itself. Has no timeout of its own: see
    /// [`within`](Self::within).
    ///
    /// # Errors
    /// [`Name`](Error::Name) if there is no address, or [`Denied`](Error::Denied).
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        match name.parse() {
            Ok(address) => Ok(vec![address]),
            Err(_) => self.imports.resolve(name).await,
        }
    }

    /// Sends a request and reads its response, whatever the status; redirects are not followed.
    ///
    /// # Errors
    /// [`TimedOut`](Error::TimedOut) once [`Request::limit`](http::Request::limit) has passed, even if part of the response
    /// has arrived; [`TooLarge`](Error::TooLarge), [`Denied`](Error::Denied), or an error of the network.
    pub async fn http(&self, request: http::Request) -> Result<http::Response, Error> {
        let limit = request.limit;
        let response = self.imports.http(request);
        self.within(limit, response)
            .await
            .unwrap_or(Err(Error::TimedOut))
    }
}
