//! A toy that tests how a kind of work is added: requests return their own bytes. Only the mock engine
//! supports it.

use serde::{Deserialize, Serialize};

/// Requests that return bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoWork {
    /// The bytes of each case.
    pub cases: Vec<Vec<u8>>,
}
