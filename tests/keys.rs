//! The published vectors of `tests/vectors/keys.json`, which other implementations check against too.

use mimo_cache::geometry::{Deployment, Fp8, Geometry, KvDtype, KvShape, LayerKind, Scales};
use mimo_cache::key::{Key, Span, page_key, page_spans, root_key, validate_spans};
use serde_json::Value;
use std::collections::HashMap;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/keys.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn cases(all: &Value, part: &str) -> Vec<Value> {
    let cases = all[part].as_array().unwrap().clone();
    assert!(!cases.is_empty(), "{part}");
    cases
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap()
}

fn number(case: &Value, field: &str) -> u64 {
    case[field].as_u64().unwrap()
}

fn small(case: &Value, field: &str) -> u32 {
    u32::try_from(number(case, field)).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2));
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn digest(hex: &str) -> [u8; 32] {
    bytes(hex).try_into().unwrap()
}

fn roots(all: &Value) -> HashMap<String, [u8; 32]> {
    let named = |case: Value| {
        let key = Key { salt: bytes(text(&case, "salt")), adapter: bytes(text(&case, "adapter")) };
        key.validate().unwrap();
        let weights = bytes(text(&case, "weights"));
        let root = root_key(&digest(text(&case, "fingerprint")), &weights, &key, number(&case, "generation"));
        assert_eq!(root, digest(text(&case, "key")), "root {}", text(&case, "name"));
        (text(&case, "name").to_owned(), root)
    };
    cases(all, "roots").into_iter().map(named).collect()
}

#[test]
fn roots_and_chains_equal_the_vectors() {
    let all = vectors();
    let roots = roots(&all);
    for case in cases(&all, "chains") {
        let name = text(&case, "name");
        let size = small(&case, "page_size");
        let tokens: Vec<u32> =
            case["tokens"].as_array().unwrap().iter().map(|t| u32::try_from(t.as_u64().unwrap()).unwrap()).collect();
        let span = |s: &Value| Span { start: number(s, "start"), len: number(s, "len"), hash: digest(text(s, "hash")) };
        let spans: Vec<Span> = case["spans"].as_array().unwrap().iter().map(span).collect();
        validate_spans(&spans, tokens.len() as u64).unwrap();
        let mut parent = roots[text(&case, "root")];
        let want = case["pages"].as_array().unwrap();
        assert_eq!(want.len(), tokens.len() / size as usize, "{name}");
        for (i, (page, key)) in tokens.chunks_exact(size as usize).zip(want).enumerate() {
            parent = page_key(&parent, page, page_spans(&spans, i as u64, size));
            assert_eq!(parent, digest(key.as_str().unwrap()), "page {i} of {name}");
        }
    }
}

fn dtype(name: &str) -> KvDtype {
    match name {
        "bf16" => KvDtype::Bf16,
        "fp8_e4m3:token" => KvDtype::Fp8(Fp8::E4m3, Scales::Token),
        other => panic!("{other}"),
    }
}

/// The vectors hold whole models, so this also says that the presets have not changed.
#[test]
fn fingerprints_equal_the_vectors() {
    for case in cases(&vectors(), "geometries") {
        let deployment = Deployment {
            page_size: small(&case, "page_size"),
            dtype: Some(dtype(text(&case, "dtype"))),
            layers: Some((small(&case, "first_layer"), small(&case, "end_layer"))),
            layout: small(&case, "layout"),
            extent_pages: small(&case, "extent_pages"),
            ..Deployment::default()
        };
        let g = Geometry::preset(text(&case, "name"), deployment).unwrap();
        assert_eq!(g.fingerprint(), digest(text(&case, "fingerprint")), "{g}");

        let kinds: String = g.model().layers.iter().map(|l| if *l == LayerKind::Swa { '1' } else { '0' }).collect();
        assert_eq!(kinds, text(&case, "layers"));
        let shape = |field: &str| {
            let n: Vec<u32> = case[field].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            n.first().map(|_| KvShape { heads: n[0], k_dim: n[1], v_dim: n[2] })
        };
        assert_eq!((g.model().full, g.model().swa), (shape("full"), shape("swa")));
        assert_eq!((g.window(), g.mtp_heads()), (small(&case, "window"), small(&case, "mtp_heads")));
        assert_eq!(g.model().hidden_size, small(&case, "hidden_size"));
    }
}
