//! The most multiply-adds that a thread can do on each of the CPU's units for numbers of 16 and 8 bits. Compilers write none
//! of these instructions by themselves, and frameworks choose them while they run, as is done here.

use protocol::Unit;

/// Multiply-adds in registers.
pub(super) struct Burst {
    pub(super) unit: Unit,
    /// Operations of a run; a multiply-add is two.
    pub(super) operations: u64,
    pub(super) run: fn(),
}

/// Those that this CPU has and the system lets a process use.
pub(super) fn of_this_cpu() -> Vec<Burst> {
    #[cfg(target_arch = "x86_64")]
    return x86::bursts();
    #[cfg(not(target_arch = "x86_64"))]
    return Vec::new();
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    use protocol::Unit;

    use super::Burst;

    /// Instructions of a run: 3 to 9 ms at 3 GHz.
    const VECTORS: u64 = 8 << 20;
    const TILES: u64 = 1 << 20;

    /// Lanes of 32 bits of a vector, and pairs or fours of numbers in each.
    const OF_VECTOR: u64 = 16;
    /// 16 rows times 16 columns of sums, to each of which 16 lanes add.
    const OF_TILE: u64 = 16 * 16 * 16;

    pub(super) fn bursts() -> Vec<Burst> {
        let burst = |unit, operations, run: fn()| Burst { unit, operations, run };
        let mut found = Vec::new();
        if is_x86_feature_detected!("avx512bf16") {
            found.push(burst(Unit::Avx512Bf16, VECTORS * OF_VECTOR * 2 * 2, || vectors::<true>()));
        }
        if is_x86_feature_detected!("avx512vnni") {
            found.push(burst(Unit::Avx512Vnni, VECTORS * OF_VECTOR * 4 * 2, || vectors::<false>()));
        }
        let (bf16, int8) = tiles_there();
        if bf16 {
            found.push(burst(Unit::AmxBf16, TILES * OF_TILE * 2 * 2, || tiles::<true>()));
        }
        if int8 {
            found.push(burst(Unit::AmxInt8, TILES * OF_TILE * 4 * 2, || tiles::<false>()));
        }
        found
    }

    /// Sixteen sums that do not wait for each other, of zeros.
    fn vectors<const BF16: bool>() {
        macro_rules! chain {
            ($instruction:literal) => {
                // SAFETY: the CPU has the instruction, as `bursts` saw, and only the registers named are written.
                unsafe {
                    asm!(
                        "vpxord zmm0, zmm0, zmm0", "vpxord zmm1, zmm1, zmm1", "vpxord zmm2, zmm2, zmm2",
                        "vpxord zmm3, zmm3, zmm3", "vpxord zmm4, zmm4, zmm4", "vpxord zmm5, zmm5, zmm5",
                        "vpxord zmm6, zmm6, zmm6", "vpxord zmm7, zmm7, zmm7", "vpxord zmm8, zmm8, zmm8",
                        "vpxord zmm9, zmm9, zmm9", "vpxord zmm10, zmm10, zmm10", "vpxord zmm11, zmm11, zmm11",
                        "vpxord zmm12, zmm12, zmm12", "vpxord zmm13, zmm13, zmm13", "vpxord zmm14, zmm14, zmm14",
                        "vpxord zmm15, zmm15, zmm15", "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17",
                        "2:",
                        concat!($instruction, " zmm0, zmm16, zmm17"), concat!($instruction, " zmm1, zmm16, zmm17"),
                        concat!($instruction, " zmm2, zmm16, zmm17"), concat!($instruction, " zmm3, zmm16, zmm17"),
                        concat!($instruction, " zmm4, zmm16, zmm17"), concat!($instruction, " zmm5, zmm16, zmm17"),
                        concat!($instruction, " zmm6, zmm16, zmm17"), concat!($instruction, " zmm7, zmm16, zmm17"),
                        concat!($instruction, " zmm8, zmm16, zmm17"), concat!($instruction, " zmm9, zmm16, zmm17"),
                        concat!($instruction, " zmm10, zmm16, zmm17"), concat!($instruction, " zmm11, zmm16, zmm17"),
                        concat!($instruction, " zmm12, zmm16, zmm17"), concat!($instruction, " zmm13, zmm16, zmm17"),
                        concat!($instruction, " zmm14, zmm16, zmm17"), concat!($instruction, " zmm15, zmm16, zmm17"),
                        "dec {left}", "jnz 2b",
                        left = inout(reg) VECTORS / 16 => _,
                        out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                        out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                        out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                        options(nomem, nostack)
                    );
                }
            };
        }
        if BF16 { chain!("vdpbf16ps") } else { chain!("vpdpbusd") }
    }

    /// The shape of every tile, as `ldtilecfg` reads it: 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Four sums that do not wait for each other, of zeros.
    fn tiles<const BF16: bool>() {
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        shapes.row_bytes[..8].fill(64);
        shapes.rows[..8].fill(16);
        macro_rules! chain {
            ($instruction:literal) => {
                // SAFETY: the CPU has the instruction and the system has allowed tiles, as `bursts` saw; `shapes` has the
                // 64 bytes that are read; tiles are released at the end.
                unsafe {
                    asm!(
                        "ldtilecfg [{shapes}]",
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                        "2:",
                        concat!($instruction, " tmm0, tmm6, tmm7"), concat!($instruction, " tmm1, tmm6, tmm7"),
                        concat!($instruction, " tmm2, tmm6, tmm7"), concat!($instruction, " tmm3, tmm6, tmm7"),
                        "dec {left}", "jnz 2b",
                        "tilerelease",
                        shapes = in(reg) &raw const shapes,
                        left = inout(reg) TILES / 4 => _,
                        options(readonly, nostack)
                    );
                }
            };
        }
        if BF16 { chain!("tdpbf16ps") } else { chain!("tdpbssd") }
    }

    /// Whether this process can multiply tiles of bf16, and of int8. Linux allows tiles to processes that ask.
    fn tiles_there() -> (bool, bool) {
        const TILE: u32 = 1 << 24;
        static ALLOWED: OnceLock<bool> = OnceLock::new();
        let leaf = __cpuid_count(7, 0).edx;
        let has = |bit: u32| leaf & (TILE | bit) == (TILE | bit);
        let (bf16, int8) = (has(1 << 22), has(1 << 25));
        if !bf16 && !int8 {
            return (false, false);
        }
        let allowed = *ALLOWED.get_or_init(allow_tiles);
        (bf16 && allowed, int8 && allowed)
    }

    /// Asks for the state of tiles (`ARCH_REQ_XCOMP_PERM` in Linux's arch/x86/include/uapi/asm/prctl.h).
    #[cfg(target_os = "linux")]
    fn allow_tiles() -> bool {
        const ASK: i64 = 0x1023;
        const TILE_DATA: i64 = 18;
        // SAFETY: the call changes nothing but the permission.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ASK, TILE_DATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn allow_tiles() -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_units_are_those_that_the_kernel_names() {
        let named = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let has = |flag: &str| named.split_whitespace().any(|word| word == flag);
        let units = of_this_cpu();
        for (unit, flag) in [
            (Unit::Avx512Bf16, "avx512_bf16"),
            (Unit::Avx512Vnni, "avx512_vnni"),
            (Unit::AmxBf16, "amx_bf16"),
            (Unit::AmxInt8, "amx_int8"),
        ] {
            assert_eq!(units.iter().any(|burst| burst.unit == unit), has(flag), "{flag}");
        }
        for burst in units {
            (burst.run)();
        }
    }
}
