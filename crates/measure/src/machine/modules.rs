//! Memory modules, as the firmware describes them (SMBIOS 3.7, structure 17, *Memory Device*). Only on Linux,
//! and only where this user may read them.

use std::collections::BTreeMap;
use std::path::Path;

/// Linux's directory of the structures.
const ENTRIES: &str = "/sys/firmware/dmi/entries";

/// "4 of DDR5 at 4800 MT/s"; different modules are separated by a comma.
pub fn memory_modules() -> Option<String> {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for entry in std::fs::read_dir(Path::new(ENTRIES)).ok()?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("17-") {
            let structure = std::fs::read(entry.path().join("raw")).ok()?;
            if let Some(kind) = module(&structure) {
                *kinds.entry(kind).or_default() += 1;
            }
        }
    }
    let told: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} of {kind}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// The type and speed of a module; `None` for an empty socket.
fn module(structure: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u16::from_le_bytes([*structure.get(at)?, *structure.get(at + 1)?]));
    word(0x0c).filter(|&size| size != 0 && size != 0xffff)?;
    let kind = match structure.get(0x12)? {
        0x18 => "DDR3",
        0x1a => "DDR4",
        0x1b => "LPDDR",
        0x1e => "LPDDR4",
        0x20 => "HBM",
        0x22 => "DDR5",
        0x23 => "LPDDR5",
        _ => "memory",
    };
    // The configured speed, or the highest if that is not reported.
    let speed = [0x20, 0x15].into_iter().filter_map(word).find(|&speed| speed != 0 && speed != 0xffff);
    Some(speed.map_or_else(|| kind.to_owned(), |speed| format!("{kind} at {speed} MT/s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_a_type_and_the_speed_that_is_configured() {
        let mut structure = vec![0; 0x28];
        assert_eq!(module(&structure), None, "an empty socket");
        structure[0x0c..0x0e].copy_from_slice(&32_767u16.to_le_bytes());
        structure[0x12] = 0x22;
        structure[0x15..0x17].copy_from_slice(&5600u16.to_le_bytes());
        assert_eq!(module(&structure).as_deref(), Some("DDR5 at 5600 MT/s"));
        structure[0x20..0x22].copy_from_slice(&4800u16.to_le_bytes());
        assert_eq!(module(&structure).as_deref(), Some("DDR5 at 4800 MT/s"));
        assert_eq!(module(&structure[..0x12]), None, "cut off");
    }
}
