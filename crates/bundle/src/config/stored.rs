//! The tensors in the file of each precision.

use std::collections::BTreeSet;

use super::model::ModelConfig;
use crate::error::BundleError;
use crate::precision::{Element, Precision};
use crate::quantised::{INT4_GROUP, NF4_BLOCK, scale_name, scale_shape};

/// A tensor as it is in a file of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub element: Element,
}

impl StoredTensor {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.element.bytes() as u64
    }
}

impl ModelConfig {
    /// The tensors of the file of `precision`, in file order. These are the ones of [`Self::tensors`]; after
    /// each run of quantised tensors follow their scales, in the same order. So tensors that engines fuse are
    /// adjacent in both.
    pub fn stored(&self, precision: Precision) -> Result<Vec<StoredTensor>, BundleError> {
        let quantised = if precision.is_quantised() { self.quantised() } else { BTreeSet::new() };
        let mut stored = Vec::new();
        let mut scales: Vec<StoredTensor> = Vec::new();
        for spec in self.tensors() {
            if !quantised.contains(&spec.name) {
                stored.append(&mut scales);
                let element = precision.element();
                stored.push(StoredTensor { name: spec.name, shape: spec.shape, element });
                continue;
            }
            let &[rows, columns] = spec.shape.as_slice() else {
                unreachable!("a linear layer's weight is a matrix")
            };
            check_columns(precision, &spec.name, rows, columns)?;
            let name = scale_name(&spec.name);
            let shape = scale_shape(precision, rows, columns);
            scales.push(StoredTensor { name, shape, element: Element::F32 });
            let (shape, element) = match precision {
                Precision::Int8 => (vec![rows, columns], Element::I8),
                _ => (vec![rows, columns / 2], Element::U8),
            };
            stored.push(StoredTensor { name: spec.name, shape, element });
        }
        stored.append(&mut scales);
        Ok(stored)
    }

    /// Bytes of the weights at `precision`: of their file, or of an ONNX file and its external weights files.
    pub fn stored_bytes(&self, precision: Precision) -> Result<u64, BundleError> {
        match &self.graph {
            Some(graph) => Ok(graph.bytes),
            None => Ok(self.stored(precision)?.iter().map(StoredTensor::bytes).sum()),
        }
    }

    /// Names of the weights of all linear layers, which a quantised precision stores as codes. A tied
    /// embedding is included because it is the output head's weight; an embedding used only for lookup is
    /// not.
    pub fn quantised(&self) -> BTreeSet<String> {
        let layers = (0..self.layers).map(|index| self.layer(index));
        let linear = layers.flat_map(|layer| [layer.qkv, layer.output, layer.gate_up, layer.down]);
        let head = (self.encoder.is_none() && self.graph.is_none()).then(|| self.lm_head());
        linear.flat_map(|names| names.weights).chain(head).collect()
    }
}

fn check_columns(precision: Precision, name: &str, rows: usize, columns: usize) -> Result<(), BundleError> {
    // candle's int8 blocks have 32 columns, too.
    let multiple = INT4_GROUP;
    let whole_blocks = precision != Precision::Nf4 || (rows * columns).is_multiple_of(NF4_BLOCK);
    if columns.is_multiple_of(multiple) && whole_blocks {
        return Ok(());
    }
    let multiple = if precision == Precision::Nf4 { NF4_BLOCK } else { multiple };
    Err(BundleError::Quantisation { precision, name: name.to_owned(), columns, multiple })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(tied: bool, hidden: usize) -> ModelConfig {
        let json = json!({
            "model_type": "llama", "hidden_size": hidden, "intermediate_size": 160, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
            "max_position_embeddings": 256, "tie_word_embeddings": tied
        });
        ModelConfig::from_json(&json).unwrap()
    }

    fn stored(config: &ModelConfig, precision: Precision, name: &str) -> Vec<StoredTensor> {
        let stored = config.stored(precision).unwrap();
        stored.into_iter().filter(|tensor| tensor.name.contains(name)).collect()
    }

    #[test]
    fn codes_that_engines_fuse_lie_side_by_side_and_so_do_their_scales() {
        let names: Vec<_> = stored(&config(true, 64), Precision::Int4, "");
        let at = |part: &str| names.iter().position(|tensor| tensor.name.ends_with(part)).unwrap();
        for suffix in ["weight", "weight.scale"] {
            assert_eq!(at(&format!("k_proj.{suffix}")), at(&format!("q_proj.{suffix}")) + 1);
            assert_eq!(at(&format!("up_proj.{suffix}")), at(&format!("gate_proj.{suffix}")) + 1);
        }
    }

    #[test]
    fn the_shapes_are_those_of_the_module_s_table() {
        let config = config(true, 64);
        let shapes = |precision| {
            let stored = stored(&config, precision, "k_proj");
            [stored[0].shape.clone(), stored[1].shape.clone()]
        };
        assert_eq!(shapes(Precision::Int8), [vec![32, 64], vec![32]]);
        assert_eq!(shapes(Precision::Int4), [vec![32, 32], vec![32, 2]]);
        assert_eq!(shapes(Precision::Nf4), [vec![32, 32], vec![32]]);
    }

    #[test]
    fn a_tied_embedding_is_quantised_as_the_head_and_another_is_not() {
        let element = |tied| stored(&config(tied, 64), Precision::Int8, "embed_tokens")[0].element;
        assert_eq!((element(true), element(false)), (Element::I8, Element::F32));
        assert_eq!(stored(&config(true, 64), Precision::Int8, "norm")[0].element, Element::F32);
        assert_eq!(stored(&config(true, 64), Precision::F16, "")[0].element, Element::F16);
    }

    #[test]
    fn rows_that_do_not_divide_into_groups_are_refused_by_name() {
        let error = config(true, 72).stored(Precision::Int4).unwrap_err().to_string();
        assert!(error.contains("embed_tokens") && error.contains("72") && error.contains("32"), "{error}");
    }
}
