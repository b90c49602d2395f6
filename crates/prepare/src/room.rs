//! Whether the disk has room for the files to write.

use std::path::Path;

use bundle::{ModelConfig, Precision};

use crate::error::PrepareError;

/// Refuses weights for which the disk of `directory` has no room, before hours of writing.
pub(crate) fn check(
    config: &ModelConfig,
    precisions: &[Precision],
    directory: &Path,
) -> Result<(), PrepareError> {
    let Some(free) = free(directory) else { return Ok(()) };
    let mut parts = Vec::new();
    for &precision in precisions {
        let bytes = config.stored(precision)?.iter().map(|tensor| tensor.bytes()).sum::<u64>();
        parts.push((precision, bytes));
    }
    match objection(&parts, free) {
        None => Ok(()),
        Some(reason) => Err(PrepareError::NoRoom { path: directory.to_path_buf(), reason }),
    }
}

fn objection(parts: &[(Precision, u64)], free: u64) -> Option<String> {
    let needed = parts.iter().map(|(_, bytes)| bytes).sum::<u64>();
    if needed <= free {
        return None;
    }
    let terms: Vec<_> = parts.iter().map(|(p, bytes)| format!("{} at {p}", gigabytes(*bytes))).collect();
    let sum = if parts.len() > 1 { format!(" = {}", gigabytes(needed)) } else { String::new() };
    Some(format!(
        "the weights take {}{sum}, but its disk has {} free; make room, or ask for another precision or a smaller model",
        terms.join(" + "),
        gigabytes(free)
    ))
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// Bytes that this user may still write; `None` where the system does not report.
fn free(directory: &Path) -> Option<u64> {
    #[cfg(unix)]
    return rustix::fs::statvfs(directory).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_arithmetic() {
        let parts = [(Precision::F32, 4_400_000_000), (Precision::Int8, 1_100_000_000)];
        assert_eq!(objection(&parts, 5_500_000_000), None);
        let reason = objection(&parts, 5_499_999_999).unwrap();
        assert!(reason.contains("4.40 GB at f32 + 1.10 GB at int8 = 5.50 GB"), "{reason}");
        assert!(
            objection(&parts[1..], 7).unwrap().contains("take 1.10 GB at int8, but its disk has 0.00 GB")
        );
    }
}
