//! A handler that behaves at its first call and misbehaves from then on, as the first word of its details says.
//!
//! Made with the bare contract instead of the SDK, which would not let it. There is nothing in it for other targets, where the exports' names cannot be linked.
#![cfg(target_family = "wasm")]

mod answers;
mod computing;
mod deeds;
mod devices;
mod floods;
mod hoarding;
mod reaching;

#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unsafe_code,
    reason = "generated"
)]
mod bindings {
    wit_bindgen::generate!({
        world: "discovery-handler",
        path: "../../../wit",
        generate_all,
    });
    use super::Hostile;
    export!(Hostile);
}

use std::hint::black_box;

use bindings::exports::leafhost::discovery::handler::Guest;
use bindings::leafhost::discovery::types::{
    Description, Discovery, DiscoveryError, Problem, Request,
};

/// The name, padded with underscores: a test puts another in its place in the component's bytes.
static NAME: [u8; 24] = *b"@name:hostile___________";
/// How `describe` goes, likewise: `good`, or a deed.
static DESCRIBE: [u8; 24] = *b"@describe:good__________";
/// How `validate` goes, likewise.
static VALIDATE: [u8; 24] = *b"@validate:good__________";

/// What stands behind the colon, without the padding.
fn marked(bytes: &'static [u8; 24]) -> String {
    let text = String::from_utf8_lossy(black_box(bytes));
    let text = text.trim_end_matches('_');
    text.split_once(':')
        .map_or(text, |(_, value)| value)
        .to_owned()
}

struct Hostile;

impl Guest for Hostile {
    fn describe() -> Description {
        let deed = marked(&DESCRIBE);
        if deed != "good" {
            deeds::commit(&deed, "");
        }
        Description {
            name: marked(&NAME),
            version: "1".to_owned(),
            summary: "Misbehaves".to_owned(),
            example: "good".to_owned(),
            shared: false,
        }
    }

    fn validate(_details: String) -> Result<(), Vec<Problem>> {
        let deed = marked(&VALIDATE);
        if deed != "good" {
            deeds::commit(&deed, "");
        }
        Ok(())
    }

    fn discover(request: Request) -> Result<Discovery, DiscoveryError> {
        let (deed, argument) = request
            .details
            .split_once(char::is_whitespace)
            .unwrap_or((&request.details, ""));
        let Some(cursor) = &request.cursor else {
            return Ok(answers::first(deed));
        };
        if let Some(answer) = answers::answer(deed, argument, cursor) {
            return answer;
        }
        deeds::commit(deed, argument);
        Ok(answers::good())
    }
}
