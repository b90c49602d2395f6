//! A TorchScript file that somebody has exported from the model of an ONNX file.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use onnx::program::Program;
use tch::Kind;
use worker::engine::{Artefact, EngineError, Result};

use super::trace::Module;
use super::{operators, refused};
use crate::framework;

/// Tensors of fewer elements are not compared: exporters make constants of such ones.
const FEWEST: usize = 16;

pub(super) fn load(path: &Path) -> Result<Module> {
    Module::load(path).map_err(framework)
}

/// Whether the module has each of the file's weights, up to the order of their elements.
pub(super) fn compare(module: &Module, file: &Path, graph: &bundle::Graph) -> Result<Artefact> {
    let mut held: HashSet<u64> = HashSet::new();
    for tensor in module.tensors().map_err(framework)? {
        if tensor.is_mkldnn() || !matches!(tensor.kind(), Kind::Float | Kind::Double | Kind::Half) {
            continue;
        }
        let array = operators::download(&tensor).map_err(refused)?;
        held.extend(array.floats().map(|numbers| mark(&numbers)));
    }
    let (mut tensors, mut missing) = (0, 0);
    for array in Program::stored(file, graph).map_err(refused)? {
        let Some(numbers) = array.floats().filter(|numbers| numbers.len() >= FEWEST) else { continue };
        tensors += 1;
        missing += usize::from(!held.contains(&mark(&numbers)));
    }
    Ok(Artefact { tensors, missing })
}

/// A number for the elements in ascending order: transposed weights have the same.
fn mark(numbers: &[f32]) -> u64 {
    let mut bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
    bits.sort_unstable();
    let mut hasher = DefaultHasher::new();
    bits.hash(&mut hasher);
    hasher.finish()
}

/// # Errors
/// If it does not give the outputs that the ONNX file names.
pub(super) fn check_count(found: usize, graph: &bundle::Graph) -> Result<()> {
    if found == graph.outputs.len() {
        return Ok(());
    }
    let wanted = graph.outputs.len();
    Err(EngineError::Input(format!("the artefact gives {found} tensors, the ONNX file has {wanted} outputs")))
}
