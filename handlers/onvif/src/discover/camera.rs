//! Sends requests to one camera to learn whether it is present, and to get its data. This module does not read
//! announcements.

mod streams;

use std::time::Duration;

use leafhost_sdk::{Host, http, net};

use crate::details::Channels;
use crate::discover::cursor::Info;
use crate::security::credentials::Credentials;
use crate::security::digest::Challenge;
use crate::security::{Credential, token};
use crate::soap::clock::UtcTime;
use crate::soap::{self, Answer, Failure, Operation};
use crate::xaddr::XAddr;
use crate::xml::{self, encoding};

/// Time limit for the first request; Akri's is one second.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for all requests to a camera together.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Request for the streams of a camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// The streams are not wanted.
    No,
    /// They are wanted, but not asked for in this call.
    Later,
    /// They are asked for, with this time limit and for these devices.
    Within(Duration, Channels),
}

/// Capabilities and credentials for asking cameras.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// Capabilities of the call.
    pub host: &'a Host,
    /// Credentials for cameras.
    pub credentials: &'a Credentials,
}

/// Result of asking a camera.
#[derive(Debug)]
pub struct Asked {
    /// Data that the camera returned, or the error.
    pub reply: Result<CameraReply, AskError>,
    /// True if the camera rejected the credentials it was sent.
    pub is_refused: bool,
}

/// Data that a camera returned.
#[derive(Debug, Clone, PartialEq)]
pub struct CameraReply {
    /// Information about the camera.
    pub info: Info,
    /// Scopes of the camera, if it returned them.
    pub scopes: Vec<String>,
    /// Duration of the ping.
    pub took: Duration,
    /// True if a request timed out, so that asking again soon may return more.
    pub is_cut_short: bool,
    /// True if the camera refuses to tell its time, or requires credentials for it.
    pub hides_time: bool,
}

/// Error of a camera that gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Missing response.
    #[error("does not answer GetSystemDateAndTime: {0}")]
    Network(#[source] net::Error),
    /// Response that does not answer the request.
    #[error("GetSystemDateAndTime: {0}")]
    Answer(#[source] Failure),
}

impl AskError {
    /// Returns true if a camera refused to answer: it requires credentials, or returned a fault.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Answer(Failure::NotAuthorized(_) | Failure::Fault(_))
        )
    }

    /// Returns true if the cause may be packet loss.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Network(net::Error::Closed | net::Error::TimedOut)
        )
    }

    /// Returns true if the error shows that no camera is at the address. An attempt that the grants deny or that fails
    /// on this node proves nothing, and an invalid response still comes from a device.
    pub fn shows_absence(&self) -> bool {
        use net::Error::{Closed, Refused, TimedOut, Unreachable};
        matches!(
            self,
            Self::Network(Closed | Refused | TimedOut | Unreachable)
        )
    }
}

impl Asker<'_> {
    /// Asks for the camera's time; returns the duration until the answer.
    pub async fn ping(&self, xaddr: &XAddr, limit: Duration) -> Result<Duration, AskError> {
        let mut exchange = self.exchange(xaddr, Err(WITHOUT), limit);
        exchange.ping().await?;
        Ok(self.host.elapsed().saturating_sub(exchange.began))
    }

    /// Sends all requests. `may_authenticate` is an error with the reason if the camera must not be sent credentials.
    pub async fn ask(
        &self,
        xaddr: &XAddr,
        uuid: &str,
        may_authenticate: Result<(), &'static str>,
        limit: Duration,
        streams: Streams,
    ) -> Asked {
        let credential = may_authenticate.and_then(|()| {
            self.credentials
                .get(uuid)
                .ok_or("none for its UUID, and no default ones")
        });
        let mut exchange = self.exchange(xaddr, credential, limit);
        let mut reply = exchange.questions().await;
        if let Ok(reply) = &mut reply {
            reply.is_cut_short |= exchange.streams(streams, &mut reply.info.media).await;
        }
        Asked {
            reply,
            is_refused: exchange.is_refused,
        }
    }

    fn exchange<'v>(
        &'v self,
        xaddr: &'v XAddr,
        credential: Result<&'v Credential, &'static str>,
        limit: Duration,
    ) -> Exchange<'v> {
        let began = self.host.elapsed();
        Exchange {
            host: self.host,
            xaddr,
            media: None,
            credential,
            began,
            ends: began.saturating_add(limit),
            time: None,
            proof: Proof::None,
            was_digest: false,
            was_token: false,
            is_refused: false,
        }
    }
}

