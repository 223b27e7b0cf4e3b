//! A real mount, served by a process of its own: what the kernel asks, what it is told, and how it ends.

mod basics;
mod containers;
mod drift;
mod helper;
mod large;
mod raw;
mod requests;
mod slow;
mod trouble;
