//! Human-readable ages in the style of kubectl, durations of calls, and memory sizes.

use std::time::Duration;

use jiff::Timestamp;

/// Formats the age of a time (RFC 3339): `42s`, `5m`, `3h12m`, `8d`; empty if the time is absent or malformed.
pub fn age(since: Option<&str>, now: Timestamp) -> String {
    let Some(since) = since.and_then(|text| text.parse::<Timestamp>().ok()) else {
        return String::new();
    };
    let seconds = u64::try_from(now.duration_since(since).as_secs()).unwrap_or(0);
    span(seconds)
}

/// Formats seconds in at most two units, coarser for longer times.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: u64, unit: char, small: u64, small_unit: char| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{small_unit}")
        }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if hours < 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        two(days, 'd', hours % 24, 'h')
    } else {
        format!("{days}d")
    }
}

/// Formats milliseconds: `41 µs`, `1.4 ms`, `38 ms`, `2.5 s`, `5m`.
pub fn length(milliseconds: f64) -> String {
    if milliseconds < 0.999_5 {
        format!("{:.0} µs", milliseconds * 1000.0)
    } else if milliseconds < 10.0 {
        format!("{milliseconds:.1} ms")
    } else if milliseconds < 1000.0 {
        format!("{milliseconds:.0} ms")
    } else if milliseconds < 120_000.0 {
        let text = format!("{:.1}", milliseconds / 1000.0);
        format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
    } else {
        span(Duration::try_from_secs_f64(milliseconds / 1000.0).map_or(0, |time| time.as_secs()))
    }
}

/// Formats a memory size: `812 B`, `64 KiB`, `1.1 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Tenths avoid floating point.
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "B";
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    match (tenths / 10, tenths % 10) {
        (whole, rest) if whole < 10 && rest != 0 => format!("{whole}.{rest} {unit}"),
        (whole, _) => format!("{whole} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_match_kubectl() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 12 * 60, "3h12m"),
            (47 * 3600, "47h"),
            (48 * 3600, "2d"),
            (7 * 86_400 + 3600, "7d1h"),
            (900 * 86_400, "900d"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn a_missing_unreadable_or_future_time_has_no_wrong_age() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        assert_eq!(age(None, now), "");
        assert_eq!(age(Some("yesterday"), now), "");
        assert_eq!(age(Some("2026-01-01T00:06:00Z"), now), "0s");
        assert_eq!(age(Some("2026-01-01T00:00:00Z"), now), "5m");
    }

    #[test]
    fn durations_and_sizes_have_suitable_units() {
        for (milliseconds, text) in [
            (0.0, "0 µs"),
            (0.041_2, "41 µs"),
            (0.999_7, "1.0 ms"),
            (1.41, "1.4 ms"),
            (38.2, "38 ms"),
            (1000.0, "1 s"),
            (2500.0, "2.5 s"),
            (300_000.0, "5m"),
        ] {
            assert_eq!(length(milliseconds), text);
        }
        for (amount, text) in [
            (812, "812 B"),
            (65_536, "64 KiB"),
            (1_179_648, "1.1 MiB"),
            (64 << 20, "64 MiB"),
            (3 << 30, "3 GiB"),
        ] {
            assert_eq!(bytes(amount), text);
        }
    }
}
