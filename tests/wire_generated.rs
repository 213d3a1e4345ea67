//! `src/rpc/gen` is what the generator makes of `proto/`: nobody needs a generator, or protoc, to build.
//!
//! `MIMO_REGENERATE=1 cargo test --test wire_generated` writes it anew.

use protox::prost::Message;
use std::path::Path;

/// The contract, below `proto/`.
const PROTO: &str = "gcache/v1/gcache.proto";

#[test]
fn generated_code_is_that_of_the_contract() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set = protox::compile([PROTO], [root.join("proto")]).expect("the contract compiles");
    let out = std::env::temp_dir().join(format!("mimo-wire-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("a folder for the result");
    let services = tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .bytes(".")
        .out_dir(&out)
        .compile_fds(protox::compile([PROTO], [root.join("proto")]).expect("the contract compiles"));
    services.expect("code for the contract");
    let descriptor = {
        let mut bare = set;
        bare.file.iter_mut().for_each(|f| f.source_code_info = None);
        bare.encode_to_vec()
    };
    let made = [
        ("gcache.v1.rs", std::fs::read(out.join("gcache.v1.rs")).expect("the generator wrote its file")),
        ("descriptor.bin", descriptor),
    ];
    std::fs::remove_dir_all(&out).expect("the folder goes");
    for (name, bytes) in made {
        let path = root.join("src/rpc/gen").join(name);
        if std::env::var_os("MIMO_REGENERATE").is_some() {
            std::fs::write(&path, &bytes).expect("the file can be written");
        }
        let committed = std::fs::read(&path).unwrap_or_default();
        assert!(committed == bytes, "{} is not what proto/ says; MIMO_REGENERATE=1 writes it anew", path.display());
    }
}
