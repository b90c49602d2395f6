//! Searches of one row of logits.

/// The first of the largest. This runs inside the timed loop, where a plain search of a large vocabulary
/// would add most of a percent to a token of 2 ms (`benches/overhead.rs`): the largest of each block is
/// found by vector instructions, and one block alone is searched for its place.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    const BLOCK: usize = 1024;
    let (mut largest, mut start) = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let candidate = maximum(block);
        if candidate > largest {
            (largest, start) = (candidate, index * BLOCK);
        }
    }
    let within = logits[start..].iter().position(|&value| value == largest);
    within.map_or(0, |within| (start + within) as u32)
}

/// The largest value; NaN is ignored.
pub(crate) fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 32];
    let (chunks, rest) = values.as_chunks::<32>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| larger(a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_is_the_first_of_the_largest() {
        for length in [1, 63, 64, 65, 100, 1023, 1024, 1025, 5000] {
            let logits: Vec<f32> = (0..length).map(|i| ((i * 37) % 2311) as f32).collect();
            let plain = (0..length).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
            assert_eq!(argmax(&logits), plain as u32, "{length} logits");
        }
        assert_eq!(argmax(&[f32::NAN, 1.0, 1.0]), 1);
        let mut late = vec![0.0; 3000];
        (late[1500], late[2500]) = (1.0, 1.0);
        assert_eq!(argmax(&late), 1500);
    }
}
