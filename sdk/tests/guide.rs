//! Checks statements of the guide in `README.md` that can be checked without running it.

const GUIDE: &str = include_str!("../README.md");

/// Returns the contents of a fenced block.
fn block(info: &str) -> Option<&'static str> {
    let (_, rest) = GUIDE.split_once(&format!(
        "
```{info}
"
    ))?;
    Some(
        rest.split_once(
            "
```
",
        )?
        .0,
    )
}

#[test]
fn the_guides_handler_has_at_most_30_lines() {
    let (handler, _) = block("rust,file:src/lib.rs")
        .unwrap()
        .split_once("\n#[cfg(test)]")
        .unwrap();
    assert!(handler.contains("impl Handler for"));
    assert!(handler.trim_end().lines().count() <= 30);
}

#[test]
fn the_guides_configuration_has_the_details_of_its_test() {
    let details = block("yaml,file:details.yaml").unwrap();
    assert!(
        block("yaml,file:configuration.yaml")
            .unwrap()
            .ends_with(details)
    );
    assert!(
        block("rust,file:src/lib.rs")
            .unwrap()
            .contains(&format!(".example(\"{details}\")"))
    );
}

#[test]
fn the_table_of_versions_has_this_version() {
    let version = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    assert!(GUIDE.contains(&format!("\n| {version} | ")));
}

#[test]
fn the_links_of_the_guide_lead_to_the_source_and_to_documentation() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let documentation = include_str!("../src/lib.rs");
    let links = GUIDE.lines().filter(|line| line.starts_with('['));
    let links: Vec<(&str, &str)> = links.filter_map(|line| line.split_once("]: ")).collect();
    assert!(links.len() > 30, "{links:?}");
    for (label, place) in links {
        let source = std::fs::read_to_string(folder.join(place));
        let item = label.trim_matches(['[', '`']).rsplit("::").next().unwrap();
        assert!(
            source.is_ok_and(|text| text.contains(item)),
            "{label}: {place}"
        );
        assert!(
            documentation.contains(&format!("//! {label}]: ")),
            "{label}"
        );
    }
}

#[test]
fn no_link_leads_to_what_is_not_published_yet() {
    let links = GUIDE.lines().filter(|line| line.contains("](http"));
    assert_eq!(links.collect::<Vec<_>>(), Vec::<&str>::new());
}
