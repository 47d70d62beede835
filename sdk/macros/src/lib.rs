//! The attribute [`macro@details`]. Authors use it as `leafhost_sdk::details`.

use proc_macro::{TokenStream, TokenTree};

// The documentation is at the re-export, where its example can be tested.
#[allow(missing_docs, reason = "documented at the re-export")]
#[proc_macro_attribute]
pub fn details(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let is_struct = item
        .clone()
        .into_iter()
        .any(|token| matches!(&token, TokenTree::Ident(word) if word.to_string() == "struct"));
    // Fields of Configurations are in camelCase. Variants are values, written as their author wrote them.
    let names = if is_struct {
        "rename_all = \"camelCase\","
    } else {
        ""
    };
    let attributes = format!(
        "#[derive(::leafhost_sdk::Deserialize)] #[serde(crate = \"::leafhost_sdk::serde\", {names} {arguments})]"
    );
    let mut output: TokenStream = attributes.parse().unwrap_or_default();
    output.extend(item);
    output
}
