//! Decides which listed application is a device, and its location. It opens no connection.

use std::net::IpAddr;

use leafhost_sdk::net;

use crate::details::{Details, HostRewrite};
use crate::messages::Application;
use crate::text::quoted;
use crate::url::{self, Url};

/// Explanation of a server or application that is not a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// Server or application as known to the operator.
    pub subject: String,
    /// Field of the details that excluded it.
    pub rule: String,
    pub reason: String,
}

/// Server that listed an application.
#[derive(Debug, Clone)]
pub struct Source<'a> {
    /// URL by which it was asked.
    pub url: &'a Url,
    /// Addresses of that URL.
    pub addresses: &'a [IpAddr],
}

/// Result of looking up the listed host.
#[derive(Debug, Clone, Copy)]
pub enum Lookup<'a> {
    /// No lookup, since the host is an address.
    Unneeded,
    /// Addresses of the name.
    Known(&'a [IpAddr]),
    /// Failure of the lookup.
    Failed(&'a net::Error),
}

/// Location of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// URL that identifies the server.
    pub url: Url,
    /// Addresses of that URL.
    pub addresses: Vec<IpAddr>,
    /// True if the URL differs from the listed one.
    pub moved: bool,
}

/// Returns the URL of an application if the details select it as a device.
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
            3 => (
                "DiscoveryServer",
                "; the handler asks the servers that it lists",
            ),
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

/// Returns the field of the details that excludes a server which answers only Hello, and so reports neither name nor type;
/// `None` if no field does.
pub fn leaves_out_unnamed(details: &Details) -> Option<&'static str> {
    if details.application_names.is_some() {
        return Some("applicationNames");
    }
    (!details.takes(0) && !details.takes(2)).then_some("applicationTypes")
}

/// Locates the server of a listed URL. `own` is true if it is the server that was asked.
///
/// # Errors
/// Returns the reason why the URL cannot be reached, as text for an explanation.
pub fn locate(
    rewrite: HostRewrite,
    listed: &Url,
    lookup: Lookup<'_>,
    source: &Source<'_>,
    own: bool,
) -> Result<Location, String> {
    let lost = unreachable_reason(listed, lookup, source)?;
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
        return Ok(Location {
            url: url.map_err(|error| format!("the rewritten URL {error}"))?,
            addresses: source.addresses.to_vec(),
            moved: true,
        });
    }
    let mut addresses: Vec<IpAddr> = Vec::new();
    let found = match (listed.host(), lookup) {
        (url::Host::Address(address), _) => std::slice::from_ref(address),
        (_, Lookup::Known(found)) => found,
        // Only a loopback name of a server on this machine is not looked up.
        _ => source.addresses,
    };
    for address in found {
        // A name that resolves to loopback here stands for the machine that listed it; a name server may return 127.0.1.1
        // for it. A peer must not make this node connect to itself.
        let theirs = url::is_loopback(*address) && !source.url.is_loopback();
        let reached = if theirs {
            source.addresses
        } else {
            std::slice::from_ref(address)
        };
        for address in reached {
            if !addresses.contains(address) {
                addresses.push(*address);
            }
        }
    }
    Ok(Location {
        url: listed.clone(),
        addresses,
        moved: false,
    })
}

/// Returns the reason why the listed host cannot be reached from this node; `None` if it can. Fails if the lookup took too
/// long to tell.
fn unreachable_reason(
    listed: &Url,
    lookup: Lookup<'_>,
    source: &Source<'_>,
) -> Result<Option<String>, String> {
    let host = listed.host().written();
    if listed.host().is_unspecified() {
        return Ok(Some(format!("{host} is not an address of a host")));
    }
    if listed.is_loopback() && !source.url.is_loopback() {
        return Ok(Some(format!(
            "{host} names the machine that uses it, and {} is another machine",
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

/// Formats a peer's text as the subject of an explanation, quoted unless it is harmless.
pub fn shown(text: &str) -> String {
    if text.len() <= url::MAX_URL && !text.is_empty() && !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    quoted(text)
}