/// Reason why [`Asker::ping`] sends no credentials.
const WITHOUT: &str = "it is only greeted";

/// Requests to one camera.
#[derive(Debug)]
struct Exchange<'a> {
    host: &'a Host,
    xaddr: &'a XAddr,
    /// Address of the media service, if it is known.
    media: Option<XAddr>,
    credential: Result<&'a Credential, &'static str>,
    began: Duration,
    ends: Duration,
    /// Time of the camera, with the host's time since the start of the call when it arrived.
    time: Option<(UtcTime, Duration)>,
    proof: Proof,
    was_digest: bool,
    was_token: bool,
    is_refused: bool,
}

/// Authentication of a request.
#[derive(Debug, Clone)]
enum Proof {
    None,
    Token,
    /// Digest challenge, and the number of requests that used it.
    Digest(Challenge, u32),
}

/// Error of a request without an answer.
#[derive(Debug, thiserror::Error)]
enum QuestionError {
    #[error("{0}")]
    Network(net::Error),
    #[error("{0}")]
    Answer(Failure),
    #[error("wants credentials: {0}")]
    Credentials(&'static str),
}

impl Exchange<'_> {
    async fn questions(&mut self) -> Result<CameraReply, AskError> {
        // Some cameras lack GetSystemDateAndTime: an answer to any other request proves a camera as well.
        let refused = match self.ping().await {
            Ok(()) => None,
            Err(error) if error.is_refusal() => Some(error),
            Err(error) => return Err(error),
        };
        let mut is_proven = refused.is_none();
        let mut reply = CameraReply {
            info: Info::default(),
            scopes: Vec::new(),
            took: self.host.elapsed().saturating_sub(self.began),
            is_cut_short: false,
            hides_time: refused.is_some() || !matches!(self.proof, Proof::None),
        };
        for operation in [
            Operation::GetNetworkInterfaces,
            Operation::GetDeviceInformation,
            Operation::GetScopes,
        ] {
            match self.ask(operation, "").await {
                Ok(mut answer) => {
                    is_proven = true;
                    reply.scopes.append(&mut answer.scopes);
                    reply.info.take(answer, &self.xaddr.host);
                }
                Err(trouble) => {
                    // A service that lacks GetSystemDateAndTime but knows this operation asks for credentials.
                    let wants_credentials = matches!(
                        trouble,
                        QuestionError::Credentials(_)
                            | QuestionError::Answer(Failure::NotAuthorized(_))
                    );
                    is_proven |= wants_credentials
                        && matches!(refused, Some(AskError::Answer(Failure::Fault(_))));
                    reply.is_cut_short |= matches!(trouble, QuestionError::Network(_));
                    if reply.info.trouble.is_empty() {
                        reply.info.trouble = format!("{}: {trouble}", operation.name());
                    }
                }
            }
        }
        match refused {
            Some(error) if !is_proven => Err(error),
            _ => Ok(reply),
        }
    }

    async fn ping(&mut self) -> Result<(), AskError> {
        match self.ask(Operation::GetSystemDateAndTime, "").await {
            Ok(_) => Ok(()),
            Err(QuestionError::Network(error)) => Err(AskError::Network(error)),
            Err(QuestionError::Answer(failure)) => Err(AskError::Answer(failure)),
            Err(QuestionError::Credentials(why)) => {
                Err(AskError::Answer(Failure::NotAuthorized(why.to_owned())))
            }
        }
    }

    async fn ask(&mut self, operation: Operation, profile: &str) -> Result<Answer, QuestionError> {
        let mut may_renew = true;
        loop {
            let response = self.send(operation, profile).await;
            let response = response.map_err(QuestionError::Network)?;
            let content_type = response.header("content-type").unwrap_or_default();
            let body = encoding::decode(&response.body, content_type);
            match soap::read(operation, response.status, body.as_bytes()) {
                Ok(answer) => {
                    self.note_time(operation, &answer, &response);
                    self.is_refused &= matches!(self.proof, Proof::None);
                    return Ok(answer);
                }
                Err(Failure::NotAuthorized(_)) => {
                    self.is_refused |= !matches!(self.proof, Proof::None);
                    self.note_time(operation, &Answer::default(), &response);
                    self.prove(&response, &mut may_renew)?;
                }
                Err(failure) => {
                    self.note_time(operation, &Answer::default(), &response);
                    return Err(QuestionError::Answer(failure));
                }
            }
        }
    }

