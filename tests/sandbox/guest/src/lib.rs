//! A handler that answers well in its first call and then misbehaves; the first word of its details chooses the misbehaviour.
//!
//! It uses the WIT bindings directly, because the SDK would prevent the misbehaviour. It is empty for other targets,
//! where the names of the exports cannot be linked.
#![cfg(target_family = "wasm")]

mod actions;
mod answers;
mod denied_access;
mod devices;
mod host_memory;
mod output;
mod resource_limits;

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

/// Name of the handler, padded with underscores: tests replace it in the component's bytes.
static NAME: [u8; 24] = *b"@name:hostile___________";
/// Behaviour of `describe`: `good`, or an action.
static DESCRIBE: [u8; 24] = *b"@describe:good__________";
/// Behaviour of `validate`.
static VALIDATE: [u8; 24] = *b"@validate:good__________";

/// Returns the text after the colon, without padding.
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
        let action = marked(&DESCRIBE);
        if action != "good" {
            actions::run(&action, "");
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
        let action = marked(&VALIDATE);
        if action != "good" {
            actions::run(&action, "");
        }
        Ok(())
    }

    fn discover(request: Request) -> Result<Discovery, DiscoveryError> {
        let (action, argument) = request
            .details
            .split_once(char::is_whitespace)
            .unwrap_or((&request.details, ""));
        let Some(cursor) = &request.cursor else {
            return Ok(answers::first(action));
        };
        if let Some(answer) = answers::answer(action, argument, cursor) {
            return answer;
        }
        actions::run(action, argument);
        Ok(answers::good())
    }
}
