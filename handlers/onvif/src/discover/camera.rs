//! Asks one camera: whether it is there, and who it is. Knows nothing of announcements.

use std::time::Duration;

use leafhost_sdk::{Host, http, net};

use crate::discover::cursor::Info;
use crate::security::credentials::Credentials;
use crate::security::digest::Challenge;
use crate::security::{Credential, token};
use crate::soap::clock::UtcTime;
use crate::soap::{self, Answer, Failure, Operation};
use crate::xaddr::XAddr;
use crate::xml::{self, encoding};

/// How long the first question may take; Akri gives a second.
const GREETING: Duration = Duration::from_secs(2);
/// How long all questions to a camera may take together.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The capabilities of the call.
    pub host: &'a Host,
    /// What cameras may be told.
    pub credentials: &'a Credentials,
}

/// What came of asking a camera.
#[derive(Debug)]
pub struct Asked {
    /// What it told, or why it is not there.
    pub told: Result<Told, Silence>,
    /// Whether it was shown a digest of a password and took none.
    pub is_refused: bool,
}

/// What a camera told.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Who it is, as far as it told.
    pub info: Info,
    /// Its scopes, if it told.
    pub scopes: Vec<String>,
    /// How long the greeting took.
    pub took: Duration,
    /// Whether what is missing may be told when it is asked again soon.
    pub is_cut_short: bool,
    /// Whether it tells the time only to those with a password.
    pub hides_time: bool,
}

/// Why a camera is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Silence {
    /// Nothing came back.
    #[error("does not answer GetSystemDateAndTime: {0}")]
    Network(#[source] net::Error),
    /// What came back was no answer.
    #[error("GetSystemDateAndTime: {0}")]
    Answer(#[source] Failure),
}

impl Silence {
    /// Whether a camera answers that will not say: it wants credentials, or has a reason of its own.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Answer(Failure::NotAuthorized(_) | Failure::Fault(_))
        )
    }

    /// Whether it may be that what was sent was lost on the way.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Network(net::Error::Closed | net::Error::TimedOut)
        )
    }

    /// Whether it proves that nobody is there. That we may not go there, or cannot now, proves nothing, and whatever answers
    /// is somebody.
    pub fn is_proof(&self) -> bool {
        use net::Error::{Closed, Refused, TimedOut, Unreachable};
        matches!(
            self,
            Self::Network(Closed | Refused | TimedOut | Unreachable)
        )
    }
}

impl Asker<'_> {
    /// How long a camera took to answer.
    pub async fn greet(&self, xaddr: &XAddr, limit: Duration) -> Result<Duration, Silence> {
        let mut visit = self.visit(xaddr, Err(WITHOUT), limit);
        visit.greet().await?;
        Ok(self.host.elapsed().saturating_sub(visit.began))
    }

    /// Asks everything. `may_tell`: whether the camera may be told credentials, or why not.
    pub async fn ask(
        &self,
        xaddr: &XAddr,
        uuid: &str,
        may_tell: Result<(), &'static str>,
        limit: Duration,
    ) -> Asked {
        let credential = may_tell.and_then(|()| {
            self.credentials
                .get(uuid)
                .ok_or("none are given for its UUID, nor default ones")
        });
        let mut visit = self.visit(xaddr, credential, limit);
        Asked {
            told: visit.questions().await,
            is_refused: visit.is_refused,
        }
    }

    fn visit<'v>(
        &'v self,
        xaddr: &'v XAddr,
        credential: Result<&'v Credential, &'static str>,
        limit: Duration,
    ) -> Visit<'v> {
        let began = self.host.elapsed();
        Visit {
            host: self.host,
            xaddr,
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

/// Said where no credentials are needed.
const WITHOUT: &str = "it is only greeted";

/// The questions to one camera.
#[derive(Debug)]
struct Visit<'a> {
    host: &'a Host,
    xaddr: &'a XAddr,
    credential: Result<&'a Credential, &'static str>,
    began: Duration,
    ends: Duration,
    /// The camera's time, and ours when it was told.
    time: Option<(UtcTime, Duration)>,
    proof: Proof,
    was_digest: bool,
    was_token: bool,
    is_refused: bool,
}

