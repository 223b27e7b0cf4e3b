//! Tests of the tests and of the shape of the sources.

mod kit;
mod sources;
