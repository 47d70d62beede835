//! Compares names with numbers as people do: `video2` before `video10`.

/// Returns the sort key of a text in natural order: its parts without digits, each with the number that follows.
pub fn key(text: &str) -> Vec<(&str, Option<u64>)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let start = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (word, number) = rest.split_at(start);
        let end = number
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(number.len());
        let (number, after) = number.split_at(end);
        let number = (!number.is_empty()).then(|| number.parse().unwrap_or(u64::MAX));
        parts.push((word, number));
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_value() {
        let mut names = [
            "video10",
            "video",
            "pcmC1D10c",
            "video2",
            "pcmC1D9c",
            "event",
        ];
        names.sort_by_key(|name| key(name));
        assert_eq!(
            names,
            [
                "event",
                "pcmC1D9c",
                "pcmC1D10c",
                "video",
                "video2",
                "video10"
            ]
        );
    }
}
