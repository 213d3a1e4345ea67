//! Reading `config.json`: every spelling, and files that are wrong on purpose.

use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(config: &Value) -> Result<Geometry> {
    Geometry::from_config(&config.to_string(), &ConfigOptions::default(), Deployment::default())
}

fn with(base: &Value, changes: Value) -> Value {
    let mut map: Map<String, Value> = base.as_object().unwrap().clone();
    map.extend(changes.as_object().unwrap().clone());
    Value::Object(map)
}

fn without(base: &Value, name: &str) -> Value {
    let mut map = base.as_object().unwrap().clone();
    assert!(map.remove(name).is_some());
    Value::Object(map)
}

fn refused(config: &Value, message: &str) {
    let error = read(config).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    let got = error.to_string();
    assert!(got.starts_with(&format!("config: {message}")) && got.contains("allowed is"), "{got}");
}

fn pattern(model: &str) -> Vec<u8> {
    let g = Geometry::preset(model, Deployment::default()).unwrap();
    g.model().layers.iter().map(|l| u8::from(*l == LayerKind::Swa)).collect()
}

fn names(pattern: &[u8]) -> Vec<&'static str> {
    pattern.iter().map(|p| ["full_attention", "sliding_attention"][usize::from(*p)]).collect()
}

/// V2.5-Pro in the hub's spelling.
fn pro() -> Value {
    json!({
        "architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", "torch_dtype": "bfloat16",
        "num_hidden_layers": 70, "hidden_size": 6144, "hybrid_layer_pattern": pattern("mimo-v2.5-pro"),
        "num_attention_heads": 128, "swa_num_attention_heads": 128,
        "num_key_value_heads": 8, "swa_num_key_value_heads": 8,
        "head_dim": 192, "swa_head_dim": 192, "v_head_dim": 128, "swa_v_head_dim": 128,
        "sliding_window": 128, "sliding_window_size": 128, "n_shared_experts": null, "rope_theta": 1e7
    })
}

/// V2-Flash in the hub's spelling.
fn flash() -> Value {
    let pattern = pattern("mimo-v2-flash");
    let changes = json!({
        "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096,
        "hybrid_layer_pattern": pattern, "num_attention_heads": 64, "swa_num_attention_heads": 64,
        "num_key_value_heads": 4
    });
    with(&pro(), changes)
}

/// V2-Flash in transformers' spelling.
fn flash_transformers() -> Value {
    json!({
        "model_type": "mimo_v2_flash", "dtype": "bfloat16", "num_hidden_layers": 48, "hidden_size": 4096,
        "layer_types": names(&pattern("mimo-v2-flash")), "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 192, "v_head_dim": 128, "sliding_window": 128
    })
}

fn gemma() -> Value {
    json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
        "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16}
    })
}

fn gpt_oss() -> Value {
    let kinds: Vec<_> = (0..24).map(|i| (i + 1) % 2).collect();
    json!({
        "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "layer_types": names(&kinds)
    })
}

#[test]
fn hub_spelling_equals_the_presets() {
    for (config, preset) in [(pro(), "mimo-v2.5-pro"), (flash(), "mimo-v2-flash")] {
        let want = Geometry::preset(preset, Deployment::default()).unwrap();
        let got = read(&config).unwrap();
        assert!(got.model().name.starts_with("config:"));
        assert_eq!(Model { name: preset.into(), ..got.model().clone() }, *want.model());
        let options = ConfigOptions { name: Some(preset.into()), ..ConfigOptions::default() };
        let named = Geometry::from_config(&config.to_string(), &options, Deployment::default()).unwrap();
        assert_eq!(named.fingerprint(), want.fingerprint());
    }
}

#[test]
fn hub_window_counts_the_query_itself_beside_the_window() {
    let keys = |config: &Value, plus| {
        let options = ConfigOptions { hub_window_plus: plus, ..ConfigOptions::default() };
        Geometry::from_config(&config.to_string(), &options, Deployment::default()).map(|g| g.window_keys())
    };
    assert_eq!(keys(&pro(), 1).unwrap(), 129);
    assert_eq!(keys(&pro(), 0).unwrap(), 128);
    // sliding_window_size wins; sliding_window alone is enough.
    assert_eq!(keys(&with(&pro(), json!({"sliding_window": 129})), 1).unwrap(), 129);
    assert_eq!(keys(&with(&pro(), json!({"sliding_window": null})), 1).unwrap(), 129);
    assert_eq!(keys(&with(&pro(), json!({"sliding_window_size": null, "sliding_window": 64})), 1).unwrap(), 65);
    // A window of nothing but the query is a window.
    assert_eq!(keys(&with(&pro(), json!({"sliding_window_size": 0})), 1).unwrap(), 1);
    assert!(keys(&with(&pro(), json!({"sliding_window_size": 0})), 0).is_err());
    let message = keys(&pro(), 2).unwrap_err().to_string();
    assert_eq!(message, "config: hub_window_plus is 2, allowed is 0 or 1");
}

