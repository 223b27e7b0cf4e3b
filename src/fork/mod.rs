//! The life of a fork: what it is called, what is written down about it, which states it goes through.
//!
//! A fork is a directory `forks/<id>` of a [`Store`] with a [`Record`] in it; how it gets its files is a matter of its
//! [strategy](crate::strategy).

pub mod base;
mod find;
mod name;
mod owner;
mod record;
mod store;

pub use find::{Listed, all, find};
pub use name::{Id, LABEL_MAX, Label};
pub use owner::Owner;
pub use record::{Base, RECORD, Record, State, now};
pub use store::Store;