/// How a request proves that we know the password.
#[derive(Debug, Clone)]
enum Proof {
    None,
    Token,
    /// The challenge, and how often it was answered.
    Digest(Challenge, u32),
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{0}")]
    Network(net::Error),
    #[error("{0}")]
    Answer(Failure),
    #[error("wants credentials: {0}")]
    Credentials(&'static str),
}

impl Visit<'_> {
    async fn questions(&mut self) -> Result<Told, Silence> {
        self.greet().await?;
        let mut told = Told {
            info: Info::default(),
            scopes: Vec::new(),
            took: self.host.elapsed().saturating_sub(self.began),
            is_cut_short: false,
            hides_time: !matches!(self.proof, Proof::None),
        };
        for operation in [
            Operation::GetNetworkInterfaces,
            Operation::GetDeviceInformation,
            Operation::GetScopes,
        ] {
            match self.ask(operation).await {
                Ok(mut answer) => {
                    told.scopes.append(&mut answer.scopes);
                    told.info.take(answer, &self.xaddr.host);
                }
                Err(trouble) => {
                    told.is_cut_short |= matches!(trouble, Trouble::Network(_));
                    if told.info.trouble.is_empty() {
                        told.info.trouble = format!("{}: {trouble}", operation.name());
                    }
                }
            }
        }
        Ok(told)
    }

    async fn greet(&mut self) -> Result<(), Silence> {
        match self.ask(Operation::GetSystemDateAndTime).await {
            Ok(_) => Ok(()),
            Err(Trouble::Network(error)) => Err(Silence::Network(error)),
            Err(Trouble::Answer(failure)) => Err(Silence::Answer(failure)),
            Err(Trouble::Credentials(why)) => {
                Err(Silence::Answer(Failure::NotAuthorized(why.to_owned())))
            }
        }
    }

    async fn ask(&mut self, operation: Operation) -> Result<Answer, Trouble> {
        let mut may_renew = true;
        loop {
            let response = self.send(operation).await.map_err(Trouble::Network)?;
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
                Err(failure) => return Err(Trouble::Answer(failure)),
            }
        }
    }

    async fn send(&mut self, operation: Operation) -> Result<http::Response, net::Error> {
        let left = self.ends.saturating_sub(self.host.elapsed());
        let limit = if operation == Operation::GetSystemDateAndTime {
            left.min(GREETING)
        } else {
            left
        };
        if limit.is_zero() {
            return Err(net::Error::TimedOut);
        }
        let security = self.security();
        let mut request =
            http::Request::post(&self.xaddr.target, operation.request(security.as_deref()))
                .header("Content-Type", operation.content_type())
                .limit(limit)
                .max_body(xml::MAX_BYTES);
        if let Some(authorization) = self.authorization() {
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

    fn authorization(&mut self) -> Option<String> {
        let (Proof::Digest(challenge, count), Ok(credential)) = (&mut self.proof, self.credential)
        else {
            return None;
        };
        *count += 1;
        let cnonce = format!("{:016x}", self.host.random());
        Some(challenge.answer(credential, ("POST", &self.xaddr.path), &cnonce, *count))
    }

    /// The camera's time now: that is what it compares a token's with.
    fn now(&self) -> Option<UtcTime> {
        let (time, at) = self.time?;
        Some(time.plus(self.host.elapsed().saturating_sub(at).as_secs()))
    }

    /// Cameras that hide their clock tell the time with every response.
    fn note_time(&mut self, operation: Operation, answer: &Answer, response: &http::Response) {
        if operation == Operation::GetSystemDateAndTime {
            let time = answer
                .time
                .or_else(|| UtcTime::from_http(response.header("date")?));
            self.time = time.map(|time| (time, self.host.elapsed())).or(self.time);
        }
    }

    /// Chooses how to prove the password after a request was not authorized. Each way is tried once, and again only where
    /// the camera says, or it shows, that the nonce was used up: wrong passwords lock accounts.
    fn prove(&mut self, response: &http::Response, may_renew: &mut bool) -> Result<(), Trouble> {
        if let Err(why) = self.credential {
            return Err(Trouble::Credentials(why));
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
            (false, None) => "it does not tell its time, which a token needs",
            (false, Some(_)) => "it takes no digest",
        };
        self.credential = Err(why);
        self.proof = Proof::None;
        Err(Trouble::Credentials(why))
    }
}

#[cfg(test)]
mod tests;
