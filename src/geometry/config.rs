//! A model's shape from the text of its hub `config.json`.
//!
//! Spellings, told apart by their fields:
//! - MiMo as on the hub: `hybrid_layer_pattern` (0 full, 1 SWA) decides; `swa_*` fields fall back to those of the full
//!   layers; a query sees `sliding_window_size` (else `sliding_window`) keys before it and itself.
//! - everything else: `layer_types`, or Gemma's `sliding_window_pattern`, or the family's own rule; `sliding_window`
//!   counts the query's own key. MiMo in this spelling has twice as many KV heads in SWA layers and no MTP heads.
//!
//! With both spellings in one file the first decides and only the lists of layers must agree.

use super::fields::{Fields, digest, shown};
use super::{KvDtype, KvShape, LayerKind, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_MTP, MAX_WINDOW, Model};
use crate::error::{Error, Result};
use serde_json::Value;

/// Longest text, in bytes.
const MAX_TEXT: usize = 4 << 20;
/// MTP heads that MiMo checkpoints on the hub ship; their config does not say.
const HUB_MTP_HEADS: u32 = 3;

/// What a `config.json` leaves open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigOptions {
    /// Identity for the fingerprint; `None` for a digest of the config, so that an edited file is another model.
    pub name: Option<String>,
    /// MTP heads; `None` for 3 in the hub's MiMo spelling (or its `num_nextn_predict_layers`) and 0 elsewhere.
    pub mtp_heads: Option<u32>,
    /// Keys added to the hub spelling's window for the query itself: 1, or 0 for code that counts it inside.
    pub hub_window_plus: u32,
}

