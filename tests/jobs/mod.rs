//! Whole jobs, as people and their tools do them in a fork.

mod builds;
mod databases;
mod drift;
mod packages;
mod repository;
