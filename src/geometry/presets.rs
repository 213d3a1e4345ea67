//! Models by name.

use super::{KvDtype, KvShape, LayerKind, Model, bad};
use crate::error::Result;

/// Names that [`super::Geometry::preset`] knows.
///
/// `uniform` is a plain dense model with no SWA group: 32 full layers of 8 KV heads, 128 / 128.
pub const PRESETS: [&str; 4] = ["mimo-v2-flash", "mimo-v2.5", "mimo-v2.5-pro", "uniform"];

const WINDOW_KEYS: u32 = 129;
const FLASH_FULL: [usize; 9] = [0, 5, 11, 17, 23, 29, 35, 41, 47];
const PRO_FULL: [usize; 10] = [0, 7, 15, 23, 31, 39, 47, 55, 62, 69];

fn mimo(name: &str, layers: usize, full_at: &[usize], full_heads: u32, hidden_size: u32) -> Model {
    let kind = |i| if full_at.contains(&i) { LayerKind::Full } else { LayerKind::Swa };
    Model {
        name: name.to_owned(),
        layers: (0..layers).map(kind).collect(),
        full: Some(KvShape { heads: full_heads, k_dim: 192, v_dim: 128 }),
        swa: Some(KvShape { heads: 8, k_dim: 192, v_dim: 128 }),
        window_keys: WINDOW_KEYS,
        mtp_heads: 3,
        hidden_size,
        dtype: KvDtype::Bf16,
    }
}

/// The model behind a preset's name.
pub(super) fn find(name: &str) -> Result<Model> {
    match name.to_ascii_lowercase().replace('_', "-").as_str() {
        "mimo-v2-flash" => Ok(mimo("mimo-v2-flash", 48, &FLASH_FULL, 4, 4096)),
        "mimo-v2.5" => Ok(mimo("mimo-v2.5", 48, &FLASH_FULL, 4, 4096)),
        "mimo-v2.5-pro" => Ok(mimo("mimo-v2.5-pro", 70, &PRO_FULL, 8, 6144)),
        "uniform" => Ok(Model {
            name: "uniform".to_owned(),
            layers: vec![LayerKind::Full; 32],
            full: Some(KvShape { heads: 8, k_dim: 128, v_dim: 128 }),
            swa: None,
            window_keys: 0,
            mtp_heads: 0,
            hidden_size: 4096,
            dtype: KvDtype::Bf16,
        }),
        _ => Err(bad("preset", crate::error::shown(name), PRESETS.join(", "))),
    }
}
