//! Names of objects in the store: `prefix/node/tenant/key-part`, with the tenant as 16 hexadecimal digits, the key as 64 and
//! the part as two. A name follows from the object alone, so that nothing has to be remembered to find it.

use crate::shm::ObjectId;
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
        assert_ne!(Names::new("", "a b").0, Names::new("", "a=20b").0, "no two nodes have one start");
    }
}
