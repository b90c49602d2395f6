//! Processes that say of themselves that they use the GPU.

use std::path::{Path, PathBuf};

use crate::script::Process;

/// A process that pretends to use a GPU, until this is dropped.
pub struct Played(PathBuf);

/// Lists this process with so many bytes on the first GPU of the library at this path.
pub fn play(library: &Path, bytes: u64) -> std::io::Result<Played> {
    let directory = players(library);
    std::fs::create_dir_all(&directory)?;
    let file = directory.join(std::process::id().to_string());
    std::fs::write(&file, bytes.to_string())?;
    Ok(Played(file))
}

impl Drop for Played {
    fn drop(&mut self) {
        // A process that has ended is not listed, even if this fails.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn players(library: &Path) -> PathBuf {
    library.with_file_name("players")
}

/// Those that still run.
pub(crate) fn processes(library: &Path) -> Vec<Process> {
    let files = std::fs::read_dir(players(library)).into_iter().flatten().flatten();
    files
        .filter_map(|file| {
            let pid: u32 = file.file_name().to_str()?.parse().ok()?;
            let lives = Path::new("/proc").join(pid.to_string()).exists();
            let bytes = std::fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
            lives.then_some(Process { pid, bytes: Some(bytes) })
        })
        .collect()
}
