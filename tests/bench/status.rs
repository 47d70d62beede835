//! Duration of `leafhost status` with many devices, from its start to its end.

use std::time::Instant;

use anyhow::Result;
use leafhost_tests::agent::Home;

use crate::busy_agent::configuration;
use crate::installed::as_installed;
use crate::statistics::{ms, quantile};
use crate::table::Line;

const DEVICES: usize = 500;
const TIMES: usize = 50;

pub fn measure() -> Result<Vec<Line>> {
    let mut home = Home::new()?;
    as_installed(&mut home)?;
    home.add_handler("mock-gpu")?;
    let text = configuration("gpus", "mock-gpu", &format!("count: {DEVICES}"));
    home.write("configurations/gpus.yaml", text)?;
    home.start(&[])?;
    home.instances(DEVICES)?;
    let mut took = Vec::new();
    for _ in 0..TIMES {
        let begun = Instant::now();
        home.leafhost(&["status"])?.good()?;
        took.push(begun.elapsed());
    }
    took.sort();
    Ok(vec![Line {
        what: format!("`leafhost status` with {DEVICES} devices, worst of {TIMES}"),
        value: ms(quantile(&took, 1.0)),
        target: "≤ 100 ms".into(),
        reference: format!("median {}", ms(quantile(&took, 0.5))),
    }])
}
