//! Products with the quantised blocks of a GGUF, by MatMulNBits.
//!
//! Its scales are f32, so that those of every type are exact, and its zero point is the middle of the codes: `file`'s
//! weight `(code - offset) · scale - minimum` is `(code - middle) · scale + rest`, with one `rest` a group. Types
//! without minima have none. The others' is multiplied with the sums of each group's inputs, in f32, because the
//! operator itself has no fast kernel for zero points that are no integers.

use bundle::{BlockKind, Quantised, Unpacked};

use crate::graph::{Attribute, GraphBuilder, HEAD_ROWS, MICROSOFT, ONNX, TOKENS};
use crate::proto::DataType;

/// The codes, scales and rests of rows of one type.
struct Part<'a> {
    /// The name of the initialiser with the codes, with which the others' names begin.
    name: String,
    kind: BlockKind,
    /// Outputs and inputs.
    dims: (usize, usize),
    bytes: &'a [u8],
}

/// What is subtracted from a code of the file before it is multiplied.
fn middle(kind: BlockKind) -> u8 {
    match kind {
        BlockKind::Q4_1 | BlockKind::Q4K => 8,
        BlockKind::Q5_1 | BlockKind::Q5K => 16,
        BlockKind::Q2K => 2,
        _ => kind.offset(),
    }
}

/// The operator's own zero point, at so many bits.
fn zero_point(bits: usize) -> u8 {
    1 << (bits - 1)
}

/// Codes, scales and rests of whole blocks, as MatMulNBits has them.
fn recoded(kind: BlockKind, bytes: &[u8]) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let (elements, group, middle) = (kind.elements(), kind.group(), middle(kind));
    let shift = zero_point(kind.bits()) - middle;
    let weights = bytes.len() / kind.bytes() * elements;
    let mut codes = Vec::with_capacity(weights * kind.bits() / 8);
    let (mut scales, mut rests) = (Vec::with_capacity(weights / group), Vec::new());
    let mut block = Unpacked::default();
    for bytes in bytes.chunks_exact(kind.bytes()) {
        kind.unpack(bytes, &mut block);
        block.codes[..elements].iter_mut().for_each(|code| *code += shift);
        match kind.bits() {
            4 => {
                codes.extend(block.codes[..elements].as_chunks().0.iter().map(|[even, odd]| even | odd << 4))
            }
            _ => codes.extend(&block.codes[..elements]),
        }
        scales.extend(&block.scales[..elements / group]);
        if kind.has_minima() {
            let groups = block.scales.iter().zip(block.minima).take(elements / group);
            rests.extend(groups.map(|(scale, minimum)| scale * f32::from(middle) - minimum));
        }
    }
    (codes, scales, rests)
}

/// Not the weight's own name, which is that of its dequantised numbers.
fn named(weight: &str) -> String {
    format!("{weight}.blocks")
}

