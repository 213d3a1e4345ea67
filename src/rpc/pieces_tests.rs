//! The reader of pieces against the generated decoder, however the bytes are cut.

use super::{Pieces, PiecesReader, hold};
use crate::rpc::check;
use crate::rpc::frame::{Carrier, PieceHead, put_head, put_message, put_sealed};
use crate::rpc::v1::{GetReply, Miss, MissReason, Piece};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use prost::Message;

/// Check of the request that is answered.
const SEED: u32 = 0x0bad_5eed;

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
    type Message = GetReply;
    type Error = String;

    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), String> {
        assert!(self.current.replace((head, bytes, Vec::new())).is_none(), "the piece before has ended");
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) {
        self.current.as_mut().expect("data within a piece").2.extend_from_slice(bytes);
    }

    fn end(&mut self) -> Result<(), String> {
        let (head, bytes, data) = self.current.take().expect("a piece ends once");
        assert_eq!(data.len(), bytes);
        self.said.push(Said::Piece(head, data));
        Ok(())
    }

    fn message(&mut self, message: GetReply, _: u32) -> Result<(), String> {
        self.said.extend(message.misses.iter().map(|miss| Said::Miss(miss.index, miss.reason())));
        Ok(())
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    let data = prop_oneof![Just(0usize), 1usize..200, Just(5000)].prop_map(|n| Bytes::from(vec![0xa5; n]));
    let source = prop_oneof![Just(0), 0..4, any::<i32>()];
    (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>(), any::<Option<u32>>(), source, data).prop_map(
        |(index, length, layout, offset, crc32c, source, data)| Piece {
            index,
            length,
            layout,
            offset,
            crc32c,
            source,
            data,
        },
    )
}

fn reply() -> impl Strategy<Value = GetReply> {
    let miss = (any::<u32>(), 0i32..4).prop_map(|(index, reason)| Miss { index, reason });
    (prop::option::weighted(0.7, piece()), prop::collection::vec(miss, 0..3)).prop_map(|(piece, misses)| GetReply {
        piece,
        misses,
        ..GetReply::default()
    })
}

/// What a reply means.
fn meaning(reply: &GetReply) -> Vec<Said> {
    let piece = reply.piece.iter().map(|p| Said::Piece(PieceHead::of(p), p.data.to_vec()));
    reply.misses.iter().map(|m| Said::Miss(m.index, m.reason())).chain(piece).collect()
}

fn feed(bytes: &[u8], cuts: &[usize]) -> Result<Vec<Said>, String> {
    let (mut reader, mut listener) = (PiecesReader::of_answers(SEED), Listener::default());
    let mut from = 0;
    let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    for to in cuts.into_iter().chain([bytes.len()]) {
        reader.feed(&bytes[from..to], &mut listener)?;
        from = to;
    }
    match reader.is_between_messages() {
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
        replies.iter().for_each(|r| put_sealed(&mut bytes, r.clone(), SEED));
        prop_assert_eq!(feed(&bytes, &cuts), Ok(replies.iter().flat_map(meaning).collect()));
    }

    #[test]
    fn nodes_heads_are_read_without_waiting(piece in piece(), cuts in prop::collection::vec(any::<usize>(), 0..10)) {
        prop_assume!(!piece.data.is_empty());
        let head = PieceHead::of(&piece);
        let mut bytes = BytesMut::new();
        put_head(&mut bytes, Carrier::GetReply, &head, piece.data.len(), SEED);
        let before = bytes.len();
        bytes.extend_from_slice(&piece.data);
        prop_assert_eq!(feed(&bytes, &cuts), Ok(vec![Said::Piece(head, piece.data.to_vec())]));
        // As soon as the first byte of data is there, it is passed on.
        let (mut reader, mut listener) = (PiecesReader::of_answers(SEED), Listener::default());
        reader.feed(&bytes[..before + 1], &mut listener).unwrap();
        let passed = listener.current.map_or(0, |(_, _, data)| data.len()) + listener.said.len();
        prop_assert_eq!(passed, 1);
    }

    #[test]
    fn any_bytes_are_read_as_prost_reads_them_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..80),
        first in any::<bool>(),
        cut in any::<usize>(),
    ) {
        // With a check that fits, before the rest or after it.
        let check = GetReply::decode(body.as_slice()).map_or(0, |reply| check::of(&reply, SEED));
        let field = [&[0x0d][..], &check.to_le_bytes()].concat();
        let body = if first { [field, body].concat() } else { [body, field].concat() };
        let mut bytes = vec![0, 0, 0, 0, body.len() as u8];
        bytes.extend_from_slice(&body);
        let decoded = GetReply::decode(body.as_slice()).map_err(|e| e.to_string());
        let decoded = decoded.and_then(|r| check::verify(&r, SEED).map(|_| r).map_err(|e| e.to_string()));
        match (feed(&bytes, &[cut]), decoded) {
            (Ok(said), Ok(reply)) => prop_assert_eq!(said, meaning(&reply)),
            (Err(_), Err(_)) => {}
            (said, reply) => prop_assert!(false, "{said:?} and {reply:?}"),
        }
    }

    #[test]
    fn a_flip_never_gives_another_meaning(reply in reply(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let mut bytes = BytesMut::new();
        put_sealed(&mut bytes, reply.clone(), SEED);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // The bytes of a piece are under a CRC of their own.
        let names = |said: Vec<Said>| -> Vec<Said> {
            said.into_iter().map(|s| if let Said::Piece(head, data) = s { Said::Piece(head, vec![0; data.len()]) } else { s }).collect()
        };
        if let Ok(said) = feed(&bytes, &[]) {
            prop_assert_eq!(names(said), names(meaning(&reply)));
        }
    }

    #[test]
    fn an_answer_to_another_request_is_refused(reply in reply(), other in any::<u32>()) {
        prop_assume!(other != SEED);
        let mut bytes = BytesMut::new();
        put_sealed(&mut bytes, reply, other);
        prop_assert!(feed(&bytes, &[]).unwrap_err().contains("altered on their way"));
    }
}

#[test]
fn lengths_and_flags_are_bounded() {
    assert!(feed(&[1, 0, 0, 0, 0], &[]).unwrap_err().contains("compression"));
    assert!(feed(&[0, 0xff, 0, 0, 0], &[]).unwrap_err().contains("allowed is at most"));
    assert!(feed(&[0, 0, 0, 0, 0], &[3]).unwrap_err().contains("has no check"));
    let mut bytes = BytesMut::new();
    put_message(&mut bytes, &GetReply::default());
    assert!(feed(&bytes, &[]).unwrap_err().contains("has no check"));
}

#[test]
fn bytes_that_are_held_take_memory_as_they_come_and_never_more_than_was_said() {
    const SAID: usize = 2 << 20;
    let (mut held, part) = (Vec::new(), [7u8; 1000]);
    while held.len() < SAID {
        let mut bytes = &part[..];
        hold(&mut held, &mut bytes, SAID);
        assert!(held.capacity() <= (2 * held.len()).min(SAID), "{} of {}", held.capacity(), held.len());
        assert_eq!(bytes.len(), if held.len() == SAID { part.len() - SAID % part.len() } else { 0 });
    }
    let mut more = &part[..];
    hold(&mut held, &mut more, SAID);
    assert_eq!((held.len(), more.len()), (SAID, part.len()));
}
