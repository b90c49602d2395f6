//! NVML's GPU for a program's `cuda:N`.

/// The variable that hides GPUs from CUDA and orders the others.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variable, with its value, by which CUDA counts GPUs as NVML does: along the bus. Its own order begins with the
/// fastest.
pub const ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// NVML's number of `cuda:N`. `visible` is the value of [`VISIBLE`], if it is set: numbers or the beginnings of names
/// such as `GPU-1a2b`, up to the first that no GPU has. The error is the reason why there is none.
pub fn index(number: usize, visible: Option<&str>, uuids: &[String]) -> Result<u32, String> {
    let found = match visible {
        None => (0..uuids.len()).nth(number),
        Some(list) => {
            let mut seen = list.split(',').map_while(|entry| position(entry.trim(), uuids));
            seen.nth(number)
        }
    };
    found.and_then(|index| u32::try_from(index).ok()).ok_or_else(|| match visible {
        Some(list) => format!("{VISIBLE}={list} leaves no GPU with the number {number}"),
        None => match uuids.len() {
            0 => "NVIDIA's driver sees no GPU".to_owned(),
            1 => format!("NVIDIA's driver sees 1 GPU, cuda:0, and no cuda:{number}"),
            count => format!("NVIDIA's driver sees {count} GPUs, counted from 0, and no cuda:{number}"),
        },
    })
}

fn position(entry: &str, uuids: &[String]) -> Option<usize> {
    match entry.parse::<usize>() {
        Ok(index) => (index < uuids.len()).then_some(index),
        Err(_) if entry.is_empty() => None,
        Err(_) => uuids.iter().position(|uuid| uuid.starts_with(entry)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_s_numbers_are_those_of_the_gpus_that_it_sees() {
        let uuids = ["GPU-aa", "GPU-bb", "GPU-cc"].map(str::to_owned);
        assert_eq!(index(2, None, &uuids), Ok(2));
        assert_eq!(index(0, Some("2,0"), &uuids), Ok(2));
        assert_eq!(index(1, Some("GPU-c, GPU-aa"), &uuids), Ok(0));
    }

    #[test]
    fn a_gpu_that_is_not_seen_has_a_reason() {
        let uuids = ["GPU-aa", "GPU-bb"].map(str::to_owned);
        let refused = |number, visible, uuids: &[String]| index(number, visible, uuids).unwrap_err();
        assert_eq!(refused(0, Some(""), &uuids), "CUDA_VISIBLE_DEVICES= leaves no GPU with the number 0");
        // GPUs after a name that no GPU has are not seen either.
        assert!(refused(0, Some("7,0"), &uuids).contains("leaves no GPU"));
        assert_eq!(refused(2, None, &uuids), "NVIDIA's driver sees 2 GPUs, counted from 0, and no cuda:2");
        assert_eq!(refused(0, None, &[]), "NVIDIA's driver sees no GPU");
    }
}
