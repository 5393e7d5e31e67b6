//! `strftime_now`: the time as a template prints it, in UTC.

use minijinja::{Error, ErrorKind, Value};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The function for a moment.
pub(super) fn function(unix_seconds: u64) -> Value {
    Value::from_function(move |format: &str| written(format, unix_seconds))
}

/// A moment by a format of `strftime`. What is not known here is an error: half a date would be a wrong prompt.
fn written(format: &str, unix_seconds: u64) -> Result<String, Error> {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = DAYS[(days % 7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let year_day = days + 1 - days_before(year);
    let half_day = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let two = |number: u64| if bare { number.to_string() } else { format!("{number:02}") };
        out += &match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(half_day),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('j') if bare => year_day.to_string(),
            Some('j') => format!("{year_day:03}"),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "a date format that is not known")),
        };
    }
    Ok(out)
}

/// Year, month and day of a day since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March, so that the leap day is the last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Days from 1970 to the first of January.
fn days_before(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400 - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_python_writes_them() {
        // datetime.fromtimestamp(t, UTC).strftime(...)
        let all = "%Y-%m-%d %H:%M:%S %A %a %B %b %j %I %p %y %-d %e %%";
        for (unix, expected) in [
            (0, "1970-01-01 00:00:00 Thursday Thu January Jan 001 12 AM 70 1  1 %"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday Tue February Feb 060 12 AM 00 29 29 %"),
            (1_735_689_599, "2024-12-31 23:59:59 Tuesday Tue December Dec 366 11 PM 24 31 31 %"),
            (1_795_008_123, "2026-11-18 13:22:03 Wednesday Wed November Nov 322 01 PM 26 18 18 %"),
        ] {
            assert_eq!(written(all, unix).unwrap(), expected);
        }
        assert!(written("%Q", 0).is_err());
        assert!(written("%", 0).is_err());
    }
}
