//! Sizes and times as people write them: a number and a unit, never a bare number whose unit one must guess.

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use std::fmt;
use std::time::Duration;

/// A number of bytes: `"512MiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A time: `"10s"`, `"500ms"`, `"2min"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

const SIZES: [(&str, u64); 5] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("B", 1)];
const TIMES: [(&str, u64); 4] = [("ms", 1), ("min", 60_000), ("s", 1000), ("h", 3_600_000)];

impl Size {
    /// # Errors
    /// Another unit, none, a fraction, or a number that does not fit.
    pub fn parse(text: &str) -> Result<Size, String> {
        scaled(text, &SIZES).map(Size).ok_or_else(|| {
            format!("{text:?} is no size; write a whole number and B, KiB, MiB, GiB or TiB, as in \"8GiB\"")
        })
    }

    /// The number of bytes where it fits the machine.
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Time {
    /// # Errors
    /// Another unit, none, a fraction, or a number that does not fit.
    pub fn parse(text: &str) -> Result<Time, String> {
        scaled(text, &TIMES)
            .map(|ms| Time(Duration::from_millis(ms)))
            .ok_or_else(|| format!("{text:?} is no time; write a whole number and ms, s, min or h, as in \"10s\""))
    }

    /// Milliseconds, at most `u32::MAX`.
    pub fn millis(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(u32::MAX)
    }
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let (number, unit) = (&text[..text.len() - digits.len()], digits.trim_start());
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = [SIZES[3], SIZES[2], SIZES[1], SIZES[0]]
            .into_iter()
            .find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale))
            .unwrap_or(SIZES[4]);
        write!(f, "{}{unit}", self.0 / scale)
    }
}

struct Text<T>(fn(&str) -> Result<T, String>, &'static str);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        Err(E::invalid_type(Unexpected::Signed(number), &self))
    }
}

impl<'de> serde::Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Text(Size::parse, "a size with its unit, as in \"8GiB\""))
    }
}

impl<'de> serde::Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Text(Time::parse, "a time with its unit, as in \"10s\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(Size::parse("8GiB"), Ok(Size(8 << 30)));
        assert_eq!(Size::parse("64 KiB"), Ok(Size(64 << 10)));
        assert_eq!(Size::parse("7B"), Ok(Size(7)));
        assert_eq!(Time::parse("500ms"), Ok(Time(Duration::from_millis(500))));
        assert_eq!(Time::parse("2min"), Ok(Time(Duration::from_secs(120))));
        for text in ["", "8", "GiB", "8GB", "8gib", "1.5GiB", "-1GiB", "99999999999TiB", "8GiB ", "10s"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
        for text in ["10", "10sec", "1m", "s", "10MiB"] {
            assert!(Time::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_as_they_are_read() {
        for size in [Size(1), Size(1 << 10), Size(3 << 20), Size((1 << 30) + 1), Size(5 << 40), Size(0)] {
            assert_eq!(Size::parse(&size.to_string()), Ok(size));
        }
    }
}
