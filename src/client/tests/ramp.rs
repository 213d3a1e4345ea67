//! The ramp: straight, rising, and the same buckets all along.

use crate::client::{Ramp, RampConfig};
use proptest::prelude::*;

proptest! {
    #[test]
    fn share_rises_in_a_straight_line(length_ms in 0u64..100_000, first in 0u32..=1024, start in any::<u32>(), after in 0u64..200_000) {
        let mut ramp = Ramp::new(RampConfig { length_ms, first });
        prop_assert_eq!(ramp.share(u64::from(start)), 1024);
        ramp.start(u64::from(start));
        let line = |t: u64| match length_ms {
            0 => 1024.0,
            _ => f64::from(first) + f64::from(1024 - first) * (t as f64 / length_ms as f64).min(1.0),
        };
        let share = ramp.share(u64::from(start) + after);
        prop_assert!((f64::from(share) - line(after)).abs() <= 1.0, "{share} at {after}");
        prop_assert!(ramp.share(u64::from(start) + after + 1) >= share);
        prop_assert_eq!(ramp.share(u64::from(start) + length_ms), 1024);
    }

    #[test]
    fn what_takes_part_stays(bucket in any::<u32>(), share in 0u32..1024) {
        prop_assert!(!Ramp::admits(share, bucket) || Ramp::admits(share + 1, bucket));
        prop_assert!(Ramp::admits(1024, bucket) && !Ramp::admits(0, bucket));
    }
}

#[test]
fn shares_are_shares_of_the_table() {
    const BUCKETS: u32 = 1 << 16;
    for share in [64, 256, 512, 960] {
        let part = (0..BUCKETS).filter(|&b| Ramp::admits(share, b)).count() as f64 / f64::from(BUCKETS);
        let wanted = f64::from(share) / 1024.0;
        assert!((part - wanted).abs() < 0.01, "{part} of the buckets at a share of {wanted}");
    }
}
