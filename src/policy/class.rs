//! Classes: what was known of the request that used an id last. Reuse is learnt for each class by itself, with the class
//! above it as prior, so that few parameters are enough and a rare class behaves like the common one.
//!
//! The end of a prompt is classed by the turn of its session, by how much of the prompt was new, and by the time since
//! the turn before. Whatever several prompts went through is classed by how often they parted there; checkpoints that
//! are no fresh end by what became of them.

/// Everything about leaves.
pub const LEAVES: u16 = 0;
/// Nodes where prompts parted: once, 2 to 3 times, up to 32 and more.
pub const SHARED: u16 = 1;
/// Ends of prompts.
pub const ENDS: u16 = 7;
/// Ends by turn and new tokens.
pub const TURNS: u16 = 8;
/// Ends by turn, new tokens and the time since the turn before.
pub const GAPS: u16 = TURNS + TURN_STEPS * NEW_STEPS;
/// Everything about checkpoints that are no fresh ends.
pub const CHECKPOINTS: u16 = GAPS + TURN_STEPS * NEW_STEPS * GAP_STEPS;
/// The end before the newest one of its session.
pub const PASSED: u16 = CHECKPOINTS + 1;
/// An end further up.
pub const PASSED_AGAIN: u16 = CHECKPOINTS + 2;
/// Kept where a lookup saw full KV without a window; not matched yet.
pub const BRANCH: u16 = CHECKPOINTS + 3;
/// Kept every so many tokens; not matched yet.
pub const STRIDE: u16 = CHECKPOINTS + 4;
/// Matched several times: 2, 3 to 4, up to 33 and more.
pub const MATCHED: u16 = CHECKPOINTS + 5;
/// Number of classes.
pub const COUNT: u16 = MATCHED + 6;

const TURN_STEPS: u16 = 4;
const NEW_STEPS: u16 = 4;
const GAP_STEPS: u16 = 9;

/// The class above, with more to learn from; a class that stands for all is its own.
pub fn parent(class: u16) -> u16 {
    match class {
        LEAVES | CHECKPOINTS => class,
        ENDS => LEAVES,
        c if c < ENDS => LEAVES,
        c if c < GAPS => ENDS,
        c if c < CHECKPOINTS => TURNS + (c - GAPS) / GAP_STEPS,
        _ => CHECKPOINTS,
    }
}

/// The end of a prompt: turn from 1, new tokens, and the time since the turn before (in units of time) if there was one.
pub fn end(turn: u16, new: u64, gap: Option<u64>) -> u16 {
    let gap = gap.map_or(0, |g| 1 + (bits(g) / 2).min(GAP_STEPS - 2));
    GAPS + turn_and_new(turn, new) * GAP_STEPS + gap
}

/// The same by turn alone.
pub fn turn(turn: u16) -> u16 {
    TURNS + turn_and_new(turn, 0)
}

fn turn_and_new(turn: u16, new: u64) -> u16 {
    let turn = turn.clamp(1, TURN_STEPS) - 1;
    // Below 256 tokens, 1,024, 4,096, and above.
    let new = (bits(new).saturating_sub(7) / 2).min(NEW_STEPS - 1);
    turn * NEW_STEPS + new
}

/// A place where prompts parted `times` times.
pub fn shared(times: u8) -> u16 {
    SHARED + (bits(u64::from(times.max(1))) - 1).min(5)
}

/// A checkpoint that was matched `times` times, 2 or more.
pub fn matched(times: u16) -> u16 {
    MATCHED + (bits(u64::from(times.max(2)) - 1) - 1).min(5)
}

/// True for the end of a prompt that no later turn went on from.
pub fn is_fresh_end(class: u16) -> bool {
    (ENDS..CHECKPOINTS).contains(&class)
}

/// True for a checkpoint that is there in case the deeper ones go.
pub fn is_spare(class: u16) -> bool {
    matches!(class, PASSED | PASSED_AGAIN | STRIDE)
}

/// True for a checkpoint that nothing has gone on from yet and that is no end, or that is there in case others go.
pub fn is_in_case(class: u16) -> bool {
    is_spare(class) || class == BRANCH
}

/// Bits of a number, 0 for 0.
fn bits(n: u64) -> u16 {
    (64 - n.leading_zeros()) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_parent_before_it_or_is_its_own() {
        for class in 0..COUNT {
            let above = parent(class);
            assert!(above < class || above == class && [LEAVES, CHECKPOINTS].contains(&class), "{class}: {above}");
        }
    }

    #[test]
    fn steps_are_where_they_are_said_to_be() {
        assert_eq!(end(1, 0, None), GAPS);
        assert_eq!(end(1, 127, None), end(1, 255, None));
        assert!(end(1, 255, None) < end(1, 256, None) && end(1, 1023, None) < end(1, 1024, None));
        assert!(end(1, 4095, None) < end(1, 4096, None));
        assert_eq!(end(1, 4096, None), end(1, u64::MAX, None));
        assert_eq!(end(4, 9, Some(3)), end(u16::MAX, 9, Some(2)));
        assert_eq!(end(4, u64::MAX, Some(u64::MAX)), CHECKPOINTS - 1);
        assert_eq!((shared(0), shared(1), shared(2), shared(3), shared(4)), (1, 1, 2, 2, 3));
        assert_eq!((shared(32), shared(255)), (6, 6));
        assert_eq!((matched(2), matched(3), matched(4), matched(5)), (MATCHED, MATCHED + 1, MATCHED + 1, MATCHED + 2));
        assert_eq!(matched(u16::MAX), COUNT - 1);
        assert!(is_fresh_end(turn(3)) && !is_fresh_end(shared(9)) && !is_fresh_end(matched(2)) && is_spare(STRIDE));
    }
}
