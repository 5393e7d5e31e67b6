//! `strftime_now`: the time as a template prints it, in UTC.

use minijinja::{Error, ErrorKind, Value};
use time::OffsetDateTime;

/// The function for a moment.
pub(super) fn function(unix_seconds: u64) -> Value {
    Value::from_function(move |format: &str| written(format, unix_seconds))
}

/// A moment by a format of `strftime`. What is not known here is an error: half a date would be a wrong prompt.
fn written(format: &str, unix_seconds: u64) -> Result<String, Error> {
    let wrong = |why| Error::new(ErrorKind::InvalidOperation, why);
    let moment = i64::try_from(unix_seconds).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    let moment = moment.ok_or_else(|| wrong("a moment beyond the calendar"))?;
    let (year, month, day) = moment.to_calendar_date();
    let (hour, minute, second) = moment.to_hms();
    let (weekday, month_name) = (moment.weekday().to_string(), month.to_string());
    let (month, year_day) = (u8::from(month), moment.ordinal());
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
        let two = |number: u8| if bare { number.to_string() } else { format!("{number:02}") };
        out += &match code {
            Some('Y') => year.to_string(),
            Some('y') => two((year % 100) as u8),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.clone(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.clone(),
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
            _ => return Err(wrong("a date format that is not known")),
        };
    }
    Ok(out)
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
