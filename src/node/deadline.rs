//! The deadline that a client gave with a call (`grpc-timeout`). A client cancels what it does not want any more; this ends
//! what belongs to one that cannot.

use http::HeaderMap;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// Until when a call may run; for ever where its client did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Of a request that came at `now`. What cannot be read is no deadline.
    pub fn of(headers: &HeaderMap, now: Instant) -> Deadline {
        let text = headers.get("grpc-timeout").and_then(|value| value.to_str().ok());
        Deadline(text.and_then(duration).and_then(|left| now.checked_add(left)))
    }

    /// `DEADLINE_EXCEEDED` once it has passed.
    ///
    /// # Errors
    /// Just that.
    pub fn check(self) -> Result<(), Status> {
        match self.0.is_some_and(|until| until <= Instant::now()) {
            true => Err(passed()),
            false => Ok(()),
        }
    }

    /// What `call` comes to, if it does so in time; else it is dropped.
    ///
    /// # Errors
    /// Those of `call`, and `DEADLINE_EXCEEDED`.
    pub async fn bound<T>(self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        match self.0 {
            None => call.await,
            Some(until) => tokio::time::timeout_at(until, call).await.unwrap_or_else(|_| Err(passed())),
        }
    }
}

fn passed() -> Status {
    Status::deadline_exceeded("the call's deadline has passed")
}

/// At most eight digits and a unit, as gRPC has it.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read() {
        for (text, left) in [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("250m", Some(Duration::from_millis(250))),
            ("0u", Some(Duration::ZERO)),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("S", None),
            ("1", None),
            ("123456789S", None),
            ("-1S", None),
            ("+1S", None),
            ("1s", None),
            ("1é", None),
        ] {
            assert_eq!(duration(text), left, "{text:?}");
        }
    }
}
