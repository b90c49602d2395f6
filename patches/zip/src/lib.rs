//! The part of zip 0.6 that the build script of torch-sys names, without its codecs (zstd, bzip2, AES: a minute of C and
//! Rust to compile). The script unpacks archives only with its feature `download-libtorch`, which this workspace leaves
//! off: `cargo xtask setup` provides libtorch. So every call here is an error.

use std::fmt;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::path::PathBuf;

/// The one error.
#[derive(Debug)]
pub struct Unavailable;

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this build unpacks no archive: set LIBTORCH, or run `cargo xtask setup`")
    }
}

impl std::error::Error for Unavailable {}

pub struct ZipArchive<R>(PhantomData<R>);

impl<R: Read> ZipArchive<R> {
    pub fn new(_: R) -> Result<Self, Unavailable> {
        Err(Unavailable)
    }

    pub fn len(&self) -> usize {
        0
    }

    pub fn is_empty(&self) -> bool {
        true
    }

    pub fn by_index(&mut self, _: usize) -> Result<File, Unavailable> {
        Err(Unavailable)
    }
}

/// A file of an archive. There is none.
pub struct File(());

impl File {
    pub fn name(&self) -> &str {
        ""
    }

    pub fn mangled_name(&self) -> PathBuf {
        PathBuf::new()
    }

    pub fn size(&self) -> u64 {
        0
    }

    pub fn unix_mode(&self) -> Option<u32> {
        None
    }
}

impl Read for File {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}
