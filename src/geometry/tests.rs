//! The figures of the models, to the byte.

use super::*;

fn preset(name: &str) -> Geometry {
    Geometry::preset(name, Deployment::default()).unwrap()
}

fn on_rank(name: &str, tp_size: u32, tp_rank: u32) -> Geometry {
    Geometry::preset(name, Deployment { tp_size, tp_rank, ..Deployment::default() }).unwrap()
}

fn stage(name: &str, first: u32, end: u32) -> Geometry {
    Geometry::preset(name, Deployment { layers: Some((first, end)), ..Deployment::default() }).unwrap()
}

/// Layers full / SWA / MTP; bytes per token of the full group, the SWA layers, the MTP heads, the hidden state; bytes of
/// a checkpoint's SWA and MTP part in 1/16 MiB; tokens of full KV it costs; bytes per token with every layer stored.
#[test]
fn figures_of_the_models() {
    type Row = (&'static str, [u32; 3], [u64; 4], [u64; 2], u64, u64);
    let flash = |name| -> Row { (name, [9, 39, 3], [23_040, 199_680, 15_360, 8_192], [390, 30], 1_109, 222_720) };
    let rows = [
        flash("mimo-v2-flash"),
        flash("mimo-v2.5"),
        ("mimo-v2.5-pro", [10, 60, 3], [51_200, 307_200, 15_360, 12_288], [600, 30], 768, 358_400),
    ];
    for (name, layers, tokens, checkpoint, in_full, trunk) in rows {
        let g = preset(name);
        let (full, swa) = (g.full().unwrap(), g.swa().unwrap());
        assert_eq!([full.layers, swa.layers, swa.mtp_layers], layers, "{name}");
        let got = [full.token_bytes(), swa.trunk_token_bytes(), swa.mtp_token_bytes(), g.hidden_token_bytes()];
        assert_eq!(got, tokens, "{name}");
        assert_eq!(g.window(), 128);
        // 390/16 = 24.4 MiB, 600/16 = 37.5 MiB, 30/16 = 1.9 MiB.
        assert_eq!([g.checkpoint_bytes(), g.checkpoint_mtp_bytes()], checkpoint.map(|x| x << 16), "{name}");
        assert_eq!(g.checkpoint_in_full_tokens(), Some(in_full), "{name}");
        assert_eq!(g.trunk_token_bytes(), trunk, "{name}");
        assert_eq!(swa.token_bytes(), tokens[1] + tokens[2]);
    }
}

/// 1M tokens take 22.5 GiB of full KV against 217 GiB with every layer stored, and 50 against 350 in Pro.
#[test]
fn a_million_tokens() {
    for (name, hybrid, everything) in [("mimo-v2.5", 22.5, 217.5), ("mimo-v2.5-pro", 50.0, 350.0)] {
        let g = preset(name);
        let gib = |bytes: u64| (bytes << 20) as f64 / (1u64 << 30) as f64;
        assert_eq!(gib(g.full().unwrap().token_bytes()), hybrid, "{name}");
        assert_eq!(gib(g.trunk_token_bytes()), everything, "{name}");
    }
}

/// A page of 64 tokens on one of 8 ranks. 4 KV heads on 8 ranks: each head is on two of them, so a rank holds
/// 0.37 MB, and 0.18 MB are its part if every byte were kept once.
#[test]
fn pages_on_one_of_eight_ranks() {
    let g = on_rank("mimo-v2.5", 8, 5);
    let (full, swa) = (g.full().unwrap(), g.swa().unwrap());
    assert_eq!((full.shards(), full.replication(), full.rank_heads()), (4, 2, 2..3));
    assert_eq!((swa.shards(), swa.replication(), swa.rank_heads()), (8, 1, 5..6));
    assert_eq!(full.rank_page_bytes(), 368_640);
    assert_eq!(full.page_bytes() / 8, 184_320);
    assert_eq!(swa.rank_page_bytes(), 1_720_320);
    assert_eq!(g.rank_hidden_page_bytes(), 8_192 / 8 * 64);

    let g = on_rank("mimo-v2.5-pro", 8, 0);
    assert_eq!(g.full().unwrap().rank_page_bytes(), 409_600);
    assert_eq!(g.swa().unwrap().rank_page_bytes(), 2_580_480);
    // The hidden state adds 3.8 %.
    assert_eq!(g.rank_hidden_page_bytes(), 98_304);
    assert_eq!(g.rank_hidden_page_bytes() * 1000 / g.swa().unwrap().rank_page_bytes(), 38);
}

#[test]
fn ranks_hold_every_head_equally_often() {
    for tp_size in [1, 2, 4, 8, 16, 32] {
        for (kv_heads, pick) in [(4, Geometry::full as fn(&Geometry) -> Option<KvGroup>), (8, Geometry::swa)] {
            let mut held = vec![0; kv_heads];
            let mut bytes = 0;
            for rank in 0..tp_size {
                let group = pick(&on_rank("mimo-v2.5", tp_size, rank)).unwrap();
                group.rank_heads().for_each(|h| held[h as usize] += 1);
                bytes += group.rank_page_bytes();
            }
            let group = pick(&on_rank("mimo-v2.5", tp_size, 0)).unwrap();
            assert_eq!(held, vec![group.replication(); kv_heads], "{tp_size} ranks");
            assert_eq!(bytes, group.page_bytes() * u64::from(group.replication()), "{tp_size} ranks");
        }
    }
}

/// MTP heads and hidden state are on the last stage; the stages' pages add up to the whole model's.
#[test]
fn pipeline_stages_add_up() {
    let whole = preset("mimo-v2.5-pro");
    let stages = [stage("mimo-v2.5-pro", 0, 1), stage("mimo-v2.5-pro", 1, 40), stage("mimo-v2.5-pro", 40, 70)];
    let sum = |f: fn(&Geometry) -> u64| stages.iter().map(f).sum::<u64>();
    assert_eq!(sum(Geometry::stored_full_page_bytes), whole.stored_full_page_bytes());
    assert_eq!(sum(Geometry::stored_swa_page_bytes), whole.stored_swa_page_bytes());
    assert_eq!(sum(Geometry::hidden_page_bytes), whole.hidden_page_bytes());
    assert_eq!(stages.iter().map(Geometry::hidden_token_bytes).collect::<Vec<_>>(), [0, 0, 12_288]);
    assert_eq!(stages[0].swa(), None);
    assert_eq!(stages[0].full().unwrap().layers, 1);
    // The last layer alone is a full one; its stage still holds the MTP heads in the SWA group.
    let last = stage("mimo-v2.5-pro", 69, 70).swa().unwrap();
    assert_eq!((last.layers, last.mtp_layers), (0, 3));
}

#[test]
fn scales_of_fp8_are_counted_where_they_live() {
    let with = |dtype: &str| {
        let d = Deployment { dtype: Some(dtype.parse().unwrap()), ..Deployment::default() };
        let g = Geometry::preset("mimo-v2.5-pro", d).unwrap();
        (g.full().unwrap().token_bytes(), g.full().unwrap().page_bytes(), g.hidden_token_bytes())
    };
    // 10 layers x 8 heads: 320 elements, and one fp32 scale for each of K and V.
    assert_eq!(with("bf16"), (51_200, 51_200 * 64, 12_288));
    assert_eq!(with("fp16"), with("bf16"));
    assert_eq!(with("fp32"), (102_400, 102_400 * 64, 24_576));
    assert_eq!(with("fp8"), (25_600, 25_600 * 64, 12_288));
    assert_eq!(with("fp8_e5m2:token"), (25_600 + 640, (25_600 + 640) * 64, 12_288));
    assert_eq!(with("fp8_e4m3:page"), (25_600, 25_600 * 64 + 640, 12_288));
}

#[test]
fn dtype_names_round_trip_and_others_are_refused() {
    for name in ["bf16", "fp16", "fp32", "fp8_e4m3:model", "fp8_e4m3:token", "fp8_e5m2:page"] {
        assert_eq!(name.parse::<KvDtype>().unwrap().to_string(), name);
    }
    assert_eq!("torch.bfloat16".parse::<KvDtype>().unwrap(), KvDtype::Bf16);
    for name in ["", "int8", "bf16:page", "fp8:", "fp8:nowhere", "fp8_e4m3:page:page"] {
        let message = name.parse::<KvDtype>().unwrap_err().to_string();
        assert!(message.starts_with("config: dtype is \"") && message.contains("allowed is bf16"), "{message}");
    }
}

#[test]
fn uniform_has_no_swa_group() {
    let g = preset("uniform");
    assert_eq!((g.swa(), g.window(), g.window_keys(), g.mtp_heads()), (None, 0, 0, 0));
    assert_eq!(g.full().unwrap().token_bytes(), 32 * 8 * 256 * 2);
    assert_eq!((g.stored_swa_page_bytes(), g.checkpoint_bytes(), g.hidden_token_bytes()), (0, 0, 0));
}

#[test]
fn presets_by_any_case_and_no_other() {
    assert_eq!(preset("MiMo_V2_Flash").model().name, "mimo-v2-flash");
    assert!(PRESETS.iter().all(|name| preset(name).model().name == *name));
    let message = Geometry::preset("mimo", Deployment::default()).unwrap_err().to_string();
    assert_eq!(message, "config: preset is \"mimo\", allowed is mimo-v2-flash, mimo-v2.5, mimo-v2.5-pro, uniform");
}

/// What makes a page's bytes mean something else is in the fingerprint; who holds which part of them is not.
#[test]
fn fingerprint_follows_meaning_and_not_ranks() {
    let base = Deployment::default();
    let of = |d: &Deployment| Geometry::preset("mimo-v2.5-pro", d.clone()).unwrap().fingerprint();
    for (tp_size, tp_rank) in [(2, 0), (8, 7), (16, 3)] {
        assert_eq!(of(&Deployment { tp_size, tp_rank, ..base.clone() }), of(&base));
    }
    assert_eq!(of(&Deployment { layers: Some((0, 70)), ..base.clone() }), of(&base));
    let mut seen = vec![of(&base)];
    let others = [
        Deployment { page_size: 32, ..base.clone() },
        Deployment { layers: Some((0, 69)), ..base.clone() },
        Deployment { layers: Some((1, 70)), ..base.clone() },
        Deployment { layout: 2, ..base.clone() },
        Deployment { extent_pages: 8, ..base.clone() },
        Deployment { dtype: Some(KvDtype::Fp16), ..base.clone() },
        Deployment { dtype: Some(KvDtype::Fp8(Fp8::E4m3, Scales::Model)), ..base.clone() },
        Deployment { dtype: Some(KvDtype::Fp8(Fp8::E4m3, Scales::Token)), ..base.clone() },
    ];
    seen.extend(others.iter().map(of));
    let model = preset("mimo-v2.5-pro").model().clone();
    let swa = model.swa.unwrap();
    let models = [
        Model { name: "another".into(), ..model.clone() },
        Model { window_keys: 128, ..model.clone() },
        Model { mtp_heads: 2, ..model.clone() },
        Model { hidden_size: 4096, ..model.clone() },
        Model { swa: Some(KvShape { heads: 4, ..swa }), ..model.clone() },
        Model { full: Some(KvShape { k_dim: 128, v_dim: 192, ..swa }), ..model.clone() },
        Model { layers: model.layers.iter().rev().copied().skip(1).collect(), ..model.clone() },
    ];
    seen.extend(models.into_iter().map(|m| Geometry::new(m, base.clone()).unwrap().fingerprint()));
    seen.push(preset("mimo-v2.5").fingerprint());
    seen.push(preset("mimo-v2-flash").fingerprint());
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
}

#[test]
fn deployments_out_of_range_are_refused_with_the_value() {
    let base = Deployment::default();
    let cases = [
        (Deployment { page_size: 0, ..base.clone() }, "page_size is 0, allowed is a power of two from 1 to 1024"),
        (Deployment { page_size: 48, ..base.clone() }, "page_size is 48, allowed"),
        (Deployment { page_size: 2048, ..base.clone() }, "page_size is 2048, allowed"),
        (Deployment { page_size: u32::MAX, ..base.clone() }, "page_size is 4294967295, allowed"),
        (Deployment { tp_size: 0, ..base.clone() }, "tp_size is 0, allowed is a whole number from 1 to 1024"),
        (Deployment { tp_size: 3, ..base.clone() }, "tp_size is 3, allowed is a divisor or a multiple of the 4 KV"),
        (Deployment { tp_size: 8, tp_rank: 8, ..base.clone() }, "tp_rank is 8, allowed is a whole number from 0 to 7"),
        (Deployment { layers: Some((3, 3)), ..base.clone() }, "layer range is (3, 3), allowed is first < end <= 48"),
        (Deployment { layers: Some((0, 49)), ..base.clone() }, "layer range is (0, 49), allowed"),
        (Deployment { layout: 0, ..base.clone() }, "layout is 0, allowed"),
        (Deployment { extent_pages: 0, ..base.clone() }, "extent_pages is 0, allowed"),
    ];
    for (deployment, message) in cases {
        let got = Geometry::preset("mimo-v2.5", deployment).unwrap_err().to_string();
        assert!(got.starts_with(&format!("config: {message}")), "{got}");
    }
}

/// The largest shapes allowed stay far from overflow (this build checks arithmetic).
#[test]
fn largest_figures_do_not_overflow() {
    let shape = Some(KvShape { heads: MAX_HEADS, k_dim: MAX_HEAD_DIM, v_dim: MAX_HEAD_DIM });
    let mut layers = vec![LayerKind::Swa; MAX_LAYERS as usize];
    layers[0] = LayerKind::Full;
    let model = Model {
        name: "largest".into(),
        layers,
        full: shape,
        swa: shape,
        window_keys: MAX_WINDOW + 1,
        mtp_heads: MAX_MTP,
        hidden_size: MAX_HIDDEN,
        dtype: KvDtype::Fp32,
    };
    let d = Deployment { page_size: MAX_PAGE, ..Deployment::default() };
    let g = Geometry::new(model.clone(), d.clone()).unwrap();
    assert!(g.stored_swa_page_bytes() > 1 << 49 && g.checkpoint_bytes() > 1 << 58);
    assert_eq!(g.checkpoint_pages(), MAX_WINDOW / MAX_PAGE);
    for (wrong, message) in [
        (Model { window_keys: MAX_WINDOW + 2, ..model.clone() }, "window_keys is 1048578"),
        (Model { window_keys: 0, ..model.clone() }, "window_keys is 0"),
        (Model { mtp_heads: 9, ..model.clone() }, "mtp_heads is 9"),
        (Model { hidden_size: 0, ..model.clone() }, "hidden_size is 0"),
        (Model { layers: vec![], ..model.clone() }, "number of layers is 0"),
        (Model { layers: vec![LayerKind::Full; 1025], ..model.clone() }, "number of layers is 1025"),
        (Model { layers: vec![LayerKind::Full], ..model.clone() }, "mtp_heads is 8, allowed is 0 for a model without"),
        (Model { swa: None, ..model.clone() }, "KV shape of the SWA layers is missing"),
        (Model { name: String::new(), ..model.clone() }, "model name is 0 bytes long"),
    ] {
        let got = Geometry::new(wrong, d.clone()).unwrap_err().to_string();
        assert!(got.starts_with(&format!("config: {message}")), "{got}");
    }
}

#[test]
fn display_is_one_sentence_for_people() {
    assert_eq!(
        on_rank("mimo-v2.5-pro", 8, 3).to_string(),
        "mimo-v2.5-pro: layers 0 to 70 (10 full, 60 SWA, 3 MTP), W 128, bf16, pages of 64 tokens, rank 3 of 8"
    );
}
