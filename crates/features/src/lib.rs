//! No code: `Cargo.toml` beside it names the features of crates that several programs share.
//!
//! cargo compiles a crate once for each set of features that the packages of one invocation ask for. Without one set for
//! all, a program built alone gets other binaries of its dependencies than one built with others: they are compiled
//! twice, and what one framework switches on changes the worker of another. With it, alone and together are the same, and
//! a test of `tasks` compares them (docs/explanation/architecture.md, invariant 10).
//!
//! This crate has what every program needs, and is small, because `cargo xtask` waits for it; `features-large` adds what
//! only the driver, `prepare` and the workers share.
