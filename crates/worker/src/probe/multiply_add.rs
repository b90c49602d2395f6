//! The most f32 multiply-adds that a thread can do, to compare matrix products with.

use std::hint::black_box;

/// f32 accumulators, each waiting for its own last link alone. Eight vectors of AVX-512, sixteen of AVX2, all of
/// NEON's: enough to hide a latency of four cycles on two units, few enough to stay in registers. On Zen 4 (32
/// operations a cycle) 64 to 256 of them all reached the theoretical peak, 117 of 117 GFLOP/s a core at 3.67 GHz; so
/// did AVX-512 and AVX2 intrinsics, which are therefore not needed. Arrays of arrays were not kept in registers and
/// reached 2 GFLOP/s.
const ACCUMULATORS: usize = 128;

/// Links of each: about 9 ms on such a core.
const LINKS: u64 = 4 << 10;
const BLOCKS: u64 = 1 << 10;

/// Floating-point operations of a [`burst`]; a multiply-add is two.
pub(super) const OPERATIONS: u64 = 2 * ACCUMULATORS as u64 * LINKS * BLOCKS;

/// `sum = sum · ½ + 1` in every accumulator, which converges to 2 and never becomes a subnormal number.
#[inline(never)]
pub(super) fn burst() {
    for _ in 0..BLOCKS {
        let (factor, summand) = (black_box(0.5), black_box(1.0));
        let mut sums = [black_box(0.0_f32); ACCUMULATORS];
        for _ in 0..LINKS {
            for sum in &mut sums {
                *sum = multiply_add(*sum, factor, summand);
            }
        }
        black_box(sums);
    }
}

/// Fused where the build has an instruction for it; without one, `mul_add` would call a function.
fn multiply_add(a: f32, factor: f32, summand: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_feature = "neon")) {
        a.mul_add(factor, summand)
    } else {
        a * factor + summand
    }
}

#[cfg(test)]
mod tests {
    use super::multiply_add;

    #[test]
    fn a_link_is_one_multiplication_and_one_addition() {
        assert_eq!(multiply_add(3.0, 0.5, 1.0), 2.5);
    }
}
