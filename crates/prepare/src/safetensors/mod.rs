//! The safetensors format, read and written here rather than by the `safetensors` crate for two reasons: its
//! writer sorts tensors by name, which would separate those that engines fuse, and its reader's errors do not
//! name the tensor.

mod reader;
mod writer;

pub(crate) use reader::{Entry, Header};
pub(crate) use writer::{Piece, Writer};