impl Part<'_> {
    fn groups(&self) -> usize {
        self.dims.1 / self.kind.group()
    }

    fn rests(&self) -> String {
        format!("{}.rest", self.name)
    }

    fn scales(&self) -> String {
        format!("{}.scale", self.name)
    }

    fn initialise(&self, graph: &mut GraphBuilder) {
        let (rows, columns) = self.dims;
        if graph.has(&self.name) {
            return;
        }
        if self.kind == BlockKind::F32 {
            return graph.computed(&self.name, DataType::Float, &[rows, columns], || self.bytes.to_vec());
        }
        let (codes, scales, rests) = recoded(self.kind, self.bytes);
        let floats = |values: Vec<f32>| move || values.into_iter().flat_map(f32::to_le_bytes).collect();
        let (groups, group) = (self.groups(), self.kind.group());
        graph.computed(&self.name, DataType::Uint8, &[rows, groups, group * self.kind.bits() / 8], || codes);
        graph.computed(&self.scales(), DataType::Float, &[rows, groups], floats(scales));
        if self.kind.has_minima() {
            graph.computed(&self.rests(), DataType::Float, &[rows, groups], floats(rests));
        }
    }

    fn product(&self, graph: &mut GraphBuilder, accuracy_level: i64, input: &str, out: &str) {
        self.initialise(graph);
        let transposed = [Attribute::Int("transB", 1)];
        if self.kind == BlockKind::F32 {
            return graph.node((MICROSOFT, "FusedMatMul"), &[input, &self.name], &[out], &transposed);
        }
        let (rows, columns) = self.dims;
        let attributes = [
            ("K", columns as i64),
            ("N", rows as i64),
            ("bits", self.kind.bits() as i64),
            ("block_size", self.kind.group() as i64),
            ("accuracy_level", accuracy_level),
        ];
        let attributes = attributes.map(|(name, value)| Attribute::Int(name, value));
        let of_codes = if self.kind.has_minima() { format!("{out}.codes") } else { out.to_owned() };
        let inputs = [input, &self.name, &self.scales()];
        graph.node((MICROSOFT, "MatMulNBits"), &inputs, &[&of_codes], &attributes);
        if !self.kind.has_minima() {
            return;
        }
        // All products of an input share its sums.
        let sums = format!("{input}.sums.{}", self.kind.group());
        let (groups, grouped) = (format!("{sums}.groups"), format!("{sums}.grouped"));
        if !graph.has(&groups) {
            // The head's input has no axis for positions.
            let kept: &[i64] = if input == HEAD_ROWS { &[0] } else { &[0, 0] };
            graph.integers(&groups, &[kept, &[self.groups() as i64, self.kind.group() as i64]].concat());
            graph.integers("last.axis", &[-1]);
            graph.node((ONNX, "Reshape"), &[input, &groups], &[&grouped], &[]);
            let alone = [Attribute::Int("keepdims", 0)];
            graph.node((ONNX, "ReduceSum"), &[&grouped, "last.axis"], &[&sums], &alone);
        }
        let of_rests = format!("{out}.rests");
        graph.node((MICROSOFT, "FusedMatMul"), &[&sums, &self.rests()], &[&of_rests], &transposed);
        graph.node((ONNX, "Add"), &[&of_codes, &of_rests], &[out], &[]);
    }
}

