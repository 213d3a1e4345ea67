//! What decides the meaning of a page's bytes, as 32 bytes. The encoding is in `docs/keys.md`.

use super::{Deployment, KvShape, LayerKind, Model};
use sha2::{Digest, Sha256};

struct Fields(Sha256);

impl Fields {
    fn bytes(&mut self, value: &[u8]) {
        self.0.update((value.len() as u32).to_le_bytes());
        self.0.update(value);
    }

    fn number(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// Three numbers in one field, or an empty field.
    fn shape(&mut self, shape: Option<KvShape>) {
        let numbers: Vec<u32> = shape.map(|s| vec![s.heads, s.k_dim, s.v_dim]).unwrap_or_default();
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.bytes(&bytes);
    }
}

/// Fingerprint of a checked model under a checked deployment.
pub(super) fn of(model: &Model, deployment: &Deployment) -> [u8; 32] {
    let mut f = Fields(Sha256::new());
    f.0.update(b"mimo-cache geometry 1");
    f.bytes(model.name.as_bytes());
    let kinds: Vec<u8> = model.layers.iter().map(|l| u8::from(*l == LayerKind::Swa)).collect();
    f.bytes(&kinds);
    let (first, end) = deployment.layers.unwrap_or((0, model.layers.len() as u32));
    f.number(first);
    f.number(end);
    f.shape(model.full);
    f.shape(model.swa);
    f.number(model.window_keys.saturating_sub(1));
    f.number(model.mtp_heads);
    f.number(model.hidden_size);
    f.bytes(deployment.dtype.unwrap_or(model.dtype).to_string().as_bytes());
    f.number(deployment.page_size);
    f.number(deployment.layout);
    f.number(deployment.extent_pages);
    f.0.finalize().into()
}
