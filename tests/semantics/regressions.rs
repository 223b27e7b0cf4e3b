//! What the differential test once found, each as the shortest sequence that showed it; and sequences that were
//! suspected once. Each runs on a base that its first list makes.

use super::differential::{Copies, check};
use super::ops::Op;
use crate::common::Fs;

#[test]
fn a_named_sequence_runs() {
    let base = [Op::WriteAll { path: "a", len: 10, fill: 1 }];
    check(Fs::Ext4, &Copies, &base, &[Op::Unlink { path: "a" }, Op::Stat { path: "a", follow: true }]);
}
