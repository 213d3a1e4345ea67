//! The host tier's memory and copies: against a model of bytes, and jobs under way together.

#![cfg(target_os = "linux")]

mod tier;
