//! Text of `--version` and `leafhost version`: the program, the contracts it speaks and the engine that runs handlers.

use anyhow::Result;
use leafhost_wasm::{CONTRACT_VERSIONS, ENGINE};

use crate::terminal;

/// Prints the text of `--version` and the engine.
pub fn print() -> Result<()> {
    Ok(terminal::print(&text())?)
}

fn text() -> String {
    format!("leafhost {}\nengine: {ENGINE}\n", long())
}

/// Returns the text after the program's name.
pub fn long() -> String {
    format!(
        "{}\ncontracts: {}\nAPI: {}",
        env!("CARGO_PKG_VERSION"),
        CONTRACT_VERSIONS.join(", "),
        leafhost_core::names::API_VERSION
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_prints_what_the_flag_prints_and_the_engine() {
        let flag = crate::args::parse(["leafhost", "--version"]).unwrap_err();
        let text = text();
        let (same, engine) = text.split_once("engine: ").unwrap();
        assert_eq!(same, flag.to_string());
        assert_eq!(engine, format!("{ENGINE}\n"));
    }

    #[test]
    fn every_package_of_the_contract_is_named_with_its_version() {
        for text in [
            include_str!("../../../wit/discovery.wit"),
            include_str!("../../../wit/deps/explain/explain.wit"),
            include_str!("../../../wit/deps/log/log.wit"),
            include_str!("../../../wit/deps/udev/types.wit"),
        ] {
            let package = text
                .lines()
                .find_map(|line| line.strip_prefix("package ")?.strip_suffix(';'))
                .unwrap();
            assert!(long().contains(package), "{package}");
        }
    }
}
