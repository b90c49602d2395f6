//! Builds of the same workers for newer processors. An archive and a wheel have each worker for x86-64-v3 and, in a
//! directory of its own, for each level; the best one that the processor can run is started. Flags that a worker was built
//! with are in its report (rule R10).

use std::path::{Path, PathBuf};

/// Kernels for the machines of the last ten years: AVX2, FMA, BMI2.
pub const BASE: &str = if cfg!(target_arch = "x86_64") { "-C target-cpu=x86-64-v3" } else { "" };

pub struct Level {
    /// Directory of the workers, inside that of all others.
    pub name: &'static str,
    /// For rustc.
    pub flags: &'static str,
    /// Whether this processor has what the flags ask for, by CPUID.
    runs_here: fn() -> bool,
}

/// The best first.
pub const LEVELS: &[Level] = if cfg!(target_arch = "x86_64") {
    &[
        // candle's products in bf16 are several times slower where its functions for these instructions are not compiled
        // into their callers.
        Level {
            name: "x86-64-v4-bf16",
            flags: "-C target-cpu=x86-64-v4 -C target-feature=+avx512bf16,+avx512vnni",
            runs_here: has_bf16,
        },
        Level { name: "x86-64-v4", flags: "-C target-cpu=x86-64-v4", runs_here: has_v4 },
    ]
} else {
    &[]
};

#[cfg(target_arch = "x86_64")]
fn has_v4() -> bool {
    // The x86-64 psABI's list of level 4; the standard library asks the operating system, too.
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    has_v4() && is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_v4() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

/// The best build of this worker that runs here. `workers` need not have any.
pub fn worker(workers: &Path, file: &str) -> PathBuf {
    best(workers, file, |level| (level.runs_here)())
}

/// The flags of the best builds that are there and run here; `None` where there is one build of each worker.
pub fn flags(workers: &Path) -> Option<&'static str> {
    let is_there = |level: &&Level| (level.runs_here)() && workers.join(level.name).is_dir();
    LEVELS.iter().find(is_there).map(|level| level.flags)
}

fn best(workers: &Path, file: &str, runs_here: impl Fn(&Level) -> bool) -> PathBuf {
    let built =
        LEVELS.iter().filter(|level| runs_here(level)).map(|level| workers.join(level.name).join(file));
    built.into_iter().find(|path| path.is_file()).unwrap_or_else(|| workers.join(file))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_best_build_that_runs_here_and_is_there_is_taken() {
        let workers = tempfile::tempdir().unwrap();
        for file in ["engine-a", "x86-64-v4/engine-a", "x86-64-v4/engine-b", "x86-64-v4-bf16/engine-a"] {
            let file = workers.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        let taken = |file, levels: &[&str]| {
            let path = best(workers.path(), file, |level| levels.contains(&level.name));
            path.strip_prefix(workers.path()).unwrap().display().to_string()
        };
        assert_eq!(taken("engine-a", &["x86-64-v4", "x86-64-v4-bf16"]), "x86-64-v4-bf16/engine-a");
        assert_eq!(taken("engine-b", &["x86-64-v4", "x86-64-v4-bf16"]), "x86-64-v4/engine-b");
        assert_eq!(taken("engine-a", &["x86-64-v4"]), "x86-64-v4/engine-a");
        assert_eq!(taken("engine-a", &[]), "engine-a");
        assert_eq!(taken("prepare", &["x86-64-v4"]), "prepare");
    }
}
