//! Typed access to the fields of a JSON object from an untrusted file: absent and `null` are the same, everything else
//! that is not what was asked for is an error with the field, the value and what is allowed.

use super::bad;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Longest text of a value in a message.
const SHOWN: usize = 80;

/// An object, and the path to it for messages.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: &'static str,
}

/// A value as it stands in the file, cut to a length that fits a message.
pub(super) fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(a) => return format!("a list of {}", a.len()),
        Value::Object(o) => return format!("an object of {}", o.len()),
        other => other.to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>, path: &'static str) -> Self {
        Fields { map, path }
    }

    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// Error about field `name`.
    pub fn error(&self, name: &str, value: &str, allowed: &str) -> Error {
        bad(format!("{}{name}", self.path), value, allowed)
    }

    /// A whole number from `min` to `max`.
    pub fn number(&self, name: &str, min: u32, max: u32) -> Result<Option<u32>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (min..=max).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(self.error(name, &shown(value), &format!("a whole number from {min} to {max}"))),
        }
    }

    /// [`Self::number`], which must be there.
    pub fn required(&self, name: &str, min: u32, max: u32) -> Result<u32> {
        let missing = || self.error(name, "missing", &format!("a whole number from {min} to {max}"));
        self.number(name, min, max)?.ok_or_else(missing)
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.error(name, &shown(value), "a string"))
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.error(name, &shown(value), "true or false"))
    }

    /// A list with exactly `len` items, each turned by `item`.
    pub fn list<T>(
        &self,
        name: &str,
        len: u32,
        allowed: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let allowed = format!("a list of {len} (num_hidden_layers), each {allowed}");
        let Some(items) = value.as_array().filter(|a| a.len() == len as usize) else {
            return Err(self.error(name, &shown(value), &allowed));
        };
        let turn =
            |(i, v): (usize, &Value)| item(v).ok_or_else(|| self.error(&format!("{name}[{i}]"), &shown(v), &allowed));
        items.iter().enumerate().map(turn).collect::<Result<Vec<T>>>().map(Some)
    }
}

/// SHA-256 of a JSON value, whatever the order of its keys and its white space.
pub(super) fn digest(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

/// Depth is bounded by the parser's limit.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort_unstable();
            out.push('{');
            for name in names {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                canonical(&map[name], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}