impl Default for ConfigOptions {
    fn default() -> Self {
        ConfigOptions { name: None, mtp_heads: None, hub_window_plus: 1 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Mimo,
    Gemma3,
    GptOss,
    Other,
}

/// Reads `text`. Every error is an [`Error::Config`].
pub(super) fn read(text: &str, options: &ConfigOptions) -> Result<Model> {
    if options.hub_window_plus > 1 {
        return Err(super::bad("hub_window_plus", options.hub_window_plus, "0 or 1"));
    }
    if text.len() > MAX_TEXT {
        let allowed = format!("at most {MAX_TEXT} bytes");
        return Err(super::bad("length of the file", format!("{} bytes", text.len()), allowed));
    }
    let value: Value = serde_json::from_str(text)
        .map_err(|e| Error::Config(format!("the file is not JSON ({e}), allowed is one JSON object")))?;
    let Some(top) = value.as_object() else {
        return Err(super::bad("the file", shown(&value), "a JSON object"));
    };
    let top = Fields::new(top, "");
    let fields = text_fields(top)?;
    let family = family(top, fields)?;
    let model = shape(top, fields, family, options)?;
    let name = options.name.clone().unwrap_or_else(|| format!("config:{}", digest(&value)));
    Ok(Model { name, ..model })
}

/// The text model's fields: nested in `text_config`, or at the top.
fn text_fields(top: Fields<'_>) -> Result<Fields<'_>> {
    let Some(nested) = top.get("text_config") else { return Ok(top) };
    let Some(map) = nested.as_object() else {
        return Err(top.error("text_config", &shown(nested), "an object"));
    };
    let inner = Fields::new(map, "text_config.");
    let here = top.number("num_hidden_layers", 1, MAX_LAYERS)?;
    let there = inner.number("num_hidden_layers", 1, MAX_LAYERS)?;
    match (here, there) {
        (Some(_), None) => Ok(top),
        (Some(a), Some(b)) if a != b => {
            Err(top.error("num_hidden_layers", &a.to_string(), &format!("{b}, as text_config says")))
        }
        _ => Ok(inner),
    }
}

fn family(top: Fields<'_>, fields: Fields<'_>) -> Result<Family> {
    let mut name = fields.text("model_type")?.or(top.text("model_type")?);
    if name.is_none() {
        name = top.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    }
    Ok(match name.unwrap_or_default() {
        "mimo_v2" | "mimo_v2_flash" | "MiMoV2ForCausalLM" | "MiMoV2FlashForCausalLM" => Family::Mimo,
        "gemma3" | "gemma3_text" | "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" => Family::Gemma3,
        "gpt_oss" | "GptOssForCausalLM" => Family::GptOss,
        _ => Family::Other,
    })
}

fn shape(top: Fields<'_>, f: Fields<'_>, family: Family, options: &ConfigOptions) -> Result<Model> {
    refuse_other_kv(f)?;
    let count = f.required("num_hidden_layers", 1, MAX_LAYERS)?;
    let hub = f.get("hybrid_layer_pattern").is_some();
    let layers = layer_kinds(f, family, count)?;
    let has_swa = layers.contains(&LayerKind::Swa);
    let full = full_shape(f, family)?;
    let swa = if has_swa { Some(swa_shape(f, full, hub, family)?) } else { None };
    let window_keys = match (has_swa, hub) {
        (false, _) => 0,
        (true, true) => hub_window(f, options.hub_window_plus)?,
        (true, false) => other_window(f, family)?,
    };
    let in_file = if hub { f.number("num_nextn_predict_layers", 0, MAX_MTP)? } else { None };
    let by_rule = if hub && has_swa { HUB_MTP_HEADS } else { 0 };
    let mtp_heads = options.mtp_heads.or(in_file).unwrap_or(by_rule);
    let hidden_size = if mtp_heads > 0 {
        f.required("hidden_size", 1, MAX_HIDDEN)?
    } else {
        f.number("hidden_size", 1, MAX_HIDDEN)?.unwrap_or(0)
    };
    let dtype = dtype(top, f)?;
    Ok(Model { name: String::new(), layers, full: Some(full), swa, window_keys, mtp_heads, hidden_size, dtype })
}

/// Fields that say that a layer's KV is not "heads x (K + V)", or not the same in every full layer.
fn refuse_other_kv(f: Fields<'_>) -> Result<()> {
    for name in ["kv_lora_rank", "num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads"] {
        if let Some(value) = f.get(name).filter(|v| v.as_u64() != Some(0)) {
            return Err(f.error(name, &shown(value), "absent: this kind of KV is not supported"));
        }
    }
    Ok(())
}

fn layer_kinds(f: Fields<'_>, family: Family, count: u32) -> Result<Vec<LayerKind>> {
    use LayerKind::{Full, Swa};
    let hub = f.list("hybrid_layer_pattern", count, "0 (full) or 1 (SWA)", |v| match v.as_u64() {
        Some(0) => Some(Full),
        Some(1) => Some(Swa),
        _ => None,
    })?;
    let named = f.list("layer_types", count, "\"full_attention\" or \"sliding_attention\"", |v| match v.as_str() {
        Some("full_attention") => Some(Full),
        Some("sliding_attention") => Some(Swa),
        _ => None,
    })?;
    let every = |n: u32| (1..=count).map(|i| if i.is_multiple_of(n) { Full } else { Swa }).collect::<Vec<_>>();
    let pattern = match family {
        Family::Gemma3 | Family::Other => match f.number("sliding_window_pattern", 1, MAX_LAYERS)? {
            None => f.number("_sliding_window_pattern", 1, MAX_LAYERS)?.map(every),
            some => some.map(every),
        },
        Family::Mimo | Family::GptOss => None,
    };
    let lists = [("hybrid_layer_pattern", hub), ("layer_types", named), ("sliding_window_pattern", pattern)];
    let mut found: Option<(&str, Vec<LayerKind>)> = None;
    for (name, list) in lists {
        let Some(list) = list else { continue };
        let Some((first_name, first)) = &found else {
            found = Some((name, list));
            continue;
        };
        if let Some(i) = (0..list.len()).find(|&i| list[i] != first[i]) {
            let allowed = format!("{:?}, as {first_name} says", first[i]);
            return Err(f.error(&format!("layer {i} in {name}"), &format!("{:?}", list[i]), &allowed));
        }
    }
    if let Some((_, list)) = found {
        return Ok(list);
    }
    match family {
        Family::Mimo => Ok(vec![Full; count as usize]),
        Family::Gemma3 => Ok(every(6)),
        Family::GptOss => Ok(every(2)),
        Family::Other => {
            let off = f.flag("use_sliding_window")? == Some(false);
            match f.get("sliding_window").filter(|_| !off) {
                None => Ok(vec![Full; count as usize]),
                Some(value) => {
                    let allowed = "absent, or with layer_types that say which layers slide";
                    Err(f.error("sliding_window", &shown(value), allowed))
                }
            }
        }
    }
}

fn full_shape(f: Fields<'_>, family: Family) -> Result<KvShape> {
    let gemma = family == Family::Gemma3;
    let heads = match f.number("num_key_value_heads", 1, MAX_HEADS)? {
        Some(n) => n,
        None if gemma => 4,
        None => f.required("num_key_value_heads", 1, MAX_HEADS)?,
    };
    check_query_heads(f, "num_attention_heads", heads)?;
    let k_dim = match f.number("head_dim", 1, MAX_HEAD_DIM)? {
        Some(n) => n,
        None if gemma => 256,
        None if family == Family::Mimo => f.required("head_dim", 1, MAX_HEAD_DIM)?,
        None => derived_head_dim(f)?,
    };
    let v_dim = match f.number("v_head_dim", 1, MAX_HEAD_DIM)? {
        Some(n) => n,
        None if family == Family::Mimo => f.required("v_head_dim", 1, MAX_HEAD_DIM)?,
        None => k_dim,
    };
    Ok(KvShape { heads, k_dim, v_dim })
}

/// `hidden_size / num_attention_heads`, where both are given and it comes out even.
fn derived_head_dim(f: Fields<'_>) -> Result<u32> {
    let queries = f.number("num_attention_heads", 1, u32::MAX)?;
    let hidden = f.number("hidden_size", 1, MAX_HIDDEN)?;
    match (hidden, queries) {
        (Some(h), Some(q)) if h.is_multiple_of(q) && h / q <= MAX_HEAD_DIM => Ok(h / q),
        _ => f.required("head_dim", 1, MAX_HEAD_DIM),
    }
}

fn check_query_heads(f: Fields<'_>, name: &str, kv_heads: u32) -> Result<()> {
    match f.number(name, 1, u32::MAX)? {
        Some(n) if !n.is_multiple_of(kv_heads) => {
            Err(f.error(name, &n.to_string(), &format!("a multiple of the {kv_heads} KV heads")))
        }
        _ => Ok(()),
    }
}

fn swa_shape(f: Fields<'_>, full: KvShape, hub: bool, family: Family) -> Result<KvShape> {
    let doubled = family == Family::Mimo && !hub;
    let heads = if doubled { full.heads * 2 } else { full.heads };
    let field = |name: &str, max: u32, rule: u32| match f.number(name, 1, max)? {
        Some(n) if doubled && n != rule => {
            Err(f.error(name, &n.to_string(), &format!("{rule} without hybrid_layer_pattern")))
        }
        given => Ok(given.unwrap_or(rule)),
    };
    let shape = KvShape {
        heads: field("swa_num_key_value_heads", MAX_HEADS, heads)?,
        k_dim: field("swa_head_dim", MAX_HEAD_DIM, full.k_dim)?,
        v_dim: field("swa_v_head_dim", MAX_HEAD_DIM, full.v_dim)?,
    };
    check_query_heads(f, "swa_num_attention_heads", shape.heads)?;
    Ok(shape)
}

fn hub_window(f: Fields<'_>, plus: u32) -> Result<u32> {
    let min = 1 - plus;
    let plain = f.number("sliding_window", 0, MAX_WINDOW + 1)?;
    match f.number("sliding_window_size", min, MAX_WINDOW)? {
        Some(n) => Ok(n + plus),
        None if plain.is_none() => {
            Err(f.error("sliding_window", "missing", "a number of tokens, as SWA layers need one"))
        }
        None => Ok(f.required("sliding_window", min, MAX_WINDOW)? + plus),
    }
}

fn other_window(f: Fields<'_>, family: Family) -> Result<u32> {
    match (f.number("sliding_window", 1, MAX_WINDOW + 1)?, family) {
        (Some(n), _) => Ok(n),
        (None, Family::Gemma3) => Ok(4096),
        (None, _) => f.required("sliding_window", 1, MAX_WINDOW + 1),
    }
}

/// The dtype the model computes in, which is the default of its KV.
fn dtype(top: Fields<'_>, f: Fields<'_>) -> Result<KvDtype> {
    for fields in [f, top] {
        for name in ["dtype", "torch_dtype"] {
            let Some(text) = fields.text(name)? else { continue };
            return match text.parse::<KvDtype>() {
                Ok(dtype) if !matches!(dtype, KvDtype::Fp8(..)) => Ok(dtype),
                _ => Err(fields.error(name, &crate::error::shown(text), "bfloat16, float16 or float32")),
            };
        }
    }
    Ok(KvDtype::Bf16)
}
