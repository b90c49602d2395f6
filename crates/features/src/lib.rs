//! No code: this crate's `Cargo.toml` names the features of crates that several programs share.
//!
//! cargo compiles a crate once for each set of features that the packages of one invocation need. Without one
//! set for all, a program built alone gets other binaries of its dependencies than one built with others:
//! they are compiled twice, and a feature of one framework changes the worker of another. With it, alone and
//! together are the same, and a test of `tasks` compares them (docs/explanation/architecture.md, invariant
//! 10).
