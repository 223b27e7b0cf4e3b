//! How the command line behaves towards people and programs.

mod documented;
mod manners;
mod shapes;
