//! Reads the logits that workers write: safetensors files with a tensor for each case.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use comparison::judge::parity::Logits;
use rustix::fs::{Mode, OFlags};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

/// Most bytes of a header, whatever the shapes: for names of tensors, and other entries that a library may
/// write.
const HEADER: u64 = 1 << 16;
/// Most bytes of a header for each tensor.
const ENTRY: u64 = 1 << 8;

/// `[batch, positions, width]` of a tensor.
pub type Shape = [usize; 3];

/// Reads the file of a [`protocol::ParityTask`]; its cases have these shapes.
pub fn read_parity(path: &Path, shapes: &[Shape]) -> Result<Vec<Logits>, String> {
    let bytes = read(path, shapes, &[])?;
    let file = SafeTensors::deserialize(&bytes).map_err(malformed)?;
    let mut cases = Vec::new();
    while let Ok(tensor) = file.tensor(&format!("case.{}", cases.len())) {
        cases.push(logits(&tensor)?);
    }
    Ok(cases)
}

/// Reads the file of a [`protocol::Score`]; its logits have this shape.
pub fn read_score(path: &Path, shape: Shape) -> Result<Logits, String> {
    let logits = read_states(path, Some(shape), &[], |_, _| Ok(()))?;
    Ok(logits.expect("they are read where they have a shape"))
}

/// Reads the file of a [`protocol::Score`] with hidden states, and returns the logits, if it is to have any: a model that
/// encodes texts has none. Each hidden state goes to `each` with its number, one at a time, because all together may be
/// large. `hidden` are their shapes, if there are any: the last dimension is the hidden size.
pub fn read_states(
    path: &Path,
    shape: Option<Shape>,
    hidden: &[Shape],
    mut each: impl FnMut(usize, Logits) -> Result<(), String>,
) -> Result<Option<Logits>, String> {
    let bytes = match shape {
        Some(shape) => read(path, &[shape], hidden)?,
        None => read(path, hidden, &[])?,
    };
    let file = SafeTensors::deserialize(&bytes).map_err(malformed)?;
    let mut layer = 0;
    while let Ok(tensor) = file.tensor(&format!("hidden.{layer}")) {
        each(layer, logits(&tensor)?)?;
        layer += 1;
    }
    shape.map(|_| logits(&file.tensor("logits").map_err(malformed)?)).transpose()
}

/// Reads a file that holds f32 tensors of these shapes, and perhaps the others as well. Anything else that a
/// worker may have put in its place is rejected before it is read: other than a file, or of another size.
fn read(path: &Path, shapes: &[Shape], optional: &[Shape]) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot read its logits: {error}");
    let mut file = open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err("its logits are not in a regular file".into());
    }
    let bytes = |shapes: &[Shape]| {
        let numbers =
            |shape: &Shape| shape.iter().fold(1, |product: u64, &n| product.saturating_mul(n as u64));
        shapes.iter().map(numbers).fold(0, u64::saturating_add).saturating_mul(4)
    };
    let least = bytes(shapes);
    let entries = ENTRY * (shapes.len() + optional.len()) as u64;
    let most = least.saturating_add(bytes(optional)).saturating_add(HEADER + entries);
    let found = metadata.len();
    // A file that is too small gets an error about its contents later.
    if found > most {
        return Err(format!("the file of its logits has {found} bytes, and their shapes call for {least}"));
    }
    let mut text = Vec::with_capacity(found as usize);
    // It may grow meanwhile.
    file.by_ref().take(found).read_to_end(&mut text).map_err(cannot)?;
    Ok(text)
}

/// Opens a file without following a link, and without waiting for the other end of a pipe.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::LOOP) => Err(std::io::Error::other("it is a link")),
        opened => Ok(opened?.into()),
    }
}

fn malformed(error: SafeTensorError) -> String {
    format!("its logits are malformed: {error}")
}

fn logits(tensor: &TensorView<'_>) -> Result<Logits, String> {
    let &[batch, positions, vocabulary] = tensor.shape() else {
        return Err(format!("its logits have shape {:?}", tensor.shape()));
    };
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("its logits are {:?}, not F32", tensor.dtype()));
    }
    let (numbers, _) = tensor.data().as_chunks::<4>();
    let values = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    Ok(Logits { batch, positions, vocabulary, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_the_size_that_the_shapes_call_for_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", at("link")).unwrap();
        File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
        std::fs::write(at("short"), "x").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::RUSR).unwrap();
        for (name, said) in [
            ("link", "it is a link"),
            ("huge", "has 1099511627776 bytes, and their shapes call for 24"),
            ("short", "its logits are malformed"),
            ("pipe", "not in a regular file"),
            ("gone", "No such file"),
        ] {
            let reason = read_parity(&at(name), &[[1, 2, 3]]).unwrap_err();
            assert!(reason.contains(said), "{name}: {reason}");
        }
    }
}
