//! Element types of stored KV, and where the scales of fp8 live.

use super::bad;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// An fp8 format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 exponent bits, 3 mantissa bits.
    E4m3,
    /// 5 exponent bits, 2 mantissa bits.
    E5m2,
}

/// Where the fp32 scales of fp8 KV live. Each is one scale for K and one for V of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scales {
    /// With the model's weights; pages hold none.
    Model,
    /// In the page, for every token and head.
    Token,
    /// In the page, for every head.
    Page,
}

/// Element type of stored KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// IEEE single precision, for reference runs.
    Fp32,
    /// 8 bits with scales.
    Fp8(Fp8, Scales),
}

impl KvDtype {
    /// Bytes of one K or V element.
    pub fn bytes(self) -> u64 {
        match self {
            KvDtype::Bf16 | KvDtype::Fp16 => 2,
            KvDtype::Fp32 => 4,
            KvDtype::Fp8(..) => 1,
        }
    }

    /// Bytes of one element of the hidden state, which is never kept in fp8.
    pub fn activation_bytes(self) -> u64 {
        self.bytes().max(2)
    }

    /// Bytes of scales per token, layer and head.
    pub(super) fn token_scale_bytes(self) -> u64 {
        if matches!(self, KvDtype::Fp8(_, Scales::Token)) { 8 } else { 0 }
    }

    /// Bytes of scales per page, layer and head, beside those per token.
    pub(super) fn page_scale_bytes(self) -> u64 {
        if matches!(self, KvDtype::Fp8(_, Scales::Page)) { 8 } else { 0 }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (format, scales) = match self {
            KvDtype::Bf16 => return f.write_str("bf16"),
            KvDtype::Fp16 => return f.write_str("fp16"),
            KvDtype::Fp32 => return f.write_str("fp32"),
            KvDtype::Fp8(format, scales) => (format, scales),
        };
        f.write_str(match format {
            Fp8::E4m3 => "fp8_e4m3",
            Fp8::E5m2 => "fp8_e5m2",
        })?;
        f.write_str(match scales {
            Scales::Model => ":model",
            Scales::Token => ":token",
            Scales::Page => ":page",
        })
    }
}

impl FromStr for KvDtype {
    type Err = Error;

    /// `bf16`, `fp16`, `fp32` (torch's long names too), `fp8_e4m3` or `fp8_e5m2` (`fp8` is the first), the last with
    /// `:model` (default), `:token` or `:page` for where the scales live.
    fn from_str(text: &str) -> Result<Self> {
        const ALLOWED: &str = "bf16, fp16, fp32, fp8_e4m3 or fp8_e5m2, the last two with :model, :token or :page";
        let fail = || bad("dtype", crate::error::shown(text), ALLOWED);
        let (name, scales) = match text.split_once(':') {
            None => (text, None),
            Some((name, "model")) => (name, Some(Scales::Model)),
            Some((name, "token")) => (name, Some(Scales::Token)),
            Some((name, "page")) => (name, Some(Scales::Page)),
            Some(_) => return Err(fail()),
        };
        let plain = match name.strip_prefix("torch.").unwrap_or(name) {
            "bf16" | "bfloat16" => KvDtype::Bf16,
            "fp16" | "float16" | "half" => KvDtype::Fp16,
            "fp32" | "float32" | "float" => KvDtype::Fp32,
            "fp8" | "fp8_e4m3" | "float8_e4m3fn" => KvDtype::Fp8(Fp8::E4m3, scales.unwrap_or(Scales::Model)),
            "fp8_e5m2" | "float8_e5m2" => KvDtype::Fp8(Fp8::E5m2, scales.unwrap_or(Scales::Model)),
            _ => return Err(fail()),
        };
        if scales.is_some() && !matches!(plain, KvDtype::Fp8(..)) {
            return Err(fail());
        }
        Ok(plain)
    }
}
