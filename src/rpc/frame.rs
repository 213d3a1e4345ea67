//! Pieces as gRPC messages without copying their bytes: the head of a message is made here, the bytes follow as they are.
//!
//! A generated message would be encoded into a buffer of its own, one more pass over every value. What this makes is byte
//! for byte what the generated code would make; the tests compare.

use super::check::{self, Checked};
use super::v1::Piece;
use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// A field of a message that holds a [`Piece`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// `GetReply.piece`.
    GetReply,
    /// `PutRequest.piece`.
    PutRequest,
}

impl Carrier {
    fn field(self) -> u32 {
        match self {
            Carrier::GetReply => 2,
            Carrier::PutRequest => 5,
        }
    }
}

/// A piece but for its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PieceHead {
    /// As in the contract.
    pub index: u32,
    /// As in the contract.
    pub length: u64,
    /// As in the contract.
    pub layout: u32,
    /// As in the contract.
    pub offset: u64,
    /// As in the contract.
    pub crc32c: Option<u32>,
    /// As in the contract: a number that may be no [`Source`](super::v1::Source).
    pub source: i32,
}

impl PieceHead {
    /// That of a piece.
    pub fn of(piece: &Piece) -> PieceHead {
        let Piece { index, length, layout, offset, crc32c, source, .. } = *piece;
        PieceHead { index, length, layout, offset, crc32c, source }
    }
}

/// Field number of the check in every message.
const CHECK_FIELD: u32 = 1;
/// Bytes of the check with its tag.
const CHECK_BYTES: usize = 5;
/// Field number of `Piece.data`.
const DATA_FIELD: u32 = 15;
/// Most bytes of a head: gRPC's prefix, the check, two tags with lengths, and the fields.
const MOST_HEAD_BYTES: usize = 72;

/// Appends everything of a length-prefixed gRPC message that comes before the piece's `data_len` bytes. `seed` is that of the
/// message's check.
pub fn put_head(out: &mut BytesMut, carrier: Carrier, head: &PieceHead, data_len: usize, seed: u32) {
    let check = match carrier {
        Carrier::GetReply => check::of_get_piece(head, data_len, seed),
        Carrier::PutRequest => check::of_put_piece(head, data_len, seed),
    };
    let fields = Piece {
        index: head.index,
        length: head.length,
        layout: head.layout,
        offset: head.offset,
        crc32c: head.crc32c,
        source: head.source,
        data: Bytes::new(),
    };
    let data = key_len(DATA_FIELD) + encoded_len_varint(data_len as u64) + data_len;
    let piece = prost::Message::encoded_len(&fields) + data;
    let message = CHECK_BYTES + key_len(carrier.field()) + encoded_len_varint(piece as u64) + piece;
    out.reserve(MOST_HEAD_BYTES);
    out.put_u8(0);
    out.put_u32(message as u32);
    encode_key(CHECK_FIELD, WireType::ThirtyTwoBit, out);
    out.put_u32_le(check);
    encode_key(carrier.field(), WireType::LengthDelimited, out);
    encode_varint(piece as u64, out);
    prost::Message::encode_raw(&fields, out);
    encode_key(DATA_FIELD, WireType::LengthDelimited, out);
    encode_varint(data_len as u64, out);
}

/// Seals a message and appends it with gRPC's prefix.
pub fn put_sealed(out: &mut BytesMut, mut message: impl Checked, seed: u32) {
    check::seal(&mut message, seed);
    put_message(out, &message);
}

/// Appends a whole message with gRPC's prefix.
pub fn put_message(out: &mut BytesMut, message: &impl prost::Message) {
    let len = message.encoded_len();
    out.reserve(5 + len);
    out.put_u8(0);
    out.put_u32(len as u32);
    message.encode_raw(out);
}

#[cfg(test)]
mod tests {
    use super::super::v1::{GetReply, PutRequest};
    use super::*;
    use prost::Message;

    #[test]
    fn a_head_and_its_bytes_are_what_the_generated_code_makes() {
        let heads = [
            PieceHead::default(),
            PieceHead { index: 3, length: 1 << 27, layout: 7, offset: 0, crc32c: None, source: 2 },
            PieceHead {
                index: u32::MAX,
                length: u64::MAX,
                layout: u32::MAX,
                offset: u64::MAX,
                crc32c: Some(u32::MAX),
                source: -1,
            },
            PieceHead { index: 0, length: 0, layout: 0, offset: 1 << 20, crc32c: Some(0), source: 1 },
        ];
        for head in heads {
            for len in [1, 127, 128, 16_384, 1 << 20] {
                let data = Bytes::from(vec![0xa5; len]);
                let PieceHead { index, length, layout, offset, crc32c, source } = head;
                let piece = Piece { index, length, layout, offset, crc32c, source, data: data.clone() };
                let mut reply = GetReply { piece: Some(piece.clone()), ..GetReply::default() };
                let mut request = PutRequest { piece: Some(piece), ..PutRequest::default() };
                check::seal(&mut reply, 7);
                check::seal(&mut request, 7);
                let messages =
                    [(Carrier::GetReply, reply.encode_to_vec()), (Carrier::PutRequest, request.encode_to_vec())];
                for (carrier, message) in messages {
                    let mut made = BytesMut::new();
                    put_head(&mut made, carrier, &head, len, 7);
                    assert!(made.len() <= MOST_HEAD_BYTES, "{} bytes", made.len());
                    made.extend_from_slice(&data);
                    assert_eq!(made[..5], [&[0][..], &(message.len() as u32).to_be_bytes()].concat());
                    assert!(made[5..] == message, "{carrier:?} {head:?} {len}");
                }
            }
        }
    }
}