#[test]
fn hub_swa_fields_fall_back_to_the_full_layers() {
    let mut config = pro();
    for name in ["swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads"] {
        config = without(&config, name);
    }
    assert_eq!(read(&config).unwrap().model().swa, read(&pro()).unwrap().model().swa);
    let config = with(&flash(), json!({"swa_num_key_value_heads": null}));
    assert_eq!(read(&config).unwrap().model().swa, Some(KvShape { heads: 4, k_dim: 192, v_dim: 128 }));
}

#[test]
fn hub_without_a_pattern_is_all_full() {
    let g = read(&without(&pro(), "hybrid_layer_pattern")).unwrap();
    assert_eq!((g.full().unwrap().layers, g.swa(), g.mtp_heads(), g.window()), (70, None, 0, 0));
}

#[test]
fn transformers_spelling_doubles_the_swa_heads_and_has_no_mtp() {
    let g = read(&flash_transformers()).unwrap();
    let hub = read(&flash()).unwrap();
    assert_eq!(
        (&g.model().layers, g.model().full, g.model().swa),
        (&hub.model().layers, hub.model().full, hub.model().swa)
    );
    assert_eq!((g.window_keys(), g.mtp_heads(), g.hidden_token_bytes()), (128, 0, 0));
    refused(
        &with(&flash_transformers(), json!({"swa_num_key_value_heads": 4})),
        "swa_num_key_value_heads is 4, allowed is 8 without hybrid_layer_pattern",
    );
}

#[test]
fn both_spellings_follow_the_hub_and_only_the_lists_must_agree() {
    let both = with(
        &flash_transformers(),
        json!({"hybrid_layer_pattern": pattern("mimo-v2-flash"),
        "sliding_window": 129, "sliding_window_size": 128, "swa_num_key_value_heads": 8}),
    );
    let g = read(&both).unwrap();
    assert_eq!((g.window_keys(), g.mtp_heads()), (129, 3));
    let mut kinds = names(&pattern("mimo-v2-flash"));
    kinds[7] = "full_attention";
    refused(
        &with(&both, json!({"layer_types": kinds})),
        "layer 7 in layer_types is Full, allowed is Swa, as hybrid_layer_pattern says",
    );
}

#[test]
fn mtp_heads_come_from_the_option_then_the_file_then_the_rule() {
    let heads = |config: &Value, mtp_heads| {
        let options = ConfigOptions { mtp_heads, ..ConfigOptions::default() };
        Geometry::from_config(&config.to_string(), &options, Deployment::default()).map(|g| g.mtp_heads())
    };
    assert_eq!(heads(&pro(), None).unwrap(), 3);
    assert_eq!(heads(&with(&pro(), json!({"num_nextn_predict_layers": 1})), None).unwrap(), 1);
    assert_eq!(heads(&with(&pro(), json!({"num_nextn_predict_layers": 1})), Some(0)).unwrap(), 0);
    assert_eq!(heads(&gpt_oss(), None).unwrap(), 0);
    assert_eq!(heads(&with(&flash_transformers(), json!({"num_nextn_predict_layers": 3})), None).unwrap(), 0);
    assert_eq!(heads(&gpt_oss(), Some(1)).unwrap(), 1);
    assert!(heads(&pro(), Some(9)).is_err());
    assert!(heads(&without(&pro(), "hidden_size"), None).is_err());
    assert_eq!(heads(&without(&pro(), "hidden_size"), Some(0)).unwrap(), 0);
}

