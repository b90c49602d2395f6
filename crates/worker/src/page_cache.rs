//! The system's page cache: whether a load starts from the disk or from memory.
//!
//! Only Linux reports resident pages (`mincore(2)`) and takes advice (`posix_fadvise(2)`); elsewhere nothing
//! is known.

use std::path::Path;

use protocol::PageCache;

/// Drops `file` from the page cache if `evict` is set, and then reads how much of it is resident. `None`
/// where the system does not report.
pub(crate) fn prepare(file: &Path, evict: bool) -> Option<PageCache> {
    #[cfg(target_os = "linux")]
    {
        let observed = linux::prepare(file, evict);
        observed.inspect_err(|e| eprintln!("page cache of {}: {e}", file.display())).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, evict);
        None
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use memmap2::{Mmap, MmapOptions};
    use protocol::PageCache;
    use rustix::fs::{Access, Advice};

    pub(super) fn prepare(path: &Path, evict: bool) -> io::Result<PageCache> {
        let file = File::open(path)?;
        if evict {
            drop_pages(&file)?;
        }
        // The kernel reports every page as resident to a process that neither owns the file nor may write it
        // (`can_do_mincore`, since Linux 5.2).
        let owned = file.metadata()?.uid() == rustix::process::geteuid().as_raw();
        if !owned && rustix::fs::access(path, Access::WRITE_OK).is_err() {
            let reason = "mincore tells the truth only to its owner and to those who may write it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        Ok(PageCache { evicted: evict, resident_before: resident_share(&file)? })
    }

    /// Asks the kernel to drop the file's pages. It drops clean pages that no process has mapped.
    fn drop_pages(file: &File) -> io::Result<()> {
        rustix::fs::fdatasync(file)?;
        Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
    }

    /// Share of the file's pages that are in memory. Makes none resident.
    fn resident_share(file: &File) -> io::Result<f64> {
        let mapping = map(file)?;
        let mut pages = vec![0; mapping.len().div_ceil(rustix::param::page_size())];
        mincore(&mapping, &mut pages)?;
        // The lowest bit is the page's; the others are reserved.
        let resident = pages.iter().filter(|&&page| page & 1 == 1).count();
        Ok(resident as f64 / pages.len().max(1) as f64)
    }

    #[allow(unsafe_code)]
    fn map(file: &File) -> io::Result<Mmap> {
        // SAFETY: no byte of the mapping is read, so it does not matter whether another process writes
        // or truncates the file meanwhile.
        unsafe { MmapOptions::new().map(file) }
    }

    /// `pages` must have an element for each page of `mapping`.
    #[allow(unsafe_code)]
    fn mincore(mapping: &Mmap, pages: &mut [u8]) -> io::Result<()> {
        assert!(pages.len() >= mapping.len().div_ceil(rustix::param::page_size()));
        // SAFETY: the address is that of a mapping, hence of a page, and of its length; the kernel writes
        // one byte a page, for which the assertion above has made sure that there is room.
        let status =
            unsafe { libc::mincore(mapping.as_ptr().cast_mut().cast(), mapping.len(), pages.as_mut_ptr()) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
