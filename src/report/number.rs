//! Numbers as people read them.

/// A count in at most four digits: `936`, `4.8K`, `1.5M`.
pub fn count(number: u64) -> String {
    let value = number as f64;
    match number {
        0..=999 => number.to_string(),
        // From here on, one decimal would round to a thousand of the smaller unit.
        1_000..=999_949 => format!("{:.1}K", value / 1e3),
        999_950..=999_949_999 => format!("{:.1}M", value / 1e6),
        _ => format!("{:.1}B", value / 1e9),
    }
}

/// A length of time in at most two units: `0.4s`, `12s`, `3m 5s`, `2h 4m`.
pub fn seconds(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{:.1}s", seconds.max(0.0));
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m {}s", whole / 60, whole % 60),
        _ => format!("{}h {}m", whole / 3600, whole % 3600 / 60),
    }
}

/// A share of a whole: `3.8 %`; nothing of nothing is 0.
pub fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// A rate per second, with a decimal where it is small.
pub(super) fn rate(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { count(rate.round() as u64) }
}

/// One line of at most so many characters; line breaks and control characters become blanks.
pub fn excerpt(text: &str, length: usize) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.chars().nth(length).is_some() {
            let kept: String = line.chars().take(length).collect();
            return format!("{}…", kept.trim_end());
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let counts = [0, 936, 999, 1_000, 4_820, 999_949, 999_950, 1_500_000, 2_000_000_000].map(count);
        assert_eq!(counts, ["0", "936", "999", "1.0K", "4.8K", "999.9K", "1.0M", "1.5M", "2.0B"]);
        let times = [0.0, 0.42, 9.94, 9.95, 12.3, 59.6, 185.0, 3_599.7, 7_440.0].map(seconds);
        assert_eq!(times, ["0.0s", "0.4s", "9.9s", "10s", "12s", "1m 0s", "3m 5s", "1h 0m", "2h 4m"]);
        assert_eq!([percent(3, 78), percent(0, 0)], ["3.8 %", "0.0 %"]);
    }

    #[test]
    fn excerpts_are_one_plain_line() {
        assert_eq!(excerpt("  a\n\tb\u{1b}[31mc ", 20), "a b [31mc");
        assert_eq!(excerpt("one two three", 7), "one two…");
        assert_eq!(excerpt("ääää", 3), "äää…");
        assert_eq!(excerpt("exact", 5), "exact");
    }
}