#[test]
fn gemma_3_nested_flat_and_with_lists() {
    let g = read(&gemma()).unwrap();
    let shape = Some(KvShape { heads: 4, k_dim: 256, v_dim: 256 });
    assert_eq!((g.model().full, g.model().swa, g.window_keys(), g.window()), (shape, shape, 1024, 1023));
    // Every sixth layer is full: 5, 11, 17, 23, 29 of 34.
    assert_eq!((g.full().unwrap().layers, g.swa().unwrap().layers), (5, 29));
    assert_eq!(g.model().layers[5], LayerKind::Full);
    let flat = json!({"model_type": "gemma3_text", "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 6});
    let g = read(&flat).unwrap();
    assert_eq!((g.full().unwrap().layers, g.swa().unwrap().layers, g.window_keys()), (4, 22, 512));
    let kinds: Vec<u8> = (1..=26).map(|i| u8::from(i % 6 != 0)).collect();
    assert_eq!(read(&with(&flat, json!({"layer_types": names(&kinds)}))).unwrap().model().layers, g.model().layers);
    let g = read(&with(&flat, json!({"sliding_window_pattern": 2}))).unwrap();
    assert_eq!(g.full().unwrap().layers, 13);
    refused(
        &with(&flat, json!({"sliding_window_pattern": 2, "layer_types": names(&kinds)})),
        "layer 1 in sliding_window_pattern is Full, allowed is Swa, as layer_types says",
    );
    refused(&with(&flat, json!({"sliding_window_pattern": 0})), "sliding_window_pattern is 0, allowed");
    let mut contradicting = gemma();
    contradicting["num_hidden_layers"] = json!(30);
    refused(&contradicting, "num_hidden_layers is 30, allowed is 34, as text_config says");
    let mut wrong = gemma();
    wrong["text_config"]["sliding_window"] = json!("wide");
    refused(&wrong, "text_config.sliding_window is \"wide\", allowed is a whole number from 1 to 1048577");
    refused(&with(&gemma(), json!({"text_config": 7})), "text_config is 7, allowed is an object");
}

#[test]
fn gpt_oss_by_list_and_by_rule() {
    let g = read(&gpt_oss()).unwrap();
    let shape = Some(KvShape { heads: 8, k_dim: 64, v_dim: 64 });
    assert_eq!((g.model().full, g.model().swa, g.window_keys()), (shape, shape, 128));
    assert_eq!((g.full().unwrap().layers, g.swa().unwrap().layers), (12, 12));
    assert_eq!(g.model().layers[0], LayerKind::Swa);
    assert_eq!(read(&without(&gpt_oss(), "layer_types")).unwrap().model().layers, g.model().layers);
}

#[test]
fn other_models_are_taken_when_their_layers_are_clear() {
    let dense = json!({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8});
    let g = read(&dense).unwrap();
    assert_eq!((g.full().unwrap().token_bytes(), g.swa()), (131_072, None));
    assert!(read(&with(&dense, json!({"sliding_window": 4096, "use_sliding_window": false}))).is_ok());
    refused(&with(&dense, json!({"sliding_window": 4096})), "sliding_window is 4096, allowed is absent, or with");
    refused(&with(&dense, json!({"kv_lora_rank": 512})), "kv_lora_rank is 512, allowed is absent");
    refused(&with(&dense, json!({"num_attention_heads": 33})), "num_attention_heads is 33, allowed is a multiple");
    refused(&with(&dense, json!({"hidden_size": 4097})), "head_dim is missing, allowed is a whole number");
}

#[test]
fn dtype_of_the_file_is_the_default() {
    let dtype = |v: Value| read(&with(&pro(), json!({"torch_dtype": v}))).map(|g| g.dtype());
    assert_eq!(dtype(json!("float16")).unwrap(), KvDtype::Fp16);
    assert_eq!(dtype(json!("float32")).unwrap(), KvDtype::Fp32);
    assert_eq!(dtype(json!(null)).unwrap(), KvDtype::Bf16);
    for wrong in [json!("int4"), json!("float8_e4m3fn"), json!(16), json!([])] {
        assert!(dtype(wrong).is_err());
    }
}

#[test]
fn name_ignores_order_and_white_space_only() {
    let name = |text: &str| {
        Geometry::from_config(text, &ConfigOptions::default(), Deployment::default()).unwrap().model().name.clone()
    };
    let a = r#"{"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 8, "rope_theta": 1e4}"#;
    let b = "{\"rope_theta\":10000.0,\"head_dim\":8,\n\"num_key_value_heads\":1,\"num_hidden_layers\":2}";
    assert_eq!(name(a), name(b));
    assert_ne!(name(a), name(&a.replace("1e4", "1e6")));
}

#[test]
fn every_field_refuses_every_wrong_value() {
    let wrong = [
        json!(-1),
        json!(-9_223_372_036_854_775_808i64),
        json!(1e300),
        json!(1.5),
        json!("8"),
        json!(true),
        json!([8]),
        json!({"a": 1}),
        json!(u64::MAX),
        json!(4_294_967_296u64),
    ];
    let numbers = [
        "num_hidden_layers",
        "num_key_value_heads",
        "swa_num_key_value_heads",
        "head_dim",
        "swa_head_dim",
        "v_head_dim",
        "swa_v_head_dim",
        "sliding_window",
        "sliding_window_size",
        "hidden_size",
        "num_attention_heads",
        "swa_num_attention_heads",
    ];
    for name in numbers {
        for value in &wrong {
            refused(&with(&pro(), json!({name: value})), &format!("{name} is "));
        }
        if !name.starts_with("swa") && !name.starts_with("sliding_window") && name != "num_attention_heads" {
            refused(&without(&pro(), name), &format!("{name} is missing"));
        }
    }
    refused(&with(&pro(), json!({"sliding_window": null, "sliding_window_size": null})), "sliding_window is missing");
    refused(
        &with(&pro(), json!({"num_hidden_layers": 0})),
        "num_hidden_layers is 0, allowed is a whole number from 1 to",
    );
    refused(
        &with(&pro(), json!({"num_hidden_layers": 69})),
        "hybrid_layer_pattern is a list of 70, allowed is a list of 69",
    );
    refused(&with(&pro(), json!({"hybrid_layer_pattern": "01"})), "hybrid_layer_pattern is \"01\", allowed");
    let mut pattern = pro();
    for value in [json!(2), json!(-1), json!("full"), json!(null), json!(0.0), json!([[]])] {
        pattern["hybrid_layer_pattern"][3] = value;
        refused(&pattern, "hybrid_layer_pattern[3] is ");
    }
    refused(&with(&gpt_oss(), json!({"layer_types": names(&[1; 23])})), "layer_types is a list of 23");
    let mut types = gpt_oss();
    types["layer_types"][1] = json!("linear_attention");
    refused(&types, "layer_types[1] is \"linear_attention\", allowed");
    refused(&with(&pro(), json!({"model_type": 3})), "model_type is 3, allowed is a string");
    refused(&with(&pro(), json!({"hidden_size": 1 << 21})), "hidden_size is 2097152");
}

#[test]
fn texts_that_are_no_config() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{{\"a\":{}}}", "{\"a\":".repeat(50_000));
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20));
    let texts = [
        "",
        "{",
        "null",
        "[]",
        "7",
        "\"x\"",
        "{\"num_hidden_layers\": NaN}",
        "{\"a\": Infinity}",
        "{} {}",
        "{\"head_dim\": 1e999}",
        "\u{feff}{}",
        "{\"a\": \"\\ud800\"}",
        "{}",
        &deep,
        &nested,
        &huge,
    ];
    for text in texts {
        let error = Geometry::from_config(text, &ConfigOptions::default(), Deployment::default()).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("allowed is") && message.len() < 300, "{message}");
    }
    let long = with(&pro(), json!({"head_dim": "é".repeat(10_000)}));
    assert!(read(&long).unwrap_err().to_string().len() < 300);
}

