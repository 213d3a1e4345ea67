//! Messages of the wire contract. The first byte says which: requests as the node decodes them, messages of the same-host
//! path, or a stream of replies as the client reads them, cut anywhere.
#![no_main]

use mimo_cache::rpc::check;
use mimo_cache::rpc::frame::PieceHead;
use mimo_cache::rpc::limits::MAX_OBJECTS;
use mimo_cache::rpc::pieces::{Pieces, PiecesReader};
use mimo_cache::rpc::v1::{DeleteRequest, ExistsRequest, GetReply, GetRequest, MissReason, PutRequest};
use mimo_cache::rpc::{fast, ids};
use prost::Message;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&first, bytes)) = data.split_first() else { return };
    match first % 8 {
        0 => {
            if let Some(request) = same_when_encoded::<PutRequest>(bytes) {
                for offer in &request.offers {
                    let _ = ids::object(&offer.id);
                }
            }
        }
        1 => {
            if let Some(request) = same_when_encoded::<GetRequest>(bytes) {
                objects(&request.runs);
            }
        }
        2 => {
            if let Some(request) = same_when_encoded::<ExistsRequest>(bytes) {
                let found = ids::keys(&request.runs, MAX_OBJECTS).unwrap_or_default();
                assert!(found.len() <= MAX_OBJECTS);
            }
        }
        3 => {
            if let Some(request) = same_when_encoded::<DeleteRequest>(bytes) {
                objects(&request.runs);
            }
        }
        4 => {
            // A rest that is no whole object never gets here, and the unused bytes of one are not looked at.
            if let Ok(asks) = fast::asks(bytes) {
                let mut again = Vec::new();
                asks.iter().for_each(|(key, part)| fast::put_ask(&mut again, key, *part));
                assert_eq!(again.len(), bytes.len() / fast::ASK_BYTES * fast::ASK_BYTES);
                assert_eq!(fast::asks(&again), Ok(asks));
            }
        }
        _ => {
            let stream = sealed(bytes);
            let whole = read(&stream, stream.len().max(1));
            let cut = read(&stream, usize::from(first / 8) + 1);
            assert_eq!(whole, cut, "a stream means the same however it is cut");
        }
    }
});

/// A stream of messages from lengths and bodies, each with the check that belongs to it: nobody finds one by chance.
fn sealed(mut bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (body, rest) = rest.split_at(rest.len().min(length.into()));
        let check = GetReply::decode(body).map_or(0, |reply| check::of(&reply, check::FIRST));
        stream.push(0);
        stream.extend_from_slice(&(body.len() as u32 + 5).to_be_bytes());
        stream.push(0x0d);
        stream.extend_from_slice(&check.to_le_bytes());
        stream.extend_from_slice(body);
        bytes = rest;
    }
    stream
}

fn objects(runs: &[mimo_cache::rpc::v1::ObjectRun]) {
    let found = ids::objects(runs, MAX_OBJECTS).unwrap_or_default();
    assert!(found.len() <= MAX_OBJECTS && found.iter().all(|(_, part)| *part < 64));
}

/// What is decoded and encoded again means the same.
fn same_when_encoded<M: Message + Default + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    assert!(M::decode(message.encode_to_vec().as_slice()).is_ok_and(|again| again == message));
    Some(message)
}

/// What a stream said, with the data of a piece in one, and how it ended.
fn read(bytes: &[u8], cut: usize) -> (Seen, Result<bool, String>) {
    let (mut seen, mut reader) = (Seen::default(), PiecesReader::of_answers(check::FIRST));
    for part in bytes.chunks(cut) {
        if let Err(error) = reader.feed(part, &mut seen) {
            return (seen, Err(error));
        }
    }
    (seen, Ok(reader.is_between_messages()))
}

#[derive(Debug, Default, PartialEq)]
struct Seen {
    pieces: Vec<(PieceHead, usize, Vec<u8>, bool)>,
    misses: Vec<(u32, MissReason)>,
}

impl Pieces for Seen {
    type Message = GetReply;
    type Error = String;

    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), String> {
        self.pieces.push((head, bytes, Vec::new(), false));
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) {
        let piece = self.pieces.last_mut().expect("data belongs to a piece");
        piece.2.extend_from_slice(bytes);
        assert!(piece.2.len() <= piece.1);
    }

    fn end(&mut self) -> Result<(), String> {
        let piece = self.pieces.last_mut().expect("an end belongs to a piece");
        assert!(piece.2.len() == piece.1 && !piece.3);
        piece.3 = true;
        Ok(())
    }

    fn message(&mut self, message: GetReply, _: u32) -> Result<(), String> {
        self.misses.extend(message.misses.iter().map(|miss| (miss.index, miss.reason())));
        Ok(())
    }
}
