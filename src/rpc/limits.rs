//! Numbers of the contract that both sides must know. What a node may be configured to refuse is in its `Hello` answer.

/// Versions of the protocol that this code speaks, both included.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;
/// The version of all requests that mean the same in each of them: whoever speaks any of them takes it.
pub const COMMON_VERSION: u32 = *VERSIONS.start();
/// The first version whose answers to `Get` say where the node had a value.
pub const SOURCE_VERSION: u32 = 2;
/// Bytes of a chain key.
pub const KEY_BYTES: usize = 32;
/// Bytes of an object id: a chain key and a part.
pub const ID_BYTES: usize = KEY_BYTES + 1;
/// Parts of one key: bits of a mask.
pub const PARTS: u8 = 64;
/// Bytes of a value that share one CRC32C. No piece crosses a multiple of it.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Shortest piece but for the end of a chunk.
pub const MIN_PIECE_BYTES: usize = 1 << 18;
/// Longest piece.
pub const MAX_PIECE_BYTES: usize = CHUNK_BYTES;
/// Longest value.
pub const MAX_VALUE_BYTES: u64 = 128 << 20;
/// Most keys of one `Exists`.
pub const MAX_KEYS: usize = 32_768;
/// Most objects of one `Get`, `Touch`, `Delete` or `Verify`, and offers of one `Put` that wait for an answer.
pub const MAX_OBJECTS: usize = 8_192;
/// Longest message, protobuf encoding included: a piece, or the longest `Exists` with every key in a run of its own.
pub const MAX_MESSAGE_BYTES: usize = 2 << 20;
/// Longest name of a client in `Hello`.
pub const MAX_CLIENT_BYTES: usize = 256;

/// Pieces of these lengths are answered when `Get` asks for them.
pub const PIECE_BYTES: [u32; 3] = [1 << 18, 1 << 19, 1 << 20];
