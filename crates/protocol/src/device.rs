//! Names of devices: `cpu`, `cuda:0`, or several GPUs that share the work, `cuda:0,cuda:1`.

/// The numbers of the GPUs that a device names, as CUDA counts them; none for `cpu` and for an invalid name.
/// `cuda` is the first.
pub fn gpus(device: &str) -> Vec<usize> {
    let number = |name: &str| match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    };
    device.split(',').map(number).collect::<Option<Vec<usize>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_the_cpu_or_gpus_by_number() {
        let found = ["cpu", "cuda", "cuda:3", "cuda:1,cuda:0", "cuda:0,cpu", "cuda:x"].map(gpus);
        assert_eq!(found, [vec![], vec![0], vec![3], vec![1, 0], vec![], vec![]]);
    }
}
