//! Text of `--version`: the program and the contracts it speaks.

use leafhost_wasm::CONTRACT_VERSIONS;

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
