//! Which application is a device, and where it is: decided from what is listed, by whom, and what its name leads to.
//! Asks nobody.

use std::net::IpAddr;

use leafhost_sdk::net;

use crate::details::{Details, HostRewrite};
use crate::messages::Application;
use crate::text::quoted;
use crate::url::{self, Url};

/// Why something seen is no device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The thing, as an operator knows it.
    pub subject: String,
    /// The part of the details that decided.
    pub rule: String,
    /// What did not fit.
    pub reason: String,
}

/// The server that listed an application.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    /// How it was asked.
    pub url: &'a Url,
    /// Where that led.
    pub addresses: &'a [IpAddr],
}

/// What looking up the listed host has shown.
#[derive(Debug, Clone, Copy)]
pub enum Lookup<'a> {
    /// It was no name.
    Unneeded,
    /// The addresses of the name.
    Known(&'a [IpAddr]),
    /// None.
    Failed(&'a net::Error),
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The URL it is known by.
    pub url: Url,
    /// Where that leads.
    pub addresses: Vec<IpAddr>,
    /// Whether the URL is not the listed one.
    pub moved: bool,
}

/// The URL of an application that is to be a device.
pub fn wanted(details: &Details, application: &Application) -> Result<Url, Skip> {
    let text = application.url();
    let subject = match (text, application.name.as_str()) {
        (Some(text), _) => shown(text),
        (None, "") => shown(&application.uri),
        (None, name) => shown(name),
    };
    let skip = |rule: &str, reason: String| Skip {
        subject: subject.clone(),
        rule: rule.to_owned(),
        reason,
    };
    if !details.takes(application.kind) {
        let (kind, remedy) = match application.kind {
            0 => ("Server", ""),
            1 => ("Client", ""),
            2 => ("ClientAndServer", ""),
            3 => ("DiscoveryServer", "; what it lists is looked at"),
            _ => ("type unknown to the standard", ""),
        };
        let reason = format!(
            "application {} is a {kind}, and applicationTypes has {}{remedy}",
            quoted(&application.name),
            details.application_types.join(", ")
        );
        return Err(skip("applicationTypes", reason));
    }
    if let Some(filter) = &details.application_names
        && !filter.takes(&application.name)
    {
        let reason = format!(
            "the application's name is {}, which {} leaves out",
            quoted(&application.name),
            filter.action
        );
        return Err(skip("applicationNames", reason));
    }
    let text = text.ok_or_else(|| skip("discoveryUrls", "lists no discovery URL".to_owned()))?;
    Url::parse(text).map_err(|error| {
        let reason = format!("the listed discovery URL {error}");
        skip("discoveryUrls", reason)
    })
}

/// What of the details leaves out a server that says nothing but its hello, if anything: one of which a name is wanted or not.
pub fn leaves_out_unnamed(details: &Details) -> Option<&'static str> {
    if details.application_names.is_some() {
        return Some("applicationNames");
    }
    (!details.takes(0) && !details.takes(2)).then_some("applicationTypes")
}

/// Where the server of a listed URL is. `own` says that it is the very one that was asked.
///
/// # Errors
/// Why it is nowhere, in words.
pub fn place(
    rewrite: HostRewrite,
    listed: &Url,
    lookup: Lookup<'_>,
    source: &Source<'_>,
    own: bool,
) -> Result<Place, String> {
    let lost = nowhere(listed, lookup, source)?;
    let moves = match (rewrite, lost) {
        (HostRewrite::None, Some(why)) => {
            return Err(format!(
                "{why}, and hostRewrite is none; with unresolvable the host that was asked would stand in"
            ));
        }
        (HostRewrite::None, None) => false,
        (HostRewrite::Unresolvable, lost) => lost.is_some(),
        (HostRewrite::UseConfiguredHost, _) => true,
    };
    if moves {
        let url = if own && listed.is_opc_tcp() {
            listed.at(source.url)
        } else {
            listed.with_host_of(source.url)
        };
        return Ok(Place {
            url: url.map_err(|error| format!("the rewritten URL {error}"))?,
            addresses: source.addresses.to_vec(),
            moved: true,
        });
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    let found = match (listed.host(), lookup) {
        (url::Host::Address(address), _) => std::slice::from_ref(address),
        (_, Lookup::Known(found)) => found,
        // Only the loopback of a server on this machine gets here without being looked up.
        _ => source.addresses,
    };
    for address in found {
        // To the machine that listed it, that name is the machine itself: a name server here may know it as 127.0.1.1.
        // A peer must not make this node talk to itself.
        let theirs = url::is_loopback(*address) && !source.url.is_loopback();
        let instead = if theirs {
            source.addresses
        } else {
            std::slice::from_ref(address)
        };
        for address in instead {
            if !addresses.contains(address) {
                addresses.push(*address);
            }
        }
    }
    Ok(Place {
        url: listed.clone(),
        addresses,
        moved: false,
    })
}

/// Why the listed host leads nowhere from here, if it does not.
fn nowhere(
    listed: &Url,
    lookup: Lookup<'_>,
    source: &Source<'_>,
) -> Result<Option<String>, String> {
    let host = listed.host().written();
    if listed.host().is_unspecified() {
        return Ok(Some(format!("{host} is no address of a host")));
    }
    if listed.is_loopback() && !source.url.is_loopback() {
        return Ok(Some(format!(
            "{host} is a machine itself, and {} is another one",
            source.url.host().written()
        )));
    }
    match lookup {
        Lookup::Failed(net::Error::TimedOut) => Err(format!("looking up {host} took too long")),
        Lookup::Failed(error) => Ok(Some(format!(
            "the listed host {host} is not known here ({error})"
        ))),
        Lookup::Known([]) => Ok(Some(format!("the listed host {host} has no address"))),
        Lookup::Known(_) | Lookup::Unneeded => Ok(None),
    }
}

/// A peer's text as the subject of an explanation: as it is if it is harmless.
pub fn shown(text: &str) -> String {
    if text.len() <= url::MAX_URL && !text.is_empty() && !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    quoted(text)
}