/// `out` = `input` · Wᵀ, `[batch, positions, outputs]`. Rows of one type are multiplied together.
pub(crate) fn product(
    graph: &mut GraphBuilder,
    accuracy_level: i64,
    (input, (name, weight), out): (&str, (&str, &Quantised<'_>), &str),
) {
    let columns = weight.columns;
    if let [(kind, rows)] = weight.blocks[..] {
        let part = Part { name: named(name), kind, dims: (rows, columns), bytes: weight.codes.bytes };
        return part.product(graph, accuracy_level, input, out);
    }
    let mut outs = Vec::new();
    for (index, (kind, rows, bytes)) in weight.parts().enumerate() {
        let (name, out) = (named(&format!("{name}.{index}")), format!("{out}.{index}"));
        let part = Part { name, kind, dims: (rows, columns), bytes };
        part.product(graph, accuracy_level, input, &out);
        outs.push(out);
    }
    let outs: Vec<&str> = outs.iter().map(String::as_str).collect();
    graph.node((ONNX, "Concat"), &outs, &[out], &[Attribute::Int("axis", -1)]);
}

/// Rows of a table for the tokens: the numbers of each byte are looked up in a table of 256, which is exact.
pub(crate) fn rows(graph: &mut GraphBuilder, name: &str, table: &Quantised<'_>, out: &str) {
    let Some((kind, rows, bytes)) = table.parts().next() else { return };
    let part = Part { name: named(name), kind, dims: (rows, table.columns), bytes };
    part.initialise(graph);
    if kind == BlockKind::F32 {
        return graph.node((ONNX, "Gather"), &[&part.name, TOKENS], &[out], &[]);
    }
    let number = |code: u8| f32::from(code) - f32::from(zero_point(kind.bits()));
    let numbers: Vec<f32> = match kind.bits() {
        4 => (0..=u8::MAX).flat_map(|byte| [number(byte & 15), number(byte >> 4)]).collect(),
        _ => (0..=u8::MAX).map(number).collect(),
    };
    graph.floats("embed.meanings", &[256, numbers.len() / 256], numbers);
    graph.integers("embed.blocks", &[0, 0, part.groups() as i64, kind.group() as i64]);
    graph.integers("embed.joined", &[0, 0, table.columns as i64]);
    graph.integers("last.axis", &[-1]);
    let mut of_groups = |values: &str, at: &str| {
        let gathered = format!("{at}.gathered");
        graph.node((ONNX, "Gather"), &[values, TOKENS], &[&gathered], &[]);
        graph.node((ONNX, "Unsqueeze"), &[&gathered, "last.axis"], &[at], &[]);
    };
    of_groups(&part.scales(), "embed.scales");
    if kind.has_minima() {
        of_groups(&part.rests(), "embed.rests");
    }
    graph.node((ONNX, "Gather"), &[&part.name, TOKENS], &["embed.codes"], &[]);
    graph.cast("embed.codes", DataType::Int32, "embed.indices");
    graph.node((ONNX, "Gather"), &["embed.meanings", "embed.indices"], &["embed.values"], &[]);
    graph.node((ONNX, "Reshape"), &["embed.values", "embed.blocks"], &["embed.unscaled"], &[]);
    graph.node((ONNX, "Mul"), &["embed.unscaled", "embed.scales"], &["embed.scaled"], &[]);
    let mut last = "embed.scaled";
    if kind.has_minima() {
        graph.node((ONNX, "Add"), &["embed.scaled", "embed.rests"], &["embed.shifted"], &[]);
        last = "embed.shifted";
    }
    graph.node((ONNX, "Reshape"), &[last, "embed.joined"], &[out], &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_operator_multiplies_by_is_the_file_s_weight_to_within_the_last_bit() {
        for kind in BlockKind::ALL.into_iter().filter(|kind| *kind != BlockKind::F32) {
            // Any bytes whose f16 are finite and of one size.
            let mut bytes: Vec<u8> =
                (0..512 * kind.bytes()).map(|at| (at * at / 7 + 37 * at) as u8).collect();
            for block in bytes.chunks_exact_mut(kind.bytes()) {
                let halves: &[usize] = match kind {
                    BlockKind::Q2K => &[81, 83],
                    BlockKind::Q3K => &[109],
                    BlockKind::Q6K => &[209],
                    BlockKind::Q4_0 | BlockKind::Q5_0 | BlockKind::Q8_0 => &[1],
                    _ => &[1, 3],
                };
                halves.iter().for_each(|&at| block[at] = block[at] & 0x83 | 0x28);
            }
            let mut expected = vec![0.0; 512 * kind.elements()];
            kind.dequantise(&bytes, &mut expected);
            let (codes, scales, rests) = recoded(kind, &bytes);
            let code = |at: usize| match kind.bits() {
                4 => codes[at / 2] >> (4 * (at % 2)) & 15,
                _ => codes[at],
            };
            for (group, expected) in expected.chunks_exact(kind.group()).enumerate() {
                let rest = rests.get(group).copied().unwrap_or(0.0);
                let largest = expected.iter().fold(rest.abs(), |largest, weight| largest.max(weight.abs()));
                for (place, expected) in expected.iter().enumerate() {
                    let number =
                        f32::from(code(group * kind.group() + place)) - f32::from(zero_point(kind.bits()));
                    let weight = number * scales[group] + rest;
                    let bound = if kind.has_minima() { 1.2e-7 * largest } else { 0.0 };
                    assert!((weight - expected).abs() <= bound, "{kind:?}: {weight} is not {expected}");
                }
            }
        }
    }
}
