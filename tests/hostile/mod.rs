//! What somebody in a fork may do to reach the server, the base or another fork through it, or to stop them.

mod clients;
mod deep;
mod inside;
mod repository;
mod room;
mod size;
