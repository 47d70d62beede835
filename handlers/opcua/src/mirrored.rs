//! Handles lists in which several applications share one URL.
//!
//! Some servers (open62541) write the URL of the request into every entry of the answer; a request without a URL returns the
//! URLs with which the applications registered.

use crate::messages::Application;
use crate::table::Table;
use crate::url::Url;

/// Returns true if several applications of the list have the host and port that were asked.
pub fn is_mirrored(list: &[Application], asked: &Url) -> bool {
    let mut there = list.iter().filter(|item| is_at(item, asked));
    there
        .next()
        .is_some_and(|first| there.any(|other| !is_same(first, other)))
}

/// Returns the URI of the application that answered; empty if neither the list nor the URI in `endpoints` shows it.
pub fn own<'a>(list: &'a [Application], endpoints: &'a str) -> &'a str {
    if let [alone] = list {
        return &alone.uri;
    }
    let mut discovery = list.iter().filter(|item| item.kind == 3);
    match (discovery.next(), discovery.next()) {
        (Some(only), None) if !list.iter().any(|item| item.uri == endpoints) => &only.uri,
        _ => endpoints,
    }
}

/// Replaces the URLs of each application that has the asked URL by those of `plain`, the answer to a request without a URL.
/// The application that answered keeps its own.
pub fn corrected(
    mut list: Vec<Application>,
    plain: &[Application],
    asked: &Url,
    own: &str,
) -> Vec<Application> {
    let mut registered = Table::default();
    for item in plain.iter().filter(|item| !item.urls.is_empty()) {
        registered.put(identity(item), &item.urls);
    }
    for item in &mut list {
        let answered = !own.is_empty() && item.uri == own;
        let urls = registered.get(identity(item)).copied();
        if let (Some(urls), false) = (urls, answered || !is_at(item, asked)) {
            item.urls.clone_from(urls);
        }
    }
    list
}

/// Returns the URLs that several applications of the list share.
pub fn shared_urls(list: &[Application]) -> Table<bool> {
    let mut first: Table<&Application> = Table::default();
    let mut shared = Table::default();
    for item in list {
        let Some(url) = item.url() else {
            continue;
        };
        match first.get(url) {
            Some(other) if is_same(item, other) => {}
            Some(_) => drop(shared.put(url, true)),
            None => drop(first.put(url, item)),
        }
    }
    shared
}

fn identity(application: &Application) -> &str {
    match application.uri.as_str() {
        "" => &application.name,
        uri => uri,
    }
}

fn is_same(one: &Application, other: &Application) -> bool {
    one.uri == other.uri && (!one.uri.is_empty() || one.name == other.name)
}

fn is_at(application: &Application, asked: &Url) -> bool {
    let url = application.url().and_then(|text| Url::parse(text).ok());
    url.is_some_and(|url| (url.host(), url.port()) == (asked.host(), asked.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: &str = "opc.tcp://10.1.2.3:4840/";

    fn mk(uri: &str, kind: u32, urls: &[&str]) -> Application {
        Application {
            uri: uri.to_owned(),
            product: String::new(),
            name: uri.to_owned(),
            kind,
            urls: urls.iter().map(|&url| url.to_owned()).collect(),
        }
    }

    #[test]
    fn a_list_is_mirrored_if_several_applications_have_the_asked_url() {
        let asked = Url::parse(ASKED).unwrap();
        let elsewhere = "opc.tcp://10.1.2.4:4840/";
        for (list, expected) in [
            (vec![mk("a", 0, &[ASKED])], false),
            (vec![mk("a", 0, &[ASKED]), mk("b", 0, &[elsewhere])], false),
            (vec![mk("a", 0, &[ASKED]), mk("a", 0, &[ASKED])], false),
            (vec![mk("a", 0, &[ASKED]), mk("b", 0, &[])], false),
            (vec![mk("a", 0, &[ASKED]), mk("b", 0, &[ASKED])], true),
            (
                vec![
                    mk("a", 0, &[ASKED]),
                    mk("b", 0, &["opc.tcp://10.1.2.3:4840/UA"]),
                ],
                true,
            ),
        ] {
            assert_eq!(is_mirrored(&list, &asked), expected, "{list:?}");
        }
    }

    #[test]
    fn who_answered_is_the_only_one_else_whom_the_endpoints_name_else_the_discovery_server() {
        let (lds, a, b) = (mk("lds", 3, &[]), mk("a", 0, &[]), mk("b", 0, &[]));
        for (list, endpoints, expected) in [
            (vec![a.clone()], "x", "a"),
            (vec![a.clone(), b.clone()], "b", "b"),
            (vec![a.clone(), b.clone()], "", ""),
            (vec![a.clone(), b.clone()], "x", "x"),
            (vec![a.clone(), lds.clone()], "", "lds"),
            (vec![a.clone(), lds.clone()], "a", "a"),
            (vec![a.clone(), lds.clone()], "x", "lds"),
            (vec![lds.clone(), mk("lds2", 3, &[])], "", ""),
        ] {
            assert_eq!(own(&list, endpoints), expected, "{list:?} {endpoints}");
        }
    }

    #[test]
    fn only_entries_with_the_asked_url_are_corrected_and_not_that_of_who_answered() {
        let asked = Url::parse(ASKED).unwrap();
        let list = vec![
            mk("lds", 3, &[ASKED]),
            mk("a", 0, &[ASKED]),
            mk("b", 0, &["opc.tcp://b:4840/"]),
            mk("c", 0, &[ASKED]),
        ];
        let plain = [
            mk("lds", 3, &["opc.tcp://lds:4840/"]),
            mk("a", 0, &["opc.tcp://a:4840/"]),
            mk("b", 0, &["opc.tcp://other:4840/"]),
            mk("c", 0, &[]),
        ];
        let urls: Vec<String> = corrected(list, &plain, &asked, "lds")
            .iter()
            .map(|item| item.urls.join(" "))
            .collect();
        assert_eq!(
            urls,
            [ASKED, "opc.tcp://a:4840/", "opc.tcp://b:4840/", ASKED]
        );
    }
}
