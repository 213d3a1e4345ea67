//! What a model and a deployment may be.

use super::{
    Deployment, LayerKind, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_MTP, MAX_PAGE, MAX_WINDOW, Model, bad,
};
use crate::error::Result;

fn within(field: &str, value: u32, min: u32, max: u32) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(bad(field, value, format!("a whole number from {min} to {max}")))
}

/// Checks a model by itself and drops the shape of a group that no layer uses.
pub(super) fn model(m: &mut Model) -> Result<()> {
    if m.name.is_empty() || m.name.len() > crate::key::MAX_NAME {
        let allowed = format!("1 to {} bytes", crate::key::MAX_NAME);
        return Err(bad("model name", format!("{} bytes long", m.name.len()), allowed));
    }
    within("number of layers", u32::try_from(m.layers.len()).unwrap_or(u32::MAX), 1, MAX_LAYERS)?;
    within("mtp_heads", m.mtp_heads, 0, MAX_MTP)?;
    let (has_full, has_swa) = (m.layers.contains(&LayerKind::Full), m.layers.contains(&LayerKind::Swa));
    if m.mtp_heads > 0 && !has_swa {
        return Err(bad("mtp_heads", m.mtp_heads, "0 for a model without SWA layers, since MTP heads are SWA layers"));
    }
    for (name, used, shape) in [("full", has_full, &mut m.full), ("SWA", has_swa, &mut m.swa)] {
        if !used {
            *shape = None;
            continue;
        }
        let Some(s) = shape else {
            return Err(bad(format!("KV shape of the {name} layers"), "missing", "heads and dimensions of K and V"));
        };
        within(&format!("KV heads of the {name} layers"), s.heads, 1, MAX_HEADS)?;
        within(&format!("K dimension of the {name} layers"), s.k_dim, 1, MAX_HEAD_DIM)?;
        within(&format!("V dimension of the {name} layers"), s.v_dim, 1, MAX_HEAD_DIM)?;
    }
    if has_swa {
        within("window_keys", m.window_keys, 1, MAX_WINDOW + 1)?;
    } else {
        m.window_keys = 0;
    }
    within("hidden_size", m.hidden_size, u32::from(m.mtp_heads > 0), MAX_HIDDEN)
}

/// Checks a deployment of a checked model.
pub(super) fn deployment(m: &Model, d: &Deployment) -> Result<()> {
    if !d.page_size.is_power_of_two() || d.page_size > MAX_PAGE {
        return Err(bad("page_size", d.page_size, format!("a power of two from 1 to {MAX_PAGE}")));
    }
    within("tp_size", d.tp_size, 1, MAX_HEADS)?;
    within("tp_rank", d.tp_rank, 0, d.tp_size - 1)?;
    within("layout", d.layout, 1, u32::MAX)?;
    within("extent_pages", d.extent_pages, 1, 1 << 16)?;
    for (name, shape) in [("full", m.full), ("SWA", m.swa)] {
        let Some(s) = shape else { continue };
        if !s.heads.is_multiple_of(d.tp_size) && !d.tp_size.is_multiple_of(s.heads) {
            let allowed = format!("a divisor or a multiple of the {} KV heads of the {name} layers", s.heads);
            return Err(bad("tp_size", d.tp_size, allowed));
        }
    }
    if let Some(swa) = m.swa.filter(|_| m.mtp_heads > 0) {
        let shards = swa.heads.min(d.tp_size);
        if !m.hidden_size.is_multiple_of(shards) {
            let allowed = format!("a multiple of the {shards} KV shards that hold the hidden state");
            return Err(bad("hidden_size", m.hidden_size, allowed));
        }
    }
    if let Some((first, end)) = d.layers {
        let count = m.layers.len();
        if first >= end || end as usize > count {
            let allowed = format!("first < end <= {count}, the model's number of layers");
            return Err(bad("layer range", format!("({first}, {end})"), allowed));
        }
    }
    Ok(())
}