    async fn send(
        &mut self,
        operation: Operation,
        profile: &str,
    ) -> Result<http::Response, net::Error> {
        let left = self.ends.saturating_sub(self.host.elapsed());
        let limit = if operation == Operation::GetSystemDateAndTime {
            left.min(PING_TIMEOUT)
        } else {
            left
        };
        if limit.is_zero() {
            return Err(net::Error::TimedOut);
        }
        let security = self.security();
        let media = self.media.as_ref().filter(|_| operation.is_media());
        let XAddr { target, path, .. } = media.unwrap_or(self.xaddr);
        let (target, path) = (target.clone(), path.clone());
        let mut request =
            http::Request::post(target, operation.request(profile, security.as_deref()))
                .header("Content-Type", operation.content_type())
                .limit(limit)
                .max_body(xml::MAX_BYTES);
        if let Some(authorization) = self.authorization(&path) {
            request = request.header("Authorization", authorization);
        }
        self.host.http(request).await
    }

    fn security(&self) -> Option<String> {
        let (Proof::Token, Ok(credential), Some(created)) =
            (&self.proof, self.credential, self.now())
        else {
            return None;
        };
        let nonce = [
            self.host.random().to_be_bytes(),
            self.host.random().to_be_bytes(),
        ]
        .concat();
        Some(token::security(credential, &nonce, created))
    }

    fn authorization(&mut self, path: &str) -> Option<String> {
        let (Proof::Digest(challenge, count), Ok(credential)) = (&mut self.proof, self.credential)
        else {
            return None;
        };
        *count += 1;
        let cnonce = format!("{:016x}", self.host.random());
        Some(challenge.answer(credential, ("POST", path), &cnonce, *count))
    }

    /// Returns the camera's current time, which it compares with a token's.
    fn now(&self) -> Option<UtcTime> {
        let (time, at) = self.time?;
        Some(time.plus(self.host.elapsed().saturating_sub(at).as_secs()))
    }

    /// Records the camera's time: from the answer, or else from the first `Date` header.
    fn note_time(&mut self, operation: Operation, answer: &Answer, response: &http::Response) {
        if operation == Operation::GetSystemDateAndTime || self.time.is_none() {
            let time = answer
                .time
                .or_else(|| UtcTime::from_http(response.header("date")?));
            self.time = time.map(|time| (time, self.host.elapsed())).or(self.time);
        }
    }

    /// Chooses the authentication after a request was not authorized. Each method is tried once, and again only if the nonce
    /// has expired: wrong passwords lock accounts.
    fn prove(
        &mut self,
        response: &http::Response,
        may_renew: &mut bool,
    ) -> Result<(), QuestionError> {
        if let Err(why) = self.credential {
            return Err(QuestionError::Credentials(why));
        }
        let challenge = Challenge::strongest(response.headers_named("www-authenticate"));
        if let (Some(new), Proof::Digest(old, count)) = (&challenge, &self.proof) {
            let is_used_up = new.is_stale || (*count > 1 && !new.has_nonce_of(old));
            if is_used_up && std::mem::take(may_renew) {
                self.proof = Proof::Digest(new.clone(), 0);
                return Ok(());
            }
        }
        if let (Some(challenge), false) = (challenge, self.was_digest) {
            self.was_digest = true;
            self.proof = Proof::Digest(challenge, 0);
            return Ok(());
        }
        if self.time.is_some() && !self.was_token {
            self.was_token = true;
            self.proof = Proof::Token;
            return Ok(());
        }
        let why = match (self.was_digest || self.was_token, self.time) {
            (true, _) => "it refuses those given",
            (false, None) => "it does not report its time, which a token needs",
            (false, Some(_)) => "it takes no digest",
        };
        self.credential = Err(why);
        self.proof = Proof::None;
        Err(QuestionError::Credentials(why))
    }
}

#[cfg(test)]
mod tests;
