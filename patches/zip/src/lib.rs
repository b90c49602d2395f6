//! The part of zip 0.6 that torch-sys's build script and tch name, without its codecs (zstd, bzip2, AES: a minute of C
//! and Rust to compile). The script unpacks archives only with its feature `download-libtorch`, which this workspace
//! leaves off (`cargo xtask setup` provides libtorch), and tch only for files of NumPy's arrays, which no engine reads.
//! So every call is an error, and no archive exists.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::path::PathBuf;

pub mod result {
    /// The one error.
    #[derive(Debug)]
    pub struct ZipError;

    impl std::fmt::Display for ZipError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("this build reads and writes no archive: set LIBTORCH, or run `cargo xtask setup`")
        }
    }

    impl std::error::Error for ZipError {}
}

pub mod write {
    #[derive(Clone, Copy, Default)]
    pub struct FileOptions;

    impl FileOptions {
        pub fn compression_method(self, _: crate::CompressionMethod) -> Self {
            self
        }
    }
}

use result::ZipError;

pub enum CompressionMethod {
    Stored,
}

/// None exists.
pub struct ZipArchive<R>(Infallible, PhantomData<R>);

impl<R: Read> ZipArchive<R> {
    pub fn new(_: R) -> Result<Self, ZipError> {
        Err(ZipError)
    }

    pub fn len(&self) -> usize {
        match self.0 {}
    }

    pub fn by_index(&mut self, _: usize) -> Result<File, ZipError> {
        match self.0 {}
    }
}

/// A file of an archive. None exists.
pub struct File(Infallible);

impl File {
    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn mangled_name(&self) -> PathBuf {
        match self.0 {}
    }

    pub fn size(&self) -> u64 {
        match self.0 {}
    }

    pub fn unix_mode(&self) -> Option<u32> {
        match self.0 {}
    }
}

impl Read for File {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

pub struct ZipWriter<W>(PhantomData<W>);

impl<W: Write> ZipWriter<W> {
    pub fn new(_: W) -> Self {
        Self(PhantomData)
    }

    pub fn start_file(&mut self, _: impl Into<String>, _: write::FileOptions) -> Result<(), ZipError> {
        Err(ZipError)
    }
}

impl<W> Write for ZipWriter<W> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other(ZipError))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
