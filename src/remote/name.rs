//! Names of objects in the store: `prefix/node/tenant/key-part`, with the tenant as 16 hexadecimal digits, the key as 64 and
//! the part as two. A name follows from the object alone, so that nothing has to be remembered to find it.

use crate::shm::{MAX_PARTS, ObjectId};
use std::fmt::Write;

/// An object of a tenant.
pub type Name = (u64, ObjectId);

/// What all names of a node begin with.
#[derive(Debug, Clone)]
pub struct Names(String);

impl Names {
    /// Of a node. Characters of its name that some store might not take become `=` and two hexadecimal digits for each byte.
    pub fn new(prefix: &str, node: &str) -> Names {
        let mut start = String::from(prefix);
        if !start.is_empty() {
            start.push('/');
        }
        for byte in node.bytes() {
            // A name of dots alone would be a path's way up.
            if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) {
                start.push(byte as char);
            } else {
                let _ = write!(start, "={byte:02x}");
            }
        }
        start.push('/');
        Names(start)
    }

    /// What they begin with, a slash at its end.
    pub fn start(&self) -> &str {
        &self.0
    }

    /// The object of a name; none where [`Names::of`] gives no such name.
    pub fn parse(&self, name: &str) -> Option<Name> {
        let digits = |range: std::ops::Range<usize>| name.get(self.0.len()..)?.get(range);
        let tenant = u64::from_str_radix(digits(0..16)?, 16).ok()?;
        let mut id = ObjectId { key: [0; 32], part: u8::from_str_radix(digits(82..84)?, 16).ok()? };
        for (n, byte) in id.key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits(17 + 2 * n..19 + 2 * n)?, 16).ok()?;
        }
        let parsed = (tenant, id);
        (id.part < MAX_PARTS && self.of(&parsed) == name).then_some(parsed)
    }

    /// Of an object.
    pub fn of(&self, (tenant, id): &Name) -> String {
        let mut name = String::with_capacity(self.0.len() + 16 + 1 + 64 + 3);
        name.push_str(&self.0);
        let _ = write!(name, "{tenant:016x}/");
        for byte in id.key {
            let _ = write!(name, "{byte:02x}");
        }
        let _ = write!(name, "-{:02x}", id.part);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_what_and_which_part() {
        let id = ObjectId { key: std::array::from_fn(|n| n as u8), part: 33 };
        assert_eq!(
            Names::new("kv/prod", "node-1").of(&(7, id)),
            "kv/prod/node-1/0000000000000007/000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f-21"
        );
        assert!(Names::new("", "..").of(&(u64::MAX, id)).starts_with("=2e=2e/ffffffffffffffff/00"));
        let names = Names::new("kv", "n");
        let name = names.of(&(7, id));
        assert_eq!(names.parse(&name), Some((7, id)));
        let upper = name.to_uppercase();
        for other in ["", "kv/n/", &name[1..], &name[..name.len() - 1], &format!("{name}0"), &upper, "kv/n/é", "kv/m/x"]
        {
            assert_eq!(names.parse(other), None, "{other}");
        }
        assert_eq!(names.parse(&names.of(&(7, ObjectId { part: 64, ..id }))), None);
        assert_ne!(Names::new("", "a b").0, Names::new("", "a=20b").0, "no two nodes have one start");
    }
}
