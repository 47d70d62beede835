//! Output of a bench: a table of values, targets and references.

/// Line of the table.
pub struct Line {
    pub what: String,
    pub value: String,
    pub target: String,
    pub reference: String,
}

pub fn print(lines: &[Line]) {
    println!("| measure | value | target | beside it |\n|---|---|---|---|");
    for line in lines {
        println!(
            "| {} | {} | {} | {} |",
            line.what, line.value, line.target, line.reference
        );
    }
}
