//! Akri's filters. Each decision names its filter.

pub mod mac;

use std::net::IpAddr;

use crate::details::{self, Action, Details, FilterList};
use crate::soap::cut;
use crate::wsd;

/// Reason why a camera is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Field of the details that excluded the camera.
    pub rule: &'static str,
    /// Explanation for the operator.
    pub reason: String,
}

/// Filters an announcement by its scopes, which may be empty, then by its UUID.
pub fn announcement(details: &Details, uuid: &str, scopes: &[String]) -> Result<(), Dropped> {
    decide(
        "scopes",
        details.scopes.as_ref(),
        Some(scopes),
        |one, item| one == item,
    )?;
    let own = [uuid.to_owned()];
    decide("uuids", details.uuids.as_ref(), Some(&own), |one, item| {
        wsd::uuid(one) == wsd::uuid(item)
    })
}

/// Filters a camera by its address, if it is known, and by the hardware addresses of all its interfaces.
pub fn addresses(details: &Details, ip: Option<&str>, macs: &[String]) -> Result<(), Dropped> {
    let ip = ip.map(|ip| [ip.to_owned()]);
    decide(
        "ipAddresses",
        details.ip_addresses.as_ref(),
        ip.as_ref().map(<[_; 1]>::as_slice),
        is_in,
    )?;
    decide(
        "macAddresses",
        details.mac_addresses.as_ref(),
        (!macs.is_empty()).then_some(macs),
        |one, item| mac::spell(one).eq_ignore_ascii_case(&mac::spell(item)),
    )
}

/// Returns true if the address equals the item, or is in the network that the item denotes.
fn is_in(ip: &str, item: &str) -> bool {
    let parsed: Option<IpAddr> = ip.parse().ok();
    let network = details::network(item);
    network
        .zip(parsed)
        .is_some_and(|(network, ip)| network.contains(ip))
        || ip.eq_ignore_ascii_case(item)
}

