//! Fuzzes the device requests of pods: whatever is accepted keeps the limits, and is judged and searched in bounded time.
#![no_main]

use std::time::Duration;

use leafhost_core::scheduling::{Container, ContainerKind};
use leafhost_fuzz::within;
use leafhost_select::{
    Candidate, DeviceAttributes, Expression, MAX_DEVICES, MAX_TEXT, Verdict, Verdicts, choose, read,
};
use libfuzzer_sys::fuzz_target;

/// Limit on the CPU time of parsing, judging or searching, with room for a busy machine.
const LIMIT: Duration = Duration::from_secs(2);

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let attributes = DeviceAttributes::default();
    let mut verdicts = Verdicts::default();
    // Reads the text as an expression, too.
    within(LIMIT, || {
        if let Ok(expression) = verdicts.expression(text) {
            verdicts.judge(&expression, &attributes);
        }
    });
    let container = |name: &str, kind| Container {
        name: name.to_owned(),
        kind,
        asks: true,
    };
    let containers = [
        container("first", ContainerKind::Init),
        container("main", ContainerKind::App),
    ];
    let check = |text: &str| Expression::new(text).map(drop);
    let read = within(LIMIT, || read(text, &containers, check));
    let asked = match read {
        Ok(asked) => asked,
        Err(error) => {
            assert!(error.to_string().len() < 64 << 10);
            return;
        }
    };
    assert!(text.len() <= MAX_TEXT);
    let ways = asked.iter().flat_map(|one| &one.requests);
    let most = ways.map(|request| request.alternatives.iter().map(|way| way.count).max());
    let most: u32 = most.flatten().sum();
    assert!((1..=MAX_DEVICES).contains(&most));
    let names: Vec<String> = (0..20).map(|number| format!("gpu-{number}")).collect();
    let configurations: Vec<&str> = asked
        .iter()
        .flat_map(|one| &one.requests)
        .flat_map(|request| &request.alternatives)
        .map(|way| way.configuration.as_str())
        .collect();
    let of = configurations.iter().cycle().zip(&names);
    let candidates: Vec<Candidate<'_>> = of
        .map(|(configuration, name)| Candidate {
            configuration,
            name,
            attributes: &attributes,
            is_shared: false,
            left: 0,
        })
        .collect();
    let chosen = within(LIMIT, || {
        choose(&asked, &candidates, &mut { u32::MAX }, |way, _| {
            way.expressions.iter().all(|text| {
                let expression = verdicts.expression(text);
                expression.is_ok_and(|one| verdicts.judge(&one, &attributes) == Verdict::Fits)
            })
        })
    });
    if let Ok(chosen) = chosen {
        assert!(u32::try_from(chosen.len()).is_ok_and(|count| count <= most));
    }
});
