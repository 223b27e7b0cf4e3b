//! The life of a fork: what it is called, what is written down about it, which states it goes through.
//!
//! A fork is a directory `forks/<id>` of a [`Store`] with a [`Record`] in it; how it gets its files is a matter of its
//! [strategy](crate::strategy).

mod again;
pub mod base;
pub mod doctor;
mod find;
mod forks;
pub mod gc;
pub mod journal;
mod labels;
mod making;
mod merging;
mod name;
mod origin;
mod owner;
mod pending;
pub mod preserved;
pub mod prewarm;
mod record;
mod recover;
pub mod status;
mod store;
pub mod trash;
mod users;

pub use again::Created;
pub use find::{Listed, all, find};
pub use forks::{Forks, Locked, Request};
pub use merging::{JOURNALS, is_under_way};
pub use name::{ID_MAX, Id, LABEL_MAX, Label};
pub use owner::Owner;
pub use record::{Base, RECORD, Record, State, now};
pub use recover::mounted;
pub use store::Store;
pub use users::{User, users, users_quickly};

/// The name of the lock in a fork's directory.
const LOCK: &str = "lock";