/// Any JSON value of a few levels, often one that a config could hold.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u32..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![
            Just("full_attention"),
            Just("sliding_attention"),
            Just("gpt_oss"),
            Just("mimo_v2"),
            Just("gemma3")
        ]
        .prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 16, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

const FIELDS: [&str; 20] = [
    "model_type",
    "architectures",
    "text_config",
    "num_hidden_layers",
    "hybrid_layer_pattern",
    "layer_types",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "sliding_window",
    "sliding_window_size",
    "use_sliding_window",
    "num_key_value_heads",
    "swa_num_key_value_heads",
    "head_dim",
    "v_head_dim",
    "num_attention_heads",
    "hidden_size",
    "num_nextn_predict_layers",
    "torch_dtype",
    "kv_lora_rank",
];

proptest! {
    /// Whatever the fields hold, a config is read or refused, and what is read gives figures without overflow.
    #[test]
    fn any_config_is_read_or_refused(
        base in 0usize..5, changes in prop::collection::vec((prop::sample::select(FIELDS.to_vec()), any_json()), 0..5),
        nested in any::<bool>(),
    ) {
        let mut config = [pro(), flash(), flash_transformers(), gemma(), gpt_oss()][base].clone();
        for (name, value) in changes {
            match config.get_mut("text_config").filter(|t| nested && t.is_object()) {
                Some(text) => text[name] = value,
                None => config[name] = value,
            }
        }
        match read(&config) {
            Ok(g) => {
                prop_assert!(g.full().is_some() || g.swa().is_some());
                prop_assert!(g.stored_full_page_bytes() + g.stored_swa_page_bytes() > 0);
            }
            Err(Error::Config(message)) => prop_assert!(message.contains("allowed is") && message.len() < 300, "{message}"),
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let read = Geometry::from_config(&text, &ConfigOptions::default(), Deployment::default());
        prop_assert!(matches!(read, Err(Error::Config(_))));
    }
}