fn decide(
    rule: &'static str,
    list: Option<&FilterList>,
    values: Option<&[String]>,
    is_same: impl Fn(&str, &str) -> bool,
) -> Result<(), Dropped> {
    let Some(list) = list else {
        return Ok(());
    };
    if list.action == Action::Exclude && list.items.is_empty() {
        return Ok(());
    }
    let dropped = |reason: String| Err(Dropped { rule, reason });
    let Some(values) = values else {
        return dropped("the camera does not report it, or not without credentials".to_owned());
    };
    let matched = list
        .items
        .iter()
        .find(|item| values.iter().any(|value| is_same(value, item)));
    match (list.action, matched) {
        (Action::Include, None) if values.is_empty() => {
            dropped("has none, and only listed ones are included".to_owned())
        }
        (Action::Include, None) => {
            let has = cut(&values.join(" "));
            dropped(format!("has {has}, and only listed ones are included"))
        }
        (Action::Exclude, Some(item)) => dropped(format!("has {item}, which is excluded")),
        (Action::Include, Some(_)) | (Action::Exclude, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_list(action: Action, items: &[&str]) -> FilterList {
        FilterList {
            action,
            items: items.iter().map(|&item| item.to_owned()).collect(),
        }
    }

    fn keeps(list: Option<&FilterList>, values: Option<&[&str]>) -> bool {
        let values: Option<Vec<String>> =
            values.map(|values| values.iter().map(|&value| value.to_owned()).collect());
        decide("rule", list, values.as_deref(), |one, item| one == item).is_ok()
    }

    #[test]
    fn a_list_decides_as_in_akri() {
        use Action::{Exclude, Include};
        for (action, items, values, kept) in [
            (Exclude, &[][..], None, true),
            (Exclude, &[], Some(&["a"][..]), true),
            (Exclude, &["a"], None, false),
            (Exclude, &["a"], Some(&["a"]), false),
            (Exclude, &["a"], Some(&["b"]), true),
            (Exclude, &["a"], Some(&[]), true),
            (Exclude, &["a"], Some(&["b", "a"]), false),
            (Include, &[], None, false),
            (Include, &[], Some(&["a"]), false),
            (Include, &["a"], None, false),
            (Include, &["a"], Some(&["a"]), true),
            (Include, &["a", "b"], Some(&["c", "b"]), true),
            (Include, &["a"], Some(&["b"]), false),
            (Include, &["a"], Some(&[]), false),
        ] {
            let list = mk_list(action, items);
            assert_eq!(keeps(Some(&list), values), kept, "{list:?} {values:?}");
        }
        assert!(keeps(None, None));
    }

    fn mk_details(text: &str) -> Details {
        serde_yaml_ng::from_str(text).unwrap()
    }

    #[test]
    fn values_are_compared_as_in_akri() {
        let uuid = "11111111-aaaa-bbbb-cccc-222222222222";
        let scopes = ["onvif://www.onvif.org/name/Cam".to_owned()];
        for (details, kept) in [
            ("uuids: {items: [URN:x]}", false),
            (
                "uuids: {items: [11111111-AAAA-bbbb-cccc-222222222222]}",
                true,
            ),
            (
                "uuids: {items: ['urn:uuid:11111111-AAAA-BBBB-cccc-222222222222']}",
                true,
            ),
            (
                "uuids: {items: ['uuid:11111111-aaaa-bbbb-cccc-222222222222']}",
                true,
            ),
            (
                "uuids: {action: Exclude, items: ['uuid:11111111-aaaa-bbbb-cccc-222222222222']}",
                false,
            ),
            ("scopes: {items: ['onvif://www.onvif.org/name/Cam']}", true),
            ("scopes: {items: ['onvif://www.onvif.org/name/cam']}", false),
            ("scopes: {items: ['onvif://www.onvif.org/name']}", false),
        ] {
            let result = announcement(&mk_details(details), uuid, &scopes);
            assert_eq!(result.is_ok(), kept, "{details}");
        }
        for (details, ip, mac, kept) in [
            (
                "ipAddresses: {items: [192.168.7.9]}",
                Some("192.168.7.9"),
                None,
                true,
            ),
            ("ipAddresses: {items: [192.168.7.9]}", None, None, false),
            (
                "ipAddresses: {items: ['FE80::A']}",
                Some("fe80::a"),
                None,
                true,
            ),
            (
                "macAddresses: {items: ['00:FC:da:b1:69:cc']}",
                None,
                Some("00:fc:DA:B1:69:CC"),
                true,
            ),
            (
                "macAddresses: {items: ['00-fc-da-b1-69-cc']}",
                None,
                Some("00:fc:da:b1:69:cc"),
                true,
            ),
            (
                "ipAddresses: {items: [10.0.0.0/8, 192.168.7.0/24]}",
                Some("192.168.7.9"),
                None,
                true,
            ),
            (
                "ipAddresses: {action: Exclude, items: [192.168.7.99/24]}",
                Some("192.168.7.9"),
                None,
                false,
            ),
            (
                "ipAddresses: {items: [192.168.8.0/24, 0.0.0.0/33]}",
                Some("192.168.7.9"),
                None,
                false,
            ),
            (
                "ipAddresses: {items: ['2001:db8::/32']}",
                Some("2001:db8::9"),
                None,
                true,
            ),
            (
                "macAddresses: {items: ['5792c4:5792c5']}",
                None,
                Some("5792C4:5792C5"),
                true,
            ),
            (
                "macAddresses: {action: Exclude, items: [a]}",
                Some("192.168.7.9"),
                None,
                false,
            ),
            (
                "macAddresses: {action: Exclude, items: []}",
                Some("192.168.7.9"),
                None,
                true,
            ),
        ] {
            let macs: Vec<String> = mac.into_iter().map(str::to_owned).collect();
            let result = addresses(&mk_details(details), ip, &macs);
            assert_eq!(result.is_ok(), kept, "{details}");
        }
    }

    #[test]
    fn the_rule_and_the_value_are_reported() {
        let dropped = addresses(
            &mk_details("ipAddresses: {action: Exclude, items: [192.168.7.9]}"),
            Some("192.168.7.9"),
            &[],
        )
        .unwrap_err();
        assert_eq!(dropped.rule, "ipAddresses");
        assert_eq!(dropped.reason, "has 192.168.7.9, which is excluded");
    }
}
