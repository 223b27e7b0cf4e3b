//! How the command line behaves towards people and programs.

mod manners;
mod shapes;
