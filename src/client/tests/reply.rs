//! The reader of `Get` replies against the generated decoder, however the bytes are cut.

use crate::client::{Breach, Pieces, ReplyParser};
use crate::rpc::frame::{Carrier, PieceHead, put_head, put_message};
use crate::rpc::v1::{GetReply, Miss, MissReason, Piece};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use prost::Message;

/// What was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Piece(PieceHead, Vec<u8>),
    Miss(u32, MissReason),
}

#[derive(Default)]
struct Listener {
    said: Vec<Said>,
    current: Option<(PieceHead, usize, Vec<u8>)>,
}

impl Pieces for Listener {
    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), Breach> {
        assert!(self.current.replace((head, bytes, Vec::new())).is_none(), "the piece before has ended");
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) {
        self.current.as_mut().expect("data within a piece").2.extend_from_slice(bytes);
    }

    fn end(&mut self) -> Result<(), Breach> {
        let (head, bytes, data) = self.current.take().expect("a piece ends once");
        assert_eq!(data.len(), bytes);
        self.said.push(Said::Piece(head, data));
        Ok(())
    }

    fn miss(&mut self, index: u32, reason: MissReason) -> Result<(), Breach> {
        self.said.push(Said::Miss(index, reason));
        Ok(())
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    let data = prop_oneof![Just(0usize), 1usize..200, Just(5000)].prop_map(|n| Bytes::from(vec![0xa5; n]));
    (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>(), any::<Option<u32>>(), data)
        .prop_map(|(index, length, layout, offset, crc32c, data)| Piece { index, length, layout, offset, crc32c, data })
}

fn reply() -> impl Strategy<Value = GetReply> {
    let miss = (any::<u32>(), 0i32..4).prop_map(|(index, reason)| Miss { index, reason });
    (prop::option::weighted(0.7, piece()), prop::collection::vec(miss, 0..3))
        .prop_map(|(piece, misses)| GetReply { piece, misses })
}

/// What a reply means.
fn meaning(reply: &GetReply) -> Vec<Said> {
    let piece = reply.piece.iter().map(|p| {
        let head = PieceHead { index: p.index, length: p.length, layout: p.layout, offset: p.offset, crc32c: p.crc32c };
        Said::Piece(head, p.data.to_vec())
    });
    piece.chain(reply.misses.iter().map(|m| Said::Miss(m.index, m.reason()))).collect()
}

fn feed(bytes: &[u8], cuts: &[usize]) -> Result<Vec<Said>, Breach> {
    let (mut parser, mut listener) = (ReplyParser::default(), Listener::default());
    let mut from = 0;
    let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    for to in cuts.into_iter().chain([bytes.len()]) {
        parser.feed(&bytes[from..to], &mut listener)?;
        from = to;
    }
    match parser.is_between_messages() {
        true => Ok(listener.said),
        false => Err("ends within a message".to_string()),
    }
}

proptest! {
    #[test]
    fn messages_are_read_however_they_are_cut(
        replies in prop::collection::vec(reply(), 0..6),
        cuts in prop::collection::vec(any::<usize>(), 0..40),
    ) {
        let mut bytes = BytesMut::new();
        replies.iter().for_each(|r| put_message(&mut bytes, r));
        prop_assert_eq!(feed(&bytes, &cuts), Ok(replies.iter().flat_map(meaning).collect()));
    }

    #[test]
    fn nodes_heads_are_read_without_waiting(piece in piece(), cuts in prop::collection::vec(any::<usize>(), 0..10)) {
        prop_assume!(!piece.data.is_empty());
        let head = PieceHead { index: piece.index, length: piece.length, layout: piece.layout, offset: piece.offset, crc32c: piece.crc32c };
        let mut bytes = BytesMut::new();
        put_head(&mut bytes, Carrier::GetReply, &head, piece.data.len());
        let before = bytes.len();
        bytes.extend_from_slice(&piece.data);
        prop_assert_eq!(feed(&bytes, &cuts), Ok(vec![Said::Piece(head, piece.data.to_vec())]));
        // As soon as the first byte of data is there, it is passed on.
        let (mut parser, mut listener) = (ReplyParser::default(), Listener::default());
        parser.feed(&bytes[..before + 1], &mut listener).unwrap();
        let passed = listener.current.map_or(0, |(_, _, data)| data.len()) + listener.said.len();
        prop_assert_eq!(passed, 1);
    }

    #[test]
    fn any_bytes_are_read_as_prost_reads_them_or_refused(body in prop::collection::vec(any::<u8>(), 0..80), cut in any::<usize>()) {
        let mut bytes = vec![0, 0, 0, 0, body.len() as u8];
        bytes.extend_from_slice(&body);
        match (feed(&bytes, &[cut]), GetReply::decode(body.as_slice())) {
            (Ok(said), Ok(reply)) => prop_assert_eq!(said, meaning(&reply)),
            (Err(_), Err(_)) => {}
            (said, reply) => prop_assert!(false, "{said:?} and {reply:?}"),
        }
    }
}

#[test]
fn lengths_and_flags_are_bounded() {
    assert!(feed(&[1, 0, 0, 0, 0], &[]).unwrap_err().contains("compression"));
    assert!(feed(&[0, 0xff, 0, 0, 0], &[]).unwrap_err().contains("allowed is at most"));
    assert_eq!(feed(&[0, 0, 0, 0, 0], &[3]), Ok(vec![]));
}
