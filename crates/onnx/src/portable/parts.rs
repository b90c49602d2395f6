//! Linear layers one by one, from tensors that may hold several.

use std::ops::Range;

use bundle::{LinearNames, TensorView};

/// One linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Linear {
    /// `[out, in]`
    pub(super) weight: String,
    /// `[out]`
    pub(super) bias: Option<String>,
    /// Its rows of the weight and of the bias, if they hold more than this layer.
    pub(super) rows: Option<Range<usize>>,
}

impl Linear {
    /// The layers of `names`, one for each of its weights.
    pub(super) fn each(names: &LinearNames) -> Vec<Linear> {
        let bias = |index: usize| names.biases.get(index).cloned();
        let weights = names.weights.iter().cloned().enumerate();
        weights.map(|(index, weight)| Linear { weight, bias: bias(index), rows: None }).collect()
    }

    /// The only layer of `names`.
    pub(super) fn whole(names: &LinearNames) -> Linear {
        Linear { weight: names.weights[0].clone(), bias: names.biases.first().cloned(), rows: None }
    }

    /// `rows` of the only layer of `names`.
    pub(super) fn part(names: &LinearNames, rows: Range<usize>) -> Linear {
        Linear { rows: Some(rows), ..Linear::whole(names) }
    }
}

/// `rows` of a tensor, which are adjacent in its file.
pub(super) fn weight_rows<'a>(tensor: &TensorView<'a>, rows: Range<usize>) -> TensorView<'a> {
    let stride = tensor.bytes.len() / tensor.shape[0];
    let bytes = &tensor.bytes[rows.start * stride..rows.end * stride];
    let mut shape = tensor.shape.clone();
    shape[0] = rows.len();
    TensorView {
        shape,
        element: tensor.element,
        bytes,
        file_offset: tensor.file_offset + (rows.start * stride) as u64,
    }
}

#[cfg(test)]
mod tests {
    use bundle::Element;

    use super::*;

    #[test]
    fn rows_of_a_tensor_are_a_view_of_its_file() {
        let bytes: Vec<u8> = (0..24).collect();
        let tensor = TensorView { shape: vec![3, 2], element: Element::F32, bytes: &bytes, file_offset: 100 };
        let part = weight_rows(&tensor, 1..3);
        assert_eq!((part.shape, part.bytes, part.file_offset), (vec![2, 2], &bytes[8..], 108));
    }
}
