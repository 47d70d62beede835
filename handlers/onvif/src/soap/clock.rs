//! Converts cameras' dates and times to seconds since 1970 and back. It reads no clock.

/// Time of a camera in seconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcTime(i64);

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

impl UtcTime {
    /// Creates a time; `None` for an impossible date, or one outside of the years 1970 to 2199, since such a clock is
    /// useless.
    pub fn new(
        (year, month, day): (i64, i64, i64),
        (hour, minute, second): (i64, i64, i64),
    ) -> Option<Self> {
        let sound = (1970..2200).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            && (0..=60).contains(&second);
        sound.then(|| Self(((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second))
    }

    /// Parses the `Date` header of an HTTP response, `Sat, 21 Nov 2026 09:31:33 GMT` (RFC 9110, 5.6.7).
    pub fn from_http(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once(", ")?;
        let mut words = rest.split_ascii_whitespace();
        let day = words.next()?.parse().ok()?;
        let name = words.next()?;
        let month = MONTHS.iter().position(|month| *month == name)?;
        let year = words.next()?.parse().ok()?;
        let mut time = words.next()?.splitn(3, ':').map(str::parse::<i64>);
        let mut next = || time.next()?.ok();
        let time = (next()?, next()?, next()?);
        if words.next() != Some("GMT") {
            return None;
        }
        Self::new((year, i64::try_from(month).ok()? + 1, day), time)
    }

    /// Returns the time this many seconds later.
    #[must_use]
    pub fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add_unsigned(seconds))
    }

    /// Formats the time as `xsd:dateTime`, `2026-11-21T09:31:33Z`.
    pub fn xml(self) -> String {
        let (year, month, day) = date(self.0.div_euclid(86_400));
        let second = self.0.rem_euclid(86_400);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Returns the days from 1970-01-01 to a date, in years that begin with March (`days_from_civil` of Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Returns the date this many days after 1970-01-01 (`civil_from_days`, ibid.).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = year_of_era + era * 400;
    if month < 10 {
        (year, month + 3, day)
    } else {
        (year + 1, month - 9, day)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_go_to_seconds_and_back() {
        for (date, seconds, text) in [
            ((1970, 1, 1), 0, "1970-01-01T00:00:00Z"),
            ((2000, 2, 29), 951_782_400, "2000-02-29T00:00:00Z"),
            ((2000, 3, 1), 951_868_800, "2000-03-01T00:00:00Z"),
            ((2100, 2, 28), 4_107_456_000, "2100-02-28T00:00:00Z"),
            ((2100, 3, 1), 4_107_542_400, "2100-03-01T00:00:00Z"),
            ((2014, 12, 24), 1_419_379_200, "2014-12-24T00:00:00Z"),
        ] {
            let time = UtcTime::new(date, (0, 0, 0)).unwrap();
            assert_eq!(time, UtcTime(seconds), "{text}");
            assert_eq!(time.xml(), text);
        }
        let time = UtcTime::new((2026, 12, 31), (23, 59, 59)).unwrap();
        assert_eq!(time.plus(1).xml(), "2027-01-01T00:00:00Z");
    }

    #[test]
    fn what_is_no_date_is_none() {
        for (date, time) in [
            ((1969, 12, 31), (23, 59, 59)),
            ((2200, 1, 1), (0, 0, 0)),
            ((i64::MAX, 1, 1), (0, 0, 0)),
            ((2026, 13, 1), (0, 0, 0)),
            ((2026, 0, 1), (0, 0, 0)),
            ((2026, 1, 32), (0, 0, 0)),
            ((2026, 1, 1), (24, 0, 0)),
            ((2026, 1, 1), (0, -1, 0)),
        ] {
            assert_eq!(UtcTime::new(date, time), None, "{date:?} {time:?}");
        }
    }

    #[test]
    fn the_date_of_a_response_is_read() {
        let read = |text| UtcTime::from_http(text).map(UtcTime::xml);
        assert_eq!(
            read("Fri, 20 Nov 2026 08:58:44 GMT").as_deref(),
            Some("2026-11-20T08:58:44Z")
        );
        for text in [
            "",
            "yesterday",
            "Fri, 20 Nov 2026 08:58:44 CET",
            "Fri, 20 Foo 2026 08:58:44 GMT",
            "Fri, 20 Nov 2026 08:58 GMT",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
