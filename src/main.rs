//! The `treefork` command.
fn main() {}
