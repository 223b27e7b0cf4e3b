//! Merging: the matrix of verdicts, git, crashes at every step, failures in the middle, concurrency, odd names.

mod basics;
mod calls;
mod crash;
mod faults;
mod git;
mod kept;
mod kit;
mod matrix;
mod owner;
mod power;
mod refs;
mod rescue;
mod times;
